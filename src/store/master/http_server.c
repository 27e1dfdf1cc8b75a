/* The HTTP thread: its servers and their connections. */
#include "store/master/http_server.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "env/socket.h"
#include "env/thread.h"
#include "store/master/http.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define ALL_METHODS                                                                                                    \
    (EVHTTP_REQ_GET | EVHTTP_REQ_POST | EVHTTP_REQ_HEAD | EVHTTP_REQ_PUT | EVHTTP_REQ_DELETE | EVHTTP_REQ_OPTIONS |    \
     EVHTTP_REQ_TRACE | EVHTTP_REQ_CONNECT | EVHTTP_REQ_PATCH)

#define LOOKS_AT_ONCE 4      /* for one that has to go: many come at once */
#define IN_USE_MS 1000u      /* whoever asked within this goes only when no other is seen */
#define ACCEPTS_PER_TURN 64u /* then those that are there have theirs: who has just come is not the oldest soon */

struct mc_http_server {
    struct event_base *base;
    struct event *stop_event;
    struct evhttp *admin_http, *metadata_http;
    struct evconnlistener *listeners[2]; /* of both; NULL: there is none */
    struct event *turn_event;            /* the turn after one in which connections were accepted */
    unsigned accepted;                   /* in this turn */
    struct mc_admin *admin;
    struct mc_metadata_store *metadata;
    uint16_t metrics_port, metadata_port;
    char metadata_host[256];
    int stop_fd;
    bool is_running;
    pthread_t thread;
    /* A ring, the oldest first, with a reference of ours each; some may have ended. */
    struct bufferevent *connections[MC_HTTP_CONNECTIONS_MAX];
    size_t first, count;
};

/* ---- connections ---- */

/* evhttp tells nobody when one ends, but takes its callbacks away then; the reference is ours, so that can be seen. */
static bool has_ended(struct bufferevent *connection)
{
    bufferevent_event_cb on_event;
    bufferevent_getcb(connection, NULL, NULL, &on_event, NULL);
    return on_event == NULL;
}

/* Since it sent something. */
static uint32_t idle_ms(struct bufferevent *connection)
{
    struct tcp_info info = {0};
    socklen_t size = sizeof(info);
    int rc = getsockopt(bufferevent_getfd(connection), IPPROTO_TCP, TCP_INFO, &info, &size);
    return rc == 0 ? info.tcpi_last_data_recv : UINT32_MAX;
}

static void ring_add(struct mc_http_server *http, struct bufferevent *connection)
{
    http->connections[(http->first + http->count++) % MC_HTTP_CONNECTIONS_MAX] = connection;
}

static struct bufferevent *ring_take(struct mc_http_server *http)
{
    struct bufferevent *oldest = http->connections[http->first];
    http->first = (http->first + 1) % MC_HTTP_CONNECTIONS_MAX;
    http->count--;
    return oldest;
}

static void forget_ended(struct mc_http_server *http)
{
    for (size_t left = http->count; left > 0; left--) {
        struct bufferevent *one = ring_take(http);
        if (has_ended(one))
            (void)bufferevent_decref(one);
        else
            ring_add(http, one);
    }
}

/* Nothing has come that was not read yet, and no answer is on its way. */
static bool waits_for_peer(struct bufferevent *connection)
{
    return evbuffer_get_length(bufferevent_get_output(connection)) == 0 &&
           mc_socket_is_silent(bufferevent_getfd(connection));
}

/* Of the oldest few, one that has ended, or one that has not asked lately and whose request has not just come; else any
 * that says nothing; else the oldest. Those that stay are looked at again after all others. */
static struct bufferevent *take_one(struct mc_http_server *http)
{
    struct bufferevent *silent = NULL;
    for (size_t looked = 0; looked < LOOKS_AT_ONCE; looked++) {
        struct bufferevent *one = ring_take(http);
        bool is_silent = has_ended(one) || waits_for_peer(one);
        if (has_ended(one) || (is_silent && idle_ms(one) > IN_USE_MS)) {
            if (silent != NULL)
                ring_add(http, silent);
            return one;
        }
        if (is_silent && silent == NULL)
            silent = one;
        else
            ring_add(http, one);
    }
    return silent != NULL ? silent : ring_take(http);
}

