/* Values that are stored on disks shortly before they are evicted, and where those go that were loaded from there. */
#include "core_moves.h"

#define ALL 700u /* values put, nearly three times what fits */

struct side { /* a store node whose disk does only so much */
    struct world world;
    struct world_store store;
    uint32_t disk;
    uint64_t length;      /* of what is put */
    unsigned stores_left; /* that it does at once, */
    struct moves waiting; /* and what it does later */
    unsigned stored, told;
};

static struct side the_side;

static struct side *open_with(const char *policy, struct mc_core_config *config)
{
    struct side *side = &the_side;
    *side = (struct side){.stores_left = UINT32_MAX, .length = OBJECT};
    config->offload = MC_OFFLOAD_ON_EVICT;
    config->policy = mc_eviction_find(policy);
    world_open_with(&side->world, config);
    side->store = world_store(&side->world, NODE_A, MIB, "a");
    struct mc_wire_mount mount = disk_mount(DISK_A);
    side->disk = world_mount(&side->world, side->store.owner, &mount).segment;
    assert_int_not_equal(side->disk, 0);
    return side;
}

static struct side *open_side(const char *policy)
{
    struct mc_core_config config = mc_core_config_default();
    return open_with(policy, &config);
}

static void close_side(struct side *side)
{
    world_check(&side->world);
    world_close_all(&side->world);
}

/* It does, or keeps for later, what one frame says. */
static void hear(struct side *side, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_segment head;
    static struct world_told told;
    mc_wire_segment_read(&reader, &head);
    told = (struct world_told){.segment = head.segment, .count = mc_list_read(&reader)};
    struct moves moves = {.type = frame->type, .segment = head.segment, .count = told.count};
    for (uint32_t i = 0; i < told.count; i++) {
        if (frame->type == MC_MESSAGE_CLEAR)
            mc_wire_slot_read(&reader, &told.slots[i]);
        else if (frame->type == MC_MESSAGE_STORE)
            mc_wire_store_item_read(&reader, &moves.stores[i]);
        else
            mc_wire_load_item_read(&reader, &moves.loads[i]);
    }
    if (frame->type == MC_MESSAGE_CLEAR)
        world_owner_says(&side->world, side->store.owner, MC_MESSAGE_CLEARED, &told);
    for (uint32_t i = 0; i < moves.count && frame->type != MC_MESSAGE_CLEAR; i++) {
        bool is_store = frame->type == MC_MESSAGE_STORE;
        side->told += is_store;
        if (is_store && side->stores_left == 0) {
            assert_true(side->waiting.count < MC_BATCH_MAX);
            side->waiting.type = MC_MESSAGE_STORE;
            side->waiting.segment = head.segment;
            side->waiting.stores[side->waiting.count++] = moves.stores[i];
            continue;
        }
        side->stores_left -= is_store;
        side->stored += is_store;
        struct mc_wire_place place = place_of(&moves, i);
        world_live(&side->world, side->store.owner, &place);
    }
}

static void obey(struct side *side)
{
    for (struct mc_frame frame = world_receive(&side->world, side->store.owner); frame.type != 0;
         frame = world_receive(&side->world, side->store.owner)) {
        assert_true(frame.type == MC_MESSAGE_CLEAR || frame.type == MC_MESSAGE_STORE || frame.type == MC_MESSAGE_LOAD);
        hear(side, &frame);
    }
}

/* No put fails, however the disk is. */
static void put_one(struct side *side, const char *key, const struct world_wish *wish)
{
    struct mc_wire_place place;
    int32_t code = MC_ERR_SPACE_SOON;
    for (unsigned again = 0; code == MC_ERR_SPACE_SOON && again < 10; again++) {
        code = world_grant(&side->world, side->store.call, PUT_1, key, side->length, wish, &place);
        if (code != 0)
            obey(side);
    }
    assert_int_equal(code, 0);
    world_live(&side->world, side->store.owner, &place);
    assert_int_equal(world_put_done(&side->world, side->store.call, PUT_1), 0);
    obey(side);
}

