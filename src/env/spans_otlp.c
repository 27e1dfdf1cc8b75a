#include "env/spans_otlp.h"

#include "base/error.h"
#include "base/variables.h"
#include "env/json.h"
#include "env/log.h"
#include "net/message.h"

#include <stdio.h>
#include <strings.h>
#include <unistd.h>

#define NAME_MAX_BYTES 256u   /* of a name in a list of the environment, with its zero */
#define VALUE_MAX_BYTES 8192u /* of a value: a token may be long */
#define STATUS_ERROR 2u
#define DEFAULT_ENDPOINT "http://localhost:4318"

static bool is_set(const char *value)
{
    return value != NULL && value[0] != 0;
}

/* ---- lists of the environment: "name=value,name=value", both with %41 for what could not stand there ---- */

struct pair {
    char name[NAME_MAX_BYTES], value[VALUE_MAX_BYTES];
};

static bool text_decode(const char *from, size_t length, char *to, size_t size)
{
    while (length > 0 && *from == ' ') {
        from++;
        length--;
    }
    while (length > 0 && from[length - 1] == ' ')
        length--;
    if (length >= size)
        return false;
    int64_t written = mc_uri_decode(mc_span(from, length), to);
    if (written < 0)
        return false;
    to[written] = 0;
    for (int64_t i = 0; i < written; i++)
        if ((unsigned char)to[i] < ' ' || to[i] == 0x7f)
            return false;
    return true;
}

/* The next of a list, whose rest *list becomes. False: that was all. What cannot be read is left out, and the log says
 * so: the name at most, as a value may be a secret. */
static bool pair_next(const char **list, const char *variable, struct pair *pair)
{
    while (*list != NULL && **list != 0) {
        const char *at = *list;
        size_t length = strcspn(at, ",");
        const char *equals = memchr(at, '=', length);
        *list = at[length] == ',' ? at + length + 1 : at + length;
        bool is_named =
            equals != NULL && text_decode(at, (size_t)(equals - at), pair->name, NAME_MAX_BYTES) && pair->name[0] != 0;
        if (is_named && text_decode(equals + 1, (size_t)(at + length - equals - 1), pair->value, VALUE_MAX_BYTES))
            return true;
        if (length > 0)
            mc_log(WARNING, "%s: what it has for '%.80s' cannot be read, and is left out: name=value is expected",
                   variable, is_named ? pair->name : "a name that is none");
    }
    return false;
}

/* ---- settings ---- */

bool mc_otlp_is_off(void)
{
    const char *disabled = mc_variable(OTEL_SDK_DISABLED), *exporter = mc_variable(OTEL_TRACES_EXPORTER);
    return (disabled != NULL && strcasecmp(disabled, "true") == 0) ||
           (exporter != NULL && strcasecmp(exporter, "none") == 0);
}

static void attribute_begin(struct mc_json_writer *json, const char *name)
{
    mc_json_begin(json, NULL, '{');
    mc_json_add_text(json, "key", name);
    mc_json_begin(json, "value", '{');
}

static void attribute_end(struct mc_json_writer *json)
{
    mc_json_end(json, '}');
    mc_json_end(json, '}');
}

static void attribute_text(struct mc_json_writer *json, const char *name, const char *text)
{
    if (text == NULL || text[0] == 0)
        return;
    struct mc_buffer clean = {.may_fail = true}; /* the environment may have anything */
    mc_buffer_put_utf8(&clean, name, strlen(name) + 1);
    size_t at = clean.length;
    mc_buffer_put_utf8(&clean, text, strlen(text) + 1);
    if (!clean.failed) {
        attribute_begin(json, (const char *)clean.data);
        mc_json_add_text(json, "stringValue", (const char *)clean.data + at);
        attribute_end(json);
    }
    mc_buffer_free(&clean);
}

/* 64 bits are text in the JSON of protocol buffers. */
static void attribute_number(struct mc_json_writer *json, const char *name, long long number)
{
    char text[24];
    snprintf(text, sizeof(text), "%lld", number);
    attribute_begin(json, name);
    mc_json_add_text(json, "intValue", text);
    attribute_end(json);
}

/* Is there one more of that name in the rest of a list? */
static bool comes_again(const char *list, const char *name)
{
    char other[NAME_MAX_BYTES];
    for (size_t length; list != NULL && *list != 0; list += list[length] == ',' ? length + 1 : length) {
        length = strcspn(list, ",");
        const char *equals = memchr(list, '=', length);
        if (equals != NULL && text_decode(list, (size_t)(equals - list), other, sizeof(other)) &&
            strcmp(other, name) == 0)
            return true;
    }
    return false;
}

