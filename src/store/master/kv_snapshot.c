/* A snapshot of all keys, a slice of the core's table at a time. */
#include "store/master/kv_snapshot.h"

#define BUCKETS_PER_SLICE 1024u /* that the core looks at for one question, */
#define OBJECTS_PER_SLICE 512u  /* until it has found so many */

static void visit_one(void *context, struct mc_span key, unsigned media)
{
    struct mc_kv_slice *slice = context;
    slice->found++;
    if (!slice->visit(slice->context, key, media))
        slice->is_full = true;
}

void mc_kv_slice_read(struct mc_core *core, void *argument)
{
    struct mc_kv_slice *slice = argument;
    struct mc_kv_mark mark;
    mc_kv_events_mark(slice->events, &mark);
    if (slice->cursor.epoch == 0)
        slice->cursor = (struct mc_kv_cursor){.epoch = mark.epoch, .after = mark.last};
    slice->is_stale = slice->cursor.epoch != mark.epoch;
    slice->found = 0;
    for (unsigned i = 0; i < BUCKETS_PER_SLICE && !slice->is_stale && !slice->is_last && !slice->is_full &&
                         slice->found < OBJECTS_PER_SLICE;
         i++)
        slice->is_last = !mc_core_media(core, &slice->cursor.at, 1, visit_one, slice);
}
