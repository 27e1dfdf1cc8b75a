/* What paths.c, choice.c and the transports share: the inside of struct mc_paths and small services for transports. Not
 * for others. Invariant: `forked` is looked at before any lock is taken, any descriptor used or any mapping touched: in
 * a forked child none of them is ours. */
#ifndef MC_PATH_PATH_H
#define MC_PATH_PATH_H

#include "base/pace.h"
#include "store/path/transport.h"
#include "store/wire/version.h"

#include <pthread.h>

struct mc_frame;

#define MC_OWN_SEGMENTS_MAX 64u    /* segments of one process */
#define MC_PATH_ENTRIES_MAX 16384u /* segments whose paths one process remembers */
#define MC_PATH_BUCKETS 1024u
#define MC_PATHS_FDS_MAX 65536u /* connections to peers */
/* Until a peer must have answered on a unix socket, if nothing says that it runs. */
#define MC_CONNECT_NS 150000000ull
/* A peer that moves nothing for so long is doubted: the master may look. */
#define MC_DOUBT_NS 40000000ull
/* So long: it has failed. A lost packet is sent again after 200 ms and more, and after as much again; by then several
 * connections have been tried. A get of what lies at a stopped node ends within a second. */
#define MC_STALL_NS 700000000ull
#define MC_LANE_SETTLE_MS 1000u /* an idle connection gives its buffers back after so long, */
#define MC_LANE_IDLE_MS 60000u  /* and is closed after so long. Before its owner does it (MC_SERVE_IDLE_MS) */

struct mc_path_entry { /* a segment that was asked for; guarded by the lock of struct mc_paths */
    struct mc_path_entry *next;
    uint32_t segment;
    uint32_t users;       /* threads inside mc_path_get: it must not go away */
    struct mc_path *path; /* with a reference, or NULL */
    unsigned kind;        /* of path: index into the kinds of choice.c */
    bool opening;
    uint64_t version;   /* counts forgets, so that what is being opened meanwhile is not remembered */
    uint64_t openings;  /* counts attempts that ended */
    int last_error;     /* of the last attempt */
    bool was_hasty;     /* it had less time than MC_STALL_NS: that nobody answered says nothing to who has more */
    bool faster_failed; /* a faster kind than that of path failed: tried again at retry_ns */
    uint64_t retry_ns;
    uint32_t backoff_ms;
};

struct mc_paths {
    struct mc_id node, host;
    uint64_t incarnation;
    unsigned allowed_paths; /* MC_PATH_* */
    unsigned lanes_max;     /* tcp connections that one big batch may use at once */
    bool verify;            /* compare checksums; MC_CHECKSUM=slot switches it off, never the look at the slot */
    _Atomic bool forked;
    struct mc_paths_counters counters;
    struct mc_crew *crew; /* helps with large copies; NULL: nobody */
    struct mc_rdma *rdma; /* NULL: none */
    struct mc_rdma_stages *stages;
    struct mc_rdma_buffers *buffers; /* of the caller's; NULL: none */
    struct mc_pace openings; /* connections to owners: what is opened because others are late is paid for here */

    pthread_mutex_t lock;  /* guards what follows, up to the descriptors */
    struct mc_id cluster;  /* in which the places are told; zero = not known */
    pthread_cond_t opened; /* an attempt to open a path has ended */
    struct mc_segment_memory *own[MC_OWN_SEGMENTS_MAX];
    struct mc_path_entry *buckets[MC_PATH_BUCKETS];
    uint32_t entry_count;
    struct mc_path *closing; /* by a thread of their own, which ends when there are none */
    bool has_closer;

    _Atomic int fds[MC_PATHS_FDS_MAX]; /* descriptor + 1; 0 = free */
    _Atomic uint32_t fds_hint;
};

/* Returns when all that was let go of is closed. */
void mc_paths_await_closed(struct mc_paths *paths);
/* Closes it and forgets it. */
void mc_paths_fd_close(struct mc_paths *paths, int place);

static inline bool mc_paths_is_forked(struct mc_paths *paths)
{
    return atomic_load_explicit(&paths->forked, memory_order_relaxed);
}

/* Fills what all paths have; one reference. */
void mc_path_init(struct mc_path *path, const struct mc_transport *transport, struct mc_paths *paths,
                  const struct mc_endpoint *endpoint);
/* Hello on a fresh data connection. 0 when the owner that the endpoint names answered; MC_ERR_STALE when another one
 * did, or one that serves other memory now; MC_ERR_INVALID_VERSION, MC_ERR_PROTOCOL, MC_ERR_ILLEGAL_CLIENT,
 * MC_ERR_RPC_FAIL, MC_ERR_RPC_TIMEOUT. */
struct mc_owner_said {          /* by an owner, of itself */
    struct mc_wire_peer agreed; /* what may be said to it */
    uint32_t layout;            /* of its segments' index */
};
int mc_path_hello(struct mc_paths *paths, const struct mc_endpoint *endpoint, int fd,
                  const struct mc_patience *patience, struct mc_owner_said *said);
/* The hello, and what its answer says, for who waits himself. */
void mc_path_hello_write(struct mc_paths *paths, const struct mc_endpoint *endpoint, struct mc_buffer *out);
int mc_path_hello_check(const struct mc_endpoint *endpoint, const struct mc_frame *frame, struct mc_owner_said *said);
/* Can this build read an index of that layout? Else it says so in the log, and only tcp is left. */
bool mc_path_layout_known(const struct mc_endpoint *endpoint, uint32_t layout);
/* Waits for an answer on a data connection that is being opened. */
int mc_path_wait(int fd, const struct mc_patience *patience);
/* MC_CONNECT_NS from now, more when the peer is seen to run; never beyond the deadline. For unix sockets. */
struct mc_patience mc_patience_until(uint64_t deadline_ns);
/* A COMMIT of nothing. It changes nothing, and is one way. */
#define MC_PATH_NUDGE_BYTES 64u
void mc_path_nudge_write(struct mc_buffer *out);
/* Counts what a run has moved. */
void mc_path_account(struct mc_path *path, struct mc_transfer *const *transfers, size_t count);
void mc_path_fail_all(struct mc_transfer **transfers, size_t count, int code);

#endif
