/* A master and a peer made of raw sockets around one real owner: shared by the tests of the owner's files. */
#ifndef MC_TEST_OWNER_RIG_H
#define MC_TEST_OWNER_RIG_H

#include "store/owner/owner.h"
#include "store/segment/memory.h"
#include "env/log.h"
#include "frames.h"
#include "random.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define MIB (1ull << 20)
#define CAPACITY (24 * MIB)
#define SEGMENT 7u
#define COUNTER 28               /* bits of a generation below the epoch */
#define LATER (64ull << COUNTER) /* generations of the tests that do not care about epochs: no floor refuses them */

struct rig {
    int listener;
    char address[MC_ADDRESS_MAX];
    struct mc_paths *paths;
    struct mc_owner *owner;
    struct mc_id node;
    struct peer link; /* the owner's connection, as the master sees it */
    uint64_t epoch;   /* what the master answers to mounts that only tell how far populating is */
    struct mc_wire_mount mount;
    uint64_t seen_epoch; /* as its last HELLO said */
    uint32_t seen_age_ms;
    struct mc_id seen_cluster;
    bool is_quiet;      /* the master says that it has not acted */
    uint64_t features;  /* and what it can do */
    const char *leader; /* in the answers to HELLO; NULL = none */
    char unix_path[MC_UNIX_PATH_MAX], tcp_address[MC_ADDRESS_MAX];
    unsigned mounts;
};

static inline struct mc_owner_config config_of(struct rig *rig)
{
    return (struct mc_owner_config){.paths = rig->paths,
                                    .master_address = rig->address,
                                    .node = rig->node,
                                    .incarnation = 99,
                                    .advertise_host = "127.0.0.1",
                                    .unix_allowed = true,
                                    .capacity = CAPACITY};
}

static inline void rig_prepare(struct rig *rig)
{
    uint16_t port = 0;
    *rig = (struct rig){.node = mc_random_id(), .link = {.fd = -1}, .epoch = 3};
    rig->listener = mc_tcp_listen("127.0.0.1", &port);
    assert_true(rig->listener >= 0);
    mc_address_join(rig->address, sizeof(rig->address), "127.0.0.1", port);
    rig->paths = mc_paths_create(rig->node, 99, MC_PATH_ALL);
    assert_non_null(rig->paths);
}

static inline void rig_create(struct rig *rig)
{
    rig_prepare(rig);
    struct mc_owner_config config = config_of(rig);
    assert_int_equal(mc_owner_create(&config, &rig->owner), 0);
}

static inline void rig_accept(struct rig *rig)
{
    peer_close(&rig->link);
    assert_int_equal(mc_socket_wait_read(rig->listener, soon(), NULL), 0);
    rig->link.fd = mc_socket_accept(rig->listener);
    assert_true(rig->link.fd >= 0);
}

/* A connection that is slow to open, on a busy machine, gets company, and is left without a word: then the owner is on
 * the next one. */
static inline void hello_expect(struct rig *rig, struct mc_frame *frame, struct mc_reader *reader)
{
    int got = peer_receive(&rig->link, frame, reader);
    for (unsigned i = 0; i < 4 && got == MC_ERR_RPC_FAIL; i++) {
        rig_accept(rig);
        got = peer_receive(&rig->link, frame, reader);
    }
    assert_int_equal(got, MC_MESSAGE_HELLO);
    assert_int_equal(mc_wire_check(frame->type, frame->body), 0);
}

