/* Firm pins: what has one is not evicted before its deadline, under whichever master, and there are only so many. */
#include "core_moves.h"
#include "store/core/account.h"
#include "store/core/recover.h"
#include "store/core/replica.h"
#include "store/segment/layout.h"

#define PIN_MS 5000u
#define FIRM (MC_PUT_SOFT_PIN | MC_PUT_FIRM_PIN)
#define LARGE 100000u
#define BUDGET (MIB / 4) /* of the one segment: two of LARGE, and not three */

static const struct world_wish for_a_while = {.flags = FIRM, .pin_ms = PIN_MS};
static const struct world_wish or_not = {.flags = FIRM | MC_PUT_OR_NOT, .pin_ms = PIN_MS};

/* A put of one replica to the only owner, which does what it is told. */
static int32_t put(struct world *world, struct fake_owner *owner, const char *key, uint64_t length,
                   const struct world_wish *wish)
{
    struct mc_wire_place place;
    int32_t code = world_grant(world, owner->call, PUT_1, key, length, wish, &place);
    world_check(world);
    if (code != 0)
        return code;
    uint32_t pins = (wish->flags & MC_PUT_HARD_PIN) | (world->pin_ms > 0 ? MC_PUT_SOFT_PIN : 0u) |
                    (world->is_firm ? MC_PUT_FIRM_PIN : 0u);
    fake_write(owner, &place, key, length, (uint8_t)pins, 1);
    held(owner, key)->pin_ms = world->pin_ms;
    world_live(world, owner->owner, &place);
    (void)fake_obey(world, owner);
    world_check(world);
    return world_put_done(world, owner->call, PUT_1);
}

static void expect_firm(const struct world *world, uint64_t objects, uint64_t length)
{
    struct mc_core_statistics statistics = statistics_of(world);
    world_check(world);
    assert_int_equal(statistics.firm_pinned, objects);
    assert_int_equal(statistics.firm_bytes, objects * mc_extent_size(length, 1));
}

/* Time passes, in which the owner is heard. */
static void pass(struct world *world, struct fake_owner *owner, uint64_t ms)
{
    world_pass_beating(world, ms, owner->heartbeat);
}

static uint64_t left_ms(const struct world *world, const char *key)
{
    return mc_core_firm_left_ms(world->core, mc_span_string(key));
}

static void test_stays_until_its_time_is_over(void **state)
{
    struct world world;
    char key[32];
    const struct world_wish soft = {.flags = MC_PUT_SOFT_PIN, .pin_ms = 10 * PIN_MS};
    (void)state;
    struct world_store store = world_open_one(&world);
    assert_int_equal(world_put_hard(&world, &store, "firm", 4000, &for_a_while), 0);
    assert_true(world.is_firm && world.pin_ms == PIN_MS);
    for (unsigned i = 0; i < 500; i++) /* soft pins go when nothing else is there */
        assert_int_equal(world_put_hard(&world, &store, world_name(key, "a", i), 4000, &soft), 0);
    assert_int_equal(world_exist(&world, store.call, "firm"), 1);
    assert_int_equal(statistics_of(&world).firm_pinned, 1);
    assert_true(statistics_of(&world).evicted_objects > 0);
    world_pass_beating(&world, PIN_MS, store.heartbeat);
    assert_int_equal(statistics_of(&world).firm_pinned, 0);
    assert_int_equal(statistics_of(&world).firm_bytes, 0);
    assert_int_equal(statistics_of(&world).firm_pins_expired, 1);
    for (unsigned i = 0; i < 1000; i++)
        assert_int_equal(world_put_hard(&world, &store, world_name(key, "b", i), 4000, NULL), 0);
    assert_int_equal(world_exist(&world, store.call, "firm"), 0);
    world_close_all(&world);
}

/* Beyond the budget a soft pin is given, or the put refused; what goes or is over gives back what it counted. */
static void test_budget(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *a = start_with_owner(&world);
    assert_int_equal(statistics_of(&world).firm_budget, BUDGET);
    assert_int_equal(put(&world, a, "a", LARGE, &for_a_while), 0);
    assert_int_equal(put(&world, a, "b", LARGE, &or_not), 0);
    expect_firm(&world, 2, LARGE);
    assert_int_equal(put(&world, a, "c", LARGE, &or_not), MC_ERR_FIRM_PIN_REFUSED);
    assert_int_equal(found(&world, a, "c"), 0);
    assert_int_equal(put(&world, a, "c", LARGE, &for_a_while), 0);
    assert_true(!world.is_firm && world.pin_ms == PIN_MS);
    assert_int_equal(left_ms(&world, "c"), 0);
    assert_int_equal(statistics_of(&world).firm_pins_refused, 2);
    assert_int_equal(statistics_of(&world).soft_pinned, 1);
    expect_firm(&world, 2, LARGE);
    assert_int_equal(fake_remove(&world, a, a, "a"), 0);
    expect_firm(&world, 1, LARGE);
    pass(&world, a, 2000);
    assert_int_equal(put(&world, a, "d", LARGE, &or_not), 0);
    pass(&world, a, PIN_MS - 2000 + 100);
    expect_firm(&world, 1, LARGE);
    assert_true(left_ms(&world, "d") <= 2000 && left_ms(&world, "d") > 1000);
    assert_int_equal(put(&world, a, "e", LARGE, &or_not), 0);
    finish(&world, a, NULL);
}

/* A small value takes a slot, of which there are so many. */
static void test_small_ones_count_as_a_slot(void **state)
{
    struct world world;
    char key[32];
    (void)state;
    struct fake_owner *a = start_with_owner(&world);
    for (unsigned i = 0; i < BUDGET / MC_SLOT_BYTES_PER_OBJECT; i++)
        assert_int_equal(put(&world, a, world_name(key, "k", i), 1, &or_not), 0);
    assert_int_equal(statistics_of(&world).firm_bytes, BUDGET);
    assert_int_equal(put(&world, a, "more", 1, &or_not), MC_ERR_FIRM_PIN_REFUSED);
    finish(&world, a, NULL);
}

