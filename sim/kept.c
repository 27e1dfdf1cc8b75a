/* What a master must keep: values in sessions, values that are pinned; and groups, which stay and leave together. */
#include "members.h"
#include "held.h"
#include "kept.h"
#include "oracle.h"
#include "parts.h"
#include "placed.h"
#include "quotas.h"
#include "worker.h"

#include "store/core/group.h"
#include "store/core/hint.h"
#include "store/core/limits.h"
#include "store/core/pin.h"
#include "store/core/recover.h"
#include "store/core/replica.h"
#include "store/core/segment.h"
#include "store/core/state.h"
#include "store/core/stripe.h"
#include "store/core/tombstone.h"

#include <stdio.h>
#include <string.h>

#define FIRM_SHORTER_MS 300u     /* units of deadlines; clocks of machines that drift */
#define IDLE_NS (29000 * SIM_MS) /* a session that nobody uses for longer may be over */
#define LEASE_LEAST_MS 300u      /* shorter leases may run out before they are renewed */

struct guard { /* a session that a client has of a key */
    struct oracle_kept kept;
    uint64_t since_ns, used_ns; /* since 0: none */
    uint32_t life;
};
static struct guard guards[SIM_PROCESSES_MAX][SIM_KEY_NAMES_MAX];
static uint64_t gone_group;              /* a member of it has just been evicted; 0: none was */
static uint64_t evicted_before;          /* the master's counter at the last look */
static uint64_t held[SIM_KEY_NAMES_MAX]; /* the last master under which the key was held without a value */
static uint64_t left[SIM_KEY_NAMES_MAX]; /* the master that has evicted the last replica of it that it knew; 0: none */
static struct budget {                   /* of firm pins, at the last look */
    uint64_t epoch, gone; /* gone: segments that have left, also those that came and left between two looks */
    bool is_void;         /* it may be less than what is there */
} budget;

void oracle_kept_reset(void)
{
    memset(guards, 0, sizeof(guards));
    memset(held, 0, sizeof(held));
    memset(left, 0, sizeof(left));
    gone_group = 0;
    evicted_before = 0;
    budget = (struct budget){.epoch = 0};
}

/* ---- sessions ---- */

struct oracle_kept oracle_kept_now(uint32_t key)
{
    struct oracle_kept kept;
    kept.count = oracle_offered(key, kept.generations, ORACLE_KEPT_MAX);
    return kept;
}

static bool is_one_of(const struct oracle_kept *kept, uint64_t generation)
{
    for (uint32_t i = 0; i < kept->count; i++) {
        if (kept->generations[i] == generation)
            return true;
    }
    return false;
}

static bool is_same(const struct oracle_kept *a, const struct oracle_kept *b)
{
    for (uint32_t i = 0; i < a->count; i++) {
        if (!is_one_of(b, a->generations[i]))
            return false;
    }
    return a->count > 0 && a->count == b->count;
}

void oracle_session_begins(const struct oracle_call *call, uint32_t place, uint32_t key,
                           const struct oracle_kept *before)
{
    struct oracle_kept now = oracle_kept_now(key);
    if (is_same(before, &now)) /* else the session may be of either */
        guards[place][key] = (struct guard){now, call->start_ns, call->start_ns, sim_processes[place].life};
}

void oracle_session_ends(uint32_t place, uint32_t key)
{
    guards[place][key].since_ns = 0;
}

/* Must the master keep the value, as far as this session goes? */
static bool is_guarded(uint32_t place, uint32_t key)
{
    const struct guard *guard = &guards[place][key];
    return guard->since_ns != 0 && sim_processes[place].alive && sim_processes[place].life == guard->life &&
           sim_plan->lease_ms >= LEASE_LEAST_MS && !sim_has_wanted(place) && sim_now_ns - guard->used_ns < IDLE_NS &&
           oracle_is_well_since(guard->since_ns);
}

