/* Which disks a store node has. */
#ifndef MC_CLIENT_DISKS_H
#define MC_CLIENT_DISKS_H

#include "mooncake.h"
#include "store/owner/owner.h"

struct mc_disks { /* zeroed = none */
    struct mc_owner_disk_config list[MC_OWNER_DISKS_MAX];
    uint32_t count;
    char *text; /* to which the paths belong */
};
/* 0 or MC_ERR_NO_MEMORY. */
int mc_disks_of(const struct mc_store_config *config, struct mc_disks *disks);
void mc_disks_free(struct mc_disks *disks);

#endif
