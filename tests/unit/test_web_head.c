/* service/web_head: heads whole, cut at every byte, ambiguous and huge; chunk sizes; %XX. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "store/service/web_head.h"

#include <stdio.h>
#include <stdlib.h>

static int parse(const char *text, struct mc_web_head *head)
{
    return mc_web_parse_head(text, strlen(text), head);
}

static void heads_good(void **state)
{
    static const struct {
        const char *text, *method, *path;
        uint64_t length;
        bool is_chunked, is_continue_expected, is_kept_alive;
    } rows[] = {
        {"GET /a HTTP/1.1\r\nHost: x\r\n\r\n", "GET", "/a", 0, false, false, true},
        {"GET /a?b=/c?d HTTP/1.1\r\n\r\n", "GET", "/a", 0, false, false, true},
        {"GET http://h:1/a%2F HTTP/1.1\n\n", "GET", "/a%2F", 0, false, false, true},
        {"OPTIONS * HTTP/1.1\r\n\r\n", "OPTIONS", "*", 0, false, false, true},
        {"PUT / HTTP/1.0\r\ncontent-length:7\r\n\r\n", "PUT", "/", 7, false, false, false},
        {"PUT / HTTP/1.0\r\nConnection: x, Keep-Alive\r\n\r\n", "PUT", "/", 0, false, false, true},
        {"PUT / HTTP/1.1\r\nConnection: Close\r\nContent-Length: \t 12 \r\n\r\n", "PUT", "/", 12, false, false, false},
        {"PUT / HTTP/1.1\r\nContent-Length: 5\r\ncontent-length: 5\r\n\r\n", "PUT", "/", 5, false, false, true},
        {"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nExpect: 100-Continue\r\n\r\n", "PUT", "/", 0, true, true,
         true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct mc_web_head head;
        assert_int_equal(parse(rows[i].text, &head), (int)strlen(rows[i].text));
        assert_true(mc_web_is(head.method, rows[i].method) && mc_web_is(head.path, rows[i].path));
        assert_int_equal(head.content_length, rows[i].length);
        assert_int_equal(head.is_chunked, rows[i].is_chunked);
        assert_int_equal(head.is_continue_expected, rows[i].is_continue_expected);
        assert_int_equal(head.is_kept_alive, rows[i].is_kept_alive);
        /* Cut anywhere it is only not there yet, in memory of exactly that size. */
        for (size_t cut = 0; cut < strlen(rows[i].text); cut++) {
            char *part = malloc(cut + 1);
            assert_non_null(part);
            memcpy(part + 1, rows[i].text, cut);
            assert_int_equal(mc_web_parse_head(part + 1, cut, &head), 0);
            free(part);
        }
    }
}

static void heads_bad(void **state)
{
    static const struct {
        const char *text;
        int status;
    } rows[] = {
        {"GET /\r\n\r\n", -400},
        {"GET  / HTTP/1.1\r\n\r\n", -400},
        {"G(T / HTTP/1.1\r\n\r\n", -400},
        {"GET a HTTP/1.1\r\n\r\n", -400},
        {"GET http://host HTTP/1.1\r\n\r\n", -400},
        {"GET /a b HTTP/1.1\r\n\r\n", -400},
        {"GET /\x01 HTTP/1.1\r\n\r\n", -400},
        {"GET / HTTP/2.0\r\n\r\n", -505},
        {"GET / XTTP/1.1\r\n\r\n", -400},
        {"\r\n\r\n", -400},
        {"GET / HTTP/1.1\r\nno colon\r\n\r\n", -400},
        {"GET / HTTP/1.1\r\nName : x\r\n\r\n", -400},
        {"GET / HTTP/1.1\r\nA: b\r\n folded\r\n\r\n", -400},
        {"PUT / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", -400},
        {"PUT / HTTP/1.1\r\nContent-Length: +1\r\n\r\n", -400},
        {"PUT / HTTP/1.1\r\nContent-Length:\r\n\r\n", -400},
        {"PUT / HTTP/1.1\r\nContent-Length: 9999999999999999999\r\n\r\n", -400},
        {"PUT / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", -400},
        {"PUT / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", -400},
        {"PUT / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", -501},
    };
    struct mc_web_head head;
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_int_equal(parse(rows[i].text, &head), rows[i].status);
    assert_int_equal(mc_web_parse_head("GET /\0 HTTP/1.1\r\n\r\n", 20, &head), -400);
}

static void heads_huge(void **state)
{
    struct mc_web_head head;
    char *text = malloc(MC_WEB_HEAD_MAX + 1);
    (void)state;
    assert_non_null(text);
    memset(text, 'a', MC_WEB_HEAD_MAX);
    assert_int_equal(mc_web_parse_head(text, MC_WEB_HEAD_MAX - 1, &head), 0);
    assert_int_equal(mc_web_parse_head(text, MC_WEB_HEAD_MAX, &head), -431);
    size_t length = (size_t)snprintf(text, MC_WEB_HEAD_MAX, "GET / HTTP/1.1\r\n");
    for (int i = 0; i < 101; i++)
        length += (size_t)snprintf(text + length, MC_WEB_HEAD_MAX - length, "a: b\r\n");
    snprintf(text + length, MC_WEB_HEAD_MAX - length, "\r\n");
    assert_int_equal(parse(text, &head), -431);
    free(text);
}

static void chunks(void **state)
{
    static const struct {
        const char *line;
        bool ok;
        uint64_t size;
    } rows[] = {{"0", true, 0},
                {"1aF", true, 0x1af},
                {"10;name=value", true, 16},
                {"ffffffffffffffff", true, UINT64_MAX},
                {"fffffffffffffffff", false, 0},
                {"", false, 0},
                {"x", false, 0},
                {"-1", false, 0},
                {" 1", false, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint64_t size = 1;
        assert_int_equal(mc_web_parse_chunk(mc_span_string(rows[i].line), &size), rows[i].ok);
        if (rows[i].ok)
            assert_true(size == rows[i].size);
    }
}

static void decodes(void **state)
{
    static const struct {
        const char *in, *out; /* NULL: broken */
    } rows[] = {{"a", "a"}, {"%41%2f%5Fx+", "A/_x+"}, {"", ""}, {"%", NULL}, {"%4", NULL}, {"a%4g", NULL}};
    char out[64];
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        int64_t length = mc_web_decode(mc_span_string(rows[i].in), out);
        if (rows[i].out == NULL)
            assert_int_equal(length, -1);
        else
            assert_true(mc_span_equal(mc_span(out, (size_t)length), mc_span_string(rows[i].out)));
    }
    assert_int_equal(mc_web_decode(mc_span_string("%00x"), out), 2);
    assert_memory_equal(out, "\0x", 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_good), cmocka_unit_test(heads_bad), cmocka_unit_test(heads_huge),
        cmocka_unit_test(chunks),     cmocka_unit_test(decodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