struct oracle_kept oracle_session_before(uint32_t place, uint32_t key)
{
    struct oracle_kept now = oracle_kept_now(key), none = {.count = 0};
    struct guard *guard = &guards[place][key];
    /* A client passes over an owner that has failed for a while longer. */
    bool is_kept = is_guarded(place, key) && is_same(&now, &guard->kept) &&
                   (oracle_is_strict() || oracle_was_well(guard->since_ns)) && !sim_has_wanted(place);
    guard->used_ns = is_kept ? sim_now_ns : guard->used_ns;
    return is_kept ? now : none;
}

void oracle_session_read(uint32_t place, uint32_t key, const struct oracle_kept *before, uint64_t end, int64_t result)
{
    struct oracle_kept now = oracle_kept_now(key);
    bool is_lost = result == MC_ERR_OBJECT_NOT_FOUND || result == MC_ERR_REPLICA_IS_NOT_READY ||
                   result == MC_ERR_LEASE_EXPIRED || result == MC_ERR_INVALID_PARAMS;
    if (!is_lost || !is_same(before, &now) || !is_guarded(place, key))
        return;
    uint32_t put = oracle_placed_put(now.generations[0]);
    if (put != UINT32_MAX && end <= oracle_put_length(put))
        sim_fail("session: key %u is in one, and was there all the time: %s", key, mc_error_name((int)result));
}

/* ---- evictions ---- */

static uint64_t generation_of(const struct mc_core *core, struct mc_replica at)
{
    return mc_node_generation(core, mc_segment_node(at.segment, at.slot));
}

static bool is_read(const struct mc_core *core, const struct mc_object *object)
{
    return object->readers > 0 && core->now_ms < object->lease_until_ms;
}

/* May all of it be evicted now, with its group? A soft pin is left out. */
static bool may_go(const struct mc_core *core, const struct mc_object *object)
{
    bool may = object->visible && !object->hard && !object->soft && !mc_key_hides(core, object), is_in_memory = false;
    for (struct mc_replica at = mc_replica_first(core, object); at.segment != NULL; at = mc_replica_next(core, at)) {
        is_in_memory |= at.segment->kind == MC_SEGMENT_MEMORY;
        may &= at.segment->state == MC_SEGMENT_OK &&
               (mc_segment_node(at.segment, at.slot)->base != 0 || !mc_recover_hides(core));
    }
    return may && is_in_memory;
}

static struct mc_object *object_of(const struct mc_core *core, uint32_t key)
{
    struct mc_object *object = mc_object_find(core, sim_key_full(key));
    return object != NULL && object->visible ? object : NULL;
}

static bool is_on(const struct mc_core *core, const struct mc_object *object, const struct mc_segment *segment)
{
    for (struct mc_replica at = mc_replica_first(core, object); at.segment != NULL; at = mc_replica_next(core, at)) {
        if (at.segment == segment)
            return true;
    }
    return false;
}

/* Pieces that are kept may be more than one step of eviction passes over, where a policy comes to each of them twice,
 * and then it goes on with soft pins. Whole values are never so many here. */
static bool is_full_of_kept_pieces(const struct mc_core *core, const struct mc_segment *segment)
{
    uint32_t count = 0;
    for (uint32_t slot = 0; sim_plan->has_stripes && slot < segment->space.node_fresh; slot++) {
        const struct mc_node *node = mc_segment_node(segment, slot);
        const struct mc_object *object = node->state == MC_NODE_LIVE ? mc_node_object(node) : NULL;
        const struct mc_group *group = object != NULL ? mc_object_group(object) : NULL;
        bool is_in_use = group != NULL && group->readers > 0 && core->now_ms < group->lease_until_ms;
        count += group != NULL && (is_in_use || (node->base == 0 && mc_recover_hides(core)));
    }
    return count >= MC_EVICT_SKIPS_MAX / 2;
}

/* A soft pin goes only when nothing else can: is there something else in that segment? */
static void check_soft(const struct mc_core *core, const struct mc_object *object, const struct mc_segment *segment)
{
    if (sim_plan->has_quotas) /* it goes for its own tenant's, or the others are guaranteed to theirs */
        return;
    if (mc_pin_left_ms(core, object) == 0 || mc_object_group(object) != NULL)
        return;
    for (uint32_t key = 0; key < sim_plan->keys; key++) {
        const struct mc_object *other = object_of(core, key);
        if (other != NULL && mc_object_group(other) == NULL && may_go(core, other) && !is_read(core, other) &&
            is_on(core, other, segment) && !is_full_of_kept_pieces(core, segment))
            sim_fail("evicted: one that is softly pinned, and key %u, which is not, was there", key);
    }
}

