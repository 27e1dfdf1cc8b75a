/* Reading objects, and listing them. */
#include "store/disk/inside.h"

#include <string.h>

/* ---- objects ---- */

static void read_done(struct mc_disk *disk, struct mc_disk_task *task, int code)
{
    struct mc_disk_item *item = mc_disk_index_find(&disk->index, task->slot, task->entry.generation);
    bool is_there = item != NULL && item->region == task->region && item->page == task->page;
    if (code == 0) {
        if (item != NULL)
            item->was_hit = true;
        if (!task->is_answered) {
            disk->counts.served++;
            disk->counts.bytes_served += task->bytes;
            mc_disk_latency_add(&disk->counts.read_latency, task->since_ns, mc_disk_now(disk));
        }
    } else if (!is_there) { /* cleared or moved while it was read: what lies there may be another's by now */
        code = MC_ERR_REPLICA_IS_GONE;
    } else {
        disk->counts.rotten++;
        mc_disk_journal_lose(disk, task->slot);
    }
    mc_disk_task_answer(task, code);
    mc_disk_task_free(disk, task);
}

static void read_ended(struct mc_disk_flight *flight, int64_t result)
{
    struct mc_disk_task *task = (struct mc_disk_task *)flight; /* its first member */
    int code = result < 0                       ? MC_ERR_FILE_READ_FAIL
               : result == (int64_t)task->bytes ? mc_disk_extent_check(task->buffer, &task->entry)
                                                : MC_ERR_CHECKSUM_MISMATCH;
    read_done(flight->disk, task, code);
}

/* ---- in pieces: while the disk brings the others, those that are there are checked ---- */

void mc_disk_pieces_init(struct mc_disk *disk)
{
    for (uint32_t i = 0; i < MC_DISK_PIECES_ALL; i++) {
        disk->pieces[i].next = disk->free_pieces;
        disk->free_pieces = &disk->pieces[i];
    }
    disk->free_piece_count = MC_DISK_PIECES_ALL;
}

/* What is there, as far as it can be checked: nothing without the sums, which are in the last piece. */
static int pieces_check(const struct mc_disk_task *task, uint32_t there, uint32_t checked)
{
    const struct mc_disk_pieces *pieces = &task->pieces;
    int code = (checked >> (pieces->count - 1) & 1) != 0 ? 0 : mc_disk_extent_check_end(task->buffer, &task->entry);
    for (uint32_t i = 0; i < pieces->count && code == 0; i++) {
        uint64_t from = (uint64_t)i * pieces->bytes, to = i + 1 < pieces->count ? from + pieces->bytes : UINT64_MAX;
        if ((there & ~checked) >> i & 1)
            code = mc_disk_extent_check_blocks(task->buffer, &task->entry, from, to);
    }
    return code;
}

static void piece_ended(struct mc_disk_flight *flight, int64_t result)
{
    struct mc_disk *disk = flight->disk;
    struct mc_disk_piece *piece = (struct mc_disk_piece *)flight; /* its first member */
    struct mc_disk_task *task = piece->task;
    struct mc_disk_pieces *pieces = &task->pieces;
    if (result < 0)
        pieces->code = MC_ERR_FILE_READ_FAIL;
    else if (result != (int64_t)flight->request.length && pieces->code == 0)
        pieces->code = MC_ERR_CHECKSUM_MISMATCH;
    pieces->there |= 1u << piece->number;
    if (pieces->code == 0 && (pieces->there >> (pieces->count - 1) & 1) != 0) {
        pieces->code = pieces_check(task, pieces->there, pieces->checked);
        pieces->checked = pieces->there;
    }
    piece->next = disk->free_pieces;
    disk->free_pieces = piece;
    disk->free_piece_count++;
    if (--pieces->left == 0)
        read_done(disk, task, pieces->code);
}

/* False: it is read as one. */
static bool pieces_plan(const struct mc_disk *disk, struct mc_disk_task *task)
{
    uint64_t data = mc_table_offset(task->entry.length), bytes = MC_DISK_PIECE_BYTES;
    while (data / bytes >= MC_DISK_PIECES_MAX)
        bytes *= 2;
    uint32_t count = (uint32_t)(data / bytes) + 1;
    task->pieces = (struct mc_disk_pieces){.count = count, .left = count, .bytes = (uint32_t)bytes};
    return count > 1 && count <= disk->free_piece_count && bytes >> task->entry.block_shift != 0;
}

