/* What lies in a segment, for a master that does not know: live slots and extents that somebody may still be writing.
 * And whether what a slot holds still matches its checksums. The files of a dead process may be damaged, so every field
 * is checked before it leads anywhere. */
#include "base/checksum.h"
#include "base/error.h"
#include "store/segment/memory_inside.h"
#include "env/log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { CONTENT_LIVE = 1, CONTENT_WRITING = 2 };

struct content_listing {
    struct mc_content *items;
    size_t count, capacity;
    bool out_of_memory;
};

static void listing_add(struct content_listing *listing, const struct mc_content *item)
{
    if (listing->count == listing->capacity) {
        size_t capacity = listing->capacity == 0 ? 256 : listing->capacity * 2;
        struct mc_content *items = realloc(listing->items, capacity * sizeof(*items));
        if (items == NULL) {
            listing->out_of_memory = true;
            return;
        }
        listing->items = items;
        listing->capacity = capacity;
    }
    listing->items[listing->count++] = *item;
}

static uint64_t content_end(const struct mc_content *item)
{
    return item->offset + (item->state == CONTENT_LIVE ? mc_extent_size(item->length, item->key_length) : item->length);
}

static bool key_matches(const uint8_t *key, const struct mc_slot *slot)
{
    struct mc_hash hash = mc_hash(key, slot->key_length);
    return hash.low == slot->hash_low && hash.high == slot->hash_high;
}

static bool is_stopped(const atomic_bool *stop)
{
    return stop != NULL && atomic_load_explicit(stop, memory_order_relaxed);
}

static uint32_t live_collect(struct mc_segment_memory *memory, struct content_listing *listing, const atomic_bool *stop)
{
    uint32_t cleared = 0;
    pthread_mutex_lock(&memory->lock);
    uint32_t top = memory->slot_top;
    pthread_mutex_unlock(&memory->lock);
    for (uint32_t i = 0; i < top && !is_stopped(stop); i++) {
        const struct mc_slot *slot = &memory->file.slots[i];
        uint64_t generation = atomic_load_explicit(&slot->generation, memory_order_acquire);
        uint32_t state = atomic_load_explicit(&slot->state, memory_order_acquire);
        struct mc_slot seen;
        if (state == MC_SLOT_EMPTY)
            continue;
        bool is_good = mc_slot_read(slot, generation, &seen) && generation > 0 && mc_slot_is_sane(memory, &seen);
        const uint8_t *key = is_good ? memory->file.data + seen.offset + mc_key_offset(seen.length) : NULL;
        if (!is_good || !key_matches(key, &seen)) {
            (void)mc_segment_memory_clear(memory, i, generation); /* the slot exists */
            cleared++;
            continue;
        }
        listing_add(listing, &(struct mc_content){.generation = generation,
                                                  .offset = seen.offset,
                                                  .length = seen.length,
                                                  .slot = i,
                                                  .state = CONTENT_LIVE,
                                                  .flags = seen.flags,
                                                  .pin = {seen.pin[0], seen.pin[1], seen.pin[2]},
                                                  .replica = seen.replica,
                                                  .group = seen.group,
                                                  .key_length = seen.key_length,
                                                  .key = key});
    }
    return cleared;
}

/* Writers are no more to be believed than files. What is live with that very generation was written to its end. */
static bool writing_is_sane(const struct mc_segment_memory *memory, const struct mc_writing *writing)
{
    if (writing->slot >= memory->file.slot_count || writing->offset % MC_EXTENT_UNIT != 0 || writing->length == 0 ||
        writing->offset > memory->file.data_size || writing->length > memory->file.data_size - writing->offset)
        return false;
    return writing->slot >= memory->slot_top ||
           !mc_slot_unchanged(&memory->file.slots[writing->slot], writing->generation);
}

static void writing_collect(struct mc_segment_memory *memory, struct content_listing *listing)
{
    struct mc_writing writing;
    pthread_mutex_lock(&memory->lock);
    for (uint32_t i = 0, top = mc_writers_top(memory); i < top; i++) {
        const struct mc_writer_entry *writer = &memory->file.writers[i];
        if (!mc_writer_is_living(memory, i))
            continue;
        for (uint32_t j = 0; j < MC_WRITER_INTENTS; j++) {
            if (mc_intent_read(&writer->intents[j], &writing) && writing_is_sane(memory, &writing))
                listing_add(listing, &(struct mc_content){.generation = writing.generation,
                                                          .offset = writing.offset,
                                                          .length = (writing.length + MC_EXTENT_UNIT - 1) &
                                                                    ~(uint64_t)(MC_EXTENT_UNIT - 1),
                                                          .slot = writing.slot,
                                                          .state = CONTENT_WRITING,
                                                          .writer = writer->node});
        }
    }
    pthread_mutex_unlock(&memory->lock);
}

static int content_compare(const void *a, const void *b)
{
    const struct mc_content *first = a, *second = b;
    if (first->offset != second->offset)
        return first->offset < second->offset ? -1 : 1;
    if (first->slot != second->slot)
        return first->slot < second->slot ? -1 : 1;
    return (int)first->state - (int)second->state;
}

