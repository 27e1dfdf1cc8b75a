/* etcd over HTTP. */
#include "env/etcd.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/http.h"
#include "env/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <time.h>

#define ROUND_PAUSE_NS 20000000L /* when no endpoint can be reached */

struct mc_etcd {
    char endpoints[MC_ETCD_ENDPOINTS_MAX][MC_ADDRESS_MAX];
    size_t count, current;
    struct mc_http http; /* to endpoints[current] */
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
    etcd->current = current % etcd->count;
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
        bool is_fresh = etcd->http.fd < 0;
        memcpy(etcd->http.address, etcd->endpoints[etcd->current], MC_ADDRESS_MAX);
        rc = mc_http_connect(&etcd->http, until_ns);
        if (rc == 0)
            rc = mc_http_exchange(&etcd->http, "POST", path, body, until_ns, reply);
        if (rc == 200)
            return 0;
        if (rc >= 400 && rc < 500)
            return MC_ERR_ETCD_OPERATION_ERROR;
        mc_http_hang_up(&etcd->http);
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
