/* Where a replica goes: to a preferred segment, else (if the writer wants that) to one of its own machine, else to the
 * freer of two drawn at random, else to whatever of the next hundred has a hole. A segment is drawn as often as its
 * capacity is of all, and the freer is the one of which the larger part is free: so new objects come to each by its
 * size, and what it holds grows as old as elsewhere before it is evicted. A full segment (evict.c) is used only
 * when no other one will do, and one that got more than twice its share of what was placed lately only when nobody
 * else has or can make room: a node that comes empty is not to be where everything new is. The machine of another
 * replica of the object is used only when no other one has or can make room. */
#include "store/core/blank.h"
#include "store/core/limits.h"
#include "store/core/place.h"
#include "store/core/replica.h"
#include "store/core/segment.h"
#include "store/core/state.h"

#define EVICT_TRIES 2u /* full segments that are evicted from for one replica */

void mc_placement_prefer(struct mc_core *core, struct mc_placement *placement, struct mc_span name)
{
    struct mc_segment *segment = mc_segment_by_name(core, name);
    for (; segment != NULL && placement->preferred_count < MC_PREFERRED_MAX;
         segment = segment->aliases[MC_ALIAS_NAME].next)
        placement->preferred[placement->preferred_count++] = segment;
}

void mc_placement_keep_near(struct mc_core *core, struct mc_placement *placement, struct mc_id host)
{
    struct mc_segment *segment = mc_segment_by_host(core, host);
    placement->together = true;
    for (; segment != NULL && placement->near_count < MC_PREFERRED_MAX; segment = segment->aliases[MC_ALIAS_HOST].next)
        if (mc_id_equal(segment->host, host))
            placement->near[placement->near_count++] = segment;
}

struct place_wish {
    struct mc_placement *placement;
    uint32_t pick_stamp;
    uint64_t units;
    unsigned evictions_left;
    bool fair;  /* only segments that keep within their share */
    bool apart; /* only those of machines that have no other replica of the object */
};

/* ---- machines ---- */

static bool is_apart(const struct mc_placement *placement, const struct mc_segment *segment)
{
    for (uint32_t i = 0; i < placement->host_count; i++)
        if (mc_id_equal(placement->hosts[i], segment->host))
            return false;
    return true;
}

static void note_host(struct mc_placement *placement, const struct mc_segment *segment)
{
    bool is_known = !mc_id_is_zero(segment->host);
    if (is_known && is_apart(placement, segment) && placement->host_count < MC_REPLICA_COUNT_MAX)
        placement->hosts[placement->host_count++] = segment->host;
}

/* ---- shares ---- */

/* Halves what was counted once for every second since. */
static void decay(uint64_t *recent, uint64_t *since_s, uint64_t now_s)
{
    uint64_t halvings = now_s - *since_s;
    *recent = halvings < 64 ? *recent >> halvings : 0;
    *since_s = now_s;
}

static bool within_share(struct mc_core *core, const struct place_wish *wish, struct mc_segment *segment)
{
    uint64_t slack = segment->capacity / MC_SHARE_SLACK_PART;
    decay(&segment->recent, &segment->recent_s, core->now_ms / 1000);
    decay(&core->recent, &core->recent_s, core->now_ms / 1000);
    slack = slack > MC_SHARE_SLACK ? slack : MC_SHARE_SLACK;
    double share = (double)segment->capacity / (double)core->ok.capacity;
    uint64_t slack_units = slack / MC_EXTENT_UNIT;
    double most = 2 * share * (double)(core->recent + wish->units) + (double)slack_units;
    return (double)(segment->recent + wish->units) <= most;
}

void mc_place_count(struct mc_core *core, struct mc_segment *segment, uint64_t units)
{
    decay(&segment->recent, &segment->recent_s, core->now_ms / 1000);
    decay(&core->recent, &core->recent_s, core->now_ms / 1000);
    segment->recent += units;
    core->recent += units;
}

/* ---- choice ---- */

static bool keeps_promises(const struct mc_core *core, struct mc_placement *placement, const struct mc_segment *segment)
{
    bool keeps = !placement->firm.is_wanted || mc_firm_goes_to(core, &placement->firm, segment);
    placement->firm.is_short |= !keeps;
    return keeps;
}

