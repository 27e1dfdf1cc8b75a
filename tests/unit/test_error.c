/* base/error: the table of codes is whole, has no twins, and an assertion ends the process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/error.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define TEST_ERROR_VALUE(name, value, text) (value),
#define TEST_ERROR_NAME(name, value, text) #name,
static const int values[] = {MC_ERROR_MAP(TEST_ERROR_VALUE)};
static const char *const names[] = {MC_ERROR_MAP(TEST_ERROR_NAME)};
#define ERROR_COUNT (sizeof(values) / sizeof(values[0]))

static void every_code_has_a_name_and_a_text(void **state)
{
    (void)state;
    for (size_t i = 0; i < ERROR_COUNT; i++) {
        assert_true(values[i] < 0);
        assert_string_equal(mc_error_name(values[i]), names[i]);
        assert_true(strlen(mc_error_text(values[i])) > 5);
        assert_null(strstr(mc_error_text(values[i]), "unknown"));
    }
}

static void no_two_codes_share_a_value_or_a_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < ERROR_COUNT; i++) {
        for (size_t j = i + 1; j < ERROR_COUNT; j++) {
            assert_int_not_equal(values[i], values[j]);
            assert_string_not_equal(names[i], names[j]);
        }
    }
}

/* Programs compare with these numbers; they may never change. */
static void values_that_users_rely_on(void **state)
{
    (void)state;
    assert_int_equal(MC_OK, 0);
    assert_int_equal(MC_ERR_NO_AVAILABLE_HANDLE, -200);
    assert_int_equal(MC_ERR_INVALID_PARAMS, -600);
    assert_int_equal(MC_ERR_REPLICA_IS_NOT_READY, -703);
    assert_int_equal(MC_ERR_OBJECT_NOT_FOUND, -704);
    assert_int_equal(MC_ERR_OBJECT_ALREADY_EXISTS, -705);
    assert_int_equal(MC_ERR_OBJECT_HAS_LEASE, -706);
    assert_int_equal(MC_ERR_TRANSFER_FAIL, -800);
    assert_int_equal(MC_ERR_RPC_FAIL, -900);
}

static void other_numbers_are_answered_too(void **state)
{
    (void)state;
    assert_string_equal(mc_error_name(0), "OK");
    assert_string_equal(mc_error_name(INT_MAX), "OK");
    assert_string_equal(mc_error_name(-2), "UNKNOWN");
    assert_string_equal(mc_error_name(INT_MIN), "UNKNOWN");
    assert_non_null(mc_error_text(INT_MIN));
    assert_non_null(mc_error_text(INT_MAX));
}

static void version_has_a_local_label(void **state)
{
    (void)state;
    int major, minor, patch, end = 0;
    assert_int_equal(sscanf(mc_version(), "%d.%d.%d+c%n", &major, &minor, &patch, &end), 3);
    assert_true(end > 0);
}

static void assertion_names_its_place_and_aborts(void **state)
{
    (void)state;
    int lane[2];
    assert_int_equal(pipe(lane), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(lane[1], 2);
        close(lane[0]);
        int one = 1;
        mc_assert(one == 1);
        mc_assert(one == 2);
        _exit(0);
    }
    close(lane[1]);
    char text[512] = {0};
    size_t length = 0;
    for (ssize_t got; length < sizeof(text) - 1 && (got = read(lane[0], text + length, sizeof(text) - 1 - length)) > 0;)
        length += (size_t)got;
    close(lane[0]);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
    assert_non_null(strstr(text, "test_error.c:"));
    assert_non_null(strstr(text, "one == 2"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_has_a_name_and_a_text), cmocka_unit_test(no_two_codes_share_a_value_or_a_name),
        cmocka_unit_test(values_that_users_rely_on),        cmocka_unit_test(other_numbers_are_answered_too),
        cmocka_unit_test(version_has_a_local_label),        cmocka_unit_test(assertion_names_its_place_and_aborts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
