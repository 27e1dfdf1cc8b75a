/* Places that are granted ahead: B1 to B5 of the ordering page, at the master. */
#include "core_world.h"

#include "store/core/blank.h"
#include "store/core/put.h"
#include "store/core/tombstone.h"
#include "store/core/recover.h"
#include "store/wire/stripe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static const struct world_wish wants_blank = {.flags = MC_PUT_BLANK};

/* A client of the machine of the segments, which knows blanks. */
static uint64_t near_client(struct world *world, uint64_t node, uint64_t features)
{
    uint64_t connection = world_connect(world);
    struct mc_wire_hello hello = world_hello(MC_ROLE_CALL, node, FIRST_LIFE);
    hello.host = (struct mc_id){9, 9};
    hello.features = features;
    assert_int_equal(world_greet(world, connection, &hello).code, 0);
    return connection;
}

static uint64_t blank_client(struct world *world, uint64_t node)
{
    return near_client(world, node, UINT64_C(1) << MC_FEATURE_BLANKS);
}

/* What has come before a PUT_DONE; generation 0: none has. */
static struct mc_wire_blank read_blank(struct mc_frame frame)
{
    struct mc_reader reader = mc_reader(frame.body.data, frame.body.length);
    struct mc_wire_none none;
    struct mc_wire_blank blank = {0};
    assert_int_equal(frame.type, MC_MESSAGE_PUT_BLANKS);
    assert_int_equal(frame.request_id, 0);
    mc_wire_none_read(&reader, &none);
    assert_int_equal(mc_list_read(&reader), 1);
    mc_wire_blank_read(&reader, &blank);
    assert_false(reader.bad);
    return blank;
}

/* A put that asks for one. */
static struct mc_wire_blank put_wanting(struct world *world, uint64_t client, uint64_t owner, const char *key)
{
    struct mc_wire_place place;
    assert_int_equal(world_grant(world, client, PUT_1, key, SMALL, &wants_blank, &place), 0);
    world_live(world, owner, &place);
    struct mc_wire_blank blank = read_blank(world_receive(world, client));
    assert_int_equal(world_put_done(world, client, PUT_1), 0);
    world_check(world);
    return blank;
}

static void bind_send_key(struct world *world, uint64_t client, uint64_t id, struct mc_span key, uint64_t length,
                          const struct mc_wire_blank *blank, uint32_t flags)
{
    struct mc_wire_put_bind head = {
        .segment = blank->segment, .slot = blank->slot, .generation = blank->generation, .flags = flags};
    struct mc_wire_put_start_item item = {.length = length, .key = key};
    size_t frame = world_begin(world, MC_MESSAGE_PUT_BIND, id);
    mc_wire_put_bind_write(&world->frame, &head);
    size_t list = mc_list_begin(&world->frame);
    mc_wire_put_start_item_write(&world->frame, &item);
    mc_list_end(&world->frame, list, 1);
    world_send(world, client, frame);
}

static void bind_send(struct world *world, uint64_t client, uint64_t id, const char *key, uint64_t length,
                      const struct mc_wire_blank *blank, uint32_t flags)
{
    bind_send_key(world, client, id, mc_span_string(key), length, blank, flags);
}

static struct mc_wire_place place_of(const struct mc_wire_blank *blank)
{
    return (struct mc_wire_place){
        .segment = blank->segment, .slot = blank->slot, .generation = blank->generation, .offset = blank->offset};
}

static void fill(struct world *world, uint64_t owner, const struct mc_wire_blank *blank)
{
    struct mc_wire_place place = place_of(blank);
    world_live(world, owner, &place);
}

static uint64_t used_units(const struct world *world, uint32_t segment)
{
    return mc_segment_find(world->core, segment)->used;
}

