/* Making room: replicas leave in the order of the policy (policy.h), one by one, only as many as allocations need.
 *
 * Ahead: once a segment was above its high mark it is full, and every allocation evicts twice what it takes, until the
 * lower mark is reached, then as much as it takes; so space is free again (its slots cleared by the owner) before it is
 * needed. The marks keep a small reserve, or what the user's settings say. For: an allocation that found no hole evicts
 * what it misses, twice as much each time it fails again, so a large object finds its hole after few rounds. Both cost
 * O(evicted) and are bounded for one item and for one message. Before all others go those of which a hint says so.
 *
 * The members of a group have one age, that of the youngest, and go together. A use is told only of the member that
 * was used: the others are when they are to go, so a group costs its users nothing. */
#include "store/core/account.h"
#include "store/core/blank.h"
#include "store/core/hint.h"
#include "store/core/limits.h"
#include "store/core/list.h"
#include "store/core/miss.h"
#include "store/core/offload.h"
#include "store/core/pin.h"
#include "store/core/place.h"
#include "store/core/recover.h"
#include "store/core/replica.h"
#include "store/core/segment.h"
#include "store/core/state.h"
#include "store/core/tombstone.h"

/* Is a reader at it, or at one of its group? */
static bool is_read(const struct mc_core *core, const struct mc_object *object)
{
    const struct mc_group *group = mc_object_group(object);
    if (group != NULL)
        return group->readers > 0 && core->now_ms < group->lease_until_ms;
    return object->readers > 0 && core->now_ms < object->lease_until_ms;
}

/* Is it being read? Or may the value hide an older one that would be seen again if it went? */
static bool is_kept(const struct mc_core *core, const struct mc_node *node)
{
    const struct mc_object *object = mc_node_object(node);
    return is_read(core, object) || (node->base == 0 && mc_recover_hides(core)) || mc_key_hides(core, object);
}

/* A member whose group was used since is as young. Beyond what one message may cost it is as old as it looks, so that
 * there is always something that can go. */
static bool is_turned(struct mc_core *core, struct mc_object *object)
{
    if (!mc_group_is_younger(object) || core->turns_left == 0)
        return false;
    core->turns_left--;
    mc_object_rejuvenate(core, object);
    if (mc_core_counts(core))
        mc_account_used(core, object);
    return true;
}

/* Those that are pinned softly go by the age of their last use, whatever the policy. */
static uint32_t oldest_soft(struct mc_core *core, struct mc_segment *segment)
{
    (void)core;
    return segment->soft.head;
}

static void pass_soft(struct mc_segment *segment, uint32_t slot)
{
    mc_list_remove(segment, &segment->soft, slot);
    mc_list_append(segment, &segment->soft, slot);
}

static const struct mc_eviction_policy soft_policy = {.oldest = oldest_soft, .pass = pass_soft};

/* Of which their users say that they are not wanted, in the order in which they say it. */
static uint32_t oldest_first(struct mc_core *core, struct mc_segment *segment)
{
    (void)core;
    return segment->first.head;
}

static void pass_first(struct mc_segment *segment, uint32_t slot)
{
    mc_eviction_turn(segment, slot);
}

static const struct mc_eviction_policy first_policy = {.oldest = oldest_first, .pass = pass_first};

struct passing { /* how many may be passed over in this step */
    unsigned skips, spares, owed;
};

/* On its way to a disk: it goes a little later, if anything else can, and is not lost. */
static bool is_spared(const struct mc_core *core, const struct mc_node *node, struct passing *passing)
{
    if (!mc_node_object(node)->moving || core->config.offload_force_evict || passing->spares == 0)
        return false;
    passing->spares--;
    return true;
}

/* Guaranteed to its tenant, and others want the room: it is as young as any. */
static bool is_owed(const struct mc_core *core, const struct mc_node *node, struct passing *passing)
{
    if (!mc_core_counts(core) || !mc_account_is_owed(core, mc_node_object(node)))
        return false;
    passing->owed -= passing->owed > 0;
    return true;
}

