/* A server with a memory and a record of what its hooks were told, and what peers say to it. For test_serve.c. */
#ifndef MC_TEST_SERVE_RIG_H
#define MC_TEST_SERVE_RIG_H

#include "store/segment/serve.h"
#include "frames.h"

#include <pthread.h>
#include <stdlib.h>

#define MIB (1u << 20)
#define CAPACITY (32u * MIB)

struct told {
    uint32_t slot;
    int code;
    uint64_t generation;
};

struct rig {
    struct mc_serve *serve;
    struct mc_segment_memory *memory;
    struct mc_id node;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct told told[4096];
    size_t told_count;
    unsigned flushes, asked, missed;
    _Atomic unsigned cuts_done;
    bool flushed; /* nothing was told after the last flush */
};

static inline void on_committed(void *context, struct mc_segment_memory *memory, uint32_t slot, uint64_t generation,
                                int code)
{
    struct rig *rig = context;
    pthread_mutex_lock(&rig->lock);
    if (memory == rig->memory && rig->told_count < 4096)
        rig->told[rig->told_count++] = (struct told){slot, code, generation};
    rig->flushed = false;
    pthread_mutex_unlock(&rig->lock);
}

static inline void on_flush(void *context)
{
    struct rig *rig = context;
    pthread_mutex_lock(&rig->lock);
    rig->flushes++;
    rig->flushed = true;
    pthread_cond_broadcast(&rig->changed);
    pthread_mutex_unlock(&rig->lock);
}

static inline void on_missed(void *context)
{
    struct rig *rig = context;
    pthread_mutex_lock(&rig->lock);
    rig->missed++;
    pthread_mutex_unlock(&rig->lock);
}

/* Waits until so many commits were told and flushed. */
static inline void rig_wait_told(struct rig *rig, size_t count)
{
    uint64_t end_ns = soon();
    pthread_mutex_lock(&rig->lock);
    while ((rig->told_count < count || !rig->flushed) && mc_clock_ns() < end_ns) {
        pthread_mutex_unlock(&rig->lock);
        usleep(200);
        pthread_mutex_lock(&rig->lock);
    }
    assert_int_equal(rig->told_count, count);
    assert_true(rig->flushed);
    pthread_mutex_unlock(&rig->lock);
}

static uint32_t rig_threads; /* data threads of those that are made */

/* Makes everything but starts nothing. */
static inline void rig_prepare(struct rig *rig, bool unix_allowed)
{
    *rig = (struct rig){.node = mc_random_id()};
    pthread_mutex_init(&rig->lock, NULL);
    pthread_cond_init(&rig->changed, NULL);
    struct mc_serve_hooks hooks = {rig, on_committed, on_flush, on_missed};
    assert_int_equal(mc_segment_memory_create(CAPACITY, &rig->memory), 0);
    assert_int_equal(mc_serve_create(rig->node, 77, "127.0.0.1", 0, unix_allowed, &hooks, &rig->serve), 0);
    mc_serve_threads(rig->serve, rig_threads);
    mc_serve_set_memory(rig->serve, rig->memory);
}

static inline void rig_start(struct rig *rig)
{
    rig_prepare(rig, true);
    assert_int_equal(mc_serve_start(rig->serve), 0);
}

static inline void rig_stop(struct rig *rig)
{
    mc_serve_destroy(rig->serve);
    mc_segment_memory_release(rig->memory);
    pthread_cond_destroy(&rig->changed);
    pthread_mutex_destroy(&rig->lock);
}

/* Runs a function on the serve thread and waits for its end. */
struct call {
    struct rig *rig;
    void (*function)(struct rig *rig, void *argument);
    void *argument;
};
static inline void call_run(void *argument)
{
    struct call *call = argument;
    call->function(call->rig, call->argument);
    pthread_mutex_lock(&call->rig->lock);
    call->rig->asked++;
    pthread_cond_broadcast(&call->rig->changed);
    pthread_mutex_unlock(&call->rig->lock);
}
static inline void rig_call(struct rig *rig, void (*function)(struct rig *rig, void *argument), void *argument)
{
    struct call call = {rig, function, argument};
    unsigned before = rig->asked;
    mc_serve_post(rig->serve, call_run, &call);
    pthread_mutex_lock(&rig->lock);
    while (rig->asked == before)
        pthread_cond_wait(&rig->changed, &rig->lock);
    pthread_mutex_unlock(&rig->lock);
}

static inline void ask_connections(struct rig *rig, void *argument)
{
    *(uint32_t *)argument = mc_serve_connections(rig->serve);
}

static inline uint32_t rig_connections(struct rig *rig)
{
    uint32_t count;
    rig_call(rig, ask_connections, &count);
    return count;
}

