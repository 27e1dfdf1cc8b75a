/* An owner's process as the core sees it, which keeps its slots across masters and restarts, and tells honestly what it
 * holds. For tests of the core's recovery. */
#ifndef MC_TEST_CORE_OWNER_H
#define MC_TEST_CORE_OWNER_H

#include "core_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define SLOTS 4096u

struct fake_slot {
    uint64_t group;
    uint64_t pin_ms;                     /* what it tells of its pin */
    uint64_t generation, offset, length; /* generation: of the live replica, or everything up to it is refused */
    char key[24];
    uint8_t flags, replica, state; /* 0 empty, 1 live, 2 somebody writes */
    uint8_t hint;                  /* what it was told to keep */
};
struct fake_owner { /* an owner's process and its memory; the memory survives masters */
    uint64_t node, incarnation, epoch, contact_ms, contact_at_ms;
    uint64_t heartbeat, owner, call;
    uint32_t segment, slot_top;
    uint64_t id;
    bool mounted;
    unsigned offered; /* how often it was told so */
    unsigned hinted;  /* how many items of HINTED it has met */
    bool is_deaf;     /* it does not answer these */
    char name[8];
    struct fake_slot slots[SLOTS];
};

/* ---- masters ---- */

static void master_start(struct world *world, uint64_t epoch, const struct mc_core_config *config)
{
    struct mc_core_config fallback = mc_core_config_default();
    struct mc_core_output output = {world, world_buffer, world_close, world_log, world_way, NULL, world_medium, NULL};
    world->index_sum = world->index_count = 0;
    world->core =
        mc_core_create(config == NULL ? &fallback : config, &output, (struct mc_id){77, 88}, epoch, epoch, world->now);
    assert_non_null(world->core);
}
/* The master is no more, with all it knew; connections end. */
static void master_stop(struct world *world)
{
    world_check(world);
    mc_core_destroy(world->core);
    world->core = NULL;
    for (unsigned i = 0; i < WORLD_CONNECTIONS; i++) {
        mc_buffer_free(&world->connections[i].out);
        world->connections[i].open = world->connections[i].closed = false;
    }
    world->next_connection = 1;
}
static void world_start(struct world *world, uint64_t epoch, const struct mc_core_config *config)
{
    *world = (struct world){.now = 1000000, .next_connection = 1};
    uint64_t young_ms = config == NULL ? mc_core_config_default().depart_ms : config->depart_ms;
    world->now -= young_ms;
    master_start(world, epoch, config);
    for (uint64_t end = world->now + young_ms; world->now < end;) { /* nothing of a master before it can still come */
        world->now = end - world->now > 1000 ? world->now + 1000 : end;
        (void)mc_core_tick(world->core, world->now);
    }
}

/* ---- the fake owner ---- */

static struct fake_owner *fake(uint64_t node)
{
    struct fake_owner *owner = calloc(1, sizeof(*owner));
    assert_non_null(owner);
    *owner = (struct fake_owner){.node = node, .incarnation = 1, .id = node};
    (void)snprintf(owner->name, sizeof(owner->name), "n%u", (unsigned)node);
    return owner;
}

static uint64_t join_seen(struct world *world, unsigned role, uint64_t node, uint64_t incarnation, uint64_t epoch,
                          uint64_t age_ms)
{
    uint64_t connection = world_connect(world);
    struct mc_wire_hello hello = world_hello(role, node, incarnation);
    hello.seen_epoch = epoch;
    hello.seen_age_ms = (uint32_t)age_ms;
    assert_int_equal(world_greet(world, connection, &hello).code, 0);
    size_t frame = world_begin(world, MC_MESSAGE_PING, 2); /* a hello alone is no evidence */
    mc_wire_none_write(&world->frame, &(struct mc_wire_none){0});
    world_send(world, connection, frame);
    assert_int_equal(world_receive(world, connection).type, MC_MESSAGE_PONG);
    return connection;
}

/* What a new client is told of it. */
static inline unsigned hello_acts(struct world *world, uint64_t node)
{
    struct mc_wire_hello hello = world_hello(MC_ROLE_CALL, node, 1);
    return world_greet(world, world_connect(world), &hello).quiet == 0;
}

