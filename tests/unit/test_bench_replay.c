/* The replay's parts that have no cluster in them: trace parser, block content, histogram, shared memory, sizes. */
#include "tool/bench.h"
#include "tool/content.h"
#include "tool/histogram.h"
#include "tool/shared.h"
#include "tool/trace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

static uint64_t ids[MC_TRACE_REQUEST_BLOCKS_MAX];
static char why[256];

static int parse(const char *line, struct mc_trace_request *request)
{
    why[0] = '\0';
    return mc_trace_parse_line(line, strlen(line), request, ids, why, sizeof(why));
}

/* --- trace --- */

static void test_line(void **state)
{
    struct mc_trace_request request;
    (void)state;
    assert_int_equal(parse("{\"timestamp\": 27482, \"input_length\": 1030, \"output_length\": 52, \"hash_ids\": [46, "
                           "47, 9007199254740993]}\n",
                           &request),
                     0);
    assert_int_equal(request.timestamp_ms, 27482);
    assert_int_equal(request.input_tokens, 1030);
    assert_int_equal(request.output_tokens, 52);
    assert_int_equal(request.block_count, 3);
    assert_int_equal(ids[0], 46);
    assert_true(ids[2] == UINT64_C(9007199254740993)); /* would be ...992 as a double */
    assert_int_equal(mc_trace_block_tokens(&request, 0), 512);
    assert_int_equal(mc_trace_block_tokens(&request, 1), 512);
    assert_int_equal(mc_trace_block_tokens(&request, 2), 6);
}

static void test_line_tokens_at_edges(void **state)
{
    struct mc_trace_request request;
    (void)state;
    assert_int_equal(parse("{\"timestamp\":0.5,\"input_length\":1024,\"hash_ids\":[1,2]}", &request), 0);
    assert_int_equal(mc_trace_block_tokens(&request, 1), 512);
    assert_int_equal(parse("{\"timestamp\":0,\"input_length\":9999,\"hash_ids\":[1,2]}", &request), 0);
    assert_int_equal(mc_trace_block_tokens(&request, 1), 512); /* more tokens than blocks: full */
    assert_int_equal(parse("{\"timestamp\":0,\"input_length\":0,\"hash_ids\":[1,2]}", &request), 0);
    assert_int_equal(mc_trace_block_tokens(&request, 1), 1); /* fewer: never an empty block */
    assert_int_equal(parse("{\"timestamp\":0,\"input_length\":5,\"hash_ids\":[]}", &request), 0);
    assert_int_equal(request.block_count, 0);
    assert_int_equal(parse(" \t\r\n", &request), 1);
    assert_int_equal(parse("", &request), 1);
}

static void test_bad_lines(void **state)
{
    static const char *const lines[] = {
        "{",
        "[]",
        "7",
        "{}",
        "{\"timestamp\": 1}",
        "{\"timestamp\": 1, \"input_length\": 5}",
        "{\"timestamp\": -1, \"input_length\": 5, \"hash_ids\": []}",
        "{\"timestamp\": 1e300, \"input_length\": 5, \"hash_ids\": []}",
        "{\"timestamp\": \"1\", \"input_length\": 5, \"hash_ids\": []}",
        "{\"timestamp\": 1, \"input_length\": 4294967296, \"hash_ids\": []}",
        "{\"timestamp\": 1, \"input_length\": 5, \"hash_ids\": 3}",
        "{\"timestamp\": 1, \"input_length\": 5, \"hash_ids\": [1.5]}",
        "{\"timestamp\": 1, \"input_length\": 5, \"hash_ids\": [-1]}",
        "{\"timestamp\": 1, \"input_length\": 5, \"hash_ids\": [99999999999999999999]}",
        "{\"timestamp\": 1, \"input_length\": 5, \"hash_ids\": [null]}",
        "{\"timestamp\": 1, \"timestamp\": 2, \"input_length\": 5, \"hash_ids\": []}",
        "{\"timestamp\": 1, \"input_length\": 5, \"hash_ids\": []} trailing",
    };
    struct mc_trace_request request;
    (void)state;
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        if (parse(lines[i], &request) != -1)
            fail_msg("accepted: %s", lines[i]);
        assert_int_not_equal(why[0], '\0');
    }
}

