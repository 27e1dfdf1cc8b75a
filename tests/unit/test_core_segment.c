/* The core's segments and members through frames: the owner rows of the ordering page, mounting, the questions of the
 * admin shell. */
#include "core_world.h"

#include "store/disk/disk.h"

#include <setjmp.h>
#include <stdarg.h>
#include <time.h>
#include <cmocka.h>

enum { SERVING, SUSPECT, GONE = 99 };

static int state_of(const struct world *world, const struct world_store *store)
{
    struct mc_core_segment segment;
    return mc_core_segment(world->core, store->segment, &segment) ? (int)segment.state : GONE;
}

/* ---- the owner's connection ---- */

static void ordering_owner_connection_breaks(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    struct world_store store;
    uint64_t other = world_open_holding(&world, &store);
    world_disconnect(&world, store.owner);
    assert_int_equal(state_of(&world, &store), SUSPECT);
    assert_int_equal(world_get(&world, other, "k", 0, NULL, NULL), MC_ERR_OBJECT_NOT_FOUND);
    assert_int_equal(world_exist(&world, other, "k"), 0);
    assert_int_equal(mc_core_query(world.core, mc_span_string("k"), NULL, 0), MC_ERR_OBJECT_NOT_FOUND);
    assert_int_equal(world_grant(&world, other, PUT_1, "n", SMALL, NULL, &place), MC_ERR_NO_AVAILABLE_HANDLE);
    world_pass(&world, 3 * SECOND_MS);
    store.owner = world_join(&world, MC_ROLE_OWNER, NODE_A, FIRST_LIFE);
    assert_int_equal(world_exist(&world, other, "k"), 0); /* not before it is mounted */
    struct mc_wire_mount mount = world_mount_of(NODE_A, MIB, "a");
    mount.epoch = 2;
    assert_int_equal(world_mount(&world, store.owner, &mount).code, MC_ERR_STALE);
    mount.epoch = FIRST_EPOCH;
    mount.capacity--;
    assert_int_equal(world_mount(&world, store.owner, &mount).code, MC_ERR_STALE);
    mount.capacity++;
    assert_int_equal(world_mount(&world, store.owner, &mount).code, 0);
    assert_int_equal(world_exist(&world, other, "k"), 1); /* it was known all the time */
    world_close_all(&world);
}

static void test_put_replaces_what_only_the_departed_holds(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    struct world_store a = world_open_one(&world), b = world_store(&world, NODE_B, MIB, "b");
    const struct world_wish in_a = {.preferred = {"a"}};
    assert_int_equal(world_put_place(&world, b.call, a.owner, "k", SMALL, &in_a, &place), 0);
    world_disconnect(&world, a.owner);
    assert_int_equal(world_put(&world, b.call, b.owner, "k", SMALL + 1), MC_ERR_PUT_IN_PROGRESS);
    for (unsigned i = 0; i < 29; i++) { /* that its heartbeat thread beats does not help */
        world_pass(&world, 100);
        world_beat(&world, a.heartbeat);
        world_beat(&world, b.heartbeat);
    }
    assert_int_equal(world_put(&world, b.call, b.owner, "k", SMALL + 1), MC_ERR_PUT_IN_PROGRESS);
    world_pass(&world, 200);
    assert_int_equal(world_put(&world, b.call, b.owner, "k", SMALL + 1), 0);
    world_beat(&world, a.heartbeat);
    assert_int_equal(world_remount(&world, &a), 0);
    struct mc_wire_found found;
    assert_int_equal(world_get(&world, b.call, "k", 0, &found, NULL), 0);
    assert_int_equal(found.length, SMALL + 1);
    assert_int_equal(found.replica_count, 1);
    assert_int_equal(world_owner_obeys(&world, a.owner), 1); /* the old one is cleared there */
    world_close_all(&world);
}

static void ordering_owner_cut_sent_again(void **state)
{
    struct world world;
    struct mc_wire_place place;
    struct world_store store;
    (void)state;
    uint64_t writer = world_open_writing(&world, &store, &place);
    static struct world_told told;
    world_disconnect(&world, store.owner);
    world_disconnect(&world, writer); /* its member is forgotten, its id is not */
    struct mc_wire_mount mount = world_mount_of_old();
    assert_int_equal(world_remount(&world, &store), 0);
    for (unsigned i = 0; i < 4; i++) {
        world_owner_told(&world, store.owner, &told);
        assert_int_equal(told.type, i < 2 ? MC_MESSAGE_CLEAR : MC_MESSAGE_CUT);
        if (i == 1)
            world_owner_says(&world, store.owner, MC_MESSAGE_CLEARED, &told);
        else
            assert_int_equal(world_mount(&world, store.owner, &mount).code, 0);
    }
    world_owner_told(&world, store.owner, &told);
    assert_int_equal(told.type, MC_MESSAGE_CUT);
    assert_int_equal(told.writer.low, CLIENT);
    world_owner_says(&world, store.owner, MC_MESSAGE_CUT_DONE, &told);
    assert_int_equal(statistics_of(&world).quarantine_bytes, 0);
    world_close_all(&world);
}

static void ordering_owner_silence(void **state)
{
    struct world world;
    struct mc_core_statistics statistics;
    (void)state;
    struct world_store store = world_open_one(&world);
    assert_int_equal(world_put(&world, store.call, store.owner, "k", SMALL), 0);
    world_pass(&world, 4900);
    assert_int_equal(state_of(&world, &store), SERVING);
    world_pass(&world, 200);
    assert_int_equal(state_of(&world, &store), SUSPECT); /* suspect at half of client_ttl */
    assert_int_equal(world_heartbeat(&world, store.heartbeat, store.segment, MIB), 0);
    assert_int_equal(state_of(&world, &store), SERVING); /* it spoke */
    world_pass(&world, 10100);
    assert_int_equal(state_of(&world, &store), GONE); /* gone and swept */
    assert_true(world.connections[store.heartbeat].closed && world.connections[store.owner].closed);
    statistics = statistics_of(&world);
    assert_int_equal(statistics.members_lost, 1);
    assert_int_equal(statistics.members, 0);
    assert_int_equal(statistics.objects, 0);
    assert_int_not_equal(world_return_anew(&world, &store), store.segment); /* numbers are not used again */
    world_close_all(&world);
}