static struct mc_wire_mount fake_mount(const struct world *world, const struct fake_owner *owner, uint64_t capacity)
{
    struct mc_wire_mount mount = world_mount_of(owner->id, capacity, owner->name);
    mount.slot_count = SLOTS;
    mount.epoch = owner->epoch;
    mount.contact_age_ms = (uint32_t)(world->now - owner->contact_ms);
    mount.contact_at_ms = owner->contact_at_ms;
    for (uint32_t i = 0; i < SLOTS; i++)
        if (owner->slots[i].state != 0)
            mount.slot_top = i + 1;
    return mount;
}

/* Connects and mounts; the reply. */
static struct mc_wire_mount_reply fake_join(struct world *world, struct fake_owner *owner)
{
    owner->heartbeat = join_seen(world, MC_ROLE_HEARTBEAT, owner->node, owner->incarnation, owner->epoch,
                                 world->now - owner->contact_ms);
    owner->owner = world_join(world, MC_ROLE_OWNER, owner->node, owner->incarnation);
    owner->call = world_join(world, MC_ROLE_CALL, owner->node, owner->incarnation);
    struct mc_wire_mount mount = fake_mount(world, owner, MIB);
    struct mc_wire_mount_reply reply = world_mount(world, owner->owner, &mount);
    owner->mounted = reply.code == 0;
    if (owner->mounted) {
        owner->segment = reply.segment;
        owner->epoch = world->core->epoch;
        owner->contact_ms = world->now;
    }
    return reply;
}

/* The owner is told that its contents are not wanted. */
static void fake_renew(struct fake_owner *owner)
{
    memset(owner->slots, 0, sizeof(owner->slots));
    owner->id += 1000;
    owner->epoch = 0;
    owner->mounted = false;
}

/* The slot that holds the key, live or in work. */
static struct fake_slot *held(struct fake_owner *owner, const char *key)
{
    struct fake_slot *slot = NULL;
    for (uint32_t i = 0; i < SLOTS; i++)
        if (strcmp(owner->slots[i].key, key) == 0)
            slot = &owner->slots[i];
    assert_non_null(slot);
    return slot;
}

static int by_offset(const void *left, const void *right)
{
    const struct fake_slot *a = *(struct fake_slot *const *)left, *b = *(struct fake_slot *const *)right;
    return a->offset < b->offset ? -1 : a->offset > b->offset;
}

/* What the owner has, as inventories are told; how many. */
static uint32_t slots_in_order(struct fake_owner *owner, struct fake_slot *order[SLOTS])
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < SLOTS; i++)
        if (owner->slots[i].state != 0)
            order[count++] = &owner->slots[i];
    qsort(order, count, sizeof(order[0]), by_offset);
    return count;
}

static struct mc_wire_inventory_item item_of(const struct fake_owner *owner, const struct fake_slot *slot)
{
    struct mc_wire_inventory_item item = {.slot = (uint32_t)(slot - owner->slots),
                                          .state = slot->state,
                                          .flags = slot->flags,
                                          .replica = slot->replica,
                                          .generation = slot->generation,
                                          .offset = slot->offset,
                                          .length = slot->length,
                                          .group = slot->group,
                                          .pin_ms = slot->pin_ms,
                                          .hint = slot->hint};
    if (slot->state == 1)
        item.key = world_key(slot->key);
    else
        item.writer = (struct mc_id){4711, 1};
    return item;
}

static void send_inventory(struct world *world, uint64_t connection, uint32_t segment, uint32_t sequence, bool last,
                           const struct mc_wire_inventory_item *items, uint32_t count)
{
    struct mc_wire_inventory head = {.segment = segment, .sequence = sequence, .last = last};
    size_t frame = world_begin(world, MC_MESSAGE_INVENTORY, 0);
    mc_wire_inventory_write(&world->frame, &head);
    size_t list = mc_list_begin(&world->frame);
    for (uint32_t i = 0; i < count; i++)
        mc_wire_inventory_item_write(&world->frame, &items[i]);
    mc_list_end(&world->frame, list, count);
    world_send(world, connection, frame);
    world_check(world);
}

