/* A put: the pieces, all of them at once, each with an owner of its own as far as there are as many; then the head,
 * which makes the value visible. The number in their names is new for each put, so a reader that has a head reads the
 * pieces of that put, or none. A get: the head, then its pieces at once.
 *
 * A writer that ends between leaves pieces that no head names. The master lets them go (core/stripe.h); nobody has
 * seen them. */
#include "store/client/stripes.h"

#include "base/checksum.h"
#include "env/clock.h"
#include "env/log.h"
#include "env/setting.h"
#include "store/client/calls.h"
#include "store/wire/stripe.h"
#include "store/wire/tenant.h"

#include <stdlib.h>
#include <string.h>

#define HEAD_MAGIC "MCSTRIP1"
#define REST_GRACE_MS 20u /* a put may end so late after its deadline, for what is to be removed */

struct stripe_head { /* as it is stored; all numbers little-endian */
    uint8_t magic[8];
    uint64_t length, stripe, number;
    uint32_t count, unused;
};
_Static_assert(sizeof(struct stripe_head) == 40, "what is stored has no holes");

uint64_t mc_stripe_bytes_set(void)
{
    uint64_t bytes = mc_setting_number(MC_STORE_STRIPE_SIZE, " of bytes", 0, INT64_MAX, 0);
    if (bytes == 0)
        return 0;
    uint64_t rounded = bytes < MC_STRIPE_BYTES_MIN ? MC_STRIPE_BYTES_MIN : bytes;
    rounded = (rounded + MC_STRIPE_BYTES_UNIT - 1) / MC_STRIPE_BYTES_UNIT * MC_STRIPE_BYTES_UNIT;
    mc_log(INFO, "values of more than %llu bytes are put in pieces of so many (MC_STORE_STRIPE_SIZE)",
           (unsigned long long)rounded);
    return rounded;
}

bool mc_stripes_apply(const struct mc_store *store, uint64_t length, const struct mc_replicate_config *config,
                      size_t index)
{
    if (store->stripe_bytes == 0 || length <= store->stripe_bytes)
        return false;
    return config == NULL ||
           (!config->with_hard_pin && !config->with_soft_pin && config->firm_pin_ms == 0 && !config->prefer_same_node &&
            config->preferred_segment_count == 0 && (config->groups == NULL || config->groups[index] == 0));
}

/* ---- names ---- */

/* The tenant, and stamp, that stand before the key. */
static size_t scope_length(const struct mc_store *store, struct mc_bytes key)
{
    bool is_there = key.length > store->scope.length && memcmp(key.data, store->scope.bytes, store->scope.length) == 0;
    return is_there ? store->scope.length : 0;
}

static size_t piece_name_length(const struct mc_store *store, struct mc_bytes key)
{
    return MC_MARK_LENGTH + scope_length(store, key) + MC_PIECE_NAME_LENGTH;
}

/* Into text, of piece_name_length. */
static void piece_name(const struct mc_store *store, struct mc_bytes key, uint64_t number, uint32_t index,
                       uint8_t *text)
{
    size_t scope = scope_length(store, key);
    uint8_t *at = text + MC_MARK_LENGTH + scope;
    memcpy(text, MC_PIECE_MARK, MC_MARK_LENGTH);
    memcpy(text + MC_MARK_LENGTH, key.data, scope);
    *at = 'p';
    memcpy(at + 1, &number, sizeof(number));
    memcpy(at + 1 + sizeof(number), &index, sizeof(index));
}

/* Into text, which has room for MC_MARK_LENGTH more than the key. */
static void head_name(struct mc_bytes key, uint8_t *text)
{
    memcpy(text, MC_HEAD_MARK, MC_MARK_LENGTH);
    memcpy(text + MC_MARK_LENGTH, key.data, key.length);
}

bool mc_stripes_head_hash(const struct mc_bytes *key, struct mc_hash *hash)
{
    uint8_t text[MC_KEY_LENGTH_MAX];
    if (key->length + MC_MARK_LENGTH > MC_KEY_LENGTH_MAX)
        return false;
    head_name(*key, text);
    *hash = mc_hash(text, key->length + MC_MARK_LENGTH);
    return true;
}

/* ---- parts ---- */

/* Where a walk over the caller's parts stands. */
struct walk {
    const struct iovec *parts;
    size_t count, at, used; /* bytes of parts[at] */
};