/* What its users have dropped goes before all others: is there something of that in that segment? */
static void check_first(const struct mc_core *core, const struct mc_object *object, const struct mc_segment *segment,
                        uint32_t slot)
{
    if (sim_plan->has_quotas || mc_object_group(object) != NULL || mc_node_goes_first(mc_segment_node(segment, slot)))
        return;
    for (uint32_t at = segment->first.head; at != MC_NODE_NONE; at = mc_segment_node(segment, at)->list_next) {
        const struct mc_object *other = mc_node_object(mc_segment_node(segment, at));
        if (mc_object_group(other) == NULL && !other->moving && may_go(core, other) && !is_read(core, other))
            sim_fail("evicted: one that is wanted, and one that is not, in slot %u, was there", at);
    }
}

/* A read of one member protects all. */
static void check_members(const struct mc_core *core, const struct mc_group *group)
{
    for (uint32_t key = 0; key < sim_plan->keys; key++) {
        const struct mc_object *member = object_of(core, key);
        if (member != NULL && mc_object_group(member) == group && is_read(core, member))
            sim_fail("evicted: a member of a group of which key %u is being read", key);
    }
}

/* Not by who does not know of it, or has no memory for its deadline, nor by a clock that is set. */
static bool is_promised(uint32_t put)
{
    bool may_end =
        sim_plan->has_old || sim_plan->want_gap_ms != 0 || (sim_plan->disks > 0 && sim_has_fault(SIM_FAULT_wall_step));
    return !may_end && sim_now_ns + FIRM_SHORTER_MS * SIM_MS < oracle_put_firm_until_ns(put);
}

static void check_replica(uint32_t key, uint64_t generation)
{
    for (uint32_t place = 0; place < SIM_PROCESSES_MAX; place++) {
        if (is_guarded(place, key) && is_one_of(&guards[place][key].kept, generation))
            sim_fail("evicted: key %u, which is in a session of %s", key, sim_processes[place].name);
    }
    uint32_t put = oracle_placed_put(generation);
    if (put != UINT32_MAX && oracle_put_is_hard(put))
        sim_fail("evicted: put %u of key %u, which is pinned", put, key);
    if (put != UINT32_MAX && is_promised(put))
        sim_fail("evicted: put %u of key %u, which is pinned firmly", put, key);
}

static void on_evicted(const struct mc_core *core, const struct mc_object *object, struct mc_segment *segment,
                       uint32_t slot)
{
    uint32_t key;
    if (!sim_key_of(object, &key))
        return;
    const struct mc_group *group = mc_object_group(object);
    bool goes_alone = segment != NULL && mc_node_goes_first(mc_segment_node(segment, slot));
    if (segment != NULL) {
        check_soft(core, object, segment);
        check_first(core, object, segment, slot);
        check_replica(key, mc_node_generation(core, mc_segment_node(segment, slot)));
    } else {
        for (struct mc_replica at = mc_replica_first(core, object); at.segment != NULL; at = mc_replica_next(core, at))
            check_replica(key, generation_of(core, at));
    }
    if (group != NULL) {
        check_members(core, group);
        gone_group = goes_alone ? gone_group : group->id;
    }
}

/* The counter is raised just before what is evicted is dropped. */
static bool is_eviction(const struct mc_core *core)
{
    bool is_raised = core->statistics.evicted_bytes != evicted_before;
    evicted_before = core->statistics.evicted_bytes;
    return is_raised;
}

void sim_object_drop(struct mc_core *core, struct mc_object *object, struct mc_wait *wait);
void sim_object_drop(struct mc_core *core, struct mc_object *object, struct mc_wait *wait)
{
    uint32_t key;
    bool is_evicted = is_eviction(core);
    if (is_evicted && sim_key_of(object, &key)) {
        oracle_placements_evict(key, 0);
        on_evicted(core, object, NULL, 0);
        oracle_quota_evicts(core, object, UINT32_MAX);
    }
    if (!is_evicted)
        oracle_part_goes(core, object, wait != NULL);
    mc_object_drop(core, object, wait);
}