void mc_otlp_name(struct mc_otlp *otlp, const char *service)
{
    const char *own = mc_variable(OTEL_SERVICE_NAME), *list = mc_variable(OTEL_RESOURCE_ATTRIBUTES);
    struct mc_json_writer json = {.out = &otlp->resource};
    struct pair pair;
    char host[256] = "";
    bool has_service = is_set(own), has_host = false;
    mc_json_begin(&json, NULL, '{');
    mc_json_begin(&json, "attributes", '[');
    while (pair_next(&list, "OTEL_RESOURCE_ATTRIBUTES", &pair)) {
        bool is_service = strcmp(pair.name, "service.name") == 0;
        if (is_service && is_set(own))
            continue;
        if (strcmp(pair.name, "process.pid") == 0 || comes_again(list, pair.name)) /* one of a name, the last */
            continue;
        has_service |= is_service && pair.value[0] != 0;
        has_host |= strcmp(pair.name, "host.name") == 0;
        attribute_text(&json, pair.name, pair.value);
    }
    if (is_set(own) || !has_service)
        attribute_text(&json, "service.name", is_set(own) ? own : service);
    if (!has_host && gethostname(host, sizeof(host) - 1) == 0)
        attribute_text(&json, "host.name", host);
    attribute_number(&json, "process.pid", getpid());
    mc_json_end(&json, ']');
    mc_json_end(&json, '}');
}

static int endpoint_read(struct mc_otlp *otlp, const char *url, const char *more)
{
    char text[MC_ADDRESS_MAX], host[MC_ADDRESS_MAX];
    otlp->is_tls = strncasecmp(url, "https://", 8) == 0;
    if (!otlp->is_tls && strncasecmp(url, "http://", 7) != 0)
        return MC_ERR_INVALID_PARAMS;
    uint16_t port = otlp->is_tls ? 443 : 80;
    url += otlp->is_tls ? 8 : 7;
    size_t length = strcspn(url, "/?#");
    const char *path = url + length;
    if (length == 0 || length >= sizeof(text) || memchr(url, '@', length) != NULL || strpbrk(path, "?#") != NULL)
        return MC_ERR_INVALID_PARAMS;
    memcpy(text, url, length);
    text[length] = 0;
    if (mc_address_split(text, host, sizeof(host) - 8, &port) < 0 || port == 0)
        return MC_ERR_INVALID_PARAMS;
    mc_address_join(otlp->address, sizeof(otlp->address), host, port);
    size_t path_length = strlen(path);
    while (more[0] != 0 && path_length > 0 && path[path_length - 1] == '/')
        path_length--;
    int written = snprintf(otlp->path, sizeof(otlp->path), "%.*s%s", (int)path_length, path, more);
    if (written == 0)
        snprintf(otlp->path, sizeof(otlp->path), "/");
    for (const char *at = otlp->path; *at != 0; at++)
        if (*at <= ' ' || *at >= 0x7f)
            return MC_ERR_INVALID_PARAMS;
    return written < (int)sizeof(otlp->path) && otlp->path[0] == '/' ? 0 : MC_ERR_INVALID_PARAMS;
}

/* A name as HTTP has them, and none that the request has already. */
static bool is_header(const char *name)
{
    static const char *const ours[] = {"host",       "content-length", "content-type", "transfer-encoding",
                                       "connection", "user-agent"};
    for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++)
        if (strcasecmp(name, ours[i]) == 0)
            return false;
    return strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == strlen(name);
}

int mc_otlp_target(struct mc_otlp *otlp, char *error, size_t error_size)
{
    const char *own = mc_variable(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT), *all = mc_variable(OTEL_EXPORTER_OTLP_ENDPOINT);
    const char *own_headers = mc_variable(OTEL_EXPORTER_OTLP_TRACES_HEADERS);
    const char *own_authority = mc_variable(OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE);
    const char *url = is_set(own) ? own : is_set(all) ? all : DEFAULT_ENDPOINT;
    struct pair pair;
    if (endpoint_read(otlp, url, is_set(own) ? "" : "/v1/traces") < 0) {
        snprintf(error, error_size, "%s '%.200s': http://host:port or https://host:port is expected",
                 is_set(own) ? "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" : "OTEL_EXPORTER_OTLP_ENDPOINT",
                 strchr(url, '@') == NULL ? url : "...@...");
        return MC_ERR_INVALID_PARAMS;
    }
    const char *all_authority = mc_variable(OTEL_EXPORTER_OTLP_CERTIFICATE);
    snprintf(otlp->authority, sizeof(otlp->authority), "%s",
             is_set(own_authority)   ? own_authority
             : all_authority != NULL ? all_authority
                                     : "");
    otlp->authority_is =
        is_set(own_authority) ? "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE" : "OTEL_EXPORTER_OTLP_CERTIFICATE";
    const char *headers = is_set(own_headers) ? own_headers : mc_variable(OTEL_EXPORTER_OTLP_HEADERS);
    const char *headers_are = is_set(own_headers) ? "OTEL_EXPORTER_OTLP_TRACES_HEADERS" : "OTEL_EXPORTER_OTLP_HEADERS";
    mc_buffer_printf(&otlp->headers, "User-Agent: mooncake/%s\r\n", mc_version());
    while (pair_next(&headers, headers_are, &pair)) {
        if (is_header(pair.name))
            mc_buffer_printf(&otlp->headers, "%s: %s\r\n", pair.name, pair.value);
        else
            mc_log(WARNING, "%s: no header '%.80s' is sent", headers_are, pair.name);
    }
    explicit_bzero(&pair, sizeof(pair));
    mc_buffer_put_u8(&otlp->headers, 0);
    return 0;
}