/* What is being put counts, and what fails no more. */
static void test_grants_count(void **state)
{
    struct world world;
    struct mc_wire_place places[2];
    (void)state;
    struct fake_owner *a = start_with_owner(&world);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(world_grant(&world, a->call, PUT_1 + i, i == 0 ? "a" : "b", LARGE, &or_not, &places[i]), 0);
    assert_int_equal(put(&world, a, "c", LARGE, &or_not), MC_ERR_FIRM_PIN_REFUSED);
    world_revoke(&world, a->call, &places[0]);
    world_check(&world);
    assert_int_equal(world_put_done(&world, a->call, PUT_1), MC_ERR_TRANSFER_FAIL);
    assert_int_equal(statistics_of(&world).firm_bytes, mc_extent_size(LARGE, 1));
    assert_int_equal(put(&world, a, "c", LARGE, &or_not), 0);
    finish(&world, a, NULL);
}

static void test_upserts(void **state)
{
    struct world world;
    const struct world_wish anew = {.flags = or_not.flags | MC_PUT_REPLACE | MC_PUT_KEEP_PIN, .pin_ms = 2 * PIN_MS};
    const struct world_wish keep = {.flags = MC_PUT_REPLACE | MC_PUT_KEEP_PIN}, drop = {.flags = MC_PUT_REPLACE};
    (void)state;
    struct fake_owner *a = start_with_owner(&world);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(put(&world, a, i == 0 ? "a" : "b", LARGE, &or_not), 0);
    assert_int_equal(put(&world, a, "a", LARGE, &anew), 0); /* what it adds counts, which is nothing */
    expect_firm(&world, 2, LARGE);
    pass(&world, a, 2000);
    assert_int_equal(put(&world, a, "b", LARGE, &keep), 0);
    assert_true(world.is_firm && world.pin_ms <= PIN_MS - 1900);
    expect_firm(&world, 2, LARGE);
    assert_int_equal(put(&world, a, "b", 2 * LARGE, &anew), MC_ERR_FIRM_PIN_REFUSED);
    expect_firm(&world, 2, LARGE);
    assert_int_equal(put(&world, a, "b", 2 * LARGE, &keep), 0); /* too large: but for its deadline */
    assert_true(!world.is_firm && world.pin_ms > 0);
    expect_firm(&world, 1, LARGE);
    assert_int_equal(statistics_of(&world).soft_pinned, 1);
    assert_int_equal(put(&world, a, "a", LARGE, &drop), 0);
    expect_firm(&world, 0, LARGE);
    finish(&world, a, NULL);
}

/* Another place of the value has its pin, whatever who copies believes; one place more only while there is room. */
static void test_copies(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    struct fake_owner *a = start_with_owner(&world);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(put(&world, a, i == 0 ? "a" : "b", LARGE, &or_not), 0);
    world.core->config.firm_pin_ratio = 0.01; /* as if others had left */
    pass(&world, a, 1000);
    assert_int_equal(world_get(&world, a->call, "a", 0, NULL, &place), 0);
    struct world_wish copy = {.flags = MC_PUT_REPLACE, .expected = place.generation - place.replica};
    assert_int_equal(put(&world, a, "a", LARGE, &copy), 0);
    assert_true(world.is_firm && world.pin_ms <= PIN_MS - 900);
    expect_firm(&world, 2, LARGE);
    assert_int_equal(world_get(&world, a->call, "a", 0, NULL, &place), 0);
    copy =
        (struct world_wish){.flags = MC_PUT_REPLACE, .expected = place.generation - place.replica, .replica_count = 2};
    assert_int_equal(put(&world, a, "a", LARGE, &copy), MC_ERR_NO_AVAILABLE_HANDLE);
    expect_firm(&world, 2, LARGE);
    finish(&world, a, NULL);
}

/* What is there is pinned otherwise: put in place of itself, with a pin of its own. */
static void test_another_pin(void **state)
{
    struct world world;
    struct mc_wire_place place;
    const struct {
        uint32_t flags;
        uint64_t pin_ms;
        int32_t code;
        bool is_firm, is_soft, is_hard;
    } rows[] = {
        {FIRM | MC_PUT_OR_NOT, PIN_MS, 0, true, true, true},
        {FIRM | MC_PUT_OR_NOT, 2 * PIN_MS, 0, true, true, true},
        {FIRM | MC_PUT_OR_NOT | MC_PUT_KEEP_PIN, PIN_MS, 0, true, true, true},
        {MC_PUT_SOFT_PIN, PIN_MS, 0, false, true, false},
        {0, 0, 0, false, false, false},
        {MC_PUT_HARD_PIN, 0, 0, false, false, true},
        {0, 0, 0, false, false, false},
    };
    (void)state;
    struct fake_owner *a = start_with_owner(&world);
    assert_int_equal(put(&world, a, "k", LARGE, &(struct world_wish){0}), 0);
    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_int_equal(world_get(&world, a->call, "k", 0, NULL, &place), 0);
        const struct world_wish wish = {.flags = rows[i].flags | MC_PUT_REPLACE | MC_PUT_NEW_PIN,
                                        .pin_ms = rows[i].pin_ms,
                                        .expected = place.generation - place.replica};
        assert_int_equal(put(&world, a, "k", LARGE, &wish), rows[i].code);
        const struct mc_object *object = mc_object_find(world.core, mc_span_string("k"));
        assert_int_equal(object->soft, rows[i].is_soft);
        assert_int_equal(object->hard, rows[i].is_hard);
        assert_int_equal(mc_pin_left_ms(world.core, object), rows[i].pin_ms);
        expect_firm(&world, rows[i].is_firm, LARGE);
    }
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(put(&world, a, i == 0 ? "a" : "b", LARGE, &or_not), 0);
    assert_int_equal(world_get(&world, a->call, "k", 0, NULL, &place), 0);
    struct world_wish wish = {.flags = or_not.flags | MC_PUT_REPLACE | MC_PUT_NEW_PIN,
                              .pin_ms = PIN_MS,
                              .expected = place.generation - place.replica};
    assert_int_equal(put(&world, a, "k", LARGE, &wish), MC_ERR_FIRM_PIN_REFUSED);
    assert_int_equal(found(&world, a, "k"), LARGE);
    wish.flags &= ~(uint32_t)MC_PUT_OR_NOT;
    assert_int_equal(put(&world, a, "k", LARGE, &wish), 0);
    assert_true(!world.is_firm && world.pin_ms == PIN_MS);
    finish(&world, a, NULL);
}

