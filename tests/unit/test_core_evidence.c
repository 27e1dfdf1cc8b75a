/* The core and what it is told of other masters: evidence of those before it, words of later ones; and how long it
 * takes contents of earlier epochs. */
#include "core_owner.h"
#include "store/core/replica.h"
#include "random.h"

/* ---- until when contents are taken ---- */

static void test_after_the_window(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *a = start_with_owner(&world);
    assert_int_equal(fake_put(&world, a, "ka", SMALL, 0), 0);
    crash(&world, NEXT_EPOCH, SHORTLY_MS);
    world_pass(&world, 60100);
    assert_false(fake_return(&world, a));
    assert_int_equal(found(&world, a, "ka"), 0);
    assert_int_equal(fake_put(&world, a, "ka", SMALL + 1, 0), 0); /* its memory is of use */
    finish(&world, a, NULL);
}

/* What began within the window is taken to its end, and keeps it open for others. What has gone meanwhile stays away.
 */
static void test_no_cliff(void **state)
{
    struct world world;
    char key[24];
    (void)state;
    struct fake_owner *a = start_with_owner(&world), *b = fake(NODE_B), *c = fake(NODE_C);
    assert_int_equal(fake_join(&world, c).code, 0);
    put_numbered(&world, a, 20);
    assert_int_equal(fake_put(&world, c, "kc", SMALL, 0), 0);
    crash(&world, NEXT_EPOCH, SHORTLY_MS);
    assert_int_equal(fake_join(&world, a).inventory, 1);
    assert_int_equal(fake_join(&world, b).code, 0);
    static struct fake_slot *order[SLOTS];
    uint32_t count = slots_in_order(a, order);
    assert_int_equal(count, 20);
    for (uint32_t i = 0; i < count; i++) { /* two minutes */
        struct mc_wire_inventory_item item = item_of(a, order[i]);
        for (unsigned beat = 0; beat < 2; beat++) {
            world_beat(&world, a->heartbeat);
            world_beat(&world, b->heartbeat);
            world_pass(&world, 3 * SECOND_MS);
        }
        if (i == 3) { /* a new value of a key that is told later, and it is gone again */
            assert_int_equal(fake_put(&world, b, order[15]->key, 7, 0), 0);
            struct mc_object *object = mc_objects_find(&world.core->objects, mc_span_string(order[15]->key));
            mc_object_drop(world.core, object, NULL);
            (void)fake_obey(&world, b);
        }
        if (i == 18)
            assert_true(fake_return(&world, c));
        send_inventory(&world, a->owner, a->segment, i, i + 1 == count, &item, 1);
        (void)fake_obey(&world, a);
    }
    world_beat(&world, c->heartbeat);
    world_pass(&world, 200);
    for (unsigned i = 0; i < 20; i++) {
        (void)snprintf(key, sizeof(key), "k%u", i);
        assert_int_equal(found(&world, b, key), strcmp(key, order[15]->key) == 0 ? 0 : SMALL + i);
    }
    assert_int_equal(found(&world, b, "kc"), SMALL);
    world_pass(&world, 300);
    assert_int_equal(statistics_of(&world).tombstones, 0); /* nobody can bring anything any more */
    assert_false(mc_recover_open(world.core));
    free(c);
    finish(&world, a, b);
}

/* An owner that does not go on to tell what it has, though its process lives: removals wait for it no longer. */
static void test_inventory_that_stands_still(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *a = start_with_value(&world, "k");
    crash(&world, NEXT_EPOCH, SHORTLY_MS);
    assert_int_equal(fake_join(&world, a).inventory, 1);
    for (unsigned s = 0; s < 29; s++) {
        world_pass(&world, SECOND_MS);
        world_beat(&world, a->heartbeat);
    }
    assert_true(mc_recover_unsettled(world.core));
    world_pass(&world, SECOND_MS);
    assert_false(mc_recover_unsettled(world.core));
    assert_int_equal(fake_obey(&world, a), MC_ERR_STALE);
    finish(&world, a, NULL);
}

/* More keys have gone than tombstones may be made: they stay away all the same, and of the others nearly all come. */
static void test_too_many_tombstones(void **state)
{
    struct world world;
    char key[24];
    (void)state;
    struct fake_owner *a = start_with_owner(&world), *b = fake(NODE_B);
    put_numbered(&world, a, 40);
    crash(&world, NEXT_EPOCH, SHORTLY_MS);
    assert_int_equal(fake_join(&world, b).code, 0);
    grow_old(&world, b);
    world.core->tombstone_limit = 5;
    for (unsigned i = 0; i < 10; i++) { /* never met here */
        (void)snprintf(key, sizeof(key), "k%u", i);
        assert_int_equal(fake_remove(&world, b, NULL, key), MC_ERR_OBJECT_NOT_FOUND);
    }
    for (unsigned i = 10; i < 20; i++) { /* put and removed */
        (void)snprintf(key, sizeof(key), "k%u", i);
        assert_int_equal(fake_put(&world, b, key, 7, 0), 0);
        assert_int_equal(fake_remove(&world, b, b, key), 0);
    }
    assert_int_equal(statistics_of(&world).tombstones, 5);
    assert_int_equal(fake_put(&world, b, "k19", 8, 0), 0); /* put again: that is no hindrance */
    come_back(&world, a);
    for (unsigned i = 0; i < 40; i++) {
        (void)snprintf(key, sizeof(key), "k%u", i);
        assert_int_equal(found(&world, b, key), i < 19 ? 0 : i == 19 ? 8 : SMALL + i);
    }
    for (unsigned i = 0; i < 60; i++) {
        world_beat(&world, a->heartbeat);
        world_pass(&world, SECOND_MS);
    }
    assert_null(world.core->gone_bits);
    finish(&world, a, b);
}

/* As above; and a put of such a key has failed since, and is not cleared: that lets no value back which could not come
 * before. What was not removed comes (C5). */
