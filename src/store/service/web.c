/* The HTTP server of the store service: listener, threads of connections, bodies and answers. */
#include "store/service/web.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/keys.h"
#include "env/log.h"
#include "env/socket.h"
#include "env/thread.h"

#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define HEADERS_MAX 100
#define METHOD_MAX 15
#define DISCARD_MAX 65536u /* bytes of a body that nobody read, taken so that the connection can stay */
#define LINGER_MS 5000u    /* what a refused sender still sends, taken so that it sees the answer */
#define LINGER_BYTES (256u << 20)
#define MILLION 1000000u

struct mc_web_connection {
    struct mc_web *web;
    mc_web_handler *handler;
    void *context;
    int fd;
    bool is_late;
    bool is_busy;        /* with web->lock; else it waits for a request */
    bool is_leaving;     /* with web->lock: it was shut down for another one */
    uint64_t idle_since; /* with web->lock */
    bool is_broken;      /* nothing more can be read or sent */
    struct mc_body body; /* of the request, as far as it was not read yet */
    bool is_continue_due;
    size_t length; /* of what lies in buffer from `begin` on */
    size_t begin;
    char buffer[MC_WEB_HEAD_MAX];
};

#define LEAVING_MAX 64 /* connections whose thread is at its end, beside all others */

struct mc_web {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* budget given back, a connection has ended */
    struct mc_web_connection *connections[MC_WEB_CONNECTIONS_MAX + MC_WEB_LATE_MAX + LEAVING_MAX];
    size_t count, late_count, leaving_count; /* of all; of those that are late; of all that leave */
    uint64_t budget_used;
    atomic_bool is_stopping;
};

/* ---- budget ---- */

static bool budget_take(struct mc_web *web, uint64_t bytes)
{
    uint64_t end_ns = mc_clock_ns() + MC_WEB_BUDGET_WAIT_MS * (uint64_t)MILLION;
    bool ok;
    pthread_mutex_lock(&web->lock);
    /* One alone may be larger than the whole, or it could never be served. */
    while (!(ok = web->budget_used == 0 || web->budget_used + bytes <= MC_WEB_BUDGET_BYTES) &&
           !atomic_load(&web->is_stopping)) {
        if (mc_monitor_wait(&web->lock, &web->changed, end_ns) == ETIMEDOUT)
            break;
    }
    if (ok)
        web->budget_used += bytes;
    pthread_mutex_unlock(&web->lock);
    return ok;
}

static void budget_give(struct mc_web *web, uint64_t bytes)
{
    pthread_mutex_lock(&web->lock);
    web->budget_used -= bytes;
    pthread_cond_broadcast(&web->changed);
    pthread_mutex_unlock(&web->lock);
}

void *mc_web_bytes_make(struct mc_web_request *request, struct mc_web_bytes *bytes, uint64_t length)
{
    uint64_t charged = length <= MC_WEB_SMALL_BYTES ? 0 : length;
    if (length > SIZE_MAX / 2 || (charged > 0 && !budget_take(request->connection->web, charged)))
        return NULL;
    *bytes = (struct mc_web_bytes){malloc((size_t)length + 1), length, charged};
    if (bytes->data == NULL)
        mc_web_bytes_free(request, bytes);
    return bytes->data;
}

void mc_web_bytes_free(struct mc_web_request *request, struct mc_web_bytes *bytes)
{
    free(bytes->data);
    if (bytes->charged > 0)
        budget_give(request->connection->web, bytes->charged);
    *bytes = (struct mc_web_bytes){NULL, 0, 0};
}

/* ---- reading ---- */

static uint64_t deadline_for(uint64_t bytes)
{
    return mc_clock_ns() + (MC_WEB_PROGRESS_MS + bytes / MC_WEB_BYTES_PER_MS) * MILLION;
}

