/* Tenants at the core: whose keys a connection may name, what removals meet, and what each may have. */
#include "core_world.h"

#include "env/keys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define BLUE(key) "\1blue\1" key
#define RED(key) "\1red\1" key

static void open_without(struct world *world)
{
    struct mc_core_config config = mc_core_config_default();
    world_open_with(world, &config);
}

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
    open_without(&world); /* a name means nothing there */
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
            open_without(&world);
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

/* Keys' tenants count whatever the flag says: of who has a key, an administrator alone removes what others stored. */
static void removals_of_a_node_meet_its_own(void **state)
{
    struct world world;
    uint64_t blue, node, admin;
    (void)state;
    open_without(&world);
    struct world_store store = world_store(&world, NODE_A, MIB, "a");
    assert_int_equal(greet_as(&world, 20, "", USE, 1, "blue", &blue), 0);
    assert_int_equal(greet_as(&world, 21, "", USE | MC_RIGHT_NODE, 2, "", &node), 0);
    assert_int_equal(greet_as(&world, 22, "", MC_RIGHTS_ALL, 3, "", &admin), 0);
    assert_int_equal(world_put(&world, blue, store.owner, BLUE("k"), SMALL), 0);
    assert_int_equal(world_put(&world, node, store.owner, "k", SMALL), 0);
    assert_int_equal(remove_all(&world, &store, node, "k"), 1); /* a pattern sees no tenant's name */
    assert_int_equal(world_put(&world, node, store.owner, "k", SMALL), 0);
    assert_int_equal(remove_all(&world, &store, node, NULL), 1);
    assert_int_equal(world_exist(&world, blue, BLUE("k")), 1);
    assert_int_equal(remove_all(&world, &store, admin, NULL), 1);
    assert_int_equal(world_exist(&world, blue, BLUE("k")), 0);
    world_close_all(&world);
}

/* Without tenants whoever removes all removes all. */
static void off_a_removal_meets_all(void **state)
{
    struct world world;
    (void)state;
    open_without(&world);
    struct world_store store = world_store(&world, NODE_A, MIB, "a");
    uint64_t client = world_client(&world, CLIENT);
    assert_int_equal(world_put(&world, client, store.owner, BLUE("one"), SMALL), 0);
    assert_int_equal(world_put(&world, client, store.owner, "one", SMALL), 0);
    assert_int_equal(remove_all(&world, &store, client, NULL), 2);
    world_close_all(&world);
}

/* How many went, when the owner has cleared them. */
static uint64_t removed_by_shell(struct world *world, uint64_t owner, const char *tenant, bool force)
{
    uint64_t id = 0, count = 0;
    struct mc_scope scope;
    assert_true(mc_scope_make(&scope, mc_span_string(tenant)));
    assert_int_equal(mc_core_remove_all(world->core, tenant[0] == 0 ? NULL : &scope, force, &id), 0);
    world_settle(world, 1000);
    if (mc_core_removal(world->core, id, false, &count) == 1) {
        world_owner_obeys(world, owner);
        world_settle(world, 1000);
        assert_int_equal(mc_core_removal(world->core, id, false, &count), 0);
    }
    assert_int_equal(mc_core_removal(world->core, id, false, &count), MC_ERR_STALE); /* it is forgotten */
    assert_int_equal(world->core->job_count, 0);
    assert_int_equal(world->core->waits.free_count, world->core->waits.count);
    return count;
}

