/* Who comes to the core and as what: hellos, roles, connections and processes that begin anew. */
#include "core_world.h"

#include "base/build.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void test_hello(void **state)
{
    struct world world;
    (void)state;
    world_open(&world);
    uint64_t connection = world_connect(&world);
    struct mc_wire_hello hello = world_hello(MC_ROLE_CALL, 1, 1);
    struct mc_wire_hello_reply reply = world_greet(&world, connection, &hello);
    assert_int_equal(reply.code, 0);
    assert_int_equal(reply.epoch, FIRST_EPOCH);
    assert_int_equal(reply.lease_ttl_ms, 10000);
    assert_int_equal(reply.client_ttl_ms, 10000);
    assert_true(mc_id_equal(reply.node, (struct mc_id){77, 88}));
    reply = world_greet(&world, connection, &hello); /* a second hello */
    assert_int_equal(reply.code, MC_ERR_PROTOCOL);
    assert_true(world.connections[connection].closed);
    world_close_all(&world);
}

/* Where who has no disk is to have one. */
static void test_disk_that_is_told(void **state)
{
    struct world world;
    struct mc_core_config config = mc_core_config_default();
    (void)state;
    struct mc_wire_hello hello = world_hello(MC_ROLE_HEARTBEAT, 1, 1);
    world_open_with(&world, &config);
    struct mc_wire_hello_reply reply = world_greet(&world, world_connect(&world), &hello);
    assert_true(reply.code == 0 && reply.disk_path.length == 0 && reply.disk_bytes == 0 && reply.disk_keeps == 0);
    world_close_all(&world);
    snprintf(config.disk_path, sizeof(config.disk_path), "/mnt/c");
    config.disk_bytes = 77;
    config.disk_keeps = true;
    world_open_with(&world, &config);
    reply = world_greet(&world, world_connect(&world), &hello);
    assert_true(reply.code == 0 && reply.disk_path.length == 6 && reply.disk_bytes == 77 && reply.disk_keeps == 1);
    world_close_all(&world);
}

static bool rests(struct world *world, uint64_t connection)
{
    return mc_core_rest_ms(world->core, world->now, connection) > MC_CALL_IDLE_MS;
}

/* A caller that came once. One that is owed something, or is no caller, is let be, however long it is silent. */
static void test_connections_that_rest(void **state)
{
    struct world world;
    (void)state;
    world_open(&world);
    uint64_t call = world_client(&world, CLIENT), other = world_client(&world, SECOND_CLIENT);
    uint64_t fresh = world_connect(&world);
    struct mc_connection *owed = mc_map_get(&world.core->connections, other);
    world_pass(&world, MC_CALL_IDLE_MS - 1000);
    assert_int_equal(mc_core_rest_ms(world.core, world.now, call), MC_CALL_IDLE_MS - 1000);
    assert_false(rests(&world, call));
    world_pass(&world, 500);
    size_t frame = world_begin(&world, MC_MESSAGE_PING, 5);
    mc_wire_none_write(&world.frame, &(struct mc_wire_none){0});
    world_send(&world, other, frame);
    world_pass(&world, 600);
    assert_true(rests(&world, call));
    assert_false(rests(&world, other)); /* it has said something since */
    world_pass(&world, MC_CALL_IDLE_MS);
    assert_true(rests(&world, other));
    owed->grants = 1; /* a writer may be busy elsewhere */
    assert_false(rests(&world, other));
    assert_int_equal(mc_core_rest_ms(world.core, world.now, other), 0);
    owed->grants = 0;
    uint64_t heartbeat = world_join(&world, MC_ROLE_HEARTBEAT, NODE_A, FIRST_LIFE);
    world_pass(&world, SECOND_MS);
    assert_int_equal(mc_core_rest_ms(world.core, world.now, heartbeat), 0);
    assert_int_equal(mc_core_rest_ms(world.core, world.now, fresh), 0);
    assert_int_equal(mc_core_rest_ms(world.core, world.now, 31415), 0);
    world_close_all(&world);
}

/* An owner mounts as soon as its hello is answered. One that does not holds a place for nothing, also if it says
 * something else, and no heartbeat that it does not send ever ends it. */