/* The next `length` bytes; the walk has so many. How many parts they are. */
static size_t walk_take(struct walk *walk, uint64_t length, struct iovec *parts)
{
    size_t count = 0;
    while (length > 0 && walk->at < walk->count) {
        const struct iovec *part = &walk->parts[walk->at];
        uint64_t left = part->iov_len - walk->used, taken = left < length ? left : length;
        if (taken > 0)
            parts[count++] = (struct iovec){(uint8_t *)part->iov_base + walk->used, taken};
        walk->used += taken;
        length -= taken;
        if (walk->used == part->iov_len) {
            walk->at++;
            walk->used = 0;
        }
    }
    return count;
}

/* ---- put ---- */

struct cut_value { /* that is put */
    struct mc_put_item *item;
    struct stripe_head head;
    size_t first;     /* of its pieces */
    bool is_headless; /* nothing of its head is there, or will be */
};

struct writing { /* values whose pieces go together */
    struct cut_value *values;
    size_t count, piece_count;
    struct mc_put_item *pieces, *heads;
    uint64_t *groups;  /* of pieces, then of heads */
    bool *was_granted; /* the same */
    struct iovec *parts;
    uint8_t *names;
};

static void writing_free(struct writing *writing)
{
    free(writing->names);
    free(writing->parts);
    free(writing->was_granted);
    free(writing->groups);
    free(writing->heads);
    free(writing->pieces);
}

static bool writing_reserve(struct mc_store *store, struct writing *writing)
{
    size_t parts = 0, names = 0, count = writing->count, all = count + writing->piece_count;
    for (size_t i = 0; i < count; i++) {
        const struct cut_value *value = &writing->values[i];
        parts += value->item->part_count + value->head.count + 1;
        names +=
            value->head.count * piece_name_length(store, value->item->key) + MC_MARK_LENGTH + value->item->key.length;
    }
    writing->pieces = calloc(writing->piece_count, sizeof(*writing->pieces));
    writing->heads = calloc(count, sizeof(*writing->heads));
    writing->groups = calloc(all, sizeof(*writing->groups));
    writing->was_granted = calloc(all, sizeof(*writing->was_granted));
    writing->parts = malloc(parts * sizeof(*writing->parts));
    writing->names = malloc(names);
    return writing->pieces != NULL && writing->heads != NULL && writing->groups != NULL &&
           writing->was_granted != NULL && writing->parts != NULL && writing->names != NULL;
}

/* Its pieces; where parts and names of the next one go. */
static void value_cut(struct mc_store *store, struct writing *writing, const struct cut_value *value,
                      struct iovec **parts, uint8_t **names)
{
    const struct stripe_head *head = &value->head;
    struct walk walk = {.parts = value->item->parts, .count = value->item->part_count};
    size_t name_length = piece_name_length(store, value->item->key);
    for (uint32_t i = 0; i < head->count; i++) {
        uint64_t left = head->length - i * head->stripe;
        size_t count = walk_take(&walk, left < head->stripe ? left : head->stripe, *parts);
        piece_name(store, value->item->key, head->number, i, *names);
        writing->pieces[value->first + i] =
            (struct mc_put_item){.key = {*names, name_length}, .parts = *parts, .part_count = count};
        writing->groups[value->first + i] = mc_stripe_group(head->number, head->count);
        *parts += count;
        *names += name_length;
    }
}

static void writing_fill(struct mc_store *store, struct writing *writing)
{
    struct iovec *parts = writing->parts;
    uint8_t *names = writing->names;
    for (size_t i = 0; i < writing->count; i++)
        value_cut(store, writing, &writing->values[i], &parts, &names);
    for (size_t i = 0; i < writing->count; i++) {
        struct cut_value *value = &writing->values[i];
        size_t length = MC_MARK_LENGTH + value->item->key.length;
        head_name(value->item->key, names);
        *parts = (struct iovec){&value->head, sizeof(value->head)};
        writing->heads[i] = (struct mc_put_item){.key = {names, length}, .parts = parts, .part_count = 1};
        names += length;
        parts++;
    }
}

/* 0, or why it has not all its pieces. */
static int pieces_result(const struct writing *writing, const struct cut_value *value)
{
    for (uint32_t i = 0; i < value->head.count; i++)
        if (writing->pieces[value->first + i].result < 0)
            return writing->pieces[value->first + i].result;
    return 0;
}

/* Such as leave nothing, and say so. After others the head may be there. */
static bool is_refusal(int rc)
{
    return rc == MC_ERR_NOT_SUPPORTED || rc == MC_ERR_NO_AVAILABLE_HANDLE || rc == MC_ERR_INVALID_PARAMS;
}

