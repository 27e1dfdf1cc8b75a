/* The owner's link to the master; the test itself is the master, and now and then a peer that writes. */
#include "store/owner.h"
#include "engine/memory.h"
#include "env/log.h"
#include "frames.h"
#include "random.h"

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define MIB (1ull << 20)
#define CAPACITY (24 * MIB)
#define SEGMENT 7u

struct rig {
    int listener;
    char address[MC_ADDRESS_MAX];
    struct mc_engine *engine;
    struct mc_owner *owner;
    struct mc_id node;
    struct peer link; /* the owner's connection, as the master sees it */
    uint64_t epoch;   /* what the master answers to mounts that only tell how far populating is */
    struct mc_wire_mount mount;
    char unix_path[MC_UNIX_PATH_MAX], tcp_address[MC_ADDRESS_MAX];
    unsigned mounts;
};

static struct mc_owner_config config_of(struct rig *rig)
{
    return (struct mc_owner_config){.engine = rig->engine,
                                    .master_address = rig->address,
                                    .node = rig->node,
                                    .incarnation = 99,
                                    .advertise_host = "127.0.0.1",
                                    .bind_host = "127.0.0.1",
                                    .unix_allowed = true,
                                    .capacity = CAPACITY};
}

static void rig_prepare(struct rig *rig)
{
    uint16_t port = 0;
    *rig = (struct rig){.node = mc_random_id(), .link = {.fd = -1}, .epoch = 3};
    rig->listener = mc_tcp_listen("127.0.0.1", &port);
    assert_true(rig->listener >= 0);
    mc_address_join(rig->address, sizeof(rig->address), "127.0.0.1", port);
    rig->engine = mc_engine_create(rig->node, 99, MC_PATH_ALL);
    assert_non_null(rig->engine);
}

static void rig_create(struct rig *rig)
{
    rig_prepare(rig);
    struct mc_owner_config config = config_of(rig);
    assert_int_equal(mc_owner_create(&config, &rig->owner), 0);
}

static void rig_accept(struct rig *rig)
{
    peer_close(&rig->link);
    assert_int_equal(mc_socket_wait_read(rig->listener, soon(), NULL), 0);
    rig->link.fd = mc_socket_accept(rig->listener);
    assert_true(rig->link.fd >= 0);
}

static void answer_hello(struct rig *rig, int code)
{
    struct mc_frame frame;
    struct mc_reader reader;
    struct mc_wire_hello hello;
    peer_expect(&rig->link, MC_MESSAGE_HELLO, &frame, &reader);
    mc_wire_hello_read(&reader, &hello);
    assert_int_equal(hello.magic, MC_WIRE_MAGIC);
    assert_int_equal(hello.role, MC_ROLE_OWNER);
    assert_int_equal(hello.incarnation, 99);
    assert_true(mc_id_equal(hello.node, rig->node));
    struct mc_wire_hello_reply reply = {
        .code = code, .version_min = 1, .version_max = 1, .epoch = rig->epoch, .text = mc_span_string("no")};
    size_t start = mc_frame_begin(&rig->link.out, MC_MESSAGE_HELLO_REPLY, frame.request_id);
    mc_wire_hello_reply_write(&rig->link.out, &reply);
    mc_frame_end(&rig->link.out, start);
    assert_int_equal(peer_flush(&rig->link), 0);
}

static void answer_mount(struct rig *rig, uint64_t request_id, int code)
{
    struct mc_wire_mount_reply reply = {.code = code, .segment = SEGMENT, .epoch = rig->epoch};
    size_t start = mc_frame_begin(&rig->link.out, MC_MESSAGE_MOUNT_REPLY, request_id);
    mc_wire_mount_reply_write(&rig->link.out, &reply);
    mc_frame_end(&rig->link.out, start);
    (void)peer_flush(&rig->link);
}

