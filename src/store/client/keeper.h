/* The keeper: one thread, one connection to the master, heartbeats. Nothing slow runs on it and it takes no lock that
 * others hold for long, so that no disk, registration or language lock can make this node look dead. */
#ifndef MC_STORE_KEEPER_H
#define MC_STORE_KEEPER_H

#include <stdbool.h>
#include <stdint.h>

struct mc_store;
struct mc_keeper;

/* Connects (trying until the deadline) and starts the thread. 0 or the last error. */
int mc_keeper_start(struct mc_store *store, uint64_t deadline_ns, struct mc_keeper **keeper);
/* Our address as the master's route sees it ("192.168.0.7"), taken from the first connection. */
const char *mc_keeper_local_host(const struct mc_keeper *keeper);
uint16_t mc_keeper_local_port(const struct mc_keeper *keeper);
/* Was the last heartbeat answered, and in time? */
bool mc_keeper_healthy(const struct mc_keeper *keeper);
/* The open that it was started for has succeeded: from now on it tries for ever. */
void mc_keeper_settle(struct mc_keeper *keeper);
void mc_keeper_wake(struct mc_keeper *keeper);
/* Ends the thread. Other threads of the store may still ask how it was, until it is freed. */
void mc_keeper_stop(struct mc_keeper *keeper);
void mc_keeper_free(struct mc_keeper *keeper);
void mc_keeper_forked(struct mc_keeper *keeper);

#endif
