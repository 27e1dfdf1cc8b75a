/* Registered memory for objects on their way. */
#include "store/path/rdma_stage.h"

#include "env/clock.h"
#include "env/log.h"
#include "env/thread.h"
#include "store/segment/numa.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define REFUSED_NS 1000000000ull /* to ask again takes milliseconds, of each batch */

struct stage_place { /* a node near which devices are */
    int node;
    uint32_t count, wanted; /* all there are, idle or not; that there shall be */
};

struct mc_rdma_stages {
    struct mc_rdma *rdma;
    uint32_t place_count;   /* at least one: of node -1, where nothing is known */
    pthread_mutex_t lock;   /* guards all below */
    pthread_cond_t changed; /* one was given back or made; the maker has ended */
    struct mc_rdma_stage *idle;
    struct stage_place places[MC_RDMA_DEVICES_MAX];
    uint32_t count;   /* of all places */
    uint32_t waiting; /* who has none, and waits for one */
    bool has_maker;
    uint64_t refused_until_ns; /* one could not be had: until then none is asked for */
};

static void find_places(struct mc_rdma_stages *stages)
{
    for (uint32_t device = 0; device < mc_rdma_device_count(stages->rdma); device++) {
        int node = mc_rdma_device_node(stages->rdma, device);
        bool is_known = node < 0;
        for (uint32_t i = 0; i < stages->place_count; i++)
            is_known |= stages->places[i].node == node;
        if (!is_known)
            stages->places[stages->place_count++].node = node;
    }
    if (stages->place_count == 0)
        stages->places[stages->place_count++].node = -1;
}

