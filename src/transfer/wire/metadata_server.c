/* The kinds of metadata servers: HTTP with TLS or without, etcd, Redis. */
#include "transfer/wire/metadata.h"

#include "base/error.h"
#include "base/variables.h"
#include "env/etcd.h"
#include "env/http.h"
#include "env/keys.h"
#include "env/log.h"
#include "env/redis.h"
#include "env/secure.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#define DATABASE_MAX 255u

/* One address, made whole: "host:port". */
static int parse_address(struct mc_metadata *metadata, const char *text, size_t length, uint16_t port)
{
    char address[MC_ADDRESS_MAX], host[MC_ADDRESS_MAX];
    if (length == 0 || length >= sizeof(address))
        return MC_ERR_INVALID_PARAMS;
    memcpy(address, text, length);
    address[length] = 0;
    if (mc_address_split(address, host, sizeof(host) - 8, &port) < 0 || port == 0)
        return MC_ERR_INVALID_PARAMS;
    mc_address_join(metadata->server, sizeof(metadata->server), host, port);
    return 0;
}

/* ---- HTTP: GET, PUT, DELETE of one path, the key in its query ---- */

static bool is_set(const char *value)
{
    return value != NULL && value[0] != 0;
}

/* What is not said of the metadata server is as of our own ports: it may be one of them. */
static struct mc_tls_settings tls_settings(void)
{
    const struct mc_tls_settings own = mc_secure_calls();
    struct mc_tls_settings tls = {.authority = mc_variable(MC_METADATA_TLS_CA_CERT),
                                  .certificate = mc_variable(MC_METADATA_TLS_CERT),
                                  .key = mc_variable(MC_METADATA_TLS_KEY),
                                  .authority_is = "MC_METADATA_TLS_CA_CERT",
                                  .certificate_is = "MC_METADATA_TLS_CERT",
                                  .key_is = "MC_METADATA_TLS_KEY"};
    if (!is_set(tls.authority)) {
        tls.authority = own.authority;
        tls.name = own.name;
        tls.name_is = own.name_is;
    }
    if (!is_set(tls.certificate) && !is_set(tls.key)) {
        tls.certificate = own.certificate;
        tls.key = own.key;
    }
    return tls;
}

static int parse_url(struct mc_metadata *metadata, const char *rest, uint16_t port)
{
    size_t length = strcspn(rest, "/");
    int path_length =
        snprintf(metadata->path, sizeof(metadata->path), "%s", rest[length] == 0 ? "/metadata" : rest + length);
    if ((size_t)path_length >= sizeof(metadata->path) || strpbrk(metadata->path, " \t\r\n") != NULL)
        return MC_ERR_INVALID_PARAMS;
    return parse_address(metadata, rest, length, port);
}

/* Can TLS be had with what the environment names? 0, or MC_ERR_INVALID_PARAMS with a line in the log. */
static int tls_look(struct mc_metadata *metadata)
{
    char error[MC_TLS_PROBLEM_MAX];
    const struct mc_tls_settings tls = tls_settings();
    int rc = mc_tls_check(&tls, error, sizeof(error));
    metadata->is_tls = true;
    if (rc < 0)
        mc_log(ERROR, "%s", error);
    return rc;
}

static int http_parse(struct mc_metadata *metadata, const char *rest)
{
    return parse_url(metadata, rest, 80);
}

static int https_parse(struct mc_metadata *metadata, const char *rest)
{
    int rc = parse_url(metadata, rest, 443);
    return rc < 0 ? rc : tls_look(metadata);
}

static void put_target(struct mc_buffer *out, const struct mc_metadata *metadata, const char *key)
{
    mc_buffer_printf(out, "%s%ckey=", metadata->path, strchr(metadata->path, '?') == NULL ? '?' : '&');
    for (const char *at = key; *at != 0; at++) {
        if (isalnum((unsigned char)*at) != 0 || strchr("-_.~", *at) != NULL)
            mc_buffer_append(out, at, 1);
        else
            mc_buffer_printf(out, "%%%02X", (unsigned)(unsigned char)*at);
    }
    mc_buffer_append(out, "", 1);
}

