/* What the core counts of what it is asked for: requests and their parts, and what failed of them. */
#include "core_owner.h"

static void expect_puts(const struct world *world, uint64_t ended, uint64_t failed, uint64_t answers)
{
    struct mc_core_statistics statistics = statistics_of(world);
    assert_int_equal(statistics.put_end_items, ended);
    assert_int_equal(statistics.put_end_failures, failed);
    assert_int_equal(statistics.put_answers, answers);
}

static void test_puts_that_end_and_that_do_not(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    struct world_store store;
    uint64_t writer = world_open_writing(&world, &store, &place);
    expect_puts(&world, 0, 0, 0);
    world_revoke(&world, writer, &place);
    expect_puts(&world, 0, 1, 1);
    world_revoke(&world, writer, &place); /* which is over */
    struct mc_core_statistics statistics = statistics_of(&world);
    assert_int_equal(statistics.put_revoke_requests, 2);
    assert_int_equal(statistics.put_revokes, 1);
    assert_int_equal(statistics.put_revoke_failures, 1);
    assert_int_equal(statistics.copy_revokes, 0);
    assert_int_equal(world_owner_obeys(&world, store.owner), 1);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", SMALL), 0);
    expect_puts(&world, 1, 1, 2);
    assert_int_equal(world_grant(&world, store.call, PUT_2, "other", SMALL, NULL, &place), 0);
    world_live_code(&world, store.owner, &place, MC_ERR_STALE); /* its owner refuses */
    expect_puts(&world, 1, 2, 3);
    world_close_all(&world);
}

/* From the grant until the owner has the value, or it failed. */
static void test_how_long_puts_take(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    struct world_store store;
    uint64_t writer = world_open_writing(&world, &store, &place);
    world_pass(&world, 70);
    world_live_code(&world, store.owner, &place, 0);
    (void)world_put_done(&world, writer, PUT_1);
    struct mc_core_statistics statistics = statistics_of(&world);
    assert_int_equal(mc_core_put_ms[6], 100);
    assert_int_equal(statistics.put_ms[6], 1);
    assert_int_equal(statistics.put_ms_sum, 70);
    assert_int_equal(world_put(&world, store.call, store.owner, "other", SMALL), 0); /* at once */
    assert_int_equal(statistics_of(&world).put_ms[0], 1);
    assert_int_equal(statistics_of(&world).put_ms_sum, 70);
    assert_int_equal(world_get(&world, store.call, "other", 0, NULL, &place), 0);
    const struct world_wish copy = {.flags = MC_PUT_REPLACE, .expected = place.generation - place.replica};
    assert_int_equal(world_grant(&world, store.call, PUT_2, "other", SMALL, &copy, &place), 0);
    world_pass(&world, 30);
    world_live_code(&world, store.owner, &place, 0);
    (void)world_owner_obeys(&world, store.owner);
    assert_int_equal(world_put_done(&world, store.call, PUT_2), 0);
    assert_int_equal(statistics_of(&world).put_ms[0], 1); /* a copy is no put */
    assert_int_equal(statistics_of(&world).put_ms_sum, 70);
    world_close_all(&world);
}

static void test_cuts_and_their_end(void **state)
{
    struct world world;
    struct mc_wire_place place;
    static struct world_told told;
    (void)state;
    struct world_store store;
    uint64_t writer = world_open_writing(&world, &store, &place);
    world_disconnect(&world, writer);
    world_owner_told_to_cut(&world, store.owner, &told);
    assert_int_equal(statistics_of(&world).cuts, 1);
    assert_int_equal(statistics_of(&world).cuts_done, 0);
    world_owner_says(&world, store.owner, MC_MESSAGE_CUT_DONE, &told);
    world_owner_says(&world, store.owner, MC_MESSAGE_CUT_DONE, &told); /* said twice */
    assert_int_equal(statistics_of(&world).cuts_done, 1);
    expect_puts(&world, 0, 1, 1);
    world_close_all(&world);
}

