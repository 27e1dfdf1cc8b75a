/* Calls of get: slices of what the protocol takes at once; and the ranges of a key, which are of one version in a call.
 *
 * Each range is read by itself, and its key may be replaced between two of them, in one slice or in two. Then all of
 * the key's ranges are read again, as one piece: one read is of one version, and as fast as that of a whole object. */
#include "store/client/get_inside.h"

#include "env/clock.h"
#include "env/spans.h"
#include "store/client/calls.h"
#include "store/client/scope.h"
#include "store/wire/wire.h"

#include <stdlib.h>

#define SPAN_BETWEEN_MAX (UINT64_C(64) << 20) /* bytes that nobody wants, between the ranges of a key */
#define NO_PIN UINT32_MAX                     /* of an item that is refused */

/* Room for a pin of each item. */
static int pins_make(struct get_call *call)
{
    size_t size = 16;
    while (size < call->count * 2)
        size *= 2;
    if (call->count >= UINT32_MAX / 4)
        return MC_ERR_INVALID_PARAMS;
    call->table_mask = size - 1;
    call->pins = malloc(call->count * sizeof(*call->pins));
    call->pin_of = malloc(call->count * sizeof(*call->pin_of));
    call->table = calloc(size, sizeof(*call->table));
    return call->pins == NULL || call->pin_of == NULL || call->table == NULL ? MC_ERR_NO_MEMORY : 0;
}

static void pins_free(struct get_call *call)
{
    free(call->table);
    free(call->pin_of);
    free(call->pins);
}

static struct get_pin *pin_take(struct get_call *call, size_t index, struct mc_hash hash)
{
    size_t at = hash.low & call->table_mask;
    for (; call->table[at] != 0; at = (at + 1) & call->table_mask) {
        struct get_pin *pin = &call->pins[call->table[at] - 1];
        if (pin->hash.low == hash.low && pin->hash.high == hash.high)
            break;
    }
    if (call->table[at] == 0) {
        call->pins[call->pin_count++] = (struct get_pin){.hash = hash};
        call->table[at] = (uint32_t)call->pin_count;
    }
    call->pin_of[index] = call->table[at] - 1;
    return &call->pins[call->pin_of[index]];
}

static bool is_of(const struct get_call *call, size_t index, const struct get_pin *pin)
{
    return call->pin_of[index] == (uint32_t)(pin - call->pins);
}

static void slice_end(struct get_call *call, size_t count, uint64_t last_ns)
{
    if (count > 0)
        mc_get_slice(call, count, last_ns);
    for (size_t k = 0; k < count; k++)
        *call->result(call->items, call->ones[k].index) = call->ones[k].code;
}

/* Reads every item, slice by slice; or every item of one pin. */
static void get_items(struct get_call *call, const struct get_pin *only, uint64_t last_ns)
{
    size_t slice_count = 0;
    mc_assert(call->items != NULL || call->count == 0);
    for (size_t i = 0; i < call->count; i++) {
        struct get_one *one = &call->ones[slice_count];
        if (only != NULL && !is_of(call, i, only))
            continue;
        *one = (struct get_one){.index = i, .code = MC_GET_PENDING};
        int rc = call->fill(call->items, i, one);
        if (call->pins != NULL)
            call->pin_of[i] = NO_PIN;
        if (rc < 0) {
            *call->result(call->items, i) = rc;
            continue;
        }
        one->hash = mc_hash(one->key.data, one->key.length);
        if (call->pins != NULL)
            one->pin = pin_take(call, i, one->hash);
        if (one->pin != NULL && one->pin->torn) {
            *call->result(call->items, i) = MC_ERR_STALE; /* get_torn's business */
            continue;
        }
        if (++slice_count == MC_BATCH_MAX) {
            slice_end(call, slice_count, last_ns);
            slice_count = 0;
        }
    }
    slice_end(call, slice_count, last_ns);
}

/* ---- a key that is replaced faster than its ranges can be read one by one: they are read as one piece ---- */