/* Pieces go around. */
static bool is_next(const struct mc_placement *placement, const struct mc_segment *segment)
{
    return !placement->is_spread || segment->spread_stamp != placement->avoid_stamp ||
           segment->spread_count <= placement->spread_level;
}

static void count_spread(const struct mc_placement *placement, struct mc_segment *segment)
{
    if (segment->spread_stamp != placement->avoid_stamp)
        segment->spread_count = 0;
    segment->spread_stamp = placement->avoid_stamp;
    segment->spread_count++;
}

static bool eligible(struct mc_core *core, const struct place_wish *wish, struct mc_segment *segment)
{
    return segment->state == MC_SEGMENT_OK && !segment->leaving &&
           segment->avoid_stamp != wish->placement->avoid_stamp && segment->pick_stamp != wish->pick_stamp &&
           wish->units <= (segment->capacity + MC_EXTENT_SLACK) / MC_EXTENT_UNIT &&
           (!wish->apart || is_apart(wish->placement, segment)) && is_next(wish->placement, segment) &&
           keeps_promises(core, wish->placement, segment) && (!wish->fair || within_share(core, wish, segment));
}

/* Evictions from a segment that is half empty surprise: its objects are smaller than the index was made for. */
static void say_index_full(struct mc_core *core, struct mc_segment *segment)
{
    const struct mc_space *space = &segment->space;
    if (segment->said_index_full || space->node_count < space->node_limit || space->free < space->end / 2)
        return;
    segment->said_index_full = true;
    mc_core_log(core, MC_CORE_LOG_WARNING,
                "segment %u (%s) holds as many objects as it can, %u, in less than half of its memory; old objects "
                "make room. Objects this small need a larger segment, or to be put together",
                segment->number, segment->name, segment->slot_count);
}

/* The slot, or MC_NODE_NONE. */
static uint32_t node_allocate(struct mc_core *core, const struct place_wish *wish, struct mc_segment *segment)
{
    uint32_t slot = mc_space_allocate(&segment->space, wish->units);
    if (slot == MC_NODE_NONE) {
        say_index_full(core, segment);
        return slot;
    }
    segment->pick_stamp = wish->pick_stamp;
    segment->used += mc_segment_node(segment, slot)->size;
    segment->granted++;
    mc_place_count(core, segment, wish->units);
    note_host(wish->placement, segment);
    if (wish->units >= segment->want_size)
        segment->want = segment->want_size = 0;
    mc_segment_update_room(core, segment);
    return slot;
}

/* The free part of its capacity, in 2^-20. Those that are full evict for what they take: they are all the same. */
static uint64_t room(const struct mc_segment *segment)
{
    if (segment->full)
        return 0;
    return (segment->space.free << 20) / (segment->capacity / MC_EXTENT_UNIT);
}

/* It stays below its watermark with this on it. */
static bool has_room(const struct mc_core *core, const struct place_wish *wish, const struct mc_segment *segment)
{
    return segment->used + segment->clearing + wish->units <= mc_segment_marks(core, segment).high;
}

/* Tries the freer of two at random, then a walk. With `evict`, segments above their watermark are taken too, and those
 * that have no hole are made to have one later. */
static struct mc_segment *draw(struct mc_core *core, struct place_wish *wish, const struct mc_segment_set *set,
                               bool evict, uint32_t *slot)
{
    struct mc_segment **array = set->items;
    uint32_t count = set->count;
    if (count == 0)
        return NULL;
    uint32_t start = mc_set_draw(set, mc_core_random(core)), second = mc_set_draw(set, mc_core_random(core));
    if (eligible(core, wish, array[second]) &&
        (!eligible(core, wish, array[start]) || room(array[second]) > room(array[start])))
        start = second;
    uint32_t walk = count < MC_WALK_MAX ? count : MC_WALK_MAX;
    for (uint32_t i = 0; i < walk; i++) {
        struct mc_segment *segment = array[(start + i) % count];
        if (!eligible(core, wish, segment) || (!evict && !has_room(core, wish, segment)))
            continue;
        *slot = node_allocate(core, wish, segment);
        if (*slot != MC_NODE_NONE)
            return segment;
        if (evict && wish->evictions_left > 0) {
            wish->evictions_left--;
            wish->placement->hopeful |= mc_evict_for(core, segment, wish->units, MC_CORE_EVICTION_PUT);
        } else {
            /* Not asked to make room, but it may have some by itself. */
            wish->placement->hopeful |= segment->clearing > 0 || mc_segment_ages(segment);
        }
    }
    return NULL;
}

