/* The core against owners whose inventories cannot be true or break off, and what it does about rotten replicas,
 * overload and empty nodes. */
#include "core_owner.h"
#include "store/core/replica.h"

/* ---- lies ---- */

enum { ITEMS = 3, ITEM_BYTES = 1000, ITEM_ROOM = 4096, SLOT_TOP = 10 };
enum field { NOTHING, SLOT, STATE, REPLICA, GENERATION, OFFSET, LENGTH, KEY_LENGTH, SEQUENCE };

/* What is said otherwise than a true inventory of three objects would say it. */
struct change {
    enum field field;
    unsigned item;
    uint64_t value;
};
static const struct lie {
    const char *what;
    struct change changes[2];
} lies[] = {
    {"two that overlap", {{OFFSET, 1, 64}}},
    {"offsets that do not rise", {{OFFSET, 2, 2048}, {OFFSET, 1, 4096}}},
    {"a slot said twice", {{SLOT, 2, 0}}},
    {"a slot at slot_top", {{SLOT, 2, SLOT_TOP}}},
    {"the largest slot number", {{SLOT, 2, UINT32_MAX}}},
    {"an offset behind the segment", {{OFFSET, 2, MIB + MC_EXTENT_SLACK}}},
    {"an offset that wraps round", {{OFFSET, 2, UINT64_MAX - 63}}},
    {"a length that wraps round", {{LENGTH, 2, UINT64_MAX}}},
    {"an object of no bytes", {{LENGTH, 2, 0}}},
    {"an offset that is not aligned", {{OFFSET, 2, 2 * ITEM_ROOM + 1}}},
    {"no key", {{KEY_LENGTH, 2, 0}}},
    {"a key that is too long", {{KEY_LENGTH, 2, MC_KEY_LENGTH_MAX + 1}}},
    {"a generation of our time", {{GENERATION, 2, (uint64_t)NEXT_EPOCH << MC_EPOCH_SHIFT}}},
    {"a state that is none", {{STATE, 2, 3}}},
    {"a second replica before the first", {{GENERATION, 2, 2}, {REPLICA, 2, 2}}},
    {"a part that is missing", {{SEQUENCE, 0, 2}}},
    {"a hidden one whose length wraps round", {{STATE, 2, 2}, {LENGTH, 2, UINT64_MAX - 4}}},
};

static void change_item(struct mc_wire_inventory_item *items, uint32_t *sequence, const struct change *change)
{
    static const char key[MC_KEY_LENGTH_MAX + 1] = "x";
    struct mc_wire_inventory_item *item = &items[change->item];
    item->slot = change->field == SLOT ? (uint32_t)change->value : item->slot;
    item->state = change->field == STATE ? (uint8_t)change->value : item->state;
    item->replica = change->field == REPLICA ? (uint8_t)change->value : item->replica;
    item->generation = change->field == GENERATION ? change->value : item->generation;
    item->offset = change->field == OFFSET ? change->value : item->offset;
    item->length = change->field == LENGTH ? change->value : item->length;
    item->key = change->field == KEY_LENGTH ? mc_span(key, (size_t)change->value) : item->key;
    *sequence = change->field == SEQUENCE ? (uint32_t)change->value : *sequence;
}

static void tell_lie(struct world *world, const struct lie *lie, struct fake_owner *owner)
{
    struct mc_wire_inventory_item items[ITEMS];
    uint32_t sequence = 0;
    for (unsigned i = 0; i < ITEMS; i++)
        items[i] = (struct mc_wire_inventory_item){.slot = 2 * i,
                                                   .state = 1,
                                                   .generation = ((uint64_t)FIRST_EPOCH << MC_EPOCH_SHIFT) + 10 + i,
                                                   .offset = ITEM_ROOM * i,
                                                   .length = ITEM_BYTES,
                                                   .key = mc_span(&"abc"[i], 1)};
    for (unsigned i = 0; i < 2 && lie->changes[i].field != NOTHING; i++)
        change_item(items, &sequence, &lie->changes[i]);
    send_inventory(world, owner->owner, owner->segment, sequence, true, items, ITEMS);
    if (fake_obey(world, owner) != MC_ERR_STALE)
        fail_msg("believed: %s", lie->what);
}

