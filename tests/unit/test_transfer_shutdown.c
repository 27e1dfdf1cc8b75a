/* A process with engines that gets a signal: each test is a child, as nothing else can be killed. This process opens no
 * engine, so its children begin with one thread. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "fake_verbs.h"
#include "transfer/engine/open.h"
#include "transfer/peer/rdma_lane.h"
#include "transfer/state/engine.h"
#include "transfer/wire/tcp_wire.h"

#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MEMORY ((size_t)1 << 20)
enum { ENGINES = 3 };

struct told { /* by a child that is ready */
    bool is_fine;
    uint16_t data_port;
    uint64_t address;
};

struct child {
    pid_t pid;
    int out, in; /* what it tells; a byte for it */
    struct told told;
};

static int rdma_out; /* of a child */

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

static void expire(int number)
{
    (void)number;
    _exit(99); /* a child outlives no test */
}

static struct mc_transfer_engine *open_engine(void)
{
    struct mc_transfer_config config = {"127.0.0.1", "P2PHANDSHAKE", "tcp", ""};
    struct mc_transfer_engine *engine = NULL;
    return mc_transfer_open(&config, &engine) == 0 ? engine : NULL;
}

/* Engines with memory, of which the first is told about. prepare: before they drain on signals; after: when they do.
 * Ends the child unless a signal does. */
static void child_main(int out, int in, void (*prepare)(void), void (*after)(struct mc_transfer_engine **engines))
{
    struct mc_transfer_engine *engines[ENGINES];
    struct told told = {.is_fine = true};
    signal(SIGALRM, expire);
    alarm(60);
    if (prepare != NULL)
        prepare();
    uint8_t *memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    told.is_fine = memory != MAP_FAILED;
    for (int i = 0; i < ENGINES && told.is_fine; i++) {
        struct mc_transfer_range range = {(uintptr_t)memory, MEMORY};
        engines[i] = open_engine();
        told.is_fine = engines[i] != NULL && mc_transfer_register(engines[i], &range, 1) == 0 &&
                       mc_transfer_drain_on_signals(engines[i]) == 0 && mc_transfer_drain_on_signals(engines[i]) == 0;
    }
    if (told.is_fine) {
        told.data_port = engines[0]->data_port;
        told.address = (uintptr_t)memory;
        if (after != NULL)
            after(engines);
    }
    struct pollfd waited = {.fd = in, .events = POLLIN};
    told.is_fine = write(out, &told, sizeof(told)) == sizeof(told) && told.is_fine;
    while (poll(&waited, 1, 20) <= 0) /* the thread sanitizer keeps signals back until a call returns */
        continue;
    _exit(told.is_fine && (waited.revents & POLLIN) != 0 ? 0 : 98);
}

static struct child child_start(void (*prepare)(void), void (*after)(struct mc_transfer_engine **engines))
{
    struct child child;
    int out[2], in[2];
    assert_true(pipe(out) == 0 && pipe(in) == 0);
    child.pid = fork();
    assert_true(child.pid >= 0);
    if (child.pid == 0) {
        close(out[0]);
        close(in[1]); /* so that the parent's end is the child's */
        child_main(out[1], in[0], prepare, after);
    }
    close(out[1]);
    close(in[0]);
    child.out = out[0];
    child.in = in[1];
    assert_true(read(child.out, &child.told, sizeof(child.told)) == sizeof(child.told));
    assert_true(child.told.is_fine);
    return child;
}

static int child_end(struct child *child)
{
    int status = -1;
    assert_int_equal(waitpid(child->pid, &status, 0), child->pid);
    close(child->in);
    close(child->out);
    return status;
}

static void ends_with(struct child *child, int number)
{
    assert_int_equal(kill(child->pid, number), 0);
    int status = child_end(child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 128 + number);
}

static void test_signals(void **state)
{
    (void)state;
    struct child child = child_start(NULL, NULL);
    ends_with(&child, SIGTERM);
    child = child_start(NULL, NULL);
    ends_with(&child, SIGINT);
}

static void close_all(struct mc_transfer_engine **engines)
{
    for (int i = 0; i < ENGINES; i++)
        mc_transfer_close(engines[i]);
}

static void test_closed_before(void **state)
{
    (void)state;
    struct child child = child_start(NULL, close_all);
    ends_with(&child, SIGTERM);
}

/* ---- what is under way ---- */

static int connect_to(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
    return fd;
}

static void ask_to_write(int fd, uint64_t address, uint64_t length)
{
    struct mc_tcp_header header = {length, address, MC_TRANSFER_WRITE | MC_TCP_OPCODE_VERSION_2, {0}};
    assert_int_equal(send(fd, &header, sizeof(header), MSG_NOSIGNAL), sizeof(header));
}

static uint64_t status_of(int fd)
{
    uint64_t status = 0;
    return recv(fd, &status, sizeof(status), MSG_WAITALL) == sizeof(status) ? status : 0;
}

