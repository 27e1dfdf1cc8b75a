/* How a reader waits for what comes from a disk, against disks that take so long. */
#include "store/client/loads.h"
#include "mooncake.h"

#include "fake_master.h"

#include <limits.h>

#define MIB (1ull << 20)
#define UNKNOWN_US 100 /* between looks when nothing is known */

struct reader {
    struct mc_loads loads;
    uint64_t waited_us; /* in all */
    unsigned looks;     /* for the last value */
};

/* One value of that length, which is there after so long. How much later the reader knew. */
static uint64_t read_one(struct reader *reader, uint64_t length, uint64_t took_us)
{
    uint64_t passed_us = 0;
    for (reader->looks = 0; passed_us < took_us; reader->looks++) {
        uint64_t wait_us = mc_loads_wait_us(&reader->loads, length, passed_us);
        passed_us += wait_us > 0 ? wait_us : UNKNOWN_US + passed_us / 4;
    }
    mc_loads_sample(&reader->loads, length, passed_us, reader->looks == 1);
    reader->waited_us += passed_us;
    return passed_us - took_us;
}

static void test_nothing_known(void **state)
{
    struct reader reader = {0};
    (void)state;
    assert_int_equal(mc_loads_wait_us(&reader.loads, 0, 0), 0);
    assert_int_equal(mc_loads_wait_us(&reader.loads, MIB, 0), 0);
    assert_int_equal(mc_loads_wait_us(&reader.loads, UINT64_MAX, 12345), 0);
    (void)read_one(&reader, MIB, 900);
    assert_true(mc_loads_wait_us(&reader.loads, MIB, 0) > 0);
    assert_int_equal(mc_loads_wait_us(&reader.loads, 16 * MIB, 0), 0); /* another size */
}

/* A disk that always takes as long: a small part is waited in vain, and it is not looked much more often. */
static void test_steady(void **state)
{
    static const uint64_t took_us[] = {60, 150, 850, 13000, 40000};
    (void)state;
    for (size_t i = 0; i < sizeof(took_us) / sizeof(took_us[0]); i++) {
        struct reader reader = {0};
        uint64_t most_us = took_us[i] / 16 > MC_LOADS_STEP_US ? took_us[i] / 16 : MC_LOADS_STEP_US;
        for (unsigned load = 0; load < 100; load++) {
            uint64_t late_us = read_one(&reader, MIB, took_us[i]);
            if (load < 20)
                continue;
            assert_true(late_us <= most_us);
            assert_true(reader.looks >= 1 && reader.looks <= 5);
        }
    }
}

/* Many have read at a time, and now there is one: what it waits in vain is no more than four times what one took
 * before. */
static void test_faster(void **state)
{
    struct reader reader = {0};
    (void)state;
    for (unsigned load = 0; load < 100; load++)
        (void)read_one(&reader, MIB, 40000);
    reader.waited_us = 0;
    for (unsigned load = 0; load < 20; load++)
        (void)read_one(&reader, MIB, 1000);
    assert_true(reader.waited_us <= 20 * 1000 + 4 * 40000);
    assert_true(read_one(&reader, MIB, 1000) <= 100);
}

/* It is slower for once, or from now on: it is not looked without end meanwhile, nor waited for without a look. */
static void test_slower(void **state)
{
    struct reader reader = {0};
    (void)state;
    for (unsigned load = 0; load < 100; load++)
        (void)read_one(&reader, MIB, 1000);
    assert_true(read_one(&reader, MIB, 30000) <= 30000 / 4 + UNKNOWN_US);
    assert_true(reader.looks <= MC_LOADS_STEP_PART + 4 + 20);
    for (unsigned load = 0; load < 100; load++)
        (void)read_one(&reader, MIB, 60000000);
    assert_true(mc_loads_wait_us(&reader.loads, MIB, 0) <= MC_LOADS_LONGEST_US);
}

/* What was to come from a disk, and did not in time, is a miss; what is about to be there for another reason is not. */
static void test_too_late(void **state)
{
    static uint8_t back[100];
    static struct fake_master master;
    struct mc_store_config config = {
        .local_hostname = "127.0.0.1", .local_buffer_size = 1, .paths = "local", .call_timeout_ms = 100};
    struct mc_store_statistics statistics;
    struct mc_store *store;
    (void)state;
    fake_start(&master, 50);
    config.master_server_addr = master.address;
    assert_int_equal(mc_store_open(&config, &store), 0);
    FAKE_SET(&master, coming, UINT_MAX);
    for (unsigned i = 0; i < 2; i++) {
        struct iovec part = {back, sizeof(back)};
        struct mc_get_item item = {.key = {"key", 3}, .parts = &part, .part_count = 1};
        FAKE_SET(&master, coming_length, i == 0 ? 0 : sizeof(back));
        (void)mc_store_get(store, &item, 1, NULL, NULL);
        assert_int_equal(item.result, i == 0 ? MC_ERR_REPLICA_IS_NOT_READY : MC_ERR_OBJECT_NOT_FOUND);
    }
    mc_store_statistics(store, &statistics);
    assert_int_equal(statistics.get_misses, 2);
    assert_int_equal(statistics.get_loads, 0);
    assert_int_equal(mc_store_close(store), 0);
    fake_stop(&master);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_known), cmocka_unit_test(test_steady),   cmocka_unit_test(test_faster),
        cmocka_unit_test(test_slower),        cmocka_unit_test(test_too_late),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
