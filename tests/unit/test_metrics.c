/* master/metrics: sizes, the summary line with true figures, and an exposition that a strict reader accepts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/size.h"
#include "store/master/metrics.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void sizes(void **state)
{
    (void)state;
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {
        {0, "0 B"},
        {1023, "1023 B"},
        {1024, "1.00 KB"},
        {1536, "1.50 KB"},
        {1048575, "1.00 MB"},
        {1048576, "1.00 MB"},
        {32212254720u, "30.00 GB"},
        {1ull << 40, "1.00 TB"},
        {1ull << 60, "1048576.00 TB"},
        {UINT64_MAX, "16777216.00 TB"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[32];
        mc_size_text(text, sizeof(text), cases[i].bytes);
        assert_string_equal(text, cases[i].text);
    }
}

static void the_summary_line(void **state)
{
    (void)state;
    struct mc_core_statistics statistics = {.capacity = 32212254720u};
    struct mc_metrics_window window = {0};
    struct mc_buffer line = {0};
    mc_metrics_window_move(&window, &statistics, 1000);
    mc_metrics_summary(&line, &statistics, &window);
    mc_buffer_put_u8(&line, 0);
    assert_string_equal(
        (const char *)line.data,
        "Storage: 0 B / 30.00 GB (0.0%) | Keys: 0 (soft-pinned: 0) | Clients: 0 | Requests (Success/Total per sec): "
        "PutStart=0.00/0.00, Get=0.00/0.00, Exist=0.00/0.00, Del=0.00/0.00 | Eviction: Success/Attempts=0/0, keys=0, "
        "size=0 B");
    statistics.used = 28948123484u; /* 26.96 GB: the original printed 0.0 % for it */
    statistics.objects = 219474;
    statistics.put_start_items = 100;
    statistics.put_start_failures = 10;
    statistics.get_items = 50;
    statistics.get_misses = 50;
    statistics.exist_items = 300;
    statistics.exist_hits = 60;
    statistics.lookups = 400;
    statistics.lookup_hits = 103;
    statistics.eviction_attempts = 4;
    statistics.eviction_successes = 3;
    statistics.evicted_objects = 70;
    mc_metrics_window_move(&window, &statistics, 11000);
    line.length = 0;
    mc_metrics_summary(&line, &statistics, &window);
    mc_buffer_put_u8(&line, 0);
    assert_non_null(strstr((const char *)line.data, "Storage: 26.96 GB / 30.00 GB (89.9%) | Keys: 219474 "));
    assert_non_null(strstr((const char *)line.data, " | Clients: 0 | Hit ratio: 25.8% | Requests "));
    assert_non_null(strstr((const char *)line.data, "PutStart=9.00/10.00, Get=0.00/5.00, Exist=6.00/30.00, "));
    assert_non_null(strstr((const char *)line.data, "Eviction: Success/Attempts=3/4, keys=70, size=0 B"));
    mc_buffer_free(&line);
}

/* The original's words, and what ails behind them. */
static void the_summary_of_disks(void **state)
{
    (void)state;
    static const struct {
        struct mc_core_statistics statistics;
        const char *text;
    } cases[] = {
        {{.disks = 2, .disk_capacity = 2ull << 30, .disk_used = 1ull << 30},
         "Storage: 0 B / 0 B (0.0%) | SSD Storage: 1.00 GB / 2.00 GB (50.0%) | Keys: "},
        {{.disks = 4, .disk_capacity = 4096, .disks_slow = 1, .disks_read_only = 2, .disks_absent = 1, .disks_off = 3},
         " | SSD Storage: 0 B / 4.00 KB (0.0%, 1 slow, 2 read-only, 1 absent, 3 off) | Keys: "},
        {{.disks_off = 1}, " | SSD Storage: 0 B / 0 B (1 off) | Keys: "},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mc_metrics_window window = {0};
        struct mc_buffer line = {0};
        mc_metrics_summary(&line, &cases[i].statistics, &window);
        mc_buffer_put_u8(&line, 0);
        assert_non_null(strstr((const char *)line.data, cases[i].text));
        mc_buffer_free(&line);
    }
}

