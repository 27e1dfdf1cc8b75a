/* The owner's data connections, from raw sockets: every message, garbage, limits, cuts and clears in the middle. */
#include "directory.h"
#include "store/segment/serve_inside.h"
#include "store/segment/writers.h"
#include "env/log.h"
#include "random.h"
#include "serve_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* ---- tests ---- */

static void test_hello(void **state)
{
    (void)state;
    struct rig rig;
    rig_start(&rig);
    for (int is_unix = 0; is_unix < 2; is_unix++) {
        struct mc_wire_hello_reply reply;
        struct mc_wire_hello hello = hello_of(&rig, mc_random_id());
        struct peer peer = connect_raw(&rig, is_unix);
        say_hello(&peer, &hello);
        assert_int_equal(hear_hello(&peer, &reply), 0);
        assert_true(mc_id_equal(reply.node, rig.node));
        assert_int_equal(reply.incarnation, 77);
        expect_pong(&peer, 123456789);
        say_hello(&peer, &hello); /* twice is no protocol of ours */
        assert_true(peer_is_closed(&peer));
        peer_close(&peer);

        struct mc_wire_hello wrong[6];
        static const int codes[6] = {MC_ERR_STALE,           MC_ERR_ILLEGAL_CLIENT, MC_ERR_INVALID_VERSION,
                                     MC_ERR_INVALID_VERSION, MC_ERR_RPC_FAIL,       MC_ERR_ILLEGAL_CLIENT};
        for (int i = 0; i < 6; i++)
            wrong[i] = hello;
        wrong[0].nonce++;
        wrong[1].role = MC_ROLE_CALL;
        wrong[2].version_min = wrong[2].version_max = MC_WIRE_VERSION_MAX + 1;
        wrong[3].version_min = wrong[3].version_max = 0;
        wrong[4].magic++;
        wrong[5].node = (struct mc_id){0, 0};
        for (int i = 0; i < 6; i++) {
            peer = connect_raw(&rig, is_unix);
            peer_ping(&peer, 1); /* goes behind the hello: must not spoil the answer */
            struct mc_buffer ping = peer.out;
            peer.out = (struct mc_buffer){0};
            say_hello(&peer, &wrong[i]);
            (void)peer_send_bytes(&peer, ping.data, ping.length);
            mc_buffer_free(&ping);
            assert_int_equal(hear_hello(&peer, &reply), codes[i]);
            assert_true(peer_is_closed(&peer));
            peer_close(&peer);
        }
        peer = connect_raw(&rig, is_unix);
        peer_ping(&peer, 1); /* before the hello */
        assert_int_equal(peer_flush(&peer), 0);
        assert_true(peer_is_closed(&peer));
        peer_close(&peer);
    }
    rig_wait_connections(&rig, 0);
    rig_stop(&rig);
}

/* Who was told of the place in another cluster gets in no more; who does not say where does. */
static void test_hello_of_another_cluster(void **state)
{
    const struct mc_id ours = {1, 2}, other = {1, 3}, none = {0, 0};
    const struct {
        struct mc_id of_memory, of_peer;
        int code;
    } rows[] = {{none, other, 0}, {ours, none, 0}, {ours, ours, 0}, {ours, other, MC_ERR_OTHER_CLUSTER}};
    (void)state;
    struct rig rig;
    rig_start(&rig);
    for (size_t i = 0; i < 2 * sizeof(rows) / sizeof(rows[0]); i++) {
        struct mc_wire_hello_reply reply;
        struct mc_wire_hello hello = hello_of(&rig, mc_random_id());
        mc_segment_memory_set_cluster(rig.memory, rows[i / 2].of_memory);
        hello.cluster = rows[i / 2].of_peer;
        struct peer peer = connect_raw(&rig, i % 2 == 0);
        say_hello(&peer, &hello);
        assert_int_equal(hear_hello(&peer, &reply), rows[i / 2].code);
        if (rows[i / 2].code != 0)
            assert_true(peer_is_closed(&peer));
        peer_close(&peer);
    }
    rig_wait_connections(&rig, 0);
    rig_stop(&rig);
}

