/* For LD_PRELOAD: as long as the file $MC_TEST_HANGS is there, nothing that a master does with its note comes to an
 * end, neither writes into the page cache nor the waits for the disk, nor giving up its lock or its descriptor. While
 * $MC_TEST_HANGS.disk is there, the waits for the disk do not. While $MC_TEST_HANGS.slow is there, each write takes
 * 300 ms, and while $MC_TEST_HANGS.records is there, one of a record two seconds. A note cannot be opened while
 * $MC_TEST_HANGS.open is there. */
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SHOWN __attribute__((visibility("default")))

static bool is_asked_for(const char *what)
{
    const char *flag = getenv("MC_TEST_HANGS");
    char path[512];
    snprintf(path, sizeof(path), "%s%s", flag == NULL ? "" : flag, what);
    return flag != NULL && access(path, F_OK) == 0;
}

static bool is_note(const char *path)
{
    return strstr(path, "/master-") != NULL && strstr(path, ".note") != NULL;
}

static bool wait_for_note(int fd, bool is_disk)
{
    char link[64], path[512];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof(path) - 1);
    path[length < 0 ? 0 : length] = 0;
    while (is_note(path) && (is_asked_for("") || (is_disk && is_asked_for(".disk"))))
        usleep(1000);
    return is_note(path);
}

SHOWN int open64(const char *path, int flags, ...);
int open64(const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    unsigned mode = (flags & O_CREAT) != 0 ? va_arg(list, unsigned) : 0;
    va_end(list);
    while (is_note(path) && is_asked_for(".open"))
        usleep(1000);
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

SHOWN ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset);
ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset)
{
    if (wait_for_note(fd, false))
        usleep(offset == 0 && is_asked_for(".records") ? 2000000 : is_asked_for(".slow") ? 300000 : 0);
    return (ssize_t)syscall(SYS_pwrite64, fd, data, size, offset);
}

SHOWN int fsync(int fd)
{
    (void)wait_for_note(fd, true);
    return (int)syscall(SYS_fsync, fd);
}

SHOWN int fdatasync(int fd)
{
    (void)wait_for_note(fd, true);
    return (int)syscall(SYS_fdatasync, fd);
}

SHOWN int flock(int fd, int operation);
int flock(int fd, int operation)
{
    if ((operation & LOCK_UN) != 0)
        (void)wait_for_note(fd, false);
    return (int)syscall(SYS_flock, fd, operation);
}

SHOWN int close(int fd);
int close(int fd)
{
    (void)wait_for_note(fd, false);
    return (int)syscall(SYS_close, fd);
}