/* It keeps what it is told of what it still has, and says so. */
static void fake_keep(struct world *world, struct fake_owner *owner, struct mc_reader *reader)
{
    static struct mc_wire_hinted_item items[MC_BATCH_MAX];
    struct mc_wire_segment head;
    mc_wire_segment_read(reader, &head);
    uint32_t count = mc_list_read(reader);
    assert_true(count > 0 && count <= MC_BATCH_MAX);
    for (uint32_t i = 0; i < count; i++) {
        mc_wire_hinted_item_read(reader, &items[i]);
        struct fake_slot *slot = &owner->slots[items[i].slot];
        if (slot->generation != items[i].generation || slot->state != 1)
            continue;
        slot->hint = items[i].hint;
        slot->flags &= MC_PUT_HARD_PIN;
        slot->pin_ms = 0;
    }
    owner->hinted += count;
    if (owner->is_deaf)
        return;
    size_t frame = world_begin(world, MC_MESSAGE_HINTED, 0);
    size_t list = mc_wire_segment_head(&world->frame, &head);
    for (uint32_t i = 0; i < count; i++)
        mc_wire_hinted_item_write(&world->frame, &items[i]);
    mc_list_end(&world->frame, list, count);
    world_send(world, owner->owner, frame);
}

/* The code of the next INVENTORY_ACK; 1 when none is there. What else comes is obeyed by `owner` if given. */
static int32_t fake_obey(struct world *world, struct fake_owner *owner)
{
    int32_t code = 1;
    static struct world_told done;
    for (struct mc_frame frame = world_receive(world, owner->owner); frame.type != 0;
         frame = world_receive(world, owner->owner)) {
        struct mc_reader reader = mc_reader(frame.body.data, frame.body.length);
        struct mc_wire_segment head;
        if (frame.type == MC_MESSAGE_INVENTORY_ACK) {
            struct mc_wire_inventory_ack ack;
            mc_wire_inventory_ack_read(&reader, &ack);
            code = code == 1 || ack.code < 0 ? ack.code : code;
            continue;
        }
        owner->offered += frame.type == MC_MESSAGE_OFFERED;
        if (frame.type == MC_MESSAGE_HINTED)
            fake_keep(world, owner, &reader);
        if (frame.type != MC_MESSAGE_CLEAR && frame.type != MC_MESSAGE_CUT)
            continue;
        enum mc_message answer = frame.type == MC_MESSAGE_CLEAR ? MC_MESSAGE_CLEARED : MC_MESSAGE_CUT_DONE;
        mc_wire_segment_read(&reader, &head);
        done = (struct world_told){.segment = head.segment, .count = mc_list_read(&reader)};
        for (uint32_t i = 0; i < done.count; i++) {
            mc_wire_slot_read(&reader, &done.slots[i]); /* a cut_item begins as a slot does */
            struct fake_slot *slot = &owner->slots[done.slots[i].slot];
            if (slot->generation > done.slots[i].generation)
                continue;
            slot->generation = done.slots[i].generation;
            slot->state = 0;
        }
        world_owner_says(world, owner->owner, answer, &done);
    }
    return code;
}

/* All of its contents in frames of at most `batch`; false when it was told that they are not wanted. */
static bool fake_tell(struct world *world, struct fake_owner *owner, uint32_t batch)
{
    static struct fake_slot *order[SLOTS];
    static struct mc_wire_inventory_item items[MC_INVENTORY_ITEMS_MAX];
    uint32_t count = slots_in_order(owner, order), sequence = 0, at = 0;
    do {
        uint32_t some = count - at < batch ? count - at : batch;
        for (uint32_t i = 0; i < some; i++)
            items[i] = item_of(owner, order[at + i]);
        at += some;
        send_inventory(world, owner->owner, owner->segment, sequence++, at == count, items, some);
    } while (at < count);
    int32_t code = fake_obey(world, owner);
    assert_int_not_equal(code, 1);
    if (code < 0)
        fake_renew(owner);
    return code == 0;
}

/* What the process does when it meets a master: joins, tells what it has, or begins anew. True: its contents live. */
static bool fake_return(struct world *world, struct fake_owner *owner)
{
    struct mc_wire_mount_reply reply = fake_join(world, owner);
    if (reply.code == MC_ERR_STALE) {
        fake_renew(owner);
        struct mc_wire_mount mount = fake_mount(world, owner, MIB);
        reply = world_mount(world, owner->owner, &mount);
        assert_int_equal(reply.code, 0);
        assert_int_equal(reply.inventory, 0);
        owner->segment = reply.segment;
        owner->epoch = world->core->epoch;
        owner->contact_ms = world->now;
        owner->mounted = true;
        return false;
    }
    assert_int_equal(reply.code, 0);
    return reply.inventory == 0 || fake_tell(world, owner, 3);
}