/* Time passes, and both heartbeat connections beat; the code that the first one hears last. */
static int32_t beat(struct world *world, uint64_t ms, const struct world_store *one, const struct world_store *other)
{
    int32_t code = 0;
    for (uint64_t left = ms; left > 0; left -= left < 1000 ? left : 1000) {
        world_pass(world, left < 1000 ? left : 1000);
        code = world_heartbeat(world, one->heartbeat, one->segment, MIB);
        assert_int_equal(world_heartbeat(world, other->heartbeat, other->segment, MIB), 0);
    }
    return code;
}

static void drop_told(struct world *world, uint64_t owner)
{
    while (world_receive(world, owner).type != 0)
        continue;
}

/* The heartbeat thread beats, but what serves the data does nothing: that is no contact, and no life. */
static void ordering_owner_half_dead(void **state)
{
    struct world world;
    struct mc_wire_place place;
    struct world_wish in_a = {.preferred = {"a"}};
    int32_t code = 1;
    const char *k = "k";
    (void)state;
    struct world_store a = world_open_one(&world), b = world_store(&world, NODE_B, MIB, "b");
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(world_put_place(&world, b.call, a.owner,
                                         i == 0   ? "k"
                                         : i == 1 ? "l"
                                                  : "m",
                                         SMALL, &in_a, &place),
                         0);
    }
    assert_int_equal(beat(&world, 20000, &a, &b), 0); /* idle is not dead */
    world.stuck = a.owner;
    assert_int_equal(beat(&world, 1000, &a, &b), 0); /* it has answered the PING of the beat before */
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(beat(&world, 1000, &a, &b), 1);
    assert_int_equal(state_of(&world, &a), SUSPECT); /* hidden, though nobody has complained */
    world_remove_send(&world, b.call, &k, 1, true);
    (void)beat(&world, 2000, &a, &b);
    assert_true(world_remove_answer(&world, b.call, &code, 1));
    assert_true(code == 0 || code == MC_ERR_BUSY);
    if (code == MC_ERR_BUSY) {
        world_remove_send(&world, b.call, &k, 1, true);
        assert_true(world_remove_answer(&world, b.call, &code, 1));
    }
    assert_int_equal(code, 0);
    assert_int_equal(world_put(&world, b.call, b.owner, "l", SMALL), 0); /* elsewhere */
    (void)beat(&world, 7000, &a, &b);
    assert_int_equal(state_of(&world, &a), GONE);
    assert_int_equal(world_put(&world, b.call, b.owner, "m", SMALL), 0);
    /* The process is still a client, and its heartbeat thread is told to mount again. */
    assert_false(world.connections[a.heartbeat].closed);
    assert_false(world.connections[a.call].closed);
    assert_true(world.connections[a.owner].closed);
    assert_int_equal(beat(&world, 1000, &a, &b), MC_ERR_SEGMENT_NOT_FOUND);
    assert_int_equal(beat(&world, 30000, &(struct world_store){.heartbeat = a.heartbeat}, &b), 0);
    assert_int_equal(world_exist(&world, a.call, "l"), 1);
    /* The thread runs again: nothing of that memory is wanted back. */
    a.segment = world_return_anew(&world, &a);
    assert_int_equal(beat(&world, 20000, &a, &b), 0);
    assert_int_equal(state_of(&world, &a), SERVING);
    struct mc_core_statistics statistics = statistics_of(&world);
    assert_int_equal(statistics.owners_stuck, 1);
    assert_int_equal(statistics.members_lost, 0);
    world_close_all(&world);
}

/* It runs again in time: what was acted upon over its absence it confirms first. */
static void ordering_owner_half_dead_returns(void **state)
{
    struct world world;
    static struct world_told told;
    struct mc_wire_place place;
    struct world_wish in_a = {.preferred = {"a"}};
    const char *k = "k";
    (void)state;
    struct world_store a = world_open_one(&world), b = world_store(&world, NODE_B, MIB, "b");
    assert_int_equal(world_put_place(&world, b.call, a.owner, "k", SMALL, &in_a, &place), 0);
    assert_int_equal(beat(&world, 3000, &a, &b), 0);
    world.stuck = a.owner;
    assert_int_equal(beat(&world, 5000, &a, &b), 1);
    drop_told(&world, a.owner);
    assert_int_equal(world_remove(&world, b.call, k, true), 0);
    world_owner_told(&world, a.owner, &told);
    assert_int_equal(told.type, MC_MESSAGE_CLEAR);
    world.stuck = 0;
    assert_int_equal(beat(&world, 1000, &a, &b), 1);
    struct mc_core_segment segment;
    assert_true(mc_core_segment(world.core, a.segment, &segment));
    world_owner_says(&world, a.owner, MC_MESSAGE_CLEARED, &told);
    assert_int_equal(beat(&world, 1000, &a, &b), 0);
    assert_int_equal(world_exist(&world, b.call, "k"), 0);
    world_close_all(&world);
}

/* The owner's connection is gone while its heartbeat thread beats: as if the node had fallen silent. */
static void ordering_owner_link_is_lost(void **state)
{
    struct world world;
    (void)state;
    struct world_store a = world_open_one(&world), b = world_store(&world, NODE_B, MIB, "b");
    assert_int_equal(beat(&world, 3000, &a, &b), 0);
    world_disconnect(&world, a.owner);
    assert_int_equal(beat(&world, 9000, &a, &b), 1);
    assert_int_equal(state_of(&world, &a), SUSPECT);
    (void)beat(&world, 2000, &a, &b);
    assert_int_equal(state_of(&world, &a), GONE);
    world_close_all(&world);
}