static void test_other_user(void **state)
{
    (void)state;
    struct rig rig;
    int status;
    if (geteuid() != 0)
        skip(); /* only root can become another user */
    rig_start(&rig);
    struct mc_wire_hello hello = hello_of(&rig, mc_random_id()); /* the child does not have the segment's memory */
    pid_t child = fork();
    if (child == 0) {
        if (setuid(65534) != 0)
            _exit(1);
        struct peer peer = {.fd = mc_unix_connect(mc_serve_unix_path(rig.serve), soon())};
        struct mc_wire_hello_reply reply;
        if (peer.fd < 0)
            _exit(2);
        say_hello(&peer, &hello);
        _exit(hear_hello(&peer, &reply) == MC_ERR_ILLEGAL_CLIENT ? 0 : 3);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    rig_stop(&rig);
}

static void test_attach(void **state)
{
    (void)state;
    struct rig rig;
    struct mc_wire_attach_reply reply;
    struct mc_slot copy;
    int fds[3], again[3];
    rig_start(&rig);
    struct peer peer = connect_peer(&rig, true);
    struct mc_frame frame;
    struct mc_reader reader;
    peer_ping(&peer, 8); /* its answer goes first, and without descriptors */
    struct mc_wire_none none = {0};
    size_t start = mc_frame_begin(&peer.out, MC_MESSAGE_ATTACH, 4);
    mc_wire_none_write(&peer.out, &none);
    mc_frame_end(&peer.out, start);
    assert_int_equal(peer_flush(&peer), 0);
    assert_int_equal(mc_socket_wait_read(peer.fd, soon(), NULL), 0);
    peer_expect(&peer, MC_MESSAGE_PONG, &frame,
                &reader); /* plain receive: descriptors of what follows are dropped by the kernel */
    peer_close(&peer);
    peer = connect_peer(&rig, true);
    assert_true(attach(&peer, &reply, fds) > 0);
    assert_int_equal(reply.code, 0);
    assert_true(mc_id_equal(reply.segment_id, mc_segment_memory_id(rig.memory)));
    assert_int_equal(reply.data_size, mc_segment_memory_data_size(rig.memory));
    assert_int_equal(reply.capacity, CAPACITY);
    assert_int_equal(reply.slot_count, mc_segment_memory_slot_count(rig.memory));
    uint8_t *data = mmap(NULL, reply.data_size, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    size_t index_size = MC_INDEX_SLOTS_AT + reply.slot_count * sizeof(struct mc_slot);
    uint8_t *index = mmap(NULL, index_size, PROT_READ, MAP_SHARED, fds[1], 0);
    assert_ptr_not_equal(data, MAP_FAILED);
    assert_ptr_not_equal(index, MAP_FAILED);
    const struct mc_slot *slots = (const struct mc_slot *)(const void *)(index + MC_INDEX_SLOTS_AT);
    assert_in_range(reply.writer, 1, MC_WRITERS_MAX - 1);
    assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fds[1], 0), MAP_FAILED);
    memset(data + 640, 0x21, 100);
    put_commit(&peer, 6, 40, 640, 100);
    put_commit(&peer, 6, 40, 640, 100);                                   /* late news */
    size_t frame_start = mc_frame_begin(&peer.out, MC_MESSAGE_COMMIT, 0); /* of nothing: the master's word is missed */
    mc_wire_none_write(&peer.out, &(struct mc_wire_none){0});
    mc_list_empty(&peer.out);
    mc_frame_end(&peer.out, frame_start);
    assert_int_equal(peer_flush(&peer), 0);
    rig_wait_told(&rig, 2);
    assert_int_equal(rig.missed, 1);
    assert_int_equal(rig.told[0].slot, 6);
    assert_int_equal(rig.told[0].generation, 40);
    assert_int_equal(rig.told[0].code, 0);
    assert_int_equal(rig.told[1].code, MC_ERR_STALE);
    assert_true(mc_slot_read(&slots[6], 40, &copy));
    assert_int_equal(copy.length, 100);
    uint32_t writer = reply.writer;
    assert_true(attach(&peer, &reply, again) > 0); /* twice is harmless */
    assert_int_equal(reply.writer, writer);
    for (int i = 0; i < 3; i++)
        close(again[i]);

    munmap(data, reply.data_size);
    munmap(index, index_size);
    peer_close(&peer);
    rig_stop(&rig);
    for (int i = 0; i < 3; i++)
        close(fds[i]);
}

static void test_attach_by_tcp(void **state)
{
    (void)state;
    struct rig rig;
    struct mc_wire_none none = {0};
    rig_start(&rig);
    struct peer tcp = connect_peer(&rig, false); /* tcp carries no descriptors */
    size_t start = mc_frame_begin(&tcp.out, MC_MESSAGE_ATTACH, 4);
    mc_wire_none_write(&tcp.out, &none);
    mc_frame_end(&tcp.out, start);
    assert_int_equal(peer_flush(&tcp), 0);
    assert_true(peer_is_closed(&tcp));
    peer_close(&tcp);
    rig_stop(&rig);
}

static void test_write(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {1, 2, 63, 64, 4096, 65535, 65536, 65537, 1048576, 3 * MIB + 1};
    struct rig rig;
    rig_start(&rig);
    struct peer peer = connect_peer(&rig, false);
    uint64_t offset = 0;
    const size_t count = sizeof(lengths) / sizeof(lengths[0]);
    for (size_t i = 0; i < count; i++) {
        uint64_t length = lengths[i], table = mc_table_length(length, mc_block_shift(length));
        uint8_t *bytes = pattern_make(length, i);
        put_write(&peer, (uint32_t)i, 5 + i, offset, length);
        assert_int_equal(peer_flush(&peer), 0);
        assert_int_equal(peer_send_bytes(&peer, bytes, length), 0);
        uint8_t *rest = pattern_make(table + 8, 100 + i); /* table and key by a WRITE of their own */
        put_write(&peer, (uint32_t)i, 5 + i, offset + mc_table_offset(length), table + 8);
        mc_buffer_append(&peer.out, rest, table + 8);
        put_commit(&peer, (uint32_t)i, 5 + i, offset, length);
        assert_int_equal(peer_flush(&peer), 0);
        rig_wait_told(&rig, i + 1);
        assert_int_equal(rig.told[i].code, 0);
        assert_memory_equal(mc_segment_memory_data(rig.memory) + offset, bytes, length);

        struct mc_wire_read_reply reply;
        uint8_t *back = malloc(length + table);
        put_read(&peer, i, (uint32_t)i, 5 + i, 0, length, true);
        assert_int_equal(peer_flush(&peer), 0);
        assert_int_equal(hear_reply(&peer, i, &reply), 0);
        assert_int_equal(reply.length, length);
        assert_int_equal(reply.payload_length, length);
        assert_int_equal(reply.table_length, table);
        assert_int_equal(reply.crc, i + 1);
        assert_int_equal(reply.hash_low, 11);
        assert_int_equal(reply.hash_high, 12);
        peer_receive_bytes(&peer, back, length + table);
        assert_memory_equal(back, rest, table);
        assert_memory_equal(back + table, bytes, length);
        assert_int_equal(hear_end(&peer, i), 0);
        free(back);
        free(rest);
        free(bytes);
        offset += mc_extent_size(length, 8);
    }
    peer_close(&peer);
    rig_stop(&rig);
}

