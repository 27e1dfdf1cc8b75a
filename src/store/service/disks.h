/* What a store node tells of its disks: text for Prometheus, out of numbers; no I/O. */
#ifndef MC_SERVICE_DISKS_H
#define MC_SERVICE_DISKS_H

#include "base/bytes.h"
#include "mooncake.h"

#define MC_SERVICE_DISKS_MAX 16u

/* The original's mooncake_ssd_*, of all disks together, and ours, of each. */
void mc_disks_metrics(struct mc_buffer *out, const struct mc_store_disk *disks, size_t count);
/* Lines for /metrics/summary; nothing without a disk. */
void mc_disks_summary(struct mc_buffer *out, const struct mc_store_disk *disks, size_t count);

#endif
