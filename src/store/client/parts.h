/* A store whose memory is several segments, each on NUMA nodes of its own (MC_STORE_NUMA_SEGMENTS). The first is the
 * store's, each of the others that of a store that only lends, as one that is mounted later is. */
#ifndef MC_STORE_PARTS_H
#define MC_STORE_PARTS_H

#include "mooncake.h"

/* mc_store_open. A part that cannot be lent costs a line of the log; the first one fails it. */
int mc_parts_begin(const struct mc_store_config *config, struct mc_store **made);

#endif
