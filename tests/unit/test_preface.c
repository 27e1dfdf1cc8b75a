/* transfer/wire/preface: both ends of it against each other and against liars. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/error.h"
#include "env/clock.h"
#include "own_stack.h"
#include "transfer/wire/preface.h"
#include "transfer/wire/tcp_wire.h"
#include "transfer_world.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define A64 "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF"

static const enum mc_preface_port ports[] = {MC_PREFACE_HANDSHAKE, MC_PREFACE_DATA, MC_PREFACE_HOST};
enum { PORTS = 3 };

static void have(const char *token)
{
    char error[1024];
    unsetenv("MC_AUTH_FILE");
    if (token == NULL)
        unsetenv("MC_AUTH_TOKEN");
    else
        setenv("MC_AUTH_TOKEN", token, 1);
    assert_int_equal(mc_keys_check(error, sizeof(error)), 0);
}

struct caller { /* a thread */
    int fd, rc;
    enum mc_preface_port port;
    uint64_t within_ns;
    pthread_t thread;
};

static void *caller_main(void *argument)
{
    struct caller *caller = argument;
    caller->rc = mc_preface_prove(caller->fd, caller->port, "a test", mc_clock_ns() + caller->within_ns, NULL, NULL);
    (void)shutdown(caller->fd, SHUT_WR);
    return NULL;
}

/* The caller's thread, and our end of its connection. */
static int call(struct caller *caller, enum mc_preface_port port)
{
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    *caller = (struct caller){.fd = fds[0], .port = port, .within_ns = 20 * SECOND_NS};
    assert_int_equal(pthread_create(&caller->thread, NULL, caller_main, caller), 0);
    return fds[1];
}

static int end(struct caller *caller, int fd)
{
    assert_int_equal(pthread_join(caller->thread, NULL), 0);
    close(caller->fd);
    if (fd >= 0)
        close(fd);
    return caller->rc;
}

/* Serves it in pieces of `piece` bytes; what mc_preface_received has said last. */
static int serve(struct mc_preface *preface, int fd, size_t piece)
{
    for (;;) {
        uint8_t *at;
        size_t room = mc_preface_window(preface, &at);
        assert_true(room > 0);
        ssize_t got = recv(fd, at, room < piece ? room : piece, 0);
        if (got <= 0)
            return MC_ERR_RPC_FAIL;
        int rc = mc_preface_received(preface, (size_t)got);
        if (rc == 1 || (rc < 0 && preface->challenge.magic != 0))
            assert_int_equal(send(fd, &preface->challenge, sizeof(preface->challenge), MSG_NOSIGNAL),
                             sizeof(preface->challenge));
        if (rc < 0 || rc == 2)
            return rc;
    }
}

static void both_ends_agree(void **state)
{
    struct caller caller;
    (void)state;
    have("me:" A64);
    for (int i = 0; i < PORTS; i++)
        for (size_t piece = 1; piece < 200; piece += 33) {
            struct mc_preface preface = {.port = ports[i]};
            int fd = call(&caller, ports[i]);
            assert_int_equal(serve(&preface, fd, piece), 2);
            assert_string_equal(preface.key.id, "me");
            assert_int_equal(preface.key.rights, MC_RIGHTS_ALL);
            static const uint8_t none[MC_KEY_SECRET_BYTES];
            assert_memory_equal(preface.key.secret, none, sizeof(none));
            assert_int_equal(end(&caller, fd), 0);
        }
}

struct server { /* a thread */
    struct mc_preface preface;
    int fd, rc;
    bool is_false;
};

static void *server_main(void *argument)
{
    struct server *server = argument;
    struct mc_preface_challenge wrong = {.magic = 0};
    if (server->is_false)
        server->rc = (int)send(server->fd, &wrong, sizeof(wrong), MSG_NOSIGNAL);
    else
        server->rc = serve(&server->preface, server->fd, 64);
    return NULL;
}

