/* Memory that a service lends on request, besides its own segment: each mount is a store of its own, which leaves the
 * pool when it is closed. Thread-safe. */
#ifndef MC_SERVICE_MOUNTS_H
#define MC_SERVICE_MOUNTS_H

#include "mooncake.h"

#define MC_MOUNTS_MAX 64
#define MC_MOUNT_ID_MAX 48 /* bytes of "u64-u64" with its zero */

struct mc_mounts;

struct mc_mounts *mc_mounts_create(void);
/* Closes all. NULL is allowed. */
void mc_mounts_destroy(struct mc_mounts *mounts);

/* 0, or a negative error. On success id and *size (bytes lent) are filled in. */
int mc_mounts_add(struct mc_mounts *mounts, const struct mc_store_config *config, char id[MC_MOUNT_ID_MAX],
                  uint64_t *size);
/* grace_s > 0: it stays readable so long, and is then closed by mc_mounts_tick. MC_ERR_INVALID_PARAMS for an id that is
 * not mounted or already leaving, MC_ERR_INTERNAL_ERROR for one that is none (as the original answers). */
int mc_mounts_remove(struct mc_mounts *mounts, const char *id, uint64_t grace_s);
/* Closes those whose grace is over. */
void mc_mounts_tick(struct mc_mounts *mounts);

#endif
