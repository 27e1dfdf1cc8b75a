/* What a command says of flags that change nothing. */
#ifndef MC_ENV_FLAGS_H
#define MC_ENV_FLAGS_H

#include "base/options.h"

/* One line of the log for each flag, or key of a config file, that was given and changes nothing here: why nothing is
 * lost (INFO), or what to do instead (WARNING). */
void mc_flags_tell(const struct mc_options *options);

#endif
