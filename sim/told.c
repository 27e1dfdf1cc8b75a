/* Consumers of KV events: each keeps an index of the master's keys by what is told of them, as docs/commands.md says
 * that routers do, and is slow, away, or ended meanwhile. What runs is the ring that the master's shell fills
 * (kv_events.c) and the snapshot of its core (kv_snapshot.c); HTTP and ZMQ, by which they are read, do not.
 *
 * All of this is apart from the world: no time passes in it, its memory is the host's, and its chance is a stream of
 * its own. So a seed is what it would be if nobody listened. */
#include "told.h"

#include "members.h"
#include "worker.h"

#include "store/core/replica.h"
#include "store/core/segment.h"
#include "store/core/state.h"
#include "store/master/kv_snapshot.h"

#include <string.h>

#define CONSUMERS 3u
#define LOOKS_AT 16u     /* of so many times that a core rests, one at which all that it has is compared */
#define STEPS_MAX 10000u /* in which a consumer has all that there is, when nothing comes any more */
#define LEADS_LATE_MS 5000u

void sim_kv_events_lead(struct mc_kv_events *events, uint64_t epoch);
void sim_kv_events_add(struct mc_kv_events *events, uint64_t wall_ms, enum mc_core_medium medium, bool is_there,
                       struct mc_span key);

struct sim_told_counts sim_told_counts;

struct index {
    uint8_t media[SIM_KEY_NAMES_MAX]; /* a bit for each, by key */
};

static struct teller { /* the master in a place */
    struct mc_kv_events *events;
    struct index index; /* by all that it has told under its epoch */
} tellers[SIM_PROCESSES_MAX];

static struct consumer {
    uint64_t epoch, after;
    uint64_t settled; /* of what was told up to there its snapshot may have known before */
    struct index index;
    bool is_behind; /* it needs a snapshot, */
    struct mc_kv_cursor cursor;
    struct index fresh; /* of which it has this */
    uint32_t limit;     /* of what it reads at a time */
    uint32_t left;
    uint64_t next_ns; /* when it comes again */
} consumers[CONSUMERS];
static struct mc_kv_page page;
static uint32_t rests; /* of cores so far */

static struct teller *this_teller(void)
{
    return &tellers[sim_process()->place];
}

static uint32_t key_of(struct mc_span name)
{
    uint32_t key;
    if (!sim_key_find(name, &key)) {
        sim_fail("told: a key that nobody puts");
        return 0;
    }
    return key;
}

static void compare(const struct index *index, const struct index *right, const char *whose, const char *what)
{
    for (uint32_t key = 0; key < SIM_KEY_NAMES_MAX; key++)
        if (index->media[key] != right->media[key])
            sim_fail("told: %s has key %u on media %x, and %s on %x", whose, key, index->media[key], what,
                     right->media[key]);
}

/* ---- the product, with no fiber: it is not interrupted, and draws nothing ---- */

static struct mc_kv_mark mark_of(struct mc_kv_events *events)
{
    struct mc_kv_mark mark;
    struct sim_fiber *self = sim_fiber;
    sim_fiber = NULL;
    mc_kv_events_mark(events, &mark);
    sim_fiber = self;
    return mark;
}

static void page_read(struct mc_kv_events *events, const struct consumer *one)
{
    struct sim_fiber *self = sim_fiber;
    sim_fiber = NULL;
    mc_kv_events_read(events, one->epoch, one->after, one->limit, &page);
    sim_fiber = self;
}

static void slice_read(struct mc_core *core, struct mc_kv_slice *slice)
{
    struct sim_fiber *self = sim_fiber;
    sim_fiber = NULL;
    mc_kv_slice_read(core, slice);
    sim_fiber = self;
}

/* ---- a consumer ---- */

static bool is_level(const struct consumer *one, const struct mc_kv_mark *mark)
{
    return !one->is_behind && one->epoch == mark->epoch && one->after == mark->last;
}

