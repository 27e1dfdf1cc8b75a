/* Keys that are held: until its owner has cleared a value that is gone, or has departed, the key takes no other value
 * and no removal of it is answered. Else a master that ends in between could leave a value that comes back after that.
 */
#include "core_owner.h"

static int32_t remove_answer(struct world *world, uint64_t connection)
{
    int32_t code = 1;
    return world_remove_answer(world, connection, &code, 1) ? code : 1; /* 1 = none yet */
}

/* Everybody who asks for the removal waits for the same CLEARED. */
static void test_many_wait(void **state)
{
    struct world world;
    static struct world_told told;
    struct mc_wire_place place;
    uint64_t clients[4];
    (void)state;
    struct world_store store = world_open_one(&world);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", SMALL), 0);
    for (unsigned i = 0; i < 4; i++) {
        clients[i] = world_client(&world, 10 + i);
        world_remove_one_send(&world, clients[i], "k");
    }
    const char *twice[2] = {"k", "k"};
    world_remove_send(&world, store.call, twice, 2, true);
    world_disconnect(&world, clients[3]); /* it will never hear */
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(remove_answer(&world, clients[i]), 1);
    assert_int_equal(world_grant(&world, clients[0], 7, "k", SMALL, NULL, &place), MC_ERR_PUT_IN_PROGRESS);
    assert_int_equal(world_exist(&world, clients[1], "k"), 0);
    world_owner_told(&world, store.owner, &told);
    world_owner_says(&world, store.owner, MC_MESSAGE_CLEARED, &told);
    assert_int_equal(remove_answer(&world, clients[0]), 0);
    assert_int_equal(remove_answer(&world, clients[1]), MC_ERR_OBJECT_NOT_FOUND);
    assert_int_equal(remove_answer(&world, clients[2]), MC_ERR_OBJECT_NOT_FOUND);
    int32_t codes[2] = {1, 1};
    assert_true(world_remove_answer(&world, store.call, codes, 2));
    assert_int_equal(codes[0], MC_ERR_OBJECT_NOT_FOUND);
    assert_int_equal(codes[1], MC_ERR_OBJECT_NOT_FOUND);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", SMALL), 0);
    world_close_all(&world);
}

/* The owner says nothing: after depart_ms nothing can bring its contents back. */
static void test_released_by_departure(void **state)
{
    struct world world;
    (void)state;
    for (unsigned gone = 0; gone < 2; gone++) {
        struct world_store store = world_open_one(&world), other = world_store(&world, NODE_B, MIB, "b");
        struct mc_wire_place place;
        struct world_wish wish = {.preferred = {"a"}};
        assert_int_equal(world_put_place(&world, other.call, store.owner, "k", SMALL, &wish, &place), 0);
        assert_int_equal(place.segment, store.segment);
        world_remove_one_send(&world, other.call, "k");
        if (gone)
            world_disconnect(&world, store.owner);
        world_pass_beating(&world, NEARLY_DEPARTED_MS, other.heartbeat);
        assert_int_equal(remove_answer(&world, other.call), 1);
        world_remove_one_send(&world, store.call, "k"); /* also for who asks late */
        assert_int_equal(world_grant(&world, other.call, PUT_2, "k", SMALL, NULL, &place), MC_ERR_PUT_IN_PROGRESS);
        world_pass_beating(&world, gone ? 20000 : 2500, other.heartbeat);
        assert_int_equal(remove_answer(&world, other.call), 0);
        assert_int_equal(world_put(&world, other.call, other.owner, "k", SMALL), 0);
        world_close_all(&world);
    }
}

/* With an election a departure is noted there before anything is said that follows from it: a master that knows of no
 * note takes all that this one has offered, however long its owner was silent. */
