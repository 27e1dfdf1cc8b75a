/* The regions of an open disk: what is known of each, and the one that takes objects. */
#ifndef MC_DISK_REGION_H
#define MC_DISK_REGION_H

#include "store/disk/task.h"

#define MC_DISK_FAILURES_MAX 3u          /* regions that fail in a row: then it is read-only */
#define MC_DISK_FULL_NS 10000000000ull   /* before a file system that was full is asked for room again */
#define MC_DISK_GROWTH_NS 10000000000ull /* a file system that takes longer to give a region its bytes counts as full */
#define MC_DISK_ROOM_PART 16u            /* of a region: what is left to others when it is given its bytes */

enum mc_disk_region_state {
    MC_DISK_REGION_NONE, /* no bytes of a file yet */
    MC_DISK_REGION_FREE,
    MC_DISK_REGION_OPEN,    /* takes objects */
    MC_DISK_REGION_SEALING, /* is full */
    MC_DISK_REGION_SEALED,
    MC_DISK_REGION_RETIRED /* a write failed: what can be read there is read, and nothing is written */
};
struct mc_disk_region {
    uint64_t sequence, salt; /* of its life; 0: none */
    /* What the disk shows after a power failure is of this life or a later one. 0: not known; UINT64_MAX: there never
     * was one. */
    uint64_t durable_sequence;
    uint64_t killed_sequence; /* the journal says that all up to this life is dead */
    uint64_t opened_wall_ms;
    uint64_t live_bytes;
    uint32_t first; /* item */
    uint32_t live;
    uint32_t writes; /* under way into it */
    uint8_t state;
    bool is_sealed; /* recovery: it has a footer */
    bool is_unread; /* recovery: something of it could not be read */
};
struct mc_disk_footer { /* the table of a region that is being filled */
    uint8_t *bytes;
    uint32_t used, count;
};
struct mc_disk_append {
    uint32_t open;         /* MC_DISK_NO_REGION: none */
    uint64_t at;           /* in it */
    uint32_t footer_bytes; /* promised: of what was written and is being written */
    struct mc_disk_footer *footer;
    uint8_t *header_page;
    struct mc_disk_flight header_flight;
    uint32_t header_region;
    bool header_is_busy;
    uint32_t sealing;
    enum { MC_DISK_SEAL_WRITES, MC_DISK_SEAL_FOOTER, MC_DISK_SEAL_SYNC } seal_stage;
    struct mc_disk_footer *sealing_footer;
    struct mc_disk_flight seal_flight;
    struct mc_disk_footer footers[2];
    uint32_t failures;      /* regions in a row */
    bool is_full;           /* the file system gave no more when it was asked last */
    uint64_t full_until_ns; /* before that it is not asked again */
    uint32_t growing;       /* is being given its bytes; MC_DISK_NO_REGION: none */
    bool is_growth_late;    /* nobody waits for that any more */
    bool has_reserved;      /* the journal's blocks, first; the growth's until that has ended, and so is the next */
    _Atomic int growing_fd; /* of a volume that it has opened; -1: none */
    struct mc_disk_flight growing_flight;
};

/* Is there room for a group whose pages and records are so long? `room` opens and seals regions for that. */
bool mc_disk_region_fits(const struct mc_disk *disk, uint64_t bytes, uint32_t footer_bytes);
/* Of the open one. False: not now. */
bool mc_disk_region_seal(struct mc_disk *disk);
bool mc_disk_region_room(struct mc_disk *disk, uint64_t bytes, uint32_t footer_bytes);
void mc_disk_region_turn(struct mc_disk *disk);
/* A write into it failed. */
void mc_disk_region_retire(struct mc_disk *disk, uint32_t region, int error);
/* Into and out of the region's list; one that has nothing left is free. */
void mc_disk_region_link(struct mc_disk *disk, uint32_t slot, uint32_t region, uint32_t page);
void mc_disk_region_unlink(struct mc_disk *disk, uint32_t slot);
/* Unlinks and releases. */
void mc_disk_item_drop(struct mc_disk *disk, uint32_t slot);
void mc_disk_region_set_free(struct mc_disk *disk, uint32_t region);
/* Is a region being given its bytes, so that who needs one waits? */
static inline bool mc_disk_region_is_growing(const struct mc_disk_append *append)
{
    return append->growing != MC_DISK_NO_REGION && !append->is_growth_late;
}
/* May the file system be asked for one more region? `grow` asks; false: that is not under way. */
bool mc_disk_region_can_grow(const struct mc_disk *disk);
bool mc_disk_region_grow(struct mc_disk *disk);
/* The footer that the region is getting; NULL: it is neither open nor sealing. */
struct mc_disk_footer *mc_disk_region_footer(struct mc_disk *disk, uint32_t region);

#endif
