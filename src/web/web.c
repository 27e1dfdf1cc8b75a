/* The HTTP server of handlers that block: requests, bodies and answers. */
#include "web/web_inside.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "env/secure.h"
#include "env/socket.h"
#include "env/thread.h"
#include "env/tls.h"

#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define HEADERS_MAX 100
#define METHOD_MAX 15
#define DISCARD_MAX 65536u /* bytes of a body that nobody read, taken so that the connection can stay */
#define LINGER_BYTES (256u << 20)
#define BUDGET_LOOK_MS 100u /* between two looks of who waits for budget */
#define BUFFER_LEAST 1024u
#define PACE_BYTES 16384u        /* of a body: who sends less in MC_WEB_SILENT_MS may lose its thread */
#define TAKEN_BYTES_PER_MS 4096u /* of an answer: the same */
#define FAIR_BYTES_PER_MS 1024u  /* of a body: who sends less may lose what it has of the budget to one who has less */

/* ---- budget ---- */

/* With the lock: is there so much for it? Of those that wait the ones whose address has least go first; not for what is
 * nearly all. */
static bool budget_is_there(const struct mc_web_connection *connection)
{
    const struct mc_web *web = connection->web;
    /* One alone may be larger than the whole, or it could never be served. */
    if (web->budget_used > 0 && web->budget_used + connection->wants > MC_WEB_BUDGET_BYTES)
        return false;
    for (const struct mc_web_connection *one = web->served.oldest; one != NULL; one = one->newer)
        if (one->wants > 0 && one->wants <= MC_WEB_BUDGET_BYTES / MC_WEB_SHARE_PARTS &&
            web->charged[one->share] < web->charged[connection->share])
            return false;
    return true;
}

static bool budget_take(struct mc_web_connection *connection, uint64_t bytes)
{
    struct mc_web *web = connection->web;
    uint64_t begun_ns = mc_clock_ns(), now_ns = begun_ns, look_ns = BUDGET_LOOK_MS * (uint64_t)MC_WEB_MILLION;
    uint64_t end_ns = begun_ns + MC_WEB_BUDGET_WAIT_MS * (uint64_t)MC_WEB_MILLION;
    bool ok;
    pthread_mutex_lock(&web->lock);
    connection->wants = bytes;
    connection->since_ns = begun_ns;
    while (!(ok = budget_is_there(connection)) && now_ns < end_ns && !connection->is_going &&
           !atomic_load(&web->is_stopping)) {
        mc_web_make_budget(connection, begun_ns);
        (void)mc_monitor_wait(&web->lock, &web->changed, end_ns < now_ns + look_ns ? end_ns : now_ns + look_ns);
        now_ns = mc_clock_ns();
    }
    connection->wants = connection->since_ns = 0;
    connection->is_going = false;
    if (ok) {
        web->budget_used += bytes;
        web->charged[connection->share] += bytes;
        connection->charged += bytes;
    }
    pthread_mutex_unlock(&web->lock);
    return ok;
}

static void budget_give(struct mc_web_connection *connection, uint64_t bytes)
{
    struct mc_web *web = connection->web;
    pthread_mutex_lock(&web->lock);
    web->budget_used -= bytes;
    web->charged[connection->share] -= bytes;
    connection->charged -= bytes;
    pthread_cond_broadcast(&web->changed);
    pthread_mutex_unlock(&web->lock);
}

void *mc_web_bytes_make(struct mc_web_request *request, struct mc_web_bytes *bytes, uint64_t length)
{
    uint64_t charged = length <= MC_WEB_SMALL_BYTES ? 0 : length;
    if (length > SIZE_MAX / 2 || (charged > 0 && !budget_take(request->connection, charged)))
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
        budget_give(request->connection, bytes->charged);
    *bytes = (struct mc_web_bytes){NULL, 0, 0};
}

/* ---- reading ---- */

static uint64_t deadline_for(uint64_t bytes)
{
    return mc_clock_ns() + (MC_WEB_PROGRESS_MS + bytes / MC_WEB_BYTES_PER_MS) * MC_WEB_MILLION;
}

void mc_web_buffer_free(struct mc_web_connection *connection)
{
    free(connection->buffer);
    atomic_fetch_sub(&connection->web->buffered, connection->capacity);
    connection->buffer = NULL;
    connection->begin = connection->length = connection->capacity = 0;
}

