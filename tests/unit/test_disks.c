/* Which disks a store node has, and how each setting of the environment changes what is made of them. */
#include "store/client/disks.h"

#include "base/error.h"
#include "env/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <cmocka.h>

#define GIB (1ull << 30)

static char folder[64];
static struct mc_disks disks;
static struct mc_disks_told told;
static struct mc_store_config config;

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/mooncake-disks-XXXXXX");
    assert_non_null(mkdtemp(folder));
    told = (struct mc_disks_told){.path = ""};
    config = (struct mc_store_config){.disk_paths = folder};
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    mc_disks_free(&disks);
    return rmdir(folder);
}

static void disks_look(void)
{
    const bool all[MC_OWNER_DISKS_MAX] = {true, true, true, true, true, true, true, true};
    assert_int_equal(mc_disks_of(&config, &told, &disks), 0);
    mc_disks_settle(&config, &told, all, &disks);
}

static const struct mc_owner_disk_config *look(void)
{
    mc_disks_free(&disks);
    disks_look();
    assert_true(disks.count <= 1);
    return disks.count == 0 ? NULL : &disks.list[0];
}

/* With one variable set for as long as it looks. */
static struct mc_owner_disk_config with(const char *name, const char *value)
{
    assert_int_equal(setenv(name, value, 1), 0);
    const struct mc_owner_disk_config *disk = look();
    assert_int_equal(unsetenv(name), 0);
    assert_non_null(disk);
    return *disk;
}

/* What the file system has changes while we look: about. */
static void is_about(uint64_t bytes, double ratio)
{
    struct statvfs status;
    assert_int_equal(statvfs(folder, &status), 0);
    double wanted = (double)status.f_bavail * (double)status.f_frsize * ratio;
    assert_true((double)bytes > wanted - (double)GIB && (double)bytes < wanted + (double)GIB);
}

static void test_what_nobody_says(void **state)
{
    (void)state;
    const struct mc_owner_disk_config *disk = look();
    assert_string_equal(disk->path, folder);
    is_about(disk->capacity, 0.9);
    assert_true(disk->policy == MC_DISK_LRU && disk->io_kind == MC_DISK_IO_AUTO && disk->objects_max == 0);
    config.disk_paths = NULL;
    assert_null(look());
    config.disk_paths = "";
    assert_null(look());
    config.disk_paths = " , ,";
    assert_null(look());
}

static void test_how_large(void **state)
{
    (void)state;
    static const char *const names[] = {"MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES",
                                        "MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE", "MOONCAKE_BUCKET_MAX_TOTAL_SIZE",
                                        "MOONCAKE_OFFLOAD_BUCKET_MAX_PHYSICAL_BYTES"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        assert_int_equal(with(names[i], "300000000").capacity, 300000000);
        static const char *const others[] = {"", "0", "-1", "1e9", "1 GB", "99999999999999999999", "x"};
        for (size_t j = 0; j < sizeof(others) / sizeof(others[0]); j++)
            is_about(with(names[i], others[j]).capacity, 0.9);
        is_about(with(names[i], "9223372036854775807").capacity, 0.9); /* no more than there is */
    }
    assert_int_equal(setenv(names[0], "400000000", 1), 0);
    assert_int_equal(with(names[1], "300000000").capacity, 300000000); /* the least counts */
    assert_int_equal(with(names[2], "500000000").capacity, 400000000);
    assert_int_equal(setenv(names[1], "350000000", 1), 0);
    assert_int_equal(with(names[2], "300000000").capacity, 350000000); /* the longer name goes before its alias */
    config.disk_bytes = 12345;
    assert_int_equal(look()->capacity, 12345);
    config.disk_bytes = 0;
    assert_int_equal(unsetenv(names[0]), 0);
    assert_int_equal(unsetenv(names[1]), 0);
    static const char *const ratios[] = {"MOONCAKE_OFFLOAD_DISK_EVICTION_HIGH_WATERMARK_RATIO",
                                         "MOONCAKE_DISK_EVICTION_HIGH_WATERMARK_RATIO"};
    for (size_t i = 0; i < 2; i++) {
        is_about(with(ratios[i], "0.5").capacity, 0.5);
        is_about(with(ratios[i], "1").capacity, 1);
        is_about(with(ratios[i], "0").capacity, 0.9);
        is_about(with(ratios[i], "1.1").capacity, 0.9);
        is_about(with(ratios[i], "half").capacity, 0.9);
        is_about(with(ratios[i], "nan").capacity, 0.9);
    }
}

