/* A disk whose owner ends, and that another process brings back: what lies there is offered again, and nothing else. */
#include "core_moves.h"

static void test_disk_comes_back(void **state)
{
    struct world world;
    struct world_store store;
    static struct moves moves, load;
    (void)state;
    uint32_t disk = open_with_disk(&world, &store);
    uint64_t client = world_client(&world, CLIENT), beat = world_join(&world, MC_ROLE_HEARTBEAT, CLIENT, FIRST_LIFE);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", OBJECT), 0);
    told_moves(&world, store.owner, &moves);
    owner_did(&world, store.owner, &moves, 0);
    node_ends(&world, &store, beat);
    assert_int_equal(world_exist(&world, client, "k"), 0);
    assert_int_equal(world_get(&world, client, "k", 0, NULL, NULL), MC_ERR_OBJECT_NOT_FOUND);
    store = node_returns(&world, NODE_B, &moves);
    assert_int_equal(world_exist(&world, client, "k"), 1);
    assert_int_equal(statistics_of(&world).disks_absent, 0);
    while (world.connections[store.owner].out.length > 0)
        assert_true(world_receive(&world, store.owner).type != MC_MESSAGE_CLEAR);
    assert_int_equal(world_get(&world, client, "k", 0, NULL, NULL), MC_ERR_PUT_IN_PROGRESS);
    told_moves(&world, store.owner, &load);
    assert_int_equal(load.type, MC_MESSAGE_LOAD);
    assert_int_equal(load.loads[0].disk, disk);
    world_close_all(&world);
}

/* How much it may take follows what is free where it lies: more or less than before, what lies there counts. */
static void test_disk_comes_back_with_another_size(void **state)
{
    static const struct size {
        uint64_t capacity;
        uint32_t slots;
    } sizes[] = {{65 * MIB, DISK_SLOTS + 100}, {16 * MIB, 64}, {64 * MIB, DISK_SLOTS}, {640 * MIB, 20 * DISK_SLOTS}};
    struct world world;
    struct world_store store;
    static struct moves moves;
    (void)state;
    (void)open_with_disk(&world, &store);
    uint64_t client = world_client(&world, CLIENT), beat = world_join(&world, MC_ROLE_HEARTBEAT, CLIENT, FIRST_LIFE);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", OBJECT), 0);
    told_moves(&world, store.owner, &moves);
    owner_did(&world, store.owner, &moves, 0);
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        node_ends(&world, &store, beat);
        assert_int_equal(world_exist(&world, client, "k"), 0);
        struct mc_wire_mount mount = disk_mount(DISK_A);
        mount.capacity = mount.populated = sizes[i].capacity;
        mount.slot_count = sizes[i].slots;
        store = node_returns_with(&world, i % 2 == 0 ? NODE_B : NODE_A, &mount, &moves);
        assert_int_equal(world_exist(&world, client, "k"), 1);
        assert_int_equal(statistics_of(&world).disk_capacity, sizes[i].capacity);
    }
    while (world.connections[store.owner].out.length > 0)
        (void)world_receive(&world, store.owner);
    put_and_store(&world, &store, "another");
    world_close_all(&world);
}

/* At a master that learnt it anew every number was in use once: those above a smaller size are given out no more, or
 * nobody could tell a later master of what lies there; and again when it may take more. */