/* A stream of small writes and commits, cut into pieces at every kind of place. */
static void test_write_pieces(void **state)
{
    (void)state;
    struct rig rig;
    uint64_t random = 1;
    rig_start(&rig);
    struct peer peer = connect_peer(&rig, false);
    uint8_t *bytes = pattern_make(4096, 3);
    for (uint32_t i = 0; i < 200; i++) {
        put_write(&peer, i, 1, i * 8192, 4096);
        mc_buffer_append(&peer.out, bytes, 4096);
        put_commit(&peer, i, 1, i * 8192, 4096);
    }
    for (size_t at = 0; at < peer.out.length;) {
        size_t piece = 1 + random_below(&random, at % 3 == 0 ? 20 : 9000);
        piece = piece < peer.out.length - at ? piece : peer.out.length - at;
        assert_int_equal(peer_send_bytes(&peer, peer.out.data + at, piece), 0);
        at += piece;
        if (random_below(&random, 4) == 0)
            usleep(100);
    }
    peer.out.length = 0;
    rig_wait_told(&rig, 200);
    for (uint32_t i = 0; i < 200; i++) {
        assert_int_equal(rig.told[i].slot, i);
        assert_int_equal(rig.told[i].code, 0);
        assert_memory_equal(mc_segment_memory_data(rig.memory) + i * 8192, bytes, 4096);
    }
    free(bytes);
    peer_close(&peer);
    rig_stop(&rig);
}

static void test_write_refused(void **state)
{
    (void)state;
    struct rig rig;
    rig_start(&rig);
    struct peer peer = connect_peer(&rig, false);
    uint8_t *bytes = pattern_make(300000, 1);
    object_put(&rig, 2, 50, 0, 4096);
    /* an old generation: the payload is thrown away, the connection lives, the commit is refused */
    put_write(&peer, 2, 50, 0, 300000);
    mc_buffer_append(&peer.out, bytes, 300000);
    put_commit(&peer, 2, 50, 0, 300000);
    assert_int_equal(peer_flush(&peer), 0);
    expect_pong(&peer, 1);
    rig_wait_told(&rig, 1);
    assert_int_equal(rig.told[0].code, MC_ERR_STALE);
    for (uint32_t i = 0; i < 4096; i++)
        assert_int_equal(mc_segment_memory_data(rig.memory)[i], pattern(i, 2));
    put_write(&peer, 3, 1, 0, 0); /* nothing at all is fine */
    assert_int_equal(peer_flush(&peer), 0);
    expect_pong(&peer, 2);

    uint64_t size = mc_segment_memory_data_size(rig.memory);
    const struct {
        uint32_t slot;
        uint64_t offset, length;
    } outside[] = {{0, size, 1}, {0, 0, size + 1}, {0, UINT64_MAX, 2}, {0, 64, UINT64_MAX}, {UINT32_MAX, 0, 1}};
    for (size_t i = 0; i < sizeof(outside) / sizeof(outside[0]); i++) {
        peer_close(&peer);
        peer = connect_peer(&rig, false);
        put_write(&peer, outside[i].slot, 99, outside[i].offset, outside[i].length);
        assert_int_equal(peer_flush(&peer), 0);
        assert_true(peer_is_closed(&peer));
    }
    free(bytes);
    peer_close(&peer);
    rig_stop(&rig);
}

