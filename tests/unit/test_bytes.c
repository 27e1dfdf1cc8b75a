/* base/bytes: growth, consumption, and a reader that never leaves its bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "base/bytes.h"

static void buffer_starts_empty_and_frees_twice(void **state)
{
    (void)state;
    struct mc_buffer buffer = {0};
    mc_buffer_append(&buffer, NULL, 0);
    assert_null(buffer.data);
    mc_buffer_free(&buffer);
    mc_buffer_put_u8(&buffer, 7);
    assert_int_equal(buffer.length, 1);
    mc_buffer_free(&buffer);
    mc_buffer_free(&buffer);
    assert_null(buffer.data);
    assert_int_equal(buffer.length, 0);
    assert_int_equal(buffer.capacity, 0);
}

static void buffer_keeps_content_while_it_grows(void **state)
{
    (void)state;
    struct mc_buffer buffer = {0};
    for (uint32_t i = 0; i < 100000; i++)
        mc_buffer_put_u32(&buffer, i);
    assert_int_equal(buffer.length, 400000);
    assert_true(buffer.capacity >= buffer.length);
    for (uint32_t i = 0; i < 100000; i++) {
        uint32_t value;
        memcpy(&value, buffer.data + 4 * (size_t)i, 4);
        assert_int_equal(value, i);
    }
    mc_buffer_free(&buffer);
}

static void buffer_reserve_changes_no_content(void **state)
{
    (void)state;
    struct mc_buffer buffer = {0};
    mc_buffer_reserve(&buffer, 0);
    mc_buffer_append(&buffer, "abc", 3);
    mc_buffer_reserve(&buffer, 1u << 20);
    assert_true(buffer.capacity - buffer.length >= 1u << 20);
    uint8_t *before = buffer.data;
    mc_buffer_reserve(&buffer, 1u << 20);
    assert_ptr_equal(before, buffer.data);
    assert_int_equal(buffer.length, 3);
    assert_memory_equal(buffer.data, "abc", 3);
    mc_buffer_free(&buffer);
}

static void buffer_consumes_from_the_front(void **state)
{
    (void)state;
    struct mc_buffer buffer = {0};
    mc_buffer_append(&buffer, "abcdef", 6);
    mc_buffer_consume(&buffer, 0);
    assert_int_equal(buffer.length, 6);
    mc_buffer_consume(&buffer, 2);
    assert_int_equal(buffer.length, 4);
    assert_memory_equal(buffer.data, "cdef", 4);
    mc_buffer_append(&buffer, "g", 1);
    assert_memory_equal(buffer.data, "cdefg", 5);
    mc_buffer_consume(&buffer, 5);
    assert_int_equal(buffer.length, 0);
    mc_buffer_append(&buffer, "x", 1);
    mc_buffer_consume(&buffer, SIZE_MAX);
    assert_int_equal(buffer.length, 0);
    mc_buffer_free(&buffer);
}

static void numbers_are_little_endian(void **state)
{
    (void)state;
    struct mc_buffer buffer = {0};
    mc_buffer_put_u8(&buffer, 0x01);
    mc_buffer_put_u16(&buffer, 0x0302);
    mc_buffer_put_u32(&buffer, 0x07060504);
    mc_buffer_put_u64(&buffer, 0x0f0e0d0c0b0a0908);
    mc_buffer_put_i32(&buffer, -2);
    static const uint8_t expected[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0xfe, 0xff, 0xff, 0xff};
    assert_int_equal(buffer.length, sizeof(expected));
    assert_memory_equal(buffer.data, expected, sizeof(expected));
    struct mc_reader reader = mc_reader(buffer.data, buffer.length);
    assert_int_equal(mc_reader_u8(&reader), 1);
    assert_int_equal(mc_reader_u16(&reader), 0x0302);
    assert_int_equal(mc_reader_u32(&reader), 0x07060504);
    assert_true(mc_reader_u64(&reader) == 0x0f0e0d0c0b0a0908);
    assert_int_equal(mc_reader_i32(&reader), -2);
    assert_int_equal(mc_reader_left(&reader), 0);
    assert_false(reader.bad);
    mc_buffer_free(&buffer);
}

static void reader_stays_at_its_end(void **state)
{
    (void)state;
    /* Exactly as large as what is read, so that ASan sees the first byte beyond. */
    uint8_t *data = malloc(3);
    assert_non_null(data);
    memset(data, 0xff, 3);
    struct mc_reader reader = mc_reader(data, 3);
    assert_int_equal(mc_reader_u32(&reader), 0);
    assert_true(reader.bad);
    assert_int_equal(mc_reader_left(&reader), 0);
    assert_int_equal(mc_reader_u8(&reader), 0);
    assert_null(mc_reader_take(&reader, 1));
    reader = mc_reader(data, 3);
    assert_int_equal(mc_reader_u16(&reader), 0xffff);
    assert_false(reader.bad);
    assert_null(mc_reader_take(&reader, SIZE_MAX));
    assert_true(reader.bad);
    assert_int_equal(mc_reader_u8(&reader), 0);
    free(data);
}

