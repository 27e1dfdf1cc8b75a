/* The core's recovery: contents of earlier epochs, owners that restart, what was removed meanwhile; and a model. */
#include "core_owner.h"
#include "random.h"

/* ---- section 1: a master that lost everything ---- */

static void test_contents_come_back(void **state)
{
    struct world world;
    char key[24];
    (void)state;
    world_start(&world, FIRST_EPOCH, NULL);
    struct fake_owner *a = fake(NODE_A);
    assert_int_equal(fake_join(&world, a).inventory, 0);
    for (unsigned i = 0; i < 300; i++) {
        (void)snprintf(key, sizeof(key), "k%u", i);
        assert_int_equal(fake_put(&world, a, key, SMALL + i, i % 3), 0);
    }
    for (unsigned i = 0; i < 300; i += 7) {
        (void)snprintf(key, sizeof(key), "k%u", i);
        assert_int_equal(fake_remove(&world, a, a, key), 0);
    }
    uint64_t used = statistics_of(&world).used;
    crash(&world, NEXT_EPOCH, 500);
    struct mc_wire_mount_reply reply = fake_join(&world, a);
    assert_int_equal(reply.code, 0);
    assert_int_equal(reply.inventory, 1);
    struct mc_core_segment segment;
    assert_true(mc_core_segment(world.core, a->segment, &segment));
    assert_true(segment.recovering && segment.state == 1);
    assert_int_equal(world_grant(&world, a->call, PUT_1, "new", SMALL, NULL, NULL), MC_ERR_SPACE_SOON);
    assert_true(fake_tell(&world, a, 100));
    assert_int_equal(found(&world, a, "k1"), 0); /* not before the grace has passed */
    world_pass(&world, 900);
    assert_int_equal(found(&world, a, "k1"), 0);
    world_pass(&world, 200);
    for (unsigned i = 0; i < 300; i++) {
        (void)snprintf(key, sizeof(key), "k%u", i);
        assert_int_equal(found(&world, a, key), i % 7 == 0 ? 0 : SMALL + i);
    }
    struct mc_core_statistics statistics = statistics_of(&world);
    assert_int_equal(statistics.used, used);
    assert_int_equal(statistics.recovered_objects, 257);
    assert_int_equal(statistics.objects, 257);
    assert_true(statistics.soft_pinned > 50); /* pins survive */
    assert_true(mc_objects_find(&world.core->objects, mc_span_string("k1"))->hard);
    assert_int_equal(statistics.put_bytes, 0);
    /* It is a segment like any other now. */
    for (unsigned i = 0; i < 300; i++) {
        (void)snprintf(key, sizeof(key), "n%u", i);
        assert_int_equal(fake_put(&world, a, key, SMALL, 0), 0);
    }
    grow_old(&world, a);
    assert_int_equal(fake_remove(&world, a, a, "k2"), 0);
    world_pass(&world, 100);
    finish(&world, a, NULL);
}

/* A master to which only new processes come does not know that it follows another; all the same it removes nothing
 * before it has lived depart_ms, and says so. */
static void test_young_master_without_a_sign(void **state)
{
    struct world world;
    const char *key = "k";
    (void)state;
    struct fake_owner *a = start_with_owner(&world), *b = fake(NODE_B);
    assert_int_equal(fake_put(&world, a, key, SMALL, 0), 0);
    crash(&world, NEXT_EPOCH, SHORTLY_MS);
    assert_int_equal(fake_join(&world, b).code, 0);
    assert_int_equal(hello_acts(&world, WITNESS), 0); /* nothing was placed */
    assert_int_equal(fake_put(&world, b, "other", SMALL, 0), 0);
    assert_int_equal(hello_acts(&world, SECOND_WITNESS), 1);
    assert_int_equal(world.core->evidence_count, 0);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(world_remove(&world, b->call, key, true), MC_ERR_BUSY);
        world_remove_all_send(&world, b->call, NULL, true);
        assert_int_equal(world_receive(&world, b->call).type, MC_MESSAGE_FAILED);
        world_pass(&world, i == 0 ? 2998 : 1); /* the last moment, and past it */
    }
    assert_int_equal(fake_remove(&world, b, NULL, key), MC_ERR_BUSY);
    world_pass(&world, 1);
    assert_int_equal(fake_remove(&world, b, NULL, key), MC_ERR_OBJECT_NOT_FOUND);
    finish(&world, a, b);
    /* Also where the election knows that the one before has ended long ago. */
    struct mc_core_config config = mc_core_config_default();
    config.predecessor_end_ms = 1000000 - 2000;
    world.now = 1000000;
    master_start(&world, NEXT_EPOCH, &config);
    assert_int_equal(hello_acts(&world, WITNESS), 0);
    world_pass(&world, MC_DEPART_MS - 1);
    assert_true(mc_recover_unsettled(world.core));
    world_pass(&world, 1);
    assert_false(mc_recover_unsettled(world.core));
    assert_int_equal(hello_acts(&world, SECOND_WITNESS), 1);
    finish(&world, NULL, NULL);
}

