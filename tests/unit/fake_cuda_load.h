/* Loads the stand-in of the CUDA driver into a unit test, and calls it. */
#ifndef MC_TEST_FAKE_CUDA_LOAD_H
#define MC_TEST_FAKE_CUDA_LOAD_H

#include "fake_cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fake_cuda {
#define FAKE_CUDA_MEMBER(type, name, arguments) type(*name) arguments;
    FAKE_CUDA_FUNCTIONS(FAKE_CUDA_MEMBER)
#undef FAKE_CUDA_MEMBER
};

static inline const char *fake_cuda_path(const char *name)
{
    static char path[4096];
    const char *build = getenv("MC_BUILD");
    snprintf(path, sizeof(path), "%s/tests/lib%s.so", build == NULL ? "." : build, name);
    return path;
}

/* From now on the process has a driver; whether the library has noticed is another question. 0 or -1. */
static inline int fake_cuda_load(struct fake_cuda *fake)
{
    const char *path = fake_cuda_path("fake_cuda");
    setenv("MC_CUDA_LIBRARY", path, 1);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL), *function;
    if (library == NULL)
        return -1;
#define FAKE_CUDA_FIND(type, name, arguments)                                                                          \
    function = dlsym(library, #name);                                                                                  \
    if (function == NULL)                                                                                              \
        return -1;                                                                                                     \
    memcpy(&fake->name, &function, sizeof(function));
    FAKE_CUDA_FUNCTIONS(FAKE_CUDA_FIND)
#undef FAKE_CUDA_FIND
    return 0;
}

#endif
