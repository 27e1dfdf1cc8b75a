/* A store node whose master is hostile: hello and mount are answered, and then it is told what the input says, all by
 * the tables. Input: byte 0: how many frames come before the node is heard again, 0x80: the connection is broken and
 * made anew in between; then how what is said differs from what an honest master says. The node must stay whole and end
 * in time. */
#include "env/clock.h"
#include "env/log.h"
#include "store/owner/owner.h"
#include "store/segment/memory.h"
#include "store/wire/stream.h"
#include "hostile.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define CAPACITY (1u << 20)
#define EPOCH 3u
#define SEGMENT 7u
#define GENERATION (((uint64_t)EPOCH << MC_EPOCH_SHIFT) + 5)
#define FRAMES_MAX 48u
#define SOON_NS 3000000000ull
#define LATE_NS 60000000000ull

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t orders[] = {MC_MESSAGE_CLEAR,         MC_MESSAGE_CUT,           MC_MESSAGE_CHECK,
                                 MC_MESSAGE_OFFERED,       MC_MESSAGE_LOAD,          MC_MESSAGE_STORE,
                                 MC_MESSAGE_MOUNT_REPLY,   MC_MESSAGE_INVENTORY_ACK, MC_MESSAGE_FLUSHED,
                                 MC_MESSAGE_UNMOUNT_REPLY, MC_MESSAGE_HELLO_REPLY,   MC_MESSAGE_FAILED,
                                 MC_MESSAGE_PONG};

static struct {
    int listener;
    char address[MC_ADDRESS_MAX];
    struct mc_paths *paths;
    struct mc_id node;
    struct hostile hostile;
    uint64_t closed_ns;
    bool is_honest; /* all that is said */
} game;

static const struct hostile_value values[] = {{.name = "version_min", .number = 1},
                                              {.name = "version_max", .number = 1},
                                              {.name = "epoch", .number = EPOCH},
                                              {.name = "segment", .number = SEGMENT},
                                              {.name = "slot", .number = 1},
                                              {.name = "generation", .number = GENERATION},
                                              {.name = "length", .number = 4096},
                                              {.name = "age_ms", .number = 60000},
                                              {.name = "lease_ttl_ms", .number = 5000},
                                              {.name = "client_ttl_ms", .number = 10000},
                                              {.name = "writer", .id = {5, 5}},
                                              {.name = "features", .number = UINT64_MAX}};

static void begin(void)
{
    uint16_t port = 0;
    (void)signal(SIGPIPE, SIG_IGN);
    mc_log_set_level(MC_LOG_ERROR);
    game.node = (struct mc_id){8, 8};
    game.listener = mc_tcp_listen("127.0.0.1", &port);
    game.paths = mc_paths_create(game.node, 9, MC_PATH_LOCAL);
    mc_assert(game.listener >= 0 && game.paths != NULL);
    mc_address_join(game.address, sizeof(game.address), "127.0.0.1", port);
    game.hostile.values = values;
    game.hostile.value_count = sizeof(values) / sizeof(values[0]);
    game.hostile.count = 1;
}

/* Objects that can be cleared, cut and checked, one of them rotten: as peers would have committed them. */
static void objects_make(struct mc_id segment_id)
{
    struct mc_segment_memory *memory = mc_paths_find_segment(game.paths, segment_id);
    if (memory == NULL)
        return;
    for (uint32_t slot = 1; slot < 5; slot++) {
        struct mc_wire_commit_item commit = {.slot = slot,
                                             .generation = GENERATION + slot - 1,
                                             .offset = slot * 8192,
                                             .length = 4096,
                                             .crc = slot,
                                             .key_length = 3,
                                             .block_shift = mc_block_shift(4096)};
        (void)mc_segment_memory_commit(memory, &commit);
    }
    mc_segment_memory_release(memory);
}

static bool send_out(int fd, struct mc_buffer *out)
{
    struct iovec part = {out->data, out->length};
    int rc = out->length == 0 ? 0 : mc_socket_send(fd, &part, 1, mc_clock_ns() + SOON_NS);
    out->length = 0;
    return rc == 0;
}