/* One that is to say it first stays young until it was said: it removes nothing, and is no evidence. */
static void test_young_until_it_is_noted(void **state)
{
    struct mc_core_config config = mc_core_config_default();
    struct world world;
    (void)state;
    config.asks_to_age = true;
    world_start(&world, FIRST_EPOCH, NULL);
    master_stop(&world);
    master_start(&world, NEXT_EPOCH, &config);
    struct fake_owner *a = fake(NODE_A);
    world_pass(&world, MC_DEPART_MS - 1);
    assert_false(mc_core_asks_to_age(world.core));
    world_pass(&world, 1);
    assert_true(mc_core_asks_to_age(world.core));
    world_pass(&world, 60 * SECOND_MS);
    assert_int_equal(hello_acts(&world, WITNESS), 0);
    assert_false(mc_core_acts(world.core));
    assert_int_equal(fake_join(&world, a).code, 0);
    assert_int_equal(fake_put(&world, a, "k", SMALL, 0), 0);
    assert_int_equal(fake_remove(&world, a, NULL, "k"), MC_ERR_BUSY);
    assert_int_equal(fake_remove(&world, a, NULL, "none"), MC_ERR_BUSY);
    mc_core_let_age(world.core);
    assert_false(mc_core_asks_to_age(world.core));
    assert_int_equal(fake_remove(&world, a, NULL, "none"), MC_ERR_OBJECT_NOT_FOUND);
    assert_true(mc_core_acts(world.core));
    finish(&world, a, NULL);
}

/* It evicts nothing that may hide what is still to come, as long as memory may come: not for the hour in which disks
 * may, or a full pool would take nothing. */
static void test_young_for_long_where_disks_may_come(void **state)
{
    (void)state;
    for (unsigned over = 0; over < 2; over++) {
        struct mc_core_config config = mc_core_config_default();
        struct world world;
        char key[2] = "a";
        int32_t code = 0;
        config.asks_to_age = true;
        config.offload = MC_OFFLOAD_ON_PUT;
        world_start(&world, FIRST_EPOCH, NULL);
        master_stop(&world);
        master_start(&world, NEXT_EPOCH, &config);
        (void)join_seen(&world, MC_ROLE_CALL, WITNESS, FIRST_LIFE, FIRST_EPOCH, 5000);
        world_pass(&world, over == 1 ? config.recovery_window_ms + SECOND_MS : SECOND_MS);
        assert_int_equal(world.core->evidence_count, 1);
        assert_int_equal(world.core->recovery_over, over);
        struct fake_owner *a = fake(NODE_A);
        assert_int_equal(fake_join(&world, a).code, 0);
        for (; key[0] <= 'z'; key[0]++) {
            code = fake_put(&world, a, key, 100000, 0);
            world_settle(&world, 100);
            (void)fake_obey(&world, a);
        }
        assert_int_equal(code, over == 1 ? 0 : MC_ERR_SPACE_SOON);
        finish(&world, a, NULL);
    }
}

/* Nobody has led for long: longer than owners may be silent. They are there, and need a moment to come; a client that
 * is quicker is told to wait. A removal by pattern would cost all that they hold. */
static void test_nobody_has_led_for_long(void **state)
{
    struct world world;
    (void)state;
    for (unsigned slept = 0; slept < 2; slept++) {
        struct mc_core_config config = mc_core_config_default();
        struct fake_owner *a = start_with_value(&world, "k");
        config.predecessor_end_ms = world.now + 100;
        master_stop(&world);
        world.now += 10000;
        master_start(&world, NEXT_EPOCH, &config);
        uint64_t call = world_client(&world, WITNESS);
        world_pass(&world, slept ? 500 : 2500);
        world.now += slept ? 9999 : 0; /* of which it may count the second after which it wished to be called */
        world_remove_all_send(&world, call, "^x", true);
        assert_int_equal(world_receive(&world, call).type, MC_MESSAGE_FAILED);
        assert_int_equal(world_grant(&world, call, PUT_1, "new", SMALL, NULL, NULL), MC_ERR_SPACE_SOON);
        assert_true(fake_return(&world, a));
        assert_int_equal(found(&world, a, "k"), SMALL); /* no grace */
        assert_int_equal(fake_remove(&world, a, a, "k"), MC_ERR_BUSY);
        world_pass(&world, slept ? 1499 : 499);
        assert_int_equal(fake_remove(&world, a, a, "k"), MC_ERR_BUSY);
        world_pass(&world, slept ? 1001 : 1);
        assert_int_equal(fake_remove(&world, a, a, "k"), 0);
        finish(&world, a, NULL);
    }
}

/* What is put at a young master may hide an older value of the key, in a segment that comes only to the master after
 * it: what came from before is evicted, the new is not. */
static void test_young_master_evicts_nothing_new(void **state)
{
    struct world world;
    char key[24];
    (void)state;
    for (unsigned old = 0; old < 2; old++) {
        unsigned count = 0;
        world_start(&world, FIRST_EPOCH, NULL);
        struct fake_owner *a = fake(NODE_A), *b = fake(NODE_B);
        if (old == 1) {
            assert_int_equal(fake_join(&world, a).code, 0);
            for (unsigned i = 0; i < 4; i++) {
                (void)snprintf(key, sizeof(key), "o%u", i);
                assert_int_equal(fake_put(&world, a, key, MIB / 5, 0), 0);
            }
        }
        crash(&world, NEXT_EPOCH, SHORTLY_MS);
        join_seen(&world, MC_ROLE_CALL, WITNESS, FIRST_LIFE, FIRST_EPOCH, 10);
        if (old == 1)
            assert_true(fake_return(&world, a));
        else
            assert_int_equal(fake_join(&world, a).code, 0);
        world_pass(&world, GRACE_OVER_MS);
        for (; count < 20; count++) {
            int32_t code = 0;
            (void)snprintf(key, sizeof(key), "n%u", count);
            for (unsigned i = 0; i < 5; i++) {
                code = fake_put(&world, a, key, MIB / 5, 0);
                (void)fake_obey(&world, a);
                if (code != MC_ERR_SPACE_SOON)
                    break;
            }
            if (code != 0) {
                assert_int_equal(code, MC_ERR_SPACE_SOON);
                break;
            }
        }
        assert_in_range(count, 3, 5); /* what fits when all that is old has gone */
        for (unsigned i = 0; i < count; i++) {
            (void)snprintf(key, sizeof(key), "n%u", i);
            assert_int_equal(found(&world, a, key), MIB / 5);
        }
        assert_int_equal(found(&world, a, "o0"), 0);
        grow_old(&world, a);
        int32_t code = MC_ERR_SPACE_SOON;
        for (unsigned i = 0; i < 5 && code == MC_ERR_SPACE_SOON; i++) {
            code = fake_put(&world, a, "last", MIB / 5, 0);
            (void)fake_obey(&world, a);
        }
        assert_int_equal(code, 0);
        finish(&world, a, b);
    }
}

