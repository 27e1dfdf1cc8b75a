/* Objects put from and got into a device's memory, over every transport, against a stand-in of the driver whose memory
 * nobody but the driver can touch. */
#include "transport_rig.h"

#include "base/error.h"
#include "store/path/path.h"
#include "store/path/paths.h"
#include "fake_cuda_load.h"
#include "fake_verbs.h"
#include "random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define CAPACITY (96u << 20)
#define DEVICE_BYTES (48u << 20)
#define UNIT MC_GPU_UNIT_BYTES
#define PARTS 24u
#ifdef __SANITIZE_THREAD__ /* some thirty times slower */
#define REFUSALS 8u
#else
#define REFUSALS 60u
#endif

static struct fake_cuda fake;
static uint64_t device_memory; /* one allocation; tests use it from its start */
static struct rig rig;

static int setup_kind(void **state, unsigned kind)
{
    *state = &rig;
    if (device_memory == 0) {
        if (fake_cuda_load(&fake) != 0)
            return -1;
        mc_gpu_look();
        device_memory = fake.fake_cuda_allocate(DEVICE_BYTES, 1, 0);
    }
    return mc_gpu_is_there() && device_memory != 0 ? rig_start(&rig, kind, CAPACITY, false, false) : -1;
}
static int setup_local(void **state)
{
    return setup_kind(state, MC_PATH_LOCAL);
}
static int setup_shm(void **state)
{
    return setup_kind(state, MC_PATH_SHM);
}
static int setup_tcp(void **state)
{
    return setup_kind(state, MC_PATH_TCP);
}
static int setup_rdma(void **state)
{
    const struct fake_device_config devices[] = {fake_roce(0), fake_roce(1)};
    struct mc_rdma_options options = {0};
    fake_reset(devices, 2);
    options.verbs = fake_verbs();
    return mc_rdma_open(&options, &rig_rdma) == 0 ? setup_kind(state, MC_PATH_RDMA) : -1;
}

static int teardown(void **state)
{
    (void)state;
    for (int call = 0; call < FAKE_CUDA_CALLS; call++)
        fake.fake_cuda_fail(call, 0, 0, 0);
    rig_stop(&rig);
    bool is_clean = fake.fake_cuda_number(FAKE_CUDA_PENDING) == 0 && fake.fake_cuda_number(FAKE_CUDA_DEPTH) == 0 &&
                    fake.fake_cuda_number(FAKE_CUDA_MISTAKES) == 0;
    return is_clean ? 0 : -1;
}

static uint8_t *seen(uint64_t at)
{
    return fake.fake_cuda_seen(device_memory + at);
}

struct target { /* memory of an object: parts in the device, with parts of the host's in between */
    struct iovec parts[PARTS];
    size_t count;
    uint8_t *host; /* as large as the object; of it only what the parts name is used */
    uint64_t device_at;
};

/* stride: every so many parts one lies in the host's memory; 0: none does. */
static void target_make(struct target *target, uint64_t device_at, uint64_t length, unsigned stride, uint64_t seed)
{
    uint64_t at = 0;
    target->count = 0;
    target->device_at = device_at;
    target->host = malloc(length + 1);
    assert_true(device_at + length <= DEVICE_BYTES);
    while (at < length || target->count == 0) {
        uint64_t step = target->count + 1 == PARTS ? length - at : random_below(&seed, 2 * length / PARTS + 3);
        step = step < length - at ? step : length - at;
        bool is_host = stride != 0 && target->count % stride == stride - 1;
        void *base = is_host ? (void *)(target->host + at) : (void *)(uintptr_t)(device_memory + device_at + at);
        target->parts[target->count++] = (struct iovec){base, step};
        at += step;
    }
}

static uint8_t *byte_at(struct target *target, size_t part, uint64_t at)
{
    uint64_t base = (uintptr_t)target->parts[part].iov_base;
    bool is_device = base >= device_memory && base < device_memory + DEVICE_BYTES;
    return is_device ? seen(base - device_memory + at) : (uint8_t *)target->parts[part].iov_base + at;
}

static void scatter(struct target *target, const uint8_t *data)
{
    for (size_t i = 0; i < target->count; data += target->parts[i++].iov_len)
        memcpy(byte_at(target, i, 0), data, target->parts[i].iov_len);
}

static void expect_bytes(struct target *target, const uint8_t *data)
{
    for (size_t i = 0; i < target->count; data += target->parts[i++].iov_len)
        assert_memory_equal(byte_at(target, i, 0), data, target->parts[i].iov_len);
}

/* ---- there and back ---- */

static uint64_t slots_used;

