/* Opens the machine's libssl. */
#include "env/openssl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static struct mc_openssl table;
static char problem[256];

static const char *const names[] = {"libssl.so.3", "libssl.so.1.1"};

/* By bytes: a function pointer is no void pointer in C, but is one here (POSIX says so of dlsym). */
static const char *find_all(void *library)
{
#define FIND(type, field, symbol, parameters)                                                                          \
    {                                                                                                                  \
        void *found = dlsym(library, symbol);                                                                          \
        if (found == NULL)                                                                                             \
            return symbol;                                                                                             \
        memcpy((void *)&table.field, &found, sizeof(found));                                                           \
    }
    MC_OPENSSL_MAP(FIND)
#undef FIND
    return NULL;
}

static void open_library(void)
{
    void *library = NULL;
    size_t i = 0;
    for (; library == NULL && i < sizeof(names) / sizeof(names[0]); i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(problem, sizeof(problem),
                 "TLS and keys need OpenSSL, and this machine has neither %s nor %s: install the package libssl3 or "
                 "libssl1.1 "
                 "(Debian, Ubuntu) or openssl-libs (Fedora, RHEL)",
                 names[0], names[1]);
        return;
    }
    const char *missing = find_all(library); /* the handle is kept: the library stays */
    if (missing != NULL)
        snprintf(problem, sizeof(problem), "TLS and keys need OpenSSL 1.1.1 or later: %s of this machine has no %s",
                 names[i - 1], missing);
}

const struct mc_openssl *mc_openssl_open(char *error, size_t error_size)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_library);
    if (problem[0] == 0)
        return &table;
    snprintf(error, error_size, "%s", problem);
    return NULL;
}
