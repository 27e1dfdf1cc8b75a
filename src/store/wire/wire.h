/* Codec of the protocol in rpc.def: structs, writers and readers are generated from its tables.
 *
 * Writing a message:   size_t frame = mc_frame_begin(out, MC_MESSAGE_GET, id);
 *                      mc_wire_get_write(out, &head);
 *                      size_t list = mc_list_begin(out); ...mc_wire_key_write(out, &item) n times...; mc_list_end(out,
 * list, n); mc_frame_end(out, frame); Every list of the message must be written, also an empty one; `none` heads are
 * written as an empty record by mc_wire_none_write. Reading mirrors it: head, then mc_list_read (count, checked against
 * what is left), then the records. Check reader.bad once at the end; until then values are zero after the end, never
 * out of bounds. BYTES fields borrow from the frame.
 */
#ifndef MC_WIRE_WIRE_H
#define MC_WIRE_WIRE_H

#include "base/bytes.h"
#include "base/epoch_proof.h"
#include "store/wire/rpc.def"

#include <stdio.h>

#define MC_WIRE_MAGIC 0x4e4f4f4dU /* "MOON" */
#define MC_WIRE_VERSION_MIN 1
#define MC_WIRE_VERSION_MAX 1
#define MC_FRAME_HEADER_SIZE 16
#define MC_FRAME_TIME_MS 10u         /* the unit of a frame's time, which has 16 bits */
#define MC_FRAME_BODY_MAX (4u << 20) /* bytes; more closes the connection */
#define MC_HELLO_BODY_MAX 1024       /* of a connection's first frame: nobody is known yet */
#define MC_BATCH_MAX 1024            /* records in a list; clients split longer batches */

/* A master also listens on a unix socket in the abstract namespace, named by its random node id (hello_reply.node):
 * peers of its machine and network namespace find it there once they have met it over tcp, and cannot mistake another
 * for it. Half the latency of loopback tcp. */
#define MC_MASTER_UNIX_MAX 64
static inline void mc_master_unix_name(char *name, size_t size, struct mc_id node)
{
    snprintf(name, size, "@mooncake-master-%016llx%016llx", (unsigned long long)node.high,
             (unsigned long long)node.low);
}

enum mc_role { MC_ROLE_CALL = 0, MC_ROLE_HEARTBEAT = 1, MC_ROLE_OWNER = 2, MC_ROLE_DATA = 3 };
/* A master acts on the absence of a segment, at the earliest, when it has missed its owner for so long. */
#define MC_DEPART_MS 3000u

/* REPLACE: of PUT_START only: a value that is there stays readable until the new one is whole, then the new one takes
 * its place. With `expected` only the value of that version is replaced, else the item's code is STALE. */
enum mc_put_flags {
    MC_PUT_HARD_PIN = 1,
    MC_PUT_SOFT_PIN = 2,
    MC_PUT_REPLACE = 4,
    MC_PUT_KEEP_PIN = 16, /* with REPLACE: a soft pin of the value that is replaced stays, with its deadline */
    MC_PUT_FIRM_PIN = 32, /* with SOFT_PIN: until its deadline it is not evicted; an earlier release sees a soft pin */
    MC_PUT_OR_NOT = 64,   /* with FIRM_PIN: else the item's code is FIRM_PIN_REFUSED. Only with feature FIRM_PINS */
    MC_PUT_NEW_PIN = 128, /* with `expected`: of these flags, or none, not that of the value. Only with that feature */
    MC_PUT_BLANK = 256,   /* a place of that size is wanted ahead for the next put of this link, which has none */
};
#define MC_PUT_PINS (MC_PUT_HARD_PIN | MC_PUT_SOFT_PIN | MC_PUT_FIRM_PIN)
#define MC_FOUND_LEASED 8u /* beside the pins of what is found without a lease: somebody has one */
enum mc_store_flags { MC_STORE_WAS_READ = 1 };
enum mc_load_flags { MC_LOAD_UNPINNED = 1 }; /* its soft pin has ended, whatever the disk says */
enum mc_get_flags { MC_GET_NO_LEASE = 1, MC_GET_DISKS = 2 };
/* Of a disk that is mounted, as its owner's heartbeats tell it. What a later release adds counts as READ_ONLY. */
enum mc_told_health { MC_TOLD_WELL, MC_TOLD_SLOW, MC_TOLD_READ_ONLY };

enum mc_message {
#define MC_MESSAGE_ENUM(name, number, head, a, b, c) MC_MESSAGE_##name = (number),
    MC_MESSAGES(MC_MESSAGE_ENUM)
#undef MC_MESSAGE_ENUM
};

/* Name of a message number, or "?". */
const char *mc_message_name(unsigned type);

struct mc_frame {        /* a received frame; body borrows */
    uint16_t type, time; /* time: see rpc.def */
    uint64_t request_id;
    struct mc_span body;
};

