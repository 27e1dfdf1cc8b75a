/* Get sessions. */
#include "env/clock.h"
#include "env/thread.h"
#include "store/client/calls.h"
#include "store/client/link.h"
#include "store/client/scope.h"

#include <stdlib.h>

#define SESSION_HOLDS_MAX 1024u /* links that wait for the end of get sessions; more: MC_ERR_BUSY */
#define SESSION_IDLE_MS 30000u  /* a get session that nobody uses for so long is over */
#define BUSY_TICK_MS 20u
#define RENEW_SEND_NS 1000000ull /* the heartbeat thread does not wait longer for a socket that is full */

struct mc_session_hold {         /* one answer of the master: its link, and the sessions that it protects */
    struct mc_master_link *link; /* NULL: expired */
    size_t key_count;
    uint64_t used_ms, renewed_ms;
    struct mc_session_hold *next;
};

struct mc_get_session {
    struct mc_get_session *next;
    struct mc_hash hash;
    struct mc_session_hold *hold;
};

static size_t bucket_of(struct mc_hash hash)
{
    return (size_t)(hash.low % MC_SESSION_BUCKETS);
}

static struct mc_get_session **get_session_find(struct mc_sessions *sessions, struct mc_hash hash)
{
    struct mc_get_session **at = &sessions->gets[bucket_of(hash)];
    while (*at != NULL && !mc_session_is_of((*at)->hash, hash))
        at = &(*at)->next;
    return at;
}

/* Takes a hold that protects nothing any more out of the list; its link goes to *links. Lock held. */
static void hold_drop(struct mc_sessions *sessions, struct mc_session_hold *hold, struct mc_master_link **links)
{
    struct mc_session_hold **at = &sessions->holds;
    while (*at != hold)
        at = &(*at)->next;
    *at = hold->next;
    sessions->hold_count--;
    if (hold->link != NULL) {
        hold->link->next = *links;
        *links = hold->link;
    }
    free(hold);
}

/* Lock held. */
static void session_drop(struct mc_sessions *sessions, struct mc_get_session **at, struct mc_master_link **links)
{
    struct mc_get_session *session = *at;
    *at = session->next;
    sessions->get_count--;
    if (--session->hold->key_count == 0)
        hold_drop(sessions, session->hold, links);
    free(session);
}

/* Closes them: with its connection the master's count of readers ends at once. */
static void links_close(struct mc_store *store, struct mc_master_link *links)
{
    for (struct mc_master_link *next; links != NULL; links = next) {
        next = links->next;
        links->broken = true;
        mc_link_return(store, links);
    }
}

/* Makes room among sessions that are over. Lock held. */
static void drop_expired(struct mc_sessions *sessions, struct mc_master_link **links)
{
    for (size_t i = 0; i < MC_SESSION_BUCKETS; i++) {
        for (struct mc_get_session **at = &sessions->gets[i]; *at != NULL;) {
            if ((*at)->hold->link == NULL)
                session_drop(sessions, at, links);
            else
                at = &(*at)->next;
        }
    }
}

/* A session of that key, protected by the hold. Lock held. */
static int session_add(struct mc_sessions *sessions, struct mc_hash hash, struct mc_session_hold *hold,
                       struct mc_master_link **links)
{
    struct mc_get_session **at = get_session_find(sessions, hash);
    if (*at != NULL)
        session_drop(sessions, at, links);
    if (sessions->get_count == MC_SESSION_KEYS_MAX)
        drop_expired(sessions, links);
    if (sessions->get_count == MC_SESSION_KEYS_MAX)
        return MC_ERR_BUSY;
    struct mc_get_session *session = malloc(sizeof(*session));
    if (session == NULL)
        return MC_ERR_NO_MEMORY;
    at = get_session_find(sessions, hash); /* the sweep may have moved it */
    *session = (struct mc_get_session){.next = *at, .hash = hash, .hold = hold};
    *at = session;
    sessions->get_count++;
    hold->key_count++;
    return 0;
}

static int gets_reserve(struct mc_sessions *sessions)
{
    if (sessions->gets == NULL)
        sessions->gets = calloc(MC_SESSION_BUCKETS, sizeof(struct mc_get_session *));
    return sessions->gets == NULL ? MC_ERR_NO_MEMORY : 0;
}

