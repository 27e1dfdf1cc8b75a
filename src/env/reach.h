/* Does a file system answer? One that is mounted from elsewhere may hang for ever at the first touch, as NFS does whose
 * server is away, and nothing ends who waits there: so that touch is made by a thread that can be left alone. */
#ifndef MC_ENV_REACH_H
#define MC_ENV_REACH_H

#include <stdbool.h>
#include <stdint.h>

/* Something was said of the directory by then (mc_clock_ns), if only that it is not there, and then of what it would
 * lie in. False: nothing was, and who touches it may wait for ever. True also where there is no memory or thread to
 * ask with. */
bool mc_path_answers(const char *path, uint64_t until_ns);

#endif
