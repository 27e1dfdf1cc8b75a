/* What is registered: held while it is used, published, taken back. */
#ifndef MC_TRANSFER_SERVE_MEMORY_H
#define MC_TRANSFER_SERVE_MEMORY_H

#include "transfer/state/engine.h"

#define MC_UNREGISTER_GRACE_MS 2000u /* peers' transfers may end by themselves for so long, then they are cut off */
#define MC_UNREGISTER_WAIT_MS 10000u

struct mc_region *mc_transfer_hold(struct mc_transfer_engine *engine, uint64_t address, uint64_t length);
/* The same to look at it once: while the engine is drained, too, so that what is under way can end checked. */
struct mc_region *mc_transfer_hold_to_sum(struct mc_transfer_engine *engine, uint64_t address, uint64_t length);
void mc_transfer_release(struct mc_transfer_engine *engine, struct mc_region *region);
/* Registers at the RDMA devices, which have just come, what is registered. 0 or MEMORY. */
int mc_memory_pin_all(struct mc_transfer_engine *engine);
/* Appends the engine's document. Its version. */
uint64_t mc_transfer_document(struct mc_transfer_engine *engine, struct mc_buffer *out);
/* What it would be now. */
uint64_t mc_transfer_document_version(struct mc_transfer_engine *engine);

/* Peers can begin nothing any more with what is registered now. engine->lock is held. */
void mc_memory_refuse(struct mc_transfer_engine *engine);
/* Does nobody touch any of it? engine->lock is held. */
bool mc_memory_is_quiet(struct mc_transfer_engine *engine);
/* For close: nobody reaches any of it any more. Waits like unregister. */
void mc_memory_leave_all(struct mc_transfer_engine *engine);
void mc_memory_free(struct mc_transfer_engine *engine);

#endif
