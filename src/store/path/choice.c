/* Paths to segments: which is best, opened once, remembered, tried again. */
#include "store/path/path.h"
#include "store/path/paths.h"
#include "store/path/rdma_buffers.h"
#include "store/path/rdma_stage.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "env/thread.h"

#include <inttypes.h>
#include <stdlib.h>

#define RETRY_FIRST_MS 1000u
#define RETRY_LAST_MS 60000u
/* A caller that has a path pays for the look at a faster one: so much of the time that has passed since the last look,
 * 20 ms at first. More later, as a link by RDMA may take longer; but never so long that it shows as an outage. */
#define RETRY_SHARE 50u
#define RETRY_PATIENCE_MAX_MS 160u
#define REST_PATHS 64u

/* Fastest first. */
static const struct {
    unsigned bit;
    const struct mc_transport *transport;
} kinds[] = {{MC_PATH_LOCAL, &mc_transport_local},
             {MC_PATH_SHM, &mc_transport_shm},
             {MC_PATH_RDMA, &mc_transport_rdma},
             {MC_PATH_TCP, &mc_transport_tcp}};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static struct mc_path *path_retain(struct mc_path *path)
{
    atomic_fetch_add_explicit(&path->references, 1, memory_order_relaxed);
    return path;
}

/* ---- the cache; functions that say so are called with the lock ---- */

static struct mc_path_entry **entry_find(struct mc_paths *paths, uint32_t segment)
{
    struct mc_path_entry **at = &paths->buckets[segment % MC_PATH_BUCKETS];
    while (*at != NULL && (*at)->segment != segment)
        at = &(*at)->next;
    return at;
}

/* Locked. Takes the path out; the caller releases it without the lock. */
static struct mc_path *entry_take(struct mc_path_entry *entry)
{
    struct mc_path *path = entry->path;
    entry->path = NULL;
    entry->faster_failed = false;
    entry->backoff_ms = 0;
    return path;
}

/* Locked. An entry that nobody uses makes room for another. */
static struct mc_path *entry_evict(struct mc_paths *paths)
{
    for (uint32_t i = 0; i < MC_PATH_BUCKETS; i++) {
        for (struct mc_path_entry **at = &paths->buckets[i]; *at != NULL; at = &(*at)->next) {
            struct mc_path_entry *entry = *at;
            if (entry->users > 0)
                continue;
            struct mc_path *path = entry_take(entry);
            *at = entry->next;
            paths->entry_count--;
            free(entry);
            return path;
        }
    }
    return NULL;
}

/* Locked. NULL: out of memory. *evicted is to be released without the lock. */
static struct mc_path_entry *entry_get(struct mc_paths *paths, uint32_t segment, struct mc_path **evicted)
{
    struct mc_path_entry *entry = *entry_find(paths, segment);
    if (entry != NULL)
        return entry;
    if (paths->entry_count >= MC_PATH_ENTRIES_MAX)
        *evicted = entry_evict(paths);
    entry = calloc(1, sizeof(*entry));
    if (entry == NULL)
        return NULL;
    entry->segment = segment;
    entry->next = paths->buckets[segment % MC_PATH_BUCKETS];
    paths->buckets[segment % MC_PATH_BUCKETS] = entry;
    paths->entry_count++;
    return entry;
}

static bool path_serves(const struct mc_path *path, const struct mc_endpoint *endpoint)
{
    return path != NULL && !atomic_load_explicit(&path->broken, memory_order_acquire) &&
           mc_endpoint_same(&path->endpoint, endpoint);
}

struct opening { /* one attempt: kinds below `end`, fastest first */
    unsigned end, kind;
    struct mc_path *path;
    int error;
    bool faster_failed;
};

