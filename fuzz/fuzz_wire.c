/* A stream of bytes as a connection brings it: split into frames, every frame checked for every use, its
 * head record read and written again. Also: whatever does not parse is taken as the body of a message whose type is its
 * first two bytes. */
#include "base/error.h"
#include "store/wire/wire.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What was read and written again must be read the same: the second writing is compared with the first. */
#define REWRITE(type)                                                                                                  \
    static void rewrite_##type(struct mc_span body)                                                                    \
    {                                                                                                                  \
        struct mc_wire_##type record;                                                                                  \
        struct mc_buffer first = {0}, second = {0};                                                                    \
        struct mc_reader reader = mc_reader(body.data, body.length);                                                   \
        mc_wire_##type##_read(&reader, &record);                                                                       \
        if (!reader.bad) {                                                                                             \
            mc_wire_##type##_write(&first, &record);                                                                   \
            reader = mc_reader(first.data, first.length);                                                              \
            mc_wire_##type##_read(&reader, &record);                                                                   \
            mc_assert(!reader.bad);                                                                                    \
            mc_wire_##type##_write(&second, &record);                                                                  \
            mc_assert(mc_span_equal(mc_span(first.data, first.length), mc_span(second.data, second.length)));          \
        }                                                                                                              \
        mc_buffer_free(&second);                                                                                       \
        mc_buffer_free(&first);                                                                                        \
    }
MC_RECORDS(REWRITE)

static void run_message(unsigned type, struct mc_span body)
{
    int rc = mc_wire_check(type, body);
    mc_assert(rc == 0 || rc == MC_ERR_PROTOCOL);
#define REWRITE_CALL(name) rewrite_##name(body);
    MC_RECORDS(REWRITE_CALL)
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mc_frame frame;
    size_t used;
    while (mc_frame_parse(data, size, &frame, &used) == 1) {
        run_message(frame.type, frame.body);
        data += used;
        size -= used;
    }
    if (size >= 2)
        run_message((unsigned)(data[0] | data[1] << 8), mc_span(data + 2, size - 2));
    return 0;
}