static void ordering_B4_key_and_live_in_either_order(void **state)
{
    struct world world;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t client = blank_client(&world, CLIENT);
    struct mc_wire_blank blank = put_wanting(&world, client, store.owner, "first");
    assert_true(blank.size >= SMALL);
    bind_send(&world, client, PUT_2, "a", SMALL, &blank, MC_PUT_BLANK);
    assert_int_equal(world_receive(&world, client).type, 0);
    assert_int_equal(world_exist(&world, store.call, "a"), 0);
    fill(&world, store.owner, &blank);
    struct mc_wire_blank next = read_blank(world_receive(&world, client));
    assert_int_equal(world_put_done(&world, client, PUT_2), 0);
    assert_int_equal(world_exist(&world, store.call, "a"), 1);
    fill(&world, store.owner, &next);
    fill(&world, store.owner, &next); /* said twice */
    assert_int_equal(world_exist(&world, store.call, "b"), 0);
    bind_send(&world, client, PUT_3, "b", SMALL, &next, 0);
    assert_int_equal(world_put_done(&world, client, PUT_3), 0);
    assert_int_equal(world_exist(&world, store.call, "b"), 1);
    assert_int_equal(world.core->statistics.put_end_items, 3);
    assert_int_equal(world.core->statistics.put_start_items, 3);
    world_close_all(&world);
}

static void ordering_B4_what_is_refused_is_cleared_and_holds_its_key(void **state)
{
    struct world world;
    struct world_told told;
    struct mc_wire_place place;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t client = blank_client(&world, CLIENT);
    assert_int_equal(world_put(&world, store.call, store.owner, "there", SMALL), 0);
    struct mc_wire_blank blank = put_wanting(&world, client, store.owner, "first");
    fill(&world, store.owner, &blank);
    bind_send(&world, client, PUT_2, "there", SMALL, &blank, MC_PUT_BLANK);
    assert_int_equal(world_put_done(&world, client, PUT_2), MC_ERR_STALE);
    world_owner_told(&world, store.owner, &told);
    assert_int_equal(told.type, MC_MESSAGE_CLEAR);
    assert_true(told.slots[0].generation == blank.generation);
    /* "exists" would be too early: a next master could still find the value that was refused. */
    struct world_wish again = {.unsure = blank.generation};
    assert_int_equal(world_grant(&world, client, PUT_3, "there", SMALL, &again, &place), MC_ERR_PUT_IN_PROGRESS);
    const char *key = "there";
    int32_t code;
    world_remove_send(&world, store.call, &key, 1, true);
    assert_false(world_remove_answer(&world, store.call, &code, 1));
    world_owner_says(&world, store.owner, MC_MESSAGE_CLEARED, &told);
    (void)world_owner_obeys(&world, store.owner);
    assert_true(world_remove_answer(&world, store.call, &code, 1));
    assert_int_equal(code, 0);
    world_check(&world);
    world_close_all(&world);
}

/* Neither a piece of a value nor the head of one goes into a place ahead, nor leaves a word about its key. */
static void pieces_and_heads_take_none(void **state)
{
    static const char head[] = MC_HEAD_MARK "key", piece[] = MC_PIECE_MARK "0123456789abcdefkey";
    const struct mc_span keys[] = {mc_span(head, sizeof(head) - 1), mc_span(piece, sizeof(piece) - 1)};
    struct world world;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t client = blank_client(&world, CLIENT);
    assert_true(mc_key_is_head(keys[0]) && mc_key_is_piece(keys[1]));
    for (unsigned i = 0; i < 2; i++) {
        struct mc_wire_blank blank = put_wanting(&world, client, store.owner, i == 0 ? "first" : "second");
        bind_send_key(&world, client, PUT_2, keys[i], SMALL, &blank, 0);
        assert_int_equal(world_put_done(&world, client, PUT_2), MC_ERR_STALE);
        assert_null(mc_objects_find(&world.core->objects, keys[i]));
        assert_null(mc_objects_find(&world.core->objects, mc_key_unmarked(keys[i])));
        assert_int_equal(world_owner_obeys(&world, store.owner), 1);
    }
    world_check(&world);
    world_close_all(&world);
}

