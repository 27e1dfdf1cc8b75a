/* The original's C names, used as its users use them: nothing but transfer_engine_c.h and libtransfer_engine.so, whose
 * functions are those of libmooncake.so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "transfer_engine_c.h"
#include "hold_still.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SIZE ((size_t)4 << 20)

_Static_assert(sizeof(struct transfer_request) == 40 && offsetof(struct transfer_request, source) == 8 &&
                   offsetof(struct transfer_request, target_id) == 16 &&
                   offsetof(struct transfer_request, target_offset) == 24 &&
                   offsetof(struct transfer_request, length) == 32,
               "the original's layout");
_Static_assert(sizeof(struct transfer_status) == 16 && offsetof(struct transfer_status, transferred_bytes) == 8 &&
                   sizeof(struct notify_msg) == 16 && sizeof(struct buffer_entry) == 16 &&
                   sizeof(struct segment_desc) == 48 && sizeof(struct nic_load_stat) == 80 &&
                   offsetof(struct nic_load_stat, inflight_bytes) == 64 &&
                   offsetof(struct nic_load_stat, ewma_bandwidth_bps) == 72,
               "the original's layouts");

struct world {
    transfer_engine_t near, far;
    uint8_t *near_memory, *far_memory;
    char far_name[64];
    segment_id_t far_id;
};

static transfer_engine_t open_engine(void)
{
    transfer_engine_t engine = createTransferEngine("P2PHANDSHAKE", "127.0.0.1:12345", "127.0.0.1", 12345, 0);
    assert_non_null(engine);
    assert_non_null(installTransport(engine, "tcp", NULL));
    assert_int_equal(discoverTopology(engine), 0);
    return engine;
}

static void world_open(struct world *world)
{
    world->near = open_engine();
    world->far = open_engine();
    world->near_memory = aligned_alloc(4096, SIZE);
    world->far_memory = aligned_alloc(4096, SIZE);
    assert_true(world->near_memory != NULL && world->far_memory != NULL);
    memset(world->near_memory, 1, SIZE);
    memset(world->far_memory, 2, SIZE);
    assert_int_equal(registerLocalMemory(world->near, world->near_memory, SIZE, "cpu:0", 1), 0);
    assert_int_equal(registerLocalMemory(world->far, world->far_memory, SIZE, "*", 1), 0);
    assert_int_equal(getLocalIpAndPort(world->far, world->far_name, sizeof(world->far_name)), 0);
    world->far_id = openSegment(world->near, world->far_name);
    assert_true(world->far_id >= 1);
}

static void world_close(struct world *world)
{
    assert_int_equal(unregisterLocalMemory(world->near, world->near_memory), 0);
    assert_int_equal(unregisterLocalMemory(world->far, world->far_memory), 0);
    destroyTransferEngine(world->near);
    destroyTransferEngine(world->far);
    free(world->near_memory);
    free(world->far_memory);
}

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

/* Waits for a task's end, 60 s at most. */
static int finish(transfer_engine_t engine, batch_id_t batch, size_t task)
{
    struct transfer_status status = {-1, 77};
    for (int i = 0; i < 60000; i++) {
        assert_int_equal(getTransferStatus(engine, batch, task, &status), 0);
        if (status.status != STATUS_WAITING) {
            assert_int_equal(status.transferred_bytes == 0, status.status != STATUS_COMPLETED);
            return status.status;
        }
        assert_int_equal(status.transferred_bytes, 0);
        pause_ms(1);
    }
    return -1;
}

static struct transfer_request request(struct world *world, int opcode, size_t near, size_t far, size_t length)
{
    return (struct transfer_request){opcode, world->near_memory + near, world->far_id,
                                     (uintptr_t)world->far_memory + far, length};
}

