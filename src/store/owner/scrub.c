/* A walk over the live slots, and a queue of slots that somebody wants looked at. */
#include "store/owner/scrub.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"

#include <event2/event.h>
#include <inttypes.h>
#include <stdlib.h>

#define STEP_BYTES (1u << 20)
#define STEP_NS 200000u
#define BITE_BYTES (128u << 10) /* between two looks at the clock */
#define STEP_SLOTS 4096u        /* looked at in one step when they are empty */
#define VERIFY_BYTES_MIN 4096u  /* what one look costs at least */

struct slot_check {
    uint32_t slot;
    uint64_t generation;
    uint64_t at; /* so far it was read */
};

struct mc_scrub {
    struct mc_scrub_config config;
    struct mc_segment_memory *memory;
    struct event *timer;
    struct slot_check *checks; /* ring of MC_SCRUB_CHECKS_MAX, made when the first is asked for */
    uint32_t check_first, check_count;
    struct slot_check walk; /* generation 0: its slot is the next to be looked at */
    uint64_t pass_start_ms;
    _Atomic uint64_t bytes, rotten;
};

static void timer_set(struct mc_scrub *scrub, uint64_t us)
{
    struct timeval in = {.tv_sec = (time_t)(us / 1000000), .tv_usec = (suseconds_t)(us % 1000000)};
    mc_assert(evtimer_add(scrub->timer, &in) == 0);
}

/* A bite of one slot. True when it needs no further look; *bytes grows by what was read. */
static bool look_on(struct mc_scrub *scrub, struct slot_check *look, uint64_t *bytes)
{
    uint64_t before = look->at;
    int rc = mc_segment_memory_verify(scrub->memory, look->slot, look->generation, &look->at, BITE_BYTES);
    uint64_t moved = look->at > before ? look->at - before : 0;
    *bytes += moved > VERIFY_BYTES_MIN ? moved : VERIFY_BYTES_MIN;
    atomic_fetch_add_explicit(&scrub->bytes, moved, memory_order_relaxed);
    if (rc != MC_ERR_CHECKSUM_MISMATCH)
        return rc <= 0;
    (void)mc_segment_memory_clear(scrub->memory, look->slot, look->generation); /* it was there a moment ago */
    atomic_fetch_add_explicit(&scrub->rotten, 1, memory_order_relaxed);
    mc_log(ERROR,
           "slot %" PRIu32 " of our segment no longer matches its checksum and is dropped: faulty memory, a process "
           "that wrote where it must not, or a caller that changed memory while RDMA devices put it",
           look->slot);
    scrub->config.rotten(scrub->config.context, look->slot, look->generation);
    return true;
}

static bool is_step_over(uint64_t bytes, uint64_t end_ns)
{
    return bytes >= STEP_BYTES || mc_clock_ns() >= end_ns;
}

static void checks_step(struct mc_scrub *scrub, uint64_t *bytes, uint64_t end_ns)
{
    while (scrub->check_count > 0 && !is_step_over(*bytes, end_ns)) {
        struct slot_check look = scrub->checks[scrub->check_first]; /* a copy: the callback may ask for more */
        if (!look_on(scrub, &look, bytes)) {
            scrub->checks[scrub->check_first] = look;
            continue;
        }
        if (scrub->check_count == 0) /* new memory was set */
            return;
        scrub->check_first = (scrub->check_first + 1) % MC_SCRUB_CHECKS_MAX;
        scrub->check_count--;
    }
}

/* Looking at slots that were never used would give memory to their pages of the index: the walk ends before them.
 * Moves to the next live slot; false when the pass is over or *seen slots were looked at. */
