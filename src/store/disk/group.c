/* Stores that wait, and the groups in which they are written: a table, the small extents behind it in the same write,
 * and each large extent from its own buffer. The parts of a group are written in any order: a table whose extents did
 * not arrive names bytes that do not prove themselves. */
#include "store/disk/inside.h"

#include <string.h>

void mc_disk_pending_add(struct mc_disk *disk, struct mc_disk_task *task)
{
    mc_disk_queue_add(&disk->pending, task);
    disk->pending_bytes += task->bytes;
    if (task->entry.generation > disk->generation_top)
        disk->generation_top = task->entry.generation;
}

static struct mc_disk_task *pending_take(struct mc_disk *disk)
{
    struct mc_disk_task *task = mc_disk_queue_take(&disk->pending);
    disk->pending_bytes -= task->bytes;
    return task;
}

static void task_end(struct mc_disk *disk, struct mc_disk_task *task, int code)
{
    if (task->kind == MC_DISK_TASK_REWRITE)
        mc_disk_rewrite_ended(disk, task);
    else
        mc_disk_task_answer(task, code);
    mc_disk_task_free(disk, task);
}

/* It is refused before anything of it is written. */
static void task_refuse(struct mc_disk *disk, struct mc_disk_task *task, int code)
{
    if (task->kind == MC_DISK_TASK_STORE)
        mc_disk_not_stored(disk, code == MC_ERR_BUSY              ? MC_STORE_DISK_SLOW
                                 : code == MC_ERR_FILE_WRITE_FAIL ? MC_STORE_DISK_READ_ONLY
                                                                  : MC_STORE_DISK_FULL);
    task_end(disk, task, code);
}

void mc_disk_pending_refuse(struct mc_disk *disk, int code)
{
    while (disk->pending.count > 0)
        task_refuse(disk, pending_take(disk), code);
}

void mc_disk_rewrites_refuse(struct mc_disk *disk)
{
    for (uint32_t left = disk->pending.count; left > 0; left--) {
        struct mc_disk_task *task = pending_take(disk);
        if (task->kind == MC_DISK_TASK_REWRITE)
            task_end(disk, task, 0);
        else
            mc_disk_pending_add(disk, task);
    }
}

/* ---- the end of a group ---- */

static void item_stored(struct mc_disk *disk, struct mc_disk_task *task)
{
    struct mc_disk_item *item = &disk->index.items[task->slot];
    item->entry = task->entry;
    mc_disk_region_link(disk, task->slot, task->region, task->page);
    disk->counts.stored++;
    mc_disk_latency_add(&disk->counts.store_latency, task->since_ns, mc_disk_now(disk));
    disk->counts.bytes_stored += task->bytes;
}

/* What was removed meanwhile stays removed: the journal names the generation, wherever it lies. */
static void item_moved(struct mc_disk *disk, struct mc_disk_task *task)
{
    struct mc_disk_item *item = mc_disk_index_find(&disk->index, task->slot, task->entry.generation);
    if (item == NULL)
        return;
    mc_disk_region_unlink(disk, task->slot);
    mc_disk_region_link(disk, task->slot, task->region, task->page);
    item->was_hit = item->has_later = false;
    disk->counts.bytes_rewritten += task->bytes;
}

/* Its table may lie on the disk nevertheless, and the caller is told that nothing of it does. */
static void not_stored(struct mc_disk *disk, struct mc_disk_task *task)
{
    mc_disk_not_stored(disk, MC_STORE_DISK_FAILED);
    mc_disk_index_release(&disk->index, task->slot);
    (void)mc_disk_journal_add(disk, &(struct mc_disk_clear){.generation = task->entry.generation,
                                                            .sequence = disk->regions[task->region].sequence,
                                                            .region = task->region});
}

static void group_end(struct mc_disk *disk, struct mc_disk_group *group)
{
    struct mc_disk_footer *footer = mc_disk_region_footer(disk, group->region);
    if (!group->has_failed && footer != NULL) {
        memcpy(footer->bytes + footer->used, group->buffer + sizeof(struct mc_disk_head), group->table_bytes);
        footer->used += group->table_bytes;
        footer->count += group->count;
    }
    for (uint32_t i = 0; i < group->count; i++) {
        struct mc_disk_task *task = group->tasks[i];
        if (task->kind == MC_DISK_TASK_REWRITE && !group->has_failed)
            item_moved(disk, task);
        else if (task->kind == MC_DISK_TASK_STORE && group->has_failed)
            not_stored(disk, task);
        else if (task->kind == MC_DISK_TASK_STORE)
            item_stored(disk, task);
        task_end(disk, task, group->has_failed ? MC_ERR_FILE_WRITE_FAIL : 0);
    }
    group->is_used = false;
    disk->groups_used--;
}

