/* What others say to a PUB or ROUTER socket: ZMTP 3.0 (rfc.zeromq.org, 23/ZMTP) without security. Nothing here reads or
 * writes a connection. */
#ifndef MC_MASTER_ZMTP_H
#define MC_MASTER_ZMTP_H

#include "base/bytes.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MC_ZMTP_GREETING_BYTES 64u
#define MC_ZMTP_BODY_MAX 1024u /* of a frame that comes: of what subscribers say nothing is longer */
#define MC_ZMTP_IN_MAX (MC_ZMTP_BODY_MAX + 16)
#define MC_ZMTP_PONG_MAX 32u

enum { MC_ZMTP_MORE = 1, MC_ZMTP_LONG = 2, MC_ZMTP_COMMAND = 4 }; /* flags of a frame */

enum mc_zmtp_word {
    MC_ZMTP_WRONG, /* no ZMTP 3, not our mechanism, or a frame that is too long: the connection is to end */
    MC_ZMTP_GREETED,
    MC_ZMTP_READY,
    MC_ZMTP_SUBSCRIBE, /* argument: the topic */
    MC_ZMTP_CANCEL,    /* argument: the topic */
    MC_ZMTP_PING,      /* argument: its context, at most 16 bytes */
    MC_ZMTP_ERROR,     /* the other end cannot go on */
    MC_ZMTP_OTHER,     /* passed over */
};

/* The word at the beginning of what came, of a connection that has been greeted or is to be. Returns how many of the
 * length bytes it has, and 0 when it is not whole yet or is WRONG; argument lies in them. *word is set unless it is not
 * whole: then it stays OTHER. */
size_t mc_zmtp_take(const uint8_t *in, size_t length, bool is_greeted, enum mc_zmtp_word *word,
                    struct mc_span *argument);

/* The frame that what came begins with, behind the greeting. 0: it is not whole yet; MC_ZMTP_NO_FRAME: it is none. */
#define MC_ZMTP_NO_FRAME SIZE_MAX
size_t mc_zmtp_frame(const uint8_t *in, size_t length, uint8_t *flags, struct mc_span *body);

/* The whole answer to a PING; returns its bytes. */
size_t mc_zmtp_pong(uint8_t out[MC_ZMTP_PONG_MAX], struct mc_span context);

#endif
