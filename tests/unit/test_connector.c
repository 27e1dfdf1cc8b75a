/* store/owner/connector: what a child that is forked meanwhile has of its connection. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/error.h"
#include "env/clock.h"
#include "env/keys.h"
#include "store/owner/connector.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define WAIT_NS (60 * UINT64_C(1000000000)) /* for what must come, on whatever machine */

static atomic_int result;

static void on_done(void *context, int fd)
{
    (void)context;
    atomic_store(&result, fd < 0 ? fd : 0);
    mc_fd_close(fd);
}

/* A master that says nothing: the connector waits for its proof, while the process forks. When it gives up, that is the
 * connection's end, though the child lives. */
static void a_child_does_not_hold_the_connection(void **state)
{
    struct mc_serve *serve = NULL;
    uint16_t port = 0;
    char address[MC_ADDRESS_MAX], error[256], byte[256];
    int life[2];
    (void)state;
    setenv("MC_AUTH_TOKEN", "me:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff", 1);
    assert_int_equal(mc_keys_check(error, sizeof(error)), 0);
    int listener = mc_tcp_listen("127.0.0.1", &port);
    assert_true(listener >= 0);
    assert_int_equal(mc_serve_create(mc_random_id(), 1, "127.0.0.1", 0, false, NULL, &serve), 0);
    assert_int_equal(mc_serve_start(serve), 0);
    mc_address_join(address, sizeof(address), "127.0.0.1", port);
    atomic_store(&result, 1);
    assert_non_null(mc_connector_start(serve, address, 2000, on_done, NULL));
    assert_int_equal(mc_socket_wait_read(listener, mc_clock_ns() + WAIT_NS, NULL), 0);
    int fd = mc_socket_accept(listener);
    assert_true(fd >= 0);
    assert_true(mc_socket_receive(fd, byte, sizeof(byte), mc_clock_ns() + WAIT_NS, NULL) > 0); /* it proves now */
    assert_int_equal(pipe(life), 0);
    pid_t child = fork();
    if (child == 0) {
        close(life[1]);
        _exit(read(life[0], byte, 1) == 0 ? 0 : 1);
    }
    assert_true(child > 0);
    close(life[0]);
    assert_int_equal(mc_socket_receive(fd, byte, sizeof(byte), mc_clock_ns() + WAIT_NS, NULL), MC_ERR_RPC_FAIL);
    assert_int_equal(kill(child, 0), 0);
    close(life[1]);
    int status = 1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    for (uint64_t until_ns = mc_clock_ns() + WAIT_NS; atomic_load(&result) == 1 && mc_clock_ns() < until_ns;)
        usleep(1000);
    assert_int_equal(atomic_load(&result), MC_ERR_RPC_TIMEOUT);
    mc_serve_destroy(serve);
    close(fd);
    close(listener);
    unsetenv("MC_AUTH_TOKEN");
    assert_int_equal(mc_keys_check(error, sizeof(error)), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_child_does_not_hold_the_connection)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
