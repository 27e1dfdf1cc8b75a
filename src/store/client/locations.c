/* The cache of places. */
#include "store/client/locations.h"

#include <stdlib.h>

enum {
    LOW,
    HIGH,
    EPOCH,
    LENGTH,
    FIRST,
    PLACE_WORDS = 3,
    TAGS = FIRST + PLACE_WORDS, /* a word for each place */
    REST = TAGS + (int)MC_LOCATIONS_REPLICAS,
    WORDS = REST + (int)(MC_LOCATIONS_REPLICAS - 1) * PLACE_WORDS
};

#define HEAD_WORDS TAGS
#define LINE_BYTES 64u
#define WRITING 1u  /* bits of a sequence number */
#define HAS_TAIL 2u /* more than one replica */
#define HAS_TAG 4u  /* one replica with a tag: one word of the tail counts */
#define STEP 8u

/* An entry is a cache line, and a tail that is looked at only when there is more than one replica, or a tag. */
struct head {
    _Atomic uint64_t sequence; /* 0: empty */
    _Atomic uint64_t words[HEAD_WORDS];
};

struct tail {
    _Atomic uint64_t words[WORDS - HEAD_WORDS];
};

struct mc_locations_table {
    struct tail tails[MC_LOCATIONS_ENTRIES];
    uint8_t heads[MC_LOCATIONS_ENTRIES * LINE_BYTES + LINE_BYTES - 1]; /* begin at the first line of their own */
};

struct cache_entry {
    struct head *head;
    struct tail *tail;
};

_Static_assert((MC_LOCATIONS_ENTRIES & (MC_LOCATIONS_ENTRIES - 1)) == 0, "a power of two");
_Static_assert(sizeof(struct head) == LINE_BYTES, "one miss for an object of one replica");

static struct cache_entry entry_of(struct mc_locations_table *table, struct mc_hash key)
{
    uint64_t index = key.low & (MC_LOCATIONS_ENTRIES - 1);
    uintptr_t first = ((uintptr_t)table->heads + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    return (struct cache_entry){(struct head *)(first + index * LINE_BYTES), &table->tails[index]};
}

static _Atomic uint64_t *word_of(struct cache_entry entry, size_t i)
{
    return i < HEAD_WORDS ? &entry.head->words[i] : &entry.tail->words[i - HEAD_WORDS];
}

static size_t words_used(uint64_t sequence)
{
    return (sequence & HAS_TAIL) != 0 ? WORDS : (sequence & HAS_TAG) != 0 ? TAGS + 1 : HEAD_WORDS;
}

/* Where the words of a place begin. */
static size_t place_at(size_t i)
{
    return i == 0 ? FIRST : REST + (i - 1) * PLACE_WORDS;
}

static struct mc_locations_table *table_make(struct mc_locations *places)
{
    struct mc_locations_table *made = calloc(1, sizeof(*made)), *other = NULL;
    if (made == NULL || atomic_compare_exchange_strong(&places->table, &other, made))
        return made;
    free(made);
    return other;
}

_Static_assert(MC_REPLICA_COUNT_MAX <= MC_EXTENT_UNIT, "a replica's number fits below an offset");

/* A generation of zero stands for "no replica": the master's first is (epoch << MC_EPOCH_SHIFT) or more. */
static void place_pack(uint64_t *words, const struct mc_place *place)
{
    words[0] = place == NULL ? 0 : (uint64_t)place->segment << 32 | place->slot;
    words[1] = place == NULL ? 0 : place->generation;
    words[2] = place == NULL ? 0 : place->offset / MC_EXTENT_UNIT * MC_EXTENT_UNIT + place->replica % MC_EXTENT_UNIT;
}

/* The replicas of the lowest segments: the master turns the order that it tells, the entry is to stay as it is. */
static size_t choose(struct mc_place *chosen, const struct mc_place *found, size_t count)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        size_t at = kept < MC_LOCATIONS_REPLICAS ? kept++ : MC_LOCATIONS_REPLICAS;
        for (; at > 0 && chosen[at - 1].segment > found[i].segment; at--) {
            if (at < MC_LOCATIONS_REPLICAS)
                chosen[at] = chosen[at - 1];
        }
        if (at < MC_LOCATIONS_REPLICAS)
            chosen[at] = found[i];
    }
    return kept;
}

/* Is the entry this already? A hot key must not make its cache line wander between processors. */
static bool holds(struct cache_entry entry, const uint64_t *words, uint64_t tail)
{
    uint64_t sequence = atomic_load_explicit(&entry.head->sequence, memory_order_relaxed);
    if ((sequence & (HAS_TAIL | HAS_TAG)) != tail)
        return false;
    for (size_t i = 0, used = words_used(tail); i < used; i++) {
        if (atomic_load_explicit(word_of(entry, i), memory_order_relaxed) != words[i])
            return false;
    }
    return true;
}

