/* Where a replica goes, and what goes to make room for it. */
#ifndef MC_CORE_PLACE_H
#define MC_CORE_PLACE_H

#include "store/core/core.h"
#include "store/core/limits.h"
#include "store/wire/wire.h"

struct mc_account;
struct mc_object;
struct mc_core;
struct mc_segment;

struct mc_placement {
    struct mc_segment *preferred[MC_PREFERRED_MAX];
    uint32_t preferred_count;
    struct mc_segment *near[MC_PREFERRED_MAX]; /* of the writer's machine, when it wants one of these */
    uint32_t near_count;
    bool together;            /* the whole batch goes where its first object is */
    struct mc_segment *first; /* which is here; NULL: not placed yet */
    uint32_t avoid_stamp;
    struct mc_id hosts[MC_REPLICA_COUNT_MAX]; /* where the object that is being placed has replicas already */
    uint32_t host_count, hosts_stamp;         /* hosts_stamp: the pick_stamp of that object */
    bool is_spread;                           /* pieces of one value: on as many segments as there are */
    uint32_t spread_level;                    /* so many has each that takes one more; begins at 0 */
    bool hopeful;                             /* some segment will have room later */
    struct mc_firm_wish {                     /* what is being placed is to be pinned firmly: see firm.h */
        bool is_wanted, is_kept;              /* kept: that was promised before */
        uint64_t bytes;                       /* of a replica */
        const struct mc_object *before;       /* whose value it replaces, or NULL */
        bool is_short;                        /* a segment was passed over for that */
    } firm;
};
void mc_placement_prefer(struct mc_core *core, struct mc_placement *placement, struct mc_span name);
/* Wants a segment of that machine, after those that are preferred, and one for the whole batch. */
void mc_placement_keep_near(struct mc_core *core, struct mc_placement *placement, struct mc_id host);
/* A granted node in a segment that does not carry pick_stamp; NULL when there is none. */
struct mc_segment *mc_place(struct mc_core *core, struct mc_placement *placement, uint32_t pick_stamp, uint64_t units,
                            uint32_t *slot);

/* So much was placed there. */
void mc_place_count(struct mc_core *core, struct mc_segment *segment, uint64_t units);
/* After an allocation: keeps the segment below its watermark. */
void mc_evict_ahead(struct mc_core *core, struct mc_segment *segment, uint64_t units);
/* After an allocation failed: makes room. True when it makes sense to try again later. */
bool mc_evict_for(struct mc_core *core, struct mc_segment *segment, uint64_t units, enum mc_core_eviction what);
/* The same for what a hint has loaded: as much as is missing, and no more, however often it fails as space is in
 * pieces. */
void mc_evict_for_hint(struct mc_core *core, struct mc_segment *segment, uint64_t units);
/* Works off the debt; true when some is left. */
bool mc_evict_debt(struct mc_core *core, struct mc_segment *segment);
/* Goes on with groups that were too large for one message; true when some are left. */
bool mc_evict_groups(struct mc_core *core);
/* Evicts of a tenant what it has used least recently, until it has no more than that; `but` (may be NULL) stays. False:
 * more can go, but not now. */
bool mc_evict_own(struct mc_core *core, struct mc_account *account, const struct mc_object *but, uint64_t bytes,
                  uint64_t objects);

#endif