static void put_all(struct side *side, const char *prefix, unsigned from, unsigned to)
{
    char key[32];
    for (unsigned i = from; i < to; i++)
        put_one(side, world_name(key, prefix, i), NULL);
}

static bool in_memory(const struct side *side, const char *key)
{
    struct mc_core_replica replicas[MC_REPLICA_COUNT_MAX];
    int count = mc_core_query(side->world.core, mc_span_string(key), replicas, MC_REPLICA_COUNT_MAX);
    bool found = false;
    for (int i = 0; i < count; i++)
        found |= !replicas[i].is_on_disk;
    return found;
}

/* As if memory had been full of other things. */
static void forget(struct side *side, const char *key)
{
    struct mc_object *object = mc_object_find(side->world.core, mc_span_string(key));
    struct mc_replica at = mc_replica_first(side->world.core, object);
    while (at.segment->kind != MC_SEGMENT_MEMORY)
        at = mc_replica_next(side->world.core, at);
    mc_object_lose_replica(side->world.core, object, at.segment, at.slot);
    (void)mc_core_tick(side->world.core, side->world.now);
    obey(side);
    assert_false(in_memory(side, key));
}

/* Reads it to the end. */
static int32_t read_one(struct side *side, const char *key)
{
    int32_t code = MC_ERR_PUT_IN_PROGRESS;
    for (unsigned again = 0; code == MC_ERR_PUT_IN_PROGRESS && again < 10; again++) {
        code = world_get(&side->world, side->store.call, key, 0, NULL, NULL);
        if (code != 0)
            obey(side);
    }
    (void)world_get(&side->world, side->store.call, "none", 0, NULL, NULL);
    return code;
}

static const char *const policies[] = {"lru", "clock", "s3fifo"};

/* Nothing is stored while memory is empty; then what is evicted is on the disk before it goes, and little else is. */
static void test_nothing_is_lost(void **state)
{
    char key[32];
    (void)state;
    for (unsigned p = 0; p < 3; p++) {
        struct side *side = open_side(policies[p]);
        put_all(side, "k", 0, 150);
        assert_int_equal(side->stored, 0);
        put_all(side, "k", 150, ALL);
        struct mc_core_statistics statistics = statistics_of(&side->world);
        assert_true(statistics.evicted_objects > ALL / 2);
        assert_int_equal(statistics.offload_late, 0);
        assert_int_equal(statistics.offload_ahead, side->stored);
        assert_true(side->stored >= statistics.evicted_objects);
        /* An eighth of what fits, for each of two lists, and what was begun and turned back. */
        assert_true(side->stored < statistics.evicted_objects + 80);
        for (unsigned i = 0; i < ALL; i++)
            assert_int_equal(read_one(side, world_name(key, "k", i)), 0);
        close_side(side);
    }
}

/* Of few large ones, each is a large part of what fits. */
static void test_large_ones(void **state)
{
    char key[32];
    (void)state;
    for (unsigned p = 0; p < 3; p++) {
        struct side *side = open_side(policies[p]);
        side->length = MIB / 16;
        put_all(side, "k", 0, 7);
        assert_int_equal(side->stored, 0);
        put_all(side, "k", 7, 60);
        assert_int_equal(statistics_of(&side->world).offload_late, 0);
        for (unsigned i = 0; i < 60; i++)
            assert_int_equal(read_one(side, world_name(key, "k", i)), 0);
        assert_true(side->stored < 60);
        close_side(side);
    }
}

/* What was used is not stored while its turn does not come: it is kept. */
static void test_used_are_not_stored(void **state)
{
    char key[32];
    (void)state;
    for (unsigned p = 0; p < 3; p++) {
        struct side *side = open_side(policies[p]);
        put_all(side, "u", 0, 20);
        for (unsigned i = 0; i < 600; i++) {
            if (i % 20 == 0)
                for (unsigned k = 0; k < 20; k++)
                    assert_int_equal(world_exist(&side->world, side->store.call, world_name(key, "u", k)), 1);
            put_one(side, world_name(key, "k", i), NULL);
        }
        unsigned stored = 0;
        for (unsigned k = 0; k < 20; k++) {
            assert_true(in_memory(side, world_name(key, "u", k)));
            stored += on_disk(&side->world, key);
        }
        assert_int_equal(stored, 0);
        assert_int_equal(statistics_of(&side->world).offload_late, 0);
        close_side(side);
    }
}

