/* From the files to the index, the same way however the last process or the machine ended: the journal, then every
 * region by its footer or its groups, then a sync of all that was read: a record may only be forgotten for the sake of
 * what a power failure cannot take back. */
#include "store/disk/dead.h"
#include "store/disk/inside.h"

#include "env/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS_MOST (4u * MC_DISK_OBJECTS_MAX)
#define JOURNAL_PAGES_MOST 65536u /* of a file that are looked at */
#define UNREAD_LIVES (1ull << 32) /* more than regions that cannot be read may have had since the last that is known */

struct walker {
    struct mc_disk_flight flight; /* first */
    struct mc_disk_walk walk;
    uint8_t *bytes;
};
struct journal_file {
    uint64_t number, last; /* of the latest pages in it, and the last of these */
    bool is_complete, is_used;
};

struct mc_disk_recovery {
    struct mc_disk_dead dead;
    struct journal_file files[MC_DISK_CLEARS_FILES];
    unsigned file;
    uint64_t page, single_until; /* page by page up to there, as one of them cannot be read */
    struct mc_disk_flight flight;
    struct walker walkers[MC_DISK_WALKERS_MAX];
    uint32_t next_region, active, sync;
    uint32_t unread, next_unread; /* regions of which something could not be read; where those are looked for */
    uint64_t begun_ns, dropped, damaged;
    int code; /* below 0: it ends with that when nothing is under way any more */
};

void mc_disk_recovery_free(struct mc_disk *disk)
{
    struct mc_disk_recovery *recovery = disk->recovery;
    if (recovery == NULL)
        return;
    for (unsigned i = 0; i < MC_DISK_WALKERS_MAX; i++)
        free(recovery->walkers[i].bytes);
    mc_disk_dead_free(&recovery->dead);
    free(recovery);
    disk->recovery = NULL;
}

static void recovery_end(struct mc_disk *disk, int code)
{
    disk->counts.recovery_ns = mc_disk_now(disk) - disk->recovery->begun_ns;
    if (disk->recovery->dropped > 0)
        mc_log(WARNING, "the disk %s: %" PRIu64 " objects are more than can be kept, and are left out",
               disk->directory.path, disk->recovery->dropped);
    if (disk->recovery->damaged > 0)
        mc_log(WARNING, "the disk %s: %" PRIu64 " regions are damaged; what lay there is lost", disk->directory.path,
               disk->recovery->damaged);
    mc_disk_recovery_free(disk);
    if (disk->index.top > disk->slot_count) /* it took more another time */
        disk->slot_count = disk->index.top;
    if (code != 0)
        disk->health = MC_DISK_CLOSED;
    else if (disk->health == MC_DISK_RECOVERING)
        disk->health = MC_DISK_WELL;
    mc_disk_ready(disk, code);
}

/* ---- the last stage: what was read is made to stay ---- */

static void sync_go(struct mc_disk *disk);

/* Without the journal nothing is told: what it says is dead is no longer asked for, and may be there again after the
 * next power failure. */
static void sync_ended(struct mc_disk_flight *flight, int64_t result)
{
    struct mc_disk *disk = flight->disk;
    uint32_t number = disk->recovery->sync++;
    if (result < 0 && number < disk->volume_count) {
        for (uint32_t i = 0; i < disk->region_count; i++) {
            if (i / MC_DISK_VOLUME_REGIONS == number)
                disk->regions[i].durable_sequence = 0;
        }
    } else if (result < 0) {
        recovery_end(disk, MC_ERR_FILE_WRITE_FAIL);
        return;
    }
    sync_go(disk);
}

static void sync_go(struct mc_disk *disk)
{
    struct mc_disk_recovery *recovery = disk->recovery;
    while (recovery->sync < disk->volume_count && disk->volume_fds[recovery->sync] < 0)
        recovery->sync++;
    if (recovery->sync == disk->volume_count + MC_DISK_CLEARS_FILES) {
        recovery_end(disk, 0);
        return;
    }
    int fd = recovery->sync < disk->volume_count ? disk->volume_fds[recovery->sync]
                                                 : disk->directory.clears_fd[recovery->sync - disk->volume_count];
    mc_disk_flight_start(disk, &recovery->flight, MC_DISK_SYNC, fd, NULL, 0, 0, sync_ended);
}

/* ---- regions that cannot be read ----
 *
 * Another time they may be. What lies there would be found then, and nobody knows of it any more: who was not told of
 * it takes it for lost. So they are dead from now on, before anything is told. */