static void moves(struct world *world)
{
    struct transfer_request entry = request(world, OPCODE_WRITE, 0, 5, 100000);
    batch_id_t batch = allocateBatchID(world->near, 3);
    assert_true(batch != INVALID_BATCH);
    for (size_t i = 0; i < SIZE; i++)
        world->near_memory[i] = (uint8_t)(i * 31 >> 3);
    assert_int_equal(submitTransfer(world->near, batch, &entry, 1), 0);
    assert_int_equal(finish(world->near, batch, 0), STATUS_COMPLETED);
    assert_memory_equal(world->far_memory + 5, world->near_memory, 100000);
    assert_int_equal(finish(world->near, batch, 0), STATUS_COMPLETED); /* it stays so */
    /* Two more tasks of the same batch, in one submission of both directions. */
    struct transfer_request two[2] = {request(world, OPCODE_READ, 200000, 5, 100000),
                                      request(world, OPCODE_WRITE, 0, 300000, 7)};
    assert_int_equal(submitTransfer(world->near, batch, two, 2), 0);
    assert_int_equal(finish(world->near, batch, 1), STATUS_COMPLETED);
    assert_int_equal(finish(world->near, batch, 2), STATUS_COMPLETED);
    assert_memory_equal(world->near_memory + 200000, world->near_memory, 100000);
    assert_memory_equal(world->far_memory + 300000, world->near_memory, 7);
    struct transfer_status status;
    assert_int_equal(submitTransfer(world->near, batch, &entry, 1), 2); /* three have been */
    assert_int_equal(getTransferStatus(world->near, batch, 3, &status), 1);
    assert_int_equal(submitTransfer(world->near, batch, &entry, 0), 0);
    assert_int_equal(freeBatchID(world->near, batch), 0);
    /* Stale everywhere, also when its place is taken again. */
    batch_id_t next = allocateBatchID(world->near, 1);
    assert_true(next != batch);
    assert_int_equal(submitTransfer(world->near, batch, &entry, 1), 1);
    assert_int_equal(getTransferStatus(world->near, batch, 0, &status), 1);
    assert_int_equal(freeBatchID(world->near, batch), 1);
    assert_int_equal(freeBatchID(world->near, next), 0);
}

static void paths(void **state)
{
    static const char *const settings[] = {"", "MC_SAME_PROCESS", "MC_FORCE_TCP"};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct world world;
        unsetenv("MC_SAME_PROCESS");
        if (i > 0)
            setenv(settings[i], "0", 1);
        world_open(&world);
        moves(&world);
        world_close(&world);
    }
    unsetenv("MC_FORCE_TCP");
    unsetenv("MC_SAME_PROCESS");
}

/* To three segments and both ways in one submission; the own segment too. */
static void many(void **state)
{
    (void)state;
    enum { COUNT = 3000 };
    struct world world;
    world_open(&world);
    transfer_engine_t third = open_engine();
    uint8_t *memory = malloc(COUNT);
    char name[64];
    assert_non_null(memory);
    assert_int_equal(registerLocalMemory(third, memory, COUNT, NULL, 1), 0);
    assert_int_equal(getLocalIpAndPort(third, name, sizeof(name)), 0);
    segment_id_t third_id = openSegment(world.near, name);
    assert_true(third_id > 0 && third_id != world.far_id);
    assert_int_equal(openSegmentNoCache(world.near, name), third_id);
    struct transfer_request *entries = calloc(COUNT, sizeof(*entries));
    assert_non_null(entries);
    for (size_t i = 0; i < COUNT; i++) {
        uint64_t target = i % 3 == 0   ? (uintptr_t)world.far_memory + i
                          : i % 3 == 1 ? (uintptr_t)memory + i
                                       : (uintptr_t)world.near_memory + (1 << 20) + i;
        entries[i] = (struct transfer_request){OPCODE_WRITE, world.near_memory + i,
                                               i % 3 == 0   ? world.far_id
                                               : i % 3 == 1 ? third_id
                                                            : LOCAL_SEGMENT,
                                               target, 1};
        world.near_memory[i] = (uint8_t)(i * 7);
    }
    batch_id_t batch = allocateBatchID(world.near, COUNT);
    notify_msg_t note = {(char *)(uintptr_t) "all", (char *)(uintptr_t) "moved"};
    assert_int_equal(submitTransferWithNotify(world.near, batch, entries, COUNT, note), 0);
    for (size_t i = 0; i < COUNT; i++)
        assert_int_equal(finish(world.near, batch, i), STATUS_COMPLETED);
    for (size_t i = 0; i < COUNT; i++)
        assert_int_equal(*(uint8_t *)(uintptr_t)entries[i].target_offset, (uint8_t)(i * 7));
    int size = -1;
    notify_msg_t *notes = getNotifsFromEngine(world.far, &size); /* the first entry's */
    assert_int_equal(size, 1);
    assert_string_equal(notes[0].name, "all");
    assert_string_equal(notes[0].msg, "moved");
    assert_int_equal(freeNotifsMsgBuf(notes, size), 0);
    assert_int_equal(freeBatchID(world.near, batch), 0);
    free(entries);
    destroyTransferEngine(third);
    free(memory);
    world_close(&world);
}

