/* GPUDirect of the store: a GPU's memory that is registered is read and written by the RDMA devices themselves, and
 * what cannot be goes through host memory. Neither processor nor kernel may touch that memory here (fake_cuda.h). */
#include "rdma_rig.h"

#include "store/path/path.h"
#include "store/path/paths.h"
#include "fake_cuda_load.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <cmocka.h>

#define DEVICES 2u
#define ROOM (32u << 20)
#define LENGTH ((9u << 20) + 77)
#define BLOCK ((uint64_t)1 << MC_BLOCK_SHIFT_MIN)

static struct fake_cuda fake;
static uint64_t memory, managed; /* of the first GPU; of the second one */
static uint8_t expected[ROOM];

static void *reach(uint64_t address)
{
    return fake.fake_cuda_seen(address);
}

static void start_with(struct rig *rig, bool has_dmabuf)
{
    struct fake_device_config devices[DEVICES] = {fake_roce(0), fake_roce(1)};
    struct mc_rdma_options options = {0};
    devices[0].has_dmabuf = devices[1].has_dmabuf = has_dmabuf;
    fake_reset(devices, DEVICES);
    fake_gpu_memory((void *)(uintptr_t)memory, (size_t)FAKE_CUDA_DEVICES * FAKE_CUDA_ARENA);
    fake_gpu_reach(reach);
    options.verbs = fake_verbs();
    options.matrix = "{\"cpu:0\": [[\"fake0\", \"fake1\"], []]}"; /* so that both are used for all memory */
    assert_int_equal(mc_rdma_open(&options, &rig_rdma), 0);
    assert_int_equal(rig_start(rig, MC_PATH_RDMA, 2 * ROOM, false, false), 0);
    rig_fill(expected, sizeof(expected), 5);
}

static void start(struct rig *rig)
{
    start_with(rig, true);
    assert_int_equal(mc_paths_register(rig->paths, (void *)(uintptr_t)memory, ROOM), 0);
}

static void stop(struct rig *rig)
{
    for (int call = 0; call < FAKE_CUDA_CALLS; call++)
        fake.fake_cuda_fail(call, 0, 0, 0);
    rig_stop(rig);
    assert_int_equal(fake.fake_cuda_number(FAKE_CUDA_PENDING), 0);
    assert_int_equal(fake.fake_cuda_number(FAKE_CUDA_DEPTH), 0);
    assert_int_equal(fake.fake_cuda_number(FAKE_CUDA_MISTAKES), 0);
    struct fake_counts counts = fake_counts();
    assert_int_equal(counts.mrs + counts.qps + counts.bad_posts, 0);
}

static uint64_t copied(const struct rig *rig)
{
    return atomic_load(&mc_paths_counters(rig->paths)->rdma_copied_bytes);
}

static uint64_t by_rdma(const struct rig *rig)
{
    return atomic_load(&mc_paths_counters(rig->paths)->path_bytes[3]);
}

static struct mc_transfer transfer_of(enum mc_transfer_kind kind, struct rig *rig, uint64_t length, struct iovec *part)
{
    return rig_transfer(kind, 0, rig->generation, 0, length, "gpu", part, 1);
}

static int put_at(struct rig *rig, uint64_t address, uint64_t length, uint64_t timeout_ms)
{
    struct iovec part = {(void *)(uintptr_t)address, length};
    rig->generation++;
    memcpy(fake.fake_cuda_seen(address), expected, length);
    struct mc_transfer write = transfer_of(MC_TRANSFER_WRITE, rig, length, &part);
    int rc = rig_run_one(rig, &write, timeout_ms);
    if (rc == 0)
        assert_true(rig_wait_live(rig, 0, rig->generation));
    assert_null(write.view);
    assert_null(write.source);
    return rc;
}

static int get_at(struct rig *rig, uint64_t address, uint64_t length, uint64_t from, uint64_t size, uint64_t timeout_ms)
{
    struct iovec part = {(void *)(uintptr_t)address, size};
    struct mc_transfer read = transfer_of(MC_TRANSFER_READ, rig, length, &part);
    read.offset = from;
    read.length = size;
    memset(fake.fake_cuda_seen(address), 0xa5, size);
    return rig_run_one(rig, &read, timeout_ms);
}

static void expect_there_and_back(struct rig *rig, uint64_t address, uint64_t length)
{
    assert_int_equal(put_at(rig, address, length, 20000), 0);
    assert_int_equal(get_at(rig, address, length, 0, length, 20000), 0);
    assert_memory_equal(fake.fake_cuda_seen(address), expected, length);
}

/* ---- in place ---- */

