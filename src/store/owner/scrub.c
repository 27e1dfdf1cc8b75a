/* A walk over the live slots, and a queue of slots that somebody wants looked at. */
#include "store/owner/scrub.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "env/thread.h"

#include <inttypes.h>
#include <stdlib.h>

#define STEP_BYTES (1u << 20)   /* between two rests of the walk */
#define BITE_BYTES (128u << 10) /* between two looks at what is wanted of the thread */
#define STEP_SLOTS 4096u        /* looked at in one step when they are empty */
#define VERIFY_BYTES_MIN 4096u  /* what one look costs at least */

struct slot_check {
    uint32_t slot;
    uint64_t generation;
    uint64_t at; /* so far it was read */
};

struct mc_scrub {
    struct mc_scrub_config config;
    struct mc_sleeper sleeper;        /* its lock, never over a look at memory, guards what follows */
    struct mc_segment_memory *memory; /* with a reference, or NULL */
    uint64_t memory_number;           /* counts those that were set */
    struct slot_check *checks;        /* ring of MC_SCRUB_CHECKS_MAX, made when the first is asked for */
    uint32_t check_first, check_count;
    _Atomic uint64_t bytes, rotten;

    /* on its thread */
    struct mc_segment_memory *looked; /* what it looks at, with a reference; NULL: nothing */
    uint64_t looked_number;
    struct slot_check check, walk; /* generation 0: the next one is to be found */
    uint64_t step_bytes;           /* of the walk, since its last rest */
    uint32_t step_slots;
    uint64_t pass_start_ns, due_ns; /* the walk goes on then */
};

/* ---- looking; without the lock ---- */

/* A bite of one slot. True when it needs no further look; *bytes grows by what was read. */
static bool look_on(struct mc_scrub *scrub, struct slot_check *look, uint64_t *bytes)
{
    uint64_t before = look->at;
    int rc = mc_segment_memory_verify(scrub->looked, look->slot, look->generation, &look->at, BITE_BYTES);
    uint64_t moved = look->at > before ? look->at - before : 0;
    *bytes += moved > VERIFY_BYTES_MIN ? moved : VERIFY_BYTES_MIN;
    atomic_fetch_add_explicit(&scrub->bytes, moved, memory_order_relaxed);
    if (rc != MC_ERR_CHECKSUM_MISMATCH)
        return rc <= 0;
    (void)mc_segment_memory_clear(scrub->looked, look->slot, look->generation); /* it was there a moment ago */
    atomic_fetch_add_explicit(&scrub->rotten, 1, memory_order_relaxed);
    mc_log(ERROR,
           "slot %" PRIu32 " of our segment no longer matches its checksum and is dropped: faulty memory, a process "
           "that wrote where it must not, or a caller that changed memory while RDMA devices put it",
           look->slot);
    scrub->config.rotten(scrub->config.context, scrub->looked, look->slot, look->generation);
    return true;
}

/* Looking at slots that were never used would give memory to their pages of the index: the walk ends before them.
 * Moves to the next live slot; false when the pass is over or enough slots were looked at. */
static bool walk_find(struct mc_scrub *scrub)
{
    const struct mc_slot *slots = mc_segment_memory_slots(scrub->looked);
    uint32_t top = mc_segment_memory_slots_used(scrub->looked);
    for (; scrub->step_slots < STEP_SLOTS; scrub->step_slots++) {
        if (scrub->walk.slot >= top)
            return false;
        const struct mc_slot *slot = &slots[scrub->walk.slot];
        uint64_t generation = atomic_load_explicit(&slot->generation, memory_order_acquire);
        if (generation != 0 && atomic_load_explicit(&slot->state, memory_order_acquire) == MC_SLOT_LIVE) {
            scrub->walk.generation = generation;
            scrub->walk.at = 0;
            return true;
        }
        scrub->walk.slot++;
    }
    return false;
}

/* The walk rests, so long that its rate and that of its passes are kept. */
static void walk_rest(struct mc_scrub *scrub)
{
    uint64_t bytes = scrub->step_bytes + (uint64_t)scrub->step_slots * sizeof(struct mc_slot);
    uint64_t now_ns = mc_clock_ns(), pass_ns = scrub->config.pass_ms * UINT64_C(1000000);
    scrub->due_ns = now_ns + bytes * 1000000 / scrub->config.bytes_per_s * 1000 + 1000000;
    if (scrub->walk.generation == 0 &&
        scrub->walk.slot >= mc_segment_memory_slots_used(scrub->looked)) { /* it is over */
        if (scrub->due_ns < scrub->pass_start_ns + pass_ns)
            scrub->due_ns = scrub->pass_start_ns + pass_ns;
        scrub->pass_start_ns = scrub->due_ns;
        scrub->walk = (struct slot_check){0};
    }
    scrub->step_bytes = scrub->step_slots = 0;
}

static void walk_on(struct mc_scrub *scrub)
{
    if (scrub->walk.generation == 0 && !walk_find(scrub)) {
        walk_rest(scrub);
        return;
    }
    if (look_on(scrub, &scrub->walk, &scrub->step_bytes)) {
        scrub->walk.slot++;
        scrub->walk.generation = 0;
    }
    if (scrub->step_bytes >= STEP_BYTES)
        walk_rest(scrub);
}

/* ---- the thread; with the lock ---- */

