/* The table of slow calls: the slowest of each span stay, and what is of long ago goes. */
#include "store/master/slow.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct mc_slow_call list[MC_SLOW_MAX];

static void add(struct mc_slow *slow, uint64_t now_ms, uint64_t took_ms)
{
    struct mc_slow_call call = {.call = {.took_ms = took_ms}, .wall_ms = now_ms};
    mc_slow_add(slow, now_ms, &call);
}

static void test_the_slowest_stay(void **state)
{
    (void)state;
    const uint64_t start = 1000000;
    struct mc_slow *slow = mc_slow_create();
    assert_int_equal(mc_slow_read(slow, start, list), 0);
    for (uint64_t i = 0; i < 1000; i++)
        add(slow, start, 10 + (i * 377) % 1000);
    assert_int_equal(mc_slow_read(slow, start, list), MC_SLOW_KEPT);
    for (unsigned i = 0; i < MC_SLOW_KEPT; i++)
        assert_int_equal(list[i].call.took_ms, 1009 - i);
    assert_false(mc_slow_wants(slow, start, 1009 - MC_SLOW_KEPT));
    assert_true(mc_slow_wants(slow, start, 1011 - MC_SLOW_KEPT));
    add(slow, start + MC_SLOW_SPAN_MS, 10); /* the next span has room */
    assert_int_equal(mc_slow_read(slow, start + MC_SLOW_SPAN_MS, list), MC_SLOW_KEPT + 1);
    assert_int_equal(list[MC_SLOW_KEPT].call.took_ms, 10);
    assert_int_equal(mc_slow_read(slow, start + 2 * MC_SLOW_SPAN_MS, list), 1); /* the first is over */
    assert_int_equal(mc_slow_read(slow, start + 9 * MC_SLOW_SPAN_MS, list), 0);
    mc_slow_destroy(slow);
    mc_slow_destroy(NULL);
    assert_false(mc_slow_wants(NULL, start, 1));
}

/* Who has read the clock first may come second. */
static void test_a_time_of_before(void **state)
{
    (void)state;
    const uint64_t start = 1000000;
    struct mc_slow *slow = mc_slow_create();
    add(slow, start, 10);
    add(slow, start + MC_SLOW_SPAN_MS, 20);
    assert_int_equal(mc_slow_read(slow, start + MC_SLOW_SPAN_MS - 1, list), 2);
    add(slow, start + MC_SLOW_SPAN_MS - 1, 30);
    assert_int_equal(mc_slow_read(slow, start + MC_SLOW_SPAN_MS, list), 3);
    mc_slow_destroy(slow);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_slowest_stay),
                                       cmocka_unit_test(test_a_time_of_before)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
