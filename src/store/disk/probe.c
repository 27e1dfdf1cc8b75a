/* The probe of a folder: the path, what may be done there, how much room there is. */
#include "store/disk/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/quota.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#define GIB ((double)(1u << 30))
#define NAME_ROOM 64u /* bytes of the longest name that is put behind the path */
#define CALL_QUOTA_OF_FD 443
#define QUOTA_OF_USER ((unsigned)Q_GETQUOTA << 8 | USRQUOTA) /* QCMD shifts a signed number too far */
#define STATX_DIRECT 0x2000u                                 /* since Linux 6.1 */
#define STATX_DIRECT_MEMORY 152u /* where struct statx has the alignment of memory, behind it that of offsets */

void mc_disk_probe_say(struct mc_disk_probe *probe, enum mc_disk_fitness fitness, const char *name, int error,
                       const char *fix, const char *format, ...)
{
    va_list arguments;
    if (probe->count == MC_DISK_FINDINGS_MAX)
        return;
    struct mc_disk_finding *finding = &probe->findings[probe->count++];
    *finding = (struct mc_disk_finding){.fitness = fitness, .name = name, .fix = fix, .error = error};
    va_start(arguments, format);
    (void)vsnprintf(finding->value, sizeof(finding->value), format, arguments);
    va_end(arguments);
}

const struct mc_disk_finding *mc_disk_probe_unfit(const struct mc_disk_probe *probe)
{
    for (unsigned i = 0; i < probe->count; i++)
        if (probe->findings[i].fitness == MC_DISK_UNFIT)
            return &probe->findings[i];
    return NULL;
}

/* ---- the path ---- */

static bool has_parent_word(const char *path)
{
    for (const char *at = path; (at = strstr(at, "..")) != NULL; at += 2)
        if ((at == path || at[-1] == '/') && (at[2] == 0 || at[2] == '/'))
            return true;
    return false;
}

/* folder: the path without slashes at its end, behind which a link would be followed. */
static bool probe_path(struct mc_disk_probe *probe, const char *path, char folder[PATH_MAX])
{
    struct stat status;
    char real[PATH_MAX];
    const char *fix = NULL, *what = NULL;
    size_t length = strlen(path);
    if (length + NAME_ROOM >= PATH_MAX) {
        mc_disk_probe_say(probe, MC_DISK_UNFIT, "path", ENAMETOOLONG, "choose a shorter one", "%zu bytes", length);
        return false;
    }
    memcpy(folder, path, length + 1);
    while (length > 1 && folder[length - 1] == '/')
        folder[--length] = 0;
    if (folder[0] != '/')
        what = "is not absolute", fix = "give the whole path, from / on";
    else if (has_parent_word(folder))
        what = "has \"..\" in it", fix = "write out where it leads: realpath shows it";
    if (what != NULL) {
        mc_disk_probe_say(probe, MC_DISK_UNFIT, "path", 0, fix, "%s %s", folder[0] == 0 ? "\"\"" : folder, what);
        return false;
    }
    if (lstat(folder, &status) != 0) {
        mc_disk_probe_say(probe, MC_DISK_UNFIT, "path", errno,
                          errno == ENOENT
                              ? "make it (mkdir -p), on the disk that it is meant for; it is never made for "
                                "you: a mount that is missing would fill the root's file system"
                              : "the user of this process must be able to reach it: ls -ld of each part",
                          "%s", folder);
        return false;
    }
    if (!S_ISDIR(status.st_mode)) {
        bool is_link = S_ISLNK(status.st_mode);
        mc_disk_probe_say(probe, MC_DISK_UNFIT, "path", 0,
                          is_link ? "give the folder that it leads to: realpath shows it" : "give a folder", "%s is %s",
                          folder, is_link ? "a symbolic link" : "not a folder");
        return false;
    }
    bool is_moved = realpath(folder, real) != NULL && strcmp(real, folder) != 0;
    mc_disk_probe_say(probe, MC_DISK_FIT, "path", 0, NULL, "%s%s%s", folder, is_moved ? ", which is " : "",
                      is_moved ? real : "");
    return true;
}

