/* The scrubber, which has a thread of its own. */
#include "store/owner/scrub.h"
#include "store/segment/memory_inside.h"
#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "object_make.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#define MIB (1ull << 20)

struct rig {
    struct mc_scrub *scrub;
    struct mc_segment_memory *memory;
    atomic_uint rotten, last_slot;
    atomic_bool is_wrong, is_held; /* is_held: its thread stays where it tells */
    _Atomic uint64_t last_generation;
};

static void on_rotten(void *context, struct mc_segment_memory *memory, uint32_t slot, uint64_t generation)
{
    struct rig *rig = context;
    struct mc_slot copy;
    if (mc_slot_read(&mc_segment_memory_slots(memory)[slot], generation, &copy)) /* cleared before */
        atomic_store(&rig->is_wrong, true);
    atomic_store(&rig->last_slot, slot);
    atomic_store(&rig->last_generation, generation);
    atomic_fetch_add(&rig->rotten, 1);
    while (atomic_load(&rig->is_held))
        usleep(200);
}

static void rig_start(struct rig *rig, uint64_t capacity, uint64_t bytes_per_s, uint32_t pass_ms)
{
    *rig = (struct rig){.scrub = NULL};
    struct mc_scrub_config config = {
        .bytes_per_s = bytes_per_s, .pass_ms = pass_ms, .context = rig, .rotten = on_rotten};
    assert_int_equal(mc_segment_memory_create(capacity, &rig->memory), 0);
    rig->scrub = mc_scrub_create(&config);
    assert_non_null(rig->scrub);
    mc_scrub_set_memory(rig->scrub, rig->memory);
}

static void rig_stop(struct rig *rig)
{
    mc_scrub_free(rig->scrub);
    assert_false(rig->is_wrong);
    mc_segment_memory_release(rig->memory);
}

/* Waits for so long, or until so many are rotten. */
static void turn(struct rig *rig, uint64_t ms, uint32_t rotten)
{
    uint64_t end_ns = mc_clock_ns() + ms * 1000000;
    while (mc_clock_ns() < end_ns && atomic_load(&rig->rotten) < rotten)
        usleep(200);
}

static uint64_t scrubbed(const struct rig *rig)
{
    uint64_t bytes, rotten;
    mc_scrub_counters(rig->scrub, &bytes, &rotten);
    assert_int_equal(rotten, rig->rotten);
    return bytes;
}

static void test_finds(void **state)
{
    (void)state;
    struct rig rig;
    rig_start(&rig, 64 * MIB, 1 << 30, 5);
    uint32_t last = mc_segment_memory_slot_count(rig.memory) - 1;
    const uint32_t slots[] = {0, 1, 63, 64, 65, 127, 4096, 20000, last - 1, last};
    const uint64_t lengths[] = {1, 100, 65535, 65536, 65537, 3 * MIB, 200000, 7, 131072, 9};
    uint64_t offsets[10], offset = 0;
    for (size_t i = 0; i < 10; i++) {
        offsets[i] = offset;
        assert_int_equal(object_make(rig.memory, slots[i], 50 + i, offset, lengths[i], "some key"), 0);
        offset += mc_extent_size(lengths[i], 8);
    }
    turn(&rig, 300, 1);
    assert_int_equal(rig.rotten, 0);
    assert_true(scrubbed(&rig) > 4 * MIB); /* around and around */
    for (size_t i = 0; i < 10; i++) {
        mc_segment_memory_data(rig.memory)[offsets[i] + (i % 2 == 0 ? 0 : lengths[i] - 1)] ^= 1;
        turn(&rig, 5000, (uint32_t)i + 1);
        assert_int_equal(rig.rotten, i + 1);
        assert_int_equal(rig.last_slot, slots[i]);
        assert_int_equal(rig.last_generation, 50 + i);
    }
    assert_int_equal(mc_segment_memory_live(rig.memory), 0);
    uint64_t before = scrubbed(&rig);
    turn(&rig, 100, UINT32_MAX);
    assert_int_equal(scrubbed(&rig), before); /* nothing is live: nothing is read */
    rig_stop(&rig);
}

