/* Memory that the caller has registered: path rdma reads and writes it in place, and copies only what it must. */
#include "transport_rig.h"

#include "store/client/state.h"
#include "store/path/path.h"
#include "store/path/paths.h"
#include "store/path/rdma_buffers.h"
#include "fake_verbs.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <cmocka.h>

#define DEVICES 2u
#define ROOM (24u << 20)
#define BLOCK ((uint64_t)1 << MC_BLOCK_SHIFT_MIN)

static uint8_t room[ROOM], expected[ROOM]; /* the caller's; not registered unless a test does it */

static void start(struct rig *rig)
{
    const struct fake_device_config devices[DEVICES] = {fake_roce(0), fake_roce(1)};
    struct mc_rdma_options options = {0};
    fake_reset(devices, DEVICES);
    options.verbs = fake_verbs();
    assert_int_equal(mc_rdma_open(&options, &rig_rdma), 0);
    assert_int_equal(rig_start(rig, MC_PATH_RDMA, 2 * ROOM, false, false), 0);
}

static uint64_t copied(const struct rig *rig)
{
    return atomic_load(&mc_paths_counters(rig->paths)->rdma_copied_bytes);
}

static uint64_t moved(const struct rig *rig)
{
    return atomic_load(&mc_paths_counters(rig->paths)->path_bytes[3]);
}

static int write_parts(struct rig *rig, uint64_t length, const struct iovec *parts, size_t count)
{
    struct mc_transfer write = rig_transfer(MC_TRANSFER_WRITE, 0, ++rig->generation, 0, length, "direct", parts, count);
    int rc = rig_run_one(rig, &write, 10000);
    if (rc == 0)
        assert_true(rig_wait_live(rig, 0, rig->generation));
    return rc;
}

static int read_parts(struct rig *rig, uint64_t length, uint64_t from, uint64_t size, const struct iovec *parts,
                      size_t count)
{
    struct mc_transfer read = rig_transfer(MC_TRANSFER_READ, 0, rig->generation, 0, length, "direct", parts, count);
    read.offset = from;
    read.length = size;
    return rig_run_one(rig, &read, 10000);
}

/* Puts an object whose bytes are `expected`. */
static void put(struct rig *rig, uint64_t length)
{
    struct iovec part = {room, length};
    rig_fill(expected, length, length);
    memcpy(room, expected, length);
    assert_int_equal(write_parts(rig, length, &part, 1), 0);
    memset(room, 0xa5, sizeof(room));
}

/* Nothing is copied, whatever the length, and what lies around is not touched. */
static void whole_objects(void **state)
{
    static const uint64_t lengths[] = {4096,      4097,          BLOCK - 1,      BLOCK,
                                       BLOCK + 1, 3 * BLOCK + 7, (9u << 20) + 5, 20u << 20};
    struct rig rig;
    (void)state;
    start(&rig);
    assert_int_equal(mc_paths_register(rig.paths, room, sizeof(room)), 0);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        uint64_t length = lengths[i], before = moved(&rig);
        struct iovec part = {room + 64, length};
        put(&rig, length);
        assert_int_equal(read_parts(&rig, length, 0, length, &part, 1), 0);
        assert_memory_equal(room + 64, expected, length);
        assert_int_equal(room[63], 0xa5);
        assert_int_equal(room[64 + length], 0xa5);
        assert_int_equal(moved(&rig), before + 2 * length);
        assert_int_equal(copied(&rig), 0);
    }
    mc_paths_unregister(rig.paths, room);
    rig_stop(&rig);
}

