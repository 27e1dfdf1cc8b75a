/* Elections by a Lease of Kubernetes, one object that the API server changes only if it is as its writer saw it
 * (resourceVersion). spec says who leads, for everybody who knows Leases: holderIdentity is the leader's address, and
 * empty when nobody leads. Annotations, which stay when nobody leads, hold what etcd has in keys of their own: the last
 * claim, the words beside it, and whose claim it is.
 *
 * A Lease does not end by itself, and its times are of its writer's clock, which nobody here believes: standbys judge
 * by their own clock whether the Lease has changed. Whatever changes it, they take for a renewal.
 *
 * What is asked of etcd as one guarded transaction is here a write upon what was read last: if that was not the newest,
 * the API server refuses (409), the Lease is read, its guard looked at, and the write made again. A write that comes
 * late can therefore never undo another. */
#include "base/checksum.h"
#include "base/error.h"
#include "env/clock.h"
#include "env/json.h"
#include "env/k8s.h"
#include "env/log.h"
#include "store/master/election.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define TRIES_MAX 8u /* of a write that others were faster than: nobody else writes there often */
#define PATIENCE_PART 5u
#define PATIENCE_MAX_MS 2000u
#define POLL_PART 10u /* an API server has other things to do */
#define TIME_MAX 40

#define ANNOTATIONS "metadata.annotations"
#define CLAIM "mooncake.io/claim"
#define HOLDER "mooncake.io/holder"
static const char *const word_names[MC_ELECTION_WORDS] = {"mooncake.io/departed", "mooncake.io/cluster",
                                                          "mooncake.io/aged", "mooncake.io/horizon"};

struct lease_place {
    struct mc_k8s *k8s;
    struct mc_k8s_lease lease;
    char all_path[MC_K8S_PATH_MAX], path[2 * MC_K8S_PATH_MAX], forget[2 * MC_K8S_NAME_MAX + 32];
    uint64_t ttl_ms;
    struct mc_buffer known; /* the Lease as it was read or written last; empty: there was none, or nobody has looked */
    struct mc_buffer body, reply;
};

/* What a write changes. NULL: it stays. */
struct edit {
    const char *holder, *claim, *words[MC_ELECTION_WORDS];
    bool begins; /* a leadership */
};

static struct mc_span known_of(const struct lease_place *place)
{
    return mc_span(place->known.data, place->known.length);
}

/* ---- reading ---- */

static int read_lease(struct lease_place *place, uint64_t deadline_ns)
{
    int rc = mc_k8s_call(place->k8s, "GET", place->path, mc_span(NULL, 0), deadline_ns, &place->reply);
    if (rc != 200 && rc != 404)
        return rc < 0 ? rc : MC_ERR_ETCD_OPERATION_ERROR;
    place->known.length = 0;
    if (rc == 200)
        mc_buffer_append(&place->known, place->reply.data, place->reply.length);
    return 0;
}

static int find_text(const struct lease_place *place, const char *path, const char *name, char *text, size_t size)
{
    text[0] = 0;
    return place->known.length == 0 ? 0 : mc_k8s_text(known_of(place), path, name, text, size);
}

/* Of all that a renewal changes, since a cluster whose data is brought back from a copy counts its versions anew; and
 * of nothing that API servers of two releases might write in two ways. 0: there is no Lease. */
static int revision_of(struct lease_place *place, uint64_t *revision)
{
    static const struct {
        const char *path, *name;
    } parts[] = {
        {"metadata", "resourceVersion"}, {"spec", "renewTime"}, {"spec", "holderIdentity"}, {ANNOTATIONS, CLAIM}};
    char text[MC_ADDRESS_MAX];
    place->body.length = 0;
    *revision = 0;
    if (place->known.length == 0)
        return 0;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        int rc = find_text(place, parts[i].path, parts[i].name, text, sizeof(text));
        if (rc < 0)
            return rc;
        mc_buffer_append(&place->body, text, strlen(text) + 1);
    }
    *revision = mc_hash(place->body.data, place->body.length).low;
    return 0;
}

/* Somebody leads by other means than ours: another program that knows Leases. It has promised what it says there. */
static void make_foreign(const struct lease_place *place, struct mc_election_view *view)
{
    uint64_t seconds = 0;
    unsigned long long epoch = 0;
    if (mc_json_find_number(known_of(place), "spec.leaseDurationSeconds", &seconds) != 1 || seconds > 3600)
        seconds = 3600;
    (void)sscanf(view->claim, "%19llu", &epoch); /* 0: nobody of ours has ever led */
    uint64_t ttl_ms = seconds * 1000 > place->ttl_ms ? seconds * 1000 : place->ttl_ms;
    snprintf(view->claim, sizeof(view->claim), "%llu %" PRIu64 " foreign", epoch, ttl_ms);
}

