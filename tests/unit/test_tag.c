/* Tags of places: the MAC, and an owner's connection that looks at it: what was granted, to whom, and nothing else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/error.h"
#include "env/log.h"
#include "store/segment/serve_lane.h"

#include <stdlib.h>

#define CAPACITY (512u << 10)
#define LENGTH 1000u
#define KEY_LENGTH 8u
#define PAYLOAD (LENGTH + KEY_LENGTH) /* of one block: nothing is between value and key */

static const uint8_t key[MC_TAG_KEY_BYTES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
static const struct mc_id writer = {11, 12}, stranger = {11, 13};

/* ---- the MAC ---- */

/* From the appendix of the paper, and of the authors' own list. */
static void test_known_hashes(void **state)
{
    uint8_t message[64];
    (void)state;
    for (uint8_t i = 0; i < sizeof(message); i++)
        message[i] = i;
    assert_int_equal(mc_siphash(key, message, 0), 0x726fdb47dd0e0e31u);
    assert_int_equal(mc_siphash(key, message, 8), 0x93f5f5799a932462u);
    assert_int_equal(mc_siphash(key, message, 15), 0xa129ca6149be45e5u);
    assert_int_equal(mc_siphash(key, message, 63), 0x958a324ceb064572u);
}

static struct mc_tagged granted(void)
{
    return (struct mc_tagged){.holder = writer,
                              .slot = 7,
                              .key_length = KEY_LENGTH,
                              .generation = 5,
                              .offset = 4096,
                              .length = LENGTH,
                              .hash_low = 21,
                              .hash_high = 22};
}

static void test_each_part_counts(void **state)
{
    struct mc_tagged what = granted(), other[9];
    uint8_t other_key[MC_TAG_KEY_BYTES];
    (void)state;
    for (size_t i = 0; i < 9; i++)
        other[i] = what;
    other[0].slot++;
    other[1].generation++;
    other[2].generation += UINT64_C(1) << 40; /* another epoch */
    other[3].holder.low++;
    other[4].holder.high++;
    other[5].offset += 64;
    other[6].length++;
    other[7].key_length++;
    other[8].hash_high++;
    for (size_t i = 0; i < 9; i++) {
        assert_false(mc_tag_equal(mc_tag_write(key, &what), mc_tag_write(key, &other[i])));
        if (i < 5)
            assert_false(mc_tag_equal(mc_tag_read(key, &what), mc_tag_read(key, &other[i])));
    }
    assert_false(mc_tag_equal(mc_tag_write(key, &what), mc_tag_read(key, &what)));
    memcpy(other_key, key, sizeof(key));
    other_key[15] ^= 1;
    assert_false(mc_tag_equal(mc_tag_write(key, &what), mc_tag_write(other_key, &what)));
    assert_true(mc_tag_equal(mc_tag_write(key, &what), mc_tag_write(key, &what)));
    assert_int_equal((mc_tag_write(key, &what) | mc_tag_read(key, &what)) & 1, 0);
}

/* ---- at the owner ---- */

struct side { /* an owner that wants tags, and one connection to it */
    struct mc_lane_server server;
    struct mc_serve_lane lane;
    struct mc_buffer out;
    unsigned told;
};

static void on_committed(void *context, struct mc_segment_memory *memory, uint32_t slot, uint64_t generation, int code)
{
    struct side *side = context;
    (void)memory, (void)slot, (void)generation;
    assert_int_equal(code, 0);
    side->told++;
}

/* As it is sent. Returns what the lane says. */
static int say(struct side *side)
{
    int rc = mc_lane_input(&side->lane, side->out.data, side->out.length);
    side->out.length = 0;
    return rc;
}

static void connect_as(struct side *side, struct mc_id node, bool is_unix)
{
    struct mc_wire_hello hello = {
        .role = MC_ROLE_DATA, .node = node, .nonce = mc_segment_memory_nonce(side->server.memory)};
    mc_wire_hello_sign(&hello);
    mc_lane_init(&side->lane, &side->server, is_unix, is_unix);
    mc_wire_hello_frame(&side->out, mc_frame_begin(&side->out, MC_MESSAGE_HELLO, 1), &hello);
    assert_int_equal(say(side), 0);
    assert_true(side->lane.is_open);
    side->lane.out.length = 0;
}

static void again(struct side *side, struct mc_id node)
{
    mc_lane_free(&side->lane);
    connect_as(side, node, false);
}

static void begin(struct side *side)
{
    *side = (struct side){.server = {.node = {3, 4}, .incarnation = 1, .wants_tags = true}};
    side->server.hooks = (struct mc_serve_hooks){.context = side, .committed = on_committed};
    side->server.key_number = 1;
    memcpy(side->server.keys[0].tag, key, sizeof(key));
    mc_log_set_level(MC_LOG_ERROR);
    assert_int_equal(mc_segment_memory_create(CAPACITY, &side->server.memory), 0);
    memset(mc_segment_memory_data(side->server.memory), 'o', CAPACITY); /* of others */
    connect_as(side, writer, false);
}

static void end(struct side *side)
{
    mc_lane_free(&side->lane);
    mc_segment_memory_release(side->server.memory);
    mc_buffer_free(&side->out);
}

static struct mc_wire_write write_of(const struct mc_tagged *what)
{
    return (struct mc_wire_write){.slot = what->slot,
                                  .generation = what->generation,
                                  .offset = what->offset,
                                  .payload_length = PAYLOAD,
                                  .length = what->length,
                                  .hash_low = what->hash_low,
                                  .hash_high = what->hash_high,
                                  .key_length = what->key_length,
                                  .tag = mc_tag_write(key, what)};
}

static int say_write(struct side *side, const struct mc_wire_write *head)
{
    static const uint8_t bytes[PAYLOAD] = {1};
    mc_wire_write_frame(&side->out, mc_frame_begin(&side->out, MC_MESSAGE_WRITE, 2), head);
    mc_buffer_append(&side->out, bytes, sizeof(bytes));
    return say(side);
}

static struct mc_wire_commit_item commit_of(const struct mc_tagged *what)
{
    return (struct mc_wire_commit_item){.slot = what->slot,
                                        .generation = what->generation,
                                        .offset = what->offset,
                                        .length = what->length,
                                        .hash_low = what->hash_low,
                                        .hash_high = what->hash_high,
                                        .key_length = what->key_length,
                                        .block_shift = mc_block_shift(what->length),
                                        .tag = mc_tag_write(key, what)};
}

static int say_commit(struct side *side, const struct mc_wire_commit_item *item)
{
    size_t frame = mc_frame_begin(&side->out, MC_MESSAGE_COMMIT, 3);
    size_t list = mc_wire_none_head(&side->out, &(struct mc_wire_none){0});
    mc_wire_commit_item_write(&side->out, item);
    mc_frame_end_list(&side->out, frame, list, 1);
    return say(side);
}

/* The code of the answer. */
static int say_read(struct side *side, uint32_t slot, uint64_t generation, uint64_t tag)
{
    struct mc_wire_read head = {.slot = slot, .generation = generation, .length = 10, .tag = tag};
    struct iovec parts[MC_LANE_PARTS_MAX];
    struct mc_frame frame = {0};
    struct mc_wire_read_reply reply;
    bool with_fds;
    size_t used;
    mc_wire_read_frame(&side->out, mc_frame_begin(&side->out, MC_MESSAGE_READ, 4), &head);
    assert_int_equal(say(side), 0);
    assert_true(mc_lane_output(&side->lane, parts, 65536, &with_fds) > 0);
    assert_int_equal(mc_frame_parse(parts[0].iov_base, parts[0].iov_len, &frame, &used), 1);
    assert_int_equal(frame.type, MC_MESSAGE_READ_REPLY);
    struct mc_reader reader = mc_reader(frame.body.data, frame.body.length);
    mc_wire_read_reply_read(&reader, &reply);
    if (reply.code < 0)
        assert_int_equal(used, parts[0].iov_len); /* and not a byte behind it */
    assert_int_equal(mc_lane_sent(&side->lane, parts[0].iov_len), 0);
    return reply.code;
}

static bool is_untouched(const struct side *side)
{
    const uint8_t *data = mc_segment_memory_data(side->server.memory);
    for (size_t i = 0; i < CAPACITY; i++)
        if (data[i] != 'o')
            return false;
    return mc_segment_memory_live(side->server.memory) == 0;
}

static void test_what_was_granted_is_done(void **state)
{
    struct side side;
    struct mc_tagged what = granted();
    (void)state;
    begin(&side);
    struct mc_wire_write head = write_of(&what);
    struct mc_wire_commit_item item = commit_of(&what);
    assert_int_equal(say_write(&side, &head), 0);
    assert_int_equal(mc_segment_memory_data(side.server.memory)[what.offset], 1);
    assert_int_equal(say_commit(&side, &item), 0);
    assert_int_equal(side.told, 1);
    assert_int_equal(say_read(&side, what.slot, what.generation, mc_tag_read(key, &what)), 0);
    assert_int_equal(side.server.tags_refused, 0);
    end(&side);
}

/* Each with the tag of the grant: the connection ends, and the master hears nothing of what may be another's grant. */
static void test_a_foreign_place_is_not_written(void **state)
{
    struct side side;
    struct mc_tagged what = granted();
    struct mc_wire_write wrong[9];
    (void)state;
    begin(&side);
    for (size_t i = 0; i < 9; i++)
        wrong[i] = write_of(&what);
    wrong[0].slot++;
    wrong[1].generation++;
    wrong[2].generation += UINT64_C(1) << 40;
    wrong[3].offset += 64;
    wrong[4].length++;
    wrong[5].key_length++;
    wrong[6].hash_low++;
    wrong[7].tag = mc_tag_read(key, &what);
    wrong[8].tag = 0;
    for (size_t i = 0; i < 9; i++) {
        assert_int_equal(say_write(&side, &wrong[i]), MC_ERR_NOT_PERMITTED);
        assert_true(is_untouched(&side));
        assert_int_equal(side.server.tags_refused, i + 1);
        again(&side, writer);
    }
    wrong[0] = write_of(&what); /* beyond the end of what was granted */
    wrong[0].payload_length++;
    assert_int_equal(say_write(&side, &wrong[0]), MC_ERR_INVALID_PARAMS);
    assert_true(is_untouched(&side));
    for (unsigned is_part = 0; is_part < 2; is_part++) { /* nor in parts */
        again(&side, writer);
        wrong[0] = write_of(&what);
        wrong[0].is_part = (uint8_t)is_part;
        wrong[0].skip = 1;
        assert_int_equal(say_write(&side, &wrong[0]), MC_ERR_INVALID_PARAMS);
        again(&side, writer);
        wrong[0].skip = 0;
        wrong[0].tag ^= is_part;
        wrong[0].offset += is_part == 0;
        assert_int_equal(say_write(&side, &wrong[0]), MC_ERR_NOT_PERMITTED);
        assert_true(is_untouched(&side));
    }
    again(&side, stranger); /* the right one, by another holder */
    wrong[0] = write_of(&what);
    assert_int_equal(say_write(&side, &wrong[0]), MC_ERR_NOT_PERMITTED);
    assert_true(is_untouched(&side));
    assert_int_equal(side.told, 0);
    end(&side);
}

static void test_a_foreign_slot_is_not_committed(void **state)
{
    struct side side;
    struct mc_tagged what = granted();
    struct mc_wire_commit_item wrong[9];
    (void)state;
    begin(&side);
    for (size_t i = 0; i < 9; i++)
        wrong[i] = commit_of(&what);
    wrong[0].slot++;
    wrong[1].generation++;
    wrong[2].generation = UINT64_MAX;
    wrong[3].offset += 64;
    wrong[4].length--;
    wrong[5].key_length--;
    wrong[6].hash_high++;
    wrong[7].tag = mc_tag_read(key, &what);
    wrong[8].tag = 0;
    for (size_t i = 0; i < 9; i++) {
        assert_int_equal(say_commit(&side, &wrong[i]), MC_ERR_NOT_PERMITTED);
        assert_true(is_untouched(&side));
        again(&side, i == 0 ? stranger : writer);
        if (i == 0) { /* also not what is right for another */
            struct mc_wire_commit_item right = commit_of(&what);
            assert_int_equal(say_commit(&side, &right), MC_ERR_NOT_PERMITTED);
            again(&side, writer);
        }
    }
    mc_lane_free(&side.lane);
    connect_as(&side, writer, true); /* nor by the socket of those who map the memory */
    assert_int_equal(say_commit(&side, &wrong[0]), MC_ERR_NOT_PERMITTED);
    assert_true(is_untouched(&side));
    assert_int_equal(side.told, 0);
    assert_int_equal(side.server.tags_refused, 11);
    end(&side);
}

/* Who guesses learns not even whether something is there. */
static void test_a_guessed_slot_is_not_read(void **state)
{
    struct side side;
    struct mc_tagged what = granted();
    (void)state;
    begin(&side);
    struct mc_wire_write head = write_of(&what);
    struct mc_wire_commit_item item = commit_of(&what);
    assert_int_equal(say_write(&side, &head), 0);
    assert_int_equal(say_commit(&side, &item), 0);
    uint64_t tag = mc_tag_read(key, &what);
    assert_int_equal(say_read(&side, what.slot, what.generation, 0), MC_ERR_NOT_PERMITTED);
    assert_int_equal(say_read(&side, what.slot, what.generation, tag ^ 2), MC_ERR_NOT_PERMITTED);
    assert_int_equal(say_read(&side, what.slot, what.generation, mc_tag_write(key, &what)), MC_ERR_NOT_PERMITTED);
    assert_int_equal(say_read(&side, what.slot + 1, what.generation, tag), MC_ERR_NOT_PERMITTED);
    assert_int_equal(say_read(&side, UINT32_MAX, what.generation, tag), MC_ERR_NOT_PERMITTED);
    assert_int_equal(say_read(&side, what.slot, what.generation + 1, tag), MC_ERR_NOT_PERMITTED);
    assert_int_equal(say_read(&side, what.slot, what.generation, tag), 0); /* who asked wrongly may ask again */
    again(&side, stranger);
    assert_int_equal(say_read(&side, what.slot, what.generation, tag), MC_ERR_NOT_PERMITTED);
    assert_int_equal(side.server.tags_refused, 7);
    end(&side);
}

/* A release before tags has nothing to repeat: it is told so at once, where there are keys. */
static void test_who_knows_no_tags(void **state)
{
    struct side side;
    (void)state;
    begin(&side);
    for (unsigned i = 0; i < 2; i++) {
        struct mc_wire_hello hello = {
            .role = MC_ROLE_DATA, .node = writer, .nonce = mc_segment_memory_nonce(side.server.memory)};
        mc_wire_hello_sign(&hello);
        hello.features &= ~(UINT64_C(1) << MC_FEATURE_TAGS);
        mc_lane_free(&side.lane);
        mc_lane_init(&side.lane, &side.server, false, false);
        side.server.wants_tickets = i > 0;
        side.lane.is_proved = true;
        side.lane.peer = writer;
        mc_wire_hello_frame(&side.out, mc_frame_begin(&side.out, MC_MESSAGE_HELLO, 1), &hello);
        assert_int_equal(say(&side), 0);
        assert_int_equal(side.lane.is_open, i == 0);
    }
    end(&side);
}

/* ---- keys that change ---- */

/* Nothing lies there: what is let through is told so. */
static bool is_let_through(struct side *side, uint64_t tag)
{
    struct mc_tagged what = granted();
    return say_read(side, what.slot, what.generation, tag) == MC_ERR_REPLICA_IS_GONE;
}

static uint64_t tag_now(const struct side *side)
{
    struct mc_tagged what = granted();
    return mc_tag_marked(mc_tag_read(side->server.keys[side->server.key_mark].tag, &what), side->server.key_mark);
}

static void test_the_key_before_is_good_and_no_other(void **state)
{
    static const uint8_t zeros[MC_TAG_KEY_BYTES];
    struct mc_tagged what = granted();
    struct side side;
    uint64_t tags[4];
    (void)state;
    begin(&side);
    assert_false(
        is_let_through(&side, mc_tag_marked(mc_tag_read(zeros, &what), 1))); /* no key of that mark was drawn */
    for (unsigned i = 0; i < 4; i++) {
        tags[i] = tag_now(&side);
        for (unsigned at = 0; at <= i; at++) {
            assert_int_equal(is_let_through(&side, tags[at]), at + 1 >= i);
            assert_false(is_let_through(&side, tags[at] ^ 1)); /* nor under the other one */
        }
        mc_lane_keys_draw(&side.server);
    }
    end(&side);
}

struct shown { /* a ticket and its secret */
    uint8_t ticket[MC_TICKET_BYTES], secret[MC_KEY_SECRET_BYTES];
};

static struct shown ticket_with(unsigned rights, const uint8_t ticket_key[MC_KEY_SECRET_BYTES], unsigned mark)
{
    struct shown shown;
    mc_ticket_write(shown.ticket, writer, rights, mark);
    mc_ticket_secret(ticket_key, mc_span(shown.ticket, sizeof(shown.ticket)), shown.secret);
    return shown;
}

static struct shown ticket_of(const uint8_t ticket_key[MC_KEY_SECRET_BYTES], unsigned mark)
{
    return ticket_with(MC_RIGHT_READ | MC_RIGHT_WRITE, ticket_key, mark);
}

static struct shown ticket_now(const struct side *side)
{
    return ticket_of(side->server.keys[side->server.key_mark].ticket, side->server.key_mark);
}

/* A connection that shows it. draws: so many keys are drawn between question and proof. */
static bool is_proved_by(struct side *side, const struct shown *shown, unsigned draws, bool is_unix)
{
    struct mc_prover prover;
    struct mc_frame frame;
    char why[MC_PROOF_TEXT_MAX];
    size_t used;
    mc_lane_free(&side->lane);
    mc_lane_init(&side->lane, &side->server, is_unix, is_unix);
    mc_prover_begin(&prover, mc_span(shown->ticket, sizeof(shown->ticket)), shown->secret, &side->out);
    assert_int_equal(say(side), 0);
    for (; draws > 0; draws--)
        mc_lane_keys_draw(&side->server);
    assert_int_equal(mc_frame_parse(side->lane.out.data, side->lane.out.length, &frame, &used), 1);
    if (mc_prover_take(&prover, &frame, &side->out, why) < 0)
        return false;
    side->lane.out.length = 0;
    assert_int_equal(say(side), 0);
    return side->lane.is_proved;
}

static bool is_proved(struct side *side, const struct shown *shown, unsigned draws)
{
    return is_proved_by(side, shown, draws, false);
}

static void test_tickets_expire(void **state)
{
    static const uint8_t zeros[MC_KEY_SECRET_BYTES];
    struct shown first, second, forged;
    struct side side;
    (void)state;
    begin(&side);
    side.server.wants_tickets = true;
    first = ticket_now(&side);
    forged = ticket_of(zeros, 1); /* of the key that there is not yet */
    assert_false(is_proved(&side, &forged, 0));
    assert_true(is_proved(&side, &first, 0));
    assert_false(mc_lane_has_expired(&side.lane));
    mc_lane_keys_draw(&side.server);
    assert_false(mc_lane_has_expired(&side.lane));
    mc_lane_keys_draw(&side.server);
    assert_true(mc_lane_has_expired(&side.lane)); /* a connection ends with the keys of its ticket */
    assert_false(is_proved(&side, &first, 0));
    second = ticket_now(&side);
    assert_true(is_proved(&side, &second, 1));
    assert_false(mc_lane_has_expired(&side.lane));
    assert_true(is_proved(&side, &second, 1)); /* which were those before already, and are none at the proof */
    assert_true(mc_lane_has_expired(&side.lane));
    end(&side);
}

/* The first answer's code, which stands first in all of them. */
static int answered(struct side *side, enum mc_message type)
{
    struct mc_frame frame = {0};
    struct iovec parts[MC_LANE_PARTS_MAX];
    int32_t code;
    bool with_fds;
    size_t used;
    assert_int_equal(say(side), 0);
    assert_true(mc_lane_output(&side->lane, parts, 65536, &with_fds) > 0);
    assert_int_equal(mc_frame_parse(parts[0].iov_base, parts[0].iov_len, &frame, &used), 1);
    assert_int_equal(frame.type, type);
    assert_true(frame.body.length >= 2 + sizeof(code));
    memcpy(&code, (const uint8_t *)frame.body.data + 2, sizeof(code)); /* behind the record's length */
    assert_int_equal(with_fds, type == MC_MESSAGE_ATTACH_REPLY && code == 0);
    assert_int_equal(mc_lane_sent(&side->lane, parts[0].iov_len), 0);
    return code;
}

/* What a ticket of those rights is told when it asks for a link, and for the memory itself. */
static void ask_for_all(struct side *side, unsigned rights, int link_code, int map_code)
{
    const struct shown shown =
        ticket_with(rights, side->server.keys[side->server.key_mark].ticket, side->server.key_mark);
    struct mc_wire_hello hello = {
        .role = MC_ROLE_DATA, .node = writer, .nonce = mc_segment_memory_nonce(side->server.memory)};
    mc_wire_hello_sign(&hello);
    for (unsigned is_unix = 0; is_unix < 2; is_unix++) {
        assert_true(is_proved_by(side, &shown, 0, is_unix));
        side->lane.out.length = 0;
        mc_wire_hello_frame(&side->out, mc_frame_begin(&side->out, MC_MESSAGE_HELLO, 1), &hello);
        assert_int_equal(say(side), 0);
        assert_true(side->lane.is_open);
        side->lane.out.length = 0;
        if (is_unix) {
            mc_wire_none_frame(&side->out, mc_frame_begin(&side->out, MC_MESSAGE_ATTACH, 2), &(struct mc_wire_none){0});
            assert_int_equal(answered(side, MC_MESSAGE_ATTACH_REPLY), map_code);
        } else {
            mc_wire_rdma_text_frame(&side->out, mc_frame_begin(&side->out, MC_MESSAGE_RDMA_OFFER, 2),
                                    &(struct mc_wire_rdma_text){0});
            assert_int_equal(answered(side, MC_MESSAGE_RDMA_ANSWER), link_code);
        }
    }
}

static void test_a_tenant_gets_no_memory(void **state)
{
    struct side side;
    const unsigned both = MC_RIGHT_READ | MC_RIGHT_WRITE;
    (void)state;
    begin(&side);
    side.server.wants_tickets = true;
    ask_for_all(&side, both, MC_ERR_UNAVAILABLE_IN_CURRENT_MODE, 0); /* there is no RDMA here */
    ask_for_all(&side, both | MC_TICKET_OF_TENANT, MC_ERR_NOT_PERMITTED, MC_ERR_NOT_PERMITTED);
    side.server.tenants_map = true;
    ask_for_all(&side, both | MC_TICKET_OF_TENANT, MC_ERR_UNAVAILABLE_IN_CURRENT_MODE, 0);
    ask_for_all(&side, MC_RIGHT_READ | MC_TICKET_OF_TENANT, MC_ERR_NOT_PERMITTED, MC_ERR_NOT_PERMITTED);
    end(&side);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_hashes),
        cmocka_unit_test(test_each_part_counts),
        cmocka_unit_test(test_what_was_granted_is_done),
        cmocka_unit_test(test_a_foreign_place_is_not_written),
        cmocka_unit_test(test_a_foreign_slot_is_not_committed),
        cmocka_unit_test(test_a_guessed_slot_is_not_read),
        cmocka_unit_test(test_who_knows_no_tags),
        cmocka_unit_test(test_the_key_before_is_good_and_no_other),
        cmocka_unit_test(test_tickets_expire),
        cmocka_unit_test(test_a_tenant_gets_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
