/* What a replay ends in. */
#ifndef MC_TOOL_REPORT_H
#define MC_TOOL_REPORT_H

#include "base/options.h"
#include "tool/shared.h"

#include <stdbool.h>
#include <stdint.h>

struct mc_replay_report {
    const struct mc_options *options;
    const char *trace_path;
    const char *metrics_address; /* "" = unknown */
    const char *lost;            /* name of a process that ended early, or NULL */
    uint64_t capacity;
    unsigned node_count;
    double seconds;
    bool started, cut_short;
};
/* Prints the table, writes the JSON; the exit code of the run. */
int mc_replay_print(const struct mc_replay_report *report, const struct mc_replay_view *view);

#endif
