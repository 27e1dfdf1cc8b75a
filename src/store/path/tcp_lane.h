/* One connection of transport `tcp` while a batch runs on it, in the thread that runs the batch.
 *
 * A large WRITE goes in parts, over as many lanes as there are, to an owner that takes them (feature PARTS): the loss
 * of a packet slows down one lane. The owner answers each part; when all are there, block table, key and COMMIT go over
 * one lane, as the end of every WRITE does.
 *
 * A READ whose answer is late is asked for on a second lane, and a third. The lane whose answer begins first claims it;
 * on the others the piece becomes an orphan, whose bytes go to the scratch. A lane that falls silent within an answer
 * loses it in the same way. So at any time at most one lane writes into a piece's part of the caller's memory.
 *
 * Out: frames and the caller's bytes are queued as one vector of parts, sent, and only then more is queued; so the
 * checksum of a piece is taken just before the kernel copies it. In: payload goes straight into the caller's parts,
 * frames and small payloads through `in`. Invariant: the caller's memory is touched only inside mc_tcp_lane_send and
 * mc_tcp_lane_receive. */
#ifndef MC_PATH_TCP_LANE_H
#define MC_PATH_TCP_LANE_H

#include "base/pace.h"
#include "store/path/gather.h"
#include "store/path/path.h"
#include "store/path/paths.h"

#define MC_TCP_PIECES_MAX 32u           /* READs under way on one lane */
#define MC_TCP_WINDOW_BYTES (2u << 20)  /* bytes of READs under way on one lane */
#define MC_TCP_PIECE_BYTES (512u << 10) /* longer reads are asked for in such pieces */
#define MC_TCP_PART_BYTES (4ull << 20)  /* writes of at least two of these go in such parts */
#define MC_TCP_CHUNK_BYTES (128u << 10) /* sent or received before the checksum is taken */
#define MC_TCP_TURN_BYTES (4u << 20)    /* moved on one lane before the others have their turn */
#define MC_TCP_PARTS_MAX 128u
#define MC_TCP_HEADS_BYTES (16u << 10)
#define MC_TCP_IN_BYTES (32u << 10)
#define MC_TCP_DIRECT_BYTES (8u << 10) /* payloads from here on are not taken along with their header */
#define MC_TCP_LANES_MAX 12u           /* of a batch, with those that are only asked for what is late */
#define MC_TCP_PEERS_MAX 4u            /* addresses of one owner */

struct mc_tcp_job { /* one transfer of the batch */
    struct mc_transfer *transfer;
    uint32_t *table;         /* more than one block: READ: as received; WRITE: to be sent */
    uint32_t *sums;          /* READ of more than one block: of what was received */
    struct mc_cursor cursor; /* READ: where the next piece goes; WRITE: what is queued next */
    uint64_t next, end;      /* READ: still to be asked for, whole blocks; WRITE: data still to be queued */
    uint32_t crc, table_crc; /* READ: as the slot has it, of the only block; WRITE: running */
    uint32_t sum;            /* READ: of the only block as received */
    uint32_t pieces;         /* READs, or parts of a WRITE, under way */
    uint8_t shift;
    bool in_parts;
    bool has_reply;
    bool done;
    int code; /* first failure */
    struct mc_tcp_job *next_queued, *next_whole;
};

/* One READ under way, [start, end) of the object, of which the caller wants [want_start, want_end); or a part of a
 * WRITE that is not answered. */
struct mc_tcp_piece {
    struct mc_tcp_job *job; /* NULL: an orphan, nobody wants it from this lane any more */
    uint64_t start, end, want_start, want_end, request_id;
    uint64_t part_bytes; /* of a part */
    struct mc_cursor cursor, cursor_start;
    bool with_table, is_part;
    bool is_ping; /* an orphan that is neither: PONG comes */
};