/* Of one value by two connections, in any order: each is answered when all of it is there. */
static void test_write_parts(void **state)
{
    (void)state;
    enum { LENGTH = 500000, HALF = 262144 };
    const uint64_t size = mc_key_offset(LENGTH) + 8;
    struct rig rig;
    rig_start(&rig);
    struct peer one = connect_peer(&rig, false), other = connect_peer(&rig, false);
    uint8_t *bytes = pattern_make(size, 6);
    put_part(&other, 70, 4, 9, 4096, LENGTH, HALF, size - HALF);
    mc_buffer_append(&other.out, bytes + HALF, size - HALF - 1);
    assert_int_equal(peer_flush(&other), 0);
    put_part(&one, 71, 4, 9, 4096, LENGTH, 0, 0); /* of nothing */
    put_part(&one, 72, 4, 9, 4096, LENGTH, 0, HALF);
    mc_buffer_append(&one.out, bytes, HALF);
    peer_ping(&one, 73);
    assert_int_equal(peer_flush(&one), 0);
    assert_int_equal(hear_part_end(&one, 71), 0);
    assert_int_equal(hear_part_end(&one, 72), 0);
    struct mc_frame frame;
    struct mc_reader reader;
    peer_expect(&one, MC_MESSAGE_PONG, &frame, &reader);
    assert_int_equal(peer_send_bytes(&other, bytes + size - 1, 1), 0);
    assert_int_equal(hear_part_end(&other, 70), 0);
    put_commit(&one, 4, 9, 4096, LENGTH);
    assert_int_equal(peer_flush(&one), 0);
    rig_wait_told(&rig, 1);
    assert_int_equal(rig.told[0].code, 0);
    assert_memory_equal(mc_segment_memory_data(rig.memory) + 4096, bytes, size);

    /* Of a grant that is over nothing is stored, and its writer hears so. */
    put_part(&one, 80, 4, 9, 4096, LENGTH, 100, 3000);
    mc_buffer_append(&one.out, bytes, 3000);
    put_part(&one, 81, 4, 10, 4096, LENGTH, 100, 3000);
    mc_buffer_append(&one.out, bytes + 100, 3000);
    assert_int_equal(peer_flush(&one), 0);
    assert_int_equal(hear_part_end(&one, 80), MC_ERR_STALE);
    assert_int_equal(hear_part_end(&one, 81), 0);
    assert_memory_equal(mc_segment_memory_data(rig.memory) + 4096, bytes, size);

    /* None reaches beyond its value. */
    const uint64_t beyond[][2] = {
        {0, size + 1}, {1, size}, {size + 1, 0}, {UINT64_MAX, 1}, {UINT64_MAX - 4096, 8192}, {8, UINT64_MAX - 4}};
    for (size_t i = 0; i < sizeof(beyond) / sizeof(beyond[0]); i++) {
        peer_close(&one);
        one = connect_peer(&rig, false);
        put_part(&one, 90, 5, 11, 4096, LENGTH, beyond[i][0], beyond[i][1]);
        assert_int_equal(peer_flush(&one), 0);
        assert_true(peer_is_closed(&one));
    }
    free(bytes);
    peer_close(&one);
    peer_close(&other);
    rig_stop(&rig);
}

static void test_read_errors(void **state)
{
    (void)state;
    struct rig rig;
    struct mc_wire_read_reply reply;
    rig_start(&rig);
    object_put(&rig, 1, 10, 4096, 1000);
    struct peer peer = connect_peer(&rig, false);
    const struct {
        uint32_t slot;
        uint64_t generation, offset, length;
        int code;
    } rows[] = {
        {1, 10, 0, 1000, 0},
        {1, 10, 999, 1, 0},
        {1, 10, 1000, 0, 0},
        {1, 10, 0, 1001, MC_ERR_INVALID_PARAMS},
        {1, 10, 1001, 0, MC_ERR_INVALID_PARAMS},
        {1, 10, UINT64_MAX, 2, MC_ERR_INVALID_PARAMS},
        {1, 10, 5, UINT64_MAX, MC_ERR_INVALID_PARAMS},
        {1, 9, 0, 1, MC_ERR_REPLICA_IS_GONE},
        {1, 11, 0, 1, MC_ERR_REPLICA_IS_GONE},
        {2, 10, 0, 1, MC_ERR_REPLICA_IS_GONE},
        {UINT32_MAX, 10, 0, 1, MC_ERR_INVALID_PARAMS},
        {1, 10, 1, 3, 0}, /* errors before did not upset the order */
    };
    const size_t count = sizeof(rows) / sizeof(rows[0]);
    for (size_t i = 0; i < count; i++)
        put_read(&peer, i, rows[i].slot, rows[i].generation, rows[i].offset, rows[i].length, true);
    assert_int_equal(peer_flush(&peer), 0);
    for (size_t i = 0; i < count; i++) {
        uint8_t back[1000];
        assert_int_equal(hear_reply(&peer, i, &reply), rows[i].code);
        assert_int_equal(reply.payload_length, rows[i].code == 0 ? rows[i].length : 0);
        assert_int_equal(reply.table_length, 0);
        if (rows[i].code < 0)
            continue;
        peer_receive_bytes(&peer, back, reply.payload_length);
        for (uint64_t j = 0; j < reply.payload_length; j++)
            assert_int_equal(back[j], pattern(rows[i].offset + j, 1));
        assert_int_equal(hear_end(&peer, i), 0);
    }
    peer_close(&peer);
    rig_stop(&rig);
}

/* More requests than the queue holds, of all sizes, answered in order to a peer that sends all before it reads. */
static void test_read_many(void **state)
{
    (void)state;
    enum { COUNT = 3000 };
    struct rig rig;
    struct mc_wire_read_reply reply;
    rig_start(&rig);
    object_put(&rig, 1, 10, 0, 200000);
    struct peer peer = connect_peer(&rig, false);
    uint8_t *back = malloc(200000 + 64);
    for (uint32_t i = 0; i < COUNT; i++)
        put_read(&peer, i, 1, 10, i, i % 100 == 0 ? 100000 : i % 700, i % 3 == 0);
    peer_ping(&peer, 424242);
    assert_int_equal(peer_flush(&peer), 0);
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_int_equal(hear_reply(&peer, i, &reply), 0);
        assert_int_equal(reply.table_length, i % 3 == 0 ? 16 : 0);
        peer_receive_bytes(&peer, back, reply.table_length + reply.payload_length);
        for (uint64_t j = 0; j < reply.payload_length; j += 97)
            assert_int_equal(back[reply.table_length + j], pattern(i + j, 1));
        assert_int_equal(hear_end(&peer, i), 0);
    }
    struct mc_frame frame;
    struct mc_reader reader;
    peer_expect(&peer, MC_MESSAGE_PONG, &frame, &reader);
    assert_int_equal(frame.request_id, 424242);
    free(back);
    peer_close(&peer);
    rig_stop(&rig);
}

