/* Linear hashing with buckets of one cache line. A bucket that is full continues in overflow buckets; a split visits
 * one chain. */
#include "store/core/object.h"

#include "base/error.h"
#include "store/core/account.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define POINTER_MASK ((1ull << 48) - 1)
#define BATCH_GROUP 32u /* keys whose misses are in flight together; about what a core can have outstanding */

static uint64_t hash_of(const struct mc_objects *objects, struct mc_span key)
{
    return XXH3_64bits_withSeed(key.data, key.length, objects->seed);
}

/* The tag comes from the top of the hash, the bucket from its bottom. */
static uint64_t tag_of(uint64_t hash)
{
    return hash & ~POINTER_MASK;
}

static struct mc_object *object_of(uint64_t entry)
{
    return (struct mc_object *)(uintptr_t)(entry & POINTER_MASK);
}

static struct mc_bucket *bucket_at(const struct mc_objects *objects, uint64_t index)
{
    return &objects->chunks[index / MC_BUCKET_CHUNK][index % MC_BUCKET_CHUNK];
}

static struct mc_bucket *bucket_of(const struct mc_objects *objects, uint64_t hash)
{
    uint64_t index = hash & objects->mask;
    if (index < objects->split)
        index = hash & (objects->mask << 1 | 1);
    return bucket_at(objects, index);
}

static size_t cell_size(const struct mc_objects *objects, size_t key_length, bool roomy)
{
    size_t size = (sizeof(struct mc_object) + key_length + 7) / 8 * 8;
    size += objects->accounts != NULL ? sizeof(struct mc_holding) : 0;
    return roomy ? size + sizeof(struct mc_membership) : size;
}

static struct mc_slab *slab_of(struct mc_objects *objects, size_t key_length, bool roomy)
{
    return &objects->sizes[(cell_size(objects, key_length, roomy) - sizeof(struct mc_object)) / 8];
}

/* The chunk that holds bucket `index`, with every bucket of it empty. */
static bool chunk_add(struct mc_objects *objects, uint64_t index)
{
    struct mc_bucket **chunk = &objects->chunks[index / MC_BUCKET_CHUNK];
    if (*chunk == NULL) {
        *chunk = aligned_alloc(64, MC_BUCKET_CHUNK * sizeof(struct mc_bucket));
        if (*chunk == NULL)
            return false;
        memset(*chunk, 0, MC_BUCKET_CHUNK * sizeof(struct mc_bucket));
    }
    return true;
}

bool mc_objects_init(struct mc_objects *objects, uint64_t seed)
{
    *objects = (struct mc_objects){.seed = seed, .bucket_count = MC_BUCKETS_MIN, .mask = MC_BUCKETS_MIN - 1};
    mc_slab_init(&objects->overflow, sizeof(struct mc_bucket));
    for (uint32_t i = 0; i < MC_OBJECT_SIZES; i++)
        mc_slab_init(&objects->sizes[i], (uint32_t)sizeof(struct mc_object) + i * 8);
    objects->chunks = calloc(MC_BUCKET_CHUNKS, sizeof(struct mc_bucket *));
    if (objects->chunks == NULL)
        return false;
    if (chunk_add(objects, 0))
        return true;
    free(objects->chunks);
    return false;
}

void mc_objects_destroy(struct mc_objects *objects)
{
    for (uint64_t i = 0; i < MC_BUCKET_CHUNKS && objects->chunks[i] != NULL; i++)
        free(objects->chunks[i]);
    free(objects->chunks);
    mc_slab_destroy(&objects->overflow);
    for (uint32_t i = 0; i < MC_OBJECT_SIZES; i++)
        mc_slab_destroy(&objects->sizes[i]);
}

static struct mc_object *create(struct mc_objects *objects, struct mc_span key, bool roomy)
{
    mc_assert(key.length > 0 && key.length <= MC_KEY_LENGTH_MAX);
    struct mc_account *account = objects->accounts == NULL ? NULL : mc_account_take(objects->accounts, key);
    struct mc_object *object = NULL;
    if (objects->accounts == NULL || account != NULL)
        object = mc_slab_allocate(slab_of(objects, key.length, roomy));
    if (object == NULL)
        return NULL;
    mc_assert(((uintptr_t)object & ~POINTER_MASK) == 0);
    uint32_t serial = object->serial;
    *object = (struct mc_object){
        .key_length = key.length & 0x7ff, .first_slot = UINT32_MAX, .serial = serial, .roomy = roomy};
    memcpy(object->key, key.data, key.length);
    if (roomy)
        *mc_object_membership(object) = (struct mc_membership){.group = 0};
    if (account != NULL) {
        mc_account_cell_made(objects->accounts, account);
        *mc_object_holding(object) = (struct mc_holding){.account = account};
    }
    return object;
}

