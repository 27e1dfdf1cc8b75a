/* What mooncake_disk says of a directory: whole, damaged in every way, in use, of others. */
#include "disk_folder.h"

#include "env/json.h"
#include "env/log.h"
#include "store/disk/offline.h"

static char *text;

static int teardown(void **state)
{
    free(text);
    text = NULL;
    return folder_remove(state);
}

static enum mc_disk_look_code look_at(const char *where, enum mc_disk_look_kind kind, bool is_json)
{
    size_t length = 0;
    free(text);
    text = NULL;
    FILE *out = open_memstream(&text, &length);
    assert_non_null(out);
    enum mc_disk_look_code code = mc_disk_look(where, kind, is_json, out);
    assert_int_equal(fclose(out), 0);
    if (is_json) { /* the whole of it is read */
        struct mc_span value;
        assert_true(mc_json_find(mc_span_string(text), "not.there", &value) >= 0);
    }
    return code;
}

static uint64_t number_of(const char *name)
{
    uint64_t number = UINT64_MAX;
    char where[64];
    snprintf(where, sizeof(where), "0.%s", name);
    assert_int_equal(mc_json_find_number(mc_span_string(text), where, &number), 1);
    return number;
}

static void bytes_change(const char *file, uint64_t offset, uint8_t with, size_t length)
{
    char name[256];
    uint8_t bytes[2 * MC_DISK_PAGE];
    snprintf(name, sizeof(name), "%s/mooncake-c.0/%s", path, file);
    int fd = open(name, O_RDWR);
    assert_true(fd >= 0);
    memset(bytes, with, length);
    assert_int_equal(pwrite(fd, bytes, length, (off_t)offset), length);
    close(fd);
}

static void disk_make(void)
{
    struct mc_disk *disk = rig_start(&config);
    uint32_t slot;
    for (uint64_t i = 1; i <= 25; i++)
        assert_int_equal(rig_store(disk, i, i, 100000, i == 25 ? &slot : NULL), 0);
    assert_int_equal(rig_clear(disk, slot, 25, true), 0);
    rig_stop(disk);
}

static void test_whole(void **state)
{
    (void)state;
    disk_make();
    for (int kind = MC_DISK_LOOK_STAT; kind <= MC_DISK_LOOK_CHECK; kind++) {
        assert_int_equal(look_at(path, (enum mc_disk_look_kind)kind, true), MC_DISK_LOOK_WHOLE);
        assert_int_equal(number_of("live"), 24);
        assert_int_equal(number_of("dead"), 1);
        assert_int_equal(look_at(path, (enum mc_disk_look_kind)kind, false), MC_DISK_LOOK_WHOLE);
    }
    assert_non_null(strstr(text, "whole: every block"));
    assert_int_equal(look_at(path, MC_DISK_LOOK_LIST, false), MC_DISK_LOOK_WHOLE);
    assert_non_null(strstr(text, "key-24  generation 24, 100000 bytes"));
    assert_null(strstr(text, "key-25 "));
    char inner[128];
    snprintf(inner, sizeof(inner), "%s/mooncake-c.0", path);
    assert_int_equal(look_at(inner, MC_DISK_LOOK_CHECK, true), MC_DISK_LOOK_WHOLE);
}

static void test_damage(void **state)
{
    (void)state;
    disk_make();
    bytes_change("volume.0", 9 * MC_DISK_PAGE, 0xaa, 10); /* within the first object */
    assert_int_equal(look_at(path, MC_DISK_LOOK_CHECK, true), MC_DISK_LOOK_DAMAGED);
    assert_int_equal(number_of("not_whole"), 1);
    assert_int_equal(look_at(path, MC_DISK_LOOK_STAT, true), MC_DISK_LOOK_WHOLE); /* which reads no objects */
    bytes_change("volume.0", RIG_REGION, 0xaa, 10);
    assert_int_equal(look_at(path, MC_DISK_LOOK_STAT, true), MC_DISK_LOOK_DAMAGED);
    assert_int_equal(number_of("damaged_regions"), 1);
    bytes_change("clears.1", MC_DISK_PAGE + 10, 0xaa, 10);
    assert_int_equal(look_at(path, MC_DISK_LOOK_STAT, true), MC_DISK_LOOK_DAMAGED);
    assert_int_equal(number_of("damaged_journal_pages"), 1);
    bytes_change("identity", 0, 0xaa, 2 * MC_DISK_PAGE);
    assert_int_equal(look_at(path, MC_DISK_LOOK_CHECK, true), MC_DISK_LOOK_DAMAGED);
    assert_non_null(strstr(text, "identity"));
}

static void test_in_use(void **state)
{
    (void)state;
    struct mc_disk *disk = rig_start(&config);
    assert_int_equal(rig_store(disk, 1, 1, 100000, NULL), 0);
    assert_int_equal(look_at(path, MC_DISK_LOOK_CHECK, true), MC_DISK_LOOK_IN_USE);
    assert_int_equal(look_at(path, MC_DISK_LOOK_STAT, false), MC_DISK_LOOK_WHOLE);
    assert_non_null(strstr(text, "in use"));
    rig_stop(disk);
    assert_int_equal(look_at(path, MC_DISK_LOOK_CHECK, true), MC_DISK_LOOK_WHOLE);
    disk = rig_start(&config); /* no look keeps a lock */
    assert_non_null(strstr(mc_disk_directory(disk), "mooncake-c.0"));
    rig_stop(disk);
}

static void test_no_disk(void **state)
{
    (void)state;
    assert_int_equal(look_at("/not/there", MC_DISK_LOOK_CHECK, false), MC_DISK_LOOK_NO_DISK);
    assert_int_equal(look_at(path, MC_DISK_LOOK_CHECK, true), MC_DISK_LOOK_NO_DISK);
    disk_make();
    bytes_change("identity", 8, MC_DISK_VERSION + 1, 1);
    bytes_change("identity", MC_DISK_PAGE + 8, MC_DISK_VERSION + 1, 1);
    assert_int_equal(look_at(path, MC_DISK_LOOK_CHECK, false), MC_DISK_LOOK_NO_DISK);
    assert_non_null(strstr(text, "another version"));
}

static void test_cut_short(void **state)
{
    (void)state;
    char name[256];
    disk_make();
    snprintf(name, sizeof(name), "%s/mooncake-c.0/volume.0", path);
    for (int bytes = 3 * RIG_REGION; bytes >= 0; bytes -= 77777) {
        assert_int_equal(truncate(name, bytes), 0);
        assert_true(look_at(path, MC_DISK_LOOK_CHECK, true) <= MC_DISK_LOOK_DAMAGED);
    }
    snprintf(name, sizeof(name), "%s/mooncake-c.0/identity", path);
    assert_int_equal(truncate(name, 100), 0);
    assert_int_equal(look_at(path, MC_DISK_LOOK_CHECK, true), MC_DISK_LOOK_DAMAGED);
}

static void test_random_bytes(void **state)
{
    (void)state;
    uint64_t seed = 3;
    disk_make();
    for (unsigned i = 0; i < 100; i++) {
        uint64_t page = random_below(&seed, 3 * RIG_REGION / MC_DISK_PAGE) * MC_DISK_PAGE;
        bytes_change("volume.0", page + random_below(&seed, 200), (uint8_t)random_next(&seed),
                     1 + random_below(&seed, 3));
        (void)look_at(path, MC_DISK_LOOK_CHECK, i % 2 == 0);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_make, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_whole),   TEST(test_damage),    TEST(test_in_use),
        TEST(test_no_disk), TEST(test_cut_short), TEST(test_random_bytes),
    };
    mc_log_set_level(MC_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
