/* A group of transfers that move together over one link: as many as the stage has room for. Objects pass through the
 * stage, where their checksums are taken; those whose parts are registered (rdma_buffers.h) are moved in place, their
 * checksums taken where they lie, and only what belongs to them but is not the caller's goes through the stage: block
 * table, key, slot.
 *
 * Invariant: after mc_rdma_group_run nothing of the group reads or writes the caller's memory. */
#ifndef MC_PATH_RDMA_GROUP_H
#define MC_PATH_RDMA_GROUP_H

#include "rdma/request.h"
#include "store/path/gather.h"
#include "store/path/rdma_buffers.h"
#include "store/path/rdma_stage.h"

#define MC_RDMA_GROUP_MAX 128u
#define MC_RDMA_SPANS_MAX 256u /* parts of the caller's that are moved in place */
#define MC_RDMA_REQUESTS_MAX (2 * MC_RDMA_GROUP_MAX + MC_RDMA_SPANS_MAX)

struct mc_rdma_remote;
struct mc_rdma_link;

struct mc_rdma_piece { /* of one transfer */
    struct mc_transfer *transfer;
    uint64_t offset;          /* of the extent in the segment */
    uint64_t start, end;      /* READ: of the object, wanted */
    uint64_t from, to;        /* READ: whole blocks around that; WRITE: what is written of the extent */
    uint64_t at, table, slot; /* in the stage */
    struct mc_cursor cursor;  /* READ: where it goes */
    bool is_split;            /* READ: the table does not lie right behind the blocks */
    bool is_direct;           /* in place: READ: from = start, to = end; WRITE: at: what lies behind the object */
    size_t span, span_count;  /* its parts, when it is */
};

struct mc_rdma_span { /* a part of the caller's memory, or of one */
    uint8_t *data;
    size_t length;
    struct mc_rdma_buffer *buffer; /* held by the group */
};

struct mc_rdma_group {
    struct mc_rdma_link *link;
    int control_fd; /* of the connection over which the link was set up: COMMITs go there */
    const struct mc_rdma_remote *remote;
    uint64_t data, index; /* where these begin in the owner's memory */
    struct mc_rdma_stages *stages;
    struct mc_rdma_buffers *buffers; /* NULL: nothing is moved in place */
    struct mc_motion *motion;
    struct mc_paths_counters *counters;
    bool is_unsure; /* bytes of a WRITE may arrive yet */

    struct mc_rdma_stage *stage; /* what follows is of one turn */
    size_t count, span_count, held_count, request_count;
    uint64_t bytes, moved; /* that it takes of the stage; that are moved */
    struct mc_rdma_piece pieces[MC_RDMA_GROUP_MAX];
    struct mc_rdma_span spans[MC_RDMA_SPANS_MAX];
    struct mc_rdma_buffer *held[MC_RDMA_SPANS_MAX];
    struct mc_rdma_request requests[MC_RDMA_REQUESTS_MAX];
};

struct mc_rdma_walk { /* through the transfers of a batch */
    struct mc_transfer **transfers;
    size_t count, next;
    struct mc_cursor cursor; /* in the parts of the next one */
    uint64_t start;          /* of it */
};
void mc_rdma_walk_to(struct mc_rdma_walk *walk, size_t next);

/* Fills it with transfers of one kind whose result is 0; what of a large READ does not fit goes on in the next one. */
void mc_rdma_group_fill(struct mc_rdma_group *group, struct mc_rdma_walk *walk, enum mc_transfer_kind kind);
/* Moves it; of what fails the results are set. 0: the link can be used for more; MC_ERR_TRANSFER_FAIL,
 * MC_ERR_RPC_TIMEOUT: it cannot. MC_ERR_NO_MEMORY: it can, but there is no stage, and nothing was moved. */
int mc_rdma_group_run(struct mc_rdma_group *group, enum mc_transfer_kind kind);

#endif
