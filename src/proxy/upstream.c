/* One request to an instance, on a connection of its own.
 *
 * A connection per request costs a tenth of a millisecond beside an answer of many; in return none is ever found dead
 * when it is used again, and closing it is an unmistakable way to say that nobody waits any more.
 */
#include "proxy/proxy.h"

#include "base/error.h"
#include "env/channel.h"
#include "env/clock.h"
#include "env/resolve.h"
#include "env/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

/* Seconds without a byte after which, and then how often, the kernel asks the other one; and how long it may confirm
 * nothing. */
#define KEEPALIVE_IDLE_S 5
#define KEEPALIVE_INTERVAL_S 5
#define UNSENT_MS 20000
#define UNSEEN_MS 50 /* the loop looks at what has come before that */

struct mc_upstream {
    struct mc_proxy *proxy;
    struct bufferevent *channel;
    struct mc_channel *secure; /* what `channel` has of TLS; NULL: nothing */
    struct event *timer;
    const struct mc_upstream_events *events; /* NULL: nobody waits for it */
    void *context;
    struct mc_head head;
    struct mc_body body;
    struct evbuffer *data;
    uint64_t end_ms, heard_ms;
    bool has_socket, is_connected; /* it may be without TLS yet that it needs; the request is on its way */
    bool has_head, is_head, is_paused;
    int failed;                       /* errno of a connection that could not be begun; 0: it was */
    char host[MC_ADDRESS_MAX];        /* whose remembered address was taken; "": none */
    bool is_calling, is_cancelled;    /* cancelled out of one of its own calls: freed behind it */
    struct mc_upstream *next, **back; /* among proxy->left; back NULL: somebody waits for it */
};

static void destroy(struct mc_upstream *upstream)
{
    if (upstream->back != NULL) {
        *upstream->back = upstream->next;
        upstream->proxy->left_count--;
        if (upstream->next != NULL)
            upstream->next->back = upstream->back;
    }
    if (upstream->channel != NULL)
        bufferevent_free(upstream->channel);
    if (upstream->timer != NULL)
        event_free(upstream->timer);
    if (upstream->data != NULL)
        evbuffer_free(upstream->data);
    mc_head_free(&upstream->head);
    free(upstream);
}

void mc_upstream_cancel(struct mc_upstream *upstream)
{
    upstream->is_cancelled = true;
    if (!upstream->is_calling)
        destroy(upstream);
}

static void finish(struct mc_upstream *upstream, enum mc_upstream_end end, const char *problem)
{
    upstream->is_calling = true;
    if (end == MC_UPSTREAM_NO_CONNECT && upstream->host[0] != 0)
        mc_resolve_doubt(upstream->host);
    if (!upstream->is_cancelled && upstream->events != NULL)
        upstream->events->ended(upstream->context, end, problem);
    destroy(upstream);
}

uint64_t mc_upstream_silent_ms(const struct mc_upstream *upstream, uint64_t now)
{
    return upstream->is_paused || !upstream->is_connected ? 0 : now - upstream->heard_ms;
}

/* Without a socket its name is still being looked up: the instance was not even asked. */
static enum mc_upstream_end end_unconnected(const struct mc_upstream *upstream)
{
    return bufferevent_getfd(upstream->channel) < 0 ? MC_UPSTREAM_OWN_TROUBLE : MC_UPSTREAM_NO_CONNECT;
}

void mc_upstream_give_up(struct mc_upstream *upstream, const char *problem)
{
    mc_assert(!upstream->is_calling);
    finish(upstream, upstream->is_connected ? MC_UPSTREAM_TIMEOUT : end_unconnected(upstream), problem);
}

/* What libevent connects. */
static struct bufferevent *socket_of(const struct mc_upstream *upstream)
{
    return upstream->secure == NULL ? upstream->channel : bufferevent_get_underlying(upstream->channel);
}

static void arm(struct mc_upstream *upstream, uint64_t ms)
{
    struct timeval after = mc_proxy_time(ms);
    mc_assert(event_add(upstream->timer, &after) == 0);
}

/* Has the kernel its answer to our connecting, which we have not looked at? So it is when this process stood still. */
static bool is_unseen(const struct mc_upstream *upstream)
{
    short event = upstream->has_socket ? POLLIN : POLLOUT;
    struct pollfd seen = {.fd = bufferevent_getfd(upstream->channel), .events = event};
    return seen.fd >= 0 && poll(&seen, 1, 0) > 0;
}

