/* Which disks a store node has, as its configuration says, and how they are used, as the environment says. Values that
 * make no sense are said in the log once and ignored: a node with fewer settings is better than none. */
#include "store/client/disks.h"

#include "base/variables.h"
#include "env/log.h"
#include "store/disk/disk.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define FREE_RATIO 0.9
#define BYTES_MIN ((uint64_t)MC_DISK_REGIONS_MIN * MC_DISK_REGION_BYTES)
#define BYTES_MAX ((uint64_t)MC_DISK_REGIONS_MAX * MC_DISK_REGION_BYTES)
#define OBJECTS_MIN 64u /* fewer and it would make room all the time */

struct use {              /* of all disks of the node */
    uint64_t limit;       /* bytes; 0: none */
    double free_ratio;    /* so much of what is free, unless there is another limit below it */
    uint64_t objects_max; /* as it was said; 0: nobody did */
    uint64_t budget;      /* bytes a day, of each disk; 0: any */
    enum mc_disk_policy policy;
    enum mc_disk_io_kind io_kind;
};

/* ---- the environment ---- */

static bool parse_number(const char *text, uint64_t *value)
{
    char *end;
    if (!isdigit((unsigned char)text[0]))
        return false;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return *end == 0 && errno == 0;
}

static bool parse_bool(const char *text, bool *value)
{
    static const char *const no[] = {"false", "0", "no", "off"}, *const yes[] = {"true", "1", "yes", "on"};
    for (size_t i = 0; i < COUNT(no); i++) {
        *value = strcasecmp(text, yes[i]) == 0;
        if (*value || strcasecmp(text, no[i]) == 0)
            return true;
    }
    return false;
}

/* Each takes a value into use, or says what would have been possible. */

static const char *take_bytes(const char *text, struct use *use)
{
    uint64_t bytes;
    if (!parse_number(text, &bytes))
        return "a number of bytes is expected";
    if (bytes != 0 && (use->limit == 0 || bytes < use->limit))
        use->limit = bytes;
    return NULL;
}

static const char *take_budget(const char *text, struct use *use)
{
    uint64_t bytes;
    if (!parse_number(text, &bytes))
        return "a number of bytes is expected";
    use->budget = bytes;
    return NULL;
}

static const char *take_keys(const char *text, struct use *use)
{
    uint64_t keys;
    if (!parse_number(text, &keys) || keys == 0)
        return "a number of objects is expected";
    use->objects_max = keys > OBJECTS_MIN ? keys : OBJECTS_MIN;
    return NULL;
}

static const char *take_ratio(const char *text, struct use *use)
{
    char *end;
    double ratio = strtod(text, &end);
    if (end == text || *end != 0 || !(ratio > 0 && ratio <= 1))
        return "a number above 0, up to 1, is expected";
    use->free_ratio = ratio;
    return NULL;
}

static const char *take_policy(const char *text, struct use *use)
{
    static const char *const names[] = {[MC_DISK_FIFO] = "fifo", [MC_DISK_LRU] = "lru", [MC_DISK_KEEP] = "none"};
    for (size_t i = 0; i < COUNT(names); i++) {
        if (strcasecmp(text, names[i]) == 0) {
            use->policy = (enum mc_disk_policy)i;
            return NULL;
        }
    }
    return "fifo, lru or none is expected";
}

static const char *take_eviction(const char *text, struct use *use)
{
    bool is_on;
    if (!parse_bool(text, &is_on))
        return "true or false is expected";
    if (!is_on)
        use->policy = MC_DISK_KEEP;
    return NULL;
}

static const char *take_uring(const char *text, struct use *use)
{
    bool is_on;
    if (!parse_bool(text, &is_on))
        return "true or false is expected";
    use->io_kind =
        is_on ? MC_DISK_IO_AUTO : MC_DISK_IO_THREADS; /* a kernel that forbids it is no reason to have none */
    return NULL;
}

