/* Directories that answer, at once, late or never: by a stat() of our own. */
#include "env/clock.h"
#include "env/reach.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
/* cmocka wants the ones above first */
#include <cmocka.h>

static _Atomic bool hangs;
static _Atomic unsigned inside, begun;
static char last[64]; /* that was asked for; of one call at a time */

int stat(const char *path, struct stat *status)
{
    snprintf(last, sizeof(last), "%s", path);
    atomic_fetch_add(&begun, 1);
    atomic_fetch_add(&inside, 1);
    while (strncmp(path, "/hung", 5) == 0 && atomic_load(&hangs))
        usleep(1000);
    atomic_fetch_sub(&inside, 1);
    return fstatat(AT_FDCWD, path, status, 0);
}

static uint64_t in_ms(uint64_t ms)
{
    return mc_clock_ns() + ms * 1000000;
}

static int setup(void **state)
{
    (void)state;
    atomic_store(&hangs, true);
    atomic_store(&begun, 0);
    return 0;
}

/* All that were left come to their end, and are asked again. */
static int teardown(void **state)
{
    (void)state;
    atomic_store(&hangs, false);
    for (int i = 0; i < 10000 && !mc_path_answers("/hung", in_ms(20000)); i++)
        usleep(1000);
    assert_true(mc_path_answers("/hung", in_ms(20000)));
    while (atomic_load(&inside) > 0)
        usleep(1000);
    return 0;
}

/* The parent is asked where there is none yet, also of what is told with slashes behind it. */
static void what_answers(void **state)
{
    (void)state;
    static const char *const cases[][2] = {{"/", "/"},       {"/tmp", "/tmp"}, {"/tmp/", "/tmp/"}, {"/none", "/"},
                                           {"/none//", "/"}, {"none", "none"}, {"/tmp/no", "/tmp"}};
    assert_true(mc_path_answers("", 0));
    assert_int_equal(atomic_load(&begun), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_true(mc_path_answers(cases[i][0], in_ms(20000)));
        assert_string_equal(last, cases[i][1]);
    }
}

/* They wait for the same time, not one after the other: one deadline, and who answers has been heard by then. */
static void several_are_asked_at_once(void **state)
{
    static const char *const paths[] = {"/hung1", "/hung2", "/tmp", "/hung3", "", "/"};
    bool answers[6];
    (void)state;
    mc_path_answers_each(paths, 6, in_ms(1500), answers);
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(answers[i], paths[i][1] != 'h');
    assert_int_equal(atomic_load(&inside), 3);
}

/* Who tries again for ever leaves no thread each time, and hides none that does answer. */
static void as_many_are_left_as_may_be(void **state)
{
    char path[16];
    (void)state;
    for (unsigned i = 0; i < 10; i++)
        assert_false(mc_path_answers("/hung", in_ms(300)));
    assert_true(atomic_load(&inside) <= MC_REACH_AGAIN_MAX);
    assert_true(mc_path_answers("/tmp", in_ms(20000)));
    for (unsigned i = 0; i < 2 * MC_REACH_LEFT_MAX; i++) {
        snprintf(path, sizeof(path), "/hung%u", i);
        assert_false(mc_path_answers(path, in_ms(20)));
    }
    assert_true(atomic_load(&begun) <= MC_REACH_LEFT_MAX + 1);
    assert_false(mc_path_answers("/tmp", in_ms(20000))); /* not asked */
}

static void a_child_has_left_none(void **state)
{
    int status;
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); /* which has no threads in a child of a process with threads */
#endif
    for (unsigned i = 0; i < MC_REACH_AGAIN_MAX; i++)
        assert_false(mc_path_answers("/hung", in_ms(20)));
    pid_t child = fork();
    if (child == 0) {
        atomic_store(&hangs, false);
        _exit(mc_path_answers("/hung", in_ms(20000)) ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_answers, setup, teardown),
        cmocka_unit_test_setup_teardown(several_are_asked_at_once, setup, teardown),
        cmocka_unit_test_setup_teardown(as_many_are_left_as_may_be, setup, teardown),
        cmocka_unit_test_setup_teardown(a_child_has_left_none, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
