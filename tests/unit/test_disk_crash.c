/* A disk that is ended at any moment, by a kill or a power failure, over and over in one directory, against a model of
 * what it said. */
#include "disk_rig.h"

#include "env/clock.h"
#include "env/log.h"

#define OBJECTS_MAX 4096u
#define LIVES 3u
#define SEEDS_MIN 40u
#define SEED_FIRST 81u /* copies are made in 83, 97 and 109: among the fewest that are run, also by a slow machine */
#define ENOUGH_MS 8000u

enum known { NONE, STORING, STORED, REMOVING, REMOVED, EVICTED, LOST };
struct object {
    enum known known;
    uint64_t length;
    uint32_t slot, seen;
    bool must_be_there;
    struct answer answer;
    struct mc_disk_place place;
};
/* Index: the object's number; its generation is number + 1. */
struct model {
    struct answer answer; /* first: rig_list */
    struct object objects[OBJECTS_MAX];
    uint32_t count;
    struct mc_disk *disk;
    uint32_t stored, found, vanished, unread, removed, lost, copied;
};
static struct model model;

static void on_lost(void *context, const struct mc_disk_place *places, size_t count)
{
    struct model *self = context;
    self->lost += (uint32_t)count;
    for (size_t i = 0; i < count; i++) {
        uint64_t number = places[i].generation - 1;
        assert_true(number < self->count);
        struct object *object = &self->objects[number];
        if (object->known != REMOVED)
            object->known = LOST;
    }
}

static uint64_t length_of(uint64_t *seed)
{
    switch (random_below(seed, 8)) {
    case 0:
        return 1 + random_below(seed, 8);
    case 1:
        return MC_DISK_PAGE;
    case 2:
        return 65536 + random_below(seed, 3) - 1;
    case 3:
        return 1 + random_below(seed, 300000);
    case 4:
        return mc_disk_object_max(model.disk, MC_KEY_LENGTH_MAX);
    default:
        return 1 + random_below(seed, 40000);
    }
}

static void object_store(uint64_t *seed)
{
    char key[MC_KEY_LENGTH_MAX + 1];
    if (model.count == OBJECTS_MAX)
        return;
    struct object *object = &model.objects[model.count];
    *object = (struct object){.known = STORING, .length = length_of(seed)};
    uint8_t *buffer = mc_disk_lend(model.disk, object->length, rig_key(model.count, key));
    if (buffer == NULL)
        return;
    struct mc_disk_entry entry = rig_extent(buffer, model.count + 1, model.count, object->length);
    if (mc_disk_store(model.disk, rig_slot(model.disk), &entry, buffer, false, on_stored, &object->answer) < 0) {
        mc_disk_give_back(model.disk, buffer);
        return;
    }
    model.count++;
}

/* What was answered meanwhile. */
static void answers_look(void)
{
    for (uint32_t i = 0; i < model.count; i++) {
        struct object *object = &model.objects[i];
        if (!object->answer.is_there)
            continue;
        object->answer.is_there = false;
        if (object->known == STORING) {
            object->known = object->answer.code == 0 ? STORED : NONE;
            object->slot = object->answer.slot;
            model.stored += object->answer.code == 0 ? 1 : 0;
        } else if (object->known == REMOVING && object->answer.code == 0) {
            object->known = REMOVED;
            model.removed++;
        }
    }
}

static void on_nothing(void *context, int code)
{
    (void)context, (void)code;
}

static void object_clear(uint64_t *seed)
{
    struct object *object = &model.objects[random_below(seed, model.count)];
    if (object->known != STORED)
        return;
    uint64_t generation = (uint64_t)(object - model.objects) + 1;
    bool is_removal = random_below(seed, 4) != 0;
    object->place = (struct mc_disk_place){object->slot, generation};
    if (is_removal) {
        if (mc_disk_clear(model.disk, &object->place, 1, true, on_done, &object->answer) == 0)
            object->known = REMOVING;
    } else if (mc_disk_clear(model.disk, &object->place, 1, false, on_nothing, NULL) == 0) {
        object->known = EVICTED;
    }
}

static void object_read(uint64_t *seed)
{
    uint64_t number = random_below(seed, model.count);
    struct object *object = &model.objects[number];
    if (object->known != STORED)
        return;
    int rc = rig_read_object(model.disk, object->slot, number + 1, number, object->length);
    answers_look();
    bool is_odd = rc != 0 && rc != MC_ERR_REPLICA_IS_GONE && rc != MC_ERR_CHECKSUM_MISMATCH && rc != MC_ERR_BUSY;
    assert_false(is_odd);
    assert_true(rc == 0 || object->known != STORED || rc == MC_ERR_CHECKSUM_MISMATCH || rc == MC_ERR_BUSY);
}

static void live_on(uint64_t *seed)
{
    uint64_t steps = random_below(seed, 320);
    for (uint64_t i = 0; i < steps; i++) {
        uint64_t what = random_below(seed, 16);
        if (what < 7)
            object_store(seed);
        else if (what < 10 && model.count > 0)
            object_clear(seed);
        else if (what < 13 && model.count > 0)
            object_read(seed);
        else
            mc_disk_turn(model.disk, 1);
        answers_look();
        if (random_below(seed, 40) == 0)
            rig.now_ns += 1500000000; /* what nobody waits for is written as well */
    }
}