/* At least one more byte into the buffer. False at the end. */
static bool refill(struct mc_web_connection *connection, uint64_t deadline_ns)
{
    if (connection->begin > 0) {
        memmove(connection->buffer, connection->buffer + connection->begin, connection->length);
        connection->begin = 0;
    }
    size_t room = sizeof(connection->buffer) - connection->length;
    int64_t got =
        room == 0 ? -1
                  : mc_socket_receive(connection->fd, connection->buffer + connection->length, room, deadline_ns, NULL);
    if (got <= 0)
        return false;
    connection->length += (size_t)got;
    return true;
}

/* Exactly so many bytes. data NULL: they are dropped. */
static bool body_take(struct mc_web_connection *connection, void *data, uint64_t bytes, uint64_t deadline_ns)
{
    uint8_t *at = data;
    char dropped[4096];
    uint64_t part = bytes < connection->length ? bytes : connection->length;
    if (at != NULL && part > 0) {
        memcpy(at, connection->buffer + connection->begin, (size_t)part);
        at += part;
    }
    connection->begin += (size_t)part;
    connection->length -= (size_t)part;
    for (bytes -= part; bytes > 0; bytes -= part) {
        uint64_t limit = at != NULL ? UINT64_C(1) << 30 : sizeof(dropped);
        int64_t got = mc_socket_receive(connection->fd, at != NULL ? (void *)at : dropped,
                                        (size_t)(bytes < limit ? bytes : limit), deadline_ns, NULL);
        if (got <= 0)
            return false;
        part = (uint64_t)got;
        at = at == NULL ? NULL : at + part;
    }
    return true;
}

/* The lines up to a chunk's bytes, or to the end of the body. */
static bool take_lines(struct mc_web_connection *connection, uint64_t deadline_ns)
{
    while (connection->body.state != MC_BODY_DATA && connection->body.state != MC_BODY_DONE) {
        int used = mc_body_line(&connection->body, connection->buffer + connection->begin, connection->length);
        if (used < 0 || (used == 0 && !refill(connection, deadline_ns)))
            return false;
        connection->begin += (size_t)used;
        connection->length -= (size_t)used;
    }
    return true;
}

/* Are chunks still to come? */
static bool is_chunked(const struct mc_web_connection *connection)
{
    return connection->body.framing == MC_FRAMING_CHUNKED && connection->body.state != MC_BODY_DONE;
}

static void send_continue(struct mc_web_connection *connection)
{
    static const char text[] = "HTTP/1.1 100 Continue\r\n\r\n";
    struct iovec part = {.iov_base = (void *)(uintptr_t)text, .iov_len = sizeof(text) - 1};
    if (connection->is_continue_due && mc_socket_send(connection->fd, &part, 1, deadline_for(0)) < 0)
        connection->is_broken = true;
    connection->is_continue_due = false;
}

static bool refuse_body(struct mc_web_request *request, int status, const char *text)
{
    mc_web_reply_text(request, status, MC_WEB_JSON, text);
    return false;
}

static bool refuse_long(struct mc_web_request *request)
{
    return refuse_body(request, 413, "{\"error\": \"Request Entity Too Large\"}");
}

static bool refuse_busy(struct mc_web_request *request)
{
    return refuse_body(request, 503, "{\"error\": \"Too many bytes under way; try again\"}");
}

static bool read_sized(struct mc_web_request *request, uint64_t limit, struct mc_web_bytes *body)
{
    struct mc_web_connection *connection = request->connection;
    uint64_t length = connection->body.left;
    if (length > limit)
        return refuse_long(request);
    if (mc_web_bytes_make(request, body, length) == NULL)
        return refuse_busy(request);
    send_continue(connection);
    if (body_take(connection, body->data, length, deadline_for(length))) {
        mc_body_took(&connection->body, length);
        return true;
    }
    connection->is_broken = true; /* cut off, or too slow: the rest of it would be taken for a request */
    request->is_answered = true;
    mc_web_bytes_free(request, body);
    return false;
}

