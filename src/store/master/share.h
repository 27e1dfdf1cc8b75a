/* How many connections come from each address, so that no host takes the places of all others. */
#ifndef MC_MASTER_SHARE_H
#define MC_MASTER_SHARE_H

#include "store/core/map.h"

/* Of an address; a host has its /64 of IPv6. Freed with its last connection. */
struct mc_share {
    uint64_t key;
    uint32_t count;
};

/* One more from that address: its share, or NULL when it has `limit` already, or memory is out. */
struct mc_share *mc_share_take(struct mc_map *shares, uint64_t key, uint32_t limit);
void mc_share_give(struct mc_map *shares, struct mc_share *share);

#endif