/* Puts from the device, gets into other memory of it, whole and a range. */
static void there_and_back(uint64_t offset, uint64_t length, unsigned stride)
{
    uint32_t slot = (uint32_t)(slots_used++ % 1000);
    struct target from, to, part;
    uint8_t *data = malloc(length);
    rig_fill(data, length, length);
    target_make(&from, 0, length, stride, length);
    scatter(&from, data);
    struct mc_transfer write =
        rig_transfer(MC_TRANSFER_WRITE, slot, ++rig.generation, offset, length, "key", from.parts, from.count);
    assert_int_equal(rig_run_one(&rig, &write, 20000), 0);
    assert_int_equal(fake.fake_cuda_number(FAKE_CUDA_PENDING), 0);
    uint8_t *other = memset(malloc(length), 0x11, length);
    scatter(&from, other); /* nothing looks at it any more */
    free(other);
    assert_true(rig_wait_live(&rig, slot, rig.generation));
    target_make(&to, 24u << 20, length, stride == 0 ? 0 : stride + 1, length + 1);
    struct mc_transfer read =
        rig_transfer(MC_TRANSFER_READ, slot, rig.generation, 0, length, "key", to.parts, to.count);
    assert_int_equal(rig_run_one(&rig, &read, 20000), 0);
    assert_int_equal(fake.fake_cuda_number(FAKE_CUDA_PENDING), 0);
    expect_bytes(&to, data);
    uint64_t start = length / 3, size = length - start - length / 5;
    memset(seen(0), 0xab, size + 16);
    target_make(&part, 8, size, 0, 3);
    read = rig_transfer(MC_TRANSFER_READ, slot, rig.generation, 0, length, "key", part.parts, part.count);
    read.offset = start;
    read.length = size;
    assert_int_equal(rig_run_one(&rig, &read, 20000), 0);
    expect_bytes(&part, data + start);
    assert_int_equal(*seen(7), 0xab);
    assert_int_equal(*seen(8 + size), 0xab);
    free(from.host);
    free(to.host);
    free(part.host);
    free(data);
}

static void sizes(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {
        1,    5,        4096,         65535,    65536,           65537,        1 << 20,  UNIT - 1,
        UNIT, UNIT + 1, 2 * UNIT - 1, 2 * UNIT, 2 * UNIT + 7000, 3 * UNIT + 1, 5 * UNIT, 5 * UNIT + 65537};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
        for (unsigned stride = 0; stride < 3; stride++)
            there_and_back(4096, lengths[i], stride);
    assert_true(fake.fake_cuda_number(FAKE_CUDA_LONGEST) <= UNIT);
}

/* Without pinned memory the units are smaller. */
static void without_pinned_memory(void **state)
{
    (void)state;
    struct mc_gpu_lane *held[MC_GPU_LANES_MAX];
    for (size_t i = 0; i < MC_GPU_LANES_MAX; i++)
        held[i] = mc_gpu_take(1);
    for (uint64_t length = 1000; length < 5 * UNIT; length = length * 3 + 1)
        there_and_back(0, length, 2);
    for (size_t i = 0; i < MC_GPU_LANES_MAX; i++)
        mc_gpu_give(held[i]);
}

/* ---- many at once ---- */

#define MANY 200u

static void batches(void **state)
{
    (void)state;
    static struct mc_transfer transfers[MANY];
    static struct target targets[MANY];
    static char keys[MANY][16];
    static uint8_t *data[MANY];
    uint64_t seed = 5, offset = 0, at = 0;
    for (size_t i = 0; i < MANY; i++) {
        uint64_t length = i % 50 == 49 ? UNIT + 4097 : random_below(&seed, 40000) + 1;
        data[i] = malloc(length);
        rig_fill(data[i], length, i);
        target_make(&targets[i], at, length, i % 4 == 3 ? 1 : 3, i); /* stride 1: all of it is the host's */
        scatter(&targets[i], data[i]);
        snprintf(keys[i], sizeof(keys[i]), "many %zu", i);
        transfers[i] = rig_transfer(MC_TRANSFER_WRITE, (uint32_t)(2000 + i), ++rig.generation, offset, length, keys[i],
                                    targets[i].parts, targets[i].count);
        offset += mc_extent_size(length, strlen(keys[i])) + 64;
        offset &= ~(uint64_t)63;
        at += length;
    }
    rig_run(&rig, transfers, MANY, 20000);
    memset(seen(0), 0, DEVICE_BYTES);
    for (size_t i = 0; i < MANY; i++) {
        assert_int_equal(transfers[i].result, 0);
        assert_true(rig_wait_live(&rig, (uint32_t)(2000 + i), transfers[i].place.generation));
        transfers[i].kind = MC_TRANSFER_READ;
        transfers[i].result = 99;
    }
    transfers[7].place.generation += 1000; /* not there */
    transfers[100].hash_low++;             /* another key */
    transfers[149].object_length += 1;     /* another object; one longer than a unit */
    rig_run(&rig, transfers, MANY, 20000);
    for (size_t i = 0; i < MANY; i++) {
        bool is_gone = i == 7 || i == 100 || i == 149;
        assert_int_equal(transfers[i].result, is_gone ? MC_ERR_REPLICA_IS_GONE : 0);
        if (!is_gone)
            expect_bytes(&targets[i], data[i]);
        free(data[i]);
        free(targets[i].host);
    }
}

