/* A disk on a file system that is full, or nearly. */
#include "disk_folder.h"

#include "base/variables.h"
#include "env/log.h"

#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>

static uint32_t lost;

static void on_lost(void *context, const struct mc_disk_place *places, size_t count)
{
    (void)context, (void)places;
    lost += (uint32_t)count;
}

static int no_space;               /* what a file system without room says */
static uint64_t room = UINT64_MAX; /* what it has left; UINT64_MAX: what it truly has */
static uint32_t asked;             /* for bytes of a region */

int fallocate(int fd, int mode, off_t offset, off_t length)
{
    asked += mode == 0 ? 1 : 0;
    if (mode == 0 && no_space != 0) {
        struct stat status;
        assert_int_equal(fstat(fd, &status), 0);
        if (status.st_size < offset + length) /* it has given a part */
            assert_int_equal(ftruncate(fd, offset + length / 2), 0);
        errno = no_space;
        return -1;
    }
    if (room != UINT64_MAX)
        room -= room < (uint64_t)length ? room : (uint64_t)length;
    return (int)syscall(SYS_fallocate, fd, mode, offset, length);
}

int fstatvfs(int fd, struct statvfs *status)
{
    struct statfs truth;
    if (syscall(SYS_fstatfs, fd, &truth) != 0)
        return -1;
    *status = (struct statvfs){.f_frsize = (unsigned long)truth.f_frsize,
                               .f_blocks = truth.f_blocks,
                               .f_bavail = room == UINT64_MAX ? truth.f_bavail : room / (uint64_t)truth.f_frsize};
    return 0;
}

static int setup(void **state)
{
    lost = asked = 0;
    no_space = 0;
    room = UINT64_MAX;
    folder_make(state);
    config.lost = on_lost;
    return 0;
}

static off_t volume_bytes(const struct mc_disk *disk)
{
    struct stat status;
    assert_int_equal(fstat(disk->volume_fds[0], &status), 0);
    return status.st_size;
}

/* A file system that is full, or a quota: what is there is used on, no part of a region is kept, and once there is room
 * it is taken. */
static void test_no_space(void **state)
{
    (void)state;
    static const int errors[] = {ENOSPC, EDQUOT};
    for (unsigned i = 0; i < 2; i++) {
        struct mc_disk *disk = rig_start(&config);
        rig_store_many(disk, 1, 12, 100000); /* two regions, the second not half full */
        no_space = errors[i];
        rig_store_many(disk, 13, 33, 100000);
        assert_true(lost > 10);
        assert_int_equal(rig_statistics(disk).health, MC_DISK_WELL);
        assert_int_equal(volume_bytes(disk), 2 * RIG_REGION);
        no_space = 0;
        rig_store_many(disk, 46, 30, 100000); /* it is not asked at once */
        assert_int_equal(volume_bytes(disk), 2 * RIG_REGION);
        rig.now_ns += MC_DISK_FULL_NS;
        rig_store_many(disk, 76, 100, 100000);
        assert_int_equal(volume_bytes(disk), 6 * RIG_REGION);
        rig_stop(disk);
        rig_remove(path);
        assert_int_equal(mkdir(path, 0700), 0);
        lost = 0;
    }
}

static void test_no_space_at_all(void **state)
{
    (void)state;
    struct mc_disk *disk = rig_start(&config);
    no_space = EDQUOT;
    assert_int_equal(rig_store(disk, 1, 1, 100, NULL), MC_ERR_NO_AVAILABLE_HANDLE);
    no_space = 0;
    rig.now_ns += MC_DISK_FULL_NS;
    assert_int_equal(rig_store(disk, 2, 2, 100, NULL), 0);
    rig_stop(disk);
}

/* Nobody takes all that a file system has left, to be refused then: others find none meanwhile. */
static void test_little_space(void **state)
{
    (void)state;
    struct mc_disk *disk = rig_start(&config);
    rig_store_many(disk, 1, 12, 100000); /* two regions, the second not half full */
    asked = 0;
    room = RIG_REGION;
    rig_store_many(disk, 13, 33, 100000);
    rig.now_ns += MC_DISK_FULL_NS;
    rig_store_many(disk, 46, 30, 100000);
    assert_int_equal(asked, 0);
    assert_true(lost > 10);
    assert_int_equal(rig_statistics(disk).health, MC_DISK_WELL);
    assert_int_equal(volume_bytes(disk), 2 * RIG_REGION);
    room = 6 * RIG_REGION;
    rig.now_ns += MC_DISK_FULL_NS;
    rig_store_many(disk, 76, 100, 100000);
    assert_int_equal(asked, 4);
    assert_int_equal(volume_bytes(disk), 6 * RIG_REGION);
    rig_stop(disk);
}

static uint64_t journal_bytes(const struct mc_disk *disk)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < MC_DISK_CLEARS_FILES; i++) {
        struct stat status;
        assert_int_equal(fstat(disk->directory.clears_fd[i], &status), 0);
        bytes += (uint64_t)status.st_blocks * 512;
    }
    return bytes;
}

