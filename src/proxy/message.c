/* HTTP/1 heads and bodies; see message.h. */
#include "proxy/message.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define BAD_REQUEST (-400)
#define TOO_LARGE (-431)
#define NOT_DONE (-501)
#define BAD_VERSION (-505)

/* What RFC 9110 calls a token. */
static bool is_token(const char *text, size_t length)
{
    static const char others[] = "!#$%&'*+-.^_`|~";
    for (size_t i = 0; i < length; i++) {
        unsigned char at = (unsigned char)text[i];
        bool is_letter = (at >= '0' && at <= '9') || ((at | 0x20) >= 'a' && (at | 0x20) <= 'z');
        if (!is_letter && (at == 0 || strchr(others, at) == NULL))
            return false;
    }
    return length > 0;
}

static bool is_clean(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        unsigned char at = (unsigned char)text[i];
        if ((at < ' ' && at != '\t') || at == 0x7f)
            return false;
    }
    return true;
}

const char *mc_head_find(const struct mc_head *head, const char *name)
{
    for (size_t i = 0; i < head->header_count; i++) {
        if (strcasecmp(head->headers[i].name, name) == 0)
            return head->headers[i].value;
    }
    return NULL;
}

/* Is word one of the elements of a list separated by commas? */
static bool list_has(const char *list, const char *word)
{
    size_t length = strlen(word);
    while (*list != 0) {
        list += strspn(list, ", \t");
        size_t size = strcspn(list, ", \t;");
        if (size == length && strncasecmp(list, word, length) == 0)
            return true;
        list += strcspn(list, ",");
    }
    return false;
}

static bool any_has(const struct mc_head *head, const char *name, const char *word)
{
    for (size_t i = 0; i < head->header_count; i++) {
        if (strcasecmp(head->headers[i].name, name) == 0 && list_has(head->headers[i].value, word))
            return true;
    }
    return false;
}

bool mc_header_is_hop(const struct mc_head *head, const char *name)
{
    static const char *const names[] = {"connection",
                                        "keep-alive",
                                        "proxy-authenticate",
                                        "proxy-authorization",
                                        "proxy-connection",
                                        "te",
                                        "trailer",
                                        "transfer-encoding",
                                        "upgrade",
                                        "host",
                                        "content-length",
                                        "expect"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcasecmp(name, names[i]) == 0)
            return true;
    }
    return any_has(head, "connection", name);
}

/* ---- heads ---- */

