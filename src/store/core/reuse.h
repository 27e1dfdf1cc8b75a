/* What a cache of another size would have found: stack distances of a sample of the keys (SHARDS: whether a key is in
 * the sample says its hash, so all its uses are).
 *
 * The sample is kept as an LRU stack, each key with the room that its value took. How far down a key is met again, in
 * room, by what part of all keys is in the sample, is how large a cache that evicts the least recently used would have
 * had to be. A key comes in by a put (values and all their replicas count, of all tenants alike); a look for one that
 * is not in is a miss at any size. An existence check that has found its key, and gets of it within a minute, are one
 * look.
 *
 * At most MC_REUSE_KEYS keys, in 1 MiB. When they are all taken, the key at the bottom goes if the stack is deeper than
 * MC_REUSE_DEPTH times the memory that there is, and else the part of the sample is halved, as it is when uses of the
 * sample come so often that they would cost more than about 0.2 % of a processor. It is doubled again at the end of an
 * hour in which neither was near; what that adds is counted an hour later. All counts are halved every hour, so the
 * curve is about the last hours.
 *
 * How many of all looks were found is known, so both parts are corrected by that. What the sample has too much of, or
 * too little, is of the most popular keys above all: among those that were found, these are found at any size
 * (SHARDS-adj); those that were not are scaled. tests/unit/test_core_curve.c holds the curve against exact replays of
 * traces. */
#ifndef MC_CORE_REUSE_H
#define MC_CORE_REUSE_H

#include <stdbool.h>
#include <stdint.h>

#define MC_REUSE_KEYS 16384u
#define MC_REUSE_PLACES (2 * MC_REUSE_KEYS) /* of the stack: keys leave holes in it */
#define MC_REUSE_DEPTH 4u
#define MC_REUSE_SHIFT_MAX 40u   /* one key of 2^40 */
#define MC_REUSE_STEPS 816u      /* of distance: sixteen for each power of two, from 1 to 2^54 units */
#define MC_REUSE_SPANS 12u       /* of time between two uses, see mc_reuse_span_s */
#define MC_REUSE_AGES 64u        /* of what was evicted that are remembered one by one */
#define MC_REUSE_CHECK_MS 60000u /* for so long a get belongs to the check before it */
#define MC_REUSE_HALF_MS 3600000u
#define MC_REUSE_BUDGET 65536u     /* uses of the sample at once, */
#define MC_REUSE_BUDGET_MS 10u     /* in every millisecond, */
#define MC_REUSE_BUDGET_MORE 4096u /* and after the sample was halved for that */

/* Kinds of looks that are counted. */
enum mc_reuse_look {
    MC_REUSE_GET_MISSED,
    MC_REUSE_GET_FOUND,
    MC_REUSE_CHECK_MISSED,
    MC_REUSE_CHECK_FOUND,
    MC_REUSE_LOOKS
};

struct mc_reuse_key {
    uint64_t hash, units;
    uint64_t used_ms, checked_ms; /* checked_ms 0: by no existence check that found it */
    uint32_t place, next; /* next: in its chain, or among those that are free; one more than an index, 0 = end */
};

struct mc_reuse { /* zeroed: nothing was used yet, and it has no memory */
    struct mc_reuse_key *keys;
    uint32_t *heads;             /* of chains, by hash: one more than an index */
    uint32_t *owners;            /* by place: one more than an index; 0 = a hole */
    uint64_t *sums;              /* of units by place, a Fenwick tree */
    uint64_t below;              /* what has a lower hash is in the sample; 0: there is no memory */
    unsigned shift;              /* one key of 2^shift is */
    unsigned counted;            /* and of as many 2^counted, which are no more, looks are counted */
    uint32_t count, fresh, free; /* keys; never used so far: from there on; of those that are free again the first */
    uint32_t bottom, top;        /* places: all others are holes */
    uint64_t units;              /* of all keys in the stack */
    uint64_t budget, budget_ms, half_ms;
    bool is_pressed; /* since the last hour's end: it was halved, or nearly */
    /* Looks, each as many as there are of all keys for one of the sample. */
    struct mc_reuse_looks {
        uint64_t asked;                    /* all, also of keys that are not in the sample */
        uint64_t sampled;                  /* the same, estimated by it */
        uint64_t counted;                  /* of these, without gets of what was checked */
        uint64_t distance[MC_REUSE_STEPS]; /* of those counted */
    } looks[MC_REUSE_LOOKS];
    uint64_t spans[MC_REUSE_SPANS + 1], span_sum_s; /* since the start; last: longer ones */
    uint64_t ages[MC_REUSE_SPANS + 1], age_sum_s;   /* the same of what was evicted, since its last use or its put */
    uint64_t evicted;                               /* of the sample; of the last of them the ages: */
    uint64_t last_ms[MC_REUSE_AGES];
};

extern const uint64_t mc_reuse_span_s[MC_REUSE_SPANS];

/* False when memory is out. */
bool mc_reuse_init(struct mc_reuse *reuse);
void mc_reuse_destroy(struct mc_reuse *reuse);

static inline enum mc_reuse_look mc_reuse_kind(bool is_check, bool is_found)
{
    return (enum mc_reuse_look)((is_check ? MC_REUSE_CHECK_MISSED : MC_REUSE_GET_MISSED) + is_found);
}
/* So many keys are looked for now, and so many of them found; mc_reuse_look follows for those of the sample. */
static inline void mc_reuse_ask(struct mc_reuse *reuse, uint64_t keys, uint64_t found, bool is_check)
{
    reuse->looks[mc_reuse_kind(is_check, true)].asked += found;
    reuse->looks[mc_reuse_kind(is_check, false)].asked += keys - found;
}
static inline bool mc_reuse_has(const struct mc_reuse *reuse, uint64_t hash)
{
    return __builtin_expect(hash < reuse->below, 0);
}
/* A key of the sample is looked for. */
void mc_reuse_look(struct mc_reuse *reuse, uint64_t now_ms, uint64_t hash, bool is_check, bool is_found);
/* Its value is put, and takes that room; capacity: units of memory that there are. */
void mc_reuse_put(struct mc_reuse *reuse, uint64_t now_ms, uint64_t hash, uint64_t units, uint64_t capacity);
/* Somebody removed it: it would not be there in a larger memory either. */
void mc_reuse_forget(struct mc_reuse *reuse, uint64_t hash);
/* A key of the sample was evicted. The sample knows when it was used last, so objects need not. */
void mc_reuse_evicted(struct mc_reuse *reuse, uint64_t now_ms, uint64_t hash);
/* From time to time. */
void mc_reuse_tick(struct mc_reuse *reuse, uint64_t now_ms);

/* The part of all looks that an LRU of so many units would have found; negative: nothing was looked for. */
double mc_reuse_ratio(const struct mc_reuse *reuse, uint64_t units);
/* The part that was found; negative likewise. */
double mc_reuse_found(const struct mc_reuse *reuse);
/* How far down the curve is known: units. */
uint64_t mc_reuse_depth(const struct mc_reuse *reuse);

#endif