/* Walks the text as a scraper would: each sample belongs to the TYPE before it, no name and labels twice. */
static size_t check_exposition(char *text)
{
    char *seen[1024], type[128] = "";
    size_t samples = 0;
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        if (strncmp(line, "# HELP ", 7) == 0)
            continue;
        if (strncmp(line, "# TYPE ", 7) == 0) {
            snprintf(type, sizeof(type), "%.*s", (int)strcspn(line + 7, " "), line + 7);
            continue;
        }
        char *value = strrchr(line, ' ');
        assert_non_null(value);
        *value++ = 0;
        assert_true(isdigit((unsigned char)value[0]) && strspn(value, "0123456789.") == strlen(value));
        assert_true(strncmp(line, type, strlen(type)) == 0);
        for (size_t i = 0; i < samples; i++)
            assert_string_not_equal(seen[i], line);
        assert_true(samples < 1024);
        seen[samples++] = line;
    }
    return samples;
}

static void the_exposition(void **state)
{
    (void)state;
    struct mc_core_statistics statistics = {
        .used = 5,
        .objects = 7,
        .put_start_items = 9,
        .value_size_histogram = {1, 2, 0, 0, 0, 0, 0, 4, 12345},
        .evictions = {[MC_CORE_EVICTION_WATERMARK] = 70, [MC_CORE_EVICTION_QUOTA] = 6},
        .put_ms = {5, 0, 1, [MC_CORE_PUT_BOUNDS] = 1},
        .put_ms_sum = 61004};
    const struct mc_core_accuser accusers[] = {{"w\"1", 3}, {"w2", 4}, {"w\"1", 9}};
    struct mc_metrics_extra extra = {.resident_bytes = 1000,
                                     .uptime_seconds = 3,
                                     .epoch = 8,
                                     .longest_turn_ns = 20500000,
                                     .accusers = accusers,
                                     .accuser_count = 3,
                                     .tls_handshakes = 6,
                                     .tls_resumed = 2,
                                     .standbys = 4,
                                     .standbys_are_known = true,
                                     .spans_sent = 12,
                                     .spans_dropped = 3};
    struct mc_core_segment segments[3] = {{.name = "b:1", .used = 3, .capacity = 10},
                                          {.name = "a\"\\\n", .used = 1, .capacity = 20},
                                          {.name = "b:1", .used = 4, .capacity = 30}};
    struct mc_buffer text = {0};
    mc_metrics_text(&text, &statistics, segments, 3, &extra);
    mc_buffer_put_u8(&text, 0);
    const char *whole = (const char *)text.data;
    static const char *const wanted[] = {
        "# TYPE master_allocated_bytes gauge\nmaster_allocated_bytes 5\n",
        "\nmaster_key_count 7\n",
        "# TYPE mooncake_tls_handshakes_total counter\nmooncake_tls_handshakes_total 6\n",
        "# TYPE mooncake_tls_resumed_total counter\nmooncake_tls_resumed_total 2\n",
        "# TYPE mooncake_trace_spans_sent_total counter\nmooncake_trace_spans_sent_total 12\n",
        "# TYPE mooncake_trace_spans_dropped_total counter\nmooncake_trace_spans_dropped_total 3\n",
        "# TYPE master_put_start_requests_total counter\nmaster_put_start_requests_total 9\n",
        "\nmaster_value_size_bytes_bucket{le=\"4096\"} 1\nmaster_value_size_bytes_bucket{le=\"65536\"} 3\n",
        "\nmaster_value_size_bytes_bucket{le=\"67108864\"} 3\nmaster_value_size_bytes_bucket{le=\"+Inf\"} 7\n",
        "\nmaster_value_size_bytes_sum 12345\nmaster_value_size_bytes_count 7\n",
        "\nsegment_allocated_bytes{segment=\"a\\\"\\\\\\n\"} 1\nsegment_allocated_bytes{segment=\"b:1\"} 7\n",
        "\nsegment_total_capacity_bytes{segment=\"b:1\"} 40\n",
        "\nmooncake_resident_bytes 1000\n",
        "\nmooncake_evictions_total{reason=\"watermark\"} 70\n",
        "\nmooncake_evictions_total{reason=\"put\"} 0\n",
        "\nmooncake_evictions_total{reason=\"quota\"} 6\n",
        "# TYPE mooncake_put_seconds histogram\nmooncake_put_seconds_bucket{le=\"0.001\"} 5\n",
        "\nmooncake_put_seconds_bucket{le=\"0.005\"} 6\nmooncake_put_seconds_bucket{le=\"0.01\"} 6\n",
        "\nmooncake_put_seconds_bucket{le=\"30\"} 6\nmooncake_put_seconds_bucket{le=\"+Inf\"} 7\n",
        "\nmooncake_put_seconds_sum 61.004\nmooncake_put_seconds_count 7\n",
        "\nmooncake_standbys 4\n",
        "\nmooncake_loop_longest_turn_seconds 0.020500\n",
        "\nmooncake_accusing_host{host=\"w\\\"1\"} 3\n",
        "\nmooncake_accusing_host{host=\"w2\"} 4\n",
        "\nmooncake_build_info{version=\"" MC_VERSION "\"} 1\n",
        "\nmaster_fetch_tasks_requests_total 0\n",
    };
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        assert_non_null(strstr(whole, wanted[i]));
    assert_true(check_exposition((char *)text.data) > 150);
    text.length = 0;
    extra.standbys_are_known = false;
    mc_metrics_text(&text, &statistics, NULL, 0, &extra);
    mc_buffer_put_u8(&text, 0);
    assert_null(strstr((const char *)text.data, "\nmooncake_standbys ")); /* no sample */
    assert_true(check_exposition((char *)text.data) > 150);
    mc_buffer_free(&text);
}