/* Looks for a whole frame at the start of data. 1: *frame filled, *used = its size. 0: more bytes are needed (*used =
 * how many in all, if known, else 0). -1: not our protocol or too long. */
static inline int mc_frame_parse(const uint8_t *data, size_t length, struct mc_frame *frame, size_t *used)
{
    uint32_t body_length;
    *used = 0;
    if (length < MC_FRAME_HEADER_SIZE)
        return 0;
    memcpy(&body_length, data, 4);
    memcpy(&frame->type, data + 4, 2);
    memcpy(&frame->time, data + 6, 2);
    memcpy(&frame->request_id, data + 8, 8);
    if (body_length > MC_FRAME_BODY_MAX)
        return -1;
    *used = MC_FRAME_HEADER_SIZE + (size_t)body_length;
    if (length < *used)
        return 0;
    frame->body = mc_span(data + MC_FRAME_HEADER_SIZE, body_length);
    return 1;
}

/* As mc_frame_parse, of a connection's first frame: a longer one is no hello of ours, and nothing is kept of it. */
static inline int mc_frame_parse_hello(const uint8_t *data, size_t length, struct mc_frame *frame, size_t *used)
{
    int rc = mc_frame_parse(data, length, frame, used);
    return *used > MC_FRAME_HEADER_SIZE + MC_HELLO_BODY_MAX ? -1 : rc;
}

static inline size_t mc_frame_begin_at(struct mc_buffer *out, enum mc_message type, uint64_t request_id, uint16_t time)
{
    size_t frame = out->length;
    mc_buffer_put_u32(out, 0);
    mc_buffer_put_u16(out, (uint16_t)type);
    mc_buffer_put_u16(out, time);
    mc_buffer_put_u64(out, request_id);
    return frame;
}
static inline size_t mc_frame_begin(struct mc_buffer *out, enum mc_message type, uint64_t request_id)
{
    return mc_frame_begin_at(out, type, request_id, 0);
}
static inline void mc_frame_end(struct mc_buffer *out, size_t frame)
{
    uint32_t body_length = (uint32_t)(out->length - frame - MC_FRAME_HEADER_SIZE);
    if (!out->failed) /* else some of it is not there, and the buffer is not sent */
        memcpy(out->data + frame, &body_length, 4);
}
static inline size_t mc_list_begin(struct mc_buffer *out)
{
    size_t list = out->length;
    mc_buffer_put_u32(out, 0);
    return list;
}
static inline void mc_list_end(struct mc_buffer *out, size_t list, size_t count)
{
    uint32_t written = (uint32_t)count;
    if (!out->failed)
        memcpy(out->data + list, &written, 4);
}
/* The last list of a frame, and the frame. */
static inline void mc_frame_end_list(struct mc_buffer *out, size_t frame, size_t list, size_t count)
{
    mc_list_end(out, list, count);
    mc_frame_end(out, frame);
}
static inline void mc_list_empty(struct mc_buffer *out)
{
    mc_buffer_put_u32(out, 0);
}
/* Count of the records that follow; 0 and reader->bad when there cannot be so many or more than MC_BATCH_MAX. */
static inline uint32_t mc_list_read(struct mc_reader *reader)
{
    uint32_t count = mc_reader_u32(reader);
    if (count > MC_BATCH_MAX || count > mc_reader_left(reader) / 2) {
        reader->bad = true;
        return 0;
    }
    return count;
}

static inline void mc_wire_put_bytes(struct mc_buffer *out, struct mc_span bytes)
{
    size_t length = bytes.length <= UINT16_MAX ? bytes.length : UINT16_MAX;
    mc_buffer_put_u16(out, (uint16_t)length);
    mc_buffer_append(out, bytes.data, length);
}
static inline struct mc_span mc_wire_get_bytes(struct mc_reader *reader)
{
    size_t length = mc_reader_u16(reader);
    const uint8_t *at = mc_reader_take(reader, length);
    return mc_span(at, at == NULL ? 0 : length);
}
static inline struct mc_id mc_wire_get_id(struct mc_reader *reader)
{
    uint64_t low = mc_reader_u64(reader), high = mc_reader_u64(reader);
    return (struct mc_id){low, high};
}

/* structs */
#define MC_FIELD_U8(name) uint8_t name;
#define MC_FIELD_U16(name) uint16_t name;
#define MC_FIELD_U32(name) uint32_t name;
#define MC_FIELD_U64(name) uint64_t name;
#define MC_FIELD_I32(name) int32_t name;
#define MC_FIELD_ID(name) struct mc_id name;
#define MC_FIELD_BYTES(name) struct mc_span name;
#define MC_RECORD_STRUCT(record)                                                                                       \
    struct mc_wire_##record {                                                                                          \
        uint8_t unused_; /* C has no empty struct */                                                                   \
        MC_RECORD_##record(MC_FIELD_U8, MC_FIELD_U16, MC_FIELD_U32, MC_FIELD_U64, MC_FIELD_I32, MC_FIELD_ID,           \
                           MC_FIELD_BYTES)                                                                             \
    };