static void test_block_table(void **state)
{
    (void)state;
    struct rig rig;
    rig_start(&rig, 16 * MIB, 1 << 30, 5);
    assert_int_equal(object_make(rig.memory, 7, 5, 0, 300000, "some key"), 0);
    turn(&rig, 50, 1);
    mc_segment_memory_data(rig.memory)[mc_table_offset(300000) + 5] ^= 1;
    turn(&rig, 5000, 1);
    assert_int_equal(rig.rotten, 1);
    rig_stop(&rig);
}

/* An index that nobody has written to takes no memory, also not when it is walked. */
static void test_empty_index_stays_small(void **state)
{
    (void)state;
    struct rig rig;
    struct stat before, after;
    rig_start(&rig, 1024 * MIB, 1 << 30, 1);
    assert_int_equal(fstat(mc_segment_memory_index_fd(rig.memory), &before), 0);
    turn(&rig, 200, 1);
    assert_int_equal(object_make(rig.memory, 40, 5, 0, 10, "some key"), 0);
    turn(&rig, 200, 1);
    assert_true(scrubbed(&rig) > 0);
    assert_int_equal(fstat(mc_segment_memory_index_fd(rig.memory), &after), 0);
    assert_in_range(after.st_blocks, 0, before.st_blocks + 4096 / 512);
    rig_stop(&rig);
}

/* Nor where somebody is writing for a slot far above all that were used. */
static void test_what_is_being_written(void **state)
{
    (void)state;
    struct rig rig;
    struct stat before, after;
    struct mc_local_write write;
    rig_start(&rig, 1024 * MIB, 1 << 30, 1);
    atomic_store(&rig.memory->backed_end, mc_segment_memory_data_size(rig.memory));
    assert_int_equal(object_make(rig.memory, 0, 5, 0, 10, "some key"), 0);
    uint32_t top = mc_segment_memory_slot_count(rig.memory);
    assert_int_equal(
        mc_segment_memory_write_begin(rig.memory, &write, top - 1, 7, MIB, 4096, mc_clock_ns() + 10000000000u), 0);
    assert_int_equal(mc_segment_memory_slot_top(rig.memory), top);
    assert_int_equal(mc_segment_memory_slots_used(rig.memory), 1);
    assert_int_equal(fstat(mc_segment_memory_index_fd(rig.memory), &before), 0);
    uint64_t bytes = scrubbed(&rig), end_ns = mc_clock_ns() + 20000000000u;
    while (scrubbed(&rig) < bytes + 3 * 10 && mc_clock_ns() < end_ns) /* two passes are over */
        turn(&rig, 1, 1);
    assert_true(scrubbed(&rig) >= bytes + 3 * 10);
    assert_int_equal(fstat(mc_segment_memory_index_fd(rig.memory), &after), 0);
    assert_in_range(after.st_blocks, 0, before.st_blocks + 4096 / 512);
    mc_segment_memory_write_end(rig.memory, &write);
    rig_stop(&rig);
}

static void test_rate(void **state)
{
    (void)state;
    struct rig rig;
    uint64_t start_ns = mc_clock_ns();
    rig_start(&rig, 64 * MIB, 8 * MIB, 1);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(object_make(rig.memory, i, 5, i * 3 * MIB, 2 * MIB, "some key"), 0);
    while (scrubbed(&rig) < 3 * MIB && mc_clock_ns() - start_ns < 60000000000u)
        turn(&rig, 10, 1);
    uint64_t bytes = scrubbed(&rig), passed_ms = (mc_clock_ns() - start_ns) / 1000000;
    assert_in_range(bytes, 3 * MIB, 2 * MIB + 8 * MIB * passed_ms / 1000);
    rig_stop(&rig);
}

