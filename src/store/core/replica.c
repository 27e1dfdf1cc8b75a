/* Nodes and objects: how a replica comes, ages and goes, and what its owner is told about it (R1 to R3, P-cut of the
 * ordering page). */
#include "store/core/account.h"
#include "store/core/hint.h"
#include "store/core/hint_kept.h"
#include "store/core/job.h"
#include "store/core/limits.h"
#include "store/core/list.h"
#include "store/core/media.h"
#include "store/core/member.h"
#include "store/core/offload.h"
#include "store/core/pin.h"
#include "store/core/put.h"
#include "store/core/replica.h"
#include "store/core/segment.h"
#include "store/core/state.h"
#include "store/core/stripe.h"
#include "store/core/successor.h"
#include "store/core/tombstone.h"

/* ---- lists of nodes ---- */

void mc_list_append(struct mc_segment *segment, struct mc_node_list *list, uint32_t slot)
{
    struct mc_node *node = mc_segment_node(segment, slot);
    node->list_previous = list->tail;
    node->list_next = MC_NODE_NONE;
    node->ahead = 0;
    if (list->mark == MC_NODE_NONE)
        list->mark = slot;
    if (list->tail == MC_NODE_NONE)
        list->head = slot;
    else
        mc_segment_node(segment, list->tail)->list_next = slot;
    list->tail = slot;
    list->count++;
}

void mc_list_remove(struct mc_segment *segment, struct mc_node_list *list, uint32_t slot)
{
    struct mc_node *node = mc_segment_node(segment, slot);
    list->ahead -= node->ahead ? node->size : 0;
    node->ahead = 0;
    if (list->mark == slot)
        list->mark = node->list_next;
    if (node->list_previous == MC_NODE_NONE)
        list->head = node->list_next;
    else
        mc_segment_node(segment, node->list_previous)->list_next = node->list_next;
    if (node->list_next == MC_NODE_NONE)
        list->tail = node->list_previous;
    else
        mc_segment_node(segment, node->list_next)->list_previous = node->list_previous;
    list->count--;
}

void mc_list_advance(struct mc_segment *segment, struct mc_node_list *list)
{
    struct mc_node *node = mc_segment_node(segment, list->mark);
    node->ahead = 1;
    list->ahead += node->size;
    list->mark = node->list_next;
}

void mc_list_insert_ahead(struct mc_segment *segment, struct mc_node_list *list, uint32_t slot)
{
    struct mc_node *node = mc_segment_node(segment, slot);
    if (list->mark == MC_NODE_NONE) {
        mc_list_append(segment, list, slot);
        mc_list_advance(segment, list);
        return;
    }
    struct mc_node *next = mc_segment_node(segment, list->mark);
    node->list_next = list->mark;
    node->list_previous = next->list_previous;
    if (next->list_previous == MC_NODE_NONE)
        list->head = slot;
    else
        mc_segment_node(segment, next->list_previous)->list_next = slot;
    next->list_previous = slot;
    list->count++;
    node->ahead = 1;
    list->ahead += node->size;
}

/* The lists of a segment that is gone are no longer kept. */
bool mc_replica_ages(const struct mc_segment *segment, const struct mc_object *object)
{
    /* What lies on a disk goes as its owner chooses. */
    return object->visible && !object->hard && segment->state != MC_SEGMENT_GONE && segment->kind == MC_SEGMENT_MEMORY;
}

/* ---- the end of a node ---- */

void mc_node_free(struct mc_core *core, struct mc_segment *segment, uint32_t slot)
{
    if (segment->kind == MC_SEGMENT_DISK)
        mc_space_number_give(&segment->space, slot);
    else
        mc_space_release(&segment->space, slot);
    mc_segment_update_room(core, segment);
}

void mc_segment_mark_dirty(struct mc_core *core, struct mc_segment *segment)
{
    if (segment->owner != NULL && mc_link_alone(&segment->dirty))
        mc_link_append(&core->dirty, &segment->dirty);
}