/* Who is gone is acted upon; a master after us that hears of a silence shorter than depart_ms knows that nobody was. */
static void test_nobody_is_gone_before_he_has_departed(void **state)
{
    struct world world;
    struct mc_core_segment segment;
    struct mc_core_config config = mc_core_config_default();
    (void)state;
    config.client_ttl_ms = 1000;
    world_open_with(&world, &config);
    struct world_store a = world_store(&world, NODE_A, MIB, "a");
    assert_int_equal(world_put(&world, a.call, a.owner, "k", SMALL), 0);
    world_pass(&world, MC_DEPART_MS - 1);
    assert_true(mc_core_segment(world.core, a.segment, &segment));
    assert_int_equal(segment.state, 1);
    assert_int_equal(segment.objects, 1);
    world_pass(&world, 101);
    assert_int_equal(state_of(&world, &a), GONE);
    world_close_all(&world);
}

static void ordering_owner_heartbeat_dies(void **state)
{
    struct world world;
    (void)state;
    struct world_store store = world_open_one(&world);
    world_disconnect(&world, store.heartbeat);
    assert_int_equal(state_of(&world, &store), SUSPECT); /* at once */
    world_pass(&world, 9 * SECOND_MS);
    store.heartbeat = world_join(&world, MC_ROLE_HEARTBEAT, NODE_A, FIRST_LIFE);
    assert_int_equal(state_of(&world, &store), SERVING);
    world_disconnect(&world, store.heartbeat);
    world_pass(&world, 10100);
    assert_int_equal(state_of(&world, &store), GONE);
    world_close_all(&world);
}

static void ordering_owner_gap(void **state)
{
    struct world world;
    (void)state;
    struct world_store store = world_open_one(&world);
    world_pass(&world, 4 * SECOND_MS);
    world.now += 60000;                   /* we were stopped */
    world_exist(&world, store.call, "x"); /* an input comes first */
    world_settle(&world, 10);
    assert_int_equal(state_of(&world, &store), SERVING);
    world_pass(&world, 800);
    assert_int_equal(state_of(&world, &store), SERVING);
    world_pass(&world, 400);
    assert_int_equal(state_of(&world, &store), SUSPECT); /* our own time goes on */
    world_close_all(&world);
}

static void ordering_gone_is_swept_in_slices(void **state)
{
    struct world world;
    struct mc_core_statistics statistics;
    int32_t code = 1;
    const char *key = "k1";
    struct mc_wire_place place;
    (void)state;
    world_open(&world);
    struct world_store a = world_store(&world, NODE_A, 16 * MIB, "a"), b = world_store(&world, NODE_B, MIB, "b");
    uint64_t writer = world_client(&world, SECOND_CLIENT), dead = world_client(&world, THIRD_CLIENT);
    char name[16];
    const struct world_wish in_a = {.preferred = {"a"}};
    for (unsigned i = 0; i < 5000; i++) {
        (void)snprintf(name, sizeof(name), "k%u", i);
        assert_int_equal(world_put_place(&world, a.call, a.owner, name, SMALL, &in_a, &place), 0);
    }
    assert_int_equal(world_grant(&world, dead, PUT_1, "q", SMALL, &in_a, &place), 0);
    world_disconnect(&world, dead); /* quarantine */
    assert_int_equal(world_grant(&world, writer, PUT_9, "w", SMALL, &in_a, &place), 0);
    world_remove_send(&world, b.call, &key, 1, false); /* waits for a CLEARED that never comes */
    size_t frame = world_begin(&world, MC_MESSAGE_UNMOUNT, 4);
    struct mc_wire_unmount head = {.segment = a.segment};
    mc_wire_unmount_write(&world.frame, &head);
    world.connections[a.owner].out.length = 0;
    world_send(&world, a.owner, frame);
    struct mc_frame answer = world_receive(&world, a.owner);
    assert_int_equal(answer.type, MC_MESSAGE_UNMOUNT_REPLY);
    assert_int_equal(world_get(&world, writer, "k2", 0, NULL, NULL), MC_ERR_OBJECT_NOT_FOUND);
    world_check(&world);
    assert_int_equal(world_put(&world, b.call, b.owner, "k4999", SMALL),
                     0); /* not swept yet, and free to be put again */
    unsigned ticks = 0;
    while (mc_core_tick(world.core, world.now) <= world.now && ticks < 100) {
        ticks++;
        world_check(&world);
    }
    assert_true(ticks >= 2);
    assert_true(world_remove_answer(&world, b.call, &code, 1));
    assert_int_equal(code, 0);
    assert_int_equal(world_put_done(&world, writer, PUT_9), MC_ERR_TRANSFER_FAIL);
    statistics = statistics_of(&world);
    assert_int_equal(statistics.objects, 1);
    assert_int_equal(statistics.segments, 1);
    assert_int_equal(world.core->segment_count, 1);
    world_close_all(&world);
}

/* ---- mounting ---- */

