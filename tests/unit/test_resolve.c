/* Names of hosts, with a name server of the test's own: slow, silent, wrong, moving. */
#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "env/resolve.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
/* cmocka wants the ones above first */
#include <cmocka.h>

/* What the name server says of every name; the address of "10.0.0.N" for the `last` N. */
static _Atomic unsigned asked, asking, asking_most, last = 1;
static _Atomic bool is_silent;
static _Atomic int failure;
static _Atomic unsigned takes_ms;
static _Atomic uint64_t asked_ms; /* it had begun by then */

int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **found)
{
    struct answer {
        struct addrinfo info;
        struct sockaddr_in address;
    } * one;
    struct in6_addr v6;
    (void)port;
    if ((hints->ai_flags & AI_NUMERICHOST) != 0 && inet_pton(AF_INET6, host, &v6) != 1)
        return EAI_NONAME;
    if ((hints->ai_flags & AI_NUMERICHOST) == 0) {
        unsigned now = atomic_fetch_add(&asking, 1) + 1;
        if (strstr(host, "known") == NULL) /* lookups of the silent server may end during a later test */
            atomic_fetch_add(&asked, 1);
        if (now > atomic_load(&asking_most))
            atomic_store(&asking_most, now);
        usleep(atomic_load(&takes_ms) * 1000);
        if (now == 1)
            atomic_store(&asked_ms, mc_clock_ms());
        while (atomic_load(&is_silent))
            usleep(1000);
        atomic_fetch_sub(&asking, 1);
        if (atomic_load(&failure) != 0)
            return atomic_load(&failure);
    }
    one = calloc(1, sizeof(*one));
    one->address.sin_family = AF_INET;
    one->address.sin_addr.s_addr = htonl(0x7f000000u + atomic_load(&last)); /* 127.0.0.N */
    one->info = (struct addrinfo){.ai_family = AF_INET,
                                  .ai_socktype = SOCK_STREAM,
                                  .ai_addrlen = sizeof(one->address),
                                  .ai_addr = (struct sockaddr *)(void *)&one->address};
    *found = &one->info;
    return 0;
}

void freeaddrinfo(struct addrinfo *found)
{
    free(found);
}

static uint64_t in_ms(uint64_t ms)
{
    return mc_clock_ns() + ms * 1000000;
}

static int setup(void **state)
{
    (void)state;
    while (atomic_load(&asking) > 0)
        usleep(1000);
    atomic_store(&asked, 0);
    atomic_store(&asking_most, 0);
    atomic_store(&last, 1);
    atomic_store(&failure, 0);
    atomic_store(&takes_ms, 0);
    return 0;
}

static unsigned last_of(const struct mc_resolved *resolved)
{
    assert_int_equal(resolved->count, 1);
    return ntohl(resolved->addresses[0].address.v4.sin_addr.s_addr) & 0xff;
}

static void numbers_ask_nobody(void **state)
{
    struct mc_resolved resolved;
    (void)state;
    assert_int_equal(mc_resolve("192.168.3.4", 99, 0, &resolved), 0);
    assert_int_equal(resolved.count, 1);
    assert_int_equal(resolved.addresses[0].length, sizeof(struct sockaddr_in));
    assert_int_equal(ntohs(resolved.addresses[0].address.v4.sin_port), 99);
    assert_int_equal(ntohl(resolved.addresses[0].address.v4.sin_addr.s_addr), 0xc0a80304);
    assert_int_equal(mc_resolve("::1", 99, 0, &resolved), 0);
    mc_resolve_doubt("192.168.3.4");
    assert_int_equal(atomic_load(&asked), 0);
}

static void a_name_is_asked_for_once(void **state)
{
    struct mc_resolved resolved;
    (void)state;
    for (int i = 0; i < 100; i++) {
        assert_int_equal(mc_resolve("once", (uint16_t)(i + 1), in_ms(2000), &resolved), 0);
        assert_int_equal(last_of(&resolved), 1);
        assert_int_equal(ntohs(resolved.addresses[0].address.v4.sin_port), i + 1);
        assert_false(resolved.is_old);
    }
    assert_int_equal(atomic_load(&asked), 1);
}

static void *resolve_shared(void *argument)
{
    struct mc_resolved resolved;
    *(int *)argument = mc_resolve("shared", 1, in_ms(5000), &resolved);
    return NULL;
}

static void calls_share_a_lookup(void **state)
{
    pthread_t threads[50];
    int results[50];
    (void)state;
    atomic_store(&takes_ms, 100);
    for (int i = 0; i < 50; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, resolve_shared, &results[i]), 0);
    for (int i = 0; i < 50; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(results[i], 0);
    }
    assert_int_equal(atomic_load(&asked), 1);
}

static void a_silent_server_holds_nobody_beyond_the_deadline(void **state)
{
    struct mc_resolved resolved;
    (void)state;
    assert_int_equal(mc_resolve("known", 1, in_ms(2000), &resolved), 0);
    atomic_store(&is_silent, true);
    uint64_t start_ns = mc_clock_ns();
    assert_int_equal(mc_resolve("unknown", 1, in_ms(150), &resolved), MC_ERR_RPC_TIMEOUT);
    assert_int_equal(errno, ETIMEDOUT);
    assert_in_range(mc_clock_ns() - start_ns, 140000000u, 1000000000u);
    start_ns = mc_clock_ns();
    assert_int_equal(mc_tcp_connect("unknown:5", in_ms(100)), MC_ERR_RPC_TIMEOUT);
    for (int i = 0; i < 100; i++) { /* names that nobody knows, more than there may be threads */
        char host[32];
        snprintf(host, sizeof(host), "unknown-%d", i);
        assert_int_equal(mc_resolve(host, 1, in_ms(2), &resolved), MC_ERR_RPC_TIMEOUT);
    }
    start_ns = mc_clock_ns();
    mc_resolve_doubt("known");
    assert_int_equal(mc_resolve("known", 1, in_ms(2000), &resolved), 0); /* does not wait */
    assert_true(mc_clock_ns() - start_ns < 100000000u);
    assert_true(atomic_load(&asking_most) <= MC_RESOLVE_THREADS_MAX);
    atomic_store(&is_silent, false);
    assert_int_equal(mc_resolve("unknown", 1, in_ms(5000), &resolved), 0);
    assert_int_equal(mc_resolve("unknown-99", 1, in_ms(5000), &resolved), 0);
}

