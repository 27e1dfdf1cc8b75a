/* One data connection as seen by the owner, without its socket: bytes in, bytes out. serve.c moves the bytes; tests and
 * the fuzzer do it by hand.
 *
 * Invariants: memory per lane is bounded (input at most one frame and one receive, MC_LANE_QUEUE_MAX requests, output
 * MC_LANE_OUT_MAX and one small answer); payload of a WRITE goes straight into the segment and only while its
 * generation may still be written; requests are answered in order. A negative result of any function means: close the
 * connection. */
#ifndef MC_SEGMENT_SERVE_LANE_H
#define MC_SEGMENT_SERVE_LANE_H

#include "store/segment/serve.h"
#include "store/wire/proof.h"
#include "store/wire/version.h"

#include <sys/uio.h>

#define MC_LANE_BODY_MAX (256u << 10) /* bytes of a frame: a COMMIT of MC_BATCH_MAX items fits three times */
#define MC_LANE_QUEUE_MAX 1024u       /* requests that wait for their answer */
#define MC_LANE_OUT_MAX (128u << 10)  /* answers are not made beyond so many bytes unsent */
/* Smaller payloads are copied behind their header, larger ones are sent from the segment */
#define MC_LANE_COPY_MAX (16u << 10)
#define MC_LANE_PARTS_MAX 4

struct mc_serve_lane;

struct mc_lane_keys {
    uint8_t ticket[MC_KEY_SECRET_BYTES], tag[MC_TAG_KEY_BYTES];
};

struct mc_lane_server {                            /* what all lanes of a server share */
    struct mc_segment_memory *memory;              /* NULL: nobody gets in */
    struct mc_rdma *rdma;                          /* NULL: no RDMA here */
    struct mc_rdma_memory *rdma_data, *rdma_index; /* of `memory`; NULL: not registered (yet) */
    struct mc_id node;
    uint64_t incarnation;
    struct mc_serve_hooks hooks;
    /* Whether that peer may have one more lane, this one: 0, or what it is told (MC_ERR_BUSY). NULL: any may. */
    int (*admit)(struct mc_serve_lane *lane, struct mc_id peer);
    void (*where)(const struct mc_serve_lane *lane, char text[MC_ADDRESS_MAX]); /* its other end, for a log. NULL: ? */
    bool wants_tickets;                                                         /* who comes has to prove one */
    bool wants_tags;             /* what is asked of places has to repeat their tag */
    bool tenants_map;            /* who is of one tenant gets all of the memory, too, mapped or by RDMA */
    struct mc_lane_keys keys[2]; /* of both; by their mark */
    uint8_t key_mark;            /* of those that are told; the others are those before, */
    uint64_t key_number;         /* if this is above 1; it counts */
    _Atomic uint64_t tags_refused;
    bool committed; /* a commit was applied or handed over, and hooks.flush not called yet */
    /* Of a data thread; NULL: this is the thread that writes the index. Takes a commit to that thread: 0, or
     * MC_ERR_NO_MEMORY. is_lost: what belongs to it was thrown away. */
    int (*hand_over)(struct mc_lane_server *server, const struct mc_wire_commit_item *commit, bool is_lost);
};

struct mc_lane_request {
    uint64_t request_id, generation, offset, length;
    uint32_t slot, contact_age_max_ms;
    uint16_t type; /* enum mc_message */
    bool table;
    bool is_refused; /* its tag is not that of what it asks for */
};

struct mc_serve_lane {
    struct mc_lane_server *server;
    bool is_unix, is_same_user;         /* is_same_user: unix only */
    bool is_open;                       /* hello was accepted */
    bool is_proved;                     /* it has a ticket, for the node that it says it is */
    uint8_t rights;                     /* of that ticket, with MC_TICKET_OF_TENANT */
    uint64_t key_number;                /* of the owner's key that it is of */
    struct mc_gate *gate;               /* while something is being proved */
    bool is_ending;                     /* hello was refused: close when the answer is sent */
    struct mc_segment_memory *attached; /* of which it has an entry in the table of writers; NULL = none */
    uint32_t writer;                    /* that entry */
    struct mc_rdma_link *served;        /* what the peer reads and writes through; NULL: nothing. tcp only */
    struct mc_id peer;                  /* the node at the other end, once open */
    uint64_t peer_incarnation;
    struct mc_wire_peer agreed; /* with it: what may be said to it */
    struct mc_buffer in;        /* start of a frame, or input that waits until the queue has room */