static void test_a_put_that_failed_lets_nothing_back(void **state)
{
    struct world world;
    struct mc_wire_place places[2];
    const char *const keys[] = {"k0", "k1"};
    (void)state;
    struct fake_owner *a = start_with_owner(&world), *b = fake(NODE_B);
    put_numbered(&world, a, 2);
    crash(&world, NEXT_EPOCH, SHORTLY_MS);
    assert_int_equal(fake_join(&world, b).code, 0);
    grow_old(&world, b);
    world.core->tombstone_limit = 0;
    assert_int_equal(fake_remove(&world, b, NULL, keys[0]), MC_ERR_OBJECT_NOT_FOUND);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(world_grant(&world, b->call, 100, keys[i], 7, NULL, &places[i]), 0);
        world_revoke(&world, b->call, &places[i]);
        assert_int_not_equal(world_put_done(&world, b->call, 100), 0);
    }
    come_back(&world, a);
    for (unsigned is_cleared = 0; is_cleared < 2; is_cleared++) {
        assert_int_equal(found(&world, b, keys[0]), 0);
        assert_int_equal(found(&world, b, keys[1]), SMALL + 1);
        (void)fake_obey(&world, b);
    }
    finish(&world, a, b);
}

/* An inventory breaks off, and comes again: what it had told is not taken for gone, however many keys that are. Nor are
 * those of a segment that was told, but not offered yet. */
static void test_many_keys_of_an_inventory_that_breaks_off(void **state)
{
    struct world world;
    struct mc_wire_inventory_item items[30];
    char key[24];
    (void)state;
    for (unsigned told = 0; told < 2; told++) {
        struct fake_owner *a = start_with_owner(&world);
        put_numbered(&world, a, 40);
        crash(&world, NEXT_EPOCH, SHORTLY_MS);
        world.core->tombstone_limit = 5;
        if (told == 1) {
            assert_true(fake_return(&world, a));
            mc_segment_gone(world.core, world.core->segments[a->segment & 0xffff]);
        } else {
            assert_int_equal(fake_join(&world, a).inventory, 1);
            for (unsigned i = 0; i < 30; i++) {
                (void)snprintf(key, sizeof(key), "k%u", i);
                items[i] = item_of(a, held(a, key));
            }
            send_inventory(&world, a->owner, a->segment, 0, false, items, 30);
        }
        a->epoch = FIRST_EPOCH; /* it has not heard of an offer */
        world_disconnect(&world, a->owner);
        world_disconnect(&world, a->heartbeat);
        world_disconnect(&world, a->call);
        world_pass(&world, 100);
        assert_int_equal(world.core->tombstone_count, 0);
        come_back(&world, a);
        assert_null(world.core->gone_bits);
        expect_numbered(&world, a, 40);
        finish(&world, a, NULL);
    }
}

/* What was offered and has gone keeps values before it away: also when it comes again where it is not offered, and goes
 * there, too. */
static void test_what_was_offered_is_not_forgotten(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *a = start_with_value(&world, "k"), *b = fake(NODE_B), *c = fake(NODE_C);
    *b = *a; /* what a has now is a value before, of which nobody knows that it is cleared */
    b->node = b->id = 6;
    (void)snprintf(b->name, sizeof(b->name), "n6");
    assert_int_equal(fake_put(&world, a, "k", SMALL * 2, MC_PUT_REPLACE), 0);
    *c = *a;
    c->node = c->id = 7;
    (void)snprintf(c->name, sizeof(c->name), "n7");
    crash(&world, NEXT_EPOCH, SHORTLY_MS);
    come_back(&world, a);
    assert_int_equal(found(&world, a, "k"), SMALL * 2);
    assert_int_equal(fake_join(&world, c).inventory, 1);
    struct mc_wire_inventory_item item = item_of(c, held(c, "k"));
    send_inventory(&world, c->owner, c->segment, 0, false, &item, 1);
    mc_segment_gone(world.core, world.core->segments[a->segment & 0xffff]);
    world_pass(&world, 100);
    mc_segment_gone(world.core, world.core->segments[c->segment & 0xffff]);
    world_pass(&world, 100);
    assert_int_equal(world.core->tombstone_count, 1);
    come_back(&world, b);
    assert_int_equal(found(&world, b, "k"), 0);
    free(c);
    finish(&world, a, b);
}

/* ---- masters before us ---- */

/* E1 lived long after it had lost sight of `a`: told before the mount, before the offer, not long enough, by the word
 * of a master between, and after the offer, when the contents are ours. */
static void test_evidence(void **state)
{
    enum { BEFORE_MOUNT, BEFORE_OFFER, TOO_SHORT, MASTER_BETWEEN, AFTER_OFFER, ROUNDS };
    struct world world;
    (void)state;
    for (unsigned round = 0; round < ROUNDS; round++) {
        bool kept = round == TOO_SHORT || round == AFTER_OFFER;
        struct fake_owner *a = start_with_value(&world, "k");
        uint64_t contact = world.now;
        const struct fake_slot held_before = *held(a, "k");
        uint64_t epoch = round == MASTER_BETWEEN ? 4 : 3;
        crash(&world, NEXT_EPOCH, 10000);
        uint64_t alive = contact + (round == TOO_SHORT ? 2999 : 3000);
        if (round == BEFORE_MOUNT)
            join_seen(&world, MC_ROLE_CALL, WITNESS, FIRST_LIFE, epoch, world.now - alive);
        assert_int_equal(fake_return(&world, a), round != BEFORE_MOUNT);
        world_pass(&world, round == AFTER_OFFER ? 1100 : 500);
        if (round > BEFORE_MOUNT) {
            join_seen(&world, MC_ROLE_CALL, WITNESS, FIRST_LIFE, epoch,
                      world.now - alive + 1); /* less is nothing new */
            join_seen(&world, MC_ROLE_CALL, SECOND_WITNESS, FIRST_LIFE, epoch, world.now - alive);
            join_seen(&world, MC_ROLE_CALL, THIRD_WITNESS, FIRST_LIFE, 2,
                      world.now - alive - 9); /* of a master before it */
            world_pass(&world, GRACE_OVER_MS);
            assert_int_equal(fake_obey(&world, a), kept ? 1 : MC_ERR_STALE);
        }
        assert_int_equal(found(&world, a, "k"), kept ? SMALL : 0);
        if (round == BEFORE_OFFER) { /* what was dropped so is not barred from coming from where it is right */
            struct fake_owner *b = fake(NODE_B);
            b->epoch = FIRST_EPOCH;
            b->contact_ms = alive;
            b->slots[7] = held_before;
            assert_true(fake_return(&world, b));
            assert_int_equal(found(&world, b, "k"), SMALL);
            free(b);
        }
        finish(&world, a, NULL);
    }
}

