/* A strict JSON scanner without recursion or memory of its own, and base64. */
#include "env/json.h"

#include "base/error.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- what is JSON ---- */

struct scan {
    const char *at, *end;
    const char *problem;
    uint64_t is_object[MC_JSON_DEPTH_MAX / 64]; /* a bit for each level that is open */
    size_t depth;
};

/* Nothing may lie nowhere, where there is no going on. */
static struct scan scan_of(struct mc_span text)
{
    const char *at = text.length == 0 ? "" : text.data;
    return (struct scan){.at = at, .end = at + text.length};
}

static bool scan_fail(struct scan *scan, const char *problem)
{
    scan->problem = problem;
    return false;
}

static void skip_space(struct scan *scan)
{
    while (scan->at < scan->end && (*scan->at == ' ' || *scan->at == '\t' || *scan->at == '\n' || *scan->at == '\r'))
        scan->at++;
}

static bool next_is(const struct scan *scan, char wanted)
{
    return scan->at < scan->end && *scan->at == wanted;
}

static bool step_over(struct scan *scan, char wanted)
{
    bool is_there = next_is(scan, wanted);
    scan->at += is_there;
    return is_there;
}

/* Stands behind a backslash. */
static bool scan_escape(struct scan *scan)
{
    static const char names[] = "\"\\/bfnrt";
    if (scan->at == scan->end)
        return scan_fail(scan, "the string does not end");
    if (*scan->at != 'u') {
        bool is_escape = memchr(names, *scan->at, sizeof(names) - 1) != NULL;
        return is_escape ? (scan->at++, true) : scan_fail(scan, "bad escape");
    }
    scan->at++;
    for (int i = 0; i < 4; i++, scan->at++)
        if (scan->at == scan->end || mc_hex_digit(*scan->at) < 0)
            return scan_fail(scan, "bad \\u escape");
    return true;
}

/* *text: between the quotes. */
static bool scan_string(struct scan *scan, struct mc_span *text)
{
    const char *start = scan->at + 1;
    if (!step_over(scan, '"'))
        return scan_fail(scan, "a name in quotes was expected");
    while (scan->at < scan->end) {
        if ((unsigned char)*scan->at < ' ')
            return scan_fail(scan, "control character in a string");
        char letter = *scan->at++;
        if (letter == '"') {
            *text = mc_span(start, (size_t)(scan->at - 1 - start));
            return true;
        }
        if (letter == '\\' && !scan_escape(scan))
            return false;
    }
    return scan_fail(scan, "the string does not end");
}

/* "name" : */
static bool scan_name(struct scan *scan, struct mc_span *name)
{
    skip_space(scan);
    if (!scan_string(scan, name))
        return false;
    skip_space(scan);
    return step_over(scan, ':') || scan_fail(scan, "a colon was expected");
}

static bool scan_digits(struct scan *scan)
{
    const char *from = scan->at;
    while (scan->at < scan->end && *scan->at >= '0' && *scan->at <= '9')
        scan->at++;
    return scan->at > from || scan_fail(scan, "a digit was expected");
}

static bool scan_number(struct scan *scan)
{
    step_over(scan, '-');
    if (!step_over(scan, '0') && !scan_digits(scan))
        return scan_fail(scan, "a value was expected");
    if (step_over(scan, '.') && !scan_digits(scan))
        return false;
    if (!step_over(scan, 'e') && !step_over(scan, 'E'))
        return true;
    if (!step_over(scan, '-'))
        step_over(scan, '+');
    return scan_digits(scan);
}

/* A string, a number, true, false, null. *text: of a string what is between the quotes. */
static bool scan_plain(struct scan *scan, struct mc_span *text)
{
    static const char *const words[] = {"true", "false", "null"};
    const char *start = scan->at;
    if (next_is(scan, '"'))
        return scan_string(scan, text);
    for (size_t i = 0; i < 3 && scan->at == start; i++) {
        size_t length = strlen(words[i]);
        if ((size_t)(scan->end - scan->at) >= length && memcmp(scan->at, words[i], length) == 0)
            scan->at += length;
    }
    bool is_fine = scan->at > start || scan_number(scan);
    *text = mc_span(start, (size_t)(scan->at - start));
    return is_fine;
}