static void notes(void **state)
{
    (void)state;
    struct world world;
    world_open(&world);
    int size = -1;
    assert_null(getNotifsFromEngine(world.far, &size));
    assert_int_equal(size, 0);
    notify_msg_t note = {(char *)(uintptr_t) "n\"ame", (char *)(uintptr_t) ""};
    for (int i = 0; i < 20; i++)
        assert_int_equal(genNotifyInEngine(world.near, (uint64_t)world.far_id, note), 0);
    struct transfer_request entry = request(&world, OPCODE_WRITE, 0, 0, 9);
    batch_id_t batch = allocateBatchID(world.near, 1);
    assert_int_equal(submitTransferWithNotify(world.near, batch, &entry, 1, note), 0);
    int received = 0;
    for (int i = 0; i < 5000 && received < 21; i++) { /* nobody asks for the status: it comes by itself */
        notify_msg_t *some = getNotifsFromEngine(world.far, &size);
        for (int j = 0; j < size; j++)
            assert_string_equal(some[j].name, "n\"ame");
        received += size;
        assert_int_equal(freeNotifsMsgBuf(some, size), 0);
        pause_ms(1);
    }
    assert_int_equal(received, 21);
    assert_int_equal(finish(world.near, batch, 0), STATUS_COMPLETED);
    /* What fails sends none. */
    entry.target_offset = 64;
    batch_id_t bad = allocateBatchID(world.near, 1);
    assert_int_equal(submitTransferWithNotify(world.near, bad, &entry, 1, note), 0);
    assert_int_equal(finish(world.near, bad, 0), STATUS_FAILED);
    assert_null(getNotifsFromEngine(world.far, &size));
    assert_int_equal(genNotifyInEngine(world.near, 99, note), -1);
    assert_int_equal(genNotifyInEngine(world.near, UINT64_MAX, note), -1);
    notify_msg_t none = {NULL, NULL};
    assert_int_equal(genNotifyInEngine(world.near, (uint64_t)world.far_id, none), -1);
    assert_int_equal(submitTransferWithNotify(world.near, bad, &entry, 1, none), 1);
    world_close(&world);
}

