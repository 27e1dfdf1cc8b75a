/* A connection of a client: requests one after the other, each answered whole before the next one is looked at.
 *
 * The connection is read also while an answer is made, because that is the only way to learn that the client has left.
 * What comes then is kept for later up to a limit, and beyond it the connection is closed.
 */
#include "proxy/proxy.h"

#include "base/error.h"
#include "env/channel.h"
#include "env/clock.h"
#include "env/json.h"
#include "env/keys.h"
#include "env/log.h"
#include "env/secure.h"
#include "env/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define WHOLE_REQUEST_FACTOR 10 /* times client_timeout */
#define ROOM_LOOKS 64           /* clients that are looked at for one that has said nothing meanwhile */

enum client_state {
    CLIENT_HEAD,   /* waits for a head, or for the rest of it */
    CLIENT_BODY,   /* waits for the rest of a body */
    CLIENT_BUSY,   /* somebody makes the answer */
    CLIENT_FLUSH,  /* the last answer is on its way out */
    CLIENT_LINGER, /* all is sent; what the client still sends is thrown away, so that it can read the answer */
};

struct mc_client {
    struct mc_client *next, **back;
    struct mc_proxy *proxy;
    struct bufferevent *channel;
    struct event *timer;
    enum client_state state;
    struct mc_head head;
    struct mc_body body;
    struct evbuffer *content;
    size_t counted; /* bytes of content that are in proxy->buffered */
    const struct mc_client_events *events;
    void *context;
    bool is_chunked, is_last, is_begun; /* of the answer: in chunks; the connection ends behind it; its head is sent */
    bool has_bytes, is_ended;           /* a request has begun to come; the client sends no more */
    bool has_asked;                     /* a whole request has come */
    bool is_refused;                    /* before all of the request was read */
    bool is_waited_for;                 /* it is in the list of those that have to say something */
    struct mc_client *older, *newer;    /* there */
    uint32_t share;                     /* which of the proxy's it is in */
};

struct mc_proxy *mc_client_proxy(const struct mc_client *client)
{
    return client->proxy;
}
const struct mc_head *mc_client_head(const struct mc_client *client)
{
    return &client->head;
}
struct evbuffer *mc_client_body(struct mc_client *client)
{
    return client->content;
}
struct mc_client *mc_client_next(const struct mc_client *client)
{
    return client->next;
}

void mc_client_watch(struct mc_client *client, const struct mc_client_events *events, void *context)
{
    client->events = events;
    client->context = context;
}

bool mc_client_is_full(const struct mc_client *client)
{
    return evbuffer_get_length(bufferevent_get_output(client->channel)) > MC_PROXY_OUTPUT_MAX;
}

static void arm(struct mc_client *client, uint64_t ms)
{
    struct timeval after = mc_proxy_time(ms);
    mc_assert(event_add(client->timer, &after) == 0);
}

/* ---- whose turn it is to say something ---- */

static void unlist(struct mc_client *client)
{
    struct mc_proxy *proxy = client->proxy;
    if (!client->is_waited_for)
        return;
    client->is_waited_for = false;
    *(client->older != NULL ? &client->older->newer : &proxy->waiting.oldest) = client->newer;
    *(client->newer != NULL ? &client->newer->older : &proxy->waiting.newest) = client->older;
}

static void wait_end(struct mc_client *client)
{
    unlist(client);
    if (client->proxy->waiting.oldest == NULL) /* nobody can leave for another one */
        client->proxy->ended(client->proxy);
}

/* It has said something just now, or was told something. */
static void wait_begin(struct mc_client *client)
{
    struct mc_proxy *proxy = client->proxy;
    unlist(client);
    client->is_waited_for = true;
    client->older = proxy->waiting.newest;
    client->newer = NULL;
    *(client->older != NULL ? &client->older->newer : &proxy->waiting.oldest) = client;
    proxy->waiting.newest = client;
}

/* Of those that were silent longest one whose address has most: a host that comes with many takes the places of its
 * own. */