static struct world_wish another_pin(struct world *world, uint64_t call, const char *key, uint32_t flags)
{
    struct mc_wire_place place;
    assert_int_equal(world_get(world, call, key, 0, NULL, &place), 0);
    return (struct world_wish){.flags = flags | MC_PUT_REPLACE | MC_PUT_NEW_PIN,
                               .pin_ms = PIN_MS,
                               .expected = place.generation - place.replica};
}

/* No replica is given up for another pin. */
static void test_another_pin_of_two_replicas(void **state)
{
    struct world world;
    struct mc_wire_place place;
    char key[32];
    (void)state;
    struct mc_core_config config = mc_core_config_default();
    config.tenants = true;
    config.firm_pin_ratio = 0.5;
    world_open_with(&world, &config);
    struct world_store a = world_store(&world, NODE_A, MIB, "a"), b = world_store(&world, NODE_B, MIB, "b");
    const struct world_item item = {mc_span_string("k"), LARGE};
    const struct world_wish both = {.flags = or_not.flags, .pin_ms = 100 * PIN_MS, .replica_count = 2};
    const struct world_wish hard = {.flags = MC_PUT_HARD_PIN, .preferred = {"b"}};
    world_put_both(&world, &a, &b, &item, &both);
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(world_put_place(&world, b.call, b.owner, world_name(key, "b", i), LARGE, &hard, &place), 0);
    assert_int_equal(place.segment, b.segment);
    struct world_wish wish = another_pin(&world, a.call, "k", FIRM);
    wish.replica_count = 2;
    assert_int_equal(world_grant(&world, a.call, PUT_2, "k", LARGE, &wish, &place), MC_ERR_NO_AVAILABLE_HANDLE);
    world_check(&world);
    assert_int_equal(statistics_of(&world).firm_bytes, 2 * mc_extent_size(LARGE, 1));
    world_close_all(&world);
}

/* What is said is never longer than what the slot says, which counts from when it is written. */
static void test_counts_from_the_grant(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    struct fake_owner *a = start_with_owner(&world);
    for (unsigned way = 0; way < 2; way++) { /* at once, and in place of what is there */
        const struct world_wish wish = {.flags = or_not.flags | (way == 0 ? 0 : MC_PUT_REPLACE), .pin_ms = PIN_MS};
        assert_int_equal(world_grant(&world, a->call, PUT_1, "k", LARGE, &wish, &place), 0);
        assert_int_equal(world.pin_ms, PIN_MS);
        fake_write(a, &place, "k", LARGE, (uint8_t)FIRM, 1);
        pass(&world, a, 3000);
        world_live(&world, a->owner, &place);
        (void)fake_obey(&world, a);
        assert_int_equal(world_put_done(&world, a->call, PUT_1), 0);
        assert_in_range(left_ms(&world, "k"), PIN_MS - 3100, PIN_MS - 3000);
    }
    finish(&world, a, NULL);
}

/* A writer that prefers one segment does not fill it: what was stored there before has room to come back, and others
 * take the rest. Where all are so full, nothing is promised. */
static void test_part_of_a_segment(void **state)
{
    struct world world;
    struct mc_wire_place place;
    struct world_store stores[4];
    char key[32];
    unsigned there = 0;
    (void)state;
    world_open(&world);
    for (unsigned i = 0; i < 4; i++)
        stores[i] = world_store(&world, NODE_A + i, MIB, world_name(key, "s", i));
    struct world_wish wish = {.flags = or_not.flags, .pin_ms = PIN_MS, .preferred = {"s0"}};
    for (unsigned i = 0; i < 10; i++) {
        assert_int_equal(world_grant(&world, stores[0].call, PUT_1, world_name(key, "k", i), LARGE, &wish, &place), 0);
        assert_true(world.is_firm);
        there += place.segment == stores[0].segment;
        for (unsigned store = 0; store < 4; store++)
            if (place.segment == stores[store].segment)
                world_live(&world, stores[store].owner, &place);
        assert_int_equal(world_put_done(&world, stores[0].call, PUT_1), 0);
        world_check(&world);
    }
    assert_int_equal(there, 5);
    wish = another_pin(&world, stores[0].call, "k0", or_not.flags); /* it is there already */
    wish.preferred[0] = "s0";
    assert_int_equal(world_grant(&world, stores[0].call, PUT_1, "k0", LARGE, &wish, &place), 0);
    assert_int_equal(place.segment, stores[0].segment);
    world_close_all(&world);
}

static void test_beside_hard_pins(void **state)
{
    struct world world;
    char key[32];
    const struct world_wish hard = {.flags = MC_PUT_HARD_PIN};
    (void)state;
    struct fake_owner *a = start_with_owner(&world);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(put(&world, a, world_name(key, "h", i), LARGE, &hard), 0);
    assert_int_equal(put(&world, a, "k", LARGE, &or_not), MC_ERR_FIRM_PIN_REFUSED);
    assert_int_equal(put(&world, a, "k", LARGE, &for_a_while), 0);
    assert_true(!world.is_firm && world.pin_ms == PIN_MS);
    finish(&world, a, NULL);
}