static void mount_note(struct rig *rig, struct mc_reader *reader)
{
    mc_wire_mount_read(reader, &rig->mount);
    assert_false(reader->bad);
    assert_true(rig->mount.unix_path.length < sizeof(rig->unix_path) &&
                rig->mount.tcp_address.length < sizeof(rig->tcp_address));
    snprintf(rig->unix_path, sizeof(rig->unix_path), "%.*s", (int)rig->mount.unix_path.length,
             (const char *)rig->mount.unix_path.data);
    snprintf(rig->tcp_address, sizeof(rig->tcp_address), "%.*s", (int)rig->mount.tcp_address.length,
             (const char *)rig->mount.tcp_address.data);
    rig->mounts++;
}

/* The next frame that is not a MOUNT; those are answered well on the way. Its type or negative. */
static int rig_next(struct rig *rig, struct mc_frame *frame, struct mc_reader *reader)
{
    int type;
    while ((type = peer_receive(&rig->link, frame, reader)) == MC_MESSAGE_MOUNT) {
        mount_note(rig, reader);
        answer_mount(rig, frame->request_id, 0);
    }
    return type;
}

static void rig_expect(struct rig *rig, enum mc_message type, struct mc_frame *frame, struct mc_reader *reader)
{
    int got = rig_next(rig, frame, reader);
    if (got != (int)type)
        fail_msg("expected %s, got %s", mc_message_name(type),
                 got < 0 ? mc_error_name(got) : mc_message_name((unsigned)got));
    assert_int_equal(mc_wire_check(frame->type, frame->body), 0);
}

/* The first MOUNT on a new link; not answered. */
static uint64_t rig_expect_mount(struct rig *rig)
{
    struct mc_frame frame;
    struct mc_reader reader;
    peer_expect(&rig->link, MC_MESSAGE_MOUNT, &frame, &reader);
    mount_note(rig, &reader);
    return frame.request_id;
}

/* A wish to mount again is nothing while a mount is still open, and our answer to the last may not have arrived. */
static uint64_t rig_remount(struct rig *rig)
{
    for (unsigned i = 0; i < 100; i++) {
        mc_owner_remount(rig->owner);
        if (mc_socket_wait_read(rig->link.fd, mc_clock_ns() + 50000000, NULL) == 0)
            break;
    }
    return rig_expect_mount(rig);
}

static void rig_mount(struct rig *rig)
{
    rig_create(rig);
    rig_accept(rig);
    answer_hello(rig, 0);
    answer_mount(rig, rig_expect_mount(rig), 0);
    assert_int_equal(mc_owner_first_mount(rig->owner, soon()), 0);
}

static void *close_run(void *argument)
{
    mc_owner_close(argument);
    return NULL;
}

/* Closes without the answer to UNMOUNT that a master would give. */
static void rig_stop(struct rig *rig)
{
    peer_close(&rig->link); /* the owner sees the end and need not wait */
    if (rig->owner != NULL)
        mc_owner_close(rig->owner);
    mc_engine_destroy(rig->engine);
    close(rig->listener);
}

/* ---- a peer that writes ---- */

static struct peer writer_connect(struct rig *rig, bool is_unix, struct mc_id node, int expected)
{
    struct peer peer = {.fd = is_unix ? mc_unix_connect(rig->unix_path, soon())
                                      : mc_tcp_connect(rig->tcp_address, soon())};
    struct mc_wire_hello hello = {.magic = MC_WIRE_MAGIC,
                                  .version_min = 1,
                                  .version_max = 1,
                                  .role = MC_ROLE_DATA,
                                  .node = node,
                                  .nonce = rig->mount.nonce};
    struct mc_wire_hello_reply reply;
    struct mc_frame frame;
    struct mc_reader reader;
    assert_true(peer.fd >= 0);
    size_t start = mc_frame_begin(&peer.out, MC_MESSAGE_HELLO, 1);
    mc_wire_hello_write(&peer.out, &hello);
    mc_frame_end(&peer.out, start);
    assert_int_equal(peer_flush(&peer), 0);
    peer_expect(&peer, MC_MESSAGE_HELLO_REPLY, &frame, &reader);
    mc_wire_hello_reply_read(&reader, &reply);
    assert_int_equal(reply.code, expected);
    return peer;
}

