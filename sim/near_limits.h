/* Included before each file of the master's core: a number that no run reaches is drawn for each. */
#ifndef SIM_LIMITS_H
#define SIM_LIMITS_H

#include "master/object.h"

extern uint32_t sim_clearing_max; /* replicas that hold a key which its object counts itself */
#undef MC_OBJECT_CLEARING_MAX
#define MC_OBJECT_CLEARING_MAX sim_clearing_max

#endif
