/* Upsert: the value before stays readable until the new one is whole; the new one is the value as soon as the one
 * before is cleared, and no crash brings that back. */
#include "core_owner.h"

static const struct world_wish replace = {.flags = MC_PUT_REPLACE};

static uint64_t length_of(struct world *world, uint64_t connection, const char *key)
{
    struct mc_wire_found found_there;
    return world_get(world, connection, key, 0, &found_there, NULL) == 0 ? found_there.length : 0;
}

/* A whole upsert, for which one value before is cleared. */
static void put_over(struct world *world, const struct world_store *to, const struct world_store *before,
                     const char *key, uint64_t length, const struct world_wish *wish)
{
    struct mc_wire_place place;
    assert_int_equal(world_grant(world, to->call, PUT_9, key, length, wish, &place), 0);
    world_live(world, to->owner, &place);
    assert_int_equal(world_owner_obeys(world, before->owner), 1);
    assert_int_equal(world_put_done(world, to->call, PUT_9), 0);
}

static bool is_answered(struct world *world, uint64_t connection)
{
    return world_receive(world, connection).type != 0;
}

static int32_t get_code(struct world *world, uint64_t connection, const char *key)
{
    return world_get(world, connection, key, 0, NULL, NULL);
}

/* "k" lies at the first segment, and an upsert of it, of the second's call connection, is whole at the second. */
static void upsert_over(struct world *world, const struct world_store *a, const struct world_store *b,
                        struct mc_wire_place *place)
{
    struct world_wish at_a = {.preferred = {"a"}}, at_b = {.flags = MC_PUT_REPLACE, .preferred = {"b"}};
    assert_int_equal(world_put_place(world, a->call, a->owner, "k", SMALL, &at_a, place), 0);
    assert_int_equal(place->segment, a->segment);
    assert_int_equal(world_grant(world, b->call, 2, "k", SMALL * 2, &at_b, place), 0);
    assert_int_equal(place->segment, b->segment);
    world_live(world, b->owner, place);
    world_check(world);
}

static void test_old_value_until_the_new_one_is_whole(void **state)
{
    struct world world;
    struct mc_wire_place place;
    static struct world_told told;
    struct mc_wire_found size;
    int32_t code = 1;
    (void)state;
    struct world_store store;
    uint64_t other = world_open_holding(&world, &store);
    assert_int_equal(world_grant(&world, other, PUT_1, "k", SMALL * 2, NULL, &place), MC_ERR_OBJECT_ALREADY_EXISTS);
    assert_int_equal(world_grant(&world, other, PUT_2, "k", SMALL * 2, &replace, &place), 0);
    assert_int_equal(length_of(&world, other, "k"), SMALL);
    world_live(&world, store.owner, &place);
    /* The owner still has the one before: nobody reads either, or takes the key, but it is said to be there. */
    world_check(&world);
    assert_false(is_answered(&world, other));
    assert_int_equal(get_code(&world, store.call, "k"), MC_ERR_PUT_IN_PROGRESS);
    assert_int_equal(world_exist(&world, store.call, "k"), 1);
    assert_int_equal(world_get(&world, store.call, "k", MC_GET_NO_LEASE, &size, NULL), 0);
    assert_int_equal(size.length, SMALL * 2);
    assert_int_equal(world_grant(&world, store.call, PUT_3, "k", SMALL, NULL, NULL), MC_ERR_PUT_IN_PROGRESS);
    assert_int_equal(world_grant(&world, store.call, PUT_4, "k", SMALL, &replace, NULL), MC_ERR_PUT_IN_PROGRESS);
    world_remove_one_send(&world, store.call, "k");
    assert_true(world_remove_answer(&world, store.call, &code, 1));
    assert_int_equal(code, MC_ERR_BUSY);
    world_owner_told(&world, store.owner, &told);
    assert_int_equal(told.type, MC_MESSAGE_CLEAR);
    assert_int_equal(told.count, 1);
    assert_int_not_equal(told.slots[0].slot, place.slot);
    world_owner_says(&world, store.owner, MC_MESSAGE_CLEARED, &told);
    assert_int_equal(world_put_done(&world, other, PUT_2), 0);
    assert_int_equal(length_of(&world, other, "k"), SMALL * 2);
    world_owner_says(&world, store.owner, MC_MESSAGE_CLEARED, &told); /* said twice */
    assert_false(is_answered(&world, other));
    world_remove_one_send(&world, store.call, "k");
    assert_int_equal(world_owner_obeys(&world, store.owner), 1);
    assert_true(world_remove_answer(&world, store.call, &code, 1));
    assert_int_equal(code, 0);
    world_close_all(&world);
}

/* The owner of the value before is cut off: the upsert is answered, and read, when it is back and has cleared that, or
 * has departed. A writer that has no patience asks again, and learns the same. */
