/* What the master offers is live at its owner. */
#ifndef SIM_WATCH_H
#define SIM_WATCH_H

#include <stdint.h>

void oracle_check_offers(void);
void oracle_watch_reset(void);
extern uint64_t oracle_hints_kept; /* looks at slots that keep one, of all runs so far */

#endif
