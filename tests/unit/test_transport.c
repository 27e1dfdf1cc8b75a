/* One suite for all transports: local, shm, rdma (over a fake device), tcp against a real owner; then what only one of
 * them can do wrong. */
#include "transport_rig.h"

#include "base/error.h"
#include "store/path/path.h"
#include "store/path/paths.h"
#include "fake_verbs.h"
#include "random.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/socket.h>
#include <cmocka.h>

#ifdef __SANITIZE_THREAD__ /* some thirty times slower */
#define CAPACITY (24u << 20)
#define BIG (8u << 20)
#else
#define CAPACITY (160u << 20)
#define BIG (64u << 20)
#endif
#define GUARD 64u

static struct rig *rig_of(void **state)
{
    return *state;
}

static int setup(void **state, unsigned kind)
{
    static struct rig rig;
    if (rig_start(&rig, kind, CAPACITY, false, false) != 0)
        return -1;
    *state = &rig;
    return 0;
}
static int setup_local(void **state)
{
    return setup(state, MC_PATH_LOCAL);
}
static int setup_shm(void **state)
{
    return setup(state, MC_PATH_SHM);
}
static int setup_tcp(void **state)
{
    return setup(state, MC_PATH_TCP);
}
static int setup_rdma(void **state)
{
    const struct fake_device_config devices[] = {fake_roce(0), fake_roce(1)};
    struct mc_rdma_options options = {0};
    static struct rig rig;
    fake_reset(devices, 2);
    options.verbs = fake_verbs();
    if (mc_rdma_open(&options, &rig_rdma) != 0 || rig_start(&rig, MC_PATH_RDMA, CAPACITY, false, false) != 0)
        return -1;
    *state = &rig;
    return 0;
}
/* The same in place: the caller's memory is registered. */
static int setup_direct(void **state)
{
    rig_registers = true;
    return setup_rdma(state);
}
static int teardown(void **state)
{
    rig_registers = false;
    rig_stop(*state);
    return 0;
}

/* Cuts memory into parts of odd sizes, some of them empty. */
static size_t cut(uint8_t *data, size_t length, struct iovec *parts, size_t capacity, uint64_t seed)
{
    size_t count = 0, at = 0;
    while (at < length && count + 1 < capacity) {
        size_t step = random_below(&seed, 2 * length / capacity + 3);
        step = step < length - at ? step : length - at;
        parts[count++] = (struct iovec){data + at, step};
        at += step;
    }
    parts[count++] = (struct iovec){data + at, length - at};
    return count;
}

static void put(struct rig *rig, uint32_t slot, uint64_t offset, uint64_t length, const char *key)
{
    uint8_t *data = malloc(length + 1);
    struct iovec parts[7];
    rig_fill(data + 1, length, slot + length);
    size_t count = cut(data + 1, length, parts, 7, length);
    struct mc_transfer write =
        rig_transfer(MC_TRANSFER_WRITE, slot, ++rig->generation, offset, length, key, parts, count);
    assert_int_equal(rig_run_one(rig, &write, PATIENT_MS), 0);
    assert_true(rig_wait_live(rig, slot, rig->generation));
    free(data);
}

/* Gets a range of what put has stored and compares; the result. */
static int get_range(struct rig *rig, uint32_t slot, uint64_t object_length, const char *key, uint64_t offset,
                     uint64_t length)
{
    uint8_t *expected = malloc(object_length), *data = malloc(length + 2 * GUARD + 1), *target = data + GUARD + 1;
    struct iovec parts[9];
    rig_fill(expected, object_length, slot + object_length);
    memset(data, 0xa5, length + 2 * GUARD + 1);
    size_t count = cut(target, length, parts, 9, offset + length);
    struct mc_transfer read =
        rig_transfer(MC_TRANSFER_READ, slot, rig->generation, 0, object_length, key, parts, count);
    read.offset = offset;
    read.length = length;
    int rc = rig_run_one(rig, &read, PATIENT_MS);
    if (rc == 0)
        assert_memory_equal(target, expected + offset, length);
    for (size_t i = 0; i < GUARD; i++) {
        assert_int_equal(target[-1 - (ptrdiff_t)i], 0xa5);
        assert_int_equal(target[length + i], 0xa5);
    }
    free(expected);
    free(data);
    return rc;
}

static int get(struct rig *rig, uint32_t slot, uint64_t length, const char *key)
{
    return get_range(rig, slot, length, key, 0, length);
}

/* ---- every transport ---- */

static void sizes(void **state)
{
    struct rig *rig = rig_of(state);
    static const uint64_t lengths[] = {1,
                                       2,
                                       3,
                                       4,
                                       5,
                                       63,
                                       64,
                                       65,
                                       4095,
                                       4096,
                                       8191,
                                       8192,
                                       65535,
                                       65536,
                                       65537,
                                       131072,
                                       131073,
                                       (1u << 20) - 1,
                                       1u << 20,
                                       (1u << 20) + 1,
                                       (4u << 20) + 5,
                                       BIG,
                                       BIG + 3};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        uint64_t before =
            atomic_load(&mc_paths_counters(rig->paths)->path_bytes[rig->kind == MC_PATH_RDMA ? 3 : rig->kind / 2]);
        put(rig, (uint32_t)i, i % 2 == 0 ? 0 : 64 * 1001, lengths[i], "sizes");
        assert_int_equal(get(rig, (uint32_t)i, lengths[i], "sizes"), 0);
        assert_int_equal(
            atomic_load(&mc_paths_counters(rig->paths)->path_bytes[rig->kind == MC_PATH_RDMA ? 3 : rig->kind / 2]),
            before + 2 * lengths[i]);
    }
}

