/* A group of pieces of transfers that move together over one link: as many as its stage has room for. Bytes pass
 * through the stage, where their checksums are taken; parts that are registered (rdma_buffers.h) are moved in place,
 * their checksums taken where they lie, and only what belongs to them but is not the caller's goes through the stage:
 * block table, key, slot. Here groups are filled, their bytes gathered and delivered; rdma_flow.c moves them. */
#ifndef MC_PATH_RDMA_GROUP_H
#define MC_PATH_RDMA_GROUP_H

#include "rdma/request.h"
#include "store/path/gather.h"
#include "store/path/rdma_buffers.h"
#include "store/path/rdma_stage.h"

#define MC_RDMA_GROUP_MAX 128u
#define MC_RDMA_SPANS_MAX 256u /* parts of the caller's that are moved in place */
#define MC_RDMA_REQUESTS_MAX (2 * MC_RDMA_GROUP_MAX + MC_RDMA_SPANS_MAX)
/* Two are a group, about: while one group is on the wire another is copied and summed, so that it is small beside a
 * large object, and large beside a round trip. */
#define MC_RDMA_PIECE_BYTES (2u << 20)

struct mc_rdma_remote;

struct mc_rdma_piece { /* of one transfer */
    struct mc_transfer *transfer;
    uint64_t offset;     /* of the extent in the segment */
    uint64_t start, end; /* of the object: READ: what is wanted; WRITE: what is written */
    uint64_t from, to;   /* READ: whole blocks around that; WRITE: of the extent, with what lies behind the object */
    uint64_t at, table, slot; /* in the stage */
    struct mc_cursor cursor;  /* where it goes to, or comes from */
    bool is_split;            /* READ: the table does not lie right behind the blocks */
    bool is_direct;           /* in place: READ: from = start, to = end; WRITE: at: what lies behind the object */
    size_t span, span_count;  /* its parts, when it is */
};

struct mc_rdma_span { /* a part of the caller's memory, or of one */
    uint8_t *data;
    size_t length;
    struct mc_rdma_buffer *buffer; /* held by the group */
};

struct mc_rdma_walk { /* through the transfers of a batch */
    struct mc_transfer **transfers;
    size_t count, next;
    struct mc_cursor cursor; /* in the parts of the next one */
    uint64_t start;          /* of it */
};
void mc_rdma_walk_to(struct mc_rdma_walk *walk, size_t next);

struct mc_rdma_route { /* what all groups of a batch have in common */
    const struct mc_rdma_remote *remote;
    uint64_t data, index;            /* where these begin in the owner's memory */
    struct mc_rdma_buffers *buffers; /* NULL: nothing is moved in place */
    struct mc_motion *motion;
    struct mc_paths_counters *counters;
    bool is_staged_out; /* what is longer than a stage has failed with MC_ERR_NO_MEMORY */
    uint32_t *sums;     /* WRITE: of the object of which a piece was gathered last */
};

struct mc_rdma_group {
    struct mc_rdma_route *route;
    struct mc_rdma_stage *stage;
    size_t count, span_count, held_count, request_count, commit_count;
    uint64_t bytes, moved; /* that it takes of the stage; of objects, that are moved */
    int result;            /* of its requests */
    struct mc_rdma_piece pieces[MC_RDMA_GROUP_MAX];
    struct mc_rdma_span spans[MC_RDMA_SPANS_MAX];
    struct mc_rdma_buffer *held[MC_RDMA_SPANS_MAX];
    struct mc_rdma_request requests[MC_RDMA_REQUESTS_MAX];
    struct mc_wire_commit_item commits[MC_RDMA_GROUP_MAX];
};

/* Fills it with pieces of transfers of one kind whose result is 0; what of a large one does not fit goes on in the next
 * group. The group holds the buffers of its parts until mc_rdma_group_leave. */
void mc_rdma_group_fill(struct mc_rdma_group *group, struct mc_rdma_walk *walk, enum mc_transfer_kind kind);
void mc_rdma_group_leave(struct mc_rdma_group *group);
/* Every transfer of it without an error gets that one. */
void mc_rdma_group_fail(struct mc_rdma_group *group, int code);
void mc_rdma_piece_end(struct mc_rdma_piece *piece, int code);

/* Adds requests to group->requests. False: the owner has not told of such memory. */
bool mc_rdma_ask_bytes(struct mc_rdma_group *group, const struct mc_rdma_piece *piece); /* READ */
bool mc_rdma_ask_slot(struct mc_rdma_group *group, const struct mc_rdma_piece *piece);

/* READ, once bytes and slot are here. Is the slot that of the wanted replica? 0; MC_ERR_REPLICA_IS_GONE;
 * MC_ERR_CHECKSUM_MISMATCH: its layout is not. */
int mc_rdma_piece_slot(const struct mc_rdma_group *group, const struct mc_rdma_piece *piece, struct mc_slot *slot);
/* To the caller, or compares it there. What the slot says lies elsewhere than it was read from is gone. */
int mc_rdma_piece_take(struct mc_rdma_group *group, struct mc_rdma_piece *piece);
/* Places a piece that was to be read in place at the beginning of the stage instead. False: there is no room. */
bool mc_rdma_piece_unplace(struct mc_rdma_group *group, struct mc_rdma_piece *piece);

/* WRITE: takes the sums, copies what must be copied, and asks for all of it; commits are those of the objects that end
 * in this group. What a source refuses fails alone: no more of it is sent. Negative: all fail. */
int mc_rdma_group_gather(struct mc_rdma_group *group);

#endif