/* In a tensor's pieces. Short ones cost more than a copy, and are copied. */
static void parts_of_all_sizes(void **state)
{
    struct iovec parts[64];
    struct rig rig;
    (void)state;
    start(&rig);
    assert_int_equal(mc_paths_register(rig.paths, room, sizeof(room)), 0);
    for (unsigned turn = 0; turn < 2; turn++) {
        const uint64_t size = turn == 0 ? 5003 : 1001, length = 64 * size, before = copied(&rig);
        put(&rig, length);
        for (size_t i = 0; i < 64; i++) /* in another order, and apart */
            parts[i] = (struct iovec){room + (63 - i) * (size + 9), size};
        assert_int_equal(read_parts(&rig, length, 0, length, parts, 64), 0);
        for (size_t i = 0; i < 64; i++)
            assert_memory_equal(parts[i].iov_base, expected + i * size, size);
        assert_int_equal(copied(&rig) - before, turn == 0 ? 0 : length);
    }
    rig_stop(&rig);
}

/* Of a range the blocks are read in place that are wanted whole; what of others is wanted is copied. */
static void ranges(void **state)
{
    const uint64_t length = (11u << 20) + 3;
    struct rig rig;
    (void)state;
    start(&rig);
    assert_int_equal(mc_paths_register(rig.paths, room, sizeof(room)), 0);
    put(&rig, length);
    const uint64_t block = 1ull << mc_block_shift(length);
    const struct {
        uint64_t from, to, copied;
    } ranges[] = {
        {0, length, 0},
        {block, 5 * block, 0},
        {1, length, block - 1},
        {block - 1, 3 * block + 1, 2},
        {5, length - 4, block - 5 + (length - 4) % block},
        {7 * block + 1, 8 * block - 1, block - 2},
        {length - 3, length, 3},
        {block + 5, 2 * block + 5, block},
    };
    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
        uint64_t size = ranges[i].to - ranges[i].from, before = copied(&rig);
        struct iovec part = {room + 3, size};
        memset(room, 0xa5, sizeof(room));
        assert_int_equal(read_parts(&rig, length, ranges[i].from, size, &part, 1), 0);
        assert_memory_equal(room + 3, expected + ranges[i].from, size);
        assert_int_equal(room[2], 0xa5);
        assert_int_equal(room[3 + size], 0xa5);
        assert_int_equal(copied(&rig) - before, ranges[i].copied);
    }
    rig_stop(&rig);
}

/* One part lies elsewhere: all are copied. Several buffers, overlapping ones among them, are found. */
static void what_is_registered(void **state)
{
    const uint64_t half = 1u << 20, length = 2 * half;
    struct iovec parts[2] = {{room, half}, {room + (8u << 20), half}};
    struct rig rig;
    (void)state;
    start(&rig);
    rig_fill(expected, length, 1);
    assert_int_equal(mc_paths_register(rig.paths, room, half), 0);
    memcpy(room, expected, half);
    memcpy(room + (8u << 20), expected + half, half);
    assert_int_equal(write_parts(&rig, length, parts, 2), 0);
    assert_int_equal(copied(&rig), length);
    assert_int_equal(mc_paths_register(rig.paths, room + (7u << 20), 4u << 20), 0); /* has the second, */
    assert_int_equal(mc_paths_register(rig.paths, room + (7u << 20) + 1, 10), 0);   /* and these do not */
    assert_int_equal(mc_paths_register(rig.paths, room + (8u << 20), half - 1), 0);
    assert_int_equal(write_parts(&rig, length, parts, 2), 0);
    memset(room, 0, sizeof(room));
    assert_int_equal(read_parts(&rig, length, 0, length, parts, 2), 0);
    assert_memory_equal(room, expected, half);
    assert_memory_equal(room + (8u << 20), expected + half, half);
    assert_int_equal(copied(&rig), length);
    mc_paths_unregister(rig.paths, room + (7u << 20));
    mc_paths_unregister(rig.paths, room + 5); /* is not there */
    assert_int_equal(read_parts(&rig, length, 0, length, parts, 2), 0);
    assert_int_equal(copied(&rig), 2 * length);
    mc_paths_unregister(rig.paths, room);
    mc_paths_unregister(rig.paths, room + (7u << 20) + 1);
    mc_paths_unregister(rig.paths, room + (8u << 20));
    assert_int_equal(read_parts(&rig, length, 0, length, parts, 2), 0);
    assert_int_equal(copied(&rig), 3 * length);
    rig_stop(&rig);
}

