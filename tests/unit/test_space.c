/* The allocator against a map of every unit: no overlap, no leak, full coalescing, exact fits, the ends of its numbers.
 */
#include "store/core/space.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static uint64_t random_next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

#define UNITS 20000u

struct model {
    struct mc_space space;
    uint32_t owner[UNITS * 2]; /* number + 1 of the node that has the unit */
    uint32_t held[UNITS * 2];
    uint32_t held_count;
};

static void model_claim(struct model *model, uint32_t number, uint64_t least)
{
    const struct mc_node *node = mc_space_node(&model->space, number);
    assert_int_equal(node->state, MC_NODE_GRANTED);
    assert_true(node->size >= least);
    assert_true(node->size <= least * 2);
    assert_true(node->offset + node->size <= model->space.end);
    for (uint64_t unit = node->offset; unit < node->offset + node->size; unit++) {
        assert_int_equal(model->owner[unit], 0);
        model->owner[unit] = number + 1;
    }
    model->held[model->held_count++] = number;
}

static void model_drop(struct model *model, uint32_t at)
{
    uint32_t number = model->held[at];
    const struct mc_node *node = mc_space_node(&model->space, number);
    for (uint64_t unit = node->offset; unit < node->offset + node->size; unit++) {
        assert_int_equal(model->owner[unit], number + 1);
        model->owner[unit] = 0;
    }
    model->held[at] = model->held[--model->held_count];
    mc_space_release(&model->space, number);
}

/* Against the longest run of units that nobody has; blocks of no more than 16 units are told exactly. */
static void check_largest(const struct model *model)
{
    uint64_t longest = 0, run = 0, told = mc_space_largest(&model->space);
    for (uint64_t unit = 0; unit < model->space.end; unit++) {
        run = model->owner[unit] == 0 ? run + 1 : 0;
        longest = run > longest ? run : longest;
    }
    assert_true(told <= longest && told + longest / 16 >= longest);
}

static uint64_t random_size(uint64_t *seed, unsigned kind)
{
    switch (kind % 4) {
    case 0:
        return 1 + random_next(seed) % 15;
    case 1:
        return 1 + random_next(seed) % 200;
    case 2:
        return 65;
    default:
        return 1ull << random_next(seed) % 12;
    }
}

static void random_run(uint64_t seed, uint32_t node_limit)
{
    struct model *model = calloc(1, sizeof(*model));
    assert_non_null(model);
    assert_true(mc_space_init(&model->space, node_limit));
    for (unsigned step = 0; step < 6000; step++) {
        uint64_t dice = random_next(&seed) % 100;
        if (dice < 5 && model->space.end < UNITS) {
            uint64_t more = random_next(&seed) % 1000, end = model->space.end;
            bool is_grown = mc_space_grow(&model->space, more); /* first: compilers do not agree on an order */
            assert_int_equal(model->space.end, is_grown ? end + more : end);
        } else if (dice < 60) {
            uint64_t size = random_size(&seed, (unsigned)(seed >> 20));
            uint32_t number = mc_space_allocate(&model->space, size);
            if (number != MC_NODE_NONE)
                model_claim(model, number, size);
        } else if (model->held_count > 0) {
            model_drop(model, (uint32_t)(random_next(&seed) % model->held_count));
        }
        if (step % 16 == 0) {
            assert_null(mc_space_check(&model->space));
            check_largest(model);
        }
    }
    while (model->held_count > 0)
        model_drop(model, (uint32_t)(random_next(&seed) % model->held_count));
    assert_null(mc_space_check(&model->space));
    assert_int_equal(model->space.free, model->space.end);
    assert_true(model->space.node_count <= 1); /* all in one block again */
    if (model->space.end > 0) {
        uint32_t whole = mc_space_allocate(&model->space, model->space.end);
        assert_int_not_equal(whole, MC_NODE_NONE);
        assert_int_equal(mc_space_node(&model->space, whole)->size, model->space.end);
    }
    mc_space_destroy(&model->space);
    free(model);
}

static void test_random(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 12; seed++)
        random_run(seed * 7919, 100000);
}

static void test_random_few_nodes(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 12; seed++)
        random_run(seed * 104729, (uint32_t)(1 + seed * seed));
}

