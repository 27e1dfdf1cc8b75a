/* Is a folder fit to hold a node's disk tier? Findings for people, each with what to do, and figures for the caller.
 * What is tried leaves no file behind, even if the process is killed where the file system has files without names.
 *
 * FIT; NOTED, worth knowing; WARNED, works, but slower or less safely than it could; UNFIT, cannot be used. */
#ifndef MC_DISK_PROBE_H
#define MC_DISK_PROBE_H

#include "store/disk/io.h"

#include <stdbool.h>
#include <stdint.h>

#define MC_DISK_FINDINGS_MAX 16u
#define MC_DISK_FINDING_TEXT_MAX 512u
#define MC_DISK_PROBE_BYTES (64u << 20)       /* written and read at most, to see how fast it is */
#define MC_DISK_PROBE_NS UINT64_C(2000000000) /* and for how long, each way */
#define MC_DISK_PROBE_BLOCK (1u << 20)
#define MC_DISK_PROBE_DEPTH 8u
#define MC_DISK_ROOM_LEAST (UINT64_C(1) << 30) /* bytes below which a disk tier is hardly worth it: one volume */

enum mc_disk_fitness { MC_DISK_FIT, MC_DISK_NOTED, MC_DISK_WARNED, MC_DISK_UNFIT };

struct mc_disk_finding {
    enum mc_disk_fitness fitness;
    const char *name;
    char value[MC_DISK_FINDING_TEXT_MAX];
    const char *fix; /* what to do; NULL: nothing */
    int error;       /* errno; 0: none */
};

struct mc_disk_probe {
    struct mc_disk_finding findings[MC_DISK_FINDINGS_MAX];
    unsigned count;
    uint32_t alignment;                         /* that O_DIRECT asks for; 0: it is not possible */
    uint64_t free_bytes;                        /* for this user */
    uint64_t read_per_second, write_per_second; /* bytes; 0: not tried */
};

/* It takes as long as the file system does to answer: two seconds each way, more where one that hangs is mounted. */
void mc_disk_probe(const char *path, bool with_speed, struct mc_disk_probe *probe);
/* What makes the folder unfit, or NULL. */
const struct mc_disk_finding *mc_disk_probe_unfit(const struct mc_disk_probe *probe);

/* ---- for the parts of the probe ---- */

void mc_disk_probe_say(struct mc_disk_probe *probe, enum mc_disk_fitness fitness, const char *name, int error,
                       const char *fix, const char *format, ...) __attribute__((format(printf, 6, 7)));
/* Which file system the folder is of, and what device it lies on. */
void mc_disk_probe_mount(struct mc_disk_probe *probe, const char *path);
/* How fast the file, empty and with O_DIRECT if that is possible, is written and read; size: bytes of it at most. */
void mc_disk_probe_speed(struct mc_disk_probe *probe, int fd, uint64_t size);

#endif