/* What a device does not take is copied, and that it is so is said to who asks. */
static void refused(void **state)
{
    const uint64_t length = 1u << 20;
    struct iovec part = {room, length};
    struct rig rig;
    (void)state;
    start(&rig);
    put(&rig, length); /* there is a stage */
    for (uint32_t i = 0; i < DEVICES; i++)
        fake_fail_registrations(i, 1, ENOMEM);
    assert_int_equal(mc_paths_register(rig.paths, room, sizeof(room)), MC_ERR_NO_MEMORY);
    put(&rig, length);
    assert_int_equal(read_parts(&rig, length, 0, length, &part, 1), 0);
    assert_memory_equal(room, expected, length);
    assert_int_equal(copied(&rig), 3 * length);
    rig_stop(&rig);
}

/* What only one device takes is copied: else all depended on that one. One that is lost is not asked for. */
static void refused_by_one(void **state)
{
    const uint64_t length = 1u << 20;
    struct iovec part = {room, length};
    struct mc_rdma_counters counters = {0};
    struct rig rig;
    (void)state;
    start(&rig);
    put(&rig, length);
    uint32_t mrs = fake_counts().mrs;
    fake_fail_registrations(0, 1, EIO);
    (void)mc_paths_register(rig.paths, room, sizeof(room));
    fake_port(1, false);
    assert_int_equal(read_parts(&rig, length, 0, length, &part, 1), 0);
    assert_memory_equal(room, expected, length);
    assert_false(atomic_load(&rig.path->broken));
    assert_int_equal(copied(&rig), 2 * length);
    assert_int_equal(fake_counts().mrs, mrs);
    fake_port(1, true);
    fake_lose_device(0);
    for (unsigned wait = 0; counters.device_losses == 0; wait++) {
        assert_true(wait < 5000);
        usleep(1000);
        mc_rdma_counters_get(rig_rdma, &counters);
    }
    fake_fail_registrations(0, 1, EIO);
    assert_int_equal(mc_paths_register(rig.paths, room, sizeof(room)), 0);
    put(&rig, length);
    assert_int_equal(read_parts(&rig, length, 0, length, &part, 1), 0);
    assert_memory_equal(room, expected, length);
    assert_int_equal(copied(&rig), 2 * length);
    rig_stop(&rig);
}

/* What callers have registered may be all that may be pinned: there is a stage before that. */
static void pinned_by_callers(void **state)
{
    const uint64_t length = 1u << 20;
    struct iovec part = {room, length};
    struct rig rig;
    (void)state;
    start(&rig);
    assert_int_equal(mc_paths_register(rig.paths, room, sizeof(room)), 0);
    for (uint32_t i = 0; i < DEVICES; i++)
        fake_fail_registrations(i, 1000, ENOMEM);
    put(&rig, length);
    assert_int_equal(read_parts(&rig, length, 0, length, &part, 1), 0);
    assert_memory_equal(room, expected, length);
    assert_int_equal(copied(&rig), 0);
    rig_stop(&rig);
}