struct span_piece {
    uint64_t offset, length;
    void *target;
};

struct span {
    struct span_piece *pieces;
    struct iovec *parts; /* the pieces and what is between them */
    size_t piece_count, part_count;
    uint8_t *between;
    uint64_t between_bytes;
};

static int piece_compare(const void *one, const void *other)
{
    const struct span_piece *a = one, *b = other;
    return a->offset < b->offset ? -1 : a->offset > b->offset;
}

static void span_free(struct span *span)
{
    free(span->between);
    free(span->parts);
    free(span->pieces);
}

static bool is_within(const struct get_one *one, uint64_t object_length)
{
    return one->offset <= object_length && one->length <= object_length - one->offset;
}

/* What of the pin's items lies within an object of that length, in order. MC_ERR_NOT_SUPPORTED: pieces overlap, or too
 * much is between them. */
static int span_make(struct get_call *call, const struct get_pin *pin, uint64_t object_length, struct span *span)
{
    struct get_one one;
    uint64_t end = 0;
    for (size_t i = 0; i < call->count; i++)
        span->piece_count += is_of(call, i, pin);
    span->pieces = malloc((span->piece_count + 1) * sizeof(*span->pieces));
    span->parts = malloc((span->piece_count * 2 + 1) * sizeof(*span->parts));
    if (span->pieces == NULL || span->parts == NULL)
        return MC_ERR_NO_MEMORY;
    span->piece_count = 0;
    for (size_t i = 0; i < call->count; i++) {
        if (is_of(call, i, pin) && call->fill(call->items, i, &one) == 0 && one.length > 0 &&
            is_within(&one, object_length))
            span->pieces[span->piece_count++] = (struct span_piece){one.offset, one.length, one.own_part.iov_base};
    }
    qsort(span->pieces, span->piece_count, sizeof(*span->pieces), piece_compare);
    for (size_t i = 0; i < span->piece_count; i++) {
        const struct span_piece *piece = &span->pieces[i];
        if (i > 0 && piece->offset < end)
            return MC_ERR_NOT_SUPPORTED;
        span->between_bytes += i > 0 ? piece->offset - end : 0;
        end = piece->offset + piece->length;
    }
    if (span->between_bytes > SPAN_BETWEEN_MAX)
        return MC_ERR_NOT_SUPPORTED;
    span->between = malloc(span->between_bytes + 1);
    return span->between == NULL ? MC_ERR_NO_MEMORY : 0;
}

static void span_parts(struct span *span)
{
    uint64_t end = span->piece_count > 0 ? span->pieces[0].offset : 0, between = 0;
    for (size_t i = 0; i < span->piece_count; i++) {
        const struct span_piece *piece = &span->pieces[i];
        if (piece->offset > end) {
            span->parts[span->part_count++] = (struct iovec){span->between + between, piece->offset - end};
            between += piece->offset - end;
        }
        span->parts[span->part_count++] = (struct iovec){piece->target, piece->length};
        end = piece->offset + piece->length;
    }
}

/* The code of each of the pin's items, from how the reading of all that lie within an object of that length has ended.
 */
static void span_results(struct get_call *call, const struct get_pin *pin, int64_t code, uint64_t object_length)
{
    struct get_one one;
    for (size_t i = 0; i < call->count; i++) {
        if (!is_of(call, i, pin) || call->fill(call->items, i, &one) < 0)
            continue;
        bool whole = is_within(&one, object_length);
        *call->result(call->items, i) = code < 0 ? code : whole ? (int64_t)one.length : MC_ERR_INVALID_PARAMS;
    }
}

/* Once; *object_length is what the key was believed to have, and what it has. False: other ranges than these are within
 * that. */
