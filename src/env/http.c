/* HTTP/1.1, the client's half. */
#include "env/http.h"

#include "base/error.h"

#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

#define HEADER_MAX (16u << 10)
#define RECEIVE_BYTES 4096u

void mc_http_hang_up(struct mc_http *http)
{
    if (http->fd >= 0)
        close(http->fd);
    http->fd = -1;
    http->in.length = 0;
}

int mc_http_connect(struct mc_http *http, uint64_t deadline_ns)
{
    if (http->fd < 0)
        http->fd = mc_tcp_connect(http->address, deadline_ns);
    return http->fd < 0 ? http->fd : 0;
}

void mc_http_free(struct mc_http *http)
{
    mc_http_hang_up(http);
    mc_buffer_free(&http->in);
}

struct head {
    unsigned status;
    uint64_t length;
    bool has_length, is_chunked, is_last;
};

static int receive_more(struct mc_http *http, uint64_t deadline_ns)
{
    mc_buffer_reserve(&http->in, RECEIVE_BYTES);
    int64_t got = mc_socket_receive(http->fd, http->in.data + http->in.length, RECEIVE_BYTES, deadline_ns, NULL);
    if (got < 0)
        return (int)got;
    http->in.length += (size_t)got;
    return 0;
}

/* Receives until the input begins with a line; *length is without its end. A longer one than `most` is refused. */
static int receive_line(struct mc_http *http, size_t most, size_t *length, uint64_t deadline_ns)
{
    for (;;) {
        const uint8_t *end = http->in.length == 0 ? NULL : memchr(http->in.data, '\n', http->in.length);
        if (end != NULL) {
            *length = (size_t)(end - http->in.data);
            return *length > 0 && end[-1] == '\r' && *length <= most ? 0 : MC_ERR_PROTOCOL;
        }
        if (http->in.length > most)
            return MC_ERR_PROTOCOL;
        int rc = receive_more(http, deadline_ns);
        if (rc < 0)
            return rc;
    }
}

static void take_header(struct head *head, char *line)
{
    char *value = strchr(line, ':');
    if (value == NULL)
        return;
    *value++ = 0;
    value += strspn(value, " \t");
    if (strcasecmp(line, "content-length") == 0 && *value >= '0' && *value <= '9') {
        head->length = strtoull(value, NULL, 10);
        head->has_length = true;
    } else if (strcasecmp(line, "transfer-encoding") == 0) {
        head->is_chunked = strcasecmp(value, "chunked") == 0;
    } else if (strcasecmp(line, "connection") == 0) {
        head->is_last = strcasecmp(value, "close") == 0;
    }
}

static int receive_head(struct mc_http *http, struct head *head, uint64_t deadline_ns)
{
    size_t length, used = 0;
    *head = (struct head){0};
    for (;;) {
        int rc = receive_line(http, HEADER_MAX, &length, deadline_ns);
        if (rc < 0)
            return rc;
        char *line = (char *)http->in.data;
        line[length - 1] = 0; /* where the carriage return was */
        bool is_end = length == 1;
        if (head->status == 0) {
            if (strlen(line) < 12 || strncmp(line, "HTTP/1.", 7) != 0 || line[8] != ' ')
                return MC_ERR_PROTOCOL;
            head->status = (unsigned)strtoul(line + 9, NULL, 10);
            is_end = false;
        } else if (!is_end) {
            take_header(head, line);
        }
        mc_buffer_consume(&http->in, length + 1);
        used += length + 1;
        if (is_end)
            return head->status >= 200 && head->status < 600 ? 0 : MC_ERR_PROTOCOL;
        if (used > HEADER_MAX)
            return MC_ERR_PROTOCOL;
    }
}

/* Moves exactly `length` bytes of the body to reply. */
static int receive_bytes(struct mc_http *http, uint64_t length, struct mc_buffer *reply, uint64_t deadline_ns)
{
    if (length > MC_HTTP_REPLY_MAX - reply->length)
        return MC_ERR_PROTOCOL;
    while (http->in.length < length) {
        int rc = receive_more(http, deadline_ns);
        if (rc < 0)
            return rc;
    }
    mc_buffer_append(reply, http->in.data, (size_t)length);
    mc_buffer_consume(&http->in, (size_t)length);
    return 0;
}

/* Headers behind the last chunk, as etcd's gateway sends them with every refusal, and the empty line. */
static int skip_trailers(struct mc_http *http, uint64_t deadline_ns)
{
    for (size_t used = 0, length = 0; used <= HEADER_MAX; used += length + 1) {
        int rc = receive_line(http, HEADER_MAX, &length, deadline_ns);
        if (rc < 0)
            return rc;
        mc_buffer_consume(&http->in, length + 1);
        if (length == 1)
            return 0;
    }
    return MC_ERR_PROTOCOL;
}

static int receive_chunks(struct mc_http *http, struct mc_buffer *reply, uint64_t deadline_ns)
{
    for (;;) {
        size_t length;
        char *rest;
        int rc = receive_line(http, 64, &length, deadline_ns);
        if (rc < 0)
            return rc;
        char *line = (char *)http->in.data;
        line[length - 1] = 0;
        uint64_t size = strtoull(line, &rest, 16);
        if (rest == line || (*rest != 0 && *rest != ';') || line[0] == '-')
            return MC_ERR_PROTOCOL;
        mc_buffer_consume(&http->in, length + 1);
        if (size == 0)
            return skip_trailers(http, deadline_ns);
        rc = receive_bytes(http, size, reply, deadline_ns);
        if (rc == 0)
            rc = receive_line(http, 0 + 1, &length, deadline_ns);
        if (rc < 0)
            return rc;
        mc_buffer_consume(&http->in, length + 1);
    }
}

int mc_http_ask(struct mc_http *http, const char *method, const char *path, struct mc_span body, uint64_t deadline_ns)
{
    struct mc_buffer text = {0};
    mc_buffer_printf(&text, "%s %s HTTP/1.1\r\nHost: %s\r\n", method, path, http->address);
    if (body.length > 0 || strcmp(method, "GET") != 0)
        mc_buffer_printf(&text, "Content-Type: application/json\r\nContent-Length: %zu\r\n", body.length);
    mc_buffer_printf(&text, "\r\n");
    struct iovec parts[2] = {{text.data, text.length}, {(void *)(uintptr_t)body.data, body.length}};
    int rc = mc_socket_send(http->fd, parts, 2, deadline_ns);
    mc_buffer_free(&text);
    return rc;
}

int mc_http_answer(struct mc_http *http, uint64_t deadline_ns, struct mc_buffer *reply)
{
    struct head head = {0};
    reply->length = 0;
    int rc = receive_head(http, &head, deadline_ns);
    bool is_bare = head.status == 204 || head.status == 304;
    if (rc == 0 && !is_bare && !head.is_chunked && !head.has_length)
        rc = MC_ERR_PROTOCOL;
    if (rc == 0 && !is_bare)
        rc = head.is_chunked ? receive_chunks(http, reply, deadline_ns)
                             : receive_bytes(http, head.length, reply, deadline_ns);
    if (rc < 0)
        return rc;
    if (head.is_last || http->in.length > 0)
        mc_http_hang_up(http);
    return (int)head.status;
}

int mc_http_exchange(struct mc_http *http, const char *method, const char *path, struct mc_span body,
                     uint64_t deadline_ns, struct mc_buffer *reply)
{
    reply->length = 0;
    int rc = mc_http_ask(http, method, path, body, deadline_ns);
    return rc < 0 ? rc : mc_http_answer(http, deadline_ns, reply);
}
