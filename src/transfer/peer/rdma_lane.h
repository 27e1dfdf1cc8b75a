/* Links to peers, and what of the memory of an engine RDMA devices reach. */
#ifndef MC_TRANSFER_PEER_RDMA_LANE_H
#define MC_TRANSFER_PEER_RDMA_LANE_H

#include "rdma/link.h"
#include "rdma/remote.h"
#include "transfer/peer/peer.h"

struct mc_verbs;

/* A link, and the connection over which it was set up: the peer holds its half as long as that connection lives, and
 * its end proves that nothing of the link arrives there any more. */
struct mc_rdma_lane {
    struct mc_transfer_engine *engine;
    struct mc_rdma_link *link;
    int fd;
    uint32_t incarnation; /* of the peer */
    uint64_t number;      /* by which it can be cut; 0: it cannot */
    struct mc_id owner;   /* the engine that it must be of; zero: not known */
    uint64_t used_ms, cut_ms;
    bool is_given_up; /* by our own kernel: its end proves nothing */
    bool is_pending;  /* none of its pairs stood yet when it was last looked at */
    bool is_leaving;  /* the peer is leaving: what is under way may end, and then the lane does */
    struct mc_rdma_lane *next;
};

/* NULL: libibverbs. Tests put a table of their own here. */
extern const struct mc_verbs *mc_transfer_verbs;
/* Opens the devices that the configuration names; as mc_rdma_open. */
int mc_rdma_start(const char *device_name, const char *matrix, struct mc_rdma **rdma);
/* What peers may reach of a region by RDMA; blocks while pages are pinned. location "" or "*": found out. NULL:
 * nothing. */
struct mc_rdma_memory *mc_rdma_take_in(struct mc_rdma *rdma, uint64_t address, uint64_t length,
                                       struct mc_gpu_place place, const char *location);
/* 0 and a link that is ready; 1: not by this path now. */
int mc_rdma_lane_take(struct mc_peer *peer, const struct mc_rdma_remote *remote, uint64_t deadline_ns,
                      struct mc_rdma_lane **lane);
void mc_rdma_lane_give(struct mc_peer *peer, struct mc_rdma_lane *lane);
/* Ends it. is_unsure: WRITEs of it may be under way; it is cut before anything else goes to that peer. */
void mc_rdma_lane_end(struct mc_peer *peer, struct mc_rdma_lane *lane, bool is_unsure);
/* Has the peer, or its half of the link, ended? Also hears that the peer is leaving. */
bool mc_rdma_lane_has_ended(struct mc_rdma_lane *lane);
/* Waits until what was cut off can arrive no more. 0, or TIMEOUT. */
int mc_rdma_settle(struct mc_peer *peer, uint64_t deadline_ns);
/* RDMA to this peer has failed: not again for a while. */
void mc_rdma_pause(struct mc_peer *peer, const char *why);
/* With the peer's lock: puts those that are idle before *useless, to be freed without it. */
void mc_rdma_lanes_idle(struct mc_peer *peer, uint64_t idle_ms, struct mc_rdma_lane **useless);
/* The same with those that were cut off. */
void mc_rdma_lanes_uncut(struct mc_peer *peer, struct mc_rdma_lane **useless);
void mc_rdma_lanes_free(struct mc_rdma_lane *lanes);

#endif
