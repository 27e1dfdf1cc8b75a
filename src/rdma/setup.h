/* Set-up of pairs on threads of its own. */
#ifndef MC_RDMA_SETUP_H
#define MC_RDMA_SETUP_H

#include "rdma/pair.h"

void mc_rdma_setup_open(struct mc_rdma *rdma);
/* Waits for the threads, which may be asleep in the kernel for a second. All links are closed. */
void mc_rdma_setup_stop(struct mc_rdma *rdma);
void mc_rdma_setup_close(struct mc_rdma *rdma);
/* Sets the pair up at that device, with what the peer has told, instead of what was begun before. link->lock is held.
 * False: no memory, no thread. */
bool mc_rdma_setup_begin(struct mc_rdma_pair *pair, struct mc_rdma_device *device, const struct mc_rdma_tell *told);
/* link->lock is held. What waits to be begun is not begun, and what is being set up is of no use. False: a thread is
 * still at work on it. */
bool mc_rdma_setup_recall(struct mc_rdma_pair *pair);
/* Is one of these pairs being set up? */
bool mc_rdma_setup_is_busy(struct mc_rdma_link *link, uint32_t mask);
/* Waits until none is. */
void mc_rdma_setup_wait(struct mc_rdma_link *link, uint32_t mask, uint64_t until_ns);
/* Nothing of the link is begun or taken any more. It is freed after mc_rdma_setup_release, here or by a thread. */
void mc_rdma_setup_leave(struct mc_rdma_link *link);
void mc_rdma_setup_release(struct mc_rdma_link *link);

#endif
