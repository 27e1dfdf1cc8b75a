/* Values that are stored on the disk of their owner, and loaded from it: what the owner is told, what readers hear, and
 * that nothing that was removed or replaced comes back from a disk (D1 to D5 of the ordering page). */
#include "core_moves.h"

static void test_stored_when_put(void **state)
{
    struct world world;
    struct world_store store;
    static struct moves moves;
    (void)state;
    uint32_t disk = open_with_disk(&world, &store);
    struct mc_wire_place place;
    assert_int_equal(world_put_place(&world, store.call, store.owner, "k", OBJECT, NULL, &place), 0);
    told_moves(&world, store.owner, &moves);
    assert_int_equal(moves.type, MC_MESSAGE_STORE);
    assert_int_equal(moves.segment, disk);
    assert_int_equal(moves.count, 1);
    assert_int_equal(moves.stores[0].source, store.segment);
    assert_int_equal(moves.stores[0].source_slot, place.slot);
    assert_int_equal(moves.stores[0].source_generation, place.generation);
    assert_int_equal(moves.stores[0].version, place.generation - place.replica);
    assert_true(moves.stores[0].generation > place.generation);
    assert_int_equal(on_disk(&world, "k"), 0);
    owner_did(&world, store.owner, &moves, 0);
    assert_int_equal(on_disk(&world, "k"), 1);
    struct mc_core_statistics statistics = statistics_of(&world);
    assert_int_equal(statistics.disks, 1);
    assert_int_equal(statistics.disk_objects, 1);
    assert_int_equal(statistics.segments, 1);
    assert_int_equal(world_get(&world, store.call, "k", 0, NULL, &place), 0);
    assert_int_equal(place.segment, store.segment); /* readers are sent to memory */
    world_close_all(&world);
}

/* Both places are cleared before the removal is answered, whatever was done first. */
static void test_removal_waits_for_the_disk(void **state)
{
    for (unsigned way = 0; way < 3; way++) { /* 0: it lies there; 1: it is being stored; 2: and that comes late */
        struct world world;
        struct world_store store;
        static struct moves moves;
        struct world_told told;
        int32_t code = 1;
        (void)state;
        uint32_t disk = open_with_disk(&world, &store);
        uint64_t client = world_client(&world, CLIENT);
        assert_int_equal(world_put(&world, store.call, store.owner, "k", OBJECT), 0);
        told_moves(&world, store.owner, &moves);
        if (way == 0)
            owner_did(&world, store.owner, &moves, 0);
        world_remove_one_send(&world, client, "k");
        assert_false(world_remove_answer(&world, client, &code, 1));
        if (way == 2)
            owner_did(&world, store.owner, &moves, 0);
        unsigned cleared = 0, of_disk = 0;
        for (world_owner_told(&world, store.owner, &told); told.type != 0;
             world_owner_told(&world, store.owner, &told)) {
            assert_int_equal(told.type, MC_MESSAGE_CLEAR);
            if (cleared < 2) /* the third time, that the disk has it is what it was told too late */
                assert_false(world_remove_answer(&world, client, &code, 1));
            of_disk += told.segment == disk;
            cleared++;
            world_owner_says(&world, store.owner, MC_MESSAGE_CLEARED, &told);
        }
        assert_int_equal(cleared, way == 2 ? 3 : 2);
        assert_int_equal(of_disk, cleared - 1);
        assert_true(world_remove_answer(&world, client, &code, 1));
        assert_int_equal(code, 0);
        assert_int_equal(world_exist(&world, client, "k"), 0);
        assert_int_equal(statistics_of(&world).disk_used, 0);
        world_close_all(&world);
    }
}

static void test_loaded_when_read(void **state)
{
    struct world world;
    struct world_store store;
    static struct moves moves;
    struct mc_wire_found found;
    struct mc_wire_place place;
    (void)state;
    uint32_t disk = open_with_disk(&world, &store);
    put_and_store(&world, &store, "k");
    forget_in_memory(&world, &store, "k");
    assert_int_equal(world_exist(&world, store.call, "k"), 1);
    assert_int_equal(world_get(&world, store.call, "k", MC_GET_NO_LEASE, &found, NULL),
                     0); /* who only asks for its size */
    assert_int_equal(found.length, OBJECT);
    assert_int_equal(found.replica_count, 0);
    assert_int_equal(world_grant(&world, store.call, PUT_1, "k", OBJECT, NULL, NULL), MC_ERR_OBJECT_ALREADY_EXISTS);
    assert_int_equal(world_get(&world, store.call, "k", 0, &found, NULL), MC_ERR_PUT_IN_PROGRESS);
    assert_int_equal(found.length, OBJECT); /* the reader knows about how long that takes */
    found.length = 0;
    assert_int_equal(world_get(&world, store.call, "k", 0, &found, NULL), MC_ERR_PUT_IN_PROGRESS); /* it is told once */
    assert_int_equal(found.length, OBJECT);
    told_moves(&world, store.owner, &moves);
    assert_int_equal(moves.type, MC_MESSAGE_LOAD);
    assert_int_equal(moves.segment, store.segment);
    assert_int_equal(moves.count, 1);
    assert_int_equal(moves.loads[0].disk, disk);
    assert_int_equal(moves.loads[0].replica, MC_REPLICA_LOADED);
    owner_did(&world, store.owner, &moves, 0);
    told_moves(&world, store.owner, &moves);
    assert_int_equal(moves.type, 0);
    assert_int_equal(world_get(&world, store.call, "k", 0, NULL, &place), 0);
    assert_int_equal(place.segment, store.segment);
    assert_int_equal(on_disk(&world, "k"), 1); /* and stays there */
    assert_int_equal(statistics_of(&world).promotion_done, 1);
    assert_int_equal(statistics_of(&world).promotion_bytes, OBJECT);
    world_close_all(&world);
}