/* What says no, and what the put that follows is told. */
static void ordering_B4_refusals(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t client = blank_client(&world, CLIENT), other = blank_client(&world, SECOND_CLIENT);
    struct mc_wire_blank blank = put_wanting(&world, client, store.owner, "first");
    /* Of another connection. */
    bind_send(&world, other, PUT_2, "x", SMALL, &blank, 0);
    assert_int_equal(world_put_done(&world, other, PUT_2), MC_ERR_STALE);
    assert_int_equal(world_owner_obeys(&world, store.owner), 0);
    /* Another writer has the key. */
    assert_int_equal(world_grant(&world, other, PUT_3, "x", SMALL, NULL, &place), 0);
    bind_send(&world, client, PUT_4, "x", SMALL, &blank, 0);
    assert_int_equal(world_put_done(&world, client, PUT_4), MC_ERR_STALE);
    assert_int_equal(world_owner_obeys(&world, store.owner), 1);
    /* Larger than the place; of no length; nothing of the kind. */
    blank = put_wanting(&world, client, store.owner, "second");
    bind_send(&world, client, PUT_5, "large", blank.size, &blank, 0);
    assert_int_equal(world_put_done(&world, client, PUT_5), MC_ERR_STALE);
    blank = put_wanting(&world, client, store.owner, "third");
    bind_send(&world, client, PUT_6, "empty", 0, &blank, 0);
    assert_int_equal(world_put_done(&world, client, PUT_6), MC_ERR_STALE);
    blank.slot = 4000000;
    bind_send(&world, client, PUT_7, "stranger", SMALL, &blank, 0);
    assert_int_equal(world_put_done(&world, client, PUT_7), MC_ERR_STALE);
    blank.segment = 77777;
    bind_send(&world, client, PUT_8, "stranger", SMALL, &blank, 0);
    assert_int_equal(world_put_done(&world, client, PUT_8), MC_ERR_STALE);
    assert_int_equal(world_exist(&world, store.call, "large"), 0);
    world_check(&world);
    world_close_all(&world);
}

static void ordering_B5_a_key_that_has_left_since_takes_no_older_place(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    struct world_store store = world_open_one(&world);
    world.core->recovery_over = world.core->disks_over = true; /* no tombstones: nothing but its number is left */
    uint64_t client = blank_client(&world, CLIENT);
    struct mc_wire_blank blank = put_wanting(&world, client, store.owner, "first");
    assert_int_equal(world_grant(&world, store.call, PUT_2, "k", SMALL, NULL, &place), 0);
    world_revoke(&world, store.call, &place);
    assert_int_equal(world_put_done(&world, store.call, PUT_2), MC_ERR_TRANSFER_FAIL);
    assert_int_equal(world_owner_obeys(&world, store.owner), 1);
    assert_null(mc_objects_find(&world.core->objects, mc_span_string("k")));
    bind_send(&world, client, PUT_3, "k", SMALL, &blank, 0);
    assert_int_equal(world_put_done(&world, client, PUT_3), MC_ERR_STALE);
    (void)world_owner_obeys(&world, store.owner);
    /* A later place is as good as any. */
    blank = put_wanting(&world, client, store.owner, "second");
    bind_send(&world, client, PUT_4, "k", SMALL, &blank, 0);
    fill(&world, store.owner, &blank);
    assert_int_equal(world_put_done(&world, client, PUT_4), 0);
    world_close_all(&world);
}

static void ordering_B1_a_link_that_ends_is_cut(void **state)
{
    struct world world;
    struct world_told told;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t client = blank_client(&world, CLIENT);
    uint64_t used = used_units(&world, store.segment);
    struct mc_wire_blank blank = put_wanting(&world, client, store.owner, "first");
    assert_true(used_units(&world, store.segment) > used);
    used = used_units(&world, store.segment);
    world_disconnect(&world, client);
    world_owner_told_to_cut(&world, store.owner, &told);
    assert_true(told.count == 1 && told.slots[0].generation == blank.generation && told.writer.low == CLIENT);
    world_owner_says(&world, store.owner, MC_MESSAGE_CUT_DONE, &told);
    assert_int_equal(used_units(&world, store.segment), used);
    assert_true(mc_link_alone(&world.core->blanks));
    world_check(&world);
    world_close_all(&world);
}

static void ordering_B1_one_that_is_not_used_is_cut(void **state)
{
    struct world world;
    struct world_told told;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t client = blank_client(&world, CLIENT);
    struct mc_wire_blank blank = put_wanting(&world, client, store.owner, "first");
    world_pass_beating(&world, MC_BLANK_MS + SECOND_MS, store.heartbeat);
    world_owner_told_to_cut(&world, store.owner, &told);
    bind_send(&world, client, PUT_2, "late", SMALL, &blank, 0);
    assert_int_equal(world_put_done(&world, client, PUT_2), MC_ERR_STALE);
    assert_int_equal(world_exist(&world, store.call, "late"), 0);
    world_check(&world);
    world_close_all(&world);
}

