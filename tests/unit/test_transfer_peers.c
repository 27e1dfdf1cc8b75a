/* What peers may do to an engine that uses them: be silent, be slow, be another process than before. Over tcp, with
 * engines and stand-ins of this process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "silent_peer.h"
#include "transfer/service.h"
#include "transfer/tcp_wire.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#define MEMORY ((size_t)16 << 20)

struct world {
    struct mc_transfer_engine *near, *far;
    /* Each is mapped twice: engines use the one, the test looks at the other. (What passes through the kernel is ordered
     * by it, but the thread sanitizer does not know that.) */
    uint8_t *near_memory, *far_memory, *near_seen, *far_seen;
};

static struct mc_transfer_engine *engine_open(void)
{
    struct mc_transfer_config config = {"127.0.0.1", "P2PHANDSHAKE", "tcp", ""};
    struct mc_transfer_engine *engine = NULL;
    assert_int_equal(mc_transfer_open(&config, &engine), 0);
    return engine;
}

static uint8_t *map(struct mc_transfer_engine *engine, uint8_t **seen)
{
    int fd = memfd_create("test", MFD_CLOEXEC);
    assert_true(fd >= 0 && ftruncate(fd, (off_t)MEMORY) == 0);
    *seen = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    uint8_t *memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(*seen != MAP_FAILED && memory != MAP_FAILED);
    close(fd);
    assert_int_equal(mc_transfer_register(engine, &(struct mc_transfer_range){(uintptr_t)memory, MEMORY}, 1), 0);
    return memory;
}

static void world_open(struct world *world)
{
    setenv("MC_FORCE_TCP", "1", 1);
    world->near = engine_open();
    world->far = engine_open();
    world->near_memory = map(world->near, &world->near_seen);
    world->far_memory = map(world->far, &world->far_seen);
}

static void world_close(struct world *world)
{
    mc_transfer_close(world->near);
    mc_transfer_close(world->far);
    munmap(world->near_memory, MEMORY);
    munmap(world->far_memory, MEMORY);
    munmap(world->near_seen, MEMORY);
    munmap(world->far_seen, MEMORY);
}

/* ---- silent and slow ones ---- */

/* However many peers are silent, and however much waits for each: batches to one that answers do not wait for them, and
 * theirs end by the deadline, also those that never had a thread. */
static void test_many_silent_peers(void **state)
{
    (void)state;
    enum { SILENT = 40, EACH = MC_PEER_WORKERS_MAX + 2, FINE = 200 };
    static struct silent silent[SILENT];
    static int64_t stuck[SILENT * EACH];
    struct world world;
    world_open(&world);
    world.near->settings.timeout_ns = 6000000000;
    struct mc_transfer_item item = {world.near_memory, 4096, 16 << 20};
    struct mc_transfer_item fine = {world.near_memory, (uintptr_t)world.far_memory, 65536};
    for (int i = 0; i < SILENT; i++) {
        char name[64];
        silent_open(&silent[i], name, sizeof(name));
        for (int j = 0; j < EACH; j++) {
            int64_t id = mc_transfer_submit(world.near, name, MC_TRANSFER_WRITE, &item, 1, NULL);
            assert_true(id > 0);
            stuck[i * EACH + j] = id;
        }
    }
    uint64_t start_ms = mc_clock_ms(), slowest_ms = 0;
    for (int i = 0; i < FINE && mc_clock_ms() - start_ms < 3000; i++) {
        uint64_t begun_ms = mc_clock_ms();
        int64_t id = mc_transfer_submit(world.near, mc_transfer_name(world.far), MC_TRANSFER_WRITE, &fine, 1, NULL);
        assert_int_equal(mc_transfer_wait(world.near, &id, 1), 0);
        uint64_t took_ms = mc_clock_ms() - begun_ms;
        slowest_ms = took_ms > slowest_ms ? took_ms : slowest_ms;
    }
    print_message("  slowest beside %d silent peers: %llu ms\n", SILENT, (unsigned long long)slowest_ms);
    assert_true(slowest_ms < 1000);
    assert_int_equal(mc_transfer_status(world.near, stuck[SILENT * EACH - 1]), 0); /* they are still silent */
    assert_int_equal(mc_transfer_wait(world.near, stuck, SILENT * EACH), MC_TRANSFER_ERR_TIMEOUT);
    assert_true(mc_clock_ms() - start_ms < 12000);
    for (int i = 0; i < SILENT; i++)
        silent_close(&silent[i]);
    world_close(&world);
}

/* A peer that is slow, but moves: writes of one byte, answered one after the other. */
struct slow {
    struct silent silent;
    pthread_t thread;
    unsigned answer_ms;
    _Atomic unsigned answered;
};

static void *slow_main(void *argument)
{
    enum { MOST = 32, REQUEST = sizeof(struct mc_tcp_header) + 1 };
    struct slow *slow = argument;
    struct pollfd fds[MOST] = {{.fd = slow->silent.data, .events = POLLIN}};
    nfds_t count = 1;
    uint64_t status = MC_TCP_STATUS_OK;
    while (!atomic_load(&slow->silent.stop)) {
        (void)poll(fds, count, 20);
        for (int fd; count < MOST && (fd = mc_socket_accept(slow->silent.data)) >= 0;)
            fds[count++] = (struct pollfd){.fd = fd, .events = POLLIN};
        for (nfds_t i = 1; i < count; i++) {
            uint8_t request[REQUEST];
            if (fds[i].revents == 0 || recv(fds[i].fd, request, REQUEST, MSG_WAITALL) != REQUEST)
                continue;
            usleep(slow->answer_ms * 1000);
            slow->answered += send(fds[i].fd, &status, 8, MSG_NOSIGNAL) == 8;
            fds[i].revents = 0;
        }
    }
    while (count > 1)
        close(fds[--count].fd);
    return NULL;
}

/* The time that a batch waits behind others to a peer that moves is not its own: all of them end well, though together
 * they take several times what each may. */
static void test_queue_of_a_slow_peer(void **state)
{
    (void)state;
    enum { COUNT = 60 };
    struct world world;
    struct slow slow = {.answer_ms = 50};
    int64_t ids[COUNT];
    char name[64];
    world_open(&world);
    silent_open(&slow.silent, name, sizeof(name));
    assert_int_equal(pthread_create(&slow.thread, NULL, slow_main, &slow), 0);
    world.near->settings.timeout_ns = 1500000000;
    struct mc_transfer_item item = {world.near_memory, 4096, 1};
    for (int i = 0; i < COUNT; i++)
        assert_true((ids[i] = mc_transfer_submit(world.near, name, MC_TRANSFER_WRITE, &item, 1, NULL)) > 0);
    assert_int_equal(mc_transfer_wait(world.near, ids, COUNT), 0);
    assert_int_equal(slow.answered, COUNT);
    atomic_store(&slow.silent.stop, true);
    pthread_join(slow.thread, NULL);
    silent_close(&slow.silent);
    world_close(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_silent_peers),
        cmocka_unit_test(test_queue_of_a_slow_peer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