/* Set once for the whole of a phase: each arrival only notes the time, and the timer finds out how much is left. */
static void on_timer(evutil_socket_t fd, short what, void *context)
{
    struct mc_upstream *upstream = context;
    uint64_t now = mc_clock_ms(), silence = upstream->proxy->config->silence_ms;
    (void)fd, (void)what;
    if (!upstream->is_connected && is_unseen(upstream)) {
        arm(upstream, UNSEEN_MS);
        return;
    }
    if (!upstream->is_connected) {
        finish(upstream, end_unconnected(upstream), "no connection in time");
        return;
    }
    if (upstream->is_paused)
        upstream->heard_ms = now;
    if (now >= upstream->end_ms) {
        finish(upstream, MC_UPSTREAM_TIMEOUT, "the request took too long");
    } else if (now - upstream->heard_ms >= silence) {
        finish(upstream, MC_UPSTREAM_TIMEOUT, "the instance was silent for too long");
    } else {
        uint64_t left = silence - (now - upstream->heard_ms);
        arm(upstream, left < upstream->end_ms - now ? left : upstream->end_ms - now);
    }
}

/* 1: a head is there. 0: not yet. -1: garbage. Interim answers are passed over. */
static int read_head(struct mc_upstream *upstream, struct evbuffer *in)
{
    for (;;) {
        int rc = mc_head_take_response(&upstream->head, in, upstream->is_head);
        if (rc <= 0)
            return rc < 0 ? -1 : 0;
        if (upstream->head.status >= 200)
            break;
        if (upstream->head.status == 101)
            return -1;
    }
    mc_body_begin(&upstream->body, &upstream->head);
    upstream->has_head = true;
    if (upstream->events != NULL)
        upstream->events->head(upstream->context, &upstream->head);
    return 1;
}

/* Hands over what is there. Returns whether the upstream still lives. */
static bool pump(struct mc_upstream *upstream)
{
    struct evbuffer *in = bufferevent_get_input(upstream->channel);
    int rc = 1;
    upstream->is_calling = true;
    if (!upstream->has_head)
        rc = read_head(upstream, in);
    if (rc > 0 && !upstream->is_cancelled) {
        rc = mc_body_decode(&upstream->body, in, upstream->data);
        if (upstream->events != NULL && evbuffer_get_length(upstream->data) > 0)
            upstream->events->part(upstream->context, upstream->data);
        (void)evbuffer_drain(upstream->data, evbuffer_get_length(upstream->data));
    }
    upstream->is_calling = false;
    if (upstream->is_cancelled) {
        destroy(upstream);
        return false;
    }
    if (rc != 0) {
        finish(upstream, rc > 0 ? MC_UPSTREAM_DONE : MC_UPSTREAM_GARBAGE, "what it sent is not HTTP");
        return false;
    }
    return true;
}

static void on_read(struct bufferevent *channel, void *context)
{
    struct mc_upstream *upstream = context;
    (void)channel;
    upstream->heard_ms = mc_clock_ms();
    if (!upstream->is_paused)
        (void)pump(upstream);
}

/* Whose host has gone without a word is found out though nothing is sent to it; and a firewall on the way does not
 * forget a connection that waits for a long prompt. Fails for what is no TCP socket only. */
static void set_options(int fd)
{
    static const int one = 1, unsent_ms = UNSENT_MS;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    mc_socket_keep_alive(fd, KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, 0);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unsent_ms, sizeof(unsent_ms));
}

/* Does this process lack something (descriptors, ports, memory, a name server), whatever the instance does? */
static bool is_own(int gai, int number)
{
    if (gai != 0)
        return gai != EVUTIL_EAI_NONAME;
    int code = mc_socket_code(number);
    return code == MC_ERR_BUSY || code == MC_ERR_NO_MEMORY;
}

