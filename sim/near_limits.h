/* Included before each file of the master's core: a number that no run reaches is drawn for each. */
#ifndef SIM_LIMITS_H
#define SIM_LIMITS_H

#include "store/core/group.h"
#include "store/core/object.h"
#include "store/core/slab.h"
#include "store/core/limits.h"

extern uint32_t sim_clearing_max; /* replicas that hold a key which its object counts itself */
#undef MC_OBJECT_CLEARING_MAX
#define MC_OBJECT_CLEARING_MAX sim_clearing_max

/* Tables that no run fills are cut, as in sizes.h: what is not made need not be cleared. */
#undef MC_BUCKET_CHUNK
#define MC_BUCKET_CHUNK 64u
#undef MC_BUCKET_CHUNKS
#define MC_BUCKET_CHUNKS 4096u
#undef MC_GROUP_CHUNK
#define MC_GROUP_CHUNK 64u
#undef MC_GROUP_CHUNKS
#define MC_GROUP_CHUNKS 4096u
#undef MC_SLAB_CHUNK
#define MC_SLAB_CHUNK (8u << 10)
#undef MC_ENDED_WELL_MAX
#define MC_ENDED_WELL_MAX (1u << 16)
#undef MC_SEGMENTS_MAX
#define MC_SEGMENTS_MAX 1024u

/* A writer of a value in pieces may be too late with its head. */
#define MC_STRIPE_HEADLESS_MS 4000u

/* A removal of all looks at one value in each turn of the loop. */
#undef MC_SLICE_STEPS
#define MC_SLICE_STEPS 1u

#endif
