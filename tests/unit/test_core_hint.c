/* Hints: what they let go first, store and load ahead, and what they cannot do: evict what is pinned, take more than
 * their share, or change what can be read. */
#include "core_hints.h"

#include "store/core/limits.h"
#include "store/core/policy.h"

#include "store/wire/proof.h"

#define FILL 900u /* of OBJECT in 4 MiB: nothing is evicted yet */

static uint64_t said(const struct world *world, enum mc_hint hint, enum mc_core_hinted outcome)
{
    return statistics_of(world).hints[hint][outcome];
}

/* Puts more until so many were evicted since. */
static void press(struct world *world, const struct world_store *store, uint64_t evicted)
{
    static unsigned number;
    char key[32];
    uint64_t until = statistics_of(world).evicted_objects + evicted;
    for (unsigned i = 0; i < 2000 && statistics_of(world).evicted_objects < until; i++)
        assert_int_equal(world_put_hard(world, store, world_name(key, "more", number++), OBJECT, NULL), 0);
    world_check(world);
    assert_true(statistics_of(world).evicted_objects >= until);
}

static struct world_store open_policy(struct world *world, const char *policy)
{
    struct mc_core_config config = mc_core_config_default();
    config.policy = mc_eviction_find(policy);
    world_open_with(world, &config);
    return world_store(world, NODE_A, 4 * MIB, "a");
}

/* ---- drop ---- */

static void test_dropped_goes_first(void **state)
{
    static const char *const policies[] = {"s3fifo", "clock", "lru"};
    const struct world_wish soft = {.flags = MC_PUT_SOFT_PIN, .pin_ms = 600000};
    struct world world;
    (void)state;
    for (unsigned p = 0; p < 3; p++) {
        struct world_store store = open_policy(&world, policies[p]);
        assert_int_equal(world_put_hard(&world, &store, "soft", OBJECT, &soft), 0);
        fill(&world, &store, "k", FILL);
        for (unsigned i = 0; i < 3; i++) /* used ones are passed over */
            assert_int_equal(world_exist(&world, store.call, "k899"), 1);
        assert_int_equal(say(&world, store.call, MC_HINT_DROP, "k899"), 0);
        assert_int_equal(say(&world, store.call, MC_HINT_DROP, "soft"), 0);
        assert_int_equal(say(&world, store.call, MC_HINT_DROP, "soft"), 0);
        assert_true(is_there(&world, &store, "k899") && is_there(&world, &store, "soft")); /* until room is needed */
        assert_int_equal(statistics_of(&world).soft_pinned, 0);
        assert_int_equal(statistics_of(&world).evicted_objects, 0);
        press(&world, &store, 2);
        assert_false(is_there(&world, &store, "k899") || is_there(&world, &store, "soft"));
        assert_int_equal(said(&world, MC_HINT_DROP, MC_CORE_HINT_DONE), 3);
        world_close_all(&world);
    }
}

static bool in_memory(const struct world *world, const char *key)
{
    const struct mc_object *object = mc_object_find(world->core, mc_span_string(key));
    if (object == NULL || !object->visible)
        return false;
    struct mc_replica at = mc_replica_first(world->core, object);
    while (at.segment != NULL && at.segment->kind != MC_SEGMENT_MEMORY)
        at = mc_replica_next(world->core, at);
    return at.segment != NULL;
}

/* What was dropped while it is on its way to a disk goes a little later than what is not, but before a soft pin. */
static void test_dropped_on_its_way_goes_before_soft(void **state)
{
    const struct world_wish soft = {.flags = MC_PUT_SOFT_PIN, .pin_ms = 600000};
    const uint64_t size = 40000;
    static struct moves moves;
    struct mc_wire_place place;
    struct world world;
    struct world_store store;
    char key[32];
    (void)state;
    (void)open_with_disk(&world, &store);
    assert_int_equal(world_put_place(&world, store.call, store.owner, "soft", size, &soft, &place), 0);
    told_moves(&world, store.owner, &moves);
    owner_did(&world, store.owner, &moves, 0);
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(world_put(&world, store.call, store.owner, world_name(key, "k", i), size), 0);
        assert_int_equal(say(&world, store.call, MC_HINT_DROP, key), 0);
        assert_true(goes_first(&world, key));
        assert_true(mc_object_find(world.core, mc_span_string(key))->moving);
    }
    int32_t code = 0;
    for (unsigned i = 0; i < 20 && code == 0; i++) {
        const struct world_wish hard = {.flags = MC_PUT_HARD_PIN};
        code = world_put_place(&world, store.call, store.owner, world_name(key, "hard", i), size, &hard, &place);
    }
    assert_int_equal(code, MC_ERR_SPACE_SOON);
    assert_true(statistics_of(&world).evicted_objects > 0);
    assert_true(in_memory(&world, "soft"));
    world_close_all(&world);
}

/* Any use makes it ordinary again; the end of a read that was under way is none. */
static void test_used_again(void **state)
{
    static const char *const dropped[] = {"k1", "k2", "k3"};
    struct world world;
    (void)state;
    struct world_store store = open_policy(&world, "lru");
    uint64_t reader = world_client(&world, CLIENT);
    fill(&world, &store, "k", FILL);
    assert_int_equal(world_get(&world, reader, "k4", 0, NULL, NULL), 0);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(say(&world, store.call, MC_HINT_DROP, dropped[i]), 0);
    assert_int_equal(say(&world, store.call, MC_HINT_DROP, "k4"), 0);
    assert_int_equal(world_get(&world, store.call, "k1", 0, NULL, NULL), 0);
    assert_int_equal(world_exist(&world, store.call, "k2"), 1);
    assert_int_equal(say(&world, store.call, MC_HINT_RESUME, "k3"), 0);
    assert_int_equal(world_exist(&world, reader, "k0"), 1); /* its read of k4 is over */
    for (unsigned i = 0; i < 3; i++)
        assert_false(goes_first(&world, dropped[i]));
    assert_true(goes_first(&world, "k4"));
    world.now += mc_core_config_default().lease_ttl_ms + 1;
    press(&world, &store, 20);
    assert_false(is_there(&world, &store, "k4"));
    for (unsigned i = 0; i < 3; i++)
        assert_true(is_there(&world, &store, dropped[i]));
    world_close_all(&world);
}