static void whole_segment(void **state)
{
    struct rig *rig = rig_of(state);
    char key[MC_KEY_LENGTH_MAX + 1];
    memset(key, 'k', MC_KEY_LENGTH_MAX);
    key[MC_KEY_LENGTH_MAX] = 0;
    put(rig, rig->endpoint.slot_count - 1, 0, CAPACITY, key);
    assert_int_equal(get(rig, rig->endpoint.slot_count - 1, CAPACITY, key), 0);
}

static void extent_layout(void **state)
{
    struct rig *rig = rig_of(state);
    const uint64_t length = 3 * 65536 + 1001;
    uint8_t *data = malloc(length), *extent = mc_segment_memory_data(rig->memory) + 128;
    memset(extent, 0xff, mc_extent_size(length, 6));
    put(rig, 3, 128, length, "layout");
    rig_fill(data, length, 3 + length);
    assert_memory_equal(extent, data, length);
    for (uint64_t i = length; i < mc_table_offset(length); i++)
        assert_int_equal(extent[i], 0);
    for (uint64_t block = 0; block < 4; block++) {
        uint32_t crc;
        memcpy(&crc, extent + mc_table_offset(length) + 4 * block, 4);
        assert_int_equal(crc, mc_crc32c(0, data + block * 65536, block == 3 ? 1001 : 65536));
    }
    assert_memory_equal(extent + mc_key_offset(length), "layout", 6);
    const struct mc_slot *slot = &mc_segment_memory_slots(rig->memory)[3];
    assert_int_equal(slot->crc, mc_crc32c(0, extent + mc_table_offset(length), 16));
    assert_int_equal(slot->key_length, 6);
    assert_int_equal(slot->flags, 2); /* as rig_transfer has them */
    assert_int_equal(slot->replica, 3);
    assert_false(mc_segment_memory_is_written(rig->memory, 3, UINT64_MAX)); /* its announcement is over */
    free(data);
}

static void many_parts(void **state)
{
    struct rig *rig = rig_of(state);
    enum { LENGTH = (1 << 20) + 1, PARTS = 6000 };
    uint8_t *data = malloc(LENGTH), *back = calloc(1, LENGTH);
    struct iovec *parts = malloc(PARTS * sizeof(*parts)), *targets = malloc(PARTS * sizeof(*targets));
    rig_fill(data, LENGTH, 9);
    struct mc_transfer write = rig_transfer(MC_TRANSFER_WRITE, 1, ++rig->generation, 64, LENGTH, "parts", parts,
                                            cut(data, LENGTH, parts, PARTS, 1));
    assert_int_equal(rig_run_one(rig, &write, 5000), 0);
    assert_true(rig_wait_live(rig, 1, rig->generation));
    struct mc_transfer read = rig_transfer(MC_TRANSFER_READ, 1, rig->generation, 0, LENGTH, "parts", targets,
                                           cut(back, LENGTH, targets, PARTS, 2));
    assert_int_equal(rig_run_one(rig, &read, 5000), 0);
    assert_memory_equal(back, data, LENGTH);
    free(data);
    free(back);
    free(parts);
    free(targets);
}

/* Several thousand transfers of mixed size in one run; with reads and writes mixed in the second. */
static void thousands(void **state)
{
    struct rig *rig = rig_of(state);
    enum { COUNT = 4000, STEP = 5632, LONGEST = 5000 };
    uint64_t random = 5;
    uint8_t *data = malloc((size_t)COUNT * LONGEST), *back = calloc(COUNT, LONGEST);
    struct mc_transfer *transfers = malloc(2 * COUNT * sizeof(*transfers));
    struct iovec *parts = malloc(2 * COUNT * sizeof(*parts));
    rig_fill(data, (size_t)COUNT * LONGEST, 4);
    for (uint32_t i = 0; i < COUNT; i++) {
        uint64_t length = 1 + random_below(&random, i % 16 == 0 ? LONGEST : 500);
        parts[i] = (struct iovec){data + (size_t)i * LONGEST, length};
        transfers[i] =
            rig_transfer(MC_TRANSFER_WRITE, i, ++rig->generation, (uint64_t)i * STEP, length, "batch", &parts[i], 1);
    }
    rig_run(rig, transfers, COUNT, PATIENT_MS);
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_int_equal(transfers[i].result, 0);
        assert_true(rig_wait_live(rig, i, transfers[i].place.generation));
    }
    struct mc_transfer *second = transfers + COUNT;
    for (uint32_t i = 0; i < COUNT; i++) {
        second[i] = transfers[i];
        second[i].result = 12345;
        if (i % 5 == 4) { /* the slot's next object */
            second[i].place.generation = ++rig->generation;
            continue;
        }
        second[i].kind = MC_TRANSFER_READ;
        parts[COUNT + i] = (struct iovec){back + (size_t)i * LONGEST, transfers[i].length};
        second[i].parts = &parts[COUNT + i];
    }
    rig_run(rig, second, COUNT, PATIENT_MS);
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_int_equal(second[i].result, 0);
        if (i % 5 == 4)
            assert_true(rig_wait_live(rig, i, second[i].place.generation));
        else
            assert_memory_equal(back + (size_t)i * LONGEST, data + (size_t)i * LONGEST, transfers[i].length);
    }
    free(data);
    free(back);
    free(transfers);
    free(parts);
}

