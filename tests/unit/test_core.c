/* The core through its frames: put, get, remove; the rows of the ordering page about them (ordering_*), every
 * code. Hellos are in test_core_hello.c, owners and segments in test_core_segment.c, space and eviction in
 * test_core_evict.c, malformed input in test_core_input.c. */
#include "core_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

/* ---- put ---- */

static void ordering_P1(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    struct world_store store;
    uint64_t writer = world_open_writing(&world, &store, &place);
    assert_int_equal(place.generation >> MC_EPOCH_SHIFT, FIRST_EPOCH);
    assert_int_equal(place.segment, store.segment);
    /* Unknown to readers: not ready, not there. */
    assert_int_equal(world_get(&world, store.call, "k", 0, NULL, NULL), MC_ERR_REPLICA_IS_NOT_READY);
    assert_int_equal(world_exist(&world, store.call, "k"), 0);
    /* The writer dies: P-cut, and only after it is the extent free. */
    world_disconnect(&world, writer);
    static struct world_told told;
    struct mc_core_statistics statistics = statistics_of(&world);
    assert_int_equal(statistics.clearing_bytes, 128);
    world_owner_told_to_cut(&world, store.owner, &told);
    assert_int_equal(told.count, 1);
    assert_int_equal(told.slots[0].slot, place.slot);
    assert_int_equal(told.slots[0].generation, place.generation);
    assert_int_equal(told.writer.low, CLIENT);
    statistics = statistics_of(&world);
    assert_int_equal(statistics.quarantine_bytes, 128);
    assert_int_equal(statistics.used, 0);
    assert_int_equal(world_get(&world, store.call, "k", 0, NULL, NULL), MC_ERR_OBJECT_NOT_FOUND);
    world_owner_says(&world, store.owner, MC_MESSAGE_CUT_DONE, &told);
    statistics = statistics_of(&world);
    assert_int_equal(statistics.quarantine_bytes, 0);
    world_owner_says(&world, store.owner, MC_MESSAGE_CUT_DONE, &told); /* said twice */
    world_close_all(&world);
}

static void ordering_P1_heartbeat(void **state)
{
    struct world world;
    struct mc_wire_place place;
    static struct world_told told;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t heartbeat = world_join(&world, MC_ROLE_HEARTBEAT, CLIENT, FIRST_LIFE),
             writer = world_client(&world, CLIENT);
    assert_int_equal(world_grant(&world, writer, PUT_1, "k", SMALL, NULL, &place), 0);
    world_disconnect(&world, heartbeat);
    world_settle(&world, 10);
    world_owner_told_to_cut(&world, store.owner, &told);
    assert_int_equal(world_put_done(&world, writer, PUT_1),
                     MC_ERR_TRANSFER_FAIL); /* it hears of it, should it still live */
    heartbeat = world_join(&world, MC_ROLE_HEARTBEAT, CLIENT, FIRST_LIFE);
    assert_int_equal(world_grant(&world, writer, PUT_2, "k", SMALL, NULL, &place), 0);
    world_close_all(&world);
}

static void ordering_P4_commit_before_cut(void **state)
{
    struct world world;
    struct mc_wire_place place;
    static struct world_told told, clear;
    (void)state;
    struct world_store store;
    uint64_t writer = world_open_writing(&world, &store, &place);
    world_disconnect(&world, writer);
    world_owner_told(&world, store.owner, &told);
    assert_int_equal(told.type, MC_MESSAGE_CLEAR);
    /* The commit was in the socket and the owner had applied it: its LIVE crosses what it is told. */
    world_live(&world, store.owner, &place);
    world_owner_told(&world, store.owner, &clear);
    assert_int_equal(clear.type, MC_MESSAGE_CLEAR);
    assert_int_equal(world_get(&world, store.call, "k", 0, NULL, NULL), MC_ERR_OBJECT_NOT_FOUND);
    world_owner_says(&world, store.owner, MC_MESSAGE_CLEARED, &told);
    world_owner_says(&world, store.owner, MC_MESSAGE_CLEARED, &clear); /* must not free what is in quarantine */
    world_owner_told(&world, store.owner, &told);
    assert_int_equal(told.type, MC_MESSAGE_CUT);
    struct mc_core_statistics statistics = statistics_of(&world);
    assert_int_equal(statistics.quarantine_bytes, 128);
    assert_int_equal(statistics.stale_refused, 1);
    world_owner_says(&world, store.owner, MC_MESSAGE_CUT_DONE, &told);
    statistics = statistics_of(&world);
    assert_int_equal(statistics.quarantine_bytes, 0);
    world_close_all(&world);
}