/* What is read, or dropped and read again, stays as long as any that is read. */
static void test_what_is_read_stays(void **state)
{
    struct world world;
    (void)state;
    struct world_store store = open_policy(&world, "s3fifo");
    uint64_t reader = world_client(&world, CLIENT);
    fill(&world, &store, "k", FILL);
    assert_int_equal(world_get(&world, reader, "k5", 0, NULL, NULL), 0);
    assert_int_equal(say(&world, store.call, MC_HINT_DROP, "k5"), 0);
    assert_int_equal(say(&world, store.call, MC_HINT_DROP, "k6"), 0);
    press(&world, &store, 2);
    assert_true(is_there(&world, &store, "k5"));
    assert_false(is_there(&world, &store, "k6"));
    world_close_all(&world);
}

static void test_refused(void **state)
{
    const struct world_wish firm = {.flags = MC_PUT_SOFT_PIN | MC_PUT_FIRM_PIN, .pin_ms = 5000},
                            hard = {.flags = MC_PUT_HARD_PIN};
    struct world world;
    struct mc_wire_place place;
    (void)state;
    struct world_store store = world_open_one(&world);
    assert_int_equal(world_put_hard(&world, &store, "firm", OBJECT, &firm), 0);
    assert_int_equal(world_put_hard(&world, &store, "hard", OBJECT, &hard), 0);
    assert_int_equal(world_put_hard(&world, &store, "k", OBJECT, NULL), 0);
    assert_int_equal(say(&world, store.call, MC_HINT_DROP, "firm"), MC_ERR_OBJECT_IS_PINNED);
    assert_int_equal(say(&world, store.call, MC_HINT_DROP, "hard"), MC_ERR_OBJECT_IS_PINNED);
    assert_int_equal(statistics_of(&world).firm_pinned, 1);
    assert_int_equal(say(&world, store.call, MC_HINT_PAUSE, "firm"), 0);
    assert_int_equal(say(&world, store.call, MC_HINT_DROP, "none"), MC_ERR_OBJECT_NOT_FOUND);
    assert_int_equal(say(&world, store.call, MC_HINT_PREFETCH, "none"), MC_ERR_OBJECT_NOT_FOUND);
    assert_int_equal(say(&world, store.call, MC_HINT_DROP, ""), MC_ERR_INVALID_KEY);
    assert_int_equal(world_grant(&world, store.call, PUT_1, "coming", OBJECT, NULL, &place), 0);
    assert_int_equal(say(&world, store.call, MC_HINT_DROP, "coming"), MC_ERR_REPLICA_IS_NOT_READY);
    assert_int_equal(say_for(&world, store.call, 200, "k", 0), MC_ERR_NOT_SUPPORTED); /* of a later release */
    assert_int_equal(said(&world, MC_HINT_DROP, MC_CORE_HINT_REFUSED), 4);
    assert_int_equal(said(&world, MC_HINT_DROP, MC_CORE_HINT_ABSENT), 1);
    uint64_t reader = world_connect(&world);
    mc_core_permitted(world.core, world.now, reader, MC_RIGHT_READ, 77, "");
    struct mc_wire_hello hello = world_hello(MC_ROLE_CALL, CLIENT, FIRST_LIFE);
    assert_int_equal(world_greet(&world, reader, &hello).code, 0);
    assert_int_equal(say(&world, reader, MC_HINT_DROP, "k"), MC_ERR_NOT_PERMITTED);
    assert_int_equal(say(&world, reader, MC_HINT_PREFETCH, "k"), 0);
    assert_false(goes_first(&world, "k"));
    world_close_all(&world);
}

/* To drop is for who may write, and to have something loaded for who may read. */
static void test_rights(void **state)
{
    struct world world;
    (void)state;
    struct world_store store = world_open_one(&world);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", OBJECT), 0);
    assert_true(mc_right_suffices(MC_RIGHT_READ, MC_MESSAGE_HINT) &&
                mc_right_suffices(MC_RIGHT_WRITE, MC_MESSAGE_HINT));
    for (unsigned rights = MC_RIGHT_READ; rights <= (MC_RIGHT_READ | MC_RIGHT_WRITE); rights++) {
        uint64_t who = world_connect(&world);
        mc_core_permitted(world.core, world.now, who, rights, 77 + rights, "");
        struct mc_wire_hello hello = world_hello(MC_ROLE_CALL, CLIENT + rights, FIRST_LIFE);
        assert_int_equal(world_greet(&world, who, &hello).code, 0);
        for (unsigned hint = MC_HINT_DROP; hint <= MC_HINT_PREFETCH; hint++) {
            bool may = (rights & (hint <= MC_HINT_PAUSE ? MC_RIGHT_WRITE : MC_RIGHT_READ)) != 0;
            assert_int_equal(say(&world, who, hint, "k"), may ? 0 : MC_ERR_NOT_PERMITTED);
        }
    }
    world_close_all(&world);
}

