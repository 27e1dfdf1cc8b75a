/* A batch over one link, as a pipeline of groups (rdma_group.h), each with a stage of its own: while one is on the wire
 * the next is copied and summed before it is written, or the one before after it was read. There are two of them; with
 * one stage only (no other was idle, or it went to a call that had none) each waits for the wire.
 *
 * Invariants: one group is on the wire at a time. A piece is taken apart only after its slot was read behind its bytes;
 * an object is committed only after all its pieces have arrived. After mc_rdma_flow_run nothing of the batch reads or
 * writes the caller's memory. */
#ifndef MC_PATH_RDMA_FLOW_H
#define MC_PATH_RDMA_FLOW_H

#include "rdma/link.h"
#include "store/path/rdma_group.h"

struct mc_rdma_flow {
    struct mc_rdma_link *link;
    int control_fd; /* of the connection over which the link was set up: COMMITs go there */
    struct mc_rdma_stages *stages;
    struct mc_rdma_route route;
    bool has_other_way; /* what finds no stage may go by tcp: it is not waited for by all means */
    bool is_unsure;     /* bytes of a WRITE may arrive yet */
    bool is_unstaged;   /* out: results of MC_ERR_NO_MEMORY say that there was no stage, or none so large */
    struct mc_rdma_group *groups[2]; /* the second: NULL when there is no stage for it */
    struct mc_rdma_group *aloft;     /* on the wire; NULL: none */
    struct mc_rdma_flight flight;
    struct mc_rdma_run move;
};

/* Moves what has a result of 0, in this thread, by the deadline; sets the results. True: the link can be used for more.
 * The flow is filled in up to is_unsure. */
bool mc_rdma_flow_run(struct mc_rdma_flow *flow, struct mc_transfer **transfers, size_t count);

#endif
