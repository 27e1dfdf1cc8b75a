/* Finding the driver that the process has loaded. */
#include "base/variables.h"
#include "gpu/driver.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

struct mc_gpu_table mc_driver;

struct driver_symbol {
    size_t offset;
    const char *symbol;
};

static const struct driver_symbol needed[] = {
#define ROW(name, symbol, arguments) {offsetof(struct mc_gpu_table, name), symbol},
    MC_DRIVER_NEEDED(ROW)};
static const struct driver_symbol optional[] = {MC_DRIVER_OPTIONAL(ROW)
#undef ROW
};

/* By bytes: a function pointer is no void pointer in C, but is one here (POSIX says so of dlsym). */
static void *load(void *library, const struct driver_symbol *entry)
{
    void *function = dlsym(library, entry->symbol);
    memcpy((char *)&mc_driver + entry->offset, &function, sizeof(function));
    return function;
}

int mc_driver_find(const char **missing)
{
    const char *path = mc_variable(MC_CUDA_LIBRARY);
    void *library = dlopen(path != NULL && path[0] != 0 ? path : "libcuda.so.1", RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
    if (library == NULL)
        return 0;
    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
        if (load(library, &needed[i]) != NULL)
            continue;
        *missing = needed[i].symbol;
        (void)dlclose(library);
        return -1;
    }
    for (size_t i = 0; i < sizeof(optional) / sizeof(optional[0]); i++)
        (void)load(library, &optional[i]);
    return 1; /* the handle is kept: the library stays */
}