static void ordering_P5(void **state)
{
    struct world world;
    struct mc_wire_place place;
    struct mc_wire_found found;
    struct mc_core_statistics statistics;
    (void)state;
    struct world_store store;
    uint64_t writer = world_open_writing(&world, &store, &place);
    struct mc_wire_place other = place;
    other.generation++; /* of no grant */
    world_live(&world, store.owner, &other);
    assert_int_equal(world_exist(&world, writer, "k"), 0);
    world_live(&world, store.call, &place); /* a call connection of the owner's process will do */
    assert_int_equal(world_exist(&world, store.call, "k"), 1);
    assert_int_equal(world_get(&world, store.call, "k", 0, &found, &other), 0);
    assert_int_equal(found.length, SMALL);
    assert_int_equal(other.generation, place.generation);
    assert_int_equal(other.offset, place.offset);
    assert_int_equal(world_put_done(&world, writer, PUT_1), 0);  /* P6 */
    world_live(&world, store.owner, &place);                     /* twice is no reason to clear it */
    assert_int_equal(world_owner_obeys(&world, store.owner), 1); /* only the wrong generation above */
    assert_int_equal(world_exist(&world, store.call, "k"), 1);
    statistics = statistics_of(&world);
    assert_int_equal(statistics.objects, 1);
    assert_int_equal(statistics.put_bytes, SMALL);
    assert_int_equal(statistics.put_end_items, 1);
    assert_int_equal(statistics.value_size_histogram[0], 1);
    assert_int_equal(statistics.value_size_histogram[8], SMALL);
    world_close_all(&world);
}

static void test_live_of_others(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    world_open(&world);
    struct world_store store = world_store(&world, NODE_A, MIB, "a"), other = world_store(&world, NODE_C, MIB, "b");
    const struct world_wish wish = {.preferred = {"a"}};
    assert_int_equal(world_grant(&world, other.call, PUT_1, "k", SMALL, &wish, &place), 0);
    assert_int_equal(place.segment, store.segment);
    world_live(&world, other.owner, &place); /* the writer cannot say it for the owner */
    assert_int_equal(world_exist(&world, store.call, "k"), 0);
    place.slot = UINT32_MAX;
    world_live(&world, store.owner, &place);
    place.segment = 12345678;
    world_live(&world, store.owner, &place);
    world_close_all(&world);
}

static void test_live_with_an_error(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    struct world_store store;
    uint64_t writer = world_open_writing(&world, &store, &place);
    world_live_code(&world, store.owner, &place, MC_ERR_STALE);
    assert_int_equal(world_put_done(&world, writer, PUT_1), MC_ERR_TRANSFER_FAIL);
    assert_int_equal(world_owner_obeys(&world, store.owner), 1);
    assert_int_equal(world_grant(&world, writer, PUT_2, "k", SMALL, NULL, &place), 0);
    world_close_all(&world);
}

static void ordering_P_revoke(void **state)
{
    struct world world;
    struct mc_wire_place place;
    static struct world_told told;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t writer = world_client(&world, CLIENT), stranger = world_client(&world, THIRD_CLIENT);
    assert_int_equal(world_grant(&world, writer, PUT_1, "k", SMALL, NULL, &place), 0);
    world_revoke(&world, stranger, &place);
    assert_int_equal(world_receive(&world, writer).type, 0);
    world_revoke(&world, writer, &place);
    assert_int_equal(world_put_done(&world, writer, PUT_1), MC_ERR_TRANSFER_FAIL);
    world_owner_told(&world, store.owner, &told);
    assert_int_equal(told.type, MC_MESSAGE_CLEAR);
    assert_int_equal(told.slots[0].generation, place.generation);
    assert_int_equal(world_get(&world, writer, "k", 0, NULL, NULL), MC_ERR_OBJECT_NOT_FOUND);
    struct mc_core_statistics statistics = statistics_of(&world);
    assert_int_equal(statistics.clearing_bytes, 128);
    world_live(&world, store.owner, &place); /* late news loses */
    assert_int_equal(world_exist(&world, writer, "k"), 0);
    world_owner_says(&world, store.owner, MC_MESSAGE_CLEARED, &told);
    statistics = statistics_of(&world);
    assert_int_equal(statistics.clearing_bytes, 0);
    world_revoke(&world, writer, &place); /* twice */
    world_close_all(&world);
}

static void ordering_P_cut_of_the_late(void **state)
{
    struct world world;
    struct mc_wire_place place;
    static struct world_told told;
    (void)state;
    struct world_store store;
    uint64_t writer = world_open_writing(&world, &store, &place);
    for (unsigned second = 0; second < 29; second++) {
        world_pass(&world, SECOND_MS);
        assert_int_equal(world_heartbeat(&world, store.heartbeat, store.segment, MIB), 0);
    }
    assert_int_equal(world_receive(&world, writer).type, 0);
    world_pass(&world, GRACE_OVER_MS);
    assert_int_equal(world_put_done(&world, writer, PUT_1), MC_ERR_TRANSFER_FAIL);
    world_owner_told_to_cut(&world, store.owner, &told);
    world_close_all(&world);
}