void sim_object_lose_replica(struct mc_core *core, struct mc_object *object, struct mc_segment *segment, uint32_t slot);
void sim_object_lose_replica(struct mc_core *core, struct mc_object *object, struct mc_segment *segment, uint32_t slot)
{
    uint32_t key;
    if (is_eviction(core) && sim_key_of(object, &key)) {
        oracle_placements_evict(key, mc_node_generation(core, mc_segment_node(segment, slot)));
        on_evicted(core, object, segment, slot);
        oracle_quota_evicts(core, object, segment->kind == MC_SEGMENT_MEMORY ? 1 : 0);
        left[key] = object->live == 1 ? core->epoch : left[key];
    }
    mc_object_lose_replica(core, object, segment, slot);
}

/* There are too many tombstones for one of its own: a replica that the master had not met is refused, and it has said
 * that such keys will be missing. */
static void look_what_is_left(const struct mc_core *core, uint32_t key)
{
    const struct mc_object *object = mc_objects_find(&core->objects, sim_key_full(key));
    if (object != NULL && object->tombstone != 0 && object->clearing > 0)
        return; /* not decided yet */
    if (object == NULL && left[key] == core->epoch && mc_tombstone_may_be(core, sim_key_full(key)))
        oracle_placements_evict(key, 0);
    left[key] = 0;
}

void oracle_evictions_begin(void)
{
    evicted_before = 0;
}

void oracle_core_rests(const struct mc_core *core)
{
    if (gone_group != 0 && core->groups.going == NULL && !sim_plan->has_quotas) { /* one may be owed to its tenant */
        for (uint32_t key = 0; key < sim_plan->keys; key++) {
            const struct mc_object *member = object_of(core, key);
            const struct mc_group *group = member == NULL ? NULL : mc_object_group(member);
            if (group != NULL && group->id == gone_group && may_go(core, member) &&
                (group->readers == 0 || core->now_ms >= group->lease_until_ms))
                sim_fail("evicted: a member of a group, and key %u of the same group was left", key);
        }
    }
    gone_group = core->groups.going == NULL ? 0 : gone_group;
    for (uint32_t key = 0; key < sim_plan->keys; key++)
        if (left[key] != 0)
            look_what_is_left(core, key);
    for (uint32_t key = 0; key < sim_plan->keys && sim_plan->has_groups; key++) {
        const struct mc_object *cell = mc_objects_find(&core->objects, sim_key_full(key));
        if (cell != NULL && cell->tombstone != 0 && cell->clearing > 0)
            held[key] = core->epoch;
    }
}

/* ---- what a master knows of what it offers ---- */

#define PIN_SHORTER_MS 3300u /* an owner tells whole seconds, rounded down, once more for a disk and back */
#define PIN_LONGER_MS 2500u  /* what is told is on its way; a put that keeps a pin takes its time */
#define FIRM_LONGER_MS 4000u /* an owner tells up to two seconds more, once more for a disk and back */