/* With TLS it is told twice: of the socket, and when the instance has proved who it is. */
static void on_connected(struct mc_upstream *upstream)
{
    char problem[MC_PROXY_PROBLEM_MAX] = "";
    bool is_socket = !upstream->has_socket;
    upstream->has_socket = true;
    if (is_socket)
        set_options(bufferevent_getfd(upstream->channel));
    if (is_socket && upstream->secure != NULL) {
        if (mc_channel_begin(upstream->secure, problem, sizeof(problem)) < 0)
            finish(upstream, MC_UPSTREAM_OWN_TROUBLE, problem);
        return;
    }
    upstream->is_connected = true;
    upstream->heard_ms = mc_clock_ms();
    arm(upstream, 1);
}

static void on_unconnected(struct mc_upstream *upstream)
{
    char problem[MC_PROXY_PROBLEM_MAX];
    int failed = bufferevent_socket_get_dns_error(socket_of(upstream));
    int number = upstream->failed != 0 ? upstream->failed : EVUTIL_SOCKET_ERROR();
    const char *words = upstream->secure == NULL ? "" : mc_channel_problem(upstream->secure);
    bool is_ours = words[0] == 0 && is_own(failed, number);
    if (words[0] == 0)
        words = failed != 0 ? evutil_gai_strerror(failed) : evutil_socket_error_to_string(number);
    (void)snprintf(problem, sizeof(problem), "%s", words);
    finish(upstream, is_ours ? MC_UPSTREAM_OWN_TROUBLE : MC_UPSTREAM_NO_CONNECT, problem);
}

/* A connection that ended too early. */
static void on_broken(struct mc_upstream *upstream)
{
    const char *words = upstream->secure == NULL ? "" : mc_channel_problem(upstream->secure);
    char problem[MC_PROXY_PROBLEM_MAX], first[2] = "";
    ev_ssize_t length = evbuffer_copyout(bufferevent_get_input(upstream->channel), first, sizeof(first));
    bool is_refused = upstream->secure != NULL && !upstream->has_head && mc_channel_is_refused(upstream->secure);
    if (words[0] == 0 && !upstream->has_head && length > 0 && mc_tls_is_alert(first, (size_t)length))
        words = "it speaks TLS: write https:// before its address";
    (void)snprintf(problem, sizeof(problem), "%s", words[0] == 0 ? "it closed the connection in the middle" : words);
    finish(upstream, is_refused ? MC_UPSTREAM_NO_CONNECT : MC_UPSTREAM_BROKEN, problem);
}

static void on_event(struct bufferevent *channel, short what, void *context)
{
    struct mc_upstream *upstream = context;
    if ((what & BEV_EVENT_CONNECTED) != 0) {
        on_connected(upstream);
        return;
    }
    if (!upstream->is_connected) {
        on_unconnected(upstream);
        return;
    }
    /* An engine may answer and close before it has read the whole request: what it said comes first. */
    if (evbuffer_get_length(bufferevent_get_input(channel)) > 0 && !pump(upstream))
        return;
    /* A reset may be told as both: an error of what was written, and then an end of what is read. */
    bool is_orderly = (what & BEV_EVENT_EOF) != 0 && (what & BEV_EVENT_ERROR) == 0;
    if (upstream->secure != NULL)
        is_orderly = mc_channel_is_whole(upstream->secure);
    if (is_orderly && upstream->has_head && upstream->body.framing == MC_FRAMING_CLOSE)
        finish(upstream, MC_UPSTREAM_DONE, "");
    else
        on_broken(upstream);
}

void mc_upstream_leave(struct mc_upstream *upstream, uint64_t longest_ms)
{
    struct mc_proxy *proxy = upstream->proxy;
    uint64_t end_ms = mc_clock_ms() + longest_ms;
    mc_assert(!upstream->is_calling && upstream->back == NULL);
    if (proxy->left_count == MC_PROXY_LEFT_MAX) {
        destroy(upstream);
        return;
    }
    proxy->left_count++;
    upstream->events = NULL;
    upstream->context = NULL;
    if (end_ms < upstream->end_ms)
        upstream->end_ms = end_ms;
    upstream->next = proxy->left;
    upstream->back = &proxy->left;
    if (upstream->next != NULL)
        upstream->next->back = &upstream->next;
    proxy->left = upstream;
    arm(upstream, longest_ms);
}

