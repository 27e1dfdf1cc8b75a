/* What a block holds: a function of (seed, block id, offset) alone, so that any process can make and check it at the
 * speed of memory. Each 8-byte word depends on the id and on its place; bytes of another block, another place or
 * another run do not pass. */
#ifndef MC_TOOL_CONTENT_H
#define MC_TOOL_CONTENT_H

#include <stddef.h>
#include <stdint.h>

/* Writes the first `length` bytes of the block. */
void mc_content_fill(uint64_t seed, uint64_t block_id, void *target, size_t length);
/* Compares every byte; returns how many differ. */
size_t mc_content_check(uint64_t seed, uint64_t block_id, const void *bytes, size_t length);

#endif
