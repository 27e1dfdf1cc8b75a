/* Flags that change nothing, in the log. */
#include "env/flags.h"

#include "env/log.h"

void mc_flags_tell(const struct mc_options *options)
{
    for (size_t i = 0; i < options->count; i++) {
        const struct mc_option *row = &options->table[i];
        if (!mc_options_changed(options, i))
            continue;
        if (row->status == MC_OPTION_NEEDLESS)
            mc_log(INFO, "--%s changes nothing here: %s", row->name, row->help);
        else if (row->status == MC_OPTION_ABSENT)
            mc_log(WARNING, "--%s changes nothing here: %s", row->name, row->instead);
    }
}
