/* The master's core in this process, between a client and an owner that have no memory: requests of a trace reach it as
 * frames, and it places and evicts as in a cluster. */
#ifndef MC_BENCH_POOL_H
#define MC_BENCH_POOL_H

#include <stdbool.h>
#include <stdint.h>

struct mc_pool;

struct mc_pool_settings {
    const char *policy;
    uint32_t blocks, segments; /* blocks: that fit into all segments together */
    uint64_t block_bytes;
    double high_watermark, ratio;
    /* One disk for all segments; 0 blocks: there is none. When it is full the oldest goes, or, if it keeps what was
     * read, is written once more if it was read since. */
    uint32_t disk_blocks;
    bool disk_on_evict, disk_keeps_hit;
    uint32_t disk_stores; /* that it does for one call; 0: all that it is told */
    bool promotion;
    uint32_t promotion_threshold;
};

struct mc_pool_counts { /* blocks; late: evicted before the disk had them */
    uint64_t disk_hits, disk_writes, late;
    double expected
        [3]; /* hit ratio that the core's curve says of an LRU of half the memory, of all, and of twice as much */
};

/* NULL: no such policy, or memory is out. */
struct mc_pool *mc_pool_open(const struct mc_pool_settings *settings);
void mc_pool_close(struct mc_pool *pool);
/* One request: looks up all blocks, then puts those that are missing. The hits, or -1 when the core did what it must
 * not. */
int64_t mc_pool_request(struct mc_pool *pool, const uint64_t *blocks, uint32_t count);
struct mc_pool_counts mc_pool_counts(const struct mc_pool *pool);

#endif