static void test_off(void **state)
{
    (void)state;
    struct rig rig;
    rig_start(&rig, 16 * MIB, 0, 1);
    assert_int_equal(object_make(rig.memory, 3, 5, 0, 3 * MIB, "some key"), 0);
    mc_segment_memory_data(rig.memory)[MIB] ^= 1;
    turn(&rig, 100, 1);
    assert_int_equal(scrubbed(&rig), 0);
    assert_true(mc_scrub_check(rig.scrub, 3, 4)); /* other lives of that slot */
    assert_true(mc_scrub_check(rig.scrub, 3, 6));
    turn(&rig, 50, 1);
    assert_int_equal(rig.rotten, 0);
    assert_true(mc_scrub_check(rig.scrub, 3, 5));
    assert_true(mc_scrub_check(rig.scrub, 3, 5)); /* twice: found once */
    turn(&rig, 5000, 1);
    turn(&rig, 50, UINT32_MAX);
    assert_int_equal(rig.rotten, 1);
    rig_stop(&rig);
}

static void test_checks_full(void **state)
{
    (void)state;
    struct rig rig;
    struct mc_segment_memory *second;
    rig_start(&rig, 16 * MIB, 0, 1);
    assert_int_equal(object_make(rig.memory, 3, 5, 0, 3 * MIB, "some key"), 0);
    assert_int_equal(object_make(rig.memory, 4, 5, 4 * MIB, 100, "some key"), 0);
    assert_false(mc_scrub_check(rig.scrub, mc_segment_memory_slot_count(rig.memory), 5));
    assert_false(mc_scrub_check(rig.scrub, UINT32_MAX, 5));
    mc_segment_memory_data(rig.memory)[4 * MIB] ^= 1;
    rig.is_held = true;
    assert_true(mc_scrub_check(rig.scrub, 4, 5));
    turn(&rig, 5000, 1);
    assert_int_equal(rig.rotten, 1);
    for (uint32_t i = 0; i < MC_SCRUB_CHECKS_MAX; i++)
        assert_true(mc_scrub_check(rig.scrub, i % 2 == 0 ? 3 : 4, 5));
    assert_false(mc_scrub_check(rig.scrub, 3, 5));
    rig.is_held = false;
    uint64_t end_ns = mc_clock_ns() + 20000000000u;
    while (!mc_scrub_check(rig.scrub, 3, 5) && mc_clock_ns() < end_ns)
        turn(&rig, 1, UINT32_MAX); /* until some are done; most wait */
    assert_true(mc_clock_ns() < end_ns);
    assert_in_range(scrubbed(&rig), 1, MC_SCRUB_CHECKS_MAX / 4 * 3 * MIB);
    /* New memory: what waits is forgotten, the ring goes on. */
    assert_int_equal(mc_segment_memory_create(16 * MIB, &second), 0);
    mc_scrub_set_memory(rig.scrub, second);
    mc_segment_memory_release(rig.memory);
    rig.memory = second;
    turn(&rig, 20, 2);
    assert_int_equal(object_make(rig.memory, 3, 5, 0, 100, "some key"), 0);
    mc_segment_memory_data(rig.memory)[5] ^= 1;
    assert_true(mc_scrub_check(rig.scrub, 3, 5));
    turn(&rig, 5000, 2);
    assert_int_equal(rig.rotten, 2);
    mc_scrub_set_memory(rig.scrub, NULL);
    assert_false(mc_scrub_check(rig.scrub, 3, 5));
    turn(&rig, 20, 3);
    rig_stop(&rig);
}

int main(void)
{
    mc_log_set_level(MC_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finds),
        cmocka_unit_test(test_block_table),
        cmocka_unit_test(test_empty_index_stays_small),
        cmocka_unit_test(test_what_is_being_written),
        cmocka_unit_test(test_rate),
        cmocka_unit_test(test_off),
        cmocka_unit_test(test_checks_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
