/* service/disks: what a store node exports of its disks is what a scraper accepts, and adds up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "store/service/disks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of the sample that begins so, up to its value; -1: there is none, or more than one. */
static double sample(const struct mc_buffer *text, const char *wanted)
{
    char line[256];
    (void)snprintf(line, sizeof(line), "\n%s ", wanted);
    const char *found = strstr((const char *)text->data, line);
    if (found == NULL || strstr(found + 1, line) != NULL)
        return -1;
    return strtod(found + strlen(line), NULL);
}

static void show(struct mc_buffer *text, const struct mc_store_disk *disks, size_t count)
{
    mc_disks_metrics(text, disks, count);
    mc_buffer_put_u8(text, 0);
}

/* Of a node without a disk the original's names are there all the same, for its dashboards. */
static void test_none(void **state)
{
    (void)state;
    struct mc_buffer text = {0};
    show(&text, NULL, 0);
    assert_true(sample(&text, "mooncake_ssd_read_bytes_total") == 0);
    assert_true(sample(&text, "mooncake_ssd_total_latency_us_count") == 0);
    assert_true(sample(&text, "mooncake_ssd_write_latency_summary_us{quantile=\"0.99\"}") == 0);
    assert_null(strstr((const char *)text.data, "disk=\""));
    text.length = 0;
    mc_disks_summary(&text, NULL, 0);
    assert_int_equal(text.length, 0);
    mc_buffer_free(&text);
}

static void test_two(void **state)
{
    (void)state;
    static struct mc_store_disk disks[2] = {{.path = "/a/\"b\\c", .health = MC_STORE_DISK_IS_SLOW},
                                            {.path = "/d", .health = MC_STORE_DISK_OFF}};
    struct mc_buffer text = {0};
    for (unsigned i = 0; i < 2; i++) {
        disks[i].bytes_stored = 100;
        disks[i].bytes_written = i == 0 ? 250 : 150;
        disks[i].stored = 10;
        disks[i].served = 3;
        disks[i].bytes_served = 30;
        disks[i].store_latency.counts[2] = 10; /* over 100 us, up to 200 */
        disks[i].store_latency.sum_us = 1500;
        disks[i].read_latency.counts[MC_STORE_DISK_BOUND_COUNT] = 3;
        disks[i].read_latency.sum_us = 120000000;
    }
    disks[0].not_stored[MC_STORE_DISK_BUDGET] = 7;
    disks[1].recovery_ms = 42;
    show(&text, disks, 2);
    assert_true(sample(&text, "mooncake_ssd_write_ops_total") == 20);
    assert_true(sample(&text, "mooncake_ssd_read_bytes_total") == 60);
    assert_true(sample(&text, "mooncake_ssd_total_bytes_total") == 260);
    assert_true(sample(&text, "mooncake_ssd_write_latency_us_bucket{le=\"100\"}") == 0);
    assert_true(sample(&text, "mooncake_ssd_write_latency_us_bucket{le=\"200\"}") == 20);
    assert_true(sample(&text, "mooncake_ssd_total_latency_us_bucket{le=\"+Inf\"}") == 26);
    assert_true(sample(&text, "mooncake_ssd_total_latency_us_sum") == 240003000);
    assert_true(sample(&text, "mooncake_ssd_write_latency_summary_us{quantile=\"0.5\"}") == 150);
    assert_true(sample(&text, "mooncake_ssd_read_latency_summary_us{quantile=\"0.9\"}") == 30000000);
    assert_true(sample(&text, "mooncake_client_disk_health{disk=\"/a/\\\"b\\\\c\",health=\"slow\"}") == 1);
    assert_true(sample(&text, "mooncake_client_disk_health{disk=\"/a/\\\"b\\\\c\",health=\"ok\"}") == 0);
    assert_true(sample(&text, "mooncake_client_disk_health{disk=\"/d\",health=\"off\"}") == 1);
    assert_true(sample(&text, "mooncake_client_disk_write_amplification{disk=\"/d\"}") == 1.5);
    assert_true(sample(&text, "mooncake_client_disk_recovery_seconds{disk=\"/d\"}") == 0.042);
    assert_true(sample(&text, "mooncake_client_disk_not_stored_total{disk=\"/a/\\\"b\\\\c\",reason=\"budget\"}") == 7);
    assert_true(sample(&text, "mooncake_client_disk_read_seconds_bucket{disk=\"/d\",le=\"30\"}") == 0);
    assert_true(sample(&text, "mooncake_client_disk_read_seconds_count{disk=\"/d\"}") == 3);
    text.length = 0;
    mc_disks_summary(&text, disks, 2);
    mc_buffer_put_u8(&text, 0);
    assert_non_null(strstr((const char *)text.data, "SSD /d: off, 0 B / 0 B in 0 objects, read 30 B in 3 objects"));
    mc_buffer_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_none), cmocka_unit_test(test_two)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