static void memory(void **state)
{
    (void)state;
    struct world world;
    world_open(&world);
    uint8_t *near = world.near_memory;
    assert_int_equal(registerLocalMemory(world.near, near + 5, 1, "*", 1), -7);
    assert_int_equal(registerLocalMemory(world.near, near + SIZE, 0, "*", 1), -1);
    assert_int_equal(registerLocalMemory(world.near, NULL, 5, "*", 1), -1);
    assert_int_equal(unregisterLocalMemory(world.near, near + 5), -3);
    assert_int_equal(unregisterLocalMemory(world.near, NULL), -3);
    static uint8_t bytes[4096];
    /* All or none. */
    buffer_entry_t list[3] = {{bytes, 100}, {bytes + 100, 100}, {near + 7, 1}};
    void *addresses[3] = {bytes, bytes + 100, near + 7};
    assert_int_equal(registerLocalMemoryBatch(world.near, list, 3, "*"), -7);
    assert_int_equal(unregisterLocalMemoryBatch(world.near, addresses, 2), -3);
    assert_int_equal(registerLocalMemoryBatch(world.near, list, 2, "*"), 0);
    assert_int_equal(unregisterLocalMemoryBatch(world.near, addresses, 3), -3); /* and the others are taken back */
    assert_int_equal(registerLocalMemoryBatch(world.near, list, 2, "*"), 0);
    assert_int_equal(unregisterLocalMemoryBatch(world.near, addresses, 2), 0);
    list[1] = list[0]; /* with each other */
    assert_int_equal(registerLocalMemoryBatch(world.near, list, 2, "*"), -7);
    assert_int_equal(registerLocalMemoryBatch(world.near, NULL, 2, "*"), -1);
    assert_int_equal(registerLocalMemoryBatch(world.near, list, 0, "*"), 0);
    assert_int_equal(unregisterLocalMemoryBatch(world.near, NULL, 2), -1);
    assert_int_equal(unregisterLocalMemoryBatch(world.near, addresses, 0), 0);
    /* Peers do not reach what is not for them. */
    assert_int_equal(registerLocalMemory(world.far, bytes, sizeof(bytes), "*", 0), 0);
    assert_int_equal(registerLocalMemory(world.far, bytes, 1, "*", 0), -7);
    struct transfer_request entry = {OPCODE_WRITE, near, world.far_id, (uintptr_t)bytes, 8};
    batch_id_t batch = allocateBatchID(world.near, 1);
    assert_int_equal(submitTransfer(world.near, batch, &entry, 1), 0);
    assert_int_equal(finish(world.near, batch, 0), STATUS_FAILED);
    assert_int_equal(freeBatchID(world.near, batch), 0);
    assert_int_equal(unregisterLocalMemory(world.far, bytes), 0);
    assert_int_equal(unregisterLocalMemory(world.far, bytes), -3);
    world_close(&world);
}

/* ---- what must not crash ---- */

static void every_call(transfer_engine_t engine, struct world *world)
{
    struct transfer_request entry = request(world, OPCODE_WRITE, 0, 0, 1);
    struct transfer_status status;
    notify_msg_t note = {(char *)(uintptr_t) "a", (char *)(uintptr_t) "b"};
    buffer_entry_t buffer = {world->near_memory, 1};
    void *address = world->near_memory;
    nic_load_stat_t load;
    size_t count = 1;
    char text[64];
    int size = 5;
    assert_int_equal(discoverTopology(engine), -1);
    assert_int_equal(getLocalIpAndPort(engine, text, sizeof(text)), -1);
    assert_null(installTransport(engine, "tcp", NULL));
    assert_int_equal(uninstallTransport(engine, "tcp"), -1);
    assert_int_equal(openSegment(engine, world->far_name), -1);
    assert_int_equal(openSegmentNoCache(engine, world->far_name), -1);
    assert_int_equal(closeSegment(engine, 1), -1);
    assert_int_equal(removeLocalSegment(engine, "a"), -1);
    assert_int_equal(syncSegmentCache(engine), -1);
    assert_int_equal(registerLocalMemory(engine, text, 1, "*", 1), -1);
    assert_int_equal(unregisterLocalMemory(engine, text), -1);
    assert_int_equal(registerLocalMemoryBatch(engine, &buffer, 1, "*"), -1);
    assert_int_equal(unregisterLocalMemoryBatch(engine, &address, 1), -1);
    assert_true(allocateBatchID(engine, 1) == INVALID_BATCH);
    assert_int_equal(submitTransfer(engine, 1, &entry, 1), 1);
    assert_int_equal(submitTransferWithNotify(engine, 1, &entry, 1, note), 1);
    assert_int_equal(getTransferStatus(engine, 1, 0, &status), 1);
    assert_int_equal(freeBatchID(engine, 1), 1);
    assert_null(getNotifsFromEngine(engine, &size));
    assert_int_equal(size, 0);
    assert_int_equal(genNotifyInEngine(engine, 1, note), -1);
    assert_true(warmupEfaSegment(engine, "a") < 0);
    text[0] = 'x';
    assert_int_equal(showLinks(engine, text, sizeof(text), 0), -1);
    assert_int_equal(getNicLoadStats(engine, &load, &count), -1);
    assert_int_equal(count, 1);
    enableGracefulShutdown(engine);
    destroyTransferEngine(engine);
}

