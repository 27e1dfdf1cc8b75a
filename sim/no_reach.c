/* The simulator's file systems answer. That one does not is tried with real processes, by
 * tests/system/test_mount_hangs.py: it is a matter of one thread, and of no order of steps between processes. */
#include "env/reach.h"

bool mc_path_answers(const char *path, uint64_t until_ns)
{
    (void)path, (void)until_ns;
    return true;
}
