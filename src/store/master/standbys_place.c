/* Where standbys say that they wait. In etcd: a key each, mooncake-store/<cluster>/standby/<id>, on a lease. Of
 * Kubernetes: annotations of one Lease more, named as the election's with "-standbys" behind it, since whatever changes
 * the election's own is taken for a renewal. Nobody takes or renews that one: it is a place to write, whose last writer
 * throws away what has stood still. */
#include "base/error.h"
#include "env/clock.h"
#include "env/etcd.h"
#include "env/json.h"
#include "env/k8s.h"
#include "env/log.h"
#include "store/master/standbys.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define LEASE_S (MC_STANDBY_GONE_MS / 1000)
#define PATIENCE_MS 2500u /* a member of etcd that is slow is not asked the more for it */
#define NOTE "mooncake.io/standby-"
#define SUFFIX "-standbys"
#define TRIES_MAX 4u   /* of a write that others were faster than */
#define LEFT_MS 60000u /* what has stood still for so long its writer has left behind */

/* ---- etcd ---- */

struct etcd_place {
    struct mc_etcd *etcd;
    char prefix[MC_ETCD_KEY_MAX], key[MC_ETCD_KEY_MAX + MC_STANDBY_ID_MAX];
    uint64_t lease; /* 0: none */
    struct mc_buffer body, reply;
};

static struct mc_span etcd_reply(const struct etcd_place *place)
{
    return mc_span(place->reply.data, place->reply.length);
}

static int etcd_call(struct etcd_place *place, const char *path, uint64_t deadline_ns)
{
    static const char no[] = "permission denied";
    int rc = place->body.failed ? MC_ERR_NO_MEMORY
                                : mc_etcd_call(place->etcd, path, mc_span(place->body.data, place->body.length),
                                               deadline_ns, &place->reply);
    bool is_refused = rc == MC_ERR_ETCD_OPERATION_ERROR && place->reply.length > 0 &&
                      memmem(place->reply.data, place->reply.length, no, sizeof(no) - 1) != NULL;
    return is_refused ? MC_ERR_NOT_PERMITTED : rc;
}

/* A body that says the lease. */
static int etcd_lease(struct etcd_place *place, const char *path, uint64_t deadline_ns)
{
    place->body.length = 0;
    mc_buffer_printf(&place->body, "{\"ID\":\"%" PRIu64 "\"}", place->lease);
    return etcd_call(place, path, deadline_ns);
}

static int etcd_keep(struct etcd_place *place, uint64_t deadline_ns)
{
    uint64_t left_s = 0;
    if (place->lease != 0) {
        int rc = etcd_lease(place, "/v3/lease/keepalive", deadline_ns);
        if (rc < 0)
            return rc;
        (void)mc_json_find_number(etcd_reply(place), "result.TTL", &left_s); /* not there: it is over */
    }
    if (left_s > 0)
        return 0;
    place->body.length = 0;
    mc_buffer_printf(&place->body, "{\"TTL\":\"%u\"}", LEASE_S);
    int rc = etcd_call(place, "/v3/lease/grant", deadline_ns);
    if (rc == 0 && mc_json_find_number(etcd_reply(place), "ID", &place->lease) != 1)
        rc = MC_ERR_PROTOCOL;
    return rc;
}

static int etcd_say(void *context, uint64_t deadline_ns, const char *id, const char *word)
{
    struct etcd_place *place = context;
    int rc = etcd_keep(place, deadline_ns);
    if (rc < 0)
        return rc;
    snprintf(place->key, sizeof(place->key), "%s%s", place->prefix, id);
    place->body.length = 0;
    mc_buffer_printf(&place->body, "{");
    mc_etcd_field(&place->body, "key", mc_span_string(place->key));
    mc_buffer_printf(&place->body, ",");
    mc_etcd_field(&place->body, "value", mc_span_string(word));
    mc_buffer_printf(&place->body, ",\"lease\":\"%" PRIu64 "\"}", place->lease);
    return etcd_call(place, "/v3/kv/put", deadline_ns);
}

/* The key goes with the lease. */
static int etcd_leave(void *context, uint64_t deadline_ns, const char *id)
{
    struct etcd_place *place = context;
    (void)id;
    int rc = place->lease == 0 ? 0 : etcd_lease(place, "/v3/lease/revoke", deadline_ns);
    if (rc < 0 && rc != MC_ERR_ETCD_OPERATION_ERROR && rc != MC_ERR_NOT_PERMITTED)
        return rc;
    place->lease = 0; /* one that etcd does not know any more has gone, and one that it keeps ends by itself */
    return 0;
}

