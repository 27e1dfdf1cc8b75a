/* What subscribers of KV events say. The first byte is the size of the pieces in which it comes; the rest is a
 * connection from its greeting on. */
#include "base/error.h"
#include "store/master/zmtp.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct heard {
    size_t words, used;
    bool is_over;
    uint64_t sum; /* of all words and their arguments */
};

static void add(struct heard *heard, enum mc_zmtp_word word, struct mc_span argument)
{
    heard->words++;
    heard->sum = heard->sum * 31 + (uint64_t)word + 1;
    for (size_t i = 0; i < argument.length; i++)
        heard->sum = heard->sum * 31 + ((const uint8_t *)argument.data)[i];
}

/* As a connection's thread does it: what came is kept until it is a whole word. */
static struct heard hear(const uint8_t *data, size_t size, size_t piece)
{
    struct heard heard = {0};
    uint8_t in[MC_ZMTP_IN_MAX], pong[MC_ZMTP_PONG_MAX];
    size_t length = 0;
    bool is_greeted = false;
    for (size_t at = 0; at < size && !heard.is_over;) {
        size_t room = sizeof(in) - length, more = size - at < piece ? size - at : piece;
        mc_assert(room > 0); /* else a word that is never whole would stop the connection for ever */
        more = more < room ? more : room;
        memcpy(in + length, data + at, more);
        at += more;
        length += more;
        for (size_t used = 1; used > 0 && !heard.is_over;) {
            enum mc_zmtp_word word;
            struct mc_span argument;
            used = mc_zmtp_take(in, length, is_greeted, &word, &argument);
            mc_assert(used <= length && (word != MC_ZMTP_WRONG || used == 0));
            mc_assert(used > 0 || argument.length == 0);
            mc_assert(argument.length == 0 || ((const uint8_t *)argument.data >= in &&
                                               (const uint8_t *)argument.data + argument.length <= in + used));
            mc_assert((word == MC_ZMTP_GREETED) == (!is_greeted && used > 0));
            if (word == MC_ZMTP_PING)
                mc_assert(mc_zmtp_pong(pong, argument) == 7 + argument.length && pong[1] == 5 + argument.length);
            is_greeted = is_greeted || word == MC_ZMTP_GREETED;
            heard.is_over = word == MC_ZMTP_WRONG || word == MC_ZMTP_ERROR;
            if (used > 0 || heard.is_over)
                add(&heard, word, argument);
            heard.used += used;
            length -= used;
            memmove(in, in + used, length);
        }
    }
    return heard;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    size_t piece = data[0] == 0 ? 1 : data[0];
    struct heard whole = hear(data + 1, size - 1, size), pieces = hear(data + 1, size - 1, piece);
    /* How it comes does not change what it is. */
    mc_assert(whole.words == pieces.words && whole.sum == pieces.sum && whole.used == pieces.used &&
              whole.is_over == pieces.is_over);
    return 0;
}
