/* Hints: see the header. */
#include "store/core/hint.h"

#include "store/core/account.h"
#include "store/core/limits.h"
#include "store/core/hint_kept.h"
#include "store/core/member.h"
#include "store/core/offload.h"
#include "store/core/request.h"
#include "store/core/replica.h"
#include "store/core/segment.h"
#include "store/core/state.h"
#include "store/core/stripe.h"
#include "store/wire/proof.h"

_Static_assert(MC_CORE_HINTS == MC_HINT_PREFETCH + 1, "a row for each");

/* ---- nodes ---- */

static bool fits_in_part(const struct mc_segment *segment, uint64_t units)
{
    uint64_t bytes = segment->populated < segment->capacity ? segment->populated : segment->capacity;
    return segment->fetched + units <= bytes / MC_EXTENT_UNIT / MC_HINT_FETCHED_PART;
}

bool mc_hint_fits_under_way(const struct mc_member *member, uint64_t units)
{
    uint64_t fetching = 0;
    const struct mc_link *link = member->segments.next;
    for (unsigned walk = MC_WALK_MAX; link != &member->segments && walk > 0; link = link->next, walk--)
        fetching += mc_link_of(link, struct mc_segment, of_member)->fetching;
    return fetching == 0 || fetching + units <= MC_HINT_LOADS_BYTES / MC_EXTENT_UNIT;
}

bool mc_hint_fits(const struct mc_segment *segment, uint64_t units)
{
    return fits_in_part(segment, units) && segment->fetches < MC_HINT_LOADS_MAX;
}

void mc_hint_load_begun(struct mc_core *core, struct mc_segment *segment, struct mc_node *node)
{
    node->awaited = node->listed = 1;
    segment->fetched += node->size;
    segment->fetching += node->size;
    segment->fetches++;
    core->fetches++;
    if (mc_core_counts(core))
        mc_account_fetches(mc_node_object(node));
}

void mc_hint_load_ended(struct mc_core *core, struct mc_segment *segment, const struct mc_node *node)
{
    if (!mc_node_is_fetched(node))
        return;
    segment->fetching -= node->size;
    segment->fetches--;
    core->fetches--;
    if (mc_core_counts(core))
        mc_account_fetched(mc_node_object(node));
}

void mc_hint_end(struct mc_segment *segment, uint32_t slot)
{
    struct mc_node *node = mc_segment_node(segment, slot);
    if (mc_node_is_fetched(node))
        segment->fetched -= node->size;
    if (mc_node_goes_first(node))
        node->uses = 0; /* they are the policy's again */
    node->listed = 0;
}

/* What the policy knows of it is as it was: it has not come anew. */
static void age_again(struct mc_segment *segment, uint32_t slot)
{
    struct mc_node *node = mc_segment_node(segment, slot);
    node->uses = 0;
    mc_eviction_append(segment, slot, node->proven);
}

bool mc_hint_used(struct mc_core *core, struct mc_segment *segment, uint32_t slot)
{
    bool was_first = mc_node_goes_first(mc_segment_node(segment, slot));
    if (was_first)
        mc_list_remove(segment, &segment->first, slot);
    mc_hint_end(segment, slot);
    if (was_first) {
        age_again(segment, slot);
        mc_hint_changed(core, segment, slot);
    }
    return was_first;
}

static bool is_paused(const struct mc_node *node)
{
    return mc_node_goes_first(node) && (node->uses & MC_FIRST_DROPPED) == 0;
}

void mc_hint_lost_on_disk(struct mc_core *core, struct mc_object *object)
{
    struct mc_replica at = mc_replica_first(core, object);
    bool is_on_disk = mc_object_on_disk(core, object).segment != NULL, was_first = false;
    for (; !is_on_disk && at.segment != NULL; at = mc_replica_next(core, at))
        if (mc_replica_ages(at.segment, object) && is_paused(mc_segment_node(at.segment, at.slot)))
            was_first |= mc_hint_used(core, at.segment, at.slot);
    if (was_first)
        mc_account_used(core, object);
}

void mc_hint_part_from_group(struct mc_object *object)
{
    const struct mc_group *group = mc_object_group(object);
    if (group != NULL)
        mc_object_membership(object)->touched = group->touched;
}

static void enter_first(struct mc_segment *segment, uint32_t slot)
{
    struct mc_node *node = mc_segment_node(segment, slot);
    mc_eviction_leave(segment, slot);
    node->uses = mc_node_is_fetched(node) ? MC_FIRST_WAS_FETCHED : 0;
    mc_hint_end(segment, slot);
    node->awaited = 0;
    node->listed = 1;
    mc_list_append(segment, &segment->first, slot);
}