/* Whatever the sizes, what there is of stages is enough. */
static void larger_than_a_stage(void **state)
{
    enum { COUNT = 4 };
    static const uint64_t sizes[COUNT] = {50000, 12u << 20, 70000, 9u << 20};
    static const char *const keys[COUNT] = {"a", "b", "c", "d"};
    struct mc_transfer transfers[COUNT];
    struct iovec parts[COUNT];
    struct rig rig;
    (void)state;
    start(&rig);
    put(&rig, 4096); /* has made one */
    for (uint32_t i = 0; i < DEVICES; i++)
        fake_fail_registrations(i, 1000, ENOMEM);
    rig.paths->allowed_paths |= MC_PATH_TCP;
    rig_fill(room, sizeof(room), 5);
    memcpy(expected, room, sizeof(room));
    uint64_t generation = ++rig.generation, by_rdma = moved(&rig), by_tcp = 0, all = 0;
    for (unsigned turn = 0; turn < 2; turn++) {
        for (size_t i = 0, at = 0; i < COUNT; at += sizes[i++]) {
            parts[i] = (struct iovec){room + at, sizes[i]};
            transfers[i] = rig_transfer(turn == 0 ? MC_TRANSFER_WRITE : MC_TRANSFER_READ, (uint32_t)i, generation,
                                        i * (13u << 20), sizes[i], keys[i], &parts[i], 1);
            all += sizes[i];
        }
        if (turn == 1)
            memset(room, 0, sizes[0] + sizes[1] + sizes[2] + sizes[3]);
        rig_run(&rig, transfers, COUNT, 10000);
        mc_paths_nudge(rig.paths, RIG_SEGMENT, false);
        for (size_t i = 0; i < COUNT; i++) {
            assert_int_equal(transfers[i].result, 0);
            assert_true(rig_wait_live(&rig, (uint32_t)i, generation));
        }
    }
    assert_memory_equal(room, expected, sizeof(room));
    by_rdma = moved(&rig) - by_rdma;
    by_tcp = atomic_load(&mc_paths_counters(rig.paths)->path_bytes[2]);
    assert_int_equal(by_rdma + by_tcp, all); /* each once */
    assert_int_equal(by_tcp, 0);
    assert_false(atomic_load(&rig.path->broken));
    rig_stop(&rig);
}

/* Each byte that a device has brought is compared where it lies. */
static void wrong_bytes(void **state)
{
    const uint64_t length = (1u << 20) + 9;
    struct iovec part = {room, length};
    struct rig rig;
    (void)state;
    start(&rig);
    assert_int_equal(mc_paths_register(rig.paths, room, sizeof(room)), 0);
    put(&rig, length);
    for (unsigned i = 0; i < 9; i++) {
        uint8_t *wrong = mc_segment_memory_data(rig.memory) + i * (length - 1) / 8;
        *wrong ^= 0x10;
        assert_int_equal(read_parts(&rig, length, 0, length, &part, 1), MC_ERR_CHECKSUM_MISMATCH);
        *wrong ^= 0x10;
        assert_int_equal(read_parts(&rig, length, 0, length, &part, 1), 0);
    }
    mc_segment_memory_clear(rig.memory, 0, rig.generation);
    assert_int_equal(read_parts(&rig, length, 0, length, &part, 1), MC_ERR_REPLICA_IS_GONE);
    assert_int_equal(copied(&rig), 9 * length); /* what was wrong was looked at apart before it was said to be */
    rig_stop(&rig);
}

/* One place for what several keys hold: all of them are there, and none is said to be wrong. */
static void one_target(void **state)
{
    enum { COUNT = 3 };
    static const char *const keys[COUNT] = {"a", "b", "c"};
    static const uint64_t lengths[] = {30000, (1u << 20) + 5, 6u << 20};
    struct mc_transfer transfers[COUNT];
    struct iovec parts[COUNT];
    struct rig rig;
    (void)state;
    start(&rig);
    assert_int_equal(mc_paths_register(rig.paths, room, sizeof(room)), 0);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        const uint64_t length = lengths[i], generation = ++rig.generation;
        rig_fill(expected, COUNT * length, i);
        memcpy(room, expected, COUNT * length);
        for (unsigned turn = 0; turn < 2; turn++) {
            for (size_t j = 0; j < COUNT; j++) {
                parts[j] = (struct iovec){room + (turn == 0 ? j * length : 0), length};
                transfers[j] = rig_transfer(turn == 0 ? MC_TRANSFER_WRITE : MC_TRANSFER_READ, (uint32_t)j, generation,
                                            j * (7u << 20), length, keys[j], &parts[j], 1);
            }
            rig_run(&rig, transfers, COUNT, 10000);
            for (size_t j = 0; j < COUNT; j++) {
                assert_int_equal(transfers[j].result, 0);
                assert_true(rig_wait_live(&rig, (uint32_t)j, generation));
            }
        }
    }
    assert_int_equal(atomic_load(&mc_paths_counters(rig.paths)->checksum_errors), 0);
    rig_stop(&rig);
}

