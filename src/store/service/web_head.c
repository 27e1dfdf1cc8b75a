/* Parses the head of an HTTP request. */
#include "store/service/web_head.h"

#include <strings.h>

#define HEADERS_MAX 100
#define BAD_REQUEST (-400)
#define HEAD_TOO_LARGE (-431)
#define NOT_IMPLEMENTED (-501)
#define BAD_VERSION (-505)

bool mc_web_is(struct mc_span text, const char *word)
{
    return mc_span_equal(text, mc_span_string(word));
}

static bool is_word(struct mc_span text, const char *word)
{
    return text.length == strlen(word) && strncasecmp(text.data, word, text.length) == 0;
}

static bool is_token(struct mc_span text)
{
    const unsigned char *at = text.data;
    for (size_t i = 0; i < text.length; i++)
        if (at[i] <= ' ' || at[i] >= 0x7f || strchr("()<>@,;:\\\"/[]?={}", at[i]) != NULL)
            return false;
    return text.length > 0;
}

static struct mc_span trimmed(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\t'))
        at++;
    while (end > at && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    return mc_span(at, (size_t)(end - at));
}

/* Is the word one of a list separated by commas? */
static bool has_word(struct mc_span list, const char *word)
{
    const char *at = list.data, *end = at + list.length;
    while (at < end) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        const char *stop = comma == NULL ? end : comma;
        if (is_word(trimmed(at, stop), word))
            return true;
        at = comma == NULL ? end : comma + 1;
    }
    return false;
}

/* "/path?query", or "http://host/path?query" as a proxy is asked. */
static int parse_target(struct mc_span target, struct mc_web_head *head)
{
    const char *at = target.data, *end = at + target.length;
    if (target.length > 7 && strncasecmp(at, "http://", 7) == 0) {
        at = memchr(at + 7, '/', (size_t)(end - at) - 7);
        if (at == NULL)
            return BAD_REQUEST;
    }
    if (at == end || (*at != '/' && !mc_web_is(target, "*")))
        return BAD_REQUEST;
    for (const char *one = at; one < end; one++)
        if ((unsigned char)*one <= ' ' || *one == 0x7f)
            return BAD_REQUEST;
    const char *query = memchr(at, '?', (size_t)(end - at));
    head->path = mc_span(at, (size_t)((query == NULL ? end : query) - at));
    return 0;
}

static int parse_request_line(const char *at, const char *end, struct mc_web_head *head)
{
    const char *first = memchr(at, ' ', (size_t)(end - at));
    const char *last = memrchr(at, ' ', (size_t)(end - at));
    if (first == NULL || first == last)
        return BAD_REQUEST;
    head->method = mc_span(at, (size_t)(first - at));
    struct mc_span version = mc_span(last + 1, (size_t)(end - last - 1));
    if (!is_token(head->method) || version.length != 8 || memcmp(version.data, "HTTP/", 5) != 0)
        return BAD_REQUEST;
    if (!mc_web_is(version, "HTTP/1.1") && !mc_web_is(version, "HTTP/1.0"))
        return BAD_VERSION;
    head->is_kept_alive = last[8] == '1';
    return parse_target(mc_span(first + 1, (size_t)(last - first - 1)), head);
}

static bool parse_length(struct mc_span text, uint64_t *length)
{
    const char *at = text.data;
    uint64_t value = 0;
    if (text.length == 0 || text.length > 18)
        return false;
    for (size_t i = 0; i < text.length; i++) {
        if (at[i] < '0' || at[i] > '9')
            return false;
        value = value * 10 + (uint64_t)(at[i] - '0');
    }
    *length = value;
    return true;
}

struct seen {
    bool length;
};

