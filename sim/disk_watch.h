/* The oracle beside each disk. */
#ifndef SIM_DISK_WATCH_H
#define SIM_DISK_WATCH_H

#include "sim.h"

void oracle_disks_reset(void);
/* The machine has lost its power: what its disks held may be lost. */
void oracle_disks_lose_power(uint32_t machine);
/* Is something live on a disk of a process that is there? */
extern uint64_t oracle_disk_stores, oracle_disk_loads, oracle_disk_returns; /* of all runs so far */

#endif