/* A copy goes to an owner that can keep the promise, if there is one. */
static void test_copy_beside_an_earlier_owner(void **state)
{
    struct world world;
    struct mc_wire_place place;
    uint64_t features = world_features;
    (void)state;
    struct world_store a = world_open_one(&world);
    assert_int_equal(world_put_place(&world, a.call, a.owner, "k", LARGE, &or_not, &place), 0);
    world_features = 0;
    struct world_store b = world_store(&world, NODE_B, MIB, "b");
    world_features = features;
    assert_int_equal(world_get(&world, a.call, "k", 0, NULL, &place), 0);
    struct world_wish copy = {.flags = MC_PUT_REPLACE, .expected = place.generation, .preferred = {"b"}};
    assert_int_equal(world_grant(&world, a.call, PUT_2, "k", LARGE, &copy, &place), 0);
    assert_int_equal(place.segment, a.segment);
    assert_true(world.is_firm);
    world_revoke(&world, a.call, &place);
    (void)world_put_done(&world, a.call, PUT_2);
    (void)world_owner_obeys(&world, a.owner);
    copy.avoided[0] = a.segment;
    assert_int_equal(world_grant(&world, a.call, PUT_2, "k", LARGE, &copy, &place), 0);
    assert_int_equal(place.segment, b.segment);
    assert_true(world.is_firm);
    assert_int_equal(world_grant(&world, a.call, PUT_3, "new", LARGE,
                                 &(struct world_wish){.flags = or_not.flags, .pin_ms = PIN_MS, .preferred = {"b"}},
                                 &place),
                     0);
    assert_int_equal(place.segment, a.segment);
    world_close_all(&world);
}

/* What a disk had before, it is given again at once, and not only when memory is short. */
static void test_another_pin_of_what_a_disk_has(void **state)
{
    struct world world;
    static struct moves moves;
    static struct world_told told;
    struct mc_wire_place place;
    struct mc_core_config config = mc_core_config_default();
    (void)state;
    config.offload = MC_OFFLOAD_ON_EVICT;
    world_open_with(&world, &config);
    struct world_store store = world_store(&world, NODE_A, MIB, "a");
    struct mc_wire_mount mount = disk_mount(DISK_A);
    assert_int_equal(world_mount(&world, store.owner, &mount).code, 0);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", LARGE), 0);
    assert_true(mc_offload_store(world.core, mc_object_find(world.core, mc_span_string("k"))));
    (void)mc_core_tick(world.core, world.now);
    told_moves(&world, store.owner, &moves);
    owner_did(&world, store.owner, &moves, 0);
    assert_int_equal(on_disk(&world, "k"), 1);
    struct world_wish wish = another_pin(&world, store.call, "k", or_not.flags);
    for (unsigned i = 0; i < 2; i++) { /* as another place is; then what no disk has is not stored */
        assert_int_equal(world_grant(&world, store.call, PUT_1, "k", LARGE, &wish, &place), 0);
        world_live(&world, store.owner, &place);
        for (unsigned left = 2 - i; left > 0; left -= told.count) {
            world_owner_told(&world, store.owner, &told);
            assert_int_equal(told.type, MC_MESSAGE_CLEAR);
            world_owner_says(&world, store.owner, MC_MESSAGE_CLEARED, &told);
        }
        world_settle(&world, 10);
        assert_int_equal(world_put_done(&world, store.call, PUT_1), 0);
        world_check(&world);
        told_moves(&world, store.owner, &moves);
        assert_int_equal(moves.type, i == 0 ? MC_MESSAGE_STORE : 0);
        if (i == 1)
            break;
        owner_did(&world, store.owner, &moves, MC_ERR_TRANSFER_FAIL);
        (void)mc_core_tick(world.core, world.now);
        (void)owner_clears(&world, store.owner);
        wish = another_pin(&world, store.call, "k", or_not.flags);
    }
    world_close_all(&world);
}

/* A later master keeps the promise, also where it would give none; and then it is over in time. */
static void test_masters_end(void **state)
{
    struct world world;
    struct mc_core_config config = mc_core_config_default();
    (void)state;
    struct fake_owner *a = start_with_owner(&world);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(put(&world, a, i == 0 ? "a" : "b", LARGE, &or_not), 0);
    assert_int_equal(put(&world, a, "c", SMALL, &or_not), 0);
    config.firm_pin_ratio = 0.01;
    master_stop(&world);
    world.now += 500;
    master_start(&world, NEXT_EPOCH, &config);
    held(a, "a")->pin_ms = held(a, "b")->pin_ms = 4000;
    held(a, "c")->pin_ms = 0;
    held(a, "c")->flags = 0; /* it was over when it was told */
    come_back(&world, a);
    expect_firm(&world, 2, LARGE);
    assert_true(left_ms(&world, "a") > 2000);
    assert_int_equal(put(&world, a, "d", SMALL, &or_not), MC_ERR_FIRM_PIN_REFUSED);
    pass(&world, a, 4000);
    assert_int_equal(left_ms(&world, "a"), 0);
    assert_int_equal(found(&world, a, "a"), LARGE);
    assert_int_equal(put(&world, a, "d", SMALL, &or_not), 0);
    finish(&world, a, NULL);
}

