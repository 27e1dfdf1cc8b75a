/* Copies that a client keeps of what it reads often: bounded, compared each time, and never of a value that is over. */
#include "store/client/hot.h"
#include "store/client/state.h"
#include "store_rig.h"

#include <pthread.h>

#define MIB (1ull << 20)
#define NODE_BYTES (96 * MIB)
#define LENGTH (256u << 10) /* several blocks */
#define BLOCK 65536u

/* ---- alone ---- */

static const struct mc_hash key_a = {1, 11}, key_b = {2, 22}, key_c = {3, 33};

static struct mc_hot_value *keep(struct mc_hot *hot, struct mc_hash key, uint64_t version, uint64_t length)
{
    struct mc_hot_value *value = mc_hot_begin(hot, key, version, length);
    if (value == NULL)
        return NULL;
    assert_int_equal(mc_hot_part(value)->iov_len, length);
    fill(mc_hot_part(value)->iov_base, length, version);
    mc_hot_keep(hot, value);
    mc_hot_leave(hot, value);
    return value;
}

static bool has(struct mc_hot *hot, struct mc_hash key, uint64_t version, uint64_t length)
{
    struct mc_hot_value *value = mc_hot_find(hot, key, version, length);
    if (value != NULL)
        mc_hot_leave(hot, value);
    return value != NULL;
}

static int read_range(struct mc_hot *hot, struct mc_hot_value *value, uint64_t offset, struct iovec *parts,
                      size_t part_count)
{
    struct mc_transfer transfer = {
        .offset = offset, .length = mc_parts_length(parts, part_count), .parts = parts, .part_count = part_count};
    struct mc_run run = {.deadline_ns = UINT64_MAX};
    return mc_hot_read(hot, value, &transfer, &run);
}

static void copies_are_bounded(void **state)
{
    const struct mc_hot_limits limits = {.bytes = 2 * MIB + 4096, .value_bytes = MIB, .reads = 1};
    struct mc_hot *hot = mc_hot_create(&limits);
    (void)state;
    assert_null(mc_hot_begin(hot, key_a, 1, MIB + 1)); /* too large */
    assert_null(mc_hot_begin(hot, key_a, 1, BLOCK));   /* to ask its owner costs as much */
    assert_int_equal(mc_hot_bytes(hot), 0);
    assert_non_null(keep(hot, key_a, 1, MIB));
    assert_non_null(keep(hot, key_b, 1, MIB));
    assert_in_range(mc_hot_bytes(hot), 2 * MIB, limits.bytes);
    assert_true(has(hot, key_a, 1, MIB)); /* now b is the older one */
    assert_non_null(keep(hot, key_c, 1, MIB));
    assert_true(has(hot, key_a, 1, MIB) && has(hot, key_c, 1, MIB));
    assert_false(has(hot, key_b, 1, MIB));
    /* What is read stays until it has been read; then there is room. */
    struct mc_hot_value *a = mc_hot_find(hot, key_a, 1, MIB), *c = mc_hot_find(hot, key_c, 1, MIB);
    assert_null(mc_hot_begin(hot, key_b, 1, MIB));
    assert_int_equal(((uint8_t *)mc_hot_part(a)->iov_base)[12345], ((uint8_t *)mc_hot_part(c)->iov_base)[12345]);
    mc_hot_leave(hot, a);
    mc_hot_leave(hot, c);
    assert_true(has(hot, key_a, 1, MIB) && has(hot, key_c, 1, MIB));
    assert_non_null(keep(hot, key_b, 1, MIB));
    assert_false(has(hot, key_a, 1, MIB));
    /* One that was begun and not kept is found by nobody, and leaves nothing. */
    struct mc_hot_value *begun = mc_hot_begin(hot, key_a, 1, 2 * BLOCK);
    assert_non_null(begun);
    assert_false(has(hot, key_a, 1, 2 * BLOCK));
    uint64_t before = mc_hot_bytes(hot);
    mc_hot_leave(hot, begun);
    assert_true(mc_hot_bytes(hot) < before - BLOCK);
    mc_hot_free(hot);
}

static void only_what_is_read_often_and_the_newest_version(void **state)
{
    const struct mc_hot_limits limits = {.bytes = 8 * MIB, .value_bytes = MIB, .reads = 3};
    struct mc_hot *hot = mc_hot_create(&limits);
    (void)state;
    assert_null(keep(hot, key_a, 7, LENGTH));
    assert_null(keep(hot, key_a, 7, LENGTH));
    assert_non_null(keep(hot, key_a, 7, LENGTH));
    assert_true(has(hot, key_a, 7, LENGTH));
    assert_false(has(hot, key_a, 7, LENGTH + 1));
    assert_false(has(hot, key_a, 6, LENGTH)); /* a master of before, perhaps: the copy stays */
    assert_true(has(hot, key_a, 7, LENGTH));
    assert_non_null(keep(hot, key_a, 6, LENGTH)); /* and an older value does not take its place */
    assert_true(has(hot, key_a, 7, LENGTH));
    assert_false(has(hot, key_a, 8, LENGTH)); /* it is over, and gives its room back */
    assert_false(has(hot, key_a, 7, LENGTH));
    assert_int_equal(mc_hot_bytes(hot), 0);
    mc_hot_free(hot);
}

