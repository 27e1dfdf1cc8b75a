/* Log lines: form, levels, limits. stderr is a pipe here. */
#include "env/log.h"

#include <fcntl.h>
#include <regex.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static int real_stderr, read_end;

static int capture(void **state)
{
    int pipes[2];
    (void)state;
    real_stderr = dup(STDERR_FILENO);
    if (real_stderr < 0 || pipe2(pipes, O_NONBLOCK) != 0 || dup2(pipes[1], STDERR_FILENO) < 0)
        return -1;
    close(pipes[1]);
    read_end = pipes[0];
    return 0;
}

static int release(void **state)
{
    (void)state;
    dup2(real_stderr, STDERR_FILENO);
    close(real_stderr);
    close(read_end);
    mc_log_set_level(MC_LOG_INFO);
    return 0;
}

static const char *captured(void)
{
    static char text[8192];
    ssize_t length = read(read_end, text, sizeof(text) - 1);
    text[length < 0 ? 0 : length] = 0;
    return text;
}

static void a_line_has_the_form_of_glog(void **state)
{
    (void)state;
    regex_t form;
    assert_int_equal(
        regcomp(&form, "^I[0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{6} +[0-9]+ test_log\\.c:[0-9]+\\] seven 7\n$",
                REG_EXTENDED),
        0);
    mc_log(INFO, "seven %d", 7);
    assert_int_equal(regexec(&form, captured(), 0, NULL, 0), 0);
    regfree(&form);
}

static void a_line_of_json_is_one_object(void **state)
{
    static const struct {
        const char *message, *wanted;
    } cases[] = {
        {"plain", "plain"},
        {"a \"b\" \\", "a \\\"b\\\" \\\\"},
        {"one\ntwo\x1b[1m\x7f", "one\\u000atwo\\u001b[1m\\u007f"},
        {"\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80", "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80"},
        {"\xc2\x9b", "\\u009b"},                              /* of C1 */
        {"\xff \xc3", "\\ufffd \\ufffd"},                     /* no UTF-8; cut short */
        {"\xc0\xaf", "\\ufffd\\ufffd"},                       /* longer than need be */
        {"\xed\xa0\x80", "\\ufffd\\ufffd\\ufffd"},            /* half of a pair */
        {"\xf4\x90\x80\x80", "\\ufffd\\ufffd\\ufffd\\ufffd"}, /* beyond the last */
    };
    (void)state;
    mc_log_set_json(true);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char end[256];
        regex_t head;
        assert_int_equal(regcomp(&head,
                                 "^\\{\"time\":\"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{6}Z\","
                                 "\"level\":\"WARNING\",\"thread\":[0-9]+,\"file\":\"test_log\\.c\",\"line\":[0-9]+,",
                                 REG_EXTENDED),
                         0);
        snprintf(end, sizeof(end), ",\"message\":\"%s\"}\n", cases[i].wanted);
        mc_log(WARNING, "%s", cases[i].message);
        const char *line = captured();
        assert_int_equal(regexec(&head, line, 0, NULL, 0), 0);
        assert_string_equal(strstr(line, ",\"message\""), end);
        regfree(&head);
    }
    /* One that is too long is cut between characters, and is whole JSON. */
    char text[4096] = "";
    for (size_t i = 0; i + 3 < sizeof(text) - 1; i += 3)
        memcpy(text + i, "\xe2\x82\xac", 4);
    mc_log(INFO, "%s", text);
    const char *line = captured();
    size_t length = strlen(line);
    assert_in_range(length, 2000, 2048);
    assert_string_equal(line + length - 3, "\"}\n");
    assert_memory_equal(line + length - 6, "\xe2\x82\xac", 3);
    mc_log_set_json(false);
}

static void levels_filter(void **state)
{
    (void)state;
    enum mc_log_level level;
    mc_log(DEBUG, "hidden");
    assert_string_equal(captured(), "");
    mc_log_set_level(MC_LOG_TRACE);
    mc_log(DEBUG, "seen");
    assert_non_null(strstr(captured(), "seen"));
    assert_true(mc_log_parse_level("warning", &level) && level == MC_LOG_WARNING);
    assert_true(mc_log_parse_level("0", &level) && level == MC_LOG_TRACE);
    assert_false(mc_log_parse_level("loud", &level));
    assert_false(mc_log_parse_level("9", &level));
}

static void a_long_line_is_cut_and_still_ends(void **state)
{
    (void)state;
    char text[5000];
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = 0;
    mc_log(ERROR, "%s", text);
    const char *line = captured();
    assert_true(strlen(line) < 2049);
    assert_int_equal(line[strlen(line) - 1], '\n');
}

