/* wire: every record and every message of rpc.def, by walking its tables: a new line there is tested without a change
 * here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "base/error.h"
#include "random.h"
#include "store/wire/wire.h"

#include <stdio.h>

#define ROUNDS 50
#define BYTES_LENGTH_MAX 48

static uint64_t seed;
static const uint8_t pool[BYTES_LENGTH_MAX + 256] =
    "bytes that random BYTES fields borrow; \x00\xff\x80 and zeros up to the end";

/* Often the values where codecs break. */
static uint64_t random_number(void)
{
    static const uint64_t edges[] = {0,      1,          0x7f,       0x80,       0xff,      0x7fff,
                                     0xffff, 0x7fffffff, 0x80000000, 0xffffffff, INT64_MAX, UINT64_MAX};
    uint64_t choice = random_below(&seed, 24);
    return choice < 12 ? edges[choice] : random_next(&seed);
}

static struct mc_span random_span(void)
{
    return mc_span(pool + random_below(&seed, 256), random_below(&seed, BYTES_LENGTH_MAX + 1));
}

/* fill */
#define FILL_U8(name) record->name = (uint8_t)random_number();
#define FILL_U16(name) record->name = (uint16_t)random_number();
#define FILL_U32(name) record->name = (uint32_t)random_number();
#define FILL_U64(name) record->name = random_number();
#define FILL_I32(name) record->name = (int32_t)(uint32_t)random_number();
#define FILL_ID(name) record->name = (struct mc_id){random_number(), random_number()};
#define FILL_BYTES(name) record->name = random_span();
/* compare */
#define SAME_NUMBER(name) assert_true(a->name == b->name);
#define SAME_ID(name) assert_true(mc_id_equal(a->name, b->name));
#define SAME_BYTES(name) assert_true(mc_span_equal(a->name, b->name));
/* zero beyond `fields` fields, equal before */
#define PREFIX_NUMBER(name) assert_true(fields-- > 0 ? a->name == b->name : b->name == 0);
#define PREFIX_ID(name) assert_true(fields-- > 0 ? mc_id_equal(a->name, b->name) : mc_id_is_zero(b->name));
#define PREFIX_BYTES(name) assert_true(fields-- > 0 ? mc_span_equal(a->name, b->name) : b->name.length == 0);
/* encoded size of each field, as one array */
#define SIZE_U8(name) sizes[count++] = 1;
#define SIZE_U16(name) sizes[count++] = 2;
#define SIZE_U32(name) sizes[count++] = 4;
#define SIZE_U64(name) sizes[count++] = 8;
#define SIZE_ID(name) sizes[count++] = 16;
#define SIZE_BYTES(name) sizes[count++] = 2 + record->name.length;

#define FIELDS_MAX 32

#define RECORD_HELPERS(type)                                                                                           \
    static void fill_##type(struct mc_wire_##type *record)                                                             \
    {                                                                                                                  \
        record->unused_ = 0;                                                                                           \
        MC_RECORD_##type(FILL_U8, FILL_U16, FILL_U32, FILL_U64, FILL_I32, FILL_ID, FILL_BYTES)                         \
    }                                                                                                                  \
    static void same_##type(const struct mc_wire_##type *a, const struct mc_wire_##type *b)                            \
    {                                                                                                                  \
        assert_int_equal(a->unused_, b->unused_);                                                                      \
        MC_RECORD_##type(SAME_NUMBER, SAME_NUMBER, SAME_NUMBER, SAME_NUMBER, SAME_NUMBER, SAME_ID, SAME_BYTES)         \
    }                                                                                                                  \
    static void prefix_##type(const struct mc_wire_##type *a, const struct mc_wire_##type *b, int fields)              \
    {                                                                                                                  \
        assert_int_equal(a->unused_, b->unused_);                                                                      \
        (void)fields;                                                                                                  \
        MC_RECORD_##type(PREFIX_NUMBER, PREFIX_NUMBER, PREFIX_NUMBER, PREFIX_NUMBER, PREFIX_NUMBER, PREFIX_ID,         \
                         PREFIX_BYTES)                                                                                 \
    }                                                                                                                  \
    static int sizes_##type(const struct mc_wire_##type *record, size_t *sizes)                                        \
    {                                                                                                                  \
        int count = 0;                                                                                                 \
        (void)record, (void)sizes;                                                                                     \
        MC_RECORD_##type(SIZE_U8, SIZE_U16, SIZE_U32, SIZE_U64, SIZE_U32, SIZE_ID, SIZE_BYTES) return count;           \
    }                                                                                                                  \
    static void append_random_##type(struct mc_buffer *out)                                                            \
    {                                                                                                                  \
        struct mc_wire_##type record;                                                                                  \
        fill_##type(&record);                                                                                          \
        mc_wire_##type##_write(out, &record);                                                                          \
    }
