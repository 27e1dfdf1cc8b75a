/* Malformed input: every message that a master takes, cut at every byte, with bytes behind, with lists that lie, with
 * bytes changed by dice. The connection is closed or the message is answered; the state stays whole either way. */
#include "core_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

struct sample {
    unsigned type, role;
    struct mc_buffer body;
};
#define SAMPLES 17u

static void list_of(struct mc_buffer *body, const struct mc_buffer *records, size_t count)
{
    size_t list = mc_list_begin(body);
    mc_buffer_append(body, records->data, records->length);
    mc_list_end(body, list, count);
}

/* Writers of one record each, to be put into heads and lists. */
#define RECORD(record, ...)                                                                                            \
    do {                                                                                                               \
        struct mc_wire_##record record_ = {__VA_ARGS__};                                                               \
        mc_wire_##record##_write(&buffer, &record_);                                                                   \
    } while (0)

static struct mc_buffer take_buffer(struct mc_buffer *buffer)
{
    struct mc_buffer taken = *buffer;
    *buffer = (struct mc_buffer){0};
    return taken;
}

static void samples_of_puts(struct sample samples[4], uint32_t segment)
{
    struct mc_buffer buffer = {0}, items = {0};
    RECORD(put_start_item, .length = 10, .key = mc_span_string("one"));
    RECORD(put_start_item, .length = 10, .key = mc_span_string("two"));
    items = take_buffer(&buffer);
    RECORD(put_start, .replica_count = 2);
    list_of(&buffer, &items, 2);
    items.length = 0;
    struct mc_wire_name name = {.name = mc_span_string("a")};
    mc_wire_name_write(&items, &name);
    list_of(&buffer, &items, 1);
    items.length = 0;
    struct mc_wire_segment avoided = {.segment = 9};
    mc_wire_segment_write(&items, &avoided);
    list_of(&buffer, &items, 1);
    samples[0] = (struct sample){MC_MESSAGE_PUT_START, MC_ROLE_CALL, take_buffer(&buffer)};

    items.length = 0;
    struct mc_wire_grant grant = {.segment = segment, .slot = 0, .generation = 1};
    mc_wire_grant_write(&items, &grant);
    RECORD(none, 0);
    list_of(&buffer, &items, 1);
    samples[1] = (struct sample){MC_MESSAGE_PUT_REVOKE, MC_ROLE_CALL, take_buffer(&buffer)};

    items.length = 0;
    struct mc_wire_live_item live = {.slot = 1, .generation = 2};
    mc_wire_live_item_write(&items, &live);
    RECORD(live, .segment = segment);
    list_of(&buffer, &items, 1);
    samples[2] = (struct sample){MC_MESSAGE_LIVE, MC_ROLE_OWNER, take_buffer(&buffer)};

    RECORD(suspect, .segment = segment, .code = -800);
    samples[3] = (struct sample){MC_MESSAGE_SUSPECT, MC_ROLE_CALL, take_buffer(&buffer)};
    mc_buffer_free(&items);
}

static void samples_of_keys(struct sample samples[5])
{
    struct mc_buffer buffer = {0}, keys = {0};
    for (unsigned i = 0; i < 3; i++) {
        struct mc_wire_key key = {.key = mc_span_string("key")};
        mc_wire_key_write(&keys, &key);
    }
    RECORD(get, .flags = 0);
    list_of(&buffer, &keys, 3);
    samples[0] = (struct sample){MC_MESSAGE_GET, MC_ROLE_CALL, take_buffer(&buffer)};
    RECORD(none, 0);
    list_of(&buffer, &keys, 3);
    samples[1] = (struct sample){MC_MESSAGE_EXIST, MC_ROLE_CALL, take_buffer(&buffer)};
    RECORD(remove, .force = 1);
    list_of(&buffer, &keys, 3);
    samples[2] = (struct sample){MC_MESSAGE_REMOVE, MC_ROLE_CALL, take_buffer(&buffer)};
    RECORD(remove_regex, .force = 0, .pattern = mc_span_string("a+b"));
    samples[3] = (struct sample){MC_MESSAGE_REMOVE_REGEX, MC_ROLE_CALL, take_buffer(&buffer)};
    RECORD(remove, .force = 0);
    samples[4] = (struct sample){MC_MESSAGE_REMOVE_ALL, MC_ROLE_CALL, take_buffer(&buffer)};
    mc_buffer_free(&keys);
}

