/* env/json: members, numbers, texts and places of what is wrong; the writer. What is JSON at all: test_proxy_edit.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/error.h"
#include "env/json.h"

#include <math.h>

static struct mc_json_cursor member_of(const char *object, const char *name)
{
    struct mc_json_cursor member;
    assert_int_equal(mc_json_member(mc_span_string(object), name, &member), 1);
    return member;
}

static void the_last_of_a_name_counts(void **state)
{
    static const char text[] = " {\"a\":1, \"b\":{\"a\":2}, \"a\":\"x\"} ";
    struct mc_json_cursor member, all;
    (void)state;
    member = member_of(text, "a");
    assert_int_equal(member.kind, '"');
    assert_true(mc_json_is(member.value, "x"));
    assert_true(mc_json_is_again(mc_span_string(text), &member));
    assert_int_equal(mc_json_member(mc_span_string(text), "c", &member), 0);
    assert_int_equal(mc_json_open(mc_span_string(text), '{', &all), 0);
    assert_int_equal(mc_json_next(&all), 1);
    assert_false(mc_json_is_again(mc_span_string(text), &all));
    assert_int_equal(mc_json_next(&all), 1);
    assert_false(mc_json_is_again(mc_span_string(text), &all)); /* an inner object's names are its own */
}

/* As a request without a body has it. */
static void nothing_that_lies_nowhere(void **state)
{
    struct mc_json_cursor cursor;
    struct mc_span value;
    int line, column;
    (void)state;
    assert_int_equal(mc_json_open(mc_span(NULL, 0), '{', &cursor), MC_ERR_PROTOCOL);
    assert_ptr_equal(cursor.at, cursor.start);
    assert_string_equal(cursor.problem, "an object was expected");
    mc_json_where(mc_span(NULL, 0), &cursor, &line, &column);
    assert_int_equal(line, 1);
    assert_int_equal(column, 1);
    assert_int_equal(mc_json_find(mc_span(NULL, 0), "a", &value), MC_ERR_PROTOCOL);
}

/* What is behind the member that was asked for is looked at, too. */
static void what_is_wrong_has_a_place(void **state)
{
    static const struct {
        const char *text;
        int line, column;
    } rows[] = {{"", 1, 1},
                {"[1]", 1, 1},
                {"{\"a\":1", 1, 7},
                {"{\"a\":1,\n \"b\":}", 2, 6},
                {"{\"a\":1} x", 1, 9},
                {"{\"a\":\"\\x\"}", 1, 8},
                {"{\"a\":1,\n\n}", 3, 1}};
    struct mc_json_cursor member;
    int line, column;
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct mc_span text = mc_span_string(rows[i].text);
        assert_int_equal(mc_json_member(text, "a", &member), MC_ERR_PROTOCOL);
        assert_non_null(member.problem);
        mc_json_where(text, &member, &line, &column);
        assert_int_equal(line, rows[i].line);
        assert_int_equal(column, rows[i].column);
    }
}

static void numbers(void **state)
{
    static const struct {
        const char *object;
        bool is_whole, is_real;
        int64_t whole;
        double real;
    } rows[] = {
        {"{\"n\":0}", true, true, 0, 0},
        {"{\"n\":-9223372036854775807}", true, true, -INT64_MAX, -9223372036854775807.0},
        {"{\"n\":9223372036854775807}", true, true, INT64_MAX, 9223372036854775807.0},
        {"{\"n\":9223372036854775808}", false, true, 0, 9223372036854775808.0},
        {"{\"n\":1.5e3}", false, true, 0, 1500},
        {"{\"n\":1e999}", false, false, 0, 0},
        {"{\"n\":\"1\"}", false, false, 0, 0},
        {"{\"n\":null}", false, false, 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct mc_json_cursor member = member_of(rows[i].object, "n");
        int64_t whole = 0;
        double real = 0;
        assert_int_equal(mc_json_integer(&member, &whole) == 0, rows[i].is_whole);
        assert_int_equal(mc_json_real(&member, &real) == 0, rows[i].is_real);
        assert_true(whole == rows[i].whole && real == rows[i].real);
    }
}

static void texts(void **state)
{
    char text[8];
    struct mc_json_cursor member = member_of("{\"t\":\"\\u00e9\\n\\\"\"}", "t");
    (void)state;
    assert_int_equal(mc_json_text(&member, text, sizeof(text)), 0);
    assert_string_equal(text, "\xc3\xa9\n\"");
    assert_int_equal(mc_json_text(&member, text, 4), MC_ERR_BUFFER_OVERFLOW);
    member = member_of("{\"t\":\"a\\u0000b\"}", "t");
    assert_int_equal(mc_json_text(&member, text, sizeof(text)), MC_ERR_PROTOCOL);
    member = member_of("{\"t\":1}", "t");
    assert_int_equal(mc_json_text(&member, text, sizeof(text)), MC_ERR_PROTOCOL);
}

static void write_document(struct mc_json_writer *out)
{
    mc_json_begin(out, NULL, '{');
    mc_json_add_text(out, "text", "a\"\\\n");
    mc_json_begin(out, "list", '[');
    mc_json_add_number(out, NULL, UINT64_MAX);
    mc_json_add_real(out, NULL, 2);
    mc_json_add_real(out, NULL, 1e-9);
    mc_json_add_real(out, NULL, (double)INFINITY);
    mc_json_end(out, ']');
    mc_json_begin(out, "none", '{');
    mc_json_end(out, '}');
    mc_json_add_bool(out, "yes", true);
    mc_json_end(out, '}');
}

static void writes(void **state)
{
    static const char line[] =
        "{\"text\":\"a\\\"\\\\\\u000a\",\"list\":[18446744073709551615,2.0,1e-09,null],\"none\":{},"
        "\"yes\":true}";
    static const char lines[] =
        "{\n  \"text\": \"a\\\"\\\\\\u000a\",\n  \"list\": [\n    18446744073709551615,\n    2.0,\n"
        "    1e-09,\n    null\n  ],\n  \"none\": {},\n  \"yes\": true\n}";
    struct mc_buffer text = {0};
    struct mc_json_writer out = {.out = &text};
    (void)state;
    write_document(&out);
    assert_true(mc_span_equal(mc_span(text.data, text.length), mc_span_string(line)));
    text.length = 0;
    out = (struct mc_json_writer){.out = &text, .indent = 2};
    write_document(&out);
    assert_true(mc_span_equal(mc_span(text.data, text.length), mc_span_string(lines)));
    mc_buffer_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_of_a_name_counts),
        cmocka_unit_test(nothing_that_lies_nowhere),
        cmocka_unit_test(what_is_wrong_has_a_place),
        cmocka_unit_test(numbers),
        cmocka_unit_test(texts),
        cmocka_unit_test(writes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
