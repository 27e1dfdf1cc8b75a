/* A disk that is busy or slow, and what is told of it: who waits, who is sent away, and what the numbers say. */
#include "disk_folder.h"

#include "env/log.h"

/* What was held back is answered, and holds no buffer any more. */
static void reads_end(struct mc_disk *disk)
{
    rig.holds_reads = false;
    for (unsigned i = 0; i < 5; i++)
        mc_disk_turn(disk, 1);
    assert_int_equal(rig_statistics(disk).buffer_bytes_lent, 0);
    rig_stop(disk);
}

/* A disk with one value that does not answer to reads any more. */
static struct mc_disk *start_silent(uint32_t *slot)
{
    struct mc_disk *disk = rig_start(&config);
    assert_int_equal(rig_store(disk, 1, 1, 50000, slot), 0);
    rig.holds_reads = true;
    return disk;
}

static void test_slow(void **state)
{
    (void)state;
    uint32_t slot;
    struct answer answer = {0};
    struct mc_disk *disk = start_silent(&slot);
    uint64_t until_ns = rig.now_ns + 300000000;
    assert_int_equal(mc_disk_read(disk, (struct mc_disk_place){slot, 1}, until_ns, on_was_read, &answer), 0);
    rig_wait(disk, &answer);
    assert_int_equal(answer.code, MC_ERR_RPC_TIMEOUT);
    assert_true(rig.now_ns >= until_ns && rig.now_ns < until_ns + 10000000);
    rig.now_ns += 800000000;
    mc_disk_turn(disk, 1);
    assert_int_equal(rig_statistics(disk).health, MC_DISK_SLOW);
    assert_int_equal(rig_read_object(disk, slot, 1, 1, 50000), MC_ERR_BUSY);
    assert_int_equal(rig_store(disk, 2, 2, 50000, NULL), MC_ERR_BUSY);
    assert_int_equal(rig_clear(disk, slot, 99, true), 0);
    assert_true(rig_statistics(disk).buffer_bytes_lent > 0); /* the late read still has it */
    rig.holds_reads = false;
    for (unsigned i = 0; i < 5; i++)
        mc_disk_turn(disk, 1);
    assert_int_equal(rig_statistics(disk).health, MC_DISK_WELL);
    assert_int_equal(rig_statistics(disk).buffer_bytes_lent, 0);
    assert_int_equal(rig_read_object(disk, slot, 1, 1, 50000), 0);
    rig_stop(disk);
}

/* More reads than there are buffers, and what is removed meanwhile, and what is too late. */
static void test_reads_wait_for_buffers(void **state)
{
    (void)state;
    config.buffer_bytes = 2 * RIG_REGION;
    struct mc_disk *disk = rig_start(&config);
    struct answer answers[5];
    memset(answers, 0, sizeof(answers));
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(rig_store(disk, i + 1, i, 700000, &answers[i].slot), 0);
    for (uint32_t i = 0; i < 5; i++) {
        struct mc_disk_place place = {answers[i].slot, i + 1};
        uint64_t until_ns = rig.now_ns + (i == 3 ? 10000000 : 900000000);
        assert_int_equal(mc_disk_read(disk, place, until_ns, on_was_read, &answers[i]), 0);
    }
    rig_wait(disk, &answers[1]);
    assert_true(answers[0].is_there && answers[0].code == 0 && answers[1].code == 0);
    assert_int_equal(rig_clear(disk, answers[2].slot, 3, true), 0);
    rig.now_ns += 20000000;
    rig_wait(disk, &answers[3]);
    assert_int_equal(answers[3].code, MC_ERR_RPC_TIMEOUT);
    assert_int_equal(answers[2].code, MC_ERR_REPLICA_IS_GONE); /* that needs no buffer */
    assert_false(answers[4].is_there);
    mc_disk_give_back(disk, answers[0].buffer);
    rig_wait(disk, &answers[4]);
    assert_int_equal(answers[4].code, 0);
    mc_disk_give_back(disk, answers[1].buffer);
    mc_disk_give_back(disk, answers[4].buffer);
    assert_int_equal(rig_statistics(disk).buffer_bytes_lent, 0);
    assert_int_equal(rig_statistics(disk).waiting, 0);
    rig_stop(disk);
}

