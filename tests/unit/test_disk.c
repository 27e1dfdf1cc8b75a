/* A disk: what it keeps, what it finds again, how it makes room, and what it does when the kernel fails it. */
#include "disk_folder.h"

#include "env/log.h"

static struct {
    struct answer answer; /* first: rig_list */
    uint32_t lost, listed;
    uint64_t last_lost;
    uint32_t slots[4096]; /* by generation, of what was listed; UINT32_MAX: was not */
} seen;

static void on_lost(void *context, const struct mc_disk_place *places, size_t count)
{
    (void)context;
    seen.lost += (uint32_t)count;
    for (size_t i = 0; i < count; i++)
        seen.last_lost = places[i].generation > seen.last_lost ? places[i].generation : seen.last_lost;
}

static void on_each(void *context, const struct mc_disk_content *content)
{
    (void)context;
    assert_true(content->entry.generation < 4096);
    seen.slots[content->entry.generation] = content->slot;
    seen.listed++;
}

static uint32_t list(struct mc_disk *disk)
{
    memset(&seen.slots, 0xff, sizeof(seen.slots));
    seen.listed = 0;
    assert_int_equal(rig_list(disk, on_each, &seen), 0);
    return seen.listed;
}

static int setup(void **state)
{
    memset(&seen, 0, sizeof(seen));
    folder_make(state);
    config.lost = on_lost;
    return 0;
}

/* ---- keeping ---- */

static void test_empty(void **state)
{
    (void)state;
    struct mc_disk *disk = rig_start(&config);
    struct mc_id id = mc_disk_id(disk);
    assert_int_equal(list(disk), 0);
    assert_int_equal(rig_read_object(disk, 0, 1, 1, 1), MC_ERR_REPLICA_IS_GONE);
    assert_int_equal(rig_clear(disk, 0, 1, true), 0);
    rig_stop(disk);
    disk = rig_start(&config);
    assert_true(mc_id_equal(id, mc_disk_id(disk)));
    assert_int_equal(list(disk), 0);
    rig_stop(disk);
}

static void test_sizes(void **state)
{
    (void)state;
    struct mc_disk *disk = rig_start(&config);
    uint64_t most = mc_disk_object_max(disk, MC_KEY_LENGTH_MAX); /* number 13 has the longest key */
    uint64_t lengths[] = {1, 4095, 4096, 65535, 65536, 65537, 262147, most};
    uint32_t slots[8];
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(rig_store(disk, i + 1, i == 7 ? 13 : i, lengths[i], &slots[i]), 0);
    assert_true(mc_disk_extent_bytes(most, MC_KEY_LENGTH_MAX) == RIG_REGION - MC_DISK_REGION_OVERHEAD);
    for (unsigned life = 0; life < 2; life++) {
        for (uint32_t i = 0; i < 8; i++)
            assert_int_equal(
                rig_read_object(disk, life == 0 ? slots[i] : seen.slots[i + 1], i + 1, i == 7 ? 13 : i, lengths[i]), 0);
        rig_stop(disk);
        disk = rig_start(&config);
        assert_int_equal(list(disk), 8);
    }
    struct mc_disk_entry entry = {.generation = 9, .length = (uint32_t)most + 1, .key_length = MC_KEY_LENGTH_MAX};
    entry.block_shift = mc_block_shift(entry.length);
    assert_int_equal(mc_disk_store(disk, rig_slot(disk), &entry, NULL, false, on_stored, NULL), MC_ERR_INVALID_PARAMS);
    rig_stop(disk);
}

static void test_generation_is_exact(void **state)
{
    (void)state;
    uint32_t slot;
    struct mc_disk *disk = rig_start(&config);
    assert_int_equal(rig_store(disk, 5, 1, 1000, &slot), 0);
    assert_int_equal(rig_read_object(disk, slot, 4, 1, 1000), MC_ERR_REPLICA_IS_GONE);
    assert_int_equal(rig_read_object(disk, slot, 6, 1, 1000), MC_ERR_REPLICA_IS_GONE);
    assert_int_equal(rig_clear(disk, slot, 4, true), 0);
    assert_int_equal(rig_read_object(disk, slot, 5, 1, 1000), 0);
    assert_int_equal(rig_clear(disk, slot, 5, true), 0);
    assert_int_equal(rig_read_object(disk, slot, 5, 1, 1000), MC_ERR_REPLICA_IS_GONE);
    rig_stop(disk);
    disk = rig_start(&config);
    assert_int_equal(list(disk), 0);
    rig_stop(disk);
}

static void test_mark_and_floor(void **state)
{
    (void)state;
    struct mc_disk *disk = rig_start(&config);
    for (uint64_t i = 1; i < 6; i++) {
        struct mc_disk_mark mark = {.epoch = i, .floor = i * 100, .contact_boot_ms = i * 1000};
        struct answer answer = {0};
        assert_int_equal(mc_disk_set_mark(disk, &mark, on_done, &answer), 0);
        rig_wait(disk, &answer);
        assert_int_equal(answer.code, 0);
    }
    assert_int_equal(rig_store(disk, 499, 1, 10, NULL), MC_ERR_STALE);
    assert_int_equal(rig_store(disk, 500, 1, 10, NULL), 0);
    rig_end(disk, true, 0);
    for (unsigned torn = 0; torn < 2; torn++) { /* either superblock is damaged: the other counts */
        char name[256];
        snprintf(name, sizeof(name), "%s/mooncake-c.0/identity", path);
        int fd = open(name, O_RDWR);
        uint8_t page[MC_DISK_PAGE], wrong[MC_DISK_PAGE] = {1};
        assert_int_equal(pread(fd, page, sizeof(page), torn * MC_DISK_PAGE), sizeof(page));
        assert_int_equal(pwrite(fd, wrong, sizeof(wrong), torn * MC_DISK_PAGE), sizeof(wrong));
        disk = rig_start(&config);
        assert_int_equal(mc_disk_marked(disk).epoch, torn == 5 % 2 ? 4 : 5);
        rig_stop(disk);
        assert_int_equal(pwrite(fd, page, sizeof(page), torn * MC_DISK_PAGE), sizeof(page));
        close(fd);
    }
}