static void part_ended(struct mc_disk *disk, struct mc_disk_group *group, int64_t result)
{
    disk->regions[group->region].writes--;
    if (result < 0) {
        group->has_failed = true;
        mc_disk_region_retire(disk, group->region, (int)-result);
    }
    if (--group->left == 0)
        group_end(disk, group);
}

static void table_ended(struct mc_disk_flight *flight, int64_t result)
{
    part_ended(flight->disk, (struct mc_disk_group *)flight, result); /* its first member */
}

static void extent_ended(struct mc_disk_flight *flight, int64_t result)
{
    part_ended(flight->disk, ((struct mc_disk_task *)flight)->group, result); /* its first member */
}

/* ---- making one ---- */

struct group_plan {
    uint64_t extents, smalls; /* bytes; smalls: of those that go into the group's buffer */
    uint32_t table;
};

static uint64_t plan_bytes(const struct group_plan *plan)
{
    return mc_disk_page_up(sizeof(struct mc_disk_head) + plan->table) + plan->extents;
}

static uint64_t plan_buffered(const struct group_plan *plan)
{
    return mc_disk_page_up(sizeof(struct mc_disk_head) + plan->table) + plan->smalls;
}

/* The slot of what is stored; a rewrite that is still wanted. False: the task has ended. */
static bool task_prepare(struct mc_disk *disk, struct mc_disk_task *task)
{
    if (task->kind == MC_DISK_TASK_REWRITE) {
        struct mc_disk_item *item = mc_disk_index_find(&disk->index, task->slot, task->entry.generation);
        if (item != NULL) {
            item->is_copy = item->has_later = true; /* from now on it may lie in two regions */
            return true;
        }
        task_end(disk, task, 0);
        return false;
    }
    if (disk->index.count < disk->objects_max && mc_disk_index_take(&disk->index, task->slot))
        return true;
    task_refuse(disk, task, MC_ERR_NO_AVAILABLE_HANDLE);
    return false;
}

static void group_gather(struct mc_disk *disk, struct mc_disk_group *group)
{
    struct group_plan plan = {0};
    group->count = 0;
    while (disk->pending.count > 0 && group->count < MC_DISK_GROUP_ENTRIES_MAX) {
        struct mc_disk_task *task = disk->pending.first;
        struct group_plan more = {plan.extents + task->bytes,
                                  plan.smalls + (task->bytes > MC_DISK_SMALL_BYTES ? 0 : task->bytes),
                                  plan.table + mc_disk_record_bytes(task->entry.key_length)};
        if (group->count > 0 &&
            (plan_bytes(&more) > MC_DISK_GROUP_BYTES_MAX || plan_buffered(&more) > disk->group_buffer_bytes))
            break;
        /* With one in it there is room for what was looked at before: only that one may open a region. */
        if (group->count > 0 && disk->append.open == MC_DISK_NO_REGION)
            break;
        if (group->count > 0 ? !mc_disk_region_fits(disk, plan_bytes(&more), more.table)
                             : !mc_disk_region_room(disk, plan_bytes(&more), more.table))
            break;
        (void)pending_take(disk);
        if (!task_prepare(disk, task))
            continue;
        group->tasks[group->count++] = task;
        plan = more;
    }
    group->table_bytes = plan.table;
}

/* Where each extent lies; the small ones behind the table, in the group's buffer. Bytes of the buffer that are used. */
static uint32_t group_place(struct mc_disk *disk, struct mc_disk_group *group)
{
    uint64_t start = disk->append.at;
    uint64_t used = mc_disk_page_up(sizeof(struct mc_disk_head) + group->table_bytes);
    for (uint32_t i = 0; i < group->count; i++) {
        struct mc_disk_task *task = group->tasks[i];
        task->page = 0;
        mc_disk_extent_stamp(task->buffer, &task->entry);
        if (task->bytes > MC_DISK_SMALL_BYTES)
            continue;
        memcpy(group->buffer + used, task->buffer, task->bytes);
        task->page = (uint32_t)((start + used) / MC_DISK_PAGE);
        used += task->bytes;
        mc_disk_buffers_give_back(&disk->buffers, task->buffer);
        task->buffer = NULL;
    }
    uint64_t at = start + used;
    for (uint32_t i = 0; i < group->count; i++) {
        struct mc_disk_task *task = group->tasks[i];
        if (task->page == 0) {
            task->page = (uint32_t)(at / MC_DISK_PAGE);
            at += task->bytes;
        }
    }
    disk->append.at = at;
    return (uint32_t)used;
}