static void test_exact_fit_of_every_size(void **state)
{
    (void)state;
    for (uint64_t units = 1; units < 5000; units += units < 300 ? 1 : 97) {
        struct mc_space space;
        assert_true(mc_space_init(&space, 8));
        assert_true(mc_space_grow(&space, units));
        assert_int_equal(mc_space_allocate(&space, units + 1), MC_NODE_NONE);
        uint32_t number = mc_space_allocate(&space, units);
        assert_int_not_equal(number, MC_NODE_NONE);
        assert_int_equal(space.free, 0);
        assert_int_equal(mc_space_allocate(&space, 1), MC_NODE_NONE);
        mc_space_release(&space, number);
        assert_null(mc_space_check(&space));
        mc_space_destroy(&space);
    }
}

/* A hole between two neighbours is taken by exactly its size, however it lies within its bin. */
static void test_exact_hole(void **state)
{
    (void)state;
    for (uint64_t units = 17; units < 700; units += 13) {
        struct mc_space space;
        assert_true(mc_space_init(&space, 8));
        assert_true(mc_space_grow(&space, units + 2));
        uint32_t left = mc_space_allocate(&space, 1), hole = mc_space_allocate(&space, units),
                 right = mc_space_allocate(&space, 1);
        assert_true(left != MC_NODE_NONE && hole != MC_NODE_NONE && right != MC_NODE_NONE);
        mc_space_release(&space, hole);
        uint32_t again = mc_space_allocate(&space, units);
        assert_int_not_equal(again, MC_NODE_NONE);
        assert_int_equal(mc_space_node(&space, again)->size, units);
        assert_null(mc_space_check(&space));
        mc_space_destroy(&space);
    }
}

static void test_extremes(void **state)
{
    struct mc_space space;
    (void)state;
    assert_true(mc_space_init(&space, 4));
    assert_int_equal(mc_space_allocate(&space, 1), MC_NODE_NONE); /* nothing there yet */
    assert_true(mc_space_grow(&space, 0));
    assert_int_equal(space.end, 0);
    assert_true(mc_space_grow(&space, MC_SPACE_UNITS_MAX));
    assert_int_equal(mc_space_allocate(&space, 0), MC_NODE_NONE);
    assert_int_equal(mc_space_allocate(&space, UINT64_MAX), MC_NODE_NONE);
    assert_int_equal(mc_space_allocate(&space, MC_SPACE_UNITS_MAX + 1), MC_NODE_NONE);
    uint32_t all = mc_space_allocate(&space, MC_SPACE_UNITS_MAX);
    assert_int_not_equal(all, MC_NODE_NONE);
    assert_int_equal(mc_space_node(&space, all)->size, MC_SPACE_UNITS_MAX);
    mc_space_release(&space, all);
    uint32_t most = mc_space_allocate(&space, MC_SPACE_UNITS_MAX - 1);
    uint32_t rest = mc_space_allocate(&space, 1);
    assert_true(most != MC_NODE_NONE && rest != MC_NODE_NONE);
    assert_int_equal(space.free, 0);
    assert_null(mc_space_check(&space));
    mc_space_destroy(&space);
}

static void test_nodes_run_out(void **state)
{
    struct mc_space space;
    uint32_t numbers[8];
    (void)state;
    assert_true(mc_space_init(&space, 8));
    assert_true(mc_space_grow(&space, 1000));
    for (unsigned i = 0; i < 7; i++) {
        numbers[i] = mc_space_allocate(&space, 10);
        assert_int_not_equal(numbers[i], MC_NODE_NONE);
        assert_true(numbers[i] < 8);
    }
    /* Seven extents and the free block are all eight nodes. */
    assert_int_equal(space.node_count, 8);
    assert_int_equal(mc_space_allocate(&space, 10), MC_NODE_NONE);
    assert_int_not_equal(mc_space_node(&space, space.last)->state, MC_NODE_GRANTED);
    /* A hole of exactly that size needs no new node, one that is a little too large is given whole. */
    mc_space_release(&space, numbers[2]);
    numbers[2] = mc_space_allocate(&space, 10);
    assert_int_not_equal(numbers[2], MC_NODE_NONE);
    mc_space_release(&space, numbers[4]);
    assert_int_equal(mc_space_allocate(&space, 4), MC_NODE_NONE);
    numbers[4] = mc_space_allocate(&space, 10);
    assert_int_not_equal(numbers[4], MC_NODE_NONE);
    /* Two neighbours give a node back. */
    mc_space_release(&space, numbers[5]);
    mc_space_release(&space, numbers[6]);
    assert_null(mc_space_check(&space));
    assert_int_not_equal(mc_space_allocate(&space, 100), MC_NODE_NONE);
    assert_null(mc_space_check(&space));
    mc_space_destroy(&space);
}

