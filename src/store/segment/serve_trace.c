#include "store/segment/serve_trace.h"

#include "base/error.h"
#include "env/spans.h"
#include "store/wire/trace.h"

#include <stdlib.h>

struct mc_lane_traced {
    struct mc_trace_context context; /* of the request that comes next, or of the span */
    struct mc_traced *span;          /* that is open, or NULL */
    bool is_next;                    /* a request is to follow the TRACE */
    bool awaits;                     /* a COMMIT belongs to it that has not come */
    int code;
};

static void span_close(struct mc_lane_traced *traced)
{
    mc_traced_end(traced->span, traced->code);
    traced->span = NULL;
    traced->awaits = false;
    traced->code = 0;
}

int mc_lane_trace_hear(struct mc_serve_lane *lane, const struct mc_frame *frame)
{
    struct mc_trace_context context;
    if (!mc_traces_are_on() || mc_wire_trace_hear(frame, &context) < 0) /* nobody has said that we know it */
        return MC_ERR_PROTOCOL;
    if (lane->traced == NULL)
        lane->traced = calloc(1, sizeof(*lane->traced));
    if (lane->traced == NULL)
        return 0; /* there is no span */
    if (!mc_trace_equal(&context, &lane->traced->context)) {
        if (lane->traced->awaits)
            mc_lane_trace_code(lane, MC_ERR_RPC_FAIL); /* its COMMIT has not come */
        span_close(lane->traced);
    }
    lane->traced->context = context;
    lane->traced->is_next = true;
    return 0;
}

void mc_lane_trace_ask(struct mc_serve_lane *lane, unsigned type, uint64_t bytes)
{
    struct mc_lane_traced *traced = lane->traced;
    if (!traced->is_next || (traced->span != NULL && traced->awaits && type == MC_MESSAGE_READ))
        span_close(traced);
    if (traced->is_next && traced->span == NULL)
        traced->span =
            mc_traced_asked(type == MC_MESSAGE_READ ? "mooncake.node.read" : "mooncake.node.write", &traced->context);
    traced->is_next = false;
    if (traced->span == NULL)
        return;
    traced->span->path = lane->is_unix ? "shm" : "tcp";
    traced->span->bytes += bytes;
    traced->awaits = type == MC_MESSAGE_WRITE && !lane->write.is_part;
}

void mc_lane_trace_code(struct mc_serve_lane *lane, int code)
{
    struct mc_lane_traced *traced = lane->traced;
    if (traced->span != NULL)
        traced->code = traced->code < 0 ? traced->code : code;
}

void mc_lane_trace_answer(struct mc_serve_lane *lane, int code, uint64_t bytes)
{
    mc_lane_trace_code(lane, code);
    if (lane->traced->span != NULL)
        lane->traced->span->bytes += bytes;
}

void mc_lane_trace_commit(struct mc_serve_lane *lane, int code)
{
    lane->traced->awaits = false;
    mc_lane_trace_code(lane, code);
}

void mc_lane_trace_look(struct mc_serve_lane *lane)
{
    bool is_busy = lane->write.left > 0 || lane->queue_count > 0 || lane->read.active || lane->out.length > 0;
    if (lane->traced->span != NULL && !is_busy && !lane->traced->awaits)
        span_close(lane->traced);
}

void mc_lane_trace_free(struct mc_serve_lane *lane)
{
    mc_lane_trace_code(lane, MC_ERR_RPC_FAIL); /* of what has not come to an end */
    span_close(lane->traced);
    free(lane->traced);
    lane->traced = NULL;
}
