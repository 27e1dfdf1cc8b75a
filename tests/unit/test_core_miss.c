/* What is counted of keys that were looked for, found and not found, and why. */
#include "core_world.h"
#include "store/core/miss.h"
#include "store/core/place.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define OBJECT 4000u

static struct mc_core_why why_of(const struct world *world, const char *key)
{
    struct mc_core_why why;
    mc_core_why(world->core, mc_span_string(key), &why);
    return why;
}

/* It is not there, a look for it is counted so, and by nothing else. */
static void check_missed(struct world *world, uint64_t connection, const char *key, enum mc_gone wanted)
{
    struct mc_core_statistics before = statistics_of(world);
    assert_int_equal(why_of(world, key).why, wanted);
    assert_int_equal(world_exist(world, connection, key), 0);
    struct mc_core_statistics after = statistics_of(world);
    for (unsigned why = 0; why < MC_GONE_COUNT; why++)
        assert_int_equal(after.misses[why] - before.misses[why], why == (unsigned)wanted);
}

/* Who checks and then gets what is there has looked once; so has who gets without that. */
static void test_lookups(void **state)
{
    struct world world;
    struct world_store store = world_open_one(&world);
    struct mc_wire_found found;
    (void)state;
    assert_int_equal(world_put(&world, store.call, store.owner, "a", SMALL), 0);
    assert_int_equal(world_exist(&world, store.call, "a"), 1);
    assert_int_equal(world_exist(&world, store.call, "b"), 0);
    assert_int_equal(world_exist(&world, store.call, "c"), 0);
    assert_int_equal(statistics_of(&world).lookups, 3);
    assert_int_equal(statistics_of(&world).lookup_hits, 1);
    assert_int_equal(world_get(&world, store.call, "a", 0, &found, NULL), 0);
    assert_int_equal(statistics_of(&world).lookups, 3);
    assert_int_equal(statistics_of(&world).lookup_hits, 1);
    assert_int_equal(world_get(&world, store.call, "b", 0, &found, NULL), MC_ERR_OBJECT_NOT_FOUND);
    assert_int_equal(world_get(&world, store.call, "a", 0, &found, NULL), 0);
    assert_int_equal(statistics_of(&world).lookups, 5);
    assert_int_equal(statistics_of(&world).lookup_hits, 2);
    world_close_all(&world);
}

static void test_puts(void **state)
{
    struct world world;
    struct world_store store = world_open_one(&world);
    struct mc_wire_place place;
    (void)state;
    check_missed(&world, store.call, "k", MC_GONE_NEVER);
    assert_int_equal(world_get(&world, store.call, "k", 0, NULL, NULL), MC_ERR_OBJECT_NOT_FOUND);
    assert_int_equal(statistics_of(&world).misses[MC_GONE_NEVER], 2);
    assert_int_equal(world_grant(&world, store.call, PUT_1, "k", SMALL, NULL, &place), 0);
    check_missed(&world, store.call, "k", MC_GONE_COMING);
    world_live_code(&world, store.owner, &place, MC_ERR_TRANSFER_FAIL);
    (void)world_put_done(&world, store.call, PUT_1);
    check_missed(&world, store.call, "k", MC_GONE_FAILED);
    world_owner_obeys(&world, store.owner);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", SMALL), 0);
    assert_int_equal(why_of(&world, "k").why, MC_GONE_NONE);
    assert_int_equal(world_grant(&world, store.call, PUT_2, "large", 4 * MIB, NULL, NULL), MC_ERR_NO_AVAILABLE_HANDLE);
    check_missed(&world, store.call, "large", MC_GONE_REFUSED);
    uint64_t writer = world_client(&world, CLIENT);
    assert_int_equal(world_grant(&world, writer, PUT_1, "late", SMALL, NULL, &place), 0);
    world_pass_beating(&world, mc_core_config_default().put_discard_ms + SECOND_MS, store.heartbeat);
    check_missed(&world, store.call, "late", MC_GONE_EXPIRED);
    world_close_all(&world);
}