/* What a master has merged but not offered stays of the epoch before: it comes again under that, and whoever follows a
 * master that died meanwhile judges it by what was known of that epoch. */
static void test_offered(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *a = start_with_value(&world, "k");
    uint64_t contact = world.now;
    crash(&world, NEXT_EPOCH, SHORTLY_MS);
    assert_int_equal(fake_join(&world, a).inventory, 1);
    assert_true(fake_tell(&world, a, 3));
    assert_int_equal(a->offered, 0);
    a->epoch = FIRST_EPOCH; /* an owner that is not told goes on saying so */
    a->contact_ms = contact;
    assert_int_equal(fake_join(&world, a).inventory, 2);
    assert_int_equal(hello_acts(&world, WITNESS), 0);
    world_pass(&world, GRACE_OVER_MS);
    (void)fake_obey(&world, a);
    assert_int_equal(a->offered, 1);
    assert_int_equal(hello_acts(&world, SECOND_WITNESS), 0); /* nor has it placed or removed anything */
    a->epoch = FIRST_EPOCH;                                  /* it did not hear of it */
    a->contact_ms = contact;
    assert_int_equal(fake_join(&world, a).inventory, 0);
    assert_int_equal(found(&world, a, "k"), SMALL);
    a->epoch = 2; /* of no mount that we know */
    assert_int_equal(fake_join(&world, a).code, MC_ERR_STALE);
    finish(&world, a, NULL);
}

static void test_empty_inventory(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *a = start_with_owner(&world);
    crash(&world, NEXT_EPOCH, SHORTLY_MS);
    come_back(&world, a);
    assert_int_equal(fake_put(&world, a, "k", SMALL, 0), 0);
    assert_int_equal(found(&world, a, "k"), SMALL);
    finish(&world, a, NULL);
}

/* Two replicas of different age, in either order of coming; and two of one put. */
static void test_versions(void **state)
{
    struct world world;
    (void)state;
    for (unsigned order = 0; order < 2; order++) {
        struct fake_owner *a = start_with_owner(&world), *b = fake(NODE_B);
        assert_int_equal(fake_join(&world, b).code, 0);
        assert_int_equal(fake_put(&world, a, "k", SMALL, 0), 0);
        struct fake_slot *of_k = held(a, "k"), old = *of_k;
        assert_int_equal(fake_remove(&world, a, a, "k"), 0);
        assert_int_equal(fake_put(&world, b, "k", SMALL + 1, 0), 0);
        /* and one put of two replicas */
        static struct world_grants grants;
        const struct world_wish two = {.replica_count = 2};
        struct world_item item = {mc_span_string("t"), 200};
        world_put_start(&world, a->call, PUT_1, &item, 1, &two, &grants);
        assert_int_equal(grants.place_count, 2);
        for (unsigned i = 0; i < 2; i++) {
            assert_int_equal(grants.places[i].replica, i);
            assert_int_equal(grants.places[i].generation - i, grants.places[0].generation);
            struct fake_owner *at = grants.places[i].segment == a->segment ? a : b;
            fake_write(at, &grants.places[i], "t", 200, 0, 1);
            world_live(&world, at->owner, &grants.places[i]);
        }
        of_k = &a->slots[3000]; /* its CLEAR did not arrive, say; at a place of its own, for others may be there now */
        *of_k = old;
        of_k->offset = 512 << 10;
        crash(&world, NEXT_EPOCH, SHORTLY_MS);
        assert_true(fake_return(&world, order == 0 ? a : b));
        assert_true(fake_return(&world, order == 0 ? b : a));
        world_pass(&world, GRACE_OVER_MS);
        assert_int_equal(found(&world, a, "k"), SMALL + 1);
        (void)fake_obey(&world, a);
        assert_int_equal(of_k->state, 0); /* the loser was cleared */
        world_pass(&world, 1);            /* before what else is there is offered */
        struct mc_wire_found what;
        assert_int_equal(world_get(&world, a->call, "t", 0, &what, NULL), 0);
        assert_int_equal(what.replica_count, 2);
        assert_int_equal(statistics_of(&world).clearing_bytes, 0);
        finish(&world, a, b);
    }
}

/* A value has a replica with each of two owners. The first of them to come to the next master is short of room there:
 * what it holds is evicted, which says nothing of the other replica. That one brings the key back, unless it was
 * removed meanwhile, and an older value does not. */