static void test_peer_that_stops_reading(void **state)
{
    (void)state;
    struct rig rig;
    rig_start(&rig);
    object_put(&rig, 1, 10, 0, 16 * MIB);
    struct peer lazy = connect_peer(&rig, false), busy = connect_peer(&rig, false);
    for (uint32_t i = 0; i < 500; i++)
        put_read(&lazy, i, 1, 10, 0, 16 * MIB, true);
    assert_int_equal(peer_flush(&lazy), 0);
    usleep(50000);
    for (uint32_t i = 0; i < 20; i++)
        expect_pong(&busy, i);
    assert_int_equal(rig_connections(&rig), 2);
    peer_close(&lazy); /* with its requests open */
    rig_wait_connections(&rig, 1);
    expect_pong(&busy, 1000);
    peer_close(&busy);
    rig_stop(&rig);
}

/* From now on there is no memory for what the guests are answered. */
static void do_fail(struct rig *rig, void *argument)
{
    (void)argument;
    for (struct mc_serve_connection *one = rig->serve->guests.first; one != NULL; one = one->next)
        one->lane.out.failed = true;
}

/* A connection that rests is asked for much at once, and the first answer cannot be made. */
static void test_no_memory_for_an_answer(void **state)
{
    (void)state;
    struct rig rig;
    rig_start(&rig);
    object_put(&rig, 1, 10, 0, MIB);
    struct peer peer = connect_peer(&rig, false);
    expect_pong(&peer, 1);
    rig_call(&rig, do_fail, NULL);
    for (uint32_t i = 0; i < 8; i++)
        put_read(&peer, i, 1, 10, 0, MIB, true);
    assert_int_equal(peer_flush(&peer), 0);
    rig_wait_connections(&rig, 0); /* though the peer does not close */
    struct peer next = connect_peer(&rig, false);
    usleep((MC_SERVE_SETTLE_MS + 200) * 1000); /* when the first one would have rested for long */
    expect_pong(&next, 1);
    peer_close(&next);
    peer_close(&peer);
    rig_stop(&rig);
}

static void do_clear(struct rig *rig, void *argument)
{
    assert_int_equal(mc_segment_memory_clear(rig->memory, *(uint32_t *)argument, 10), 0);
}

static void test_read_with_clear(void **state)
{
    (void)state;
    struct rig rig;
    struct mc_wire_read_reply reply;
    rig_start(&rig);
    object_put(&rig, 1, 10, 0, 24 * MIB);
    struct peer peer = connect_peer(&rig, false);
    uint8_t *back = malloc(24 * MIB);
    put_read(&peer, 1, 1, 10, 0, 24 * MIB, false);
    put_read(&peer, 2, 1, 10, 0, 10, false);
    assert_int_equal(peer_flush(&peer), 0);
    assert_int_equal(hear_reply(&peer, 1, &reply), 0);
    uint32_t slot = 1;
    rig_call(&rig, do_clear, &slot); /* most of the bytes do not fit the socket and are still to be sent */
    peer_receive_bytes(&peer, back, 24 * MIB);
    assert_int_equal(hear_end(&peer, 1), MC_ERR_REPLICA_IS_GONE);
    assert_int_equal(hear_reply(&peer, 2, &reply), MC_ERR_REPLICA_IS_GONE);
    expect_pong(&peer, 3);
    free(back);
    peer_close(&peer);
    rig_stop(&rig);
}

/* ---- cuts ---- */

struct cut_request {
    uint32_t slot;
    uint64_t generation;
    struct mc_id writer;
};

static void cut_done(void *context, uint32_t slot, uint64_t generation)
{
    struct rig *rig = context;
    (void)slot;
    (void)generation;
    atomic_fetch_add(&rig->cuts_done, 1);
}

static void do_cut(struct rig *rig, void *argument)
{
    struct cut_request *cut = argument;
    mc_serve_cut(rig->serve, cut->slot, cut->generation, cut->writer, cut_done, rig);
}

static void rig_wait_cuts(struct rig *rig, unsigned count)
{
    uint64_t end_ns = soon();
    while (atomic_load(&rig->cuts_done) < count && mc_clock_ns() < end_ns)
        usleep(500);
    assert_int_equal(atomic_load(&rig->cuts_done), count);
}

static void ask_byte(struct rig *rig, void *argument)
{
    uint64_t *at = argument;
    *at = rig_byte_now(rig, *at);
}

/* A byte of the segment as the serve thread sees it. */
static uint8_t rig_byte(struct rig *rig, uint64_t offset)
{
    rig_call(rig, ask_byte, &offset);
    return (uint8_t)offset;
}