static void test_waits_for_an_owner_that_is_cut_off(void **state)
{
    struct world world;
    struct mc_wire_place place;
    int32_t code = 1;
    (void)state;
    for (unsigned how = 0; how < 4; how++) {
        bool returns = how % 2 == 1, leaves = how / 2 == 1;
        struct world_store a = world_open_one(&world), b = world_store(&world, NODE_B, MIB, "b");
        upsert_over(&world, &a, &b, &place);
        struct world_wish again = {.flags = MC_PUT_REPLACE, .unsure = place.generation};
        assert_int_equal(get_code(&world, b.call, "k"), MC_ERR_PUT_IN_PROGRESS);
        if (returns) { /* it is stopped, before that is noticed */
            world_pass_beating(&world, 990, b.heartbeat);
            assert_int_equal(get_code(&world, b.call, "k"), MC_ERR_PUT_IN_PROGRESS);
            world_pass_beating(&world, 20, b.heartbeat);
            assert_int_equal(get_code(&world, b.call, "k"), MC_ERR_REPLICA_IS_NOT_READY);
        }
        world_disconnect(&world, a.owner);
        if (leaves) {
            world_revoke(&world, b.call, &place);
            assert_int_equal(world_put_done(&world, b.call, PUT_2), MC_ERR_PUT_IN_PROGRESS);
            world_revoke(&world, b.call, &place); /* said twice */
        }
        assert_int_equal(get_code(&world, b.call, "k"), MC_ERR_REPLICA_IS_NOT_READY); /* no hope for now */
        uint64_t other = world_client(&world, SECOND_CLIENT);
        assert_int_equal(world_grant(&world, other, PUT_3, "k", SMALL, &again, NULL), MC_ERR_PUT_IN_PROGRESS);
        world_remove_one_send(&world, other, "k");
        assert_true(world_remove_answer(&world, other, &code, 1));
        assert_int_equal(code, MC_ERR_BUSY);
        world_remove_all_send(&world, a.call, NULL, false);
        world_check(&world);
        world_pass_beating(&world, 1500, b.heartbeat);
        assert_false(is_answered(&world, b.call));
        assert_int_equal(world_count_answer(&world, a.call), INT64_MIN);
        if (returns) {
            assert_int_equal(world_remount(&world, &a), 0);
            assert_int_equal(world_owner_obeys(&world, a.owner), 1);
        } else {
            world_pass_beating(&world, 1500, b.heartbeat);
        }
        if (!leaves)
            assert_int_equal(world_put_done(&world, b.call, PUT_2), 0);
        assert_int_equal(world_grant(&world, other, PUT_4, "k", SMALL, &again, NULL), MC_ERR_OBJECT_ALREADY_EXISTS);
        world_pass_beating(&world, 100, b.heartbeat); /* the removal of all comes back to what it could not remove */
        (void)world_owner_obeys(&world, b.owner);
        assert_int_equal(world_count_answer(&world, a.call), 1);
        world_close_all(&world);
    }
}

/* Of two replicas one cannot be cleared now: the value stays readable at the other, until that owner is back or has
 * departed; also when it was cut off after the upsert had begun. */
static void test_value_with_a_replica_that_is_cut_off_stays(void **state)
{
    struct world world;
    struct mc_wire_place place;
    struct world_item item = {mc_span_string("k"), SMALL};
    struct world_wish two = {.replica_count = 2}, at_b = {.flags = MC_PUT_REPLACE, .preferred = {"b"}};
    (void)state;
    for (unsigned late = 0; late < 2; late++) {
        struct world_store a = world_open_one(&world), b = world_store(&world, NODE_B, MIB, "b");
        world_put_both(&world, &a, &b, &item, &two);
        if (late)
            assert_int_equal(world_grant(&world, b.call, PUT_2, "k", SMALL * 2, &at_b, &place), 0);
        world_disconnect(&world, a.owner);
        if (late) {
            world_live(&world, b.owner, &place);
            assert_int_equal(world_put_done(&world, b.call, PUT_2), MC_ERR_STALE);
            assert_int_equal(world_owner_obeys(&world, b.owner), 1);
        }
        assert_int_equal(world_grant(&world, b.call, PUT_3, "k", SMALL * 2, &at_b, &place), MC_ERR_PUT_IN_PROGRESS);
        assert_int_equal(length_of(&world, b.call, "k"), SMALL);
        world_pass_beating(&world, DEPARTED_MS, b.heartbeat);
        put_over(&world, &b, &b, "k", SMALL * 2, &at_b);
        assert_int_equal(length_of(&world, b.call, "k"), SMALL * 2);
        world_close_all(&world);
    }
}

/* One of two grants has failed, and its owner, which is cut off, may have the value: what is read of the other is not
 * replaced before that is cleared. The upsert itself does not wait for what it has left itself. */
static void test_what_a_failed_grant_left_is_cleared_first(void **state)
{
    struct world world;
    struct mc_wire_place place;
    static struct world_grants grants;
    struct world_item item = {mc_span_string("k"), SMALL};
    struct world_wish two = {.replica_count = 2}, at_b = {.flags = MC_PUT_REPLACE, .preferred = {"b"}};
    (void)state;
    for (unsigned upsert = 0; upsert < 2; upsert++) {
        struct world_store a = world_open_one(&world), b = world_store(&world, NODE_B, MIB, "b");
        if (upsert) {
            assert_int_equal(world_put_place(&world, b.call, b.owner, "k", SMALL * 3, &at_b, &place), 0);
            two.flags = MC_PUT_REPLACE;
        }
        world_put_start(&world, b.call, PUT_1, &item, 1, &two, &grants);
        assert_int_equal(grants.place_count, 2);
        const struct mc_wire_place *at_a = &grants.places[grants.places[0].segment == a.segment ? 0 : 1];
        const struct mc_wire_place *other = &grants.places[grants.places[0].segment == a.segment ? 1 : 0];
        world_disconnect(&world, a.owner);
        world_live(&world, b.owner, other);
        world_revoke(&world, b.call, at_a);
        world_check(&world);
        if (upsert)
            assert_int_equal(world_owner_obeys(&world, b.owner), 1);
        assert_int_equal(world_put_done(&world, b.call, PUT_1), 0);
        assert_int_equal(length_of(&world, b.call, "k"), SMALL);
        assert_int_equal(world_grant(&world, b.call, PUT_2, "k", SMALL * 2, &at_b, &place), MC_ERR_PUT_IN_PROGRESS);
        assert_int_equal(length_of(&world, b.call, "k"), SMALL);
        world_pass_beating(&world, DEPARTED_MS, b.heartbeat);
        world_check(&world);
        put_over(&world, &b, &b, "k", SMALL * 2, &at_b);
        world_close_all(&world);
    }
}

/* The new value goes with its segment while it waits: the put has failed, and the key takes no other value before the
 * one before is cleared. */
