/* What one process has of paths: who it is, own segments, descriptors. */
#include "base/error.h"
#include "base/variables.h"
#include "env/clock.h"
#include "env/crew.h"
#include "env/log.h"
#include "env/thread.h"
#include "store/path/path.h"
#include "store/path/paths.h"
#include "store/path/rdma_buffers.h"
#include "store/path/rdma_stage.h"
#include "store/segment/memory.h"

#include <stdlib.h>
#include <unistd.h>

#define STAGE_NS 2000000000ull /* for a stage to be made, before a caller's memory is registered */

static unsigned lanes_max(void)
{
    /* One thread drives all lanes of a batch; on few cores more lanes only share what one can do. */
    return sysconf(_SC_NPROCESSORS_ONLN) <= 2 ? 2 : 4;
}

struct mc_paths *mc_paths_create(struct mc_id node, uint64_t incarnation, unsigned allowed_paths)
{
    struct mc_paths *paths = calloc(1, sizeof(*paths));
    if (paths == NULL)
        return NULL;
    const char *checksum = mc_variable(MC_CHECKSUM);
    paths->node = node;
    paths->host = mc_host_id();
    paths->incarnation = incarnation;
    paths->allowed_paths = allowed_paths;
    paths->lanes_max = lanes_max();
    paths->verify = checksum == NULL || strcmp(checksum, "slot") != 0;
    paths->crew = mc_crew_create(mc_crew_threads());
    mc_monitor_init(&paths->lock, &paths->opened);
    return paths;
}

void mc_paths_free(struct mc_paths *paths)
{
    mc_crew_free(paths->crew, mc_paths_is_forked(paths));
    mc_monitor_destroy(&paths->lock, &paths->opened);
    free(paths);
}

void mc_paths_set_rdma(struct mc_paths *paths, struct mc_rdma *rdma)
{
    paths->stages = mc_rdma_stages_create(rdma);
    paths->rdma = paths->stages == NULL ? NULL : rdma;
    paths->buffers = paths->rdma == NULL ? NULL : mc_rdma_buffers_create(rdma);
}

void mc_paths_prepare_rdma(struct mc_paths *paths)
{
    if (paths->rdma != NULL)
        mc_rdma_stages_prepare(paths->stages);
}

int mc_paths_register(struct mc_paths *paths, void *base, uint64_t size)
{
    if (paths->buffers == NULL)
        return 0;
    /* What is moved in place needs a stage, too: the last of what may be pinned must not go to the caller's memory. */
    if (!mc_rdma_stages_exist(paths->stages, mc_clock_ns() + STAGE_NS)) {
        mc_log_limited(WARNING,
                       "%llu bytes at %p are not registered at RDMA devices, which let us register no memory of our "
                       "own either: they are copied",
                       (unsigned long long)size, base);
        return MC_ERR_NO_MEMORY;
    }
    return mc_rdma_buffers_add(paths->buffers, paths, base, size);
}

int mc_paths_unregister(struct mc_paths *paths, const void *base)
{
    return paths->buffers == NULL ? 0 : mc_rdma_buffers_remove(paths->buffers, base);
}

void mc_paths_set_cluster(struct mc_paths *paths, struct mc_id cluster)
{
    pthread_mutex_lock(&paths->lock);
    paths->cluster = cluster;
    pthread_mutex_unlock(&paths->lock);
}

struct mc_paths_counters *mc_paths_counters(struct mc_paths *paths)
{
    return &paths->counters;
}

void mc_paths_add_segment(struct mc_paths *paths, struct mc_segment_memory *memory)
{
    if (mc_paths_is_forked(paths))
        return;
    pthread_mutex_lock(&paths->lock);
    uint32_t i = 0;
    while (i < MC_OWN_SEGMENTS_MAX && paths->own[i] != NULL)
        i++;
    if (i < MC_OWN_SEGMENTS_MAX) /* beyond, a segment is reached as if it were another process's */
        paths->own[i] = memory;
    pthread_mutex_unlock(&paths->lock);
}

void mc_paths_remove_segment(struct mc_paths *paths, struct mc_segment_memory *memory)
{
    if (mc_paths_is_forked(paths))
        return;
    pthread_mutex_lock(&paths->lock);
    for (uint32_t i = 0; i < MC_OWN_SEGMENTS_MAX; i++) {
        if (paths->own[i] == memory)
            paths->own[i] = NULL;
    }
    pthread_mutex_unlock(&paths->lock);
}

struct mc_segment_memory *mc_paths_find_segment(struct mc_paths *paths, struct mc_id segment_id)
{
    struct mc_segment_memory *found = NULL;
    if (mc_paths_is_forked(paths))
        return NULL;
    pthread_mutex_lock(&paths->lock);
    for (uint32_t i = 0; i < MC_OWN_SEGMENTS_MAX && found == NULL; i++) {
        if (paths->own[i] != NULL && mc_id_equal(mc_segment_memory_id(paths->own[i]), segment_id))
            found = paths->own[i];
    }
    if (found != NULL)
        mc_segment_memory_retain(found);
    pthread_mutex_unlock(&paths->lock);
    return found;
}

int mc_paths_fd_add(struct mc_paths *paths, int fd)
{
    uint32_t hint = atomic_load_explicit(&paths->fds_hint, memory_order_relaxed);
    for (uint32_t i = 0; i < MC_PATHS_FDS_MAX; i++) {
        uint32_t place = (hint + i) % MC_PATHS_FDS_MAX;
        int is_free = 0;
        if (atomic_compare_exchange_strong(&paths->fds[place], &is_free, fd + 1)) {
            atomic_store_explicit(&paths->fds_hint, place + 1, memory_order_relaxed);
            return (int)place;
        }
    }
    return MC_ERR_BUSY;
}

void mc_paths_fd_forget(struct mc_paths *paths, int fd)
{
    for (uint32_t i = 0; i < MC_PATHS_FDS_MAX; i++) {
        int wanted = fd + 1;
        if (atomic_compare_exchange_strong(&paths->fds[i], &wanted, 0))
            return;
    }
}

void mc_paths_fd_leave(struct mc_paths *paths, int place)
{
    atomic_store(&paths->fds[place], 0);
}

void mc_paths_fd_close(struct mc_paths *paths, int place)
{
    /* First out of the table: a child forked in between keeps it open, which is better than closing a stranger. */
    int fd = atomic_exchange(&paths->fds[place], 0) - 1;
    mc_fd_close(fd);
}

void mc_paths_forked(struct mc_paths *paths)
{
    atomic_store(&paths->forked, true);
    for (uint32_t i = 0; i < MC_PATHS_FDS_MAX; i++) {
        int fd = atomic_exchange(&paths->fds[i], 0) - 1;
        mc_fd_close(fd);
    }
}
