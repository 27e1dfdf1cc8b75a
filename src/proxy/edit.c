/* Looks through JSON once and writes it again with members of the outer object changed; see edit.h. */
#include "proxy/edit.h"

#include "base/error.h"

struct scan {
    const uint8_t *start, *at, *end;
    const char *problem;
    uint64_t is_object[MC_EDIT_DEPTH_MAX / 64]; /* a bit for each level that is open */
    size_t depth;
};

static int scan_fail(struct scan *scan, const char *problem)
{
    scan->problem = problem;
    return MC_ERR_INVALID_PARAMS;
}

static void skip_space(struct scan *scan)
{
    while (scan->at < scan->end && (*scan->at == ' ' || *scan->at == '\t' || *scan->at == '\n' || *scan->at == '\r'))
        scan->at++;
}

static bool next_is(const struct scan *scan, char wanted)
{
    return scan->at < scan->end && *scan->at == (uint8_t)wanted;
}

/* Stands on the opening quote; ends behind the closing one. */
static int scan_string(struct scan *scan)
{
    for (scan->at++; scan->at < scan->end; scan->at++) {
        if (*scan->at == '"') {
            scan->at++;
            return 0;
        }
        if (*scan->at < ' ')
            return scan_fail(scan, "control character in a string");
        if (*scan->at != '\\')
            continue;
        scan->at++;
        if (scan->at == scan->end)
            break;
        if (*scan->at == 'u') {
            for (int i = 0; i < 4; i++) {
                scan->at++;
                if (scan->at == scan->end || mc_hex_digit((char)*scan->at) < 0)
                    return scan_fail(scan, "bad \\u escape");
            }
        } else if (*scan->at == 0 || strchr("\"\\/bfnrt", *scan->at) == NULL) {
            return scan_fail(scan, "bad escape");
        }
    }
    return scan_fail(scan, "the string does not end");
}

static bool digits(struct scan *scan)
{
    const uint8_t *from = scan->at;
    while (scan->at < scan->end && *scan->at >= '0' && *scan->at <= '9')
        scan->at++;
    return scan->at > from;
}

static int scan_number(struct scan *scan)
{
    if (next_is(scan, '-'))
        scan->at++;
    if (next_is(scan, '0'))
        scan->at++;
    else if (!digits(scan))
        return scan_fail(scan, "a value was expected");
    if (next_is(scan, '.')) {
        scan->at++;
        if (!digits(scan))
            return scan_fail(scan, "a digit was expected");
    }
    if (next_is(scan, 'e') || next_is(scan, 'E')) {
        scan->at++;
        if (next_is(scan, '-') || next_is(scan, '+'))
            scan->at++;
        if (!digits(scan))
            return scan_fail(scan, "a digit was expected");
    }
    return 0;
}

static int scan_plain(struct scan *scan)
{
    static const char *const words[] = {"true", "false", "null"};
    if (next_is(scan, '"'))
        return scan_string(scan);
    for (size_t i = 0; i < 3; i++) {
        size_t length = strlen(words[i]);
        if ((size_t)(scan->end - scan->at) >= length && memcmp(scan->at, words[i], length) == 0) {
            scan->at += length;
            return 0;
        }
    }
    return scan_number(scan);
}

static int open_level(struct scan *scan)
{
    if (scan->depth == MC_EDIT_DEPTH_MAX)
        return scan_fail(scan, "nested too deep");
    uint64_t bit = (uint64_t)1 << (scan->depth % 64);
    if (*scan->at == '{')
        scan->is_object[scan->depth / 64] |= bit;
    else
        scan->is_object[scan->depth / 64] &= ~bit;
    scan->depth++;
    scan->at++;
    return 0;
}

static bool in_object(const struct scan *scan)
{
    return (scan->is_object[(scan->depth - 1) / 64] >> ((scan->depth - 1) % 64) & 1) != 0;
}

/* "name" : of a member of an inner object. */
static int scan_name(struct scan *scan)
{
    skip_space(scan);
    if (!next_is(scan, '"'))
        return scan_fail(scan, "a name in quotes was expected");
    int rc = scan_string(scan);
    if (rc < 0)
        return rc;
    skip_space(scan);
    if (!next_is(scan, ':'))
        return scan_fail(scan, "a colon was expected");
    scan->at++;
    return 0;
}

