/* Puts with open grants. */
#ifndef MC_CORE_PUT_H
#define MC_CORE_PUT_H

#include "store/core/list.h"
#include "store/wire/wire.h"

struct mc_connection;
struct mc_core;
struct mc_node;
struct mc_object;
struct mc_segment;
struct mc_writer;

struct mc_grant {
    uint32_t slot; /* MC_NODE_NONE = no longer open */
    uint16_t segment, item;
};
enum { MC_PUT_OPEN = 1, MC_PUT_WAITS = 2 }; /* codes of items that are not decided; those on the wire are not above 0 */
struct mc_ahead {                           /* where a place was granted ahead; generation 0: nowhere */
    uint32_t segment, slot;
    uint64_t generation;
};
struct mc_put { /* one PUT_START with at least one grant; or a blank, see blank.h */
    uint32_t index;
    struct mc_connection *connection; /* NULL: nobody wants to hear the end */
    struct mc_writer *writer;
    uint64_t request_id, started_ms, expected; /* version that is to be replaced, 0 = any */
    struct mc_link of_connection, by_age;      /* by_age: in core->puts_by_age, puts_dying or blanks */
    struct mc_link of_segment;                 /* of a blank: in its segment's */
    bool dying;
    bool is_blank, is_filled; /* filled: its slot is live already */
    struct mc_ahead ahead;    /* for the writer's next put: PUT_DONE tells of it */
    uint32_t open, grant_count, item_count;
    uint32_t waiting; /* items that are whole and wait for the value before them to be cleared */
    uint32_t cursor;  /* of the dying: grants before this one are closed */
    struct mc_grant *grants;
    int32_t codes[]; /* of the items */
};

void mc_put_start(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_put_live(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_put_revoke(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
/* Cuts the grants of a connection that ends (keep = false: nobody hears the end) or of a member that is thought dead.
 */
void mc_puts_abandon(struct mc_core *core, struct mc_connection *connection, bool keep);
/* A grant ends without success and without anybody who could be cut off: its segment is gone. */
void mc_grant_fail(struct mc_core *core, struct mc_segment *segment, uint32_t slot);
/* Cuts old grants and those of the dead, a slice; true when more is left. */
bool mc_puts_tick(struct mc_core *core);
/* Without a grant yet. NULL: too many, or memory is out. */
struct mc_put *mc_put_create(struct mc_core *core, struct mc_connection *connection, uint64_t request_id,
                             uint32_t item_count, uint32_t grant_capacity);
/* What is open of it is to be cut. */
void mc_put_dies(struct mc_core *core, struct mc_put *put);
void mc_put_destroy(struct mc_core *core, struct mc_put *put);
/* Nothing remains of the value before that of the object, which waits: it is offered and its writer answered. */
void mc_put_replaced(struct mc_core *core, struct mc_object *object);
/* The put that an object which waits belongs to, and its item; NULL: nobody wants to hear the end. */
struct mc_put *mc_put_waiting(const struct mc_core *core, const struct mc_object *object, uint32_t *item);
/* An item that has waited ends with that code. */
void mc_put_waited(struct mc_core *core, struct mc_put *put, uint32_t item, int32_t code);
/* The object's value is going, for the successor `except` or for none: so is what else was to replace it, copies of it
 * too. Each must be cleared before anybody hears of that. */
void mc_put_end_successors(struct mc_core *core, struct mc_object *object, const struct mc_object *except);
/* The node's next placement: a generation of its own. replica: as generation - replica is to be its version. */
void mc_generation_next(struct mc_core *core, struct mc_node *node, uint8_t replica);
/* The owner has the slot live: its LIVE was lost. */
void mc_put_found_live(struct mc_core *core, struct mc_segment *segment, uint32_t slot);

#endif
