/* Copies of what is read often, the one that was not read for longest goes first. */
#include "store/client/hot.h"

#include "base/error.h"
#include "env/setting.h"
#include "store/path/gather.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS 1024u
#define SEEN 4096u /* keys whose reads are counted; of two that share a place the last one is */
#define VALUE_BYTES_USUAL (16ull << 20)

struct mc_hot_value {
    struct mc_hot_value *next;          /* of the bucket */
    struct mc_hot_value *newer, *older; /* of those that are kept */
    struct mc_hash key;
    uint64_t version;
    uint64_t size;      /* of its bytes and their table */
    struct mc_slot sum; /* length, block_shift and crc of it, as an owner's slot has them */
    struct iovec part;
    uint32_t users;
    bool is_kept; /* it can be found */
    uint8_t data[];
};

struct seen {
    uint64_t key; /* a part of the hash */
    uint32_t reads;
};

struct mc_hot {
    struct mc_hot_limits limits;
    pthread_mutex_t lock; /* guards what follows; never held while bytes are copied */
    uint64_t bytes;
    struct mc_hot_value *newest, *oldest;
    struct mc_hot_value *gone; /* by `next`; freed by who unlocks */
    struct mc_hot_value *buckets[BUCKETS];
    struct seen seen[SEEN];
};

struct mc_hot_limits mc_hot_limits_set(void)
{
    return (struct mc_hot_limits){
        .bytes = mc_setting_number(MC_STORE_LOCAL_HOT_CACHE_SIZE, " of bytes", 0, INT64_MAX, 0),
        .value_bytes = mc_setting_number(MC_STORE_LOCAL_HOT_BLOCK_SIZE, " of bytes", 1, INT64_MAX, VALUE_BYTES_USUAL),
        .reads = (uint32_t)mc_setting_number(MC_STORE_LOCAL_HOT_ADMISSION_THRESHOLD, " of reads", 1, 255, 2)};
}

struct mc_hot *mc_hot_create(const struct mc_hot_limits *limits)
{
    struct mc_hot *hot = calloc(1, sizeof(*hot));
    if (hot == NULL)
        return NULL;
    hot->limits = *limits;
    pthread_mutex_init(&hot->lock, NULL);
    return hot;
}

void mc_hot_free(struct mc_hot *hot)
{
    if (hot == NULL)
        return;
    for (struct mc_hot_value *value = hot->newest, *older; value != NULL; value = older) {
        older = value->older;
        free(value);
    }
    pthread_mutex_destroy(&hot->lock);
    free(hot);
}

static struct mc_hot_value **place_of(struct mc_hot *hot, struct mc_hash key)
{
    struct mc_hot_value **at = &hot->buckets[key.low % BUCKETS];
    while (*at != NULL && ((*at)->key.low != key.low || (*at)->key.high != key.high))
        at = &(*at)->next;
    return at;
}

/* Lock held, as in what follows up to the questions of others. */
static void link_newest(struct mc_hot *hot, struct mc_hot_value *value)
{
    value->newer = NULL;
    value->older = hot->newest;
    if (hot->newest != NULL)
        hot->newest->newer = value;
    hot->newest = value;
    if (hot->oldest == NULL)
        hot->oldest = value;
}

static void unlink_one(struct mc_hot *hot, struct mc_hot_value *value)
{
    *(value->newer == NULL ? &hot->newest : &value->newer->older) = value->older;
    *(value->older == NULL ? &hot->oldest : &value->older->newer) = value->newer;
}

static void reference_drop(struct mc_hot *hot, struct mc_hot_value *value)
{
    if (--value->users > 0)
        return;
    hot->bytes -= value->size;
    value->next = hot->gone;
    hot->gone = value;
}

/* Lets go the lock, and of what went. */
static void unlock(struct mc_hot *hot)
{
    struct mc_hot_value *gone = hot->gone, *next;
    hot->gone = NULL;
    pthread_mutex_unlock(&hot->lock);
    for (; gone != NULL; gone = next) {
        next = gone->next;
        free(gone);
    }
}

/* Nobody finds it any more; who reads it goes on. */
static void forget(struct mc_hot *hot, struct mc_hot_value *value)
{
    if (!value->is_kept)
        return;
    struct mc_hot_value **at = place_of(hot, value->key);
    mc_assert(*at == value);
    *at = value->next;
    unlink_one(hot, value);
    value->is_kept = false;
    reference_drop(hot, value);
}

static bool is_read_often(struct mc_hot *hot, struct mc_hash key)
{
    struct seen *seen = &hot->seen[key.low / BUCKETS % SEEN];
    if (seen->key != key.high)
        *seen = (struct seen){.key = key.high};
    return ++seen->reads >= hot->limits.reads;
}