/* No put waits for a disk that does nothing: what it did not get in time is dropped, and counted. */
static void test_disk_stands_still(void **state)
{
    (void)state;
    for (unsigned force = 0; force < 2; force++)
        for (unsigned p = 0; p < 3; p++) {
            struct mc_core_config config = mc_core_config_default();
            config.offload_force_evict = force != 0;
            config.offload_queue_limit = 60;
            struct side *side = open_with(policies[p], &config);
            side->stores_left = 0;
            put_all(side, "k", 0, ALL);
            struct mc_core_statistics statistics = statistics_of(&side->world);
            assert_true(statistics.evicted_objects > ALL / 2);
            assert_int_equal(statistics.offload_late, statistics.evicted_objects);
            assert_int_equal(statistics.offload_done, 0);
            if (force == 0) /* what was begun is still there, and can be ended */
                assert_int_equal(statistics.offload_failed, 0);
            else
                assert_true(statistics.offload_failed > 0);
            close_side(side);
        }
}

/* All of memory is on its way to a disk that does nothing: puts go on. */
static void test_all_are_on_their_way(void **state)
{
    (void)state;
    for (unsigned p = 0; p < 3; p++) {
        struct mc_core_config config = mc_core_config_default();
        struct side *side = open_with(policies[p], &config);
        side->stores_left = 0;
        put_all(side, "k", 0, 60);
        for (unsigned i = 0; i < 60; i++) {
            char key[32];
            (void)mc_offload_store(side->world.core,
                                   mc_object_find(side->world.core, mc_span_string(world_name(key, "k", i))));
        }
        side->stores_left = UINT32_MAX;
        struct mc_wire_place place;
        for (unsigned i = 60; i < 500; i++) { /* its owner does not look at them */
            char key[32];
            int32_t code =
                world_grant(&side->world, side->store.call, PUT_1, world_name(key, "k", i), OBJECT, NULL, &place);
            assert_true(code == 0 || code == MC_ERR_SPACE_SOON);
            if (code == 0) {
                world_live(&side->world, side->store.owner, &place);
                assert_int_equal(world_put_done(&side->world, side->store.call, PUT_1), 0);
            }
        }
        obey(side);
        put_one(side, "last", NULL);
        close_side(side);
    }
}

/* Evictions fill only their part of the queue, and go on when it has room again. */
static void test_part_of_the_queue(void **state)
{
    struct mc_core_config config = mc_core_config_default();
    (void)state;
    config.offload_queue_limit = 8;
    config.offload_cap_ratio = 0.5;
    struct side *side = open_with("lru", &config);
    side->stores_left = 0;
    put_all(side, "k", 0, 260);
    assert_int_equal(side->told, 4);
    assert_int_equal(side->waiting.count, 4);
    for (unsigned round = 0; round < 10; round++) {
        struct mc_wire_place place = place_of(&side->waiting, 0);
        memmove(&side->waiting.stores[0], &side->waiting.stores[1],
                --side->waiting.count * sizeof(side->waiting.stores[0]));
        world_live(&side->world, side->store.owner, &place);
        obey(side);
        assert_int_equal(side->told, 5 + round); /* no put was needed for that */
        world_check(&side->world);
    }
    char key[32]; /* others may take the rest of it */
    for (unsigned i = 0; i < 6; i++)
        assert_int_equal(
            mc_offload_store(side->world.core,
                             mc_object_find(side->world.core, mc_span_string(world_name(key, "k", 250 + i)))),
            i < 4);
    close_side(side);

    config.offload_queue_limit = 1; /* a small part is one all the same */
    config.offload_cap_ratio = 0.5;
    side = open_with("lru", &config);
    put_all(side, "k", 0, 260);
    assert_true(side->told > 0);
    close_side(side);

    config.offload_cap_ratio = 0; /* none for evictions */
    side = open_with("lru", &config);
    put_all(side, "k", 0, ALL);
    assert_int_equal(side->told, 0);
    assert_int_equal(statistics_of(&side->world).offload_late, statistics_of(&side->world).evicted_objects);
    close_side(side);
}

