#include "base/trace.h"

#include <stdio.h>

atomic_bool mc_traces_wanted;

/* So many lower-case hex digits; upper case is none, as the standard has it. False: there are fewer. */
static bool hex_read(const char **text, unsigned digits, uint64_t *value)
{
    for (*value = 0; digits > 0; digits--, (*text)++) {
        int digit = mc_hex_digit(**text);
        if (digit < 0 || (**text >= 'A' && **text <= 'F'))
            return false;
        *value = *value << 4 | (unsigned)digit;
    }
    return true;
}

static bool dash_read(const char **text)
{
    return *(*text)++ == '-';
}

bool mc_trace_parse(const char *text, struct mc_trace_context *trace)
{
    struct mc_trace_context read = {.flags = 0};
    uint64_t version, flags;
    *trace = read;
    bool is_whole = hex_read(&text, 2, &version) && dash_read(&text) && hex_read(&text, 16, &read.id.high) &&
                    hex_read(&text, 16, &read.id.low) && dash_read(&text) && hex_read(&text, 16, &read.span) &&
                    dash_read(&text) && hex_read(&text, 2, &flags);
    if (!is_whole || version == 0xff || (*text != 0 && (version == 0 || *text != '-')) || !mc_trace_is_valid(&read))
        return false;
    read.flags = (uint8_t)flags;
    *trace = read;
    return true;
}

void mc_trace_format(char text[MC_TRACE_TEXT_MAX], const struct mc_trace_context *trace)
{
    snprintf(text, MC_TRACE_TEXT_MAX, "00-%016llx%016llx-%016llx-%02x", (unsigned long long)trace->id.high,
             (unsigned long long)trace->id.low, (unsigned long long)trace->span, (unsigned)trace->flags);
}