/* The first of `count` that is not kept, owed or spared; those it passes are not the next. */
static uint32_t oldest(struct mc_core *core, struct mc_segment *segment, const struct mc_eviction_policy *policy,
                       uint32_t count, struct passing *passing)
{
    while (count > 0) {
        uint32_t slot = policy->oldest(core, segment);
        if (slot == MC_NODE_NONE)
            break; /* what goes first does so no more when its group was used */
        const struct mc_node *node = mc_segment_node(segment, slot);
        if (policy == &first_policy && mc_hint_awaits_disk(core, node)) {
            if (passing->spares == 0)
                return MC_NODE_NONE;
            passing->spares--;
            mc_hint_store_first(core, segment, slot);
            continue;
        }
        if (!is_kept(core, node)) {
            if (is_turned(core, mc_node_object(node)))
                continue;
            if (!is_owed(core, node, passing) && !is_spared(core, node, passing))
                return slot;
            if (passing->owed == 0)
                return MC_NODE_NONE;
            count--;
            if (policy == &soft_policy)
                pass_soft(segment, slot);
            else
                mc_eviction_turn(segment, slot);
            continue;
        }
        if (passing->skips == 0)
            return MC_NODE_NONE;
        passing->skips--;
        count--;
        policy->pass(segment, slot);
    }
    return MC_NODE_NONE;
}

/* The first that is not kept, by the order of the lists: a policy that moves what is kept between two lists may come to
 * the same few again, and not to the one that can go. Of what goes first, too, what was spared on its way to a disk:
 * before a soft pin. */
static uint32_t any_that_may_go(const struct mc_core *core, const struct mc_segment *segment, struct passing *passing)
{
    const struct mc_node_list *lists[] = {&segment->normal, &segment->proven, &segment->first};
    for (unsigned i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        for (uint32_t slot = lists[i]->head; slot != MC_NODE_NONE; slot = mc_segment_node(segment, slot)->list_next) {
            const struct mc_node *node = mc_segment_node(segment, slot);
            if (!is_kept(core, node) && !mc_account_is_owed(core, mc_node_object(node)))
                return slot;
            if (passing->skips == 0)
                return MC_NODE_NONE;
            passing->skips--;
        }
    }
    return MC_NODE_NONE;
}

static bool may_go_soft(const struct mc_core *core)
{
    return core->config.allow_evict_soft_pinned && !core->spares_soft;
}

/* The slot to evict next, or MC_NODE_NONE. first: of those that go first, so that what cannot go of them does not keep
 * others from going. */
static uint32_t candidate(struct mc_core *core, struct mc_segment *segment, struct passing *first,
                          struct passing *passing)
{
    uint32_t slot = oldest(core, segment, &first_policy, segment->first.count, first);
    if (slot == MC_NODE_NONE)
        slot = oldest(core, segment, core->config.policy, segment->normal.count + segment->proven.count, passing);
    if (slot == MC_NODE_NONE)
        slot = any_that_may_go(core, segment, passing);
    if (slot == MC_NODE_NONE && may_go_soft(core))
        slot = oldest(core, segment, &soft_policy, segment->soft.count, passing);
    return slot;
}

/* Old objects are cold. While one goes, the next comes: its own line and that of its bucket; and the node after it. */
static void prefetch_next(const struct mc_core *core, const struct mc_segment *segment, uint32_t slot)
{
    if (slot == MC_NODE_NONE)
        return;
    const struct mc_node *node = mc_segment_node(segment, slot);
    mc_object_prefetch(&core->objects, mc_node_object(node));
    if (node->list_next != MC_NODE_NONE)
        __builtin_prefetch(mc_node_object(mc_segment_node(segment, node->list_next)));
}

/* ---- groups ---- */

/* May the member go with the others? */
static bool may_go(const struct mc_core *core, const struct mc_group *group, const struct mc_object *object)
{
    if (!object->visible || object->hard || (object->live == 1 && mc_object_on_disk(core, object).segment != NULL) ||
        (mc_core_counts(core) && mc_account_is_owed(core, object)))
        return false; /* of what lies on a disk alone nothing can go */
    if (object->soft && !(group->going_soft && core->config.allow_evict_soft_pinned))
        return false;
    for (struct mc_replica at = mc_replica_first(core, object); at.segment != NULL; at = mc_replica_next(core, at))
        if (at.segment->state != MC_SEGMENT_OK || is_kept(core, mc_segment_node(at.segment, at.slot)))
            return false; /* what its owner cannot be told to clear would hold the key */
    return true;
}

/* It leaves memory for room, and that replica is its last there. */
static void note_evicted(struct mc_core *core, const struct mc_object *object, struct mc_replica last, bool is_on_disk)
{
    bool was_proven = !object->soft && mc_segment_node(last.segment, last.slot)->proven;
    core->statistics.evicted_objects++;
    core->statistics.evictions[core->leaving == MC_GONE_EVICTED_GROUP   ? MC_CORE_EVICTION_GROUP
                               : core->leaving == MC_GONE_EVICTED_QUOTA ? MC_CORE_EVICTION_QUOTA
                                                                        : core->evicting]++;
    bool is_wanted = !mc_node_goes_first(mc_segment_node(last.segment, last.slot));
    if (!is_on_disk && is_wanted && mc_offload_expects(core, last.segment->member))
        core->statistics.offload_late++;
    mc_miss_evicted(core, object, was_proven, is_wanted);
}