static void test_mount_codes(void **state)
{
    struct world world;
    struct mc_core_statistics statistics;
    static char long_name[300];
    (void)state;
    memset(long_name, 'n', sizeof(long_name) - 1);
    world_open(&world);
    uint64_t owner = world_join(&world, MC_ROLE_OWNER, NODE_A, FIRST_LIFE),
             other = world_join(&world, MC_ROLE_OWNER, NODE_B, FIRST_LIFE);
    struct mc_wire_mount bad[8];
    for (unsigned i = 0; i < 8; i++)
        bad[i] = world_mount_of(1, MIB, "a");
    bad[0].capacity = 0;
    bad[1].slot_count = 0;
    bad[2].name = mc_span("", 0);
    bad[3].capacity = UINT64_MAX;
    bad[4].slot_count = UINT32_MAX;
    bad[5].name = mc_span_string(long_name);
    bad[6].segment_id = (struct mc_id){0, 0};
    bad[7].unix_path = mc_span_string(long_name);
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(world_mount(&world, owner, &bad[i]).code, MC_ERR_INVALID_PARAMS);
    struct mc_wire_mount mount = world_mount_of(1, MIB, "a");
    mount.epoch = FIRST_EPOCH;
    assert_int_equal(world_mount(&world, owner, &mount).code, MC_ERR_STALE); /* not one of ours */
    mount.epoch = 0;
    mount.slot_top = 1;
    assert_int_equal(world_mount(&world, owner, &mount).code, MC_ERR_STALE); /* used, and nobody knows under whom */
    mount.slot_top = 0;
    struct mc_wire_mount_reply reply = world_mount(&world, owner, &mount);
    assert_int_equal(reply.code, 0);
    assert_int_equal(reply.epoch, FIRST_EPOCH);
    mount.slot_top = 1;                                                          /* under us */
    assert_int_equal(world_mount(&world, owner, &mount).segment, reply.segment); /* again, its answer lost */
    assert_int_equal(world_mount(&world, other, &mount).code, MC_ERR_SEGMENT_ALREADY_EXISTS);
    statistics = statistics_of(&world);
    assert_int_equal(statistics.segments, 1);
    assert_int_equal(statistics.mount_failures, 11);
    for (unsigned round = 0; round < 3; round++) { /* not its own, its own, no longer there */
        struct mc_wire_unmount head = {.segment = reply.segment};
        struct mc_wire_code code;
        uint64_t from = round == 0 ? other : owner;
        size_t frame = world_begin(&world, MC_MESSAGE_UNMOUNT, 4);
        mc_wire_unmount_write(&world.frame, &head);
        world_send(&world, from, frame);
        struct mc_frame answer = world_receive(&world, from);
        struct mc_reader reader = mc_reader(answer.body.data, answer.body.length);
        mc_wire_code_read(&reader, &code);
        assert_int_equal(code.code, round == 0 ? MC_ERR_ILLEGAL_CLIENT : round == 1 ? 0 : MC_ERR_SEGMENT_NOT_FOUND);
    }
    world_close_all(&world);
}

/* What a heartbeat says of the segment: it is leaving, or not. */
static void tell_leaving(struct world *world, const struct world_store *store, bool leaving)
{
    struct mc_wire_heartbeat head = {.epoch = world->core->epoch};
    struct mc_wire_heartbeat_segment item = {.segment = store->segment, .populated = MIB, .leaving = leaving};
    size_t frame = world_begin(world, MC_MESSAGE_HEARTBEAT, 3);
    mc_wire_heartbeat_write(&world->frame, &head);
    size_t list = mc_list_begin(&world->frame);
    mc_wire_heartbeat_segment_write(&world->frame, &item);
    mc_list_end(&world->frame, list, 1);
    world_send(world, store->heartbeat, frame);
    assert_int_equal(world_receive(world, store->heartbeat).type, MC_MESSAGE_HEARTBEAT_REPLY);
    world_check(world);
}

static void test_leaving_segment_is_read_and_not_written(void **state)
{
    struct world world;
    struct mc_wire_place place;
    (void)state;
    world_open(&world);
    struct world_store store = world_store(&world, NODE_A, MIB, "host:1");
    assert_int_equal(world_put(&world, store.call, store.owner, "before", SMALL), 0);
    tell_leaving(&world, &store, true);
    assert_int_equal(world_get(&world, store.call, "before", 0, NULL, NULL), 0);
    assert_int_equal(world_grant(&world, store.call, PUT_9, "after", SMALL, NULL, &place), MC_ERR_NO_AVAILABLE_HANDLE);
    tell_leaving(&world, &store, false);
    assert_int_equal(world_put(&world, store.call, store.owner, "after", SMALL), 0);
    world_close_all(&world);
}

static int32_t find_named(struct world *world, uint64_t connection, const char *name, uint32_t *segment)
{
    struct mc_wire_name head = {.name = mc_span_string(name)};
    struct mc_wire_segment_reply reply;
    size_t frame = world_begin(world, MC_MESSAGE_SEGMENT_NAMED, 4);
    mc_wire_name_write(&world->frame, &head);
    world_send(world, connection, frame);
    struct mc_frame answer = world_receive(world, connection);
    struct mc_reader reader = mc_reader(answer.body.data, answer.body.length);
    mc_wire_segment_reply_read(&reader, &reply);
    assert_int_equal(answer.type, MC_MESSAGE_SEGMENT_REPLY);
    *segment = reply.segment;
    return reply.code;
}

static void test_segment_is_found_by_name(void **state)
{
    struct world world;
    uint32_t segment;
    (void)state;
    world_open(&world);
    struct world_store store = world_store(&world, NODE_A, MIB, "host:1");
    assert_int_equal(find_named(&world, store.call, "host:1", &segment), 0);
    assert_int_equal(segment, store.segment);
    assert_int_equal(find_named(&world, store.call, "host:2", &segment), MC_ERR_SEGMENT_NOT_FOUND);
    assert_int_equal(find_named(&world, store.call, "", &segment), MC_ERR_SEGMENT_NOT_FOUND);
    world_close_all(&world);
}

