/* Hints where tenants have quotas: what goes for another of one's own, and what hints load within that. */
#include "core_hints.h"

#include "store/core/account.h"
#include "store/core/limits.h"

static void give_quota(struct world *world, uint64_t bytes, uint64_t objects)
{
    const struct mc_core_quota quota = {.bytes = bytes, .objects = objects};
    assert_int_equal(mc_core_quota(world->core, mc_span_string("default"), &quota), 0);
}

/* A node of so much memory with a disk, and its one tenant has that quota. */
static void open_quota(struct world *world, struct world_store *store, int offload, uint64_t memory, uint64_t bytes)
{
    struct mc_core_config config = mc_core_config_default();
    config.offload = offload;
    config.tenants = config.quotas = true;
    world_open_with(world, &config);
    *store = world_store(world, NODE_A, memory, "a");
    struct mc_wire_mount mount = disk_mount(DISK_A);
    assert_int_equal(world_mount(world, store->owner, &mount).code, 0);
    give_quota(world, bytes, 0);
}

static void put_each(struct world *world, const struct world_store *store, const char *keys)
{
    for (; *keys != 0; keys++)
        assert_int_equal(world_put(world, store->call, store->owner, (char[]){*keys, 0}, OBJECT), 0);
}

/* Within the quota, and among its tenant's own. */
static void test_quota(void **state)
{
    const struct world_wish hard = {.flags = MC_PUT_HARD_PIN};
    struct mc_wire_place place;
    struct world world;
    struct world_store store;
    (void)state;
    open_quota(&world, &store, MC_OFFLOAD_ON_PUT, MIB, OBJECT + OBJECT / 2);
    put_on_disk(&world, &store, 1);
    assert_int_equal(world_put_place(&world, store.call, store.owner, "hard", OBJECT, &hard, &place), 0);
    assert_int_equal(say(&world, store.call, MC_HINT_PREFETCH, "k0"), MC_ERR_NO_AVAILABLE_HANDLE);
    give_quota(&world, 3 * OBJECT, 0);
    assert_int_equal(say(&world, store.call, MC_HINT_PREFETCH, "k0"), MC_HINT_BEGUN);
    assert_int_equal(say(&world, store.call, MC_HINT_DROP, "k0"), 0); /* while it comes */
    world_check(&world);
    world_close_all(&world);
}

/* And of these none goes for what is not loaded then. */
static void test_quota_and_no_room(void **state)
{
    struct world world;
    struct world_store store;
    (void)state;
    open_quota(&world, &store, MC_OFFLOAD_ON_PUT, MIB, OBJECT + OBJECT / 2);
    put_on_disk(&world, &store, 1);
    world.core->config.offload = MC_OFFLOAD_NEVER;
    assert_int_equal(world_put(&world, store.call, store.owner, "other", OBJECT), 0);
    struct mc_segment *memory = mc_segment_find(world.core, store.segment);
    memory->fetches += MC_HINT_LOADS_MAX;
    assert_int_equal(world_hint(&world, store.call, MC_HINT_PREFETCH, "k0", 0), MC_ERR_NO_AVAILABLE_HANDLE);
    memory->fetches -= MC_HINT_LOADS_MAX;
    assert_true(is_there(&world, &store, "other"));
    assert_int_equal(say(&world, store.call, MC_HINT_PREFETCH, "k0"), MC_HINT_BEGUN);
    assert_false(is_there(&world, &store, "other"));
    world_close_all(&world);
}

/* Of a tenant's own what it has dropped makes room first. */
static void test_own_that_is_dropped(void **state)
{
    struct world world;
    struct world_store store;
    (void)state;
    open_quota(&world, &store, MC_OFFLOAD_NEVER, MIB, 3 * OBJECT);
    put_each(&world, &store, "abc");
    assert_int_equal(say(&world, store.call, MC_HINT_DROP, "c"), 0);
    assert_int_equal(world_put(&world, store.call, store.owner, "d", OBJECT), 0);
    assert_true(is_there(&world, &store, "a") && is_there(&world, &store, "b"));
    assert_false(is_there(&world, &store, "c"));
    world_close_all(&world);
}

/* But not once the disk that had it has lost it. */
static void test_own_that_is_lost_on_disk(void **state)
{
    static struct moves moves;
    struct world world;
    struct world_store store;
    (void)state;
    open_quota(&world, &store, MC_OFFLOAD_ON_EVICT, MIB, 3 * OBJECT);
    put_each(&world, &store, "abc");
    assert_int_equal(say(&world, store.call, MC_HINT_PAUSE, "c"), MC_HINT_BEGUN);
    told_moves(&world, store.owner, &moves);
    owner_did(&world, store.owner, &moves, 0);
    disk_loses(&world, &store, &moves);
    assert_int_equal(world_put(&world, store.call, store.owner, "d", OBJECT), 0);
    assert_false(is_there(&world, &store, "a"));
    assert_true(is_there(&world, &store, "b") && is_there(&world, &store, "c"));
    world_close_all(&world);
}