/* What lies in sealed regions was synced, and nothing takes it away but what the model knows. */
static void promises_note(bool power)
{
    for (uint32_t i = 0; i < model.count; i++) {
        struct object *object = &model.objects[i];
        const struct mc_disk_item *item = mc_disk_index_find(&model.disk->index, object->slot, i + 1);
        object->must_be_there = object->known == STORED && item != NULL &&
                                (!power || model.disk->regions[item->region].state == MC_DISK_REGION_SEALED);
        /* Its death may be in the journal already. */
        if (item != NULL && model.disk->victim.is_killing && item->region == model.disk->victim.region)
            object->must_be_there = false;
        object->seen = 0;
    }
}

static void on_each(void *context, const struct mc_disk_content *content)
{
    struct model *self = context;
    char key[MC_KEY_LENGTH_MAX + 1];
    uint64_t number = content->entry.generation - 1;
    assert_true(number < self->count);
    struct object *object = &self->objects[number];
    assert_int_not_equal(object->known, REMOVED);
    assert_int_not_equal(object->known, LOST);
    assert_int_not_equal(object->known, NONE);
    assert_int_equal(content->entry.key_length, rig_key(number, key));
    assert_memory_equal(content->key, key, content->entry.key_length);
    assert_int_equal(content->entry.length, object->length);
    assert_int_equal(object->seen, 0);
    object->seen = 1;
    object->slot = content->slot;
}

/* After an end: what is there is what it says, and what must be there is. */
static void model_compare(void)
{
    assert_int_equal(rig_list(model.disk, on_each, &model), 0);
    for (uint32_t i = 0; i < model.count; i++) {
        struct object *object = &model.objects[i];
        if (object->must_be_there)
            assert_int_equal(object->seen, 1);
        if (object->seen == 0) {
            model.vanished += object->known == STORED ? 1 : 0;
            object->known = object->known == REMOVED || object->known == LOST ? object->known : NONE;
            continue;
        }
        int rc = rig_read_object(model.disk, object->slot, i + 1, i, object->length);
        if (object->must_be_there)
            assert_int_equal(rc, 0);
        assert_true(rc == 0 || rc == MC_ERR_CHECKSUM_MISMATCH);
        model.unread += rc == 0 ? 0 : 1;
        model.found += rc == 0 ? 1 : 0;
        /* A removal that was not answered has not happened, or has; from now on it has not. */
        if (object->known != LOST)
            object->known = rc == 0 ? STORED : EVICTED; /* it will be told as lost when the journal has it */
    }
}

static void one_seed(uint64_t seed, enum mc_disk_policy policy)
{
    char *path = rig_directory();
    struct mc_disk_config config = rig_config(path);
    rig_reset(seed);
    rig.is_random = true;
    config.policy = policy;
    config.capacity = (policy == MC_DISK_LRU ? 4 : 6) * RIG_REGION; /* so little that what was read is copied */
    config.slow_ms = 10000;
    config.context = &model;
    config.lost = on_lost;
    model.count = 0;
    for (unsigned life = 0; life < LIVES; life++) {
        bool power = random_below(&seed, 2) == 0;
        model.disk = rig_start(&config);
        if (life > 0)
            model_compare();
        live_on(&seed);
        promises_note(power);
        static const unsigned kept[] = {0, 64, 128, 250};
        model.copied += model.disk->counts.bytes_rewritten > 0 ? 1 : 0;
        rig_end(model.disk, power, kept[random_below(&seed, 4)]);
        for (uint32_t i = 0; i < model.count; i++) /* what its end answered says nothing */
            model.objects[i].answer.is_there = false;
    }
    model.disk = rig_start(&config);
    model_compare();
    rig_stop(model.disk);
    rig_remove(path);
}

static void test_kill_points(void **state)
{
    (void)state;
    const char *wanted = getenv("MC_DISK_SEEDS"), *first = getenv("MC_DISK_SEED");
    uint64_t seeds = wanted != NULL ? strtoull(wanted, NULL, 10) : 334,
             from = first != NULL ? strtoull(first, NULL, 10) : SEED_FIRST;
    uint64_t end_ms = mc_clock_ms() + ENOUGH_MS, seed = from;
    for (; seed < from + seeds && (wanted != NULL || seed < from + SEEDS_MIN || mc_clock_ms() < end_ms); seed++) {
        if (wanted != NULL)
            print_message("seed %llu\n", (unsigned long long)seed);
        one_seed(seed * 0x9e3779b97f4a7c15u, seed % 2 == 0 ? MC_DISK_FIFO : MC_DISK_LRU);
    }
    seeds = seed - from;
    print_message(
        "%llu ends: %u stored, %u removed; after ends: %u found, %u gone, %u that do not prove themselves; %u told as "
        "lost, copies in %u lives\n",
        (unsigned long long)(seeds * LIVES), model.stored, model.removed, model.found, model.vanished, model.unread,
        model.lost, model.copied);
    assert_true(model.found > seeds && model.removed > seeds && model.lost > seeds);
    assert_true(model.vanished > 0 && model.unread > 0 && model.copied > 0);
}

int main(void)
{
    mc_log_set_level(MC_LOG_ERROR);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kill_points)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