static void test_segment_is_described(void **state)
{
    struct world world;
    (void)state;
    world_open(&world);
    struct world_store store = world_store(&world, NODE_A, MIB, "host:1");
    for (unsigned round = 0; round < 2; round++) {
        struct mc_wire_segment head = {.segment = store.segment + round};
        struct mc_wire_segment_reply reply;
        size_t frame = world_begin(&world, MC_MESSAGE_SEGMENT, 4);
        mc_wire_segment_write(&world.frame, &head);
        world_send(&world, store.call, frame);
        struct mc_frame answer = world_receive(&world, store.call);
        struct mc_reader reader = mc_reader(answer.body.data, answer.body.length);
        mc_wire_segment_reply_read(&reader, &reply);
        assert_int_equal(reply.code, round == 0 ? 0 : MC_ERR_SEGMENT_NOT_FOUND);
        if (round == 1)
            break;
        assert_int_equal(reply.node.low, NODE_A);
        assert_int_equal(reply.nonce, 15);
        assert_int_equal(reply.capacity, MIB);
        assert_true(mc_span_equal(reply.name, mc_span_string("host:1")));
        assert_true(mc_span_equal(reply.unix_path, mc_span_string("@x")));
    }
    assert_int_equal(world_heartbeat(&world, store.heartbeat, store.segment + 1, 0), MC_ERR_SEGMENT_NOT_FOUND);
    world_close_all(&world);
}

struct told {
    uint64_t changes;
    uint32_t count, first, segments[MC_SEGMENTS_TOLD_NEAR + MC_SEGMENTS_TOLD_FAR];
};

static struct told ask_segments(struct world *world, uint64_t connection, uint64_t changes, struct mc_id host)
{
    struct mc_wire_segments head = {.changes = changes, .host = host};
    struct mc_wire_segments_reply reply;
    struct mc_wire_segment_reply one;
    size_t frame = world_begin(world, MC_MESSAGE_SEGMENTS, 4);
    mc_wire_segments_write(&world->frame, &head);
    world_send(world, connection, frame);
    struct mc_frame answer = world_receive(world, connection);
    assert_int_equal(answer.type, MC_MESSAGE_SEGMENTS_REPLY);
    assert_int_equal(mc_wire_check(answer.type, answer.body), 0);
    struct mc_reader reader = mc_reader(answer.body.data, answer.body.length);
    mc_wire_segments_reply_read(&reader, &reply);
    struct told told = {.changes = reply.changes, .count = mc_list_read(&reader)};
    assert_true(told.count <= MC_SEGMENTS_TOLD_NEAR + MC_SEGMENTS_TOLD_FAR);
    for (uint32_t i = 0; i < told.count; i++) {
        mc_wire_segment_reply_read(&reader, &one);
        assert_int_equal(one.code, 0);
        told.segments[i] = one.segment;
    }
    told.first = told.segments[0];
    return told;
}

static void test_segments_are_told_once(void **state)
{
    struct world world;
    const struct mc_id here = {9, 9}, elsewhere = {8, 8};
    (void)state;
    world_open(&world);
    uint64_t call = world_client(&world, CLIENT);
    assert_int_equal(ask_segments(&world, call, 0, here).count, 0);
    struct world_store first = world_store(&world, NODE_A, MIB, "a");
    struct told told = ask_segments(&world, call, 0, elsewhere);
    assert_int_equal(told.count, 1);
    assert_int_equal(told.first, first.segment);
    assert_int_equal(ask_segments(&world, call, told.changes, here).count, 0);
    assert_int_equal(ask_segments(&world, call, UINT64_MAX, here).count, 0);
    /* Many: of other machines a few are told, of the own one more, and these first, though mounted last. */
    uint64_t owner = world_join(&world, MC_ROLE_OWNER, NODE_B, FIRST_LIFE);
    for (unsigned i = 0; i < 100; i++) {
        struct mc_wire_mount mount = world_mount_of(100 + i, MIB, "many");
        mount.host = elsewhere;
        assert_int_equal(world_mount(&world, owner, &mount).code, 0);
    }
    struct world_store last = world_store(&world, NODE_C, MIB, "b");
    struct told more = ask_segments(&world, call, told.changes, here);
    assert_int_equal(more.count, MC_SEGMENTS_TOLD_FAR + 1);
    assert_int_equal(more.first, last.segment);
    assert_true(more.changes > told.changes + 100);
    assert_int_equal(ask_segments(&world, call, 0, elsewhere).count, MC_SEGMENTS_TOLD_NEAR + 2);
    /* A new process that takes the memory over is news; so is an end, of which only the count tells. */
    world_disconnect(&world, first.owner);
    uint64_t next = world_join(&world, MC_ROLE_OWNER, NODE_C, FIRST_LIFE);
    struct mc_wire_mount mount = world_mount_of(NODE_A, MIB, "a");
    mount.epoch = world.core->epoch;
    assert_int_equal(world_mount(&world, next, &mount).code, 0);
    told = ask_segments(&world, call, more.changes, here);
    assert_int_equal(told.count, 1);
    assert_int_equal(told.first, first.segment);
    world_close_all(&world);
}

enum { SEGMENTS = 20, CLIENTS = 60 };

/* Clients spread over segments, and what is new is no news to most of them. */
static void test_clients_are_told_of_different_segments(void **state)
{
    struct world world;
    uint32_t asked_for[SEGMENTS + 1] = {0}, news = 0;
    const struct mc_id here = {9, 9}, elsewhere = {8, 8};
    uint64_t changes[CLIENTS], calls[CLIENTS];
    (void)state;
    world_open(&world);
    uint64_t owner = world_join(&world, MC_ROLE_OWNER, NODE_B, FIRST_LIFE);
    for (unsigned i = 0; i < SEGMENTS; i++) {
        struct mc_wire_mount mount = world_mount_of(100 + i, MIB, "many");
        mount.host = elsewhere;
        assert_int_equal(world_mount(&world, owner, &mount).segment % MC_SEGMENTS_MAX, i + 1);
    }
    for (unsigned i = 0; i < CLIENTS; i++) {
        calls[i] = world_client(&world, 1000 + i);
        struct told told = ask_segments(&world, calls[i], 0, here);
        assert_int_equal(told.count, MC_SEGMENTS_TOLD_FAR);
        for (unsigned at = 0; at < told.count; at++)
            asked_for[told.segments[at] % MC_SEGMENTS_MAX]++;
        changes[i] = told.changes;
    }
    for (unsigned i = 1; i <= SEGMENTS; i++) /* 24 each, if they were spread quite evenly */
        assert_in_range(asked_for[i], 8, 48);
    struct mc_wire_mount mount = world_mount_of(300, MIB, "new");
    mount.host = elsewhere;
    assert_int_equal(world_mount(&world, owner, &mount).code, 0);
    for (unsigned i = 0; i < CLIENTS; i++)
        news += ask_segments(&world, calls[i], changes[i], here).count;
    assert_in_range(news, 8, 48);
    world_close_all(&world);
}