static void test_removed(void **state)
{
    struct world world;
    struct world_store store = world_open_one(&world);
    (void)state;
    assert_int_equal(world_put(&world, store.call, store.owner, "k", SMALL), 0);
    world_pass_beating(&world, 5 * SECOND_MS, store.heartbeat);
    world_remove_one_send(&world, store.call, "k");
    world_owner_obeys(&world, store.owner);
    int32_t code = 1;
    assert_true(world_remove_answer(&world, store.call, &code, 1) && code == 0);
    world_pass_beating(&world, 2 * SECOND_MS, store.heartbeat);
    check_missed(&world, store.call, "k", MC_GONE_REMOVED);
    world_fill(&world, &store, "m", 10);
    world_remove_all_send(&world, store.call, "m[0-9]", true);
    world_settle(&world, 1000);
    world_owner_obeys(&world, store.owner);
    assert_int_equal(world_count_answer(&world, store.call), 10);
    check_missed(&world, store.call, "m3", MC_GONE_REMOVED);
    world_close_all(&world);
}

/* When it went is known but for the time in which a sixteenth of all objects did. */
static void test_evicted(void **state)
{
    struct world world;
    struct world_store store = world_open_lru(&world);
    char key[32];
    (void)state;
    for (unsigned i = 0; i < 2000; i++) {
        assert_int_equal(world_put_hard(&world, &store, world_name(key, "k", i), OBJECT, NULL), 0);
        world.now += 10;
        (void)world_beat(&world, store.heartbeat);
    }
    check_missed(&world, store.call, "k500", MC_GONE_EVICTED); /* when about k1500 was put */
    struct mc_core_why why = why_of(&world, "k500");
    assert_in_range(why.least_ms, 3000, 6000);
    assert_in_range(why.most_ms, 4000, 7000);
    assert_true(why.most_ms > why.least_ms && why.most_ms - why.least_ms < 1500);
    assert_true(why.known_ms > 15000);
    check_missed(&world, store.call, "absent", MC_GONE_NEVER);
    struct mc_core_statistics statistics = statistics_of(&world);
    assert_true(statistics.evicted_objects > 500);
    assert_int_equal(statistics.evictions[MC_CORE_EVICTION_WATERMARK] + statistics.evictions[MC_CORE_EVICTION_PUT],
                     statistics.evicted_objects);
    assert_true(statistics.evictions[MC_CORE_EVICTION_WATERMARK] > 500);
    world_close_all(&world);
}

/* Each is counted by what the room was for, also what ticks evict later. */
static void test_evicted_for_what(void **state)
{
    struct world world;
    struct world_store store = world_open_lru(&world);
    (void)state;
    world_fill(&world, &store, "k", 500);
    struct mc_segment *segment = mc_segment_find(world.core, store.segment);
    uint64_t missing = segment->space.free + 1000;
    world.core->evictions_left = 100;
    mc_evict_for_hint(world.core, segment, missing);
    uint64_t evicted = statistics_of(&world).evicted_objects;
    assert_true(evicted > 0);
    assert_int_equal(statistics_of(&world).evictions[MC_CORE_EVICTION_HINT], evicted);
    world.core->evictions_left = 1;
    assert_true(mc_evict_for(world.core, segment, missing, MC_CORE_EVICTION_LOAD));
    assert_int_equal(statistics_of(&world).evictions[MC_CORE_EVICTION_LOAD], 1);
    assert_true(segment->debt > 0);
    world_pass_beating(&world, 100, store.heartbeat);
    struct mc_core_statistics statistics = statistics_of(&world);
    assert_true(statistics.evictions[MC_CORE_EVICTION_LOAD] > 1);
    assert_int_equal(statistics.evictions[MC_CORE_EVICTION_LOAD] + evicted, statistics.evicted_objects);
    world_close_all(&world);
}

