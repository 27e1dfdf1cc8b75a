/* Tenants at the core: whose keys a connection may name, what removals meet, and what each may have. */
#include "core_world.h"

#include "env/keys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define BLUE(key) "\1blue\1" key
#define RED(key) "\1red\1" key

static void open_tenants(struct world *world)
{
    struct mc_core_config config = mc_core_config_default();
    config.tenants = true;
    world_open_with(world, &config);
}

/* The code of a hello that says that tenant; *connection is its connection. key 0: it shows none. */
static int32_t greet_as(struct world *world, uint64_t node, const char *tenant, unsigned rights, uint64_t key,
                        const char *key_tenant, uint64_t *connection)
{
    struct mc_wire_hello hello = world_hello(MC_ROLE_CALL, node, FIRST_LIFE);
    hello.tenant = mc_span_string(tenant);
    *connection = world_connect(world);
    if (key != 0)
        mc_core_permitted(world->core, world->now, *connection, rights, key, key_tenant);
    return world_greet(world, *connection, &hello).code;
}

static uint64_t client_of(struct world *world, uint64_t node, const char *tenant)
{
    uint64_t connection;
    int32_t code = greet_as(world, node, tenant, 0, 0, "", &connection);
    mc_assert(code == 0);
    return connection;
}

static const unsigned USE = MC_RIGHT_READ | MC_RIGHT_WRITE;

static void a_stranger_is_told_whose_keys_it_names(void **state)
{
    struct world world;
    struct mc_wire_hello hello = world_hello(MC_ROLE_CALL, CLIENT, FIRST_LIFE);
    (void)state;
    hello.tenant = mc_span_string("blue");
    world_open(&world); /* without tenants a name means nothing */
    assert_int_equal(world_greet(&world, world_connect(&world), &hello).tenant.length, 0);
    world_close_all(&world);
    open_tenants(&world);
    struct mc_wire_hello_reply reply = world_greet(&world, world_connect(&world), &hello);
    assert_true(reply.code == 0 && mc_span_equal(reply.tenant, mc_span_string("blue")));
    hello.tenant = mc_span_string("default");
    assert_int_equal(world_greet(&world, world_connect(&world), &hello).tenant.length, 0);
    hello.tenant = mc_span_string("_blue");
    assert_int_equal(world_greet(&world, world_connect(&world), &hello).code, MC_ERR_NOT_PERMITTED);
    world_close_all(&world);
}

static void a_key_says_the_tenant(void **state)
{
    (void)state;
    for (int with_flag = 0; with_flag < 2; with_flag++) {
        struct world world;
        uint64_t connection;
        if (with_flag)
            open_tenants(&world);
        else
            world_open(&world);
        assert_int_equal(greet_as(&world, 20, "", USE, 1, "blue", &connection), 0);
        assert_int_equal(greet_as(&world, 21, "blue", USE, 1, "blue", &connection), 0);
        assert_int_equal(greet_as(&world, 22, "red", USE, 1, "blue", &connection), MC_ERR_NOT_PERMITTED);
        assert_int_equal(greet_as(&world, 23, "blue", USE, 2, "", &connection), with_flag ? MC_ERR_NOT_PERMITTED : 0);
        assert_int_equal(greet_as(&world, 24, "", USE, 2, "", &connection), 0);
        world_close_all(&world);
    }
}

/* What is said of the same key by all that names keys. */
static void is_kept_from(struct world *world, uint64_t connection, const char *key)
{
    struct mc_wire_found found;
    struct mc_wire_place place;
    assert_int_equal(world_get(world, connection, key, 0, &found, &place), MC_ERR_INVALID_KEY);
    assert_int_equal(found.length, 0);
    assert_int_equal(world_get(world, connection, key, MC_GET_NO_LEASE, &found, &place), MC_ERR_INVALID_KEY);
    assert_int_equal(world_exist(world, connection, key), 0);
    assert_int_equal(world_remove(world, connection, key, true), MC_ERR_INVALID_KEY);
    assert_int_equal(world_grant(world, connection, PUT_9, key, SMALL, NULL, &place), MC_ERR_INVALID_KEY);
}