static uint8_t old_pages[ROOM];

static void *before_it_was_freed(uint64_t address)
{
    return old_pages + (address - (uintptr_t)room);
}

/* Memory that was freed and mapped anew, and registered all the while: devices reach the pages that it had. */
static void not_unregistered(void **state)
{
    struct fake_device_config devices[DEVICES] = {fake_roce(0), fake_roce(1)};
    struct mc_rdma_options options = {0};
    const uint64_t length = (1u << 20) + 9;
    struct iovec part = {room, length};
    struct rig rig;
    (void)state;
    devices[0].has_peermem = devices[1].has_peermem = true; /* they take what the fake calls a GPU's */
    fake_reset(devices, DEVICES);
    options.verbs = fake_verbs();
    assert_int_equal(mc_rdma_open(&options, &rig_rdma), 0);
    assert_int_equal(rig_start(&rig, MC_PATH_RDMA, 2 * ROOM, false, false), 0);
    put(&rig, length);
    assert_int_equal(mc_paths_register(rig.paths, room, sizeof(room)), 0);
    fake_gpu_memory(room, sizeof(room));
    fake_gpu_reach(before_it_was_freed);
    assert_int_equal(read_parts(&rig, length, 0, length, &part, 1), 0);
    assert_memory_equal(room, expected, length);
    assert_memory_equal(old_pages, expected, length);
    assert_int_equal(atomic_load(&mc_paths_counters(rig.paths)->checksum_errors), 0);
    rig_stop(&rig);
}

/* ---- memory that is being used ---- */

struct user {
    struct rig *rig;
    _Atomic int result, has_ended;
};

static void *use(void *argument)
{
    struct user *user = argument;
    struct iovec part = {room, 1u << 20};
    user->result = read_parts(user->rig, 1u << 20, 0, 1u << 20, &part, 1);
    user->has_ended = 1;
    return NULL;
}

static void *let_go(void *argument)
{
    struct user *user = argument;
    mc_paths_unregister(user->rig->paths, room);
    user->has_ended = 1;
    return NULL;
}

static void let_go_in_use(void **state)
{
    struct rig rig;
    pthread_t threads[2];
    (void)state;
    start(&rig);
    assert_int_equal(mc_paths_register(rig.paths, room, sizeof(room)), 0);
    put(&rig, 1u << 20);
    struct user reader = {.rig = &rig}, leaver = {.rig = &rig};
    uint64_t works = fake_counts().works;
    uint32_t mrs = fake_counts().mrs;
    for (uint32_t i = 0; i < DEVICES; i++)
        fake_hold(i);
    assert_int_equal(pthread_create(&threads[0], NULL, use, &reader), 0);
    for (unsigned wait = 0; fake_counts().works == works; wait++) {
        assert_true(wait < 5000);
        usleep(1000);
    }
    assert_int_equal(pthread_create(&threads[1], NULL, let_go, &leaver), 0);
    usleep(50000);
    bool is_waiting = !leaver.has_ended;
    uint32_t mrs_meanwhile = fake_counts().mrs;
    for (uint32_t i = 0; i < DEVICES; i++)
        fake_release(i);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    assert_true(is_waiting);
    assert_int_equal(mrs_meanwhile, mrs);
    assert_int_equal(reader.result, 0);
    assert_memory_equal(room, expected, 1u << 20);
    assert_int_equal(fake_counts().mrs, mrs - DEVICES);
    rig_stop(&rig);
}

struct registrant {
    struct mc_store *store;
    _Atomic int result, has_ended;
};

static void *let_in(void *argument)
{
    struct registrant *registrant = argument;
    registrant->result = mc_store_register_buffer(registrant->store, room, sizeof(room));
    registrant->has_ended = 1;
    return NULL;
}

static void *let_out(void *argument)
{
    struct registrant *registrant = argument;
    registrant->result = mc_store_unregister_buffer(registrant->store, room);
    registrant->has_ended = 1;
    return NULL;
}