/* Up to MC_BATCH_MAX good keys. */
static int start_slice(struct mc_store *store, const struct mc_bytes *keys, size_t count, uint64_t deadline_ns,
                       int *results)
{
    struct mc_sessions *sessions = &store->sessions;
    struct mc_master_link *link = NULL, *links = NULL;
    struct mc_session_hold *hold = malloc(sizeof(*hold));
    struct mc_hash hashes[MC_BATCH_MAX];
    mc_assert(count > 0 && count <= MC_BATCH_MAX);
    for (size_t i = 0; i < count; i++)
        hashes[i] = mc_hash(keys[i].data, keys[i].length);
    int rc = hold == NULL ? MC_ERR_NO_MEMORY : 0;
    if (rc == 0)
        rc = mc_get_hold(store, keys, hashes, count, deadline_ns, results, &link);
    for (size_t i = 0; rc < 0 && i < count; i++)
        results[i] = rc;
    if (rc < 0) {
        free(hold);
        return rc;
    }
    pthread_mutex_lock(&sessions->lock);
    uint64_t now_ms = mc_clock_ms();
    *hold = (struct mc_session_hold){.link = link, .used_ms = now_ms, .renewed_ms = now_ms, .next = sessions->holds};
    hold->key_count = 1; /* our own, so that none of its keys can free it here */
    sessions->holds = hold;
    rc = ++sessions->hold_count > SESSION_HOLDS_MAX ? MC_ERR_BUSY : gets_reserve(sessions);
    for (size_t i = 0; i < count; i++) {
        if (results[i] == 0)
            results[i] = rc < 0 ? rc : session_add(sessions, hashes[i], hold, &links);
    }
    if (--hold->key_count == 0)
        hold_drop(sessions, hold, &links);
    pthread_mutex_unlock(&sessions->lock);
    links_close(store, links);
    mc_store_wake(store); /* it sleeps as if there were no session */
    return rc;
}

int mc_store_get_session_start(struct mc_store *store, const struct mc_bytes *keys, size_t count, int *results)
{
    struct mc_bytes *made = NULL;
    int entered = mc_store_enter(store), first = 0;
    int rc = entered < 0 ? entered : mc_scope_keys(store, &keys, count, &made);
    for (size_t i = 0; rc < 0 && i < count; i++)
        results[i] = rc;
    if (rc < 0 && entered == 0)
        mc_store_leave(store);
    if (rc < 0)
        return rc;
    uint64_t deadline_ns = mc_store_deadline(store, 0);
    for (size_t at = 0; at < count;) {
        size_t slice = 0;
        rc = 0;
        while (slice < MC_BATCH_MAX && at + slice < count && (rc = mc_key_check(keys[at + slice])) == 0)
            slice++;
        if (slice == 0) {
            results[at++] = rc;
            continue;
        }
        rc = start_slice(store, keys + at, slice, deadline_ns, results + at);
        first = first < 0 ? first : rc;
        at += slice;
    }
    free(made);
    mc_store_leave(store);
    return first;
}

/* Is the key in a session that lives? Its time starts anew. */
static int session_touch(struct mc_sessions *sessions, struct mc_bytes key, struct mc_master_link **links)
{
    struct mc_get_session **at =
        sessions->gets == NULL ? NULL : get_session_find(sessions, mc_hash(key.data, key.length));
    if (at == NULL || *at == NULL)
        return MC_ERR_INVALID_PARAMS;
    if ((*at)->hold->link == NULL) {
        session_drop(sessions, at, links);
        return MC_ERR_LEASE_EXPIRED;
    }
    (*at)->hold->used_ms = mc_clock_ms();
    return 0;
}

/* Moves the items that are to be read to the front; `order` says where they were. */
static size_t choose(struct mc_store *store, struct mc_range_item *items, size_t count, size_t *order)
{
    struct mc_master_link *links = NULL;
    size_t chosen = 0;
    pthread_mutex_lock(&store->sessions.lock);
    for (size_t i = 0; i < count; i++) {
        int rc = mc_key_check(items[i].key);
        /* The ranges of a key follow each other: one that was just found expired is so for all of them. */
        bool same =
            i > 0 && items[i].key.data == items[i - 1].key.data && items[i].key.length == items[i - 1].key.length;
        if (rc == 0)
            rc = same ? (int)items[i - 1].result : session_touch(&store->sessions, items[i].key, &links);
        items[i].result = rc;
        if (rc == 0)
            order[chosen++] = i;
    }
    pthread_mutex_unlock(&store->sessions.lock);
    links_close(store, links);
    return chosen;
}