/* ---- writing ---- */

/* The members of that object of the Lease but for those names, each followed by a comma, as they are. */
static int put_others(struct lease_place *place, const char *path, const char *const *names, size_t count)
{
    struct mc_span inner;
    struct mc_json_cursor cursor;
    if (place->known.length == 0)
        return 0;
    int rc = mc_json_find(known_of(place), path, &inner);
    if (rc != 1 || inner.length == 0 || *(const char *)inner.data != '{')
        return rc < 0 ? rc : 0;
    rc = mc_json_open(inner, '{', &cursor);
    while (rc == 0 && (rc = mc_json_next(&cursor)) == 1) {
        bool is_ours = false;
        for (size_t i = 0; i < count; i++)
            is_ours |= mc_json_is(cursor.name, names[i]);
        rc = 0;
        if (is_ours)
            continue;
        mc_buffer_append(&place->body, cursor.from, (size_t)(cursor.at - cursor.from));
        mc_buffer_printf(&place->body, ",");
    }
    return rc;
}

static void put_pair(struct mc_buffer *body, const char *name, const char *text)
{
    mc_json_put_text(body, name);
    mc_buffer_printf(body, ":");
    mc_json_put_text(body, text);
}

/* The new text, or the one that stands there. */
static int put_annotation(struct lease_place *place, const char *name, const char *text)
{
    char stands[MC_ADDRESS_MAX];
    int rc = text != NULL ? 0 : find_text(place, ANNOTATIONS, name, stands, sizeof(stands));
    put_pair(&place->body, name, text != NULL ? text : stands);
    return rc;
}

static int put_metadata(struct lease_place *place, const struct edit *edit)
{
    static const char *const others[] = {"annotations", "managedFields", "name", "namespace"};
    const char *ours[2 + MC_ELECTION_WORDS] = {CLAIM, HOLDER};
    for (unsigned i = 0; i < MC_ELECTION_WORDS; i++)
        ours[2 + i] = word_names[i];
    mc_buffer_printf(&place->body, "\"metadata\":{");
    int rc = put_others(place, "metadata", others, sizeof(others) / sizeof(others[0])); /* resourceVersion among them */
    put_pair(&place->body, "name", place->lease.name);
    mc_buffer_printf(&place->body, ",");
    put_pair(&place->body, "namespace", place->lease.space);
    mc_buffer_printf(&place->body, ",\"annotations\":{");
    rc = rc == 0 ? put_others(place, ANNOTATIONS, ours, sizeof(ours) / sizeof(ours[0])) : rc;
    for (unsigned i = 0; i < MC_ELECTION_WORDS && rc == 0; i++) {
        rc = put_annotation(place, word_names[i], edit->words[i]);
        mc_buffer_printf(&place->body, ",");
    }
    rc = rc == 0 ? put_annotation(place, CLAIM, edit->claim) : rc;
    mc_buffer_printf(&place->body, ",");
    rc = rc == 0 ? put_annotation(place, HOLDER, edit->begins ? edit->holder : NULL) : rc;
    mc_buffer_printf(&place->body, "}}");
    return rc;
}

/* By our wall clock: for who looks at it, and for the original's clients. */
static void put_spec(struct lease_place *place, const struct edit *edit)
{
    char now_text[TIME_MAX] = "", date[24] = "", acquired[TIME_MAX] = "", holder[MC_ADDRESS_MAX] = "";
    uint64_t transitions = 0;
    struct timespec now;
    struct tm parts;
    clock_gettime(CLOCK_REALTIME, &now);
    if (gmtime_r(&now.tv_sec, &parts) != NULL && strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &parts) != 0)
        snprintf(now_text, sizeof(now_text), "%s.%06ldZ", date, now.tv_nsec / 1000);
    (void)find_text(place, "spec", "acquireTime", acquired, sizeof(acquired)); /* "" when there is none */
    (void)find_text(place, "spec", "holderIdentity", holder, sizeof(holder));
    if (place->known.length > 0 && mc_json_find_number(known_of(place), "spec.leaseTransitions", &transitions) != 1)
        transitions = 0;
    mc_buffer_printf(&place->body, "\"spec\":{\"leaseDurationSeconds\":%" PRIu64 ",\"leaseTransitions\":%" PRIu64 ",",
                     (place->ttl_ms + 999) / 1000, transitions + (edit->begins && place->known.length > 0 ? 1 : 0));
    put_pair(&place->body, "renewTime", now_text);
    mc_buffer_printf(&place->body, ",");
    put_pair(&place->body, "acquireTime", edit->begins || acquired[0] == 0 ? now_text : acquired);
    mc_buffer_printf(&place->body, ",");
    put_pair(&place->body, "holderIdentity", edit->holder != NULL ? edit->holder : holder);
    mc_buffer_printf(&place->body, "}}");
}