static void table_fill(struct mc_disk *disk, struct mc_disk_group *group, uint64_t start)
{
    struct mc_disk_head head;
    const struct mc_disk_region *region = &disk->regions[group->region];
    uint8_t *at = group->buffer + sizeof(head);
    for (uint32_t i = 0; i < group->count; i++) {
        struct mc_disk_task *task = group->tasks[i];
        const uint8_t *extent =
            task->buffer != NULL ? task->buffer : group->buffer + ((uint64_t)task->page * MC_DISK_PAGE - start);
        struct mc_disk_record record = {.entry = task->entry,
                                        .page = task->page,
                                        .is_copy = task->kind == MC_DISK_TASK_REWRITE,
                                        .slot = task->slot,
                                        .key = extent + mc_key_offset(task->entry.length)};
        mc_disk_record_put(at, &record);
        at += mc_disk_record_bytes(task->entry.key_length);
    }
    uint64_t end = mc_disk_page_up(sizeof(head) + group->table_bytes);
    memset(at, 0, end - sizeof(head) - group->table_bytes);
    mc_disk_head_fill(&head, MC_DISK_HEAD_GROUP, disk->directory.super.segment_id);
    head.sequence = region->sequence;
    head.salt = region->salt;
    head.at = start;
    head.span = disk->append.at - start;
    head.region = group->region;
    head.count = group->count;
    head.bytes = group->table_bytes;
    head.crc = mc_crc32c(0, group->buffer + sizeof(head), group->table_bytes);
    mc_disk_head_seal(&head);
    memcpy(group->buffer, &head, sizeof(head));
}

static void group_write(struct mc_disk *disk, struct mc_disk_group *group)
{
    uint64_t start = disk->append.at;
    group->region = disk->append.open;
    group->is_used = true;
    group->has_failed = false;
    disk->groups_used++;
    disk->append.footer_bytes += group->table_bytes;
    uint32_t length = group_place(disk, group);
    table_fill(disk, group, start);
    int fd = mc_disk_region_fd(disk, group->region);
    group->left = 1;
    for (uint32_t i = 0; i < group->count; i++)
        group->left += group->tasks[i]->buffer != NULL ? 1 : 0;
    disk->regions[group->region].writes += group->left; /* all, before the first of them can end */
    for (uint32_t i = 0; i < group->count; i++) {
        struct mc_disk_task *task = group->tasks[i];
        task->group = group;
        task->region = group->region;
        if (task->buffer != NULL)
            mc_disk_flight_start(disk, &task->flight, MC_DISK_WRITE, fd, task->buffer, (uint32_t)task->bytes,
                                 mc_disk_region_at(disk, group->region, (uint64_t)task->page * MC_DISK_PAGE),
                                 extent_ended);
    }
    mc_disk_flight_start(disk, &group->flight, MC_DISK_WRITE, fd, group->buffer, length,
                         mc_disk_region_at(disk, group->region, start), table_ended);
}

/* Nothing waits for others while the disk has nothing else to write. */
static bool is_time(const struct mc_disk *disk, uint64_t now_ns)
{
    const struct mc_disk_task *first = disk->pending.first;
    return disk->groups_used == 0 || disk->pending.count >= MC_DISK_GROUP_ENTRIES_MAX ||
           disk->pending_bytes >= MC_DISK_GROUP_BYTES_MAX ||
           now_ns >= first->since_ns + disk->config.linger_ms * 1000000ull;
}

void mc_disk_groups_turn(struct mc_disk *disk, uint64_t now_ns)
{
    while (disk->pending.count > 0 && disk->groups_used < MC_DISK_GROUPS_MAX && disk->health != MC_DISK_READ_ONLY &&
           is_time(disk, now_ns)) {
        struct mc_disk_group *group = disk->groups;
        while (group->is_used)
            group++;
        group_gather(disk, group);
        if (group->count == 0) /* no region has room now, or all that waited had ended */
            break;
        group_write(disk, group);
    }
}
