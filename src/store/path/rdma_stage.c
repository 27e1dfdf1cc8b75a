/* Registered memory for objects on their way. */
#include "store/path/rdma_stage.h"

#include "env/clock.h"
#include "env/thread.h"

#include <stdlib.h>
#include <sys/mman.h>

#define REFUSED_NS 1000000000ull /* to ask again takes milliseconds, of each batch */

struct mc_rdma_stages {
    struct mc_rdma *rdma;
    pthread_mutex_t lock;   /* guards all below */
    pthread_cond_t changed; /* one was given back or made; the maker has ended */
    struct mc_rdma_stage *idle;
    uint32_t count, wanted; /* all there are, idle or not; that there shall be */
    bool has_maker;
    uint64_t refused_until_ns; /* one could not be had: until then none is asked for */
};

struct mc_rdma_stages *mc_rdma_stages_create(struct mc_rdma *rdma)
{
    struct mc_rdma_stages *stages = calloc(1, sizeof(*stages));
    if (stages == NULL)
        return NULL;
    stages->rdma = rdma;
    mc_monitor_init(&stages->lock, &stages->changed);
    return stages;
}

static void stage_free(struct mc_rdma_stage *stage)
{
    (void)mc_rdma_memory_unregister(stage->memory);
    (void)munmap(stage->bytes, MC_RDMA_STAGE_BYTES);
    free(stage);
}

void mc_rdma_stages_free(struct mc_rdma_stages *stages)
{
    if (stages == NULL)
        return;
    pthread_mutex_lock(&stages->lock);
    stages->wanted = 0;
    while (stages->has_maker)
        pthread_cond_wait(&stages->changed, &stages->lock);
    pthread_mutex_unlock(&stages->lock);
    for (struct mc_rdma_stage *one = stages->idle, *next; one != NULL; one = next) {
        next = one->next;
        stage_free(one);
    }
    mc_monitor_destroy(&stages->lock, &stages->changed);
    free(stages);
}

/* ---- making them ---- */

static struct mc_rdma_stage *stage_make(struct mc_rdma *rdma)
{
    struct mc_rdma_stage *stage = calloc(1, sizeof(*stage));
    if (stage == NULL)
        return NULL;
    void *bytes =
        mmap(NULL, MC_RDMA_STAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (bytes == MAP_FAILED)
        goto fail_free;
    stage->bytes = bytes;
    if (madvise(bytes, MC_RDMA_STAGE_BYTES, MADV_DONTFORK) != 0) /* a device writes there: no copies on write */
        goto fail_unmap;
    struct mc_rdma_range range = {.address = bytes, .length = MC_RDMA_STAGE_BYTES, .dmabuf_fd = -1, .numa_node = -1};
    if (mc_rdma_memory_register(rdma, &range, &stage->memory) == 0)
        return stage;
fail_unmap:
    (void)munmap(bytes, MC_RDMA_STAGE_BYTES);
fail_free:
    free(stage);
    return NULL;
}

/* The lock is held, but not while the kernel is at work. As many as are wanted now, which are there at once. */
static void make_wanted(struct mc_rdma_stages *stages)
{
    struct mc_rdma_stage *made = NULL, *last = NULL;
    uint32_t missing = stages->wanted - stages->count, count = 0;
    pthread_mutex_unlock(&stages->lock);
    for (; count < missing; count++) {
        struct mc_rdma_stage *stage = stage_make(stages->rdma);
        if (stage == NULL)
            break;
        stage->next = made;
        made = stage;
        last = last == NULL ? stage : last;
    }
    pthread_mutex_lock(&stages->lock);
    if (last != NULL) {
        last->next = stages->idle;
        stages->idle = made;
        stages->count += count;
    }
    if (count < missing) {
        stages->wanted = stages->count;
        stages->refused_until_ns = mc_clock_ns() + REFUSED_NS;
    }
    pthread_cond_broadcast(&stages->changed);
}

static void *make_stages(void *argument)
{
    struct mc_rdma_stages *stages = argument;
    pthread_mutex_lock(&stages->lock);
    while (stages->wanted > stages->count)
        make_wanted(stages);
    stages->has_maker = false;
    pthread_cond_broadcast(&stages->changed);
    pthread_mutex_unlock(&stages->lock);
    return NULL;
}

/* The lock is held. One more is wanted, or the first ones. */
static void want_more(struct mc_rdma_stages *stages)
{
    uint32_t wanted = stages->count < MC_RDMA_STAGES_FIRST ? MC_RDMA_STAGES_FIRST : stages->count + 1;
    if (stages->has_maker || wanted > MC_RDMA_STAGES_MAX || mc_clock_ns() < stages->refused_until_ns)
        return;
    stages->wanted = wanted;
    stages->has_maker = true;
    if (mc_thread_start(NULL, "mc-stages", make_stages, stages) != 0) {
        stages->has_maker = false;
        stages->wanted = stages->count;
        stages->refused_until_ns = mc_clock_ns() + REFUSED_NS;
    }
}

void mc_rdma_stages_prepare(struct mc_rdma_stages *stages)
{
    pthread_mutex_lock(&stages->lock);
    if (stages->count < MC_RDMA_STAGES_FIRST)
        want_more(stages);
    pthread_mutex_unlock(&stages->lock);
}

/* ---- using them ---- */

/* The lock is held. */
static struct mc_rdma_stage *pop(struct mc_rdma_stages *stages)
{
    struct mc_rdma_stage *stage = stages->idle;
    if (stage != NULL)
        stages->idle = stage->next;
    return stage;
}

struct mc_rdma_stage *mc_rdma_stage_take(struct mc_rdma_stages *stages, uint64_t deadline_ns)
{
    struct mc_rdma_stage *stage;
    bool may_come = true;
    pthread_mutex_lock(&stages->lock);
    while ((stage = pop(stages)) == NULL && may_come) {
        want_more(stages);
        may_come = (stages->has_maker || stages->count > 0) &&
                   mc_monitor_wait(&stages->lock, &stages->changed, deadline_ns) == 0;
    }
    pthread_mutex_unlock(&stages->lock);
    return stage;
}

struct mc_rdma_stage *mc_rdma_stage_take_idle(struct mc_rdma_stages *stages)
{
    pthread_mutex_lock(&stages->lock);
    struct mc_rdma_stage *stage = pop(stages);
    if (stage == NULL)
        want_more(stages);
    pthread_mutex_unlock(&stages->lock);
    return stage;
}

void mc_rdma_stage_give(struct mc_rdma_stages *stages, struct mc_rdma_stage *stage)
{
    pthread_mutex_lock(&stages->lock);
    stage->next = stages->idle;
    stages->idle = stage;
    pthread_cond_signal(&stages->changed);
    pthread_mutex_unlock(&stages->lock);
}
