/* The life of a region: it is given bytes of a file, opened, filled, sealed, emptied, and opened again. */
#include "store/disk/inside.h"

#include "env/clock.h"
#include "env/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

/* ---- the list of a region's items ---- */

void mc_disk_region_link(struct mc_disk *disk, uint32_t slot, uint32_t region, uint32_t page)
{
    struct mc_disk_item *items = disk->index.items, *item = &items[slot];
    struct mc_disk_region *home = &disk->regions[region];
    item->region = region;
    item->page = page;
    item->previous = MC_DISK_NO_SLOT;
    item->next = home->first;
    if (home->first != MC_DISK_NO_SLOT)
        items[home->first].previous = slot;
    home->first = slot;
    home->live++;
    uint64_t bytes = mc_disk_extent_bytes(item->entry.length, item->entry.key_length);
    home->live_bytes += bytes;
    disk->counts.live_bytes += bytes;
}

void mc_disk_region_set_free(struct mc_disk *disk, uint32_t region)
{
    disk->regions[region].state = MC_DISK_REGION_FREE;
    disk->regions_free++;
}

void mc_disk_region_unlink(struct mc_disk *disk, uint32_t slot)
{
    struct mc_disk_item *items = disk->index.items, *item = &items[slot];
    struct mc_disk_region *home = &disk->regions[item->region];
    if (disk->victim.region == item->region && disk->victim.next == slot)
        disk->victim.next = item->next;
    *(item->previous != MC_DISK_NO_SLOT ? &items[item->previous].next : &home->first) = item->next;
    if (item->next != MC_DISK_NO_SLOT)
        items[item->next].previous = item->previous;
    home->live--;
    uint64_t bytes = mc_disk_extent_bytes(item->entry.length, item->entry.key_length);
    home->live_bytes -= bytes;
    disk->counts.live_bytes -= bytes;
    /* The journal has, or is about to have, each of those that were there. */
    if (home->live == 0 && home->state == MC_DISK_REGION_SEALED && disk->victim.region != item->region)
        mc_disk_region_set_free(disk, item->region);
}

void mc_disk_item_drop(struct mc_disk *disk, uint32_t slot)
{
    mc_disk_region_unlink(disk, slot);
    mc_disk_index_release(&disk->index, slot);
}

/* ---- failing ---- */

void mc_disk_region_retire(struct mc_disk *disk, uint32_t region, int error)
{
    struct mc_disk_region *failed = &disk->regions[region];
    if (failed->state == MC_DISK_REGION_RETIRED)
        return;
    mc_log(ERROR, "the disk %s: writing to region %" PRIu32 " failed: %s; it is not written again",
           disk->directory.path, region, strerror(error));
    failed->state = MC_DISK_REGION_RETIRED;
    disk->counts.regions_retired++;
    if (disk->append.open == region)
        disk->append.open = MC_DISK_NO_REGION;
    if (disk->append.sealing == region)
        disk->append.sealing = MC_DISK_NO_REGION;
    if (++disk->append.failures >= MC_DISK_FAILURES_MAX)
        mc_disk_read_only_set(disk, "one region after the other failed");
}

/* ---- growing ---- */

bool mc_disk_region_can_grow(const struct mc_disk *disk)
{
    return disk->regions_there < disk->region_count && !disk->append.is_growth_late &&
           (!disk->append.is_full || mc_disk_now(disk) >= disk->append.full_until_ns);
}

static uint32_t region_without_bytes(const struct mc_disk *disk)
{
    if (!mc_disk_region_can_grow(disk))
        return MC_DISK_NO_REGION;
    uint32_t region = 0;
    while (disk->regions[region].state != MC_DISK_REGION_NONE) /* there is one */
        region++;
    return region;
}

static int range_allocate(int fd, uint64_t offset, uint64_t length)
{
    if (fallocate(fd, 0, (off_t)offset, (off_t)length) == 0)
        return 0;
    if (errno != EOPNOTSUPP)
        return errno;
    /* Such a file system says ENOSPC when it is written to. */
    off_t end = lseek(fd, 0, SEEK_END);
    if (end >= (off_t)(offset + length) || ftruncate(fd, (off_t)(offset + length)) == 0)
        return 0;
    return errno;
}

