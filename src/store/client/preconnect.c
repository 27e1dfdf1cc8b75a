/* Paths opened ahead. */
#include "store/client/preconnect.h"

#include "env/clock.h"
#include "env/log.h"
#include "env/thread.h"
#include "store/client/endpoints.h"
#include "store/client/link.h"
#include "store/client/owners.h"

#include <stdlib.h>

#define ASK_MS 2000u /* for the list */
#define PAUSE_MS 1000u
#define AGAIN_MS                                                                                                       \
    4000u /* between two questions at most, and half of it at least: while many nodes come or go, all clients
                          of a cluster would ask about each, and a master goes through all segments for an answer */

struct list_state { /* of the list of segments */
    uint64_t epoch, changes;
};

struct mc_preconnect {
    struct mc_store *store;
    struct mc_sleeper sleeper; /* its lock guards told; held for no longer than it takes to look */
    struct list_state told;
    /* Of the thread alone. */
    size_t count;
    struct mc_endpoint endpoints[MC_PRECONNECT_SEGMENTS_MAX];
};

static _Atomic size_t stores; /* of this process that open paths ahead */

/* Paths that one change has this store open, so that many stores do not use up the process's descriptors. */
static size_t share(void)
{
    size_t count = atomic_load(&stores), paths = MC_PRECONNECT_PATHS_MAX / (count == 0 ? 1 : count);
    return paths < MC_PRECONNECT_SEGMENTS_MAX ? paths : MC_PRECONNECT_SEGMENTS_MAX;
}

static void build_segments(struct mc_buffer *out, uint64_t request_id, const void *context)
{
    mc_wire_segments_frame(out, mc_frame_begin(out, MC_MESSAGE_SEGMENTS, request_id), context);
}

/* Asks what is new since *done, which becomes what is known then. It joins what is still to be opened. */
static int ask(struct mc_preconnect *preconnect, struct list_state *done, const struct list_state *told)
{
    struct mc_store *store = preconnect->store;
    struct mc_wire_segments request = {.changes = done->epoch == told->epoch ? done->changes : 0, .host = store->host};
    struct mc_wire_segments_reply head;
    struct mc_wire_segment_reply one;
    struct mc_master_link *link;
    struct mc_reader reader;
    if (done->epoch != told->epoch)
        preconnect->count = 0;
    int rc = mc_link_call(store, mc_clock_ns() + ASK_MS * 1000000ull, build_segments, &request,
                          MC_MESSAGE_SEGMENTS_REPLY, &link, &reader);
    if (rc < 0)
        return rc;
    mc_wire_segments_reply_read(&reader, &head);
    size_t most = share();
    uint32_t count = mc_list_read(&reader);
    bool current = link->epoch == told->epoch; /* else the heartbeat thread will tell of the new master */
    for (; current && count > 0 && !reader.bad && preconnect->count < most; count--) {
        mc_wire_segment_reply_read(&reader, &one);
        if (!reader.bad &&
            mc_store_endpoint_told(store, link->epoch, &one, &preconnect->endpoints[preconnect->count]) == 0)
            preconnect->count++;
    }
    *done = current ? (struct list_state){told->epoch, head.changes} : *told;
    rc = reader.bad ? MC_ERR_PROTOCOL : 0;
    link->broken = link->broken || rc < 0;
    mc_link_return(store, link);
    return rc;
}

/* Lock held. False when there is something else to do. */
static bool pause_for(struct mc_preconnect *preconnect, const struct list_state *done, uint64_t until_ns)
{
    int rc = 0;
    while (rc == 0 && !preconnect->sleeper.stop && preconnect->told.epoch == done->epoch &&
           preconnect->told.changes <= done->changes)
        rc = mc_monitor_wait(&preconnect->sleeper.lock, &preconnect->sleeper.changed, until_ns);
    return rc != 0;
}

static bool is_stopping(struct mc_preconnect *preconnect)
{
    pthread_mutex_lock(&preconnect->sleeper.lock);
    bool stop = preconnect->sleeper.stop;
    pthread_mutex_unlock(&preconnect->sleeper.lock);
    return stop;
}