/* How old what goes is, since it was put or used last: the sample knows, and of few keys it has all. */
static void test_ages(void **state)
{
    struct world world;
    struct world_store store = world_open_lru(&world);
    struct mc_core_curve curve = {.asked.bytes = 0};
    char key[32];
    (void)state;
    mc_core_curve(world.core, &curve);
    assert_int_equal(curve.ages.lately, 0);
    for (unsigned i = 0; i < 2000; i++) {
        assert_int_equal(world_put_hard(&world, &store, world_name(key, "k", i), OBJECT, NULL), 0);
        world.now += 10;
        (void)world_beat(&world, store.heartbeat);
    }
    mc_core_curve(world.core, &curve);
    assert_int_equal(curve.ages.lately, MC_REUSE_AGES);
    assert_in_range(curve.ages.median_ms, 9000, 11000); /* about a thousand have room */
    assert_true(curve.ages.least_ms <= curve.ages.median_ms && curve.ages.median_ms <= curve.ages.most_ms);
    assert_in_range(curve.ages.most_ms, curve.ages.median_ms, 12000);
    uint64_t all = 0;
    for (unsigned i = 0; i <= MC_CORE_SPANS; i++)
        all += curve.ages.counts[i];
    assert_int_equal(all, statistics_of(&world).evicted_objects);
    assert_int_equal(curve.ages.counts[2], all); /* 5 to 15 s */
    assert_in_range(curve.ages.sum_s, all * 9, all * 11);
    world_close_all(&world);
}

static void test_evicted_with_others(void **state)
{
    struct world world;
    struct world_store store = world_open_lru(&world);
    const struct world_wish together = {.group = 7};
    char key[32];
    (void)state;
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(world_put_hard(&world, &store, world_name(key, "g", i), OBJECT, &together), 0);
    for (unsigned i = 0; i < 1500; i++)
        assert_int_equal(world_put_hard(&world, &store, world_name(key, "k", i), OBJECT, NULL), 0);
    unsigned alone = 0, with = 0;
    for (unsigned i = 0; i < 3; i++) {
        enum mc_gone why = why_of(&world, world_name(key, "g", i)).why;
        alone += why == MC_GONE_EVICTED;
        with += why == MC_GONE_EVICTED_GROUP;
    }
    assert_int_equal(alone, 1);
    assert_int_equal(with, 2);
    assert_int_equal(statistics_of(&world).evictions[MC_CORE_EVICTION_GROUP], 2);
    world_close_all(&world);
}

static void test_evicted_for_quota(void **state)
{
    struct world world;
    struct mc_core_config config = mc_core_config_default();
    const struct mc_core_quota two = {.bytes = MIB, .objects = 2};
    (void)state;
    config.tenants = config.quotas = true;
    world_open_with(&world, &config);
    struct world_store store = world_store(&world, NODE_A, MIB, "a");
    assert_int_equal(world_grant(&world, store.call, PUT_1, "k0", SMALL, NULL, NULL), MC_ERR_TENANT_NOT_REGISTERED);
    check_missed(&world, store.call, "k0", MC_GONE_REFUSED);
    assert_int_equal(mc_core_quota(world.core, mc_span_string("default"), &two), 0);
    world_fill(&world, &store, "k", 3);
    check_missed(&world, store.call, "k0", MC_GONE_EVICTED_QUOTA);
    assert_int_equal(statistics_of(&world).evictions[MC_CORE_EVICTION_QUOTA], 1);
    world_close_all(&world);
}

/* A node that is silent may be back; when it is gone all that it had is known to be lost with it. */
static void test_node_lost(void **state)
{
    struct world world;
    struct world_store store = world_open_one(&world);
    char key[32];
    (void)state;
    uint64_t client = world_client(&world, CLIENT);
    world_fill(&world, &store, "k", 100);
    world_disconnect(&world, store.owner);
    world_pass(&world, SECOND_MS);
    check_missed(&world, client, "k5", MC_GONE_AWAY);
    world_disconnect(&world, store.heartbeat);
    world_pass(&world, 2 * mc_core_config_default().client_ttl_ms);
    for (unsigned i = 0; i < 100; i++)
        assert_int_equal(why_of(&world, world_name(key, "k", i)).why, MC_GONE_LOST);
    world_close_all(&world);
}