/* Upon what is known. 0; MC_ERR_ETCD_TRANSACTION_FAIL: the Lease has changed since. */
static int write_lease(struct lease_place *place, uint64_t deadline_ns, const struct edit *edit)
{
    bool is_new = place->known.length == 0;
    place->body.length = 0;
    mc_buffer_printf(&place->body, "{\"apiVersion\":\"coordination.k8s.io/v1\",\"kind\":\"Lease\",");
    int rc = put_metadata(place, edit);
    mc_buffer_printf(&place->body, ",");
    put_spec(place, edit);
    if (rc < 0)
        return rc;
    rc = mc_k8s_call(place->k8s, is_new ? "POST" : "PUT", is_new ? place->all_path : place->path,
                     mc_span(place->body.data, place->body.length), deadline_ns, &place->reply);
    if (rc == 404 || rc == 409)
        return MC_ERR_ETCD_TRANSACTION_FAIL;
    if (rc != 200 && rc != 201)
        return rc < 0 ? rc : MC_ERR_ETCD_OPERATION_ERROR;
    place->known.length = 0;
    mc_buffer_append(&place->known, place->reply.data, place->reply.length);
    return 0;
}

/* ---- looking ----
 *
 * A Lease that is not there says nothing of when it went: who has seen none before, and sees none now, may have missed
 * one that was claimed and deleted in between, under a leader that has not noticed. So it is made, without a claim, and
 * one without a claim counts as held by somebody: it must stand still for the time to live before it is claimed. */

static int make_lease(struct lease_place *place, uint64_t deadline_ns)
{
    const struct edit edit = {.holder = "", .claim = ""};
    int rc = write_lease(place, deadline_ns, &edit);
    return rc == MC_ERR_ETCD_TRANSACTION_FAIL ? MC_ERR_RPC_FAIL : rc; /* another was faster: the next look sees it */
}

static int observe(void *context, uint64_t deadline_ns, struct mc_election_view *view)
{
    struct lease_place *place = context;
    char ours[MC_ADDRESS_MAX];
    *view = (struct mc_election_view){0};
    int rc = read_lease(place, deadline_ns);
    if (rc == 0 && place->known.length == 0)
        rc = make_lease(place, deadline_ns);
    if (rc < 0)
        return rc;
    rc = find_text(place, ANNOTATIONS, CLAIM, view->claim, sizeof(view->claim));
    for (unsigned i = 0; i < MC_ELECTION_WORDS && rc == 0; i++)
        rc = find_text(place, ANNOTATIONS, word_names[i], view->words[i], sizeof(view->words[i]));
    rc = rc == 0 ? revision_of(place, &view->revision) : rc;
    if (rc < 0)
        return rc;
    bool is_address = find_text(place, "spec", "holderIdentity", view->leader, sizeof(view->leader)) == 0;
    bool is_ours =
        find_text(place, ANNOTATIONS, HOLDER, ours, sizeof(ours)) == 0 && is_address && strcmp(ours, view->leader) == 0;
    bool is_held = !is_address || view->leader[0] != 0;
    view->is_present = is_held || view->claim[0] == 0;
    if (!is_address)
        view->leader[0] = 0; /* somebody else's idea of an address; it leads none the less */
    if (is_held && !is_ours)
        make_foreign(place, view);
    return 0;
}

/* ---- guarded changes ---- */

/* Does that claim stand, and, if a leader is named, does it lead? */
static bool stands(const struct lease_place *place, const char *claim, const char *leader)
{
    char text[MC_ELECTION_CLAIM_MAX], holder[MC_ADDRESS_MAX];
    if (find_text(place, ANNOTATIONS, CLAIM, text, sizeof(text)) < 0 || strcmp(text, claim) != 0)
        return false;
    return leader == NULL ||
           (find_text(place, "spec", "holderIdentity", holder, sizeof(holder)) == 0 && strcmp(holder, leader) == 0);
}