/* One of a group goes alone, and with the others while it is as young as they. */
static void test_group(void **state)
{
    const struct world_wish in_group = {.group = 7};
    struct world world;
    (void)state;
    struct world_store store = open_policy(&world, "lru");
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(world_put_hard(&world, &store, (const char *[]){"g0", "g1", "g2"}[i], OBJECT, &in_group), 0);
    fill(&world, &store, "k", FILL);
    world.now += 2000;
    assert_int_equal(world_exist(&world, store.call, "g1"), 1); /* g0 is to be moved for that */
    assert_int_equal(say(&world, store.call, MC_HINT_DROP, "g0"), 0);
    press(&world, &store, 1);
    assert_false(is_there(&world, &store, "g0"));
    assert_true(is_there(&world, &store, "g1") && is_there(&world, &store, "g2"));
    assert_int_equal(say(&world, store.call, MC_HINT_DROP, "g2"), 0);
    world.now += 2000;
    assert_int_equal(world_exist(&world, store.call, "g1"), 1);
    press(&world, &store, 5);
    assert_true(is_there(&world, &store, "g1") && is_there(&world, &store, "g2"));
    world_close_all(&world);
}

/* The next master knows ages of nobody, and a soft pin by its slot. */
static void test_masters_end(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *a = start_with_owner(&world);
    assert_int_equal(fake_put(&world, a, "k", OBJECT, MC_PUT_SOFT_PIN), 0);
    assert_int_equal(say(&world, a->call, MC_HINT_DROP, "k"), 0);
    assert_int_equal(statistics_of(&world).soft_pinned, 0);
    assert_true(goes_first(&world, "k"));
    master_stop(&world);
    world.now += 500;
    master_start(&world, NEXT_EPOCH, NULL);
    come_back(&world, a);
    assert_false(goes_first(&world, "k"));
    assert_int_equal(statistics_of(&world).soft_pinned, 1);
    assert_int_equal(found(&world, a, "k"), OBJECT);
    finish(&world, a, NULL);
}

/* That it went was no mistake of the policy's, though it comes back; and why it is not there is known. */
static void test_teaches_the_policy_nothing(void **state)
{
    struct world world;
    struct mc_core_why why;
    (void)state;
    struct world_store store = open_policy(&world, "s3fifo");
    fill(&world, &store, "k", FILL);
    assert_int_equal(say(&world, store.call, MC_HINT_DROP, "k899"), 0);
    press(&world, &store, 1);
    assert_false(is_there(&world, &store, "k899"));
    assert_int_equal(world.core->ghosts.fresh + world.core->ghosts.proven, statistics_of(&world).evicted_objects - 1);
    mc_core_why(world.core, mc_span_string("k899"), &why);
    assert_int_equal(why.why, MC_GONE_EVICTED);
    double part = world.core->fresh_part;
    assert_int_equal(world_put_hard(&world, &store, "k899", OBJECT, NULL), 0);
    struct mc_replica at = mc_replica_first(world.core, mc_object_find(world.core, mc_span_string("k899")));
    assert_false(mc_segment_node(at.segment, at.slot)->proven);
    assert_true(world.core->fresh_part >= part && world.core->fresh_part <= part);
    world_close_all(&world);
}

/* ---- pause ---- */

/* A node with a disk, where values go before they are evicted. */
static void open_with_lazy_disk(struct world *world, struct world_store *store)
{
    struct mc_core_config config = mc_core_config_default();
    config.offload = MC_OFFLOAD_ON_EVICT;
    world_open_with(world, &config);
    *store = world_store(world, NODE_A, 4 * MIB, "a");
    struct mc_wire_mount mount = disk_mount(DISK_A);
    assert_int_equal(world_mount(world, store->owner, &mount).code, 0);
}

static void told_nothing(struct world *world, const struct world_store *store)
{
    static struct moves moves;
    told_moves(world, store->owner, &moves);
    assert_int_equal(moves.type, 0);
}

static void test_paused_is_stored_and_goes_first(void **state)
{
    static struct moves moves;
    struct world world;
    struct world_store store;
    (void)state;
    open_with_lazy_disk(&world, &store);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", OBJECT), 0);
    assert_int_equal(say_for(&world, store.call, MC_HINT_PAUSE, "k", 999), 0); /* not worth it */
    told_nothing(&world, &store);
    assert_int_equal(say_for(&world, store.call, MC_HINT_PAUSE, "k", 60000), MC_HINT_BEGUN);
    assert_int_equal(say(&world, store.call, MC_HINT_PAUSE, "k"), MC_HINT_BEGUN);
    told_moves(&world, store.owner, &moves);
    assert_int_equal(moves.type, MC_MESSAGE_STORE);
    assert_int_equal(moves.count, 1);
    assert_false(goes_first(&world, "k")); /* or it would be lost */
    owner_did(&world, store.owner, &moves, 0);
    assert_true(goes_first(&world, "k"));
    assert_int_equal(on_disk(&world, "k"), 1);
    assert_int_equal(say(&world, store.call, MC_HINT_RESUME, "k"), 0);
    assert_false(goes_first(&world, "k"));
    assert_int_equal(say(&world, store.call, MC_HINT_PAUSE, "k"), 0);
    assert_true(goes_first(&world, "k"));
    told_nothing(&world, &store);
    world_close_all(&world);
}

/* The end of a read that was under way is no use of it. */
static void test_paused_while_it_is_read(void **state)
{
    static struct moves moves;
    struct world world;
    struct world_store store;
    (void)state;
    open_with_lazy_disk(&world, &store);
    uint64_t reader = world_client(&world, CLIENT);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", OBJECT), 0);
    assert_int_equal(world_get(&world, reader, "k", 0, NULL, NULL), 0);
    assert_int_equal(say(&world, store.call, MC_HINT_PAUSE, "k"), MC_HINT_BEGUN);
    assert_int_equal(world_exist(&world, reader, "other"), 0);
    told_moves(&world, store.owner, &moves);
    owner_did(&world, store.owner, &moves, 0);
    assert_true(goes_first(&world, "k"));
    world_close_all(&world);
}

