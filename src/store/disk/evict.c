/* Making room: the region that was opened longest ago is given up, and what its policy keeps is written once more. The
 * journal has it that the region is dead before its objects are told as lost, and they are told before its header is
 * overwritten: so what somebody removes after that cannot come back with the old header. */
#include "store/disk/inside.h"

#include "env/log.h"

#include <inttypes.h>

#define NUMBERS_AHEAD 4096u

struct policy {
    bool (*keeps)(const struct mc_disk_item *item);
};

static bool keeps_nothing(const struct mc_disk_item *item)
{
    (void)item;
    return false;
}

static bool keeps_what_was_hit(const struct mc_disk_item *item)
{
    return item->was_hit;
}

static const struct policy policies[] = {
    [MC_DISK_FIFO] = {keeps_nothing},
    [MC_DISK_LRU] = {keeps_what_was_hit},
    [MC_DISK_KEEP] = {keeps_nothing}, /* it comes to that when the journal is crowded */
};

/* ---- writing once more ---- */

void mc_disk_rewrite_ended(struct mc_disk *disk, struct mc_disk_task *task)
{
    struct mc_disk_item *item = mc_disk_index_find(&disk->index, task->slot, task->entry.generation);
    if (item != NULL)
        item->is_moving = false;
    task->is_answered = true;
    disk->victim.rewrites--;
}

static void rewrite_was_read(struct mc_disk_flight *flight, int64_t result)
{
    struct mc_disk *disk = flight->disk;
    struct mc_disk_task *task = (struct mc_disk_task *)flight; /* its first member */
    bool is_good = result == (int64_t)task->bytes && mc_disk_extent_check(task->buffer, &task->entry) == 0;
    if (is_good && disk->health != MC_DISK_READ_ONLY) {
        mc_disk_pending_add(disk, task);
        return;
    }
    mc_disk_rewrite_ended(disk, task); /* it goes with its region, and is told as lost then */
    mc_disk_task_free(disk, task);
}

static bool rewrite_start(struct mc_disk *disk, uint32_t slot)
{
    struct mc_disk_item *item = &disk->index.items[slot];
    struct mc_disk_task *task = disk->tasks + MC_DISK_TASKS_MAX;
    for (uint32_t i = 0; i < MC_DISK_REWRITES_MAX && task->is_used; i++)
        task++;
    uint64_t bytes = mc_disk_extent_bytes(item->entry.length, item->entry.key_length);
    uint8_t *buffer = mc_disk_buffers_lend(&disk->buffers, bytes, 0);
    if (buffer == NULL)
        return false;
    *task = (struct mc_disk_task){.kind = MC_DISK_TASK_REWRITE,
                                  .is_used = true,
                                  .entry = item->entry,
                                  .slot = slot,
                                  .bytes = bytes,
                                  .buffer = buffer,
                                  .since_ns = mc_disk_now(disk)};
    item->is_moving = true;
    disk->victim.rewrites++;
    disk->victim.budget -= bytes;
    mc_disk_day_count(disk, bytes);
    mc_disk_flight_start(disk, &task->flight, MC_DISK_READ, mc_disk_region_fd(disk, item->region), buffer,
                         (uint32_t)bytes, mc_disk_region_at(disk, item->region, (uint64_t)item->page * MC_DISK_PAGE),
                         rewrite_was_read);
    return true;
}

/* ---- the victim ---- */

static uint32_t victim_choose(const struct mc_disk *disk)
{
    uint32_t best = MC_DISK_NO_REGION;
    for (uint32_t i = 0; i < disk->region_count; i++) {
        const struct mc_disk_region *region = &disk->regions[i];
        if (region->state == MC_DISK_REGION_SEALED && region->writes == 0 &&
            (best == MC_DISK_NO_REGION || region->sequence < disk->regions[best].sequence))
            best = i;
    }
    return best;
}

/* Numbers run out before the room does: a limit of objects must not be the end of storing. */
static bool is_short_of_numbers(const struct mc_disk *disk)
{
    uint32_t reserve = disk->objects_max / 8 < NUMBERS_AHEAD ? disk->objects_max / 8 : NUMBERS_AHEAD;
    return disk->config.policy != MC_DISK_KEEP && disk->health != MC_DISK_READ_ONLY &&
           disk->index.count + reserve >= disk->objects_max;
}

/* One region is kept ahead once the open one is half full. A file system that was full is asked first. */
static bool needs_a_victim(struct mc_disk *disk)
{
    const struct mc_disk_append *append = &disk->append;
    if (is_short_of_numbers(disk))
        return true;
    if (disk->journal.is_crowded) /* what is dead in it need not be named one by one */
        return true;
    if (disk->regions_free > 0 || mc_disk_region_is_growing(append) || disk->health == MC_DISK_READ_ONLY ||
        (mc_disk_region_can_grow(disk) && !append->is_full))
        return false;
    bool is_near = append->open == MC_DISK_NO_REGION ? disk->pending.count > 0 : append->at >= disk->region_bytes / 2;
    return is_near && !mc_disk_region_grow(disk);
}

