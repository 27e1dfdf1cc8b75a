/* Threads of a store that sleep until they are needed. */
#ifndef MC_STORE_THREADS_H
#define MC_STORE_THREADS_H

#include "store/client/state.h"

/* Of mount.c and task.c, when no call runs any more. */
void mc_mounts_end(struct mc_store *store);
void mc_tasks_end(struct mc_store *store);
/* Of mount.c: memory on those nodes that setup was asked for, lent by a store of its own until the store ends. 0 or
 * negative. */
struct mc_numa_nodes;
int mc_mounts_add_part(struct mc_store *store, const struct mc_store_config *config, const struct mc_numa_nodes *nodes);
/* All of these; they are there as long as the store. */
size_t mc_mounts_parts(struct mc_store *store, struct mc_store *parts[MC_MOUNTS_MAX]);
/* Of task.c: a value of that full key, just read, is to have a copy in the segment that has that number under that
 * epoch; soon, or not at all. */
void mc_tasks_spread(struct mc_store *store, struct mc_bytes key, uint32_t segment, uint64_t epoch);

/* Of drain.c: the master's wish, as each heartbeat's answer tells it; called by the heartbeat thread. The end: when it
 * has stopped. */
void mc_drain_told(struct mc_store *store, uint32_t segment, bool wanted);
/* True: nothing is left, or nothing of it could be moved for some seconds. It is wanted since
 * that time. *left, if is_known: objects that are still there. */
bool mc_drain_look(struct mc_store *store, uint64_t since_ms, bool *is_known, uint64_t *left);
void mc_drain_end(struct mc_store *store);

#endif