static void unread_add(uint8_t *page, uint32_t *count, uint64_t generation, uint64_t sequence, uint32_t region)
{
    struct mc_disk_clear clear = {.generation = generation, .sequence = sequence, .region = region};
    memcpy(page + sizeof(struct mc_disk_head) + *count * sizeof(clear), &clear, sizeof(clear));
    (*count)++;
}

static void unread_go(struct mc_disk *disk);

static void unread_ended(struct mc_disk_flight *flight, int64_t result)
{
    struct mc_disk *disk = flight->disk;
    if (result < 0) {
        recovery_end(disk, MC_ERR_FILE_WRITE_FAIL);
        return;
    }
    disk->journal.pages++;
    unread_go(disk);
}

/* A page of the journal after the other. Whatever lives there had is below the sequence that is named. */
static void unread_go(struct mc_disk *disk)
{
    struct mc_disk_recovery *recovery = disk->recovery;
    struct mc_disk_journal *journal = &disk->journal;
    uint32_t count = 0;
    for (; recovery->next_unread < disk->region_count && count < MC_DISK_CLEARS_IN_PAGE; recovery->next_unread++) {
        struct mc_disk_region *region = &disk->regions[recovery->next_unread];
        if (!region->is_unread)
            continue;
        while (region->first != MC_DISK_NO_SLOT && count < MC_DISK_CLEARS_IN_PAGE - 1) {
            const struct mc_disk_item *item = &disk->index.items[region->first];
            if (item->is_copy) /* another may be found in another region */
                unread_add(journal->out, &count, item->entry.generation, disk->sequence, MC_DISK_NO_REGION);
            mc_disk_item_drop(disk, region->first);
        }
        if (region->first != MC_DISK_NO_SLOT)
            break;
        unread_add(journal->out, &count, 0, disk->sequence, recovery->next_unread);
        region->killed_sequence = disk->sequence;
    }
    if (count == 0) {
        sync_go(disk);
        return;
    }
    mc_disk_journal_page(disk, journal->out, journal->number, journal->pages, count, 0);
    mc_disk_flight_start(disk, &recovery->flight, MC_DISK_WRITE, disk->directory.clears_fd[journal->current],
                         journal->out, MC_DISK_PAGE, journal->pages * MC_DISK_PAGE, unread_ended);
}

static void regions_end(struct mc_disk *disk)
{
    if (disk->recovery->code < 0) {
        recovery_end(disk, disk->recovery->code);
        return;
    }
    if (disk->recovery->unread > 0)
        disk->sequence += UNREAD_LIVES;
    unread_go(disk);
}

/* ---- regions ---- */

/* Two copies of one generation: the later one, if its region was sealed. Else it may be torn, and the older one, whose
 * region was full when the later one was begun, is not. It is remembered that there are two. */
static void copy_take(struct mc_disk *disk, uint32_t slot, const struct mc_disk_walk *walk,
                      const struct mc_disk_record *record)
{
    struct mc_disk_item *item = &disk->index.items[slot];
    const struct mc_disk_region *known = &disk->regions[item->region];
    bool is_later = walk->header.sequence >= known->sequence;
    item->is_copy = true;
    if (!(is_later ? walk->has_footer : known->is_sealed))
        item->has_later = true;
    if (is_later ? !walk->has_footer : known->is_sealed)
        return;
    mc_disk_region_unlink(disk, slot);
    item->entry = record->entry;
    mc_disk_region_link(disk, slot, walk->region, record->page);
}

/* The slot is another's: only damage can say so, or a directory that was put together from two. The later region is
 * believed. */
static bool make_way(struct mc_disk *disk, uint32_t slot, const struct mc_disk_walk *walk)
{
    const struct mc_disk_item *item = &disk->index.items[slot];
    disk->recovery->dropped++;
    if (disk->regions[item->region].sequence > walk->header.sequence)
        return false;
    mc_disk_item_drop(disk, slot);
    return true;
}

