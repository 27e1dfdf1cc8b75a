/* Settings from the environment that are numbers, and what their defaults go by. */
#ifndef MC_ENV_SETTING_H
#define MC_ENV_SETTING_H

#include "base/variables.h"

#include <stdint.h>

/* The variable's number, from least to most; fallback: it is not set, or is none, which a line of the log says.
 * unit: " of seconds", or "". mc_setting_number(MC_SERVE_THREADS, ...). */
#define mc_setting_number(name, unit, least, most, fallback)                                                           \
    mc_setting_number_of(MC_VARIABLE_##name, unit, least, most, fallback)
uint64_t mc_setting_number_of(enum mc_variable variable, const char *unit, uint64_t least, uint64_t most,
                              uint64_t fallback);

/* On how many processors this process may run, at least 1. */
unsigned mc_processors(void);
/* One thread for each `share` of them, from 1 to most. */
uint32_t mc_threads_by_processors(unsigned share, uint32_t most);

#endif
