/* Messages of the store's protocol as a hostile peer says them, made by the tables of src/store/wire/rpc.def: each
 * field as an honest peer would have it, unless the input says otherwise. An input of zeros, or none, is an honest
 * peer. */
#ifndef MC_FUZZ_HOSTILE_H
#define MC_FUZZ_HOSTILE_H

#include "base/error.h"
#include "store/segment/layout.h"
#include "store/wire/wire.h"

#include <string.h>

#define HOSTILE_RECORDS_MAX 40u

struct hostile_value { /* what an honest peer says in the fields of that name; of others it says zero or nothing */
    const char *name;
    uint64_t number;
    struct mc_id id;
    struct mc_span bytes;
};
struct hostile {
    struct mc_reader in; /* what is wrong with what is said */
    const struct hostile_value *values;
    size_t value_count;
    uint32_t count; /* records of a list */
};

static inline const struct hostile_value *hostile_value(const struct hostile *hostile, const char *name)
{
    static const struct hostile_value nothing;
    for (size_t i = 0; i < hostile->value_count; i++)
        if (strcmp(hostile->values[i].name, name) == 0)
            return &hostile->values[i];
    return &nothing;
}

static inline uint64_t hostile_number(struct hostile *hostile, uint64_t honest)
{
    static const uint64_t edges[] = {0,
                                     1,
                                     2,
                                     3,
                                     7,
                                     8,
                                     15,
                                     16,
                                     63,
                                     64,
                                     127,
                                     128,
                                     255,
                                     256,
                                     1023,
                                     1024,
                                     1025,
                                     4096,
                                     65535,
                                     65536,
                                     0x7fffffff,
                                     0x80000000,
                                     0xffffffff,
                                     1ull << 28,
                                     1ull << 32,
                                     1ull << 36,
                                     1ull << 40,
                                     1ull << 46,
                                     INT64_MAX,
                                     1ull << 63,
                                     UINT64_MAX - 1,
                                     UINT64_MAX};
    uint8_t kind = mc_reader_u8(&hostile->in);
    if (kind < 96)
        return edges[kind % (sizeof(edges) / sizeof(edges[0]))];
    if (kind < 160)
        return honest + kind - 128;
    if (kind < 192)
        return (uint64_t)(int64_t) - (int)mc_reader_u16(&hostile->in); /* an error code */
    if (kind < 224)
        return mc_reader_u16(&hostile->in);
    return mc_reader_u64(&hostile->in);
}

static inline struct mc_id hostile_id(struct hostile *hostile)
{
    uint8_t low = mc_reader_u8(&hostile->in), high = mc_reader_u8(&hostile->in);
    return (struct mc_id){low, high};
}

static inline struct mc_span hostile_bytes(struct hostile *hostile, struct mc_span honest)
{
    static const uint8_t many[MC_BATCH_MAX * 2];
    uint8_t kind = mc_reader_u8(&hostile->in);
    size_t length = mc_reader_u8(&hostile->in);
    if (kind < 64)
        return mc_span(many, length * 8);
    if (kind < 128)
        return mc_span(honest.data, length < honest.length ? length : honest.length);
    if (length > mc_reader_left(&hostile->in))
        length = mc_reader_left(&hostile->in);
    return mc_span(mc_reader_take(&hostile->in, length), length);
}

/* Which fields of the next record are wrong, a bit each. */
static inline uint32_t hostile_fields(struct hostile *hostile)
{
    uint8_t which = mc_reader_u8(&hostile->in);
    return which == 0 ? 0 : which < 128 ? 1u << (which - 1) % 32 : mc_reader_u32(&hostile->in);
}