bool mc_client_make_room(struct mc_proxy *proxy)
{
    struct mc_client *one = proxy->waiting.oldest, *found = NULL;
    for (unsigned i = 0; i < ROOM_LOOKS && one != NULL && one != proxy->waiting.newest; i++, one = one->newer) {
        if (found != NULL && proxy->shares[one->share] <= proxy->shares[found->share])
            continue;
        if (evbuffer_get_length(bufferevent_get_output(one->channel)) == 0 &&
            mc_socket_is_silent(bufferevent_getfd(one->channel)))
            found = one;
    }
    if (found == NULL)
        return false;
    if (!found->has_asked) /* what is closed in order is remembered for a minute: not of many */
        (void)mc_socket_reset_at_close(bufferevent_getfd(found->channel));
    mc_client_close(found);
    return true;
}

static void forget_body(struct mc_client *client)
{
    (void)evbuffer_drain(client->content, evbuffer_get_length(client->content));
    client->proxy->buffered -= client->counted;
    client->counted = 0;
}

void mc_client_close(struct mc_client *client)
{
    struct mc_proxy *proxy = client->proxy;
    void *context = client->context;
    client->context = NULL;
    if (context != NULL)
        client->events->gone(context);
    forget_body(client);
    unlist(client);
    *client->back = client->next;
    if (client->next != NULL)
        client->next->back = client->back;
    proxy->client_count--;
    proxy->shares[client->share]--;
    bufferevent_free(client->channel);
    event_free(client->timer);
    evbuffer_free(client->content);
    mc_head_free(&client->head);
    free(client);
    proxy->ended(proxy);
}

/* Lets what is on its way out arrive, and closes. */
static void flush(struct mc_client *client)
{
    client->state = CLIENT_FLUSH;
    wait_end(client);
    bufferevent_setwatermark(client->channel, EV_WRITE, 0, 0);
    /* Says at once that nothing is left when that is so. */
    bufferevent_trigger(client->channel, EV_WRITE, BEV_TRIG_IGNORE_WATERMARKS);
}

void mc_client_finish(struct mc_client *client)
{
    client->is_last = true;
    if (client->state == CLIENT_HEAD && evbuffer_get_length(bufferevent_get_output(client->channel)) == 0)
        mc_client_close(client);
    else if (client->state == CLIENT_HEAD)
        flush(client);
}

void mc_client_break(struct mc_client *client)
{
    client->context = NULL;
    client->proxy->totals.broken++;
    /* A reset: an answer without a length would look whole after an orderly end. */
    if (!mc_socket_reset_at_close(bufferevent_getfd(client->channel)))
        mc_log(WARNING, "a broken answer may look like a whole one: SO_LINGER is not possible");
    mc_client_close(client);
}

/* ---- answers ---- */

static void write_head(struct mc_client *client, int status, const char *lines)
{
    struct evbuffer *out = bufferevent_get_output(client->channel);
    if (client->proxy->is_draining || !client->head.keeps_alive)
        client->is_last = true;
    client->proxy->totals.by_class[status / 100 % 6]++;
    client->is_begun = true;
    (void)evbuffer_add_printf(out, "HTTP/1.1 %d %s\r\n%s%s\r\n", status, mc_http_reason(status), lines,
                              client->is_last            ? "Connection: close\r\n"
                              : client->head.is_http_1_0 ? "Connection: keep-alive\r\n"
                                                         : "");
}

/* The answer is handed over: the next request, or the end. */
static void answered(struct mc_client *client)
{
    forget_body(client);
    client->context = NULL;
    client->is_begun = false;
    if (client->is_last) {
        flush(client);
        return;
    }
    client->state = CLIENT_HEAD;
    wait_begin(client);
    arm(client, client->proxy->config->client_ms);
    /* Deferred, so that many requests in one packet do not nest. */
    bufferevent_trigger(client->channel, EV_READ, BEV_TRIG_IGNORE_WATERMARKS);
}

