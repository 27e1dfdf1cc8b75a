/* etcd over HTTP. */
#include "env/etcd.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#define HEADER_MAX (16u << 10)
#define RECEIVE_BYTES 4096u
#define ROUND_PAUSE_NS 20000000L /* when no endpoint can be reached */

struct mc_etcd {
    char endpoints[MC_ETCD_ENDPOINTS_MAX][MC_ADDRESS_MAX];
    size_t count, current;
    int fd; /* to endpoints[current], or -1 */
    struct mc_buffer in;
};

/* ---- endpoints ---- */

static int add_endpoint(struct mc_etcd *etcd, const char *text, size_t length, char *error, size_t error_size)
{
    static const char scheme[] = "http://";
    char address[MC_ADDRESS_MAX], host[MC_ADDRESS_MAX];
    uint16_t port = MC_ETCD_PORT;
    if (length > sizeof(scheme) - 1 && strncasecmp(text, scheme, sizeof(scheme) - 1) == 0) {
        text += sizeof(scheme) - 1;
        length -= sizeof(scheme) - 1;
    }
    while (length > 0 && text[length - 1] == '/')
        length--;
    snprintf(address, sizeof(address), "%.*s", (int)length, text);
    if (length >= sizeof(address) || memchr(text, '/', length) != NULL || etcd->count == MC_ETCD_ENDPOINTS_MAX ||
        mc_address_split(address, host, sizeof(host) - 8, &port) < 0 || port == 0) {
        snprintf(error, error_size, "etcd endpoint '%.100s': host:port is expected, plain or after http://, at most %d",
                 address, MC_ETCD_ENDPOINTS_MAX);
        return MC_ERR_INVALID_PARAMS;
    }
    mc_address_join(etcd->endpoints[etcd->count++], MC_ADDRESS_MAX, host, port);
    return 0;
}

int mc_etcd_create(const char *endpoints, struct mc_etcd **out, char *error, size_t error_size)
{
    int rc = 0;
    struct mc_etcd *etcd = calloc(1, sizeof(*etcd));
    if (etcd == NULL)
        return MC_ERR_NO_MEMORY;
    etcd->fd = -1;
    for (const char *at = endpoints; *at != 0 && rc == 0;) {
        at += strspn(at, ";, ");
        size_t length = strcspn(at, ";, ");
        if (length > 0)
            rc = add_endpoint(etcd, at, length, error, error_size);
        at += length;
    }
    if (rc == 0 && etcd->count == 0) {
        snprintf(error, error_size, "no etcd endpoint is given: host:port, several separated by ;");
        rc = MC_ERR_INVALID_PARAMS;
    }
    if (rc < 0) {
        free(etcd);
        return rc;
    }
    /* Not all masters and clients at the same member. */
    etcd->current = (size_t)(mc_random_u64() % etcd->count);
    *out = etcd;
    return 0;
}

static void hang_up(struct mc_etcd *etcd)
{
    if (etcd->fd >= 0)
        close(etcd->fd);
    etcd->fd = -1;
    etcd->in.length = 0;
}

void mc_etcd_destroy(struct mc_etcd *etcd)
{
    if (etcd == NULL)
        return;
    hang_up(etcd);
    mc_buffer_free(&etcd->in);
    free(etcd);
}

/* ---- HTTP ---- */

struct head {
    unsigned status;
    uint64_t length;
    bool has_length, is_chunked, is_last;
};

static int receive_more(struct mc_etcd *etcd, uint64_t deadline_ns)
{
    mc_buffer_reserve(&etcd->in, RECEIVE_BYTES);
    int64_t got = mc_socket_receive(etcd->fd, etcd->in.data + etcd->in.length, RECEIVE_BYTES, deadline_ns, NULL);
    if (got < 0)
        return (int)got;
    etcd->in.length += (size_t)got;
    return 0;
}

