/* HTTP/1 heads and bodies; see message.h. */
#include "net/message.h"

#include "base/error.h"

#include <stdlib.h>
#include <strings.h>

#define BAD_REQUEST (-400)
#define TOO_LARGE (-431)
#define NOT_DONE (-501)
#define NO_MEMORY (-503)
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

bool mc_head_lists(const struct mc_head *head, const char *name, const char *word)
{
    for (size_t i = 0; i < head->header_count; i++) {
        if (strcasecmp(head->headers[i].name, name) == 0 && list_has(head->headers[i].value, word))
            return true;
    }
    return false;
}

/* ---- heads ---- */

/* Cuts "name: value" into a header. */
static int parse_header(struct mc_head *head, const struct mc_message_rules *rules, char *line, size_t length)
{
    char *colon = memchr(line, ':', length);
    if (head->header_count == rules->headers_max)
        return TOO_LARGE;
    if (colon == NULL || !is_token(line, (size_t)(colon - line)))
        return BAD_REQUEST; /* also a folded line, which begins with a blank */
    *colon = 0;
    char *value = colon + 1, *end = line + length;
    while (value < end && (*value == ' ' || *value == '\t'))
        value++;
    while (end > value && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    if (!is_clean(value, (size_t)(end - value)))
        return BAD_REQUEST;
    *end = 0;
    head->headers[head->header_count++] = (struct mc_header){line, value};
    return 0;
}

/* Cuts the text into lines: the first is left to the caller, the others become headers. */
static int parse_lines(struct mc_head *head, const struct mc_message_rules *rules, size_t size)
{
    int rc = 0;
    char *end = head->text + size;
    for (char *line = head->text, *stop; line < end && rc == 0; line = stop + 1) {
        stop = memchr(line, '\n', (size_t)(end - line));
        mc_assert(stop != NULL);
        bool is_whole = stop > line && stop[-1] == '\r';
        size_t length = (size_t)(stop - line) - is_whole;
        line[length] = 0;
        if ((!is_whole && !rules->is_lenient) || (line == head->text && !is_clean(line, length)))
            return BAD_REQUEST;
        if (line != head->text && length > 0)
            rc = parse_header(head, rules, line, length);
    }
    return rc;
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
    head->keeps_alive = head->is_http_1_0 ? mc_head_lists(head, "connection", "keep-alive")
                                          : !mc_head_lists(head, "connection", "close");
    return parse_framing(head);
}

static int parse_request(struct mc_head *head)
{
    char *method = head->text, *target = strchr(method, ' ');
    char *version = target == NULL ? NULL : strchr(target + 1, ' ');
    if (version == NULL || !is_token(method, (size_t)(target - method)))
        return BAD_REQUEST;
    *target++ = 0;
    *version++ = 0;
    if (head->is_lenient && strncasecmp(target, "http://", 7) == 0)
        target = strchr(target + 7, '/');
    if (target == NULL || (target[0] != '/' && (!head->is_lenient || strcmp(target, "*") != 0)) ||
        strchr(target, '\t') != NULL)
        return BAD_REQUEST;
    head->method = method;
    head->target = target;
    int rc = parse_version(head, version);
    head->expects_continue = !head->is_http_1_0 && mc_head_lists(head, "expect", "100-continue");
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
    if (head->status < 100)
        return BAD_REQUEST;
    if (is_head || head->status < 200 || head->status == 204 || head->status == 304)
        head->framing = MC_FRAMING_NONE;
    else if (head->framing == MC_FRAMING_NONE)
        head->framing = MC_FRAMING_CLOSE;
    return rc;
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

/* The bytes up to and with the empty line, as text of the head's own. */
static int copy_head(struct mc_head *head, const struct mc_message_rules *rules, const char *in, size_t length)
{
    mc_head_free(head);
    size_t size = head_length(in, length < rules->head_max ? length : rules->head_max);
    if (size == 0)
        return length >= rules->head_max ? TOO_LARGE : 0;
    head->text = malloc(size + 1);
    if (head->text == NULL)
        return NO_MEMORY;
    memcpy(head->text, in, size);
    head->text[size] = 0;
    head->is_lenient = rules->is_lenient;
    int rc = parse_lines(head, rules, size);
    return rc < 0 ? rc : (int)size;
}

int mc_head_read_request(struct mc_head *head, const struct mc_message_rules *rules, const char *in, size_t length)
{
    int size = copy_head(head, rules, in, length);
    int rc = size <= 0 ? size : parse_request(head);
    return rc < 0 ? rc : size;
}

int mc_head_read_response(struct mc_head *head, const struct mc_message_rules *rules, const char *in, size_t length,
                          bool is_head)
{
    int size = copy_head(head, rules, in, length);
    int rc = size <= 0 ? size : parse_response(head, is_head);
    return rc < 0 ? rc : size;
}

void mc_head_free(struct mc_head *head)
{
    free(head->text);
    memset(head, 0, sizeof(*head));
}

/* ---- bodies ---- */

void mc_body_begin(struct mc_body *body, const struct mc_head *head)
{
    *body = (struct mc_body){.framing = head->framing, .is_lenient = head->is_lenient};
    body->left = head->framing == MC_FRAMING_CLOSE ? UINT64_MAX : head->framing == MC_FRAMING_LENGTH ? head->length : 0;
    body->state = head->framing == MC_FRAMING_CHUNKED ? MC_BODY_CHUNK_LINE
                  : body->left > 0                    ? MC_BODY_DATA
                                                      : MC_BODY_DONE;
}

void mc_body_took(struct mc_body *body, uint64_t bytes)
{
    mc_assert(bytes <= body->left);
    if (body->framing != MC_FRAMING_CLOSE)
        body->left -= bytes;
    if (body->left == 0)
        body->state = body->framing == MC_FRAMING_CHUNKED ? MC_BODY_CHUNK_END : MC_BODY_DONE;
}

/* "1a3;extension" of at most 16 digits. */
static bool parse_chunk_line(const char *line, size_t length, uint64_t *size)
{
    size_t i = 0;
    *size = 0;
    for (; i < length && i < 16 && mc_hex_digit(line[i]) >= 0; i++)
        *size = *size << 4 | (uint64_t)mc_hex_digit(line[i]);
    bool has_digits = i > 0;
    while (i < length && (line[i] == ' ' || line[i] == '\t'))
        i++;
    return has_digits && (i == length || line[i] == ';');
}

/* The line end behind a chunk's bytes, known to be wrong by its first byte. */
static int read_chunk_end(struct mc_body *body, const char *in, size_t length)
{
    if (length == 0)
        return 0;
    size_t size = body->is_lenient && in[0] == '\n' ? 1 : 2;
    if ((size == 2 && in[0] != '\r') || (length >= size && in[size - 1] != '\n'))
        return -1;
    if (length < size)
        return 0;
    body->state = MC_BODY_CHUNK_LINE;
    return (int)size;
}

int mc_body_line(struct mc_body *body, const char *in, size_t length)
{
    if (body->state == MC_BODY_CHUNK_END)
        return read_chunk_end(body, in, length);
    const char *end = length == 0 ? NULL : memchr(in, '\n', length);
    if (end == NULL)
        return length > MC_MESSAGE_LINE_MAX ? -1 : 0;
    bool is_whole = end > in && end[-1] == '\r';
    size_t used = (size_t)(end - in) + 1, size = used - 1 - is_whole;
    if ((!is_whole && !body->is_lenient) || size > MC_MESSAGE_LINE_MAX || memchr(in, 0, size) != NULL)
        return -1;
    if (body->state == MC_BODY_CHUNK_LINE) {
        if (!parse_chunk_line(in, size, &body->left))
            return -1;
        body->state = body->left == 0 ? MC_BODY_TRAILER : MC_BODY_DATA;
        return (int)used;
    }
    body->trailer_bytes += used;
    body->state = size == 0 ? MC_BODY_DONE : MC_BODY_TRAILER;
    return body->trailer_bytes > MC_MESSAGE_TRAILER_MAX ? -1 : (int)used;
}

/* ---- words ---- */

const char *mc_http_reason(int status)
{
    static const struct {
        int status;
        const char *reason;
    } reasons[] = {
        {200, "OK"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {413, "Content Too Large"},
        {415, "Unsupported Media Type"},
        {422, "Unprocessable Content"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {502, "Bad Gateway"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
    };
    for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++) {
        if (reasons[i].status == status)
            return reasons[i].reason;
    }
    return "Status";
}

int64_t mc_uri_decode(struct mc_span in, char *out)
{
    const char *at = in.data;
    int64_t length = 0;
    for (size_t i = 0; i < in.length; i++) {
        if (at[i] != '%') {
            out[length++] = at[i];
            continue;
        }
        if (in.length - i < 3 || mc_hex_digit(at[i + 1]) < 0 || mc_hex_digit(at[i + 2]) < 0)
            return -1;
        out[length++] = (char)(mc_hex_digit(at[i + 1]) << 4 | mc_hex_digit(at[i + 2]));
        i += 2;
    }
    return length;
}
