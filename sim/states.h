/* The whole state of a master's core and of the owners' indexes. */
#ifndef SIM_STATES_H
#define SIM_STATES_H

void oracle_states_reset(void);
void oracle_check_masters(void);
void oracle_check_indexes(void);

#endif