static bool in_object(const struct scan *scan)
{
    return (scan->is_object[(scan->depth - 1) / 64] >> ((scan->depth - 1) % 64) & 1) != 0;
}

static bool open_level(struct scan *scan)
{
    if (scan->depth == MC_JSON_DEPTH_MAX)
        return scan_fail(scan, "nested too deep");
    uint64_t bit = (uint64_t)1 << (scan->depth % 64), *bits = &scan->is_object[scan->depth / 64];
    *bits = *scan->at == '{' ? *bits | bit : *bits & ~bit;
    scan->depth++;
    scan->at++;
    return true;
}

/* Behind a value: closes levels up to the next comma, or until none is open. */
static bool close_levels(struct scan *scan)
{
    struct mc_span name;
    while (scan->depth > 0) {
        skip_space(scan);
        if (step_over(scan, ','))
            return !in_object(scan) || scan_name(scan, &name);
        if (!step_over(scan, in_object(scan) ? '}' : ']'))
            return scan_fail(scan, "a comma or the end of a list or object was expected");
        scan->depth--;
    }
    return true;
}

/* Any value. *text: as scan_plain gives it. */
static bool scan_value(struct scan *scan, struct mc_span *text)
{
    struct mc_span inner;
    skip_space(scan);
    const char *start = scan->at;
    if (!next_is(scan, '{') && !next_is(scan, '['))
        return scan_plain(scan, text);
    do {
        skip_space(scan);
        if (next_is(scan, '{') || next_is(scan, '[')) {
            if (!open_level(scan))
                return false;
            skip_space(scan);
            if (!next_is(scan, in_object(scan) ? '}' : ']')) {
                if (in_object(scan) && !scan_name(scan, &inner))
                    return false;
                continue;
            }
        } else if (!scan_plain(scan, &inner)) {
            return false;
        }
        if (!close_levels(scan))
            return false;
    } while (scan->depth > 0);
    *text = mc_span(start, (size_t)(scan->at - start));
    return true;
}

/* ---- one after the other ---- */

static int cursor_fail(struct mc_json_cursor *cursor, const char *at, const char *problem)
{
    cursor->at = at;
    cursor->problem = problem;
    return MC_ERR_PROTOCOL;
}

int mc_json_open(struct mc_span text, char kind, struct mc_json_cursor *cursor)
{
    struct scan scan = scan_of(text);
    *cursor = (struct mc_json_cursor){.start = scan.at, .end = scan.end, .is_object = kind == '{'};
    skip_space(&scan);
    if (text.length == 0 || !next_is(&scan, kind))
        return cursor_fail(cursor, scan.at, kind == '{' ? "an object was expected" : "a list was expected");
    cursor->at = scan.at + 1;
    return 0;
}

int mc_json_next(struct mc_json_cursor *cursor)
{
    struct scan scan = {.at = cursor->at, .end = cursor->end};
    skip_space(&scan);
    if (step_over(&scan, cursor->is_object ? '}' : ']')) {
        skip_space(&scan);
        return scan.at == scan.end ? 0 : cursor_fail(cursor, scan.at, "more behind the end");
    }
    if (cursor->is_started && !step_over(&scan, ','))
        return cursor_fail(cursor, scan.at, "a comma or the end of a list or object was expected");
    skip_space(&scan);
    cursor->from = scan.at;
    if (cursor->is_object && !scan_name(&scan, &cursor->name))
        return cursor_fail(cursor, scan.at, scan.problem);
    skip_space(&scan);
    cursor->kind = scan.at < scan.end ? *scan.at : 0;
    if (!scan_value(&scan, &cursor->value))
        return cursor_fail(cursor, scan.at, scan.problem);
    cursor->at = scan.at;
    cursor->is_started = true;
    return 1;
}