static void test_evicted_before_the_other_replica_is_back(void **state)
{
    struct world world;
    struct mc_wire_found what;
    static struct world_grants grants;
    char key[24];
    (void)state;
    for (unsigned is_removed = 0; is_removed < 2; is_removed++) {
        struct fake_owner *a = start_with_owner(&world), *b = fake(NODE_B);
        assert_int_equal(fake_join(&world, b).code, 0);
        struct world_item item = {mc_span_string("both"), MIB / 5};
        const struct world_wish two = {.replica_count = 2};
        world_put_start(&world, a->call, PUT_9, &item, 1, &two, &grants);
        for (unsigned i = 0; i < 2; i++) {
            struct fake_owner *to = grants.places[i].segment == a->segment ? a : b;
            fake_write(to, &grants.places[i], "both", MIB / 5, 0, 1);
            world_live(&world, to->owner, &grants.places[i]);
        }
        assert_int_equal(world_put_done(&world, a->call, PUT_9), 0);
        crash(&world, NEXT_EPOCH, SHORTLY_MS);
        world.core->config.policy = mc_eviction_find("lru"); /* it goes though it was read once */
        come_back(&world, a);
        assert_int_equal(found(&world, a, "both"), MIB / 5);
        grow_old(&world, a); /* nobody reads it any more, and removals are answered */
        for (unsigned i = 0; i < 40 && held(a, "both")->state == 1; i++) {
            (void)snprintf(key, sizeof(key), "n%u", i);
            (void)fake_put(&world, a, key, MIB / 5, 0);
            (void)fake_obey(&world, a);
        }
        assert_int_equal(held(a, "both")->state, 0);
        assert_int_equal(found(&world, a, "both"), 0);
        if (is_removed)
            assert_int_equal(fake_remove(&world, a, NULL, "both"), MC_ERR_OBJECT_NOT_FOUND);
        assert_true(fake_return(&world, b));
        world_pass(&world, 100);
        assert_int_equal(world_get(&world, a->call, "both", 0, &what, NULL), is_removed ? MC_ERR_OBJECT_NOT_FOUND : 0);
        assert_int_equal(statistics_of(&world).recovery_refused, is_removed);
        finish(&world, a, b);
    }
}

static void test_removed_while_away(void **state)
{
    struct world world;
    static const char *const keys[] = {"k0", "k1", "k2", "k3", "k4"};
    (void)state;
    struct fake_owner *a = start_with_owner(&world), *b = fake(NODE_B);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(fake_put(&world, a, keys[i], SMALL, 0), 0);
    crash(&world, NEXT_EPOCH, SHORTLY_MS);
    assert_int_equal(fake_join(&world, b).code, 0);
    grow_old(&world, b);
    assert_int_equal(fake_remove(&world, b, NULL, "k0"), MC_ERR_OBJECT_NOT_FOUND);
    assert_int_equal(fake_put(&world, b, "k1", SMALL + 1, 0), 0); /* a new value */
    assert_int_equal(fake_put(&world, b, "k2", SMALL + 2, 0), 0);
    assert_int_equal(fake_remove(&world, b, b, "k2"), 0); /* and this one is removed again */
    struct mc_wire_place place;
    assert_int_equal(world_grant(&world, b->call, PUT_7, "k3", 300, NULL, &place), 0); /* is being written */
    assert_int_equal(statistics_of(&world).tombstones, 2);
    assert_int_equal(world_exist(&world, b->call, "k0"), 0);
    assert_int_equal(world_get(&world, b->call, "k0", 0, NULL, NULL), MC_ERR_OBJECT_NOT_FOUND);
    assert_int_equal(mc_core_query(world.core, mc_span_string("k0"), NULL, 0), MC_ERR_OBJECT_NOT_FOUND);
    come_back(&world, a);
    assert_int_equal(found(&world, b, "k0"), 0);
    assert_int_equal(found(&world, b, "k1"), SMALL + 1);
    assert_int_equal(found(&world, b, "k2"), 0);
    world_live_code(&world, b->owner, &place, -1);
    assert_int_equal(world_put_done(&world, b->call, PUT_7), MC_ERR_TRANSFER_FAIL);
    assert_int_equal(found(&world, b, "k3"), 0); /* its put failed: the old value is not back */
    assert_int_equal(found(&world, b, "k4"), SMALL);
    assert_int_equal(fake_put(&world, b, "k0", SMALL + 3, 0), 0); /* a tombstone is no hindrance */
    assert_int_equal(statistics_of(&world).recovery_refused, 4);
    for (unsigned i = 0; i < 62; i++) {
        world_beat(&world, a->heartbeat);
        world_pass(&world, SECOND_MS);
    }
    assert_int_equal(statistics_of(&world).tombstones, 0);
    finish(&world, a, b);
}

/* Tells what it has in one frame, and obeys nothing. */
static void tell_only(struct world *world, struct fake_owner *owner)
{
    static struct fake_slot *order[SLOTS];
    struct mc_wire_inventory_item items[4];
    assert_int_equal(fake_join(world, owner).inventory, 1);
    uint32_t count = slots_in_order(owner, order);
    assert_in_range(count, 1, 4);
    for (uint32_t i = 0; i < count; i++)
        items[i] = item_of(owner, order[i]);
    send_inventory(world, owner->owner, owner->segment, 0, true, items, count);
}

/* Hears all that there is for it without a word; what it is to clear, which must be something. */
static struct world_told hear_clears(struct world *world, const struct fake_owner *owner)
{
    struct world_told told = {0};
    for (struct mc_frame frame = world_receive(world, owner->owner); frame.type != 0;
         frame = world_receive(world, owner->owner)) {
        struct mc_reader reader = mc_reader(frame.body.data, frame.body.length);
        struct mc_wire_segment head;
        assert_int_not_equal(frame.type, MC_MESSAGE_OFFERED);
        if (frame.type != MC_MESSAGE_CLEAR)
            continue;
        mc_wire_segment_read(&reader, &head);
        told.segment = head.segment;
        for (uint32_t count = mc_list_read(&reader); count > 0; count--)
            mc_wire_slot_read(&reader, &told.slots[told.count++]);
    }
    assert_true(told.count > 0);
    return told;
}

/* What is refused of contents, since it was removed before their owner came, or since another owner has a later value,
 * is cleared before they are ours: a master after us would take it up with the rest. */
