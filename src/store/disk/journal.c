/* The journal of what is dead: pages that are only ever added to one of two files, each proving itself, a write and a
 * sync for all that was gathered. A record never becomes false, as no generation and no life of a region comes twice;
 * it only becomes needless, when the region it speaks of has been overwritten for good. When a file holds too many of
 * those, the others are copied to the other file, which counts from the moment its last page says that it is complete:
 * until then nothing is added to either. */
#include "store/disk/inside.h"

#include "env/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Of both files, that the file system has not given yet. */
static uint64_t missing_bytes(const struct mc_disk *disk)
{
    uint64_t wanted = disk->journal.pages_max * MC_DISK_PAGE, missing = 0;
    for (unsigned i = 0; i < MC_DISK_CLEARS_FILES; i++) {
        struct stat status;
        uint64_t there = fstat(disk->directory.clears_fd[i], &status) == 0 ? (uint64_t)status.st_blocks * 512 : 0;
        missing += there < wanted ? wanted - there : 0;
    }
    return missing;
}

bool mc_disk_journal_blocks(const struct mc_disk *disk)
{
    uint64_t missing = missing_bytes(disk);
    if (missing > 0 && mc_disk_directory_room(&disk->directory) < missing + disk->region_bytes / MC_DISK_ROOM_PART)
        return false;
    for (unsigned i = 0; i < MC_DISK_CLEARS_FILES; i++) {
        if (fallocate(disk->directory.clears_fd[i], FALLOC_FL_KEEP_SIZE, 0,
                      (off_t)(disk->journal.pages_max * MC_DISK_PAGE)) != 0 &&
            (errno == ENOSPC || errno == EDQUOT))
            return false;
    }
    return true;
}

static int64_t reserve_call(struct mc_disk_request *request)
{
    return mc_disk_journal_blocks(((struct mc_disk_flight *)request)->disk) ? 0 : -ENOSPC; /* its first member */
}

static void reserve_ended(struct mc_disk_flight *flight, int64_t result)
{
    struct mc_disk_journal *journal = &flight->disk->journal;
    journal->is_reserving = false;
    journal->is_reserved = journal->is_reserved || result == 0;
}

void mc_disk_journal_reserve(struct mc_disk *disk)
{
    struct mc_disk_journal *journal = &disk->journal;
    if (journal->is_reserved || journal->is_reserving)
        return;
    journal->is_reserving = true;
    mc_disk_flight_call(disk, &journal->reserve_flight, reserve_call, reserve_ended);
}

int mc_disk_journal_init(struct mc_disk *disk)
{
    struct mc_disk_journal *journal = &disk->journal;
    uint64_t pages = (uint64_t)disk->region_count * 4;
    journal->pages_max = pages < MC_DISK_CLEARS_LEAST  ? MC_DISK_CLEARS_LEAST
                         : pages > MC_DISK_CLEARS_MOST ? MC_DISK_CLEARS_MOST
                                                       : pages;
    journal->gathered = calloc(MC_DISK_CLEARS_MAX, sizeof(*journal->gathered));
    journal->out = aligned_alloc(MC_DISK_IO_ALIGNMENT, MC_DISK_CLEARS_PAGES_MAX * MC_DISK_PAGE);
    journal->in = aligned_alloc(MC_DISK_IO_ALIGNMENT, MC_DISK_CLEARS_PAGES_MAX * MC_DISK_PAGE);
    journal->is_reserved = mc_disk_journal_blocks(disk); /* else before the next region */
    return journal->gathered == NULL || journal->out == NULL || journal->in == NULL ? MC_ERR_NO_MEMORY : 0;
}

void mc_disk_journal_free(struct mc_disk *disk)
{
    free(disk->journal.in);
    free(disk->journal.out);
    free(disk->journal.gathered);
}

bool mc_disk_journal_is_idle(const struct mc_disk *disk)
{
    const struct mc_disk_journal *journal = &disk->journal;
    return journal->is_broken ||
           (journal->stage == MC_DISK_JOURNAL_IDLE && journal->gathered_count == 0 && journal->clears.count == 0);
}

/* ---- what is gathered ---- */

static bool record_add(struct mc_disk *disk, const struct mc_disk_clear *clear, bool is_urgent)
{
    struct mc_disk_journal *journal = &disk->journal;
    if (journal->gathered_count == MC_DISK_CLEARS_MAX || journal->is_broken)
        return false;
    if (journal->gathered_count == 0)
        journal->gathered_ns = mc_disk_now(disk);
    journal->gathered[journal->gathered_count++] = *clear;
    journal->is_urgent = journal->is_urgent || is_urgent;
    return true;
}

