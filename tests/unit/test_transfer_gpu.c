/* Engines whose memory is a device's, on either side and on both, over every path, against a stand-in of the driver
 * whose memory nobody but the driver can touch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/bytes.h"
#include "env/clock.h"
#include "fake_cuda_load.h"
#include "fake_verbs.h"
#include "silent_peer.h"
#include "transfer/wire/tcp_wire.h"
#include "transfer/peer/rdma_lane.h"
#include "transfer/serve/memory.h"
#include "transfer/state/engine.h"
#include "transfer/state/region.h"
#include "transfer/wire/document.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MEMORY ((size_t)20 << 20)
#define UNIT MC_GPU_UNIT_BYTES
#ifdef __SANITIZE_THREAD__ /* some thirty times slower */
#define REFUSALS 6u
#else
#define REFUSALS 24u
#endif

enum { LANES = MC_TRANSFER_PATHS, WITHOUT_DMABUF, VARIANTS };
enum { NEAR_DEVICE = 1, FAR_DEVICE = 2 };
static struct fake_cuda fake;
static uint64_t device_near, device_far, managed;
static uint8_t *host_near, *host_far;

struct world {
    int path;
    struct mc_transfer_engine *near, *far;
    uint8_t *near_memory, *near_seen;
    uint64_t far_address;
    uint8_t *far_seen;
};

static void *fake_seen(uint64_t address)
{
    return fake.fake_cuda_seen(address);
}

static uint8_t *map(void)
{
    void *memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    return memory;
}

static int setup(void **state)
{
    (void)state;
    if (fake_cuda_load(&fake) != 0)
        return -1;
    fake.fake_cuda_ordering(0);
    device_near = fake.fake_cuda_allocate(MEMORY, 0, 0);
    device_far = fake.fake_cuda_allocate(MEMORY, 1, 0);
    managed = fake.fake_cuda_allocate(MEMORY, 0, 1);
    host_near = map();
    host_far = map();
    return device_near != 0 && device_far != 0 && managed != 0 ? 0 : -1;
}

static struct mc_transfer_engine *open_here(const char *device)
{
    struct mc_transfer_config config = {"127.0.0.1", "P2PHANDSHAKE", device == NULL ? "" : "rdma", device};
    struct mc_transfer_engine *engine = NULL;
    assert_int_equal(mc_transfer_open(&config, &engine), 0);
    return engine;
}

static int add(struct mc_transfer_engine *engine, uint64_t address, uint64_t size)
{
    return mc_transfer_register(engine, &(struct mc_transfer_range){address, size}, 1);
}

/* Two RDMA devices, near's and far's; has_dmabuf: that reach memory of GPUs. */
static void verbs_open(bool has_dmabuf)
{
    struct fake_device_config devices[] = {fake_roce(0), fake_roce(1)};
    uint64_t first = device_near < device_far ? device_near : device_far;
    devices[0].has_dmabuf = devices[1].has_dmabuf = has_dmabuf;
    fake_reset(devices, 2);
    fake_gpu_memory((void *)(uintptr_t)first, (size_t)(device_near + device_far - 2 * first + FAKE_CUDA_ARENA));
    fake_gpu_reach(fake_seen);
    mc_transfer_verbs = fake_verbs();
    setenv("MC_SAME_PROCESS", "0", 1);
    setenv("MC_SAME_HOST", "0", 1);
}

