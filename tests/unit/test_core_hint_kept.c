/* What owners keep of hints: told with each change, told again until they have it, and known to the next master. */
#include "core_hints.h"

#include "store/core/hint_kept.h"
#include "store/core/limits.h"

#define FEATURES (UINT64_C(1) << MC_FEATURE_FIRM_PINS | UINT64_C(1) << MC_FEATURE_KEPT_HINTS)

static void next_master(struct world *world, uint64_t epoch, struct fake_owner *a, struct fake_owner *b)
{
    master_stop(world);
    world->now += 500;
    master_start(world, epoch, NULL);
    come_back(world, a);
    if (b != NULL)
        come_back(world, b);
    world_check(world);
}

static const struct mc_segment *segment_of(const struct world *world, const struct fake_owner *owner)
{
    return mc_segment_find(world->core, owner->segment);
}

static struct fake_owner *start(struct world *world)
{
    world_features = FEATURES;
    return start_with_owner(world);
}

static void put(struct world *world, struct fake_owner *owner, const char *key)
{
    assert_int_equal(fake_put(world, owner, key, OBJECT, 0), 0);
}

/* ---- drop ---- */

static void test_a_drop_outlives_masters(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *a = start(&world);
    assert_int_equal(fake_put(&world, a, "k", OBJECT, MC_PUT_SOFT_PIN), 0);
    put(&world, a, "other");
    assert_int_equal(say(&world, a->call, MC_HINT_DROP, "k"), 0);
    (void)fake_obey(&world, a); /* it was told in the same turn */
    assert_int_equal(held(a, "k")->hint, MC_HINT_DROP);
    assert_int_equal(segment_of(&world, a)->hint_notes.count, 0);
    assert_int_equal(statistics_of(&world).hints_kept, 1);
    for (unsigned i = 1; i < 4; i++) {
        next_master(&world, FIRST_EPOCH + i * 1000, a, NULL);
        assert_true(goes_first(&world, "k"));
        assert_false(goes_first(&world, "other"));
        assert_int_equal(statistics_of(&world).soft_pinned, 0);
        assert_int_equal(statistics_of(&world).hints_recovered, 1);
    }
    assert_int_equal(a->hinted, 1);
    finish(&world, a, NULL);
}

static void test_a_use_ends_it_under_all_masters(void **state)
{
    struct world world;
    (void)state;
    for (unsigned by_master = 0; by_master < 2; by_master++) {
        struct fake_owner *a = start(&world);
        assert_int_equal(fake_put(&world, a, "k", OBJECT, MC_PUT_SOFT_PIN), 0);
        assert_int_equal(say(&world, a->call, MC_HINT_DROP, "k"), 0);
        (void)fake_obey(&world, a);
        if (by_master)
            next_master(&world, NEXT_EPOCH, a, NULL);
        assert_int_equal(found(&world, a, "k"), OBJECT);
        (void)fake_obey(&world, a);
        assert_int_equal(held(a, "k")->hint, 0);
        next_master(&world, NEXT_EPOCH + 1000, a, NULL);
        assert_false(goes_first(&world, "k"));
        assert_int_equal(statistics_of(&world).soft_pinned, 0); /* that was over with the drop */
        assert_int_equal(statistics_of(&world).hints_recovered, 0);
        finish(&world, a, NULL);
    }
}

/* What crossed before the owner was told: only the last is. */
static void test_the_last_word_holds(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *a = start(&world);
    put(&world, a, "k");
    put(&world, a, "l");
    assert_int_equal(say(&world, a->call, MC_HINT_DROP, "k"), 0);
    assert_int_equal(say(&world, a->call, MC_HINT_RESUME, "k"), 0);
    assert_int_equal(say(&world, a->call, MC_HINT_DROP, "l"), 0);
    assert_int_equal(say(&world, a->call, MC_HINT_RESUME, "l"), 0);
    assert_int_equal(say(&world, a->call, MC_HINT_DROP, "l"), 0);
    (void)fake_obey(&world, a);
    next_master(&world, NEXT_EPOCH, a, NULL);
    assert_false(goes_first(&world, "k"));
    assert_true(goes_first(&world, "l"));
    finish(&world, a, NULL);
}

