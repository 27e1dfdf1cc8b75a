/* What must be there after faults. */
#ifndef SIM_HELD_H
#define SIM_HELD_H

#include "plan.h"

void oracle_held_reset(const struct sim_plan *plan);
/* A process began, ended, stopped or went on; two hear each other, or not any more. */
void oracle_changed(void);
void oracle_connections_break(void);
void oracle_stalled(uint32_t place, uint64_t until_ns);
/* What that owner holds may be lost. */
void oracle_owner_lost(uint32_t place);
/* From now on nothing is certain to be there. */
void oracle_fault(bool loses_objects);
/* Has nothing happened so far, and there is room for all? */
bool oracle_is_strict(void);
/* Must an owner still hold it? */
bool oracle_is_held(uint32_t key);
/* Has all been well for so long before a call that began then that nothing may be missing? */
bool oracle_was_well(uint64_t start_ns);
/* Is nobody dead, stopped or cut off, and was nobody since then? */
bool oracle_is_well_since(uint64_t start_ns);
/* Has the master heard all clients for long enough since then that no request of before is still under way? */
bool oracle_was_open_after(uint64_t since_ns);

#endif