static void the_shell_removes_a_tenants_or_all(void **state)
{
    struct world world;
    uint64_t id, first, count, number = 0;
    (void)state;
    open_tenants(&world);
    struct world_store store = world_store(&world, NODE_A, 8 * MIB, "a");
    uint64_t any = client_of(&world, 20, "any");
    static const char *const keys[] = {BLUE("k"), BLUE("l"), RED("k"), "k"};
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(world_put(&world, any, store.owner, keys[i], SMALL), 0);
    assert_int_equal(removed_by_shell(&world, store.owner, "green", true), 0);
    assert_int_equal(removed_by_shell(&world, store.owner, "blue", true), 2);
    assert_int_equal(removed_by_shell(&world, store.owner, "default", true), 1);
    assert_int_equal(statistics_of(&world).objects, 1);
    assert_int_equal(world_put(&world, any, store.owner, "k", SMALL), 0);
    assert_int_equal(removed_by_shell(&world, store.owner, "", true), 2);
    /* So many at a time; who gives up leaves the rest, and makes room. */
    assert_int_equal(world_put(&world, any, store.owner, "k", SMALL), 0);
    for (first = 0; mc_core_remove_all(world.core, NULL, true, &id) == 0; number++)
        first = first == 0 ? id : first;
    assert_int_equal(number, MC_REMOVALS_MAX);
    assert_int_equal(mc_core_removal(world.core, first, true, &count), 0);
    assert_int_equal(mc_core_remove_all(world.core, NULL, true, &id), 0);
    for (uint64_t i = 1; i < number; i++)
        assert_int_equal(mc_core_removal(world.core, first + i, true, &count), 0);
    assert_int_equal(mc_core_removal(world.core, id, true, &count), 0);
    world_settle(&world, 1000);
    assert_int_equal(statistics_of(&world).objects, 1); /* nobody wanted it any more */
    assert_int_equal(world.core->job_count, 0);
    assert_int_equal(mc_core_removal(world.core, 0, false, &count), MC_ERR_STALE);
    world_close_all(&world);
}

/* ---- stamps ---- */

#define LLAMA "llama-llama-llam"
#define MAMBA "mamba-mamba-mamb"
#define WITH(stamp, key) "\1\2" stamp key

static uint64_t client_with(struct world *world, uint64_t node, const char *tenant, const char *stamp)
{
    struct mc_wire_hello hello = world_hello(MC_ROLE_CALL, node, FIRST_LIFE);
    hello.tenant = mc_span_string(tenant);
    memcpy(&hello.stamp, stamp, sizeof(hello.stamp));
    uint64_t connection = world_connect(world);
    int32_t code = world_greet(world, connection, &hello).code;
    mc_assert(code == 0);
    return connection;
}

/* Who has a stamp removes what has the same one; who has none, and an administrator, remove all. */
static void removals_meet_their_stamp_alone(void **state)
{
    struct world world;
    uint64_t id, count;
    struct mc_scope scope;
    struct mc_id stamp;
    (void)state;
    for (unsigned with_tenants = 0; with_tenants < 2; with_tenants++) {
        if (with_tenants)
            open_tenants(&world);
        else
            open_without(&world);
        struct world_store store = world_store(&world, NODE_A, MIB, "a");
        uint64_t llama = client_with(&world, 20, "", LLAMA), mamba = client_with(&world, 21, "", MAMBA);
        uint64_t plain = world_client(&world, 22);
        static const char *const keys[] = {WITH(LLAMA, "one"), WITH(LLAMA, "two"), WITH(MAMBA, "one"), "one", "two"};
        for (size_t i = 0; i < 5; i++)
            assert_int_equal(world_put(&world, llama, store.owner, keys[i], SMALL), 0);
        assert_int_equal(remove_all(&world, &store, mamba, "^two$"), 0);
        assert_int_equal(remove_all(&world, &store, llama, "llama"), 0); /* a pattern sees no stamp */
        assert_int_equal(remove_all(&world, &store, llama, "^one$"), 1);
        assert_int_equal(world_exist(&world, mamba, keys[2]) + world_exist(&world, plain, "one"), 2);
        assert_int_equal(remove_all(&world, &store, plain, "^one$"), 2);
        assert_int_equal(world_put(&world, mamba, store.owner, keys[2], SMALL), 0);
        assert_int_equal(remove_all(&world, &store, mamba, NULL), 1);
        assert_int_equal(world_exist(&world, llama, keys[1]) + world_exist(&world, plain, "two"), 2);
        memcpy(&stamp, LLAMA, sizeof(stamp));
        assert_true(mc_scope_make(&scope, mc_span_string("")));
        mc_scope_stamp(&scope, stamp);
        assert_int_equal(mc_core_remove_all(world.core, &scope, true, &id), 0);
        world_settle(&world, 1000);
        (void)world_owner_obeys(&world, store.owner);
        world_settle(&world, 1000);
        assert_int_equal(mc_core_removal(world.core, id, false, &count), 0);
        assert_int_equal(count, 1);
        assert_int_equal(world_exist(&world, plain, "two"), 1);
        assert_int_equal(world_put(&world, llama, store.owner, keys[1], SMALL), 0);
        assert_int_equal(remove_all(&world, &store, plain, NULL), 2);
        world_close_all(&world);
    }
}