static void apply(struct consumer *one, const struct mc_kv_event *event)
{
    uint32_t key = key_of(event->key);
    uint8_t bit = (uint8_t)(1u << event->medium), *media = &one->index.media[key];
    if (event->number != one->after + 1)
        sim_fail("told: event %llu of epoch %llu comes after %llu", (unsigned long long)event->number,
                 (unsigned long long)one->epoch, (unsigned long long)one->after);
    if (event->number > one->settled && ((*media & bit) != 0) == event->is_there)
        sim_fail("told: event %llu of epoch %llu says again that key %u is %s", (unsigned long long)event->number,
                 (unsigned long long)one->epoch, key, event->is_there ? "there" : "gone");
    *media = event->is_there ? *media | bit : *media & (uint8_t)~bit;
    one->after = event->number;
    sim_told_counts.taken++;
}

static void read_events(struct consumer *one, const struct teller *teller)
{
    page_read(teller->events, one);
    if (page.mark.epoch == 0)
        return; /* nobody leads there */
    if (page.is_gap) {
        sim_told_counts.slow += one->epoch == page.mark.epoch;
        sim_told_counts.other += one->epoch != page.mark.epoch && one->epoch != 0;
        one->is_behind = true;
        one->cursor = (struct mc_kv_cursor){.epoch = 0};
        memset(&one->fresh, 0, sizeof(one->fresh));
        return;
    }
    for (size_t i = 0; i < page.count; i++)
        apply(one, &page.events[i]);
}

static bool take_key(void *context, struct mc_span name, unsigned media)
{
    struct consumer *one = context;
    one->fresh.media[key_of(name)] = (uint8_t)media;
    one->left -= one->left > 0;
    return one->left > 0;
}

static void read_slice(struct consumer *one, const struct teller *teller, struct mc_core *core)
{
    struct mc_kv_slice slice = {.events = teller->events, .cursor = one->cursor, .visit = take_key, .context = one};
    one->left = one->limit;
    slice_read(core, &slice);
    one->cursor = slice.cursor;
    if (slice.is_stale) {
        sim_told_counts.broken++;
        one->cursor = (struct mc_kv_cursor){.epoch = 0};
        memset(&one->fresh, 0, sizeof(one->fresh));
    } else if (slice.is_last) {
        sim_told_counts.snapshots++;
        one->is_behind = false;
        one->epoch = slice.cursor.epoch;
        one->after = slice.cursor.after;
        one->settled = mark_of(teller->events).last;
        one->index = one->fresh;
    }
}

/* core: NULL: it is at work, and answers no questions. */
static void come(struct consumer *one, const struct teller *teller, struct mc_core *core)
{
    if (!one->is_behind)
        read_events(one, teller);
    else if (core != NULL)
        read_slice(one, teller, core);
    struct mc_kv_mark mark = mark_of(teller->events);
    if (is_level(one, &mark))
        compare(&one->index, &teller->index, "a consumer", "what was told");
}

/* It reads at once, or by and by; is away for long; or ends, and another begins that knows nothing. */
static void rest(struct consumer *one)
{
    uint32_t what = sim_below(SIM_TOLD, 64);
    if (what == 0)
        *one = (struct consumer){.epoch = 0};
    one->limit = 1 + sim_below(SIM_TOLD, what % 2 == 0 ? 4 : 100);
    one->next_ns = sim_now_ns + sim_below(SIM_TOLD, what < 2 ? 20000 : what < 8 ? 1000 : 20) * SIM_MS;
}

static void consumers_come(const struct teller *teller, struct mc_core *core)
{
    for (uint32_t i = 0; i < CONSUMERS; i++) {
        if (sim_now_ns < consumers[i].next_ns || (consumers[i].is_behind && core == NULL))
            continue;
        come(&consumers[i], teller, core);
        rest(&consumers[i]);
    }
}

/* ---- masters ---- */