void mc_node_clear(struct mc_core *core, struct mc_segment *segment, uint32_t slot, struct mc_object *object)
{
    struct mc_node *node = mc_segment_node(segment, slot);
    mc_hint_end(segment, slot);
    node->awaited = 0;
    segment->used -= node->size;
    if (segment->state == MC_SEGMENT_GONE) { /* nobody is left to be told, the sweep frees it all */
        node->state = MC_NODE_DEAD;
        return;
    }
    node->state = MC_NODE_CLEARING;
    node->pointer = 0;
    node->seen = mc_segment_ask_departed(core, segment) ? MC_CLEARING_LATE : 0;
    segment->late += node->seen;
    segment->clearing += node->size;
    mc_list_append(segment, &segment->clears, slot);
    if (segment->clear_unsent == MC_NODE_NONE)
        segment->clear_unsent = slot;
    mc_node_set_clearing_writer(node, NULL);
    if (object != NULL && !mc_segment_ask_departed(core, segment)) {
        if (object->successor)
            mc_key_hold_entry(core, node, mc_object_key(object));
        else
            mc_key_hold(core, node, object);
        if (object->visible)
            mc_key_remains_more(core, node);
    }
    core->statistics.clears++;
    mc_segment_mark_dirty(core, segment);
    mc_segment_update_room(core, segment);
}

/* The extent rests until the owner says that the writer stores there no more. */
static void rest(struct mc_core *core, struct mc_segment *segment, uint32_t slot, struct mc_writer *writer)
{
    struct mc_node *node = mc_segment_node(segment, slot);
    node->state = MC_NODE_QUARANTINE;
    node->pointer = (uint64_t)(uintptr_t)writer & ((1ull << 48) - 1);
    segment->quarantine += node->size;
    mc_list_append(segment, &segment->cuts, slot);
    if (segment->cut_unsent == MC_NODE_NONE)
        segment->cut_unsent = slot;
    mc_segment_mark_dirty(core, segment);
    mc_segment_update_room(core, segment);
}

/* In two steps, because a writer that is stopped in its copy holds up the second for as long as it stands: the first
 * one ends what concerns the key, at once. */
void mc_node_cut(struct mc_core *core, struct mc_segment *segment, uint32_t slot, struct mc_object *object,
                 struct mc_writer *writer)
{
    struct mc_node *node = mc_segment_node(segment, slot);
    if (object != NULL || segment->state == MC_SEGMENT_GONE)
        mc_node_clear(core, segment, slot, object);
    if (segment->state == MC_SEGMENT_GONE)
        return;
    core->statistics.cuts++;
    writer->references++;
    if (object != NULL) {
        mc_node_set_clearing_writer(node, writer);
        return;
    }
    segment->used -= node->size;
    rest(core, segment, slot, writer);
}

static void leave_clears(struct mc_core *core, struct mc_segment *segment, uint32_t slot)
{
    struct mc_node *node = mc_segment_node(segment, slot);
    struct mc_writer *writer = mc_node_clearing_writer(node);
    uint32_t next = node->list_next;
    if (segment->clear_unsent == slot)
        segment->clear_unsent = next;
    if (segment->release == slot)
        segment->release = next;
    mc_list_remove(segment, &segment->clears, slot);
    segment->clearing -= node->size;
    segment->late -= node->seen & MC_CLEARING_LATE;
    segment->refused -= (node->seen & MC_CLEARING_REFUSED) != 0;
    if (segment->inventory == MC_INVENTORY_NONE)
        segment->told_ms = mc_core_life_ms(core); /* it goes on */
    mc_key_release(core, node);
    if (writer != NULL)
        rest(core, segment, slot, writer);
    else
        mc_node_free(core, segment, slot);
}

static void leave_cuts(struct mc_core *core, struct mc_segment *segment, uint32_t slot)
{
    struct mc_node *node = mc_segment_node(segment, slot);
    if (segment->cut_unsent == slot)
        segment->cut_unsent = node->list_next;
    mc_list_remove(segment, &segment->cuts, slot);
    segment->quarantine -= node->size;
    core->statistics.cuts_done++;
    mc_writer_release((struct mc_writer *)(uintptr_t)node->pointer);
    mc_node_free(core, segment, slot);
}