/* ---- what goes wrong ---- */

static uint32_t put_one(uint64_t length, uint8_t *data)
{
    struct target from;
    uint32_t slot = (uint32_t)(3000 + slots_used++ % 100);
    target_make(&from, 0, length, 0, 1);
    rig_fill(data, length, slot);
    scatter(&from, data);
    struct mc_transfer write =
        rig_transfer(MC_TRANSFER_WRITE, slot, ++rig.generation, 0, length, "one", from.parts, from.count);
    assert_int_equal(rig_run_one(&rig, &write, 20000), 0);
    assert_true(rig_wait_live(&rig, slot, rig.generation));
    free(from.host);
    return slot;
}

static void rotten_bytes_never_reach_the_device(void **state)
{
    (void)state;
    uint64_t length = 2 * UNIT + 100;
    uint8_t *data = malloc(length);
    uint32_t slot = put_one(length, data);
    struct target to;
    mc_segment_memory_data(rig.memory)[UNIT + 5] ^= 1;
    memset(seen(0), 0xcd, length);
    target_make(&to, 0, length, 0, 2);
    struct mc_transfer read =
        rig_transfer(MC_TRANSFER_READ, slot, rig.generation, 0, length, "one", to.parts, to.count);
    assert_int_equal(rig_run_one(&rig, &read, 20000), MC_ERR_CHECKSUM_MISMATCH);
    for (uint64_t i = UNIT; i < 2 * UNIT; i++)
        assert_int_equal(*seen(i), 0xcd);
    free(to.host);
    free(data);
}

/* On a machine that is busy the owner may not have its turn in time. */
static int run_patiently(struct mc_transfer *transfer)
{
    int rc = MC_ERR_RPC_TIMEOUT;
    for (int tries = 0; tries < 20 && rc == MC_ERR_RPC_TIMEOUT; tries++)
        rc = rig_run_one(&rig, transfer, 20000);
    return rc;
}

/* Every call of the driver fails once, at every place where it is made; the peer is never blamed for it, and nothing of
 * a put that failed is to be read. */
static void refusals(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {3000, UNIT, 3 * UNIT + 10};
    for (size_t l = 0; l < 3; l++) {
        uint64_t length = lengths[l];
        uint8_t *data = malloc(length);
        uint32_t slot = put_one(length, data);
        uint64_t generation = rig.generation;
        struct target memory;
        target_make(&memory, 0, length, 0, 2);
        for (int call = FAKE_CUDA_COPY; call <= FAKE_CUDA_WAIT; call++) {
            unsigned failed = 0;
            for (unsigned after = 0; after < REFUSALS; after++) {
                fake.fake_cuda_fail(call, after, 1, 700);
                struct mc_transfer read =
                    rig_transfer(MC_TRANSFER_READ, slot, generation, 0, length, "one", memory.parts, memory.count);
                int rc = run_patiently(&read);
                if (rc != 0)
                    assert_int_equal(rc, MC_ERR_INVALID_PARAMS);
                failed += rc != 0;
                assert_int_equal(fake.fake_cuda_number(FAKE_CUDA_PENDING), 0);
                fake.fake_cuda_fail(call, after, 1, 700);
                uint32_t other = 3500;
                struct mc_transfer write = rig_transfer(MC_TRANSFER_WRITE, other, ++rig.generation, 32u << 20, length,
                                                        "two", memory.parts, memory.count);
                rc = rig_run_one(&rig, &write, 20000);
                if (rc == MC_ERR_RPC_TIMEOUT)
                    continue;
                if (rc != 0)
                    assert_int_equal(rc, MC_ERR_INVALID_PARAMS);
                failed += rc != 0;
                struct mc_slot found;
                read.parts = &(struct iovec){data, length};
                read.part_count = 1;
                if (rc != 0) /* behind whatever the put has sent */
                    assert_int_equal(run_patiently(&read), 0);
                if (rc != 0)
                    assert_false(mc_slot_read(&mc_segment_memory_slots(rig.memory)[other], rig.generation, &found));
                else
                    assert_true(rig_wait_live(&rig, other, rig.generation));
                assert_int_equal(fake.fake_cuda_number(FAKE_CUDA_PENDING), 0);
            }
            assert_true(failed >= 2);
        }
        fake.fake_cuda_fail(FAKE_CUDA_WAIT, 0, 0, 0);
        free(memory.host);
        free(data);
    }
    there_and_back(0, UNIT + 1, 0); /* the path is as good as before */
}