static void the_misses(void **state)
{
    (void)state;
    struct mc_core_statistics statistics = {.misses = {[MC_GONE_EVICTED] = 7, [MC_GONE_NEVER] = 3}};
    struct mc_core_curve curve = {
        .found = -1, .span_s = {1, 5}, .spans = {4, 2}, .span_sum_s = 11, .ages = {.counts = {0, 8}, .sum_s = 24}};
    struct mc_buffer text = {0};
    for (unsigned i = 0; i < MC_CORE_CURVE_POINTS; i++)
        curve.points[i].ratio = i < 8 ? -1 : 0.25;
    for (unsigned i = 0; i < MC_CORE_SPANS; i++)
        curve.span_s[i] = 1 + i;
    mc_metrics_misses(&text, &statistics, &curve);
    mc_buffer_put_u8(&text, 0);
    const char *whole = (const char *)text.data;
    assert_non_null(strstr(whole, "\nmooncake_misses_total{reason=\"evicted\"} 7\n"));
    assert_non_null(strstr(whole, "\nmooncake_misses_total{reason=\"never_stored\"} 3\n"));
    assert_null(strstr(whole, "\nmooncake_hit_ratio ")); /* not known yet: no sample */
    assert_null(strstr(whole, "{memory=\"1\"}"));
    assert_non_null(strstr(whole, "\nmooncake_expected_hit_ratio{memory=\"2\"} 0.2500\n"));
    assert_non_null(strstr(whole, "\nmooncake_reuse_seconds_bucket{le=\"2\"} 6\n"));
    assert_non_null(strstr(whole, "\nmooncake_eviction_age_seconds_bucket{le=\"2\"} 8\n"));
    assert_non_null(strstr(whole, "\nmooncake_eviction_age_seconds_sum 24\n"));
    assert_non_null(strstr(whole, "\nmooncake_reuse_seconds_sum 11\nmooncake_reuse_seconds_count 6\n"));
    assert_true(check_exposition((char *)text.data) > MC_GONE_COUNT + 3);
    mc_buffer_free(&text);
}

/* Whatever the core counts can be seen from outside. */
static void every_counter_is_exported(void **state)
{
    (void)state;
    struct mc_core_statistics statistics = {0};
    struct mc_metrics_extra extra = {0};
    struct mc_buffer text = {0};
    uint64_t next = 7000001;
#define SET(name) statistics.name = next++;
    MC_CORE_COUNTERS(SET)
#undef SET
    uint64_t *const gauges[] = {&statistics.objects,    &statistics.soft_pinned,    &statistics.members,
                                &statistics.segments,   &statistics.connections,    &statistics.recovering,
                                &statistics.tombstones, &statistics.capacity,       &statistics.populated,
                                &statistics.used,       &statistics.clearing_bytes, &statistics.quarantine_bytes};
    for (size_t i = 0; i < sizeof(gauges) / sizeof(gauges[0]); i++)
        *gauges[i] = next++;
    mc_metrics_text(&text, &statistics, NULL, 0, &extra);
    mc_buffer_put_u8(&text, 0);
    for (uint64_t value = 7000001; value < next; value++) {
        char wanted[32];
        snprintf(wanted, sizeof(wanted), " %llu\n", (unsigned long long)value);
        assert_non_null(strstr((const char *)text.data, wanted));
    }
    mc_buffer_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sizes),
                                       cmocka_unit_test(the_summary_line),
                                       cmocka_unit_test(the_summary_of_disks),
                                       cmocka_unit_test(the_exposition),
                                       cmocka_unit_test(the_misses),
                                       cmocka_unit_test(every_counter_is_exported)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
