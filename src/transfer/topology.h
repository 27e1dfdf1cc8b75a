/* The machine's RDMA devices, as JSON. */
#ifndef MC_TRANSFER_TOPOLOGY_H
#define MC_TRANSFER_TOPOLOGY_H

#include "mooncake_engine.h"

/* root: where sysfs is ("/sys"). The text is the caller's to free(). */
char *mc_topology_read(const char *root, const char *filter);

#endif
