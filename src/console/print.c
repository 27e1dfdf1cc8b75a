/* Values out of answers, and how they are printed. */
#include "console/console.h"

#include "base/size.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

uint64_t mc_console_number(struct mc_span json, const char *path)
{
    uint64_t number = 0;
    return mc_json_find_number(json, path, &number) == 1 ? number : 0;
}

double mc_console_real(struct mc_span json, const char *path)
{
    struct mc_span value;
    char text[64];
    if (mc_json_find(json, path, &value) != 1 || value.length >= sizeof(text))
        return 0;
    memcpy(text, value.data, value.length);
    text[value.length] = 0;
    return strtod(text, NULL);
}

uint64_t mc_console_whole(struct mc_span json, const char *path)
{
    return mc_size_of_real(mc_console_real(json, path));
}

bool mc_console_bool(struct mc_span json, const char *path)
{
    struct mc_span value;
    return mc_json_find(json, path, &value) == 1 && mc_span_equal(value, mc_span_string("true"));
}

/* Control characters of ASCII, and those that UTF-8 writes as C2 80 to C2 9F. */
static bool is_order(const uint8_t *at, const uint8_t *end)
{
    return *at < ' ' || *at == 0x7f || (*at == 0xc2 && at + 1 < end && at[1] >= 0x80 && at[1] < 0xa0);
}

const char *mc_console_text(struct mc_span json, const char *path, char *text, size_t size)
{
    struct mc_span value;
    size_t used = 0;
    text[0] = 0;
    if (mc_json_find(json, path, &value) != 1)
        return text;
    for (const char *at = value.data, *end = at + value.length; at < end;) {
        char four[4];
        int length = 1;
        if (*at == '\\') {
            at++;
            length = mc_json_unescape(&at, end, four);
            if (length < 0)
                break;
        } else {
            four[0] = *at++;
            if ((uint8_t)four[0] == 0xc2 && at < end && ((uint8_t)*at & 0xc0) == 0x80) { /* one character */
                four[1] = *at++;
                length = 2;
            }
        }
        if (is_order((const uint8_t *)four, (const uint8_t *)four + length)) {
            four[0] = '?';
            length = 1;
        }
        if (used + (size_t)length >= size)
            break;
        memcpy(text + used, four, (size_t)length);
        used += (size_t)length;
    }
    text[used] = 0;
    return text;
}

const char *mc_console_size(char text[32], uint64_t bytes)
{
    mc_size_text(text, 32, bytes);
    return text;
}

const char *mc_console_count(char text[32], uint64_t number)
{
    char digits[24];
    int length = snprintf(digits, sizeof(digits), "%" PRIu64, number), at = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            text[at++] = ',';
        text[at++] = digits[i];
    }
    text[at] = 0;
    return text;
}

const char *mc_console_time(char text[32], uint64_t seconds)
{
    mc_seconds_text(text, 32, seconds);
    return text;
}

void mc_console_put_json(FILE *out, struct mc_span json)
{
    const uint8_t *at = json.data, *end = at + json.length;
    for (const uint8_t *from = at; from < end; from = at) { /* fflush says whether it was written */
        while (at < end && (*at < ' ' || !is_order(at, end)))
            at++;
        (void)fwrite(from, 1, (size_t)(at - from), out);
        if (at < end) {
            at += *at == 0xc2;
            fprintf(out, "\\u%04x", (unsigned)*at++);
        }
    }
}

void mc_console_list_add(struct mc_console *console, bool *is_begun, struct mc_span element)
{
    fprintf(console->out, *is_begun ? ",\n" : "[\n");
    *is_begun = true;
    mc_console_put_json(console->out, element);
}

void mc_console_list_end(struct mc_console *console, bool is_begun)
{
    fprintf(console->out, is_begun ? "\n]\n" : "[]\n");
}