/* Names come from peers: one must not look like another line, nor move a terminal's cursor. */
static void control_characters_are_escaped(void **state)
{
    (void)state;
    mc_log(INFO, "member %s joins", "a\nE1126 \x1b[2J\r\x7f\xc2\x9b \xc3\xa9 \xc2");
    const char *line = captured();
    assert_non_null(strstr(line, "] member a\\x0aE1126 \\x1b[2J\\x0d\\x7f\\xc2\x9b \xc3\xa9 \xc2 joins\n"));
    assert_ptr_equal(strchr(line, '\n'), line + strlen(line) - 1);
}

static void an_escaped_line_is_cut_and_still_ends(void **state)
{
    (void)state;
    char text[2000];
    memset(text, '\n', sizeof(text) - 1);
    text[sizeof(text) - 1] = 0;
    mc_log(ERROR, "%s", text);
    const char *line = captured();
    size_t length = strlen(line);
    assert_true(length > 2000 && length < 2049);
    assert_string_equal(line + length - 5, "\\x0a\n");
    assert_ptr_equal(strchr(line, '\n'), line + length - 1);
}

static void a_limited_line_counts_what_it_holds_back(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++)
        mc_log_limited(WARNING, "again");
    const char *lines = captured(), *first = strstr(lines, "again");
    assert_non_null(first);
    assert_null(strstr(first + 1, "again"));
    struct mc_log_limit limit = {.next_ms = 0, .held_back = 41};
    uint64_t held_back;
    assert_true(mc_log_allowed(&limit, &held_back));
    assert_int_equal(held_back, 41);
    assert_false(mc_log_allowed(&limit, &held_back));
    assert_int_equal(limit.held_back, 1);
}

/* The pipe blocks, as that of a service manager does; with a write that waited this test would never end. */
static void a_reader_that_stands_still_costs_lines_and_no_time(void **state)
{
    (void)state;
    static char all[1 << 17];
    size_t length = 0;
    int flags = fcntl(STDERR_FILENO, F_GETFL);
    assert_int_equal(fcntl(STDERR_FILENO, F_SETFL, flags & ~O_NONBLOCK), 0);
    for (int i = 0; i < 3000; i++)
        mc_log(INFO, "line %d of some that nobody reads", i);
    for (ssize_t got = 1; got > 0; length += got > 0 ? (size_t)got : 0)
        got = read(read_end, all + length, sizeof(all) - 1 - length);
    all[length] = 0;
    int kept = 0;
    for (const char *at = all; (at = strstr(at, " of some that nobody reads\n")) != NULL; at++)
        kept++;
    assert_in_range(kept, 100, 2999);
    mc_log(INFO, "after");
    char expected[64];
    snprintf(expected, sizeof(expected), "] %d lines are lost: nobody has read them\n", 3000 - kept);
    const char *said = captured();
    assert_int_equal(said[0], 'W');
    assert_non_null(strstr(said, expected));
    assert_non_null(strstr(said, "] after\n"));
    mc_log(INFO, "again");
    assert_null(strstr(captured(), "lost"));
}

static void lines_go_where_they_are_sent(void **state)
{
    (void)state;
    char text[512];
    int pipes[2];
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    assert_int_equal(mc_log_to(pipes[1]), STDERR_FILENO);
    mc_log(INFO, "there");
    ssize_t length = read(pipes[0], text, sizeof(text) - 1);
    assert_true(length > 0);
    text[length] = 0;
    assert_non_null(strstr(text, "] there\n"));
    close(pipes[1]);
    mc_log(INFO, "nowhere"); /* the descriptor is closed: stderr has it */
    assert_non_null(strstr(captured(), "] nowhere\n"));
    close(pipes[0]);
    assert_int_equal(mc_log_to(STDERR_FILENO), pipes[1]);
    mc_log(INFO, "here");
    assert_non_null(strstr(captured(), "] here\n"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_line_has_the_form_of_glog, capture, release),
        cmocka_unit_test_setup_teardown(a_line_of_json_is_one_object, capture, release),
        cmocka_unit_test_setup_teardown(levels_filter, capture, release),
        cmocka_unit_test_setup_teardown(a_long_line_is_cut_and_still_ends, capture, release),
        cmocka_unit_test_setup_teardown(control_characters_are_escaped, capture, release),
        cmocka_unit_test_setup_teardown(an_escaped_line_is_cut_and_still_ends, capture, release),
        cmocka_unit_test_setup_teardown(a_limited_line_counts_what_it_holds_back, capture, release),
        cmocka_unit_test_setup_teardown(a_reader_that_stands_still_costs_lines_and_no_time, capture, release),
        cmocka_unit_test_setup_teardown(lines_go_where_they_are_sent, capture, release),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