static void test_new_value_goes_while_it_waits(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    struct world_store a = world_open_one(&world), b = world_store(&world, NODE_B, MIB, "b");
    upsert_over(&world, &a, &b, &place);
    size_t frame = world_begin(&world, MC_MESSAGE_UNMOUNT, 4);
    mc_wire_unmount_write(&world.frame, &(struct mc_wire_unmount){.segment = b.segment});
    world_send(&world, b.owner, frame);
    world_settle(&world, 100);
    world_check(&world);
    assert_int_equal(world_put_done(&world, b.call, PUT_2), MC_ERR_TRANSFER_FAIL);
    struct world_wish again = {.flags = MC_PUT_REPLACE, .unsure = place.generation};
    assert_int_equal(get_code(&world, a.call, "k"), MC_ERR_OBJECT_NOT_FOUND);
    assert_int_equal(world_grant(&world, b.call, PUT_3, "k", SMALL, &again, &place), MC_ERR_PUT_IN_PROGRESS);
    assert_int_equal(world_owner_obeys(&world, a.owner), 1);
    assert_int_equal(world_put_place(&world, b.call, a.owner, "k", SMALL, &again, &place), 0);
    world_close_all(&world);
}

/* Its writer dies, or takes longer than any put may: it waits all the same, and happens. */
static void test_writer_goes_while_it_waits(void **state)
{
    struct world world;
    struct mc_wire_place place;
    struct mc_core_config config = mc_core_config_default();
    (void)state;
    config.put_discard_ms = 500;
    for (unsigned dies = 0; dies < 2; dies++) {
        world_open_with(&world, &config);
        struct world_store a = world_store(&world, NODE_A, MIB, "a"), b = world_store(&world, NODE_B, MIB, "b");
        upsert_over(&world, &a, &b, &place);
        if (dies)
            world_disconnect(&world, b.call);
        world_pass_beating(&world, 700, b.heartbeat);
        world_check(&world);
        assert_int_equal(world_owner_obeys(&world, a.owner), 1);
        if (!dies)
            assert_int_equal(world_put_done(&world, b.call, PUT_2), 0);
        assert_int_equal(length_of(&world, a.call, "k"), SMALL * 2);
        struct world_wish again = {.unsure = place.generation};
        assert_int_equal(world_grant(&world, a.call, PUT_3, "k", SMALL, &again, NULL), MC_ERR_OBJECT_ALREADY_EXISTS);
        world_close_all(&world);
    }
}

/* Of a batch: one that waits keeps the answer back, until its writer has had enough. */
static void test_one_of_a_batch_waits(void **state)
{
    struct world world;
    static struct world_grants grants;
    struct world_item items[2] = {{mc_span_string("k"), SMALL}, {mc_span_string("l"), SMALL}};
    (void)state;
    for (unsigned leaves = 0; leaves < 2; leaves++) {
        struct world_store store = world_open_one(&world);
        assert_int_equal(world_put(&world, store.call, store.owner, "k", SMALL), 0);
        world_put_start(&world, store.call, PUT_5, items, 2, &replace, &grants);
        assert_int_equal(grants.place_count, 2);
        world_live(&world, store.owner, &grants.places[0]);
        if (leaves)
            world_revoke(&world, store.call, &grants.places[0]); /* the other one is open: no answer yet */
        assert_false(is_answered(&world, store.call));
        world_live(&world, store.owner, &grants.places[1]);
        world_check(&world);
        if (!leaves) {
            assert_false(is_answered(&world, store.call));
            assert_int_equal(world_owner_obeys(&world, store.owner), 1);
        }
        assert_int_equal(world_put_done(&world, store.call, PUT_5), leaves ? MC_ERR_PUT_IN_PROGRESS : 0);
        if (leaves)
            assert_int_equal(world_owner_obeys(&world, store.owner), 1);
        assert_int_equal(length_of(&world, store.call, "k"), SMALL);
        assert_int_equal(length_of(&world, store.call, "l"), SMALL);
        world_close_all(&world);
    }
}

static void test_absent_key(void **state)
{
    struct world world;
    struct mc_wire_place place, again;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t other = world_client(&world, CLIENT);
    assert_int_equal(world_grant(&world, store.call, PUT_1, "k", SMALL, &replace, &place), 0);
    assert_int_equal(world_grant(&world, other, PUT_1, "k", SMALL, &replace, &again), MC_ERR_PUT_IN_PROGRESS);
    world_live(&world, store.owner, &place);
    assert_int_equal(world_put_done(&world, store.call, PUT_1), 0);
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
        struct world_store store = world_open_one(&world), second = world_store(&world, NODE_B, MIB, "b");
        struct world_wish at_a = {.preferred = {"a"}}, over_b = {.flags = MC_PUT_REPLACE, .preferred = {"b"}};
        assert_int_equal(world_put_place(&world, store.call, store.owner, "k", SMALL, &at_a, &place), 0);
        uint64_t writer = world_client(&world, SECOND_CLIENT);
        assert_int_equal(world_grant(&world, writer, PUT_2, "k", SMALL * 2, &over_b, &place), 0);
        assert_int_equal(place.segment, second.segment);
        if (how == 0) {
            world_revoke(&world, writer, &place);
            assert_int_not_equal(world_put_done(&world, writer, PUT_2), 0);
        } else if (how == 1) {
            world_disconnect(&world, writer);
        } else {
            world_disconnect(&world, second.owner);
            world_disconnect(&world, second.heartbeat);
            world_disconnect(&world, second.call);
            for (unsigned i = 0; i < 14; i++) {
                world_pass(&world, SECOND_MS);
                (void)world_beat(&world, store.heartbeat);
            }
        }
        world_settle(&world, 100);
        assert_int_equal(length_of(&world, store.call, "k"), SMALL);
        if (how < 2)
            assert_int_equal(world_owner_obeys(&world, second.owner), 1 + how); /* how 1: cleared, then cut */
        world_close_all(&world);
    }
}