static void bad_engines(void **state)
{
    (void)state;
    struct world world;
    world_open(&world);
    transfer_engine_t gone = open_engine();
    destroyTransferEngine(gone);
    every_call(gone, &world);
    every_call(NULL, &world);
    every_call(&world, &world);
    every_call((void *)1, &world);
    every_call((void *)UINTPTR_MAX, &world);
    transfer_engine_t other = open_engine(); /* in the same place */
    assert_true(other != gone);
    every_call(gone, &world);
    destroyTransferEngine(other);
    assert_null(createTransferEngine(NULL, NULL, NULL, 0, 1));
    assert_null(createTransferEngine("P2PHANDSHAKE", NULL, NULL, 0, 1));
    assert_null(createTransferEngine("ftp://127.0.0.1", "a", "", 0, 1));
    assert_null(createTransferEngine("http://127.0.0.1:1/metadata", "a", "", 0, 0));
    world_close(&world);
}

static void bad_names(void **state)
{
    (void)state;
    struct world world;
    world_open(&world);
    transfer_engine_t near = world.near;
    char text[64], long_name[2000];
    memset(long_name, 'a', sizeof(long_name) - 1);
    long_name[sizeof(long_name) - 1] = 0;
    assert_int_equal(getLocalIpAndPort(near, NULL, 10), -1);
    assert_int_equal(getLocalIpAndPort(near, text, 0), -1);
    assert_int_equal(getLocalIpAndPort(near, text, strlen(world.far_name)), -1); /* no room for its zero */
    assert_int_equal(getLocalIpAndPort(near, text, strlen(world.far_name) + 1), 0);
    assert_null(installTransport(near, NULL, NULL));
    assert_null(installTransport(near, "nvlink", NULL));
    assert_int_equal(uninstallTransport(near, NULL), -1);
    assert_int_equal(uninstallTransport(near, "tcp"), 0);
    static const char *const names[] = {NULL, "", "/", "127.0.0.1:1", "no such host:1", "[::1"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        assert_int_equal(openSegment(near, names[i]), -1);
        assert_int_equal(openSegmentNoCache(near, names[i]), -1);
    }
    assert_int_equal(openSegment(near, long_name), -1);
    snprintf(text, sizeof(text), "/%s", world.far_name);
    assert_int_equal(openSegment(near, text), world.far_id);
    assert_int_equal(closeSegment(near, 77), -1);
    assert_int_equal(closeSegment(near, -1), -1);
    assert_int_equal(removeLocalSegment(near, NULL), -1);
    assert_int_equal(removeLocalSegment(near, "stranger"), 0);
    assert_int_equal(closeSegment(near, world.far_id), 0); /* and it goes on */
    assert_int_equal(syncSegmentCache(near), 0);
    world_close(&world);
}

static void bad_arguments(void **state)
{
    (void)state;
    struct world world;
    world_open(&world);
    transfer_engine_t near = world.near;
    struct transfer_request good = request(&world, OPCODE_WRITE, 0, 0, 1), bad;
    struct transfer_status status;
    assert_true(allocateBatchID(near, SIZE_MAX) == INVALID_BATCH);
    batch_id_t batch = allocateBatchID(near, 4);
    assert_int_equal(getTransferStatus(near, batch, 0, &status), 1); /* no task yet */
    assert_int_equal(submitTransfer(near, batch, NULL, 1), 1);
    assert_int_equal(submitTransfer(near, batch, &good, SIZE_MAX), 2);
    assert_int_equal(submitTransfer(near, INVALID_BATCH, &good, 1), 1);
    assert_int_equal(submitTransfer(near, 0, &good, 1), 1);
    bad = good, bad.opcode = 2;
    assert_int_equal(submitTransfer(near, batch, &bad, 1), 1);
    bad = good, bad.target_id = 77;
    assert_int_equal(submitTransfer(near, batch, &bad, 1), 1);
    bad = good, bad.target_id = INT32_MIN;
    assert_int_equal(submitTransfer(near, batch, &bad, 1), 1);
    bad = good, bad.source = NULL;
    assert_int_equal(submitTransfer(near, batch, &bad, 1), 1);
    bad = good, bad.length = UINT64_MAX;
    assert_int_equal(submitTransfer(near, batch, &bad, 1), 1);
    struct transfer_request three[3] = {good, good, bad}; /* one is bad: none is begun */
    assert_int_equal(submitTransfer(near, batch, three, 3), 1);
    assert_int_equal(getTransferStatus(near, batch, 0, &status), 1);
    bad = good, bad.length = 0; /* nothing to do */
    assert_int_equal(submitTransfer(near, batch, &bad, 1), 0);
    for (int i = 0; i < 10000 && (getTransferStatus(near, batch, 0, &status), status.status) == STATUS_WAITING; i++)
        pause_ms(1);
    assert_int_equal(status.status, STATUS_COMPLETED);
    bad = good, bad.target_offset = (uintptr_t)world.far_memory + SIZE; /* where nothing is registered */
    assert_int_equal(submitTransfer(near, batch, &bad, 1), 0);
    assert_int_equal(finish(near, batch, 1), STATUS_FAILED);
    assert_int_equal(getTransferStatus(near, batch, 0, NULL), 1);
    assert_int_equal(getTransferStatus(near, batch, SIZE_MAX, &status), 1);
    assert_int_equal(freeBatchID(near, batch), 0);
    assert_null(getNotifsFromEngine(near, NULL));
    assert_int_equal(freeNotifsMsgBuf(NULL, 5), 0);
    world_close(&world);
}