/* ---- the directory ---- */

static void test_paths(void **state)
{
    (void)state;
    char name[256], error[MC_DISK_ERROR_MAX];
    struct mc_disk *disk;
    const char *wrong[] = {"relative", "/dev/shm/../shm", "/not/there", "/dev/null", name};
    snprintf(name, sizeof(name), "%s/link", path);
    assert_int_equal(symlink(path, name), 0);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        config.path = wrong[i];
        error[0] = 0;
        assert_int_equal(mc_disk_open(&config, &disk, error, sizeof(error)), MC_ERR_INVALID_PARAMS);
        assert_non_null(strstr(error, wrong[i]));
        assert_int_equal(strstr(error, "mkdir -p") != NULL, i == 2); /* only what is not there can be made */
    }
    config.path = path;
    config.capacity = 3 * RIG_REGION;
    assert_int_equal(mc_disk_open(&config, &disk, error, sizeof(error)), MC_ERR_INVALID_PARAMS);
}

static void test_two_on_one_path(void **state)
{
    (void)state;
    struct mc_disk *first = rig_start(&config), *second = rig_start(&config);
    struct mc_id id = mc_disk_id(first), other = mc_disk_id(second);
    assert_false(mc_id_equal(id, other));
    assert_int_equal(rig_store(first, 1, 1, 5000, NULL), 0);
    assert_int_equal(rig_store(second, 2, 2, 5000, NULL), 0);
    rig_stop(second);
    second = rig_start(&config); /* its own again, not the first one's */
    assert_true(mc_id_equal(other, mc_disk_id(second)));
    assert_int_equal(list(second), 1);
    assert_int_equal(seen.slots[1], UINT32_MAX);
    rig_stop(second);
    rig_stop(first);
}

static void bytes_change(const char *file, uint64_t offset, const void *bytes, size_t length)
{
    char name[256];
    snprintf(name, sizeof(name), "%s/mooncake-c.0/%s", path, file);
    int fd = open(name, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, length, (off_t)offset), length);
    close(fd);
}

static int set_mark(struct mc_disk *disk, uint64_t epoch)
{
    struct mc_disk_mark mark = {.epoch = epoch};
    struct answer answer = {0};
    assert_int_equal(mc_disk_set_mark(disk, &mark, on_done, &answer), 0);
    rig_wait(disk, &answer);
    return answer.code;
}

/* However often writing it fails, the superblock that is valid is not written to. */
static void test_mark_that_fails(void **state)
{
    (void)state;
    struct mc_disk *disk = rig_start(&config);
    assert_int_equal(set_mark(disk, 1), 0);
    uint64_t other = (disk->directory.super.sequence + 1) % MC_DISK_SUPER_COUNT;
    rig.fail_write_file = rig_inode(disk->directory.identity_fd);
    rig.fail_from = other * MC_DISK_PAGE;
    rig.fail_to = rig.fail_from + MC_DISK_PAGE;
    for (uint64_t i = 2; i < 5; i++)
        assert_int_equal(set_mark(disk, i), MC_ERR_FILE_WRITE_FAIL);
    rig.fail_write_file = 0;
    assert_int_equal(set_mark(disk, 5), 0);
    struct answer answers[100] = {0}; /* of several that wait the last is written, and all are told */
    uint64_t before = disk->directory.super.sequence;
    for (struct mc_disk_mark mark = {.epoch = 0}; mark.epoch < 100; mark.epoch++)
        assert_int_equal(mc_disk_set_mark(disk, &mark, on_done, &answers[mark.epoch]), 0);
    for (unsigned i = 0; i < 100; rig_wait(disk, &answers[i]), assert_int_equal(answers[i].code, 0), i++)
        continue;
    assert_true(mc_disk_marked(disk).epoch == 99 && disk->directory.super.sequence - before <= 2);
    rig_stop(disk);
}

/* What another process has open is no room for this one. */
static void test_bytes_there(void **state)
{
    (void)state;
    assert_int_equal(mc_disk_bytes_there(path), 0);
    struct mc_disk *disk = rig_start(&config), *other = rig_start(&config);
    assert_int_equal(rig_store(disk, 1, 1, 5000, NULL), 0);
    assert_int_equal(mc_disk_bytes_there(path), 0);
    rig_stop(disk);
    assert_true(mc_disk_bytes_there(path) >= 5000);
    disk = rig_start(&config); /* and looking leaves no lock behind */
    assert_non_null(strstr(mc_disk_directory(disk), "mooncake-c.0"));
    rig_stop(disk);
    rig_stop(other);
}

static void test_of_others(void **state)
{
    (void)state;
    uint32_t version = MC_DISK_VERSION + 1;
    config.cluster = (struct mc_id){1, 1};
    struct mc_disk *disk = rig_start(&config);
    assert_int_equal(rig_store(disk, 1, 1, 5000, NULL), 0);
    rig_stop(disk);
    config.cluster = (struct mc_id){2, 2}; /* of another cluster: it is left alone */
    disk = rig_start(&config);
    assert_non_null(strstr(mc_disk_directory(disk), "mooncake-c.1"));
    rig_stop(disk);
    config.cluster = (struct mc_id){1, 1};
    disk = rig_start(&config);
    assert_int_equal(list(disk), 1);
    rig_stop(disk);
    bytes_change("identity", 8, &version, 4);
    bytes_change("identity", MC_DISK_PAGE + 8, &version, 4);
    disk = rig_start(&config); /* of another version, too */
    assert_non_null(strstr(mc_disk_directory(disk), "mooncake-c.2"));
    rig_stop(disk);
}