static void test_departure_is_noted_first(void **state)
{
    struct world world;
    struct mc_wire_place place;
    const char *key = "k";
    (void)state;
    for (unsigned how = 0; how < 3; how++) { /* it departs; is gone; is gone when the note has been made */
        struct mc_core_config config = mc_core_config_default();
        config.asks_to_depart = true;
        world_open_with(&world, &config);
        struct world_store a = world_store(&world, NODE_A, MIB, "a"), b = world_store(&world, NODE_B, MIB, "b");
        uint64_t late = world_client(&world, WITNESS);
        struct world_wish wish = {.preferred = {"a"}};
        assert_int_equal(world_put_place(&world, b.call, a.owner, "k", SMALL, &wish, &place), 0);
        assert_int_equal(world_put_place(&world, b.call, a.owner, "other", SMALL, &wish, &place), 0);
        world_disconnect(&world, a.owner);
        world_remove_one_send(&world, b.call, "k");
        world_pass_beating(&world, NEARLY_DEPARTED_MS, b.heartbeat);
        assert_false(mc_core_asks_to_depart(world.core));
        world_pass_beating(&world, how == 0 ? 2000 : 20000, b.heartbeat);
        assert_true(mc_core_asks_to_depart(world.core));
        assert_int_equal(remove_answer(&world, b.call), 1);
        assert_int_equal(world_put(&world, b.call, b.owner, "other", SMALL), MC_ERR_PUT_IN_PROGRESS);
        world_remove_send(&world, late, &key, 1, true);
        assert_int_equal(remove_answer(&world, late), MC_ERR_BUSY);
        world_remove_all_send(&world, late, NULL, true);
        assert_int_equal(world_receive(&world, late).type, MC_MESSAGE_FAILED);
        world_check(&world);
        mc_core_let_depart(world.core, world.now, mc_core_asks_to_depart(world.core));
        assert_false(mc_core_asks_to_depart(world.core));
        mc_core_let_depart(world.core, world.now, mc_core_asks_to_depart(world.core));
        world_pass_beating(&world, how == 2 ? 20000 : 100, b.heartbeat);
        assert_int_equal(remove_answer(&world, b.call), 0);
        assert_int_equal(world_put(&world, b.call, b.owner, "k", SMALL), 0);
        assert_int_equal(world_put(&world, b.call, b.owner, "other", SMALL), 0);
        world_remove_one_send(&world, late, "k");
        assert_int_equal(world_owner_obeys(&world, b.owner), 1);
        assert_int_equal(remove_answer(&world, late), 0);
        world_close_all(&world);
    }
}

/* Each departure that is later than what is noted is noted before anything follows from it. What was noted is the last
 * contact, so who is in touch is above it; and nobody asks while nothing would follow. */
static void test_each_departure_is_noted(void **state)
{
    struct world world;
    struct mc_wire_place place;
    struct mc_core_config config = mc_core_config_default();
    (void)state;
    config.asks_to_depart = true;
    config.client_ttl_ms = 60000;
    world_open_with(&world, &config);
    struct world_store a = world_store(&world, NODE_A, MIB, "a"), b = world_store(&world, NODE_B, MIB, "b");
    uint64_t client = world_client(&world, WITNESS), at_ms = 0;
    struct {
        struct world_store *store;
        const char *key, *other;
    } rows[] = {{&a, "a0", "a1"}, {&b, "b0", "b1"}};
    for (unsigned i = 0; i < 2; i++) {
        struct world_wish wish = {.preferred = {i == 0 ? "a" : "b"}};
        assert_int_equal(world_put_place(&world, client, rows[i].store->owner, rows[i].key, SMALL, &wish, &place), 0);
        assert_int_equal(world_put_place(&world, client, rows[i].store->owner, rows[i].other, SMALL, &wish, &place), 0);
    }
    world_pass_beating(&world, 5000, a.heartbeat);
    world_pass_beating(&world, 500, b.heartbeat);
    for (unsigned i = 0; i < 2; i++) {
        uint64_t contact_ms = world.core->now_ms;
        world_disconnect(&world, rows[i].store->owner);
        if (i == 0)
            world_pass_beating(&world, 5000, b.heartbeat);
        else
            world_pass(&world, 5000);
        assert_int_equal(mc_core_asks_to_depart(world.core), 0);
        world_remove_one_send(&world, client, rows[i].key);
        world_pass(&world, 10);
        uint64_t asked_ms = mc_core_asks_to_depart(world.core);
        assert_in_range(asked_ms, at_ms + 1, contact_ms + 1);
        assert_int_equal(remove_answer(&world, client), 1);
        mc_core_let_depart(world.core, world.now, at_ms = asked_ms);
        assert_int_equal(mc_core_asks_to_depart(world.core), 0);
        world_pass(&world, 100);
        assert_int_equal(remove_answer(&world, client), 0);
        world_remove_one_send(&world, client, rows[i].other); /* it need not be noted twice */
        assert_int_equal(remove_answer(&world, client), 0);
        world_check(&world);
    }
    world_close_all(&world);
}

static void k_at(struct world *world, const struct world_store *store, const char *segment, bool fails)
{
    struct mc_wire_place place;
    struct world_wish wish = {.preferred = {segment}};
    assert_int_equal(world_grant(world, store->call, 30, "k", SMALL, &wish, &place), 0);
    assert_int_equal(place.segment, store->segment);
    if (fails)
        world_revoke(world, store->call, &place);
    else
        world_live(world, store->owner, &place);
    assert_int_equal(world_put_done(world, store->call, 30), fails ? MC_ERR_TRANSFER_FAIL : 0);
}

