/* What mc_store_close does before, if nobody has done it: see mc_store_retire. */
#ifndef MC_STORE_RETIRE_H
#define MC_STORE_RETIRE_H

#include "store/client/state.h"

#define MC_EXIT_GRACE_S 20u /* with what follows it must end before Kubernetes ends it, after 30 s */

/* MC_EXIT_GRACE_S of the environment, or the default. */
uint64_t mc_retire_grace_ms(void);

#endif