bool mc_json_is(struct mc_span name, const char *text)
{
    return mc_span_equal(name, mc_span_string(text));
}

int mc_json_member(struct mc_span object, const char *name, struct mc_json_cursor *member)
{
    struct mc_json_cursor cursor;
    bool is_found = false;
    int rc = mc_json_open(object, '{', &cursor);
    if (rc == 0) {
        while ((rc = mc_json_next(&cursor)) == 1) {
            if (mc_json_is(cursor.name, name)) {
                *member = cursor;
                is_found = true;
            }
        }
    }
    if (rc < 0 || !is_found)
        *member = cursor;
    return rc < 0 ? rc : is_found;
}

bool mc_json_is_again(struct mc_span object, const struct mc_json_cursor *member)
{
    struct mc_json_cursor before;
    int rc = mc_json_open(object, '{', &before);
    while (rc >= 0 && mc_json_next(&before) == 1 && before.from != member->from)
        if (mc_span_equal(before.name, member->name))
            return true;
    return false;
}

void mc_json_where(struct mc_span text, const struct mc_json_cursor *cursor, int *line, int *column)
{
    *line = *column = 1;
    for (const char *at = scan_of(text).at; at < cursor->at; at++) {
        *line += *at == '\n';
        *column = *at == '\n' ? 1 : *column + 1;
    }
}

/* ---- by a path ---- */

static int digits(struct mc_span text, uint64_t *number)
{
    uint64_t value = 0;
    if (text.length == 0)
        return MC_ERR_PROTOCOL;
    for (size_t i = 0; i < text.length; i++) {
        unsigned digit = (unsigned)((const char *)text.data)[i] - '0';
        if (digit > 9 || value > (UINT64_MAX - digit) / 10)
            return MC_ERR_PROTOCOL;
        value = value * 10 + digit;
    }
    *number = value;
    return 0;
}

/* Is it the member of that name, the element of that index? */
static bool is_named(const struct mc_json_cursor *cursor, uint64_t index, struct mc_span part)
{
    uint64_t wanted;
    return cursor->is_object ? mc_span_equal(cursor->name, part) : digits(part, &wanted) == 0 && wanted == index;
}

/* Recursion is bounded by the path. */
int mc_json_find(struct mc_span text, const char *path, struct mc_span *value)
{
    struct scan scan = scan_of(text);
    struct mc_json_cursor cursor;
    struct mc_span found = mc_span(NULL, 0), whole;
    size_t length = strcspn(path, ".");
    char kind = 0;
    int rc;
    *value = mc_span(NULL, 0);
    skip_space(&scan);
    if (mc_json_open(text, next_is(&scan, '[') ? '[' : '{', &cursor) < 0) {
        bool is_plain = scan_value(&scan, &whole);
        skip_space(&scan);
        return is_plain && scan.at == scan.end ? 0 : MC_ERR_PROTOCOL;
    }
    for (uint64_t index = 0; (rc = mc_json_next(&cursor)) == 1; index++) {
        if (is_named(&cursor, index, mc_span(path, length))) {
            found = cursor.value;
            kind = cursor.kind;
        }
    }
    if (rc < 0 || kind == 0)
        return rc;
    if (path[length] == '.')
        return kind == '{' || kind == '[' ? mc_json_find(found, path + length + 1, value) : 0;
    *value = found;
    return 1;
}

int mc_json_find_number(struct mc_span text, const char *path, uint64_t *number)
{
    struct mc_span value;
    int rc = mc_json_find(text, path, &value);
    if (rc != 1)
        return rc;
    rc = digits(value, number);
    return rc < 0 ? rc : 1;
}

int mc_json_number(const struct mc_json_cursor *cursor, uint64_t *number)
{
    return cursor->kind >= '0' && cursor->kind <= '9' ? digits(cursor->value, number) : MC_ERR_PROTOCOL;
}