static void test_owners_that_lend_nothing_rest(void **state)
{
    struct world world;
    (void)state;
    world_open(&world);
    uint64_t owner = world_join(&world, MC_ROLE_OWNER, NODE_A, FIRST_LIFE);
    struct world_store store = world_store(&world, NODE_B, MIB, "b");
    world_pass_beating(&world, MC_OWNER_MOUNT_MS - 1, store.heartbeat);
    assert_int_equal(mc_core_rest_ms(world.core, world.now, owner), 0); /* its MOUNT may be on the way */
    world_pass_beating(&world, 1, store.heartbeat);
    assert_int_equal(mc_core_rest_ms(world.core, world.now, owner), MC_OWNER_MOUNT_MS);
    size_t frame = world_begin(&world, MC_MESSAGE_PING, 5);
    mc_wire_none_write(&world.frame, &(struct mc_wire_none){0});
    world_send(&world, owner, frame);
    assert_int_equal(world_receive(&world, owner).type, MC_MESSAGE_PONG);
    assert_int_equal(mc_core_rest_ms(world.core, world.now, owner), MC_OWNER_MOUNT_MS);
    world_pass_beating(&world, MC_CALL_IDLE_MS, store.heartbeat);
    assert_true(rests(&world, owner));
    struct mc_wire_mount mount = world_mount_of(7, MIB, "late");
    uint32_t segment = world_mount(&world, owner, &mount).segment;
    assert_int_equal(mc_core_rest_ms(world.core, world.now, owner), 0);
    frame = world_begin(&world, MC_MESSAGE_UNMOUNT, 6);
    mc_wire_unmount_write(&world.frame, &(struct mc_wire_unmount){.segment = segment});
    world_send(&world, owner, frame);
    assert_int_equal(world_receive(&world, owner).type, MC_MESSAGE_UNMOUNT_REPLY);
    assert_int_equal(mc_core_rest_ms(world.core, world.now, owner), 0); /* it may mount another */
    world_pass_beating(&world, MC_OWNER_MOUNT_MS, store.heartbeat);
    assert_int_equal(mc_core_rest_ms(world.core, world.now, owner), MC_OWNER_MOUNT_MS);
    assert_int_equal(mc_core_rest_ms(world.core, world.now, store.owner), 0); /* it lends, however silent it is */
    world_close_all(&world);
}

/* A client of a later release: more versions, features that this build never heard of, a name of its own. */
static void test_hello_of_another_build(void **state)
{
    struct world world;
    (void)state;
    world_open(&world);
    struct mc_wire_hello hello = world_hello(MC_ROLE_CALL, 1, 1);
    hello.version_max = 9;
    hello.features = UINT64_MAX;
    hello.build = mc_span_string("9.8.7 (git \"new\")\n");
    uint64_t number = world_connect(&world);
    struct mc_wire_hello_reply reply = world_greet(&world, number, &hello);
    assert_int_equal(reply.code, 0);
    assert_int_equal(reply.version_max, MC_WIRE_VERSION_MAX);
    assert_int_equal(reply.features, mc_wire_features());
    assert_true(mc_span_equal(reply.build, mc_span_string(mc_build())));
    const struct mc_connection *connection = mc_map_get(&world.core->connections, number);
    assert_int_equal(connection->peer.version, MC_WIRE_VERSION_MAX);
    assert_int_equal(connection->peer.features, mc_wire_features());
    assert_string_equal(connection->member->build, "9.8.7 (git ?new?)?");
    world_close_all(&world);
}

static void test_hello_refused(void **state)
{
    struct world world;
    (void)state;
    world_open(&world);
    struct mc_wire_hello hello = world_hello(MC_ROLE_CALL, 1, 1);
    hello.version_min = 7;
    hello.version_max = 9;
    uint64_t connection = world_connect(&world);
    struct mc_wire_hello_reply reply = world_greet(&world, connection, &hello);
    assert_int_equal(reply.code, MC_ERR_INVALID_VERSION);
    char text[400] = "";
    assert_true(reply.text.length < sizeof(text));
    memcpy(text, reply.text.data, reply.text.length);
    assert_non_null(strstr(text, "7 to 9"));
    assert_non_null(strstr(text, "an earlier build"));
    assert_non_null(strstr(text, "1 to 1"));
    assert_true(world.connections[connection].closed);

    hello = world_hello(MC_ROLE_DATA, 1, 1);
    connection = world_connect(&world);
    reply = world_greet(&world, connection, &hello);
    assert_int_equal(reply.code, MC_ERR_INVALID_PARAMS);
    assert_true(world.connections[connection].closed);

    hello = world_hello(MC_ROLE_CALL, 1, 1);
    hello.magic = 1;
    connection = world_connect(&world);
    reply = world_greet(&world, connection, &hello);
    assert_int_equal(reply.code, MC_ERR_PROTOCOL);
    assert_true(world.connections[connection].closed);

    hello = world_hello(MC_ROLE_CALL, 0, 1);
    hello.node = (struct mc_id){0, 0};
    connection = world_connect(&world);
    reply = world_greet(&world, connection, &hello);
    assert_int_equal(reply.code, MC_ERR_INVALID_PARAMS);
    world_close_all(&world);
}