static void keys_of_others_are_none(void **state)
{
    struct world world;
    uint64_t blue, red, plain, node;
    (void)state;
    open_tenants(&world);
    struct world_store store = world_store(&world, NODE_A, MIB, "a");
    assert_int_equal(greet_as(&world, 20, "", USE, 1, "blue", &blue), 0);
    assert_int_equal(greet_as(&world, 21, "", USE, 2, "red", &red), 0);
    assert_int_equal(greet_as(&world, 22, "", USE, 3, "", &plain), 0);
    assert_int_equal(greet_as(&world, 23, "", USE | MC_RIGHT_NODE, 4, "", &node), 0);
    assert_int_equal(world_put(&world, blue, store.owner, BLUE("k"), SMALL), 0);
    assert_int_equal(world_put(&world, red, store.owner, RED("k"), SMALL * 2), 0);
    assert_int_equal(world_put(&world, plain, store.owner, "k", SMALL * 3), 0);
    struct mc_wire_found found;
    assert_int_equal(world_get(&world, blue, BLUE("k"), 0, &found, NULL), 0);
    assert_int_equal(found.length, SMALL);
    assert_int_equal(world_get(&world, red, RED("k"), 0, &found, NULL), 0);
    assert_int_equal(found.length, SMALL * 2);
    assert_int_equal(world_get(&world, plain, "k", 0, &found, NULL), 0);
    assert_int_equal(found.length, SMALL * 3);
    is_kept_from(&world, red, BLUE("k"));
    is_kept_from(&world, red, "k");
    is_kept_from(&world, plain, BLUE("k"));
    is_kept_from(&world, blue, "\1blue\1");                                   /* nothing is left of it */
    assert_int_equal(world_get(&world, node, BLUE("k"), 0, &found, NULL), 0); /* it moves the objects of all */
    world_close_all(&world);
}

static int64_t remove_all(struct world *world, const struct world_store *store, uint64_t connection,
                          const char *pattern)
{
    int64_t count = INT64_MIN;
    world_remove_all_send(world, connection, pattern, true);
    for (unsigned i = 0; count == INT64_MIN && i < 100; i++) {
        world_pass(world, 100);
        (void)world_owner_obeys(world, store->owner);
        count = world_count_answer(world, connection);
    }
    return count;
}

static void removals_meet_their_own_alone(void **state)
{
    struct world world;
    (void)state;
    open_tenants(&world);
    struct world_store store = world_store(&world, NODE_A, MIB, "a");
    uint64_t blue = client_of(&world, 20, "blue"), red = client_of(&world, 21, "red"), plain = world_client(&world, 22);
    static const char *const keys[] = {BLUE("one"), BLUE("two"), RED("one"), "one", "blue"};
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(world_put(&world, blue, store.owner, keys[i], SMALL), 0);
    assert_int_equal(remove_all(&world, &store, red, "blue"), 0); /* a pattern sees no tenant's name */
    assert_int_equal(remove_all(&world, &store, blue, "^one$"), 1);
    assert_int_equal(world_exist(&world, blue, BLUE("one")), 0);
    assert_int_equal(world_exist(&world, red, RED("one")) + world_exist(&world, plain, "one"), 2);
    assert_int_equal(remove_all(&world, &store, blue, NULL), 1);
    assert_int_equal(world_exist(&world, blue, BLUE("two")), 0);
    assert_int_equal(world_exist(&world, red, RED("one")) + world_exist(&world, plain, "blue"), 2);
    assert_int_equal(remove_all(&world, &store, plain, NULL), 2);
    assert_int_equal(world_exist(&world, red, RED("one")), 1);
    assert_int_equal(remove_all(&world, &store, red, "."), 1);
    world_close_all(&world);
}

/* Without tenants whoever removes all removes all. */
static void off_a_removal_meets_all(void **state)
{
    struct world world;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t client = world_client(&world, CLIENT);
    assert_int_equal(world_put(&world, client, store.owner, BLUE("one"), SMALL), 0);
    assert_int_equal(world_put(&world, client, store.owner, "one", SMALL), 0);
    assert_int_equal(remove_all(&world, &store, client, NULL), 2);
    world_close_all(&world);
}

static void groups_of_one_name_are_two(void **state)
{
    struct world world;
    struct world_wish wish = {.group = 77};
    struct mc_wire_place place;
    (void)state;
    open_tenants(&world);
    struct world_store store = world_store(&world, NODE_A, MIB, "a");
    uint64_t blue = client_of(&world, 20, "blue"), red = client_of(&world, 21, "red"), plain = world_client(&world, 22);
    assert_int_equal(world_put_place(&world, blue, store.owner, BLUE("k"), SMALL, &wish, &place), 0);
    uint64_t of_blue = world.group;
    assert_int_equal(world_put_place(&world, red, store.owner, RED("k"), SMALL, &wish, &place), 0);
    uint64_t of_red = world.group;
    assert_int_equal(world_put_place(&world, plain, store.owner, "k", SMALL, &wish, &place), 0);
    assert_int_equal(world.group, 77);
    assert_true(of_blue != 77 && of_red != 77 && of_blue != of_red);
    world_close_all(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stranger_is_told_whose_keys_it_names),
        cmocka_unit_test(a_key_says_the_tenant),
        cmocka_unit_test(keys_of_others_are_none),
        cmocka_unit_test(removals_meet_their_own_alone),
        cmocka_unit_test(off_a_removal_meets_all),
        cmocka_unit_test(groups_of_one_name_are_two),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
