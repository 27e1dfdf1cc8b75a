/* SipHash-2-4: a keyed hash of short messages, of which nobody without the key can make another. */
#ifndef MC_BASE_SIPHASH_H
#define MC_BASE_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

#define MC_SIPHASH_KEY_BYTES 16u

uint64_t mc_siphash(const uint8_t key[MC_SIPHASH_KEY_BYTES], const void *data, size_t length);

#endif