/* The kernel is still at work on what is let go of: nothing stays registered that nobody knows of. */
static void let_go_while_registered(void **state)
{
    struct rig rig;
    pthread_t threads[3];
    (void)state;
    start(&rig);
    put(&rig, 4096); /* there is a stage */
    struct mc_store *store = calloc(1, sizeof(*store));
    store->paths = rig.paths;
    mc_monitor_init(&store->lock, &store->registered_changed);
    struct registrant comer = {.store = store}, leavers[2] = {{.store = store}, {.store = store}};
    uint32_t mrs = fake_counts().mrs;
    fake_hold_registrations(true);
    assert_int_equal(pthread_create(&threads[0], NULL, let_in, &comer), 0);
    for (unsigned wait = 0; fake_counts().registering == 0; wait++) {
        assert_true(wait < 5000);
        usleep(1000);
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[1 + i], NULL, let_out, &leavers[i]), 0);
    usleep(50000);
    bool is_waiting = !comer.has_ended && !leavers[0].has_ended && !leavers[1].has_ended;
    fake_hold_registrations(false);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    assert_true(is_waiting);
    assert_int_equal(comer.result, 0);
    assert_int_equal(leavers[0].result + leavers[1].result, MC_ERR_INVALID_PARAMS); /* of one of them */
    assert_int_equal(fake_counts().mrs, mrs);
    assert_int_equal(mc_store_registered_bytes(store, room), UINT64_MAX);
    assert_int_equal(mc_store_register_buffer(store, room, sizeof(room)), 0);
    assert_int_equal(fake_counts().mrs, mrs + DEVICES);
    assert_int_equal(mc_store_unregister_buffer(store, room), 0);
    assert_int_equal(fake_counts().mrs, mrs);
    mc_monitor_destroy(&store->lock, &store->registered_changed);
    free(store->registered);
    free(store);
    rig_stop(&rig);
}

/* A device does not let go of it: it must not be freed yet, nothing is moved there in place, and it can be tried
 * again. */
static void kept_by_a_device(void **state)
{
    struct rig rig;
    (void)state;
    start(&rig);
    put(&rig, 4096); /* there is a stage */
    struct mc_store *store = calloc(1, sizeof(*store));
    store->paths = rig.paths;
    mc_monitor_init(&store->lock, &store->registered_changed);
    uint32_t mrs = fake_counts().mrs;
    assert_int_equal(mc_store_register_buffer(store, room, sizeof(room)), 0);
    fake_fail_deregistrations(DEVICES - 1, 1, EBUSY);
    assert_int_equal(mc_store_unregister_buffer(store, room), MC_ERR_TRANSFER_FAIL);
    assert_int_equal(fake_counts().mrs, mrs + 1);
    assert_null(mc_rdma_buffers_hold(rig.paths->buffers, room, 4096));
    assert_int_equal(mc_store_register_buffer(store, room, sizeof(room)), MC_ERR_INVALID_PARAMS);
    assert_int_equal(mc_store_unregister_buffer(store, room), 0);
    assert_int_equal(fake_counts().mrs, mrs);
    assert_int_equal(mc_store_register_buffer(store, room, sizeof(room)), 0);
    assert_int_equal(mc_store_unregister_buffer(store, room), 0);
    assert_int_equal(fake_counts().mrs, mrs);
    mc_monitor_destroy(&store->lock, &store->registered_changed);
    free(store->registered);
    free(store);
    rig_stop(&rig);
}

/* Work that fails in the middle: the other device goes on, or the call fails. */
static void device_lost(void **state)
{
    const uint64_t length = 16u << 20;
    struct iovec part = {room, length};
    struct rig rig;
    (void)state;
    start(&rig);
    assert_int_equal(mc_paths_register(rig.paths, room, sizeof(room)), 0);
    put(&rig, length);
    fake_fail_work(0, 2, IBV_WC_RETRY_EXC_ERR);
    assert_int_equal(read_parts(&rig, length, 0, length, &part, 1), 0);
    assert_memory_equal(room, expected, length);
    assert_int_equal(copied(&rig), 0);
    fake_fail_work(1, 1, IBV_WC_LOC_PROT_ERR);
    int rc = read_parts(&rig, length, 0, length, &part, 1);
    if (rc == 0)
        assert_memory_equal(room, expected, length);
    rig_stop(&rig);
}

