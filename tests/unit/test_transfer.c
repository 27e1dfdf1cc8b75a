/* Whole engines, several in this process: the same suite over each path (a copy, process_vm, tcp), and peers that do
 * harm. Built with the thread sanitizer by `./dev check`. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/bytes.h"
#include "env/clock.h"
#include "env/crew.h"
#include "env/json.h"
#include "engines.h"
#include "env/socket.h"
#include "fake_verbs.h"
#include "silent_peer.h"
#include "transfer/peer/host_path.h"
#include "transfer/peer/rdma_lane.h"
#include "transfer/state/engine.h"
#include "transfer/serve/service_inside.h"
#include "transfer/wire/tcp_wire.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define MEMORY ((size_t)24 << 20)

enum { LANES = MC_TRANSFER_PATHS, VARIANTS }; /* tcp, over several lanes */
static const char *const path_names[] = {"local", "host", "tcp", "rdma", "tcp over lanes"};

struct world { /* two engines, each with memory */
    int path;
    struct mc_transfer_engine *near, *far;
    uint8_t *near_memory;
    /* The far memory is mapped twice: peers reach the one, the test looks at the other. (Bytes that pass through the
     * kernel are ordered by it, but the thread sanitizer does not know that.) */
    uint8_t *far_memory, *far_seen;
};

static const char *protocol = "";

static void allow(int path)
{
    unsetenv("MC_FORCE_TCP");
    unsetenv("MC_SAME_PROCESS");
    unsetenv("MC_SAME_HOST");
    unsetenv("MC_TCP_LANES_PER_PEER");
    protocol = path == MC_TRANSFER_PATH_RDMA ? "rdma" : ""; /* "tcp" takes RDMA, too */
    if (path == LANES)
        setenv("MC_TCP_LANES_PER_PEER", "5", 1);
    if (path == MC_TRANSFER_PATH_HOST || path == MC_TRANSFER_PATH_RDMA)
        setenv("MC_SAME_PROCESS", "0", 1);
    if (path == MC_TRANSFER_PATH_TCP || path == LANES)
        setenv("MC_FORCE_TCP", "1", 1);
    if (path == MC_TRANSFER_PATH_RDMA) {
        setenv("MC_SAME_HOST", "0", 1);
        const struct fake_device_config devices[] = {fake_roce(0), fake_roce(1)};
        fake_reset(devices, 2);
        mc_transfer_verbs = fake_verbs();
    }
}

static struct mc_transfer_engine *open_at(const char *host)
{
    struct mc_transfer_config config = {host, "P2PHANDSHAKE", protocol, ""};
    struct mc_transfer_engine *engine = NULL;
    assert_int_equal(mc_transfer_open(&config, &engine), 0);
    return engine;
}

static uint8_t *map_twice(size_t size, uint8_t **seen)
{
    int fd = memfd_create("test", MFD_CLOEXEC);
    assert_true(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
    *seen = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    uint8_t *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(*seen != MAP_FAILED && memory != MAP_FAILED);
    close(fd);
    return memory;
}

static int drop(struct mc_transfer_engine *engine, const void *memory)
{
    uint64_t address = (uintptr_t)memory;
    return mc_transfer_unregister(engine, &address, 1);
}

#define GUARD 4096 /* bytes behind the near memory that nobody can read: a length that is a lie ends there */

static void world_open(struct world *world, int path)
{
    allow(path);
    world->path = path < MC_TRANSFER_PATHS ? path : MC_TRANSFER_PATH_TCP;
    world->near = open_at("127.0.0.1");
    world->far = open_at("127.0.0.1");
    world->near_memory = memory_map(MEMORY + GUARD);
    assert_int_equal(mprotect(world->near_memory + MEMORY, GUARD, PROT_NONE), 0);
    world->far_memory = map_twice(MEMORY, &world->far_seen);
    assert_int_equal(add(world->near, world->near_memory, MEMORY), 0);
    assert_int_equal(add(world->far, world->far_memory, MEMORY), 0);
}

static void world_close(struct world *world)
{
    munmap(world->near_memory + MEMORY, GUARD);
    pair_close(world->near, world->near_memory, world->far, world->far_memory, MEMORY);
    munmap(world->far_seen, MEMORY);
}

/* A world over tcp, and a peer that says nothing. */
struct beside {
    struct world world;
    struct silent silent;
    char name[64]; /* of the silent one */
};

static int set_up_beside(void **state)
{
    static struct beside beside;
    world_open(&beside.world, MC_TRANSFER_PATH_TCP);
    silent_open(&beside.silent, beside.name, sizeof(beside.name));
    *state = &beside;
    return 0;
}

static int tear_down_beside(void **state)
{
    struct beside *beside = *state;
    silent_close(&beside->silent);
    world_close(&beside->world);
    return 0;
}

static int move(struct world *world, enum mc_transfer_opcode opcode, const void *local, uint64_t remote,
                uint64_t length)
{
    struct mc_transfer_item item = {(void *)(uintptr_t)local, remote, length};
    return mc_transfer_run(world->near, mc_transfer_name(world->far), opcode, &item, 1, NULL);
}

static void fill(uint8_t *memory, size_t size, unsigned seed)
{
    for (size_t i = 0; i < size; i++)
        memory[i] = (uint8_t)(i * 7 + i / 255 + seed);
}

/* ---- what every path does ---- */

static void sizes(struct world *world)
{
    static const size_t all[] = {1, 2, 63, 4096, 65537, (1 << 20) - 1, (5 << 20) + 3, 20 << 20};
    uint8_t *near = world->near_memory, *far = world->far_memory, *seen = world->far_seen;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        fill(near, all[i], (unsigned)i);
        memset(seen, 0xee, all[i] + 8);
        assert_int_equal(move(world, MC_TRANSFER_WRITE, near, (uintptr_t)far + 3, all[i]), 0);
        assert_memory_equal(seen + 3, near, all[i]);
        assert_int_equal(seen[2], 0xee);
        assert_int_equal(seen[3 + all[i]], 0xee);
        memset(near, 0, all[i]);
        assert_int_equal(move(world, MC_TRANSFER_READ, near, (uintptr_t)far + 3, all[i]), 0);
        assert_memory_equal(near, seen + 3, all[i]);
    }
    struct mc_transfer_counters counters;
    mc_transfer_counters(world->near, &counters);
    for (int path = 0; path < MC_TRANSFER_PATHS; path++) {
        if (path == world->path)
            assert_true(counters.bytes[path] > 40u << 20);
        else
            assert_int_equal(counters.bytes[path], 0);
    }
}

