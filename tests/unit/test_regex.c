/* Patterns: what they find, what is refused, and that none costs more than its budget. */
#include "base/regex.h"
#include "mooncake.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

static int search(const char *pattern, const char *text, size_t length)
{
    struct mc_regex *regex;
    assert_int_equal(mc_regex_compile(mc_span_string(pattern), &regex, NULL, 0), 0);
    uint64_t steps = 0;
    int rc = mc_regex_search(regex, mc_span(text, length), &steps);
    assert_true(steps > 0);
    mc_regex_free(regex);
    return rc;
}

static void test_searches_anywhere(void **state)
{
    static const struct {
        const char *pattern, *text;
        int found;
    } rows[] = {
        {"abc", "xxabcxx", 1},
        {"^abc", "xxabc", 0},
        {"^abc", "abcxx", 1},
        {"c$", "abc", 1},
        {"a.c", "zzabc", 1},
        {"^model_.*_7$", "model_x_7", 1},
        {"^model_.*_7$", "model_x_71", 0},
        {"(a|b)+", "ccc", 0},
        {"\\d{3}", "ab123", 1},
        {"(x)\\1", "axxb", 1},
        {".*", "", 1},
        {"a", "", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_int_equal(search(rows[i].pattern, rows[i].text, strlen(rows[i].text)), rows[i].found);
    assert_int_equal(search("b", "a\0b", 3), 1);      /* bytes, not strings */
    assert_int_equal(search("\\xff", "a\xff", 2), 1); /* nor UTF-8 */
}

static void test_refuses(void **state)
{
    static const char *const bad[] = {"(", "[", "a{2,1}", "*", "(?<n>a)(?<n>b)", "(*UTF)a", "\\", ""};
    static char longest[MC_REGEX_PATTERN_MAX + 1];
    struct mc_regex *regex = (struct mc_regex *)&regex;
    char why[160];
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        why[0] = 0;
        assert_int_equal(mc_regex_compile(mc_span_string(bad[i]), &regex, why, sizeof(why)), MC_ERR_INVALID_PARAMS);
        assert_null(regex);
        assert_true(strlen(why) > 5);
    }
    memset(longest, 'a', sizeof(longest));
    assert_int_equal(mc_regex_compile(mc_span(longest, sizeof(longest)), &regex, NULL, 0), MC_ERR_INVALID_PARAMS);
    assert_int_equal(mc_regex_compile(mc_span(longest, sizeof(longest) - 1), &regex, NULL, 0), 0);
    mc_regex_free(regex);
    mc_regex_free(NULL);
}

static void test_costly_is_given_up(void **state)
{
    static const char *const costly[] = {"(a+)+$",        "(a|aa)+$",  "(.*)*(.*)*(.*)*x",
                                         "a*a*a*a*a*a*b", "([ab]*)*c", "(?:a?){50}a{50}b"};
    static char text[MC_KEY_LENGTH_MAX];
    (void)state;
    memset(text, 'a', sizeof(text));
    text[sizeof(text) - 1] = '!';
    for (size_t i = 0; i < sizeof(costly) / sizeof(costly[0]); i++) {
        struct mc_regex *regex;
        uint64_t steps = 0;
        struct timespec start, end;
        assert_int_equal(mc_regex_compile(mc_span_string(costly[i]), &regex, NULL, 0), 0);
        clock_gettime(CLOCK_MONOTONIC, &start);
        int rc = 0;
        for (unsigned round = 0; round < 20; round++)
            rc = mc_regex_search(regex, mc_span(text, sizeof(text)), &steps);
        clock_gettime(CLOCK_MONOTONIC, &end);
        double us = ((double)(end.tv_sec - start.tv_sec) * 1e6 + (double)(end.tv_nsec - start.tv_nsec) / 1e3) / 20;
        printf("%-20s %7.1f us, %llu steps\n", costly[i], us, (unsigned long long)steps / 20);
        assert_true(rc == MC_ERR_BUSY || rc == 0);
        assert_true(steps <= 20 * (MC_REGEX_STEPS_MAX + 2));
        assert_true(us < 20000); /* generous: sanitizers, busy machines */
        mc_regex_free(regex);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_searches_anywhere),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_costly_is_given_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