/* It was said of the value before. */
static void test_an_upsert_has_no_hint(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *a = start(&world);
    put(&world, a, "k");
    assert_int_equal(say(&world, a->call, MC_HINT_DROP, "k"), 0);
    assert_int_equal(fake_put(&world, a, "k", SMALL, MC_PUT_REPLACE), 0);
    (void)fake_obey(&world, a);
    assert_int_equal(held(a, "k")->hint, 0);
    assert_int_equal(segment_of(&world, a)->hint_notes.count, 0);
    next_master(&world, NEXT_EPOCH, a, NULL);
    assert_false(goes_first(&world, "k"));
    assert_int_equal(found(&world, a, "k"), SMALL);
    finish(&world, a, NULL);
}

static void test_removed_before_it_is_told(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *a = start(&world);
    put(&world, a, "k");
    assert_int_equal(say(&world, a->call, MC_HINT_DROP, "k"), 0);
    assert_int_equal(fake_remove(&world, a, a, "k"), 0);
    put(&world, a, "l"); /* in its slot */
    assert_int_equal(held(a, "l")->hint, 0);
    assert_int_equal(segment_of(&world, a)->hint_notes.count, 0);
    finish(&world, a, NULL);
}

/* ---- owners ---- */

/* One that did not answer hears it again, and so does one whose process began anew with its memory. */
static void test_told_again(void **state)
{
    struct world world;
    (void)state;
    for (unsigned is_new = 0; is_new < 2; is_new++) {
        struct fake_owner *a = start(&world);
        put(&world, a, "k");
        put(&world, a, "l");
        assert_int_equal(say(&world, a->call, MC_HINT_DROP, "k"), 0);
        world_disconnect(&world, a->owner); /* nobody has read it */
        assert_int_equal(held(a, "k")->hint, 0);
        if (is_new) {
            world_disconnect(&world, a->heartbeat);
            world_disconnect(&world, a->call);
            a->node = NODE_B;
            a->incarnation++;
        }
        assert_true(fake_return(&world, a));
        (void)fake_obey(&world, a);
        assert_int_equal(held(a, "k")->hint, MC_HINT_DROP);
        assert_int_equal(held(a, "l")->hint, 0);
        assert_int_equal(segment_of(&world, a)->hint_notes.count, 0);
        world_check(&world);
        finish(&world, a, NULL);
    }
}

/* It is of a release that knows none of this: it is as it was before. */
static void test_an_older_owner(void **state)
{
    struct world world;
    (void)state;
    world_features = FEATURES & ~(UINT64_C(1) << MC_FEATURE_KEPT_HINTS);
    struct fake_owner *a = start_with_owner(&world);
    put(&world, a, "k");
    assert_int_equal(say(&world, a->call, MC_HINT_DROP, "k"), 0);
    assert_true(goes_first(&world, "k"));
    (void)fake_obey(&world, a);
    assert_int_equal(a->hinted, 0);
    assert_int_equal(segment_of(&world, a)->hint_notes.count, 0);
    next_master(&world, NEXT_EPOCH, a, NULL);
    assert_false(goes_first(&world, "k"));
    world_features = FEATURES;
    finish(&world, a, NULL);
}

/* A value with a replica at each. */
static void put_both(struct world *world, struct fake_owner *a, struct fake_owner *b)
{
    const struct world_wish both = {.replica_count = 2};
    const struct world_item item = {world_key("k"), OBJECT};
    static struct world_grants grants;
    world_put_start(world, a->call, 100, &item, 1, &both, &grants);
    assert_int_equal(grants.place_count, 2);
    for (unsigned i = 0; i < 2; i++) {
        struct fake_owner *owner = grants.places[i].segment == a->segment ? a : b;
        fake_write(owner, &grants.places[i], "k", OBJECT, 0, 1);
        world_live(world, owner->owner, &grants.places[i]);
    }
    assert_int_equal(world_put_done(world, a->call, 100), 0);
}

/* Two replicas: both owners must say it, else one of them has missed what came later. */
static void test_owners_that_contradict(void **state)
{
    struct world world;
    (void)state;
    for (unsigned missed = 0; missed < 4; missed++) {
        struct fake_owner *a = start(&world), *b = fake(NODE_B);
        assert_int_equal(fake_join(&world, b).code, 0);
        put_both(&world, a, b);
        assert_int_equal(say(&world, a->call, MC_HINT_DROP, "k"), 0);
        (void)fake_obey(&world, a);
        (void)fake_obey(&world, b);
        if ((missed & 1) != 0)
            held(a, "k")->hint = 0;
        if ((missed & 2) != 0)
            held(b, "k")->hint = 0;
        next_master(&world, NEXT_EPOCH, a, b);
        (void)fake_obey(&world, a);
        (void)fake_obey(&world, b);
        assert_int_equal(goes_first(&world, "k"), missed == 0);
        assert_int_equal(held(a, "k")->hint, missed == 0 ? MC_HINT_DROP : 0);
        assert_int_equal(held(b, "k")->hint, missed == 0 ? MC_HINT_DROP : 0);
        assert_int_equal(found(&world, a, "k"), OBJECT);
        finish(&world, a, b);
    }
}

