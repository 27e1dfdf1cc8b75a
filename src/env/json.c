/* A small strict JSON scanner and base64. */
#include "env/json.h"

#include "base/error.h"

#include <stdlib.h>

struct scan {
    const char *at, *end;
    unsigned depth;
    struct mc_span *found;
    bool is_found;
};

static bool scan_value(struct scan *scan, const char *path);

static void skip_space(struct scan *scan)
{
    while (scan->at < scan->end && (*scan->at == ' ' || *scan->at == '\t' || *scan->at == '\n' || *scan->at == '\r'))
        scan->at++;
}

static bool scan_take(struct scan *scan, char wanted)
{
    skip_space(scan);
    if (scan->at == scan->end || *scan->at != wanted)
        return false;
    scan->at++;
    return true;
}

static bool scan_string(struct scan *scan, struct mc_span *text)
{
    if (!scan_take(scan, '"'))
        return false;
    const char *start = scan->at;
    while (scan->at < scan->end && *scan->at != '"') {
        if ((unsigned char)*scan->at < ' ')
            return false;
        scan->at += *scan->at == '\\' ? 2 : 1;
    }
    if (scan->at >= scan->end) /* a backslash at the end steps over it */
        return false;
    *text = mc_span(start, (size_t)(scan->at - start));
    scan->at++;
    return true;
}

/* The rest of the path behind its first part, when that is `part`; else NULL. */
static const char *follow(const char *path, struct mc_span part)
{
    if (path == NULL || strlen(path) < part.length || part.length == 0 || memcmp(path, part.data, part.length) != 0)
        return NULL;
    const char *rest = path + part.length;
    return *rest == 0 ? rest : *rest == '.' ? rest + 1 : NULL;
}

static bool scan_object(struct scan *scan, const char *path)
{
    struct mc_span name;
    if (scan_take(scan, '}'))
        return true;
    do {
        if (!scan_string(scan, &name) || !scan_take(scan, ':') || !scan_value(scan, follow(path, name)))
            return false;
    } while (scan_take(scan, ','));
    return scan_take(scan, '}');
}

static bool scan_array(struct scan *scan, const char *path)
{
    char *rest = NULL;
    unsigned long wanted = path == NULL || *path < '0' || *path > '9' ? UINT32_MAX : strtoul(path, &rest, 10);
    if (scan_take(scan, ']'))
        return true;
    for (unsigned long index = 0;; index++) {
        const char *inner = index != wanted || rest == NULL || (*rest != '.' && *rest != 0) ? NULL
                            : *rest == 0                                                    ? rest
                                                                                            : rest + 1;
        if (!scan_value(scan, inner))
            return false;
        if (!scan_take(scan, ','))
            return scan_take(scan, ']');
    }
}

/* Numbers, true, false, null. */
static bool scan_word(struct scan *scan, struct mc_span *text)
{
    const char *start = scan->at;
    while (scan->at < scan->end && ((*scan->at >= '0' && *scan->at <= '9') || (*scan->at >= 'a' && *scan->at <= 'z') ||
                                    *scan->at == '-' || *scan->at == '+' || *scan->at == '.' || *scan->at == 'E'))
        scan->at++;
    *text = mc_span(start, (size_t)(scan->at - start));
    bool is_number = text->length > 0 && (*start == '-' || (*start >= '0' && *start <= '9'));
    return is_number || mc_span_equal(*text, mc_span_string("true")) || mc_span_equal(*text, mc_span_string("false")) ||
           mc_span_equal(*text, mc_span_string("null"));
}

/* path: what is wanted of this value; "" the value itself; NULL nothing. Recursion is bounded by MC_JSON_DEPTH_MAX. */
static bool scan_value(struct scan *scan, const char *path)
{
    struct mc_span text = mc_span(NULL, 0);
    skip_space(scan);
    if (scan->at == scan->end)
        return false;
    const char *start = scan->at;
    if (*start == '{' || *start == '[') {
        scan->at++;
        if (++scan->depth > MC_JSON_DEPTH_MAX)
            return false;
        if (!(*start == '{' ? scan_object(scan, path) : scan_array(scan, path)))
            return false;
        scan->depth--;
        text = mc_span(start, (size_t)(scan->at - start));
    } else if (!(*start == '"' ? scan_string(scan, &text) : scan_word(scan, &text))) {
        return false;
    }
    if (path != NULL && *path == 0) {
        *scan->found = text;
        scan->is_found = true;
    }
    return true;
}

int mc_json_find(struct mc_span text, const char *path, struct mc_span *value)
{
    struct scan scan = {text.data, (const char *)text.data + text.length, 0, value, false};
    *value = mc_span(NULL, 0);
    if (!scan_value(&scan, path))
        return MC_ERR_PROTOCOL;
    skip_space(&scan);
    if (scan.at != scan.end)
        return MC_ERR_PROTOCOL;
    return scan.is_found ? 1 : 0;
}

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

int mc_json_find_number(struct mc_span text, const char *path, uint64_t *number)
{
    struct mc_span value;
    int rc = mc_json_find(text, path, &value);
    if (rc != 1)
        return rc;
    rc = digits(value, number);
    return rc < 0 ? rc : 1;
}

/* ---- one after the other ---- */

int mc_json_open(struct mc_span text, char kind, struct mc_json_cursor *cursor)
{
    struct scan scan = {text.data, (const char *)text.data + text.length, 0, NULL, false};
    *cursor = (struct mc_json_cursor){.end = scan.end, .is_object = kind == '{'};
    if (text.length == 0 || !scan_take(&scan, kind))
        return MC_ERR_PROTOCOL;
    cursor->at = scan.at;
    return 0;
}

int mc_json_next(struct mc_json_cursor *cursor)
{
    struct scan scan = {cursor->at, cursor->end, 1, &cursor->value, false};
    bool is_end = scan_take(&scan, cursor->is_object ? '}' : ']');
    if (is_end) {
        skip_space(&scan);
        return scan.at == scan.end ? 0 : MC_ERR_PROTOCOL;
    }
    if (cursor->is_started && !scan_take(&scan, ','))
        return MC_ERR_PROTOCOL;
    if (cursor->is_object && (!scan_string(&scan, &cursor->name) || !scan_take(&scan, ':')))
        return MC_ERR_PROTOCOL;
    skip_space(&scan);
    cursor->kind = scan.at < scan.end ? *scan.at : 0;
    if (!scan_value(&scan, ""))
        return MC_ERR_PROTOCOL;
    cursor->at = scan.at;
    cursor->is_started = true;
    return 1;
}

bool mc_json_is(struct mc_span name, const char *text)
{
    return mc_span_equal(name, mc_span_string(text));
}

int mc_json_number(const struct mc_json_cursor *cursor, uint64_t *number)
{
    return cursor->kind >= '0' && cursor->kind <= '9' ? digits(cursor->value, number) : MC_ERR_PROTOCOL;
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
