/* The engine's counters: whose they are, where they go when there are too many peers, and what their text says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "transfer/state/engine.h"
#include "transfer/state/metrics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void test_sums(void **state)
{
    (void)state;
    struct mc_metrics metrics = {0};
    struct mc_tally sum;
    struct mc_tally *a = mc_metrics_hold(&metrics, "a"), *b = mc_metrics_hold(&metrics, "b");
    assert_ptr_not_equal(a, b);
    mc_tally_add(a, MC_TRANSFER_PATH_TCP, MC_TRANSFER_WRITE, 100, 2, 1);
    mc_tally_add(b, MC_TRANSFER_PATH_TCP, MC_TRANSFER_WRITE, 11, 1, 1);
    mc_tally_add(b, MC_TRANSFER_PATH_HOST, MC_TRANSFER_READ, UINT32_MAX, 1, 1);
    mc_tally_fail(b, MC_METRICS_PATH_NONE, MC_TRANSFER_ERR_SOCKET);
    mc_tally_fail(b, MC_TRANSFER_PATH_TCP, -12345); /* none of ours */
    mc_metrics_sum(&metrics, &sum);
    assert_true(sum.bytes[MC_TRANSFER_PATH_TCP][MC_TRANSFER_WRITE] == 111);
    assert_true(sum.bytes[MC_TRANSFER_PATH_TCP][MC_TRANSFER_READ] == 0);
    assert_true(sum.items[MC_TRANSFER_PATH_TCP][MC_TRANSFER_WRITE] == 3);
    assert_true(sum.bytes[MC_TRANSFER_PATH_HOST][MC_TRANSFER_READ] == UINT32_MAX);
    assert_true(sum.errors[MC_METRICS_PATH_NONE][MC_METRICS_ERROR_SOCKET] == 1);
    assert_true(sum.errors[MC_TRANSFER_PATH_TCP][MC_METRICS_ERROR_INVALID_ARGUMENT] == 1);
    mc_metrics_free(&metrics);
}

/* The bounds of buckets: a value that is one belongs below it. */
static void test_latency(void **state)
{
    (void)state;
    static const struct mc_tally nothing;
    struct mc_metrics metrics = {0};
    struct mc_tally *tally = mc_metrics_hold(&metrics, "a");
    assert_true(fabs(mc_metrics_quantile(tally, &nothing, 0.5)) < 1e-12);
    static const struct {
        uint64_t ns;
        unsigned bucket;
    } cases[] = {{0, 0},
                 {1, 0},
                 {1024, 0},
                 {1025, 1},
                 {2048, 1},
                 {2049, 2},
                 {1024ull << 24, 24},
                 {(1024ull << 24) + 1, MC_METRICS_BUCKETS},
                 {UINT64_MAX, MC_METRICS_BUCKETS}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t before = tally->batches[MC_TRANSFER_PATH_TCP][cases[i].bucket];
        mc_tally_add(tally, MC_TRANSFER_PATH_TCP, MC_TRANSFER_READ, 0, 0, cases[i].ns);
        assert_true(tally->batches[MC_TRANSFER_PATH_TCP][cases[i].bucket] == before + 1);
    }
    /* 3, 2, 1, 1 and 2 of nine: half of them are at most 2.048 us. */
    assert_true(fabs(mc_metrics_quantile(tally, &nothing, 0.5) - 2.048e-6) < 1e-12);
    assert_true(fabs(mc_metrics_quantile(tally, &nothing, 0.3) - 1.024e-6) < 1e-12);
    assert_true(fabs(mc_metrics_quantile(tally, tally, 0.5)) < 1e-12);
    mc_metrics_free(&metrics);
}

static void test_a_peer_returns(void **state)
{
    (void)state;
    struct mc_metrics metrics = {0};
    struct mc_tally *first = mc_metrics_hold(&metrics, "a");
    mc_tally_add(first, MC_TRANSFER_PATH_TCP, MC_TRANSFER_READ, 5, 1, 1);
    mc_metrics_release(&metrics, first);
    assert_ptr_equal(mc_metrics_hold(&metrics, "a"), first);
    assert_true(first->bytes[MC_TRANSFER_PATH_TCP][MC_TRANSFER_READ] == 5);
    assert_int_equal(metrics.count, 1);
    mc_metrics_free(&metrics);
}

