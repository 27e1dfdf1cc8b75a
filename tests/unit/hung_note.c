/* For LD_PRELOAD: as long as the file $MC_TEST_HANGS is there, nothing that a master does with its note comes to an
 * end, neither writes into the page cache nor the waits for the disk, nor giving up its lock or its descriptor. While
 * $MC_TEST_HANGS.disk is there, the waits for the disk do not. */
#include <stdbool.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SHOWN __attribute__((visibility("default")))

static void wait_for_note(int fd, bool is_disk)
{
    const char *flag = getenv("MC_TEST_HANGS");
    char link[64], path[512], disk[512];
    snprintf(disk, sizeof(disk), "%s.disk", flag == NULL ? "" : flag);
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof(path) - 1);
    path[length < 0 ? 0 : length] = 0;
    while (flag != NULL && strstr(path, "/master-") != NULL && strstr(path, ".note") != NULL &&
           (access(flag, F_OK) == 0 || (is_disk && access(disk, F_OK) == 0)))
        usleep(1000);
}

SHOWN ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset);
ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset)
{
    wait_for_note(fd, false);
    return (ssize_t)syscall(SYS_pwrite64, fd, data, size, offset);
}

SHOWN int fsync(int fd)
{
    wait_for_note(fd, true);
    return (int)syscall(SYS_fsync, fd);
}

SHOWN int fdatasync(int fd)
{
    wait_for_note(fd, true);
    return (int)syscall(SYS_fdatasync, fd);
}

SHOWN int flock(int fd, int operation);
int flock(int fd, int operation)
{
    if ((operation & LOCK_UN) != 0)
        wait_for_note(fd, false);
    return (int)syscall(SYS_flock, fd, operation);
}

SHOWN int close(int fd);
int close(int fd)
{
    wait_for_note(fd, false);
    return (int)syscall(SYS_close, fd);
}
