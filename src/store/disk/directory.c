/* Taking a directory: all of it before the disk has a thread, with plain calls. */
#include "store/disk/directory.h"

#include "env/clock.h"
#include "env/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define LOCK_TRIES 3u  /* by who has it: perhaps only to find that the contents are not its own */
#define LOOK_TRIES 40u /* by who shares it, to look whether it is in use */
#define LOCK_WAIT_US 5000u

/* A regular file of ours that has no other name; else -1 with errno. */
static int file_open(int at, const char *name, int flags)
{
    struct stat status;
    int fd = openat(at, name, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0)
        return -1;
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid() && status.st_nlink == 1)
        return fd;
    close(fd);
    errno = EPERM;
    return -1;
}

static int data_file_open(const struct mc_disk_directory *directory, const char *name, int flags)
{
    return file_open(directory->fd, name, flags | (directory->is_direct ? O_DIRECT : 0));
}

int mc_disk_directory_volume(const struct mc_disk_directory *directory, uint32_t number, bool may_make)
{
    char name[MC_DISK_NAME_MAX];
    (void)snprintf(name, sizeof(name), "volume.%u", number);
    return data_file_open(directory, name, O_RDWR | (may_make ? O_CREAT : 0));
}

enum mc_disk_verdict mc_disk_identity_read(int fd, uint8_t *page, struct mc_disk_super *super)
{
    enum mc_disk_verdict best = MC_DISK_BLANK;
    for (unsigned i = 0; i < MC_DISK_SUPER_COUNT; i++) {
        struct mc_disk_super one;
        memset(page, 0, MC_DISK_PAGE);
        ssize_t got = pread(fd, page, MC_DISK_PAGE, (off_t)i * MC_DISK_PAGE);
        enum mc_disk_verdict verdict = got == 0  ? MC_DISK_BLANK
                                       : got < 0 ? MC_DISK_DAMAGED
                                                 : mc_disk_super_read(page, &one);
        if (verdict == MC_DISK_GOOD && (best != MC_DISK_GOOD || one.sequence > super->sequence))
            *super = one;
        if (verdict == MC_DISK_GOOD || (best != MC_DISK_GOOD && verdict > best))
            best = verdict;
    }
    return best;
}

/* ---- one directory ---- */

enum fit { FITS, IN_USE, NOT_OURS, NOT_THERE, FAILED };

static void directory_reset(struct mc_disk_directory *directory)
{
    directory->fd = directory->lock_fd = directory->identity_fd = -1;
    for (unsigned i = 0; i < MC_DISK_CLEARS_FILES; i++)
        directory->clears_fd[i] = -1;
}

static void fd_close(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

void mc_disk_directory_close(struct mc_disk_directory *directory)
{
    for (unsigned i = 0; i < MC_DISK_CLEARS_FILES; i++)
        fd_close(&directory->clears_fd[i]);
    fd_close(&directory->identity_fd);
    fd_close(&directory->fd);
    fd_close(&directory->lock_fd);
}

void mc_disk_directory_release(struct mc_disk_directory *directory)
{
    if (directory->lock_fd >= 0)
        (void)flock(directory->lock_fd, LOCK_UN);
    mc_disk_directory_close(directory);
}

/* Blocks that are there already, so that nothing changes; before it looks, a file system (ext4, XFS) waits for all
 * direct I/O of the file. Others that refuse it have no such I/O, or nothing that waits for it. */
void mc_disk_file_settle(int fd)
{
    struct stat status;
    if (fstat(fd, &status) == 0 && status.st_size > 0)
        (void)fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, MC_DISK_PAGE);
}

uint64_t mc_disk_directory_room(const struct mc_disk_directory *directory)
{
    struct statvfs status;
    if (fstatvfs(directory->fd, &status) != 0 || status.f_blocks == 0)
        return UINT64_MAX;
    return (uint64_t)status.f_bavail * status.f_frsize;
}

static bool identity_open(struct mc_disk_directory *directory, bool is_buffered)
{
    directory->is_direct = !is_buffered;
    directory->identity_fd = data_file_open(directory, "identity", O_RDWR | O_CREAT);
    if (directory->identity_fd < 0 && errno == EINVAL && directory->is_direct) { /* no O_DIRECT here */
        directory->is_direct = false;
        directory->identity_fd = data_file_open(directory, "identity", O_RDWR | O_CREAT);
    }
    return directory->identity_fd >= 0;
}

static bool is_of_other_cluster(const struct mc_disk_super *super, const struct mc_disk_config *config)
{
    struct mc_id theirs = super->mark.cluster;
    return !mc_id_is_zero(config->cluster) && !mc_id_is_zero(theirs) && !mc_id_equal(theirs, config->cluster);
}