static void test_how_it_is_used(void **state)
{
    (void)state;
    static const struct {
        const char *name, *value;
        uint32_t objects_max;
        enum mc_disk_policy policy;
        enum mc_disk_io_kind io_kind;
    } cases[] = {
        {"MOONCAKE_OFFLOAD_TOTAL_KEYS_LIMIT", "100000", 100000, MC_DISK_LRU, MC_DISK_IO_AUTO},
        {"MOONCAKE_OFFLOAD_TOTAL_KEYS_LIMIT", "1", 64, MC_DISK_LRU, MC_DISK_IO_AUTO},
        {"MOONCAKE_OFFLOAD_TOTAL_KEYS_LIMIT", "99999999999", MC_DISK_OBJECTS_MAX, MC_DISK_LRU, MC_DISK_IO_AUTO},
        {"MOONCAKE_OFFLOAD_TOTAL_KEYS_LIMIT", "0", 0, MC_DISK_LRU, MC_DISK_IO_AUTO},
        {"MOONCAKE_OFFLOAD_TOTAL_KEYS_LIMIT", "many", 0, MC_DISK_LRU, MC_DISK_IO_AUTO},
        {"MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY", "fifo", 0, MC_DISK_FIFO, MC_DISK_IO_AUTO},
        {"MOONCAKE_BUCKET_EVICTION_POLICY", "FIFO", 0, MC_DISK_FIFO, MC_DISK_IO_AUTO},
        {"MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY", "lru", 0, MC_DISK_LRU, MC_DISK_IO_AUTO},
        {"MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY", "none", 0, MC_DISK_KEEP, MC_DISK_IO_AUTO},
        {"MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY", "arc", 0, MC_DISK_LRU, MC_DISK_IO_AUTO},
        {"MOONCAKE_OFFLOAD_ENABLE_EVICTION", "false", 0, MC_DISK_KEEP, MC_DISK_IO_AUTO},
        {"ENABLE_EVICTION", "0", 0, MC_DISK_KEEP, MC_DISK_IO_AUTO},
        {"ENABLE_EVICTION", "true", 0, MC_DISK_LRU, MC_DISK_IO_AUTO},
        {"ENABLE_EVICTION", "perhaps", 0, MC_DISK_LRU, MC_DISK_IO_AUTO},
        {"MOONCAKE_OFFLOAD_USE_URING", "true", 0, MC_DISK_LRU, MC_DISK_IO_AUTO},
        {"MOONCAKE_OFFLOAD_USE_URING", "False", 0, MC_DISK_LRU, MC_DISK_IO_THREADS},
        {"MOONCAKE_USE_URING", "0", 0, MC_DISK_LRU, MC_DISK_IO_THREADS},
        {"MOONCAKE_USE_URING", "x", 0, MC_DISK_LRU, MC_DISK_IO_AUTO},
        {"MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR", "bucket_storage_backend", 0, MC_DISK_LRU, MC_DISK_IO_AUTO},
        {"MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR", "nvme_kv_storage_backend", 0, MC_DISK_LRU, MC_DISK_IO_AUTO},
        {"MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES", "1", 0, MC_DISK_LRU, MC_DISK_IO_AUTO},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mc_owner_disk_config disk = with(cases[i].name, cases[i].value);
        assert_int_equal(disk.objects_max, cases[i].objects_max);
        assert_int_equal(disk.policy, cases[i].policy);
        assert_int_equal(disk.io_kind, cases[i].io_kind);
    }
}

