/* The slowest calls of the last minutes, and puts that are open for long: of who asks, or of all. */
#include "base/error.h"
#include "env/clock.h"
#include "store/master/http.h"
#include "store/master/slow.h"

#include <stdlib.h>

#define PER_PAGE 20u
#define OPEN_MAX 32u

struct slow_question {
    struct mc_slow_call list[MC_SLOW_MAX];
    size_t count;
    struct mc_scope scope;
    bool is_scoped;
    struct mc_core_open_put open[OPEN_MAX];
    size_t open_count;
};

static void ask_open(struct mc_core *core, void *argument)
{
    struct slow_question *question = argument;
    question->open_count =
        mc_core_open_puts(core, question->is_scoped ? &question->scope : NULL, question->open, OPEN_MAX);
}

static struct mc_span key_of(const struct mc_core_slow *call)
{
    return mc_span(call->key, call->key_length < MC_CORE_SLOW_KEY_MAX ? call->key_length : MC_CORE_SLOW_KEY_MAX);
}

static bool is_shown(const struct slow_question *question, const struct mc_core_slow *call)
{
    return !question->is_scoped || mc_scope_has(&question->scope, key_of(call));
}

static void write_call(struct mc_json_writer *writer, const struct mc_core_slow *call)
{
    struct mc_span full = key_of(call), tenant = mc_key_tenant(full), key = mc_key_local(full);
    mc_json_add_text(writer, "kind", mc_slow_name(call->kind));
    mc_http_json_add(writer, "key", key.data, key.length);
    mc_json_add_bool(writer, "key_is_cut", call->key_length > MC_CORE_SLOW_KEY_MAX);
    mc_http_json_add(writer, "tenant", tenant.data, tenant.length);
    mc_http_json_add(writer, "client", call->is_own ? "HTTP" : call->client,
                     call->is_own ? strlen("HTTP") : strlen(call->client));
    mc_json_add_number(writer, "ms", call->took_ms);
}

static void write_calls(struct mc_json_writer *writer, const struct slow_question *question, uint64_t limit)
{
    mc_json_begin(writer, "calls", '[');
    for (size_t i = 0; i < question->count && limit > 0; i++) {
        const struct mc_slow_call *call = &question->list[i];
        if (!is_shown(question, &call->call))
            continue;
        limit--;
        mc_json_begin(writer, NULL, '{');
        write_call(writer, &call->call);
        mc_http_json_add(writer, "address", call->address, strlen(call->address));
        mc_json_add_text(writer, "result", call->call.code == 0 ? "OK" : mc_error_name(call->call.code));
        mc_json_add_number(writer, "time_ms", call->wall_ms);
        mc_json_end(writer, '}');
    }
    mc_json_end(writer, ']');
    mc_json_begin(writer, "open", '[');
    for (size_t i = 0; i < question->open_count; i++) {
        mc_json_begin(writer, NULL, '{');
        write_call(writer, &question->open[i].call);
        mc_json_add_number(writer, "bytes", question->open[i].bytes);
        mc_json_add_number(writer, "replicas_missing", question->open[i].open);
        mc_json_end(writer, '}');
    }
    mc_json_end(writer, ']');
}

void mc_view_slow(const struct mc_view *view, struct mc_web_request *request)
{
    struct mc_buffer text = {.may_fail = true};
    struct mc_json_writer writer = {.out = &text};
    uint64_t limit = 0;
    struct slow_question *question = calloc(1, sizeof(*question));
    int rc = question == NULL ? MC_ERR_NO_MEMORY : 0;
    if (rc == 0 && !mc_http_scope(request, &question->scope, &question->is_scoped)) {
        free(question);
        return;
    }
    if (rc == 0 && !mc_http_number(request, "limit", PER_PAGE, MC_SLOW_MAX, &limit))
        rc = MC_ERR_INVALID_PARAMS;
    if (rc == 0)
        rc = mc_server_ask(view->server, ask_open, question, MC_HTTP_ASK_MS);
    if (rc == 0 && view->slow != NULL)
        question->count = mc_slow_read(view->slow, mc_clock_ms(), question->list);
    if (rc == 0) {
        mc_json_begin(&writer, NULL, '{');
        mc_json_add_bool(&writer, "success", true);
        mc_json_add_number(&writer, "least_ms", MC_CORE_SLOW_MS);
        write_calls(&writer, question, limit);
        mc_json_end(&writer, '}');
        mc_http_reply(request, 200, MC_HTTP_JSON, &text);
    } else {
        mc_http_reply_error(request, rc);
    }
    free(question);
}
