/* How much is pinned so that it is not evicted: firm pins, and those for ever.
 *
 * Firm pins: soft pins that are kept, too. Until its deadline (pin.h) the object is not evicted, as if it was pinned
 * hard; then it is as any other. How much may be pinned so is bounded, of all memory and of a tenant's quota.
 *
 * An object is pinned firmly while it is both `hard` and `soft`. Counted is each replica in memory, from its grant
 * until it leaves its object or the pin is over. What is there is kept whatever the bound is by then: a promise
 * outlives the master and the nodes that have left, and only new ones are refused; so is one that is to go on for
 * longer while its tenant has more than its part, or that would be no bound for who is there first.
 *
 * What is pinned goes to no segment whose owner could not write that into its slots, nor beyond a part of one: else
 * whoever prefers a segment fills it, and what its disks hold could not be loaded. Moved and copied it is beyond that
 * part, and to any owner where there is no other.
 *
 * Invariant (proved by tests/core_check.c): what is counted is the sum over the nodes of all segments of memory. */
#ifndef MC_CORE_FIRM_H
#define MC_CORE_FIRM_H

#include "store/core/object.h"

struct mc_core;
struct mc_firm_wish;
struct mc_segment;

struct mc_firm {
    uint64_t bytes;             /* that are pinned so, or will be */
    uint64_t hard_bytes;        /* the same for ever: `hard` and not `soft` */
    uint64_t visible;           /* objects */
    uint64_t capacity, changes; /* of all memory that is lent, when so much had changed there */
};

static inline bool mc_object_is_firm(const struct mc_object *object)
{
    return object->hard && object->soft;
}

/* The object, which is not visible and has a soft pin and no replica yet, is to be kept until that is over. */
void mc_firm_begin(struct mc_object *object);
/* It is not kept any more. */
void mc_firm_end(struct mc_core *core, struct mc_object *object);
/* The object has the replicas of its successor. */
void mc_firm_succeeded(struct mc_core *core, const struct mc_object *object);
/* A replica has joined the object's chain, or left it. */
void mc_firm_linked(struct mc_core *core, const struct mc_object *object, struct mc_segment *segment);
void mc_firm_unlinked(struct mc_core *core, const struct mc_object *object, struct mc_segment *segment);

/* What one replica of it counts; 0: it is not pinned firmly. */
uint64_t mc_firm_bytes(const struct mc_object *object);
/* Bytes that may be pinned so, of all memory that is lent. */
uint64_t mc_firm_budget(struct mc_core *core);
/* The wish for a value of that length which is to replace `before`, or NULL. */
struct mc_firm_wish mc_firm_wish(const struct mc_core *core, const struct mc_object *before, struct mc_span key,
                                 uint64_t length);
/* May a replica of it be placed in that segment, whose owner is there? */
bool mc_firm_goes_to(const struct mc_core *core, const struct mc_firm_wish *wish, const struct mc_segment *segment);
/* May so many replicas of that key and length be pinned firmly? before: whose value they would replace, or NULL; what
 * they add to that counts. is_kept: with its pin; else that is another, and none for whom is above its part. */
bool mc_firm_fits(struct mc_core *core, struct mc_span key, const struct mc_object *before, uint64_t length,
                  uint32_t replicas, bool is_kept);
/* What one replica of it counts; 0: it is not pinned for ever. */
uint64_t mc_hard_bytes(const struct mc_object *object);
/* May so many replicas be pinned for ever? That has a bound of its own, of all memory. */
bool mc_hard_fits(struct mc_core *core, struct mc_span key, const struct mc_object *before, uint64_t length,
                  uint32_t replicas);

#endif
