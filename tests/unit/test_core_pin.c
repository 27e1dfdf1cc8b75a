/* Soft pins: a deadline of their own, which no use moves, and which outlives masters. */
#include "core_owner.h"
#include "store/core/replica.h"

#define PIN_MS 5000u

static const struct world_wish for_a_while = {.flags = MC_PUT_SOFT_PIN, .pin_ms = PIN_MS};

/* A put of one replica to the only owner, which does what it is told. */
static int32_t put(struct world *world, struct fake_owner *owner, const char *key, const struct world_wish *wish)
{
    struct mc_wire_place place;
    int32_t code = world_grant(world, owner->call, PUT_1, key, SMALL, wish, &place);
    if (code != 0)
        return code;
    fake_write(owner, &place, key, SMALL, (uint8_t)wish->flags, 1);
    world_live(world, owner->owner, &place);
    (void)fake_obey(world, owner);
    world_check(world);
    return world_put_done(world, owner->call, PUT_1);
}

static uint64_t pinned(const struct world *world)
{
    world_check(world);
    return statistics_of(world).soft_pinned;
}

/* Time passes, in which the owner is heard. */
static void pass(struct world *world, struct fake_owner *owner, uint64_t ms)
{
    world_pass_beating(world, ms, owner->heartbeat);
}

static void test_deadline_that_no_use_moves(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *a = start_with_owner(&world);
    assert_int_equal(put(&world, a, "k", &for_a_while), 0);
    assert_int_equal(world.pin_ms, PIN_MS); /* for its owner */
    for (unsigned i = 0; i < 4; i++) {
        pass(&world, a, 1000);
        assert_int_equal(found(&world, a, "k"), SMALL);
        assert_int_equal(world_exist(&world, a->call, "k"), 1);
    }
    pass(&world, a, 999);
    assert_int_equal(pinned(&world), 1);
    pass(&world, a, 100);
    assert_int_equal(pinned(&world), 0);
    assert_int_equal(statistics_of(&world).soft_pins_expired, 1);
    assert_int_equal(found(&world, a, "k"), SMALL); /* as any other now */
    finish(&world, a, NULL);
}

static void test_how_long(void **state)
{
    struct world world;
    struct mc_core_config config = mc_core_config_default();
    const struct world_wish plain = {.flags = MC_PUT_SOFT_PIN}, hard = {.flags = MC_PUT_SOFT_PIN | MC_PUT_HARD_PIN};
    const struct world_item item = {mc_span_string("longer"), SMALL};
    struct world_wish longer = {.flags = MC_PUT_SOFT_PIN, .pin_ms = 20000};
    (void)state;
    config.soft_pin_ttl_ms = 2000;
    config.soft_pin_max_ms = 20000;
    world_start(&world, FIRST_EPOCH, &config);
    struct fake_owner *a = fake(NODE_A);
    assert_int_equal(fake_join(&world, a).code, 0);
    assert_int_equal(put(&world, a, "plain", &plain), 0);
    assert_int_equal(world.pin_ms, 2000);
    assert_int_equal(put(&world, a, "hard", &hard), 0); /* which needs no deadline */
    assert_int_equal(world.pin_ms, 0);
    assert_int_equal(put(&world, a, "longest", &longer), 0);
    longer.pin_ms++;
    world_put_start_send(&world, a->call, PUT_1, &item, 1, &longer);
    struct mc_frame answer = world_receive(&world, a->call);
    struct mc_reader reader = mc_reader(answer.body.data, answer.body.length);
    struct mc_wire_failed failed;
    assert_int_equal(answer.type, MC_MESSAGE_FAILED);
    mc_wire_failed_read(&reader, &failed);
    assert_int_equal(failed.code, MC_ERR_INVALID_PARAMS);
    assert_int_equal(pinned(&world), 2);
    pass(&world, a, 2100);
    assert_int_equal(pinned(&world), 1);
    pass(&world, a, 18000);
    assert_int_equal(pinned(&world), 0);
    finish(&world, a, NULL);
}

static void test_no_default_is_no_pin(void **state)
{
    struct world world;
    struct mc_core_config config = mc_core_config_default();
    const struct world_wish plain = {.flags = MC_PUT_SOFT_PIN};
    (void)state;
    config.soft_pin_ttl_ms = 0;
    world_start(&world, FIRST_EPOCH, &config);
    struct fake_owner *a = fake(NODE_A);
    assert_int_equal(fake_join(&world, a).code, 0);
    assert_int_equal(put(&world, a, "k", &plain), 0);
    assert_int_equal(world.pin_ms, 0);
    assert_int_equal(pinned(&world), 0);
    finish(&world, a, NULL);
}