/* Ids are never given twice, and there may be many; each engine has its own. */
static void many_batches(void **state)
{
    (void)state;
    enum { COUNT = 65536 };
    struct world world;
    world_open(&world);
    batch_id_t *ids = calloc(COUNT, sizeof(*ids));
    assert_non_null(ids);
    for (size_t i = 0; i < COUNT; i++)
        assert_true((ids[i] = allocateBatchID(world.near, i % 3)) != INVALID_BATCH);
    assert_true(allocateBatchID(world.near, 1) == INVALID_BATCH);
    assert_int_equal(freeBatchID(world.far, ids[5]), 1);
    for (size_t i = 0; i < COUNT; i += 2)
        assert_int_equal(freeBatchID(world.near, ids[i]), 0);
    for (size_t i = 0; i < COUNT; i += 2) {
        batch_id_t id = allocateBatchID(world.near, 1);
        assert_true(id != INVALID_BATCH && id != ids[i]);
        assert_int_equal(freeBatchID(world.near, ids[i]), 1);
    }
    free(ids);
    world_close(&world); /* with all of them open */
}

/* A peer that ended: its tasks fail, and the batch can be freed; one whose segment is not there any more, too. */
static void peer_gone(void **state)
{
    (void)state;
    setenv("MC_FORCE_TCP", "1", 1);
    struct world world;
    world_open(&world);
    transfer_engine_t third = open_engine();
    char name[64];
    assert_int_equal(getLocalIpAndPort(third, name, sizeof(name)), 0);
    segment_id_t id = openSegment(world.near, name);
    assert_true(id > 0);
    destroyTransferEngine(third);
    struct transfer_request entries[2] = {request(&world, OPCODE_WRITE, 0, 0, 1000),
                                          {OPCODE_READ, world.near_memory + 5000, id, 4096, 10}};
    for (int i = 0; i < 2; i++) {
        batch_id_t batch = allocateBatchID(world.near, 2);
        assert_int_equal(submitTransfer(world.near, batch, entries, 2), 0);
        assert_int_equal(finish(world.near, batch, 0), STATUS_COMPLETED); /* another segment's */
        assert_int_equal(finish(world.near, batch, 1), STATUS_FAILED);
        assert_int_equal(freeBatchID(world.near, batch), 0);
        assert_int_equal(syncSegmentCache(world.near), 0); /* then it is not even begun */
    }
    world_close(&world);
    unsetenv("MC_FORCE_TCP");
}

/* A stopped peer holds its batch until the deadline: busy, then failed. NIXL's plugin takes every other end for a
 * success. */
