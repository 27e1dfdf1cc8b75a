/* The probe of a folder: its file system, and the device below it. */
#include "store/disk/probe.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>

#define LINE_MAX_BYTES 8192u
#define NAME_MAX_BYTES 64u

static const struct file_system {
    const char *name;
    uint32_t magic; /* of statfs */
    enum mc_disk_fitness fitness;
    const char *fix;
} file_systems[] = {
#define REMOTE                                                                                                         \
    "each access crosses a network, and a server that hangs holds this process: choose a local disk, each node its "   \
    "own"
    {"ext4", 0xef53, MC_DISK_FIT, NULL},
    {"ext3", 0xef53, MC_DISK_NOTED, "it cannot preallocate: ext4 or xfs can"},
    {"ext2", 0xef53, MC_DISK_NOTED, "it cannot preallocate: ext4 or xfs can"},
    {"xfs", 0x58465342, MC_DISK_FIT, NULL},
    {"f2fs", 0xf2f52010, MC_DISK_FIT, NULL},
    {"btrfs", 0x9123683e, MC_DISK_NOTED,
     "it writes nothing in place, and falls into pieces: chattr +C on the folder while it is empty, or ext4 or xfs"},
    {"bcachefs", 0xca451a4e, MC_DISK_NOTED, "it writes nothing in place: ext4 or xfs do"},
    {"zfs", 0x2fc12fc1, MC_DISK_NOTED,
     "O_DIRECT is real from OpenZFS 2.3 on; before, primarycache=metadata for this data set keeps its cache small"},
    {"tmpfs", 0x01021994, MC_DISK_WARNED,
     "this is memory, not a disk: lend it as a segment instead, and name a folder on an SSD here"},
    {"ramfs", 0x858458f6, MC_DISK_WARNED,
     "this is memory, not a disk: lend it as a segment instead, and name a folder on an SSD here"},
    {"hugetlbfs", 0x958458f6, MC_DISK_UNFIT, "this is memory, not a disk: name a folder on an SSD"},
    {"overlay", 0x794c7630, MC_DISK_WARNED,
     "this is the container's own layer, which ends with the container and counts as its storage: mount a volume of a "
     "local disk (docker -v, hostPath, a local persistent volume)"},
    {"nfs", 0x6969, MC_DISK_WARNED, REMOTE},
    {"nfs4", 0x6969, MC_DISK_WARNED, REMOTE},
    {"cifs", 0xff534d42, MC_DISK_WARNED, REMOTE},
    {"smb3", 0xfe534d42, MC_DISK_WARNED, REMOTE},
    {"ceph", 0x00c36400, MC_DISK_WARNED, REMOTE},
    {"lustre", 0x0bd00bd0, MC_DISK_WARNED, REMOTE},
    {"gpfs", 0x47504653, MC_DISK_WARNED, REMOTE},
    {"beegfs", 0x19830326, MC_DISK_WARNED, REMOTE},
    {"9p", 0x01021997, MC_DISK_WARNED, "it is the host's folder, by messages: give the guest a disk of its own"},
    {"virtiofs", 0x65735546, MC_DISK_WARNED, "it is the host's folder, by messages: give the guest a disk of its own"},
    {"fuse", 0x65735546, MC_DISK_WARNED,
     "another process answers each access, and may be slow or gone: choose ext4 or xfs on a local disk"},
    {"vfat", 0x4d44, MC_DISK_WARNED, "it cannot preallocate, and has no rights: ext4 or xfs"},
    {"exfat", 0x2011bab0, MC_DISK_WARNED, "it cannot preallocate, and has no rights: ext4 or xfs"},
};

static const struct file_system *by_name(const char *name)
{
    if (strncmp(name, "fuse", 4) == 0) /* fuse.sshfs, fuseblk */
        name = "fuse";
    for (size_t i = 0; i < sizeof(file_systems) / sizeof(file_systems[0]); i++)
        if (strcmp(file_systems[i].name, name) == 0)
            return &file_systems[i];
    return NULL;
}