static const char *take_backend(const char *text, struct use *use)
{
    static const char *const local[] = {"bucket", "file_per_key", "offset_allocator"};
    (void)use;
    for (size_t i = 0; i < COUNT(local); i++) {
        size_t length = strlen(local[i]);
        if (strncmp(text, local[i], length) == 0 &&
            (text[length] == 0 || strcmp(text + length, "_storage_backend") == 0))
            return NULL;
    }
    if (strncmp(text, "distributed", 11) == 0 || strncmp(text, "nvme_kv", 7) == 0)
        return "it makes no sense here: a node stores in files of its own, in directories on its own disks or on a "
               "file "
               "system that several mount";
    return "bucket_storage_backend, file_per_key_storage_backend and offset_allocator_storage_backend are known, and "
           "all "
           "mean the one way there is here";
}

/* In the order in which they count: a later one overrides. */
static const struct variable {
    enum mc_variable name, alias;
    const char *(*take)(const char *text, struct use *use);
} variables[] = {
#define NAME(name) MC_VARIABLE_##name
    {NAME(MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR), NAME(NONE), take_backend},
    {NAME(MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES), NAME(NONE), take_bytes},
    {NAME(MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE), NAME(MOONCAKE_BUCKET_MAX_TOTAL_SIZE), take_bytes},
    {NAME(MOONCAKE_OFFLOAD_BUCKET_MAX_PHYSICAL_BYTES), NAME(MOONCAKE_BUCKET_MAX_PHYSICAL_BYTES), take_bytes},
    {NAME(MOONCAKE_OFFLOAD_DISK_EVICTION_HIGH_WATERMARK_RATIO), NAME(MOONCAKE_DISK_EVICTION_HIGH_WATERMARK_RATIO),
     take_ratio},
    {NAME(MOONCAKE_OFFLOAD_TOTAL_KEYS_LIMIT), NAME(NONE), take_keys},
    {NAME(MOONCAKE_OFFLOAD_DAILY_WRITE_BYTES), NAME(NONE), take_budget},
    {NAME(MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY), NAME(MOONCAKE_BUCKET_EVICTION_POLICY), take_policy},
    {NAME(MOONCAKE_OFFLOAD_ENABLE_EVICTION), NAME(ENABLE_EVICTION), take_eviction},
    {NAME(MOONCAKE_OFFLOAD_USE_URING), NAME(MOONCAKE_USE_URING), take_uring},
#undef NAME
};

static void read_environment(struct use *use)
{
    static atomic_bool is_said; /* a process may open many stores */
    bool is_first = !atomic_exchange(&is_said, true);
    for (size_t i = 0; i < COUNT(variables); i++) {
        const struct variable *row = &variables[i];
        enum mc_variable name = row->name;
        const char *text = mc_variable_value(name);
        if (text == NULL)
            text = mc_variable_value(name = row->alias);
        if (text == NULL || text[0] == 0)
            continue;
        const char *problem = row->take(text, use);
        if (problem != NULL && is_first)
            mc_log(WARNING, "environment: %s=%.60s is ignored: %s", mc_variable_name(name), text, problem);
    }
}

/* ---- the paths ---- */

/* What a new process takes may be what an earlier one has there already: that counts as free. */
static uint64_t bytes_of(const char *path, const struct use *use)
{
    struct statvfs status;
    uint64_t bytes = use->limit;
    if (statvfs(path, &status) == 0) {
        double there = (double)mc_disk_bytes_there(path) + (double)status.f_bavail * (double)status.f_frsize;
        uint64_t most = (uint64_t)(there * use->free_ratio);
        bytes = bytes == 0 || most < bytes ? most : bytes;
    } else if (bytes == 0) {
        bytes = BYTES_MIN; /* what is wrong with the path is said when it is opened */
    }
    return bytes < BYTES_MAX ? bytes : BYTES_MAX;
}

/* Without blanks around it and slashes behind it, which would hide that it is a link. */
static char *trim(char *path)
{
    path += strspn(path, " \t");
    size_t length = strlen(path);
    while (length > 0 && (path[length - 1] == ' ' || path[length - 1] == '\t'))
        length--;
    while (length > 1 && path[length - 1] == '/')
        length--;
    path[length] = 0;
    return path;
}

