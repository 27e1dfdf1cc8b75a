/* Bytes of a device's memory, one copy ahead of who takes them. */
#include "store/path/device_stream.h"

#include "base/error.h"

#define REFUSED MC_DEVICE_REFUSED
#define AT_ONCE MC_GPU_UNIT_SMALL /* so that the first bytes are there soon, and a sum goes on beside the next copy */

int mc_device_copy_parts(struct mc_gpu_finder *finder, struct mc_gpu_lane *lane, struct mc_cursor *cursor,
                         uint8_t *host, uint64_t length, bool to_parts)
{
    int rc = 0;
    while (length > 0 && rc == 0) {
        size_t taken;
        uint8_t *part = mc_cursor_take(cursor, length, &taken);
        if (taken == 0)
            return REFUSED; /* the parts are too short */
        uint8_t *to = to_parts ? part : host, *from = to_parts ? host : part;
        struct mc_gpu_place place = mc_gpu_find(finder, part);
        if (place.kind == MC_GPU_HOST)
            memcpy(to, from, taken);
        else
            rc = mc_gpu_start_any(lane, place.number, to, from, taken);
        host += taken;
        length -= taken;
    }
    return rc < 0 ? REFUSED : 0;
}

static int stream_fetch(struct mc_device_stream *stream, unsigned unit)
{
    size_t length = stream->left < stream->at_once ? (size_t)stream->left : stream->at_once;
    stream->lengths[unit] = length;
    stream->left -= length;
    if (length == 0)
        return 0;
    int rc =
        mc_device_copy_parts(stream->finder, stream->lane, &stream->cursor, stream->lane->units[unit], length, false);
    return rc < 0 ? rc : mc_gpu_mark(stream->lane, unit) < 0 ? REFUSED : 0;
}

static int stream_begin(struct mc_device_stream *stream)
{
    stream->begun = true;
    if (stream->lane == NULL)
        stream->lane = mc_gpu_take(stream->device);
    if (stream->lane == NULL)
        return MC_ERR_NO_MEMORY;
    stream->at_once = stream->lane->unit_bytes < AT_ONCE ? stream->lane->unit_bytes : AT_ONCE;
    mc_assert(stream->at_once >= MC_SOURCE_HELD_BYTES);
    int rc = stream_fetch(stream, 0);
    if (rc == 0)
        rc = stream_fetch(stream, 1);
    return rc < 0 ? rc : mc_gpu_wait(stream->lane, 0) < 0 ? REFUSED : 0;
}

/* The current unit was taken whole, so what was taken before it is in nobody's hands any more. */
static int stream_switch(struct mc_device_stream *stream)
{
    unsigned other = stream->current ^ 1;
    int rc = stream->refill ? stream_fetch(stream, other) : 0;
    if (rc < 0)
        return rc;
    if (stream->lengths[other] == 0)
        return REFUSED; /* more is wanted than there is */
    stream->current = other;
    stream->at = 0;
    stream->refill = true;
    return mc_gpu_wait(stream->lane, other) < 0 ? REFUSED : 0;
}

static const uint8_t *stream_take(struct mc_source *source, uint64_t want, size_t *length)
{
    static const uint8_t zeros[4096];
    struct mc_device_stream *stream = (struct mc_device_stream *)source; /* its first member */
    if (source->result == 0 && !stream->begun)
        source->result = stream_begin(stream);
    if (source->result == 0 && stream->at == stream->lengths[stream->current])
        source->result = stream_switch(stream);
    if (source->result == 0 && stream->refill && stream->at >= MC_SOURCE_HELD_BYTES) {
        stream->refill = false;
        source->result = stream_fetch(stream, stream->current ^ 1);
    }
    if (source->result < 0) {
        *length = want < sizeof(zeros) ? (size_t)want : sizeof(zeros);
        return zeros;
    }
    size_t there = stream->lengths[stream->current] - stream->at;
    const uint8_t *bytes = stream->lane->units[stream->current] + stream->at;
    *length = want < there ? (size_t)want : there;
    stream->at += *length;
    return bytes;
}

struct mc_device_stream mc_device_stream(struct mc_gpu_finder *finder, int device, struct mc_gpu_lane *lane,
                                         struct mc_cursor cursor, uint64_t length)
{
    return (struct mc_device_stream){.source = {.take = stream_take},
                                     .finder = finder,
                                     .device = device,
                                     .lane = lane,
                                     .cursor = cursor,
                                     .left = length};
}

void mc_device_stream_end(struct mc_device_stream *stream, bool is_own_lane)
{
    if (stream->lane == NULL)
        return;
    if (mc_gpu_finish(stream->lane) < 0 && stream->source.result == 0) /* after a failure some may be under way still */
        stream->source.result = REFUSED;
    if (is_own_lane)
        mc_gpu_give(stream->lane);
}
