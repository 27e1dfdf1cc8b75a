/* What is evicted before long is stored on a disk of its owner ahead, so that it goes at once when its turn comes.
 *
 * A mark runs through each list of what ages (list.h), before the end at which a policy takes: how far is counted in
 * what is used of the segment and would have to go, were it fuller by MC_AHEAD. So it begins before the segment is
 * full. Each list has as much before its mark as would go if all did from there, as soon as anything does. What was
 * used is passed over by the mark as the policy would when its turn had come, so that what is before the mark does go,
 * unless it is used just then.
 *
 * The mark stands still while the queues of the disks are as full as they may be. What is evicted meanwhile is lost,
 * and counted: no put waits for a disk. What is on its way to a disk is passed over by evictions (evict.c), so that of
 * a queue that is longer than the time that is left something comes to an end. */
#include "store/core/limits.h"
#include "store/core/list.h"
#include "store/core/offload.h"
#include "store/core/replica.h"
#include "store/core/segment.h"
#include "store/core/state.h"

/* Looks at the one at the mark; false when no disk takes anything now. */
static bool mark_advance(struct mc_core *core, struct mc_segment *segment, struct mc_node_list *list)
{
    const struct mc_node *node = mc_segment_node(segment, list->mark);
    struct mc_object *object = mc_node_object(node);
    if (node->list_next != MC_NODE_NONE)
        __builtin_prefetch(mc_node_object(mc_segment_node(segment, node->list_next)));
    if (node->uses > 0 && list != &segment->soft) {
        core->config.policy->spare(segment, list->mark);
        return true;
    }
    if (!mc_group_is_younger(object) && !mc_offload_ahead(core, segment->member, object))
        return false;
    mc_list_advance(segment, list);
    return true;
}

/* Until so much is ahead, or the steps are used up; false when no disk takes anything now. */
static bool mark_run(struct mc_core *core, struct mc_segment *segment, struct mc_node_list *list, uint64_t wanted,
                     unsigned *steps)
{
    for (; list->ahead < wanted && list->mark != MC_NODE_NONE && *steps > 0; --*steps)
        if (!mark_advance(core, segment, list))
            return false;
    return true;
}

/* About, if all are of one size. */
static uint64_t units_before_proven(const struct mc_core *core, const struct mc_segment *segment)
{
    uint32_t count = segment->normal.count + segment->proven.count;
    if (core->config.policy->before_proven == NULL || count == 0)
        return 0;
    return core->config.policy->before_proven(core, segment) * (segment->used / count);
}

void mc_offload_mark(struct mc_core *core, struct mc_segment *segment)
{
    if (core->config.offload != MC_OFFLOAD_ON_EVICT || segment->kind != MC_SEGMENT_MEMORY ||
        segment->state != MC_SEGMENT_OK)
        return;
    struct mc_marks marks = mc_segment_marks(core, segment);
    uint64_t part = marks.high / MC_AHEAD_PART, most = MC_AHEAD / MC_EXTENT_UNIT;
    uint64_t full = segment->used + (part < most ? part : most);
    uint64_t wanted = full > marks.low ? full - marks.low : 0;
    unsigned steps = MC_AHEAD_STEPS;
    if (!mark_run(core, segment, &segment->normal, wanted, &steps))
        return;
    uint64_t first = units_before_proven(core, segment);
    if (!mark_run(core, segment, &segment->proven, wanted > first ? wanted - first : 0, &steps))
        return;
    (void)mark_run(core, segment, &segment->soft, wanted, &steps);
}
