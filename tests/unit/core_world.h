/* A world around a core: connections that are buffers, a clock that is a number, frames as the wire has them. For tests
 * of the core. */
#ifndef MC_TEST_CORE_WORLD_H
#define MC_TEST_CORE_WORLD_H

#include "../core_check.h"
#include "base/checksum.h"
#include "store/core/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC diagnostic ignored "-Wunused-function" /* no test uses all of it */

#define WORLD_CONNECTIONS 256
#define MIB (1u << 20)
#define SMALL 100u /* bytes of a value of which the length does not matter */

/* Who is in a world: nodes that lend a segment, nodes that only call, and such as only say what they have seen. */
enum { NODE_A = 5, NODE_B, NODE_C };
enum { CLIENT = 16, SECOND_CLIENT, THIRD_CLIENT, FOURTH_CLIENT };
enum { WITNESS = 50, SECOND_WITNESS, THIRD_WITNESS };
enum { NODE_A_ANEW = 60 };                /* the segment that NODE_A brings when its first one is lost */
enum { FIRST_LIFE = 1, SECOND_LIFE };     /* incarnations */
enum { FIRST_EPOCH = 3, NEXT_EPOCH = 9 }; /* of the first master of a world, and of the one after it */
enum { PUT_1 = 1, PUT_2, PUT_3, PUT_4, PUT_5, PUT_6, PUT_7, PUT_8, PUT_9 }; /* numbers of requests */
enum {
    SHORTLY_MS = 10, /* that no master is there, and nobody is given up for it */
    SECOND_MS = 1000,
    GRACE_OVER_MS = 1100,                    /* after which contents that came back are offered */
    NEARLY_DEPARTED_MS = MC_DEPART_MS - 100, /* nobody has heard of an owner so long, and it may come back */
    DEPARTED_MS = MC_DEPART_MS + 500,        /* and it may not */
};

struct world {
    struct mc_core *core;
    uint64_t now;
    uint64_t next_connection;
    struct {
        struct mc_buffer out;
        bool open, closed; /* closed: by the core */
    } connections[WORLD_CONNECTIONS];
    struct mc_buffer frame;        /* the one being sent */
    struct mc_buffer last;         /* body of the one received last */
    unsigned full_indexes;         /* that the core has warned of */
    unsigned lonely;               /* segments that it said other hosts cannot reach */
    unsigned ids_taken;            /* from members, that it has warned of */
    bool is_told_lonely;           /* by the last answer to a heartbeat */
    uint8_t told_health, told_off; /* what the next heartbeats say of a disk, and of how many that cannot be used */
    uint64_t group, pin_ms;        /* of the first item that was granted last */
    bool is_firm;                  /* as well */
    bool is_way_known;             /* of all connections */
    struct mc_core_way way;
    uint64_t index_sum, index_count; /* of the index that the core's words of media make, see world_medium */
    uint64_t stuck; /* the owner connection behind which nobody reads; the others answer the PINGs of heartbeats */
};

static struct mc_buffer *world_buffer(void *context, uint64_t connection)
{
    struct world *world = context;
    return connection < WORLD_CONNECTIONS && world->connections[connection].open ? &world->connections[connection].out
                                                                                 : NULL;
}
static void world_close(void *context, uint64_t connection)
{
    struct world *world = context;
    if (connection < WORLD_CONNECTIONS)
        world->connections[connection].closed = true;
}
static void world_log(void *context, int level, const char *text)
{
    struct world *world = context;
    world->full_indexes += level == MC_CORE_LOG_WARNING && strstr(text, "in less than half of its memory") != NULL;
    world->lonely += level == MC_CORE_LOG_WARNING && strstr(text, "which only its own host reaches") != NULL;
    world->ids_taken += level == MC_CORE_LOG_WARNING && strstr(text, "is taken from a member") != NULL;
    if (getenv("MC_TEST_LOG") != NULL)
        printf("core %d: %s\n", level, text);
}

static bool world_way(void *context, uint64_t connection, struct mc_core_way *way)
{
    const struct world *world = context;
    mc_assert(world->connections[connection].open);
    *way = world->way;
    return world->is_way_known;
}

/* An index of who is on which medium, as the sum of its entries' hashes: it is the core's if each came once, and went
 * once. */
static uint64_t index_entry(struct mc_span key, unsigned medium)
{
    return mc_hash(key.data, key.length).low * (2 * medium + 1);
}
static void world_medium(void *context, struct mc_span key, enum mc_core_medium medium, bool is_there)
{
    struct world *world = context;
    uint64_t entry = index_entry(key, medium);
    world->index_sum += is_there ? entry : -entry;
    world->index_count += is_there ? 1 : UINT64_MAX;
}
static void index_add(void *context, struct mc_span key, unsigned media)
{
    uint64_t *sum = context;
    mc_assert(media != 0);
    for (unsigned medium = MC_MEDIUM_MEMORY; medium <= MC_MEDIUM_DISK; medium++) {
        sum[0] += (media & 1u << medium) != 0 ? index_entry(key, medium) : 0;
        sum[1] += (media & 1u << medium) != 0;
    }
}
static void world_check_index(const struct world *world)
{
    uint64_t cursor = 0, sum[2] = {0, 0};
    while (mc_core_media(world->core, &cursor, 7, index_add, sum))
        ;
    mc_assert(sum[0] == world->index_sum && sum[1] == world->index_count);
}

