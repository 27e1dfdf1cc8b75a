#include "env/unread.h"

#include "base/checksum.h"
#include "base/variables.h"
#include "env/log.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define NAME_BYTES 128 /* longer ones are nobody's */

extern char **environ;

static void tell_of(const char *name)
{
    const struct mc_variable_row *row = mc_variable_find(name);
    if (row == NULL) {
        const char *nearest = mc_variable_nearest(name);
        mc_log(WARNING, "environment: %s is not known and changes nothing%s%s%s", name,
               nearest == NULL ? "" : "; did you mean ", nearest == NULL ? "" : nearest, nearest == NULL ? "" : "?");
    } else if (row->use == MC_VARIABLE_NEEDLESS) {
        mc_log(INFO, "environment: %s changes nothing here: %s", name, row->text);
    } else if (row->use == MC_VARIABLE_ABSENT) {
        mc_log(WARNING, "environment: %s changes nothing here: %s", name, row->text);
    }
}

static atomic_bool is_told;

void mc_unread_told(void)
{
    atomic_store(&is_told, true);
}

void mc_unread_hangup(void)
{
    mc_log(INFO, "SIGHUP changes nothing: files of keys and certificates are read anew when they change, everything "
                 "else with the next start");
}

void mc_unread_tell(void)
{
    enum mc_log_level level;
    if (atomic_exchange(&is_told, true))
        return;
    const char *asked = mc_variable(MC_LOG_LEVEL);
    if (asked != NULL && asked[0] != 0 && !mc_log_parse_level(asked, &level))
        mc_log(WARNING, "MC_LOG_LEVEL=%.40s is no level: TRACE, DEBUG, INFO, WARNING or ERROR; INFO is used", asked);
    const char *way = mc_variable(MC_CHECKSUM_BY), *chosen = mc_crc32c_way();
    if (way != NULL && way[0] != 0 && !mc_crc32c_knows(way))
        mc_log(WARNING, "MC_CHECKSUM_BY=%.40s is no way of this build; %s is used", way, chosen);
    for (char **one = environ; one != NULL && *one != NULL; one++) {
        char name[NAME_BYTES];
        const char *equals = strchr(*one, '=');
        size_t length = equals == NULL ? sizeof(name) : (size_t)(equals - *one);
        if (length >= sizeof(name) || equals[1] == 0)
            continue;
        memcpy(name, *one, length);
        name[length] = 0;
        if (mc_variable_is_setting(name, equals + 1))
            tell_of(name);
    }
}
