/* master/stored: what peers have sent that is no whole frame yet, of all connections together. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "store/core/state.h"
#include "store/master/connections.h"
#include "store/master/server.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PEERS 40u
#define PART 40960u /* bytes of a frame of twice as many */
#define MOST (1u << 20)

struct rig {
    struct mc_server *server;
    pthread_t thread;
    int peers[PEERS];
};

static void *run(void *argument)
{
    struct rig *rig = argument;
    return mc_server_run(rig->server) == 0 ? rig : NULL;
}

static void begin(struct rig *rig, size_t most)
{
    static struct mc_master_config config = {.rpc_address = "127.0.0.1", .log_level = -1};
    char error[2048] = "";
    config.core = mc_core_config_default();
    assert_int_equal(mc_server_create(&config, &rig->server, error, sizeof(error)), 0);
    rig->server->stored_max = most;
    assert_int_equal(pthread_create(&rig->thread, NULL, run, rig), 0);
}

static void ask_to_stop(struct mc_core *core, void *argument)
{
    struct mc_server *server = argument;
    (void)core;
    server->is_stopping = true;
}

static void end(struct rig *rig)
{
    void *result;
    for (unsigned i = 0; i < PEERS; i++)
        if (rig->peers[i] > 0)
            close(rig->peers[i]);
    (void)mc_server_ask(rig->server, ask_to_stop, rig->server, 5000);
    assert_int_equal(pthread_join(rig->thread, &result), 0);
    assert_ptr_equal(result, rig);
    assert_int_equal(rig->server->stored, rig->server->parts.bytes); /* of those that have not ended yet */
    mc_server_destroy(rig->server);
}

static void send_all(int fd, const struct mc_buffer *bytes, size_t length)
{
    assert_int_equal(send(fd, bytes->data, length, MSG_NOSIGNAL), length);
}

/* What the master answers; 0: it has hung up. */
static enum mc_message answer(int fd)
{
    static uint8_t bytes[1u << 16];
    struct mc_frame frame;
    size_t used, length = 0;
    for (;;) {
        ssize_t got = recv(fd, bytes + length, sizeof(bytes) - length, 0);
        if (got <= 0)
            return 0;
        length += (size_t)got;
        if (mc_frame_parse(bytes, length, &frame, &used) == 1)
            return frame.type;
    }
}

static int greeted_as(const struct rig *rig, unsigned node, unsigned role)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(mc_server_port(rig->server)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct mc_buffer out = {0};
    struct mc_wire_hello hello = {.role = (uint8_t)role, .node = {1 + node, 7}, .incarnation = 1};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd > 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    mc_wire_hello_sign(&hello);
    mc_wire_hello_frame(&out, mc_frame_begin(&out, MC_MESSAGE_HELLO, 1), &hello);
    send_all(fd, &out, out.length);
    mc_buffer_free(&out);
    assert_int_equal(answer(fd), MC_MESSAGE_HELLO_REPLY);
    return fd;
}

static int greeted(const struct rig *rig, unsigned node)
{
    return greeted_as(rig, node, MC_ROLE_CALL);
}

/* An EXIST of so many bytes, or more. */
static struct mc_buffer question(size_t bytes)
{
    static uint8_t key[1000];
    struct mc_buffer out = {0};
    uint32_t count = 0;
    memset(key, 'k', sizeof(key));
    size_t at = mc_frame_begin(&out, MC_MESSAGE_EXIST, 2);
    mc_wire_none_write(&out, &(struct mc_wire_none){0});
    size_t list = mc_list_begin(&out);
    for (; out.length < bytes; count++)
        mc_wire_key_write(&out, &(struct mc_wire_key){.key = mc_span(key, sizeof(key))});
    mc_frame_end_list(&out, at, list, count);
    return out;
}

struct looked {
    struct mc_server *server;
    size_t stored, connections, kept;
};

static void look(struct mc_core *core, void *argument)
{
    struct looked *looked = argument;
    struct mc_server *server = looked->server;
    (void)core;
    *looked = (struct looked){.server = server};
    for (size_t i = 0; i < server->indices_used; i++) {
        const struct connection *one = server->connections[i];
        looked->connections += one != NULL;
        looked->stored += one != NULL ? one->in.length : 0;
        looked->kept += one != NULL ? one->in.capacity : 0;
    }
}

static struct looked looked_at(const struct rig *rig)
{
    struct looked looked = {.server = rig->server};
    assert_int_equal(mc_server_ask(rig->server, look, &looked, 5000), 0);
    return looked;
}

static bool is_open(int fd)
{
    struct pollfd one = {.fd = fd, .events = POLLIN};
    return poll(&one, 1, 0) == 0;
}

/* However small the part of each is: those go whose frames began first, and the others are answered in the end. */
static void test_parts_are_bounded(void **state)
{
    struct rig rig = {0};
    (void)state;
    begin(&rig, MOST);
    struct mc_buffer all = question(2 * PART);
    for (unsigned i = 0; i < PEERS; i++)
        rig.peers[i] = greeted(&rig, i);
    for (unsigned i = 0; i < PEERS; i++) {
        size_t before = looked_at(&rig).stored;
        send_all(rig.peers[i], &all, PART);
        for (unsigned wait = 0; wait < 2000 && looked_at(&rig).stored == before && i < MOST / PART; wait++)
            usleep(1000);
        struct looked looked = looked_at(&rig);
        assert_true(looked.stored <= MOST);
    }
    usleep(100000);
    assert_in_range(looked_at(&rig).stored, MOST - PART, MOST);
    unsigned open = 0;
    while (open < PEERS && is_open(rig.peers[PEERS - 1 - open]))
        open++;
    assert_in_range(open, MOST / PART - 1, MOST / PART);
    for (unsigned i = 0; i < PEERS - open; i++)
        assert_int_equal(answer(rig.peers[i]), 0);
    for (unsigned i = PEERS - open; i < PEERS; i++) {
        assert_int_equal(send(rig.peers[i], all.data + PART, all.length - PART, MSG_NOSIGNAL), all.length - PART);
        assert_int_equal(answer(rig.peers[i]), MC_MESSAGE_EXIST_REPLY);
    }
    assert_int_equal(looked_at(&rig).stored, 0);
    mc_buffer_free(&all);
    end(&rig);
}

