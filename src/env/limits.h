/* How many descriptors this process may have open. */
#ifndef MC_ENV_LIMITS_H
#define MC_ENV_LIMITS_H

#include <stdint.h>

#define MC_FILE_LIMIT_RAISED_MAX (1u << 20) /* some programs walk over all numbers up to the limit */

/* Now (ulimit -n); 1024 if that cannot be seen. */
uint64_t mc_file_limit(void);
/* Raises it to what this process may give itself (ulimit -Hn), up to MC_FILE_LIMIT_RAISED_MAX; never lowers it. */
void mc_file_limit_raise(void);

#endif
