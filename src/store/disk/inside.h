/* What the parts of an open disk know of each other. Everything here is the disk's thread's alone, but what is said to
 * be under the lock. */
#ifndef MC_DISK_INSIDE_H
#define MC_DISK_INSIDE_H

#include "store/disk/buffers.h"
#include "store/disk/directory.h"
#include "store/disk/index.h"
#include "store/disk/walk.h"

#include <pthread.h>
#include <stdatomic.h>

#define MC_DISK_GROUPS_MAX 8u /* being written */
#define MC_DISK_GROUP_ENTRIES_MAX 128u
#define MC_DISK_GROUP_BYTES_MAX (8u << 20)
#define MC_DISK_GROUP_BUFFER_MAX (1u << 20) /* its table, and small extents behind it */
#define MC_DISK_SMALL_BYTES                                                                                            \
    (64u << 10)                      /* extents up to so long are copied there; longer ones are written by themselves */
#define MC_DISK_REWRITES_MAX 4u      /* under way */
#define MC_DISK_WALKERS_MAX 8u       /* regions that are recovered at the same time */
#define MC_DISK_CLEARS_PAGES_MAX 32u /* of one write of the journal */
#define MC_DISK_CLEARS_LEAST 256u    /* pages of a file of the journal at most: between these, by the capacity */
#define MC_DISK_CLEARS_MOST 16384u
#define MC_DISK_COMPACT_LEAST 64u        /* pages of a file of the journal that is never copied */
#define MC_DISK_CLEARS_MAX 4096u         /* gathered for the next write */
#define MC_DISK_CLEARS_TASKS_MAX 2048u   /* of them by callers: the rest is for what the disk itself finds */
#define MC_DISK_FAILURES_MAX 3u          /* regions that fail in a row: then it is read-only */
#define MC_DISK_STORE_PART 4u            /* this part of the buffers is kept for reads */
#define MC_DISK_SLOW_BYTES (64u << 20)   /* under way: for each of them an operation may last slow_ms longer */
#define MC_DISK_PIECE_BYTES (256u << 10) /* a large extent is read in pieces of so much, or a power of two more, */
#define MC_DISK_PIECES_MAX 32u           /* and so many at most; a read for which not as many are free is one */
#define MC_DISK_PIECES_ALL MC_DISK_IO_DEPTH_MAX
#define MC_DISK_FULL_NS 10000000000ull /* before a file system that was full is asked for room again */
#define MC_DISK_JOURNAL_AGAIN_NS 200000000ull /* before what the journal found no room for is written again, so often: */
#define MC_DISK_JOURNAL_TRIES 5u
#define MC_DISK_ROOM_PART 16u /* of a region: what is left to others when it is given its bytes */
#define MC_DISK_DAY_NS (86400ull * 1000000000u)

struct mc_disk_task;
struct mc_disk_group;

/* One operation of a file. They are in a list in the order in which they began. */
struct mc_disk_flight {
    struct mc_disk_request request;
    struct mc_disk *disk;
    struct mc_disk_flight *previous, *next;
    uint64_t begun_ns, bytes_then; /* bytes under way when it began, its own among them */
    /* 0 or bytes that were read; a negative errno value, also for a write that is short. */
    void (*ended)(struct mc_disk_flight *flight, int64_t result);
};

enum mc_disk_task_kind {
    MC_DISK_TASK_STORE,
    MC_DISK_TASK_REWRITE,
    MC_DISK_TASK_READ,
    MC_DISK_TASK_CLEAR,
    MC_DISK_TASK_MARK,
    MC_DISK_TASK_INVENTORY
};