static void writer_commit(struct peer *peer, uint32_t first_slot, uint32_t count, uint64_t generation)
{
    struct mc_wire_none none = {0};
    size_t start = mc_frame_begin(&peer->out, MC_MESSAGE_COMMIT, 0);
    mc_wire_none_write(&peer->out, &none);
    size_t list = mc_list_begin(&peer->out);
    for (uint32_t i = 0; i < count; i++) {
        struct mc_wire_commit_item item = {.slot = first_slot + i,
                                           .generation = generation,
                                           .offset = 1024 * i,
                                           .length = 10,
                                           .key_length = 5,
                                           .block_shift = mc_block_shift(10)};
        mc_wire_commit_item_write(&peer->out, &item);
    }
    mc_list_end(&peer->out, list, count);
    mc_frame_end(&peer->out, start);
    assert_int_equal(peer_flush(peer), 0);
}

/* Receives LIVE until so many items are there, in slot order. */
static void expect_live(struct rig *rig, uint32_t first_slot, uint32_t count, uint64_t generation, int code)
{
    for (uint32_t seen = 0; seen < count;) {
        struct mc_frame frame;
        struct mc_reader reader;
        struct mc_wire_live head;
        rig_expect(rig, MC_MESSAGE_LIVE, &frame, &reader);
        mc_wire_live_read(&reader, &head);
        assert_int_equal(head.segment, SEGMENT);
        uint32_t items = mc_list_read(&reader);
        assert_in_range(items, 1, MC_BATCH_MAX);
        for (uint32_t i = 0; i < items; i++, seen++) {
            struct mc_wire_live_item item;
            mc_wire_live_item_read(&reader, &item);
            assert_int_equal(item.slot, first_slot + seen);
            assert_int_equal(item.generation, generation);
            assert_int_equal(item.code, code);
        }
        assert_in_range(seen, 1, count);
    }
}

static void say_slots(struct rig *rig, enum mc_message type, uint32_t segment, const uint32_t *slots, uint32_t count,
                      uint64_t generation, struct mc_id writer)
{
    struct mc_wire_segment head = {.segment = segment};
    size_t start = mc_frame_begin(&rig->link.out, type, 55);
    mc_wire_segment_write(&rig->link.out, &head);
    size_t list = mc_list_begin(&rig->link.out);
    for (uint32_t i = 0; i < count; i++) {
        struct mc_wire_slot slot = {.slot = slots[i], .generation = generation};
        struct mc_wire_cut_item cut = {.slot = slots[i], .generation = generation, .writer = writer};
        if (type == MC_MESSAGE_CLEAR)
            mc_wire_slot_write(&rig->link.out, &slot);
        else
            mc_wire_cut_item_write(&rig->link.out, &cut);
    }
    mc_list_end(&rig->link.out, list, count);
    mc_frame_end(&rig->link.out, start);
    assert_int_equal(peer_flush(&rig->link), 0);
}

static void expect_slots(struct rig *rig, enum mc_message type, const uint32_t *slots, uint32_t count,
                         uint64_t generation)
{
    struct mc_frame frame;
    struct mc_reader reader;
    struct mc_wire_segment head;
    rig_expect(rig, type, &frame, &reader);
    mc_wire_segment_read(&reader, &head);
    assert_int_equal(head.segment, SEGMENT);
    assert_int_equal(mc_list_read(&reader), count);
    for (uint32_t i = 0; i < count; i++) {
        struct mc_wire_slot slot;
        mc_wire_slot_read(&reader, &slot);
        assert_int_equal(slot.slot, slots[i]);
        assert_int_equal(slot.generation, generation);
    }
}

static struct mc_segment_memory *rig_memory(struct rig *rig)
{
    struct mc_segment_memory *memory = mc_engine_find_segment(rig->engine, rig->mount.segment_id);
    assert_non_null(memory);
    mc_segment_memory_release(memory); /* the owner's own reference keeps it */
    return memory;
}

/* ---- tests ---- */