static void world_open_with(struct world *world, const struct mc_core_config *config)
{
    *world = (struct world){.now = 1000000, .next_connection = 1};
    struct mc_core_output output = {world, world_buffer, world_close, world_log, world_way, NULL, world_medium, NULL};
    uint64_t young_ms = config->depart_ms;
    world->core = mc_core_create(config, &output, (struct mc_id){77, 88}, FIRST_EPOCH, 42, world->now - young_ms);
    mc_assert(world->core != NULL);
    while (young_ms > 0) { /* no master before us has left anything that may still come */
        young_ms = young_ms > 1000 ? young_ms - 1000 : 0;
        (void)mc_core_tick(world->core, world->now - young_ms);
    }
}
static void world_open(struct world *world)
{
    struct mc_core_config config = mc_core_config_default();
    config.tenants = true; /* so that what they have is counted in every test */
    world_open_with(world, &config);
}
static void world_check(const struct world *world)
{
    const char *wrong = mc_core_check(world->core);
    if (wrong != NULL)
        printf("invariant broken: %s\n", wrong);
    mc_assert(wrong == NULL);
    world_check_index(world);
}
static void world_close_all(struct world *world)
{
    world_check(world);
    mc_core_destroy(world->core);
    for (unsigned i = 0; i < WORLD_CONNECTIONS; i++)
        mc_buffer_free(&world->connections[i].out);
    mc_buffer_free(&world->frame);
    mc_buffer_free(&world->last);
}

/* Ticks until there is no more work, at most `limit` times. */
static unsigned world_settle(struct world *world, unsigned limit)
{
    unsigned ticks = 1;
    while (mc_core_tick(world->core, world->now) <= world->now && ticks < limit)
        ticks++;
    return ticks;
}
/* Time passes, ticked as a shell would. */
static void world_pass(struct world *world, uint64_t ms)
{
    for (uint64_t end = world->now + ms; world->now < end;) {
        world->now = end - world->now > 100 ? world->now + 100 : end;
        world_settle(world, 10000);
    }
}

static uint64_t world_connect(struct world *world)
{
    uint64_t number = world->next_connection++;
    mc_assert(number < WORLD_CONNECTIONS);
    world->connections[number].open = true;
    mc_core_connected(world->core, world->now, number);
    return number;
}
static void world_disconnect(struct world *world, uint64_t number)
{
    world->connections[number].open = false;
    mc_core_disconnected(world->core, world->now, number);
    world_check(world);
}
static void world_input(struct world *world, uint64_t connection, unsigned type, uint64_t id, const void *body,
                        size_t length)
{
    /* A copy of the exact size, so that a read beyond the end is seen. */
    uint8_t *copy = malloc(length == 0 ? 1 : length);
    mc_assert(copy != NULL);
    if (length > 0)
        memcpy(copy, body, length);
    struct mc_frame frame = {(uint16_t)type, 0, id, mc_span(copy, length)};
    mc_core_input(world->core, world->now, connection, &frame);
    free(copy);
}
static size_t world_begin(struct world *world, enum mc_message type, uint64_t id)
{
    world->frame.length = 0;
    return mc_frame_begin(&world->frame, type, id);
}
static void world_send(struct world *world, uint64_t connection, size_t frame)
{
    mc_frame_end(&world->frame, frame);
    struct mc_frame parsed;
    size_t used;
    int rc = mc_frame_parse(world->frame.data, world->frame.length, &parsed, &used);
    mc_assert(rc == 1 && mc_wire_check(parsed.type, parsed.body) == 0);
    world_input(world, connection, parsed.type, parsed.request_id, parsed.body.data, parsed.body.length);
}

/* The next frame the core sent there; its body stays valid until the next call. Type 0 = none. */
static struct mc_frame world_receive(struct world *world, uint64_t connection)
{
    struct mc_frame frame = {0};
    struct mc_buffer *out = &world->connections[connection].out;
    size_t used = 0;
    if (out->length == 0)
        return frame;
    int rc = mc_frame_parse(out->data, out->length, &frame, &used);
    mc_assert(rc == 1 && mc_wire_check(frame.type, frame.body) == 0);
    world->last.length = 0;
    mc_buffer_append(&world->last, frame.body.data, frame.body.length);
    frame.body = mc_span(world->last.data, world->last.length);
    mc_buffer_consume(out, used);
    return frame;
}