struct mc_kv_events *sim_told_begin(uint32_t place)
{
    static const uint32_t capacities[] = {1, 4, 32, 1024};
    struct sim_fiber *self = sim_fiber;
    sim_fiber = NULL;
    mc_kv_events_destroy(tellers[place].events); /* of the one that was there before */
    tellers[place] = (struct teller){mc_kv_events_create(capacities[sim_below(SIM_TOLD, 4)], "sim"), {{0}}};
    sim_fiber = self;
    return tellers[place].events;
}

void sim_kv_events_lead(struct mc_kv_events *events, uint64_t epoch)
{
    struct sim_fiber *self = sim_fiber;
    sim_fiber = NULL;
    mc_kv_events_lead(events, epoch);
    sim_fiber = self;
    memset(&this_teller()->index, 0, sizeof(struct index));
}

void sim_kv_events_add(struct mc_kv_events *events, uint64_t wall_ms, enum mc_core_medium medium, bool is_there,
                       struct mc_span key)
{
    struct teller *teller = this_teller();
    uint8_t bit = (uint8_t)(1u << medium), *media = &teller->index.media[key_of(key)];
    struct sim_fiber *self = sim_fiber;
    sim_fiber = NULL;
    mc_kv_events_add(events, wall_ms, medium, is_there, key);
    sim_fiber = self;
    *media = is_there ? *media | bit : *media & (uint8_t)~bit;
    sim_told_counts.told++;
    consumers_come(teller, NULL);
}

/* What readers are offered, by the core's slots. */
static void check_core(const struct mc_core *core, const struct teller *teller)
{
    struct index offered = {{0}};
    for (uint32_t i = 0; i < core->segment_top; i++) {
        const struct mc_segment *segment = core->segments[i];
        for (uint32_t slot = 0; segment != NULL && slot < segment->space.node_fresh; slot++) {
            const struct mc_node *node = mc_segment_node(segment, slot);
            uint32_t key;
            if (node->state != MC_NODE_LIVE || !mc_node_object(node)->visible ||
                !sim_key_of(mc_node_object(node), &key))
                continue;
            offered.media[key] |= 1u << (segment->kind == MC_SEGMENT_DISK ? MC_MEDIUM_DISK : MC_MEDIUM_MEMORY);
        }
    }
    compare(&teller->index, &offered, "what was told", "the master");
}

void sim_told_rests(struct mc_core *core)
{
    consumers_come(this_teller(), core);
    if (++rests % LOOKS_AT == 0)
        check_core(core, this_teller());
}

/* ---- the end ---- */

/* The master that leads and tells; NULL: there is none. */
static struct mc_core *leading(const struct teller **teller)
{
    const struct sim_process *master = sim_master();
    struct mc_core *core = master->alive ? master->core : NULL;
    *teller = &tellers[master->place];
    return core != NULL && mark_of((*teller)->events).epoch == core->epoch ? core : NULL;
}

void sim_told_settle(void)
{
    const struct teller *teller;
    struct mc_core *core = leading(&teller);
    for (uint64_t until_ns = sim_now_ns + LEADS_LATE_MS * SIM_MS; core == NULL && sim_now_ns < until_ns;) {
        sim_sleep_ns(100 * SIM_MS);
        core = leading(&teller);
    }
    if (core == NULL)
        sim_fail("told: no master tells anything");
    check_core(core, teller);
    struct mc_kv_mark mark = mark_of(teller->events);
    for (uint32_t i = 0; i < CONSUMERS; i++) {
        for (uint32_t step = 0; !is_level(&consumers[i], &mark); step++) {
            if (step == STEPS_MAX)
                sim_fail("told: a consumer does not come to the end of what is told");
            come(&consumers[i], teller, core);
        }
        compare(&consumers[i].index, &teller->index, "a consumer", "the master");
    }
}

void sim_told_reset(void)
{
    for (uint32_t place = 0; place < SIM_PROCESSES_MAX; place++)
        mc_kv_events_destroy(tellers[place].events);
    memset(tellers, 0, sizeof(tellers));
    memset(consumers, 0, sizeof(consumers));
    rests = 0;
    for (uint32_t i = 0; i < CONSUMERS; i++)
        rest(&consumers[i]);
}