/* A master's memory follows the slots that owners say to have, so that all of them together have a limit. */
static void test_slots_of_all_are_limited(void **state)
{
    struct world world;
    (void)state;
    world_open(&world);
    uint64_t owner = world_join(&world, MC_ROLE_OWNER, NODE_A, FIRST_LIFE);
    struct mc_wire_mount mount = world_mount_of(1, MIB, "a");
    world.core->slot_limit = 3ull * mount.slot_count;
    struct mc_wire_unmount head = {.segment = world_mount(&world, owner, &mount).segment};
    assert_int_equal(world_mount(&world, owner, &mount).code, 0); /* the same again */
    struct mc_wire_mount large = world_mount_of(2, 32 * MIB, "b");
    large.slot_count = 2 * mount.slot_count + 1;
    assert_int_equal(world_mount(&world, owner, &large).code, MC_ERR_BUSY);
    large.slot_count--;
    assert_int_equal(world_mount(&world, owner, &large).code, 0);
    struct mc_wire_mount small = world_mount_of(3, MIB, "c");
    small.slot_count = 1;
    assert_int_equal(world_mount(&world, owner, &small).code, MC_ERR_BUSY);
    assert_int_equal(world.core->slots, 3 * mount.slot_count);
    size_t frame = world_begin(&world, MC_MESSAGE_UNMOUNT, 4);
    mc_wire_unmount_write(&world.frame, &head);
    world_send(&world, owner, frame);
    assert_int_equal(world_receive(&world, owner).type, MC_MESSAGE_UNMOUNT_REPLY);
    (void)world_settle(&world, 100);
    assert_int_equal(world.core->slots, 2 * mount.slot_count);
    assert_int_equal(world_mount(&world, owner, &small).code, 0);
    world_close_all(&world);
}

static struct mc_wire_mount numbered_mount(uint64_t id)
{
    struct mc_wire_mount mount = world_mount_of(id, MIB, "n");
    mount.slot_count = 1;
    return mount;
}

/* It has no more than its memory has room for, or than a disk ever has. */
static void test_slots_of_one_are_limited(void **state)
{
    struct world world;
    (void)state;
    world_open(&world);
    uint64_t owner = world_join(&world, MC_ROLE_OWNER, NODE_A, FIRST_LIFE);
    static const struct {
        uint64_t capacity;
        uint32_t slots;
        uint8_t kind;
    } rows[] = {{MIB, MC_SLOT_COUNT_MIN, MC_SEGMENT_MEMORY},
                {16 * MIB, 8192, MC_SEGMENT_MEMORY},
                {MC_SEGMENT_CAPACITY_MAX, UINT32_MAX / 2, MC_SEGMENT_MEMORY},
                {MIB, 4 * MC_DISK_OBJECTS_MAX, MC_SEGMENT_DISK}};
    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct mc_wire_mount mount = world_mount_of(1 + i, rows[i].capacity, "a");
        mount.kind = rows[i].kind;
        mount.slot_count = rows[i].slots + 1;
        assert_int_equal(world_mount(&world, owner, &mount).code, MC_ERR_INVALID_PARAMS);
        mount.slot_count--;
        assert_int_equal(world_mount(&world, owner, &mount).code, 0);
    }
    world_close_all(&world);
}

/* Nobody needs many; who has them keeps numbers from others. */
static void test_segments_of_a_member_are_limited(void **state)
{
    struct world world;
    (void)state;
    world_open(&world);
    uint64_t owner = world_join(&world, MC_ROLE_OWNER, NODE_A, FIRST_LIFE),
             other = world_join(&world, MC_ROLE_OWNER, NODE_B, FIRST_LIFE);
    uint32_t last = 0;
    for (unsigned i = 0; i < MC_MEMBER_SEGMENTS_MAX; i++) {
        struct mc_wire_mount mount = numbered_mount(1 + i);
        struct mc_wire_mount_reply reply = world_mount(&world, owner, &mount);
        assert_int_equal(reply.code, 0);
        last = reply.segment;
    }
    struct mc_wire_mount mount = numbered_mount(5000), known = numbered_mount(1);
    assert_int_equal(world_mount(&world, owner, &mount).code, MC_ERR_BUSY);
    assert_int_equal(world_mount(&world, owner, &known).code, 0); /* the same again */
    assert_int_equal(world_mount(&world, other, &mount).code, 0);
    size_t frame = world_begin(&world, MC_MESSAGE_UNMOUNT, 4);
    mc_wire_unmount_write(&world.frame, &(struct mc_wire_unmount){.segment = last});
    world_send(&world, owner, frame);
    assert_int_equal(world_receive(&world, owner).type, MC_MESSAGE_UNMOUNT_REPLY);
    mount = numbered_mount(5001);
    assert_int_equal(world_mount(&world, owner, &mount).code, 0);
    world_close_all(&world);
}

