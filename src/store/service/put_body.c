/* Finds key and value in a JSON object and undoes their escapes in place. */
#include "store/service/put_body.h"

#include "env/json.h"

#include <jansson.h>
#include <stdio.h>

#define EXPLAIN_MAX (1u << 20) /* bytes of a text that is read a second time only to say what is wrong with it */

static const char *unescape(char *text, struct mc_span *span)
{
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
        char name = at[1], four[4]; /* there: an escape is never cut, or the text would not have been a string */
        at++;
        int count = mc_json_unescape(&at, end, four);
        if (count < 0)
            return name == 'u' ? "a string holds a \\u escape that is no character"
                               : "a string holds an escape that is none";
        memcpy(to, four, (size_t)count); /* an escape is never shorter than its bytes */
        to += count;
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
