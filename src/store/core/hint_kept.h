/* What owners keep of hints. That a value goes first, or is to when a disk has it, is written beside it, into its slot,
 * by its owner: HINTED says so, and an inventory says it to the next master. So it outlives masters, and nodes whose
 * memory does.
 *
 * Each change of a replica in memory is noted with its segment, in the order in which they come, and told with the next
 * frames; what is told is what holds when the frame is made. The owner says when it has it: until then the change is
 * noted still, and told again to whoever mounts the segment next. Owners of earlier releases are told nothing. What is
 * more than MC_HINT_NOTES_MAX is not told either: an owner that does not answer costs no more than that. */
#ifndef MC_CORE_HINT_KEPT_H
#define MC_CORE_HINT_KEPT_H

#include <stdbool.h>
#include <stdint.h>

struct mc_connection;
struct mc_core;
struct mc_frame;
struct mc_node;
struct mc_object;
struct mc_segment;
struct mc_wire_slot;

#define MC_HINT_NOTES_MAX 65536u /* of a segment: not confirmed by its owner */

struct mc_hint_notes { /* of a segment; the first `sent` of `count` were told over this connection */
    struct mc_wire_slot *items;
    uint32_t first, count, sent, capacity;
    bool is_short; /* something was not noted, or could not be told: what the owner keeps is not all, or not the last */
};

/* What a hint says of the LIVE node has changed. */
void mc_hint_changed(struct mc_core *core, struct mc_segment *segment, uint32_t slot);
/* The same for all replicas of the object in memory. */
void mc_hint_object_changed(struct mc_core *core, const struct mc_object *object);
/* What its owner is to keep beside the LIVE node: MC_HINT_DROP, MC_HINT_PAUSE or 0. */
unsigned mc_hint_of(const struct mc_core *core, const struct mc_node *node);
/* An inventory says that of a replica in memory, which the visible object has just got. It holds if all other owners
 * that have come say the same: else it was used, or hinted at, since one of them was told. */
void mc_hint_found(struct mc_core *core, struct mc_object *object, struct mc_segment *segment, uint32_t slot,
                   unsigned hint);

/* A frame of what was not told yet; false when there is nothing, or nobody to be told. */
bool mc_hints_send(struct mc_core *core, struct mc_segment *segment);
/* A frame of it to each owner, before a hint is answered. */
void mc_hints_send_all(struct mc_core *core);
/* The connection they were told over is no more. */
void mc_hints_unsend(struct mc_segment *segment);
/* HINTED: the owner has it. */
void mc_hints_kept(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_hints_free(struct mc_segment *segment);

#endif
