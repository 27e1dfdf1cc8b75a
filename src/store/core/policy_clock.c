/* CLOCK with two bits: in the order in which they came, but each use, up to three, lets one be passed over once more. A
 * use moves nothing. */
#include "store/core/policy.h"
#include "store/core/replica.h"
#include "store/core/state.h"

static void enter(struct mc_core *core, struct mc_segment *segment, uint32_t slot)
{
    (void)core;
    mc_segment_node(segment, slot)->uses = 0;
    mc_eviction_append(segment, slot, false);
}

static void use(struct mc_segment *segment, uint32_t slot)
{
    struct mc_node *node = mc_segment_node(segment, slot);
    if (node->uses < 3)
        node->uses++;
}

static void spare(struct mc_segment *segment, uint32_t slot)
{
    mc_segment_node(segment, slot)->uses--;
    mc_eviction_turn(segment, slot);
}

static uint32_t oldest(struct mc_core *core, struct mc_segment *segment)
{
    for (;;) {
        uint32_t slot = segment->normal.head;
        const struct mc_node *node = slot == MC_NODE_NONE ? NULL : mc_segment_node(segment, slot);
        if (node == NULL || node->uses == 0 || core->turns_left == 0)
            return slot;
        core->turns_left--;
        spare(segment, slot);
    }
}

const struct mc_eviction_policy mc_eviction_clock = {
    .name = "clock", .enter = enter, .use = use, .oldest = oldest, .spare = spare, .pass = mc_eviction_turn};