/* An owner of that node id, from that address. */
static uint64_t owner_from(struct world *world, uint64_t node, uint64_t address)
{
    uint64_t connection = world_connect(world);
    mc_core_comes_from(world->core, connection, address);
    struct mc_wire_hello hello = world_hello(MC_ROLE_OWNER, node, FIRST_LIFE);
    assert_int_equal(world_greet(world, connection, &hello).code, 0);
    return connection;
}

/* However many members a stranger says to be: others have a part of the segments and slots that he cannot have. */
static void test_an_address_has_a_share_of_segments(void **state)
{
    struct world world;
    (void)state;
    for (unsigned by_slots = 0; by_slots < 2; by_slots++) {
        world_open(&world);
        assert_int_equal(world.core->lender_segments, MC_SEGMENTS_MAX / 4 * 3);
        world.core->lender_segments = by_slots ? 1000 : 6;
        world.core->slot_limit = by_slots ? 8 : 1000;
        uint64_t mine[] = {owner_from(&world, NODE_A, 7), owner_from(&world, NODE_B, 7)};
        uint64_t other = owner_from(&world, NODE_C, 8), near = world_join(&world, MC_ROLE_OWNER, 77, FIRST_LIFE);
        struct mc_wire_unmount head = {0};
        struct mc_wire_mount mount;
        for (unsigned i = 0; i < 6; i++) {
            mount = numbered_mount(1 + i);
            struct mc_wire_mount_reply reply = world_mount(&world, mine[i % 2], &mount);
            assert_int_equal(reply.code, 0);
            head.segment = reply.segment;
        }
        struct mc_wire_mount more = numbered_mount(10), honest = numbered_mount(11), close = numbered_mount(12);
        assert_int_equal(world_mount(&world, mine[0], &more).code, MC_ERR_BUSY);
        assert_int_equal(world_mount(&world, mine[1], &mount).code, 0); /* the same again */
        assert_int_equal(world_mount(&world, other, &honest).code, 0);
        assert_int_equal(world_mount(&world, near, &close).code, 0);
        size_t frame = world_begin(&world, MC_MESSAGE_UNMOUNT, 4);
        mc_wire_unmount_write(&world.frame, &head);
        world_send(&world, mine[1], frame);
        assert_int_equal(world_receive(&world, mine[1]).type, MC_MESSAGE_UNMOUNT_REPLY);
        (void)world_settle(&world, 100);
        assert_int_equal(world_mount(&world, mine[0], &more).code, 0);
        world_close_all(&world);
    }
}

/* What a disk grows by is of its address, too. */
static void test_a_disk_grows_within_its_share(void **state)
{
    struct world world;
    (void)state;
    world_open(&world);
    world.core->slot_limit = 40;
    uint64_t owner = owner_from(&world, NODE_A, 7);
    struct mc_wire_mount mount = numbered_mount(1);
    mount.kind = MC_SEGMENT_DISK;
    assert_int_equal(world_mount(&world, owner, &mount).code, 0);
    mount.slot_count = 31;
    assert_int_equal(world_mount(&world, owner, &mount).code, MC_ERR_BUSY);
    mount.slot_count = 30;
    assert_int_equal(world_mount(&world, owner, &mount).code, 0);
    struct mc_wire_mount more = numbered_mount(2);
    assert_int_equal(world_mount(&world, owner, &more).code, MC_ERR_BUSY);
    mount.slot_count = 29;
    assert_int_equal(world_mount(&world, owner, &mount).code, 0);
    assert_int_equal(world_mount(&world, owner, &more).code, 0);
    world_close_all(&world);
}

static void unmount(struct world *world, uint64_t owner, uint32_t segment)
{
    size_t frame = world_begin(world, MC_MESSAGE_UNMOUNT, 4);
    mc_wire_unmount_write(&world->frame, &(struct mc_wire_unmount){.segment = segment});
    world_send(world, owner, frame);
    assert_int_equal(world_receive(world, owner).type, MC_MESSAGE_UNMOUNT_REPLY);
}

/* That this thread has had, whatever else the machine does. */
static uint64_t processor_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Names need not be unique. To take one away costs no more when many are called the same. */
static void test_many_of_one_name(void **state)
{
    enum { OWNERS = 80 };
    static uint32_t segments[OWNERS][MC_MEMBER_SEGMENTS_MAX];
    static uint64_t owners[OWNERS];
    struct world world;
    (void)state;
    world_open(&world);
    for (unsigned i = 0; i < OWNERS; i++) {
        owners[i] = world_join(&world, MC_ROLE_OWNER, 100 + i, FIRST_LIFE);
        for (unsigned j = 0; j < MC_MEMBER_SEGMENTS_MAX; j++) {
            struct mc_wire_mount mount = numbered_mount(1 + i * MC_MEMBER_SEGMENTS_MAX + j);
            segments[i][j] = world_mount(&world, owners[i], &mount).segment;
        }
    }
    uint64_t begun_ns = processor_ns();
    for (unsigned i = 0; i < OWNERS; i++)
        for (unsigned j = 0; j < MC_MEMBER_SEGMENTS_MAX; j++)
            unmount(&world, owners[i], segments[i][j]);
    assert_true(processor_ns() - begun_ns < 1000000000); /* 16 ms; with a search each time 4 s */
    (void)world_settle(&world, 100000);
    assert_int_equal(world.core->segment_count, 0);
    assert_null(mc_segment_by_name(world.core, mc_span_string("n")));
    world_close_all(&world);
}