void mc_client_reply(struct mc_client *client, int status, const char *type, struct mc_span body)
{
    char lines[256 + sizeof(MC_KEYS_CHALLENGE)];
    bool is_head = client->head.method != NULL && strcmp(client->head.method, "HEAD") == 0;
    (void)snprintf(lines, sizeof(lines), "Content-Type: %s\r\nContent-Length: %zu\r\n%s", type, body.length,
                   status == 503   ? "Retry-After: 1\r\n"
                   : status == 401 ? "WWW-Authenticate: " MC_KEYS_CHALLENGE "\r\n"
                                   : "");
    write_head(client, status, lines);
    if (!is_head)
        (void)evbuffer_add(bufferevent_get_output(client->channel), body.data, body.length);
    answered(client);
}

void mc_client_reply_error(struct mc_client *client, int status, const char *type, const char *format, ...)
{
    struct mc_buffer body = {0};
    char message[1024];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(message, sizeof(message), format, arguments);
    va_end(arguments);
    mc_buffer_printf(&body, "{\"error\":{\"message\":");
    mc_json_put_text(&body, message);
    mc_buffer_printf(&body, ",\"type\":\"%s\",\"param\":null,\"code\":%d}}", type, status);
    mc_log_limited(INFO, "answered %d: %s", status, message);
    mc_client_reply(client, status, "application/json", mc_span(body.data, body.length));
    mc_buffer_free(&body);
}

void mc_client_begin(struct mc_client *client, const struct mc_head *head, const char *request_id)
{
    struct mc_buffer lines = {0};
    client->is_chunked = false;
    if (head->framing == MC_FRAMING_LENGTH)
        mc_buffer_printf(&lines, "Content-Length: %llu\r\n", (unsigned long long)head->length);
    else if (head->framing != MC_FRAMING_NONE && !client->head.is_http_1_0) {
        mc_buffer_printf(&lines, "Transfer-Encoding: chunked\r\n");
        client->is_chunked = true;
    } else if (head->framing != MC_FRAMING_NONE) {
        client->is_last = true; /* an old client learns the end from the end of the connection */
    } else if (mc_head_find(head, "content-length") != NULL) {
        mc_buffer_printf(&lines, "Content-Length: %s\r\n", mc_head_find(head, "content-length"));
    }
    for (size_t i = 0; i < head->header_count; i++) {
        if (!mc_header_is_hop(head, head->headers[i].name))
            mc_buffer_printf(&lines, "%s: %s\r\n", head->headers[i].name, head->headers[i].value);
    }
    if (request_id != NULL && mc_head_find(head, "x-request-id") == NULL)
        mc_buffer_printf(&lines, "X-Request-Id: %s\r\n", request_id);
    mc_buffer_put_u8(&lines, 0);
    write_head(client, head->status, (const char *)lines.data);
    mc_buffer_free(&lines);
}

void mc_client_send(struct mc_client *client, struct evbuffer *data)
{
    struct evbuffer *out = bufferevent_get_output(client->channel);
    size_t length = evbuffer_get_length(data);
    if (length == 0)
        return;
    if (client->is_chunked)
        (void)evbuffer_add_printf(out, "%zx\r\n", length);
    (void)evbuffer_add_buffer(out, data);
    if (client->is_chunked)
        (void)evbuffer_add(out, "\r\n", 2);
}

void mc_client_end(struct mc_client *client)
{
    if (client->is_chunked)
        (void)evbuffer_add(bufferevent_get_output(client->channel), "0\r\n\r\n", 5);
    answered(client);
}

/* ---- requests ---- */

/* An answer behind which the connection ends, because what follows on it cannot be told apart. */
static void refuse(struct mc_client *client, int status, const char *message)
{
    client->is_last = true;
    client->is_refused = true;
    client->state = CLIENT_BUSY;
    mc_client_reply_error(client, status, "BadRequestError", "%s", message);
}