/* Two at a time: who ends later learns that the value has changed meanwhile, and asks again. */
static void test_two_at_a_time(void **state)
{
    struct world world;
    struct mc_wire_place first, second;
    (void)state;
    struct world_store store;
    uint64_t other = world_open_holding(&world, &store);
    assert_int_equal(world_grant(&world, store.call, PUT_1, "k", SMALL * 2, &replace, &first), 0);
    assert_int_equal(world_grant(&world, other, PUT_2, "k", SMALL * 3, &replace, &second), 0);
    world_live(&world, store.owner, &second);
    assert_int_equal(world_put_done(&world, store.call, PUT_1), MC_ERR_STALE);
    world_live(&world, store.owner, &first);                     /* which its owner had already; the second waits */
    assert_int_equal(world_owner_obeys(&world, store.owner), 4); /* the first is cleared twice, and cut */
    assert_int_equal(world_put_done(&world, other, PUT_2), 0);
    assert_int_equal(length_of(&world, other, "k"), SMALL * 3);
    /* Removed meanwhile. */
    assert_int_equal(world_grant(&world, other, PUT_3, "k", SMALL * 4, &replace, &second), 0);
    world_remove_one_send(&world, store.call, "k");
    assert_int_equal(world_put_done(&world, other, PUT_3), MC_ERR_STALE);
    world_live(&world, store.owner, &second);
    assert_int_equal(world_owner_obeys(&world, store.owner), 4);
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
    struct world_store store = world_open_one(&world);
    uint64_t other = world_client(&world, CLIENT);
    for (unsigned i = 0; i < 61; i++) { /* from then on a key that goes is forgotten */
        world_pass(&world, SECOND_MS);
        assert_int_equal(world_heartbeat(&world, store.heartbeat, store.segment, MIB), 0);
    }
    assert_int_equal(world_put(&world, store.call, store.owner, "k", SMALL), 0);
    assert_int_equal(world_grant(&world, other, PUT_1, "k", SMALL * 2, &replace, &place), 0);
    world_remove_one_send(&world, store.call, "k");
    assert_int_equal(world_owner_obeys(&world, store.owner), 3);
    assert_true(world_remove_answer(&world, store.call, &code, 1));
    assert_int_equal(code, 0);
    assert_int_equal(world_put(&world, store.call, store.owner, "l", SMALL), 0); /* in the memory of the first */
    assert_int_equal(world_put(&world, store.call, store.owner, "k", SMALL * 3), 0);
    world_live(&world, store.owner, &place);
    assert_int_equal(world_put_done(&world, other, PUT_1), MC_ERR_STALE);
    assert_int_equal(length_of(&world, other, "k"), SMALL * 3);
    world_close_all(&world);
}

static void test_expected_version(void **state)
{
    struct world world;
    struct mc_wire_place place, other_place;
    (void)state;
    struct world_store store = world_open_one(&world);
    assert_int_equal(world_put_place(&world, store.call, store.owner, "k", SMALL, NULL, &place), 0);
    struct world_wish wrong = {.flags = MC_PUT_REPLACE, .expected = place.generation - 1};
    struct world_wish right = {.flags = MC_PUT_REPLACE, .expected = place.generation};
    assert_int_equal(world_grant(&world, store.call, PUT_2, "k", SMALL, &wrong, &other_place), MC_ERR_STALE);
    assert_int_equal(world_grant(&world, store.call, PUT_3, "absent", SMALL, &right, &other_place), MC_ERR_STALE);
    put_over(&world, &store, &store, "k", SMALL, &right);
    assert_int_equal(world_grant(&world, store.call, PUT_5, "k", SMALL, &right, &place), MC_ERR_STALE);
    world_close_all(&world);
}

/* Who reads a value is protected wherever it lies; another value was not read by anybody yet. */
static void test_lease_stays_with_the_value(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    for (unsigned is_copy = 0; is_copy < 2; is_copy++) {
        struct world_store store = world_open_one(&world);
        assert_int_equal(world_put_place(&world, store.call, store.owner, "k", SMALL, NULL, &place), 0);
        assert_int_equal(world_get(&world, store.call, "k", 0, NULL, NULL), 0);
        struct world_wish wish = {.flags = MC_PUT_REPLACE, .expected = is_copy ? place.generation : 0};
        put_over(&world, &store, &store, "k", SMALL, &wish);
        int32_t code = 1;
        const char *key = "k";
        world_remove_send(&world, store.call, &key, 1, false);
        bool is_answered = world_remove_answer(&world, store.call, &code, 1);
        assert_int_equal(is_answered && code == MC_ERR_OBJECT_HAS_LEASE, is_copy);
        world_close_all(&world);
    }
}

/* A copy of a value is being made while the value goes. Its writer may make it live at its owner any moment, and a
 * master after this one would take it for the value: so nobody hears that the value has gone before the copy cannot
 * come any more. */
