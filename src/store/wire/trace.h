/* The context of a trace on its way: a frame before the request that is a part of it, and nothing at all else. */
#ifndef MC_WIRE_TRACE_H
#define MC_WIRE_TRACE_H

#include "base/error.h"
#include "base/trace.h"
#include "env/spans.h"
#include "store/wire/version.h"

#define MC_WIRE_TRACE_BYTES 43u /* of such a frame, as this build makes it */

/* Before a request is made: of what it is a part. Only what is sampled is carried, as nothing else is of use. */
static inline void mc_wire_trace_say(struct mc_buffer *out, uint64_t request_id, const struct mc_trace_context *trace)
{
    if (!mc_trace_is_sampled(trace))
        return;
    const struct mc_wire_trace head = {.trace = trace->id, .span = trace->span, .flags = trace->flags};
    mc_wire_trace_frame(out, mc_frame_begin(out, MC_MESSAGE_TRACE, request_id), &head);
}

/* The same of what the thread is doing, if the peer wants to know. */
static inline void mc_wire_trace_tell(struct mc_buffer *out, uint64_t request_id, const struct mc_wire_peer *peer)
{
    if (mc_traces_are_on() && mc_wire_can(peer, MC_FEATURE_TRACES)) {
        const struct mc_trace_context now = mc_trace_now();
        mc_wire_trace_say(out, request_id, &now);
    }
}

/* 0 or MC_ERR_PROTOCOL. */
static inline int mc_wire_trace_hear(const struct mc_frame *frame, struct mc_trace_context *trace)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_trace head;
    mc_wire_trace_read(&reader, &head);
    if (reader.bad || mc_reader_left(&reader) != 0)
        return MC_ERR_PROTOCOL;
    *trace = (struct mc_trace_context){head.trace, head.span, head.flags};
    return 0;
}

#endif
