/* The memory that the processes of a replay share. */
#include "tool/shared.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static uint64_t round_up(uint64_t value)
{
    return (value + 63) & ~UINT64_C(63);
}

/* How much it is; base may be NULL, to know that beforehand. */
static uint64_t lay_out(struct mc_replay_view *view, void *base, uint64_t stats_count)
{
    uintptr_t at = (uintptr_t)base;
    view->shared = (struct mc_replay_shared *)at;
    at += round_up(sizeof(struct mc_replay_shared));
    view->stats = (struct mc_replay_stats *)at;
    at += round_up(stats_count * sizeof(struct mc_replay_stats));
    view->trace.requests = (struct mc_trace_request *)at;
    at += round_up(view->trace.request_count * sizeof(struct mc_trace_request));
    view->trace.block_ids = (uint64_t *)at;
    return at + round_up(view->trace.block_count * sizeof(uint64_t)) - (uintptr_t)base;
}

int mc_replay_share(const struct mc_trace *trace, uint32_t stats_count, struct mc_replay_view *view)
{
    *view =
        (struct mc_replay_view){.trace = {.request_count = trace->request_count, .block_count = trace->block_count}};
    uint64_t size = lay_out(view, NULL, stats_count);
    int fd = memfd_create("replay", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)size) != 0)
        goto fail;
    void *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        goto fail;
    lay_out(view, base, stats_count);
    memcpy(view->trace.requests, trace->requests, trace->request_count * sizeof(struct mc_trace_request));
    if (trace->block_count > 0)
        memcpy(view->trace.block_ids, trace->block_ids, trace->block_count * sizeof(uint64_t));
    view->shared->size = size;
    view->shared->request_count = trace->request_count;
    view->shared->block_count = trace->block_count;
    return fd;
fail:
    *view = (struct mc_replay_view){0};
    if (fd >= 0)
        close(fd);
    return -1;
}

int mc_replay_attach(int fd, struct mc_replay_view *view)
{
    struct stat stat;
    if (fstat(fd, &stat) != 0 || (uint64_t)stat.st_size < sizeof(struct mc_replay_shared))
        return -1;
    void *base = mmap(NULL, (size_t)stat.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return -1;
    const struct mc_replay_shared *shared = base;
    uint64_t stats_count = (uint64_t)shared->worker_count * shared->thread_count;
    view->trace = (struct mc_trace){.request_count = shared->request_count, .block_count = shared->block_count};
    if (shared->size != (uint64_t)stat.st_size || shared->worker_count > MC_REPLAY_WORKERS_MAX ||
        shared->thread_count > MC_REPLAY_THREADS_MAX || lay_out(view, base, stats_count) != shared->size) {
        munmap(base, (size_t)stat.st_size);
        *view = (struct mc_replay_view){0};
        errno = EINVAL;
        return -1;
    }
    return 0;
}

void mc_replay_detach(struct mc_replay_view *view)
{
    if (view->shared != NULL)
        munmap(view->shared, (size_t)view->shared->size);
    *view = (struct mc_replay_view){0};
}

void mc_replay_sum(const struct mc_replay_view *view, struct mc_replay_counters *sum, struct mc_histogram *calls)
{
    uint32_t count = view->shared->worker_count * view->shared->thread_count;
    *sum = (struct mc_replay_counters){0};
    for (uint32_t i = 0; i < count; i++) {
        const struct mc_replay_stats *stats = &view->stats[i];
#define ADD(name) sum->name += atomic_load_explicit(&stats->name, memory_order_relaxed);
        MC_REPLAY_COUNTERS(ADD)
#undef ADD
        for (unsigned call = 0; calls != NULL && call < MC_REPLAY_CALLS; call++)
            mc_histogram_merge(&calls[call], &stats->calls[call]);
    }
}

uint64_t mc_replay_bytes(uint64_t block_bytes, uint32_t tokens)
{
    uint64_t bytes = block_bytes * tokens / MC_TRACE_BLOCK_TOKENS;
    return bytes > 0 ? bytes : 1;
}
