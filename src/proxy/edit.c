/* Looks through JSON once and writes it again with members of the outer object changed; see edit.h. */
#include "proxy/edit.h"

#include "base/error.h"
#include "env/json.h"

int mc_members_scan(struct mc_members *members, struct mc_span text, size_t *at, const char **problem)
{
    struct mc_json_cursor cursor;
    members->text = text;
    members->count = 0;
    bool is_open = mc_json_open(text, '{', &cursor) == 0;
    const char *start = cursor.start;
    while (is_open && mc_json_next(&cursor) == 1) {
        if (members->count == MC_EDIT_MEMBERS_MAX) {
            cursor.at = cursor.from;
            cursor.problem = "too many members";
            break;
        }
        size_t from = (size_t)(cursor.from - start), to = (size_t)(cursor.at - start);
        size_t quote = cursor.kind == '"'; /* the value's text has its quotes */
        members->list[members->count++] = (struct mc_edit_member){
            .name = cursor.name,
            .value = mc_span((const char *)cursor.value.data - quote, cursor.value.length + 2 * quote),
            .from = from,
            .to = to};
    }
    *at = (size_t)(cursor.at - start);
    *problem = cursor.problem == NULL ? "" : cursor.problem;
    return cursor.problem == NULL ? 0 : MC_ERR_INVALID_PARAMS;
}

const struct mc_edit_member *mc_members_find(const struct mc_members *members, const char *name)
{
    for (size_t i = members->count; i-- > 0;) {
        if (mc_span_equal(members->list[i].name, mc_span_string(name)))
            return &members->list[i];
    }
    return NULL;
}

bool mc_members_is_true(const struct mc_members *members, const char *name)
{
    const struct mc_edit_member *member = mc_members_find(members, name);
    return member != NULL && mc_span_equal(member->value, mc_span_string("true"));
}

static bool is_named(const struct mc_edit_member *member, const char *const *names)
{
    for (; *names != NULL; names++) {
        if (mc_span_equal(member->name, mc_span_string(*names)))
            return true;
    }
    return false;
}

void mc_members_write(const struct mc_members *members, const char *const *without, const char *more,
                      struct mc_buffer *out)
{
    const uint8_t *text = members->text.data;
    bool is_first = true;
    mc_buffer_reserve(out, members->text.length + strlen(more) + 2);
    mc_buffer_put_u8(out, '{');
    for (size_t i = 0; i < members->count; i++) {
        const struct mc_edit_member *member = &members->list[i];
        if (is_named(member, without))
            continue;
        if (!is_first)
            mc_buffer_put_u8(out, ',');
        mc_buffer_append(out, text + member->from, member->to - member->from);
        is_first = false;
    }
    if (!is_first && more[0] != 0)
        mc_buffer_put_u8(out, ',');
    mc_buffer_append(out, more, strlen(more));
    mc_buffer_put_u8(out, '}');
}