static void test_mount_and_unmount(void **state)
{
    (void)state;
    struct rig rig;
    struct mc_frame frame;
    struct mc_reader reader;
    uint32_t segment = 0;
    pthread_t closer;
    rig_create(&rig);
    assert_false(mc_owner_segment(rig.owner, &segment));
    rig_accept(&rig);
    answer_hello(&rig, 0);
    uint64_t request_id = rig_expect_mount(&rig);
    struct mc_id segment_id = rig.mount.segment_id;
    assert_int_equal(rig.mount.epoch, 0);
    assert_int_equal(rig.mount.capacity, CAPACITY);
    assert_int_equal(rig.mount.slot_count, mc_slot_count(CAPACITY));
    assert_true(mc_id_equal(rig.mount.host, mc_host_id()));
    assert_true(mc_span_equal(rig.mount.name, rig.mount.tcp_address));
    char name[MC_ADDRESS_MAX];
    mc_address_join(name, sizeof(name), "127.0.0.1", mc_owner_port(rig.owner));
    assert_string_equal(rig.tcp_address, name);
    assert_true(rig.unix_path[0] == '@');
    assert_int_equal(mc_owner_first_mount(rig.owner, mc_clock_ns() + 20000000), MC_ERR_RPC_TIMEOUT);
    answer_mount(&rig, request_id, 0);
    assert_int_equal(mc_owner_first_mount(rig.owner, soon()), 0);
    assert_true(mc_owner_segment(rig.owner, &segment));
    assert_int_equal(segment, SEGMENT);
    assert_int_equal(mc_owner_capacity(rig.owner), CAPACITY);

    uint64_t populated = rig.mount.populated; /* told step by step, to the end */
    while (populated < CAPACITY) {
        request_id = rig_expect_mount(&rig);
        assert_true(mc_id_equal(rig.mount.segment_id, segment_id));
        assert_int_equal(rig.mount.epoch, 3);
        assert_true(rig.mount.populated > populated);
        populated = rig.mount.populated;
        answer_mount(&rig, request_id, 0);
    }
    assert_int_equal(mc_owner_populated(rig.owner), CAPACITY);

    request_id = rig_remount(&rig); /* the keeper heard that we are unknown */
    assert_int_equal(rig.mount.epoch, 3);
    answer_mount(&rig, request_id, 0);

    uint64_t start_ms = mc_clock_ms();
    assert_int_equal(pthread_create(&closer, NULL, close_run, rig.owner), 0);
    rig_expect(&rig, MC_MESSAGE_UNMOUNT, &frame, &reader);
    struct mc_wire_unmount unmount;
    mc_wire_unmount_read(&reader, &unmount);
    assert_int_equal(unmount.segment, SEGMENT);
    peer_write_code(&rig.link, MC_MESSAGE_UNMOUNT_REPLY, frame.request_id, 0);
    assert_int_equal(peer_flush(&rig.link), 0);
    pthread_join(closer, NULL);
    assert_in_range(mc_clock_ms() - start_ms, 0, 450);
    assert_true(peer_is_closed(&rig.link));
    rig.owner = NULL;
    rig_stop(&rig);
}

static void test_silent_master(void **state)
{
    (void)state;
    struct rig rig;
    rig_mount(&rig);
    uint64_t start_ms = mc_clock_ms();
    mc_owner_close(rig.owner); /* UNMOUNT is not answered */
    assert_in_range(mc_clock_ms() - start_ms, 450, 1500);
    rig.owner = NULL;
    rig_stop(&rig);

    rig_create(&rig); /* not even the hello is */
    rig_accept(&rig);
    assert_int_equal(mc_owner_first_mount(rig.owner, mc_clock_ns() + 50000000), MC_ERR_RPC_TIMEOUT);
    start_ms = mc_clock_ms();
    mc_owner_close(rig.owner);
    assert_in_range(mc_clock_ms() - start_ms, 0, 400);
    rig.owner = NULL;
    rig_stop(&rig);
}

