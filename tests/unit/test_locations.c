/* The cache of places. */
#include "store/client/locations.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#define THREADS 4
#define KEYS 64u
#define TURNS 100000u

static struct mc_hash key_of(uint64_t low, uint64_t high)
{
    return (struct mc_hash){low, high};
}

static void empty_knows_nothing(void **state)
{
    struct mc_locations places = {.table = NULL};
    struct mc_known known;
    (void)state;
    assert_false(mc_locations_get(&places, key_of(0, 0), 0, &known));
    mc_locations_drop(&places, key_of(1, 2));
    mc_locations_put(&places, key_of(1, 2), 9, 100, NULL, 0); /* no replica: nothing to know */
    assert_false(mc_locations_get(&places, key_of(1, 2), 9, &known));
    assert_false(mc_locations_get(&places, key_of(0, 0), 0, &known));
    mc_locations_free(&places);
    mc_locations_free(&places);
}

static void what_was_told_is_known_under_its_epoch(void **state)
{
    struct mc_locations places = {.table = NULL};
    struct mc_known known;
    struct mc_place told[3] = {{UINT32_MAX, 7, UINT64_MAX, 1ull << 60, MC_REPLICA_COUNT_MAX - 1, 0},
                               {5, UINT32_MAX, 6, 0, 0, 0},
                               {9, 1, 2, 192, 1, 0}};
    (void)state;
    mc_locations_put(&places, key_of(3, 4), 9, UINT64_MAX, told, 1);
    assert_true(mc_locations_get(&places, key_of(3, 4), 9, &known));
    assert_int_equal(known.count, 1);
    assert_int_equal(known.length, UINT64_MAX);
    assert_int_equal(known.places[0].segment, UINT32_MAX);
    assert_int_equal(known.places[0].slot, 7);
    assert_int_equal(known.places[0].offset, 1ull << 60);
    assert_int_equal(mc_place_version(&known.places[0]), UINT64_MAX - MC_REPLICA_COUNT_MAX + 1);
    assert_false(mc_locations_get(&places, key_of(3, 4), 10, &known));
    assert_false(mc_locations_get(&places, key_of(3, 4), 8, &known));
    assert_false(mc_locations_get(&places, key_of(3, 5), 9, &known)); /* the same entry, another key */
    /* Of three the two of the lowest segments, in whatever order they are told. */
    for (unsigned turn = 0; turn < 3; turn++) {
        struct mc_place first = told[0];
        told[0] = told[1];
        told[1] = told[2];
        told[2] = first;
        mc_locations_put(&places, key_of(3, 4), 9, 5, told, 3);
        assert_true(mc_locations_get(&places, key_of(3, 4), 9, &known));
        assert_int_equal(known.count, 2);
        assert_int_equal(known.places[0].segment, 5);
        assert_int_equal(known.places[1].segment, 9);
        assert_int_equal(known.places[1].offset, 192);
        assert_int_equal(mc_place_version(&known.places[1]), 1);
    }
    /* One less than before: the second is gone. */
    mc_locations_put(&places, key_of(3, 4), 9, 5, told, 1);
    assert_true(mc_locations_get(&places, key_of(3, 4), 9, &known));
    assert_int_equal(known.count, 1);
    /* With the tag that was told last. */
    for (uint64_t tag = 1; tag < 4; tag++) {
        told[0].tag = tag;
        told[1].tag = ~tag;
        mc_locations_put(&places, key_of(3, 4), 9, 5, told, 1 + tag % 2);
        assert_true(mc_locations_get(&places, key_of(3, 4), 9, &known));
        assert_int_equal(known.count, 1 + tag % 2);
        for (uint32_t i = 0; i < known.count; i++)
            assert_true(known.places[i].tag == (known.places[i].segment == told[0].segment ? tag : ~tag));
    }
    /* The last one told has the entry. */
    mc_locations_put(&places, key_of(3 + MC_LOCATIONS_ENTRIES, 4), 9, 5, told, 1);
    assert_false(mc_locations_get(&places, key_of(3, 4), 9, &known));
    mc_locations_drop(&places, key_of(3, 4)); /* not the one that is there */
    assert_true(mc_locations_get(&places, key_of(3 + MC_LOCATIONS_ENTRIES, 4), 9, &known));
    mc_locations_drop(&places, key_of(3 + MC_LOCATIONS_ENTRIES, 4));
    assert_false(mc_locations_get(&places, key_of(3 + MC_LOCATIONS_ENTRIES, 4), 9, &known));
    mc_locations_free(&places);
}

struct worker {
    struct mc_locations *places;
    unsigned number;
    unsigned torn, hits;
};

/* All fields of an entry are made from one number, so a mixture of two shows. */
static void *work(void *argument)
{
    struct worker *worker = argument;
    struct mc_known known;
    uint64_t random = worker->number * 7919 + 1;
    for (unsigned i = 0; i < TURNS; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint64_t low = random >> 58, value = random >> 20 | 1; /* KEYS entries, two keys each */
        struct mc_hash key = key_of(low % KEYS, random & 1);
        if ((random & 6) == 0)
            mc_locations_drop(worker->places, key);
        else if ((random & 2) != 0) {
            struct mc_place place = {(uint32_t)value, (uint32_t)(value >> 1),     value, value * 192,
                                     value % 16,      value % 3 == 0 ? 0 : ~value};
            mc_locations_put(worker->places, key, 1, value * 5, &place, 1);
        } else if (mc_locations_get(worker->places, key, 1, &known)) {
            value = known.places[0].generation;
            worker->hits++;
            worker->torn += known.count != 1 || known.length != value * 5 || known.places[0].offset != value * 192 ||
                            known.places[0].replica != value % 16 || known.places[0].segment != (uint32_t)value ||
                            known.places[0].slot != (uint32_t)(value >> 1) ||
                            known.places[0].tag != (value % 3 == 0 ? 0 : ~value);
        }
    }
    return NULL;
}

static void many_threads_never_see_a_mixture(void **state)
{
    struct mc_locations places = {.table = NULL};
    struct worker workers[THREADS];
    pthread_t threads[THREADS];
    (void)state;
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.places = &places, .number = i};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    unsigned hits = 0;
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].torn, 0);
        hits += workers[i].hits;
    }
    assert_true(hits > TURNS / 100);
    mc_locations_free(&places);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(empty_knows_nothing),
        cmocka_unit_test(what_was_told_is_known_under_its_epoch),
        cmocka_unit_test(many_threads_never_see_a_mixture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
