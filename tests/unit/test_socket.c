/* Addresses, deadlines, descriptors over sockets, frames in pieces. */
#include "env/clock.h"
#include "env/socket.h"
#include "mooncake.h"
#include "store/wire/stream.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
/* cmocka wants the ones above first */
#include <cmocka.h>

static uint64_t in_ms(uint64_t ms)
{
    return mc_clock_ns() + ms * 1000000;
}

static void address_split_takes_every_form(void **state)
{
    static const struct {
        const char *address, *host;
        uint16_t port;
    } good[] = {{"host", "host", 7},    {"host:80", "host", 80},     {"127.0.0.1:0", "127.0.0.1", 0},
                {"[::1]:5", "::1", 5},  {"[fe80::1]", "fe80::1", 7}, {"::1", "::1", 7},
                {"h:65535", "h", 65535}};
    static const char *const bad[] = {"",        ":80",  "host:",  "host:x", "host:65536",
                                      "host:-1", "[::1", "[::1]x", "[]:1",   "h:+1"};
    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        char host[32];
        uint16_t port = 7;
        assert_int_equal(mc_address_split(good[i].address, host, sizeof(host), &port), 0);
        assert_string_equal(host, good[i].host);
        assert_int_equal(port, good[i].port);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char host[32];
        uint16_t port = 7;
        assert_int_equal(mc_address_split(bad[i], host, sizeof(host), &port), MC_ERR_INVALID_PARAMS);
    }
    char host[4];
    uint16_t port;
    assert_int_equal(mc_address_split("longer", host, sizeof(host), &port), MC_ERR_INVALID_PARAMS);
    char joined[32];
    mc_address_join(joined, sizeof(joined), "::1", 9);
    assert_string_equal(joined, "[::1]:9");
    mc_address_join(joined, sizeof(joined), "a", 9);
    assert_string_equal(joined, "a:9");
}