/* A value lies over what a put that failed may have left, whose owner has gone silent: it stays as long as that could
 * come back. */
static void test_what_hides_another_stays(void **state)
{
    struct world world;
    (void)state;
    for (unsigned how = 0; how < 3; how++) { /* it departs, comes back; nothing is wrong with it */
        struct world_store a = world_open_one(&world), b = world_store(&world, NODE_B, MIB, "b");
        world_pass_beating(&world, 3000, b.heartbeat);
        (void)world_beat(&world, a.heartbeat);
        k_at(&world, &a, "a", true);
        k_at(&world, &b, "b", false);
        if (how < 2) {
            world_disconnect(&world, a.owner);
            world_remove_one_send(&world, b.call, "k");
            assert_int_equal(remove_answer(&world, b.call), MC_ERR_BUSY);
            world_remove_all_send(&world, b.call, how == 0 ? NULL : "k", true);
            world_pass_beating(&world, 1000, b.heartbeat);
            assert_int_equal(world_count_answer(&world, b.call), INT64_MIN);
            assert_int_equal(world_exist(&world, b.call, "k"), 1);
        } else {
            world_remove_one_send(&world, b.call, "k");
            assert_int_equal(world_exist(&world, a.call, "k"), 0);
            assert_int_equal(remove_answer(&world, b.call), 1); /* until both are cleared */
            assert_int_equal(world_owner_obeys(&world, b.owner), 1);
            assert_int_equal(remove_answer(&world, b.call), 1);
            assert_int_equal(world_owner_obeys(&world, a.owner), 1);
            assert_int_equal(remove_answer(&world, b.call), 0);
        }
        if (how == 1) {
            assert_int_equal(world_remount(&world, &a), 0);
            assert_int_equal(world_owner_obeys(&world, a.owner), 1);
        }
        world_pass_beating(&world, how == 0 ? 3000 : 100, b.heartbeat);
        if (how < 2) {
            assert_int_equal(world_owner_obeys(&world, b.owner), 1);
            assert_int_equal(world_count_answer(&world, b.call), 1);
        }
        world_close_all(&world);
    }
}

/* A put of "k" to `a` fails: its value is live there, but that is never heard, as the owner's link has broken, and
 * is_cut, the writer's own, too. The writer. */
static uint64_t put_in_vain(struct world *world, const struct world_store *a, bool is_cut, struct mc_wire_place *place)
{
    struct world_wish at_a = {.preferred = {"a"}};
    uint64_t writer = world_client(world, SECOND_CLIENT);
    assert_int_equal(world_grant(world, writer, PUT_1, "k", SMALL, &at_a, place), 0);
    assert_int_equal(place->segment, a->segment);
    world_disconnect(world, a->owner);
    if (is_cut) {
        world_disconnect(world, writer);
        writer = world_client(world, SECOND_CLIENT);
        world_settle(world, 10);
    } else {
        world_revoke(world, writer, place);
        assert_int_equal(world_put_done(world, writer, PUT_1), MC_ERR_TRANSFER_FAIL);
    }
    return writer;
}

/* A put fails at an owner that is cut off, and meets another writer's value when it asks again: it is not told "exists"
 * as long as its own value may lie there. Others are. Its own link may have broken, too. */
static void test_exists_waits_for_what_may_come_back(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    for (unsigned how = 0; how < 4; how++) {
        bool returns = how % 2 == 1, is_cut = how >= 2;
        struct world_store a = world_open_one(&world), b = world_store(&world, NODE_B, MIB, "b");
        struct world_wish at_b = {.preferred = {"b"}};
        uint64_t writer = put_in_vain(&world, &a, is_cut, &place);
        struct world_wish again = {.unsure = place.generation};
        assert_int_equal(world_put_place(&world, b.call, b.owner, "k", SMALL * 2, &at_b, &place), 0);
        assert_int_equal(world_grant(&world, writer, PUT_3, "k", SMALL, &again, NULL), MC_ERR_PUT_IN_PROGRESS);
        assert_int_equal(world_grant(&world, a.call, PUT_4, "k", SMALL, NULL, NULL), MC_ERR_OBJECT_ALREADY_EXISTS);
        if (returns) {
            assert_int_equal(world_remount(&world, &a), 0);
            assert_int_equal(world_grant(&world, writer, PUT_5, "k", SMALL, &again, NULL), MC_ERR_PUT_IN_PROGRESS);
            assert_int_equal(world_owner_obeys(&world, a.owner), is_cut ? 2 : 1);
        } else {
            world_pass_beating(&world, DEPARTED_MS, b.heartbeat);
        }
        assert_int_equal(world_grant(&world, writer, PUT_6, "k", SMALL, &again, NULL), MC_ERR_OBJECT_ALREADY_EXISTS);
        world_close_all(&world);
    }
}

