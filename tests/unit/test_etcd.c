/* env/json, env/etcd: what a gateway may answer, whole, cut and wrong; endpoints; a server that answers in pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/error.h"
#include "env/clock.h"
#include "env/etcd.h"
#include "env/json.h"
#include "env/leader.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static const char answer[] =
    "{\"header\":{\"revision\":\"12\",\"kvs\":3}, \"kvs\" : [ "
    "{\"key\":\"YQ==\",\"mod_revision\":\"9\",\"value\":\"aGVsbG8=\"},\n"
    "{\"key\":\"Yg==\",\"n\":-1.5e+3,\"s\":\"a\\\"}b\"}],\"more\":false,\"empty\":{},\"none\":[],\"null\":null}";

static void json_finds(void **state)
{
    static const struct {
        const char *path, *expected; /* NULL: not there */
    } rows[] = {{"header.revision", "12"},
                {"header.kvs", "3"},
                {"kvs.0.value", "aGVsbG8="},
                {"kvs.1.key", "Yg=="},
                {"kvs.1.s", "a\\\"}b"},
                {"kvs.1.n", "-1.5e+3"},
                {"more", "false"},
                {"empty", "{}"},
                {"none", "[]"},
                {"null", "null"},
                {"kvs.2.key", NULL},
                {"kvs.x", NULL},
                {"header", "{\"revision\":\"12\",\"kvs\":3}"},
                {"kvs.0.val", NULL},
                {"headerx", NULL},
                {"none.0", NULL},
                {"kvs.0.value.0", NULL}};
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct mc_span value;
        assert_int_equal(mc_json_find(mc_span_string(answer), rows[i].path, &value), rows[i].expected != NULL);
        if (rows[i].expected != NULL)
            assert_true(mc_span_equal(value, mc_span_string(rows[i].expected)));
    }
    uint64_t number = 77;
    assert_int_equal(mc_json_find_number(mc_span_string(answer), "kvs.0.mod_revision", &number), 1);
    assert_int_equal(number, 9);
    assert_int_equal(mc_json_find_number(mc_span_string(answer), "kvs.9.mod_revision", &number), 0);
    assert_int_equal(mc_json_find_number(mc_span_string(answer), "kvs.1.n", &number), MC_ERR_PROTOCOL);
    assert_int_equal(mc_json_find_number(mc_span_string("{\"a\":\"18446744073709551615\"}"), "a", &number), 1);
    assert_true(number == UINT64_MAX);
    assert_int_equal(mc_json_find_number(mc_span_string("{\"a\":\"18446744073709551616\"}"), "a", &number),
                     MC_ERR_PROTOCOL);
    assert_int_equal(mc_json_find_number(mc_span_string("{\"a\":\"\"}"), "a", &number), MC_ERR_PROTOCOL);
}

/* Every beginning of a good text is a bad one. */
static void json_refuses(void **state)
{
    static const char *const rows[] = {"",           " ",    "{",     "}",          "{\"a\"}", "{\"a\":}",
                                       "{\"a\":1,}", "[1,]", "[1 2]", "{\"a\":1}x", "nul",     "tru",
                                       "\"a",        "\"\\", "{a:1}", "+1",         "[\"\n\"]"};
    (void)state;
    struct mc_span value;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_int_equal(mc_json_find(mc_span_string(rows[i]), "a", &value), MC_ERR_PROTOCOL);
    for (size_t length = 0; length < sizeof(answer) - 1; length++) {
        char *copy = malloc(length + 1); /* of that size, so that a step beyond it is seen */
        assert_non_null(copy);
        memcpy(copy, answer, length);
        assert_int_equal(mc_json_find(mc_span(copy, length), "kvs.0.value", &value), MC_ERR_PROTOCOL);
        free(copy);
    }
    char deep[MC_JSON_DEPTH_MAX * 4];
    memset(deep, '[', sizeof(deep));
    assert_int_equal(mc_json_find(mc_span(deep, sizeof(deep)), "0", &value), MC_ERR_PROTOCOL);
}