/* CLEARED and CUT_DONE: the owner's word that nobody can read or write the extents any more. */
static void owner_done(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame,
                       uint64_t state, void (*leave)(struct mc_core *core, struct mc_segment *segment, uint32_t slot))
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_segment head;
    mc_wire_segment_read(&reader, &head);
    struct mc_segment *segment = mc_segment_find(core, head.segment);
    if (segment == NULL || segment->member != connection->member)
        return; /* gone meanwhile */
    for (uint32_t count = mc_list_read(&reader); count > 0; count--) {
        struct mc_wire_slot item;
        mc_wire_slot_read(&reader, &item);
        const struct mc_node *node = mc_space_node_checked(&segment->space, item.slot);
        if (node != NULL && node->state == state && mc_node_generation(core, node) == item.generation)
            leave(core, segment, item.slot);
    }
}

void mc_node_cleared(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame)
{
    owner_done(core, connection, frame, MC_NODE_CLEARING, leave_clears);
}

void mc_node_cut_done(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame)
{
    owner_done(core, connection, frame, MC_NODE_QUARANTINE, leave_cuts);
}

/* ---- telling the owner ---- */

/* One frame of CLEAR or CUT from *unsent on; false when there is nothing to send or nobody to send it to. */
static bool send_some(struct mc_core *core, struct mc_segment *segment, enum mc_message type, uint32_t *unsent)
{
    struct mc_buffer *out =
        *unsent == MC_NODE_NONE || segment->owner == NULL ? NULL : mc_core_buffer(core, segment->owner->number);
    if (out == NULL)
        return false;
    struct mc_wire_segment head = {.segment = segment->number};
    size_t frame = mc_core_frame(core, out, type, 0);
    size_t list = mc_wire_segment_head(out, &head), count = 0;
    for (; *unsent != MC_NODE_NONE && count < MC_BATCH_MAX; count++) {
        const struct mc_node *node = mc_segment_node(segment, *unsent);
        uint64_t generation = mc_node_generation(core, node);
        if (type == MC_MESSAGE_CLEAR) {
            struct mc_wire_slot item = {.slot = *unsent, .generation = generation};
            mc_wire_slot_write(out, &item);
        } else {
            const struct mc_writer *writer = (const struct mc_writer *)(uintptr_t)node->pointer;
            struct mc_wire_cut_item item = {.slot = *unsent, .generation = generation, .writer = writer->id};
            mc_wire_cut_item_write(out, &item);
        }
        *unsent = node->list_next;
    }
    mc_frame_end_list(out, frame, list, count);
    return true;
}

bool mc_segment_flush(struct mc_core *core, struct mc_segment *segment)
{
    for (unsigned frames = 0; frames < MC_SLICE_FRAMES; frames += 2) {
        bool sent = mc_offload_send(core, segment); /* first: what is over by then is to be cleared */
        sent |= send_some(core, segment, MC_MESSAGE_CLEAR, &segment->clear_unsent);
        sent |= send_some(core, segment, MC_MESSAGE_CUT, &segment->cut_unsent);
        sent |= mc_hints_send(core, segment);
        if (!sent)
            return false; /* all said, or nobody listens: then it is said after the next mount */
    }
    return segment->clear_unsent != MC_NODE_NONE || segment->cut_unsent != MC_NODE_NONE ||
           segment->hint_notes.sent < segment->hint_notes.count || mc_offload_may_send(segment);
}