/* What cannot be had: the buffer says so for good, what is there stays, and nothing more than that is written. */
static void buffer_that_may_fail_says_so(void **state)
{
    (void)state;
    struct mc_buffer buffer = {.may_fail = true};
    mc_buffer_append(&buffer, "abc", 3);
    assert_true(mc_buffer_reserve(&buffer, 1u << 20));
    assert_false(mc_buffer_reserve(&buffer, SIZE_MAX));
    assert_true(buffer.failed);
    assert_int_equal(buffer.length, 3);
    mc_buffer_append(&buffer, buffer.data, buffer.capacity); /* what comes after it is not there either */
    assert_int_equal(buffer.length, 3);
    assert_memory_equal(buffer.data, "abc", 3);
    mc_buffer_free(&buffer);
    assert_true(!buffer.failed && buffer.may_fail);
    assert_false(mc_buffer_reserve(&buffer, SIZE_MAX)); /* without any memory */
    assert_null(buffer.data);
    mc_buffer_free(&buffer);
}

static void reader_takes_nothing_and_all(void **state)
{
    (void)state;
    uint8_t data[4] = {1, 2, 3, 4};
    struct mc_reader reader = mc_reader(data, sizeof(data));
    assert_ptr_equal(mc_reader_take(&reader, 0), data);
    assert_ptr_equal(mc_reader_take(&reader, 4), data);
    assert_ptr_equal(mc_reader_take(&reader, 0), data + 4);
    assert_false(reader.bad);
    struct mc_reader empty = mc_reader(NULL, 0);
    assert_int_equal(mc_reader_u64(&empty), 0);
    assert_true(empty.bad);
}

static void spans_and_ids_compare(void **state)
{
    (void)state;
    assert_true(mc_span_equal(mc_span(NULL, 0), mc_span("", 0)));
    assert_true(mc_span_equal(mc_span("ab", 2), mc_span_string("ab")));
    assert_false(mc_span_equal(mc_span("ab", 2), mc_span("abc", 3)));
    assert_false(mc_span_equal(mc_span("ab", 2), mc_span("ac", 2)));
    assert_true(mc_span_equal(mc_span("a\0b", 3), mc_span("a\0b", 3)));
    assert_false(mc_span_equal(mc_span("a\0b", 3), mc_span("a\0c", 3)));
    struct mc_id a = {1, 2}, b = {2, 1}, zero = {0, 0}, high = {0, 1};
    assert_true(mc_id_equal(a, a));
    assert_false(mc_id_equal(a, b));
    assert_true(mc_id_is_zero(zero));
    assert_false(mc_id_is_zero(high));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffer_starts_empty_and_frees_twice),
        cmocka_unit_test(buffer_keeps_content_while_it_grows),
        cmocka_unit_test(buffer_that_may_fail_says_so),
        cmocka_unit_test(buffer_reserve_changes_no_content),
        cmocka_unit_test(buffer_consumes_from_the_front),
        cmocka_unit_test(numbers_are_little_endian),
        cmocka_unit_test(reader_stays_at_its_end),
        cmocka_unit_test(reader_takes_nothing_and_all),
        cmocka_unit_test(spans_and_ids_compare),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
