#include "base/error.h"

#include "base/last_words.h"

#include <stdio.h>
#include <stdlib.h>

const char *mc_error_name(int code)
{
    switch (code) {
#define MC_ERROR_CASE(name, value, text)                                                                               \
    case value:                                                                                                        \
        return #name;
        MC_ERROR_MAP(MC_ERROR_CASE)
#undef MC_ERROR_CASE
    default:
        return code >= 0 ? "OK" : "UNKNOWN";
    }
}

const char *mc_error_text(int code)
{
    switch (code) {
#define MC_ERROR_CASE(name, value, text)                                                                               \
    case value:                                                                                                        \
        return text;
        MC_ERROR_MAP(MC_ERROR_CASE)
#undef MC_ERROR_CASE
    default:
        return code >= 0 ? "success" : "unknown error code";
    }
}

const char *mc_version(void)
{
    return MC_VERSION;
}

void (*mc_last_words)(const char *text, size_t length);

_Noreturn void mc_assert_failed(const char *file, int line, const char *text)
{
    char words[1024];
    int length = snprintf(words, sizeof(words), "%.400s:%d: assertion failed: %.500s\n", file, line, text);
    if (mc_last_words != NULL)
        mc_last_words(words, (size_t)length);
    else
        fputs(words, stderr);
    abort();
}