/* A master that knows no soft pins at all keeps none, whatever the one before it has promised. */
static void test_a_master_without_soft_pins(void **state)
{
    struct world world;
    struct mc_core_config config = mc_core_config_default();
    (void)state;
    struct fake_owner *a = start_with_owner(&world);
    assert_int_equal(put(&world, a, "a", LARGE, &or_not), 0);
    config.soft_pin_ttl_ms = config.soft_pin_max_ms = 0;
    master_stop(&world);
    master_start(&world, NEXT_EPOCH, &config);
    come_back(&world, a);
    assert_int_equal(found(&world, a, "a"), LARGE);
    expect_firm(&world, 0, LARGE);
    finish(&world, a, NULL);
}

/* Nothing is promised that only this master would keep; an owner of an earlier release writes no firm pins. */
static void test_earlier_owner(void **state)
{
    struct world world;
    uint64_t features = world_features;
    (void)state;
    world_features = 0;
    struct fake_owner *a = start_with_owner(&world);
    world_features = features;
    assert_int_equal(put(&world, a, "a", SMALL, &or_not), MC_ERR_FIRM_PIN_REFUSED);
    assert_int_equal(put(&world, a, "a", SMALL, &for_a_while), 0);
    assert_true(!world.is_firm && world.pin_ms == PIN_MS);
    expect_firm(&world, 0, SMALL);
    finish(&world, a, NULL);
}

static void test_wishes_of_all_kinds(void **state)
{
    struct world world;
    struct mc_core_config config = mc_core_config_default();
    const struct world_wish hard = {.flags = or_not.flags | MC_PUT_HARD_PIN, .pin_ms = PIN_MS};
    const struct world_wish alone = {.flags = MC_PUT_FIRM_PIN, .pin_ms = PIN_MS}, plain = {.flags = or_not.flags};
    (void)state;
    config.soft_pin_ttl_ms = 0;
    world_start(&world, FIRST_EPOCH, &config);
    struct fake_owner *a = fake(NODE_A);
    assert_int_equal(fake_join(&world, a).code, 0);
    assert_int_equal(put(&world, a, "hard", SMALL, &hard), 0); /* which is more */
    assert_int_equal(put(&world, a, "alone", SMALL, &alone), 0);
    assert_int_equal(put(&world, a, "plain", SMALL, &plain), 0); /* no time, and no default of it */
    expect_firm(&world, 0, SMALL);
    finish(&world, a, NULL);
}

/* Owners that leave take with them what they count. */
static void test_owner_leaves(void **state)
{
    struct world world;
    (void)state;
    struct world_store a = world_open_one(&world);
    struct world_store b = world_store(&world, NODE_B, MIB, "b");
    const struct world_item item = {mc_span_string("k"), LARGE};
    const struct world_wish both = {.flags = or_not.flags, .pin_ms = 100 * PIN_MS, .replica_count = 2};
    world_put_both(&world, &a, &b, &item, &both);
    assert_int_equal(statistics_of(&world).firm_bytes, 2 * mc_extent_size(LARGE, 1));
    size_t frame = world_begin(&world, MC_MESSAGE_UNMOUNT, 6);
    mc_wire_unmount_write(&world.frame, &(struct mc_wire_unmount){.segment = b.segment});
    world_send(&world, b.owner, frame);
    world_settle(&world, 1000);
    expect_firm(&world, 1, LARGE);
    assert_int_equal(world_exist(&world, a.call, "k"), 1);
    world_close_all(&world);
}

/* Of what cannot be read just now, or lies on a disk alone, it is not said that it is kept. */
static void test_what_is_said(void **state)
{
    struct world world;
    struct mc_wire_found item;
    (void)state;
    struct fake_owner *a = start_with_owner(&world);
    assert_int_equal(put(&world, a, "k", LARGE, &or_not), 0);
    assert_int_equal(world_get(&world, a->call, "k", MC_GET_NO_LEASE, &item, NULL), 0);
    assert_true(item.pin_ms == PIN_MS && item.pins == (MC_PUT_SOFT_PIN | MC_PUT_FIRM_PIN));
    assert_int_equal(left_ms(&world, "k"), PIN_MS);
    assert_int_equal(world_get(&world, a->call, "k", 0, &item, NULL), 0);
    assert_int_equal(item.pin_ms, 0); /* nobody asks */
    world_disconnect(&world, a->owner);
    assert_int_equal(left_ms(&world, "k"), 0);
    finish(&world, a, NULL);
}

/* So much of a tenant's quota. */
static void test_tenants(void **state)
{
    struct world world;
    struct mc_core_config config = mc_core_config_default();
    const struct mc_core_quota quota = {.bytes = 2 * LARGE};
    struct mc_wire_place place;
    (void)state;
    config.tenants = config.quotas = true;
    world_open_with(&world, &config);
    struct world_store store = world_store(&world, NODE_A, MIB, "a");
    assert_int_equal(mc_core_quota(world.core, mc_span_string("default"), &quota), 0);
    assert_int_equal(world_put_place(&world, store.call, store.owner, "a", LARGE / 4, &or_not, &place), 0);
    assert_int_equal(world_grant(&world, store.call, PUT_1, "b", LARGE / 3, &or_not, &place), MC_ERR_FIRM_PIN_REFUSED);
    assert_int_equal(world_put_place(&world, store.call, store.owner, "c", LARGE / 5, &or_not, &place), 0);
    world_check(&world);
    assert_int_equal(statistics_of(&world).firm_pinned, 2);
    world_close_all(&world);
}

