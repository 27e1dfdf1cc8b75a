/* env/redis: what a server may answer, whole, in pieces, cut, wrong, and never. A real one is asked in tests/system. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/error.h"
#include "env/clock.h"
#include "env/redis.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CALL_MS 2000u

struct server { /* answers one connection, one text for each command, byte by byte if it is told so */
    int listener;
    const char *const *answers;
    size_t piece; /* 0: whole */
    char heard[4096];
    size_t heard_length;
    pthread_t thread;
};

static void answer(int fd, const char *text, size_t piece)
{
    size_t length = strlen(text);
    for (size_t at = 0, size; at < length; at += size) {
        size = piece == 0 || piece > length - at ? length - at : piece;
        struct iovec part = {(void *)(uintptr_t)(text + at), size};
        if (mc_socket_send(fd, &part, 1, mc_clock_ns() + 1000000000u) < 0)
            return;
    }
}

static void *serve(void *argument)
{
    struct server *server = argument;
    int fd = -1;
    while (fd < 0) {
        fd = mc_socket_accept(server->listener);
        usleep(1000);
    }
    for (size_t i = 0; server->answers[i] != NULL; i++) {
        int64_t got =
            mc_socket_receive(fd, server->heard + server->heard_length, sizeof(server->heard) - server->heard_length,
                              mc_clock_ns() + CALL_MS * 1000000ull, NULL);
        if (got < 0)
            break;
        server->heard_length += (size_t)got;
        answer(fd, server->answers[i], server->piece);
    }
    close(fd);
    return NULL;
}

/* What mc_redis_call makes of these answers; *heard is what the server was told. */
static int ask(struct mc_redis_login *login, const char *const *answers, size_t piece, struct mc_buffer *reply,
               struct server *server)
{
    char address[MC_ADDRESS_MAX];
    uint16_t port = 0;
    *server = (struct server){.answers = answers, .piece = piece};
    server->listener = mc_tcp_listen("127.0.0.1", &port);
    assert_true(server->listener >= 0);
    assert_int_equal(pthread_create(&server->thread, NULL, serve, server), 0);
    mc_address_join(address, sizeof(address), "127.0.0.1", port);
    login->address = address;
    struct mc_span words[2] = {mc_span_string("GET"), mc_span_string("key")};
    int rc = mc_redis_call(login, words, 2, mc_clock_ns() + CALL_MS * 1000000ull, reply);
    pthread_join(server->thread, NULL);
    close(server->listener);
    return rc;
}

static void answers(void **state)
{
    static const struct {
        const char *answer, *text;
        int rc;
    } rows[] = {
        {"$5\r\nhe\r\no\r\n", "he\r\no", 1},
        {"$0\r\n\r\n", "", 1},
        {"$-1\r\n", "", 0},
        {"+OK\r\n", "OK", 1},
        {":7\r\n", "", 1},
        {"-WRONGTYPE no\r\n", "WRONGTYPE no", MC_ERR_INVALID_PARAMS},
        {"-\r\n", "", MC_ERR_INVALID_PARAMS},
        {"*2\r\n$1\r\na\r\n$1\r\nb\r\n", "", MC_ERR_PROTOCOL},
        {"*0\r\n", "", MC_ERR_PROTOCOL},
        {"*-1\r\n", "", 0},
        {"hello\r\n", "", MC_ERR_PROTOCOL},
        {"HTTP/1.1 400 Bad Request\r\n\r\n", "", MC_ERR_PROTOCOL},
        {"$-2\r\n", "", MC_ERR_PROTOCOL},
        {"$x\r\n", "", MC_ERR_PROTOCOL},
        {"$99999999999999999999\r\n", "", MC_ERR_PROTOCOL},
        {"*9223372036854775807\r\n", "", MC_ERR_PROTOCOL},
        {"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n", "", MC_ERR_PROTOCOL}, /* too deep */
        {"$100\r\nshort\r\n", "", MC_ERR_RPC_FAIL}, /* and then it hangs up */
        {"$5\r\nhel", "", MC_ERR_RPC_FAIL},
        {"*1000000000\r\n$1\r\na\r\n", "", MC_ERR_RPC_FAIL},
        {"", "", MC_ERR_RPC_FAIL},
    };
    (void)state;
    struct mc_redis_login login = {0};
    struct mc_buffer reply = {0};
    struct server server;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        for (size_t piece = 0; piece < 3; piece++) {
            const char *const texts[] = {rows[i].answer, NULL};
            int rc = ask(&login, texts, piece, &reply, &server);
            if (rc != rows[i].rc)
                fail_msg("%s in pieces of %zu: %d", rows[i].answer, piece, rc);
            if (rc >= 0 || rc == MC_ERR_INVALID_PARAMS)
                assert_true(mc_span_equal(mc_span(reply.data, reply.length), mc_span_string(rows[i].text)));
            assert_string_equal(server.heard, "*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n");
        }
    }
    mc_buffer_free(&reply);
}