static void pieces_begin(struct mc_disk *disk, struct mc_disk_task *task)
{
    int fd = mc_disk_region_fd(disk, task->region);
    for (uint32_t i = 0; i < task->pieces.count; i++) {
        uint32_t number = (task->pieces.count - 1 + i) % task->pieces.count; /* the sums first */
        uint64_t from = (uint64_t)number * task->pieces.bytes;
        uint64_t length = number + 1 < task->pieces.count ? task->pieces.bytes : task->bytes - from;
        struct mc_disk_piece *piece = disk->free_pieces;
        disk->free_pieces = piece->next;
        disk->free_piece_count--;
        piece->task = task;
        piece->number = number;
        mc_disk_flight_start(disk, &piece->flight, MC_DISK_READ, fd, task->buffer + from, (uint32_t)length,
                             mc_disk_region_at(disk, task->region, (uint64_t)task->page * MC_DISK_PAGE + from),
                             piece_ended);
    }
}

/* ---- beginning, and the deadline ---- */

static void deadline_note(struct mc_disk *disk, const struct mc_disk_task *task)
{
    if (!task->is_answered && task->until_ns < disk->deadline_ns)
        disk->deadline_ns = task->until_ns;
}

static void read_fail(struct mc_disk *disk, struct mc_disk_task *task, int code)
{
    mc_disk_task_answer(task, code);
    mc_disk_task_free(disk, task);
}

/* False: it needs a buffer, and none is free now. */
static bool read_begin(struct mc_disk *disk, struct mc_disk_task *task)
{
    const struct mc_disk_item *item = mc_disk_index_find(&disk->index, task->slot, task->entry.generation);
    if (item == NULL || task->until_ns <= mc_disk_now(disk) || task->is_answered) {
        read_fail(disk, task, item == NULL ? MC_ERR_REPLICA_IS_GONE : MC_ERR_RPC_TIMEOUT);
        return true;
    }
    task->bytes = mc_disk_extent_bytes(item->entry.length, item->entry.key_length);
    task->buffer = mc_disk_buffers_lend(&disk->buffers, task->bytes, 0);
    if (task->buffer == NULL)
        return false;
    task->entry = item->entry;
    task->region = item->region;
    task->page = item->page;
    deadline_note(disk, task);
    if (pieces_plan(disk, task))
        pieces_begin(disk, task);
    else
        mc_disk_flight_start(disk, &task->flight, MC_DISK_READ, mc_disk_region_fd(disk, task->region), task->buffer,
                             (uint32_t)task->bytes,
                             mc_disk_region_at(disk, task->region, (uint64_t)task->page * MC_DISK_PAGE), read_ended);
    return true;
}

void mc_disk_read_start(struct mc_disk *disk, struct mc_disk_task *task)
{
    if (disk->reads.count == 0 && read_begin(disk, task))
        return;
    deadline_note(disk, task);
    mc_disk_queue_add(&disk->reads, task);
    atomic_store(&disk->is_buffer_wanted, true); /* before the next look at what is free */
}

void mc_disk_reads_turn(struct mc_disk *disk)
{
    while (disk->reads.count > 0) {
        struct mc_disk_queue rest = disk->reads;
        struct mc_disk_task *task = mc_disk_queue_take(&rest);
        if (!read_begin(disk, task))
            return;
        disk->reads = rest;
    }
    atomic_store(&disk->is_buffer_wanted, false);
}

void mc_disk_reads_refuse(struct mc_disk *disk)
{
    for (struct mc_disk_task *task = disk->reads.first; task != NULL; task = task->next)
        mc_disk_task_answer(task, MC_ERR_BUSY);
    for (uint32_t i = 0; i < MC_DISK_TASKS_MAX; i++) {
        struct mc_disk_task *task = &disk->tasks[i];
        if (task->is_used && task->kind == MC_DISK_TASK_READ && task->buffer != NULL)
            mc_disk_task_answer(task, MC_ERR_BUSY);
    }
}

static void read_end_late(struct mc_disk *disk, struct mc_disk_task *task, uint64_t now_ns)
{
    if (!task->is_answered && task->until_ns <= now_ns) {
        disk->counts.timed_out++;
        mc_disk_task_answer(task, MC_ERR_RPC_TIMEOUT);
    }
    deadline_note(disk, task);
}