/* What a head promises is refused before its body comes. Returns whether it may come. */
static bool accept_head(struct mc_client *client)
{
    const struct mc_proxy_config *config = client->proxy->config;
    bool is_known = mc_channel_is_known(client->channel);
    int status = client->proxy->refusal(&client->head, is_known);
    if (status != 0) {
        refuse(client, status,
               !is_known       ? MC_SECURE_UNKNOWN
               : status == 401 ? "this proxy wants a key: Authorization: Bearer id:secret"
                               : "this key has no right to that");
        return false;
    }
    if (client->head.framing == MC_FRAMING_LENGTH && client->head.length > config->body_max) {
        refuse(client, 413, "the request is longer than --max_body_bytes");
        return false;
    }
    mc_body_begin(&client->body, &client->head);
    client->state = CLIENT_BODY;
    arm(client, config->client_ms * WHOLE_REQUEST_FACTOR);
    if (client->head.expects_continue && client->body.state != MC_BODY_DONE)
        (void)evbuffer_add_printf(bufferevent_get_output(client->channel), "HTTP/1.1 100 Continue\r\n\r\n");
    return true;
}

/* For want of memory of ours, or of what many may use of it. */
static void refuse_busy(struct mc_client *client, const char *message)
{
    client->proxy->totals.refused++;
    client->is_last = true;
    client->is_refused = true;
    client->state = CLIENT_BUSY;
    mc_client_reply_error(client, 503, "ServiceUnavailableError", "%s", message);
}

/* 1: the body is there. 0: not yet, or the client was refused. */
static int read_body(struct mc_client *client, struct evbuffer *in)
{
    struct mc_proxy *proxy = client->proxy;
    int rc = mc_body_decode(&client->body, in, client->content);
    size_t length = evbuffer_get_length(client->content);
    proxy->buffered += length - client->counted;
    client->counted = length;
    if (rc < 0) {
        refuse(client, 400, "the body's chunks are malformed");
    } else if (length > proxy->config->body_max) {
        refuse(client, 413, "the request is longer than --max_body_bytes");
    } else if (proxy->buffered > proxy->config->buffered_max) {
        refuse_busy(client, "too many bytes of requests are under way");
    } else if (rc > 0 && length > 0 && evbuffer_pullup(client->content, -1) == NULL) {
        refuse_busy(client, "no memory for the request"); /* who looks at it wants it in one piece */
    } else if (rc > 0) {
        return 1;
    }
    return 0;
}

static const char *head_problem(int status)
{
    return status == 431   ? "the head of the request is too large"
           : status == 501 ? "this transfer encoding is not supported"
           : status == 505 ? "only HTTP/1.0 and HTTP/1.1 are spoken here"
                           : "this is not an HTTP request";
}

static void read_request(struct mc_client *client)
{
    struct evbuffer *in = bufferevent_get_input(client->channel);
    wait_begin(client);
    if (client->state == CLIENT_HEAD) {
        int rc = mc_head_take_request(&client->head, in);
        if (rc < 0) {
            refuse(client, -rc, head_problem(-rc));
            return;
        }
        if (rc == 0) {
            /* The time for a head runs from its first byte. */
            if (!client->has_bytes && evbuffer_get_length(in) > 0)
                arm(client, client->proxy->config->client_ms);
            client->has_bytes = evbuffer_get_length(in) > 0;
            return;
        }
        client->has_bytes = false;
        if (!accept_head(client))
            return;
    }
    if (client->state == CLIENT_BODY && read_body(client, in) > 0) {
        client->state = CLIENT_BUSY;
        client->has_asked = true;
        client->proxy->totals.requests++;
        wait_end(client);
        (void)event_del(client->timer);
        client->proxy->dispatch(client);
    }
}

static void on_read(struct bufferevent *channel, void *context)
{
    struct mc_client *client = context;
    struct evbuffer *in = bufferevent_get_input(channel);
    if (client->state == CLIENT_FLUSH || client->state == CLIENT_LINGER)
        (void)evbuffer_drain(in, evbuffer_get_length(in));
    else if (client->state == CLIENT_BUSY && evbuffer_get_length(in) >= MC_PROXY_INPUT_MAX)
        mc_client_close(client);
    else if (client->state != CLIENT_BUSY)
        read_request(client);
}