static uint64_t world_features = UINT64_C(1) << MC_FEATURE_FIRM_PINS; /* of who says hello from now on */
static struct mc_wire_hello world_hello(unsigned role, uint64_t node, uint64_t incarnation)
{
    return (struct mc_wire_hello){.magic = MC_WIRE_MAGIC,
                                  .version_min = MC_WIRE_VERSION_MIN,
                                  .version_max = MC_WIRE_VERSION_MAX,
                                  .role = (uint8_t)role,
                                  .features = world_features,
                                  .node = {node, node ^ 0x55},
                                  .incarnation = incarnation,
                                  .name = mc_span_string("tester")};
}
static struct mc_wire_hello_reply world_greet(struct world *world, uint64_t connection,
                                              const struct mc_wire_hello *hello)
{
    struct mc_wire_hello_reply reply = {0};
    size_t frame = world_begin(world, MC_MESSAGE_HELLO, 1);
    mc_wire_hello_write(&world->frame, hello);
    world_send(world, connection, frame);
    struct mc_frame answer = world_receive(world, connection);
    if (answer.type == MC_MESSAGE_HELLO_REPLY) {
        struct mc_reader reader = mc_reader(answer.body.data, answer.body.length);
        mc_wire_hello_reply_read(&reader, &reply);
    } else {
        reply.code = MC_ERR_PROTOCOL;
    }
    return reply;
}
/* A connection with its hello done. */
static uint64_t world_join(struct world *world, unsigned role, uint64_t node, uint64_t incarnation)
{
    uint64_t connection = world_connect(world);
    struct mc_wire_hello hello = world_hello(role, node, incarnation);
    struct mc_wire_hello_reply reply = world_greet(world, connection, &hello);
    mc_assert(reply.code == 0);
    return connection;
}

static uint64_t world_client(struct world *world, uint64_t node)
{
    return world_join(world, MC_ROLE_CALL, node, FIRST_LIFE);
}

static struct mc_wire_mount world_mount_of(uint64_t id, uint64_t capacity, const char *name)
{
    return (struct mc_wire_mount){.segment_id = {id, 1},
                                  .capacity = capacity,
                                  .populated = capacity,
                                  .slot_count = mc_slot_count(capacity),
                                  .nonce = id * 3,
                                  .host = {9, 9},
                                  .name = mc_span_string(name),
                                  .tcp_address = mc_span_string("127.0.0.1:1"),
                                  .unix_path = mc_span_string("@x")};
}
static struct mc_wire_mount_reply world_mount(struct world *world, uint64_t owner, const struct mc_wire_mount *mount)
{
    struct mc_wire_mount_reply reply = {0};
    size_t frame = world_begin(world, MC_MESSAGE_MOUNT, 2);
    mc_wire_mount_write(&world->frame, mount);
    world_send(world, owner, frame);
    struct mc_frame answer = world_receive(world, owner);
    mc_assert(answer.type == MC_MESSAGE_MOUNT_REPLY);
    struct mc_reader reader = mc_reader(answer.body.data, answer.body.length);
    mc_wire_mount_reply_read(&reader, &reply);
    return reply;
}

struct world_store { /* a store node */
    uint64_t heartbeat, owner, call;
    uint32_t segment;
};
static struct world_store world_store(struct world *world, uint64_t node, uint64_t capacity, const char *name)
{
    struct world_store store = {0};
    store.heartbeat = world_join(world, MC_ROLE_HEARTBEAT, node, FIRST_LIFE);
    store.owner = world_join(world, MC_ROLE_OWNER, node, FIRST_LIFE);
    store.call = world_join(world, MC_ROLE_CALL, node, FIRST_LIFE);
    struct mc_wire_mount mount = world_mount_of(node, capacity, name);
    struct mc_wire_mount_reply reply = world_mount(world, store.owner, &mount);
    mc_assert(reply.code == 0);
    store.segment = reply.segment;
    return store;
}
/* A world of one store node: most tests begin so. */
static struct world_store world_open_one(struct world *world)
{
    world_open(world);
    return world_store(world, NODE_A, MIB, "a");
}
/* A master that evicts what was used least recently, and a segment of 4 MiB. */
static struct world_store world_open_lru(struct world *world)
{
    struct mc_core_config config = mc_core_config_default();
    config.policy = mc_eviction_find("lru");
    world_open_with(world, &config);
    return world_store(world, NODE_A, 4 * MIB, "a");
}
/* The segment of NODE_A, with what it got under the first master. */
static struct mc_wire_mount world_mount_of_old(void)
{
    struct mc_wire_mount mount = world_mount_of(NODE_A, MIB, "a");
    mount.epoch = FIRST_EPOCH;
    return mount;
}
/* The process of NODE_A is in touch again, with what it had; the answer to its mount. */
static struct mc_wire_mount_reply world_return(struct world *world, struct world_store *store)
{
    struct mc_wire_mount mount = world_mount_of_old();
    store->owner = world_join(world, MC_ROLE_OWNER, NODE_A, FIRST_LIFE);
    return world_mount(world, store->owner, &mount);
}
static int32_t world_remount(struct world *world, struct world_store *store)
{
    return world_return(world, store).code;
}
/* It is in touch again too late: nothing of that memory is wanted back, and it brings new memory. */
static uint32_t world_return_anew(struct world *world, struct world_store *store)
{
    struct mc_wire_mount mount = world_mount_of(NODE_A, MIB, "a");
    world_disconnect(world, store->owner);
    mc_assert(world_remount(world, store) == MC_ERR_STALE);
    mount.segment_id.low = NODE_A_ANEW;
    struct mc_wire_mount_reply reply = world_mount(world, store->owner, &mount);
    mc_assert(reply.code == 0);
    return reply.segment;
}
static struct mc_core_statistics statistics_of(const struct world *world)
{
    struct mc_core_statistics statistics;
    mc_core_statistics(world->core, &statistics);
    return statistics;
}