/* A frame that has come whole leaves no memory behind. */
static void test_nothing_is_kept_of_what_was_taken(void **state)
{
    struct rig rig = {0};
    (void)state;
    begin(&rig, MOST);
    struct mc_buffer all = question(PART);
    for (unsigned i = 0; i < 8; i++) {
        rig.peers[i] = greeted(&rig, i);
        send_all(rig.peers[i], &all, all.length - 1);
        for (unsigned wait = 0; wait < 2000 && looked_at(&rig).stored == 0; wait++)
            usleep(1000);
        assert_int_equal(send(rig.peers[i], all.data + all.length - 1, 1, MSG_NOSIGNAL), 1);
        assert_int_equal(answer(rig.peers[i]), MC_MESSAGE_EXIST_REPLY);
    }
    assert_int_equal(looked_at(&rig).stored, 0);
    assert_in_range(looked_at(&rig).kept, 0, 8 * 4096);
    mc_buffer_free(&all);
    end(&rig);
}

/* Whose frame goes on has not begun again: it is the oldest. One that had a whole frame meanwhile is not. */
static void test_the_oldest_goes(void **state)
{
    struct rig rig = {0};
    (void)state;
    begin(&rig, 3 * PART - 1);
    struct mc_buffer all = question(2 * PART);
    for (unsigned i = 0; i < 3; i++)
        rig.peers[i] = greeted(&rig, i);
    send_all(rig.peers[0], &all, PART);
    usleep(20000);
    send_all(rig.peers[1], &all, PART);
    usleep(20000);
    assert_int_equal(send(rig.peers[0], all.data + PART, all.length - PART, MSG_NOSIGNAL), all.length - PART);
    assert_int_equal(answer(rig.peers[0]), MC_MESSAGE_EXIST_REPLY);
    send_all(rig.peers[0], &all, PART); /* another one */
    usleep(20000);
    assert_int_equal(send(rig.peers[1], all.data + PART, 1, MSG_NOSIGNAL), 1);
    usleep(20000);
    send_all(rig.peers[2], &all, PART);
    assert_int_equal(answer(rig.peers[1]), 0);
    assert_true(is_open(rig.peers[0]) && is_open(rig.peers[2]));
    mc_buffer_free(&all);
    end(&rig);
}

/* However little may wait for its turn: all of it has it. */
static void test_whole_frames_are_all_taken(void **state)
{
    struct rig rig = {0};
    (void)state;
    begin(&rig, 4096);
    struct mc_buffer all = {0};
    for (unsigned i = 0; i < 1000; i++)
        mc_frame_bare(&all, MC_MESSAGE_PING, i);
    for (unsigned i = 0; i < PEERS; i++)
        rig.peers[i] = greeted(&rig, i);
    for (unsigned i = 0; i < PEERS; i++)
        send_all(rig.peers[i], &all, all.length);
    for (unsigned i = 0; i < PEERS; i++) {
        size_t left = all.length; /* a PONG is as long */
        static uint8_t bytes[4096];
        while (left > 0) {
            ssize_t got = recv(rig.peers[i], bytes, left < sizeof(bytes) ? left : sizeof(bytes), 0);
            assert_true(got > 0);
            left -= (size_t)got;
        }
    }
    assert_int_equal(looked_at(&rig).stored, 0);
    mc_buffer_free(&all);
    end(&rig);
}

static void look_at_lenders(struct mc_core *core, void *argument)
{
    *(size_t *)argument = core->lenders.count;
}

/* Whoever mounts does so from an address that the core knows. */
static void test_addresses_are_told(void **state)
{
    struct rig rig = {0};
    struct mc_buffer out = {0};
    size_t lenders = 0;
    (void)state;
    begin(&rig, MOST);
    rig.peers[0] = greeted_as(&rig, 0, MC_ROLE_OWNER);
    struct mc_wire_mount mount = {.segment_id = {5, 5},
                                  .capacity = 1u << 20,
                                  .slot_count = 1,
                                  .name = mc_span_string("n"),
                                  .kind = MC_SEGMENT_DISK};
    mc_wire_mount_frame(&out, mc_frame_begin(&out, MC_MESSAGE_MOUNT, 2), &mount);
    send_all(rig.peers[0], &out, out.length);
    assert_int_equal(answer(rig.peers[0]), MC_MESSAGE_MOUNT_REPLY);
    assert_int_equal(mc_server_ask(rig.server, look_at_lenders, &lenders, 5000), 0);
    assert_int_equal(lenders, 1);
    mc_buffer_free(&out);
    end(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts_are_bounded),  cmocka_unit_test(test_nothing_is_kept_of_what_was_taken),
        cmocka_unit_test(test_the_oldest_goes),    cmocka_unit_test(test_whole_frames_are_all_taken),
        cmocka_unit_test(test_addresses_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
