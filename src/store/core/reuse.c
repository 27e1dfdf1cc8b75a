/* A sampled LRU stack: see the header. */
#include "store/core/reuse.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

#define STEP_BITS 4u /* sixteen steps for each power of two */

const uint64_t mc_reuse_span_s[MC_REUSE_SPANS] = {1, 5, 15, 30, 60, 120, 300, 600, 1800, 3600, 14400, 86400};

/* ---- the tables ---- */

static uint64_t below_of(unsigned shift)
{
    return UINT64_MAX >> shift;
}

static uint32_t *head_of(const struct mc_reuse *reuse, uint64_t hash)
{
    return &reuse->heads[hash % MC_REUSE_KEYS];
}

/* A step up, of the sum of the places up to that one. */
static void sums_add(struct mc_reuse *reuse, uint32_t place, uint64_t units)
{
    for (uint32_t at = place + 1; at <= MC_REUSE_PLACES; at += at & (~at + 1))
        reuse->sums[at] += units; /* a negative one wraps around */
}

/* Of all places up to that one. */
static uint64_t sums_to(const struct mc_reuse *reuse, uint32_t place)
{
    uint64_t sum = 0;
    for (uint32_t at = place + 1; at > 0; at -= at & (~at + 1))
        sum += reuse->sums[at];
    return sum;
}

/* Places without holes again. */
static void pack(struct mc_reuse *reuse)
{
    uint32_t to = 0;
    memset(reuse->sums, 0, (MC_REUSE_PLACES + 1) * sizeof(*reuse->sums));
    for (uint32_t place = reuse->bottom; place < reuse->top; place++) {
        uint32_t owner = reuse->owners[place];
        if (owner == 0)
            continue;
        reuse->owners[place] = 0;
        reuse->owners[to] = owner;
        reuse->keys[owner - 1].place = to;
        reuse->sums[to + 1] = reuse->keys[owner - 1].units;
        to++;
    }
    for (uint32_t at = 1; at <= MC_REUSE_PLACES; at++) {
        uint32_t next = at + (at & (~at + 1));
        if (next <= MC_REUSE_PLACES)
            reuse->sums[next] += reuse->sums[at];
    }
    reuse->bottom = 0;
    reuse->top = to;
}

static void leave_stack(struct mc_reuse *reuse, const struct mc_reuse_key *key)
{
    reuse->owners[key->place] = 0;
    sums_add(reuse, key->place, 0 - key->units);
    reuse->units -= key->units;
}

/* On top; it is in no place. */
static void enter_stack(struct mc_reuse *reuse, struct mc_reuse_key *key)
{
    if (reuse->top == MC_REUSE_PLACES)
        pack(reuse); /* half of them are holes at least */
    key->place = reuse->top++;
    reuse->owners[key->place] = (uint32_t)(key - reuse->keys) + 1;
    sums_add(reuse, key->place, key->units);
    reuse->units += key->units;
}

static struct mc_reuse_key *key_find(const struct mc_reuse *reuse, uint64_t hash)
{
    uint32_t at = *head_of(reuse, hash);
    while (at != 0 && reuse->keys[at - 1].hash != hash)
        at = reuse->keys[at - 1].next;
    return at == 0 ? NULL : &reuse->keys[at - 1];
}

static void key_drop(struct mc_reuse *reuse, struct mc_reuse_key *key)
{
    uint32_t number = (uint32_t)(key - reuse->keys) + 1, *at = head_of(reuse, key->hash);
    while (*at != number)
        at = &reuse->keys[*at - 1].next;
    *at = key->next;
    leave_stack(reuse, key);
    key->next = reuse->free;
    reuse->free = number;
    reuse->count--;
}

static struct mc_reuse_key *key_add(struct mc_reuse *reuse, uint64_t hash)
{
    bool is_fresh = reuse->free == 0;
    uint32_t number = is_fresh ? ++reuse->fresh : reuse->free, *head = head_of(reuse, hash);
    mc_assert(number <= MC_REUSE_KEYS);
    struct mc_reuse_key *key = &reuse->keys[number - 1];
    reuse->free = is_fresh ? 0 : key->next;
    reuse->count++;
    *key = (struct mc_reuse_key){.hash = hash, .next = *head};
    *head = number;
    return key;
}

bool mc_reuse_init(struct mc_reuse *reuse)
{
    *reuse = (struct mc_reuse){.budget = MC_REUSE_BUDGET};
    reuse->keys = malloc(MC_REUSE_KEYS * sizeof(*reuse->keys)); /* touched as they are used */
    reuse->heads = calloc(MC_REUSE_KEYS, sizeof(*reuse->heads));
    reuse->owners = calloc(MC_REUSE_PLACES, sizeof(*reuse->owners));
    reuse->sums = calloc(MC_REUSE_PLACES + 1, sizeof(*reuse->sums));
    if (reuse->keys == NULL || reuse->heads == NULL || reuse->owners == NULL || reuse->sums == NULL) {
        mc_reuse_destroy(reuse);
        return false;
    }
    reuse->below = below_of(0);
    return true;
}

