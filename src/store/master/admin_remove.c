/* POST /api/v1/remove_all of the admin port: begins a removal in the core, looks now and then whether it is done, and
 * answers how many objects went. HTTP thread only. */
#include "base/error.h"
#include "env/clock.h"
#include "store/master/http.h"

#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_MS 20u
#define BEGIN_MS 5000u /* a master that has just begun to lead removes nothing yet */
#define MOST_MS 65000u /* as clients wait */

struct removing {
    struct mc_server *server;
    struct evhttp_request *request;
    struct event *timer;
    uint64_t id; /* 0: it has not begun */
    uint64_t began_ms;
    bool force;
    char tenant[64]; /* "": all */
};

struct remove_question {
    const struct removing *removing;
    bool is_given_up;
    uint64_t id, count;
    int rc; /* 1: not done yet */
};

static void ask_remove(struct mc_core *core, void *argument)
{
    struct remove_question *question = argument;
    const struct removing *removing = question->removing;
    if (question->id != 0) {
        question->rc = mc_core_removal(core, question->id, question->is_given_up, &question->count);
        return;
    }
    question->rc = mc_core_remove_all(core, mc_span_string(removing->tenant), removing->force, &question->id);
    if (question->rc == 0)
        question->rc = 1;
}

static void removing_free(struct removing *removing)
{
    if (removing->timer != NULL)
        event_free(removing->timer);
    free(removing);
}

/* Nobody waits for it any more: the rest stays. */
static void give_up(const struct removing *removing)
{
    struct remove_question question = {.removing = removing, .is_given_up = true, .id = removing->id};
    if (removing->id != 0)
        (void)mc_server_ask(removing->server, ask_remove, &question, MC_HTTP_ASK_MS);
}

/* evhttp frees the request, or has left it to us. */
static void on_closed(struct evhttp_connection *connection, void *argument)
{
    struct removing *removing = argument;
    (void)connection;
    give_up(removing);
    if (evhttp_request_get_connection(removing->request) == NULL)
        evhttp_request_free(removing->request);
    removing_free(removing);
}

static void reply(struct removing *removing, int rc, uint64_t count)
{
    struct evhttp_request *request = removing->request;
    struct mc_buffer text = {0};
    evhttp_connection_set_closecb(evhttp_request_get_connection(request), NULL, NULL);
    removing_free(removing);
    if (rc < 0) {
        mc_http_reply_error(request, rc);
        return;
    }
    mc_buffer_printf(&text, "{\"success\":true,\"removed_count\":%llu}", (unsigned long long)count);
    mc_http_reply(request, 200, MC_HTTP_JSON, &text);
}

/* Begins it, or looks how far it is; again later while it is not done. */
static void go_on(evutil_socket_t fd, short events, void *argument)
{
    static const struct timeval soon = {0, LOOK_MS * 1000};
    struct removing *removing = argument;
    struct remove_question question = {.removing = removing, .id = removing->id};
    (void)fd, (void)events;
    int rc = mc_server_ask(removing->server, ask_remove, &question, MC_HTTP_ASK_MS);
    rc = rc < 0 ? rc : question.rc;
    bool is_early = rc == MC_ERR_BUSY && removing->id == 0;
    removing->id = question.id;
    if (rc == 1 || is_early) {
        bool is_late = mc_clock_ms() - removing->began_ms > (is_early ? BEGIN_MS : MOST_MS);
        if (!is_late && event_add(removing->timer, &soon) == 0)
            return;
        give_up(removing);
        rc = MC_ERR_RPC_TIMEOUT;
    }
    /* Another master leads, or this one again: what was asked of it before is not known there. */
    reply(removing, rc == MC_ERR_STALE ? MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS : rc, question.count);
}

void mc_remove_all(struct mc_server *server, struct evhttp_request *request)
{
    struct mc_buffer force = {0};
    struct mc_scope scope;
    bool is_said;
    if (!mc_http_scope(request, &scope, &is_said))
        return;
    struct removing *removing = calloc(1, sizeof(*removing));
    struct evhttp_connection *connection = evhttp_request_get_connection(request);
    struct event_base *base = evhttp_connection_get_base(connection);
    if (removing != NULL)
        removing->timer = evtimer_new(base, go_on, removing);
    if (removing == NULL || removing->timer == NULL) {
        free(removing);
        mc_http_reply_error(request, MC_ERR_NO_MEMORY);
        return;
    }
    struct mc_span name = scope.length == 0 ? mc_span_string(MC_TENANT_DEFAULT) : mc_scope_name(&scope);
    if (is_said)
        snprintf(removing->tenant, sizeof(removing->tenant), "%.*s", (int)name.length, (const char *)name.data);
    removing->force = mc_http_parameter(request, "force", &force) &&
                      (mc_span_equal(mc_span(force.data, force.length), mc_span_string("true")) ||
                       mc_span_equal(mc_span(force.data, force.length), mc_span_string("1")));
    mc_buffer_free(&force);
    removing->server = server;
    removing->request = request;
    removing->began_ms = mc_clock_ms();
    evhttp_connection_set_closecb(connection, on_closed, removing);
    go_on(-1, 0, removing);
}
