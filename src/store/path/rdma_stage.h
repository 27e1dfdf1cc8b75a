/* Memory of our own that is registered at the RDMA devices: pieces of objects are put together there before they are
 * written, and taken apart after they were read, with their checksums on the way. Stages are all of one size, kept and
 * used again. Any thread.
 *
 * They lie on the NUMA nodes near which devices are, as many on each: what moves over a device near the owner's memory
 * should not cross this machine.
 *
 * Invariant: no call registers one. A thread of their own makes them (mc-stages, which ends when none is wanted), at
 * first when the devices come, then when somebody finds none; who needs one waits for that, or for one that another
 * call gives back. */
#ifndef MC_PATH_RDMA_STAGE_H
#define MC_PATH_RDMA_STAGE_H

#include "rdma/rdma.h"

#define MC_RDMA_STAGES_FIRST 2u        /* made at once, on each node: a call has two, so that copies and wire overlap */
#define MC_RDMA_STAGES_MAX 32u         /* of one process; who finds all of them in use waits */
#define MC_RDMA_STAGE_BYTES (5u << 20) /* of each */

struct mc_rdma_stages;

struct mc_rdma_stage {
    uint8_t *bytes;
    int node; /* on which it was to lie; -1: anywhere */
    struct mc_rdma_memory *memory;
    struct mc_rdma_stage *next;
};

struct mc_rdma_stages *mc_rdma_stages_create(struct mc_rdma *rdma); /* NULL: out of memory */
void mc_rdma_stages_free(struct mc_rdma_stages *stages);            /* none is in use; NULL is allowed */
/* Has the first ones made, and waits for nothing. */
void mc_rdma_stages_prepare(struct mc_rdma_stages *stages);
/* One, on that node if one is idle there (-1: anywhere). NULL: there is none, and none could be registered just now (it
 * is tried again a second later); or all are in use, and none was given back by then. */
struct mc_rdma_stage *mc_rdma_stage_take(struct mc_rdma_stages *stages, int node, uint64_t deadline_ns);
/* One more, if one is idle: who has one must not wait for another, nor be before who waits for its first. NULL: none;
 * then one more is made meanwhile. */
struct mc_rdma_stage *mc_rdma_stage_take_idle(struct mc_rdma_stages *stages, int node);
void mc_rdma_stage_give(struct mc_rdma_stages *stages, struct mc_rdma_stage *stage);
/* Does somebody wait in mc_rdma_stage_take? Who has two gives one back. */
bool mc_rdma_stages_are_awaited(struct mc_rdma_stages *stages);
/* Is there any, in use or not? Has the first ones made if not, and waits for these until then. */
bool mc_rdma_stages_exist(struct mc_rdma_stages *stages, uint64_t deadline_ns);

#endif