static int change(struct lease_place *place, uint64_t deadline_ns, const char *claim, const char *leader,
                  const struct edit *edit)
{
    bool is_fresh = false;
    for (unsigned i = 0; i < TRIES_MAX; i++) {
        if (stands(place, claim, leader)) {
            int rc = write_lease(place, deadline_ns, edit);
            if (rc != MC_ERR_ETCD_TRANSACTION_FAIL)
                return rc;
        } else if (is_fresh) {
            return MC_ERR_ETCD_TRANSACTION_FAIL;
        }
        int rc = read_lease(place, deadline_ns);
        if (rc < 0)
            return rc;
        is_fresh = true;
    }
    return MC_ERR_RPC_FAIL;
}

/* ---- the table of functions ---- */

static int claim(void *context, uint64_t deadline_ns, const struct mc_election_view *seen, const char *text,
                 const char *leader, const char *const words[MC_ELECTION_WORDS])
{
    struct lease_place *place = context;
    uint64_t revision;
    if (revision_of(place, &revision) < 0 || revision != seen->revision)
        return MC_ERR_ETCD_TRANSACTION_FAIL; /* what we know is of a later look or write than what was judged */
    struct edit edit = {.holder = leader, .claim = text, .begins = true};
    memcpy(edit.words, words, sizeof(edit.words));
    return write_lease(place, deadline_ns, &edit);
}

/* A Lease that is gone, or of somebody else, is not written again: we stop and claim anew. */
static int renew(void *context, uint64_t deadline_ns, const char *text, const char *leader)
{
    const struct edit edit = {.holder = leader};
    return change(context, deadline_ns, text, leader, &edit);
}

static int write_word(void *context, uint64_t deadline_ns, const char *claim_text, enum mc_election_word word,
                      const char *text)
{
    struct edit edit = {.holder = NULL};
    edit.words[word] = text;
    return change(context, deadline_ns, claim_text, NULL, &edit);
}

/* A Lease that somebody else holds is not ours to give back, though our claim may stand there. */
static int resign(void *context, uint64_t deadline_ns, const char *text, const char *resigned)
{
    struct lease_place *place = context;
    char holder[MC_ADDRESS_MAX];
    if (!stands(place, text, NULL)) {
        int rc = read_lease(place, deadline_ns);
        if (rc < 0)
            return rc;
    }
    (void)find_text(place, ANNOTATIONS, HOLDER, holder, sizeof(holder)); /* "" would be of no claim of ours */
    const struct edit edit = {.holder = "", .claim = resigned};
    return change(place, deadline_ns, text, holder, &edit);
}

/* A Lease has no history that we could see. */
static int tidy(void *context, uint64_t deadline_ns, const char *text, uint64_t now, uint64_t every)
{
    (void)context, (void)deadline_ns, (void)text, (void)now, (void)every;
    return 0;
}

static void destroy(void *context)
{
    struct lease_place *place = context;
    mc_k8s_destroy(place->k8s);
    mc_buffer_free(&place->known);
    mc_buffer_free(&place->body);
    mc_buffer_free(&place->reply);
    free(place);
}

int mc_election_k8s_create(const char *lease, uint64_t ttl_ms, struct mc_election_backend *backend, char *error,
                           size_t error_size)
{
    struct lease_place *place = calloc(1, sizeof(*place));
    if (place == NULL) {
        snprintf(error, error_size, "no memory for an election");
        return MC_ERR_NO_MEMORY;
    }
    int rc = mc_k8s_lease_parse(lease, &place->lease);
    if (rc < 0)
        snprintf(error, error_size, "'%.100s' is no Lease: namespace/name is expected", lease);
    else
        rc = mc_k8s_create(&place->k8s, error, error_size);
    if (rc < 0) {
        free(place);
        return rc;
    }
    snprintf(place->all_path, sizeof(place->all_path), MC_K8S_LEASES, place->lease.space);
    snprintf(place->path, sizeof(place->path), "%s/%s", place->all_path, place->lease.name);
    snprintf(place->forget, sizeof(place->forget), "kubectl -n %s delete lease %s", place->lease.space,
             place->lease.name);
    place->ttl_ms = ttl_ms;
    mc_k8s_patience(place->k8s, ttl_ms / PATIENCE_PART < PATIENCE_MAX_MS ? ttl_ms / PATIENCE_PART : PATIENCE_MAX_MS);
    *backend = (struct mc_election_backend){.name = "the API server of Kubernetes",
                                            .forget = place->forget,
                                            .poll_ms = ttl_ms / POLL_PART,
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
