/* One connection of transport `tcp` while a batch runs on it, in the thread that runs the batch.
 *
 * Out: frames and the caller's bytes are queued as one vector of parts, sent, and only then more is queued; so the
 * checksum of a piece is taken just before the kernel copies it. In: payload goes straight into the caller's parts,
 * frames and small payloads through `in`. Invariant: the caller's memory is touched only inside mc_tcp_lane_send and
 * mc_tcp_lane_receive. */
#ifndef MC_ENGINE_TCP_LANE_H
#define MC_ENGINE_TCP_LANE_H

#include "engine/gather.h"
#include "engine/path.h"

#define MC_TCP_PIECES_MAX 32u           /* READs under way on one lane */
#define MC_TCP_WINDOW_BYTES (2u << 20)  /* bytes of READs under way on one lane */
#define MC_TCP_PIECE_BYTES (512u << 10) /* longer reads are asked for in such pieces */
#define MC_TCP_CHUNK_BYTES (128u << 10) /* sent or received before the checksum is taken */
#define MC_TCP_TURN_BYTES (4u << 20)    /* moved on one lane before the others have their turn */
#define MC_TCP_PARTS_MAX 128u
#define MC_TCP_HEADS_BYTES (16u << 10)
#define MC_TCP_IN_BYTES (32u << 10)
#define MC_TCP_DIRECT_BYTES (8u << 10) /* payloads from here on are not taken along with their header */

struct mc_tcp_job { /* one transfer of the batch */
    struct mc_transfer *transfer;
    uint32_t *table;         /* more than one block: READ: as received; WRITE: to be sent */
    uint32_t *sums;          /* READ of more than one block: of what was received */
    struct mc_cursor cursor; /* READ: where the next piece goes; WRITE: what is queued next */
    uint64_t next, end;      /* READ: still to be asked for, whole blocks; WRITE: data still to be queued */
    uint32_t crc, table_crc; /* READ: as the slot has it, of the only block; WRITE: running */
    uint32_t sum;            /* READ: of the only block as received */
    uint32_t pieces;         /* READs under way */
    uint8_t shift;
    bool has_reply;
    bool done;
    int code; /* first failure */
    struct mc_tcp_job *next_queued;
};

struct mc_tcp_piece { /* one READ under way: [start, end) of the object, of which the caller wants [want_start,
                         want_end) */
    struct mc_tcp_job *job;
    uint64_t start, end, want_start, want_end, request_id;
    struct mc_cursor cursor;
    bool with_table;
};

enum mc_tcp_expect { MC_TCP_EXPECT_REPLY, MC_TCP_EXPECT_TABLE, MC_TCP_EXPECT_PAYLOAD, MC_TCP_EXPECT_END };

struct mc_tcp_run { /* a batch */
    struct mc_engine *engine;
    struct mc_motion *motion;
    struct mc_scratch *scratch;
    struct mc_tcp_job *jobs;
    size_t count, next, open;   /* next: not yet begun; open: not yet done */
    struct mc_tcp_job *reading; /* has pieces left to ask for */
};

struct mc_tcp_lane {
    struct mc_tcp_lane *next;
    int fd, fd_place;
    struct mc_spin spin;
    uint64_t idle_since_ns, progress_ns, request_id;
    bool readable; /* something may be there to receive */

    uint8_t heads[MC_TCP_HEADS_BYTES]; /* frames among the parts */
    size_t heads_length;
    struct iovec parts[MC_TCP_PARTS_MAX];
    size_t part_first, part_count;
    uint64_t queued_bytes;
    struct mc_tcp_job *writing; /* its data is being queued */
    struct mc_tcp_job *queued;  /* writes whose last byte is among the parts */

    struct mc_tcp_piece pieces[MC_TCP_PIECES_MAX];
    uint32_t piece_first, piece_count;
    uint64_t piece_bytes;
    enum mc_tcp_expect expect; /* of the first piece */
    uint64_t at;               /* in the object: next byte of payload */
    uint32_t table_at, table_length;
    bool table_kept;
    uint32_t crc; /* of the block at `at`, so far */
    uint8_t in[MC_TCP_IN_BYTES];
    size_t in_start, in_length;
};

/* Connects and says hello. 0 or negative. */
int mc_tcp_lane_open(struct mc_engine *engine, const struct mc_endpoint *endpoint, const struct mc_patience *patience,
                     struct mc_tcp_lane **lane);
/* abort: what the kernel still holds is not sent. */
void mc_tcp_lane_close(struct mc_engine *engine, struct mc_tcp_lane *lane, bool abort);

/* Queues and sends while the socket takes it. 1: wants to go on at once; 0: nothing more to do or socket full;
 * negative: broken. */
int mc_tcp_lane_send(struct mc_tcp_run *run, struct mc_tcp_lane *lane);
/* Receives what is there. 1: there may be more; 0; negative: broken. */
int mc_tcp_lane_receive(struct mc_tcp_run *run, struct mc_tcp_lane *lane);
static inline bool mc_tcp_lane_is_sending(const struct mc_tcp_lane *lane)
{
    return lane->part_count > 0 || lane->writing != NULL;
}
static inline bool mc_tcp_lane_is_idle(const struct mc_tcp_lane *lane)
{
    return !mc_tcp_lane_is_sending(lane) && lane->piece_count == 0 && lane->in_length == 0;
}
/* What was under way on it fails with `code`. */
void mc_tcp_lane_fail(struct mc_tcp_run *run, struct mc_tcp_lane *lane, int code);
/* Ends a job that is not done yet. */
void mc_tcp_job_end(struct mc_tcp_run *run, struct mc_tcp_job *job, int result);

#endif
