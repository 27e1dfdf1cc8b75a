/* The words of subscribers. */
#include "store/master/zmtp.h"

#include <endian.h>
#include <string.h>

#define CONTEXT_MAX 16u
#define PING_HEAD 7u /* its name, and how long it is good for */

static bool begins(const uint8_t *body, size_t length, const char *name)
{
    size_t size = strlen(name);
    return length > size && body[0] == size && memcmp(body + 1, name, size) == 0;
}

static enum mc_zmtp_word command(const uint8_t *body, size_t length, struct mc_span *argument)
{
    static const struct {
        const char *name;
        enum mc_zmtp_word word;
        size_t head;
    } commands[] = {{"READY", MC_ZMTP_READY, 6},
                    {"SUBSCRIBE", MC_ZMTP_SUBSCRIBE, 10},
                    {"CANCEL", MC_ZMTP_CANCEL, 7},
                    {"PING", MC_ZMTP_PING, PING_HEAD},
                    {"ERROR", MC_ZMTP_ERROR, 6}};
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (!begins(body, length, commands[i].name) || length < commands[i].head)
            continue;
        *argument = mc_span(body + commands[i].head, length - commands[i].head);
        bool is_too_long = commands[i].word == MC_ZMTP_PING && argument->length > CONTEXT_MAX;
        return is_too_long ? MC_ZMTP_OTHER : commands[i].word;
    }
    return MC_ZMTP_OTHER;
}

size_t mc_zmtp_frame(const uint8_t *in, size_t length, uint8_t *flags, struct mc_span *body)
{
    size_t head = length > 0 && (in[0] & MC_ZMTP_LONG) != 0 ? 9 : 2;
    if (length < head)
        return 0;
    uint64_t size = in[1];
    if (head == 9) {
        memcpy(&size, in + 1, sizeof(size));
        size = be64toh(size);
    }
    if (size > MC_ZMTP_BODY_MAX || (in[0] & ~(MC_ZMTP_MORE | MC_ZMTP_LONG | MC_ZMTP_COMMAND)) != 0)
        return MC_ZMTP_NO_FRAME;
    if (length < head + size)
        return 0;
    *flags = in[0];
    *body = mc_span(in + head, (size_t)size);
    return head + (size_t)size;
}

static size_t take_frame(const uint8_t *in, size_t length, enum mc_zmtp_word *word, struct mc_span *argument)
{
    uint8_t flags = 0;
    struct mc_span frame = {NULL, 0};
    size_t used = mc_zmtp_frame(in, length, &flags, &frame);
    const uint8_t *body = frame.data;
    if (used == MC_ZMTP_NO_FRAME)
        *word = MC_ZMTP_WRONG;
    if (used == 0 || used == MC_ZMTP_NO_FRAME)
        return 0;
    if ((flags & MC_ZMTP_COMMAND) != 0) {
        *word = command(body, frame.length, argument);
    } else if (frame.length > 0 && body[0] <= 1) { /* as ZMTP 3.0 says it; a command does since 3.1 */
        *word = body[0] == 1 ? MC_ZMTP_SUBSCRIBE : MC_ZMTP_CANCEL;
        *argument = mc_span(body + 1, frame.length - 1);
    }
    return used;
}

size_t mc_zmtp_take(const uint8_t *in, size_t length, bool is_greeted, enum mc_zmtp_word *word,
                    struct mc_span *argument)
{
    static const char null[20] = "NULL";
    *word = MC_ZMTP_OTHER;
    *argument = mc_span(NULL, 0);
    if (is_greeted)
        return take_frame(in, length, word, argument);
    if (length < MC_ZMTP_GREETING_BYTES)
        return 0;
    bool is_ours = in[0] == 0xff && in[9] == 0x7f && in[10] >= 3 && memcmp(in + 12, null, sizeof(null)) == 0;
    *word = is_ours ? MC_ZMTP_GREETED : MC_ZMTP_WRONG;
    return is_ours ? MC_ZMTP_GREETING_BYTES : 0;
}

size_t mc_zmtp_pong(uint8_t out[MC_ZMTP_PONG_MAX], struct mc_span context)
{
    static const uint8_t head[7] = {MC_ZMTP_COMMAND, 0, 4, 'P', 'O', 'N', 'G'};
    memcpy(out, head, sizeof(head));
    out[1] = (uint8_t)(sizeof(head) - 2 + context.length);
    if (context.length > 0)
        memcpy(out + sizeof(head), context.data, context.length);
    return sizeof(head) + context.length;
}