/* A budget of its own, above and below the part that it would have of its quota. */
static void test_budget_of_a_tenant(void **state)
{
    struct world world;
    struct mc_core_config config = mc_core_config_default();
    const struct mc_core_quota small = {.bytes = 2 * LARGE, .firm_bytes = LARGE / 4};
    const struct mc_core_quota large = {.bytes = 2 * LARGE, .firm_bytes = LARGE};
    struct mc_wire_place place;
    (void)state;
    config.tenants = config.quotas = true;
    world_open_with(&world, &config);
    struct world_store store = world_store(&world, NODE_A, 16 * MIB, "a");
    assert_int_equal(mc_core_quota(world.core, mc_span_string("default"), &small), 0);
    assert_int_equal(world_put_place(&world, store.call, store.owner, "a", LARGE / 5, &or_not, &place), 0);
    assert_int_equal(world_grant(&world, store.call, PUT_1, "b", LARGE / 8, &or_not, &place), MC_ERR_FIRM_PIN_REFUSED);
    assert_int_equal(mc_core_quota(world.core, mc_span_string("default"), &large), 0);
    assert_int_equal(world_put_place(&world, store.call, store.owner, "b", LARGE / 2, &or_not, &place), 0);
    assert_int_equal(world_grant(&world, store.call, PUT_1, "c", LARGE / 2, &or_not, &place), MC_ERR_FIRM_PIN_REFUSED);
    world_check(&world);
    assert_int_equal(statistics_of(&world).firm_pinned, 2);
    world_close_all(&world);
}

/* Without quotas one has all as long as it is alone, and leaves half to others from then on; what it has, it keeps. */
static void test_tenants_without_quotas(void **state)
{
    struct world world;
    struct mc_core_config config = mc_core_config_default();
    struct mc_wire_place place;
    const char *const names[] = {"\1blue\1a", "\1blue\1b", "\1blue\1c"};
    (void)state;
    config.tenants = true;
    world_open_with(&world, &config);
    struct world_store store = world_store(&world, NODE_A, MIB, "a");
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(world_put_place(&world, store.call, store.owner, names[i], 60000, &or_not, &place), 0);
    assert_int_equal(world_put_place(&world, store.call, store.owner, "a", SMALL, NULL, &place), 0);
    assert_int_equal(world_grant(&world, store.call, PUT_1, "\1blue\1d", SMALL, &or_not, &place),
                     MC_ERR_FIRM_PIN_REFUSED);
    assert_int_equal(statistics_of(&world).firm_pinned, 3);
    assert_int_equal(world_put_place(&world, store.call, store.owner, "b", 60000, &or_not, &place), 0);
    assert_int_equal(world_grant(&world, store.call, PUT_2, "\1red\1a", BUDGET / 2, &or_not, &place),
                     MC_ERR_FIRM_PIN_REFUSED);
    assert_int_equal(statistics_of(&world).firm_pinned, 4);
    world_close_all(&world);
}

/* In place of what is there, whose pin it may be meant to renew; 0 or why not. */
static int32_t put_instead(struct world *world, const struct world_store *store, const char *key,
                           const struct world_wish *wish)
{
    struct mc_wire_place place;
    int32_t code = world_grant(world, store->call, PUT_1, key, 60000, wish, &place);
    world_check(world);
    if (code != 0)
        return code;
    world_live(world, store->owner, &place);
    (void)world_owner_obeys(world, store->owner);
    world_check(world);
    return world_put_done(world, store->call, PUT_1);
}

/* Nobody keeps more than half by renewing what it had before the others came; what only stays as it is may. */
static void test_renewals_without_quotas(void **state)
{
    struct world world;
    struct mc_core_config config = mc_core_config_default();
    struct mc_wire_place place;
    const char *const names[] = {"\1blue\1a", "\1blue\1b", "\1blue\1c"};
    const struct world_wish again = {.flags = or_not.flags | MC_PUT_REPLACE, .pin_ms = PIN_MS};
    const struct world_wish keep = {.flags = MC_PUT_REPLACE | MC_PUT_KEEP_PIN};
    (void)state;
    config.tenants = true;
    world_open_with(&world, &config);
    struct world_store store = world_store(&world, NODE_A, MIB, "a");
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(world_put_place(&world, store.call, store.owner, names[i], 60000, &or_not, &place), 0);
    world.core->config.firm_pin_ratio = 0.15; /* as if memory had left: that alone ends no promise */
    assert_int_equal(put_instead(&world, &store, names[0], &again), 0);
    world.core->config.firm_pin_ratio = 0.25;
    assert_int_equal(world_put_place(&world, store.call, store.owner, "a", SMALL, NULL, &place), 0);
    assert_int_equal(put_instead(&world, &store, names[0], &again), MC_ERR_FIRM_PIN_REFUSED);
    struct world_wish new_pin = another_pin(&world, store.call, names[1], or_not.flags);
    assert_int_equal(put_instead(&world, &store, names[1], &new_pin), MC_ERR_FIRM_PIN_REFUSED);
    assert_int_equal(put_instead(&world, &store, names[1], &keep), 0);
    assert_true(world.is_firm);
    struct world_wish copy = another_pin(&world, store.call, names[2], 0);
    copy.flags = MC_PUT_REPLACE;
    assert_int_equal(put_instead(&world, &store, names[2], &copy), 0);
    assert_true(world.is_firm);
    expect_firm(&world, 3, 60000);
    new_pin = another_pin(&world, store.call, names[1], 0);
    assert_int_equal(put_instead(&world, &store, names[1], &new_pin), 0);
    expect_firm(&world, 2, 60000);
    new_pin = another_pin(&world, store.call, names[2], or_not.flags); /* two of them are not more than half */
    assert_int_equal(put_instead(&world, &store, names[2], &new_pin), 0);
    world_close_all(&world);
}

