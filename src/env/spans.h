/* Spans of traces: what a put or a get was made of, told to a collector by OTLP.
 *
 * A process makes spans where MC_TRACES asks for it, and only of what comes with a context that is sampled: nothing
 * here begins a trace. Spans wait in a queue that is bounded, for a thread that sends them by HTTP or writes them into
 * a file; so many a second at most (MC_TRACES_RATE), whoever asks. One request that the collector says it may take
 * later is kept beside, and sent again a few times. What is too much is dropped and counted. Whoever makes a span never
 * waits for the collector.
 *
 * Off: each function here that stands on the way of a call is the test of one flag (mc_traces_are_on). */
#ifndef MC_ENV_SPANS_H
#define MC_ENV_SPANS_H

#include "base/error.h"
#include "base/trace.h"

#define MC_SPAN_TEXT_MAX 96u /* bytes of an attribute's text with its zero; a longer one is cut */

enum mc_span_kind { MC_SPAN_INTERNAL = 1, MC_SPAN_SERVER = 2, MC_SPAN_CLIENT = 3 }; /* OTLP's numbers */

struct mc_traced {           /* a span that is being made, by one thread; attributes that are 0 or empty are not told */
    const char *name, *path; /* static */
    struct mc_trace_context self, before;
    uint64_t parent, since_ns, begin_ns, end_ns;
    uint64_t bytes;
    uint32_t keys;
    uint8_t kind;
    bool is_of_thread;
    int code; /* of enum mc_error */
    char key[MC_SPAN_TEXT_MAX], segment[MC_SPAN_TEXT_MAX];
};

/* One more part of this process makes spans, as MC_TRACES says; service: its name where the environment has none. The
 * thread begins with the first. */
void mc_spans_start(const char *service);
/* One part less. With the last the thread ends: what waits is sent first, unless the collector does not answer: 4 s at
 * most. */
void mc_spans_end(void);

/* What this thread's calls are a part of, until the next; NULL: of nothing. */
void mc_trace_enter(const struct mc_trace_context *trace);
/* What is said to peers: the span that this thread is in, or else what its calls are a part of. */
struct mc_trace_context mc_trace_now(void);
/* The span that this thread is in. None: it is in no call, or in one of which there is no span. */
struct mc_trace_context mc_trace_inside(void);
/* The same from a traceparent's text. What is none is nothing, which the log says once. */
void mc_trace_enter_text(const char *text);

/* Behind mc_traces_are_on. */
struct mc_traced *mc_traced_make(const char *name, enum mc_span_kind kind, const struct mc_trace_context *parent);
struct mc_traced *mc_traced_make_here(const char *name, bool is_call);
void mc_traced_done(struct mc_traced *span, int code);
/* Attributes. The key only where MC_TRACES_KEYS asks for it, as a hash or as it is. */
void mc_traced_key(struct mc_traced *span, const void *key, size_t length);
void mc_traced_segment(struct mc_traced *span, const char *name);

/* A public call begins: a part of what the thread's user was in, or else of the TRACEPARENT of this process. What
 * follows in this thread is a part of the span, until it ends. NULL: none is made, and none of its parts. */
static inline struct mc_traced *mc_traced_call(const char *name)
{
    return mc_traces_are_on() ? mc_traced_make_here(name, true) : NULL;
}
/* A part of such a call begins. */
static inline struct mc_traced *mc_traced_begin(const char *name)
{
    return mc_traces_are_on() ? mc_traced_make_here(name, false) : NULL;
}
/* What somebody else has asked for, as a part of that. It is nothing to the thread, which does several at a time. */
static inline struct mc_traced *mc_traced_asked(const char *name, const struct mc_trace_context *parent)
{
    return mc_traces_are_on() ? mc_traced_make(name, MC_SPAN_SERVER, parent) : NULL;
}
static inline void mc_traced_end(struct mc_traced *span, int code)
{
    if (span != NULL)
        mc_traced_done(span, code);
}

/* Is a call that ended so one that failed? A cache that has a value not, or has it already, or is being given it, or
 * makes room for it first, works as it should. */
static inline bool mc_traced_is_failure(int code)
{
    return code < 0 && code != MC_ERR_OBJECT_NOT_FOUND && code != MC_ERR_OBJECT_ALREADY_EXISTS &&
           code != MC_ERR_PUT_IN_PROGRESS && code != MC_ERR_SPACE_SOON;
}

struct mc_spans_counts { /* since the process began */
    uint64_t sent, dropped, failed_sends;
};
struct mc_spans_counts mc_spans_counts(void);

#endif
