/* What the handlers of the HTTP thread share: answers, parameters, routes. */
#include "store/master/http.h"

#include "base/error.h"
#include "env/channel.h"
#include "env/log.h"
#include "env/secure.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <stdlib.h>

/* ---- replies ---- */

void mc_http_reply(struct evhttp_request *request, int code, const char *type, struct mc_buffer *body)
{
    struct evbuffer *out = evhttp_request_get_output_buffer(request);
    /* Fails without memory only; then there is none to what was asked. */
    bool is_whole = evhttp_add_header(evhttp_request_get_output_headers(request), "Content-Type", type) == 0;
    if (body != NULL)
        is_whole = is_whole && !body->failed && (body->length == 0 || evbuffer_add(out, body->data, body->length) == 0);
    if (body != NULL)
        mc_buffer_free(body);
    if (!is_whole) {
        mc_log_limited(ERROR, "out of memory: a request is answered 503");
        code = 503;
    }
    evhttp_send_reply(request, code, NULL, NULL);
}

void mc_http_reply_text(struct evhttp_request *request, int code, const char *type, const char *text)
{
    struct mc_buffer body = {.may_fail = true};
    mc_buffer_append(&body, text, strlen(text));
    mc_http_reply(request, code, type, &body);
}

void mc_http_reply_error(struct evhttp_request *request, int error)
{
    static const struct {
        int error, code;
    } codes[] = {
        {MC_ERR_INVALID_PARAMS, 400},
        {MC_ERR_OBJECT_NOT_FOUND, 404},
        {MC_ERR_SEGMENT_NOT_FOUND, 404},
        {MC_ERR_UNAVAILABLE_IN_CURRENT_MODE, 409},
        {MC_ERR_TENANT_NOT_REGISTERED, 404},
        {MC_ERR_TENANT_NOT_EMPTY, 409},
        /* The core did not answer: */
        {MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS, 503},
        {MC_ERR_RPC_TIMEOUT, 503},
    };
    int code = 500;
    struct mc_buffer body = {0};
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        if (codes[i].error == error)
            code = codes[i].code;
    }
    if (code == 503)
        mc_buffer_printf(
            &body, "{\"success\":false,\"error_code\":%d,\"error_message\":\"service plane is not active\"}", error);
    else
        mc_buffer_printf(&body, "{\"success\":false,\"error_code\":%d,\"error_message\":\"%s\"}", error,
                         mc_error_name(error));
    mc_http_reply(request, code, MC_HTTP_JSON, &body);
}

/* Bytes of the UTF-8 character at text, or 0 when it is none. */
static size_t utf8_length(const uint8_t *text, size_t length)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t size = text[0] < 0x80             ? 1
                  : (text[0] & 0xe0) == 0xc0 ? 2
                  : (text[0] & 0xf0) == 0xe0 ? 3
                  : (text[0] & 0xf8) == 0xf0 ? 4
                                             : 0;
    if (size <= 1 || size > length)
        return size == 1 ? 1 : 0;
    uint32_t point = text[0] & (0x7fu >> size);
    for (size_t i = 1; i < size; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
        point = point << 6 | (text[i] & 0x3fu);
    }
    return point < least[size] || point > 0x10ffff || (point >= 0xd800 && point < 0xe000) ? 0 : size;
}

void mc_http_json_string(struct mc_buffer *out, const void *text, size_t length)
{
    const uint8_t *at = text;
    mc_buffer_put_u8(out, '"');
    for (size_t i = 0; i < length;) {
        size_t size = utf8_length(at + i, length - i);
        if (size == 0)
            mc_buffer_append(out, "\\ufffd", 6);
        else if (at[i] == '"' || at[i] == '\\')
            mc_buffer_printf(out, "\\%c", at[i]);
        else if (at[i] < ' ' || at[i] == 0x7f)
            mc_buffer_printf(out, "\\u%04x", (unsigned)at[i]);
        else
            mc_buffer_append(out, at + i, size);
        i += size == 0 ? 1 : size;
    }
    mc_buffer_put_u8(out, '"');
}

/* ---- requests ---- */

bool mc_http_parameter(const struct evhttp_request *request, const char *name, struct mc_buffer *value)
{
    const char *at = evhttp_uri_get_query(evhttp_request_get_evhttp_uri(request));
    size_t name_length = strlen(name), size = 0;
    for (; at != NULL && *at != 0; at += *at == '&') {
        size_t length = strcspn(at, "&");
        if (length > name_length && memcmp(at, name, name_length) == 0 && at[name_length] == '=') {
            char *encoded = strndup(at + name_length + 1, length - name_length - 1);
            char *decoded = encoded == NULL ? NULL : evhttp_uridecode(encoded, 1, &size);
            mc_buffer_append(value, decoded, decoded == NULL ? 0 : size);
            value->failed = value->failed || decoded == NULL;
            free(encoded);
            free(decoded);
            return true;
        }
        at += length;
    }
    return false;
}