static void test_identity_that_is_gone(void **state)
{
    (void)state;
    uint8_t wrong[2 * MC_DISK_PAGE] = {1};
    struct mc_disk *disk = rig_start(&config);
    struct mc_id id = mc_disk_id(disk);
    assert_int_equal(rig_store(disk, 1, 1, 5000, NULL), 0);
    rig_stop(disk);
    bytes_change("identity", 0, wrong, sizeof(wrong));
    disk = rig_start(&config);
    assert_false(mc_id_equal(id, mc_disk_id(disk)));
    assert_int_equal(list(disk), 0);
    rig_stop(disk);
}

/* ---- making room ---- */

static void test_fifo(void **state)
{
    (void)state;
    struct mc_disk *disk = rig_start(&config);
    rig_store_many(disk, 1, 200, 100000); /* 20 MB through 6 MiB */
    struct mc_disk_statistics statistics = rig_statistics(disk);
    assert_true(seen.lost > 100 && statistics.lost == seen.lost && statistics.bytes_rewritten == 0);
    uint32_t there = list(disk);
    assert_int_equal(there, 200 - seen.lost);
    for (uint64_t i = 1; i <= 200; i++) /* the oldest went */
        assert_int_equal(seen.slots[i] != UINT32_MAX, i > seen.last_lost);
    double amplification = (double)statistics.bytes_written / (double)statistics.bytes_stored;
    print_message("%u kept of 200, %.3f bytes written for each byte stored\n", there, amplification);
    assert_true(amplification < 1.08);
    rig_stop(disk);
    disk = rig_start(&config);
    assert_int_equal(list(disk), there);
    for (uint64_t i = 1; i <= 200; i++) {
        if (seen.slots[i] != UINT32_MAX)
            assert_int_equal(rig_read_object(disk, seen.slots[i], i, i, 100000), 0);
    }
    rig_stop(disk);
}

static void test_lru(void **state)
{
    (void)state;
    config.policy = MC_DISK_LRU;
    struct mc_disk *disk = rig_start(&config);
    rig_store_many(disk, 1, 5, 100000);
    for (uint64_t round = 0; round < 30; round++) {
        list(disk);
        for (uint64_t i = 2; i <= 3; i++) { /* two of them are read again and again */
            assert_int_not_equal(seen.slots[i], UINT32_MAX);
            assert_int_equal(rig_read_object(disk, seen.slots[i], i, i, 100000), 0);
        }
        rig_store_many(disk, 100 + round * 10, 10, 100000);
    }
    list(disk);
    assert_true(seen.slots[1] == UINT32_MAX && seen.slots[2] != UINT32_MAX && seen.slots[3] != UINT32_MAX);
    assert_true(rig_statistics(disk).bytes_rewritten >= 200000);
    uint32_t slot = seen.slots[2];
    assert_int_equal(rig_clear(disk, slot, 2, true), 0); /* in all its copies */
    rig_end(disk, true, 128);
    disk = rig_start(&config);
    list(disk);
    assert_int_equal(seen.slots[2], UINT32_MAX);
    rig_stop(disk);
}

static void test_all_is_hot(void **state)
{
    (void)state;
    config.policy = MC_DISK_LRU;
    struct mc_disk *disk = rig_start(&config);
    for (uint64_t i = 1; i <= 150; i++) {
        uint32_t slot;
        assert_int_equal(rig_store(disk, i, i, 100000, &slot), 0);
        assert_int_equal(rig_read_object(disk, slot, i, i, 100000), 0);
    }
    struct mc_disk_statistics statistics = rig_statistics(disk);
    assert_true(statistics.bytes_written < 3 * statistics.bytes_stored); /* half of each region at most */
    assert_true(statistics.bytes_rewritten > 0);
    assert_true(disk->day_bytes >= 150 * 100000ull + statistics.bytes_rewritten); /* it counts for the day, too */
    rig_stop(disk);
}

static void test_regions_that_empty(void **state)
{
    (void)state;
    struct mc_disk *disk = rig_start(&config);
    for (uint64_t i = 1; i < 100; i++) { /* all is removed in time: nobody has to go */
        uint32_t slot;
        assert_int_equal(rig_store(disk, i, i, 200000, &slot), 0);
        assert_int_equal(rig_clear(disk, slot, i, true), 0);
    }
    assert_int_equal(seen.lost, 0);
    rig_end(disk, false, 0);
    disk = rig_start(&config);
    assert_int_equal(list(disk), 0);
    rig_stop(disk);
}

/* Nothing goes: what is new is refused, until a region has nothing left in it. */
static void test_keep(void **state)
{
    (void)state;
    config.policy = MC_DISK_KEEP;
    struct mc_disk *disk = rig_start(&config);
    uint64_t stored = 0;
    while (stored < 200 && rig_store(disk, stored + 1, stored + 1, 100000, NULL) == 0)
        stored++;
    assert_true(stored > 40 && stored < 64); /* 6 MiB */
    assert_int_equal(rig_store(disk, 300, 300, 100000, NULL), MC_ERR_NO_AVAILABLE_HANDLE);
    assert_int_equal(list(disk), stored);
    assert_int_equal(seen.lost, 0);
    for (uint64_t i = 1; i <= 20; i++)
        assert_int_equal(rig_clear(disk, seen.slots[i], i, true), 0);
    assert_int_equal(rig_store(disk, 301, 301, 100000, NULL), 0);
    assert_int_equal(list(disk), stored - 20 + 1);
    assert_int_equal(seen.lost, 0);
    rig_stop(disk);
}

