#include "base/size.h"

#include <inttypes.h>
#include <stdio.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

uint64_t mc_size_of_real(double number)
{
    return number >= 0x1p64 ? UINT64_MAX : number > 0 ? (uint64_t)number : 0;
}

void mc_size_text(char *text, size_t size, uint64_t bytes)
{
    static const char *const units[] = {"KB", "MB", "GB", "TB"};
    double value = (double)bytes;
    size_t unit = 0;
    if (bytes < 1024) {
        snprintf(text, size, "%llu B", (unsigned long long)bytes);
        return;
    }
    /* 1023.999 KB would be printed as 1024.00 KB. */
    for (value /= 1024; value >= 1023.995 && unit + 1 < LENGTH(units); unit++)
        value /= 1024;
    snprintf(text, size, "%.2f %s", value, units[unit]);
}

void mc_seconds_text(char *text, size_t size, uint64_t seconds)
{
    if (seconds < 120)
        snprintf(text, size, "%" PRIu64 " s", seconds);
    else if (seconds < 7200)
        snprintf(text, size, "%" PRIu64 " min", seconds / 60);
    else if (seconds < 172800)
        snprintf(text, size, "%" PRIu64 " h %" PRIu64 " min", seconds / 3600, seconds / 60 % 60);
    else
        snprintf(text, size, "%" PRIu64 " days %" PRIu64 " h", seconds / 86400, seconds / 3600 % 24);
}