static void test_too_many_blocks(void **state)
{
    struct mc_trace_request request;
    size_t size = 64 + 2 * (MC_TRACE_REQUEST_BLOCKS_MAX + 1);
    char *line = malloc(size);
    (void)state;
    assert_non_null(line);
    for (unsigned more = 0; more < 2; more++) {
        size_t at = (size_t)snprintf(line, size, "{\"timestamp\":0,\"input_length\":1,\"hash_ids\":[1");
        for (unsigned i = 1; i < MC_TRACE_REQUEST_BLOCKS_MAX + more; i++) {
            line[at++] = ',';
            line[at++] = '1';
        }
        snprintf(line + at, size - at, "]}");
        assert_int_equal(parse(line, &request), more == 0 ? 0 : -1);
    }
    free(line);
}

/* A temporary trace file; the name is valid until the next call. */
static const char *write_trace(const char *text, size_t length, bool compressed)
{
    static char path[64];
    snprintf(path, sizeof(path), "/tmp/test_bench_trace.XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    gzFile file = gzdopen(fd, compressed ? "wb" : "wbT");
    assert_non_null(file);
    assert_int_equal(gzwrite(file, text, (unsigned)length), length);
    assert_int_equal(gzclose(file), Z_OK);
    return path;
}

static void test_load(void **state)
{
    static const char text[] = "{\"timestamp\":5,\"input_length\":600,\"hash_ids\":[1,2]}\n\n"
                               "{\"timestamp\":3,\"input_length\":512,\"hash_ids\":[]}\r\n"
                               "{\"timestamp\":9,\"input_length\":512,\"hash_ids\":[1]}";
    struct mc_trace trace;
    (void)state;
    for (int compressed = 0; compressed < 2; compressed++) {
        const char *path = write_trace(text, strlen(text), compressed == 1);
        assert_int_equal(mc_trace_load(path, 0, &trace, why, sizeof(why)), 0);
        assert_int_equal(trace.request_count, 3);
        assert_int_equal(trace.block_count, 3);
        assert_int_equal(trace.requests[1].timestamp_ms, 5); /* never back */
        assert_int_equal(trace.requests[2].first_block, 2);
        assert_int_equal(trace.block_ids[2], 1);
        mc_trace_free(&trace);
        assert_int_equal(mc_trace_load(path, 2, &trace, why, sizeof(why)), 0);
        assert_int_equal(trace.request_count, 2);
        mc_trace_free(&trace);
        unlink(path);
    }
}

static void test_load_refuses(void **state)
{
    static const char good[] = "{\"timestamp\":5,\"input_length\":600,\"hash_ids\":[1,2]}\n";
    struct mc_trace trace;
    char text[256];
    (void)state;
    assert_int_equal(mc_trace_load("/nonexistent/trace", 0, &trace, why, sizeof(why)), -1);
    assert_non_null(strstr(why, "No such file"));
    assert_int_equal(mc_trace_load("/dev/null", 0, &trace, why, sizeof(why)), -1);
    snprintf(text, sizeof(text), "%s%s{\n", good, good);
    const char *path = write_trace(text, strlen(text), false);
    assert_int_equal(mc_trace_load(path, 0, &trace, why, sizeof(why)), -1);
    assert_non_null(strstr(why, "line 3"));
    assert_null(trace.requests);
    unlink(path);
    /* A compressed file that was cut short is not a shorter trace. */
    path = write_trace(good, strlen(good), true);
    assert_int_equal(truncate(path, 30), 0);
    assert_int_equal(mc_trace_load(path, 0, &trace, why, sizeof(why)), -1);
    unlink(path);
    /* A line without end. */
    char *huge = malloc(MC_TRACE_LINE_MAX + 10);
    assert_non_null(huge);
    memset(huge, ' ', MC_TRACE_LINE_MAX + 10);
    path = write_trace(huge, MC_TRACE_LINE_MAX + 10, true);
    assert_int_equal(mc_trace_load(path, 0, &trace, why, sizeof(why)), -1);
    assert_non_null(strstr(why, "longer than"));
    unlink(path);
    free(huge);
}

/* --- content --- */

static void test_content(void **state)
{
    static const size_t lengths[] = {0, 1, 7, 8, 63, 64, 65, 4095, 4096, 4097, 65536, 100001};
    uint8_t *block = malloc(100001 + 64), *other = malloc(100001 + 64);
    (void)state;
    assert_non_null(block);
    assert_non_null(other);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        for (size_t shift = 0; shift < 3; shift++) { /* also unaligned, and not a byte beyond the end */
            memset(block, 0xcc, 100001 + 64);
            mc_content_fill(1, 77, block + shift, lengths[i]);
            assert_int_equal(block[shift + lengths[i]], 0xcc);
            assert_int_equal(mc_content_check(1, 77, block + shift, lengths[i]), 0);
        }
    }
    mc_content_fill(1, 77, block, 100001); /* a shorter block is the beginning of a longer one */
    mc_content_fill(1, 77, other, 5000);
    assert_memory_equal(block, other, 5000);
    free(block);
    free(other);
}

