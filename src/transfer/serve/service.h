/* The thread that serves peers. */
#ifndef MC_TRANSFER_SERVE_SERVICE_H
#define MC_TRANSFER_SERVE_SERVICE_H

#include "transfer/state/engine.h"

/* The listeners are the service's from then on, also when it fails. unix_listener -1: none. */
int mc_service_start(struct mc_transfer_engine *engine, int rpc_listener, int data_listener, int unix_listener);
void mc_service_stop(struct mc_transfer_engine *engine);
/* Tells peers that have links to us that we are leaving. engine->heard_links of them will end theirs. */
void mc_service_leave(struct mc_transfer_engine *engine);
/* Hangs up on everybody who holds a region that is leaving. */
void mc_service_cut(struct mc_transfer_engine *engine);
/* Does an initiator of this machine say that it copies into or out of that slot? */
bool mc_service_is_intended(struct mc_transfer_engine *engine, uint32_t slot);
int mc_host_table_create(struct mc_transfer_engine *engine);
void mc_host_table_destroy(struct mc_transfer_engine *engine);

#endif
