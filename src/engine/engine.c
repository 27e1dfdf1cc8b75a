/* The engine of one process: identity, own segments, descriptors. */
#include "base/error.h"
#include "engine/memory.h"
#include "engine/path.h"
#include "engine/rdma_stage.h"
#include "env/clock.h"
#include "env/thread.h"

#include <stdlib.h>
#include <unistd.h>

static unsigned lanes_max(void)
{
    /* One thread drives all lanes of a batch; on few cores more lanes only share what one can do. */
    return sysconf(_SC_NPROCESSORS_ONLN) <= 2 ? 2 : 4;
}

struct mc_engine *mc_engine_create(struct mc_id node, uint64_t incarnation, unsigned allowed_paths)
{
    struct mc_engine *engine = calloc(1, sizeof(*engine));
    if (engine == NULL)
        return NULL;
    const char *checksum = getenv("MC_CHECKSUM");
    engine->node = node;
    engine->host = mc_host_id();
    engine->incarnation = incarnation;
    engine->allowed_paths = allowed_paths;
    engine->lanes_max = lanes_max();
    engine->verify = checksum == NULL || strcmp(checksum, "slot") != 0;
    mc_monitor_init(&engine->lock, &engine->opened);
    return engine;
}

void mc_engine_end(struct mc_engine *engine)
{
    mc_paths_clear(engine);
    mc_rdma_stages_free(engine->stages);
    engine->stages = NULL;
}

void mc_engine_free(struct mc_engine *engine)
{
    pthread_cond_destroy(&engine->opened);
    pthread_mutex_destroy(&engine->lock);
    free(engine);
}

void mc_engine_destroy(struct mc_engine *engine)
{
    /* In a forked child locks and maps are not ours: what little heap this is stays. */
    if (engine == NULL || mc_engine_is_forked(engine))
        return;
    mc_engine_end(engine);
    mc_engine_free(engine);
}

void mc_engine_set_rdma(struct mc_engine *engine, struct mc_rdma *rdma)
{
    engine->stages = mc_rdma_stages_create(rdma);
    engine->rdma = engine->stages == NULL ? NULL : rdma;
}

void mc_engine_set_cluster(struct mc_engine *engine, struct mc_id cluster)
{
    pthread_mutex_lock(&engine->lock);
    engine->cluster = cluster;
    pthread_mutex_unlock(&engine->lock);
}

struct mc_id mc_engine_node(const struct mc_engine *engine)
{
    return engine->node;
}
uint64_t mc_engine_incarnation(const struct mc_engine *engine)
{
    return engine->incarnation;
}
struct mc_engine_counters *mc_engine_counters(struct mc_engine *engine)
{
    return &engine->counters;
}

void mc_engine_add_segment(struct mc_engine *engine, struct mc_segment_memory *memory)
{
    if (mc_engine_is_forked(engine))
        return;
    pthread_mutex_lock(&engine->lock);
    uint32_t i = 0;
    while (i < MC_OWN_SEGMENTS_MAX && engine->own[i] != NULL)
        i++;
    if (i < MC_OWN_SEGMENTS_MAX) /* beyond, a segment is reached as if it were another process's */
        engine->own[i] = memory;
    pthread_mutex_unlock(&engine->lock);
}

void mc_engine_remove_segment(struct mc_engine *engine, struct mc_segment_memory *memory)
{
    if (mc_engine_is_forked(engine))
        return;
    pthread_mutex_lock(&engine->lock);
    for (uint32_t i = 0; i < MC_OWN_SEGMENTS_MAX; i++) {
        if (engine->own[i] == memory)
            engine->own[i] = NULL;
    }
    pthread_mutex_unlock(&engine->lock);
}

struct mc_segment_memory *mc_engine_find_segment(struct mc_engine *engine, struct mc_id segment_id)
{
    struct mc_segment_memory *found = NULL;
    if (mc_engine_is_forked(engine))
        return NULL;
    pthread_mutex_lock(&engine->lock);
    for (uint32_t i = 0; i < MC_OWN_SEGMENTS_MAX && found == NULL; i++) {
        if (engine->own[i] != NULL && mc_id_equal(mc_segment_memory_id(engine->own[i]), segment_id))
            found = engine->own[i];
    }
    if (found != NULL)
        mc_segment_memory_retain(found);
    pthread_mutex_unlock(&engine->lock);
    return found;
}

int mc_engine_fd_add(struct mc_engine *engine, int fd)
{
    uint32_t hint = atomic_load_explicit(&engine->fds_hint, memory_order_relaxed);
    for (uint32_t i = 0; i < MC_ENGINE_FDS_MAX; i++) {
        uint32_t place = (hint + i) % MC_ENGINE_FDS_MAX;
        int is_free = 0;
        if (atomic_compare_exchange_strong(&engine->fds[place], &is_free, fd + 1)) {
            atomic_store_explicit(&engine->fds_hint, place + 1, memory_order_relaxed);
            return (int)place;
        }
    }
    return MC_ERR_BUSY;
}

void mc_engine_fd_forget(struct mc_engine *engine, int fd)
{
    for (uint32_t i = 0; i < MC_ENGINE_FDS_MAX; i++) {
        int wanted = fd + 1;
        if (atomic_compare_exchange_strong(&engine->fds[i], &wanted, 0))
            return;
    }
}

void mc_engine_fd_leave(struct mc_engine *engine, int place)
{
    atomic_store(&engine->fds[place], 0);
}

void mc_engine_fd_close(struct mc_engine *engine, int place)
{
    /* First out of the table: a child forked in between keeps it open, which is better than closing a stranger. */
    int fd = atomic_exchange(&engine->fds[place], 0) - 1;
    if (fd >= 0)
        close(fd);
}

void mc_engine_forked(struct mc_engine *engine)
{
    atomic_store(&engine->forked, true);
    for (uint32_t i = 0; i < MC_ENGINE_FDS_MAX; i++) {
        int fd = atomic_exchange(&engine->fds[i], 0) - 1;
        if (fd >= 0)
            close(fd);
    }
}
