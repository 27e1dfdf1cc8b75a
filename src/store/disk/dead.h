/* A set of generations: what recovery needs and throws away. Open addressing, grows by doubling. */
#ifndef MC_DISK_DEAD_H
#define MC_DISK_DEAD_H

#include "store/disk/index.h"

struct mc_disk_dead {      /* zeroed = empty */
    uint64_t *generations; /* 0: free */
    uint64_t capacity, count;
};
/* 0 or MC_ERR_NO_MEMORY. generation is not 0. */
int mc_disk_dead_add(struct mc_disk_dead *dead, uint64_t generation);
bool mc_disk_dead_has(const struct mc_disk_dead *dead, uint64_t generation);
void mc_disk_dead_free(struct mc_disk_dead *dead);

#endif