/* Nor once it is wanted again, though it was only loaded ahead. */
static void test_own_that_is_resumed(void **state)
{
    struct world world;
    struct world_store store;
    (void)state;
    open_quota(&world, &store, MC_OFFLOAD_ON_PUT, MIB, 2 * OBJECT);
    put_on_disk(&world, &store, 1);
    world.core->config.offload = MC_OFFLOAD_NEVER;
    assert_int_equal(world_put(&world, store.call, store.owner, "b", OBJECT), 0);
    assert_int_equal(say(&world, store.call, MC_HINT_PREFETCH, "k0"), MC_HINT_BEGUN);
    load_one(&world, &store);
    assert_int_equal(say(&world, store.call, MC_HINT_DROP, "k0"), 0);
    assert_int_equal(say(&world, store.call, MC_HINT_RESUME, "k0"), 0);
    assert_int_equal(world_put(&world, store.call, store.owner, "d", OBJECT), 0);
    assert_false(is_there(&world, &store, "b"));
    const struct mc_object *resumed = mc_object_find(world.core, mc_span_string("k0"));
    struct mc_replica replica;
    assert_int_equal(mc_object_readable(world.core, resumed, &replica, 1), 1);
    world_close_all(&world);
}

/* Of a group what is dropped goes alone, and not at all once another member is used. */
static void test_own_of_a_group(void **state)
{
    const struct world_wish in_group = {.group = 7};
    struct world world;
    struct world_store store;
    char key[32];
    (void)state;
    open_quota(&world, &store, MC_OFFLOAD_NEVER, MIB, 4 * OBJECT);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(world_put_hard(&world, &store, world_name(key, "g", i), OBJECT, &in_group), 0);
    put_each(&world, &store, "a");
    assert_int_equal(say(&world, store.call, MC_HINT_DROP, "g0"), 0);
    put_each(&world, &store, "b");
    assert_false(is_there(&world, &store, "g0"));
    assert_true(is_there(&world, &store, "g1") && is_there(&world, &store, "g2") && is_there(&world, &store, "a"));
    assert_int_equal(say(&world, store.call, MC_HINT_DROP, "g2"), 0);
    world.now += 2000;
    assert_int_equal(world_exist(&world, store.call, "g1"), 1);
    put_each(&world, &store, "c");
    assert_true(is_there(&world, &store, "g1") && is_there(&world, &store, "g2"));
    assert_false(is_there(&world, &store, "a") || goes_first(&world, "g2"));
    world_close_all(&world);
}

/* A tenant whose values are all of one group that is used has room among them nevertheless. */
static void test_own_of_a_group_that_is_used(void **state)
{
    const struct world_wish in_group = {.group = 7};
    struct world world;
    struct world_store store;
    char key[32];
    (void)state;
    open_quota(&world, &store, MC_OFFLOAD_NEVER, MIB, 3 * OBJECT);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(world_put_hard(&world, &store, world_name(key, "g", i), OBJECT, &in_group), 0);
    world.now += 2000;
    assert_int_equal(world_exist(&world, store.call, "g1"), 1);
    put_each(&world, &store, "a");
    for (unsigned i = 0; i < 3; i++)
        assert_false(is_there(&world, &store, world_name(key, "g", i)));
    world_close_all(&world);
}

/* What is under way counts, until it has come or failed. */
static void test_quota_and_what_is_under_way(void **state)
{
    static struct moves moves, more;
    struct world world;
    struct world_store store;
    (void)state;
    for (unsigned by_count = 0; by_count < 2; by_count++) {
        open_quota(&world, &store, MC_OFFLOAD_ON_PUT, MIB, 100 * OBJECT);
        put_on_disk(&world, &store, 4);
        give_quota(&world, by_count ? 100 * OBJECT : 2 * OBJECT, by_count ? 2 : 0);
        assert_int_equal(say(&world, store.call, MC_HINT_PREFETCH, "k0"), MC_HINT_BEGUN);
        told_moves(&world, store.owner, &moves);
        assert_int_equal(say(&world, store.call, MC_HINT_PREFETCH, "k1"), MC_HINT_BEGUN);
        told_moves(&world, store.owner, &more);
        assert_int_equal(say(&world, store.call, MC_HINT_PREFETCH, "k2"), MC_ERR_NO_AVAILABLE_HANDLE);
        owner_did(&world, store.owner, &moves, MC_ERR_FILE_READ_FAIL);
        assert_int_equal(say(&world, store.call, MC_HINT_PREFETCH, "k2"), MC_HINT_BEGUN);
        owner_did(&world, store.owner, &more, 0);
        assert_int_equal(mc_account_find(world.core->objects.accounts, mc_span_string("k1"))->bytes, OBJECT);
        assert_int_equal(say(&world, store.call, MC_HINT_PREFETCH, "k3"), MC_HINT_BEGUN); /* instead of k1 */
        assert_int_equal(mc_account_find(world.core->objects.accounts, mc_span_string("k1"))->bytes, 0);
        world_close_all(&world);
    }
}