/* A call, or the writing of an object once more. */
struct mc_disk_task {
    struct mc_disk_flight flight; /* of its extent */
    enum mc_disk_task_kind kind;
    bool is_used, is_answered, is_removal;
    bool may_lie;              /* a removal: of something that was once here, or is */
    struct mc_disk_task *next; /* in the queue where it is */
    struct mc_disk_entry entry;
    uint32_t slot, region, page;
    uint64_t bytes; /* of the extent */
    uint8_t *buffer;
    struct mc_disk_group *group;
    uint64_t since_ns, until_ns;
    const struct mc_disk_place *places;
    size_t count, at;
    struct mc_disk_pieces {
        uint32_t count, left, bytes, there, checked; /* bits: read; and found to be as they should */
        int code;
    } pieces; /* of a read */
    struct mc_disk_mark mark;
    uint64_t cursor; /* sequence of the last region that was listed */
    void *context;
    union {
        mc_disk_stored *stored;
        mc_disk_was_read *was_read;
        mc_disk_done *done;
        mc_disk_listed *listed;
    } answer;
    mc_disk_each *each;
};
/* A part of an extent that is read; the last one holds all that is behind the data. */
struct mc_disk_piece {
    struct mc_disk_flight flight;
    struct mc_disk_task *task;
    struct mc_disk_piece *next; /* free */
    uint32_t number;
};
struct mc_disk_queue {
    struct mc_disk_task *first, *last;
    uint32_t count;
};

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
struct mc_disk_group {
    struct mc_disk_flight flight; /* of its table, and the small extents behind it */
    bool is_used, has_failed;
    uint32_t region, count, left, table_bytes;
    uint8_t *buffer;
    struct mc_disk_task *tasks[MC_DISK_GROUP_ENTRIES_MAX];
};

struct mc_disk_append {    /* region.c */
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
    struct mc_disk_flight growing_flight;
};
struct mc_disk_victim { /* evict.c */
    uint32_t region;    /* MC_DISK_NO_REGION: none */
    uint32_t unread;    /* goes next, since it cannot be listed; the listing waits for that. MC_DISK_NO_REGION: none */
    uint32_t next;      /* item to be looked at */
    uint32_t rewrites;  /* under way */
    uint64_t budget;    /* bytes that may still be written once more */
    bool is_killing;
};
struct mc_disk_journal { /* journal.c */
    enum { MC_DISK_JOURNAL_IDLE, MC_DISK_JOURNAL_BATCH, MC_DISK_JOURNAL_COMPACTING } stage;
    bool is_broken;
    bool is_reserved; /* its files have all the blocks they may need, or cannot have them ahead */
    bool is_crowded;  /* so much is dead that regions must be given up for it */
    uint32_t current; /* which file */
    uint64_t number;  /* of it */
    uint64_t pages, compact_at, pages_max;
    struct mc_disk_clear *gathered;
    uint32_t gathered_count;
    uint64_t gathered_ns; /* since when there are some */
    bool is_urgent;       /* somebody waits for them */
    struct mc_disk_queue clears, gathering, committing;
    struct mc_disk_place lost_gathering[MC_DISK_LOST_MAX], lost_committing[MC_DISK_LOST_MAX];
    uint32_t lost_gathering_count, lost_committing_count;
    bool kill_gathering, kill_committing;
    struct mc_disk_flight flight;
    uint8_t *out, *in; /* MC_DISK_CLEARS_PAGES_MAX pages each */
    uint32_t out_pages, out_records;
    uint32_t tries;    /* of what is written: there was no room for it */
    uint64_t again_ns; /* when it is written again; 0: nothing waits for room */
    uint64_t source_at, target_pages;
    uint32_t source_got, source_page, source_record;
    enum {
        MC_DISK_COMPACT_READ,
        MC_DISK_COMPACT_TAIL,
        MC_DISK_COMPACT_SYNC,
        MC_DISK_COMPACT_MARK,
        MC_DISK_COMPACT_DONE
    } compact_stage;
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
    bool is_stopping, is_over, is_abandoned; /* over: all is answered; abandoned: the thread frees everything */
    _Atomic bool closer_left;                /* nobody but the thread uses an abandoned disk any more */
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
    uint32_t final_syncs; /* when it is closed: 0 not begun */
};