static inline void answer_hello(struct rig *rig, int code)
{
    struct mc_frame frame;
    struct mc_reader reader;
    struct mc_wire_hello hello;
    hello_expect(rig, &frame, &reader);
    mc_wire_hello_read(&reader, &hello);
    assert_int_equal(hello.magic, MC_WIRE_MAGIC);
    assert_int_equal(hello.role, MC_ROLE_OWNER);
    assert_int_equal(hello.incarnation, 99);
    assert_true(mc_id_equal(hello.node, rig->node));
    rig->seen_epoch = hello.seen_epoch;
    rig->seen_age_ms = hello.seen_age_ms;
    rig->seen_cluster = hello.cluster;
    struct mc_wire_hello_reply reply = {.code = code,
                                        .version_min = 1,
                                        .version_max = 1,
                                        .epoch = rig->epoch,
                                        .text = mc_span_string("no"),
                                        .leader = mc_span_string(rig->leader == NULL ? "" : rig->leader),
                                        .quiet = rig->is_quiet,
                                        .features = rig->features};
    size_t start = mc_frame_begin(&rig->link.out, MC_MESSAGE_HELLO_REPLY, frame.request_id);
    mc_wire_hello_reply_write(&rig->link.out, &reply);
    mc_frame_end(&rig->link.out, start);
    assert_int_equal(peer_flush(&rig->link), 0);
}

static inline void answer_mount_with(struct rig *rig, uint64_t request_id, int code, uint8_t inventory)
{
    struct mc_wire_mount_reply reply = {.code = code, .segment = SEGMENT, .epoch = rig->epoch, .inventory = inventory};
    size_t start = mc_frame_begin(&rig->link.out, MC_MESSAGE_MOUNT_REPLY, request_id);
    mc_wire_mount_reply_write(&rig->link.out, &reply);
    mc_frame_end(&rig->link.out, start);
    (void)peer_flush(&rig->link);
}

static inline void answer_mount(struct rig *rig, uint64_t request_id, int code)
{
    answer_mount_with(rig, request_id, code, 0);
}

static inline void mount_note(struct rig *rig, struct mc_reader *reader)
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
static inline int rig_next(struct rig *rig, struct mc_frame *frame, struct mc_reader *reader)
{
    int type;
    while ((type = peer_receive(&rig->link, frame, reader)) == MC_MESSAGE_MOUNT) {
        mount_note(rig, reader);
        answer_mount(rig, frame->request_id, 0);
    }
    return type;
}

static inline void rig_expect(struct rig *rig, enum mc_message type, struct mc_frame *frame, struct mc_reader *reader)
{
    int got = rig_next(rig, frame, reader);
    if (got != (int)type)
        fail_msg("expected %s, got %s", mc_message_name(type),
                 got < 0 ? mc_error_name(got) : mc_message_name((unsigned)got));
    assert_int_equal(mc_wire_check(frame->type, frame->body), 0);
}

/* The first MOUNT on a new link; not answered. */
static inline uint64_t rig_expect_mount(struct rig *rig)
{
    struct mc_frame frame;
    struct mc_reader reader;
    peer_expect(&rig->link, MC_MESSAGE_MOUNT, &frame, &reader);
    mount_note(rig, &reader);
    return frame.request_id;
}

/* A wish to mount again is nothing while a mount is still open, and our answer to the last may not have arrived. */
static inline uint64_t rig_remount(struct rig *rig)
{
    for (unsigned i = 0; i < 100; i++) {
        mc_owner_remount(rig->owner);
        if (mc_socket_wait_read(rig->link.fd, mc_clock_ns() + 50000000, NULL) == 0)
            break;
    }
    return rig_expect_mount(rig);
}

static inline void rig_mount(struct rig *rig)
{
    rig_create(rig);
    rig_accept(rig);
    answer_hello(rig, 0);
    answer_mount(rig, rig_expect_mount(rig), 0);
    assert_int_equal(mc_owner_first_mount(rig->owner, soon()), 0);
}

static inline void *close_run(void *argument)
{
    mc_owner_close(argument);
    return NULL;
}

/* Closes without the answer to UNMOUNT that a master would give. */
static inline void rig_stop(struct rig *rig)
{
    peer_close(&rig->link); /* the owner sees the end and need not wait */
    if (rig->owner != NULL)
        mc_owner_close(rig->owner);
    mc_paths_destroy(rig->paths);
    close(rig->listener);
}