static bool walk_find(struct mc_scrub *scrub, uint32_t *seen)
{
    const struct mc_slot *slots = mc_segment_memory_slots(scrub->memory);
    uint32_t top = mc_segment_memory_slot_top(scrub->memory);
    for (; *seen < STEP_SLOTS; (*seen)++) {
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

/* True when the pass is over. */
static bool walk_step(struct mc_scrub *scrub, uint64_t *bytes, uint64_t end_ns)
{
    uint32_t seen = 0;
    while (!is_step_over(*bytes, end_ns)) {
        if (scrub->walk.generation == 0 && !walk_find(scrub, &seen))
            break;
        struct slot_check look = scrub->walk;
        bool is_done = look_on(scrub, &look, bytes);
        if (is_done) {
            scrub->walk.slot++;
            scrub->walk.generation = 0;
        } else {
            scrub->walk.at = look.at;
        }
    }
    *bytes += (uint64_t)seen * sizeof(struct mc_slot);
    return scrub->walk.generation == 0 && scrub->walk.slot >= mc_segment_memory_slot_top(scrub->memory);
}

static void on_timer(evutil_socket_t fd, short what, void *argument)
{
    struct mc_scrub *scrub = argument;
    (void)fd, (void)what;
    if (scrub->memory == NULL)
        return;
    uint64_t bytes = 0, end_ns = mc_clock_ns() + STEP_NS;
    checks_step(scrub, &bytes, end_ns);
    if (scrub->check_count > 0) {
        timer_set(scrub, 0);
        return;
    }
    if (scrub->config.bytes_per_s == 0)
        return;
    bool is_over = walk_step(scrub, &bytes, end_ns);
    uint64_t wait_us = bytes * 1000000 / scrub->config.bytes_per_s + 1000;
    if (is_over) {
        uint64_t passed_ms = mc_clock_ms() - scrub->pass_start_ms;
        if (passed_ms < scrub->config.pass_ms && wait_us < (scrub->config.pass_ms - passed_ms) * 1000)
            wait_us = (scrub->config.pass_ms - passed_ms) * 1000;
        scrub->pass_start_ms = mc_clock_ms() + wait_us / 1000;
        scrub->walk = (struct slot_check){0};
    }
    timer_set(scrub, wait_us);
}

struct mc_scrub *mc_scrub_create(const struct mc_scrub_config *config)
{
    struct mc_scrub *scrub = calloc(1, sizeof(*scrub));
    if (scrub == NULL)
        return NULL;
    scrub->config = *config;
    scrub->timer = evtimer_new(config->base, on_timer, scrub);
    if (scrub->timer == NULL) {
        free(scrub);
        return NULL;
    }
    return scrub;
}

void mc_scrub_set_memory(struct mc_scrub *scrub, struct mc_segment_memory *memory)
{
    scrub->memory = memory;
    scrub->check_count = 0;
    scrub->walk = (struct slot_check){0};
    scrub->pass_start_ms = mc_clock_ms();
    if (memory != NULL && scrub->config.bytes_per_s > 0)
        timer_set(scrub, scrub->config.pass_ms * 1000ull);
}

bool mc_scrub_check(struct mc_scrub *scrub, uint32_t slot, uint64_t generation)
{
    if (scrub->memory == NULL || slot >= mc_segment_memory_slot_count(scrub->memory) ||
        scrub->check_count >= MC_SCRUB_CHECKS_MAX)
        return false;
    if (scrub->checks == NULL)
        scrub->checks = calloc(MC_SCRUB_CHECKS_MAX, sizeof(*scrub->checks));
    if (scrub->checks == NULL)
        return false;
    scrub->checks[(scrub->check_first + scrub->check_count) % MC_SCRUB_CHECKS_MAX] =
        (struct slot_check){.slot = slot, .generation = generation};
    scrub->check_count++;
    timer_set(scrub, 0);
    return true;
}

void mc_scrub_stop(struct mc_scrub *scrub)
{
    if (scrub->timer != NULL)
        event_free(scrub->timer);
    scrub->timer = NULL;
    scrub->memory = NULL;
}

void mc_scrub_free(struct mc_scrub *scrub)
{
    if (scrub == NULL)
        return;
    mc_scrub_stop(scrub);
    free(scrub->checks);
    free(scrub);
}

void mc_scrub_counters(const struct mc_scrub *scrub, uint64_t *bytes, uint64_t *rotten)
{
    *bytes = atomic_load_explicit(&scrub->bytes, memory_order_relaxed);
    *rotten = atomic_load_explicit(&scrub->rotten, memory_order_relaxed);
}