static void record_take(struct mc_disk *disk, const struct mc_disk_walk *walk, const struct mc_disk_record *record)
{
    struct mc_disk_recovery *recovery = disk->recovery;
    uint32_t slot = record->slot;
    if (record->entry.generation > disk->generation_top)
        disk->generation_top = record->entry.generation;
    if (mc_disk_dead_has(&recovery->dead, record->entry.generation))
        return;
    if (mc_disk_index_find(&disk->index, slot, record->entry.generation) != NULL) {
        copy_take(disk, slot, walk, record);
        return;
    }
    if (slot < disk->index.top && disk->index.items[slot].is_taken && !make_way(disk, slot, walk))
        return;
    if (slot >= SLOTS_MOST) { /* nobody gives out such a one */
        recovery->dropped++;
        return;
    }
    /* Who could take more before has given out greater slots. What is left out here would come back another time. */
    if (!mc_disk_index_grow(&disk->index, slot)) {
        recovery->code = MC_ERR_NO_MEMORY;
        return;
    }
    (void)mc_disk_index_take(&disk->index, slot); /* it is free, see above */
    struct mc_disk_item *item = &disk->index.items[slot];
    item->entry = record->entry;
    item->is_copy = record->is_copy;
    mc_disk_region_link(disk, slot, walk->region, record->page);
}

static void table_take(struct mc_disk *disk, const struct mc_disk_walk *walk)
{
    struct mc_reader reader = mc_reader(walk->table.data, walk->table.length);
    struct mc_disk_record record;
    if (disk->regions[walk->region].killed_sequence >= walk->header.sequence)
        return;
    disk->regions[walk->region].is_sealed = walk->has_footer;
    while (mc_disk_record_next(&reader, disk->region_bytes, &record))
        record_take(disk, walk, &record);
}

static void region_end(struct mc_disk *disk, const struct mc_disk_walk *walk)
{
    struct mc_disk_region *region = &disk->regions[walk->region];
    region->state = MC_DISK_REGION_SEALED; /* nothing is added to one that was open: its end is not known for sure */
    region->durable_sequence = walk->verdict == MC_DISK_GOOD    ? walk->header.sequence
                               : walk->verdict == MC_DISK_BLANK ? UINT64_MAX
                                                                : 0;
    disk->recovery->damaged += walk->verdict == MC_DISK_GOOD || walk->verdict == MC_DISK_BLANK ? 0 : 1;
    if (walk->verdict == MC_DISK_GOOD && walk->header.sequence > disk->sequence)
        disk->sequence = walk->header.sequence;
    if (region->live == 0)
        mc_disk_region_set_free(disk, walk->region);
}

static void walker_next(struct mc_disk *disk, struct walker *walker);

static void walker_ended(struct mc_disk_flight *flight, int64_t result)
{
    struct mc_disk *disk = flight->disk;
    struct walker *walker = (struct walker *)flight; /* its first member */
    struct mc_disk_walk *walk = &walker->walk;
    bool was_header = walk->stage == MC_DISK_WALK_HEADER;
    bool has_more = mc_disk_walk_feed(walk, walker->bytes, result < 0 ? 0 : (uint32_t)result);
    struct mc_disk_region *region = &disk->regions[walk->region];
    if (result < 0 && !region->is_unread) {
        region->is_unread = true;
        disk->recovery->unread++;
    }
    if (was_header && result < 0)
        walk->verdict = MC_DISK_DAMAGED; /* it may be read another time */
    if (was_header && walk->verdict == MC_DISK_GOOD) {
        region->sequence = walk->header.sequence;
        region->salt = walk->header.salt;
        region->opened_wall_ms = walk->header.at;
    }
    table_take(disk, walk);
    if (has_more) {
        mc_disk_flight_start(disk, &walker->flight, MC_DISK_READ, mc_disk_region_fd(disk, walk->region), walker->bytes,
                             walk->length, mc_disk_region_at(disk, walk->region, walk->offset), walker_ended);
        return;
    }
    region_end(disk, walk);
    disk->recovery->active--;
    walker_next(disk, walker);
}

static void walker_next(struct mc_disk *disk, struct walker *walker)
{
    struct mc_disk_recovery *recovery = disk->recovery;
    uint32_t region = recovery->code < 0 ? disk->region_count : recovery->next_region;
    while (region < disk->region_count && disk->regions[region].state == MC_DISK_REGION_NONE)
        region++;
    recovery->next_region = region + 1;
    if (region >= disk->region_count) {
        recovery->next_region = disk->region_count;
        if (recovery->active == 0)
            regions_end(disk);
        return;
    }
    recovery->active++;
    struct mc_disk_walk *walk = &walker->walk;
    mc_disk_walk_start(walk, disk->directory.super.segment_id, disk->region_bytes, region);
    mc_disk_flight_start(disk, &walker->flight, MC_DISK_READ, mc_disk_region_fd(disk, region), walker->bytes,
                         walk->length, mc_disk_region_at(disk, region, walk->offset), walker_ended);
}

