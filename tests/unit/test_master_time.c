/* Dating what a master has sent: never too early, and not late once one answer came in time. */
#include "store/owner/master_time.h"

#include "store/wire/wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#define EPOCH 7u
#define ROUND_MS (65536u * MC_FRAME_TIME_MS)

static uint16_t frame_time(uint64_t age_ms)
{
    return (uint16_t)(age_ms / MC_FRAME_TIME_MS);
}

static void unknown_masters_are_dated_by_the_reading(void **state)
{
    (void)state;
    struct mc_master_time time = {0};
    assert_int_equal(mc_master_time_of(&time, EPOCH, 100, 50000), 50000);
    assert_int_equal(mc_master_time_of(&time, 0, 0, 50000), 50000);
    mc_master_time_learn(&time, EPOCH, 0, 40000, 40001); /* it does not say */
    assert_int_equal(mc_master_time_of(&time, EPOCH, 100, 50000), 50000);
    mc_master_time_learn(&time, EPOCH, 1000, 40000, 40001);
    assert_int_equal(mc_master_time_of(&time, EPOCH + 1, 100, 50000), 50000);
    assert_int_equal(mc_master_time_of(&time, EPOCH - 1, 100, 50000), 50000);
}

static void what_is_read_late_is_dated_by_the_sending(void **state)
{
    (void)state;
    struct mc_master_time time = {0};
    /* At its age 0 it was 39,000 to 39,002 here. */
    mc_master_time_learn(&time, EPOCH, 1000, 40000, 40002);
    for (uint64_t late_ms = 0; late_ms < 600000; late_ms = late_ms * 3 + 1) {
        uint64_t sent_ms = 39001 + 1500, at_ms = mc_master_time_of(&time, EPOCH, frame_time(1500), sent_ms + late_ms);
        assert_true(at_ms >= sent_ms);
        assert_true(at_ms <= sent_ms + late_ms && at_ms <= sent_ms + 2 * MC_FRAME_TIME_MS + late_ms / 1000 + 2);
    }
    /* An answer that is itself read late: by the one before it. */
    mc_master_time_learn(&time, EPOCH, 2000, 41000, 51000);
    assert_in_range(mc_master_time_of(&time, EPOCH, frame_time(2000), 51000), 41001, 41050);
    /* Beyond a round of the time nobody can tell: then it is younger than it may be. */
    assert_in_range(mc_master_time_of(&time, EPOCH, frame_time(2000), 41001 + ROUND_MS), 41001, 41001 + ROUND_MS);
}

static void a_late_first_answer_is_mended_by_the_next(void **state)
{
    (void)state;
    struct mc_master_time time = {0};
    mc_master_time_learn(&time, EPOCH, 1000, 40000, 49000); /* it said so at 40,000 */
    assert_int_equal(mc_master_time_of(&time, EPOCH, frame_time(1000), 49000), 49000);
    mc_master_time_learn(&time, EPOCH, 10500, 49500, 49501);
    assert_in_range(mc_master_time_of(&time, EPOCH, frame_time(11000), 80000), 50000, 50060);
}

/* The master stood still between the question and the answer: it counts our silence from the answer. */
static void what_is_answered_late_is_dated_by_the_answer(void **state)
{
    (void)state;
    struct mc_master_time time = {0};
    assert_int_equal(mc_master_time_answered(&time, EPOCH, 1000, 40000), 40000);
    mc_master_time_learn(&time, EPOCH, 1001, 40000, 40002);
    assert_int_equal(mc_master_time_answered(&time, EPOCH, 1001, 40000), 40000);
    mc_master_time_learn(&time, EPOCH, 4001, 41000, 43002);
    assert_in_range(mc_master_time_answered(&time, EPOCH, 4001, 41000), 42995, 43000);
    mc_master_time_learn(&time, EPOCH, 5001, 44000, 54000); /* at once, and was read late */
    assert_in_range(mc_master_time_answered(&time, EPOCH, 5001, 44000), 44000, 44001);
    assert_int_equal(mc_master_time_answered(&time, EPOCH, 0, 55000), 55000); /* it does not say its age */
    assert_int_equal(mc_master_time_answered(&time, EPOCH + 1, 9001, 55000), 55000);
    mc_master_time_learn(&time, EPOCH, 9000, 3655000, 3657000); /* its clock stood still, too */
    assert_int_equal(mc_master_time_answered(&time, EPOCH, 9000, 3655000), 3655000);
}

/* Its machine slept, or was moved, and its clock with it. */
static void a_clock_that_stood_still_is_learned_anew(void **state)
{
    (void)state;
    struct mc_master_time time = {0};
    mc_master_time_learn(&time, EPOCH, 1000, 40000, 40002);
    mc_master_time_learn(&time, EPOCH, 2000, 3641000, 3641002);
    assert_in_range(mc_master_time_of(&time, EPOCH, frame_time(2500), 3700000), 3641500, 3641600);
    mc_master_time_learn(&time, EPOCH + 1, 10, 3700000, 3700001);
    assert_int_equal(mc_master_time_of(&time, EPOCH, frame_time(2500), 3700002), 3700002);
    assert_in_range(mc_master_time_of(&time, EPOCH + 1, frame_time(12), 3800000), 3700002, 3700200);
}

static uint64_t draw(uint64_t *random, uint64_t count)
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (*random >> 33) % count;
}

/* Days of answers and frames, some read late, of a master whose clock runs a little differently. */
static void never_before_it_was_sent(void **state)
{
    (void)state;
    uint64_t random = 1;
    for (int64_t parts = -500; parts <= 500; parts += 100) { /* of a million */
        struct mc_master_time time = {0};
        uint64_t now_ms = 1000000, born_ms = 900000;
        for (unsigned i = 0; i < 20000; i++) {
            uint64_t asked_ms = now_ms, wait_ms = draw(&random, 20) == 0 ? draw(&random, 20000) : draw(&random, 4);
            uint64_t sent_ms = asked_ms + draw(&random, wait_ms + 1), real_ms = sent_ms - born_ms;
            uint64_t age_ms = (uint64_t)((int64_t)real_ms + (int64_t)real_ms * parts / 1000000);
            now_ms = asked_ms + wait_ms;
            mc_master_time_learn(&time, EPOCH, age_ms + 1, asked_ms, now_ms);
            uint64_t read_ms = now_ms + draw(&random, 300000);
            uint64_t at_ms = mc_master_time_of(&time, EPOCH, frame_time(age_ms), read_ms);
            assert_true(at_ms >= sent_ms && at_ms <= read_ms);
            uint64_t answered_ms = mc_master_time_answered(&time, EPOCH, age_ms + 1, asked_ms);
            assert_true(answered_ms >= asked_ms && answered_ms <= sent_ms);
            if (i > 0 && draw(&random, 2) == 0)
                assert_true(at_ms <= sent_ms + 25000 + (read_ms - sent_ms) / 500);
            now_ms += draw(&random, 10000);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_masters_are_dated_by_the_reading),
        cmocka_unit_test(what_is_read_late_is_dated_by_the_sending),
        cmocka_unit_test(a_late_first_answer_is_mended_by_the_next),
        cmocka_unit_test(what_is_answered_late_is_dated_by_the_answer),
        cmocka_unit_test(a_clock_that_stood_still_is_learned_anew),
        cmocka_unit_test(never_before_it_was_sent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