static void test_refused_is_cleared_first(void **state)
{
    struct world world;
    (void)state;
    for (unsigned is_removed = 0; is_removed < 2; is_removed++) {
        struct fake_owner *a = start_with_value(&world, "k0"), *b = fake(NODE_B);
        assert_int_equal(fake_put(&world, a, "k1", SMALL, 0), 0);
        struct fake_slot *of_k0 = held(a, "k0"), old = *of_k0;
        if (!is_removed) {
            assert_int_equal(fake_join(&world, b).code, 0);
            assert_int_equal(fake_remove(&world, a, a, "k0"), 0);
            assert_int_equal(fake_put(&world, b, "k0", SMALL + 1, 0), 0);
            *of_k0 = old; /* its CLEAR did not arrive, say */
        }
        crash(&world, NEXT_EPOCH, SHORTLY_MS);
        if (is_removed) {
            assert_int_equal(fake_join(&world, b).code, 0);
            grow_old(&world, b);
            assert_int_equal(fake_remove(&world, b, NULL, "k0"), MC_ERR_OBJECT_NOT_FOUND);
        }
        tell_only(&world, a);
        if (!is_removed)
            assert_true(fake_return(&world, b));
        world_pass(&world, GRACE_OVER_MS);
        struct world_told told = hear_clears(&world, a);
        assert_int_equal(told.count, 1);
        assert_int_equal(told.slots[0].slot, of_k0 - a->slots);
        assert_int_equal(found(&world, b, "k1"), 0);
        unsigned before = a->offered;
        world_owner_says(&world, a->owner, MC_MESSAGE_CLEARED, &told);
        of_k0->state = 0;
        world_pass(&world, 1);
        (void)fake_obey(&world, a);
        assert_int_equal(a->offered, before + 1);
        assert_int_equal(found(&world, b, "k1"), SMALL);
        assert_int_equal(found(&world, b, "k0"), is_removed ? 0 : SMALL + 1);
        finish(&world, a, b);
    }
}

/* A put that fails has changed nothing: what lies in a segment that comes later is still the key's value, unless the
 * key had been removed before. */
static void test_put_that_fails_before_the_segment_is_back(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    struct fake_owner *a = start_with_owner(&world), *b = fake(NODE_B);
    assert_int_equal(fake_put(&world, a, "kept", SMALL, 0), 0);
    assert_int_equal(fake_put(&world, a, "removed", SMALL, 0), 0);
    crash(&world, NEXT_EPOCH, SHORTLY_MS);
    assert_int_equal(fake_join(&world, b).code, 0);
    grow_old(&world, b);
    assert_int_equal(fake_remove(&world, b, NULL, "removed"), MC_ERR_OBJECT_NOT_FOUND);
    assert_int_equal(world_grant(&world, b->call, PUT_7, "kept", 300, NULL, &place), 0);
    world_live_code(&world, b->owner, &place, -1);
    assert_int_equal(world_put_done(&world, b->call, PUT_7), MC_ERR_TRANSFER_FAIL);
    assert_int_equal(world_grant(&world, b->call, PUT_8, "removed", 300, NULL, &place), 0);
    world_live_code(&world, b->owner, &place, -1);
    assert_int_equal(world_put_done(&world, b->call, PUT_8), MC_ERR_TRANSFER_FAIL);
    come_back(&world, a);
    assert_int_equal(found(&world, b, "kept"), SMALL);
    assert_int_equal(found(&world, b, "removed"), 0);
    finish(&world, a, b);
}

/* While contents are being taken back "not found" would be no promise: the remove is asked for again. */
static void test_remove_before_all_is_known(void **state)
{
    struct world world;
    const char *unknown = "never put";
    (void)state;
    struct fake_owner *a = start_with_value(&world, "k"), *b = fake(NODE_B);
    crash(&world, NEXT_EPOCH, SHORTLY_MS);
    assert_true(fake_return(&world, a));
    assert_int_equal(fake_join(&world, b).code, 0);
    assert_int_equal(world_remove(&world, b->call, unknown, true), MC_ERR_BUSY);
    world_pass(&world, GRACE_OVER_MS); /* all that is known of is back, and still another may have the key */
    assert_int_equal(world_remove(&world, b->call, unknown, true), MC_ERR_BUSY);
    world_pass(&world, 2 * SECOND_MS);
    assert_int_equal(world_remove(&world, b->call, unknown, true), MC_ERR_OBJECT_NOT_FOUND);
    assert_int_equal(found(&world, b, "k"), SMALL);
    finish(&world, a, b);
}

/* What stays is said at once, also by a young master: that acknowledges nothing. */
static void test_young_master_says_what_stays(void **state)
{
    struct world world;
    int32_t codes[2] = {1, 1};
    const char *keys[2] = {"k", "absent"};
    (void)state;
    world_start(&world, FIRST_EPOCH, NULL);
    crash(&world, NEXT_EPOCH, SHORTLY_MS);
    struct fake_owner *a = fake(NODE_A);
    assert_int_equal(fake_join(&world, a).code, 0);
    assert_int_equal(fake_put(&world, a, "k", SMALL, 0), 0);
    assert_int_equal(found(&world, a, "k"), SMALL); /* and leases it */
    world_remove_send(&world, a->call, keys, 1, false);
    assert_true(world_remove_answer(&world, a->call, codes, 1));
    assert_int_equal(codes[0], MC_ERR_OBJECT_HAS_LEASE);
    world_remove_send(&world, a->call, keys, 2, false);
    assert_true(world_remove_answer(&world, a->call, codes, 2));
    assert_int_equal(codes[0], MC_ERR_BUSY);
    world_remove_send(&world, a->call, keys, 1, true);
    assert_true(world_remove_answer(&world, a->call, codes, 1));
    assert_int_equal(codes[0], MC_ERR_BUSY);
    finish(&world, a, NULL);
}

