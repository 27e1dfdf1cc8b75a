/* Keys without a value that must be remembered, and keys that a place still holds. */
#ifndef MC_CORE_TOMBSTONE_H
#define MC_CORE_TOMBSTONE_H

#include "store/core/object.h"
#include "store/core/space.h"

struct mc_core;
struct mc_wait;

/* The object has no replica any more and leaves, unless its key is to be remembered. bound: entries of earlier epochs
 * of at least that version may bring it back; UINT64_MAX = none may. wait: told when nothing holds the key; may be
 * NULL. */
void mc_object_vanish(struct mc_core *core, struct mc_object *object, uint64_t bound, struct mc_wait *wait);
/* A key that has no value was removed. cell: its tombstone, or NULL. */
void mc_tombstone_add(struct mc_core *core, struct mc_span key, struct mc_object *cell);
/* The same tombstone, which nothing holds, with room for a group; NULL when memory is out. */
struct mc_object *mc_tombstone_enlarge(struct mc_core *core, struct mc_object *object);
/* It is an object again, without a replica, not visible. */
void mc_tombstone_revive(struct mc_core *core, struct mc_object *object);
/* May an entry of that version take the key of this tombstone? */
bool mc_tombstone_lets(const struct mc_core *core, const struct mc_object *object, uint64_t version);
/* The key, of which there is no object, may have gone when there were too many tombstones already. */
bool mc_tombstone_may_be(const struct mc_core *core, struct mc_span key);
void mc_tombstone_bits_free(struct mc_core *core);
struct mc_object *mc_tombstone_next(const struct mc_object *object);
/* Frees what is no longer needed, a slice; true when more is left. */
bool mc_tombstones_tick(struct mc_core *core);
/* The node is CLEARING and held nothing: now it holds the key of the object, or of an entry that was refused. */
void mc_key_hold(struct mc_core *core, struct mc_node *node, struct mc_object *object);
void mc_key_hold_entry(struct mc_core *core, struct mc_node *node, struct mc_span key);
/* The same, of a put that failed: what of its key comes back from before is none of its business. */
void mc_key_hold_failed(struct mc_core *core, struct mc_node *node, struct mc_span key);
/* How many nodes hold it. */
uint64_t mc_key_holders(const struct mc_core *core, const struct mc_object *object);
/* Of those, how many hold a value that somebody may have read. */
uint64_t mc_key_remains(const struct mc_core *core, const struct mc_object *object);
/* The node is CLEARING and holds a key whose value it may show: nobody may read another value before it is cleared. */
void mc_key_remains_more(struct mc_core *core, struct mc_node *node);
/* Its CLEARED has come or is no longer needed. */
void mc_key_release(struct mc_core *core, struct mc_node *node);
/* The key is held after a value of it was seen by somebody: no put may take it. */
bool mc_key_takes_no_value(const struct mc_object *object);
/* The object has a value, and below it lies one whose owner cannot be told now to clear it, or has not done so yet. If
 * the value went, and we ended before all of that is done, the master after us would take the one below. Until the
 * owner has cleared it, is back or departed. */
bool mc_key_hides(const struct mc_core *core, const struct mc_object *object);
/* Waits until nothing holds the key, which must be held by something. */
void mc_key_wait(struct mc_core *core, struct mc_object *object, struct mc_wait *wait);

#endif
