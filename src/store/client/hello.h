/* What a client says to a master first, and what it believes of the answer. */
#ifndef MC_STORE_HELLO_H
#define MC_STORE_HELLO_H

#include "env/socket.h"
#include "store/client/scope.h"
#include "store/client/state.h"
#include "store/wire/version.h"

struct mc_master_link;

struct mc_hello_said { /* with a HELLO_REPLY; text and leader by a master that refuses */
    char text[512], leader[MC_ADDRESS_MAX], build[MC_BUILD_TEXT_MAX];
    struct mc_disks_told disks;
    struct mc_scope scope;
    struct mc_epoch_proof proof;
    uint64_t asked_ms; /* by the clock of the boot */
    uint16_t frame_time;
};

/* Appends the hello of this store in that role to `out`. */
void mc_hello_write(struct mc_store *store, struct mc_buffer *out, enum mc_role role);
/* The answer to it: 0, or the master's code, or MC_ERR_PROTOCOL. Nothing of *reply borrows from the frame. */
int mc_hello_read(const struct mc_frame *frame, struct mc_wire_hello_reply *reply, struct mc_hello_said *said);
/* Remembers what a master said of itself. MC_ERR_RPC_FAIL: it is one of the past. Takes the store's lock. */
int mc_hello_met(struct mc_store *store, const char *address, const struct mc_wire_hello_reply *reply,
                 const struct mc_hello_said *said);

/* Lock held. All links that are idle, for mc_links_free. */
struct mc_master_link *mc_links_take_idle(struct mc_store *store);
void mc_links_free(struct mc_master_link *list);

#endif