static void test_remove_all_while_away(void **state)
{
    struct world world;
    (void)state;
    for (unsigned regex = 0; regex < 2; regex++) {
        struct fake_owner *a = start_with_value(&world, "k"), *b = fake(NODE_B);
        crash(&world, NEXT_EPOCH, SHORTLY_MS);
        assert_int_equal(fake_join(&world, b).code, 0);
        assert_int_equal(fake_join(&world, a).inventory, 1); /* has begun already */
        world_remove_all_send(&world, b->call, regex == 0 ? NULL : "^k$", true);
        assert_int_equal(world_receive(&world, b->call).type, MC_MESSAGE_FAILED); /* BUSY: not before all is known */
        assert_true(fake_tell(&world, a, 3));
        grow_old(&world, a);
        world_pass(&world, 100);
        assert_int_equal(found(&world, b, "k"), SMALL);
        world_remove_all_send(&world, b->call, regex == 0 ? NULL : "^k$", true);
        world_settle(&world, 100);
        (void)fake_obey(&world, a);
        world_settle(&world, 100);
        assert_int_equal(world_count_answer(&world, b->call), 1);
        assert_int_equal(found(&world, b, "k"), 0);
        (void)fake_obey(&world, a);
        assert_int_equal(held(a, "k")->state, 0);
        finish(&world, a, b);
    }
}

static void test_somebody_writes(void **state)
{
    struct world world;
    (void)state;
    struct fake_owner *a = start_with_value(&world, "k");
    struct mc_wire_place place;
    uint64_t free_before = world.core->segments[1]->space.free;
    assert_int_equal(world_grant(&world, a->call, PUT_1, "w", 1000, NULL, &place), 0);
    fake_write(a, &place, "", 1000, 0, 2);
    crash(&world, NEXT_EPOCH, SHORTLY_MS);
    assert_int_equal(fake_join(&world, a).inventory, 1);
    struct mc_wire_inventory_item items[2] = {item_of(a, held(a, "k")), item_of(a, &a->slots[place.slot])};
    if (items[0].offset > items[1].offset) {
        struct mc_wire_inventory_item swap = items[0];
        items[0] = items[1];
        items[1] = swap;
    }
    send_inventory(&world, a->owner, a->segment, 0, true, items, 2);
    assert_true(statistics_of(&world).quarantine_bytes >= 1000);
    struct mc_frame ack = world_receive(&world, a->owner);
    assert_int_equal(ack.type, MC_MESSAGE_INVENTORY_ACK);
    static struct world_told told;
    world_owner_told(&world, a->owner, &told);
    assert_int_equal(told.type, MC_MESSAGE_CUT);
    assert_int_equal(told.writer.low, 4711);
    assert_int_equal(told.slots[0].generation, place.generation);
    world_owner_says(&world, a->owner, MC_MESSAGE_CUT_DONE, &told);
    assert_int_equal(statistics_of(&world).quarantine_bytes, 0);
    assert_int_equal(world.core->segments[a->segment % MC_SEGMENTS_MAX]->space.free, free_before);
    finish(&world, a, NULL);
}

/* ---- section 2: an owner that restarts ---- */

static void complain(struct world *world, uint64_t from, uint32_t segment)
{
    struct mc_wire_suspect head = {.segment = segment, .code = MC_ERR_TRANSFER_FAIL};
    size_t frame = world_begin(world, MC_MESSAGE_SUSPECT, 0);
    mc_wire_suspect_write(&world->frame, &head);
    world_send(world, from, frame);
}

/* It stands still in the middle of its inventory, while its heartbeat thread beats: the others do not wait for it for
 * ever. */
static void test_half_dead_in_its_inventory(void **state)
{
    struct world world;
    (void)state;
    world_start(&world, FIRST_EPOCH, NULL);
    struct fake_owner *a = fake(NODE_A), *b = fake(NODE_B);
    assert_true(fake_return(&world, a));
    assert_true(fake_return(&world, b));
    assert_int_equal(fake_put(&world, a, "k", SMALL, 0), 0);
    assert_int_equal(fake_put(&world, b, "l", SMALL, 0), 0);
    crash(&world, NEXT_EPOCH, SHORTLY_MS);
    assert_true(fake_return(&world, b));
    assert_int_equal(fake_join(&world, a).inventory, 1);
    world.stuck = a->owner;
    for (unsigned i = 0; i < 8; i++) {
        world_pass(&world, SECOND_MS);
        (void)world_heartbeat(&world, a->heartbeat, a->segment, MIB);
        assert_int_equal(world_heartbeat(&world, b->heartbeat, b->segment, MIB), 0);
    }
    assert_int_equal(fake_remove(&world, b, b, "l"), MC_ERR_BUSY); /* another replica may come yet */
    for (unsigned i = 0; i < 3; i++) {
        world_pass(&world, SECOND_MS);
        (void)world_beat(&world, a->heartbeat);
        assert_int_equal(world_heartbeat(&world, b->heartbeat, b->segment, MIB), 0);
    }
    assert_int_equal(fake_remove(&world, b, b, "l"), 0);
    finish(&world, a, b);
}

