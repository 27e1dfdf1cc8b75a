/* What the parts of an open disk know of each other: the disk itself, and what task.h, region.h and journal.h have.
 * Everything here is the disk's thread's alone, but what is said to be under the lock. */
#ifndef MC_DISK_INSIDE_H
#define MC_DISK_INSIDE_H

#include "store/disk/buffers.h"
#include "store/disk/directory.h"
#include "store/disk/index.h"
#include "store/disk/journal.h"
#include "store/disk/region.h"
#include "store/disk/walk.h"

#include <pthread.h>
#include <stdatomic.h>

#define MC_DISK_GROUPS_MAX 8u /* being written */
#define MC_DISK_GROUP_ENTRIES_MAX 128u
#define MC_DISK_GROUP_BYTES_MAX (8u << 20)
#define MC_DISK_GROUP_BUFFER_MAX (1u << 20) /* its table, and small extents behind it */
#define MC_DISK_SMALL_BYTES                                                                                            \
    (64u << 10)                 /* extents up to so long are copied there; longer ones are written by themselves */
#define MC_DISK_REWRITES_MAX 4u /* under way */
#define MC_DISK_WALKERS_MAX 8u  /* regions that are recovered at the same time */
#define MC_DISK_STORE_PART 4u   /* this part of the buffers is kept for reads */
#define MC_DISK_DAY_NS (86400ull * 1000000000u)

struct mc_disk_group {
    struct mc_disk_flight flight; /* of its table, and the small extents behind it */
    bool is_used, has_failed;
    uint32_t region, count, left, table_bytes;
    uint8_t *buffer;
    struct mc_disk_task *tasks[MC_DISK_GROUP_ENTRIES_MAX];
};

struct mc_disk_victim { /* evict.c */
    uint32_t region;    /* MC_DISK_NO_REGION: none */
    uint32_t unread;    /* goes next, since it cannot be listed; the listing waits for that. MC_DISK_NO_REGION: none */
    uint32_t next;      /* item to be looked at */
    uint32_t rewrites;  /* under way */
    uint64_t budget;    /* bytes that may still be written once more */
    bool is_killing;
};
struct mc_disk_recovery; /* recover.c */

struct mc_disk {
    struct mc_disk_config config;
    struct mc_disk_directory directory;
    struct mc_disk_io *io;
    struct mc_disk_buffers buffers; /* any thread */
    atomic_bool is_buffer_wanted;   /* a read waits for one */
    uint64_t region_bytes;
    uint32_t objects_max, region_objects_max;
    uint32_t slot_count; /* numbers lie below it; settled when what lies there is known */

    /* Under the lock. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct mc_disk_queue inbox, free_tasks;
    bool is_stopping, is_answered, is_over, is_abandoned; /* over: closed; abandoned: the thread frees everything */
    _Atomic bool closer_left;                             /* nobody but the thread uses an abandoned disk any more */
    uint64_t grace_end_ns;
    uint64_t day_end_ns, day_bytes;
    enum mc_disk_health told; /* by which calls are refused */
    struct mc_disk_mark marked;

    _Atomic uint64_t refused, not_stored[MC_STORE_DISK_REASON_COUNT];

    /* Under a lock that the disk's thread takes if it can, and waits for only when it is ready. */
    pthread_mutex_t shown_lock;
    struct mc_disk_statistics shown;
    uint64_t shown_oldest_ns; /* when the oldest operation began; 0: there is none */

    pthread_t thread;
    struct mc_disk_task *tasks; /* MC_DISK_TASKS_MAX + MC_DISK_REWRITES_MAX */
    enum mc_disk_health health;
    bool is_dead; /* nothing is begun any more; flights that end are only counted */
    struct mc_disk_flight *oldest, *newest;
    uint64_t generation_top;    /* of all that was taken or found: what is above it was never here */
    struct mc_disk_queue reads; /* that wait for a buffer */
    struct mc_disk_piece pieces[MC_DISK_PIECES_ALL], *free_pieces;
    uint32_t free_piece_count;
    uint64_t flight_bytes; /* that they read and write */
    uint32_t flights;
    uint64_t deadline_ns; /* the earliest of a read; UINT64_MAX: none */
    struct mc_disk_statistics counts;

    struct mc_disk_region *regions;
    uint32_t region_count, regions_free, regions_there;
    int *volume_fds;
    uint32_t volume_count;
    uint64_t sequence; /* the last one given to a region */
    struct mc_disk_index index;