/* The first of them that has a hole, from `start` on; roomy: and stays below its watermark. */
static struct mc_segment *take_first(struct mc_core *core, const struct place_wish *wish,
                                     struct mc_segment *const *array, uint32_t count, uint32_t start, bool roomy,
                                     uint32_t *slot)
{
    for (uint32_t i = 0; i < count; i++) {
        struct mc_segment *segment = array[(start + i) % count];
        if (!eligible(core, wish, segment) || (roomy && !has_room(core, wish, segment)))
            continue;
        *slot = node_allocate(core, wish, segment);
        if (*slot != MC_NODE_NONE)
            return segment;
    }
    return NULL;
}

/* Where the writer wants it; a wish of the user's is beyond shares. */
static struct mc_segment *take_wished(struct mc_core *core, const struct place_wish *wish, uint32_t *slot)
{
    struct mc_placement *placement = wish->placement;
    struct mc_segment *segment = take_first(core, wish, &placement->first, placement->first != NULL, 0, false, slot);
    if (segment == NULL)
        segment = take_first(core, wish, placement->preferred, placement->preferred_count, 0, false, slot);
    uint32_t near = placement->near_count;
    uint32_t start = segment == NULL && near > 1 ? (uint32_t)(mc_core_random(core) % near) : 0;
    if (segment == NULL)
        segment = take_first(core, wish, placement->near, near, start, true, slot);
    if (segment == NULL)
        segment = take_first(core, wish, placement->near, near, start, false, slot);
    return segment;
}

/* Anywhere: below the watermarks, else with eviction. */
static struct mc_segment *take_any(struct mc_core *core, struct place_wish *wish, uint32_t *slot)
{
    struct mc_segment *segment = draw(core, wish, &core->roomy, false, slot);
    wish->placement->hopeful = false; /* what only lacks a hole below its watermark is no hope */
    return segment != NULL ? segment : draw(core, wish, &core->ok, true, slot);
}

/* Among those that keep within their share, else among all. */
static struct mc_segment *take_fair(struct mc_core *core, struct place_wish *wish, uint32_t *slot)
{
    wish->fair = true;
    struct mc_segment *segment = take_any(core, wish, slot);
    wish->fair = false;
    return segment != NULL || wish->placement->hopeful ? segment : take_any(core, wish, slot);
}

static struct mc_segment *place(struct mc_core *core, struct mc_placement *placement, uint32_t pick_stamp,
                                uint64_t units, uint32_t *slot)
{
    struct place_wish wish = {
        .placement = placement, .pick_stamp = pick_stamp, .units = units, .evictions_left = EVICT_TRIES};
    if (placement->hosts_stamp != pick_stamp)
        placement->host_count = 0;
    placement->hosts_stamp = pick_stamp;
    struct mc_segment *segment = take_wished(core, &wish, slot);
    bool hopeful = placement->hopeful;
    placement->hopeful = false;
    wish.apart = placement->host_count > 0 && placement->host_count < core->segments_by_alias[MC_ALIAS_HOST].count;
    if (segment == NULL)
        segment = take_fair(core, &wish, slot);
    if (segment == NULL && wish.apart && !placement->hopeful) {
        wish.apart = false;
        segment = take_fair(core, &wish, slot);
    }
    placement->hopeful |= hopeful;
    if (segment != NULL)
        mc_evict_ahead(core, segment, mc_segment_node(segment, *slot)->size);
    if (placement->together && placement->first == NULL)
        placement->first = segment;
    return segment;
}

struct mc_segment *mc_place(struct mc_core *core, struct mc_placement *placement, uint32_t pick_stamp, uint64_t units,
                            uint32_t *slot)
{
    struct mc_segment *segment = place(core, placement, pick_stamp, units, slot);
    if (!placement->is_spread)
        return segment;
    if (segment == NULL) { /* all that can take one have one: the next round begins, or anywhere will do */
        placement->spread_level++;
        segment = place(core, placement, pick_stamp, units, slot);
    }
    if (segment == NULL) {
        placement->is_spread = false;
        segment = place(core, placement, pick_stamp, units, slot);
        placement->is_spread = true;
    }
    if (segment != NULL)
        count_spread(placement, segment);
    return segment;
}