static void test_cut_write(void **state)
{
    (void)state;
    struct rig rig;
    rig_start(&rig);
    struct mc_id writer = mc_random_id();
    struct peer peer = connect_as(&rig, false, writer), other = connect_as(&rig, false, writer);
    uint8_t *bytes = pattern_make(MIB, 1);
    put_write(&peer, 4, 20, 0, MIB);
    mc_buffer_append(&peer.out, bytes, MIB / 2);
    assert_int_equal(peer_flush(&peer), 0);
    uint64_t end_ns = soon();
    uint64_t at = MIB / 2 - 1;
    while (rig_byte(&rig, at) != bytes[at] && mc_clock_ns() < end_ns)
        usleep(500);
    put_write(&other, 5, 20, 2 * MIB, 1000); /* of the same writer, another slot: goes on */
    mc_buffer_append(&other.out, bytes, 500);
    assert_int_equal(peer_flush(&other), 0);

    struct cut_request cut = {4, 20, writer};
    rig_call(&rig, do_cut, &cut);
    if (rig_threads > 0) /* one of them may be storing just now */
        rig_wait_cuts(&rig, 1);
    assert_int_equal(atomic_load(&rig.cuts_done), 1); /* at once: no unix connection */
    assert_int_equal(peer_send_bytes(&peer, bytes + MIB / 2, MIB / 2), 0);
    expect_pong(&peer, 1); /* drained: the connection is as good as before */
    rig_wait_connections(&rig, 2);
    assert_int_equal(rig_byte(&rig, MIB / 2), 0); /* nothing arrived after the cut */
    assert_int_equal(peer_send_bytes(&other, bytes + 500, 500), 0);
    put_commit(&other, 5, 20, 2 * MIB, 1000);
    put_commit(&other, 4, 20, 0, MIB); /* by another way: refused as well */
    put_write(&other, 4, 20, 0, MIB);
    mc_buffer_append(&other.out, bytes, MIB);
    assert_int_equal(peer_flush(&other), 0);
    expect_pong(&other, 1);
    rig_wait_told(&rig, 2);
    assert_int_equal(rig.told[0].code, 0);
    assert_int_equal(rig.told[1].code, MC_ERR_STALE);
    assert_int_equal(rig_byte(&rig, MIB / 2), 0);
    free(bytes);
    peer_close(&peer);
    peer_close(&other);
    rig_stop(&rig);
}

/* A peer with the memory mapped: waits for the copy that it has announced, for nothing else. */
static void test_cut_unix(void **state)
{
    (void)state;
    struct rig rig;
    struct mc_wire_attach_reply reply;
    int fds[3], intents[2];
    rig_start(&rig);
    struct mc_id writer = mc_random_id();
    struct peer peer = connect_as(&rig, true, writer), other = connect_peer(&rig, true);
    assert_true(attach(&peer, &reply, fds) > 0);
    int lock = mc_writers_reopen(fds[2]);
    assert_true(lock >= 0 && mc_writer_lock(lock, reply.writer));
    struct mc_writer_entry *table = mmap(NULL, MC_WRITERS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fds[2], 0);
    struct mc_index_header *header = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fds[1], 0);
    assert_ptr_not_equal(table, MAP_FAILED);
    assert_ptr_not_equal(header, MAP_FAILED);
    const struct mc_slot *slots = mc_segment_memory_slots(rig.memory);
    const struct mc_writing writings[2] = {{20, 0, 4096, 4}, {30, 8192, 4096, 5}};
    for (int i = 0; i < 2; i++) {
        intents[i] = mc_writer_claim(&table[reply.writer], header, slots, &writings[i], soon());
        assert_true(intents[i] >= 0);
    }
    struct cut_request cuts[4] = {{9, 20, writer}, {5, 29, writer}, {4, 20, writer}, {5, 31, writer}};
    for (int i = 0; i < 4; i++)
        rig_call(&rig, do_cut, &cuts[i]);
    assert_int_equal(atomic_load(&rig.cuts_done), 2); /* nobody writes to 9; at 5 only something newer is written */
    mc_writer_intent_end(&table[reply.writer], intents[0]);
    rig_wait_cuts(&rig, 3);
    assert_int_equal(mc_writer_claim(&table[reply.writer], header, slots, &writings[0], soon()), MC_ERR_STALE);
    /* Garbage: we end the conversation, but the peer still has the memory mapped. */
    assert_int_equal(peer_send_bytes(&peer, "GET / HTTP/1.1\r\n\r\n", 18), 0);
    assert_true(peer_is_closed(&peer));
    rig_wait_connections(&rig, 1);
    usleep(60000);
    assert_int_equal(atomic_load(&rig.cuts_done), 3);
    close(lock); /* as its death would */
    rig_wait_cuts(&rig, 4);
    assert_int_equal(atomic_load(&table[reply.writer].intents[intents[1]].generation), 0); /* reset */
    expect_pong(&other, 5);
    munmap(table, MC_WRITERS_BYTES);
    munmap(header, 4096);
    for (int i = 0; i < 3; i++)
        close(fds[i]);
    peer_close(&peer);
    peer_close(&other);
    rig_stop(&rig);
}

