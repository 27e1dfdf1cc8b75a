/* The caller's parts as one stream, and copies between them and mapped extents. */
#include "store/path/gather.h"

#include "env/clock.h"

#include <pthread.h>
#include <stdlib.h>

#define MC_SHARED_PARTS_MAX 1024u /* each piece looks for its first one */

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
    if (motion->meanwhile != NULL)
        motion->meanwhile(motion->meanwhile_context);
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
    const uint8_t *data; /* of the object. NULL: it is in the parts already, and is summed there */
    struct mc_cursor *cursor;
    struct mc_motion *motion;
    bool stream;
    struct mc_source *source; /* without data: takes the place of the cursor. NULL: of none */
};

/* The next bytes of those that are in the parts already, which nobody copies. */
static const uint8_t *reading_look(struct reading *reading, uint64_t want, size_t *length)
{
    return reading->source != NULL ? reading->source->take(reading->source, want, length)
                                   : mc_cursor_take(reading->cursor, want, length);
}

/* [start, end) of the object is copied; the CRC covers [from, to) around it, so that a block of which only a part is
 * wanted proves that part: what was copied goes into the sum as it is in the copy. */
static int piece_read(struct reading *reading, uint64_t from, uint64_t to, uint64_t start, uint64_t end, uint32_t *crc)
{
    *crc = start == from ? 0 : mc_crc32c(0, reading->data + from, (size_t)(start - from));
    while (start < end) {
        size_t length;
        uint64_t want = end - start < MC_LOOK_BYTES ? end - start : MC_LOOK_BYTES;
        if (reading->data == NULL) {
            const uint8_t *there = reading_look(reading, want, &length);
            *crc = mc_crc32c(*crc, there, length);
        } else {
            uint8_t *target = mc_cursor_take(reading->cursor, want, &length);
            if (reading->motion->verify)
                *crc = copy_crc(target, reading->data + start, length, *crc, reading->stream);
            else
                memcpy(target, reading->data + start, length);
        }
        start += length;
        int rc = mc_motion_moved(reading->motion, length);
        if (rc < 0)
            return rc;
    }
    if (end < to)
        *crc = mc_crc32c(*crc, reading->data + end, (size_t)(to - end));
    return 0;
}

static int extent_read(const struct mc_slot *slot, struct reading *reading, const uint8_t *table, uint64_t start,
                       uint64_t end)
{
    const struct mc_motion *motion = reading->motion;
    uint64_t length = slot->length;
    uint32_t table_length = mc_table_length(length, slot->block_shift), crc;
    if (!motion->verify)
        return piece_read(reading, start, end, start, end, &crc);
    if (table_length == 0) {
        int rc = piece_read(reading, 0, length, start, end, &crc);
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
        int rc = piece_read(reading, from, to, from > start ? from : start, to < end ? to : end, &crc);
        if (rc < 0)
            return rc;
        memcpy(&expected, sums + block * 4, 4);
        if (crc != expected)
            return MC_ERR_CHECKSUM_MISMATCH;
    }
    return 0;
}

int mc_extent_read(const struct mc_slot *slot, const uint8_t *data, const uint8_t *table, uint64_t start, uint64_t end,
                   struct mc_cursor *cursor, struct mc_motion *motion)
{
    struct reading reading = {
        .data = data, .cursor = cursor, .motion = motion, .stream = end - start >= MC_STREAM_BYTES};
    return extent_read(slot, &reading, table, start, end);
}

int mc_extent_check(const struct mc_slot *slot, const uint8_t *table, uint64_t start, uint64_t end,
                    struct mc_cursor *cursor, struct mc_source *source, struct mc_motion *motion)
{
    struct reading reading = {.cursor = cursor, .motion = motion, .source = source};
    int rc = motion->verify ? extent_read(slot, &reading, table, start, end) : 0;
    return source != NULL && source->result < 0 ? source->result : rc;
}