/* Of puts that are moved together the one whose memory cannot be read fails, and no other. */
static void one_of_many_refused(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {3000, UNIT + 5, MC_GPU_UNIT_SMALL + 5};
    struct mc_gpu_lane *held[MC_GPU_LANES_MAX];
    for (size_t l = 0; l < 3; l++) {
        for (size_t i = 0; l == 2 && i < MC_GPU_LANES_MAX; i++) /* units are small */
            held[i] = mc_gpu_take(1);
        uint64_t length = lengths[l], gone = fake.fake_cuda_allocate(length, 1, 0);
        struct mc_transfer writes[4];
        struct iovec parts[4], read_part;
        uint8_t *data = malloc(length), *got = malloc(length);
        rig_fill(data, length, l);
        assert_int_equal(mc_gpu_note((void *)(uintptr_t)gone, length).kind, MC_GPU_MEMORY);
        fake.fake_cuda_free(gone);
        for (uint32_t i = 0; i < 4; i++) {
            parts[i] = (struct iovec){(void *)(uintptr_t)(i == 1 ? gone : device_memory + i * (8u << 20)), length};
            if (i != 1)
                memcpy(seen(i * (8u << 20)), data, length);
            writes[i] = rig_transfer(MC_TRANSFER_WRITE, 3600 + i, ++rig.generation, i * (8u << 20), length, "many",
                                     &parts[i], 1);
        }
        rig_run(&rig, writes, 4, 20000);
        for (uint32_t i = 0; i < 4; i++) {
            assert_int_equal(writes[i].result, i == 1 ? MC_ERR_INVALID_PARAMS : 0);
            assert_false(writes[i].is_unsure);
            if (i == 1)
                continue;
            assert_true(rig_wait_live(&rig, 3600 + i, writes[i].place.generation));
            read_part = (struct iovec){got, length};
            struct mc_transfer read = rig_transfer(MC_TRANSFER_READ, 3600 + i, writes[i].place.generation,
                                                   i * (8u << 20), length, "many", &read_part, 1);
            assert_int_equal(rig_run_one(&rig, &read, 20000), 0);
            assert_memory_equal(got, data, length);
        }
        struct mc_slot found;
        assert_false(mc_slot_read(&mc_segment_memory_slots(rig.memory)[3601], writes[1].place.generation, &found));
        mc_gpu_forget((void *)(uintptr_t)gone);
        free(data);
        free(got);
    }
    for (size_t i = 0; i < MC_GPU_LANES_MAX; i++)
        mc_gpu_give(held[i]);
}

static void memory_that_was_freed(void **state)
{
    (void)state;
    uint8_t data[5000];
    uint32_t slot = put_one(sizeof(data), data);
    uint64_t address = fake.fake_cuda_allocate(sizeof(data), 0, 0);
    assert_int_equal(mc_gpu_note((void *)(uintptr_t)address, sizeof(data)).kind, MC_GPU_MEMORY);
    fake.fake_cuda_free(address);
    struct iovec part = {(void *)(uintptr_t)address, sizeof(data)};
    struct mc_transfer read = rig_transfer(MC_TRANSFER_READ, slot, rig.generation, 0, sizeof(data), "one", &part, 1);
    assert_int_equal(rig_run_one(&rig, &read, 5000), MC_ERR_INVALID_PARAMS);
    struct mc_transfer write =
        rig_transfer(MC_TRANSFER_WRITE, 3600, ++rig.generation, 1 << 20, sizeof(data), "x", &part, 1);
    assert_int_equal(rig_run_one(&rig, &write, 5000), MC_ERR_INVALID_PARAMS);
    mc_gpu_forget((void *)(uintptr_t)address);
}