static void world_open(struct world *world, int path, int devices)
{
    bool is_rdma = path == MC_TRANSFER_PATH_RDMA || path == WITHOUT_DMABUF;
    unsetenv("MC_FORCE_TCP");
    unsetenv("MC_SAME_PROCESS");
    unsetenv("MC_SAME_HOST");
    unsetenv("MC_TCP_LANES_PER_PEER");
    if (path == LANES)
        setenv("MC_TCP_LANES_PER_PEER", "5", 1);
    if (path == MC_TRANSFER_PATH_HOST)
        setenv("MC_SAME_PROCESS", "0", 1);
    if (path == MC_TRANSFER_PATH_TCP || path == LANES)
        setenv("MC_FORCE_TCP", "1", 1);
    if (is_rdma)
        verbs_open(path == MC_TRANSFER_PATH_RDMA);
    world->path = path < MC_TRANSFER_PATHS ? path : MC_TRANSFER_PATH_TCP;
    world->near = open_here(is_rdma ? "fake0" : NULL);
    world->far = open_here(is_rdma ? "fake1" : NULL);
    uint64_t near = (devices & NEAR_DEVICE) != 0 ? device_near : (uintptr_t)host_near;
    world->far_address = (devices & FAR_DEVICE) != 0 ? device_far : (uintptr_t)host_far;
    world->near_memory = (uint8_t *)(uintptr_t)near;
    world->near_seen = fake.fake_cuda_seen(near);
    world->far_seen = fake.fake_cuda_seen(world->far_address);
    assert_int_equal(add(world->far, world->far_address, MEMORY), 0);
    if (is_rdma)
        assert_int_equal(add(world->near, near, MEMORY), 0);
    assert_true(mc_gpu_is_there());
}

static void world_close(struct world *world)
{
    mc_transfer_close(world->near);
    mc_transfer_close(world->far);
    for (int call = 0; call < FAKE_CUDA_CALLS; call++)
        fake.fake_cuda_fail(call, 0, 0, 0);
    assert_int_equal(fake.fake_cuda_number(FAKE_CUDA_PENDING), 0);
    assert_int_equal(fake.fake_cuda_number(FAKE_CUDA_DEPTH), 0);
    assert_int_equal(fake.fake_cuda_number(FAKE_CUDA_MISTAKES), 0);
}

static int run(struct world *world, enum mc_transfer_opcode opcode, const struct mc_transfer_item *items, size_t count)
{
    return mc_transfer_run(world->near, mc_transfer_name(world->far), opcode, items, count, NULL);
}

static void fill(uint8_t *memory, size_t size, unsigned seed)
{
    uint32_t word = seed * 2654435761u + 1;
    for (size_t i = 0; i < size; i++) {
        word = word * 1664525u + 1013904223u;
        memory[i] = (uint8_t)(word >> 24);
    }
}

static uint64_t moved_by(struct world *world, int path)
{
    struct mc_transfer_counters counters;
    mc_transfer_counters(world->near, &counters);
    return counters.bytes[path];
}

/* ---- there and back ---- */

static void move(struct world *world, uint64_t length, unsigned odd, unsigned seed)
{
    struct mc_transfer_item item = {world->near_memory + odd, world->far_address + 2 * odd, length};
    fill(world->near_seen + odd, length, seed);
    world->far_seen[2 * odd + length] = 0x5a;
    assert_int_equal(run(world, MC_TRANSFER_WRITE, &item, 1), 0);
    assert_memory_equal(world->near_seen + odd, world->far_seen + 2 * odd, length);
    assert_int_equal(world->far_seen[2 * odd + length], 0x5a);
    fill(world->far_seen + 2 * odd, length, seed + 1);
    world->near_seen[odd + length] = 0xa5;
    assert_int_equal(run(world, MC_TRANSFER_READ, &item, 1), 0);
    assert_memory_equal(world->near_seen + odd, world->far_seen + 2 * odd, length);
    assert_int_equal(world->near_seen[odd + length], 0xa5);
    assert_int_equal(fake.fake_cuda_number(FAKE_CUDA_PENDING), 0);
}