static void samples_of_owners(struct sample samples[8], uint32_t segment)
{
    struct mc_buffer buffer = {0}, items = {0};
    struct mc_wire_slot slot = {.slot = 0, .generation = 1};
    mc_wire_slot_write(&items, &slot);
    RECORD(segment, .segment = segment);
    list_of(&buffer, &items, 1);
    samples[0] = (struct sample){MC_MESSAGE_CLEARED, MC_ROLE_OWNER, take_buffer(&buffer)};
    RECORD(segment, .segment = segment);
    list_of(&buffer, &items, 1);
    samples[1] = (struct sample){MC_MESSAGE_CUT_DONE, MC_ROLE_OWNER, take_buffer(&buffer)};
    struct mc_wire_mount mount = world_mount_of(77, MIB, "m");
    mc_wire_mount_write(&buffer, &mount);
    samples[2] = (struct sample){MC_MESSAGE_MOUNT, MC_ROLE_OWNER, take_buffer(&buffer)};
    RECORD(unmount, .segment = 4000);
    samples[3] = (struct sample){MC_MESSAGE_UNMOUNT, MC_ROLE_OWNER, take_buffer(&buffer)};
    items.length = 0;
    struct mc_wire_heartbeat_segment beat = {.segment = segment, .populated = 100};
    mc_wire_heartbeat_segment_write(&items, &beat);
    RECORD(heartbeat, .epoch = 3);
    list_of(&buffer, &items, 1);
    samples[4] = (struct sample){MC_MESSAGE_HEARTBEAT, MC_ROLE_HEARTBEAT, take_buffer(&buffer)};
    RECORD(segment, .segment = segment);
    samples[5] = (struct sample){MC_MESSAGE_SEGMENT, MC_ROLE_CALL, take_buffer(&buffer)};
    RECORD(none, 0);
    samples[6] = (struct sample){MC_MESSAGE_RENEW, MC_ROLE_CALL, take_buffer(&buffer)};
    RECORD(none, 0);
    samples[7] = (struct sample){MC_MESSAGE_PING, MC_ROLE_CALL, take_buffer(&buffer)};
    mc_buffer_free(&items);
}

struct fixture {
    struct world world;
    struct world_store store;
    struct sample samples[SAMPLES];
    uint64_t number; /* of a spare connection */
    uint64_t node;
};

static void fixture_open(struct fixture *fixture)
{
    world_open(&fixture->world);
    fixture->store = world_store(&fixture->world, 5, MIB, "a");
    fixture->number = fixture->world.next_connection;
    fixture->node = 1000;
    samples_of_puts(fixture->samples, fixture->store.segment);
    samples_of_keys(fixture->samples + 4);
    samples_of_owners(fixture->samples + 9, fixture->store.segment);
}
static void fixture_close(struct fixture *fixture)
{
    for (unsigned i = 0; i < SAMPLES; i++)
        mc_buffer_free(&fixture->samples[i].body);
    world_close_all(&fixture->world);
}
/* The sample's body, changed, on a fresh connection of the right role; true when the core closed it. */
static bool closes(struct fixture *fixture, const struct sample *sample, const void *body, size_t length)
{
    struct world *world = &fixture->world;
    world->next_connection = fixture->number; /* the test may use numbers again, the shell may not */
    uint64_t connection = world_join(world, sample->role, fixture->node++, 1);
    world->connections[connection].closed = false;
    world_input(world, connection, sample->type, 5, body, length);
    bool closed = world->connections[connection].closed;
    world->connections[connection].open = false;
    mc_core_disconnected(world->core, world->now, connection);
    world_settle(world, 100);
    world->connections[connection].out.length = 0;
    return closed;
}

static void test_samples_are_good(void **state)
{
    static struct fixture fixture;
    (void)state;
    fixture_open(&fixture);
    for (unsigned i = 0; i < SAMPLES; i++) {
        const struct sample *sample = &fixture.samples[i];
        assert_int_equal(mc_wire_check(sample->type, mc_span(sample->body.data, sample->body.length)), 0);
        assert_false(closes(&fixture, sample, sample->body.data, sample->body.length));
    }
    fixture_close(&fixture);
}

static void test_cut_at_every_byte(void **state)
{
    static struct fixture fixture;
    struct mc_core_statistics statistics;
    (void)state;
    fixture_open(&fixture);
    uint64_t errors = 0;
    for (unsigned i = 0; i < SAMPLES; i++) {
        const struct sample *sample = &fixture.samples[i];
        for (size_t length = 0; length < sample->body.length; length++, errors++)
            assert_true(closes(&fixture, sample, sample->body.data, length));
        world_check(&fixture.world);
    }
    mc_core_statistics(fixture.world.core, &statistics);
    assert_int_equal(statistics.protocol_errors, errors);
    assert_int_equal(statistics.segments, 1);
    assert_int_equal(statistics.members, 1);
    fixture_close(&fixture);
}

static void test_bytes_behind(void **state)
{
    static struct fixture fixture;
    (void)state;
    fixture_open(&fixture);
    for (unsigned i = 0; i < SAMPLES; i++) {
        struct mc_buffer body = {0};
        mc_buffer_append(&body, fixture.samples[i].body.data, fixture.samples[i].body.length);
        mc_buffer_put_u8(&body, 0);
        assert_true(closes(&fixture, &fixture.samples[i], body.data, body.length));
        mc_buffer_free(&body);
    }
    fixture_close(&fixture);
}