static void growth_ended(struct mc_disk_flight *flight, int64_t result)
{
    struct mc_disk *disk = flight->disk;
    struct mc_disk_append *append = &disk->append;
    uint32_t region = append->growing;
    append->growing = MC_DISK_NO_REGION;
    append->is_growth_late = false;
    if (append->growing_fd >= 0) {
        disk->volume_fds[region / MC_DISK_VOLUME_REGIONS] = append->growing_fd;
        append->growing_fd = -1;
    }
    disk->journal.is_reserved = disk->journal.is_reserved || append->has_reserved;
    if (result < 0) {
        if (!append->is_full)
            mc_log(WARNING, "the disk %s grows no further than %" PRIu32 " regions: %s; the oldest makes room",
                   disk->directory.path, disk->regions_there, strerror((int)-result));
        append->is_full = true;
        append->full_until_ns = mc_disk_now(disk) + MC_DISK_FULL_NS;
        return;
    }
    append->is_full = false;
    disk->regions_there++;
    disk->regions[region].durable_sequence = UINT64_MAX;
    mc_disk_region_set_free(disk, region);
}

/* A call that says so would be made again, as a read is; of this one a part is done. */
static int64_t growth_failed(int error)
{
    return error == EINTR || error == EAGAIN ? -EIO : -error;
}

/* A file system that is asked for more than it has gives all of it before it says so, and others find none meanwhile.
 * The journal comes first: once it cannot be written, nothing is of use that lies in the regions. */
static int64_t growth_call(struct mc_disk_request *request)
{
    struct mc_disk *disk = ((struct mc_disk_flight *)request)->disk; /* its first member */
    struct mc_disk_append *append = &disk->append;
    int fd = mc_disk_region_fd(disk, append->growing);
    if (fd < 0)
        fd = append->growing_fd =
            mc_disk_directory_volume(&disk->directory, append->growing / MC_DISK_VOLUME_REGIONS, true);
    if (fd < 0)
        return growth_failed(errno);
    append->has_reserved = append->has_reserved || mc_disk_journal_blocks(disk);
    if (!append->has_reserved ||
        mc_disk_directory_room(&disk->directory) < disk->region_bytes + disk->region_bytes / MC_DISK_ROOM_PART)
        return -ENOSPC;
    uint64_t at = mc_disk_region_at(disk, append->growing, 0);
    int error = range_allocate(fd, at, disk->region_bytes);
    /* A part of it may be there; behind it lies nothing. */
    if (error != 0 && ftruncate(fd, (off_t)at) < 0)
        mc_log_limited(WARNING, "the disk %s: what is there of region %" PRIu32 " cannot be cut off: %s",
                       disk->directory.path, append->growing, strerror(errno));
    return growth_failed(error);
}

/* Gives one more region its bytes. A file system may have us wait for its journal meanwhile, or for a server that does
 * not answer, so this is an operation like others: the disk's thread goes on. */
bool mc_disk_region_grow(struct mc_disk *disk)
{
    struct mc_disk_append *append = &disk->append;
    if (append->growing != MC_DISK_NO_REGION)
        return !append->is_growth_late;
    append->growing = region_without_bytes(disk);
    if (append->growing == MC_DISK_NO_REGION)
        return false;
    append->has_reserved = disk->journal.is_reserved;
    mc_disk_flight_call(disk, &append->growing_flight, growth_call, growth_ended);
    return true;
}

/* Who waits for the bytes is not kept waiting for ever; should they come, they are used. */
static void growth_turn(struct mc_disk *disk)
{
    struct mc_disk_append *append = &disk->append;
    if (!mc_disk_region_is_growing(append) || mc_disk_now(disk) < append->growing_flight.begun_ns + MC_DISK_GROWTH_NS)
        return;
    append->is_growth_late = true;
    if (!append->is_full)
        mc_log(WARNING,
               "the disk %s grows no further than %" PRIu32 " regions until its file system answers; the oldest "
               "makes room",
               disk->directory.path, disk->regions_there);
    append->is_full = true;
}