static void a_name_that_is_not_there_is_said_so(void **state)
{
    struct mc_resolved resolved;
    (void)state;
    atomic_store(&failure, EAI_NONAME);
    assert_int_equal(mc_resolve("nobody", 1, in_ms(2000), &resolved), MC_ERR_RPC_FAIL);
    assert_int_equal(errno, ENONET);
    assert_int_equal(mc_tcp_connect("nobody:5", in_ms(2000)), MC_ERR_RPC_FAIL);
    assert_int_equal(errno, ENONET);
    assert_int_equal(atomic_load(&asked), 1); /* not at every call */
    atomic_store(&failure, 0);
    usleep((MC_RESOLVE_AGAIN_MS + 50) * 1000);
    assert_int_equal(mc_resolve("nobody", 1, in_ms(2000), &resolved), 0);
    assert_int_equal(atomic_load(&asked), 2);
}

/* Who has moved is found at the second try; who cannot be asked for is where he was. */
static void a_name_that_moves_is_followed(void **state)
{
    struct mc_resolved resolved;
    uint16_t port = 0;
    (void)state;
    atomic_store(&last, 9); /* listening takes a name, too */
    int listener = mc_tcp_listen("127.0.0.9", &port);
    atomic_store(&last, 1);
    assert_true(listener >= 0);
    char address[MC_ADDRESS_MAX];
    mc_address_join(address, sizeof(address), "mover", port);
    assert_int_equal(mc_tcp_connect(address, in_ms(2000)), MC_ERR_RPC_FAIL);
    assert_int_equal(errno, ECONNREFUSED); /* by the host that has the name now */
    atomic_store(&last, 9);
    usleep((MC_RESOLVE_TRUST_MS + 50) * 1000);
    assert_int_equal(mc_tcp_connect(address, in_ms(2000)), MC_ERR_RPC_FAIL);
    assert_int_equal(errno, EHOSTDOWN); /* it may be another host's name by now */
    int fd = -1;
    for (int i = 0; i < 100 && fd < 0; i++) {
        usleep(10000);
        fd = mc_tcp_connect(address, in_ms(2000));
    }
    assert_true(fd >= 0);
    close(fd);
    close(listener);
    atomic_store(&failure, EAI_AGAIN);
    usleep((MC_RESOLVE_AGAIN_MS + 50) * 1000);
    mc_resolve_doubt("mover");
    usleep(100000);
    assert_int_equal(mc_resolve("mover", 1, in_ms(2000), &resolved), 0);
    assert_int_equal(last_of(&resolved), 9);
}

/* What was on its way for long is as old as the question: the name may have moved meanwhile. */
static void an_answer_is_as_old_as_its_lookup(void **state)
{
    struct mc_resolved resolved;
    (void)state;
    atomic_store(&takes_ms, MC_RESOLVE_TRUST_MS + 100);
    assert_int_equal(mc_resolve("tardy", 1, in_ms(20000), &resolved), 0);
    assert_true(resolved.is_old);
    assert_int_equal(mc_resolve("tardy", 1, in_ms(20000), &resolved), 0);
    assert_true(resolved.is_old);
    assert_int_equal(mc_resolve_age_ms("tardy", atomic_load(&asked_ms)),
                     0); /* asked before that, though it came after */
    atomic_store(&takes_ms, 0);
    usleep((MC_RESOLVE_AGAIN_MS + 50) * 1000);
    uint64_t since_ms = mc_clock_ms();
    usleep(2000);
    for (int i = 0; i < 1000 && mc_resolve_age_ms("tardy", since_ms) == 0; i++)
        usleep(10000);
    assert_true(mc_resolve_age_ms("tardy", since_ms) > 0);
    assert_int_equal(mc_resolve("tardy", 1, in_ms(20000), &resolved), 0);
    assert_true(atomic_load(&asked) >= 2); /* more where this thread was not let run for long */
}

static void a_child_asks_for_itself(void **state)
{
    struct mc_resolved resolved;
    int status;
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); /* which has no threads in a child of a process with threads */
#endif
    assert_int_equal(mc_resolve("parent", 1, in_ms(2000), &resolved), 0);
    pid_t child = fork();
    if (child == 0)
        _exit(mc_resolve("parent", 1, in_ms(2000), &resolved) == 0 &&
                      mc_resolve("child", 1, in_ms(2000), &resolved) == 0
                  ? 0
                  : 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    mc_log_set_level(MC_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(numbers_ask_nobody, setup),
        cmocka_unit_test_setup(a_name_is_asked_for_once, setup),
        cmocka_unit_test_setup(calls_share_a_lookup, setup),
        cmocka_unit_test_setup(a_silent_server_holds_nobody_beyond_the_deadline, setup),
        cmocka_unit_test_setup(a_name_that_is_not_there_is_said_so, setup),
        cmocka_unit_test_setup(a_name_that_moves_is_followed, setup),
        cmocka_unit_test_setup(an_answer_is_as_old_as_its_lookup, setup),
        cmocka_unit_test_setup(a_child_asks_for_itself, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