/* Every volume there may be: what the directory held before has no meaning any more. */
static void volumes_unlink(const struct mc_disk_directory *directory, uint32_t first)
{
    char name[MC_DISK_NAME_MAX];
    uint32_t missing = 0;
    for (uint32_t number = first; missing < 64 && number <= MC_DISK_REGIONS_MAX / MC_DISK_VOLUME_REGIONS; number++) {
        (void)snprintf(name, sizeof(name), "volume.%u", number);
        missing = unlinkat(directory->fd, name, 0) == 0 ? 0 : missing + 1;
    }
}

static bool page_write(int fd, const uint8_t *page, uint64_t offset)
{
    ssize_t written = pwrite(fd, page, MC_DISK_PAGE, (off_t)offset);
    if (written >= 0 && written != (ssize_t)MC_DISK_PAGE)
        errno = ENOSPC;
    return written == (ssize_t)MC_DISK_PAGE;
}

/* The journal first and the identity last, so that a directory that has an identity has all else. */
static bool contents_make(struct mc_disk_directory *directory, const struct mc_disk_config *config, uint8_t *page)
{
    struct timespec now = {0};
    struct mc_disk_head head;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    volumes_unlink(directory, 0);
    directory->is_new = true;
    directory->super = (struct mc_disk_super){
        .segment_id = mc_random_id(),
        .sequence = MC_DISK_SUPER_COUNT,
        .region_bytes = config->region_bytes,
        .made_wall_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000,
        .mark.cluster = config->cluster,
    };
    for (unsigned i = 0; i < MC_DISK_CLEARS_FILES; i++) {
        mc_disk_head_fill(&head, MC_DISK_HEAD_CLEARS, directory->super.segment_id);
        head.sequence = i;
        head.flags = MC_DISK_CLEARS_COMPLETE;
        mc_disk_head_seal(&head);
        memset(page, 0, MC_DISK_PAGE);
        memcpy(page, &head, sizeof(head));
        if (ftruncate(directory->clears_fd[i], 0) != 0 || !page_write(directory->clears_fd[i], page, 0) ||
            fsync(directory->clears_fd[i]) != 0)
            return false;
    }
    mc_disk_super_put(page, &directory->super);
    return page_write(directory->identity_fd, page, 0) && page_write(directory->identity_fd, page, MC_DISK_PAGE) &&
           fsync(directory->identity_fd) == 0 && fsync(directory->fd) == 0;
}

static enum fit contents_judge(struct mc_disk_directory *directory, const struct mc_disk_config *config, bool may_make,
                               uint8_t *page)
{
    enum mc_disk_verdict verdict = mc_disk_identity_read(directory->identity_fd, page, &directory->super);
    if (verdict == MC_DISK_OTHER_VERSION) {
        mc_log(WARNING, "%s is of another version and is left alone", directory->path);
        return NOT_OURS;
    }
    if (verdict == MC_DISK_GOOD)
        return is_of_other_cluster(&directory->super, config) ? NOT_OURS : FITS;
    if (!may_make)
        return NOT_THERE;
    if (verdict == MC_DISK_DAMAGED)
        mc_log(WARNING, "the identity in %s is damaged: what lies there cannot be found any more, and it begins anew",
               directory->path);
    return contents_make(directory, config, page) ? FITS : FAILED;
}

bool mc_disk_lock_is_held(int fd)
{
    bool is_held = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    (void)flock(fd, LOCK_UN); /* and not by closing it, which a forked child would undo */
    return is_held;
}

static int lock_take(int fd)
{
    unsigned held = 0;
    for (unsigned i = 0; i < LOOK_TRIES && held < LOCK_TRIES; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            return 0;
        if (errno != EWOULDBLOCK)
            break;
        held += mc_disk_lock_is_held(fd);
        (void)usleep(LOCK_WAIT_US);
        errno = EWOULDBLOCK;
    }
    return -1;
}

