/* Objects that are read often: when a reader is asked for a copy of one, and to where. */
#include "core_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define WINDOW_MS 10000u
#define READS 5u /* in a window make an object hot */

static const struct mc_id host_a = {9, 9}, host_b = {8, 8}, host_c = {7, 7}, host_d = {6, 6};

static void open_spreading(struct world *world, enum mc_spread spread, uint32_t replicas_max)
{
    struct mc_core_config config = mc_core_config_default();
    config.client_ttl_ms = 3600 * SECOND_MS; /* nobody beats */
    config.spread = spread;
    config.spread_window_ms = WINDOW_MS;
    config.spread_reads_per_s = 0.41; /* 4.1 in a window: the fifth makes it hot */
    config.spread_replicas_max = replicas_max;
    world_open_with(world, &config);
}

static struct world_store node_at(struct world *world, uint64_t node, struct mc_id host, const char *name,
                                  uint64_t capacity)
{
    struct world_store store = {0};
    store.owner = world_join(world, MC_ROLE_OWNER, node, FIRST_LIFE);
    store.call = world_join(world, MC_ROLE_CALL, node, FIRST_LIFE);
    struct mc_wire_mount mount = world_mount_of(node, capacity, name);
    mount.host = host;
    mount.tcp_address = mc_span_string("10.0.0.1:1"); /* others reach it */
    struct mc_wire_mount_reply reply = world_mount(world, store.owner, &mount);
    assert_int_equal(reply.code, 0);
    store.segment = reply.segment;
    return store;
}

static uint64_t client_at(struct world *world, uint64_t node, struct mc_id host)
{
    uint64_t connection = world_connect(world);
    struct mc_wire_hello hello = world_hello(MC_ROLE_CALL, node, FIRST_LIFE);
    hello.host = host;
    struct mc_wire_hello_reply reply = world_greet(world, connection, &hello);
    assert_int_equal(reply.code, 0);
    return connection;
}

static uint32_t read_once(struct world *world, uint64_t client, const char *key)
{
    struct mc_wire_found found;
    assert_int_equal(world_get(world, client, key, 0, &found, NULL), 0);
    return found.copy_to;
}

/* Reads it until a copy is wanted, at most so often. */
static uint32_t read_often(struct world *world, uint64_t client, const char *key, unsigned most)
{
    uint32_t segment = 0;
    for (unsigned i = 0; i < most && segment == 0; i++)
        segment = read_once(world, client, key);
    return segment;
}

/* As a client does it: the value in place of itself, on both. */
static void copy(struct world *world, const struct world_store *from, const struct world_store *to,
                 const struct mc_wire_place *place, const char *key)
{
    static struct world_grants grants;
    struct world_item item = {world_key(key), SMALL};
    struct world_wish wish = {.replica_count = 2,
                              .flags = MC_PUT_REPLACE,
                              .preferred = {"a", "b"},
                              .expected = place->generation - place->replica};
    world_put_start(world, from->call, PUT_2, &item, 1, &wish, &grants);
    assert_int_equal(grants.items[0].code, 0);
    assert_int_equal(grants.place_count, 2);
    world_live_all(world, from, to, &grants);
    (void)world_owner_obeys(world, from->owner);
    assert_int_equal(world_put_done(world, from->call, PUT_2), 0);
}

static void test_a_copy_goes_to_its_reader(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    open_spreading(&world, MC_SPREAD_ENFORCE, 2);
    struct world_store a = node_at(&world, NODE_A, host_a, "a", MIB);
    assert_int_equal(world_put(&world, a.call, a.owner, "k", SMALL), 0);
    struct world_store b = node_at(&world, NODE_B, host_b, "b", MIB);
    (void)node_at(&world, NODE_C, host_c, "c", 4 * MIB); /* has more room, and is not where it is read */
    uint64_t far = client_at(&world, CLIENT, host_b), near = client_at(&world, SECOND_CLIENT, host_a);
    for (unsigned i = 1; i < READS; i++)
        assert_int_equal(read_once(&world, far, "k"), 0);
    assert_int_equal(read_once(&world, near, "k"), 0); /* hot by now, but it lies there */
    assert_int_equal(statistics_of(&world).hot_objects, 1);
    assert_int_equal(read_once(&world, far, "k"), b.segment);
    assert_int_equal(read_often(&world, far, "k", 100), 0); /* it is on its way, perhaps */
    world_pass(&world, MC_HEAT_QUIET_MS + 1);
    assert_int_equal(read_often(&world, far, "k", 100), b.segment); /* nobody made it: it is asked for again */
    assert_int_equal(statistics_of(&world).hot_copies_wanted, 2);
    assert_int_equal(statistics_of(&world).hot_copies, 0);
    assert_int_equal(world_get(&world, far, "k", 0, NULL, &place), 0);
    copy(&world, &a, &b, &place, "k");
    world_pass(&world, MC_HEAT_QUIET_MS + 1);
    assert_int_equal(read_often(&world, client_at(&world, THIRD_CLIENT, host_c), "k", 100), 0); /* two are the most */
    assert_int_equal(statistics_of(&world).hot_copies, 1);
    assert_int_equal(statistics_of(&world).hot_copies_wanted, 2);
    world_close_all(&world);
}