static void opening_run(struct mc_paths *paths, const struct mc_endpoint *endpoint, const struct mc_patience *patience,
                        struct opening *opening)
{
    opening->error = MC_ERR_UNAVAILABLE_IN_CURRENT_MODE;
    for (unsigned kind = 0; kind < opening->end; kind++) {
        if ((paths->allowed_paths & kinds[kind].bit) == 0)
            continue;
        int rc = kinds[kind].transport->open(paths, endpoint, patience, &opening->path);
        if (rc == 0) {
            opening->kind = kind;
            return;
        }
        opening->path = NULL;
        if (rc == MC_ERR_UNAVAILABLE_IN_CURRENT_MODE) /* will not be otherwise in a second */
            continue;
        opening->error = rc;
        opening->faster_failed = true;
        mc_log(DEBUG, "path %s to segment %" PRIu32 " of %s: %s", kinds[kind].transport->name, endpoint->segment,
               endpoint->name, mc_error_name(rc));
    }
}

/* Locked. */
static void retry_plan(struct mc_path_entry *entry)
{
    entry->backoff_ms = entry->backoff_ms == 0 ? RETRY_FIRST_MS : entry->backoff_ms * 2;
    if (entry->backoff_ms > RETRY_LAST_MS)
        entry->backoff_ms = RETRY_LAST_MS;
    entry->retry_ns = mc_clock_ns() + entry->backoff_ms * 1000000ull;
}

/* Until when a path that is faster than the one that works is waited for. */
static uint64_t retry_until_ns(const struct mc_path_entry *entry, uint64_t deadline_ns)
{
    uint64_t patience_ms = entry->backoff_ms / RETRY_SHARE;
    patience_ms = patience_ms < RETRY_PATIENCE_MAX_MS ? patience_ms : RETRY_PATIENCE_MAX_MS;
    uint64_t until_ns = mc_clock_ns() + patience_ms * 1000000ull;
    return until_ns < deadline_ns ? until_ns : deadline_ns;
}

/* Locked; unlocks while it opens. Returns what the caller gets a reference of, or NULL with *error; *old is to be
 * released without the lock. */
static struct mc_path *entry_open(struct mc_paths *paths, struct mc_path_entry *entry,
                                  const struct mc_endpoint *endpoint, uint64_t deadline_ns, struct mc_path **old,
                                  int *error)
{
    struct mc_path *current = path_serves(entry->path, endpoint) ? entry->path : NULL;
    struct opening opening = {.end = current != NULL ? entry->kind : (unsigned)KINDS};
    uint64_t version = entry->version;
    if (current == NULL)
        *old = entry_take(entry);
    else
        deadline_ns = retry_until_ns(entry, deadline_ns);
    entry->opening = true;
    pthread_mutex_unlock(&paths->lock);
    struct mc_patience patience = mc_patience_until(deadline_ns);
    bool was_hasty = deadline_ns < mc_clock_ns() + MC_STALL_NS;
    opening_run(paths, endpoint, &patience, &opening);
    pthread_mutex_lock(&paths->lock);
    entry->opening = false;
    entry->openings++;
    entry->last_error = opening.error;
    entry->was_hasty = was_hasty;
    pthread_cond_broadcast(&paths->opened);
    *error = opening.error;
    if (opening.path != NULL && opening.faster_failed)
        atomic_fetch_add_explicit(&paths->counters.fallbacks, 1, memory_order_relaxed);
    if (version != entry->version ||
        (current != NULL && entry->path != current)) /* forgotten meanwhile: not remembered again */
        return opening.path;
    if (current == NULL && entry->path != NULL) { /* prepared meanwhile; it may be broken already */
        if (opening.path != NULL)
            return opening.path;
        return path_serves(entry->path, endpoint) ? path_retain(entry->path) : NULL;
    }
    entry->faster_failed = opening.faster_failed;
    if (opening.faster_failed)
        retry_plan(entry);
    if (opening.path == NULL)
        return current != NULL ? path_retain(current) : NULL;
    if (current != NULL)
        *old = current;
    entry->path = opening.path;
    entry->kind = opening.kind;
    return path_retain(opening.path);
}

/* Locked. Waits for another thread's attempt. */
static int opening_wait(struct mc_paths *paths, struct mc_path_entry *entry, uint64_t deadline_ns)
{
    uint64_t openings = entry->openings;
    while (entry->opening && entry->openings == openings) {
        if (mc_monitor_wait(&paths->lock, &paths->opened, deadline_ns) != 0)
            return MC_ERR_RPC_TIMEOUT;
    }
    return 0;
}