static void test_content_finds_each_byte(void **state)
{
    enum { LENGTH = 4096 + 64 + 9 };
    uint8_t block[LENGTH];
    (void)state;
    mc_content_fill(3, 5, block, LENGTH);
    for (size_t i = 0; i < LENGTH; i++) {
        block[i] ^= (uint8_t)(1u << (i % 8));
        assert_int_equal(mc_content_check(3, 5, block, LENGTH), 1);
        block[i] ^= (uint8_t)(1u << (i % 8));
    }
    block[0] ^= 255;
    block[4095] ^= 1;
    block[LENGTH - 1] ^= 1;
    assert_int_equal(mc_content_check(3, 5, block, LENGTH), 3);
}

/* Of 64 KiB of foreign bytes nearly none may pass: 1 in 256 by chance. */
static void expect_foreign(uint64_t seed, uint64_t id, const uint8_t *bytes)
{
    size_t wrong = mc_content_check(seed, id, bytes, 65536);
    assert_true(wrong > 65536 * 98 / 100);
}

static void test_content_is_not_alike(void **state)
{
    uint8_t *block = calloc(1, 65536 * 2);
    (void)state;
    assert_non_null(block);
    expect_foreign(1, 1, block); /* zeros */
    mc_content_fill(1, 1000, block, 65536 * 2);
    for (uint64_t id = 990; id < 1010; id++)
        if (id != 1000)
            expect_foreign(1, id, block);
    expect_foreign(2, 1000, block);
    for (size_t shift = 8; shift <= 65536; shift *= 2) /* the right block, the wrong place */
        expect_foreign(1, 1000, block + shift);
    free(block);
}

/* --- histogram --- */

static void test_histogram(void **state)
{
    struct mc_histogram *all = calloc(3, sizeof(*all));
    (void)state;
    assert_non_null(all);
    assert_int_equal(mc_histogram_quantile(&all[0], 0.5), 0);
    for (uint64_t value = 1; value <= 100000; value++)
        mc_histogram_add(&all[value % 2], value);
    mc_histogram_merge(&all[2], &all[0]);
    mc_histogram_merge(&all[2], &all[1]);
    assert_int_equal(all[2].count, 100000);
    assert_true(all[2].sum == UINT64_C(100000) * 100001 / 2);
    assert_int_equal(all[2].max, 100000);
    static const double parts[] = {0.001, 0.01, 0.5, 0.9, 0.99, 0.999, 1.0};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        double exact = parts[i] * 100000, got = (double)mc_histogram_quantile(&all[2], parts[i]);
        if (got < exact || got > exact * 1.016 + 1)
            fail_msg("quantile %g is %g", parts[i], got);
    }
    assert_int_equal(mc_histogram_quantile(&all[2], 0), 1);
    free(all);
}

