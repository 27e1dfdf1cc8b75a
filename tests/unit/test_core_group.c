/* Groups: members age together, a read of one protects all, they are evicted together, and a key stays in its group. */
#include "core_owner.h"
#include "store/core/replica.h"

#define OBJECT 4000u /* with its key and rounding: 4032 bytes */
#define FULL 900u    /* so many in 4 MiB, and nothing is evicted yet */

/* Waits also for a key that is held by what was there before. */
static int32_t put_wish(struct world *world, const struct world_store *store, const char *key, uint64_t length,
                        const struct world_wish *wish)
{
    int32_t code = world_put_hard(world, store, key, length, wish);
    for (unsigned attempt = 0; attempt < 200 && code == MC_ERR_PUT_IN_PROGRESS; attempt++) {
        world_settle(world, 1000);
        world_owner_obeys(world, store->owner);
        world->now++;
        code = world_put_hard(world, store, key, length, wish);
    }
    return code;
}

static int32_t put_in(struct world *world, const struct world_store *store, const char *key, uint64_t group)
{
    const struct world_wish wish = {.group = group};
    return put_wish(world, store, key, OBJECT, &wish);
}

/* Objects k[from] to k[end - 1], in no group. */
static void fill(struct world *world, const struct world_store *store, unsigned from, unsigned end)
{
    char key[32];
    for (unsigned i = from; i < end; i++)
        assert_int_equal(put_in(world, store, world_name(key, "k", i), 0), 0);
    world_settle(world, 1000);
    world_owner_obeys(world, store->owner);
    world_check(world);
}

/* How many of g0 to g[count - 1] are there, by a look that is no use. */
static unsigned members_left(struct world *world, const struct world_store *store, unsigned count)
{
    char key[32];
    unsigned left = 0;
    for (unsigned i = 0; i < count; i++)
        left += world_get(world, store->call, world_name(key, "g", i), MC_GET_NO_LEASE, NULL, NULL) == 0;
    return left;
}

static void test_evicted_together(void **state)
{
    struct world world;
    struct mc_core_statistics statistics;
    (void)state;
    world_open(&world);
    struct world_store store = world_store(&world, NODE_A, 4 * MIB, "a");
    /* The first is the oldest object; the other two lie behind 200 others. */
    assert_int_equal(put_in(&world, &store, "g0", 7), 0);
    fill(&world, &store, 0, 200);
    assert_int_equal(put_in(&world, &store, "g1", 7), 0);
    assert_int_equal(put_in(&world, &store, "g2", 7), 0);
    fill(&world, &store, 200, FULL);
    assert_int_equal(members_left(&world, &store, 3), 3);
    assert_int_equal(world.core->groups.count, 1);
    for (unsigned i = FULL; members_left(&world, &store, 3) == 3 && i < FULL + 300; i++)
        fill(&world, &store, i, i + 1);
    assert_int_equal(members_left(&world, &store, 3), 0);
    assert_int_equal(world.core->groups.count, 0);
    assert_int_equal(world_exist(&world, store.call, "k200"), 1); /* younger than the first: it stays */
    statistics = statistics_of(&world);
    assert_int_equal(statistics.evicted_bytes, statistics.evicted_objects * OBJECT);
    world_close_all(&world);
}

static void test_a_reader_protects_all(void **state)
{
    struct world world;
    (void)state;
    struct world_store store = world_open_lru(&world);
    uint64_t reader = world_client(&world, CLIENT);
    for (unsigned i = 0; i < 3; i++) {
        char key[32];
        assert_int_equal(put_in(&world, &store, world_name(key, "g", i), 7), 0);
    }
    fill(&world, &store, 0, FULL);
    assert_int_equal(world_get(&world, reader, "g1", 0, NULL, NULL), 0);
    fill(&world, &store, FULL, 3 * FULL); /* everything else has gone twice */
    assert_int_equal(members_left(&world, &store, 3), 3);
    world_exist(&world, reader, "nothing"); /* the read has ended */
    fill(&world, &store, 3 * FULL, 6 * FULL);
    assert_int_equal(members_left(&world, &store, 3), 0);
    world_close_all(&world);
}