static inline void rig_wait_connections(struct rig *rig, uint32_t count)
{
    uint64_t end_ns = soon();
    while (rig_connections(rig) != count && mc_clock_ns() < end_ns)
        usleep(1000);
    assert_int_equal(rig_connections(rig), count);
}

/* A byte of the segment, into which a thread may be receiving just now: no race that anybody has to hear of. */
__attribute__((noinline, unused, no_sanitize("thread"))) static uint8_t rig_byte_now(const struct rig *rig,
                                                                                     uint64_t offset)
{
    return *(volatile uint8_t *)(mc_segment_memory_data(rig->memory) + offset);
}

/* ---- peers ---- */

static inline struct peer connect_raw(struct rig *rig, bool is_unix)
{
    char address[MC_ADDRESS_MAX];
    mc_address_join(address, sizeof(address), "127.0.0.1", mc_serve_tcp_port(rig->serve));
    struct peer peer = {.fd = is_unix ? mc_unix_connect(mc_serve_unix_path(rig->serve), soon())
                                      : mc_tcp_connect(address, soon())};
    assert_true(peer.fd >= 0);
    return peer;
}

static inline struct mc_wire_hello hello_of(struct rig *rig, struct mc_id node)
{
    return (struct mc_wire_hello){.magic = MC_WIRE_MAGIC,
                                  .version_min = MC_WIRE_VERSION_MIN,
                                  .version_max = MC_WIRE_VERSION_MAX,
                                  .role = MC_ROLE_DATA,
                                  .node = node,
                                  .incarnation = 5,
                                  .nonce = mc_segment_memory_nonce(rig->memory)};
}

static inline void say_hello(struct peer *peer, const struct mc_wire_hello *hello)
{
    size_t frame = mc_frame_begin(&peer->out, MC_MESSAGE_HELLO, 1);
    mc_wire_hello_write(&peer->out, hello);
    mc_frame_end(&peer->out, frame);
    assert_int_equal(peer_flush(peer), 0);
}

static inline int hear_hello(struct peer *peer, struct mc_wire_hello_reply *reply)
{
    struct mc_frame frame;
    struct mc_reader reader;
    int rc = peer_receive(peer, &frame, &reader);
    if (rc < 0)
        return rc;
    assert_int_equal(rc, MC_MESSAGE_HELLO_REPLY);
    assert_int_equal(frame.request_id, 1);
    mc_wire_hello_reply_read(&reader, reply);
    assert_false(reader.bad);
    return reply->code;
}

static inline struct peer connect_as(struct rig *rig, bool is_unix, struct mc_id node)
{
    struct peer peer = connect_raw(rig, is_unix);
    struct mc_wire_hello hello = hello_of(rig, node);
    struct mc_wire_hello_reply reply;
    say_hello(&peer, &hello);
    assert_int_equal(hear_hello(&peer, &reply), 0);
    return peer;
}

static inline struct peer connect_peer(struct rig *rig, bool is_unix)
{
    return connect_as(rig, is_unix, mc_random_id());
}

static inline void expect_pong(struct peer *peer, uint64_t id)
{
    struct mc_frame frame;
    struct mc_reader reader;
    peer_ping(peer, id);
    assert_int_equal(peer_flush(peer), 0);
    peer_expect(peer, MC_MESSAGE_PONG, &frame, &reader);
    assert_int_equal(frame.request_id, id);
}

static inline void put_write(struct peer *peer, uint32_t slot, uint64_t generation, uint64_t offset, uint64_t length)
{
    struct mc_wire_write head = {.slot = slot, .generation = generation, .offset = offset, .payload_length = length};
    size_t frame = mc_frame_begin(&peer->out, MC_MESSAGE_WRITE, 9);
    mc_wire_write_write(&peer->out, &head);
    mc_frame_end(&peer->out, frame);
}

/* A part of what is granted at `offset`, with a key of 8 bytes. */
static inline void put_part(struct peer *peer, uint64_t id, uint32_t slot, uint64_t generation, uint64_t offset,
                            uint64_t length, uint64_t skip, uint64_t bytes)
{
    struct mc_wire_write head = {.slot = slot,
                                 .generation = generation,
                                 .offset = offset,
                                 .payload_length = bytes,
                                 .length = length,
                                 .key_length = 8,
                                 .skip = skip,
                                 .is_part = 1};
    size_t frame = mc_frame_begin(&peer->out, MC_MESSAGE_WRITE, id);
    mc_wire_write_write(&peer->out, &head);
    mc_frame_end(&peer->out, frame);
}

static inline int hear_part_end(struct peer *peer, uint64_t id)
{
    struct mc_frame frame;
    struct mc_reader reader;
    struct mc_wire_code end;
    peer_expect(peer, MC_MESSAGE_WRITE_END, &frame, &reader);
    assert_int_equal(frame.request_id, id);
    mc_wire_code_read(&reader, &end);
    return end.code;
}