/* What its tenant is guaranteed stays so, also after a hint that found no room among its own. */
static void test_guarantee_after_a_hint_in_vain(void **state)
{
    const struct mc_core_quota quota = {.bytes = OBJECT + OBJECT / 2, .guaranteed_bytes = OBJECT};
    const struct world_wish hard = {.flags = MC_PUT_HARD_PIN};
    struct mc_wire_place place;
    struct world world;
    struct world_store store;
    (void)state;
    open_quota(&world, &store, MC_OFFLOAD_ON_PUT, MIB, OBJECT + OBJECT / 2);
    put_on_disk(&world, &store, 1);
    assert_int_equal(mc_core_quota(world.core, mc_span_string("default"), &quota), 0);
    assert_int_equal(world_put_place(&world, store.call, store.owner, "hard", OBJECT, &hard, &place), 0);
    const struct mc_object *object = mc_object_find(world.core, mc_span_string("hard"));
    assert_true(mc_account_is_owed(world.core, object));
    assert_int_equal(world_hint(&world, store.call, MC_HINT_PREFETCH, "k0", 0), MC_ERR_NO_AVAILABLE_HANDLE);
    assert_true(mc_account_is_owed(world.core, object));
    world_check(&world);
    world_close_all(&world);
}

/* Nothing of one's own goes for what has no room beside firm pins, which count by the length of their values. */
static void test_quota_that_pins_fill(void **state)
{
    const struct world_wish firm = {.flags = MC_PUT_SOFT_PIN | MC_PUT_FIRM_PIN | MC_PUT_OR_NOT, .pin_ms = 5000};
    struct world world;
    struct world_store store;
    struct mc_wire_place place;
    (void)state;
    for (unsigned is_small = 0; is_small < 2; is_small++) {
        uint64_t pinned = is_small ? 1 : OBJECT;
        open_quota(&world, &store, MC_OFFLOAD_ON_PUT, MIB, 100 * OBJECT);
        world.core->config.firm_pin_ratio = 1;
        put_on_disk(&world, &store, 1);
        world.core->config.offload = MC_OFFLOAD_NEVER;
        assert_int_equal(world_put_place(&world, store.call, store.owner, "pinned", pinned, &firm, &place), 0);
        assert_int_equal(world_put(&world, store.call, store.owner, "small", OBJECT / 2), 0);
        give_quota(&world, pinned + (is_small ? OBJECT : OBJECT - 1), 0);
        assert_int_equal(say(&world, store.call, MC_HINT_PREFETCH, "k0"),
                         is_small ? MC_HINT_BEGUN : MC_ERR_NO_AVAILABLE_HANDLE);
        assert_int_equal(is_there(&world, &store, "small"), !is_small);
        world_check(&world);
        world_close_all(&world);
    }
}

/* What is more than the quota by itself pushes out nothing. */
static void test_quota_that_it_can_not_fit(void **state)
{
    struct world world;
    struct world_store store;
    (void)state;
    open_quota(&world, &store, MC_OFFLOAD_ON_PUT, MIB, 100 * OBJECT);
    put_on_disk(&world, &store, 1);
    world.core->config.offload = MC_OFFLOAD_NEVER;
    assert_int_equal(world_put(&world, store.call, store.owner, "small", OBJECT / 2), 0);
    give_quota(&world, OBJECT - 1, 0);
    assert_int_equal(say(&world, store.call, MC_HINT_PREFETCH, "k0"), MC_ERR_NO_AVAILABLE_HANDLE);
    assert_true(is_there(&world, &store, "small"));
    world_close_all(&world);
}

