/* The heartbeat thread: one thread, one connection to the master, heartbeats. Nothing slow runs on it and it takes no
 * lock that others hold for long, so that no disk, registration or language lock can make this node look dead. */
#ifndef MC_STORE_HEARTBEAT_H
#define MC_STORE_HEARTBEAT_H

#include <stdbool.h>
#include <stdint.h>

struct mc_store;
struct mc_heartbeat;

/* Connects (trying until the deadline) and starts the thread. 0 or the last error. */
int mc_heartbeat_start(struct mc_store *store, uint64_t deadline_ns, struct mc_heartbeat **heartbeat);
/* Our address as the master's route sees it ("192.168.0.7"), taken from the first connection. */
const char *mc_heartbeat_local_host(const struct mc_heartbeat *heartbeat);
uint16_t mc_heartbeat_local_port(const struct mc_heartbeat *heartbeat);
/* The open that it was started for has succeeded: from now on it tries for ever. */
void mc_heartbeat_settle(struct mc_heartbeat *heartbeat);
/* Ends the thread. Other threads of the store may still ask how it was, until it is freed. */
void mc_heartbeat_stop(struct mc_heartbeat *heartbeat);
void mc_heartbeat_free(struct mc_heartbeat *heartbeat);
void mc_heartbeat_forked(struct mc_heartbeat *heartbeat);

#endif
