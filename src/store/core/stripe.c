#include "store/core/stripe.h"

#include "store/core/place.h"
#include "store/core/put.h"
#include "store/core/recover.h"
#include "store/core/replica.h"
#include "store/core/segment.h"
#include "store/core/state.h"
#include "store/core/tombstone.h"

#define LOOKS_MAX 1024u /* groups and members that a tick looks at, and at most a group's more */
#define DROPS_MAX MC_STRIPE_PIECES_MAX

/* ---- what is there ---- */

/* All pieces are there, and nothing else: a group with others in it, which would all be walked over, is no value. */
static bool is_complete(const struct mc_group *group)
{
    uint32_t heads = group->head != NULL ? 1 : 0;
    return group->pieces == mc_stripe_count(group->id) && group->count == group->pieces + heads && !group->is_over;
}

bool mc_stripe_is_whole(const struct mc_core *core, const struct mc_object *object)
{
    const struct mc_group *group = mc_object_group(object);
    if (group == NULL || group->head != object)
        return true;
    if (!is_complete(group))
        return false;
    for (const struct mc_object *at = group->first; at != NULL; at = mc_object_membership(at)->next)
        if (mc_object_is_piece(at) && !mc_object_stored(core, at) && !mc_object_waits(at))
            return false;
    return true;
}

uint64_t mc_stripe_length(const struct mc_object *object)
{
    uint64_t length = 0;
    const struct mc_group *group = mc_object_group(object);
    for (const struct mc_object *at = group->first; at != NULL; at = mc_object_membership(at)->next)
        length += mc_object_is_piece(at) ? at->length : 0;
    return length;
}

/* ---- a head comes ---- */

/* All pieces are there, and no head is. */
static bool takes_head(const struct mc_core *core, struct mc_span key, uint64_t id)
{
    const struct mc_group *group = mc_stripe_can_be(id) ? mc_group_find(&core->groups, id, key) : NULL;
    return group != NULL && group->head == NULL && is_complete(group);
}

int32_t mc_stripe_head_code(const struct mc_core *core, const struct mc_object *object, struct mc_span key,
                            uint64_t group, bool expected)
{
    bool is_head = object != NULL && object->tombstone == 0 && mc_object_is_head(object);
    if (expected)
        return is_head ? 0 : MC_ERR_STALE;
    if (!takes_head(core, key, group))
        return MC_ERR_TRANSFER_FAIL;
    if (object != NULL && object->visible && (object->hard || object->soft))
        return MC_ERR_NOT_SUPPORTED; /* the pin of one object is not that of many */
    if (object == NULL || object->roomy)
        return 0;
    if (object->tombstone != 0) /* as in a group: a cell stays what it is as long as it is held */
        return object->clearing > 0 ? MC_ERR_PUT_IN_PROGRESS : 0;
    return MC_ERR_NOT_SUPPORTED;
}

struct mc_object *mc_stripe_succeed(struct mc_core *core, const struct mc_object *object, uint64_t length,
                                    uint32_t flags, uint64_t group)
{
    struct mc_object *successor = mc_object_succeed(core, object, length, flags);
    if (successor != NULL)
        mc_object_membership(successor)->wished = group != 0 ? group : mc_object_group_id(object);
    return successor;
}

bool mc_stripe_can_succeed(const struct mc_core *core, const struct mc_object *object,
                           const struct mc_object *successor)
{
    uint64_t wished = mc_object_membership(successor)->wished;
    if (wished == 0)
        return true;
    return object->roomy && ((mc_object_is_head(object) && mc_object_group_id(object) == wished) ||
                             takes_head(core, mc_object_key(object), wished));
}

