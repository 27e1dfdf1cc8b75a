/* The life of a store, without what users may start in it: tasks and mounts. */
#ifndef MC_STORE_LIFE_H
#define MC_STORE_LIFE_H

#include "mooncake.h"

struct mc_numa_nodes;

/* mc_store_open, of one segment at most, on those NUMA nodes (NULL: as the environment says). */
int mc_life_begin(const struct mc_store_config *config, const struct mc_numa_nodes *nodes, struct mc_store **made);
/* No call comes in any more, and those that run are waited for. False: there is nothing to end, as in a forked child,
 * where all belongs to the parent; the little memory is left. NULL is allowed. */
bool mc_life_quiet(struct mc_store *store);
/* After it. */
void mc_life_end(struct mc_store *store);

#endif