struct mc_object *mc_object_create(struct mc_objects *objects, struct mc_span key)
{
    return create(objects, key, false);
}

struct mc_object *mc_object_create_roomy(struct mc_objects *objects, struct mc_span key)
{
    return create(objects, key, true);
}

void mc_object_free(struct mc_objects *objects, struct mc_object *object)
{
    object->serial++;
    if (objects->accounts != NULL)
        mc_account_cell_freed(objects->accounts, mc_object_holding(object)->account);
    mc_slab_release(slab_of(objects, object->key_length, object->roomy), object);
}

static bool is_key(const struct mc_object *object, struct mc_span key)
{
    return object->key_length == key.length && memcmp(object->key, key.data, key.length) == 0;
}

static struct mc_object *find_hashed(const struct mc_objects *objects, struct mc_span key, uint64_t hash)
{
    uint64_t tag = tag_of(hash);
    for (const struct mc_bucket *bucket = bucket_of(objects, hash); bucket != NULL; bucket = bucket->next) {
        for (unsigned i = 0; i < MC_BUCKET_ENTRIES; i++) {
            uint64_t entry = bucket->entries[i];
            if (entry == 0)
                return NULL;
            if ((entry & ~POINTER_MASK) == tag && is_key(object_of(entry), key))
                return object_of(entry);
        }
    }
    return NULL;
}

struct mc_object *mc_objects_find(const struct mc_objects *objects, struct mc_span key)
{
    return find_hashed(objects, key, hash_of(objects, key));
}

/* The first object of the bucket whose tag fits, unproved; NULL when its own line has none. */
static struct mc_object *likely(const struct mc_bucket *bucket, uint64_t tag)
{
    for (unsigned i = 0; i < MC_BUCKET_ENTRIES; i++)
        if ((bucket->entries[i] & ~POINTER_MASK) == tag && bucket->entries[i] != 0)
            return object_of(bucket->entries[i]);
    return NULL;
}

void mc_objects_find_batch(const struct mc_objects *objects, const struct mc_span *keys, size_t count,
                           struct mc_object **found, struct mc_picks *picks)
{
    uint64_t below = picks == NULL ? 0 : picks->below;
    for (size_t start = 0; start < count; start += BATCH_GROUP) {
        uint64_t hashes[BATCH_GROUP];
        size_t group = count - start < BATCH_GROUP ? count - start : BATCH_GROUP;
        for (size_t i = 0; i < group; i++) {
            hashes[i] = hash_of(objects, keys[start + i]);
            __builtin_prefetch(bucket_of(objects, hashes[i]));
            if (__builtin_expect(hashes[i] < below, 0))
                picks->list[picks->count++] = (struct mc_pick){hashes[i], (uint32_t)(start + i)};
        }
        for (size_t i = 0; i < group; i++) {
            struct mc_object *object = likely(bucket_of(objects, hashes[i]), tag_of(hashes[i]));
            found[start + i] = object;
            __builtin_prefetch(object);
            __builtin_prefetch(object == NULL ? NULL : (const uint8_t *)object + 64);
        }
        for (size_t i = 0; i < group; i++)
            if (found[start + i] == NULL || !is_key(found[start + i], keys[start + i]))
                found[start + i] = find_hashed(objects, keys[start + i], hashes[i]);
    }
}

uint64_t mc_objects_hash(const struct mc_objects *objects, struct mc_span key)
{
    return hash_of(objects, key);
}

uint64_t mc_object_hash(const struct mc_objects *objects, const struct mc_object *object)
{
    return hash_of(objects, mc_object_key(object));
}

void mc_object_prefetch(const struct mc_objects *objects, const struct mc_object *object)
{
    __builtin_prefetch(bucket_of(objects, hash_of(objects, mc_object_key(object))), 1);
}

static bool chain_append(struct mc_objects *objects, struct mc_bucket *bucket, uint64_t entry)
{
    for (;;) {
        for (unsigned i = 0; i < MC_BUCKET_ENTRIES; i++) {
            if (bucket->entries[i] == 0) {
                bucket->entries[i] = entry;
                return true;
            }
        }
        if (bucket->next == NULL) {
            struct mc_bucket *more = mc_slab_allocate(&objects->overflow);
            if (more == NULL)
                return false;
            *more = (struct mc_bucket){.entries = {entry}};
            bucket->next = more;
            return true;
        }
        bucket = bucket->next;
    }
}

/* Moves about half of the entries of bucket `split` to a new last bucket. Each of the two new chains is a part of the
 * old one, so the old overflow buckets, which are given back first, always suffice: no allocation can fail between
 * taking the chain apart and putting it together. */