/* Takes the PING that a heartbeat has caused off the end of what an owner is told, and answers it. */
static void world_answer_contact(struct world *world)
{
    for (uint64_t number = 1; number < world->next_connection; number++) {
        struct mc_buffer *out = &world->connections[number].out;
        struct mc_frame frame = {0};
        size_t used = 0, last = 0;
        if (number == world->stuck || !world->connections[number].open)
            continue;
        for (size_t at = 0; at < out->length; at += used) {
            last = at;
            mc_assert(mc_frame_parse(out->data + at, out->length - at, &frame, &used) == 1);
        }
        if (frame.type != MC_MESSAGE_PING || frame.request_id != 0)
            continue;
        out->length = last;
        struct mc_wire_none none = {0};
        size_t answer = world_begin(world, MC_MESSAGE_PONG, 0);
        mc_wire_none_write(&world->frame, &none);
        world_send(world, number, answer);
    }
}

static int32_t world_heartbeat(struct world *world, uint64_t heartbeat, uint32_t segment, uint64_t populated)
{
    struct mc_wire_heartbeat head = {.epoch = world->core->epoch, .disks_off = world->told_off};
    struct mc_wire_heartbeat_segment item = {
        .segment = segment, .populated = populated, .health = world->told_health, .leaving = world->told_health != 0};
    size_t frame = world_begin(world, MC_MESSAGE_HEARTBEAT, 3);
    mc_wire_heartbeat_write(&world->frame, &head);
    size_t list = mc_list_begin(&world->frame);
    if (segment != 0)
        mc_wire_heartbeat_segment_write(&world->frame, &item);
    mc_list_end(&world->frame, list, segment != 0);
    world_send(world, heartbeat, frame);
    world_answer_contact(world);
    struct mc_frame answer = world_receive(world, heartbeat);
    mc_assert(answer.type == MC_MESSAGE_HEARTBEAT_REPLY);
    struct mc_reader reader = mc_reader(answer.body.data, answer.body.length);
    struct mc_wire_heartbeat_reply reply;
    struct mc_wire_segment_code code = {0};
    mc_wire_heartbeat_reply_read(&reader, &reply);
    mc_assert(reply.code == 0 && reply.epoch == world->core->epoch);
    uint32_t count = mc_list_read(&reader);
    mc_assert(count == (segment != 0));
    if (count == 1)
        mc_wire_segment_code_read(&reader, &code);
    world->is_told_lonely = code.unreachable != 0;
    return code.code;
}

/* A sign of life, of no segment. */
static int32_t world_beat(struct world *world, uint64_t heartbeat)
{
    return world_heartbeat(world, heartbeat, 0, 0);
}
/* Time passes, and only this one gives signs of life. */
static void world_pass_beating(struct world *world, uint64_t ms, uint64_t heartbeat)
{
    for (uint64_t left = ms; left > 0; left -= left < SECOND_MS ? left : SECOND_MS) {
        world_pass(world, left < SECOND_MS ? left : SECOND_MS);
        (void)world_beat(world, heartbeat);
    }
}

/* ---- puts ---- */

struct world_wish { /* of a PUT_START; zeroed = one replica anywhere */
    uint8_t replica_count;
    uint32_t flags;
    const char *preferred[4];
    uint32_t avoided[4];
    uint64_t expected, unsure, group, pin_ms;
    struct mc_id host;
};
struct world_grants {
    uint32_t count, place_count;
    struct mc_wire_granted items[MC_BATCH_MAX];
    struct mc_wire_place places[MC_BATCH_MAX];
};