/* Keys "k<first>" and so on, of small values. */
static void name_items(struct world_item *items, char keys[][16], unsigned first, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        int length = snprintf(keys[i], sizeof(keys[i]), "k%u", first + i);
        items[i] = (struct world_item){mc_span(keys[i], (size_t)length), SMALL};
    }
}

static void ordering_P_cut_of_many(void **state)
{
    struct world world;
    static struct world_grants grants;
    static struct world_item items[1000];
    static char keys[1000][16];
    static const struct world_wish wish;
    struct mc_core_statistics statistics;
    (void)state;
    world_open(&world);
    struct world_store store = world_store(&world, NODE_A, 16 * MIB, "a");
    uint64_t writer = world_client(&world, CLIENT);
    for (unsigned round = 0; round < 9; round++) {
        name_items(items, keys, round * 1000, 1000);
        world_put_start(&world, writer, round, items, 1000, &wish, &grants);
        for (unsigned i = 0; i < 1000; i++) {
            bool beyond =
                round * 1000 + i >= MC_GRANTS_PER_CONNECTION || round * 1000 + i >= mc_slot_count(16 * MIB) - 1;
            assert_int_equal(grants.items[i].code == 0, !beyond);
        }
    }
    world_disconnect(&world, writer);
    world_settle(&world, 100);
    statistics = statistics_of(&world);
    assert_int_equal(statistics.used, 0);
    assert_true(statistics.cuts >= 8000);
    assert_int_equal(statistics.clears, statistics.cuts);
    assert_int_equal(world_owner_obeys(&world, store.owner), statistics.clears + statistics.cuts);
    statistics = statistics_of(&world);
    assert_int_equal(statistics.quarantine_bytes + statistics.clearing_bytes, 0);
    world_close_all(&world);
}

static void ordering_P_same_key(void **state)
{
    struct world world;
    struct mc_wire_place place, unused;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t one = world_client(&world, CLIENT), two = world_client(&world, SECOND_CLIENT);
    assert_int_equal(world_grant(&world, one, PUT_1, "k", SMALL, NULL, &place), 0);
    assert_int_equal(world_grant(&world, two, PUT_1, "k", SMALL, NULL, &unused), MC_ERR_PUT_IN_PROGRESS);
    assert_int_equal(world_grant(&world, one, PUT_2, "k", SMALL, NULL, &unused), MC_ERR_OBJECT_ALREADY_EXISTS);
    world_live(&world, store.owner, &place);
    assert_int_equal(world_put_done(&world, one, PUT_1), 0);
    assert_int_equal(world_grant(&world, two, PUT_2, "k", SMALL, NULL, &unused), MC_ERR_OBJECT_ALREADY_EXISTS);
    assert_int_equal(world_receive(&world, two).type, 0); /* no PUT_DONE where nothing was granted */
    world_close_all(&world);
}

static void test_put_batch_codes(void **state)
{
    struct world world;
    static struct world_grants grants;
    static const struct world_wish wish;
    static char longest[MC_KEY_LENGTH_MAX + 1];
    (void)state;
    memset(longest, 'x', sizeof(longest));
    struct world_store store = world_open_one(&world);
    const struct world_item items[] = {
        {mc_span("", 0), 1},
        {mc_span(longest, MC_KEY_LENGTH_MAX + 1), 1},
        {mc_span(longest, MC_KEY_LENGTH_MAX), 1},
        {mc_span_string("empty"), 0},
        {mc_span_string("huge"), 2 * MIB},
        {mc_span_string("absurd"), UINT64_MAX},
        {mc_span_string("good"), SMALL},
        {mc_span_string("good"), SMALL},
    };
    static const int32_t codes[] = {
        MC_ERR_INVALID_KEY,         MC_ERR_INVALID_KEY,         0, MC_ERR_INVALID_PARAMS,
        MC_ERR_NO_AVAILABLE_HANDLE, MC_ERR_NO_AVAILABLE_HANDLE, 0, MC_ERR_OBJECT_ALREADY_EXISTS};
    world_put_start(&world, store.call, PUT_1, items, 8, &wish, &grants);
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(grants.items[i].code, codes[i]);
    assert_int_equal(grants.place_count, 2);
    world_live(&world, store.owner, &grants.places[1]);
    assert_int_equal(world_receive(&world, store.call).type, 0); /* one is still open */
    world_live(&world, store.owner, &grants.places[0]);
    struct mc_frame done = world_receive(&world, store.call);
    assert_int_equal(done.type, MC_MESSAGE_PUT_DONE);
    struct mc_reader reader = mc_reader(done.body.data, done.body.length);
    struct mc_wire_none none;
    mc_wire_none_read(&reader, &none);
    assert_int_equal(mc_list_read(&reader), 8);
    for (unsigned i = 0; i < 8; i++) {
        struct mc_wire_code code;
        mc_wire_code_read(&reader, &code);
        assert_int_equal(code.code, codes[i]);
    }
    world_put_start(&world, store.call, PUT_2, items, 0, &wish, &grants); /* nothing asked, nothing granted */
    assert_int_equal(world_receive(&world, store.call).type, 0);
    world_close_all(&world);
}