static void connect_says_what_is_wrong(void **state)
{
    (void)state;
    uint16_t port = 0;
    int listener = mc_tcp_listen("127.0.0.1", &port);
    assert_true(listener >= 0 && port != 0);
    uint16_t same = port;
    assert_int_equal(mc_tcp_listen("127.0.0.1", &same), MC_ERR_RPC_FAIL); /* taken */
    close(listener);
    char address[64];
    mc_address_join(address, sizeof(address), "127.0.0.1", port);
    assert_int_equal(mc_tcp_connect(address, in_ms(1000)), MC_ERR_RPC_FAIL); /* nobody listens */
    assert_int_equal(mc_tcp_connect("127.0.0.1", in_ms(1000)), MC_ERR_INVALID_PARAMS);
    assert_int_equal(mc_unix_connect("@mooncake-test-nobody", in_ms(1000)), MC_ERR_RPC_FAIL);
    assert_int_equal(mc_unix_connect("", in_ms(1000)), MC_ERR_INVALID_PARAMS);
    char longest[200];
    memset(longest, 'x', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = 0;
    assert_int_equal(mc_unix_connect(longest, in_ms(1000)), MC_ERR_INVALID_PARAMS);
}

static void receive_keeps_its_deadline(void **state)
{
    (void)state;
    int pair[2];
    char byte;
    struct mc_spin spin = {.hits = 16};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
    for (int round = 0; round < 2; round++) {
        uint64_t start_ns = mc_clock_ns();
        assert_int_equal(mc_socket_receive(pair[0], &byte, 1, in_ms(30), round == 0 ? NULL : &spin),
                         MC_ERR_RPC_TIMEOUT);
        assert_true(mc_clock_ns() - start_ns >= 30000000u);
    }
    assert_true(spin.hits < 16); /* a spin that found nothing counts against spinning */
    assert_int_equal(mc_socket_receive(pair[0], &byte, 1, 0, NULL), MC_ERR_RPC_TIMEOUT); /* a deadline in the past */
    close(pair[1]);
    assert_int_equal(mc_socket_receive(pair[0], &byte, 1, in_ms(1000), NULL), MC_ERR_RPC_FAIL);
    close(pair[0]);
}

static void send_to_a_full_socket_keeps_its_deadline(void **state)
{
    (void)state;
    int pair[2];
    size_t size = 64u << 20;
    char *data = calloc(1, size);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
    struct iovec part = {data, size};
    assert_int_equal(mc_socket_send(pair[0], &part, 1, in_ms(30)), MC_ERR_RPC_TIMEOUT);
    assert_true(part.iov_len < size); /* part of it went out, and is said so */
    close(pair[1]);
    assert_int_equal(mc_socket_send(pair[0], &part, 1, in_ms(1000)), MC_ERR_RPC_FAIL); /* and no SIGPIPE */
    close(pair[0]);
    free(data);
}

static void descriptors_arrive_close_on_exec(void **state)
{
    (void)state;
    int pair[2], pipes[2], got[1];
    size_t got_count;
    char text[8];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
    assert_int_equal(pipe(pipes), 0);
    int both[2] = {pipes[0], pipes[1]};
    assert_int_equal(mc_unix_send_fds(pair[0], "hello", 5, both, 2, in_ms(1000)), 0);
    /* One is asked for, two come: the second is closed, not leaked. */
    int before = dup(0);
    close(before);
    assert_int_equal(mc_unix_receive_fds(pair[1], text, sizeof(text), got, 1, &got_count, in_ms(1000)), 5);
    assert_int_equal(got_count, 1);
    assert_memory_equal(text, "hello", 5);
    assert_true((fcntl(got[0], F_GETFD) & FD_CLOEXEC) != 0);
    close(got[0]);
    int after = dup(0);
    assert_int_equal(after, before);
    close(after);
    assert_int_equal(mc_unix_receive_fds(pair[1], text, sizeof(text), got, 1, &got_count, in_ms(20)),
                     MC_ERR_RPC_TIMEOUT);
    for (int i = 0; i < 2; i++) {
        close(pair[i]);
        close(pipes[i]);
    }
}

struct dribble {
    int fd;
    struct mc_buffer bytes;
};

static void *send_byte_by_byte(void *argument)
{
    struct dribble *dribble = argument;
    for (size_t i = 0; i < dribble->bytes.length; i++) {
        while (send(dribble->fd, dribble->bytes.data + i, 1, MSG_NOSIGNAL) != 1)
            usleep(100);
    }
    return NULL;
}

static void frames_come_whole_however_they_are_cut(void **state)
{
    (void)state;
    int pair[2];
    pthread_t thread;
    struct dribble dribble = {0};
    struct mc_buffer in = {0};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
    dribble.fd = pair[0];
    for (uint64_t id = 1; id <= 3; id++) {
        size_t frame = mc_frame_begin(&dribble.bytes, MC_MESSAGE_PING, id);
        mc_wire_none_write(&dribble.bytes, &(struct mc_wire_none){0});
        mc_frame_end(&dribble.bytes, frame);
    }
    assert_int_equal(pthread_create(&thread, NULL, send_byte_by_byte, &dribble), 0);
    for (uint64_t id = 1; id <= 3; id++) {
        struct mc_frame frame;
        int64_t used = mc_socket_receive_frame(pair[1], &in, &frame, in_ms(5000), NULL);
        assert_true(used > 0);
        assert_int_equal(frame.request_id, id);
        assert_int_equal(mc_wire_check(frame.type, frame.body), 0);
        mc_buffer_consume(&in, (size_t)used);
    }
    pthread_join(thread, NULL);
    uint8_t garbage[16];
    memset(garbage, 0xff, sizeof(garbage));
    struct mc_frame frame;
    assert_int_equal(send(pair[0], garbage, sizeof(garbage), 0), (ssize_t)sizeof(garbage));
    assert_int_equal(mc_socket_receive_frame(pair[1], &in, &frame, in_ms(1000), NULL), MC_ERR_PROTOCOL);
    mc_buffer_free(&in);
    mc_buffer_free(&dribble.bytes);
    close(pair[0]);
    close(pair[1]);
}

static void peer_uid_is_ours(void **state)
{
    (void)state;
    char path[64];
    snprintf(path, sizeof(path), "@mooncake-test-%d", (int)getpid());
    int listener = mc_unix_listen(path), fd = mc_unix_connect(path, in_ms(1000));
    assert_true(listener >= 0 && fd >= 0);
    int accepted = mc_socket_accept(listener);
    assert_true(accepted >= 0);
    assert_int_equal(mc_unix_peer_uid(accepted), (int64_t)getuid());
    assert_int_equal(mc_unix_peer_uid(-1), -1);
    close(accepted);
    close(fd);
    close(listener);
}

/* The kernel says what came, what had to be sent again, and of other sockets nothing. */
static void the_way_is_known(void **state)
{
    enum { FULL = 4 };
    char address[32], byte = 'x';
    struct mc_tcp_way way;
    uint16_t port = 0;
    int pair[2], fds[FULL];
    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_false(mc_tcp_way(pair[0], &way));
    close(pair[0]);
    close(pair[1]);

    int listener = mc_tcp_listen("127.0.0.1", &port);
    assert_true(listener >= 0);
    (void)snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    int one = mc_tcp_connect(address, mc_clock_ns() + 1000000000ull);
    assert_true(one >= 0);
    int other = mc_socket_accept(listener);
    assert_true(other >= 0);
    assert_int_equal(send(one, &byte, 1, 0), 1); /* its kernel takes it, though nobody reads */
    usleep(100000);
    assert_true(mc_tcp_way(one, &way));
    assert_true(way.arrived);
    assert_int_equal(way.lost, 0);
    close(one);
    close(other);

    /* Who does not accept: what is too much for its kernel is dropped, and sent again after a second. */
    struct mc_tcp_address peer;
    assert_int_equal(mc_tcp_resolve(address, mc_clock_ns() + 1000000000ull, &peer, 1), 1);
    assert_int_equal(listen(listener, 0), 0);
    for (unsigned i = 0; i < FULL; i++) {
        fds[i] = mc_tcp_begin(&peer);
        assert_true(fds[i] >= 0);
    }
    usleep(1500000);
    assert_true(mc_tcp_way(fds[FULL - 1], &way));
    assert_false(way.arrived);
    assert_int_not_equal(way.lost, 0);
    for (unsigned i = 0; i < FULL; i++)
        close(fds[i]);
    close(listener);
}

enum { QUEUED = 2 }; /* connections that a listener with a backlog of 0 has no place beside */

static void *accept_later(void *argument)
{
    const int *listener = argument;
    usleep(30000);
    for (unsigned i = 0; i < QUEUED; i++) {
        int fd = mc_socket_accept(*listener);
        if (fd >= 0)
            close(fd);
    }
    return NULL;
}

/* The first packet of a connection is lost, here because there was no place for it: it would come again after a second.
 */
static void a_lost_first_packet_costs_little(void **state)
{
    char address[32];
    struct mc_tcp_address peer;
    uint16_t port = 0;
    int queued[QUEUED];
    pthread_t thread;
    (void)state;
    int listener = mc_tcp_listen("127.0.0.1", &port);
    assert_true(listener >= 0);
    assert_int_equal(listen(listener, 0), 0);
    (void)snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    assert_int_equal(mc_tcp_resolve(address, in_ms(1000), &peer, 1), 1);
    for (unsigned i = 0; i < QUEUED; i++) {
        queued[i] = mc_tcp_begin(&peer);
        assert_true(queued[i] >= 0);
    }
    assert_int_equal(pthread_create(&thread, NULL, accept_later, &listener), 0);
    uint64_t start_ns = mc_clock_ns();
    int fd = mc_tcp_connect(address, in_ms(3000));
    assert_true(fd >= 0);
    assert_true(mc_clock_ns() - start_ns < 700000000ull);
    assert_true(mc_clock_ns() - start_ns > 5000000ull); /* it was lost */
    assert_int_equal(pthread_join(thread, NULL), 0);
    close(fd);
    for (unsigned i = 0; i < QUEUED; i++)
        close(queued[i]);
    close(listener);
}

static bool is_reached(const char *host, uint16_t port)
{
    char address[MC_ADDRESS_MAX];
    mc_address_join(address, sizeof(address), host, port);
    int fd = mc_tcp_connect(address, in_ms(5000));
    mc_fd_close(fd);
    return fd >= 0;
}

/* Of either family, as a name may be of one here and of the other elsewhere. */
static void every_address_is_listened_to(void **state)
{
    char host[INET6_ADDRSTRLEN];
    uint16_t port = 0, sixth = 0;
    (void)state;
    int listener = mc_tcp_listen("", &port), six = mc_tcp_listen("::1", &sixth);
    assert_true(listener >= 0 && port != 0);
    assert_true(is_reached("127.0.0.1", port));
    int fd = mc_socket_accept(listener);
    assert_true(mc_socket_name(fd, MC_SOCKET_PEERS, host, sizeof(host), &sixth));
    assert_string_equal(host, "127.0.0.1"); /* as it is known elsewhere */
    close(fd);
    assert_true(is_reached("127.0.1.1", port));
    if (six >= 0)
        assert_true(is_reached("::1", port));
    close(listener);
    mc_fd_close(six);
}

static void a_name_says_nothing_of_where_to_listen(void **state)
{
    static const char *const cases[][2] = {
        {"10.0.0.1", "10.0.0.1"}, {"127.0.1.1", "127.0.1.1"}, {"127.1", "127.1"},         {"fe80::1%lo", "fe80::1%lo"},
        {"::1", "::1"},           {"localhost", "127.0.0.1"}, {"LOCALHOST", "127.0.0.1"}, {"node7.example", ""},
        {"localhost7", ""}};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_string_equal(mc_tcp_listen_host(cases[i][0]), cases[i][1]);
}

/* A host whose first address leads nowhere: the second is tried beside it, and the first gets its connection if it
 * answers after all. */
static void addresses_are_tried_side_by_side(void **state)
{
    struct mc_tcp_address peers[3];
    char address[32];
    uint16_t port[3] = {0, 0, 0};
    int listeners[3], queued[QUEUED];
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        listeners[i] = mc_tcp_listen("127.0.0.1", &port[i]);
        assert_true(listeners[i] >= 0);
        (void)snprintf(address, sizeof(address), "127.0.0.1:%u", port[i]);
        assert_int_equal(mc_tcp_resolve(address, in_ms(1000), &peers[i], 1), 1);
    }
    assert_int_equal(listen(listeners[0], 0), 0);
    for (unsigned i = 0; i < QUEUED; i++)
        assert_true((queued[i] = mc_tcp_begin(&peers[0])) >= 0); /* what comes now is dropped */
    close(listeners[1]);                                         /* refuses */
    uint64_t start_ns = mc_clock_ns();
    int fd = mc_tcp_connect_any(peers, 3, in_ms(20000));
    assert_true(fd >= 0);
    assert_true(mc_clock_ns() - start_ns < 3000000000ull);
    struct mc_tcp_address reached;
    assert_true(mc_tcp_peer(fd, &reached));
    assert_memory_equal(&reached.address, &peers[2].address, peers[2].length);
    close(fd);
    /* All that answer refuse: at once. None answers: by the deadline. */
    start_ns = mc_clock_ns();
    assert_int_equal(mc_tcp_connect_any(&peers[1], 1, in_ms(20000)), MC_ERR_RPC_FAIL);
    assert_int_equal(errno, ECONNREFUSED);
    assert_true(mc_clock_ns() - start_ns < 3000000000ull);
    assert_int_equal(mc_tcp_connect_any(peers, 2, in_ms(600)), MC_ERR_RPC_TIMEOUT);
    /* One to which no way leads has not refused, whichever is tried first. */
    struct mc_tcp_address mixed[2] = {peers[1], peers[1]};
    for (unsigned i = 0; i < 2; i++) {
        mixed[i].address.v4.sin_addr.s_addr = htonl(INADDR_BROADCAST);
        assert_int_equal(mc_tcp_connect_any(mixed, 2, in_ms(20000)), MC_ERR_RPC_FAIL);
        assert_int_not_equal(errno, ECONNREFUSED);
        mixed[i] = peers[1];
    }
    /* But a host without IPv6 goes by what the address of IPv4 said. */
    for (unsigned i = 0; i < 2; i++) {
        mixed[i] = (struct mc_tcp_address){.length = sizeof(mixed[i].address.v6)};
        mixed[i].address.v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(port[1])};
        assert_int_equal(inet_pton(AF_INET6, "2001:db8::1", &mixed[i].address.v6.sin6_addr), 1);
        assert_int_equal(mc_tcp_connect_any(&mixed[i], 1, in_ms(300)) < 0, 1);
        if (errno == ENETUNREACH || errno == EADDRNOTAVAIL) { /* this host is one */
            assert_int_equal(mc_tcp_connect_any(mixed, 2, in_ms(20000)), MC_ERR_RPC_FAIL);
            assert_int_equal(errno, ECONNREFUSED);
        }
        mixed[i] = peers[1];
    }
    /* However little time there is. */
    struct mc_tcp_address dark[2] = {peers[0], peers[2]};
    assert_true((fd = mc_tcp_connect_any(dark, 2, in_ms(200))) >= 0);
    close(fd);
    for (unsigned i = 0; i < QUEUED; i++)
        close(queued[i]);
    close(listeners[0]);
    close(listeners[2]);
}