static void there_and_back(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {1,       17,       4096,     65536,        65537,           (512 << 10) + 1,
                                       1 << 20, UNIT - 1, UNIT + 1, 2 * UNIT + 3, 4 * UNIT + 70000};
    for (int path = 0; path < VARIANTS; path++) {
        for (int devices = NEAR_DEVICE; devices <= (NEAR_DEVICE | FAR_DEVICE); devices++) {
            struct world world;
            uint64_t bytes = 0;
            world_open(&world, path, devices);
            for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
                move(&world, lengths[i], (unsigned)i % 3 * 7, (unsigned)i);
                bytes += 2 * lengths[i];
            }
            /* Peers of this machine cannot reach into a device's memory: that goes over tcp. */
            int used =
                world.path == MC_TRANSFER_PATH_HOST && (devices & FAR_DEVICE) != 0 ? MC_TRANSFER_PATH_TCP : world.path;
            assert_int_equal(moved_by(&world, used), bytes);
            world_close(&world);
        }
    }
}

#define MANY 700u

static void batches(void **state)
{
    (void)state;
    static struct mc_transfer_item items[MANY];
    for (int path = 0; path < VARIANTS; path++) {
        struct world world;
        uint64_t at = 0;
        world_open(&world, path, NEAR_DEVICE | FAR_DEVICE);
        if (path == MC_TRANSFER_PATH_RDMA)
            assert_int_equal(add(world.near, (uintptr_t)host_near, MEMORY), 0);
        fill(world.near_seen, MEMORY, 1);
        fill(host_near, MEMORY, 2);
        memset(world.far_seen, 0, MEMORY);
        for (size_t i = 0; i < MANY; i++) {
            uint64_t length = i == 300 ? UNIT + 5 : i % 97 == 0 ? 0 : 1 + i * 37 % 9000;
            bool is_host = i % 5 == 4;
            items[i] = (struct mc_transfer_item){(is_host ? host_near : world.near_memory) + at, world.far_address + at,
                                                 length};
            at += length;
        }
        assert_int_equal(run(&world, MC_TRANSFER_WRITE, items, MANY), 0);
        at = 0;
        for (size_t i = 0; i < MANY; i++) {
            assert_memory_equal(world.far_seen + at, (i % 5 == 4 ? host_near : world.near_seen) + at, items[i].length);
            at += items[i].length;
        }
        memset(world.near_seen, 0, MEMORY);
        memset(host_near, 0, MEMORY);
        assert_int_equal(run(&world, MC_TRANSFER_READ, items, MANY), 0);
        at = 0;
        for (size_t i = 0; i < MANY; i++) {
            assert_memory_equal(world.far_seen + at, (i % 5 == 4 ? host_near : world.near_seen) + at, items[i].length);
            at += items[i].length;
        }
        if (path == MC_TRANSFER_PATH_RDMA)
            assert_int_equal(moved_by(&world, path), 2 * at);
        world_close(&world);
    }
}

/* ---- GPUDirect ---- */

/* Regions that begin and end within a page; what of a batch is not registered, or managed, is staged, and goes by tcp.
 */
static void direct(void **state)
{
    (void)state;
    struct world world;
    uint8_t *seen = fake.fake_cuda_seen(device_near + 100);
    world_open(&world, MC_TRANSFER_PATH_RDMA, FAR_DEVICE);
    assert_int_equal(add(world.near, device_near + 100, UNIT + 7), 0);
    assert_int_equal(add(world.near, managed, MEMORY), 0);
    assert_null(mc_region_at(&world.near->regions, managed)->rdma);
    uint64_t copies = fake.fake_cuda_number(FAKE_CUDA_COPIES);
    struct mc_transfer_item items[] = {{(void *)(uintptr_t)(device_near + 100), world.far_address + 5, UNIT + 7},
                                       {(void *)(uintptr_t)(managed + 9), world.far_address + 2 * UNIT, 1000}};
    fill(seen, UNIT + 7, 3);
    assert_int_equal(run(&world, MC_TRANSFER_WRITE, items, 1), 0);
    assert_memory_equal(world.far_seen + 5, seen, UNIT + 7);
    assert_int_equal(moved_by(&world, MC_TRANSFER_PATH_RDMA), UNIT + 7);
    assert_int_equal(fake.fake_cuda_number(FAKE_CUDA_COPIES), copies);
    fill(fake.fake_cuda_seen(managed + 9), 1000, 4);
    memset(world.far_seen, 0, MEMORY);
    assert_int_equal(run(&world, MC_TRANSFER_WRITE, items, 2), 0);
    assert_memory_equal(world.far_seen + 5, seen, UNIT + 7);
    assert_memory_equal(world.far_seen + 2 * UNIT, fake.fake_cuda_seen(managed + 9), 1000);
    assert_int_equal(moved_by(&world, MC_TRANSFER_PATH_TCP), UNIT + 7 + 1000);
    struct mc_transfer_counters counters;
    mc_transfer_counters(world.near, &counters);
    assert_int_equal(counters.fallbacks, 0);
    world_close(&world);
    assert_int_equal(fake_counts().mrs, 0);
    assert_int_equal(fake_counts().bad_posts, 0);
}

