/* etcd over HTTP. */
#include "env/etcd.h"

#include "base/error.h"
#include "env/asker.h"
#include "env/clock.h"
#include "env/etcd_login.h"
#include "env/json.h"
#include "env/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#define ROUND_PAUSE_NS 20000000u     /* when no endpoint can be reached */
#define REFUSED_PAUSE_NS 1000000000u /* a login that was refused costs etcd much work, and is not tried at once again */
#define NO_TOKEN "-"                 /* an etcd that wants none */
#define ENDPOINTS_MAX (MC_ETCD_ENDPOINTS_MAX * (MC_ADDRESS_MAX + 2))

struct mc_etcd {
    struct mc_asker asker;
    struct mc_tls_settings tls;
    char endpoints[ENDPOINTS_MAX]; /* of all, for whose tokens they are */
    uint64_t refused_ns;           /* when the login was refused; 0: it was not */
};

/* ---- endpoints ---- */

static bool skip_scheme(const char **text, size_t *length, const char *scheme)
{
    size_t part = strlen(scheme);
    if (*length <= part || strncasecmp(*text, scheme, part) != 0)
        return false;
    *text += part;
    *length -= part;
    return true;
}

static int add_endpoint(struct mc_etcd *etcd, const char *text, size_t length, char *error, size_t error_size)
{
    char address[MC_ADDRESS_MAX], host[MC_ADDRESS_MAX];
    uint16_t port = MC_ETCD_PORT;
    struct mc_asker *asker = &etcd->asker;
    bool is_tls = skip_scheme(&text, &length, "https://");
    if (!is_tls && !skip_scheme(&text, &length, "http://"))
        is_tls = mc_etcd_tls_is_set();
    while (length > 0 && text[length - 1] == '/')
        length--;
    if (memchr(text, '@', length) != NULL) {
        snprintf(error, error_size,
                 "a password does not belong into an address of etcd, which logs show: let "
                 "MC_ETCD_CONF_FILE name a file with the lines username=... and password=...");
        return MC_ERR_INVALID_PARAMS;
    }
    snprintf(address, sizeof(address), "%.*s", (int)length, text);
    if (length >= sizeof(address) || memchr(text, '/', length) != NULL || asker->count == MC_ETCD_ENDPOINTS_MAX ||
        mc_address_split(address, host, sizeof(host) - 8, &port) < 0 || port == 0) {
        snprintf(error, error_size,
                 "etcd endpoint '%.100s': host:port is expected, plain or after http:// or https://, at most %d",
                 address, MC_ETCD_ENDPOINTS_MAX);
        return MC_ERR_INVALID_PARAMS;
    }
    struct mc_asker_server *server = &asker->servers[asker->count++];
    server->is_tls = is_tls;
    mc_address_join(server->address, MC_ADDRESS_MAX, host, port);
    size_t used = strlen(etcd->endpoints);
    snprintf(etcd->endpoints + used, ENDPOINTS_MAX - used, "%c%s;", is_tls ? 's' : 'p', server->address);
    return 0;
}

/* What the environment says must be of use before anybody relies on it. */
static int check_secrets(struct mc_etcd *etcd, char *error, size_t error_size)
{
    bool has_tls = false, has_plain = false;
    int rc = 0;
    for (size_t i = 0; i < etcd->asker.count; i++) {
        has_tls |= etcd->asker.servers[i].is_tls;
        has_plain |= !etcd->asker.servers[i].is_tls;
    }
    if (has_tls)
        rc = mc_tls_check(&etcd->tls, error, error_size);
    if (rc < 0 || !mc_etcd_has_login())
        return rc;
    char user[MC_ETCD_USER_MAX];
    struct mc_buffer body = {0};
    rc = mc_etcd_login_body(&body, user, error, error_size);
    if (rc == 0)
        explicit_bzero(body.data, body.length);
    mc_buffer_free(&body);
    if (rc == 0 && has_plain)
        mc_log_once(WARNING,
                    "the password of etcd's user %s goes through the network in the clear: write https:// "
                    "before etcd's addresses",
                    user);
    return rc;
}