static void test_roles(void **state)
{
    static const struct {
        unsigned role, type;
    } wrong[] = {
        {MC_ROLE_HEARTBEAT, MC_MESSAGE_GET},
        {MC_ROLE_OWNER, MC_MESSAGE_EXIST},
        {MC_ROLE_CALL, MC_MESSAGE_HEARTBEAT},
        {MC_ROLE_CALL, MC_MESSAGE_CLEARED},
        {MC_ROLE_HEARTBEAT, MC_MESSAGE_LIVE},
        {MC_ROLE_CALL, MC_MESSAGE_MOUNT},
        {MC_ROLE_CALL, MC_MESSAGE_FAILED},
        {MC_ROLE_OWNER, MC_MESSAGE_PUT_GRANTED},
        {MC_ROLE_CALL, 0},
        {MC_ROLE_CALL, MC_MESSAGE_COMMIT},
        {MC_ROLE_CALL, 65535},
    };
    struct world world;
    (void)state;
    world_open(&world);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct mc_core_statistics statistics;
        uint64_t connection = world_join(&world, wrong[i].role, CLIENT, FIRST_LIFE);
        world_input(&world, connection, wrong[i].type, 1, "\0\0\0\0\0\0", 6);
        assert_true(world.connections[connection].closed);
        statistics = statistics_of(&world);
        assert_int_equal(statistics.protocol_errors, i + 1);
        world_disconnect(&world, connection);
    }
    uint64_t silent = world_connect(&world); /* before any hello */
    world_input(&world, silent, MC_MESSAGE_GET, 1, "\0\0", 2);
    assert_true(world.connections[silent].closed);
    world_input(&world, silent, MC_MESSAGE_HELLO, 1, "\0\0", 2); /* ignored from now on */
    world_input(&world, 200, MC_MESSAGE_HELLO, 1, "\0\0", 2);    /* of nobody */
    world_disconnect(&world, silent);
    world_close_all(&world);
}

/* Node ids are told to everybody; whoever comes with that of another process changes nothing for that one. */
static void test_the_id_of_another_process(void **state)
{
    struct world world;
    (void)state;
    struct world_store store = world_open_one(&world);
    for (unsigned role = MC_ROLE_CALL; role <= MC_ROLE_OWNER; role++) {
        uint64_t stranger = world_connect(&world);
        struct mc_wire_hello hello = world_hello(role, NODE_A, SECOND_LIFE);
        assert_int_equal(world_greet(&world, stranger, &hello).code, MC_ERR_ILLEGAL_CLIENT);
        assert_true(world.connections[stranger].closed);
        world_disconnect(&world, stranger);
    }
    assert_false(world.connections[store.heartbeat].closed || world.connections[store.owner].closed ||
                 world.connections[store.call].closed);
    assert_int_equal(statistics_of(&world).members, 1);
    assert_int_equal(statistics_of(&world).segments, 1);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", SMALL), 0);
    world_close_all(&world);
}

static int32_t greet_with(struct world *world, unsigned role, uint64_t life, unsigned rights, uint64_t key,
                          uint64_t *connection)
{
    struct mc_wire_hello hello = world_hello(role, NODE_A, life);
    *connection = world_connect(world);
    mc_core_permitted(world->core, world->now, *connection, rights, key, "");
    return world_greet(world, *connection, &hello).code;
}

