/* SipHash-2-4, after its authors' paper (Aumasson, Bernstein 2012). */
#include "base/siphash.h"

#include <string.h>

struct state {
    uint64_t a, b, c, d;
};

static uint64_t rotate(uint64_t word, unsigned bits)
{
    return word << bits | word >> (64 - bits);
}

static void rounds(struct state *state, unsigned count)
{
    for (; count > 0; count--) {
        state->a += state->b;
        state->c += state->d;
        state->b = rotate(state->b, 13) ^ state->a;
        state->d = rotate(state->d, 16) ^ state->c;
        state->a = rotate(state->a, 32) + state->d;
        state->c += state->b;
        state->d = rotate(state->d, 21) ^ state->a;
        state->b = rotate(state->b, 17) ^ state->c;
        state->c = rotate(state->c, 32);
    }
}

static void state_take(struct state *state, uint64_t word)
{
    state->d ^= word;
    rounds(state, 2);
    state->a ^= word;
}

uint64_t mc_siphash(const uint8_t key[MC_SIPHASH_KEY_BYTES], const void *data, size_t length)
{
    const uint8_t *at = data;
    uint64_t low, high, word, last = (uint64_t)length << 56;
    memcpy(&low, key, sizeof(low));
    memcpy(&high, key + sizeof(low), sizeof(high));
    struct state state = {low ^ 0x736f6d6570736575u, high ^ 0x646f72616e646f6du, low ^ 0x6c7967656e657261u,
                          high ^ 0x7465646279746573u};
    for (size_t left = length; left >= sizeof(word); left -= sizeof(word), at += sizeof(word)) {
        memcpy(&word, at, sizeof(word));
        state_take(&state, word);
    }
    for (size_t i = 0; i < length % sizeof(word); i++)
        last |= (uint64_t)at[i] << 8 * i;
    state_take(&state, last);
    state.c ^= 0xff;
    rounds(&state, 4);
    return state.a ^ state.b ^ state.c ^ state.d;
}