static void test_copy_of_what_goes(void **state)
{
    struct world world;
    struct world_told told;
    struct mc_wire_place place, copy, second;
    const char *key = "k";
    int32_t code = 1;
    (void)state;
    for (unsigned replaced = 0; replaced < 2; replaced++) {
        struct world_store a = world_open_one(&world), b = world_store(&world, NODE_B, MIB, "b");
        struct world_wish at_a = {.preferred = {"a"}};
        assert_int_equal(world_put_place(&world, a.call, a.owner, "k", SMALL, &at_a, &place), 0);
        struct world_wish upsert = {.flags = MC_PUT_REPLACE, .preferred = {"a"}};
        if (replaced)
            assert_int_equal(world_grant(&world, a.call, PUT_2, "k", SMALL * 2, &upsert, &second), 0);
        struct world_wish at_b = {.flags = MC_PUT_REPLACE, .expected = place.generation, .preferred = {"b"}};
        assert_int_equal(world_grant(&world, b.call, PUT_3, "k", SMALL, &at_b, &copy), 0);
        assert_int_equal(copy.segment, b.segment);
        assert_int_equal(world_grant(&world, a.call, PUT_4, "k", SMALL, &at_b, &place), MC_ERR_PUT_IN_PROGRESS);
        if (replaced)
            world_live(&world, a.owner, &second);
        else
            world_remove_send(&world, a.call, &key, 1, true);
        assert_int_equal(world_put_done(&world, b.call, PUT_3), MC_ERR_STALE);
        assert_int_equal(world_owner_obeys(&world, a.owner), 1);
        if (replaced)
            assert_int_equal(length_of(&world, a.call, "k"), 0); /* readers wait */
        else
            assert_false(world_remove_answer(&world, a.call, &code, 1));
        world_live(&world, b.owner, &copy); /* its owner says so too late */
        world_owner_told(&world, b.owner, &told);
        assert_int_equal(told.count, 1);
        world_owner_says(&world, b.owner, MC_MESSAGE_CLEARED, &told);
        if (replaced) {
            assert_int_equal(world_put_done(&world, a.call, PUT_2), 0);
            assert_int_equal(length_of(&world, a.call, "k"), SMALL * 2);
        } else {
            assert_true(world_remove_answer(&world, a.call, &code, 1));
            assert_int_equal(code, 0);
        }
        world_close_all(&world);
    }
}

/* The segment of the new value's first replica goes before the second is whole; replicas of both values at once. */
static void test_replicas(void **state)
{
    struct world world;
    static struct world_grants grants;
    struct world_item item = {mc_span_string("k"), SMALL};
    (void)state;
    struct world_store a = world_open_one(&world), b = world_store(&world, NODE_B, MIB, "b");
    struct world_wish two = {.replica_count = 2},
                      over = {.replica_count = 2, .flags = MC_PUT_REPLACE | MC_PUT_HARD_PIN};
    for (unsigned round = 0; round < 3; round++) {
        item.length = SMALL + round;
        world_put_start(&world, a.call, 10 + round, &item, 1, round == 0 ? &two : &over, &grants);
        assert_int_equal(grants.place_count, 2);
        world_live_all(&world, &a, &b, &grants);
        assert_int_equal(world_owner_obeys(&world, a.owner), round == 0 ? 0 : 1);
        assert_int_equal(is_answered(&world, b.call), false);
        assert_int_equal(length_of(&world, b.call, "k"), round == 0 ? SMALL : 0); /* of the other, something remains */
        assert_int_equal(world_owner_obeys(&world, b.owner), round == 0 ? 0 : 1);
        assert_int_equal(world_put_done(&world, a.call, 10 + round), 0);
        assert_int_equal(length_of(&world, b.call, "k"), SMALL + round);
    }
    struct mc_core_statistics statistics = statistics_of(&world);
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
    struct fake_owner *a = start_with_value(&world, "k");
    assert_int_equal(world_grant(&world, a->call, 50, "k", SMALL * 2, &replace, &place), 0);
    fake_write(a, &place, "k", SMALL * 2, 0, 1);
    world_live(&world, a->owner, &place); /* and the CLEAR of the other is never heard */
    crash(&world, NEXT_EPOCH, SHORTLY_MS);
    come_back(&world, a);
    assert_int_equal(found(&world, a, "k"), SMALL * 2);
    finish(&world, a, NULL);
}

/* Two upserts at a time, at two owners. Once the later one was read, the earlier one's owner makes its value live no
 * more: it would be read again when the next master meets that owner first. */
static void test_what_was_read_is_not_hidden_by_an_earlier_upsert(void **state)
{
    struct world world;
    struct mc_wire_place early, late;
    (void)state;
    struct fake_owner *a = start_with_owner(&world), *b = fake(NODE_B);
    struct world_wish at_a = {.flags = MC_PUT_REPLACE, .preferred = {a->name}};
    struct world_wish at_b = {.flags = MC_PUT_REPLACE, .preferred = {b->name}};
    assert_int_equal(fake_join(&world, b).code, 0);
    assert_int_equal(fake_put(&world, b, "k", SMALL, 0), 0);
    assert_int_equal(world_grant(&world, a->call, 50, "k", SMALL * 2, &at_a, &early), 0);
    assert_int_equal(early.segment, a->segment);
    assert_int_equal(world_grant(&world, b->call, 51, "k", SMALL * 3, &at_b, &late), 0);
    assert_int_equal(late.segment, b->segment);
    fake_write(b, &late, "k", SMALL * 3, 0, 1);
    world_live(&world, b->owner, &late);
    (void)fake_obey(&world, b);
    (void)fake_obey(&world, a);
    assert_int_equal(world_put_done(&world, b->call, 51), 0);
    assert_int_equal(found(&world, b, "k"), SMALL * 3);
    if (a->slots[early.slot].generation < early.generation) /* else the owner refuses the commit */
        fake_write(a, &early, "k", SMALL * 2, 0, 1);
    crash(&world, NEXT_EPOCH, SHORTLY_MS);
    come_back(&world, a);
    assert_int_equal(found(&world, a, "k"), 0);
    come_back(&world, b);
    assert_int_equal(found(&world, b, "k"), SMALL * 3);
    finish(&world, a, b);
}

