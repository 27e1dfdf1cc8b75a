/* The journal of an open disk: what is dead, written down before it is said. */
#ifndef MC_DISK_JOURNAL_H
#define MC_DISK_JOURNAL_H

#include "store/disk/format.h"
#include "store/disk/task.h"

#define MC_DISK_CLEARS_PAGES_MAX 32u /* of one write of the journal */
#define MC_DISK_CLEARS_LEAST 256u    /* pages of a file of the journal at most: between these, by the capacity */
#define MC_DISK_CLEARS_MOST 16384u
#define MC_DISK_COMPACT_LEAST 64u             /* pages of a file of the journal that is never copied */
#define MC_DISK_CLEARS_MAX 4096u              /* gathered for the next write */
#define MC_DISK_CLEARS_TASKS_MAX 2048u        /* of them by callers: the rest is for what the disk itself finds */
#define MC_DISK_CLEARS_WAIT_NS 1000000000ull  /* what nobody waits for is written after so long */
#define MC_DISK_JOURNAL_AGAIN_NS 200000000ull /* before what finds no room is written again, so often: */
#define MC_DISK_JOURNAL_TRIES 5u

struct mc_disk_journal {
    enum { MC_DISK_JOURNAL_IDLE, MC_DISK_JOURNAL_BATCH, MC_DISK_JOURNAL_COMPACTING } stage;
    bool is_broken;
    bool is_reserved; /* its files have all the blocks they may need, or cannot have them ahead */
    bool is_reserving;
    struct mc_disk_flight reserve_flight;
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

int mc_disk_journal_init(struct mc_disk *disk);
void mc_disk_journal_free(struct mc_disk *disk);
/* Blocks for all of its files, so that no removal fails when the file system is full; where they cannot be had ahead,
 * it may. Waits for the file system; any thread. False: there is no room for them now. */
bool mc_disk_journal_blocks(const struct mc_disk *disk);
/* Begins that, unless they are there. */
void mc_disk_journal_reserve(struct mc_disk *disk);
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

#endif
