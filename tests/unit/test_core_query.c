/* What is told of disks to those who only look: descriptions of objects, and how the disks are. */
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

/* What its owner says of a disk is there to be seen; one that is not well takes nothing new. */
static void test_health(void **state)
{
    struct world world;
    struct world_store store;
    static struct moves moves;
    struct mc_core_segment seen;
    struct mc_core_disks_off off;
    (void)state;
    uint32_t disk = open_with_disk(&world, &store);
    static const struct {
        uint8_t told, seen; /* what a later release may say counts as read-only */
        unsigned slow, read_only;
    } cases[] = {{MC_TOLD_SLOW, MC_TOLD_SLOW, 1, 0},
                 {MC_TOLD_READ_ONLY, MC_TOLD_READ_ONLY, 0, 1},
                 {77, MC_TOLD_READ_ONLY, 0, 1},
                 {MC_TOLD_WELL, MC_TOLD_WELL, 0, 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char key[16];
        uint64_t cursor = 0;
        world.told_health = cases[i].told;
        world.told_off = (uint8_t)i;
        assert_int_equal(world_heartbeat(&world, store.heartbeat, disk, 0), 0);
        struct mc_core_statistics statistics = statistics_of(&world);
        assert_int_equal(statistics.disks_slow, cases[i].slow);
        assert_int_equal(statistics.disks_read_only, cases[i].read_only);
        assert_int_equal(statistics.disks_off, i);
        assert_int_equal(mc_core_disks_off(world.core, &off, 1), i > 0);
        assert_true(i == 0 || off.disks == i);
        cursor = 0;
        assert_int_equal(mc_core_segments(world.core, &cursor, &seen, 1), 1);
        assert_true(i == 0 || strcmp(off.name, seen.name) == 0); /* its memory's name, not the member's */
        cursor = 0;
        assert_int_equal(mc_core_disks(world.core, &cursor, &seen, 1), 1);
        assert_int_equal(seen.number, disk);
        assert_int_equal(seen.health, cases[i].seen);
        assert_false(seen.absent);
        (void)snprintf(key, sizeof(key), "k%zu", i);
        assert_int_equal(world_put(&world, store.call, store.owner, key, OBJECT), 0);
        told_moves(&world, store.owner, &moves);
        assert_int_equal(moves.type, cases[i].seen == MC_TOLD_WELL ? MC_MESSAGE_STORE : 0);
    }
    assert_int_equal(statistics_of(&world).disks_off, 3);
    world_disconnect(&world, store.heartbeat);
    assert_int_equal(statistics_of(&world).disks_off, 0);
    world_close_all(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_described),
        cmocka_unit_test(test_health),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
