/* A store node with a disk: what its owner is told to move, and what it says. For tests of the core. */
#ifndef MC_TEST_CORE_MOVES_H
#define MC_TEST_CORE_MOVES_H

#include "core_owner.h"

#include "store/core/offload.h"
#include "store/core/replica.h"

#define OBJECT 4000u
#define DISK_SLOTS 5000u
enum { DISK_A = 90, NEXT_DISK };

struct moves { /* a STORE or a LOAD, as the owner sees it */
    unsigned type;
    uint32_t segment, count;
    struct mc_wire_store_item stores[MC_BATCH_MAX];
    struct mc_wire_load_item loads[MC_BATCH_MAX];
};

static struct mc_wire_mount disk_mount(uint64_t id)
{
    struct mc_wire_mount mount = world_mount_of(id, 64 * MIB, "disk");
    mount.slot_count = DISK_SLOTS;
    mount.kind = MC_SEGMENT_DISK;
    return mount;
}

/* A store node with a disk, whose values are stored there when they are put; the disk's number. */
static uint32_t open_with_disk(struct world *world, struct world_store *store)
{
    struct mc_core_config config = mc_core_config_default();
    config.offload = MC_OFFLOAD_ON_PUT;
    world_open_with(world, &config);
    *store = world_store(world, NODE_A, MIB, "a");
    struct mc_wire_mount mount = disk_mount(DISK_A);
    struct mc_wire_mount_reply reply = world_mount(world, store->owner, &mount);
    assert_int_equal(reply.code, 0);
    return reply.segment;
}

/* The next frame for the owner, which must be a STORE or a LOAD, or nothing. */
static void told_moves(struct world *world, uint64_t owner, struct moves *moves)
{
    struct mc_frame frame = world_receive(world, owner);
    struct mc_reader reader = mc_reader(frame.body.data, frame.body.length);
    struct mc_wire_segment head;
    *moves = (struct moves){.type = frame.type};
    if (frame.type == 0)
        return;
    assert_true(frame.type == MC_MESSAGE_STORE || frame.type == MC_MESSAGE_LOAD);
    mc_wire_segment_read(&reader, &head);
    moves->segment = head.segment;
    moves->count = mc_list_read(&reader);
    for (uint32_t i = 0; i < moves->count; i++) {
        if (frame.type == MC_MESSAGE_STORE)
            mc_wire_store_item_read(&reader, &moves->stores[i]);
        else
            mc_wire_load_item_read(&reader, &moves->loads[i]);
    }
}

static struct mc_wire_place place_of(const struct moves *moves, uint32_t item)
{
    bool is_store = moves->type == MC_MESSAGE_STORE;
    return (struct mc_wire_place){.segment = moves->segment,
                                  .slot = is_store ? moves->stores[item].slot : moves->loads[item].slot,
                                  .generation =
                                      is_store ? moves->stores[item].generation : moves->loads[item].generation};
}

/* The owner has done, or could not do, the first of what it was told. */
static void owner_did(struct world *world, uint64_t owner, const struct moves *moves, int32_t code)
{
    struct mc_wire_place place = place_of(moves, 0);
    world_live_code(world, owner, &place, code);
    world_check(world);
}

/* "k" lies in memory and on the disk. */
static void put_and_store(struct world *world, const struct world_store *store, const char *key)
{
    static struct moves moves;
    assert_int_equal(world_put(world, store->call, store->owner, key, OBJECT), 0);
    told_moves(world, store->owner, &moves);
    assert_int_equal(moves.type, MC_MESSAGE_STORE);
    assert_int_equal(moves.count, 1);
    owner_did(world, store->owner, &moves, 0);
}

/* The owner reads CLEARs, and takes STOREs for what they are; how many slots it cleared. */
static uint32_t owner_clears(struct world *world, uint64_t owner)
{
    struct world_told told;
    uint32_t count = 0;
    for (world_owner_told(world, owner, &told); told.type != 0; world_owner_told(world, owner, &told)) {
        count += told.count;
        world_owner_says(world, owner, told.type == MC_MESSAGE_CLEAR ? MC_MESSAGE_CLEARED : MC_MESSAGE_CUT_DONE, &told);
    }
    return count;
}

/* Only the disk has it: as when memory was full of other things. */
static void forget_in_memory(struct world *world, const struct world_store *store, const char *key)
{
    struct mc_object *object = mc_object_find(world->core, mc_span_string(key));
    struct mc_replica at = mc_replica_first(world->core, object);
    while (at.segment->kind != MC_SEGMENT_MEMORY)
        at = mc_replica_next(world->core, at);
    mc_object_lose_replica(world->core, object, at.segment, at.slot);
    (void)mc_core_tick(world->core, world->now);
    assert_int_equal(owner_clears(world, store->owner), 1);
    world_check(world);
}

static uint32_t on_disk(struct world *world, const char *key)
{
    struct mc_core_replica replicas[MC_REPLICA_COUNT_MAX];
    int count = mc_core_query(world->core, mc_span_string(key), replicas, MC_REPLICA_COUNT_MAX);
    uint32_t disks = 0;
    for (int i = 0; i < count; i++)
        disks += replicas[i].is_on_disk;
    return disks;
}

/* NODE_A ends, and is given up. */
static void node_ends(struct world *world, const struct world_store *store, uint64_t client)
{
    world_disconnect(world, store->heartbeat);
    world_disconnect(world, store->owner);
    world_disconnect(world, store->call);
    world_pass_beating(world, 2 * mc_core_config_default().client_ttl_ms, client);
    world_check(world);
    assert_int_equal(statistics_of(world).segments, 0);
    assert_int_equal(statistics_of(world).disks, 1);
    assert_int_equal(statistics_of(world).disks_absent, 1);
}

/* Another process has its disk, with that slot and generation on it. */
static struct world_store node_returns_with(struct world *world, uint64_t node, struct mc_wire_mount *mount,
                                            const struct moves *moves)
{
    struct world_store store = world_store(world, node, MIB, "again");
    mount->epoch = FIRST_EPOCH;
    mount->slot_top = moves->stores[0].slot + 1;
    struct mc_wire_mount_reply reply = world_mount(world, store.owner, mount);
    assert_int_equal(reply.code, 0);
    assert_int_equal(reply.inventory, 1);
    struct mc_wire_inventory_item item = {.slot = moves->stores[0].slot,
                                          .state = 1,
                                          .generation = moves->stores[0].generation,
                                          .version = moves->stores[0].version,
                                          .length = OBJECT,
                                          .key = mc_span_string("k")};
    send_inventory(world, store.owner, reply.segment, 0, true, &item, 1);
    world_settle(world, 100);
    world_check(world);
    return store;
}

static struct world_store node_returns(struct world *world, uint64_t node, const struct moves *moves)
{
    struct mc_wire_mount mount = disk_mount(DISK_A);
    return node_returns_with(world, node, &mount, moves);
}

#endif
