/* Ahead: a thread that opens paths to segments before anybody needs them, so that a first get or put does not wait for
 * an owner that an overloaded machine lets answer late. It sleeps until the list of segments changes. What it could not
 * open is opened when it is needed. */
#ifndef MC_STORE_PRECONNECT_H
#define MC_STORE_PRECONNECT_H

#include <stdint.h>

#define MC_PRECONNECT_SEGMENTS_MAX 64u /* paths that one change has it open, at most; masters of today tell of 24 */
#define MC_PRECONNECT_PATHS_MAX                                                                                        \
    256u                            /* the same, of all stores of a process; what is left is opened when it is needed */
#define MC_PRECONNECT_OPEN_MS 1000u /* for each; a close waits so long at most */
#define MC_PRECONNECT_TRIES 3u      /* of each, a second apart */

struct mc_store;
struct mc_preconnect;

/* NULL: out of memory or threads. */
struct mc_preconnect *mc_preconnect_create(struct mc_store *store);
/* A master of that epoch counts so many changes of its segments. Only notes it: called by the heartbeat thread. ahead
 * may be NULL. */
void mc_preconnect_told(struct mc_preconnect *preconnect, uint64_t epoch, uint64_t changes);
/* After the heartbeat thread has stopped and no call runs. NULL is allowed. */
void mc_preconnect_end(struct mc_preconnect *preconnect);

#endif
