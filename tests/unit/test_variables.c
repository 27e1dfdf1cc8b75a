/* base/variables: what is known, what is near to a wrong name, what Kubernetes sets for services, what is said once.
 * stderr is a pipe here. */
#include "base/variables.h"
#include "env/log.h"
#include "env/unread.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static void names_that_are_known(void **state)
{
    (void)state;
    assert_int_equal(mc_variable_find("MC_PATHS")->use, MC_VARIABLE_READ);
    assert_int_equal(mc_variable_find("MOONCAKE_CLIENT")->use, MC_VARIABLE_OTHERS);
    assert_int_equal(mc_variable_find("MC_WORKERS_PER_CTX")->use, MC_VARIABLE_NEEDLESS);
    assert_int_equal(mc_variable_find("MC_RPC_PROTOCOL")->use, MC_VARIABLE_ABSENT);
    assert_null(mc_variable_find("MC_PATH"));
    assert_null(mc_variable_find(""));
    assert_true(mc_variable_find("MOONCAKE_DFS_ANYTHING")->is_family);
    assert_true(mc_variable_find("MOONCAKE_DFS_")->is_family);
    assert_null(mc_variable_find("MOONCAKE_DFS"));
}

/* No name twice, none that a family has already said the same of, and a sentence for each. */
static void the_table_is_in_order(void **state)
{
    (void)state;
    size_t count = 0;
    for (; mc_variable_row(count) != NULL; count++) {
        const struct mc_variable_row *row = mc_variable_row(count);
        assert_true(strlen(row->text) > 3);
        if (row->is_family)
            continue;
        assert_ptr_equal(mc_variable_find(row->name), row);
        for (size_t i = 0; mc_variable_row(i) != NULL; i++)
            if (mc_variable_row(i)->is_family &&
                strncmp(mc_variable_row(i)->name, row->name, strlen(mc_variable_row(i)->name)) == 0)
                assert_true(mc_variable_row(i)->use != row->use);
    }
    assert_true(count > 200);
}

static void values(void **state)
{
    (void)state;
    unsetenv("MC_PATHS");
    assert_null(mc_variable(MC_PATHS));
    setenv("MC_PATHS", "tcp", 1);
    assert_string_equal(mc_variable(MC_PATHS), "tcp");
    unsetenv("MC_PATHS");
    assert_null(mc_variable_value(MC_VARIABLE_NONE));
    assert_string_equal(mc_variable_name(MC_VARIABLE_NCCL_IB_GID_INDEX), "NCCL_IB_GID_INDEX");
}

static void near_names(void **state)
{
    (void)state;
    static const struct {
        const char *wrong, *near;
    } cases[] = {
        {"MC_MASTER", "MOONCAKE_MASTER"},
        {"MOONCAKE_LOG_LEVEL", "MC_LOG_LEVEL"},
        {"MC_TRANSFER_TIMOUT", "MC_TRANSFER_TIMEOUT"},
        {"MOONCAKE_GLOBAL_SEGMENT_SZIE", "MOONCAKE_GLOBAL_SEGMENT_SIZE"},
        {"MC_XQ", NULL},
        {"MC_", NULL},
        {"MOONCAKE_SOMETHING_ELSE_ALTOGETHER", NULL},
        {"MC_THE_NAME_OF_THIS_VARIABLE_IS_LONGER_THAN_ANY_THAT_IS_IN_THE_TABLE", NULL},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *near = mc_variable_nearest(cases[i].wrong);
        if (cases[i].near == NULL)
            assert_null(near);
        else
            assert_string_equal(near, cases[i].near);
    }
}

static void variables_of_services_are_no_settings(void **state)
{
    (void)state;
    assert_true(mc_variable_is_setting("MOONCAKE_MASTER", "mooncake-master:50051"));
    assert_true(mc_variable_is_setting("MC_MIN_RPC_PORT", "15000"));
    assert_true(mc_variable_is_setting("MC_ANYTHING", "1"));
    assert_true(mc_variable_is_setting("MC_IB_PORT", "1"));
    assert_false(mc_variable_is_setting("MCX", "1"));
    assert_false(mc_variable_is_setting("PATH", "/bin"));
    assert_false(mc_variable_is_setting("MOONCAKE_MASTER_SERVICE_HOST", "10.0.0.1"));
    assert_false(mc_variable_is_setting("MOONCAKE_MASTER_SERVICE_PORT", "50051"));
    assert_false(mc_variable_is_setting("MOONCAKE_MASTER_SERVICE_PORT_RPC", "50051"));
    assert_false(mc_variable_is_setting("MOONCAKE_MASTER_PORT", "tcp://10.0.0.1:50051"));
    assert_false(mc_variable_is_setting("MOONCAKE_MASTER_PORT_50051_TCP", "tcp://10.0.0.1:50051"));
    assert_false(mc_variable_is_setting("MOONCAKE_MASTER_PORT_50051_TCP_ADDR", "10.0.0.1"));
}

/* What a process with this environment says when it asks twice; once is enough for each process, so in a child. */
static void said(char *text, size_t size, void (*first)(void), const char *const *pairs)
{
    int pipes[2], status;
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        clearenv();
        for (; *pairs != NULL; pairs += 2)
            setenv(pairs[0], pairs[1], 1);
        dup2(pipes[1], STDERR_FILENO);
        first();
        mc_unread_tell();
        _exit(0);
    }
    close(pipes[1]);
    size_t length = 0;
    for (ssize_t got; (got = read(pipes[0], text + length, size - 1 - length)) > 0;)
        length += (size_t)got;
    text[length] = 0;
    close(pipes[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static size_t lines(const char *text)
{
    size_t count = 0;
    for (; (text = strchr(text, '\n')) != NULL; text++)
        count++;
    return count;
}

static void each_is_said_once(void **state)
{
    (void)state;
    char text[8192];
    static const char *const pairs[] = {"MC_TRANSFER_TIMOUT",
                                        "9",
                                        "MC_WORKERS_PER_CTX",
                                        "4",
                                        "MOONCAKE_NVME_KV_NSID",
                                        "1",
                                        "MC_PATHS",
                                        "tcp",
                                        "MOONCAKE_CLIENT",
                                        "x",
                                        "MC_NOBODY_SETS_THIS",
                                        "",
                                        "MOONCAKE_MASTER_PORT_50051_TCP",
                                        "tcp://10.0.0.1:50051",
                                        "HOME",
                                        "/",
                                        NULL};
    said(text, sizeof(text), mc_unread_tell, pairs);
    assert_int_equal(lines(text), 3);
    assert_non_null(
        strstr(text, "MC_TRANSFER_TIMOUT is not known and changes nothing; did you mean MC_TRANSFER_TIMEOUT?"));
    assert_non_null(strstr(text, "MC_WORKERS_PER_CTX changes nothing here: links"));
    assert_non_null(strstr(text, "MOONCAKE_NVME_KV_NSID changes nothing here: NVMe-oF is not here"));
    said(text, sizeof(text), mc_unread_told, pairs);
    assert_string_equal(text, "");
    static const char *const none[] = {NULL};
    said(text, sizeof(text), mc_unread_tell, none);
    assert_string_equal(text, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_that_are_known),
        cmocka_unit_test(the_table_is_in_order),
        cmocka_unit_test(values),
        cmocka_unit_test(near_names),
        cmocka_unit_test(variables_of_services_are_no_settings),
        cmocka_unit_test(each_is_said_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
