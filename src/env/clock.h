/* Time and randomness: the only place that asks the machine for either. */
#ifndef MC_ENV_CLOCK_H
#define MC_ENV_CLOCK_H

#include "base/bytes.h"

#include <stdint.h>

/* Two clocks. CLOCK_MONOTONIC stands still while the machine sleeps: for deadlines and waits, which a sleep is not to
 * use up. CLOCK_BOOTTIME goes on, and is the same in all processes of the machine: for how long ago something was that
 * others are told of, or that others may have acted upon. */
uint64_t mc_clock_ns(void); /* CLOCK_MONOTONIC */
static inline uint64_t mc_clock_ms(void)
{
    return mc_clock_ns() / 1000000;
}
uint64_t mc_clock_boot_ns(void); /* CLOCK_BOOTTIME */
static inline uint64_t mc_clock_boot_ms(void)
{
    return mc_clock_boot_ns() / 1000000;
}
uint64_t mc_clock_wall_ms(void); /* CLOCK_REALTIME, ms since 1970: may leap; for what another boot is to understand */
uint64_t mc_clock_wall_ns(void); /* the same in ns, for what other software is to understand */
uint64_t mc_random_u64(void);    /* getrandom */
struct mc_id mc_random_id(void);
/* Equal for all processes of one running kernel (boot id), also across containers. */
bool mc_host_id_read(struct mc_id *id); /* false: it cannot be read, and errno says why */
struct mc_id mc_host_id(void); /* a random one then: nobody is known to be on our host, and nothing is shared */

#endif
