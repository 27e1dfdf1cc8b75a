/* Which values are on which media: those of their live replicas, whether or not the owners of these answer now. */
#include "store/core/media.h"

#include "store/core/replica.h"
#include "store/core/stripe.h"

static enum mc_core_medium medium_of(const struct mc_segment *segment)
{
    return segment->kind == MC_SEGMENT_DISK ? MC_MEDIUM_DISK : MC_MEDIUM_MEMORY;
}

static void count_live(const struct mc_core *core, const struct mc_object *object, unsigned counts[2])
{
    counts[MC_MEDIUM_MEMORY] = counts[MC_MEDIUM_DISK] = 0;
    for (struct mc_replica at = mc_replica_first(core, object); at.segment != NULL; at = mc_replica_next(core, at))
        if (mc_segment_node(at.segment, at.slot)->state == MC_NODE_LIVE)
            counts[medium_of(at.segment)]++;
}

static void tell(struct mc_core *core, const struct mc_object *object, enum mc_core_medium medium, bool is_there)
{
    if (mc_object_is_piece(object))
        return; /* what users know is its head */
    core->output.medium(core->output.context, mc_object_key(object), medium, is_there);
}

void mc_media_shown(struct mc_core *core, const struct mc_object *object)
{
    unsigned counts[2];
    count_live(core, object, counts);
    for (unsigned medium = MC_MEDIUM_MEMORY; medium <= MC_MEDIUM_DISK; medium++)
        if (counts[medium] > 0)
            tell(core, object, medium, true);
}

void mc_media_joined(struct mc_core *core, const struct mc_object *object, const struct mc_segment *segment)
{
    unsigned counts[2];
    count_live(core, object, counts);
    if (counts[medium_of(segment)] == 1)
        tell(core, object, medium_of(segment), true);
}

void mc_media_parted(struct mc_core *core, const struct mc_object *object, const struct mc_segment *segment)
{
    unsigned counts[2];
    count_live(core, object, counts);
    if (counts[medium_of(segment)] == 0)
        tell(core, object, medium_of(segment), false);
}

struct visit {
    const struct mc_core *core;
    void (*function)(void *context, struct mc_span key, unsigned media);
    void *context;
};

static void visit_object(const struct mc_object *object, void *context)
{
    const struct visit *visit = context;
    unsigned counts[2];
    if (!object->visible || mc_object_is_piece(object))
        return;
    count_live(visit->core, object, counts);
    visit->function(visit->context, mc_object_key(object),
                    (counts[MC_MEDIUM_MEMORY] > 0 ? 1u << MC_MEDIUM_MEMORY : 0) |
                        (counts[MC_MEDIUM_DISK] > 0 ? 1u << MC_MEDIUM_DISK : 0));
}

bool mc_core_media(const struct mc_core *core, uint64_t *cursor, size_t buckets,
                   void (*visit)(void *context, struct mc_span key, unsigned media), void *context)
{
    struct visit what = {core, visit, context};
    bool has_more = true;
    for (size_t i = 0; i < buckets && has_more; i++)
        has_more = mc_objects_walk(&core->objects, cursor, visit_object, &what);
    return has_more;
}