/* A driver whose devices do not see in order what network cards write: it is told after a READ into a device's memory,
 * and before a note of a peer, which may have written there, is handed out. */
static void flushed(void **state)
{
    (void)state;
    struct world world;
    struct mc_transfer_note note = {"name", "it is written"};
    world_open(&world, MC_TRANSFER_PATH_RDMA, NEAR_DEVICE | FAR_DEVICE);
    struct mc_transfer_item item = {world.near_memory, world.far_address, UNIT};
    uint64_t flushes = fake.fake_cuda_number(FAKE_CUDA_FLUSHES);
    assert_int_equal(run(&world, MC_TRANSFER_WRITE, &item, 1), 0);
    assert_int_equal(fake.fake_cuda_number(FAKE_CUDA_FLUSHES), flushes);
    assert_int_equal(run(&world, MC_TRANSFER_READ, &item, 1), 0);
    assert_int_equal(moved_by(&world, MC_TRANSFER_PATH_RDMA), 2 * UNIT);
    assert_int_equal(fake.fake_cuda_number(FAKE_CUDA_FLUSHES), flushes + 1);
    assert_int_equal(mc_transfer_notify(world.near, mc_transfer_name(world.far), &note), 0);
    assert_int_equal(fake.fake_cuda_number(FAKE_CUDA_FLUSHES), flushes + 2);
    world_close(&world);
}

static void managed_memory(void **state)
{
    (void)state;
    for (int path = 0; path < VARIANTS; path++) {
        struct world world;
        world_open(&world, path, 0);
        world.near_memory = (uint8_t *)(uintptr_t)managed;
        world.near_seen = fake.fake_cuda_seen(managed);
        move(&world, UNIT + 9, 1, 8);
        world_close(&world);
    }
}

/* Memory of two devices in one batch: each is read when the work on its own default stream is done. */
static void two_devices(void **state)
{
    (void)state;
    uint64_t second = fake.fake_cuda_allocate(2 * UNIT, 1, 0);
    assert_true(second != 0);
    for (int path = 0; path < VARIANTS; path++) {
        struct world world;
        world_open(&world, path, NEAR_DEVICE);
        if (path == MC_TRANSFER_PATH_RDMA)
            assert_int_equal(add(world.near, second, 2 * UNIT), 0);
        uint64_t from[] = {(uintptr_t)world.near_memory, second}, length = UNIT / 2 + 5;
        struct mc_transfer_item items[] = {{(void *)(uintptr_t)from[0], world.far_address, length},
                                           {(void *)(uintptr_t)from[1], world.far_address + UNIT, length}};
        for (size_t i = 0; i < 2; i++) {
            memset(fake.fake_cuda_seen(from[i]), 0, length);
            fake.fake_cuda_fill_later(from[i], length, (int)(10 * (size_t)path + i + 1));
        }
        memset(world.far_seen, 0, 2 * UNIT);
        assert_int_equal(run(&world, MC_TRANSFER_WRITE, items, 2), 0);
        for (size_t i = 0; i < 2; i++)
            for (uint64_t at = 0; at < length; at++)
                assert_int_equal(world.far_seen[i * UNIT + at], 10 * path + (int)i + 1);
        world_close(&world);
    }
    fake.fake_cuda_free(second);
}

