/* A data connection of an owner without its socket: bytes arrive in pieces of any size, answers leave in pieces of any
 * size. Input: byte 0: 1 = unix socket, 2 = hello was said already, 4 = payload goes through the window, 8 = a clear in
 * the middle, 16 = a new epoch in the middle, 32 = tags are wanted, which the peer cannot know: then no byte and no
 * slot may change, and none is told; byte 1: size of the pieces; then the stream. Slot 1 holds an object with several
 * blocks, slot 2 a small one. */
#include "base/error.h"
#include "store/segment/serve_lane.h"
#include "env/log.h"

#include <stdlib.h>

#define CAPACITY (512u << 10)
#define LARGE 200000u
#define FILL 0xa5 /* of all bytes; no frame of an answer has this many in a row */
#define FILL_RUN 64u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void object_put(struct mc_segment_memory *memory, uint32_t slot, uint64_t offset, uint64_t length)
{
    struct mc_wire_commit_item commit = {.slot = slot,
                                         .generation = 5,
                                         .offset = offset,
                                         .length = length,
                                         .key_length = 3,
                                         .block_shift = mc_block_shift(length)};
    mc_assert(mc_segment_memory_commit(memory, &commit) == 0);
}

static void hello_say(struct mc_serve_lane *lane, uint64_t nonce)
{
    struct mc_buffer out = {0};
    struct mc_wire_hello hello = {.magic = MC_WIRE_MAGIC,
                                  .version_min = MC_WIRE_VERSION_MIN,
                                  .version_max = MC_WIRE_VERSION_MAX,
                                  .role = MC_ROLE_DATA,
                                  .node = {1, 2},
                                  .nonce = nonce};
    size_t frame = mc_frame_begin(&out, MC_MESSAGE_HELLO, 1);
    mc_wire_hello_write(&out, &hello);
    mc_frame_end(&out, frame);
    mc_assert(mc_lane_input(lane, out.data, out.length) == 0);
    mc_assert(lane->is_open);
    mc_buffer_free(&out);
}

/* Is there a value's byte among those? */
static bool has_contents(const struct iovec *part, size_t length)
{
    const uint8_t *bytes = part->iov_base;
    unsigned run = 0;
    for (size_t i = 0; i < length && run < FILL_RUN; i++)
        run = bytes[i] == FILL ? run + 1 : 0;
    return run >= FILL_RUN;
}

/* Nothing was written, committed or cleared by the peer. live: how many slots should be. */
static void untouched_check(const struct mc_lane_server *server, uint32_t live)
{
    const uint8_t *data = mc_segment_memory_data(server->memory);
    mc_assert(data[0] == FILL && memcmp(data, data + 1, CAPACITY - 1) == 0);
    mc_assert(mc_segment_memory_live(server->memory) == live);
}

/* Takes away answers, at most `limit` bytes. Negative: the lane wants to be closed. */
static int drain(struct mc_serve_lane *lane, size_t limit)
{
    struct iovec parts[MC_LANE_PARTS_MAX];
    bool with_fds;
    for (unsigned turns = 0; turns < 64; turns++) {
        size_t count = mc_lane_output(lane, parts, 65536, &with_fds), total = 0;
        uint8_t sum = 0;
        mc_assert(count <= MC_LANE_PARTS_MAX && (lane->is_unix || !with_fds));
        mc_assert(lane->out.length <= MC_LANE_OUT_MAX + MC_LANE_COPY_MAX + 4096);
        for (size_t i = 0; i < count && total < limit; i++) {
            size_t now = parts[i].iov_len < limit - total ? parts[i].iov_len : limit - total;
            for (size_t j = 0; j < now; j += 61) /* what is said to be there can be read */
                sum = (uint8_t)(sum + ((uint8_t *)parts[i].iov_base)[j]);
            mc_assert(!lane->server->wants_tags || !has_contents(&parts[i], now));
            total += now;
        }
        if (total == 0)
            return mc_lane_has_ended(lane) ? -1 : 0;
        int rc = mc_lane_sent(lane, total);
        if (rc < 0)
            return rc;
        limit -= total;
    }
    return 0;
}

/* One receive. Returns how many bytes were taken, or negative. */
static int64_t receive(struct mc_serve_lane *lane, const uint8_t *data, size_t length, bool use_window)
{
    struct mc_segment_memory *memory = lane->server->memory;
    uint8_t *target, *start = mc_segment_memory_data(memory);
    int64_t window = use_window ? mc_lane_window(lane, &target) : 0;
    if (window < 0)
        return window;
    if (window > 0) {
        size_t now = (uint64_t)window < length ? (size_t)window : length;
        mc_assert(target >= start &&
                  (uint64_t)(target - start) + (uint64_t)window <= mc_segment_memory_data_size(memory));
        memcpy(target, data, now);
        mc_lane_window_filled(lane, now);
        return (int64_t)now;
    }
    int rc = mc_lane_input(lane, data, length);
    return rc < 0 ? rc : (int64_t)length;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mc_lane_server server = {.node = {3, 4}, .incarnation = 1};
    struct mc_serve_lane lane;
    if (size < 2)
        return 0;
    uint8_t flags = data[0];
    bool is_late = false;
    size_t piece = data[1] == 0 ? 1 : (size_t)data[1] * 3, at = 2;
    mc_log_set_level(MC_LOG_ERROR);
    if (mc_segment_memory_create(CAPACITY, &server.memory) < 0)
        abort();
    if (flags & 32) {
        server.wants_tags = true;
        server.key_number = 1;
        memset(server.keys[0].tag, 0x5c, sizeof(server.keys[0].tag));
        memset(mc_segment_memory_data(server.memory), FILL, CAPACITY);
    }
    object_put(server.memory, 1, 0, LARGE);
    object_put(server.memory, 2, 256u << 10, 100);
    mc_lane_init(&lane, &server, flags & 1, flags & 1);
    if (flags & 2)
        hello_say(&lane, mc_segment_memory_nonce(server.memory));
    for (bool open = true; open && at < size;) {
        if (!mc_lane_wants_input(&lane)) { /* as the loop does: read again only when there is room */
            open = drain(&lane, 4096) >= 0 && mc_lane_wants_input(&lane);
            continue;
        }
        int64_t taken = receive(&lane, data + at, size - at < piece ? size - at : piece, flags & 4);
        open = taken >= 0 && drain(&lane, piece * 7) >= 0;
        at += taken > 0 ? (size_t)taken : 0;
        mc_assert(lane.queue_count <= MC_LANE_QUEUE_MAX &&
                  lane.in.length <= MC_LANE_BODY_MAX + MC_FRAME_HEADER_SIZE + 1024);
        is_late = at > size / 2;
        if ((flags & 8) && is_late)
            mc_assert(mc_segment_memory_clear(server.memory, 1, 5) == 0);
        if ((flags & 16) && is_late)
            mc_segment_memory_set_epoch(server.memory, 1);
    }
    (void)drain(&lane, SIZE_MAX);
    mc_lane_free(&lane);
    if (flags & 32)
        untouched_check(&server, (flags & 8) && is_late ? 1 : 2);
    mc_segment_memory_release(server.memory);
    return 0;
}