bool mc_disk_journal_add(struct mc_disk *disk, const struct mc_disk_clear *clear)
{
    /* One place is kept for the death of a region, without which nothing goes on. */
    if (disk->journal.gathered_count + 1 < MC_DISK_CLEARS_MAX && record_add(disk, clear, false))
        return true;
    mc_log_limited(WARNING, "the disk %s cannot note what is dead; it may come back when it is opened again",
                   disk->directory.path);
    return false;
}

static bool item_note(struct mc_disk *disk, const struct mc_disk_item *item, bool is_urgent)
{
    /* One that is or was written once more may lie in several regions, but in none that is opened from now on. */
    bool is_anywhere = item->is_copy || item->is_moving;
    struct mc_disk_clear clear = {
        .generation = item->entry.generation,
        .sequence = is_anywhere ? disk->sequence : disk->regions[item->region].sequence,
        .region = is_anywhere ? MC_DISK_NO_REGION : item->region,
    };
    disk->journal.is_urgent = disk->journal.is_urgent || is_urgent;
    return mc_disk_journal_add(disk, &clear);
}

void mc_disk_journal_lose(struct mc_disk *disk, uint32_t slot)
{
    struct mc_disk_journal *journal = &disk->journal;
    const struct mc_disk_item *item = &disk->index.items[slot];
    struct mc_disk_place place = {slot, item->entry.generation};
    bool is_noted = item_note(disk, item, false);
    mc_disk_item_drop(disk, slot);
    disk->counts.lost++;
    if (is_noted && journal->lost_gathering_count < MC_DISK_LOST_MAX)
        journal->lost_gathering[journal->lost_gathering_count++] = place;
    journal->is_urgent = true;
}

void mc_disk_journal_kill(struct mc_disk *disk, uint32_t region)
{
    /* What lies in a later region as well is named: it would be found there. */
    const struct mc_disk_item *items = disk->index.items;
    for (uint32_t slot = disk->regions[region].first; slot != MC_DISK_NO_SLOT; slot = items[slot].next) {
        if (items[slot].has_later)
            (void)item_note(disk, &items[slot], true);
    }
    struct mc_disk_clear clear = {.sequence = disk->regions[region].sequence, .region = region};
    if (!record_add(disk, &clear, true)) {
        mc_disk_victim_killed(disk, MC_ERR_FILE_WRITE_FAIL);
        return;
    }
    disk->journal.kill_gathering = true;
}

void mc_disk_journal_clear(struct mc_disk *disk, struct mc_disk_task *task)
{
    task->at = 0;
    mc_disk_queue_add(&disk->journal.clears, task);
}

/* All its places are looked at. One that was not there may have been dropped a moment ago, by a record that is not on
 * the disk yet: so it waits for all there are. */
static void clear_gathered(struct mc_disk *disk, struct mc_disk_task *task)
{
    struct mc_disk_journal *journal = &disk->journal;
    if (task->is_removal && journal->gathered_count > 0) {
        journal->is_urgent = true;
        mc_disk_queue_add(&journal->gathering, task);
        return;
    }
    if (task->is_removal && journal->stage == MC_DISK_JOURNAL_BATCH) {
        mc_disk_queue_add(&journal->committing, task);
        return;
    }
    mc_disk_task_answer(task, journal->is_broken && task->may_lie ? MC_ERR_FILE_WRITE_FAIL : 0);
    mc_disk_task_free(disk, task);
}

static void clears_gather(struct mc_disk *disk)
{
    struct mc_disk_journal *journal = &disk->journal;
    while (journal->clears.count > 0) {
        struct mc_disk_task *task = journal->clears.first;
        for (; task->at < task->count; task->at++) {
            const struct mc_disk_place *place = &task->places[task->at];
            struct mc_disk_item *item = mc_disk_index_find(&disk->index, place->slot, place->generation);
            task->may_lie |= place->generation <= disk->generation_top;
            if (item == NULL)
                continue;
            if (journal->gathered_count >= MC_DISK_CLEARS_TASKS_MAX)
                return;
            (void)item_note(disk, item, task->is_removal);
            mc_disk_item_drop(disk, place->slot);
            disk->counts.cleared++;
        }
        clear_gathered(disk, mc_disk_queue_take(&journal->clears));
    }
}

/* ---- writing what is gathered ---- */

static void waiters_answer(struct mc_disk *disk, struct mc_disk_queue *queue, int code)
{
    while (queue->count > 0) {
        struct mc_disk_task *task = mc_disk_queue_take(queue);
        mc_disk_task_answer(task, code);
        mc_disk_task_free(disk, task);
    }
}