/* A limit of objects is reached long before the room is used: the oldest go, and storing does not end. */
static void few_numbers(enum mc_disk_policy policy, uint32_t most)
{
    config.policy = policy;
    config.objects_max = most;
    struct mc_disk *disk = rig_start(&config);
    for (uint64_t i = 1; i <= 400; i++) {
        uint32_t slot;
        assert_int_equal(rig_store(disk, i, i, 5000, &slot), 0);
        assert_int_equal(rig_read_object(disk, slot, i, i, 5000), 0); /* all are hot */
    }
    uint32_t there = list(disk);
    print_message("%u of %u\n", there, most);
    assert_true(there <= most && there > most / 2 && there + seen.lost == 400);
    assert_int_not_equal(seen.slots[400], UINT32_MAX);
    assert_int_equal(seen.slots[1], UINT32_MAX);
    rig_stop(disk);
    disk = rig_start(&config);
    assert_int_equal(list(disk), there);
    rig_stop(disk);
}

static void test_few_numbers(void **state)
{
    (void)state;
    few_numbers(MC_DISK_FIFO, 64);
}

static void test_few_numbers_lru(void **state)
{
    (void)state;
    few_numbers(MC_DISK_LRU, 64);
}

static void test_slots_and_budget(void **state)
{
    (void)state;
    config.objects_max = 3;
    config.policy = MC_DISK_KEEP;
    config.budget_bytes = 5 * 8192;
    struct mc_disk *disk = rig_start(&config);
    uint32_t slot;
    rig_store_many(disk, 1, 2, 4096);
    assert_int_equal(rig_store(disk, 3, 3, 4096, &slot), 0);
    assert_int_equal(rig_store(disk, 4, 4, 4096, NULL), MC_ERR_NO_AVAILABLE_HANDLE);
    assert_int_equal(rig_clear(disk, slot, 3, false), 0);
    assert_int_equal(rig_store(disk, 5, 5, 4096, NULL), 0);
    assert_int_equal(rig_store(disk, 6, 6, 4096, NULL), MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS); /* spent */
    assert_int_equal(rig_statistics(disk).not_stored[MC_STORE_DISK_BUDGET], 1);
    assert_int_equal(rig_statistics(disk).not_stored[MC_STORE_DISK_FULL], 1);
    rig.now_ns += MC_DISK_DAY_NS;
    assert_int_equal(rig_store(disk, 7, 7, 4096, NULL), MC_ERR_NO_AVAILABLE_HANDLE);
    rig_stop(disk);
}

