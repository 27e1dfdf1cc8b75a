#include "store/core/hint_kept.h"

#include "store/core/hint.h"
#include "store/core/limits.h"
#include "store/core/member.h"
#include "store/core/offload.h"
#include "store/core/replica.h"
#include "store/core/segment.h"
#include "store/core/state.h"

#include <stdlib.h>

#define ROOM_KEPT 256u /* for so many changes room is kept where none waits; more is given back */

/* ---- noting ---- */

static bool grow(struct mc_hint_notes *notes)
{
    if (notes->first >= notes->capacity / 2 && notes->first > 0) {
        memmove(notes->items, notes->items + notes->first, notes->count * sizeof(*notes->items));
        notes->first = 0;
        return true;
    }
    uint32_t capacity = notes->capacity == 0 ? 64 : notes->capacity * 2;
    struct mc_wire_slot *items = realloc(notes->items, capacity * sizeof(*items));
    if (items == NULL)
        return false;
    notes->items = items;
    notes->capacity = capacity;
    return true;
}

/* Nothing waits any more. A thousand owners that were slow once are not to cost what they did then. */
static void all_told(struct mc_hint_notes *notes)
{
    notes->first = notes->count = notes->sent = 0;
    if (notes->capacity <= ROOM_KEPT)
        return;
    free(notes->items);
    notes->items = NULL;
    notes->capacity = 0;
}

static bool note(struct mc_hint_notes *notes, struct mc_wire_slot item)
{
    if (notes->count == MC_HINT_NOTES_MAX || (notes->first + notes->count == notes->capacity && !grow(notes)))
        return false;
    notes->items[notes->first + notes->count++] = item;
    return true;
}

/* It is the last that was noted, and is not told yet. */
static bool is_noted(const struct mc_hint_notes *notes, const struct mc_wire_slot *item)
{
    if (notes->count == notes->sent)
        return false;
    const struct mc_wire_slot *last = &notes->items[notes->first + notes->count - 1];
    return last->slot == item->slot && last->generation == item->generation;
}

static void tell(struct mc_core *core, struct mc_segment *segment, uint32_t slot)
{
    const struct mc_node *node = mc_segment_node(segment, slot);
    if (segment->kind != MC_SEGMENT_MEMORY || segment->state == MC_SEGMENT_GONE || node->state != MC_NODE_LIVE)
        return;
    struct mc_wire_slot item = {.slot = slot, .generation = mc_node_generation(core, node)};
    if (is_noted(&segment->hint_notes, &item))
        return;
    if (!note(&segment->hint_notes, item)) {
        segment->hint_notes.is_short = true;
        core->statistics.hints_not_kept++;
        return;
    }
    mc_segment_mark_dirty(core, segment);
}

/* A pin holds whatever hints say, and stands where they would: nothing is told as long as it lasts. */
void mc_hint_changed(struct mc_core *core, struct mc_segment *segment, uint32_t slot)
{
    const struct mc_object *object = mc_node_object(mc_segment_node(segment, slot));
    if (!object->soft && !object->hard)
        tell(core, segment, slot);
}

void mc_hint_object_changed(struct mc_core *core, const struct mc_object *object)
{
    for (struct mc_replica at = mc_replica_first(core, object); at.segment != NULL; at = mc_replica_next(core, at))
        mc_hint_changed(core, at.segment, at.slot);
}

unsigned mc_hint_of(const struct mc_core *core, const struct mc_node *node)
{
    const struct mc_object *object = mc_node_object(node);
    if (!object->visible || object->hard || object->soft)
        return 0;
    if (mc_node_goes_first(node))
        return (node->uses & MC_FIRST_DROPPED) != 0 ? MC_HINT_DROP : MC_HINT_PAUSE;
    return core->pausing > 0 && object->moving && mc_offload_pauses(core, object) ? MC_HINT_PAUSE : 0;
}

/* ---- telling ---- */

