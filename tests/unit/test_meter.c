/* The line that says how far long work is: what stands in it, when it is drawn, and that nothing of it stays. */
#include "env/meter.h"

#include "env/log.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const char *line_of(const struct mc_meter *meter, uint64_t done, double seconds, unsigned columns)
{
    static char line[512];
    mc_meter_line(meter, done, seconds, columns, line, sizeof(line));
    return line;
}

static void test_what_a_line_says(void **state)
{
    (void)state;
    struct mc_meter counted = {.what = "drain", .unit = "objects", .all = 400};
    assert_string_equal(line_of(&counted, 100, 10, 200),
                        "drain  [######..................]  25 %  100 of 400 objects, 10/s, 30 s left");
    assert_string_equal(line_of(&counted, 0, 10, 200),
                        "drain  [........................]   0 %  0 of 400 objects, 0.0/s, 10 s so far");
    counted.first = 90; /* what was there before says nothing of how fast it is */
    assert_non_null(strstr(line_of(&counted, 100, 10, 200), "100 of 400 objects, 1.0/s, 5 min left"));
    struct mc_meter timed = {.unit = "B", .seconds = 8, .note = "wrong 0"};
    assert_string_equal(line_of(&timed, 3 << 20, 2, 200),
                        "[######..................]  25 %  3.00 MB, 1.50 MB/s, 6 s left  wrong 0");
    struct mc_meter both = {.unit = "requests", .all = 100, .seconds = 10}; /* whichever ends first */
    assert_non_null(strstr(line_of(&both, 10, 5, 200), " 50 %  10 of 100 requests, 2.0/s, 5 s left"));
    assert_non_null(strstr(line_of(&both, 80, 5, 200), " 80 %  80 of 100 requests, 16/s, 1 s left"));
    struct mc_meter bare = {.what = "check 2 of 3: disk", .unit = ""};
    assert_string_equal(line_of(&bare, 0, 4, 200), "check 2 of 3: disk  4 s so far");
    struct mc_meter far = {.what = "/a/long/way/to/a/disk/mooncake-c.0", .unit = "B", .all = 4096};
    assert_string_equal(line_of(&far, 1024, 1, 79),
                        "...isk/mooncake-c.0  [##.......]  25 %  1.00 KB of 4.00 KB, 1.00 KB/s, 3 s left");
    assert_string_equal(line_of(&far, 1024, 1, 64), ".../mooncake-c.0   25 %  1.00 KB of 4.00 KB, 1.00 KB/s, 3 s left");
    assert_int_equal(strlen(line_of(&counted, 100, 10, 40)), 40); /* it must fit, or it cannot be wiped */
    struct mc_meter narrow = {.what = "disk\0and more", .unit = "objects", .all = 400}; /* of a step before this one */
    for (unsigned columns = 1; columns < 16; columns++)
        assert_memory_equal(line_of(&narrow, 0, 1, columns), "  0 %  0 of 400", columns);
    assert_memory_equal(line_of(&far, 1024, 1, 16), "...0   25 %  1.0", 16);
}

/* What stderr gets while `work` is at it. */
static size_t drawn(bool is_terminal, void (*work)(struct mc_meter *meter), char *text, size_t size)
{
    struct mc_meter meter;
    int ends[2], before = dup(STDERR_FILENO);
    if (is_terminal) {
        ends[0] = posix_openpt(O_RDWR | O_NOCTTY);
        assert_true(ends[0] >= 0 && grantpt(ends[0]) == 0 && unlockpt(ends[0]) == 0);
        ends[1] = open(ptsname(ends[0]), O_RDWR | O_NOCTTY);
    } else {
        assert_int_equal(pipe(ends), 0);
    }
    assert_true(before >= 0 && ends[1] >= 0 && dup2(ends[1], STDERR_FILENO) >= 0);
    mc_meter_begin(&meter);
    mc_meter_step(&meter, "", "objects", 10, 0);
    work(&meter);
    mc_meter_end(&meter);
    assert_true(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0 && dup2(before, STDERR_FILENO) >= 0);
    size_t length = 0;
    for (ssize_t got = 1; got > 0; length += got > 0 ? (size_t)got : 0) /* a terminal gives it in pieces */
        got = read(ends[0], text + length, size - 1 - length);
    text[length] = 0;
    close(ends[0]);
    close(ends[1]);
    close(before);
    return strlen(text);
}

/* Until a line stands there; for longer than it takes where there is none. */
static void await_line(struct mc_meter *meter)
{
    bool is_drawn = false;
    if (!meter->is_shown)
        usleep((MC_METER_AFTER_MS + 300) * 1000);
    while (meter->is_shown && !is_drawn) {
        usleep(10 * 1000);
        pthread_mutex_lock(&meter->drawer.lock);
        is_drawn = meter->is_drawn;
        pthread_mutex_unlock(&meter->drawer.lock);
    }
}

