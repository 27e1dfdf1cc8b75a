/* mooncake_bench policy: its references by hand, its traces by their measures, its pool beside a list. */
#include "policy/pool.h"
#include "policy/reference.h"
#include "tool/synthetic.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

static int64_t belady(const char *text, uint32_t capacity)
{
    uint32_t blocks[64], requests[64];
    struct mc_references references = {.blocks = blocks, .requests = requests, .block_count = 26};
    for (; text[references.count] != 0; references.count++) {
        blocks[references.count] = (uint32_t)(text[references.count] - 'a');
        requests[references.count] = references.count;
    }
    return mc_reference_belady(&references, capacity);
}

static void test_belady(void **state)
{
    (void)state;
    assert_int_equal(belady("", 1), 0);
    assert_int_equal(belady("aaaa", 1), 3);
    assert_int_equal(belady("abababab", 1), 3); /* it stays with a, which comes first again */
    assert_int_equal(belady("abcabcabc", 2), 4);
    assert_int_equal(belady("abcabcabc", 3), 6);
    assert_int_equal(belady("axaybzb", 1), 2); /* what comes once is not taken in */
    assert_int_equal(belady("abcdeabcde", 100), 5);
}

static void test_original(void **state)
{
    uint32_t blocks[300], requests[300];
    struct mc_references references = {.blocks = blocks, .requests = requests, .count = 300, .block_count = 100};
    (void)state;
    for (uint32_t i = 0; i < 300; i++) {
        blocks[i] = i % 100;
        requests[i] = i;
    }
    assert_int_equal(mc_reference_original(&references, 120), 200);
    assert_int_equal(mc_reference_original(&references, 90), 0); /* a loop that does not fit */
}

static void test_synthetic(void **state)
{
    static const char *const kinds[] = {"conversation", "documents", "scans", "loop", "shift"};
    struct mc_trace trace, again;
    (void)state;
    for (unsigned i = 0; i < 5; i++) {
        assert_true(mc_synthetic_make(kinds[i], 1, &trace));
        assert_true(trace.request_count > 10000 && trace.request_count < 20000);
        assert_true(trace.block_count > 250000 && trace.block_count < 350000);
        for (uint64_t r = 1; r < trace.request_count; r++)
            assert_true(trace.requests[r].timestamp_ms >= trace.requests[r - 1].timestamp_ms);
        assert_true(mc_synthetic_make(kinds[i], 1, &again));
        assert_int_equal(again.block_count, trace.block_count);
        assert_memory_equal(again.block_ids, trace.block_ids, trace.block_count * sizeof(uint64_t));
        mc_trace_free(&again);
        assert_true(mc_synthetic_make(kinds[i], 2, &again));
        bool same = again.block_count == trace.block_count &&
                    memcmp(again.block_ids, trace.block_ids, trace.block_count * sizeof(uint64_t)) == 0;
        assert_true(same == (strcmp(kinds[i], "loop") == 0));
        mc_trace_free(&again);
        mc_trace_free(&trace);
    }
    assert_false(mc_synthetic_make("nothing", 1, &trace));
}

/* What fits is found; with lru, of a loop that does not fit, nothing is. */
static void test_pool(void **state)
{
    struct mc_pool_settings settings = {
        .policy = "lru", .blocks = 1000, .segments = 3, .block_bytes = 1 << 20, .high_watermark = 1};
    (void)state;
    for (unsigned blocks = 900; blocks <= 1100; blocks += 200) {
        struct mc_pool *pool = mc_pool_open(&settings);
        int64_t hits = 0;
        assert_non_null(pool);
        for (uint64_t i = 0; i < 3 * blocks; i += 10) {
            uint64_t ids[10];
            for (unsigned k = 0; k < 10; k++)
                ids[k] = (i + k) % blocks;
            int64_t more = mc_pool_request(pool, ids, 10);
            assert_true(more >= 0);
            hits += more;
        }
        if (blocks == 900)
            assert_int_equal(hits, 1800);
        else
            assert_true(hits < 200); /* segments do not get quite the same */
        mc_pool_close(pool);
    }
    settings.policy = "nothing";
    assert_null(mc_pool_open(&settings));
}

/* Behind too small a memory a disk that is large enough has all of a loop that memory has not; no block is written
 * twice. A smaller one has nothing of it. */
static void test_pool_with_disk(void **state)
{
    (void)state;
    for (unsigned way = 0; way < 3; way++) {
        struct mc_pool_settings settings = {.policy = "lru",
                                            .blocks = 500,
                                            .segments = 2,
                                            .block_bytes = 1 << 20,
                                            .high_watermark = 1,
                                            .disk_blocks = way == 2 ? 300 : 2000,
                                            .disk_on_evict = way > 0};
        struct mc_pool *pool = mc_pool_open(&settings);
        int64_t hits = 0;
        assert_non_null(pool);
        for (uint64_t i = 0; i < 3000; i += 10) {
            uint64_t ids[10];
            for (unsigned k = 0; k < 10; k++)
                ids[k] = (i + k) % 1000;
            int64_t more = mc_pool_request(pool, ids, 10);
            assert_true(more >= 0);
            hits += more;
        }
        struct mc_pool_counts counts = mc_pool_counts(pool);
        if (way < 2) {
            assert_int_equal(hits, 2000);
            assert_true(counts.disk_hits > 1000 && counts.disk_hits <= 2000);
            assert_true(way == 0 ? counts.disk_writes == 1000 : counts.disk_writes < 1000);
            assert_int_equal(counts.late, 0);
        } else {
            assert_true(hits < 200);
            assert_true(counts.disk_writes > 2000);
        }
        mc_pool_close(pool);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_belady), cmocka_unit_test(test_original),       cmocka_unit_test(test_synthetic),
        cmocka_unit_test(test_pool),   cmocka_unit_test(test_pool_with_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
