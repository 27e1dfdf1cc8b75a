/* Puts one list of JSON before another without taking either apart; see join.h. */
#include "proxy/join.h"

#include "base/error.h"

static bool is_space(uint8_t at)
{
    return at == ' ' || at == '\t' || at == '\r' || at == '\n';
}

static struct mc_span skip(struct mc_span text, size_t count)
{
    return mc_span((const uint8_t *)text.data + count, text.length - count);
}

static struct mc_span trim(struct mc_span text)
{
    const uint8_t *bytes = text.data;
    while (text.length > 0 && is_space(bytes[text.length - 1]))
        text.length--;
    size_t spaces = 0;
    while (spaces < text.length && is_space(bytes[spaces]))
        spaces++;
    return spaces == 0 ? text : skip(text, spaces);
}

size_t mc_join_event(struct mc_span text)
{
    const uint8_t *bytes = text.data;
    size_t line = 0; /* bytes of the line under way, without its end */
    for (size_t i = 0; i < text.length; i++) {
        if (bytes[i] == '\n' && line == 0 && i > 0)
            return i + 1;
        if (bytes[i] == '\n')
            line = 0;
        else if (bytes[i] != '\r')
            line++;
    }
    return 0;
}

/* The JSON of an event; any other text is taken for JSON itself. */
static struct mc_span content(struct mc_span text)
{
    static const char field[] = "data:";
    size_t length = sizeof(field) - 1;
    text = trim(text);
    if (text.length >= length && memcmp(text.data, field, length) == 0)
        text = trim(skip(text, length));
    return text;
}

struct mc_span mc_join_list(struct mc_members *members, struct mc_span text)
{
    static const char *const path[] = {"meta_info", "input_token_logprobs"};
    text = content(text);
    for (size_t i = 0; i < sizeof(path) / sizeof(path[0]); i++) {
        size_t at;
        const char *problem;
        const struct mc_edit_member *member = NULL;
        if (mc_members_scan(members, text, &at, &problem) == 0)
            member = mc_members_find(members, path[i]);
        if (member == NULL)
            return (struct mc_span){0};
        text = member->value;
    }
    if (text.length < 2 || *(const uint8_t *)text.data != '[')
        return (struct mc_span){0};
    text.length--;
    return skip(text, 1);
}

void mc_join_write(struct mc_members *members, struct mc_span text, struct mc_span before, struct mc_buffer *out)
{
    struct mc_span list = mc_join_list(members, text);
    struct mc_span head = text;
    if (list.data != NULL)
        head.length = (size_t)((const uint8_t *)list.data - (const uint8_t *)text.data);
    before = trim(before);
    mc_buffer_append(out, head.data, head.length);
    if (list.data == NULL)
        return;
    mc_buffer_append(out, before.data, before.length);
    if (before.length > 0 && trim(list).length > 0)
        mc_buffer_put_u8(out, ',');
    mc_buffer_append(out, list.data, text.length - head.length);
}