/* Two upserts of one key in one message. */
static void test_two_of_one_put(void **state)
{
    struct world world;
    static struct world_grants grants;
    struct world_item items[2] = {{mc_span_string("k"), SMALL * 2}, {mc_span_string("k"), SMALL * 3}};
    (void)state;
    for (unsigned wins = 0; wins < 2; wins++) {
        struct world_store store;
        uint64_t other = world_open_holding(&world, &store);
        world_put_start(&world, other, PUT_1, items, 2, &replace, &grants);
        assert_int_equal(grants.place_count, 2);
        world_live(&world, store.owner, &grants.places[wins]);
        assert_false(is_answered(&world, other));
        assert_int_equal(world_owner_obeys(&world, store.owner), 3);
        struct mc_frame frame = world_receive(&world, other);
        assert_int_equal(frame.type, MC_MESSAGE_PUT_DONE);
        assert_false(is_answered(&world, other));
        assert_int_equal(length_of(&world, other, "k"), items[wins].length);
        world_close_all(&world);
    }
}

/* The owner of another upsert of the key is cut off: nobody could tell it to clear that, so the value before stays. */
static void test_another_upsert_at_an_owner_that_is_cut_off(void **state)
{
    struct world world;
    struct mc_wire_place place, other;
    struct world_wish at_a = {.flags = MC_PUT_REPLACE, .preferred = {"a"}};
    struct world_wish at_b = {.flags = MC_PUT_REPLACE, .preferred = {"b"}};
    (void)state;
    struct world_store a = world_open_one(&world), b = world_store(&world, NODE_B, MIB, "b");
    assert_int_equal(world_put_place(&world, a.call, a.owner, "k", SMALL, &at_a, &place), 0);
    assert_int_equal(world_grant(&world, b.call, PUT_1, "k", SMALL * 2, &at_b, &other), 0);
    assert_int_equal(other.segment, b.segment);
    assert_int_equal(world_grant(&world, a.call, PUT_2, "k", SMALL * 3, &at_a, &place), 0);
    world_disconnect(&world, b.owner);
    world_live(&world, a.owner, &place);
    assert_int_equal(world_put_done(&world, a.call, PUT_2), MC_ERR_STALE);
    assert_int_equal(world_owner_obeys(&world, a.owner), 1);
    assert_int_equal(world_grant(&world, a.call, PUT_3, "k", SMALL * 3, &at_a, &place), MC_ERR_PUT_IN_PROGRESS);
    assert_int_equal(length_of(&world, a.call, "k"), SMALL);
    world_pass_beating(&world, DEPARTED_MS, a.heartbeat);
    put_over(&world, &a, &a, "k", SMALL * 3, &at_a);
    assert_int_equal(world_put_done(&world, b.call, PUT_1), MC_ERR_STALE);
    assert_int_equal(length_of(&world, a.call, "k"), SMALL * 3);
    world_close_all(&world);
}

/* They end at once, so there are not too many. */
static void test_many_at_a_time(void **state)
{
    struct world world;
    struct mc_wire_place place, other;
    (void)state;
    struct world_store store = world_open_lru(&world);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", SMALL), 0);
    for (unsigned i = 0; i < MC_SUCCESSORS_MAX; i++)
        assert_int_equal(world_grant(&world, store.call, 100 + i, "k", SMALL, &replace, &place), 0);
    assert_int_equal(world_grant(&world, store.call, PUT_1, "k", SMALL, &replace, &other), MC_ERR_PUT_IN_PROGRESS);
    world_check(&world);
    world_revoke(&world, store.call, &place);
    assert_int_equal(world_put_done(&world, store.call, 99 + MC_SUCCESSORS_MAX), MC_ERR_TRANSFER_FAIL);
    assert_int_equal(world_owner_obeys(&world, store.owner), 1);
    assert_int_equal(world_grant(&world, store.call, PUT_1, "k", SMALL, &replace, &place), 0);
    world_live(&world, store.owner, &place);
    for (unsigned left = MC_SUCCESSORS_MAX - 1; left > 0; left--)
        assert_int_equal(world_receive(&world, store.call).type, MC_MESSAGE_PUT_DONE);
    assert_false(is_answered(&world, store.call)); /* what was to replace it is not cleared */
    assert_int_equal(world_owner_obeys(&world, store.owner), 1 + 2 * (MC_SUCCESSORS_MAX - 1));
    assert_int_equal(world_put_done(&world, store.call, PUT_1), 0);
    world_close_all(&world);
}

/* What is to make room for one item of a put is the value that another one was to replace. */
static void test_one_item_ends_another(void **state)
{
    struct world world;
    static struct world_grants grants;
    struct world_item items[2] = {{mc_span_string("k"), MIB}, {mc_span_string("l"), 2 * MIB}};
    (void)state;
    for (unsigned fits = 0; fits < 2; fits++) {
        struct world_store store = world_open_lru(&world);
        assert_int_equal(world_put(&world, store.call, store.owner, "k", 2 * MIB), 0);
        items[1].length = fits ? SMALL : 2 * MIB;
        world_put_start(&world, store.call, PUT_1, items, 2, &replace, &grants);
        world_check(&world);
        assert_int_equal(grants.items[0].code, 0);
        assert_int_equal(grants.items[1].code == 0, fits);
        if (!fits) {
            assert_int_equal(world_put_done(&world, store.call, PUT_1), MC_ERR_STALE);
            assert_int_equal(get_code(&world, store.call, "k"), MC_ERR_OBJECT_NOT_FOUND);
            assert_int_equal(world_owner_obeys(&world, store.owner), 3);
        }
        world_close_all(&world);
    }
}

/* A removal of all looks at one segment after the other, in slices; how far it has come. */
struct removal {
    struct world_store a, b, c; /* it has looked through a, stands in b, and "x" lies in c */
    uint64_t version;           /* of "x" */
};