static void victim_start(struct mc_disk *disk)
{
    struct mc_disk_victim *victim = &disk->victim;
    const struct mc_disk_append *append = &disk->append;
    bool may_choose = disk->config.policy != MC_DISK_KEEP || disk->journal.is_crowded;
    victim->region = may_choose ? victim_choose(disk) : MC_DISK_NO_REGION;
    if (victim->region == MC_DISK_NO_REGION) {
        if (is_short_of_numbers(disk) && append->open != MC_DISK_NO_REGION && disk->regions[append->open].live > 0)
            (void)mc_disk_region_seal(disk); /* what is oldest lies in there */
        if (append->open == MC_DISK_NO_REGION && append->sealing == MC_DISK_NO_REGION && disk->groups_used == 0 &&
            !append->header_is_busy && !mc_disk_region_is_growing(append) && disk->regions_free == 0)
            mc_disk_pending_refuse(disk, MC_ERR_NO_AVAILABLE_HANDLE); /* there is none, and none will be */
        return;
    }
    victim->next = disk->regions[victim->region].first;
    victim->budget = disk->region_bytes / 2; /* so that there is room even if all of it is read again and again */
    if (is_short_of_numbers(disk))           /* and numbers, however little lies there */
        victim->budget = disk->regions[victim->region].live_bytes / 2;
    victim->is_killing = false;
}

/* Goes on over the items as far as it can. True: all were looked at, and nothing is under way. */
static bool victim_rewrite(struct mc_disk *disk)
{
    struct mc_disk_victim *victim = &disk->victim;
    bool is_stuck = disk->pending.count > 0 && disk->groups_used == 0 && disk->append.open == MC_DISK_NO_REGION &&
                    disk->append.sealing == MC_DISK_NO_REGION;
    if (is_stuck) { /* what is to be written once more waits for the room that its own region is to make */
        victim->next = MC_DISK_NO_SLOT;
        mc_disk_rewrites_refuse(disk);
    }
    while (victim->next != MC_DISK_NO_SLOT && victim->rewrites < MC_DISK_REWRITES_MAX) {
        struct mc_disk_item *item = &disk->index.items[victim->next];
        uint64_t bytes = mc_disk_extent_bytes(item->entry.length, item->entry.key_length);
        if (policies[disk->config.policy].keeps(item) && bytes <= victim->budget && !rewrite_start(disk, victim->next))
            break; /* no buffer now */
        victim->next = item->next;
    }
    return victim->rewrites == 0 && victim->next == MC_DISK_NO_SLOT;
}

/* A region that cannot be listed goes as it is. */
static void unread_start(struct mc_disk *disk)
{
    struct mc_disk_victim *victim = &disk->victim;
    if (disk->regions[victim->unread].live == 0) { /* meanwhile */
        victim->unread = MC_DISK_NO_REGION;
        mc_disk_inventory_go_on(disk, 0);
        return;
    }
    victim->region = victim->unread;
    victim->next = MC_DISK_NO_SLOT;
    victim->is_killing = false;
}

void mc_disk_victim_turn(struct mc_disk *disk)
{
    struct mc_disk_victim *victim = &disk->victim;
    if (victim->region == MC_DISK_NO_REGION && victim->unread != MC_DISK_NO_REGION)
        unread_start(disk);
    if (victim->region == MC_DISK_NO_REGION && needs_a_victim(disk))
        victim_start(disk);
    if (victim->region == MC_DISK_NO_REGION || victim->is_killing || !victim_rewrite(disk))
        return;
    victim->is_killing = true;
    mc_disk_journal_kill(disk, victim->region);
}

static void victim_tell(struct mc_disk *disk, const struct mc_disk_region *region)
{
    struct mc_disk_place places[MC_DISK_LOST_MAX];
    size_t count = 0;
    for (uint32_t slot = region->first; slot != MC_DISK_NO_SLOT; slot = disk->index.items[slot].next) {
        places[count++] = (struct mc_disk_place){slot, disk->index.items[slot].entry.generation};
        if (count == MC_DISK_LOST_MAX || disk->index.items[slot].next == MC_DISK_NO_SLOT) {
            disk->config.lost(disk->config.context, places, count);
            count = 0;
        }
    }
}

void mc_disk_victim_killed(struct mc_disk *disk, int code)
{
    struct mc_disk_victim *victim = &disk->victim;
    uint32_t number = victim->region;
    struct mc_disk_region *region = &disk->regions[number];
    if (code == 0) {
        uint64_t now_ms = mc_disk_wall_ms();
        region->killed_sequence = region->sequence;
        victim_tell(disk, region);
        disk->counts.lost += region->live;
        disk->counts.oldest_age_ms = now_ms > region->opened_wall_ms ? now_ms - region->opened_wall_ms : 0;
        while (region->first != MC_DISK_NO_SLOT)
            mc_disk_item_drop(disk, region->first);
        if (region->state == MC_DISK_REGION_SEALED)
            mc_disk_region_set_free(disk, number);
        mc_disk_journal_emptied(disk);
    }
    victim->region = MC_DISK_NO_REGION;
    if (victim->unread != number)
        return;
    victim->unread = MC_DISK_NO_REGION;
    mc_disk_inventory_go_on(disk, code);
}
