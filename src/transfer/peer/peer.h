/* Peers: where one is, and the connections to it that are kept. */
#ifndef MC_TRANSFER_PEER_PEER_H
#define MC_TRANSFER_PEER_PEER_H

#include "transfer/state/engine.h"
#include "transfer/wire/document.h"

struct mc_host_path;
struct mc_rdma_remote;

#define MC_PEER_RDMA_LANES_MAX 8u /* links to one peer; further calls wait for one of them */

struct mc_lane {
    int fd;
    uint32_t incarnation; /* of the peer */
    uint64_t number;      /* by which it can be cut; 0: it cannot */
    struct mc_spin spin;
    uint64_t used_ms, failed_ms; /* failed_ms: our own kernel has given it up, or 0 */
    struct mc_lane *next;
};

struct mc_peer {
    struct mc_transfer_engine *engine;
    char name[MC_DOCUMENT_NAME_MAX];
    struct mc_peer *next;                /* in its bucket */
    uint32_t references;                 /* engine->lock */
    struct mc_tally *tally;              /* NULL: it has rested */
    struct mc_batch *queue, **queue_end; /* batches in the background that wait; from here on: engine->lock */
    struct mc_peer *next_ready;          /* of those with such that may have another thread; is_ready */
    struct mc_peer *next_borrower, *previous_borrower; /* of those with threads that all share; lent > 0 */
    uint32_t running, lent;                            /* batches in the background; so many beyond its own thread */
    uint64_t moved_ns;                                 /* when one last ended, or the first of these began */
    bool is_ready, is_silent;
    uint64_t used_ms;
    _Atomic int last_path; /* MC_TRANSFER_PATH_... of the last batch that was moved, + 1; 0: none yet */
    pthread_mutex_t lock;
    bool is_known;               /* document and address are filled in */
    uint32_t incarnation;        /* counts the processes that had the name; connections of earlier ones are closed */
    bool is_doubtful;            /* its process has ended, or it has rested: to be asked for again before it is used */
    struct mc_document document; /* without buffers */
    uint64_t first_address;
    char data_address[MC_ADDRESS_MAX + 8];
    char handshake_address[MC_ADDRESS_MAX]; /* with a metadata server: by what it said last; "": it did not */
    bool is_unchecked;                      /* it was said that it cannot compare checksums */
    bool is_near;                           /* same machine: splitting over lanes gains nothing */
    struct mc_lane *idle;
    uint32_t idle_count;
    uint64_t *uncut, uncut_first; /* numbers of connections of which a write may still arrive; of the first */
    uint32_t uncut_count, uncut_capacity;
    bool is_uncut_lost; /* one more was not noted: nothing goes there any more, until another process has the name */
    struct mc_lane *unended; /* connections without a number, of which a write may still arrive */
    uint32_t unended_count;
    struct mc_host_path *host;
    uint64_t host_retry_ms; /* not before */
    struct mc_rdma_remote *remote;
    uint64_t remote_ms;      /* when it was fetched */
    uint32_t remote_wait_ms; /* not again before, because of memory that it lacks */
    struct mc_rdma_lane *rdma_idle;
    struct mc_rdma_lane *rdma_uncut; /* WRITEs of these may still arrive: nothing else goes to the peer before */
    uint32_t rdma_settling;          /* more of these, that threads are waiting for */
    uint32_t rdma_lanes;             /* all, but for the uncut */
    uint32_t rdma_pause_ms;          /* before the next try, once one has failed */
    uint64_t rdma_retry_ms;          /* not before */
    uint64_t rdma_open_ms;           /* no further link before, while there is one */
    pthread_cond_t rdma_given, rdma_settled;
};

/* The peer of that name, with a reference; its document is fetched unless it is known. */
int mc_peer_get(struct mc_transfer_engine *engine, const char *name, uint64_t deadline_ns, struct mc_peer **peer);
/* The same without asking, if anything is known of it, even if that is doubtful; then mc_peer_be_sure asks. */
int mc_peer_get_known(struct mc_transfer_engine *engine, const char *name, uint64_t deadline_ns, struct mc_peer **peer);
int mc_peer_be_sure(struct mc_peer *peer, uint64_t deadline_ns);
void mc_peer_release(struct mc_peer *peer);
bool mc_peer_is_name(const char *name); /* NULL is none */
/* Its lanes are closed and its document is asked for again when it is needed. */
void mc_peer_forget(struct mc_transfer_engine *engine, const char *name);
/* Fetches the document anew; a peer that is another process now loses its lanes. 1: it is. */
int mc_peer_refresh(struct mc_peer *peer, uint64_t deadline_ns);
/* Where the handshakes of a known peer went, and which engine it was. False: it is not known. */
bool mc_peer_remembered(struct mc_transfer_engine *engine, const char *name, char *address, size_t size,
                        struct mc_id *id);
/* An idle lane, or a new one. */
int mc_peer_take_lane(struct mc_peer *peer, uint64_t deadline_ns, struct mc_lane **lane);
void mc_peer_give_lane(struct mc_peer *peer, struct mc_lane *lane);
void mc_lane_abort(struct mc_lane *lane);
/* Closes the idle lanes: one of them was broken. */
void mc_peer_drop_lanes(struct mc_peer *peer);
/* Ends links that rest, of peers that have ended or are leaving. Called now and then on the service thread. */
void mc_peers_hear(struct mc_transfer_engine *engine);
/* Closes what has not been used for long. Called now and then on the service thread. */
void mc_peers_tidy(struct mc_transfer_engine *engine);
/* Is no call and no batch of ours under way? engine->lock is held. */
bool mc_peers_are_idle(const struct mc_transfer_engine *engine);
void mc_peers_free(struct mc_transfer_engine *engine);

#endif
