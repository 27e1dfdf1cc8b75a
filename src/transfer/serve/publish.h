/* Name and document of an engine at the metadata server. */
#ifndef MC_TRANSFER_SERVE_PUBLISH_H
#define MC_TRANSFER_SERVE_PUBLISH_H

#include "transfer/state/engine.h"

/* Document and name of an engine that opens. */
int mc_transfer_publish(struct mc_transfer_engine *engine);
/* Tells the metadata server what has changed. may_wait: changes in quick succession are told together, by the names
 * thread, a little later; then the answer is 0. */
int mc_transfer_publish_document(struct mc_transfer_engine *engine, bool may_wait);
void mc_transfer_withdraw(struct mc_transfer_engine *engine);
/* The thread that looks whether a metadata server has lost us. */
int mc_transfer_names_start(struct mc_transfer_engine *engine);
void mc_transfer_names_stop(struct mc_transfer_engine *engine);

#endif