static void test_lists_that_lie(void **state)
{
    static const uint32_t counts[] = {4, MC_BATCH_MAX, MC_BATCH_MAX + 1, 0x7fffffff, 0xffffffff};
    static struct fixture fixture;
    (void)state;
    fixture_open(&fixture);
    for (unsigned i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        const struct sample *sample = &fixture.samples[5]; /* EXIST: an empty record, then the count */
        assert_int_equal(sample->type, MC_MESSAGE_EXIST);
        memcpy(sample->body.data + 2, &counts[i], 4);
        assert_true(closes(&fixture, sample, sample->body.data, sample->body.length));
    }
    fixture_close(&fixture);
}

/* Records of a later version: more fields behind ours. */
static void test_longer_records_are_taken(void **state)
{
    static struct fixture fixture;
    (void)state;
    fixture_open(&fixture);
    static const uint8_t body[] = {5, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0};
    const struct sample get = {.type = MC_MESSAGE_GET, .role = MC_ROLE_CALL};
    assert_false(closes(&fixture, &get, body, sizeof(body)));
    fixture_close(&fixture);
}

static void test_bytes_changed(void **state)
{
    static struct fixture fixture;
    (void)state;
    fixture_open(&fixture);
    srand(99);
    for (unsigned round = 0; round < 20000; round++) {
        const struct sample *sample = &fixture.samples[(unsigned)rand() % SAMPLES];
        struct mc_buffer body = {0};
        mc_buffer_append(&body, sample->body.data, sample->body.length);
        for (int changes = rand() % 4; changes >= 0; changes--)
            body.data[(unsigned)rand() % body.length] = (uint8_t)(rand() % 3 == 0 ? 0xff : rand());
        (void)closes(&fixture, sample, body.data, body.length);
        mc_buffer_free(&body);
        if (round % 512 == 0) {
            world_check(&fixture.world);
            world_heartbeat(&fixture.world, fixture.store.heartbeat, 0, 0);
        }
    }
    assert_int_equal(world_exist(&fixture.world, fixture.store.call, "nothing"), 0); /* it still serves */
    fixture_close(&fixture);
}

static void test_hello_cut(void **state)
{
    struct world world;
    (void)state;
    world_open(&world);
    struct mc_wire_hello hello = world_hello(MC_ROLE_CALL, 1, 1);
    struct mc_buffer body = {0};
    mc_wire_hello_write(&body, &hello);
    for (size_t length = 0; length < body.length; length++) {
        world.next_connection = 1;
        uint64_t connection = world_connect(&world);
        world.connections[connection].closed = false;
        world_input(&world, connection, MC_MESSAGE_HELLO, 1, body.data, length);
        assert_true(world.connections[connection].closed);
        world_disconnect(&world, connection);
    }
    struct mc_core_statistics statistics = statistics_of(&world);
    assert_int_equal(statistics.members, 0);
    assert_int_equal(statistics.connections, 0);
    mc_buffer_free(&body);
    world_close_all(&world);
}

/* Whatever is asked: the answer says how old the master was when it wrote it. */
static void test_frames_say_when(void **state)
{
    static struct fixture fixture;
    (void)state;
    fixture_open(&fixture);
    struct world *world = &fixture.world;
    unsigned heard = 0;
    for (unsigned i = 0; i < SAMPLES; i++) {
        world_pass(world, 1000 + 370 * i);
        struct mc_wire_hello hello = world_hello(fixture.samples[i].role, 3000 + i, 1);
        uint64_t connection = world_connect(world);
        assert_int_equal(world_greet(world, connection, &hello).age_ms, world->core->now_ms + 1);
        world_input(world, connection, fixture.samples[i].type, 1, fixture.samples[i].body.data,
                    fixture.samples[i].body.length);
        for (struct mc_frame frame; (frame = world_receive(world, connection)).type != 0; heard++)
            assert_int_equal(frame.time, (uint16_t)(world->core->now_ms / MC_FRAME_TIME_MS));
    }
    assert_true(heard > SAMPLES / 2);
    fixture_close(&fixture);
}

/* An output that is gone while the core wants to answer. */
static void test_nobody_listens(void **state)
{
    static struct fixture fixture;
    (void)state;
    fixture_open(&fixture);
    for (unsigned i = 0; i < SAMPLES; i++) {
        uint64_t connection = world_join(&fixture.world, fixture.samples[i].role, 3000 + i, 1);
        fixture.world.connections[connection].open = false;
        world_input(&fixture.world, connection, fixture.samples[i].type, 1, fixture.samples[i].body.data,
                    fixture.samples[i].body.length);
        world_settle(&fixture.world, 100);
        world_check(&fixture.world);
    }
    fixture_close(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_samples_are_good),
        cmocka_unit_test(test_cut_at_every_byte),
        cmocka_unit_test(test_bytes_behind),
        cmocka_unit_test(test_lists_that_lie),
        cmocka_unit_test(test_longer_records_are_taken),
        cmocka_unit_test(test_bytes_changed),
        cmocka_unit_test(test_hello_cut),
        cmocka_unit_test(test_frames_say_when),
        cmocka_unit_test(test_nobody_listens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