struct world_item {
    struct mc_span key;
    uint64_t length;
};
static void world_put_start_send(struct world *world, uint64_t connection, uint64_t id, const struct world_item *items,
                                 uint32_t count, const struct world_wish *wish)
{
    struct mc_wire_put_start head = {.replica_count = wish->replica_count,
                                     .flags = wish->flags,
                                     .expected = wish->expected,
                                     .host = wish->host,
                                     .pin_ms = wish->pin_ms};
    size_t frame = world_begin(world, MC_MESSAGE_PUT_START, id), list, names = 0, avoided = 0;
    mc_wire_put_start_write(&world->frame, &head);
    list = mc_list_begin(&world->frame);
    for (uint32_t i = 0; i < count; i++) {
        struct mc_wire_put_start_item item = {
            .length = items[i].length, .unsure = wish->unsure, .key = items[i].key, .group = wish->group};
        mc_wire_put_start_item_write(&world->frame, &item);
    }
    mc_list_end(&world->frame, list, count);
    list = mc_list_begin(&world->frame);
    for (; names < 4 && wish->preferred[names] != NULL; names++) {
        struct mc_wire_name name = {.name = mc_span_string(wish->preferred[names])};
        mc_wire_name_write(&world->frame, &name);
    }
    mc_list_end(&world->frame, list, names);
    list = mc_list_begin(&world->frame);
    for (; avoided < 4 && wish->avoided[avoided] != 0; avoided++) {
        struct mc_wire_segment segment = {.segment = wish->avoided[avoided]};
        mc_wire_segment_write(&world->frame, &segment);
    }
    mc_list_end(&world->frame, list, avoided);
    world_send(world, connection, frame);
}
/* What was granted. The first answer must be PUT_GRANTED. */
static void world_put_granted(struct world *world, uint64_t connection, uint64_t id, uint32_t count,
                              struct world_grants *grants)
{
    struct mc_frame answer = world_receive(world, connection);
    mc_assert(answer.type == MC_MESSAGE_PUT_GRANTED && answer.request_id == id);
    struct mc_reader reader = mc_reader(answer.body.data, answer.body.length);
    struct mc_wire_none none;
    mc_wire_none_read(&reader, &none);
    grants->count = mc_list_read(&reader);
    for (uint32_t i = 0; i < grants->count; i++)
        mc_wire_granted_read(&reader, &grants->items[i]);
    grants->place_count = mc_list_read(&reader);
    for (uint32_t i = 0; i < grants->place_count; i++)
        mc_wire_place_read(&reader, &grants->places[i]);
    mc_assert(!reader.bad && grants->count == count);
    world->group = count > 0 ? grants->items[0].group : 0;
    world->pin_ms = count > 0 ? grants->items[0].pin_ms : 0;
    world->is_firm = count > 0 && grants->items[0].is_firm != 0;
}
static void world_put_start(struct world *world, uint64_t connection, uint64_t id, const struct world_item *items,
                            uint32_t count, const struct world_wish *wish, struct world_grants *grants)
{
    world_put_start_send(world, connection, id, items, count, wish);
    world_put_granted(world, connection, id, count, grants);
}
static void world_live_code(struct world *world, uint64_t owner, const struct mc_wire_place *place, int32_t code)
{
    struct mc_wire_live head = {.segment = place->segment};
    struct mc_wire_live_item item = {.slot = place->slot, .code = code, .generation = place->generation};
    size_t frame = world_begin(world, MC_MESSAGE_LIVE, 0);
    mc_wire_live_write(&world->frame, &head);
    size_t list = mc_list_begin(&world->frame);
    mc_wire_live_item_write(&world->frame, &item);
    mc_list_end(&world->frame, list, 1);
    world_send(world, owner, frame);
}
static void world_live(struct world *world, uint64_t owner, const struct mc_wire_place *place)
{
    world_live_code(world, owner, place, 0);
}
/* All that was granted, at the owners of either segment. */
static void world_live_all(struct world *world, const struct world_store *a, const struct world_store *b,
                           const struct world_grants *grants)
{
    for (uint32_t i = 0; i < grants->place_count; i++)
        world_live(world, grants->places[i].segment == a->segment ? a->owner : b->owner, &grants->places[i]);
}
static void world_revoke(struct world *world, uint64_t connection, const struct mc_wire_place *place)
{
    struct mc_wire_none none = {0};
    struct mc_wire_grant item = {.segment = place->segment, .slot = place->slot, .generation = place->generation};
    size_t frame = world_begin(world, MC_MESSAGE_PUT_REVOKE, 0);
    mc_wire_none_write(&world->frame, &none);
    size_t list = mc_list_begin(&world->frame);
    mc_wire_grant_write(&world->frame, &item);
    mc_list_end(&world->frame, list, 1);
    world_send(world, connection, frame);
}
/* The code of item 0 of a PUT_DONE that must be there; *id = its request. */
static int32_t world_put_done(struct world *world, uint64_t connection, uint64_t id)
{
    struct mc_frame answer = world_receive(world, connection);
    mc_assert(answer.type == MC_MESSAGE_PUT_DONE && answer.request_id == id);
    struct mc_reader reader = mc_reader(answer.body.data, answer.body.length);
    struct mc_wire_none none;
    struct mc_wire_code code;
    mc_wire_none_read(&reader, &none);
    mc_assert(mc_list_read(&reader) > 0);
    mc_wire_code_read(&reader, &code);
    return code.code;
}
/* A key as it stands in a message; what a test writes as "\1blue\1x" is x of tenant blue, "\1\2llama-llama-llamax" x
 * with the stamp of which these 16 bytes are left; "\1\4" and "\1\3" begin the marks of stripe.h. */
