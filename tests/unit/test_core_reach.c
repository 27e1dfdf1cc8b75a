/* Addresses that only their own host reaches, in a cluster of several. */
#include "core_world.h"

#include "base/address.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static const struct mc_id here = {9, 9}, elsewhere = {8, 8};

static void test_what_loopback_is(void **state)
{
    (void)state;
    const char *local[] = {"127.0.0.1", "127.1.2.3:80", "localhost", "LocalHost:50051", "::1", "[::1]:80"};
    const char *others[] = {"",          "10.0.0.1:80", "localhosts:1", "localhost.example.org", "node127.0.0.1",
                            "[::12]:80", "1127.0.0.1"};
    for (size_t i = 0; i < sizeof(local) / sizeof(local[0]); i++)
        assert_true(mc_address_is_loopback(local[i]));
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        assert_false(mc_address_is_loopback(others[i]));
}

static uint32_t mount(struct world *world, uint64_t node, struct mc_id host, const char *address)
{
    uint64_t owner = world_join(world, MC_ROLE_OWNER, node, FIRST_LIFE);
    struct mc_wire_mount mount = world_mount_of(node, MIB, address);
    mount.host = host;
    mount.tcp_address = mc_span_string(address);
    struct mc_wire_mount_reply reply = world_mount(world, owner, &mount);
    assert_int_equal(reply.code, 0);
    return reply.segment;
}

static bool is_told(struct world *world, uint64_t node, uint32_t segment)
{
    uint64_t heartbeat = world_join(world, MC_ROLE_HEARTBEAT, node, FIRST_LIFE);
    assert_int_equal(world_heartbeat(world, heartbeat, segment, MIB), 0);
    world_disconnect(world, heartbeat);
    return world->is_told_lonely;
}

/* In either order, once, and the owner hears of it. */
static void test_another_host_mounts(void **state)
{
    (void)state;
    for (unsigned is_first = 0; is_first < 2; is_first++) {
        struct world world;
        uint32_t lonely = 0, good;
        world_open(&world);
        if (is_first == 1)
            lonely = mount(&world, 5, here, "127.0.0.1:1");
        (void)mount(&world, 6, here, "10.0.0.1:2");
        assert_int_equal(world.lonely, 0); /* all of one machine */
        good = mount(&world, 7, elsewhere, "10.0.0.2:1");
        if (is_first == 0)
            lonely = mount(&world, 5, here, "localhost:1");
        assert_int_equal(world.lonely, 1);
        (void)mount(&world, 8, elsewhere, "10.0.0.3:1");
        assert_int_equal(world.lonely, 1);
        assert_true(is_told(&world, 5, lonely));
        assert_false(is_told(&world, 7, good));
        world_close_all(&world);
    }
}

static void ask(struct world *world, struct mc_id host)
{
    uint64_t call = world_join(world, MC_ROLE_CALL, CLIENT, FIRST_LIFE);
    struct mc_wire_segments head = {.host = host};
    size_t frame = world_begin(world, MC_MESSAGE_SEGMENTS, 4);
    mc_wire_segments_write(&world->frame, &head);
    world_send(world, call, frame);
    assert_int_equal(world_receive(world, call).type, MC_MESSAGE_SEGMENTS_REPLY);
    world_disconnect(world, call);
}

static void test_a_client_of_another_host_asks(void **state)
{
    (void)state;
    struct world world;
    world_open(&world);
    uint32_t lonely = mount(&world, 5, here, "127.0.0.1:1");
    ask(&world, here);
    assert_int_equal(world.lonely, 0);
    assert_false(is_told(&world, 5, lonely));
    ask(&world, elsewhere);
    ask(&world, elsewhere);
    assert_int_equal(world.lonely, 1);
    assert_true(is_told(&world, 5, lonely));
    world_close_all(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_loopback_is),
        cmocka_unit_test(test_another_host_mounts),
        cmocka_unit_test(test_a_client_of_another_host_asks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
