/* The hello of two processes of one machine, over a unix socket. The initiator sends struct mc_host_hello with the
 * descriptor of its intents; the owner answers struct mc_host_welcome with the descriptor of its table. Nothing else is
 * ever said; the connection's end ends the path. */
#ifndef MC_TRANSFER_HOST_WIRE_H
#define MC_TRANSFER_HOST_WIRE_H

#include "base/bytes.h"
#include "transfer/state/host_table.h"

struct mc_host_hello {
    uint64_t magic;
    struct mc_id owner; /* whom the initiator believes to meet */
};
struct mc_host_welcome {
    uint64_t magic;
    struct mc_id owner;
    uint64_t proof_address; /* in the owner's memory lies: */
    struct mc_id proof;
};

#endif