/* A hello that nothing follows is no evidence, nor does any of it say that a master before us lived longer than until
 * our own start. */
static void test_evidence_that_is_none(void **state)
{
    struct world world;
    (void)state;
    for (unsigned round = 0; round < 3; round++) {
        struct fake_owner *a = start_with_value(&world, "k");
        crash(&world, NEXT_EPOCH, round == 2 ? 3000 : 2999);
        world.now += 900; /* whoever starts now has missed as much */
        if (round == 0) {
            struct mc_wire_hello hello = world_hello(MC_ROLE_CALL, 50, 1);
            hello.seen_epoch = FIRST_EPOCH;
            assert_int_equal(world_greet(&world, world_connect(&world), &hello).code, 0);
            assert_int_equal(world.core->evidence_count, 0);
        } else {
            join_seen(&world, MC_ROLE_CALL, WITNESS, FIRST_LIFE, FIRST_EPOCH, 0);
            assert_int_equal(world.core->evidence[0].alive_ms, 0);
        }
        assert_int_equal(fake_return(&world, a), round != 2);
        world_pass(&world, GRACE_OVER_MS);
        assert_int_equal(found(&world, a, "k"), round == 2 ? 0 : SMALL);
        finish(&world, a, NULL);
    }
}

/* Cores of this process lived since somebody was last met, and have changed nothing: who has met them says no more than
 * that until then there may have been another one. */
static void test_cores_that_changed_nothing(void **state)
{
    static const struct {
        uint64_t idle_ms, idle_epoch; /* so long of the time without contact */
        bool kept;
    } rows[] = {{0, 0, false}, {7001, 8, true}, {7000, 8, false}, {7000, 2, true}};
    struct world world;
    (void)state;
    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct mc_core_config config = mc_core_config_default();
        struct fake_owner *a = start_with_value(&world, "k");
        assert_true(mc_core_has_changed(world.core));
        master_stop(&world);
        world.now += 10000;
        if (rows[i].idle_ms != 0)
            config.idle_since_ms = world.now - rows[i].idle_ms;
        config.idle_epoch = rows[i].idle_epoch;
        master_start(&world, NEXT_EPOCH, &config);
        assert_false(mc_core_has_changed(world.core));
        join_seen(&world, MC_ROLE_CALL, WITNESS, FIRST_LIFE, 8, 1); /* the core before this one */
        assert_int_equal(fake_return(&world, a), rows[i].kept);
        assert_false(mc_core_has_changed(world.core));
        world_pass(&world, GRACE_OVER_MS);
        assert_int_equal(found(&world, a, "k"), rows[i].kept ? SMALL : 0);
        finish(&world, a, NULL);
    }
}

/* A node that has met us as well as the master before us, and comes again, still knows how long that one lived. */
static void test_evidence_of_who_has_met_us(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *a = start_with_value(&world, "k");
    crash(&world, NEXT_EPOCH, 10000);
    world.now += 500;
    join_seen(&world, MC_ROLE_CALL, SECOND_WITNESS, FIRST_LIFE, NEXT_EPOCH, 400); /* we ourselves: says nothing */
    assert_int_equal(world.core->evidence_count, 0);
    join_seen(&world, MC_ROLE_CALL, WITNESS, FIRST_LIFE, NEXT_EPOCH, 600);
    assert_int_equal(world.core->evidence_count, 1);
    assert_false(fake_return(&world, a));
    finish(&world, a, NULL);
}

/* The note of the master that had these contents says that it gave nobody up: neither for how long it lived nor what
 * members say of it counts against them. What they say of others does, and so does all that may be of others. */
static void test_a_note_of_who_gave_up_nobody(void **state)
{
    enum { NOBODY, SAYS, COMES_AGAIN };
    static const struct {
        uint64_t known_epoch;
        unsigned witness;
        uint64_t seen_epoch, age_ms;
        bool is_whole, kept;
    } rows
        [] =
            {
                {3, NOBODY, 0, 0, false, false}, /* a note that does not say so */
                {3, NOBODY, 0, 0, true, true},
                {4, NOBODY, 0, 0, true, false}, /* it is of a master that came after the one with the contents */
                {3, SAYS, 3, 100, true, true},
                {3, SAYS, 3, 100, false, false},
                {3, SAYS, 2, 100, true, true},
                {3, SAYS, 4, 100, true, false},       /* of another machine */
                {3, SAYS, 4, 7001, true, true},       /* which had ended before it could act */
                {3, SAYS, 9, 100, true, false},       /* it has met us: nobody knows of whom it speaks, */
                {3, COMES_AGAIN, 3, 100, true, true}, /* unless it has said so before, */
                {3, COMES_AGAIN, 4, 100, true, false},
                {3, COMES_AGAIN, 3, 0, true, true},
            };
    struct world world;
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct mc_core_config config = mc_core_config_default();
        struct fake_owner *a = start_with_value(&world, "k");
        assert_false(mc_core_has_given_up(world.core));
        a->contact_ms = world.now;
        master_stop(&world);
        world.now += 10000;
        config.known_epoch = rows[i].known_epoch;
        config.known_is_timed = true;
        config.known_is_whole = rows[i].is_whole;
        config.known_age_ms = 100;
        master_start(&world, NEXT_EPOCH, &config);
        if (rows[i].witness == COMES_AGAIN) { /* its first hello breaks off */
            struct mc_wire_hello hello = world_hello(MC_ROLE_CALL, WITNESS, FIRST_LIFE);
            hello.seen_epoch = rows[i].seen_epoch;
            hello.seen_age_ms = (uint32_t)rows[i].age_ms;
            assert_int_equal(world_greet(&world, world_connect(&world), &hello).code, 0);
        }
        if (rows[i].witness != NOBODY)
            join_seen(&world, MC_ROLE_CALL, WITNESS, FIRST_LIFE,
                      rows[i].witness == COMES_AGAIN ? NEXT_EPOCH : rows[i].seen_epoch, rows[i].age_ms + 1);
        assert_int_equal(fake_return(&world, a), rows[i].kept);
        world_pass(&world, GRACE_OVER_MS);
        assert_int_equal(found(&world, a, "k"), rows[i].kept ? SMALL : 0);
        finish(&world, a, NULL);
    }
}

