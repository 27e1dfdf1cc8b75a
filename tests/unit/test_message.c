/* net/message by lenient rules: heads whole, cut at every byte, ambiguous and huge; chunk sizes; %XX. By strict ones:
 * test_proxy_message.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "net/message.h"

#include <stdio.h>
#include <stdlib.h>

#define HEAD_MAX 16384

static const struct mc_message_rules rules = {HEAD_MAX, 100, true};

static int parse(const char *text, struct mc_head *head)
{
    return mc_head_read_request(head, &rules, text, strlen(text));
}

static void heads_good(void **state)
{
    static const struct {
        const char *text, *method, *target;
        uint64_t length;
        bool is_chunked, is_continue_expected, is_kept_alive;
    } rows[] = {
        {"GET /a HTTP/1.1\r\nHost: x\r\n\r\n", "GET", "/a", 0, false, false, true},
        {"GET /a?b=/c?d HTTP/1.1\r\n\r\n", "GET", "/a?b=/c?d", 0, false, false, true},
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
        struct mc_head head = {0};
        assert_int_equal(parse(rows[i].text, &head), (int)strlen(rows[i].text));
        assert_string_equal(head.method, rows[i].method);
        assert_string_equal(head.target, rows[i].target);
        assert_int_equal(head.length, rows[i].length);
        assert_int_equal(head.framing == MC_FRAMING_CHUNKED, rows[i].is_chunked);
        assert_int_equal(head.expects_continue, rows[i].is_continue_expected);
        assert_int_equal(head.keeps_alive, rows[i].is_kept_alive);
        /* Cut anywhere it is only not there yet, in memory of exactly that size. */
        for (size_t cut = 0; cut < strlen(rows[i].text); cut++) {
            char *part = malloc(cut + 1);
            assert_non_null(part);
            memcpy(part + 1, rows[i].text, cut);
            assert_int_equal(mc_head_read_request(&head, &rules, part + 1, cut), 0);
            free(part);
        }
        mc_head_free(&head);
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
    struct mc_head head = {0};
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_int_equal(parse(rows[i].text, &head), rows[i].status);
    assert_int_equal(mc_head_read_request(&head, &rules, "GET /\0 HTTP/1.1\r\n\r\n", 20), -400);
    mc_head_free(&head);
}

static void heads_huge(void **state)
{
    struct mc_head head = {0};
    char *text = malloc(HEAD_MAX + 1);
    (void)state;
    assert_non_null(text);
    memset(text, 'a', HEAD_MAX);
    assert_int_equal(mc_head_read_request(&head, &rules, text, HEAD_MAX - 1), 0);
    assert_int_equal(mc_head_read_request(&head, &rules, text, HEAD_MAX), -431);
    size_t length = (size_t)snprintf(text, HEAD_MAX, "GET / HTTP/1.1\r\n");
    for (int i = 0; i < 101; i++)
        length += (size_t)snprintf(text + length, HEAD_MAX - length, "a: b\r\n");
    snprintf(text + length, HEAD_MAX - length, "\r\n");
    assert_int_equal(parse(text, &head), -431);
    mc_head_free(&head);
    free(text);
}

static void chunks(void **state)
{
    static const struct {
        const char *line;
        bool ok;
        uint64_t size;
    } rows[] = {{"0\r\n", true, 0},
                {"1aF\n", true, 0x1af},
                {"10;name=value\r\n", true, 16},
                {"ffffffffffffffff\r\n", true, UINT64_MAX},
                {"fffffffffffffffff\r\n", false, 0},
                {"\r\n", false, 0},
                {"x\r\n", false, 0},
                {"-1\r\n", false, 0},
                {" 1\r\n", false, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct mc_head head = {.framing = MC_FRAMING_CHUNKED, .is_lenient = true};
        struct mc_body body;
        int length = (int)strlen(rows[i].line);
        mc_body_begin(&body, &head);
        assert_int_equal(mc_body_line(&body, rows[i].line, (size_t)length - 1), 0);
        assert_int_equal(mc_body_line(&body, rows[i].line, (size_t)length), rows[i].ok ? length : -1);
        if (rows[i].ok)
            assert_true(body.left == rows[i].size && (body.state == MC_BODY_DATA) == (body.left > 0));
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
        int64_t length = mc_uri_decode(mc_span_string(rows[i].in), out);
        if (rows[i].out == NULL)
            assert_int_equal(length, -1);
        else
            assert_true(mc_span_equal(mc_span(out, (size_t)length), mc_span_string(rows[i].out)));
    }
    assert_int_equal(mc_uri_decode(mc_span_string("%00x"), out), 2);
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
