/* Frames over a blocking socket: where the codec meets the door to the outside. */
#ifndef MC_WIRE_STREAM_H
#define MC_WIRE_STREAM_H

#include "env/socket.h"
#include "store/wire/wire.h"

/* Receives until `in` begins with a whole frame; *frame borrows from `in`; drop it with mc_buffer_consume(in, used).
 * Returns used or negative. */
int64_t mc_socket_receive_frame(int fd, struct mc_buffer *in, struct mc_frame *frame, uint64_t deadline_ns,
                                struct mc_spin *spin);

#endif
