/* Connections that were given up, and until when writes of them may still arrive. */
#ifndef MC_TRANSFER_PEER_SETTLE_H
#define MC_TRANSFER_PEER_SETTLE_H

#include "transfer/peer/peer.h"

/* Of connections to one peer that were given up: in one question, and at most of those without a number */
#define MC_SETTLE_NUMBERS_MAX 1024u
#define MC_SETTLE_NOTED_MAX 65536u /* of those with a number */

uint64_t mc_settle_number(void); /* for a new connection */
/* That connection was given up, and a write of it may still arrive. 0: it has no number. */
void mc_settle_note(struct mc_peer *peer, uint64_t number, uint32_t incarnation);
/* The same of a lane, which is not the caller's any more. is_failed: our own kernel has given it up. is_dead: the
 * peer's kernel does not answer. */
void mc_settle_give_up(struct mc_peer *peer, struct mc_lane *lane, bool is_failed, bool is_dead);
/* Closes those of which nothing can arrive any more. The peer's lock is held. */
void mc_settle_tidy(struct mc_peer *peer);
/* Asks the peer to cut them. 0: they are; 1: another process has the name; or negative. */
int mc_settle_cut(struct mc_peer *peer, const uint64_t *numbers, size_t count, uint64_t deadline_ns);
/* Another process has the name. The peer's lock is held. */
void mc_settle_forget(struct mc_peer *peer);
/* Until nothing that was given up can arrive any more. 0, TIMEOUT, SOCKET. */
int mc_settle(struct mc_peer *peer, uint64_t deadline_ns);

#endif
