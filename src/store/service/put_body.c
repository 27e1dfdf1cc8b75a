/* Finds key and value in a JSON object and undoes their escapes in place. */
#include "store/service/put_body.h"

#include "env/json.h"

#include <stdio.h>

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

/* A string, or null, or what is as falsy as nothing for a key. False: something else. */
static bool is_string(struct mc_json_cursor *member, int found, bool may_be_falsy)
{
    if (found == 1 && member->kind == '"')
        return true;
    bool is_none =
        found == 0 || member->kind == 'n' || (may_be_falsy && (member->kind == 'f' || mc_json_is(member->value, "0")));
    member->value = mc_span(NULL, 0);
    return is_none;
}

const char *mc_put_body_parse(char *text, size_t length, struct mc_put_body *body, char *reason, size_t reason_size)
{
    struct mc_span whole = mc_span(text, length), unused;
    struct mc_json_cursor key, value;
    int line, column;
    *body = (struct mc_put_body){{NULL, 0}, {NULL, 0}};
    int has_key = mc_json_member(whole, "key", &key),
        has_value = has_key < 0 ? 0 : mc_json_member(whole, "value", &value);
    if (has_key < 0 && mc_json_find(whole, "", &unused) >= 0)
        return "Request body must be a JSON object";
    if (has_key < 0) {
        mc_json_where(whole, &key, &line, &column);
        snprintf(reason, reason_size, "Malformed JSON body: line %d column %d: %s", line, column, key.problem);
        return reason;
    }
    bool is_key = is_string(&key, has_key, true);
    if (!is_key || !is_string(&value, has_value, false)) {
        snprintf(reason, reason_size, "%s must be a string", is_key ? "value" : "key");
        return reason;
    }
    body->key = key.value;
    body->value = value.value;
    const char *problem = body->key.data == NULL ? NULL : unescape(text, &body->key);
    return problem != NULL || body->value.data == NULL ? problem : unescape(text, &body->value);
}
