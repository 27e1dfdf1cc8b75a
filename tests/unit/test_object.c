/* The table of objects against a model, its growth, and what a serial promises; the small map too. */
#include "store/core/map.h"
#include "store/core/object.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#define KEYS 3000u

static struct mc_span key_of(char text[64], unsigned number)
{
    int length = snprintf(text, 64, "%s%u", number % 3 == 0 ? "a/long/prefix/that/makes/another/size/" : "k", number);
    return mc_span(text, (size_t)length);
}

static void test_model(void **state)
{
    static struct mc_object *model[KEYS];
    struct mc_objects objects;
    char text[64];
    unsigned count = 0;
    (void)state;
    assert_true(mc_objects_init(&objects, 5));
    srand(17);
    for (unsigned step = 0; step < 60000; step++) {
        unsigned number = (unsigned)rand() % KEYS;
        struct mc_span key = key_of(text, number);
        assert_ptr_equal(mc_objects_find(&objects, key), model[number]);
        if (model[number] == NULL) {
            model[number] = mc_object_create(&objects, key);
            assert_non_null(model[number]);
            assert_true(mc_span_equal(mc_object_key(model[number]), key));
            assert_true(mc_objects_insert(&objects, model[number]));
            count++;
        } else {
            mc_objects_remove(&objects, model[number]);
            mc_object_free(&objects, model[number]);
            model[number] = NULL;
            count--;
        }
        assert_int_equal(objects.count, count);
        if (step % 4096 == 0)
            assert_null(mc_objects_check(&objects));
    }
    for (unsigned number = 0; number < KEYS; number++)
        assert_ptr_equal(mc_objects_find(&objects, key_of(text, number)), model[number]);
    assert_null(mc_objects_check(&objects));
    mc_objects_destroy(&objects);
}

static void test_growth(void **state)
{
    struct mc_objects objects;
    char text[64];
    uint64_t before = 0;
    (void)state;
    assert_true(mc_objects_init(&objects, 9));
    for (unsigned number = 0; number < 100000; number++) {
        struct mc_object *object = mc_object_create(&objects, key_of(text, number));
        assert_true(object != NULL && mc_objects_insert(&objects, object));
        assert_true(objects.bucket_count <= (before == 0 ? MC_BUCKETS_MIN + 1 : before + 1)); /* one at a time */
        before = objects.bucket_count;
    }
    assert_null(mc_objects_check(&objects));
    assert_true(objects.bucket_count * MC_BUCKET_LOAD_TENTHS >= 100000 * 10);
    for (unsigned number = 0; number < 100000; number++)
        assert_non_null(mc_objects_find(&objects, key_of(text, number)));
    for (unsigned number = 0; number < 100000; number++) {
        struct mc_object *object = mc_objects_find(&objects, key_of(text, number));
        mc_objects_remove(&objects, object);
        mc_object_free(&objects, object);
    }
    assert_int_equal(objects.count, 0);
    assert_int_equal(objects.overflow.in_use, 0);
    assert_null(mc_objects_check(&objects));
    mc_objects_destroy(&objects);
}

static void test_batch_finds_the_same(void **state)
{
    struct mc_objects objects;
    static char texts[1000][64];
    static struct mc_span keys[1000];
    static struct mc_object *found[1000];
    (void)state;
    assert_true(mc_objects_init(&objects, 1));
    for (unsigned number = 0; number < 1000; number++) {
        keys[number] = key_of(texts[number], number);
        if (number % 2 == 0) {
            struct mc_object *object = mc_object_create(&objects, keys[number]);
            assert_true(object != NULL && mc_objects_insert(&objects, object));
        }
    }
    for (size_t count = 0; count <= 1000; count += 333) {
        mc_objects_find_batch(&objects, keys, count, found, NULL);
        for (size_t i = 0; i < count; i++)
            assert_ptr_equal(found[i], mc_objects_find(&objects, keys[i]));
    }
    keys[0] = mc_span("", 0); /* a key nobody can have */
    mc_objects_find_batch(&objects, keys, 1, found, NULL);
    assert_null(found[0]);
    mc_objects_destroy(&objects);
}

static void test_serial(void **state)
{
    struct mc_objects objects;
    (void)state;
    assert_true(mc_objects_init(&objects, 1));
    struct mc_object *object = mc_object_create(&objects, mc_span_string("first"));
    uint32_t serial = object->serial;
    mc_object_free(&objects, object);
    assert_int_not_equal(object->serial, serial); /* readable after its death: type-stable */
    struct mc_object *again = mc_object_create(&objects, mc_span_string("other"));
    assert_ptr_equal(again, object);
    assert_int_not_equal(again->serial, serial);
    assert_int_equal(again->readers, 0);
    mc_object_free(&objects, again);
    mc_objects_destroy(&objects);
}

static void test_key_sizes(void **state)
{
    struct mc_objects objects;
    static char text[MC_KEY_LENGTH_MAX];
    static struct mc_object *made[MC_KEY_LENGTH_MAX + 1];
    (void)state;
    assert_true(mc_objects_init(&objects, 1));
    memset(text, 'x', sizeof(text));
    for (size_t length = 1; length <= MC_KEY_LENGTH_MAX; length++) {
        made[length] = mc_object_create(&objects, mc_span(text, length));
        assert_true(made[length] != NULL && mc_objects_insert(&objects, made[length]));
    }
    for (size_t length = 1; length <= MC_KEY_LENGTH_MAX; length++)
        assert_ptr_equal(mc_objects_find(&objects, mc_span(text, length)), made[length]);
    assert_null(mc_objects_check(&objects));
    mc_objects_destroy(&objects);
}

static void test_map(void **state)
{
    static bool there[512];
    struct mc_map map = {0};
    static int value;
    size_t count = 0;
    (void)state;
    srand(3);
    assert_null(mc_map_get(&map, 4));
    assert_null(mc_map_remove(&map, 4));
    for (unsigned step = 0; step < 50000; step++) {
        unsigned number = (unsigned)rand() % 512;
        uint64_t key = number % 2 == 0 ? number : (uint64_t)number << 40;
        assert_int_equal(mc_map_get(&map, key) != NULL, there[number]);
        if (there[number])
            assert_ptr_equal(mc_map_remove(&map, key), &value);
        else
            assert_true(mc_map_put(&map, key, &value));
        count += there[number] ? (size_t)-1 : 1;
        there[number] = !there[number];
        assert_int_equal(map.count, count);
    }
    for (unsigned number = 0; number < 512; number++)
        assert_int_equal(mc_map_get(&map, number % 2 == 0 ? number : (uint64_t)number << 40) != NULL, there[number]);
    mc_map_destroy(&map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model),  cmocka_unit_test(test_growth),    cmocka_unit_test(test_batch_finds_the_same),
        cmocka_unit_test(test_serial), cmocka_unit_test(test_key_sizes), cmocka_unit_test(test_map),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