/* Many at once: what is to take the place of another counts there alone. */
static void test_renewals_at_once(void **state)
{
    struct world world;
    struct mc_core_config config = mc_core_config_default();
    struct mc_wire_place places[3], place;
    const char *const names[] = {"\1blue\1a", "\1blue\1b"};
    const struct world_wish again = {.flags = or_not.flags | MC_PUT_REPLACE, .pin_ms = PIN_MS};
    (void)state;
    config.tenants = true;
    world_open_with(&world, &config);
    struct world_store store = world_store(&world, NODE_A, MIB, "a");
    assert_int_equal(world_put_place(&world, store.call, store.owner, "a", SMALL, NULL, &place), 0);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(world_put_place(&world, store.call, store.owner, names[i], 60000, &or_not, &place), 0);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(world_grant(&world, store.call, PUT_1 + i, names[i], 60000, &again, &places[i]), 0);
    world_check(&world);
    assert_int_equal(world_grant(&world, store.call, PUT_1 + 2, "\1blue\1c", SMALL, &or_not, &place),
                     MC_ERR_FIRM_PIN_REFUSED);
    world_revoke(&world, store.call, &places[1]);
    world_check(&world);
    world_live(&world, store.owner, &places[0]);
    (void)world_owner_obeys(&world, store.owner);
    world_check(&world);
    const struct mc_account *account = mc_account_find(world.core->objects.accounts, world_key(names[0]));
    assert_int_equal(account->firm_bytes, 2 * mc_extent_size(60000, world_key(names[0]).length));
    assert_int_equal(account->firm_coming, 0);
    world_close_all(&world);
}

/* While contents of an earlier master may still come, nobody is taken for alone; what is there may be renewed. */
static void test_alone_only_when_all_is_known(void **state)
{
    struct world world;
    struct mc_core_config config = mc_core_config_default();
    struct mc_wire_place place;
    const struct world_wish again = {.flags = or_not.flags | MC_PUT_REPLACE, .pin_ms = 100 * PIN_MS};
    const char *const names[] = {"\1blue\1a", "\1blue\1b", "\1blue\1c"};
    (void)state;
    config.tenants = true;
    world_open_with(&world, &config);
    struct world_store store = world_store(&world, NODE_A, MIB, "a");
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(world_put_place(&world, store.call, store.owner, names[i], 60000, &again, &place), 0);
    world.core->config.depart_ms += 60 * SECOND_MS; /* as if it had begun just now */
    assert_true(mc_recover_unsettled(world.core));
    assert_int_equal(world_grant(&world, store.call, PUT_1, names[2], 60000, &or_not, &place), MC_ERR_FIRM_PIN_REFUSED);
    assert_int_equal(put_instead(&world, &store, names[0], &again), 0);
    world.core->config.depart_ms -= 60 * SECOND_MS;
    assert_false(mc_recover_unsettled(world.core));
    assert_int_equal(world_put_place(&world, store.call, store.owner, names[2], 60000, &again, &place), 0);
    assert_int_equal(put_instead(&world, &store, names[0], &again), 0);
    world.core->config.depart_ms += 60 * SECOND_MS;
    assert_int_equal(put_instead(&world, &store, names[0], &again), 0);
    world.core->config.depart_ms -= 60 * SECOND_MS;
    world_close_all(&world);
}

/* One that nobody has seen has no more than half either. */
static void test_first_of_a_tenant(void **state)
{
    struct world world;
    struct mc_core_config config = mc_core_config_default();
    struct mc_wire_place place;
    (void)state;
    config.tenants = true;
    world_open_with(&world, &config);
    struct world_store store = world_store(&world, NODE_A, MIB, "a");
    assert_int_equal(world_put_place(&world, store.call, store.owner, "a", SMALL, NULL, &place), 0);
    assert_int_equal(world_grant(&world, store.call, PUT_1, "\1red\1a", BUDGET / 2 + 1, &or_not, &place),
                     MC_ERR_FIRM_PIN_REFUSED);
    assert_int_equal(world_put_place(&world, store.call, store.owner, "\1red\1b", BUDGET / 3, &or_not, &place), 0);
    world_close_all(&world);
}

/* What replaces a value counts beside it until that is cleared, and then alone. */
static void test_upserts_of_tenants(void **state)
{
    struct world world;
    struct mc_core_config config = mc_core_config_default();
    const struct mc_core_quota quota = {.bytes = 2 * LARGE};
    const struct world_wish again = {.flags = or_not.flags | MC_PUT_REPLACE, .pin_ms = PIN_MS};
    const struct world_wish keep = {.flags = MC_PUT_REPLACE | MC_PUT_KEEP_PIN};
    const struct {
        const struct world_wish *wish;
        uint64_t length;
        int32_t code;
    } rows[] = {{&or_not, LARGE / 4, 0},
                {&again, LARGE / 4, 0},
                {&keep, LARGE / 5, 0},
                {&again, LARGE / 3, 0},
                {&again, 2 * LARGE / 3, MC_ERR_FIRM_PIN_REFUSED},
                {&keep, LARGE / 3, 0}};
    struct mc_wire_place place;
    uint64_t length = 0;
    (void)state;
    config.tenants = config.quotas = true;
    world_open_with(&world, &config);
    struct world_store store = world_store(&world, NODE_A, MIB, "a");
    assert_int_equal(mc_core_quota(world.core, mc_span_string("default"), &quota), 0);
    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_int_equal(world_grant(&world, store.call, PUT_1, "k", rows[i].length, rows[i].wish, &place),
                         rows[i].code);
        if (rows[i].code == 0) {
            uint64_t before = length == 0 ? 0 : mc_extent_size(length, 1);
            length = rows[i].length;
            assert_int_equal(statistics_of(&world).firm_bytes, before + mc_extent_size(length, 1));
            world_check(&world);
            world_live(&world, store.owner, &place);
            (void)world_owner_obeys(&world, store.owner);
            assert_int_equal(world_put_done(&world, store.call, PUT_1), 0);
        }
        expect_firm(&world, 1, length);
        const struct mc_object *object = mc_object_find(world.core, mc_span_string("k"));
        assert_int_equal(mc_object_holding(object)->account->firm_bytes, mc_extent_size(length, 1));
    }
    world_close_all(&world);
}

