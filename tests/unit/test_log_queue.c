/* Lines that go to regular files whose file system hangs cost nobody's time, not at the end of the process either. */
#include "directory.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "env/log_queue.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define THREADS 4
#define LINES 400 /* of each: more than the ring takes */

static _Atomic bool is_hung;
static _Atomic int hung_fd = -1, hanging;

ssize_t write(int fd, const void *bytes, size_t length)
{
    bool hangs = fd == hung_fd && is_hung;
    hanging += hangs;
    while (fd == hung_fd && is_hung)
        usleep(1000);
    hanging -= hangs;
    return syscall(SYS_write, fd, bytes, length);
}

static char path[] = "/tmp/test_log_queue_XXXXXX";
static char text[2 * MC_LOG_QUEUE_BYTES];
static int file, before;

static int begin(void **state)
{
    (void)state;
    strcpy(strchr(path, '_') + strlen("_log_queue_"), "XXXXXX");
    file = mkostemp(path, O_APPEND | O_CLOEXEC);
    if (file < 0)
        return -1;
    hung_fd = file;
    before = mc_log_to(file);
    return 0;
}

static int end(void **state)
{
    (void)state;
    is_hung = false;
    (void)mc_log_to(before);
    hung_fd = -1;
    close(file);
    return unlink(path);
}

static const char *contents(void)
{
    ssize_t length = pread(file, text, sizeof(text) - 1, 0);
    text[length < 0 ? 0 : length] = 0;
    return text;
}

static unsigned count(const char *of)
{
    unsigned found = 0;
    for (const char *at = contents(); (at = strstr(at, of)) != NULL; at += strlen(of))
        found++;
    return found;
}

static void hang(void)
{
    is_hung = true;
    mc_log(INFO, "the line that hangs");
    for (unsigned i = 0; hanging == 0 && i < 5000; i++)
        usleep(1000);
    assert_int_equal(hanging, 1);
}

static void lines_are_there_when_the_caller_goes_on(void **state)
{
    (void)state;
    unsigned there = 0;
    for (unsigned i = 0; i < 50; i++) {
        char line[32];
        snprintf(line, sizeof(line), "] line %u\n", i);
        mc_log(INFO, "line %u", i);
        there += count(line);
        usleep(2000); /* who has waited in vain has those behind it wait no more, until the thread is there again */
    }
    assert_true(there > 0); /* it waits for some ms, and a busy machine may take longer */
    assert_true(mc_log_flush(5000));
    assert_int_equal(count("] line "), 50);
}

static void *many_lines(void *argument)
{
    static const char filler[] = "................................................................................";
    for (unsigned i = 0; i < LINES; i++)
        mc_log(INFO, "of %c line %u %s%s%s", *(const char *)argument, i, filler, filler, filler);
    return NULL;
}

static void a_file_system_that_hangs_costs_lines_and_no_time(void **state)
{
    (void)state;
    static const char names[THREADS + 1] = "abcd";
    pthread_t threads[THREADS];
    unsigned kept = 0, lost = 0;
    hang();
    uint64_t begun_ms = mc_clock_ms();
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, many_lines, (void *)&names[i]), 0);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_true(mc_clock_ms() - begun_ms < 2000);
    assert_false(mc_log_flush(50));
    assert_int_equal(count("line"), 0);
    is_hung = false;
    assert_true(mc_log_flush(10000));
    assert_int_equal(count("] the line that hangs\n"), 1);
    for (unsigned i = 0; i < THREADS; i++) { /* those that were kept stand in order */
        char form[16];
        const char *at = contents();
        int last = -1;
        snprintf(form, sizeof(form), "] of %c line ", names[i]);
        for (; (at = strstr(at, form)) != NULL; at += strlen(form), kept++) {
            int number = atoi(at + strlen(form));
            assert_true(number > last);
            last = number;
        }
    }
    assert_in_range(kept, 500, THREADS * LINES - 100);
    mc_log(INFO, "and on");
    mc_log(INFO, "and on");
    assert_true(mc_log_flush(5000));
    assert_int_equal(count("] and on\n"), 2);
    /* Said more than once: where a line did not fit, this one may. */
    for (const char *at = contents(); (at = strstr(at, " lines are lost: their file did not take them\n")) != NULL;) {
        const char *number = at++;
        while (number[-1] != ' ')
            number--;
        lost += (unsigned)atoi(number);
    }
    assert_int_equal(kept + lost, THREADS * LINES);
}

/* 0: ended within the time by itself, or by that signal. */
static void assert_ends(pid_t child, int signal, unsigned most_ms)
{
    int status = 0;
    pid_t ended = 0;
    for (unsigned ms = 0; ended == 0 && ms < most_ms; ms += 10) {
        ended = waitpid(child, &status, WNOHANG);
        usleep(10000);
    }
    if (ended == 0)
        kill(child, SIGKILL);
    assert_int_equal(ended, child);
    assert_true(signal == 0 ? WIFEXITED(status) && WEXITSTATUS(status) == 0
                            : WIFSIGNALED(status) && WTERMSIG(status) == signal);
}