/* No processor copies a byte, whatever the length; each is summed once, from what the driver copies out for that. */
static void in_place(void **state)
{
    static const uint64_t lengths[] = {4096, BLOCK - 1, BLOCK + 1, LENGTH, 20u << 20};
    struct rig rig;
    (void)state;
    start(&rig);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        uint64_t before = by_rdma(&rig), at = memory + 4096 + 64;
        *((uint8_t *)fake.fake_cuda_seen(at) - 1) = 0x77;
        *((uint8_t *)fake.fake_cuda_seen(at) + lengths[i]) = 0x78;
        expect_there_and_back(&rig, at, lengths[i]);
        assert_int_equal(*((uint8_t *)fake.fake_cuda_seen(at) - 1), 0x77);
        assert_int_equal(*((uint8_t *)fake.fake_cuda_seen(at) + lengths[i]), 0x78);
        assert_int_equal(by_rdma(&rig), before + 2 * lengths[i]);
        assert_int_equal(copied(&rig), 0);
    }
    stop(&rig);
}

/* Which copies are made: out of the memory, for the sums, and nothing into it. Without sums none is made for a get. */
static void without_sums(void **state)
{
    struct rig rig;
    (void)state;
    setenv("MC_CHECKSUM", "slot", 1);
    start(&rig);
    unsetenv("MC_CHECKSUM");
    assert_int_equal(put_at(&rig, memory, LENGTH, 20000), 0);
    uint64_t copies = fake.fake_cuda_number(FAKE_CUDA_COPIES);
    assert_int_equal(get_at(&rig, memory, LENGTH, 0, LENGTH, 20000), 0);
    assert_int_equal(fake.fake_cuda_number(FAKE_CUDA_COPIES), copies);
    assert_memory_equal(fake.fake_cuda_seen(memory), expected, LENGTH);
    assert_int_equal(copied(&rig), 0);
    stop(&rig);
}

/* Work that the process has given the GPU before comes first; what network cards write there is waited for. */
static void ordered(void **state)
{
    struct rig rig;
    (void)state;
    start(&rig);
    uint64_t at = memory + (8u << 20), length = 3 * BLOCK, flushes = fake.fake_cuda_number(FAKE_CUDA_FLUSHES);
    struct iovec part = {(void *)(uintptr_t)at, length};
    memset(fake.fake_cuda_seen(at), 1, length);
    fake.fake_cuda_fill_later(at, length, 9);
    rig.generation++;
    struct mc_transfer write = transfer_of(MC_TRANSFER_WRITE, &rig, length, &part);
    assert_int_equal(rig_run_one(&rig, &write, 20000), 0);
    assert_true(rig_wait_live(&rig, 0, rig.generation));
    memset(fake.fake_cuda_seen(at), 0, length);
    struct mc_transfer read = transfer_of(MC_TRANSFER_READ, &rig, length, &part);
    assert_int_equal(rig_run_one(&rig, &read, 20000), 0);
    for (uint64_t i = 0; i < length; i++)
        assert_int_equal(((uint8_t *)fake.fake_cuda_seen(at))[i], 9);
    assert_true(fake.fake_cuda_number(FAKE_CUDA_FLUSHES) > flushes);
    assert_int_equal(copied(&rig), 0);
    stop(&rig);
}

/* ---- the other way ---- */

/* What no device takes: the log says so once, and bytes go through host memory. */
static void no_dmabuf(void **state)
{
    struct rig rig;
    (void)state;
    start_with(&rig, false);
    assert_int_equal(mc_paths_register(rig.paths, (void *)(uintptr_t)memory, ROOM), MC_ERR_NOT_SUPPORTED);
    expect_there_and_back(&rig, memory, LENGTH);
    assert_int_equal(copied(&rig), 2 * LENGTH);
    mc_paths_unregister(rig.paths, (void *)(uintptr_t)memory);
    stop(&rig);
}

