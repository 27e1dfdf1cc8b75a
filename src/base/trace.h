/* A place in a trace: W3C trace context (https://www.w3.org/TR/trace-context/), as engines hand it on. Of a context
 * only the three fields that all versions have are kept; nothing here makes or sends anything (env/spans.h). */
#ifndef MC_BASE_TRACE_H
#define MC_BASE_TRACE_H

#include "base/bytes.h"

#include <stdatomic.h>

#define MC_TRACE_SAMPLED 1u
#define MC_TRACE_TEXT_MAX 56u /* bytes of a context as text, with its zero */

struct mc_trace_context { /* zeroed: none */
    struct mc_id id;
    uint64_t span; /* within that trace, the parent of what is to come */
    uint8_t flags;
};

/* Does this process make spans, and carry contexts to others? Off until mc_spans_start: then this is all that is ever
 * looked at. */
extern atomic_bool mc_traces_wanted;
static inline bool mc_traces_are_on(void)
{
    return __builtin_expect(atomic_load_explicit(&mc_traces_wanted, memory_order_acquire), 0);
}

/* Neither of the two is zero, which would be none. */
static inline bool mc_trace_is_valid(const struct mc_trace_context *trace)
{
    return !mc_id_is_zero(trace->id) && trace->span != 0;
}
static inline bool mc_trace_is_sampled(const struct mc_trace_context *trace)
{
    return (trace->flags & MC_TRACE_SAMPLED) != 0 && mc_trace_is_valid(trace);
}
static inline bool mc_trace_equal(const struct mc_trace_context *a, const struct mc_trace_context *b)
{
    return mc_id_equal(a->id, b->id) && a->span == b->span && a->flags == b->flags;
}

/* The text of a `traceparent`: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01". Of a later version what
 * stands behind the fourth field is skipped. False: it is none, and *trace is zeroed. */
bool mc_trace_parse(const char *text, struct mc_trace_context *trace);
void mc_trace_format(char text[MC_TRACE_TEXT_MAX], const struct mc_trace_context *trace);

#endif