static void test_cut_own_thread(void **state)
{
    (void)state;
    struct rig rig;
    struct mc_local_write write;
    rig_start(&rig);
    struct cut_request cut = {4, 20, rig.node};
    assert_int_equal(mc_segment_memory_write_begin(rig.memory, &write, 4, 20, 0, 100, soon()), 0);
    rig_call(&rig, do_cut, &cut);
    usleep(50000);
    assert_int_equal(atomic_load(&rig.cuts_done), 0);
    mc_segment_memory_write_end(rig.memory, &write);
    rig_wait_cuts(&rig, 1);
    assert_int_equal(mc_segment_memory_write_begin(rig.memory, &write, 4, 20, 0, 100, soon()), MC_ERR_STALE);
    rig_stop(&rig);
}

/* ---- bad peers and limits ---- */

static void test_garbage(void **state)
{
    (void)state;
    struct rig rig;
    uint64_t random = 7;
    rig_start(&rig);
    for (unsigned i = 0; i < 200; i++) {
        uint8_t bytes[600];
        bool said_hello = i % 3 != 0;
        struct peer peer = said_hello ? connect_peer(&rig, i % 2) : connect_raw(&rig, i % 2);
        size_t length = 1 + random_below(&random, sizeof(bytes));
        for (size_t j = 0; j < length; j++)
            bytes[j] = (uint8_t)random_next(&random);
        if (i % 4 == 0 && length > 16) { /* a header that is nearly right */
            uint32_t body = (uint32_t)random_below(&random, 64);
            uint16_t type = (uint16_t)(60 + random_below(&random, 9)), flags = 0;
            memcpy(bytes, &body, 4);
            memcpy(bytes + 4, &type, 2);
            memcpy(bytes + 6, &flags, 2);
        }
        (void)peer_send_bytes(&peer, bytes, length);
        if (i % 5 == 0) {
            uint32_t huge[4] = {UINT32_MAX, 62, 0, 0};
            (void)peer_send_bytes(&peer, huge, 16);
        }
        peer_close(&peer);
    }
    struct peer peer = connect_peer(&rig, false); /* a frame longer than any of ours */
    uint32_t head[4] = {(256u << 10) + 1, 62, 0, 0};
    assert_int_equal(peer_send_bytes(&peer, head, 16), 0);
    assert_true(peer_is_closed(&peer));
    peer_close(&peer);
    peer = connect_peer(&rig, false); /* a batch whose second record is cut short is not applied in part */
    put_commit(&peer, 1, 1, 0, 10);
    peer.out.data[16 + 2] = 2; /* says two items */
    assert_int_equal(peer_flush(&peer), 0);
    assert_true(peer_is_closed(&peer));
    peer_close(&peer);
    rig_wait_connections(&rig, 0);
    assert_int_equal(mc_segment_memory_live(rig.memory), 0);
    peer = connect_peer(&rig, true);
    expect_pong(&peer, 1);
    peer_close(&peer);
    rig_stop(&rig);
}

static void do_set_memory(struct rig *rig, void *argument)
{
    mc_serve_set_memory(rig->serve, argument);
    mc_segment_memory_release(rig->memory);
    rig->memory = argument;
}

static void test_new_memory(void **state)
{
    (void)state;
    struct rig rig;
    struct mc_segment_memory *fresh;
    struct mc_wire_hello_reply reply;
    rig_start(&rig);
    struct mc_id writer = mc_random_id();
    struct peer mapped = connect_as(&rig, true, writer), tcp = connect_peer(&rig, false),
                late = connect_raw(&rig, false);
    struct mc_wire_hello hello = hello_of(&rig, writer);
    struct cut_request cut = {4, 20, writer};
    struct mc_segment_memory *old = rig.memory;
    struct mc_local_write write;
    mc_segment_memory_retain(old);
    assert_int_equal(mc_segment_memory_write_begin(old, &write, 4, 20, 0, 100, soon()), 0);
    rig_call(&rig, do_cut, &cut);
    assert_int_equal(mc_segment_memory_create(MIB, &fresh), 0);
    rig_call(&rig, do_set_memory, fresh);
    assert_true(peer_is_closed(&mapped));
    assert_true(peer_is_closed(&tcp));
    assert_true(peer_is_closed(&late));
    assert_int_equal(rig_connections(&rig), 0);
    mc_segment_memory_write_end(old, &write);
    mc_segment_memory_release(old);
    usleep(30000);
    assert_int_equal(atomic_load(&rig.cuts_done), 0); /* forgotten */
    peer_close(&tcp);
    tcp = connect_raw(&rig, false);
    say_hello(&tcp, &hello); /* with the nonce of the old memory */
    assert_int_equal(hear_hello(&tcp, &reply), MC_ERR_STALE);
    peer_close(&mapped);
    peer_close(&tcp);
    peer_close(&late);
    rig_stop(&rig);
}

/* ---- posts, life, fork ---- */

static _Atomic unsigned posts_run;
static void count_post(void *argument)
{
    (void)argument;
    atomic_fetch_add(&posts_run, 1);
}
static void *post_many(void *argument)
{
    for (int i = 0; i < 1000; i++)
        mc_serve_post(argument, count_post, NULL);
    return NULL;
}

static void test_posts(void **state)
{
    (void)state;
    struct rig rig;
    pthread_t threads[3];
    rig_start(&rig);
    atomic_store(&posts_run, 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, post_many, rig.serve), 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    rig_stop(&rig);
    assert_int_equal(atomic_load(&posts_run), 3000);
    rig_prepare(&rig, true); /* never started */
    mc_serve_post(rig.serve, count_post, NULL);
    rig_stop(&rig);
    assert_int_equal(atomic_load(&posts_run), 3001);
}