static bool has_ended(const struct child *child)
{
    siginfo_t info = {0};
    assert_int_equal(waitid(P_PID, (id_t)child->pid, &info, WEXITED | WNOHANG | WNOWAIT), 0);
    return info.si_pid == child->pid;
}

/* A peer is in the middle of a write: it may end it, and nobody begins another. */
static void test_peers_end(void **state)
{
    (void)state;
    static uint8_t bytes[MEMORY];
    struct child child = child_start(NULL, NULL);
    int under_way = connect_to(child.told.data_port), late = connect_to(child.told.data_port);
    ask_to_write(under_way, child.told.address, MEMORY);
    assert_int_equal(send(under_way, bytes, 1000, MSG_NOSIGNAL), 1000);
    ask_to_write(late, child.told.address, 8); /* it is served, and its connection stays */
    assert_int_equal(send(late, bytes, 8, MSG_NOSIGNAL), 8);
    assert_true(status_of(late) == MC_TCP_STATUS_OK);
    assert_int_equal(kill(child.pid, SIGTERM), 0);
    bool is_refused = false;
    for (int i = 0; i < 1000 && !is_refused; i++) { /* as soon as the signal has arrived */
        int fd = connect_to(child.told.data_port);
        ask_to_write(fd, child.told.address, 8);
        assert_int_equal(send(fd, bytes, 8, MSG_NOSIGNAL), 8);
        is_refused = status_of(fd) == MC_TCP_STATUS_REFUSED;
        close(fd);
        pause_ms(1);
    }
    assert_true(is_refused);
    ask_to_write(late, child.told.address, 8);
    assert_true(status_of(late) == MC_TCP_STATUS_REFUSED);
    assert_false(has_ended(&child));
    for (size_t sent = 1000; sent < MEMORY;) {
        ssize_t count = send(under_way, bytes, MEMORY - sent, MSG_NOSIGNAL);
        assert_true(count > 0);
        sent += (size_t)count;
    }
    assert_true(status_of(under_way) == MC_TCP_STATUS_OK);
    int status = child_end(&child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGTERM);
    close(under_way);
    close(late);
}

static _Atomic int has_released, has_drained; /* one thread sets what the signal of another one looks at */

/* Engines are drained, and the program hears of it: not before the peer's work may end. */
static void on_drained(int number)
{
    (void)number;
    if (!has_released)
        _exit(98);
    has_drained = 1;
}

static uint64_t works; /* of RDMA devices, before the write that is under way when the signal comes */

static void *end_meanwhile(void *argument)
{
    (void)argument;
    while (fake_counts().works == works)
        pause_ms(1);
    if (kill(getpid(), SIGTERM) != 0)
        _exit(97);
    pause_ms(1000);
    has_released = 1;
    fake_release(1);
    return NULL;
}

/* In the child: a peer writes by RDMA, whose devices are slow, and tells when all has arrived. */
static void *write_slowly(void *argument)
{
    struct mc_transfer_engine **engines = argument;
    static uint8_t memory[MEMORY];
    struct mc_transfer_range range = {(uintptr_t)memory, MEMORY};
    struct mc_transfer_item item = {memory, engines[0]->regions.first->address, MEMORY};
    struct mc_transfer_config config = {"127.0.0.1", "P2PHANDSHAKE", "rdma", "fake1"};
    struct mc_transfer_engine *near = NULL;
    pthread_t thread;
    bool is_fine = mc_transfer_open(&config, &near) == 0 && mc_transfer_register(near, &range, 1) == 0 &&
                   mc_transfer_run(near, mc_transfer_name(engines[0]), MC_TRANSFER_WRITE, &item, 1, NULL) == 0;
    memset(memory, 7, MEMORY);
    fake_hold(1);
    works = fake_counts().works;
    is_fine = is_fine && pthread_create(&thread, NULL, end_meanwhile, NULL) == 0 && pthread_detach(thread) == 0 &&
              mc_transfer_run(near, mc_transfer_name(engines[0]), MC_TRANSFER_WRITE, &item, 1, NULL) == 0 &&
              memcmp((void *)(uintptr_t)item.remote, memory, MEMORY) == 0;
    struct mc_transfer_counters counters;
    mc_transfer_counters(near, &counters);
    is_fine = is_fine && counters.bytes[MC_TRANSFER_PATH_RDMA] == 2 * MEMORY;
    (void)!write(rdma_out, is_fine ? "y" : "n", 1);
    while (!has_drained)
        pause_ms(1);
    _exit(128 + SIGTERM);
}

static void with_rdma(void)
{
    struct fake_device_config devices[] = {fake_roce(0), fake_roce(1)};
    fake_reset(devices, 2);
    mc_transfer_verbs = fake_verbs();
    setenv("MC_SAME_PROCESS", "0", 1);
    setenv("MC_SAME_HOST", "0", 1);
    setenv("MC_RDMA_STALL_MS", "30000", 1);
    (void)signal(SIGTERM, on_drained); /* by default the process would end before it can say that all has arrived */
}