static void busy(void **state)
{
    (void)state;
    setenv("MC_FORCE_TCP", "1", 1);
    setenv("MC_TRANSFER_TIMEOUT", "5", 1);
    int pipes[2], go[2];
    assert_true(pipe(pipes) == 0 && pipe(go) == 0);
    pid_t child = fork(); /* before this process has threads of its own that would be missing there */
    if (child == 0) {
        char name[64] = "";
        transfer_engine_t engine = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 0);
        uint8_t *bytes = aligned_alloc(4096, SIZE);
        bool is_fine = bytes != NULL && registerLocalMemory(engine, bytes, SIZE, "*", 1) == 0 &&
                       getLocalIpAndPort(engine, name, sizeof(name)) == 0;
        uintptr_t address = (uintptr_t)bytes;
        is_fine = is_fine && write(pipes[1], name, sizeof(name)) == sizeof(name) &&
                  write(pipes[1], &address, sizeof(address)) == sizeof(address);
        char byte;
        _exit(is_fine && read(go[0], &byte, 1) == 1 ? 0 : 1);
    }
    char name[64];
    uintptr_t address = 0;
    assert_true(read(pipes[0], name, sizeof(name)) == sizeof(name) &&
                read(pipes[0], &address, sizeof(address)) == sizeof(address));
    struct world world;
    world_open(&world);
    segment_id_t id = openSegment(world.near, name);
    assert_true(id > 0);
    hold_still(child);
    struct transfer_request entry = {OPCODE_READ, world.near_memory, id, address, SIZE};
    batch_id_t batch = allocateBatchID(world.near, 1);
    assert_int_equal(submitTransfer(world.near, batch, &entry, 1), 0);
    assert_int_equal(freeBatchID(world.near, batch), 4);
    struct transfer_status status;
    assert_int_equal(getTransferStatus(world.near, batch, 0, &status), 0);
    assert_int_equal(status.status, STATUS_WAITING);
    assert_int_equal(finish(world.near, batch, 0), STATUS_FAILED);
    assert_int_equal(freeBatchID(world.near, batch), 0);
    int ended = -1;
    assert_int_equal(kill(child, SIGCONT), 0);
    assert_int_equal(write(go[1], "x", 1), 1);
    assert_true(waitpid(child, &ended, 0) == child && ended == 0);
    for (int i = 0; i < 2; i++) {
        close(pipes[i]);
        close(go[i]);
    }
    unsetenv("MC_TRANSFER_TIMEOUT");
    unsetenv("MC_FORCE_TCP");
    world_close(&world);
}

/* Text is cut where it does not fit, JSON never. */
static void links(void **state)
{
    (void)state;
    static char text[65536], whole[65536];
    struct world world;
    world_open(&world);
    struct transfer_request entry = request(&world, OPCODE_WRITE, 0, 0, 9);
    batch_id_t batch = allocateBatchID(world.near, 1);
    assert_int_equal(submitTransfer(world.near, batch, &entry, 1), 0);
    assert_int_equal(finish(world.near, batch, 0), STATUS_COMPLETED);
    assert_int_equal(freeBatchID(world.near, batch), 0);
    assert_int_equal(showLinks(world.near, whole, sizeof(whole), 0), 0);
    assert_non_null(strstr(whole, "RDMA devices:\n"));
    assert_non_null(strstr(whole, world.far_name));
    assert_non_null(strstr(whole, "path local"));
    for (size_t size = 1; size < 60; size += 29) {
        memset(text, 'x', size + 1);
        assert_int_equal(showLinks(world.near, text, size, 0), 0);
        assert_true(strlen(text) == size - 1 && memcmp(text, whole, size - 1) == 0 && text[size] == 'x');
    }
    assert_int_equal(showLinks(world.near, whole, sizeof(whole), 1), 0);
    assert_non_null(strstr(whole, "\"local_nics\":["));
    assert_non_null(strstr(whole, "\"topology\":{"));
    assert_non_null(strstr(whole, "\"path\":\"local\""));
    assert_int_equal(showLinks(world.near, text, strlen(whole), 1), -1); /* no room for its zero */
    assert_string_equal(text, "");
    assert_int_equal(showLinks(world.near, text, strlen(whole) + 1, 7), 0);
    assert_string_equal(text, whole);
    assert_int_equal(showLinks(world.near, NULL, 10, 0), -1);
    assert_int_equal(showLinks(world.near, text, 0, 0), -1);
    assert_int_equal(warmupEfaSegment(world.near, world.far_name), 0);
    nic_load_stat_t loads[2];
    size_t count = 2;
    assert_int_equal(getNicLoadStats(world.near, NULL, &count), -1);
    assert_int_equal(getNicLoadStats(world.near, loads, NULL), -1);
    assert_int_equal(count, 2);
    assert_int_equal(getNicLoadStats(world.near, loads, &count), 0);
    assert_int_equal(count, 0);
    world_close(&world);
}