/* What is not registered, or moved about by the driver, or is wanted of no whole blocks; parts of both kinds. */
static void not_in_place(void **state)
{
    static uint8_t host[BLOCK];
    struct rig rig;
    (void)state;
    start(&rig);
    assert_int_equal(mc_paths_register(rig.paths, (void *)(uintptr_t)managed, 1u << 20), 0);
    expect_there_and_back(&rig, managed, 1u << 20);
    assert_int_equal(copied(&rig), 2u << 20);
    uint64_t before = copied(&rig);
    assert_int_equal(put_at(&rig, memory, LENGTH, 20000), 0);
    assert_int_equal(copied(&rig), before);
    assert_int_equal(get_at(&rig, memory + 3, LENGTH, BLOCK + 1, 5 * BLOCK, 20000), 0);
    assert_memory_equal(fake.fake_cuda_seen(memory + 3), expected + BLOCK + 1, 5 * BLOCK);
    assert_true(copied(&rig) >= before + 5 * BLOCK);
    before = copied(&rig);
    assert_int_equal(get_at(&rig, memory + 3, LENGTH, BLOCK, 5 * BLOCK, 20000), 0); /* whole ones */
    assert_memory_equal(fake.fake_cuda_seen(memory + 3), expected + BLOCK, 5 * BLOCK);
    assert_int_equal(copied(&rig), before);
    struct iovec parts[] = {{(void *)(uintptr_t)memory, LENGTH - sizeof(host)}, {host, sizeof(host)}};
    struct mc_transfer read = rig_transfer(MC_TRANSFER_READ, 0, rig.generation, 0, LENGTH, "gpu", parts, 2);
    assert_int_equal(rig_run_one(&rig, &read, 20000), 0);
    assert_memory_equal(fake.fake_cuda_seen(memory), expected, LENGTH - sizeof(host));
    assert_memory_equal(host, expected + LENGTH - sizeof(host), sizeof(host));
    assert_int_equal(copied(&rig), before + LENGTH);
    assert_int_equal(mc_paths_unregister(rig.paths, (void *)(uintptr_t)memory), 0);
    expect_there_and_back(&rig, memory, LENGTH);
    assert_int_equal(copied(&rig), before + 3 * LENGTH);
    stop(&rig);
}

/* Freed while it was registered, and its address is another allocation's: devices would reach what was there before. */
static void another_allocation(void **state)
{
    struct rig rig;
    (void)state;
    start(&rig);
    expect_there_and_back(&rig, memory, LENGTH);
    assert_int_equal(copied(&rig), 0);
    fake.fake_cuda_renew(memory);
    expect_there_and_back(&rig, memory, LENGTH);
    assert_int_equal(copied(&rig), 2 * LENGTH);
    assert_int_equal(mc_paths_unregister(rig.paths, (void *)(uintptr_t)memory), 0);
    assert_int_equal(mc_paths_register(rig.paths, (void *)(uintptr_t)memory, ROOM), 0);
    expect_there_and_back(&rig, memory, LENGTH);
    assert_int_equal(copied(&rig), 2 * LENGTH);
    stop(&rig);
}

/* Of a batch each goes its way: objects of the host, of the GPU in place and not, and one that is not there. */
static void mixed(void **state)
{
    enum { COUNT = 12 };
    static uint8_t host[COUNT][BLOCK];
    static char keys[COUNT][16];
    struct mc_transfer transfers[COUNT];
    struct iovec parts[COUNT];
    struct rig rig;
    (void)state;
    start(&rig);
    uint64_t generation = ++rig.generation;
    for (unsigned turn = 0; turn < 2; turn++) {
        uint64_t before = copied(&rig);
        for (size_t i = 0; i < COUNT; i++) {
            void *at = i % 3 == 0 ? (void *)host[i] : (void *)(uintptr_t)((i % 3 == 1 ? memory : managed) + i * BLOCK);
            snprintf(keys[i], sizeof(keys[i]), "mixed %zu", i);
            parts[i] = (struct iovec){at, BLOCK};
            uint8_t *there = i % 3 == 0 ? host[i] : (uint8_t *)fake.fake_cuda_seen((uint64_t)(uintptr_t)at);
            if (turn == 0)
                memcpy(there, expected + i * BLOCK, BLOCK);
            else
                memset(there, 0, BLOCK);
            transfers[i] =
                rig_transfer(turn == 0 ? MC_TRANSFER_WRITE : MC_TRANSFER_READ, (uint32_t)i,
                             generation + (turn == 1 && i == 7), i * 2 * BLOCK, BLOCK, keys[i], &parts[i], 1);
        }
        rig_run(&rig, transfers, COUNT, 20000);
        for (size_t i = 0; i < COUNT; i++) {
            bool is_gone = turn == 1 && i == 7;
            assert_int_equal(transfers[i].result, is_gone ? MC_ERR_REPLICA_IS_GONE : 0);
            if (turn == 0)
                assert_true(rig_wait_live(&rig, (uint32_t)i, generation));
            else if (!is_gone)
                assert_memory_equal(i % 3 == 0 ? (void *)host[i]
                                               : fake.fake_cuda_seen((uint64_t)(uintptr_t)parts[i].iov_base),
                                    expected + i * BLOCK, BLOCK);
        }
        assert_int_equal(copied(&rig) - before, 8 * BLOCK);
    }
    stop(&rig);
}

/* ---- what goes wrong ---- */