/* Used under this master, while another replica was still to come. */
static void test_used_before_the_second_comes(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *a = start(&world), *b = fake(NODE_B);
    assert_int_equal(fake_join(&world, b).code, 0);
    put_both(&world, a, b);
    assert_int_equal(say(&world, a->call, MC_HINT_DROP, "k"), 0);
    (void)fake_obey(&world, a);
    (void)fake_obey(&world, b);
    next_master(&world, NEXT_EPOCH, a, NULL);
    assert_true(goes_first(&world, "k"));
    assert_int_equal(found(&world, a, "k"), OBJECT);
    come_back(&world, b);
    (void)fake_obey(&world, b);
    assert_false(goes_first(&world, "k"));
    assert_int_equal(held(b, "k")->hint, 0);
    finish(&world, a, b);
}

/* Whatever an owner says, nothing but the order in which values go is changed by it. */
static void test_what_an_owner_may_say(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *a = start(&world);
    assert_int_equal(fake_put(&world, a, "hard", OBJECT, MC_PUT_HARD_PIN), 0);
    assert_int_equal(fake_put(&world, a, "soft", OBJECT, MC_PUT_SOFT_PIN), 0);
    put(&world, a, "later");
    put(&world, a, "k");
    held(a, "hard")->hint = MC_HINT_DROP;
    held(a, "soft")->hint = MC_HINT_PAUSE;
    held(a, "later")->hint = 200; /* of a later release */
    held(a, "k")->hint = MC_HINT_DROP;
    next_master(&world, NEXT_EPOCH, a, NULL);
    assert_false(goes_first(&world, "hard") || goes_first(&world, "later"));
    assert_true(goes_first(&world, "k") && goes_first(&world, "soft"));
    world_check(&world);
    finish(&world, a, NULL);
}

/* That others of its group are heard of later is no use of them. */
static void test_a_drop_in_a_group_outlives_masters(void **state)
{
    static struct fake_slot *order[SLOTS];
    struct world world;
    char key[32];
    (void)state;
    struct fake_owner *a = start(&world);
    put(&world, a, "other");
    assert_int_equal(fake_put_in(&world, a, "k", OBJECT, 0, 7), 0);
    assert_int_equal(fake_put_in(&world, a, "l", OBJECT, 0, 7), 0);
    assert_int_equal(say(&world, a->call, MC_HINT_DROP, "k"), 0);
    (void)fake_obey(&world, a);
    master_stop(&world);
    world.now += 500;
    master_start(&world, NEXT_EPOCH, NULL);
    assert_int_equal(fake_join(&world, a).inventory, 1);
    uint32_t count = slots_in_order(a, order);
    for (uint32_t i = 0; i < count; i++) {
        struct mc_wire_inventory_item item = item_of(a, order[i]);
        world_pass(&world, 2000); /* it takes its time */
        world_beat(&world, a->heartbeat);
        send_inventory(&world, a->owner, a->segment, i, i + 1 == count, &item, 1);
    }
    world_pass(&world, GRACE_OVER_MS);
    assert_true(goes_first(&world, "k"));
    (void)fake_obey(&world, a);
    for (unsigned i = 0; statistics_of(&world).evicted_objects == 0 && i < 400; i++)
        (void)fake_put(&world, a, world_name(key, "m", i), OBJECT, 0);
    assert_null(mc_object_find(world.core, mc_span_string("k")));
    assert_non_null(mc_object_find(world.core, mc_span_string("l"))); /* each is hinted at for itself */
    finish(&world, a, NULL);
}

/* ---- many ---- */