static void test_lying_inventories(void **state)
{
    struct world world;
    (void)state;
    for (unsigned i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        world_start(&world, NEXT_EPOCH, NULL);
        struct fake_owner *a = fake(NODE_A);
        a->epoch = FIRST_EPOCH;
        a->contact_ms = world.now;
        a->slots[SLOT_TOP - 1].state = 1;
        assert_int_equal(fake_join(&world, a).inventory, 1);
        tell_lie(&world, &lies[i], a);
        world_pass(&world, GRACE_OVER_MS);
        assert_int_equal(statistics_of(&world).segments, 0);
        assert_int_equal(statistics_of(&world).objects, 0);
        assert_int_equal(world.core->segment_count, 0);
        send_inventory(&world, a->owner, a->segment, 1, true, NULL, 0); /* of what is gone */
        assert_int_equal(fake_obey(&world, a), MC_ERR_STALE);
        finish(&world, a, NULL);
    }
}

static int32_t tell_three(struct world *world, struct fake_owner *owner, const struct mc_span keys[ITEMS],
                          uint64_t group, uint8_t last_replica)
{
    struct mc_wire_inventory_item items[ITEMS];
    world_start(world, NEXT_EPOCH, NULL);
    owner->epoch = FIRST_EPOCH;
    owner->contact_ms = world->now;
    owner->slots[SLOT_TOP - 1].state = 1;
    assert_int_equal(fake_join(world, owner).inventory, 1);
    for (unsigned i = 0; i < ITEMS; i++)
        items[i] = (struct mc_wire_inventory_item){.slot = 2 * i,
                                                   .state = 1,
                                                   .generation = ((uint64_t)FIRST_EPOCH << MC_EPOCH_SHIFT) + 999 + i,
                                                   .offset = ITEM_ROOM * i,
                                                   .length = ITEM_BYTES,
                                                   .group = group,
                                                   .replica = i == ITEMS - 1 ? last_replica : 0,
                                                   .key = keys[i]};
    send_inventory(world, owner->owner, owner->segment, 0, true, items, ITEMS);
    return fake_obey(world, owner);
}

/* A writer says the number with his COMMIT, and owners of earlier releases keep it as it is: it costs him his value,
 * and nobody else his. */
static void test_one_that_its_writer_falsified(void **state)
{
    const struct mc_span keys[ITEMS] = {mc_span("a", 1), mc_span("b", 1), mc_span("c", 1)};
    struct world world;
    (void)state;
    struct fake_owner *a = fake(NODE_A);
    assert_int_equal(tell_three(&world, a, keys, 0, MC_REPLICA_COUNT_MAX + 1), 0);
    world_pass(&world, GRACE_OVER_MS);
    assert_int_equal(fake_obey(&world, a), 1);
    assert_int_equal(world.core->segment_count, 1);
    assert_int_equal(statistics_of(&world).objects, ITEMS - 1);
    assert_int_equal(statistics_of(&world).recovery_refused, 1);
    assert_int_equal(statistics_of(&world).clearing_bytes, 0);
    finish(&world, a, NULL);
}

/* Slots say groups as their writers said them. */
static void test_one_group_of_two_tenants_is_two(void **state)
{
    static const char blue[] = "\0blue\0k", red[] = "\0red\0k", red_too[] = "\0red\0l";
    const struct mc_span keys[ITEMS] = {mc_span(blue, sizeof(blue) - 1), mc_span(red, sizeof(red) - 1),
                                        mc_span(red_too, sizeof(red_too) - 1)};
    struct world world;
    (void)state;
    struct fake_owner *a = fake(NODE_A);
    assert_int_equal(tell_three(&world, a, keys, 7, 0), 0);
    assert_int_equal(statistics_of(&world).objects, ITEMS);
    assert_int_equal(world.core->groups.count, 2);
    finish(&world, a, NULL);
}