static void batches(struct world *world)
{
    enum { COUNT = 5000, SIZE = 700 };
    struct mc_transfer_item *items = calloc(COUNT, sizeof(*items));
    assert_non_null(items);
    fill(world->near_memory, COUNT * SIZE, 9);
    memset(world->far_seen, 0, COUNT * SIZE);
    for (size_t i = 0; i < COUNT; i++) /* every seventh has nothing to do, and its addresses do not matter */
        items[i] = i % 7 == 0 ? (struct mc_transfer_item){NULL, 5, 0}
                              : (struct mc_transfer_item){world->near_memory + i * SIZE,
                                                          (uintptr_t)world->far_memory + (COUNT - 1 - i) * SIZE, SIZE};
    const char *name = mc_transfer_name(world->far);
    assert_int_equal(mc_transfer_run(world->near, name, MC_TRANSFER_WRITE, items, COUNT, NULL), 0);
    static const uint8_t nothing[SIZE];
    for (size_t i = 0; i < COUNT; i++)
        assert_memory_equal(world->far_seen + (COUNT - 1 - i) * SIZE,
                            i % 7 == 0 ? nothing : world->near_memory + i * SIZE, SIZE);
    assert_int_equal(mc_transfer_run(world->near, name, MC_TRANSFER_WRITE, items, 0, NULL), 0);
    items[COUNT - 1].remote = 64; /* one bad among many */
    assert_true(mc_transfer_run(world->near, name, MC_TRANSFER_WRITE, items, COUNT, NULL) < 0);
    free(items);
}