/* A put fails at an owner that is cut off, and succeeds elsewhere: its value may lie in both places. An upsert of it is
 * not begun before the first one is cleared or has departed. */
static void upsert_waits(bool is_cut)
{
    struct world world;
    struct mc_wire_place place;
    struct world_store a = world_open_one(&world), b = world_store(&world, NODE_B, MIB, "b");
    struct world_wish replace = {.flags = MC_PUT_REPLACE, .preferred = {"b"}};
    uint64_t writer = put_in_vain(&world, &a, is_cut, &place);
    struct world_wish again = {.preferred = {"b"}, .unsure = place.generation};
    assert_int_equal(world_put_place(&world, writer, b.owner, "k", SMALL, &again, &place), 0);
    assert_int_equal(place.segment, b.segment);
    assert_int_equal(world_grant(&world, b.call, PUT_3, "k", SMALL, &replace, NULL), MC_ERR_PUT_IN_PROGRESS);
    assert_int_equal(world_exist(&world, b.call, "k"), 1);
    world_pass_beating(&world, DEPARTED_MS, b.heartbeat);
    assert_int_equal(world_grant(&world, b.call, PUT_4, "k", SMALL, &replace, NULL), 0);
    world_close_all(&world);
}

static void test_upsert_waits_for_a_grant_that_failed(void **state)
{
    (void)state;
    upsert_waits(false);
    upsert_waits(true);
}

/* A writer whose grant is cut off stands still in its copy: that holds up the use of the extent, and nothing of the
 * key, once what may be live there is cleared. */
static void test_removal_waits_for_what_is_cut_off(void **state)
{
    struct world world;
    struct mc_wire_place place;
    struct mc_core_statistics statistics;
    static struct world_told told;
    (void)state;
    struct world_store a = world_open_one(&world), b = world_store(&world, NODE_B, MIB, "b");
    struct world_wish at_a = {.preferred = {"a"}};
    world_pass_beating(&world, 3000, b.heartbeat);
    (void)world_beat(&world, a.heartbeat);
    uint64_t writer = world_client(&world, SECOND_CLIENT);
    assert_int_equal(world_grant(&world, writer, PUT_1, "k", SMALL, &at_a, &place), 0);
    assert_int_equal(place.segment, a.segment);
    world_disconnect(&world, writer);
    world_settle(&world, 10);
    k_at(&world, &b, "b", false);
    world_remove_one_send(&world, b.call, "k");
    assert_int_equal(world_owner_obeys(&world, b.owner), 1);
    assert_int_equal(remove_answer(&world, b.call), 1);
    world_owner_told_to_cut(&world, a.owner, &told);
    assert_int_equal(remove_answer(&world, b.call), 0);
    statistics = statistics_of(&world);
    assert_int_equal(statistics.quarantine_bytes, 128);
    world_owner_says(&world, a.owner, MC_MESSAGE_CUT_DONE, &told);
    statistics = statistics_of(&world);
    assert_int_equal(statistics.quarantine_bytes, 0);
    world_close_all(&world);
}

/* What was acknowledged over an owner's absence is undone if the next master takes its contents. So its sign of life is
 * no contact before it has done what it was told meanwhile; nor is one to a master that has given the segment up. */
static void test_behind_is_no_contact(void **state)
{
    struct world world;
    static struct world_told told;
    (void)state;
    struct world_store store = world_open_one(&world), other = world_store(&world, NODE_B, MIB, "b");
    struct world_wish at_a = {.preferred = {"a"}};
    struct mc_wire_place place;
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(world_put_place(&world, other.call, store.owner, i == 0 ? "k" : "l", SMALL, &at_a, &place), 0);
        assert_int_equal(place.segment, store.segment);
    }
    assert_int_equal(world_heartbeat(&world, store.heartbeat, store.segment, MIB), 0);
    world_remove_one_send(&world, other.call, "k");
    assert_int_equal(world_heartbeat(&world, store.heartbeat, store.segment, MIB), 0); /* not acknowledged: no matter */
    world_pass_beating(&world, 5500, other.heartbeat);
    assert_int_equal(remove_answer(&world, other.call), 0);
    assert_int_equal(world_put(&world, other.call, other.owner, "l", SMALL), 0); /* over its absence */
    assert_int_equal(world_heartbeat(&world, store.heartbeat, store.segment, MIB), 1);
    world_disconnect(&world, store.owner);
    struct mc_wire_mount_reply reply = world_return(&world, &store);
    assert_int_equal(reply.code, 0);
    assert_int_equal(reply.behind, 1);
    unsigned cleared = 0;
    for (world_owner_told(&world, store.owner, &told); told.type != 0; world_owner_told(&world, store.owner, &told)) {
        assert_int_equal(world_heartbeat(&world, store.heartbeat, store.segment, MIB), 1);
        cleared += told.count;
        world_owner_says(&world, store.owner, MC_MESSAGE_CLEARED, &told);
    }
    assert_int_equal(cleared, 2);
    assert_int_equal(world_heartbeat(&world, store.heartbeat, store.segment, MIB), 0);
    world_pass_beating(&world, 25000, other.heartbeat); /* given up */
    store.heartbeat = world_join(&world, MC_ROLE_HEARTBEAT, NODE_A, FIRST_LIFE);
    assert_true(world_heartbeat(&world, store.heartbeat, store.segment, MIB) < 0);
    world_close_all(&world);
}

