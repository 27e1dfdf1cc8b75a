/* Paths opened ahead. */
#include "store/client/ahead.h"

#include "env/clock.h"
#include "env/log.h"
#include "env/thread.h"
#include "store/client/store.h"

#include <stdlib.h>

#define ASK_MS 2000u /* for the list */
#define PAUSE_MS 1000u

struct state { /* of the list of segments */
    uint64_t epoch, changes;
};

struct mc_ahead {
    struct mc_store *store;
    struct mc_sleeper sleeper; /* its lock guards told; held for no longer than it takes to look */
    struct state told;
    /* Of the thread alone. */
    size_t count;
    struct mc_endpoint endpoints[MC_AHEAD_SEGMENTS_MAX];
};

static _Atomic size_t stores; /* of this process that open paths ahead */

/* Paths that one change has this store open, so that many stores do not use up the process's descriptors. */
static size_t share(void)
{
    size_t count = atomic_load(&stores), paths = MC_AHEAD_PATHS_MAX / (count == 0 ? 1 : count);
    return paths < MC_AHEAD_SEGMENTS_MAX ? paths : MC_AHEAD_SEGMENTS_MAX;
}

static void build_segments(struct mc_buffer *out, uint64_t request_id, const void *context)
{
    mc_wire_segments_frame(out, mc_frame_begin(out, MC_MESSAGE_SEGMENTS, request_id), context);
}

/* Asks what is new since *done, which becomes what is known then. It joins what is still to be opened. */
static int ask(struct mc_ahead *ahead, struct state *done, const struct state *told)
{
    struct mc_store *store = ahead->store;
    struct mc_wire_segments request = {.changes = done->epoch == told->epoch ? done->changes : 0, .host = store->host};
    struct mc_wire_segments_reply head;
    struct mc_wire_segment_reply one;
    struct mc_master_link *link;
    struct mc_reader reader;
    if (done->epoch != told->epoch)
        ahead->count = 0;
    int rc = mc_link_call(store, mc_clock_ns() + ASK_MS * 1000000ull, build_segments, &request,
                          MC_MESSAGE_SEGMENTS_REPLY, &link, &reader);
    if (rc < 0)
        return rc;
    mc_wire_segments_reply_read(&reader, &head);
    size_t most = share();
    uint32_t count = mc_list_read(&reader);
    bool current = link->epoch == told->epoch; /* else the keeper will tell of the new master */
    for (; current && count > 0 && !reader.bad && ahead->count < most; count--) {
        mc_wire_segment_reply_read(&reader, &one);
        if (!reader.bad && mc_store_endpoint_told(store, link->epoch, &one, &ahead->endpoints[ahead->count]) == 0)
            ahead->count++;
    }
    *done = current ? (struct state){told->epoch, head.changes} : *told;
    rc = reader.bad ? MC_ERR_PROTOCOL : 0;
    link->broken = link->broken || rc < 0;
    mc_link_return(store, link);
    return rc;
}

/* Lock held. False when there is something else to do. */
static bool pause_for(struct mc_ahead *ahead, const struct state *done, uint64_t until_ns)
{
    int rc = 0;
    while (rc == 0 && !ahead->sleeper.stop && ahead->told.epoch == done->epoch && ahead->told.changes <= done->changes)
        rc = mc_monitor_wait(&ahead->sleeper.lock, &ahead->sleeper.changed, until_ns);
    return rc != 0;
}

static bool is_stopping(struct mc_ahead *ahead)
{
    pthread_mutex_lock(&ahead->sleeper.lock);
    bool stop = ahead->sleeper.stop;
    pthread_mutex_unlock(&ahead->sleeper.lock);
    return stop;
}

/* Opens what can be opened; the rest stays for another try. */
static void open_all(struct mc_ahead *ahead)
{
    size_t left = 0;
    for (size_t i = 0; i < ahead->count && !is_stopping(ahead); i++) {
        const struct mc_endpoint *endpoint = &ahead->endpoints[i];
        int rc = mc_path_prepare(ahead->store->paths, endpoint, mc_clock_ns() + MC_AHEAD_OPEN_MS * 1000000ull);
        if (rc == 0 || rc == MC_ERR_UNAVAILABLE_IN_CURRENT_MODE || rc == MC_ERR_STALE)
            continue;
        mc_log(DEBUG, "no path to segment %u of %s yet: %s", endpoint->segment, endpoint->name, mc_error_name(rc));
        if (left != i)
            ahead->endpoints[left] = *endpoint;
        left++;
    }
    ahead->count = left;
}

/* One change of the list. Called and left with the lock. */
static void follow(struct mc_ahead *ahead, struct state *done)
{
    struct state told = ahead->told;
    pthread_mutex_unlock(&ahead->sleeper.lock);
    mc_paths_sweep(ahead->store->paths);
    int rc = ask(ahead, done, &told);
    pthread_mutex_lock(&ahead->sleeper.lock);
    if (rc < 0) {
        *done = told; /* the next change is soon enough */
        return;
    }
    for (unsigned tries = 1; ahead->count > 0; tries++) {
        pthread_mutex_unlock(&ahead->sleeper.lock);
        open_all(ahead);
        pthread_mutex_lock(&ahead->sleeper.lock);
        if (ahead->count == 0 || tries == MC_AHEAD_TRIES ||
            !pause_for(ahead, done, mc_clock_ns() + PAUSE_MS * 1000000ull))
            return;
    }
}

static void *ahead_main(void *argument)
{
    struct mc_ahead *ahead = argument;
    struct state done = {0, 0};
    pthread_mutex_lock(&ahead->sleeper.lock);
    while (!ahead->sleeper.stop) {
        if (ahead->told.changes == 0 || (ahead->told.epoch == done.epoch && ahead->told.changes <= done.changes))
            pthread_cond_wait(&ahead->sleeper.changed, &ahead->sleeper.lock);
        else
            follow(ahead, &done);
    }
    pthread_mutex_unlock(&ahead->sleeper.lock);
    return NULL;
}

struct mc_ahead *mc_ahead_create(struct mc_store *store)
{
    struct mc_ahead *ahead = calloc(1, sizeof(*ahead));
    if (ahead == NULL)
        return NULL;
    ahead->store = store;
    atomic_fetch_add(&stores, 1);
    mc_monitor_init(&ahead->sleeper.lock, &ahead->sleeper.changed);
    if (mc_sleeper_start(&ahead->sleeper, "mc-ahead", ahead_main, ahead) == 0)
        return ahead;
    mc_ahead_end(ahead);
    return NULL;
}

void mc_ahead_told(struct mc_ahead *ahead, uint64_t epoch, uint64_t changes)
{
    if (ahead == NULL)
        return;
    pthread_mutex_lock(&ahead->sleeper.lock);
    if (ahead->told.epoch != epoch || ahead->told.changes != changes) {
        ahead->told = (struct state){epoch, changes};
        pthread_cond_signal(&ahead->sleeper.changed);
    }
    pthread_mutex_unlock(&ahead->sleeper.lock);
}

void mc_ahead_end(struct mc_ahead *ahead)
{
    if (ahead == NULL)
        return;
    mc_sleeper_end(&ahead->sleeper);
    atomic_fetch_sub(&stores, 1);
    free(ahead);
}