/* A reader's machine that lends nothing is served by another one; nothing is asked for where there is no room. */
static void test_elsewhere_and_nowhere(void **state)
{
    struct world world;
    (void)state;
    open_spreading(&world, MC_SPREAD_ENFORCE, 3);
    struct world_store a = node_at(&world, NODE_A, host_a, "a", 4 * MIB);
    assert_int_equal(world_put(&world, a.call, a.owner, "k", SMALL), 0);
    assert_int_equal(world_put(&world, a.call, a.owner, "wide", MIB / 2), 0);
    (void)node_at(&world, NODE_A + 100, host_a, "a2", 16 * MIB); /* of the machine that has it */
    uint64_t far = client_at(&world, CLIENT, host_d), unknown = client_at(&world, SECOND_CLIENT, (struct mc_id){0, 0});
    assert_int_equal(read_often(&world, far, "k", 100), 0); /* no other machine */
    world_pass(&world, MC_HEAT_NOWHERE_MS);
    struct world_store b = node_at(&world, NODE_B, host_b, "b", MIB / 2);
    assert_int_equal(read_often(&world, far, "wide", 100), 0); /* it would be full, */
    uint64_t there = client_at(&world, THIRD_CLIENT, host_b);
    struct world_store c = node_at(&world, NODE_C, host_c, "c", 16 * MIB);
    world_pass(&world, MC_HEAT_NOWHERE_MS);
    assert_int_equal(read_often(&world, there, "wide", 100), 0); /* and another machine is no nearer */
    world_pass(&world, MC_HEAT_NOWHERE_MS);
    assert_int_equal(read_often(&world, unknown, "wide", 100), c.segment); /* who says no host gets it from elsewhere */
    assert_int_equal(read_often(&world, there, "k", 100), b.segment);
    world_close_all(&world);
}

/* While a copy is made its value lies once more where it is: that needs room, too. */
static void test_no_room_where_it_is(void **state)
{
    struct world world;
    (void)state;
    open_spreading(&world, MC_SPREAD_ENFORCE, 2);
    struct world_store a = node_at(&world, NODE_A, host_a, "a", MIB);
    assert_int_equal(world_put(&world, a.call, a.owner, "k", MIB / 2), 0);
    (void)node_at(&world, NODE_B, host_b, "b", 16 * MIB);
    assert_int_equal(read_often(&world, client_at(&world, CLIENT, host_b), "k", 100), 0);
    assert_int_equal(statistics_of(&world).hot_objects, 1);
    assert_int_equal(statistics_of(&world).hot_copies_wanted, 0);
    world_close_all(&world);
}