enum mc_tcp_state {
    MC_TCP_CONNECTING,
    MC_TCP_SHAKING, /* TLS is being made */
    MC_TCP_GREETING,
    MC_TCP_READY,
    MC_TCP_DEAD /* it broke; its pieces wait for another lane */
};
enum mc_tcp_expect { MC_TCP_EXPECT_REPLY, MC_TCP_EXPECT_TABLE, MC_TCP_EXPECT_PAYLOAD, MC_TCP_EXPECT_END };

struct mc_tcp_run { /* a batch */
    struct mc_paths *paths;
    struct mc_motion *motion;
    struct mc_scratch *scratch;
    struct mc_tcp_job *jobs;
    size_t count, next, open;   /* next: not yet begun; open: not yet done */
    struct mc_tcp_job *reading; /* has pieces left to ask for */
    struct mc_tcp_job *cutting; /* has parts left to send */
    struct mc_tcp_job *whole;   /* all of whose parts are there: a list */
    bool takes_parts;           /* the owner does */
    struct mc_tcp_lane *lanes[MC_TCP_LANES_MAX];
    size_t lane_count;
    struct mc_pace *pace;
    uint64_t heard_ns; /* when the owner last gave a sign of life */
    bool copied;       /* a piece may be under way on more than one lane */
};

struct mc_tcp_lane {
    struct mc_tcp_lane *next;
    int fd, fd_place;
    bool takes_parts, takes_traces; /* its owner does */
    struct mc_owner_said owner;
    struct mc_spin spin;
    uint64_t idle_since_ns, progress_ns, request_id;
    uint64_t unanswered; /* bytes of parts without an answer */
    uint64_t confirmed;  /* bytes of parts, by the owner's kernel, when it was last looked at */
    uint64_t asked_ns;   /* when the oldest piece was asked for, if nothing has come since */
    enum mc_tcp_state state;
    struct mc_prover *prover; /* until the owner has proved itself; NULL: it need not, or has */
    bool readable;            /* something may be there to receive */
    bool is_asking;           /* among the parts is the question for a piece that nothing is before */
    uint32_t turn;            /* its pieces are asked for by so many lanes before it */
    bool is_passed; /* another lane was asked for its pieces; if that is silent too, that one passes them on */
    bool is_due;    /* another lane is to be asked as soon as there is one */
    bool is_pinged; /* it was, since something came */

    uint8_t heads[MC_TCP_HEADS_BYTES]; /* frames among the parts */
    size_t heads_length;
    struct iovec parts[MC_TCP_PARTS_MAX];
    size_t part_first, part_count;
    uint64_t queued_bytes;
    struct mc_tcp_job *writing; /* its data is being queued */
    struct {                    /* so is this part */
        struct mc_tcp_job *job;
        struct mc_cursor cursor;
        uint64_t next, end;
        uint32_t crc;
    } part;
    struct mc_tcp_job *queued; /* writes whose last byte is among the parts */

    struct mc_tcp_piece pieces[MC_TCP_PIECES_MAX];
    uint32_t piece_first, piece_count, orphan_count;
    uint32_t part_answers, pings; /* of the pieces: parts that are not orphans; PINGs */
    uint64_t piece_bytes;
    enum mc_tcp_expect expect; /* of the first piece */
    uint64_t at;               /* in the object: next byte of payload */
    uint32_t table_at, table_length;
    bool table_kept;
    uint32_t crc; /* of the block at `at`, so far */
    uint8_t in[MC_TCP_IN_BYTES];
    size_t in_start, in_length;
};

/* Begins to connect. The lane is to be stepped (mc_tcp_lane_step) whenever it is writable (connecting) or readable
 * (shaking, greeting). 0 or negative; MC_ERR_BUSY, MC_ERR_NO_MEMORY and what else is our own trouble:
 * mc_socket_is_own. */
