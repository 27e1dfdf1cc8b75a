/* Moving the items of a batch: by which path, and until when. */
#ifndef MC_TRANSFER_RUN_RUN_H
#define MC_TRANSFER_RUN_RUN_H

#include "transfer/peer/check.h"
#include "transfer/peer/peer.h"
#include "transfer/state/batch.h"

#define MC_TRANSFER_ATTEMPTS 4u /* of one call, when its connections break */

/* Codes are those of mc_transfer_run, and MC_TRANSFER_ERR_TIMEOUT. */
/* With a parking none of the items is of length zero. */
int mc_run(struct mc_peer *peer, enum mc_transfer_opcode opcode, const struct mc_transfer_item *items, size_t count,
           uint64_t deadline_ns, struct mc_parking *parking);
#define MC_RUN_PARKED 3 /* of a call with a parking: it goes on where it was when it is called again */
/* items: none of length zero; with a parking they stay where they are until it ends. parking NULL: it keeps its thread.
 * check: NULL, or as everywhere below, for what peer/check.h says. */
int mc_run_tcp(struct mc_peer *peer, enum mc_transfer_opcode opcode, const struct mc_transfer_item *items, size_t count,
               struct mc_sum_check *check, uint64_t deadline_ns, struct mc_parking *parking);
/* Compares what has been moved otherwise, by questions over tcp. */
int mc_run_sums(struct mc_peer *peer, uint32_t incarnation, const struct mc_transfer_item *items, size_t count,
                struct mc_sum_check *check, uint64_t deadline_ns);
/* 1: this path cannot be used (any more), and nothing of it is under way. */
int mc_run_rdma(struct mc_peer *peer, enum mc_transfer_opcode opcode, const struct mc_transfer_item *items,
                size_t count, struct mc_sum_check *check, uint64_t deadline_ns);
/* Is all local memory registered at RDMA devices? */
bool mc_run_is_registered(struct mc_transfer_engine *engine, const struct mc_transfer_item *items, size_t count);
/* Over host, rdma or tcp, whichever works first; *path says which. is_staged: the local memory is ours, which no RDMA
 * device knows. */
int mc_run_far(struct mc_peer *peer, enum mc_transfer_opcode opcode, const struct mc_transfer_item *items, size_t count,
               bool is_staged, struct mc_sum_check *check, uint64_t deadline_ns, struct mc_parking *parking, int *path);
/* Does any item's local memory belong to a device? *device: to which. */
bool mc_run_has_devices(const struct mc_transfer_item *items, size_t count, int *device);
/* By RDMA straight from and to the device where that is possible, else as mc_run_far, through memory of ours. */
int mc_run_staged(struct mc_peer *peer, enum mc_transfer_opcode opcode, const struct mc_transfer_item *items,
                  size_t count, int device, struct mc_sum_check *check, uint64_t deadline_ns, int *path);
/* Within the process, between memory of any kind. */
int mc_run_local_devices(struct mc_transfer_engine *owner, enum mc_transfer_opcode opcode,
                         const struct mc_transfer_item *items, size_t count, uint64_t deadline_ns);
uint64_t mc_run_deadline(const struct mc_transfer_engine *engine, const struct mc_transfer_item *items, size_t count);
/* 0, or INVALID_ARGUMENT: a range that no address space holds. */
int mc_run_check(const struct mc_transfer_item *items, size_t count);
/* Batches in the background end with an error, and their threads. */
void mc_background_stop(struct mc_transfer_engine *engine);

#endif
