/* An engine that is open: RDMA devices that come later, copies into and out of its memory. */
#ifndef MC_TRANSFER_ENGINE_OPEN_H
#define MC_TRANSFER_ENGINE_OPEN_H

#include "transfer/state/engine.h"

/* Opens the RDMA devices that device_name ("": all) and the priority matrix (NULL: none is given) name, registers there
 * what is registered already, and tells peers. An engine that has them keeps those it has. 0, or a negative enum
 * mc_error of mc_rdma_open. */
int mc_transfer_start_rdma(struct mc_transfer_engine *engine, const char *device_name, const char *matrix);

/* Between memory of the caller and the engine's own, registered, which is not given back meanwhile. length: not zero.
 * 0; ADDRESS_NOT_REGISTERED; INVALID_ARGUMENT: a device refuses. */
int mc_transfer_copy(struct mc_transfer_engine *engine, enum mc_transfer_opcode opcode, uint64_t address, void *local,
                     uint64_t length);
/* The same if it ends at once: little, and memory of the host. 1: it does not, and nothing was copied. */
int mc_transfer_copy_quick(struct mc_transfer_engine *engine, enum mc_transfer_opcode opcode, uint64_t address,
                           void *local, uint64_t length);

#endif
