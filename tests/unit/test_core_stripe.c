/* Values in pieces: whole or nothing, found by who knows of them, counted as one, and gone together. */
#include "core_owner.h"
#include "store/core/stripe.h"

#define HEAD "\1\4\305\176v" /* of the value of key "v", as it is stored */
#define HEAD_LENGTH 40u
#define PIECES 3u
#define PIECE_LENGTH 1000u
#define NUMBER 77u

enum { KNOWING = 40, STRANGER };

static struct world_store stores[2];
static uint64_t knowing, stranger; /* clients, one of them of before this */

static void open_two(struct world *world)
{
    world_open(world);
    stores[0] = world_store(world, NODE_A, MIB, "a");
    stores[1] = world_store(world, NODE_B, MIB, "b");
    stranger = world_client(world, STRANGER);
    world_features |= UINT64_C(1) << MC_FEATURE_STRIPES;
    knowing = world_client(world, KNOWING);
    world_features &= ~(UINT64_C(1) << MC_FEATURE_STRIPES);
}

static uint64_t owner_of(const struct mc_wire_place *place)
{
    return place->segment == stores[0].segment ? stores[0].owner : stores[1].owner;
}

static void obey(struct world *world)
{
    for (unsigned i = 0; i < 4; i++) {
        world_settle(world, 1000);
        world_owner_obeys(world, stores[0].owner);
        world_owner_obeys(world, stores[1].owner);
    }
}

/* Of one item, wherever it comes to lie; its code. */
static int32_t put(struct world *world, const char *key, uint64_t length, uint64_t group, uint32_t flags)
{
    const struct world_wish wish = {.group = group, .flags = flags};
    struct mc_wire_place place;
    int32_t code = world_grant(world, knowing, PUT_2, key, length, &wish, &place);
    if (code != 0)
        return code;
    world_live(world, owner_of(&place), &place);
    obey(world);
    return world_put_done(world, knowing, PUT_2);
}

static const char *piece(uint64_t number, unsigned index)
{
    static char names[8][64];
    static unsigned next;
    char *name = names[next++ % 8];
    (void)snprintf(name, sizeof(names[0]), "\1\3\305\176p%08u%04u", (unsigned)number, index);
    return name;
}

/* In one message, as a client does. */
static void put_pieces(struct world *world, uint64_t number, struct world_grants *grants)
{
    struct world_item items[PIECES];
    const struct world_wish wish = {.group = mc_stripe_group(number, PIECES)};
    for (unsigned i = 0; i < PIECES; i++)
        items[i] = (struct world_item){world_key(piece(number, i)), PIECE_LENGTH};
    world_put_start(world, knowing, PUT_1, items, PIECES, &wish, grants);
    assert_int_equal(grants->place_count, PIECES);
    world_live_all(world, &stores[0], &stores[1], grants);
    assert_int_equal(world_put_done(world, knowing, PUT_1), 0);
}

static void put_value(struct world *world, uint64_t number, uint32_t flags)
{
    static struct world_grants grants;
    put_pieces(world, number, &grants);
    assert_int_equal(put(world, HEAD, HEAD_LENGTH, mc_stripe_group(number, PIECES), flags), 0);
    world_check(world);
}

static uint64_t objects_of(const struct world *world)
{
    return statistics_of(world).objects;
}

static void visit_count(void *context, struct mc_span key, uint64_t length)
{
    unsigned *count = context;
    ++*count;
    assert_true(mc_span_equal(key, mc_span_string("v")));
    assert_int_equal(length, PIECES * PIECE_LENGTH);
}

static void test_a_value_is_whole(void **state)
{
    struct world world;
    struct mc_wire_found found;
    struct mc_wire_place place;
    (void)state;
    open_two(&world);
    put_value(&world, NUMBER, 0);
    assert_int_equal(world_get(&world, knowing, "v", 0, &found, &place), 0);
    assert_int_equal(found.length, HEAD_LENGTH);
    assert_int_equal(found.whole, PIECES * PIECE_LENGTH);
    assert_int_equal(world_exist(&world, knowing, "v"), 1);
    /* Who does not know of heads has a miss, and never their bytes; as it is stored, a head is told to all. */
    assert_int_equal(world_get(&world, stranger, "v", 0, NULL, NULL), MC_ERR_OBJECT_NOT_FOUND);
    assert_int_equal(world_exist(&world, stranger, "v"), 0);
    assert_int_equal(world_get(&world, stranger, HEAD, 0, &found, NULL), 0);
    assert_int_equal(found.whole, 0);
    /* It is one object. */
    unsigned count = 0;
    uint64_t cursor = 0;
    while (mc_core_keys(world.core, &cursor, 1000, visit_count, &count))
        ;
    assert_int_equal(count, 1);
    assert_int_equal(objects_of(&world), 1);
    world_close_all(&world);
}

