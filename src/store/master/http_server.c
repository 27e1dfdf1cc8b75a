/* The HTTP thread: its servers and their connections. */
#include "store/master/http_server.h"

#include "base/error.h"
#include "env/channel.h"
#include "env/clock.h"
#include "env/log.h"
#include "env/socket.h"
#include "env/thread.h"
#include "store/master/http.h"

#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define ALL_METHODS                                                                                                    \
    (EVHTTP_REQ_GET | EVHTTP_REQ_POST | EVHTTP_REQ_HEAD | EVHTTP_REQ_PUT | EVHTTP_REQ_DELETE | EVHTTP_REQ_OPTIONS |    \
     EVHTTP_REQ_TRACE | EVHTTP_REQ_CONNECT | EVHTTP_REQ_PATCH)

#define LOOKS_AT_ONCE 4 /* for one that has to go: many come at once */
#define IN_USE_MS 1000u /* whoever asked within this goes only when no other is seen */
#define QUOTAS_EVERY_MS 500
#define ACCEPTS_PER_TURN 64u /* then those that are there have theirs: who has just come is not the oldest soon */

/* A connection. evhttp tells nobody when one ends. A reference to its bufferevent would keep that registered under a
 * number that the next connection has, which would then not be read; so it is known by the inode of its socket. */
struct seat {
    int fd;
    uint64_t inode;
};

struct mc_http_server {
    struct event_base *base;
    struct event *stop_event;
    struct evhttp *admin_http, *metadata_http;
    struct evconnlistener *listeners[2]; /* of both; NULL: there is none */
    struct event *turn_event;            /* the turn after one in which connections were accepted */
    unsigned accepted;                   /* in this turn */
    struct event *quota_event;           /* others may have changed them; NULL: nobody can */
    struct mc_server *server;
    struct mc_quotas *quotas;
    struct mc_admin *admin;
    struct mc_metadata_store *metadata;
    uint16_t metrics_port, metadata_port;
    char metadata_host[256];
    int stop_fd;
    bool is_running;
    pthread_t thread;
    struct bufferevent *latest; /* with a reference of ours until its descriptor is known, which evhttp gives it */
    struct seat seats[MC_HTTP_CONNECTIONS_MAX]; /* a ring, the oldest first; some may have ended */
    size_t first, count;
};

/* ---- connections ---- */

/* 0: that is no socket. */
static uint64_t inode_of(int fd)
{
    struct stat found;
    return fd >= 0 && fstat(fd, &found) == 0 && S_ISSOCK(found.st_mode) ? (uint64_t)found.st_ino : 0;
}

static bool has_ended(struct seat seat)
{
    return inode_of(seat.fd) != seat.inode;
}

/* Since it sent something. */
static uint32_t idle_ms(struct seat seat)
{
    struct tcp_info info = {0};
    socklen_t size = sizeof(info);
    int rc = getsockopt(seat.fd, IPPROTO_TCP, TCP_INFO, &info, &size);
    return rc == 0 ? info.tcpi_last_data_recv : UINT32_MAX;
}

static void ring_add(struct mc_http_server *http, struct seat seat)
{
    http->seats[(http->first + http->count++) % MC_HTTP_CONNECTIONS_MAX] = seat;
}

static struct seat ring_take(struct mc_http_server *http)
{
    struct seat oldest = http->seats[http->first];
    http->first = (http->first + 1) % MC_HTTP_CONNECTIONS_MAX;
    http->count--;
    return oldest;
}

/* Gives the latest one its seat; there is one. */
static void settle(struct mc_http_server *http)
{
    if (http->latest == NULL)
        return;
    struct seat seat = {.fd = bufferevent_getfd(http->latest)};
    seat.inode = inode_of(seat.fd);
    if (seat.inode != 0)
        ring_add(http, seat);
    (void)bufferevent_decref(http->latest);
    http->latest = NULL;
}

static void forget_ended(struct mc_http_server *http)
{
    for (size_t left = http->count; left > 0; left--) {
        struct seat one = ring_take(http);
        if (!has_ended(one))
            ring_add(http, one);
    }
}

/* Nothing has come that was not read yet, and no answer is on its way. */
static bool waits_for_peer(struct seat seat)
{
    int unsent = 0;
    return mc_socket_is_silent(seat.fd) && ioctl(seat.fd, SIOCOUTQ, &unsent) == 0 && unsent == 0;
}

/* Of the oldest few, one that has ended, or one that has not asked lately and whose request has not just come; else any
 * that says nothing; else the oldest. Those that stay are looked at again after all others. */
static struct seat take_one(struct mc_http_server *http)
{
    struct seat silent = {.fd = -1};
    for (size_t looked = 0; looked < LOOKS_AT_ONCE; looked++) {
        struct seat one = ring_take(http);
        bool is_over = has_ended(one), is_silent = !is_over && waits_for_peer(one);
        if (is_over || (is_silent && idle_ms(one) > IN_USE_MS)) {
            if (silent.fd >= 0)
                ring_add(http, silent);
            return one;
        }
        if (is_silent && silent.fd < 0)
            silent = one;
        else
            ring_add(http, one);
    }
    return silent.fd >= 0 ? silent : ring_take(http);
}

/* evhttp sees the end of a connection that is shut down, and frees it. Its seat is given on at once. */
static void make_place(struct mc_http_server *http)
{
    struct seat one = take_one(http);
    if (!has_ended(one))
        (void)shutdown(one.fd, SHUT_RDWR);
}

static void on_turn(evutil_socket_t fd, short events, void *argument)
{
    struct mc_http_server *http = argument;
    (void)fd, (void)events;
    http->accepted = 0;
    settle(http);
    forget_ended(http);
    for (size_t i = 0; i < 2; i++)
        if (http->listeners[i] != NULL)
            (void)evconnlistener_enable(http->listeners[i]);
}

static void on_quotas(evutil_socket_t fd, short events, void *argument)
{
    struct mc_http_server *http = argument;
    (void)fd, (void)events;
    mc_tenants_refresh(http->server, http->quotas);
}

/* False: out of memory. */
static bool look_at_quotas(struct mc_http_server *http, struct mc_server *server, const struct mc_master_config *config)
{
    static const struct timeval every = {0, QUOTAS_EVERY_MS * 1000};
    if (server == NULL || config->quotas == NULL || !config->quotas_in_etcd)
        return true;
    http->server = server;
    http->quotas = config->quotas;
    http->quota_event = event_new(http->base, -1, EV_PERSIST, on_quotas, http);
    return http->quota_event != NULL && event_add(http->quota_event, &every) == 0;
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
    settle(http);
    if (http->count == MC_HTTP_CONNECTIONS_MAX)
        make_place(http);
    http->latest = mc_channel_accept(base, -1, 0);
    if (http->latest != NULL)
        bufferevent_incref(http->latest);
    return http->latest;
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
    if (http->turn_event == NULL || http->stop_event == NULL || event_add(http->stop_event, NULL) != 0 ||
        !look_at_quotas(http, server, config))
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
    settle(http);
    if (http->stop_event != NULL)
        event_free(http->stop_event);
    if (http->turn_event != NULL)
        event_free(http->turn_event);
    if (http->quota_event != NULL)
        event_free(http->quota_event);
    mc_metadata_destroy(http->metadata); /* has events of the base */
    if (http->base != NULL)
        event_base_free(http->base);
    mc_admin_destroy(http->admin);
    mc_fd_close(http->stop_fd);
    free(http);
}