bool mc_hints_send(struct mc_core *core, struct mc_segment *segment)
{
    struct mc_hint_notes *notes = &segment->hint_notes;
    if (notes->sent == notes->count || segment->owner == NULL)
        return false;
    if (!mc_wire_can(&segment->owner->peer, MC_FEATURE_KEPT_HINTS)) {
        notes->is_short = true;
        all_told(notes);
        return false;
    }
    struct mc_buffer *out = mc_core_buffer(core, segment->owner->number);
    if (out == NULL)
        return false;
    struct mc_wire_segment head = {.segment = segment->number};
    size_t frame = mc_core_frame(core, out, MC_MESSAGE_HINTED, 0);
    size_t list = mc_wire_segment_head(out, &head), count = 0;
    for (; notes->sent < notes->count && count < MC_BATCH_MAX; notes->sent++, count++) {
        const struct mc_wire_slot *slot = &notes->items[notes->first + notes->sent];
        const struct mc_node *node = mc_space_node_checked(&segment->space, slot->slot);
        bool is_there =
            node != NULL && node->state == MC_NODE_LIVE && mc_node_generation(core, node) == slot->generation;
        struct mc_wire_hinted_item item = {.slot = slot->slot,
                                           .generation = slot->generation,
                                           .hint = (uint8_t)(is_there ? mc_hint_of(core, node) : 0)};
        mc_wire_hinted_item_write(out, &item);
    }
    mc_frame_end_list(out, frame, list, count);
    return true;
}

/* Only so many segments are flushed in a turn, and a hint may be of values of more: who hears of the answer is to rely
 * on it. Of many changes that wait for an owner that has just come back, only the first are said here. */
void mc_hints_send_all(struct mc_core *core)
{
    for (struct mc_link *link = core->dirty.next; link != &core->dirty; link = link->next)
        (void)mc_hints_send(core, mc_link_of(link, struct mc_segment, dirty));
}

void mc_hints_unsend(struct mc_segment *segment)
{
    segment->hint_notes.sent = 0;
}

/* In the order in which they were told; what does not fit in is the answer to something that was told before. */
void mc_hints_kept(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_segment head;
    mc_wire_segment_read(&reader, &head);
    struct mc_segment *segment = mc_segment_find(core, head.segment);
    if (segment == NULL || segment->owner != connection)
        return;
    struct mc_hint_notes *notes = &segment->hint_notes;
    for (uint32_t left = mc_list_read(&reader); left > 0; left--) {
        struct mc_wire_hinted_item item;
        mc_wire_hinted_item_read(&reader, &item);
        const struct mc_wire_slot *first = notes->sent == 0 ? NULL : &notes->items[notes->first];
        if (first == NULL || first->slot != item.slot || first->generation != item.generation)
            continue;
        notes->first++;
        notes->count--;
        notes->sent--;
        core->statistics.hints_kept++;
    }
    if (notes->count == 0)
        all_told(notes);
}

void mc_hints_free(struct mc_segment *segment)
{
    free(segment->hint_notes.items);
    segment->hint_notes = (struct mc_hint_notes){.is_short = true};
}

/* ---- what the next master is told ---- */

/* All other replicas in memory have that hint; *is_only: there is none. */
static bool agree(const struct mc_core *core, const struct mc_object *object, const struct mc_node *but, unsigned hint,
                  bool *is_only)
{
    bool all = true;
    *is_only = true;
    for (struct mc_replica at = mc_replica_first(core, object); at.segment != NULL; at = mc_replica_next(core, at)) {
        const struct mc_node *node = mc_segment_node(at.segment, at.slot);
        if (node == but || at.segment->kind != MC_SEGMENT_MEMORY || at.segment->state == MC_SEGMENT_GONE)
            continue;
        *is_only = false;
        all &= mc_hint_of(core, node) == hint;
    }
    return all;
}

void mc_hint_found(struct mc_core *core, struct mc_object *object, struct mc_segment *segment, uint32_t slot,
                   unsigned hint)
{
    bool is_known = hint == 0 || hint == MC_HINT_DROP || hint == MC_HINT_PAUSE, is_only;
    if (segment->kind != MC_SEGMENT_MEMORY)
        return;
    bool all = agree(core, object, mc_segment_node(segment, slot), hint, &is_only);
    if (hint == 0 && all)
        return;
    if (!is_known || !all || object->hard || (object->soft && !is_only)) {
        mc_hint_forget(core, object);
        tell(core, segment, slot); /* also of what is pinned elsewhere: here it is not */
        return;
    }
    if (object->soft) /* a disk has it as it was before that was said */
        mc_object_unpin(core, object);
    mc_hint_restore(core, object, segment, slot, hint == MC_HINT_DROP ? MC_FIRST_DROPPED : 0);
    core->statistics.hints_recovered++;
}
