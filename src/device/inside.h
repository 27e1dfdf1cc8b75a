/* What the files of this room share. */
#ifndef MC_DEVICE_INSIDE_H
#define MC_DEVICE_INSIDE_H

#include "device/device.h"
#include "device/driver.h"

#include <pthread.h>

extern struct mc_device_table mc_driver; /* filled in before mc_device_state becomes 1 */

/* mc_device_is_there, after which the table may be read. */
static inline bool mc_device_is_ready(void)
{
    return atomic_load_explicit(&mc_device_state, memory_order_acquire) > 0;
}

/* In a forked child: what the lanes hold is the parent's. */
void mc_device_lanes_forget(void);

#endif
