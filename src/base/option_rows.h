/* How the rows of a table of options are written: flag, type, default, help, further fields. For the files that hold
 * such a table. */
#ifndef MC_BASE_OPTION_ROWS_H
#define MC_BASE_OPTION_ROWS_H

#include "base/options.h"

#define ROW(flag, kind, value, text, ...)                                                                              \
    {                                                                                                                  \
        .name = flag, .type = MC_OPTION_##kind, .initial = value, .help = text, __VA_ARGS__                            \
    }
#define NEEDLESS(...) ROW(__VA_ARGS__, .status = MC_OPTION_NEEDLESS)
#define ABSENT(sentence, ...) ROW(__VA_ARGS__, .status = MC_OPTION_ABSENT, .instead = sentence)
#define ALIAS(flag, target) ROW(flag, TEXT, "", "", .alias_of = target)
#define SECTION(text) .section = text
#define LIMITS(low, high) .minimum = (low), .maximum = (high)
#define PORT LIMITS(0, 65535)
#define CHOICES(text) .choices = text
#define FLAG_ONLY .is_flag_only = true
#define TO(config, member) .offset = offsetof(struct config, member), .size = sizeof(((struct config *)NULL)->member)

#endif