/* Room for more bytes in the buffer, which grows up to the longest head. 0: none. */
static size_t make_room(struct mc_web_connection *connection)
{
    if (connection->begin > 0)
        memmove(connection->buffer, connection->buffer + connection->begin, connection->length);
    connection->begin = 0;
    if (connection->length == connection->capacity && connection->capacity < connection->web->head_max) {
        size_t wanted = connection->capacity == 0 ? BUFFER_LEAST : 2 * connection->capacity;
        char *buffer = realloc(connection->buffer, wanted);
        if (buffer == NULL)
            return 0;
        atomic_fetch_add(&connection->web->buffered, wanted - connection->capacity);
        connection->buffer = buffer;
        connection->capacity = wanted;
    }
    return connection->capacity - connection->length;
}

bool mc_web_take(struct mc_web_connection *connection)
{
    size_t room;
    ssize_t got = 0;
    if (!connection->is_heard && mc_secure_accept_http(connection->fd) < 0) /* who says nothing costs nothing */
        return false;
    connection->is_heard = true;
    do { /* of a record no half is left, which no poll would tell of */
        room = make_room(connection);
        if (room == 0)
            return got > 0;
        got = mc_socket_recv(connection->fd, connection->buffer + connection->length, room);
        connection->length += got > 0 ? (size_t)got : 0;
    } while (got == (ssize_t)room && mc_socket_holds(connection->fd));
    return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

/* From now on it has a while for the next few bytes, before its thread may be taken from it. */
static void pace(struct mc_web_connection *connection)
{
    connection->fresh = 0;
    connection->pace_ns = mc_clock_ns();
}

/* What of a body comes, or does not, while a thread waits for it. */
static int64_t receive(struct mc_web_connection *connection, void *data, size_t size, uint64_t deadline_ns)
{
    int64_t got = mc_socket_recv(connection->fd, data, size);
    if (got <= 0) {
        mc_web_wait_begin(connection, connection->pace_ns, false);
        got = mc_socket_receive(connection->fd, data, size, deadline_ns, NULL);
        mc_web_wait_end(connection);
    }
    connection->fresh += got > 0 ? (size_t)got : 0;
    connection->fair_ns += got > 0 ? (uint64_t)got * MC_WEB_MILLION / FAIR_BYTES_PER_MS : 0;
    if (connection->fresh >= PACE_BYTES)
        pace(connection);
    return got;
}

/* At least one more byte into the buffer. False at the end. */
static bool refill(struct mc_web_connection *connection, uint64_t deadline_ns)
{
    size_t room = make_room(connection);
    int64_t got = room == 0 ? -1 : receive(connection, connection->buffer + connection->length, room, deadline_ns);
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
        int64_t got = receive(connection, at != NULL ? (void *)at : dropped, (size_t)(bytes < limit ? bytes : limit),
                              deadline_ns);
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
    pace(connection);
    connection->fair_ns = connection->pace_ns + MC_WEB_SILENT_MS * (uint64_t)MC_WEB_MILLION;
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
    if (!budget_take(request->connection, wanted - body->charged))
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

/* Whole, or the connection is broken. bytes: of the parts. */
static void send_parts(struct mc_web_connection *connection, struct iovec *parts, size_t count, uint64_t bytes)
{
    mc_web_wait_begin(connection, mc_clock_ns() + bytes / TAKEN_BYTES_PER_MS * MC_WEB_MILLION, true);
    if (mc_socket_send(connection->fd, parts, count, deadline_for(bytes)) < 0)
        connection->is_broken = true;
    mc_web_wait_end(connection);
    pace(connection);
}

/* The head, with those lines, and what of the body is there already. */
static void reply(struct mc_web_request *request, int status, const char *type, const char *framing, const char *lines,
                  const void *body, uint64_t length)
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
    int size =
        snprintf(head, sizeof(head), "HTTP/1.1 %d %s\r\nContent-Type: %s\r\n%sDate: %s\r\n%s%s\r\n", status,
                 reason(status), type, framing, date, lines, request->head.keeps_alive ? "" : "Connection: close\r\n");
    mc_assert(size > 0 && (size_t)size < sizeof(head));
    struct iovec parts[2] = {{.iov_base = head, .iov_len = (size_t)size},
                             {.iov_base = (void *)(uintptr_t)body, .iov_len = (size_t)length}};
    send_parts(connection, parts, request->is_head || length == 0 ? 1 : 2, length);
}

void mc_web_reply_with(struct mc_web_request *request, int status, const char *type, const char *lines,
                       const void *body, uint64_t length)
{
    char framing[48];
    snprintf(framing, sizeof(framing), "Content-Length: %" PRIu64 "\r\n", length);
    reply(request, status, type, framing, lines, body, length);
}

void mc_web_reply(struct mc_web_request *request, int status, const char *type, const void *body, uint64_t length)
{
    mc_web_reply_with(request, status, type, status == 503 ? "Retry-After: 1\r\n" : "", body, length);
}

void mc_web_reply_text(struct mc_web_request *request, int status, const char *type, const char *text)
{
    mc_web_reply(request, status, type, text, strlen(text));
}

bool mc_web_reply_begin(struct mc_web_request *request, int status, const char *type)
{
    bool is_old = request->head.is_http_1_0; /* which ends with the connection */
    request->head.keeps_alive = request->head.keeps_alive && !is_old;
    reply(request, status, type, is_old ? "" : "Transfer-Encoding: chunked\r\n", "", NULL, 0);
    return !request->connection->is_broken;
}

bool mc_web_reply_part(struct mc_web_request *request, const void *data, size_t length)
{
    char line[32];
    int size = snprintf(line, sizeof(line), "%zx\r\n", length);
    struct iovec parts[3] = {{.iov_base = line, .iov_len = (size_t)size},
                             {.iov_base = (void *)(uintptr_t)data, .iov_len = length},
                             {.iov_base = (void *)(uintptr_t) "\r\n", .iov_len = 2}};
    if (length == 0 || request->is_head || request->connection->is_broken) /* a part without bytes would be the end */
        return !request->connection->is_broken;
    if (request->head.is_http_1_0)
        send_parts(request->connection, &parts[1], 1, length);
    else
        send_parts(request->connection, parts, 3, length);
    return !request->connection->is_broken;
}

void mc_web_reply_end(struct mc_web_request *request, bool is_whole)
{
    static const char last[] = "0\r\n\r\n";
    struct iovec part = {.iov_base = (void *)(uintptr_t)last, .iov_len = sizeof(last) - 1};
    if (!is_whole)
        request->connection->is_broken = true;
    if (!request->connection->is_broken && !request->is_head && !request->head.is_http_1_0)
        send_parts(request->connection, &part, 1, part.iov_len);
}

bool mc_web_is_awaited(const struct mc_web_request *request)
{
    struct pollfd peer = {.fd = request->connection->fd, .events = POLLRDHUP};
    return !atomic_load(&request->connection->web->is_stopping) && poll(&peer, 1, 0) == 0;
}

int mc_web_descriptor(const struct mc_web_request *request)
{
    return request->connection->fd;
}

bool mc_web_is_no_stranger(struct mc_web_request *request)
{
    int status = mc_keys_stranger_status(MC_RIGHT_ADMIN, mc_socket_peer_is_near(request->connection->fd));
    if (status != 0)
        mc_web_reply_text(request, status, MC_WEB_TEXT, MC_KEYS_STRANGER);
    return status == 0;
}

bool mc_web_is_permitted(struct mc_web_request *request, unsigned right, bool is_own)
{
    const struct mc_head *head = &request->head;
    int status = right == 0 || mc_secure_is_known(request->connection->fd) ? 0 : 403;
    const char *text = MC_SECURE_UNKNOWN "\n";
    if (right == MC_RIGHT_ADMIN && status == 0 && !mc_web_is_no_stranger(request))
        return false;
    if (right == MC_RIGHT_ADMIN && status == 0) {
        status = mc_keys_origin_status(right, mc_head_find(head, "Origin"), mc_head_find(head, "Host"));
        text = MC_KEYS_ORIGIN;
    }
    if (right != 0 && status == 0) {
        const char *authorization = mc_head_find(head, "Authorization");
        struct mc_key key;
        status = mc_keys_http_status_own(authorization, right, &key);
        if (status == 0 && !is_own && key.tenant[0] != 0)
            status = 403;
        memcpy(request->tenant, key.tenant, sizeof(request->tenant));
        request->rights = key.id[0] == 0 ? MC_RIGHTS_ALL : key.rights;
        text = status == 401 ? "this port wants a key: Authorization: Bearer id:secret\n"
                             : "this key has no right to that\n";
    }
    if (status != 0)
        mc_web_reply_with(request, status, MC_WEB_TEXT,
                          status == 401 ? "WWW-Authenticate: " MC_KEYS_CHALLENGE "\r\n" : "", text, strlen(text));
    return status == 0;
}

void mc_web_reply_not_allowed(struct mc_web_request *request, const char *allowed)
{
    static const char text[] = "405: Method Not Allowed";
    char extra[64];
    snprintf(extra, sizeof(extra), "Allow: %.40s\r\n", allowed);
    mc_web_reply_with(request, 405, MC_WEB_TEXT, extra, text, sizeof(text) - 1);
}

/* ---- a request ---- */

/* It begins with a method, as far as it is here. TLS, or a port of ours that was taken for another one, does not, and
 * might be waited for in vain: no line may end it. */
static bool may_be_request(const char *at, size_t length)
{
    for (size_t i = 0; i < length && at[i] != ' ' && at[i] != '\r' && at[i] != '\n'; i++)
        if (i >= METHOD_MAX + 1 || !((at[i] >= 'A' && at[i] <= 'Z') || (at[i] >= 'a' && at[i] <= 'z') || at[i] == '-'))
            return false;
    return true;
}

/* > 0: bytes of the head; 0: it is not whole; negative: status to refuse it with. */
static int read_head(struct mc_web_connection *connection, struct mc_head *head)
{
    const struct mc_message_rules rules = {connection->web->head_max, HEADERS_MAX, true};
    const char *at = connection->buffer + connection->begin;
    /* Empty lines before a request are passed over, as others do. */
    while (connection->length > 0 && (*at == '\r' || *at == '\n'))
        at++, connection->begin++, connection->length--;
    if (!may_be_request(at, connection->length))
        return -400;
    return connection->length == 0 ? 0 : mc_head_read_request(head, &rules, at, connection->length);
}

static struct mc_span path_of(const struct mc_head *head)
{
    return mc_span(head->target, strcspn(head->target, "?"));
}

bool mc_web_has_request(struct mc_web_connection *connection, bool *is_quick)
{
    struct mc_head head = {0};
    int used = read_head(connection, &head);
    bool is_there = used != 0;
    *is_quick = false;
    if (used > 0) {
        struct mc_body body;
        mc_body_begin(&body, &head);
        *is_quick =
            body.state == MC_BODY_DONE && connection->listener->is_quick(connection->listener->context, path_of(&head));
        /* What does not fit, or waits for our word, its thread reads. */
        is_there = body.framing == MC_FRAMING_CHUNKED || head.expects_continue ||
                   body.left <= connection->length - (size_t)used ||
                   body.left > connection->web->head_max - (size_t)used;
    }
    mc_head_free(&head);
    return is_there;
}

/* The sender of a body that nobody will read gets time to see the answer: closing with bytes unread would reset. It has
 * it in the loop, with no thread. */
static void linger(struct mc_web_connection *connection)
{
    connection->fresh = 0;
    if (!connection->is_broken && shutdown(connection->fd, SHUT_WR) == 0)
        connection->lingers_ns = mc_clock_ns() + MC_WEB_LINGER_MS * (uint64_t)MC_WEB_MILLION;
}

bool mc_web_drop(struct mc_web_connection *connection)
{
    char dropped[16384];
    size_t held = 0;
    ssize_t got;
    do {
        got = mc_socket_recv(connection->fd, dropped, sizeof(dropped));
        connection->fresh += got > 0 ? (size_t)got : 0;
        held += sizeof(dropped); /* what TLS has here; the rest in the next turn, which others have theirs before */
    } while (got > 0 && held < MC_TLS_HELD_MAX && mc_socket_holds(connection->fd));
    return connection->fresh < LINGER_BYTES && (got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR)));
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
    request->path = path_of(head);
    mc_body_begin(&connection->body, head);
    connection->is_continue_due = head->expects_continue && connection->body.state != MC_BODY_DONE;
}

/* False: the connection ends. */
static bool answer(struct mc_web_connection *connection, struct mc_web_request *request)
{
    int rc = read_head(connection, &request->head);
    if (rc <= 0 || strlen(request->head.method) > METHOD_MAX) {
        refuse_head(connection, rc < 0 ? -rc : 501);
        return false;
    }
    connection->begin += (size_t)rc;
    connection->length -= (size_t)rc;
    begin_request(connection, request);
    connection->listener->handler(connection->listener->context, request);
    mc_assert(request->is_answered);
    if (connection->is_broken)
        return false;
    if (!request->head.keeps_alive) {
        if (connection->body.state != MC_BODY_DONE)
            linger(connection);
        return false;
    }
    return body_take(connection, NULL, connection->body.left, deadline_for(0));
}

bool mc_web_serve_one(struct mc_web_connection *connection)
{
    struct mc_web_request request = {.connection = connection};
    pace(connection);
    bool goes_on = answer(connection, &request);
    mc_head_free(&request.head);
    return goes_on;
}