/* What lies on a disk alone takes no memory, and what is loaded does again. */
static void test_loaded(void **state)
{
    struct world world;
    struct world_store store;
    static struct moves moves;
    struct mc_wire_place place;
    const struct world_wish longer = {.flags = or_not.flags, .pin_ms = 100 * PIN_MS};
    (void)state;
    (void)open_with_disk(&world, &store);
    assert_int_equal(world_put_place(&world, store.call, store.owner, "k", LARGE, &longer, &place), 0);
    told_moves(&world, store.owner, &moves);
    owner_did(&world, store.owner, &moves, 0);
    expect_firm(&world, 1, LARGE);
    forget_in_memory(&world, &store, "k");
    assert_int_equal(statistics_of(&world).firm_bytes, 0);
    assert_int_equal(left_ms(&world, "k"), 0);
    assert_int_equal(world_get(&world, store.call, "k", 0, NULL, NULL), MC_ERR_PUT_IN_PROGRESS);
    told_moves(&world, store.owner, &moves);
    assert_int_equal(moves.type, MC_MESSAGE_LOAD);
    owner_did(&world, store.owner, &moves, 0);
    expect_firm(&world, 1, LARGE);
    assert_true(left_ms(&world, "k") > 0);
    world_close_all(&world);
}

/* Those for ever have a bound only if one is set; what is there, and what replaces it, stays. */
static void test_hard_ones(void **state)
{
    const struct world_wish hard = {.flags = MC_PUT_HARD_PIN}, again = {.flags = MC_PUT_HARD_PIN | MC_PUT_REPLACE};
    struct mc_core_config config = mc_core_config_default();
    struct world world;
    int32_t code;
    (void)state;
    for (unsigned is_set = 0; is_set < 2; is_set++) {
        config.hard_pin_ratio = is_set ? 0.25 : 1;
        world_open_with(&world, &config);
        struct world_store store = world_store(&world, NODE_A, MIB, "a");
        assert_int_equal(world_put_hard(&world, &store, "a", LARGE, &hard), 0);
        assert_int_equal(world_put_hard(&world, &store, "b", LARGE, &hard), 0);
        assert_int_equal(statistics_of(&world).hard_bytes, 2 * mc_extent_size(LARGE, 1));
        assert_int_equal(world_put_hard(&world, &store, "c", LARGE, &hard), is_set ? MC_ERR_NO_AVAILABLE_HANDLE : 0);
        assert_int_equal(world_put_hard(&world, &store, "d", LARGE, NULL), 0);
        assert_int_equal(world_put_hard(&world, &store, "b", LARGE, &again), 0);
        world_remove_one_send(&world, store.call, "a");
        (void)world_owner_obeys(&world, store.owner);
        assert_true(world_remove_answer(&world, store.call, &code, 1) && code == 0);
        world_check(&world);
        assert_int_equal(world_put_hard(&world, &store, "e", LARGE, &hard), 0);
        assert_int_equal(statistics_of(&world).hard_bytes, (is_set ? 2 : 3) * mc_extent_size(LARGE, 1));
        world_close_all(&world);
    }
}

/* While nodes come to a new master there is less memory than there will be. */
static void test_hard_ones_while_nodes_come(void **state)
{
    const struct world_wish hard = {.flags = MC_PUT_HARD_PIN};
    struct mc_core_config config = mc_core_config_default();
    struct world world;
    (void)state;
    config.hard_pin_ratio = 0.25;
    struct fake_owner *a = start_with_owner(&world);
    assert_int_equal(put(&world, a, "a", LARGE, &hard), 0);
    master_stop(&world);
    world.now += 500;
    master_start(&world, NEXT_EPOCH, &config);
    uint64_t client = world_client(&world, CLIENT);
    assert_int_equal(world_grant(&world, client, PUT_1, "b", LARGE, NULL, NULL), MC_ERR_SPACE_SOON);
    assert_int_equal(world_grant(&world, client, PUT_1, "b", LARGE, &hard, NULL), MC_ERR_SPACE_SOON);
    come_back(&world, a);
    grow_old(&world, a);
    assert_int_equal(put(&world, a, "b", LARGE, &hard), 0);
    assert_int_equal(put(&world, a, "c", LARGE, &hard), MC_ERR_NO_AVAILABLE_HANDLE);
    world_close_all(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stays_until_its_time_is_over),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_small_ones_count_as_a_slot),
        cmocka_unit_test(test_grants_count),
        cmocka_unit_test(test_upserts),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_another_pin),
        cmocka_unit_test(test_another_pin_of_two_replicas),
        cmocka_unit_test(test_counts_from_the_grant),
        cmocka_unit_test(test_part_of_a_segment),
        cmocka_unit_test(test_beside_hard_pins),
        cmocka_unit_test(test_copy_beside_an_earlier_owner),
        cmocka_unit_test(test_another_pin_of_what_a_disk_has),
        cmocka_unit_test(test_masters_end),
        cmocka_unit_test(test_a_master_without_soft_pins),
        cmocka_unit_test(test_earlier_owner),
        cmocka_unit_test(test_wishes_of_all_kinds),
        cmocka_unit_test(test_owner_leaves),
        cmocka_unit_test(test_what_is_said),
        cmocka_unit_test(test_tenants),
        cmocka_unit_test(test_budget_of_a_tenant),
        cmocka_unit_test(test_tenants_without_quotas),
        cmocka_unit_test(test_renewals_without_quotas),
        cmocka_unit_test(test_renewals_at_once),
        cmocka_unit_test(test_alone_only_when_all_is_known),
        cmocka_unit_test(test_first_of_a_tenant),
        cmocka_unit_test(test_upserts_of_tenants),
        cmocka_unit_test(test_loaded),
        cmocka_unit_test(test_hard_ones),
        cmocka_unit_test(test_hard_ones_while_nodes_come),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