static void removal_open(struct world *world, struct removal *removal)
{
    struct world_wish at_b = {.preferred = {"b"}}, at_c = {.preferred = {"c"}};
    struct mc_wire_place place;
    char key[16];
    world_open(world);
    removal->a = world_store(world, NODE_A, MIB, "a");
    removal->b = world_store(world, NODE_B, MIB, "b");
    removal->c = world_store(world, NODE_C, MIB, "c");
    for (unsigned i = 0; i < 3000; i++) {
        (void)snprintf(key, sizeof(key), "k%u", i);
        assert_int_equal(world_put_place(world, removal->b.call, removal->b.owner, key, SMALL, &at_b, &place), 0);
        assert_int_equal(place.segment, removal->b.segment);
    }
    assert_int_equal(world_put_place(world, removal->c.call, removal->c.owner, "x", SMALL, &at_c, &place), 0);
    assert_int_equal(place.segment, removal->c.segment);
    removal->version = place.generation;
}

static void removal_begin(struct world *world, const struct removal *removal, const char *pattern)
{
    uint64_t before = world->core->visible_count;
    world_remove_all_send(world, removal->c.call, pattern, true);
    (void)mc_core_tick(world->core, world->now);
    assert_int_equal(world_count_answer(world, removal->c.call), INT64_MIN);
    assert_true(pattern != NULL || (world->core->visible_count < before && world->core->visible_count > 1));
}

/* To the end of the removal; how many were removed. */
static int64_t removal_end(struct world *world, const struct removal *removal)
{
    int64_t count = INT64_MIN;
    for (unsigned i = 0; i < 100 && count == INT64_MIN; i++) {
        world_pass(world, 20);
        (void)world_owner_obeys(world, removal->a.owner);
        (void)world_owner_obeys(world, removal->b.owner);
        (void)world_owner_obeys(world, removal->c.owner);
        count = world_count_answer(world, removal->c.call);
    }
    world_check(world);
    return count;
}

/* A value that was there all the time does not escape a removal by being copied to where that has looked already. */
static void test_copy_does_not_escape_a_removal_of_all(void **state)
{
    struct world world;
    struct removal removal;
    struct mc_wire_place place;
    (void)state;
    for (unsigned late = 0; late < 2; late++) {
        removal_open(&world, &removal);
        struct world_wish at_a = {.flags = MC_PUT_REPLACE, .preferred = {"a"}, .expected = removal.version};
        if (late == 0)
            assert_int_equal(world_grant(&world, removal.a.call, PUT_2, "x", SMALL, &at_a, &place), 0);
        removal_begin(&world, &removal, NULL);
        if (late == 0) {
            assert_int_equal(place.segment, removal.a.segment);
            world_live(&world, removal.a.owner, &place);
            assert_int_equal(world_put_done(&world, removal.a.call, PUT_2), MC_ERR_STALE);
        } else {
            assert_int_equal(world_grant(&world, removal.a.call, PUT_2, "x", SMALL, &at_a, &place),
                             MC_ERR_PUT_IN_PROGRESS);
        }
        assert_int_equal(removal_end(&world, &removal), 3001);
        assert_int_equal(length_of(&world, removal.a.call, "x"), 0);
        world_close_all(&world);
    }
}

/* A removal that has come by the value and left it is no hindrance, nor is one that nobody waits for any more. */
static void test_copy_beside_a_removal(void **state)
{
    struct world world;
    struct removal removal;
    struct mc_wire_place place;
    (void)state;
    for (unsigned how = 0; how < 2; how++) {
        removal_open(&world, &removal);
        struct world_wish at_a = {.flags = MC_PUT_REPLACE, .preferred = {"a"}, .expected = removal.version};
        removal_begin(&world, &removal, "^k");
        assert_int_equal(world_grant(&world, removal.a.call, PUT_2, "x", SMALL, &at_a, &place), MC_ERR_PUT_IN_PROGRESS);
        if (how == 0)
            assert_int_equal(removal_end(&world, &removal), 3000);
        else
            world_disconnect(&world, removal.c.call);
        assert_int_equal(world_grant(&world, removal.a.call, PUT_3, "x", SMALL, &at_a, &place), 0);
        world_live(&world, removal.a.owner, &place);
        assert_int_equal(world_owner_obeys(&world, removal.c.owner), 1);
        assert_int_equal(world_put_done(&world, removal.a.call, PUT_3), 0);
        assert_int_equal(length_of(&world, removal.a.call, "x"), SMALL);
        world_close_all(&world);
    }
}

/* The removal has looked where the new value lies, and the one before is not cleared: it would be what the master after
 * us finds if the new one's owner ended as well. */
static void test_removal_of_all_waits_for_the_value_before(void **state)
{
    struct world world;
    struct removal removal;
    struct mc_wire_place place;
    (void)state;
    removal_open(&world, &removal);
    struct world_wish at_a = {.flags = MC_PUT_REPLACE, .preferred = {"a"}};
    removal_begin(&world, &removal, NULL);
    assert_int_equal(world_grant(&world, removal.a.call, PUT_2, "x", SMALL * 2, &at_a, &place), 0);
    assert_int_equal(place.segment, removal.a.segment);
    world_live(&world, removal.a.owner, &place);
    for (unsigned i = 0; i < 50; i++) {
        world_pass(&world, 20);
        (void)world_owner_obeys(&world, removal.b.owner);
    }
    assert_int_equal(world_count_answer(&world, removal.c.call), INT64_MIN);
    assert_int_equal(world_owner_obeys(&world, removal.c.owner), 1);
    assert_int_equal(world_put_done(&world, removal.a.call, PUT_2), 0);
    assert_true(removal_end(&world, &removal) >= 3000);
    world_close_all(&world);
}

/* A segment just below its watermark, of which "k" is the oldest value, in group 77; its version. */
static uint64_t nearly_full(struct world *world, const struct world_store *store)
{
    const struct world_wish in_group = {.group = 77};
    struct mc_wire_place place;
    char key[16];
    assert_int_equal(world_put_place(world, store->call, store->owner, "k", SMALL, &in_group, &place), 0);
    for (unsigned i = 0; i < 9; i++) {
        (void)snprintf(key, sizeof(key), "f%u", i);
        assert_int_equal(world_put(world, store->call, store->owner, key, 100 << 10), 0);
    }
    assert_int_equal(world->core->visible_count, 10);
    return place.generation;
}

