/* Finding the driver that the process has loaded. */
#include "base/variables.h"
#include "gpu/driver.h"

#include <dlfcn.h>
#include <stdio.h>
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

/* Programs may load it as libcuda.so, libcuda.so.1, or by the name with its version, from wherever it lies. */
void mc_driver_name(char name[MC_DRIVER_NAME_MAX])
{
    const char *path = mc_variable(MC_CUDA_LIBRARY), *slash = path == NULL ? NULL : strrchr(path, '/');
    const char *file = slash != NULL ? slash + 1 : path;
    snprintf(name, MC_DRIVER_NAME_MAX, "%s", file != NULL && file[0] != 0 ? file : "libcuda.so");
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