/* What is used is young, and so are the others of its group; those of no group that are as old go. */
static void test_members_age_together(void **state)
{
    struct world world;
    char key[32];
    (void)state;
    struct world_store store = world_open_lru(&world);
    for (unsigned i = 0; i < 50; i++) {
        assert_int_equal(put_in(&world, &store, world_name(key, "g", i), 7), 0);
        assert_int_equal(put_in(&world, &store, world_name(key, "s", i), 0), 0);
    }
    fill(&world, &store, 0, 800);
    world_pass(&world, 1500);
    world_beat(&world, store.heartbeat);
    assert_int_equal(world_exist(&world, store.call, "g49"), 1);
    fill(&world, &store, 800, 1400);
    assert_int_equal(members_left(&world, &store, 50), 50);
    assert_int_equal(world_exist(&world, store.call, "s0"), 0);
    assert_int_equal(world_exist(&world, store.call, "s49"), 0);
    /* And nobody lives for ever. */
    for (unsigned i = 0; i < 3; i++)
        fill(&world, &store, 1400 + i * FULL, 1400 + (i + 1) * FULL);
    assert_int_equal(members_left(&world, &store, 50), 0);
    world_close_all(&world);
}

static int32_t remove_key(struct world *world, const struct world_store *store, const char *key, bool force)
{
    int32_t code = 1;
    world_remove_send(world, store->call, &key, 1, force);
    world_owner_obeys(world, store->owner);
    assert_true(world_remove_answer(world, store->call, &code, 1));
    world_check(world);
    return code;
}

static void test_lease_and_removal(void **state)
{
    struct world world;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t reader = world_client(&world, CLIENT);
    for (unsigned i = 0; i < 3; i++) {
        char key[32];
        assert_int_equal(put_in(&world, &store, world_name(key, "g", i), 7), 0);
    }
    assert_int_equal(put_in(&world, &store, "other", 8), 0);
    assert_int_equal(put_in(&world, &store, "single", 0), 0);
    assert_int_equal(world_get(&world, reader, "g0", 0, NULL, NULL), 0);
    assert_int_equal(remove_key(&world, &store, "g1", false), MC_ERR_OBJECT_HAS_LEASE);
    assert_int_equal(remove_key(&world, &store, "other", false), 0);
    assert_int_equal(remove_key(&world, &store, "single", false), 0);
    assert_int_equal(remove_key(&world, &store, "g0", true), 0); /* with its reader; the lease is the group's */
    assert_int_equal(remove_key(&world, &store, "g1", false), MC_ERR_OBJECT_HAS_LEASE);
    assert_int_equal(world_get(&world, reader, "g1", 0, NULL, NULL), 0);
    assert_int_equal(world_get(&world, reader, "g2", 0, NULL, NULL), 0); /* ends that of g1 */
    world_beat(&world, store.heartbeat);
    for (uint64_t end = world.now + mc_core_config_default().lease_ttl_ms + 1; world.now < end;) {
        world_pass(&world, 500);
        world_beat(&world, store.heartbeat);
    }
    assert_int_equal(remove_key(&world, &store, "g1", false), 0);
    assert_int_equal(members_left(&world, &store, 3), 1);
    assert_int_equal(remove_key(&world, &store, "g2", false), 0);
    assert_int_equal(world.core->groups.count, 0);
    world_disconnect(&world, reader);
    world_close_all(&world);
}