int mc_store_get_session_ranges(struct mc_store *store, struct mc_range_item *items, size_t count)
{
    int entered = mc_store_enter(store), rc = entered;
    struct mc_bytes *made = NULL;
    if (rc == 0 && count > 0)
        rc = mc_scope_enter(store, &items[0].key, sizeof(items[0]), count, &made);
    size_t *order = malloc((count + 1) * sizeof(*order));
    struct mc_range_item *chosen = malloc((count + 1) * sizeof(*chosen));
    if (rc == 0 && (order == NULL || chosen == NULL))
        rc = MC_ERR_NO_MEMORY;
    for (size_t i = 0; rc < 0 && i < count; i++)
        items[i].result = rc;
    if (rc == 0) {
        size_t chosen_count = choose(store, items, count, order);
        for (size_t i = 0; i < chosen_count; i++)
            chosen[i] = items[order[i]];
        (void)mc_get_ranges_remembered(store, chosen, chosen_count); /* each item has its result */
        for (size_t i = 0; i < chosen_count; i++)
            items[order[i]].result = chosen[i].result;
        for (size_t i = 0; rc == 0 && i < count; i++)
            rc = items[i].result < 0 ? (int)items[i].result : 0;
    }
    if (made != NULL)
        mc_scope_leave(&items[0].key, sizeof(items[0]), count, made);
    free(chosen);
    free(order);
    if (entered == 0)
        mc_store_leave(store);
    return rc;
}

int mc_store_get_session_end(struct mc_store *store, const struct mc_bytes *keys, size_t count)
{
    struct mc_master_link *links = NULL;
    struct mc_bytes *made = NULL;
    int rc = mc_store_enter(store);
    if (rc < 0)
        return rc;
    rc = mc_scope_keys(store, &keys, count, &made);
    pthread_mutex_lock(&store->sessions.lock);
    for (size_t i = 0; rc == 0 && store->sessions.gets != NULL && i < count; i++) {
        if (mc_key_check(keys[i]) < 0)
            continue; /* no session has such a key */
        struct mc_get_session **at = get_session_find(&store->sessions, mc_hash(keys[i].data, keys[i].length));
        if (*at != NULL)
            session_drop(&store->sessions, at, &links);
    }
    pthread_mutex_unlock(&store->sessions.lock);
    links_close(store, links);
    free(made);
    mc_store_leave(store);
    return rc;
}

uint64_t mc_sessions_tick(struct mc_store *store)
{
    struct mc_sessions *sessions = &store->sessions;
    struct mc_master_link *links = NULL;
    uint64_t now_ms = mc_clock_ms(), renew_ms = atomic_load(&store->lease_ttl_ms) / 3;
    if (pthread_mutex_trylock(&sessions->lock) != 0)
        return BUSY_TICK_MS; /* somebody uses them */
    bool any = sessions->holds != NULL;
    for (struct mc_session_hold *hold = sessions->holds; hold != NULL; hold = hold->next) {
        if (hold->link == NULL)
            continue;
        /* A third of the lease, and the rest for a tick that comes late. */
        if (now_ms - hold->renewed_ms >= renew_ms) {
            hold->renewed_ms = now_ms;
            mc_frame_bare(&hold->link->out, MC_MESSAGE_RENEW, 0);
            (void)mc_link_send(hold->link, mc_clock_ns() + RENEW_SEND_NS); /* a broken one ends here */
        }
        if (hold->link->broken || now_ms - hold->used_ms >= SESSION_IDLE_MS) {
            hold->link->next = links;
            links = hold->link;
            hold->link = NULL;
        }
    }
    pthread_mutex_unlock(&sessions->lock);
    links_close(store, links);
    return any ? renew_ms + 1 : UINT64_MAX;
}

void mc_get_sessions_free(struct mc_store *store)
{
    struct mc_sessions *sessions = &store->sessions;
    struct mc_master_link *links = NULL;
    for (size_t i = 0; sessions->gets != NULL && i < MC_SESSION_BUCKETS; i++) {
        while (sessions->gets[i] != NULL)
            session_drop(sessions, &sessions->gets[i], &links);
    }
    links_close(store, links);
    free(sessions->gets);
}