/* So much in one run that several threads move it: each has its own result, also those that cannot be moved. */
static void large_batch(void **state)
{
    struct rig *rig = rig_of(state);
    enum { COUNT = 100, STEP = 200 << 10, LONGEST = 190000, WRONG = 17, GONE = 41 };
    uint64_t random = 6;
    uint8_t *data = malloc((size_t)COUNT * LONGEST), *back = calloc(COUNT, LONGEST);
    struct mc_transfer transfers[COUNT], second[COUNT];
    struct iovec parts[2 * COUNT];
    rig_fill(data, (size_t)COUNT * LONGEST, 7);
    for (uint32_t i = 0; i < COUNT; i++) {
        uint64_t length = LONGEST - random_below(&random, 60000);
        parts[i] = (struct iovec){data + (size_t)i * LONGEST, length};
        transfers[i] =
            rig_transfer(MC_TRANSFER_WRITE, i, ++rig->generation, (uint64_t)i * STEP, length, "large", &parts[i], 1);
    }
    transfers[WRONG].place.slot = UINT32_MAX;
    rig_run(rig, transfers, COUNT, PATIENT_MS);
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_int_equal(transfers[i].result, i == WRONG ? MC_ERR_INVALID_PARAMS : 0);
        if (i != WRONG)
            assert_true(rig_wait_live(rig, i, transfers[i].place.generation));
        second[i] = transfers[i];
        second[i].kind = MC_TRANSFER_READ;
        parts[COUNT + i] = (struct iovec){back + (size_t)i * LONGEST, transfers[i].length};
        second[i].parts = &parts[COUNT + i];
        if (i % 7 == 3) { /* the slot's next object */
            second[i].kind = MC_TRANSFER_WRITE;
            second[i].place.generation = ++rig->generation;
            second[i].parts = &parts[i];
        }
    }
    second[GONE].place.generation += 1000;
    rig_run(rig, second, COUNT, PATIENT_MS);
    for (uint32_t i = 0; i < COUNT; i++) {
        bool is_write = second[i].kind == MC_TRANSFER_WRITE;
        assert_int_equal(second[i].result, i == WRONG ? MC_ERR_INVALID_PARAMS : i == GONE ? MC_ERR_REPLICA_IS_GONE : 0);
        if (second[i].result == 0 && is_write)
            assert_true(rig_wait_live(rig, i, second[i].place.generation));
        else if (second[i].result == 0)
            assert_memory_equal(back + (size_t)i * LONGEST, data + (size_t)i * LONGEST, transfers[i].length);
    }
    free(data);
    free(back);
}

static void bad_arguments(void **state)
{
    struct rig *rig = rig_of(state);
    uint8_t data[256] = {0};
    struct iovec part = {data, 100}, halves[2] = {{data, 50}, {data + 50, 49}};
    char long_key[MC_KEY_LENGTH_MAX + 2];
    memset(long_key, 'x', sizeof(long_key) - 1);
    long_key[sizeof(long_key) - 1] = 0;
    put(rig, 0, 0, 100, "ok");
    enum { COUNT = 20 };
    struct mc_transfer bad[COUNT];
    for (size_t i = 0; i < COUNT; i++)
        bad[i] = rig_transfer(i < 12 ? MC_TRANSFER_WRITE : MC_TRANSFER_READ, i < 12 ? 5 : 0, rig->generation + (i < 12),
                              1024, 100, "ok", &part, 1);
    bad[0].part_count = 0;
    bad[1].object_length = bad[1].length = 0;
    bad[2].parts = halves;
    bad[2].part_count = 2; /* one byte short */
    bad[3].place.slot = rig->endpoint.slot_count;
    bad[4].place.offset = 1;
    bad[5].place.offset = CAPACITY + MC_EXTENT_SLACK;
    bad[6].place.offset = UINT64_MAX - 63;
    bad[7].object_length = bad[7].length = UINT64_MAX;
    bad[8].key.length = 0;
    bad[9].key = mc_span(long_key, MC_KEY_LENGTH_MAX + 1);
    bad[10].object_length = bad[10].length = (uint64_t)CAPACITY + (1u << 20);
    bad[11].length = 99;
    bad[12].part_count = 0;
    bad[13].length = 0;
    bad[14].offset = 1;
    bad[15].offset = UINT64_MAX;
    bad[16].place.slot = UINT32_MAX;
    bad[17].object_length = bad[17].length = 0;
    bad[18].length = UINT64_MAX;
    bad[19].parts = halves;
    bad[19].part_count = 2;
    rig_run(rig, bad, COUNT, 5000);
    for (size_t i = 0; i < COUNT; i++) {
        if (bad[i].result != MC_ERR_INVALID_PARAMS)
            fail_msg("case %zu: %d", i, bad[i].result);
    }
    rig_run(rig, bad, 0, 5000); /* an empty batch */
    assert_int_equal(get(rig, 0, 100, "ok"), 0);
}