static void test_pieces_lie_apart(void **state)
{
    struct world world;
    static struct world_grants grants;
    unsigned on_first = 0;
    (void)state;
    open_two(&world);
    for (uint64_t number = 1; number < 30; number++, on_first = 0) {
        put_pieces(&world, number, &grants);
        for (unsigned i = 0; i < PIECES; i++)
            on_first += grants.places[i].segment == stores[0].segment;
        assert_in_range(on_first, 1, PIECES - 1);
    }
    world_close_all(&world);
}

static void test_all_goes_with_the_head(void **state)
{
    struct world world;
    (void)state;
    open_two(&world);
    put_value(&world, NUMBER, 0);
    world_remove_one_send(&world, knowing, "v");
    obey(&world);
    int32_t code;
    assert_true(world_remove_answer(&world, knowing, &code, 1));
    assert_int_equal(code, 0);
    obey(&world);
    assert_int_equal(world.core->visible_count, 0);
    assert_int_equal(world.core->groups.count, 0);
    world_close_all(&world);
}

static void test_a_later_value_takes_its_place(void **state)
{
    struct world world;
    struct mc_wire_found found;
    (void)state;
    open_two(&world);
    put_value(&world, NUMBER, 0);
    put_value(&world, NUMBER + 1, MC_PUT_REPLACE);
    obey(&world);
    assert_int_equal(world.core->piece_count, PIECES);
    assert_int_equal(objects_of(&world), 1);
    assert_int_equal(put(&world, "v", SMALL, 0, MC_PUT_REPLACE), 0); /* one that is no head */
    obey(&world);
    assert_int_equal(world.core->piece_count, 0);
    assert_int_equal(world_get(&world, stranger, "v", 0, &found, NULL), 0);
    assert_int_equal(found.length, SMALL);
    assert_int_equal(found.whole, 0);
    world_close_all(&world);
}

static void test_a_head_needs_its_pieces(void **state)
{
    struct world world;
    static struct world_grants grants;
    (void)state;
    open_two(&world);
    assert_int_equal(put(&world, HEAD, HEAD_LENGTH, mc_stripe_group(NUMBER, PIECES), 0), MC_ERR_TRANSFER_FAIL);
    put_pieces(&world, NUMBER, &grants);
    assert_int_equal(put(&world, HEAD, HEAD_LENGTH, mc_stripe_group(NUMBER, PIECES + 1), 0), MC_ERR_TRANSFER_FAIL);
    /* A value that was put as one object has no room for a group: it stays one. So does one that is pinned. */
    assert_int_equal(put(&world, "v", SMALL, 0, 0), 0);
    assert_int_equal(put(&world, HEAD, HEAD_LENGTH, mc_stripe_group(NUMBER, PIECES), MC_PUT_REPLACE),
                     MC_ERR_NOT_SUPPORTED);
    world_check(&world);
    world_close_all(&world);
}

/* A head of a piece would be read for ever, and a piece of no value would never go. */
static void test_what_no_put_makes_is_refused(void **state)
{
    struct world world;
    static struct world_grants grants;
    char both[64], twice[] = "\1\4\305\176" HEAD;
    uint64_t group = mc_stripe_group(NUMBER, PIECES);
    (void)state;
    open_two(&world);
    put_pieces(&world, NUMBER, &grants);
    (void)snprintf(both, sizeof(both), "\1\4\305\176%s", piece(NUMBER, 0));
    assert_int_equal(put(&world, both, HEAD_LENGTH, group, 0), MC_ERR_INVALID_KEY);
    assert_int_equal(put(&world, twice, HEAD_LENGTH, group, 0), MC_ERR_INVALID_KEY);
    assert_int_equal(put(&world, HEAD, HEAD_LENGTH, 0, 0), MC_ERR_INVALID_KEY);
    assert_int_equal(put(&world, HEAD, HEAD_LENGTH, mc_stripe_group(NUMBER, 1), 0), MC_ERR_INVALID_KEY);
    assert_int_equal(put(&world, piece(NUMBER, 7), SMALL, 0, 0), MC_ERR_INVALID_KEY);
    assert_int_equal(put(&world, piece(NUMBER, 7), SMALL, NUMBER << MC_STRIPE_COUNT_BITS, 0), MC_ERR_INVALID_KEY);
    assert_int_equal(put(&world, piece(NUMBER, 7), SMALL, mc_stripe_group(NUMBER, MC_STRIPE_PIECES_MAX + 1), 0),
                     MC_ERR_INVALID_KEY);
    assert_int_equal(world.core->visible_count, PIECES);
    assert_int_equal(put(&world, HEAD, HEAD_LENGTH, group, 0), 0);
    world_check(&world);
    world_close_all(&world);
}