/* By then it is used; or it could not be stored; or it is removed. */
static void test_paused_and_then(void **state)
{
    static struct moves moves;
    struct world world;
    struct world_store store;
    (void)state;
    for (unsigned what = 0; what < 3; what++) {
        open_with_lazy_disk(&world, &store);
        assert_int_equal(world_put(&world, store.call, store.owner, "k", OBJECT), 0);
        assert_int_equal(say(&world, store.call, MC_HINT_PAUSE, "k"), MC_HINT_BEGUN);
        told_moves(&world, store.owner, &moves);
        if (what == 0)
            assert_int_equal(world_exist(&world, store.call, "k"), 1);
        if (what == 2)
            world_remove_one_send(&world, store.call, "k");
        owner_did(&world, store.owner, &moves, what == 1 ? MC_ERR_FILE_WRITE_FAIL : 0);
        assert_false(goes_first(&world, "k"));
        assert_int_equal(world.core->pausing, 0);
        world_close_all(&world);
    }
}

/* While it is being stored, or loaded, another of its group is used: that ends what was said, as it does of what is in
 * memory; what was used before does not. */
static void test_used_by_its_group_meanwhile(void **state)
{
    static struct moves moves;
    const struct world_wish in_group = {.group = 7};
    struct world world;
    struct world_store store;
    (void)state;
    for (unsigned what = 0; what < 4; what++) {
        bool is_used = what % 2 == 0, is_load = what >= 2;
        open_with_lazy_disk(&world, &store);
        assert_int_equal(world_put_hard(&world, &store, "g0", OBJECT, &in_group), 0);
        assert_int_equal(world_put_hard(&world, &store, "g1", OBJECT, &in_group), 0);
        if (is_load) {
            assert_int_equal(say(&world, store.call, MC_HINT_PAUSE, "g0"), MC_HINT_BEGUN);
            told_moves(&world, store.owner, &moves);
            owner_did(&world, store.owner, &moves, 0);
            forget_in_memory(&world, &store, "g0");
            assert_int_equal(say(&world, store.call, MC_HINT_PREFETCH, "g0"), MC_HINT_BEGUN);
        }
        world.now += 5000;
        assert_int_equal(world_exist(&world, store.call, "g1"), 1);
        int32_t code = say(&world, store.call, is_load ? MC_HINT_DROP : MC_HINT_PAUSE, "g0");
        assert_int_equal(code, is_load ? 0 : MC_HINT_BEGUN);
        world.now += 5000;
        if (is_used)
            assert_int_equal(world_exist(&world, store.call, "g1"), 1);
        told_moves(&world, store.owner, &moves);
        assert_int_equal(moves.count, 1);
        owner_did(&world, store.owner, &moves, 0);
        assert_int_equal(goes_first(&world, "g0"), !is_used);
        assert_int_equal(world.core->pausing, 0);
        world_close_all(&world);
    }
}

/* What only memory has is as wanted as any: none but the disk was to have it. */
static void test_paused_and_lost_on_disk(void **state)
{
    static struct moves moves;
    struct world world;
    struct world_store store;
    (void)state;
    open_with_lazy_disk(&world, &store);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", OBJECT), 0);
    assert_int_equal(say(&world, store.call, MC_HINT_PAUSE, "k"), MC_HINT_BEGUN);
    told_moves(&world, store.owner, &moves);
    owner_did(&world, store.owner, &moves, 0);
    assert_true(goes_first(&world, "k"));
    disk_loses(&world, &store, &moves);
    assert_int_equal(on_disk(&world, "k"), 0);
    assert_false(goes_first(&world, "k"));
    world.core->config.offload = MC_OFFLOAD_NEVER;
    fill(&world, &store, "f", FILL);
    assert_true(is_there(&world, &store, "k"));
    world_close_all(&world);
}

/* What is not needed any more is not needed for that its disk has lost it; the last word counts. */
static void test_dropped_and_lost_on_disk(void **state)
{
    static struct moves moves;
    struct world world;
    struct world_store store;
    (void)state;
    for (unsigned last = MC_HINT_DROP; last <= MC_HINT_PAUSE; last++) {
        open_with_lazy_disk(&world, &store);
        assert_int_equal(world_put(&world, store.call, store.owner, "k", OBJECT), 0);
        assert_int_equal(say(&world, store.call, MC_HINT_PAUSE, "k"), MC_HINT_BEGUN);
        told_moves(&world, store.owner, &moves);
        owner_did(&world, store.owner, &moves, 0);
        assert_int_equal(say(&world, store.call, MC_HINT_DROP, "k"), 0);
        if (last == MC_HINT_PAUSE)
            assert_int_equal(say(&world, store.call, MC_HINT_PAUSE, "k"), 0);
        disk_loses(&world, &store, &moves);
        assert_int_equal(on_disk(&world, "k"), 0);
        assert_int_equal(goes_first(&world, "k"), last == MC_HINT_DROP);
        world_close_all(&world);
    }
}

/* What was to pause and is dropped before a disk has it is dropped. */
static void test_dropped_while_it_is_stored(void **state)
{
    static struct moves moves;
    struct world world;
    struct world_store store;
    (void)state;
    open_with_lazy_disk(&world, &store);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", OBJECT), 0);
    assert_int_equal(say(&world, store.call, MC_HINT_PAUSE, "k"), MC_HINT_BEGUN);
    told_moves(&world, store.owner, &moves);
    assert_int_equal(say(&world, store.call, MC_HINT_DROP, "k"), 0);
    owner_did(&world, store.owner, &moves, 0);
    disk_loses(&world, &store, &moves);
    assert_true(goes_first(&world, "k"));
    world_close_all(&world);
}

