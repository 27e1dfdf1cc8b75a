/* The curve of hits by capacity, which the core estimates by a sample, against an exact replay of the same requests: at
 * ten capacities, of two traces. Nothing here depends on time or chance: a trace and a seed give one curve. */
#include "store/core/reuse.h"
#include "tool/synthetic.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_POINTS 2.0
#define CAPACITIES 10u

static uint64_t mix(uint64_t value)
{
    value += 0x9e3779b97f4a7c15ull;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ value >> 27) * 0x94d049bb133111ebull;
    return value ^ value >> 31;
}

/* ---- the exact replay: a stack of all blocks ---- */

struct exact {
    uint64_t *sums;   /* Fenwick tree of units, by the time of their last use */
    uint64_t *last;   /* by block: when it was used last; 0: never */
    uint64_t *needed; /* by reference: the least capacity that finds it; 0: none does */
    unsigned *halved; /* by reference: how often counts had been halved before */
    uint64_t count, used, units;
    unsigned halvings;
};

static void exact_add(struct exact *exact, uint64_t at, uint64_t units)
{
    for (uint64_t i = at; i <= exact->count; i += i & (~i + 1))
        exact->sums[i] += units;
}

static uint64_t exact_to(const struct exact *exact, uint64_t at)
{
    uint64_t sum = 0;
    for (uint64_t i = at; i > 0; i -= i & (~i + 1))
        sum += exact->sums[i];
    return sum;
}

static void exact_use(struct exact *exact, uint64_t reference, uint64_t block, uint64_t units)
{
    uint64_t last = exact->last[block];
    if (last != 0) {
        exact->needed[reference] = exact->units - exact_to(exact, last) + units;
        exact_add(exact, last, 0 - units);
        exact->units -= units;
    }
    exact->last[block] = ++exact->used; /* requests do not lie in the order of their times */
    exact->halved[reference] = exact->halvings;
    exact_add(exact, exact->used, units);
    exact->units += units;
}

/* Of all references, each as old as it is. */
static double exact_ratio(const struct exact *exact, uint64_t units)
{
    double found = 0, all = 0;
    for (uint64_t i = 0; i < exact->count; i++) {
        double weight = ldexp(1, (int)exact->halved[i] - (int)exact->halvings);
        all += weight;
        found += exact->needed[i] != 0 && exact->needed[i] <= units ? weight : 0;
    }
    return found / all;
}

/* ---- one trace through both ---- */

struct world {
    struct mc_trace trace;
    struct exact exact;
    struct mc_reuse reuse;
    uint64_t *blocks; /* by reference: numbered from 0 */
    uint64_t block_count, seed, capacity;
    bool is_even; /* all blocks take the same room */
    bool checks;  /* an existence check, then a get of what it has found */
};