static void test_a_key_stays_in_its_group(void **state)
{
    struct world world;
    const struct world_wish keep = {.flags = MC_PUT_REPLACE}, same = {.flags = MC_PUT_REPLACE, .group = 7},
                            other = {.flags = MC_PUT_REPLACE, .group = 8};
    (void)state;
    struct world_store store = world_open_one(&world);
    assert_int_equal(put_in(&world, &store, "g0", 7), 0);
    assert_int_equal(world.group, 7);
    assert_int_equal(put_in(&world, &store, "single", 0), 0);
    assert_int_equal(world.group, 0);
    assert_int_equal(put_wish(&world, &store, "g0", OBJECT + 1, &other), MC_ERR_INVALID_PARAMS);
    assert_int_equal(put_wish(&world, &store, "single", OBJECT + 1, &other), MC_ERR_INVALID_PARAMS);
    assert_int_equal(put_in(&world, &store, "g0", 8), MC_ERR_OBJECT_ALREADY_EXISTS);
    assert_int_equal(put_wish(&world, &store, "g0", OBJECT + 1, &same), 0);
    assert_int_equal(world.group, 7);
    uint64_t reader = world_client(&world, CLIENT);
    assert_int_equal(world_get(&world, reader, "g0", 0, NULL, NULL), 0); /* its read ends with the value */
    assert_int_equal(put_wish(&world, &store, "g0", OBJECT + 2, &keep), 0);
    assert_int_equal(world.group, 7); /* what the owner's slot is to say */
    world_check(&world);
    world_exist(&world, reader, "nothing");
    world_check(&world);
    assert_int_equal(put_wish(&world, &store, "g0", OBJECT + 1, &other), MC_ERR_INVALID_PARAMS);
    assert_int_equal(put_wish(&world, &store, "single", OBJECT + 1, &keep), 0);
    assert_int_equal(world.group, 0);
    /* A key without a value has no group any more. */
    assert_int_equal(remove_key(&world, &store, "g0", true), 0);
    assert_int_equal(put_in(&world, &store, "g0", 8), 0);
    assert_int_equal(world.group, 8);
    assert_int_equal(remove_key(&world, &store, "g0", true), 0);
    assert_int_equal(put_in(&world, &store, "g0", 0), 0);
    assert_int_equal(world.group, 0);
    assert_int_equal(remove_key(&world, &store, "single", true), 0); /* its tombstone has no room for a group */
    assert_int_equal(put_in(&world, &store, "single", 9), 0);
    assert_int_equal(world.group, 9);
    world_close_all(&world);
}

/* A put that failed leaves nothing of its group; while its slot is not known to be clear the key's memory is as the
 * failed put has made it. */
static void test_failed_puts(void **state)
{
    struct world world;
    struct mc_wire_place place;
    const struct world_wish seven = {.group = 7}, eight = {.group = 8};
    (void)state;
    struct world_store store = world_open_one(&world);
    assert_int_equal(world_grant(&world, store.call, PUT_1, "g", OBJECT, &seven, &place), 0);
    assert_int_equal(world.core->groups.count, 1);
    world_revoke(&world, store.call, &place);
    assert_int_equal(world_put_done(&world, store.call, PUT_1), MC_ERR_TRANSFER_FAIL);
    assert_int_equal(world.core->groups.count, 0);
    assert_int_equal(world_grant(&world, store.call, PUT_2, "g", OBJECT, &eight, &place), 0);
    assert_int_equal(world.group, 8);
    world_revoke(&world, store.call, &place);
    assert_int_equal(world_put_done(&world, store.call, PUT_2), MC_ERR_TRANSFER_FAIL);
    assert_int_equal(world_grant(&world, store.call, PUT_3, "g", OBJECT, NULL, &place), 0);
    assert_int_equal(world.group, 0);
    world_revoke(&world, store.call, &place);
    assert_int_equal(world_put_done(&world, store.call, PUT_3), MC_ERR_TRANSFER_FAIL);
    world_check(&world);

    assert_int_equal(world_grant(&world, store.call, PUT_4, "plain", OBJECT, NULL, &place), 0);
    world_revoke(&world, store.call, &place);
    assert_int_equal(world_put_done(&world, store.call, PUT_4), MC_ERR_TRANSFER_FAIL);
    assert_int_equal(world_grant(&world, store.call, PUT_5, "plain", OBJECT, &seven, &place), MC_ERR_PUT_IN_PROGRESS);
    world_owner_obeys(&world, store.owner);
    assert_int_equal(world_grant(&world, store.call, PUT_6, "plain", OBJECT, &seven, &place), 0);
    assert_int_equal(world.group, 7);
    world_disconnect(&world, store.call); /* cut */
    world_settle(&world, 100);
    assert_int_equal(world.core->groups.count, 0);
    world_close_all(&world);
}