/* A put of "k" that may have gone into that blank already. */
static void ask_by_name(struct world *world, uint64_t client, uint64_t id, const struct mc_wire_blank *blank)
{
    struct mc_wire_put_start head = {.replica_count = 1};
    struct mc_wire_put_start_item item = {.length = SMALL,
                                          .key = mc_span_string("k"),
                                          .unsure = blank->generation,
                                          .blank_segment = blank->segment,
                                          .blank_slot = blank->slot};
    size_t frame = world_begin(world, MC_MESSAGE_PUT_START, id);
    mc_wire_put_start_write(&world->frame, &head);
    size_t list = mc_list_begin(&world->frame);
    mc_wire_put_start_item_write(&world->frame, &item);
    mc_list_end(&world->frame, list, 1);
    mc_list_end(&world->frame, mc_list_begin(&world->frame), 0);
    mc_list_end(&world->frame, mc_list_begin(&world->frame), 0);
    world_send(world, client, frame);
}

static void ordering_B2_who_lost_its_link_names_the_place(void **state)
{
    struct world world;
    struct world_told told;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t client = blank_client(&world, CLIENT);
    struct mc_wire_blank blank = put_wanting(&world, client, store.owner, "first");
    fill(&world, store.owner, &blank);
    world_disconnect(&world, client); /* with what it had to say */
    uint64_t anew = blank_client(&world, CLIENT);
    ask_by_name(&world, anew, PUT_2, &blank);
    static struct world_grants grants;
    world_put_granted(&world, anew, PUT_2, 1, &grants);
    assert_int_equal(grants.items[0].code, 0);
    assert_true(grants.places[0].generation > blank.generation);
    world_live(&world, store.owner, &grants.places[0]);
    assert_int_equal(world_put_done(&world, anew, PUT_2), 0);
    /* Nobody hears that the key is gone while the first place may show it. */
    const char *key = "k";
    int32_t code;
    world_owner_told(&world, store.owner, &told);
    assert_true(told.type == MC_MESSAGE_CLEAR && told.slots[0].generation == blank.generation);
    world_remove_send(&world, store.call, &key, 1, true);
    struct world_told second;
    world_owner_told(&world, store.owner, &second);
    world_owner_says(&world, store.owner, MC_MESSAGE_CLEARED, &second);
    assert_false(world_remove_answer(&world, store.call, &code, 1));
    world_owner_says(&world, store.owner, MC_MESSAGE_CLEARED, &told);
    assert_true(world_remove_answer(&world, store.call, &code, 1));
    world_check(&world);
    world_close_all(&world);
}

/* What lies in a blank of the master before is later than the value that is there: its owner may yet come. */
static void ordering_B2_exists_waits_for_owners_that_may_come(void **state)
{
    struct world world;
    static struct world_grants grants;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t client = blank_client(&world, CLIENT);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", SMALL), 0);
    struct mc_wire_blank blank = {.segment = 7, .slot = 3, .generation = (world.core->epoch + 1) << MC_EPOCH_SHIFT};
    world.core->veiled = true; /* as while the contents of a segment wait for others */
    assert_true(mc_recover_unsettled(world.core));
    ask_by_name(&world, client, PUT_2, &blank);
    world_put_granted(&world, client, PUT_2, 1, &grants);
    assert_int_equal(grants.items[0].code, MC_ERR_PUT_IN_PROGRESS);
    world.core->veiled = false;
    assert_false(mc_recover_unsettled(world.core));
    ask_by_name(&world, client, PUT_3, &blank);
    world_put_granted(&world, client, PUT_3, 1, &grants);
    assert_int_equal(grants.items[0].code, MC_ERR_OBJECT_ALREADY_EXISTS);
    world_close_all(&world);
}

static void ordering_B3_the_inventory_of_an_owner_that_is_back(void **state)
{
    struct world world;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t client = blank_client(&world, CLIENT);
    struct mc_wire_blank blank = put_wanting(&world, client, store.owner, "first");
    struct mc_segment *segment = mc_segment_find(world.core, store.segment);
    mc_put_found_live(world.core, segment, blank.slot); /* as compare() of recover.c does */
    assert_true(mc_node_is_blank(mc_segment_node(segment, blank.slot)));
    bind_send(&world, client, PUT_2, "k", SMALL, &blank, 0);
    assert_int_equal(world_put_done(&world, client, PUT_2), 0);
    world_check(&world);
    world_close_all(&world);
}

