/* What all parts of the core do with its output: log, frames, connections; and its dice. */
#include "store/core/state.h"

#include "store/core/limits.h"
#include "store/core/member.h"

#include <stdarg.h>
#include <stdio.h>
#include <xxhash.h>

#define LINE_MAX_BYTES 512

void mc_core_log(struct mc_core *core, int level, const char *format, ...)
{
    char text[LINE_MAX_BYTES];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (length > 0 && core->output.log != NULL)
        core->output.log(core->output.context, level, text);
}

void mc_core_tell(struct mc_core *core, enum mc_core_topic topic, int level, const char *format, ...)
{
    char text[LINE_MAX_BYTES];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (length > 0 && core->output.log != NULL)
        core->output.log(core->output.context, level, text);
    if (length > 0 && core->output.event != NULL)
        core->output.event(core->output.context, topic, level, text);
}

struct mc_buffer *mc_core_buffer(struct mc_core *core, uint64_t connection)
{
    return core->output.buffer(core->output.context, connection);
}

void mc_core_close(struct mc_core *core, struct mc_connection *connection)
{
    if (connection->closing)
        return;
    connection->closing = true;
    core->output.close(core->output.context, connection->number);
}

void mc_core_malformed(struct mc_core *core, struct mc_connection *connection, const char *what)
{
    core->statistics.protocol_errors++;
    mc_core_log(core, MC_CORE_LOG_WARNING, "connection %llu is closed: %s", (unsigned long long)connection->number,
                what);
    mc_core_close(core, connection);
}

void mc_core_frame_bare(const struct mc_core *core, struct mc_buffer *out, enum mc_message type, uint64_t request_id)
{
    mc_wire_none_frame(out, mc_core_frame(core, out, type, request_id), &(struct mc_wire_none){0});
}

void mc_core_reply_code(struct mc_core *core, uint64_t connection, enum mc_message type, uint64_t request_id,
                        int32_t code)
{
    struct mc_buffer *out = mc_core_buffer(core, connection);
    if (out == NULL)
        return;
    struct mc_wire_code head = {.code = code};
    mc_wire_code_frame(out, mc_core_frame(core, out, type, request_id), &head);
}

void mc_core_reply_failed(struct mc_core *core, uint64_t connection, uint64_t request_id, int32_t code)
{
    struct mc_buffer *out = mc_core_buffer(core, connection);
    if (out == NULL)
        return;
    struct mc_wire_failed head = {.code = code};
    if (code == MC_ERR_BUSY) /* not all at the same time */
        head.retry_after_ms = MC_BUSY_RETRY_MS + (uint32_t)(mc_core_random(core) % MC_BUSY_RETRY_MS);
    mc_wire_failed_frame(out, mc_core_frame(core, out, MC_MESSAGE_FAILED, request_id), &head);
}

void mc_core_send_slots(struct mc_core *core, const struct mc_connection *to, enum mc_message type, uint32_t segment,
                        const struct mc_wire_slot *slots, uint32_t count)
{
    struct mc_buffer *out = to == NULL ? NULL : mc_core_buffer(core, to->number);
    if (out == NULL)
        return;
    struct mc_wire_segment head = {.segment = segment};
    size_t frame = mc_core_frame(core, out, type, 0);
    size_t list = mc_wire_segment_head(out, &head);
    for (uint32_t i = 0; i < count; i++)
        mc_wire_slot_write(out, &slots[i]);
    mc_frame_end_list(out, frame, list, count);
}

uint64_t mc_core_random(struct mc_core *core)
{
    uint64_t value = core->random += 0x9e3779b97f4a7c15ull;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
    return value ^ (value >> 31);
}

uint64_t mc_core_hash_id(const struct mc_core *core, struct mc_id id)
{
    return XXH3_64bits_withSeed(&id, sizeof(id), core->objects.seed);
}
