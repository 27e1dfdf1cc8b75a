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

static bool take(struct scan *scan, char wanted)
{
    skip_space(scan);
    if (scan->at == scan->end || *scan->at != wanted)
        return false;
    scan->at++;
    return true;
}

static bool scan_string(struct scan *scan, struct mc_span *text)
{
    if (!take(scan, '"'))
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
    if (take(scan, '}'))
        return true;
    do {
        if (!scan_string(scan, &name) || !take(scan, ':') || !scan_value(scan, follow(path, name)))
            return false;
    } while (take(scan, ','));
    return take(scan, '}');
}

static bool scan_array(struct scan *scan, const char *path)
{
    char *rest = NULL;
    unsigned long wanted = path == NULL || *path < '0' || *path > '9' ? UINT32_MAX : strtoul(path, &rest, 10);
    if (take(scan, ']'))
        return true;
    for (unsigned long index = 0;; index++) {
        const char *inner = index != wanted || rest == NULL || (*rest != '.' && *rest != 0) ? NULL
                            : *rest == 0                                                    ? rest
                                                                                            : rest + 1;
        if (!scan_value(scan, inner))
            return false;
        if (!take(scan, ','))
            return take(scan, ']');
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

int mc_json_find_number(struct mc_span text, const char *path, uint64_t *number)
{
    struct mc_span digits;
    int rc = mc_json_find(text, path, &digits);
    uint64_t value = 0;
    if (rc != 1)
        return rc;
    if (digits.length == 0)
        return MC_ERR_PROTOCOL;
    for (size_t i = 0; i < digits.length; i++) {
        unsigned digit = (unsigned)((const char *)digits.data)[i] - '0';
        if (digit > 9 || value > (UINT64_MAX - digit) / 10)
            return MC_ERR_PROTOCOL;
        value = value * 10 + digit;
    }
    *number = value;
    return 1;
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