static void batch_end(struct mc_disk *disk, int code)
{
    struct mc_disk_journal *journal = &disk->journal;
    bool is_kill = journal->kill_committing;
    uint32_t lost = journal->lost_committing_count;
    journal->kill_committing = false;
    journal->lost_committing_count = 0;
    if (lost > 0 && code == 0) /* else it may be there again, and whoever asks for it is told that it is not */
        disk->config.lost(disk->config.context, journal->lost_committing, lost);
    waiters_answer(disk, &journal->committing, code);
    if (is_kill)
        mc_disk_victim_killed(disk, code);
}

static void batch_begin(struct mc_disk_journal *journal)
{
    journal->kill_committing = journal->kill_gathering;
    journal->lost_committing_count = journal->lost_gathering_count;
    memcpy(journal->lost_committing, journal->lost_gathering,
           journal->lost_gathering_count * sizeof(*journal->lost_gathering));
    journal->committing = journal->gathering;
    journal->gathering = (struct mc_disk_queue){0};
    journal->kill_gathering = false;
    journal->lost_gathering_count = 0;
    journal->gathered_count = 0;
    journal->is_urgent = false;
}

/* What it holds may be on the disk or not: nothing can be promised any more. */
static void journal_break(struct mc_disk *disk, int error)
{
    struct mc_disk_journal *journal = &disk->journal;
    mc_log(ERROR, "the disk %s: writing the journal of removals failed: %s", disk->directory.path, strerror(error));
    journal->is_broken = true;
    journal->stage = MC_DISK_JOURNAL_IDLE;
    batch_end(disk, MC_ERR_FILE_WRITE_FAIL);
    batch_begin(journal);
    batch_end(disk, MC_ERR_FILE_WRITE_FAIL);
    mc_disk_read_only_set(disk, "it cannot be told what was removed");
}

static void batch_synced(struct mc_disk_flight *flight, int64_t result)
{
    struct mc_disk *disk = flight->disk;
    if (result < 0) {
        journal_break(disk, (int)-result);
        return;
    }
    disk->journal.pages += disk->journal.out_pages;
    disk->journal.stage = MC_DISK_JOURNAL_IDLE;
    batch_end(disk, 0);
}

static void batch_written(struct mc_disk_flight *flight, int64_t result)
{
    struct mc_disk *disk = flight->disk;
    struct mc_disk_journal *journal = &disk->journal;
    if ((result == -ENOSPC || result == -EDQUOT) && journal->tries < MC_DISK_JOURNAL_TRIES) {
        mc_log_limited(WARNING, "the disk %s: no room for the journal of removals; they wait", disk->directory.path);
        journal->tries++;
        journal->again_ns = mc_disk_now(disk) + MC_DISK_JOURNAL_AGAIN_NS;
        return;
    }
    if (result < 0) {
        journal_break(disk, (int)-result);
        return;
    }
    mc_disk_flight_start(disk, flight, MC_DISK_SYNC, flight->request.fd, NULL, 0, 0, batch_synced);
}

static void batch_write(struct mc_disk *disk)
{
    struct mc_disk_journal *journal = &disk->journal;
    mc_disk_flight_start(disk, &journal->flight, MC_DISK_WRITE, disk->directory.clears_fd[journal->current],
                         journal->out, journal->out_pages * MC_DISK_PAGE, journal->pages * MC_DISK_PAGE, batch_written);
}

/* What is there of it already is true, so the same bytes go to the same place. */
static void batch_again(struct mc_disk *disk, uint64_t now_ns)
{
    struct mc_disk_journal *journal = &disk->journal;
    if (journal->again_ns == 0 || now_ns < journal->again_ns)
        return;
    journal->again_ns = 0;
    mc_disk_journal_reserve(disk);
    batch_write(disk);
}

void mc_disk_journal_page(const struct mc_disk *disk, uint8_t *page, uint64_t number, uint64_t at, uint32_t records,
                          uint32_t flags)
{
    struct mc_disk_head head;
    uint32_t bytes = records * (uint32_t)sizeof(struct mc_disk_clear);
    memset(page + sizeof(head) + bytes, 0, MC_DISK_PAGE - sizeof(head) - bytes);
    mc_disk_head_fill(&head, MC_DISK_HEAD_CLEARS, disk->directory.super.segment_id);
    head.sequence = number;
    head.at = at;
    head.count = records;
    head.bytes = bytes;
    head.crc = mc_crc32c(0, page + sizeof(head), bytes);
    head.flags = flags;
    mc_disk_head_seal(&head);
    memcpy(page, &head, sizeof(head));
}