/* FITS: it is locked and open. Else nothing is open; FAILED: errno. */
static enum fit directory_try(struct mc_disk_directory *directory, const struct mc_disk_config *config, unsigned number,
                              bool may_make, uint8_t *page)
{
    enum fit fit = FAILED;
    directory_reset(directory);
    (void)snprintf(directory->path, sizeof(directory->path), "%s/" MC_DISK_NAME_FORMAT, config->path, number);
    if (may_make && mkdir(directory->path, 0700) != 0 && errno != EEXIST)
        return FAILED;
    directory->fd = open(directory->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (directory->fd < 0)
        return errno == ENOENT ? NOT_THERE : errno == ENOTDIR || errno == ELOOP || errno == EACCES ? NOT_OURS : FAILED;
    directory->lock_fd = file_open(directory->fd, "lock", O_RDWR | O_CREAT);
    if (directory->lock_fd < 0)
        goto out;
    if (lock_take(directory->lock_fd) != 0) {
        fit = errno == EWOULDBLOCK ? IN_USE : FAILED;
        goto out;
    }
    static const char *const names[MC_DISK_CLEARS_FILES] = {"clears.0", "clears.1"};
    if (!identity_open(directory, config->is_buffered))
        goto out;
    for (unsigned i = 0; i < MC_DISK_CLEARS_FILES; i++) {
        directory->clears_fd[i] = data_file_open(directory, names[i], O_RDWR | O_CREAT);
        if (directory->clears_fd[i] < 0)
            goto out;
        mc_disk_file_settle(directory->clears_fd[i]);
    }
    mc_disk_file_settle(directory->identity_fd);
    fit = contents_judge(directory, config, may_make, page);
out:
    if (fit != FITS) {
        int number_of_error = errno;
        mc_disk_directory_release(directory);
        errno = number_of_error;
    }
    return fit;
}

/* ---- the path ---- */

static int path_check(const char *path, char *error, size_t error_size)
{
    struct stat status;
    const char *why = NULL;
    size_t length = strlen(path);
    if (path[0] != '/')
        why = "is not absolute";
    else if (length >= MC_DISK_PATH_MAX)
        why = "is too long";
    else if (strstr(path, "/../") != NULL || (length >= 3 && strcmp(path + length - 3, "/..") == 0))
        why = "holds ..";
    else if (lstat(path, &status) != 0)
        why = errno == ENOENT
                  ? "it is not there; make it (mkdir -p) on the disk that it is meant for, or mount that first"
                  : strerror(errno);
    else if (S_ISLNK(status.st_mode))
        why = "is a link";
    else if (!S_ISDIR(status.st_mode))
        why = "is no directory";
    if (why == NULL)
        return 0;
    (void)snprintf(error, error_size, "the path of the disk, %s: %s", path, why);
    return MC_ERR_INVALID_PARAMS;
}

int mc_disk_directory_open(struct mc_disk_directory *directory, const struct mc_disk_config *config, char *error,
                           size_t error_size)
{
    directory_reset(directory);
    int rc = path_check(config->path, error, error_size);
    if (rc < 0)
        return rc;
    uint8_t *page = aligned_alloc(MC_DISK_IO_ALIGNMENT, MC_DISK_PAGE);
    if (page == NULL) {
        (void)snprintf(error, error_size, "no memory for the disk %s", config->path);
        return MC_ERR_NO_MEMORY;
    }
    enum fit fit = NOT_THERE;
    unsigned number = 0;
    for (; number < MC_DISK_DIRECTORIES_MAX && fit != FITS; number++)
        fit = directory_try(directory, config, number, false, page);
    for (number = 0; number < MC_DISK_DIRECTORIES_MAX && fit != FITS; number++) {
        fit = directory_try(directory, config, number, true, page);
        if (fit == FAILED)
            break; /* so would the next one */
    }
    int number_of_error = errno;
    free(page);
    if (fit == FITS) {
        volumes_unlink(directory,
                       (uint32_t)(config->capacity / directory->super.region_bytes + MC_DISK_VOLUME_REGIONS - 1) /
                           MC_DISK_VOLUME_REGIONS);
        return 0;
    }
    (void)snprintf(error, error_size, "%s cannot be used for a disk: %s", config->path,
                   fit == FAILED ? strerror(number_of_error) : "all its directories are in use, or of others");
    return MC_ERR_FILE_OPEN_FAIL;
}

uint64_t mc_disk_bytes_there(const char *path)
{
    uint64_t bytes = 0;
    for (unsigned number = 0; number < MC_DISK_DIRECTORIES_MAX; number++) {
        char name[MC_DISK_PATH_MAX + MC_DISK_NAME_MAX];
        (void)snprintf(name, sizeof(name), "%s/" MC_DISK_NAME_FORMAT, path, number);
        int fd = open(name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
            continue;
        struct stat status;
        int lock = file_open(fd, "lock", O_RDONLY);
        bool is_held = lock >= 0 && mc_disk_lock_is_held(lock);
        fd_close(&lock);
        for (uint32_t volume = 0; !is_held && volume <= MC_DISK_REGIONS_MAX / MC_DISK_VOLUME_REGIONS; volume++) {
            (void)snprintf(name, sizeof(name), "volume.%u", volume);
            if (fstatat(fd, name, &status, AT_SYMLINK_NOFOLLOW) != 0)
                break;
            bytes += (uint64_t)status.st_blocks * 512;
        }
        close(fd);
    }
    return bytes;
}
