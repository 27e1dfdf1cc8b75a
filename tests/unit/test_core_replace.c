/* Upsert: the value before stays readable until the new one is whole; then the new one is the value, and no crash
 * brings the one before back behind a removal. */
#include "core_owner.h"

static const struct world_wish replace = {.flags = MC_PUT_REPLACE};

static uint64_t length_of(struct world *world, uint64_t connection, const char *key)
{
    struct mc_wire_found found_there;
    return world_get(world, connection, key, 0, &found_there, NULL) == 0 ? found_there.length : 0;
}

static void remove_send(struct world *world, uint64_t connection, const char *key)
{
    world_remove_send(world, connection, &key, 1, true);
}

static void test_old_value_until_the_new_one_is_whole(void **state)
{
    struct world world;
    struct mc_wire_place place;
    static struct world_told told;
    int32_t code = 1;
    (void)state;
    world_open(&world);
    struct world_store store = world_store(&world, 5, MIB, "a");
    uint64_t other = world_join(&world, MC_ROLE_CALL, 6, 1);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", SMALL), 0);
    assert_int_equal(world_grant(&world, other, 1, "k", SMALL * 2, NULL, &place), MC_ERR_OBJECT_ALREADY_EXISTS);
    assert_int_equal(world_grant(&world, other, 2, "k", SMALL * 2, &replace, &place), 0);
    assert_int_equal(length_of(&world, other, "k"), SMALL);
    world_live(&world, store.owner, &place);
    assert_int_equal(world_put_done(&world, other, 2), 0);
    assert_int_equal(length_of(&world, other, "k"), SMALL * 2);
    world_owner_told(&world, store.owner, &told);
    assert_int_equal(told.type, MC_MESSAGE_CLEAR);
    assert_int_equal(told.count, 1);
    assert_int_not_equal(told.slots[0].slot, place.slot);
    /* A removal waits for both. */
    remove_send(&world, store.call, "k");
    static struct world_told second;
    world_owner_told(&world, store.owner, &second);
    assert_int_equal(second.slots[0].slot, place.slot);
    world_owner_says(&world, store.owner, MC_MESSAGE_CLEARED, &second);
    assert_false(world_remove_answer(&world, store.call, &code, 1));
    world_owner_says(&world, store.owner, MC_MESSAGE_CLEARED, &told);
    assert_true(world_remove_answer(&world, store.call, &code, 1));
    assert_int_equal(code, 0);
    world_close_all(&world);
}

static void test_absent_key(void **state)
{
    struct world world;
    struct mc_wire_place place, again;
    (void)state;
    world_open(&world);
    struct world_store store = world_store(&world, 5, MIB, "a");
    uint64_t other = world_join(&world, MC_ROLE_CALL, 6, 1);
    assert_int_equal(world_grant(&world, store.call, 1, "k", SMALL, &replace, &place), 0);
    assert_int_equal(world_grant(&world, other, 1, "k", SMALL, &replace, &again), MC_ERR_PUT_IN_PROGRESS);
    world_live(&world, store.owner, &place);
    assert_int_equal(world_put_done(&world, store.call, 1), 0);
    assert_int_equal(length_of(&world, other, "k"), SMALL);
    world_close_all(&world);
}

/* The writer fails, dies, or its segment goes: the value before is what it was. */
static void test_failures(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    for (unsigned how = 0; how < 3; how++) {
        world_open(&world);
        struct world_store store = world_store(&world, 5, MIB, "a"), second = world_store(&world, 6, MIB, "b");
        struct world_wish at_a = {.preferred = {"a"}}, over_b = {.flags = MC_PUT_REPLACE, .preferred = {"b"}};
        assert_int_equal(world_grant(&world, store.call, 1, "k", SMALL, &at_a, &place), 0);
        world_live(&world, store.owner, &place);
        assert_int_equal(world_put_done(&world, store.call, 1), 0);
        uint64_t writer = world_join(&world, MC_ROLE_CALL, 7, 1);
        assert_int_equal(world_grant(&world, writer, 2, "k", SMALL * 2, &over_b, &place), 0);
        assert_int_equal(place.segment, second.segment);
        if (how == 0) {
            world_revoke(&world, writer, &place);
            assert_int_not_equal(world_put_done(&world, writer, 2), 0);
        } else if (how == 1) {
            world_disconnect(&world, writer);
        } else {
            world_disconnect(&world, second.owner);
            world_disconnect(&world, second.keeper);
            world_disconnect(&world, second.call);
            for (unsigned i = 0; i < 14; i++) {
                world_pass(&world, 1000);
                (void)world_heartbeat(&world, store.keeper, 0, 0);
            }
        }
        world_settle(&world, 100);
        assert_int_equal(length_of(&world, store.call, "k"), SMALL);
        if (how < 2)
            assert_int_equal(world_owner_obeys(&world, second.owner), 1);
        world_close_all(&world);
    }
}