int mc_json_integer(const struct mc_json_cursor *cursor, int64_t *number)
{
    struct mc_span text = cursor->value;
    bool is_negative = cursor->kind == '-';
    uint64_t size;
    if (is_negative)
        text = mc_span((const char *)text.data + 1, text.length - 1);
    if ((!is_negative && (cursor->kind < '0' || cursor->kind > '9')) || digits(text, &size) < 0 || size > INT64_MAX)
        return MC_ERR_PROTOCOL;
    *number = is_negative ? -(int64_t)size : (int64_t)size;
    return 0;
}

int mc_json_real(const struct mc_json_cursor *cursor, double *number)
{
    char text[64];
    if ((cursor->kind != '-' && (cursor->kind < '0' || cursor->kind > '9')) || cursor->value.length >= sizeof(text))
        return MC_ERR_PROTOCOL;
    memcpy(text, cursor->value.data, cursor->value.length);
    text[cursor->value.length] = 0;
    double value = strtod(text, NULL);
    if (!isfinite(value))
        return MC_ERR_PROTOCOL;
    *number = value;
    return 0;
}

static int hex4(const char *at, const char *end, uint32_t *code)
{
    *code = 0;
    if (end - at < 4)
        return MC_ERR_PROTOCOL;
    for (int i = 0; i < 4; i++) {
        int digit = mc_hex_digit(at[i]);
        if (digit < 0)
            return MC_ERR_PROTOCOL;
        *code = *code << 4 | (uint32_t)digit;
    }
    return 0;
}

/* One \u escape, or two that are a pair, as UTF-8 in four; steps *at over it. Bytes or MC_ERR_PROTOCOL. */
static int unescape_unicode(const char **at, const char *end, char *four)
{
    uint32_t code, low;
    if (hex4(*at, end, &code) < 0 || (code >= 0xdc00 && code < 0xe000))
        return MC_ERR_PROTOCOL;
    *at += 4;
    if (code >= 0xd800 && code < 0xdc00) {
        if (end - *at < 6 || (*at)[0] != '\\' || (*at)[1] != 'u' || hex4(*at + 2, end, &low) < 0 || low < 0xdc00 ||
            low >= 0xe000)
            return MC_ERR_PROTOCOL;
        *at += 6;
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    int count = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const uint8_t lead[5] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (int i = count - 1; i > 0; i--, code >>= 6)
        four[i] = (char)(0x80 | (code & 0x3f));
    four[0] = (char)(lead[count] | code);
    return count;
}

int mc_json_unescape(const char **at, const char *end, char *four)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char name = *at < end ? *(*at)++ : 0;
    const char *found = name != 0 ? strchr(from, name) : NULL;
    if (found == NULL)
        return name == 'u' ? unescape_unicode(at, end, four) : MC_ERR_PROTOCOL;
    four[0] = to[found - from];
    return 1;
}

int mc_json_text(const struct mc_json_cursor *cursor, char *text, size_t size)
{
    const char *at = cursor->value.data, *end = at + cursor->value.length;
    size_t used = 0;
    if (cursor->kind != '"')
        return MC_ERR_PROTOCOL;
    while (at < end) {
        char four[4] = {*at++};
        bool is_escape = four[0] == '\\';
        int count = is_escape ? mc_json_unescape(&at, end, four) : 1;
        if (count < 0 || (is_escape && four[0] == 0))
            return MC_ERR_PROTOCOL;
        if (used + (size_t)count >= size)
            return MC_ERR_BUFFER_OVERFLOW;
        memcpy(text + used, four, (size_t)count);
        used += (size_t)count;
    }
    if (used >= size)
        return MC_ERR_BUFFER_OVERFLOW;
    text[used] = 0;
    return 0;
}

void mc_json_put_text(struct mc_buffer *out, const char *text)
{
    mc_buffer_append(out, "\"", 1);
    for (; *text != 0; text++) {
        if (*text == '"' || *text == '\\')
            mc_buffer_printf(out, "\\%c", *text);
        else if ((unsigned char)*text < ' ')
            mc_buffer_printf(out, "\\u%04x", (unsigned)*text);
        else
            mc_buffer_append(out, text, 1);
    }
    mc_buffer_append(out, "\"", 1);
}