/* Also where it ends in the midst of it. */
static void no_secret_stays_on_the_callers_stack(void **state)
{
    static struct caller caller;
    (void)state;
    have("me:" A64);
    struct mc_key key;
    assert_true(mc_keys_own(&key));
    for (int is_false = 0; is_false < 2; is_false++) {
        int fds[2];
        pthread_t thread;
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
        struct server server = {.preface = {.port = MC_PREFACE_DATA}, .fd = fds[1], .is_false = is_false != 0};
        caller = (struct caller){.fd = fds[0], .port = MC_PREFACE_DATA, .within_ns = 20 * SECOND_NS};
        assert_int_equal(pthread_create(&thread, NULL, server_main, &server), 0);
        assert_int_equal(left_on_stack(caller_main, &caller, key.secret, sizeof(key.secret)), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(caller.rc, is_false ? MC_ERR_PROTOCOL : 0);
        assert_int_equal(server.rc, is_false ? (int)sizeof(struct mc_preface_challenge) : 2);
        close(fds[0]);
        close(fds[1]);
    }
}

static void without_keys_nothing_is_said(void **state)
{
    struct caller caller;
    char byte;
    (void)state;
    have(NULL);
    int fd = call(&caller, MC_PREFACE_DATA);
    assert_int_equal(recv(fd, &byte, 1, 0), 0);
    assert_int_equal(end(&caller, fd), 0);
}

/* Who is meant is proved: what holds at one port is nothing at another. */
static void another_port(void **state)
{
    struct caller caller;
    (void)state;
    have("me:" A64);
    for (int i = 0; i < PORTS; i++) {
        struct mc_preface preface = {.port = ports[i]};
        int fd = call(&caller, ports[(i + 1) % PORTS]);
        assert_int_equal(serve(&preface, fd, 200), MC_ERR_PROTOCOL);
        assert_int_equal(preface.challenge.magic, 0);
        close(fd);
        assert_int_equal(end(&caller, -1), MC_ERR_RPC_FAIL);
    }
}

static int receive(struct mc_preface *preface, const void *bytes, size_t length)
{
    uint8_t *at;
    assert_true(length <= mc_preface_window(preface, &at));
    memcpy(at, bytes, length);
    return mc_preface_received(preface, length);
}

/* It is seen by its first wrong byte, and only the handshake port says something. */
static void who_begins_otherwise_has_no_key(void **state)
{
    (void)state;
    have("me:" A64);
    for (int i = 0; i < PORTS; i++) {
        struct mc_preface preface = {.port = ports[i]};
        assert_int_equal(receive(&preface, "mc-aut", 6), 0);
        assert_int_equal(receive(&preface, "x", 1), MC_ERR_NOT_PERMITTED);
        assert_non_null(strstr(mc_preface_fault(&preface, MC_ERR_NOT_PERMITTED), "has shown no key"));
        static const char much[sizeof(struct mc_preface_auth)] = "{}";
        struct mc_preface other = {.port = ports[i]};
        assert_int_equal(receive(&other, much, sizeof(much)), MC_ERR_NOT_PERMITTED);
        assert_non_null(strstr(mc_preface_fault(&other, MC_ERR_NOT_PERMITTED), "has shown no key"));
        bool says = preface.challenge.magic != 0;
        assert_int_equal(says, ports[i] == MC_PREFACE_HANDSHAKE);
        if (says)
            assert_true(mc_preface_is_refusal(mc_span(&preface.challenge, sizeof(preface.challenge))));
    }
    assert_false(mc_preface_is_refusal(mc_span("mc-chal", 7)));
    assert_false(mc_preface_is_refusal(mc_span("mc-chalx", 8)));
}

/* The whole first message of a caller. */
static struct mc_preface_auth auth_of(enum mc_preface_port port)
{
    struct caller caller;
    struct mc_preface_auth auth;
    int fd = call(&caller, port);
    assert_int_equal(recv(fd, &auth, sizeof(auth), MSG_WAITALL), sizeof(auth));
    close(fd);
    assert_true(end(&caller, -1) < 0);
    return auth;
}

static void names_that_are_none(void **state)
{
    (void)state;
    have("me:" A64);
    struct mc_preface_auth good = auth_of(MC_PREFACE_DATA), bad = good;
    struct mc_preface preface = {.port = MC_PREFACE_DATA};
    memset(bad.key, 0, sizeof(bad.key));
    assert_int_equal(receive(&preface, &bad, sizeof(bad)), MC_ERR_PROTOCOL);
    preface = (struct mc_preface){.port = MC_PREFACE_DATA};
    memset(bad.key, 'x', sizeof(bad.key));
    assert_int_equal(receive(&preface, &bad, sizeof(bad)), MC_ERR_PROTOCOL);
    preface = (struct mc_preface){.port = MC_PREFACE_DATA};
    bad.key[3] = 0;
    assert_int_equal(receive(&preface, &bad, sizeof(bad)), MC_ERR_NOT_PERMITTED);
    assert_int_equal(preface.challenge.code, MC_ERR_NOT_PERMITTED);
    assert_non_null(strstr(mc_preface_fault(&preface, MC_ERR_NOT_PERMITTED), "none of ours"));
}

/* Every bit of a proof counts, and what was proved once is nothing later. */
static void proofs_that_are_none(void **state)
{
    struct caller caller;
    struct mc_preface_proof proof;
    (void)state;
    have("me:" A64);
    struct mc_preface preface = {.port = MC_PREFACE_DATA};
    int fd = call(&caller, MC_PREFACE_DATA);
    while (!preface.is_asked) {
        uint8_t *at;
        size_t room = mc_preface_window(&preface, &at);
        ssize_t got = recv(fd, at, room, 0);
        assert_true(got > 0 && mc_preface_received(&preface, (size_t)got) >= 0);
    }
    assert_int_equal(send(fd, &preface.challenge, sizeof(preface.challenge), 0), sizeof(preface.challenge));
    assert_int_equal(recv(fd, &proof, sizeof(proof), MSG_WAITALL), sizeof(proof));
    assert_int_equal(end(&caller, fd), 0);
    for (unsigned bit = 0; bit < 8 * sizeof(proof); bit++) {
        struct mc_preface_proof bent = proof;
        struct mc_preface again = preface;
        ((uint8_t *)&bent)[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(receive(&again, &bent, sizeof(bent)),
                         bit < 8 * sizeof(bent.magic) ? MC_ERR_PROTOCOL : MC_ERR_NOT_PERMITTED);
    }
    struct mc_preface once = preface;
    assert_int_equal(receive(&once, &proof, sizeof(proof)), 2);
    struct mc_preface later = {.port = MC_PREFACE_DATA};
    struct mc_preface_auth same = auth_of(MC_PREFACE_DATA);
    assert_int_equal(receive(&later, &same, sizeof(same)), 1);
    assert_int_equal(receive(&later, &proof, sizeof(proof)), MC_ERR_NOT_PERMITTED);
    assert_non_null(strstr(mc_preface_fault(&later, MC_ERR_NOT_PERMITTED), "the secret"));
}

/* Nothing of ours is proved to who does not prove the same key first. */
static void false_servers(void **state)
{
    struct mc_preface_challenge answers[4] = {{.magic = 1}, {.code = MC_ERR_NOT_PERMITTED}, {.code = 1}, {.code = 0}};
    const int expected[4] = {MC_ERR_PROTOCOL, MC_ERR_NOT_PERMITTED, MC_ERR_PROTOCOL, MC_ERR_NOT_PERMITTED};
    (void)state;
    have("me:" A64);
    for (int i = 0; i < 4; i++) {
        struct caller caller;
        struct mc_preface_auth auth;
        uint8_t byte;
        int fd = call(&caller, MC_PREFACE_HANDSHAKE);
        assert_int_equal(recv(fd, &auth, sizeof(auth), MSG_WAITALL), sizeof(auth));
        if (i > 0)
            memcpy(&answers[i].magic, "mc-chal1", 8);
        assert_int_equal(send(fd, &answers[i], sizeof(answers[i]), 0), sizeof(answers[i]));
        assert_int_equal(recv(fd, &byte, 1, 0), 0);
        assert_int_equal(end(&caller, fd), expected[i]);
    }
}

static void a_silent_server_is_left_at_the_deadline(void **state)
{
    (void)state;
    have("me:" A64);
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    uint64_t begun_ns = mc_clock_ns();
    assert_int_equal(mc_preface_prove(fds[0], MC_PREFACE_DATA, "a test", begun_ns + SECOND_NS / 5, NULL, NULL),
                     MC_ERR_RPC_TIMEOUT);
    assert_true(mc_clock_ns() - begun_ns >= SECOND_NS / 5);
    close(fds[0]);
    close(fds[1]);
}

/* What a stranger is told there who asks for eight bytes of that memory. */
static int64_t stranger_gets(uint16_t port, const void *memory)
{
    struct mc_tcp_header header = {8, (uintptr_t)memory, MC_TRANSFER_READ | MC_TCP_OPCODE_VERSION_2, {0}};
    char address[MC_ADDRESS_MAX];
    uint8_t answer[64];
    mc_address_join(address, sizeof(address), "127.0.0.1", port);
    int fd = mc_tcp_connect(address, mc_clock_ns() + 20 * SECOND_NS);
    struct iovec part = {&header, sizeof(header)};
    assert_true(fd >= 0 && mc_socket_send(fd, &part, 1, mc_clock_ns() + 20 * SECOND_NS) == 0);
    int64_t got = mc_socket_receive(fd, answer, sizeof(answer), mc_clock_ns() + 20 * SECOND_NS, NULL);
    close(fd);
    return got;
}

/* Whole engines: questions, data, and its connections used again. */
static void engines_with_keys(void **state)
{
    struct world world;
    (void)state;
    have("me:" A64);
    world_open(&world);
    const char *far = mc_transfer_name(world.far);
    struct mc_transfer_item item = {world.near_memory, (uintptr_t)world.far_memory, MEMORY};
    for (int i = 1; i < 4; i++) {
        memset(world.near_seen, i, MEMORY);
        assert_int_equal(mc_transfer_run(world.near, far, MC_TRANSFER_WRITE, &item, 1, NULL), 0);
        assert_memory_equal(world.far_seen, world.near_seen, MEMORY);
    }
    assert_int_equal(mc_transfer_probe(world.near, far), 0);
    assert_int_equal(stranger_gets(world.far->data_port, world.far_memory), MC_ERR_RPC_FAIL);
    have(NULL);
    assert_true(stranger_gets(world.far->data_port, world.far_memory) > 0); /* it is a true request */
    world_close(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_ends_agree),     cmocka_unit_test(without_keys_nothing_is_said),
        cmocka_unit_test(another_port),        cmocka_unit_test(who_begins_otherwise_has_no_key),
        cmocka_unit_test(names_that_are_none), cmocka_unit_test(proofs_that_are_none),
        cmocka_unit_test(false_servers),       cmocka_unit_test(a_silent_server_is_left_at_the_deadline),
        cmocka_unit_test(engines_with_keys),   cmocka_unit_test(no_secret_stays_on_the_callers_stack),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
