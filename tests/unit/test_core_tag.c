/* The tags that the master gives with places: of that segment's key, for who asks, and for what he may do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core_world.h"

#include "base/checksum.h"

static const uint8_t first_key[MC_TAG_KEY_BYTES] = "sixteen bytes 1", second_key[MC_TAG_KEY_BYTES] = "sixteen bytes 2";

static struct mc_tagged tagged(uint64_t node, const struct mc_wire_place *place, const char *name, uint64_t length)
{
    struct mc_hash hash = mc_hash(name, strlen(name));
    return (struct mc_tagged){.holder = world_hello(MC_ROLE_CALL, node, FIRST_LIFE).node,
                              .slot = place->slot,
                              .key_length = (uint16_t)strlen(name),
                              .generation = place->generation,
                              .offset = place->offset,
                              .length = length,
                              .hash_low = hash.low,
                              .hash_high = hash.high};
}

static void mount_with(struct world *world, struct world_store *store, const uint8_t *key)
{
    struct mc_wire_mount mount = world_mount_of(NODE_A, MIB, "a");
    mount.key_mark = key == second_key;
    mount.tag_key = mc_span(key, key == NULL ? 0 : MC_TAG_KEY_BYTES);
    struct mc_wire_mount_reply reply = world_mount(world, store->owner, &mount);
    assert_int_equal(reply.code, 0);
    assert_int_equal(reply.segment, store->segment);
}

static void test_places_carry_tags(void **state)
{
    struct world world;
    struct mc_wire_place put, got, other;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t reader = world_client(&world, NODE_B);
    mount_with(&world, &store, first_key);
    assert_int_equal(world_put_place(&world, store.call, store.owner, "k", 777, NULL, &put), 0);
    struct mc_tagged what = tagged(NODE_A, &put, "k", 777);
    assert_true(put.tag == mc_tag_write(first_key, &what));
    assert_int_equal(world_get(&world, reader, "k", 0, NULL, &got), 0);
    what = tagged(NODE_B, &got, "k", 777);
    assert_true(got.tag == mc_tag_read(first_key, &what));
    assert_int_equal(got.generation, put.generation);
    assert_int_equal(world_get(&world, store.call, "k", 0, NULL, &other), 0);
    assert_true(other.tag != got.tag && other.tag != put.tag);
    world_close_all(&world);
}

/* Also what lies there for long has the tag of the key that was told last; and none where the owner wants none. */
static void test_the_key_is_the_last_that_was_told(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    struct world_store store = world_open_one(&world);
    assert_int_equal(world_put_place(&world, store.call, store.owner, "k", 777, NULL, &place), 0);
    assert_int_equal(place.tag, 0);
    assert_int_equal(world_get(&world, store.call, "k", 0, NULL, &place), 0);
    assert_int_equal(place.tag, 0);
    const uint8_t *keys[] = {first_key, second_key};
    for (unsigned i = 0; i < 2; i++) {
        mount_with(&world, &store, keys[i]); /* of mark i */
        assert_int_equal(world_get(&world, store.call, "k", 0, NULL, &place), 0);
        struct mc_tagged what = tagged(NODE_A, &place, "k", 777);
        assert_true(place.tag == mc_tag_marked(mc_tag_read(keys[i], &what), i));
    }
    mount_with(&world, &store, NULL);
    assert_int_equal(world_get(&world, store.call, "k", 0, NULL, &place), 0);
    assert_int_equal(place.tag, 0);
    world_close_all(&world);
}

/* What replaces a value is an object of its own: its tag is of the new length. */
static void test_an_upsert_has_the_tag_of_its_own_length(void **state)
{
    struct world world;
    struct mc_wire_place place;
    struct world_wish replace = {.flags = MC_PUT_REPLACE};
    (void)state;
    struct world_store store = world_open_one(&world);
    mount_with(&world, &store, first_key);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", 777), 0);
    assert_int_equal(world_grant(&world, store.call, 5, "k", 999, &replace, &place), 0);
    struct mc_tagged what = tagged(NODE_A, &place, "k", 999);
    assert_true(place.tag == mc_tag_write(first_key, &what));
    world_close_all(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places_carry_tags),
        cmocka_unit_test(test_the_key_is_the_last_that_was_told),
        cmocka_unit_test(test_an_upsert_has_the_tag_of_its_own_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