static struct mc_span world_key(const char *text)
{
    static char keys[8][MC_KEY_LENGTH_MAX + 1];
    static unsigned next;
    size_t length = strlen(text);
    if (text[0] != 1)
        return mc_span(text, length);
    char *key = keys[next++ % 8];
    mc_assert(length < sizeof(keys[0]));
    for (size_t i = 0; i < length; i++)
        key[i] = (char)(text[i] >= 1 && text[i] <= 4 ? text[i] - 1 : text[i]);
    return mc_span(key, length);
}
/* One key, one message: the code of the item; *place = the first place. */
static int32_t world_grant(struct world *world, uint64_t connection, uint64_t id, const char *key, uint64_t length,
                           const struct world_wish *wish, struct mc_wire_place *place)
{
    static const struct world_wish anywhere;
    static struct world_grants grants;
    struct world_item item = {world_key(key), length};
    world_put_start(world, connection, id, &item, 1, wish == NULL ? &anywhere : wish, &grants);
    if (place != NULL)
        *place = grants.place_count > 0 ? grants.places[0] : (struct mc_wire_place){0};
    return grants.items[0].code;
}
/* A whole put that lands at that owner; *place = where. */
static int32_t world_put_place(struct world *world, uint64_t connection, uint64_t owner, const char *key,
                               uint64_t length, const struct world_wish *wish, struct mc_wire_place *place)
{
    enum { WHOLE_PUT = 100 };
    int32_t code = world_grant(world, connection, WHOLE_PUT, key, length, wish, place);
    if (code != 0)
        return code;
    world_live(world, owner, place);
    return world_put_done(world, connection, WHOLE_PUT);
}
/* To the one segment of that owner. */
static int32_t world_put(struct world *world, uint64_t connection, uint64_t owner, const char *key, uint64_t length)
{
    struct mc_wire_place place;
    return world_put_place(world, connection, owner, key, length, NULL, &place);
}
/* "PREFIX0", "PREFIX1" and so on. */
static void world_fill(struct world *world, const struct world_store *store, const char *prefix, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        char key[32];
        (void)snprintf(key, sizeof(key), "%s%u", prefix, i);
        mc_assert(world_put(world, store->call, store->owner, key, SMALL) == 0);
    }
}
/* Two replicas of a value, one at each. */
static void world_put_both(struct world *world, const struct world_store *a, const struct world_store *b,
                           const struct world_item *item, const struct world_wish *wish)
{
    static struct world_grants grants;
    world_put_start(world, a->call, PUT_1, item, 1, wish, &grants);
    mc_assert(grants.place_count == 2);
    world_live_all(world, a, b, &grants);
    mc_assert(world_put_done(world, a->call, PUT_1) == 0);
}
/* A world of one store, where "k" lies; a client. */
static uint64_t world_open_holding(struct world *world, struct world_store *store)
{
    *store = world_open_one(world);
    uint64_t client = world_client(world, CLIENT);
    mc_assert(world_put(world, store->call, store->owner, "k", SMALL) == 0);
    return client;
}
/* A world of one store, and a client whose PUT_1 writes "k" there. */
static uint64_t world_open_writing(struct world *world, struct world_store *store, struct mc_wire_place *place)
{
    *store = world_open_one(world);
    uint64_t writer = world_client(world, CLIENT);
    mc_assert(world_grant(world, writer, PUT_1, "k", SMALL, NULL, place) == 0);
    return writer;
}

/* ---- CLEAR and CUT, as an owner sees them ---- */