/* A note that was not kept to its master's end: members have heard that one later. It was not the last word. */
static void test_a_note_that_was_not_kept(void **state)
{
    struct world world;
    (void)state;
    for (uint64_t late_ms = MC_NOTE_LATE_MS; late_ms <= MC_NOTE_LATE_MS + 1; late_ms++) {
        struct mc_core_config config = mc_core_config_default();
        struct fake_owner *a = start_with_value(&world, "k");
        a->contact_ms = world.now;
        master_stop(&world);
        world.now += 10000;
        config.known_epoch = FIRST_EPOCH;
        config.known_is_timed = config.known_is_whole = true;
        config.known_age_ms = 5000;
        master_start(&world, NEXT_EPOCH, &config);
        join_seen(&world, MC_ROLE_CALL, WITNESS, FIRST_LIFE, FIRST_EPOCH, config.known_age_ms - late_ms);
        assert_int_equal(fake_return(&world, a), late_ms == MC_NOTE_LATE_MS);
        finish(&world, a, NULL);
    }
}

static void unmount(struct world *world, const struct fake_owner *owner)
{
    struct mc_wire_unmount head = {.segment = owner->segment};
    size_t frame = world_begin(world, MC_MESSAGE_UNMOUNT, 4);
    mc_wire_unmount_write(&world->frame, &head);
    world_send(world, owner->owner, frame);
    assert_int_equal(world_receive(world, owner->owner).type, MC_MESSAGE_UNMOUNT_REPLY);
}

/* Whoever is let go is given up in the eyes of the next master, too: by silence, or because it
 * says that it takes its memory along: it may be killed before that is dropped. */
static void test_who_is_given_up(void **state)
{
    enum { SILENT, LEAVES, WAYS };
    struct world world;
    (void)state;
    for (unsigned way = 0; way < WAYS; way++) {
        struct fake_owner *a = start_with_value(&world, "k");
        world_pass(&world, NEARLY_DEPARTED_MS);
        assert_false(mc_core_has_given_up(world.core));
        if (way == SILENT)
            world_pass(&world, 200);
        else
            unmount(&world, a);
        assert_true(mc_core_has_given_up(world.core));
        finish(&world, a, NULL);
    }
}

/* Clients that come late, with whatever age: a virtual machine that slept, say. */
static void test_late_hellos_cost_nothing(void **state)
{
    struct world world;
    static const uint64_t ages[] = {0, 8000, 62000, UINT32_MAX};
    (void)state;
    for (size_t i = 0; i < sizeof(ages) / sizeof(ages[0]); i++) {
        struct fake_owner *a = start_with_owner(&world);
        put_numbered(&world, a, 200);
        crash(&world, NEXT_EPOCH, 5000);
        come_back(&world, a);
        for (unsigned again = 0; again < 3; again++) {
            join_seen(&world, MC_ROLE_CALL, 50 + again, 1, 3, ages[i]);
            world_pass(&world, 500);
        }
        expect_numbered(&world, a, 200);
        finish(&world, a, NULL);
    }
}

static void test_many_epochs_of_evidence(void **state)
{
    struct world world;
    uint64_t dice = 4;
    struct mc_core_config config = mc_core_config_default();
    (void)state;
    world_start(&world, 1000, &config);
    for (unsigned i = 0; i < 240; i++) {
        uint64_t at =
            join_seen(&world, MC_ROLE_CALL, 60, 1, 1 + random_below(&dice, 998), 3000 + random_below(&dice, 100000));
        world_disconnect(&world, at);
        world.next_connection = at; /* the number is free again */
    }
    const struct mc_core *core = world.core;
    assert_true(core->evidence_count > 1 && core->evidence_count <= MC_EVIDENCE_MAX);
    for (uint32_t i = 1; i < core->evidence_count; i++)
        assert_true(core->evidence[i].epoch > core->evidence[i - 1].epoch &&
                    core->evidence[i].alive_ms < core->evidence[i - 1].alive_ms);
    world_close_all(&world);
    world_start(&world, 1000, &config);
    core = world.core;
    for (unsigned i = 0; i < 200; i++) { /* each later and older than the one before: all say something */
        uint64_t at = join_seen(&world, MC_ROLE_CALL, 60, 1, 700 + i, 4000 + i);
        world_disconnect(&world, at);
        world.next_connection = at;
    }
    assert_int_equal(core->evidence_count, MC_EVIDENCE_MAX);
    assert_int_equal(core->evidence[0].alive_ms, (int64_t)core->now_ms - 4000);
    world_close_all(&world);
}

/* ---- masters after us ---- */

