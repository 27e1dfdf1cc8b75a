/* store/owner/connector: what a child that is forked meanwhile has of its connection; the way to a master nearby. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/error.h"
#include "env/clock.h"
#include "env/keys.h"
#include "store/owner/connector.h"
#include "store/wire/proof.h"
#include "store/wire/stream.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECRET "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
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
    setenv("MC_AUTH_TOKEN", "me:" SECRET, 1);
    assert_int_equal(mc_keys_check(error, sizeof(error)), 0);
    int listener = mc_tcp_listen("127.0.0.1", &port);
    assert_true(listener >= 0);
    assert_int_equal(mc_serve_create(mc_random_id(), 1, "127.0.0.1", 0, false, NULL, &serve), 0);
    assert_int_equal(mc_serve_start(serve), 0);
    mc_address_join(address, sizeof(address), "127.0.0.1", port);
    atomic_store(&result, 1);
    assert_non_null(mc_connector_start(serve, NULL, address, 2000, on_done, NULL));
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

/* ---- a master of this machine ---- */

static bool own_find(void *context, struct mc_span name, struct mc_key *key)
{
    (void)context;
    return mc_keys_find(name, key);
}

/* One connection to that listener proves its key. */
static void prove_one(int listener)
{
    struct mc_gate gate = {.is_open = false};
    struct mc_buffer in = {0}, out = {0};
    struct mc_frame frame;
    assert_int_equal(mc_socket_wait_read(listener, mc_clock_ns() + WAIT_NS, NULL), 0);
    int fd = mc_socket_accept(listener);
    assert_true(fd >= 0);
    for (int step = 0; step < 2; step++) {
        int64_t used = mc_socket_receive_frame(fd, &in, &frame, mc_clock_ns() + WAIT_NS, NULL);
        assert_true(used > 0);
        assert_int_equal(mc_gate_take(&gate, &frame, own_find, NULL, &out), step);
        struct iovec part = {out.data, out.length};
        assert_true(step == 1 || mc_socket_send(fd, &part, 1, mc_clock_ns() + WAIT_NS) == 0);
        mc_buffer_consume(&in, (size_t)used);
    }
    mc_buffer_free(&in);
    mc_buffer_free(&out);
    close(fd);
}

static void on_family(void *context, int fd)
{
    struct sockaddr_storage own = {.ss_family = AF_UNSPEC};
    socklen_t length = sizeof(own);
    (void)context;
    if (fd >= 0)
        (void)getsockname(fd, (struct sockaddr *)&own, &length);
    atomic_store(&result, fd < 0 ? fd : own.ss_family);
    mc_fd_close(fd);
}

static int await_result(void)
{
    for (uint64_t until_ns = mc_clock_ns() + WAIT_NS; atomic_load(&result) == -1000 && mc_clock_ns() < until_ns;)
        usleep(1000);
    return atomic_load(&result);
}

/* By its unix socket, where that answers with a proof; by its address, where another has the name and says nothing. */
static void the_short_way_is_tried_first(void **state)
{
    struct mc_serve *serve = NULL;
    uint16_t port = 0;
    char address[MC_ADDRESS_MAX], near[MC_MASTER_UNIX_MAX], error[256];
    (void)state;
    setenv("MC_AUTH_TOKEN", "me:" SECRET, 1);
    assert_int_equal(mc_keys_check(error, sizeof(error)), 0);
    mc_master_unix_name(near, sizeof(near), mc_random_id());
    int far_listener = mc_tcp_listen("127.0.0.1", &port), near_listener = mc_unix_listen(near);
    assert_true(far_listener >= 0 && near_listener >= 0);
    mc_address_join(address, sizeof(address), "127.0.0.1", port);
    assert_int_equal(mc_serve_create(mc_random_id(), 1, "127.0.0.1", 0, false, NULL, &serve), 0);
    assert_int_equal(mc_serve_start(serve), 0);

    atomic_store(&result, -1000);
    assert_non_null(mc_connector_start(serve, near, address, (uint32_t)(WAIT_NS / 1000000), on_family, NULL));
    prove_one(near_listener);
    assert_int_equal(await_result(), AF_UNIX);

    atomic_store(&result, -1000);
    assert_non_null(mc_connector_start(serve, near, address, 4000, on_family, NULL));
    prove_one(far_listener); /* the name's owner accepts, as kernels do, and says nothing */
    assert_int_equal(await_result(), AF_INET);
    mc_serve_destroy(serve);
    close(near_listener);
    close(far_listener);
    unsetenv("MC_AUTH_TOKEN");
    assert_int_equal(mc_keys_check(error, sizeof(error)), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_child_does_not_hold_the_connection),
                                       cmocka_unit_test(the_short_way_is_tried_first)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
