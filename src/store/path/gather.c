/* The caller's parts as one stream, and copies between them and mapped extents. */
#include "store/path/gather.h"

#include "env/clock.h"

#include <pthread.h>
#include <stdlib.h>

uint8_t *mc_cursor_take(struct mc_cursor *cursor, uint64_t want, size_t *length)
{
    while (cursor->index < cursor->count && cursor->offset == cursor->parts[cursor->index].iov_len) {
        cursor->index++;
        cursor->offset = 0;
    }
    *length = 0;
    if (cursor->index == cursor->count)
        return NULL;
    const struct iovec *part = &cursor->parts[cursor->index];
    uint8_t *at = (uint8_t *)part->iov_base + cursor->offset;
    *length = part->iov_len - cursor->offset;
    if (*length > want)
        *length = (size_t)want;
    cursor->offset += *length;
    return at;
}

void mc_cursor_skip(struct mc_cursor *cursor, uint64_t length)
{
    while (length > 0) {
        size_t taken;
        (void)mc_cursor_take(cursor, length, &taken);
        if (taken == 0)
            return;
        length -= taken;
    }
}

static pthread_key_t scratch_key;
static pthread_once_t scratch_once = PTHREAD_ONCE_INIT;
static bool scratch_has_key;

static void scratch_free(void *argument)
{
    struct mc_scratch *scratch = argument;
    mc_buffer_free(&scratch->out);
    free(scratch->first);
    free(scratch);
}

static void scratch_prepare(void)
{
    scratch_has_key = pthread_key_create(&scratch_key, scratch_free) == 0;
}

struct mc_scratch *mc_scratch_get(void)
{
    if (pthread_once(&scratch_once, scratch_prepare) != 0 || !scratch_has_key)
        return NULL;
    struct mc_scratch *scratch = pthread_getspecific(scratch_key);
    if (scratch != NULL)
        return scratch;
    scratch = calloc(1, sizeof(*scratch));
    if (scratch == NULL)
        return NULL;
    scratch->first = malloc(2 * (size_t)MC_SCRATCH_BYTES);
    if (scratch->first == NULL || pthread_setspecific(scratch_key, scratch) != 0) {
        scratch_free(scratch);
        return NULL;
    }
    scratch->second = scratch->first + MC_SCRATCH_BYTES;
    return scratch;
}

static bool parts_hold(const struct iovec *parts, size_t count, uint64_t length)
{
    uint64_t room = 0;
    for (size_t i = 0; i < count && room < length; i++) {
        if (parts[i].iov_len >= length - room)
            return true;
        room += parts[i].iov_len;
    }
    return room >= length;
}

int mc_transfer_check(const struct mc_transfer *transfer, uint64_t data_size, uint32_t slot_count)
{
    uint64_t object = transfer->object_length;
    if (transfer->place.slot >= slot_count || object == 0 || object > data_size || transfer->length == 0 ||
        transfer->offset > object || transfer->length > object - transfer->offset ||
        !parts_hold(transfer->parts, transfer->part_count, transfer->length))
        return MC_ERR_INVALID_PARAMS;
    if (transfer->kind == MC_TRANSFER_READ)
        return 0;
    if (transfer->length != object || transfer->key.length == 0 || transfer->key.length > MC_KEY_LENGTH_MAX)
        return MC_ERR_INVALID_PARAMS;
    uint64_t size = mc_extent_size(object, transfer->key.length), offset = transfer->place.offset;
    return offset % MC_EXTENT_UNIT != 0 || size > data_size || offset > data_size - size ? MC_ERR_INVALID_PARAMS : 0;
}

void mc_motion_start(struct mc_motion *motion, const struct mc_run *run, bool verify)
{
    *motion = (struct mc_motion){.run = run, .verify = verify, .next_tick_ns = mc_clock_ns() + MC_TICK_NS};
}

int mc_motion_look(struct mc_motion *motion)
{
    uint64_t now_ns = mc_clock_ns();
    motion->unseen = 0;
    if (now_ns >= motion->run->deadline_ns)
        return MC_ERR_RPC_TIMEOUT;
    if (now_ns >= motion->next_tick_ns) {
        motion->next_tick_ns = now_ns + MC_TICK_NS;
        if (motion->run->tick != NULL)
            motion->run->tick(motion->run->context);
    }
    return 0;
}

static inline uint32_t copy_crc(void *target, const void *source, size_t length, uint32_t crc, bool stream)
{
    return stream ? mc_copy_crc32c_stream(target, source, length, crc) : mc_copy_crc32c(target, source, length, crc);
}

struct reading {
    const uint8_t *data; /* of the object */
    struct mc_cursor *cursor;
    struct mc_motion *motion;
    bool stream;
};

/* [start, end) of the object is copied; the CRC covers [from, to) around it, so that a block of which only a part is
 * wanted proves that part: what was copied goes into the sum as it is in the copy. */
static int piece_read(struct reading *reading, uint64_t from, uint64_t to, uint64_t start, uint64_t end, uint32_t *crc)
{
    *crc = mc_crc32c(0, reading->data + from, (size_t)(start - from));
    while (start < end) {
        size_t length;
        uint8_t *target =
            mc_cursor_take(reading->cursor, end - start < MC_LOOK_BYTES ? end - start : MC_LOOK_BYTES, &length);
        if (reading->motion->verify)
            *crc = copy_crc(target, reading->data + start, length, *crc, reading->stream);
        else
            memcpy(target, reading->data + start, length);
        start += length;
        int rc = mc_motion_moved(reading->motion, length);
        if (rc < 0)
            return rc;
    }
    *crc = mc_crc32c(*crc, reading->data + end, (size_t)(to - end));
    return 0;
}

