/* What is counted of keys that were looked for, found and not found, and why. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core_world.h"

static struct mc_core_statistics counted(const struct world *world)
{
    struct mc_core_statistics statistics;
    mc_core_statistics(world->core, &statistics);
    return statistics;
}

/* Who checks and then gets what is there has looked once; so has who gets without that. */
static void test_lookups(void **state)
{
    struct world world;
    struct world_store store = world_open_one(&world);
    struct mc_wire_found found;
    (void)state;
    assert_int_equal(world_put(&world, store.call, store.owner, "a", SMALL), 0);
    assert_int_equal(world_exist(&world, store.call, "a"), 1);
    assert_int_equal(world_exist(&world, store.call, "b"), 0);
    assert_int_equal(world_exist(&world, store.call, "c"), 0);
    assert_int_equal(counted(&world).lookups, 3);
    assert_int_equal(counted(&world).lookup_hits, 1);
    assert_int_equal(world_get(&world, store.call, "a", 0, &found, NULL), 0);
    assert_int_equal(counted(&world).lookups, 3);
    assert_int_equal(counted(&world).lookup_hits, 1);
    assert_int_equal(world_get(&world, store.call, "b", 0, &found, NULL), MC_ERR_OBJECT_NOT_FOUND);
    assert_int_equal(world_get(&world, store.call, "a", 0, &found, NULL), 0);
    assert_int_equal(counted(&world).lookups, 5);
    assert_int_equal(counted(&world).lookup_hits, 2);
    world_close_all(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lookups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