static bool is_there(const struct mc_disks *disks, const char *path)
{
    for (uint32_t i = 0; i < disks->count; i++)
        if (strcmp(disks->list[i].path, path) == 0)
            return true;
    return false;
}

/* A slot's number, and the memory of an index, have an end. */
static uint32_t objects_of(const char *path, uint64_t bytes, const struct use *use)
{
    uint64_t wanted = use->objects_max != 0 ? use->objects_max : bytes / MC_DISK_OBJECT_BYTES;
    if (wanted <= MC_DISK_OBJECTS_MAX)
        return (uint32_t)use->objects_max;
    mc_log(WARNING, "the disk %s has at most %u objects, not %" PRIu64 " (%s): beyond that the oldest go", path,
           MC_DISK_OBJECTS_MAX, wanted,
           use->objects_max != 0 ? "MOONCAKE_OFFLOAD_TOTAL_KEYS_LIMIT" : "one for each 16 KiB of what it may take");
    return MC_DISK_OBJECTS_MAX;
}

static void disk_note(struct mc_disks *disks, char *given)
{
    const char *path = trim(given);
    if (path[0] == 0)
        return;
    if (is_there(disks, path)) {
        mc_log(WARNING, "the path of a disk, %s, is given twice: the node has one disk there", path);
        return;
    }
    if (disks->count == MC_OWNER_DISKS_MAX) {
        mc_log(WARNING, "at most %u disks: %s is ignored", MC_OWNER_DISKS_MAX, path);
        return;
    }
    disks->list[disks->count++].path = path;
}

int mc_disks_of(const struct mc_store_config *config, const struct mc_disks_told *told, struct mc_disks *disks)
{
    *disks = (struct mc_disks){.is_told = config->disk_paths == NULL};
    const char *paths = disks->is_told ? told->path : config->disk_paths;
    if (paths[0] == 0)
        return 0;
    char *rest = disks->text = strdup(paths);
    if (rest == NULL)
        return MC_ERR_NO_MEMORY;
    if (disks->is_told)
        disk_note(disks, rest);
    else
        for (char *path; (path = strsep(&rest, ",")) != NULL;)
            disk_note(disks, path);
    return 0;
}

void mc_disks_free(struct mc_disks *disks)
{
    free(disks->text);
    *disks = (struct mc_disks){0};
}

/* ---- how they are used ---- */

/* What the path lies in must be there: that it is not mounted on this node is no reason to fill another disk. */
static bool told_is_made(const struct mc_owner_disk_config *disk)
{
    if (disk->is_silent || mkdir(disk->path, 0777) == 0 || errno == EEXIST)
        return true;
    mc_log(ERROR,
           "the directory that the master names (--root_fs_dir), %s, cannot be made: %s; objects stay in memory only",
           disk->path, strerror(errno));
    return false;
}

static void disk_settle(struct mc_owner_disk_config *disk, uint64_t bytes, const struct use *use)
{
    disk->capacity = disk->is_silent ? BYTES_MIN : bytes != 0 ? bytes : bytes_of(disk->path, use);
    disk->objects_max = objects_of(disk->path, disk->capacity, use);
    disk->budget_bytes = use->budget;
    disk->policy = use->policy;
    disk->io_kind = use->io_kind;
}

void mc_disks_settle(const struct mc_store_config *config, const struct mc_disks_told *told, const bool *answers,
                     struct mc_disks *disks)
{
    struct use use = {.free_ratio = FREE_RATIO, .policy = MC_DISK_LRU};
    uint64_t bytes = disks->is_told ? 0 : config->disk_bytes;
    if (disks->count == 0)
        return;
    for (uint32_t i = 0; i < disks->count; i++)
        disks->list[i].is_silent = !answers[i];
    read_environment(&use);
    if (disks->is_told && !told_is_made(&disks->list[0])) {
        disks->count = 0;
        return;
    }
    if (disks->is_told && told->bytes != 0 && (use.limit == 0 || told->bytes < use.limit))
        use.limit = told->bytes;
    if (disks->is_told && told->keeps)
        use.policy = MC_DISK_KEEP;
    for (uint32_t i = 0; i < disks->count; i++)
        disk_settle(&disks->list[i], bytes, &use);
}
