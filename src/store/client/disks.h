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
    bool is_told; /* the directory that the master names */
    char *text;   /* to which the paths belong */
};
/* Their paths only; no disk is touched. told counts where config->disk_paths is NULL. 0 or MC_ERR_NO_MEMORY. */
int mc_disks_of(const struct mc_store_config *config, const struct mc_disks_told *told, struct mc_disks *disks);
/* How they are used, with the arguments as before. answers: of each, whether it may be touched (env/reach.h). The
 * directory that the master names is made, what it lies in is not. */
void mc_disks_settle(const struct mc_store_config *config, const struct mc_disks_told *told, const bool *answers,
                     struct mc_disks *disks);
void mc_disks_free(struct mc_disks *disks);

#endif