static void test_inventory_nobody_asked_for(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *a = start_with_owner(&world), *b = fake(NODE_B);
    assert_int_equal(fake_join(&world, b).code, 0);
    send_inventory(&world, a->owner, b->segment, 0, true, NULL, 0); /* not its own */
    assert_int_equal(fake_obey(&world, a), MC_ERR_STALE);
    assert_false(world.connections[a->owner].closed);
    send_inventory(&world, a->owner, a->segment, 0, true, NULL, 0);
    assert_true(world.connections[a->owner].closed);
    assert_int_equal(statistics_of(&world).segments, 2);
    finish(&world, a, b);
}

/* Broken off after any frame, or doubled there: what comes back whole is whole. */
static void test_broken_inventory(void **state)
{
    struct world world;
    (void)state;
    for (unsigned cut = 0; cut < 14; cut++) {
        struct fake_owner *a = start_with_owner(&world);
        put_numbered(&world, a, 20);
        crash(&world, NEXT_EPOCH, SHORTLY_MS);
        assert_int_equal(fake_join(&world, a).inventory, 1);
        assert_int_equal(a->epoch, NEXT_EPOCH);
        static struct fake_slot *order[SLOTS];
        uint32_t count = slots_in_order(a, order);
        assert_int_equal(count, 20);
        for (unsigned i = 0; i < cut % 7; i++) {
            struct mc_wire_inventory_item items[3];
            for (unsigned j = 0; j < 3; j++)
                items[j] = item_of(a, order[i * 3 + j]);
            send_inventory(&world, a->owner, a->segment, i, false, items, 3);
        }
        if (cut > 7) { /* the last one twice */
            struct mc_wire_inventory_item again = item_of(a, order[0]);
            send_inventory(&world, a->owner, a->segment, cut % 7 - 1, false, &again, 1);
            assert_int_equal(fake_obey(&world, a), MC_ERR_STALE);
            world_pass(&world, 200);
            assert_int_equal(statistics_of(&world).objects, 0);
            finish(&world, a, NULL);
            continue;
        }
        if (cut % 2 == 0) { /* its connection ends, or its process */
            world_disconnect(&world, a->owner);
        } else {
            world_disconnect(&world, a->owner);
            world_disconnect(&world, a->heartbeat);
            a->node = 7;
        }
        world_pass(&world, 500);
        a->contact_ms = world.now - 4000; /* what counts is the contact with the master that had it */
        come_back(&world, a);
        expect_numbered(&world, a, 20);
        assert_int_equal(world.core->segment_count, 1);
        finish(&world, a, NULL);
    }
}

static void test_segment_leaves_amid_its_inventory(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *a = start_with_owner(&world), *b = fake(NODE_B);
    put_numbered(&world, a, 20);
    crash(&world, NEXT_EPOCH, SHORTLY_MS);
    assert_int_equal(fake_join(&world, b).code, 0);
    assert_int_equal(fake_join(&world, a).inventory, 1);
    struct mc_wire_inventory_item item = item_of(a, held(a, "k0"));
    send_inventory(&world, a->owner, a->segment, 1, false, &item, 1); /* numbers from 1 are as good */
    /* A removal is not taken before all is known. */
    const char *name = "k0";
    assert_int_equal(world_remove(&world, b->call, name, true), MC_ERR_BUSY);
    world_disconnect(&world, a->owner);
    world_disconnect(&world, a->heartbeat);
    world_pass(&world, MC_DEPART_MS + 100);
    for (unsigned i = 0; i < 7; i++) {
        world_beat(&world, b->heartbeat);
        world_pass(&world, SECOND_MS);
    }
    assert_int_equal(world.core->segment_count, 1); /* swept */
    finish(&world, a, b);
}