static void on_written(struct bufferevent *channel, void *context)
{
    struct mc_client *client = context;
    size_t left = evbuffer_get_length(bufferevent_get_output(channel));
    if (client->state == CLIENT_BUSY && client->context != NULL && client->is_begun) {
        client->events->has_room(client->context);
    } else if (client->state == CLIENT_FLUSH && left == 0 && (client->is_ended || !client->is_refused)) {
        mc_channel_finish(channel);
        mc_client_close(client);
    } else if (client->state == CLIENT_FLUSH && left == 0) {
        client->state = CLIENT_LINGER;
        wait_begin(client);
        mc_channel_finish(channel);
        /* Fails when the client has gone meanwhile, which the next event tells. */
        (void)shutdown(bufferevent_getfd(channel), SHUT_WR);
        arm(client, MC_PROXY_LINGER_MS);
    }
}

static void on_event(struct bufferevent *channel, short what, void *context)
{
    struct mc_client *client = context;
    (void)channel; /* what was written meanwhile has been said */
    if ((what & (BEV_EVENT_EOF | BEV_EVENT_ERROR | BEV_EVENT_TIMEOUT)) == 0)
        return;
    if (client->state == CLIENT_BUSY)
        client->proxy->totals.cancelled++;
    client->is_ended = true;
    /* The rest of an answer still goes to a client that only ended its own side. A reset may be told as both: an error
     * of what was written, and then an end of what is read. */
    bool has_gone = (what & (BEV_EVENT_ERROR | BEV_EVENT_TIMEOUT)) != 0;
    if (!has_gone && (client->state == CLIENT_FLUSH || client->state == CLIENT_HEAD))
        flush(client);
    else
        mc_client_close(client);
}

static void on_timer(evutil_socket_t fd, short what, void *context)
{
    struct mc_client *client = context;
    (void)fd, (void)what;
    bool is_idle = client->state == CLIENT_HEAD && evbuffer_get_length(bufferevent_get_input(client->channel)) == 0;
    if (client->state == CLIENT_LINGER || client->state == CLIENT_FLUSH || is_idle)
        mc_client_close(client);
    else if (client->state != CLIENT_BUSY)
        refuse(client, 408, "the request did not come in time");
}

void mc_client_accept(struct mc_proxy *proxy, int fd)
{
    struct mc_client *client = calloc(1, sizeof(*client));
    struct timeval stall = mc_proxy_time(proxy->config->stall_ms);
    int one = 1;
    if (client == NULL) {
        (void)close(fd);
        return;
    }
    client->proxy = proxy;
    client->content = evbuffer_new();
    client->timer = event_new(proxy->base, -1, 0, on_timer, client);
    client->channel = mc_channel_accept(proxy->base, fd, BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS);
    if (client->content == NULL || client->timer == NULL || client->channel == NULL)
        goto fail;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    bufferevent_setcb(client->channel, on_read, on_written, on_event, client);
    bufferevent_setwatermark(client->channel, EV_READ, 0, MC_PROXY_INPUT_MAX);
    bufferevent_setwatermark(client->channel, EV_WRITE, MC_PROXY_OUTPUT_LOW, 0);
    mc_channel_set_stall(client->channel, &stall);
    (void)bufferevent_enable(client->channel, EV_READ | EV_WRITE);
    client->next = proxy->clients;
    client->back = &proxy->clients;
    if (client->next != NULL)
        client->next->back = &client->next;
    proxy->clients = client;
    proxy->client_count++;
    client->share = (uint32_t)(mc_socket_peer_key(fd) % MC_PROXY_SHARES);
    proxy->shares[client->share]++;
    proxy->totals.connections++;
    wait_begin(client);
    arm(client, proxy->config->client_ms);
    return;
fail:
    if (client->channel != NULL)
        bufferevent_free(client->channel);
    else
        (void)close(fd);
    if (client->timer != NULL)
        event_free(client->timer);
    if (client->content != NULL)
        evbuffer_free(client->content);
    free(client);
}
