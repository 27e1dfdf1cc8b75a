/* The handshake's frame codec. */
#include "transfer/wire/handshake.h"

#include "base/error.h"
#include "env/json.h"

#include <stdlib.h>

#define LENGTH_BYTES 8u

int mc_handshake_read(struct mc_span bytes, uint64_t limit, struct mc_handshake *frame)
{
    struct mc_reader reader = mc_reader(bytes.data, bytes.length);
    uint64_t length = mc_reader_u64(&reader);
    if (reader.bad)
        return 0;
    if (length == 0 || length > limit)
        return MC_ERR_PROTOCOL;
    uint8_t first = mc_reader_u8(&reader);
    if (reader.bad)
        return 0;
    bool is_old = first == '{';
    if (!is_old && first >= MC_HANDSHAKE_TYPES)
        return MC_ERR_PROTOCOL;
    if (bytes.length - LENGTH_BYTES < length)
        return 0;
    const char *body = (const char *)bytes.data + LENGTH_BYTES;
    *frame = (struct mc_handshake){is_old ? MC_HANDSHAKE_CONNECTION : (enum mc_handshake_type)first, is_old,
                                   mc_span(body + (is_old ? 0 : 1), (size_t)length - (is_old ? 0 : 1))};
    return 1;
}

void mc_handshake_write(struct mc_buffer *out, enum mc_handshake_type type, bool is_old, struct mc_span json)
{
    mc_buffer_put_u64(out, json.length + (is_old ? 0 : 1));
    if (!is_old)
        mc_buffer_put_u8(out, (uint8_t)type);
    mc_buffer_append(out, json.data, json.length);
}

static int take_text(const struct mc_json_cursor *member, char **text)
{
    free(*text);
    *text = malloc(member->value.length + 1);
    if (*text == NULL)
        return MC_ERR_NO_MEMORY;
    return mc_json_text(member, *text, member->value.length + 1);
}

int mc_handshake_read_note(struct mc_span json, char **name, char **message)
{
    struct mc_json_cursor member;
    int rc = mc_json_open(json, '{', &member);
    *name = NULL;
    *message = NULL;
    while (rc == 0 && (rc = mc_json_next(&member)) == 1) {
        rc = 0;
        if (mc_json_is(member.name, "name"))
            rc = take_text(&member, name);
        else if (mc_json_is(member.name, "notify_msg"))
            rc = take_text(&member, message);
    }
    if (rc == 0 && *name != NULL && *message != NULL)
        return 0;
    free(*name);
    free(*message);
    *name = NULL;
    *message = NULL;
    return rc < 0 ? rc : MC_ERR_PROTOCOL;
}

void mc_handshake_write_note(struct mc_buffer *out, const char *name, const char *message)
{
    mc_buffer_printf(out, "{\"name\":");
    mc_json_put_text(out, name);
    mc_buffer_printf(out, ",\"notify_msg\":");
    mc_json_put_text(out, message);
    mc_buffer_append(out, "}", 1);
}
