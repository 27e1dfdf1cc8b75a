/* Flags that change nothing, in the log; flags that stand for variables. */
#include "env/flags.h"

#include "base/error.h"
#include "env/log.h"

#include <stdio.h>
#include <stdlib.h>

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

int mc_flags_use(const struct mc_options *options, char *error, size_t error_size)
{
    int count = 0;
    for (size_t i = 0; i < options->count; i++) {
        const struct mc_option *row = &options->table[i];
        if (row->variable == MC_VARIABLE_NONE || mc_options_text(options, row->name)[0] == 0)
            continue;
        if (setenv(mc_variable_name(row->variable), mc_options_text(options, row->name), 1) != 0) {
            (void)snprintf(error, error_size, "out of memory");
            return MC_ERR_NO_MEMORY;
        }
        count++;
    }
    return count;
}