struct mc_rdma_stages *mc_rdma_stages_create(struct mc_rdma *rdma)
{
    struct mc_rdma_stages *stages = calloc(1, sizeof(*stages));
    if (stages == NULL)
        return NULL;
    stages->rdma = rdma;
    find_places(stages);
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
    for (uint32_t i = 0; i < stages->place_count; i++)
        stages->places[i].wanted = 0;
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

/* Its pages come from that node, if there are some. Where they really lie is looked up when they are registered. */
static void bind_to(void *bytes, int node)
{
    struct mc_numa_nodes nodes = {{0}};
    if (node < 0 || node >= (int)MC_NUMA_NODES_MAX)
        return;
    nodes.bits[node / 64] = 1ull << node % 64;
    int error = mc_numa_bind(bytes, MC_RDMA_STAGE_BYTES, &nodes);
    if (error != 0)
        mc_log_limited(INFO, "memory for RDMA is not placed on NUMA node %d, where devices are near: %s", node,
                       strerror(error));
}

static struct mc_rdma_stage *stage_make(struct mc_rdma *rdma, int node)
{
    struct mc_rdma_stage *stage = calloc(1, sizeof(*stage));
    if (stage == NULL)
        return NULL;
    void *bytes = mmap(NULL, MC_RDMA_STAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bytes == MAP_FAILED)
        goto fail_free;
    stage->bytes = bytes;
    stage->node = node;
    if (madvise(bytes, MC_RDMA_STAGE_BYTES, MADV_DONTFORK) != 0) /* a device writes there: no copies on write */
        goto fail_unmap;
    bind_to(bytes, node);
    struct mc_rdma_range range = {
        .address = bytes, .length = MC_RDMA_STAGE_BYTES, .dmabuf_fd = -1, .numa_node = MC_RDMA_NODE_SOUGHT};
    memset(bytes, 0, MC_RDMA_STAGE_BYTES); /* now, not by the calls that come */
    if (mc_rdma_memory_register(rdma, &range, &stage->memory) == 0)
        return stage;
fail_unmap:
    (void)munmap(bytes, MC_RDMA_STAGE_BYTES);
fail_free:
    free(stage);
    return NULL;
}

/* The lock is held, but not while the kernel is at work. As many as are wanted there, which are in the list at once. */
static void make_wanted(struct mc_rdma_stages *stages, struct stage_place *place)
{
    struct mc_rdma_stage *made = NULL, *last = NULL;
    uint32_t missing = place->wanted > place->count ? place->wanted - place->count : 0, count = 0;
    const uint32_t before = stages->count; /* nobody else changes it */
    pthread_mutex_unlock(&stages->lock);
    for (; count < missing; count++) {
        struct mc_rdma_stage *stage = stage_make(stages->rdma, place->node);
        if (stage == NULL)
            break;
        /* What moves through it would leave some devices idle for ever: the only one is better than none. */
        if (!mc_rdma_memory_is_everywhere(stage->memory) && before + count > 0) {
            stage_free(stage);
            break;
        }
        stage->next = made;
        made = stage;
        last = last == NULL ? stage : last;
    }
    pthread_mutex_lock(&stages->lock);
    if (last != NULL) {
        last->next = stages->idle;
        stages->idle = made;
        place->count += count;
        stages->count += count;
    }
    for (uint32_t i = 0; i < stages->place_count && count < missing; i++)
        stages->places[i].wanted = stages->places[i].count;
    if (count < missing)
        stages->refused_until_ns = mc_clock_ns() + REFUSED_NS;
    pthread_cond_broadcast(&stages->changed);
}

static void *make_stages(void *argument)
{
    struct mc_rdma_stages *stages = argument;
    pthread_mutex_lock(&stages->lock);
    for (uint32_t i = 0; i < stages->place_count;) {
        if (stages->places[i].wanted > stages->places[i].count)
            make_wanted(stages, &stages->places[i]);
        else
            i++;
    }
    stages->has_maker = false;
    pthread_cond_broadcast(&stages->changed);
    pthread_mutex_unlock(&stages->lock);
    return NULL;
}

/* The lock is held. So many are wanted there. */
static void want(struct mc_rdma_stages *stages, struct stage_place *place, uint32_t wanted)
{
    if (stages->has_maker || wanted <= place->count || stages->count + (wanted - place->count) > MC_RDMA_STAGES_MAX ||
        mc_clock_ns() < stages->refused_until_ns)
        return;
    place->wanted = wanted;
    stages->has_maker = true;
    if (mc_thread_start(NULL, "mc-stages", make_stages, stages) != 0) {
        stages->has_maker = false;
        place->wanted = place->count;
        stages->refused_until_ns = mc_clock_ns() + REFUSED_NS;
    }
}

/* The lock is held. One more is wanted on that node, or the first ones. */
static void want_more(struct mc_rdma_stages *stages, int node)
{
    struct stage_place *place = &stages->places[0];
    for (uint32_t i = 0; i < stages->place_count; i++)
        if (stages->places[i].node == node)
            place = &stages->places[i];
    want(stages, place, place->count < MC_RDMA_STAGES_FIRST ? MC_RDMA_STAGES_FIRST : place->count + 1);
}

void mc_rdma_stages_prepare(struct mc_rdma_stages *stages)
{
    pthread_mutex_lock(&stages->lock);
    for (uint32_t i = 1; i < stages->place_count; i++) /* with the first */
        stages->places[i].wanted = MC_RDMA_STAGES_FIRST;
    want(stages, &stages->places[0], MC_RDMA_STAGES_FIRST);
    pthread_mutex_unlock(&stages->lock);
}

/* ---- using them ---- */

/* The lock is held. One that lies there, else any. */
static struct mc_rdma_stage *pop(struct mc_rdma_stages *stages, int node)
{
    struct mc_rdma_stage **found = &stages->idle;
    for (struct mc_rdma_stage **at = &stages->idle; *at != NULL; at = &(*at)->next)
        if ((*at)->node == node) {
            found = at;
            break;
        }
    struct mc_rdma_stage *stage = *found;
    if (stage != NULL)
        *found = stage->next;
    if (stage == NULL || (node >= 0 && stage->node != node))
        want_more(stages, node);
    return stage;
}

struct mc_rdma_stage *mc_rdma_stage_take(struct mc_rdma_stages *stages, int node, uint64_t deadline_ns)
{
    struct mc_rdma_stage *stage;
    bool may_come = true;
    pthread_mutex_lock(&stages->lock);
    while ((stage = pop(stages, node)) == NULL && may_come) {
        stages->waiting++;
        may_come = (stages->has_maker || stages->count > 0) &&
                   mc_monitor_wait(&stages->lock, &stages->changed, deadline_ns) == 0;
        stages->waiting--;
    }
    pthread_mutex_unlock(&stages->lock);
    return stage;
}

struct mc_rdma_stage *mc_rdma_stage_take_idle(struct mc_rdma_stages *stages, int node)
{
    pthread_mutex_lock(&stages->lock);
    struct mc_rdma_stage *stage = stages->waiting > 0 ? NULL : pop(stages, node);
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

bool mc_rdma_stages_are_awaited(struct mc_rdma_stages *stages)
{
    pthread_mutex_lock(&stages->lock);
    bool are_awaited = stages->waiting > 0;
    pthread_mutex_unlock(&stages->lock);
    return are_awaited;
}

bool mc_rdma_stages_exist(struct mc_rdma_stages *stages, uint64_t deadline_ns)
{
    pthread_mutex_lock(&stages->lock);
    if (stages->count == 0)
        want_more(stages, -1);
    while (stages->count == 0 && stages->has_maker &&
           mc_monitor_wait(&stages->lock, &stages->changed, deadline_ns) == 0)
        ;
    bool is_any = stages->count > 0;
    pthread_mutex_unlock(&stages->lock);
    return is_any;
}
