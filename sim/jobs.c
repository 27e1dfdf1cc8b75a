/* Copies, moves and replicas that are cleared, and hints, by clients; segments that are drained, as an operator wishes.
 */
#include "jobs.h"

#include "members.h"
#include "oracle.h"
#include "placed.h"

#include "store/core/core.h"
#include "store/core/replica.h"
#include "store/core/segment.h"
#include "store/core/state.h"

#include <stdio.h>
#include <string.h>

#define TRIES_MAX 9u     /* of one copy, when the value is replaced under its hands */
#define TRY_QUESTIONS 5u /* of each of them, that have a deadline of their own */
#define DRAIN_LIMIT_MS 60000u

struct segment_list {
    uint32_t count;
    struct mc_core_segment list[SIM_OWNERS_MAX * 4];
};

static void segments_read(const struct mc_core *core, struct segment_list *segments)
{
    uint64_t cursor = 0;
    size_t count = mc_core_segments(core, &cursor, segments->list, SIM_OWNERS_MAX * 4);
    segments->count = 0;
    for (size_t i = 0; i < count; i++) {
        if (segments->list[i].state != 2)
            segments->list[segments->count++] = segments->list[i];
    }
}

/* ---- clients ---- */

static void replica_clear(struct sim_worker *worker, uint32_t key, const char *segment)
{
    struct mc_bytes name = sim_key_name(key);
    int result;
    oracle_remove_begin(key, false); /* if that is the only one */
    struct oracle_call call = oracle_begin();
    (void)mc_store_replica_clear(worker->store, &name, 1, segment, &result);
    sim_say("replica of key %u on %s is cleared: %s", key, segment, mc_error_name(result));
    /* Who finds nothing has only looked. */
    bool is_certain = result == 0 || result == MC_ERR_OBJECT_NOT_FOUND || result == MC_ERR_REPLICA_NOT_FOUND;
    oracle_remove_end(&call, key, false, is_certain, false);
    sim_note((uint64_t)(uint32_t)result << 8 | 11);
}

static void task_try(struct sim_worker *worker, uint32_t key, const char *source, const char *target)
{
    uint64_t id[2];
    struct mc_task told = {.status = MC_TASK_PENDING};
    int rc = mc_store_task_create(worker->store, sim_key_name(key), source, &target, 1, id);
    sim_say("task of key %u to %s: %s", key, target, mc_error_name(rc));
    for (uint32_t looks = sim_below(SIM_JOB, 20); rc == 0 && looks > 0 && told.status < MC_TASK_FAILED; looks--) {
        if (mc_store_task_query(worker->store, id, &told) != 0)
            sim_fail("task: one of key %u is not known any more", key);
        sim_sleep_ns((1 + sim_below(SIM_JOB, 2000)) * 1000ull);
    }
    sim_note((uint64_t)told.status << 8 | 12);
}

/* The put whose value is there; UINT32_MAX: none, or it is not known. */
static uint32_t put_there(uint32_t key)
{
    const struct mc_core *core = sim_master()->alive ? sim_master()->core : NULL;
    const struct mc_object *object = core == NULL ? NULL : mc_object_find(core, sim_key_full(key));
    if (object == NULL || !object->visible)
        return UINT32_MAX;
    struct mc_replica first = mc_replica_first(core, object);
    return oracle_placed_put(mc_node_generation(core, mc_segment_node(first.segment, first.slot)));
}

static void pin(struct sim_worker *worker, uint32_t key)
{
    struct mc_bytes name = sim_key_name(key);
    uint32_t kind = sim_below(SIM_FIRM, 4), number = oracle_pin_begin(key);
    struct mc_replicate_config config = {.with_soft_pin = kind == 2, .firm_pin_or_not = kind == 0};
    config.firm_pin_ms = kind < 2 ? 1000u << sim_below(SIM_FIRM, 4) : 0;
    int result;
    struct oracle_call call = oracle_begin();
    (void)mc_store_pin(worker->store, &name, 1, &config, &result);
    oracle_end(&call, (TRIES_MAX + 1) * TRY_QUESTIONS * sim_plan->timeout_ms, "pin");
    sim_say("pin %u of key %u for %llu ms: %s", kind, key, (unsigned long long)config.firm_pin_ms,
            mc_error_name(result));
    oracle_pin_end(&call, key, number, put_there(key), result == 0 && config.firm_pin_or_not ? config.firm_pin_ms : 0);
    sim_note((uint64_t)(uint32_t)result << 8 | 14);
}

