/* What a port offers is said once, where others reach it and nobody is kept out. stderr is a pipe here. */
#include "env/exposed.h"
#include "env/keys.h"
#include "env/log.h"
#include "env/socket.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
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
    return 0;
}

/* What is said of a port of that kind, bound there; *port is its number. */
static const char *said(enum mc_exposed what, const char *host, uint16_t *port)
{
    static char text[4096];
    *port = 0;
    int fd = mc_tcp_listen(host, port);
    assert_true(fd >= 0);
    mc_exposed_say(what, fd);
    close(fd);
    ssize_t length = read(read_end, text, sizeof(text) - 1);
    text[length < 0 ? 0 : length] = 0;
    return text;
}

static void each_kind_is_said_once(void **state)
{
    uint16_t port;
    char number[32], before[4096] = "";
    (void)state;
    setenv("MC_TLS_CLIENT_CA_CERT", "authority.pem", 1); /* which counts only where ports take TLS */
    for (unsigned what = 0; what < MC_EXPOSED_COUNT; what++) {
        if (what == MC_EXPOSED_CONNECTOR) /* which asks for no certificate */
            setenv("MC_TLS_CERT", "node.pem", 1);
        const char *text = said(what, what % 2 == 0 ? "0.0.0.0" : "", &port);
        snprintf(number, sizeof(number), " port %u may ", (unsigned)port);
        assert_int_equal(text[0], 'W');
        assert_non_null(strstr(text, number));
        assert_null(strstr(text, "(null)"));
        text = strstr(text, " may ");
        assert_string_not_equal(text, before); /* each offers something else */
        snprintf(before, sizeof(before), "%s", text);
        assert_string_equal(said(what, "0.0.0.0", &port), "");
        unsetenv("MC_TLS_CERT");
    }
    unsetenv("MC_TLS_CLIENT_CA_CERT");
}

/* Before it is said at all, so that nothing but the reason keeps it back. */
static void nothing_is_said_without_a_reason(void **state)
{
    char error[1024];
    uint16_t port;
    (void)state;
    assert_string_equal(said(MC_EXPOSED_REST, "127.0.0.1", &port), "");
    assert_string_equal(said(MC_EXPOSED_REST, "127.0.0.9", &port), "");
    setenv("MC_PROTECTED_MODE", "no", 1); /* who says that knows */
    assert_string_equal(said(MC_EXPOSED_REST, "0.0.0.0", &port), "");
    unsetenv("MC_PROTECTED_MODE");
    setenv("MC_TLS_CLIENT_CA_CERT", "authority.pem", 1);
    setenv("MC_TLS_CERT", "node.pem", 1);
    assert_string_equal(said(MC_EXPOSED_REST, "0.0.0.0", &port), "");
    unsetenv("MC_TLS_CERT");
    unsetenv("MC_TLS_CLIENT_CA_CERT");
    setenv("MC_AUTH_TOKEN", "me:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", 1);
    assert_int_equal(mc_keys_check(error, sizeof(error)), 0);
    assert_string_equal(said(MC_EXPOSED_REST, "0.0.0.0", &port), "");
    unsetenv("MC_AUTH_TOKEN");
    assert_int_equal(mc_keys_check(error, sizeof(error)), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nothing_is_said_without_a_reason, capture, release),
        cmocka_unit_test_setup_teardown(each_kind_is_said_once, capture, release),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