static int etcd_look(void *context, uint64_t deadline_ns, struct mc_standby_list *list, uint64_t now_ms)
{
    struct etcd_place *place = context;
    struct mc_span found = {NULL, 0};
    struct mc_json_cursor cursor;
    char key[MC_ETCD_KEY_MAX + MC_STANDBY_ID_MAX], word[MC_STANDBY_WORD_MAX];
    size_t length = strlen(place->prefix);
    place->body.length = 0;
    mc_buffer_printf(&place->body, "{");
    mc_etcd_field(&place->body, "key", mc_span_string(place->prefix));
    mc_buffer_printf(&place->body, ",");
    snprintf(key, sizeof(key), "%.*s0", (int)length - 1, place->prefix); /* '0' comes after '/' */
    mc_etcd_field(&place->body, "range_end", mc_span_string(key));
    mc_buffer_printf(&place->body, ",\"limit\":\"%u\"}", 2 * MC_STANDBYS_MAX);
    int rc = etcd_call(place, "/v3/kv/range", deadline_ns);
    if (rc == 0)
        rc = mc_json_find(etcd_reply(place), "kvs", &found);
    if (rc == 1 && (rc = mc_json_open(found, '[', &cursor)) == 0)
        while ((rc = mc_json_next(&cursor)) == 1)
            if (mc_etcd_text(cursor.value, "key", key, sizeof(key)) == 1 &&
                mc_etcd_text(cursor.value, "value", word, sizeof(word)) == 1 && strlen(key) > length)
                mc_standby_list_add(list, key + length, word, now_ms);
    return rc < 0 ? rc : 0;
}

static void etcd_destroy(void *context)
{
    struct etcd_place *place = context;
    mc_etcd_destroy(place->etcd);
    mc_buffer_free(&place->body);
    mc_buffer_free(&place->reply);
    free(place);
}

int mc_standby_etcd_create(const char *endpoints, const char *cluster_id, struct mc_standby_place *out, char *error,
                           size_t error_size)
{
    struct etcd_place *place = calloc(1, sizeof(*place));
    if (place == NULL)
        return MC_ERR_NO_MEMORY;
    int rc = mc_etcd_create(endpoints, &place->etcd, error, error_size);
    if (rc < 0) {
        free(place);
        return rc;
    }
    mc_etcd_patience(place->etcd, PATIENCE_MS);
    mc_etcd_view_key(place->prefix, sizeof(place->prefix), cluster_id, "standby/");
    *out = (struct mc_standby_place){place, etcd_say, etcd_leave, etcd_look, etcd_destroy};
    return 0;
}

/* ---- Kubernetes ---- */

struct k8s_place {
    struct mc_k8s *k8s;
    struct mc_k8s_lease lease;
    char all_path[MC_K8S_PATH_MAX], path[2 * MC_K8S_PATH_MAX];
    struct mc_standby_list left; /* what stands there, to see what stands still */
    struct mc_buffer body, reply;
};

/* Of an answer that says no; one that has too much to do (429) may be asked again soon. */
static int k8s_refusal(int status)
{
    return status == 401 || status == 403 ? MC_ERR_NOT_PERMITTED : MC_ERR_ETCD_OPERATION_ERROR;
}

/* 200, 404 or negative. */
static int k8s_read(struct k8s_place *place, uint64_t deadline_ns)
{
    int rc = mc_k8s_call(place->k8s, "GET", place->path, mc_span(NULL, 0), deadline_ns, &place->reply);
    return rc == 200 || rc == 404 || rc < 0 ? rc : k8s_refusal(rc);
}

/* The words of what was read. 0 or negative. */
static int k8s_words(const struct k8s_place *place, struct mc_standby_list *list, uint64_t now_ms)
{
    struct mc_span notes;
    struct mc_json_cursor cursor;
    char word[MC_STANDBY_WORD_MAX], id[MC_STANDBY_ID_MAX];
    size_t length = strlen(NOTE);
    int rc = mc_json_find(mc_span(place->reply.data, place->reply.length), "metadata.annotations", &notes);
    if (rc != 1)
        return rc;
    rc = mc_json_open(notes, '{', &cursor);
    while (rc == 0 && (rc = mc_json_next(&cursor)) == 1) {
        rc = 0;
        const char *name = cursor.name.data;
        if (cursor.name.length <= length || cursor.name.length >= length + sizeof(id) ||
            memcmp(name, NOTE, length) != 0 || mc_json_text(&cursor, word, sizeof(word)) < 0)
            continue;
        snprintf(id, sizeof(id), "%.*s", (int)(cursor.name.length - length), name + length);
        mc_standby_list_add(list, id, word, now_ms);
    }
    return rc < 0 ? rc : 0;
}

static void put_note(struct mc_buffer *body, bool *is_first, const char *id, const char *word)
{
    mc_buffer_printf(body, "%s\"" NOTE "%s\":", *is_first ? "" : ",", id); /* hex, or as Kubernetes lets one be named */
    mc_json_put_text(body, word);
    *is_first = false;
}

