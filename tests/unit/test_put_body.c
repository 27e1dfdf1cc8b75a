/* service/put_body: keys and values of every shape, escapes undone in place, what is refused and how. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "store/service/put_body.h"

#include <stdlib.h>

static const char *parse(const char *in, struct mc_put_body *body, char **text)
{
    static char reason[256];
    size_t length = strlen(in);
    *text = malloc(length + 1);
    assert_non_null(*text);
    memcpy(*text, in, length + 1);
    return mc_put_body_parse(*text, length, body, reason, sizeof(reason));
}

static void bodies_good(void **state)
{
    static const struct {
        const char *in, *key, *value; /* NULL: not there */
    } rows[] = {
        {"{\"key\":\"k\",\"value\":\"v\"}", "k", "v"},
        {" \n{ \"value\" : \"\" , \"other\": [1,{\"key\":\"no\"}], \"key\" : \"k\" } ", "k", ""},
        {"{\"key\":\"\",\"value\":null}", "", NULL},
        {"{\"key\":0,\"value\":\"x\"}", NULL, "x"},
        {"{\"key\":null}", NULL, NULL},
        {"{}", NULL, NULL},
        {"{\"key\":\"a\\/b\\\"\\\\\",\"value\":\"\\b\\f\\n\\r\\t\"}", "a/b\"\\", "\b\f\n\r\t"},
        {"{\"key\":\"\\u0041\\u00e4\\u20ac\\ud83d\\ude00.\",\"value\":\"h\xc3\xa4\"}",
         "A\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80.", "h\xc3\xa4"},
        {"{\"key\":\"x\\\\u0041\",\"value\":\"\\\\\"}", "x\\u0041", "\\"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct mc_put_body body;
        char *text;
        assert_null(parse(rows[i].in, &body, &text));
        assert_int_equal(body.key.data == NULL, rows[i].key == NULL);
        assert_int_equal(body.value.data == NULL, rows[i].value == NULL);
        if (rows[i].key != NULL)
            assert_true(mc_span_equal(body.key, mc_span_string(rows[i].key)));
        if (rows[i].value != NULL)
            assert_true(mc_span_equal(body.value, mc_span_string(rows[i].value)));
        free(text);
    }
}

static void bodies_bad(void **state)
{
    static const struct {
        const char *in, *reason;
    } rows[] = {
        {"{\"key\":\"k\",\"value\":5}", "value must be a string"},
        {"{\"key\":[],\"value\":\"x\"}", "key must be a string"},
        {"[\"key\"]", "JSON object"},
        {"\"key\"", "JSON object"},
        {"", "Malformed JSON body: line 1"},
        {"{\"key\":", "Malformed JSON body: line 1"},
        {"{\"key\":\"k\",\n\"value\":\"v\"", "line 2"},
        {"{\"key\":\"k\",\"value\":\"v\"} x", "Malformed"},
        {"{\"key\":\"\\x\",\"value\":\"v\"}", "escape"},
        {"{\"key\":\"k\",\"value\":\"\\ud800\"}", "\\u"},
        {"{\"key\":\"k\",\"value\":\"\\udc00\\ud800\"}", "\\u"},
        {"{\"key\":\"k\",\"value\":\"\\ud800\\u0041\"}", "\\u"},
        {"{\"key\":\"k\",\"value\":\"\\u00g0\"}", "\\u"},
        {"{\"key\":\"k\",\"value\":\"\\u00\"}", "\\u"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct mc_put_body body;
        char *text;
        const char *reason = parse(rows[i].in, &body, &text);
        assert_non_null(reason);
        assert_non_null(strstr(reason, rows[i].reason));
        free(text);
    }
}

static void body_cut(void **state)
{
    static const char whole[] = "{\"key\":\"\\u0041b\",\"value\":\"\\ud83d\\ude00\\n\"}";
    (void)state;
    for (size_t cut = 0; cut < sizeof(whole) - 1; cut++) {
        struct mc_put_body body;
        char reason[256], *text = malloc(cut + 1);
        assert_non_null(text);
        memcpy(text, whole, cut);
        text[cut] = 0;
        assert_non_null(mc_put_body_parse(text, cut, &body, reason, sizeof(reason)));
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bodies_good), cmocka_unit_test(bodies_bad),
                                       cmocka_unit_test(body_cut)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