static void ranges(void **state)
{
    struct rig *rig = rig_of(state);
    static const uint64_t edges[] = {0,      1,      63,     65535,  65536,  65537,  131071,
                                     131072, 131073, 196607, 196608, 196609, 199998, 199999};
    const uint64_t length = 200000;
    put(rig, 0, 64, length, "range");
    for (size_t i = 0; i < sizeof(edges) / sizeof(edges[0]); i++) {
        for (size_t j = i; j < sizeof(edges) / sizeof(edges[0]); j++)
            assert_int_equal(get_range(rig, 0, length, "range", edges[i], edges[j] - edges[i] + 1), 0);
    }
    put(rig, 1, 64 * 8192, 1000, "small");
    for (uint64_t offset = 0; offset < 1000; offset += 111) {
        assert_int_equal(get_range(rig, 1, 1000, "small", offset, 1), 0);
        assert_int_equal(get_range(rig, 1, 1000, "small", offset, 1000 - offset), 0);
    }
    const uint64_t large = CAPACITY / 2 + 77; /* many pieces */
    put(rig, 2, 0, large, "large");
    assert_int_equal(get_range(rig, 2, large, "large", 1, large - 2), 0);
    assert_int_equal(get_range(rig, 2, large, "large", (CAPACITY / 4) - 3, (CAPACITY / 5) + 7), 0);
}

struct flipping {
    uint8_t *at;
    _Atomic bool done;
};

static void flip_now(void *argument)
{
    struct flipping *flipping = argument;
    *flipping->at ^= 0x10;
    atomic_store(&flipping->done, true);
}

/* On the thread that sends from there. */
static void flip(struct rig *rig, uint64_t at)
{
    struct flipping flipping = {.at = mc_segment_memory_data(rig->memory) + at};
    mc_serve_post(rig->serve, flip_now, &flipping);
    while (!atomic_load(&flipping.done))
        usleep(20);
}

static void bit_flips(void **state)
{
    struct rig *rig = rig_of(state);
    const uint64_t length = 4 * 65536 + 99, offset = 4096;
    _Atomic uint64_t *errors = &mc_paths_counters(rig->paths)->checksum_errors;
    put(rig, 0, offset, length, "flip");
    static const uint64_t places[] = {0, 1, 65535, 65536, 200000, 4 * 65536 + 98};
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        uint64_t before = atomic_load(errors);
        flip(rig, offset + places[i]);
        assert_int_equal(get(rig, 0, length, "flip"), MC_ERR_CHECKSUM_MISMATCH);
        assert_int_equal(atomic_load(errors), before + 1);
        uint64_t block = places[i] & ~65535ull, other = block == 0 ? 65536 : 0;
        /* The byte itself, a neighbour in its block, and another block. */
        assert_int_equal(get_range(rig, 0, length, "flip", places[i], 1), MC_ERR_CHECKSUM_MISMATCH);
        assert_int_equal(get_range(rig, 0, length, "flip", block + 50, 1), MC_ERR_CHECKSUM_MISMATCH);
        assert_int_equal(get_range(rig, 0, length, "flip", other, 65536), 0);
        flip(rig, offset + places[i]);
        assert_int_equal(get(rig, 0, length, "flip"), 0);
    }
    for (uint64_t i = 0; i < mc_table_length(length, 16); i++) { /* a table is all or nothing */
        flip(rig, offset + mc_table_offset(length) + i);
        assert_int_equal(get_range(rig, 0, length, "flip", 10, 10), MC_ERR_CHECKSUM_MISMATCH);
        flip(rig, offset + mc_table_offset(length) + i);
    }
    put(rig, 1, 2u << 20, 777, "one");
    flip(rig, (2u << 20) + 776);
    assert_int_equal(get(rig, 1, 777, "one"), MC_ERR_CHECKSUM_MISMATCH);
    assert_int_equal(get_range(rig, 1, 777, "one", 0, 1), MC_ERR_CHECKSUM_MISMATCH);
    flip(rig, (2u << 20) + 776);
    assert_int_equal(get(rig, 1, 777, "one"), 0);
}

static void gone(void **state)
{
    struct rig *rig = rig_of(state);
    uint8_t data[300];
    struct iovec part = {data, sizeof(data)};
    put(rig, 0, 0, 300, "gone");
    struct mc_transfer reads[6];
    for (size_t i = 0; i < 6; i++)
        reads[i] = rig_transfer(MC_TRANSFER_READ, 0, rig->generation, 0, 300, "gone", &part, 1);
    reads[1].place.generation--;
    reads[2].place.generation++;
    reads[3].hash_low ^= 1;
    reads[4].hash_high ^= 1;
    reads[5].object_length = reads[5].length = 299;
    rig_run(rig, reads, 6, 5000);
    assert_int_equal(reads[0].result, 0);
    for (size_t i = 1; i < 6; i++)
        assert_int_equal(reads[i].result, MC_ERR_REPLICA_IS_GONE);
    assert_int_equal(mc_segment_memory_clear(rig->memory, 0, rig->generation), 0);
    assert_int_equal(get(rig, 0, 300, "gone"), MC_ERR_REPLICA_IS_GONE);
    assert_int_equal(get_range(rig, 9, 300, "gone", 0, 10), MC_ERR_REPLICA_IS_GONE);
}