static void test_a_thousand_at_once(void **state)
{
    static const char *keys[1000];
    static char names[1000][16];
    static int32_t codes[1000];
    struct world world;
    (void)state;
    struct fake_owner *a = start(&world);
    for (unsigned i = 0; i < 1000; i++) {
        keys[i] = names[i];
        (void)snprintf(names[i], sizeof(names[i]), "k%u", i);
        assert_int_equal(fake_put(&world, a, keys[i], 64, 0), 0);
    }
    world_hints(&world, a->call, MC_HINT_DROP, keys, 1000, 0, codes);
    for (unsigned i = 0; i < 1000; i++)
        assert_int_equal(codes[i], 0);
    world_pass(&world, 100);
    (void)fake_obey(&world, a);
    assert_int_equal(a->hinted, 1000);
    assert_int_equal(statistics_of(&world).hints_kept, 1000);
    next_master(&world, NEXT_EPOCH, a, NULL);
    for (unsigned i = 0; i < 1000; i++)
        assert_true(goes_first(&world, keys[i]));
    finish(&world, a, NULL);
}

/* All of them are told before it is answered. */
static void test_many_owners_at_once(void **state)
{
    enum { COUNT = 60 };
    static struct fake_owner *owners[COUNT];
    static const char *keys[COUNT];
    static char names[COUNT][16];
    int32_t codes[COUNT];
    struct world world;
    (void)state;
    world_features = FEATURES;
    world_start(&world, FIRST_EPOCH, NULL);
    for (unsigned i = 0; i < COUNT; i++) {
        owners[i] = fake(NODE_B + 1 + i);
        assert_int_equal(fake_join(&world, owners[i]).code, 0);
        keys[i] = names[i];
        (void)snprintf(names[i], sizeof(names[i]), "k%u", i);
        put(&world, owners[i], keys[i]);
    }
    world_hints(&world, owners[0]->call, MC_HINT_DROP, keys, COUNT, 0, codes);
    for (unsigned i = 0; i < COUNT; i++)
        assert_int_equal(segment_of(&world, owners[i])->hint_notes.sent, 1);
    for (unsigned i = 0; i < COUNT; i++) {
        (void)fake_obey(&world, owners[i]);
        assert_int_equal(held(owners[i], keys[i])->hint, MC_HINT_DROP);
        free(owners[i]);
    }
    finish(&world, NULL, NULL);
}

static void confirm(struct world *world, uint64_t connection, uint32_t segment, const struct mc_wire_hinted_item *items,
                    uint32_t count)
{
    const struct mc_wire_segment head = {.segment = segment};
    size_t frame = world_begin(world, MC_MESSAGE_HINTED, 0);
    size_t list = mc_wire_segment_head(&world->frame, &head);
    for (uint32_t i = 0; i < count; i++)
        mc_wire_hinted_item_write(&world->frame, &items[i]);
    mc_list_end(&world->frame, list, count);
    world_send(world, connection, frame);
    world_check(world);
}

/* What was not told to it, or was to another, nobody can confirm; nor twice what was told once. */
static void test_what_was_not_told(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *a = start(&world), *b = fake(NODE_B);
    assert_int_equal(fake_join(&world, b).code, 0);
    put(&world, a, "k");
    put(&world, a, "l");
    a->is_deaf = true;
    struct mc_wire_hinted_item items[4] = {{.slot = UINT32_MAX, .generation = UINT64_MAX, .hint = 255}};
    confirm(&world, a->owner, a->segment, items, 1);
    assert_int_equal(say(&world, a->call, MC_HINT_DROP, "k"), 0);
    assert_int_equal(say(&world, a->call, MC_HINT_DROP, "l"), 0);
    (void)fake_obey(&world, a);
    const struct fake_slot *k = held(a, "k"), *l = held(a, "l");
    items[1] = (struct mc_wire_hinted_item){.slot = (uint32_t)(k - a->slots), .generation = k->generation};
    items[2] = (struct mc_wire_hinted_item){.slot = (uint32_t)(l - a->slots), .generation = l->generation};
    items[3] = items[1];
    items[3].generation--;
    confirm(&world, b->owner, a->segment, &items[1], 2);
    confirm(&world, a->owner, UINT32_MAX, &items[1], 2);
    confirm(&world, a->owner, a->segment, &items[2], 2);
    assert_int_equal(segment_of(&world, a)->hint_notes.count, 2);
    for (unsigned i = 0; i < 2; i++) {
        confirm(&world, a->owner, a->segment, items, 4);
        assert_int_equal(segment_of(&world, a)->hint_notes.count, 0);
        assert_int_equal(statistics_of(&world).hints_kept, 2);
    }
    finish(&world, a, b);
}

