/* etcd over HTTP. */
#include "env/etcd.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/http.h"
#include "env/json.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <time.h>

#define ROUND_PAUSE_NS 20000000u /* when no endpoint can be reached */
#define PATIENCES_MAX 8u         /* after so many a question is taken back when there is no place for another */
#define ADDRESSES_MAX 8u         /* of one name */

struct mc_etcd {
    char endpoints[MC_ETCD_ENDPOINTS_MAX][MC_ADDRESS_MAX];
    size_t count, current;
    uint64_t patience_ns;
    struct mc_http http;                   /* to endpoints[current] */
    unsigned turns[MC_ETCD_ENDPOINTS_MAX]; /* which address of the name is next */
};

/* One call, and its questions to several members. */
struct asked {
    struct mc_http http;
    size_t endpoint;
    uint64_t begun_ns;
    unsigned turn; /* of the addresses of its name */
    bool is_kept, is_connected;
};
struct call {
    struct mc_etcd *etcd;
    const char *path;
    struct mc_span body;
    uint64_t deadline_ns, next_ns; /* next_ns: another is asked then */
    struct asked asked[MC_ETCD_ASKED_MAX];
    size_t count, total, failed, next; /* under way; ever; of those; endpoint */
    int rc;                            /* of the last that failed */
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
    etcd->http.fd = -1;
    etcd->patience_ns = MC_ETCD_PATIENCE_MS * 1000000ull;
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

void mc_etcd_destroy(struct mc_etcd *etcd)
{
    if (etcd == NULL)
        return;
    mc_http_free(&etcd->http);
    free(etcd);
}

size_t mc_etcd_current(const struct mc_etcd *etcd)
{
    return etcd->current;
}

void mc_etcd_prefer(struct mc_etcd *etcd, size_t current)
{
    mc_http_free(&etcd->http); /* it may lead to another one */
    etcd->current = current % etcd->count;
}

void mc_etcd_patience(struct mc_etcd *etcd, uint64_t patience_ms)
{
    etcd->patience_ns = patience_ms * 1000000;
}

/* ---- a call ---- */

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void take_out(struct call *call, struct asked *one)
{
    size_t at = (size_t)(one - call->asked);
    memmove(one, one + 1, (--call->count - at) * sizeof(*one)); /* the oldest stays the first */
}

static void hang_up(struct call *call, struct asked *one)
{
    if (!one->is_connected)
        mc_tcp_doubt(one->http.address);
    mc_http_free(&one->http);
    take_out(call, one);
}

/* That question has come to nothing: the next member is asked at once, or, when none could be reached, a little later.
 */
static void give_up(struct call *call, struct asked *one, int rc)
{
    bool has_ended = one->is_kept && rc == MC_ERR_RPC_FAIL; /* a kept connection: the same member on a new one */
    call->rc = mc_socket_is_own(rc) ? MC_ERR_RPC_FAIL : rc;
    if (has_ended)
        call->next = one->endpoint;
    hang_up(call, one);
    call->next_ns = mc_clock_ns();
    if (!has_ended && ++call->failed % call->etcd->count == 0)
        call->next_ns += ROUND_PAUSE_NS;
}

/* Of a name with several addresses the next one, until one of them answers. */
static int connect_begin(struct call *call, struct asked *one)
{
    struct mc_tcp_address addresses[ADDRESSES_MAX];
    struct mc_etcd *etcd = call->etcd;
    uint64_t until_ns = least(call->deadline_ns, one->begun_ns + etcd->patience_ns);
    int count = mc_tcp_resolve(one->http.address, until_ns, addresses, ADDRESSES_MAX);
    one->turn = etcd->turns[one->endpoint]++;
    if (count <= 0)
        return count < 0 ? count : MC_ERR_RPC_FAIL;
    return mc_tcp_begin(&addresses[one->turn % (unsigned)count]);
}

static int send_question(struct call *call, struct asked *one)
{
    one->is_connected = true;
    return mc_http_ask(&one->http, "POST", call->path, call->body,
                       least(call->deadline_ns, mc_clock_ns() + call->etcd->patience_ns));
}

/* Asks the next member, over the kept connection if it is its. */
static void ask(struct call *call)
{
    struct mc_etcd *etcd = call->etcd;
    int rc;
    if (call->count == MC_ETCD_ASKED_MAX)
        hang_up(call, &call->asked[0]);
    struct asked *one = &call->asked[call->count++];
    *one = (struct asked){.endpoint = call->next, .begun_ns = mc_clock_ns(), .http.fd = -1};
    memcpy(one->http.address, etcd->endpoints[one->endpoint], MC_ADDRESS_MAX);
    call->next = (call->next + 1) % etcd->count;
    call->total++;
    /* Who has been asked already is likely to be slow rather than dead: more questions would make it slower. */
    call->next_ns = one->begun_ns + etcd->patience_ns * (call->total == 1 || call->total < etcd->count ? 1 : 2);
    if (etcd->http.fd >= 0 && one->endpoint == etcd->current) {
        one->http = etcd->http;
        etcd->http = (struct mc_http){.fd = -1};
        one->is_kept = true;
        rc = send_question(call, one);
    } else {
        one->http.fd = connect_begin(call, one);
        rc = one->http.fd < 0 ? one->http.fd : 0;
    }
    if (rc < 0)
        give_up(call, one, rc);
}

/* When another is asked. With no place for one the oldest goes, if it has had its time or others have not been asked.
 */
static uint64_t ask_at(const struct call *call)
{
    if (call->count < MC_ETCD_ASKED_MAX || call->total < call->etcd->count)
        return call->next_ns;
    uint64_t old_ns = call->asked[0].begun_ns + PATIENCES_MAX * call->etcd->patience_ns;
    return old_ns > call->next_ns ? old_ns : call->next_ns;
}

/* Waits for any of them. NULL: the time is over. */
static struct asked *wait_for(struct call *call, uint64_t until_ns)
{
    struct pollfd waits[MC_ETCD_ASKED_MAX];
    uint64_t now_ns = mc_clock_ns(), left_ns = until_ns > now_ns ? until_ns - now_ns : 0;
    struct timespec left = {.tv_sec = (time_t)(left_ns / 1000000000u), .tv_nsec = (long)(left_ns % 1000000000u)};
    for (size_t i = 0; i < call->count; i++)
        waits[i] =
            (struct pollfd){.fd = call->asked[i].http.fd, .events = call->asked[i].is_connected ? POLLIN : POLLOUT};
    if (ppoll(waits, call->count, &left, NULL) <= 0)
        return NULL;
    for (size_t i = 0; i < call->count; i++)
        if (waits[i].revents != 0)
            return &call->asked[i];
    return NULL;
}

/* 1: reply holds its answer; else it is asked or given up. */
static int go_on(struct call *call, struct asked *one, struct mc_buffer *reply)
{
    int rc = 0;
    if (!one->is_connected) {
        rc = mc_tcp_begun(one->http.fd);
        if (rc == 0)
            rc = send_question(call, one);
    } else {
        rc = mc_http_answer(&one->http, least(call->deadline_ns, mc_clock_ns() + call->etcd->patience_ns), reply);
    }
    if (rc == 200 || (rc >= 400 && rc < 500)) {
        call->rc = rc == 200 ? 0 : MC_ERR_ETCD_OPERATION_ERROR;
        return 1;
    }
    if (rc != 0) /* a member that cannot now: it has no leader, or is starting */
        give_up(call, one, rc > 0 ? MC_ERR_RPC_FAIL : rc);
    return 0;
}

int mc_etcd_call(struct mc_etcd *etcd, const char *path, struct mc_span body, uint64_t deadline_ns,
                 struct mc_buffer *reply)
{
    struct call call = {.etcd = etcd,
                        .path = path,
                        .body = body,
                        .deadline_ns = deadline_ns,
                        .next = etcd->current,
                        .rc = MC_ERR_RPC_TIMEOUT};
    reply->length = 0;
    for (uint64_t now_ns; (now_ns = mc_clock_ns()) < deadline_ns;) {
        if (now_ns >= ask_at(&call)) {
            ask(&call);
            continue;
        }
        struct asked *one = wait_for(&call, least(ask_at(&call), deadline_ns));
        if (one != NULL && go_on(&call, one, reply) == 1) {
            etcd->current = one->endpoint;
            mc_http_free(&etcd->http); /* of one that had hung up something is left */
            etcd->http = one->http;
            if (!one->is_kept)
                etcd->turns[one->endpoint] = one->turn;
            take_out(&call, one);
            break;
        }
    }
    bool is_answered = call.rc == 0 || call.rc == MC_ERR_ETCD_OPERATION_ERROR;
    while (call.count > 0)
        hang_up(&call, &call.asked[0]);
    if (!is_answered)
        etcd->current = call.next;
    return call.rc;
}

/* ---- bodies ---- */

void mc_etcd_field(struct mc_buffer *body, const char *name, struct mc_span value)
{
    mc_buffer_printf(body, "\"%s\":\"", name);
    mc_base64_encode(body, value);
    mc_buffer_printf(body, "\"");
}

int mc_etcd_bytes(struct mc_span reply, const char *path, struct mc_buffer *bytes)
{
    struct mc_span encoded;
    int rc = mc_json_find(reply, path, &encoded);
    return rc == 1 && mc_base64_decode(bytes, encoded) < 0 ? MC_ERR_PROTOCOL : rc;
}

int mc_etcd_text(struct mc_span reply, const char *path, char *text, size_t size)
{
    struct mc_buffer value = {0};
    text[0] = 0;
    int rc = mc_etcd_bytes(reply, path, &value);
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
