/* A store that is full: what is evicted and in which order, what is protected, and that no put fails while anything
 * evictable is there. */
#include "core_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define OBJECT 4000u /* with its key and rounding: 4032 bytes */

static void test_full_store_takes_everything(void **state)
{
    struct world world;
    struct mc_core_statistics statistics;
    char key[32];
    (void)state;
    world_open(&world);
    struct world_store store = world_store(&world, NODE_A, 4 * MIB, "a");
    for (unsigned i = 0; i < 6000; i++) {
        assert_int_equal(world_put_hard(&world, &store, world_name(key, "k", i), OBJECT, NULL), 0);
        if (i % 500 == 0) {
            world_heartbeat(&world, store.heartbeat, store.segment, 4 * MIB);
            world_check(&world);
        }
    }
    statistics = statistics_of(&world);
    assert_int_equal(statistics.put_start_failures, 0); /* a little ahead: nobody had to come again */
    assert_true(statistics.evicted_objects > 4500);
    assert_true(statistics.objects > 800); /* and not more than needed: 85 % of 1040 */
    assert_int_equal(world.full_indexes, 0);
    assert_int_equal(world_exist(&world, store.call, "k5999"), 1);
    assert_int_equal(world_exist(&world, store.call, "k0"), 0);
    world_close_all(&world);
}

static void test_order_is_by_use(void **state)
{
    struct world world;
    char key[32];
    (void)state;
    struct world_store store = world_open_lru(&world);
    for (unsigned i = 0; i < 1000; i++)
        assert_int_equal(world_put_hard(&world, &store, world_name(key, "k", i), OBJECT, NULL), 0);
    assert_int_equal(world_exist(&world, store.call, "k3"), 1);
    assert_int_equal(world_get(&world, store.call, "k7", 0, NULL, NULL), 0);
    assert_int_equal(world_get(&world, store.call, "k8", MC_GET_NO_LEASE, NULL, NULL), 0); /* a look is no use */
    for (unsigned i = 1000; i < 1100; i++)
        assert_int_equal(world_put_hard(&world, &store, world_name(key, "k", i), OBJECT, NULL), 0);
    assert_int_equal(world_exist(&world, store.call, "k0"), 0);
    assert_int_equal(world_exist(&world, store.call, "k3"), 1);
    assert_int_equal(world_exist(&world, store.call, "k7"), 1);
    assert_int_equal(world_exist(&world, store.call, "k8"), 0);
    assert_int_equal(world_exist(&world, store.call, "k1099"), 1);
    world_close_all(&world);
}

static void test_exist_storm_while_full(void **state)
{
    struct world world;
    char key[32];
    (void)state;
    struct world_store store = world_open_one(&world);
    for (unsigned i = 0; i < 2000; i++) {
        assert_int_equal(world_put_hard(&world, &store, world_name(key, "k", i), OBJECT, NULL), 0);
        for (unsigned look = i < 200 ? 0 : i - 200; look < i; look++)
            (void)world_exist(&world, store.call, world_name(key, "k", look)); /* takes no lease, hinders no eviction */
    }
    assert_int_equal(statistics_of(&world).put_start_failures, 0);
    world_close_all(&world);
}

static void test_readers_are_waited_for(void **state)
{
    struct world world;
    struct mc_wire_place place;
    static uint64_t readers[200];
    char key[32];
    unsigned count = 0;
    (void)state;
    struct world_store store = world_open_one(&world);
    /* Eighteen objects of 56 KiB; each is being read by somebody. */
    for (; count < 100; count++) {
        if (world_grant(&world, store.call, PUT_1, world_name(key, "k", count), 57000, NULL, &place) != 0)
            break;
        world_live(&world, store.owner, &place);
        assert_int_equal(world_put_done(&world, store.call, PUT_1), 0);
        readers[count] = world_client(&world, 100 + count);
        assert_int_equal(world_get(&world, readers[count], key, 0, NULL, NULL), 0);
    }
    assert_true(count >= 18);
    assert_int_equal(world_grant(&world, store.call, PUT_1, "more", 57000, NULL, &place), MC_ERR_SPACE_SOON);
    world_beat(&world, store.heartbeat);
    world_pass(&world, 4 * SECOND_MS);
    assert_int_equal(world_grant(&world, store.call, PUT_1, "more", 57000, NULL, &place), MC_ERR_SPACE_SOON);
    assert_int_equal(world_owner_obeys(&world, store.owner), 0);
    world_exist(&world, readers[4], "nothing"); /* this one has finished */
    assert_int_equal(world_put_hard(&world, &store, "more", 57000, NULL), 0);
    assert_int_equal(world_exist(&world, store.call, "k4"), 0);
    assert_int_equal(world_exist(&world, store.call, "k5"), 1);
    /* A reader is not waited for longer than its lease. */
    world_beat(&world, store.heartbeat);
    world_pass(&world, 6100);
    world_beat(&world, store.heartbeat);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(world_put_hard(&world, &store, world_name(key, "late", i), 57000, NULL), 0);
    world_close_all(&world);
}