/* ---- threads, and the end of an engine under them ---- */

struct mover {
    struct world *world;
    size_t number;
    _Atomic bool *stop;
    _Atomic unsigned done;
};

static void *move(void *argument)
{
    struct mover *mover = argument;
    struct world *world = mover->world;
    while (!*mover->stop) {
        struct transfer_request entry =
            request(world, OPCODE_WRITE, mover->number * 65536, mover->number * 65536, 65536);
        batch_id_t batch = allocateBatchID(world->near, 1);
        struct transfer_status status = {STATUS_WAITING, 0};
        if (batch == INVALID_BATCH || submitTransfer(world->near, batch, &entry, 1) != 0)
            break; /* the engine is gone */
        while (status.status == STATUS_WAITING && getTransferStatus(world->near, batch, 0, &status) == 0)
            sched_yield();
        mover->done += status.status == STATUS_COMPLETED;
        (void)freeBatchID(world->near, batch); /* the engine may be gone by now */
    }
    return NULL;
}

static void threads(void **state)
{
    (void)state;
    for (int round = 0; round < 3; round++) {
        struct world world;
        _Atomic bool stop = false;
        pthread_t ids[6];
        struct mover movers[6];
        world_open(&world);
        for (size_t i = 0; i < 6; i++) {
            movers[i] = (struct mover){&world, i, &stop, 0};
            assert_int_equal(pthread_create(&ids[i], NULL, move, &movers[i]), 0);
        }
        for (size_t i = 0; i < 6; i++) /* each has its turn, however busy the machine is */
            for (unsigned waited_ms = 0; movers[i].done == 0 && waited_ms < 60000; waited_ms += 10)
                pause_ms(10);
        pause_ms(200);
        if (round == 0)
            stop = true;
        else
            destroyTransferEngine(world.near); /* under them */
        for (size_t i = 0; i < 6; i++) {
            pthread_join(ids[i], NULL);
            assert_true(movers[i].done > 0);
        }
        if (round == 0)
            assert_memory_equal(world.near_memory, world.far_memory, 6 * 65536);
        destroyTransferEngine(world.near);
        destroyTransferEngine(world.far);
        free(world.near_memory);
        free(world.far_memory);
    }
}

static void fork_child(void **state)
{
    (void)state;
    struct world world;
    world_open(&world);
    pid_t child = fork();
    if (child == 0) {
        bool is_refused =
            openSegment(world.near, world.far_name) == -1 && allocateBatchID(world.near, 1) == INVALID_BATCH;
        destroyTransferEngine(world.near);
#ifndef __SANITIZE_THREAD__ /* which ends a child that starts threads */
        transfer_engine_t own = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 0);
        is_refused = is_refused && own != NULL && openSegment(own, world.far_name) > 0;
#endif
        _exit(is_refused ? 0 : 1);
    }
    int status = -1;
    assert_true(waitpid(child, &status, 0) == child && status == 0);
    moves(&world);
    world_close(&world);
}

int main(void)
{
    setenv("MC_TCP_BIND_ADDRESS", "127.0.0.1", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(busy),          cmocka_unit_test(paths),     cmocka_unit_test(many),
        cmocka_unit_test(notes),         cmocka_unit_test(memory),    cmocka_unit_test(bad_engines),
        cmocka_unit_test(bad_arguments), cmocka_unit_test(bad_names), cmocka_unit_test(many_batches),
        cmocka_unit_test(peer_gone),     cmocka_unit_test(threads),   cmocka_unit_test(fork_child),
        cmocka_unit_test(links),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
