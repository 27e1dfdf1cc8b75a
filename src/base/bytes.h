/* Growable byte buffer and bounds-checked reader. Little-endian hosts only (checked at build).
 * A buffer owns its memory; a reader borrows. A reader that met its end has `bad` set and returns zeros from then on.
 */
#ifndef MC_BASE_BYTES_H
#define MC_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "little-endian hosts only");

struct mc_span { /* borrowed bytes */
    const void *data;
    size_t length;
};

static inline struct mc_span mc_span(const void *data, size_t length)
{
    return (struct mc_span){data, length};
}
static inline struct mc_span mc_span_string(const char *text)
{
    return (struct mc_span){text, strlen(text)};
}
static inline bool mc_span_equal(struct mc_span a, struct mc_span b)
{
    return a.length == b.length && (a.length == 0 || memcmp(a.data, b.data, a.length) == 0);
}

/* Bytes of the UTF-8 character that text begins with, of at least one byte; 0: none does. */
size_t mc_utf8_length(const uint8_t *text, size_t length);
#define MC_UTF8_UNKNOWN "\xef\xbf\xbd" /* U+FFFD */

/* The value of a hexadecimal digit, or -1. */
static inline int mc_hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1;
}

struct mc_id { /* 16 random bytes: node ids, segment ids, host ids */
    uint64_t low, high;
};
static inline bool mc_id_equal(struct mc_id a, struct mc_id b)
{
    return a.low == b.low && a.high == b.high;
}
static inline bool mc_id_is_zero(struct mc_id a)
{
    return a.low == 0 && a.high == 0;
}

/* A member as people see it, in logs and in JSON: two decimal numbers, as the original's ids. */
#define MC_ID_LOG "%llu-%llu"
#define MC_ID_LOG_ARGS(id) (unsigned long long)(id).high, (unsigned long long)(id).low

#define MC_ID_TEXT_MAX 33u /* 32 hex digits and the end */
void mc_id_format(char text[MC_ID_TEXT_MAX], struct mc_id id);
/* False when it is anything but 32 hex digits. */
bool mc_id_parse(const char *text, struct mc_id *id);

struct mc_buffer { /* zeroed = empty and valid */
    uint8_t *data;
    size_t length, capacity;
    /* What happens when memory is out. Not may_fail: the process is aborted; of buffers whose size no peer and no
     * caller chooses. may_fail: the buffer is `failed` until it is freed, and what did not fit is not there. Whoever
     * set it looks before it uses the content, and gives up the connection or the call that it was for. */
    bool may_fail, failed;
};

/* Makes room for `more` bytes behind length; false when the buffer has failed. */
bool mc_buffer_reserve_slow(struct mc_buffer *buffer, size_t more);
/* Empty, valid and not failed any more; may_fail stays. */
void mc_buffer_free(struct mc_buffer *buffer);
/* Drops the first `count` bytes. */
void mc_buffer_consume(struct mc_buffer *buffer, size_t count);
/* Appends the text; each byte of it that is not UTF-8 becomes U+FFFD. */
void mc_buffer_put_utf8(struct mc_buffer *buffer, const void *text, size_t length);
/* Appends text; its terminator is not counted. */
void mc_buffer_printf(struct mc_buffer *buffer, const char *format, ...) __attribute__((format(printf, 2, 3)));

static inline bool mc_buffer_reserve(struct mc_buffer *buffer, size_t more)
{
    return buffer->capacity - buffer->length >= more || mc_buffer_reserve_slow(buffer, more);
}
static inline void mc_buffer_append(struct mc_buffer *buffer, const void *data, size_t length)
{
    if (length == 0 || !mc_buffer_reserve(buffer, length))
        return;
    memcpy(buffer->data + buffer->length, data, length);
    buffer->length += length;
}
#define MC_BUFFER_PUT(name, type)                                                                                      \
    static inline void mc_buffer_put_##name(struct mc_buffer *buffer, type value)                                      \
    {                                                                                                                  \
        mc_buffer_append(buffer, &value, sizeof(value));                                                               \
    }
MC_BUFFER_PUT(u8, uint8_t)
MC_BUFFER_PUT(u16, uint16_t)
MC_BUFFER_PUT(u32, uint32_t)
MC_BUFFER_PUT(u64, uint64_t)
MC_BUFFER_PUT(i32, int32_t)
#undef MC_BUFFER_PUT

struct mc_reader {
    const uint8_t *at, *end;
    bool bad;
};
static inline struct mc_reader mc_reader(const void *data, size_t length)
{
    const uint8_t *at = data;
    return (struct mc_reader){at, length == 0 ? at : at + length, false}; /* nothing may lie nowhere */
}
static inline size_t mc_reader_left(const struct mc_reader *reader)
{
    return (size_t)(reader->end - reader->at);
}
static inline const uint8_t *mc_reader_take(struct mc_reader *reader, size_t length)
{
    const uint8_t *at = reader->at;
    if (mc_reader_left(reader) < length) {
        reader->bad = true;
        reader->at = reader->end;
        return NULL;
    }
    reader->at += length;
    return at;
}
#define MC_READER_GET(name, type)                                                                                      \
    static inline type mc_reader_##name(struct mc_reader *reader)                                                      \
    {                                                                                                                  \
        type value = 0;                                                                                                \
        const uint8_t *at = mc_reader_take(reader, sizeof(value));                                                     \
        if (at != NULL)                                                                                                \
            memcpy(&value, at, sizeof(value));                                                                         \
        return value;                                                                                                  \
    }
MC_READER_GET(u8, uint8_t)
MC_READER_GET(u16, uint16_t)
MC_READER_GET(u32, uint32_t)
MC_READER_GET(u64, uint64_t)
MC_READER_GET(i32, int32_t)
#undef MC_READER_GET

#endif
