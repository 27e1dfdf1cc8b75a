/* From a region's header to its entries. */
#include "store/disk/walk.h"

#define SCAN_BYTES (1u << 20)

static bool go_to(struct mc_disk_walk *walk, enum mc_disk_walk_stage stage, uint64_t offset, uint64_t length)
{
    walk->stage = stage;
    walk->offset = offset;
    walk->length = (uint32_t)length;
    return true;
}

static bool go_over(struct mc_disk_walk *walk)
{
    walk->stage = MC_DISK_WALK_OVER;
    walk->length = 0;
    return false;
}

static bool is_of_life(const struct mc_disk_walk *walk, const struct mc_disk_head *head)
{
    return head->sequence == walk->header.sequence && head->salt == walk->header.salt && head->region == walk->region;
}

static bool go_to_group(struct mc_disk_walk *walk, uint64_t offset)
{
    walk->end = offset;
    if (offset > walk->region_bytes - MC_DISK_REGION_OVERHEAD)
        return go_over(walk);
    return go_to(walk, MC_DISK_WALK_GROUP, offset, MC_DISK_PAGE);
}

/* Where a group is torn, those behind it may be whole: they were written at the same time. The end of the groups looks
 * the same, so all the rest of the region is searched. */
static bool go_to_scan(struct mc_disk_walk *walk, uint64_t offset)
{
    uint64_t most = mc_disk_page_up(mc_disk_footer_max(walk->region_bytes));
    if (offset > walk->region_bytes - MC_DISK_REGION_OVERHEAD)
        return go_over(walk);
    most = most > SCAN_BYTES ? SCAN_BYTES : most;
    return go_to(walk, MC_DISK_WALK_SCAN, offset,
                 walk->region_bytes - offset < most ? walk->region_bytes - offset : most);
}

static bool gap_begin(struct mc_disk_walk *walk)
{
    walk->gap_at = walk->offset;
    return go_to_scan(walk, walk->offset + MC_DISK_PAGE);
}

void mc_disk_walk_start(struct mc_disk_walk *walk, struct mc_id segment_id, uint64_t region_bytes, uint32_t region)
{
    *walk = (struct mc_disk_walk){
        .segment_id = segment_id, .region_bytes = region_bytes, .region = region, .verdict = MC_DISK_BLANK};
    (void)go_to(walk, MC_DISK_WALK_HEADER, 0, MC_DISK_PAGE);
}

static bool header_feed(struct mc_disk_walk *walk, const uint8_t *bytes, uint32_t got)
{
    if (got < MC_DISK_PAGE) {
        walk->verdict = got == 0 ? MC_DISK_BLANK : MC_DISK_DAMAGED;
        return go_over(walk);
    }
    walk->verdict = mc_disk_head_read(bytes, MC_DISK_HEAD_REGION, walk->segment_id, &walk->header);
    if (walk->verdict == MC_DISK_GOOD && walk->header.region != walk->region)
        walk->verdict = MC_DISK_FOREIGN; /* a header that was written to the wrong place */
    if (walk->verdict == MC_DISK_GOOD && (walk->header.sequence == 0 || walk->header.sequence > MC_DISK_SEQUENCE_MAX))
        walk->verdict = MC_DISK_DAMAGED;
    if (walk->verdict != MC_DISK_GOOD)
        return go_over(walk);
    walk->end = MC_DISK_PAGE;
    return go_to(walk, MC_DISK_WALK_TRAILER, walk->region_bytes - MC_DISK_PAGE, MC_DISK_PAGE);
}

static bool trailer_feed(struct mc_disk_walk *walk, const uint8_t *bytes, uint32_t got)
{
    struct mc_disk_head *head = &walk->head;
    if (got < MC_DISK_PAGE || mc_disk_head_read(bytes, MC_DISK_HEAD_FOOTER, walk->segment_id, head) != MC_DISK_GOOD ||
        !is_of_life(walk, head) || head->bytes == 0 || head->bytes > mc_disk_footer_max(walk->region_bytes))
        return go_to_group(walk, MC_DISK_PAGE);
    uint64_t length = mc_disk_page_up(head->bytes);
    return go_to(walk, MC_DISK_WALK_FOOTER, walk->region_bytes - MC_DISK_PAGE - length, length);
}

static bool footer_feed(struct mc_disk_walk *walk, const uint8_t *bytes, uint32_t got)
{
    if (got < walk->length || mc_crc32c(0, bytes, walk->head.bytes) != walk->head.crc)
        return go_to_group(walk, MC_DISK_PAGE);
    walk->has_footer = true;
    walk->end = walk->region_bytes;
    walk->table = mc_span(bytes, walk->head.bytes);
    return go_over(walk);
}

static bool table_feed(struct mc_disk_walk *walk, const uint8_t *bytes, uint32_t got)
{
    const struct mc_disk_head *head = &walk->head;
    if (got < walk->length || mc_crc32c(0, bytes + sizeof(*head), head->bytes) != head->crc)
        return gap_begin(walk);
    walk->groups++;
    walk->table = mc_span(bytes + sizeof(*head), head->bytes);
    return go_to_group(walk, walk->offset + head->span);
}

static bool group_is_good(struct mc_disk_walk *walk, const uint8_t *bytes, uint64_t offset)
{
    struct mc_disk_head *head = &walk->head;
    uint64_t left = walk->region_bytes - offset;
    return mc_disk_head_read(bytes, MC_DISK_HEAD_GROUP, walk->segment_id, head) == MC_DISK_GOOD &&
           is_of_life(walk, head) && head->at == offset && head->bytes != 0 &&
           head->bytes <= mc_disk_footer_max(walk->region_bytes) && head->span % MC_DISK_PAGE == 0 &&
           head->span <= left && head->span >= mc_disk_page_up(sizeof(*head) + head->bytes);
}

static bool group_feed(struct mc_disk_walk *walk, const uint8_t *bytes, uint32_t got)
{
    if (got < MC_DISK_PAGE || !group_is_good(walk, bytes, walk->offset))
        return gap_begin(walk);
    uint64_t length = mc_disk_page_up(sizeof(walk->head) + walk->head.bytes);
    if (length > MC_DISK_PAGE) /* at most what is left, by the span */
        return go_to(walk, MC_DISK_WALK_TABLE, walk->offset, length);
    return table_feed(walk, bytes, got);
}

static bool scan_feed(struct mc_disk_walk *walk, const uint8_t *bytes, uint32_t got)
{
    for (uint32_t at = 0; at + MC_DISK_PAGE <= got; at += MC_DISK_PAGE) {
        if (group_is_good(walk, bytes + at, walk->offset + at)) {
            walk->gaps++;
            return go_to_group(walk, walk->offset + at);
        }
    }
    return go_to_scan(walk, walk->offset + walk->length); /* also behind what cannot be read */
}

bool mc_disk_walk_feed(struct mc_disk_walk *walk, const uint8_t *bytes, uint32_t got)
{
    walk->table = mc_span(bytes, 0);
    switch (walk->stage) {
    case MC_DISK_WALK_HEADER:
        return header_feed(walk, bytes, got);
    case MC_DISK_WALK_TRAILER:
        return trailer_feed(walk, bytes, got);
    case MC_DISK_WALK_FOOTER:
        return footer_feed(walk, bytes, got);
    case MC_DISK_WALK_GROUP:
        return group_feed(walk, bytes, got);
    case MC_DISK_WALK_TABLE:
        return table_feed(walk, bytes, got);
    case MC_DISK_WALK_SCAN:
        return scan_feed(walk, bytes, got);
    case MC_DISK_WALK_OVER:
        break;
    }
    return false;
}
