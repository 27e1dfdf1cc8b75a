/* CRC32C (Castagnoli), plain and fused with a copy, and the key hash. */
#ifndef MC_BASE_CHECKSUM_H
#define MC_BASE_CHECKSUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* CRC32C of data, continuing from `crc` (0 to start). mc_crc32c(0, "123456789", 9) == 0xe3069283. */
uint32_t mc_crc32c(uint32_t crc, const void *data, size_t length);
/* How this process does it: "avx512", "sse4.2", "armv8-crc" or "table". */
const char *mc_crc32c_way(void);
/* Is there a way of that name in this build, whether this processor has it or not? */
bool mc_crc32c_knows(const char *way);
/* memcpy and CRC in one pass through the cache; returns the continued CRC of the copy, not of what
 * `source` may have become. */
uint32_t mc_copy_crc32c(void *target, const void *source, size_t length, uint32_t crc);
/* The same for a piece of a long copy: past the caches where the processor can. Faster than memcpy by 10 to 30 % when
 * the target is cold, slower when it is hot. */
uint32_t mc_copy_crc32c_stream(void *target, const void *source, size_t length, uint32_t crc);

struct mc_hash { /* XXH3-128 */
    uint64_t low, high;
};
struct mc_hash mc_hash(const void *data, size_t length);

#endif