/* What is being read gives no room. */
static bool room_make(struct mc_hot *hot, uint64_t size)
{
    struct mc_hot_value *value = hot->oldest;
    while (hot->bytes + size > hot->limits.bytes && value != NULL) {
        struct mc_hot_value *newer = value->newer;
        if (value->users == 1)
            forget(hot, value);
        value = newer;
    }
    return hot->bytes + size <= hot->limits.bytes;
}

struct mc_hot_value *mc_hot_find(struct mc_hot *hot, struct mc_hash key, uint64_t version, uint64_t length)
{
    pthread_mutex_lock(&hot->lock);
    struct mc_hot_value *value = *place_of(hot, key);
    if (value != NULL && value->version < version) { /* versions of a key only grow: it is over */
        forget(hot, value);
        value = NULL;
    }
    if (value != NULL && (value->version != version || value->sum.length != length))
        value = NULL;
    if (value != NULL) {
        value->users++;
        unlink_one(hot, value);
        link_newest(hot, value);
    }
    unlock(hot);
    return value;
}

int mc_hot_read(struct mc_hot *hot, struct mc_hot_value *value, const struct mc_transfer *transfer,
                const struct mc_run *run)
{
    struct mc_motion motion;
    struct mc_cursor cursor = mc_cursor(transfer->parts, transfer->part_count);
    mc_motion_start(&motion, run, true);
    int rc = mc_extent_read(&value->sum, value->data, value->data + mc_table_offset(value->sum.length),
                            transfer->offset, transfer->offset + transfer->length, &cursor, &motion);
    if (rc == MC_ERR_CHECKSUM_MISMATCH) {
        pthread_mutex_lock(&hot->lock);
        forget(hot, value);
        unlock(hot);
    }
    return rc;
}

struct mc_hot_value *mc_hot_begin(struct mc_hot *hot, struct mc_hash key, uint64_t version, uint64_t length)
{
    struct mc_hot_value *value = NULL;
    const uint8_t shift = mc_block_shift(length);
    const uint64_t size = mc_table_offset(length) + mc_table_length(length, shift);
    /* To ask its owner costs a block: of less nothing is saved. */
    if (length > hot->limits.value_bytes || size > hot->limits.bytes || mc_block_count(length, shift) < 2)
        return NULL;
    pthread_mutex_lock(&hot->lock);
    if (is_read_often(hot, key) && room_make(hot, size))
        value = malloc(sizeof(*value) + (size_t)size);
    if (value != NULL) {
        *value = (struct mc_hot_value){.key = key,
                                       .version = version,
                                       .size = size,
                                       .sum = {.length = length, .block_shift = shift},
                                       .part = {value->data, (size_t)length},
                                       .users = 1};
        hot->bytes += size;
    }
    unlock(hot);
    return value;
}

struct iovec *mc_hot_part(struct mc_hot_value *value)
{
    return &value->part;
}

void mc_hot_keep(struct mc_hot *hot, struct mc_hot_value *value)
{
    const uint64_t length = value->sum.length, block_bytes = 1ull << value->sum.block_shift;
    uint8_t *table = value->data + mc_table_offset(length);
    for (uint64_t at = 0, block = 0; at < length; at += block_bytes, block++) {
        uint32_t sum = mc_crc32c(0, value->data + at, length - at < block_bytes ? length - at : block_bytes);
        memcpy(table + block * sizeof(sum), &sum, sizeof(sum));
    }
    value->sum.crc = mc_crc32c(0, table, mc_table_length(length, value->sum.block_shift));
    pthread_mutex_lock(&hot->lock);
    struct mc_hot_value *other = *place_of(hot, value->key);
    if (other != NULL && other->version < value->version) {
        forget(hot, other);
        other = NULL;
    }
    if (other == NULL) { /* else another thread has kept it meanwhile, or what comes after it */
        struct mc_hot_value **at = &hot->buckets[value->key.low % BUCKETS];
        value->next = *at;
        *at = value;
        value->is_kept = true;
        value->users++;
        link_newest(hot, value);
    }
    unlock(hot);
}

void mc_hot_leave(struct mc_hot *hot, struct mc_hot_value *value)
{
    pthread_mutex_lock(&hot->lock);
    reference_drop(hot, value);
    unlock(hot);
}

uint64_t mc_hot_bytes(struct mc_hot *hot)
{
    pthread_mutex_lock(&hot->lock);
    uint64_t bytes = hot->bytes;
    unlock(hot);
    return bytes;
}