static void test_life(void **state)
{
    (void)state;
    unsigned before = count_of("/proc/self/fd");
    for (unsigned i = 0; i < 30; i++) {
        struct rig rig;
        rig_start(&rig);
        struct peer peers[3] = {connect_peer(&rig, true), connect_peer(&rig, false), connect_raw(&rig, true)};
        rig_stop(&rig); /* with connections open */
        for (int j = 0; j < 3; j++) {
            assert_true(peer_is_closed(&peers[j]));
            peer_close(&peers[j]);
        }
    }
    assert_int_equal(count_of("/proc/self/fd"), before);
}

static void test_listening(void **state)
{
    (void)state;
    struct rig rig;
    struct mc_serve *second;
    struct stat status;
    char directory[] = "/tmp/mc-serve-XXXXXX", long_directory[200];
    rig_prepare(&rig, false);
    assert_string_equal(mc_serve_unix_path(rig.serve), "");
    assert_true(mc_serve_tcp_port(rig.serve) != 0);
    errno = 0;
    assert_int_equal(mc_serve_create(rig.node, 1, "127.0.0.1", mc_serve_tcp_port(rig.serve), false, NULL, &second),
                     MC_ERR_RPC_FAIL);
    assert_int_equal(errno, EADDRINUSE);
    assert_int_equal(mc_serve_create(rig.node, 1, "192.0.2.1", 0, false, NULL, &second), MC_ERR_RPC_FAIL);
    assert_int_equal(errno, EADDRNOTAVAIL);
    rig_stop(&rig);

    assert_non_null(mkdtemp(directory));
    assert_int_equal(setenv("MC_SHM_DIR", directory, 1), 0);
    rig_start(&rig);
    char path[MC_UNIX_PATH_MAX];
    snprintf(path, sizeof(path), "%s", mc_serve_unix_path(rig.serve));
    assert_true(strncmp(path, directory, strlen(directory)) == 0);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0600);
    struct peer peer = connect_peer(&rig, true);
    expect_pong(&peer, 1);
    peer_close(&peer);
    rig_stop(&rig);
    assert_int_equal(stat(path, &status), -1);
    assert_int_equal(rmdir(directory), 0);
    rig_prepare(&rig, true); /* the folder is gone: tcp only */
    assert_string_equal(mc_serve_unix_path(rig.serve), "");
    rig_stop(&rig);
    memset(long_directory, 'x', sizeof(long_directory));
    long_directory[0] = '/';
    long_directory[sizeof(long_directory) - 1] = 0;
    assert_int_equal(setenv("MC_SHM_DIR", long_directory, 1), 0);
    rig_prepare(&rig, true);
    assert_string_equal(mc_serve_unix_path(rig.serve), "");
    rig_stop(&rig);
    assert_int_equal(unsetenv("MC_SHM_DIR"), 0);
}

static void test_fork(void **state)
{
    (void)state;
    struct rig rig;
    int status;
    unsigned before = count_of("/proc/self/fd");
    rig_start(&rig);
    struct peer peer = connect_peer(&rig, false), local = connect_peer(&rig, true);
    pid_t child = fork();
    if (child == 0) {
        mc_serve_forked(rig.serve);
        /* what is left: our two ends of the connections, and of libevent, in each loop, epoll and two sockets */
        _exit(count_of("/proc/self/fd") <= before + 2 + 3 * (1 + rig_threads) ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    expect_pong(&peer, 1); /* the parent's went on */
    expect_pong(&local, 1);
    peer_close(&peer);
    peer_close(&local);
    rig_wait_connections(&rig, 0);
    rig_stop(&rig);
}

int main(void)
{
    mc_log_set_level(MC_LOG_ERROR);
    const struct CMUnitTest alone[] = {cmocka_unit_test(test_no_memory_for_an_answer)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hello),
        cmocka_unit_test(test_hello_of_another_cluster),
        cmocka_unit_test(test_other_user),
        cmocka_unit_test(test_attach),
        cmocka_unit_test(test_attach_by_tcp),
        cmocka_unit_test(test_write),
        cmocka_unit_test(test_write_pieces),
        cmocka_unit_test(test_write_refused),
        cmocka_unit_test(test_write_parts),
        cmocka_unit_test(test_read_errors),
        cmocka_unit_test(test_read_many),
        cmocka_unit_test(test_peer_that_stops_reading),
        cmocka_unit_test(test_read_with_clear),
        cmocka_unit_test(test_cut_write),
        cmocka_unit_test(test_cut_unix),
        cmocka_unit_test(test_cut_own_thread),
        cmocka_unit_test(test_garbage),

        cmocka_unit_test(test_new_memory),
        cmocka_unit_test(test_posts),
        cmocka_unit_test(test_life),
        cmocka_unit_test(test_listening),
        cmocka_unit_test(test_fork),
    };
    int failed = cmocka_run_group_tests(alone, NULL, NULL) + cmocka_run_group_tests(tests, NULL, NULL);
    rig_threads = 2;
    return failed + cmocka_run_group_tests_name("with data threads", tests, NULL, NULL);
}
