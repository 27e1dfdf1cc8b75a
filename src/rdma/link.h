/* Links with one peer process, and moving bytes over them. rdma.h tells of threads and invariants.
 *
 *     asking process                              serving process
 *     mc_rdma_link_open(peer's devices)
 *     mc_rdma_link_offer      -- offer -->        mc_rdma_link_answer
 *     mc_rdma_link_complete   <-- answer --       (holds its half until mc_rdma_link_close)
 *     mc_rdma_link_run ...
 *
 * The two texts are JSON objects of at most MC_RDMA_TEXT_MAX bytes, carried by the face as it likes; both halves trust
 * nothing in them. The same three steps repair a link: the offer then holds only the pairs that are down, and the
 * answer replaces the peer's halves of these; and pairs that work, but not with the device of the peer that fits best,
 * as that was down: they go there when it takes them, and stand until then. With rdma_cm (iWARP, or MC_RDMA_SETUP=cm)
 * the answer says where to connect, and mc_rdma_link_complete connects there.
 *
 * Every pair is set up, fails and pauses alone. Neither side waits for the slowest: the answer goes out soon after the
 * first pairs stand, and says of the others that they are being set up still; their next offer goes on with the same
 * halves. What an asker does not ask for any more, as its link was closed or ten seconds have passed, is not begun. */
#ifndef MC_RDMA_LINK_H
#define MC_RDMA_LINK_H

#include "rdma/request.h"

#include <stdatomic.h>

struct mc_rdma_link_options {
    const struct mc_rdma_peer_device *devices; /* the peer's; copied */
    uint32_t device_count;
    uint32_t local_mask;  /* local devices that may be used; 0: all */
    uint32_t remote_mask; /* 0: all */
};
/* Chooses the pairs (each usable local device with the peer's device that fits it best: same fabric, family and subnet
 * of the GIDs, then same place in the list) and takes their resources. Makes no connection. 0; MC_ERR_NOT_SUPPORTED: no
 * two devices fit; MC_ERR_NO_MEMORY. Does not block on the network. */
int mc_rdma_link_open(struct mc_rdma *rdma, const struct mc_rdma_link_options *options, struct mc_rdma_link **link);
/* Text for the peer about the pairs that are down and may be tried again, or moved, or were not decided yet. wait_ms:
 * the answer is waited for so long, so it comes before, with 1 at once; 0: not said. 1: there is an offer. 0: none is
 * due. Negative: no queue pair could be made (MC_ERR_NO_MEMORY, MC_ERR_TRANSFER_FAIL; pairs of a device that fails are
 * skipped). Every 1 is followed by one mc_rdma_link_complete, with an empty answer if the peer did not give one. */
int mc_rdma_link_offer(struct mc_rdma_link *link, uint64_t wait_ms, struct mc_buffer *offer);
/* At the peer. *link NULL: a new serving half, else the one of an earlier offer of the same asking half. 0; the answer
 * then tells of each pair that it is ready, or why not. MC_ERR_PROTOCOL: not an offer. MC_ERR_BUSY: MC_RDMA_SERVED_MAX.
 * MC_ERR_NOT_SUPPORTED: not one pair could be made ready; there is no new half then, and the answer still says why.
 * Blocks until the pairs are decided: milliseconds, but for a quarter of a second at most once one stands, and for as
 * long as the asker waits, 1.5 seconds at most, while none does. */
int mc_rdma_link_answer(struct mc_rdma *rdma, struct mc_rdma_link **link, struct mc_span offer,
                        struct mc_buffer *answer);
/* The same without waiting. First the offer is taken in; 0 or as above. notify is called, with a lock of the link, by
 * the thread that has set up a pair of a new half, or failed; never after the half is closed. Then, not before
 * mc_rdma_link_answer_due_ns (0: now), which notify may bring forward, the answer is written: 0; MC_ERR_NOT_SUPPORTED:
 * no pair that was asked for stands or may yet: a half that has no other is to be closed; MC_ERR_NO_MEMORY. */
int mc_rdma_link_serve(struct mc_rdma *rdma, struct mc_rdma_link **link, struct mc_span offer,
                       void (*notify)(void *context), void *context);
