/* POST /api/v1/remove_all of the admin port: begins a removal in the core, looks now and then whether it is done, and
 * answers how many objects went. */
#include "base/error.h"
#include "env/clock.h"
#include "store/master/http.h"

#include <stdio.h>
#include <time.h>

#define LOOK_MS 20u
#define BEGIN_MS 5000u /* a master that has just begun to lead removes nothing yet */
#define MOST_MS 65000u /* as clients wait */

struct removing {
    bool force;
    bool is_scoped; /* else all */
    struct mc_scope scope;
    bool is_given_up;
    uint64_t id; /* 0: it has not begun */
    uint64_t count;
    int rc; /* 1: not done yet */
};

static void ask_remove(struct mc_core *core, void *argument)
{
    struct removing *removing = argument;
    if (removing->id != 0) {
        removing->rc = mc_core_removal(core, removing->id, removing->is_given_up, &removing->count);
        return;
    }
    removing->rc =
        mc_core_remove_all(core, removing->is_scoped ? &removing->scope : NULL, removing->force, &removing->id);
    if (removing->rc == 0)
        removing->rc = 1;
}

/* Begins it, and looks how far it is until it is done or nobody waits for it any more: then the rest stays. */
static int remove_all(struct mc_server *server, const struct mc_web_request *request, struct removing *removing)
{
    static const struct timespec soon = {0, LOOK_MS * 1000000};
    uint64_t began_ms = mc_clock_ms();
    for (;;) {
        int rc = mc_server_ask(server, ask_remove, removing, MC_HTTP_ASK_MS);
        rc = rc < 0 ? rc : removing->rc;
        bool is_early = rc == MC_ERR_BUSY && removing->id == 0;
        if (rc != 1 && !is_early) /* stale: another master leads, or this one again, which knows nothing of it */
            return rc == MC_ERR_STALE ? MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS : rc;
        if (mc_clock_ms() - began_ms > (is_early ? BEGIN_MS : MOST_MS) || !mc_web_is_awaited(request))
            break;
        (void)nanosleep(&soon, NULL);
    }
    removing->is_given_up = true;
    if (removing->id != 0)
        (void)mc_server_ask(server, ask_remove, removing, MC_HTTP_ASK_MS);
    return MC_ERR_RPC_TIMEOUT;
}

void mc_remove_all(struct mc_server *server, struct mc_web_request *request)
{
    struct removing removing = {.id = 0};
    struct mc_buffer force = {0}, text = {0};
    if (!mc_http_scope(request, &removing.scope, &removing.is_scoped))
        return;
    removing.force = mc_http_parameter(request, "force", &force) &&
                     (mc_span_equal(mc_span(force.data, force.length), mc_span_string("true")) ||
                      mc_span_equal(mc_span(force.data, force.length), mc_span_string("1")));
    mc_buffer_free(&force);
    int rc = remove_all(server, request, &removing);
    if (rc < 0) {
        mc_http_reply_error(request, rc);
        return;
    }
    mc_buffer_printf(&text, "{\"success\":true,\"removed_count\":%llu}", (unsigned long long)removing.count);
    mc_http_reply(request, 200, MC_HTTP_JSON, &text);
}