/* Of the values that have all their pieces. */
static void put_heads(struct mc_store *store, struct writing *writing, const struct mc_replicate_config *config,
                      bool replace, uint64_t deadline_ns)
{
    const struct mc_replicate_config wish = {.replica_count = config == NULL ? 0 : config->replica_count,
                                             .drop_soft_pin = true};
    uint64_t *groups = writing->groups + writing->piece_count;
    bool *was_granted = writing->was_granted + writing->piece_count;
    size_t count = 0;
    for (size_t i = 0; i < writing->count; i++) {
        struct cut_value *value = &writing->values[i];
        value->item->result = pieces_result(writing, value);
        value->is_headless = value->item->result < 0;
        if (value->is_headless)
            continue;
        groups[count] = mc_stripe_group(value->head.number, value->head.count);
        writing->heads[count++] = writing->heads[i];
    }
    if (count > 0)
        mc_put_parts(store, writing->heads, groups, count, &wish, replace, deadline_ns, was_granted);
    for (size_t i = 0, at = 0; i < writing->count; i++) {
        struct cut_value *value = &writing->values[i];
        if (!value->is_headless) {
            value->is_headless = !was_granted[at] || is_refusal(writing->heads[at].result);
            value->item->result = writing->heads[at++].result;
        }
        if (replace)
            mc_locations_drop(&store->locations, mc_hash(value->item->key.data, value->item->key.length));
    }
}

/* Pieces that no head names are of no use to anybody: those of who came too late for the key, or had no time left. The
 * master would let them go by itself, later. */
static void remove_rest(struct mc_store *store, const struct writing *writing, uint64_t deadline_ns)
{
    uint64_t least_ns = mc_clock_ns() + REST_GRACE_MS * 1000000ull;
    struct mc_bytes keys[MC_BATCH_MAX];
    size_t count = 0;
    for (size_t i = 0; i < writing->count; i++) {
        const struct cut_value *value = &writing->values[i];
        for (uint32_t k = 0; k < value->head.count && value->is_headless; k++)
            if (writing->pieces[value->first + k].result == 0)
                keys[count++] = writing->pieces[value->first + k].key;
    }
    mc_call_remove_parts(store, keys, count, deadline_ns > least_ns ? deadline_ns : least_ns);
}

static void put_together(struct mc_store *store, struct cut_value *values, size_t count, size_t piece_count,
                         const struct mc_replicate_config *config, bool replace, uint64_t deadline_ns)
{
    struct writing writing = {.values = values, .count = count, .piece_count = piece_count};
    const struct mc_replicate_config wish = {.replica_count = config == NULL ? 0 : config->replica_count};
    if (writing_reserve(store, &writing)) {
        writing_fill(store, &writing);
        mc_put_parts(store, writing.pieces, writing.groups, piece_count, &wish, false, deadline_ns,
                     writing.was_granted);
        put_heads(store, &writing, config, replace, deadline_ns);
        remove_rest(store, &writing, deadline_ns);
    } else {
        for (size_t i = 0; i < count; i++)
            values[i].item->result = MC_ERR_NO_MEMORY;
    }
    writing_free(&writing);
    for (size_t i = 0; i < count; i++) {
        if (values[i].item->result != 0)
            continue;
        atomic_fetch_add_explicit(&store->put_objects, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&store->put_bytes, values[i].head.length, memory_order_relaxed);
    }
}

static struct stripe_head head_of(const struct mc_store *store, uint64_t length)
{
    uint64_t unit = MC_STRIPE_BYTES_UNIT, least = (length + MC_STRIPE_PIECES_MAX - 1) / MC_STRIPE_PIECES_MAX;
    struct stripe_head head = {.length = length, .stripe = store->stripe_bytes};
    if (head.stripe < least)
        head.stripe = (least + unit - 1) / unit * unit;
    memcpy(head.magic, HEAD_MAGIC, sizeof(head.magic));
    head.count = (uint32_t)((length + head.stripe - 1) / head.stripe);
    head.number = mc_random_u64() >> MC_STRIPE_COUNT_BITS | 1;
    return head;
}

/* Is it to be put in pieces? Else its result is set. What is there is looked at first, or all of it would be moved in
 * vain; and a value that was put as one object stays one. */
static bool is_to_be_cut(const struct mc_store *store, struct mc_put_item *item, int look, bool replace)
{
    bool fits = piece_name_length(store, item->key) <= MC_KEY_LENGTH_MAX &&
                item->key.length + MC_MARK_LENGTH <= MC_KEY_LENGTH_MAX;
    item->result = !fits || (replace && look == MC_LOOK_WHOLE) ? MC_ERR_NOT_SUPPORTED : 0;
    return item->result == 0 && (replace || look <= 0);
}