static int compare_ids(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void number_blocks(struct world *world)
{
    uint64_t count = world->trace.block_count, *ids = calloc(count, sizeof(*ids));
    assert_non_null(ids);
    memcpy(ids, world->trace.block_ids, count * sizeof(*ids));
    qsort(ids, count, sizeof(*ids), compare_ids);
    for (uint64_t i = 0; i < count; i++)
        if (world->block_count == 0 || ids[world->block_count - 1] != ids[i])
            ids[world->block_count++] = ids[i];
    world->blocks = calloc(count, sizeof(*world->blocks));
    assert_non_null(world->blocks);
    for (uint64_t i = 0; i < count; i++)
        world->blocks[i] = (uint64_t)((uint64_t *)bsearch(&world->trace.block_ids[i], ids, world->block_count,
                                                          sizeof(*ids), compare_ids) -
                                      ids);
    free(ids);
}

static void open_trace(struct world *world)
{
    number_blocks(world);
    world->exact.count = world->trace.block_count;
    world->exact.sums = calloc(world->exact.count + 1, sizeof(uint64_t));
    world->exact.needed = calloc(world->exact.count, sizeof(uint64_t));
    world->exact.last = calloc(world->block_count, sizeof(uint64_t));
    world->exact.halved = calloc(world->exact.count, sizeof(unsigned));
    assert_true(world->exact.sums != NULL && world->exact.needed != NULL && world->exact.last != NULL);
    assert_non_null(world->exact.halved);
    assert_true(mc_reuse_init(&world->reuse));
}

static void close_trace(struct world *world)
{
    mc_reuse_destroy(&world->reuse);
    mc_trace_free(&world->trace);
    free(world->exact.sums);
    free(world->exact.needed);
    free(world->exact.last);
    free(world->exact.halved);
    free(world->blocks);
}

static uint64_t units_of(const struct world *world, uint64_t block)
{
    return world->is_even ? 1000 : 200 + mix(block) % 1600;
}

/* The memory that there is finds what an LRU of its size does. */
static bool is_found(const struct world *world, uint64_t reference)
{
    uint64_t needed = world->exact.needed[reference];
    return needed != 0 && needed <= world->capacity;
}

/* First all blocks are looked for, then those that were found are read, and those that were not are put. */
static void replay_request(struct world *world, const struct mc_trace_request *request)
{
    struct mc_reuse *reuse = &world->reuse;
    uint64_t from = request->first_block, now_ms = 1000 + request->timestamp_ms;
    uint64_t half_ms = reuse->half_ms;
    mc_reuse_tick(reuse, now_ms);
    world->exact.halvings += reuse->half_ms != half_ms;
    for (uint64_t i = from; i < from + request->block_count; i++)
        exact_use(&world->exact, i, world->blocks[i], units_of(world, world->blocks[i]));
    for (unsigned round = 0; round <= world->checks; round++)
        for (uint64_t i = from; i < from + request->block_count; i++) {
            uint64_t hash = mix(world->blocks[i] ^ mix(world->seed));
            if (round > 0 && !is_found(world, i))
                continue;
            mc_reuse_ask(reuse, 1, is_found(world, i), round < world->checks);
            if (mc_reuse_has(reuse, hash))
                mc_reuse_look(reuse, now_ms, hash, round < world->checks, is_found(world, i));
        }
    for (uint64_t i = from; i < from + request->block_count; i++) {
        uint64_t hash = mix(world->blocks[i] ^ mix(world->seed));
        if (!is_found(world, i) && mc_reuse_has(reuse, hash))
            mc_reuse_put(reuse, now_ms, hash, units_of(world, world->blocks[i]), world->capacity);
    }
}

/* capacities: from a sixteenth of the memory that there is to four times as much; how far off it is at most. */
static double compare(struct world *world, const char *name)
{
    static const double times[CAPACITIES] = {1.0 / 16, 1.0 / 8, 1.0 / 4, 1.0 / 2, 3.0 / 4, 1, 1.5, 2, 3, 4};
    double worst = 0;
    uint64_t all = 0;
    for (uint64_t block = 0; block < world->block_count; block++)
        all += units_of(world, block);
    world->capacity = all / 8;
    for (uint64_t r = 0; r < world->trace.request_count; r++)
        replay_request(world, &world->trace.requests[r]);
    printf("%s, seed %d: one key of %d\n", name, (int)world->seed, 1 << world->reuse.shift);
    for (unsigned i = 0; i < CAPACITIES; i++) {
        uint64_t units = (uint64_t)((double)world->capacity * times[i]);
        double exact = 100 * exact_ratio(&world->exact, units), told = 100 * mc_reuse_ratio(&world->reuse, units);
        printf("  %6.4f times: exact %6.2f, by the sample %6.2f, off by %+5.2f\n", times[i], exact, told, told - exact);
        worst = fabs(told - exact) > worst ? fabs(told - exact) : worst;
    }
    double exact = 100 * exact_ratio(&world->exact, world->capacity), found = 100 * mc_reuse_found(&world->reuse);
    printf("  found: %6.2f, by the sample %6.2f\n", exact, found);
    return fabs(found - exact) < 0.01 || world->reuse.half_ms > 0 ? worst : MOST_POINTS + 1; /* that is counted */
}

static double compare_recorded(uint64_t seed, bool is_even, bool checks)
{
    struct world world = {.seed = seed, .is_even = is_even, .checks = checks};
    char path[4096], why[256];
    (void)snprintf(path, sizeof(path), "%s/traces/conversation_trace.jsonl.gz", getenv("MC_SOURCE"));
    assert_int_equal(mc_trace_load(path, 0, &world.trace, why, sizeof(why)), 0);
    open_trace(&world);
    double worst = compare(&world, is_even ? "recorded" : "recorded, of many sizes");
    close_trace(&world);
    return worst;
}

static double compare_made(const char *kind, uint64_t seed)
{
    struct world world = {.seed = seed, .checks = true};
    assert_true(mc_synthetic_make(kind, 1, &world.trace));
    open_trace(&world);
    double worst = compare(&world, kind);
    close_trace(&world);
    return worst;
}

static void test_recorded(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++)
        assert_true(compare_recorded(seed, true, true) < MOST_POINTS);
    assert_true(compare_recorded(1, true, false) < MOST_POINTS);
    assert_true(compare_recorded(1, false, true) < MOST_POINTS);
}

static void test_made(void **state)
{
    static const char *const kinds[] = {"conversation", "documents", "scans", "shift"};
    (void)state;
    for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        for (uint64_t seed = 1; seed <= 2; seed++)
            assert_true(compare_made(kinds[i], seed) < MOST_POINTS);
}

/* ---- its bounds ---- */