static void test_numbers_of_a_smaller_size(void **state)
{
    static const uint32_t counts[] = {DISK_SLOTS, 64, 3, 9, 2 * DISK_SLOTS, MC_NODE_CHUNK + 3};
    struct world world;
    struct world_store store;
    static struct moves moves;
    char name[32];
    (void)state;
    struct mc_core_config config = mc_core_config_default();
    config.offload = MC_OFFLOAD_ON_PUT;
    world_start(&world, NEXT_EPOCH, &config);
    store = world_store(&world, NODE_A, MIB, "a");
    uint64_t beat = world_join(&world, MC_ROLE_HEARTBEAT, CLIENT, FIRST_LIFE);
    struct mc_wire_mount mount = disk_mount(DISK_A);
    mount.epoch = FIRST_EPOCH;
    mount.slot_top = DISK_SLOTS;
    struct mc_wire_mount_reply reply = world_mount(&world, store.owner, &mount);
    assert_int_equal(reply.inventory, 1);
    struct mc_wire_inventory_item item = {.slot = 0,
                                          .state = 1,
                                          .generation = ((uint64_t)FIRST_EPOCH << MC_EPOCH_SHIFT) + 1,
                                          .version = ((uint64_t)FIRST_EPOCH << MC_EPOCH_SHIFT) + 1,
                                          .length = OBJECT,
                                          .key = mc_span_string("old")};
    send_inventory(&world, store.owner, reply.segment, 0, true, &item, 1);
    world_settle(&world, 100);
    for (unsigned i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        node_ends(&world, &store, beat);
        store = world_store(&world, i % 2 == 0 ? NODE_B : NODE_A, MIB, "again");
        mount.epoch = NEXT_EPOCH;
        mount.slot_count = counts[i];
        mount.slot_top = 1;
        reply = world_mount(&world, store.owner, &mount);
        assert_int_equal(reply.code, 0);
        send_inventory(&world, store.owner, reply.segment, 0, true, &item, 1);
        assert_int_equal(world_receive(&world, store.owner).type, MC_MESSAGE_INVENTORY_ACK);
        world_settle(&world, 100);
        world_check(&world);
        (void)owner_clears(&world, store.owner); /* what was stored, and is not told */
        world_settle(&world, 100);
        unsigned stored = 0;
        for (unsigned j = 0; j < 20; j++) {
            assert_int_equal(world_put(&world, store.call, store.owner, world_name(name, "k", i * 100 + j), OBJECT), 0);
            told_moves(&world, store.owner, &moves);
            if (moves.type == 0)
                break;
            assert_int_equal(moves.type, MC_MESSAGE_STORE);
            assert_true(moves.stores[0].slot < counts[i]);
            owner_did(&world, store.owner, &moves, 0);
            stored++;
        }
        assert_int_equal(stored, counts[i] < 20 ? counts[i] - 1 : 20); /* "old" has one */
    }
    world_close_all(&world);
}

/* Also one in which nothing lies: it is not asked to begin anew again and again. */
static void test_empty_disk_comes_back_with_another_size(void **state)
{
    struct world world;
    struct world_store store;
    (void)state;
    (void)open_with_disk(&world, &store);
    uint64_t beat = world_join(&world, MC_ROLE_HEARTBEAT, CLIENT, FIRST_LIFE);
    node_ends(&world, &store, beat);
    store = world_store(&world, NODE_B, MIB, "again");
    struct mc_wire_mount mount = disk_mount(DISK_A);
    mount.capacity = mount.populated = 63 * MIB;
    mount.slot_count = 2 * DISK_SLOTS;
    assert_int_equal(world_mount(&world, store.owner, &mount).code, 0);
    world_close_all(&world);
}

