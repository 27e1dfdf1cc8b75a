/* Which keys went lately, why, and what was evicted from where: four bytes for each, half as many again as there are
 * objects.
 *
 * A table of buckets of one cache line, addressed by the hash of the key, which is kept shortened to 19 bits: one in
 * some ten thousand keys that are new is taken for one that was here. An age in 8 bits, which steps with every
 * sixteenth of as many keys that go as there are objects, ends an entry after 24 of those steps; when a step began is
 * remembered, and so within what time a key went. The table doubles as the objects become more, by chunks that are
 * allocated when the first entry comes there, and nothing is moved: entries that are looked for in another bucket since
 * are forgotten. So it has between 6 and 12 bytes for each object, only once something went, and never more than
 * MC_GHOST_CHUNKS chunks of 64 KiB (1 GiB). When memory is out it remembers less. */
#ifndef MC_CORE_GHOST_H
#define MC_CORE_GHOST_H

#include "store/core/gone.h"

#include <stdint.h>

#define MC_GHOST_ENTRIES 16u        /* of a bucket */
#define MC_GHOST_CHUNK 1024u        /* buckets that are allocated together: 64 KiB */
#define MC_GHOST_CHUNKS (16u << 10) /* a power of two */
#define MC_GHOST_OBJECT_STEPS 16u   /* of age, while as many are evicted as there are objects */
#define MC_GHOST_STEPS 24u          /* that an entry is remembered for */

struct mc_ghost {            /* what is known of a key */
    enum mc_gone why;        /* NONE: nothing */
    bool is_proven;          /* it was used again before it went */
    bool is_unwanted;        /* of one that was evicted: its user had said that it may go; no mistake of a policy's */
    uint64_t from_ms, to_ms; /* it went in that time */
};

struct mc_ghosts { /* zeroed: none yet */
    uint32_t **chunks;
    uint64_t bucket_count; /* a power of two; 0 = nothing went yet */
    uint64_t until_step;   /* entries before the age steps */
    uint8_t step;
    uint64_t step_ms[256];  /* by step: when it began */
    uint64_t fresh, proven; /* evicted lately of each: what is older counts less and less */
};

void mc_ghosts_destroy(struct mc_ghosts *ghosts);
/* The key of that hash went while there were so many objects. */
void mc_ghosts_add(struct mc_ghosts *ghosts, uint64_t now_ms, uint64_t hash, struct mc_ghost ghost, uint64_t objects);
struct mc_ghost mc_ghosts_find(const struct mc_ghosts *ghosts, uint64_t now_ms, uint64_t hash);
/* Since when every key that went is remembered, but for a few. */
uint64_t mc_ghosts_since_ms(const struct mc_ghosts *ghosts);

#endif