    struct { /* WRITE whose payload is arriving */
        uint64_t left, generation, offset;
        uint64_t start, length; /* all of it, which begins where the extent does */
        uint32_t slot;
        bool refused;                /* drained instead */
        bool is_part;                /* the last request of the queue is its answer */
        bool is_announced;           /* on a data thread, while bytes are stored: */
        struct mc_local_write store; /* what a CUT or a CLEAR waits for */
    } write;
    bool is_leaving; /* what comes next is for the thread that writes the index: nothing of it is looked at here */
    uint64_t refused_generation; /* the highest of a WRITE that was: no COMMIT up to it is applied */

    struct mc_lane_request *queue; /* ring of queue_capacity, which grows up to MC_LANE_QUEUE_MAX */
    uint32_t queue_first, queue_count, queue_capacity;

    struct mc_buffer out;
    size_t out_sent;               /* of out */
    struct mc_lane_traced *traced; /* serve_trace.h; NULL: it has asked for nothing that is a part of a trace */
    bool out_has_fds;              /* the descriptors of the segment go with the next byte of out */
    struct {                       /* large READ being answered behind out */
        bool active;
        struct mc_lane_request request;
        const uint8_t *table, *payload;
        uint64_t table_left, payload_left;
    } read;
};

/* Keys that nobody has been told yet. Those that were told stay good until the next ones are drawn. */
void mc_lane_keys_draw(struct mc_lane_server *server);
/* Has a ticket of keys that are no more. */
bool mc_lane_has_expired(const struct mc_serve_lane *lane);

void mc_lane_init(struct mc_serve_lane *lane, struct mc_lane_server *server, bool is_unix, bool is_same_user);
/* Also ends the link: nothing of the peer arrives through it any more. */
void mc_lane_free(struct mc_serve_lane *lane);

/* Takes all bytes. 0 or negative. */
int mc_lane_input(struct mc_serve_lane *lane, const uint8_t *data, size_t length);
/* Wants more input? No while MC_LANE_QUEUE_MAX requests wait. */
bool mc_lane_wants_input(const struct mc_serve_lane *lane);
/* Much of a WRITE or a READ is under way: more than is copied with the frames. */
bool mc_lane_takes_much(const struct mc_serve_lane *lane);
bool mc_lane_gives_much(const struct mc_serve_lane *lane);
/* Where the next bytes of the stream belong in the segment: *target and how many; 0 when they are not payload, or
 * payload that is not wanted any more. More than 0: mc_lane_window_filled has to follow. */
int64_t mc_lane_window(struct mc_serve_lane *lane, uint8_t **target);
/* So many bytes were received into the window, or none. */
void mc_lane_window_filled(struct mc_serve_lane *lane, uint64_t length);

/* The server's thread applies a commit that came by a data thread, as it applies its own. */
void mc_lane_commit(struct mc_lane_server *server, const struct mc_wire_commit_item *commit, bool is_lost);

/* What to send next, at most about `budget` bytes: returns how many of MC_LANE_PARTS_MAX parts are filled. with_fds:
 * descriptors go along. */
size_t mc_lane_output(struct mc_serve_lane *lane, struct iovec *parts, uint64_t budget, bool *with_fds);
/* So many bytes of these parts were sent, right after mc_lane_output. Goes on with input that waited. 0 or negative. */
int mc_lane_sent(struct mc_serve_lane *lane, uint64_t length);
/* Everything is sent and the connection is to be closed. */
bool mc_lane_has_ended(const struct mc_serve_lane *lane);
/* Nothing is under way or held, and it is no more than a way to ask: neither an entry in the table of writers nor a
 * link hangs on it. */
bool mc_lane_is_resting(const struct mc_serve_lane *lane);
/* The peer is in the middle of a frame, and nothing of ours hangs on the connection. */
bool mc_lane_is_owed(const struct mc_serve_lane *lane);
/* Gives its buffers back; they come again when they are needed. Only while it rests. */
void mc_lane_settle(struct mc_serve_lane *lane);

#endif