/* What was removed, or put anew, while the disk was away is cleared when it is back, and never offered. */
static void test_removed_while_away(void **state)
{
    for (unsigned way = 0; way < 2; way++) {
        struct world world;
        struct world_store store;
        static struct moves moves;
        struct world_told told;
        (void)state;
        uint32_t disk = open_with_disk(&world, &store), seen = 0;
        uint64_t client = world_client(&world, CLIENT),
                 beat = world_join(&world, MC_ROLE_HEARTBEAT, CLIENT, FIRST_LIFE);
        assert_int_equal(world_put(&world, store.call, store.owner, "k", OBJECT), 0);
        told_moves(&world, store.owner, &moves);
        owner_did(&world, store.owner, &moves, 0);
        node_ends(&world, &store, beat);
        struct world_store other = world_store(&world, NODE_C, MIB, "c");
        if (way == 0)
            assert_int_equal(world_remove(&world, client, "k", true), 0);
        else
            assert_int_equal(world_put(&world, other.call, other.owner, "k", 2 * OBJECT), 0);
        world_check(&world);
        store = node_returns(&world, NODE_B, &moves);
        struct mc_wire_found found = {0};
        assert_int_equal(world_get(&world, client, "k", 0, &found, NULL), way == 0 ? MC_ERR_OBJECT_NOT_FOUND : 0);
        assert_int_equal(found.length, way == 0 ? 0 : 2 * OBJECT);
        for (struct mc_frame frame = world_receive(&world, store.owner); frame.type != 0;
             frame = world_receive(&world, store.owner)) {
            struct mc_reader reader = mc_reader(frame.body.data, frame.body.length);
            struct mc_wire_segment head;
            if (frame.type != MC_MESSAGE_CLEAR)
                continue;
            mc_wire_segment_read(&reader, &head);
            told = (struct world_told){.type = frame.type, .segment = head.segment, .count = mc_list_read(&reader)};
            mc_wire_slot_read(&reader, &told.slots[0]);
            seen += told.segment == disk && told.slots[0].generation == moves.stores[0].generation;
            world_owner_says(&world, store.owner, MC_MESSAGE_CLEARED, &told);
        }
        assert_int_equal(seen, 1);
        world_check(&world);
        assert_int_equal(statistics_of(&world).disk_used, 0);
        world_close_all(&world);
    }
}

static void test_disk_stays_away(void **state)
{
    struct world world;
    struct world_store store;
    (void)state;
    (void)open_with_disk(&world, &store);
    uint64_t beat = world_join(&world, MC_ROLE_HEARTBEAT, CLIENT, FIRST_LIFE);
    put_and_store(&world, &store, "k");
    node_ends(&world, &store, beat);
    world_pass_beating(&world, mc_core_config_default().disk_ttl_ms, beat);
    assert_int_equal(statistics_of(&world).disks, 0);
    assert_int_equal(statistics_of(&world).objects, 0);
    world_close_all(&world);
}

static struct mc_wire_inventory_item earlier_item(uint32_t slot, const char *key)
{
    uint64_t generation = ((uint64_t)FIRST_EPOCH << MC_EPOCH_SHIFT) + 1 + slot;
    return (struct mc_wire_inventory_item){.slot = slot,
                                           .state = 1,
                                           .generation = generation,
                                           .version = generation,
                                           .length = OBJECT,
                                           .key = mc_span_string(key)};
}

/* A machine that starts slowly brings its disk to a master that began long ago: what was removed there meanwhile, or
 * put anew, stays so, and the rest is back. Memory is not taken so late, nor a disk after disk_ttl_ms, nor where no
 * value goes to disks, nor where no note says what masters did meanwhile. */
