/* Tags: what binds a place to whom the master gave it, and for what.
 *
 * An owner that wants tags draws a key and tells it to the master with its MOUNT. With each place there the master
 * tells a tag, a MAC under that key of the place, of the right (to write once, or to read), and of the node that it is
 * for; that node's COMMIT, WRITE and READ repeat it. The owner, which knows by the ticket who is at the other end,
 * computes the tag again from what it is asked to do. A place that is to be written is bound as a whole, with the hash
 * of the key that lies behind the value; one that is read is named by slot and generation, as these are given once: the
 * rest the owner knows better than who asks.
 *
 * Bit 0 of a tag is no part of the MAC: it is the mark of the key, by which its owner tells it from the one before. */
#ifndef MC_WIRE_TAG_H
#define MC_WIRE_TAG_H

#include "base/bytes.h"
#include "base/siphash.h"

#define MC_TAG_KEY_BYTES MC_SIPHASH_KEY_BYTES

struct mc_tagged { /* a place that may be written, or of which slot and generation may be read */
    struct mc_id holder;
    uint32_t slot;
    uint16_t key_length; /* from here on: of what is written only */
    uint64_t generation, offset, length;
    uint64_t hash_low, hash_high; /* of the key */
};

uint64_t mc_tag_write(const uint8_t key[MC_TAG_KEY_BYTES], const struct mc_tagged *what);
uint64_t mc_tag_read(const uint8_t key[MC_TAG_KEY_BYTES], const struct mc_tagged *what);
static inline unsigned mc_tag_mark(uint64_t tag)
{
    return tag & 1;
}
static inline uint64_t mc_tag_marked(uint64_t tag, unsigned mark)
{
    return tag | (mark & 1);
}
/* Takes as long whatever differs. */
static inline bool mc_tag_equal(uint64_t a, uint64_t b)
{
    return (a ^ b) == 0;
}

#endif
