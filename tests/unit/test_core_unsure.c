/* Puts whose answer was lost, asked for again: they happen once. */
#include "core_owner.h"

static uint64_t version_of(const struct mc_wire_place *place)
{
    return place->generation - place->replica;
}

static int32_t grant(struct world *world, uint64_t connection, uint64_t unsure, uint32_t flags,
                     struct mc_wire_place *place)
{
    const struct world_wish wish = {.flags = flags, .unsure = unsure};
    return world_grant(world, connection, 1, "k", SMALL, &wish, place);
}

/* The writer's connection breaks once the value is live: it must not come back over its removal, nor over the value
 * that has replaced it. */
static void test_happened(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    for (unsigned replaced = 0; replaced < 2; replaced++) {
        struct world_store store = world_open_one(&world);
        uint64_t writer = world_client(&world, CLIENT);
        assert_int_equal(grant(&world, writer, 0, 0, &place), 0);
        uint64_t version = version_of(&place);
        world_live(&world, store.owner, &place);
        world_disconnect(&world, writer);
        writer = world_client(&world, CLIENT);
        if (replaced) {
            assert_int_equal(grant(&world, store.call, 0, MC_PUT_REPLACE, &place), 0);
            world_live(&world, store.owner, &place);
            assert_int_equal(world_owner_obeys(&world, store.owner), 1);
            assert_int_equal(world_put_done(&world, store.call, PUT_1), 0);
        } else {
            const char *key = "k";
            int32_t code = 1;
            world_remove_send(&world, store.call, &key, 1, true);
            assert_int_equal(world_owner_obeys(&world, store.owner), 1);
            assert_true(world_remove_answer(&world, store.call, &code, 1));
            assert_int_equal(code, 0);
        }
        for (unsigned again = 0; again < 2; again++) /* that answer may be lost, too */
            assert_int_equal(grant(&world, writer, version, replaced ? MC_PUT_REPLACE : 0, &place),
                             MC_ERR_OBJECT_ALREADY_EXISTS);
        assert_int_equal(world_exist(&world, store.call, "k"), replaced);
        assert_int_equal(grant(&world, writer, 0, MC_PUT_REPLACE, &place), 0); /* a put of its own */
        world_close_all(&world);
    }
}

/* It did not: the put goes on, once what it was granted is cut. */
static void test_did_not_happen(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t writer = world_client(&world, CLIENT);
    assert_int_equal(grant(&world, writer, 0, 0, &place), 0);
    uint64_t version = version_of(&place);
    world_disconnect(&world, writer);
    writer = world_client(&world, CLIENT);
    world_pass(&world, 10);
    while (world_owner_obeys(&world, store.owner) > 0)
        world_pass(&world, 10);
    assert_int_equal(grant(&world, writer, version, 0, &place), 0);
    world_live(&world, store.owner, &place);
    assert_int_equal(world_put_done(&world, writer, PUT_1), 0);
    world_close_all(&world);
}

/* Two replicas, of which one became live: it happened. */
static void test_half_of_the_replicas(void **state)
{
    struct world world;
    static struct world_grants grants;
    (void)state;
    struct world_store a = world_open_one(&world), b = world_store(&world, NODE_B, MIB, "b");
    uint64_t writer = world_client(&world, SECOND_CLIENT);
    struct world_item item = {mc_span_string("k"), SMALL};
    struct world_wish wish = {.replica_count = 2};
    world_put_start(&world, writer, PUT_1, &item, 1, &wish, &grants);
    assert_int_equal(grants.place_count, 2);
    wish.unsure = version_of(&grants.places[0]);
    assert_int_equal(version_of(&grants.places[1]), wish.unsure);
    bool second_at_a = grants.places[1].segment == a.segment;
    world_live(&world, second_at_a ? a.owner : b.owner, &grants.places[1]);
    world_disconnect(&world, writer);
    writer = world_client(&world, SECOND_CLIENT);
    world_pass(&world, 10);
    for (unsigned i = 0; i < 10; i++)
        (void)(world_owner_obeys(&world, a.owner) + world_owner_obeys(&world, b.owner));
    const char *key = "k";
    world_remove_send(&world, a.call, &key, 1, true);
    (void)(world_owner_obeys(&world, a.owner) + world_owner_obeys(&world, b.owner));
    int32_t code = 1;
    assert_true(world_remove_answer(&world, a.call, &code, 1));
    assert_int_equal(code, 0);
    world_put_start(&world, writer, PUT_2, &item, 1, &wish, &grants);
    assert_int_equal(grants.items[0].code, MC_ERR_OBJECT_ALREADY_EXISTS);
    world_close_all(&world);
}