static void test_grow_without_a_node(void **state)
{
    struct mc_space space;
    (void)state;
    assert_true(mc_space_init(&space, 1));
    assert_true(mc_space_grow(&space, 10));
    uint32_t all = mc_space_allocate(&space, 10);
    assert_int_equal(all, 0);
    assert_false(mc_space_grow(&space, 10)); /* the last is in use and there is no second node */
    assert_int_equal(space.end, 10);
    mc_space_release(&space, all);
    assert_true(mc_space_grow(&space, 10)); /* now the free block grows */
    assert_int_equal(mc_space_allocate(&space, 20), 0);
    assert_null(mc_space_check(&space));
    mc_space_destroy(&space);
}

static void test_numbers_stay_dense(void **state)
{
    struct mc_space space;
    (void)state;
    assert_true(mc_space_init(&space, 1000000));
    assert_true(mc_space_grow(&space, 1000000));
    for (unsigned round = 0; round < 1000; round++) {
        uint32_t a = mc_space_allocate(&space, 3), b = mc_space_allocate(&space, 5);
        assert_true(a < 4 && b < 4);
        mc_space_release(&space, a);
        mc_space_release(&space, b);
    }
    assert_true(space.node_fresh <= 4);
    mc_space_destroy(&space);
}

static void test_destroy_in_slices(void **state)
{
    struct mc_space space;
    unsigned slices = 0;
    (void)state;
    assert_true(mc_space_init(&space, MC_NODE_CHUNK * 10));
    assert_true(mc_space_grow(&space, MC_NODE_CHUNK * 10));
    for (unsigned i = 0; i < MC_NODE_CHUNK * 9; i++)
        assert_int_not_equal(mc_space_allocate(&space, 1), MC_NODE_NONE);
    while (!mc_space_destroy_slice(&space, 2))
        slices++;
    assert_int_equal(slices, 4);
    mc_space_destroy(&space);
}

static uint64_t random_below(uint64_t *dice, unsigned limit)
{
    return random_next(dice) % limit;
}

