/* Which disks a store node has, and how they are used: by its configuration, by the original's environment variables
 * (docs/disk.md has them all), or as the master says to who has none. */
#ifndef MC_CLIENT_DISKS_H
#define MC_CLIENT_DISKS_H

#include "mooncake.h"
#include "store/owner/owner.h"

#define MC_TOLD_PATH_MAX 768u /* bytes of a path that a master tells, with its end */

/* Of the master's --root_fs_dir; an empty path: it has said nothing. */
struct mc_disks_told {
    char path[MC_TOLD_PATH_MAX];
    uint64_t bytes; /* at most; 0: it does not say */
    bool keeps;     /* nothing is evicted there */
};

struct mc_disks { /* zeroed = none */
    struct mc_owner_disk_config list[MC_OWNER_DISKS_MAX];
    uint32_t count;
    char *text; /* to which the paths belong */
};
/* told counts where config->disk_paths is NULL; its directory is made, what it lies in is not. What does not answer by
 * until_ns (mc_clock_ns), or within half a second if it was not asked before, is not touched again. 0 or
 * MC_ERR_NO_MEMORY. */
int mc_disks_of(const struct mc_store_config *config, const struct mc_disks_told *told, uint64_t until_ns,
                struct mc_disks *disks);
void mc_disks_free(struct mc_disks *disks);

#endif
