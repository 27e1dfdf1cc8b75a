#include "base/error.h"

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

_Noreturn void mc_assert_failed(const char *file, int line, const char *text)
{
    fprintf(stderr, "%s:%d: assertion failed: %s\n", file, line, text);
    abort();
}
