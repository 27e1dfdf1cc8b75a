/* The state machine of a run: requests are cut into slices, slices are dealt over the pairs of a link in bursts, and
 * come back as done, refused, or to be tried on another pair. Pure: no verbs, no clock, no I/O; link_run.c drives it.
 *
 * Invariants. A slice is in one place: not cut yet, in the ring of one pair, waiting for another pair, or over. A
 * pair's ring holds what was posted there, oldest first; work of one pair completes in the order in which it was
 * posted, so a completion speaks for all before it, and only the last slice of a burst asks for one. A pair that broke
 * keeps its ring until mc_slices_pair_down: until the caller has made sure that nothing of it moves any more. */
#ifndef MC_RDMA_SLICES_H
#define MC_RDMA_SLICES_H

#include "rdma/request.h"

#define MC_SLICES_BURST_MAX 16u /* posted at once to one pair; the last asks for a completion */

struct mc_slices_pair_config {
    uint32_t local_device, remote_device;
    uint32_t depth;      /* slices under way; at least 1; rounded down to a power of two */
    uint32_t inline_max; /* WRITEs of at most so many bytes are inline */
    uint32_t cost;       /* of a byte, relative: 1 for the fastest device; at least 1 */
};

struct mc_slices_config {
    uint64_t slice_bytes, fragment_bytes; /* a rest of at most fragment_bytes stays with the slice before it */
    uint64_t window_bytes; /* under way on one pair at most; one slice always fits. 0: as many as there are */
    uint32_t retry_max;
    uint32_t pair_count;
    struct mc_slices_pair_config pairs[MC_RDMA_PAIRS_MAX];
};

struct mc_slice { /* a piece of a request that lies in one chunk on both sides */
    uint32_t request, tries;
    uint64_t offset, length;
};

struct mc_slices_pair {
    struct mc_slices_pair_config config;
    bool is_up;
    uint32_t head, tail;   /* sequence numbers of the oldest slice under way, and of the next one; they wrap */
    uint64_t bytes;        /* under way */
    uint64_t progress_ns;  /* last completion, or the posting that followed idleness */
    struct mc_slice *ring; /* config.depth, by sequence number */
};

struct mc_slices {
    struct mc_slices_config config;
    struct mc_slices_pair pairs[MC_RDMA_PAIRS_MAX];
    struct mc_slice *waiting; /* to be posted before anything is cut: a stack */
    uint32_t waiting_count, waiting_capacity;
    struct mc_rdma_request *requests;
    uint32_t request_count, cursor; /* requests before cursor are cut */
    uint32_t pending;               /* requests without a result */
    uint32_t in_flight;             /* slices in the rings */
    uint64_t uncut_bytes;
    uint32_t turn; /* the pair that is looked at first when all are alike */
    bool is_unsure;
    uint64_t retried, posted, refused;
};

struct mc_slice_post {
    enum mc_rdma_opcode opcode;
    uint64_t local, remote;
    uint32_t length, local_key, remote_key, sequence;
    bool is_inline, is_signaled;
};

/* Takes memory for all rings. All pairs are down. 0 or MC_ERR_NO_MEMORY. */
int mc_slices_init(struct mc_slices *slices, const struct mc_slices_config *config);
void mc_slices_free(struct mc_slices *slices);

/* Between runs and in runs. The ring of the pair is empty. */
void mc_slices_pair_up(struct mc_slices *slices, uint32_t pair);
/* The pair is no more, and nothing posted on it moves a byte from now on. What was in its ring is tried elsewhere. */
void mc_slices_pair_down(struct mc_slices *slices, uint32_t pair);

/* Starts a run; the one before is over. Requests that cannot be are given their result at once. count: at most
 * UINT32_MAX - 1, else MC_ERR_INVALID_PARAMS. */
int mc_slices_begin(struct mc_slices *slices, struct mc_rdma_request *requests, size_t count);
/* The next burst: *count slices for *pair, which are in its ring now. False: nothing can be posted at present. */
bool mc_slices_next(struct mc_slices *slices, uint64_t now_ns, uint32_t *pair, struct mc_slice_post *posts,
                    uint32_t *count);
/* The last `count` slices of the burst could not be posted: they wait again, the pair must be taken down. */
void mc_slices_unpost(struct mc_slices *slices, uint32_t pair, uint32_t count);

enum mc_slice_end {
    MC_SLICE_DONE,    /* and all before it on that pair */
    MC_SLICE_LOST,    /* the pair broke, or the peer does not answer: to be tried elsewhere. All before it are done */
    MC_SLICE_REFUSED, /* the request is wrong: its address or key. All before it are done */
    MC_SLICE_FLUSHED, /* of a pair that broke: says nothing */
};
/* False: the pair is broken, take it down. A sequence number that is not under way is ignored (true). */
bool mc_slices_end(struct mc_slices *slices, uint32_t pair, uint32_t sequence, enum mc_slice_end end, uint64_t now_ns);
/* A bit for each pair with slices under way and no progress since stall_ns. */
uint32_t mc_slices_stalled(const struct mc_slices *slices, uint64_t now_ns, uint64_t stall_ns);
/* A bit for each pair with slices under way. */
uint32_t mc_slices_busy(const struct mc_slices *slices);
/* Every request without a result gets that one. What is under way stays under way. */
void mc_slices_cancel(struct mc_slices *slices, int result);
/* Nothing is under way, and every request has its result. */
bool mc_slices_is_over(const struct mc_slices *slices);

#endif
