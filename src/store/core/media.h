/* On which media a value is, for who keeps an index of it (output's `medium`). Mostly nobody does, and then it is to
 * cost nothing: asked before all other calls. */
#ifndef MC_CORE_MEDIA_H
#define MC_CORE_MEDIA_H

#include "store/core/segment.h"
#include "store/core/state.h"

static inline bool mc_core_tells_media(const struct mc_core *core)
{
    return __builtin_expect(core->output.medium != NULL, 0);
}
/* It is visible now. */
void mc_media_shown(struct mc_core *core, const struct mc_object *object);
/* It is visible and has got one more live replica, there; or has lost one that was live. */
void mc_media_joined(struct mc_core *core, const struct mc_object *object, const struct mc_segment *segment);
void mc_media_parted(struct mc_core *core, const struct mc_object *object, const struct mc_segment *segment);

#endif