/* Locked. */
static struct mc_path *entry_path(struct mc_paths *paths, struct mc_path_entry *entry,
                                  const struct mc_endpoint *endpoint, uint64_t deadline_ns, struct mc_path **old,
                                  int *error)
{
    for (bool waited = false;; waited = true) {
        bool serves = path_serves(entry->path, endpoint);
        bool retry = serves && entry->faster_failed && !entry->opening && mc_clock_ns() >= entry->retry_ns;
        if (serves && !retry)
            return path_retain(entry->path);
        bool is_answer = entry->last_error != MC_ERR_RPC_TIMEOUT || !entry->was_hasty;
        if (!entry->opening && waited && entry->last_error != 0 && is_answer && entry->path == NULL) {
            *error = entry->last_error; /* of the attempt just made: no second one in a row */
            return NULL;
        }
        if (!entry->opening)
            return entry_open(paths, entry, endpoint, deadline_ns, old, error);
        *error = opening_wait(paths, entry, deadline_ns);
        if (*error < 0)
            return NULL;
    }
}

int mc_path_get(struct mc_paths *paths, const struct mc_endpoint *endpoint, uint64_t deadline_ns, struct mc_path **path)
{
    struct mc_path *old = NULL, *evicted = NULL;
    int error = MC_ERR_NO_MEMORY;
    *path = NULL;
    if (mc_paths_is_forked(paths))
        return MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS;
    pthread_mutex_lock(&paths->lock);
    struct mc_path_entry *entry = entry_get(paths, endpoint->segment, &evicted);
    if (entry != NULL) {
        entry->users++;
        *path = entry_path(paths, entry, endpoint, deadline_ns, &old, &error);
        entry->users--;
    }
    pthread_mutex_unlock(&paths->lock);
    mc_path_release(old);
    mc_path_release(evicted);
    return *path != NULL ? 0 : error;
}

int mc_path_prepare(struct mc_paths *paths, const struct mc_endpoint *endpoint, uint64_t deadline_ns)
{
    struct mc_path *old = NULL, *evicted = NULL;
    struct opening opening = {.end = (unsigned)KINDS};
    struct mc_patience patience = {deadline_ns, deadline_ns};
    if (mc_paths_is_forked(paths))
        return MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS;
    pthread_mutex_lock(&paths->lock);
    struct mc_path_entry *entry = entry_get(paths, endpoint->segment, &evicted);
    bool is_there = entry == NULL || path_serves(entry->path, endpoint);
    uint64_t version = entry == NULL ? 0 : entry->version;
    if (!is_there)
        entry->users++;
    pthread_mutex_unlock(&paths->lock);
    mc_path_release(evicted);
    if (is_there)
        return entry == NULL ? MC_ERR_NO_MEMORY : 0;

    opening_run(paths, endpoint, &patience, &opening);
    int rc = opening.path != NULL ? 0 : opening.error;
    pthread_mutex_lock(&paths->lock);
    entry->users--;
    if (opening.path != NULL && version == entry->version && !path_serves(entry->path, endpoint)) {
        old = entry_take(entry);
        entry->path = opening.path;
        entry->kind = opening.kind;
        entry->faster_failed = opening.faster_failed;
        if (opening.faster_failed)
            retry_plan(entry);
        opening.path = NULL;
    }
    pthread_mutex_unlock(&paths->lock);
    mc_path_release(old);
    mc_path_release(opening.path); /* somebody was faster */
    return rc;
}

void mc_paths_sweep(struct mc_paths *paths)
{
    for (uint32_t i = 0; i < MC_PATH_BUCKETS && !mc_paths_is_forked(paths);) {
        struct mc_path *ended = NULL;
        pthread_mutex_lock(&paths->lock);
        for (struct mc_path_entry *entry = paths->buckets[i]; entry != NULL && ended == NULL; entry = entry->next) {
            if (entry->path != NULL && !entry->opening && entry->path->transport->is_ended(entry->path))
                ended = entry_take(entry);
        }
        pthread_mutex_unlock(&paths->lock);
        if (ended == NULL)
            i++;
        mc_path_release(ended);
    }
}

