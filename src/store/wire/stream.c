/* Receives whole frames. */
#include "store/wire/stream.h"

#include "base/error.h"

int64_t mc_socket_receive_frame(int fd, struct mc_buffer *in, struct mc_frame *frame, uint64_t deadline_ns,
                                struct mc_spin *spin)
{
    for (;;) {
        size_t used;
        int found = mc_frame_parse(in->data, in->length, frame, &used);
        if (found < 0) {
            mc_secure_note(fd, in->data, in->length, false);
            return MC_ERR_PROTOCOL;
        }
        if (found > 0)
            return (int64_t)used;
        size_t want = used > in->length ? used - in->length : 0;
        if (!mc_buffer_reserve(in, want < 4096 ? 4096 : want))
            return MC_ERR_NO_MEMORY;
        int64_t received = mc_socket_receive(fd, in->data + in->length, in->capacity - in->length, deadline_ns, spin);
        if (received < 0) {
            mc_secure_note(fd, in->data, in->length, false);
            return received;
        }
        in->length += (size_t)received;
    }
}
