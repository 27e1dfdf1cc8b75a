/* Values between the memory and the disks of one owner: stored on a disk while they lie in memory (offload), and loaded
 * into memory again when they are read and are no longer there (promotion). The owner's process moves the bytes; the
 * core says what goes where, under which number and generation, as it does for writers (D1 to D5 of the ordering page).
 *
 * A node that is MOVING belongs to a visible object, which knows that (`moving`; core->moves says where it is): there
 * is at most one of an object. It is in the list `moves` of its segment, those before `move_unsent` were sent, and it
 * is no replica yet. When the object's value goes, the node is cleared, and holds the key until that is done, as a
 * replica does: the owner may just have finished. */
#ifndef MC_CORE_OFFLOAD_H
#define MC_CORE_OFFLOAD_H

#include <stdbool.h>
#include <stdint.h>

struct mc_core;
struct mc_member;
struct mc_object;
struct mc_segment;

/* A put has ended well: its value is stored on a disk, if that is to be done then. And once more if it was not, when a
 * reader is sent to it for the first time: now a disk takes it that has no budget left for others. was_on_disk: so was
 * the same value at the places before; it is stored again, whenever that is done with others and how many wait. */
void mc_offload_appeared(struct mc_core *core, struct mc_object *object, bool was_on_disk);
/* Begins to store the value of a visible object on a disk of an owner that has it in memory. False: it is there, or
 * being moved, or no disk takes it now. */
bool mc_offload_store(struct mc_core *core, struct mc_object *object);
/* The same for one that is soon evicted from memory of that member, with the others of its group. False: all queues of
 * its disks hold as many of those as they may, or it has none. */
bool mc_offload_ahead(struct mc_core *core, const struct mc_member *member, struct mc_object *object);
/* Stores what is evicted from that memory before long: see ahead.c. After anything was placed there. */
void mc_offload_mark(struct mc_core *core, struct mc_segment *segment);
/* Its disks would take a value, but as much as may waits for each. */
bool mc_offload_is_full(const struct mc_core *core, const struct mc_member *member);
/* Has it a disk, that could have had what is evicted? */
bool mc_offload_expects(const struct mc_core *core, const struct mc_member *member);
/* Begins to load the value of a visible object that lies on a disk only, for a reader. PUT_IN_PROGRESS: it comes, ask
 * again. OBJECT_NOT_FOUND: it cannot be had in time. May evict. */
int32_t mc_offload_load(struct mc_core *core, struct mc_object *object);
/* The same for a hint (hint.h), as far as that may: never of what is pinned. MC_HINT_BEGUN: it comes; OBJECT_NOT_FOUND;
 * NO_AVAILABLE_HANDLE: there is no room just now, or hints load enough. */
int32_t mc_offload_fetch(struct mc_core *core, struct mc_object *object);
/* Begins to store the value of a visible object, as long as evictions may, and once a disk has it the others go first,
 * unless it is used by then. False: it is not being stored. */
bool mc_offload_pause(struct mc_core *core, struct mc_object *object);
/* Of one that is `moving`: is that so? */
bool mc_offload_is_paused(const struct mc_core *core, const struct mc_object *object);
/* The same, and it is being stored for that. */
bool mc_offload_pauses(const struct mc_core *core, const struct mc_object *object);
/* What is being loaded of one that is `moving` goes first once it is there, unless it is asked for by then. dropped:
 * see mc_hint_go_first. */
void mc_offload_go_first(struct mc_core *core, const struct mc_object *object, unsigned dropped);
/* It is used: it is stored or loaded, no more. */
void mc_offload_unpause(struct mc_core *core, const struct mc_object *object);
/* The owner has filled the MOVING node, or has not. */
void mc_offload_moved(struct mc_core *core, struct mc_segment *segment, uint32_t slot, bool done);
/* The value of the object goes. */
void mc_offload_cancel(struct mc_core *core, struct mc_object *object);

/* One frame of STORE or LOAD from move_unsent on, or some that are over; false when there is nothing to do now. */
bool mc_offload_send(struct mc_core *core, struct mc_segment *segment);
bool mc_offload_may_send(const struct mc_segment *segment);
/* The connection they were sent to is no more: they are sent again. */
void mc_offload_unsend(struct mc_segment *segment);

#endif