/* More epochs than the table of bases holds. */
static void test_too_many_epochs(void **state)
{
    struct world world;
    (void)state;
    world_start(&world, 10000000, NULL);
    struct fake_owner *a = fake(NODE_A);
    a->epoch = 9999999;
    a->contact_ms = world.now;
    for (unsigned i = 0; i < 300; i++) {
        a->slots[i] = (struct fake_slot){.generation = ((uint64_t)(i + 1) * 10000 << MC_EPOCH_SHIFT) + 5,
                                         .offset = 1024 * i,
                                         .length = 700,
                                         .state = 1};
        (void)snprintf(a->slots[i].key, sizeof(a->slots[i].key), "k%u", i);
    }
    come_back(&world, a);
    assert_int_equal(statistics_of(&world).objects, MC_BASES_MAX);
    assert_int_equal(statistics_of(&world).clearing_bytes, 0); /* the others were cleared under their true names */
    assert_int_equal(found(&world, a, "k0"), 700);
    assert_int_equal(found(&world, a, "k299"), 0);
    finish(&world, a, NULL);
}

/* ---- rotten replicas, overload ---- */

static void say_slots(struct world *world, uint64_t from, enum mc_message type, uint32_t segment,
                      const struct mc_wire_slot *slots, uint32_t count)
{
    static struct world_told told;
    told = (struct world_told){.segment = segment, .count = count};
    memcpy(told.slots, slots, count * sizeof(*slots));
    world_owner_says(world, from, type, &told);
    world_check(world);
}

static uint32_t checks_of(struct world *world, uint64_t owner)
{
    struct mc_frame frame = world_receive(world, owner);
    struct mc_reader reader = mc_reader(frame.body.data, frame.body.length);
    struct mc_wire_segment head;
    if (frame.type == 0)
        return 0;
    assert_int_equal(frame.type, MC_MESSAGE_CHECK);
    mc_wire_segment_read(&reader, &head);
    return mc_list_read(&reader);
}

static void test_rotten(void **state)
{
    struct world world;
    struct mc_wire_slot slots[40];
    char key[24];
    (void)state;
    struct fake_owner *a = start_with_owner(&world);
    for (unsigned i = 0; i < 40; i++) {
        (void)snprintf(key, sizeof(key), "k%u", i);
        assert_int_equal(fake_put(&world, a, key, SMALL, 0), 0);
    }
    uint32_t count = 0;
    for (uint32_t i = 0; i < SLOTS && count < 40; i++)
        if (a->slots[i].state == 1)
            slots[count++] = (struct mc_wire_slot){.slot = i, .generation = a->slots[i].generation};
    assert_int_equal(count, 40);
    say_slots(&world, a->call, MC_MESSAGE_ROTTEN, a->segment, slots, 2);
    assert_int_equal(checks_of(&world, a->owner), 2);
    say_slots(&world, a->call, MC_MESSAGE_ROTTEN, a->segment, slots, 2); /* is being looked at */
    assert_int_equal(checks_of(&world, a->owner), 0);
    say_slots(&world, a->call, MC_MESSAGE_ROTTEN, a->segment, slots, 40);
    assert_int_equal(checks_of(&world, a->owner), 14);
    say_slots(&world, a->call, MC_MESSAGE_ROTTEN, a->segment, &slots[20], 20);
    assert_int_equal(checks_of(&world, a->owner), 0);
    assert_int_equal(statistics_of(&world).objects, 40); /* a reader's word drops nothing */
    struct mc_wire_slot wrong = slots[0];
    wrong.generation++;
    say_slots(&world, a->owner, MC_MESSAGE_LOST, a->segment, &wrong, 1);
    assert_int_equal(statistics_of(&world).objects, 40);
    say_slots(&world, a->owner, MC_MESSAGE_LOST, a->segment, slots, 2);
    say_slots(&world, a->owner, MC_MESSAGE_LOST, a->segment, slots, 2);
    assert_int_equal(statistics_of(&world).objects, 38);
    assert_int_equal(statistics_of(&world).rotten_replicas, 2);
    (void)fake_obey(&world, a);
    assert_int_equal(statistics_of(&world).clearing_bytes, 0);
    say_slots(&world, a->call, MC_MESSAGE_ROTTEN, a->segment, &slots[20], 20);
    assert_int_equal(checks_of(&world, a->owner), 2); /* as many as have ended */
    world_pass(&world, 3 * SECOND_MS);
    world_beat(&world, a->heartbeat);
    world_pass(&world, 4 * SECOND_MS);
    world_beat(&world, a->heartbeat);
    world_pass(&world, DEPARTED_MS);
    say_slots(&world, a->call, MC_MESSAGE_ROTTEN, a->segment, &slots[20], 20);
    assert_int_equal(checks_of(&world, a->owner), 16);
    finish(&world, a, NULL);
}

