/* Finds key and value in a JSON object and undoes their escapes in place. */
#include "store/service/put_body.h"

#include "env/json.h"

#include <jansson.h>
#include <stdio.h>

#define EXPLAIN_MAX (1u << 20) /* bytes of a text that is read a second time only to say what is wrong with it */

/* Four hexadecimal digits, or -1. */
static int32_t unit(const char *at, const char *end)
{
    int32_t value = 0;
    if (end - at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        int digit = at[i] >= '0' && at[i] <= '9'   ? at[i] - '0'
                    : at[i] >= 'a' && at[i] <= 'f' ? at[i] - 'a' + 10
                    : at[i] >= 'A' && at[i] <= 'F' ? at[i] - 'A' + 10
                                                   : -1;
        if (digit < 0)
            return -1;
        value = value << 4 | digit;
    }
    return value;
}

static char *put_utf8(char *to, uint32_t point)
{
    if (point < 0x80) {
        *to++ = (char)point;
    } else if (point < 0x800) {
        *to++ = (char)(0xc0 | point >> 6);
        *to++ = (char)(0x80 | (point & 0x3f));
    } else if (point < 0x10000) {
        *to++ = (char)(0xe0 | point >> 12);
        *to++ = (char)(0x80 | (point >> 6 & 0x3f));
        *to++ = (char)(0x80 | (point & 0x3f));
    } else {
        *to++ = (char)(0xf0 | point >> 18);
        *to++ = (char)(0x80 | (point >> 12 & 0x3f));
        *to++ = (char)(0x80 | (point >> 6 & 0x3f));
        *to++ = (char)(0x80 | (point & 0x3f));
    }
    return to;
}

/* Behind "\u": moves *at past it and, of a pair of surrogates, past both. An escape is never shorter than its bytes. */
static char *put_unicode(char *to, const char **at, const char *end)
{
    int32_t first = unit(*at, end), second;
    if (first < 0)
        return NULL;
    *at += 4;
    if (first < 0xd800 || first >= 0xe000)
        return put_utf8(to, (uint32_t)first);
    if (first >= 0xdc00 || end - *at < 6 || (*at)[0] != '\\' || (*at)[1] != 'u')
        return NULL;
    second = unit(*at + 2, end);
    if (second < 0xdc00 || second >= 0xe000)
        return NULL;
    *at += 6;
    return put_utf8(to, 0x10000u + ((uint32_t)(first - 0xd800) << 10) + (uint32_t)(second - 0xdc00));
}

static const char *unescape(char *text, struct mc_span *span)
{
    static const char names[] = "\"\\/bfnrt", bytes[] = "\"\\/\b\f\n\r\t";
    const char *at = memchr(span->data, '\\', span->length), *end = (const char *)span->data + span->length;
    if (at == NULL)
        return NULL;
    char *to = text + (at - text);
    while (at < end) {
        const char *next = memchr(at, '\\', (size_t)(end - at));
        size_t plain = (size_t)((next == NULL ? end : next) - at);
        memmove(to, at, plain);
        to += plain;
        at += plain;
        if (at == end)
            break;
        char name = at[1]; /* there: an escape is never cut, or the text would not have been a string */
        at += 2;
        const char *found = memchr(names, name, sizeof(names) - 1);
        if (found != NULL)
            *to++ = bytes[found - names];
        else if (name != 'u')
            return "a string holds an escape that is none";
        else if ((to = put_unicode(to, &at, end)) == NULL)
            return "a string holds a \\u escape that is no character";
    }
    span->length = (size_t)(to - (const char *)span->data);
    return NULL;
}

/* 1 a string, 0 null or not there, negative: not JSON, -2: something else. */
static int find_string(struct mc_span text, const char *name, struct mc_span *value)
{
    int rc = mc_json_find(text, name, value);
    const char *at = value->data;
    if (rc > 0 && at[-1] != '"') { /* between the quotes of a string; never the text's first byte, which is a brace */
        rc = mc_span_equal(*value, mc_span_string("null")) ? 0 : -2;
        /* As falsy as nothing, for a key. */
        if (rc < 0 && (mc_span_equal(*value, mc_span_string("0")) || mc_span_equal(*value, mc_span_string("false"))))
            rc = strcmp(name, "key") == 0 ? 0 : -2;
    }
    if (rc <= 0)
        *value = mc_span(NULL, 0);
    return rc;
}

static const char *explain(const char *text, size_t length, char *reason, size_t reason_size)
{
    json_error_t error;
    json_t *root = length > EXPLAIN_MAX ? NULL : json_loadb(text, length, 0, &error);
    if (root != NULL || length > EXPLAIN_MAX)
        snprintf(reason, reason_size, "Malformed JSON body");
    else
        snprintf(reason, reason_size, "Malformed JSON body: line %d column %d: %.100s", error.line, error.column,
                 error.text);
    json_decref(root);
    return reason;
}

const char *mc_put_body_parse(char *text, size_t length, struct mc_put_body *body, char *reason, size_t reason_size)
{
    struct mc_span whole = mc_span(text, length);
    size_t blank = strspn(text, " \t\r\n"); /* the text ends with a zero */
    *body = (struct mc_put_body){{NULL, 0}, {NULL, 0}};
    int key = find_string(whole, "key", &body->key);
    int value = find_string(whole, "value", &body->value);
    if (key == -2 || value == -2) {
        snprintf(reason, reason_size, "%s must be a string", key == -2 ? "key" : "value");
        return reason;
    }
    if (key < 0 || value < 0)
        return explain(text, length, reason, reason_size);
    if (text[blank] != '{')
        return "Request body must be a JSON object";
    const char *problem = body->key.data == NULL ? NULL : unescape(text, &body->key);
    return problem != NULL || body->value.data == NULL ? problem : unescape(text, &body->value);
}