/* A full memory makes room for what is loaded, by what it can evict. */
static void test_loading_makes_room(void **state)
{
    struct world world;
    struct world_store store;
    static struct moves moves;
    char key[32];
    unsigned rounds = 0;
    (void)state;
    (void)open_with_disk(&world, &store);
    for (unsigned i = 0; i < 600; i++) { /* twice the memory */
        (void)snprintf(key, sizeof(key), "k%u", i);
        struct mc_wire_place place;
        int32_t code = world_put_place(&world, store.call, store.owner, key, OBJECT, NULL, &place);
        for (unsigned again = 0; code == MC_ERR_SPACE_SOON && again < 10; again++) {
            (void)owner_clears(&world, store.owner);
            code = world_put_place(&world, store.call, store.owner, key, OBJECT, NULL, &place);
        }
        assert_int_equal(code, 0);
        for (struct mc_frame frame = world_receive(&world, store.owner); frame.type != 0;
             frame = world_receive(&world, store.owner)) { /* a CLEAR or a STORE */
            struct mc_reader reader = mc_reader(frame.body.data, frame.body.length);
            static struct world_told told;
            struct mc_wire_segment head;
            mc_wire_segment_read(&reader, &head);
            told = (struct world_told){.type = frame.type, .segment = head.segment, .count = mc_list_read(&reader)};
            for (uint32_t at = 0; at < told.count; at++) {
                struct mc_wire_store_item item;
                if (frame.type == MC_MESSAGE_CLEAR) {
                    mc_wire_slot_read(&reader, &told.slots[at]);
                    continue;
                }
                mc_wire_store_item_read(&reader, &item);
                struct mc_wire_place at_disk = {
                    .segment = head.segment, .slot = item.slot, .generation = item.generation};
                world_live(&world, store.owner, &at_disk);
            }
            if (frame.type == MC_MESSAGE_CLEAR)
                world_owner_says(&world, store.owner, MC_MESSAGE_CLEARED, &told);
        }
    }
    world_check(&world);
    assert_int_equal(statistics_of(&world).disk_objects, 600);
    int32_t code = world_get(&world, store.call, "k0", 0, NULL, NULL);
    for (; code == MC_ERR_PUT_IN_PROGRESS && rounds < 20; rounds++) {
        struct mc_frame frame = world_receive(&world, store.owner);
        struct mc_reader reader = mc_reader(frame.body.data, frame.body.length);
        struct mc_wire_segment head;
        if (frame.type == MC_MESSAGE_CLEAR) {
            static struct world_told told;
            mc_wire_segment_read(&reader, &head);
            told = (struct world_told){.type = frame.type, .segment = head.segment, .count = mc_list_read(&reader)};
            for (uint32_t at = 0; at < told.count; at++)
                mc_wire_slot_read(&reader, &told.slots[at]);
            world_owner_says(&world, store.owner, MC_MESSAGE_CLEARED, &told);
        } else if (frame.type == MC_MESSAGE_LOAD) {
            mc_wire_segment_read(&reader, &head);
            moves = (struct moves){.type = frame.type, .segment = head.segment, .count = mc_list_read(&reader)};
            mc_wire_load_item_read(&reader, &moves.loads[0]);
            owner_did(&world, store.owner, &moves, 0);
        }
        code = world_get(&world, store.call, "k0", 0, NULL, NULL);
    }
    assert_int_equal(code, 0);
    world_close_all(&world);
}

static void test_what_cannot_be_stored(void **state)
{
    struct world world;
    struct world_store store;
    static struct moves moves;
    (void)state;
    (void)open_with_disk(&world, &store);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", OBJECT), 0);
    told_moves(&world, store.owner, &moves);
    owner_did(&world, store.owner, &moves, MC_ERR_BUSY);
    assert_int_equal(owner_clears(&world, store.owner), 1);
    assert_int_equal(on_disk(&world, "k"), 0);
    assert_int_equal(world_get(&world, store.call, "k", MC_GET_NO_LEASE, NULL, NULL), 0);
    assert_int_equal(statistics_of(&world).offload_failed, 1);
    assert_int_equal(statistics_of(&world).disk_used, 0);
    world_close_all(&world);
}

/* What a disk with a budget goes by: a reader was sent to the value. Who asks whether it is there, or how large it is,
 * is none. */