int mc_extent_write_blocks(const struct mc_transfer *transfer, uint8_t *target, uint64_t from, uint64_t to,
                           struct mc_cursor *cursor, struct mc_motion *motion, uint32_t *sums)
{
    const uint64_t length = transfer->object_length;
    const uint8_t shift = mc_block_shift(length);
    const bool stream = length >= MC_STREAM_BYTES;
    for (uint64_t at = from; at < to;) {
        const uint64_t block = at >> shift, behind = (block + 1) << shift, end = behind > to ? to : behind;
        uint32_t crc = 0;
        while (at < end) {
            size_t taken;
            const uint8_t *source =
                mc_cursor_read(cursor, transfer, end - at < MC_LOOK_BYTES ? end - at : MC_LOOK_BYTES, &taken);
            crc = target == NULL ? mc_crc32c(crc, source, taken) : copy_crc(target + at, source, taken, crc, stream);
            at += taken;
            int rc = mc_motion_moved(motion, taken);
            if (rc < 0)
                return rc;
        }
        sums[block] = crc;
    }
    return 0;
}

/* ---- by several threads ---- */

/* One object, in pieces of whole blocks. */
struct large_object {
    const struct mc_transfer *transfer;
    struct mc_motion *motion; /* of the caller's thread, which ticks */
    struct mc_run quiet;      /* of the others */
    uint64_t start, end, piece_bytes;
    const struct mc_slot *slot;  /* of a read, with */
    const uint8_t *data, *table; /* where its bytes lie */
    uint8_t *target;             /* of a write (NULL: it is not copied), with */
    uint32_t *sums;              /* its block table */
    _Atomic int result;          /* of the first piece that failed */
};

static bool is_for_many(const struct mc_transfer *transfer, const struct mc_motion *motion)
{
    return motion->crew != NULL && transfer->length >= MC_CREW_BYTES_MIN && transfer->source == NULL &&
           transfer->part_count <= MC_SHARED_PARTS_MAX;
}

static int piece_move(struct large_object *shared, uint64_t from, uint64_t to, struct mc_motion *motion)
{
    const struct mc_transfer *transfer = shared->transfer;
    struct mc_cursor cursor = mc_cursor(transfer->parts, transfer->part_count);
    mc_cursor_skip(&cursor, from - shared->start);
    if (shared->slot != NULL)
        return mc_extent_read(shared->slot, shared->data, shared->table, from, to, &cursor, motion);
    return mc_extent_write_blocks(transfer, shared->target, from, to, &cursor, motion, shared->sums);
}

static void piece_run(void *context, uint32_t index, bool is_own)
{
    struct large_object *shared = context;
    struct mc_motion motion;
    uint64_t first = (shared->start / shared->piece_bytes + index) * shared->piece_bytes,
             from = first > shared->start ? first : shared->start,
             to = first + shared->piece_bytes < shared->end ? first + shared->piece_bytes : shared->end;
    int none = 0;
    if (atomic_load_explicit(&shared->result, memory_order_relaxed) < 0)
        return;
    if (!is_own)
        mc_motion_start(&motion, &shared->quiet, shared->motion->verify);
    int rc = piece_move(shared, from, to, is_own ? shared->motion : &motion);
    if (rc < 0)
        (void)atomic_compare_exchange_strong(&shared->result, &none, rc);
}

static int shared_move(struct large_object *shared, const struct mc_transfer *transfer, struct mc_motion *motion)
{
    const uint64_t block_bytes = 1ull << mc_block_shift(transfer->object_length);
    shared->transfer = transfer;
    shared->motion = motion;
    shared->quiet = *motion->run;
    shared->quiet.tick = NULL;
    shared->start = transfer->offset;
    shared->end = transfer->offset + transfer->length;
    shared->piece_bytes = block_bytes > MC_CREW_PIECE_BYTES ? block_bytes : MC_CREW_PIECE_BYTES;
    uint64_t count = (shared->end - 1) / shared->piece_bytes - shared->start / shared->piece_bytes + 1;
    mc_crew_run(motion->crew, (uint32_t)count, piece_run, shared);
    return atomic_load(&shared->result);
}

/* ---- several objects ---- */

/* Sources are their caller's thread's: several may share what they read with (staged.c). */
static bool are_for_many(struct mc_transfer *const *transfers, size_t count)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        if (transfers[i]->source != NULL)
            return false;
        bytes += transfers[i]->length;
    }
    return bytes >= MC_CREW_BYTES_MIN;
}

