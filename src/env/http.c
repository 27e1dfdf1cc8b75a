/* HTTP/1.1, the client's half. */
#include "env/http.h"

#include "base/error.h"
#include "net/message.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#define HEADER_MAX (16u << 10)
#define RECEIVE_BYTES 4096u

static void hang_up(struct mc_http *http)
{
    if (http->fd >= 0)
        close(http->fd);
    http->fd = -1;
    http->in.length = 0;
}

void mc_http_free(struct mc_http *http)
{
    hang_up(http);
    mc_buffer_free(&http->in);
}

static int receive_more(struct mc_http *http, uint64_t deadline_ns)
{
    mc_buffer_reserve(&http->in, RECEIVE_BYTES);
    int64_t got = mc_socket_receive(http->fd, http->in.data + http->in.length, RECEIVE_BYTES, deadline_ns, NULL);
    if (got < 0)
        return (int)got;
    http->in.length += (size_t)got;
    return 0;
}

static int receive_head(struct mc_http *http, struct mc_head *head, uint64_t deadline_ns)
{
    static const struct mc_message_rules rules = {HEADER_MAX, MC_MESSAGE_HEADERS_MAX, false};
    int used;
    while ((used = mc_head_read_response(head, &rules, (const char *)http->in.data, http->in.length, false)) == 0) {
        int rc = receive_more(http, deadline_ns);
        if (rc < 0)
            return rc;
    }
    if (used < 0 || head->status < 200 || head->status >= 600 || head->framing == MC_FRAMING_CLOSE)
        return MC_ERR_PROTOCOL;
    mc_buffer_consume(&http->in, (size_t)used);
    return 0;
}

/* Trailers are dropped: etcd's gateway sends some with every refusal. */
static int receive_body(struct mc_http *http, struct mc_body *body, struct mc_buffer *reply, uint64_t deadline_ns)
{
    while (body->state != MC_BODY_DONE) {
        bool is_data = body->state == MC_BODY_DATA;
        if (is_data && body->left > MC_HTTP_REPLY_MAX - reply->length)
            return MC_ERR_PROTOCOL;
        size_t part = http->in.length < body->left ? http->in.length : (size_t)body->left;
        int used = is_data ? (int)part : mc_body_line(body, (const char *)http->in.data, http->in.length);
        if (is_data) {
            mc_buffer_append(reply, http->in.data, part);
            mc_body_took(body, part);
        }
        int rc = used < 0 ? MC_ERR_PROTOCOL : used == 0 ? receive_more(http, deadline_ns) : 0;
        if (rc < 0)
            return rc;
        mc_buffer_consume(&http->in, (size_t)used);
    }
    return 0;
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
    struct mc_head head = {0};
    struct mc_body body;
    reply->length = 0;
    int rc = receive_head(http, &head, deadline_ns);
    mc_body_begin(&body, &head);
    if (rc == 0)
        rc = receive_body(http, &body, reply, deadline_ns);
    if (rc == 0 && (!head.keeps_alive || http->in.length > 0))
        hang_up(http);
    int status = head.status;
    mc_head_free(&head);
    return rc < 0 ? rc : status;
}

int mc_http_once(const char *address, const char *method, const char *path, struct mc_span body, uint64_t deadline_ns,
                 struct mc_buffer *reply, int *error)
{
    errno = 0;
    struct mc_http http = {.fd = mc_tcp_connect(address, deadline_ns)};
    snprintf(http.address, sizeof(http.address), "%s", address);
    *error = http.fd == MC_ERR_RPC_TIMEOUT ? ETIMEDOUT : http.fd < 0 ? errno : 0;
    reply->length = 0;
    int rc = http.fd < 0 ? http.fd : mc_http_ask(&http, method, path, body, deadline_ns);
    if (rc == 0)
        rc = mc_http_answer(&http, deadline_ns, reply);
    mc_http_free(&http);
    return rc;
}