static void test_told_whether_it_was_read(void **state)
{
    struct world world;
    struct world_store store;
    static struct moves moves;
    (void)state;
    (void)open_with_disk(&world, &store);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", OBJECT), 0);
    assert_int_equal(world_exist(&world, store.call, "k"), 1);
    assert_int_equal(world_get(&world, store.call, "k", MC_GET_NO_LEASE, NULL, NULL), 0);
    told_moves(&world, store.owner, &moves);
    assert_int_equal(moves.stores[0].flags, 0);
    owner_did(&world, store.owner, &moves, MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
    assert_int_equal(owner_clears(&world, store.owner), 1);
    assert_int_equal(world_exist(&world, store.call, "k"), 1);
    assert_int_equal(world_get(&world, store.call, "k", MC_GET_NO_LEASE, NULL, NULL), 0);
    told_moves(&world, store.owner, &moves);
    assert_int_equal(moves.type, 0);
    assert_int_equal(world_get(&world, store.call, "k", 0, NULL, NULL), 0);
    told_moves(&world, store.owner, &moves);
    assert_int_equal(moves.type, MC_MESSAGE_STORE);
    assert_int_equal(moves.stores[0].flags, MC_STORE_WAS_READ);
    owner_did(&world, store.owner, &moves, MC_ERR_BUSY);
    assert_int_equal(owner_clears(&world, store.owner), 1);
    assert_int_equal(world_get(&world, store.call, "k", 0, NULL, NULL), 0); /* not for the first time */
    told_moves(&world, store.owner, &moves);
    assert_int_equal(moves.type, 0);
    world_close_all(&world);
}

/* It is read while the owner has what it was told: if that comes to nothing, it hears once more, and once only. */
static void test_read_while_it_is_stored(void **state)
{
    struct world world;
    struct world_store store;
    static struct moves moves;
    (void)state;
    (void)open_with_disk(&world, &store);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", OBJECT), 0);
    told_moves(&world, store.owner, &moves);
    assert_int_equal(moves.type, MC_MESSAGE_STORE);
    assert_int_equal(moves.stores[0].flags, 0);
    assert_int_equal(world_get(&world, store.call, "k", 0, NULL, NULL), 0);
    owner_did(&world, store.owner, &moves, MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
    told_moves(&world, store.owner, &moves);
    assert_int_equal(moves.type, MC_MESSAGE_STORE);
    assert_int_equal(moves.stores[0].flags, MC_STORE_WAS_READ);
    owner_did(&world, store.owner, &moves, MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
    assert_int_equal(owner_clears(&world, store.owner), 2); /* and no STORE among them */
    assert_int_equal(statistics_of(&world).offload_failed, 2);
    assert_int_equal(statistics_of(&world).disk_used, 0);
    world_close_all(&world);
}

/* An entry that the disk has dropped: the key is gone when it lay nowhere else, and what was on its way is cleared. */
static void test_lost_on_disk(void **state)
{
    struct world world;
    struct world_store store;
    static struct moves moves;
    struct world_told lost;
    (void)state;
    uint32_t disk = open_with_disk(&world, &store);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", OBJECT), 0);
    told_moves(&world, store.owner, &moves);
    owner_did(&world, store.owner, &moves, 0);
    lost = (struct world_told){.segment = disk, .count = 1};
    lost.slots[0] = (struct mc_wire_slot){.slot = moves.stores[0].slot, .generation = moves.stores[0].generation};
    forget_in_memory(&world, &store, "k");
    assert_int_equal(world_get(&world, store.call, "k", 0, NULL, NULL), MC_ERR_PUT_IN_PROGRESS);
    told_moves(&world, store.owner, &moves);
    world_owner_says(&world, store.owner, MC_MESSAGE_LOST, &lost);
    world_check(&world);
    assert_int_equal(world_exist(&world, store.call, "k"), 0);
    owner_did(&world, store.owner, &moves, 0); /* too late */
    assert_true(owner_clears(&world, store.owner) >= 2);
    assert_int_equal(world_exist(&world, store.call, "k"), 0);
    assert_int_equal(statistics_of(&world).rotten_replicas, 0);
    assert_int_equal(statistics_of(&world).disk_lost, 1);
    world_close_all(&world);
}

/* What was told to a connection that broke is told again. */
static void test_told_again(void **state)
{
    struct world world;
    struct world_store store;
    static struct moves first, again;
    (void)state;
    (void)open_with_disk(&world, &store);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", OBJECT), 0);
    told_moves(&world, store.owner, &first);
    world_disconnect(&world, store.owner);
    struct mc_wire_mount memory = world_mount_of_old(), disk = disk_mount(DISK_A);
    disk.epoch = FIRST_EPOCH;
    store.owner = world_join(&world, MC_ROLE_OWNER, NODE_A, FIRST_LIFE);
    assert_int_equal(world_mount(&world, store.owner, &memory).code, 0);
    assert_int_equal(world_mount(&world, store.owner, &disk).code, 0);
    (void)mc_core_tick(world.core, world.now);
    told_moves(&world, store.owner, &again);
    assert_int_equal(again.type, MC_MESSAGE_STORE);
    assert_memory_equal(&again.stores[0], &first.stores[0], sizeof(first.stores[0]));
    owner_did(&world, store.owner, &again, 0);
    assert_int_equal(on_disk(&world, "k"), 1);
    world_close_all(&world);
}

/* The disk goes while something is being stored there: the value stays, another disk may take it. */
static void test_disk_is_unmounted(void **state)
{
    struct world world;
    struct world_store store;
    static struct moves moves;
    (void)state;
    uint32_t disk = open_with_disk(&world, &store);
    put_and_store(&world, &store, "stored");
    put_and_store(&world, &store, "only there");
    forget_in_memory(&world, &store, "only there");
    assert_int_equal(world_put(&world, store.call, store.owner, "k", OBJECT), 0);
    told_moves(&world, store.owner, &moves);
    struct mc_wire_unmount unmount = {.segment = disk};
    size_t frame = world_begin(&world, MC_MESSAGE_UNMOUNT, 5);
    mc_wire_unmount_write(&world.frame, &unmount);
    world_send(&world, store.owner, frame);
    assert_int_equal(world_receive(&world, store.owner).type, MC_MESSAGE_UNMOUNT_REPLY);
    world_settle(&world, 1000);
    world_check(&world);
    assert_int_equal(world_get(&world, store.call, "k", 0, NULL, NULL), 0);
    assert_int_equal(world_get(&world, store.call, "stored", 0, NULL, NULL), 0);
    assert_int_equal(world_exist(&world, store.call, "only there"), 0);
    assert_int_equal(statistics_of(&world).disks, 0);
    owner_did(&world, store.owner, &moves, 0); /* nobody listens to that any more */
    struct mc_wire_mount mount = disk_mount(NEXT_DISK);
    assert_int_equal(world_mount(&world, store.owner, &mount).code, 0);
    put_and_store(&world, &store, "next");
    world_close_all(&world);
}

/* A value that is replaced while it is being stored, and what the disk has of it, go before the new one is offered. */
static void test_replaced(void **state)
{
    struct world world;
    struct world_store store;
    static struct moves moves;
    struct world_told told;
    struct world_wish replace = {.flags = MC_PUT_REPLACE};
    struct mc_wire_place place;
    (void)state;
    uint32_t disk = open_with_disk(&world, &store);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", OBJECT), 0);
    told_moves(&world, store.owner, &moves);
    assert_int_equal(world_get(&world, store.call, "k", 0, NULL, NULL), 0);
    assert_int_equal(world_grant(&world, store.call, PUT_2, "k", OBJECT + 1, &replace, &place), 0);
    world_live(&world, store.owner, &place);
    assert_int_equal(world_get(&world, store.call, "k", 0, NULL, NULL), MC_ERR_PUT_IN_PROGRESS);
    unsigned of_disk = 0;
    for (world_owner_told(&world, store.owner, &told); told.type != 0 && of_disk == 0;) {
        of_disk += told.segment == disk;
        world_owner_says(&world, store.owner, MC_MESSAGE_CLEARED, &told);
        if (of_disk == 0)
            world_owner_told(&world, store.owner, &told);
    }
    assert_int_equal(of_disk, 1);
    world_check(&world);
    for (bool is_stored = false; !is_stored;) {
        struct mc_frame frame = world_receive(&world, store.owner);
        struct mc_reader reader = mc_reader(frame.body.data, frame.body.length);
        struct mc_wire_segment head;
        mc_wire_segment_read(&reader, &head);
        is_stored = frame.type == MC_MESSAGE_STORE;
        if (is_stored) {
            struct mc_wire_store_item item;
            assert_int_equal(mc_list_read(&reader), 1);
            mc_wire_store_item_read(&reader, &item);
            assert_int_equal(item.flags, 0); /* that the value before was read is nothing to it */
            break;
        }
        assert_int_equal(frame.type, MC_MESSAGE_CLEAR);
        told = (struct world_told){.type = frame.type, .segment = head.segment, .count = mc_list_read(&reader)};
        for (uint32_t at = 0; at < told.count; at++)
            mc_wire_slot_read(&reader, &told.slots[at]);
        world_owner_says(&world, store.owner, MC_MESSAGE_CLEARED, &told);
    }
    assert_int_equal(world_put_done(&world, store.call, PUT_2), 0);
    struct mc_wire_found found;
    assert_int_equal(world_get(&world, store.call, "k", 0, &found, NULL), 0);
    assert_int_equal(found.length, OBJECT + 1);
    world_close_all(&world);
}

/* Nobody but its owner hears of a disk, and no writer is sent there. */
static void test_disk_is_its_owners_own(void **state)
{
    struct world world;
    struct world_store store;
    struct world_wish wish = {.preferred = {"disk"}};
    struct mc_wire_place place;
    (void)state;
    uint32_t disk = open_with_disk(&world, &store);
    for (unsigned i = 0; i < 20; i++) {
        char key[32];
        (void)snprintf(key, sizeof(key), "k%u", i);
        assert_int_equal(world_grant(&world, store.call, PUT_1 + i, key, SMALL, &wish, &place), 0);
        assert_int_equal(place.segment, store.segment);
    }
    struct mc_wire_segment ask = {.segment = disk};
    size_t frame = world_begin(&world, MC_MESSAGE_SEGMENT, 6);
    mc_wire_segment_write(&world.frame, &ask);
    world_send(&world, store.call, frame);
    struct mc_frame answer = world_receive(&world, store.call);
    assert_int_equal(answer.type, MC_MESSAGE_SEGMENT_REPLY);
    struct mc_reader reader = mc_reader(answer.body.data, answer.body.length);
    struct mc_wire_segment_reply reply;
    mc_wire_segment_reply_read(&reader, &reply);
    assert_int_equal(reply.code, MC_ERR_SEGMENT_NOT_FOUND);
    world_close_all(&world);
}

/* The owner of that store's memory and disk comes back over a new connection, with both. */
static void reconnect(struct world *world, struct world_store *store)
{
    struct mc_wire_mount memory = world_mount_of_old(), disk = disk_mount(DISK_A);
    disk.epoch = FIRST_EPOCH;
    world_disconnect(world, store->owner);
    store->owner = world_join(world, MC_ROLE_OWNER, NODE_A, FIRST_LIFE);
    assert_int_equal(world_mount(world, store->owner, &memory).code, 0);
    struct mc_buffer *out = &world->connections[store->owner].out, told = *out;
    *out = (struct mc_buffer){0}; /* what is told of the memory comes before the answer to the second mount */
    assert_int_equal(world_mount(world, store->owner, &disk).code, 0);
    mc_buffer_append(&told, out->data, out->length);
    mc_buffer_free(out);
    *out = told;
    (void)mc_core_tick(world->core, world->now);
    world_check(world);
}

static void lose_in(struct world *world, uint32_t number, const char *key)
{
    struct mc_object *object = mc_object_find(world->core, mc_span_string(key));
    struct mc_replica at = mc_replica_first(world->core, object);
    while (at.segment->number != number)
        at = mc_replica_next(world->core, at);
    mc_object_lose_replica(world->core, object, at.segment, at.slot);
    world_check(world);
}

/* Two nodes hold "k", the first has a disk and is told to store it there. */
static uint32_t open_with_two(struct world *world, struct world_store *store, struct world_store *other,
                              struct moves *moves)
{
    struct world_wish both = {.replica_count = 2};
    struct world_item item = {mc_span_string("k"), OBJECT};
    uint32_t disk = open_with_disk(world, store);
    *other = world_store(world, NODE_B, MIB, "b");
    world_put_both(world, store, other, &item, &both);
    told_moves(world, store->owner, moves);
    assert_int_equal(moves->type, MC_MESSAGE_STORE);
    return disk;
}

/* What was to be stored went meanwhile: nobody is told to store it, and its place is cleared at once. */
static void test_source_is_gone(void **state)
{
    struct world world;
    struct world_store store, other;
    static struct moves moves;
    struct world_told told;
    uint32_t of_disk = 0;
    (void)state;
    uint32_t disk = open_with_two(&world, &store, &other, &moves);
    lose_in(&world, store.segment, "k");
    reconnect(&world, &store);
    for (world_owner_told(&world, store.owner, &told); told.type != 0; world_owner_told(&world, store.owner, &told)) {
        assert_int_equal(told.type, MC_MESSAGE_CLEAR);
        of_disk += told.segment == disk && told.slots[0].generation == moves.stores[0].generation;
        world_owner_says(&world, store.owner, MC_MESSAGE_CLEARED, &told);
    }
    assert_int_equal(of_disk, 1);
    assert_int_equal(world.core->moves.count, 0);
    assert_int_equal(world_get(&world, store.call, "k", 0, NULL, NULL), 0);
    world_close_all(&world);
}

/* The same of what was to be loaded. The owner may be at it since before its connection broke: so it is cut off. */
static void test_disk_has_lost_what_is_loaded(void **state)
{
    struct world world;
    struct world_store store, other;
    static struct moves stored, loaded;
    struct world_told told, lost;
    (void)state;
    uint32_t disk = open_with_two(&world, &store, &other, &stored);
    owner_did(&world, store.owner, &stored, 0);
    lose_in(&world, store.segment, "k");
    (void)mc_core_tick(world.core, world.now);
    (void)owner_clears(&world, store.owner);
    world_disconnect(&world, other.owner);
    assert_int_equal(world_get(&world, store.call, "k", 0, NULL, NULL), MC_ERR_PUT_IN_PROGRESS);
    told_moves(&world, store.owner, &loaded);
    assert_int_equal(loaded.type, MC_MESSAGE_LOAD);
    lost = (struct world_told){.segment = disk, .count = 1};
    lost.slots[0] = (struct mc_wire_slot){.slot = stored.stores[0].slot, .generation = stored.stores[0].generation};
    world_owner_says(&world, store.owner, MC_MESSAGE_LOST, &lost);
    (void)owner_clears(&world, store.owner);
    reconnect(&world, &store);
    world_owner_told_to_cut(&world, store.owner, &told);
    assert_int_equal(told.segment, store.segment);
    assert_int_equal(told.slots[0].generation, loaded.loads[0].generation);
    world_close_all(&world);
}

/* An owner tells how much of its memory is ready, on the link that it has: nothing is told it a second time there. */
static void test_not_told_twice(void **state)
{
    struct world world;
    struct world_store store;
    static struct moves moves;
    struct mc_wire_mount mount = world_mount_of_old();
    (void)state;
    (void)open_with_disk(&world, &store);
    put_and_store(&world, &store, "k");
    forget_in_memory(&world, &store, "k");
    assert_int_equal(world_get(&world, store.call, "k", 0, NULL, NULL), MC_ERR_PUT_IN_PROGRESS);
    told_moves(&world, store.owner, &moves);
    assert_int_equal(moves.type, MC_MESSAGE_LOAD);
    assert_int_equal(world_mount(&world, store.owner, &mount).code, 0);
    world_settle(&world, 100);
    told_moves(&world, store.owner, &moves);
    assert_int_equal(moves.type, 0);
    world_close_all(&world);
}

/* A removal by pattern passes what is being loaded, and then the disk drops the value: the loading may have ended just
 * before, so the removal waits for its end. */
static void test_removal_passes_what_is_loaded(void **state)
{
    struct world world;
    struct world_store store;
    static struct moves stored, loaded;
    struct world_told lost;
    (void)state;
    uint32_t disk = open_with_disk(&world, &store);
    uint64_t client = world_client(&world, CLIENT);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", OBJECT), 0);
    told_moves(&world, store.owner, &stored);
    owner_did(&world, store.owner, &stored, 0);
    forget_in_memory(&world, &store, "k");
    assert_int_equal(world_get(&world, store.call, "k", 0, NULL, NULL), MC_ERR_PUT_IN_PROGRESS);
    told_moves(&world, store.owner, &loaded);
    assert_int_equal(statistics_of(&world).promotion_cancelled, 0);
    world.core->config.offload = MC_OFFLOAD_NEVER;
    world_fill(&world, &store, "other", 1000); /* more than a removal looks at in one turn */
    world_remove_all_send(&world, client, "^k$", true);
    (void)mc_core_tick(world.core, world.now);
    lost = (struct world_told){.segment = disk, .count = 1};
    lost.slots[0] = (struct mc_wire_slot){.slot = stored.stores[0].slot, .generation = stored.stores[0].generation};
    world_owner_says(&world, store.owner, MC_MESSAGE_LOST, &lost);
    world_settle(&world, 1000);
    assert_int_equal(world_count_answer(&world, client), INT64_MIN);
    (void)owner_clears(&world, store.owner);
    world_settle(&world, 1000);
    assert_int_equal(world_count_answer(&world, client), 1);
    assert_int_equal(statistics_of(&world).promotion_cancelled, 1);
    world_close_all(&world);
}

/* All that is there is pinned: nothing makes room for what is read. */
static void test_no_room_to_load_into(void **state)
{
    static const struct world_wish pinned = {.flags = MC_PUT_HARD_PIN};
    struct world world;
    struct world_store store;
    struct mc_wire_place place;
    char key[32];
    int32_t code = 0;
    (void)state;
    (void)open_with_disk(&world, &store);
    put_and_store(&world, &store, "k");
    forget_in_memory(&world, &store, "k");
    for (unsigned i = 0; i < 10000 && code == 0; i++)
        code = world_put_place(&world, store.call, store.owner, world_name(key, "p", i), OBJECT, &pinned, &place);
    assert_int_equal(code, MC_ERR_NO_AVAILABLE_HANDLE);
    assert_int_equal(statistics_of(&world).promotion_no_room, 0);
    assert_int_equal(world_get(&world, store.call, "k", 0, NULL, NULL), MC_ERR_OBJECT_NOT_FOUND);
    assert_int_equal(statistics_of(&world).promotion_no_room, 1);
    assert_int_equal(statistics_of(&world).promotion_begun, 0);
    world_close_all(&world);
}

/* Which put has brought what was loaded, nobody knows once the disk has dropped it: so it is not stored again. */
static void test_loaded_is_not_stored_again(void **state)
{
    struct world world;
    struct world_store store;
    static struct moves stored, loaded;
    struct world_told lost;
    (void)state;
    uint32_t disk = open_with_disk(&world, &store);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", OBJECT), 0);
    told_moves(&world, store.owner, &stored);
    owner_did(&world, store.owner, &stored, 0);
    forget_in_memory(&world, &store, "k");
    assert_int_equal(world_get(&world, store.call, "k", 0, NULL, NULL), MC_ERR_PUT_IN_PROGRESS);
    told_moves(&world, store.owner, &loaded);
    owner_did(&world, store.owner, &loaded, 0);
    lost = (struct world_told){.segment = disk, .count = 1};
    lost.slots[0] = (struct mc_wire_slot){.slot = stored.stores[0].slot, .generation = stored.stores[0].generation};
    world_owner_says(&world, store.owner, MC_MESSAGE_LOST, &lost);
    assert_int_equal(world_get(&world, store.call, "k", 0, NULL, NULL), 0);
    assert_false(mc_offload_store(world.core, mc_object_find(world.core, mc_span_string("k"))));
    world_close_all(&world);
}

/* Its process was only silent: from then on it is as mortal as before. */
static void test_silent_owner_comes_back(void **state)
{
    struct world world;
    struct world_store store;
    (void)state;
    (void)open_with_disk(&world, &store);
    uint64_t client = world_client(&world, CLIENT), beat = world_join(&world, MC_ROLE_HEARTBEAT, CLIENT, FIRST_LIFE);
    put_and_store(&world, &store, "k");
    node_ends(&world, &store, beat);
    struct mc_wire_mount disk = disk_mount(DISK_A);
    disk.epoch = FIRST_EPOCH;
    store.owner = world_join(&world, MC_ROLE_OWNER, NODE_A, FIRST_LIFE);
    store.heartbeat = world_join(&world, MC_ROLE_HEARTBEAT, NODE_A, FIRST_LIFE);
    assert_int_equal(world_mount(&world, store.owner, &disk).code, 0);
    assert_int_equal(world_exist(&world, client, "k"), 1);
    assert_int_equal(statistics_of(&world).disks_absent, 0);
    world_pass_beating(&world, 2 * mc_core_config_default().client_ttl_ms, beat);
    assert_int_equal(world_exist(&world, client, "k"), 0);
    assert_int_equal(statistics_of(&world).disks_absent, 1);
    world_close_all(&world);
}

/* ---- a master after the one that placed it ---- */

/* What memory and disk hold of "k", whose put had that version. */
static struct mc_wire_inventory_item item_in_memory(uint64_t version, uint8_t replica)
{
    return (struct mc_wire_inventory_item){.slot = 1,
                                           .state = 1,
                                           .replica = replica,
                                           .generation = version + replica,
                                           .length = OBJECT,
                                           .key = mc_span_string("k")};
}
static struct mc_wire_inventory_item item_on_disk(uint64_t version, uint64_t generation)
{
    struct mc_wire_inventory_item item = item_in_memory(generation, 0);
    item.version = version;
    return item;
}

/* An owner whose memory and disk, if they hold something, come to a master that knows nothing. */
static struct world_store open_after(struct world *world, const struct mc_wire_inventory_item *memory,
                                     const struct mc_wire_inventory_item *disk, uint32_t *disk_segment)
{
    struct world_store store = {0};
    world_start(world, NEXT_EPOCH, NULL);
    store.heartbeat = world_join(world, MC_ROLE_HEARTBEAT, NODE_A, FIRST_LIFE);
    store.owner = world_join(world, MC_ROLE_OWNER, NODE_A, FIRST_LIFE);
    store.call = world_join(world, MC_ROLE_CALL, NODE_A, FIRST_LIFE);
    struct mc_wire_mount mounts[2] = {world_mount_of(NODE_A, MIB, "a"), disk_mount(DISK_A)};
    const struct mc_wire_inventory_item *items[2] = {memory, disk};
    for (unsigned i = 0; i < 2; i++) {
        if (items[i] != NULL) {
            mounts[i].epoch = FIRST_EPOCH;
            mounts[i].slot_top = items[i]->slot + 1;
        }
        struct mc_wire_mount_reply reply = world_mount(world, store.owner, &mounts[i]);
        assert_int_equal(reply.code, 0);
        assert_int_equal(reply.inventory, items[i] != NULL);
        *(i == 0 ? &store.segment : disk_segment) = reply.segment;
        if (items[i] == NULL)
            continue;
        send_inventory(world, store.owner, reply.segment, 0, true, items[i], 1);
        while (world->connections[store.owner].out.length > 0) {
            unsigned type = world_receive(world, store.owner).type;
            assert_true(type == MC_MESSAGE_INVENTORY_ACK || type == MC_MESSAGE_OFFERED || type == MC_MESSAGE_CLEAR);
        }
    }
    world_check(world);
    return store;
}

#define GENERATION(counter) (((uint64_t)FIRST_EPOCH << MC_EPOCH_SHIFT) + (counter))

static void test_found_again(void **state)
{
    struct world world;
    uint32_t disk = 0;
    static struct moves moves;
    struct mc_wire_place place;
    (void)state;
    struct mc_wire_inventory_item memory = item_in_memory(GENERATION(7), 1),
                                  stored = item_on_disk(GENERATION(7), GENERATION(9));
    struct world_store store = open_after(&world, &memory, &stored, &disk);
    assert_int_equal(world_get(&world, store.call, "k", 0, NULL, &place), 0);
    assert_int_equal(place.segment, store.segment);
    assert_int_equal(on_disk(&world, "k"), 1);
    world_close_all(&world);
    /* Memory is bound to a boot, the disk is not: it comes alone. */
    store = open_after(&world, NULL, &stored, &disk);
    assert_int_equal(world_exist(&world, store.call, "k"), 1);
    assert_int_equal(world_get(&world, store.call, "k", 0, NULL, NULL), MC_ERR_PUT_IN_PROGRESS);
    told_moves(&world, store.owner, &moves);
    assert_int_equal(moves.type, MC_MESSAGE_LOAD);
    assert_int_equal(moves.loads[0].disk_generation, GENERATION(9));
    owner_did(&world, store.owner, &moves, 0);
    assert_int_equal(world_get(&world, store.call, "k", 0, NULL, NULL), 0);
    world_close_all(&world);
}

/* The later version wins, by what the put was and not by when it was stored. */
static void test_older_value_on_disk(void **state)
{
    struct world world;
    uint32_t disk = 0;
    (void)state;
    struct mc_wire_inventory_item memory = item_in_memory(GENERATION(8), 0),
                                  stored = item_on_disk(GENERATION(7), GENERATION(9));
    struct world_store store = open_after(&world, &memory, &stored, &disk);
    assert_int_equal(world_get(&world, store.call, "k", 0, NULL, NULL), 0);
    assert_int_equal(on_disk(&world, "k"), 0);
    assert_int_equal(statistics_of(&world).recovery_refused, 1);
    world_close_all(&world);
    memory = item_in_memory(GENERATION(6), 0);
    store = open_after(&world, &memory, &stored, &disk);
    assert_int_equal(on_disk(&world, "k"), 1);
    assert_int_equal(world_get(&world, store.call, "k", 0, NULL, NULL), MC_ERR_PUT_IN_PROGRESS);
    world_close_all(&world);
}

/* What was loaded before has the version of its loading: which put brought the value, nobody can tell from it. */
static void test_loaded_before(void **state)
{
    struct world world;
    uint32_t disk = 0;
    struct world_wish replace = {.flags = MC_PUT_REPLACE, .unsure = GENERATION(8)};
    (void)state;
    struct mc_wire_inventory_item memory = item_in_memory(GENERATION(10), MC_REPLICA_LOADED);
    struct world_store store = open_after(&world, &memory, NULL, &disk);
    assert_int_equal(world_get(&world, store.call, "k", 0, NULL, NULL), 0);
    assert_int_equal(world_grant(&world, store.call, PUT_1, "k", OBJECT, &replace, NULL), MC_ERR_RPC_FAIL);
    world_close_all(&world);
}

/* What an entry of memory says of a version is nothing: its generation tells it. */
static void test_version_of_memory(void **state)
{
    struct world world;
    uint32_t disk = 0;
    (void)state;
    struct mc_wire_inventory_item memory = item_in_memory(GENERATION(8), 0),
                                  stored = item_on_disk(GENERATION(7), GENERATION(9));
    struct world_store store = open_after(&world, NULL, &stored, &disk);
    struct mc_wire_mount mount = world_mount_of(NODE_A_ANEW, MIB, "more");
    mount.epoch = FIRST_EPOCH;
    mount.slot_top = memory.slot + 1;
    struct mc_wire_mount_reply reply = world_mount(&world, store.owner, &mount);
    memory.version = GENERATION(7);
    send_inventory(&world, store.owner, reply.segment, 0, true, &memory, 1);
    assert_int_equal(world_get(&world, store.call, "k", 0, NULL, NULL), 0);
    assert_int_equal(on_disk(&world, "k"), 0);
    world_close_all(&world);
}

/* A disk was unmounted, and the value stored on another one; now both are back. */
static void test_value_on_two_disks(void **state)
{
    struct world world;
    uint32_t disk = 0;
    struct world_told told;
    (void)state;
    struct mc_wire_inventory_item stored = item_on_disk(GENERATION(7), GENERATION(9));
    struct world_store store = open_after(&world, NULL, &stored, &disk);
    struct mc_wire_mount mount = disk_mount(NEXT_DISK);
    mount.epoch = FIRST_EPOCH;
    mount.slot_top = stored.slot + 1;
    struct mc_wire_mount_reply reply = world_mount(&world, store.owner, &mount);
    assert_int_equal(reply.inventory, 1);
    stored.generation = GENERATION(10);
    send_inventory(&world, store.owner, reply.segment, 0, true, &stored, 1);
    assert_int_equal(world_receive(&world, store.owner).type, MC_MESSAGE_INVENTORY_ACK);
    world_owner_told(&world, store.owner, &told);
    assert_int_equal(told.type, MC_MESSAGE_CLEAR);
    assert_int_equal(told.segment, reply.segment);
    assert_int_equal(world_exist(&world, store.call, "k"), 1);
    world_close_all(&world);
}

/* A disk outlives its owner's process, which may end before it has cleared an old value that was refused: until it has
 * said so, the value that hides it stays. */
static void test_value_over_one_on_disk(void **state)
{
    struct world world;
    struct world_told told;
    uint32_t disk = 0;
    (void)state;
    struct mc_wire_inventory_item memory = item_in_memory(GENERATION(8), 0),
                                  stored = item_on_disk(GENERATION(7), GENERATION(9));
    struct world_store store = {0};
    world_start(&world, NEXT_EPOCH, NULL);
    store.heartbeat = world_join(&world, MC_ROLE_HEARTBEAT, NODE_A, FIRST_LIFE);
    store.owner = world_join(&world, MC_ROLE_OWNER, NODE_A, FIRST_LIFE);
    store.call = world_join(&world, MC_ROLE_CALL, NODE_A, FIRST_LIFE);
    struct mc_wire_mount mounts[2] = {world_mount_of(NODE_A, MIB, "a"), disk_mount(DISK_A)};
    for (unsigned i = 0; i < 2; i++) {
        mounts[i].epoch = FIRST_EPOCH;
        mounts[i].slot_top = memory.slot + 1;
        disk = world_mount(&world, store.owner, &mounts[i]).segment;
        send_inventory(&world, store.owner, disk, 0, true, i == 0 ? &memory : &stored, 1);
        assert_int_equal(world_receive(&world, store.owner).type, MC_MESSAGE_INVENTORY_ACK);
        world_settle(&world, 100);
        if (i == 0)
            assert_int_equal(world_receive(&world, store.owner).type, MC_MESSAGE_OFFERED);
    }
    world_owner_told(&world, store.owner, &told);
    assert_int_equal(told.type, MC_MESSAGE_CLEAR);
    assert_int_equal(told.segment, disk);
    assert_int_equal(world_remove(&world, store.call, "k", true), MC_ERR_BUSY);
    world_owner_says(&world, store.owner, MC_MESSAGE_CLEARED, &told);
    world_settle(&world, 1);
    assert_int_equal(world_receive(&world, store.owner).type, MC_MESSAGE_OFFERED);
    world_remove_one_send(&world, store.call, "k");
    assert_int_equal(owner_clears(&world, store.owner), 1);
    int32_t code = 1;
    assert_true(world_remove_answer(&world, store.call, &code, 1));
    assert_int_equal(code, 0);
    world_close_all(&world);
}

/* One whose owner ends before it has cleared what was refused holds up nobody, and who brings it back hears that
 * first. */
static void test_refused_on_a_disk_that_is_away(void **state)
{
    struct world world;
    struct world_told told;
    (void)state;
    struct mc_wire_inventory_item memory = item_in_memory(GENERATION(8), 0),
                                  stored = item_on_disk(GENERATION(7), GENERATION(9));
    world_start(&world, NEXT_EPOCH, NULL);
    uint64_t client = world_client(&world, CLIENT), beat = world_join(&world, MC_ROLE_HEARTBEAT, CLIENT, FIRST_LIFE);
    struct world_store store = {.heartbeat = world_join(&world, MC_ROLE_HEARTBEAT, NODE_A, FIRST_LIFE),
                                .owner = world_join(&world, MC_ROLE_OWNER, NODE_A, FIRST_LIFE),
                                .call = world_join(&world, MC_ROLE_CALL, NODE_A, FIRST_LIFE)};
    struct mc_wire_mount mounts[2] = {world_mount_of(NODE_A, MIB, "a"), disk_mount(DISK_A)};
    for (unsigned i = 0; i < 2; i++) {
        mounts[i].epoch = FIRST_EPOCH;
        mounts[i].slot_top = memory.slot + 1;
        uint32_t segment = world_mount(&world, store.owner, &mounts[i]).segment;
        send_inventory(&world, store.owner, segment, 0, true, i == 0 ? &memory : &stored, 1);
        assert_int_equal(world_receive(&world, store.owner).type, MC_MESSAGE_INVENTORY_ACK);
        world_settle(&world, 100);
        if (i == 0)
            assert_int_equal(world_receive(&world, store.owner).type, MC_MESSAGE_OFFERED);
    }
    assert_int_equal(world_remove(&world, client, "k", true), MC_ERR_BUSY);
    node_ends(&world, &store, beat);
    assert_int_equal(world_remove(&world, client, "k", true), MC_ERR_OBJECT_NOT_FOUND);
    store = world_store(&world, NODE_B, MIB, "again");
    struct mc_wire_mount_reply reply = world_mount(&world, store.owner, &mounts[1]);
    assert_int_equal(reply.code, 0);
    assert_int_equal(reply.inventory, 1);
    send_inventory(&world, store.owner, reply.segment, 0, true, &stored, 1);
    world_pass_beating(&world, 100, beat);
    do {
        struct mc_frame frame = world_receive(&world, store.owner);
        assert_true(frame.type == MC_MESSAGE_CLEAR || frame.type == MC_MESSAGE_INVENTORY_ACK);
        if (frame.type == MC_MESSAGE_CLEAR) {
            struct mc_reader reader = mc_reader(frame.body.data, frame.body.length);
            struct mc_wire_segment head;
            mc_wire_segment_read(&reader, &head);
            told = (struct world_told){.segment = head.segment, .count = mc_list_read(&reader)};
            mc_wire_slot_read(&reader, &told.slots[0]);
        }
    } while (world.connections[store.owner].out.length > 0);
    assert_int_equal(told.count, 1);
    world_owner_says(&world, store.owner, MC_MESSAGE_CLEARED, &told);
    world_settle(&world, 1);
    assert_int_equal(world_receive(&world, store.owner).type, MC_MESSAGE_OFFERED);
    world_close_all(&world);
}

static void test_entries_that_cannot_be(void **state)
{
    struct mc_wire_inventory_item wrong[4];
    (void)state;
    for (unsigned i = 0; i < 4; i++)
        wrong[i] = item_on_disk(GENERATION(7), GENERATION(9));
    wrong[0].state = 2;
    wrong[1].version = (uint64_t)(NEXT_EPOCH + 1) << MC_EPOCH_SHIFT;
    wrong[2].slot = DISK_SLOTS - 1; /* beyond what its mount says */
    wrong[3].key = mc_span("", 0);
    for (unsigned i = 0; i < 4; i++) {
        struct world world;
        world_start(&world, NEXT_EPOCH, NULL);
        uint64_t owner = world_join(&world, MC_ROLE_OWNER, NODE_A, FIRST_LIFE);
        struct mc_wire_mount mount = disk_mount(DISK_A);
        mount.epoch = FIRST_EPOCH;
        mount.slot_top = 2;
        struct mc_wire_mount_reply reply = world_mount(&world, owner, &mount);
        send_inventory(&world, owner, reply.segment, 0, true, &wrong[i], 1);
        world_settle(&world, 100);
        assert_int_equal(statistics_of(&world).disks, 0);
        assert_int_equal(statistics_of(&world).protocol_errors, 1);
        world_close_all(&world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stored_when_put),
        cmocka_unit_test(test_removal_waits_for_the_disk),
        cmocka_unit_test(test_loaded_when_read),
        cmocka_unit_test(test_loading_makes_room),
        cmocka_unit_test(test_what_cannot_be_stored),
        cmocka_unit_test(test_told_whether_it_was_read),
        cmocka_unit_test(test_read_while_it_is_stored),
        cmocka_unit_test(test_lost_on_disk),
        cmocka_unit_test(test_told_again),
        cmocka_unit_test(test_disk_is_unmounted),
        cmocka_unit_test(test_replaced),
        cmocka_unit_test(test_disk_is_its_owners_own),
        cmocka_unit_test(test_source_is_gone),
        cmocka_unit_test(test_disk_has_lost_what_is_loaded),
        cmocka_unit_test(test_not_told_twice),
        cmocka_unit_test(test_removal_passes_what_is_loaded),
        cmocka_unit_test(test_no_room_to_load_into),
        cmocka_unit_test(test_loaded_is_not_stored_again),
        cmocka_unit_test(test_silent_owner_comes_back),
        cmocka_unit_test(test_found_again),
        cmocka_unit_test(test_older_value_on_disk),
        cmocka_unit_test(test_loaded_before),
        cmocka_unit_test(test_version_of_memory),
        cmocka_unit_test(test_value_on_two_disks),
        cmocka_unit_test(test_value_over_one_on_disk),
        cmocka_unit_test(test_refused_on_a_disk_that_is_away),
        cmocka_unit_test(test_entries_that_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
