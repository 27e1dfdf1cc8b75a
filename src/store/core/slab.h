/* Cells of one size, from chunks that are kept until the slab is destroyed. Type-stable: a freed cell never becomes
 * memory of another kind, so a stale pointer may be read as long as the slab lives; the free list uses only the first 8
 * bytes of a freed cell. */
#ifndef MC_CORE_SLAB_H
#define MC_CORE_SLAB_H

#include <stddef.h>
#include <stdint.h>

/* Bytes; the first 64 are the chunk's header, so cells of 64 bytes are cache lines */
#define MC_SLAB_CHUNK (64u << 10)

struct mc_slab {
    uint32_t cell; /* bytes of one, multiple of 8 */
    void *free;
    uint8_t *fresh, *fresh_end; /* never used part of the newest chunk */
    void *chunks;
    size_t in_use; /* cells */
};

void mc_slab_init(struct mc_slab *slab, uint32_t cell);
void mc_slab_destroy(struct mc_slab *slab);
/* A cell: all zero the first time, else as its last user left it except for the first 8 bytes. NULL when memory is out.
 */
void *mc_slab_allocate(struct mc_slab *slab);
void mc_slab_release(struct mc_slab *slab, void *cell);

#endif
