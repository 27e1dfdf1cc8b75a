/* env/secure and both halves of env/tls: who is let in and what is said at each end when not; sockets that take little;
 * what is here and no poll sees; renewed files under load; memory; forks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/error.h"
#include "env/clock.h"
#include "env/secure.h"
#include "env/socket.h"

#include <errno.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECOND 1000000000ull
#define LONG (60 * SECOND) /* nothing is judged by it */
#define NODES 200u
#define NODE_BYTES_MAX (64u << 10) /* of one connection that rests, both ends of it */

static char folder[64];
static int listener;
static uint16_t port;

static const char *in_folder(const char *name)
{
    static char paths[16][128];
    static unsigned turn;
    char *path = paths[turn++ % 16];
    snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

static int make_files(void **state)
{
    char command[2048];
    const char *source = getenv("MC_SOURCE");
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/mc-secure-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(command, sizeof(command),
             "python3 -B -c \"\n"
             "import sys; sys.path.insert(1, '%s/tests/system')\n"
             "from certificates import Authority\n"
             "ca, other = Authority('%s', 'ca'), Authority('%s', 'other')\n"
             "here = ['DNS:localhost', 'IP:127.0.0.1']\n"
             "ca.sign('server', here); ca.sign('renewed', here); ca.sign('named', ['DNS:node.example.org'])\n"
             "ca.sign('expired', here, days=-1); other.sign('unknown', here)\n\"",
             source == NULL ? "." : source, folder, folder);
    assert_int_equal(system(command), 0);
    port = 0;
    listener = mc_tcp_listen("127.0.0.1", &port);
    assert_true(listener >= 0);
    return 0;
}

static int remove_files(void **state)
{
    char command[128];
    (void)state;
    close(listener);
    snprintf(command, sizeof(command), "rm -r %s", folder);
    return system(command);
}

/* ---- one process at both ends ---- */

static void set(const char *name, const char *file)
{
    if (file == NULL)
        unsetenv(name);
    else
        setenv(name, in_folder(file), 1);
}

/* What this process shows and believes, NULL: nothing. The same at both ends, but where a test says otherwise. */
static void environment(const char *authority, const char *pair, const char *callers)
{
    char key[64];
    set("MC_TLS_CA_CERT", authority);
    set("MC_TLS_CLIENT_CA_CERT", callers);
    unsetenv("MC_TLS_SERVER_NAME");
    if (pair == NULL) {
        set("MC_TLS_CERT", NULL);
        set("MC_TLS_KEY", NULL);
        return;
    }
    snprintf(key, sizeof(key), "%s.pem", pair);
    set("MC_TLS_CERT", key);
    snprintf(key, sizeof(key), "%s.key", pair);
    set("MC_TLS_KEY", key);
}

struct ends {
    int caller, server;
};

static struct ends connected(void)
{
    char address[64];
    snprintf(address, sizeof(address), "127.0.0.1:%u", (unsigned)port);
    struct ends ends = {.caller = mc_tcp_connect(address, mc_clock_ns() + LONG)};
    assert_true(ends.caller >= 0);
    assert_int_equal(mc_socket_wait_read(listener, mc_clock_ns() + LONG, NULL), 0);
    ends.server = mc_socket_accept(listener);
    assert_true(ends.server >= 0);
    return ends;
}

static void disconnect(struct ends ends)
{
    mc_fd_close(ends.caller);
    mc_fd_close(ends.server);
}

static const char *address_of_server(void)
{
    static char address[64];
    snprintf(address, sizeof(address), "127.0.0.1:%u", (unsigned)port);
    return address;
}

/* Both ends go on until one is at an end: 1 or negative of each. */
static void shake_both(struct ends ends, int *caller, int *server)
{
    *caller = *server = 0;
    for (int i = 0; i < 1000 && (*caller == 0 || *server == 0) && *caller >= 0 && *server >= 0; i++) {
        *caller = *caller == 1 ? 1 : mc_secure_shake(ends.caller);
        *server = *server == 1 ? 1 : mc_secure_shake(ends.server);
        if (*caller == 0 && *server == 0)
            usleep(1000); /* the kernel carries it */
    }
}

static struct ends secured(void)
{
    struct ends ends = connected();
    int caller, server;
    assert_int_equal(mc_secure_call(ends.caller, address_of_server()), 0);
    assert_int_equal(mc_secure_accept(ends.server), 0);
    shake_both(ends, &caller, &server);
    assert_int_equal(caller, 1);
    assert_int_equal(server, 1);
    return ends;
}

/* ---- tests ---- */

static void off_costs_nothing(void **state)
{
    char error[MC_TLS_PROBLEM_MAX], byte;
    (void)state;
    environment(NULL, NULL, NULL);
    assert_int_equal(mc_secure_check(true, error, sizeof(error)), 0);
    struct ends ends = connected();
    assert_int_equal(mc_secure_connect(ends.caller, address_of_server(), mc_clock_ns()), 0);
    assert_int_equal(mc_secure_accept(ends.server), 0);
    assert_null(mc_secure_table); /* so nothing was opened or allocated */
    assert_int_equal(mc_socket_sends(ends.caller, "x", 1), 1);
    assert_int_equal(mc_socket_wait_read(ends.server, mc_clock_ns() + LONG, NULL), 0);
    assert_int_equal(mc_socket_recv(ends.server, &byte, 1), 1);
    disconnect(ends);
}

static void files_are_looked_at_at_the_start(void **state)
{
    char error[MC_TLS_PROBLEM_MAX] = "";
    (void)state;
    environment("ca.pem", NULL, NULL);
    assert_int_equal(mc_secure_check(false, error, sizeof(error)), 0);
    assert_int_equal(mc_secure_check(true, error, sizeof(error)), MC_ERR_INVALID_PARAMS);
    assert_non_null(strstr(error, "set MC_TLS_CERT and MC_TLS_KEY"));
    environment("ca.pem", "server", "missing.pem");
    assert_int_equal(mc_secure_check(false, error, sizeof(error)), 0);
    assert_int_equal(mc_secure_check(true, error, sizeof(error)), MC_ERR_INVALID_PARAMS);
    assert_non_null(strstr(error, "MC_TLS_CLIENT_CA_CERT="));
    environment(NULL, NULL, "ca.pem"); /* asks callers, and has nothing to show */
    assert_int_equal(mc_secure_check(true, error, sizeof(error)), MC_ERR_INVALID_PARAMS);
    assert_non_null(strstr(error, "MC_TLS_CERT"));
    environment("ca.pem", "server", "ca.pem");
    assert_int_equal(mc_secure_check(true, error, sizeof(error)), 0);
}

/* Who is not let in, and what each end says: who must change what. */
static void each_end_says_who_must_change_what(void **state)
{
    static const struct {
        const char *server, *callers, *authority, *caller, *at_caller, *at_server;
    } rows[] = {
        {"server", NULL, "other.pem", NULL, "set MC_TLS_CA_CERT to the certificate of the authority that signed it",
         "refuses the certificate of this side"},
        {"expired", NULL, "ca.pem", NULL, "has expired: renew it there", "here MC_TLS_CERT is to be one that is valid"},
        {"named", NULL, "ca.pem", NULL, "is not for '127.0.0.1'", "for the name or address by which it is called"},
        {"unknown", NULL, "ca.pem", NULL, "is signed by nobody", "there its authority is to be set (MC_TLS_CA_CERT)"},
        {"server", "ca.pem", "ca.pem", NULL, "set MC_TLS_CERT and MC_TLS_KEY to one that it trusts",
         "shows no certificate, and this side asks for one (MC_TLS_CLIENT_CA_CERT): set MC_TLS_CERT and MC_TLS_KEY "
         "there"},
        {"server", "ca.pem", "ca.pem", "unknown", "set MC_TLS_CERT and MC_TLS_KEY to one that it trusts",
         "set here MC_TLS_CLIENT_CA_CERT to the certificate of the authority"},
        {"server", "ca.pem", "ca.pem", "expired", "refuses the certificate of this side",
         "has expired: renew it there"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct ends ends = connected();
        int caller, server;
        char byte;
        environment(NULL, rows[i].server, rows[i].callers);
        assert_int_equal(mc_secure_accept(ends.server), 0);
        environment(rows[i].authority, rows[i].caller, NULL);
        assert_int_equal(mc_secure_call(ends.caller, address_of_server()), 0);
        shake_both(ends, &caller, &server);
        if (caller == 1) /* in TLS 1.3 a caller is done before the server has looked at its certificate */
            caller = (int)mc_socket_receive(ends.caller, &byte, 1, mc_clock_ns() + LONG, NULL);
        for (int k = 0; k < 1000 && server == 0; k++, usleep(1000))
            server = mc_secure_shake(ends.server);
        assert_int_equal(caller, MC_ERR_RPC_FAIL);
        assert_int_equal(server, MC_ERR_RPC_FAIL);
        const char *at_caller = mc_tls_problem(mc_secure_of(ends.caller));
        const char *at_server = mc_tls_problem(mc_secure_of(ends.server));
        if (strstr(at_caller, rows[i].at_caller) == NULL)
            fail_msg("%zu: the caller says '%s'", i, at_caller);
        if (strstr(at_server, rows[i].at_server) == NULL)
            fail_msg("%zu: the server says '%s'", i, at_server);
        disconnect(ends);
    }
}

static void the_name_may_be_said(void **state)
{
    (void)state;
    environment("ca.pem", "named", NULL);
    setenv("MC_TLS_SERVER_NAME", "node.example.org", 1);
    disconnect(secured());
}

/* One end has no TLS. */
static void plain_peers_are_named(void **state)
{
    char error[MC_TLS_PROBLEM_MAX];
    uint8_t got[4096];
    (void)state;
    environment("ca.pem", "server", NULL);
    struct ends ends = connected();
    assert_int_equal(mc_secure_accept(ends.server), 0);
    assert_int_equal(write(ends.caller, "MCST is no TLS, and goes on a while", 35), 35);
    assert_int_equal(mc_socket_wait_read(ends.server, mc_clock_ns() + LONG, NULL), 0);
    assert_int_equal(mc_socket_recv(ends.server, got, sizeof(got)), -1);
    assert_int_equal(errno, EPROTO);
    snprintf(error, sizeof(error), "%s", mc_tls_problem(mc_secure_of(ends.server)));
    if (strstr(error, "speaks no TLS, and this port nothing else: turn TLS on there (MC_TLS_CA_CERT)") == NULL)
        fail_msg("'%s'", error);
    int64_t length = mc_socket_receive(ends.caller, got, sizeof(got), mc_clock_ns() + LONG, NULL);
    assert_true(length > 0 && mc_tls_is_alert(got, (size_t)length)); /* by which the caller knows what to say */
    disconnect(ends);
    ends = connected();
    assert_int_equal(mc_secure_call(ends.caller, address_of_server()), 0);
    assert_int_equal(mc_secure_shake(ends.caller), 0);
    length = mc_socket_receive(ends.server, got, sizeof(got), mc_clock_ns() + LONG, NULL);
    assert_true(length > 0 && mc_tls_is_hello(got, (size_t)length));
    assert_int_equal(mc_socket_sends(ends.server, "no", 2), 2);
    shutdown(ends.server, SHUT_RDWR);
    assert_int_equal(mc_socket_wait_read(ends.caller, mc_clock_ns() + LONG, NULL), 0);
    assert_int_equal(mc_secure_shake(ends.caller), MC_ERR_RPC_FAIL);
    assert_non_null(strstr(mc_tls_problem(mc_secure_of(ends.caller)), "is TLS turned on at that port?"));
    disconnect(ends);
}

/* A caller that has nothing newer, by another implementation. */
static void a_downgrade_is_refused(void **state)
{
    char command[512];
    (void)state;
    environment("ca.pem", "server", NULL);
    for (int version = 2; version <= 3; version++) {
        snprintf(
            command, sizeof(command),
            "openssl s_client -connect 127.0.0.1:%u -CAfile %s -verify_return_error -tls1_%d </dev/null >/dev/null "
            "2>&1",
            (unsigned)port, in_folder("ca.pem"), version);
        FILE *other = popen(command, "r");
        assert_int_equal(mc_socket_wait_read(listener, mc_clock_ns() + LONG, NULL), 0);
        int fd = mc_socket_accept(listener), rc = 0;
        assert_int_equal(mc_secure_accept(fd), 0);
        while (rc == 0) {
            assert_int_equal(mc_socket_wait_read(fd, mc_clock_ns() + LONG, NULL), 0);
            rc = mc_secure_shake(fd);
        }
        assert_int_equal(rc, version == 3 ? 1 : MC_ERR_RPC_FAIL);
        if (version == 2)
            assert_non_null(strstr(mc_tls_problem(mc_secure_of(fd)), "has no TLS 1.3: upgrade it"));
        mc_fd_close(fd);
        assert_true(pclose(other) != 0 || version == 3);
    }
}

/* ---- bytes ---- */

static uint8_t pattern(size_t at)
{
    return (uint8_t)(at * 31 + (at >> 8) * 7 + (at >> 16));
}

/* A batch of parts of odd sizes goes through a socket that takes little at a time, to one who reads in odd sizes; what
 * was not taken is repeated, in parts that are cut otherwise. */
static void every_byte_comes_once_and_in_order(void **state)
{
    enum { BYTES = 3000000 };
    uint8_t *out = malloc(BYTES), *in = malloc(BYTES);
    size_t sent = 0, got = 0;
    int small = 20000;
    (void)state;
    environment("ca.pem", "server", "ca.pem");
    struct ends ends = secured();
    assert_int_equal(setsockopt(ends.caller, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
    for (size_t i = 0; i < BYTES; i++)
        out[i] = pattern(i);
    uint64_t end_ns = mc_clock_ns() + LONG, blocked = 0;
    for (unsigned turn = 0; got < BYTES && mc_clock_ns() < end_ns; turn++) {
        size_t left = BYTES - sent, first = left < turn % 700 ? left : turn % 700;
        struct iovec parts[3] = {{out + sent, first}, {out, 0}, {out + sent + first, left - first}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
        ssize_t gone = left == 0 ? 0 : mc_socket_sendmsg(ends.caller, &message);
        blocked += gone < 0;
        assert_true(gone >= 0 || errno == EAGAIN);
        sent += gone > 0 ? (size_t)gone : 0;
        size_t wanted = BYTES - got, one = wanted < turn * 37 % 5000 ? wanted : turn * 37 % 5000;
        struct iovec targets[2] = {{in + got, one}, {in + got + one, wanted - one < 100 ? wanted - one : 100}};
        struct msghdr answer = {.msg_iov = targets, .msg_iovlen = 2};
        ssize_t came = mc_socket_recvmsg(ends.server, &answer);
        assert_true(came >= 0 || errno == EAGAIN);
        got += came > 0 ? (size_t)came : 0;
    }
    assert_int_equal(sent, BYTES);
    assert_int_equal(got, BYTES);
    assert_true(blocked > 10); /* it was that what was tried */
    assert_memory_equal(in, out, BYTES);
    free(in);
    free(out);
    disconnect(ends);
}

/* What two carriers have between them: what one gives the other takes. */
struct pipe_half {
    struct mc_buffer *out, *in;
};

static ssize_t half_take(void *context, void *data, size_t size)
{
    struct mc_buffer *in = ((struct pipe_half *)context)->in;
    size_t length = in->length < size ? in->length : size;
    if (length == 0) {
        errno = EAGAIN;
        return -1;
    }
    memcpy(data, in->data, length);
    mc_buffer_consume(in, length);
    return (ssize_t)length;
}

static ssize_t half_give(void *context, const void *data, size_t size)
{
    mc_buffer_append(((struct pipe_half *)context)->out, data, size);
    return (ssize_t)size;
}

/* Over memory, as a library needs it that has its sockets to itself. */
static void a_carrier_may_be_anything(void **state)
{
    struct mc_buffer there = {0}, back = {0};
    struct pipe_half halves[2] = {{&there, &back}, {&back, &there}};
    struct mc_tls *tls[2];
    char error[MC_TLS_PROBLEM_MAX], text[8];
    int done[2] = {0, 0};
    (void)state;
    environment("ca.pem", "server", "ca.pem");
    const struct mc_tls_settings settings[2] = {mc_secure_calls(), mc_secure_serves()};
    for (size_t i = 0; i < 2; i++) {
        struct mc_tls_carrier carrier = {&halves[i], half_take, half_give};
        assert_int_equal(mc_tls_begin_over(&settings[i], "127.0.0.1:1", &carrier, &tls[i], error, sizeof(error)), 0);
    }
    for (int round = 0; round < 10; round++)
        for (size_t i = 0; i < 2; i++)
            done[i] = done[i] == 1 ? 1 : mc_tls_shake(tls[i], 0);
    assert_int_equal(done[0], 1);
    assert_int_equal(done[1], 1);
    assert_int_equal(mc_tls_read(tls[1], text, sizeof(text)), 0);
    struct iovec part = {(void *)(uintptr_t) "hello", 5};
    assert_int_equal(mc_tls_write(tls[0], &part, 1), 5);
    assert_null(memmem(there.data, there.length, "hello", 5));
    assert_int_equal(mc_tls_read(tls[1], text, sizeof(text)), 5);
    assert_memory_equal(text, "hello", 5);
    assert_int_equal(mc_tls_receive(tls[1], text, 1, mc_clock_ns() + LONG), MC_ERR_RPC_TIMEOUT); /* it cannot wait */
    mc_tls_end(tls[0]); /* says goodbye, which is an end */
    assert_int_equal(mc_tls_read(tls[1], text, sizeof(text)), MC_ERR_RPC_FAIL);
    assert_string_equal(mc_tls_problem(tls[1]), "");
    mc_tls_end(tls[1]);
    mc_buffer_free(&there);
    mc_buffer_free(&back);
}

/* After a receive that was filled, the rest is found without the socket's help, and no more than was promised. */
static void what_no_poll_sees_is_found(void **state)
{
    static uint8_t data[60000], got[60000 + 1];
    (void)state;
    environment("ca.pem", "server", NULL);
    struct ends ends = secured();
    assert_true(mc_socket_is_silent(ends.server));
    assert_false(mc_socket_has_ended(ends.server));
    assert_int_equal(mc_socket_sends(ends.caller, data, sizeof(data)), sizeof(data));
    struct pollfd one = {.fd = ends.server, .events = POLLIN};
    assert_int_equal(poll(&one, 1, 60000), 1);
    assert_int_equal(mc_socket_recv(ends.server, got, 10), 10);
    size_t length = 10;
    while (poll(&one, 1, 0) == 1 || mc_socket_holds(ends.server)) { /* until all is here, and none in the socket */
        bool is_held = poll(&one, 1, 0) == 0;
        assert_false(mc_socket_is_silent(ends.server));
        assert_true(mc_socket_hold(ends.server, is_held));
        ssize_t came = mc_socket_recv(ends.server, got + length, is_held ? sizeof(got) - length : 10);
        assert_true(came > 0);
        assert_true(!is_held || came <= (ssize_t)MC_TLS_HELD_MAX);
        length += (size_t)came;
        mc_socket_hold(ends.server, false);
    }
    assert_int_equal(length, sizeof(data));
    assert_int_equal(mc_socket_recv(ends.server, got, 1), -1);
    assert_int_equal(errno, EAGAIN);
    assert_true(mc_socket_is_silent(ends.server));
    mc_fd_close(ends.caller);
    assert_int_equal(poll(&one, 1, 60000), 1);
    assert_true(mc_socket_has_ended(ends.server));
    assert_int_equal(mc_socket_recv(ends.server, got, 1), -1);
    mc_fd_close(ends.server);
}

/* Half a hello, and one that comes in single bytes, cost whoever serves others no wait. */
static void half_a_handshake_waits_for_nobody(void **state)
{
    uint8_t hello[4096], byte;
    (void)state;
    environment("ca.pem", "server", NULL);
    struct ends ends = connected(), other = connected();
    assert_int_equal(mc_secure_call(ends.caller, address_of_server()), 0);
    assert_int_equal(mc_secure_shake(ends.caller), 0);
    int64_t length = mc_socket_receive(ends.server, hello, sizeof(hello), mc_clock_ns() + LONG, NULL);
    assert_true(length > 100);
    assert_int_equal(mc_secure_accept(other.server), 0);
    for (int64_t i = 0; i < length; i++) {
        assert_int_equal(mc_socket_recv(other.server, &byte, 1), -1);
        assert_int_equal(errno, EAGAIN);
        assert_int_equal(write(other.caller, hello + i, 1), 1);
        if (i == length / 2)
            disconnect(secured()); /* meanwhile others get on */
    }
    disconnect(ends);
    mc_fd_close(other.caller);
    while (mc_socket_recv(other.server, &byte, 1) < 0 && errno == EAGAIN)
        usleep(1000);
    mc_fd_close(other.server);
}

static void a_connection_that_rests_is_small(void **state)
{
    static struct ends all[NODES];
    static uint8_t data[40000], got[40000];
    (void)state;
    environment("ca.pem", "server", "ca.pem");
    disconnect(secured()); /* what is there once */
    size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
    for (size_t i = 0; i < NODES; i++) {
        all[i] = secured();
        assert_int_equal(mc_socket_sends(all[i].caller, data, sizeof(data)), sizeof(data));
        for (size_t at = 0; at < sizeof(got);) {
            int64_t came = mc_socket_receive(all[i].server, got + at, sizeof(got) - at, mc_clock_ns() + LONG, NULL);
            assert_true(came > 0);
            at += (size_t)came;
        }
    }
    size_t each = (mallinfo2().uordblks + mallinfo2().hblkhd - before) / NODES;
    print_message("a connection that rests has %zu bytes, both ends of it\n", each);
    assert_true(each < NODE_BYTES_MAX);
    for (size_t i = 0; i < NODES; i++)
        disconnect(all[i]);
    size_t after = mallinfo2().uordblks + mallinfo2().hblkhd;
    assert_true(after < before + 4 * NODE_BYTES_MAX); /* it is given back */
}

/* ---- renewal ---- */

static void copy(const char *from, const char *to)
{
    char command[512];
    snprintf(command, sizeof(command), "cp %s %s.new && mv %s.new %s", from, to, to, to);
    assert_int_equal(system(command), 0);
}

static _Atomic bool renewals_end;

static void *renew(void *unused)
{
    static const char *const pairs[] = {"renewed", "server"};
    for (unsigned i = 0; !atomic_load(&renewals_end); i++) {
        char name[32];
        snprintf(name, sizeof(name), "%s.key", pairs[i % 2]); /* for a moment the key is not that of the certificate */
        copy(in_folder(name), in_folder("live.key"));
        snprintf(name, sizeof(name), "%s.pem", pairs[i % 2]);
        copy(in_folder(name), in_folder("live.pem"));
    }
    return unused;
}

static void renewal_under_load_loses_nothing(void **state)
{
    pthread_t thread;
    (void)state;
    copy(in_folder("server.pem"), in_folder("live.pem"));
    copy(in_folder("server.key"), in_folder("live.key"));
    environment("ca.pem", "live", "ca.pem");
    struct ends old = secured();
    assert_int_equal(pthread_create(&thread, NULL, renew, NULL), 0);
    for (unsigned i = 0; i < 200; i++) {
        struct ends ends = secured();
        char byte = 0;
        assert_int_equal(mc_socket_sends(i % 2 ? ends.caller : old.caller, "r", 1), 1);
        assert_int_equal(mc_socket_receive(i % 2 ? ends.server : old.server, &byte, 1, mc_clock_ns() + LONG, NULL), 1);
        assert_int_equal(byte, 'r');
        disconnect(ends);
    }
    atomic_store(&renewals_end, true);
    pthread_join(thread, NULL);
    disconnect(old);
}

/* ---- tickets ---- */

struct parts { /* of one connection: what each end shows and believes */
    const char *server, *callers, *authority, *caller, *address;
    bool reads; /* the tickets that it is sent */
};

/* One more connection: was it resumed? Both ends count the same. */
static bool resumes(struct parts parts)
{
    struct mc_tls_counts before = mc_tls_counts();
    struct ends ends = connected();
    int caller, server;
    char byte;
    environment(NULL, parts.server, parts.callers);
    assert_int_equal(mc_secure_accept(ends.server), 0);
    environment(parts.authority, parts.caller, NULL);
    const char *address = parts.address == NULL ? address_of_server() : parts.address;
    assert_int_equal(mc_secure_call(ends.caller, address), 0);
    shake_both(ends, &caller, &server);
    assert_true(caller == 1 && server == 1);
    assert_int_equal(mc_socket_sends(ends.caller, "q", 1), 1);
    assert_int_equal(mc_socket_receive(ends.server, &byte, 1, mc_clock_ns() + LONG, NULL), 1);
    assert_int_equal(mc_socket_sends(ends.server, "a", 1), 1);
    if (parts.reads)
        assert_int_equal(mc_socket_receive(ends.caller, &byte, 1, mc_clock_ns() + LONG, NULL), 1);
    disconnect(ends);
    struct mc_tls_counts now = mc_tls_counts();
    assert_int_equal(now.served, before.served + 1);
    assert_int_equal(now.called, before.called + 1);
    assert_int_equal(now.served_resumed - before.served_resumed, now.called_resumed - before.called_resumed);
    return now.served_resumed > before.served_resumed;
}

static void copy_pair(const char *from, const char *to)
{
    static const char *const ends[] = {"key", "pem"};
    char source[64], target[64];
    for (unsigned i = 0; i < 2; i++) {
        snprintf(source, sizeof(source), "%s.%s", from, ends[i]);
        snprintf(target, sizeof(target), "%s.%s", to, ends[i]);
        copy(in_folder(source), in_folder(target));
    }
}

/* Each ticket once; a whole handshake gives two. */
static void who_comes_again_is_resumed(void **state)
{
    const struct parts reads = {"ticketed", NULL, "ca.pem", NULL, NULL, true};
    struct parts blind = reads;
    (void)state;
    blind.reads = false;
    copy_pair("server", "ticketed");
    assert_false(resumes(blind)); /* it has not read what it was given */
    assert_false(resumes(reads));
    assert_true(resumes(reads));
    assert_true(resumes(reads));
    assert_true(resumes(blind));
    assert_true(resumes(blind));
    assert_false(resumes(blind));
}

/* Not under another name; at another address, if it proves the same name. */
static void a_ticket_is_for_who_proved_a_name(void **state)
{
    struct parts parts = {"ticketed", NULL, "ca.pem", NULL, "127.0.0.1:1", true};
    (void)state;
    copy_pair("server", "ticketed");
    parts.authority = "ca2.pem"; /* a set of files of its own */
    copy(in_folder("ca.pem"), in_folder("ca2.pem"));
    assert_false(resumes(parts));
    parts.address = "localhost:1";
    assert_false(resumes(parts));
    parts.address = "127.0.0.1:2";
    assert_true(resumes(parts));
}

/* Of the two ends one. 1: it has come in; negative: it was refused. */
static int comes_in(struct parts parts)
{
    struct ends ends = connected();
    int caller, server;
    char byte;
    environment(NULL, parts.server, parts.callers);
    assert_int_equal(mc_secure_accept(ends.server), 0);
    environment(parts.authority, parts.caller, NULL);
    assert_int_equal(mc_secure_call(ends.caller, address_of_server()), 0);
    shake_both(ends, &caller, &server);
    for (int k = 0; k < 1000 && caller >= 0 && server == 0; k++, usleep(1000))
        server = mc_secure_shake(ends.server);
    if (server == 1 && caller == 1) {
        assert_int_equal(mc_socket_sends(ends.server, "a", 1), 1);
        assert_int_equal(mc_socket_receive(ends.caller, &byte, 1, mc_clock_ns() + LONG, NULL), 1);
    }
    disconnect(ends);
    return caller < 0 ? caller : server;
}

/* Files were changed: it is not resumed any more, as soon as they were looked at; and then it is again. */
static void await_change(struct parts parts)
{
    uint64_t end_ns = mc_clock_ns() + LONG;
    while (resumes(parts) && mc_clock_ns() < end_ns)
        usleep(10000);
    assert_true(mc_clock_ns() < end_ns);
    assert_true(resumes(parts));
}

/* What a ticket says was proved by files; once one of these is another, or the caller believes another, it is none. */
static void a_ticket_does_not_outlive_the_files(void **state)
{
    struct parts parts = {"ticketed", "callers.pem", "ca3.pem", "caller", NULL, true};
    (void)state;
    copy_pair("server", "ticketed");
    copy_pair("renewed", "caller");
    copy(in_folder("ca.pem"), in_folder("ca3.pem"));
    copy(in_folder("ca.pem"), in_folder("callers.pem"));
    assert_false(resumes(parts));
    assert_true(resumes(parts));
    copy_pair("server", "ticketed"); /* read again, and it is the same: so it is in another process with these files */
    for (unsigned i = 0; i < 30; i++, usleep(100000)) /* for as long as that takes */
        assert_true(resumes(parts));
    copy_pair("renewed", "ticketed");
    await_change(parts);
    char command[512]; /* whom it lets in: the old authority and one more */
    snprintf(command, sizeof(command), "cat %s >> %s", in_folder("other.pem"), in_folder("callers.pem"));
    assert_int_equal(system(command), 0);
    await_change(parts);
    copy(in_folder("ca.pem"), in_folder("ca3.pem")); /* whom the caller believes */
    await_change(parts);
    copy_pair("renewed", "caller"); /* what it shows */
    await_change(parts);
    copy(in_folder("other.pem"), in_folder("callers.pem")); /* it would not be let in any more, and is not */
    uint64_t end_ns = mc_clock_ns() + LONG;
    while (comes_in(parts) == 1 && mc_clock_ns() < end_ns)
        usleep(10000);
    assert_int_equal(comes_in(parts), MC_ERR_RPC_FAIL);
}

static void make_short(unsigned seconds)
{
    char command[1024];
    const char *source = getenv("MC_SOURCE");
    snprintf(command, sizeof(command),
             "rm -rf %s/short* && python3 -B -c \"\n"
             "import pathlib, sys; sys.path.insert(1, '%s/tests/system')\n"
             "from certificates import Authority\n"
             "ca = Authority.__new__(Authority); ca.folder, ca.serial = pathlib.Path('%s'), 99\n"
             "ca.certificate, ca.key = ca.folder / 'ca.pem', ca.folder / 'ca.key'\n"
             "ca.sign('short', ['DNS:localhost', 'IP:127.0.0.1'], seconds=%u)\n\"",
             folder, source == NULL ? "." : source, folder, seconds);
    assert_int_equal(system(command), 0);
}

/* Of the server and of the caller. The files are the same, and what they say has come to an end. */
static void a_ticket_does_not_outlive_a_certificate(void **state)
{
    static const struct parts kinds[] = {{"short", NULL, "ca.pem", NULL, NULL, true},
                                         {"server", "ca.pem", "ca.pem", "short", NULL, true}};
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        unsigned seconds = 2;
        bool was_in = false;
        for (; !was_in && seconds < 200; seconds *= 2) { /* a slow machine needs longer for two connections */
            make_short(seconds);
            was_in = comes_in(kinds[i]) == 1;
            struct mc_tls_counts before = mc_tls_counts();
            was_in = was_in && comes_in(kinds[i]) == 1 && mc_tls_counts().served_resumed == before.served_resumed + 1;
        }
        assert_true(was_in);
        uint64_t end_ns = mc_clock_ns() + LONG;
        while (comes_in(kinds[i]) == 1 && mc_clock_ns() < end_ns)
            usleep(100000); /* the ticket of a ticket of a ticket */
        assert_int_equal(comes_in(kinds[i]), MC_ERR_RPC_FAIL);
    }
}

/* Ports of HTTP let in who shows nothing: no ticket says who was known there. */
static void ports_of_http_give_none(void **state)
{
    (void)state;
    environment("ca.pem", "server", "ca.pem");
    for (unsigned i = 0; i < 3; i++) {
        struct mc_tls_counts before = mc_tls_counts();
        struct ends ends = connected();
        int caller, server;
        char byte;
        assert_int_equal(mc_secure_accept_http(ends.server), 0);
        assert_int_equal(mc_secure_call(ends.caller, "127.0.0.1:99"), 0);
        shake_both(ends, &caller, &server);
        assert_true(caller == 1 && server == 1);
        assert_int_equal(mc_socket_sends(ends.server, "a", 1), 1);
        assert_int_equal(mc_socket_receive(ends.caller, &byte, 1, mc_clock_ns() + LONG, NULL), 1);
        assert_true(mc_secure_is_known(ends.server));
        disconnect(ends);
        assert_int_equal(mc_tls_counts().served_resumed, before.served_resumed);
    }
}

/* ---- numbers and processes ---- */

static void a_number_that_is_given_again_has_no_tls(void **state)
{
    (void)state;
    environment("ca.pem", "server", NULL);
    struct ends ends = secured();
    close(ends.caller); /* by somebody who knows nothing of TLS */
    close(ends.server);
    environment(NULL, NULL, NULL);
    struct ends again = connected();
    assert_true(again.caller == ends.caller || again.caller == ends.server);
    assert_null(mc_secure_of(again.caller));
    assert_null(mc_secure_of(again.server));
    disconnect(again);
}

static void a_child_disturbs_no_connection(void **state)
{
    char byte;
    (void)state;
    environment("ca.pem", "server", NULL);
    struct ends ends = secured();
    pid_t child = fork();
    if (child == 0) {
        bool forgets = mc_secure_of(ends.caller) == NULL;
        disconnect(ends);
        _exit(forgets ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(mc_socket_sends(ends.caller, "y", 1), 1);
    assert_int_equal(mc_socket_receive(ends.server, &byte, 1, mc_clock_ns() + LONG, NULL), 1);
    assert_int_equal(byte, 'y');
    disconnect(ends);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(off_costs_nothing),
        cmocka_unit_test(files_are_looked_at_at_the_start),
        cmocka_unit_test(each_end_says_who_must_change_what),
        cmocka_unit_test(the_name_may_be_said),
        cmocka_unit_test(plain_peers_are_named),
        cmocka_unit_test(a_downgrade_is_refused),
        cmocka_unit_test(every_byte_comes_once_and_in_order),
        cmocka_unit_test(a_carrier_may_be_anything),
        cmocka_unit_test(what_no_poll_sees_is_found),
        cmocka_unit_test(half_a_handshake_waits_for_nobody),
        cmocka_unit_test(a_connection_that_rests_is_small),
        cmocka_unit_test(renewal_under_load_loses_nothing),
        cmocka_unit_test(who_comes_again_is_resumed),
        cmocka_unit_test(a_ticket_is_for_who_proved_a_name),
        cmocka_unit_test(a_ticket_does_not_outlive_the_files),
        cmocka_unit_test(a_ticket_does_not_outlive_a_certificate),
        cmocka_unit_test(ports_of_http_give_none),
        cmocka_unit_test(a_number_that_is_given_again_has_no_tls),
        cmocka_unit_test(a_child_disturbs_no_connection),
    };
    return cmocka_run_group_tests(tests, make_files, remove_files);
}