bool mc_segment_release_keys(struct mc_core *core, struct mc_segment *segment)
{
    if (!mc_segment_ask_departed(core, segment))
        segment->release = MC_NODE_NONE; /* it is back, and clears what it is told */
    for (uint32_t budget = MC_SLICE_SLOTS; segment->release != MC_NODE_NONE && budget > 0; budget--) {
        struct mc_node *node = mc_segment_node(segment, segment->release);
        segment->release = node->list_next;
        segment->late += (node->seen & MC_CLEARING_LATE) == 0;
        node->seen |= MC_CLEARING_LATE;
        mc_key_release(core, node);
    }
    return segment->release != MC_NODE_NONE;
}

/* ---- objects and their replicas ---- */

void mc_object_link(struct mc_core *core, struct mc_object *object, struct mc_segment *segment, uint32_t slot)
{
    struct mc_node *node = mc_segment_node(segment, slot);
    node->pointer = (uint64_t)(uintptr_t)object & ((1ull << 48) - 1);
    node->replica_next_segment = object->first_segment;
    node->replica_next_slot = object->first_slot;
    object->first_segment = segment->index;
    object->first_slot = slot;
    if (mc_core_counts(core))
        mc_account_linked(core, object, segment);
    mc_firm_linked(core, object, segment);
}

static void unlink_node(struct mc_core *core, struct mc_object *object, const struct mc_segment *segment, uint32_t slot)
{
    const struct mc_node *node = mc_segment_node(segment, slot);
    if (object->first_segment == segment->index && object->first_slot == slot) {
        object->first_segment = (uint16_t)node->replica_next_segment;
        object->first_slot = node->replica_next_slot;
        return;
    }
    struct mc_node *at = mc_segment_node(core->segments[object->first_segment], object->first_slot);
    while (at->replica_next_segment != segment->index || at->replica_next_slot != slot)
        at = mc_segment_node(core->segments[at->replica_next_segment], at->replica_next_slot);
    at->replica_next_segment = node->replica_next_segment;
    at->replica_next_slot = node->replica_next_slot;
}

void mc_object_unlink(struct mc_core *core, struct mc_object *object, struct mc_segment *segment, uint32_t slot)
{
    unlink_node(core, object, segment, slot);
    if (mc_core_counts(core))
        mc_account_unlinked(core, object, segment);
    mc_firm_unlinked(core, object, segment);
}

struct mc_object *mc_object_find(const struct mc_core *core, struct mc_span key)
{
    struct mc_object *object = mc_objects_find(&core->objects, key);
    return object != NULL && object->tombstone == 0 ? object : NULL;
}

static void set_wishes(struct mc_object *object, uint64_t length, uint32_t flags)
{
    object->length = length & ((1ull << 48) - 1);
    object->hard = (flags & MC_PUT_HARD_PIN) != 0;
    object->soft = !object->hard && (flags & MC_PUT_SOFT_PIN) != 0;
}

/* A new object of that key in the table; NULL when memory is out. */
static struct mc_object *begin_new(struct mc_core *core, struct mc_span key, uint64_t group)
{
    struct mc_object *object =
        group == 0 ? mc_object_create(&core->objects, key) : mc_object_create_roomy(&core->objects, key);
    if (object == NULL)
        return NULL;
    if (group != 0 && !mc_group_join(&core->groups, object, group))
        goto fail_group;
    if (!mc_objects_insert(&core->objects, object))
        goto fail_insert;
    return object;
fail_insert:
    mc_group_leave(&core->groups, object);
fail_group:
    mc_object_free(&core->objects, object);
    return NULL;
}

/* The cell of a key is an object again; NULL when memory is out. */
static struct mc_object *begin_again(struct mc_core *core, struct mc_object *cell, uint64_t group)
{
    struct mc_object *object =
        group != 0 && !cell->roomy && cell->clearing == 0 ? mc_tombstone_enlarge(core, cell) : cell;
    if (object == NULL || (group != 0 && object->roomy && !mc_group_join(&core->groups, object, group)))
        return NULL;
    mc_tombstone_revive(core, object);
    object->soft_until = 1;
    object->met = 1;
    return object;
}

