/* How many keys of a list, from the first one on, are stored: for routers that ask before they choose an engine. */
#include "base/error.h"
#include "store/master/http.h"

#include <stdlib.h>

struct prefix_slice {
    size_t count;
    struct mc_span keys[MC_CORE_PREFIX_SLICE];
    uint8_t bytes[MC_CORE_PREFIX_SLICE][MC_KEY_LENGTH_MAX + 1]; /* a text ends with a zero */
    struct mc_core_prefix found;
};

static void ask_prefix(struct mc_core *core, void *argument)
{
    struct prefix_slice *slice = argument;
    mc_core_prefix(core, slice->keys, slice->count, &slice->found);
}

/* A list, or an object that has it as "keys". 0 or MC_ERR_PROTOCOL. */
static int list_open(struct mc_span text, struct mc_json_cursor *cursor)
{
    struct mc_json_cursor member;
    int rc = mc_json_open(text, '[', cursor);
    if (rc < 0 && mc_json_member(text, "keys", &member) > 0)
        rc = mc_json_open(member.value, '[', cursor);
    return rc;
}

/* How many there are; or negative: it is not a list of strings. */
static int64_t list_count(struct mc_span text)
{
    struct mc_json_cursor cursor;
    int64_t count = 0;
    int rc = list_open(text, &cursor);
    while (rc == 0 && (rc = mc_json_next(&cursor)) > 0) {
        rc = cursor.kind == '"' ? 0 : MC_ERR_PROTOCOL;
        count++;
    }
    return rc < 0 ? MC_ERR_INVALID_PARAMS : count;
}

/* The next keys of the list. 0, or negative for one that cannot be. */
static int slice_fill(struct prefix_slice *slice, const struct mc_scope *scope, struct mc_json_cursor *cursor)
{
    slice->count = 0;
    while (slice->count < MC_CORE_PREFIX_SLICE && mc_json_next(cursor) > 0) {
        uint8_t *key = slice->bytes[slice->count];
        memcpy(key, scope->bytes, scope->length);
        int rc = mc_json_text(cursor, (char *)key + scope->length, sizeof(slice->bytes[0]) - scope->length);
        size_t length = rc < 0 ? 0 : strlen((const char *)key + scope->length);
        if (length == 0)
            return MC_ERR_INVALID_PARAMS;
        slice->keys[slice->count++] = mc_span(key, scope->length + length);
    }
    return 0;
}

static int look_up(struct mc_server *server, const struct mc_scope *scope, struct mc_span text,
                   struct mc_core_prefix *found)
{
    struct mc_json_cursor cursor;
    struct prefix_slice *slice = calloc(1, sizeof(*slice));
    int rc = slice == NULL ? MC_ERR_NO_MEMORY : list_open(text, &cursor);
    while (rc == 0) {
        uint64_t before = slice->found.matched;
        rc = slice_fill(slice, scope, &cursor);
        if (rc < 0 || slice->count == 0)
            break;
        rc = mc_server_ask(server, ask_prefix, slice, MC_HTTP_ASK_MS);
        if (slice->found.matched < before + slice->count)
            break;
    }
    if (rc == 0)
        *found = slice->found;
    free(slice);
    return rc;
}

void mc_prefix_post(struct mc_server *server, struct mc_web_request *request)
{
    struct mc_buffer text = {.may_fail = true};
    struct mc_json_writer writer = {.out = &text};
    struct mc_core_prefix found = {.matched = 0};
    struct mc_web_bytes body;
    struct mc_scope scope;
    if (!mc_http_scope(request, &scope, NULL) || !mc_http_body(request, &body))
        return;
    struct mc_span list = mc_span(body.data, (size_t)body.length);
    int64_t count = list_count(list);
    int rc = count < 0 ? (int)count : look_up(server, &scope, list, &found);
    mc_web_bytes_free(request, &body);
    if (rc < 0) {
        mc_http_reply_error(request, rc);
        return;
    }
    mc_json_begin(&writer, NULL, '{');
    mc_json_add_bool(&writer, "success", true);
    mc_json_begin(&writer, "data", '{');
    mc_json_add_number(&writer, "keys", (uint64_t)count);
    mc_json_add_number(&writer, "longest_matched", found.matched);
    mc_json_add_number(&writer, "cpu", found.memory);
    mc_json_add_number(&writer, "disk", found.disk);
    mc_json_end(&writer, '}');
    mc_json_end(&writer, '}');
    mc_http_reply(request, 200, MC_HTTP_JSON, &text);
}