static int parse_header(const char *at, const char *end, struct mc_web_head *head, struct seen *seen)
{
    const char *colon = memchr(at, ':', (size_t)(end - at));
    if (colon == NULL || !is_token(mc_span(at, (size_t)(colon - at))))
        return BAD_REQUEST; /* also a folded line, which begins with a blank */
    struct mc_span name = mc_span(at, (size_t)(colon - at)), value = trimmed(colon + 1, end);
    if (is_word(name, "content-length")) {
        uint64_t length;
        if (!parse_length(value, &length) || (seen->length && length != head->content_length))
            return BAD_REQUEST;
        head->content_length = length;
        seen->length = true;
    } else if (is_word(name, "transfer-encoding")) {
        if (!is_word(value, "chunked") || head->is_chunked)
            return NOT_IMPLEMENTED;
        head->is_chunked = true;
    } else if (is_word(name, "connection")) {
        if (has_word(value, "close"))
            head->is_kept_alive = false;
        else if (has_word(value, "keep-alive"))
            head->is_kept_alive = true;
    } else if (is_word(name, "expect")) {
        head->is_continue_expected = is_word(value, "100-continue");
    }
    return 0;
}

/* Bytes up to and with the empty line, 0 while it is not there. */
static size_t head_length(const char *text, size_t length)
{
    for (size_t i = 0; i + 1 < length; i++) {
        if (text[i] != '\n')
            continue;
        if (text[i + 1] == '\n')
            return i + 2;
        if (text[i + 1] == '\r' && i + 2 < length && text[i + 2] == '\n')
            return i + 3;
    }
    return 0;
}

int mc_web_parse_head(const char *text, size_t length, struct mc_web_head *head)
{
    struct seen seen = {false};
    size_t total = head_length(text, length < MC_WEB_HEAD_MAX ? length : MC_WEB_HEAD_MAX);
    int rc = 0, line_number = 0;
    *head = (struct mc_web_head){.content_length = 0};
    if (total == 0)
        return length >= MC_WEB_HEAD_MAX ? HEAD_TOO_LARGE : 0;
    if (memchr(text, 0, total) != NULL)
        return BAD_REQUEST;
    for (const char *at = text; rc == 0; line_number++) {
        const char *newline = memchr(at, '\n', total - (size_t)(at - text));
        const char *end = newline > at && newline[-1] == '\r' ? newline - 1 : newline;
        if (end == at && line_number > 0)
            break;
        if (line_number > HEADERS_MAX)
            return HEAD_TOO_LARGE;
        rc = line_number == 0 ? parse_request_line(at, end, head) : parse_header(at, end, head, &seen);
        at = newline + 1;
        if ((size_t)(at - text) >= total && rc == 0)
            return BAD_REQUEST; /* began with an empty line */
    }
    if (rc == 0 && head->is_chunked && seen.length)
        return BAD_REQUEST;
    return rc < 0 ? rc : (int)total;
}

bool mc_web_parse_chunk(struct mc_span line, uint64_t *size)
{
    const char *at = line.data;
    size_t i = 0;
    uint64_t value = 0;
    for (; i < line.length && i < 16; i++) {
        int digit = at[i] >= '0' && at[i] <= '9'   ? at[i] - '0'
                    : at[i] >= 'a' && at[i] <= 'f' ? at[i] - 'a' + 10
                    : at[i] >= 'A' && at[i] <= 'F' ? at[i] - 'A' + 10
                                                   : -1;
        if (digit < 0)
            break;
        value = value << 4 | (uint64_t)digit;
    }
    *size = value;
    return i > 0 && (i == line.length || at[i] == ';' || at[i] == ' ' || at[i] == '\t');
}

static int hex(char digit)
{
    return digit >= '0' && digit <= '9'   ? digit - '0'
           : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10
           : digit >= 'A' && digit <= 'F' ? digit - 'A' + 10
                                          : -1;
}

int64_t mc_web_decode(struct mc_span in, char *out)
{
    const char *at = in.data;
    int64_t length = 0;
    for (size_t i = 0; i < in.length; i++) {
        if (at[i] != '%') {
            out[length++] = at[i];
            continue;
        }
        if (in.length - i < 3 || hex(at[i + 1]) < 0 || hex(at[i + 2]) < 0)
            return -1;
        out[length++] = (char)(hex(at[i + 1]) << 4 | hex(at[i + 2]));
        i += 2;
    }
    return length;
}
