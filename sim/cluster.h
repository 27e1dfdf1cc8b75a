/* The processes of the cluster. */
#ifndef SIM_CLUSTER_H
#define SIM_CLUSTER_H

#include "worker.h"

extern void (*sim_on_heartbeat)(void); /* the master hears one */

void sim_cluster_reset(void);
void sim_place_start(uint32_t place);
/* Waits until there is a master. Size 0: it lends nothing. */
struct mc_store *sim_store_open(struct sim_process *process, uint64_t segment_size, uint32_t tenant);
/* Of a worker's get. */
void *sim_get_allocate(void *context, size_t index, uint64_t length);
int64_t sim_remove_all(struct sim_worker *worker, bool force, bool by_regex);

#endif