static void test_disk_of_an_earlier_epoch_comes_late(void **state)
{
    static const char *const keys[] = {"kept", "early", "late", "anew", "evicted"};
    static const struct {
        enum mc_offload offload;
        uint64_t after_ms;
        bool removes_all, is_unnoted;
        int code;
    } ways[] = {{MC_OFFLOAD_ON_PUT, 600 * SECOND_MS, .code = 0},
                {MC_OFFLOAD_ON_PUT, 600 * SECOND_MS, .removes_all = true, .code = MC_ERR_STALE},
                {MC_OFFLOAD_ON_PUT, 600 * SECOND_MS, .is_unnoted = true, .code = MC_ERR_STALE},
                {MC_OFFLOAD_ON_PUT, 3601 * SECOND_MS, .code = MC_ERR_STALE},
                {MC_OFFLOAD_NEVER, 600 * SECOND_MS, .code = MC_ERR_STALE}};
    (void)state;
    for (unsigned way = 0; way < sizeof(ways) / sizeof(ways[0]); way++) {
        struct world world;
        struct mc_wire_inventory_item items[5];
        struct mc_wire_found found = {0};
        struct mc_core_config config = mc_core_config_default();
        config.offload = ways[way].offload;
        config.known_epoch = ways[way].is_unnoted ? 0 : FIRST_EPOCH;
        config.known_is_whole = !ways[way].is_unnoted;
        world_start(&world, NEXT_EPOCH, &config);
        struct world_store here = world_store(&world, NODE_B, MIB, "b");
        uint64_t client = world_client(&world, CLIENT);
        world_pass_beating(&world, 5 * SECOND_MS, here.heartbeat);
        assert_int_equal(world_remove(&world, client, "early", true), MC_ERR_OBJECT_NOT_FOUND);
        world_pass_beating(&world, ways[way].after_ms, here.heartbeat);
        assert_int_equal(world_remove(&world, client, "late", true), MC_ERR_OBJECT_NOT_FOUND);
        assert_int_equal(world_put(&world, here.call, here.owner, "anew", 2 * OBJECT), 0);
        assert_int_equal(world_put(&world, here.call, here.owner, "evicted", 2 * OBJECT), 0);
        forget_in_memory(&world, &here, "evicted");
        if (ways[way].removes_all)
            world_remove_all_send(&world, client, "nothing is named so", true);
        world_settle(&world, 100);
        if (ways[way].removes_all)
            assert_int_equal(world_count_answer(&world, client), 0);
        struct world_store store = world_store(&world, NODE_A, MIB, "a");
        struct mc_wire_mount memory = world_mount_of(77, MIB, "memory"), mount = disk_mount(DISK_A);
        memory.epoch = mount.epoch = FIRST_EPOCH;
        memory.slot_top = mount.slot_top = 5;
        memory.contact_age_ms = mount.contact_age_ms = (uint32_t)(ways[way].after_ms + 60 * SECOND_MS);
        assert_int_equal(world_mount(&world, store.owner, &memory).code, MC_ERR_STALE);
        struct mc_wire_mount_reply reply = world_mount(&world, store.owner, &mount);
        assert_int_equal(reply.code, ways[way].code);
        if (reply.code == 0) {
            assert_int_equal(reply.inventory, 1);
            for (uint32_t i = 0; i < 5; i++)
                items[i] = earlier_item(i, keys[i]);
            send_inventory(&world, store.owner, reply.segment, 0, true, items, 5);
            assert_int_equal(world_receive(&world, store.owner).type, MC_MESSAGE_INVENTORY_ACK);
            world_settle(&world, 100);
            assert_int_equal(owner_clears(&world, store.owner), 4);
            world_settle(&world, 100);
            world_check(&world);
            for (uint32_t i = 0; i < 5; i++)
                assert_int_equal(world_exist(&world, client, keys[i]), i == 0 || i == 3);
            assert_int_equal(world_get(&world, client, "anew", 0, &found, NULL), 0);
            assert_int_equal(found.length, 2 * OBJECT);
            assert_int_equal(statistics_of(&world).disk_objects, 1);
        }
        assert_int_equal(world.core->disks_over,
                         ways[way].offload == MC_OFFLOAD_NEVER || ways[way].after_ms > 3600 * SECOND_MS);
        world_close_all(&world);
    }
}

/* The telling breaks off, and what was told is not swept yet when all of it comes again. */
static void test_disk_is_told_twice(void **state)
{
    struct world world;
    struct mc_wire_inventory_item items[3];
    static const char *const keys[] = {"a", "b", "c"};
    (void)state;
    struct mc_core_config config = mc_core_config_default();
    config.offload = MC_OFFLOAD_ON_PUT;
    world_start(&world, NEXT_EPOCH, &config);
    struct world_store store = world_store(&world, NODE_A, MIB, "a");
    struct mc_wire_mount mount = disk_mount(DISK_A);
    mount.epoch = FIRST_EPOCH;
    mount.slot_top = 3;
    for (uint32_t i = 0; i < 3; i++)
        items[i] = earlier_item(i, keys[i]);
    for (unsigned told = 0; told < 2; told++) {
        struct mc_wire_mount_reply reply = world_mount(&world, store.owner, &mount);
        assert_int_equal(reply.code, 0);
        assert_int_equal(reply.inventory, 1);
        send_inventory(&world, store.owner, reply.segment, 0, told == 1, items, 2 + told);
        while (world.connections[store.owner].out.length > 0)
            assert_int_not_equal(world_receive(&world, store.owner).type, MC_MESSAGE_CLEAR);
        if (told == 0) {
            world_disconnect(&world, store.owner);
            store.owner = world_join(&world, MC_ROLE_OWNER, NODE_A, FIRST_LIFE);
            struct mc_wire_mount memory = world_mount_of(NODE_A, MIB, "a");
            memory.epoch = NEXT_EPOCH;
            (void)world_mount(&world, store.owner, &memory);
        }
    }
    world_settle(&world, 100);
    world_check(&world);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(world_exist(&world, store.call, keys[i]), 1);
    assert_int_equal(statistics_of(&world).disk_objects, 3);
    world_close_all(&world);
}