static void batch_start(struct mc_disk *disk)
{
    struct mc_disk_journal *journal = &disk->journal;
    const uint32_t most = MC_DISK_CLEARS_IN_PAGE;
    journal->out_pages = 0;
    for (uint32_t done = 0; done < journal->gathered_count;) {
        uint32_t count = journal->gathered_count - done < most ? journal->gathered_count - done : most;
        uint8_t *page = journal->out + journal->out_pages * MC_DISK_PAGE;
        memcpy(page + sizeof(struct mc_disk_head), journal->gathered + done, count * sizeof(struct mc_disk_clear));
        mc_disk_journal_page(disk, page, journal->number, journal->pages + journal->out_pages, count, 0);
        journal->out_pages++;
        done += count;
    }
    batch_begin(journal);
    journal->stage = MC_DISK_JOURNAL_BATCH;
    journal->tries = 0;
    batch_write(disk);
}
_Static_assert(MC_DISK_CLEARS_PAGES_MAX *MC_DISK_CLEARS_IN_PAGE >= MC_DISK_CLEARS_MAX, "one write holds all");

/* ---- compaction ---- */

/* May the disk, after a power failure, still show what this record speaks of? */
static bool is_needed(const struct mc_disk *disk, const struct mc_disk_clear *clear)
{
    if (clear->region == MC_DISK_NO_REGION) {
        for (uint32_t i = 0; i < disk->region_count; i++) {
            const struct mc_disk_region *region = &disk->regions[i];
            if (region->state != MC_DISK_REGION_NONE && region->durable_sequence <= clear->sequence &&
                (region->durable_sequence == 0 || region->killed_sequence < region->sequence))
                return true;
        }
        return false;
    }
    if (clear->region >= disk->region_count)
        return false; /* the capacity is smaller now, and the region's bytes are gone */
    const struct mc_disk_region *region = &disk->regions[clear->region];
    if (region->durable_sequence > clear->sequence)
        return false;
    return clear->generation == 0 ? region->killed_sequence <= clear->sequence
                                  : region->killed_sequence < clear->sequence;
}

static void compact_go(struct mc_disk *disk);

/* The file that is current stays so; the next try comes later. */
static void compact_give_up(struct mc_disk *disk, int error)
{
    struct mc_disk_journal *journal = &disk->journal;
    mc_log(WARNING, "the disk %s: the journal of removals cannot be made shorter: %s", disk->directory.path,
           strerror(error));
    journal->stage = MC_DISK_JOURNAL_IDLE;
    journal->compact_at = journal->pages * 2;
}

static void compact_ended(struct mc_disk_flight *flight, int64_t result)
{
    struct mc_disk *disk = flight->disk;
    struct mc_disk_journal *journal = &disk->journal;
    if (result < 0) {
        compact_give_up(disk, (int)-result);
        return;
    }
    if (flight->request.operation == MC_DISK_READ) {
        journal->source_got = (uint32_t)(result / MC_DISK_PAGE);
        journal->source_page = journal->source_record = 0;
        journal->source_at += MC_DISK_CLEARS_PAGES_MAX; /* a file that ends early has nothing more */
    } else if (flight->request.operation == MC_DISK_WRITE) {
        journal->target_pages += journal->out_pages;
        journal->out_pages = journal->out_records = 0;
    }
    compact_go(disk);
}

static void compact_write(struct mc_disk *disk)
{
    struct mc_disk_journal *journal = &disk->journal;
    mc_disk_flight_start(disk, &journal->flight, MC_DISK_WRITE, disk->directory.clears_fd[1 - journal->current],
                         journal->out, journal->out_pages * MC_DISK_PAGE, journal->target_pages * MC_DISK_PAGE,
                         compact_ended);
}

static void out_page_end(struct mc_disk *disk, uint32_t flags)
{
    struct mc_disk_journal *journal = &disk->journal;
    mc_disk_journal_page(disk, journal->out + journal->out_pages * MC_DISK_PAGE, journal->number + 1,
                         journal->target_pages + journal->out_pages, journal->out_records, flags);
    journal->out_pages++;
    journal->out_records = 0;
}