/* A thread of this process may have committed what it was writing a moment ago: then it is live, not both. */
static void twice_remove(struct content_listing *listing)
{
    size_t kept = 0;
    for (size_t i = 0; i < listing->count; i++) {
        const struct mc_content *item = &listing->items[i], *last = kept > 0 ? &listing->items[kept - 1] : NULL;
        if (last == NULL || item->state == CONTENT_LIVE || item->offset != last->offset || item->slot != last->slot ||
            item->generation != last->generation)
            listing->items[kept++] = *item;
    }
    listing->count = kept;
}

/* What has ended since it was seen: its place may be another's by now, which was seen too. What still lasts when all is
 * seen overlaps nothing but what is damaged. */
static void gone_remove(struct mc_segment_memory *memory, struct content_listing *listing)
{
    size_t kept = 0;
    for (size_t i = 0; i < listing->count; i++) {
        const struct mc_content *item = &listing->items[i];
        if (mc_slot_unchanged(&memory->file.slots[item->slot], item->generation) ||
            (item->state == CONTENT_WRITING && mc_segment_memory_is_written(memory, item->slot, item->generation)))
            listing->items[kept++] = *item;
    }
    listing->count = kept;
}

/* Takes out what overlaps. Of live ones it cannot be said which is right: none stays. Extents being written stay, as
 * one. Returns how many slots were cleared. */
static uint32_t overlaps_remove(struct mc_segment_memory *memory, struct content_listing *listing)
{
    struct mc_content *items = listing->items, *last = NULL;
    uint32_t cleared = 0;
    size_t kept = 0, furthest = 0;
    /* Each against the one that reaches furthest of those before it: what overlaps any of them overlaps that one. */
    for (size_t i = 1; i < listing->count; i++) {
        if (items[i].offset < content_end(&items[furthest])) {
            if (items[i].state == CONTENT_LIVE)
                items[i].key = NULL;
            if (items[furthest].state == CONTENT_LIVE)
                items[furthest].key = NULL;
        }
        if (content_end(&items[i]) > content_end(&items[furthest]))
            furthest = i;
    }
    for (size_t i = 0; i < listing->count; i++) {
        if (items[i].state == CONTENT_LIVE && items[i].key == NULL) {
            (void)mc_segment_memory_clear(memory, items[i].slot, items[i].generation);
            cleared++;
            continue;
        }
        if (last != NULL && items[i].offset < content_end(last)) { /* both are being written */
            uint64_t end = content_end(&items[i]);
            last->length = end > content_end(last) ? end - last->offset : last->length;
            last->generation = items[i].generation > last->generation ? items[i].generation : last->generation;
            continue;
        }
        items[kept] = items[i];
        last = &items[kept++];
    }
    listing->count = kept;
    return cleared;
}

int64_t mc_segment_memory_contents(struct mc_segment_memory *memory, const atomic_bool *stop,
                                   struct mc_content **contents)
{
    struct content_listing listing = {0};
    *contents = NULL;
    /* Writers first: what one of them completes in between is then live and known by its generation. */
    writing_collect(memory, &listing);
    uint32_t cleared = live_collect(memory, &listing, stop);
    if (listing.out_of_memory || is_stopped(stop)) {
        free(listing.items);
        return listing.out_of_memory ? MC_ERR_NO_MEMORY : MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS;
    }
    if (listing.count > 0)
        qsort(listing.items, listing.count, sizeof(*listing.items), content_compare);
    twice_remove(&listing);
    gone_remove(memory, &listing);
    cleared += overlaps_remove(memory, &listing);
    if (cleared > 0)
        mc_log(WARNING, "%" PRIu32 " objects of the segment were damaged and are dropped", cleared);
    *contents = listing.items;
    return (int64_t)listing.count;
}

/* ---- verify ---- */

/* What is looked at may become another's meanwhile, whose bytes come then: the slot tells it afterwards. */
#ifdef UNDER_THREAD_SANITIZER
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
#else
#define AnnotateIgnoreReadsBegin(file, line)
#define AnnotateIgnoreReadsEnd(file, line)
#endif

int mc_segment_memory_verify(struct mc_segment_memory *memory, uint32_t number, uint64_t generation, uint64_t *at,
                             uint64_t budget)
{
    struct mc_slot slot;
    if (!mc_segment_memory_slot_read(memory, number, generation, &slot))
        return MC_ERR_REPLICA_IS_GONE;
    bool is_good = mc_slot_is_sane(memory, &slot), is_done = true;
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    if (is_good) {
        const uint8_t *data = memory->file.data + slot.offset, *table = data + mc_table_offset(slot.length);
        uint64_t block = 1ull << slot.block_shift, start = *at & ~(block - 1), used = 0;
        uint32_t table_length = mc_table_length(slot.length, slot.block_shift), crc = slot.crc;
        if (table_length > 0 && start == 0)
            is_good = mc_crc32c(0, table, table_length) == slot.crc;
        /* Whole blocks only, at least one. */
        while (is_good && start < slot.length && (used == 0 || used + block <= budget)) {
            uint64_t length = slot.length - start < block ? slot.length - start : block;
            if (table_length > 0)
                memcpy(&crc, table + (start >> slot.block_shift) * 4, 4);
            is_good = mc_crc32c(0, data + start, (size_t)length) == crc;
            start += length;
            used += length;
        }
        *at = start;
        is_done = !is_good || start >= slot.length;
    }
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    if (!mc_slot_unchanged(&memory->file.slots[number], generation))
        return MC_ERR_REPLICA_IS_GONE;
    return !is_good ? MC_ERR_CHECKSUM_MISMATCH : is_done ? 0 : 1;
}
