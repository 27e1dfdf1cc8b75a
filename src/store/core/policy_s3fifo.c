/* S3-FIFO whose small queue is as long as it should be. What is new, "fresh", lines up in `normal`; when its turn
 * comes, it goes, unless it was used meanwhile: then it moves on to `proven`, where a use lets one be passed over once.
 * A key that went and comes back soon (ghost.h) enters `proven` at once: that it is wanted again was seen, only too
 * late.
 *
 * Three quarters of the blocks of a conversation are never used again, and they need not push out the rest. But its
 * next turn comes after minutes: the queue that the authors of S3-FIFO propose, a tenth, is too short for that, and
 * where few documents are read over and over, one that is long enough for conversations is too long. So it follows what
 * goes too early, as in ARC: a fresh one that comes back makes it longer, a proven one shorter, by as many objects as
 * one of the other kind goes for each of its own. */
#include "store/core/policy.h"
#include "store/core/replica.h"
#include "store/core/state.h"

/* Part of the objects that are fresh, above which they go first: how far it may follow. Measured with `mooncake_bench
 * policy`, as is the part that it begins with (MC_FRESH_PART). */
#define FRESH_LEAST 0.1
#define FRESH_MOST 0.7

static void follow(struct mc_core *core, bool was_proven)
{
    const struct mc_ghosts *ghosts = &core->ghosts;
    double mine = 1 + (double)(was_proven ? ghosts->proven : ghosts->fresh);
    double other = 1 + (double)(was_proven ? ghosts->fresh : ghosts->proven);
    double step = (other > mine ? other / mine : 1) / (double)(core->visible_count + 1);
    double part = core->fresh_part + (was_proven ? -step : step);
    core->fresh_part = part < FRESH_LEAST ? FRESH_LEAST : part > FRESH_MOST ? FRESH_MOST : part;
}

static void enter(struct mc_core *core, struct mc_segment *segment, uint32_t slot)
{
    struct mc_node *node = mc_segment_node(segment, slot);
    struct mc_ghost ghost = {.why = MC_GONE_NONE};
    if (core->ghosts.bucket_count > 0)
        ghost = mc_ghosts_find(&core->ghosts, core->now_ms, mc_object_hash(&core->objects, mc_node_object(node)));
    bool was_evicted = mc_gone_is_evicted(ghost.why) && !ghost.is_unwanted;
    if (was_evicted)
        follow(core, ghost.is_proven);
    node->uses = 0;
    mc_eviction_append(segment, slot, was_evicted);
}

/* One bit: what was popular once should not outlive that for long. */
static void use(struct mc_segment *segment, uint32_t slot)
{
    mc_segment_node(segment, slot)->uses = 1;
}

static uint64_t before_proven(const struct mc_core *core, const struct mc_segment *segment)
{
    double fresh = segment->normal.count, most = (fresh + segment->proven.count) * core->fresh_part;
    return fresh > most ? (uint64_t)(fresh - most) : 0;
}

static struct mc_node_list *next_list(const struct mc_core *core, struct mc_segment *segment)
{
    double fresh = segment->normal.count, all = fresh + segment->proven.count;
    return segment->proven.count == 0 || fresh > all * core->fresh_part ? &segment->normal : &segment->proven;
}

static void spare(struct mc_segment *segment, uint32_t slot)
{
    mc_segment_node(segment, slot)->uses = 0;
    mc_eviction_leave(segment, slot);
    mc_eviction_append(segment, slot, true);
}

static uint32_t oldest(struct mc_core *core, struct mc_segment *segment)
{
    for (;;) {
        const struct mc_node_list *list = next_list(core, segment);
        uint32_t slot = list->head;
        const struct mc_node *node = slot == MC_NODE_NONE ? NULL : mc_segment_node(segment, slot);
        if (node == NULL || node->uses == 0 || core->turns_left == 0)
            return slot;
        core->turns_left--;
        spare(segment, slot);
    }
}

/* It changes the list, so that however many may not go in one, those in the other have their turn. */
static void pass(struct mc_segment *segment, uint32_t slot)
{
    struct mc_node *node = mc_segment_node(segment, slot);
    bool proven = node->proven;
    node->uses = proven; /* so it will be back */
    mc_eviction_leave(segment, slot);
    mc_eviction_append(segment, slot, !proven);
}

const struct mc_eviction_policy mc_eviction_s3fifo = {.name = "s3fifo",
                                                      .enter = enter,
                                                      .use = use,
                                                      .oldest = oldest,
                                                      .spare = spare,
                                                      .before_proven = before_proven,
                                                      .pass = pass};
