/* The bytes of the files, written and believed. */
#include "store/disk/format.h"

#include <stddef.h>

#define HEAD_MAGIC 0x4b5349444e4f4f4dull  /* "MOONDISK" */
#define SUPER_MAGIC 0x5250555344434e4dull /* "MNCDSUPR" */
#define MARK_COPY 1u

static bool is_blank(const uint8_t *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (bytes[i] != 0)
            return false;
    }
    return true;
}

const char *mc_disk_verdict_text(enum mc_disk_verdict verdict)
{
    static const char *const texts[] = {"good", "blank", "damaged", "of another disk", "of another version"};
    return texts[verdict];
}

/* ---- heads ---- */

void mc_disk_head_fill(struct mc_disk_head *head, enum mc_disk_head_kind kind, struct mc_id segment_id)
{
    *head =
        (struct mc_disk_head){.magic = HEAD_MAGIC, .version = MC_DISK_VERSION, .kind = kind, .segment_id = segment_id};
}

void mc_disk_head_seal(struct mc_disk_head *head)
{
    head->checksum = mc_crc32c(0, head, offsetof(struct mc_disk_head, checksum));
}

enum mc_disk_verdict mc_disk_head_read(const uint8_t *bytes, enum mc_disk_head_kind kind, struct mc_id segment_id,
                                       struct mc_disk_head *head)
{
    memcpy(head, bytes, sizeof(*head));
    if (head->magic != HEAD_MAGIC)
        return is_blank(bytes, sizeof(*head)) ? MC_DISK_BLANK : MC_DISK_DAMAGED;
    if (head->version != MC_DISK_VERSION) /* its checksum may lie elsewhere */
        return MC_DISK_OTHER_VERSION;
    if (head->checksum != mc_crc32c(0, head, offsetof(struct mc_disk_head, checksum)) || head->kind != (uint32_t)kind)
        return MC_DISK_DAMAGED;
    return mc_id_equal(head->segment_id, segment_id) ? MC_DISK_GOOD : MC_DISK_FOREIGN;
}

bool mc_disk_clears_read(const uint8_t *page, struct mc_id segment_id, struct mc_disk_head *head)
{
    return mc_disk_head_read(page, MC_DISK_HEAD_CLEARS, segment_id, head) == MC_DISK_GOOD &&
           head->count <= MC_DISK_CLEARS_IN_PAGE && head->bytes == head->count * sizeof(struct mc_disk_clear) &&
           mc_crc32c(0, page + sizeof(*head), head->bytes) == head->crc;
}

/* ---- entries ---- */

bool mc_disk_entry_is_sane(const struct mc_disk_entry *entry, uint64_t region_bytes)
{
    return entry->generation != 0 && entry->length != 0 && entry->length < region_bytes && entry->key_length != 0 &&
           entry->key_length <= MC_KEY_LENGTH_MAX && entry->block_shift == mc_block_shift(entry->length) &&
           mc_disk_extent_bytes(entry->length, entry->key_length) <= region_bytes - MC_DISK_REGION_OVERHEAD;
}

struct raw_entry {
    uint64_t generation, version, group, hash_low, hash_high;
    uint32_t length, crc, page, slot;
    uint16_t key_length;
    uint8_t block_shift, flags, marks;
    uint8_t pin[3];
};
_Static_assert(sizeof(struct raw_entry) == MC_DISK_ENTRY_BYTES, "no holes");

void mc_disk_record_put(uint8_t *at, const struct mc_disk_record *record)
{
    const struct mc_disk_entry *entry = &record->entry;
    struct raw_entry raw = {.generation = entry->generation,
                            .version = entry->version,
                            .length = entry->length,
                            .slot = record->slot,
                            .group = entry->group,
                            .hash_low = entry->hash.low,
                            .hash_high = entry->hash.high,
                            .crc = entry->crc,
                            .page = record->page,
                            .key_length = entry->key_length,
                            .block_shift = entry->block_shift,
                            .flags = entry->flags,
                            .pin = {entry->pin[0], entry->pin[1], entry->pin[2]},
                            .marks = record->is_copy ? MARK_COPY : 0};
    memcpy(at, &raw, sizeof(raw));
    memcpy(at + sizeof(raw), record->key, entry->key_length);
    memset(at + sizeof(raw) + entry->key_length, 0,
           mc_disk_record_bytes(entry->key_length) - sizeof(raw) - entry->key_length);
}