static void base64(void **state)
{
    uint8_t bytes[70];
    (void)state;
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i * 37 + 250);
    for (size_t length = 0; length <= sizeof(bytes); length++) {
        struct mc_buffer text = {0}, back = {0};
        mc_base64_encode(&text, mc_span(bytes, length));
        assert_int_equal(text.length, (length + 2) / 3 * 4);
        assert_int_equal(mc_base64_decode(&back, mc_span(text.data, text.length)), 0);
        assert_true(mc_span_equal(mc_span(back.data, back.length), mc_span(bytes, length)));
        mc_buffer_free(&text);
        mc_buffer_free(&back);
    }
    static const char *const bad[] = {"a", "abc", "ab=c", "====", "a===", "ab\n=", "YQ==YQ==", "a b="};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct mc_buffer back = {0};
        assert_int_equal(mc_base64_decode(&back, mc_span_string(bad[i])), MC_ERR_PROTOCOL);
        mc_buffer_free(&back);
    }
}

static void endpoints(void **state)
{
    static const struct {
        const char *text;
        int rc;
    } rows[] = {{"a:1", 0},
                {"a", 0},
                {"http://a:1/;http://b:2", 0},
                {"a:1,b:2 c:3;;", 0},
                {"[::1]:5", 0},
                {"", MC_ERR_INVALID_PARAMS},
                {";,", MC_ERR_INVALID_PARAMS},
                {"https://a:1", 0},
                {"https://a:1,http://b:2;c", 0},
                {"user:secret@a:1", MC_ERR_INVALID_PARAMS},
                {"https://user:secret@a:1", MC_ERR_INVALID_PARAMS},
                {"a:0", MC_ERR_INVALID_PARAMS},
                {"a:99999", MC_ERR_INVALID_PARAMS},
                {"a/b", MC_ERR_INVALID_PARAMS}};
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct mc_etcd *etcd = NULL;
        char error[512] = "";
        assert_int_equal(mc_etcd_create(rows[i].text, &etcd, error, sizeof(error)), rows[i].rc);
        assert_int_equal(error[0] != 0, rows[i].rc < 0);
        assert_null(strstr(error, "secret"));
        mc_etcd_destroy(etcd);
    }
}

/* ---- a server that answers one text to every request, in pieces ---- */

struct server {
    _Atomic(const char *) text;
    size_t piece; /* bytes at once */
    _Atomic unsigned late_ms, requests;
    int listener;
    uint16_t port;
    pthread_t thread;
};

static void *serve(void *argument)
{
    struct server *server = argument;
    for (;;) {
        int fd = accept(server->listener, NULL, NULL);
        char request[4096];
        if (fd < 0)
            return NULL;
        for (ssize_t got; (got = recv(fd, request, sizeof(request) - 1, 0)) > 0;) {
            request[got] = 0;
            for (const char *at = request; (at = strstr(at, "POST ")) != NULL; at++)
                server->requests++;
            usleep(server->late_ms * 1000);
            const char *text = server->text;
            size_t length = strlen(text);
            for (size_t at = 0; at < length; at += server->piece) {
                size_t size = length - at < server->piece ? length - at : server->piece;
                if (send(fd, text + at, size, MSG_NOSIGNAL) < 0)
                    break;
            }
        }
        close(fd);
    }
}

static void start(struct server *server, const char *text, size_t piece)
{
    *server = (struct server){.text = text, .piece = piece};
    server->listener = mc_tcp_listen("127.0.0.1", &server->port);
    assert_true(server->listener >= 0);
    assert_int_equal(fcntl(server->listener, F_SETFL, 0), 0); /* this server blocks */
    assert_int_equal(pthread_create(&server->thread, NULL, serve, server), 0);
}

static void stop(struct server *server)
{
    shutdown(server->listener, SHUT_RDWR);
    pthread_join(server->thread, NULL);
    close(server->listener);
}

