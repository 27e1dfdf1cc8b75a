/* How far recovery is, for people who look: counts beside it, on which nothing depends. */
#ifndef MC_CORE_PROGRESS_H
#define MC_CORE_PROGRESS_H

#include "store/core/state.h"

/* The segment's contents are about to be told. Called before it is in core->recovering. */
void mc_progress_begin(struct mc_core *core, struct mc_segment *segment, uint32_t slot_top);
/* It is offered, and not in core->recovering any more. */
void mc_progress_done(struct mc_core *core, const struct mc_segment *segment);
/* A segment is not in core->recovering any more, offered or gone; the log hears of the last. */
void mc_progress_left(struct mc_core *core);
/* Says in the log now and then how far it is, where it takes long. */
void mc_progress_tick(struct mc_core *core);

#endif
