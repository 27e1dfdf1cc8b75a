/* env/thread: a timed wait ends at its time and at a wake-up, a sleeper ends with its thread and without one. */
#include "env/clock.h"
#include "env/thread.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>
/* cmocka wants the ones above first */
#include <cmocka.h>

struct work {
    struct mc_sleeper sleeper;
    unsigned wanted, done; /* of its lock */
};

static void *work_main(void *argument)
{
    struct work *work = argument;
    pthread_mutex_lock(&work->sleeper.lock);
    while (!work->sleeper.stop) {
        if (work->done == work->wanted)
            (void)mc_monitor_wait(&work->sleeper.lock, &work->sleeper.changed, UINT64_MAX / 2);
        else
            work->done++;
    }
    pthread_mutex_unlock(&work->sleeper.lock);
    return NULL;
}

static void a_wait_ends_at_its_time(void **state)
{
    struct mc_sleeper sleeper = {.stop = false};
    uint64_t start_ns = mc_clock_ns();
    (void)state;
    mc_monitor_init(&sleeper.lock, &sleeper.changed);
    pthread_mutex_lock(&sleeper.lock);
    assert_int_equal(mc_monitor_wait(&sleeper.lock, &sleeper.changed, 0), ETIMEDOUT);
    assert_int_equal(mc_monitor_wait(&sleeper.lock, &sleeper.changed, start_ns + 20000000), ETIMEDOUT);
    assert_true(mc_clock_ns() - start_ns >= 20000000);
    pthread_mutex_unlock(&sleeper.lock);
    mc_sleeper_end(&sleeper); /* without a thread */
}

static void a_sleeper_works_and_ends(void **state)
{
    struct work work = {.wanted = 0};
    unsigned done = 0;
    (void)state;
    mc_monitor_init(&work.sleeper.lock, &work.sleeper.changed);
    assert_int_equal(mc_sleeper_start(&work.sleeper, "sleeper", work_main, &work), 0);
    pthread_mutex_lock(&work.sleeper.lock);
    work.wanted = 3;
    pthread_cond_signal(&work.sleeper.changed);
    pthread_mutex_unlock(&work.sleeper.lock);
    for (unsigned wait = 0; wait < 5000 && done < 3; wait++) {
        usleep(1000);
        pthread_mutex_lock(&work.sleeper.lock);
        done = work.done;
        pthread_mutex_unlock(&work.sleeper.lock);
    }
    assert_int_equal(done, 3);
    mc_sleeper_end(&work.sleeper);
    assert_true(work.sleeper.stop);
}

static void *say_so(void *argument)
{
    atomic_store((atomic_bool *)argument, true);
    return NULL;
}

static void who_is_not_joined_is_detached(void **state)
{
    static atomic_bool has_run;
    (void)state;
    assert_int_equal(mc_thread_start(NULL, "alone", say_so, &has_run), 0);
    for (unsigned wait = 0; wait < 5000 && !atomic_load(&has_run); wait++)
        usleep(1000);
    assert_true(atomic_load(&has_run));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wait_ends_at_its_time),
        cmocka_unit_test(a_sleeper_works_and_ends),
        cmocka_unit_test(who_is_not_joined_is_detached),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
