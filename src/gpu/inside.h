/* What the files of this room share. */
#ifndef MC_GPU_INSIDE_H
#define MC_GPU_INSIDE_H

#include "gpu/gpu.h"
#include "gpu/driver.h"

#include <pthread.h>

extern struct mc_gpu_table mc_driver; /* filled in before mc_gpu_state becomes 1 */

/* mc_gpu_is_there, after which the table may be read. */
static inline bool mc_gpu_is_ready(void)
{
    return atomic_load_explicit(&mc_gpu_state, memory_order_acquire) > 0;
}

/* In a forked child: what the lanes hold is the parent's. */
void mc_gpu_lanes_forget(void);

#endif
