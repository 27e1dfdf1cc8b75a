/* proxy/message: heads and bodies, whole and byte by byte, good and bad. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "proxy/message.h"

#include <string.h>

/* All at once and byte by byte must say the same. */
static int take(struct mc_head *head, const char *text, size_t length, bool is_request)
{
    int whole = 0, rc = 0;
    for (int pass = 0; pass < 2; pass++) {
        struct evbuffer *in = evbuffer_new();
        assert_non_null(in);
        rc = 0;
        for (size_t i = 0; i < length && rc == 0; i += pass == 0 ? length : 1) {
            assert_int_equal(evbuffer_add(in, text + i, pass == 0 ? length : 1), 0);
            rc = is_request ? mc_head_take_request(head, in) : mc_head_take_response(head, in, false);
        }
        evbuffer_free(in);
        if (pass == 0)
            whole = rc;
    }
    assert_int_equal(whole, rc);
    return rc;
}

static void requests(void **state)
{
    static const char text[] =
        "\r\n\r\nPOST /v1/completions?a=b HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\nConnection: Keep-Alive, "
        "X-Mine\r\nX-Mine:\t a b \t\r\nEmpty:\r\n\r\n";
    struct mc_head head = {0};
    (void)state;
    assert_int_equal(take(&head, text, sizeof(text) - 1, true), 1);
    assert_string_equal(head.method, "POST");
    assert_string_equal(head.target, "/v1/completions?a=b");
    assert_string_equal(mc_head_find(&head, "x-mINE"), "a b");
    assert_string_equal(mc_head_find(&head, "Empty"), "");
    assert_null(mc_head_find(&head, "none"));
    assert_int_equal(head.framing, MC_FRAMING_LENGTH);
    assert_int_equal(head.length, 12);
    assert_true(head.keeps_alive);
    assert_true(mc_header_is_hop(&head, "x-mine"));
    assert_true(mc_header_is_hop(&head, "TRANSFER-ENCODING"));
    assert_false(mc_header_is_hop(&head, "Accept"));
    mc_head_free(&head);
    assert_int_equal(take(&head, "GET / HTTP/1.0\r\n\r\n", 18, true), 1);
    assert_false(head.keeps_alive);
    assert_int_equal(head.framing, MC_FRAMING_NONE);
    mc_head_free(&head);
}

static void bad_requests(void **state)
{
    static const struct {
        const char *text;
        int rc;
    } cases[] = {
        {"GET /\r\n\r\n", -400},
        {"GET  / HTTP/1.1\r\n\r\n", -400},
        {"GET / HTTP/1.1 \r\n\r\n", -505},
        {"GET / HTTP/1.2\r\n\r\n", -505},
        {"GET / http/1.1\r\n\r\n", -400},
        {"G(T / HTTP/1.1\r\n\r\n", -400},
        {"GET x HTTP/1.1\r\n\r\n", -400},
        {"GET / HTTP/1.1\r\nA\r\n\r\n", -400},
        {"GET / HTTP/1.1\r\n: x\r\n\r\n", -400},
        {"GET / HTTP/1.1\r\nA: x\ny\r\n\r\n", -400},
        {"GET / HTTP/1.1\r\nA: x\r\r\n\r\n", -400},
        {"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", -400},
        {"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", -400},
        {"GET / HTTP/1.1\r\nTransfer-Encoding: identity\r\n\r\n", -501},
        {"GET / HTTP/1.1\r\nContent-Length:\r\n\r\n", -400},
        {"GET / HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\n", -400},
        {"GET / HTTP/1.1\r\nContent-Length: 18446744073709551616\r\n\r\n", -400},
    };
    struct mc_head head = {0};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(take(&head, cases[i].text, strlen(cases[i].text), true), cases[i].rc);
        mc_head_free(&head);
    }
}