/* A hello that names a later epoch than ours is not answered. The epoch that we want then; 0: none. */
static uint64_t contradict_with(struct world *world, unsigned role, uint64_t node, uint64_t epoch, unsigned rights)
{
    uint64_t late = world_connect(world);
    struct mc_wire_hello hello = world_hello(role, node, 1);
    hello.seen_epoch = epoch;
    if (rights != 0)
        mc_core_permitted(world->core, world->now, late, rights, 100 + node, "");
    assert_int_equal(world_greet(world, late, &hello).code, MC_ERR_PROTOCOL);
    assert_true(world->connections[late].closed);
    world_disconnect(world, late);
    world->next_connection = late; /* the number is free again */
    return mc_core_wanted_epoch(world->core);
}

static uint64_t contradict(struct world *world, unsigned role, uint64_t node, uint64_t epoch)
{
    return contradict_with(world, role, node, epoch, 0);
}

/* Where there are keys: who may not lend memory moves nobody, however many they are and however long they say it. */
static void test_wanted_epoch_with_keys(void **state)
{
    struct world world;
    (void)state;
    for (unsigned offers = 0; offers < 2; offers++) {
        struct fake_owner *a = NULL;
        if (offers)
            a = start_with_value(&world, "k");
        else
            world_start(&world, FIRST_EPOCH, NULL);
        for (unsigned word = 0; word < 6; word++, world.now += 1000)
            for (unsigned node = 50; node < 54; node++)
                assert_int_equal(contradict_with(&world, word % 2 == 0 ? MC_ROLE_CALL : MC_ROLE_HEARTBEAT, node, 7,
                                                 MC_RIGHTS_ALL & ~(unsigned)MC_RIGHT_NODE),
                                 0);
        assert_int_equal(statistics_of(&world).epochs_doubted, 24);
        if (offers)
            assert_int_equal(found(&world, a, "k"), SMALL);
        for (unsigned word = 0; word < 3; word++, world.now += 1000)
            for (unsigned node = 60; node < 62; node++)
                (void)contradict_with(&world, MC_ROLE_CALL, node, 7, MC_RIGHT_NODE);
        assert_int_equal(mc_core_wanted_epoch(world.core), 7 + MC_EPOCH_CARRY);
        finish(&world, a, NULL);
    }
}

/* As long as nothing of ours lives anywhere: two words, of one node or of two. */
static void test_wanted_epoch(void **state)
{
    struct world world;
    (void)state;
    for (unsigned nodes = 1; nodes <= 2; nodes++) {
        world_start(&world, FIRST_EPOCH, NULL);
        assert_int_equal(mc_core_wanted_epoch(world.core), 0);
        assert_int_equal(contradict(&world, MC_ROLE_CALL, 5, 7), 0);
        assert_int_equal(contradict(&world, MC_ROLE_CALL, 4 + nodes, 8 - nodes),
                         7 + MC_EPOCH_CARRY);                                                  /* the highest counts */
        assert_int_equal(contradict(&world, MC_ROLE_CALL, 5, UINT64_MAX), 7 + MC_EPOCH_CARRY); /* nonsense */
        assert_int_equal(contradict(&world, MC_ROLE_CALL, 5, MC_EPOCH_MAX), 7 + MC_EPOCH_CARRY);
        assert_int_equal(contradict(&world, MC_ROLE_CALL, 5, (1ull << 36) - 65538), 7 + MC_EPOCH_CARRY);
        uint64_t most = mc_core_epoch_latest(world.core->now_ms / 10) - 2 * MC_EPOCH_CARRY;
        assert_int_equal(contradict(&world, MC_ROLE_CALL, 5, most + 1), 7 + MC_EPOCH_CARRY);
        assert_int_equal(contradict(&world, MC_ROLE_CALL, 5, most), most + MC_EPOCH_CARRY);
        finish(&world, NULL, NULL);
    }
    world_start(&world, FIRST_EPOCH, NULL);
    assert_int_equal(contradict(&world, MC_ROLE_CALL, 5, 7), 0);
    world_pass(&world, 10 * SECOND_MS); /* forgotten */
    assert_int_equal(contradict(&world, MC_ROLE_CALL, 6, 7), 0);
    uint64_t owner = world_join(&world, MC_ROLE_OWNER, NODE_C, FIRST_LIFE);
    struct mc_wire_mount mount = world_mount_of(1, MIB, "a");
    mount.epoch = 9;
    size_t frame = world_begin(&world, MC_MESSAGE_MOUNT, 2);
    mc_wire_mount_write(&world.frame, &mount);
    world_send(&world, owner, frame);
    assert_int_equal(world_receive(&world, owner).type, 0); /* STALE would cost it its contents */
    assert_true(world.connections[owner].closed);
    assert_int_equal(mc_core_wanted_epoch(world.core), 9 + MC_EPOCH_CARRY);
    struct mc_wire_hello hello = world_hello(MC_ROLE_CALL, NODE_A, FIRST_LIFE);
    hello.seen_epoch = FIRST_EPOCH;
    assert_int_equal(world_greet(&world, world_connect(&world), &hello).code, 0);
    finish(&world, NULL, NULL);
}