/* References of up to REST_PATHS paths, from the one at `skip` on. */
static size_t paths_retain(struct mc_paths *paths, size_t skip, struct mc_path **resting)
{
    size_t count = 0;
    pthread_mutex_lock(&paths->lock);
    for (uint32_t i = 0; i < MC_PATH_BUCKETS && count < REST_PATHS; i++) {
        for (struct mc_path_entry *entry = paths->buckets[i]; entry != NULL && count < REST_PATHS;
             entry = entry->next) {
            if (entry->path == NULL || entry->path->transport->rest == NULL)
                continue;
            if (skip > 0)
                skip--;
            else
                resting[count++] = path_retain(entry->path);
        }
    }
    pthread_mutex_unlock(&paths->lock);
    return count;
}

void mc_paths_rest(struct mc_paths *paths, uint64_t now_ns)
{
    struct mc_path *resting[REST_PATHS];
    size_t count = REST_PATHS;
    for (size_t skip = 0; count == REST_PATHS && !mc_paths_is_forked(paths); skip += count) {
        count = paths_retain(paths, skip, resting); /* one that is missed has its turn the next time */
        for (size_t i = 0; i < count; i++) {
            resting[i]->transport->rest(resting[i], now_ns);
            mc_path_release(resting[i]);
        }
    }
}

void mc_paths_nudge(struct mc_paths *paths, uint32_t segment, bool gives_up)
{
    struct mc_path *path = NULL;
    if (mc_paths_is_forked(paths))
        return;
    pthread_mutex_lock(&paths->lock);
    struct mc_path_entry *entry = *entry_find(paths, segment);
    if (entry != NULL && entry->path != NULL && entry->path->transport->nudge != NULL)
        path = path_retain(entry->path);
    pthread_mutex_unlock(&paths->lock);
    if (path != NULL)
        path->transport->nudge(path, gives_up);
    mc_path_release(path);
}

void mc_path_drop(struct mc_path *path)
{
    struct mc_paths *paths = path->paths;
    struct mc_path *old = NULL;
    if (mc_paths_is_forked(paths))
        return;
    atomic_store_explicit(&path->broken, true, memory_order_release);
    pthread_mutex_lock(&paths->lock);
    struct mc_path_entry *entry = *entry_find(paths, path->endpoint.segment);
    if (entry != NULL && entry->path == path)
        old = entry_take(entry);
    pthread_mutex_unlock(&paths->lock);
    mc_path_release(old);
}

void mc_paths_forget(struct mc_paths *paths, uint32_t segment)
{
    struct mc_path *old = NULL;
    if (mc_paths_is_forked(paths))
        return;
    pthread_mutex_lock(&paths->lock);
    struct mc_path_entry **at = entry_find(paths, segment), *entry = *at;
    if (entry != NULL) {
        entry->version++;
        old = entry_take(entry);
        if (entry->users == 0) {
            *at = entry->next;
            paths->entry_count--;
            free(entry);
        }
    }
    pthread_mutex_unlock(&paths->lock);
    mc_path_release(old);
}

/* ---- the end ---- */

static void paths_clear(struct mc_paths *paths)
{
    for (uint32_t i = 0; i < MC_PATH_BUCKETS; i++) {
        while (paths->buckets[i] != NULL)
            mc_paths_forget(paths, paths->buckets[i]->segment);
    }
}

void mc_paths_end(struct mc_paths *paths)
{
    paths_clear(paths);
    mc_paths_await_closed(paths);
    mc_rdma_stages_free(paths->stages);
    mc_rdma_buffers_free(paths->buffers);
    paths->stages = NULL;
    paths->buffers = NULL;
}

void mc_paths_destroy(struct mc_paths *paths)
{
    /* In a forked child locks and maps are not ours: what little heap this is stays. */
    if (paths == NULL || mc_paths_is_forked(paths))
        return;
    mc_paths_end(paths);
    mc_paths_free(paths);
}
