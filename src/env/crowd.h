/* Many descriptors behind one. Those that have not shown yet who they are may be ten thousand, and all be readable at
 * once; whoever watches them one by one, beside others, serves them all before it sees the others again. A crowd is a
 * descriptor that is readable while any of them is, and tells of one at a time, each in its turn, so that the others of
 * the loop have theirs in between. Of one thread. */
#ifndef MC_ENV_CROWD_H
#define MC_ENV_CROWD_H

#include <stdbool.h>
#include <stdint.h>

/* A descriptor; -1: none is to be had, and the caller watches each of them itself. */
int mc_crowd_open(void);
/* tag: what mc_crowd_next tells. False: out of memory. */
bool mc_crowd_add(int crowd, int fd, uint64_t tag);
/* Before fd is closed: a forked child may have a copy of it. */
void mc_crowd_remove(int crowd, int fd);
/* The tag of the next one that is readable, or has ended; it goes behind the others. False: none is. Never waits. */
bool mc_crowd_next(int crowd, uint64_t *tag);

#endif