/* It looks at what it is to look at. True: it was something else until now, and time has passed. */
static bool memory_take(struct mc_scrub *scrub)
{
    if (scrub->looked_number == scrub->memory_number)
        return false;
    struct mc_segment_memory *before = scrub->looked;
    scrub->looked = scrub->memory;
    scrub->looked_number = scrub->memory_number;
    scrub->check = scrub->walk = (struct slot_check){0};
    scrub->step_bytes = scrub->step_slots = 0;
    scrub->pass_start_ns = mc_clock_ns();
    scrub->due_ns = scrub->pass_start_ns + scrub->config.pass_ms * UINT64_C(1000000);
    if (scrub->looked != NULL)
        mc_segment_memory_retain(scrub->looked);
    pthread_mutex_unlock(&scrub->sleeper.lock);
    mc_segment_memory_drop(before);
    pthread_mutex_lock(&scrub->sleeper.lock);
    return true;
}

static bool check_take(struct mc_scrub *scrub)
{
    if (scrub->check.generation == 0 && scrub->check_count > 0) {
        scrub->check = scrub->checks[scrub->check_first];
        scrub->check_first = (scrub->check_first + 1) % MC_SCRUB_CHECKS_MAX;
        scrub->check_count--;
    }
    return scrub->check.generation != 0;
}

static void *scrub_run(void *argument)
{
    struct mc_scrub *scrub = argument;
    uint64_t checked = 0;
    pthread_mutex_lock(&scrub->sleeper.lock);
    while (!scrub->sleeper.stop) {
        if (memory_take(scrub))
            continue;
        bool is_check = scrub->looked != NULL && check_take(scrub);
        bool walks = scrub->looked != NULL && scrub->config.bytes_per_s > 0;
        if (!is_check && (!walks || mc_clock_ns() < scrub->due_ns)) {
            (void)mc_monitor_wait(&scrub->sleeper.lock, &scrub->sleeper.changed,
                                  walks ? scrub->due_ns : UINT64_MAX / 2);
            continue;
        }
        pthread_mutex_unlock(&scrub->sleeper.lock);
        if (!is_check)
            walk_on(scrub);
        else if (look_on(scrub, &scrub->check, &checked))
            scrub->check.generation = 0;
        pthread_mutex_lock(&scrub->sleeper.lock);
    }
    pthread_mutex_unlock(&scrub->sleeper.lock);
    mc_segment_memory_drop(scrub->looked);
    scrub->looked = NULL;
    return NULL;
}

/* ---- life ---- */

struct mc_scrub *mc_scrub_create(const struct mc_scrub_config *config)
{
    struct mc_scrub *scrub = calloc(1, sizeof(*scrub));
    if (scrub == NULL)
        return NULL;
    scrub->config = *config;
    mc_monitor_init(&scrub->sleeper.lock, &scrub->sleeper.changed);
    if (mc_sleeper_start(&scrub->sleeper, "mc-scrub", scrub_run, scrub) != 0)
        mc_log(WARNING, "cannot start the thread that scrubs the segment: what rots there its readers find out");
    return scrub;
}

void mc_scrub_set_memory(struct mc_scrub *scrub, struct mc_segment_memory *memory)
{
    if (!scrub->sleeper.has_thread)
        return;
    if (memory != NULL)
        mc_segment_memory_retain(memory);
    pthread_mutex_lock(&scrub->sleeper.lock);
    struct mc_segment_memory *before = scrub->memory;
    scrub->memory = memory;
    scrub->memory_number++;
    scrub->check_count = 0;
    pthread_cond_signal(&scrub->sleeper.changed);
    pthread_mutex_unlock(&scrub->sleeper.lock);
    mc_segment_memory_drop(before);
}

bool mc_scrub_check(struct mc_scrub *scrub, uint32_t slot, uint64_t generation)
{
    bool is_taken = false;
    pthread_mutex_lock(&scrub->sleeper.lock);
    if (scrub->memory != NULL && slot < mc_segment_memory_slot_count(scrub->memory) &&
        scrub->check_count < MC_SCRUB_CHECKS_MAX) {
        if (scrub->checks == NULL)
            scrub->checks = calloc(MC_SCRUB_CHECKS_MAX, sizeof(*scrub->checks));
        is_taken = scrub->checks != NULL;
    }
    if (is_taken) {
        scrub->checks[(scrub->check_first + scrub->check_count) % MC_SCRUB_CHECKS_MAX] =
            (struct slot_check){.slot = slot, .generation = generation};
        scrub->check_count++;
        pthread_cond_signal(&scrub->sleeper.changed);
    }
    pthread_mutex_unlock(&scrub->sleeper.lock);
    return is_taken;
}

void mc_scrub_stop(struct mc_scrub *scrub)
{
    if (!scrub->sleeper.has_thread)
        return;
    pthread_mutex_lock(&scrub->sleeper.lock);
    scrub->sleeper.stop = true;
    pthread_cond_signal(&scrub->sleeper.changed);
    pthread_mutex_unlock(&scrub->sleeper.lock);
    pthread_join(scrub->sleeper.thread, NULL);
    scrub->sleeper.has_thread = false;
    mc_segment_memory_drop(scrub->memory);
    scrub->memory = NULL;
}

void mc_scrub_free(struct mc_scrub *scrub)
{
    if (scrub == NULL)
        return;
    mc_scrub_stop(scrub);
    mc_monitor_destroy(&scrub->sleeper.lock, &scrub->sleeper.changed);
    free(scrub->checks);
    free(scrub);
}

void mc_scrub_counters(const struct mc_scrub *scrub, uint64_t *bytes, uint64_t *rotten)
{
    *bytes = atomic_load_explicit(&scrub->bytes, memory_order_relaxed);
    *rotten = atomic_load_explicit(&scrub->rotten, memory_order_relaxed);
}