static void wrong_bytes_are_never_given(void **state)
{
    const struct mc_hot_limits limits = {.bytes = 8 * MIB, .value_bytes = MIB, .reads = 1};
    struct mc_hot *hot = mc_hot_create(&limits);
    static uint8_t data[LENGTH], back[LENGTH];
    (void)state;
    fill(data, LENGTH, 5);
    assert_non_null(keep(hot, key_a, 5, LENGTH));
    struct mc_hot_value *value = mc_hot_find(hot, key_a, 5, LENGTH);
    struct iovec parts[2] = {{back, 70000}, {back + 70000, LENGTH - 70000}};
    assert_int_equal(read_range(hot, value, 0, parts, 2), 0);
    assert_memory_equal(back, data, LENGTH);
    parts[0] = (struct iovec){back, 1000};
    assert_int_equal(read_range(hot, value, BLOCK - 500, parts, 1), 0);
    assert_memory_equal(back, data + BLOCK - 500, 1000);
    ((uint8_t *)mc_hot_part(value)->iov_base)[3 * BLOCK + 7] ^= 4;
    assert_int_equal(read_range(hot, value, 0, parts, 1), 0); /* another block */
    assert_true(has(hot, key_a, 5, LENGTH));
    assert_int_equal(read_range(hot, value, 3 * BLOCK, parts, 1), MC_ERR_CHECKSUM_MISMATCH);
    assert_false(has(hot, key_a, 5, LENGTH));
    mc_hot_leave(hot, value);
    assert_int_equal(mc_hot_bytes(hot), 0);
    mc_hot_free(hot);
}

/* ---- in a client, with a node of another process ---- */

static struct process node;
static struct mc_store *writer, *reader;

static int open_all(void **state)
{
    (void)state;
    start_master(0);
    node = start_node(NODE_BYTES);
    writer = open_client("tcp", 0);
    setenv("MC_STORE_LOCAL_HOT_CACHE_SIZE", "33554432", 1);
    reader = open_client("tcp", 0);
    unsetenv("MC_STORE_LOCAL_HOT_CACHE_SIZE");
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    mc_store_close(reader);
    mc_store_close(writer);
    stop(&node, SIGTERM);
    stop(&master, SIGTERM);
    return 0;
}

static struct mc_store_statistics now_of(struct mc_store *store)
{
    struct mc_store_statistics statistics;
    mc_store_statistics(store, &statistics);
    return statistics;
}

static int upsert(struct mc_store *store, const char *key, const void *data, size_t length)
{
    struct iovec part = {(void *)(uintptr_t)data, length};
    struct mc_put_item item = {.key = key_of(key), .parts = &part, .part_count = 1};
    (void)mc_store_upsert(store, &item, 1, NULL);
    return item.result;
}