static void test_replicas(void **state)
{
    struct world world;
    static struct world_grants grants;
    struct world_store stores[3];
    struct mc_wire_found found;
    struct mc_wire_place place;
    struct mc_core_statistics statistics;
    (void)state;
    world_open(&world);
    uint64_t writer = world_client(&world, FOURTH_CLIENT);
    for (uint64_t i = 0; i < 3; i++)
        stores[i] = world_store(&world, 10 + i, MIB, "same"); /* names need not differ */
    struct world_item item = {mc_span_string("k"), SMALL};
    struct world_wish wish = {.replica_count = 5};
    world_put_start(&world, writer, PUT_1, &item, 1, &wish, &grants);
    assert_int_equal(grants.items[0].code, 0);
    assert_int_equal(grants.items[0].replica_count, 3); /* as many as there are segments */
    statistics = statistics_of(&world);
    assert_int_equal(statistics.put_start_partial, 1);
    uint64_t owner_of[70000] = {0};
    for (unsigned i = 0; i < 3; i++)
        owner_of[stores[i].segment] = stores[i].owner;
    world_live(&world, owner_of[grants.places[0].segment], &grants.places[0]);
    assert_int_equal(world_exist(&world, writer, "k"), 0); /* not while a grant is open */
    world_revoke(&world, writer, &grants.places[1]);
    assert_int_equal(world_exist(&world, writer, "k"), 0);
    world_live(&world, owner_of[grants.places[2].segment], &grants.places[2]);
    assert_int_equal(world_put_done(&world, writer, PUT_1), 0);
    assert_int_equal(world_get(&world, writer, "k", 0, &found, &place), 0);
    assert_int_equal(found.replica_count, 2);
    uint32_t first = place.segment;
    assert_int_equal(world_get(&world, writer, "k", 0, &found, &place), 0);
    assert_int_not_equal(place.segment, first); /* gets are spread */
    /* One holder goes: the other is offered. */
    for (unsigned i = 0; i < 3; i++)
        if (stores[i].segment == first)
            world_disconnect(&world, stores[i].owner);
    assert_int_equal(world_get(&world, writer, "k", 0, &found, &place), 0);
    assert_int_equal(found.replica_count, 1);
    assert_int_not_equal(place.segment, first);
    wish.replica_count = 17;
    struct mc_wire_put_start head = {.replica_count = 17};
    size_t frame = world_begin(&world, MC_MESSAGE_PUT_START, 5);
    mc_wire_put_start_write(&world.frame, &head);
    mc_list_empty(&world.frame);
    mc_list_empty(&world.frame);
    mc_list_empty(&world.frame);
    world_send(&world, writer, frame);
    assert_int_equal(world_receive(&world, writer).type, MC_MESSAGE_FAILED);
    world_close_all(&world);
}

static void test_preferred_and_avoided(void **state)
{
    struct world world;
    struct mc_wire_place place;
    char key[16];
    (void)state;
    world_open(&world);
    uint64_t writer = world_client(&world, FOURTH_CLIENT);
    struct world_store a = world_store(&world, NODE_A, MIB, "a"), b = world_store(&world, NODE_B, MIB, "b"),
                       c = world_store(&world, NODE_C, MIB, "c");
    for (unsigned i = 0; i < 20; i++) {
        (void)snprintf(key, sizeof(key), "p%u", i);
        const struct world_wish prefer = {.preferred = {"nobody", "b", "a"}};
        assert_int_equal(world_grant(&world, writer, PUT_1, key, SMALL, &prefer, &place), 0);
        assert_int_equal(place.segment, b.segment);
        (void)snprintf(key, sizeof(key), "a%u", i);
        const struct world_wish avoid = {.preferred = {"b"}, .avoided = {b.segment, a.segment, 999}};
        assert_int_equal(world_grant(&world, writer, PUT_1, key, SMALL, &avoid, &place), 0);
        assert_int_equal(place.segment, c.segment);
    }
    const struct world_wish none = {.avoided = {a.segment, b.segment, c.segment}};
    assert_int_equal(world_grant(&world, writer, PUT_1, "x", SMALL, &none, &place), MC_ERR_NO_AVAILABLE_HANDLE);
    world_close_all(&world);
}