/* Of an owner that is cut off nobody knows whether it stores anything yet. */
static void test_paused_while_its_disk_is_away(void **state)
{
    const struct world_wish two = {.replica_count = 2};
    static struct world_grants grants;
    static struct moves moves;
    struct world world;
    struct world_store store;
    const struct world_item item = {mc_span_string("k"), OBJECT};
    (void)state;
    open_with_lazy_disk(&world, &store);
    struct world_store other = world_store(&world, NODE_B, 4 * MIB, "b");
    world_put_start(&world, other.call, PUT_1, &item, 1, &two, &grants);
    assert_int_equal(grants.place_count, 2);
    for (unsigned i = 0; i < 2; i++)
        world_live(&world, grants.places[i].segment == store.segment ? store.owner : other.owner, &grants.places[i]);
    assert_int_equal(world_put_done(&world, other.call, PUT_1), 0);
    assert_int_equal(say(&world, other.call, MC_HINT_PAUSE, "k"), MC_HINT_BEGUN);
    told_moves(&world, store.owner, &moves);
    assert_int_equal(moves.type, MC_MESSAGE_STORE);
    world_disconnect(&world, store.owner);
    assert_int_equal(say(&world, other.call, MC_HINT_PAUSE, "k"), 0);
    world_close_all(&world);
}

/* What is pinned does not go first in the end, and stays as young as its group. */
static void test_paused_and_pinned_in_a_group(void **state)
{
    const struct world_wish in_group = {.group = 7}, soft = {.group = 7, .flags = MC_PUT_SOFT_PIN, .pin_ms = 600000};
    struct world world;
    struct world_store store;
    (void)state;
    for (unsigned is_soft = 0; is_soft < 2; is_soft++) {
        open_with_lazy_disk(&world, &store);
        assert_int_equal(world_put_hard(&world, &store, "g0", OBJECT, is_soft ? &soft : &in_group), 0);
        assert_int_equal(world_put_hard(&world, &store, "g1", OBJECT, &in_group), 0);
        world.now += 5000;
        assert_int_equal(world_exist(&world, store.call, "g1"), 1);
        assert_int_equal(say(&world, store.call, MC_HINT_PAUSE, "g0"), MC_HINT_BEGUN);
        assert_int_equal(mc_group_is_younger(mc_object_find(world.core, mc_span_string("g0"))), is_soft);
        world_close_all(&world);
    }
}

/* Pins hold, nothing is stored where no disk is, or none may take it. */
static void test_pause_changes_nothing(void **state)
{
    const struct world_wish soft = {.flags = MC_PUT_SOFT_PIN, .pin_ms = 600000};
    static struct moves moves;
    struct world world;
    struct world_store store;
    (void)state;
    store = world_open_one(&world);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", OBJECT), 0);
    assert_int_equal(say(&world, store.call, MC_HINT_PAUSE, "k"), 0);
    assert_false(goes_first(&world, "k"));
    world_close_all(&world);
    open_with_lazy_disk(&world, &store);
    assert_int_equal(world_put_hard(&world, &store, "soft", OBJECT, &soft), 0);
    assert_int_equal(say(&world, store.call, MC_HINT_PAUSE, "soft"), MC_HINT_BEGUN);
    told_moves(&world, store.owner, &moves);
    owner_did(&world, store.owner, &moves, 0);
    assert_int_equal(say(&world, store.call, MC_HINT_PAUSE, "soft"), 0);
    assert_false(goes_first(&world, "soft"));
    assert_int_equal(statistics_of(&world).soft_pinned, 1);
    world.core->config.offload_queue_limit = 2; /* half of it for what comes before its turn */
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(world_put(&world, store.call, store.owner, i == 0 ? "a" : "b", OBJECT), 0);
        assert_int_equal(say(&world, store.call, MC_HINT_PAUSE, i == 0 ? "a" : "b"), i == 0 ? MC_HINT_BEGUN : 0);
    }
    world_close_all(&world);
}

/* ---- prefetch ---- */

static void test_prefetch(void **state)
{
    static struct moves moves;
    struct world world;
    struct world_store store;
    (void)state;
    (void)open_with_disk(&world, &store);
    put_and_store(&world, &store, "k");
    assert_int_equal(say(&world, store.call, MC_HINT_PREFETCH, "k"), 0);
    forget_in_memory(&world, &store, "k");
    assert_int_equal(say(&world, store.call, MC_HINT_PREFETCH, "k"), MC_HINT_BEGUN);
    assert_int_equal(say(&world, store.call, MC_HINT_RESUME, "k"), MC_HINT_BEGUN);
    told_moves(&world, store.owner, &moves);
    assert_int_equal(moves.type, MC_MESSAGE_LOAD);
    assert_int_equal(moves.count, 1);
    owner_did(&world, store.owner, &moves, 0);
    const struct mc_segment *memory = mc_segment_find(world.core, store.segment);
    assert_true(memory->fetched > 0 && memory->fetches == 0);
    assert_int_equal(world_get(&world, store.call, "k", 0, NULL, NULL), 0);
    world_check(&world);
    assert_int_equal(memory->fetched, 0); /* it was come for */
    told_nothing(&world, &store);
    assert_int_equal(said(&world, MC_HINT_PREFETCH, MC_CORE_HINT_BEGUN), 1);
    assert_int_equal(said(&world, MC_HINT_RESUME, MC_CORE_HINT_BEGUN), 1);
    /* What cannot be read is not there. */
    forget_in_memory(&world, &store, "k");
    assert_int_equal(say(&world, store.call, MC_HINT_PREFETCH, "k"), MC_HINT_BEGUN);
    told_moves(&world, store.owner, &moves);
    owner_did(&world, store.owner, &moves, MC_ERR_FILE_READ_FAIL);
    assert_int_equal(memory->fetched, 0);
    assert_int_equal(say(&world, store.call, MC_HINT_PREFETCH, "k"), MC_ERR_OBJECT_NOT_FOUND);
    world_close_all(&world);
}

