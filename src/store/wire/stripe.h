/* A value that is larger than a stripe is put in pieces, objects of their own on many segments, and a head, a small
 * object that says which they are. Readers begin at the head, so the value is there as long as that is, and whole.
 *
 * All of it is said by keys and groups, which owners of every release keep as they are told them:
 *
 *   key of a piece            the mark of pieces, the scope of the value's key (tenant.h), 'p', a number drawn by the
 *                             writer, and which of the pieces it is
 *   key of a head, as it is   the mark of heads, and the key of the value. So who knows nothing of heads does not find
 *   stored                    the value, and never takes a head's bytes for it. To a master that knows them it is the
 *                             object of the value's key
 *   group of both             that number, and how many pieces there are */
#ifndef MC_WIRE_STRIPE_H
#define MC_WIRE_STRIPE_H

#include "base/bytes.h"

#include <stdbool.h>
#include <string.h>

#define MC_MARK_LENGTH 4u /* no key of a user's begins like that, and no tenant's name or stamp */
#define MC_HEAD_MARK "\0\003\305\176"
#define MC_PIECE_MARK "\0\002\305\176"
#define MC_PIECE_NAME_LENGTH 13u /* behind mark and scope */

#define MC_STRIPE_COUNT_BITS 16
#ifndef MC_STRIPE_PIECES_MAX
#define MC_STRIPE_PIECES_MAX 256u /* of one value: what is asked of a head, all of them are looked at for */
#endif

static inline bool mc_key_has_mark(struct mc_span key, const char *mark)
{
    return key.length > MC_MARK_LENGTH && *(const uint8_t *)key.data == 0 &&
           memcmp(key.data, mark, MC_MARK_LENGTH) == 0;
}
static inline bool mc_key_is_head(struct mc_span key)
{
    return mc_key_has_mark(key, MC_HEAD_MARK);
}
static inline bool mc_key_is_piece(struct mc_span key)
{
    return mc_key_has_mark(key, MC_PIECE_MARK) && key.length >= MC_MARK_LENGTH + MC_PIECE_NAME_LENGTH;
}
/* Of neither mark: what may stand behind that of a head. */
static inline bool mc_key_is_plain(struct mc_span key)
{
    return !mc_key_has_mark(key, MC_HEAD_MARK) && !mc_key_has_mark(key, MC_PIECE_MARK);
}
/* Without its mark, if it has one. */
static inline struct mc_span mc_key_unmarked(struct mc_span key)
{
    bool is_marked = mc_key_is_head(key) || mc_key_is_piece(key);
    return is_marked ? mc_span((const uint8_t *)key.data + MC_MARK_LENGTH, key.length - MC_MARK_LENGTH) : key;
}

static inline uint64_t mc_stripe_group(uint64_t number, uint32_t count)
{
    return number << MC_STRIPE_COUNT_BITS | count;
}
static inline uint32_t mc_stripe_count(uint64_t group)
{
    return (uint32_t)(group & ((1u << MC_STRIPE_COUNT_BITS) - 1));
}
/* Can a value have that group? */
static inline bool mc_stripe_can_be(uint64_t group)
{
    return mc_stripe_count(group) >= 2 && mc_stripe_count(group) <= MC_STRIPE_PIECES_MAX &&
           group >> MC_STRIPE_COUNT_BITS != 0;
}

#endif
