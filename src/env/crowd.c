/* An epoll, which is readable itself when one of its own is; what it has told of goes behind the others. */
#include "env/crowd.h"

#include <stddef.h>
#include <sys/epoll.h>

int mc_crowd_open(void)
{
    return epoll_create1(EPOLL_CLOEXEC);
}

bool mc_crowd_add(int crowd, int fd, uint64_t tag)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = tag};
    return epoll_ctl(crowd, EPOLL_CTL_ADD, fd, &event) == 0;
}

void mc_crowd_remove(int crowd, int fd)
{
    (void)epoll_ctl(crowd, EPOLL_CTL_DEL, fd, NULL);
}

bool mc_crowd_next(int crowd, uint64_t *tag)
{
    struct epoll_event event;
    if (epoll_wait(crowd, &event, 1, 0) != 1)
        return false;
    *tag = event.data.u64;
    return true;
}