/* Cuts "name: value" into a header. line ends with a zero. */
static int parse_header(struct mc_head *head, char *line, size_t length)
{
    char *colon = memchr(line, ':', length);
    if (head->header_count == MC_MESSAGE_HEADERS_MAX)
        return TOO_LARGE;
    if (colon == NULL || !is_token(line, (size_t)(colon - line)))
        return BAD_REQUEST;
    *colon = 0;
    char *value = colon + 1, *end = line + length;
    value += strspn(value, " \t");
    while (end > value && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    if (!is_clean(value, (size_t)(end - value)) || strlen(value) != (size_t)(line + length - value))
        return BAD_REQUEST;
    *end = 0;
    head->headers[head->header_count++] = (struct mc_header){line, value};
    return 0;
}

/* Cuts the text into lines: the first is left to the caller, the others become headers. */
static int parse_lines(struct mc_head *head, size_t size)
{
    char *line = head->text, *end = head->text + size;
    bool is_first = true;
    while (line < end) {
        char *stop = memchr(line, '\n', (size_t)(end - line));
        mc_assert(stop != NULL);
        if (stop == line || stop[-1] != '\r')
            return BAD_REQUEST;
        size_t length = (size_t)(stop - 1 - line);
        stop[-1] = 0;
        if (!is_first && length > 0) {
            int rc = parse_header(head, line, length);
            if (rc < 0)
                return rc;
        } else if (is_first && !is_clean(line, length)) {
            return BAD_REQUEST;
        }
        is_first = false;
        line = stop + 1;
    }
    return 0;
}

static int parse_number(const char *text, uint64_t *number)
{
    uint64_t value = 0;
    for (; *text >= '0' && *text <= '9' && value < UINT64_MAX / 100; text++)
        value = value * 10 + (uint64_t)(*text - '0');
    *number = value;
    return *text == 0 ? 0 : BAD_REQUEST;
}

/* How the body's end is found. No framing is chosen for a message without either header. */
static int parse_framing(struct mc_head *head)
{
    const char *encoding = NULL, *length = NULL;
    for (size_t i = 0; i < head->header_count; i++) {
        const char *value = head->headers[i].value;
        if (strcasecmp(head->headers[i].name, "transfer-encoding") == 0) {
            if (encoding != NULL)
                return BAD_REQUEST;
            encoding = value;
        } else if (strcasecmp(head->headers[i].name, "content-length") == 0) {
            if (value[0] == 0 || (length != NULL && strcmp(length, value) != 0))
                return BAD_REQUEST;
            length = value;
        }
    }
    if (encoding != NULL && length != NULL)
        return BAD_REQUEST;
    if (encoding != NULL) {
        head->framing = MC_FRAMING_CHUNKED;
        return strcasecmp(encoding, "chunked") != 0 ? NOT_DONE : head->is_http_1_0 ? BAD_REQUEST : 0;
    }
    if (length == NULL)
        return 0;
    head->framing = MC_FRAMING_LENGTH;
    return parse_number(length, &head->length);
}

static int parse_version(struct mc_head *head, const char *text)
{
    if (strncmp(text, "HTTP/1.", 7) != 0 || (text[7] != '0' && text[7] != '1') || text[8] != 0)
        return strncmp(text, "HTTP/", 5) == 0 ? BAD_VERSION : BAD_REQUEST;
    head->is_http_1_0 = text[7] == '0';
    head->keeps_alive =
        head->is_http_1_0 ? any_has(head, "connection", "keep-alive") : !any_has(head, "connection", "close");
    return 0;
}

static int parse_request(struct mc_head *head)
{
    char *method = head->text, *target = strchr(method, ' ');
    char *version = target == NULL ? NULL : strchr(target + 1, ' ');
    if (version == NULL || !is_token(method, (size_t)(target - method)))
        return BAD_REQUEST;
    *target++ = 0;
    *version++ = 0;
    if (target[0] != '/' || strchr(target, '\t') != NULL)
        return BAD_REQUEST;
    head->method = method;
    head->target = target;
    int rc = parse_version(head, version);
    if (rc == 0)
        rc = parse_framing(head);
    head->expects_continue = !head->is_http_1_0 && any_has(head, "expect", "100-continue");
    return rc;
}

static int parse_response(struct mc_head *head, bool is_head)
{
    char *version = head->text;
    if (strlen(version) < 12 || version[8] != ' ' || (version[12] != ' ' && version[12] != 0))
        return BAD_REQUEST;
    for (size_t i = 9; i < 12; i++) {
        if (version[i] < '0' || version[i] > '9')
            return BAD_REQUEST;
        head->status = head->status * 10 + version[i] - '0';
    }
    version[8] = 0;
    int rc = parse_version(head, version);
    if (rc == 0)
        rc = parse_framing(head);
    if (head->status < 100)
        return BAD_REQUEST;
    if (is_head || head->status < 200 || head->status == 204 || head->status == 304)
        head->framing = MC_FRAMING_NONE;
    else if (head->framing == MC_FRAMING_NONE)
        head->framing = MC_FRAMING_CLOSE;
    return rc;
}

/* The bytes up to and with the empty line, as text of the head's own. */
static int take(struct mc_head *head, struct evbuffer *in, size_t *size)
{
    struct evbuffer_ptr end = evbuffer_search(in, "\r\n\r\n", 4, NULL);
    if (end.pos < 0)
        return evbuffer_get_length(in) > MC_MESSAGE_HEAD_MAX ? TOO_LARGE : 0;
    *size = (size_t)end.pos + 4;
    if (*size > MC_MESSAGE_HEAD_MAX)
        return TOO_LARGE;
    memset(head, 0, sizeof(*head));
    head->text = malloc(*size + 1);
    if (head->text == NULL || evbuffer_remove(in, head->text, *size) != (ev_ssize_t)*size)
        return -503;
    head->text[*size] = 0;
    int rc = parse_lines(head, *size);
    return rc < 0 ? rc : 1;
}

int mc_head_take_request(struct mc_head *head, struct evbuffer *in)
{
    size_t size = 0;
    mc_head_free(head);
    /* An empty line before a request is an old client's habit behind the body of the one before. */
    char start[2];
    while (evbuffer_copyout(in, start, 2) == 2 && start[0] == '\r' && start[1] == '\n')
        (void)evbuffer_drain(in, 2);
    int rc = take(head, in, &size);
    if (rc > 0) {
        rc = parse_request(head);
        rc = rc < 0 ? rc : 1;
    }
    return rc;
}

int mc_head_take_response(struct mc_head *head, struct evbuffer *in, bool is_head)
{
    size_t size = 0;
    mc_head_free(head);
    int rc = take(head, in, &size);
    if (rc > 0) {
        rc = parse_response(head, is_head);
        rc = rc < 0 ? rc : 1;
    }
    return rc;
}

void mc_head_free(struct mc_head *head)
{
    free(head->text);
    memset(head, 0, sizeof(*head));
}

/* ---- bodies ---- */

void mc_body_begin(struct mc_body *body, const struct mc_head *head)
{
    *body = (struct mc_body){.framing = head->framing};
    body->left = head->framing == MC_FRAMING_CLOSE ? UINT64_MAX : head->framing == MC_FRAMING_LENGTH ? head->length : 0;
    body->state = head->framing == MC_FRAMING_CHUNKED ? MC_BODY_CHUNK_LINE : MC_BODY_DATA;
    if (body->state == MC_BODY_DATA && body->left == 0)
        body->state = MC_BODY_DONE;
}

/* "1a3;extension" of at most 16 digits. */
static bool parse_chunk_line(const char *line, uint64_t *size)
{
    size_t digits = 0;
    *size = 0;
    for (; digits < 16; digits++) {
        unsigned char at = (unsigned char)line[digits];
        int digit = at >= '0' && at <= '9'                     ? at - '0'
                    : (at | 0x20) >= 'a' && (at | 0x20) <= 'f' ? (at | 0x20) - 87
                                                               : -1;
        if (digit < 0)
            break;
        *size = *size << 4 | (uint64_t)digit;
    }
    line += digits + strspn(line + digits, " \t");
    return digits > 0 && (*line == 0 || *line == ';') && *size < UINT64_MAX / 2;
}

/* The line end behind a chunk's bytes, known to be wrong by its first byte. */
static int decode_chunk_end(struct mc_body *body, struct evbuffer *in)
{
    char end[2];
    ev_ssize_t there = evbuffer_copyout(in, end, 2);
    if ((there > 0 && end[0] != '\r') || (there == 2 && end[1] != '\n'))
        return -1;
    if (there < 2)
        return 0;
    body->state = MC_BODY_CHUNK_LINE;
    return evbuffer_drain(in, 2) == 0 ? 1 : -1;
}

/* One line of the chunked form. 1: a line was used; 0: it is not complete; -1: it is none. */
static int decode_line(struct mc_body *body, struct evbuffer *in)
{
    size_t length = 0;
    if (body->state == MC_BODY_CHUNK_END)
        return decode_chunk_end(body, in);
    char *line = evbuffer_readln(in, &length, EVBUFFER_EOL_CRLF_STRICT);
    if (line == NULL)
        return evbuffer_get_length(in) > MC_MESSAGE_LINE_MAX ? -1 : 0;
    int rc = length > MC_MESSAGE_LINE_MAX || strlen(line) != length ? -1 : 1;
    if (rc > 0 && body->state == MC_BODY_CHUNK_LINE) {
        rc = parse_chunk_line(line, &body->left) ? 1 : -1;
        body->state = body->left == 0 ? MC_BODY_TRAILER : MC_BODY_DATA;
    } else if (rc > 0) {
        body->trailer_bytes += length + 2;
        body->state = length == 0 ? MC_BODY_DONE : MC_BODY_TRAILER;
        rc = body->trailer_bytes > MC_MESSAGE_TRAILER_MAX ? -1 : 1;
    }
    free(line);
    return rc;
}

int mc_body_decode(struct mc_body *body, struct evbuffer *in, struct evbuffer *out)
{
    while (body->state != MC_BODY_DONE) {
        if (body->state != MC_BODY_DATA) {
            int rc = decode_line(body, in);
            if (rc <= 0)
                return rc;
            continue;
        }
        size_t there = evbuffer_get_length(in);
        if (there == 0)
            return 0;
        size_t part = there < body->left ? there : (size_t)body->left;
        if (evbuffer_remove_buffer(in, out, part) != (int)part)
            return -1;
        if (body->framing != MC_FRAMING_CLOSE)
            body->left -= part;
        if (body->left == 0)
            body->state = body->framing == MC_FRAMING_CHUNKED ? MC_BODY_CHUNK_END : MC_BODY_DONE;
    }
    return 1;
}
