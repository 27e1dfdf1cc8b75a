/* Which disks a store node has, as its configuration says. */
#include "store/client/disks.h"

#include "env/log.h"
#include "store/disk/disk.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#define FREE_PERCENT 90u

/* Of the environment; 0: it says nothing that is a number. */
static uint64_t limit_bytes(void)
{
    const char *text = getenv("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES");
    char *end;
    if (text == NULL || text[0] == 0)
        return 0;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (*end == 0 && errno == 0 && text[0] != '-')
        return value;
    mc_log(WARNING, "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=%.40s is no number of bytes and ignored", text);
    return 0;
}

/* What a new process takes may be what an earlier one has there already: that counts as free. */
static uint64_t bytes_of(const char *path, uint64_t wanted)
{
    struct statvfs status;
    uint64_t limit = wanted != 0 ? wanted : limit_bytes();
    if (wanted != 0 || statvfs(path, &status) != 0)
        return limit;
    uint64_t bytes = mc_disk_bytes_there(path) + (uint64_t)status.f_bavail * status.f_frsize;
    bytes = bytes / 100 * FREE_PERCENT;
    return limit != 0 && limit < bytes ? limit : bytes;
}

void mc_disks_free(struct mc_disks *disks)
{
    free(disks->text);
    *disks = (struct mc_disks){0};
}

int mc_disks_of(const struct mc_store_config *config, struct mc_disks *disks)
{
    *disks = (struct mc_disks){0};
    if (config->disk_paths == NULL || config->disk_paths[0] == 0)
        return 0;
    disks->text = strdup(config->disk_paths);
    if (disks->text == NULL)
        return MC_ERR_NO_MEMORY;
    char *rest = disks->text;
    for (char *path; (path = strsep(&rest, ",")) != NULL;) {
        if (path[0] == 0)
            continue;
        if (disks->count == MC_OWNER_DISKS_MAX) {
            mc_log(WARNING, "at most %u disks: %s and what follows is ignored", MC_OWNER_DISKS_MAX, path);
            break;
        }
        disks->list[disks->count++] = (struct mc_owner_disk_config){
            .path = path, .capacity = bytes_of(path, config->disk_bytes), .keep_hit = true};
    }
    return 0;
}