/* Behind a value: closes levels until there is a comma or all that this value opened is closed. 1: the value has ended.
 */
static int close_levels(struct scan *scan, size_t floor)
{
    while (scan->depth > floor) {
        skip_space(scan);
        if (next_is(scan, ',')) {
            scan->at++;
            return in_object(scan) ? scan_name(scan) : 0;
        }
        if (!next_is(scan, in_object(scan) ? '}' : ']'))
            return scan_fail(scan, "a comma or the end of a list or object was expected");
        scan->at++;
        scan->depth--;
    }
    return 1;
}

/* Any value, without recursion. */
static int scan_value(struct scan *scan)
{
    size_t floor = scan->depth;
    for (;;) {
        int rc;
        skip_space(scan);
        if (next_is(scan, '{') || next_is(scan, '[')) {
            rc = open_level(scan);
            if (rc < 0)
                return rc;
            skip_space(scan);
            if (!next_is(scan, in_object(scan) ? '}' : ']')) {
                rc = in_object(scan) ? scan_name(scan) : 0;
                if (rc < 0)
                    return rc;
                continue;
            }
        } else {
            rc = scan_plain(scan);
            if (rc < 0)
                return rc;
        }
        rc = close_levels(scan, floor);
        if (rc != 0)
            return rc < 0 ? rc : 0;
    }
}

static int scan_member(struct scan *scan, struct mc_members *members)
{
    skip_space(scan);
    const uint8_t *from = scan->at;
    if (!next_is(scan, '"'))
        return scan_fail(scan, "a name in quotes was expected");
    if (members->count == MC_EDIT_MEMBERS_MAX)
        return scan_fail(scan, "too many members");
    int rc = scan_string(scan);
    if (rc < 0)
        return rc;
    struct mc_json_member *member = &members->list[members->count];
    member->name = mc_span(from + 1, (size_t)(scan->at - from) - 2);
    skip_space(scan);
    if (!next_is(scan, ':'))
        return scan_fail(scan, "a colon was expected");
    scan->at++;
    skip_space(scan);
    const uint8_t *value = scan->at;
    rc = scan_value(scan);
    if (rc < 0)
        return rc;
    member->value = mc_span(value, (size_t)(scan->at - value));
    member->from = (size_t)(from - scan->start);
    member->to = (size_t)(scan->at - scan->start);
    members->count++;
    return 0;
}

static int scan_object(struct scan *scan, struct mc_members *members)
{
    skip_space(scan);
    if (!next_is(scan, '{'))
        return scan_fail(scan, "an object was expected");
    scan->at++;
    skip_space(scan);
    for (bool is_first = true; !next_is(scan, '}'); is_first = false) {
        if (!is_first && !next_is(scan, ','))
            return scan_fail(scan, "a comma or the end of the object was expected");
        if (!is_first)
            scan->at++;
        int rc = scan_member(scan, members);
        if (rc < 0)
            return rc;
        skip_space(scan);
    }
    members->end = (size_t)(scan->at - scan->start);
    scan->at++;
    skip_space(scan);
    return scan->at == scan->end ? 0 : scan_fail(scan, "more behind the object");
}

int mc_members_scan(struct mc_members *members, struct mc_span text, size_t *at, const char **problem)
{
    struct scan scan = {.start = text.data, .at = text.data, .problem = ""};
    scan.end = scan.start + text.length;
    members->text = text;
    members->count = 0;
    int rc = scan_object(&scan, members);
    *at = (size_t)(scan.at - scan.start);
    *problem = scan.problem;
    return rc;
}

const struct mc_json_member *mc_members_find(const struct mc_members *members, const char *name)
{
    for (size_t i = members->count; i-- > 0;) {
        if (mc_span_equal(members->list[i].name, mc_span_string(name)))
            return &members->list[i];
    }
    return NULL;
}

bool mc_members_is_true(const struct mc_members *members, const char *name)
{
    const struct mc_json_member *member = mc_members_find(members, name);
    return member != NULL && mc_span_equal(member->value, mc_span_string("true"));
}

static bool is_named(const struct mc_json_member *member, const char *const *names)
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
        const struct mc_json_member *member = &members->list[i];
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
