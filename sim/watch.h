/* What the master offers is live at its owner. */
#ifndef SIM_WATCH_H
#define SIM_WATCH_H

void oracle_check_offers(void);
void oracle_watch_reset(void);

#endif