static void an_owner_that_is_gone_takes_them_along(void **state)
{
    struct world world;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t client = blank_client(&world, CLIENT);
    struct mc_wire_blank blank = put_wanting(&world, client, store.owner, "first");
    struct mc_wire_segment head = {.segment = store.segment};
    size_t frame = world_begin(&world, MC_MESSAGE_UNMOUNT, 5);
    mc_wire_unmount_write(&world.frame, &(struct mc_wire_unmount){.segment = head.segment});
    world_send(&world, store.owner, frame);
    world_pass(&world, SECOND_MS);
    bind_send(&world, client, PUT_2, "k", SMALL, &blank, 0);
    assert_int_equal(world_put_done(&world, client, PUT_2), MC_ERR_STALE);
    assert_true(mc_link_alone(&world.core->blanks));
    world_check(&world);
    world_close_all(&world);
}

static void they_go_before_anything_is_evicted(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    struct world_store store = world_open_lru(&world);
    uint64_t clients[16], blanks = 0;
    for (unsigned i = 0; i < 16; i++) {
        char key[32];
        clients[i] = blank_client(&world, CLIENT);
        (void)put_wanting(&world, clients[i], store.owner, world_name(key, "first", i));
    }
    struct mc_segment *segment = mc_segment_find(world.core, store.segment);
    blanks = segment->blank;
    assert_true(blanks > 0);
    assert_true(blanks * MC_EXTENT_UNIT <= segment->capacity / world.core->config.blank_part);
    /* All that is free but for these. */
    uint64_t evictions = world.core->statistics.evicted_objects;
    struct world_wish wish = {0};
    uint64_t largest = mc_space_largest(&segment->space) * MC_EXTENT_UNIT;
    int32_t code = world_grant(&world, store.call, PUT_2, "large", largest + 1024, &wish, &place);
    assert_int_equal(code, MC_ERR_SPACE_SOON);
    assert_int_equal(segment->blank, 0);
    (void)world_owner_obeys(&world, store.owner);
    assert_int_equal(world.core->statistics.evicted_objects, evictions);
    world_check(&world);
    world_close_all(&world);
}

static void who_does_not_know_them_gets_none(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t client = near_client(&world, CLIENT, UINT64_C(1) << MC_FEATURE_FIRM_PINS);
    uint64_t far = world_join(&world, MC_ROLE_CALL, SECOND_CLIENT, FIRST_LIFE); /* of a machine that it does not say */
    const uint64_t without[] = {client, far};
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(world_grant(&world, without[i], PUT_1, i == 0 ? "a" : "b", SMALL, &wants_blank, &place), 0);
        world_live(&world, store.owner, &place);
        assert_int_equal(world_put_done(&world, without[i], PUT_1), 0);
        assert_int_equal(world_receive(&world, without[i]).type, 0);
    }
    /* Nor who asks for much. */
    uint64_t near = blank_client(&world, THIRD_CLIENT);
    assert_int_equal(world_grant(&world, near, PUT_1, "c", MC_BLANK_BYTES_MAX + 1, &wants_blank, &place), 0);
    world_live(&world, store.owner, &place);
    assert_int_equal(world_put_done(&world, near, PUT_1), 0);
    assert_true(mc_link_alone(&world.core->blanks));
    world_close_all(&world);
}

/* It may not know that it has it no more, where no answer tells it of another, and would write into what is another's.
 */
static void one_that_asks_again_keeps_what_it_has(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t client = blank_client(&world, CLIENT);
    struct mc_wire_blank blank = put_wanting(&world, client, store.owner, "first");
    assert_int_equal(world_grant(&world, client, PUT_2, "first", SMALL, &wants_blank, &place),
                     MC_ERR_OBJECT_ALREADY_EXISTS);
    assert_int_equal(world_grant(&world, client, PUT_3, "second", SMALL, &wants_blank, &place), 0);
    world_live(&world, store.owner, &place);
    assert_int_equal(world_put_done(&world, client, PUT_3), 0); /* nothing before it */
    assert_int_equal(world_owner_obeys(&world, store.owner), 0);
    bind_send(&world, client, PUT_4, "third", SMALL, &blank, 0);
    fill(&world, store.owner, &blank);
    assert_int_equal(world_put_done(&world, client, PUT_4), 0);
    world_check(&world);
    world_close_all(&world);
}