struct world_told {
    unsigned type; /* 0 = nothing */
    uint32_t segment, count;
    struct mc_wire_slot slots[MC_BATCH_MAX];
    struct mc_id writer; /* of the first of a CUT */
};
static void world_owner_told(struct world *world, uint64_t owner, struct world_told *told)
{
    struct mc_frame frame = world_receive(world, owner);
    while (frame.type == MC_MESSAGE_OFFERED)
        frame = world_receive(world, owner);
    *told = (struct world_told){.type = frame.type};
    if (frame.type == 0)
        return;
    mc_assert(frame.type == MC_MESSAGE_CLEAR || frame.type == MC_MESSAGE_CUT);
    struct mc_reader reader = mc_reader(frame.body.data, frame.body.length);
    struct mc_wire_segment head;
    mc_wire_segment_read(&reader, &head);
    told->segment = head.segment;
    told->count = mc_list_read(&reader);
    for (uint32_t i = 0; i < told->count; i++) {
        struct mc_wire_cut_item cut;
        if (frame.type == MC_MESSAGE_CLEAR) {
            mc_wire_slot_read(&reader, &told->slots[i]);
            continue;
        }
        mc_wire_cut_item_read(&reader, &cut);
        told->slots[i] = (struct mc_wire_slot){.slot = cut.slot, .generation = cut.generation};
        if (i == 0)
            told->writer = cut.writer;
    }
}
static void world_owner_says(struct world *world, uint64_t owner, enum mc_message type, const struct world_told *told)
{
    struct mc_wire_segment head = {.segment = told->segment};
    size_t frame = world_begin(world, type, 0);
    mc_wire_segment_write(&world->frame, &head);
    size_t list = mc_list_begin(&world->frame);
    for (uint32_t i = 0; i < told->count; i++)
        mc_wire_slot_write(&world->frame, &told->slots[i]);
    mc_list_end(&world->frame, list, told->count);
    world_send(world, owner, frame);
}
/* It is told to cut a writer off, and has done what comes before: the slots are cleared. */
static void world_owner_told_to_cut(struct world *world, uint64_t owner, struct world_told *told)
{
    world_owner_told(world, owner, told);
    mc_assert(told->type == MC_MESSAGE_CLEAR);
    world_owner_says(world, owner, MC_MESSAGE_CLEARED, told);
    world_owner_told(world, owner, told);
    mc_assert(told->type == MC_MESSAGE_CUT);
}
/* A good owner: does all it is told. How many slots that were. */
static uint32_t world_owner_obeys(struct world *world, uint64_t owner)
{
    static struct world_told told;
    uint32_t count = 0;
    for (world_owner_told(world, owner, &told); told.type != 0; world_owner_told(world, owner, &told)) {
        count += told.count;
        world_owner_says(world, owner, told.type == MC_MESSAGE_CLEAR ? MC_MESSAGE_CLEARED : MC_MESSAGE_CUT_DONE, &told);
    }
    return count;
}

/* ---- the other requests ---- */

