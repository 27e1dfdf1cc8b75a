/* The limit of open files. */
#include "env/limits.h"

#include "env/log.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>

uint64_t mc_file_limit(void)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_NOFILE, &limit) != 0 ? 1024 : limit.rlim_cur;
}

void mc_file_limit_raise(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    rlim_t wanted = limit.rlim_max < MC_FILE_LIMIT_RAISED_MAX ? limit.rlim_max : MC_FILE_LIMIT_RAISED_MAX;
    if (limit.rlim_cur >= wanted)
        return;
    limit.rlim_cur = wanted;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        mc_log(WARNING, "the limit of open files cannot be raised: %s", strerror(errno));
}