/* The same of one that comes late, where bits have taken the place of tombstones: what was merged and never offered
 * leaves none, whether it is swept by then or not, and what was removed meanwhile stays so. */
static void test_late_disk_is_told_twice(void **state)
{
    static const char *const keys[] = {"a", "b", "removed", "c"};
    (void)state;
    for (unsigned way = 0; way < 2; way++) {
        struct world world;
        struct mc_wire_inventory_item items[4];
        struct mc_core_config config = mc_core_config_default();
        config.offload = MC_OFFLOAD_ON_PUT;
        config.known_epoch = FIRST_EPOCH;
        config.known_is_whole = true;
        world_start(&world, NEXT_EPOCH, &config);
        struct world_store here = world_store(&world, NODE_B, MIB, "b");
        uint64_t client = world_client(&world, CLIENT);
        world_pass_beating(&world, 600 * SECOND_MS, here.heartbeat);
        assert_true(world.core->recovery_over && !world.core->disks_over);
        assert_int_equal(world_remove(&world, client, "removed", true), MC_ERR_OBJECT_NOT_FOUND);
        struct world_store store = world_store(&world, NODE_A, MIB, "a");
        struct mc_wire_mount mount = disk_mount(DISK_A);
        mount.epoch = FIRST_EPOCH;
        mount.slot_top = 4;
        mount.contact_age_ms = 660 * SECOND_MS;
        for (uint32_t i = 0; i < 4; i++)
            items[i] = earlier_item(i, keys[i]);
        for (unsigned told = 0; told < 2; told++) {
            struct mc_wire_mount_reply reply = world_mount(&world, store.owner, &mount);
            assert_int_equal(reply.code, 0);
            assert_int_equal(reply.inventory, 1);
            send_inventory(&world, store.owner, reply.segment, 0, told == 1, items, told == 1 ? 4 : 2);
            world_settle(&world, 100);
            world_check(&world);
            if (told == 1)
                break;
            world_disconnect(&world, store.owner);
            if (way == 1) /* it is given up, and swept */
                world_pass_beating(&world, 40 * SECOND_MS, here.heartbeat);
            store.owner = world_join(&world, MC_ROLE_OWNER, NODE_A, FIRST_LIFE);
            store.heartbeat = world_join(&world, MC_ROLE_HEARTBEAT, NODE_A, FIRST_LIFE);
            (void)world_beat(&world, store.heartbeat);
        }
        assert_int_equal(world_receive(&world, store.owner).type, MC_MESSAGE_INVENTORY_ACK);
        assert_int_equal(owner_clears(&world, store.owner), 1);
        world_settle(&world, 100);
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(world_exist(&world, client, keys[i]), i != 2);
        assert_int_equal(statistics_of(&world).disk_objects, 3);
        world_close_all(&world);
    }
}

/* ---- what is over, late or twice ---- */

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_disk_comes_back),
        cmocka_unit_test(test_disk_comes_back_with_another_size),
        cmocka_unit_test(test_numbers_of_a_smaller_size),
        cmocka_unit_test(test_empty_disk_comes_back_with_another_size),
        cmocka_unit_test(test_removed_while_away),
        cmocka_unit_test(test_disk_stays_away),
        cmocka_unit_test(test_disk_of_an_earlier_epoch_comes_late),
        cmocka_unit_test(test_disk_is_told_twice),
        cmocka_unit_test(test_late_disk_is_told_twice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