/* ---- a file there ---- */

static const char *fix_of_writing(int error)
{
    switch (error) {
    case EROFS:
        return "the file system is mounted read-only: mount it read-write (a volume without readOnly), or look in the "
               "kernel's log (dmesg) for the errors that made it so";
    case ENOSPC:
        return "nothing is left, of bytes or of inodes (df, df -i): make room, or choose another disk";
    case EDQUOT:
        return "the user's quota is used up: have it raised, or choose another disk";
    case EMFILE:
    case ENFILE:
        return "this process has no descriptors left: ulimit -n 65536";
    default:
        return "the user of this process must be able to write there: chown, or fsGroup of the pod";
    }
}

/* A file without a name, or -1 with errno. */
static int make_file(const char *folder)
{
    char name[PATH_MAX + NAME_ROOM];
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL && errno != ENOSYS))
        return fd;
    snprintf(name, sizeof(name), "%s/mooncake-c.probe.XXXXXX", folder);
    fd = mkostemp(name, O_CLOEXEC);
    if (fd >= 0)
        (void)unlink(name);
    return fd;
}

static void probe_lock(struct mc_disk_probe *probe, int fd)
{
    if (flock(fd, LOCK_EX | LOCK_NB) == 0)
        mc_disk_probe_say(probe, MC_DISK_FIT, "locks", 0, NULL, "flock works");
    else
        mc_disk_probe_say(
            probe, MC_DISK_UNFIT, "locks", errno,
            "without locks two processes could take the same files: choose a local disk, or mount it with "
            "locks (NFS: without nolock)",
            "flock does not work");
}

/* ---- O_DIRECT ---- */

/* What statx says of it: 0 = it says nothing. */
static uint32_t stated_alignment(int fd)
{
    struct statx status;
    uint32_t memory, offset;
    _Static_assert(sizeof(status) == 256, "as the kernel has it");
    memset(&status, 0, sizeof(status));
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIRECT, &status) != 0 || (status.stx_mask & STATX_DIRECT) == 0)
        return 0;
    memcpy(&memory, (const char *)&status + STATX_DIRECT_MEMORY, sizeof(memory));
    memcpy(&offset, (const char *)&status + STATX_DIRECT_MEMORY + sizeof(memory), sizeof(offset));
    return memory > offset ? memory : offset;
}

/* 0, or an errno value: can pages be written and read in this way? */
static int try_pages(int fd, uint8_t *page)
{
    memset(page, 0x5a, MC_DISK_IO_ALIGNMENT);
    ssize_t moved = pwrite(fd, page, MC_DISK_IO_ALIGNMENT, 0);
    if (moved == (ssize_t)MC_DISK_IO_ALIGNMENT)
        moved = pread(fd, page, MC_DISK_IO_ALIGNMENT, 0);
    return moved == (ssize_t)MC_DISK_IO_ALIGNMENT ? 0 : moved < 0 ? errno : EIO;
}

static bool is_of_direct(int error)
{
    return error != 0 && error != ENOSPC && error != EDQUOT && error != EIO;
}

static void say_direct(struct mc_disk_probe *probe, int error, uint32_t stated)
{
    static const char fix[] =
        "bytes pass through the kernel's cache, which counts as this container's memory and takes "
        "that of others: ext4 or xfs on a local disk can do without";
    if (error == 0)
        mc_disk_probe_say(probe, MC_DISK_FIT, "O_DIRECT", 0, NULL, "possible, aligned to %u bytes%s", probe->alignment,
                          stated == 0 ? " or less" : "");
    else if (stated > MC_DISK_IO_ALIGNMENT)
        mc_disk_probe_say(probe, MC_DISK_NOTED, "O_DIRECT", 0, fix, "needs an alignment of %u bytes, more than %u",
                          stated, MC_DISK_IO_ALIGNMENT);
    else
        mc_disk_probe_say(probe, MC_DISK_NOTED, "O_DIRECT", error, fix, "not possible");
}