uint64_t mc_rdma_link_answer_due_ns(struct mc_rdma_link *link);
int mc_rdma_link_put_answer(struct mc_rdma_link *link, struct mc_buffer *answer);
/* Count of pairs that are ready now, all in all; 0: none, but some are being set up: the next offer is due soon.
 * MC_ERR_PROTOCOL: not an answer to the last offer. MC_ERR_TRANSFER_FAIL: none; the reason is logged, with the setting
 * that may help. Blocks until all are decided, a quarter of a second once one stands, and until deadline_ns. */
int mc_rdma_link_complete(struct mc_rdma_link *link, struct mc_span answer, uint64_t deadline_ns);
/* When the next offer is due (mc_clock_ns): 0 now, UINT64_MAX never (all pairs stand where they should). Cheap; any
 * thread. */
uint64_t mc_rdma_link_due_ns(const struct mc_rdma_link *link);
/* Pairs that a run would use. Cheap; any thread. 0: a run fails at once. */
uint32_t mc_rdma_link_ready(const struct mc_rdma_link *link);
/* The NUMA node near which are those of our devices that lead to devices near that memory of the peer's; of several
 * nodes `here`, if it is one of them; -1: unknown. On the thread that runs, between runs. */
int mc_rdma_link_node(struct mc_rdma_link *link, const struct mc_rdma_chunk *remote, int here);
/* Nobody runs on it, offers or completes. After the return nothing of the peer reaches memory through it; what of a
 * set-up is asleep in the kernel frees itself when it wakes. */
void mc_rdma_link_close(struct mc_rdma_link *link);

/* ---- moving bytes ---- */

struct mc_rdma_run {
    uint64_t deadline_ns;
    /* A pair with work but no completion for so long has failed; 0: MC_RDMA_STALL_MS. Not less than a device needs to
     * bring a packet that was lost twice (mc_rdma_patience_ns). */
    uint64_t stall_ns;
    void (*tick)(void *context); /* every 100 ms while waiting; may be NULL; must not use the link */
    void *context;
    const _Atomic bool *stop; /* looked at with each tick; true: as if the deadline had come. May be NULL */
    /* Out. */
    bool is_unsure;        /* WRITEs were cut off: see invariant 3, also when all results are 0 */
    uint32_t failed_pairs; /* that broke in this run */
    uint64_t retried;      /* slices that were moved to another pair */
};
/* Moves the batch; sets every result. Returns 0 when all results are 0, else the first result that is not. Cuts
 * requests into slices and spreads them over the pairs by bytes in flight; moves the slices of a pair that breaks or
 * stalls to the others. Ends by the deadline, and at most 10 ms (and the time drivers take to destroy a queue pair)
 * after it. */
int mc_rdma_link_run(struct mc_rdma_link *link, struct mc_rdma_request *requests, size_t count,
                     struct mc_rdma_run *run);

/* A run in steps, for who has something else to do while its bytes move. Between begin and end it is the link's one
 * run: flight, requests and run stay where they are, untouched. Results are there after the end. */
struct mc_rdma_flight { /* link_run.c's */
    struct mc_rdma_link *link;
    struct mc_rdma_run *run;
    struct mc_rdma_request *requests;
    size_t count;
    uint64_t stall_ns, look_ns;
    uint32_t good_devices, bad_devices; /* that moved something, whose pairs broke; by number */
    uint32_t broken;                    /* pairs in error, not yet destroyed */
    const char *errors[MC_RDMA_PAIRS_MAX];
    bool is_over;
};
/* Posts what can be posted. 0: it is to be ended, whatever has become of it; MC_ERR_INVALID_PARAMS: too many requests,
 * there is no flight. */
int mc_rdma_flight_begin(struct mc_rdma_flight *flight, struct mc_rdma_link *link, struct mc_rdma_request *requests,
                         size_t count, struct mc_rdma_run *run);
/* Takes what has come, posts more, and after the deadline ends it (so, then, it takes as long as drivers take to
 * destroy a queue pair). Else never waits. To be called every millisecond or so: the devices have work for no longer
 * than MC_RDMA_WINDOW lasts. */
void mc_rdma_flight_advance(struct mc_rdma_flight *flight);
/* Waits; as mc_rdma_link_run. */
int mc_rdma_flight_end(struct mc_rdma_flight *flight);

#endif