/* A grant that was revoked: the object is not made live, and what was live stays so. */
static void stale_write(void **state)
{
    struct rig *rig = rig_of(state);
    uint8_t data[100] = {1};
    struct iovec part = {data, sizeof(data)};
    put(rig, 0, 0, 100, "old");
    for (uint64_t back = 0; back < 2; back++) {
        struct mc_transfer write =
            rig_transfer(MC_TRANSFER_WRITE, 0, rig->generation - back, 4096, 100, "new", &part, 1);
        int rc = rig_run_one(rig, &write, 5000);
        assert_true(rc == 0 || rc == MC_ERR_STALE);
    }
    put(rig, 1, 8192, 100, "after"); /* in order behind them */
    const struct mc_slot *slot = &mc_segment_memory_slots(rig->memory)[0];
    assert_int_equal(slot->offset, 0);
    rig->generation--;
    assert_int_equal(get(rig, 0, 100, "old"), 0);
}

struct clearing {
    struct rig *rig;
    uint64_t delay_us;
    _Atomic bool done;
};

static void clear_now(void *argument)
{
    struct clearing *clearing = argument;
    mc_segment_memory_clear(clearing->rig->memory, 0, clearing->rig->generation);
    /* The space is given out again and written. Another process would do this; here it must look so to the sanitizer
     * too. */
#if !defined(__SANITIZE_THREAD__)
    memset(mc_segment_memory_data(clearing->rig->memory), 0x77, BIG / 8);
#endif
    atomic_store(&clearing->done, true);
}

static void *clear_soon(void *argument)
{
    struct clearing *clearing = argument;
    usleep((useconds_t)clearing->delay_us);
    mc_serve_post(clearing->rig->serve, clear_now, clearing);
    return NULL;
}

static void cleared_in_mid_copy(void **state)
{
    struct rig *rig = rig_of(state);
    const uint64_t length = BIG / 8 + 5;
    int misses = 0;
    for (uint64_t round = 0; round < 30; round++) {
        pthread_t thread;
        put(rig, 0, 0, length, "victim");
        uint64_t start_ns = mc_clock_ns();
        assert_int_equal(get(rig, 0, length, "victim"), 0);
        /* So that the middle of the next one is hit, sooner or later. */
        struct clearing clearing = {.rig = rig, .delay_us = (mc_clock_ns() - start_ns) / 1000 * round / 25};
        assert_int_equal(pthread_create(&thread, NULL, clear_soon, &clearing), 0);
        for (int tries = 0; tries < 10000; tries++) {
            int rc = get(rig, 0, length, "victim"); /* compares when it is 0 */
            misses += rc == MC_ERR_REPLICA_IS_GONE;
            assert_true(rc == 0 || rc == MC_ERR_REPLICA_IS_GONE);
            if (rc < 0)
                break;
        }
        pthread_join(thread, NULL);
        for (int i = 0; i < 20000 && !atomic_load(&clearing.done); i++)
            usleep(100);
        assert_true(atomic_load(&clearing.done));
    }
    assert_int_equal(misses, 30);
}

static void deadline_has_passed(void **state)
{
    struct rig *rig = rig_of(state);
    uint8_t data[2][5000];
    struct iovec parts[2] = {{data[0], 5000}, {data[1], 5000}};
    put(rig, 0, 0, 5000, "late");
    memset(data, 3, sizeof(data));
    struct mc_transfer transfers[2] = {
        rig_transfer(MC_TRANSFER_READ, 0, rig->generation, 0, 5000, "late", &parts[0], 1),
        rig_transfer(MC_TRANSFER_WRITE, 1, rig->generation + 1, 8192, 5000, "late", &parts[1], 1)};
    struct mc_transfer *list[2] = {&transfers[0], &transfers[1]};
    for (uint64_t i = 0; i < 2; i++) {
        struct mc_run run = {.deadline_ns = i == 0 ? 0 : mc_clock_ns() - 1};
        rig->path->transport->run(rig->path, list, 2, &run);
        assert_int_equal(transfers[0].result, MC_ERR_RPC_TIMEOUT);
        assert_int_equal(transfers[1].result, MC_ERR_RPC_TIMEOUT);
        assert_int_equal(data[0][0], 3);
    }
    assert_int_equal(get(rig, 0, 5000, "late"), 0);
}