/* Once members live by our word: a node that lends memory and stands by its own, or two nodes that do. */
static void test_wanted_epoch_of_who_serves(void **state)
{
    static const struct {
        unsigned role, nodes, words;
        uint64_t every_ms;
        bool moves, is_new; /* is_new: each word is said by the next process of that node */
    } rows[] = {
        {MC_ROLE_CALL, 1, 1, 0, false, false},    {MC_ROLE_CALL, 1, 100, 0, false, false},
        {MC_ROLE_CALL, 1, 60, 500, false, false}, {MC_ROLE_HEARTBEAT, 1, 60, 500, false, false},
        {MC_ROLE_CALL, 40, 1, 0, false, false},   {MC_ROLE_CALL, 2, 2, 5000, false, false},
        {MC_ROLE_CALL, 2, 3, 999, false, false},  {MC_ROLE_CALL, 2, 3, 1000, true, false},
        {MC_ROLE_OWNER, 1, 1, 0, false, false},   {MC_ROLE_OWNER, 1, 100, 0, false, false},
        {MC_ROLE_OWNER, 1, 3, 1000, true, false}, {MC_ROLE_OWNER, 1, 3, 1000, true, true},
        {MC_ROLE_CALL, 2, 3, 1000, false, true},
    };
    struct world world;
    (void)state;
    for (size_t row = 0; row < sizeof(rows) / sizeof(rows[0]); row++) {
        struct fake_owner *a = start_with_value(&world, "k");
        for (unsigned word = 0; word < rows[row].words; word++) {
            for (unsigned node = 0; node < rows[row].nodes; node++)
                (void)contradict(&world, rows[row].role, 50 + node + (rows[row].is_new ? 10 * word : 0), 7);
            if (word + 1 < rows[row].words)
                world.now += rows[row].every_ms;
        }
        assert_int_equal(mc_core_wanted_epoch(world.core), rows[row].moves ? 7 + MC_EPOCH_CARRY : 0);
        if (row == 0)
            assert_int_equal(found(&world, a, "k"), SMALL);
        assert_int_equal(statistics_of(&world).epochs_doubted, rows[row].words * rows[row].nodes);
        finish(&world, a, NULL);
    }
}

/* However firmly they stand by it: what would leave too little for those who follow is no epoch. */
static void test_no_epoch_beyond_the_clock(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *a = start_with_value(&world, "k");
    for (unsigned word = 0; word < 6; word++, world.now += 1000)
        for (unsigned node = 50; node < 54; node++)
            assert_int_equal(contradict(&world, MC_ROLE_OWNER, node, mc_core_epoch_latest(1000)), 0);
    assert_int_equal(found(&world, a, "k"), SMALL);
    finish(&world, a, NULL);
}

/* The epoch that the highest words can lead to is one that a later master, which has only its clock, still believes in:
 * once it is three minutes later, which may pass while it waits. So does one whose clock stands years behind those of
 * who went before it, and nobody is left without a master for good. */
static void test_who_follows_the_highest_words(void **state)
{
    static const uint64_t clocks[] = {1, 6000000000, 25000000000, 47325000000}; /* 2025, 2026, 2032, 2039 */
    struct world world;
    (void)state;
    for (unsigned i = 0; i < sizeof(clocks) / sizeof(clocks[0]); i++) {
        struct mc_core_config config = mc_core_config_default();
        config.clock_epoch = clocks[i];
        world_start(&world, clocks[i], &config);
        uint64_t latest = mc_core_epoch_latest(clocks[i]);
        assert_true(latest <= MC_EPOCH_LATEST && latest >= clocks[i] + 2000000000);
        for (unsigned word = 0; word < 3; word++)
            assert_int_equal(contradict(&world, MC_ROLE_OWNER, 5, latest), 0); /* who has met it */
        world_pass(&world, 120 * SECOND_MS);
        assert_int_equal(contradict(&world, MC_ROLE_OWNER, 5, latest), 0);
        assert_int_equal(contradict(&world, MC_ROLE_OWNER, 5, latest), 0);
        world_pass(&world, 60 * SECOND_MS);
        assert_int_equal(contradict(&world, MC_ROLE_OWNER, 5, latest), 0); /* one word, as ever */
        assert_int_equal(contradict(&world, MC_ROLE_OWNER, 5, latest), latest + MC_EPOCH_CARRY);
        finish(&world, NULL, NULL);
    }
    assert_true(mc_core_epoch_latest(1) > 25 * UINT64_C(1000000000)); /* 2033 */
    assert_int_equal(mc_core_epoch_latest(UINT64_MAX), MC_EPOCH_LATEST);
}

/* ---- counters that have come to their end ---- */

/* No generation is left under this epoch: nothing more is placed, and a later one is wanted, above all that was. */
static void test_epoch_that_is_full(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *a = start_with_owner(&world);
    world.core->counter = MC_COUNTER_END - 3;
    assert_int_equal(fake_put(&world, a, "k1", SMALL, 0), 0);
    uint64_t highest = held(a, "k1")->generation;
    assert_int_equal(highest, ((uint64_t)FIRST_EPOCH << MC_EPOCH_SHIFT) + MC_COUNTER_END - 2);
    assert_int_equal(found(&world, a, "k1"), SMALL);
    assert_int_equal(fake_put(&world, a, "k2", SMALL, 0), 0);
    assert_int_equal(mc_core_wanted_epoch(world.core), 0);
    size_t frame = world_begin(&world, MC_MESSAGE_PUT_START, 7);
    mc_wire_put_start_write(&world.frame, &(struct mc_wire_put_start){.replica_count = 1});
    size_t list = mc_list_begin(&world.frame);
    mc_wire_put_start_item_write(&world.frame,
                                 &(struct mc_wire_put_start_item){.length = SMALL, .key = mc_span_string("k3")});
    mc_list_end(&world.frame, list, 1);
    mc_list_end(&world.frame, mc_list_begin(&world.frame), 0);
    mc_list_end(&world.frame, mc_list_begin(&world.frame), 0);
    world_send(&world, a->call, frame);
    assert_int_equal(world_receive(&world, a->call).type, MC_MESSAGE_FAILED); /* BUSY */
    assert_int_equal(mc_core_wanted_epoch(world.core), FIRST_EPOCH + MC_EPOCH_CARRY);
    assert_int_equal(found(&world, a, "k2"), SMALL);
    crash(&world, mc_core_wanted_epoch(world.core), 0); /* what the shell does */
    come_back(&world, a);
    assert_int_equal(found(&world, a, "k1"), SMALL);
    assert_int_equal(found(&world, a, "k2"), SMALL);
    assert_int_equal(fake_put(&world, a, "k3", SMALL, 0), 0);
    assert_true(held(a, "k3")->generation > held(a, "k2")->generation);
    finish(&world, a, NULL);
}