void sim_job_do(struct sim_worker *worker)
{
    if (sim_plan->has_firm && sim_once_in(SIM_FIRM, 2)) {
        pin(worker, sim_key_draw(SIM_FIRM, worker->tenant));
        return;
    }
    struct segment_list segments;
    const struct mc_core *core = sim_master()->alive ? sim_master()->core : NULL;
    uint32_t kind = sim_below(SIM_JOB, 6), key = sim_key_draw(SIM_JOB, worker->tenant);
    if (core == NULL)
        return;
    segments_read(core, &segments);
    if (segments.count == 0)
        return;
    const char *source = segments.list[sim_below(SIM_JOB, segments.count)].name,
               *target = segments.list[sim_below(SIM_JOB, segments.count)].name;
    source = sim_once_in(SIM_JOB, 2) ? NULL : source;
    if (kind == 0 && source != NULL) {
        replica_clear(worker, key, source);
    } else if (kind <= 2) {
        task_try(worker, key, source, target);
    } else {
        struct oracle_call call = oracle_begin();
        int rc = mc_store_copy(worker->store, sim_key_name(key), source, &target, 1);
        oracle_end(&call, TRIES_MAX * TRY_QUESTIONS * sim_plan->timeout_ms, "copy");
        sim_say("copy of key %u from %s to %s: %s", key, source == NULL ? "anywhere" : source, target,
                mc_error_name(rc));
        sim_note((uint64_t)(uint32_t)rc << 8 | 13);
    }
}

/* Whatever is said of a value, it is there or it is not: what is answered is judged as by who looks for it. */
void sim_hint_do(struct sim_worker *worker)
{
    static const uint64_t waits_ms[] = {0, 500, 60000};
    enum mc_hint hint = (enum mc_hint)(MC_HINT_DROP + sim_below(SIM_HINT, MC_HINT_PREFETCH));
    uint32_t keys[SIM_BATCH_MAX], count = 1 + sim_below(SIM_HINT, sim_plan->batch_max);
    struct mc_bytes names[SIM_BATCH_MAX];
    int results[SIM_BATCH_MAX];
    for (uint32_t i = 0; i < count; i++) {
        keys[i] = sim_key_draw(SIM_HINT, worker->tenant);
        names[i] = sim_key_name(keys[i]);
        if (hint == MC_HINT_DROP)
            oracle_dropped(keys[i]);
    }
    struct oracle_call call = oracle_begin();
    (void)mc_store_hint(worker->store, names, count, hint, waits_ms[sim_below(SIM_HINT, 3)], results);
    oracle_end(&call, sim_plan->timeout_ms, "hint");
    for (uint32_t i = 0; i < count; i++) {
        sim_say("hint %u of key %u: %d %s", (unsigned)hint, keys[i], results[i], mc_error_name(results[i]));
        if (results[i] >= 0)
            oracle_exists(&call, keys[i], 1);
        else if (results[i] == MC_ERR_OBJECT_NOT_FOUND && (hint == MC_HINT_DROP || hint == MC_HINT_PAUSE))
            oracle_exists(&call, keys[i], 0); /* the others: or its disk does not give it just now */
        sim_note((uint64_t)(uint32_t)results[i] << 8 | 15);
    }
}

/* ---- drains ---- */

static struct sim_drain { /* a segment, from when on nothing is placed there */
    uint32_t number;
    uint64_t generation;
} sim_drains[256];
static uint32_t drain_count, wished; /* wished: owners, by bits */