size_t mc_motion_window(const struct mc_motion *motion, struct mc_transfer *const *transfers, size_t count)
{
    size_t window = 0;
    uint64_t bytes = 0;
    if (motion->crew == NULL)
        return 1;
    while (window < count && window < MC_WINDOW_MAX && bytes < MC_WINDOW_BYTES)
        bytes += transfers[window++]->length;
    return window > 1 && are_for_many(transfers, window) ? window : 1;
}

struct motion_window {
    struct mc_transfer **transfers;
    struct mc_motion *motion; /* of the caller's thread, which ticks */
    struct mc_run quiet;      /* of the others */
    int (*move)(void *context, size_t index, struct mc_motion *motion);
    void *context;
    _Atomic int late;
};

static void transfer_run(void *argument, uint32_t index, bool is_own)
{
    struct motion_window *window = argument;
    struct mc_transfer *transfer = window->transfers[index];
    struct mc_motion motion;
    if (transfer->result == 0)
        transfer->result = atomic_load_explicit(&window->late, memory_order_relaxed);
    if (transfer->result < 0)
        return;
    if (!is_own)
        mc_motion_start(&motion, &window->quiet, window->motion->verify);
    transfer->result = window->move(window->context, index, is_own ? window->motion : &motion);
    if (transfer->result == MC_ERR_RPC_TIMEOUT)
        atomic_store_explicit(&window->late, MC_ERR_RPC_TIMEOUT, memory_order_relaxed);
}

void mc_motion_move(struct mc_motion *motion, struct mc_transfer **transfers, size_t count, int *late,
                    int (*move)(void *context, size_t index, struct mc_motion *motion), void *context)
{
    struct motion_window window = {transfers, motion, *motion->run, move, context, *late};
    window.quiet.tick = NULL;
    mc_crew_run(motion->crew, (uint32_t)count, transfer_run, &window);
    *late = atomic_load_explicit(&window.late, memory_order_relaxed);
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
    const uint8_t *object = data + seen.offset, *table = object + mc_table_offset(seen.length);
    struct mc_cursor cursor = mc_cursor(transfer->parts, transfer->part_count);
    struct large_object shared = {.slot = &seen, .data = object, .table = table};
    int rc = is_for_many(transfer, motion) ? shared_move(&shared, transfer, motion)
                                           : mc_extent_read(&seen, object, table, transfer->offset,
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

/* Its blocks, by several threads if that is worth it. */
static int object_write(uint8_t *target, const struct mc_transfer *transfer, struct mc_motion *motion, uint32_t *sums)
{
    struct large_object shared = {.target = target, .sums = sums};
    struct mc_cursor cursor = mc_cursor(transfer->parts, transfer->part_count);
    return is_for_many(transfer, motion)
               ? shared_move(&shared, transfer, motion)
               : mc_extent_write_blocks(transfer, target, 0, transfer->object_length, &cursor, motion, sums);
}

int mc_extent_write_end(uint8_t *behind, const struct mc_transfer *transfer, const uint32_t *sums,
                        struct mc_wire_commit_item *commit)
{
    const uint64_t length = transfer->object_length;
    const uint32_t table_length = mc_table_length(length, mc_block_shift(length));
    memset(behind, 0, (size_t)(mc_table_offset(length) - length));
    memcpy(behind + (mc_table_offset(length) - length), sums, table_length);
    memcpy(behind + (mc_key_offset(length) - length), transfer->key.data, transfer->key.length);
    mc_commit_fill(commit, transfer, table_length == 0 ? sums[0] : mc_crc32c(0, sums, table_length));
    return mc_source_result(transfer);
}

int mc_memory_write(uint8_t *data, const struct mc_transfer *transfer, struct mc_motion *motion,
                    struct mc_wire_commit_item *commit)
{
    uint8_t *target = data + transfer->place.offset;
    uint32_t one, *sums = &one;
    if (mc_block_count(transfer->object_length, mc_block_shift(transfer->object_length)) > 1) {
        struct mc_scratch *scratch = mc_scratch_get();
        if (scratch == NULL)
            return MC_ERR_NO_MEMORY;
        /* Not the table itself: who has mapped it could change it before it is summed. */
        sums = (uint32_t *)(void *)scratch->first;
    }
    int rc = object_write(target, transfer, motion, sums);
    return rc < 0 ? rc : mc_extent_write_end(target + transfer->object_length, transfer, sums, commit);
}