/* Nor does a master take such from who made it up, or has lost its group. */
static void test_what_no_put_makes_is_not_taken(void **state)
{
    struct world world;
    char both[64];
    const uint64_t group = mc_stripe_group(NUMBER, 2);
    (void)state;
    struct fake_owner *owner = start_with_owner(&world);
    const char *kept[] = {"0", "1", "2", "3", "4", "5"};
    for (unsigned i = 0; i < 6; i++)
        assert_int_equal(fake_put_in(&world, owner, kept[i], SMALL, 0, group), 0);
    (void)snprintf(both, sizeof(both), "\1\4\305\176%s", piece(NUMBER, 0));
    const char *told[] = {piece(NUMBER, 0), piece(NUMBER, 1), both, "\1\4\305\176" HEAD, HEAD, piece(NUMBER, 2)};
    const uint64_t groups[] = {group, group, group, group, group, 0};
    for (unsigned i = 0; i < 6; i++) {
        struct fake_slot *slot = held(owner, kept[i]);
        slot->group = groups[i];
        (void)snprintf(slot->key, sizeof(slot->key), "%s", told[i]);
    }
    crash(&world, FIRST_EPOCH + 1, SECOND_MS);
    assert_true(fake_return(&world, owner));
    assert_int_equal(world.core->visible_count, 3);
    assert_int_equal(world.core->piece_count, 2);
    world_check(&world);
    finish(&world, owner, NULL);
}

/* A head that was never there ends nothing: its writer asks for it again. */
static void test_a_head_fails_first(void **state)
{
    struct world world;
    static struct world_grants grants;
    const struct world_wish wish = {.group = mc_stripe_group(NUMBER, PIECES)};
    struct mc_wire_place place;
    (void)state;
    open_two(&world);
    put_pieces(&world, NUMBER, &grants);
    assert_int_equal(world_grant(&world, knowing, PUT_2, HEAD, HEAD_LENGTH, &wish, &place), 0);
    world_revoke(&world, knowing, &place);
    obey(&world);
    assert_int_equal(world_put_done(&world, knowing, PUT_2), MC_ERR_TRANSFER_FAIL);
    assert_int_equal(world.core->piece_count, PIECES);
    assert_int_equal(put(&world, HEAD, HEAD_LENGTH, wish.group, 0), 0);
    assert_int_equal(world_get(&world, knowing, "v", 0, NULL, NULL), 0);
    world_check(&world);
    world_close_all(&world);
}

static void test_nobody_comes_for_the_pieces(void **state)
{
    struct world world;
    static struct world_grants grants;
    (void)state;
    open_two(&world);
    put_pieces(&world, NUMBER, &grants);
    for (unsigned i = 0; i < 70; i++) {
        world_pass(&world, SECOND_MS);
        (void)world_beat(&world, stores[0].heartbeat);
        (void)world_beat(&world, stores[1].heartbeat);
        assert_int_equal(world.core->piece_count, i < 55 ? PIECES : world.core->piece_count);
    }
    obey(&world);
    assert_int_equal(world.core->visible_count, 0);
    assert_int_equal(objects_of(&world), 0);
    world_close_all(&world);
}

