/* The asking half of one data connection: the requests of one lane as a state machine without I/O. Many requests are
 * under way at once; answers come in their order.
 *
 * Version 1 confirms no write; so a read of its last byte goes behind each (the fence): as requests are served in their
 * order, its answer says that the write is done.
 *
 * With sums a question for the peer's sum (MC_TCP_SUM) goes behind each request in the same way, and is compared with
 * ours. Ours is made of what has just been sent or received, while it is in the cache.
 *
 * Invariant: request `done` and later ones are not confirmed, earlier ones are; so after a break the rest can be asked
 * for again on another connection. */
#ifndef MC_TRANSFER_OUTBOUND_H
#define MC_TRANSFER_OUTBOUND_H

#include "transfer/wire/tcp_wire.h"

#include "mooncake_engine.h"

#define MC_OUTBOUND_WINDOW 64u /* requests that are under way */
#define MC_OUTBOUND_PARTS (3 * MC_OUTBOUND_WINDOW)

enum mc_outbound_sums {
    MC_SUMS_NONE,
    MC_SUMS_TOO, /* of each request */
    MC_SUMS_ONLY /* the bytes have been moved otherwise */
};

struct mc_outbound {
    const struct mc_transfer_item *items; /* none of length zero; with sums none above MC_TCP_SUM_MAX */
    size_t count, done, sending;          /* done <= sending <= count; sending - done <= window */
    enum mc_transfer_opcode opcode;
    bool has_status;             /* version 2 */
    enum mc_outbound_sums sums;  /* of version 2 only */
    uint64_t lane;               /* the number of the connection; 0: none */
    uint64_t sent_of_current;    /* bytes of request `sending` (its header included) that went */
    uint64_t received_of_oldest; /* bytes of the answer to request `done` that came */
    struct mc_tcp_header headers[MC_OUTBOUND_WINDOW], fences[MC_OUTBOUND_WINDOW];
    uint64_t statuses[MC_OUTBOUND_WINDOW];
    uint32_t ours[MC_OUTBOUND_WINDOW]; /* our sums, as far as the bytes went; and theirs */
    struct mc_tcp_sum theirs[MC_OUTBOUND_WINDOW];
};

void mc_outbound_init(struct mc_outbound *outbound, enum mc_transfer_opcode opcode, unsigned version,
                      enum mc_outbound_sums sums, const struct mc_transfer_item *items, size_t count);
/* Forgets what is under way but not confirmed: for another connection. */
void mc_outbound_restart(struct mc_outbound *outbound);
/* Forgets what is confirmed, too: for another process, which speaks that version. */
void mc_outbound_again(struct mc_outbound *outbound, unsigned version, enum mc_outbound_sums sums);
static inline bool mc_outbound_is_done(const struct mc_outbound *outbound)
{
    return outbound->done == outbound->count;
}
/* What to send; 0: nothing until answers come. */
size_t mc_outbound_send_parts(struct mc_outbound *outbound, struct iovec parts[MC_OUTBOUND_PARTS]);
void mc_outbound_sent(struct mc_outbound *outbound, size_t count);
/* So many requests may be under way. */
unsigned mc_outbound_window(const struct mc_outbound *outbound);
/* Where to receive; 0: nothing is expected. */
size_t mc_outbound_receive_parts(struct mc_outbound *outbound, struct iovec parts[MC_OUTBOUND_PARTS]);
/* 0; MC_TRANSFER_ERR_ADDRESS_NOT_REGISTERED: the peer refuses the oldest request; MC_TRANSFER_ERR_REJECT_HANDSHAKE: not
 * this protocol; MC_TRANSFER_ERR_INVALID_ARGUMENT: the sums of the oldest request differ. */
int mc_outbound_received(struct mc_outbound *outbound, size_t count);

#endif