void mc_stripe_succeeded(struct mc_core *core, struct mc_object *object, const struct mc_object *successor)
{
    uint64_t wished = mc_object_membership(successor)->wished;
    bool was_head = mc_object_is_head(object);
    if ((wished == 0 && !was_head) || (was_head && mc_object_group_id(object) == wished))
        return;
    mc_group_leave(&core->groups, object);
    if (wished == 0)
        return;
    bool joined = mc_group_join(&core->groups, object, wished);
    mc_assert(joined); /* the group is there: it needs no memory */
    mc_group_head(&core->groups, object);
    mc_stripe_shown(object); /* or will be, when the value before is cleared */
}

/* ---- what is left goes ---- */

static bool is_settled(const struct mc_core *core)
{
    return !mc_recover_unsettled(core) && mc_link_alone(&core->recovering);
}

/* At once, without holding its key for longer than its owners need, and with nothing below it. */
static bool may_be_dropped(struct mc_core *core, const struct mc_object *object)
{
    if (!object->visible || mc_key_hides(core, object))
        return false;
    for (struct mc_replica at = mc_replica_first(core, object); at.segment != NULL; at = mc_replica_next(core, at))
        if (at.segment->state != MC_SEGMENT_OK && !mc_segment_ask_departed(core, at.segment))
            return false;
    return true;
}

static void drop(struct mc_core *core, struct mc_object *object)
{
    if (may_be_dropped(core, object))
        mc_object_drop(core, object, NULL);
}

/* The last to leave frees the group. How many were looked at. */
static uint32_t drop_pieces(struct mc_core *core, struct mc_group *group)
{
    uint32_t count = group->count < DROPS_MAX ? group->count : DROPS_MAX;
    for (uint32_t left = count; left > 0; left--) {
        struct mc_object *object = group->first;
        bool is_last = group->count == 1;
        mc_group_turn(group);
        if (!mc_object_is_piece(object))
            continue;
        drop(core, object);
        if (is_last)
            break;
    }
    return count;
}

/* Of a group that is larger than a value's nobody asks. */
static bool are_all_visible(const struct mc_group *group)
{
    if (group->count > MC_STRIPE_PIECES_MAX)
        return true;
    for (const struct mc_object *at = group->first; at != NULL; at = mc_object_membership(at)->next)
        if (!at->visible)
            return false;
    return true;
}

/* It may free the group. How much was looked at. */
static uint32_t group_look(struct mc_core *core, struct mc_group *group)
{
    uint32_t looks = 1;
    if (group->head == NULL && group->pieces == 0) {
        mc_link_remove(&group->open);
    } else if (group->is_over) {
        looks += drop_pieces(core, group);
    } else if (group->head != NULL && is_complete(group)) {
        mc_link_remove(&group->open);
    } else if (!is_settled(core)) {
        group->headless_ms = 0;
    } else if (group->head != NULL) {
        drop(core, group->head);
    } else if (group->headless_ms == 0) {
        looks += group->count < MC_STRIPE_PIECES_MAX ? group->count : MC_STRIPE_PIECES_MAX;
        if (are_all_visible(group))
            group->headless_ms = core->now_ms == 0 ? 1 : core->now_ms;
    } else if (core->now_ms - group->headless_ms >= MC_STRIPE_HEADLESS_MS) {
        group->is_over = true;
    }
    return looks;
}

bool mc_stripes_tick(struct mc_core *core)
{
    struct mc_link *stripes = &core->groups.stripes, *turn = &core->groups.stripes_turn;
    uint32_t left = LOOKS_MAX;
    if (mc_link_alone(stripes))
        return false;
    if (mc_link_alone(turn))
        mc_link_append(stripes, turn); /* a round begins, in which each is looked at once */
    while (stripes->next != turn && left > 0) {
        struct mc_group *group = mc_link_of(stripes->next, struct mc_group, open);
        mc_link_remove(&group->open);
        mc_link_append(stripes, &group->open);
        uint32_t looks = group_look(core, group);
        left -= looks < left ? looks : left;
    }
    if (stripes->next != turn)
        return true;
    mc_link_remove(turn); /* what is still to go is asked for at the next tick */
    return false;
}