static void test_rotten(void **state)
{
    struct world world;
    struct world_store store = world_open_one(&world);
    struct mc_wire_place place;
    struct world_told lost = {.type = MC_MESSAGE_LOST, .segment = store.segment, .count = 1};
    (void)state;
    assert_int_equal(world_put_place(&world, store.call, store.owner, "k", SMALL, NULL, &place), 0);
    lost.slots[0] = (struct mc_wire_slot){.slot = place.slot, .generation = place.generation};
    world_owner_says(&world, store.owner, MC_MESSAGE_LOST, &lost);
    check_missed(&world, store.call, "k", MC_GONE_ROTTEN);
    world_close_all(&world);
}

/* However many are missed, no more are looked into than cost nothing; whole requests are. */
static void test_no_more_than_cost_nothing(void **state)
{
    struct world world;
    struct world_store store = world_open_one(&world);
    char key[32];
    uint64_t looked = 0;
    (void)state;
    for (unsigned i = 0; i < 2 * MC_MISSES_AT_ONCE; i++)
        assert_int_equal(world_exist(&world, store.call, world_name(key, "k", i)), 0);
    assert_int_equal(statistics_of(&world).misses[MC_GONE_NEVER], MC_MISSES_AT_ONCE);
    world.now += 2;
    for (unsigned i = 0; i < 100; i++)
        assert_int_equal(world_exist(&world, store.call, world_name(key, "k", i)), 0);
    looked = statistics_of(&world).misses[MC_GONE_NEVER];
    assert_int_equal(looked, MC_MISSES_AT_ONCE + 2 * MC_MISSES_MS);
    world_close_all(&world);
}

/* The core's own curve, of a set that is read over and over, twice as large as what an LRU of half of it finds. */
static void test_curve(void **state)
{
    struct world world;
    struct world_store store = world_open_lru(&world);
    struct mc_core_curve curve = {.asked.bytes = 8 * MIB};
    char key[32];
    (void)state;
    mc_core_curve(world.core, &curve);
    assert_true(curve.found < 0 && curve.points[0].ratio < 0);
    for (unsigned i = 0; i < 8000; i++) { /* 1,600 of 4 KiB, in 4 MiB */
        world.now += 10;
        (void)world_beat(&world, store.heartbeat);
        if (!world_exist(&world, store.call, world_name(key, "k", i % 1600)))
            assert_int_equal(world_put_hard(&world, &store, key, OBJECT, NULL), 0);
    }
    curve.asked.bytes = 8 * MIB;
    mc_core_curve(world.core, &curve);
    assert_int_equal(curve.capacity, 4 * MIB);
    assert_true(curve.found < 0.01 && curve.points[7].ratio < 0.01);
    assert_int_equal(curve.points[7].bytes, 4 * MIB);
    assert_true(curve.asked.ratio > 0.79 && curve.asked.ratio < 0.81); /* all but the first of five rounds */
    assert_true(curve.known > 6 * MIB && curve.known < 7 * MIB);
    assert_int_equal(curve.spans[3], 6400); /* 16 s: up to 30 */
    world_close_all(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lookups),
        cmocka_unit_test(test_puts),
        cmocka_unit_test(test_removed),
        cmocka_unit_test(test_evicted),
        cmocka_unit_test(test_evicted_for_what),
        cmocka_unit_test(test_ages),
        cmocka_unit_test(test_evicted_with_others),
        cmocka_unit_test(test_evicted_for_quota),
        cmocka_unit_test(test_node_lost),
        cmocka_unit_test(test_rotten),
        cmocka_unit_test(test_no_more_than_cost_nothing),
        cmocka_unit_test(test_curve),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
