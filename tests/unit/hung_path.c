/* For LD_PRELOAD: as a mount of NFS whose server is away. As long as the file $MC_TEST_HANGS is there, nothing that is
 * asked of the directory $MC_TEST_HUNG, or of what is in it, comes to an end. */
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SHOWN __attribute__((visibility("default")))

static void wait_for(const char *path)
{
    const char *hung = getenv("MC_TEST_HUNG"), *flag = getenv("MC_TEST_HANGS");
    size_t length = hung == NULL ? 0 : strlen(hung);
    if (length == 0 || flag == NULL || strncmp(path, hung, length) != 0 || (path[length] != 0 && path[length] != '/'))
        return;
    while (access(flag, F_OK) == 0)
        usleep(1000);
}

SHOWN int open64(const char *path, int flags, ...);
int open64(const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    unsigned mode = (flags & O_CREAT) != 0 ? va_arg(list, unsigned) : 0;
    va_end(list);
    wait_for(path);
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

#define PASS_ON(type, name, parameters, arguments)                                                                     \
    SHOWN type name parameters;                                                                                        \
    type name parameters                                                                                               \
    {                                                                                                                  \
        type(*next) parameters;                                                                                        \
        void *found = dlsym(RTLD_NEXT, #name);                                                                         \
        memcpy(&next, &found, sizeof(next));                                                                           \
        wait_for(path);                                                                                                \
        return next arguments;                                                                                         \
    }

struct stat64;
struct statvfs64;
struct statfs64;
PASS_ON(int, stat64, (const char *path, struct stat64 *status), (path, status))
PASS_ON(int, lstat64, (const char *path, struct stat64 *status), (path, status))
PASS_ON(int, statvfs64, (const char *path, struct statvfs64 *status), (path, status))
PASS_ON(int, statfs64, (const char *path, struct statfs64 *status), (path, status))
PASS_ON(DIR *, opendir, (const char *path), (path))
PASS_ON(int, mkdir, (const char *path, mode_t mode), (path, mode))