/* Every number of a segment was given out so often that it is not given out again; then those of the next index are,
 * and when there is none, none is mounted. */
static void test_segment_numbers_that_are_used_up(void **state)
{
    struct world world;
    (void)state;
    world_start(&world, FIRST_EPOCH, NULL);
    struct fake_owner *a = fake(NODE_A), *b = fake(NODE_B);
    world.core->segment_uses[1] = UINT16_MAX - 1;
    assert_int_equal(fake_join(&world, a).segment, (uint32_t)(UINT16_MAX - 1) << 16 | 1);
    for (uint32_t i = 1; i < MC_SEGMENTS_MAX; i++)
        world.core->segment_uses[i] = UINT16_MAX;
    assert_int_equal(fake_join(&world, b).code, MC_ERR_BUSY);
    world.core->segment_uses[4711] = 8;
    assert_int_equal(fake_join(&world, b).segment, 8u << 16 | 4711);
    finish(&world, a, b);
}

/* The two frames that emptied a healthy cluster: the next epoch, then the first epoch with age 0. */
static void test_two_frames(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *a = start_with_owner(&world);
    put_numbered(&world, a, 200);
    assert_int_equal(contradict(&world, MC_ROLE_CALL, 66, 4), 0);
    if (mc_core_wanted_epoch(world.core) != 0) /* what the shell does then */
        crash(&world, mc_core_wanted_epoch(world.core), 4000);
    if (!a->mounted)
        (void)fake_return(&world, a);
    join_seen(&world, MC_ROLE_CALL, 66, 1, 3, 0);
    world_pass(&world, GRACE_OVER_MS);
    expect_numbered(&world, a, 200);
    finish(&world, a, NULL);
}

static void test_predecessor_that_is_known_to_have_ended(void **state)
{
    struct world world;
    (void)state;
    for (unsigned round = 0; round < 2; round++) {
        struct mc_core_config config = mc_core_config_default();
        struct fake_owner *a = start_with_value(&world, "k");
        config.predecessor_end_ms = world.now + (round == 0 ? 2999 : 3000);
        master_stop(&world);
        world.now += 5000;
        master_start(&world, NEXT_EPOCH, &config);
        assert_int_equal(fake_return(&world, a), round == 0);
        assert_int_equal(found(&world, a, "k"), round == 0 ? SMALL : 0); /* no grace */
        finish(&world, a, NULL);
    }
}

/* The election says that the master before us gave nobody up. Then what it had offered is whole, whatever is believed
 * of its end and of contacts; so is what was offered by masters before it, back to the last that gave somebody up or
 * came of age. What is of any other master is judged as ever. */
static void test_predecessor_that_gave_nobody_up(void **state)
{
    static const struct {
        uint64_t whole_epoch, whole_since;
        bool returns;
    } rows[] = {{0, 0, false}, {0, 3, false}, {2, 0, false}, {2, 1, false}, {3, 0, true}, {3, 2, true},
                {4, 0, false}, {4, 4, false}, {4, 3, true},  {8, 3, true},  {8, 4, false}};
    struct world world;
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct mc_core_config config = mc_core_config_default();
        struct fake_owner *a = start_with_value(&world, "k"), *b = fake(NODE_B);
        world.now += 20000;
        config.predecessor_end_ms = world.now;
        config.whole_epoch = rows[i].whole_epoch;
        config.whole_since = rows[i].whole_since;
        config.asks_to_depart = true;
        master_stop(&world);
        world.now += 2000;
        master_start(&world, NEXT_EPOCH, &config);
        join_seen(&world, MC_ROLE_CALL, WITNESS, FIRST_LIFE, FIRST_EPOCH,
                  2000); /* others were in touch with it to the end */
        assert_int_equal(fake_return(&world, a), rows[i].returns);
        assert_int_equal(found(&world, a, "k"), rows[i].returns ? SMALL : 0);
        /* That somebody was given up is for the next to know. */
        b->epoch = 1;
        b->contact_ms = world.now;
        assert_int_equal(fake_join(&world, b).inventory, 1);
        assert_false(mc_core_asks_to_depart(world.core));
        for (unsigned s = 0; s < 30; s++) { /* it does not go on */
            world_beat(&world, a->heartbeat);
            world_beat(&world, b->heartbeat);
            world_pass(&world, SECOND_MS);
        }
        assert_true(mc_core_asks_to_depart(world.core));
        finish(&world, a, b);
    }
}

/* A note of the masters before us: contents that the last one to act may have missed are refused, though nobody who
 * heard of it is there. Without one they are taken, and that is said. */
static void test_what_a_note_tells(void **state)
{
    static const struct {
        uint64_t known_epoch, known_age_ms;
        bool is_timed, returns, in_doubt;
    } rows[] = {
        {0, 0, false, true, true},     /* no note */
        {2, 1000, false, true, true},  /* of another boot: who had them came after it */
        {2, 4501, true, true, true},   /* it was kept elsewhere, before */
        {2, 4499, true, false, false}, /* its clock was late: it came after who had them */
        {3, 4501, true, true, false},  /* who had them ended before it could act on the owner's absence */
        {3, 4499, true, false, false}, {8, 4501, true, true, false}, /* so did a later one */
        {8, 4499, true, false, false}, {8, 4499, false, false, false},
    };
    struct world world;
    struct mc_core_statistics statistics;
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct mc_core_config config = mc_core_config_default();
        struct fake_owner *a = start_with_value(&world, "k");
        config.known_epoch = rows[i].known_epoch;
        config.known_age_ms = rows[i].known_age_ms;
        config.known_is_timed = rows[i].is_timed;
        a->contact_ms = world.now;
        master_stop(&world);
        world.now += 7500;
        master_start(&world, NEXT_EPOCH, &config);
        assert_int_equal(fake_return(&world, a), rows[i].returns);
        world_pass(&world, SECOND_MS);
        assert_int_equal(found(&world, a, "k"), rows[i].returns ? SMALL : 0);
        statistics = statistics_of(&world);
        assert_int_equal(statistics.recovery_in_doubt, rows[i].in_doubt);
        finish(&world, a, NULL);
    }
}