/* A sixteenth of 1 MiB; what somebody has come for does not count any more. */
static void test_share(void **state)
{
    static struct moves moves;
    struct world world;
    struct world_store store;
    char key[32];
    unsigned begun = 0;
    (void)state;
    (void)open_with_disk(&world, &store);
    put_on_disk(&world, &store, 20);
    while (begun < 20 && say(&world, store.call, MC_HINT_PREFETCH, world_name(key, "k", begun)) == MC_HINT_BEGUN)
        begun++;
    assert_int_equal(begun, 16);
    assert_int_equal(say(&world, store.call, MC_HINT_PREFETCH, key), MC_ERR_NO_AVAILABLE_HANDLE);
    for (unsigned i = 0; i < begun; i++) {
        told_moves(&world, store.owner, &moves);
        assert_int_equal(moves.type, MC_MESSAGE_LOAD);
        owner_did(&world, store.owner, &moves, 0);
    }
    assert_int_equal(say(&world, store.call, MC_HINT_PREFETCH, key), MC_ERR_NO_AVAILABLE_HANDLE);
    for (unsigned again = 0; again < 2; again++) /* that is no use of it */
        assert_int_equal(say(&world, store.call, MC_HINT_RESUME, "k0"), 0);
    assert_int_equal(say(&world, store.call, MC_HINT_PREFETCH, key), MC_ERR_NO_AVAILABLE_HANDLE);
    assert_int_equal(said(&world, MC_HINT_PREFETCH, MC_CORE_HINT_NO_ROOM), 4);
    assert_int_equal(world_get(&world, store.call, "k0", 0, NULL, NULL), 0);
    assert_int_equal(say(&world, store.call, MC_HINT_PREFETCH, key), MC_HINT_BEGUN);
    assert_int_equal(world_get(&world, store.call, "k19", 0, NULL, NULL), MC_ERR_PUT_IN_PROGRESS); /* gets go on */
    world_check(&world);
    assert_int_equal(statistics_of(&world).evicted_objects, 0);
    world_close_all(&world);
}

/* Asks until it is being loaded, as often as owners have had time to clear something. */
static int32_t prefetch_hard(struct world *world, const struct world_store *store, const char *key)
{
    int32_t code = MC_ERR_NO_AVAILABLE_HANDLE;
    static struct moves moves;
    for (unsigned i = 0; i < 20 && code == MC_ERR_NO_AVAILABLE_HANDLE; i++) {
        code = say(world, store->call, MC_HINT_PREFETCH, key);
        if (code == MC_HINT_BEGUN)
            told_moves(world, store->owner, &moves);
        (void)owner_clears(world, store->owner);
    }
    return code;
}

/* Room is made of what is not pinned; of soft pins a read would make some, a hint does not. */
static void test_no_room_of_what_is_pinned(void **state)
{
    const struct world_wish soft = {.flags = MC_PUT_SOFT_PIN, .pin_ms = 600000};
    struct world world;
    struct world_store store;
    char key[32];
    (void)state;
    for (unsigned pinned = 0; pinned < 2; pinned++) {
        int32_t code = 0;
        (void)open_with_disk(&world, &store);
        put_on_disk(&world, &store, 10);
        world.core->config.offload = MC_OFFLOAD_NEVER; /* the rest stays where it is */
        world.core->config.allow_evict_soft_pinned = false;
        for (unsigned i = 0; i < 400 && code == 0; i++)
            code = world_put_hard(&world, &store, world_name(key, "f", i), OBJECT, pinned ? &soft : NULL);
        assert_int_equal(code, pinned ? MC_ERR_NO_AVAILABLE_HANDLE : 0);
        world.core->config.allow_evict_soft_pinned = true;
        uint64_t before = statistics_of(&world).evicted_objects;
        for (unsigned i = 0; i < 10; i++)
            assert_int_equal(prefetch_hard(&world, &store, world_name(key, "k", i)),
                             pinned ? MC_ERR_NO_AVAILABLE_HANDLE : MC_HINT_BEGUN);
        assert_true(statistics_of(&world).evicted_objects == before || !pinned);
        assert_true(statistics_of(&world).evicted_objects <= before + 20);
        assert_int_equal(statistics_of(&world).promotion_no_room, 0); /* that counts what readers do not have */
        world_close_all(&world);
    }
}

/* What was loaded for a hint, let go first and is wanted again counts again. */
static void test_share_is_not_left_by_hints(void **state)
{
    struct world world;
    struct world_store store;
    char key[32];
    (void)state;
    (void)open_with_disk(&world, &store);
    put_on_disk(&world, &store, 20);
    for (unsigned i = 0; i < 16; i++) {
        assert_int_equal(say(&world, store.call, MC_HINT_PREFETCH, world_name(key, "k", i)), MC_HINT_BEGUN);
        load_one(&world, &store);
    }
    const struct mc_segment *memory = mc_segment_find(world.core, store.segment);
    uint64_t all = memory->fetched;
    assert_int_equal(say(&world, store.call, MC_HINT_PAUSE, "k0"), 0);
    assert_int_equal(say(&world, store.call, MC_HINT_DROP, "k1"), 0);
    assert_int_equal(memory->fetched, all / 16 * 14);
    assert_int_equal(say(&world, store.call, MC_HINT_RESUME, "k0"), 0);
    assert_false(goes_first(&world, "k0"));
    assert_int_equal(memory->fetched, all / 16 * 15);
    assert_int_equal(say(&world, store.call, MC_HINT_PREFETCH, "k16"), MC_HINT_BEGUN);
    load_one(&world, &store);
    assert_int_equal(say(&world, store.call, MC_HINT_RESUME, "k1"), MC_ERR_NO_AVAILABLE_HANDLE);
    assert_true(goes_first(&world, "k1"));
    assert_int_equal(memory->fetched, all);
    assert_int_equal(world_get(&world, store.call, "k1", 0, NULL, NULL), 0); /* who reads it has it */
    assert_false(goes_first(&world, "k1"));
    assert_int_equal(say(&world, store.call, MC_HINT_DROP, "k1"), 0);
    assert_int_equal(say(&world, store.call, MC_HINT_RESUME, "k1"), 0);
    assert_int_equal(memory->fetched, all);
    world_close_all(&world);
}

