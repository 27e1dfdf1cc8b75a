/* Listens, starts and ends: the shell around everything else. */
#include "proxy/proxy.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/exposed.h"
#include "env/limits.h"
#include "env/log.h"
#include "env/unread.h"

#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKLOG 4096
#define PULSE_MS 250
#define ACCEPTS_PER_TURN 64u /* then those that are there have theirs */
#define EVENTS_PER_TURN 64   /* so that one busy connection does not hold up the timers */

/* ---- clients ---- */

/* One more than there are places is taken while somebody can leave for it. */
static bool has_room(const struct mc_proxy *proxy)
{
    size_t most = proxy->config->connections_max;
    return !proxy->is_draining && proxy->accepted < ACCEPTS_PER_TURN &&
           (proxy->client_count < most || (proxy->client_count == most && proxy->waiting.oldest != NULL));
}

static void listen_more(struct mc_proxy *proxy)
{
    bool wanted = has_room(proxy);
    if (proxy->listener == NULL || wanted == proxy->accepts)
        return;
    int rc = wanted ? evconnlistener_enable(proxy->listener) : evconnlistener_disable(proxy->listener);
    if (rc == 0)
        proxy->accepts = wanted;
}

static void on_ended(struct mc_proxy *proxy)
{
    listen_more(proxy);
    if (proxy->is_draining && proxy->client_count == 0)
        (void)event_base_loopbreak(proxy->base);
}

static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *address, int size,
                      void *context)
{
    static const struct timeval now = {0, 0};
    struct mc_proxy *proxy = context;
    (void)listener, (void)address, (void)size;
    if (proxy->accepted++ == 0)
        (void)event_add(proxy->turn, &now);
    mc_client_accept(proxy, fd);
    if (proxy->client_count > proxy->config->connections_max)
        (void)mc_client_make_room(proxy);
    listen_more(proxy);
}

/* The turn after one in which connections were accepted. */
static void on_turn(evutil_socket_t fd, short what, void *context)
{
    struct mc_proxy *proxy = context;
    (void)fd, (void)what;
    proxy->accepted = 0;
    if (proxy->client_count > proxy->config->connections_max)
        (void)mc_client_make_room(proxy);
    listen_more(proxy);
}

/* Without descriptors accepting fails at once, again and again: rests until the next tick instead, when nobody can
 * leave. */
static void on_accept_error(struct evconnlistener *listener, void *context)
{
    struct mc_proxy *proxy = context;
    int error = errno;
    if (error == EMFILE && mc_client_make_room(proxy))
        return;
    errno = error;
    mc_log_limited(ERROR, "a connection cannot be accepted: %s", strerror(errno));
    if (evconnlistener_disable(listener) == 0)
        proxy->accepts = false;
}

static void on_tick(evutil_socket_t fd, short what, void *context)
{
    struct mc_proxy *proxy = context;
    on_turn(fd, what, context);
    if (!proxy->is_draining)
        mc_check_all(proxy);
}

static void on_pulse(evutil_socket_t fd, short what, void *context)
{
    (void)fd, (void)what;
    mc_check_pulse(context);
}

/* ---- the end ---- */

static void on_drained(evutil_socket_t fd, short what, void *context)
{
    struct mc_proxy *proxy = context;
    (void)fd, (void)what;
    mc_log(WARNING, "%zu requests have not ended in time and are broken off", proxy->request_count);
    (void)event_base_loopbreak(proxy->base);
}

/* The first signal lets requests end; the second one does not wait. */
static void on_hangup(evutil_socket_t fd, short what, void *unused)
{
    (void)fd, (void)what, (void)unused;
    mc_unread_hangup();
}

static void on_signal(evutil_socket_t fd, short what, void *context)
{
    struct mc_proxy *proxy = context;
    struct timeval longest = mc_proxy_time(proxy->config->drain_ms);
    (void)fd, (void)what;
    if (proxy->is_draining) {
        (void)event_base_loopbreak(proxy->base);
        return;
    }
    mc_log(INFO, "ending: %zu requests are under way", proxy->request_count);
    proxy->is_draining = true;
    evconnlistener_free(proxy->listener);
    proxy->listener = NULL;
    struct mc_client *next;
    for (struct mc_client *at = proxy->clients; at != NULL; at = next) {
        next = mc_client_next(at);
        mc_client_finish(at);
    }
    if (event_add(proxy->drain_timer, &longest) != 0)
        (void)event_base_loopbreak(proxy->base);
    on_ended(proxy);
}

/* ---- the start ---- */

static int add_instances(struct mc_proxy *proxy, enum mc_proxy_role role, const struct mc_proxy_address *addresses,
                         size_t count, char *error, size_t error_size)
{
    for (size_t i = 0; i < count; i++) {
        const char *problem = "";
        if (mc_instances_add(&proxy->instances, role, &addresses[i], &problem) == NULL) {
            (void)snprintf(error, error_size, "%s: %s", addresses[i].name, problem);
            return MC_ERR_INVALID_PARAMS;
        }
    }
    return 0;
}