bool mc_disk_record_next(struct mc_reader *reader, uint64_t region_bytes, struct mc_disk_record *record)
{
    struct raw_entry raw;
    if (mc_reader_left(reader) == 0 || reader->bad)
        return false;
    const uint8_t *bytes = mc_reader_take(reader, sizeof(raw));
    if (bytes == NULL)
        return false;
    memcpy(&raw, bytes, sizeof(raw));
    record->entry = (struct mc_disk_entry){.generation = raw.generation,
                                           .version = raw.version,
                                           .length = raw.length,
                                           .group = raw.group,
                                           .hash = {raw.hash_low, raw.hash_high},
                                           .crc = raw.crc,
                                           .key_length = raw.key_length,
                                           .block_shift = raw.block_shift,
                                           .flags = raw.flags,
                                           .pin = {raw.pin[0], raw.pin[1], raw.pin[2]}};
    record->slot = raw.slot;
    record->page = raw.page;
    record->is_copy = (raw.marks & MARK_COPY) != 0;
    record->key = mc_reader_take(reader, mc_disk_record_bytes(raw.key_length) - sizeof(raw));
    if (record->key == NULL || !mc_disk_entry_is_sane(&record->entry, region_bytes))
        goto bad;
    uint64_t end = (uint64_t)raw.page * MC_DISK_PAGE + mc_disk_extent_bytes(raw.length, raw.key_length);
    struct mc_hash hash = mc_hash(record->key, raw.key_length);
    if (raw.page == 0 || end > region_bytes || hash.low != raw.hash_low || hash.high != raw.hash_high)
        goto bad;
    return true;
bad:
    reader->bad = true;
    return false;
}

/* ---- extents ---- */

void mc_disk_extent_stamp(uint8_t *extent, const struct mc_disk_entry *entry)
{
    uint64_t bytes = mc_disk_extent_bytes(entry->length, entry->key_length);
    uint64_t used = mc_key_offset(entry->length) + entry->key_length;
    memset(extent + used, 0, bytes - used);
    memcpy(extent + bytes - MC_DISK_STAMP_BYTES, &entry->generation, MC_DISK_STAMP_BYTES);
}

int mc_disk_extent_check_blocks(const uint8_t *extent, const struct mc_disk_entry *entry, uint64_t from, uint64_t to)
{
    const uint8_t *table = extent + mc_table_offset(entry->length);
    uint32_t table_length = mc_table_length(entry->length, entry->block_shift), crc = entry->crc;
    uint64_t block = 1ull << entry->block_shift;
    for (uint64_t at = from; at < to && at < entry->length; at += block) {
        uint64_t length = entry->length - at < block ? entry->length - at : block;
        if (table_length > 0)
            memcpy(&crc, table + (at >> entry->block_shift) * 4, 4);
        if (mc_crc32c(0, extent + at, length) != crc)
            return MC_ERR_CHECKSUM_MISMATCH;
    }
    return 0;
}

int mc_disk_extent_check_end(const uint8_t *extent, const struct mc_disk_entry *entry)
{
    const uint8_t *table = extent + mc_table_offset(entry->length);
    uint32_t table_length = mc_table_length(entry->length, entry->block_shift);
    uint64_t bytes = mc_disk_extent_bytes(entry->length, entry->key_length), generation;
    memcpy(&generation, extent + bytes - MC_DISK_STAMP_BYTES, MC_DISK_STAMP_BYTES);
    if (generation != entry->generation)
        return MC_ERR_CHECKSUM_MISMATCH;
    struct mc_hash hash = mc_hash(extent + mc_key_offset(entry->length), entry->key_length);
    if (hash.low != entry->hash.low || hash.high != entry->hash.high)
        return MC_ERR_CHECKSUM_MISMATCH;
    return table_length > 0 && mc_crc32c(0, table, table_length) != entry->crc ? MC_ERR_CHECKSUM_MISMATCH : 0;
}

int mc_disk_extent_check(const uint8_t *extent, const struct mc_disk_entry *entry)
{
    int rc = mc_disk_extent_check_end(extent, entry);
    return rc < 0 ? rc : mc_disk_extent_check_blocks(extent, entry, 0, entry->length);
}

/* ---- superblocks ---- */