/* What is pinned counts until somebody comes for it, too. */
static void test_share_of_what_is_pinned(void **state)
{
    const struct world_wish hard = {.flags = MC_PUT_HARD_PIN};
    static struct moves moves;
    struct world world;
    struct world_store store;
    struct mc_wire_place place;
    (void)state;
    (void)open_with_disk(&world, &store);
    assert_int_equal(world_put_place(&world, store.call, store.owner, "k", OBJECT, &hard, &place), 0);
    told_moves(&world, store.owner, &moves);
    owner_did(&world, store.owner, &moves, 0);
    forget_in_memory(&world, &store, "k");
    assert_int_equal(say(&world, store.call, MC_HINT_PREFETCH, "k"), MC_HINT_BEGUN);
    load_one(&world, &store);
    const struct mc_segment *memory = mc_segment_find(world.core, store.segment);
    assert_true(memory->fetched > 0);
    assert_int_equal(say(&world, store.call, MC_HINT_RESUME, "k"), 0);
    assert_true(memory->fetched > 0);
    assert_int_equal(world_get(&world, store.call, "k", 0, NULL, NULL), 0);
    world_check(&world);
    assert_int_equal(memory->fetched, 0);
    world_close_all(&world);
}

/* However many go in one step, no more that are read are passed over for all of them. */
static void test_passed_over(void **state)
{
    struct world world;
    char key[32];
    (void)state;
    struct world_store store = open_policy(&world, "lru");
    fill(&world, &store, "k", FILL);
    for (unsigned i = 0; i < 300; i++) {
        assert_int_equal(say(&world, store.call, MC_HINT_DROP, world_name(key, "k", i)), 0);
        struct mc_object *read = mc_object_find(world.core, mc_span_string(key));
        read->readers = 1;
        read->lease_until_ms = (world.now + 60000) & ((1ull << 40) - 1);
    }
    const struct mc_segment *memory = mc_segment_find(world.core, store.segment);
    const struct mc_node *third = mc_segment_node(memory, memory->first.head);
    for (unsigned i = 0; i < 2 * MC_EVICT_SKIPS_MAX; i++)
        third = mc_segment_node(memory, third->list_next);
    const struct mc_object *object = mc_node_object(third);
    uint64_t before = statistics_of(&world).evicted_objects;
    (void)world_grant(&world, store.call, PUT_1, "large", 230 * OBJECT, NULL, NULL);
    assert_true(statistics_of(&world).evicted_objects > before + 3);
    unsigned ahead = 0;
    for (uint32_t at = memory->first.head; mc_node_object(mc_segment_node(memory, at)) != object;
         at = mc_segment_node(memory, at)->list_next)
        ahead++;
    assert_int_equal(ahead, MC_EVICT_SKIPS_MAX);
    world_check(&world);
    world_close_all(&world);
}

/* What has shown that it is wanted has not to show it anew, and no hint tells the policy what goes too early. */
static void test_used_again_as_it_was(void **state)
{
    struct world world;
    (void)state;
    struct world_store store = open_policy(&world, "s3fifo");
    fill(&world, &store, "k", FILL);
    struct mc_segment *memory = mc_segment_find(world.core, store.segment);
    struct mc_replica at = mc_replica_first(world.core, mc_object_find(world.core, mc_span_string("k7")));
    mc_eviction_leave(memory, at.slot);
    mc_eviction_append(memory, at.slot, true); /* as when it was used before its turn came */
    assert_int_equal(say(&world, store.call, MC_HINT_DROP, "k7"), 0);
    assert_int_equal(world_exist(&world, store.call, "k7"), 1);
    assert_false(goes_first(&world, "k7"));
    assert_true(mc_segment_node(memory, at.slot)->proven);
    assert_int_equal(memory->proven.count, 1);
    world_check(&world);
    world_close_all(&world);
}

/* Whoever reads is not behind a long line of hints: so many bytes of an owner's at a time, whatever the segment. */
static void test_bytes_under_way(void **state)
{
    struct world world;
    (void)state;
    struct world_store store = world_open_one(&world);
    struct mc_segment *memory = mc_segment_find(world.core, store.segment);
    assert_true(mc_hint_fits_under_way(memory->member, (256u << 20) / MC_EXTENT_UNIT)); /* one alone, however large */
    memory->fetching = (100u << 20) / MC_EXTENT_UNIT;
    assert_true(mc_hint_fits_under_way(memory->member, (28u << 20) / MC_EXTENT_UNIT));
    assert_false(mc_hint_fits_under_way(memory->member, (29u << 20) / MC_EXTENT_UNIT));
    memory->fetching = 0;
    world_close_all(&world);
}