static void begin_item(struct mc_json_writer *writer, const char *name)
{
    if (writer->has_items)
        mc_buffer_put_u8(writer->out, ',');
    if (writer->indent > 0 && writer->depth > 0)
        mc_buffer_printf(writer->out, "\n%*s", (int)(writer->indent * writer->depth), "");
    writer->has_items = true;
    if (name == NULL)
        return;
    mc_json_put_text(writer->out, name);
    mc_buffer_printf(writer->out, writer->indent > 0 ? ": " : ":");
}

void mc_json_begin(struct mc_json_writer *writer, const char *name, char bracket)
{
    begin_item(writer, name);
    mc_buffer_put_u8(writer->out, (uint8_t)bracket);
    writer->depth++;
    writer->has_items = false;
}

void mc_json_end(struct mc_json_writer *writer, char bracket)
{
    writer->depth--;
    if (writer->indent > 0 && writer->has_items)
        mc_buffer_printf(writer->out, "\n%*s", (int)(writer->indent * writer->depth), "");
    mc_buffer_put_u8(writer->out, (uint8_t)bracket);
    writer->has_items = true;
}

void mc_json_add_text(struct mc_json_writer *writer, const char *name, const char *text)
{
    begin_item(writer, name);
    mc_json_put_text(writer->out, text);
}

void mc_json_add_number(struct mc_json_writer *writer, const char *name, uint64_t number)
{
    begin_item(writer, name);
    mc_buffer_printf(writer->out, "%" PRIu64, number);
}

void mc_json_add_value(struct mc_json_writer *writer, const char *name, struct mc_span value)
{
    begin_item(writer, name);
    mc_buffer_append(writer->out, value.data, value.length);
}

void mc_json_add_bool(struct mc_json_writer *writer, const char *name, bool value)
{
    begin_item(writer, name);
    mc_buffer_printf(writer->out, value ? "true" : "false");
}

void mc_json_add_real(struct mc_json_writer *writer, const char *name, double number)
{
    char text[32];
    begin_item(writer, name);
    snprintf(text, sizeof(text), isfinite(number) ? "%.6g" : "null", number);
    mc_buffer_printf(writer->out, "%s%s", text, strpbrk(text, ".eu") == NULL ? ".0" : "");
}

/* ---- base64 ---- */

static const char letters[65] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void mc_base64_encode(struct mc_buffer *out, struct mc_span bytes)
{
    const uint8_t *at = bytes.data;
    for (size_t i = 0; i < bytes.length; i += 3) {
        size_t left = bytes.length - i;
        uint32_t group = (uint32_t)at[i] << 16;
        group |= left > 1 ? (uint32_t)at[i + 1] << 8 : 0;
        group |= left > 2 ? at[i + 2] : 0;
        char four[4] = {letters[group >> 18], letters[group >> 12 & 63], left > 1 ? letters[group >> 6 & 63] : '=',
                        left > 2 ? letters[group & 63] : '='};
        mc_buffer_append(out, four, 4);
    }
}

int mc_base64_decode(struct mc_buffer *out, struct mc_span text)
{
    const char *at = text.data;
    if (text.length % 4 != 0)
        return MC_ERR_PROTOCOL;
    for (size_t i = 0; i < text.length; i += 4) {
        bool is_last = i + 4 == text.length;
        size_t size = !is_last || at[i + 3] != '=' ? 3 : at[i + 2] != '=' ? 2 : 1;
        uint32_t group = 0;
        for (size_t j = 0; j < 4; j++) {
            const char *found = j > size || at[i + j] == 0 ? NULL : strchr(letters, at[i + j]);
            if (j <= size && found == NULL)
                return MC_ERR_PROTOCOL;
            group = group << 6 | (found == NULL ? 0 : (uint32_t)(found - letters));
        }
        uint8_t three[3] = {(uint8_t)(group >> 16), (uint8_t)(group >> 8), (uint8_t)group};
        mc_buffer_append(out, three, size);
    }
    return 0;
}
