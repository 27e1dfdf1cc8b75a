/* The way through one region, from its header to its entries: by its footer, or by its groups when it has none that
 * proves itself. It does no I/O: it says what is to be read and is fed with it, so that recovery, an inventory and the
 * command that looks at a directory all go the same way. */
#ifndef MC_DISK_WALK_H
#define MC_DISK_WALK_H

#include "store/disk/format.h"

enum mc_disk_walk_stage {
    MC_DISK_WALK_HEADER,
    MC_DISK_WALK_TRAILER,
    MC_DISK_WALK_FOOTER,
    MC_DISK_WALK_GROUP,
    MC_DISK_WALK_TABLE,
    MC_DISK_WALK_SCAN, /* for the next group that proves itself, behind one that does not */
    MC_DISK_WALK_OVER
};
struct mc_disk_walk {
    struct mc_id segment_id;
    uint64_t region_bytes;
    uint32_t region;
    enum mc_disk_walk_stage stage;
    uint64_t offset; /* to be read next, in the region; multiples of MC_DISK_PAGE */
    uint32_t length;
    enum mc_disk_verdict verdict; /* of the header */
    struct mc_disk_head header, head;
    bool has_footer;
    uint32_t groups, gaps; /* gaps: places where a group should have been, and there was another behind it */
    uint64_t gap_at;
    uint64_t end;         /* behind what is known to be used */
    struct mc_span table; /* what the last bytes that were fed held: entries, in those bytes */
};
/* Bytes that the longest read needs. */
static inline uint32_t mc_disk_walk_bytes(uint64_t region_bytes)
{
    return mc_disk_footer_max(region_bytes) + 2 * MC_DISK_PAGE;
}
void mc_disk_walk_start(struct mc_disk_walk *walk, struct mc_id segment_id, uint64_t region_bytes, uint32_t region);
/* bytes: what was read there; got: how many, less than `length` at the end of a file and after an error. True: there is
 * more to read. */
bool mc_disk_walk_feed(struct mc_disk_walk *walk, const uint8_t *bytes, uint32_t got);

#endif