void mc_stripes_put(struct mc_store *store, struct mc_put_item **items, size_t count,
                    const struct mc_replicate_config *config, bool replace, uint64_t deadline_ns)
{
    struct mc_bytes keys[MC_BATCH_MAX] = {{NULL, 0}};
    int looks[MC_BATCH_MAX];
    struct cut_value *values = malloc(count * sizeof(*values));
    size_t open = 0, pieces = 0;
    mc_assert(count <= MC_BATCH_MAX);
    for (size_t i = 0; i < count; i++) {
        keys[i] = items[i]->key;
        items[i]->result = MC_ERR_NO_MEMORY;
    }
    if (values != NULL)
        mc_call_look(store, keys, count, deadline_ns, looks);
    for (size_t i = 0; values != NULL && i < count; i++) {
        if (!is_to_be_cut(store, items[i], looks[i], replace))
            continue;
        struct stripe_head head = head_of(store, mc_parts_length(items[i]->parts, items[i]->part_count));
        if (pieces + head.count > MC_BATCH_MAX) {
            put_together(store, values, open, pieces, config, replace, deadline_ns);
            open = pieces = 0;
        }
        values[open++] = (struct cut_value){.item = items[i], .head = head, .first = pieces};
        pieces += head.count;
    }
    if (open > 0)
        put_together(store, values, open, pieces, config, replace, deadline_ns);
    free(values);
}

/* ---- get ---- */

/* What the head says. False: it is none that a put has made. */
static bool head_read(const struct get_one *one, struct stripe_head *head)
{
    if (one->head_part.iov_len != sizeof(*head))
        return false;
    memcpy(head, one->head_part.iov_base, sizeof(*head));
    return memcmp(head->magic, HEAD_MAGIC, sizeof(head->magic)) == 0 && head->length == one->whole &&
           head->length <= INT64_MAX && head->stripe > 0 && head->stripe < head->length &&
           head->count <= MC_STRIPE_PIECES_MAX && (head->length + head->stripe - 1) / head->stripe == head->count;
}

struct piece_reading {
    struct get_one *ones;
    struct iovec *parts;
    uint8_t *names;
};

static bool reading_make(struct mc_store *store, const struct get_one *one, const struct stripe_head *head,
                         uint32_t first, uint32_t count, struct piece_reading *reading)
{
    size_t name_length = piece_name_length(store, one->key), at = 0;
    reading->ones = calloc(count, sizeof(*reading->ones));
    reading->parts = malloc((one->part_count + count) * sizeof(*reading->parts));
    reading->names = malloc(count * name_length);
    if (reading->ones == NULL || reading->parts == NULL || reading->names == NULL)
        return false;
    struct walk walk = {.parts = one->parts, .count = one->part_count};
    uint64_t from = one->is_range ? one->offset : 0, to = from + one->length;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t begin = (first + i) * head->stripe, end = begin + head->stripe;
        uint8_t *name = reading->names + i * name_length;
        begin = begin < from ? from : begin;
        end = end < to ? end : to;
        piece_name(store, one->key, head->number, first + i, name);
        size_t parts = walk_take(&walk, end - begin, reading->parts + at);
        reading->ones[i] = (struct get_one){.key = {name, name_length},
                                            .hash = mc_hash(name, name_length),
                                            .parts = reading->parts + at,
                                            .part_count = parts,
                                            .is_range = true,
                                            .offset = begin - (first + i) * head->stripe,
                                            .length = end - begin,
                                            .index = i,
                                            .code = MC_GET_PENDING};
        at += parts;
    }
    return true;
}

int64_t mc_stripes_read(struct mc_store *store, const struct get_one *one, uint64_t last_ns)
{
    struct stripe_head head;
    struct piece_reading reading = {.ones = NULL};
    if (!head_read(one, &head))
        return MC_ERR_OBJECT_NOT_FOUND;
    uint64_t from = one->is_range ? one->offset : 0;
    uint32_t first = (uint32_t)(from / head.stripe);
    uint32_t count = (uint32_t)((from + one->length - 1) / head.stripe) - first + 1;
    int64_t code = (int64_t)one->length;
    if (reading_make(store, one, &head, first, count, &reading)) {
        struct get_call call = {.store = store, .ones = reading.ones, .count = count, .is_of_pieces = true};
        mc_get_slice(&call, count, last_ns);
        for (uint32_t i = 0; i < count && code >= 0; i++)
            code = reading.ones[i].code < 0 ? reading.ones[i].code : code;
    } else {
        code = MC_ERR_NO_MEMORY;
    }
    free(reading.names);
    free(reading.parts);
    free(reading.ones);
    return code;
}
