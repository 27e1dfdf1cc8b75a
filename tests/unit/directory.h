/* How many entries a directory has: descriptors ("/proc/self/fd"), threads ("/proc/self/task"). */
#ifndef MC_TESTS_DIRECTORY_H
#define MC_TESTS_DIRECTORY_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>

static inline unsigned count_of(const char *path)
{
    unsigned count = 0;
    DIR *folder = opendir(path);
    assert_non_null(folder);
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

#endif