static void test_no_master(void **state)
{
    (void)state;
    struct rig rig;
    rig_prepare(&rig);
    close(rig.listener);
    struct mc_owner_config config = config_of(&rig);
    assert_int_equal(mc_owner_create(&config, &rig.owner), 0);
    assert_int_equal(mc_owner_first_mount(rig.owner, mc_clock_ns() + 200000000), MC_ERR_RPC_TIMEOUT);
    /* it comes up late, at the same address */
    uint16_t port = 0;
    char host[MC_ADDRESS_MAX];
    assert_int_equal(mc_address_split(rig.address, host, sizeof(host), &port), 0);
    rig.listener = mc_tcp_listen(host, &port);
    assert_true(rig.listener >= 0);
    rig_accept(&rig);
    answer_hello(&rig, 0);
    answer_mount(&rig, rig_expect_mount(&rig), 0);
    assert_int_equal(mc_owner_first_mount(rig.owner, soon()), 0);
    rig_stop(&rig);
}

static void test_refusals(void **state)
{
    (void)state;
    struct rig rig;
    rig_create(&rig);
    rig_accept(&rig);
    answer_hello(&rig, MC_ERR_INVALID_VERSION);
    uint64_t start_ms = mc_clock_ms();
    assert_int_equal(mc_owner_first_mount(rig.owner, soon()), MC_ERR_INVALID_VERSION); /* no use to wait */
    assert_in_range(mc_clock_ms() - start_ms, 0, 2000);
    rig_stop(&rig);

    rig_create(&rig);
    rig_accept(&rig);
    answer_hello(&rig, 0);
    answer_mount(&rig, rig_expect_mount(&rig), MC_ERR_SEGMENT_ALREADY_EXISTS);
    assert_int_equal(mc_owner_first_mount(rig.owner, mc_clock_ns() + 50000000), MC_ERR_SEGMENT_ALREADY_EXISTS);
    rig_accept(&rig); /* tries again by itself */
    answer_hello(&rig, 0);
    uint64_t request_id = rig_expect_mount(&rig);
    peer_write_code(&rig.link, MC_MESSAGE_FAILED, request_id, MC_ERR_BUSY);
    assert_int_equal(peer_flush(&rig.link), 0);
    rig_accept(&rig);
    answer_hello(&rig, 0);
    answer_mount(&rig, rig_expect_mount(&rig), MC_ERR_STALE); /* not even mounted yet: new memory, later */
    struct mc_id refused = rig.mount.segment_id;
    rig_accept(&rig);
    answer_hello(&rig, 0);
    (void)rig_expect_mount(&rig);
    assert_int_equal(rig.mount.epoch, 0);
    assert_false(mc_id_equal(rig.mount.segment_id, refused));
    rig_stop(&rig);
}

static void test_live(void **state)
{
    (void)state;
    struct rig rig;
    rig_mount(&rig);
    for (int is_unix = 0; is_unix < 2; is_unix++) {
        uint32_t base = is_unix ? 3000 : 0;
        struct peer writer = writer_connect(&rig, is_unix, mc_random_id(), 0);
        writer_commit(&writer, base, 1, 5);
        expect_live(&rig, base, 1, 5, 0);
        writer_commit(&writer, base, 1, 5); /* again: refused, and the master hears that too */
        expect_live(&rig, base, 1, 5, MC_ERR_STALE);
        writer_commit(&writer, base + 1, MC_BATCH_MAX, 6);
        writer_commit(&writer, base + 1 + MC_BATCH_MAX, MC_BATCH_MAX, 6);
        expect_live(&rig, base + 1, 2 * MC_BATCH_MAX, 6, 0);
        peer_close(&writer);
    }
    assert_int_equal(mc_segment_memory_live(rig_memory(&rig)), 2 + 4 * MC_BATCH_MAX);
    rig_stop(&rig);
}

