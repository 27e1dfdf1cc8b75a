/* Who asks of the past by ZMQ: how much one is sent while others wait, what a question costs, whose host vanished. */
#include "store/master/kv_zmq.h"

#include "env/clock.h"
#include "env/socket.h"
#include "mooncake.h"

#include <endian.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

enum { EVENTS = 1u << 16, SMALL = 8000, BIG = 20000, QUESTIONS = 200, FLUSH_BYTES = 2 << 20, FLUSH_CALLS = 64 };

static struct mc_kv_events *events;
static struct mc_kv_zmq *zmq;
static int asker = -1;
static atomic_bool is_taken; /* what is sent counts as taken, and reaches nobody */
static atomic_bool is_alive;
static atomic_ullong bytes, calls; /* sent since it was looked at who waits */
static atomic_ullong most_bytes, most_calls;
static atomic_ullong first, ends; /* number of the last answer's first message; answers */
static atomic_ullong used_ns;

/* Each call is one message behind its delimiter, or what ends an answer. */
ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    static bool is_within;
    const struct iovec *parts = message->msg_iov;
    size_t length = parts[0].iov_len + parts[1].iov_len + parts[2].iov_len;
    uint8_t head[12] = {0};
    uint64_t number;
    struct timespec now;
    int on = 0;
    socklen_t size = sizeof(on);
    if (!atomic_load(&is_taken))
        return syscall(SYS_sendmsg, fd, message, flags);
    for (size_t i = 0; i < sizeof(head) && length > 16; i++)
        head[i] = i < parts[1].iov_len ? ((const uint8_t *)parts[1].iov_base)[i]
                                       : ((const uint8_t *)parts[2].iov_base)[i - parts[1].iov_len];
    memcpy(&number, head + 4, sizeof(number));
    if (!is_within)
        atomic_store(&first, be64toh(number));
    is_within = length > 16;
    atomic_store(&is_alive, getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, &size) == 0 && on != 0);
    atomic_fetch_add(&bytes, length);
    atomic_fetch_add(&calls, 1);
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    atomic_store(&used_ns, (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec);
    if (!is_within)
        atomic_fetch_add(&ends, 1);
    return (ssize_t)length;
}

int epoll_wait(int fd, struct epoll_event *found, int count, int timeout)
{
    unsigned long long of_turn = atomic_exchange(&bytes, 0);
    if (of_turn > atomic_load(&most_bytes))
        atomic_store(&most_bytes, of_turn);
    of_turn = atomic_exchange(&calls, 0);
    if (of_turn > atomic_load(&most_calls))
        atomic_store(&most_calls, of_turn);
    return (int)syscall(SYS_epoll_pwait, fd, found, count, timeout, NULL, 0);
}

static void add(size_t count, size_t length)
{
    static char key[1024];
    memset(key, 'k', sizeof(key));
    for (size_t i = 0; i < count; i++)
        mc_kv_events_add(events, 1000, MC_MEDIUM_MEMORY, true, mc_span(key, length));
}

static void ask(uint64_t number)
{
    uint8_t question[12] = {1, 0, 0, sizeof(number)};
    unsigned long long before = atomic_load(&ends);
    number = htobe64(number);
    memcpy(question + 4, &number, sizeof(number));
    assert_int_equal(write(asker, question, sizeof(question)), sizeof(question));
    for (uint64_t end = mc_clock_ns() + UINT64_C(20000000000); atomic_load(&ends) == before;) {
        assert_true(mc_clock_ns() < end);
        (void)poll(NULL, 0, 0);
    }
}

static void read_exactly(size_t length)
{
    uint8_t said[128];
    assert_int_equal(recv(asker, said, length, MSG_WAITALL), length);
}