static void test_stores_leave_buffers_to_reads(void **state)
{
    (void)state;
    char key[MC_KEY_LENGTH_MAX + 1];
    uint8_t *lent[64];
    uint32_t count = 0, slot;
    config.buffer_bytes = 2 * RIG_REGION;
    struct mc_disk *disk = rig_start(&config);
    assert_int_equal(rig_store(disk, 1, 1, 50000, &slot), 0);
    while (count < 64 && (lent[count] = mc_disk_lend(disk, 50000, rig_key(1, key))) != NULL)
        count++;
    assert_true(count > 10 && count < 2 * RIG_REGION / 50000);
    assert_int_equal(rig_read_object(disk, slot, 1, 1, 50000), 0);
    while (count > 0)
        mc_disk_give_back(disk, lent[--count]);
    rig_stop(disk);
}

/* Nobody waits longer for a disk that does not answer than it takes to see that. */
static void test_slow_ends_reads(void **state)
{
    (void)state;
    uint32_t slot;
    struct answer answer = {0};
    struct mc_disk *disk = start_silent(&slot);
    assert_int_equal(
        mc_disk_read(disk, (struct mc_disk_place){slot, 1}, rig.now_ns + 60000000000u, on_was_read, &answer), 0);
    mc_disk_turn(disk, 1);
    rig.now_ns += 1100000000;
    mc_disk_turn(disk, 1);
    assert_true(answer.is_there);
    assert_int_equal(answer.code, MC_ERR_BUSY);
    reads_end(disk);
}

/* Of one that says nothing of regions and buffers; what is there keeps its size. */
static void test_size_of_regions(void **state)
{
    (void)state;
    config.region_bytes = config.buffer_bytes = 0;
    config.capacity = 16ull << 30;
    struct mc_disk *disk = rig_start(&config);
    assert_int_equal(rig_statistics(disk).regions_max, 64);
    assert_true(mc_disk_object_max(disk, 10) > 255u << 20);
    rig_stop(disk);
    config.capacity = 2ull << 30;
    disk = rig_start(&config);
    assert_int_equal(rig_statistics(disk).regions_max, 8);
    rig_stop(disk);
    rig_remove(path);
    path = rig_directory();
    config.path = path;
    disk = rig_start(&config);
    assert_int_equal(rig_statistics(disk).regions_max, 32);
    rig_stop(disk);
}

static uint64_t count_of(const struct mc_store_disk_latency *latency)
{
    uint64_t count = 0;
    for (unsigned i = 0; i <= MC_STORE_DISK_BOUND_COUNT; i++)
        count += latency->counts[i];
    return count;
}

/* What is told is what was done: each store and read once, with how long it took. */
static void test_what_is_told(void **state)
{
    (void)state;
    struct mc_disk *disk = rig_start(&config);
    uint32_t slot;
    struct answer answer = {0};
    uint64_t extent = mc_disk_extent_bytes(50000, 7);
    rig_store_many(disk, 1, 4, 50000);
    assert_int_equal(rig_store(disk, 5, 5, 50000, &slot), 0);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(rig_read_object(disk, slot, 5, 5, 50000), 0);
    struct mc_disk_statistics told = rig_statistics(disk);
    assert_int_equal(told.stored, 5);
    assert_int_equal(count_of(&told.store_latency), 5);
    assert_int_equal(told.served, 3);
    assert_int_equal(count_of(&told.read_latency), 3);
    assert_int_equal(told.bytes_served, 3 * extent);
    assert_true(told.bytes_written > told.bytes_stored && told.bytes_stored == 5 * extent);
    assert_int_equal(told.capacity, config.capacity);
    assert_int_equal(told.free_bytes, config.capacity - RIG_REGION); /* all but the open one */

    /* The age of what lasts goes on though the disk's thread says nothing new; no histogram has it before its end. */
    rig.holds_reads = true;
    uint64_t until_ns = rig.now_ns + 10000000000ull;
    assert_int_equal(mc_disk_read(disk, (struct mc_disk_place){slot, 5}, until_ns, on_was_read, &answer), 0);
    mc_disk_turn(disk, 0);
    mc_disk_turn(disk, 0);
    rig.now_ns += 900000000;
    mc_disk_statistics_read(disk, &told);
    assert_true(told.oldest_ns >= 900000000 && told.under_way == 1 && told.waiting == 1);
    rig.holds_reads = false;
    rig_wait(disk, &answer);
    assert_int_equal(answer.code, 0);
    mc_disk_give_back(disk, answer.buffer);
    told = rig_statistics(disk);
    assert_int_equal(count_of(&told.read_latency), 4);
    assert_int_equal(told.read_latency.counts[13], 1); /* longer than half a second, and not than one */
    assert_true(told.read_latency.sum_us >= 900000);
    assert_true(told.oldest_ns == 0 && told.under_way == 0 && told.waiting == 0);

    /* Whoever waits for a disk that does not answer is sent away: no histogram has that, the reasons have. */
    answer = (struct answer){0};
    rig.holds_reads = true;
    until_ns = rig.now_ns + 10000000000ull;
    assert_int_equal(mc_disk_read(disk, (struct mc_disk_place){slot, 5}, until_ns, on_was_read, &answer), 0);
    mc_disk_turn(disk, 0);
    mc_disk_turn(disk, 0);
    rig.now_ns += 1500000000;
    mc_disk_turn(disk, 0);
    assert_true(answer.is_there);
    assert_int_equal(answer.code, MC_ERR_BUSY);
    assert_int_equal(rig_store(disk, 6, 6, 50000, NULL), MC_ERR_BUSY);
    told = rig_statistics(disk);
    assert_int_equal(told.not_stored[MC_STORE_DISK_SLOW], 1);
    assert_int_equal(count_of(&told.read_latency), 4);
    reads_end(disk);
}