bool mc_http_scope(struct evhttp_request *request, struct mc_scope *scope, bool *is_said)
{
    const struct evkeyvalq *headers = evhttp_request_get_input_headers(request);
    struct mc_key key;
    struct mc_buffer name = {.may_fail = true};
    bool is_asked = mc_http_parameter(request, "tenant_id", &name);
    (void)mc_keys_http_status_own(evhttp_find_header(headers, "Authorization"), 0, &key);
    struct mc_span who = key.tenant[0] != 0 ? mc_span_string(key.tenant) : mc_span(name.data, name.length);
    bool is_name = !name.failed && mc_scope_make(scope, who); /* else it would be everybody's */
    if (is_said != NULL)
        *is_said = key.tenant[0] != 0 || (is_asked && name.length > 0);
    mc_buffer_free(&name);
    if (!is_name)
        mc_http_reply_error(request, MC_ERR_INVALID_PARAMS);
    return is_name;
}

/* False after an answer: who asks may not. */
static bool is_permitted(struct evhttp_request *request, unsigned right, bool is_own)
{
    struct mc_key key;
    if (right == 0)
        return true;
    struct bufferevent *connection = evhttp_connection_get_bufferevent(evhttp_request_get_connection(request));
    if (!mc_channel_is_known(connection)) {
        mc_http_reply_text(request, 403, MC_HTTP_TEXT, MC_SECURE_UNKNOWN "\n");
        return false;
    }
    const struct evkeyvalq *headers = evhttp_request_get_input_headers(request);
    if (right == MC_RIGHT_ADMIN) {
        int fd = (int)bufferevent_getfd(connection);
        const char *origin = evhttp_find_header(headers, "Origin"), *host = evhttp_find_header(headers, "Host");
        bool is_stranger = mc_keys_stranger_status(right, mc_socket_peer_is_near(fd)) != 0;
        if (is_stranger || mc_keys_origin_status(right, origin, host) != 0) {
            mc_http_reply_text(request, 403, MC_HTTP_TEXT, is_stranger ? MC_KEYS_STRANGER : MC_KEYS_ORIGIN);
            return false;
        }
    }
    const char *authorization = evhttp_find_header(headers, "Authorization");
    int status =
        is_own ? mc_keys_http_status_own(authorization, right, &key) : mc_keys_http_status(authorization, right);
    if (status == 0)
        return true;
    if (status == 401)
        (void)evhttp_add_header(evhttp_request_get_output_headers(request), "WWW-Authenticate", MC_KEYS_CHALLENGE);
    mc_http_reply_text(request, status, MC_HTTP_TEXT,
                       status == 401 ? "this port wants a key: Authorization: Bearer id:secret\n"
                                     : "this key has no right to that\n");
    return false;
}

void mc_http_dispatch(const struct mc_http_route *routes, size_t count, void *context, struct evhttp_request *request)
{
    static const struct {
        enum evhttp_cmd_type method;
        const char *name;
    } names[] = {{EVHTTP_REQ_GET, "GET, HEAD"},
                 {EVHTTP_REQ_PUT, "PUT"},
                 {EVHTTP_REQ_DELETE, "DELETE"},
                 {EVHTTP_REQ_POST, "POST"}};
    const char *path = evhttp_uri_get_path(evhttp_request_get_evhttp_uri(request));
    enum evhttp_cmd_type method = evhttp_request_get_command(request);
    struct mc_buffer allowed = {0};
    if (method == EVHTTP_REQ_HEAD)
        method = EVHTTP_REQ_GET;
    if (path == NULL || path[0] == 0)
        path = "/";
    for (size_t i = 0; i < count; i++) {
        if (strcmp(routes[i].path, path) != 0)
            continue;
        if (routes[i].method == method) {
            mc_buffer_free(&allowed);
            if (is_permitted(request, routes[i].right, routes[i].is_own))
                routes[i].handler(context, request);
            return;
        }
        for (size_t j = 0; j < sizeof(names) / sizeof(names[0]); j++) {
            if (names[j].method == routes[i].method)
                mc_buffer_printf(&allowed, "%s%s", allowed.length == 0 ? "" : ", ", names[j].name);
        }
    }
    if (allowed.length == 0) {
        mc_http_reply_text(request, 404, MC_HTTP_JSON, "{\"success\":false,\"error\":\"No such path.\"}");
        return;
    }
    mc_buffer_put_u8(&allowed, 0);
    (void)evhttp_add_header(evhttp_request_get_output_headers(request), "Allow", (const char *)allowed.data);
    mc_buffer_free(&allowed);
    mc_http_reply_text(request, 405, MC_HTTP_JSON,
                       "{\"success\":false,\"error\":\"This method is not possible here.\"}");
}
