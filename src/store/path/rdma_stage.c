/* Registered memory for objects on their way. */
#include "store/path/rdma_stage.h"

#include "env/clock.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#define REFUSED_NS 1000000000ull /* to ask again takes milliseconds, of each batch */

struct mc_rdma_stages {
    struct mc_rdma *rdma;
    pthread_mutex_t lock;
    struct mc_rdma_stage *idle;
    uint32_t idle_count;
    uint64_t refused_bytes, refused_until_ns; /* none of so many bytes could be had: until then none is asked for */
};

struct mc_rdma_stages *mc_rdma_stages_create(struct mc_rdma *rdma)
{
    struct mc_rdma_stages *stages = calloc(1, sizeof(*stages));
    if (stages == NULL)
        return NULL;
    stages->rdma = rdma;
    pthread_mutex_init(&stages->lock, NULL);
    return stages;
}

static void stage_free(struct mc_rdma_stage *stage)
{
    (void)mc_rdma_memory_unregister(stage->memory);
    (void)munmap(stage->bytes, stage->size);
    free(stage);
}

void mc_rdma_stages_free(struct mc_rdma_stages *stages)
{
    if (stages == NULL)
        return;
    for (struct mc_rdma_stage *one = stages->idle, *next; one != NULL; one = next) {
        next = one->next;
        stage_free(one);
    }
    pthread_mutex_destroy(&stages->lock);
    free(stages);
}

static struct mc_rdma_stage *stage_make(struct mc_rdma *rdma, uint64_t size)
{
    struct mc_rdma_stage *stage = calloc(1, sizeof(*stage));
    if (stage == NULL)
        return NULL;
    stage->size = (size + MC_RDMA_STAGE_BYTES - 1) / MC_RDMA_STAGE_BYTES * MC_RDMA_STAGE_BYTES;
    void *bytes = mmap(NULL, stage->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (bytes == MAP_FAILED)
        goto fail_free;
    stage->bytes = bytes;
    if (madvise(bytes, stage->size, MADV_DONTFORK) != 0) /* a device writes to these pages: no copies on write */
        goto fail_unmap;
    struct mc_rdma_range range = {.address = bytes, .length = stage->size, .dmabuf_fd = -1, .numa_node = -1};
    if (mc_rdma_memory_register(rdma, &range, &stage->memory) == 0)
        return stage;
fail_unmap:
    (void)munmap(bytes, stage->size);
fail_free:
    free(stage);
    return NULL;
}

struct mc_rdma_stage *mc_rdma_stage_take(struct mc_rdma_stages *stages, uint64_t size)
{
    struct mc_rdma_stage *stage = NULL;
    if (size > UINT64_MAX / 4)
        return NULL;
    const uint64_t now_ns = mc_clock_ns();
    pthread_mutex_lock(&stages->lock);
    for (struct mc_rdma_stage **at = &stages->idle; *at != NULL; at = &(*at)->next) {
        if ((*at)->size < size)
            continue;
        stage = *at;
        *at = stage->next;
        stages->idle_count--;
        break;
    }
    bool is_refused = now_ns < stages->refused_until_ns && size >= stages->refused_bytes;
    pthread_mutex_unlock(&stages->lock);
    if (stage != NULL || is_refused)
        return stage;
    stage = stage_make(stages->rdma, size);
    if (stage == NULL) {
        pthread_mutex_lock(&stages->lock);
        stages->refused_bytes = size;
        stages->refused_until_ns = now_ns + REFUSED_NS;
        pthread_mutex_unlock(&stages->lock);
    }
    return stage;
}

void mc_rdma_stage_give(struct mc_rdma_stages *stages, struct mc_rdma_stage *stage)
{
    pthread_mutex_lock(&stages->lock);
    bool is_kept = stage->size <= MC_RDMA_STAGE_KEPT_MAX && stages->idle_count < MC_RDMA_STAGES_MAX;
    if (is_kept) {
        stage->next = stages->idle;
        stages->idle = stage;
        stages->idle_count++;
    }
    pthread_mutex_unlock(&stages->lock);
    if (!is_kept)
        stage_free(stage);
}