/* Makes room for more bytes behind body->length. */
static bool grow(struct mc_web_request *request, struct mc_web_bytes *body, uint64_t more, uint64_t *capacity)
{
    if (body->length + more <= *capacity)
        return true;
    uint64_t wanted = body->length + more > 2 * *capacity ? body->length + more : 2 * *capacity;
    if (!budget_take(request->connection->web, wanted - body->charged))
        return false;
    body->charged = wanted;
    uint8_t *data = realloc(body->data, (size_t)wanted + 1);
    if (data == NULL)
        return false;
    body->data = data;
    *capacity = wanted;
    return true;
}

/* One chunk: 1 more may follow, 0 it was the last, -413, -503, or -1: broken. */
static int read_chunk(struct mc_web_request *request, uint64_t limit, struct mc_web_bytes *body, uint64_t *capacity)
{
    struct mc_web_connection *connection = request->connection;
    if (!take_lines(connection, deadline_for(0)))
        return -1;
    uint64_t size = connection->body.left;
    if (connection->body.state == MC_BODY_DONE)
        return 0;
    if (size > limit || body->length + size > limit)
        return -413;
    if (!grow(request, body, size, capacity))
        return -503;
    if (!body_take(connection, body->data + body->length, size, deadline_for(size)))
        return -1;
    mc_body_took(&connection->body, size);
    body->length += size;
    return 1;
}

static bool read_chunked(struct mc_web_request *request, uint64_t limit, struct mc_web_bytes *body)
{
    uint64_t capacity = MC_WEB_SMALL_BYTES;
    uint64_t end_ns = deadline_for(limit);
    int rc = 1;
    *body = (struct mc_web_bytes){malloc(MC_WEB_SMALL_BYTES + 1), 0, 0};
    if (body->data == NULL)
        return refuse_busy(request);
    send_continue(request->connection);
    while (rc > 0)
        rc = mc_clock_ns() > end_ns ? -1 : read_chunk(request, limit, body, &capacity);
    if (rc == 0)
        return true;
    mc_web_bytes_free(request, body);
    if (rc == -413)
        return refuse_long(request);
    if (rc == -503)
        return refuse_busy(request);
    request->connection->is_broken = true;
    request->is_answered = true;
    return false;
}

bool mc_web_read_body(struct mc_web_request *request, uint64_t limit, struct mc_web_bytes *body)
{
    return is_chunked(request->connection) ? read_chunked(request, limit, body) : read_sized(request, limit, body);
}

/* ---- answers ---- */

/* As the original's server calls them. */
static const char *reason(int status)
{
    return status == 413 ? "Request Entity Too Large" : mc_http_reason(status);
}

/* A body that is still to come is taken when it is short; else the connection ends after the answer. */
static bool can_stay(struct mc_web_connection *connection)
{
    return !is_chunked(connection) && !connection->is_continue_due && connection->body.left <= DISCARD_MAX &&
           !atomic_load(&connection->web->is_stopping);
}

static void reply(struct mc_web_request *request, int status, const char *type, const char *extra, const void *body,
                  uint64_t length)
{
    struct mc_web_connection *connection = request->connection;
    char head[512], date[64];
    time_t now = time(NULL);
    struct tm utc;
    mc_assert(!request->is_answered);
    request->is_answered = true;
    if (connection->is_broken)
        return;
    if (!can_stay(connection))
        request->head.keeps_alive = false;
    if (gmtime_r(&now, &utc) == NULL || strftime(date, sizeof(date), "%a, %d %b %Y %H:%M:%S GMT", &utc) == 0)
        date[0] = 0;
    int size = snprintf(
        head, sizeof(head), "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %" PRIu64 "\r\nDate: %s\r\n%s%s\r\n",
        status, reason(status), type, length, date, extra, request->head.keeps_alive ? "" : "Connection: close\r\n");
    mc_assert(size > 0 && (size_t)size < sizeof(head));
    struct iovec parts[2] = {{.iov_base = head, .iov_len = (size_t)size},
                             {.iov_base = (void *)(uintptr_t)body, .iov_len = (size_t)length}};
    size_t count = request->is_head || length == 0 ? 1 : 2;
    if (mc_socket_send(connection->fd, parts, count, deadline_for(length)) < 0)
        connection->is_broken = true;
}

