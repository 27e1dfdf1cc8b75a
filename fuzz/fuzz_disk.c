/* What lies in the files of a disk. The first byte chooses: a region that is walked with its objects, a page of the
 * journal, a superblock. Checksums are made right before the walk, so that what is behind them is reached as well. */
#include "store/disk/walk.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REGION_BYTES MC_DISK_REGION_BYTES_MIN

static const struct mc_id segment_id = {0x1122334455667788, 0x99aabbccddeeff00};

/* Keys get the hashes that they are to have. */
static void table_repair(uint8_t *table, size_t length)
{
    for (size_t at = 0; length - at >= MC_DISK_ENTRY_BYTES;) {
        uint16_t key_length;
        memcpy(&key_length, table + at + 48, sizeof(key_length));
        size_t bytes = mc_disk_record_bytes(key_length);
        if (bytes > length - at)
            return;
        struct mc_hash hash = mc_hash(table + at + MC_DISK_ENTRY_BYTES, key_length);
        memcpy(table + at + 24, &hash, sizeof(hash));
        at += bytes;
    }
}

/* A page that begins like a head gets our id, its table's checksum and its own. */
static void head_repair(uint8_t *page, size_t left)
{
    struct mc_disk_head head, fresh;
    memcpy(&head, page, sizeof(head));
    mc_disk_head_fill(&fresh, (enum mc_disk_head_kind)(head.kind % 5), segment_id);
    if (head.magic != fresh.magic)
        return;
    head.version = fresh.version;
    head.kind = fresh.kind;
    head.segment_id = segment_id;
    if (head.bytes > left - sizeof(head)) {
        head.bytes %= MC_DISK_PAGE;
        head.bytes = head.bytes > left - sizeof(head) ? 0 : head.bytes;
    }
    if (head.kind == MC_DISK_HEAD_GROUP)
        table_repair(page + sizeof(head), head.bytes);
    if (head.kind != MC_DISK_HEAD_FOOTER)
        head.crc = mc_crc32c(0, page + sizeof(head), head.bytes);
    mc_disk_head_seal(&head);
    memcpy(page, &head, sizeof(head));
}

/* The head behind the table. */
static void trailer_repair(uint8_t *region)
{
    struct mc_disk_head head;
    uint8_t *page = region + REGION_BYTES - MC_DISK_PAGE;
    memcpy(&head, page, sizeof(head));
    if (head.kind != MC_DISK_HEAD_FOOTER || head.bytes > mc_disk_footer_max(REGION_BYTES))
        return;
    table_repair(page - mc_disk_page_up(head.bytes), head.bytes);
    head.crc = mc_crc32c(0, page - mc_disk_page_up(head.bytes), head.bytes);
    mc_disk_head_seal(&head);
    memcpy(page, &head, sizeof(head));
}

static void extent_look(const uint8_t *region, const struct mc_disk_record *record)
{
    uint64_t bytes = mc_disk_extent_bytes(record->entry.length, record->entry.key_length);
    uint64_t at = (uint64_t)record->page * MC_DISK_PAGE;
    mc_assert(at + bytes <= REGION_BYTES);
    uint8_t *extent = malloc(bytes); /* exactly: a read beyond it is seen */
    if (extent == NULL)
        return;
    memcpy(extent, region + at, bytes);
    (void)mc_disk_extent_check(extent, &record->entry);
    free(extent);
}

static void region_walk(const uint8_t *region)
{
    struct mc_disk_walk walk;
    bool has_more = true;
    unsigned reads = 0, extents = 0;
    mc_disk_walk_start(&walk, segment_id, REGION_BYTES, 0);
    while (has_more) {
        mc_assert(walk.length > 0 && walk.length <= mc_disk_walk_bytes(REGION_BYTES) &&
                  walk.offset + walk.length <= REGION_BYTES && ++reads < 10000);
        uint8_t *bytes = malloc(walk.length);
        if (bytes == NULL)
            return;
        memcpy(bytes, region + walk.offset, walk.length);
        has_more = mc_disk_walk_feed(&walk, bytes, walk.length);
        struct mc_reader reader = mc_reader(walk.table.data, walk.table.length);
        struct mc_disk_record record;
        while (mc_disk_record_next(&reader, REGION_BYTES, &record) && extents++ < 64)
            extent_look(region, &record);
        free(bytes);
    }
}

/* The input is pieces: a page's number (two bytes), how many bytes (two), the bytes. */
static void region_look(const uint8_t *data, size_t size)
{
    uint8_t *region = calloc(1, REGION_BYTES);
    struct mc_reader reader = mc_reader(data, size);
    if (region == NULL)
        return;
    while (mc_reader_left(&reader) > 4) {
        uint64_t page = mc_reader_u16(&reader) % (REGION_BYTES / MC_DISK_PAGE);
        size_t length = mc_reader_u16(&reader), left = mc_reader_left(&reader);
        length = length > left ? left : length;
        length = length > REGION_BYTES - page * MC_DISK_PAGE ? REGION_BYTES - page * MC_DISK_PAGE : length;
        memcpy(region + page * MC_DISK_PAGE, mc_reader_take(&reader, length), length);
    }
    for (uint64_t at = 0; at < REGION_BYTES; at += MC_DISK_PAGE)
        head_repair(region + at, REGION_BYTES - at);
    trailer_repair(region);
    region_walk(region);
    free(region);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t page[MC_DISK_PAGE] = {0};
    struct mc_disk_super super;
    struct mc_disk_head head;
    if (size == 0)
        return 0;
    if (data[0] % 3 == 0) {
        region_look(data + 1, size - 1);
        return 0;
    }
    memcpy(page, data + 1, size - 1 < MC_DISK_PAGE ? size - 1 : MC_DISK_PAGE);
    if (data[0] % 3 == 1) {
        head_repair(page, MC_DISK_PAGE);
        if (mc_disk_clears_read(page, segment_id, &head))
            mc_assert(sizeof(head) + head.count * sizeof(struct mc_disk_clear) <= MC_DISK_PAGE);
    } else if (mc_disk_super_read(page, &super) == MC_DISK_GOOD) {
        uint8_t again[MC_DISK_PAGE];
        mc_disk_super_put(again, &super);
        mc_assert(memcmp(page, again, MC_DISK_SUPER_BYTES) == 0);
    }
    return 0;
}