static void regions_go(struct mc_disk *disk)
{
    struct mc_disk_recovery *recovery = disk->recovery;
    recovery->active = 1; /* so that nothing ends while the first ones are started */
    for (unsigned i = 0; i < MC_DISK_WALKERS_MAX; i++)
        walker_next(disk, &recovery->walkers[i]);
    if (--recovery->active == 0)
        regions_end(disk);
}

/* ---- the journal ---- */

static void journal_read(struct mc_disk *disk);

/* The greatest complete number counts. The other file has a later one when a compaction did not end, or when the page
 * that said so is damaged: what it holds is then added to ours before anything is written there. */
static unsigned file_choose(const struct mc_disk_recovery *recovery)
{
    const struct journal_file *files = recovery->files;
    unsigned best = 0;
    for (unsigned i = 1; i < MC_DISK_CLEARS_FILES; i++) {
        bool is_better = files[i].is_complete != files[best].is_complete ? files[i].is_complete
                                                                         : files[i].number > files[best].number;
        best = is_better ? i : best;
    }
    return best;
}

static void adopt_go(struct mc_disk *disk);

static void adopt_ended(struct mc_disk_flight *flight, int64_t result)
{
    struct mc_disk *disk = flight->disk;
    struct mc_disk_journal *journal = &disk->journal;
    struct mc_disk_recovery *recovery = disk->recovery;
    if (flight->request.operation == MC_DISK_WRITE) {
        if (result < 0) {
            recovery_end(disk, MC_ERR_FILE_WRITE_FAIL);
            return;
        }
        journal->pages += flight->request.length / MC_DISK_PAGE;
        adopt_go(disk);
        return;
    }
    if (result < 0) {
        recovery_end(disk, MC_ERR_FILE_READ_FAIL);
        return;
    }
    uint32_t kept = 0, got = (uint32_t)(result / MC_DISK_PAGE);
    for (uint32_t i = 0; i < got; i++) {
        struct mc_disk_head head;
        uint8_t *page = journal->in + i * MC_DISK_PAGE;
        if (!mc_disk_clears_read(page, disk->directory.super.segment_id, &head) || head.count == 0 ||
            head.sequence != recovery->files[1 - journal->current].number)
            continue;
        head.sequence = journal->number;
        head.at = journal->pages + kept;
        head.flags = 0;
        mc_disk_head_seal(&head);
        memcpy(page, &head, sizeof(head));
        memmove(journal->in + kept * MC_DISK_PAGE, page, MC_DISK_PAGE);
        kept++;
    }
    recovery->page += MC_DISK_CLEARS_PAGES_MAX;
    if (kept == 0) {
        adopt_go(disk);
        return;
    }
    mc_disk_flight_start(disk, flight, MC_DISK_WRITE, disk->directory.clears_fd[journal->current], journal->in,
                         kept * MC_DISK_PAGE, journal->pages * MC_DISK_PAGE, adopt_ended);
}

/* They are synced with all else at the end. */
static void adopt_go(struct mc_disk *disk)
{
    struct mc_disk_recovery *recovery = disk->recovery;
    const struct journal_file *other = &recovery->files[1 - disk->journal.current];
    if (recovery->page > other->last) {
        regions_go(disk);
        return;
    }
    mc_disk_flight_start(disk, &recovery->flight, MC_DISK_READ, disk->directory.clears_fd[1 - disk->journal.current],
                         disk->journal.in, MC_DISK_CLEARS_PAGES_MAX * MC_DISK_PAGE, recovery->page * MC_DISK_PAGE,
                         adopt_ended);
}

static void journal_end(struct mc_disk *disk)
{
    struct mc_disk_recovery *recovery = disk->recovery;
    struct mc_disk_journal *journal = &disk->journal;
    journal->current = file_choose(recovery);
    const struct journal_file *ours = &recovery->files[journal->current];
    const struct journal_file *other = &recovery->files[1 - journal->current];
    journal->number = ours->number;
    journal->pages = ours->is_used ? ours->last + 1 : 0;
    bool has_more = other->is_used && other->number >= ours->number;
    journal->compact_at = has_more ? 0 : journal->pages_max / 2;
    recovery->page = 0;
    if (has_more)
        adopt_go(disk);
    else
        regions_go(disk);
}

