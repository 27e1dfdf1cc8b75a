/* Places that are granted ahead: a blank is a put's one grant that has no key yet. It belongs to a connection, which
 * has one at most, and becomes a put as any other when its client says what it has put there (docs/ordering.md, B1 to
 * B5).
 *
 * A blank's node is GRANTED, of no object; it is counted in `blank` of its segment and not in `used`. */
#ifndef MC_CORE_BLANK_H
#define MC_CORE_BLANK_H

#include "store/core/replica.h"

#define MC_BLANK_BYTES_MAX (64u << 10) /* of a place: what is larger is copied for longer than its grant takes */
#define MC_BLANK_MS 2000u              /* one that is not used for so long is cut */
#define MC_BLANK_PAUSE_MS 1000u        /* none is given where room was looked for in vain since */
#define MC_BLANK_LEFT 65536u           /* numbers for the keys that have left, by their hash */

struct mc_put;

static inline bool mc_node_is_blank(const struct mc_node *node)
{
    return node->state == MC_NODE_GRANTED && node->pointer == 0;
}

/* The put's writer wants a place for its next one, of about so many units: its PUT_DONE will tell it of one, if there
 * is to be one and its connection has none. */
void mc_blank_plan(struct mc_core *core, struct mc_put *put, uint64_t units);
/* Tells it, before the PUT_DONE. */
void mc_blank_tell(struct mc_core *core, const struct mc_put *put, struct mc_buffer *out);
/* The segment where the connection's next put is to go, since it was drawn for a blank; NULL: anywhere. Asked once. */
struct mc_segment *mc_blank_drawn(struct mc_core *core, struct mc_connection *connection);
void mc_put_bind(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
/* The writer of the item may have put its value into a blank and could not say so: what is left of that holds the key.
 */
void mc_blank_name(struct mc_core *core, const struct mc_connection *connection,
                   const struct mc_wire_put_start_item *item);
/* The slot of a blank is live, before its key is known. */
void mc_blank_filled(struct mc_put *put);
/* It ends without a key. The put is freed. cuts: its writer may still be at it. */
void mc_blank_end(struct mc_core *core, struct mc_segment *segment, uint32_t slot, bool cuts);
/* Cuts blanks of that segment, for what finds no room there, some hundreds at once; how many units it has cut. None is
 * given there as long as somebody looks for room, so a few calls end them all. */
uint64_t mc_blank_reclaim(struct mc_core *core, struct mc_segment *segment);
/* Those that are not used are to be cut. */
void mc_blanks_tick(struct mc_core *core);
/* The key leaves the table: no blank that was given before takes it. */
void mc_blank_key_left(struct mc_core *core, struct mc_span key);

#endif
