/* Making room: replicas leave from the old end of their segment, one by one, only as many as allocations need.
 *
 * Ahead: once a segment is above its high watermark, every allocation evicts twice what it takes, until the lower mark
 * is reached; so space is free again (its slots cleared by the owner) before it is needed. For: an allocation that
 * found no hole evicts what it misses, twice as much each time it fails again, so a large object finds its hole after
 * few rounds. Both cost O(evicted) and are bounded for one item and for one message. */
#include "master/state.h"

/* The owner is still taking memory for it: space comes without eviction. A segment that stays smaller than it wants to
 * be is full at what it has. */
static bool populating(const struct mc_core *core, const struct mc_segment *segment)
{
    return segment->populated < segment->capacity && core->now_ms - segment->populated_ms < MC_POPULATING_MS;
}

uint64_t mc_segment_budget(const struct mc_core *core, const struct mc_segment *segment)
{
    uint64_t bytes = populating(core, segment) ? segment->capacity : segment->populated;
    uint64_t units = bytes / MC_EXTENT_UNIT;
    return units > segment->quarantine ? units - segment->quarantine : 0;
}

/* Is a reader at it? Or may the value hide an older one that would be seen again if it went? */
static bool is_kept(const struct mc_core *core, const struct mc_node *node)
{
    const struct mc_object *object = mc_node_object(node);
    bool in_use = object->readers > 0 && core->now_ms < object->lease_until_ms;
    return in_use || (node->base == 0 && mc_recover_hides(core)) || mc_key_hides(core, object);
}

static void rotate(struct mc_segment *segment, struct mc_node_list *list, uint32_t slot)
{
    mc_list_remove(segment, list, slot);
    mc_list_append(segment, list, slot);
}

/* The first of the list that is not kept; those it passes go to the young end. Each costs one of *skips. */
static uint32_t oldest(struct mc_core *core, struct mc_segment *segment, struct mc_node_list *list, unsigned *skips)
{
    for (uint32_t left = list->count; left > 0; left--) {
        uint32_t slot = list->head;
        if (!is_kept(core, mc_segment_node(segment, slot)))
            return slot;
        if (*skips == 0)
            return MC_NODE_NONE;
        --*skips;
        rotate(segment, list, slot);
    }
    return MC_NODE_NONE;
}

/* The slot to evict next, or MC_NODE_NONE. */
static uint32_t candidate(struct mc_core *core, struct mc_segment *segment, unsigned *skips)
{
    uint32_t soft = segment->soft.head;
    if (soft != MC_NODE_NONE) {
        /* A soft pin that has run out was not used for all its time: it is older than anything unpinned is likely to
         * be. */
        const struct mc_node *node = mc_segment_node(segment, soft);
        if (core->now_ms / 1000 >= mc_node_object(node)->soft_until_s && !is_kept(core, node))
            return soft;
    }
    uint32_t slot = oldest(core, segment, &segment->normal, skips);
    if (slot == MC_NODE_NONE && core->config.allow_evict_soft_pinned)
        slot = oldest(core, segment, &segment->soft, skips);
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

/* Evicts at least `units` if it can with `*count` evictions; what it evicted, *count lowered. */
static uint64_t evict(struct mc_core *core, struct mc_segment *segment, uint64_t units, uint32_t *count)
{
    unsigned skips = MC_EVICT_SKIPS_MAX;
    uint64_t evicted = 0;
    while (evicted<units && * count> 0) {
        uint32_t slot = candidate(core, segment, &skips);
        if (slot == MC_NODE_NONE)
            break;
        const struct mc_node *node = mc_segment_node(segment, slot);
        struct mc_object *object = mc_node_object(node);
        prefetch_next(core, segment, node->list_next);
        evicted += node->size;
        core->statistics.evicted_bytes += object->length;
        core->statistics.evicted_objects += object->live == 1;
        mc_object_drop_replica(core, object, segment, slot, NULL);
        --*count;
    }
    return evicted;
}

/* The same within what this message may still cause; the rest becomes debt. */
static void evict_now(struct mc_core *core, struct mc_segment *segment, uint64_t units)
{
    uint32_t count = core->evictions_left < MC_EVICT_ITEM_MAX ? core->evictions_left : MC_EVICT_ITEM_MAX;
    core->evictions_left -= count;
    core->statistics.eviction_attempts++;
    uint64_t evicted = evict(core, segment, units, &count);
    core->statistics.eviction_successes += evicted > 0;
    core->evictions_left += count;
    if (count > 0 || evicted >= units)
        return; /* done, or nothing more is evictable */
    segment->debt = units - evicted;
    if (mc_link_alone(&segment->busy))
        mc_link_append(&core->busy, &segment->busy);
}

void mc_evict_ahead(struct mc_core *core, struct mc_segment *segment, uint64_t units)
{
    double budget = (double)mc_segment_budget(core, segment);
    double high = core->config.eviction_high_watermark * budget;
    if ((double)(segment->used + segment->clearing) > high)
        segment->evicting = true;
    if (!segment->evicting)
        return;
    /* What is being cleared already is as good as free: only `used` counts against the lower mark, so nothing is
     * evicted twice for one need. */
    double low = high - core->config.eviction_ratio * budget;
    double excess = (double)segment->used - (low > 0 ? low : 0);
    if (excess <= 0) {
        segment->evicting = false;
        return;
    }
    evict_now(core, segment, (double)units * 2 < excess ? units * 2 : (uint64_t)excess);
}

static bool anything_evictable(const struct mc_core *core, const struct mc_segment *segment)
{
    return segment->normal.count > 0 || (segment->soft.count > 0 && core->config.allow_evict_soft_pinned);
}

bool mc_evict_for(struct mc_core *core, struct mc_segment *segment, uint64_t units)
{
    core->statistics.allocation_failures++;
    if (populating(core, segment))
        return true;
    if (units + segment->hard > segment->space.end)
        return false; /* nothing that may be evicted would help */
    if (segment->demand_ms != core->now_ms) {
        segment->demand_ms = core->now_ms;
        segment->demand = 0;
    }
    segment->demand += units;
    uint64_t goal = segment->demand;
    if (segment->clearing == 0 && segment->debt == 0) {
        /* All that was evicted before is free, and still there is no hole. */
        segment->want = segment->want_size >= units && segment->want > 0 ? segment->want * 2 : units;
        segment->want_size = units;
        goal = goal > segment->want ? goal : segment->want;
    }
    if (goal > segment->clearing + segment->debt)
        evict_now(core, segment, goal - segment->clearing);
    return anything_evictable(core, segment) || segment->clearing > 0 || segment->quarantine > 0 ||
           segment->granted > 0;
}

bool mc_evict_debt(struct mc_core *core, struct mc_segment *segment)
{
    if (segment->debt == 0)
        return false;
    uint32_t count = MC_SLICE_EVICTIONS;
    uint64_t evicted = evict(core, segment, segment->debt, &count);
    if (count > 0 || evicted >= segment->debt)
        segment->debt = 0;
    else
        segment->debt -= evicted;
    return segment->debt > 0;
}