/* Answers what waits for an answer. False: it is over. */
static bool listen_once(int fd, struct mc_buffer *in, struct mc_buffer *out, uint64_t wait_ns)
{
    static const uint8_t answers[][2] = {
        {MC_MESSAGE_HELLO, MC_MESSAGE_HELLO_REPLY},       {MC_MESSAGE_MOUNT, MC_MESSAGE_MOUNT_REPLY},
        {MC_MESSAGE_INVENTORY, MC_MESSAGE_INVENTORY_ACK}, {MC_MESSAGE_UNMOUNT, MC_MESSAGE_UNMOUNT_REPLY},
        {MC_MESSAGE_FLUSH, MC_MESSAGE_FLUSHED},           {MC_MESSAGE_PING, MC_MESSAGE_PONG}};
    struct mc_frame frame;
    int64_t used = mc_socket_receive_frame(fd, in, &frame, mc_clock_ns() + wait_ns, NULL);
    if (used < 0)
        return used == MC_ERR_RPC_TIMEOUT;
    mc_assert(mc_wire_check(frame.type, frame.body) == 0); /* whatever it is told, it is honest */
    if (frame.type == MC_MESSAGE_MOUNT) {
        struct mc_wire_mount mount;
        struct mc_reader reader = mc_reader(frame.body.data, frame.body.length);
        mc_wire_mount_read(&reader, &mount);
        objects_make(mount.segment_id);
    }
    bool goes_on = true;
    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]) && goes_on; i++)
        if (answers[i][0] == frame.type)
            goes_on = hostile_say(&game.hostile, answers[i][1], frame.request_id, out);
    mc_buffer_consume(in, (size_t)used);
    return send_out(fd, out) && goes_on;
}

/* One connection, from the hello on. */
static void be_master(uint8_t pace)
{
    struct mc_buffer in = {0}, out = {0};
    uint64_t wait_ns = game.is_honest ? LATE_NS : SOON_NS; /* what must go well does, on whatever machine */
    int fd =
        mc_socket_wait_read(game.listener, mc_clock_ns() + wait_ns, NULL) == 0 ? mc_socket_accept(game.listener) : -1;
    bool goes_on = fd >= 0 && listen_once(fd, &in, &out, wait_ns) && listen_once(fd, &in, &out, wait_ns);
    for (unsigned i = 0; goes_on && i < FRAMES_MAX && mc_reader_left(&game.hostile.in) > 0; i++) {
        uint8_t what = mc_reader_u8(&game.hostile.in);
        uint8_t type = what < 208 ? orders[what % sizeof(orders)] : what - 208 + 40;
        goes_on = hostile_say(&game.hostile, type, what, &out);
        if (i % (pace % 16 + 1u) == 0 || !goes_on)
            goes_on = send_out(fd, &out) && goes_on && listen_once(fd, &in, &out, 0);
    }
    if (goes_on && send_out(fd, &out))
        (void)listen_once(fd, &in, &out, 1000000);
    if (fd >= 0)
        close(fd);
    mc_buffer_free(&in);
    mc_buffer_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mc_owner *owner = NULL;
    if (size < 2)
        return 0;
    if (game.paths == NULL)
        begin();
    struct mc_owner_config config = {.paths = game.paths,
                                     .master_address = game.address,
                                     .node = game.node,
                                     .incarnation = 9,
                                     .advertise_host = "127.0.0.1",
                                     .unix_allowed = true,
                                     .capacity = CAPACITY};
    game.hostile.in = mc_reader(data + 1, size - 1);
    game.is_honest = (data[0] & 0x80) == 0;
    for (size_t i = 1; i < size; i++)
        game.is_honest = game.is_honest && data[i] == 0;
    mc_assert(mc_owner_create(&config, &owner) == 0);
    be_master(data[0]);
    if (data[0] & 0x80)
        be_master(data[0]);
    mc_assert(!game.is_honest || mc_owner_first_mount(owner, mc_clock_ns() + LATE_NS) == 0);
    game.hostile.in = mc_reader(NULL, 0);
    game.closed_ns = mc_clock_ns();
    mc_owner_close(owner);
    mc_assert(mc_clock_ns() - game.closed_ns < LATE_NS);
    /* What of its connections nobody has accepted. */
    for (int fd = mc_socket_accept(game.listener); fd >= 0; fd = mc_socket_accept(game.listener))
        close(fd);
    return 0;
}