struct mc_object *mc_object_begin(struct mc_core *core, struct mc_object *cell, struct mc_span key, uint64_t length,
                                  uint32_t flags, uint64_t group)
{
    struct mc_object *object = cell == NULL ? begin_new(core, key, group) : begin_again(core, cell, group);
    if (object != NULL)
        set_wishes(object, length, flags);
    return object;
}

static void count_size(struct mc_core *core, uint64_t length)
{
    static const uint64_t bounds[7] = {4096, 65536, 262144, 1048576, 4194304, 16777216, 67108864};
    unsigned at = 0;
    while (at < 7 && length > bounds[at])
        at++;
    core->statistics.value_size_histogram[at]++;
    core->statistics.value_size_histogram[8] += length;
}

/* The group is as young as the youngest of its members. */
static void group_use(const struct mc_core *core, struct mc_object *object)
{
    struct mc_group *group = mc_object_group(object);
    if (group == NULL)
        return;
    group->touched = (uint16_t)(core->now_ms >> MC_GROUP_AGE_SHIFT);
    mc_object_membership(object)->touched = group->touched;
}

void mc_object_appear(struct mc_core *core, struct mc_object *object)
{
    struct mc_replica first = mc_replica_first(core, object);
    bool was_on_disk = mc_segment_node(first.segment, first.slot)->proven;
    core->statistics.put_bytes += object->length;
    count_size(core, object->length);
    group_use(core, object); /* of what an inventory tells it is as it was: a hint of another member holds */
    mc_object_show(core, object);
    mc_offload_appeared(core, object, was_on_disk);
}

/* A live replica of a visible object begins to age. */
static void begin_to_age(struct mc_core *core, struct mc_segment *segment, const struct mc_object *object,
                         uint32_t slot)
{
    struct mc_node *node = mc_segment_node(segment, slot);
    if (mc_replica_ages(segment, object) && object->soft)
        mc_list_append(segment, &segment->soft, slot);
    else if (mc_replica_ages(segment, object) && node->awaited && !mc_node_is_fetched(node))
        mc_eviction_enter_first(segment, slot);
    else if (mc_replica_ages(segment, object))
        core->config.policy->enter(core, segment, slot);
    if (object->hard)
        segment->hard += node->size;
    if (segment->kind == MC_SEGMENT_DISK)
        node->list_next = 0; /* how often it was loaded from there: offload.c */
}

void mc_object_show(struct mc_core *core, struct mc_object *object)
{
    mc_assert(!object->visible && object->granted == 0 && object->live > 0);
    object->visible = 1;
    core->visible_count++;
    core->piece_count += mc_object_is_piece(object);
    mc_stripe_shown(object);
    object->soft_until = 0;
    mc_pin_begin(core, object);
    mc_pins_count(core, object);
    for (struct mc_replica at = mc_replica_first(core, object); at.segment != NULL; at = mc_replica_next(core, at))
        begin_to_age(core, at.segment, object, at.slot);
    if (mc_core_tells_media(core))
        mc_media_shown(core, object);
}

void mc_object_unpin(struct mc_core *core, struct mc_object *object)
{
    mc_assert(object->visible && object->soft);
    bool was_firm = mc_object_is_firm(object);
    mc_pins_uncount(core, object);
    if (was_firm)
        mc_firm_end(core, object);
    for (struct mc_replica at = mc_replica_first(core, object); at.segment != NULL; at = mc_replica_next(core, at)) {
        if (was_firm)
            at.segment->hard -= mc_segment_node(at.segment, at.slot)->size;
        if (!mc_replica_ages(at.segment, object))
            continue;
        if (!was_firm)
            mc_list_remove(at.segment, &at.segment->soft, at.slot);
        core->config.policy->enter(core, at.segment, at.slot);
    }
    object->soft = 0;
    if (core->pausing > 0 && object->moving) /* its owner has had no place for that beside the pin */
        mc_hint_object_changed(core, object);
}