static int start_listening(struct mc_proxy *proxy, char *error, size_t error_size)
{
    uint16_t port = proxy->config->port;
    int fd = mc_tcp_listen(proxy->config->host, &port);
    if (fd < 0) {
        (void)snprintf(error, error_size, "--port=%u of --host=%.200s cannot be opened: %s", port, proxy->config->host,
                       strerror(errno));
        return fd;
    }
    proxy->listener =
        evconnlistener_new(proxy->base, on_accept, proxy, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, BACKLOG, fd);
    if (proxy->listener == NULL) {
        (void)close(fd);
        (void)snprintf(error, error_size, "port %u cannot be listened to", port);
        return MC_ERR_INTERNAL_ERROR;
    }
    evconnlistener_set_error_cb(proxy->listener, on_accept_error);
    proxy->accepts = true;
    mc_log(INFO, "Proxy started on port %u: %zu prefill and %zu decode instances, %s", port,
           proxy->instances.count[MC_PROXY_PREFILL], proxy->instances.count[MC_PROXY_DECODE],
           proxy->config->policy->name);
    mc_exposed_say(MC_EXPOSED_PROXY, fd);
    return 0;
}

static int create_events(struct mc_proxy *proxy)
{
    struct timeval interval = mc_proxy_time(proxy->config->health_interval_ms);
    struct event_config *wanted = event_config_new();
    struct timeval slice = mc_proxy_time(5), pulse = mc_proxy_time(PULSE_MS);
    if (wanted != NULL && event_config_set_max_dispatch_interval(wanted, &slice, EVENTS_PER_TURN, 1) == 0)
        proxy->base = event_base_new_with_config(wanted);
    if (wanted != NULL)
        event_config_free(wanted);
    if (proxy->base == NULL || event_base_priority_init(proxy->base, 2) != 0)
        return MC_ERR_NO_MEMORY;
    proxy->dns = evdns_base_new(proxy->base, EVDNS_BASE_DISABLE_WHEN_INACTIVE);
    /* Not by a flag of the call before: where the file names no server, or is not there, that gives nothing at all. So
     * the hosts file is known even then, and whatever else is asked for, of this machine, as the C library does. */
    if (proxy->dns != NULL && evdns_base_resolv_conf_parse(proxy->dns, DNS_OPTIONS_ALL, "/etc/resolv.conf") != 0)
        mc_log(WARNING, "/etc/resolv.conf names no server: names that /etc/hosts has not are asked of 127.0.0.1");
    proxy->terminate = evsignal_new(proxy->base, SIGTERM, on_signal, proxy);
    proxy->interrupt = evsignal_new(proxy->base, SIGINT, on_signal, proxy);
    proxy->hangup = evsignal_new(proxy->base, SIGHUP, on_hangup, NULL);
    proxy->tick = event_new(proxy->base, -1, EV_PERSIST, on_tick, proxy);
    proxy->pulse = event_new(proxy->base, -1, EV_PERSIST, on_pulse, proxy);
    proxy->turn = event_new(proxy->base, -1, 0, on_turn, proxy);
    proxy->drain_timer = event_new(proxy->base, -1, 0, on_drained, proxy);
    if (proxy->dns == NULL || proxy->terminate == NULL || proxy->interrupt == NULL || proxy->hangup == NULL ||
        proxy->tick == NULL || proxy->pulse == NULL || proxy->turn == NULL || proxy->drain_timer == NULL ||
        event_add(proxy->pulse, &pulse) != 0 || event_add(proxy->terminate, NULL) != 0 ||
        event_add(proxy->interrupt, NULL) != 0 || event_add(proxy->hangup, NULL) != 0 ||
        event_add(proxy->tick, &interval) != 0)
        return MC_ERR_NO_MEMORY;
    return 0;
}

static void destroy(struct mc_proxy *proxy)
{
    struct event *const events[] = {proxy->terminate, proxy->interrupt, proxy->hangup,     proxy->tick,
                                    proxy->pulse,     proxy->turn,      proxy->drain_timer};
    proxy->is_draining = true;
    if (proxy->listener != NULL)
        evconnlistener_free(proxy->listener);
    proxy->listener = NULL;
    while (proxy->clients != NULL)
        mc_client_close(proxy->clients);
    mc_upstreams_end_left(proxy);
    mc_check_cancel_all(proxy);
    mc_instances_free(&proxy->instances);
    /* Connections are freed by the loop, once what is still deferred has run. */
    if (proxy->base != NULL)
        (void)event_base_loop(proxy->base, EVLOOP_NONBLOCK);
    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++) {
        if (events[i] != NULL)
            event_free(events[i]);
    }
    if (proxy->dns != NULL)
        evdns_base_free(proxy->dns, 0);
    if (proxy->base != NULL) {
        (void)event_base_loop(proxy->base, EVLOOP_NONBLOCK);
        event_base_free(proxy->base);
    }
}

int mc_proxy_run(const struct mc_proxy_config *config, char *error, size_t error_size)
{
    static struct mc_proxy proxy; /* large; a process has one */
    proxy = (struct mc_proxy){
        .refusal = mc_proxy_refusal, .dispatch = mc_proxy_dispatch, .ended = on_ended, .config = config};
    proxy.start_ms = proxy.pulse_ms = mc_clock_ms();
    proxy.instances.turns[0].random = mc_random_u64();
    proxy.instances.turns[1].random = mc_random_u64();
    mc_file_limit_raise();
    int rc = create_events(&proxy);
    if (rc == 0)
        rc = add_instances(&proxy, MC_PROXY_PREFILL, config->prefill, config->prefill_count, error, error_size);
    if (rc == 0)
        rc = add_instances(&proxy, MC_PROXY_DECODE, config->decode, config->decode_count, error, error_size);
    if (rc == 0)
        rc = start_listening(&proxy, error, error_size);
    if (rc == 0) {
        mc_check_all(&proxy);
        if (event_base_dispatch(proxy.base) < 0)
            rc = MC_ERR_INTERNAL_ERROR;
        mc_log(INFO, "Proxy has ended");
    }
    destroy(&proxy);
    return rc;
}