static void entry_write(struct cache_entry entry, const uint64_t *words, uint64_t tail)
{
    _Atomic uint64_t *number = &entry.head->sequence;
    uint64_t sequence = atomic_load_explicit(number, memory_order_relaxed);
    if ((sequence & WRITING) != 0 ||
        !atomic_compare_exchange_strong_explicit(number, &sequence, sequence | WRITING, memory_order_acq_rel,
                                                 memory_order_relaxed))
        return; /* somebody else writes: only a cache */
    /* Each store releases the odd number before it, so that whoever reads one of these words finds it odd or changed.
     */
    for (size_t i = 0, used = words_used(tail); i < used; i++)
        atomic_store_explicit(word_of(entry, i), words[i], memory_order_release);
    atomic_store_explicit(number, (sequence & ~(uint64_t)(HAS_TAIL | HAS_TAG)) + STEP + tail, memory_order_release);
}

bool mc_locations_put(struct mc_locations *places, struct mc_hash key, uint64_t epoch, uint64_t length,
                      const struct mc_place *found, size_t count)
{
    struct mc_locations_table *table = atomic_load_explicit(&places->table, memory_order_acquire);
    uint64_t words[WORDS] = {[LOW] = key.low, [HIGH] = key.high, [EPOCH] = epoch, [LENGTH] = length};
    if (table == NULL && (table = table_make(places)) == NULL)
        return false;
    struct mc_place chosen[MC_LOCATIONS_REPLICAS];
    if (count > 1) {
        count = choose(chosen, found, count);
        found = chosen;
    }
    for (size_t i = 0; i < MC_LOCATIONS_REPLICAS; i++) {
        place_pack(words + place_at(i), i < count ? &found[i] : NULL);
        words[TAGS + i] = i < count ? found[i].tag : 0;
    }
    uint64_t tail = count > 1 ? HAS_TAIL : words[TAGS] != 0 ? HAS_TAG : 0;
    if (tail != 0 && !atomic_load_explicit(&places->has_tails, memory_order_relaxed))
        atomic_store_explicit(&places->has_tails, true, memory_order_relaxed);
    struct cache_entry entry = entry_of(table, key);
    if (holds(entry, words, tail))
        return false;
    entry_write(entry, words, tail);
    return true;
}

void mc_locations_expect(struct mc_locations *places, struct mc_hash key)
{
    struct mc_locations_table *table = atomic_load_explicit(&places->table, memory_order_acquire);
    if (table == NULL)
        return;
    struct cache_entry entry = entry_of(table, key);
    __builtin_prefetch(entry.head);
    if (atomic_load_explicit(&places->has_tails, memory_order_relaxed))
        __builtin_prefetch(entry.tail);
}

/* What the entry says, words that it does not have being zero; false when it is empty or somebody writes. */
static bool entry_read(struct cache_entry entry, uint64_t words[WORDS])
{
    uint64_t before = atomic_load_explicit(&entry.head->sequence, memory_order_acquire);
    if (before == 0 || (before & WRITING) != 0)
        return false;
    /* Acquiring loads, so that the second look at the number comes after all of them. */
    for (size_t i = 0, used = words_used(before); i < WORDS; i++)
        words[i] = i < used ? atomic_load_explicit(word_of(entry, i), memory_order_acquire) : 0;
    return atomic_load_explicit(&entry.head->sequence, memory_order_relaxed) == before;
}

bool mc_locations_get(struct mc_locations *places, struct mc_hash key, uint64_t epoch, struct mc_known *known)
{
    struct mc_locations_table *table = atomic_load_explicit(&places->table, memory_order_acquire);
    uint64_t words[WORDS];
    if (table == NULL || !entry_read(entry_of(table, key), words) || words[LOW] != key.low || words[HIGH] != key.high ||
        words[EPOCH] != epoch)
        return false;
    *known = (struct mc_known){.epoch = epoch, .length = words[LENGTH]};
    for (size_t i = 0; i < MC_LOCATIONS_REPLICAS; i++) {
        const uint64_t *place = words + place_at(i);
        if (place[1] != 0)
            known->places[known->count++] = (struct mc_place){(uint32_t)(place[0] >> 32),
                                                              (uint32_t)place[0],
                                                              place[1],
                                                              place[2] / MC_EXTENT_UNIT * MC_EXTENT_UNIT,
                                                              (uint8_t)(place[2] % MC_EXTENT_UNIT),
                                                              words[TAGS + i]};
    }
    return known->count > 0;
}

void mc_locations_drop(struct mc_locations *places, struct mc_hash key)
{
    struct mc_locations_table *table = atomic_load_explicit(&places->table, memory_order_acquire);
    uint64_t words[WORDS] = {0};
    if (table == NULL)
        return;
    struct cache_entry entry = entry_of(table, key);
    if (atomic_load_explicit(&entry.head->words[LOW], memory_order_relaxed) == key.low &&
        atomic_load_explicit(&entry.head->words[HIGH], memory_order_relaxed) == key.high)
        entry_write(entry, words, 0);
}

void mc_locations_free(struct mc_locations *places)
{
    free(atomic_exchange(&places->table, NULL));
}