MC_RECORDS(MC_RECORD_STRUCT)

/* writers */
#define MC_WRITE_U8(name) mc_buffer_put_u8(out, record->name);
#define MC_WRITE_U16(name) mc_buffer_put_u16(out, record->name);
#define MC_WRITE_U32(name) mc_buffer_put_u32(out, record->name);
#define MC_WRITE_U64(name) mc_buffer_put_u64(out, record->name);
#define MC_WRITE_I32(name) mc_buffer_put_i32(out, record->name);
#define MC_WRITE_ID(name)                                                                                              \
    mc_buffer_put_u64(out, record->name.low);                                                                          \
    mc_buffer_put_u64(out, record->name.high);
#define MC_WRITE_BYTES(name) mc_wire_put_bytes(out, record->name);
#define MC_RECORD_WRITE(type)                                                                                          \
    static inline void mc_wire_##type##_write(struct mc_buffer *out, const struct mc_wire_##type *record)              \
    {                                                                                                                  \
        size_t start = out->length;                                                                                    \
        (void)record;                                                                                                  \
        mc_buffer_put_u16(out, 0);                                                                                     \
        MC_RECORD_##type(MC_WRITE_U8, MC_WRITE_U16, MC_WRITE_U32, MC_WRITE_U64, MC_WRITE_I32, MC_WRITE_ID,             \
                         MC_WRITE_BYTES) uint16_t size = (uint16_t)(out->length - start - 2);                          \
        if (!out->failed)                                                                                              \
            memcpy(out->data + start, &size, 2);                                                                       \
    }                                                                                                                  \
    /* Before the last list of a frame; where that list begins. */                                                     \
    static inline size_t mc_wire_##type##_head(struct mc_buffer *out, const struct mc_wire_##type *record)             \
    {                                                                                                                  \
        mc_wire_##type##_write(out, record);                                                                           \
        return mc_list_begin(out);                                                                                     \
    }                                                                                                                  \
    /* What is all of a frame that was just begun. */                                                                  \
    static inline void mc_wire_##type##_frame(struct mc_buffer *out, size_t frame,                                     \
                                              const struct mc_wire_##type *record)                                     \
    {                                                                                                                  \
        mc_wire_##type##_write(out, record);                                                                           \
        mc_frame_end(out, frame);                                                                                      \
    }
MC_RECORDS(MC_RECORD_WRITE)

/* readers: fields beyond the record's size are zero, what is left of the record is skipped; a size that ends inside a
 * field is bad */
#define MC_READ_U8(name) record->name = mc_reader_left(&in) > 0 ? mc_reader_u8(&in) : 0;
#define MC_READ_U16(name) record->name = mc_reader_left(&in) > 0 ? mc_reader_u16(&in) : 0;
#define MC_READ_U32(name) record->name = mc_reader_left(&in) > 0 ? mc_reader_u32(&in) : 0;
#define MC_READ_U64(name) record->name = mc_reader_left(&in) > 0 ? mc_reader_u64(&in) : 0;
#define MC_READ_I32(name) record->name = mc_reader_left(&in) > 0 ? mc_reader_i32(&in) : 0;
#define MC_READ_ID(name) record->name = mc_reader_left(&in) > 0 ? mc_wire_get_id(&in) : (struct mc_id){0, 0};
#define MC_READ_BYTES(name) record->name = mc_reader_left(&in) > 0 ? mc_wire_get_bytes(&in) : mc_span(NULL, 0);
#define MC_RECORD_READ(type)                                                                                           \
    static inline void mc_wire_##type##_read(struct mc_reader *reader, struct mc_wire_##type *record)                  \
    {                                                                                                                  \
        size_t size = mc_reader_u16(reader);                                                                           \
        const uint8_t *at = mc_reader_take(reader, size);                                                              \
        struct mc_reader in = mc_reader(at, at == NULL ? 0 : size);                                                    \
        record->unused_ = 0;                                                                                           \
        MC_RECORD_##type(MC_READ_U8, MC_READ_U16, MC_READ_U32, MC_READ_U64, MC_READ_I32, MC_READ_ID,                   \
                         MC_READ_BYTES) if (in.bad) reader->bad = true;                                                \
    }
MC_RECORDS(MC_RECORD_READ)

/* A whole message that has an empty head and no lists: PING, PONG, RENEW, ATTACH. */
static inline void mc_frame_bare(struct mc_buffer *out, enum mc_message type, uint64_t request_id)
{
    mc_wire_none_frame(out, mc_frame_begin(out, type, request_id), &(struct mc_wire_none){0});
}

/* Checks that a body is well formed for its type (every record and list whole, nothing behind). 0 or MC_ERR_PROTOCOL.
 */
int mc_wire_check(unsigned type, struct mc_span body);

#endif