/* An owner that does not answer costs so much and no more, and what is said of what it has is answered as ever. */
static void test_an_owner_that_does_not_answer(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *a = start(&world);
    put(&world, a, "k");
    a->is_deaf = true;
    for (unsigned i = 0; i < MC_HINT_NOTES_MAX / 2 + 10; i++) {
        assert_int_equal(world_hint(&world, a->call, MC_HINT_DROP, "k", 0), 0);
        (void)fake_obey(&world, a);
        assert_int_equal(world_hint(&world, a->call, MC_HINT_RESUME, "k", 0), 0);
        (void)fake_obey(&world, a);
    }
    assert_int_equal(segment_of(&world, a)->hint_notes.count, MC_HINT_NOTES_MAX);
    assert_true(segment_of(&world, a)->hint_notes.capacity <= 2 * MC_HINT_NOTES_MAX);
    assert_int_equal(statistics_of(&world).hints_not_kept, 20);
    world_check(&world);
    a->is_deaf = false; /* and nothing any more, once it has answered */
    world_disconnect(&world, a->owner);
    assert_true(fake_return(&world, a));
    for (unsigned i = 0; i < 2000 && segment_of(&world, a)->hint_notes.count > 0; i++) {
        world_pass(&world, 1);
        (void)fake_obey(&world, a);
    }
    assert_int_equal(segment_of(&world, a)->hint_notes.count, 0);
    assert_true(segment_of(&world, a)->hint_notes.capacity < 1000);
    finish(&world, a, NULL);
}

/* ---- pause ---- */

/* A master that stores what is evicted, and an owner of an earlier master's with a value whose user pauses. */
static struct fake_owner *start_paused(struct world *world, bool has_disk)
{
    struct mc_core_config config = mc_core_config_default();
    config.offload = MC_OFFLOAD_ON_EVICT;
    struct fake_owner *a = start(world);
    put(world, a, "k");
    put(world, a, "other");
    held(a, "k")->hint = MC_HINT_PAUSE;
    master_stop(world);
    world->now += 500;
    master_start(world, NEXT_EPOCH, &config);
    come_back(world, a);
    (void)fake_obey(world, a);
    struct mc_wire_mount mount = disk_mount(DISK_A);
    if (has_disk)
        assert_int_equal(world_mount(world, a->owner, &mount).code, 0);
    return a;
}

/* Told when it begins to be stored, and no more when it is used, or could not be. */
static void test_a_pause_is_told(void **state)
{
    static struct moves moves;
    struct world world;
    (void)state;
    for (unsigned what = 0; what < 3; what++) {
        struct fake_owner *a = start_paused(&world, true);
        assert_int_equal(say(&world, a->call, MC_HINT_PAUSE, "other"), MC_HINT_BEGUN);
        struct mc_frame frame = world_receive(&world, a->owner);
        struct mc_reader reader = mc_reader(frame.body.data, frame.body.length);
        assert_int_equal(frame.type, MC_MESSAGE_HINTED);
        fake_keep(&world, a, &reader);
        assert_int_equal(held(a, "other")->hint, MC_HINT_PAUSE);
        told_moves(&world, a->owner, &moves);
        assert_int_equal(moves.type, MC_MESSAGE_STORE);
        if (what == 0)
            assert_int_equal(say(&world, a->call, MC_HINT_RESUME, "other"), 0);
        owner_did(&world, a->owner, &moves, what == 1 ? MC_ERR_FILE_WRITE_FAIL : 0);
        (void)fake_obey(&world, a);
        assert_int_equal(goes_first(&world, "other"), what == 2);
        assert_int_equal(held(a, "other")->hint, what == 2 ? MC_HINT_PAUSE : 0);
        finish(&world, a, NULL);
    }
}

static void press_on(struct world *world, struct fake_owner *a)
{
    char key[32];
    static unsigned number;
    for (unsigned i = 0; i < 400; i++) {
        (void)fake_put(world, a, world_name(key, "m", number++), OBJECT, 0);
        world_pass(world, 10);
    }
}