#define HOSTILE_NUMBER(name)                                                                                           \
    {                                                                                                                  \
        uint64_t honest = hostile_value(hostile, #name)->number;                                                       \
        record.name = (__typeof__(record.name))(wrong >> at++ & 1 ? hostile_number(hostile, honest) : honest);         \
    }
#define HOSTILE_ID(name) record.name = wrong >> at++ & 1 ? hostile_id(hostile) : hostile_value(hostile, #name)->id;
#define HOSTILE_BYTES(name)                                                                                            \
    {                                                                                                                  \
        struct mc_span honest = hostile_value(hostile, #name)->bytes;                                                  \
        record.name = wrong >> at++ & 1 ? hostile_bytes(hostile, honest) : honest;                                     \
    }
#define HOSTILE_RECORD(type)                                                                                           \
    static inline void hostile_##type(struct hostile *hostile, struct mc_buffer *out)                                  \
    {                                                                                                                  \
        struct mc_wire_##type record;                                                                                  \
        uint32_t wrong = hostile_fields(hostile);                                                                      \
        unsigned at = 0;                                                                                               \
        memset(&record, 0, sizeof(record));                                                                            \
        MC_RECORD_##type(HOSTILE_NUMBER, HOSTILE_NUMBER, HOSTILE_NUMBER, HOSTILE_NUMBER, HOSTILE_NUMBER, HOSTILE_ID,   \
                         HOSTILE_BYTES)(void) at;                                                                      \
        (void)wrong;                                                                                                   \
        mc_wire_##type##_write(out, &record);                                                                          \
    }                                                                                                                  \
    /* A list of `none` is not on the wire. */                                                                         \
    static inline void hostile_list_##type(struct hostile *hostile, struct mc_buffer *out)                             \
    {                                                                                                                  \
        if (strcmp(#type, "none") == 0)                                                                                \
            return;                                                                                                    \
        uint8_t shape = mc_reader_u8(&hostile->in);                                                                    \
        uint32_t count = shape == 0 ? hostile->count : (shape - 1u) % HOSTILE_RECORDS_MAX;                             \
        size_t list = mc_list_begin(out);                                                                              \
        for (uint32_t i = 0; i < count; i++)                                                                           \
            hostile_##type(hostile, out);                                                                              \
        mc_list_end(out, list, shape < 200 ? count : (size_t)hostile_number(hostile, count));                          \
    }
MC_RECORDS(HOSTILE_RECORD)

static inline void hostile_body(struct hostile *hostile, unsigned type, struct mc_buffer *out)
{
    switch (type) {
#define HOSTILE_MESSAGE(name, number, head, a, b, c)                                                                   \
    case number:                                                                                                       \
        hostile_##head(hostile, out);                                                                                  \
        hostile_list_##a(hostile, out);                                                                                \
        hostile_list_##b(hostile, out);                                                                                \
        hostile_list_##c(hostile, out);                                                                                \
        break;
        MC_MESSAGES(HOSTILE_MESSAGE)
#undef HOSTILE_MESSAGE
    default:
        break;
    }
}

/* Appends a message of that type. False: the peer hangs up after what was appended. */
static inline bool hostile_say(struct hostile *hostile, unsigned type, uint64_t id, struct mc_buffer *out)
{
    uint8_t harm = mc_reader_u8(&hostile->in), more = harm == 0 ? 0 : mc_reader_u8(&hostile->in);
    size_t start =
        mc_frame_begin_at(out, (enum mc_message)(harm == 1 ? more : type), harm == 2 ? more : id, harm == 3 ? more : 0);
    hostile_body(hostile, type, out);
    if (harm == 4) /* cut, with a length that says so; 5: with one that does not */
        out->length -= more < out->length - start - MC_FRAME_HEADER_SIZE ? more : 0;
    if (harm == 6)
        mc_buffer_append(out, "what nobody has asked for", more % 25u);
    mc_frame_end(out, start);
    if (harm == 5)
        out->length -= more < out->length - start ? more : 0;
    if (harm == 7) {
        uint32_t length = (uint32_t)hostile_number(hostile, out->length - start);
        memcpy(out->data + start, &length, 4);
    }
    if (harm == 8) { /* twice */
        size_t length = out->length - start;
        mc_buffer_reserve(out, length);
        mc_buffer_append(out, out->data + start, length);
    }
    if (harm == 9) /* nothing at all */
        out->length = start;
    return harm != 5 && harm != 10;
}

#endif