static void the_third_read_costs_one_block(void **state)
{
    static uint8_t data[MIB], back[MIB];
    (void)state;
    fill(data, MIB, 1);
    assert_int_equal(put(writer, "third", data, MIB), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(get(reader, "third", back, MIB), MIB);
    struct mc_store_statistics before = now_of(reader), now;
    assert_int_equal(before.hot_hits, 0);
    assert_in_range(before.hot_bytes, MIB, MIB + 4096);
    assert_in_range(before.path_bytes[2], 2 * MIB, 2 * MIB + BLOCK);
    memset(back, 0, MIB);
    assert_int_equal(get(reader, "third", back, MIB), MIB);
    assert_memory_equal(back, data, MIB);
    struct mc_range_item range = {.key = key_of("third"), .source_offset = 500000, .size = 3000, .target = back};
    mc_store_get_ranges(reader, &range, 1);
    assert_int_equal(range.result, 3000);
    assert_memory_equal(back, data + 500000, 3000);
    now = now_of(reader);
    assert_int_equal(now.hot_hits, 2);
    assert_true(now.path_bytes[2] - before.path_bytes[2] <= 2 * BLOCK);
    assert_int_equal(now_of(writer).hot_bytes, 0); /* it was not asked to */
    /* Memory that is too small is told as ever. */
    assert_int_equal(get(reader, "third", back, 1000), MC_ERR_INVALID_PARAMS);
}

static void what_was_replaced_or_removed_is_not_given(void **state)
{
    static uint8_t data[LENGTH], back[LENGTH];
    (void)state;
    for (uint64_t round = 0; round < 20; round++) {
        fill(data, LENGTH, round);
        assert_int_equal(upsert(writer, "over", data, LENGTH), 0);
        for (int i = 0; i < 4; i++) {
            memset(back, 0, LENGTH);
            assert_int_equal(get(reader, "over", back, LENGTH), LENGTH);
            assert_memory_equal(back, data, LENGTH);
        }
    }
    struct mc_store_statistics before = now_of(reader);
    assert_true(before.hot_hits >= 20);
    assert_int_equal(remove_key(writer, "over", true), 0);
    assert_int_equal(get(reader, "over", back, LENGTH), MC_ERR_OBJECT_NOT_FOUND);
    assert_int_equal(now_of(reader).hot_hits, before.hot_hits);
    fill(data, LENGTH, 99);
    assert_int_equal(put(writer, "over", data, LENGTH), 0);
    assert_int_equal(get(reader, "over", back, LENGTH), LENGTH);
    assert_memory_equal(back, data, LENGTH);
}

static void a_copy_that_rots_is_read_from_its_owner(void **state)
{
    static uint8_t data[LENGTH], back[LENGTH];
    (void)state;
    fill(data, LENGTH, 3);
    assert_int_equal(put(writer, "rots", data, LENGTH), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(get(reader, "rots", back, LENGTH), LENGTH);
    struct mc_replica_description description;
    assert_int_equal(mc_store_describe(reader, key_of("rots"), &description, 1), 1);
    struct mc_known known;
    struct mc_hash hash = mc_hash("rots", 4);
    assert_true(mc_locations_get(&reader->locations, hash, atomic_load(&reader->epoch), &known));
    struct mc_hot_value *value = mc_hot_find(reader->hot, hash, mc_place_version(&known.places[0]), LENGTH);
    assert_non_null(value);
    ((uint8_t *)mc_hot_part(value)->iov_base)[BLOCK + 1] ^= 1;
    mc_hot_leave(reader->hot, value);
    struct mc_store_statistics before = now_of(reader);
    memset(back, 0, LENGTH);
    assert_int_equal(get(reader, "rots", back, LENGTH), LENGTH);
    assert_memory_equal(back, data, LENGTH);
    assert_int_equal(now_of(reader).hot_hits, before.hot_hits);
    assert_int_equal(exist(reader, "rots"), 1); /* and nobody was accused */
}

struct race {
    _Atomic uint32_t acknowledged;
    _Atomic bool ended;
};

/* Each value is its number, again and again. */
static void *race_reader(void *argument)
{
    struct race *race = argument;
    uint32_t *back = malloc(LENGTH);
    while (!atomic_load(&race->ended)) {
        uint32_t least = atomic_load(&race->acknowledged);
        int64_t got = get(reader, "race", back, LENGTH);
        assert_int_equal(got, LENGTH);
        assert_true(back[0] >= least);
        for (size_t i = 1; i < LENGTH / sizeof(*back); i++)
            assert_int_equal(back[i], back[0]);
    }
    free(back);
    return NULL;
}

static void readers_never_see_less_than_was_acknowledged(void **state)
{
    struct race race = {0};
    pthread_t threads[3];
    uint32_t *data = calloc(1, LENGTH);
    (void)state;
    assert_int_equal(upsert(writer, "race", data, LENGTH), 0);
    uint64_t before = now_of(reader).hot_hits;
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, race_reader, &race), 0);
    for (uint32_t number = 1; number <= 200; number++) {
        for (size_t i = 0; i < LENGTH / sizeof(*data); i++)
            data[i] = number;
        assert_int_equal(upsert(writer, "race", data, LENGTH), 0);
        atomic_store(&race.acknowledged, number);
        usleep(number % 4 * 1000);
    }
    atomic_store(&race.ended, true);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    free(data);
    assert_true(now_of(reader).hot_hits > before);
}

int main(int argument_count, char **arguments)
{
    const struct CMUnitTest alone[] = {
        cmocka_unit_test(copies_are_bounded),
        cmocka_unit_test(only_what_is_read_often_and_the_newest_version),
        cmocka_unit_test(wrong_bytes_are_never_given),
    };
    const struct CMUnitTest together[] = {
        cmocka_unit_test(the_third_read_costs_one_block),
        cmocka_unit_test(what_was_replaced_or_removed_is_not_given),
        cmocka_unit_test(a_copy_that_rots_is_read_from_its_owner),
        cmocka_unit_test(readers_never_see_less_than_was_acknowledged),
    };
    if (argument_count == 4 && strcmp(arguments[1], "node") == 0)
        return node_main(arguments[2], arguments[3]);
    signal(SIGPIPE, SIG_IGN);
    if (realpath(arguments[0], self_path) == NULL)
        return 1;
    int failed = cmocka_run_group_tests_name("alone", alone, NULL, NULL);
    failed += cmocka_run_group_tests_name("together", together, open_all, close_all);
    stop(&master, SIGKILL); /* of a test that failed: it would keep our output open */
    return failed;
}