/* Pinned members stay, the others go. */
static void test_pinned_members(void **state)
{
    struct world world;
    char key[32];
    (void)state;
    world_open(&world);
    struct world_store store = world_store(&world, NODE_A, 4 * MIB, "a");
    for (unsigned i = 0; i < 9; i++) {
        const struct world_wish wish = {.flags = i % 3, .group = 7}; /* none, hard, soft */
        assert_int_equal(put_wish(&world, &store, world_name(key, "g", i), OBJECT, &wish), 0);
    }
    fill(&world, &store, 0, 2 * FULL);
    for (unsigned i = 0; i < 9; i++)
        assert_int_equal(world_get(&world, store.call, world_name(key, "g", i), MC_GET_NO_LEASE, NULL, NULL),
                         i % 3 == 0 ? MC_ERR_OBJECT_NOT_FOUND : 0);
    assert_int_equal(world.core->groups.count, 1);
    world_close_all(&world);
}

/* A member with two replicas goes from both segments. */
static void test_replicas(void **state)
{
    struct world world;
    static struct world_grants grants;
    const struct world_wish two = {.replica_count = 2, .group = 7};
    char key[32];
    (void)state;
    world_open(&world);
    struct world_store a = world_store(&world, NODE_A, 4 * MIB, "a"), b = world_store(&world, NODE_B, 64 * MIB, "b");
    for (unsigned i = 0; i < 4; i++) {
        struct world_item item = {mc_span_string(world_name(key, "g", i)), OBJECT};
        world_put_start(&world, a.call, PUT_1, &item, 1, &two, &grants);
        assert_int_equal(grants.place_count, 2);
        for (unsigned p = 0; p < 2; p++)
            world_live(&world, grants.places[p].segment == a.segment ? a.owner : b.owner, &grants.places[p]);
        assert_int_equal(world_put_done(&world, a.call, PUT_1), 0);
    }
    const struct world_wish in_a = {.preferred = {"a"}, .avoided = {b.segment}};
    for (unsigned i = 0; i < 2 * FULL; i++)
        assert_int_equal(put_wish(&world, &a, world_name(key, "k", i), OBJECT, &in_a), 0);
    assert_int_equal(members_left(&world, &a, 4), 0);
    assert_int_equal(world_owner_obeys(&world, b.owner), 4);
    world_close_all(&world);
}

/* More members than one message may evict: ticks do the rest; a reader that comes meanwhile saves what is left. */
static void test_large_group(void **state)
{
    struct world world;
    struct mc_wire_place place;
    const struct world_wish wish = {.group = 7};
    char key[32];
    (void)state;
    for (unsigned how = 0; how < 2; how++) {
        world_open(&world);
        struct world_store store = world_store(&world, NODE_A, 16 * MIB, "a");
        uint64_t reader = world_client(&world, CLIENT);
        for (unsigned i = 0; i < 5000; i++)
            assert_int_equal(put_wish(&world, &store, world_name(key, "g", i), 100, &wish), 0);
        /* 5,000 need 960 KiB; this one needs all. */
        assert_int_equal(world_grant(&world, store.call, PUT_1, "large", 16 * MIB, NULL, &place), MC_ERR_SPACE_SOON);
        world_check(&world);
        unsigned left = members_left(&world, &store, 5000);
        assert_in_range(left, 2000, 4999);
        assert_non_null(world.core->groups.going);
        if (how == 1)
            assert_int_equal(world_get(&world, reader, "g4999", 0, NULL, NULL), 0);
        world_settle(&world, 1000);
        world_check(&world);
        assert_null(world.core->groups.going);
        assert_int_equal(members_left(&world, &store, 5000), how == 0 ? 0 : left);
        assert_int_equal(world.core->groups.count, how == 0 ? 0 : 1);
        world_close_all(&world);
    }
}

