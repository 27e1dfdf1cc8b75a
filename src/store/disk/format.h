/* What lies in the files: pages with a head that proves itself, tables of entries, extents, superblocks. Everything
 * here is a function of bytes that may be anybody's: nothing asserts, nothing reads beyond what it was given. */
#ifndef MC_DISK_FORMAT_H
#define MC_DISK_FORMAT_H

#include "store/disk/disk.h"

#define MC_DISK_PAGE 4096u
#define MC_DISK_VERSION 1u
#define MC_DISK_ENTRY_BYTES 64u /* of an entry in a table, before its key */
#define MC_DISK_STAMP_BYTES 8u  /* the generation, at the end of an extent's last page */
#define MC_DISK_CLEARS_IN_PAGE ((uint32_t)((MC_DISK_PAGE - sizeof(struct mc_disk_head)) / sizeof(struct mc_disk_clear)))
#define MC_DISK_SEQUENCE_MAX (UINT64_MAX >> 1) /* no honest disk comes there */
#define MC_DISK_NO_REGION UINT32_MAX

enum mc_disk_verdict {
    MC_DISK_GOOD,
    MC_DISK_BLANK, /* nothing but zeros */
    MC_DISK_DAMAGED,
    MC_DISK_FOREIGN, /* of another disk, or of another life of the region */
    MC_DISK_OTHER_VERSION
};
enum mc_disk_head_kind {
    MC_DISK_HEAD_REGION = 1, /* the first page of a region */
    MC_DISK_HEAD_GROUP,      /* before the table of a group */
    MC_DISK_HEAD_FOOTER,     /* the last page of a sealed region; its table ends before it */
    MC_DISK_HEAD_CLEARS      /* a page of the journal; number in `sequence` */
};
/* A region's life is (sequence, salt): what was written in another life is no part of it. */
struct mc_disk_head {
    uint64_t magic;
    uint32_t version, kind;
    struct mc_id segment_id;
    uint64_t sequence, salt;
    uint64_t at;     /* group: its offset in the region. Region: wall clock in ms. Journal: the page's number */
    uint64_t span;   /* group: bytes until the next one */
    uint32_t region; /* its number */
    uint32_t count;  /* entries of the table */
    uint32_t bytes;  /* of the table */
    uint32_t crc;    /* of the table */
    uint32_t flags;  /* journal: MC_DISK_CLEARS_COMPLETE */
    uint32_t reserved[2];
    uint32_t checksum; /* CRC32C of all before it */
};
_Static_assert(sizeof(struct mc_disk_head) == 96, "no holes");
#define MC_DISK_CLEARS_COMPLETE 1u /* all that the other file of the journal had is before this page */

void mc_disk_head_fill(struct mc_disk_head *head, enum mc_disk_head_kind kind, struct mc_id segment_id);
/* The last step: the checksum. */
void mc_disk_head_seal(struct mc_disk_head *head);
/* bytes: at least a head. */
enum mc_disk_verdict mc_disk_head_read(const uint8_t *bytes, enum mc_disk_head_kind kind, struct mc_id segment_id,
                                       struct mc_disk_head *head);

/* An entry as it stands in a table. */
struct mc_disk_record {
    struct mc_disk_entry entry;
    uint32_t page; /* of its extent in the region */
    uint32_t slot;
    bool is_copy;       /* it was written once more: an older copy may be there */
    const uint8_t *key; /* borrowed */
};
static inline uint32_t mc_disk_record_bytes(uint32_t key_length)
{
    return MC_DISK_ENTRY_BYTES + ((key_length + 7u) & ~7u);
}
/* Writes mc_disk_record_bytes. */
void mc_disk_record_put(uint8_t *at, const struct mc_disk_record *record);
/* The next of a table; false: it is over, or (reader->bad) damaged. */
bool mc_disk_record_next(struct mc_reader *reader, uint64_t region_bytes, struct mc_disk_record *record);
/* Could this be an object at all, and is it within the limits of such a region? */
bool mc_disk_entry_is_sane(const struct mc_disk_entry *entry, uint64_t region_bytes);

static inline uint64_t mc_disk_page_up(uint64_t bytes)
{
    return (bytes + MC_DISK_PAGE - 1) & ~(uint64_t)(MC_DISK_PAGE - 1);
}
/* Bytes of an extent on the disk. */
static inline uint64_t mc_disk_extent_bytes(uint64_t length, uint32_t key_length)
{
    return mc_disk_page_up(mc_key_offset(length) + key_length + MC_DISK_STAMP_BYTES);
}
/* Bytes of a region that no object can have: header, a table of one, a footer of one. */
#define MC_DISK_REGION_OVERHEAD (4u * MC_DISK_PAGE)
/* The largest table of a footer. */
static inline uint32_t mc_disk_footer_max(uint64_t region_bytes)
{
    return (uint32_t)(region_bytes / 16);
}
/* Fills what is behind the key: zeros and the stamp. */
void mc_disk_extent_stamp(uint8_t *extent, const struct mc_disk_entry *entry);
/* 0, or MC_ERR_CHECKSUM_MISMATCH: not the bytes of that entry. extent: mc_disk_extent_bytes. */
int mc_disk_extent_check(const uint8_t *extent, const struct mc_disk_entry *entry);
/* The same in parts: first all but the data, behind mc_table_offset, then the blocks that begin in [from, to). */
int mc_disk_extent_check_end(const uint8_t *extent, const struct mc_disk_entry *entry);
int mc_disk_extent_check_blocks(const uint8_t *extent, const struct mc_disk_entry *entry, uint64_t from, uint64_t to);

/* Of the journal: this generation is dead in all its copies. generation 0: everything in that life of the region. */
struct mc_disk_clear {
    uint64_t generation;
    uint64_t sequence; /* of the region it lay in; region MC_DISK_NO_REGION: of any, up to this sequence */
    uint32_t region;
    uint32_t reserved;
};

/* A page of the journal: its records stand behind the head. False: it does not prove itself. */
bool mc_disk_clears_read(const uint8_t *page, struct mc_id segment_id, struct mc_disk_head *head);

struct mc_disk_super {
    struct mc_id segment_id;
    uint64_t sequence; /* the greater one counts */
    uint64_t region_bytes;
    uint64_t made_wall_ms;
    struct mc_disk_mark mark;
};
#define MC_DISK_SUPER_BYTES 128u      /* of a page; */
#define MC_DISK_SUPER_PROOF_BYTES 48u /* behind it; the rest is zero */
#define MC_DISK_SUPER_COUNT 2u

/* page: MC_DISK_PAGE bytes. */
void mc_disk_super_put(uint8_t *page, const struct mc_disk_super *super);
enum mc_disk_verdict mc_disk_super_read(const uint8_t *page, struct mc_disk_super *super);
const char *mc_disk_verdict_text(enum mc_disk_verdict verdict);

#endif