void mc_object_join(struct mc_core *core, struct mc_object *object, struct mc_segment *segment, uint32_t slot)
{
    mc_assert(object->visible);
    mc_segment_node(segment, slot)->state = MC_NODE_LIVE;
    mc_object_link(core, object, segment, slot);
    object->live++;
    segment->live++;
    begin_to_age(core, segment, object, slot);
    if (mc_core_tells_media(core))
        mc_media_joined(core, object, segment);
}

/* One live replica leaves the object. */
static void part_replica(struct mc_core *core, struct mc_object *object, struct mc_segment *segment, uint32_t slot)
{
    mc_assert(segment != NULL);
    if (mc_replica_ages(segment, object) && object->soft)
        mc_list_remove(segment, &segment->soft, slot);
    else if (mc_replica_ages(segment, object))
        mc_eviction_leave(segment, slot);
    if (object->hard && object->visible)
        segment->hard -= mc_segment_node(segment, slot)->size;
    mc_object_unlink(core, object, segment, slot);
    object->live--;
    segment->live--;
    if (segment->live == 0 && segment->drain && segment->state != MC_SEGMENT_GONE)
        mc_core_tell(core, MC_TOPIC_DRAIN, MC_CORE_LOG_INFO, "segment %u (%s) is drained: it can be unmounted",
                     segment->number, segment->name);
    mc_node_clear(core, segment, slot, object);
    if (object->visible && segment->kind == MC_SEGMENT_DISK)
        mc_hint_lost_on_disk(core, object);
    if (object->visible && mc_core_tells_media(core))
        mc_media_parted(core, object, segment);
}

/* bound: of the least version that may bring the object back, when this was its last replica. */
static void drop_replica(struct mc_core *core, struct mc_object *object, struct mc_segment *segment, uint32_t slot,
                         struct mc_wait *wait, uint64_t bound)
{
    uint32_t item = 0;
    bool is_last = object->live == 1 && object->granted == 0;
    struct mc_put *put = is_last && mc_object_waits(object) ? mc_put_waiting(core, object, &item) : NULL;
    part_replica(core, object, segment, slot);
    if (is_last)
        mc_object_vanish(core, object, bound, wait);
    if (put != NULL)
        mc_put_waited(core, put, item, MC_ERR_TRANSFER_FAIL);
}

void mc_object_lose_replica(struct mc_core *core, struct mc_object *object, struct mc_segment *segment, uint32_t slot)
{
    /* What was never offered goes as if its owner had not told of it, and may come again, or an earlier value. */
    object->met |= !segment->is_unmet;
    uint64_t bound = object->met ? mc_node_version(core, mc_segment_node(segment, slot)) : 0;
    drop_replica(core, object, segment, slot, NULL, bound);
}

void mc_object_drop(struct mc_core *core, struct mc_object *object, struct mc_wait *wait)
{
    mc_assert(object->visible);
    for (bool last = false; !last;) {
        last = object->live == 1;
        drop_replica(core, object, core->segments[object->first_segment], object->first_slot, wait, UINT64_MAX);
    }
}

void mc_object_unlive(struct mc_core *core, struct mc_object *object, bool is_copy)
{
    struct mc_replica at = mc_replica_first(core, object), next;
    for (; object->live > 0; at = next) {
        mc_assert(at.segment != NULL); /* a live one is among them */
        struct mc_node *node = mc_segment_node(at.segment, at.slot);
        next = mc_replica_next(core, at);
        if (node->state != MC_NODE_LIVE)
            continue;
        part_replica(core, object, at.segment, at.slot);
        if (is_copy)
            mc_key_remains_more(core, node);
    }
}

static uint64_t first_version(const struct mc_core *core, const struct mc_object *object)
{
    struct mc_replica first = mc_replica_first(core, object);
    mc_assert(first.segment != NULL); /* asked only of what has live replicas */
    return mc_node_version(core, mc_segment_node(first.segment, first.slot));
}

uint64_t mc_object_version(const struct mc_core *core, const struct mc_object *object)
{
    return object == NULL || !object->visible ? 0 : first_version(core, object);
}

