/* The scrubber: reads what lies in an own segment again and again, slowly, and finds what no longer matches its
 * checksums before a reader does. Runs on the serve thread in steps that hold it up for a fraction of a millisecond.
 * Invariant: a rotten slot is cleared before anybody is told of it. */
#ifndef MC_OWNER_SCRUB_H
#define MC_OWNER_SCRUB_H

#include "store/segment/memory.h"

#define MC_SCRUB_MB_PER_S 64u /* by default; environment MC_SCRUB_MB_PER_S, 0 = only what is asked for */
#define MC_SCRUB_PASS_MS 5000u
#define MC_SCRUB_CHECKS_MAX 65536u /* slots that were asked for and wait */

struct event_base;
struct mc_scrub;

struct mc_scrub_config {
    struct event_base *base;
    uint64_t bytes_per_s; /* 0: only what is asked for */
    uint32_t pass_ms;     /* nothing is read more often */
    void *context;
    /* Held rotten bytes and was cleared. */
    void (*rotten)(void *context, uint32_t slot, uint64_t generation);
};

/* Before the loop runs, or on it, as all of these. NULL: out of memory. */
struct mc_scrub *mc_scrub_create(const struct mc_scrub_config *config);
/* From now on that memory (borrowed, NULL = none); what was asked for the old one is forgotten. */
void mc_scrub_set_memory(struct mc_scrub *scrub, struct mc_segment_memory *memory);
/* Look at this slot as soon as possible. False: there is no such slot, or too many wait. */
bool mc_scrub_check(struct mc_scrub *scrub, uint32_t slot, uint64_t generation);
/* Its events leave the loop; afterwards only the counters and free. */
void mc_scrub_stop(struct mc_scrub *scrub);
void mc_scrub_free(struct mc_scrub *scrub);
/* From any thread: bytes that were read and compared; slots that were rotten. */
void mc_scrub_counters(const struct mc_scrub *scrub, uint64_t *bytes, uint64_t *rotten);

#endif