MC_RECORDS(RECORD_HELPERS)

/* A copy that is exactly as large as its content: ASan then sees a read one byte beyond. */
static uint8_t *exact_copy(const void *data, size_t length)
{
    uint8_t *copy = malloc(length == 0 ? 1 : length);
    assert_non_null(copy);
    if (length > 0)
        memcpy(copy, data, length);
    return copy;
}

#define RECORD_ROUND_TRIP(type)                                                                                        \
    static void round_trip_##type(void)                                                                                \
    {                                                                                                                  \
        struct mc_wire_##type written, got;                                                                            \
        struct mc_buffer out = {0};                                                                                    \
        fill_##type(&written);                                                                                         \
        mc_wire_##type##_write(&out, &written);                                                                        \
        size_t sizes[FIELDS_MAX], total = 2;                                                                           \
        for (int i = sizes_##type(&written, sizes); i-- > 0;)                                                          \
            total += sizes[i];                                                                                         \
        assert_int_equal(out.length, total);                                                                           \
        struct mc_reader reader = mc_reader(out.data, out.length);                                                     \
        mc_wire_##type##_read(&reader, &got);                                                                          \
        assert_false(reader.bad);                                                                                      \
        assert_int_equal(mc_reader_left(&reader), 0);                                                                  \
        same_##type(&written, &got);                                                                                   \
        mc_buffer_free(&out);                                                                                          \
    }
MC_RECORDS(RECORD_ROUND_TRIP)

static void every_record_comes_back_as_it_was(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
#define CALL_ROUND_TRIP(type) round_trip_##type();
        MC_RECORDS(CALL_ROUND_TRIP)
    }
}

/* The bytes end in the middle of a record: bad, whatever was cut; no value from beyond the end. */
#define RECORD_CUT_SHORT(type)                                                                                         \
    static void cut_short_##type(void)                                                                                 \
    {                                                                                                                  \
        struct mc_wire_##type got;                                                                                     \
        struct mc_buffer out = {0};                                                                                    \
        append_random_##type(&out);                                                                                    \
        for (size_t length = 0; length < out.length; length++) {                                                       \
            uint8_t *copy = exact_copy(out.data, length);                                                              \
            struct mc_reader reader = mc_reader(copy, length);                                                         \
            mc_wire_##type##_read(&reader, &got);                                                                      \
            assert_true(reader.bad);                                                                                   \
            assert_int_equal(mc_reader_left(&reader), 0);                                                              \
            free(copy);                                                                                                \
        }                                                                                                              \
        mc_buffer_free(&out);                                                                                          \
    }
MC_RECORDS(RECORD_CUT_SHORT)

static void a_record_that_ends_too_early_is_bad(void **state)
{
    (void)state;
#define CALL_CUT_SHORT(type) cut_short_##type();
    MC_RECORDS(CALL_CUT_SHORT)
}

/* An older peer writes fewer fields: what it did not write is zero. A size that ends inside a field is bad. */
#define RECORD_FROM_OLDER(type)                                                                                        \
    static void from_older_##type(void)                                                                                \
    {                                                                                                                  \
        struct mc_wire_##type written, got;                                                                            \
        struct mc_buffer out = {0};                                                                                    \
        fill_##type(&written);                                                                                         \
        mc_wire_##type##_write(&out, &written);                                                                        \
        size_t sizes[FIELDS_MAX], boundary = 0;                                                                        \
        int count = sizes_##type(&written, sizes), fields = 0;                                                         \
        for (size_t size = 0; size + 2 <= out.length; size++) {                                                        \
            while (fields < count && boundary + sizes[fields] <= size)                                                 \
                boundary += sizes[fields++];                                                                           \
            uint16_t shorter = (uint16_t)size;                                                                         \
            memcpy(out.data, &shorter, 2);                                                                             \
            uint8_t *copy = exact_copy(out.data, size + 2);                                                            \
            struct mc_reader reader = mc_reader(copy, size + 2);                                                       \
            mc_wire_##type##_read(&reader, &got);                                                                      \
            assert_int_equal(reader.bad, boundary != size);                                                            \
            if (boundary == size)                                                                                      \
                prefix_##type(&written, &got, fields);                                                                 \
            free(copy);                                                                                                \
        }                                                                                                              \
        mc_buffer_free(&out);                                                                                          \
    }