static void *connect_in_vain(void *argument)
{
    return mc_tcp_connect_any(argument, 1, in_ms(1000)) == MC_ERR_RPC_TIMEOUT ? argument : NULL;
}

static int open_fds(void)
{
    int count = 0;
    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* The thread that waits for it is not there. */
static void a_forked_child_has_no_connection_on_its_way(void **state)
{
    struct mc_tcp_address peer;
    pthread_t thread;
    void *result = NULL;
    uint16_t port = 0;
    int queued[QUEUED], status = -1;
    char address[MC_ADDRESS_MAX];
    (void)state;
    int listener = mc_tcp_listen("127.0.0.1", &port);
    assert_true(listener >= 0);
    assert_int_equal(listen(listener, 0), 0);
    mc_address_join(address, sizeof(address), "127.0.0.1", port);
    assert_int_equal(mc_tcp_resolve(address, in_ms(1000), &peer, 1), 1);
    for (unsigned i = 0; i < QUEUED; i++)
        assert_true((queued[i] = mc_tcp_begin(&peer)) >= 0);
    usleep(50000);
    int before = open_fds();
    assert_int_equal(pthread_create(&thread, NULL, connect_in_vain, &peer), 0);
    for (unsigned i = 0; i < 900 && open_fds() == before; i++)
        usleep(1000);
    usleep(20000);
    int here = open_fds();
    pid_t child = fork();
    if (child == 0)
        _exit(open_fds() == before ? 0 : 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_ptr_equal(result, &peer);
    assert_true(here > before);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(open_fds(), before);
    for (unsigned i = 0; i < QUEUED; i++)
        close(queued[i]);
    close(listener);
}

static void neighbours_by_their_address(void **state)
{
    static const struct {
        const char *host;
        bool is_near;
    } known[] = {
        {"127.0.0.1", true},
        {"127.255.0.9", true},
        {"10.255.255.255", true},
        {"11.0.0.0", false},
        {"9.255.255.255", false},
        {"172.16.0.0", true},
        {"172.31.255.255", true},
        {"172.32.0.0", false},
        {"172.15.255.255", false},
        {"192.168.0.1", true},
        {"192.169.0.1", false},
        {"169.254.169.254", true},
        {"100.64.0.1", true},
        {"100.127.255.255", true},
        {"100.128.0.0", false},
        {"100.63.255.255", false},
        {"8.8.8.8", false},
        {"0.0.0.0", false},
        {"255.255.255.255", false},
        {"::1", true},
        {"::", false},
        {"fe80::1", true},
        {"fec0::1", false},
        {"fc00::1", true},
        {"fdff::1", true},
        {"fe00::1", false},
        {"2001:db8::1", false},
        {"::ffff:10.0.0.1", true},
        {"::ffff:8.8.8.8", false},
        {"", false},
        {"localhost", false},
        {"10.0.0.1.evil.example", false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (mc_address_is_near(known[i].host) != known[i].is_near)
            fail_msg("%s", known[i].host);
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_true(mc_socket_peer_is_near(pair[0]));
    close(pair[0]);
    close(pair[1]);
    assert_false(mc_socket_peer_is_near(pair[0]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(address_split_takes_every_form),
        cmocka_unit_test(connect_says_what_is_wrong),
        cmocka_unit_test(the_way_is_known),
        cmocka_unit_test(a_lost_first_packet_costs_little),
        cmocka_unit_test(every_address_is_listened_to),
        cmocka_unit_test(a_name_says_nothing_of_where_to_listen),
        cmocka_unit_test(addresses_are_tried_side_by_side),
        cmocka_unit_test(a_forked_child_has_no_connection_on_its_way),
        cmocka_unit_test(receive_keeps_its_deadline),
        cmocka_unit_test(send_to_a_full_socket_keeps_its_deadline),
        cmocka_unit_test(descriptors_arrive_close_on_exec),
        cmocka_unit_test(frames_come_whole_however_they_are_cut),
        cmocka_unit_test(peer_uid_is_ours),
        cmocka_unit_test(neighbours_by_their_address),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