/* Before a master knows a node, another may come with its id: one without the right to lend memory gives it back. */
static void test_who_may_lend_memory_has_its_id(void **state)
{
    static const struct {
        unsigned first, then;
        bool gives_back;
    } rows[] = {
        {MC_RIGHT_READ, MC_RIGHT_NODE, true},   {MC_RIGHT_READ | MC_RIGHT_WRITE, MC_RIGHT_NODE | MC_RIGHT_READ, true},
        {MC_RIGHT_READ, MC_RIGHT_WRITE, false}, {MC_RIGHT_NODE, MC_RIGHTS_ALL, false},
        {MC_RIGHT_NODE, MC_RIGHT_READ, false},
    };
    (void)state;
    for (size_t row = 0; row < sizeof(rows) / sizeof(rows[0]); row++) {
        struct world world;
        uint64_t first, then;
        world_open(&world);
        assert_int_equal(greet_with(&world, MC_ROLE_HEARTBEAT, FIRST_LIFE, rows[row].first, 5, &first), 0);
        int32_t code = greet_with(&world, (rows[row].then & MC_RIGHT_NODE) != 0 ? MC_ROLE_OWNER : MC_ROLE_CALL,
                                  SECOND_LIFE, rows[row].then, 9, &then);
        assert_int_equal(code, rows[row].gives_back ? 0 : MC_ERR_ILLEGAL_CLIENT);
        assert_int_equal(world.ids_taken, rows[row].gives_back);
        assert_int_equal(world.connections[first].closed, rows[row].gives_back);
        assert_int_equal(world.connections[then].closed, !rows[row].gives_back);
        assert_int_equal(statistics_of(&world).members, 1);
        world_disconnect(&world, first);
        world_disconnect(&world, then);
        world_close_all(&world);
    }
}

static uint64_t revoked; /* no key of that number holds; 0: all do */
static bool has_key(uint64_t key)
{
    return key != revoked;
}

/* A process whose key was revoked comes back with another one, as who it was, if that permits no less: also when it was
 * cut off meanwhile, and nothing told us on its connection. */
static void test_a_key_is_replaced(void **state)
{
    static const struct {
        unsigned first, then;
        const char *tenant;
        bool is_gone, comes_back;
    } rows[] = {
        {MC_RIGHT_NODE, MC_RIGHT_NODE | MC_RIGHT_READ, "", true, true},
        {MC_RIGHT_NODE, MC_RIGHTS_ALL, "", false, false},
        {MC_RIGHT_NODE, MC_RIGHT_READ | MC_RIGHT_WRITE, "", true, false},
        {MC_RIGHT_WRITE, MC_RIGHT_WRITE, "", true, true},
        {MC_RIGHT_READ | MC_RIGHT_WRITE, MC_RIGHT_READ, "", true, false},
        {MC_RIGHT_WRITE, MC_RIGHT_WRITE, "team", true, false},
    };
    enum { FIRST_KEY = 5, NEXT_KEY = 9, THIRD_KEY = 11 };
    (void)state;
    for (size_t row = 0; row < 2 * sizeof(rows) / sizeof(rows[0]); row++) {
        struct world world;
        uint64_t first, at = row / 2;
        struct mc_core_config config = mc_core_config_default();
        config.has_key = has_key;
        revoked = 0;
        world_open_with(&world, &config);
        assert_int_equal(greet_with(&world, MC_ROLE_HEARTBEAT, FIRST_LIFE, rows[at].first, FIRST_KEY, &first), 0);
        if (row % 2 == 1)
            world_disconnect(&world, first);
        revoked = rows[at].is_gone ? FIRST_KEY : 0;
        uint64_t then = world_connect(&world);
        struct mc_wire_hello hello = world_hello(MC_ROLE_CALL, NODE_A, FIRST_LIFE);
        mc_core_permitted(world.core, world.now, then, rows[at].then, NEXT_KEY, rows[at].tenant);
        bool is_free = row % 2 == 1 && statistics_of(&world).members == 0; /* nobody has it any more */
        assert_int_equal(world_greet(&world, then, &hello).code,
                         rows[at].comes_back || is_free ? 0 : MC_ERR_ILLEGAL_CLIENT);
        if (rows[at].comes_back) { /* its id is the new key's, whatever becomes of the old one */
            uint64_t third = world_connect(&world);
            mc_core_permitted(world.core, world.now, third, rows[at].then, THIRD_KEY, "");
            assert_int_equal(world_greet(&world, third, &hello).code, MC_ERR_ILLEGAL_CLIENT);
        }
        world_close_all(&world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hello),
        cmocka_unit_test(test_disk_that_is_told),
        cmocka_unit_test(test_hello_of_another_build),
        cmocka_unit_test(test_connections_that_rest),
        cmocka_unit_test(test_owners_that_lend_nothing_rest),
        cmocka_unit_test(test_hello_refused),
        cmocka_unit_test(test_roles),
        cmocka_unit_test(test_the_id_of_another_process),
        cmocka_unit_test(test_who_may_lend_memory_has_its_id),
        cmocka_unit_test(test_a_key_is_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