static int begin(void **state)
{
    static const uint8_t greeting[64] = {
        [0] = 0xff, [9] = 0x7f, [10] = 3, [12] = 'N', [13] = 'U', [14] = 'L', [15] = 'L'};
    static const uint8_t ready[] = "\4\34\5READY\13Socket-Type\0\0\0\6DEALER";
    const struct mc_kv_form form = {true, true, false, "pool"};
    char error[256] = "", endpoint[64];
    uint16_t port = 0;
    (void)state;
    int reserved = mc_tcp_bind("127.0.0.1", &port);
    mc_fd_close(reserved);
    snprintf(endpoint, sizeof(endpoint), "tcp://127.0.0.1:%u", (unsigned)port);
    events = mc_kv_events_create(EVENTS, "pool");
    mc_kv_events_lead(events, 7);
    if (mc_kv_zmq_start(events, &form, "tcp://127.0.0.1:0", endpoint, &zmq, error, sizeof(error)) != 0)
        return -1;
    asker = mc_tcp_connect(endpoint + strlen("tcp://"), mc_clock_ns() + UINT64_C(30000000000));
    if (asker < 0 || fcntl(asker, F_SETFL, 0) != 0 || write(asker, greeting, sizeof(greeting)) != 64)
        return -1;
    read_exactly(64);
    if (write(asker, ready, sizeof(ready) - 1) != sizeof(ready) - 1)
        return -1;
    read_exactly(sizeof(ready) - 1);
    atomic_store(&is_taken, true);
    return 0;
}

static int end(void **state)
{
    (void)state;
    mc_kv_zmq_stop(zmq);
    mc_kv_events_destroy(events);
    mc_fd_close(asker);
    return 0;
}

static uint64_t cost_of(uint64_t number)
{
    uint64_t before = atomic_load(&used_ns);
    for (int i = 0; i < QUESTIONS; i++)
        ask(number);
    return atomic_load(&used_ns) - before;
}

static void a_host_that_vanished_is_found_out(void **state)
{
    (void)state;
    ask(UINT64_MAX);
    assert_true(atomic_load(&is_alive));
}

static void a_question_costs_the_same_however_much_is_kept(void **state)
{
    (void)state;
    ask(UINT64_MAX);
    uint64_t empty = cost_of(UINT64_MAX);
    for (int i = 0; i < SMALL; i++) {
        add(1, 8);
        ask(UINT64_MAX);
    }
    uint64_t full = cost_of(UINT64_MAX);
    print_message("%d questions: %llu us of nothing, %llu us of %d messages\n", QUESTIONS,
                  (unsigned long long)empty / 1000, (unsigned long long)full / 1000, SMALL);
    /* When all of them were gone through it was 30 times as much. */
    assert_true(full < 20 * empty);
}

static void an_answer_leaves_others_their_turn(void **state)
{
    (void)state;
    ask(0);
    ask(UINT64_MAX);
    assert_true(atomic_load(&most_calls) <= FLUSH_CALLS);
    for (int i = 0; i < BIG; i += 200) { /* as many as a turn publishes: else they overwrite what is asked for */
        add(200, 1000);
        ask(UINT64_MAX);
    }
    ask(0);
    ask(UINT64_MAX);
    for (int i = 0; i < 5; i++) { /* a question finds events that are in no message yet */
        add(1, 1000);
        ask(0);
    }
    ask(UINT64_MAX);
    assert_in_range(atomic_load(&most_bytes), FLUSH_BYTES, FLUSH_BYTES + (256 << 10));
}

/* Also where messages have overwritten others of another length. */
static void each_message_is_found(void **state)
{
    (void)state;
    for (int i = 0; i < 500; i++) {
        add(1, 8);
        ask(UINT64_MAX);
    }
    ask(0);
    uint64_t number = atomic_load(&first), last = number;
    for (;; number++) {
        ask(number);
        if (atomic_load(&first) == 0)
            break;
        assert_int_equal(atomic_load(&first), number);
    }
    assert_in_range(number - last, 500 + 150, 500 + 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_host_that_vanished_is_found_out),
        cmocka_unit_test(a_question_costs_the_same_however_much_is_kept),
        cmocka_unit_test(an_answer_leaves_others_their_turn),
        cmocka_unit_test(each_message_is_found),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
