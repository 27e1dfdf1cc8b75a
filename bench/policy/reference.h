/* What policies are held against: the best there can be, and what the original does. Blocks are numbered from 0; all
 * need the same space. */
#ifndef MC_BENCH_REFERENCE_H
#define MC_BENCH_REFERENCE_H

#include <stdint.h>

struct mc_references {
    uint32_t *blocks;   /* in the order of their use */
    uint32_t *requests; /* the request of each */
    uint32_t count, block_count;
};

/* Hits of a cache of so many blocks. -1: memory is out. */
/* Belady's: knows the future, keeps what is used next; what is used later than all others is not taken in at all. */
int64_t mc_reference_belady(const struct mc_references *references, uint32_t capacity);
/* The original's: above 90 % used, 5 % of the objects go, those first whose lease ended first. A block that finds no
 * room is not stored. */
int64_t mc_reference_original(const struct mc_references *references, uint32_t capacity);

#endif