/* A large group that was used a moment ago comes to the old end: one message passes over so many members and no more.
 */
static void test_passing_over_is_bounded(void **state)
{
    struct world world;
    struct mc_wire_place place;
    const struct world_wish wish = {.group = 7};
    char key[32];
    (void)state;
    world_open(&world);
    struct world_store store = world_store(&world, NODE_A, 16 * MIB, "a");
    for (unsigned i = 0; i < 3 * MC_EVICT_TURNS_MAX; i++)
        assert_int_equal(put_wish(&world, &store, world_name(key, "g", i), 100, &wish), 0);
    for (unsigned i = 0; i < 12; i++)
        assert_int_equal(put_wish(&world, &store, world_name(key, "k", i), MIB, NULL), 0);
    world_pass(&world, GRACE_OVER_MS);
    world_beat(&world, store.heartbeat);
    assert_int_equal(world_exist(&world, store.call, "g0"), 1);
    assert_int_equal(world.core->turns_left, MC_EVICT_TURNS_MAX);
    assert_int_equal(world_grant(&world, store.call, PUT_1, "more", 4 * MIB, NULL, &place), MC_ERR_SPACE_SOON);
    assert_int_equal(world.core->turns_left, 0);
    world_check(&world);
    world_owner_obeys(&world, store.owner);
    world_settle(&world, 1000);
    assert_int_equal(put_wish(&world, &store, "more", 4 * MIB, NULL), 0);
    world_close_all(&world);
}

/* Everything is of groups that are used again and again: puts go on all the same. */
static void test_nothing_but_hot_groups(void **state)
{
    struct world world;
    char key[32];
    (void)state;
    world_open(&world);
    struct world_store store = world_store(&world, NODE_A, 4 * MIB, "a");
    for (unsigned i = 0; i < FULL; i++)
        assert_int_equal(put_in(&world, &store, world_name(key, "g", i), 1 + i % 10), 0);
    for (unsigned i = 0; i < 300; i++) {
        world_pass(&world, GRACE_OVER_MS);
        world_beat(&world, store.heartbeat);
        for (unsigned k = 0; k < 10; k++)
            (void)world_exist(&world, store.call, world_name(key, "g", FULL - 10 + k));
        assert_int_equal(put_in(&world, &store, world_name(key, "n", i), 0), 0);
    }
    world_close_all(&world);
}

/* The owner's slots know the groups: the next master takes them over. */
static void test_groups_survive_the_master(void **state)
{
    struct world world;
    char key[32];
    (void)state;
    struct fake_owner *a = start_with_owner(&world);
    for (unsigned i = 0; i < 60; i++)
        assert_int_equal(fake_put_in(&world, a, world_name(key, "g", i), SMALL, 0, i % 3), 0);
    assert_int_equal(fake_put_in(&world, a, "g1", SMALL + 1, MC_PUT_REPLACE, 0), 0); /* keeps its group */
    (void)fake_obey(&world, a);
    crash(&world, NEXT_EPOCH, 500);
    come_back(&world, a);
    assert_int_equal(world.core->groups.count, 2);
    for (unsigned i = 0; i < 60; i++)
        assert_int_equal(mc_object_group_id(mc_object_find(world.core, mc_span_string(world_name(key, "g", i)))),
                         i % 3);
    assert_int_equal(fake_put_in(&world, a, "g1", SMALL + 2, MC_PUT_REPLACE, 2), MC_ERR_INVALID_PARAMS);
    assert_int_equal(fake_put_in(&world, a, "g1", SMALL + 2, MC_PUT_REPLACE, 1), 0);
    assert_int_equal(found(&world, a, "g1"), SMALL + 2);
    finish(&world, a, NULL);
}

