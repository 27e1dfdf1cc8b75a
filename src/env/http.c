/* HTTP/1.1, the client's half. */
#include "env/http.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "net/message.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define HEADER_MAX (16u << 10)
#define RECEIVE_BYTES 4096u

static void hang_up(struct mc_http *http)
{
    mc_tls_end(http->tls);
    http->tls = NULL;
    if (http->is_on_way)
        mc_socket_way_end(http->fd);
    http->is_on_way = false;
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
    http->in.may_fail = true; /* a server chooses how much it says */
    if (!mc_buffer_reserve(&http->in, RECEIVE_BYTES))
        return MC_ERR_NO_MEMORY;
    char *end = (char *)http->in.data + http->in.length;
    int64_t got = http->tls != NULL ? mc_tls_receive(http->tls, end, RECEIVE_BYTES, deadline_ns)
                                    : mc_socket_receive(http->fd, end, RECEIVE_BYTES, deadline_ns, NULL);
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
            if (reply->failed)
                return MC_ERR_NO_MEMORY;
            mc_body_took(body, part);
        }
        int rc = used < 0 ? MC_ERR_PROTOCOL : used == 0 ? receive_more(http, deadline_ns) : 0;
        if (rc < 0)
            return rc;
        mc_buffer_consume(&http->in, (size_t)used);
    }
    return 0;
}

int mc_http_ask(struct mc_http *http, const struct mc_http_question *question, uint64_t deadline_ns)
{
    struct mc_buffer text = {0};
    struct mc_span body = question->body;
    mc_buffer_printf(&text, "%s %s HTTP/1.1\r\nHost: %s\r\n", question->method, question->path, http->address);
    if (question->secret != NULL)
        mc_buffer_printf(&text, "Authorization: %s\r\n", question->secret);
    if (question->headers != NULL)
        mc_buffer_printf(&text, "%s", question->headers);
    if (body.length > 0 || strcmp(question->method, "GET") != 0)
        mc_buffer_printf(&text, "Content-Type: %s\r\nContent-Length: %zu\r\n",
                         question->type == NULL ? "application/json" : question->type, body.length);
    mc_buffer_printf(&text, "\r\n");
    struct iovec parts[2] = {{text.data, text.length}, {(void *)(uintptr_t)body.data, body.length}};
    int rc = http->tls != NULL ? mc_tls_send(http->tls, parts, 2, deadline_ns)
                               : mc_socket_send(http->fd, parts, 2, deadline_ns);
    if (question->secret != NULL || question->headers != NULL)
        explicit_bzero(text.data, text.length);
    mc_buffer_free(&text);
    return rc;
}

bool mc_http_is_ready(struct mc_http *http)
{
    return http->tls == NULL || mc_tls_is_ready(http->tls);
}

/* What is no answer to a question without TLS may be one that asks for it: an alert, or words of a server in Go. Some
 * say nothing. */
static void look_for_tls(const struct mc_http *http, int rc)
{
    static const char alert[] = {0x15, 0x03}, words[] = "HTTP request to an HTTPS server";
    const struct mc_buffer *in = &http->in;
    if (http->tls != NULL || http->has_answered)
        return;
    if (rc == MC_ERR_PROTOCOL && in->length >= sizeof(alert) &&
        (memcmp(in->data, alert, sizeof(alert)) == 0 || memmem(in->data, in->length, words, sizeof(words) - 1) != NULL))
        mc_log_limited(WARNING, "%s speaks TLS only: write https:// before its address", http->address);
    else if (rc == MC_ERR_RPC_FAIL && in->length == 0)
        mc_log_limited(WARNING,
                       "%s ended the connection without an answer: if it speaks TLS only, write https:// before its "
                       "address",
                       http->address);
}

/* Seconds, or a date: "Sun, 06 Nov 1994 08:49:37 GMT". Its other forms are of the last century. 0: neither. */
static uint64_t retry_read(const char *text)
{
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    char month[4] = "", zone[4] = "";
    struct tm date = {0};
    char *end;
    if (text == NULL)
        return 0;
    errno = 0;
    unsigned long long seconds = strtoull(text, &end, 10);
    if (text[0] >= '0' && text[0] <= '9' && *end == 0)
        return errno == 0 ? seconds : UINT64_MAX;
    if (sscanf(text, "%*3s, %2d %3s %4d %2d:%2d:%2d %3s", &date.tm_mday, month, &date.tm_year, &date.tm_hour,
               &date.tm_min, &date.tm_sec, zone) != 7 ||
        strlen(month) != 3 || strcmp(zone, "GMT") != 0)
        return 0;
    const char *at = strstr(months, month);
    if (at == NULL || (at - months) % 3 != 0)
        return 0;
    date.tm_mon = (int)(at - months) / 3;
    date.tm_year -= 1900;
    int64_t left_s = (int64_t)timegm(&date) - (int64_t)(mc_clock_wall_ms() / 1000);
    return left_s > 0 ? (uint64_t)left_s : 0;
}

int mc_http_answer(struct mc_http *http, uint64_t deadline_ns, struct mc_buffer *reply)
{
    struct mc_head head = {0};
    struct mc_body body;
    reply->length = 0;
    reply->may_fail = true;
    int rc = receive_head(http, &head, deadline_ns);
    if (rc < 0)
        look_for_tls(http, rc);
    mc_body_begin(&body, &head);
    http->retry_s = rc == 0 ? retry_read(mc_head_find(&head, "Retry-After")) : 0;
    if (rc == 0)
        rc = receive_body(http, &body, reply, deadline_ns);
    http->has_answered |= rc == 0;
    if (rc == 0 && (!head.keeps_alive || http->in.length > 0))
        hang_up(http);
    int status = head.status;
    mc_head_free(&head);
    return rc < 0 ? rc : status;
}

static int begin_tls(struct mc_http *http, const struct mc_tls_settings *tls, uint64_t deadline_ns)
{
    char why[MC_TLS_PROBLEM_MAX];
    int rc = mc_tls_begin(tls, http->address, http->fd, &http->tls, why, sizeof(why));
    if (rc == 0)
        rc = mc_tls_handshake(http->tls, deadline_ns);
    else
        mc_log_limited(ERROR, "%s", why);
    return rc == 0 || rc == MC_ERR_RPC_TIMEOUT ? rc : MC_ERR_RPC_FAIL;
}

int mc_http_once(const char *address, const struct mc_tls_settings *tls, const struct mc_http_question *question,
                 uint64_t deadline_ns, struct mc_buffer *reply, int *error)
{
    errno = 0;
    struct mc_http http = {.fd = mc_tcp_connect(address, deadline_ns)};
    snprintf(http.address, sizeof(http.address), "%s", address);
    *error = http.fd == MC_ERR_RPC_TIMEOUT ? ETIMEDOUT : http.fd < 0 ? errno : 0;
    http.is_on_way = http.fd >= 0;
    if (http.is_on_way)
        mc_socket_way_begin(http.fd); /* a child that is forked meanwhile must not hold it */
    reply->length = 0;
    int rc = http.fd < 0 ? http.fd : tls != NULL ? begin_tls(&http, tls, deadline_ns) : 0;
    if (rc == 0)
        rc = mc_http_ask(&http, question, deadline_ns);
    if (rc == 0)
        rc = mc_http_answer(&http, deadline_ns, reply);
    if (question->retry_s != NULL)
        *question->retry_s = http.retry_s;
    if (http.tls != NULL && mc_tls_problem(http.tls)[0] != 0)
        mc_log_limited(ERROR, "%s", mc_tls_problem(http.tls));
    mc_http_free(&http);
    return rc;
}
