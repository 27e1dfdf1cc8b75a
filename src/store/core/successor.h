/* Objects that are to replace the value of their key, by key: when one does, or the value goes otherwise, the others
 * end. A successor is in no group, so its membership links those of one bucket. */
#ifndef MC_CORE_SUCCESSOR_H
#define MC_CORE_SUCCESSOR_H

#include "store/core/object.h"

struct mc_core;

/* It has a membership. */
void mc_successors_add(struct mc_core *core, struct mc_object *successor);
/* Before it is freed. */
void mc_successors_remove(struct mc_core *core, struct mc_object *successor);
/* Those of the object's key; NULL: there is none, or no further one. */
struct mc_object *mc_successor_first(const struct mc_core *core, const struct mc_object *object);
struct mc_object *mc_successor_next(const struct mc_object *successor);

#endif