void mc_upstreams_end_left(struct mc_proxy *proxy)
{
    struct mc_upstream *next;
    for (struct mc_upstream *at = proxy->left; at != NULL; at = next) {
        next = at->next;
        at->back = NULL; /* all of them go: none is taken out by itself */
        destroy(at);
    }
    proxy->left = NULL;
    proxy->left_count = 0;
}

void mc_upstream_pause(struct mc_upstream *upstream, bool is_paused)
{
    if (upstream->is_paused == is_paused)
        return;
    upstream->is_paused = is_paused;
    if (is_paused) {
        (void)bufferevent_disable(upstream->channel, EV_READ);
    } else {
        upstream->heard_ms = mc_clock_ms();
        (void)bufferevent_enable(upstream->channel, EV_READ);
        bufferevent_trigger(upstream->channel, EV_READ, BEV_TRIG_IGNORE_WATERMARKS);
    }
}

static struct bufferevent *channel_new(struct mc_upstream *upstream, const struct mc_proxy_address *address)
{
    const int options = BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS;
    const struct mc_tls_settings settings = mc_proxy_calls();
    return address->is_tls
               ? mc_channel_call(upstream->proxy->base, &settings, address->name, options, &upstream->secure)
               : bufferevent_socket_new(upstream->proxy->base, -1, options);
}

/* By the addresses that its name had when it was last looked up; they are looked up anew beside that. Only the first
 * request to a name waits for a name server. Negative: no memory. */
static int connect_to(struct mc_upstream *upstream, const struct mc_proxy_address *address)
{
    struct mc_resolved resolved;
    const char *host = strcmp(address->host, "localhost") == 0 ? "127.0.0.1" : address->host;
    if (mc_resolve(host, address->port, mc_clock_ns(), &resolved) != 0)
        return bufferevent_socket_connect_hostname(socket_of(upstream), upstream->proxy->dns, AF_UNSPEC, host,
                                                   address->port);
    (void)snprintf(upstream->host, sizeof(upstream->host), "%s", host);
    /* Engines listen on IPv4 unless told otherwise, whatever is put first. */
    const struct mc_tcp_address *one = &resolved.addresses[0];
    for (uint32_t i = 0; i < resolved.count && one->address.any.sa_family != AF_INET; i++)
        if (resolved.addresses[i].address.any.sa_family == AF_INET)
            one = &resolved.addresses[i];
    upstream->failed =
        bufferevent_socket_connect(socket_of(upstream), &one->address.any, (int)one->length) == 0 ? 0 : errno;
    /* No way leads there, say: told later, as a connection that fails a moment later is. */
    if (upstream->failed != 0)
        bufferevent_trigger_event(socket_of(upstream), BEV_EVENT_ERROR, BEV_TRIG_DEFER_CALLBACKS);
    return 0;
}

struct mc_upstream *mc_upstream_start(struct mc_proxy *proxy, const struct mc_proxy_address *address,
                                      const struct mc_buffer *head, struct evbuffer *body, bool is_head,
                                      uint64_t longest_ms, const struct mc_upstream_events *events, void *context)
{
    struct mc_upstream *upstream = calloc(1, sizeof(*upstream));
    if (upstream == NULL)
        return NULL;
    *upstream = (struct mc_upstream){.proxy = proxy, .events = events, .context = context, .is_head = is_head};
    upstream->end_ms = mc_clock_ms() + longest_ms;
    upstream->data = evbuffer_new();
    upstream->timer = event_new(proxy->base, -1, 0, on_timer, upstream);
    upstream->channel = channel_new(upstream, address);
    if (upstream->data == NULL || upstream->timer == NULL || upstream->channel == NULL ||
        bufferevent_write(upstream->channel, head->data, head->length) != 0 ||
        (body != NULL && bufferevent_write_buffer(upstream->channel, body) != 0))
        goto fail;
    bufferevent_setcb(upstream->channel, on_read, NULL, on_event, upstream);
    bufferevent_setwatermark(upstream->channel, EV_READ, 0, MC_PROXY_INPUT_MAX);
    (void)bufferevent_enable(upstream->channel, EV_READ | EV_WRITE);
    if (connect_to(upstream, address) != 0)
        goto fail;
    arm(upstream, proxy->config->connect_ms < longest_ms ? proxy->config->connect_ms : longest_ms);
    return upstream;
fail:
    destroy(upstream);
    return NULL;
}