/* ---- disk.c ---- */
static inline uint64_t mc_disk_now(const struct mc_disk *disk)
{
    return disk->config.clock_ns();
}
uint64_t mc_disk_wall_ms(void);
void mc_disk_queue_add(struct mc_disk_queue *queue, struct mc_disk_task *task);
struct mc_disk_task *mc_disk_queue_take(struct mc_disk_queue *queue);
/* Answers by its kind, once. slot: of a store; buffer: of a read. */
void mc_disk_task_answer(struct mc_disk_task *task, int code);
/* Answered; its buffer goes back unless it was handed out. */
void mc_disk_task_free(struct mc_disk *disk, struct mc_disk_task *task);

/* Recovery has ended. */
void mc_disk_ready(struct mc_disk *disk, int code);

/* ---- statistics.c ---- */
/* Puts what there is to tell where others look: what calls go by, and the statistics; these not while somebody looks,
 * unless it waits for that. */
void mc_disk_statistics_show(struct mc_disk *disk, bool waits);
/* A store ends without having been stored. */
void mc_disk_not_stored(struct mc_disk *disk, enum mc_store_disk_reason reason);
void mc_disk_latency_add(struct mc_store_disk_latency *latency, uint64_t since_ns, uint64_t now_ns);

/* ---- flight.c ---- */
void mc_disk_flight_start(struct mc_disk *disk, struct mc_disk_flight *flight, enum mc_disk_operation operation, int fd,
                          void *buffer, uint32_t length, uint64_t offset,
                          void (*ended)(struct mc_disk_flight *flight, int64_t result));
/* SLOW comes and goes by the oldest flight, but one that gives a region its bytes. */
/* After that it is slow, unless something ends; UINT64_MAX: nothing is under way. */
uint64_t mc_disk_slow_at_ns(const struct mc_disk *disk);
void mc_disk_health_turn(struct mc_disk *disk, uint64_t now_ns);
void mc_disk_read_only_set(struct mc_disk *disk, const char *why);

/* ---- region.c ---- */
static inline int mc_disk_region_fd(const struct mc_disk *disk, uint32_t region)
{
    return disk->volume_fds[region / MC_DISK_VOLUME_REGIONS];
}
static inline uint64_t mc_disk_region_at(const struct mc_disk *disk, uint32_t region, uint64_t offset)
{
    return (uint64_t)(region % MC_DISK_VOLUME_REGIONS) * disk->region_bytes + offset;
}
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
/* May the file system be asked for one more region? `grow` asks; false: that is not under way. */
bool mc_disk_region_can_grow(const struct mc_disk *disk);
bool mc_disk_region_grow(struct mc_disk *disk);
/* The footer that the region is getting; NULL: it is neither open nor sealing. */
struct mc_disk_footer *mc_disk_region_footer(struct mc_disk *disk, uint32_t region);

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

/* ---- journal.c ---- */
int mc_disk_journal_init(struct mc_disk *disk);
void mc_disk_journal_free(struct mc_disk *disk);
/* Blocks for all of its files, so that no removal fails when the file system is full; where they cannot be had ahead,
 * it may. False: there is no room for them now. */
bool mc_disk_journal_reserve(struct mc_disk *disk);
void mc_disk_journal_turn(struct mc_disk *disk, uint64_t now_ns);
/* For the next write, which comes soon but is not waited for. False: no room for it, or the journal is broken. */
bool mc_disk_journal_add(struct mc_disk *disk, const struct mc_disk_clear *clear);
/* Drops a live object that cannot be read and tells it as lost when the journal has it. */
void mc_disk_journal_lose(struct mc_disk *disk, uint32_t slot);
void mc_disk_journal_kill(struct mc_disk *disk, uint32_t region);
/* A region was killed: what names its objects is not needed any more. */
void mc_disk_journal_emptied(struct mc_disk *disk);
void mc_disk_journal_clear(struct mc_disk *disk, struct mc_disk_task *task);
bool mc_disk_journal_is_idle(const struct mc_disk *disk);
/* A page with records behind its head is made one of that file of the journal. */
void mc_disk_journal_page(const struct mc_disk *disk, uint8_t *page, uint64_t number, uint64_t at, uint32_t records,
                          uint32_t flags);
#define MC_DISK_CLEARS_WAIT_NS 1000000000ull /* what nobody waits for is written after so long */

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
