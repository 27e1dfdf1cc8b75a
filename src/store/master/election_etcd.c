/* Elections by etcd. Seven keys: mooncake-store/<cluster>/master_view holds the leader's address and is attached to a
 * lease of etcd, so that it goes when all masters are gone; .../epoch holds the last claim for ever, .../departed the
 * note beside it. Of .../cluster, which cluster this is, of .../aged, who came of age last, of .../horizon, which is
 * more of the note, and of .../tidied ("history", below), masters of before them know nothing.
 *
 * The view is written anew by every renewal: its revision is the heartbeat that standbys watch, and they judge by their
 * own clock. So neither etcd's least lease (two seconds) nor what it adds to leases when its own leader changes makes a
 * failover longer. */
#include "base/error.h"
#include "env/clock.h"
#include "env/etcd.h"
#include "env/json.h"
#include "env/log.h"
#include "store/master/election.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* The lease must outlive what the leader was promised. A renewal keeps it alive before it writes unless it stands for
 * LEASE_LEFT_TTLS * ttl anyway: it is one round trip most of the time. */
#define LEASE_TTLS 3u
#define LEASE_LEFT_TTLS 2u
#define LEASE_LEAST_S 5u
/* A member of etcd that takes longer than ttl / PATIENCE_PART gets company. */
#define PATIENCE_PART 5u
#define PATIENCE_MAX_MS 2000u

struct place {
    struct mc_etcd *etcd;
    char view_key[MC_ETCD_KEY_MAX], epoch_key[MC_ETCD_KEY_MAX], tidied_key[MC_ETCD_KEY_MAX];
    char word_keys[MC_ELECTION_WORDS][MC_ETCD_KEY_MAX];
    char forget[MC_ETCD_KEY_MAX + 16];
    uint64_t ttl_ms, lease_s;
    uint64_t lease, kept_ms; /* etcd's number for it, 0: none; since when it counts */
    enum { TIDY_LOOK, TIDY_COMPACT, TIDY_MARK } tidying;
    bool compaction_is_refused;
    bool horizon_is_gone; /* perhaps: somebody has deleted it */
    uint64_t tidied_revision;
    struct mc_buffer body, reply;
};

static struct mc_span reply_of(const struct place *place)
{
    return mc_span(place->reply.data, place->reply.length);
}

static bool says(const struct place *place, const char *words)
{
    return place->reply.length > 0 && memmem(place->reply.data, place->reply.length, words, strlen(words)) != NULL;
}

static int call(struct place *place, const char *path, uint64_t deadline_ns)
{
    int rc = mc_etcd_call(place->etcd, path, mc_span(place->body.data, place->body.length), deadline_ns, &place->reply);
    if (rc != MC_ERR_ETCD_OPERATION_ERROR)
        return rc;
    place->kept_ms = 0; /* perhaps the lease is not there any more */
    if (says(place, "database space exceeded"))
        mc_log_limited(ERROR, "etcd is full: it takes no writes, and nobody can lead. Make room (etcdctl compact, "
                              "etcdctl defrag, or a larger --quota-backend-bytes), then: etcdctl alarm disarm");
    else
        mc_log_limited(WARNING, "etcd refuses %s: %.*s", path,
                       (int)(place->reply.length < 200 ? place->reply.length : 200),
                       place->reply.length == 0 ? "" : (const char *)place->reply.data);
    return rc;
}

/* Sends the transaction whose last list is still open. 0, or MC_ERR_ETCD_TRANSACTION_FAIL when its guard did not hold.
 */
static int call_transaction(struct place *place, uint64_t deadline_ns)
{
    struct mc_span word;
    mc_buffer_printf(&place->body, "]}");
    int rc = call(place, "/v3/kv/txn", deadline_ns);
    if (rc < 0)
        return rc;
    rc = mc_json_find(reply_of(place), "succeeded", &word);
    if (rc < 0)
        return rc;
    return rc == 1 && mc_span_equal(word, mc_span_string("true")) ? 0 : MC_ERR_ETCD_TRANSACTION_FAIL;
}

/* ---- the lease ---- */

static int grant_lease(struct place *place, uint64_t deadline_ns)
{
    place->body.length = 0;
    mc_buffer_printf(&place->body, "{\"TTL\":\"%" PRIu64 "\"}", place->lease_s);
    uint64_t start_ms = mc_clock_boot_ms();
    int rc = call(place, "/v3/lease/grant", deadline_ns);
    place->kept_ms = rc == 0 ? start_ms : 0;
    if (rc == 0 && mc_json_find_number(reply_of(place), "ID", &place->lease) != 1)
        rc = MC_ERR_PROTOCOL;
    return rc;
}