/* evhttp sees the end of a connection that is shut down, and frees it. Its place is given on at once. */
static void make_place(struct mc_http_server *http)
{
    struct bufferevent *one = take_one(http);
    if (!has_ended(one))
        (void)shutdown(bufferevent_getfd(one), SHUT_RDWR);
    (void)bufferevent_decref(one);
}

static void on_turn(evutil_socket_t fd, short events, void *argument)
{
    struct mc_http_server *http = argument;
    (void)fd, (void)events;
    http->accepted = 0;
    forget_ended(http);
    for (size_t i = 0; i < 2; i++)
        if (http->listeners[i] != NULL)
            (void)evconnlistener_enable(http->listeners[i]);
}

/* The listener would take all that wait, before anybody is read. */
static void accepted_one(struct mc_http_server *http)
{
    static const struct timeval now = {0, 0};
    if (http->accepted++ == 0)
        (void)event_add(http->turn_event, &now);
    for (size_t i = 0; i < 2 && http->accepted >= ACCEPTS_PER_TURN; i++)
        if (http->listeners[i] != NULL)
            (void)evconnlistener_disable(http->listeners[i]);
}

/* evhttp asks for the bufferevent of a connection that it has just accepted; it has no limit of connections itself. */
static struct bufferevent *on_connection(struct event_base *base, void *argument)
{
    struct mc_http_server *http = argument;
    accepted_one(http);
    if (http->count == MC_HTTP_CONNECTIONS_MAX)
        make_place(http);
    struct bufferevent *connection = bufferevent_socket_new(base, -1, 0);
    if (connection != NULL) {
        bufferevent_incref(connection);
        ring_add(http, connection);
    }
    return connection;
}

static struct evhttp *create_server(struct mc_http_server *http, int fd, struct evconnlistener **listener,
                                    void (*handle)(struct evhttp_request *, void *), void *context)
{
    struct evhttp_bound_socket *bound;
    struct evhttp *server = evhttp_new(http->base);
    if (server == NULL)
        return NULL;
    evhttp_set_allowed_methods(server, ALL_METHODS);
    evhttp_set_max_headers_size(server, MC_HTTP_HEADER_MAX);
    evhttp_set_max_body_size(server, MC_HTTP_BODY_MAX);
    evhttp_set_timeout(server, MC_HTTP_TIMEOUT_S);
    evhttp_set_default_content_type(server, MC_HTTP_TEXT);
    evhttp_set_bevcb(server, on_connection, http);
    evhttp_set_gencb(server, handle, context);
    bound = evhttp_accept_socket_with_handle(server, fd);
    if (bound == NULL) {
        evhttp_free(server);
        return NULL;
    }
    *listener = evhttp_bound_socket_get_listener(bound);
    return server; /* which owns the descriptor now */
}

/* ---- life ---- */

static void on_stop(evutil_socket_t fd, short events, void *argument)
{
    struct mc_http_server *http = argument;
    (void)fd, (void)events;
    (void)event_base_loopbreak(http->base);
}

static void *run(void *argument)
{
    struct mc_http_server *http = argument;
    if (event_base_dispatch(http->base) < 0)
        mc_log(ERROR, "the HTTP servers have stopped: the event loop failed");
    return NULL;
}

static int open_port(const char *host, uint16_t *port, const char *flag, int *fd, char *error, size_t error_size)
{
    *fd = mc_server_listen(host, port, flag, error, error_size);
    return *fd < 0 ? *fd : 0;
}