static void test_histogram_extremes(void **state)
{
    struct mc_histogram *one = calloc(1, sizeof(*one));
    (void)state;
    assert_non_null(one);
    mc_histogram_add(one, 0);
    assert_int_equal(mc_histogram_quantile(one, 1), 0);
    for (unsigned bit = 0; bit < 64; bit++) { /* every power of two and its neighbours have a bucket */
        mc_histogram_add(one, UINT64_C(1) << bit);
        mc_histogram_add(one, (UINT64_C(1) << bit) - 1);
    }
    mc_histogram_add(one, UINT64_MAX);
    assert_int_equal(one->count, 130);
    assert_true(one->max == (UINT64_C(1) << MC_HISTOGRAM_VALUE_BITS) - 1);
    assert_true(mc_histogram_quantile(one, 1) == one->max);
    free(one);
}

/* --- sizes, shared memory --- */

static void test_sizes(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"0", 0},
                {"4096", 4096},
                {"64K", 65536},
                {"64KiB", 65536},
                {"1.5gb", UINT64_C(3) << 29},
                {"3 MiB", 3 << 20},
                {"1T", UINT64_C(1) << 40},
                {"7b", 7},
                {".5k", 512}};
    static const char *const bad[] = {"", "K", "-1", "1x", "1kk", "0x10", "nan", "inf", "1e30", " 1", "5 5"};
    uint64_t bytes;
    char text[32];
    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_true(mc_size_parse(good[i].text, &bytes));
        assert_true(bytes == good[i].bytes);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (mc_size_parse(bad[i], &bytes))
            fail_msg("\"%s\" is not a size", bad[i]);
    assert_false(mc_size_parse(NULL, &bytes));
    assert_string_equal(mc_size_format(131072, text, sizeof(text)), "128 KiB");
    assert_string_equal(mc_size_format(UINT64_C(3) << 29, text, sizeof(text)), "1.50 GiB");
    assert_string_equal(mc_time_format(4200, text, sizeof(text)), "4.20 us");
    assert_string_equal(mc_time_format(13000000, text, sizeof(text)), "13.0 ms");
    assert_int_equal(mc_replay_bytes(131072, 512), 131072);
    assert_int_equal(mc_replay_bytes(131072, 1), 256);
    assert_int_equal(mc_replay_bytes(100, 1), 1); /* no empty object */
}

static void test_shared(void **state)
{
    struct mc_trace_request requests[2] = {{.block_count = 3}, {.first_block = 3, .block_count = 2}};
    uint64_t blocks[5] = {9, 8, 7, 6, 5};
    struct mc_trace trace = {.requests = requests, .block_ids = blocks, .request_count = 2, .block_count = 5};
    struct mc_replay_view parent = {0}, child = {0};
    struct mc_replay_counters sum;
    struct mc_histogram *calls = calloc(MC_REPLAY_CALLS, sizeof(*calls));
    (void)state;
    assert_non_null(calls);
    int fd = mc_replay_share(&trace, 4, &parent);
    assert_true(fd >= 0);
    assert_int_equal(mc_replay_attach(fd, &child), -1); /* the counts do not match its size */
    parent.shared->worker_count = 2;
    parent.shared->thread_count = 2;
    assert_int_equal(mc_replay_attach(fd, &child), 0);
    assert_int_equal(child.trace.request_count, 2);
    assert_memory_equal(child.trace.block_ids, blocks, sizeof(blocks));
    assert_memory_equal(child.trace.requests, requests, sizeof(requests));
    for (unsigned i = 0; i < 4; i++) {
        atomic_store(&child.stats[i].requests, i + 1);
        mc_histogram_add(&child.stats[i].calls[MC_REPLAY_LOOKUP], 100);
    }
    mc_replay_sum(&parent, &sum, calls);
    assert_int_equal(sum.requests, 10);
    assert_int_equal(calls[MC_REPLAY_LOOKUP].count, 4);
    mc_replay_detach(&child);
    mc_replay_detach(&parent);
    close(fd);
    free(calls);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_line),
        cmocka_unit_test(test_line_tokens_at_edges),
        cmocka_unit_test(test_bad_lines),
        cmocka_unit_test(test_too_many_blocks),
        cmocka_unit_test(test_load),
        cmocka_unit_test(test_load_refuses),
        cmocka_unit_test(test_content),
        cmocka_unit_test(test_content_finds_each_byte),
        cmocka_unit_test(test_content_is_not_alike),
        cmocka_unit_test(test_histogram),
        cmocka_unit_test(test_histogram_extremes),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_shared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
