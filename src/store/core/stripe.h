/* Values in pieces (store/wire/stripe.h): a head, under the value's key, and its pieces are members of one group.
 *
 * The value is there when the head is and all pieces are. A head without one of its pieces is nothing to readers, and a
 * put of the key replaces it. What belongs together goes together: a head that will not be whole any more is dropped,
 * and so are pieces whose head has left (was removed, evicted, replaced, lost), or has not come a while after all of
 * them did. That is done by ticks, and only what can go at once goes: its owners listen, and it hides no value before
 * it (tombstone.h). While contents of earlier epochs may still come, nothing is missed.
 *
 * Pieces are no objects to users: they stand in no list, count and event. */
#ifndef MC_CORE_STRIPE_H
#define MC_CORE_STRIPE_H

#include "store/core/group.h"
#include "store/core/replica.h"
#include "store/wire/stripe.h"

struct mc_core;
struct mc_connection;

#ifndef MC_STRIPE_HEADLESS_MS
#define MC_STRIPE_HEADLESS_MS 60000u /* between the last piece and the head */
#endif

static inline bool mc_object_is_head(const struct mc_object *object)
{
    const struct mc_group *group = mc_object_group(object);
    return group != NULL && group->head == object;
}
static inline bool mc_object_is_piece(const struct mc_object *object)
{
    return object->key[0] == 0 && mc_key_is_piece(mc_object_key(object));
}
/* The key by which the core knows it. *is_head: it is that of a head as it is stored. */
static inline struct mc_span mc_key_canonical(struct mc_span key, bool *is_head)
{
    *is_head = mc_key_is_head(key);
    return *is_head ? mc_key_unmarked(key) : key;
}
/* Can something of that key, as it is stored, be a head or a piece of that group, if it says so? A piece of no value's
 * group would be let go by nobody, and a head that is a piece, too, would have its reader read for ever. */
static inline bool mc_key_is_sound(struct mc_span key, uint64_t group)
{
    bool is_head = mc_key_is_head(key);
    if (is_head && !mc_key_is_plain(mc_key_unmarked(key)))
        return false;
    return (!is_head && !mc_key_is_piece(key)) || mc_stripe_can_be(group);
}
/* The key of a head as it is stored; the text has room for MC_MARK_LENGTH + MC_KEY_LENGTH_MAX. */
static inline struct mc_span mc_key_stored(const struct mc_object *object, uint8_t *text)
{
    struct mc_span key = mc_object_key(object);
    memcpy(text, MC_HEAD_MARK, MC_MARK_LENGTH);
    memcpy(text + MC_MARK_LENGTH, key.data, key.length);
    return mc_span(text, MC_MARK_LENGTH + key.length);
}

/* The extent that it takes: a head is stored under its marked key. */
static inline uint64_t mc_object_units(const struct mc_object *object)
{
    size_t mark = mc_object_is_head(object) ? MC_MARK_LENGTH : 0;
    return mc_extent_units(object->length, mc_object_key(object).length + mark);
}

/* True of any object but a head, some of whose pieces cannot be read now. */
bool mc_stripe_is_whole(const struct mc_core *core, const struct mc_object *object);
/* Of a head; the bytes of the value. */
uint64_t mc_stripe_length(const struct mc_object *object);
/* What readers know as the length of the object's value. */
static inline uint64_t mc_object_told_length(const struct mc_object *object)
{
    return mc_object_is_head(object) ? mc_stripe_length(object) : object->length;
}

/* May a head of that group be put in the place of the key's object or cell, which may be NULL? 0, or the item's code:
 * NOT_SUPPORTED: the key's value is to be put as one piece; TRANSFER_FAIL: pieces of it are gone. expected: it is
 * another place of the head that is there. */
int32_t mc_stripe_head_code(const struct mc_core *core, const struct mc_object *object, struct mc_span key,
                            uint64_t group, bool expected);
/* The successor will be a head of that group; 0: of that in which the head is that it replaces. NULL: no memory. */
struct mc_object *mc_stripe_succeed(struct mc_core *core, const struct mc_object *object, uint64_t length,
                                    uint32_t flags, uint64_t group);
/* Can it take the object's place, as far as pieces go? */
bool mc_stripe_can_succeed(const struct mc_core *core, const struct mc_object *object,
                           const struct mc_object *successor);
/* The object is there from now on. */
static inline void mc_stripe_shown(const struct mc_object *object)
{
    struct mc_group *group = mc_object_group(object);
    if (group != NULL && group->head == object)
        group->is_shown = true;
}
/* The object has the successor's value from now on. */
void mc_stripe_succeeded(struct mc_core *core, struct mc_object *object, const struct mc_object *successor);
/* Looks at what may not belong together any more, a slice. True: there is more to look at now. */
bool mc_stripes_tick(struct mc_core *core);

#endif