/* A store whose owner says that it runs on another machine than the tester's others. */
static struct world_store store_on(struct world *world, uint64_t node, uint64_t capacity, const char *name,
                                   struct mc_id host)
{
    struct world_store store = {.heartbeat = world_join(world, MC_ROLE_HEARTBEAT, node, FIRST_LIFE),
                                .owner = world_join(world, MC_ROLE_OWNER, node, FIRST_LIFE),
                                .call = world_join(world, MC_ROLE_CALL, node, FIRST_LIFE)};
    struct mc_wire_mount mount = world_mount_of(node, capacity, name);
    mount.host = host;
    struct mc_wire_mount_reply reply = world_mount(world, store.owner, &mount);
    assert_int_equal(reply.code, 0);
    store.segment = reply.segment;
    return store;
}

/* The writer's machine first, one segment for the whole batch, others when there is no room; names count more. */
static void test_near_the_writer(void **state)
{
    struct world world;
    struct mc_wire_place place;
    static struct world_grants grants;
    struct mc_id here = {1, 2}, there = {3, 4};
    char keys[8][16];
    struct world_item items[8];
    (void)state;
    world_open(&world);
    uint64_t writer = world_client(&world, FOURTH_CLIENT);
    struct world_store big = store_on(&world, 10, 64 * MIB, "big", there);
    struct world_store near[2] = {store_on(&world, 11, MIB, "a", here), store_on(&world, 12, MIB, "b", here)};
    struct world_wish wish = {.host = here};
    unsigned at[2] = {0, 0};
    for (unsigned batch = 0; batch < 12; batch++) {
        for (unsigned i = 0; i < 8; i++) {
            (void)snprintf(keys[i], sizeof(keys[i]), "n%u-%u", batch, i);
            items[i] = (struct world_item){mc_span_string(keys[i]), SMALL};
        }
        world_put_start(&world, writer, PUT_1, items, 8, &wish, &grants);
        assert_int_equal(grants.place_count, 8);
        for (unsigned i = 0; i < 8; i++)
            assert_int_equal(grants.places[i].segment, grants.places[0].segment);
        for (unsigned i = 0; i < 2; i++)
            at[i] += grants.places[0].segment == near[i].segment;
    }
    assert_true(at[0] + at[1] == 12 && at[0] > 0 && at[1] > 0); /* neither is forgotten */
    wish.preferred[0] = "big";
    assert_int_equal(world_grant(&world, writer, PUT_2, "named", SMALL, &wish, &place), 0);
    assert_int_equal(place.segment, big.segment);
    wish.preferred[0] = NULL;
    assert_int_equal(world_grant(&world, writer, PUT_3, "large", 4 * MIB, &wish, &place), 0);
    assert_int_equal(place.segment, big.segment);
    wish.host = (struct mc_id){5, 6}; /* a machine that lends nothing */
    assert_int_equal(world_grant(&world, writer, PUT_4, "nowhere", SMALL, &wish, &place), 0);
    wish.host = here;
    wish.avoided[0] = near[0].segment;
    for (unsigned i = 0; i < 8; i++) {
        (void)snprintf(keys[0], sizeof(keys[0]), "avoid%u", i);
        assert_int_equal(world_grant(&world, writer, PUT_5, keys[0], SMALL, &wish, &place), 0);
        assert_int_equal(place.segment, near[1].segment);
    }
    world_disconnect(&world, near[1].owner); /* suspect: what is left of the machine is to be avoided */
    assert_int_equal(world_grant(&world, writer, PUT_6, "left", SMALL, &wish, &place), 0);
    assert_int_equal(place.segment, big.segment);
    world_close_all(&world);
}

/* ---- get ---- */

static void ordering_G1_G3(void **state)
{
    struct world world;
    int32_t code;
    const char *key = "k";
    (void)state;
    struct world_store store;
    uint64_t reader = world_open_holding(&world, &store);
    assert_int_equal(world_get(&world, reader, "absent", 0, NULL, NULL), MC_ERR_OBJECT_NOT_FOUND);
    assert_int_equal(world_get(&world, reader, "", 0, NULL, NULL), MC_ERR_INVALID_KEY);
    assert_int_equal(world_get(&world, reader, "k", MC_GET_NO_LEASE, NULL, NULL), 0);
    struct mc_object *object = mc_objects_find(&world.core->objects, mc_span_string("k"));
    assert_int_equal(object->readers, 0);
    assert_int_equal(world_get(&world, reader, "k", 0, NULL, NULL), 0);
    assert_int_equal(object->readers, 1);
    uint64_t lease = object->lease_until_ms;
    world_pass(&world, SECOND_MS);
    world_input(&world, reader, MC_MESSAGE_RENEW, 0, "\0\0", 2);
    assert_int_equal(object->lease_until_ms, lease + 1000);
    assert_int_equal(object->readers, 1);
    world_exist(&world, reader, "nothing"); /* the connection's next request */
    assert_int_equal(object->readers, 0);
    world_input(&world, reader, MC_MESSAGE_RENEW, 0, "\0\0", 2); /* renews nothing any more */
    assert_int_equal(object->lease_until_ms, lease + 1000);
    /* The lease outlives the read. */
    assert_int_equal(world_remove(&world, reader, key, false), MC_ERR_OBJECT_HAS_LEASE);
    world_beat(&world, store.heartbeat);
    world_pass(&world, 5 * SECOND_MS);
    world_beat(&world, store.heartbeat);
    world_pass(&world, 4990);
    assert_int_equal(world_remove(&world, reader, key, false), MC_ERR_OBJECT_HAS_LEASE);
    world_pass(&world, 10);
    world_remove_send(&world, reader, &key, 1, false);
    assert_int_equal(world_owner_obeys(&world, store.owner), 1);
    assert_true(world_remove_answer(&world, reader, &code, 1));
    assert_int_equal(code, 0);
    world_close_all(&world);
}