void mc_otlp_free(struct mc_otlp *otlp)
{
    if (otlp->headers.length > 0)
        explicit_bzero(otlp->headers.data, otlp->headers.length);
    mc_buffer_free(&otlp->headers);
    mc_buffer_free(&otlp->resource);
    *otlp = (struct mc_otlp){.is_tls = false};
}

/* ---- spans ---- */

static void add_hex(struct mc_json_writer *json, const char *name, uint64_t number)
{
    char text[17];
    snprintf(text, sizeof(text), "%016llx", (unsigned long long)number);
    mc_json_add_text(json, name, text);
}

static void add_nanos(struct mc_json_writer *json, const char *name, uint64_t number)
{
    char text[24];
    snprintf(text, sizeof(text), "%llu", (unsigned long long)number);
    mc_json_add_text(json, name, text);
}

static void write_span(struct mc_json_writer *json, const struct mc_traced *span)
{
    char trace[MC_ID_TEXT_MAX];
    snprintf(trace, sizeof(trace), "%016llx%016llx", (unsigned long long)span->self.id.high,
             (unsigned long long)span->self.id.low);
    mc_json_begin(json, NULL, '{');
    mc_json_add_text(json, "traceId", trace);
    add_hex(json, "spanId", span->self.span);
    add_hex(json, "parentSpanId", span->parent);
    mc_json_add_text(json, "name", span->name);
    mc_json_add_number(json, "kind", span->kind);
    add_nanos(json, "startTimeUnixNano", span->begin_ns);
    add_nanos(json, "endTimeUnixNano", span->end_ns);
    mc_json_begin(json, "attributes", '[');
    if (span->keys > 0)
        attribute_number(json, "mooncake.keys", span->keys);
    if (span->bytes > 0)
        attribute_number(json, "mooncake.bytes", (long long)span->bytes);
    attribute_number(json, "mooncake.code", span->code);
    attribute_text(json, "mooncake.path", span->path);
    attribute_text(json, "mooncake.segment", span->segment);
    attribute_text(json, "mooncake.key", span->key);
    mc_json_end(json, ']');
    mc_json_begin(json, "status", '{');
    if (mc_traced_is_failure(span->code)) {
        mc_json_add_number(json, "code", STATUS_ERROR);
        mc_json_add_text(json, "message", mc_error_name(span->code));
    }
    mc_json_end(json, '}');
    mc_json_end(json, '}');
}

void mc_otlp_write(struct mc_buffer *out, const struct mc_otlp *otlp, struct mc_traced *const *spans, size_t count)
{
    struct mc_json_writer json = {.out = out};
    mc_json_begin(&json, NULL, '{');
    mc_json_begin(&json, "resourceSpans", '[');
    mc_json_begin(&json, NULL, '{');
    mc_json_add_value(&json, "resource", mc_span(otlp->resource.data, otlp->resource.length));
    mc_json_begin(&json, "scopeSpans", '[');
    mc_json_begin(&json, NULL, '{');
    mc_json_begin(&json, "scope", '{');
    mc_json_add_text(&json, "name", "mooncake");
    mc_json_add_text(&json, "version", mc_version());
    mc_json_end(&json, '}');
    mc_json_begin(&json, "spans", '[');
    for (size_t i = 0; i < count; i++)
        write_span(&json, spans[i]);
    mc_json_end(&json, ']');
    mc_json_end(&json, '}');
    mc_json_end(&json, ']');
    mc_json_end(&json, '}');
    mc_json_end(&json, ']');
    mc_json_end(&json, '}');
}