MC_RECORDS(RECORD_FROM_OLDER)

static void fields_that_an_older_peer_lacks_are_zero(void **state)
{
    (void)state;
    for (int round = 0; round < 5; round++) {
#define CALL_FROM_OLDER(type) from_older_##type();
        MC_RECORDS(CALL_FROM_OLDER)
    }
}

/* A newer peer writes more fields: they are skipped, and the record behind is read rightly. */
#define RECORD_FROM_NEWER(type)                                                                                        \
    static void from_newer_##type(size_t more)                                                                         \
    {                                                                                                                  \
        struct mc_wire_##type first, second, got;                                                                      \
        struct mc_buffer out = {0};                                                                                    \
        fill_##type(&first);                                                                                           \
        fill_##type(&second);                                                                                          \
        mc_wire_##type##_write(&out, &first);                                                                          \
        uint16_t size = (uint16_t)(out.length - 2 + more);                                                             \
        memcpy(out.data, &size, 2);                                                                                    \
        for (size_t i = 0; i < more; i++)                                                                              \
            mc_buffer_put_u8(&out, (uint8_t)random_next(&seed));                                                       \
        mc_wire_##type##_write(&out, &second);                                                                         \
        struct mc_reader reader = mc_reader(out.data, out.length);                                                     \
        mc_wire_##type##_read(&reader, &got);                                                                          \
        same_##type(&first, &got);                                                                                     \
        mc_wire_##type##_read(&reader, &got);                                                                          \
        same_##type(&second, &got);                                                                                    \
        assert_false(reader.bad);                                                                                      \
        assert_int_equal(mc_reader_left(&reader), 0);                                                                  \
        mc_buffer_free(&out);                                                                                          \
    }
MC_RECORDS(RECORD_FROM_NEWER)

static void fields_of_a_newer_peer_are_skipped(void **state)
{
    (void)state;
    for (size_t more = 1; more < 2000; more = more * 3 + 1) {
#define CALL_FROM_NEWER(type) from_newer_##type(more);
        MC_RECORDS(CALL_FROM_NEWER)
    }
}

/* ---- messages ---- */

/* A list of `none` is not on the wire. */
static void append_list(struct mc_buffer *out, size_t count, void (*append)(struct mc_buffer *out))
{
    if (append == append_random_none)
        return;
    size_t list = mc_list_begin(out);
    for (size_t i = 0; i < count; i++)
        append(out);
    mc_list_end(out, list, count);
}