/* Where it was granted, if it was. What makes room for it may be what another put of the connection was to replace, and
 * that one ends first. */
static bool granted_among_others(struct world *world, uint64_t connection, const char *key, uint64_t length,
                                 const struct world_wish *wish, struct mc_wire_place *place)
{
    struct world_item item = {world_key(key), length};
    struct mc_wire_none none;
    struct mc_wire_granted granted;
    world_put_start_send(world, connection, PUT_1, &item, 1, wish);
    struct mc_frame answer = world_receive(world, connection);
    while (answer.type == MC_MESSAGE_PUT_DONE)
        answer = world_receive(world, connection);
    assert_int_equal(answer.type, MC_MESSAGE_PUT_GRANTED);
    struct mc_reader reader = mc_reader(answer.body.data, answer.body.length);
    mc_wire_none_read(&reader, &none);
    assert_int_equal(mc_list_read(&reader), 1);
    mc_wire_granted_read(&reader, &granted);
    if (mc_list_read(&reader) == 0)
        return false;
    mc_wire_place_read(&reader, place);
    assert_false(reader.bad);
    return granted.code == 0;
}

/* Puts, upserts, gets, removals, breaks by dice, in few groups; the invariants hold at every step. */
static void random_life(unsigned seed)
{
    struct world world;
    struct mc_wire_place open[32];
    unsigned open_count = 0;
    char text[32];
    world_open(&world);
    srand(seed);
    struct world_store store = world_store(&world, NODE_A, MIB, "a");
    uint64_t readers[3];
    for (unsigned i = 0; i < 3; i++)
        readers[i] = world_client(&world, 10 + i);
    for (unsigned step = 0; step < 3000; step++) {
        const char *key = world_name(text, "k", (unsigned)(rand() % 200));
        uint64_t reader = readers[rand() % 3];
        int dice = rand() % 16;
        const struct world_wish wish = {.flags = (uint32_t)(rand() % 4 == 0 ? MC_PUT_REPLACE : 0) |
                                                 (rand() % 16 == 0 ? MC_PUT_SOFT_PIN : 0u),
                                        .group = (uint64_t)(rand() % 4)};
        if (dice < 6 && open_count < 32) {
            open_count +=
                granted_among_others(&world, store.call, key, 1 + (unsigned)rand() % 20000, &wish, &open[open_count]);
        } else if (dice < 10 && open_count > 0) {
            open_count--;
            if (dice == 9)
                world_revoke(&world, store.call, &open[open_count]);
            else
                world_live(&world, store.owner, &open[open_count]);
        } else if (dice < 13) {
            (void)world_get(&world, reader, key, 0, NULL, NULL);
        } else if (dice == 13) {
            world_remove_send(&world, store.call, &key, 1, rand() % 2 == 0);
        } else if (dice == 14) {
            world_pass(&world, (uint64_t)(rand() % 2000));
        }
        world_beat(&world, store.heartbeat);
        if (rand() % 2 == 0)
            world_owner_obeys(&world, store.owner);
        while (world_receive(&world, store.call).type != 0)
            continue;
        world_check(&world);
    }
    world_close_all(&world);
}

static void test_random_life(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 6; seed++)
        random_life(seed);
}

#define OBJECTS 30000u