/* What is there with another stamp, or without one, is a miss of its own kind; an own past of the key counts first. */
static void a_miss_by_its_stamp(void **state)
{
    struct world world;
    char stamp[17];
    (void)state;
    open_tenants(&world);
    struct world_store store = world_store(&world, NODE_A, MIB, "a");
    uint64_t llama = client_with(&world, 20, "", LLAMA), mamba = client_with(&world, 21, "", MAMBA);
    uint64_t plain = world_client(&world, 22), blue = client_with(&world, 23, "blue", LLAMA);
    assert_int_equal(world_put(&world, llama, store.owner, WITH(LLAMA, "k"), SMALL), 0);
    assert_int_equal(world_put(&world, plain, store.owner, "p", SMALL), 0);
    assert_int_equal(world_exist(&world, mamba, WITH(MAMBA, "k")), 0);
    assert_int_equal(world_exist(&world, mamba, WITH(MAMBA, "p")), 0);
    assert_int_equal(world_exist(&world, plain, "k"), 0);
    assert_int_equal(statistics_of(&world).misses[MC_GONE_STAMP], 3);
    assert_int_equal(world_exist(&world, mamba, WITH(MAMBA, "other")), 0);
    assert_int_equal(world_exist(&world, blue, "\1blue\1\1\2" LLAMA "k"), 0); /* of another tenant */
    assert_int_equal(world_put(&world, mamba, store.owner, WITH(MAMBA, "k"), SMALL), 0);
    assert_int_equal(remove_all(&world, &store, mamba, "^k$"), 1);
    assert_int_equal(world_exist(&world, mamba, WITH(MAMBA, "k")), 0);
    assert_int_equal(statistics_of(&world).misses[MC_GONE_STAMP], 3);
    assert_int_equal(statistics_of(&world).misses[MC_GONE_NEVER], 2);
    assert_int_equal(statistics_of(&world).misses[MC_GONE_REMOVED], 1);
    /* So many stamps are looked under: those that were used last. */
    for (unsigned i = 0; i < MC_STAMPS_MAX; i++) {
        (void)snprintf(stamp, sizeof(stamp), "stamp-%010u", i);
        (void)client_with(&world, 100 + i, "", stamp);
        bool is_known = i < MC_STAMPS_MAX - 1;
        assert_int_equal(world_exist(&world, plain, "k"), 0);
        assert_int_equal(statistics_of(&world).misses[MC_GONE_STAMP], is_known ? 4 + i : 3 + i);
    }
    assert_int_equal(world.core->known_stamp_count, MC_STAMPS_MAX);
    (void)client_with(&world, 20, "", LLAMA);
    assert_int_equal(world_exist(&world, plain, "k"), 0);
    assert_int_equal(statistics_of(&world).misses[MC_GONE_STAMP], 4 + MC_STAMPS_MAX - 1);
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

/* ---- quotas ---- */

/* A master with quotas: none for anybody yet. lru: what was used least recently goes first. */
static struct world_store open_quotas(struct world *world, uint64_t capacity)
{
    struct mc_core_config config = mc_core_config_default();
    config.tenants = config.quotas = true;
    config.policy = mc_eviction_find("lru");
    world_open_with(world, &config);
    return world_store(world, NODE_A, capacity, "a");
}

static void give(struct world *world, const char *tenant, struct mc_core_quota quota)
{
    int rc = mc_core_quota(world->core, mc_span_string(tenant), &quota);
    mc_assert(rc == 0);
}

static struct mc_core_tenant tenant_of(struct world *world, const char *name)
{
    struct mc_core_tenant list[8];
    uint64_t cursor = 0;
    do {
        size_t count = mc_core_tenants(world->core, &cursor, list, 8);
        for (size_t i = 0; i < count; i++)
            if (strcmp(list[i].name, name) == 0)
                return list[i];
    } while (cursor != 0);
    return (struct mc_core_tenant){.name = ""};
}

/* As a client does: what is to come again comes again, with an owner that clears. */
static int32_t put_wish(struct world *world, const struct world_store *store, uint64_t client, const char *key,
                        uint64_t length, const struct world_wish *wish)
{
    struct mc_wire_place place;
    int32_t code = MC_ERR_SPACE_SOON;
    for (unsigned i = 0; (code == MC_ERR_SPACE_SOON || code == MC_ERR_PUT_IN_PROGRESS) && i < 50; i++) {
        code = world_grant(world, client, PUT_1, key, length, wish, &place);
        (void)world_owner_obeys(world, store->owner);
    }
    if (code != 0)
        return code;
    world_live(world, store->owner, &place);
    world_pass(world, 10);
    (void)world_owner_obeys(world, store->owner);
    return world_put_done(world, client, PUT_1);
}

static int32_t put_again(struct world *world, const struct world_store *store, uint64_t client, const char *key,
                         uint64_t length, uint32_t flags)
{
    struct world_wish wish = {.flags = flags};
    return put_wish(world, store, client, key, length, &wish);
}

#define UNIT_16K (16u << 10)

static void who_has_no_quota_puts_nothing(void **state)
{
    struct world world;
    (void)state;
    struct world_store store = open_quotas(&world, MIB);
    uint64_t blue = client_of(&world, 20, "blue"), plain = world_client(&world, 21);
    assert_int_equal(world_put(&world, blue, store.owner, BLUE("k"), SMALL), MC_ERR_TENANT_NOT_REGISTERED);
    assert_int_equal(world_put(&world, plain, store.owner, "k", SMALL), MC_ERR_TENANT_NOT_REGISTERED);
    assert_string_equal(tenant_of(&world, "blue").name, ""); /* who asks in vain is not remembered */
    give(&world, "blue", (struct mc_core_quota){.bytes = MIB});
    assert_int_equal(world_put(&world, blue, store.owner, BLUE("k"), SMALL), 0);
    assert_int_equal(world_put(&world, plain, store.owner, "k", SMALL), MC_ERR_TENANT_NOT_REGISTERED);
    give(&world, "default", (struct mc_core_quota){.bytes = MIB});
    assert_int_equal(world_put(&world, plain, store.owner, "k", SMALL), 0);
    assert_int_equal(world_get(&world, blue, BLUE("k"), 0, NULL, NULL), 0);
    world_close_all(&world);
}

static void a_tenant_makes_room_among_its_own(void **state)
{
    struct world world;
    (void)state;
    struct world_store store = open_quotas(&world, 4 * MIB);
    uint64_t blue = client_of(&world, 20, "blue"), red = client_of(&world, 21, "red");
    give(&world, "blue", (struct mc_core_quota){.bytes = 4 * UNIT_16K});
    give(&world, "red", (struct mc_core_quota){.bytes = MIB});
    assert_int_equal(put_again(&world, &store, red, RED("old"), UNIT_16K, 0), 0);
    static const char *const keys[] = {BLUE("0"), BLUE("1"), BLUE("2"), BLUE("3"), BLUE("4"), BLUE("5")};
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(put_again(&world, &store, blue, keys[i], UNIT_16K, 0), 0);
    assert_int_equal(tenant_of(&world, "blue").bytes, 4 * UNIT_16K);
    assert_int_equal(tenant_of(&world, "blue").objects, 4);
    assert_int_equal(world_exist(&world, blue, keys[0]), 1); /* which is a use */
    assert_int_equal(put_again(&world, &store, blue, keys[4], UNIT_16K, 0), 0);
    assert_int_equal(world_exist(&world, blue, keys[1]), 0);
    assert_int_equal(world_exist(&world, blue, keys[0]) + world_exist(&world, red, RED("old")), 2);
    struct mc_core_tenant has = tenant_of(&world, "blue");
    assert_true(has.bytes == 4 * UNIT_16K && has.evicted_bytes == UNIT_16K && has.evicted_objects == 1);
    /* More than it may ever have: nothing goes for that. */
    assert_int_equal(put_again(&world, &store, blue, keys[5], 5 * UNIT_16K, 0), MC_ERR_TENANT_QUOTA_EXCEEDED);
    assert_true(tenant_of(&world, "blue").bytes == 4 * UNIT_16K && tenant_of(&world, "blue").refused == 1);
    world_close_all(&world);
}

/* Of what is pinned nothing goes, and what is being put counts. */
static void what_cannot_go_is_in_the_way(void **state)
{
    struct world world;
    struct world_wish wish = {.flags = MC_PUT_HARD_PIN};
    struct mc_wire_place place, open;
    (void)state;
    struct world_store store = open_quotas(&world, 4 * MIB);
    uint64_t blue = client_of(&world, 20, "blue");
    give(&world, "blue", (struct mc_core_quota){.bytes = 2 * UNIT_16K});
    assert_int_equal(world_put_place(&world, blue, store.owner, BLUE("pin"), UNIT_16K, &wish, &place), 0);
    assert_int_equal(world_grant(&world, blue, PUT_2, BLUE("open"), UNIT_16K, NULL, &open), 0);
    assert_int_equal(put_again(&world, &store, blue, BLUE("k"), UNIT_16K, 0), MC_ERR_SPACE_SOON);
    assert_int_equal(tenant_of(&world, "blue").bytes, 2 * UNIT_16K);
    assert_int_equal(put_again(&world, &store, blue, BLUE("k"), 2 * UNIT_16K + 1, 0), MC_ERR_TENANT_QUOTA_EXCEEDED);
    world_revoke(&world, blue, &open); /* a put that fails counts no more */
    (void)world_put_done(&world, blue, PUT_2);
    assert_int_equal(tenant_of(&world, "blue").bytes, UNIT_16K);
    assert_int_equal(world_put_place(&world, blue, store.owner, BLUE("pin2"), UNIT_16K, &wish, &place), 0);
    assert_int_equal(put_again(&world, &store, blue, BLUE("k"), UNIT_16K, 0), MC_ERR_TENANT_QUOTA_EXCEEDED);
    world_close_all(&world);
}

static void objects_are_bounded_too(void **state)
{
    struct world world;
    (void)state;
    struct world_store store = open_quotas(&world, 4 * MIB);
    uint64_t blue = client_of(&world, 20, "blue");
    give(&world, "blue", (struct mc_core_quota){.bytes = MIB, .objects = 2});
    static const char *const keys[] = {BLUE("0"), BLUE("1"), BLUE("2")};
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(put_again(&world, &store, blue, keys[i], SMALL, 0), 0);
    assert_int_equal(world_exist(&world, blue, keys[0]), 0);
    assert_int_equal(tenant_of(&world, "blue").objects, 2);
    world_close_all(&world);
}

/* An upsert in a quota that is full: what it adds in the end counts, and nothing else has to go. */
static void an_upsert_counts_what_it_adds(void **state)
{
    struct world world;
    (void)state;
    struct world_store store = open_quotas(&world, 4 * MIB);
    uint64_t blue = client_of(&world, 20, "blue");
    give(&world, "blue", (struct mc_core_quota){.bytes = 3 * UNIT_16K, .objects = 2});
    assert_int_equal(put_again(&world, &store, blue, BLUE("other"), UNIT_16K, 0), 0);
    assert_int_equal(put_again(&world, &store, blue, BLUE("k"), 2 * UNIT_16K, 0), 0);
    assert_int_equal(put_again(&world, &store, blue, BLUE("k"), 2 * UNIT_16K, MC_PUT_REPLACE), 0);
    assert_int_equal(world_exist(&world, blue, BLUE("other")), 1);
    assert_true(tenant_of(&world, "blue").bytes == 3 * UNIT_16K && tenant_of(&world, "blue").objects == 2);
    assert_int_equal(put_again(&world, &store, blue, BLUE("k"), UNIT_16K, MC_PUT_REPLACE), 0);
    assert_int_equal(tenant_of(&world, "blue").bytes, 2 * UNIT_16K);
    assert_int_equal(put_again(&world, &store, blue, BLUE("k"), 3 * UNIT_16K, MC_PUT_REPLACE), 0); /* the other goes */
    assert_int_equal(world_exist(&world, blue, BLUE("other")), 0);
    assert_true(tenant_of(&world, "blue").bytes == 3 * UNIT_16K && tenant_of(&world, "blue").objects == 1);
    world_close_all(&world);
}

/* Room is made for an upsert by a group to which the value belongs that is replaced: with that gone there is nothing
 * left to be replaced, and what it took counts no more for the new one. */
static void an_upsert_whose_value_goes_with_its_group(void **state)
{
    struct world world;
    struct world_wish wish = {.group = 7}, upsert = {.group = 7, .flags = MC_PUT_REPLACE};
    (void)state;
    struct world_store store = open_quotas(&world, 4 * MIB);
    uint64_t blue = client_of(&world, 20, "blue");
    give(&world, "blue", (struct mc_core_quota){.bytes = 4 * UNIT_16K + SMALL});
    assert_int_equal(put_wish(&world, &store, blue, BLUE("a"), SMALL, &wish), 0);
    assert_int_equal(put_wish(&world, &store, blue, BLUE("k"), 2 * UNIT_16K, &wish), 0);
    assert_int_equal(put_again(&world, &store, blue, BLUE("other"), 2 * UNIT_16K, 0), 0);
    assert_int_equal(put_wish(&world, &store, blue, BLUE("k"), 3 * UNIT_16K, &upsert), 0);
    assert_true(tenant_of(&world, "blue").bytes <= 4 * UNIT_16K + SMALL);
    assert_int_equal(world_exist(&world, blue, BLUE("other")), 0);
    world_close_all(&world);
}

/* What is guaranteed to one is not evicted for another, however much that one puts. */
static void what_is_guaranteed_stays(void **state)
{
    struct world world;
    char key[32];
    (void)state;
    struct world_store store = open_quotas(&world, MIB);
    uint64_t blue = client_of(&world, 20, "blue"), red = client_of(&world, 21, "red");
    give(&world, "blue", (struct mc_core_quota){.bytes = MIB, .guaranteed_bytes = 8 * UNIT_16K});
    give(&world, "red", (struct mc_core_quota){.bytes = MIB, .guaranteed_bytes = UNIT_16K});
    for (unsigned i = 0; i < 12; i++) { /* a third of them is beyond the guarantee */
        (void)snprintf(key, sizeof(key), "\1blue\1b%u", i);
        assert_int_equal(put_again(&world, &store, blue, key, UNIT_16K, 0), 0);
    }
    for (unsigned i = 0; i < 300; i++) {
        (void)snprintf(key, sizeof(key), "\1red\1r%u", i);
        assert_int_equal(put_again(&world, &store, red, key, UNIT_16K, 0), 0);
        world_check(&world);
    }
    assert_int_equal(tenant_of(&world, "blue").objects, 8);
    assert_true(tenant_of(&world, "red").bytes > MIB / 2);
    world_close_all(&world);
}

/* All that lies there is guaranteed to others: that is said at once, and not after a while. */
static void a_pool_of_guarantees_is_full(void **state)
{
    struct world world;
    char key[32];
    int32_t code = 0;
    (void)state;
    struct world_store store = open_quotas(&world, MIB);
    uint64_t blue = client_of(&world, 20, "blue"), red = client_of(&world, 21, "red");
    give(&world, "blue", (struct mc_core_quota){.bytes = MIB, .guaranteed_bytes = MIB});
    give(&world, "red", (struct mc_core_quota){.bytes = MIB, .guaranteed_bytes = 1});
    for (unsigned i = 0; i < 80 && code == 0; i++) {
        (void)snprintf(key, sizeof(key), "\1blue\1b%u", i);
        code = put_again(&world, &store, blue, key, UNIT_16K, 0);
    }
    assert_int_equal(code, 0); /* it makes room among its own when the pool is full */
    uint64_t has = tenant_of(&world, "blue").objects;
    (void)put_again(&world, &store, red, RED("small"), SMALL, 0); /* there may be a hole */
    assert_int_equal(put_again(&world, &store, red, RED("k"), 20 * UNIT_16K, 0), MC_ERR_NO_AVAILABLE_HANDLE);
    assert_int_equal(tenant_of(&world, "blue").objects, has);
    assert_int_equal(put_again(&world, &store, blue, BLUE("more"), UNIT_16K, 0), 0);
    world_close_all(&world);
}

/* Quotas that are together more than there is shrink alike. */
static void quotas_are_scaled_to_what_there_is(void **state)
{
    struct world world;
    (void)state;
    struct world_store store = open_quotas(&world, MIB);
    give(&world, "blue", (struct mc_core_quota){.bytes = 3 * MIB});
    assert_int_equal(tenant_of(&world, "blue").effective_bytes, MIB);
    give(&world, "red", (struct mc_core_quota){.bytes = MIB});
    assert_int_equal(tenant_of(&world, "blue").effective_bytes, MIB * 3 / 4);
    assert_int_equal(tenant_of(&world, "red").effective_bytes, MIB / 4);
    assert_int_equal(mc_core_tenant_capacity(world.core), MIB);
    (void)world_store(&world, NODE_B, 4 * MIB, "b");
    assert_int_equal(mc_core_tenant_capacity(world.core), 5 * MIB);
    assert_int_equal(tenant_of(&world, "blue").effective_bytes, 3 * MIB);
    world_disconnect(&world, store.owner);
    world_close_all(&world);
}

static void quotas_come_and_go(void **state)
{
    struct world world;
    (void)state;
    struct mc_core_quota quota = {.bytes = MIB};
    open_without(&world);
    assert_int_equal(mc_core_quota(world.core, mc_span_string("blue"), &quota), MC_ERR_UNAVAILABLE_IN_CURRENT_MODE);
    world_close_all(&world);
    struct world_store store = open_quotas(&world, MIB);
    assert_int_equal(mc_core_quota(world.core, mc_span_string("blue"), NULL), MC_ERR_TENANT_NOT_REGISTERED);
    assert_int_equal(mc_core_quota(world.core, mc_span_string("_blue"), &quota), MC_ERR_INVALID_PARAMS);
    give(&world, "blue", quota);
    uint64_t blue = client_of(&world, 20, "blue");
    assert_int_equal(put_again(&world, &store, blue, BLUE("k"), SMALL, 0), 0);
    assert_int_equal(mc_core_quota(world.core, mc_span_string("blue"), NULL), MC_ERR_TENANT_NOT_EMPTY);
    world_remove_one_send(&world, blue, BLUE("k"));
    (void)world_owner_obeys(&world, store.owner);
    assert_int_equal(mc_core_quota(world.core, mc_span_string("blue"), NULL), 0);
    assert_int_equal(mc_core_quota(world.core, mc_span_string("blue"), NULL), MC_ERR_TENANT_NOT_REGISTERED);
    world_close_all(&world);
}

/* As many tenants as there may be; those without anything make place for others. */
static void there_are_so_many_tenants(void **state)
{
    struct world world;
    struct mc_core_quota quota = {.bytes = MIB};
    char name[32], key[48];
    (void)state;
    struct world_store store = open_quotas(&world, MIB);
    for (unsigned i = 0; i < MC_TENANTS_MAX; i++) {
        (void)snprintf(name, sizeof(name), "t%u", i);
        assert_int_equal(mc_core_quota(world.core, mc_span_string(name), &quota), 0);
    }
    assert_int_equal(mc_core_quota(world.core, mc_span_string("more"), &quota), MC_ERR_BUSY);
    uint64_t client = client_of(&world, 20, "more");
    assert_int_equal(put_again(&world, &store, client, "\1more\1k", SMALL, 0), MC_ERR_TENANT_NOT_REGISTERED);
    assert_int_equal(mc_core_quota(world.core, mc_span_string("t7"), NULL), 0);
    assert_int_equal(mc_core_quota(world.core, mc_span_string("more"), &quota), 0);
    assert_int_equal(put_again(&world, &store, client, "\1more\1k", SMALL, 0), 0);
    world_close_all(&world);
    /* Without quotas, where a name costs nothing. */
    open_tenants(&world);
    store = world_store(&world, NODE_A, 16 * MIB, "a");
    client = client_of(&world, 20, "any");
    for (unsigned i = 0; i < MC_TENANTS_MAX; i++) {
        (void)snprintf(key, sizeof(key), "\1t%u\1k", i);
        assert_int_equal(world_put(&world, client, store.owner, key, SMALL), 0);
    }
    assert_int_equal(world_put(&world, client, store.owner, "\1more\1k", SMALL), MC_ERR_TENANT_NOT_REGISTERED);
    assert_int_equal(world_put(&world, client, store.owner, "\1t7\1l", SMALL), 0);
    int32_t removed = 1;
    world_remove_one_send(&world, client, "\1t9\1k");
    (void)world_owner_obeys(&world, store.owner);
    assert_true(world_remove_answer(&world, client, &removed, 1) && removed == 0);
    world_pass_beating(&world, 65 * SECOND_MS, store.heartbeat); /* so long what was removed is remembered */
    assert_int_equal(put_again(&world, &store, client, "\1more\1k", SMALL, 0), 0);
    world_close_all(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stranger_is_told_whose_keys_it_names),
        cmocka_unit_test(a_key_says_the_tenant),
        cmocka_unit_test(keys_of_others_are_none),
        cmocka_unit_test(removals_meet_their_own_alone),
        cmocka_unit_test(removals_of_a_node_meet_its_own),
        cmocka_unit_test(off_a_removal_meets_all),
        cmocka_unit_test(the_shell_removes_a_tenants_or_all),
        cmocka_unit_test(removals_meet_their_stamp_alone),
        cmocka_unit_test(a_miss_by_its_stamp),
        cmocka_unit_test(groups_of_one_name_are_two),
        cmocka_unit_test(who_has_no_quota_puts_nothing),
        cmocka_unit_test(a_tenant_makes_room_among_its_own),
        cmocka_unit_test(what_cannot_go_is_in_the_way),
        cmocka_unit_test(objects_are_bounded_too),
        cmocka_unit_test(an_upsert_counts_what_it_adds),
        cmocka_unit_test(an_upsert_whose_value_goes_with_its_group),
        cmocka_unit_test(what_is_guaranteed_stays),
        cmocka_unit_test(a_pool_of_guarantees_is_full),
        cmocka_unit_test(quotas_are_scaled_to_what_there_is),
        cmocka_unit_test(quotas_come_and_go),
        cmocka_unit_test(there_are_so_many_tenants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