/* Appends one whole random frame of that type with lists of `count` records each. */
static void append_message(struct mc_buffer *out, unsigned type, uint64_t request_id, size_t count)
{
    switch (type) {
#define MESSAGE_CASE(name, number, head, a, b, c)                                                                      \
    case number: {                                                                                                     \
        size_t frame = mc_frame_begin(out, MC_MESSAGE_##name, request_id);                                             \
        append_random_##head(out);                                                                                     \
        append_list(out, count, append_random_##a);                                                                    \
        append_list(out, count, append_random_##b);                                                                    \
        append_list(out, count, append_random_##c);                                                                    \
        mc_frame_end(out, frame);                                                                                      \
        break;                                                                                                         \
    }
        MC_MESSAGES(MESSAGE_CASE)
    default:
        fail();
    }
}

#define MESSAGE_NUMBER(name, number, head, a, b, c) (number),
static const unsigned types[] = {MC_MESSAGES(MESSAGE_NUMBER)};
#define TYPE_COUNT (sizeof(types) / sizeof(types[0]))

static struct mc_span body_of(const struct mc_buffer *frame)
{
    return mc_span(frame->data + MC_FRAME_HEADER_SIZE, frame->length - MC_FRAME_HEADER_SIZE);
}

static void every_whole_message_is_well_formed(void **state)
{
    (void)state;
    static const size_t counts[] = {0, 1, 2, 17, MC_BATCH_MAX};
    for (size_t i = 0; i < TYPE_COUNT; i++) {
        for (size_t j = 0; j < sizeof(counts) / sizeof(counts[0]); j++) {
            struct mc_buffer out = {0};
            append_message(&out, types[i], 1, counts[j]);
            assert_true(out.length <= MC_FRAME_BODY_MAX);
            assert_int_equal(mc_wire_check(types[i], body_of(&out)), 0);
            mc_buffer_free(&out);
        }
    }
}

static void every_shorter_or_longer_message_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < TYPE_COUNT; i++) {
        struct mc_buffer out = {0};
        append_message(&out, types[i], 1, 3);
        struct mc_span body = body_of(&out);
        for (size_t length = 0; length < body.length; length++) {
            uint8_t *copy = exact_copy(body.data, length);
            assert_int_equal(mc_wire_check(types[i], mc_span(copy, length)), MC_ERR_PROTOCOL);
            free(copy);
        }
        mc_buffer_put_u8(&out, 0);
        assert_int_equal(mc_wire_check(types[i], body_of(&out)), MC_ERR_PROTOCOL);
        mc_buffer_free(&out);
    }
}

static void unknown_types_are_refused(void **state)
{
    (void)state;
    for (unsigned type = 0; type <= UINT16_MAX; type++) {
        bool known = false;
        for (size_t i = 0; i < TYPE_COUNT; i++)
            known = known || types[i] == type;
        assert_int_equal(strcmp(mc_message_name(type), "?") != 0, known);
        if (!known)
            assert_int_equal(mc_wire_check(type, mc_span("\0\0", 2)), MC_ERR_PROTOCOL);
    }
}

/* A count that the bytes cannot hold must not make anybody loop or allocate for it. */
static void lists_that_cannot_be_are_refused(void **state)
{
    (void)state;
    static const uint32_t counts[] = {1, 2, MC_BATCH_MAX, MC_BATCH_MAX + 1, INT32_MAX, UINT32_MAX};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        uint8_t bytes[4];
        memcpy(bytes, &counts[i], 4);
        struct mc_reader reader = mc_reader(bytes, 4);
        assert_int_equal(mc_list_read(&reader), 0);
        assert_true(reader.bad);
    }
    /* Enough bytes, but beyond the limit. */
    struct mc_buffer out = {0};
    size_t list = mc_list_begin(&out);
    for (size_t i = 0; i <= MC_BATCH_MAX; i++)
        append_random_key(&out);
    mc_list_end(&out, list, MC_BATCH_MAX + 1);
    struct mc_reader reader = mc_reader(out.data, out.length);
    assert_int_equal(mc_list_read(&reader), 0);
    assert_true(reader.bad);
    mc_list_end(&out, list, MC_BATCH_MAX);
    reader = mc_reader(out.data, out.length);
    assert_int_equal(mc_list_read(&reader), MC_BATCH_MAX);
    assert_false(reader.bad);
    mc_buffer_free(&out);
    struct mc_reader nothing = mc_reader(NULL, 0);
    assert_int_equal(mc_list_read(&nothing), 0);
    assert_true(nothing.bad);
}

/* ---- frames ---- */

static void a_frame_split_anywhere_waits_for_the_rest(void **state)
{
    (void)state;
    for (size_t i = 0; i < TYPE_COUNT; i++) {
        struct mc_buffer out = {0};
        uint64_t request_id = random_number();
        append_message(&out, types[i], request_id, 2);
        struct mc_frame frame;
        size_t used;
        for (size_t length = 0; length < out.length; length++) {
            uint8_t *copy = exact_copy(out.data, length);
            assert_int_equal(mc_frame_parse(copy, length, &frame, &used), 0);
            assert_int_equal(used, length < MC_FRAME_HEADER_SIZE ? 0 : out.length);
            free(copy);
        }
        size_t whole = out.length;
        append_message(&out, types[i], request_id + 1, 0);
        assert_int_equal(mc_frame_parse(out.data, out.length, &frame, &used), 1);
        assert_int_equal(used, whole);
        assert_int_equal(frame.type, types[i]);
        assert_int_equal(frame.time, 0);
        assert_true(frame.request_id == request_id);
        assert_int_equal(frame.body.length, whole - MC_FRAME_HEADER_SIZE);
        assert_int_equal(mc_wire_check(frame.type, frame.body), 0);
        assert_int_equal(mc_frame_parse(out.data + used, out.length - used, &frame, &used), 1);
        assert_true(frame.request_id == request_id + 1);
        mc_buffer_free(&out);
    }
}

static void a_frame_too_long_is_refused_by_its_header(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {MC_FRAME_BODY_MAX + 1, INT32_MAX, UINT32_MAX, 0x20544547 /* "GET " */};
    uint8_t header[MC_FRAME_HEADER_SIZE] = {0};
    struct mc_frame frame;
    size_t used;
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        memcpy(header, &lengths[i], 4);
        assert_int_equal(mc_frame_parse(header, sizeof(header), &frame, &used), -1);
    }
    uint32_t most = MC_FRAME_BODY_MAX;
    memcpy(header, &most, 4);
    assert_int_equal(mc_frame_parse(header, sizeof(header), &frame, &used), 0);
    assert_int_equal(used, MC_FRAME_HEADER_SIZE + (size_t)MC_FRAME_BODY_MAX);
}