/* ---- a peer that writes ---- */

static inline struct peer writer_connect(struct rig *rig, bool is_unix, struct mc_id node, int expected)
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

static inline void writer_commit(struct peer *peer, uint32_t first_slot, uint32_t count, uint64_t generation)
{
    struct mc_wire_none none = {0};
    size_t start = mc_frame_begin(&peer->out, MC_MESSAGE_COMMIT, 0);
    mc_wire_none_write(&peer->out, &none);
    size_t list = mc_list_begin(&peer->out);
    for (uint32_t i = 0; i < count; i++) {
        struct mc_wire_commit_item item = {.slot = first_slot + i,
                                           .generation = LATER + generation,
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

/* The length of the list that a message about our segment has. */
static inline uint32_t expect_list(struct rig *rig, enum mc_message type, struct mc_frame *frame,
                                   struct mc_reader *reader)
{
    struct mc_wire_segment head; /* LIVE has the same */
    rig_expect(rig, type, frame, reader);
    mc_wire_segment_read(reader, &head);
    assert_int_equal(head.segment, SEGMENT);
    return mc_list_read(reader);
}

/* Receives LIVE until so many items are there, in slot order. */
static inline void expect_live(struct rig *rig, uint32_t first_slot, uint32_t count, uint64_t generation, int code)
{
    for (uint32_t seen = 0; seen < count;) {
        struct mc_frame frame;
        struct mc_reader reader;
        uint32_t items = expect_list(rig, MC_MESSAGE_LIVE, &frame, &reader);
        assert_in_range(items, 1, MC_BATCH_MAX);
        for (uint32_t i = 0; i < items; i++, seen++) {
            struct mc_wire_live_item item;
            mc_wire_live_item_read(&reader, &item);
            assert_int_equal(item.slot, first_slot + seen);
            assert_int_equal(item.generation, LATER + generation);
            assert_int_equal(item.code, code);
        }
        assert_in_range(seen, 1, count);
    }
}

static inline void say_slots(struct rig *rig, enum mc_message type, uint32_t segment, const uint32_t *slots,
                             uint32_t count, uint64_t generation, struct mc_id writer)
{
    struct mc_wire_segment head = {.segment = segment};
    size_t start = mc_frame_begin(&rig->link.out, type, 55);
    mc_wire_segment_write(&rig->link.out, &head);
    size_t list = mc_list_begin(&rig->link.out);
    for (uint32_t i = 0; i < count; i++) {
        struct mc_wire_slot slot = {.slot = slots[i], .generation = LATER + generation};
        struct mc_wire_cut_item cut = {.slot = slots[i], .generation = LATER + generation, .writer = writer};
        if (type == MC_MESSAGE_CLEAR)
            mc_wire_slot_write(&rig->link.out, &slot);
        else
            mc_wire_cut_item_write(&rig->link.out, &cut);
    }
    mc_list_end(&rig->link.out, list, count);
    mc_frame_end(&rig->link.out, start);
    assert_int_equal(peer_flush(&rig->link), 0);
}

static inline void expect_slots(struct rig *rig, enum mc_message type, const uint32_t *slots, uint32_t count,
                                uint64_t generation)
{
    struct mc_frame frame;
    struct mc_reader reader;
    assert_int_equal(expect_list(rig, type, &frame, &reader), count);
    for (uint32_t i = 0; i < count; i++) {
        struct mc_wire_slot slot;
        mc_wire_slot_read(&reader, &slot);
        assert_int_equal(slot.slot, slots[i]);
        assert_int_equal(slot.generation, LATER + generation);
    }
}

static inline struct mc_segment_memory *rig_memory(struct rig *rig)
{
    struct mc_segment_memory *memory = mc_paths_find_segment(rig->paths, rig->mount.segment_id);
    assert_non_null(memory);
    mc_segment_memory_release(memory); /* the owner's own reference keeps it */
    return memory;
}

#endif
