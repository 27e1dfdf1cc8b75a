/* Checksums of transfers, where MC_TE_CHECKSUM asks for them: which batches are checked, how bytes that are copied here
 * are compared, and what is said when they differ.
 *
 * Every piece that was moved is summed at both ends, where it lies: CRC32C, as in the store. Over tcp and RDMA the peer
 * is asked for its sum (tcp_wire.h); within the machine who copies sums both sides.
 *
 * What a difference means: the bytes are not the same at the two ends. Either they were changed on their way, or one of
 * the two memories was written by somebody else between the copy and the sums; these cannot be told apart. */
#ifndef MC_TRANSFER_PEER_CHECK_H
#define MC_TRANSFER_PEER_CHECK_H

#include "transfer/peer/peer.h"

#define MC_CHECK_PIECE ((size_t)256 << 10) /* of copies within the machine: it stays in the cache until it is summed */

/* Of one batch that is checked; NULL where one is wanted: it is not. */
struct mc_sum_check {
    bool is_blind;            /* nothing was compared: it is memory of a device */
    bool is_wrong;            /* and the first piece that differs: */
    uint64_t address, length; /* in the peer's memory */
    uint32_t ours, theirs;
};

/* Tests change bytes between the copy and the sums; NULL. */
extern void (*mc_check_disturb)(void *bytes, size_t length);

/* Is a batch of so many bytes to be checked? By the setting, and with peers that know how. Says once of a peer that it
 * does not. */
bool mc_check_wanted(struct mc_peer *peer, uint64_t bytes);
/* Notes a piece that differs. MC_TRANSFER_ERR_INVALID_ARGUMENT: the original's code of transfers that failed. */
int mc_check_wrong(struct mc_sum_check *check, uint64_t address, uint64_t length, uint32_t ours, uint32_t theirs);
/* The line in the log, and the counter. */
void mc_check_tell(struct mc_peer *peer, enum mc_transfer_opcode opcode, int path, const struct mc_sum_check *check);
/* Both are memory of this process, and may be the same. False: *from_sum and *to_sum differ. */
bool mc_check_copy(void *to, const void *from, size_t length, uint32_t *from_sum, uint32_t *to_sum);

#endif
