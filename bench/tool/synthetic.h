/* Traces that nobody recorded: made from a seed, the same ones everywhere. */
#ifndef MC_TOOL_SYNTHETIC_H
#define MC_TOOL_SYNTHETIC_H

#include "tool/trace.h"

#include <stdbool.h>

/* A trace of that kind; false when there is none of that name, or memory is out. mc_trace_free frees it. */
bool mc_synthetic_make(const char *kind, uint64_t seed, struct mc_trace *trace);

#define MC_SYNTHETIC_KINDS "conversation|documents|scans|loop|shift"

#endif