static void test_hard_pins(void **state)
{
    struct world world;
    struct mc_wire_place place;
    const struct world_wish hard = {.flags = MC_PUT_HARD_PIN};
    char key[32];
    unsigned count = 0;
    (void)state;
    struct world_store store = world_open_one(&world);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(world_put_hard(&world, &store, world_name(key, "soft", i), 50000, NULL), 0);
    while (count < 100 && world_put_hard(&world, &store, world_name(key, "k", count), 57000, &hard) == 0)
        count++;
    assert_true(count >= 18);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(world_exist(&world, store.call, world_name(key, "soft", i)), 0); /* made room */
    for (unsigned i = 0; i < count; i++)
        assert_int_equal(world_exist(&world, store.call, world_name(key, "k", i)), 1);
    assert_int_equal(world_grant(&world, store.call, PUT_1, "more", 200000, NULL, &place), MC_ERR_NO_AVAILABLE_HANDLE);
    const char *victim = "k0";
    int32_t code;
    world_remove_send(&world, store.call, &victim, 1, false);
    world_owner_obeys(&world, store.owner);
    assert_true(world_remove_answer(&world, store.call, &code, 1));
    assert_int_equal(world_put_hard(&world, &store, "more", 57000, NULL), 0);
    world_close_all(&world);
}

static void test_soft_pins(void **state)
{
    struct world world;
    struct mc_core_statistics statistics;
    const struct world_wish soft = {.flags = MC_PUT_SOFT_PIN};
    char key[32];
    (void)state;
    struct world_store store = world_open_one(&world);
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(world_put_hard(&world, &store, world_name(key, "s", i), OBJECT, &soft), 0);
    statistics = statistics_of(&world);
    assert_int_equal(statistics.soft_pinned, 10);
    for (unsigned i = 0; i < 1000; i++)
        assert_int_equal(world_put_hard(&world, &store, world_name(key, "k", i), OBJECT, NULL), 0);
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(world_exist(&world, store.call, world_name(key, "s", i)), 1); /* others go first */
    assert_int_equal(world_put_hard(&world, &store, "whole", MIB, NULL), 0); /* nothing else is left: they go too */
    statistics = statistics_of(&world);
    assert_int_equal(statistics.soft_pinned, 0);
    assert_int_equal(statistics.objects, 1);
    world_close_all(&world);
}

static void test_soft_pins_that_never_go(void **state)
{
    struct world world;
    struct mc_wire_place place;
    struct mc_core_config config = mc_core_config_default();
    const struct world_wish soft = {.flags = MC_PUT_SOFT_PIN};
    char key[32];
    (void)state;
    config.allow_evict_soft_pinned = false;
    config.soft_pin_ttl_ms = 20000;
    world_open_with(&world, &config);
    struct world_store store = world_store(&world, NODE_A, MIB, "a");
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(world_put_hard(&world, &store, world_name(key, "s", i), 100000, &soft), 0);
    assert_int_equal(world_grant(&world, store.call, PUT_1, "k", MIB, NULL, &place), MC_ERR_NO_AVAILABLE_HANDLE);
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(world_exist(&world, store.call, world_name(key, "s", i)), 1);
    for (unsigned i = 0; i < 21; i++) {
        world_pass(&world, SECOND_MS);
        world_beat(&world, store.heartbeat);
    }
    assert_int_equal(world_put_hard(&world, &store, "k", MIB, NULL), 0); /* their time is over */
    world_close_all(&world);
}