/* They end each at its own time, in whatever order they came. */
static void test_many_deadlines(void **state)
{
    struct world world;
    char key[32];
    (void)state;
    struct fake_owner *a = start_with_owner(&world);
    for (unsigned i = 0; i < 100; i++) {
        const struct world_wish wish = {.flags = MC_PUT_SOFT_PIN, .pin_ms = (1 + i * 37 % 100) * 1000};
        assert_int_equal(put(&world, a, world_name(key, "k", i), &wish), 0);
    }
    pass(&world, a, 100);
    for (unsigned left = 100; left > 0; left--) {
        assert_int_equal(pinned(&world), left);
        pass(&world, a, 1000);
    }
    assert_int_equal(pinned(&world), 0);
    assert_int_equal(statistics_of(&world).soft_pins_expired, 100);
    finish(&world, a, NULL);
}

/* One that is over goes as any other does, while one that is not, and was used no later, stays. */
static void test_what_goes_when_room_is_needed(void **state)
{
    struct world world;
    char key[32];
    const struct world_wish longer = {.flags = MC_PUT_SOFT_PIN, .pin_ms = 60000};
    (void)state;
    struct world_store store = world_open_one(&world);
    assert_int_equal(world_put_hard(&world, &store, "short", 4000, &for_a_while), 0);
    assert_int_equal(world_put_hard(&world, &store, "long", 4000, &longer), 0);
    for (unsigned i = 0; i < 500; i++)
        assert_int_equal(world_put_hard(&world, &store, world_name(key, "a", i), 4000, NULL), 0);
    assert_int_equal(statistics_of(&world).soft_pinned, 2);
    world_pass_beating(&world, PIN_MS, store.heartbeat);
    for (unsigned i = 0; i < 1000; i++)
        assert_int_equal(world_put_hard(&world, &store, world_name(key, "b", i), 4000, NULL), 0);
    assert_int_equal(statistics_of(&world).soft_pinned, 1);
    assert_int_equal(world_exist(&world, store.call, "long"), 1);
    assert_int_equal(world_exist(&world, store.call, "short"), 0);
    world_close_all(&world);
}

/* An upsert that wants no pin leaves what there was, if it says so: until the same moment. */
static void test_upserts(void **state)
{
    struct world world;
    const struct world_wish keep = {.flags = MC_PUT_REPLACE | MC_PUT_KEEP_PIN}, drop = {.flags = MC_PUT_REPLACE};
    const struct world_wish anew = {.flags = MC_PUT_REPLACE | MC_PUT_SOFT_PIN | MC_PUT_KEEP_PIN, .pin_ms = 2 * PIN_MS};
    (void)state;
    struct fake_owner *a = start_with_owner(&world);
    assert_int_equal(put(&world, a, "k", &for_a_while), 0);
    pass(&world, a, 2000);
    assert_int_equal(put(&world, a, "k", &keep), 0);
    assert_true(world.pin_ms <= PIN_MS - 1900 && world.pin_ms >= PIN_MS - 2100);
    assert_int_equal(pinned(&world), 1);
    pass(&world, a, 2900);
    assert_int_equal(pinned(&world), 1);
    pass(&world, a, 300);
    assert_int_equal(pinned(&world), 0);
    assert_int_equal(put(&world, a, "k", &keep), 0); /* there is none any more */
    assert_int_equal(world.pin_ms, 0);
    assert_int_equal(pinned(&world), 0);
    assert_int_equal(put(&world, a, "k", &anew), 0);
    assert_int_equal(world.pin_ms, 2 * PIN_MS);
    pass(&world, a, PIN_MS + 1000);
    assert_int_equal(put(&world, a, "k", &drop), 0);
    assert_int_equal(pinned(&world), 0);
    assert_int_equal(statistics_of(&world).soft_pins_expired, 1);
    finish(&world, a, NULL);
}