static void test_puts_refused_in_part(void **state)
{
    static const struct world_wish anywhere;
    static struct world_grants grants;
    struct world world;
    (void)state;
    struct world_store store = world_open_one(&world);
    struct world_item items[] = {
        {mc_span_string("a"), SMALL}, {mc_span_string("b"), 64 * MIB}, {mc_span_string("c"), 64 * MIB}};
    world_put_start(&world, store.call, PUT_1, items, 2, &anywhere, &grants);
    struct mc_core_statistics statistics = statistics_of(&world);
    assert_int_equal(statistics.put_start_failures, 1);
    assert_int_equal(statistics.put_start_some, 1);
    assert_int_equal(statistics.put_start_none, 0);
    world_put_start(&world, store.call, PUT_2, items + 1, 2, &anywhere, &grants);
    statistics = statistics_of(&world);
    assert_int_equal(statistics.put_start_failures, 3);
    assert_int_equal(statistics.put_start_some, 1);
    assert_int_equal(statistics.put_start_none, 1);
    assert_int_equal(statistics.copy_starts, 0);
    world_close_all(&world);
}

static void get_both(struct world *world, uint64_t connection, const char *const keys[2])
{
    struct mc_wire_get head = {.flags = 0};
    size_t frame = world_begin(world, MC_MESSAGE_GET, 7);
    mc_wire_get_write(&world->frame, &head);
    world_keys(world, keys, 2);
    world_send(world, connection, frame);
    assert_int_equal(world_receive(world, connection).type, MC_MESSAGE_GET_FOUND);
}

static void test_gets_that_find_some(void **state)
{
    struct world world;
    (void)state;
    struct world_store store;
    uint64_t client = world_open_holding(&world, &store);
    assert_int_equal(world_put(&world, store.call, store.owner, "l", 2 * SMALL), 0);
    get_both(&world, client, (const char *const[]){"k", "l"});
    struct mc_core_statistics statistics = statistics_of(&world);
    assert_int_equal(statistics.get_hit_bytes, 3 * SMALL);
    assert_int_equal(statistics.get_some + statistics.get_none, 0);
    get_both(&world, client, (const char *const[]){"absent", "k"});
    get_both(&world, client, (const char *const[]){"absent", "as well"});
    statistics = statistics_of(&world);
    assert_int_equal(statistics.get_hit_bytes, 4 * SMALL);
    assert_int_equal(statistics.get_some, 1);
    assert_int_equal(statistics.get_none, 1);
    world_close_all(&world);
}

static void test_removals_that_are_refused(void **state)
{
    struct world world;
    (void)state;
    struct world_store store;
    uint64_t client = world_open_holding(&world, &store);
    world_remove_all_send(&world, client, "(", true);
    assert_true(world_count_answer(&world, client) < 0);
    assert_int_equal(statistics_of(&world).remove_regex_failures, 1);
    for (unsigned i = 0; i < MC_JOBS_MAX; i++)
        world_remove_all_send(&world, client, NULL, true);
    assert_int_equal(statistics_of(&world).remove_all_failures, 0);
    world_remove_all_send(&world, client, NULL, true); /* too many are under way */
    world_remove_all_send(&world, client, "^k", true);
    struct mc_core_statistics statistics = statistics_of(&world);
    assert_int_equal(statistics.remove_all_requests, MC_JOBS_MAX + 1);
    assert_int_equal(statistics.remove_all_failures, 1);
    assert_int_equal(statistics.remove_regex_requests, 2);
    assert_int_equal(statistics.remove_regex_failures, 2);
    world_close_all(&world);
}

static void expect_mounts(const struct world *world, uint64_t mounts, uint64_t again, uint64_t refused)
{
    struct mc_core_statistics statistics = statistics_of(world);
    assert_int_equal(statistics.mount_requests, mounts);
    assert_int_equal(statistics.remounts, again);
    assert_int_equal(statistics.remount_failures, refused);
}