static void split_one(struct mc_objects *objects)
{
    uint64_t target = objects->bucket_count;
    if (target >= (uint64_t)MC_BUCKET_CHUNK * MC_BUCKET_CHUNKS || !chunk_add(objects, target))
        return; /* longer chains are the price, nothing breaks */
    struct mc_bucket *bucket = bucket_at(objects, objects->split);
    struct mc_bucket old = *bucket;
    *bucket = (struct mc_bucket){0};
    objects->bucket_count++;
    objects->split++;
    uint64_t next_mask = objects->mask << 1 | 1;
    struct mc_bucket *overflow = NULL;
    for (;;) {
        for (unsigned i = 0; i < MC_BUCKET_ENTRIES && old.entries[i] != 0; i++) {
            uint64_t hash = hash_of(objects, mc_object_key(object_of(old.entries[i])));
            struct mc_bucket *to = (hash & next_mask) == target ? bucket_at(objects, target) : bucket;
            bool done = chain_append(objects, to, old.entries[i]);
            mc_assert(done);
        }
        if (old.next == NULL)
            break;
        overflow = old.next;
        old = *overflow;
        mc_slab_release(&objects->overflow, overflow);
    }
    if (objects->split > objects->mask) {
        objects->mask = next_mask;
        objects->split = 0;
    }
}

bool mc_objects_insert(struct mc_objects *objects, struct mc_object *object)
{
    uint64_t hash = hash_of(objects, mc_object_key(object));
    if (!chain_append(objects, bucket_of(objects, hash), tag_of(hash) | (uint64_t)(uintptr_t)object))
        return false;
    objects->count++;
    if (objects->count * 10 > objects->bucket_count * MC_BUCKET_LOAD_TENTHS)
        split_one(objects);
    return true;
}

void mc_objects_remove(struct mc_objects *objects, const struct mc_object *object)
{
    uint64_t hash = hash_of(objects, mc_object_key(object));
    uint64_t wanted = tag_of(hash) | (uint64_t)(uintptr_t)object;
    uint64_t *hole = NULL, *last = NULL;
    struct mc_bucket *bucket = bucket_of(objects, hash), *before = NULL;
    for (;; before = bucket, bucket = bucket->next) {
        for (unsigned i = 0; i < MC_BUCKET_ENTRIES && bucket->entries[i] != 0; i++) {
            last = &bucket->entries[i];
            if (*last == wanted)
                hole = last;
        }
        if (bucket->next == NULL)
            break;
    }
    mc_assert(hole != NULL);
    *hole = *last;
    *last = 0;
    if (before != NULL && bucket->entries[0] == 0) {
        before->next = NULL;
        mc_slab_release(&objects->overflow, bucket);
    }
    objects->count--;
}

/* A split moves entries to a bucket behind all others, and none ever comes nearer to the beginning. */
bool mc_objects_walk(const struct mc_objects *objects, uint64_t *index,
                     void (*visit)(const struct mc_object *object, void *context), void *context)
{
    if (*index >= objects->bucket_count)
        return false;
    for (const struct mc_bucket *bucket = bucket_at(objects, *index); bucket != NULL; bucket = bucket->next)
        for (unsigned i = 0; i < MC_BUCKET_ENTRIES && bucket->entries[i] != 0; i++)
            visit(object_of(bucket->entries[i]), context);
    return ++*index < objects->bucket_count;
}

void mc_objects_visit(const struct mc_objects *objects, void (*visit)(const struct mc_object *object, void *context),
                      void *context)
{
    for (uint64_t index = 0; mc_objects_walk(objects, &index, visit, context);)
        ;
}

const char *mc_objects_check(const struct mc_objects *objects)
{
    uint64_t count = 0, overflow = 0;
    if (objects->bucket_count != objects->mask + 1 + objects->split)
        return "bucket count";
    for (uint64_t index = 0; index < objects->bucket_count; index++) {
        bool ended = false;
        for (const struct mc_bucket *bucket = bucket_at(objects, index); bucket != NULL; bucket = bucket->next) {
            if (bucket != bucket_at(objects, index) && (overflow++, bucket->entries[0] == 0))
                return "empty overflow bucket";
            for (unsigned i = 0; i < MC_BUCKET_ENTRIES; i++) {
                if (bucket->entries[i] == 0) {
                    ended = true;
                    continue;
                }
                uint64_t hash = hash_of(objects, mc_object_key(object_of(bucket->entries[i])));
                if (ended)
                    return "hole in a chain";
                if (bucket_of(objects, hash) != bucket_at(objects, index) ||
                    (bucket->entries[i] & ~POINTER_MASK) != tag_of(hash))
                    return "entry in the wrong bucket";
                count++;
            }
        }
    }
    if (overflow != objects->overflow.in_use)
        return "overflow buckets lost";
    return count == objects->count ? NULL : "count";
}