static const struct file_system *by_magic(const char *path)
{
    struct statfs status;
    if (statfs(path, &status) != 0)
        return NULL;
    for (size_t i = 0; i < sizeof(file_systems) / sizeof(file_systems[0]); i++)
        if (file_systems[i].magic == (uint32_t)status.f_type)
            return &file_systems[i];
    return NULL;
}

struct mount_line {
    char point[PATH_MAX], type[NAME_MAX_BYTES], source[PATH_MAX];
};

/* In place: "\040" is a space, and so on. */
static void unescape(char *text)
{
    char *to = text;
    for (const char *at = text; *at != 0; to++) {
        unsigned value;
        if (at[0] == '\\' && sscanf(at + 1, "%3o", &value) == 1) {
            *to = (char)value;
            at += 4;
        } else {
            *to = *at++;
        }
    }
    *to = 0;
}

/* The mount that the path is in: the longest point, of those of one length the last, which lies over the others. */
static bool find_mount(const char *path, struct mount_line *found)
{
    static const char file_name[] = "/proc/self/mountinfo";
    char line[LINE_MAX_BYTES];
    size_t longest = 0;
    FILE *file = fopen(file_name, "re");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        struct mount_line one;
        const char *second = strstr(line, " - ");
        if (second == NULL || sscanf(line, "%*s %*s %*s %*s %4095s", one.point) != 1 ||
            sscanf(second, " - %63s %4095s", one.type, one.source) != 2)
            continue;
        unescape(one.point);
        unescape(one.source);
        size_t length = strcmp(one.point, "/") == 0 ? 0 : strlen(one.point);
        bool is_in = strncmp(path, one.point, length) == 0 && (path[length] == 0 || path[length] == '/');
        if (!is_in || length < longest)
            continue;
        longest = length;
        *found = one;
    }
    if (file != NULL)
        fclose(file);
    return found->type[0] != 0;
}

/* A disk that turns is told of; whole devices and partitions have it at different places. */
static void say_device(struct mc_disk_probe *probe, const char *path)
{
    static const char *const places[] = {"", "../"};
    struct stat status;
    int turns = 0;
    if (stat(path, &status) != 0)
        return;
    for (unsigned i = 0; i < 2 && turns == 0; i++) {
        char name[128];
        snprintf(name, sizeof(name), "/sys/dev/block/%u:%u/%squeue/rotational", major(status.st_dev),
                 minor(status.st_dev), places[i]);
        FILE *file = fopen(name, "re");
        if (file != NULL && fscanf(file, "%d", &turns) != 1)
            turns = 0;
        if (file != NULL)
            fclose(file);
    }
    if (turns == 1)
        mc_disk_probe_say(probe, MC_DISK_NOTED, "device", 0, "see how fast it is; an SSD is meant",
                          "the kernel takes it for a disk that turns, as it does many virtual ones");
}

void mc_disk_probe_mount(struct mc_disk_probe *probe, const char *path)
{
    char real[PATH_MAX];
    struct mount_line mount = {.type = ""};
    bool is_found = find_mount(realpath(path, real) != NULL ? real : path, &mount);
    const struct file_system *known = is_found ? by_name(mount.type) : by_magic(path);
    if (is_found)
        mc_disk_probe_say(probe, known == NULL ? MC_DISK_NOTED : known->fitness, "file system", 0,
                          known == NULL ? "not one that is known here; ext4 and xfs are" : known->fix,
                          "%.60s on %.200s, mounted at %.200s", mount.type, mount.source, mount.point);
    else
        mc_disk_probe_say(probe, known == NULL ? MC_DISK_NOTED : known->fitness, "file system", 0,
                          known == NULL ? NULL : known->fix, "%s",
                          known == NULL ? "which, cannot be seen" : known->name);
    say_device(probe, path);
}