static void answers(void **state)
{
#define HEAD "HTTP/1.1 200 OK\r\n"
    static const struct {
        const char *text;
        int rc;
        const char *body;
    } rows[] = {
        {HEAD "Content-Length: 2\r\n\r\n{}", 0, "{}"},
        {HEAD "content-length:0\r\n\r\n", 0, ""},
        {HEAD "Transfer-Encoding: chunked\r\n\r\n3\r\n{\"a\r\n5;x\r\n\":1}\n\r\n0\r\n\r\n", 0, "{\"a\":1}\n"},
        {HEAD "Connection: close\r\nContent-Length: 1\r\n\r\n1", 0, "1"},
        {"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nbad", MC_ERR_ETCD_OPERATION_ERROR, "bad"},
        {"HTTP/1.1 429 Too Many Requests\r\nTrailer: T\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfull\r\n0\r\nT: "
         "x\r\n\r\n",
         MC_ERR_ETCD_OPERATION_ERROR, "full"},
        {"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n", MC_ERR_RPC_FAIL, NULL},
        {HEAD "\r\n", MC_ERR_PROTOCOL, NULL},
        {HEAD "Content-Length: 99999999999\r\n\r\n", MC_ERR_PROTOCOL, NULL},
        {HEAD "Transfer-Encoding: chunked\r\n\r\nzz\r\n", MC_ERR_PROTOCOL, NULL},
        {"SSH-2.0-OpenSSH\r\n\r\n", MC_ERR_PROTOCOL, NULL},
        {HEAD "Content-Length: 9\r\n\r\nshort", MC_ERR_RPC_TIMEOUT, NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        for (size_t piece = 1; piece <= 4096; piece *= 64) {
            struct server server;
            char address[64], error[256];
            struct mc_etcd *etcd = NULL;
            struct mc_buffer reply = {0};
            start(&server, rows[i].text, piece);
            snprintf(address, sizeof(address), "127.0.0.1:%u", server.port);
            assert_int_equal(mc_etcd_create(address, &etcd, error, sizeof(error)), 0);
            for (int again = 0; again < 2; again++) { /* the second on the same connection, if it was kept */
                uint64_t start_ns = mc_clock_ns(), limit_ns = rows[i].body != NULL ? 5000000000 : 150000000;
                int rc = mc_etcd_call(etcd, "/x", mc_span_string("{}"), start_ns + limit_ns, &reply);
                if (rows[i].body != NULL) {
                    assert_int_equal(rc, rows[i].rc);
                    assert_true(mc_span_equal(mc_span(reply.data, reply.length), mc_span_string(rows[i].body)));
                } else {
                    assert_true(rc < 0);
                    assert_true(mc_clock_ns() - start_ns < limit_ns + 500000000);
                }
            }
            mc_etcd_destroy(etcd);
            mc_buffer_free(&reply);
            stop(&server);
        }
    }
}

static void the_leader_is_found_behind_a_dead_member(void **state)
{
    (void)state;
    struct server server;
    uint16_t dead_port = 0;
    char address[128], text[MC_ADDRESS_MAX];
    int dead = mc_tcp_listen("127.0.0.1", &dead_port); /* takes connections and never answers */
    assert_true(dead >= 0);
    static const char body[] = "{\"kvs\":[{\"value\":\"MTI3LjAuMC4xOjUwMDUx\"}]}";
    char whole[256];
    snprintf(whole, sizeof(whole), HEAD "Content-Length: %zu\r\n\r\n%s", strlen(body), body);
    start(&server, whole, 4096);
    for (int i = 0; i < 4; i++) {
        snprintf(address, sizeof(address), "etcd://127.0.0.1:%u,127.0.0.1:%u%s", dead_port, server.port,
                 i % 2 == 0 ? "" : "/cluster");
        assert_int_equal(mc_leader_find(address, mc_clock_ns() + 5000000000u, text, sizeof(text)), 0);
        assert_string_equal(text, "127.0.0.1:50051");
    }
    server.text = HEAD "Content-Length: 2\r\n\r\n{}";
    assert_int_equal(mc_leader_find(address, mc_clock_ns() + 5000000000u, text, sizeof(text)),
                     MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
    stop(&server);
    assert_int_equal(mc_leader_find(address, mc_clock_ns() + 100000000u, text, sizeof(text)) < 0, 1);
    close(dead);
    assert_int_equal(mc_leader_find("etcd://", mc_clock_ns() + 100000000u, text, sizeof(text)), MC_ERR_INVALID_PARAMS);
    assert_int_equal(mc_leader_find("host:1", mc_clock_ns() + 100000000u, text, sizeof(text)), MC_ERR_INVALID_PARAMS);
    assert_true(mc_leader_is_election("etcd://a") && !mc_leader_is_election("a:1") && !mc_leader_is_election(""));
}

/* Answers that take longer than the patience count all the same, and are not asked for again and again. */
static void late_answers_count(void **state)
{
    (void)state;
    struct server server;
    char address[64], error[256];
    struct mc_etcd *etcd = NULL;
    struct mc_buffer reply = {0};
    start(&server, HEAD "Content-Length: 2\r\n\r\n{}", 4096);
    snprintf(address, sizeof(address), "127.0.0.1:%u", server.port);
    assert_int_equal(mc_etcd_create(address, &etcd, error, sizeof(error)), 0);
    mc_etcd_patience(etcd, 50);
    server.late_ms = 300;
    for (unsigned i = 1; i <= 3; i++) {
        uint64_t start_ns = mc_clock_ns();
        assert_int_equal(mc_etcd_call(etcd, "/x", mc_span_string("{}"), start_ns + 5000000000u, &reply), 0);
        assert_true(mc_clock_ns() - start_ns >= 300000000);
        assert_true(server.requests <= i * MC_ASKER_QUESTIONS_MAX);
    }
    uint64_t start_ns = mc_clock_ns(); /* but for no longer than the caller can wait */
    assert_int_equal(mc_etcd_call(etcd, "/x", mc_span_string("{}"), start_ns + 100000000, &reply), MC_ERR_RPC_TIMEOUT);
    assert_true(mc_clock_ns() - start_ns < 250000000);
    mc_etcd_destroy(etcd);
    mc_buffer_free(&reply);
    stop(&server);
}

/* More of them than are asked at once; and a connection that is dead without a word. */
static void members_that_hang_are_left(void **state)
{
    (void)state;
    enum { HANGING = MC_ASKER_QUESTIONS_MAX + 1 };
    struct server server;
    struct mc_etcd *etcd = NULL;
    struct mc_buffer reply = {0};
    char address[256] = "", error[256];
    int hanging[HANGING];
    start(&server, HEAD "Content-Length: 2\r\n\r\n{}", 4096);
    for (int i = 0; i < HANGING; i++) {
        uint16_t port = 0;
        hanging[i] = mc_tcp_listen("127.0.0.1", &port);
        assert_true(hanging[i] >= 0);
        snprintf(address + strlen(address), sizeof(address) - strlen(address), "127.0.0.1:%u;", port);
    }
    snprintf(address + strlen(address), sizeof(address) - strlen(address), "127.0.0.1:%u", server.port);
    assert_int_equal(mc_etcd_create(address, &etcd, error, sizeof(error)), 0);
    mc_etcd_patience(etcd, 50);
    mc_etcd_prefer(etcd, 0);
    for (int again = 0; again < 3; again++) { /* from then on the one that answers is asked first */
        uint64_t start_ns = mc_clock_ns();
        assert_int_equal(mc_etcd_call(etcd, "/x", mc_span_string("{}"), start_ns + 5000000000u, &reply), 0);
        uint64_t took_ns = mc_clock_ns() - start_ns;
        assert_true(again == 0 ? took_ns >= HANGING * 50000000ull : took_ns < 1000000000);
        assert_int_equal(mc_etcd_current(etcd), HANGING);
    }
    assert_int_equal(server.requests, 3);
    mc_etcd_destroy(etcd);
    mc_buffer_free(&reply);
    stop(&server);
    for (int i = 0; i < HANGING; i++)
        close(hanging[i]);
}

/* A connection that is kept is asked once a question. */
static void each_question_is_asked_once(void **state)
{
    (void)state;
    struct server server;
    char address[64], error[512];
    struct mc_etcd *etcd = NULL;
    struct mc_buffer reply = {0};
    start(&server, HEAD "Content-Length: 2\r\n\r\n{}", 4096);
    snprintf(address, sizeof(address), "127.0.0.1:%u", server.port);
    assert_int_equal(mc_etcd_create(address, &etcd, error, sizeof(error)), 0);
    mc_etcd_patience(etcd, 60000);
    for (unsigned i = 1; i <= 20; i++) {
        assert_int_equal(mc_etcd_call(etcd, "/x", mc_span_string("{}"), mc_clock_ns() + 60000000000u, &reply), 0);
        usleep(1000);
        assert_int_equal(server.requests, i);
    }
    mc_etcd_destroy(etcd);
    mc_buffer_free(&reply);
    stop(&server);
    assert_int_equal(server.requests, 20);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_question_is_asked_once),
        cmocka_unit_test(late_answers_count),
        cmocka_unit_test(members_that_hang_are_left),
        cmocka_unit_test(json_finds),
        cmocka_unit_test(json_refuses),
        cmocka_unit_test(base64),
        cmocka_unit_test(endpoints),
        cmocka_unit_test(answers),
        cmocka_unit_test(the_leader_is_found_behind_a_dead_member),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
