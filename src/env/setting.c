#include "env/setting.h"

#include "env/log.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

uint64_t mc_setting_number_of(enum mc_variable variable, const char *unit, uint64_t least, uint64_t most,
                              uint64_t fallback)
{
    const char *text = mc_variable_value(variable);
    if (text == NULL || text[0] == 0)
        return fallback;
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (text[0] >= '0' && text[0] <= '9' && *end == 0 && errno == 0 && value >= least && value <= most)
        return value;
    mc_log(WARNING, "%s=%.40s is not a number%s from %" PRIu64 " to %" PRIu64 "; %" PRIu64 " is used",
           mc_variable_name(variable), text, unit, least, most, fallback);
    return fallback;
}

unsigned mc_processors(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    long count = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : sysconf(_SC_NPROCESSORS_ONLN);
    return count < 1 ? 1 : (unsigned)count; /* the second where a set is too small for all that there are */
}

uint32_t mc_threads_by_processors(unsigned share, uint32_t most)
{
    uint32_t count = mc_processors() / share;
    return count < 1 ? 1 : count > most ? most : count;
}