static void responses(void **state)
{
    static const struct {
        const char *text;
        int status; /* 0: bad */
        enum mc_framing framing;
    } cases[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", 200, MC_FRAMING_LENGTH},
        {"HTTP/1.1 200\r\nTransfer-Encoding: Chunked\r\n\r\n", 200, MC_FRAMING_CHUNKED},
        {"HTTP/1.0 404 Not Found\r\n\r\n", 404, MC_FRAMING_CLOSE},
        {"HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\n", 204, MC_FRAMING_NONE},
        {"HTTP/1.1 100 Continue\r\n\r\n", 100, MC_FRAMING_NONE},
        {"HTTP/1.1 99 Low\r\n\r\n", 0, MC_FRAMING_NONE},
        {"HTTP/1.1 2000 High\r\n\r\n", 0, MC_FRAMING_NONE},
        {"HTTP/2 200\r\n\r\n", 0, MC_FRAMING_NONE},
        {"ICY 200 OK\r\n\r\n", 0, MC_FRAMING_NONE},
        {"HTTP/1.1\r\n\r\n", 0, MC_FRAMING_NONE},
    };
    struct mc_head head = {0};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int rc = take(&head, cases[i].text, strlen(cases[i].text), false);
        assert_int_equal(rc > 0, cases[i].status > 0);
        assert_true(rc < 0 || (head.status == cases[i].status && head.framing == cases[i].framing));
        mc_head_free(&head);
    }
}

/* The bytes of a chunked body, in pieces of a size; negative: refused. */
static int decode(const char *text, size_t piece, char *to, size_t size)
{
    struct mc_head head = {.framing = MC_FRAMING_CHUNKED};
    struct evbuffer *in = evbuffer_new(), *out = evbuffer_new();
    struct mc_body body;
    int rc = 0;
    assert_true(in != NULL && out != NULL);
    mc_body_begin(&body, &head);
    for (size_t i = 0; i < strlen(text) && rc == 0; i += piece) {
        assert_int_equal(evbuffer_add(in, text + i, strlen(text) - i < piece ? strlen(text) - i : piece), 0);
        rc = mc_body_decode(&body, in, out);
    }
    if (rc > 0) {
        rc = (int)evbuffer_get_length(out);
        assert_true((size_t)rc < size);
        to[evbuffer_remove(out, to, size)] = 0;
    } else if (rc == 0) {
        rc = -2;
    }
    evbuffer_free(in);
    evbuffer_free(out);
    return rc;
}

static void chunks(void **state)
{
    static const char *const bad[] = {
        "x\r\n", "5\r\nabcdefg",        "5\n", "-1\r\n", "10000000000000000\r\n", " 5\r\n", "5 x\r\n",
        "\r\n",  "8000000000000000\r\n"};
    char got[64];
    (void)state;
    for (size_t piece = 1; piece < 40; piece++) {
        assert_int_equal(
            decode("5\r\nhello\r\n00B ;x=\"y\"\r\n, big world\r\n0\r\nA: b\r\n\r\n", piece, got, sizeof(got)), 16);
        assert_string_equal(got, "hello, big world");
        assert_int_equal(decode("0\r\n\r\n", piece, got, sizeof(got)), 0);
        for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
            assert_true(decode(bad[i], piece, got, sizeof(got)) < 0);
        assert_int_equal(decode("5\r\nhello\r\n", piece, got, sizeof(got)), -2);
    }
}

static void large_heads(void **state)
{
    static char text[MC_PROXY_HEAD_MAX + 64];
    struct mc_head head = {0};
    (void)state;
    struct evbuffer *in = evbuffer_new();
    assert_non_null(in);
    memset(text, 'a', sizeof(text));
    assert_int_equal(evbuffer_add(in, text, sizeof(text)), 0);
    assert_int_equal(mc_head_take_request(&head, in), -431);
    assert_int_equal(evbuffer_drain(in, sizeof(text)), 0);
    assert_int_equal(evbuffer_add(in, "GET / HTTP/1.1\r\n", 16), 0);
    for (int i = 0; i < MC_MESSAGE_HEADERS_MAX + 1; i++)
        assert_int_equal(evbuffer_add(in, "a: b\r\n", 6), 0);
    assert_int_equal(evbuffer_add(in, "\r\n", 2), 0);
    assert_int_equal(mc_head_take_request(&head, in), -431);
    mc_head_free(&head);
    evbuffer_free(in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests), cmocka_unit_test(bad_requests), cmocka_unit_test(responses),
        cmocka_unit_test(chunks),   cmocka_unit_test(large_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