static inline struct mc_wire_commit_item commit_of(uint32_t slot, uint64_t generation, uint64_t offset, uint64_t length)
{
    return (struct mc_wire_commit_item){.slot = slot,
                                        .crc = slot + 1,
                                        .generation = generation,
                                        .offset = offset,
                                        .length = length,
                                        .hash_low = 11,
                                        .hash_high = 12,
                                        .key_length = 8,
                                        .block_shift = mc_block_shift(length)};
}

static inline void put_commit(struct peer *peer, uint32_t slot, uint64_t generation, uint64_t offset, uint64_t length)
{
    struct mc_wire_none none = {0};
    struct mc_wire_commit_item item = commit_of(slot, generation, offset, length);
    size_t frame = mc_frame_begin(&peer->out, MC_MESSAGE_COMMIT, 0);
    mc_wire_none_write(&peer->out, &none);
    size_t list = mc_list_begin(&peer->out);
    mc_wire_commit_item_write(&peer->out, &item);
    mc_list_end(&peer->out, list, 1);
    mc_frame_end(&peer->out, frame);
}

static inline void put_read(struct peer *peer, uint64_t id, uint32_t slot, uint64_t generation, uint64_t offset,
                            uint64_t length, bool table)
{
    struct mc_wire_read head = {
        .slot = slot, .table = table, .generation = generation, .offset = offset, .length = length};
    size_t frame = mc_frame_begin(&peer->out, MC_MESSAGE_READ, id);
    mc_wire_read_write(&peer->out, &head);
    mc_frame_end(&peer->out, frame);
}

static inline int hear_reply(struct peer *peer, uint64_t id, struct mc_wire_read_reply *reply)
{
    struct mc_frame frame;
    struct mc_reader reader;
    peer_expect(peer, MC_MESSAGE_READ_REPLY, &frame, &reader);
    assert_int_equal(frame.request_id, id);
    mc_wire_read_reply_read(&reader, reply);
    return reply->code;
}

static inline int hear_end(struct peer *peer, uint64_t id)
{
    struct mc_frame frame;
    struct mc_reader reader;
    struct mc_wire_code end;
    peer_expect(peer, MC_MESSAGE_READ_END, &frame, &reader);
    assert_int_equal(frame.request_id, id);
    mc_wire_code_read(&reader, &end);
    return end.code;
}

/* Asks for the memory: bytes of the answer, or negative. */
static inline int64_t attach(struct peer *peer, struct mc_wire_attach_reply *reply, int *fds)
{
    uint8_t bytes[4096];
    size_t fd_count, used;
    struct mc_wire_none none = {0};
    struct mc_frame frame = {0};
    size_t start = mc_frame_begin(&peer->out, MC_MESSAGE_ATTACH, 4);
    mc_wire_none_write(&peer->out, &none);
    mc_frame_end(&peer->out, start);
    assert_int_equal(peer_flush(peer), 0);
    mc_buffer_consume(&peer->in, peer->used);
    peer->used = 0;
    int64_t received = mc_unix_receive_fds(peer->fd, bytes, sizeof(bytes), fds, 3, &fd_count, soon());
    if (received < 0)
        return received;
    assert_int_equal(fd_count, 3);
    assert_int_equal(mc_frame_parse(bytes, (size_t)received, &frame, &used), 1);
    assert_int_equal(used, received);
    assert_int_equal(frame.type, MC_MESSAGE_ATTACH_REPLY);
    assert_int_equal(frame.request_id, 4);
    struct mc_reader reader = mc_reader(frame.body.data, frame.body.length);
    mc_wire_attach_reply_read(&reader, reply);
    return received;
}

static inline uint8_t pattern(uint64_t offset, uint64_t seed)
{
    return (uint8_t)(offset * 131 + (offset >> 8) + (offset >> 16) * 7 + seed);
}

static inline uint8_t *pattern_make(uint64_t length, uint64_t seed)
{
    uint8_t *bytes = malloc(length == 0 ? 1 : length);
    assert_non_null(bytes);
    for (uint64_t i = 0; i < length; i++)
        bytes[i] = pattern(i, seed);
    return bytes;
}

/* An object of `length` bytes in `slot`, made by hand. */
static inline void object_put(struct rig *rig, uint32_t slot, uint64_t generation, uint64_t offset, uint64_t length)
{
    uint8_t *data = mc_segment_memory_data(rig->memory) + offset;
    for (uint64_t i = 0; i < length; i++)
        data[i] = pattern(i, slot);
    uint32_t table = mc_table_length(length, mc_block_shift(length));
    memset(data + mc_table_offset(length), 0x77, table);
    struct mc_wire_commit_item commit = commit_of(slot, generation, offset, length);
    assert_int_equal(mc_segment_memory_commit(rig->memory, &commit), 0);
}

#endif
