/* Looks at a disk's directory without being the disk: what mooncake_disk does. Only reads, also the lock: that of a
 * running process is seen, and none is kept. */
#ifndef MC_DISK_OFFLINE_H
#define MC_DISK_OFFLINE_H

#include "base/bytes.h"

#include <stdio.h>

enum mc_disk_look_kind {
    MC_DISK_LOOK_STAT, /* regions, and how much lives in them */
    MC_DISK_LOOK_LIST, /* every live object */
    MC_DISK_LOOK_CHECK /* every block sum of every live object */
};
/* What a look ends with, and the command. */
enum mc_disk_look_code {
    MC_DISK_LOOK_WHOLE = 0,
    MC_DISK_LOOK_DAMAGED = 1,
    MC_DISK_LOOK_NO_DISK = 2, /* nothing there, or nothing that this version can read */
    MC_DISK_LOOK_IN_USE = 3   /* what is checked would change meanwhile: nothing was done */
};

/* path: a directory mooncake-c.<n>, or one that holds such. Writes text or JSON to out; what prevents a look goes
 * there, too. */
enum mc_disk_look_code mc_disk_look(const char *path, enum mc_disk_look_kind kind, bool is_json, FILE *out);

#endif