/* The longest key fits, many times; the longest BYTES are clipped rather than written with a false length. */
static void long_bytes_survive_or_are_clipped(void **state)
{
    (void)state;
    uint8_t *large = calloc(1, 70000);
    assert_non_null(large);
    struct mc_buffer out = {0};
    struct mc_wire_key got, key = {0, mc_span(large, MC_KEY_LENGTH_MAX)};
    for (int i = 0; i < MC_BATCH_MAX; i++)
        mc_wire_key_write(&out, &key);
    struct mc_reader reader = mc_reader(out.data, out.length);
    for (int i = 0; i < MC_BATCH_MAX; i++) {
        mc_wire_key_read(&reader, &got);
        assert_int_equal(got.key.length, MC_KEY_LENGTH_MAX);
    }
    assert_false(reader.bad);
    out.length = 0;
    mc_wire_put_bytes(&out, mc_span(large, 70000));
    assert_int_equal(out.length, 2 + UINT16_MAX);
    mc_buffer_free(&out);
    free(large);
}

static void random_bytes_do_no_harm(void **state)
{
    (void)state;
    for (int round = 0; round < 200; round++) {
        size_t length = random_below(&seed, 300);
        uint8_t *data = malloc(length == 0 ? 1 : length);
        assert_non_null(data);
        for (size_t i = 0; i < length; i++)
            data[i] = random_below(&seed, 3) == 0 ? (uint8_t)random_next(&seed) : 0;
        for (size_t i = 0; i < TYPE_COUNT; i++) {
            int rc = mc_wire_check(types[i], mc_span(data, length));
            assert_true(rc == 0 || rc == MC_ERR_PROTOCOL);
        }
        free(data);
    }
}

/* Frames are written into a buffer that has failed as if nothing were; nobody sends it. */
static void frames_of_a_failed_buffer_are_harmless(void **state)
{
    static const size_t rooms[] = {0, 1, 5, 15, 16, 17, 20, 40};
    (void)state;
    for (size_t i = 0; i < sizeof(rooms) / sizeof(rooms[0]); i++) {
        struct mc_buffer out = {.data = malloc(rooms[i] + 1), .capacity = rooms[i], .may_fail = true};
        assert_false(mc_buffer_reserve(&out, SIZE_MAX));
        size_t frame = mc_frame_begin(&out, MC_MESSAGE_GET, 1);
        mc_wire_get_write(&out, &(struct mc_wire_get){.flags = 1});
        size_t list = mc_list_begin(&out);
        mc_list_end(&out, list, 1);
        mc_frame_end(&out, frame);
        assert_true(out.failed);
        mc_buffer_free(&out);
    }
}

int main(void)
{
    seed = 20250521;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_record_comes_back_as_it_was),
        cmocka_unit_test(frames_of_a_failed_buffer_are_harmless),
        cmocka_unit_test(a_record_that_ends_too_early_is_bad),
        cmocka_unit_test(fields_that_an_older_peer_lacks_are_zero),
        cmocka_unit_test(fields_of_a_newer_peer_are_skipped),
        cmocka_unit_test(every_whole_message_is_well_formed),
        cmocka_unit_test(every_shorter_or_longer_message_is_refused),
        cmocka_unit_test(unknown_types_are_refused),
        cmocka_unit_test(lists_that_cannot_be_are_refused),
        cmocka_unit_test(a_frame_split_anywhere_waits_for_the_rest),
        cmocka_unit_test(a_frame_too_long_is_refused_by_its_header),
        cmocka_unit_test(long_bytes_survive_or_are_clipped),
        cmocka_unit_test(random_bytes_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