static void test_clear(void **state)
{
    (void)state;
    struct rig rig;
    struct mc_id none = {0, 0};
    rig_mount(&rig);
    struct peer writer = writer_connect(&rig, false, mc_random_id(), 0);
    writer_commit(&writer, 10, 4, 5);
    expect_live(&rig, 10, 4, 5, 0);
    uint32_t slots[4] = {11, 4000000, 13, 12}, kept[3] = {11, 13, 12};
    say_slots(&rig, MC_MESSAGE_CLEAR, SEGMENT + 1, slots, 4, 5, none); /* not ours: nothing happens */
    say_slots(&rig, MC_MESSAGE_CLEAR, SEGMENT, slots, 4, 5, none);     /* one of them does not exist */
    expect_slots(&rig, MC_MESSAGE_CLEARED, kept, 3, 5);
    struct mc_slot copy;
    const struct mc_slot *index = mc_segment_memory_slots(rig_memory(&rig));
    assert_true(mc_slot_read(&index[10], 5, &copy));
    assert_false(mc_slot_read(&index[11], 5, &copy));
    assert_false(mc_slot_read(&index[13], 5, &copy));
    say_slots(&rig, MC_MESSAGE_CLEAR, SEGMENT, kept, 3, 5, none); /* sent twice: answered twice */
    expect_slots(&rig, MC_MESSAGE_CLEARED, kept, 3, 5);
    writer_commit(&writer, 11, 1, 5);
    expect_live(&rig, 11, 1, 5, MC_ERR_STALE);
    say_slots(&rig, MC_MESSAGE_CLEAR, SEGMENT, kept, 0, 5, none);
    expect_slots(&rig, MC_MESSAGE_CLEARED, kept, 0, 5);
    peer_close(&writer);
    rig_stop(&rig);
}

static void test_cut(void **state)
{
    (void)state;
    struct rig rig;
    rig_mount(&rig);
    struct mc_id by_tcp = mc_random_id(), by_unix = mc_random_id();
    struct peer tcp = writer_connect(&rig, false, by_tcp, 0), local = writer_connect(&rig, true, by_unix, 0);
    uint32_t slots[3] = {20, 21, 22};
    say_slots(&rig, MC_MESSAGE_CUT, SEGMENT, slots, 3, 9, by_tcp);
    expect_slots(&rig, MC_MESSAGE_CUT_DONE, slots, 3, 9);
    writer_commit(&tcp, 20, 3, 9);
    expect_live(&rig, 20, 3, 9, MC_ERR_STALE);
    slots[0] = 30;
    say_slots(&rig, MC_MESSAGE_CUT, SEGMENT, slots, 1, 9, by_unix);
    writer_commit(&tcp, 40, 1, 9); /* something later that is answered: the cut was not */
    expect_live(&rig, 40, 1, 9, 0);
    peer_close(&local);
    expect_slots(&rig, MC_MESSAGE_CUT_DONE, slots, 1, 9);
    peer_close(&tcp);
    rig_stop(&rig);
}

static void test_reconnect(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t segment;
    rig_mount(&rig);
    struct mc_id writer_node = mc_random_id(), segment_id = rig.mount.segment_id;
    struct peer writer = writer_connect(&rig, false, writer_node, 0),
                local = writer_connect(&rig, true, writer_node, 0);
    writer_commit(&writer, 1, 1, 5);
    expect_live(&rig, 1, 1, 5, 0);
    uint32_t slots[1] = {50};
    say_slots(&rig, MC_MESSAGE_CUT, SEGMENT, slots, 1, 9, writer_node); /* still waits when the link breaks */
    writer_commit(&writer, 2, 1, 5);
    expect_live(&rig, 2, 1, 5, 0);

    peer_close(&rig.link);
    uint64_t end_ns = soon();
    while (mc_owner_segment(rig.owner, &segment) && mc_clock_ns() < end_ns)
        usleep(500);
    writer_commit(&writer, 100, 300, 5); /* nobody to tell */
    peer_ping(&writer, 1);
    struct mc_frame frame;
    struct mc_reader reader;
    assert_int_equal(peer_flush(&writer), 0);
    peer_expect(&writer, MC_MESSAGE_PONG, &frame, &reader);
    rig_accept(&rig);
    answer_hello(&rig, 0);
    uint64_t request_id = rig_expect_mount(&rig);
    assert_int_equal(rig.mount.epoch, 3);
    assert_true(mc_id_equal(rig.mount.segment_id, segment_id));
    answer_mount(&rig, request_id, 0);
    expect_live(&rig, 100, 300, 5, 0);                                  /* told now */
    say_slots(&rig, MC_MESSAGE_CUT, SEGMENT, slots, 1, 9, writer_node); /* asked again */
    peer_close(&local);
    expect_slots(&rig, MC_MESSAGE_CUT_DONE, slots, 1, 9);

    /* another master of a later epoch that takes the segment as it is: what was not told belongs to the old one */
    peer_close(&rig.link);
    while (mc_owner_segment(rig.owner, &segment) && mc_clock_ns() < end_ns)
        usleep(500);
    writer_commit(&writer, 500, 10, 5);
    peer_ping(&writer, 2);
    assert_int_equal(peer_flush(&writer), 0);
    peer_expect(&writer, MC_MESSAGE_PONG, &frame, &reader);
    rig_accept(&rig);
    answer_hello(&rig, 0);
    request_id = rig_expect_mount(&rig);
    rig.epoch = 4;
    answer_mount(&rig, request_id, 0);
    end_ns = soon();
    while (!mc_owner_segment(rig.owner, &segment) && mc_clock_ns() < end_ns)
        usleep(500);
    writer_commit(&writer, 600, 1, 5);
    expect_live(&rig, 600, 1, 5, 0);
    peer_close(&writer);
    rig_stop(&rig);
}