/* Ends by its deadline in the middle too, whatever was moved. */
static void deadline_passes(void **state)
{
    struct rig *rig = rig_of(state);
    const uint64_t length = BIG;
    uint8_t *data = malloc(length);
    struct iovec part = {data, length};
    put(rig, 0, 0, length, "big");
    int late = 0;
    for (uint64_t us = 50; us < 60000; us = us * 3 / 2) {
        struct mc_transfer read = rig_transfer(MC_TRANSFER_READ, 0, rig->generation, 0, length, "big", &part, 1),
                           *list = &read;
        struct mc_run run = {.deadline_ns = mc_clock_ns() + us * 1000};
        rig->path->transport->run(rig->path, &list, 1, &run);
        uint64_t over_ns = mc_clock_ns() - run.deadline_ns;
        assert_true(read.result == 0 || read.result == MC_ERR_RPC_TIMEOUT);
        late += read.result != 0;
        if (read.result != 0)
            assert_true(over_ns < 200000000u); /* loaded machines; a quiet one needs under 5 ms */
    }
    assert_true(late > 0);
    assert_int_equal(get(rig, 0, length, "big"), 0);
    free(data);
}

struct worker {
    struct rig *rig;
    uint32_t number;
    int failures;
};

static void *work(void *argument)
{
    struct worker *worker = argument;
    uint64_t random = worker->number;
    uint8_t *data = malloc(300000), *back = malloc(300000);
    for (uint32_t i = 0; i < 60; i++) {
        uint32_t slot = worker->number * 100 + i;
        uint64_t length = 1 + random_below(&random, i % 3 == 0 ? 300000 : 5000),
                 offset = (worker->number * 16 + i % 16) * 327680ull;
        uint64_t generation = (1ull << MC_EPOCH_SHIFT) + slot + 1;
        struct iovec part = {data, length}, target = {back, length};
        rig_fill(data, length, slot);
        struct mc_transfer write =
            rig_transfer(MC_TRANSFER_WRITE, slot, generation, offset, length, "thread", &part, 1);
        worker->failures +=
            rig_run_one(worker->rig, &write, PATIENT_MS) != 0 || !rig_wait_live(worker->rig, slot, generation);
        struct mc_transfer read = rig_transfer(MC_TRANSFER_READ, slot, generation, 0, length, "thread", &target, 1);
        worker->failures += rig_run_one(worker->rig, &read, PATIENT_MS) != 0 || memcmp(data, back, length) != 0;
    }
    free(data);
    free(back);
    return NULL;
}

static void threads_at_once(void **state)
{
    struct worker workers[4];
    pthread_t threads[4];
    for (uint32_t i = 0; i < 4; i++) {
        workers[i] = (struct worker){rig_of(state), i, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (uint32_t i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].failures, 0);
    }
}