uint64_t mc_object_version_put(const struct mc_core *core, const struct mc_object *object)
{
    struct mc_replica at = mc_replica_first(core, object);
    while (at.segment != NULL && mc_segment_node(at.segment, at.slot)->replica == MC_REPLICA_LOADED)
        at = mc_replica_next(core, at);
    return at.segment == NULL ? 0 : mc_node_version(core, mc_segment_node(at.segment, at.slot));
}

struct mc_object *mc_object_succeed(struct mc_core *core, const struct mc_object *object, uint64_t length,
                                    uint32_t flags)
{
    struct mc_object *successor = mc_object_create_roomy(&core->objects, mc_object_key(object));
    if (successor == NULL)
        return NULL;
    set_wishes(successor, length, flags);
    successor->successor = 1;
    successor->soft_until = object->serial;
    mc_successors_add(core, successor);
    return successor;
}

/* The object takes over the replicas of its successor. is_for_disk: until it can be read they say so. */
static void take_replicas(struct mc_core *core, struct mc_object *object, struct mc_object *successor, bool is_for_disk)
{
    object->length = successor->length;
    object->hard = successor->hard;
    object->soft = successor->soft;
    object->live = successor->live;
    object->first_slot = successor->first_slot;
    object->first_segment = successor->first_segment;
    for (struct mc_replica at = mc_replica_first(core, object); at.segment != NULL; at = mc_replica_next(core, at)) {
        struct mc_node *node = mc_segment_node(at.segment, at.slot);
        node->pointer = (uint64_t)(uintptr_t)object & ((1ull << 48) - 1);
        node->proven = is_for_disk;
    }
    if (mc_core_counts(core))
        mc_account_succeeded(core, object, successor);
    mc_firm_succeeded(core, object);
}

/* Whoever holds it listens, or holds it no more. */
static bool can_be_told(struct mc_core *core, const struct mc_object *object)
{
    for (struct mc_replica at = mc_replica_first(core, object); at.segment != NULL; at = mc_replica_next(core, at))
        if (at.segment->state != MC_SEGMENT_OK && !mc_segment_ask_departed(core, at.segment))
            return false;
    return true;
}

bool mc_object_clearable(struct mc_core *core, const struct mc_object *object, const struct mc_object *except)
{
    bool is_told = object->remains == 0 && can_be_told(core, object);
    const struct mc_object *at = mc_successor_first(core, object);
    for (; is_told && at != NULL; at = mc_successor_next(at))
        is_told = at == except || can_be_told(core, at);
    return is_told;
}

enum mc_replace mc_object_replace(struct mc_core *core, struct mc_object *successor, uint64_t expected)
{
    enum mc_replace how = MC_REPLACE_STALE;
    struct mc_object *object = mc_objects_find(&core->objects, mc_object_key(successor));
    /* The serial alone proves nothing: the key may have got another object since. Its version is above ours then. */
    bool same = object != NULL && object->visible && object->serial == successor->soft_until &&
                mc_object_version(core, object) < first_version(core, successor) &&
                (expected == 0 || (mc_object_version(core, object) == expected && !mc_jobs_will_meet(core, object))) &&
                mc_object_clearable(core, object, successor) && mc_stripe_can_succeed(core, object, successor);
    if (same) {
        /* The same value at other places: what a disk had, it is to have again. */
        bool is_for_disk = expected != 0 && mc_object_on_disk(core, object).segment != NULL;
        mc_put_end_successors(core, object, successor);
        mc_object_unlive(core, object, false);
        core->visible_count--;
        core->piece_count -= mc_object_is_piece(object);
        mc_pins_uncount(core, object);
        object->visible = 0;
        mc_group_end_reads(object);
        object->serial++; /* who reads the value before compares in vain */
        take_replicas(core, object, successor, is_for_disk);
        mc_stripe_succeeded(core, object, successor);
        /* Another value, which nobody has read; else it is the same at other places. */
        const struct mc_object before = {.lease_until_ms = expected == 0 ? 0 : object->lease_until_ms};
        object->lease_until_ms = before.lease_until_ms;
        if (object->soft)
            mc_pin_wish_inherit(object, successor, before.lease_until_ms != 0);
        /* Who has read the new value must not meet the one before again, be it where a client remembers it or under the
         * master after us: so nobody reads it as long as an owner may have that one. */
        how = object->remains > 0 ? MC_REPLACE_WAITS : MC_REPLACE_DONE;
        object->soft_until = (uint32_t)core->now_ms;
        if (how == MC_REPLACE_DONE) {
            mc_object_appear(core, object);
            object->lease_until_ms = before.lease_until_ms;
        }
    } else {
        mc_object_unlive(core, successor, expected != 0);
    }
    mc_successors_remove(core, successor);
    mc_object_free(&core->objects, successor);
    return how;
}