void mc_reuse_destroy(struct mc_reuse *reuse)
{
    free(reuse->keys);
    free(reuse->heads);
    free(reuse->owners);
    free(reuse->sums);
    *reuse = (struct mc_reuse){0};
}

/* ---- how much is sampled ---- */

static void halve_sample(struct mc_reuse *reuse)
{
    reuse->is_pressed = true;
    if (reuse->shift == MC_REUSE_SHIFT_MAX)
        return;
    reuse->shift++;
    reuse->counted = reuse->counted < reuse->shift ? reuse->shift : reuse->counted;
    reuse->below = below_of(reuse->shift);
    for (uint32_t place = reuse->bottom; place < reuse->top; place++) {
        uint32_t owner = reuse->owners[place];
        if (owner != 0 && !mc_reuse_has(reuse, reuse->keys[owner - 1].hash))
            key_drop(reuse, &reuse->keys[owner - 1]);
    }
}

static void drop_bottom(struct mc_reuse *reuse)
{
    while (reuse->owners[reuse->bottom] == 0)
        reuse->bottom++;
    key_drop(reuse, &reuse->keys[reuse->owners[reuse->bottom] - 1]);
}

/* A key more finds a place; it may be in the sample no longer. */
static void make_room(struct mc_reuse *reuse, uint64_t capacity)
{
    while (reuse->count == MC_REUSE_KEYS) {
        if (capacity > 0 && (double)mc_reuse_depth(reuse) > (double)capacity * MC_REUSE_DEPTH)
            drop_bottom(reuse);
        else
            halve_sample(reuse);
    }
}

/* A use of the sample. False: it is one no longer, it was halved for its cost. */
static bool spend(struct mc_reuse *reuse, uint64_t now_ms, uint64_t hash)
{
    uint64_t more = (now_ms - reuse->budget_ms) * MC_REUSE_BUDGET_MS;
    reuse->budget_ms = now_ms;
    reuse->budget = more > MC_REUSE_BUDGET - reuse->budget ? MC_REUSE_BUDGET : reuse->budget + more;
    if (reuse->budget == 0) {
        halve_sample(reuse);
        reuse->budget = MC_REUSE_BUDGET_MORE;
    }
    reuse->budget--;
    reuse->is_pressed |= reuse->budget < MC_REUSE_BUDGET / 4;
    return mc_reuse_has(reuse, hash);
}

static void halve_counts(struct mc_reuse *reuse)
{
    for (unsigned kind = 0; kind < MC_REUSE_LOOKS; kind++) {
        struct mc_reuse_looks *looks = &reuse->looks[kind];
        looks->asked /= 2;
        looks->sampled /= 2;
        looks->counted /= 2;
        for (unsigned i = 0; i < MC_REUSE_STEPS; i++)
            looks->distance[i] /= 2;
    }
}

void mc_reuse_tick(struct mc_reuse *reuse, uint64_t now_ms)
{
    if (reuse->below == 0 || now_ms - reuse->half_ms < MC_REUSE_HALF_MS)
        return;
    reuse->half_ms = now_ms;
    halve_counts(reuse);
    reuse->counted = reuse->shift; /* what was added an hour ago has been met since, if it is met at all */
    if (!reuse->is_pressed && reuse->shift > 0 && reuse->count < MC_REUSE_KEYS / 4)
        reuse->below = below_of(--reuse->shift);
    reuse->is_pressed = false;
}

/* ---- uses ---- */

static unsigned step_of(uint64_t distance)
{
    if (distance < 1u << STEP_BITS)
        return (unsigned)distance;
    unsigned power = 63 - (unsigned)__builtin_clzll(distance);
    unsigned step = (power - STEP_BITS + 1) << STEP_BITS | (unsigned)(distance >> (power - STEP_BITS) & 15);
    return step < MC_REUSE_STEPS ? step : MC_REUSE_STEPS - 1;
}

/* The least distance of that step. */
static uint64_t step_start(unsigned step)
{
    if (step < 1u << STEP_BITS)
        return step;
    return (uint64_t)(16 | (step & 15)) << ((step >> STEP_BITS) - 1);
}

static void count_span(const struct mc_reuse *reuse, uint64_t counts[MC_REUSE_SPANS + 1], uint64_t *sum_s,
                       uint64_t span_ms)
{
    unsigned at = 0;
    while (at < MC_REUSE_SPANS && span_ms > mc_reuse_span_s[at] * 1000)
        at++;
    counts[at] += 1ull << reuse->counted;
    *sum_s += (span_ms << reuse->counted) / 1000;
}

