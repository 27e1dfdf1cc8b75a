/* What limits the size of a segment: the memory limit of this process's cgroup and what the machine has left. */
#include "store/segment/memory_inside.h"
#include "store/segment/pages.h"
#include "env/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#define CGROUP_DEPTH_MAX 64u
#define PATH_BYTES 4096u
#define TMPFS 0x01021994 /* f_type */
#define KEEP_SHARE 4u    /* a segment that was left is kept unless a quarter more could be had */

/* The number in a file, or after `label` in it; 0 when there is none ("max"). */
static uint64_t number_read(const char *path, const char *label)
{
    char text[PATH_BYTES];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t length = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (length <= 0)
        return 0;
    text[length] = 0;
    const char *at = text;
    if (label != NULL) {
        size_t label_length = strlen(label);
        while (at != NULL &&
               (strncmp(at, label, label_length) != 0 || (at[label_length] != ' ' && at[label_length] != ':'))) {
            at = strchr(at, '\n');
            at = at == NULL ? NULL : at + 1;
        }
        if (at == NULL)
            return 0;
        at += label_length + 1;
    }
    return strtoull(at, NULL, 10);
}

struct cgroup_files { /* of one version of the interface */
    const char *limit, *used, *reclaimable;
};
static const struct cgroup_files cgroup_v2 = {"memory.max", "memory.current", "inactive_file"};
static const struct cgroup_files cgroup_v1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};

static uint64_t cgroup_number(const char *directory, const char *name, const char *label)
{
    char path[PATH_BYTES + 64];
    snprintf(path, sizeof(path), "%s/%s", directory, name);
    return number_read(path, label);
}

/* From the group itself up to the mount point; a level that cannot be seen from inside a container is passed over. */
static void cgroup_walk(const char *root, const char *group, const struct cgroup_files *files,
                        struct mc_memory_limits *limits)
{
    char directory[PATH_BYTES];
    int length = snprintf(directory, sizeof(directory), "%s%s", root, strcmp(group, "/") == 0 ? "" : group);
    if (length < 0 || (size_t)length >= sizeof(directory))
        return;
    for (unsigned depth = 0; depth < CGROUP_DEPTH_MAX; depth++) {
        uint64_t limit = cgroup_number(directory, files->limit, NULL);
        if (limit > 0 && limit < MC_CAPACITY_MAX) { /* v1 says "none" with a number near 2^63 */
            /* Cache of files that nobody uses makes room when memory is asked for. */
            uint64_t used = mc_sub_to_zero(cgroup_number(directory, files->used, NULL),
                                           cgroup_number(directory, "memory.stat", files->reclaimable));
            if (limits->cgroup_limit == 0 ||
                mc_sub_to_zero(limit, used) < mc_sub_to_zero(limits->cgroup_limit, limits->cgroup_used)) {
                limits->cgroup_limit = limit;
                limits->cgroup_used = used;
            }
        }
        char *slash = strrchr(directory, '/');
        if (strlen(directory) <= strlen(root) || slash == NULL)
            return;
        *slash = 0;
    }
}

/* True when the comma separated list has `memory` in it. */
static bool has_memory_controller(const char *list)
{
    for (const char *at = list; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        size_t length = strcspn(at, ",");
        if (length == 6 && strncmp(at, "memory", 6) == 0)
            return true;
    }
    return false;
}