/* Opens what can be opened; the rest stays for another try. */
static void open_all(struct mc_preconnect *preconnect)
{
    size_t left = 0;
    for (size_t i = 0; i < preconnect->count && !is_stopping(preconnect); i++) {
        const struct mc_endpoint *endpoint = &preconnect->endpoints[i];
        int rc =
            mc_path_prepare(preconnect->store->paths, endpoint, mc_clock_ns() + MC_PRECONNECT_OPEN_MS * 1000000ull);
        if (rc == 0 || rc == MC_ERR_UNAVAILABLE_IN_CURRENT_MODE || rc == MC_ERR_STALE)
            continue;
        mc_log(DEBUG, "no path to segment %u of %s yet: %s", endpoint->segment, endpoint->name, mc_error_name(rc));
        if (left != i)
            preconnect->endpoints[left] = *endpoint;
        left++;
    }
    preconnect->count = left;
}

/* One change of the list. Called and left with the lock. */
static void follow(struct mc_preconnect *preconnect, struct list_state *done)
{
    struct list_state told = preconnect->told;
    pthread_mutex_unlock(&preconnect->sleeper.lock);
    mc_paths_sweep(preconnect->store->paths);
    int rc = ask(preconnect, done, &told);
    pthread_mutex_lock(&preconnect->sleeper.lock);
    if (rc < 0) {
        *done = told; /* the next change is soon enough */
        return;
    }
    for (unsigned tries = 1; preconnect->count > 0; tries++) {
        pthread_mutex_unlock(&preconnect->sleeper.lock);
        open_all(preconnect);
        pthread_mutex_lock(&preconnect->sleeper.lock);
        if (preconnect->count == 0 || tries == MC_PRECONNECT_TRIES ||
            !pause_for(preconnect, done, mc_clock_ns() + PAUSE_MS * 1000000ull))
            return;
    }
}

static void *preconnect_main(void *argument)
{
    struct mc_preconnect *preconnect = argument;
    struct list_state done = {0, 0};
    uint64_t next_ns = 0; /* the same master is not asked before */
    pthread_mutex_lock(&preconnect->sleeper.lock);
    while (!preconnect->sleeper.stop) {
        bool is_same = preconnect->told.epoch == done.epoch;
        if (preconnect->told.changes == 0 || (is_same && preconnect->told.changes <= done.changes)) {
            pthread_cond_wait(&preconnect->sleeper.changed, &preconnect->sleeper.lock);
        } else if (is_same && mc_clock_ns() < next_ns) {
            uint64_t again_ns = mc_clock_ns() + PAUSE_MS * 1000000ull;
            bool has_some = preconnect->count > 0 && again_ns < next_ns;
            int rc =
                mc_monitor_wait(&preconnect->sleeper.lock, &preconnect->sleeper.changed, has_some ? again_ns : next_ns);
            if (rc == 0 || !has_some)
                continue;
            pthread_mutex_unlock(&preconnect->sleeper.lock);
            open_all(preconnect);
            pthread_mutex_lock(&preconnect->sleeper.lock);
        } else {
            follow(preconnect, &done);
            next_ns = mc_clock_ns() + (AGAIN_MS - mc_random_u64() % (AGAIN_MS / 2)) * 1000000ull;
        }
    }
    pthread_mutex_unlock(&preconnect->sleeper.lock);
    return NULL;
}

struct mc_preconnect *mc_preconnect_create(struct mc_store *store)
{
    struct mc_preconnect *preconnect = calloc(1, sizeof(*preconnect));
    if (preconnect == NULL)
        return NULL;
    preconnect->store = store;
    atomic_fetch_add(&stores, 1);
    mc_monitor_init(&preconnect->sleeper.lock, &preconnect->sleeper.changed);
    if (mc_sleeper_start(&preconnect->sleeper, "mc-preconnect", preconnect_main, preconnect) == 0)
        return preconnect;
    mc_preconnect_end(preconnect);
    return NULL;
}

void mc_preconnect_told(struct mc_preconnect *preconnect, uint64_t epoch, uint64_t changes)
{
    if (preconnect == NULL)
        return;
    pthread_mutex_lock(&preconnect->sleeper.lock);
    if (preconnect->told.epoch != epoch || preconnect->told.changes != changes) {
        preconnect->told = (struct list_state){epoch, changes};
        pthread_cond_signal(&preconnect->sleeper.changed);
    }
    pthread_mutex_unlock(&preconnect->sleeper.lock);
}

void mc_preconnect_end(struct mc_preconnect *preconnect)
{
    if (preconnect == NULL)
        return;
    mc_sleeper_end(&preconnect->sleeper);
    atomic_fetch_sub(&stores, 1);
    free(preconnect);
}
