/* What goes first, by policy: of the same puts and uses, each lets others go. And that what it remembers has limits. */
#include "core_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define OBJECT 4000u /* with its key and rounding: 4032 bytes */
#define FITS 1040u   /* of them, in 4 MiB */

static struct world_store open_with(struct world *world, const char *policy)
{
    struct mc_core_config config = mc_core_config_default();
    config.policy = mc_eviction_find(policy);
    assert_non_null(config.policy);
    world_open_with(world, &config);
    return world_store(world, NODE_A, 4 * MIB, "a");
}

static void put_all(struct world *world, const struct world_store *store, const char *prefix, unsigned from,
                    unsigned to)
{
    char key[32];
    for (unsigned i = from; i < to; i++)
        assert_int_equal(world_put_hard(world, store, world_name(key, prefix, i), OBJECT, NULL), 0);
}

/* How many of them are there. It is no use of them. */
static unsigned left_of(const struct world *world, const char *prefix, unsigned from, unsigned to)
{
    struct mc_core_replica replica;
    char key[32];
    unsigned left = 0;
    for (unsigned i = from; i < to; i++)
        left += mc_core_query(world->core, mc_span_string(world_name(key, prefix, i)), &replica, 1) == 1;
    return left;
}

static void use_all(struct world *world, const struct world_store *store, const char *prefix, unsigned from,
                    unsigned to)
{
    char key[32];
    for (unsigned i = from; i < to; i++)
        (void)world_exist(world, store->call, world_name(key, prefix, i));
}

static void test_names(void **state)
{
    (void)state;
    assert_ptr_equal(mc_eviction_find("lru"), &mc_eviction_lru);
    assert_ptr_equal(mc_eviction_find("clock"), &mc_eviction_clock);
    assert_ptr_equal(mc_eviction_find("s3fifo"), &mc_eviction_s3fifo);
    assert_null(mc_eviction_find("fifo"));
    assert_null(mc_eviction_find(""));
    assert_ptr_equal(mc_core_config_default().policy, mc_eviction_default());
}

/* What is used now and then outlives what comes once. */
static void used_ones_stay(const char *policy)
{
    struct world world;
    struct world_store store = open_with(&world, policy);
    put_all(&world, &store, "k", 0, 100);
    for (unsigned round = 0; round < 10; round++) {
        use_all(&world, &store, "k", 0, 50);
        put_all(&world, &store, "n", round * 500, round * 500 + 500);
        world_check(&world);
    }
    assert_int_equal(left_of(&world, "k", 0, 50), 50);
    assert_int_equal(left_of(&world, "k", 50, 100), 0);
    world_close_all(&world);
}

static void test_used_ones_stay(void **state)
{
    (void)state;
    used_ones_stay("lru");
    used_ones_stay("clock");
    used_ones_stay("s3fifo");
}

/* A scan larger than the memory: only s3fifo keeps what was used twice before it. */
static void test_scan(void **state)
{
    static const struct {
        const char *policy;
        unsigned left;
    } expected[] = {{"lru", 0}, {"clock", 0}, {"s3fifo", 100}};
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        struct world world;
        struct world_store store = open_with(&world, expected[i].policy);
        put_all(&world, &store, "k", 0, 100);
        use_all(&world, &store, "k", 0, 100);
        put_all(&world, &store, "n", 0, 5 * FITS);
        assert_int_equal(left_of(&world, "k", 0, 100), expected[i].left);
        assert_true(left_of(&world, "n", 0, 5 * FITS) > FITS - 150 - expected[i].left);
        world_check(&world);
        world_close_all(&world);
    }
}

/* What was popular goes when something else is. */
static void test_nothing_stays_for_ever(void **state)
{
    struct world world;
    char prefix[8];
    (void)state;
    struct world_store store = open_with(&world, "s3fifo");
    put_all(&world, &store, "old", 0, 500);
    use_all(&world, &store, "old", 0, 500);
    for (unsigned round = 0; round < 20; round++) {
        (void)snprintf(prefix, sizeof(prefix), "n%u-", round);
        put_all(&world, &store, prefix, 0, 300);
        use_all(&world, &store, prefix, 0, 300);
    }
    assert_int_equal(left_of(&world, "old", 0, 500), 0);
    world_check(&world);
    world_close_all(&world);
}

/* A key that went and comes back is no longer new: it outlives those that are. */
static void test_return(void **state)
{
    struct world world;
    (void)state;
    struct world_store store = open_with(&world, "s3fifo");
    put_all(&world, &store, "k", 0, 100);
    put_all(&world, &store, "n", 0, FITS);
    assert_int_equal(left_of(&world, "k", 0, 100), 0);
    assert_true(world.core->ghosts.fresh >= 100);
    double part = world.core->fresh_part;
    put_all(&world, &store, "k", 0, 100);
    assert_true(world.core->fresh_part > part); /* they went too early */
    put_all(&world, &store, "m", 0, 3 * FITS);
    assert_int_equal(left_of(&world, "k", 0, 100), 100);
    world_check(&world);
    world_close_all(&world);
}

