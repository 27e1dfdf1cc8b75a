/* What a sample says that the one before did not: evictions and puts without room that begin, turns that are slow, and
 * leaderships. */
#include "env/log.h"
#include "store/master/sampler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct mc_event told[MC_EVENTS_MAX];
static struct mc_sample kept[MC_HISTORY_DAY];

static struct mc_sampler sampler_make(void)
{
    struct mc_sampler sampler = {.history = mc_history_create(), .events = mc_events_create()};
    assert_non_null(sampler.history);
    assert_non_null(sampler.events);
    return sampler;
}

static void sampler_free(struct mc_sampler *sampler)
{
    mc_history_destroy(sampler->history);
    mc_events_destroy(sampler->events);
}

/* Events after that number; told[] has them. */
static size_t events_after(struct mc_sampler *sampler, uint64_t after)
{
    uint64_t last;
    return mc_events_read(sampler->events, after, told, MC_EVENTS_MAX, &last);
}

static void test_evictions(void **state)
{
    (void)state;
    struct mc_sampler sampler = sampler_make();
    struct mc_core_statistics statistics = {.capacity = 100, .used = 90};
    mc_sampler_take(&sampler, &statistics, 7);
    assert_int_equal(events_after(&sampler, 0), 0);
    statistics.evicted_objects = 3;
    statistics.evicted_bytes = 2048;
    mc_sampler_take(&sampler, &statistics, 7);
    assert_int_equal(events_after(&sampler, 0), 1);
    assert_int_equal(told[0].kind, MC_EVENT_EVICTION);
    assert_string_equal(told[0].text, "evictions have begun: 3 objects, 2.00 KB; 90.0 % of the memory is used");
    statistics.evicted_objects = 9; /* they go on */
    mc_sampler_take(&sampler, &statistics, 7);
    mc_sampler_take(&sampler, &statistics, 7); /* they have ended */
    assert_int_equal(events_after(&sampler, 0), 1);
    statistics.evicted_objects = 10; /* and begin again */
    mc_sampler_take(&sampler, &statistics, 7);
    assert_int_equal(events_after(&sampler, 1), 1);
    sampler_free(&sampler);
}

static void test_no_room(void **state)
{
    (void)state;
    struct mc_sampler sampler = sampler_make();
    struct mc_core_statistics statistics = {.capacity = 0, .allocation_failures = 0};
    mc_sampler_take(&sampler, &statistics, 7);
    statistics.allocation_failures = 5;
    mc_sampler_take(&sampler, &statistics, 7);
    statistics.allocation_failures = 6;
    mc_sampler_take(&sampler, &statistics, 7);
    assert_int_equal(events_after(&sampler, 0), 1);
    assert_int_equal(told[0].kind, MC_EVENT_ROOM);
    assert_int_equal(told[0].level, MC_LOG_WARNING);
    assert_string_equal(told[0].text, "puts find no room: 5; 0.0 % of the memory is used");
    sampler_free(&sampler);
}

/* The counters of a new leadership begin at 0: what they say is not less than nothing. */
static void test_a_new_leadership(void **state)
{
    (void)state;
    struct mc_sampler sampler = sampler_make();
    struct mc_core_statistics statistics = {.evicted_objects = 50, .allocation_failures = 50};
    mc_sampler_leads(&sampler, 7, true);
    mc_sampler_take(&sampler, &statistics, 7);
    mc_sampler_leads(&sampler, 7, false);
    mc_sampler_leads(&sampler, 9, true);
    uint64_t before = events_after(&sampler, 0);
    assert_int_equal(before, 5);
    assert_string_equal(told[0].text, "this master leads, epoch 7");
    assert_string_equal(told[3].text, "this master leads no more, epoch 7");
    statistics = (struct mc_core_statistics){.evicted_objects = 0};
    mc_sampler_take(&sampler, &statistics, 9);
    assert_int_equal(events_after(&sampler, before), 0);
    sampler_free(&sampler);
}

static void test_turns(void **state)
{
    (void)state;
    struct mc_sampler sampler = sampler_make();
    struct mc_core_statistics statistics = {.capacity = 1};
    static const uint64_t turns_us[] = {0, 100, 101, 1000, 5001, 20001, 100001, 500000, 500001, 9000000};
    for (size_t i = 0; i < sizeof(turns_us) / sizeof(turns_us[0]); i++)
        mc_sampler_turn(&sampler, turns_us[i]);
    mc_sampler_take(&sampler, &statistics, 7);
    assert_int_equal(events_after(&sampler, 0), 1);
    assert_int_equal(told[0].kind, MC_EVENT_SLOW);
    assert_string_equal(told[0].text, "nobody was answered for 9000 ms");
    mc_sampler_turn(&sampler, 199999);
    mc_sampler_take(&sampler, &statistics, 7);
    assert_int_equal(events_after(&sampler, 1), 0);
    assert_int_equal(mc_history_read(sampler.history, false, 0, kept, MC_HISTORY_DAY), 2);
    static const uint64_t counts[MC_TURN_BOUNDS] = {2, 2, 0, 1, 1, 2, 2};
    assert_memory_equal(kept[0].turns, counts, sizeof(counts));
    assert_int_equal(kept[0].longest_turn_us, 9000000);
    assert_int_equal(kept[1].longest_turn_us, 199999);
    sampler_free(&sampler);
}

static void test_nobody_wants_to_know(void **state)
{
    (void)state;
    struct mc_sampler sampler = {.history = NULL};
    struct mc_core_statistics statistics = {.evicted_objects = 1};
    mc_sampler_turn(&sampler, 5);
    mc_sampler_leads(&sampler, 7, true);
    mc_sampler_take(&sampler, &statistics, 7);
    assert_int_equal(sampler.longest_us, 5); /* nothing was taken */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_evictions),
        cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_a_new_leadership),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_nobody_wants_to_know),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
