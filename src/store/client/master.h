/* What a store knows of its master: the highest epoch, when it last heard from it, its cluster. */
#ifndef MC_STORE_MASTER_H
#define MC_STORE_MASTER_H

#include "base/bytes.h"

#include <stdbool.h>
#include <stdint.h>

struct mc_store;

/* A master says which cluster it is; zero: it does not. 0, or MC_ERR_OTHER_CLUSTER: what this process holds, or has met
 * of a later epoch, is of another one. */
int mc_master_cluster_told(struct mc_store *store, uint64_t epoch, struct mc_id cluster);
/* May a request that failed like that be made again on another connection? */
bool mc_master_is_gone(int code);
/* Since the master sent the last that came from it; UINT64_MAX: nothing did. */
uint64_t mc_master_silent_ms(const struct mc_store *store);
/* Silent for longer than three seconds, and not only because nothing was asked. */
bool mc_master_is_away(const struct mc_store *store);
/* A try to say hello, which had its time made longer `slow` times, ended with that code; was_reached: when that time
 * was over, at a master that had taken the connection. */
void mc_master_tried(struct mc_store *store, unsigned slow, bool was_reached, int code);
/* A frame of that time came from the master of that epoch. */
void mc_master_heard(struct mc_store *store, uint64_t epoch, bool acts, uint16_t frame_time);
/* The heartbeat's connection to that master was ended from there, not given up for silence. */
void mc_master_ended(struct mc_store *store, uint64_t epoch);
/* It said its age, asked at that time. Before what came with it is heard. */
void mc_master_age_told(struct mc_store *store, uint64_t epoch, uint64_t age_ms, uint64_t asked_ms);
/* It gave that for its epoch; empty: nothing. */
void mc_master_proof_told(struct mc_store *store, uint64_t epoch, struct mc_span proof);
/* Since the last word of a master that may have acted. */
uint32_t mc_master_seen_age_ms(const struct mc_store *store);
/* To which cluster belongs what we hold and have met? True: there is something in our memory. */
bool mc_master_own_cluster(struct mc_store *store, struct mc_id *cluster);

#endif