/* Those that are over are answered; task and buffer stay until the disk gives them back, or their turn comes. */
void mc_disk_deadlines_turn(struct mc_disk *disk, uint64_t now_ns)
{
    if (now_ns < disk->deadline_ns)
        return;
    disk->deadline_ns = UINT64_MAX;
    for (struct mc_disk_task *task = disk->reads.first; task != NULL; task = task->next)
        read_end_late(disk, task, now_ns);
    for (uint32_t i = 0; i < MC_DISK_TASKS_MAX; i++) {
        struct mc_disk_task *task = &disk->tasks[i];
        if (task->is_used && task->kind == MC_DISK_TASK_READ && task->buffer != NULL)
            read_end_late(disk, task, now_ns);
    }
}

/* ---- inventory ---- */

static void inventory_end(struct mc_disk *disk, int code)
{
    struct mc_disk_task *task = disk->inventory;
    disk->inventory = NULL;
    mc_disk_task_answer(task, code);
    mc_disk_task_free(disk, task);
}

static void table_list(struct mc_disk *disk, uint32_t region, struct mc_span table)
{
    struct mc_reader reader = mc_reader(table.data, table.length);
    struct mc_disk_record record;
    const struct mc_disk_task *task = disk->inventory;
    while (mc_disk_record_next(&reader, disk->region_bytes, &record)) {
        uint32_t slot = disk->page_slots[record.page];
        const struct mc_disk_item *item = mc_disk_index_find(&disk->index, slot, record.entry.generation);
        if (item == NULL || item->region != region || item->page != record.page)
            continue;
        struct mc_disk_content content = {slot, item->entry, record.key};
        task->each(task->context, &content);
    }
}

static void walk_ended(struct mc_disk_flight *flight, int64_t result)
{
    struct mc_disk *disk = flight->disk;
    struct mc_disk_walk *walk = &disk->walk;
    if (result < 0) { /* who is not told of what lies there takes it for lost: so that is what it must be */
        disk->victim.unread = walk->region;
        return;
    }
    bool has_more = mc_disk_walk_feed(walk, disk->walk_bytes, (uint32_t)result);
    /* Whoever reused the region meanwhile has given its items other places. */
    table_list(disk, walk->region, walk->table);
    if (has_more)
        mc_disk_flight_start(disk, flight, MC_DISK_READ, flight->request.fd, disk->walk_bytes, walk->length,
                             mc_disk_region_at(disk, walk->region, walk->offset), walk_ended);
    else
        inventory_end(disk, 0);
}

void mc_disk_inventory_go_on(struct mc_disk *disk, int code)
{
    inventory_end(disk, code);
}

/* The oldest with something in it that is younger than that. */
static uint32_t region_behind(const struct mc_disk *disk, uint64_t sequence)
{
    uint32_t best = MC_DISK_NO_REGION;
    for (uint32_t i = 0; i < disk->region_count; i++) {
        const struct mc_disk_region *region = &disk->regions[i];
        if (region->live > 0 && region->sequence > sequence &&
            (best == MC_DISK_NO_REGION || region->sequence < disk->regions[best].sequence))
            best = i;
    }
    return best;
}

void mc_disk_inventory_start(struct mc_disk *disk, struct mc_disk_task *task)
{
    /* What was dropped since is in no list, and in no journal: the next process finds it again. */
    if (disk->inventory != NULL || disk->journal.is_broken) {
        mc_disk_task_answer(task, disk->journal.is_broken ? MC_ERR_FILE_WRITE_FAIL : MC_ERR_BUSY);
        mc_disk_task_free(disk, task);
        return;
    }
    disk->inventory = task;
    uint32_t region = region_behind(disk, task->cursor);
    task->cursor = region == MC_DISK_NO_REGION ? MC_DISK_CURSOR_END : disk->regions[region].sequence;
    if (region == MC_DISK_NO_REGION) {
        inventory_end(disk, 0);
        return;
    }
    memset(disk->page_slots, 0xff, disk->region_bytes / MC_DISK_PAGE * sizeof(*disk->page_slots));
    for (uint32_t slot = disk->regions[region].first; slot != MC_DISK_NO_SLOT; slot = disk->index.items[slot].next)
        disk->page_slots[disk->index.items[slot].page] = slot;
    const struct mc_disk_footer *footer = mc_disk_region_footer(disk, region);
    if (footer != NULL) { /* it is in memory still */
        table_list(disk, region, mc_span(footer->bytes, footer->used));
        inventory_end(disk, 0);
        return;
    }
    mc_disk_walk_start(&disk->walk, disk->directory.super.segment_id, disk->region_bytes, region);
    mc_disk_flight_start(disk, &disk->walk_flight, MC_DISK_READ, mc_disk_region_fd(disk, region), disk->walk_bytes,
                         disk->walk.length, mc_disk_region_at(disk, region, 0), walk_ended);
}