/* A lease that lives on for long enough. */
static int keep_lease(struct place *place, uint64_t deadline_ns)
{
    uint64_t left_s = 0, now_ms = mc_clock_boot_ms();
    if (place->lease != 0 && place->kept_ms != 0 &&
        now_ms + LEASE_LEFT_TTLS * place->ttl_ms <= place->kept_ms + place->lease_s * 1000)
        return 0;
    if (place->lease != 0) {
        place->body.length = 0;
        mc_buffer_printf(&place->body, "{\"ID\":\"%" PRIu64 "\"}", place->lease);
        int rc = call(place, "/v3/lease/keepalive", deadline_ns);
        if (rc < 0)
            return rc;
        if (mc_json_find_number(reply_of(place), "result.TTL", &left_s) < 0)
            return MC_ERR_PROTOCOL;
        place->kept_ms = now_ms;
    }
    return left_s > 0 ? 0 : grant_lease(place, deadline_ns);
}

static void revoke_lease(struct place *place, uint64_t deadline_ns)
{
    if (place->lease == 0)
        return;
    place->body.length = 0;
    mc_buffer_printf(&place->body, "{\"ID\":\"%" PRIu64 "\"}", place->lease);
    (void)call(place, "/v3/lease/revoke", deadline_ns); /* nothing hangs on it any more; it ends by itself */
    place->lease = 0;
}

/* ---- bodies of transactions ---- */

/* result: EQUAL; LESS: what stands there is less than that. */
static void compare_value(struct place *place, const char *key, const char *result, const char *value)
{
    mc_buffer_printf(&place->body, "{\"target\":\"VALUE\",\"result\":\"%s\",", result);
    mc_etcd_field(&place->body, "key", mc_span_string(key));
    mc_buffer_printf(&place->body, ",");
    mc_etcd_field(&place->body, "value", mc_span_string(value));
    mc_buffer_printf(&place->body, "}");
}

/* text "": the key is not there. */
static void compare_text(struct place *place, const char *key, const char *text)
{
    if (text[0] == 0)
        mc_etcd_compare_revision(&place->body, key, 0);
    else
        compare_value(place, key, "EQUAL", text);
}

static void request_put(struct place *place, const char *key, const char *value, uint64_t lease)
{
    mc_etcd_request_put(&place->body, key, mc_span_string(value), lease);
}

static void request_key(struct place *place, const char *request, const char *key)
{
    mc_buffer_printf(&place->body, "{\"%s\":{", request);
    mc_etcd_field(&place->body, "key", mc_span_string(key));
    mc_buffer_printf(&place->body, "}}");
}

static void compare_is_there(struct place *place, const char *key)
{
    mc_buffer_printf(&place->body, "{\"target\":\"MOD\",\"result\":\"GREATER\",\"mod_revision\":\"0\",");
    mc_etcd_field(&place->body, "key", mc_span_string(key));
    mc_buffer_printf(&place->body, "}");
}

static void begin_compare(struct place *place)
{
    place->body.length = 0;
    mc_buffer_printf(&place->body, "{\"compare\":[");
}

/* A transaction that is carried out as long as that claim stands; horizon not NULL: and the one there is less. */
static void begin_while_claimed(struct place *place, const char *text, const char *horizon)
{
    const char *key = place->word_keys[MC_ELECTION_HORIZON];
    begin_compare(place);
    compare_value(place, place->epoch_key, "EQUAL", text);
    if (horizon != NULL) {
        mc_buffer_printf(&place->body, ",");
        if (place->horizon_is_gone)
            mc_etcd_compare_revision(&place->body, key, 0);
        else
            compare_value(place, key, "LESS", horizon);
    }
    mc_buffer_printf(&place->body, "],\"success\":[");
}

/* ---- history ----
 *
 * Each renewal is a put, since standbys live by the view's revision and claims are guarded by it, and etcd keeps every
 * revision until somebody compacts. So the leader does, as nobody else may. That is for the whole of etcd, and others
 * who use it may want to read what was: so only what is older than the time that was agreed goes, at which a key was
 * written that holds the time. Its revision is where to compact to, whoever led meanwhile. */

static int tidy_look(struct place *place, uint64_t deadline_ns, uint64_t now, uint64_t every)
{
    char text[24];
    unsigned long long then = 0;
    place->body.length = 0;
    mc_buffer_printf(&place->body, "{");
    mc_etcd_field(&place->body, "key", mc_span_string(place->tidied_key));
    mc_buffer_printf(&place->body, "}");
    int rc = call(place, "/v3/kv/range", deadline_ns);
    if (rc < 0)
        return rc;
    bool is_known = mc_json_find_number(reply_of(place), "kvs.0.mod_revision", &place->tidied_revision) == 1 &&
                    mc_etcd_text(reply_of(place), "kvs.0.value", text, sizeof(text)) == 1 &&
                    sscanf(text, "%19llu", &then) == 1 && then <= now; /* written by a clock that was wrong, else */
    if (is_known && now - then < every)
        return 0;
    place->tidying = is_known ? TIDY_COMPACT : TIDY_MARK;
    return 1;
}