/* Upon what was read, the word of that id; NULL: none. */
static int k8s_write(struct k8s_place *place, uint64_t deadline_ns, bool is_new, const char *id, const char *word)
{
    char version[64] = "", now_text[48] = "", date[24];
    struct timespec now;
    struct tm parts;
    bool is_first = true;
    uint64_t now_ms = mc_clock_boot_ms();
    clock_gettime(CLOCK_REALTIME, &now);
    if (gmtime_r(&now.tv_sec, &parts) != NULL && strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &parts) != 0)
        snprintf(now_text, sizeof(now_text), "%s.%06ldZ", date, now.tv_nsec / 1000);
    if (!is_new && mc_k8s_text(mc_span(place->reply.data, place->reply.length), "metadata", "resourceVersion", version,
                               sizeof(version)) < 0)
        return MC_ERR_PROTOCOL;
    struct mc_buffer *body = &place->body;
    body->length = 0;
    mc_buffer_printf(body, "{\"apiVersion\":\"coordination.k8s.io/v1\",\"kind\":\"Lease\",\"metadata\":{\"name\":");
    mc_json_put_text(body, place->lease.name);
    mc_buffer_printf(body, ",\"namespace\":");
    mc_json_put_text(body, place->lease.space);
    if (!is_new) {
        mc_buffer_printf(body, ",\"resourceVersion\":");
        mc_json_put_text(body, version);
    }
    mc_buffer_printf(body, ",\"annotations\":{");
    for (size_t i = 0; i < place->left.count; i++)
        if (strcmp(place->left.seen[i].id, id) != 0 && now_ms - place->left.seen[i].changed_ms < LEFT_MS)
            put_note(body, &is_first, place->left.seen[i].id, place->left.seen[i].word);
    if (word != NULL)
        put_note(body, &is_first, id, word);
    mc_buffer_printf(body,
                     "}},\"spec\":{\"holderIdentity\":\"\",\"leaseDurationSeconds\":%u,\"leaseTransitions\":0,"
                     "\"acquireTime\":\"%s\",\"renewTime\":\"%s\"}}",
                     LEASE_S, now_text, now_text);
    int rc = mc_k8s_call(place->k8s, is_new ? "POST" : "PUT", is_new ? place->all_path : place->path,
                         mc_span(body->data, body->length), deadline_ns, &place->reply);
    if (rc == 404 || rc == 409)
        return MC_ERR_ETCD_TRANSACTION_FAIL; /* another was faster */
    return rc == 200 || rc == 201 ? 0 : rc < 0 ? rc : k8s_refusal(rc);
}

static int k8s_change(struct k8s_place *place, uint64_t deadline_ns, const char *id, const char *word)
{
    int rc = MC_ERR_ETCD_TRANSACTION_FAIL;
    for (unsigned i = 0; i < TRIES_MAX && rc == MC_ERR_ETCD_TRANSACTION_FAIL; i++) {
        int found = k8s_read(place, deadline_ns);
        if (found < 0 || (found == 404 && word == NULL))
            return found < 0 ? found : 0;
        mc_standby_list_begin(&place->left);
        rc = found == 404 ? 0 : k8s_words(place, &place->left, mc_clock_boot_ms());
        mc_standby_list_end(&place->left, mc_clock_boot_ms());
        if (rc == 0)
            rc = k8s_write(place, deadline_ns, found == 404, id, word);
    }
    return rc;
}

static int k8s_say(void *context, uint64_t deadline_ns, const char *id, const char *word)
{
    return k8s_change(context, deadline_ns, id, word);
}

static int k8s_leave(void *context, uint64_t deadline_ns, const char *id)
{
    return k8s_change(context, deadline_ns, id, NULL);
}

static int k8s_look(void *context, uint64_t deadline_ns, struct mc_standby_list *list, uint64_t now_ms)
{
    struct k8s_place *place = context;
    int rc = k8s_read(place, deadline_ns);
    return rc == 200 ? k8s_words(place, list, now_ms) : rc == 404 ? 0 : rc;
}

static void k8s_destroy(void *context)
{
    struct k8s_place *place = context;
    mc_k8s_destroy(place->k8s);
    mc_buffer_free(&place->body);
    mc_buffer_free(&place->reply);
    free(place);
}

int mc_standby_k8s_create(const char *lease, struct mc_standby_place *out, char *error, size_t error_size)
{
    struct k8s_place *place = calloc(1, sizeof(*place));
    if (place == NULL)
        return MC_ERR_NO_MEMORY;
    int rc = mc_k8s_lease_parse(lease, &place->lease);
    size_t length = strlen(place->lease.name);
    if (rc == 0 && length + sizeof(SUFFIX) > sizeof(place->lease.name))
        rc = MC_ERR_INVALID_PARAMS;
    if (rc < 0) {
        snprintf(error, error_size, "no name for a Lease of theirs can be made of '%.100s'", lease);
    } else {
        memcpy(place->lease.name + length, SUFFIX, sizeof(SUFFIX));
        rc = mc_k8s_create(&place->k8s, error, error_size);
    }
    if (rc < 0) {
        free(place);
        return rc;
    }
    snprintf(place->all_path, sizeof(place->all_path), MC_K8S_LEASES, place->lease.space);
    snprintf(place->path, sizeof(place->path), "%s/%s", place->all_path, place->lease.name);
    *out = (struct mc_standby_place){place, k8s_say, k8s_leave, k8s_look, k8s_destroy};
    return 0;
}
