/* Frames of the handshake port, as the original's: u64 length in host byte order (it counts what follows), u8 type,
 * JSON. The old form has no type: its JSON begins right behind the length, and it means a connection. Pure. */
#ifndef MC_TRANSFER_HANDSHAKE_H
#define MC_TRANSFER_HANDSHAKE_H

#include "base/bytes.h"

#define MC_HANDSHAKE_LENGTH_DEFAULT (1u << 20)
#define MC_HANDSHAKE_LENGTH_MAX (128u << 20)

enum mc_handshake_type {
    MC_HANDSHAKE_CONNECTION, /* RDMA queue pairs */
    MC_HANDSHAKE_METADATA,   /* "who are you": answered with the ram document */
    MC_HANDSHAKE_NOTIFY,
    MC_HANDSHAKE_PROBE,
    MC_HANDSHAKE_TYPES
};

struct mc_handshake {
    enum mc_handshake_type type;
    bool is_old;         /* without a type: answered in the same form */
    struct mc_span json; /* borrows from the bytes given */
};

/* Looks at the bytes received so far. 1: a whole frame. 0: more is needed. MC_ERR_PROTOCOL: length zero or above the
 * limit, an unknown type, or not what begins a JSON object: hang up. */
int mc_handshake_read(struct mc_span bytes, uint64_t limit, struct mc_handshake *frame);
void mc_handshake_write(struct mc_buffer *out, enum mc_handshake_type type, bool is_old, struct mc_span json);

/* {"name":..,"notify_msg":..}: both as strings of their own, to be freed. 0 or MC_ERR_PROTOCOL, MC_ERR_NO_MEMORY. */
int mc_handshake_read_note(struct mc_span json, char **name, char **message);
void mc_handshake_write_note(struct mc_buffer *out, const char *name, const char *message);

#endif