static void test_stale(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t segment;
    rig_mount(&rig);
    struct mc_id old_id = rig.mount.segment_id;
    uint64_t old_nonce = rig.mount.nonce;
    struct peer writer = writer_connect(&rig, true, mc_random_id(), 0);
    writer_commit(&writer, 1, 5, 5);
    expect_live(&rig, 1, 5, 5, 0);
    struct mc_segment_memory *held = mc_engine_find_segment(rig.engine, old_id); /* as a path of this process would */
    assert_non_null(held);
    peer_close(&rig.link);
    rig_accept(&rig);
    answer_hello(&rig, 0);
    uint64_t request_id = rig_expect_mount(&rig);
    assert_int_equal(rig.mount.epoch, 3);
    answer_mount(&rig, request_id, MC_ERR_STALE);
    request_id = rig_expect_mount(&rig);
    assert_false(mc_id_equal(rig.mount.segment_id, old_id));
    assert_true(rig.mount.nonce != old_nonce);
    assert_int_equal(rig.mount.epoch, 0);
    assert_true(rig.mount.populated < CAPACITY);
    assert_false(mc_owner_segment(rig.owner, &segment));
    assert_true(peer_is_closed(&writer));
    assert_null(mc_engine_find_segment(rig.engine, old_id));
    rig.epoch = 9;
    answer_mount(&rig, request_id, 0);
    uint64_t new_nonce = rig.mount.nonce;
    rig.mount.nonce = old_nonce;
    peer_close(&writer);
    writer = writer_connect(&rig, false, mc_random_id(), MC_ERR_STALE);
    peer_close(&writer);
    rig.mount.nonce = new_nonce;
    writer = writer_connect(&rig, false, mc_random_id(), 0);
    writer_commit(&writer, 1, 1, 6);
    expect_live(&rig, 1, 1, 6, 0);
    assert_int_equal(mc_segment_memory_live(rig_memory(&rig)), 1);
    assert_int_equal(mc_segment_memory_live(held), 5); /* the old memory lives on for whoever holds it */
    mc_segment_memory_release(held);
    peer_close(&writer);

    /* on a link that is up: the master forgot us and the keeper noticed */
    old_id = rig.mount.segment_id;
    while (rig.mount.populated < CAPACITY)
        answer_mount(&rig, rig_expect_mount(&rig), 0);
    answer_mount(&rig, rig_remount(&rig), MC_ERR_STALE);
    request_id = rig_expect_mount(&rig);
    assert_false(mc_id_equal(rig.mount.segment_id, old_id));
    assert_int_equal(rig.mount.epoch, 0);
    rig_stop(&rig);
}