void mc_web_reply(struct mc_web_request *request, int status, const char *type, const void *body, uint64_t length)
{
    reply(request, status, type, status == 503 ? "Retry-After: 1\r\n" : "", body, length);
}

void mc_web_reply_text(struct mc_web_request *request, int status, const char *type, const char *text)
{
    mc_web_reply(request, status, type, text, strlen(text));
}

bool mc_web_is_permitted(struct mc_web_request *request, unsigned right)
{
    const struct mc_head *head = &request->head;
    int status = 0;
    const char *text = "";
    if (right == MC_RIGHT_ADMIN) {
        status = mc_keys_origin_status(right, mc_head_find(head, "Origin"), mc_head_find(head, "Host"));
        text = MC_KEYS_ORIGIN;
    }
    if (right == MC_RIGHT_ADMIN && status == 0) {
        status = mc_keys_stranger_status(right, mc_socket_peer_is_near(request->connection->fd));
        text = MC_KEYS_STRANGER;
    }
    if (right != 0 && status == 0) {
        status = mc_keys_http_status(mc_head_find(head, "Authorization"), right);
        text = status == 401 ? "this port wants a key: Authorization: Bearer id:secret\n"
                             : "this key has no right to that\n";
    }
    if (status != 0)
        reply(request, status, MC_WEB_TEXT, status == 401 ? "WWW-Authenticate: " MC_KEYS_CHALLENGE "\r\n" : "", text,
              strlen(text));
    return status == 0;
}

void mc_web_reply_not_allowed(struct mc_web_request *request, const char *allowed)
{
    static const char text[] = "405: Method Not Allowed";
    char extra[64];
    snprintf(extra, sizeof(extra), "Allow: %.40s\r\n", allowed);
    reply(request, 405, MC_WEB_TEXT, extra, text, sizeof(text) - 1);
}

/* ---- a connection's thread ---- */

static void set_busy(struct mc_web_connection *connection, bool is_busy)
{
    pthread_mutex_lock(&connection->web->lock);
    connection->is_busy = is_busy;
    connection->idle_since = mc_clock_ns();
    pthread_mutex_unlock(&connection->web->lock);
}

/* > 0: bytes of the head; 0: the connection has ended; negative: status to refuse it with. */
static int wait_head(struct mc_web_connection *connection, struct mc_head *head)
{
    static const struct mc_message_rules rules = {MC_WEB_HEAD_MAX, HEADERS_MAX, true};
    uint64_t deadline_ns = mc_clock_ns() + MC_WEB_IDLE_MS * (uint64_t)MILLION;
    for (bool is_first = connection->length == 0;;) {
        const char *at = connection->buffer + connection->begin;
        /* Empty lines before a request are passed over, as others do. */
        while (connection->length > 0 && (*at == '\r' || *at == '\n'))
            at++, connection->begin++, connection->length--;
        int rc = mc_head_read_request(head, &rules, at, connection->length);
        if (rc != 0)
            return rc;
        if (atomic_load(&connection->web->is_stopping) || mc_clock_ns() > deadline_ns ||
            !refill(connection, deadline_ns))
            return 0;
        if (is_first) /* the whole head must come soon now */
            deadline_ns = deadline_for(0);
        is_first = false;
    }
}

/* The sender of a body that nobody will read gets time to see the answer: closing with bytes unread would reset. */
static void linger(struct mc_web_connection *connection)
{
    char dropped[16384];
    uint64_t end_ns = mc_clock_ns() + LINGER_MS * (uint64_t)MILLION;
    size_t total = 0;
    if (shutdown(connection->fd, SHUT_WR) != 0)
        return;
    while (total < LINGER_BYTES) {
        int64_t got = mc_socket_receive(connection->fd, dropped, sizeof(dropped), end_ns, NULL);
        if (got <= 0)
            return;
        total += (size_t)got;
    }
}