/* What lies on the disk already goes from memory a second time without being written again. */
static void test_written_once(void **state)
{
    struct side *side = open_side("s3fifo");
    char key[32];
    (void)state;
    put_all(side, "k", 0, ALL);
    unsigned stored = side->stored;
    for (unsigned round = 0; round < 3; round++)
        for (unsigned i = 0; i < 300; i++)
            assert_int_equal(read_one(side, world_name(key, "k", i)), 0);
    for (unsigned i = 0; i < 300; i++)
        assert_int_equal(on_disk(&side->world, world_name(key, "k", i)), 1);
    assert_true(side->stored <= ALL);
    assert_true(side->stored - stored <= ALL - stored);
    assert_int_equal(statistics_of(&side->world).offload_late, 0);
    close_side(side);
}

/* Its members go together, so they are stored together, wherever they are in the order. */
static void test_group(void **state)
{
    struct side *side = open_side("lru");
    struct world_wish wish = {.group = 7};
    char key[32];
    (void)state;
    for (unsigned i = 0; i < 40; i++) { /* among others: the youngest are far from the end */
        put_one(side, world_name(key, "g", i), &wish);
        put_all(side, "n", i * 5, i * 5 + 5);
    }
    for (unsigned i = 0; i < 10 && side->stored == 0; i++)
        put_all(side, "m", i * 4, i * 4 + 4);
    put_all(side, "x", 0, 4);
    for (unsigned i = 0; i < 40; i++)
        assert_int_equal(on_disk(&side->world, world_name(key, "g", i)), 1);
    put_all(side, "k", 0, ALL);
    for (unsigned i = 0; i < 40; i++)
        assert_int_equal(read_one(side, world_name(key, "g", i)), 0);
    assert_int_equal(statistics_of(&side->world).offload_late, 0);
    close_side(side);
}

/* Those that are on the disk already do not have all the others looked at each time. */
static void test_stored_group(void **state)
{
    struct side *side = open_side("lru");
    struct world_wish wish = {.group = 7};
    char key[32];
    (void)state;
    for (unsigned i = 0; i < 40; i++)
        put_one(side, world_name(key, "g", i), &wish);
    for (unsigned i = 0; i < 40; i++)
        (void)mc_offload_store(side->world.core,
                               mc_object_find(side->world.core, mc_span_string(world_name(key, "g", i))));
    world_settle(&side->world, 100);
    obey(side);
    assert_int_equal(side->stored, 40);
    struct mc_object *first = mc_object_find(side->world.core, mc_span_string("g0"));
    struct mc_group *group = mc_object_group(first);
    const struct mc_object *next = group->first;
    for (unsigned i = 0; i < MC_AHEAD_VAIN; i++)
        next = mc_object_membership(next)->next;
    const struct mc_segment *memory = mc_segment_find(side->world.core, side->store.segment);
    assert_true(mc_offload_ahead(side->world.core, memory->member, first));
    assert_ptr_equal(group->first, next);
    close_side(side);
}

/* ---- where goes what was loaded ---- */

/* "v" lies on the disk only. */
static void send_to_disk(struct side *side, unsigned from)
{
    for (unsigned i = from; in_memory(side, "v"); i++)
        put_all(side, "n", i, i + 1);
    assert_int_equal(on_disk(&side->world, "v"), 1);
}

/* Is it still there after a quarter of what fits was put? */
static bool outlives(struct side *side, const char *prefix)
{
    put_all(side, prefix, 0, 65);
    return in_memory(side, "v");
}

