/* The rings of samples and of events: empty, while they fill, when the oldest goes, and what is read after a number. */
#include "store/master/events.h"
#include "store/master/history.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct mc_sample samples[MC_HISTORY_DAY + 1];
static struct mc_event events_read[MC_EVENTS_MAX + 1];

static void add_samples(struct mc_history *history, uint64_t from, uint64_t count)
{
    for (uint64_t i = from; i < from + count; i++) {
        struct mc_core_statistics statistics = {.used = i, .lookups = 2 * i};
        struct mc_sample sample = {.wall_ms = 1000 * i, .number = 77};
        mc_sample_take(&sample, &statistics);
        mc_history_add(history, &sample);
    }
}

static void test_samples(void **state)
{
    (void)state;
    struct mc_history *history = mc_history_create();
    assert_int_equal(mc_history_read(history, false, 0, samples, MC_HISTORY_DAY), 0);
    assert_int_equal(mc_history_read(history, true, 5, samples, MC_HISTORY_DAY), 0);
    add_samples(history, 0, 13);
    assert_int_equal(mc_history_read(history, false, 0, samples, MC_HISTORY_DAY), 13);
    for (unsigned i = 0; i < 13; i++) {
        assert_int_equal(samples[i].number, i + 1);
        assert_int_equal(samples[i].used, i);
        assert_int_equal(samples[i].lookups, 2 * i);
    }
    assert_int_equal(mc_history_read(history, true, 0, samples, MC_HISTORY_DAY), 2);
    assert_int_equal(samples[0].used, 0);
    assert_int_equal(samples[1].used, 12);
    assert_int_equal(mc_history_read(history, false, 11, samples, MC_HISTORY_DAY), 2);
    assert_int_equal(samples[0].number, 12);
    assert_int_equal(mc_history_read(history, false, 13, samples, MC_HISTORY_DAY), 0);
    assert_int_equal(mc_history_read(history, false, UINT64_MAX, samples, MC_HISTORY_DAY), 0);
    assert_int_equal(mc_history_read(history, false, 0, samples, 3), 3);
    assert_int_equal(samples[0].number, 11); /* the newest */
    mc_history_destroy(history);
    mc_history_add(NULL, &samples[0]);
    mc_history_destroy(NULL);
}

static void test_samples_overwritten(void **state)
{
    (void)state;
    struct mc_history *history = mc_history_create();
    uint64_t all = (uint64_t)MC_HISTORY_DAY * MC_HISTORY_EVERY + 5 * MC_HISTORY_EVERY;
    add_samples(history, 0, all);
    assert_int_equal(mc_history_read(history, false, 0, samples, MC_HISTORY_DAY), MC_HISTORY_HOUR);
    assert_int_equal(samples[0].used, all - MC_HISTORY_HOUR);
    assert_int_equal(samples[MC_HISTORY_HOUR - 1].used, all - 1);
    assert_int_equal(mc_history_read(history, true, 0, samples, MC_HISTORY_DAY), MC_HISTORY_DAY);
    assert_int_equal(samples[0].used, 5 * MC_HISTORY_EVERY);
    for (unsigned i = 1; i < MC_HISTORY_DAY; i++)
        assert_int_equal(samples[i].used, samples[i - 1].used + MC_HISTORY_EVERY);
    mc_history_destroy(history);
}

static void test_events(void **state)
{
    (void)state;
    struct mc_events *events = mc_events_create();
    char text[600], name[32];
    uint64_t last = 99;
    assert_int_equal(mc_events_read(events, 0, events_read, MC_EVENTS_MAX, &last), 0);
    assert_int_equal(last, 0);
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = 0;
    mc_events_add(events, MC_TOPIC_DISK, 3, 5, text);
    mc_events_add(events, MC_TOPIC_DISK, 3, 6, text); /* the same again: one with a count */
    assert_int_equal(mc_events_read(events, 0, events_read, MC_EVENTS_MAX, &last), 1);
    assert_int_equal(last, 2);
    assert_int_equal(events_read[0].number, 2);
    assert_int_equal(events_read[0].count, 2);
    assert_int_equal(events_read[0].wall_ms, 6);
    assert_int_equal(strlen(events_read[0].text), MC_EVENT_TEXT_MAX - 1);
    for (unsigned i = 0; i < MC_EVENTS_MAX; i++) {
        snprintf(name, sizeof(name), "event %u", i);
        mc_events_add(events, MC_EVENT_LEADER, 2, i, name);
    }
    assert_int_equal(mc_events_read(events, 0, events_read, MC_EVENTS_MAX + 1, &last), MC_EVENTS_MAX);
    assert_string_equal(events_read[0].text, "event 0");
    assert_int_equal(mc_events_read(events, last - 1, events_read, MC_EVENTS_MAX, &last), 1);
    snprintf(name, sizeof(name), "event %u", MC_EVENTS_MAX - 1);
    assert_string_equal(events_read[0].text, name);
    assert_int_equal(mc_events_read(events, last, events_read, MC_EVENTS_MAX, &last), 0);
    assert_int_equal(mc_events_read(events, 0, events_read, 2, &last), 2);
    assert_string_equal(events_read[1].text, "event 1");
    mc_events_destroy(events);
    mc_events_add(NULL, MC_EVENT_SLOW, 2, 0, "nobody");
    mc_events_destroy(NULL);
}

static void test_names(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < MC_EVENT_KINDS; kind++)
        for (unsigned other = 0; other < kind; other++)
            assert_string_not_equal(mc_event_name(kind), mc_event_name(other));
    assert_string_equal(mc_event_name(MC_EVENT_KINDS), "?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_samples),
        cmocka_unit_test(test_samples_overwritten),
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