/* Small objects everywhere, then one that needs nearly all of it in one piece. */
static void test_large_object_finds_a_hole(void **state)
{
    struct world world;
    char key[32];
    (void)state;
    world_open(&world);
    struct world_store store = world_store(&world, NODE_A, 16 * MIB, "a");
    for (unsigned i = 0; i < 6000; i++)
        assert_int_equal(
            world_put_hard(&world, &store, world_name(key, "k", i * 7919 % 6007), 500 + i * 37 % 3000, NULL), 0);
    assert_int_equal(world_put_hard(&world, &store, "half", 8 * MIB, NULL), 0);
    assert_int_equal(world_put_hard(&world, &store, "all", 16 * MIB, NULL), 0);
    struct mc_core_segment segment;
    assert_true(mc_core_segment(world.core, store.segment, &segment));
    assert_int_equal(segment.objects, 1);
    assert_int_equal(segment.used, 16 * MIB); /* never more than there is */
    assert_int_equal(world_put_hard(&world, &store, "all2", 16 * MIB, NULL), 0);
    assert_int_equal(world_put_hard(&world, &store, "beyond", 17 * MIB, NULL), MC_ERR_NO_AVAILABLE_HANDLE);
    world_close_all(&world);
}

static void test_nodes_run_out(void **state)
{
    struct world world;
    char key[32];
    (void)state;
    world_open(&world);
    struct world_store store = world_store(&world, NODE_A, 4 * MIB, "a"); /* 4096 slots */
    unsigned long highest = 0;
    for (unsigned i = 0; i < 9000; i++) {
        struct mc_wire_place place;
        int32_t code = world_grant(&world, store.call, PUT_1, world_name(key, "k", i), 10 + i % 300, NULL, &place);
        for (unsigned attempt = 0; code == MC_ERR_SPACE_SOON && attempt < 50; attempt++) {
            world_owner_obeys(&world, store.owner);
            world.now++;
            code = world_grant(&world, store.call, PUT_1, key, 10 + i % 300, NULL, &place);
        }
        assert_int_equal(code, 0);
        highest = place.slot > highest ? place.slot : highest;
        world_live(&world, store.owner, &place);
        assert_int_equal(world_put_done(&world, store.call, PUT_1), 0);
    }
    assert_true(highest < mc_slot_count(4 * MIB));
    assert_int_equal(world.full_indexes, 1); /* that its index is full, and its memory is not: said once */
    world_close_all(&world);
}

static void test_population(void **state)
{
    struct world world;
    struct mc_wire_place place;
    char key[32];
    (void)state;
    world_open(&world);
    struct world_store store = {.heartbeat = world_join(&world, MC_ROLE_HEARTBEAT, NODE_A, FIRST_LIFE),
                                .owner = world_join(&world, MC_ROLE_OWNER, NODE_A, FIRST_LIFE),
                                .call = world_client(&world, NODE_A)};
    struct mc_wire_mount mount = world_mount_of(NODE_A, 4 * MIB, "a");
    mount.populated = 0;
    store.segment = world_mount(&world, store.owner, &mount).segment;
    assert_int_equal(world_grant(&world, store.call, PUT_1, "k", OBJECT, NULL, &place), MC_ERR_SPACE_SOON);
    assert_int_equal(world_heartbeat(&world, store.heartbeat, store.segment, MIB), 0);
    unsigned count = 0;
    while (world_grant(&world, store.call, PUT_1, world_name(key, "k", count), OBJECT, NULL, &place) == 0) {
        assert_true(place.offset + OBJECT <= MIB); /* only in what is populated */
        world_live(&world, store.owner, &place);
        assert_int_equal(world_put_done(&world, store.call, PUT_1), 0);
        count++;
    }
    assert_true(count > 200);
    struct mc_core_statistics statistics = statistics_of(&world);
    assert_int_equal(statistics.evicted_objects, 0); /* space is coming */
    assert_int_equal(statistics.populated, MIB);
    assert_int_equal(world_heartbeat(&world, store.heartbeat, store.segment, MIB / 2), 0); /* never falls */
    assert_int_equal(world_heartbeat(&world, store.heartbeat, store.segment, 2 * MIB), 0);
    assert_int_equal(world_put_hard(&world, &store, "more", OBJECT, NULL), 0);
    /* It comes no further: then that is all there is, and it is evicted from. */
    world_pass(&world, 2 * SECOND_MS);
    world_heartbeat(&world, store.heartbeat, store.segment, 2 * MIB);
    world_pass(&world, 2 * SECOND_MS);
    for (unsigned i = 0; i < 2000; i++)
        assert_int_equal(world_put_hard(&world, &store, world_name(key, "n", i), OBJECT, NULL), 0);
    assert_int_equal(world_heartbeat(&world, store.heartbeat, store.segment, UINT64_MAX), 0);
    statistics = statistics_of(&world);
    assert_int_equal(statistics.populated, 4 * MIB);
    world_close_all(&world);
}