static void ordering_G1_reader_dies(void **state)
{
    struct world world;
    (void)state;
    struct mc_core_config config = mc_core_config_default();
    config.recovery_window_ms = 0; /* its memory is to be free at once */
    world_open_with(&world, &config);
    struct world_store store = world_store(&world, NODE_A, MIB, "a");
    uint64_t reader = world_client(&world, CLIENT), other = world_client(&world, SECOND_CLIENT);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", SMALL), 0);
    assert_int_equal(world_get(&world, reader, "k", 0, NULL, NULL), 0);
    assert_int_equal(world_get(&world, other, "k", 0, NULL, NULL), 0);
    struct mc_object *object = mc_objects_find(&world.core->objects, mc_span_string("k"));
    assert_int_equal(object->readers, 2);
    world_disconnect(&world, reader);
    assert_int_equal(object->readers, 1);
    /* The object dies and another takes its memory while the other reader still remembers it. */
    const char *key = "k";
    int32_t code;
    world_remove_send(&world, store.call, &key, 1, true);
    world_owner_obeys(&world, store.owner);
    assert_true(world_remove_answer(&world, store.call, &code, 1));
    assert_int_equal(world_put(&world, store.call, store.owner, "n", SMALL), 0);
    assert_ptr_equal(mc_objects_find(&world.core->objects, mc_span_string("n")), object);
    assert_int_equal(object->readers, 0);
    world_disconnect(&world, other);
    assert_int_equal(object->readers, 0);
    world_close_all(&world);
}

static void test_get_batch_is_bounded_in_places(void **state)
{
    struct world world;
    static struct world_grants grants;
    static struct world_item items[512];
    static char keys[512][16];
    static const char *names[MC_BATCH_MAX];
    (void)state;
    world_open(&world);
    struct world_store a = world_store(&world, NODE_A, 16 * MIB, "a"), b = world_store(&world, NODE_B, 16 * MIB, "b");
    struct world_wish wish = {.replica_count = 2};
    name_items(items, keys, 0, 512);
    world_put_start(&world, a.call, PUT_1, items, 512, &wish, &grants);
    assert_int_equal(grants.place_count, 1024);
    world_live_all(&world, &a, &b, &grants);
    assert_int_equal(world_put_done(&world, a.call, PUT_1), 0);
    for (unsigned i = 0; i < MC_BATCH_MAX; i++)
        names[i] = keys[i % 512];
    struct mc_wire_get head = {0};
    size_t frame = world_begin(&world, MC_MESSAGE_GET, 7);
    mc_wire_get_write(&world.frame, &head);
    world_keys(&world, names, 700);
    world_send(&world, a.call, frame);
    struct mc_frame answer = world_receive(&world, a.call); /* well formed is checked there */
    assert_int_equal(answer.type, MC_MESSAGE_GET_FOUND);
    struct mc_reader reader = mc_reader(answer.body.data, answer.body.length);
    struct mc_wire_none none;
    mc_wire_none_read(&reader, &none);
    assert_int_equal(mc_list_read(&reader), 700);
    unsigned places = 0;
    for (unsigned i = 0; i < 700; i++) {
        struct mc_wire_found found;
        mc_wire_found_read(&reader, &found);
        assert_int_equal(found.code, 0);
        assert_true(found.replica_count >= 1);
        places += found.replica_count;
    }
    assert_int_equal(places, MC_BATCH_MAX);
    assert_int_equal(mc_list_read(&reader), places);
    world_close_all(&world);
}

/* ---- remove ---- */