static void test_why_it_is_not_stored(void **state)
{
    (void)state;
    struct mc_disk *disk = rig_start(&config);
    uint8_t *buffers[64];
    unsigned lent = 0;
    while ((buffers[lent] = mc_disk_lend(disk, 900000, 10)) != NULL)
        assert_true(++lent < 64);
    assert_int_equal(rig_statistics(disk).not_stored[MC_STORE_DISK_BUFFERS], 1);
    while (lent > 0)
        mc_disk_give_back(disk, buffers[--lent]);
    rig_store_many(disk, 1, 1, 50000);
    rig.fail_write_file = rig_inode(disk->volume_fds[0]);
    rig.error = EIO;
    for (uint64_t i = 2; i < 5; i++)
        assert_int_equal(rig_store(disk, i, i, 50000, NULL), MC_ERR_FILE_WRITE_FAIL);
    assert_int_equal(rig_store(disk, 5, 5, 50000, NULL), MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
    struct mc_disk_statistics told = rig_statistics(disk);
    assert_int_equal(told.health, MC_DISK_READ_ONLY);
    assert_int_equal(told.not_stored[MC_STORE_DISK_FAILED],
                     1); /* the others found no region whose header could be written */
    assert_int_equal(told.not_stored[MC_STORE_DISK_READ_ONLY], 3);
    assert_int_equal(told.stored, 1);
    rig_stop(disk);
}

/* Whoever looks does not hold up the disk: what it has to tell meanwhile is told afterwards. */
static void test_nobody_waits_for_who_looks(void **state)
{
    (void)state;
    struct mc_disk *disk = rig_start(&config);
    rig_store_many(disk, 1, 1, 5000);
    assert_int_equal(rig_statistics(disk).stored, 1);
    pthread_mutex_lock(&disk->shown_lock);
    rig_store_many(disk, 2, 2, 5000);
    mc_disk_turn(disk, 0);
    assert_int_equal(disk->shown.stored, 1);
    pthread_mutex_unlock(&disk->shown_lock);
    assert_int_equal(rig_statistics(disk).stored, 3);
    /* Nor does it wait for whoever calls. */
    struct mc_disk_statistics told;
    pthread_mutex_lock(&disk->lock);
    pthread_mutex_lock(&disk->buffers.lock);
    mc_disk_statistics_read(disk, &told);
    pthread_mutex_unlock(&disk->buffers.lock);
    pthread_mutex_unlock(&disk->lock);
    assert_int_equal(told.stored, 3);
    rig_stop(disk);
}

struct looker {
    struct mc_disk *disk;
    _Atomic bool is_looking;
};

static void *look_for_long(void *argument)
{
    struct looker *looker = argument;
    pthread_mutex_lock(&looker->disk->shown_lock);
    looker->is_looking = true;
    usleep(200000);
    pthread_mutex_unlock(&looker->disk->shown_lock);
    return NULL;
}

static struct mc_disk *becoming_ready;

static void on_ready(void *context, int code, uint32_t objects)
{
    struct mc_disk_statistics told;
    assert_int_equal(code, 0);
    assert_int_equal(objects, 3);
    mc_disk_statistics_read(becoming_ready, &told);
    *(uint32_t *)context = told.objects;
}

/* By what is told then the master hears whether anything lies there: somebody who looks meanwhile changes nothing of
 * it. */
static void test_what_is_told_when_it_is_ready(void **state)
{
    (void)state;
    char error[MC_DISK_ERROR_MAX];
    uint32_t told = UINT32_MAX;
    pthread_t thread;
    struct mc_disk *disk = rig_start(&config);
    rig_store_many(disk, 1, 3, 5000);
    rig_stop(disk);
    config.ready = on_ready;
    config.context = &told;
    assert_int_equal(mc_disk_open(&config, &disk, error, sizeof(error)), 0);
    becoming_ready = disk;
    struct looker looker = {.disk = disk};
    assert_int_equal(pthread_create(&thread, NULL, look_for_long, &looker), 0);
    while (!looker.is_looking)
        usleep(1000);
    while (disk->recovery != NULL)
        mc_disk_turn(disk, 1);
    assert_int_equal(told, 3);
    pthread_join(thread, NULL);
    rig_stop(disk);
}

/* Behind much that was under way an operation may last longer, also when all of that has ended. */
static void test_slow_by_what_it_began_behind(void **state)
{
    (void)state;
    enum { COUNT = 90 };
    static struct answer answers[COUNT];
    uint32_t slot;
    memset(answers, 0, sizeof(answers));
    config.buffer_bytes = 96ull << 20;
    struct mc_disk *disk = rig_start(&config);
    assert_int_equal(rig_store(disk, 1, 1, 900000, &slot), 0);
    rig.is_held = true;
    for (unsigned i = 0; i < COUNT; i++)
        assert_int_equal(mc_disk_read(disk, (struct mc_disk_place){slot, 1}, UINT64_MAX, on_was_read, &answers[i]), 0);
    mc_disk_turn(disk, 0);
    assert_true(disk->flights > COUNT); /* in pieces, until no more of them are free: the last one is read as one */
    assert_true(disk->flight_bytes > MC_DISK_SLOW_BYTES && disk->flight_bytes < 2 * MC_DISK_SLOW_BYTES);
    struct queued last = disk->io->queue[--disk->io->count]; /* the device keeps this one for itself */
    rig.is_held = false;
    mc_disk_turn(disk, 0);
    assert_int_equal(disk->flights, 1);
    rig.now_ns += 1500000000;
    mc_disk_turn(disk, 0);
    assert_int_equal(rig_statistics(disk).health, MC_DISK_WELL);
    rig.now_ns += 1000000000;
    mc_disk_turn(disk, 0);
    assert_int_equal(rig_statistics(disk).health, MC_DISK_SLOW);
    disk->io->queue[disk->io->count++] = last;
    mc_disk_turn(disk, 0);
    mc_disk_turn(disk, 0);
    assert_int_equal(rig_statistics(disk).health, MC_DISK_WELL);
    for (unsigned i = 0; i < COUNT; i++) {
        assert_true(answers[i].is_there);
        assert_int_equal(answers[i].code, i < COUNT - 1 ? 0 : MC_ERR_BUSY);
        if (answers[i].buffer != NULL)
            mc_disk_give_back(disk, answers[i].buffer);
    }
    rig_stop(disk);
}

/* A file system that is long in giving bytes holds up what needs them, and nothing else. */
static void test_slow_growth(void **state)
{
    (void)state;
    enum { COUNT = 14 };
    struct answer answers[COUNT];
    char key[MC_KEY_LENGTH_MAX + 1];
    uint32_t slot;
    memset(answers, 0, sizeof(answers));
    struct mc_disk *disk = rig_start(&config);
    assert_int_equal(rig_store(disk, 1, 1, 100000, &slot), 0);
    rig.holds_growth = true;
    for (uint32_t i = 0; i < COUNT; i++) {
        uint8_t *buffer = mc_disk_lend(disk, 100000, rig_key(i, key));
        assert_non_null(buffer);
        struct mc_disk_entry entry = rig_extent(buffer, i + 2, i, 100000);
        assert_int_equal(mc_disk_store(disk, rig_slot(disk), &entry, buffer, false, on_stored, &answers[i]), 0);
    }
    for (unsigned i = 0; i < 20; i++)
        mc_disk_turn(disk, 0);
    assert_int_not_equal(disk->append.growing, MC_DISK_NO_REGION);
    assert_int_equal(disk->regions_there, 1);
    unsigned stored = 0;
    for (uint32_t i = 0; i < COUNT; i++)
        stored += answers[i].is_there && answers[i].code == 0 ? 1 : 0;
    assert_true(stored > 4 && stored < COUNT);
    rig.now_ns += 3 * MC_DISK_SLOW_MS * 1000000ull;
    mc_disk_turn(disk, 0);
    assert_int_equal(rig_statistics(disk).health, MC_DISK_WELL);
    assert_true(mc_disk_slow_at_ns(disk) == UINT64_MAX); /* the thread does not wake for it */
    assert_int_equal(rig_read_object(disk, slot, 1, 1, 100000), 0);
    rig.holds_growth = false;
    for (uint32_t i = 0; i < COUNT; i++) {
        rig_wait(disk, &answers[i]);
        assert_int_equal(answers[i].code, 0);
    }
    assert_true(disk->regions_there >= 2 && !disk->append.is_full);
    rig_stop(disk);
}

/* One that does not give them at all counts as full, until it does. */
static void test_growth_without_end(void **state)
{
    (void)state;
    enum { COUNT = 14 };
    static const enum mc_disk_policy policies[] = {MC_DISK_FIFO, MC_DISK_KEEP};
    for (unsigned which = 0; which < 2; which++) {
        struct answer answers[COUNT];
        char key[MC_KEY_LENGTH_MAX + 1];
        memset(answers, 0, sizeof(answers));
        config.policy = policies[which];
        struct mc_disk *disk = rig_start(&config);
        assert_int_equal(rig_store(disk, 1, 1, 100000, NULL), 0);
        rig.holds_growth = true;
        for (uint32_t i = 0; i < COUNT; i++) {
            uint8_t *buffer = mc_disk_lend(disk, 100000, rig_key(i, key));
            assert_non_null(buffer);
            struct mc_disk_entry entry = rig_extent(buffer, i + 2, i, 100000);
            assert_int_equal(mc_disk_store(disk, rig_slot(disk), &entry, buffer, false, on_stored, &answers[i]), 0);
        }
        for (unsigned i = 0; i < 20; i++)
            mc_disk_turn(disk, 0);
        assert_false(answers[COUNT - 1].is_there);
        rig.now_ns += MC_DISK_GROWTH_NS;
        for (unsigned i = 0; i < 50; i++)
            mc_disk_turn(disk, 0);
        for (uint32_t i = 0; i < COUNT; i++)
            assert_true(answers[i].is_there);
        assert_int_equal(answers[COUNT - 1].code, which == 0 ? 0 : MC_ERR_NO_AVAILABLE_HANDLE);
        assert_int_equal(disk->regions_there, 1);
        assert_int_equal(rig_statistics(disk).health, MC_DISK_WELL);
        rig.holds_growth = false;
        for (unsigned i = 0; i < 5; i++)
            mc_disk_turn(disk, 0);
        assert_true(disk->regions_there >= 2 && !disk->append.is_full);
        assert_int_equal(rig_store(disk, 90, 90, 100000, NULL), 0);
        rig_stop(disk);
        rig_remove(path);
        assert_int_equal(mkdir(path, 0700), 0);
    }
}

/* Small stores would take piece by piece what a large read waits for. */
static void test_stores_wait_behind_reads(void **state)
{
    (void)state;
    char key[MC_KEY_LENGTH_MAX + 1];
    struct answer answers[3];
    memset(answers, 0, sizeof(answers));
    config.buffer_bytes = 2 * RIG_REGION;
    struct mc_disk *disk = rig_start(&config);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(rig_store(disk, i + 1, i, 700000, &answers[i].slot), 0);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(
            mc_disk_read(disk, (struct mc_disk_place){answers[i].slot, i + 1}, UINT64_MAX, on_was_read, &answers[i]),
            0);
    rig_wait(disk, &answers[1]);
    assert_false(answers[2].is_there);
    assert_null(mc_disk_lend(disk, 5000, rig_key(1, key)));
    assert_int_equal(rig_statistics(disk).not_stored[MC_STORE_DISK_BUFFERS], 1);
    mc_disk_give_back(disk, answers[0].buffer);
    rig_wait(disk, &answers[2]);
    assert_int_equal(answers[2].code, 0);
    mc_disk_give_back(disk, answers[1].buffer);
    mc_disk_give_back(disk, answers[2].buffer);
    mc_disk_turn(disk, 0);
    uint8_t *buffer = mc_disk_lend(disk, 5000, rig_key(1, key));
    assert_non_null(buffer);
    mc_disk_give_back(disk, buffer);
    rig_stop(disk);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_make, folder_remove)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_slow),
        TEST(test_reads_wait_for_buffers),
        TEST(test_stores_leave_buffers_to_reads),
        TEST(test_slow_ends_reads),
        TEST(test_size_of_regions),
        TEST(test_what_is_told),
        TEST(test_why_it_is_not_stored),
        TEST(test_nobody_waits_for_who_looks),
        TEST(test_what_is_told_when_it_is_ready),
        TEST(test_slow_by_what_it_began_behind),
        TEST(test_slow_growth),
        TEST(test_growth_without_end),
        TEST(test_stores_wait_behind_reads),
    };
    mc_log_set_level(MC_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
