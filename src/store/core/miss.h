/* Why keys are not there: what is remembered of those that go (ghost.h), how misses are counted by it, and what is told
 * of all that to the sample of uses (reuse.h). */
#ifndef MC_CORE_MISS_H
#define MC_CORE_MISS_H

#include "store/core/state.h"

/* A miss is looked into at the cost of a cache line: so many in a millisecond, and so many at once, are. Whole requests
 * are, or are not; when there are more, the reasons are counted of a part. */
#define MC_MISSES_MS 20u
#define MC_MISSES_AT_ONCE 4096u

/* For a look-up of a batch of keys. */
static inline void mc_miss_picks(const struct mc_core *core, struct mc_picks *picks)
{
    picks->below = core->reuse.below;
    picks->count = 0;
}

/* The object leaves memory to make room (core->leaving says for what); is_wanted: nobody has said that it may. */
void mc_miss_evicted(struct mc_core *core, const struct mc_object *object, bool was_proven, bool is_wanted);
/* Its last replica went (core->leaving says why), or its put has failed. */
void mc_miss_vanished(struct mc_core *core, const struct mc_object *object);
/* A put was answered by that code. */
void mc_miss_refused(struct mc_core *core, struct mc_span key, int32_t code);
/* A put of a key of the sample takes so many units. */
void mc_miss_put(struct mc_core *core, uint64_t hash, uint64_t units);

/* Somebody uses that stamp; zero: none. */
void mc_miss_stamp(struct mc_core *core, struct mc_id stamp);

/* May the misses of this request be looked into? Then each is counted. */
bool mc_misses_may_look(struct mc_core *core);
void mc_miss_count(struct mc_core *core, struct mc_span key);

#endif
