/* A node whose host loses the address that others are told. */
#include "store_rig.h"

#include "env/log.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#define MIB (1ull << 20)

static _Atomic bool is_away;
static _Atomic unsigned looks; /* at the address */

int bind(int fd, __CONST_SOCKADDR_ARG wanted, socklen_t length)
{
    const struct sockaddr *address = wanted.__sockaddr__;
    if (address->sa_family == AF_INET)
        atomic_fetch_add(&looks, 1);
    if (atomic_load(&is_away) && address->sa_family == AF_INET) {
        errno = EADDRNOTAVAIL;
        return -1;
    }
    return (int)syscall(SYS_bind, fd, address, length);
}

/* How often it stands there. */
static unsigned lines_with(const char *path, const char *words)
{
    static char text[1 << 16];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    ssize_t length = read(fd, text, sizeof(text) - 1);
    close(fd);
    assert_true(length >= 0);
    text[length] = 0;
    unsigned count = 0;
    for (const char *at = text; (at = strstr(at, words)) != NULL; at++)
        count++;
    return count;
}

static void wait_for_line(const char *path, const char *words)
{
    for (unsigned i = 0; i < 3000 && lines_with(path, words) == 0; i++)
        usleep(10000);
    assert_int_equal(lines_with(path, words), 1);
}

/* Whoever looks next has ended that look before the one after it. */
static void wait_for_looks(unsigned count)
{
    unsigned until = atomic_load(&looks) + count;
    for (unsigned i = 0; i < 6000 && atomic_load(&looks) < until; i++)
        usleep(10000);
    assert_true(atomic_load(&looks) >= until);
}

static void test_told_once(void **state)
{
    (void)state;
    char path[] = "/tmp/test_own_address_XXXXXX";
    int log = mkstemp(path);
    assert_true(log >= 0);
    start_master(0);
    int before = mc_log_to(log);
    struct mc_store *store = open_client("", 16 * MIB);
    wait_for_looks(2);
    assert_int_equal(lines_with(path, "has no address"), 0);
    atomic_store(&is_away, true);
    wait_for_line(path, "this host has no address 127.0.0.1 any more");
    wait_for_looks(2);
    assert_int_equal(lines_with(path, "this host has no address 127.0.0.1 any more"), 1);
    atomic_store(&is_away, false);
    wait_for_line(path, "this host has the address 127.0.0.1 again");
    mc_store_close(store);
    (void)mc_log_to(before);
    close(log);
    unlink(path);
    stop(&master, SIGTERM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_told_once),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
