/* What users say will become of values (mooncake.h, docs/operations.md has what each hint promises): drop, pause,
 * resume and prefetch. Hints are advice. They change what is evicted first and what is loaded or stored ahead, and
 * nothing that can be read; and they have bounds:
 *
 * - what goes first is in a list of its segment (`first`), before all that its policy orders. Any use takes it out
 * - what hints have loaded, and nobody has asked for since, is `fetched`: no more than a part of a segment, of which
 *   some may be under way. Room for it is made like that for a reader, but never of what is pinned
 * - what is to be stored since its user pauses takes of the queue of a disk what evictions may
 *
 * What goes first, or is to once a disk has it, its owner keeps for the next master (hint_kept.h). All else is the
 * order in which values age, which no master tells the next: that one begins anew. What was stored or loaded by then is
 * where it is.
 *
 * A node says it by `listed`, which its space does not need while it is in use; and `uses` of one that goes first, why
 * (enum mc_first). No policy sees that. */
#ifndef MC_CORE_HINT_H
#define MC_CORE_HINT_H

#include "store/core/space.h"

#include <stdbool.h>
#include <stdint.h>

#define MC_HINT_FETCHED_PART 16u       /* this part of a segment's memory, */
#define MC_HINT_LOADS_MAX 256u         /* of it so many loads under way, */
#define MC_HINT_LOADS_BYTES (1u << 27) /* and of its owner's memory so many bytes of them, or one load */
#define MC_HINT_PAUSE_LEAST_MS 1000u   /* what is wanted again before is left as it is */

struct mc_connection;
struct mc_core;
struct mc_frame;
struct mc_member;
struct mc_object;
struct mc_segment;

/* Bits. */
enum mc_first {
    MC_FIRST_WAS_FETCHED = 1u, /* when hints alone want it again it is so again, if that fits */
    MC_FIRST_DROPPED = 2u,     /* else its user pauses: as long as a disk has it */
};

/* The LIVE node is in `first` of its segment. */
static inline bool mc_node_goes_first(const struct mc_node *node)
{
    return node->listed && !node->awaited;
}
/* It is, or is being, loaded for a hint. */
static inline bool mc_node_is_fetched(const struct mc_node *node)
{
    return node->listed && node->awaited;
}

void mc_request_hint(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);

/* May so many units more be loaded there for hints? */
bool mc_hint_fits(const struct mc_segment *segment, uint64_t units);
/* And by that owner? Whoever reads from its disks waits for what is under way already. */
bool mc_hint_fits_under_way(const struct mc_member *member, uint64_t units);
/* The MOVING node is loaded for a hint; it has come, or failed. */
void mc_hint_load_begun(struct mc_core *core, struct mc_segment *segment, struct mc_node *node);
void mc_hint_load_ended(struct mc_core *core, struct mc_segment *segment, const struct mc_node *node);
/* The node is as any other from now on, and in no list if it was in `first`. */
void mc_hint_end(struct mc_segment *segment, uint32_t slot);
/* The node, which a hint concerns, is used. True: it was among those that go first, and ages again. */
bool mc_hint_used(struct mc_core *core, struct mc_segment *segment, uint32_t slot);
/* A disk has lost the object. If no other has it, what is in memory is all there is, and as wanted as any but for what
 * was dropped. */
void mc_hint_lost_on_disk(struct mc_core *core, struct mc_object *object);
/* Those of its replicas that age are the next to go, behind those of which that was said before; what is being loaded
 * of it will be. dropped: MC_FIRST_DROPPED or 0, which holds for all of them from now on. */
void mc_hint_go_first(struct mc_core *core, struct mc_object *object, unsigned dropped);
/* Not any more as young as its group: what is used of that from now on makes it so. */
void mc_hint_part_from_group(struct mc_object *object);
/* So did that replica under the master before, which the object has just got from its owner. What its user pauses may
 * be on no disk, or on one that has not come yet: it is looked at when its turn comes. */
void mc_hint_restore(struct mc_core *core, struct mc_object *object, struct mc_segment *segment, uint32_t slot,
                     unsigned dropped);
/* Owners contradict each other: none of its replicas goes first. */
void mc_hint_forget(struct mc_core *core, const struct mc_object *object);
/* Of a node that goes first: its user pauses, and no disk has it. */
bool mc_hint_awaits_disk(const struct mc_core *core, const struct mc_node *node);
/* Such a one is stored before it goes first, if a disk takes it; else it is as any other. */
void mc_hint_store_first(struct mc_core *core, struct mc_segment *segment, uint32_t slot);
/* Is it to go first, now or once it is stored or loaded? */
bool mc_hint_holds(const struct mc_core *core, const struct mc_object *object);
/* Is one of its replicas among those that go first? */
bool mc_hint_is_first(const struct mc_core *core, const struct mc_object *object);

#endif
