#include "store/master/traced.h"

#include "env/spans.h"
#include "store/wire/trace.h"

#include <stdlib.h>

struct mc_master_traced {
    struct mc_trace_context context;
    uint64_t request_id;
    bool is_next;           /* that request has not come yet */
    struct mc_traced *span; /* of it, until its answer; or NULL */
};

/* Requests of which there are spans. */
static const char *span_name(unsigned type)
{
    switch (type) {
    case MC_MESSAGE_PUT_START:
        return "mooncake.master.put_start";
    case MC_MESSAGE_GET:
        return "mooncake.master.get";
    case MC_MESSAGE_EXIST:
        return "mooncake.master.exist";
    case MC_MESSAGE_HINT:
        return "mooncake.master.hint";
    case MC_MESSAGE_REMOVE:
    case MC_MESSAGE_REMOVE_REGEX:
    case MC_MESSAGE_REMOVE_ALL:
        return "mooncake.master.remove";
    default:
        return NULL;
    }
}

static void span_close(struct mc_master_traced *traced, int code)
{
    mc_traced_end(traced->span, code);
    traced->span = NULL;
}

/* It was not answered, and will not be heard of any more. */
static void span_leave(struct mc_master_traced *traced)
{
    span_close(traced, MC_ERR_RPC_TIMEOUT);
}

bool mc_master_trace_take(struct connection *connection, const struct mc_frame *frame)
{
    struct mc_master_traced *traced = connection->traced;
    struct mc_trace_context context;
    if (frame->type == MC_MESSAGE_TRACE) {
        if (mc_wire_trace_hear(frame, &context) < 0)
            return false; /* the core knows no such message, and ends the connection */
        if (traced == NULL)
            traced = connection->traced = calloc(1, sizeof(*traced));
        if (traced == NULL)
            return true; /* there is no span */
        span_leave(traced);
        traced->context = context;
        traced->request_id = frame->request_id;
        traced->is_next = true;
        return true;
    }
    const char *name = traced != NULL && traced->is_next ? span_name(frame->type) : NULL;
    if (name == NULL || frame->request_id != traced->request_id)
        return false;
    traced->is_next = false;
    traced->span = mc_traced_asked(name, &traced->context);
    return false;
}

struct outcome {
    uint32_t items, good; /* how many there are, and of them those that went well */
    int code;             /* of the first that failed, or else of the first that did not go well, or 0 */
};

static void item_note(struct outcome *answer, int code)
{
    answer->good += code >= 0;
    if (code < 0 && (answer->code >= 0 || (mc_traced_is_failure(code) && !mc_traced_is_failure(answer->code))))
        answer->code = code;
}

static struct outcome answer_read(const struct mc_frame *frame)
{
    struct outcome answer = {.code = 0};
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_failed failed;
    struct mc_wire_none none;
    struct mc_wire_code code = {.code = 0};
    if (frame->type == MC_MESSAGE_FAILED) {
        mc_wire_failed_read(&reader, &failed);
        answer.code = failed.code;
        return answer;
    }
    if (frame->type != MC_MESSAGE_PUT_GRANTED && frame->type != MC_MESSAGE_GET_FOUND &&
        frame->type != MC_MESSAGE_PUT_DONE && frame->type != MC_MESSAGE_REMOVE_REPLY)
        return answer;
    mc_wire_none_read(&reader, &none);
    answer.items = mc_list_read(&reader);
    for (uint32_t left = answer.items; left > 0 && !reader.bad; left--) {
        mc_wire_code_read(&reader, &code); /* each of these records begins with one */
        item_note(&answer, code.code);
    }
    return answer;
}

static void answer_note(struct mc_master_traced *traced, const struct mc_frame *frame)
{
    if (traced->span == NULL || frame->request_id != traced->request_id)
        return;
    const struct outcome answer = answer_read(frame);
    traced->span->keys = answer.items;
    span_close(traced, answer.code);
    /* From the grant of one of them until the owners have said that it is there. */
    if (frame->type == MC_MESSAGE_PUT_GRANTED && answer.good > 0)
        traced->span = mc_traced_asked("mooncake.master.put_done", &traced->context);
}

void mc_master_trace_answers(struct connection *connection)
{
    const struct mc_buffer *out = &connection->out;
    size_t at = connection->out_sent + connection->backlog, used; /* what was not sent before was looked at before */
    struct mc_frame frame;
    if (connection->traced->span == NULL || out->failed)
        return;
    while (at < out->length && mc_frame_parse(out->data + at, out->length - at, &frame, &used) == 1) {
        answer_note(connection->traced, &frame);
        at += used;
    }
}

void mc_master_trace_free(struct connection *connection)
{
    span_leave(connection->traced);
    free(connection->traced);
    connection->traced = NULL;
}