void mc_memory_limits_read_from(const char *membership, const char *mount, const char *meminfo,
                                struct mc_memory_limits *limits)
{
    char line[PATH_BYTES], root[PATH_BYTES];
    *limits = (struct mc_memory_limits){0};
    limits->machine_available = number_read(meminfo, "MemAvailable") << 10;
    FILE *file = fopen(membership, "re");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) { /* "number:controllers:group" */
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':');
        char *group = controllers == NULL ? NULL : strchr(controllers + 1, ':');
        if (group == NULL || group[1] != '/')
            continue;
        *controllers++ = 0;
        *group++ = 0;
        if (controllers[0] == 0) {
            cgroup_walk(mount, group, &cgroup_v2, limits);
            snprintf(root, sizeof(root), "%.2000s/unified",
                     mount); /* where systems with both versions have the second */
            cgroup_walk(root, group, &cgroup_v2, limits);
        } else if (has_memory_controller(controllers)) {
            snprintf(root, sizeof(root), "%.2000s/memory", mount);
            cgroup_walk(root, group, &cgroup_v1, limits);
        }
    }
    if (file != NULL)
        fclose(file);
}

void mc_memory_limits_read(struct mc_memory_limits *limits)
{
    mc_memory_limits_read_from("/proc/self/cgroup", "/sys/fs/cgroup", "/proc/meminfo", limits);
}

uint64_t mc_memory_limits_left(const struct mc_memory_limits *limits, const char **reason)
{
    uint64_t left = UINT64_MAX;
    *reason = NULL;
    if (limits->cgroup_limit > 0) {
        left = mc_sub_to_zero(limits->cgroup_limit, limits->cgroup_used);
        *reason = "the memory limit of this container or service (cgroup)";
    }
    if (limits->machine_available > 0 && limits->machine_available < left) {
        left = limits->machine_available;
        *reason = "the memory that is available on this machine";
    }
    return left;
}

uint64_t mc_memory_capacity(uint64_t wanted, const struct mc_memory_limits *limits, const char **reason)
{
    const char *limited_by;
    uint64_t left = mc_memory_limits_left(limits, &limited_by);
    uint64_t usable = left == UINT64_MAX ? UINT64_MAX : left / 10 * 9;
    *reason = wanted > usable ? limited_by : NULL;
    return (wanted > usable ? usable : wanted) & ~(uint64_t)(MC_PAGE_BYTES - 1);
}

uint64_t mc_memory_capacity_with(const struct mc_segment_left *left, uint64_t wanted,
                                 const struct mc_memory_limits *limits, const char **reason)
{
    struct mc_memory_limits credited = *limits;
    const char *unused;
    if (credited.machine_available > 0)
        credited.machine_available += left->bytes;
    credited.cgroup_used = mc_sub_to_zero(credited.cgroup_used, left->bytes);
    uint64_t capacity = mc_memory_capacity(wanted, &credited, reason);
    if (*reason == NULL || left->capacity == 0 || left->capacity > wanted ||
        left->capacity > mc_memory_limits_left(&credited, &unused) ||
        capacity > left->capacity + left->capacity / KEEP_SHARE)
        return capacity;
    if (left->capacity == (wanted & ~(uint64_t)(MC_PAGE_BYTES - 1)))
        *reason = NULL;
    return left->capacity;
}

int mc_memory_capacity_in(const char *directory, uint64_t wanted, const struct mc_memory_limits *limits,
                          uint64_t until_ns, uint64_t *capacity, const char **reason)
{
    bool is_named = directory != NULL && directory[0] != 0;
    struct mc_segment_left left = {0, 0};
    struct statfs status;
    *reason = NULL;
    *capacity = 0;
    if (is_named) {
        int rc = mc_segment_left_behind(directory, wanted, until_ns, &left);
        if (rc < 0) {
            mc_log(ERROR,
                   "what an earlier process may have left in %s cannot be looked at: %s. Give this process more "
                   "(ulimit -n, memory), and start it again",
                   directory, strerror(errno));
            return rc;
        }
        if (statfs(directory, &status) != 0 || status.f_type != TMPFS) /* files of a disk hold no memory */
            left.bytes = 0;
    }
    *capacity = mc_memory_capacity_with(&left, wanted, limits, reason);
    if (*reason == NULL || is_named || !mc_pages_have_room(wanted))
        return 0;
    *reason = NULL;
    *capacity = wanted & ~(uint64_t)(MC_PAGE_BYTES - 1);
    return 0;
}