static void on_wish(void *argument)
{
    (void)argument;
    if (sim_cluster.is_calm)
        return;
    /* One at a time: what lies there must have a place elsewhere. */
    wished = wished != 0 && sim_once_in(SIM_JOB, 2) ? 0 : 1u << sim_below(SIM_JOB, sim_plan->owners);
    sim_say("owners that are to be drained: %x", wished);
    sim_at(sim_now_ns + (1 + sim_below(SIM_JOB, 6000)) * SIM_MS, on_wish, NULL);
}

void sim_drains_start(void)
{
    drain_count = wished = 0;
    if (sim_plan->has_drains)
        sim_at(sim_now_ns + (1 + sim_below(SIM_JOB, 500)) * SIM_MS, on_wish, NULL);
}

static bool is_of(const struct mc_core_segment *segment, uint32_t owner)
{
    char name[32];
    int length = snprintf(name, sizeof(name), "10.0.0.%u:", sim_processes[SIM_PLACE_OWNER + owner].address);
    return strncmp(segment->name, name, (size_t)length) == 0;
}

static bool is_wished(const struct mc_core_segment *segment)
{
    for (uint32_t owner = 0; owner < sim_plan->owners; owner++) {
        if ((wished >> owner & 1u) != 0 && is_of(segment, owner))
            return true;
    }
    return false;
}

/* A segment has one entry, of its last drain. Later masters give numbers anew, and have the places of those before. */
static void drain_began(uint32_t number, uint64_t generation)
{
    uint32_t at = 0;
    while (at < drain_count && sim_drains[at].number != number &&
           sim_drains[at].generation >> MC_EPOCH_SHIFT == generation >> MC_EPOCH_SHIFT)
        at++;
    mc_assert(at < sizeof(sim_drains) / sizeof(sim_drains[0]));
    sim_drains[at] = (struct sim_drain){number, generation};
    if (at == drain_count)
        drain_count++;
}

void sim_drains_apply(struct mc_core *core)
{
    struct segment_list segments;
    if (!sim_plan->has_drains)
        return;
    segments_read(core, &segments);
    for (uint32_t i = 0; i < segments.count; i++) {
        const struct mc_core_segment *segment = &segments.list[i];
        if (segment->draining == is_wished(segment))
            continue;
        (void)mc_core_drain(core, mc_span(segment->name, strlen(segment->name)), !segment->draining);
        if (!segment->draining)
            drain_began(segment->number, (core->epoch << MC_EPOCH_SHIFT) + core->counter);
    }
}

void oracle_check_drains(const struct mc_core *core)
{
    for (uint32_t i = 0; i < drain_count; i++) {
        const struct mc_segment *segment = mc_segment_find(core, sim_drains[i].number);
        if (segment == NULL || !segment->drain || sim_drains[i].generation >> MC_EPOCH_SHIFT != core->epoch)
            continue;
        for (uint32_t slot = 0; slot < segment->space.node_fresh; slot++) {
            const struct mc_node *node = mc_segment_node(segment, slot);
            if ((node->state == MC_NODE_LIVE || node->state == MC_NODE_GRANTED) &&
                mc_node_generation(core, node) > sim_drains[i].generation)
                sim_fail("drain: segment %u is being drained, and generation %llx was placed there since",
                         segment->number, (unsigned long long)mc_node_generation(core, node));
        }
    }
}

static uint64_t objects_wished(void)
{
    struct segment_list segments;
    uint64_t count = 0;
    if (sim_master()->core == NULL)
        return 1;
    segments_read(sim_master()->core, &segments);
    for (uint32_t i = 0; i < segments.count; i++)
        count += is_wished(&segments.list[i]) ? segments.list[i].objects : 0;
    return count;
}

void sim_drains_end(void)
{
    uint64_t limit_ns = sim_now_ns + DRAIN_LIMIT_MS * SIM_MS;
    bool must = sim_plan->is_roomy && sim_plan->replicas_max < sim_plan->owners;
    while (wished != 0 && must && objects_wished() > 0 && !sim_failed) {
        if (sim_now_ns > limit_ns)
            sim_fail("drain: %llu objects are still there after %u s", (unsigned long long)objects_wished(),
                     DRAIN_LIMIT_MS / 1000);
        sim_sleep_ns(200 * SIM_MS);
    }
    wished = 0;
}