static void put_one(struct mc_reuse *reuse, uint64_t now_ms, uint64_t number, uint64_t capacity)
{
    if (mc_reuse_has(reuse, mix(number)))
        mc_reuse_put(reuse, now_ms, mix(number), 1, capacity);
}

/* However many keys come: without a known memory the part falls, with one the bottom is forgotten. */
static void test_many_keys(void **state)
{
    struct mc_reuse reuse;
    (void)state;
    for (unsigned is_known = 0; is_known < 2; is_known++) {
        assert_true(mc_reuse_init(&reuse));
        for (uint64_t i = 0; i < 40 * MC_REUSE_KEYS; i++) {
            put_one(&reuse, i, i, is_known ? MC_REUSE_KEYS : 0);
            assert_true(reuse.count <= MC_REUSE_KEYS);
        }
        assert_int_equal(reuse.shift, is_known ? 3 : 6); /* 4 times of it are known; or all */
        assert_true(reuse.count > MC_REUSE_KEYS / 4);
        uint64_t least = is_known ? 3 * MC_REUSE_KEYS : 35 * MC_REUSE_KEYS;
        assert_in_range(mc_reuse_depth(&reuse), least, is_known ? 9 * MC_REUSE_KEYS : 45 * MC_REUSE_KEYS);
        mc_reuse_destroy(&reuse);
    }
}

static unsigned look_often(struct mc_reuse *reuse, uint64_t now_ms, uint64_t times)
{
    unsigned uses = 0;
    for (uint64_t i = 0; i < times; i++) {
        uint64_t hash = mix(i % 1000000);
        mc_reuse_ask(reuse, 1, 0, true);
        if (!mc_reuse_has(reuse, hash))
            continue;
        mc_reuse_look(reuse, now_ms, hash, true, false);
        uses++;
    }
    return uses;
}

/* Looks that come too often make the sample smaller; in quiet hours it is as large as before again. */
static void test_storm(void **state)
{
    struct mc_reuse reuse;
    uint64_t now_ms = 1;
    (void)state;
    assert_true(mc_reuse_init(&reuse));
    assert_true(look_often(&reuse, now_ms, 10000000) < MC_REUSE_BUDGET + 12 * MC_REUSE_BUDGET_MORE);
    unsigned shift = reuse.shift;
    assert_in_range(shift, 5, 12);
    assert_true(mc_reuse_ratio(&reuse, 1000) < 0.001 && mc_reuse_ratio(&reuse, 1000) >= 0);
    for (unsigned hour = 1; hour <= shift + 1; hour++) {
        now_ms += MC_REUSE_HALF_MS;
        (void)look_often(&reuse, now_ms, 10000);
        mc_reuse_tick(&reuse, now_ms);
        assert_int_equal(reuse.shift, hour == 1 ? shift : shift - hour + 1); /* the first hour had the storm in it */
        assert_true(reuse.counted >= reuse.shift && reuse.counted <= reuse.shift + 1);
    }
    assert_int_equal(reuse.shift, 0);
    mc_reuse_destroy(&reuse);
}

/* What was removed would not be there; what is put again is. A get after its check is no look of its own. */
static void test_uses(void **state)
{
    struct mc_reuse reuse;
    (void)state;
    assert_true(mc_reuse_init(&reuse));
    put_one(&reuse, 1, 1, 100);
    put_one(&reuse, 1, 2, 100);
    put_one(&reuse, 1, 3, 100);
    for (unsigned round = 0; round < 2; round++) {
        mc_reuse_ask(&reuse, 1, 1, round == 0);
        mc_reuse_look(&reuse, 2000, mix(1), round == 0, true);
    }
    assert_true(mc_reuse_ratio(&reuse, 2) < 0.01 && mc_reuse_ratio(&reuse, 3) > 0.99);
    assert_int_equal(reuse.looks[MC_REUSE_CHECK_FOUND].counted + reuse.looks[MC_REUSE_GET_FOUND].counted, 1);
    assert_int_equal(reuse.spans[1], 1); /* within 5 s */
    mc_reuse_forget(&reuse, mix(2));
    mc_reuse_forget(&reuse, mix(7));
    assert_int_equal(reuse.count, 2);
    mc_reuse_ask(&reuse, 1, 0, true);
    mc_reuse_look(&reuse, 3000, mix(2), true, false);
    assert_true(mc_reuse_ratio(&reuse, 100) > 0.49 && mc_reuse_ratio(&reuse, 100) < 0.51);
    assert_true(mc_reuse_found(&reuse) > 0.49 && mc_reuse_found(&reuse) < 0.51);
    mc_reuse_destroy(&reuse);
    assert_false(mc_reuse_has(&reuse, 0)); /* without memory nothing is */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recorded), cmocka_unit_test(test_made), cmocka_unit_test(test_many_keys),
        cmocka_unit_test(test_storm),    cmocka_unit_test(test_uses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