/* The status, or negative when there is no answer. */
static int http_exchange(struct mc_metadata *metadata, const char *method, const char *key, struct mc_span body,
                         uint64_t deadline_ns, struct mc_buffer *reply)
{
    struct mc_buffer target = {0};
    int error;
    char bearer[MC_KEYS_BEARER_MAX];
    const struct mc_tls_settings tls = tls_settings();
    put_target(&target, metadata, key);
    const struct mc_http_question question = {
        .method = method, .path = (const char *)target.data, .body = body, .secret = mc_keys_bearer(bearer)};
    int rc = mc_http_once(metadata->server, metadata->is_tls ? &tls : NULL, &question, deadline_ns, reply, &error);
    mc_buffer_free(&target);
    if (rc > 0 && rc != 200 && rc != 404 && reply->length == 0)
        mc_buffer_printf(reply, "status %d of HTTP", rc);
    return rc;
}

static int http_get(struct mc_metadata *metadata, const char *key, uint64_t deadline_ns, struct mc_buffer *reply)
{
    int status = http_exchange(metadata, "GET", key, mc_span(NULL, 0), deadline_ns, reply);
    return status == 200 ? 1 : status == 404 ? 0 : status < 0 ? status : MC_ERR_INVALID_PARAMS;
}

static int http_put(struct mc_metadata *metadata, const char *key, struct mc_span value, uint64_t deadline_ns,
                    struct mc_buffer *reply)
{
    int status = http_exchange(metadata, "PUT", key, value, deadline_ns, reply);
    return status == 200 ? 0 : status < 0 ? status : 1;
}

static int http_remove(struct mc_metadata *metadata, const char *key, uint64_t deadline_ns, struct mc_buffer *reply)
{
    int status = http_exchange(metadata, "DELETE", key, mc_span(NULL, 0), deadline_ns, reply);
    return status == 200 || status == 404 ? 0 : status < 0 ? status : MC_ERR_INVALID_PARAMS;
}

/* ---- etcd ---- */

static int etcd_parse(struct mc_metadata *metadata, const char *rest)
{
    struct mc_etcd *etcd = NULL;
    char error[512];
    if (strlen(rest) >= sizeof(metadata->server))
        return MC_ERR_INVALID_PARAMS;
    snprintf(metadata->server, sizeof(metadata->server), "%s", rest);
    int rc = mc_etcd_create(rest, &etcd, error, sizeof(error));
    if (rc == 0)
        atomic_store(&metadata->preferred, mc_etcd_current(etcd));
    else
        mc_log(ERROR, "%s", error);
    mc_etcd_destroy(etcd);
    return rc;
}

static int etcd_call(struct mc_metadata *metadata, const char *path, const char *key, const struct mc_span *value,
                     uint64_t deadline_ns, struct mc_buffer *reply)
{
    struct mc_etcd *etcd = NULL;
    struct mc_buffer body = {0};
    char error[512];
    int rc = mc_etcd_create(metadata->server, &etcd, error, sizeof(error));
    if (rc < 0) {
        mc_log_limited(ERROR, "%s", error);
        return rc;
    }
    mc_etcd_prefer(etcd, atomic_load(&metadata->preferred));
    mc_buffer_printf(&body, "{");
    mc_etcd_field(&body, "key", mc_span_string(key));
    if (value != NULL) {
        mc_buffer_printf(&body, ",");
        mc_etcd_field(&body, "value", *value);
    }
    mc_buffer_printf(&body, "}");
    rc = mc_etcd_call(etcd, path, mc_span(body.data, body.length), deadline_ns, reply);
    if (rc == 0)
        atomic_store(&metadata->preferred, mc_etcd_current(etcd));
    mc_buffer_free(&body);
    mc_etcd_destroy(etcd);
    if (rc == MC_ERR_ETCD_OPERATION_ERROR) /* what refuses says why */
        return reply->length > 0 ? MC_ERR_INVALID_PARAMS : MC_ERR_RPC_FAIL;
    return rc;
}

static int etcd_get(struct mc_metadata *metadata, const char *key, uint64_t deadline_ns, struct mc_buffer *reply)
{
    struct mc_buffer answer = {0};
    int rc = etcd_call(metadata, "/v3/kv/range", key, NULL, deadline_ns, &answer);
    reply->length = 0;
    if (rc == 0)
        rc = mc_etcd_bytes(mc_span(answer.data, answer.length), "kvs.0.value", reply);
    else
        mc_buffer_append(reply, answer.data, answer.length);
    mc_buffer_free(&answer);
    return rc;
}

static int etcd_put(struct mc_metadata *metadata, const char *key, struct mc_span value, uint64_t deadline_ns,
                    struct mc_buffer *reply)
{
    return etcd_call(metadata, "/v3/kv/put", key, &value, deadline_ns, reply);
}

