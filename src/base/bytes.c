#include "base/bytes.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

bool mc_buffer_reserve_slow(struct mc_buffer *buffer, size_t more)
{
    size_t capacity = buffer->capacity < 256 ? 256 : buffer->capacity;
    while (capacity - buffer->length < more && capacity <= SIZE_MAX / 2)
        capacity *= 2;
    uint8_t *data = buffer->failed || capacity - buffer->length < more ? NULL : realloc(buffer->data, capacity);
    if (data == NULL) {
        if (!buffer->may_fail)
            abort();
        buffer->failed = true;
        return false;
    }
    buffer->data = data;
    buffer->capacity = capacity;
    return true;
}

void mc_buffer_free(struct mc_buffer *buffer)
{
    free(buffer->data);
    *buffer = (struct mc_buffer){.may_fail = buffer->may_fail};
}

void mc_buffer_consume(struct mc_buffer *buffer, size_t count)
{
    if (count >= buffer->length) {
        buffer->length = 0;
        return;
    }
    memmove(buffer->data, buffer->data + count, buffer->length - count);
    buffer->length -= count;
}

void mc_buffer_printf(struct mc_buffer *buffer, const char *format, ...)
{
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (length < 0)
        abort();
    if (mc_buffer_reserve(buffer, (size_t)length + 1)) {
        vsnprintf((char *)buffer->data + buffer->length, (size_t)length + 1, format, again);
        buffer->length += (size_t)length;
    }
    va_end(again);
}

void mc_id_format(char text[MC_ID_TEXT_MAX], struct mc_id id)
{
    (void)snprintf(text, MC_ID_TEXT_MAX, "%016llx%016llx", (unsigned long long)id.high, (unsigned long long)id.low);
}

bool mc_id_parse(const char *text, struct mc_id *id)
{
    uint64_t halves[2] = {0, 0};
    if (strlen(text) != MC_ID_TEXT_MAX - 1)
        return false;
    for (unsigned i = 0; i < MC_ID_TEXT_MAX - 1; i++) {
        int digit = mc_hex_digit(text[i]);
        if (digit < 0)
            return false;
        halves[i / 16] = halves[i / 16] << 4 | (unsigned)digit;
    }
    *id = (struct mc_id){halves[1], halves[0]};
    return true;
}

size_t mc_utf8_length(const uint8_t *text, size_t length)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t size = text[0] < 0x80             ? 1
                  : (text[0] & 0xe0) == 0xc0 ? 2
                  : (text[0] & 0xf0) == 0xe0 ? 3
                  : (text[0] & 0xf8) == 0xf0 ? 4
                                             : 0;
    if (size <= 1 || size > length)
        return size == 1 ? 1 : 0;
    uint32_t point = text[0] & (0x7fu >> size);
    for (size_t i = 1; i < size; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
        point = point << 6 | (text[i] & 0x3fu);
    }
    return point < least[size] || point > 0x10ffff || (point >= 0xd800 && point < 0xe000) ? 0 : size;
}

void mc_buffer_put_utf8(struct mc_buffer *buffer, const void *text, size_t length)
{
    const uint8_t *at = text;
    for (size_t i = 0, size; i < length; i += size == 0 ? 1 : size) {
        size = mc_utf8_length(at + i, length - i);
        mc_buffer_append(buffer, size == 0 ? (const void *)MC_UTF8_UNKNOWN : at + i, size == 0 ? 3 : size);
    }
}
