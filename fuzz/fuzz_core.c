/* The master's core against a program of bytes: who connects, breaks, mounts, puts, commits, removes, says nonsense,
 * and how time passes. After every few steps all invariants are proved. Whatever is not understood of the bytes is a
 * message of its own: raw frames are one of the steps. */
#include "../tests/core_check.h"
#include "store/core/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CONNECTIONS 16u
#define PLACES 64u
#define CHECK_EVERY 16u
#define STEPS_MAX 4096u
#define EPOCH 3u /* so that there are earlier ones */

struct game {
    struct mc_core *core;
    struct mc_reader in;
    uint64_t now, number; /* number: of the next connection */
    struct {
        uint64_t number;
        bool open;
        struct mc_buffer out;
    } connections[CONNECTIONS];
    struct mc_wire_place places[PLACES]; /* granted, or to be stored or loaded, at some time */
    unsigned place_count;
    bool is_disk[8];      /* of these segments */
    uint32_t segments[8]; /* mounted at some time */
    uint32_t sequences[8];
    uint64_t ends[8]; /* of the inventories of these, bytes */
    unsigned segment_count;
    struct mc_buffer body;
};

static struct mc_buffer *buffer_of(void *context, uint64_t number)
{
    struct game *game = context;
    for (unsigned i = 0; i < CONNECTIONS; i++)
        if (game->connections[i].open && game->connections[i].number == number)
            return &game->connections[i].out;
    return NULL;
}
static void closed(void *context, uint64_t number)
{
    (void)context;
    (void)number;
}

static void prove(const struct game *game)
{
    const char *wrong = mc_core_check(game->core);
    if (wrong == NULL)
        return;
    fprintf(stderr, "invariant broken: %s\n", wrong);
    abort();
}

static uint8_t byte(struct game *game)
{
    return mc_reader_u8(&game->in);
}

static uint32_t some_segment(struct game *game)
{
    uint8_t which = byte(game);
    return which < 8 && which < game->segment_count ? game->segments[which] : which;
}