static void ordering_R1_R3(void **state)
{
    struct world world;
    int32_t codes[4];
    static struct world_told told;
    struct mc_wire_place place;
    const char *keys[4] = {"k", "absent", "growing", "k"};
    (void)state;
    struct world_store store;
    uint64_t other = world_open_holding(&world, &store);
    assert_int_equal(world_grant(&world, other, PUT_1, "growing", SMALL, NULL, &place), 0);
    world_remove_send(&world, store.call, keys, 4, false);
    assert_int_equal(world_exist(&world, other, "k"), 0); /* R1: invisible at once */
    assert_int_equal(world_get(&world, other, "k", 0, NULL, NULL), MC_ERR_OBJECT_NOT_FOUND);
    assert_false(world_remove_answer(&world, store.call, codes, 4)); /* but not answered before R3 */
    world_owner_told(&world, store.owner, &told);
    assert_int_equal(told.type, MC_MESSAGE_CLEAR);
    assert_int_equal(told.count, 1);
    struct world_told wrong = told;
    wrong.slots[0].generation--;
    world_owner_says(&world, store.owner, MC_MESSAGE_CLEARED, &wrong);
    assert_false(world_remove_answer(&world, store.call, codes, 4));
    assert_int_equal(world_grant(&world, other, PUT_2, "k", SMALL, NULL, &place), MC_ERR_PUT_IN_PROGRESS);
    world_owner_says(&world, store.owner, MC_MESSAGE_CLEARED, &told);
    assert_int_equal(world_grant(&world, other, PUT_3, "k", SMALL, NULL, &place), 0);
    assert_true(world_remove_answer(&world, store.call, codes, 4));
    assert_int_equal(codes[0], 0);
    assert_int_equal(codes[1], MC_ERR_OBJECT_NOT_FOUND);
    assert_int_equal(codes[2], MC_ERR_REPLICA_IS_NOT_READY);
    assert_int_equal(codes[3], MC_ERR_OBJECT_NOT_FOUND);
    world_owner_says(&world, store.owner, MC_MESSAGE_CLEARED, &told); /* twice */
    world_close_all(&world);
}

static void ordering_R2_owner_dies(void **state)
{
    struct world world;
    int32_t code = 1;
    const char *key = "k";
    static struct world_told told;
    (void)state;
    struct world_store store;
    uint64_t other = world_open_holding(&world, &store);
    world_remove_send(&world, other, &key, 1, false);
    assert_false(world_remove_answer(&world, other, &code, 1));
    world_owner_told(&world, store.owner, &told);
    world_disconnect(&world, store.owner);
    world_pass(&world, NEARLY_DEPARTED_MS);
    assert_false(world_remove_answer(&world, other, &code, 1)); /* it may be back any moment */
    world_pass(&world, 200);
    assert_true(world_remove_answer(&world, other, &code, 1)); /* out of the table it is, and the owner is given up */
    assert_int_equal(code, 0);
    /* The same incarnation returns: the CLEAR is sent again. */
    struct mc_wire_mount_reply reply = world_return(&world, &store);
    assert_int_equal(reply.code, 0);
    assert_int_equal(reply.segment, store.segment);
    static struct world_told again;
    world_owner_told(&world, store.owner, &again);
    assert_int_equal(again.type, MC_MESSAGE_CLEAR);
    assert_memory_equal(&again.slots[0], &told.slots[0], sizeof(told.slots[0]));
    world_owner_says(&world, store.owner, MC_MESSAGE_CLEARED, &again);
    assert_int_equal(statistics_of(&world).clearing_bytes, 0);
    world_close_all(&world);
}

static void test_remover_dies(void **state)
{
    struct world world;
    const char *key = "k";
    (void)state;
    struct world_store store;
    uint64_t other = world_open_holding(&world, &store);
    world_remove_send(&world, other, &key, 1, false);
    world_disconnect(&world, other);
    assert_int_equal(world_owner_obeys(&world, store.owner), 1);
    assert_int_equal(world.core->waits.free_count, world.core->waits.count); /* the wait is over too */
    world_close_all(&world);
}

/* ---- removal of many ---- */

static void test_remove_regex(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    world_open(&world);
    struct world_store store = world_store(&world, NODE_A, 8 * MIB, "a");
    uint64_t other = world_client(&world, CLIENT);
    world_fill(&world, &store, "x/", 300);
    world_fill(&world, &store, "y/", 50);
    assert_int_equal(world_grant(&world, store.call, PUT_1, "x/growing", SMALL, NULL, &place), 0);
    assert_int_equal(world_get(&world, store.call, "x/17", 0, NULL, NULL), 0); /* leased */
    world_remove_all_send(&world, other, "(", false);
    assert_int_equal(world_count_answer(&world, other), MC_ERR_INVALID_PARAMS);
    world_remove_all_send(&world, other, "x/[0-9]*7$", false);
    assert_int_equal(world_count_answer(&world, other), INT64_MIN);
    world_settle(&world, 100);
    assert_int_equal(world_owner_obeys(&world, store.owner), 29);
    assert_int_equal(world_count_answer(&world, other), 29);
    assert_int_equal(world_exist(&world, other, "x/17"), 1);
    assert_int_equal(world_exist(&world, other, "x/27"), 0);
    assert_int_equal(world_exist(&world, other, "y/7"), 1);
    world_remove_all_send(&world, other, "^x/", true);
    world_settle(&world, 100);
    world_owner_obeys(&world, store.owner);
    assert_int_equal(world_count_answer(&world, other), 271);
    world_live(&world, store.owner, &place);
    assert_int_equal(world_exist(&world, other, "x/growing"), 1);
    world_remove_all_send(&world, other, "nothing is named so", true);
    world_settle(&world, 100);
    assert_int_equal(world_count_answer(&world, other), 0);
    world_close_all(&world);
}