/* ---- opening ---- */

static void header_ended(struct mc_disk_flight *flight, int64_t result)
{
    struct mc_disk *disk = flight->disk;
    uint32_t region = disk->append.header_region;
    disk->append.header_is_busy = false;
    disk->regions[region].writes--;
    if (result < 0)
        mc_disk_region_retire(disk, region, (int)-result);
}

/* Of those that are free the one that lived longest ago; nothing may still be under way into it: it could land on what
 * is written next. */
static uint32_t region_choose(const struct mc_disk *disk)
{
    uint32_t best = MC_DISK_NO_REGION;
    for (uint32_t i = 0; i < disk->region_count && disk->regions_free > 0; i++) {
        const struct mc_disk_region *region = &disk->regions[i];
        if (region->state == MC_DISK_REGION_FREE && region->writes == 0 &&
            (best == MC_DISK_NO_REGION || region->sequence < disk->regions[best].sequence))
            best = i;
    }
    return best;
}

static struct mc_disk_footer *footer_choose(struct mc_disk *disk)
{
    struct mc_disk_append *append = &disk->append;
    bool is_taken = append->sealing != MC_DISK_NO_REGION && append->sealing_footer == &append->footers[0];
    return &append->footers[is_taken ? 1 : 0];
}

static void region_open(struct mc_disk *disk)
{
    struct mc_disk_append *append = &disk->append;
    struct mc_disk_head head;
    if (disk->regions_free == 0) {
        (void)mc_disk_region_grow(disk);
        return;
    }
    uint32_t number = region_choose(disk);
    if (number == MC_DISK_NO_REGION)
        return;
    mc_disk_journal_reserve(disk); /* also of a disk that has all its regions */
    struct mc_disk_region *region = &disk->regions[number];
    region->state = MC_DISK_REGION_OPEN;
    region->sequence = ++disk->sequence;
    if (region->durable_sequence == UINT64_MAX) /* from now on there is one, which a power failure may show */
        region->durable_sequence = region->sequence;
    region->salt = mc_random_u64();
    region->opened_wall_ms = mc_disk_wall_ms();
    region->first = MC_DISK_NO_SLOT;
    region->writes++;
    disk->regions_free--;
    append->open = number;
    append->at = MC_DISK_PAGE;
    append->footer_bytes = 0;
    append->footer = footer_choose(disk);
    append->footer->used = append->footer->count = 0;

    mc_disk_head_fill(&head, MC_DISK_HEAD_REGION, disk->directory.super.segment_id);
    head.sequence = region->sequence;
    head.salt = region->salt;
    head.at = region->opened_wall_ms;
    head.region = number;
    mc_disk_head_seal(&head);
    memset(append->header_page, 0, MC_DISK_PAGE);
    memcpy(append->header_page, &head, sizeof(head));
    append->header_region = number;
    append->header_is_busy = true;
    mc_disk_flight_start(disk, &append->header_flight, MC_DISK_WRITE, mc_disk_region_fd(disk, number),
                         append->header_page, MC_DISK_PAGE, mc_disk_region_at(disk, number, 0), header_ended);
}

/* ---- sealing ---- */

static void seal_synced(struct mc_disk_flight *flight, int64_t result)
{
    struct mc_disk *disk = flight->disk;
    uint32_t number = disk->append.sealing;
    if (number == MC_DISK_NO_REGION) /* was retired meanwhile */
        return;
    if (result < 0) {
        mc_disk_region_retire(disk, number, (int)-result);
        return;
    }
    struct mc_disk_region *region = &disk->regions[number];
    region->durable_sequence = region->sequence;
    region->state = MC_DISK_REGION_SEALED;
    disk->append.sealing = MC_DISK_NO_REGION;
    disk->append.failures = 0;
    if (region->live == 0)
        mc_disk_region_set_free(disk, number);
}