/* The key is met again. */
static void count_distance(struct mc_reuse *reuse, struct mc_reuse_looks *looks, const struct mc_reuse_key *key,
                           uint64_t now_ms)
{
    uint64_t above = reuse->units - sums_to(reuse, key->place);
    looks->distance[step_of((above << reuse->shift) + key->units)] += 1ull << reuse->counted;
    count_span(reuse, reuse->spans, &reuse->span_sum_s, now_ms - key->used_ms);
}

void mc_reuse_look(struct mc_reuse *reuse, uint64_t now_ms, uint64_t hash, bool is_check, bool is_found)
{
    if (!spend(reuse, now_ms, hash))
        return;
    struct mc_reuse_key *key = key_find(reuse, hash);
    bool is_counted = hash < below_of(reuse->counted);
    bool is_same = !is_check && key != NULL && key->checked_ms > 0 && now_ms - key->checked_ms < MC_REUSE_CHECK_MS;
    struct mc_reuse_looks *looks = &reuse->looks[mc_reuse_kind(is_check, is_found)];
    if (is_counted)
        looks->sampled += 1ull << reuse->counted;
    if (is_counted && !is_same) {
        looks->counted += 1ull << reuse->counted;
        if (key != NULL)
            count_distance(reuse, looks, key, now_ms);
    }
    if (key == NULL)
        return;
    leave_stack(reuse, key);
    enter_stack(reuse, key);
    key->used_ms = now_ms;
    if (is_check)
        key->checked_ms = is_found ? now_ms : 0;
}

void mc_reuse_put(struct mc_reuse *reuse, uint64_t now_ms, uint64_t hash, uint64_t units, uint64_t capacity)
{
    if (!spend(reuse, now_ms, hash))
        return;
    struct mc_reuse_key *key = key_find(reuse, hash);
    if (key != NULL) {
        leave_stack(reuse, key);
    } else {
        make_room(reuse, capacity);
        if (!mc_reuse_has(reuse, hash))
            return;
        key = key_add(reuse, hash);
    }
    key->units = units;
    key->used_ms = now_ms;
    enter_stack(reuse, key);
}

void mc_reuse_forget(struct mc_reuse *reuse, uint64_t hash)
{
    struct mc_reuse_key *key = mc_reuse_has(reuse, hash) ? key_find(reuse, hash) : NULL;
    if (key != NULL)
        key_drop(reuse, key);
}

void mc_reuse_evicted(struct mc_reuse *reuse, uint64_t now_ms, uint64_t hash)
{
    const struct mc_reuse_key *key = key_find(reuse, hash);
    if (key == NULL || hash >= below_of(reuse->counted))
        return; /* it was put before the sample had it */
    count_span(reuse, reuse->ages, &reuse->age_sum_s, now_ms - key->used_ms);
    reuse->last_ms[reuse->evicted++ % MC_REUSE_AGES] = now_ms - key->used_ms;
}

/* ---- the curve ---- */

struct part {       /* of all looks: those that were found, or those that were not */
    double all;     /* how many there were; that is known */
    double counted; /* by the sample */
    double within;  /* of those counted, the distance is not more than it may be */
};

/* Distances that are not above so many units; what lies in one step lies evenly in it. */
static double within(const struct mc_reuse_looks *looks, uint64_t units)
{
    unsigned last = step_of(units);
    double sum = 0, start = (double)step_start(last), end = (double)step_start(last + 1);
    for (unsigned i = 0; i < last; i++)
        sum += (double)looks->distance[i];
    return sum + (double)looks->distance[last] * (((double)units + 1 - start) / (end - start));
}

static struct part part_of(const struct mc_reuse *reuse, bool is_found, uint64_t units)
{
    struct part part = {0, 0, 0};
    for (unsigned is_check = 0; is_check < 2; is_check++) {
        const struct mc_reuse_looks *looks = &reuse->looks[mc_reuse_kind(is_check != 0, is_found)];
        if (looks->sampled == 0)
            continue;
        part.all += (double)looks->counted * (double)looks->asked / (double)looks->sampled;
        part.counted += (double)looks->counted;
        part.within += within(looks, units);
    }
    return part;
}

double mc_reuse_ratio(const struct mc_reuse *reuse, uint64_t units)
{
    struct part hits = part_of(reuse, true, units), misses = part_of(reuse, false, units);
    double found = hits.within + hits.all - hits.counted;
    if (hits.all + misses.all <= 0)
        return -1;
    found = found < 0 ? 0 : found;
    if (misses.counted > 0)
        found += misses.within * misses.all / misses.counted;
    return found / (hits.all + misses.all);
}

double mc_reuse_found(const struct mc_reuse *reuse)
{
    double hits = part_of(reuse, true, 0).all, misses = part_of(reuse, false, 0).all;
    return hits + misses <= 0 ? -1 : hits / (hits + misses);
}

uint64_t mc_reuse_depth(const struct mc_reuse *reuse)
{
    return reuse->units << reuse->shift;
}
