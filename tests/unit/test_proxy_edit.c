/* proxy/edit: what is JSON and what is not, and that what is not changed stays byte by byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/error.h"
#include "env/json.h"
#include "proxy/edit.h"

#include <jansson.h>
#include <stdlib.h>

static struct mc_members members;
static size_t at;
static const char *problem;

/* In memory of exactly its size, so that a sanitizer sees a byte too many. */
static int scan(const char *text, size_t length)
{
    char *copy = malloc(length + (length == 0));
    assert_non_null(copy);
    memcpy(copy, text, length);
    int rc = mc_members_scan(&members, mc_span(copy, length), &at, &problem);
    assert_true(at <= length);
    assert_true((rc < 0) == (problem[0] != 0));
    free(copy);
    return rc;
}

static void good(void **state)
{
    static const char *const texts[] = {
        "{}",
        " {\t} \r\n",
        "{\"\":0}",
        "{\"a\":-0.5e+10,\"b\":[],\"c\":{},\"d\":[[],[{}],{\"x\":[1,2]}]}",
        "{\"a\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\ud83d\",\"b\":[true,false,null]}",
        "{\"big\":123456789012345678901234567890,\"a\":1,\"a\":2}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        assert_int_equal(scan(texts[i], strlen(texts[i])), 0);
}

/* Whatever is cut off: none of it is whole, and none is read beyond its end. */
static void cut(void **state)
{
    static const char text[] = "{\"a\":[1.5e3,{\"b\":\"\\u00e9\\n\"},true,null],\"c\":{\"d\":[]}}";
    (void)state;
    for (size_t length = 0; length < sizeof(text) - 1; length++)
        assert_true(scan(text, length) < 0);
    assert_int_equal(scan(text, sizeof(text) - 1), 0);
}

static void bad(void **state)
{
    static const char *const texts[] = {
        "[]",          "1",          "{,}",        "{\"a\"}",    "{\"a\":}",    "{\"a\":1,}",       "{\"a\":[1,]}",
        "{a:1}",       "{\"a\":01}", "{\"a\":1.}", "{\"a\":.5}", "{\"a\":+1}",  "{\"a\":-}",        "{\"a\":1e}",
        "{\"a\":tru}", "{} {}",      "{\"a\":[}",  "{\"a\":{]",  "{\"a\":[1}}", "{\"a\":\"\x01\"}", "{\"a\":{\"b\"}}"};
    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        assert_true(scan(texts[i], strlen(texts[i])) < 0);
    assert_true(mc_members_scan(&members, mc_span(NULL, 0), &at, &problem) < 0); /* a request without a body */
    assert_int_equal(at, 0);
    assert_true(scan("{\"a\":\"\\\0\"}", 10) < 0);
    assert_true(scan("{\"a\":1}\0", 8) < 0);
}

static void deep(void **state)
{
    static char text[MC_JSON_DEPTH_MAX * 2 + 32];
    (void)state;
    for (size_t depth = MC_JSON_DEPTH_MAX; depth <= MC_JSON_DEPTH_MAX + 1; depth++) {
        size_t length = 5;
        memcpy(text, "{\"a\":", 5);
        memset(text + length, '[', depth);
        length += depth;
        memset(text + length, ']', depth);
        length += depth;
        text[length++] = '}';
        assert_int_equal(scan(text, length) == 0, depth == MC_JSON_DEPTH_MAX);
    }
}

static void find_and_write(void **state)
{
    static const char text[] = " { \"a\" : 1.50 ,\"stream\":true, \"b\":{\"a\":2},\"a\": \"x,}\" }";
    static const char *const none[] = {NULL}, *const a[] = {"a", NULL}, *const all[] = {"a", "b", "stream", NULL};
    struct mc_buffer out = {0};
    (void)state;
    assert_int_equal(mc_members_scan(&members, mc_span_string(text), &at, &problem), 0);
    assert_int_equal(members.count, 4);
    assert_true(mc_span_equal(mc_members_find(&members, "a")->value, mc_span_string("\"x,}\"")));
    assert_null(mc_members_find(&members, "c"));
    assert_true(mc_members_is_true(&members, "stream"));
    assert_false(mc_members_is_true(&members, "a"));
    mc_members_write(&members, none, "", &out);
    assert_true(mc_span_equal(mc_span(out.data, out.length),
                              mc_span_string("{\"a\" : 1.50,\"stream\":true,\"b\":{\"a\":2},\"a\": \"x,}\"}")));
    out.length = 0;
    mc_members_write(&members, a, "\"c\":3", &out);
    assert_true(
        mc_span_equal(mc_span(out.data, out.length), mc_span_string("{\"stream\":true,\"b\":{\"a\":2},\"c\":3}")));
    out.length = 0;
    mc_members_write(&members, all, "\"c\":3", &out);
    assert_true(mc_span_equal(mc_span(out.data, out.length), mc_span_string("{\"c\":3}")));
    out.length = 0;
    mc_members_write(&members, all, "", &out);
    assert_true(mc_span_equal(mc_span(out.data, out.length), mc_span_string("{}")));
    mc_buffer_free(&out);
}

/* What is taken for JSON is JSON to another reader too, also after random damage. */
static void as_another_reader(void **state)
{
    static const char text[] = "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a\\u00e9b\"}],\"n\":[1,"
                               "-2.5e3],\"s\":{\"x\":null}}";
    char damaged[sizeof(text)];
    uint32_t random = 1;
    size_t taken = 0;
    (void)state;
    for (int i = 0; i < 20000; i++) {
        memcpy(damaged, text, sizeof(text));
        for (int j = 0; j <= i % 3; j++) {
            random = random * 1664525 + 1013904223;
            damaged[(random >> 8) % (sizeof(text) - 1)] = "{}[]\",:0123\\ua-. \n"[(random >> 24) % 18];
        }
        if (scan(damaged, sizeof(text) - 1) < 0)
            continue;
        taken++;
        json_error_t reason;
        json_t *other = json_loadb(damaged, sizeof(text) - 1, JSON_ALLOW_NUL, &reason);
        /* Half a surrogate pair is a matter for the engine. */
        if (other == NULL && json_error_code(&reason) != json_error_invalid_utf8 && strstr(damaged, "\\u") == NULL)
            fail_msg("%s: %s", reason.text, damaged);
        json_decref(other);
    }
    assert_true(taken > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good),
        cmocka_unit_test(cut),
        cmocka_unit_test(bad),
        cmocka_unit_test(deep),
        cmocka_unit_test(find_and_write),
        cmocka_unit_test(as_another_reader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