static void unmount(struct world *world, uint64_t owner, uint32_t segment)
{
    size_t frame = world_begin(world, MC_MESSAGE_UNMOUNT, 4);
    mc_wire_unmount_write(&world->frame, &(struct mc_wire_unmount){.segment = segment});
    world_send(world, owner, frame);
}

static void test_mounts_of_what_was_lent(void **state)
{
    struct world world;
    (void)state;
    struct world_store store = world_open_one(&world);
    expect_mounts(&world, 1, 0, 0);
    world_disconnect(&world, store.owner);
    assert_int_equal(world_remount(&world, &store), 0);
    expect_mounts(&world, 2, 1, 0);
    struct mc_wire_mount mount = world_mount_of_old(); /* on the same link: it tells how far it is */
    assert_int_equal(world_mount(&world, store.owner, &mount).code, 0);
    expect_mounts(&world, 3, 1, 0);
    mount.segment_id.low = NODE_B; /* which this master has given up, or never met */
    assert_int_equal(world_mount(&world, store.owner, &mount).code, MC_ERR_STALE);
    expect_mounts(&world, 4, 2, 1);
    unmount(&world, store.owner, store.segment + 1);
    assert_int_equal(statistics_of(&world).unmount_failures, 1);
    unmount(&world, store.owner, store.segment);
    assert_int_equal(statistics_of(&world).unmount_requests, 2);
    assert_int_equal(statistics_of(&world).unmount_failures, 1);
    world_close_all(&world);
}

static void test_copies(void **state)
{
    struct world world;
    struct mc_wire_place place, at;
    (void)state;
    struct world_store store = world_open_one(&world);
    assert_int_equal(world_put_place(&world, store.call, store.owner, "k", SMALL, NULL, &place), 0);
    struct world_wish wrong = {.flags = MC_PUT_REPLACE, .expected = place.generation - 1};
    struct world_wish right = {.flags = MC_PUT_REPLACE, .expected = place.generation};
    assert_int_equal(world_grant(&world, store.call, PUT_1, "k", SMALL, &wrong, &at), MC_ERR_STALE);
    assert_int_equal(world_grant(&world, store.call, PUT_2, "k", SMALL, &right, &at), 0);
    world_revoke(&world, store.call, &at);
    assert_int_equal(world_put_done(&world, store.call, PUT_2), MC_ERR_TRANSFER_FAIL);
    struct mc_core_statistics statistics = statistics_of(&world);
    assert_int_equal(statistics.copy_starts, 2);
    assert_int_equal(statistics.copy_start_failures, 1);
    assert_int_equal(statistics.copy_revokes, 1);
    assert_int_equal(statistics.copy_end_failures, 1);
    assert_int_equal(statistics.copy_ends, 0);
    assert_int_equal(world_owner_obeys(&world, store.owner), 1);
    assert_int_equal(world_grant(&world, store.call, PUT_3, "k", SMALL, &right, &at), 0);
    world_live(&world, store.owner, &at);
    (void)world_owner_obeys(&world, store.owner); /* the place before is cleared */
    statistics = statistics_of(&world);
    assert_int_equal(statistics.copy_starts, 3);
    assert_int_equal(statistics.copy_ends, 1);
    assert_int_equal(statistics.copy_end_failures, 1);
    assert_int_equal(statistics.put_end_failures, 1);
    world_close_all(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_puts_that_end_and_that_do_not),
        cmocka_unit_test(test_how_long_puts_take),
        cmocka_unit_test(test_cuts_and_their_end),
        cmocka_unit_test(test_puts_refused_in_part),
        cmocka_unit_test(test_gets_that_find_some),
        cmocka_unit_test(test_removals_that_are_refused),
        cmocka_unit_test(test_mounts_of_what_was_lent),
        cmocka_unit_test(test_copies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