/* A space that lived, rebuilt from its extents, gives the same places out and takes them back. */
static void test_rebuild(void **state)
{
    uint64_t dice = 11;
    (void)state;
    for (unsigned round = 0; round < 60; round++) {
        struct mc_space old, space;
        uint32_t limit = round % 3 == 0 ? 60 : 3 * MC_NODE_CHUNK, top = 0, extents = 0, granted = 0;
        assert_true(mc_space_init(&old, limit) && mc_space_init(&space, limit));
        assert_true(mc_space_grow(&old, 100000));
        static uint32_t numbers[3 * MC_NODE_CHUNK];
        unsigned steps = (unsigned)random_below(&dice, round % 4 == 0 ? 9000 : 200);
        for (unsigned i = 0; i < steps; i++) {
            uint32_t number = mc_space_allocate(&old, 1 + random_below(&dice, 12));
            if (number != MC_NODE_NONE)
                numbers[granted++] = number;
            if (granted > 0 && random_below(&dice, round % 5 == 0 ? 50 : 3) == 0) {
                uint32_t at = (uint32_t)random_below(&dice, granted);
                mc_space_release(&old, numbers[at]);
                numbers[at] = numbers[--granted];
            }
        }
        for (uint32_t i = 0; i < granted; i++)
            top = numbers[i] + 1 > top ? numbers[i] + 1 : top;
        assert_true(mc_space_rebuild_begin(&space, top));
        static uint32_t order[3 * MC_NODE_CHUNK];
        for (uint32_t at = old.last; at != MC_NODE_NONE; at = mc_space_node(&old, at)->physical_previous)
            if (mc_space_node(&old, at)->state == MC_NODE_GRANTED)
                order[extents++] = at;
        assert_int_equal(extents, granted);
        bool placed = true;
        for (uint32_t i = extents; i > 0 && placed; i--) {
            const struct mc_node *node = mc_space_node(&old, order[i - 1]);
            enum mc_space_placed how = mc_space_rebuild_place(&space, order[i - 1], node->offset, node->size, 100000);
            placed = how == MC_SPACE_PLACED; /* a gap at the start may find no number at all */
            assert_true(placed || (how == MC_SPACE_NO_MEMORY && top == limit && i == extents));
            if (i % 100 == 0)
                assert_null(mc_space_check(&space));
            if (placed && random_below(&dice, 20) == 0) { /* released amid the rebuilding */
                mc_space_release(&space, order[i - 1]);
                assert_int_equal(mc_space_rebuild_place(&space, order[i - 1], 99999, 1, 100000), MC_SPACE_REFUSED);
                order[i - 1] = MC_NODE_NONE;
            }
        }
        mc_space_rebuild_end(&space);
        (void)mc_space_grow(&space, 100000 - space.end);
        assert_null(mc_space_check(&space));
        if (round % 2 == 0) /* allocations go on between the slices */
            (void)mc_space_allocate(&space, 5);
        while (mc_space_reclaim(&space, 500))
            assert_null(mc_space_check(&space));
        assert_null(mc_space_check(&space));
        for (uint32_t i = 0; placed && i < extents; i++)
            if (order[i] != MC_NODE_NONE)
                mc_space_release(&space, order[i]);
        (void)mc_space_grow(&space, 100000 - space.end);
        assert_null(mc_space_check(&space));
        while (mc_space_allocate(&space, 1) != MC_NODE_NONE && space.node_count + 1 < limit)
            continue;
        assert_null(mc_space_check(&space)); /* holes were filled */
        assert_true(space.node_count + 1 >= limit || space.free == 0);
        mc_space_destroy(&old);
        mc_space_destroy(&space);
    }
}

static void test_rebuild_with_holes(void **state)
{
    struct mc_space space;
    const uint32_t top = MC_NODE_CHUNK * 50 + 7, last = top - 1;
    (void)state;
    assert_true(mc_space_init(&space, top + 3));
    assert_false(mc_space_rebuild_begin(&space, top + 4));
    assert_true(mc_space_rebuild_begin(&space, top));
    assert_int_equal(mc_space_rebuild_place(&space, last, 10, 5, 1 << 22), MC_SPACE_PLACED);
    assert_int_equal(mc_space_rebuild_place(&space, 12, 14, 5, 1 << 22), MC_SPACE_REFUSED); /* overlap */
    assert_int_equal(mc_space_rebuild_place(&space, 12, 2, 5, 1 << 22), MC_SPACE_REFUSED);  /* order */
    assert_int_equal(mc_space_rebuild_place(&space, last, 20, 5, 1 << 22), MC_SPACE_REFUSED);
    assert_int_equal(mc_space_rebuild_place(&space, top, 20, 5, 1 << 22), MC_SPACE_REFUSED);
    assert_int_equal(mc_space_rebuild_place(&space, 12, 20, 0, 1 << 22), MC_SPACE_REFUSED);
    assert_int_equal(mc_space_rebuild_place(&space, 12, (1 << 22) - 4, 5, 1 << 22), MC_SPACE_REFUSED);
    assert_int_equal(mc_space_rebuild_place(&space, 12, UINT64_MAX, 5, 1 << 22), MC_SPACE_REFUSED);
    assert_int_equal(mc_space_rebuild_place(&space, 12, 20, UINT64_MAX, 1 << 22), MC_SPACE_REFUSED);
    assert_int_equal(mc_space_rebuild_place(&space, 12, 20, 5, UINT64_MAX), MC_SPACE_REFUSED);
    assert_int_equal(mc_space_rebuild_place(&space, 12, 20, 5, 1 << 22), MC_SPACE_PLACED);
    mc_space_rebuild_end(&space);
    assert_true(mc_space_grow(&space, (1 << 22) - space.end));
    unsigned slices = 0;
    while (mc_space_reclaim(&space, 500))
        slices++;
    assert_in_range(slices, 8, 10); /* holes cost one look each */
    assert_null(mc_space_check(&space));
    unsigned memory = 0;
    for (uint32_t chunk = 1; chunk < top / MC_NODE_CHUNK; chunk++)
        memory += space.chunks[chunk] != space.chunks[1];
    assert_int_equal(memory, 0);
    while (mc_space_allocate(&space, 1) != MC_NODE_NONE)
        continue;
    assert_int_equal(space.node_count, top + 3); /* every number is of use */
    assert_null(mc_space_check(&space));
    mc_space_destroy(&space);
}

