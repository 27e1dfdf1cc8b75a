/* Registered memory: what overlaps, what is inside, all or none, and how fast. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/bytes.h"
#include "env/clock.h"
#include "transfer/state/region.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int add(struct mc_region_table *table, uint64_t address, uint64_t length)
{
    return mc_region_add(table, &(struct mc_transfer_range){address, length}, 1, NULL);
}

static void test_limits(void **state)
{
    (void)state;
    struct mc_region_table table = {0};
    assert_int_equal(add(&table, 4096, 0), MC_TRANSFER_ERR_INVALID_ARGUMENT);
    assert_int_equal(add(&table, 0, 10), MC_TRANSFER_ERR_INVALID_ARGUMENT);
    assert_int_equal(add(&table, UINT64_MAX, 2), MC_TRANSFER_ERR_INVALID_ARGUMENT);
    assert_int_equal(add(&table, 2, UINT64_MAX), MC_TRANSFER_ERR_INVALID_ARGUMENT);
    assert_int_equal(table.count, 0);
    assert_int_equal(add(&table, UINT64_MAX, 1), 0); /* the last byte there is */
    assert_int_equal(add(&table, UINT64_MAX - 9, 9), 0);
    assert_int_equal(add(&table, UINT64_MAX - 1, 2), MC_TRANSFER_ERR_ADDRESS_OVERLAPPED);
    assert_non_null(mc_region_find(&table, UINT64_MAX, 1));
    assert_null(mc_region_find(&table, UINT64_MAX, 2));
    assert_null(mc_region_find(&table, UINT64_MAX - 1, 2)); /* two regions, not one */
    mc_region_table_free(&table);
    assert_null(mc_region_find(&table, 1, 1));
}

static void test_overlap(void **state)
{
    (void)state;
    struct mc_region_table table = {0};
    assert_int_equal(add(&table, 1000, 100), 0);
    static const struct mc_transfer_range bad[] = {{1000, 100}, {999, 2}, {1099, 1}, {1099, 100}, {1050, 1}, {1, 5000}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(mc_region_add(&table, &bad[i], 1, NULL), MC_TRANSFER_ERR_ADDRESS_OVERLAPPED);
    assert_int_equal(add(&table, 900, 100), 0); /* adjacent on both sides */
    assert_int_equal(add(&table, 1100, 1), 0);
    assert_int_equal(table.count, 3);
    assert_null(mc_region_at(&table, 1001));
    assert_non_null(mc_region_at(&table, 1000));
    mc_region_table_free(&table);
}

static void test_find(void **state)
{
    (void)state;
    struct mc_region_table table = {0};
    struct mc_region *region;
    assert_int_equal(mc_region_add(&table, &(struct mc_transfer_range){1000, 100}, 1, &region), 0);
    assert_ptr_equal(mc_region_find(&table, 1000, 100), region);
    assert_ptr_equal(mc_region_find(&table, 1099, 1), region);
    assert_null(mc_region_find(&table, 1000, 101));
    assert_null(mc_region_find(&table, 999, 1));
    assert_null(mc_region_find(&table, 1100, 1));
    assert_null(mc_region_find(&table, 1050, 0));
    assert_null(mc_region_find(&table, 1050, UINT64_MAX));
    assert_null(mc_region_find(&table, 1050, UINT64_MAX - 1049)); /* its end would be zero */
    region->is_leaving = true;
    assert_null(mc_region_find(&table, 1000, 1));
    assert_ptr_equal(mc_region_at(&table, 1000), region);
    assert_int_equal(add(&table, 1000, 1), MC_TRANSFER_ERR_ADDRESS_OVERLAPPED); /* until it has left */
    mc_region_remove(&table, region);
    assert_int_equal(add(&table, 1000, 1), 0);
    mc_region_table_free(&table);
}

static void test_all_or_none(void **state)
{
    (void)state;
    struct mc_region_table table = {0};
    assert_int_equal(add(&table, 500, 10), 0);
    uint64_t generation = mc_region_at(&table, 500)->generation;
    static const struct mc_transfer_range within[] = {{1000, 10}, {2000, 10}, {2009, 1}};
    static const struct mc_transfer_range without[] = {{1000, 10}, {2000, 10}, {505, 1}};
    static const struct mc_transfer_range empty[] = {{1000, 10}, {2000, 0}};
    assert_int_equal(mc_region_add(&table, within, 3, NULL), MC_TRANSFER_ERR_ADDRESS_OVERLAPPED);
    assert_int_equal(mc_region_add(&table, without, 3, NULL), MC_TRANSFER_ERR_ADDRESS_OVERLAPPED);
    assert_int_equal(mc_region_add(&table, empty, 2, NULL), MC_TRANSFER_ERR_INVALID_ARGUMENT);
    assert_int_equal(table.count, 1);
    assert_ptr_equal(table.first, table.last);
    assert_null(mc_region_find(&table, 1000, 1));
    assert_int_equal(mc_region_at(&table, 500)->generation, generation);
    assert_int_equal(mc_region_add(&table, within, 2, NULL), 0);
    assert_true(mc_region_at(&table, 1000)->generation > generation);
    mc_region_table_free(&table);
}

/* Slots are given again, generations never. */
static void test_slots(void **state)
{
    (void)state;
    struct mc_region_table table = {0};
    uint64_t last = 0;
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(add(&table, 64, 64), 0);
        struct mc_region *region = mc_region_at(&table, 64);
        assert_int_equal(region->slot, 0);
        assert_true(region->generation > last);
        last = region->generation;
        mc_region_remove(&table, region);
    }
    assert_int_equal(table.slots_used, 1);
    mc_region_table_free(&table);
}

static void test_fast(void **state)
{
    (void)state;
    struct mc_region_table table = {0};
    enum { COUNT = 10000 };
    uint64_t start_ns = mc_clock_ns();
    for (uint64_t i = 0; i < COUNT; i++) /* in no order */
        assert_int_equal(add(&table, 4096 + (i * 7919 % COUNT) * 4096, 4096), 0);
    for (uint64_t i = 0; i < COUNT; i++)
        assert_non_null(mc_region_find(&table, 4096 + i * 4096 + 1, 4095));
    for (uint64_t i = 0; i < COUNT; i++)
        mc_region_remove(&table, mc_region_at(&table, 4096 + i * 4096));
    uint64_t spent_ms = (mc_clock_ns() - start_ns) / 1000000;
    assert_int_equal(table.count, 0);
    assert_null(table.tree);
    print_message("10,000 regions in, found and out: %llu ms\n", (unsigned long long)spent_ms);
    assert_true(spent_ms < 500); /* 10 ms alone; far from quadratic under a sanitizer too */
    mc_region_table_free(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limits),      cmocka_unit_test(test_overlap), cmocka_unit_test(test_find),
        cmocka_unit_test(test_all_or_none), cmocka_unit_test(test_slots),   cmocka_unit_test(test_fast),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