static void test_full_segments_are_left_alone_while_others_have_room(void **state)
{
    struct world world;
    struct mc_core_statistics statistics;
    struct mc_wire_place place;
    char key[32];
    (void)state;
    world_open(&world);
    struct world_store a = world_store(&world, NODE_A, MIB, "a"), b = world_store(&world, NODE_B, 8 * MIB, "b");
    const struct world_wish in_a = {.preferred = {"a"}, .avoided = {b.segment}};
    for (unsigned i = 0; i < 230; i++) /* up to its watermark */
        assert_int_equal(world_put_hard(&world, &a, world_name(key, "a", i), OBJECT, &in_a), 0);
    for (unsigned i = 0; i < 1500; i++) {
        assert_int_equal(world_grant(&world, b.call, PUT_1, world_name(key, "b", i), OBJECT, NULL, &place), 0);
        world_live(&world, place.segment == a.segment ? a.owner : b.owner, &place);
        assert_int_equal(world_put_done(&world, b.call, PUT_1), 0);
    }
    statistics = statistics_of(&world);
    assert_int_equal(statistics.evicted_objects, 0);
    world_close_all(&world);
}

static void test_eviction_takes_one_replica(void **state)
{
    struct world world;
    static struct world_grants grants;
    struct mc_wire_found found;
    char key[32];
    (void)state;
    world_open(&world);
    struct world_store a = world_store(&world, NODE_A, MIB, "a"), b = world_store(&world, NODE_B, 8 * MIB, "b");
    struct world_item item = {mc_span_string("both"), OBJECT};
    const struct world_wish two = {.replica_count = 2}, in_a = {.preferred = {"a"}, .avoided = {b.segment}};
    world_put_start(&world, a.call, PUT_1, &item, 1, &two, &grants);
    world_live_all(&world, &a, &b, &grants);
    assert_int_equal(world_put_done(&world, a.call, PUT_1), 0);
    for (unsigned i = 0; i < 400; i++)
        assert_int_equal(world_put_hard(&world, &a, world_name(key, "a", i), OBJECT, &in_a), 0);
    assert_int_equal(world_get(&world, a.call, "both", 0, &found, NULL), 0);
    assert_int_equal(found.replica_count, 1);
    world_close_all(&world);
}

static void batch_against_a_full_store(const struct mc_core_config *config, unsigned rounds_most)
{
    struct world world;
    static struct world_grants grants;
    static struct world_item items[128];
    static char keys[128][32];
    static const struct world_wish wish;
    unsigned rounds = 0;
    world_open_with(&world, config);
    struct world_store store = world_store(&world, NODE_A, 4 * MIB, "a");
    for (unsigned batch = 0; batch < 60; batch++) {
        unsigned left = 128;
        for (unsigned i = 0; i < 128; i++)
            items[i] = (struct world_item){
                mc_span_string(world_name(keys[i], batch % 2 == 0 ? "x" : "y", batch * 128 + i)), OBJECT};
        while (left > 0) {
            rounds++;
            assert_true(rounds < 1000);
            world_put_start(&world, store.call, rounds, items, left, &wish, &grants);
            unsigned again = 0, place = 0;
            for (unsigned i = 0; i < left; i++) {
                if (grants.items[i].code == 0)
                    world_live(&world, store.owner, &grants.places[place++]);
                else
                    items[again++] = items[i];
                assert_true(grants.items[i].code == 0 || grants.items[i].code == MC_ERR_SPACE_SOON);
            }
            while (world_receive(&world, store.call).type != 0)
                continue;
            world_owner_obeys(&world, store.owner);
            world.now++;
            left = again;
        }
        world_check(&world);
    }
    assert_true(rounds < rounds_most);
    world_close_all(&world);
}

/* A batch that is larger than the reserve has to come again, once, when the owner has cleared what makes room for it.
 * With a watermark, as the original's, enough is free for it. */
static void test_batch_against_a_full_store(void **state)
{
    struct mc_core_config config = mc_core_config_default();
    (void)state;
    batch_against_a_full_store(&config, 130);
    config.eviction_high_watermark = 0.9;
    config.eviction_ratio = 0.05;
    batch_against_a_full_store(&config, 90);
}

