/* What is told of disks to those who only look: descriptions of objects. */
#include "core_moves.h"

/* Who asks for a description hears of the disk, too, if it says that it understands that. */
static void test_described(void **state)
{
    struct world world;
    struct world_store store;
    struct mc_wire_found found;
    (void)state;
    (void)open_with_disk(&world, &store);
    put_and_store(&world, &store, "k");
    assert_int_equal(world_get(&world, store.call, "k", MC_GET_NO_LEASE, &found, NULL), 0);
    assert_int_equal(found.replica_count, 1);
    assert_int_equal(found.disk.length, 0);
    for (unsigned in_memory = 2; in_memory-- > 0;) {
        assert_int_equal(world_get(&world, store.call, "k", MC_GET_NO_LEASE | MC_GET_DISKS, &found, NULL), 0);
        assert_int_equal(found.replica_count, in_memory);
        assert_int_equal(found.length, OBJECT);
        assert_true(found.disk.length > 0);
        if (in_memory == 1)
            forget_in_memory(&world, &store, "k");
    }
    struct mc_core_replica replica;
    assert_int_equal(mc_core_query(world.core, mc_span_string("k"), &replica, 1), 1);
    assert_true(replica.is_on_disk && replica.length == OBJECT);
    assert_int_equal(world_get(&world, store.call, "absent", MC_GET_NO_LEASE | MC_GET_DISKS, &found, NULL),
                     MC_ERR_OBJECT_NOT_FOUND);
    assert_int_equal(found.disk.length, 0);
    world_close_all(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_described),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