static void write_by_rdma(struct mc_transfer_engine **engines)
{
    pthread_t thread;
    if (mc_transfer_start_rdma(engines[0], "fake0", NULL) != 0 ||
        pthread_create(&thread, NULL, write_slowly, engines) != 0 || pthread_detach(thread) != 0)
        _exit(97);
    for (;;)
        pause_ms(20);
}

/* The process ends when its peers' one-sided work has: nothing of that is known here but that they end their links.
 * Where they compare checksums they still can. */
static void one_sided_work_ends(const char *checksum)
{
    int out[2], in[2];
    char word = 0;
    setenv("MC_TE_CHECKSUM", checksum, 1);
    assert_true(pipe(out) == 0 && pipe(in) == 0);
    struct child child = {.pid = fork(), .out = out[0], .in = in[1]};
    assert_true(child.pid >= 0);
    if (child.pid == 0) {
        rdma_out = out[1];
        child_main(out[1], in[0], with_rdma, write_by_rdma);
    }
    close(out[1]);
    close(in[0]);
    assert_int_equal(read(child.out, &word, 1), 1); /* the end of the file: it has not waited */
    assert_int_equal(word, 'y');
    int status = child_end(&child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 128 + SIGTERM);
}

static void test_one_sided_work_ends(void **state)
{
    (void)state;
    one_sided_work_ends("on");
    one_sided_work_ends("off");
}

/* One that never ends is cut off; a second signal does not wait for that. */
static void test_who_does_not_end(void **state)
{
    (void)state;
    for (int signals_sent = 1; signals_sent <= 2; signals_sent++) {
        struct child child = child_start(NULL, NULL);
        int fd = connect_to(child.told.data_port);
        ask_to_write(fd, child.told.address, MEMORY);
        pause_ms(100);
        assert_int_equal(kill(child.pid, SIGTERM), 0);
        if (signals_sent == 2) {
            pause_ms(100);
            ends_with(&child, SIGINT);
        } else {
            int status = child_end(&child);
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGTERM);
        }
        close(fd);
    }
}

/* ---- who else wants the signal ---- */

static volatile sig_atomic_t heard;

static void on_own(int number)
{
    heard = number;
}

static void listen_before(void)
{
    signal(SIGTERM, on_own);
    signal(SIGINT, SIG_IGN);
}

/* Hears of it when the engine is drained, and goes on. */
static void hear(struct mc_transfer_engine **engines)
{
    int status = 0;
    if (kill(getpid(), SIGINT) != 0 || kill(getpid(), SIGTERM) != 0)
        _exit(97);
    for (int i = 0; i < 20000 && heard == 0; i++)
        pause_ms(1);
    struct mc_transfer_item item = {&status, engines[0]->regions.first->address, sizeof(status)};
    bool is_fine = heard == SIGTERM &&
                   mc_transfer_run(engines[1], mc_transfer_name(engines[0]), MC_TRANSFER_WRITE, &item, 1, NULL) < 0;
    struct sigaction now;
    is_fine = is_fine && sigaction(SIGTERM, NULL, &now) == 0 && now.sa_handler == on_own;
    is_fine = is_fine && sigaction(SIGINT, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
    if (!is_fine)
        _exit(96);
    close_all(engines);
}

static void test_handler_of_the_program(void **state)
{
    (void)state;
    struct child child = child_start(listen_before, hear);
    assert_int_equal(write(child.in, "x", 1), 1);
    int status = child_end(&child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void kill_a_fork(struct mc_transfer_engine **engines)
{
    (void)engines;
    int status = -1;
    pid_t pid = fork();
    if (pid == 0) {
        for (int i = 0; i < 20000; i++)
            pause_ms(1);
        _exit(0);
    }
    bool is_fine = pid > 0 && kill(pid, SIGTERM) == 0 && waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) &&
                   WTERMSIG(status) == SIGTERM;
    if (!is_fine)
        _exit(95);
}

/* A child of its own dies as it would have, and the parent does not notice. */
static void test_fork(void **state)
{
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); /* its runtime keeps a signal back until a call returns, and in a child of several threads for ever */
#endif
    struct child child = child_start(NULL, kill_a_fork);
    assert_false(has_ended(&child));
    ends_with(&child, SIGTERM);
}

static void test_null(void **state)
{
    (void)state;
    assert_int_equal(mc_transfer_drain_on_signals(NULL), MC_TRANSFER_ERR_INVALID_ARGUMENT);
    assert_null(mc_transfer_links_text(NULL));
    struct sigaction now;
    assert_true(sigaction(SIGTERM, NULL, &now) == 0 && now.sa_handler == SIG_DFL); /* nothing was installed */
}

int main(void)
{
    setenv("MC_TCP_BIND_ADDRESS", "127.0.0.1", 1);
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_null),
        cmocka_unit_test(test_signals),
        cmocka_unit_test(test_closed_before),
        cmocka_unit_test(test_peers_end),
        cmocka_unit_test(test_who_does_not_end),
        cmocka_unit_test(test_one_sided_work_ends),
        cmocka_unit_test(test_handler_of_the_program),
        cmocka_unit_test(test_fork),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
