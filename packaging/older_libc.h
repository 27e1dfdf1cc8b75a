/* Included before all else where a wheel is built for a C library that is older than what the source is written for (portable.py): calls of the
 * kernel that it has no function for (a kernel without them says ENOSYS, as it does with a newer library), and how secrets are wiped. */
#ifndef MC_PACKAGING_OLDER_LIBC_H
#define MC_PACKAGING_OLDER_LIBC_H

#include <features.h>

#if !__GLIBC_PREREQ(2, 28)
#include <linux/memfd.h>
#include <linux/random.h>
#include <linux/stat.h>
#include <malloc.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#define OLDER_LIBC __attribute__((unused)) static inline

#if !__GLIBC_PREREQ(2, 25)
OLDER_LIBC void older_explicit_bzero(void *buffer, size_t length)
{
    memset(buffer, 0, length);
    __asm__ volatile("" : : "r"(buffer) : "memory"); /* somebody may look at it, so the bytes are stored */
}
#define explicit_bzero older_explicit_bzero

OLDER_LIBC ssize_t getrandom(void *buffer, size_t length, unsigned flags)
{
    return syscall(SYS_getrandom, buffer, length, flags);
}
#endif

#if !__GLIBC_PREREQ(2, 27)
OLDER_LIBC int memfd_create(const char *name, unsigned flags)
{
    return (int)syscall(SYS_memfd_create, name, flags);
}
#endif

OLDER_LIBC int statx(int folder, const char *path, int flags, unsigned mask, struct statx *status)
{
    return (int)syscall(SYS_statx, folder, path, flags, mask, status);
}

#define mallinfo2 mallinfo /* of the same fields, but shorter */
#endif

#endif