static void a_revoked_bind_fails_as_any_put(void **state)
{
    struct world world;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t client = blank_client(&world, CLIENT);
    struct mc_wire_blank blank = put_wanting(&world, client, store.owner, "first");
    struct mc_wire_place place = place_of(&blank);
    bind_send(&world, client, PUT_2, "k", SMALL, &blank, 0);
    world_revoke(&world, client, &place);
    assert_int_equal(world_put_done(&world, client, PUT_2), MC_ERR_TRANSFER_FAIL);
    fill(&world, store.owner, &blank); /* late */
    assert_int_equal(world_exist(&world, store.call, "k"), 0);
    assert_true(world_owner_obeys(&world, store.owner) >= 1);
    world_check(&world);
    world_close_all(&world);
}

/* ---- room ---- */

static void fill_up(struct world *world, struct world_store *store, uint64_t bytes)
{
    struct mc_segment *segment = mc_segment_find(world->core, store->segment);
    for (unsigned i = 0; mc_space_largest(&segment->space) * MC_EXTENT_UNIT > bytes; i++) {
        char key[32];
        assert_int_equal(world_put(world, store->call, store->owner, world_name(key, "old", i), bytes - 1024), 0);
    }
}

/* What is wanted is more than they give back: it is not put off for them, and no others are given meanwhile. */
static void a_large_put_does_not_wait_for_them_alone(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    struct world_store store = world_open_lru(&world);
    struct mc_segment *segment = mc_segment_find(world.core, store.segment);
    uint64_t clients[8];
    fill_up(&world, &store, 64 << 10);
    for (unsigned i = 0; i < 8; i++) {
        char key[32];
        clients[i] = blank_client(&world, CLIENT);
        (void)put_wanting(&world, clients[i], store.owner, world_name(key, "first", i));
    }
    assert_true(segment->blank > 0);
    unsigned tries = 0;
    int32_t code = MC_ERR_SPACE_SOON;
    for (; code == MC_ERR_SPACE_SOON && tries < 6; tries++) {
        uint64_t evictions = world.core->statistics.evicted_objects;
        code = world_grant(&world, store.call, PUT_2, "large", MIB, &(struct world_wish){0}, &place);
        assert_true(code == 0 || tries > 0 || world.core->statistics.evicted_objects > evictions);
        (void)world_owner_obeys(&world, store.owner);
        (void)world_owner_obeys(&world, store.owner);   /* of what was cut the writers, too */
        for (unsigned i = 0; i < 8 && code != 0; i++) { /* the others go on */
            char key[32];
            uint64_t small = world_grant(&world, clients[i], PUT_3, world_name(key, "next", 8 * tries + i), SMALL,
                                         &wants_blank, &place) == 0;
            if (small == 0)
                continue;
            world_live(&world, store.owner, &place);
            assert_int_equal(world_put_done(&world, clients[i], PUT_3), 0); /* and nothing before it */
        }
        assert_int_equal(segment->blank, 0);
    }
    assert_int_equal(code, 0);
    /* When nobody has looked for room for a second they are given again. */
    world_live(&world, store.owner, &place);
    assert_int_equal(world_put_done(&world, store.call, PUT_2), 0);
    world_pass_beating(&world, 2 * SECOND_MS, store.heartbeat);
    (void)put_wanting(&world, clients[0], store.owner, "again");
    world_check(&world);
    world_close_all(&world);
}

static void none_of_a_segment_is_none(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    struct world_store store = world_open_one(&world);
    world.core->config.blank_part = 0;
    uint64_t client = blank_client(&world, CLIENT);
    assert_int_equal(world_grant(&world, client, PUT_1, "k", SMALL, &wants_blank, &place), 0);
    world_live(&world, store.owner, &place);
    assert_int_equal(world_put_done(&world, client, PUT_1), 0);
    assert_true(mc_link_alone(&world.core->blanks));
    world_close_all(&world);
}

static struct mc_connection *connection_of(struct world *world, uint64_t number)
{
    return mc_map_get(&world->core->connections, number);
}

/* A client of a machine without a segment gets none, and its puts go where they always went. */
static void who_is_far_from_all_is_placed_as_ever(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t far = world_connect(&world);
    struct mc_wire_hello hello = world_hello(MC_ROLE_CALL, CLIENT, FIRST_LIFE);
    hello.host = (struct mc_id){7, 7};
    hello.features = UINT64_C(1) << MC_FEATURE_BLANKS;
    assert_int_equal(world_greet(&world, far, &hello).code, 0);
    assert_int_equal(world_grant(&world, far, PUT_1, "k", SMALL, &wants_blank, &place), 0);
    world_live(&world, store.owner, &place);
    assert_int_equal(world_put_done(&world, far, PUT_1), 0);
    assert_int_equal(connection_of(&world, far)->drawn, 0);
    world_close_all(&world);
}