/* Five full segments and one that is empty: it does not get everything. */
static void test_fair_share(void **state)
{
    struct world world;
    struct world_store stores[5];
    uint64_t placed[5] = {0}, total = 0;
    static struct world_grants grants;
    static char keys[64][24];
    struct world_item items[64];
    const struct world_wish anywhere = {0};
    const uint64_t capacity = 8ull << 30;
    (void)state;
    world_open(&world);
    for (unsigned i = 0; i < 5; i++)
        stores[i] = world_store(&world, 5 + i, capacity, "n");
    for (unsigned i = 0; i < 4; i++) /* 80 % of each of four is in use already */
        for (unsigned j = 0; j < 4; j++) {
            struct mc_segment *segment = world.core->segments[stores[i].segment % MC_SEGMENTS_MAX];
            uint32_t slot = mc_space_allocate(&segment->space, capacity / 5 / 64);
            assert_int_not_equal(slot, MC_NODE_NONE);
            segment->used += mc_segment_node(segment, slot)->size;
            mc_node_clear(world.core, segment, slot, NULL);
        }
    for (unsigned round = 0; round < 30; round++) {
        for (unsigned i = 0; i < 64; i++) {
            (void)snprintf(keys[i], sizeof(keys[i]), "r%u-%u", round, i);
            items[i] = (struct world_item){mc_span_string(keys[i]), 1 << 20};
        }
        world_put_start(&world, stores[0].call, round, items, 64, &anywhere, &grants);
        for (uint32_t i = 0; i < grants.place_count; i++)
            for (unsigned s = 0; s < 5; s++)
                placed[s] += grants.places[i].segment == stores[s].segment;
        total += grants.place_count;
        world.now += 20;
    }
    assert_int_equal(total, 30 * 64);
    assert_true(placed[4] <= total * 2 / 5 + 130); /* and the slack of capacity / 64 */
    assert_true(placed[4] >= total / 4);           /* it is the freest */
    world_close_all(&world);
}

static void test_busy_says_when(void **state)
{
    struct world world;
    (void)state;
    struct world_store store = world_open_one(&world);
    world.core->waits.limit = 0;
    const char *key = "k";
    world_remove_send(&world, store.call, &key, 1, true);
    struct mc_frame frame = world_receive(&world, store.call);
    assert_int_equal(frame.type, MC_MESSAGE_FAILED);
    struct mc_reader reader = mc_reader(frame.body.data, frame.body.length);
    struct mc_wire_failed failed;
    mc_wire_failed_read(&reader, &failed);
    assert_int_equal(failed.code, MC_ERR_BUSY);
    assert_in_range(failed.retry_after_ms, 50, 100);
    world_close_all(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lying_inventories),
        cmocka_unit_test(test_one_that_its_writer_falsified),
        cmocka_unit_test(test_one_group_of_two_tenants_is_two),
        cmocka_unit_test(test_inventory_nobody_asked_for),
        cmocka_unit_test(test_broken_inventory),
        cmocka_unit_test(test_segment_leaves_amid_its_inventory),
        cmocka_unit_test(test_too_many_epochs),
        cmocka_unit_test(test_rotten),
        cmocka_unit_test(test_fair_share),
        cmocka_unit_test(test_busy_says_when),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