/* Two at a time: who ends later learns that the value has changed meanwhile, and asks again. */
static void test_two_at_a_time(void **state)
{
    struct world world;
    struct mc_wire_place first, second;
    (void)state;
    world_open(&world);
    struct world_store store = world_store(&world, 5, MIB, "a");
    uint64_t other = world_join(&world, MC_ROLE_CALL, 6, 1);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", SMALL), 0);
    assert_int_equal(world_grant(&world, store.call, 1, "k", SMALL * 2, &replace, &first), 0);
    assert_int_equal(world_grant(&world, other, 2, "k", SMALL * 3, &replace, &second), 0);
    world_live(&world, store.owner, &second);
    assert_int_equal(world_put_done(&world, other, 2), 0);
    world_live(&world, store.owner, &first);
    assert_int_equal(world_put_done(&world, store.call, 1), MC_ERR_STALE);
    assert_int_equal(length_of(&world, other, "k"), SMALL * 3);
    assert_int_equal(world_owner_obeys(&world, store.owner), 2);
    /* Removed meanwhile. */
    assert_int_equal(world_grant(&world, other, 3, "k", SMALL * 4, &replace, &second), 0);
    remove_send(&world, store.call, "k");
    world_live(&world, store.owner, &second);
    assert_int_equal(world_put_done(&world, other, 3), MC_ERR_STALE);
    assert_int_equal(world_owner_obeys(&world, store.owner), 2);
    int32_t code = 1;
    assert_true(world_remove_answer(&world, store.call, &code, 1));
    assert_int_equal(code, 0);
    assert_int_equal(length_of(&world, other, "k"), 0);
    world_close_all(&world);
}

/* Removed, and put anew by somebody else, in other memory whose serial happens to be the same: that value is later than
 * the one that was to replace the first, and stays. */
static void test_another_value_with_the_same_serial(void **state)
{
    struct world world;
    struct mc_wire_place place;
    int32_t code = 1;
    (void)state;
    world_open(&world);
    struct world_store store = world_store(&world, 5, MIB, "a");
    uint64_t other = world_join(&world, MC_ROLE_CALL, 6, 1);
    for (unsigned i = 0; i < 61; i++) { /* from then on a key that goes is forgotten */
        world_pass(&world, 1000);
        assert_int_equal(world_heartbeat(&world, store.keeper, store.segment, MIB), 0);
    }
    assert_int_equal(world_put(&world, store.call, store.owner, "k", SMALL), 0);
    assert_int_equal(world_grant(&world, other, 1, "k", SMALL * 2, &replace, &place), 0);
    remove_send(&world, store.call, "k");
    assert_int_equal(world_owner_obeys(&world, store.owner), 1);
    assert_true(world_remove_answer(&world, store.call, &code, 1));
    assert_int_equal(code, 0);
    assert_int_equal(world_put(&world, store.call, store.owner, "l", SMALL), 0); /* in the memory of the first */
    assert_int_equal(world_put(&world, store.call, store.owner, "k", SMALL * 3), 0);
    world_live(&world, store.owner, &place);
    assert_int_equal(world_put_done(&world, other, 1), MC_ERR_STALE);
    assert_int_equal(length_of(&world, other, "k"), SMALL * 3);
    world_close_all(&world);
}

