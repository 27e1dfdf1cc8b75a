/* What masters tell of their keys, and who keeps an index by that. */
#ifndef SIM_TOLD_H
#define SIM_TOLD_H

#include "sim.h"

struct mc_core;
struct mc_kv_events;

void sim_told_reset(void);
/* A master begins in that place: what it tells there. */
struct mc_kv_events *sim_told_begin(uint32_t place);
/* The core of this process has done what it was asked for. */
void sim_told_rests(struct mc_core *core);
/* All is well: every consumer comes to the index of the master. */
void sim_told_settle(void);

/* So far, of all runs: events that masters have told and that consumers have taken; gaps because a consumer was slow,
 * and because another master led; snapshots that were read, and that another master broke off. */
extern struct sim_told_counts {
    uint64_t told, taken, slow, other, snapshots, broken;
} sim_told_counts;

#endif