/* The upsert's own value has to make room for it: neither its writer nor a reader is told of the new one before that is
 * cleared. A copy is not made of what is no more. */
static void test_value_that_makes_room_for_the_next(void **state)
{
    enum { ENDS, FAILS, COPY, ROUNDS };
    struct world world;
    struct mc_wire_place place;
    int32_t code = 1;
    (void)state;
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct world_store store = world_open_one(&world);
        uint64_t other = world_client(&world, CLIENT);
        struct world_wish wish = {.flags = MC_PUT_REPLACE, .expected = nearly_full(&world, &store)};
        uint64_t used = world.core->segments[store.segment & 0xffff]->used;
        if (round == COPY) {
            assert_int_equal(world_grant(&world, other, PUT_2, "k", 120 << 10, &wish, &place), MC_ERR_STALE);
            assert_int_equal(get_code(&world, store.call, "k"), MC_ERR_OBJECT_NOT_FOUND);
            assert_true(world.core->segments[store.segment & 0xffff]->used < used);
            world_close_all(&world);
            continue;
        }
        assert_int_equal(world_grant(&world, other, PUT_2, "k", 120 << 10, &replace, &place), 0);
        assert_int_equal(world.group, 77); /* which the key keeps */
        assert_int_not_equal(get_code(&world, store.call, "k"), 0);
        if (round == FAILS) {
            world_revoke(&world, other, &place);
            assert_int_equal(world_put_done(&world, other, PUT_2), MC_ERR_TRANSFER_FAIL);
            assert_int_equal(world_grant(&world, other, PUT_3, "k", SMALL, NULL, NULL), MC_ERR_PUT_IN_PROGRESS);
            (void)world_owner_obeys(&world, store.owner);
            assert_int_equal(world_put(&world, store.call, store.owner, "k", SMALL), 0);
            world_close_all(&world);
            continue;
        }
        world_live(&world, store.owner, &place);
        world_check(&world);
        assert_false(is_answered(&world, other));
        assert_int_equal(get_code(&world, store.call, "k"), MC_ERR_PUT_IN_PROGRESS);
        assert_int_equal(world_exist(&world, store.call, "k"), 1);
        world_remove_one_send(&world, store.call, "k");
        assert_true(world_remove_answer(&world, store.call, &code, 1));
        assert_int_equal(code, MC_ERR_BUSY);
        assert_true(world_owner_obeys(&world, store.owner) > 1);
        assert_int_equal(world_put_done(&world, other, PUT_2), 0);
        assert_int_equal(length_of(&world, other, "k"), 120 << 10);
        world_close_all(&world);
    }
}

/* What has to make room for a put ends a copy that the same connection makes of it: its answer stands before that to
 * the put, not within. */
static void test_put_that_ends_a_copy_of_the_same_connection(void **state)
{
    struct world world;
    struct mc_wire_place place;
    static struct world_grants grants;
    struct world_item item = {mc_span_string("x"), 120 << 10};
    (void)state;
    struct world_store a = world_open_one(&world);
    uint64_t version = nearly_full(&world, &a);
    struct world_store b = world_store(&world, NODE_B, MIB, "b");
    struct world_wish at_b = {.flags = MC_PUT_REPLACE, .preferred = {"b"}, .expected = version};
    struct world_wish at_a = {.preferred = {"a"}};
    assert_int_equal(world_grant(&world, a.call, PUT_2, "k", SMALL, &at_b, &place), 0);
    assert_int_equal(place.segment, b.segment);
    world_put_start_send(&world, a.call, PUT_3, &item, 1, &at_a);
    assert_int_equal(world_put_done(&world, a.call, PUT_2), MC_ERR_STALE);
    world_put_granted(&world, a.call, PUT_3, 1, &grants);
    assert_int_equal(grants.items[0].code, 0);
    assert_int_equal(grants.places[0].segment, a.segment);
    assert_false(is_answered(&world, a.call));
    world_close_all(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_old_value_until_the_new_one_is_whole),
        cmocka_unit_test(test_waits_for_an_owner_that_is_cut_off),
        cmocka_unit_test(test_value_with_a_replica_that_is_cut_off_stays),
        cmocka_unit_test(test_what_a_failed_grant_left_is_cleared_first),
        cmocka_unit_test(test_new_value_goes_while_it_waits),
        cmocka_unit_test(test_writer_goes_while_it_waits),
        cmocka_unit_test(test_one_of_a_batch_waits),
        cmocka_unit_test(test_absent_key),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_two_at_a_time),
        cmocka_unit_test(test_another_value_with_the_same_serial),
        cmocka_unit_test(test_expected_version),
        cmocka_unit_test(test_lease_stays_with_the_value),
        cmocka_unit_test(test_copy_of_what_goes),
        cmocka_unit_test(test_copy_does_not_escape_a_removal_of_all),
        cmocka_unit_test(test_copy_beside_a_removal),
        cmocka_unit_test(test_removal_of_all_waits_for_the_value_before),
        cmocka_unit_test(test_value_that_makes_room_for_the_next),
        cmocka_unit_test(test_put_that_ends_a_copy_of_the_same_connection),
        cmocka_unit_test(test_replicas),
        cmocka_unit_test(test_both_are_found_again),
        cmocka_unit_test(test_what_was_read_is_not_hidden_by_an_earlier_upsert),
        cmocka_unit_test(test_two_of_one_put),
        cmocka_unit_test(test_another_upsert_at_an_owner_that_is_cut_off),
        cmocka_unit_test(test_many_at_a_time),
        cmocka_unit_test(test_one_item_ends_another),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