/* Three times as many peers as there is room for: those that are held keep theirs, sums do not fall. */
static void test_too_many_peers(void **state)
{
    (void)state;
    struct mc_metrics metrics = {0};
    struct mc_tally *held[MC_METRICS_PEERS_MAX], sum;
    char name[32];
    for (unsigned i = 0; i < MC_METRICS_PEERS_MAX; i++) {
        snprintf(name, sizeof(name), "peer %u", i);
        held[i] = mc_metrics_hold(&metrics, name);
        mc_tally_add(held[i], MC_TRANSFER_PATH_TCP, MC_TRANSFER_READ, 1, 1, 1);
    }
    struct mc_tally *late = mc_metrics_hold(&metrics, "late");
    assert_ptr_equal(late, &metrics.other);
    mc_tally_add(late, MC_TRANSFER_PATH_TCP, MC_TRANSFER_READ, 1000, 1, 1);
    mc_metrics_release(&metrics, late);
    for (unsigned i = 0; i < MC_METRICS_PEERS_MAX; i += 2)
        mc_metrics_release(&metrics, held[i]);
    for (unsigned i = 0; i < MC_METRICS_PEERS_MAX; i++) {
        snprintf(name, sizeof(name), "new %u", i);
        struct mc_tally *tally = mc_metrics_hold(&metrics, name);
        assert_true((tally == &metrics.other) == (i >= MC_METRICS_PEERS_MAX / 2));
    }
    for (unsigned i = 1; i < MC_METRICS_PEERS_MAX; i += 2) {
        snprintf(name, sizeof(name), "peer %u", i);
        assert_string_equal(held[i]->peer, name);
    }
    assert_int_equal(metrics.count, MC_METRICS_PEERS_MAX);
    mc_metrics_sum(&metrics, &sum);
    assert_true(sum.bytes[MC_TRANSFER_PATH_TCP][MC_TRANSFER_READ] == 1000 + MC_METRICS_PEERS_MAX);
    assert_true(sum.batches[MC_TRANSFER_PATH_TCP][0] == 1 + MC_METRICS_PEERS_MAX);
    assert_true(sum.batches_ns[MC_TRANSFER_PATH_TCP] == 1 + MC_METRICS_PEERS_MAX);
    mc_metrics_free(&metrics);
}

/* What a user may read must be Prometheus text whatever peers are called. */
static void test_text(void **state)
{
    (void)state;
    struct mc_transfer_config config = {"127.0.0.1", "P2PHANDSHAKE", "tcp", ""};
    struct mc_transfer_engine *engine = NULL;
    struct mc_transfer_item item = {(void *)(uintptr_t)4096, 1, 1};
    assert_int_equal(mc_transfer_open(&config, &engine), 0);
    assert_true(mc_transfer_run(engine, "a\"b\\c\nd", MC_TRANSFER_READ, &item, 1, NULL) < 0);
    char *text = mc_transfer_metrics_text(engine);
    assert_non_null(text);
    assert_non_null(strstr(text, ",peer=\"a\\\"b\\\\c\\nd\",path=\"none\",error="));
    assert_null(strstr(text, "mooncake_transfer_bytes_total{"));
    assert_non_null(strstr(text, "# TYPE mooncake_transfer_seconds histogram\n"));
    free(text);
    text = mc_transfer_metrics_text(NULL);
    assert_non_null(strstr(text, mc_transfer_name(engine)));
    free(text);
    mc_transfer_close(engine);
    text = mc_transfer_metrics_text(NULL);
    assert_null(strstr(text, "engine="));
    free(text);
}

/* A batch whose deadline has passed before anything was tried, at once and in the background: counted once each. */
static void test_late(void **state)
{
    (void)state;
    struct mc_transfer_config config = {"127.0.0.1", "P2PHANDSHAKE", "tcp", ""};
    struct mc_transfer_engine *near = NULL, *far = NULL;
    struct mc_transfer_counters counters;
    static char memory[4096], other[1];
    struct mc_transfer_range range = {(uintptr_t)memory, sizeof(memory)};
    struct mc_transfer_item item = {other, (uintptr_t)memory, 1};
    assert_int_equal(mc_transfer_open(&config, &near), 0);
    assert_int_equal(mc_transfer_open(&config, &far), 0);
    assert_int_equal(mc_transfer_register(far, &range, 1), 0);
    const char *target = mc_transfer_name(far);
    assert_int_equal(mc_transfer_run(near, target, MC_TRANSFER_READ, &item, 1, NULL), 0);
    uint64_t usual_ns = near->settings.timeout_ns;
    near->settings.timeout_ns = 0; /* and 1 ns for the byte */
    assert_int_equal(mc_transfer_run(near, target, MC_TRANSFER_READ, &item, 1, NULL), MC_TRANSFER_ERR_TIMEOUT);
    int64_t id = mc_transfer_submit(near, target, MC_TRANSFER_READ, &item, 1, NULL);
    assert_true(id > 0);
    assert_int_equal(mc_transfer_wait(near, &id, 1), MC_TRANSFER_ERR_TIMEOUT);
    near->settings.timeout_ns = usual_ns;
    mc_transfer_counters(near, &counters);
    assert_true(counters.timed_out == 2 && counters.failed == 0 && counters.items[MC_TRANSFER_PATH_LOCAL] == 1);
    char *text = mc_transfer_metrics_text(near);
    assert_non_null(strstr(text, "path=\"none\",error=\"TIMEOUT\"} 2\n"));
    free(text);
    mc_transfer_close(near);
    mc_transfer_close(far);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),           cmocka_unit_test(test_latency), cmocka_unit_test(test_a_peer_returns),
        cmocka_unit_test(test_too_many_peers), cmocka_unit_test(test_text),    cmocka_unit_test(test_late),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