/* Said once, until it changes: each interval would repeat it for ever. */
static void note_compaction(struct place *place, bool is_refused)
{
    if (is_refused && !place->compaction_is_refused)
        mc_log(WARNING, "etcd refuses compaction, so its history grows with each renewal: %.*s",
               (int)(place->reply.length < 200 ? place->reply.length : 200),
               place->reply.length == 0 ? "" : (const char *)place->reply.data);
    else if (!is_refused && place->compaction_is_refused)
        mc_log(INFO, "etcd takes compactions again");
    place->compaction_is_refused = is_refused;
}

static int tidy_compact(struct place *place, uint64_t deadline_ns)
{
    place->body.length = 0;
    mc_buffer_printf(&place->body, "{\"revision\":\"%" PRIu64 "\"}", place->tidied_revision);
    int rc = mc_etcd_call(place->etcd, "/v3/kv/compaction", mc_span(place->body.data, place->body.length), deadline_ns,
                          &place->reply);
    if (rc == 0 || rc == MC_ERR_ETCD_OPERATION_ERROR)
        note_compaction(place, rc != 0 && !says(place, "has been compacted"));
    place->tidying = TIDY_MARK; /* also when etcd refuses: somebody has compacted more than that, or nobody may */
    return rc == MC_ERR_ETCD_OPERATION_ERROR || rc == 0 ? 1 : rc;
}

static int tidy_mark(struct place *place, uint64_t deadline_ns, const char *text, uint64_t now)
{
    char mark[24];
    snprintf(mark, sizeof(mark), "%" PRIu64, now);
    begin_while_claimed(place, text, NULL);
    request_put(place, place->tidied_key, mark, 0);
    return call_transaction(place, deadline_ns);
}

static int tidy(void *context, uint64_t deadline_ns, const char *text, uint64_t now, uint64_t every)
{
    struct place *place = context;
    int rc = place->tidying == TIDY_LOOK      ? tidy_look(place, deadline_ns, now, every)
             : place->tidying == TIDY_COMPACT ? tidy_compact(place, deadline_ns)
                                              : tidy_mark(place, deadline_ns, text, now);
    if (rc != 1)
        place->tidying = TIDY_LOOK;
    return rc;
}

/* ---- the table of functions ---- */

/* The value of the key that was asked for as that one of the transaction. */
static int value_of(const struct place *place, unsigned number, char *text, size_t size)
{
    char path[64];
    snprintf(path, sizeof(path), "responses.%u.response_range.kvs.0.value", number);
    return mc_etcd_text(reply_of(place), path, text, size);
}

/* All keys at one moment: a transaction without a guard. */
static int observe(void *context, uint64_t deadline_ns, struct mc_election_view *view)
{
    struct place *place = context;
    place->body.length = 0;
    mc_buffer_printf(&place->body, "{\"success\":[");
    request_key(place, "request_range", place->view_key);
    mc_buffer_printf(&place->body, ",");
    request_key(place, "request_range", place->epoch_key);
    for (unsigned i = 0; i < MC_ELECTION_WORDS; i++) {
        mc_buffer_printf(&place->body, ",");
        request_key(place, "request_range", place->word_keys[i]);
    }
    int rc = call_transaction(place, deadline_ns);
    if (rc < 0)
        return rc == MC_ERR_ETCD_TRANSACTION_FAIL ? MC_ERR_PROTOCOL : rc;
    *view = (struct mc_election_view){0};
    rc = mc_json_find_number(reply_of(place), "responses.0.response_range.kvs.0.mod_revision", &view->revision);
    if (rc < 0)
        return rc;
    view->is_present = rc == 1;
    if (value_of(place, 0, view->leader, sizeof(view->leader)) < 0)
        view->leader[0] = 0; /* somebody else's idea of an address; it leads none the less */
    rc = value_of(place, 1, view->claim, sizeof(view->claim));
    for (unsigned i = 0; i < MC_ELECTION_WORDS && rc >= 0; i++)
        rc = value_of(place, 2 + i, view->words[i], sizeof(view->words[i]));
    return rc < 0 ? rc : 0;
}