static void probe_direct(struct mc_disk_probe *probe, int fd)
{
    int flags = fcntl(fd, F_GETFL);
    uint8_t *page = mmap(NULL, MC_DISK_IO_ALIGNMENT, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (flags < 0 || page == MAP_FAILED)
        return;
    int error = fcntl(fd, F_SETFL, flags | O_DIRECT) != 0 ? errno : try_pages(fd, page);
    uint32_t stated = stated_alignment(fd);
    if (error == 0)
        probe->alignment = stated != 0 ? stated : MC_DISK_IO_ALIGNMENT;
    if (error == 0 || is_of_direct(error))
        say_direct(probe, error, stated);
    if (is_of_direct(error)) {
        (void)fcntl(fd, F_SETFL, flags);
        error = try_pages(fd, page);
    }
    if (error != 0)
        mc_disk_probe_say(probe, MC_DISK_UNFIT, "writing", error, fix_of_writing(error),
                          "a page cannot be written and read");
    munmap(page, MC_DISK_IO_ALIGNMENT);
}

/* ---- io_uring ---- */

static int uring_disabled(void)
{
    int value = 0;
    FILE *file = fopen("/proc/sys/kernel/io_uring_disabled", "re");
    if (file != NULL && fscanf(file, "%d", &value) != 1)
        value = 0;
    if (file != NULL)
        fclose(file);
    return value;
}

static const char *fix_of_uring(int error)
{
    int disabled = uring_disabled();
    if (disabled != 0)
        return disabled == 1 ? "sysctl kernel.io_uring_disabled=0, or the group of kernel.io_uring_group; without it "
                               "threads read and write, for some more processor time"
                             : "sysctl kernel.io_uring_disabled=0; without it threads read and write, for some more "
                               "processor time";
    switch (error) {
    case EPERM:
    case EACCES:
        return "a seccomp filter forbids it, as Docker's default profile does: --security-opt seccomp=PROFILE with "
               "io_uring_setup, io_uring_enter and io_uring_register allowed; without it threads read and write";
    case ENOSYS:
        return "the kernel (before 5.1) or a filter has none; threads read and write instead";
    case ENOMEM:
        return "locked memory is used up: ulimit -l 8192 or more; without it threads read and write";
    case EMFILE:
    case ENFILE:
        return "this process has no descriptors left: ulimit -n 65536";
    default:
        return "threads read and write instead";
    }
}

static void probe_uring(struct mc_disk_probe *probe)
{
    struct mc_disk_io *io = NULL;
    int rc = mc_disk_io_open(MC_DISK_IO_URING, MC_DISK_IO_DEPTH_MAX, &io);
    if (rc == 0) {
        mc_disk_io_close(io);
        mc_disk_probe_say(probe, MC_DISK_FIT, "io_uring", 0, NULL, "allowed");
    } else {
        mc_disk_probe_say(probe, MC_DISK_NOTED, "io_uring", -rc, fix_of_uring(-rc), "not allowed");
    }
}

/* ---- room ---- */

static void probe_room(struct mc_disk_probe *probe, int fd)
{
    struct statvfs status;
    if (fstatvfs(fd, &status) != 0) {
        mc_disk_probe_say(probe, MC_DISK_NOTED, "free space", errno, NULL, "cannot be seen");
        return;
    }
    uint64_t block = status.f_frsize, total = block * status.f_blocks;
    probe->free_bytes = block * status.f_bavail;
    bool is_little = probe->free_bytes < MC_DISK_ROOM_LEAST;
    mc_disk_probe_say(probe, is_little ? MC_DISK_WARNED : MC_DISK_FIT, "free space", 0,
                      is_little ? "less than one volume file of the tier (1 GiB): make room, or choose another disk"
                                : NULL,
                      "%.1f of %.1f GiB", (double)probe->free_bytes / GIB, (double)total / GIB);
    if (status.f_files > 0 && status.f_favail < 1000)
        mc_disk_probe_say(probe, MC_DISK_WARNED, "inodes", 0, "files cannot be made without: df -i", "%llu left",
                          (unsigned long long)status.f_favail);
}

/* Greatest size that a file of this process may have. Who writes more is sent a signal that ends it. */
static uint64_t file_size_limit(void)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 ? (uint64_t)limit.rlim_cur : UINT64_MAX;
}

