/* What a command says of flags that change nothing, and what it does about those that stand for variables. */
#ifndef MC_ENV_FLAGS_H
#define MC_ENV_FLAGS_H

#include "base/options.h"

/* One line of the log for each flag, or key of a config file, that was given and changes nothing here: why nothing is
 * lost (INFO), or what to do instead (WARNING). */
void mc_flags_tell(const struct mc_options *options);
/* Gives the variables their values, here and for what is started from here: before there are threads. How many, or
 * negative with a line in error. */
int mc_flags_use(const struct mc_options *options, char *error, size_t error_size);

#endif