static void test_remove_all(void **state)
{
    struct world world;
    (void)state;
    world_open(&world);
    struct world_store a = world_store(&world, NODE_A, 8 * MIB, "a");
    uint64_t other = world_client(&world, CLIENT);
    world_remove_all_send(&world, other, NULL, false); /* of nothing */
    world_settle(&world, 100);
    assert_int_equal(world_count_answer(&world, other), 0);
    world_fill(&world, &a, "k", 3000);
    assert_int_equal(world_get(&world, a.call, "k5", 0, NULL, NULL), 0);
    world_remove_all_send(&world, other, NULL, false);
    assert_true(world_settle(&world, 100) > 1); /* more than a slice */
    assert_int_equal(world_count_answer(&world, other), INT64_MIN);
    world_owner_obeys(&world, a.owner);
    assert_int_equal(world_count_answer(&world, other), 2999);
    world_remove_all_send(&world, other, NULL, true);
    world_settle(&world, 100);
    world_disconnect(&world, a.owner); /* instead of CLEARED */
    world_pass(&world, 3 * SECOND_MS);
    assert_int_equal(world_count_answer(&world, other), 1);
    assert_int_equal(statistics_of(&world).objects, 0);
    world_close_all(&world);
}

static void test_remove_all_counts_replicas_once(void **state)
{
    struct world world;
    static struct world_grants grants;
    (void)state;
    struct world_store a = world_open_one(&world), b = world_store(&world, NODE_B, MIB, "b");
    struct world_item item = {mc_span_string("k"), SMALL};
    const struct world_wish wish = {.replica_count = 2};
    world_put_start(&world, a.call, PUT_1, &item, 1, &wish, &grants);
    world_live_all(&world, &a, &b, &grants);
    assert_int_equal(world_put_done(&world, a.call, PUT_1), 0);
    world_remove_all_send(&world, b.call, NULL, false);
    world_settle(&world, 100);
    assert_int_equal(world_owner_obeys(&world, a.owner), 1);
    assert_int_equal(world_count_answer(&world, b.call), INT64_MIN);
    assert_int_equal(world_owner_obeys(&world, b.owner), 1);
    assert_int_equal(world_count_answer(&world, b.call), 1);
    world_close_all(&world);
}

static void test_jobs_are_limited(void **state)
{
    struct world world;
    unsigned busy = 0, done = 0;
    (void)state;
    struct world_store store = world_open_one(&world);
    world_fill(&world, &store, "k", 10);
    for (unsigned i = 0; i < MC_JOBS_MAX + 6; i++)
        world_remove_all_send(&world, store.call, "^z", false);
    world_settle(&world, 1000);
    for (int64_t count = world_count_answer(&world, store.call); count != INT64_MIN;
         count = world_count_answer(&world, store.call)) {
        busy += count == MC_ERR_BUSY;
        done += count == 0;
    }
    assert_int_equal(busy, 6);
    assert_int_equal(done, MC_JOBS_MAX);
    world_close_all(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ordering_P1),
        cmocka_unit_test(ordering_P1_heartbeat),
        cmocka_unit_test(ordering_P4_commit_before_cut),
        cmocka_unit_test(ordering_P5),
        cmocka_unit_test(test_live_of_others),
        cmocka_unit_test(test_live_with_an_error),
        cmocka_unit_test(ordering_P_revoke),
        cmocka_unit_test(ordering_P_cut_of_the_late),
        cmocka_unit_test(ordering_P_cut_of_many),
        cmocka_unit_test(ordering_P_same_key),
        cmocka_unit_test(test_put_batch_codes),
        cmocka_unit_test(test_replicas),
        cmocka_unit_test(test_preferred_and_avoided),
        cmocka_unit_test(test_near_the_writer),
        cmocka_unit_test(ordering_G1_G3),
        cmocka_unit_test(ordering_G1_reader_dies),
        cmocka_unit_test(test_get_batch_is_bounded_in_places),
        cmocka_unit_test(ordering_R1_R3),
        cmocka_unit_test(ordering_R2_owner_dies),
        cmocka_unit_test(test_remover_dies),
        cmocka_unit_test(test_remove_regex),
        cmocka_unit_test(test_remove_all),
        cmocka_unit_test(test_remove_all_counts_replicas_once),
        cmocka_unit_test(test_jobs_are_limited),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