static void bad_arguments(void **state)
{
    (void)state;
    uint8_t data[5000];
    uint32_t slot = put_one(sizeof(data), data);
    struct iovec part = {(void *)(uintptr_t)device_memory, 4999}; /* too short by one */
    struct mc_transfer read = rig_transfer(MC_TRANSFER_READ, slot, rig.generation, 0, sizeof(data), "one", &part, 1);
    assert_int_equal(rig_run_one(&rig, &read, 5000), MC_ERR_INVALID_PARAMS);
    part.iov_len = 5000;
    read.length = 0;
    assert_int_equal(rig_run_one(&rig, &read, 5000), MC_ERR_INVALID_PARAMS);
    read.length = 5000;
    read.offset = 1;
    assert_int_equal(rig_run_one(&rig, &read, 5000), MC_ERR_INVALID_PARAMS);
    read.offset = 0;
    read.place.slot = UINT32_MAX;
    assert_int_equal(rig_run_one(&rig, &read, 5000), MC_ERR_INVALID_PARAMS);
    uint64_t short_length = UNIT + 5;
    struct iovec shorter = {(void *)(uintptr_t)device_memory, UNIT + 4};
    struct mc_transfer write =
        rig_transfer(MC_TRANSFER_WRITE, 3601, ++rig.generation, 1 << 20, short_length, "x", &shorter, 1);
    assert_int_equal(rig_run_one(&rig, &write, 5000), MC_ERR_INVALID_PARAMS);
    read.place.slot = slot;
    assert_int_equal(rig_run_one(&rig, &read, 0), MC_ERR_RPC_TIMEOUT); /* too late */
    fake.fake_cuda_fail(FAKE_CUDA_HOST_ALLOCATE, 0, 1000, 2);
    assert_int_equal(rig_run_one(&rig, &read, 5000), 0); /* lanes that there are go on */
}

/* Each device's memory is copied when the work on its own default stream is done: one batch, one object with parts of
 * both, and a long one. */
static void two_devices(void **state)
{
    static const uint64_t lengths[] = {40000, UNIT + 70000};
    uint64_t second = fake.fake_cuda_allocate(4 * UNIT, 0, 0);
    (void)state;
    assert_true(second != 0);
    uint64_t bases[] = {device_memory, second};
    for (size_t i = 0; i < 2; i++) {
        uint64_t length = lengths[i], half = length / 2;
        struct iovec parts[3][2] = {{{(void *)(uintptr_t)bases[0], length}},
                                    {{(void *)(uintptr_t)bases[1], length}},
                                    {{(void *)(uintptr_t)(bases[0] + 2 * UNIT), half},
                                     {(void *)(uintptr_t)(bases[1] + 2 * UNIT), length - half}}};
        struct mc_transfer writes[3];
        for (size_t j = 0; j < 3; j++) {
            for (size_t k = 0; k < (j == 2 ? 2 : 1); k++) {
                uint64_t base = (uintptr_t)parts[j][k].iov_base;
                memset(fake.fake_cuda_seen(base), 0, parts[j][k].iov_len);
                fake.fake_cuda_fill_later(base, parts[j][k].iov_len, (int)(10 * i + 3 * j + k + 1));
            }
            writes[j] = rig_transfer(MC_TRANSFER_WRITE, 3700 + (uint32_t)(3 * i + j), ++rig.generation,
                                     (24u << 20) + j * 3 * UNIT, length, "two", parts[j], j == 2 ? 2 : 1);
        }
        rig_run(&rig, writes, 3, 20000);
        for (size_t j = 0; j < 3; j++) {
            uint8_t *bytes = malloc(length);
            struct iovec part = {bytes, length};
            struct mc_transfer read = writes[j];
            assert_int_equal(writes[j].result, 0);
            assert_true(rig_wait_live(&rig, writes[j].place.slot, writes[j].place.generation));
            read.kind = MC_TRANSFER_READ;
            read.parts = &part;
            read.part_count = 1;
            assert_int_equal(rig_run_one(&rig, &read, 20000), 0);
            for (uint64_t at = 0; at < length; at++)
                assert_int_equal(bytes[at], 10 * i + 3 * j + (j == 2 && at >= half) + 1);
            free(bytes);
        }
    }
    fake.fake_cuda_free(second);
}

#define EVERY(test)                                                                                                    \
    cmocka_unit_test_setup_teardown(test, setup_local, teardown),                                                      \
        cmocka_unit_test_setup_teardown(test, setup_shm, teardown),                                                    \
        cmocka_unit_test_setup_teardown(test, setup_tcp, teardown),                                                    \
        cmocka_unit_test_setup_teardown(test, setup_rdma, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        EVERY(sizes),
        EVERY(without_pinned_memory),
        EVERY(batches),
        EVERY(rotten_bytes_never_reach_the_device),
        EVERY(refusals),
        EVERY(memory_that_was_freed),
        EVERY(one_of_many_refused),
        EVERY(bad_arguments),
        EVERY(two_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