/* What was never seen as the key's value hinders no put, but the removal of the value that comes after it. */
static void test_failed_put_is_no_hindrance(void **state)
{
    struct world world;
    struct mc_wire_place first, second;
    static struct world_told told;
    (void)state;
    struct world_store store = world_open_one(&world), other = world_store(&world, NODE_B, MIB, "b");
    struct world_wish at_a = {.preferred = {"a"}}, at_b = {.preferred = {"b"}};
    assert_int_equal(world_grant(&world, other.call, PUT_1, "k", SMALL, &at_a, &first), 0);
    assert_int_equal(first.segment, store.segment);
    world_revoke(&world, other.call, &first);
    assert_int_not_equal(world_put_done(&world, other.call, PUT_1), 0);
    assert_int_equal(world_put_place(&world, other.call, other.owner, "k", SMALL, &at_b, &second), 0);
    assert_int_equal(second.segment, other.segment);
    world_remove_one_send(&world, other.call, "k");
    assert_int_equal(world_owner_obeys(&world, other.owner), 1);
    assert_int_equal(remove_answer(&world, other.call), 1); /* the first may be live in its owner's index */
    assert_int_equal(world_grant(&world, other.call, PUT_3, "k", SMALL, NULL, &second), MC_ERR_PUT_IN_PROGRESS);
    world_owner_told(&world, store.owner, &told);
    assert_int_equal(told.type, MC_MESSAGE_CLEAR);
    world_owner_says(&world, store.owner, MC_MESSAGE_CLEARED, &told);
    assert_int_equal(remove_answer(&world, other.call), 0);
    world_close_all(&world);
}

/* A removal of what a failed put left: nothing is put before it is answered. */
static void test_removed_after_a_failed_put(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    struct world_store store;
    uint64_t other = world_open_writing(&world, &store, &place);
    world_revoke(&world, other, &place);
    assert_int_not_equal(world_put_done(&world, other, PUT_1), 0);
    world_remove_one_send(&world, store.call, "k");
    assert_int_equal(remove_answer(&world, store.call), 1);
    assert_int_equal(world_grant(&world, other, PUT_2, "k", SMALL, NULL, &place), MC_ERR_PUT_IN_PROGRESS);
    assert_int_equal(world_owner_obeys(&world, store.owner), 1);
    assert_int_equal(remove_answer(&world, store.call), MC_ERR_OBJECT_NOT_FOUND);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", SMALL), 0);
    world_close_all(&world);
}

/* A removal of all is of those too that have left, but could come back. */
static void test_remove_all_waits_for_what_left(void **state)
{
    struct world world;
    (void)state;
    for (unsigned regex = 0; regex < 2; regex++) {
        struct world_store store = world_open_one(&world);
        uint64_t first = world_client(&world, CLIENT), second = world_client(&world, SECOND_CLIENT);
        assert_int_equal(world_put(&world, store.call, store.owner, "k", SMALL), 0);
        assert_int_equal(world_put(&world, store.call, store.owner, "x", SMALL), 0);
        world_remove_one_send(&world, first, "k");
        world_remove_all_send(&world, second, regex ? "^k$" : NULL, true);
        world_remove_all_send(&world, store.call, regex ? "^y$" : "^y", true);
        world_settle(&world, 100);
        assert_int_equal(world_count_answer(&world, store.call), 0); /* it has nothing to wait for */
        assert_int_equal(world_count_answer(&world, second), INT64_MIN);
        assert_int_equal(world_owner_obeys(&world, store.owner), regex ? 1 : 2);
        world_settle(&world, 100);
        assert_int_equal(remove_answer(&world, first), 0);
        assert_int_equal(world_count_answer(&world, second), regex ? 0 : 1);
        world_close_all(&world);
    }
}

