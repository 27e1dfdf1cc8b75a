/* Objects laid into a segment's memory by hand, as a writer would. */
#ifndef MC_TEST_OBJECT_MAKE_H
#define MC_TEST_OBJECT_MAKE_H

#include "base/checksum.h"
#include "store/segment/memory.h"

#include <string.h>

/* Block table and key behind the data that lie at `offset`, and the slot live. Returns what mc_segment_memory_commit
 * does. */
static inline int object_finish(struct mc_segment_memory *memory, uint32_t slot, uint64_t generation, uint64_t offset,
                                uint64_t length, const char *key, uint8_t flags, uint8_t replica)
{
    uint8_t *data = mc_segment_memory_data(memory) + offset, shift = mc_block_shift(length);
    uint32_t blocks = mc_block_count(length, shift), crc = 0;
    for (uint32_t block = 0; block < blocks; block++) {
        uint64_t from = (uint64_t)block << shift, left = length - from;
        crc = mc_crc32c(0, data + from, (size_t)(left < 1ull << shift ? left : 1ull << shift));
        if (blocks > 1)
            memcpy(data + mc_table_offset(length) + block * 4ull, &crc, 4);
    }
    if (blocks > 1)
        crc = mc_crc32c(0, data + mc_table_offset(length), mc_table_length(length, shift));
    memcpy(data + mc_key_offset(length), key, strlen(key));
    struct mc_hash hash = mc_hash(key, strlen(key));
    struct mc_wire_commit_item commit = {.slot = slot,
                                         .crc = crc,
                                         .generation = generation,
                                         .offset = offset,
                                         .length = length,
                                         .hash_low = hash.low,
                                         .hash_high = hash.high,
                                         .key_length = (uint16_t)strlen(key),
                                         .block_shift = shift,
                                         .flags = flags,
                                         .replica = replica};
    return mc_segment_memory_commit(memory, &commit);
}

/* The data, too. */
static inline int object_make_as(struct mc_segment_memory *memory, uint32_t slot, uint64_t generation, uint64_t offset,
                                 uint64_t length, const char *key, uint8_t flags, uint8_t replica)
{
    uint8_t *data = mc_segment_memory_data(memory) + offset;
    for (uint64_t i = 0; i < length; i++)
        data[i] = (uint8_t)((i * 2654435761u + slot) >> 9);
    return object_finish(memory, slot, generation, offset, length, key, flags, replica);
}

static inline int object_make(struct mc_segment_memory *memory, uint32_t slot, uint64_t generation, uint64_t offset,
                              uint64_t length, const char *key)
{
    return object_make_as(memory, slot, generation, offset, length, key, (uint8_t)(slot % 3), (uint8_t)(slot % 2));
}

#endif