/* What hints load keeps nothing that is read often from staying. */
static void test_promoted_beside_hints(void **state)
{
    static struct moves moves;
    struct world world;
    struct world_store store;
    (void)state;
    (void)open_with_disk(&world, &store);
    put_on_disk(&world, &store, 3);
    world.core->config.promotion_on_hit = true;
    world.core->config.promotion_threshold = 1;
    world.core->config.promotion_queue_limit = 2;
    assert_int_equal(say(&world, store.call, MC_HINT_PREFETCH, "k0"), MC_HINT_BEGUN);
    assert_int_equal(say(&world, store.call, MC_HINT_PREFETCH, "k1"), MC_HINT_BEGUN);
    assert_int_equal(say(&world, store.call, MC_HINT_PREFETCH, "k2"), MC_ERR_NO_AVAILABLE_HANDLE);
    assert_int_equal(world_get(&world, store.call, "k2", 0, NULL, NULL), MC_ERR_PUT_IN_PROGRESS);
    world_check(&world);
    assert_int_equal(statistics_of(&world).promotion_admitted, 1);
    assert_int_equal(statistics_of(&world).promotion_capped, 0);
    told_moves(&world, store.owner, &moves);
    world_close_all(&world);
}

/* That it was loaded ahead nobody knows once it has gone: a policy that remembers no uses passes nothing over. */
static void test_node_is_as_new(void **state)
{
    static const char *const policies[] = {"lru", "clock", "s3fifo"};
    struct mc_core_config config = mc_core_config_default();
    static struct moves moves;
    struct world world;
    char key[32];
    (void)state;
    for (unsigned p = 0; p < 3; p++) {
        config.offload = MC_OFFLOAD_ON_EVICT;
        config.policy = mc_eviction_find(policies[p]);
        world_open_with(&world, &config);
        struct world_store store = world_store(&world, NODE_A, 4 * MIB, "a");
        struct mc_wire_mount mount = disk_mount(DISK_A);
        assert_int_equal(world_mount(&world, store.owner, &mount).code, 0);
        assert_int_equal(world_put(&world, store.call, store.owner, "k", OBJECT), 0);
        assert_int_equal(say(&world, store.call, MC_HINT_PAUSE, "k"), MC_HINT_BEGUN);
        told_moves(&world, store.owner, &moves);
        owner_did(&world, store.owner, &moves, 0);
        forget_in_memory(&world, &store, "k");
        assert_int_equal(world_put(&world, store.call, store.owner, "a", OBJECT), 0);
        assert_int_equal(say(&world, store.call, MC_HINT_PREFETCH, "k"), MC_HINT_BEGUN);
        load_one(&world, &store);
        assert_int_equal(say(&world, store.call, MC_HINT_DROP, "k"), 0);
        assert_int_equal(world_put(&world, store.call, store.owner, "b", OBJECT), 0);
        forget_in_memory(&world, &store, "a"); /* whose hole takes in that of k, */
        forget_in_memory(&world, &store, "k"); /* and so its node is the next that is taken */
        for (unsigned i = 0; statistics_of(&world).offload_begun < 4; i++)
            assert_int_equal(world_put(&world, store.call, store.owner, world_name(key, "f", i), OBJECT), 0);
        world_check(&world);
        world_close_all(&world);
    }
}

/* Of what is being loaded it holds once it is there, unless it is asked for meanwhile. */
static void test_while_it_is_loaded(void **state)
{
    struct world world;
    struct world_store store;
    (void)state;
    for (unsigned hint = MC_HINT_DROP; hint <= MC_HINT_PAUSE; hint++) {
        for (unsigned what = 0; what < 4; what++) {
            (void)open_with_disk(&world, &store);
            put_on_disk(&world, &store, 1);
            if (what == 3)
                assert_int_equal(world_get(&world, store.call, "k0", 0, NULL, NULL), MC_ERR_PUT_IN_PROGRESS);
            else
                assert_int_equal(say(&world, store.call, MC_HINT_PREFETCH, "k0"), MC_HINT_BEGUN);
            assert_int_equal(say(&world, store.call, hint, "k0"), 0);
            if (what == 1)
                assert_int_equal(say(&world, store.call, MC_HINT_PREFETCH, "k0"), MC_HINT_BEGUN);
            if (what == 2)
                assert_int_equal(world_get(&world, store.call, "k0", 0, NULL, NULL), MC_ERR_PUT_IN_PROGRESS);
            load_one(&world, &store);
            assert_int_equal(goes_first(&world, "k0"), what == 0 || what == 3);
            assert_int_equal(world.core->pausing, 0);
            world_close_all(&world);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dropped_goes_first),
        cmocka_unit_test(test_dropped_on_its_way_goes_before_soft),
        cmocka_unit_test(test_used_again),
        cmocka_unit_test(test_what_is_read_stays),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_group),
        cmocka_unit_test(test_masters_end),
        cmocka_unit_test(test_paused_is_stored_and_goes_first),
        cmocka_unit_test(test_paused_while_it_is_read),
        cmocka_unit_test(test_paused_and_then),
        cmocka_unit_test(test_used_by_its_group_meanwhile),
        cmocka_unit_test(test_paused_and_lost_on_disk),
        cmocka_unit_test(test_paused_while_its_disk_is_away),
        cmocka_unit_test(test_paused_and_pinned_in_a_group),
        cmocka_unit_test(test_pause_changes_nothing),
        cmocka_unit_test(test_prefetch),
        cmocka_unit_test(test_share),
        cmocka_unit_test(test_no_room_of_what_is_pinned),
        cmocka_unit_test(test_share_is_not_left_by_hints),
        cmocka_unit_test(test_share_of_what_is_pinned),
        cmocka_unit_test(test_passed_over),
        cmocka_unit_test(test_used_again_as_it_was),
        cmocka_unit_test(test_bytes_under_way),
        cmocka_unit_test(test_promoted_beside_hints),
        cmocka_unit_test(test_node_is_as_new),
        cmocka_unit_test(test_while_it_is_loaded),
        cmocka_unit_test(test_teaches_the_policy_nothing),
        cmocka_unit_test(test_rights),
        cmocka_unit_test(test_dropped_and_lost_on_disk),
        cmocka_unit_test(test_dropped_while_it_is_stored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
