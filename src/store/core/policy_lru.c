/* LRU: the one goes that was not used for the longest time. */
#include "store/core/policy.h"
#include "store/core/replica.h"

static void enter(struct mc_core *core, struct mc_segment *segment, uint32_t slot)
{
    (void)core;
    mc_segment_node(segment, slot)->uses = 0;
    mc_eviction_append(segment, slot, false);
}

static uint32_t oldest(struct mc_core *core, struct mc_segment *segment)
{
    (void)core;
    return segment->normal.head;
}

const struct mc_eviction_policy mc_eviction_lru = {
    .name = "lru", .enter = enter, .use = mc_eviction_turn, .oldest = oldest, .pass = mc_eviction_turn};