/* The command goes out only behind a login that was taken. */
static void logins(void **state)
{
    static const struct {
        const char *user, *password;
        unsigned database;
        const char *answers[4], *heard; /* of the login */
        int rc;
    } rows[] = {
        {"", "pw", 0, {"+OK\r\n", "$1\r\nx\r\n"}, "*2\r\n$4\r\nAUTH\r\n$2\r\npw\r\n", 1},
        {"me",
         "p w",
         3,
         {"+OK\r\n", "+OK\r\n", "$1\r\nx\r\n"},
         "*3\r\n$4\r\nAUTH\r\n$2\r\nme\r\n$3\r\np w\r\n*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n",
         1},
        {"me", "", 255, {"+OK\r\n", "$1\r\nx\r\n"}, "*2\r\n$6\r\nSELECT\r\n$3\r\n255\r\n", 1},
        {"", "bad", 1, {"-WRONGPASS\r\n"}, "*2\r\n$4\r\nAUTH\r\n$3\r\nbad\r\n", MC_ERR_INVALID_PARAMS},
        {"", "", 16, {"-ERR DB index\r\n"}, "*2\r\n$6\r\nSELECT\r\n$2\r\n16\r\n", MC_ERR_INVALID_PARAMS},
        {"", "pw", 0, {"$-1\r\n"}, "*2\r\n$4\r\nAUTH\r\n$2\r\npw\r\n", MC_ERR_PROTOCOL},
    };
    (void)state;
    struct mc_buffer reply = {0};
    struct server server;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char heard[256];
        struct mc_redis_login login = {NULL, rows[i].user, rows[i].password, rows[i].database, NULL};
        assert_int_equal(ask(&login, rows[i].answers, 0, &reply, &server), rows[i].rc);
        snprintf(heard, sizeof(heard), "%s%s", rows[i].heard,
                 rows[i].rc == 1 ? "*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n" : "");
        assert_string_equal(server.heard, heard);
    }
    mc_buffer_free(&reply);
}

/* Nobody there; somebody who takes the connection and is silent: the deadline. */
static void silence(void **state)
{
    (void)state;
    char address[MC_ADDRESS_MAX];
    struct mc_buffer reply = {0};
    struct mc_span word = mc_span_string("PING");
    struct mc_redis_login login = {.address = "127.0.0.1:1"};
    assert_int_equal(mc_redis_call(&login, &word, 1, mc_clock_ns() + 1000000000u, &reply), MC_ERR_RPC_FAIL);
    uint16_t port = 0;
    int listener = mc_tcp_listen("127.0.0.1", &port);
    mc_address_join(address, sizeof(address), "127.0.0.1", port);
    login.address = address;
    assert_int_equal(mc_redis_call(&login, &word, 1, mc_clock_ns() + 100000000u, &reply), MC_ERR_RPC_TIMEOUT);
    close(listener);
    mc_buffer_free(&reply);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(answers), cmocka_unit_test(logins), cmocka_unit_test(silence)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
