/* The ring of KV events: numbers, what is kept, gaps, leaderships, waiting. */
#include "store/master/kv_events.h"

#include "env/clock.h"
#include "mooncake.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { CAPACITY = 1000, EPOCH = 7, NEXT_EPOCH = 9 };

static struct mc_kv_events *events;
static struct mc_kv_page *page;

static int begin(void **state)
{
    (void)state;
    events = mc_kv_events_create(CAPACITY, "pool");
    page = malloc(sizeof(*page));
    mc_kv_events_lead(events, EPOCH);
    return events == NULL || page == NULL;
}

static int end(void **state)
{
    (void)state;
    mc_kv_events_destroy(events);
    free(page);
    return 0;
}

/* Keys of all lengths: the number in decimal, and then letters. */
static struct mc_span key_of(uint64_t number, char text[MC_KEY_LENGTH_MAX + 1], size_t longest)
{
    size_t length = (size_t)(number * 37 % longest) + 1;
    char digits[24];
    int count = snprintf(digits, sizeof(digits), "%llu", (unsigned long long)number);
    for (size_t i = 0; i < length; i++)
        text[i] = i < (size_t)count ? digits[i] : (char)('a' + (number + i) % 26);
    return mc_span(text, length);
}

static void add(uint64_t number, size_t longest)
{
    char text[MC_KEY_LENGTH_MAX + 1];
    mc_kv_events_add(events, 1000 + number, number % 3 == 0 ? MC_MEDIUM_DISK : MC_MEDIUM_MEMORY, number % 2 == 0,
                     key_of(number, text, longest));
}

static void expect(const struct mc_kv_event *event, uint64_t number, size_t longest)
{
    char text[MC_KEY_LENGTH_MAX + 1];
    struct mc_span key = key_of(number, text, longest);
    assert_int_equal(event->number, number);
    assert_int_equal(event->wall_ms, 1000 + number);
    assert_int_equal(event->medium, number % 3 == 0 ? MC_MEDIUM_DISK : MC_MEDIUM_MEMORY);
    assert_int_equal(event->is_there, number % 2 == 0);
    assert_int_equal(event->key.length, key.length);
    assert_memory_equal(event->key.data, key.data, key.length);
}

/* Whoever reads now and then, and falls behind at times, sees each event that is kept exactly once, whole. */
static void each_event_is_read_once(void **state)
{
    static const size_t longest[] = {1, 20, 96, 500, MC_KEY_LENGTH_MAX};
    (void)state;
    for (size_t i = 0; i < sizeof(longest) / sizeof(longest[0]); i++) {
        uint64_t after = 0, gaps = 0;
        mc_kv_events_lead(events, EPOCH + i);
        for (uint64_t number = 1; number <= 20 * CAPACITY; number++) {
            add(number, longest[i]);
            if (number % 701 != 0)
                continue;
            for (size_t left = number * 7 % 3000;; left -= page->count) {
                mc_kv_events_read(events, EPOCH + i, after, left < 300 ? left : 300, page);
                assert_int_equal(page->mark.last, number);
                assert_true(page->mark.last - page->mark.first < CAPACITY);
                assert_int_equal(page->is_gap, after + 1 < page->mark.first);
                if (page->is_gap) {
                    assert_int_equal(page->count, 0);
                    after = page->mark.first - 1;
                    gaps++;
                    continue;
                }
                for (size_t at = 0; at < page->count; at++)
                    expect(&page->events[at], ++after, longest[i]);
                if (page->count == 0)
                    break;
            }
        }
        assert_true(gaps > 0);
    }
}

static void gaps_are_told(void **state)
{
    struct mc_kv_counts counts;
    (void)state;
    mc_kv_events_read(events, EPOCH, 0, 10, page);
    assert_true(!page->is_gap && page->count == 0 && page->mark.first == 1 && page->mark.last == 0);
    mc_kv_events_read(events, 0, 0, 10, page);
    assert_true(page->is_gap);
    mc_kv_events_read(events, EPOCH, 1, 10, page);
    assert_true(page->is_gap); /* from another life: there was none yet */
    for (uint64_t number = 1; number <= CAPACITY + 5; number++)
        add(number, 10);
    mc_kv_events_read(events, EPOCH, 4, 10, page);
    assert_true(page->is_gap && page->count == 0 && page->mark.first == 6);
    mc_kv_events_counts(events, &counts);
    assert_int_equal(counts.events, CAPACITY + 5);
    assert_int_equal(counts.missed, 1);
    mc_kv_events_read(events, EPOCH, 5, 10, page);
    assert_true(!page->is_gap && page->count == 10);
    expect(&page->events[0], 6, 10);
}

static void a_leadership_begins_anew(void **state)
{
    struct mc_kv_mark mark;
    (void)state;
    add(1, 10);
    mc_kv_events_lead(events, 0);
    mc_kv_events_mark(events, &mark);
    assert_int_equal(mark.epoch, 0);
    mc_kv_events_read(events, EPOCH, 0, 10, page);
    assert_true(page->is_gap && page->count == 0);
    mc_kv_events_lead(events, NEXT_EPOCH);
    mc_kv_events_read(events, EPOCH, 1, 10, page);
    assert_true(page->is_gap && page->mark.epoch == NEXT_EPOCH);
    mc_kv_events_read(events, NEXT_EPOCH, 0, 10, page);
    assert_true(!page->is_gap && page->count == 0);
    mc_kv_events_lead(NULL, EPOCH); /* nobody wants to know */
}

static void *wait_for_one(void *argument)
{
    bool *waited = argument;
    *waited = mc_kv_events_wait(events, EPOCH, 0, mc_clock_ns() + 60000000000u);
    return NULL;
}

static void who_waits_is_woken(void **state)
{
    enum { MORE = MC_KV_EVENTS_WAITERS + 4 };
    pthread_t threads[MORE];
    bool waited[MORE];
    (void)state;
    assert_true(mc_kv_events_wait(events, EPOCH, 0, mc_clock_ns()));  /* that time has come */
    assert_true(mc_kv_events_wait(events, EPOCH + 1, 0, UINT64_MAX)); /* of another epoch */
    for (unsigned i = 0; i < MORE; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, wait_for_one, &waited[i]), 0);
    /* Too many wait once all are there: those that do not have ended. */
    while (mc_kv_events_wait(events, EPOCH, 0, mc_clock_ns()))
        sched_yield();
    add(1, 10);
    for (unsigned i = 0; i < MORE; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_true(mc_kv_events_wait(events, EPOCH, 0, UINT64_MAX)); /* there is one */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(each_event_is_read_once, begin, end),
        cmocka_unit_test_setup_teardown(gaps_are_told, begin, end),
        cmocka_unit_test_setup_teardown(a_leadership_begins_anew, begin, end),
        cmocka_unit_test_setup_teardown(who_waits_is_woken, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