static void world_keys(struct world *world, const char *const *keys, uint32_t count)
{
    size_t list = mc_list_begin(&world->frame);
    for (uint32_t i = 0; i < count; i++) {
        struct mc_wire_key key = {.key = world_key(keys[i])};
        mc_wire_key_write(&world->frame, &key);
    }
    mc_list_end(&world->frame, list, count);
}
/* The code for one key; *found and *place (either may be NULL) of the answer. */
static int32_t world_get(struct world *world, uint64_t connection, const char *key, uint32_t flags,
                         struct mc_wire_found *found, struct mc_wire_place *place)
{
    struct mc_wire_get head = {.flags = flags};
    size_t frame = world_begin(world, MC_MESSAGE_GET, 7);
    mc_wire_get_write(&world->frame, &head);
    world_keys(world, &key, 1);
    world_send(world, connection, frame);
    struct mc_frame answer = world_receive(world, connection);
    mc_assert(answer.type == MC_MESSAGE_GET_FOUND && answer.request_id == 7);
    struct mc_reader reader = mc_reader(answer.body.data, answer.body.length);
    struct mc_wire_none none;
    struct mc_wire_found first;
    struct mc_wire_place at = {0};
    mc_wire_none_read(&reader, &none);
    mc_assert(mc_list_read(&reader) == 1);
    mc_wire_found_read(&reader, &first);
    uint32_t places = mc_list_read(&reader);
    mc_assert(places == first.replica_count);
    if (places > 0)
        mc_wire_place_read(&reader, &at);
    if (found != NULL)
        *found = first;
    if (place != NULL)
        *place = at;
    return first.code;
}
static int world_exist(struct world *world, uint64_t connection, const char *key)
{
    struct mc_wire_none none = {0};
    size_t frame = world_begin(world, MC_MESSAGE_EXIST, 8);
    mc_wire_none_write(&world->frame, &none);
    world_keys(world, &key, 1);
    world_send(world, connection, frame);
    struct mc_frame answer = world_receive(world, connection);
    mc_assert(answer.type == MC_MESSAGE_EXIST_REPLY);
    struct mc_reader reader = mc_reader(answer.body.data, answer.body.length);
    struct mc_wire_exist_reply reply;
    mc_wire_exist_reply_read(&reader, &reply);
    mc_assert(reply.code == 0 && reply.results.length == 1);
    return *(const uint8_t *)reply.results.data;
}
/* hint: enum mc_hint, or none. */
static void world_hints(struct world *world, uint64_t connection, unsigned hint, const char *const *keys,
                        uint32_t count, uint64_t for_ms, int32_t *codes)
{
    struct mc_wire_hint head = {.hint = (uint8_t)hint, .for_ms = for_ms};
    struct mc_wire_none none;
    size_t frame = world_begin(world, MC_MESSAGE_HINT, 11);
    mc_wire_hint_write(&world->frame, &head);
    world_keys(world, keys, count);
    world_send(world, connection, frame);
    struct mc_frame answer = world_receive(world, connection);
    mc_assert(answer.type == MC_MESSAGE_HINT_REPLY && answer.request_id == 11);
    struct mc_reader reader = mc_reader(answer.body.data, answer.body.length);
    mc_wire_none_read(&reader, &none);
    mc_assert(mc_list_read(&reader) == count);
    for (uint32_t i = 0; i < count; i++) {
        struct mc_wire_code code;
        mc_wire_code_read(&reader, &code);
        codes[i] = code.code;
    }
}
static int32_t world_hint(struct world *world, uint64_t connection, unsigned hint, const char *key, uint64_t for_ms)
{
    int32_t code;
    world_hints(world, connection, hint, &key, 1, for_ms, &code);
    return code;
}
static void world_remove_send(struct world *world, uint64_t connection, const char *const *keys, uint32_t count,
                              bool force)
{
    struct mc_wire_remove head = {.force = force};
    size_t frame = world_begin(world, MC_MESSAGE_REMOVE, 9);
    mc_wire_remove_write(&world->frame, &head);
    world_keys(world, keys, count);
    world_send(world, connection, frame);
}
/* False when the answer has not come yet. */
static bool world_remove_answer(struct world *world, uint64_t connection, int32_t *codes, uint32_t count)
{
    struct mc_frame answer = world_receive(world, connection);
    if (answer.type == 0)
        return false;
    mc_assert(answer.request_id == 9);
    struct mc_reader reader = mc_reader(answer.body.data, answer.body.length);
    if (answer.type == MC_MESSAGE_FAILED) {
        struct mc_wire_failed failed;
        mc_wire_failed_read(&reader, &failed);
        for (uint32_t i = 0; i < count; i++)
            codes[i] = failed.code;
        return true;
    }
    mc_assert(answer.type == MC_MESSAGE_REMOVE_REPLY);
    struct mc_wire_none none;
    mc_wire_none_read(&reader, &none);
    mc_assert(mc_list_read(&reader) == count);
    for (uint32_t i = 0; i < count; i++) {
        struct mc_wire_code code;
        mc_wire_code_read(&reader, &code);
        codes[i] = code.code;
    }
    return true;
}
static void world_remove_one_send(struct world *world, uint64_t connection, const char *key)
{
    world_remove_send(world, connection, &key, 1, true);
}
/* The code of a removal that is answered at once. */
static int32_t world_remove(struct world *world, uint64_t connection, const char *key, bool force)
{
    int32_t code = 1;
    world_remove_send(world, connection, &key, 1, force);
    mc_assert(world_remove_answer(world, connection, &code, 1));
    return code;
}
static void world_remove_all_send(struct world *world, uint64_t connection, const char *pattern, bool force)
{
    size_t frame;
    if (pattern == NULL) {
        struct mc_wire_remove head = {.force = force};
        frame = world_begin(world, MC_MESSAGE_REMOVE_ALL, 10);
        mc_wire_remove_write(&world->frame, &head);
    } else {
        struct mc_wire_remove_regex head = {.force = force, .pattern = mc_span_string(pattern)};
        frame = world_begin(world, MC_MESSAGE_REMOVE_REGEX, 10);
        mc_wire_remove_regex_write(&world->frame, &head);
    }
    world_send(world, connection, frame);
}
/* The count, or the code when it is not 0; INT64_MIN when the answer has not come yet. */
static int64_t world_count_answer(struct world *world, uint64_t connection)
{
    struct mc_frame answer = world_receive(world, connection);
    if (answer.type == 0)
        return INT64_MIN;
    mc_assert(answer.type == MC_MESSAGE_COUNT_REPLY && answer.request_id == 10);
    struct mc_reader reader = mc_reader(answer.body.data, answer.body.length);
    struct mc_wire_count_reply reply;
    mc_wire_count_reply_read(&reader, &reply);
    return reply.code != 0 ? reply.code : (int64_t)reply.count;
}

/* A put by a writer that retries as a client does, with an owner that obeys. */
static int32_t world_put_hard(struct world *world, const struct world_store *store, const char *key, uint64_t length,
                              const struct world_wish *wish)
{
    struct mc_wire_place place;
    int32_t code = MC_ERR_SPACE_SOON;
    for (unsigned attempt = 0; attempt < 200 && code == MC_ERR_SPACE_SOON; attempt++) {
        code = world_grant(world, store->call, 1, key, length, wish, &place);
        if (code == 0)
            break;
        world_settle(world, 1000);
        world_owner_obeys(world, store->owner);
        world->now++;
    }
    if (code != 0)
        return code;
    world_live(world, store->owner, &place);
    world_owner_obeys(world, store->owner);
    return world_put_done(world, store->call, 1);
}

static const char *world_name(char text[32], const char *prefix, unsigned number)
{
    (void)snprintf(text, 32, "%s%u", prefix, number);
    return text;
}

#endif