/* Beyond the day's budget only what was read before is stored; it counts, too. */
static void test_budget_is_for_what_was_not_read(void **state)
{
    (void)state;
    config.budget_bytes = 3 * 8192;
    struct mc_disk *disk = rig_start(&config);
    assert_int_equal(rig_store_as(disk, 1, 1, 4096, NULL, true), 0);
    rig_store_many(disk, 2, 2, 4096);
    assert_int_equal(rig_store(disk, 4, 4, 4096, NULL), MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
    for (uint64_t i = 4; i < 10; i++)
        assert_int_equal(rig_store_as(disk, i, i, 4096, NULL, true), 0);
    assert_int_equal(rig_store(disk, 10, 10, 4096, NULL), MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
    assert_int_equal(rig_statistics(disk).not_stored[MC_STORE_DISK_BUDGET], 2);
    rig.now_ns += MC_DISK_DAY_NS;
    rig_store_many(disk, 10, 3, 4096); /* another day */
    assert_int_equal(rig_store(disk, 13, 13, 4096, NULL), MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
    rig_stop(disk);
    disk = rig_start(&config); /* so is another process */
    rig_store_many(disk, 13, 3, 4096);
    assert_int_equal(rig_store(disk, 16, 16, 4096, NULL), MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
    rig_stop(disk);
}

static void test_journal_is_made_shorter(void **state)
{
    (void)state;
    struct mc_disk *disk = rig_start(&config);
    uint64_t most = 0, generation = 1;
    uint32_t kept;
    assert_int_equal(rig_store(disk, generation++, 1, 5000, &kept), 0);
    for (; generation < 3000; generation++) {
        uint32_t slot;
        assert_int_equal(rig_store(disk, generation, generation, 20000, &slot), 0);
        assert_int_equal(rig_clear(disk, slot, generation, true), 0);
        uint64_t bytes = rig_statistics(disk).journal_bytes;
        most = bytes > most ? bytes : most;
    }
    print_message("the journal had at most %llu bytes\n", (unsigned long long)most);
    assert_true(most <= 256 * MC_DISK_PAGE);
    rig_end(disk, true, 0);
    disk = rig_start(&config);
    assert_true(list(disk) <= 1);
    rig_stop(disk);
}

/* ---- damage ---- */

/* Ten objects, not sealed: header, one group after the other. */
static void unsealed_make(void)
{
    struct mc_disk *disk = rig_start(&config);
    rig_store_many(disk, 1, 10, 9000);
    rig_stop(disk);
}

static void test_every_page_of_a_region(void **state)
{
    (void)state;
    unsealed_make();
    uint8_t page[MC_DISK_PAGE], wrong[MC_DISK_PAGE];
    char name[256];
    snprintf(name, sizeof(name), "%s/mooncake-c.0/volume.0", path);
    int fd = open(name, O_RDWR);
    memset(wrong, 0x5a, sizeof(wrong));
    for (uint64_t at = 0; at < 42; at++) { /* a table of one page and an extent of three, ten times */
        assert_int_equal(pread(fd, page, sizeof(page), (off_t)(at * MC_DISK_PAGE)), sizeof(page));
        assert_int_equal(pwrite(fd, wrong, sizeof(wrong), (off_t)(at * MC_DISK_PAGE)), sizeof(wrong));
        struct mc_disk *disk = rig_start(&config);
        uint32_t there = list(disk), good = 0;
        for (uint64_t i = 1; i <= 10; i++)
            good += seen.slots[i] != UINT32_MAX && rig_read_object(disk, seen.slots[i], i, i, 9000) == 0 ? 1 : 0;
        assert_true(at == 0 ? there == 0 : good >= 9); /* costs what it covers */
        rig_end(disk, true, 0);                        /* no trace of it */
        assert_int_equal(pwrite(fd, page, sizeof(page), (off_t)(at * MC_DISK_PAGE)), sizeof(page));
        for (unsigned i = 0; i < 2; i++) { /* what was rotten is in the journal now */
            char clears[256];
            snprintf(clears, sizeof(clears), "%s/mooncake-c.0/clears.%u", path, i);
            assert_int_equal(truncate(clears, MC_DISK_PAGE), 0);
        }
    }
    close(fd);
}

static void test_cut_short(void **state)
{
    (void)state;
    unsealed_make();
    char name[256];
    snprintf(name, sizeof(name), "%s/mooncake-c.0/volume.0", path);
    struct mc_disk *disk = rig_start(&config);
    assert_int_equal(list(disk), 10);
    rig_stop(disk);
    for (int bytes = RIG_REGION; bytes >= 0; bytes -= 65536 + 4096 * 3) { /* a file that ends within its region */
        assert_int_equal(truncate(name, bytes), 0);
        disk = rig_start(&config);
        assert_true(list(disk) <= 10);
        rig_stop(disk);
    }
}

static void test_torn_footer(void **state)
{
    (void)state;
    struct mc_disk *disk = rig_start(&config);
    rig_store_many(disk, 1, 25, 100000); /* more than two regions */
    rig_stop(disk);
    uint8_t wrong[64];
    memset(wrong, 0xa5, sizeof(wrong));
    bytes_change("volume.0", RIG_REGION - MC_DISK_PAGE, wrong, sizeof(wrong));         /* the head of one */
    bytes_change("volume.0", 2 * RIG_REGION - 2 * MC_DISK_PAGE, wrong, sizeof(wrong)); /* the table of another */
    disk = rig_start(&config);
    assert_int_equal(list(disk), 25);
    for (uint64_t i = 1; i <= 25; i++)
        assert_int_equal(rig_read_object(disk, seen.slots[i], i, i, 100000), 0);
    rig_stop(disk);
}

static void test_random_bits(void **state)
{
    (void)state;
    uint64_t seed = 5;
    struct mc_disk *disk = rig_start(&config);
    rig_store_many(disk, 1, 60, 60000);
    list(disk);
    for (uint64_t i = 1; i <= 60; i += 5)
        assert_int_equal(rig_clear(disk, seen.slots[i], i, true), 0);
    rig_stop(disk);
    static const char *const files[] = {"volume.0", "clears.0", "clears.1", "identity"};
    for (unsigned round = 0; round < 60; round++) {
        for (unsigned i = 0; i < 20; i++) {
            uint8_t byte = (uint8_t)random_next(&seed);
            unsigned file = (unsigned)random_below(&seed, 3); /* the identity stays */
            bytes_change(files[file], random_below(&seed, file == 0 ? 4 * RIG_REGION : 2 * MC_DISK_PAGE), &byte, 1);
        }
        disk = rig_start(&config);
        list(disk);
        for (uint64_t i = 1; i <= 60; i++) {
            if (seen.slots[i] != UINT32_MAX)
                (void)rig_read_object(disk, seen.slots[i], i, i, 60000); /* right or an error */
        }
        rig_stop(disk);
    }
}

/* ---- a kernel that fails ---- */

static void test_write_errors(void **state)
{
    (void)state;
    struct mc_disk *disk = rig_start(&config);
    uint32_t slot;
    assert_int_equal(rig_store(disk, 1, 1, 50000, &slot), 0);
    rig.fail_write_file = rig_inode(disk->volume_fds[0]);
    for (uint64_t i = 2; i < 5; i++)
        assert_int_equal(rig_store(disk, i, i, 50000, NULL), MC_ERR_FILE_WRITE_FAIL);
    assert_int_equal(rig_store(disk, 5, 5, 50000, NULL), MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
    struct mc_disk_statistics statistics = rig_statistics(disk);
    assert_int_equal(statistics.health, MC_DISK_READ_ONLY);
    assert_int_equal(statistics.regions_retired, 3);
    assert_int_equal(rig_read_object(disk, slot, 1, 1, 50000), 0);
    assert_int_equal(rig_clear(disk, slot, 1, true), 0); /* the journal is elsewhere */
    rig.fail_write_file = 0;
    rig_stop(disk);
    disk = rig_start(&config); /* and begins anew */
    assert_int_equal(list(disk), 0);
    assert_int_equal(rig_store(disk, 6, 6, 50000, NULL), 0);
    rig_stop(disk);
}

static void test_one_region_fails(void **state)
{
    (void)state;
    struct mc_disk *disk = rig_start(&config);
    rig.fail_write_file = UINT64_MAX;
    rig.fail_from = 0;
    rig.fail_to = RIG_REGION;
    assert_int_equal(rig_store(disk, 1, 1, 50000, NULL), 0); /* its header fails, so it goes to the next */
    rig.fail_write_file = 0;
    rig_store_many(disk, 2, 50, 50000);
    struct mc_disk_statistics statistics = rig_statistics(disk);
    assert_int_equal(statistics.health, MC_DISK_WELL);
    assert_int_equal(statistics.regions_retired, 1);
    assert_int_equal(list(disk), 51);
    rig_stop(disk);
}

static void test_journal_fails(void **state)
{
    (void)state;
    struct mc_disk *disk = rig_start(&config);
    uint32_t slot;
    assert_int_equal(rig_store(disk, 1, 1, 50000, &slot), 0);
    rig.fail_sync_file = rig_inode(disk->directory.clears_fd[disk->journal.current]);
    assert_int_equal(rig_clear(disk, slot, 1, true), MC_ERR_FILE_WRITE_FAIL); /* not answered as done */
    mc_disk_turn(disk, 0);
    assert_int_equal(rig_store(disk, 2, 2, 50000, NULL), MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
    assert_int_equal(rig_clear(disk, slot, 1, true), MC_ERR_FILE_WRITE_FAIL);
    assert_int_equal(rig_clear(disk, slot, 2, true), 0); /* what it has not taken cannot come back */
    /* What was dropped comes back to the next process, so it is no list of what lies there. */
    assert_int_equal(rig_list(disk, on_each, &seen), MC_ERR_FILE_WRITE_FAIL);
    rig.fail_sync_file = 0;
    rig_stop(disk);
}

static void test_read_errors(void **state)
{
    (void)state;
    struct mc_disk *disk = rig_start(&config);
    uint32_t slots[2];
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(rig_store(disk, i + 1, i + 1, 50000, &slots[i]), 0);
    rig.fail_read_file = rig_inode(disk->volume_fds[0]);
    assert_int_equal(rig_read_object(disk, slots[0], 1, 1, 50000), MC_ERR_FILE_READ_FAIL);
    rig.fail_read_file = 0;
    for (unsigned i = 0; i < 20; i++)
        mc_disk_turn(disk, 1);
    assert_true(seen.lost == 1 && seen.last_lost == 1);
    assert_int_equal(rig_read_object(disk, slots[0], 1, 1, 50000), MC_ERR_REPLICA_IS_GONE);
    assert_int_equal(rig_read_object(disk, slots[1], 2, 2, 50000), 0);
    rig_end(disk, true, 0);
    disk = rig_start(&config); /* what was told as lost stays so */
    list(disk);
    assert_int_equal(seen.slots[1], UINT32_MAX);
    rig_stop(disk);
}

/* Large ones are read in pieces, which end in any order; of those that come when no piece is free each is one. */
static void test_pieces(void **state)
{
    (void)state;
    enum { COUNT = 100, SIZES = 6 };
    static struct answer answers[COUNT];
    const uint64_t lengths[SIZES] = {MC_DISK_PIECE_BYTES - 1,
                                     MC_DISK_PIECE_BYTES,
                                     MC_DISK_PIECE_BYTES + 1,
                                     2 * MC_DISK_PIECE_BYTES - 8,
                                     700000,
                                     1000000};
    uint32_t slots[SIZES];
    memset(answers, 0, sizeof(answers));
    config.buffer_bytes = 128ull << 20;
    struct mc_disk *disk = rig_start(&config);
    for (uint32_t i = 0; i < SIZES; i++)
        assert_int_equal(rig_store(disk, i + 1, i, lengths[i], &slots[i]), 0);
    rig.is_random = true;
    for (uint32_t i = 0; i < 20 * SIZES; i++)
        assert_int_equal(rig_read_object(disk, slots[i % SIZES], i % SIZES + 1, i % SIZES, lengths[i % SIZES]), 0);
    rig.is_held = true;
    for (unsigned i = 0; i < COUNT; i++)
        assert_int_equal(mc_disk_read(disk, (struct mc_disk_place){slots[5], 6}, UINT64_MAX, on_was_read, &answers[i]),
                         0);
    mc_disk_turn(disk, 0);
    assert_true(disk->free_piece_count < 4 && disk->flights > MC_DISK_PIECES_ALL - 4);
    rig.is_held = false;
    for (unsigned i = 0; i < COUNT; i++) {
        rig_wait(disk, &answers[i]);
        assert_int_equal(answers[i].code, 0);
        assert_memory_equal(answers[i].buffer, answers[0].buffer, lengths[5]);
        if (i > 0)
            mc_disk_give_back(disk, answers[i].buffer);
    }
    mc_disk_give_back(disk, answers[0].buffer);
    assert_int_equal(disk->free_piece_count, MC_DISK_PIECES_ALL);
    assert_int_equal(rig_statistics(disk).buffer_bytes_lent, 0);
    rig_stop(disk);
}

/* A bit of a byte that was written, wherever that lies. */
static void flip(int fd, uint64_t at)
{
    struct unsynced *page = rig_page(rig_inode(fd), at / MC_DISK_PAGE);
    uint8_t byte;
    if (page != NULL) {
        page->bytes[at % MC_DISK_PAGE] ^= 1;
        return;
    }
    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
}

/* One piece that is wrong, or cannot be read, is enough: it is answered once, when all of them have ended. */
static void test_bad_pieces(void **state)
{
    (void)state;
    const uint64_t length = 3 * MC_DISK_PIECE_BYTES + 70000;
    struct mc_disk *disk = rig_start(&config);
    rig.is_random = true;
    for (uint32_t i = 0; i < 40; i++) {
        uint32_t slot;
        assert_int_equal(rig_store(disk, i + 1, i, length, &slot), 0);
        const struct mc_disk_item *item = mc_disk_index_find(&disk->index, slot, i + 1);
        assert_non_null(item);
        int fd = mc_disk_region_fd(disk, item->region);
        uint64_t at =
            mc_disk_region_at(disk, item->region, (uint64_t)item->page * MC_DISK_PAGE) + i % 4 * MC_DISK_PIECE_BYTES;
        bool is_failing = i % 8 < 4;
        if (is_failing) {
            rig.fail_read_file = rig_inode(fd);
            rig.fail_from = at;
            rig.fail_to = at + MC_DISK_PIECE_BYTES;
        } else {
            at += random_below(&rig.seed, i % 4 == 3 ? 70000 : MC_DISK_PIECE_BYTES);
            flip(fd, at);
        }
        assert_int_equal(rig_read_object(disk, slot, i + 1, i, length),
                         is_failing ? MC_ERR_FILE_READ_FAIL : MC_ERR_CHECKSUM_MISMATCH);
        rig.fail_read_file = rig.fail_from = rig.fail_to = 0;
        assert_int_equal(rig_read_object(disk, slot, i + 1, i, length), MC_ERR_REPLICA_IS_GONE);
        assert_int_equal(disk->free_piece_count, MC_DISK_PIECES_ALL);
        assert_int_equal(rig_statistics(disk).buffer_bytes_lent, 0);
    }
    rig_stop(disk);
}

/* A region that cannot be read when the disk is opened holds what nobody is told of: it does not come back later. */
static void test_unread_region(void **state)
{
    (void)state;
    for (unsigned which = 0; which < 2; which++) { /* its header, or a group in the middle */
        struct mc_disk *disk = rig_start(&config);
        uint32_t slots[4];
        uint64_t first = which * 10 + 1;
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(rig_store(disk, first + i, i, 50000, &slots[i]), 0);
        uint32_t region = disk->index.items[slots[3]].region;
        uint64_t page = disk->index.items[slots[2]].page;
        uint64_t file = rig_inode(disk->volume_fds[0]);
        rig_end(disk, false, 0);
        rig.fail_read_file = file;
        rig.fail_from = region * RIG_REGION + (which == 0 ? 0 : (page - 1) * MC_DISK_PAGE);
        rig.fail_to = rig.fail_from + MC_DISK_PAGE;
        disk = rig_start(&config);
        rig.fail_read_file = rig.fail_from = rig.fail_to = 0;
        assert_int_equal(list(disk), 0);
        assert_int_equal(rig_clear(disk, slots[0], first, true), 0);
        assert_int_equal(rig_store(disk, first + 5, 5, 50000, &slots[0]), 0); /* the disk is as good as before */
        rig_end(disk, false, 0);
        disk = rig_start(&config);
        assert_int_equal(list(disk), 1);
        assert_int_equal(seen.slots[first + 5], slots[0]);
        assert_int_equal(rig_clear(disk, slots[0], first + 5, true), 0);
        rig_stop(disk);
    }
}

/* The same when it can be read at first, and cannot be listed for the master then. */
static void test_unlisted_region(void **state)
{
    (void)state;
    struct mc_disk *disk = rig_start(&config);
    uint32_t slots[4];
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(rig_store(disk, i + 1, i, 50000, &slots[i]), 0);
    rig_end(disk, false, 0);
    disk = rig_start(&config); /* the region is one that was open, and is listed from the disk */
    assert_int_equal(disk->index.count, 4);
    rig.fail_read_file = rig_inode(disk->volume_fds[0]);
    assert_int_equal(list(disk), 0);
    rig.fail_read_file = 0;
    assert_int_equal(seen.lost, 4);
    assert_int_equal(list(disk), 0);
    assert_int_equal(rig_read_object(disk, slots[0], 1, 0, 50000), MC_ERR_REPLICA_IS_GONE);
    assert_int_equal(rig_store(disk, 5, 5, 50000, NULL), 0);
    rig_end(disk, false, 0);
    disk = rig_start(&config);
    assert_int_equal(list(disk), 1);
    rig_stop(disk);
}

/* What was removed from the first region, while that is open, is still named when the journal was copied twice. */
static void test_copied_journal(void **state)
{
    (void)state;
    struct mc_disk *disk = rig_start(&config);
    uint32_t slots[2];
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(rig_store(disk, i + 1, i, 50000, &slots[i]), 0);
    assert_int_equal(rig_clear(disk, slots[0], 1, true), 0);
    for (unsigned i = 0; i < 2; i++) {
        uint64_t number = disk->journal.number;
        disk->journal.compact_at = 0;
        for (unsigned k = 0; disk->journal.number == number; k++) {
            assert_true(k < 1000);
            mc_disk_turn(disk, 1);
        }
    }
    assert_int_equal(rig_clear(disk, slots[1], 2, true), 0); /* over the page that named the first one */
    rig_end(disk, false, 0);
    disk = rig_start(&config);
    assert_int_equal(list(disk), 0);
    rig_stop(disk);
}

static void on_opened(void *context, int code, uint32_t objects)
{
    (void)objects;
    *(int *)context = code;
}

/* What the journal names would be there again, so a disk whose journal cannot be read or synced is not used. */
static void test_unread_journal(void **state)
{
    (void)state;
    struct mc_disk *disk = rig_start(&config);
    uint32_t slot;
    int code = 1;
    assert_int_equal(rig_store(disk, 1, 1, 50000, &slot), 0);
    assert_int_equal(rig_clear(disk, slot, 1, true), 0);
    uint64_t file = rig_inode(disk->directory.clears_fd[disk->journal.current]);
    rig_end(disk, false, 0);
    struct mc_disk_config watched = config;
    watched.context = &code;
    watched.ready = on_opened;
    for (unsigned i = 0; i < 2; i++) {
        char error[MC_DISK_ERROR_MAX];
        *(i == 0 ? &rig.fail_read_file : &rig.fail_sync_file) = file;
        assert_int_equal(mc_disk_open(&watched, &disk, error, sizeof(error)), 0);
        code = 1;
        while (code == 1)
            mc_disk_turn(disk, 1);
        assert_int_equal(code, i == 0 ? MC_ERR_FILE_READ_FAIL : MC_ERR_FILE_WRITE_FAIL);
        assert_int_equal(rig_clear(disk, slot, 1, true), MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
        rig.fail_read_file = rig.fail_sync_file = 0;
        rig_end(disk, false, 0);
    }
    disk = rig_start(&config);
    assert_int_equal(list(disk), 0);
    rig_stop(disk);
}

/* What the journal does not have is not told as lost: it may be there again. */
static void test_lost_without_a_journal(void **state)
{
    (void)state;
    struct mc_disk *disk = rig_start(&config);
    uint32_t slots[2];
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(rig_store(disk, i + 1, i + 1, 50000, &slots[i]), 0);
    rig.fail_sync_file = rig_inode(disk->directory.clears_fd[disk->journal.current]);
    rig.fail_read_file = rig_inode(disk->volume_fds[0]);
    for (uint32_t i = 0; i < 2; i++) { /* with the first one the journal breaks, and is broken with the second */
        assert_int_equal(rig_read_object(disk, slots[i], i + 1, i + 1, 50000), MC_ERR_FILE_READ_FAIL);
        for (unsigned k = 0; k < 20; k++)
            mc_disk_turn(disk, 1);
        assert_true(disk->journal.is_broken);
        assert_int_equal(seen.lost, 0);
        assert_int_equal(rig_read_object(disk, slots[i], i + 1, i + 1, 50000), MC_ERR_REPLICA_IS_GONE);
    }
    rig.fail_read_file = rig.fail_sync_file = 0;
    rig_end(disk, false, 0);
    disk = rig_start(&config);
    (void)list(disk);
    assert_int_equal(seen.slots[2], slots[1]);
    rig_stop(disk);
}

static void test_misdirected(void **state)
{
    (void)state;
    struct mc_disk *disk = rig_start(&config);
    uint32_t slots[3];
    assert_int_equal(rig_store(disk, 1, 1, 50000, &slots[0]), 0);
    rig.shift = MC_DISK_PAGE; /* a page beside its place, over itself and what comes next */
    assert_int_equal(rig_store(disk, 2, 1, 50000, &slots[1]), 0);
    rig.shift = 0;
    assert_int_equal(rig_store(disk, 3, 1, 50000, &slots[2]), 0);
    assert_int_equal(rig_read_object(disk, slots[0], 1, 1, 50000), 0);
    assert_int_equal(rig_read_object(disk, slots[1], 2, 1, 50000), MC_ERR_CHECKSUM_MISMATCH);
    assert_int_equal(rig_read_object(disk, slots[2], 3, 1, 50000), 0);
    rig_stop(disk);
}

static void test_many_at_once(void **state)
{
    (void)state;
    static struct answer answers[600];
    config.objects_max = 1000;
    struct mc_disk *disk = rig_start(&config);
    memset(answers, 0, sizeof(answers));
    for (uint32_t i = 0; i < 600; i++) { /* more than one group holds */
        char key[MC_KEY_LENGTH_MAX + 1];
        uint8_t *buffer = mc_disk_lend(disk, 700, rig_key(i, key));
        assert_non_null(buffer);
        struct mc_disk_entry entry = rig_extent(buffer, i + 1, i, 700);
        int rc = mc_disk_store(disk, rig_slot(disk), &entry, buffer, false, on_stored, &answers[i]);
        if (rc == MC_ERR_BUSY)
            mc_disk_give_back(disk, buffer);
        assert_int_equal(rc, 0);
        if (i % 150 == 149) {
            for (uint32_t j = 0; j <= i; j++)
                rig_wait(disk, &answers[j]);
        }
    }
    struct mc_disk_statistics statistics = rig_statistics(disk);
    assert_true(statistics.writes < 40); /* in groups */
    for (uint32_t i = 0; i < 600; i++)
        assert_int_equal(rig_read_object(disk, answers[i].slot, i + 1, i, 700), 0);
    rig_stop(disk);
}

static void test_close_with_work(void **state)
{
    (void)state;
    char key[MC_KEY_LENGTH_MAX + 1];
    struct answer answers[2] = {{0}, {0}};
    struct mc_disk *disk = rig_start(&config);
    for (uint32_t i = 0; i < 2; i++) {
        uint8_t *buffer = mc_disk_lend(disk, 50000, rig_key(i, key));
        struct mc_disk_entry entry = rig_extent(buffer, i + 1, i, 50000);
        assert_int_equal(mc_disk_store(disk, rig_slot(disk), &entry, buffer, false, on_stored, &answers[i]), 0);
    }
    rig_stop(disk); /* what was begun is ended */
    assert_true(answers[0].is_there && answers[1].is_there && answers[0].code == 0 && answers[1].code == 0);
    disk = rig_start(&config);
    assert_int_equal(list(disk), 2);
    rig_stop(disk);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, folder_remove)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_empty),
        TEST(test_sizes),
        TEST(test_generation_is_exact),
        TEST(test_mark_and_floor),
        TEST(test_mark_that_fails),
        TEST(test_paths),
        TEST(test_two_on_one_path),
        TEST(test_bytes_there),
        TEST(test_of_others),
        TEST(test_identity_that_is_gone),
        TEST(test_fifo),
        TEST(test_lru),
        TEST(test_all_is_hot),
        TEST(test_regions_that_empty),
        TEST(test_keep),
        TEST(test_few_numbers),
        TEST(test_few_numbers_lru),
        TEST(test_slots_and_budget),
        TEST(test_budget_is_for_what_was_not_read),
        TEST(test_journal_is_made_shorter),
        TEST(test_every_page_of_a_region),
        TEST(test_cut_short),
        TEST(test_torn_footer),
        TEST(test_random_bits),
        TEST(test_write_errors),
        TEST(test_one_region_fails),
        TEST(test_journal_fails),
        TEST(test_read_errors),
        TEST(test_pieces),
        TEST(test_bad_pieces),
        TEST(test_unread_region),
        TEST(test_unlisted_region),
        TEST(test_copied_journal),
        TEST(test_unread_journal),
        TEST(test_lost_without_a_journal),
        TEST(test_misdirected),
        TEST(test_many_at_once),
        TEST(test_close_with_work),
    };
    mc_log_set_level(MC_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