/* Who has no quota is told so, also for a pin that would be refused. */
static void test_a_pin_of_who_has_no_quota(void **state)
{
    const struct world_wish hard = {.flags = MC_PUT_HARD_PIN},
                            firm = {.flags = MC_PUT_SOFT_PIN | MC_PUT_FIRM_PIN | MC_PUT_OR_NOT, .pin_ms = 5000};
    struct world world;
    struct world_store store;
    struct mc_wire_place place;
    (void)state;
    open_quota(&world, &store, MC_OFFLOAD_NEVER, MIB, 3 * OBJECT);
    world.core->config.hard_pin_ratio = world.core->config.firm_pin_ratio = 0.001;
    assert_int_equal(world_put_place(&world, store.call, store.owner, "\1red\1a", OBJECT, &hard, &place),
                     MC_ERR_TENANT_NOT_REGISTERED);
    assert_int_equal(world_put_place(&world, store.call, store.owner, "\1red\1a", OBJECT, &firm, &place),
                     MC_ERR_TENANT_NOT_REGISTERED);
    assert_int_equal(statistics_of(&world).tenants_unknown, 2);
    assert_int_equal(statistics_of(&world).firm_pins_refused, 0);
    world_close_all(&world);
}

/* For what is refused since so much is pinned nothing of one's own goes. */
static void test_own_and_a_pin_that_is_refused(void **state)
{
    const struct world_wish hard = {.flags = MC_PUT_HARD_PIN},
                            firm = {.flags = MC_PUT_SOFT_PIN | MC_PUT_FIRM_PIN | MC_PUT_OR_NOT, .pin_ms = 5000};
    struct world world;
    struct world_store store;
    struct mc_wire_place place;
    (void)state;
    open_quota(&world, &store, MC_OFFLOAD_NEVER, MIB, 3 * OBJECT);
    world.core->config.hard_pin_ratio = world.core->config.firm_pin_ratio = 0.001;
    put_each(&world, &store, "abc");
    assert_int_equal(world_put_place(&world, store.call, store.owner, "d", OBJECT, &hard, &place),
                     MC_ERR_NO_AVAILABLE_HANDLE);
    assert_int_equal(world_put_place(&world, store.call, store.owner, "d", OBJECT, &firm, &place),
                     MC_ERR_FIRM_PIN_REFUSED);
    assert_int_equal(statistics_of(&world).firm_pins_refused, 1);
    assert_true(is_there(&world, &store, "a") && is_there(&world, &store, "b") && is_there(&world, &store, "c"));
    world_close_all(&world);
}

#define PINNED 600u /* more than are looked at for one, so one can count how often that was */

/* What a message costs has a bound, not only what a key of it does: who has no room is not looked at for each. */
static void test_quota_and_many(void **state)
{
    const struct world_wish hard = {.flags = MC_PUT_HARD_PIN};
    struct world world;
    struct world_store store;
    const char *keys[4] = {"k0", "k1", "k2", "k3"};
    int32_t codes[4];
    char key[32];
    (void)state;
    open_quota(&world, &store, MC_OFFLOAD_ON_PUT, 4 * MIB, 4 * MIB);
    put_on_disk(&world, &store, 4);
    world.core->config.offload = MC_OFFLOAD_NEVER;
    for (unsigned i = 0; i < PINNED; i++)
        assert_int_equal(world_put_hard(&world, &store, world_name(key, "h", i), OBJECT, &hard), 0);
    give_quota(&world, 4 * MIB, PINNED);
    const struct mc_account *account = mc_account_find(world.core->objects.accounts, mc_span_string("k0"));
    const struct mc_object *object = account->oldest;
    for (unsigned i = 0; i < MC_EVICT_OWN_MAX; i++)
        object = mc_object_holding(object)->next;
    world_hints(&world, store.call, MC_HINT_PREFETCH, keys, 4, 0, codes);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(codes[i], MC_ERR_NO_AVAILABLE_HANDLE);
    assert_ptr_equal(account->oldest, object);
    world_check(&world);
    give_quota(&world, 4 * MIB, PINNED + 4);
    world_hints(&world, store.call, MC_HINT_PREFETCH, keys, 4, 0, codes);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(codes[i], MC_HINT_BEGUN);
    world_close_all(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quota),
        cmocka_unit_test(test_quota_and_no_room),
        cmocka_unit_test(test_own_that_is_dropped),
        cmocka_unit_test(test_own_that_is_lost_on_disk),
        cmocka_unit_test(test_own_that_is_resumed),
        cmocka_unit_test(test_own_of_a_group),
        cmocka_unit_test(test_own_of_a_group_that_is_used),
        cmocka_unit_test(test_quota_and_what_is_under_way),
        cmocka_unit_test(test_guarantee_after_a_hint_in_vain),
        cmocka_unit_test(test_quota_that_pins_fill),
        cmocka_unit_test(test_quota_that_it_can_not_fit),
        cmocka_unit_test(test_a_pin_of_who_has_no_quota),
        cmocka_unit_test(test_own_and_a_pin_that_is_refused),
        cmocka_unit_test(test_quota_and_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