/* What was opened without room has its journal's blocks before a region has any, or as soon as it uses one on. */
static void test_journal_before_regions(void **state)
{
    (void)state;
    const uint64_t all = 2ull * MC_DISK_CLEARS_LEAST * MC_DISK_PAGE;
    for (unsigned has_regions = 0; has_regions < 2; has_regions++) {
        struct mc_disk *disk;
        if (has_regions == 1) {
            disk = rig_start(&config);
            rig_store_many(disk, 1, 100, 100000);
            assert_int_equal(volume_bytes(disk), 6 * RIG_REGION);
            for (unsigned i = 0; i < MC_DISK_CLEARS_FILES; i++) /* as of one that was never given them */
                assert_int_equal(
                    ftruncate(disk->directory.clears_fd[i], lseek(disk->directory.clears_fd[i], 0, SEEK_END)), 0);
            rig_stop(disk);
        }
        room = 0;
        disk = rig_start(&config);
        assert_true(journal_bytes(disk) < all / 2);
        if (has_regions == 0)
            assert_int_equal(rig_store(disk, 1, 1, 100000, NULL), MC_ERR_NO_AVAILABLE_HANDLE);
        else
            rig_store_many(disk, 101, 12, 100000);
        assert_true(journal_bytes(disk) < all / 2);
        room = all + RIG_REGION / 2; /* for the journal alone */
        rig.now_ns += MC_DISK_FULL_NS;
        if (has_regions == 0)
            assert_int_equal(rig_store(disk, 2, 2, 100000, NULL), MC_ERR_NO_AVAILABLE_HANDLE);
        else
            rig_store_many(disk, 113, 12, 100000);
        assert_true(journal_bytes(disk) >= all);
        room = UINT64_MAX;
        rig.now_ns += MC_DISK_FULL_NS;
        assert_int_equal(rig_store(disk, 200, 3, 100000, NULL), 0);
        rig_stop(disk);
    }
}

static struct mc_disk_place removed;
static struct answer removal;

static void remove_begin(struct mc_disk *disk)
{
    removal = (struct answer){0};
    assert_int_equal(mc_disk_clear(disk, &removed, 1, true, on_done, &removal), 0);
}

static void turn(struct mc_disk *disk)
{
    for (unsigned i = 0; i < 20; i++)
        mc_disk_turn(disk, 0);
}

/* A journal that finds no room, since its blocks could not be had ahead: removals wait for it, and no disk is lost. */
static void test_journal_without_room(void **state)
{
    (void)state;
    static const int errors[] = {ENOSPC, EDQUOT};
    for (unsigned i = 0; i < 2; i++) {
        struct mc_disk *disk = rig_start(&config);
        removed.generation = 10 * i + 1;
        assert_int_equal(rig_store(disk, removed.generation, removed.generation, 50000, &removed.slot), 0);
        rig.fail_write_file = rig_inode(disk->directory.clears_fd[disk->journal.current]);
        rig.error = errors[i];
        remove_begin(disk);
        turn(disk);
        for (unsigned tries = 0; tries < MC_DISK_JOURNAL_TRIES; tries++) {
            uint64_t writes = rig_statistics(disk).writes;
            turn(disk);
            assert_int_equal(rig_statistics(disk).writes, writes); /* not without a pause */
            assert_false(removal.is_there);
            rig.now_ns += tries + 1 < MC_DISK_JOURNAL_TRIES ? MC_DISK_JOURNAL_AGAIN_NS : 0;
            turn(disk);
        }
        assert_int_equal(rig_statistics(disk).health, MC_DISK_WELL);
        rig.fail_write_file = 0;
        rig.now_ns += MC_DISK_JOURNAL_AGAIN_NS;
        rig_wait(disk, &removal);
        assert_int_equal(removal.code, 0);
        rig_end(disk, true, 128);
        disk = rig_start(&config);
        assert_int_equal(rig_read_object(disk, removed.slot, removed.generation, removed.generation, 50000),
                         MC_ERR_REPLICA_IS_GONE);
        rig_stop(disk);
    }
}

/* Nobody waits for ever. */
static void test_journal_never_has_room(void **state)
{
    (void)state;
    struct mc_disk *disk = rig_start(&config);
    removed.generation = 1;
    assert_int_equal(rig_store(disk, 1, 1, 50000, &removed.slot), 0);
    rig.fail_write_file = rig_inode(disk->directory.clears_fd[disk->journal.current]);
    rig.error = ENOSPC;
    remove_begin(disk);
    for (unsigned tries = 0; tries < MC_DISK_JOURNAL_TRIES; tries++) {
        turn(disk);
        assert_false(removal.is_there);
        rig.now_ns += MC_DISK_JOURNAL_AGAIN_NS;
    }
    turn(disk);
    assert_true(removal.is_there);
    assert_int_equal(removal.code, MC_ERR_FILE_WRITE_FAIL);
    assert_int_equal(rig_statistics(disk).health, MC_DISK_READ_ONLY);
    rig.fail_write_file = 0;
    rig_stop(disk);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, folder_remove)

/* How many buffers there are follows the size; the line on the original's setting of them says the same. */
static void test_buffers(void **state)
{
    (void)state;
    static const struct {
        uint64_t capacity, mebibytes;
    } cases[] = {{1ull << 30, 256}, {(16ull << 30) - 1, 256}, {16ull << 30, 512}};
    const char *line = mc_variable_find("MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES")->text;
    config.region_bytes = config.buffer_bytes = 0;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        config.capacity = cases[i].capacity;
        struct mc_disk *disk = rig_start(&config);
        uint64_t mebibytes = disk->config.buffer_bytes >> 20;
        mc_disk_close(disk, 0);
        rig_remove(path);
        path = rig_directory();
        assert_int_equal(mebibytes, cases[i].mebibytes);
    }
    assert_string_equal(line, "each disk has 256 MiB of buffers, from 16 GiB on 512");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_no_space),
        TEST(test_no_space_at_all),
        TEST(test_little_space),
        TEST(test_journal_before_regions),
        TEST(test_journal_without_room),
        TEST(test_journal_never_has_room),
        TEST(test_buffers),
    };
    mc_log_set_level(MC_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