int mc_tcp_lane_begin(struct mc_paths *paths, const struct mc_tcp_address *peer, struct mc_tcp_lane **lane);
/* 1: it is ready; 0: not yet; negative: as mc_path_hello. */
int mc_tcp_lane_step(struct mc_paths *paths, const struct mc_endpoint *endpoint, struct mc_tcp_lane *lane);
/* A lane that nobody has used for a while: what has to be kept of it. */
struct mc_tcp_rest {
    struct mc_tcp_rest *next;
    int fd, fd_place;
    bool takes_parts, takes_traces;
    uint64_t idle_since_ns, request_id;
};
/* The lane, which is idle, is gone. NULL: no memory, it stays as it is. */
struct mc_tcp_rest *mc_tcp_lane_settle(struct mc_tcp_lane *lane);
/* The rest is gone. NULL: no memory, it stays as it is. */
struct mc_tcp_lane *mc_tcp_lane_wake(struct mc_tcp_rest *rest);
/* Connects and says hello, over several connections when the first is slow. 0 or negative. */
int mc_tcp_lane_open(struct mc_paths *paths, const struct mc_endpoint *endpoint, const struct mc_patience *patience,
                     struct mc_tcp_lane **lane);
/* abort: what the kernel still holds is not sent. */
void mc_tcp_lane_close(struct mc_paths *paths, struct mc_tcp_lane *lane, bool abort);

/* Queues and sends while the socket takes it. 1: wants to go on at once; 0: nothing more to do or socket full;
 * negative: broken. */
int mc_tcp_lane_send(struct mc_tcp_run *run, struct mc_tcp_lane *lane);
/* Receives what is there. 1: there may be more; 0; negative: broken. */
int mc_tcp_lane_receive(struct mc_tcp_run *run, struct mc_tcp_lane *lane);
static inline bool mc_tcp_lane_is_sending(const struct mc_tcp_lane *lane)
{
    return lane->part_count > 0 || lane->writing != NULL || lane->part.job != NULL;
}
static inline bool mc_tcp_lane_is_idle(const struct mc_tcp_lane *lane)
{
    return !mc_tcp_lane_is_sending(lane) && lane->piece_count == 0 && lane->in_length == 0;
}
/* Answers that are wanted from it. */
static inline uint32_t mc_tcp_lane_wanted(const struct mc_tcp_lane *lane)
{
    return lane->piece_count - lane->orphan_count;
}
/* Of them those that another lane could be asked for. */
static inline uint32_t mc_tcp_lane_askable(const struct mc_tcp_lane *lane)
{
    return mc_tcp_lane_wanted(lane) - lane->part_answers;
}
/* Nothing is being sent, and answers to parts are late: a PING behind them shows both kernels a packet that is lost,
 * and so does the answer. */
void mc_tcp_lane_ping(struct mc_tcp_lane *lane);
/* In how many parts it goes; 1: it is not cut. */
uint64_t mc_tcp_job_parts(const struct mc_tcp_run *run, const struct mc_tcp_job *job);
/* MC_TCP_PART_BYTES, but for tests, which have less. Within a machine nothing is lost, and one lane moves more than
 * several: there writes go in parts only for these. */
extern uint64_t mc_tcp_part_bytes;
/* Asks on `to`, which has no work, for what is wanted from `from`. */
void mc_tcp_lane_copy(struct mc_tcp_run *run, struct mc_tcp_lane *from, struct mc_tcp_lane *to);
/* A lane that broke: closes its connection; writes on it fail. False when nothing is wanted from it that another lane
 * could be asked for: then it is to be closed. */
bool mc_tcp_lane_bury(struct mc_tcp_run *run, struct mc_tcp_lane *lane, struct mc_paths *paths);
/* A lane that has nothing but orphans: takes what has come of them. 0: there is more to come, 1: none is left,
 * negative: broken. */
int mc_tcp_lane_drain(struct mc_tcp_lane *lane);
/* What was under way on it, and on no other lane, fails with `code`. */
void mc_tcp_lane_fail(struct mc_tcp_run *run, struct mc_tcp_lane *lane, int code);
/* Ends a job that is not done yet. */
void mc_tcp_job_end(struct mc_tcp_run *run, struct mc_tcp_job *job, int result);

#endif