/* Two who still try the process that was there before do not hide the one that is there now. */
static void test_reports_after_a_takeover(void **state)
{
    struct world world;
    struct mc_core_segment segment;
    (void)state;
    struct fake_owner *a = start_with_value(&world, "k");
    uint64_t first = world_client(&world, CLIENT), second = world_client(&world, SECOND_CLIENT);
    world_disconnect(&world, a->owner);
    world_disconnect(&world, a->heartbeat);
    world_disconnect(&world, a->call);
    a->node = NODE_C;
    assert_int_equal(fake_join(&world, a).inventory, 1);
    assert_true(fake_tell(&world, a, 100));
    world_pass(&world, 100);
    complain(&world, first, a->segment);
    complain(&world, second, a->segment);
    assert_true(mc_core_segment(world.core, a->segment, &segment));
    assert_int_equal(segment.state, 0);
    world_pass(&world, MC_PROBE_LEAST_MS * 4); /* but the PING that came of it was not answered */
    assert_true(mc_core_segment(world.core, a->segment, &segment));
    assert_int_equal(segment.state, 1);
    finish(&world, a, NULL);
}

/* A master that follows another one has less room than it will have in a moment; later that is an answer. */
static void test_put_before_the_segments_are_back(void **state)
{
    struct world world;
    (void)state;
    world_start(&world, FIRST_EPOCH, NULL);
    crash(&world, NEXT_EPOCH, SHORTLY_MS);
    uint64_t client = world_client(&world, CLIENT);
    assert_int_equal(world_grant(&world, client, PUT_1, "k", SMALL, NULL, NULL), MC_ERR_SPACE_SOON);
    world_pass(&world, NEARLY_DEPARTED_MS);
    assert_int_equal(world_grant(&world, client, PUT_1, "k", SMALL, NULL, NULL), MC_ERR_SPACE_SOON);
    world_pass(&world, 100);
    assert_int_equal(world_grant(&world, client, PUT_2, "k", SMALL, NULL, NULL), MC_ERR_NO_AVAILABLE_HANDLE);
    finish(&world, NULL, NULL);
}

static void test_takeover(void **state)
{
    struct world world;
    char key[24];
    (void)state;
    for (unsigned broken = 0; broken < 2; broken++) {
        struct fake_owner *a = start_with_owner(&world), *w = fake(NODE_B);
        w->call = world_client(&world, CLIENT);
        uint32_t number = a->segment;
        put_numbered(&world, a, 50);
        const struct mc_wire_mount live = fake_mount(&world, a, MIB);
        uint64_t thief = world_join(&world, MC_ROLE_OWNER, WITNESS, FIRST_LIFE);
        assert_int_equal(world_mount(&world, thief, &live).code, MC_ERR_SEGMENT_ALREADY_EXISTS);
        /* Open: one whose LIVE is lost with the process, one that nobody has written, one removed and not cleared. */
        struct mc_wire_place lost, open;
        assert_int_equal(world_grant(&world, w->call, PUT_1, "lost", 200, NULL, &lost), 0);
        assert_int_equal(world_grant(&world, w->call, PUT_2, "open", 200, NULL, &open), 0);
        fake_write(a, &lost, "lost", 200, 0, 1);
        const char *removed = "k7";
        world_remove_send(&world, w->call, &removed, 1, true);
        for (unsigned i = 0; i < SLOTS; i++) {
            if (strcmp(a->slots[i].key, "k9") == 0)
                a->slots[i].state = 0; /* its bytes did not survive */
        }
        a->slots[4000] = (struct fake_slot){.generation = ((uint64_t)FIRST_EPOCH << MC_EPOCH_SHIFT) + 1,
                                            .offset = 512 << 10,
                                            .length = 10,
                                            .key = "ghost",
                                            .state = 1};
        world_disconnect(&world, a->owner);
        world_disconnect(&world, a->heartbeat);
        world_disconnect(&world, a->call);
        a->node = NODE_C; /* another process */
        world_pass(&world, 500);
        struct mc_wire_mount_reply reply = fake_join(&world, a);
        assert_int_equal(reply.code, 0);
        assert_int_equal(reply.inventory, 1);
        assert_int_equal(reply.segment, number);
        if (broken == 1) {
            struct mc_wire_inventory_item item = item_of(a, held(a, "k0"));
            send_inventory(&world, a->owner, a->segment, 0, false, &item, 1);
            world_disconnect(&world, a->owner);
            world_check(&world);
            a->owner = world_join(&world, MC_ROLE_OWNER, a->node, FIRST_LIFE);
            struct mc_wire_mount mount = fake_mount(&world, a, MIB);
            reply = world_mount(&world, a->owner, &mount);
            assert_int_equal(reply.inventory, 1); /* all of it again */
        }
        assert_int_equal(found(&world, w, "k1"), 0);
        assert_int_equal(world_grant(&world, w->call, PUT_8, "new", SMALL, NULL, NULL), MC_ERR_SPACE_SOON);
        assert_true(fake_tell(&world, a, 7));
        const struct mc_wire_mount grown = fake_mount(&world, a, MIB); /* as an owner does whose memory is made ready */
        assert_int_not_equal(world_mount(&world, a->owner, &grown).inventory, 1);
        world_pass(&world, 100);
        (void)fake_obey(&world, a);
        int32_t code = 1;
        assert_int_equal(world_put_done(&world, w->call, PUT_1), 0); /* it had arrived */
        assert_true(world_remove_answer(&world, w->call, &code, 1));
        assert_int_equal(code, 0);
        for (unsigned i = 0; i < 50; i++) {
            (void)snprintf(key, sizeof(key), "k%u", i);
            assert_int_equal(found(&world, w, key), i == 7 || i == 9 ? 0 : SMALL + i);
        }
        assert_int_equal(found(&world, w, "lost"), 200);
        assert_int_equal(a->slots[4000].state, 0);
        struct mc_core_segment segment;
        assert_true(mc_core_segment(world.core, number, &segment));
        assert_int_equal(segment.owner.low, 7);
        assert_int_equal(segment.state, 0);
        fake_write(a, &open, "open", 200, 0, 1); /* its writer lives and ends it */
        world_live(&world, a->owner, &open);
        assert_int_equal(world_put_done(&world, w->call, PUT_2), 0);
        assert_int_equal(found(&world, w, "open"), 200);
        assert_int_equal(fake_put(&world, a, "more", SMALL, 0), 0);
        world_pass(&world, 100);
        finish(&world, a, w);
    }
}