void mc_object_touch(struct mc_core *core, struct mc_object *object)
{
    group_use(core, object);
    if (mc_core_counts(core))
        mc_account_used(core, object);
    mc_object_rejuvenate(core, object);
}

void mc_object_rejuvenate(struct mc_core *core, struct mc_object *object)
{
    const struct mc_group *group = mc_object_group(object);
    if (group != NULL)
        mc_object_membership(object)->touched = group->touched;
    if (core->pausing > 0 && object->moving)
        mc_offload_unpause(core, object);
    for (struct mc_replica at = mc_replica_first(core, object); at.segment != NULL; at = mc_replica_next(core, at)) {
        if (object->hard) /* it ages not, and may have been loaded for a hint */
            mc_hint_end(at.segment, at.slot);
        if (!mc_replica_ages(at.segment, object))
            continue;
        struct mc_node *node = mc_segment_node(at.segment, at.slot);
        if (node->listed && mc_hint_used(core, at.segment, at.slot))
            continue;
        bool was_awaited = node->awaited; /* then this is what it was loaded for, and no further use */
        if (was_awaited)
            node->awaited = object->readers > 0; /* the end of a read is a use, too */
        if (!object->soft) {
            if (!was_awaited)
                core->config.policy->use(at.segment, at.slot);
        } else if (at.segment->soft.tail != at.slot) {
            mc_list_remove(at.segment, &at.segment->soft, at.slot);
            mc_list_append(at.segment, &at.segment->soft, at.slot);
        }
    }
}

static uint32_t live_replicas(const struct mc_core *core, const struct mc_object *object, struct mc_replica *replicas,
                              uint32_t capacity)
{
    uint32_t count = 0;
    for (struct mc_replica at = mc_replica_first(core, object); at.segment != NULL; at = mc_replica_next(core, at))
        if (at.segment->state == MC_SEGMENT_OK && at.segment->kind == MC_SEGMENT_MEMORY &&
            mc_segment_node(at.segment, at.slot)->state == MC_NODE_LIVE && count < capacity)
            replicas[count++] = at;
    return count;
}

uint32_t mc_object_readable(const struct mc_core *core, const struct mc_object *object, struct mc_replica *replicas,
                            uint32_t capacity)
{
    return object->visible ? live_replicas(core, object, replicas, capacity) : 0;
}

struct mc_replica mc_object_on_disk(const struct mc_core *core, const struct mc_object *object)
{
    struct mc_replica at = mc_replica_first(core, object);
    while (at.segment != NULL && at.segment->kind != MC_SEGMENT_DISK)
        at = mc_replica_next(core, at);
    return at;
}

bool mc_object_stored(const struct mc_core *core, const struct mc_object *object)
{
    struct mc_replica replica;
    if (mc_object_readable(core, object, &replica, 1) > 0)
        return true;
    replica = mc_object_on_disk(core, object);
    return object->visible && replica.segment != NULL && replica.segment->state == MC_SEGMENT_OK;
}

uint32_t mc_object_coming(const struct mc_core *core, const struct mc_object *object, struct mc_replica *replicas,
                          uint32_t capacity)
{
    return mc_object_waits(object) ? live_replicas(core, object, replicas, capacity) : 0;
}