static void refuse_head(struct mc_web_connection *connection, int status)
{
    struct mc_web_request request = {.connection = connection};
    char text[64];
    snprintf(text, sizeof(text), "%d: %s", status, reason(status));
    mc_web_reply_text(&request, status, MC_WEB_TEXT, text);
    linger(connection);
}

static void begin_request(struct mc_web_connection *connection, struct mc_web_request *request)
{
    struct mc_head *head = &request->head;
    request->is_head = strcmp(head->method, "HEAD") == 0;
    if (request->is_head)
        head->method = "GET";
    request->path = mc_span(head->target, strcspn(head->target, "?"));
    mc_body_begin(&connection->body, head);
    connection->is_continue_due = head->expects_continue && connection->body.state != MC_BODY_DONE;
}

/* False: the connection ends. */
static bool serve_one(struct mc_web_connection *connection, struct mc_web_request *request)
{
    int rc = wait_head(connection, &request->head);
    if (rc == 0)
        return false;
    set_busy(connection, true);
    if (rc < 0 || strlen(request->head.method) > METHOD_MAX) {
        refuse_head(connection, rc < 0 ? -rc : 501);
        return false;
    }
    connection->begin += (size_t)rc;
    connection->length -= (size_t)rc;
    begin_request(connection, request);
    request->head.keeps_alive = request->head.keeps_alive && !connection->is_late;
    connection->handler(connection->context, request);
    mc_assert(request->is_answered);
    if (connection->is_broken)
        return false;
    if (!request->head.keeps_alive) {
        if (connection->body.state != MC_BODY_DONE)
            linger(connection);
        return false;
    }
    if (!body_take(connection, NULL, connection->body.left, deadline_for(0)))
        return false;
    set_busy(connection, false);
    return true;
}

static void forget(struct mc_web *web, struct mc_web_connection *connection)
{
    pthread_mutex_lock(&web->lock);
    for (size_t i = 0; i < web->count; i++) {
        if (web->connections[i] == connection) {
            web->connections[i] = web->connections[--web->count];
            web->late_count -= connection->is_late && !connection->is_leaving;
            web->leaving_count -= connection->is_leaving;
            break;
        }
    }
    (void)shutdown(connection->fd, SHUT_RDWR); /* a forked child may have a copy, and nobody reads there */
    close(connection->fd);                     /* under the lock: nobody shuts down what is somebody else's by now */
    free(connection);
    pthread_cond_broadcast(&web->changed);
    pthread_mutex_unlock(&web->lock); /* the last use of web by this thread */
}

static void *serve(void *argument)
{
    struct mc_web_connection *connection = argument;
    (void)pthread_detach(pthread_self());
    for (bool goes_on = true; goes_on;) {
        struct mc_web_request request = {.connection = connection};
        goes_on = serve_one(connection, &request);
        mc_head_free(&request.head);
    }
    forget(connection->web, connection);
    return NULL;
}

/* ---- listening ---- */

int mc_web_bind(const char *host, uint16_t *port, const char *flag, char *error, size_t error_size)
{
    uint16_t wanted = *port;
    int fd = mc_tcp_bind(host, port);
    if (fd == MC_ERR_INVALID_PARAMS)
        snprintf(error, error_size, "cannot listen on '%.200s': that is no address of this machine", host);
    else if (fd < 0)
        snprintf(error, error_size,
                 "cannot listen on %.200s port %u (%s): %s; stop the process that has it, or choose "
                 "another with --%s",
                 host, (unsigned)wanted, flag, strerror(errno), flag);
    return fd;
}

/* With the lock: is there a place of that kind? */
static bool has_place(const struct mc_web *web, bool is_late)
{
    return is_late ? web->late_count < MC_WEB_LATE_MAX
                   : web->count - web->late_count - web->leaving_count < MC_WEB_CONNECTIONS_MAX;
}

