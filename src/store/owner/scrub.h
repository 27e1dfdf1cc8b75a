/* The scrubber: reads what lies in an own segment again and again, slowly, and finds what no longer matches its
 * checksums before a reader does. A thread of its own reads, so memory that is slow delays nobody else.
 * Invariant: a rotten slot is cleared before anybody is told of it. */
#ifndef MC_OWNER_SCRUB_H
#define MC_OWNER_SCRUB_H

#include "store/segment/memory.h"

#define MC_SCRUB_MB_PER_S 64u /* by default; environment MC_SCRUB_MB_PER_S, 0 = only what is asked for */
#define MC_SCRUB_PASS_MS 5000u
#define MC_SCRUB_CHECKS_MAX 65536u /* slots that were asked for and wait */

struct mc_scrub;

struct mc_scrub_config {
    uint64_t bytes_per_s; /* 0: only what is asked for */
    uint32_t pass_ms;     /* nothing is read more often */
    void *context;
    /* Held rotten bytes and was cleared. On the scrubber's thread; the memory is there until it returns. */
    void (*rotten)(void *context, struct mc_segment_memory *memory, uint32_t slot, uint64_t generation);
};

/* Without a thread, which one line in the log says, nothing is read. NULL: out of memory. */
struct mc_scrub *mc_scrub_create(const struct mc_scrub_config *config);
/* From now on that memory (NULL = none), of which it takes a reference; what was asked for the old one is forgotten.
 * Returns at once: of the old one something may be told still. Any thread, as the next. */
void mc_scrub_set_memory(struct mc_scrub *scrub, struct mc_segment_memory *memory);
/* Look at this slot as soon as possible. False: there is no such slot, nobody who looks, or too many wait. */
bool mc_scrub_check(struct mc_scrub *scrub, uint32_t slot, uint64_t generation);
/* Its thread ends, which may wait for slow memory; afterwards nothing is told, and only the counters and free are left.
 * Not on its thread. */
void mc_scrub_stop(struct mc_scrub *scrub);
void mc_scrub_free(struct mc_scrub *scrub);
/* From any thread: bytes that were read and compared; slots that were rotten. */
void mc_scrub_counters(const struct mc_scrub *scrub, uint64_t *bytes, uint64_t *rotten);

#endif
