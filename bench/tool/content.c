/* Deterministic block content. A word is x ^ (x >> 31) with x = start + place * step: additions, shifts and
 * exclusive-or only, which every vector unit does; start and (odd) step come from a strong mix of seed and id, so that
 * two blocks share no run of words. */
#include "tool/content.h"

#include <string.h>

#define LANES 8
#define GROUP (LANES * sizeof(uint64_t))
#define UNROLL 64 /* groups between two looks at the comparison: 4 KiB */

typedef uint64_t lanes __attribute__((vector_size(GROUP)));

struct stream {
    lanes next; /* x of the next group's words */
    lanes step; /* what a group adds */
};

static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static void stream_open(struct stream *stream, uint64_t seed, uint64_t block_id)
{
    uint64_t start = mix(seed ^ mix(block_id));
    uint64_t step = mix(start) | 1;
    for (unsigned i = 0; i < LANES; i++) {
        stream->next[i] = start + i * step;
        stream->step[i] = LANES * step;
    }
}

/* By pointer: a 64-byte vector as a value would change the ABI between machines. */
static inline void stream_take(struct stream *stream, lanes *words)
{
    *words = stream->next ^ (stream->next >> 31);
    stream->next += stream->step;
}

void mc_content_fill(uint64_t seed, uint64_t block_id, void *target, size_t length)
{
    struct stream stream;
    lanes words;
    uint8_t *at = target;
    stream_open(&stream, seed, block_id);
    for (; length >= GROUP; length -= GROUP, at += GROUP) {
        stream_take(&stream, &words);
        memcpy(at, &words, GROUP);
    }
    stream_take(&stream, &words);
    memcpy(at, &words, length);
}

static size_t count_differing(const uint8_t *a, const uint8_t *b, size_t length)
{
    size_t count = 0;
    for (size_t i = 0; i < length; i++)
        count += a[i] != b[i];
    return count;
}

static size_t check_slowly(struct stream *stream, const uint8_t *at, size_t groups)
{
    size_t wrong = 0;
    lanes words;
    for (size_t i = 0; i < groups; i++, at += GROUP) {
        stream_take(stream, &words);
        wrong += count_differing((const uint8_t *)&words, at, GROUP);
    }
    return wrong;
}

size_t mc_content_check(uint64_t seed, uint64_t block_id, const void *bytes, size_t length)
{
    struct stream stream;
    lanes words, got;
    const uint8_t *at = bytes;
    size_t wrong = 0;
    stream_open(&stream, seed, block_id);
    for (; length >= GROUP * UNROLL; length -= GROUP * UNROLL, at += GROUP * UNROLL) {
        struct stream before = stream;
        lanes differing = {0};
        for (size_t i = 0; i < UNROLL; i++) {
            stream_take(&stream, &words);
            memcpy(&got, at + i * GROUP, GROUP);
            differing |= words ^ got;
        }
        uint64_t any = 0;
        for (unsigned i = 0; i < LANES; i++)
            any |= differing[i];
        if (any != 0)
            wrong += check_slowly(&before, at, UNROLL);
    }
    size_t groups = length / GROUP;
    wrong += check_slowly(&stream, at, groups);
    stream_take(&stream, &words);
    return wrong + count_differing((const uint8_t *)&words, at + groups * GROUP, length % GROUP);
}
