/* Soft pins: each has a deadline of its own, which no use moves. Until then its object goes only when nothing else can;
 * then it is as any other, and begins to age.
 *
 * What a pin is to be stands, until the object can be read, where its lease will be: nobody reads it before. Deadlines
 * of what can be read are in a heap, whose entries are not removed when their object goes, but met as stale later.
 *
 * Invariant: a visible object that is `soft` has an entry of its serial and its deadline. */
#ifndef MC_CORE_PIN_H
#define MC_CORE_PIN_H

#include "store/core/object.h"

struct mc_core;

#define MC_PIN_TICK_MS 100u /* the unit of deadlines: so 32 bits last for 13 years of a master */

struct mc_pin {
    uint32_t until, serial;
    struct mc_object *object;
};
struct mc_pins { /* a heap: the first has the earliest deadline */
    struct mc_pin *items;
    uint32_t count, capacity;
    uint32_t cursor; /* the next that is looked at for being stale */
};

/* A soft pin from when the object is offered, for so long; 0: it has none. The object is not visible, and not hard. */
void mc_pin_wish(struct mc_object *object, uint64_t ttl_ms);
/* A soft pin that is over in so long, whenever the object is offered. */
void mc_pin_wish_left(const struct mc_core *core, struct mc_object *object, uint64_t left_ms);
/* An object that waits takes the wish over from its successor. was_read: so was its value, at another place. */
void mc_pin_wish_inherit(struct mc_object *object, const struct mc_object *successor, bool was_read);
/* The object is about to be offered: its wish becomes a deadline, or nothing. */
void mc_pin_begin(struct mc_core *core, struct mc_object *object);
/* A visible object counts from now on, or no more, among those that are pinned. */
void mc_pins_count(struct mc_core *core, const struct mc_object *object);
void mc_pins_uncount(struct mc_core *core, const struct mc_object *object);
/* Of a visible object: for how long it is pinned yet; 0: it is not. */
uint64_t mc_pin_left_ms(const struct mc_core *core, const struct mc_object *object);
/* Those whose deadline has passed are pinned no more, but for what is too many for one step. True: there are more. */
bool mc_pins_expire(struct mc_core *core);
/* When the next deadline passes, as now_ms; UINT64_MAX: there is none. */
uint64_t mc_pins_due(const struct mc_core *core);
void mc_pins_destroy(struct mc_pins *pins);

/* Proves the invariants; for tests. NULL or what is wrong. */
const char *mc_pins_check(const struct mc_core *core);

#endif
