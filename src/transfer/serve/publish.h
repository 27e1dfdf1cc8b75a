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
/* Whether an engine is there that has our name, as far as can be seen. A server may say so of one that is gone long
 * since: a replica that lags, a snapshot, another master's map. */
enum mc_sight {
    MC_SIGHT_LIVES,    /* it says so, or who accepts says nothing: he may stand still */
    MC_SIGHT_ENDED,    /* nobody listens there, or it is somebody of another name */
    MC_SIGHT_DOUBTFUL, /* no way leads there, or whoever it is does not speak as an engine */
    MC_SIGHT_NAMELESS, /* the name server says that there is no such host */
    MC_SIGHT_UNSEEN    /* we could not look: our own trouble, or the name server's */
};
enum mc_sight mc_transfer_look(struct mc_transfer_engine *engine, const char *address);
/* That was seen there, behind what was seen before. True: he has ended. */
bool mc_transfer_doubt(struct mc_doubt *doubt, const char *address, enum mc_sight sight);
/* The thread that looks whether a metadata server has lost us. */
int mc_transfer_names_start(struct mc_transfer_engine *engine);
void mc_transfer_names_stop(struct mc_transfer_engine *engine);

#endif