/* Copies what is needed of the pages that were read. False: the memory for what is written is full. */
static bool compact_filter(struct mc_disk *disk)
{
    struct mc_disk_journal *journal = &disk->journal;
    for (; journal->source_page < journal->source_got; journal->source_page++, journal->source_record = 0) {
        const uint8_t *page = journal->in + journal->source_page * MC_DISK_PAGE;
        struct mc_disk_head head;
        if (!mc_disk_clears_read(page, disk->directory.super.segment_id, &head))
            continue;
        for (; journal->source_record < head.count; journal->source_record++) {
            struct mc_disk_clear clear;
            memcpy(&clear, page + sizeof(head) + journal->source_record * sizeof(clear), sizeof(clear));
            if (!is_needed(disk, &clear))
                continue;
            if (journal->out_pages == MC_DISK_CLEARS_PAGES_MAX)
                return false;
            memcpy(journal->out + journal->out_pages * MC_DISK_PAGE + sizeof(head) +
                       journal->out_records * sizeof(clear),
                   &clear, sizeof(clear));
            if (++journal->out_records == MC_DISK_CLEARS_IN_PAGE)
                out_page_end(disk, 0);
        }
    }
    return true;
}

static void compact_done(struct mc_disk *disk)
{
    struct mc_disk_journal *journal = &disk->journal;
    journal->current = 1 - journal->current;
    journal->number++;
    journal->pages = journal->target_pages;
    journal->compact_at = journal->pages * 2 < MC_DISK_COMPACT_LEAST ? MC_DISK_COMPACT_LEAST : journal->pages * 2;
    journal->is_crowded = journal->pages > journal->pages_max / 2;
    journal->stage = MC_DISK_JOURNAL_IDLE;
}

static void compact_go(struct mc_disk *disk)
{
    struct mc_disk_journal *journal = &disk->journal;
    int source = disk->directory.clears_fd[journal->current], target = disk->directory.clears_fd[1 - journal->current];
    switch (journal->compact_stage) {
    case MC_DISK_COMPACT_READ:
        if (!compact_filter(disk)) {
            compact_write(disk);
            return;
        }
        if (journal->source_at < journal->pages) {
            mc_disk_flight_start(disk, &journal->flight, MC_DISK_READ, source, journal->in,
                                 MC_DISK_CLEARS_PAGES_MAX * MC_DISK_PAGE, journal->source_at * MC_DISK_PAGE,
                                 compact_ended);
            return;
        }
        if (journal->out_records > 0)
            out_page_end(disk, 0);
        journal->compact_stage = MC_DISK_COMPACT_TAIL;
        if (journal->out_pages > 0) {
            compact_write(disk);
            return;
        }
        /* fall through */
    case MC_DISK_COMPACT_TAIL:
    case MC_DISK_COMPACT_MARK:
        journal->compact_stage =
            journal->compact_stage == MC_DISK_COMPACT_TAIL ? MC_DISK_COMPACT_SYNC : MC_DISK_COMPACT_DONE;
        mc_disk_flight_start(disk, &journal->flight, MC_DISK_SYNC, target, NULL, 0, 0, compact_ended);
        return;
    case MC_DISK_COMPACT_SYNC: /* all is there: say so */
        out_page_end(disk, MC_DISK_CLEARS_COMPLETE);
        journal->compact_stage = MC_DISK_COMPACT_MARK;
        compact_write(disk);
        return;
    case MC_DISK_COMPACT_DONE:
        compact_done(disk);
        return;
    }
}

static void compact_start(struct mc_disk *disk)
{
    struct mc_disk_journal *journal = &disk->journal;
    journal->stage = MC_DISK_JOURNAL_COMPACTING;
    journal->compact_stage = MC_DISK_COMPACT_READ;
    journal->source_at = journal->target_pages = 0;
    journal->source_got = journal->source_page = journal->source_record = 0;
    journal->out_pages = journal->out_records = 0;
    compact_go(disk);
}

void mc_disk_journal_emptied(struct mc_disk *disk)
{
    struct mc_disk_journal *journal = &disk->journal;
    if (!journal->is_crowded)
        return;
    journal->is_crowded = false; /* compaction says whether it still is */
    journal->compact_at = 0;
}

void mc_disk_journal_turn(struct mc_disk *disk, uint64_t now_ns)
{
    struct mc_disk_journal *journal = &disk->journal;
    clears_gather(disk);
    batch_again(disk, now_ns);
    if (journal->is_broken || journal->stage != MC_DISK_JOURNAL_IDLE)
        return;
    bool is_time = journal->is_urgent || journal->gathered_count >= MC_DISK_CLEARS_TASKS_MAX / 2 ||
                   now_ns >= journal->gathered_ns + MC_DISK_CLEARS_WAIT_NS;
    if (journal->pages >= journal->compact_at)
        compact_start(disk);
    else if (journal->gathered_count > 0 && is_time)
        batch_start(disk);
}