static void in_the_background(void **state)
{
    (void)state;
    struct world world;
    world_open(&world, MC_TRANSFER_PATH_TCP, NEAR_DEVICE | FAR_DEVICE);
    struct mc_transfer_item item = {world.near_memory, world.far_address, MEMORY};
    fill(world.near_seen, MEMORY, 9);
    memset(world.far_seen, 0, MEMORY);
    int64_t id = mc_transfer_submit(world.near, mc_transfer_name(world.far), MC_TRANSFER_WRITE, &item, 1, NULL);
    assert_true(id > 0);
    assert_int_equal(mc_transfer_wait(world.near, &id, 1), 0);
    assert_memory_equal(world.far_seen, world.near_seen, MEMORY);
    world_close(&world);
}

/* A device that has other things to do holds up who asks for its memory, and nobody else; what it was given before
 * comes first all the same. */
static void busy_device_with(const char *sums)
{
    enum { LENGTH = UNIT + 4096, HALF = MEMORY / 2 };
    struct world world;
    uint64_t ids[2], begun_ms;
    setenv("MC_TE_CHECKSUM", sums, 1);
    world_open(&world, MC_TRANSFER_PATH_TCP, FAR_DEVICE);
    assert_int_equal(add(world.far, (uintptr_t)host_far, MEMORY), 0);
    fill(host_far, LENGTH, 3);
    fill(host_near + HALF, LENGTH, 4);
    memset(host_near, 0, LENGTH);
    memset(world.far_seen, 0, MEMORY);
    struct mc_transfer_item items[] = {{host_near, world.far_address, LENGTH},
                                       {host_near + HALF, world.far_address + HALF, LENGTH}};
    struct mc_transfer_item near_item = {host_near + LENGTH, (uintptr_t)host_far, 1000};
    assert_int_equal(run(&world, MC_TRANSFER_READ, &near_item, 1), 0); /* all is connected */
    fake.fake_cuda_hold(1);
    fake.fake_cuda_fill_later(world.far_address, LENGTH, 77);
    for (int i = 0; i < 2; i++) {
        int64_t id = mc_transfer_submit(world.near, mc_transfer_name(world.far),
                                        i == 0 ? MC_TRANSFER_READ : MC_TRANSFER_WRITE, &items[i], 1, NULL);
        assert_true(id > 0);
        ids[i] = (uint64_t)id;
    }
    usleep(100000);
    begun_ms = mc_clock_ms();
    for (int i = 0; i < 50; i++)
        assert_int_equal(run(&world, MC_TRANSFER_READ, &near_item, 1), 0);
    assert_true(mc_clock_ms() - begun_ms < 2000);
    assert_int_equal(world.far_seen[0], 0);
    assert_int_equal(world.far_seen[HALF], 0);
    fake.fake_cuda_hold(0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(mc_transfer_wait(world.near, &(int64_t){(int64_t)ids[i]}, 1), 0);
    for (uint64_t at = 0; at < LENGTH; at++)
        assert_int_equal(host_near[at], 77);
    assert_memory_equal(world.far_seen + HALF, host_near + HALF, LENGTH);
    world_close(&world);
    unsetenv("MC_TE_CHECKSUM");
}

static void busy_device(void **state)
{
    (void)state;
    busy_device_with("off");
}

static void busy_device_with_sums(void **state)
{
    (void)state;
    busy_device_with("on");
}

/* ---- the document ---- */

static void documents(void **state)
{
    (void)state;
    struct world world;
    struct mc_buffer text = {0};
    world_open(&world, MC_TRANSFER_PATH_HOST, FAR_DEVICE);
    assert_int_equal(add(world.far, device_near, 4096), 0);
    assert_int_equal(add(world.far, (uintptr_t)host_far, 4096), 0);
    mc_transfer_document(world.far, &text);
    mc_buffer_append(&text, "", 1);
    assert_non_null(strstr((char *)text.data, "\"name\":\"cuda:1\""));
    assert_non_null(strstr((char *)text.data, "\"name\":\"cuda:0\""));
    /* Only the host's memory is shown to processes of this machine. */
    uint32_t shown = 0;
    for (const struct mc_region *one = world.far->regions.first; one != NULL; one = one->next)
        shown += one->slot != MC_REGION_NO_SLOT;
    assert_int_equal(shown, 1);
    struct mc_document document;
    assert_int_equal(mc_document_read((struct mc_span){text.data, text.length - 1}, &document), 0);
    assert_int_equal(document.buffer_count, 3);
    mc_document_free(&document);
    mc_buffer_free(&text);
    assert_int_equal(add(world.far, device_near + 100, 4096), MC_TRANSFER_ERR_ADDRESS_OVERLAPPED);
    uint64_t address = device_near;
    assert_int_equal(mc_transfer_unregister(world.far, &address, 1), 0);
    assert_int_equal(add(world.far, device_near + 100, 4096), 0);
    world_close(&world);
}

/* ---- what goes wrong ---- */

/* Every call of the driver fails once, wherever it is made, on either side; each transfer ends, and the engines live.
 */
static void refusals(void **state)
{
    (void)state;
    setenv("MC_TRANSFER_TIMEOUT", "5", 1);
    for (int path = 0; path < MC_TRANSFER_PATHS; path++) {
        for (int devices = NEAR_DEVICE; devices <= (NEAR_DEVICE | FAR_DEVICE); devices++) {
            struct world world;
            unsigned failed = 0;
            world_open(&world, path, devices);
            move(&world, 2 * UNIT + 1, 0, 1);
            for (unsigned after = 0; after < REFUSALS; after++) {
                for (int call = FAKE_CUDA_COPY; call <= FAKE_CUDA_WAIT; call++) {
                    struct mc_transfer_item item = {world.near_memory, world.far_address, 2 * UNIT + 1};
                    fake.fake_cuda_fail(call, after / 2, 1, 700);
                    int rc = run(&world, after % 2 == 0 ? MC_TRANSFER_WRITE : MC_TRANSFER_READ, &item, 1);
                    failed += rc != 0;
                    fake.fake_cuda_fail(call, 0, 0, 0);
                }
            }
            /* What the far side refuses is asked for again: its connection has broken. */
            if ((devices & NEAR_DEVICE) != 0)
                assert_true(failed > 0);
            move(&world, 2 * UNIT + 1, 0, 2);
            world_close(&world);
        }
    }
    unsetenv("MC_TRANSFER_TIMEOUT");
}

/* Not by RDMA: there the driver keeps what is exported until the descriptor and its regions are gone. */
static void freed_while_registered(void **state)
{
    (void)state;
    for (int path = 0; path < MC_TRANSFER_PATH_RDMA; path++) {
        struct world world;
        world_open(&world, path, 0);
        uint64_t gone = fake.fake_cuda_allocate(8192, 0, 0);
        assert_int_equal(add(world.far, gone, 8192), 0);
        struct mc_transfer_item item = {host_near, gone, 8192};
        assert_int_equal(run(&world, MC_TRANSFER_WRITE, &item, 1), 0);
        fake.fake_cuda_free(gone);
        assert_true(run(&world, MC_TRANSFER_WRITE, &item, 1) < 0);
        assert_true(run(&world, MC_TRANSFER_READ, &item, 1) < 0);
        move(&world, 100000, 3, 4);
        assert_int_equal(mc_transfer_unregister(world.far, &gone, 1), 0);
        world_close(&world);
    }
}

static void not_registered(void **state)
{
    (void)state;
    for (int path = 0; path < MC_TRANSFER_PATHS; path++) {
        struct world world;
        world_open(&world, path, NEAR_DEVICE | FAR_DEVICE);
        struct mc_transfer_item items[] = {{world.near_memory, world.far_address, 4096},
                                           {world.near_memory, world.far_address + MEMORY - 5, 4096}};
        assert_int_equal(run(&world, MC_TRANSFER_WRITE, items, 2), MC_TRANSFER_ERR_ADDRESS_NOT_REGISTERED);
        assert_int_equal(run(&world, MC_TRANSFER_READ, items, 2), MC_TRANSFER_ERR_ADDRESS_NOT_REGISTERED);
        move(&world, 5000, 0, 4);
        world_close(&world);
    }
}

struct traffic {
    struct world *world;
    _Atomic bool stop;
    uint64_t done;
};

static void *write_for_long(void *argument)
{
    struct traffic *traffic = argument;
    struct mc_transfer_item item = {host_near, traffic->world->far_address, MEMORY};
    while (!traffic->stop) {
        (void)run(traffic->world, MC_TRANSFER_WRITE, &item, 1);
        traffic->done++;
    }
    return NULL;
}

/* After unregister has returned, nothing writes there any more. */
static void given_back_under_load(void **state)
{
    (void)state;
    for (int path = 0; path < MC_TRANSFER_PATHS; path++) {
        struct world world;
        pthread_t thread;
        world_open(&world, path, FAR_DEVICE);
        struct traffic traffic = {.world = &world};
        fill(host_near, MEMORY, 3);
        assert_int_equal(pthread_create(&thread, NULL, write_for_long, &traffic), 0);
        usleep(50000);
        assert_int_equal(mc_transfer_unregister(world.far, &world.far_address, 1), 0);
        memset(world.far_seen, 0x77, MEMORY);
        usleep(20000);
        for (size_t i = 0; i < MEMORY; i++)
            assert_int_equal(world.far_seen[i], 0x77);
        traffic.stop = true;
        pthread_join(thread, NULL);
        world_close(&world);
    }
}

static uint32_t preferred(struct mc_transfer_engine *engine, uint64_t address, const char *location)
{
    struct mc_transfer_range range = {address, MEMORY};
    assert_int_equal(mc_transfer_register_at(engine, &range, 1, location), 0);
    const struct mc_region *region = mc_region_at(&engine->regions, address);
    assert_non_null(region->rdma);
    uint32_t mask = mc_rdma_memory_local(region->rdma).list[0].preferred;
    assert_int_equal(mc_transfer_unregister(engine, &address, 1), 0);
    return mask;
}

/* A matrix names the GPUs by the driver's numbers: memory finds its own, unless it is said to lie elsewhere. */
static void near_devices(void **state)
{
    (void)state;
    char path[] = "/tmp/test_transfer_device_XXXXXX";
    const char *text = "{\"cuda:0\": [[\"fake0\"], [\"fake1\"]], \"cuda:1\": [[\"fake1\"], [\"fake0\"]]}";
    int fd = mkstemp(path);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    setenv("MC_CUSTOM_TOPO_JSON", path, 1);
    verbs_open(true);
    struct mc_transfer_engine *engine = open_here("");
    assert_int_equal(preferred(engine, device_near, NULL), 1);
    assert_int_equal(preferred(engine, device_near, "*"), 1);
    assert_int_equal(preferred(engine, device_near, "cuda:0"), 1);
    assert_int_equal(preferred(engine, device_near, "cuda:1"), 2);
    assert_int_equal(preferred(engine, device_far, ""), 2);
    assert_int_equal(preferred(engine, device_far, "cuda:7"), 0);
    assert_int_equal(preferred(engine, (uintptr_t)host_near, NULL), 0);
    assert_int_equal(preferred(engine, (uintptr_t)host_near, "cuda:1"), 2);
    mc_transfer_close(engine);
    unsetenv("MC_CUSTOM_TOPO_JSON");
    engine = open_here(""); /* no GPU and no device of these is in sysfs: all are alike */
    assert_int_equal(preferred(engine, device_near, NULL), 0);
    assert_int_equal(preferred(engine, device_near, NULL), 0);
    mc_transfer_close(engine);
    unlink(path);
}

/* ---- another process takes the peer's name ---- */

/* Takes writes of one byte; after the first 256, which are a wave, another process has the name. */
struct heir {
    struct silent silent;
    pthread_t thread;
    unsigned first, second; /* confirmed by each */
};

enum { WAVE = 256, HEIR_ITEMS = 300, HEIR_WRITES = HEIR_ITEMS - WAVE + HEIR_ITEMS }; /* the rest; and all anew */

/* Confirms so many, and returns the connection, on which one more may have come. */
static int confirm(struct heir *heir, unsigned most, unsigned *count)
{
    const uint64_t status = MC_TCP_STATUS_OK;
    uint8_t request[sizeof(struct mc_tcp_header) + 1];
    struct pollfd waited = {.fd = heir->silent.data, .events = POLLIN};
    (void)poll(&waited, 1, 10000);
    int fd = mc_socket_accept(heir->silent.data);
    for (size_t used = 0; *count < most; used %= sizeof(request)) {
        int64_t got = mc_socket_receive(fd, request + used, sizeof(request) - used, mc_clock_ns() + 3000000000u, NULL);
        if (got <= 0)
            break;
        used += (size_t)got;
        if (used == sizeof(request) && send(fd, &status, sizeof(status), MSG_NOSIGNAL) == sizeof(status))
            ++*count;
    }
    return fd;
}

static void *heir_main(void *argument)
{
    struct heir *heir = argument;
    int fd = confirm(heir, WAVE, &heir->first);
    struct pollfd waited = {.fd = fd, .events = POLLIN};
    (void)poll(&waited, 1, 10000); /* the next wave comes */
    heir->silent.process = 2;
    close(fd);
    close(confirm(heir, HEIR_WRITES, &heir->second));
    return NULL;
}

/* A batch goes through our memory in waves; when another process has taken the name between two of them, it gets the
 * batch as a whole. */
static void test_waves_to_two_processes(void **state)
{
    (void)state;
    static struct mc_transfer_item items[HEIR_ITEMS];
    struct world world;
    struct heir heir = {.first = 0};
    char name[64];
    world_open(&world, MC_TRANSFER_PATH_TCP, NEAR_DEVICE);
    silent_open(&heir.silent, name, sizeof(name));
    heir.silent.process = 1;
    assert_int_equal(pthread_create(&heir.thread, NULL, heir_main, &heir), 0);
    for (size_t i = 0; i < HEIR_ITEMS; i++)
        items[i] = (struct mc_transfer_item){world.near_memory + 2 * i, 4096 + 2 * i, 1};
    assert_int_equal(mc_transfer_run(world.near, name, MC_TRANSFER_WRITE, items, HEIR_ITEMS, NULL), 0);
    pthread_join(heir.thread, NULL);
    assert_int_equal(heir.first, WAVE);
    assert_int_equal(heir.second, HEIR_WRITES);
    silent_close(&heir.silent);
    world_close(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_waves_to_two_processes),
        cmocka_unit_test(there_and_back),
        cmocka_unit_test(batches),
        cmocka_unit_test(direct),
        cmocka_unit_test(flushed),
        cmocka_unit_test(managed_memory),
        cmocka_unit_test(two_devices),
        cmocka_unit_test(in_the_background),
        cmocka_unit_test(busy_device),
        cmocka_unit_test(busy_device_with_sums),
        cmocka_unit_test(documents),
        cmocka_unit_test(refusals),
        cmocka_unit_test(not_registered),
        cmocka_unit_test(freed_while_registered),
        cmocka_unit_test(given_back_under_load),
        cmocka_unit_test(near_devices),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