/* What lies on a disk stays: the replicas in memory go. */
static void drop_from_memory(struct mc_core *core, struct mc_object *object)
{
    struct mc_replica at = mc_replica_first(core, object), next;
    for (; at.segment != NULL; at = next) {
        next = mc_replica_next(core, at);
        if (at.segment->kind == MC_SEGMENT_MEMORY)
            mc_object_lose_replica(core, object, at.segment, at.slot);
    }
}

/* Evicts it from all memory; the units that this frees in that segment. */
static uint64_t drop_whole(struct mc_core *core, struct mc_object *object, const struct mc_segment *segment)
{
    struct mc_replica last = {0};
    uint64_t units = 0;
    bool is_on_disk = mc_object_on_disk(core, object).segment != NULL;
    for (struct mc_replica at = mc_replica_first(core, object); at.segment != NULL; at = mc_replica_next(core, at)) {
        units += at.segment == segment ? mc_segment_node(at.segment, at.slot)->size : 0;
        last = at.segment->kind == MC_SEGMENT_MEMORY ? at : last;
    }
    mc_assert(last.segment != NULL); /* what is evicted lies in memory */
    core->statistics.evicted_bytes += object->length * (object->live - is_on_disk);
    note_evicted(core, object, last, is_on_disk);
    if (is_on_disk)
        drop_from_memory(core, object);
    else
        mc_object_drop(core, object, NULL);
    return units;
}

/* Looks at members of a group that is going, at most *count. */
static uint64_t evict_members(struct mc_core *core, struct mc_group *group, const struct mc_segment *segment,
                              uint32_t *count)
{
    uint64_t units = 0;
    enum mc_gone leaving = core->leaving;
    core->leaving = MC_GONE_EVICTED_GROUP;
    for (; group->going_left > 0 && group->first != NULL && *count > 0; group->going_left--, --*count) {
        struct mc_object *object = group->first;
        mc_group_turn(group); /* who stays is not met again */
        if (may_go(core, group, object))
            units += drop_whole(core, object, segment);
    }
    if (group->first == NULL)
        group->going_left = 0;
    core->leaving = leaving;
    return units;
}

/* Evicts one replica; what that frees in the segment. Of others, with owners that have not come to this master yet,
 * nothing is said: there may be room. */
static uint64_t drop_here(struct mc_core *core, struct mc_segment *segment, uint32_t slot)
{
    const struct mc_node *node = mc_segment_node(segment, slot);
    struct mc_object *object = mc_node_object(node);
    uint64_t units = node->size;
    core->statistics.evicted_bytes += object->length;
    bool is_on_disk = object->live > 1 && mc_object_on_disk(core, object).segment != NULL;
    if (object->live == 1u + is_on_disk)
        note_evicted(core, object, (struct mc_replica){segment, slot}, is_on_disk);
    mc_object_lose_replica(core, object, segment, slot);
    return units;
}

/* The member goes, and all of its group that may; what is more than *count is left to ticks. */
static uint64_t evict_group(struct mc_core *core, struct mc_group *group, struct mc_segment *segment, uint32_t slot,
                            uint32_t *count)
{
    struct mc_object *object = mc_node_object(mc_segment_node(segment, slot));
    group->going_soft = object->soft;
    mc_group_go(&core->groups, group);
    uint64_t units = may_go(core, group, object) ? drop_whole(core, object, segment) : drop_here(core, segment, slot);
    --*count;
    units += evict_members(core, group, segment, count);
    if (group->going_left == 0 && core->groups.going == group)
        mc_groups_gone(&core->groups);
    return units;
}

bool mc_evict_groups(struct mc_core *core)
{
    uint32_t count = MC_SLICE_EVICTIONS;
    while (core->groups.going != NULL && count > 0) {
        struct mc_group *group = core->groups.going;
        (void)evict_members(core, group, NULL, &count);
        if (group->going_left == 0)
            mc_groups_gone(&core->groups);
    }
    return core->groups.going != NULL;
}

/* ---- among a tenant's own ---- */

enum going { GOES_NEVER, GOES_LATER, GOES };