/* As long as another segment is below its watermark, one that is full is not drawn. */
static void a_full_segment_gives_none(void **state)
{
    struct world world;
    (void)state;
    struct world_store store = world_open_lru(&world);
    (void)world_store(&world, NODE_B, 4 * MIB, "b");
    struct mc_segment *segment = mc_segment_find(world.core, store.segment);
    segment->full = true;
    mc_set_remove(&world.core->roomy, segment);
    for (unsigned i = 0; i < 32; i++) {
        struct mc_wire_place place;
        struct world_wish wish = wants_blank;
        char key[32];
        uint64_t client = blank_client(&world, CLIENT);
        assert_int_equal(world_grant(&world, client, PUT_1, world_name(key, "k", i), SMALL, &wish, &place), 0);
        assert_int_equal(segment->blank, 0);
    }
    world_close_all(&world);
}

static void they_are_on_the_metrics(void **state)
{
    struct world world;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t client = blank_client(&world, CLIENT);
    struct mc_wire_blank blank = put_wanting(&world, client, store.owner, "first");
    struct mc_core_statistics statistics;
    mc_core_statistics(world.core, &statistics);
    assert_int_equal(statistics.blank_bytes, blank.size);
    bind_send(&world, client, PUT_2, "k", SMALL, &blank, 0);
    mc_core_statistics(world.core, &statistics);
    assert_int_equal(statistics.blank_bytes, 0);
    fill(&world, store.owner, &blank);
    assert_int_equal(world_put_done(&world, client, PUT_2), 0);
    world_close_all(&world);
}

/* ---- what is said of keys and segments ---- */

/* A value of that key may lie with an owner that has not come yet: that a put beside it failed is nothing to it. */
static void a_key_that_was_refused_may_come_back_from_before(void **state)
{
    struct world world;
    (void)state;
    struct world_store store = world_open_one(&world);
    assert_true(mc_recover_open(world.core));
    uint64_t client = blank_client(&world, CLIENT);
    struct mc_wire_blank blank = put_wanting(&world, client, store.owner, "first");
    bind_send(&world, client, PUT_2, "k", blank.size, &blank, 0); /* more than there is room for */
    assert_int_equal(world_put_done(&world, client, PUT_2), MC_ERR_STALE);
    struct mc_object *held = mc_objects_find(&world.core->objects, mc_span_string("k"));
    assert_non_null(held);
    assert_true(mc_tombstone_lets(world.core, held, 0));
    (void)world_owner_obeys(&world, store.owner);
    assert_null(mc_objects_find(&world.core->objects, mc_span_string("k")));
    world_check(&world);
    world_close_all(&world);
}

static void a_segment_that_is_drained_takes_none(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t client = blank_client(&world, CLIENT);
    struct mc_wire_blank blank = put_wanting(&world, client, store.owner, "first");
    struct mc_segment *segment = mc_segment_find(world.core, store.segment);
    segment->drain = true;
    fill(&world, store.owner, &blank);
    bind_send(&world, client, PUT_2, "k", SMALL, &blank, MC_PUT_BLANK);
    assert_int_equal(world_put_done(&world, client, PUT_2), MC_ERR_STALE);
    assert_true(world_owner_obeys(&world, store.owner) >= 1);
    assert_int_equal(world_exist(&world, store.call, "k"), 0);
    if (world_grant(&world, client, PUT_3, "k", SMALL, &wants_blank, &place) == 0) {
        world_live(&world, store.owner, &place);
        assert_int_equal(world_put_done(&world, client, PUT_3), 0);
    }
    assert_int_equal(segment->blank, 0);
    world_check(&world);
    world_close_all(&world);
}