/* False: nothing may be written. */
static bool probe_file_size(struct mc_disk_probe *probe)
{
    uint64_t limit = file_size_limit();
    bool is_none = limit < MC_DISK_PROBE_BLOCK;
    if (limit < MC_DISK_ROOM_LEAST)
        mc_disk_probe_say(probe, is_none ? MC_DISK_UNFIT : MC_DISK_WARNED, "file size limit", 0,
                          "volume files are of 1 GiB: ulimit -f unlimited; LimitFSIZE=infinity", "%.3f GiB",
                          (double)limit / GIB);
    return !is_none;
}

static void probe_quota(struct mc_disk_probe *probe, int fd)
{
    struct dqblk quota;
    memset(&quota, 0, sizeof(quota));
    /* Where there are no quotas, or the kernel (before 5.14) is not asked in this way, it fails. */
    if (syscall(CALL_QUOTA_OF_FD, fd, QUOTA_OF_USER, getuid(), &quota) != 0 || quota.dqb_bhardlimit == 0)
        return;
    uint64_t most = quota.dqb_bhardlimit * 1024, left = most > quota.dqb_curspace ? most - quota.dqb_curspace : 0;
    mc_disk_probe_say(probe, left < MC_DISK_ROOM_LEAST ? MC_DISK_WARNED : MC_DISK_FIT, "quota", 0,
                      left < MC_DISK_ROOM_LEAST ? "have it raised, or choose another disk" : NULL,
                      "%.1f of %.1f GiB left for this user", (double)left / GIB, (double)most / GIB);
}

/* Bytes that are there for the file: those of the speed's probe, or fewer. */
static uint64_t probe_preallocation(struct mc_disk_probe *probe, int fd)
{
    uint64_t room = probe->free_bytes / 2 < file_size_limit() ? probe->free_bytes / 2 : file_size_limit();
    uint64_t size = room < MC_DISK_PROBE_BYTES ? room / MC_DISK_PROBE_BLOCK * MC_DISK_PROBE_BLOCK : MC_DISK_PROBE_BYTES;
    if (size == 0)
        return 0;
    if (fallocate(fd, 0, 0, (off_t)size) == 0) {
        mc_disk_probe_say(probe, MC_DISK_FIT, "preallocation", 0, NULL, "possible");
    } else if (errno == EOPNOTSUPP || errno == ENOSYS) {
        mc_disk_probe_say(probe, MC_DISK_NOTED, "preallocation", errno,
                          "files grow as they are written, and others may take the room meanwhile: ext4 or xfs can "
                          "reserve it",
                          "not possible");
    } else {
        mc_disk_probe_say(probe, MC_DISK_WARNED, "preallocation", errno, fix_of_writing(errno),
                          "%llu MiB are not to be had", (unsigned long long)(size >> 20));
        return 0;
    }
    return size;
}

void mc_disk_probe(const char *path, bool with_speed, struct mc_disk_probe *probe)
{
    char folder[PATH_MAX];
    *probe = (struct mc_disk_probe){.count = 0};
    if (!probe_path(probe, path, folder) || !probe_file_size(probe))
        return;
    mc_disk_probe_mount(probe, folder);
    int fd = make_file(folder);
    if (fd < 0) {
        mc_disk_probe_say(probe, MC_DISK_UNFIT, "writing", errno, fix_of_writing(errno), "no file can be made there");
        return;
    }
    probe_lock(probe, fd);
    probe_direct(probe, fd);
    probe_uring(probe);
    probe_room(probe, fd);
    probe_quota(probe, fd);
    uint64_t size = mc_disk_probe_unfit(probe) == NULL ? probe_preallocation(probe, fd) : 0;
    if (with_speed && size > 0)
        mc_disk_probe_speed(probe, fd, size);
    close(fd);
}