static void fake_write(struct fake_owner *owner, const struct mc_wire_place *place, const char *key, uint64_t length,
                       uint8_t flags, uint8_t state)
{
    struct fake_slot *slot = &owner->slots[place->slot];
    assert_true(place->generation > slot->generation);
    *slot = (struct fake_slot){.generation = place->generation,
                               .offset = place->offset,
                               .length = length,
                               .flags = flags,
                               .replica = place->replica,
                               .state = state};
    (void)snprintf(slot->key, sizeof(slot->key), "%s", key);
}

/* A put of one replica to that owner; the code. */
static int32_t fake_put_in(struct world *world, struct fake_owner *owner, const char *key, uint64_t length,
                           uint32_t flags, uint64_t group)
{
    const struct world_wish wish = {.flags = flags, .preferred = {owner->name}, .group = group};
    struct mc_wire_place place;
    int32_t code = world_grant(world, owner->call, 100, key, length, &wish, &place);
    if (code != 0)
        return code;
    assert_int_equal(place.segment, owner->segment);
    fake_write(owner, &place, key, length, (uint8_t)flags, 1);
    owner->slots[place.slot].group = world->group;
    world_live(world, owner->owner, &place);
    if ((flags & MC_PUT_REPLACE) != 0)
        (void)fake_obey(world, owner); /* it clears the value before */
    return world_put_done(world, owner->call, 100);
}
static int32_t fake_put(struct world *world, struct fake_owner *owner, const char *key, uint64_t length, uint32_t flags)
{
    return fake_put_in(world, owner, key, length, flags, 0);
}

static int32_t fake_remove(struct world *world, struct fake_owner *through, struct fake_owner *holder, const char *key)
{
    int32_t code = 1;
    world_remove_send(world, through->call, &key, 1, true);
    if (holder != NULL)
        (void)fake_obey(world, holder);
    assert_true(world_remove_answer(world, through->call, &code, 1));
    return code;
}

/* Length of what is found, or 0. */
static uint64_t found(struct world *world, const struct fake_owner *through, const char *key)
{
    struct mc_wire_found item;
    world_check(world);
    return world_get(world, through->call, key, 0, &item, NULL) == 0 ? item.length : 0;
}

static void crash(struct world *world, uint64_t epoch, uint64_t down_ms)
{
    master_stop(world);
    world->now += down_ms;
    master_start(world, epoch, NULL);
}

/* Until the master may acknowledge removals. */
static inline void grow_old(struct world *world, struct fake_owner *owner)
{
    for (unsigned i = 0; i < 3; i++) {
        world_pass(world, SECOND_MS);
        world_beat(world, owner->heartbeat);
    }
}

/* ---- worlds as most tests begin ---- */

/* The first master, and the owner NODE_A. */
static inline struct fake_owner *start_with_owner(struct world *world)
{
    world_start(world, FIRST_EPOCH, NULL);
    struct fake_owner *owner = fake(NODE_A);
    assert_int_equal(fake_join(world, owner).code, 0);
    return owner;
}
static inline struct fake_owner *start_with_value(struct world *world, const char *key)
{
    struct fake_owner *owner = start_with_owner(world);
    assert_int_equal(fake_put(world, owner, key, SMALL, 0), 0);
    return owner;
}
/* Its contents live, and are offered. */
static inline void come_back(struct world *world, struct fake_owner *owner)
{
    assert_true(fake_return(world, owner));
    world_pass(world, GRACE_OVER_MS);
}
/* "k0", "k1" and so on, each one byte longer than the one before. */
static inline void put_numbered(struct world *world, struct fake_owner *owner, unsigned count)
{
    char key[32];
    for (unsigned i = 0; i < count; i++)
        assert_int_equal(fake_put(world, owner, world_name(key, "k", i), SMALL + i, 0), 0);
}
static inline void expect_numbered(struct world *world, const struct fake_owner *through, unsigned count)
{
    char key[32];
    for (unsigned i = 0; i < count; i++)
        assert_int_equal(found(world, through, world_name(key, "k", i)), SMALL + i);
}

static void finish(struct world *world, struct fake_owner *a, struct fake_owner *b)
{
    free(a);
    free(b);
    world_close_all(world);
}

#endif