static void refusals(struct world *world)
{
    uint64_t far = (uintptr_t)world->far_memory;
    const struct mc_transfer_range bad[] = {
        {far - 1, 2},    {far + MEMORY, 1}, {far + MEMORY - 1, 2},      {far, MEMORY + 1}, {1, 1},
        {UINT64_MAX, 1}, {UINT64_MAX, 2},   {far, (uint64_t)INT64_MAX}, {far, UINT64_MAX}, {far + 1, -far}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        for (int opcode = 0; opcode < 2; opcode++)
            assert_true(
                move(world, (enum mc_transfer_opcode)opcode, world->near_memory, bad[i].address, bad[i].length) < 0);
    assert_true(move(world, MC_TRANSFER_WRITE, NULL, far, 1) < 0);
    assert_int_equal(move(world, MC_TRANSFER_WRITE, world->near_memory, far + MEMORY - 1, 1), 0);
    /* Over the border of two registered pieces. */
    uint8_t *two = memory_map(8192);
    assert_int_equal(add(world->far, two, 4096), 0);
    assert_int_equal(add(world->far, two + 4096, 4096), 0);
    assert_int_equal(move(world, MC_TRANSFER_WRITE, world->near_memory, (uintptr_t)two + 4095, 1), 0);
    assert_true(move(world, MC_TRANSFER_WRITE, world->near_memory, (uintptr_t)two + 4095, 2) < 0);
    /* Once it is taken back nothing of it can be reached, also by who has reached it before. */
    assert_int_equal(drop(world->far, two), 0);
    assert_true(move(world, MC_TRANSFER_READ, world->near_memory, (uintptr_t)two, 1) < 0);
    assert_int_equal(move(world, MC_TRANSFER_READ, world->near_memory, (uintptr_t)two + 4096, 1), 0);
    assert_int_equal(add(world->far, two, 4096), 0); /* and again */
    assert_int_equal(move(world, MC_TRANSFER_READ, world->near_memory, (uintptr_t)two, 1), 0);
    assert_int_equal(drop(world->far, two), 0);
    assert_int_equal(drop(world->far, two), MC_TRANSFER_ERR_ADDRESS_NOT_REGISTERED);
    assert_int_equal(drop(world->far, two + 4096), 0);
    munmap(two, 8192);
}

static void in_background(struct world *world)
{
    enum { COUNT = 200 };
    int64_t ids[COUNT];
    struct mc_transfer_item item = {world->near_memory, (uintptr_t)world->far_memory, 65536};
    const char *name = mc_transfer_name(world->far);
    for (int i = 0; i < COUNT; i++, item.remote += item.length)
        assert_true((ids[i] = mc_transfer_submit(world->near, name, MC_TRANSFER_WRITE, &item, 1, NULL)) > 0);
    int rc;
    uint64_t until_ms = mc_clock_ms() + 20000;
    while ((rc = mc_transfer_status(world->near, ids[0])) == 0 && mc_clock_ms() < until_ms)
        sched_yield();
    assert_int_equal(rc, 1);
    assert_int_equal(mc_transfer_status(world->near, ids[0]), MC_TRANSFER_ERR_INVALID_ARGUMENT); /* stale */
    assert_int_equal(mc_transfer_wait(world->near, ids + 1, COUNT - 1), 0);
    assert_int_equal(mc_transfer_wait(world->near, ids, 1), MC_TRANSFER_ERR_INVALID_ARGUMENT);
    /* Done means the whole batch: the second item is bad. */
    struct mc_transfer_item two[2] = {item, {world->near_memory, 64, 10}};
    int64_t id = mc_transfer_submit(world->near, name, MC_TRANSFER_READ, two, 2, NULL);
    assert_true(id > 0);
    while ((rc = mc_transfer_status(world->near, id)) == 0 && mc_clock_ms() < until_ms)
        sched_yield();
    assert_int_equal(rc, MC_TRANSFER_ERR_INVALID_ARGUMENT);
    assert_true(mc_transfer_submit(world->near, "127.0.0.1:1", MC_TRANSFER_READ, &item, 1, NULL) < 0);
}

static void notes(struct world *world)
{
    char *name, *message;
    struct mc_transfer_item item = {world->near_memory, (uintptr_t)world->far_memory, 10};
    struct mc_transfer_note note = {"layer", "\"7\"\n\xc3\xa4"};
    assert_int_equal(mc_transfer_run(world->near, mc_transfer_name(world->far), MC_TRANSFER_WRITE, &item, 1, &note), 0);
    assert_int_equal(mc_transfer_take_note(world->far, &name, &message), 1);
    assert_string_equal(name, note.name);
    assert_string_equal(message, note.message);
    free(name);
    free(message);
    assert_int_equal(mc_transfer_take_note(world->far, &name, &message), 0);
    item.remote = 64;
    assert_true(mc_transfer_run(world->near, mc_transfer_name(world->far), MC_TRANSFER_WRITE, &item, 1, &note) < 0);
    assert_int_equal(mc_transfer_take_note(world->far, &name, &message), 0); /* nothing moved, nothing said */
    assert_int_equal(mc_transfer_probe(world->near, mc_transfer_name(world->far)), 0);
    assert_int_equal(mc_transfer_probe(world->near, "127.0.0.1:1"), MC_TRANSFER_ERR_SOCKET);
    assert_true(mc_transfer_first_address(world->near, mc_transfer_name(world->far)) == (uintptr_t)world->far_memory);
}

/* Whoever never takes them is not filled with them by its peers. */
static void notes_are_limited(struct world *world)
{
    enum { LENGTH = 1000000, LIMIT = MC_TRANSFER_NOTES_BYTES / 4 * 3 / LENGTH };
    char *name, *message = malloc(LENGTH + 1), *taken;
    unsigned count = 0;
    assert_non_null(message);
    memset(message, 'm', LENGTH);
    message[LENGTH] = 0;
    struct mc_transfer_note note = {"n", message};
    while (count <= LIMIT && mc_transfer_notify(world->near, mc_transfer_name(world->far), &note) == 0)
        count++;
    assert_int_equal(count, LIMIT);
    for (unsigned i = 0; i < count; i++) {
        assert_int_equal(mc_transfer_take_note(world->far, &name, &taken), 1);
        assert_int_equal(strlen(taken), LENGTH);
        free(name);
        free(taken);
        if (i == 0) { /* there is room for one again */
            assert_int_equal(mc_transfer_notify(world->near, mc_transfer_name(world->far), &note), 0);
            count++;
        }
    }
    assert_int_equal(mc_transfer_take_note(world->far, &name, &taken), 0);
    free(message);
}

static void test_suite(void **state)
{
    (void)state;
    for (int path = 0; path < VARIANTS; path++) {
        struct world world;
        print_message("  path %s\n", path_names[path]);
        world_open(&world, path);
        sizes(&world);
        batches(&world);
        refusals(&world);
        in_background(&world);
        notes(&world);
        if (path == 0)
            notes_are_limited(&world);
        world_close(&world);
    }
}

/* ---- many threads, and memory that comes and goes ---- */

struct mover {
    struct world *world;
    unsigned number;
    _Atomic bool *stop;
    uint64_t rounds;
    int failed;
};

static void *mover_main(void *argument)
{
    struct mover *mover = argument;
    struct world *world = mover->world;
    size_t area = MEMORY / 8, size = area / 2;
    uint8_t *near = world->near_memory + mover->number * area, *far = world->far_memory + mover->number * area;
    while (!atomic_load(mover->stop)) {
        size_t length = 1 + (mover->rounds * 104729) % size;
        fill(near, length, mover->number + (unsigned)mover->rounds);
        if (move(world, MC_TRANSFER_WRITE, near, (uintptr_t)far, length) != 0 ||
            move(world, MC_TRANSFER_READ, near + size, (uintptr_t)far, length) != 0 ||
            memcmp(near, near + size, length) != 0)
            mover->failed++;
        mover->rounds++;
    }
    return NULL;
}

/* Writes into memory that is unregistered again and again: after each success of unregister nothing may change in it.
 */
static void *spoiler_main(void *argument)
{
    struct mover *mover = argument;
    uint64_t target; /* where the test has written it */
    memcpy(&target, mover->world->near_memory + MEMORY - 8, 8);
    while (!atomic_load(mover->stop)) {
        (void)move(mover->world, MC_TRANSFER_WRITE, mover->world->near_memory + 6 * (MEMORY / 8), target, 2 << 20);
        mover->rounds++;
    }
    return NULL;
}

static void come_and_go(struct world *world, uint8_t *memory, uint8_t *seen, size_t size)
{
    for (int round = 0; round < 30; round++) {
        assert_int_equal(add(world->far, memory, size), 0);
        usleep(3000);
        assert_int_equal(drop(world->far, memory), 0);
        memset(seen, 0xaa, size);
        usleep(1000);
        for (size_t i = 0; i < size; i++)
            if (seen[i] != 0xaa)
                fail_msg("byte %zu was written after unregister", i);
    }
}

static void test_threads(void **state)
{
    (void)state;
    for (int path = 0; path < VARIANTS; path++) {
        struct world world;
        _Atomic bool stop = false;
        pthread_t threads[5]; /* four that move and look, one that spoils */
        struct mover movers[5];
        world_open(&world, path);
        uint8_t *seen, *memory = map_twice(2 << 20, &seen);
        uint64_t target = (uintptr_t)memory;
        memcpy(world.near_memory + MEMORY - 8, &target, 8);
        for (unsigned i = 0; i < 5; i++) {
            movers[i] = (struct mover){&world, i, &stop, 0, 0};
            assert_int_equal(pthread_create(&threads[i], NULL, i < 4 ? mover_main : spoiler_main, &movers[i]), 0);
        }
        come_and_go(&world, memory, seen, 2 << 20);
        atomic_store(&stop, true);
        for (unsigned i = 0; i < 5; i++)
            pthread_join(threads[i], NULL);
        for (unsigned i = 0; i < 5; i++) {
            assert_int_equal(movers[i].failed, 0);
            assert_true(movers[i].rounds > 0);
        }
        print_message("  path %s: %llu rounds\n", path_names[path], (unsigned long long)movers[0].rounds);
        munmap(memory, 2 << 20);
        munmap(seen, 2 << 20);
        world_close(&world);
    }
}

static void test_many_registrations(void **state)
{
    (void)state;
    enum { COUNT = 10000 };
    allow(MC_TRANSFER_PATH_HOST);
    struct mc_transfer_engine *engine = open_at("127.0.0.1");
    uint8_t *memory = memory_map((size_t)COUNT * 64);
    uint64_t start_ns = mc_clock_ns();
    for (size_t i = 0; i < COUNT; i++)
        assert_int_equal(add(engine, memory + i * 64, 64), 0);
    uint64_t spent_ms = (mc_clock_ns() - start_ns) / MS_NS;
    print_message("  10,000 registrations: %llu ms\n", (unsigned long long)spent_ms);
    assert_true(spent_ms < 1000); /* 50 without sanitizers; the bench says more */
    assert_int_equal(add(engine, memory + 64 * 77 + 1, 1), MC_TRANSFER_ERR_ADDRESS_OVERLAPPED);
    struct mc_transfer_engine *other = open_at("127.0.0.1"); /* its document is as large as allowed */
    assert_true(mc_transfer_first_address(other, mc_transfer_name(engine)) == (uintptr_t)memory);
    struct mc_transfer_item item = {&spent_ms, (uintptr_t)memory + 64 * 9999, 8};
    assert_int_equal(mc_transfer_run(other, mc_transfer_name(engine), MC_TRANSFER_WRITE, &item, 1, NULL), 0);
    for (size_t i = 0; i < COUNT; i++)
        assert_int_equal(drop(engine, memory + i * 64), 0);
    mc_transfer_close(other);
    mc_transfer_close(engine);
    munmap(memory, (size_t)COUNT * 64);
}

/* ---- harm ---- */

static int connect_to(uint16_t port)
{
    char address[64];
    mc_address_join(address, sizeof(address), "127.0.0.1", port);
    int fd = mc_tcp_connect(address, mc_clock_ns() + 5 * SECOND_NS);
    assert_true(fd >= 0);
    return fd;
}

static void say(uint16_t port, const void *data, size_t size)
{
    int fd = connect_to(port);
    struct iovec part = {(void *)(uintptr_t)data, size};
    (void)mc_socket_send(fd, &part, 1, mc_clock_ns() + SECOND_NS); /* it may hang up in the middle */
    close(fd);
}

static void test_hostile_bytes(void **state)
{
    (void)state;
    struct world world;
    world_open(&world, MC_TRANSFER_PATH_TCP);
    uint64_t seed = 88172645463325252ull;
    uint8_t noise[512];
    for (int round = 0; round < 300; round++) {
        for (size_t i = 0; i < sizeof(noise); i++) {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            noise[i] = (uint8_t)seed;
        }
        if (round % 3 == 0) { /* lengths that look right */
            uint64_t length = noise[8] + 1u;
            memcpy(noise, &length, 8);
            noise[8] %= 5;
        }
        if (round % 3 == 1) { /* addresses that are nearly right */
            struct mc_tcp_header header = {.length = noise[0] * 65536u,
                                           .address = (uintptr_t)world.far_memory + MEMORY - noise[1] * 65536u,
                                           .opcode = noise[2]};
            memcpy(noise, &header, sizeof(header));
        }
        size_t size = 1 + seed % sizeof(noise);
        say(world.far->rpc_port, noise, size);
        say(world.far->data_port, noise, size);
    }
    say(world.far->rpc_port, "GET / HTTP/1.1\r\n\r\n", 18);
    say(world.far->rpc_port, "\x05\0\0\0\0\0\0\0\x02{{{{", 13); /* a note that is none */
    assert_int_equal(move(&world, MC_TRANSFER_WRITE, world.near_memory, (uintptr_t)world.far_memory, 100000), 0);
    assert_memory_equal(world.near_memory, world.far_seen, 100000);
    world_close(&world);
}

/* Peers that begin and do not go on: others are served, and memory they hold can be taken back. */
static void test_half_open(void **state)
{
    (void)state;
    enum { COUNT = 300 };
    struct world world;
    int fds[2 * COUNT];
    world_open(&world, MC_TRANSFER_PATH_TCP);
    uint8_t *memory = memory_map(1 << 20);
    assert_int_equal(add(world.far, memory, 1 << 20), 0);
    struct mc_tcp_header header = {.length = 1 << 20, .address = (uintptr_t)memory, .opcode = 0x81};
    for (int i = 0; i < COUNT; i++) {
        fds[2 * i] = connect_to(world.far->rpc_port);
        fds[2 * i + 1] = connect_to(world.far->data_port);
        assert_true(send(fds[2 * i], "\x05\0\0", 3, MSG_NOSIGNAL) == 3);
        assert_true(send(fds[2 * i + 1], &header, 24, MSG_NOSIGNAL) == 24); /* and no byte of it */
    }
    uint64_t start_ms = mc_clock_ms();
    assert_int_equal(move(&world, MC_TRANSFER_WRITE, world.near_memory, (uintptr_t)world.far_memory, 1 << 20), 0);
    assert_int_equal(mc_transfer_probe(world.near, mc_transfer_name(world.far)), 0);
    assert_true(mc_clock_ms() - start_ms < 2000);
    assert_int_equal(drop(world.far, memory), 0); /* after a grace */
    assert_true(mc_clock_ms() - start_ms < 8000);
    munmap(memory, 1 << 20);
    for (int i = 0; i < 2 * COUNT; i++)
        close(fds[i]);
    world_close(&world);
}

/* A peer that says nothing on its data port: the call ends by its deadline, and no byte of the caller's memory is
 * touched afterwards. */
static void test_deadline(void **state)
{
    struct beside *beside = *state;
    struct world *world = &beside->world;
    const char *name = beside->name;
    world->near->settings.timeout_ns = 500 * MS_NS;
    struct mc_transfer_item item = {world->near_memory, 4096, 16 << 20};
    for (int opcode = 0; opcode < 2; opcode++) {
        uint64_t start_ms = mc_clock_ms();
        assert_int_equal(mc_transfer_run(world->near, name, (enum mc_transfer_opcode)opcode, &item, 1, NULL),
                         MC_TRANSFER_ERR_TIMEOUT);
        uint64_t spent_ms = mc_clock_ms() - start_ms;
        assert_true(spent_ms >= 500 && spent_ms < 2500);
    }
    int64_t stuck[MC_PEER_WORKERS_MAX + 2];
    world->near->settings.timeout_ns = 1500 * MS_NS;
    for (size_t i = 0; i < MC_PEER_WORKERS_MAX + 2; i++) {
        stuck[i] = mc_transfer_submit(world->near, name, MC_TRANSFER_WRITE, &item, 1, NULL);
        assert_true(stuck[i] > 0);
    }
    /* Others go on meanwhile, also in the background. */
    struct mc_transfer_item fine = {world->near_memory, (uintptr_t)world->far_memory, 65536};
    uint64_t start_ms = mc_clock_ms();
    int64_t id = mc_transfer_submit(world->near, mc_transfer_name(world->far), MC_TRANSFER_WRITE, &fine, 1, NULL);
    assert_int_equal(mc_transfer_wait(world->near, &id, 1), 0);
    assert_true(mc_clock_ms() - start_ms < 1000);
    assert_int_equal(mc_transfer_wait(world->near, stuck, MC_PEER_WORKERS_MAX + 2), MC_TRANSFER_ERR_TIMEOUT);
}

static bool all_workers_are_idle(struct mc_transfer_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    bool are_idle = engine->idle_workers == engine->worker_count;
    pthread_mutex_unlock(&engine->lock);
    return are_idle;
}

/* Two batches that come before the one idle thread has woken up: the second does not wait for the first. */
static void test_burst(void **state)
{
    struct beside *beside = *state;
    struct world *world = &beside->world;
    const char *name = beside->name;
    struct mc_transfer_item fine = {world->near_memory, (uintptr_t)world->far_memory, 65536};
    struct mc_transfer_item item = {world->near_memory, 4096, 16 << 20};
    world->near->settings.timeout_ns = 100 * MS_NS; /* to meet the silent peer */
    assert_true(mc_transfer_run(world->near, name, MC_TRANSFER_WRITE, &item, 1, NULL) < 0);
    world->near->settings.timeout_ns = 2 * SECOND_NS;
    int64_t id = mc_transfer_submit(world->near, mc_transfer_name(world->far), MC_TRANSFER_WRITE, &fine, 1, NULL);
    assert_int_equal(mc_transfer_wait(world->near, &id, 1), 0);
    while (!all_workers_are_idle(world->near))
        usleep(1000);
    int64_t stuck = mc_transfer_submit(world->near, name, MC_TRANSFER_WRITE, &item, 1, NULL);
    id = mc_transfer_submit(world->near, mc_transfer_name(world->far), MC_TRANSFER_WRITE, &fine, 1, NULL);
    assert_true(stuck > 0 && id > 0);
    assert_int_equal(mc_transfer_wait(world->near, &id, 1), 0);
    assert_int_equal(mc_transfer_status(world->near, stuck), 0);
    assert_int_equal(mc_transfer_wait(world->near, &stuck, 1), MC_TRANSFER_ERR_TIMEOUT);
}

/* The peer goes away and another one comes under its name: its port, new memory. */
static void test_peer_again(void **state)
{
    (void)state;
    for (int path = 0; path < MC_TRANSFER_PATHS; path++) {
        struct world world;
        char name[128], first[16], last[16];
        world_open(&world, path);
        snprintf(name, sizeof(name), "%s", mc_transfer_name(world.far));
        assert_int_equal(move(&world, MC_TRANSFER_WRITE, world.near_memory, (uintptr_t)world.far_memory, 5000), 0);
        snprintf(first, sizeof(first), "%u", (unsigned)world.far->rpc_port);
        snprintf(last, sizeof(last), "%u", (unsigned)world.far->rpc_port + 5);
        mc_transfer_close(world.far);
        struct mc_transfer_item item = {world.near_memory, (uintptr_t)world.far_memory, 5000};
        assert_true(mc_transfer_run(world.near, name, MC_TRANSFER_WRITE, &item, 1, NULL) < 0);
        setenv("MC_MIN_RPC_PORT", first, 1);
        setenv("MC_MAX_RPC_PORT", last, 1);
        struct mc_transfer_engine *again = NULL;
        struct mc_transfer_config config = {"127.0.0.1", "P2PHANDSHAKE", "tcp", ""};
        /* Ports are drawn; some may be somebody else's. */
        for (int tries = 0; tries < 500 && again == NULL; tries++) {
            if (mc_transfer_open(&config, &again) == 0 && strcmp(mc_transfer_name(again), name) != 0) {
                mc_transfer_close(again);
                again = NULL;
            }
        }
        unsetenv("MC_MIN_RPC_PORT");
        unsetenv("MC_MAX_RPC_PORT");
        assert_non_null(again);
        world.far = again;
        memset(world.far_seen, 0, 5000);
        assert_true(mc_transfer_run(world.near, name, MC_TRANSFER_WRITE, &item, 1, NULL) <
                    0); /* not registered there */
        assert_int_equal(add(world.far, world.far_memory, MEMORY), 0);
        assert_int_equal(mc_transfer_run(world.near, name, MC_TRANSFER_WRITE, &item, 1, NULL), 0);
        assert_memory_equal(world.near_memory, world.far_seen, 5000);
        world_close(&world);
    }
}

static void test_close_under_way(void **state)
{
    (void)state;
    struct world world;
    world_open(&world, MC_TRANSFER_PATH_TCP);
    struct mc_transfer_item item = {world.near_memory, (uintptr_t)world.far_memory, MEMORY};
    for (int i = 0; i < 20; i++)
        assert_true(mc_transfer_submit(world.near, mc_transfer_name(world.far), MC_TRANSFER_WRITE, &item, 1, NULL) > 0);
    uint64_t start_ms = mc_clock_ms();
    world_close(&world);
    assert_true(mc_clock_ms() - start_ms < 5000);
}

/* Memory that its user has freed without a word: the call fails, the process lives. */
static void test_memory_gone(void **state)
{
    (void)state;
    for (int path = MC_TRANSFER_PATH_HOST; path < VARIANTS; path++) {
        struct world world;
        if (path == MC_TRANSFER_PATH_RDMA)
            continue; /* a device holds the pages that it knows; the fake one does not */
        world_open(&world, path);
        uint8_t *memory = memory_map(8 << 20);
        assert_int_equal(add(world.far, memory, 8 << 20), 0);
        assert_int_equal(move(&world, MC_TRANSFER_WRITE, world.near_memory, (uintptr_t)memory, 8 << 20), 0);
        /* In its place is nothing that can be read: else another thread's memory may come there. */
        assert_ptr_equal(mmap(memory, 8 << 20, PROT_NONE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), memory);
        for (int opcode = 0; opcode < 2; opcode++) {
            assert_true(move(&world, (enum mc_transfer_opcode)opcode, world.near_memory, (uintptr_t)memory, 100) < 0);
            assert_true(move(&world, (enum mc_transfer_opcode)opcode, world.near_memory, (uintptr_t)memory, 8 << 20) <
                        0);
        }
        assert_int_equal(move(&world, MC_TRANSFER_WRITE, world.near_memory, (uintptr_t)world.far_memory, 1 << 20), 0);
        assert_int_equal(drop(world.far, memory), 0);
        munmap(memory, 8 << 20);
        world_close(&world);
    }
}

static void test_fork(void **state)
{
    (void)state;
    struct world world;
    world_open(&world, MC_TRANSFER_PATH_HOST);
    assert_int_equal(move(&world, MC_TRANSFER_WRITE, world.near_memory, (uintptr_t)world.far_memory, 10), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char *name, *message;
        struct mc_transfer_item item = {world.near_memory, (uintptr_t)world.far_memory, 10};
        bool is_dead =
            mc_transfer_run(world.near, "x:1", MC_TRANSFER_WRITE, &item, 1, NULL) == MC_TRANSFER_ERR_INVALID_ARGUMENT &&
            mc_transfer_submit(world.near, "x:1", MC_TRANSFER_WRITE, &item, 1, NULL) < 0 &&
            drop(world.near, world.near_memory) < 0 && add(world.near, &item, 1) < 0 &&
            mc_transfer_take_note(world.near, &name, &message) < 0 && mc_transfer_probe(world.near, "x:1") < 0 &&
            mc_transfer_status(world.near, 65537) < 0 && mc_transfer_allocate(world.near, 10) == NULL &&
            fcntl(world.near->service->epoll_fd, F_GETFD) < 0;
        mc_transfer_close(world.near);
        _exit(is_dead ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(move(&world, MC_TRANSFER_WRITE, world.near_memory, (uintptr_t)world.far_memory, 10), 0);
    world_close(&world);
}

/* The kernel's, in front of which the peer's connection ends with the first large piece, while it is armed. */
static struct {
    struct mc_transfer_engine *_Atomic near;
    int fd;
    _Atomic bool has_ended;
    _Atomic unsigned late; /* pieces since */
} ending;

ssize_t process_vm_writev(pid_t pid, const struct iovec *from, unsigned long from_count, const struct iovec *to,
                          unsigned long to_count, unsigned long flags)
{
    bool is_piece = from_count == 1 && from->iov_len == MC_CREW_PIECE_BYTES;
    ending.late += is_piece && ending.has_ended;
    ssize_t moved = syscall(SYS_process_vm_writev, pid, from, from_count, to, to_count, flags);
    struct mc_transfer_engine *near = is_piece ? atomic_exchange(&ending.near, NULL) : NULL;
    if (near != NULL) {
        near->settings.allow_host = false;
        shutdown(ending.fd, SHUT_RDWR);
        ending.has_ended = true;
    }
    return moved;
}

/* The number of a process that has ended may be another's: nothing is written there, also in the middle of a copy. */
static void test_ended_in_the_middle(void **state)
{
    (void)state;
    struct world world;
    struct mc_peer *peer;
    setenv("MC_COPY_THREADS", "2", 1);
    world_open(&world, MC_TRANSFER_PATH_HOST);
    unsetenv("MC_COPY_THREADS");
    assert_int_equal(move(&world, MC_TRANSFER_WRITE, world.near_memory, (uintptr_t)world.far_memory, 10), 0);
    assert_int_equal(mc_peer_get(world.near, mc_transfer_name(world.far), UINT64_MAX, &peer), 0);
    ending.fd = peer->host->fd;
    mc_peer_release(peer);
    memset(world.near_memory, 7, MEMORY);
    ending.near = world.near;
    assert_int_equal(move(&world, MC_TRANSFER_WRITE, world.near_memory, (uintptr_t)world.far_memory, 16 << 20), 0);
    assert_true(ending.has_ended && ending.late <= 1); /* a helper may be at one */
    ending.has_ended = false;
    assert_memory_equal(world.far_seen, world.near_memory, 16 << 20); /* by tcp */
    world_close(&world);
}

static void test_managed(void **state)
{
    (void)state;
    allow(MC_TRANSFER_PATH_LOCAL);
    struct mc_transfer_engine *engine = open_at("localhost");
    void *memory = mc_transfer_allocate(engine, 100);
    assert_non_null(memory);
    assert_true(mc_transfer_contains(engine, (uintptr_t)memory, 100));
    assert_false(mc_transfer_contains(engine, (uintptr_t)memory, 1 << 20));
    assert_int_equal(mc_transfer_free(engine, (char *)memory + 1), MC_TRANSFER_ERR_ADDRESS_NOT_REGISTERED);
    assert_int_equal(mc_transfer_free(engine, memory), 0);
    assert_int_equal(mc_transfer_free(engine, memory), MC_TRANSFER_ERR_ADDRESS_NOT_REGISTERED);
    assert_null(mc_transfer_allocate(engine, 0));
    assert_null(mc_transfer_allocate(engine, SIZE_MAX));
    assert_non_null(mc_transfer_allocate(engine, 1 << 20)); /* left to close */
    mc_transfer_close(engine);
    mc_transfer_close(NULL);
}

/* ---- memory of a peer of this machine that is mapped ---- */

#define MAPPED ((size_t)48 << 20)
static _Atomic bool holds_unmap, is_unmapping;

/* Of this program: what is large can be made to take long, as it does where the kernel frees many pages. */
int munmap(void *address, size_t length)
{
    if (length >= MAPPED && atomic_load(&holds_unmap)) {
        atomic_store(&is_unmapping, true);
        for (unsigned i = 0; i < 5000 && atomic_load(&holds_unmap); i++)
            usleep(1000);
    }
    return (int)syscall(SYS_munmap, address, length);
}

struct mapped {
    struct world *world;
    uint8_t *gone;
    int result;
};

static void *write_to_gone(void *argument)
{
    struct mapped *mapped = argument;
    mapped->result = move(mapped->world, MC_TRANSFER_WRITE, mapped->world->near_memory, (uintptr_t)mapped->gone, 100);
    return NULL;
}

/* One transfer finds that the peer has given memory up, and gives its map back; the others go on meanwhile. */
static void test_unmapped_beside_others(void **state)
{
    (void)state;
    struct world world;
    pthread_t thread;
    world_open(&world, MC_TRANSFER_PATH_HOST);
    uint8_t *kept = mc_transfer_allocate(world.far, 4096);
    struct mapped mapped = {&world, mc_transfer_allocate(world.far, MAPPED), 0};
    assert_true(kept != NULL && mapped.gone != NULL);
    assert_int_equal(move(&world, MC_TRANSFER_WRITE, world.near_memory, (uintptr_t)kept, 100), 0);
    assert_int_equal(move(&world, MC_TRANSFER_WRITE, world.near_memory, (uintptr_t)mapped.gone, 100), 0);
    assert_int_equal(mc_transfer_free(world.far, mapped.gone), 0);
    atomic_store(&holds_unmap, true);
    assert_int_equal(pthread_create(&thread, NULL, write_to_gone, &mapped), 0);
    for (unsigned i = 0; i < 5000 && !atomic_load(&is_unmapping); i++)
        usleep(1000);
    assert_true(is_unmapping);
    uint64_t begun_ms = mc_clock_ms();
    assert_int_equal(move(&world, MC_TRANSFER_WRITE, world.near_memory, (uintptr_t)kept, 100), 0);
    uint64_t took_ms = mc_clock_ms() - begun_ms;
    atomic_store(&holds_unmap, false);
    pthread_join(thread, NULL);
    assert_true(took_ms < 2000);
    assert_true(mapped.result < 0);
    world_close(&world);
}

/* Which path links say is used to a peer; "" when it is not known. */
static void assert_path(struct mc_transfer_engine *engine, const char *expected)
{
    struct mc_span value;
    char *text = mc_transfer_links(engine);
    assert_non_null(text);
    int rc = mc_json_find(mc_span_string(text), "peers.0.path", &value);
    assert_true(rc == 1 && mc_span_equal(value, mc_span_string(expected)));
    assert_int_equal(mc_json_find(mc_span_string(text), "name", &value), 1);
    assert_true(mc_span_equal(value, mc_span_string(mc_transfer_name(engine))));
    free(text);
}

static void test_segments(void **state)
{
    (void)state;
    for (int path = 0; path < MC_TRANSFER_PATHS; path++) {
        struct world world;
        struct mc_transfer_range ranges[2] = {{7, 7}, {7, 7}};
        world_open(&world, path);
        const char *far = mc_transfer_name(world.far);
        uint8_t *more = memory_map(4096);
        assert_int_equal(add(world.far, more, 4096), 0);
        assert_int_equal(mc_transfer_open_segment(world.near, far), 0);
        assert_path(world.near, "");
        assert_int_equal(mc_transfer_segment_ranges(world.near, far, ranges, 1), 2);
        assert_true(ranges[0].address == (uintptr_t)world.far_memory && ranges[0].length == MEMORY);
        assert_true(ranges[1].address == 7);
        assert_int_equal(mc_transfer_segment_ranges(world.near, far, ranges, 2), 2);
        assert_true(ranges[1].address == (uintptr_t)more && ranges[1].length == 4096);
        assert_int_equal(mc_transfer_segment_ranges(world.near, far, NULL, 0), 2);
        for (int i = 0; i < 3; i++) { /* closed and used again */
            assert_int_equal(move(&world, MC_TRANSFER_WRITE, world.near_memory, (uintptr_t)world.far_memory, 100), 0);
            assert_path(world.near, path_names[path]);
            assert_int_equal(mc_transfer_close_segment(world.near, far), 0);
        }
        assert_int_equal(mc_transfer_close_segment(world.near, "stranger"), 0);
        assert_int_equal(mc_transfer_open_segment(world.near, "127.0.0.1:1"), MC_TRANSFER_ERR_SOCKET);
        assert_int_equal(mc_transfer_segment_ranges(world.near, "127.0.0.1:1", ranges, 2), MC_TRANSFER_ERR_SOCKET);
        assert_string_equal(mc_transfer_host(world.near), "127.0.0.1");
        munmap(more, 4096);
        world_close(&world);
    }
}

static void test_null(void **state)
{
    (void)state;
    enum { BAD = MC_TRANSFER_ERR_INVALID_ARGUMENT };
    struct world world;
    world_open(&world, MC_TRANSFER_PATH_LOCAL);
    const char *far = mc_transfer_name(world.far);
    struct mc_transfer_item item = {world.near_memory, (uintptr_t)world.far_memory, 1};
    const struct mc_transfer_note bad_notes[] = {{NULL, "a"}, {"a", NULL}};
    struct mc_transfer_engine *engines[] = {NULL, world.near};
    struct mc_transfer_counters counters;
    char *text;
    assert_int_equal(mc_transfer_open(NULL, &engines[0]), BAD);
    assert_int_equal(mc_transfer_open(&(struct mc_transfer_config){0}, NULL), BAD);
    assert_int_equal(mc_transfer_rpc_port(NULL), 0);
    assert_string_equal(mc_transfer_name(NULL), "");
    assert_string_equal(mc_transfer_host(NULL), "");
    assert_null(mc_transfer_links(NULL));
    mc_transfer_counters(NULL, &counters);
    mc_transfer_counters(world.near, NULL);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(mc_transfer_run(engines[i], i == 0 ? far : NULL, MC_TRANSFER_READ, &item, 1, NULL), BAD);
        assert_int_equal(mc_transfer_submit(engines[i], i == 0 ? far : NULL, MC_TRANSFER_READ, &item, 1, NULL), BAD);
        assert_int_equal(mc_transfer_run(engines[i], far, MC_TRANSFER_READ, NULL, 1, NULL), BAD);
        assert_int_equal(mc_transfer_submit(engines[i], far, MC_TRANSFER_READ, NULL, 1, NULL), BAD);
        assert_int_equal(mc_transfer_run(engines[i], far, MC_TRANSFER_READ, &item, 1, &bad_notes[i]), BAD);
        assert_int_equal(mc_transfer_submit(engines[i], far, MC_TRANSFER_READ, &item, 1, &bad_notes[i]), BAD);
        assert_int_equal(mc_transfer_notify(engines[i], far, &bad_notes[i]), BAD);
        assert_int_equal(mc_transfer_notify(engines[i], far, NULL), BAD);
        assert_int_equal(mc_transfer_notify(engines[i], NULL, &(struct mc_transfer_note){"a", "b"}), BAD);
        assert_int_equal(mc_transfer_probe(engines[i], NULL), BAD);
        assert_int_equal(mc_transfer_register(engines[i], NULL, 1), BAD);
        assert_int_equal(mc_transfer_unregister(engines[i], NULL, 1), BAD);
        assert_int_equal(mc_transfer_wait(engines[i], NULL, 1), BAD);
        assert_int_equal(mc_transfer_status(engines[i], 0), BAD);
        assert_int_equal(mc_transfer_take_note(engines[i], NULL, &text), BAD);
        assert_int_equal(mc_transfer_take_note(engines[i], &text, NULL), BAD);
        assert_int_equal(mc_transfer_open_segment(engines[i], NULL), BAD);
        assert_int_equal(mc_transfer_close_segment(engines[i], NULL), BAD);
        assert_int_equal(mc_transfer_segment_ranges(engines[i], NULL, NULL, 0), BAD);
        assert_int_equal(mc_transfer_segment_ranges(engines[i], far, NULL, 1), BAD);
        assert_true(mc_transfer_first_address(engines[i], NULL) == 0);
        assert_false(mc_transfer_contains(engines[i], 0, 0));
        assert_null(mc_transfer_allocate(engines[i], 0));
        assert_true(mc_transfer_free(engines[i], NULL) < 0);
    }
    world_close(&world);
}

static void assert_refused(const struct mc_transfer_config *config)
{
    struct mc_transfer_engine *engine = NULL;
    assert_true(mc_transfer_open(config, &engine) < 0);
    assert_null(engine);
}

static void test_bad_config(void **state)
{
    (void)state;
    static const char *const servers[] = {"etcd://127.0.0.1:1",
                                          "etcd://",
                                          "redis://127.0.0.1:1",
                                          "redis://",
                                          "redis://127.0.0.1:6379/a",
                                          "https://127.0.0.1:1/metadata",
                                          "",
                                          "http://",
                                          "http://127.0.0.1:1/metadata",
                                          "http://127.0.0.1:99999/m"};
    static const struct mc_transfer_config others[] = {{"", "P2PHANDSHAKE", "tcp", ""},
                                                       {"[::1", "P2PHANDSHAKE", "tcp", ""},
                                                       {"127.0.0.1", "P2PHANDSHAKE", "xgmi", ""},
                                                       {NULL, NULL, NULL, NULL}};
    allow(MC_TRANSFER_PATH_LOCAL);
    for (size_t i = 0; i < sizeof(servers) / sizeof(servers[0]); i++)
        assert_refused(&(struct mc_transfer_config){"127.0.0.1", servers[i], "tcp", ""});
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        assert_refused(&others[i]);
}

int main(void)
{
#define BESIDE(name) cmocka_unit_test_setup_teardown(name, set_up_beside, tear_down_beside)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_suite),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_many_registrations),
        cmocka_unit_test(test_hostile_bytes),
        cmocka_unit_test(test_half_open),
        BESIDE(test_deadline),
        BESIDE(test_burst),
        cmocka_unit_test(test_peer_again),
        cmocka_unit_test(test_close_under_way),
        cmocka_unit_test(test_memory_gone),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_ended_in_the_middle),
        cmocka_unit_test(test_managed),
        cmocka_unit_test(test_unmapped_beside_others),
        cmocka_unit_test(test_segments),
        cmocka_unit_test(test_null),
        cmocka_unit_test(test_bad_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