void mc_hint_go_first(struct mc_core *core, struct mc_object *object, unsigned dropped)
{
    mc_assert(object->visible && !object->soft);
    mc_hint_part_from_group(object);
    if (mc_core_counts(core))
        mc_account_goes_first(object);
    for (struct mc_replica at = mc_replica_first(core, object); at.segment != NULL; at = mc_replica_next(core, at)) {
        struct mc_node *node = mc_segment_node(at.segment, at.slot);
        if (!mc_replica_ages(at.segment, object))
            continue;
        bool was_so = mc_node_goes_first(node) && (node->uses & MC_FIRST_DROPPED) == dropped;
        if (!mc_node_goes_first(node))
            enter_first(at.segment, at.slot);
        node->uses = ((node->uses & MC_FIRST_WAS_FETCHED) | dropped) & 3u;
        if (!was_so)
            mc_hint_changed(core, at.segment, at.slot);
    }
    if (object->moving)
        mc_offload_go_first(core, object, dropped);
}

void mc_hint_restore(struct mc_core *core, struct mc_object *object, struct mc_segment *segment, uint32_t slot,
                     unsigned dropped)
{
    struct mc_node *node = mc_segment_node(segment, slot);
    mc_assert(mc_replica_ages(segment, object) && !object->soft);
    mc_hint_part_from_group(object);
    if (mc_core_counts(core) && dropped != 0)
        mc_account_goes_first(object);
    if (!mc_node_goes_first(node))
        enter_first(segment, slot);
    node->uses = dropped & 3u;
}

void mc_hint_forget(struct mc_core *core, const struct mc_object *object)
{
    for (struct mc_replica at = mc_replica_first(core, object); at.segment != NULL; at = mc_replica_next(core, at))
        if (mc_replica_ages(at.segment, object) && mc_node_goes_first(mc_segment_node(at.segment, at.slot)))
            (void)mc_hint_used(core, at.segment, at.slot);
}

bool mc_hint_awaits_disk(const struct mc_core *core, const struct mc_node *node)
{
    return is_paused(node) && mc_object_on_disk(core, mc_node_object(node)).segment == NULL;
}

void mc_hint_store_first(struct mc_core *core, struct mc_segment *segment, uint32_t slot)
{
    struct mc_object *object = mc_node_object(mc_segment_node(segment, slot));
    (void)mc_hint_used(core, segment, slot);
    (void)mc_offload_pause(core, object);
}

bool mc_hint_holds(const struct mc_core *core, const struct mc_object *object)
{
    return mc_hint_is_first(core, object) ||
           (core->pausing > 0 && object->moving && mc_offload_is_paused(core, object));
}

bool mc_hint_is_first(const struct mc_core *core, const struct mc_object *object)
{
    for (struct mc_replica at = mc_replica_first(core, object); at.segment != NULL; at = mc_replica_next(core, at))
        if (at.segment->kind == MC_SEGMENT_MEMORY && mc_node_goes_first(mc_segment_node(at.segment, at.slot)))
            return true;
    return false;
}

/* ---- what is said ---- */

static int32_t drop(struct mc_core *core, struct mc_object *object)
{
    if (object->hard)
        return MC_ERR_OBJECT_IS_PINNED;
    if (object->soft)
        mc_object_unpin(core, object);
    if (object->moving)
        mc_offload_unpause(core, object); /* that it pauses was said before */
    mc_hint_go_first(core, object, MC_FIRST_DROPPED);
    return 0;
}

/* A pin holds whoever pauses: only the disk is to have it. */
static int32_t pause(struct mc_core *core, struct mc_object *object, uint64_t for_ms)
{
    struct mc_replica disk = mc_object_on_disk(core, object);
    if (for_ms > 0 && for_ms < MC_HINT_PAUSE_LEAST_MS)
        return 0;
    if (disk.segment == NULL || disk.segment->state != MC_SEGMENT_OK)
        return mc_offload_pause(core, object) ? MC_HINT_BEGUN : 0;
    if (!object->hard && !object->soft)
        mc_hint_go_first(core, object, 0);
    return 0;
}

/* Was it loaded for a hint, and nobody has asked for it since? */
static bool is_fetched(const struct mc_core *core, const struct mc_object *object)
{
    for (struct mc_replica at = mc_replica_first(core, object); at.segment != NULL; at = mc_replica_next(core, at))
        if (mc_node_is_fetched(mc_segment_node(at.segment, at.slot)))
            return true;
    return false;
}

/* It goes first, after it was fetched: fetched again. False: there are as many as may be, it goes first as before. */
static bool fetched_again(struct mc_core *core, struct mc_segment *segment, uint32_t slot)
{
    struct mc_node *node = mc_segment_node(segment, slot);
    if (!fits_in_part(segment, node->size))
        return false;
    mc_list_remove(segment, &segment->first, slot);
    node->awaited = 1;
    segment->fetched += node->size;
    age_again(segment, slot);
    mc_hint_changed(core, segment, slot);
    return true;
}

static bool all_fetched_again(struct mc_core *core, const struct mc_object *object)
{
    for (struct mc_replica at = mc_replica_first(core, object); at.segment != NULL; at = mc_replica_next(core, at)) {
        const struct mc_node *node = mc_segment_node(at.segment, at.slot);
        if (mc_replica_ages(at.segment, object) && mc_node_goes_first(node) &&
            (node->uses & MC_FIRST_WAS_FETCHED) != 0 && !fetched_again(core, at.segment, at.slot))
            return false;
    }
    return true;
}