/* However many ask for the same removal: their answers cost neither stack nor more notes than they may have. */
static void test_removals_without_end(void **state)
{
    struct world world;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t hostile = world_client(&world, CLIENT), last = world_client(&world, SECOND_CLIENT);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", SMALL), 0);
    for (unsigned i = 0; i < 200000; i++) {
        world_remove_one_send(&world, hostile, "k");
        assert_int_equal(remove_answer(&world, hostile), i < MC_WAITS_PER_CONNECTION ? 1 : MC_ERR_BUSY);
    }
    world_remove_one_send(&world, last, "k");
    assert_true(world.core->waits.count - world.core->waits.free_count <= 2 * (MC_WAITS_PER_CONNECTION + 1));
    assert_int_equal(remove_answer(&world, hostile), 1);
    assert_int_equal(world_owner_obeys(&world, store.owner), 1);
    unsigned removed = 0;
    for (unsigned i = 0; i < MC_WAITS_PER_CONNECTION; i++) {
        int32_t code = remove_answer(&world, hostile);
        assert_true(code == 0 || code == MC_ERR_OBJECT_NOT_FOUND);
        removed += code == 0;
    }
    assert_int_equal(removed, 1);
    assert_int_equal(remove_answer(&world, hostile), 1);
    assert_int_equal(remove_answer(&world, last), MC_ERR_OBJECT_NOT_FOUND);
    world_remove_one_send(&world, hostile, "k");
    assert_int_equal(remove_answer(&world, hostile), MC_ERR_OBJECT_NOT_FOUND); /* it may wait again */
    assert_int_equal(world.core->waits.free_count, world.core->waits.count);
    world_close_all(&world);
}

/* More wait for one key than are answered in one turn. */
static void test_a_crowd_is_answered_in_slices(void **state)
{
    enum { CLIENTS = 40 };
    struct world world;
    uint64_t clients[CLIENTS];
    unsigned answered = 0, ticks = 0;
    (void)state;
    struct world_store store = world_open_one(&world);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", SMALL), 0);
    for (unsigned i = 0; i < CLIENTS; i++) {
        clients[i] = world_client(&world, 10 + i);
        for (unsigned j = 0; j < MC_WAITS_PER_CONNECTION; j++)
            world_remove_one_send(&world, clients[i], "k");
    }
    assert_int_equal(world_owner_obeys(&world, store.owner), 1);
    do {
        unsigned before = answered;
        for (unsigned i = 0; i < CLIENTS; i++)
            while (remove_answer(&world, clients[i]) != 1)
                answered++;
        assert_true(answered - before <= MC_SLICE_WAITS);
        world_check(&world);
    } while (mc_core_tick(world.core, world.now) <= world.now && ticks++ < 100);
    for (unsigned i = 0; i < CLIENTS; i++)
        while (remove_answer(&world, clients[i]) != 1)
            answered++;
    assert_int_equal(answered, CLIENTS * MC_WAITS_PER_CONNECTION);
    assert_int_equal(world.core->waits.free_count, world.core->waits.count);
    world_close_all(&world);
}

/* Who comes, asks, and leaves, again and again, leaves no more with a key than the last of it. */
static void test_who_leaves_waits_no_more(void **state)
{
    struct world world;
    (void)state;
    struct world_store store;
    uint64_t stays = world_open_holding(&world, &store);
    for (unsigned i = 0; i < 100; i++) {
        uint64_t guest = world_client(&world, SECOND_CLIENT);
        for (unsigned j = 0; j < 10; j++)
            world_remove_one_send(&world, guest, "k");
        if (i == 50)
            world_remove_one_send(&world, stays, "k");
        world_disconnect(&world, guest);
    }
    assert_true(world.core->waits.count - world.core->waits.free_count <= 2 * 20 + 2);
    assert_int_equal(world_owner_obeys(&world, store.owner), 1);
    assert_int_equal(remove_answer(&world, stays), MC_ERR_OBJECT_NOT_FOUND);
    assert_int_equal(world.core->waits.free_count, world.core->waits.count);
    world_close_all(&world);
}