int mc_extent_read(const struct mc_slot *slot, const uint8_t *data, const uint8_t *table, uint64_t start, uint64_t end,
                   struct mc_cursor *cursor, struct mc_motion *motion)
{
    struct reading reading = {data, cursor, motion, end - start >= MC_STREAM_BYTES};
    uint64_t length = slot->length;
    uint32_t table_length = mc_table_length(length, slot->block_shift), crc;
    if (!motion->verify)
        return piece_read(&reading, start, end, start, end, &crc);
    if (table_length == 0) {
        int rc = piece_read(&reading, 0, length, start, end, &crc);
        return rc < 0 ? rc : crc == slot->crc ? 0 : MC_ERR_CHECKSUM_MISMATCH;
    }
    struct mc_scratch *scratch = mc_scratch_get();
    if (scratch == NULL)
        return MC_ERR_NO_MEMORY;
    const uint8_t *sums = scratch->first; /* a copy: what was checked cannot change any more */
    if (mc_copy_crc32c(scratch->first, table, table_length, 0) != slot->crc)
        return MC_ERR_CHECKSUM_MISMATCH;
    for (uint64_t block = start >> slot->block_shift; block << slot->block_shift < end; block++) {
        uint64_t from = block << slot->block_shift, to = (block + 1) << slot->block_shift;
        uint32_t expected;
        to = to < length ? to : length;
        int rc = piece_read(&reading, from, to, from > start ? from : start, to < end ? to : end, &crc);
        if (rc < 0)
            return rc;
        memcpy(&expected, sums + block * 4, 4);
        if (crc != expected)
            return MC_ERR_CHECKSUM_MISMATCH;
    }
    return 0;
}

int mc_memory_read(const struct mc_slot *slots, const uint8_t *data, uint64_t data_size,
                   const struct mc_transfer *transfer, struct mc_motion *motion)
{
    const struct mc_slot *slot = &slots[transfer->place.slot];
    struct mc_slot seen;
    if (!mc_slot_read(slot, transfer->place.generation, &seen) || seen.length != transfer->object_length ||
        seen.hash_low != transfer->hash_low || seen.hash_high != transfer->hash_high)
        return MC_ERR_REPLICA_IS_GONE;
    /* The index is the owner's; a broken one must not lead us out of the mapping. */
    uint64_t size = mc_extent_size(seen.length, seen.key_length);
    if (seen.block_shift != mc_block_shift(seen.length) || size > data_size || seen.offset > data_size - size)
        return MC_ERR_CHECKSUM_MISMATCH;
    const uint8_t *object = data + seen.offset;
    struct mc_cursor cursor = mc_cursor(transfer->parts, transfer->part_count);
    int rc = mc_extent_read(&seen, object, object + mc_table_offset(seen.length), transfer->offset,
                            transfer->offset + transfer->length, &cursor, motion);
    if (rc == 0 || rc == MC_ERR_CHECKSUM_MISMATCH)
        return mc_slot_unchanged(slot, transfer->place.generation) ? rc : MC_ERR_REPLICA_IS_GONE;
    return rc;
}

void mc_commit_fill(struct mc_wire_commit_item *commit, const struct mc_transfer *transfer, uint32_t crc)
{
    *commit = (struct mc_wire_commit_item){.slot = transfer->place.slot,
                                           .crc = crc,
                                           .generation = transfer->place.generation,
                                           .offset = transfer->place.offset,
                                           .length = transfer->object_length,
                                           .hash_low = transfer->hash_low,
                                           .hash_high = transfer->hash_high,
                                           .key_length = (uint16_t)transfer->key.length,
                                           .block_shift = mc_block_shift(transfer->object_length),
                                           .flags = transfer->flags,
                                           .replica = transfer->replica,
                                           .group = transfer->group,
                                           .pin_ms = transfer->pin_ms,
                                           .tag = transfer->place.tag};
}

int mc_memory_write(uint8_t *data, const struct mc_transfer *transfer, struct mc_motion *motion,
                    struct mc_wire_commit_item *commit)
{
    uint64_t length = transfer->object_length, table_offset = mc_table_offset(length);
    uint8_t *target = data + transfer->place.offset, shift = mc_block_shift(length);
    uint32_t blocks = mc_block_count(length, shift), crc = 0, table_crc = 0;
    bool stream = length >= MC_STREAM_BYTES;
    struct mc_cursor cursor = mc_cursor(transfer->parts, transfer->part_count);
    for (uint32_t block = 0; block < blocks; block++) {
        uint64_t at = (uint64_t)block << shift, end = at + (1ull << shift);
        end = end < length ? end : length;
        for (crc = 0; at < end;) {
            size_t taken;
            const uint8_t *source =
                mc_cursor_read(&cursor, transfer, end - at < MC_LOOK_BYTES ? end - at : MC_LOOK_BYTES, &taken);
            crc = copy_crc(target + at, source, taken, crc, stream);
            at += taken;
            int rc = mc_motion_moved(motion, taken);
            if (rc < 0)
                return rc;
        }
        if (blocks > 1) {
            memcpy(target + table_offset + block * 4ull, &crc, 4);
            table_crc = mc_crc32c(table_crc, &crc, 4);
        }
    }
    memset(target + length, 0, (size_t)(table_offset - length));
    memcpy(target + mc_key_offset(length), transfer->key.data, transfer->key.length);
    mc_commit_fill(commit, transfer, blocks > 1 ? table_crc : crc);
    return mc_source_result(transfer);
}
