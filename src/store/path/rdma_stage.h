/* Memory of our own that is registered at the RDMA devices: an object is put together there before it is written, and
 * taken apart after it was read, with its checksums on the way. Stages are kept and used again; any thread. */
#ifndef MC_PATH_RDMA_STAGE_H
#define MC_PATH_RDMA_STAGE_H

#include "rdma/rdma.h"

#define MC_RDMA_STAGES_MAX 16u             /* kept idle */
#define MC_RDMA_STAGE_BYTES (9u << 20)     /* of the smallest; all sizes are multiples of it */
#define MC_RDMA_STAGE_KEPT_MAX (72u << 20) /* larger ones are given back after use */

struct mc_rdma_stages;

struct mc_rdma_stage {
    uint8_t *bytes;
    uint64_t size;
    struct mc_rdma_memory *memory;
    struct mc_rdma_stage *next;
};

struct mc_rdma_stages *mc_rdma_stages_create(struct mc_rdma *rdma); /* NULL: out of memory */
void mc_rdma_stages_free(struct mc_rdma_stages *stages);            /* none is in use; NULL is allowed */
/* Of at least so many bytes, or NULL; then none of that size is asked for within a second. */
struct mc_rdma_stage *mc_rdma_stage_take(struct mc_rdma_stages *stages, uint64_t size);
void mc_rdma_stage_give(struct mc_rdma_stages *stages, struct mc_rdma_stage *stage);

#endif