/* Whose turn it is are all being read: others go, however many there should be of them. */
static void test_what_is_read_hinders_nobody(void **state)
{
    enum { PROVEN = 3, LENGTH = 100000 };
    struct world world;
    struct world_store store;
    char key[32];
    (void)state;
    struct mc_core_config config = mc_core_config_default();
    config.policy = mc_eviction_find("s3fifo");
    world_open_with(&world, &config);
    store = world_store(&world, NODE_A, MIB, "a");
    for (unsigned i = 0; i < PROVEN; i++)
        assert_int_equal(world_put_hard(&world, &store, world_name(key, "p", i), LENGTH, NULL), 0);
    use_all(&world, &store, "p", 0, PROVEN);
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(world_put_hard(&world, &store, world_name(key, "n", i), LENGTH, NULL), 0);
    assert_int_equal(world.core->segments[store.segment & 0xffff]->proven.count, PROVEN);
    world.core->fresh_part = 0.7; /* of ten that fit: the proven ones go first */
    for (unsigned i = 0; i < PROVEN; i++)
        assert_int_equal(world_get(&world, world_client(&world, 100 + i), world_name(key, "p", i), 0, NULL, NULL), 0);
    for (unsigned i = 20; i < 40; i++)
        assert_int_equal(world_put_hard(&world, &store, world_name(key, "n", i), LENGTH, NULL), 0);
    assert_int_equal(left_of(&world, "p", 0, PROVEN), PROVEN);
    world_close_all(&world);
}

/* All that there is was used, more than one message may pass over: something goes all the same. */
static void all_were_used(const char *policy)
{
    struct world world;
    char key[32];
    struct mc_core_config config = mc_core_config_default();
    config.policy = mc_eviction_find(policy);
    world_open_with(&world, &config);
    struct world_store store = world_store(&world, NODE_A, 16 * MIB, "a");
    for (unsigned i = 0; i < 3 * MC_EVICT_TURNS_MAX; i++)
        assert_int_equal(world_put_hard(&world, &store, world_name(key, "k", i), 2000, NULL), 0);
    use_all(&world, &store, "k", 0, 3 * MC_EVICT_TURNS_MAX);
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(world_put_hard(&world, &store, world_name(key, "large", i), MIB, NULL), 0);
    world_check(&world);
    world_close_all(&world);
}

static void test_all_were_used(void **state)
{
    (void)state;
    all_were_used("lru");
    all_were_used("clock");
    all_were_used("s3fifo");
}

static uint64_t mix(uint64_t number)
{
    number = (number + 1) * 0x9e3779b97f4a7c15;
    return (number ^ number >> 29) * 0xbf58476d1ce4e5b9;
}

static unsigned found_of(const struct mc_ghosts *ghosts, uint64_t from, uint64_t to)
{
    unsigned found = 0;
    for (uint64_t i = from; i < to; i++)
        found += mc_ghosts_find(ghosts, 0, mix(i)).why != MC_GONE_NONE;
    return found;
}

static void test_ghosts(void **state)
{
    enum { OBJECTS = 100000 };
    struct mc_ghosts ghosts = {0};
    (void)state;
    assert_int_equal(found_of(&ghosts, 0, 10), 0);
    for (uint64_t i = 0; i < OBJECTS; i++)
        mc_ghosts_add(&ghosts, i, mix(i), (struct mc_ghost){.why = MC_GONE_EVICTED, .is_proven = i % 3 == 0}, OBJECTS);
    assert_true(found_of(&ghosts, 0, OBJECTS) > OBJECTS * 99 / 100);
    assert_true(found_of(&ghosts, OBJECTS, 2 * OBJECTS) < 100); /* taken for another */
    assert_true(mc_ghosts_find(&ghosts, 0, mix(OBJECTS - 1)).is_proven);
    assert_false(mc_ghosts_find(&ghosts, 0, mix(OBJECTS - 2)).is_proven);
    for (uint64_t i = OBJECTS; i < 3 * OBJECTS; i++)
        mc_ghosts_add(&ghosts, i, mix(i), (struct mc_ghost){.why = MC_GONE_EVICTED}, OBJECTS);
    assert_true(found_of(&ghosts, 0, OBJECTS) < 200); /* too long ago */
    assert_true(found_of(&ghosts, 2 * OBJECTS, 3 * OBJECTS) > OBJECTS * 99 / 100);
    assert_true(ghosts.bucket_count * MC_GHOST_ENTRIES * sizeof(uint32_t) <= 12 * OBJECTS);
    assert_true(ghosts.fresh + ghosts.proven < 2 * OBJECTS);
    mc_ghosts_add(&ghosts, 0, mix(3 * OBJECTS), (struct mc_ghost){.why = MC_GONE_REMOVED},
                  UINT64_MAX / MC_GHOST_STEPS); /* it has an end */
    assert_int_equal(ghosts.bucket_count, (uint64_t)MC_GHOST_CHUNK * MC_GHOST_CHUNKS);
    mc_ghosts_destroy(&ghosts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),  cmocka_unit_test(test_used_ones_stay),
        cmocka_unit_test(test_scan),   cmocka_unit_test(test_nothing_stays_for_ever),
        cmocka_unit_test(test_return), cmocka_unit_test(test_all_were_used),
        cmocka_unit_test(test_ghosts), cmocka_unit_test(test_what_is_read_hinders_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