    struct mc_disk_queue pending; /* stores and rewrites */
    uint64_t pending_bytes;
    struct mc_disk_group *groups;
    uint32_t groups_used, group_buffer_bytes;
    struct mc_disk_append append;
    struct mc_disk_victim victim;
    struct mc_disk_journal journal;
    struct mc_disk_recovery *recovery; /* while it lasts */

    struct mc_disk_task *inventory; /* the one under way */
    struct mc_disk_walk walk;
    struct mc_disk_flight walk_flight;
    uint8_t *walk_bytes;
    uint32_t *page_slots; /* of the region that is listed: slot by page */

    struct mc_disk_queue marks;
    struct mc_disk_flight mark_flight;
    uint8_t *mark_page;
    bool mark_is_busy, mark_is_syncing;
    uint32_t marks_written; /* while it is: the first so many of these are answered with it */
    uint32_t final_syncs;   /* when it is closed: 0 not begun */
};

/* ---- disk.c ---- */
static inline uint64_t mc_disk_now(const struct mc_disk *disk)
{
    return disk->config.clock_ns();
}
uint64_t mc_disk_wall_ms(void);
/* Recovery has ended. */
void mc_disk_ready(struct mc_disk *disk, int code);
/* Written, of what the day's budget is of. */
void mc_disk_day_count(struct mc_disk *disk, uint64_t bytes);

/* ---- statistics.c ---- */
/* Puts what there is to tell where others look: what calls go by, and the statistics; these not while somebody looks,
 * unless it waits for that. */
void mc_disk_statistics_show(struct mc_disk *disk, bool waits);
/* A store ends without having been stored. */
void mc_disk_not_stored(struct mc_disk *disk, enum mc_store_disk_reason reason);
void mc_disk_latency_add(struct mc_store_disk_latency *latency, uint64_t since_ns, uint64_t now_ns);

/* ---- flight.c, as in task.h ---- */
/* After that it is slow, unless something ends; UINT64_MAX: nothing is under way. */
uint64_t mc_disk_slow_at_ns(const struct mc_disk *disk);
/* SLOW comes and goes by the oldest flight, but those that give a region or the journal bytes. */
void mc_disk_health_turn(struct mc_disk *disk, uint64_t now_ns);
void mc_disk_read_only_set(struct mc_disk *disk, const char *why);

/* ---- region.c, as in region.h ---- */
static inline int mc_disk_region_fd(const struct mc_disk *disk, uint32_t region)
{
    return disk->volume_fds[region / MC_DISK_VOLUME_REGIONS];
}
static inline uint64_t mc_disk_region_at(const struct mc_disk *disk, uint32_t region, uint64_t offset)
{
    return (uint64_t)(region % MC_DISK_VOLUME_REGIONS) * disk->region_bytes + offset;
}

/* ---- group.c ---- */
void mc_disk_pending_add(struct mc_disk *disk, struct mc_disk_task *task);
void mc_disk_groups_turn(struct mc_disk *disk, uint64_t now_ns);
/* Answers what is not being written yet. */
void mc_disk_pending_refuse(struct mc_disk *disk, int code);
/* Gives up the rewrites that are not being written yet. */
void mc_disk_rewrites_refuse(struct mc_disk *disk);

/* ---- evict.c ---- */
void mc_disk_victim_turn(struct mc_disk *disk);
/* The journal has it (0) that the victim is dead, or cannot have it. */
void mc_disk_victim_killed(struct mc_disk *disk, int code);
void mc_disk_rewrite_ended(struct mc_disk *disk, struct mc_disk_task *task);

/* ---- recover.c ---- */
int mc_disk_recovery_start(struct mc_disk *disk);
void mc_disk_recovery_free(struct mc_disk *disk);

/* ---- read.c ---- */
void mc_disk_pieces_init(struct mc_disk *disk);
void mc_disk_read_start(struct mc_disk *disk, struct mc_disk_task *task);
/* All that are not answered: nobody waits for a disk that does not answer. */
void mc_disk_reads_refuse(struct mc_disk *disk);
/* Those that wait for a buffer. */
void mc_disk_reads_turn(struct mc_disk *disk);
void mc_disk_deadlines_turn(struct mc_disk *disk, uint64_t now_ns);
void mc_disk_inventory_start(struct mc_disk *disk, struct mc_disk_task *task);
/* What could not be listed is gone, or with a code below 0 may be not. */
void mc_disk_inventory_go_on(struct mc_disk *disk, int code);

#endif