/* A soft pin has the deadline of its put under every master. */
static void check_pin(const struct mc_core *core, const struct mc_object *object, uint32_t key, uint32_t put)
{
    struct oracle_pin pin;
    uint32_t others = sim_plan->faults & ~(1u << SIM_FAULT_kill_master); /* clocks that are set, word that is late */
    if (others != 0 || sim_plan->want_gap_ms != 0 || !oracle_put_pin(put, &pin))
        return;
    uint64_t left_ms = mc_pin_left_ms(core, object), now_ms = sim_now_ns / SIM_MS;
    uint64_t behind_ms = sim_boot_ns(sim_master()) / SIM_MS - core->base_ms - core->now_ms; /* since its last input */
    left_ms = left_ms > behind_ms ? left_ms - behind_ms : 0;
    bool is_own = pin.ms > 0 || !pin.is_upsert;
    if (left_ms == 0 && pin.ms > PIN_SHORTER_MS && now_ms + PIN_SHORTER_MS < pin.start_ns / SIM_MS + pin.ms)
        sim_fail("pins: key %u is not pinned softly any more, and put %u wanted it for %llu ms", key, put,
                 (unsigned long long)pin.ms);
    if (left_ms > 0 && is_own && pin.ms == 0)
        sim_fail("pins: key %u is pinned softly, and put %u wanted no pin", key, put);
    if (left_ms > 0 && is_own && pin.end_ns != SIM_NEVER &&
        now_ms + left_ms >
            pin.end_ns / SIM_MS + pin.ms + PIN_LONGER_MS + (mc_object_is_firm(object) ? FIRM_LONGER_MS : 0))
        sim_fail("pins: key %u is pinned for %llu ms more, and put %u, which ended %llu ms ago, wanted %llu", key,
                 (unsigned long long)left_ms, put, (unsigned long long)(now_ms - pin.end_ns / SIM_MS),
                 (unsigned long long)pin.ms);
}

/* What is pinned firmly was within the bound when it was let in: it is, as long as nothing was promised by another
 * master, comes from a disk, or was for memory that has left. */
static void check_budget(const struct mc_core *core)
{
    uint64_t lent = 0, pinned = 0, gone = 0;
    for (uint32_t i = 1; i < core->segment_top; i++) {
        const struct mc_segment *segment = core->segments[i];
        bool is_there = segment != NULL && segment->state != MC_SEGMENT_GONE;
        gone += core->segment_uses[i] - is_there;
        if (!is_there || segment->kind != MC_SEGMENT_MEMORY)
            continue;
        lent += segment->capacity;
        for (uint32_t slot = 0; slot < segment->space.node_fresh; slot++) {
            const struct mc_node *node = mc_segment_node(segment, slot);
            const struct mc_object *object = node->state == MC_NODE_LIVE ? mc_node_object(node) : NULL;
            pinned += object != NULL && object->visible && mc_object_is_firm(object) ? node->size * MC_EXTENT_UNIT : 0;
        }
    }
    bool is_other = budget.epoch != core->epoch;
    budget.is_void = (!is_other && budget.is_void) || gone > (is_other ? 0 : budget.gone) ||
                     core->statistics.recovered_objects > 0 || core->statistics.promotion_done > 0;
    budget.epoch = core->epoch;
    budget.gone = gone;
    if (!budget.is_void && (double)pinned > (double)lent * core->config.firm_pin_ratio)
        sim_fail("pins: %llu bytes are pinned firmly, of %llu", (unsigned long long)pinned, (unsigned long long)lent);
}

void oracle_check_wishes(const struct mc_core *core)
{
    if (sim_plan->has_firm)
        check_budget(core);
    for (uint32_t key = 0; key < sim_plan->keys; key++) {
        const struct mc_object *object = object_of(core, key);
        if (object == NULL)
            continue;
        uint32_t put = oracle_placed_put(generation_of(core, mc_replica_first(core, object)));
        if (put != UINT32_MAX && oracle_put_is_hard(put) && !object->hard)
            sim_fail("pins: key %u is not pinned any more, and its value, of put %u, was", key, put);
        if (put != UINT32_MAX && is_promised(put) && !mc_object_is_firm(object))
            sim_fail("pins: key %u is not pinned firmly any more, and that was promised to put %u", key, put);
        if (put != UINT32_MAX && sim_plan->has_pins)
            check_pin(core, object, key, put);
        uint64_t group = mc_object_group_id(object);
        bool is_head = mc_object_is_head(object); /* then it is in the group of its pieces, as its puts name none */
        if (is_head ? !sim_plan->has_stripes || sim_group(key) != 0 || !mc_stripe_can_be(group)
                    : group != 0 && group != sim_group_full(key))
            sim_fail("groups: key %u is in another group than its puts have named", key);
        /* A cell that is held has no room for a group, and takes what an owner tells. */
        if (group == 0 && sim_group(key) != 0 && held[key] != core->epoch)
            sim_fail("groups: key %u is in no group any more", key);
    }
}
