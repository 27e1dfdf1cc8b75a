/* Loading from a disk that fails. */
#include "core_moves.h"

/* The owner is told to load the key, and has, or could not. What is then to be cleared is cleared. */
static void load(struct world *world, const struct world_store *store, const char *key, int32_t code)
{
    static struct moves moves;
    assert_int_equal(world_get(world, store->call, key, 0, NULL, NULL), MC_ERR_PUT_IN_PROGRESS);
    told_moves(world, store->owner, &moves);
    assert_int_equal(moves.type, MC_MESSAGE_LOAD);
    owner_did(world, store->owner, &moves, code);
    uint32_t cleared = owner_clears(world, store->owner);
    assert_int_equal(cleared, code == 0 ? 0 : 2); /* a CUT, too: it may be at it once more, if told twice */
}

static void fail_to_load(struct world *world, const struct world_store *store, const char *key)
{
    load(world, store, key, MC_ERR_TRANSFER_FAIL);
    assert_int_equal(world_get(world, store->call, key, 0, NULL, NULL), MC_ERR_OBJECT_NOT_FOUND);
}

static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h"};

/* Each of them lies on the disk only. */
static void open_with_values(struct world *world, struct world_store *store)
{
    (void)open_with_disk(world, store);
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        put_and_store(world, store, names[i]);
        forget_in_memory(world, store, names[i]);
    }
}

/* Who reads it is not kept waiting by a value that does not come in time. The others come. */
static void test_what_cannot_be_loaded(void **state)
{
    struct world world;
    struct world_store store;
    (void)state;
    open_with_values(&world, &store);
    fail_to_load(&world, &store, "a");
    load(&world, &store, "b", 0);
    fail_to_load(&world, &store, "c"); /* not in a row */
    fail_to_load(&world, &store, "d");
    load(&world, &store, "e", 0);
    world_pass_beating(&world, MC_DISK_REST_MS, store.heartbeat);
    load(&world, &store, "a", 0);
    world_close_all(&world);
}

/* A disk from which nothing comes is asked for one value at a time, until one comes. */
static void test_disk_from_which_nothing_comes(void **state)
{
    struct world world;
    struct world_store store;
    (void)state;
    open_with_values(&world, &store);
    fail_to_load(&world, &store, "a");
    fail_to_load(&world, &store, "b");
    fail_to_load(&world, &store, "c");
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(world_get(&world, store.call, "d", 0, NULL, NULL), MC_ERR_OBJECT_NOT_FOUND);
        world_pass_beating(&world, MC_DISK_REST_MS, store.heartbeat);
        fail_to_load(&world, &store, "e");
    }
    world_pass_beating(&world, MC_DISK_REST_MS, store.heartbeat);
    load(&world, &store, "d", 0);
    fail_to_load(&world, &store, "e");
    load(&world, &store, "f", 0);
    world_close_all(&world);
}

/* One value that does not come, however often, is not the disk. */
static void test_one_value_again_and_again(void **state)
{
    struct world world;
    struct world_store store;
    (void)state;
    open_with_values(&world, &store);
    for (unsigned i = 0; i < MC_DISK_VAIN + 1; i++) {
        fail_to_load(&world, &store, "a");
        world_pass_beating(&world, MC_DISK_REST_MS, store.heartbeat);
    }
    fail_to_load(&world, &store, "a");
    load(&world, &store, "b", 0);
    world_close_all(&world);
}

/* What failed for the process before says nothing of the one that has the disk now. */
static void test_another_process_begins_anew(void **state)
{
    struct world world;
    struct world_store store;
    static struct moves moves;
    (void)state;
    open_with_values(&world, &store);
    uint64_t beat = world_join(&world, MC_ROLE_HEARTBEAT, CLIENT, FIRST_LIFE);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", OBJECT), 0);
    told_moves(&world, store.owner, &moves);
    owner_did(&world, store.owner, &moves, 0);
    fail_to_load(&world, &store, "a");
    fail_to_load(&world, &store, "b");
    node_ends(&world, &store, beat);
    store = node_returns(&world, NODE_B, &moves);
    assert_int_equal(world_receive(&world, store.owner).type, MC_MESSAGE_INVENTORY_ACK);
    (void)owner_clears(&world, store.owner);
    put_and_store(&world, &store, "new");
    forget_in_memory(&world, &store, "new");
    fail_to_load(&world, &store, "k");
    load(&world, &store, "new", 0);
    world_close_all(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_cannot_be_loaded),
        cmocka_unit_test(test_disk_from_which_nothing_comes),
        cmocka_unit_test(test_one_value_again_and_again),
        cmocka_unit_test(test_another_process_begins_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