static void a_bind_that_comes_twice_binds_once(void **state)
{
    struct world world;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t client = blank_client(&world, CLIENT);
    struct mc_wire_blank blank = put_wanting(&world, client, store.owner, "first");
    bind_send(&world, client, PUT_2, "k", SMALL, &blank, 0);
    bind_send(&world, client, PUT_3, "other", SMALL, &blank, 0);
    assert_int_equal(world_put_done(&world, client, PUT_3), MC_ERR_STALE);
    fill(&world, store.owner, &blank);
    assert_int_equal(world_put_done(&world, client, PUT_2), 0);
    bind_send(&world, client, PUT_4, "k", SMALL, &blank, 0); /* it is live */
    assert_int_equal(world_put_done(&world, client, PUT_4), MC_ERR_STALE);
    assert_int_equal(world_owner_obeys(&world, store.owner), 0);
    assert_int_equal(world_exist(&world, store.call, "k"), 1);
    assert_int_equal(world_exist(&world, store.call, "other"), 0);
    world_check(&world);
    world_close_all(&world);
}

/* An upsert goes the ordinary way, and what it replaces is as ever; it is no reason to be given one. */
static void an_upsert_asks_for_none(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t client = blank_client(&world, CLIENT);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", SMALL), 0);
    const struct world_wish others[] = {{.flags = MC_PUT_BLANK | MC_PUT_REPLACE},
                                        {.flags = MC_PUT_BLANK | MC_PUT_HARD_PIN},
                                        {.flags = MC_PUT_BLANK, .replica_count = 2}};
    for (unsigned i = 0; i < 3; i++) {
        char key[32];
        assert_int_equal(
            world_grant(&world, client, PUT_1, i == 0 ? "k" : world_name(key, "k", i), SMALL, &others[i], &place), 0);
        world_live(&world, store.owner, &place);
        (void)world_owner_obeys(&world, store.owner);
        assert_int_equal(world_put_done(&world, client, PUT_1), 0);
        assert_true(mc_link_alone(&world.core->blanks));
    }
    /* A key that has a value is not put into one; and one that is given up leaves that as it is. */
    struct mc_wire_blank blank = put_wanting(&world, client, store.owner, "first");
    struct world_wish upsert = {.flags = MC_PUT_REPLACE};
    assert_int_equal(world_grant(&world, store.call, PUT_2, "k", SMALL, &upsert, &place), 0);
    bind_send(&world, client, PUT_3, "k", SMALL, &blank, 0);
    assert_int_equal(world_put_done(&world, client, PUT_3), MC_ERR_STALE);
    world_live(&world, store.owner, &place);
    (void)world_owner_obeys(&world, store.owner);
    assert_int_equal(world_put_done(&world, store.call, PUT_2), 0);
    assert_int_equal(world_exist(&world, store.call, "k"), 1);
    world_check(&world);
    world_close_all(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ordering_B4_key_and_live_in_either_order),
        cmocka_unit_test(ordering_B4_what_is_refused_is_cleared_and_holds_its_key),
        cmocka_unit_test(ordering_B4_refusals),
        cmocka_unit_test(pieces_and_heads_take_none),
        cmocka_unit_test(ordering_B5_a_key_that_has_left_since_takes_no_older_place),
        cmocka_unit_test(ordering_B1_a_link_that_ends_is_cut),
        cmocka_unit_test(ordering_B1_one_that_is_not_used_is_cut),
        cmocka_unit_test(ordering_B2_who_lost_its_link_names_the_place),
        cmocka_unit_test(ordering_B2_exists_waits_for_owners_that_may_come),
        cmocka_unit_test(ordering_B3_the_inventory_of_an_owner_that_is_back),
        cmocka_unit_test(an_owner_that_is_gone_takes_them_along),
        cmocka_unit_test(they_go_before_anything_is_evicted),
        cmocka_unit_test(who_does_not_know_them_gets_none),
        cmocka_unit_test(one_that_asks_again_keeps_what_it_has),
        cmocka_unit_test(a_revoked_bind_fails_as_any_put),
        cmocka_unit_test(a_large_put_does_not_wait_for_them_alone),
        cmocka_unit_test(none_of_a_segment_is_none),
        cmocka_unit_test(who_is_far_from_all_is_placed_as_ever),
        cmocka_unit_test(a_full_segment_gives_none),
        cmocka_unit_test(they_are_on_the_metrics),
        cmocka_unit_test(a_key_that_was_refused_may_come_back_from_before),
        cmocka_unit_test(a_segment_that_is_drained_takes_none),
        cmocka_unit_test(a_bind_that_comes_twice_binds_once),
        cmocka_unit_test(an_upsert_asks_for_none),
    };
    return cmocka_run_group_tests_name("core blank", tests, NULL, NULL);
}