/* A removal over all ends with its caller. */
static void test_remove_all_ends_with_its_caller(void **state)
{
    struct world world;
    (void)state;
    for (unsigned regex = 0; regex < 2; regex++) {
        enum { KEYS = 6000 };
        world_open(&world);
        struct world_store store = world_store(&world, 64 * MIB, 64 * MIB, "a");
        uint64_t guest = world_client(&world, SECOND_CLIENT);
        for (unsigned i = 0; i < KEYS; i++) {
            char key[16];
            (void)snprintf(key, sizeof(key), "k%u", i);
            assert_int_equal(world_put(&world, store.call, store.owner, key, SMALL), 0);
        }
        world_remove_all_send(&world, guest, regex ? "^k" : NULL, true);
        (void)mc_core_tick(world.core, world.now);
        world_disconnect(&world, guest);
        world_settle(&world, 100);
        struct mc_core_statistics statistics = statistics_of(&world);
        assert_true(statistics.objects > KEYS / 2 && statistics.objects < KEYS);
        assert_int_equal(world.core->job_count, 0);
        (void)world_owner_obeys(&world, store.owner);
        assert_int_equal(world.core->waits.free_count, world.core->waits.count);
        world_close_all(&world);
    }
}

/* A key may have left more behind than its object can count: a removal waits for all of it. */
static void test_more_is_held_than_the_object_counts(void **state)
{
    enum { FAILED = 2 * MC_OBJECT_CLEARING_MAX };
    static struct world_told told;
    struct world world;
    struct mc_wire_place place;
    (void)state;
    struct world_store store = world_open_one(&world);
    for (unsigned i = 0; i < FAILED; i++) {
        assert_int_equal(world_grant(&world, store.call, i, "k", SMALL, NULL, &place), 0);
        world_revoke(&world, store.call, &place);
        (void)world_put_done(&world, store.call, i);
        world_check(&world);
    }
    assert_int_equal(world_put(&world, store.call, store.owner, "k", SMALL), 0);
    world_remove_one_send(&world, store.call, "k");
    struct world_told one = {.type = MC_MESSAGE_CLEARED, .segment = store.segment, .count = 1};
    unsigned cleared = 0;
    for (world_owner_told(&world, store.owner, &told); told.type != 0; world_owner_told(&world, store.owner, &told)) {
        for (unsigned i = 0; i < told.count; i++) {
            assert_int_equal(remove_answer(&world, store.call), 1);
            one.slots[0] = told.slots[i];
            world_owner_says(&world, store.owner, MC_MESSAGE_CLEARED, &one);
            world_check(&world);
            cleared++;
        }
    }
    assert_int_equal(cleared, FAILED + 1);
    assert_int_equal(remove_answer(&world, store.call), 0);
    world_close_all(&world);
}

/* What is refused lies in its segment until it is cleared, and the next master would meet it. */
static void test_refused_entry_holds(void **state)
{
    struct world world;
    static struct world_told told;
    (void)state;
    struct fake_owner *a = start_with_value(&world, "k"), *b = fake(NODE_B);
    crash(&world, NEXT_EPOCH, SHORTLY_MS);
    assert_int_equal(fake_join(&world, b).code, 0);
    world_pass(&world, GRACE_OVER_MS);
    struct mc_wire_place place;
    assert_int_equal(world_grant(&world, b->call, PUT_1, "k", SMALL + 1, NULL, &place),
                     0); /* the master does not know */
    world_live(&world, b->owner, &place);
    assert_int_equal(world_put_done(&world, b->call, PUT_1), 0);
    assert_int_equal(fake_join(&world, a).inventory, 1);
    struct mc_wire_inventory_item item = item_of(a, held(a, "k"));
    send_inventory(&world, a->owner, a->segment, 0, true, &item, 1);
    for (unsigned i = 0; i < 3; i++) {
        world_pass(&world, SECOND_MS);
        (void)world_beat(&world, a->heartbeat);
        (void)world_beat(&world, b->heartbeat);
    }
    assert_int_equal(found(&world, b, "k"), SMALL + 1);
    assert_int_equal(world_remove(&world, b->call, "k", true), MC_ERR_BUSY);
    assert_int_equal(world_receive(&world, a->owner).type, MC_MESSAGE_INVENTORY_ACK);
    world_owner_told(&world, a->owner, &told);
    assert_int_equal(told.type, MC_MESSAGE_CLEAR);
    assert_int_equal(told.count, 1);
    world_owner_says(&world, a->owner, MC_MESSAGE_CLEARED, &told);
    world_pass(&world, 1);
    world_remove_one_send(&world, b->call, "k");
    assert_int_equal(world_owner_obeys(&world, b->owner), 1);
    assert_int_equal(remove_answer(&world, b->call), 0);
    finish(&world, a, b);
}

/* Its owner never clears it, as a disk whose journal cannot be written: it holds up nobody but its own key, and in the
 * end the contents are not taken. */