int mc_etcd_create(const char *endpoints, struct mc_etcd **out, char *error, size_t error_size)
{
    int rc = 0;
    struct mc_etcd *etcd = calloc(1, sizeof(*etcd));
    if (etcd == NULL) {
        snprintf(error, error_size, "no memory for a client of etcd");
        return MC_ERR_NO_MEMORY;
    }
    etcd->tls = mc_etcd_tls();
    etcd->asker.http.fd = -1;
    etcd->asker.tls = &etcd->tls;
    etcd->asker.patience_ns = MC_ETCD_PATIENCE_MS * 1000000ull;
    etcd->asker.pause_ns = ROUND_PAUSE_NS;
    for (const char *at = endpoints; *at != 0 && rc == 0;) {
        at += strspn(at, ";, ");
        size_t length = strcspn(at, ";, ");
        if (length > 0)
            rc = add_endpoint(etcd, at, length, error, error_size);
        at += length;
    }
    if (rc == 0 && etcd->asker.count == 0) {
        snprintf(error, error_size, "no etcd endpoint is given: host:port, several separated by ;");
        rc = MC_ERR_INVALID_PARAMS;
    }
    if (rc == 0)
        rc = check_secrets(etcd, error, error_size);
    if (rc < 0) {
        free(etcd);
        return rc;
    }
    /* Not all masters and clients at the same member. */
    etcd->asker.current = (size_t)(mc_random_u64() % etcd->asker.count);
    *out = etcd;
    return 0;
}

void mc_etcd_destroy(struct mc_etcd *etcd)
{
    if (etcd == NULL)
        return;
    mc_asker_free(&etcd->asker);
    free(etcd);
}

size_t mc_etcd_current(const struct mc_etcd *etcd)
{
    return etcd->asker.current;
}

void mc_etcd_prefer(struct mc_etcd *etcd, size_t current)
{
    mc_asker_prefer(&etcd->asker, current);
}

void mc_etcd_patience(struct mc_etcd *etcd, uint64_t patience_ms)
{
    etcd->asker.patience_ns = patience_ms * 1000000;
}

/* ---- logins ---- */

static bool says(const struct mc_buffer *reply, const char *words)
{
    return reply->length > 0 && memmem(reply->data, reply->length, words, strlen(words)) != NULL;
}

/* The token is of before a restart, a change of rights, or has not been used for too long; or there was none. */
static bool wants_login(int status, const struct mc_buffer *reply)
{
    return status >= 400 && (says(reply, "invalid auth token") || says(reply, "auth: revision in header is old") ||
                             says(reply, "user name is empty"));
}

static int refused(struct mc_etcd *etcd, const char *why)
{
    mc_log_limited(ERROR, "%s", why);
    etcd->refused_ns = mc_clock_ns();
    return MC_ERR_ETCD_OPERATION_ERROR;
}

/* What etcd has answered to a login. 0: token holds one. */
static int read_token(struct mc_etcd *etcd, int status, const char *user, const struct mc_buffer *reply,
                      char token[MC_ETCD_TOKEN_MAX])
{
    struct mc_json_cursor member = {.kind = 0};
    char why[MC_ETCD_USER_MAX + 256];
    if (status == 200 && mc_json_member(mc_span(reply->data, reply->length), "token", &member) == 1 &&
        mc_json_text(&member, token, MC_ETCD_TOKEN_MAX) == 0 && strpbrk(token, "\r\n") == NULL && token[0] != 0)
        return 0;
    if (status == 200)
        return MC_ERR_PROTOCOL;
    if (says(reply, "authentication is not enabled")) {
        mc_log_once(WARNING, "MC_ETCD_CONF_FILE is set, and etcd takes everybody: etcdctl auth enable turns logins on");
        snprintf(token, MC_ETCD_TOKEN_MAX, "%s", NO_TOKEN);
        return 0;
    }
    snprintf(why, sizeof(why),
             says(reply, "authentication failed")
                 ? "etcd refuses the user %s: the password in the file that MC_ETCD_CONF_FILE names is wrong, or etcd "
                   "has no such user (etcdctl user list)"
                 : "etcd refuses a login of the user %s",
             user);
    return refused(etcd, why);
}