static void test_garbage(void **state)
{
    (void)state;
    struct rig rig;
    uint64_t random = 5;
    rig_create(&rig);
    for (unsigned i = 0; i < 6; i++) {
        uint8_t bytes[300];
        rig_accept(&rig);
        if (i % 2 == 1) {
            answer_hello(&rig, 0);
            (void)rig_expect_mount(&rig);
        }
        for (size_t j = 0; j < sizeof(bytes); j++)
            bytes[j] = (uint8_t)random_next(&random);
        if (i >= 4) { /* well-formed, but nobody says that to an owner; or an answer that nobody asked for */
            struct mc_wire_none none = {0};
            rig.link.out.length = 0;
            if (i == 4) {
                size_t start = mc_frame_begin(&rig.link.out, MC_MESSAGE_PONG, 1);
                mc_wire_none_write(&rig.link.out, &none);
                mc_frame_end(&rig.link.out, start);
                assert_int_equal(peer_flush(&rig.link), 0);
            } else {
                answer_mount(&rig, 31415, 0);
            }
        } else {
            assert_int_equal(peer_send_bytes(&rig.link, bytes, sizeof(bytes)), 0);
        }
        assert_true(peer_is_closed(&rig.link));
    }
    rig_accept(&rig);
    answer_hello(&rig, 0);
    answer_mount(&rig, rig_expect_mount(&rig), 0);
    assert_int_equal(mc_owner_first_mount(rig.owner, soon()), 0);
    rig_stop(&rig);
}

static void test_create(void **state)
{
    (void)state;
    struct rig rig;
    uint16_t taken = 0;
    rig_prepare(&rig);
    struct mc_owner_config config = config_of(&rig);
    config.capacity = 0;
    assert_int_equal(mc_owner_create(&config, &rig.owner), MC_ERR_INVALID_PARAMS);
    config = config_of(&rig);
    int holder = mc_tcp_listen("127.0.0.1", &taken);
    assert_true(holder >= 0);
    config.port = taken;
    assert_int_equal(mc_owner_create(&config, &rig.owner), 0);
    assert_true(mc_owner_port(rig.owner) != taken && mc_owner_port(rig.owner) != 0);
    rig_accept(&rig);
    mc_owner_close(rig.owner);
    close(holder);
    config.port = 0;
    config.bind_host = "192.0.2.1"; /* nobody has it */
    config.advertise_host = "store.example";
    assert_int_equal(mc_owner_create(&config, &rig.owner), 0);
    rig_accept(&rig);
    answer_hello(&rig, 0);
    (void)rig_expect_mount(&rig);
    char name[MC_ADDRESS_MAX];
    mc_address_join(name, sizeof(name), "store.example", mc_owner_port(rig.owner));
    assert_string_equal(rig.tcp_address, name);
    rig_stop(&rig);
}

static unsigned count_of(const char *path)
{
    unsigned count = 0;
    DIR *folder = opendir(path);
    assert_non_null(folder);
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

static void test_life(void **state)
{
    (void)state;
    unsigned fds = 0, threads = 0;
    for (unsigned i = 0; i < 20; i++) {
        struct rig rig;
        if (i % 3 == 0) {
            rig_mount(&rig);
        } else {
            rig_create(&rig); /* closed while it connects, or says hello */
            if (i % 3 == 1)
                rig_accept(&rig);
        }
        rig_stop(&rig);
        uint64_t end_ns = soon(); /* a thread that was connecting ends on its own */
        while (i > 3 && mc_clock_ns() < end_ns &&
               (count_of("/proc/self/fd") > fds || count_of("/proc/self/task") > threads))
            usleep(1000);
        if (i == 3) {
            usleep(50000);
            fds = count_of("/proc/self/fd");
            threads = count_of("/proc/self/task");
        }
    }
    assert_in_range(count_of("/proc/self/fd"), 0, fds);
    assert_in_range(count_of("/proc/self/task"), 0, threads);
}

int main(void)
{
    mc_log_set_level(MC_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mount_and_unmount),
        cmocka_unit_test(test_silent_master),
        cmocka_unit_test(test_no_master),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_live),
        cmocka_unit_test(test_clear),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_reconnect),
        cmocka_unit_test(test_stale),
        cmocka_unit_test(test_garbage),
        cmocka_unit_test(test_create),
        cmocka_unit_test(test_life),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