static int32_t prefetch(struct mc_core *core, struct mc_object *object)
{
    struct mc_replica replica;
    if (mc_object_readable(core, object, &replica, 1) == 0)
        return mc_offload_fetch(core, object);
    if (!all_fetched_again(core, object))
        return MC_ERR_NO_AVAILABLE_HANDLE;
    if (!is_fetched(core, object)) /* by hints alone nobody makes room for more, */
        mc_object_touch(core, object);
    mc_account_used(core, object); /* but of one's own it is as young as any */
    return 0;
}

static bool may(const struct mc_connection *connection, bool is_fetch)
{
    return connection->key == 0 || (connection->rights & (is_fetch ? MC_RIGHT_READ : MC_RIGHT_WRITE)) != 0;
}

static int32_t hint_object(struct mc_core *core, struct mc_object *object, const struct mc_wire_hint *hint)
{
    bool is_fetch = hint->hint == MC_HINT_RESUME || hint->hint == MC_HINT_PREFETCH;
    return is_fetch                     ? prefetch(core, object)
           : hint->hint == MC_HINT_DROP ? drop(core, object)
                                        : pause(core, object, hint->for_ms);
}

/* The same of all pieces of a value. What comes into memory may evict others of them. */
static int32_t hint_pieces(struct mc_core *core, const struct mc_object *head, const struct mc_wire_hint *hint,
                           int32_t code)
{
    struct mc_reading pieces[MC_STRIPE_PIECES_MAX];
    const struct mc_group *group = mc_object_group(head);
    uint32_t count = 0;
    for (struct mc_object *at = group->first; at != NULL && count < MC_STRIPE_PIECES_MAX;
         at = mc_object_membership(at)->next)
        if (mc_object_is_piece(at) && at->visible)
            pieces[count++] = (struct mc_reading){at, at->serial};
    for (uint32_t i = 0; i < count && code >= 0; i++) {
        if (pieces[i].object->serial != pieces[i].serial || !pieces[i].object->visible)
            return MC_ERR_OBJECT_NOT_FOUND;
        int32_t one = hint_object(core, pieces[i].object, hint);
        code = one < 0 || one > code ? one : code;
    }
    return code;
}

static int32_t hint_one(struct mc_core *core, const struct mc_connection *connection, struct mc_span key,
                        const struct mc_wire_hint *hint)
{
    bool is_fetch = hint->hint == MC_HINT_RESUME || hint->hint == MC_HINT_PREFETCH;
    if (key.length == 0 || key.length > MC_KEY_LENGTH_MAX)
        return MC_ERR_INVALID_KEY;
    if (!may(connection, is_fetch))
        return MC_ERR_NOT_PERMITTED;
    struct mc_object *object = mc_object_find(core, key);
    if (object == NULL)
        return MC_ERR_OBJECT_NOT_FOUND;
    if (!object->visible)
        return MC_ERR_REPLICA_IS_NOT_READY;
    if ((!is_fetch && !mc_object_stored(core, object)) || !mc_stripe_is_whole(core, object))
        return MC_ERR_OBJECT_NOT_FOUND; /* nobody that has it answers just now */
    int32_t code = hint_object(core, object, hint);
    return code >= 0 && mc_object_is_head(object) ? hint_pieces(core, object, hint, code) : code;
}

static enum mc_core_hinted outcome_of(int32_t code)
{
    switch (code) {
    case 0:
        return MC_CORE_HINT_DONE;
    case MC_HINT_BEGUN:
        return MC_CORE_HINT_BEGUN;
    case MC_ERR_OBJECT_NOT_FOUND:
        return MC_CORE_HINT_ABSENT;
    case MC_ERR_NO_AVAILABLE_HANDLE:
        return MC_CORE_HINT_NO_ROOM;
    default:
        return MC_CORE_HINT_REFUSED;
    }
}

void mc_request_hint(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_span keys[MC_BATCH_MAX];
    int32_t codes[MC_BATCH_MAX];
    struct mc_wire_hint hint;
    struct mc_wire_none none = {0};
    mc_wire_hint_read(&reader, &hint);
    uint32_t count = mc_keys_read(connection, &reader, keys);
    bool is_known = hint.hint >= MC_HINT_DROP && hint.hint < MC_CORE_HINTS; /* else of a later release */
    core->stamp++;
    for (uint32_t i = 0; i < count; i++) {
        /* Looked for one by one: what comes into memory may evict what was found before. */
        codes[i] = is_known ? hint_one(core, connection, keys[i], &hint) : MC_ERR_NOT_SUPPORTED;
        if (is_known)
            core->statistics.hints[hint.hint][outcome_of(codes[i])]++;
    }
    mc_hints_send_all(core);
    struct mc_buffer *out = mc_core_buffer(core, connection->number);
    if (out == NULL)
        return;
    size_t at = mc_core_frame(core, out, MC_MESSAGE_HINT_REPLY, frame->request_id);
    size_t list = mc_wire_none_head(out, &none);
    for (uint32_t i = 0; i < count; i++) {
        struct mc_wire_code code = {.code = codes[i]};
        mc_wire_code_write(out, &code);
    }
    mc_frame_end_list(out, at, list, count);
}
