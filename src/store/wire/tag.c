/* MACs of places. */
#include "store/wire/tag.h"

#define WRITE (UINT64_C(1) << 48)
#define READ (UINT64_C(2) << 48)
#define MARK UINT64_C(1)

uint64_t mc_tag_write(const uint8_t key[MC_TAG_KEY_BYTES], const struct mc_tagged *what)
{
    const uint64_t words[] = {WRITE | (uint64_t)what->key_length << 32 | what->slot,
                              what->generation,
                              what->offset,
                              what->length,
                              what->hash_low,
                              what->hash_high,
                              what->holder.low,
                              what->holder.high};
    return mc_siphash(key, words, sizeof(words)) & ~MARK;
}

uint64_t mc_tag_read(const uint8_t key[MC_TAG_KEY_BYTES], const struct mc_tagged *what)
{
    const uint64_t words[] = {READ | what->slot, what->generation, what->holder.low, what->holder.high};
    return mc_siphash(key, words, sizeof(words)) & ~MARK;
}
