/* Time and randomness: the only place that asks the machine for either. */
#ifndef MC_ENV_CLOCK_H
#define MC_ENV_CLOCK_H

#include "base/bytes.h"

#include <stdint.h>

uint64_t mc_clock_ns(void); /* CLOCK_MONOTONIC */
static inline uint64_t mc_clock_ms(void)
{
    return mc_clock_ns() / 1000000;
}
uint64_t
mc_clock_boot_ms(void); /* CLOCK_BOOTTIME: the same in all processes of the machine, and goes on while it sleeps */
uint64_t mc_random_u64(void); /* getrandom */
struct mc_id mc_random_id(void);
/* Equal for all processes of one running kernel (boot id), also across containers. */
struct mc_id mc_host_id(void);

#endif