int mc_http_create(struct mc_server *server, const struct mc_master_config *config, struct mc_http_server **out,
                   char *error, size_t error_size)
{
    int rc, admin_fd = -1, metadata_fd = -1;
    struct mc_http_server *http = calloc(1, sizeof(*http));
    if (http == NULL)
        return MC_ERR_NO_MEMORY;
    http->stop_fd = -1;
    http->metrics_port = config->metrics_port;
    http->metadata_port = config->metadata_port;
    snprintf(http->metadata_host, sizeof(http->metadata_host), "%s", config->metadata_host);
    rc = server == NULL
             ? 0
             : open_port(config->metrics_host, &http->metrics_port, "metrics_port", &admin_fd, error, error_size);
    if (rc == 0 && config->metadata_enabled)
        rc = open_port(config->metadata_host, &http->metadata_port,
                       server == NULL ? "port" : "http_metadata_server_port", &metadata_fd, error, error_size);
    if (rc < 0)
        goto fail;
    rc = MC_ERR_NO_MEMORY;
    snprintf(error, error_size, "the HTTP servers cannot be set up: %s", mc_error_text(rc));
    http->base = event_base_new();
    http->stop_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    http->admin = server == NULL ? NULL : mc_admin_create(server, config, metadata_fd < 0 ? 0 : http->metadata_port);
    http->metadata = http->base == NULL ? NULL : mc_metadata_create(http->base, config->metadata_max_bytes);
    if (http->base == NULL || http->stop_fd < 0 || (http->admin == NULL) != (server == NULL) || http->metadata == NULL)
        goto fail;
    http->stop_event = event_new(http->base, http->stop_fd, EV_READ, on_stop, http);
    http->turn_event = evtimer_new(http->base, on_turn, http);
    if (http->turn_event == NULL || http->stop_event == NULL || event_add(http->stop_event, NULL) != 0)
        goto fail;
    http->admin_http =
        admin_fd < 0 ? NULL : create_server(http, admin_fd, &http->listeners[0], mc_admin_handle, http->admin);
    if (admin_fd >= 0 && http->admin_http == NULL)
        goto fail;
    admin_fd = -1;
    http->metadata_http =
        metadata_fd < 0 ? NULL
                        : create_server(http, metadata_fd, &http->listeners[1], mc_metadata_handle, http->metadata);
    if (metadata_fd >= 0 && http->metadata_http == NULL)
        goto fail;
    *out = http;
    return 0;
fail:
    mc_fd_close(admin_fd);
    if (metadata_fd >= 0 && http->metadata_http == NULL)
        close(metadata_fd);
    mc_http_destroy(http);
    return rc;
}

int mc_http_start(struct mc_http_server *http)
{
    if (mc_thread_start(&http->thread, "mc-http", run, http) != 0)
        return MC_ERR_INTERNAL_ERROR;
    http->is_running = true;
    if (http->admin_http != NULL) {
        mc_log(INFO, "HTTP metrics server started on port %u", (unsigned)http->metrics_port);
        mc_log(INFO, "Master admin server started on port %u", (unsigned)http->metrics_port);
    }
    if (http->metadata_http != NULL)
        mc_log(INFO, "HTTP metadata server started on %s:%u", http->metadata_host, (unsigned)http->metadata_port);
    return 0;
}

void mc_http_destroy(struct mc_http_server *http)
{
    uint64_t one = 1;
    if (http == NULL)
        return;
    if (http->is_running) {
        mc_assert(write(http->stop_fd, &one, sizeof(one)) == (ssize_t)sizeof(one));
        pthread_join(http->thread, NULL);
    }
    if (http->admin_http != NULL)
        evhttp_free(http->admin_http);
    if (http->metadata_http != NULL)
        evhttp_free(http->metadata_http);
    while (http->count > 0)
        (void)bufferevent_decref(ring_take(http));
    if (http->stop_event != NULL)
        event_free(http->stop_event);
    if (http->turn_event != NULL)
        event_free(http->turn_event);
    mc_metadata_destroy(http->metadata); /* has events of the base */
    if (http->base != NULL)
        event_base_free(http->base);
    mc_admin_destroy(http->admin);
    mc_fd_close(http->stop_fd);
    free(http);
}