/* A crowd of puts, gets, removes, deaths and returns, by dice; the invariants hold at every step. */
struct crowd {
    struct world world;
    struct world_store stores[3];
    struct mc_wire_place open[64];
    unsigned open_count;
};

static void crowd_put(struct crowd *crowd, const struct world_store *store, const char *key)
{
    struct mc_wire_place place;
    const struct world_wish wish = {.flags = rand() % 20 == 0 ? MC_PUT_SOFT_PIN : 0};
    if (world_grant(&crowd->world, store->call, 1, key, 1 + (unsigned)rand() % 60000, &wish, &place) == 0 &&
        crowd->open_count < 64)
        crowd->open[crowd->open_count++] = place;
}

static void crowd_live(struct crowd *crowd)
{
    if (crowd->open_count == 0)
        return;
    struct mc_wire_place place = crowd->open[--crowd->open_count];
    for (unsigned i = 0; i < 3; i++)
        if (crowd->stores[i].segment == place.segment)
            world_live(&crowd->world, crowd->stores[i].owner, &place);
}

static void crowd_break(struct crowd *crowd, struct world_store *store)
{
    uint64_t node = (uint64_t)(store - crowd->stores) + 5;
    if (crowd->world.next_connection >= WORLD_CONNECTIONS - 2)
        return;
    if (rand() % 8 == 0) {
        world_disconnect(&crowd->world, store->owner);
        store->owner = world_join(&crowd->world, MC_ROLE_OWNER, node, FIRST_LIFE);
        struct mc_wire_mount mount = world_mount_of(node, MIB, "s");
        mount.epoch = FIRST_EPOCH;
        assert_int_equal(world_mount(&crowd->world, store->owner, &mount).code, 0);
    } else if (rand() % 8 == 0) {
        world_disconnect(&crowd->world, store->call);
        store->call = world_join(&crowd->world, MC_ROLE_CALL, node, FIRST_LIFE);
    }
}

static void crowd_step(struct crowd *crowd)
{
    struct world *world = &crowd->world;
    struct world_store *store = &crowd->stores[rand() % 3];
    char text[32];
    const char *key = world_name(text, "k", (unsigned)(rand() % 300));
    int dice = rand() % 12;
    if (dice < 5)
        crowd_put(crowd, store, key);
    else if (dice < 8)
        crowd_live(crowd);
    else if (dice == 8)
        (void)world_exist(world, store->call, key);
    else if (dice == 9)
        world_remove_send(world, store->call, &key, 1, rand() % 2 == 0);
    else if (dice == 10)
        world_pass(world, (uint64_t)(rand() % 300));
    else
        crowd_break(crowd, store);
    for (unsigned i = 0; i < 3; i++) {
        world_heartbeat(world, crowd->stores[i].heartbeat, 0, 0);
        world_owner_obeys(world, crowd->stores[i].owner);
    }
    for (unsigned i = 0; i < 3; i++)
        while (world_receive(world, crowd->stores[i].call).type != 0)
            continue;
    world_check(world);
}

static void random_life(unsigned seed)
{
    static struct crowd crowd;
    crowd.open_count = 0;
    world_open(&crowd.world);
    srand(seed);
    for (uint64_t i = 0; i < 3; i++)
        crowd.stores[i] = world_store(&crowd.world, 5 + i, MIB, "s");
    for (unsigned step = 0; step < 1500; step++)
        crowd_step(&crowd);
    world_close_all(&crowd.world);
}

static void test_random_life(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 6; seed++)
        random_life(seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_store_takes_everything),
        cmocka_unit_test(test_order_is_by_use),
        cmocka_unit_test(test_exist_storm_while_full),
        cmocka_unit_test(test_readers_are_waited_for),
        cmocka_unit_test(test_hard_pins),
        cmocka_unit_test(test_soft_pins),
        cmocka_unit_test(test_soft_pins_that_never_go),
        cmocka_unit_test(test_large_object_finds_a_hole),
        cmocka_unit_test(test_nodes_run_out),
        cmocka_unit_test(test_population),
        cmocka_unit_test(test_full_segments_are_left_alone_while_others_have_room),
        cmocka_unit_test(test_eviction_takes_one_replica),
        cmocka_unit_test(test_batch_against_a_full_store),
        cmocka_unit_test(test_random_life),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
