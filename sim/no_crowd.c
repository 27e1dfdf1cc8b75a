/* There are no crowds here: who has not said hello is watched like all others. */
#include "env/crowd.h"

#include <stdlib.h>

int mc_crowd_open(void)
{
    return -1;
}

bool mc_crowd_add(int crowd, int fd, uint64_t tag)
{
    (void)crowd, (void)fd, (void)tag;
    abort();
}

void mc_crowd_remove(int crowd, int fd)
{
    (void)crowd, (void)fd;
    abort();
}

bool mc_crowd_next(int crowd, uint64_t *tag)
{
    (void)crowd, (void)tag;
    abort();
}