/* A pin holds whoever pauses, under the next master too. */
static void test_a_pause_of_what_is_pinned(void **state)
{
    static struct moves moves;
    struct world world;
    (void)state;
    struct fake_owner *a = start_paused(&world, true);
    assert_int_equal(fake_put(&world, a, "soft", OBJECT, MC_PUT_SOFT_PIN), 0);
    assert_int_equal(say(&world, a->call, MC_HINT_PAUSE, "soft"), MC_HINT_BEGUN);
    told_moves(&world, a->owner, &moves);
    owner_did(&world, a->owner, &moves, 0);
    (void)fake_obey(&world, a);
    assert_int_equal(a->hinted, 0);
    next_master(&world, 2 * NEXT_EPOCH, a, NULL);
    assert_int_equal(statistics_of(&world).soft_pinned, 1);
    assert_false(goes_first(&world, "soft"));
    finish(&world, a, NULL);
}

/* The next master knows of it, and lets it go only when a disk has it. */
static void test_a_pause_outlives_masters(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *a = start_paused(&world, true);
    assert_true(goes_first(&world, "k"));
    uint64_t begun = statistics_of(&world).offload_begun;
    char key[32];
    unsigned number = 0;
    while (goes_first(&world, "k") && number < 2000) { /* until its turn comes */
        int32_t code = fake_put(&world, a, world_name(key, "m", number++), OBJECT, 0);
        assert_true(code == 0 || code == MC_ERR_NO_AVAILABLE_HANDLE);
    }
    const struct mc_object *object = mc_object_find(world.core, mc_span_string("k"));
    assert_non_null(object);
    assert_true(object->moving && mc_hint_holds(world.core, object));
    assert_true(statistics_of(&world).offload_begun > begun);
    world_check(&world);
    finish(&world, a, NULL);
}

/* Without a disk it is as any other when its turn comes. */
static void test_a_pause_without_a_disk(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *a = start_paused(&world, false);
    assert_true(goes_first(&world, "k"));
    press_on(&world, a);
    const struct mc_object *object = mc_object_find(world.core, mc_span_string("k"));
    assert_true(object == NULL || !mc_hint_holds(world.core, object));
    assert_true(statistics_of(&world).evicted_objects > 0);
    world_check(&world);
    finish(&world, a, NULL);
}

/* ---- disks ---- */

/* A disk has the pin that a drop has ended: what is loaded from there is told so. */
static void test_a_pin_that_has_ended_is_not_loaded(void **state)
{
    static struct moves moves;
    struct world world;
    struct world_store store;
    (void)state;
    world_features = FEATURES & ~(UINT64_C(1) << MC_FEATURE_KEPT_HINTS);
    for (unsigned is_soft = 0; is_soft < 2; is_soft++) {
        (void)open_with_disk(&world, &store);
        put_and_store(&world, &store, "k");
        forget_in_memory(&world, &store, "k");
        struct mc_object *object = mc_object_find(world.core, mc_span_string("k"));
        object->soft = is_soft != 0;
        assert_int_equal(world_get(&world, store.call, "k", 0, NULL, NULL), MC_ERR_PUT_IN_PROGRESS);
        told_moves(&world, store.owner, &moves);
        assert_int_equal(moves.type, MC_MESSAGE_LOAD);
        assert_int_equal(moves.loads[0].flags, is_soft ? 0 : MC_LOAD_UNPINNED);
        object->soft = 0;
        world_close_all(&world);
    }
    world_features = FEATURES;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_drop_outlives_masters),
        cmocka_unit_test(test_a_use_ends_it_under_all_masters),
        cmocka_unit_test(test_the_last_word_holds),
        cmocka_unit_test(test_an_upsert_has_no_hint),
        cmocka_unit_test(test_removed_before_it_is_told),
        cmocka_unit_test(test_told_again),
        cmocka_unit_test(test_an_older_owner),
        cmocka_unit_test(test_owners_that_contradict),
        cmocka_unit_test(test_used_before_the_second_comes),
        cmocka_unit_test(test_what_an_owner_may_say),
        cmocka_unit_test(test_a_drop_in_a_group_outlives_masters),
        cmocka_unit_test(test_a_thousand_at_once),
        cmocka_unit_test(test_many_owners_at_once),
        cmocka_unit_test(test_what_was_not_told),
        cmocka_unit_test(test_an_owner_that_does_not_answer),
        cmocka_unit_test(test_a_pause_is_told),
        cmocka_unit_test(test_a_pause_of_what_is_pinned),
        cmocka_unit_test(test_a_pause_outlives_masters),
        cmocka_unit_test(test_a_pause_without_a_disk),
        cmocka_unit_test(test_a_pin_that_has_ended_is_not_loaded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