/* The table alone, far beyond one chunk of buckets. */
static void test_table(void **state)
{
    struct mc_objects objects;
    struct mc_groups groups;
    static struct mc_object *made[OBJECTS];
    char key[32];
    (void)state;
    assert_true(mc_objects_init(&objects, 5));
    assert_true(mc_groups_init(&groups, 6));
    for (unsigned i = 0; i < OBJECTS; i++) {
        made[i] = mc_object_create_roomy(&objects, mc_span_string(world_name(key, "k", i)));
        assert_non_null(made[i]);
        assert_int_equal(mc_object_group_id(made[i]), 0);
        assert_true(mc_group_join(&groups, made[i], i % 3 == 0 ? i + 1 : i)); /* of 1 to 2 members */
        assert_true(mc_objects_insert(&objects, made[i]));
        if ((i & (i - 1)) == 0)
            assert_null(mc_groups_check(&groups, &objects));
    }
    assert_int_equal(groups.count, OBJECTS / 3 * 2);
    assert_null(mc_groups_check(&groups, &objects));
    for (unsigned i = 0; i < OBJECTS; i++) {
        assert_int_equal(mc_object_group_id(made[i]), i % 3 == 0 ? i + 1 : i);
        assert_memory_equal(made[i]->key, world_name(key, "k", i), made[i]->key_length);
    }
    for (unsigned i = 0; i < OBJECTS; i += 2)
        mc_group_leave(&groups, made[i]);
    mc_group_leave(&groups, made[0]); /* twice: nothing */
    assert_null(mc_groups_check(&groups, &objects));
    for (unsigned i = 1; i < OBJECTS; i += 2)
        mc_group_leave(&groups, made[i]);
    assert_int_equal(groups.count, 0);
    assert_null(mc_groups_check(&groups, &objects));
    mc_groups_destroy(&groups);
    mc_objects_destroy(&objects);
}

/* One number under many tenants, as anybody may say it where there are no keys: each has a group of its own, and none
 * of them is looked for among all the others. */
static void test_one_number_of_many_tenants(void **state)
{
    struct mc_objects objects;
    struct mc_groups groups;
    static struct mc_object *made[OBJECTS];
    char key[32];
    (void)state;
    assert_true(mc_objects_init(&objects, 5));
    assert_true(mc_groups_init(&groups, 6));
    for (unsigned i = 0; i < OBJECTS; i++) {
        int length = snprintf(key, sizeof(key), "%ct%u%ck", 0, i / 2, 0);
        key[length - 1] = (char)('k' + i % 2);
        made[i] = mc_object_create_roomy(&objects, mc_span(key, (size_t)length));
        assert_non_null(made[i]);
        assert_true(mc_group_join(&groups, made[i], 7));
        assert_true(mc_objects_insert(&objects, made[i]));
    }
    assert_int_equal(groups.count, OBJECTS / 2);
    assert_null(mc_groups_check(&groups, &objects));
    for (uint64_t index = 0; index < groups.bucket_count; index++) {
        unsigned chain = 0;
        const struct mc_group *group = groups.chunks[index / MC_GROUP_CHUNK][index % MC_GROUP_CHUNK];
        for (; group != NULL; group = group->next)
            chain++;
        assert_in_range(chain, 0, 16);
    }
    for (unsigned i = 0; i < OBJECTS; i++)
        mc_group_leave(&groups, made[i]);
    assert_int_equal(groups.count, 0);
    mc_groups_destroy(&groups);
    mc_objects_destroy(&objects);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_evicted_together),
        cmocka_unit_test(test_a_reader_protects_all),
        cmocka_unit_test(test_members_age_together),
        cmocka_unit_test(test_lease_and_removal),
        cmocka_unit_test(test_a_key_stays_in_its_group),
        cmocka_unit_test(test_failed_puts),
        cmocka_unit_test(test_pinned_members),
        cmocka_unit_test(test_replicas),
        cmocka_unit_test(test_large_group),
        cmocka_unit_test(test_passing_over_is_bounded),
        cmocka_unit_test(test_nothing_but_hot_groups),
        cmocka_unit_test(test_groups_survive_the_master),
        cmocka_unit_test(test_random_life),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_one_number_of_many_tenants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