/* The master of these contents has noted up to which of its ages it acted on silences. That decides over a contact of
 * that age, whenever that master ended. Later ones are whole if it is the last that acted on any, whenever it ended;
 * else they are judged as without it, and are not in doubt. */
static void test_horizon_of_the_predecessor(void **state)
{
    static const struct {
        uint64_t epoch, at_ms, contact_at_ms, end_ms; /* end_ms: since the contact; 0: nobody knows it */
        uint64_t departed_epoch;
        bool returns, in_doubt;
    } rows[] = {
        {3, 5000, 4999, 0, 0, false, false},
        {3, 5000, 5000, 0, 0, false, false},
        {3, 5000, 5001, 0, 0, true, false},
        {3, 5000, 5000, 100, 0, false, false},
        {3, 5000, 5001, 100, 0, true, false},
        /* another one may have acted, or has */
        {3, 5000, 5001, 4000, 0, false, false},
        {3, 5000, 5001, 4000, 7, false, false},
        /* that one has, and acted on nobody who was silent for less */
        {3, 5000, 5001, 4000, 3, true, false},
        {3, 5000, 5000, 4000, 3, false, false},
        {3, 5000, 0, 4000, 3, false, false},
        /* its owner is of a release that does not know */
        {3, 5000, 0, 0, 0, true, true},
        /* that is another master's age */
        {2, 5000, 4999, 0, 0, true, true},
        {4, 5000, 4999, 0, 0, true, true},
    };
    struct world world;
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct mc_core_config config = mc_core_config_default();
        struct fake_owner *a = start_with_value(&world, "k");
        a->contact_ms = world.now;
        a->contact_at_ms = rows[i].contact_at_ms;
        config.horizons[1] = (struct mc_horizon){rows[i].epoch, rows[i].at_ms};
        config.horizons[0] = (struct mc_horizon){rows[i].epoch + 4, 9000};
        config.departed_epoch = rows[i].departed_epoch;
        config.predecessor_end_ms = rows[i].end_ms == 0 ? 0 : world.now + rows[i].end_ms;
        master_stop(&world);
        world.now += 7500;
        master_start(&world, NEXT_EPOCH, &config);
        assert_int_equal(fake_return(&world, a), rows[i].returns);
        world_pass(&world, SECOND_MS);
        assert_int_equal(found(&world, a, "k"), rows[i].returns ? SMALL : 0);
        struct mc_core_statistics statistics = statistics_of(&world);
        assert_int_equal(statistics.recovery_in_doubt, rows[i].in_doubt);
        finish(&world, a, NULL);
    }
}

/* The note says who came of age last: what it has not met it answered for, and no clock is asked how long ago that was.
 * In one process it is also known which one followed: contents of an epoch between the two are of a master whose clock
 * was ahead. */
static void test_who_was_absent_under_a_master_of_age(void **state)
{
    static const struct {
        uint64_t aged_epoch, aged_next;
        bool returns;
    } rows[] = {{0, 0, true}, {3, 0, true},  {4, 0, false}, {8, 0, false}, {2, 0, true},
                {2, 3, true}, {2, 4, false}, {2, 9, false}, {3, 9, true}};
    struct world world;
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct mc_core_config config = mc_core_config_default();
        struct fake_owner *a = start_with_value(&world, "k");
        config.aged_epoch = rows[i].aged_epoch;
        config.aged_next = rows[i].aged_next;
        a->contact_ms = world.now; /* a moment ago, it says */
        master_stop(&world);
        world.now += SHORTLY_MS;
        master_start(&world, NEXT_EPOCH, &config);
        assert_int_equal(fake_return(&world, a), rows[i].returns);
        world_pass(&world, SECOND_MS);
        assert_int_equal(found(&world, a, "k"), rows[i].returns ? SMALL : 0);
        finish(&world, a, NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_after_the_window),
        cmocka_unit_test(test_no_cliff),
        cmocka_unit_test(test_inventory_that_stands_still),
        cmocka_unit_test(test_too_many_tombstones),
        cmocka_unit_test(test_a_put_that_failed_lets_nothing_back),
        cmocka_unit_test(test_many_keys_of_an_inventory_that_breaks_off),
        cmocka_unit_test(test_what_was_offered_is_not_forgotten),
        cmocka_unit_test(test_evidence),
        cmocka_unit_test(test_evidence_that_is_none),
        cmocka_unit_test(test_cores_that_changed_nothing),
        cmocka_unit_test(test_evidence_of_who_has_met_us),
        cmocka_unit_test(test_a_note_of_who_gave_up_nobody),
        cmocka_unit_test(test_a_note_that_was_not_kept),
        cmocka_unit_test(test_predecessor_that_is_known_to_have_ended),
        cmocka_unit_test(test_predecessor_that_gave_nobody_up),
        cmocka_unit_test(test_what_a_note_tells),
        cmocka_unit_test(test_horizon_of_the_predecessor),
        cmocka_unit_test(test_who_was_absent_under_a_master_of_age),
        cmocka_unit_test(test_who_is_given_up),
        cmocka_unit_test(test_late_hellos_cost_nothing),
        cmocka_unit_test(test_many_epochs_of_evidence),
        cmocka_unit_test(test_wanted_epoch),
        cmocka_unit_test(test_wanted_epoch_of_who_serves),
        cmocka_unit_test(test_wanted_epoch_with_keys),
        cmocka_unit_test(test_no_epoch_beyond_the_clock),
        cmocka_unit_test(test_who_follows_the_highest_words),
        cmocka_unit_test(test_two_frames),
        cmocka_unit_test(test_epoch_that_is_full),
        cmocka_unit_test(test_segment_numbers_that_are_used_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