/* Numbers alone, whose limit falls and rises, at any moment after a rebuild: none at or above it is given out, none
 * twice, and none is lost. */
static void test_resize(void **state)
{
    enum { TOP = 5 * MC_NODE_CHUNK + 17, MOST = 9 * MC_NODE_CHUNK };
    static bool has[MOST];
    (void)state;
    for (uint64_t seed = 1; seed <= 30; seed++) {
        struct mc_space space;
        uint64_t random = seed;
        uint32_t limit = TOP, used = 0;
        memset(has, 0, sizeof(has));
        assert_true(mc_space_init(&space, limit));
        space.is_bare = true;
        assert_true(mc_space_rebuild_begin(&space, TOP));
        for (unsigned i = 0; i < 200; i++) {
            uint32_t number = i * 97 + (uint32_t)random_below(&random, 97);
            assert_int_equal(mc_space_rebuild_number(&space, number), MC_SPACE_PLACED);
            if (i % 2 == 0) {
                mc_space_number_give(&space, number);
                assert_int_equal(mc_space_rebuild_number(&space, number), MC_SPACE_REFUSED);
            }
            has[number] = i % 2 == 1;
            used += has[number];
        }
        mc_space_rebuild_end(&space);
        for (unsigned i = 0; i < 60; i++) {
            unsigned what = (unsigned)random_below(&random, 4);
            if (what == 0) {
                limit = 1 + (uint32_t)random_below(&random, MOST);
                assert_true(mc_space_resize(&space, limit));
            } else if (what == 1) {
                (void)mc_space_reclaim(&space, (uint32_t)random_below(&random, 2 * MC_NODE_CHUNK));
            }
            for (uint64_t some = random_below(&random, 3000); what == 2 && some > 0; some--) {
                uint32_t number = mc_space_number_take(&space);
                if (number == MC_NODE_NONE)
                    break;
                assert_true(number < limit && !has[number]);
                has[number] = true;
                used++;
            }
            for (uint64_t some = random_below(&random, 3000); what == 3 && some > 0; some--) {
                uint32_t number = (uint32_t)random_below(&random, MOST);
                if (has[number])
                    mc_space_number_give(&space, number);
                used -= has[number];
                has[number] = false;
            }
            assert_int_equal(space.node_count, used);
            assert_null(mc_space_check(&space));
        }
        while (mc_space_reclaim(&space, MC_NODE_CHUNK))
            continue;
        for (uint32_t number = mc_space_number_take(&space); number != MC_NODE_NONE;
             number = mc_space_number_take(&space)) {
            assert_true(number < limit && !has[number]);
            has[number] = true;
        }
        for (uint32_t number = 0; number < limit; number++)
            assert_true(has[number]);
        assert_null(mc_space_check(&space));
        mc_space_destroy(&space);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_random_few_nodes),
        cmocka_unit_test(test_exact_fit_of_every_size),
        cmocka_unit_test(test_exact_hole),
        cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_nodes_run_out),
        cmocka_unit_test(test_grow_without_a_node),
        cmocka_unit_test(test_numbers_stay_dense),
        cmocka_unit_test(test_destroy_in_slices),
        cmocka_unit_test(test_rebuild),
        cmocka_unit_test(test_rebuild_with_holes),
        cmocka_unit_test(test_resize),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
