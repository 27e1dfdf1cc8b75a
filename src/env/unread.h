/* What is set in the environment and not read (base/variables.h). */
#ifndef MC_ENV_UNREAD_H
#define MC_ENV_UNREAD_H

/* Says it in the log; the first call of a process only. */
void mc_unread_tell(void);
/* The same of a SIGHUP that has come. */
void mc_unread_hangup(void);
/* It is said elsewhere: the log of this process does not. */
void mc_unread_told(void);

#endif