/* Receives until the input begins with a line; *length is without its end. A longer one than `most` is refused. */
static int receive_line(struct mc_etcd *etcd, size_t most, size_t *length, uint64_t deadline_ns)
{
    for (;;) {
        const uint8_t *end = etcd->in.length == 0 ? NULL : memchr(etcd->in.data, '\n', etcd->in.length);
        if (end != NULL) {
            *length = (size_t)(end - etcd->in.data);
            return *length > 0 && end[-1] == '\r' && *length <= most ? 0 : MC_ERR_PROTOCOL;
        }
        if (etcd->in.length > most)
            return MC_ERR_PROTOCOL;
        int rc = receive_more(etcd, deadline_ns);
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

static int receive_head(struct mc_etcd *etcd, struct head *head, uint64_t deadline_ns)
{
    size_t length, used = 0;
    *head = (struct head){0};
    for (;;) {
        int rc = receive_line(etcd, HEADER_MAX, &length, deadline_ns);
        if (rc < 0)
            return rc;
        char *line = (char *)etcd->in.data;
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
        mc_buffer_consume(&etcd->in, length + 1);
        used += length + 1;
        if (is_end)
            return head->status >= 200 && head->status < 600 ? 0 : MC_ERR_PROTOCOL;
        if (used > HEADER_MAX)
            return MC_ERR_PROTOCOL;
    }
}

/* Moves exactly `length` bytes of the body to reply. */
static int receive_bytes(struct mc_etcd *etcd, uint64_t length, struct mc_buffer *reply, uint64_t deadline_ns)
{
    if (length > MC_ETCD_REPLY_MAX - reply->length)
        return MC_ERR_PROTOCOL;
    while (etcd->in.length < length) {
        int rc = receive_more(etcd, deadline_ns);
        if (rc < 0)
            return rc;
    }
    mc_buffer_append(reply, etcd->in.data, (size_t)length);
    mc_buffer_consume(&etcd->in, (size_t)length);
    return 0;
}

static int receive_chunks(struct mc_etcd *etcd, struct mc_buffer *reply, uint64_t deadline_ns)
{
    for (;;) {
        size_t length;
        char *rest;
        int rc = receive_line(etcd, 64, &length, deadline_ns);
        if (rc < 0)
            return rc;
        char *line = (char *)etcd->in.data;
        line[length - 1] = 0;
        uint64_t size = strtoull(line, &rest, 16);
        if (rest == line || (*rest != 0 && *rest != ';') || line[0] == '-')
            return MC_ERR_PROTOCOL;
        mc_buffer_consume(&etcd->in, length + 1);
        rc = receive_bytes(etcd, size, reply, deadline_ns);
        if (rc == 0)
            rc = receive_line(etcd, 0 + 1, &length, deadline_ns); /* etcd sends no trailers */
        if (rc < 0)
            return rc;
        mc_buffer_consume(&etcd->in, length + 1);
        if (size == 0)
            return 0;
    }
}

/* One request and its answer on the connection there is. Returns the status or negative. */
static int exchange(struct mc_etcd *etcd, const char *path, struct mc_span body, uint64_t deadline_ns,
                    struct mc_buffer *reply)
{
    char text[MC_ADDRESS_MAX + 256];
    struct head head = {0};
    int length =
        snprintf(text, sizeof(text),
                 "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", path,
                 etcd->endpoints[etcd->current], body.length);
    mc_assert(length > 0 && (size_t)length < sizeof(text)); /* paths are our own, addresses are limited */
    struct iovec parts[2] = {{text, (size_t)length}, {(void *)(uintptr_t)body.data, body.length}};
    reply->length = 0;
    int rc = mc_socket_send(etcd->fd, parts, 2, deadline_ns);
    if (rc == 0)
        rc = receive_head(etcd, &head, deadline_ns);
    if (rc == 0 && !head.is_chunked && !head.has_length)
        rc = MC_ERR_PROTOCOL;
    if (rc == 0)
        rc = head.is_chunked ? receive_chunks(etcd, reply, deadline_ns)
                             : receive_bytes(etcd, head.length, reply, deadline_ns);
    if (rc < 0)
        return rc;
    if (head.is_last || etcd->in.length > 0)
        hang_up(etcd);
    return (int)head.status;
}

int mc_etcd_call(struct mc_etcd *etcd, const char *path, struct mc_span body, uint64_t deadline_ns,
                 struct mc_buffer *reply)
{
    size_t failed = 0;
    for (int rc = MC_ERR_RPC_TIMEOUT;;) {
        uint64_t now_ns = mc_clock_ns(), until_ns = now_ns + MC_ETCD_ATTEMPT_MS * 1000000ull;
        if (now_ns >= deadline_ns)
            return rc;
        if (until_ns > deadline_ns)
            until_ns = deadline_ns;
        bool is_fresh = etcd->fd < 0;
        if (is_fresh)
            etcd->fd = mc_tcp_connect(etcd->endpoints[etcd->current], until_ns);
        rc = etcd->fd < 0 ? etcd->fd : exchange(etcd, path, body, until_ns, reply);
        if (rc == 200)
            return 0;
        if (rc >= 400 && rc < 500)
            return MC_ERR_ETCD_OPERATION_ERROR;
        hang_up(etcd);
        if (rc > 0)
            rc = MC_ERR_RPC_FAIL; /* this member cannot now: it has no leader, or is starting */
        if (!is_fresh && rc == MC_ERR_RPC_FAIL)
            continue; /* a kept connection that had ended: the same member on a new one */
        etcd->current = (etcd->current + 1) % etcd->count;
        if (++failed % etcd->count == 0)
            nanosleep(&(struct timespec){0, ROUND_PAUSE_NS}, NULL);
    }
}

/* ---- bodies ---- */

void mc_etcd_field(struct mc_buffer *body, const char *name, struct mc_span value)
{
    mc_buffer_printf(body, "\"%s\":\"", name);
    mc_base64_encode(body, value);
    mc_buffer_printf(body, "\"");
}

int mc_etcd_text(struct mc_span reply, const char *path, char *text, size_t size)
{
    struct mc_span encoded;
    struct mc_buffer value = {0};
    text[0] = 0;
    int rc = mc_json_find(reply, path, &encoded);
    if (rc == 1 && mc_base64_decode(&value, encoded) < 0)
        rc = MC_ERR_PROTOCOL;
    if (rc == 1 && (value.length >= size || (value.length > 0 && memchr(value.data, 0, value.length) != NULL)))
        rc = MC_ERR_PROTOCOL;
    if (rc == 1) {
        if (value.length > 0)
            memcpy(text, value.data, value.length);
        text[value.length] = 0;
    }
    mc_buffer_free(&value);
    return rc;
}

void mc_etcd_view_key(char *key, size_t size, const char *cluster_id, const char *name)
{
    snprintf(key, size, "mooncake-store/%s/%s", cluster_id, name);
}