static int claim(void *context, uint64_t deadline_ns, const struct mc_election_view *seen, const char *text,
                 const char *leader, const char *const words[MC_ELECTION_WORDS])
{
    struct place *place = context;
    int rc = keep_lease(place, deadline_ns);
    if (rc < 0)
        return rc;
    begin_compare(place);
    mc_etcd_compare_revision(&place->body, place->view_key, seen->is_present ? seen->revision : 0);
    mc_buffer_printf(&place->body, ",");
    compare_text(place, place->epoch_key, seen->claim);
    for (unsigned i = 0; i < MC_ELECTION_WORDS; i++) {
        mc_buffer_printf(&place->body, ",");
        compare_text(place, place->word_keys[i], seen->words[i]);
    }
    mc_buffer_printf(&place->body, "],\"success\":[");
    request_put(place, place->view_key, leader, place->lease);
    mc_buffer_printf(&place->body, ",");
    request_put(place, place->epoch_key, text, 0);
    for (unsigned i = 0; i < MC_ELECTION_WORDS; i++) {
        if (words[i] == NULL)
            continue;
        mc_buffer_printf(&place->body, ",");
        request_put(place, place->word_keys[i], words[i], 0);
    }
    return call_transaction(place, deadline_ns);
}

static int renew(void *context, uint64_t deadline_ns, const char *text, const char *leader)
{
    struct place *place = context;
    int rc = keep_lease(place, deadline_ns);
    if (rc < 0)
        return rc;
    /* A view that is gone is not written again, though nobody can have followed us: who counts since when it is gone
     * would have to see each time that it is back. We stop and claim anew. */
    begin_compare(place);
    compare_value(place, place->epoch_key, "EQUAL", text);
    mc_buffer_printf(&place->body, ",");
    compare_is_there(place, place->view_key);
    mc_buffer_printf(&place->body, "],\"success\":[");
    request_put(place, place->view_key, leader, place->lease);
    return call_transaction(place, deadline_ns);
}

static int write_word(void *context, uint64_t deadline_ns, const char *claim_text, enum mc_election_word word,
                      const char *text)
{
    struct place *place = context;
    bool is_horizon = word == MC_ELECTION_HORIZON;
    begin_while_claimed(place, claim_text, is_horizon ? text : NULL);
    request_put(place, place->word_keys[word], text, 0);
    int rc = call_transaction(place, deadline_ns);
    if (is_horizon)
        place->horizon_is_gone ^= rc == MC_ERR_ETCD_TRANSACTION_FAIL; /* or the claim is: then nobody asks again */
    return rc;
}

static int resign(void *context, uint64_t deadline_ns, const char *text, const char *resigned)
{
    struct place *place = context;
    begin_while_claimed(place, text, NULL);
    request_key(place, "request_delete_range", place->view_key);
    mc_buffer_printf(&place->body, ",");
    request_put(place, place->epoch_key, resigned, 0);
    int rc = call_transaction(place, deadline_ns);
    revoke_lease(place, deadline_ns);
    return rc;
}

static void destroy(void *context)
{
    struct place *place = context;
    mc_etcd_destroy(place->etcd);
    mc_buffer_free(&place->body);
    mc_buffer_free(&place->reply);
    free(place);
}

int mc_election_etcd_create(const char *endpoints, const char *cluster_id, uint64_t ttl_ms,
                            struct mc_election_backend *backend, char *error, size_t error_size)
{
    struct place *place = calloc(1, sizeof(*place));
    if (place == NULL)
        return MC_ERR_NO_MEMORY;
    int rc = mc_etcd_create(endpoints, &place->etcd, error, error_size);
    if (rc < 0) {
        free(place);
        return rc;
    }
    static const char *const words[MC_ELECTION_WORDS] = {"departed", "cluster", "aged", "horizon"};
    mc_etcd_view_key(place->view_key, sizeof(place->view_key), cluster_id, "master_view");
    mc_etcd_view_key(place->epoch_key, sizeof(place->epoch_key), cluster_id, "epoch");
    mc_etcd_view_key(place->tidied_key, sizeof(place->tidied_key), cluster_id, "tidied");
    for (unsigned i = 0; i < MC_ELECTION_WORDS; i++)
        mc_etcd_view_key(place->word_keys[i], sizeof(place->word_keys[i]), cluster_id, words[i]);
    snprintf(place->forget, sizeof(place->forget), "etcdctl del %s", place->epoch_key);
    place->ttl_ms = ttl_ms;
    place->lease_s = (LEASE_TTLS * ttl_ms + 999) / 1000;
    if (place->lease_s < LEASE_LEAST_S)
        place->lease_s = LEASE_LEAST_S;
    mc_etcd_patience(place->etcd, ttl_ms / PATIENCE_PART < PATIENCE_MAX_MS ? ttl_ms / PATIENCE_PART : PATIENCE_MAX_MS);
    *backend = (struct mc_election_backend){.name = "etcd",
                                            .forget = place->forget,
                                            .context = place,
                                            .observe = observe,
                                            .claim = claim,
                                            .renew = renew,
                                            .write = write_word,
                                            .resign = resign,
                                            .tidy = tidy,
                                            .destroy = destroy};
    return 0;
}