/* Its master has ended: what the next one finds says it; nothing there, once everything is known, says nothing. */
static void test_of_a_master_before(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    for (unsigned kind = 0; kind < 4; kind++) { /* 0: stored, 1: stored and removed, 2: never stored, 3: replaced */
        struct fake_owner *a = start_with_owner(&world);
        assert_int_equal(grant(&world, a->call, 0, 0, &place), 0);
        uint64_t version = version_of(&place);
        if (kind != 2) {
            fake_write(a, &place, "k", SMALL, 0, 1);
            world_live(&world, a->owner, &place);
            assert_int_equal(world_put_done(&world, a->call, PUT_1), 0);
        }
        if (kind == 1)
            assert_int_equal(fake_remove(&world, a, a, "k"), 0);
        crash(&world, NEXT_EPOCH, SHORTLY_MS);
        join_seen(&world, MC_ROLE_CALL, WITNESS, FIRST_LIFE, FIRST_EPOCH, 10);
        uint64_t writer = world_client(&world, CLIENT);
        assert_int_equal(grant(&world, writer, version, 0, &place), MC_ERR_PUT_IN_PROGRESS);
        come_back(&world, a);
        if (kind == 0 || kind == 3)
            assert_int_equal(grant(&world, writer, version, 0, &place), MC_ERR_OBJECT_ALREADY_EXISTS);
        else
            assert_int_equal(grant(&world, writer, version, 0, &place), MC_ERR_PUT_IN_PROGRESS);
        if (kind == 3) {
            assert_int_equal(fake_put(&world, a, "k", SMALL + 1, MC_PUT_REPLACE), 0);
            (void)fake_obey(&world, a);
        }
        for (unsigned i = 0; i < 3; i++) {
            world_pass(&world, SECOND_MS);
            (void)world_beat(&world, a->heartbeat);
        }
        if (kind == 0 || kind == 3) {
            assert_int_equal(grant(&world, writer, version, MC_PUT_REPLACE, &place), MC_ERR_OBJECT_ALREADY_EXISTS);
            assert_int_equal(found(&world, a, "k"), kind == 3 ? SMALL + 1 : SMALL);
            /* A version that is not there yet, of an upsert whose value was lost: the older value is replaced. */
            if (kind == 0)
                assert_int_equal(grant(&world, writer, version + 5, MC_PUT_REPLACE, &place), 0);
        } else {
            assert_int_equal(grant(&world, writer, version, 0, &place), MC_ERR_RPC_FAIL);
            assert_int_equal(grant(&world, writer, 0, 0, &place), 0);
        }
        finish(&world, a, NULL);
    }
}

/* Older than is remembered, and what nobody was granted. */
static void test_forgotten(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    struct fake_owner *a = start_with_owner(&world);
    assert_int_equal(grant(&world, a->call, 0, 0, &place), 0);
    uint64_t version = version_of(&place);
    fake_write(a, &place, "k", SMALL, 0, 1);
    world_live(&world, a->owner, &place);
    assert_int_equal(world_put_done(&world, a->call, PUT_1), 0);
    assert_int_equal(fake_remove(&world, a, a, "k"), 0);
    for (unsigned i = 0; i < 3; i++) {
        world_pass(&world, SECOND_MS);
        (void)world_beat(&world, a->heartbeat);
    }
    assert_int_equal(grant(&world, a->call, version, 0, &place), MC_ERR_OBJECT_ALREADY_EXISTS);
    world.core->counter += MC_ENDED_WELL_MAX - 1;
    assert_int_equal(grant(&world, a->call, version, 0, &place), MC_ERR_OBJECT_ALREADY_EXISTS);
    world.core->counter++;
    assert_int_equal(grant(&world, a->call, version, 0, &place), MC_ERR_RPC_FAIL);
    assert_int_equal(grant(&world, a->call, UINT64_MAX, 0, &place), MC_ERR_RPC_FAIL);
    assert_int_equal(grant(&world, a->call, 1, 0, &place), MC_ERR_RPC_FAIL);
    /* The place in the ring is another version's now. */
    world.core->counter = version + MC_ENDED_WELL_MAX - 1 - (world.core->epoch << MC_EPOCH_SHIFT);
    uint64_t writer = world_client(&world, CLIENT);
    assert_int_equal(grant(&world, writer, 0, 0, &place), 0);
    assert_int_equal(version_of(&place), version + MC_ENDED_WELL_MAX);
    world_revoke(&world, writer, &place);
    assert_int_not_equal(world_put_done(&world, writer, PUT_1), 0);
    (void)fake_obey(&world, a);
    assert_int_equal(grant(&world, writer, version + MC_ENDED_WELL_MAX, 0, &place), 0);
    finish(&world, a, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_happened),
        cmocka_unit_test(test_did_not_happen),
        cmocka_unit_test(test_half_of_the_replicas),
        cmocka_unit_test(test_of_a_master_before),
        cmocka_unit_test(test_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