static struct mc_span some_key(struct game *game)
{
    static const char keys[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    uint8_t which = byte(game);
    return mc_span(keys + which % 24, which / 24); /* also none */
}

static uint64_t some_size(struct game *game)
{
    uint64_t size = mc_reader_u16(&game->in);
    uint8_t shift = byte(game);
    return size << (shift < 200 ? shift % 12 : shift % 40);
}

static void put_frame(struct game *game, unsigned connection, unsigned type)
{
    struct mc_frame frame = {(uint16_t)type, 0, 1, mc_span(game->body.data, game->body.length)};
    mc_core_input(game->core, game->now, game->connections[connection].number, &frame);
    game->body.length = 0;
}

static void step_disconnect(struct game *game, unsigned at)
{
    if (!game->connections[at].open)
        return;
    game->connections[at].open = false;
    mc_core_disconnected(game->core, game->now, game->connections[at].number);
    game->connections[at].out.length = 0;
}

static void step_connect(struct game *game, unsigned at)
{
    step_disconnect(game, at);
    uint8_t who = byte(game);
    struct mc_wire_hello hello = {.magic = MC_WIRE_MAGIC,
                                  .version_min = MC_WIRE_VERSION_MIN,
                                  .version_max = MC_WIRE_VERSION_MAX,
                                  .role = who & 3,
                                  .node = {1u + (who >> 2 & 3), 0},
                                  .incarnation = who >> 4 & 1,
                                  .seen_epoch = who >> 5 & 3,
                                  .seen_age_ms = who * 20u};
    game->connections[at].open = true;
    game->connections[at].number = game->number++;
    mc_core_connected(game->core, game->now, game->connections[at].number);
    if (who & 0x80)
        return; /* says no hello */
    mc_wire_hello_write(&game->body, &hello);
    put_frame(game, at, MC_MESSAGE_HELLO);
}

static void step_raw(struct game *game, unsigned at)
{
    uint8_t type = byte(game), length = byte(game);
    const uint8_t *bytes = mc_reader_take(&game->in, length);
    if (bytes != NULL)
        mc_buffer_append(&game->body, bytes, length);
    put_frame(game, at, type);
}

static void step_mount(struct game *game, unsigned at, uint8_t kind)
{
    uint8_t which = byte(game);
    struct mc_wire_mount mount = {
        .segment_id = {which & 3, 7}, .name = mc_span("segment", 1 + (which >> 2 & 3)), .epoch = which >> 6};
    mount.capacity = some_size(game);
    mount.populated = which & 0x20 ? mount.capacity : some_size(game);
    mount.slot_count = mc_reader_u16(&game->in) % (MC_SLOT_COUNT_MIN + 1); /* any capacity has room for these */
    mount.slot_top = which & 0x10 ? mount.slot_count / 2 : mount.slot_count;
    mount.contact_age_ms = which * 16u;
    mount.host.low = which & 1;
    mount.kind = kind;
    mc_wire_mount_write(&game->body, &mount);
    put_frame(game, at, MC_MESSAGE_MOUNT);
}

static void step_put_start(struct game *game, unsigned at)
{
    uint8_t shape = byte(game);
    struct mc_wire_put_start head = {.replica_count = shape & 3, .flags = shape >> 2 & 3};
    head.host.low = shape >> 5 & 1; /* as some mounts have it */
    struct mc_wire_name name = {.name = mc_span("segment", 1 + (shape >> 6))};
    struct mc_wire_segment avoided = {.segment = some_segment(game)};
    mc_wire_put_start_write(&game->body, &head);
    uint32_t count = byte(game) % 16;
    size_t list = mc_list_begin(&game->body);
    for (uint32_t i = 0; i < count; i++) {
        struct mc_wire_put_start_item item = {.length = some_size(game)};
        uint8_t wishes = byte(game);
        item.unsure = (uint64_t)(wishes >> 6) << MC_EPOCH_SHIFT;
        item.group = wishes & 3;
        item.unsure += item.unsure == 0 ? 0 : byte(game);
        item.key = some_key(game); /* apart: initializers have no order */
        mc_wire_put_start_item_write(&game->body, &item);
    }
    mc_list_end(&game->body, list, count);
    list = mc_list_begin(&game->body);
    mc_wire_name_write(&game->body, &name);
    mc_list_end(&game->body, list, 1);
    list = mc_list_begin(&game->body);
    mc_wire_segment_write(&game->body, &avoided);
    mc_list_end(&game->body, list, 1);
    put_frame(game, at, MC_MESSAGE_PUT_START);
}

/* What the owner is to store or to load is answered as what a writer was granted is: by LIVE, some time. */
static void remember_move(struct game *game, struct mc_reader *reader, bool is_load)
{
    struct mc_wire_segment head;
    mc_wire_segment_read(reader, &head);
    for (uint32_t count = mc_list_read(reader); count > 0; count--) {
        struct mc_wire_store_item store = {0};
        struct mc_wire_load_item load = {0};
        if (is_load)
            mc_wire_load_item_read(reader, &load);
        else
            mc_wire_store_item_read(reader, &store);
        game->places[game->place_count++ % PLACES] =
            (struct mc_wire_place){.segment = head.segment,
                                   .slot = is_load ? load.slot : store.slot,
                                   .generation = is_load ? load.generation : store.generation};
    }
}

static void remember(struct game *game, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_none none;
    if (frame->type == MC_MESSAGE_MOUNT_REPLY) {
        struct mc_wire_mount_reply reply;
        mc_wire_mount_reply_read(&reader, &reply);
        if (reply.code == 0) {
            game->sequences[game->segment_count % 8] = 0;
            game->ends[game->segment_count % 8] = 0;
            const struct mc_segment *segment = mc_segment_find(game->core, reply.segment);
            game->is_disk[game->segment_count % 8] = segment != NULL && segment->kind == MC_SEGMENT_DISK;
            game->segments[game->segment_count++ % 8] = reply.segment;
        }
        if (game->segment_count > 8)
            game->segment_count = 8;
    } else if (frame->type == MC_MESSAGE_PUT_GRANTED) {
        mc_wire_none_read(&reader, &none);
        for (uint32_t count = mc_list_read(&reader); count > 0; count--) {
            struct mc_wire_granted granted;
            mc_wire_granted_read(&reader, &granted);
        }
        for (uint32_t count = mc_list_read(&reader); count > 0; count--)
            mc_wire_place_read(&reader, &game->places[game->place_count++ % PLACES]);
    } else if (frame->type == MC_MESSAGE_STORE || frame->type == MC_MESSAGE_LOAD) {
        remember_move(game, &reader, frame->type == MC_MESSAGE_LOAD);
    }
}

/* The peer reads what was sent to it; an owner does what it is told, or (sometimes) half of it. */
static void step_read(struct game *game, unsigned at)
{
    bool lazy = (byte(game) & 7) == 0;
    struct mc_buffer out = game->connections[at].out;
    struct mc_frame frame;
    size_t used;
    game->connections[at].out = (struct mc_buffer){0};
    for (size_t done = 0; done < out.length; done += used) {
        if (mc_frame_parse(out.data + done, out.length - done, &frame, &used) != 1 ||
            mc_wire_check(frame.type, frame.body) != 0)
            abort(); /* the core never says what is not well formed */
        remember(game, &frame);
        if (frame.type == MC_MESSAGE_PING && !lazy) {
            struct mc_frame pong = {MC_MESSAGE_PONG, 0, frame.request_id, frame.body};
            mc_core_input(game->core, game->now, game->connections[at].number, &pong);
        }
        if ((frame.type != MC_MESSAGE_CLEAR && frame.type != MC_MESSAGE_CUT) || lazy)
            continue;
        struct mc_reader reader = mc_reader(frame.body.data, frame.body.length);
        struct mc_wire_segment head;
        mc_wire_segment_read(&reader, &head);
        mc_wire_segment_write(&game->body, &head);
        uint32_t count = mc_list_read(&reader);
        size_t list = mc_list_begin(&game->body);
        for (uint32_t i = 0; i < count; i++) {
            struct mc_wire_slot slot; /* a cut_item begins as a slot does */
            mc_wire_slot_read(&reader, &slot);
            mc_wire_slot_write(&game->body, &slot);
        }
        mc_list_end(&game->body, list, count);
        put_frame(game, at, frame.type == MC_MESSAGE_CLEAR ? MC_MESSAGE_CLEARED : MC_MESSAGE_CUT_DONE);
    }
    mc_buffer_free(&out);
}

static void step_place(struct game *game, unsigned at, bool revoke)
{
    const struct mc_wire_place *place = &game->places[byte(game) % PLACES];
    size_t list;
    if (revoke) {
        struct mc_wire_none none = {0};
        struct mc_wire_grant item = {.segment = place->segment, .slot = place->slot, .generation = place->generation};
        mc_wire_none_write(&game->body, &none);
        list = mc_list_begin(&game->body);
        mc_wire_grant_write(&game->body, &item);
        mc_list_end(&game->body, list, 1);
        put_frame(game, at, MC_MESSAGE_PUT_REVOKE);
        return;
    }
    struct mc_wire_live head = {.segment = place->segment};
    struct mc_wire_live_item item = {
        .slot = place->slot, .code = byte(game) % 8 == 7 ? -1 : 0, .generation = place->generation};
    mc_wire_live_write(&game->body, &head);
    list = mc_list_begin(&game->body);
    mc_wire_live_item_write(&game->body, &item);
    mc_list_end(&game->body, list, 1);
    put_frame(game, at, MC_MESSAGE_LIVE);
}

static void step_keys(struct game *game, unsigned at)
{
    static const enum mc_message types[] = {MC_MESSAGE_GET, MC_MESSAGE_EXIST, MC_MESSAGE_REMOVE, MC_MESSAGE_HINT};
    uint8_t shape = byte(game);
    struct mc_wire_get get = {.flags = shape >> 2 & 1};
    struct mc_wire_remove removal = {.force = shape >> 2 & 1};
    struct mc_wire_hint hint = {.hint = (uint8_t)(1 + (shape >> 2 & 3))};
    struct mc_wire_none none = {0};
    if (types[shape & 3] == MC_MESSAGE_GET)
        mc_wire_get_write(&game->body, &get);
    else if (types[shape & 3] == MC_MESSAGE_REMOVE)
        mc_wire_remove_write(&game->body, &removal);
    else if (types[shape & 3] == MC_MESSAGE_HINT)
        mc_wire_hint_write(&game->body, &hint);
    else
        mc_wire_none_write(&game->body, &none);
    size_t list = mc_list_begin(&game->body);
    for (uint32_t i = 0; i < (shape >> 4); i++) {
        struct mc_wire_key key = {.key = some_key(game)};
        mc_wire_key_write(&game->body, &key);
    }
    mc_list_end(&game->body, list, shape >> 4);
    put_frame(game, at, types[shape & 3]);
}

/* A frame of what some owner holds, mostly as the frame before it would have it. */
static void step_inventory(struct game *game, unsigned at)
{
    unsigned which = byte(game) % 8;
    uint8_t shape = byte(game);
    uint32_t count = shape & 7;
    struct mc_wire_inventory head = {
        .segment = game->segments[which], .sequence = game->sequences[which]++, .last = shape >> 4 == 15};
    head.sequence += (shape & 8) != 0 && shape >> 4 == 14;
    mc_wire_inventory_write(&game->body, &head);
    size_t list = mc_list_begin(&game->body);
    for (uint32_t i = 0; i < count; i++) {
        uint8_t lie = byte(game), kind = byte(game);
        struct mc_wire_inventory_item item = {.slot = byte(game) + (lie == 255 ? 1u << 20 : 0),
                                              .state = kind >= 240  ? 2
                                                       : lie == 254 ? 3
                                                                    : 1,
                                              .flags = kind & 3,
                                              .replica = kind >> 2 & 3,
                                              .generation = ((uint64_t)1 + (kind >> 4 & 1)) << MC_EPOCH_SHIFT,
                                              .writer = {kind, 1},
                                              .group = kind >> 5 & 3};
        item.generation += byte(game) + (lie == 253 ? 5ull << MC_EPOCH_SHIFT : 4);
        if (lie >= 224 && lie < 240) /* what was loaded from a disk */
            item.replica = MC_REPLICA_COUNT_MAX;
        if (game->is_disk[which]) {
            item.version = (kind & 4) != 0 ? 0 : item.generation - (kind >> 3 & 1) - (lie == 250 ? 1ull << 42 : 0);
            item.state = lie == 249 ? 2 : 1;
        } else if (lie == 248) {
            item.version = 1;
        }
        item.length = 1u + byte(game) * (lie == 252 ? 1ull << 40 : 4);
        item.key = some_key(game);
        item.offset = game->ends[which] + (lie & 3) * 64;
        game->ends[which] = item.offset + (item.length + 64 + item.key.length) / 64 * 64 - (lie == 251 ? 64 : 0);
        mc_wire_inventory_item_write(&game->body, &item);
    }
    mc_list_end(&game->body, list, count);
    put_frame(game, at, MC_MESSAGE_INVENTORY);
}

static void step_rot(struct game *game, unsigned at)
{
    const struct mc_wire_place *place = &game->places[byte(game) % PLACES];
    struct mc_wire_segment head = {.segment = place->segment};
    struct mc_wire_slot slot = {.slot = place->slot, .generation = place->generation};
    mc_wire_segment_write(&game->body, &head);
    size_t list = mc_list_begin(&game->body);
    mc_wire_slot_write(&game->body, &slot);
    mc_list_end(&game->body, list, 1);
    put_frame(game, at, at == 1 || at == 4 ? MC_MESSAGE_LOST : MC_MESSAGE_ROTTEN);
}

static void step_small(struct game *game, unsigned at)
{
    uint8_t what = byte(game) % 7;
    struct mc_wire_none none = {0};
    struct mc_wire_unmount unmount = {.segment = some_segment(game)};
    struct mc_wire_suspect suspect = {.segment = unmount.segment, .code = -800};
    struct mc_wire_remove all = {.force = 1};
    struct mc_wire_remove_regex regex = {.force = 0, .pattern = some_key(game)};
    struct mc_wire_heartbeat beat = {.epoch = EPOCH};
    struct mc_wire_heartbeat_segment populated = {.segment = unmount.segment, .populated = UINT64_MAX};
    static const enum mc_message types[] = {MC_MESSAGE_RENEW,      MC_MESSAGE_UNMOUNT,      MC_MESSAGE_SUSPECT,
                                            MC_MESSAGE_REMOVE_ALL, MC_MESSAGE_REMOVE_REGEX, MC_MESSAGE_HEARTBEAT,
                                            MC_MESSAGE_SEGMENT};
    if (what == 0)
        mc_wire_none_write(&game->body, &none);
    else if (what == 1 || what == 6)
        mc_wire_unmount_write(&game->body, &unmount);
    else if (what == 2)
        mc_wire_suspect_write(&game->body, &suspect);
    else if (what == 3)
        mc_wire_remove_write(&game->body, &all);
    else if (what == 4)
        mc_wire_remove_regex_write(&game->body, &regex);
    if (what == 5) {
        mc_wire_heartbeat_write(&game->body, &beat);
        size_t list = mc_list_begin(&game->body);
        mc_wire_heartbeat_segment_write(&game->body, &populated);
        mc_list_end(&game->body, list, 1);
    }
    put_frame(game, at, types[what]);
}

static void step(struct game *game)
{
    uint8_t what = byte(game);
    unsigned at = byte(game) % CONNECTIONS;
    switch (what % 16) {
    case 0:
        step_connect(game, at);
        break;
    case 1:
        step_disconnect(game, at);
        break;
    case 2:
        step_raw(game, at);
        break;
    case 3:
        step_mount(game, at, what < 128 ? MC_SEGMENT_MEMORY : MC_SEGMENT_DISK);
        break;
    case 4:
    case 5:
        step_put_start(game, at);
        break;
    case 6:
        step_read(game, at);
        break;
    case 7:
    case 8:
        step_place(game, at, what % 16 == 8);
        break;
    case 9:
        step_keys(game, at);
        break;
    case 10:
        step_small(game, at);
        break;
    case 12:
    case 13:
        step_inventory(game, at);
        break;
    case 14:
        step_rot(game, at);
        break;
    case 15:
        (void)mc_core_wanted_epoch(game->core);
        step_mount(game, at, what < 240 ? MC_SEGMENT_MEMORY : MC_SEGMENT_DISK);
        break;
    default:
        game->now += byte(game) * (uint64_t)(1 + at * 4);
        for (unsigned ticks = 0; ticks < 8 && mc_core_tick(game->core, game->now) <= game->now; ticks++)
            continue;
    }
}

/* Two store nodes with a segment each and a client: what the bytes begin with, so that they need not find it out. */
static void begin(struct game *game)
{
    static const uint8_t opening[] = {
        0,   0, 0x01, 0,    1, 0x02, 0,    2, 0x00,                         /* heartbeat, owner, calls of node 1 */
        0,   3, 0x05, 0,    4, 0x06, 0,    5, 0x04, 0, 6, 0x08, 0, 7, 0x08, /* the same of node 2; two of node 3 */
        3,   1, 0x20, 0x40, 0, 10,   64,   0,                               /* 64 KiB with 64 slots */
        3,   4, 0x21, 0x80, 0, 10,   0xff, 0,                               /* 128 KiB with 255 slots */
        131, 1, 0x22, 0x40, 0, 10,   32,   0,                               /* a disk of node 1 with 32 slots */
        6,   1, 1,    6,    4, 1,                                           /* they read their numbers */
    };
    struct mc_reader program = game->in;
    game->in = mc_reader(opening, sizeof(opening));
    while (mc_reader_left(&game->in) > 0)
        step(game);
    game->in = program;
}

static void ignore_key(void *context, struct mc_span key, uint64_t length)
{
    (void)context;
    (void)key;
    (void)length;
}

static void ask(const struct game *game)
{
    struct mc_core_statistics statistics;
    struct mc_core_segment segments[4];
    uint64_t cursor = 0;
    mc_core_statistics(game->core, &statistics);
    while (mc_core_segments(game->core, &cursor, segments, 4) > 0)
        continue;
    cursor = 0;
    while (mc_core_keys(game->core, &cursor, 1000, ignore_key, NULL))
        continue;
    (void)mc_core_query(game->core, mc_span("abc", 3), NULL, 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct game *game = calloc(1, sizeof(*game));
    if (game == NULL)
        return 0;
    struct mc_core_config config = mc_core_config_default();
    config.offload = size % 4 == 0 ? MC_OFFLOAD_NEVER : MC_OFFLOAD_ON_PUT;
    config.disk_ttl_ms = size % 4 == 1 ? 0 : 20000;
    config.offload_queue_limit = 8;
    struct mc_core_output output = {game, buffer_of, closed, NULL, NULL, NULL, NULL, NULL};
    game->now = 5000;
    game->number = 1;
    game->in = mc_reader(data, size);
    game->core = mc_core_create(&config, &output, (struct mc_id){3, 4}, EPOCH, size, game->now);
    if (game->core == NULL)
        abort();
    begin(game);
    for (unsigned steps = 0; steps < STEPS_MAX && mc_reader_left(&game->in) > 0; steps++) {
        step(game);
        if (steps % CHECK_EVERY == 0)
            prove(game);
    }
    prove(game);
    ask(game);
    mc_core_destroy(game->core);
    for (unsigned i = 0; i < CONNECTIONS; i++)
        mc_buffer_free(&game->connections[i].out);
    mc_buffer_free(&game->body);
    free(game);
    return 0;
}