static int etcd_remove(struct mc_metadata *metadata, const char *key, uint64_t deadline_ns, struct mc_buffer *reply)
{
    return etcd_call(metadata, "/v3/kv/deleterange", key, NULL, deadline_ns, reply);
}

/* ---- Redis ---- */

static int redis_parse(struct mc_metadata *metadata, const char *rest)
{
    const char *user = mc_variable(MC_REDIS_USERNAME), *password = mc_variable(MC_REDIS_PASSWORD);
    const char *number = mc_variable(MC_REDIS_DB_INDEX);
    char *end;
    size_t length = strcspn(rest, "/"); /* a slash may end the address */
    if (rest[length] != 0 && rest[length + 1] != 0)
        return MC_ERR_INVALID_PARAMS;
    snprintf(metadata->user, sizeof(metadata->user), "%s", user == NULL ? "" : user);
    snprintf(metadata->password, sizeof(metadata->password), "%s", password == NULL ? "" : password);
    metadata->database = 0;
    if (number != NULL && number[0] != 0) {
        errno = 0;
        unsigned long value = strtoul(number, &end, 10);
        if (number[0] < '0' || number[0] > '9' || *end != 0 || errno != 0 || value > DATABASE_MAX)
            mc_log(WARNING, "MC_REDIS_DB_INDEX=%.40s: a number from 0 to %u is expected; 0 is used", number,
                   DATABASE_MAX);
        else
            metadata->database = (unsigned)value;
    }
    return parse_address(metadata, rest, length, MC_REDIS_PORT);
}

static int rediss_parse(struct mc_metadata *metadata, const char *rest)
{
    int rc = redis_parse(metadata, rest);
    return rc < 0 ? rc : tls_look(metadata);
}

static int redis_call(struct mc_metadata *metadata, const struct mc_span *words, size_t count, uint64_t deadline_ns,
                      struct mc_buffer *reply)
{
    struct mc_tls_settings tls = tls_settings();
    tls.off = "use redis:// (and no rediss://)";
    struct mc_redis_login login = {metadata->server, metadata->user, metadata->password, metadata->database,
                                   metadata->is_tls ? &tls : NULL};
    return mc_redis_call(&login, words, count, deadline_ns, reply);
}

static int redis_get(struct mc_metadata *metadata, const char *key, uint64_t deadline_ns, struct mc_buffer *reply)
{
    struct mc_span words[2] = {mc_span_string("GET"), mc_span_string(key)};
    return redis_call(metadata, words, 2, deadline_ns, reply);
}

static int redis_put(struct mc_metadata *metadata, const char *key, struct mc_span value, uint64_t deadline_ns,
                     struct mc_buffer *reply)
{
    struct mc_span words[3] = {mc_span_string("SET"), mc_span_string(key), value};
    int rc = redis_call(metadata, words, 3, deadline_ns, reply);
    return rc < 0 ? rc : rc == 1 ? 0 : MC_ERR_PROTOCOL;
}

static int redis_remove(struct mc_metadata *metadata, const char *key, uint64_t deadline_ns, struct mc_buffer *reply)
{
    struct mc_span words[2] = {mc_span_string("DEL"), mc_span_string(key)};
    int rc = redis_call(metadata, words, 2, deadline_ns, reply);
    return rc < 0 ? rc : 0;
}

/* ---- the table ---- */

static const struct mc_metadata_kind kinds[] = {
    {"http://", "http://host:port/metadata", http_parse, http_get, http_put, http_remove},
    {"etcd://", "etcd://host:port, several separated by ;", etcd_parse, etcd_get, etcd_put, etcd_remove},
    {"redis://", "redis://host:port", redis_parse, redis_get, redis_put, redis_remove},
    {"https://", "https://host:port/metadata", https_parse, http_get, http_put, http_remove},
    {"rediss://", "rediss://host:port", rediss_parse, redis_get, redis_put, redis_remove},
};
enum { KIND_WITHOUT_SCHEME = 1 };

const struct mc_metadata_kind *mc_metadata_kind_of(const char *server, const char **rest)
{
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        size_t length = strlen(kinds[i].scheme);
        if (strncasecmp(server, kinds[i].scheme, length) == 0) {
            *rest = server + length;
            return &kinds[i];
        }
    }
    *rest = server;
    return server[0] != 0 && strstr(server, "://") == NULL ? &kinds[KIND_WITHOUT_SCHEME] : NULL;
}