/* Bytes that change on the wire are found, and read once more; those that are wrong in the segment are said to be. */
static void wrong_bytes(void **state)
{
    struct rig rig;
    (void)state;
    start(&rig);
    rig_wait_for_pairs(&rig, 3);
    assert_int_equal(put_at(&rig, memory, LENGTH, 20000), 0);
    fake_flip(0);
    fake_flip(1);
    assert_int_equal(get_at(&rig, memory, LENGTH, 0, LENGTH, 20000), 0);
    assert_memory_equal(fake.fake_cuda_seen(memory), expected, LENGTH);
    assert_int_equal(atomic_load(&mc_paths_counters(rig.paths)->checksum_errors), 0);
    mc_segment_memory_data(rig.memory)[LENGTH / 2] ^= 1;
    assert_int_equal(get_at(&rig, memory, LENGTH, 0, LENGTH, 20000), MC_ERR_CHECKSUM_MISMATCH);
    mc_segment_memory_data(rig.memory)[LENGTH / 2] ^= 1;
    assert_int_equal(get_at(&rig, memory, LENGTH, 0, LENGTH, 20000), 0);
    mc_segment_memory_clear(rig.memory, 0, rig.generation);
    assert_int_equal(get_at(&rig, memory, LENGTH, 0, LENGTH, 20000), MC_ERR_REPLICA_IS_GONE);
    stop(&rig);
}

/* Every call of the driver fails once: the other way is taken, or the call fails, and what was put is as it was. */
static void refusals(void **state)
{
    struct rig rig;
    (void)state;
    start(&rig);
    for (int call = FAKE_CUDA_COPY; call <= FAKE_CUDA_WAIT; call++) {
        for (unsigned after = 0; after < 24; after++) {
            fake.fake_cuda_fail(call, after, 1, 700);
            int rc = put_at(&rig, memory, LENGTH, 20000);
            fake.fake_cuda_fail(call, 0, 0, 0);
            assert_true(rc == 0 || rc == MC_ERR_INVALID_PARAMS);
            if (rc == 0) {
                assert_int_equal(get_at(&rig, memory, LENGTH, 0, LENGTH, 20000), 0);
                assert_memory_equal(fake.fake_cuda_seen(memory), expected, LENGTH);
            }
            assert_int_equal(put_at(&rig, memory, LENGTH, 20000), 0);
            fake.fake_cuda_fail(call, after, 1, 700);
            rc = get_at(&rig, memory, LENGTH, 0, LENGTH, 20000);
            fake.fake_cuda_fail(call, 0, 0, 0);
            assert_true(rc == 0 || rc == MC_ERR_INVALID_PARAMS);
            if (rc == 0)
                assert_memory_equal(fake.fake_cuda_seen(memory), expected, LENGTH);
        }
    }
    assert_false(atomic_load(&rig.path->broken));
    stop(&rig);
}

/* One device fails, the other goes on; both are silent: the call ends, and nothing reaches the memory any more. */
static void lost(void **state)
{
    struct rig rig;
    (void)state;
    start(&rig);
    rig_wait_for_pairs(&rig, 3);
    assert_int_equal(put_at(&rig, memory, LENGTH, 20000), 0);
    fake_fail_work(0, 20, IBV_WC_RETRY_EXC_ERR);
    assert_int_equal(get_at(&rig, memory, LENGTH, 0, LENGTH, 20000), 0);
    assert_memory_equal(fake.fake_cuda_seen(memory), expected, LENGTH);
    for (uint32_t i = 0; i < DEVICES; i++)
        fake_hold(i);
    assert_int_equal(get_at(&rig, memory, LENGTH, 0, LENGTH, 300), MC_ERR_RPC_TIMEOUT);
    assert_int_equal(fake_counts().under_way, 0);
    for (uint32_t i = 0; i < DEVICES; i++)
        fake_release(i);
    for (uint64_t i = 0; i < LENGTH; i++)
        assert_int_equal(((uint8_t *)fake.fake_cuda_seen(memory))[i], 0xa5);
    stop(&rig);
}

static int set_up(void **state)
{
    (void)state;
    if (fake_cuda_load(&fake) != 0)
        return -1;
    mc_gpu_look();
    fake.fake_cuda_ordering(0);
    memory = fake.fake_cuda_allocate(ROOM, 0, 0);
    managed = fake.fake_cuda_allocate(2u << 20, 1, 1);
    return mc_gpu_is_there() && memory != 0 && managed != 0 ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_place),           cmocka_unit_test(without_sums), cmocka_unit_test(ordered),
        cmocka_unit_test(no_dmabuf),          cmocka_unit_test(not_in_place), cmocka_unit_test(mixed),
        cmocka_unit_test(wrong_bytes),        cmocka_unit_test(refusals),     cmocka_unit_test(lost),
        cmocka_unit_test(another_allocation),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