/* May it go for another of its tenant? */
static enum going goes_for_own(const struct mc_core *core, const struct mc_object *object, bool soft)
{
    if (object->hard || (object->soft && !soft))
        return GOES_NEVER;
    if (!object->visible) /* it is being put */
        return GOES_LATER;
    for (struct mc_replica at = mc_replica_first(core, object); at.segment != NULL; at = mc_replica_next(core, at))
        if (at.segment->kind == MC_SEGMENT_MEMORY &&
            (at.segment->state != MC_SEGMENT_OK || is_kept(core, mc_segment_node(at.segment, at.slot))))
            return GOES_LATER;
    return GOES;
}

/* With its group, if it is in one and nobody has said of it alone that it may go. */
static void evict_one_own(struct mc_core *core, struct mc_object *object, uint32_t *count)
{
    struct mc_group *group = mc_object_group(object);
    struct mc_replica at = mc_replica_first(core, object);
    while (at.segment != NULL && at.segment->kind != MC_SEGMENT_MEMORY)
        at = mc_replica_next(core, at);
    mc_assert(at.segment != NULL); /* one lies in memory: it is in the list */
    if (group != NULL && !mc_hint_is_first(core, object)) {
        (void)evict_group(core, group, at.segment, at.slot, count);
    } else {
        (void)drop_whole(core, object, NULL);
        --*count;
    }
}

static bool is_above(const struct mc_account *account, uint64_t bytes, uint64_t objects)
{
    return account->oldest != NULL && (account->bytes > bytes || account->objects > objects);
}

bool mc_evict_own(struct mc_core *core, struct mc_account *account, const struct mc_object *but, uint64_t bytes,
                  uint64_t objects)
{
    uint32_t count = core->evictions_left < MC_EVICT_ITEM_MAX ? core->evictions_left : MC_EVICT_ITEM_MAX;
    uint64_t had_bytes = account->bytes, had_objects = account->objects;
    bool any_later = false;
    if (!is_above(account, bytes, objects))
        return true;
    (void)mc_pins_expire(core);
    core->evictions_left -= count;
    core->leaving = MC_GONE_EVICTED_QUOTA;
    mc_account_puts(core, mc_object_key(account->oldest)); /* it is not kept from itself */
    for (int soft = 0; soft <= may_go_soft(core); soft++) {
        uint64_t left = account->objects < MC_EVICT_OWN_MAX ? account->objects : MC_EVICT_OWN_MAX;
        while (left > 0 && count > 0 && is_above(account, bytes, objects)) {
            struct mc_object *object = account->oldest;
            enum going going = object == but ? GOES_NEVER : goes_for_own(core, object, soft != 0);
            if (going == GOES && is_turned(core, object))
                continue;
            left--;
            any_later |= going == GOES_LATER;
            if (going == GOES)
                evict_one_own(core, object, &count);
            else
                mc_account_turn(object);
        }
    }
    core->leaving = MC_GONE_LOST;
    core->evictions_left += count;
    account->evicted_bytes += had_bytes - account->bytes;
    account->evicted_objects += had_objects - account->objects;
    return (count > 0 && !any_later) || !is_above(account, bytes, objects);
}

/* ---- making room ---- */

/* Evicts at least `units` if it can with `*count` evictions; what it evicted, *count lowered. is_owed: all that could
 * go is guaranteed to others. */
static uint64_t evict(struct mc_core *core, struct mc_segment *segment, uint64_t units, uint32_t *count, bool *is_owed)
{
    struct passing passing = {MC_EVICT_SKIPS_MAX, MC_EVICT_SPARES_MAX, MC_EVICT_OWED_MAX}, first = passing;
    uint64_t evicted = 0;
    (void)mc_pins_expire(core);
    core->leaving = MC_GONE_EVICTED;
    while (*count > 0 && evicted < units) {
        uint32_t slot = candidate(core, segment, &first, &passing);
        if (slot == MC_NODE_NONE) {
            *is_owed = first.owed > 0 && passing.owed > 0 && first.owed + passing.owed < 2 * MC_EVICT_OWED_MAX;
            break;
        }
        const struct mc_node *node = mc_segment_node(segment, slot);
        struct mc_group *group = mc_object_group(mc_node_object(node));
        prefetch_next(core, segment, node->list_next);
        if (group != NULL && !mc_node_goes_first(node)) {
            evicted += evict_group(core, group, segment, slot, count);
        } else { /* of a member that goes first nothing is said of the others */
            evicted += drop_here(core, segment, slot);
            --*count;
        }
    }
    core->leaving = MC_GONE_LOST;
    return evicted;
}