/* Whichever goes, the others are found by their name. */
static void test_chain_of_a_name(void **state)
{
    static const unsigned orders[][4] = {{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}, {2, 0, 3, 1}};
    struct world world;
    (void)state;
    for (unsigned order = 0; order < 4; order++) {
        uint32_t segments[4];
        world_open(&world);
        uint64_t owner = world_join(&world, MC_ROLE_OWNER, NODE_A, FIRST_LIFE);
        for (unsigned i = 0; i < 4; i++) {
            struct mc_wire_mount mount = numbered_mount(1 + i);
            segments[i] = world_mount(&world, owner, &mount).segment;
        }
        for (unsigned gone = 0; gone < 4; gone++) {
            unmount(&world, owner, segments[orders[order][gone]]);
            unsigned found = 0;
            const struct mc_segment *at = mc_segment_by_name(world.core, mc_span_string("n"));
            for (; at != NULL; at = at->aliases[MC_ALIAS_NAME].next)
                found |= 1u << at->id.low;
            unsigned wanted = 0;
            for (unsigned left = gone + 1; left < 4; left++)
                wanted |= 2u << orders[order][left];
            assert_int_equal(found, wanted);
        }
        world_close_all(&world);
    }
}

static void test_numbers_are_not_used_again(void **state)
{
    struct world world;
    uint32_t before = 0;
    (void)state;
    world_open(&world);
    uint64_t owner = world_join(&world, MC_ROLE_OWNER, NODE_A, FIRST_LIFE);
    for (unsigned round = 0; round < 200; round++) {
        struct mc_wire_mount mount = world_mount_of(round + 1, MIB, round % 2 == 0 ? "a" : "b");
        struct mc_wire_mount_reply reply = world_mount(&world, owner, &mount);
        assert_int_equal(reply.code, 0);
        assert_true(reply.segment > before);
        before = reply.segment;
        if (round % 10 == 3)
            continue; /* stays */
        struct mc_wire_unmount head = {.segment = reply.segment};
        size_t frame = world_begin(&world, MC_MESSAGE_UNMOUNT, 4);
        mc_wire_unmount_write(&world.frame, &head);
        world_send(&world, owner, frame);
        world_receive(&world, owner);
        world_settle(&world, 100);
    }
    struct mc_core_segment segments[7];
    uint64_t cursor = 0;
    size_t seen = 0;
    uint32_t last = 0;
    for (size_t count = mc_core_segments(world.core, &cursor, segments, 7); count > 0;
         count = mc_core_segments(world.core, &cursor, segments, 7))
        for (size_t i = 0; i < count; i++, seen++) {
            assert_true(segments[i].number > last);
            last = segments[i].number;
        }
    assert_int_equal(seen, 20);
    world_close_all(&world);
}

/* ---- questions ---- */

static void count_key(void *context, struct mc_span key, uint64_t length)
{
    unsigned *seen = context;
    char text[16] = "";
    assert_int_equal(length, SMALL);
    assert_true(key.length < sizeof(text) && key.length > 1);
    memcpy(text, key.data, key.length);
    seen[atoi(text + 1)]++;
}

static void test_questions(void **state)
{
    struct world world;
    static unsigned seen[500];
    struct mc_wire_place place;
    struct mc_core_replica replica;
    uint64_t cursor = 0;
    unsigned calls = 1;
    (void)state;
    struct world_store store = world_open_one(&world);
    world_fill(&world, &store, "k", 500);
    assert_int_equal(world_grant(&world, store.call, PUT_1, "growing", SMALL, NULL, &place), 0);
    while (mc_core_keys(world.core, &cursor, 60, count_key, seen))
        calls++;
    assert_true(calls > 8);
    for (unsigned i = 0; i < 500; i++)
        assert_int_equal(seen[i], 1);
    assert_int_equal(mc_core_query(world.core, mc_span_string("k1"), &replica, 1), 1);
    assert_int_equal(replica.segment, store.segment);
    assert_int_equal(replica.length, SMALL);
    assert_int_equal(mc_core_query(world.core, mc_span_string("k1"), NULL, 0), 1);
    assert_int_equal(mc_core_query(world.core, mc_span_string("growing"), &replica, 1), MC_ERR_REPLICA_IS_NOT_READY);
    assert_int_equal(mc_core_query(world.core, mc_span_string("nope"), &replica, 1), MC_ERR_OBJECT_NOT_FOUND);
    assert_int_equal(mc_core_query(world.core, mc_span("", 0), &replica, 1), MC_ERR_OBJECT_NOT_FOUND);
    assert_int_equal(mc_objects_find(&world.core->objects, mc_span_string("k1"))->readers, 0);
    world_close_all(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ordering_owner_connection_breaks),
        cmocka_unit_test(test_put_replaces_what_only_the_departed_holds),
        cmocka_unit_test(ordering_owner_cut_sent_again),
        cmocka_unit_test(ordering_owner_silence),
        cmocka_unit_test(ordering_owner_half_dead),
        cmocka_unit_test(ordering_owner_half_dead_returns),
        cmocka_unit_test(ordering_owner_link_is_lost),
        cmocka_unit_test(test_nobody_is_gone_before_he_has_departed),
        cmocka_unit_test(ordering_owner_heartbeat_dies),
        cmocka_unit_test(ordering_owner_gap),
        cmocka_unit_test(ordering_gone_is_swept_in_slices),
        cmocka_unit_test(test_mount_codes),
        cmocka_unit_test(test_segment_is_described),
        cmocka_unit_test(test_leaving_segment_is_read_and_not_written),
        cmocka_unit_test(test_segment_is_found_by_name),
        cmocka_unit_test(test_segments_are_told_once),
        cmocka_unit_test(test_clients_are_told_of_different_segments),
        cmocka_unit_test(test_slots_of_all_are_limited),
        cmocka_unit_test(test_slots_of_one_are_limited),
        cmocka_unit_test(test_segments_of_a_member_are_limited),
        cmocka_unit_test(test_an_address_has_a_share_of_segments),
        cmocka_unit_test(test_a_disk_grows_within_its_share),
        cmocka_unit_test(test_many_of_one_name),
        cmocka_unit_test(test_chain_of_a_name),
        cmocka_unit_test(test_numbers_are_not_used_again),
        cmocka_unit_test(test_questions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