struct raw_super {
    uint64_t magic;
    uint32_t version, contact_at_high; /* what came last stands where zeros were */
    struct mc_id segment_id;
    uint64_t sequence, region_bytes, made_wall_ms, epoch, floor;
    struct mc_id cluster, contact_boot;
    uint64_t contact_boot_ms, contact_wall_ms;
    uint32_t contact_at_low, checksum;
};
_Static_assert(sizeof(struct raw_super) == MC_DISK_SUPER_BYTES, "no holes");

/* Behind it, since there were proofs. */
struct raw_proof {
    uint64_t epoch;
    uint8_t bytes[MC_EPOCH_PROOF_BYTES];
    uint32_t checksum, zero;
};
_Static_assert(sizeof(struct raw_proof) == MC_DISK_SUPER_PROOF_BYTES, "no holes");

static void proof_put(uint8_t *page, const struct mc_epoch_proof *proof)
{
    struct raw_proof raw = {.epoch = proof->epoch};
    if (proof->epoch == 0)
        return;
    memcpy(raw.bytes, proof->bytes, sizeof(raw.bytes));
    raw.checksum = mc_crc32c(0, &raw, offsetof(struct raw_proof, checksum));
    memcpy(page + MC_DISK_SUPER_BYTES, &raw, sizeof(raw));
}

static void proof_read(struct mc_epoch_proof *proof, const uint8_t *page)
{
    struct raw_proof raw;
    memcpy(&raw, page + MC_DISK_SUPER_BYTES, sizeof(raw));
    if (raw.checksum != mc_crc32c(0, &raw, offsetof(struct raw_proof, checksum)))
        return;
    proof->epoch = raw.epoch;
    memcpy(proof->bytes, raw.bytes, sizeof(raw.bytes));
}

void mc_disk_super_put(uint8_t *page, const struct mc_disk_super *super)
{
    const struct mc_disk_mark *mark = &super->mark;
    struct raw_super raw = {.magic = SUPER_MAGIC,
                            .version = MC_DISK_VERSION,
                            .contact_at_high = (uint32_t)(mark->contact_at_ms >> 32),
                            .segment_id = super->segment_id,
                            .sequence = super->sequence,
                            .region_bytes = super->region_bytes,
                            .made_wall_ms = super->made_wall_ms,
                            .epoch = mark->epoch,
                            .floor = mark->floor,
                            .cluster = mark->cluster,
                            .contact_boot = mark->contact_boot,
                            .contact_boot_ms = mark->contact_boot_ms,
                            .contact_wall_ms = mark->contact_wall_ms,
                            .contact_at_low = (uint32_t)mark->contact_at_ms};
    raw.checksum = mc_crc32c(0, &raw, offsetof(struct raw_super, checksum));
    memset(page, 0, MC_DISK_PAGE);
    memcpy(page, &raw, sizeof(raw));
    proof_put(page, &mark->proof);
}

static void super_take(struct mc_disk_super *super, const struct raw_super *raw)
{
    *super =
        (struct mc_disk_super){.segment_id = raw->segment_id,
                               .sequence = raw->sequence,
                               .region_bytes = raw->region_bytes,
                               .made_wall_ms = raw->made_wall_ms,
                               .mark = {.epoch = raw->epoch,
                                        .floor = raw->floor,
                                        .cluster = raw->cluster,
                                        .contact_boot = raw->contact_boot,
                                        .contact_boot_ms = raw->contact_boot_ms,
                                        .contact_wall_ms = raw->contact_wall_ms,
                                        .contact_at_ms = (uint64_t)raw->contact_at_high << 32 | raw->contact_at_low}};
}

enum mc_disk_verdict mc_disk_super_read(const uint8_t *page, struct mc_disk_super *super)
{
    struct raw_super raw;
    memcpy(&raw, page, sizeof(raw));
    super_take(super, &raw);
    proof_read(&super->mark.proof, page);
    if (raw.magic != SUPER_MAGIC)
        return is_blank(page, sizeof(raw)) ? MC_DISK_BLANK : MC_DISK_DAMAGED;
    if (raw.version != MC_DISK_VERSION)
        return MC_DISK_OTHER_VERSION;
    uint64_t bytes = super->region_bytes;
    if (raw.checksum != mc_crc32c(0, &raw, offsetof(struct raw_super, checksum)) || bytes < MC_DISK_REGION_BYTES_MIN ||
        bytes > MC_DISK_REGION_BYTES_MAX || (bytes & (bytes - 1)) != 0 || mc_id_is_zero(super->segment_id))
        return MC_DISK_DAMAGED;
    return MC_DISK_GOOD;
}
