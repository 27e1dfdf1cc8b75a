/* Registered memory of one engine: which ranges peers may reach, and who is reaching them now.
 *
 * Invariant: regions never overlap; a region is freed only when nothing holds it (in_flight == 0), and nothing new
 * takes hold of one that is leaving. Pure: the caller locks. */
#ifndef MC_TRANSFER_REGION_H
#define MC_TRANSFER_REGION_H

#include "gpu/gpu.h"
#include "mooncake_engine.h"

#include <stdatomic.h>

#define MC_REGION_SLOTS (1u << 17) /* regions that peers of this machine can see; further ones are reached over tcp */
#define MC_REGION_NO_SLOT UINT32_MAX
#define MC_REGION_LOCATION_MAX 32u

struct mc_rdma_memory;

struct mc_region {
    uint64_t address, length;              /* first: a range can be compared with a region */
    uint64_t generation;                   /* of this registration; never given twice */
    uint32_t slot;                         /* in the shared table, or MC_REGION_NO_SLOT */
    _Atomic uint32_t in_flight;            /* copies and connections that hold it; rises under the lock only */
    bool is_leaving;                       /* unregister has begun */
    bool is_managed;                       /* our own memory */
    struct mc_rdma_memory *rdma;           /* NULL: not reached by RDMA. The engine's, not the table's */
    int memory_fd;                         /* of which it consists, and that peers may map; -1: private memory */
    struct mc_gpu_place place;             /* whose memory it is */
    char location[MC_REGION_LOCATION_MAX]; /* as who registered it said, "cpu:0"; "": not said */
    struct mc_region *previous, *next;     /* in the order of registration */
};

struct mc_region_table { /* zeroed = empty */
    void *tree;
    struct mc_region *first, *last;
    size_t count;
    uint64_t generation, version; /* version: of the set of regions */
    uint32_t slots_used;
    uint32_t *free_slots;
    size_t free_count, free_capacity;
};

/* All or none. On success regions[i] (may be NULL) are the new ones. Negative enum mc_transfer_error. */
int mc_region_add(struct mc_region_table *table, const struct mc_transfer_range *ranges, size_t count,
                  struct mc_region **regions);
/* The region that begins there; NULL. */
struct mc_region *mc_region_at(const struct mc_region_table *table, uint64_t address);
/* The region that holds the whole range and is not leaving; NULL. A range of zero bytes lies nowhere. */
struct mc_region *mc_region_find(const struct mc_region_table *table, uint64_t address, uint64_t length);
/* The same, also of one that is leaving. */
struct mc_region *mc_region_find_any(const struct mc_region_table *table, uint64_t address, uint64_t length);
/* Takes its slot back: peers of this machine do not see it, and reach it over tcp. Right after it was added. */
void mc_region_hide(struct mc_region_table *table, struct mc_region *region);
/* Frees it. Nothing may hold it. */
void mc_region_remove(struct mc_region_table *table, struct mc_region *region);
void mc_region_table_free(struct mc_region_table *table);

#endif
