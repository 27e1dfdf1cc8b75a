/* Does a file system answer? One that is mounted from elsewhere may hang for ever at the first touch, as NFS does whose
 * server is away, and nothing ends who waits there: so that touch is made by a thread that can be left alone. */
#ifndef MC_ENV_REACH_H
#define MC_ENV_REACH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MC_REACH_PATHS_MAX 16u /* of one call */
#define MC_REACH_LEFT_MAX 32u /* threads of this process that are left alone; while there are so many nobody is asked */
#define MC_REACH_AGAIN_MAX 2u /* of them at the same path: who tries again for ever leaves no more there */

/* Something was said of the directory by then (mc_clock_ns), if only that it is not there, and then of what it would
 * lie in. False: nothing was, and who touches it may wait for ever; or it is not asked, as said above. True also where
 * there is no memory or thread to ask with, and of an empty path. Any thread. */
bool mc_path_answers(const char *path, uint64_t until_ns);
/* The same of several, at most MC_REACH_PATHS_MAX, which are asked at the same time: answers has a place for each. */
void mc_path_answers_each(const char *const *paths, size_t count, uint64_t until_ns, bool *answers);

#endif