/* The writer of an upsert leaves while the value before it is still being cleared. */
static void test_upsert_whose_writer_left(void **state)
{
    struct world world;
    struct mc_wire_place place;
    const struct world_wish keep = {.flags = MC_PUT_REPLACE | MC_PUT_KEEP_PIN};
    (void)state;
    struct fake_owner *a = start_with_owner(&world);
    uint64_t client = world_client(&world, CLIENT);
    assert_int_equal(put(&world, a, "k", &for_a_while), 0);
    assert_int_equal(world_grant(&world, client, PUT_1, "k", SMALL, &keep, &place), 0);
    fake_write(a, &place, "k", SMALL, MC_PUT_SOFT_PIN, 1);
    world_live(&world, a->owner, &place);
    assert_int_equal(pinned(&world), 0); /* nothing can be read just now */
    world_revoke(&world, client, &place);
    pass(&world, a, 1000);
    (void)fake_obey(&world, a);
    assert_int_equal(pinned(&world), 1);
    pass(&world, a, PIN_MS - 1100);
    assert_int_equal(pinned(&world), 1);
    pass(&world, a, 300);
    assert_int_equal(pinned(&world), 0);
    finish(&world, a, NULL);
}

/* A copy of the value, at another place, has its deadline, whatever the one who copies believes; and it was read. */
static void test_copies(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    struct fake_owner *a = start_with_owner(&world);
    assert_int_equal(put(&world, a, "k", &for_a_while), 0);
    assert_int_equal(put(&world, a, "other", &(struct world_wish){0}), 0);
    pass(&world, a, 2000);
    for (unsigned i = 0; i < 2; i++) {
        const char *key = i == 0 ? "k" : "other";
        assert_int_equal(world_get(&world, a->call, key, 0, NULL, &place), 0);
        const struct world_wish copy = {.flags = MC_PUT_REPLACE | (i == 0 ? 0 : MC_PUT_SOFT_PIN),
                                        .expected = place.generation - place.replica};
        assert_int_equal(put(&world, a, key, &copy), 0);
        assert_int_equal(world.pin_ms > 0, i == 0);
        assert_true(mc_object_was_read(mc_objects_find(&world.core->objects, mc_span_string(key))));
        assert_int_equal(pinned(&world), 1);
    }
    pass(&world, a, PIN_MS - 2000 + 100);
    assert_int_equal(pinned(&world), 0);
    finish(&world, a, NULL);
}

/* A later master has it from the owner: what is left; no more than it grants itself; and anew where nobody knows. */
static void test_masters_end(void **state)
{
    struct world world;
    const uint64_t most_ms = mc_core_config_default().soft_pin_max_ms;
    (void)state;
    struct fake_owner *a = start_with_owner(&world);
    const struct world_wish longest = {.flags = MC_PUT_SOFT_PIN, .pin_ms = most_ms};
    assert_int_equal(put(&world, a, "k", &for_a_while), 0);
    assert_int_equal(put(&world, a, "longest", &longest), 0);
    assert_int_equal(put(&world, a, "of_old", &longest), 0);
    crash(&world, NEXT_EPOCH, 500);
    held(a, "k")->pin_ms = 3000;
    held(a, "longest")->pin_ms = 10 * most_ms;
    held(a, "of_old")->pin_ms = 0;
    come_back(&world, a); /* the contents are offered later than they are told */
    assert_int_equal(pinned(&world), 3);
    const struct mc_object *object = mc_object_find(world.core, mc_span_string("longest"));
    assert_true(mc_pin_left_ms(world.core, object) <= most_ms);
    object = mc_object_find(world.core, mc_span_string("of_old"));
    assert_true(mc_pin_left_ms(world.core, object) <= mc_core_config_default().soft_pin_ttl_ms);
    object = mc_object_find(world.core, mc_span_string("k"));
    assert_true(mc_pin_left_ms(world.core, object) <= 3000 - GRACE_OVER_MS);
    pass(&world, a, 3000 - GRACE_OVER_MS + 100);
    assert_int_equal(pinned(&world), 2);
    finish(&world, a, NULL);
}

/* Pins whose values have gone do not add up. */
static void test_deadlines_of_what_has_gone(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *a = start_with_owner(&world);
    for (unsigned i = 0; i < 5000; i++) {
        assert_int_equal(put(&world, a, "k", &for_a_while), 0);
        assert_int_equal(fake_remove(&world, a, a, "k"), 0);
        if (i % 500 == 0)
            world_beat(&world, a->heartbeat);
    }
    assert_int_equal(pinned(&world), 0);
    assert_true(world.core->pins.count < 8);
    finish(&world, a, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_deadline_that_no_use_moves),
        cmocka_unit_test(test_how_long),
        cmocka_unit_test(test_no_default_is_no_pin),
        cmocka_unit_test(test_many_deadlines),
        cmocka_unit_test(test_what_goes_when_room_is_needed),
        cmocka_unit_test(test_upserts),
        cmocka_unit_test(test_upsert_whose_writer_left),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_masters_end),
        cmocka_unit_test(test_deadlines_of_what_has_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
