/* Which of a segment's replicas goes when room is needed. A policy is a table of functions, in a file of its own,
 * policy_<name>.c; evict.c says how many go, and keeps those that may not.
 *
 * A policy orders the live replicas that are not pinned. They lie in two lists of their segment: `normal`, where every
 * policy lets them begin, and `proven`, for a policy that keeps apart those that were used again; a node knows by its
 * bit `proven` in which. What a policy wants to remember of a replica has two bits, `uses`. So no policy costs memory
 * for each object; what it remembers of those that went has a limit (ghost.h). Passing over one that was used costs one
 * of core->turns_left; without any left the oldest is taken as it is, so a call ends however much was used. */
#ifndef MC_CORE_POLICY_H
#define MC_CORE_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MC_FRESH_PART 0.6 /* see policy_s3fifo.c */

struct mc_core;
struct mc_segment;

struct mc_eviction_policy {
    const char *name;
    /* A replica begins to age. */
    void (*enter)(struct mc_core *core, struct mc_segment *segment, uint32_t slot);
    /* It is used: it, or a member of its group, is or was read, or looked for. */
    void (*use)(struct mc_segment *segment, uint32_t slot);
    /* Which goes next, or MC_NODE_NONE. */
    uint32_t (*oldest)(struct mc_core *core, struct mc_segment *segment);
    /* Its turn came near, but it was used (`uses`): it is passed over, as `oldest` does. NULL: uses is 0 throughout. */
    void (*spare)(struct mc_segment *segment, uint32_t slot);
    /* How many of `normal` go before any of `proven` does. NULL: the policy keeps none apart. */
    uint64_t (*before_proven)(const struct mc_core *core, const struct mc_segment *segment);
    /* That one, which `oldest` has answered, may not go now: another one is to be answered next. */
    void (*pass)(struct mc_segment *segment, uint32_t slot);
};

extern const struct mc_eviction_policy mc_eviction_lru, mc_eviction_clock, mc_eviction_s3fifo;

/* NULL: there is none of that name. */
const struct mc_eviction_policy *mc_eviction_find(const char *name);
const struct mc_eviction_policy *mc_eviction_default(void);

/* What policies share. The list that the replica is in: */
struct mc_node_list *mc_eviction_list(struct mc_segment *segment, uint32_t slot);
void mc_eviction_append(struct mc_segment *segment, uint32_t slot, bool proven);
/* As the youngest of those that go next, and lie on a disk: where what is only passing through begins to age. */
void mc_eviction_enter_first(struct mc_segment *segment, uint32_t slot);
/* To the young end of its list. */
void mc_eviction_turn(struct mc_segment *segment, uint32_t slot);
/* It leaves its list, for whatever reason. */
void mc_eviction_leave(struct mc_segment *segment, uint32_t slot);

#endif