/* With the lock: the connection of that kind that waited longest for a request, and whose request has not come
 * meanwhile, leaves, so that a new one has room; of late ones any, whose answers are short. Its thread ends beside the
 * new one's. False: there is none, or too many threads do not come to their end. */
static bool make_place(struct mc_web *web, bool is_late)
{
    uint64_t end_ns = mc_clock_ns() + 100 * (uint64_t)MILLION;
    while (web->leaving_count == LEAVING_MAX)
        if (mc_monitor_wait(&web->lock, &web->changed, end_ns) == ETIMEDOUT)
            return false;
    struct mc_web_connection *oldest = NULL;
    for (size_t i = 0; i < web->count; i++) {
        struct mc_web_connection *one = web->connections[i];
        if (one->is_late == is_late && !one->is_leaving && (is_late || !one->is_busy) &&
            (oldest == NULL || one->idle_since < oldest->idle_since) && mc_socket_is_silent(one->fd))
            oldest = one;
    }
    if (oldest == NULL)
        return false;
    (void)shutdown(oldest->fd, SHUT_RDWR);
    oldest->is_leaving = true;
    web->leaving_count++;
    web->late_count -= is_late;
    return true;
}

static bool admit(struct mc_web *web, int fd, mc_web_handler *handler, mc_web_handler *late, void *context)
{
    pthread_t thread;
    struct mc_web_connection *connection = calloc(1, sizeof(*connection));
    if (connection == NULL)
        return false;
    connection->web = web;
    connection->context = context;
    connection->fd = fd;
    connection->idle_since = mc_clock_ns();
    pthread_mutex_lock(&web->lock);
    connection->is_late = handler == NULL || (!has_place(web, false) && !make_place(web, false));
    connection->handler = connection->is_late ? late : handler;
    bool has_room = !connection->is_late || has_place(web, true) || make_place(web, true);
    bool ok = has_room && mc_thread_start(&thread, "mc-rest", serve, connection) == 0;
    if (ok) {
        web->connections[web->count++] = connection; /* its thread needs the lock before it can end */
        web->late_count += connection->is_late;
    }
    pthread_mutex_unlock(&web->lock);
    if (!ok)
        free(connection);
    return ok;
}

void mc_web_accept(struct mc_web *web, int listener, mc_web_handler *handler, mc_web_handler *late, void *context)
{
    static const char full[] = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    int fd;
    while ((fd = mc_socket_accept(listener)) >= 0) {
        if (admit(web, fd, handler, late, context))
            continue;
        mc_log_limited(WARNING, "more than %d connections: one is refused", MC_WEB_CONNECTIONS_MAX);
        (void)send(fd, full, sizeof(full) - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        close(fd);
    }
    if (errno == EMFILE || errno == ENFILE)
        usleep(50000); /* the listener stays readable: not in a circle */
}

/* ---- life ---- */

struct mc_web *mc_web_create(void)
{
    struct mc_web *web = calloc(1, sizeof(*web));
    if (web != NULL)
        mc_monitor_init(&web->lock, &web->changed);
    return web;
}

bool mc_web_stop(struct mc_web *web)
{
    pthread_mutex_lock(&web->lock);
    atomic_store(&web->is_stopping, true);
    pthread_cond_broadcast(&web->changed);
    for (int round = 0; round < 2 && web->count > 0; round++) {
        uint64_t end_ns = mc_clock_ns() + MC_WEB_STOP_MS * (uint64_t)MILLION;
        for (size_t i = 0; i < web->count; i++)
            if (!web->connections[i]->is_busy || round == 1)
                (void)shutdown(web->connections[i]->fd, SHUT_RDWR);
        while (web->count > 0 && mc_monitor_wait(&web->lock, &web->changed, end_ns) != ETIMEDOUT)
            ;
    }
    bool is_empty = web->count == 0;
    pthread_mutex_unlock(&web->lock);
    return is_empty;
}

void mc_web_destroy(struct mc_web *web)
{
    if (web == NULL)
        return;
    mc_monitor_destroy(&web->lock, &web->changed);
    free(web);
}