static void test_refused_entry_is_never_cleared(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    struct fake_owner *a = start_with_value(&world, "k"), *b = fake(NODE_B);
    crash(&world, NEXT_EPOCH, SHORTLY_MS);
    assert_int_equal(fake_join(&world, b).code, 0);
    assert_int_equal(world_grant(&world, b->call, PUT_1, "k", SMALL + 1, NULL, &place), 0);
    world_live(&world, b->owner, &place);
    assert_int_equal(world_put_done(&world, b->call, PUT_1), 0);
    assert_int_equal(fake_put(&world, b, "other", SMALL, 0), 0);
    grow_old(&world, b);
    assert_int_equal(fake_join(&world, a).inventory, 1);
    struct mc_wire_inventory_item item = item_of(a, held(a, "k"));
    assert_int_equal(world_remove(&world, b->call, "none", true), MC_ERR_BUSY);
    send_inventory(&world, a->owner, a->segment, 0, true, &item, 1);
    assert_int_equal(world_remove(&world, b->call, "none", true), MC_ERR_OBJECT_NOT_FOUND);
    assert_int_equal(world_grant(&world, b->call, PUT_2, "large", 2 * MIB, NULL, NULL), MC_ERR_SPACE_SOON);
    assert_int_equal(fake_remove(&world, b, b, "other"), 0);
    for (unsigned second = 0; second < MC_INVENTORY_PATIENCE_MS / SECOND_MS; second++) {
        assert_int_equal(world_remove(&world, b->call, "k", true), MC_ERR_BUSY);
        assert_int_equal(statistics_of(&world).segments, 2);
        world_pass(&world, SECOND_MS);
        (void)world_beat(&world, a->heartbeat);
        (void)world_beat(&world, b->heartbeat);
    }
    world_pass(&world, 200);
    assert_int_equal(statistics_of(&world).segments, 1);
    assert_int_equal(world_grant(&world, b->call, PUT_3, "large", 2 * MIB, NULL, NULL), MC_ERR_NO_AVAILABLE_HANDLE);
    world_remove_one_send(&world, b->call, "k");
    assert_int_equal(world_owner_obeys(&world, b->owner), 1);
    assert_int_equal(remove_answer(&world, b->call), 0);
    finish(&world, a, b);
}

/* Evicted, and at once put again: the key waits for its slot, the rest does not. */
static void test_evicted_key_waits(void **state)
{
    struct world world;
    struct mc_wire_place place;
    char key[24];
    unsigned count = 0, waits = 0;
    (void)state;
    struct world_store store = world_open_one(&world);
    for (int32_t code = 0; count < 20000 && waits == 0; count++) {
        (void)snprintf(key, sizeof(key), "k%u", count);
        code = world_grant(&world, store.call, 100 + count, key, 8192, NULL, &place);
        if (code == 0) {
            world_live(&world, store.owner, &place);
            assert_int_equal(world_put_done(&world, store.call, 100 + count), 0);
        }
        if (world_exist(&world, store.call, "k0") == 1)
            continue;
        waits++;
    }
    assert_int_equal(waits, 1);
    assert_int_equal(world_grant(&world, store.call, PUT_1, "k0", SMALL, NULL, &place), MC_ERR_PUT_IN_PROGRESS);
    assert_true(world_owner_obeys(&world, store.owner) > 0);
    assert_int_equal(world_grant(&world, store.call, PUT_2, "k0", SMALL, NULL, &place), 0);
    world_close_all(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_wait),
        cmocka_unit_test(test_removals_without_end),
        cmocka_unit_test(test_a_crowd_is_answered_in_slices),
        cmocka_unit_test(test_who_leaves_waits_no_more),
        cmocka_unit_test(test_remove_all_ends_with_its_caller),
        cmocka_unit_test(test_more_is_held_than_the_object_counts),
        cmocka_unit_test(test_released_by_departure),
        cmocka_unit_test(test_departure_is_noted_first),
        cmocka_unit_test(test_each_departure_is_noted),
        cmocka_unit_test(test_what_hides_another_stays),
        cmocka_unit_test(test_exists_waits_for_what_may_come_back),
        cmocka_unit_test(test_upsert_waits_for_a_grant_that_failed),
        cmocka_unit_test(test_removal_waits_for_what_is_cut_off),
        cmocka_unit_test(test_behind_is_no_contact),
        cmocka_unit_test(test_failed_put_is_no_hindrance),
        cmocka_unit_test(test_removed_after_a_failed_put),
        cmocka_unit_test(test_remove_all_waits_for_what_left),
        cmocka_unit_test(test_refused_entry_holds),
        cmocka_unit_test(test_refused_entry_is_never_cleared),
        cmocka_unit_test(test_evicted_key_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