static void test_expected_version(void **state)
{
    struct world world;
    struct mc_wire_place place, other_place;
    (void)state;
    world_open(&world);
    struct world_store store = world_store(&world, 5, MIB, "a");
    assert_int_equal(world_grant(&world, store.call, 1, "k", SMALL, NULL, &place), 0);
    world_live(&world, store.owner, &place);
    assert_int_equal(world_put_done(&world, store.call, 1), 0);
    struct world_wish wrong = {.flags = MC_PUT_REPLACE, .expected = place.generation - 1};
    struct world_wish right = {.flags = MC_PUT_REPLACE, .expected = place.generation};
    assert_int_equal(world_grant(&world, store.call, 2, "k", SMALL, &wrong, &other_place), MC_ERR_STALE);
    assert_int_equal(world_grant(&world, store.call, 3, "absent", SMALL, &right, &other_place), MC_ERR_STALE);
    assert_int_equal(world_grant(&world, store.call, 4, "k", SMALL, &right, &other_place), 0);
    world_live(&world, store.owner, &other_place);
    assert_int_equal(world_put_done(&world, store.call, 4), 0);
    assert_int_equal(world_grant(&world, store.call, 5, "k", SMALL, &right, &place), MC_ERR_STALE);
    world_close_all(&world);
}

/* The segment of the new value's first replica goes before the second is whole; replicas of both values at once. */
static void test_replicas(void **state)
{
    struct world world;
    static struct world_grants grants;
    struct world_item item = {mc_span_string("k"), SMALL};
    (void)state;
    world_open(&world);
    struct world_store a = world_store(&world, 5, MIB, "a"), b = world_store(&world, 6, MIB, "b");
    struct world_wish two = {.replica_count = 2},
                      over = {.replica_count = 2, .flags = MC_PUT_REPLACE | MC_PUT_HARD_PIN};
    for (unsigned round = 0; round < 3; round++) {
        item.length = SMALL + round;
        world_put_start(&world, a.call, 10 + round, &item, 1, round == 0 ? &two : &over, &grants);
        assert_int_equal(grants.place_count, 2);
        for (unsigned i = 0; i < 2; i++)
            world_live(&world, grants.places[i].segment == a.segment ? a.owner : b.owner, &grants.places[i]);
        assert_int_equal(world_put_done(&world, a.call, 10 + round), 0);
        assert_int_equal(length_of(&world, b.call, "k"), SMALL + round);
        assert_int_equal(world_owner_obeys(&world, a.owner) + world_owner_obeys(&world, b.owner), round == 0 ? 0 : 2);
    }
    struct mc_core_statistics statistics;
    mc_core_statistics(world.core, &statistics);
    assert_int_equal(statistics.objects, 1);
    assert_int_equal(statistics.clearing_bytes, 0);
    world_close_all(&world);
}

/* After a master's end the newer of the two values is taken. */
static void test_both_are_found_again(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    world_start(&world, 3, NULL);
    struct fake_owner *a = fake(5);
    assert_int_equal(fake_join(&world, a).code, 0);
    assert_int_equal(fake_put(&world, a, "k", SMALL, 0), 0);
    assert_int_equal(world_grant(&world, a->call, 50, "k", SMALL * 2, &replace, &place), 0);
    fake_write(a, &place, "k", SMALL * 2, 0, 1);
    world_live(&world, a->owner, &place); /* and the CLEAR of the other is never heard */
    assert_int_equal(world_put_done(&world, a->call, 50), 0);
    crash(&world, 9, 10);
    assert_true(fake_return(&world, a));
    world_pass(&world, 1100);
    assert_int_equal(found(&world, a, "k"), SMALL * 2);
    finish(&world, a, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_old_value_until_the_new_one_is_whole),
        cmocka_unit_test(test_absent_key),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_two_at_a_time),
        cmocka_unit_test(test_another_value_with_the_same_serial),
        cmocka_unit_test(test_expected_version),
        cmocka_unit_test(test_replicas),
        cmocka_unit_test(test_both_are_found_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
