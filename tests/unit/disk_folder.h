/* Around a test of a disk over the rig: a directory of its own, and what a disk in it is opened with. */
#ifndef MC_TEST_DISK_FOLDER_H
#define MC_TEST_DISK_FOLDER_H

#include "disk_rig.h"

static char *path;
static struct mc_disk_config config;

static int folder_make(void **state)
{
    (void)state;
    rig_reset(1);
    path = rig_directory();
    config = rig_config(path);
    return 0;
}

static int folder_remove(void **state)
{
    (void)state;
    rig_remove(path);
    return 0;
}

#endif