/* ---- a model ---- */

#define MODEL_KEYS 40u
#define MODEL_OWNERS 3u

/* Puts, removals, crashes of masters, owners that come at once, late or restarted: a key has the length that was put
 * last or is not there; one that was removed stays away. */
static void model_round(uint64_t seed)
{
    struct world world;
    struct fake_owner *owners[MODEL_OWNERS];
    uint64_t lengths[MODEL_KEYS] = {0}, dice = seed, epoch = 3, nodes = 10;
    char key[24];
    world_start(&world, epoch, NULL);
    for (unsigned i = 0; i < MODEL_OWNERS; i++) {
        owners[i] = fake(nodes++);
        assert_int_equal(fake_join(&world, owners[i]).code, 0);
    }
    for (unsigned life = 0; life < 6; life++) {
        uint64_t client = world_client(&world, 1);
        struct fake_owner teller = {.call = client};
        unsigned late = (unsigned)random_below(&dice, 8);
        for (unsigned i = 0; i < MODEL_OWNERS && life > 0; i++) /* some return at once, others after some work */
            if ((late >> i & 1) == 0)
                (void)fake_return(&world, owners[i]);
        for (unsigned step = 0; step < 200; step++) {
            unsigned which = (unsigned)random_below(&dice, MODEL_KEYS);
            struct fake_owner *owner = owners[random_below(&dice, MODEL_OWNERS)];
            (void)snprintf(key, sizeof(key), "key-%u", which);
            const char *name = key;
            uint64_t kind = random_below(&dice, 10);
            if (step == 60) {
                for (unsigned i = 0; i < MODEL_OWNERS && life > 0; i++)
                    if ((late >> i & 1) != 0)
                        (void)fake_return(&world, owners[i]);
                world_pass(&world, SECOND_MS);
            } else if (kind < 5 && owner->mounted && step > 70) {
                uint64_t length = 1 + random_below(&dice, 2000);
                if (fake_put_in(&world, owner, key, length, (uint32_t)random_below(&dice, 3), random_below(&dice, 4)) ==
                    0)
                    lengths[which] = length;
            } else if (kind < 8) {
                int32_t code = 1;
                world_remove_send(&world, client, &name, 1, true);
                for (unsigned i = 0; i < MODEL_OWNERS; i++)
                    if (owners[i]->mounted && random_below(&dice, 8) != 0) /* or its CLEAR is still on its way */
                        (void)fake_obey(&world, owners[i]);
                if (!world_remove_answer(&world, client, &code, 1)) {
                    for (unsigned i = 0; i < MODEL_OWNERS; i++)
                        if (owners[i]->mounted)
                            (void)fake_obey(&world, owners[i]);
                    assert_true(world_remove_answer(&world, client, &code, 1));
                }
                lengths[which] = code == MC_ERR_BUSY ? lengths[which] : 0;
            } else if (kind == 8) {
                world_pass(&world, random_below(&dice, 300));
            }
            uint64_t is = found(&world, &teller, key);
            assert_true(is == 0 || is == lengths[which]);
            if (life == 0 || step > 70) /* and nothing is lost */
                assert_int_equal(is, lengths[which]);
            for (unsigned i = 0; i < MODEL_OWNERS; i++)
                if (owners[i]->mounted) {
                    owners[i]->contact_ms = world.now;
                    if (step % 50 == 49)
                        world_heartbeat(&world, owners[i]->heartbeat, 0, 0);
                }
        }
        master_stop(&world);
        for (unsigned i = 0; i < MODEL_OWNERS; i++) {
            owners[i]->mounted = false;
            if (random_below(&dice, 3) == 0)
                owners[i]->node = nodes++; /* its process restarted too */
        }
        world.now += random_below(&dice, 20000);
        epoch += 1 + random_below(&dice, 1u << random_below(&dice, 20));
        master_start(&world, epoch, NULL);
    }
    world_close_all(&world);
    for (unsigned i = 0; i < MODEL_OWNERS; i++)
        free(owners[i]);
}

static void test_model(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 25; seed++)
        model_round(seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_contents_come_back),
        cmocka_unit_test(test_young_master_without_a_sign),
        cmocka_unit_test(test_nobody_has_led_for_long),
        cmocka_unit_test(test_offered),
        cmocka_unit_test(test_young_master_evicts_nothing_new),
        cmocka_unit_test(test_young_until_it_is_noted),
        cmocka_unit_test(test_young_for_long_where_disks_may_come),
        cmocka_unit_test(test_empty_inventory),
        cmocka_unit_test(test_versions),
        cmocka_unit_test(test_evicted_before_the_other_replica_is_back),
        cmocka_unit_test(test_removed_while_away),
        cmocka_unit_test(test_refused_is_cleared_first),
        cmocka_unit_test(test_half_dead_in_its_inventory),
        cmocka_unit_test(test_reports_after_a_takeover),
        cmocka_unit_test(test_put_before_the_segments_are_back),
        cmocka_unit_test(test_put_that_fails_before_the_segment_is_back),
        cmocka_unit_test(test_remove_before_all_is_known),
        cmocka_unit_test(test_young_master_says_what_stays),
        cmocka_unit_test(test_remove_all_while_away),
        cmocka_unit_test(test_somebody_writes),
        cmocka_unit_test(test_takeover),
        cmocka_unit_test(test_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
