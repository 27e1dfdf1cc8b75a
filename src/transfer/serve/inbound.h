/* The serving half of one data connection: a parser without I/O. The shell asks where to receive (window), says how
 * much came (received), asks what to send (replies), says how much went (sent).
 *
 * Invariant: every byte is received into, or sent from, a region that this connection holds (through other memory, if
 * the region is a device's: then it is copied before an answer goes out); a region is held from the
 * moment its header was accepted until the last byte is in place or has been sent. So mc_inbound_holds_leaving tells
 * whom to hang up on before memory is given back. */
#ifndef MC_TRANSFER_INBOUND_H
#define MC_TRANSFER_INBOUND_H

#include "base/bytes.h"
#include "transfer/state/region.h"
#include "transfer/wire/tcp_wire.h"

#define MC_INBOUND_REPLIES 256u          /* under way on one connection; then nothing is received until some are sent */
#define MC_INBOUND_LATER 2               /* a sum that must wait, see `sum` */
#define MC_INBOUND_STASH_MAX (64u << 10) /* what one receive may bring beyond a payload */

struct mc_inbound_hooks {
    void *context;
    /* The region that holds the range, held for this connection; NULL: refused. */
    struct mc_region *(*hold)(void *context, uint64_t address, uint64_t length);
    void (*release)(void *context, struct mc_region *region);
    /* Copies into registered memory. False: the memory is not there, which is for the user to answer, not for this
     * process to die of. */
    bool (*copy)(void *context, uint64_t address, const void *from, size_t size);
    /* Memory of a device, which the kernel must not be given. Where its payload is received, at most *size bytes, until
     * the next `copy`; NULL: nowhere but in the stash. */
    uint8_t *(*receive_at)(void *context, const struct mc_region *region, size_t *size);
    /* Where its bytes can be sent from until the next mc_inbound_replies, at most *size of them; NULL: not now. */
    const uint8_t *(*send_from)(void *context, const struct mc_region *region, uint64_t address, size_t *size);
    /* The CRC32C of registered memory, at once, for a request that came then. 1; 0: it is refused; MC_INBOUND_LATER:
     * not yet, as may_touch says. Negative: the memory is not there. */
    int (*sum)(void *context, uint64_t address, uint64_t length, uint64_t since_ns, uint32_t *sum);
    /* Has the connection of that number been cut, before it was known here? NULL: none. */
    bool (*is_cut)(void *context, uint64_t lane);
    /* May memory of a device be touched for a request that came then? False: not yet, what the process had given that
     * device to do is not done. */
    bool (*may_touch)(void *context, const struct mc_region *region, uint64_t since_ns);
};

struct mc_inbound_reply {
    uint64_t status;
    uint64_t address;  /* of a READ, where its bytes are; of a SUM the sum, which goes out right behind the status */
    uint64_t left;     /* bytes of a READ still to send */
    uint64_t since_ns; /* of a READ: when it came */
    struct mc_region *region;      /* of a READ; NULL: status, and sum, only */
    uint32_t word_size, word_left; /* bytes of status and sum, and of these still to send */
};
_Static_assert(offsetof(struct mc_inbound_reply, address) == sizeof(uint64_t),
               "a SUM's answer is sent as it lies there");

struct mc_inbound {
    const struct mc_inbound_hooks *hooks;
    uint8_t header[sizeof(struct mc_tcp_header)];
    size_t header_used;
    uint64_t lane;            /* the number of the connection; 0: not said */
    struct mc_id id;          /* of the engine */
    unsigned rights;          /* of who asks, enum mc_right; all, unless it is said otherwise */
    struct mc_region *region; /* of the WRITE whose payload comes now; NULL: a header comes */
    uint64_t address, left, since_ns;
    bool holds_in, holds_out; /* what comes, or what goes, waits for a device, until mc_inbound_go_on */
    uint8_t *bounce;          /* a device's payload is received there; NULL: in the stash */
    size_t bounce_size;       /* of the last window */
    bool is_careful; /* nothing is received into memory itself: who decrypts would die where that is not there */
    bool wants_status;
    uint64_t written_address, written_length; /* of the last WRITE, until its sum has been asked */
    uint64_t sum_since_ns;                    /* of the SUM that is held: when it came; 0: none is */
    uint64_t summed;                          /* bytes that this turn has summed */
    bool is_over; /* refused or nonsense: nothing more is taken; the replies there are go out, then the end */
    struct mc_inbound_reply replies[MC_INBOUND_REPLIES];
    uint32_t first, count;
    uint8_t stash[MC_INBOUND_STASH_MAX]; /* received, and not yet parsed because the replies are full */
    size_t stash_at, stash_end;
    uint64_t bytes, refused; /* moved; addresses refused */
};

void mc_inbound_init(struct mc_inbound *inbound, const struct mc_inbound_hooks *hooks);
/* Lets go of everything. */
void mc_inbound_end(struct mc_inbound *inbound);

/* Where to receive: up to two parts, the second is the stash. 0: nothing now (replies are full, or it is over). */
size_t mc_inbound_window(struct mc_inbound *inbound, struct iovec parts[2]);
void mc_inbound_received(struct mc_inbound *inbound, size_t count);
/* What to send, up to `most` parts; 0: nothing. */
size_t mc_inbound_replies(struct mc_inbound *inbound, struct iovec *parts, size_t most);
void mc_inbound_sent(struct mc_inbound *inbound, size_t count);
/* What was held may be tried again. */
void mc_inbound_go_on(struct mc_inbound *inbound);
/* Is it over, and everything sent? Then close. */
static inline bool mc_inbound_is_done(const struct mc_inbound *inbound)
{
    return inbound->is_over && inbound->count == 0;
}
/* Has a whole header come? */
static inline bool mc_inbound_has_asked(const struct mc_inbound *inbound)
{
    return inbound->header_used == 0 || inbound->region != NULL || inbound->count > 0 || inbound->bytes > 0;
}
bool mc_inbound_holds_leaving(const struct mc_inbound *inbound);

#endif