/* In a forked child every call fails and nothing of the parent is disturbed. */
static void forked(void **state)
{
    struct rig *rig = rig_of(state);
    uint8_t data[100];
    struct iovec part = {data, sizeof(data)};
    put(rig, 0, 0, 100, "fork");
    pid_t child = fork();
    if (child == 0) {
        mc_paths_forked(rig->paths);
        struct mc_transfer read = rig_transfer(MC_TRANSFER_READ, 0, rig->generation, 0, 100, "fork", &part, 1);
        struct mc_path *path;
        int bad = rig_run_one(rig, &read, 1000) != MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS;
        bad +=
            mc_path_get(rig->paths, &rig->endpoint, rig_deadline(1000), &path) != MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS;
        bad += mc_paths_find_segment(rig->paths, rig->endpoint.segment_id) != NULL;
        mc_path_drop(rig->path);
        mc_path_release(rig->path);
        mc_paths_forget(rig->paths, RIG_SEGMENT);
        mc_paths_destroy(rig->paths);
        _exit(bad);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(get(rig, 0, 100, "fork"), 0);
    put(rig, 1, 4096, 70000, "fork");
    assert_int_equal(get(rig, 1, 70000, "fork"), 0);
}

/* Over the limit of one system call. */
static void over_two_gigabytes(void **state)
{
    struct rig *rig = *state, large;
    const uint64_t length = (2ull << 30) + (1u << 20) + 3;
    const char *wanted = getenv("MC_TEST_LONG");
    if (wanted == NULL || wanted[0] != '1')
        skip();
    assert_int_equal(rig_start(&large, rig->kind, length + (1u << 20), false, false), 0);
    put(&large, 0, 64, length, "long");
    assert_int_equal(get(&large, 0, length, "long"), 0);
    assert_int_equal(get_range(&large, 0, length, "long", length - 5, 5), 0);
    rig_stop(&large);
}

static void slot_only(void **state)
{
    struct rig *rig = rig_of(state);
    const uint64_t length = 100000;
    uint8_t *data = malloc(length);
    struct iovec part = {data, length};
    put(rig, 0, 0, length, "slot");
    setenv("MC_CHECKSUM", "slot", 1);
    struct mc_paths *paths = mc_paths_create(mc_random_id(), 1, rig->kind);
    unsetenv("MC_CHECKSUM");
    mc_paths_add_segment(paths, rig->memory);
    if (rig_rdma != NULL)
        mc_paths_set_rdma(paths, rig_rdma);
    struct mc_path *path;
    assert_int_equal(mc_path_get(paths, &rig->endpoint, rig_deadline(5000), &path), 0);
    struct mc_transfer read = rig_transfer(MC_TRANSFER_READ, 0, rig->generation, 0, length, "slot", &part, 1),
                       *list = &read;
    struct mc_run run = {.deadline_ns = rig_deadline(5000)};
    for (uint64_t offset = 0; offset < 99000; offset += 33333) {
        read.offset = offset;
        read.length = offset == 0 ? length : 1000;
        path->transport->run(path, &list, 1, &run);
        assert_int_equal(read.result, 0);
        assert_memory_equal(data, mc_segment_memory_data(rig->memory) + offset, read.length);
    }
    flip(rig, 5);
    read.offset = 0;
    path->transport->run(path, &list, 1, &run);
    assert_int_equal(read.result, 0); /* as asked for */
    assert_int_equal(get(rig, 0, length, "slot"), MC_ERR_CHECKSUM_MISMATCH);
    mc_segment_memory_clear(rig->memory, 0, rig->generation);
    path->transport->run(path, &list, 1, &run);
    assert_int_equal(read.result, MC_ERR_REPLICA_IS_GONE);
    mc_path_release(path);
    mc_paths_destroy(paths);
    free(data);
}

static void count_missed(void *context)
{
    atomic_fetch_add((_Atomic uint32_t *)context, 1);
}

/* A put that is not confirmed in time says so to the owner, also while others use the path. */
static void nudged(void **state)
{
    static _Atomic uint32_t missed;
    (void)state;
    rig_hooks = (struct mc_serve_hooks){.context = (void *)&missed, .missed = count_missed};
    for (unsigned i = 0; i < 2; i++) {
        struct rig rig;
        atomic_store(&missed, 0);
        assert_int_equal(rig_start(&rig, i == 0 ? MC_PATH_TCP : MC_PATH_SHM, CAPACITY, false, false), 0);
        mc_paths_nudge(rig.paths, RIG_SEGMENT + 1, false); /* is not known */
        put(&rig, 0, 0, 100, "nudge");
        for (unsigned turn = 1; turn <= 5; turn++) {
            mc_paths_nudge(rig.paths, RIG_SEGMENT, false);
            for (unsigned wait = 0; wait < 2000 && atomic_load(&missed) < turn; wait++)
                usleep(1000);
            assert_int_equal(atomic_load(&missed), turn);
            assert_int_equal(get(&rig, 0, 100, "nudge"), 0);
        }
        rig_stop(&rig);
    }
    rig_hooks = (struct mc_serve_hooks){0};
}

/* ---- an owner in another process ---- */

struct mover { /* reads and writes until something fails or time is over */
    struct rig *rig;
    enum mc_transfer_kind kind;
    uint64_t length;
    _Atomic uint64_t moved;
    _Atomic bool stop;
    _Atomic int result;
    uint64_t ended_ns, longest_ns;
    _Atomic uint32_t ticks;
};

static void count_tick(void *context)
{
    atomic_fetch_add(&((struct mover *)context)->ticks, 1);
}

static void *move(void *argument)
{
    struct mover *mover = argument;
    uint8_t *data = malloc(mover->length);
    struct iovec part = {data, mover->length};
    uint64_t generation = mover->rig->generation;
    rig_fill(data, mover->length, 1);
    while (!atomic_load(&mover->stop) && mover->result == 0) {
        bool writes = mover->kind == MC_TRANSFER_WRITE;
        struct mc_transfer one =
            rig_transfer(mover->kind, writes ? 1 : 0, writes ? ++generation : mover->rig->generation,
                         writes ? CAPACITY / 2 : 0, mover->length, "peer", &part, 1);
        struct mc_transfer *list = &one;
        struct mc_run run = {.deadline_ns = rig_deadline(10000), .tick = count_tick, .context = mover};
        uint64_t start_ns = mc_clock_ns();
        mover->rig->path->transport->run(mover->rig->path, &list, 1, &run);
        uint64_t took_ns = mc_clock_ns() - start_ns;
        mover->longest_ns = took_ns > mover->longest_ns ? took_ns : mover->longest_ns;
        mover->result = one.result;
        atomic_fetch_add(&mover->moved, one.result == 0);
    }
    mover->ended_ns = mc_clock_ns();
    free(data);
    return NULL;
}

static void peer_start(struct rig *rig, unsigned kind, uint64_t length)
{
    uint8_t *data = malloc(length);
    struct iovec part = {data, length};
    assert_int_equal(rig_start(rig, kind, CAPACITY, true, false), 0);
    rig_fill(data, length, 1);
    struct mc_transfer write = rig_transfer(MC_TRANSFER_WRITE, 0, ++rig->generation, 0, length, "peer", &part, 1);
    assert_int_equal(rig_run_one(rig, &write, 10000), 0);
    for (int i = 0; i < 2000; i++) {
        struct mc_transfer read = rig_transfer(MC_TRANSFER_READ, 0, rig->generation, 0, length, "peer", &part, 1);
        if (rig_run_one(rig, &read, 10000) == 0)
            break;
        usleep(1000);
    }
    free(data);
}

/* Runs a mover against a peer that gets `signal` after a while; the time from then to the mover's end. */
static uint64_t disturb(unsigned kind, enum mc_transfer_kind direction, uint64_t length, int signal,
                        struct mover *mover)
{
    struct rig rig = {0};
    pthread_t thread;
    peer_start(&rig, kind, length);
    *mover = (struct mover){.rig = &rig, .kind = direction, .length = length};
    assert_int_equal(pthread_create(&thread, NULL, move, mover), 0);
    for (int i = 0; i < 5000 && atomic_load(&mover->moved) < 3; i++)
        usleep(1000);
    assert_true(atomic_load(&mover->moved) >= 3);
    usleep(3000);
    uint64_t start_ns = mc_clock_ns();
    assert_int_equal(kill(rig.peer, signal), 0);
    for (int i = 0; i < 3000 && mover->result == 0; i++) {
        usleep(1000);
        if (i == 1500)
            atomic_store(&mover->stop, true);
    }
    atomic_store(&mover->stop, true);
    pthread_join(thread, NULL);
    if (signal == SIGSTOP)
        kill(rig.peer, SIGCONT);
    rig_stop(&rig);
    return mover->ended_ns - start_ns;
}

static void tcp_peer_killed(void **state)
{
    (void)state;
    for (int direction = 0; direction < 2; direction++) {
        struct mover mover;
        uint64_t took_ns =
            disturb(MC_PATH_TCP, direction == 0 ? MC_TRANSFER_READ : MC_TRANSFER_WRITE, BIG / 2, SIGKILL, &mover);
        assert_int_equal(mover.result, MC_ERR_TRANSFER_FAIL);
        assert_true(took_ns < 1000000000u);
    }
}

static void tcp_peer_stopped(void **state)
{
    (void)state;
    for (int direction = 0; direction < 2; direction++) {
        struct mover mover;
        uint64_t took_ns =
            disturb(MC_PATH_TCP, direction == 0 ? MC_TRANSFER_READ : MC_TRANSFER_WRITE, BIG / 2, SIGSTOP, &mover);
        assert_int_equal(mover.result, MC_ERR_TRANSFER_FAIL);
        /* What was in the kernel's buffers moves on for a while; and either side may have lacked a processor. */
        assert_true(took_ns >= MC_STALL_NS / 2 && took_ns < MC_STALL_NS + 1000000000u);
        assert_true(atomic_load(&mover.ticks) >= 2); /* the lease went on being renewed */
    }
}

static void shm_peer_killed(void **state)
{
    (void)state;
    struct mover mover;
    disturb(MC_PATH_SHM, MC_TRANSFER_READ, 1u << 20, SIGKILL, &mover);
    assert_int_equal(mover.result, 0); /* its memory is still there, and what it holds is true */
    uint64_t took_ns = disturb(MC_PATH_SHM, MC_TRANSFER_WRITE, 1u << 20, SIGKILL, &mover);
    assert_int_equal(mover.result, MC_ERR_TRANSFER_FAIL);
    assert_true(took_ns < 500000000u);
}

static void shm_peer_stopped(void **state)
{
    (void)state;
    struct mover mover;
    disturb(MC_PATH_SHM, MC_TRANSFER_READ, 1u << 20, SIGSTOP, &mover);
    assert_int_equal(mover.result, 0);
    disturb(MC_PATH_SHM, MC_TRANSFER_WRITE, 1000, SIGSTOP, &mover); /* until the socket is full */
    assert_true(mover.result == MC_ERR_RPC_TIMEOUT || mover.result == 0);
    assert_true(mover.longest_ns < MC_STALL_NS + 500000000u);
}

#define EACH(test)                                                                                                     \
    {"local " #test, test, setup_local, teardown, NULL}, {"shm " #test, test, setup_shm, teardown, NULL},              \
        {"rdma " #test, test, setup_rdma, teardown, NULL},                                                             \
        {"rdma in place " #test, test, setup_direct, teardown, NULL},                                                  \
    {                                                                                                                  \
        "tcp " #test, test, setup_tcp, teardown, NULL                                                                  \
    }

int main(int count, char **arguments)
{
    if (count == 4 && strcmp(arguments[1], "rig-owner") == 0)
        return rig_owner_main(arguments);
    if (count == 2) /* a pattern: only these */
        cmocka_set_test_filter(arguments[1]);
    (void)setenv("MC_COPY_THREADS", "3", 0); /* however many processors there are */
    const struct CMUnitTest tests[] = {
        EACH(sizes),
        EACH(whole_segment),
        EACH(extent_layout),
        EACH(many_parts),
        EACH(thousands),
        EACH(large_batch),
        EACH(bad_arguments),
        EACH(ranges),
        EACH(bit_flips),
        EACH(gone),
        EACH(stale_write),
        EACH(cleared_in_mid_copy),
        EACH(deadline_has_passed),
        EACH(deadline_passes),
        EACH(threads_at_once),
        EACH(forked),
        EACH(slot_only),
        EACH(over_two_gigabytes),
        cmocka_unit_test(nudged),
        cmocka_unit_test(tcp_peer_killed),
        cmocka_unit_test(tcp_peer_stopped),
        cmocka_unit_test(shm_peer_killed),
        cmocka_unit_test(shm_peer_stopped),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rig_threads = 2;
    return failed + cmocka_run_group_tests_name("with data threads", tests, NULL, NULL);
}