static int log_in(struct mc_etcd *etcd, uint64_t deadline_ns, char token[MC_ETCD_TOKEN_MAX])
{
    char user[MC_ETCD_USER_MAX], why[512];
    struct mc_buffer body = {0}, reply = {0};
    if (etcd->refused_ns != 0 && mc_clock_ns() < etcd->refused_ns + REFUSED_PAUSE_NS)
        return MC_ERR_ETCD_OPERATION_ERROR;
    if (mc_etcd_login_body(&body, user, why, sizeof(why)) < 0)
        return refused(etcd, why);
    const struct mc_http_question question = {
        .method = "POST", .path = "/v3/auth/authenticate", .body = mc_span(body.data, body.length)};
    int rc = mc_asker_call(&etcd->asker, &question, deadline_ns, &reply);
    if (rc >= 0)
        rc = read_token(etcd, rc, user, &reply, token);
    if (rc == 0) {
        etcd->refused_ns = 0;
        mc_etcd_token_set(etcd->endpoints, token);
    }
    explicit_bzero(body.data, body.length);
    if (reply.length > 0)
        explicit_bzero(reply.data, reply.length);
    mc_buffer_free(&body);
    mc_buffer_free(&reply);
    return rc;
}

/* ---- a call ---- */

static int post(struct mc_etcd *etcd, const char *path, struct mc_span body, const char *token, uint64_t deadline_ns,
                struct mc_buffer *reply)
{
    bool is_empty = token[0] == 0 || strcmp(token, NO_TOKEN) == 0;
    const struct mc_http_question question = {
        .method = "POST", .path = path, .secret = is_empty ? NULL : token, .body = body};
    return mc_asker_call(&etcd->asker, &question, deadline_ns, reply);
}

static void explain(int status, const struct mc_buffer *reply)
{
    if (status >= 400 && says(reply, "user name is empty"))
        mc_log_limited(ERROR, "etcd wants a login: let MC_ETCD_CONF_FILE name a file with the lines username=... and "
                              "password=...");
    else if (status >= 400 && says(reply, "permission denied"))
        mc_log_limited(ERROR, "etcd's user may not do that: etcdctl role grant-permission ROLE readwrite --prefix=true "
                              "KEYS, for a role of that user");
}

int mc_etcd_call(struct mc_etcd *etcd, const char *path, struct mc_span body, uint64_t deadline_ns,
                 struct mc_buffer *reply)
{
    char token[MC_ETCD_TOKEN_MAX] = "";
    bool has_login = mc_etcd_has_login();
    int rc = 0;
    reply->length = 0;
    if (has_login)
        mc_etcd_token_get(etcd->endpoints, token);
    if (has_login && token[0] == 0)
        rc = log_in(etcd, deadline_ns, token);
    if (rc == 0)
        rc = post(etcd, path, body, token, deadline_ns, reply);
    if (has_login && wants_login(rc, reply)) {
        rc = log_in(etcd, deadline_ns, token);
        if (rc == 0)
            rc = post(etcd, path, body, token, deadline_ns, reply);
    }
    explicit_bzero(token, sizeof(token));
    explain(rc, reply);
    return rc == 200 ? 0 : rc > 0 ? MC_ERR_ETCD_OPERATION_ERROR : rc;
}

/* ---- bodies ---- */

void mc_etcd_field(struct mc_buffer *body, const char *name, struct mc_span value)
{
    mc_buffer_printf(body, "\"%s\":\"", name);
    mc_base64_encode(body, value);
    mc_buffer_printf(body, "\"");
}

void mc_etcd_compare_revision(struct mc_buffer *body, const char *key, uint64_t revision)
{
    mc_buffer_printf(body, "{\"target\":\"MOD\",\"result\":\"EQUAL\",\"mod_revision\":\"%" PRIu64 "\",", revision);
    mc_etcd_field(body, "key", mc_span_string(key));
    mc_buffer_printf(body, "}");
}

void mc_etcd_request_put(struct mc_buffer *body, const char *key, struct mc_span value, uint64_t lease)
{
    mc_buffer_printf(body, "{\"request_put\":{");
    mc_etcd_field(body, "key", mc_span_string(key));
    mc_buffer_printf(body, ",");
    mc_etcd_field(body, "value", value);
    if (lease != 0)
        mc_buffer_printf(body, ",\"lease\":\"%" PRIu64 "\"", lease);
    mc_buffer_printf(body, "}}");
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