static void a_child_has_its_own_lines_only(void **state)
{
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); /* it knows of no threads in a child of one that had some */
#endif
    hang();
    mc_log(INFO, "of the parent");
    pid_t child = fork();
    if (child == 0) {
        is_hung = false;
        mc_log(INFO, "of the child");
        _exit(mc_log_flush(5000) && count("of the child") == 1 && count("of the parent") == 0 ? 0 : 1);
    }
    assert_ends(child, 0, 10000);
    child = fork(); /* and where it hangs for the child, too */
    if (child == 0) {
        uint64_t begun_ms = mc_clock_ms();
        mc_log(INFO, "of the second child");
        mc_log(INFO, "of the second child");
        _exit(mc_clock_ms() - begun_ms < 500 && !mc_log_flush(10) ? 0 : 1);
    }
    assert_ends(child, 0, 10000);
    is_hung = false;
    assert_true(mc_log_flush(5000));
    assert_int_equal(count("of the parent"), 1);
    assert_int_equal(count("the line that hangs"), 1);
}

static void *go_on_later(void *unused)
{
    (void)unused;
    usleep(200000);
    is_hung = false;
    return NULL;
}

static void the_end_waits_for_lines_and_not_for_ever(void **state)
{
    (void)state;
    for (unsigned goes_on = 0; goes_on < 2; goes_on++) {
        assert_true(mc_log_thread_end());
        pid_t child = fork();
        if (child == 0) {
            pthread_t thread;
            hang();
            mc_log(INFO, "the last one");
            if (goes_on == 1 && (pthread_create(&thread, NULL, go_on_later, NULL) != 0 || pthread_detach(thread) != 0))
                _exit(1);
            exit(0);
        }
        assert_ends(child, 0, 5000);
        assert_int_equal(count("the last one"), goes_on);
    }
}

static void an_assertion_is_said_and_ends_the_process(void **state)
{
    (void)state;
    int real_stderr = dup(STDERR_FILENO);
    assert_true(real_stderr >= 0 && dup2(file, STDERR_FILENO) >= 0);
    for (unsigned hangs = 0; hangs < 2; hangs++) {
        assert_true(mc_log_thread_end());
        pid_t child = fork();
        if (child == 0) {
            struct rlimit none = {0, 0};
            setrlimit(RLIMIT_CORE, &none);
            signal(SIGABRT, SIG_DFL);
            (void)mc_log_to(STDERR_FILENO);
            hung_fd = STDERR_FILENO;
            is_hung = hangs == 1;
            mc_log(INFO, "before it %u", hangs);
            mc_assert(hangs == 2);
        }
        assert_ends(child, SIGABRT, 8000);
    }
    dup2(real_stderr, STDERR_FILENO);
    close(real_stderr);
    assert_int_equal(count("before it"), 1);
    assert_int_equal(count("assertion failed: hangs == 2\n"), 1);
    assert_true(strstr(text, "before it") < strstr(text, "assertion failed"));
}

static void the_thread_ends_and_comes_again(void **state)
{
    (void)state;
    mc_log(INFO, "one");
    unsigned threads = count_of("/proc/self/task");
    assert_true(mc_log_thread_end());
    for (unsigned i = 0; i < 5000 && count_of("/proc/self/task") >= threads; i++)
        usleep(1000); /* the kernel has it a little longer */
    assert_in_range(count_of("/proc/self/task"), 0, threads - 1);
    mc_log(INFO, "two");
    hang();
    assert_false(mc_log_thread_end());
    is_hung = false;
    assert_true(mc_log_thread_end());
    mc_log(INFO, "three");
    assert_true(mc_log_flush(5000));
    assert_true(count("] one\n") == 1 && count("] two\n") == 1 && count("] three\n") == 1);
}

static void a_pipe_needs_no_thread(void **state)
{
    (void)state;
    int pipes[2];
    char line[256] = "";
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    (void)mc_log_to(pipes[1]);
    assert_true(mc_log_thread_end());
    unsigned threads = count_of("/proc/self/task");
    mc_log(INFO, "by a pipe");
    assert_in_range(count_of("/proc/self/task"), 0, threads);
    assert_true(read(pipes[0], line, sizeof(line) - 1) > 0);
    assert_non_null(strstr(line, "] by a pipe\n"));
    (void)mc_log_to(file);
    close(pipes[0]);
    close(pipes[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(lines_are_there_when_the_caller_goes_on, begin, end),
        cmocka_unit_test_setup_teardown(a_file_system_that_hangs_costs_lines_and_no_time, begin, end),
        cmocka_unit_test_setup_teardown(a_child_has_its_own_lines_only, begin, end),
        cmocka_unit_test_setup_teardown(the_end_waits_for_lines_and_not_for_ever, begin, end),
        cmocka_unit_test_setup_teardown(an_assertion_is_said_and_ends_the_process, begin, end),
        cmocka_unit_test_setup_teardown(the_thread_ends_and_comes_again, begin, end),
        cmocka_unit_test_setup_teardown(a_pipe_needs_no_thread, begin, end),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