static void footer_ended(struct mc_disk_flight *flight, int64_t result)
{
    struct mc_disk *disk = flight->disk;
    uint32_t number = disk->append.sealing;
    if (number == MC_DISK_NO_REGION)
        return;
    disk->regions[number].writes--;
    if (result < 0) {
        mc_disk_region_retire(disk, number, (int)-result);
        return;
    }
    disk->append.seal_stage = MC_DISK_SEAL_SYNC;
    mc_disk_flight_start(disk, flight, MC_DISK_SYNC, mc_disk_region_fd(disk, number), NULL, 0, 0, seal_synced);
}

/* All groups are written: the footer, its head in the region's last page. */
static void footer_write(struct mc_disk *disk)
{
    struct mc_disk_append *append = &disk->append;
    struct mc_disk_region *region = &disk->regions[append->sealing];
    struct mc_disk_footer *footer = append->sealing_footer;
    struct mc_disk_head head;
    uint32_t table = (uint32_t)mc_disk_page_up(footer->used), length = table + MC_DISK_PAGE;
    mc_disk_head_fill(&head, MC_DISK_HEAD_FOOTER, disk->directory.super.segment_id);
    head.sequence = region->sequence;
    head.salt = region->salt;
    head.region = append->sealing;
    head.count = footer->count;
    head.bytes = footer->used;
    head.crc = mc_crc32c(0, footer->bytes, footer->used);
    mc_disk_head_seal(&head);
    memset(footer->bytes + footer->used, 0, length - footer->used);
    memcpy(footer->bytes + table, &head, sizeof(head));
    append->seal_stage = MC_DISK_SEAL_FOOTER;
    region->writes++;
    mc_disk_flight_start(disk, &append->seal_flight, MC_DISK_WRITE, mc_disk_region_fd(disk, append->sealing),
                         footer->bytes, length, mc_disk_region_at(disk, append->sealing, disk->region_bytes - length),
                         footer_ended);
}

void mc_disk_region_turn(struct mc_disk *disk)
{
    struct mc_disk_append *append = &disk->append;
    growth_turn(disk);
    if (append->sealing != MC_DISK_NO_REGION && append->seal_stage == MC_DISK_SEAL_WRITES &&
        disk->regions[append->sealing].writes == 0)
        footer_write(disk);
    if (append->open != MC_DISK_NO_REGION && append->at >= disk->region_bytes / 2 && disk->regions_free == 0)
        (void)mc_disk_region_grow(disk); /* one ahead, as with those that are given up */
}

struct mc_disk_footer *mc_disk_region_footer(struct mc_disk *disk, uint32_t region)
{
    return region == disk->append.open      ? disk->append.footer
           : region == disk->append.sealing ? disk->append.sealing_footer
                                            : NULL;
}

bool mc_disk_region_fits(const struct mc_disk *disk, uint64_t bytes, uint32_t footer_bytes)
{
    const struct mc_disk_append *append = &disk->append;
    uint64_t footer = (uint64_t)append->footer_bytes + footer_bytes;
    return footer <= mc_disk_footer_max(disk->region_bytes) &&
           append->at + bytes + mc_disk_page_up(footer) + MC_DISK_PAGE <= disk->region_bytes;
}

bool mc_disk_region_seal(struct mc_disk *disk)
{
    struct mc_disk_append *append = &disk->append;
    if (append->sealing != MC_DISK_NO_REGION || append->header_is_busy)
        return false;
    append->sealing = append->open;
    append->sealing_footer = append->footer;
    append->seal_stage = MC_DISK_SEAL_WRITES;
    disk->regions[append->open].state = MC_DISK_REGION_SEALING;
    append->open = MC_DISK_NO_REGION;
    return true;
}

bool mc_disk_region_room(struct mc_disk *disk, uint64_t bytes, uint32_t footer_bytes)
{
    struct mc_disk_append *append = &disk->append;
    /* The header comes first: without it, what was written and answered is not found after a kill. */
    if (append->header_is_busy)
        return false;
    if (append->open != MC_DISK_NO_REGION && append->footer->count < disk->region_objects_max &&
        mc_disk_region_fits(disk, bytes, footer_bytes))
        return true;
    if (append->open != MC_DISK_NO_REGION && !mc_disk_region_seal(disk))
        return false;
    region_open(disk);
    return false;
}