/* Checksums are switched off: the slot alone is looked at. */
static void slot_only(void **state)
{
    const uint64_t length = (1u << 20) + 9;
    struct iovec part = {room, length - 10};
    struct rig rig;
    (void)state;
    setenv("MC_CHECKSUM", "slot", 1);
    start(&rig);
    unsetenv("MC_CHECKSUM");
    assert_int_equal(mc_paths_register(rig.paths, room, sizeof(room)), 0);
    put(&rig, length);
    assert_int_equal(read_parts(&rig, length, 5, length - 10, &part, 1), 0);
    assert_memory_equal(room, expected + 5, length - 10);
    assert_int_equal(copied(&rig), 0);
    mc_segment_memory_clear(rig.memory, 0, rig.generation);
    assert_int_equal(read_parts(&rig, length, 5, length - 10, &part, 1), MC_ERR_REPLICA_IS_GONE);
    rig_stop(&rig);
}

/* A batch of objects of which some are registered. */
static void batch(void **state)
{
    enum { COUNT = 300 };
    static struct mc_transfer transfers[COUNT];
    static struct iovec parts[COUNT][2];
    static char keys[COUNT][16];
    const uint64_t size = 20000;
    struct rig rig;
    uint64_t in_place = 0;
    (void)state;
    start(&rig);
    assert_int_equal(mc_paths_register(rig.paths, room, 100 * (size + 40)), 0);
    rig_fill(room, sizeof(room), 9);
    memcpy(expected, room, sizeof(room));
    uint64_t generation = ++rig.generation;
    for (unsigned turn = 0; turn < 2; turn++) {
        uint64_t before = copied(&rig);
        for (size_t i = 0; i < COUNT; i++) {
            snprintf(keys[i], sizeof(keys[i]), "batch %zu", i);
            parts[i][0] = (struct iovec){room + i * (size + 40), size / 2};
            parts[i][1] = (struct iovec){room + i * (size + 40) + size / 2, size / 2};
            transfers[i] = rig_transfer(turn == 0 ? MC_TRANSFER_WRITE : MC_TRANSFER_READ, (uint32_t)i, generation,
                                        i * 32768, size, keys[i], parts[i], 2);
            in_place += turn == 0 && i < 100 ? size : 0;
        }
        rig_run(&rig, transfers, COUNT, 10000);
        for (size_t i = 0; i < COUNT; i++) {
            assert_int_equal(transfers[i].result, 0);
            if (turn == 0)
                assert_true(rig_wait_live(&rig, (uint32_t)i, generation));
        }
        assert_int_equal(copied(&rig) - before, COUNT * size - in_place);
        if (turn == 0)
            for (size_t i = 0; i < COUNT; i++)
                memset(room + i * (size + 40), 0, size);
    }
    assert_memory_equal(room, expected, sizeof(room));
    rig_stop(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_objects),
        cmocka_unit_test(parts_of_all_sizes),
        cmocka_unit_test(ranges),
        cmocka_unit_test(what_is_registered),
        cmocka_unit_test(refused),
        cmocka_unit_test(wrong_bytes),
        cmocka_unit_test(let_go_in_use),
        cmocka_unit_test(device_lost),
        cmocka_unit_test(slot_only),
        cmocka_unit_test(batch),
        cmocka_unit_test(refused_by_one),
        cmocka_unit_test(let_go_while_registered),
        cmocka_unit_test(kept_by_a_device),
        cmocka_unit_test(one_target),
        cmocka_unit_test(not_unregistered),
        cmocka_unit_test(pinned_by_callers),
        cmocka_unit_test(larger_than_a_stage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