static void test_loaded_goes_first(void **state)
{
    (void)state;
    for (unsigned p = 0; p < 3; p++) {
        struct side *side = open_side(policies[p]);
        put_one(side, "v", NULL);
        send_to_disk(side, 0);
        assert_int_equal(read_one(side, "v"), 0);
        assert_true(in_memory(side, "v"));
        assert_false(outlives(side, "a"));
        assert_int_equal(read_one(side, "v"), 0);
        assert_int_equal(read_one(side, "v"), 0); /* somebody else, while it is there: that is a use */
        assert_true(outlives(side, "b"));
        struct mc_core_statistics statistics = statistics_of(&side->world);
        assert_int_equal(statistics.promotion_done, 2);
        assert_int_equal(statistics.promotion_admitted + statistics.promotion_rare + statistics.promotion_capped, 0);
        close_side(side);
    }
}

/* Many that are loaded for one reader do not push out each other. */
static void test_loaded_together(void **state)
{
    struct side *side = open_side("s3fifo");
    char key[32];
    unsigned found = 0;
    (void)state;
    put_all(side, "v", 0, 30);
    put_all(side, "n", 0, 400);
    for (unsigned i = 0; i < 30; i++)
        assert_int_equal(world_get(&side->world, side->store.call, world_name(key, "v", i), 0, NULL, NULL),
                         MC_ERR_PUT_IN_PROGRESS);
    obey(side);
    for (unsigned i = 0; i < 30; i++)
        found += world_get(&side->world, side->store.call, world_name(key, "v", i), 0, NULL, NULL) == 0;
    assert_int_equal(found, 30);
    close_side(side);
}

static void test_promotion(void **state)
{
    (void)state;
    for (unsigned p = 0; p < 3; p++) {
        struct mc_core_config config = mc_core_config_default();
        config.promotion_on_hit = true;
        config.promotion_per_heartbeat = 1;
        struct side *side = open_with(policies[p], &config);
        put_one(side, "v", NULL);
        send_to_disk(side, 0);
        assert_int_equal(read_one(side, "v"), 0);
        assert_int_equal(statistics_of(&side->world).promotion_rare, 1);
        assert_false(outlives(side, "a"));
        assert_int_equal(read_one(side, "v"), 0);
        assert_int_equal(statistics_of(&side->world).promotion_admitted, 1);
        assert_true(outlives(side, "b"));
        forget(side, "v");
        assert_int_equal(read_one(side, "v"), 0); /* a second one before the next heartbeat */
        assert_int_equal(statistics_of(&side->world).promotion_admitted, 1);
        assert_int_equal(statistics_of(&side->world).promotion_capped, 1);
        close_side(side);
    }
}

static void test_promotion_queue(void **state)
{
    struct mc_core_config config = mc_core_config_default();
    (void)state;
    config.promotion_on_hit = true;
    config.promotion_threshold = 1;
    config.promotion_per_heartbeat = 100;
    config.promotion_queue_limit = 1;
    struct side *side = open_with("lru", &config);
    put_all(side, "v", 0, 2);
    put_all(side, "n", 0, 400);
    assert_int_equal(world_get(&side->world, side->store.call, "v0", 0, NULL, NULL), MC_ERR_PUT_IN_PROGRESS);
    assert_int_equal(world_get(&side->world, side->store.call, "v1", 0, NULL, NULL), MC_ERR_PUT_IN_PROGRESS);
    assert_int_equal(statistics_of(&side->world).promotion_admitted, 1);
    assert_int_equal(statistics_of(&side->world).promotion_capped, 1);
    obey(side);
    close_side(side);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_lost),      cmocka_unit_test(test_large_ones),
        cmocka_unit_test(test_used_are_not_stored),  cmocka_unit_test(test_disk_stands_still),
        cmocka_unit_test(test_all_are_on_their_way), cmocka_unit_test(test_part_of_the_queue),
        cmocka_unit_test(test_written_once),         cmocka_unit_test(test_group),
        cmocka_unit_test(test_stored_group),         cmocka_unit_test(test_loaded_goes_first),
        cmocka_unit_test(test_loaded_together),      cmocka_unit_test(test_promotion),
        cmocka_unit_test(test_promotion_queue),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