static int clear_take(struct mc_disk *disk, const struct mc_disk_clear *clear)
{
    if (clear->sequence > disk->sequence && clear->sequence <= MC_DISK_SEQUENCE_MAX)
        disk->sequence = clear->sequence;
    if (clear->generation != 0)
        return mc_disk_dead_add(&disk->recovery->dead, clear->generation);
    if (clear->region < disk->region_count && clear->sequence > disk->regions[clear->region].killed_sequence)
        disk->regions[clear->region].killed_sequence = clear->sequence;
    return 0;
}

static int page_take(struct mc_disk *disk, const uint8_t *page, uint64_t at)
{
    struct journal_file *file = &disk->recovery->files[disk->recovery->file];
    struct mc_disk_head head;
    int rc = 0;
    if (!mc_disk_clears_read(page, disk->directory.super.segment_id, &head) || head.at != at ||
        head.sequence > MC_DISK_SEQUENCE_MAX)
        return 0;
    for (uint32_t i = 0; i < head.count && rc == 0; i++) {
        struct mc_disk_clear clear;
        memcpy(&clear, page + sizeof(head) + i * sizeof(clear), sizeof(clear));
        rc = clear_take(disk, &clear);
    }
    if (!file->is_used || head.sequence > file->number)
        *file = (struct journal_file){.number = head.sequence, .is_used = true};
    if (head.sequence == file->number) {
        file->last = at;
        file->is_complete = file->is_complete || (head.flags & MC_DISK_CLEARS_COMPLETE) != 0;
    }
    return rc;
}

static uint32_t pages_wanted(const struct mc_disk_recovery *recovery)
{
    return recovery->page < recovery->single_until ? 1 : MC_DISK_CLEARS_PAGES_MAX;
}

static void journal_ended(struct mc_disk_flight *flight, int64_t result)
{
    struct mc_disk *disk = flight->disk;
    struct mc_disk_recovery *recovery = disk->recovery;
    uint32_t wanted = flight->request.length / MC_DISK_PAGE;
    int rc = 0;
    if (result < 0 && wanted > 1) { /* one of them cannot be read */
        recovery->single_until = recovery->page + wanted;
        journal_read(disk);
        return;
    }
    if (result < 0) {
        mc_log(ERROR, "the disk %s: a page of the journal of removals cannot be read: %s", disk->directory.path,
               strerror((int)-result));
        recovery_end(disk, MC_ERR_FILE_READ_FAIL); /* what it names would come back */
        return;
    }
    uint32_t got = (uint32_t)(result / MC_DISK_PAGE);
    for (uint32_t i = 0; i < got && rc == 0; i++)
        rc = page_take(disk, disk->journal.in + i * MC_DISK_PAGE, recovery->page + i);
    if (rc < 0) {
        recovery_end(disk, rc); /* without it, what was removed could come back */
        return;
    }
    recovery->page += wanted;
    bool is_end = got < wanted;
    if (is_end || recovery->page >= JOURNAL_PAGES_MOST) {
        recovery->file++;
        recovery->page = recovery->single_until = 0;
    }
    journal_read(disk);
}

static void journal_read(struct mc_disk *disk)
{
    struct mc_disk_recovery *recovery = disk->recovery;
    if (recovery->file == MC_DISK_CLEARS_FILES) {
        journal_end(disk);
        return;
    }
    mc_disk_flight_start(disk, &recovery->flight, MC_DISK_READ, disk->directory.clears_fd[recovery->file],
                         disk->journal.in, pages_wanted(recovery) * MC_DISK_PAGE, recovery->page * MC_DISK_PAGE,
                         journal_ended);
}

int mc_disk_recovery_start(struct mc_disk *disk)
{
    struct mc_disk_recovery *recovery = calloc(1, sizeof(*recovery));
    disk->recovery = recovery;
    if (recovery == NULL)
        return MC_ERR_NO_MEMORY;
    recovery->begun_ns = mc_disk_now(disk);
    size_t bytes = mc_disk_walk_bytes(disk->region_bytes);
    for (unsigned i = 0; i < MC_DISK_WALKERS_MAX; i++) {
        recovery->walkers[i].bytes = aligned_alloc(MC_DISK_IO_ALIGNMENT, bytes);
        if (recovery->walkers[i].bytes == NULL) {
            mc_disk_recovery_free(disk);
            return MC_ERR_NO_MEMORY;
        }
    }
    journal_read(disk);
    return 0;
}