static bool span_read(struct get_call *call, const struct get_pin *pin, const struct span *span,
                      uint64_t *object_length)
{
    struct get_one *one = &call->ones[0];
    const struct span_piece *first = span->pieces,
                            *last = span->piece_count == 0 ? first : first + span->piece_count - 1;
    size_t item = 0;
    while (!is_of(call, item, pin))
        item++;
    *one = (struct get_one){.index = item};
    (void)call->fill(call->items, item, one); /* the key */
    one->code = MC_GET_PENDING;
    one->hash = pin->hash;
    one->offset = span->piece_count == 0 ? 0 : first->offset;
    one->length = span->piece_count == 0 ? 0 : last->offset + last->length - first->offset;
    one->parts = span->parts;
    one->part_count = span->part_count;
    mc_get_slice(call, 1, call->last_ns);
    uint64_t believed = *object_length;
    if (one->code >= 0 || one->code == MC_ERR_INVALID_PARAMS)
        *object_length = one->whole != 0 ? one->whole : one->object_length;
    if (one->code == MC_ERR_INVALID_PARAMS || (one->code >= 0 && believed < *object_length))
        return false;
    span_results(call, pin, one->code, *object_length);
    return true;
}

/* All ranges of that key as one piece of one version. */
static int get_span(struct get_call *call, const struct get_pin *pin)
{
    uint64_t object_length = UINT64_MAX;
    for (bool done = false; !done;) {
        struct span span = {.pieces = NULL};
        int rc = mc_clock_ns() < call->last_ns ? span_make(call, pin, object_length, &span) : MC_ERR_RPC_TIMEOUT;
        if (rc == 0) {
            span_parts(&span);
            done = span_read(call, pin, &span, &object_length);
        }
        span_free(&span);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Keys of which pieces of two versions were met. */
static void get_torn(struct get_call *call)
{
    for (size_t i = 0; call->pins != NULL && i < call->pin_count; i++) {
        struct get_pin *pin = &call->pins[i];
        int rc = pin->torn ? get_span(call, pin) : 0;
        /* Piece by piece, in the hope that nobody replaces it just then. */
        while (rc == MC_ERR_NOT_SUPPORTED && pin->torn && mc_clock_ns() < call->last_ns) {
            *pin = (struct get_pin){.hash = pin->hash};
            get_items(call, pin, call->last_ns);
            rc = pin->torn ? rc : 0;
        }
        if (rc < 0)
            span_results(call, pin, rc == MC_ERR_NO_MEMORY ? rc : MC_ERR_REPLICA_IS_NOT_READY, 0);
    }
}

/* The span of a call of a user's. */
static struct mc_traced *call_begin(const struct get_call *call)
{
    struct mc_traced *span = call->keys == NULL ? NULL : mc_traced_call("mooncake.get");
    if (span == NULL)
        return NULL;
    span->keys = (uint32_t)call->count;
    if (mc_key_check(*call->keys) == 0)
        mc_traced_key(span, call->keys->data, call->keys->length);
    return span;
}

static void call_end(const struct get_call *call, struct mc_traced *span, int rc)
{
    if (span == NULL)
        return;
    for (size_t i = 0; i < call->count; i++) {
        int64_t result = *call->result(call->items, i);
        span->bytes += result > 0 ? (uint64_t)result : 0;
        if (mc_traced_is_failure((int)(result < 0 ? result : 0)) && !mc_traced_is_failure(rc))
            rc = (int)result;
    }
    mc_traced_end(span, rc);
}

static int get_batch(struct get_call *call)
{
    struct mc_store *store = call->store;
    uint64_t bytes = 0, since_ns = mc_clock_ns();
    int rc = mc_store_enter(store);
    bool entered = rc == 0;
    struct mc_bytes *made = NULL;
    struct mc_traced *span = entered ? call_begin(call) : NULL;
    if (rc == 0 && call->keys != NULL)
        rc = mc_scope_enter(store, call->keys, call->stride, call->count, &made);
    if (rc == 0 && store->local_buffer_size == 0 && !atomic_load(&store->draining))
        rc = MC_ERR_INVALID_PARAMS;
    if (rc == 0 && call->ranges != NULL && call->count > 1)
        rc = pins_make(call);
    call->ones = malloc((call->count < MC_BATCH_MAX ? call->count + 1 : MC_BATCH_MAX) * sizeof(*call->ones));
    if (rc == 0 && call->ones == NULL)
        rc = MC_ERR_NO_MEMORY;
    for (size_t i = 0; rc < 0 && i < call->count; i++)
        *call->result(call->items, i) = rc;
    if (rc == 0) {
        for (size_t i = 0; call->pins != NULL && i < call->count; i++)
            bytes += call->ranges[i].size < UINT32_MAX ? call->ranges[i].size : UINT32_MAX;
        call->last_ns = mc_store_deadline(store, bytes);
        get_items(call, NULL, UINT64_MAX);
        get_torn(call);
    }
    for (size_t i = 0; rc == 0 && i < call->count; i++)
        rc = *call->result(call->items, i) < 0 ? (int)*call->result(call->items, i) : 0;
    if (made != NULL)
        mc_scope_leave(call->keys, call->stride, call->count, made);
    call_end(call, span, rc);
    pins_free(call);
    free(call->ones);
    if (entered && call->keys != NULL) /* else it is for a copy, or a session's */
        mc_call_times_add(&store->get_times, since_ns);
    if (entered)
        mc_store_leave(store);
    return rc;
}

static int fill_object(const void *items, size_t index, struct get_one *one)
{
    const struct mc_get_item *item = (const struct mc_get_item *)items + index;
    one->key = item->key;
    one->parts = item->parts;
    one->part_count = item->parts == NULL ? 0 : item->part_count;
    for (size_t i = 0; i < one->part_count; i++) {
        if (item->parts[i].iov_base == NULL && item->parts[i].iov_len > 0)
            return MC_ERR_INVALID_PARAMS;
    }
    return mc_key_check(item->key);
}

static int64_t *object_result(void *items, size_t index)
{
    return &((struct mc_get_item *)items)[index].result;
}

int mc_store_get(struct mc_store *store, struct mc_get_item *items, size_t count, mc_allocate *allocate, void *context)
{
    struct get_call call = {.store = store,
                            .items = items,
                            .keys = count == 0 ? NULL : &items[0].key,
                            .stride = sizeof(items[0]),
                            .count = count,
                            .fill = fill_object,
                            .result = object_result,
                            .allocate = allocate,
                            .context = context};
    return get_batch(&call);
}

int mc_get_full(struct mc_store *store, struct mc_get_item *item, mc_allocate *allocate, void *context)
{
    struct get_call call = {.store = store,
                            .items = item,
                            .count = 1,
                            .fill = fill_object,
                            .result = object_result,
                            .allocate = allocate,
                            .context = context};
    return get_batch(&call);
}

static int fill_range(const void *items, size_t index, struct get_one *one)
{
    const struct mc_range_item *item = (const struct mc_range_item *)items + index;
    one->key = item->key;
    one->is_range = true;
    one->offset = item->source_offset;
    one->length = item->size;
    one->own_part = (struct iovec){item->target, item->size};
    one->parts = &one->own_part;
    one->part_count = 1;
    return item->target == NULL && item->size > 0 ? MC_ERR_INVALID_PARAMS : mc_key_check(item->key);
}

static int64_t *range_result(void *items, size_t index)
{
    return &((struct mc_range_item *)items)[index].result;
}

static int get_ranges(struct mc_store *store, struct mc_range_item *items, size_t count, bool session)
{
    struct get_call call = {.store = store,
                            .items = items,
                            .keys = count == 0 || session ? NULL : &items[0].key,
                            .stride = sizeof(items[0]),
                            .ranges = items,
                            .count = count,
                            .fill = fill_range,
                            .result = range_result,
                            .session = session};
    return get_batch(&call);
}

int mc_store_get_ranges(struct mc_store *store, struct mc_range_item *items, size_t count)
{
    return get_ranges(store, items, count, false);
}

int mc_get_ranges_remembered(struct mc_store *store, struct mc_range_item *items, size_t count)
{
    return get_ranges(store, items, count, true);
}
