/* What the handlers of HTTP requests share: answers, parameters, routes. */
#include "store/master/http.h"

#include "base/error.h"
#include "env/log.h"
#include "store/master/http_server.h"

#include <stdio.h>

/* ---- replies ---- */

void mc_http_reply(struct mc_web_request *request, int code, const char *type, struct mc_buffer *body)
{
    if (body->failed) {
        mc_log_limited(ERROR, "out of memory: a request is answered 503");
        mc_web_reply(request, 503, type, NULL, 0);
    } else {
        mc_web_reply(request, code, type, body->data, body->length);
    }
    mc_buffer_free(body);
}

void mc_http_reply_text(struct mc_web_request *request, int code, const char *type, const char *text)
{
    mc_web_reply_text(request, code, type, text);
}

void mc_http_reply_error(struct mc_web_request *request, int error)
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

void mc_http_json_string(struct mc_buffer *out, const void *text, size_t length)
{
    const uint8_t *at = text;
    mc_buffer_put_u8(out, '"');
    for (size_t i = 0; i < length;) {
        size_t size = mc_utf8_length(at + i, length - i);
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

void mc_http_json_add(struct mc_json_writer *writer, const char *name, const void *text, size_t length)
{
    struct mc_buffer quoted = {.may_fail = true};
    mc_http_json_string(&quoted, text, length);
    writer->out->failed = writer->out->failed || quoted.failed;
    mc_json_add_value(writer, name, mc_span(quoted.data, quoted.length));
    mc_buffer_free(&quoted);
}

void mc_http_json_stamp(struct mc_json_writer *writer, struct mc_span key)
{
    char text[MC_ID_TEXT_MAX];
    struct mc_id stamp;
    if (!mc_key_stamp(key, &stamp))
        return;
    mc_id_format(text, stamp);
    mc_json_add_text(writer, "stamp", text);
}

/* ---- requests ---- */

/* As forms write it: + is a space, %41 a byte; what begins none stays. */
static void decode(struct mc_span in, struct mc_buffer *out)
{
    const char *at = in.data;
    for (size_t i = 0; i < in.length; i++) {
        int high = at[i] == '%' && i + 2 < in.length ? mc_hex_digit(at[i + 1]) : -1;
        int low = high < 0 ? -1 : mc_hex_digit(at[i + 2]);
        int byte = low >= 0 ? high << 4 | low : at[i] == '+' ? ' ' : at[i];
        mc_buffer_put_u8(out, (uint8_t)byte);
        i += low >= 0 ? 2 : 0;
    }
}

bool mc_http_parameter(const struct mc_web_request *request, const char *name, struct mc_buffer *value)
{
    size_t name_length = strlen(name);
    const char *at = request->head.target + request->path.length;
    const char *end = at + strcspn(at, "#");
    for (at += *at == '?'; at < end; at++) { /* behind the & */
        size_t length = strcspn(at, "&#");
        if (length > name_length && memcmp(at, name, name_length) == 0 && at[name_length] == '=') {
            decode(mc_span(at + name_length + 1, length - name_length - 1), value);
            return true;
        }
        at += length;
    }
    return false;
}

bool mc_http_number(const struct mc_web_request *request, const char *name, uint64_t otherwise, uint64_t most,
                    uint64_t *number)
{
    struct mc_buffer text = {.may_fail = true};
    *number = otherwise;
    bool is_there = mc_http_parameter(request, name, &text), is_number = !text.failed;
    if (is_there) {
        *number = 0;
        is_number = is_number && text.length > 0 && text.length <= 20;
        for (size_t i = 0; is_number && i < text.length; i++) {
            uint64_t digit = (uint64_t)text.data[i] - '0';
            is_number = digit <= 9 && *number <= (most - digit) / 10 && digit <= most;
            *number = *number * 10 + digit;
        }
    }
    mc_buffer_free(&text);
    return is_number;
}

bool mc_http_scope(struct mc_web_request *request, struct mc_scope *scope, bool *is_said)
{
    const char *tenant = request->tenant; /* asked for again, a key that is revoked meanwhile would have none */
    struct mc_buffer name = {.may_fail = true}, stamp = {.may_fail = true};
    bool is_asked = mc_http_parameter(request, "tenant_id", &name),
         is_stamped = mc_http_parameter(request, "stamp", &stamp);
    struct mc_span who = tenant[0] != 0 ? mc_span_string(tenant) : mc_span(name.data, name.length);
    bool is_name = !name.failed && mc_scope_make(scope, who); /* else it would be everybody's */
    /* Who neither holds the memory of all nor runs the cluster is told of his own, and has no tenant by saying one. */
    bool is_kept = (request->rights & (MC_RIGHT_NODE | MC_RIGHT_ADMIN)) == 0;
    bool is_foreign = is_kept && tenant[0] == 0 && is_name && scope->length > 0;
    is_name = is_name && !stamp.failed && stamp.length <= MC_STAMP_TEXT_MAX;
    if (is_name)
        mc_scope_stamp(scope, mc_stamp_of(mc_span(stamp.data, stamp.length)));
    if (is_said != NULL)
        *is_said = is_kept || (is_asked && name.length > 0) || (is_stamped && stamp.length > 0);
    mc_buffer_free(&name);
    mc_buffer_free(&stamp);
    if (is_foreign)
        mc_http_reply_text(request, 403, MC_HTTP_TEXT, "this key is of another tenant\n");
    else if (!is_name)
        mc_http_reply_error(request, MC_ERR_INVALID_PARAMS);
    return is_name && !is_foreign;
}

bool mc_http_body(struct mc_web_request *request, struct mc_web_bytes *body)
{
    *body = (struct mc_web_bytes){NULL, 0, 0};
    return mc_web_read_body(request, MC_HTTP_BODY_MAX, body);
}

void mc_http_dispatch(const struct mc_http_route *routes, size_t count, void *context, struct mc_web_request *request)
{
    char lines[64] = "Allow: ";
    size_t begin = strlen(lines), length = begin;
    for (size_t i = 0; i < count; i++) {
        const struct mc_http_route *route = &routes[i];
        if (!mc_span_equal(mc_span_string(route->path), request->path))
            continue;
        if (strcmp(route->method, request->head.method) == 0) {
            if (mc_web_is_permitted(request, route->right, route->is_own))
                route->handler(context, request);
            return;
        }
        length += (size_t)snprintf(lines + length, sizeof(lines) - length, "%s%s%s", length == begin ? "" : ", ",
                                   route->method, strcmp(route->method, "GET") == 0 ? ", HEAD" : "");
        mc_assert(length + 2 < sizeof(lines));
    }
    if (length == begin) {
        mc_http_reply_text(request, 404, MC_HTTP_JSON, "{\"success\":false,\"error\":\"No such path.\"}");
        return;
    }
    static const char text[] = "{\"success\":false,\"error\":\"This method is not possible here.\"}";
    memcpy(lines + length, "\r\n", 3);
    mc_web_reply_with(request, 405, MC_HTTP_JSON, lines, text, sizeof(text) - 1);
}