/* The same within what this message may still cause; the rest becomes debt. */
static uint64_t evict_now(struct mc_core *core, struct mc_segment *segment, uint64_t units, enum mc_core_eviction what,
                          bool *is_owed)
{
    uint32_t count = core->evictions_left < MC_EVICT_ITEM_MAX ? core->evictions_left : MC_EVICT_ITEM_MAX;
    core->evictions_left -= count;
    core->statistics.eviction_attempts++;
    core->evicting = what;
    uint64_t evicted = evict(core, segment, units, &count, is_owed);
    core->statistics.eviction_successes += evicted > 0;
    core->evictions_left += count;
    if (count > 0 || evicted >= units || core->spares_soft)
        return evicted; /* done, or nothing more is evictable; what a hint wants is asked for again */
    segment->debt = units - evicted;
    segment->debt_for = (uint8_t)what;
    if (mc_link_alone(&segment->busy))
        mc_link_append(&core->busy, &segment->busy);
    return evicted;
}

void mc_evict_ahead(struct mc_core *core, struct mc_segment *segment, uint64_t units)
{
    struct mc_marks marks = mc_segment_marks(core, segment);
    if (segment->used + segment->clearing > marks.high && !segment->full) {
        segment->full = true;
        mc_segment_update_room(core, segment);
    }
    mc_offload_mark(core, segment);
    if (!segment->full)
        return;
    /* What is being cleared already is as good as free: only `used` counts against the lower mark, so nothing is
     * evicted twice for one need. */
    uint64_t excess = segment->used > marks.low ? segment->used - marks.low : 0;
    bool is_owed;
    if (excess > 0)
        (void)evict_now(core, segment, units * 2 < excess ? units * 2 : excess, MC_CORE_EVICTION_WATERMARK, &is_owed);
}

static bool anything_evictable(const struct mc_core *core, const struct mc_segment *segment)
{
    return mc_segment_ages(segment) || (segment->soft.count > 0 && core->config.allow_evict_soft_pinned);
}

bool mc_evict_for(struct mc_core *core, struct mc_segment *segment, uint64_t units, enum mc_core_eviction what)
{
    core->statistics.allocation_failures++;
    if (mc_segment_is_populating(core, segment))
        return true;
    if (units + segment->hard > segment->space.end)
        return false; /* nothing that may be evicted would help */
    if (segment->demand_ms != core->now_ms) {
        segment->demand_ms = core->now_ms;
        segment->demand = 0;
    }
    segment->demand += units;
    /* Who comes again finds none of them here; if they were not enough, or not where the hole is, it evicts then. */
    if (mc_blank_reclaim(core, segment) > 0 && segment->space.free + segment->clearing >= segment->demand)
        return true;
    uint64_t goal = segment->demand, want = segment->want;
    if (segment->clearing == 0 && segment->debt == 0) {
        /* All that was evicted before is free, and still there is no hole. */
        segment->want = segment->want_size >= units && segment->want > 0 ? segment->want * 2 : units;
        segment->want_size = units;
        goal = goal > segment->want ? goal : segment->want;
    }
    mc_offload_mark(core, segment);
    bool is_owed = false;
    if (goal > segment->clearing + segment->debt &&
        evict_now(core, segment, goal - segment->clearing, what, &is_owed) == 0)
        segment->want = want; /* nothing may go just now: that was no try */
    return (!is_owed && anything_evictable(core, segment)) || segment->clearing > 0 || segment->quarantine > 0 ||
           segment->granted > 0 || segment->moves.count > 0;
}

void mc_evict_for_hint(struct mc_core *core, struct mc_segment *segment, uint64_t units)
{
    bool is_owed = false;
    uint64_t comes = segment->space.free + segment->clearing;
    if (!mc_segment_is_populating(core, segment) && comes < units)
        (void)evict_now(core, segment, units - comes, MC_CORE_EVICTION_HINT, &is_owed);
}

bool mc_evict_debt(struct mc_core *core, struct mc_segment *segment)
{
    if (segment->debt == 0)
        return false;
    uint32_t count = MC_SLICE_EVICTIONS;
    bool is_owed;
    core->evicting = segment->debt_for;
    uint64_t evicted = evict(core, segment, segment->debt, &count, &is_owed);
    if (count > 0 || evicted >= segment->debt)
        segment->debt = 0;
    else
        segment->debt -= evicted;
    return segment->debt > 0;
}
