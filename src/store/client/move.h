/* Runs a set of transfers: groups them by segment, finds the path of each group, moves. Shared by put and get. */
#ifndef MC_STORE_MOVE_H
#define MC_STORE_MOVE_H

#include "store/client/state.h"

#define MC_PATIENCE_MS 100u /* with an owner whose object has other replicas */

/* Of reads that may be tried again later in the same call. Segments are moved one after the other, so several silent
 * owners would use up the time of those behind them: once one has been waited for in vain, an owner that says nothing
 * for MC_PATIENCE_MS is left, and nothing is said of it. Then, and only then, the result is MC_ERR_RPC_TIMEOUT before
 * the deadline, and the caller comes back when all others have been read. */
struct mc_haste {
    const bool *has_others; /* by transfer: its object has other replicas, so MC_PATIENCE_MS is enough for this one */
    bool stalled;           /* in and out: an owner was waited for in vain */
};

/* Sets the result of every transfer. The places are of that epoch. Segments whose owners failed are avoided and
 * reported (mc_store_report); what is our own trouble (mc_socket_is_own, or that the master cannot be asked where a
 * segment is) is the transfer's result, and nobody else's business; link NULL: there is no master, only endpoints that
 * are known are used. `scratch` has room for `count` pointers. When live is not NULL, it gets the LIVE frames of what
 * was committed in this process. haste NULL: each owner has all its time. */
/* True when an owner has failed just now. */
bool mc_store_move(struct mc_store *store, struct mc_master_link *link, uint64_t epoch, struct mc_transfer *transfers,
                   size_t count, const struct mc_run *run, struct mc_haste *haste, struct mc_transfer **scratch,
                   struct mc_buffer *live);

#endif