static void work_long(struct mc_meter *meter)
{
    mc_meter_at(meter, 5);
    await_line(meter);
    mc_meter_hold(meter);
    assert_int_equal(write(STDERR_FILENO, "else\n", 5), 5);
    mc_meter_go_on(meter);
    await_line(meter);
}
static void work_short(struct mc_meter *meter)
{
    mc_meter_at(meter, 5);
    usleep(300 * 1000);
}

static void test_it_is_drawn_after_two_seconds_and_wiped(void **state)
{
    static const char first[] = "\r[############............]  50 %  5 of 10 objects, ";
    char text[4096];
    (void)state;
    assert_true(drawn(true, work_long, text, sizeof(text)) > 0);
    assert_memory_equal(text, first, sizeof(first) - 1);
    assert_non_null(strstr(text, "\r\033[Kelse")); /* of a line of its own */
    assert_non_null(strstr(strstr(text, "else"), "5 of 10 objects"));
    assert_string_equal(text + strlen(text) - 4, "\r\033[K");
}

static void work_and_log(struct mc_meter *meter)
{
    mc_log(WARNING, "first");
    mc_meter_at(meter, 5);
    await_line(meter);
    mc_log(WARNING, "second");
    mc_meter_hold(meter);
    mc_log(WARNING, "third");
}

static void test_lines_of_the_log_are_lines_of_their_own(void **state)
{
    char text[4096];
    (void)state;
    assert_true(drawn(true, work_and_log, text, sizeof(text)) > 0);
    assert_true(text[0] == 'W' && strstr(text, "first") < strstr(text, "5 of 10"));
    const char *second = strstr(text, "\r\033[KW");
    assert_true(second != NULL && strstr(second, "second") != NULL && strstr(second, "second") < strstr(second, "\n"));
    const char *third = strstr(text, "third");
    assert_true(third != NULL && third[5] == '\r' && strcmp(third + 5, "\r\n") == 0); /* and nothing to wipe there */
    drawn(false, work_and_log, text, sizeof(text));
    assert_null(strchr(text, '\r'));
}

/* A job of a shell: at the terminal, then in the background, where the shell has its prompt. */
static void job(const char *terminal_name)
{
    struct mc_meter meter;
    pid_t shell = getpgrp();
    int terminal = open(terminal_name, O_RDWR | O_NOCTTY);
    (void)signal(SIGTTOU, SIG_IGN);
    bool is_set = terminal >= 0 && dup2(terminal, STDERR_FILENO) >= 0 && setpgid(0, 0) == 0 &&
                  tcsetpgrp(terminal, getpgrp()) == 0;
    if (!is_set)
        _exit(1);
    mc_meter_begin(&meter);
    mc_meter_step(&meter, "", "objects", 10, 0);
    await_line(&meter);
    if (tcsetpgrp(terminal, shell) != 0 || write(terminal, "\nprompt", 7) != 7)
        _exit(1);
    usleep(700 * 1000);
    mc_log(WARNING, "late");
    mc_meter_end(&meter);
    _exit(0);
}

static void test_it_is_not_drawn_over_a_prompt(void **state)
{
    char text[4096];
    int status, ends = posix_openpt(O_RDWR | O_NOCTTY);
    (void)state;
    assert_true(ends >= 0 && grantpt(ends) == 0 && unlockpt(ends) == 0);
    const char *name = ptsname(ends);
    pid_t shell = fork();
    if (shell == 0) {
        int terminal = setsid() < 0 ? -1 : open(name, O_RDWR); /* its own from now on */
        pid_t child = fork();
        if (child == 0)
            job(name);
        bool is_well = terminal >= 0 && waitpid(child, &status, 0) == child && status == 0;
        usleep(100 * 1000); /* who ends takes the terminal along */
        _exit(is_well ? 0 : 1);
    }
    size_t length = 0;
    for (ssize_t got = 1; got > 0; length += got > 0 ? (size_t)got : 0)
        got = read(ends, text + length, sizeof(text) - 1 - length);
    text[length] = 0;
    assert_true(waitpid(shell, &status, 0) == shell && status == 0);
    close(ends);
    const char *prompt = strstr(text, "prompt");
    assert_true(prompt != NULL && prompt[6] == 'W' && strstr(prompt, "late\r\n") != NULL);
    assert_string_equal(strstr(prompt, "late"), "late\r\n");
}

static void test_nobody_is_told_where_none_looks(void **state)
{
    char text[4096];
    (void)state;
    assert_int_equal(drawn(true, work_short, text, sizeof(text)), 0);
    (void)drawn(false, work_long, text, sizeof(text));
    assert_string_equal(text, "else\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_a_line_says),
        cmocka_unit_test(test_it_is_drawn_after_two_seconds_and_wiped),
        cmocka_unit_test(test_lines_of_the_log_are_lines_of_their_own),
        cmocka_unit_test(test_it_is_not_drawn_over_a_prompt),
        cmocka_unit_test(test_nobody_is_told_where_none_looks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
