/* Fixed-size cells with a free list; see slab.h for what stays true of a freed cell. */
#include "store/core/slab.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK_HEADER 64u

void mc_slab_init(struct mc_slab *slab, uint32_t cell)
{
    mc_assert(cell >= 8 && cell % 8 == 0 && cell <= MC_SLAB_CHUNK - CHUNK_HEADER);
    *slab = (struct mc_slab){.cell = cell};
}

void mc_slab_destroy(struct mc_slab *slab)
{
    while (slab->chunks != NULL) {
        void *chunk = slab->chunks;
        memcpy(&slab->chunks, chunk, sizeof(void *));
        free(chunk);
    }
    *slab = (struct mc_slab){.cell = slab->cell};
}

void *mc_slab_allocate(struct mc_slab *slab)
{
    void *cell = slab->free;
    if (cell != NULL) {
        memcpy(&slab->free, cell, sizeof(void *));
        slab->in_use++;
        return cell;
    }
    if (slab->fresh == NULL || (size_t)(slab->fresh_end - slab->fresh) < slab->cell) {
        uint8_t *chunk = aligned_alloc(64, MC_SLAB_CHUNK);
        if (chunk == NULL)
            return NULL;
        memcpy(chunk, &slab->chunks, sizeof(void *));
        slab->chunks = chunk;
        slab->fresh = chunk + CHUNK_HEADER;
        slab->fresh_end = chunk + MC_SLAB_CHUNK;
    }
    cell = slab->fresh;
    slab->fresh += slab->cell;
    memset(cell, 0, slab->cell);
    slab->in_use++;
    return cell;
}

void mc_slab_release(struct mc_slab *slab, void *cell)
{
    mc_assert(slab->in_use > 0);
    memcpy(cell, &slab->free, sizeof(void *));
    slab->free = cell;
    slab->in_use--;
}