/* How many lines of the log a look takes that say so. */
static unsigned lines_of(const char *name, const char *value, const char *text)
{
    char line[512];
    unsigned count = 0;
    FILE *file = tmpfile();
    int saved = dup(STDERR_FILENO);
    assert_true(file != NULL && saved >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    mc_log_set_level(MC_LOG_WARNING);
    (void)with(name, value);
    mc_log_set_level(MC_LOG_ERROR);
    assert_true(dup2(saved, STDERR_FILENO) >= 0);
    rewind(file);
    while (fgets(line, sizeof(line), file) != NULL)
        count += strstr(line, text) != NULL;
    fclose(file);
    close(saved);
    return count;
}

static void test_too_many_objects(void **state)
{
    (void)state;
    static const char name[] = "MOONCAKE_OFFLOAD_TOTAL_KEYS_LIMIT";
    config.disk_bytes = 256 * GIB;
    assert_int_equal(lines_of(name, "16777216", "has at most 16777216 objects"), 0);
    assert_int_equal(lines_of(name, "", "has at most"), 0);
    assert_int_equal(lines_of(name, "16777217", "has at most 16777216 objects, not 16777217 (MOONCAKE_OFFLOAD_"), 1);
    config.disk_bytes = 1024 * GIB;
    assert_int_equal(lines_of(name, "", "has at most 16777216 objects, not 67108864 (one for"), 1);
    assert_int_equal(with(name, "").objects_max, MC_DISK_OBJECTS_MAX);
    assert_int_equal(lines_of(name, "1000", "has at most"), 0);
}

static void test_daily_budget(void **state)
{
    (void)state;
    static const char name[] = "MOONCAKE_OFFLOAD_DAILY_WRITE_BYTES";
    static const char *const none[] = {"", "0", "-1", "1e9", "1 GB", "99999999999999999999", "x"};
    assert_int_equal(look()->budget_bytes, 0);
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
        assert_int_equal(with(name, none[i]).budget_bytes, 0);
    char paths[160];
    snprintf(paths, sizeof(paths), "%s/a,%s/b", folder, folder);
    config.disk_paths = paths;
    mc_disks_free(&disks);
    assert_int_equal(setenv(name, "1000000000000", 1), 0);
    disks_look();
    assert_int_equal(unsetenv(name), 0);
    assert_int_equal(disks.count, 2);
    for (uint32_t i = 0; i < 2; i++) /* each has all of it */
        assert_true(disks.list[i].budget_bytes == 1000000000000);
}

static void test_several_paths(void **state)
{
    (void)state;
    char paths[512], many[512] = "";
    snprintf(paths, sizeof(paths), " %s/a/ ,\t%s/b,,%s/a,%s/c//", folder, folder, folder, folder);
    config.disk_paths = paths;
    disks_look();
    assert_int_equal(disks.count, 3); /* not twice the same */
    for (uint32_t i = 0; i < 3; i++) {
        char wanted[80];
        snprintf(wanted, sizeof(wanted), "%s/%c", folder, "abc"[i]);
        assert_string_equal(disks.list[i].path, wanted);
    }
    mc_disks_free(&disks);
    for (unsigned i = 0; i < 12; i++)
        snprintf(many + strlen(many), sizeof(many) - strlen(many), "%s/%u,", folder, i);
    config.disk_paths = many;
    disks_look();
    assert_int_equal(disks.count, MC_OWNER_DISKS_MAX);
}

static void test_as_the_master_says(void **state)
{
    (void)state;
    struct stat status;
    told = (struct mc_disks_told){.bytes = 400000000, .keeps = true};
    snprintf(told.path, sizeof(told.path), "%s/cluster", folder);
    assert_string_equal(look()->path, folder); /* its own goes before that, and is not what the master speaks of */
    assert_true(look()->policy == MC_DISK_LRU && look()->capacity != 400000000);
    assert_int_equal(stat(told.path, &status), -1);
    config.disk_paths = "";
    assert_null(look()); /* it is to have none */
    config.disk_paths = NULL;
    const struct mc_owner_disk_config *disk = look();
    assert_string_equal(disk->path, told.path);
    assert_true(disk->policy == MC_DISK_KEEP && disk->capacity == 400000000);
    assert_true(stat(told.path, &status) == 0 && S_ISDIR(status.st_mode));
    assert_int_equal(with("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", "300000000").capacity, 300000000);
    told.keeps = false;
    assert_string_equal(look()->path, told.path); /* it is there already */
    assert_int_equal(look()->policy, MC_DISK_LRU);
    assert_int_equal(rmdir(told.path), 0);
    snprintf(told.path, sizeof(told.path), "%s/not/there", folder); /* the root is not mounted here */
    assert_null(look());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_what_nobody_says, setup, teardown),
        cmocka_unit_test_setup_teardown(test_how_large, setup, teardown),
        cmocka_unit_test_setup_teardown(test_how_it_is_used, setup, teardown),
        cmocka_unit_test_setup_teardown(test_too_many_objects, setup, teardown),
        cmocka_unit_test_setup_teardown(test_daily_budget, setup, teardown),
        cmocka_unit_test_setup_teardown(test_several_paths, setup, teardown),
        cmocka_unit_test_setup_teardown(test_as_the_master_says, setup, teardown),
    };
    mc_log_set_level(MC_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