static void test_reads_are_of_a_window(void **state)
{
    struct world world;
    (void)state;
    open_spreading(&world, MC_SPREAD_ENFORCE, 2);
    struct world_store a = node_at(&world, NODE_A, host_a, "a", MIB);
    assert_int_equal(world_put(&world, a.call, a.owner, "k", SMALL), 0);
    struct world_store b = node_at(&world, NODE_B, host_b, "b", MIB);
    uint64_t far = client_at(&world, CLIENT, host_b);
    for (unsigned i = 0; i < 10 * READS; i++) { /* one less than would be enough, in each window */
        if (i % (READS - 1) == 0)
            world_pass(&world, WINDOW_MS);
        assert_int_equal(read_once(&world, far, "k"), 0);
    }
    assert_int_equal(statistics_of(&world).hot_objects, 0);
    world_pass(&world, WINDOW_MS);
    assert_int_equal(read_often(&world, far, "k", READS), b.segment);
    /* Who only asks what is there reads nothing; an existence check is no read either. */
    world_pass(&world, MC_HEAT_QUIET_MS + WINDOW_MS);
    for (unsigned i = 0; i < 10 * READS; i++) {
        struct mc_wire_found found;
        assert_int_equal(world_get(&world, far, "k", MC_GET_NO_LEASE, &found, NULL), 0);
        assert_int_equal(found.copy_to, 0);
        assert_int_equal(world_exist(&world, far, "k"), 1);
    }
    assert_int_equal(read_once(&world, far, "k"), 0);
    world_close_all(&world);
}

static void test_observed_and_off(void **state)
{
    (void)state;
    for (enum mc_spread spread = MC_SPREAD_OFF; spread <= MC_SPREAD_OBSERVE; spread++) {
        struct world world;
        open_spreading(&world, spread, 2);
        struct world_store a = node_at(&world, NODE_A, host_a, "a", MIB);
        assert_int_equal(world_put(&world, a.call, a.owner, "k", SMALL), 0);
        (void)node_at(&world, NODE_B, host_b, "b", MIB);
        assert_int_equal(read_often(&world, client_at(&world, CLIENT, host_b), "k", 100), 0);
        assert_int_equal(statistics_of(&world).hot_objects, spread == MC_SPREAD_OBSERVE);
        assert_int_equal(statistics_of(&world).hot_copies_wanted, spread == MC_SPREAD_OBSERVE);
        world_close_all(&world);
    }
}

/* A reader that may not write could not make one. */
static void test_who_may_not_write(void **state)
{
    struct world world;
    (void)state;
    open_spreading(&world, MC_SPREAD_ENFORCE, 2);
    struct world_store a = node_at(&world, NODE_A, host_a, "a", MIB);
    assert_int_equal(world_put(&world, a.call, a.owner, "k", SMALL), 0);
    struct world_store b = node_at(&world, NODE_B, host_b, "b", MIB);
    for (unsigned is_writer = 0; is_writer < 2; is_writer++) {
        uint64_t connection = world_connect(&world);
        mc_core_permitted(world.core, world.now, connection, MC_RIGHT_READ | (is_writer ? MC_RIGHT_WRITE : 0), 77, "");
        struct mc_wire_hello hello = world_hello(MC_ROLE_CALL, CLIENT + is_writer, FIRST_LIFE);
        hello.host = host_b;
        assert_int_equal(world_greet(&world, connection, &hello).code, 0);
        assert_int_equal(read_often(&world, connection, "k", 100), is_writer ? b.segment : 0);
    }
    world_close_all(&world);
}

/* Many keys at once: none is called hot that was not read so often, and one that is stays so beside them. */
static void test_the_table_is_bounded(void **state)
{
    struct world world;
    char name[32];
    (void)state;
    open_spreading(&world, MC_SPREAD_ENFORCE, 2);
    struct world_store a = node_at(&world, NODE_A, host_a, "a", 64 * MIB);
    world_fill(&world, &a, "cold", 3 * MC_HEAT_ENTRIES);
    assert_int_equal(world_put(&world, a.call, a.owner, "k", SMALL), 0);
    struct world_store b = node_at(&world, NODE_B, host_b, "b", 64 * MIB);
    uint64_t far = client_at(&world, CLIENT, host_b);
    for (unsigned i = 0; i < 3 * MC_HEAT_ENTRIES; i++)
        for (unsigned j = 0; j < READS - 1; j++)
            assert_int_equal(read_once(&world, far, world_name(name, "cold", i)), 0);
    assert_int_equal(statistics_of(&world).hot_objects, 0);
    assert_int_equal(read_often(&world, far, "k", 3 * READS), b.segment);
    world_close_all(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_copy_goes_to_its_reader), cmocka_unit_test(test_elsewhere_and_nowhere),
        cmocka_unit_test(test_no_room_where_it_is),       cmocka_unit_test(test_reads_are_of_a_window),
        cmocka_unit_test(test_observed_and_off),          cmocka_unit_test(test_who_may_not_write),
        cmocka_unit_test(test_the_table_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