/* The pieces of many go in slices: nobody waits for all of them. */
static void test_many_go_in_slices(void **state)
{
    enum { VALUES = 12, MANY = 250 };
    struct world world;
    static struct world_grants grants;
    static struct world_item items[MANY];
    (void)state;
    open_two(&world);
    for (unsigned number = 1; number <= VALUES; number++) {
        const struct world_wish wish = {.group = mc_stripe_group(number, MANY)};
        static char names[MANY][32];
        for (unsigned i = 0; i < MANY; i++) {
            struct mc_span key = world_key(piece(number, i));
            memcpy(names[i], key.data, key.length);
            items[i] = (struct world_item){mc_span(names[i], key.length), 1};
        }
        world_put_start(&world, knowing, PUT_1, items, MANY, &wish, &grants);
        assert_int_equal(grants.place_count, MANY);
        world_live_all(&world, &stores[0], &stores[1], &grants);
        assert_int_equal(world_put_done(&world, knowing, PUT_1), 0);
    }
    for (unsigned i = 0; i < 59; i++) {
        world_pass(&world, SECOND_MS);
        (void)world_beat(&world, stores[0].heartbeat);
        (void)world_beat(&world, stores[1].heartbeat);
    }
    assert_int_equal(world.core->piece_count, VALUES * MANY);
    bool is_more = true;
    for (unsigned i = 0; i < 100 && world.core->piece_count > 0; i++) {
        uint64_t before = world.core->piece_count;
        world.now += is_more ? 0 : 100;
        is_more = mc_core_tick(world.core, world.now) <= world.now;
        assert_in_range(before - world.core->piece_count, 0, 1024 + MANY);
        assert_true(is_more || world.core->piece_count == before || world.core->piece_count == 0);
    }
    assert_int_equal(world.core->piece_count, 0);
    obey(&world);
    world_check(&world);
    world_close_all(&world);
}

/* Whoever names the group of a value for another object makes nothing larger that is looked at for each read. */
static void test_others_in_its_group(void **state)
{
    struct world world;
    (void)state;
    open_two(&world);
    put_value(&world, NUMBER, 0);
    assert_int_equal(put(&world, "other", SMALL, mc_stripe_group(NUMBER, PIECES), 0), 0);
    assert_int_equal(world_get(&world, knowing, "v", 0, NULL, NULL), MC_ERR_OBJECT_NOT_FOUND);
    obey(&world);
    obey(&world);
    assert_int_equal(world.core->visible_count, 1);
    assert_int_equal(world_get(&world, knowing, "other", 0, NULL, NULL), 0);
    world_check(&world);
    world_close_all(&world);
}

/* Without one piece the value is nothing, and the next put of the key is stored. */
static void test_a_piece_is_lost(void **state)
{
    struct world world;
    static struct world_grants grants;
    (void)state;
    open_two(&world);
    put_pieces(&world, NUMBER, &grants);
    assert_int_equal(put(&world, HEAD, HEAD_LENGTH, mc_stripe_group(NUMBER, PIECES), 0), 0);
    world_remove_one_send(&world, knowing, piece(NUMBER, 1));
    int32_t code;
    world_owner_obeys(&world, owner_of(&grants.places[1]));
    assert_true(world_remove_answer(&world, knowing, &code, 1));
    assert_int_equal(world_get(&world, knowing, "v", 0, NULL, NULL), MC_ERR_OBJECT_NOT_FOUND);
    assert_int_equal(world_exist(&world, knowing, "v"), 0);
    assert_int_equal(world_hint(&world, knowing, MC_HINT_PREFETCH, "v", 0), MC_ERR_OBJECT_NOT_FOUND);
    assert_int_equal(put(&world, "v", SMALL, 0, 0), 0);
    obey(&world);
    assert_int_equal(world_get(&world, knowing, "v", 0, NULL, NULL), 0);
    assert_int_equal(world.core->visible_count, 1);
    world_close_all(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_value_is_whole),
        cmocka_unit_test(test_pieces_lie_apart),
        cmocka_unit_test(test_all_goes_with_the_head),
        cmocka_unit_test(test_a_later_value_takes_its_place),
        cmocka_unit_test(test_a_head_needs_its_pieces),
        cmocka_unit_test(test_nobody_comes_for_the_pieces),
        cmocka_unit_test(test_a_piece_is_lost),
        cmocka_unit_test(test_a_head_fails_first),
        cmocka_unit_test(test_what_no_put_makes_is_refused),
        cmocka_unit_test(test_what_no_put_makes_is_not_taken),
        cmocka_unit_test(test_many_go_in_slices),
        cmocka_unit_test(test_others_in_its_group),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
