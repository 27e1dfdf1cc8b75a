/* What is stored on disks, and loaded from them: see offload.h. */
#include "store/core/account.h"
#include "store/core/hint.h"
#include "store/core/offload.h"

#include "store/core/job.h"
#include "store/core/limits.h"
#include "store/core/list.h"
#include "store/core/hint_kept.h"
#include "store/core/place.h"
#include "store/core/put.h"
#include "store/core/replica.h"
#include "store/core/segment.h"
#include "store/core/state.h"
#include "store/core/stripe.h"

/* ---- the node of a move ---- */

static struct mc_replica moving_node(const struct mc_core *core, const struct mc_object *object)
{
    uint64_t packed = (uint64_t)(uintptr_t)mc_map_get(&core->moves, (uintptr_t)object);
    mc_assert(object->moving && packed != 0);
    return (struct mc_replica){core->segments[packed >> 32], (uint32_t)packed};
}

/* The node, just taken, becomes what the owner is to fill. False when memory is out; nothing is changed then. */
static bool begin_move(struct mc_core *core, struct mc_object *object, struct mc_segment *segment, uint32_t slot,
                       uint8_t replica)
{
    struct mc_node *node = mc_segment_node(segment, slot);
    uint64_t packed = (uint64_t)segment->index << 32 | slot;
    if (!mc_map_put(&core->moves, (uintptr_t)object, (void *)(uintptr_t)packed))
        return false;
    mc_generation_next(core, node, replica);
    node->state = MC_NODE_MOVING;
    node->seen = 0;
    node->uses = 0; /* enum then */
    node->pointer = (uint64_t)(uintptr_t)object & ((1ull << 48) - 1);
    object->moving = 1;
    segment->used += node->size;
    mc_list_append(segment, &segment->moves, slot);
    if (segment->move_unsent == MC_NODE_NONE)
        segment->move_unsent = slot;
    mc_segment_mark_dirty(core, segment);
    return true;
}

/* What is to become of the value once the MOVING node is filled. */
enum then {
    THEN_NOTHING,
    THEN_PAUSES,
    THEN_DROPPED, /* these two: it goes first */
};

static void set_then(struct mc_core *core, struct mc_node *node, enum then then)
{
    bool is_other = (node->uses > 0) != (then != THEN_NOTHING);
    core->pausing -= node->uses > 0;
    core->pausing += then != THEN_NOTHING;
    node->uses = then & 3u;
    if (is_other)
        mc_hint_object_changed(core, mc_node_object(node));
}

/* It is no move any more, and nothing else yet. */
static struct mc_object *end_move(struct mc_core *core, struct mc_segment *segment, uint32_t slot)
{
    struct mc_node *node = mc_segment_node(segment, slot);
    struct mc_object *object = mc_node_object(node);
    mc_assert(node->state == MC_NODE_MOVING && object->moving);
    if (segment->move_unsent == slot)
        segment->move_unsent = node->list_next;
    segment->moves_sent -= node->seen;
    mc_list_remove(segment, &segment->moves, slot);
    set_then(core, node, THEN_NOTHING);
    mc_hint_load_ended(core, segment, node);
    object->moving = 0;
    (void)mc_map_remove(&core->moves, (uintptr_t)object);
    if (mc_offload_may_send(segment) && segment->state != MC_SEGMENT_GONE)
        mc_segment_mark_dirty(core, segment);
    return object;
}

/* ---- storing ---- */

/* limit: values that may wait for it. */
static struct mc_segment *least_busy_disk(const struct mc_member *member, uint32_t limit)
{
    struct mc_segment *best = NULL;
    const struct mc_link *link = member->segments.next;
    for (unsigned walk = MC_WALK_MAX; link != &member->segments && walk > 0; link = link->next, walk--) {
        struct mc_segment *segment = mc_link_of(link, struct mc_segment, of_member);
        if (segment->kind == MC_SEGMENT_DISK && segment->state == MC_SEGMENT_OK && !segment->leaving &&
            segment->moves.count < limit && (best == NULL || segment->moves.count < best->moves.count))
            best = segment;
    }
    return best;
}

/* A disk of an owner that has the value in memory. NULL: there is none. */
static struct mc_segment *find_disk(const struct mc_core *core, const struct mc_object *object, uint32_t limit)
{
    struct mc_replica from;
    for (from = mc_replica_first(core, object); from.segment != NULL; from = mc_replica_next(core, from)) {
        if (from.segment->state != MC_SEGMENT_OK)
            continue;
        struct mc_segment *disk = least_busy_disk(from.segment->member, limit);
        if (disk != NULL)
            return disk;
    }
    return NULL;
}

static bool store_within(struct mc_core *core, struct mc_object *object, uint32_t limit)
{
    if (!object->visible || object->moving || mc_object_on_disk(core, object).segment != NULL ||
        object->live >= MC_REPLICA_COUNT_MAX || mc_jobs_will_meet(core, object) ||
        core->counter_end - core->counter <= MC_BATCH_MAX)
        return false;
    /* Of a value that was loaded, and is on no disk any more, nobody knows which put brought it: a later one that is
     * unsure of its end would be told that it had ended well. */
    uint64_t version = mc_object_version_put(core, object);
    if (version == 0)
        return false;
    struct mc_segment *disk = find_disk(core, object, limit);
    uint32_t slot = disk == NULL ? MC_NODE_NONE : mc_space_number_take(&disk->space);
    if (slot == MC_NODE_NONE) {
        core->statistics.offload_skipped += disk != NULL;
        return false;
    }
    struct mc_node *node = mc_segment_node(disk, slot);
    node->offset = 0;
    node->size = mc_object_units(object) & ((1ull << 40) - 1);
    if (!begin_move(core, object, disk, slot, MC_REPLICA_DISK)) {
        mc_space_number_give(&disk->space, slot);
        return false;
    }
    mc_node_set_version(node, version);
    node->proven = mc_object_was_read(object); /* what its owner was told at least: it may be told again */
    core->statistics.offload_begun++;
    return true;
}

bool mc_offload_store(struct mc_core *core, struct mc_object *object)
{
    return store_within(core, object, core->config.offload_queue_limit);
}

static bool store_member(struct mc_core *core, struct mc_object *object, uint32_t limit)
{
    bool has_begun = !object->hard && store_within(core, object, limit);
    core->statistics.offload_ahead += has_begun;
    return has_begun;
}

/* All of its members leave memory together: first those that have joined since it was looked at, which are the last,
 * then those that were not looked at for longest. It ends after so many in a row of which nothing was stored, mostly
 * since they were before: the others come with the next member. */
static void store_group(struct mc_core *core, struct mc_group *group, uint32_t limit, uint32_t patience)
{
    uint32_t left = group->count < MC_AHEAD_MEMBERS ? group->count : MC_AHEAD_MEMBERS;
    struct mc_object *object = group->last;
    for (; left > 0 && group->going_left == 0 && object != NULL && store_member(core, object, limit); left--)
        object = mc_object_membership(object)->previous;
    for (uint32_t vain = 0; left > 0 && vain < patience && group->going_left == 0; left--) {
        object = group->first;
        mc_group_turn(group);
        vain = store_member(core, object, limit) ? 0 : vain + 1;
    }
}

/* Of a disk's queue, what comes before its turn may fill so much. */
static uint32_t limit_ahead(const struct mc_core *core)
{
    double part = (double)core->config.offload_queue_limit * core->config.offload_cap_ratio;
    return part > 0 && part < 1 ? 1 : (uint32_t)part;
}

bool mc_offload_ahead(struct mc_core *core, const struct mc_member *member, struct mc_object *object)
{
    uint32_t limit = limit_ahead(core);
    struct mc_group *group = mc_object_group(object);
    if (least_busy_disk(member, limit) == NULL)
        return false;
    bool has_begun = store_within(core, object, limit);
    core->statistics.offload_ahead += has_begun;
    if (group != NULL)
        store_group(core, group, limit, has_begun ? MC_AHEAD_MEMBERS : MC_AHEAD_VAIN);
    return true;
}

bool mc_offload_pause(struct mc_core *core, struct mc_object *object)
{
    if (!object->moving && (core->config.offload == MC_OFFLOAD_NEVER || !store_within(core, object, limit_ahead(core))))
        return false;
    struct mc_replica at = moving_node(core, object);
    if (at.segment->kind != MC_SEGMENT_DISK)
        return false; /* it is being loaded, and so on a disk */
    set_then(core, mc_segment_node(at.segment, at.slot), THEN_PAUSES);
    bool is_stored = at.segment->state == MC_SEGMENT_OK;
    if (is_stored && !object->hard && !object->soft) /* else it does not go first, and stays as young as its group */
        mc_hint_part_from_group(object);
    return is_stored; /* not of an owner that is cut off: perhaps once it is back */
}

bool mc_offload_pauses(const struct mc_core *core, const struct mc_object *object)
{
    struct mc_replica at = moving_node(core, object);
    return at.segment->kind == MC_SEGMENT_DISK && mc_segment_node(at.segment, at.slot)->uses > 0;
}

bool mc_offload_is_paused(const struct mc_core *core, const struct mc_object *object)
{
    struct mc_replica at = moving_node(core, object);
    return mc_segment_node(at.segment, at.slot)->uses > 0;
}

void mc_offload_unpause(struct mc_core *core, const struct mc_object *object)
{
    struct mc_replica at = moving_node(core, object);
    set_then(core, mc_segment_node(at.segment, at.slot), THEN_NOTHING);
}

void mc_offload_go_first(struct mc_core *core, const struct mc_object *object, unsigned dropped)
{
    struct mc_replica at = moving_node(core, object);
    if (at.segment->kind == MC_SEGMENT_MEMORY)
        set_then(core, mc_segment_node(at.segment, at.slot), dropped != 0 ? THEN_DROPPED : THEN_PAUSES);
}

bool mc_offload_is_full(const struct mc_core *core, const struct mc_member *member)
{
    return least_busy_disk(member, UINT32_MAX) != NULL &&
           least_busy_disk(member, core->config.offload_queue_limit) == NULL;
}

bool mc_offload_expects(const struct mc_core *core, const struct mc_member *member)
{
    return core->config.offload != MC_OFFLOAD_NEVER && member != NULL && least_busy_disk(member, UINT32_MAX) != NULL;
}

void mc_offload_appeared(struct mc_core *core, struct mc_object *object, bool was_on_disk)
{
    if (was_on_disk && core->config.offload != MC_OFFLOAD_NEVER)
        (void)store_within(core, object, UINT32_MAX);
    else if (core->config.offload == MC_OFFLOAD_ON_PUT)
        (void)mc_offload_store(core, object);
}

/* ---- loading ---- */

static bool takes_loads(const struct mc_segment *segment)
{
    return segment->kind == MC_SEGMENT_MEMORY && segment->state == MC_SEGMENT_OK && !segment->leaving;
}

/* Room for the value in memory of that owner, or MC_NODE_NONE; is_hopeful: there will be some soon. fetch: for a hint.
 */
static uint32_t find_memory(struct mc_core *core, const struct mc_member *member, uint64_t units, bool fetch,
                            struct mc_segment **memory, bool *is_hopeful)
{
    const struct mc_link *link = member->segments.next;
    *is_hopeful = false;
    for (unsigned walk = MC_WALK_MAX; link != &member->segments && walk > 0; link = link->next, walk--) {
        struct mc_segment *segment = mc_link_of(link, struct mc_segment, of_member);
        if (!takes_loads(segment))
            continue;
        if (segment->moves.count >= MC_LOADS_MAX || (fetch && !mc_hint_fits(segment, units))) {
            *is_hopeful = true;
            continue;
        }
        uint32_t slot = mc_space_allocate(&segment->space, units);
        *memory = segment;
        if (slot != MC_NODE_NONE && units >= segment->want_size)
            segment->want = segment->want_size = 0; /* as with puts: the next one that fails begins small */
        if (slot != MC_NODE_NONE)
            return slot;
        if (fetch)
            mc_evict_for_hint(core, segment, units);
        else
            *is_hopeful |= mc_evict_for(core, segment, units, MC_CORE_EVICTION_LOAD);
    }
    return MC_NODE_NONE;
}

/* Is there memory of that owner where hints may have so much loaded? Asked before anything goes for it. */
static bool may_fetch(const struct mc_member *member, uint64_t units)
{
    const struct mc_link *link = member->segments.next;
    if (!mc_hint_fits_under_way(member, units))
        return false;
    for (unsigned walk = MC_WALK_MAX; link != &member->segments && walk > 0; link = link->next, walk--) {
        const struct mc_segment *segment = mc_link_of(link, struct mc_segment, of_member);
        if (takes_loads(segment) && segment->moves.count < MC_LOADS_MAX && mc_hint_fits(segment, units))
            return true;
    }
    return false;
}

/* Values that are being loaded, for whomever; core->fetches of them for hints. */
static uint64_t loads_open(const struct mc_core *core)
{
    const struct mc_core_statistics *counts = &core->statistics;
    return counts->promotion_begun - counts->promotion_done - counts->promotion_failed;
}

/* Is the value, which is being loaded once more, to stay in memory like one that was put? Else it makes room first. */
static bool is_promoted(struct mc_core *core, struct mc_replica from)
{
    struct mc_core_statistics *counts = &core->statistics;
    struct mc_node *node = mc_segment_node(from.segment, from.slot);
    struct mc_member *member = from.segment->member;
    node->list_next += node->list_next < MC_DISK_READS_MAX; /* it is in no list; counted since it lies there */
    if (!core->config.promotion_on_hit)
        return false;
    bool is_rare = node->list_next < core->config.promotion_threshold;
    bool is_over = loads_open(core) - core->fetches >= core->config.promotion_queue_limit ||
                   member->promoted >= core->config.promotion_per_heartbeat;
    counts->promotion_rare += is_rare;
    counts->promotion_capped += !is_rare && is_over;
    if (is_rare || is_over)
        return false;
    counts->promotion_admitted++;
    member->promoted++;
    return true;
}

static bool is_resting(const struct mc_core *core, struct mc_replica from)
{
    return core->now_ms < from.segment->rest_until_ms &&
           (from.slot == from.segment->rest_slot || from.segment->reads_failed == MC_DISK_VAIN);
}

/* fetch: for a hint. */
static int32_t load(struct mc_core *core, struct mc_object *object, bool fetch)
{
    struct mc_replica from = mc_object_on_disk(core, object);
    struct mc_segment *memory = NULL;
    bool is_hopeful = false;
    if (!object->visible || from.segment == NULL || from.segment->state != MC_SEGMENT_OK)
        return MC_ERR_OBJECT_NOT_FOUND;
    if (object->moving) {
        mc_offload_unpause(core, object); /* somebody wants it */
        /* It does not come soon to an owner that is cut off, and whose disk another process has taken up. */
        return moving_node(core, object).segment->state == MC_SEGMENT_OK ? MC_ERR_PUT_IN_PROGRESS
                                                                         : MC_ERR_OBJECT_NOT_FOUND;
    }
    if (is_resting(core, from) || object->live >= MC_REPLICA_COUNT_MAX ||
        core->counter_end - core->counter <= MC_BATCH_MAX || mc_jobs_will_meet(core, object))
        return MC_ERR_OBJECT_NOT_FOUND;
    uint64_t units = mc_object_units(object);
    if (fetch && (!may_fetch(from.segment->member, units) || !mc_account_could(core, object)))
        return MC_ERR_OBJECT_NOT_FOUND;
    mc_account_make_room(core, object);
    if (fetch && !mc_account_has_room(core, object)) {
        mc_account_in_vain(core, object);
        return MC_ERR_OBJECT_NOT_FOUND;
    }
    mc_account_puts(core, mc_object_key(object));
    uint32_t slot = find_memory(core, from.segment->member, units, fetch, &memory, &is_hopeful);
    mc_account_puts(core, mc_span(NULL, 0));
    core->statistics.promotion_no_room += slot == MC_NODE_NONE && !is_hopeful && !fetch;
    if (slot == MC_NODE_NONE)
        return is_hopeful ? MC_ERR_PUT_IN_PROGRESS : MC_ERR_OBJECT_NOT_FOUND;
    if (!begin_move(core, object, memory, slot, MC_REPLICA_LOADED)) {
        mc_node_free(core, memory, slot);
        return MC_ERR_OBJECT_NOT_FOUND;
    }
    struct mc_node *node = mc_segment_node(memory, slot);
    if (fetch)
        mc_hint_load_begun(core, memory, node);
    else
        node->awaited = !is_promoted(core, from);
    core->statistics.promotion_begun++;
    mc_segment_update_room(core, memory);
    mc_evict_ahead(core, memory, node->size);
    return MC_ERR_PUT_IN_PROGRESS;
}

int32_t mc_offload_load(struct mc_core *core, struct mc_object *object)
{
    return load(core, object, false);
}

int32_t mc_offload_fetch(struct mc_core *core, struct mc_object *object)
{
    struct mc_replica from = mc_object_on_disk(core, object);
    if (from.segment == NULL || from.segment->state != MC_SEGMENT_OK || is_resting(core, from))
        return MC_ERR_OBJECT_NOT_FOUND;
    bool is_over = loads_open(core) >= core->config.promotion_queue_limit || core->evictions_left == 0 ||
                   mc_account_is_in_vain(core, object);
    if (!object->moving && is_over)
        return MC_ERR_NO_AVAILABLE_HANDLE;
    core->spares_soft = true;
    int32_t code = load(core, object, true);
    core->spares_soft = false;
    if (!object->moving)
        return MC_ERR_NO_AVAILABLE_HANDLE;
    return code == MC_ERR_PUT_IN_PROGRESS ? MC_HINT_BEGUN : code;
}

/* ---- the end ---- */

/* What was a move is to be cleared. In memory the owner itself is the writer, and says when it does no more: also what
 * it has answered it may be at once again, if it was told twice. */
static void let_go(struct mc_core *core, struct mc_segment *segment, uint32_t slot, struct mc_object *object)
{
    if (segment->kind == MC_SEGMENT_DISK || segment->member == NULL)
        mc_node_clear(core, segment, slot, object);
    else
        mc_node_cut(core, segment, slot, object, segment->member->writer);
}

/* Its bytes could not be had in time: for a while whoever wants them has a miss at once. One value may be at fault,
 * however often; when several in a row could not be had, it is the disk: all of it rests. */
static void rest_disk(const struct mc_core *core, const struct mc_object *object)
{
    struct mc_replica disk = mc_object_on_disk(core, object);
    if (disk.segment == NULL)
        return;
    bool is_another = disk.segment->reads_failed == 0 || disk.segment->rest_slot != disk.slot;
    disk.segment->rest_until_ms = core->now_ms + MC_DISK_REST_MS;
    disk.segment->rest_slot = disk.slot;
    disk.segment->reads_failed += is_another && disk.segment->reads_failed < MC_DISK_VAIN;
}

static void wake_disk(const struct mc_core *core, const struct mc_object *object)
{
    struct mc_replica disk = mc_object_on_disk(core, object);
    if (disk.segment != NULL)
        disk.segment->reads_failed = 0;
}

/* There is room in the queue of one of its disks again. */
static void go_on(struct mc_core *core, const struct mc_member *member)
{
    const struct mc_link *link = member->segments.next;
    for (unsigned walk = MC_WALK_MAX; link != &member->segments && walk > 0; link = link->next, walk--)
        mc_offload_mark(core, mc_link_of(link, struct mc_segment, of_member));
}

/* Other places of the value may have come to us meanwhile. And where a removal that has passed this segment has still
 * to come by the object, it would be answered, and this stay. */
static bool may_join(const struct mc_core *core, const struct mc_object *object, const struct mc_segment *segment)
{
    return segment->state != MC_SEGMENT_GONE && object->live < MC_REPLICA_COUNT_MAX &&
           (segment->kind != MC_SEGMENT_DISK || mc_object_on_disk(core, object).segment == NULL) &&
           !mc_jobs_will_meet(core, object);
}

void mc_offload_moved(struct mc_core *core, struct mc_segment *segment, uint32_t slot, bool done)
{
    unsigned then = mc_segment_node(segment, slot)->uses;
    struct mc_object *object = end_move(core, segment, slot);
    bool is_store = segment->kind == MC_SEGMENT_DISK, was_told_read = mc_segment_node(segment, slot)->proven;
    if (done && may_join(core, object, segment)) {
        mc_segment_node(segment, slot)->seen = segment->round;
        mc_object_join(core, object, segment, slot);
        if (!is_store)
            wake_disk(core, object);
        /* Another of its group that was used since the hint has made it as young as that. */
        if (then != THEN_NOTHING && !object->hard && !object->soft && !mc_group_is_younger(object))
            mc_hint_go_first(core, object, then == THEN_DROPPED ? MC_FIRST_DROPPED : 0);
        core->statistics.offload_done += is_store;
        core->statistics.promotion_done += !is_store;
        core->statistics.promotion_bytes += is_store ? 0 : object->length;
    } else {
        core->statistics.offload_failed += is_store;
        core->statistics.promotion_failed += !is_store;
        if (!done && !is_store && segment->state != MC_SEGMENT_GONE)
            rest_disk(core, object);
        let_go(core, segment, slot, object);
        if (!done && is_store && !was_told_read && mc_object_was_read(object)) /* meanwhile: that may be why */
            mc_offload_appeared(core, object, false);
    }
    if (is_store && segment->member != NULL)
        go_on(core, segment->member);
}

void mc_offload_cancel(struct mc_core *core, struct mc_object *object)
{
    if (!object->moving)
        return;
    struct mc_replica at = moving_node(core, object);
    (void)end_move(core, at.segment, at.slot);
    core->statistics.offload_failed += at.segment->kind == MC_SEGMENT_DISK;
    core->statistics.promotion_failed += at.segment->kind != MC_SEGMENT_DISK;
    core->statistics.promotion_cancelled += at.segment->kind != MC_SEGMENT_DISK;
    let_go(core, at.segment, at.slot, object);
}

/* ---- telling the owner ---- */

bool mc_offload_may_send(const struct mc_segment *segment)
{
    return segment->owner != NULL && segment->move_unsent != MC_NODE_NONE && segment->moves_sent < MC_MOVES_SENT_MAX;
}

void mc_offload_unsend(struct mc_segment *segment)
{
    for (uint32_t slot = segment->moves.head; slot != segment->move_unsent;) {
        struct mc_node *node = mc_segment_node(segment, slot);
        node->seen = 0;
        slot = node->list_next;
    }
    segment->move_unsent = segment->moves.head;
    segment->moves_sent = 0;
}

/* Where the owner of that segment has the value too: on another kind of segment. segment NULL: nowhere any more. */
static struct mc_replica other_place(const struct mc_core *core, const struct mc_object *object,
                                     const struct mc_segment *segment)
{
    struct mc_replica at = mc_replica_first(core, object);
    while (at.segment != NULL && (at.segment->member != segment->member || at.segment->kind == segment->kind ||
                                  mc_segment_node(at.segment, at.slot)->state != MC_NODE_LIVE))
        at = mc_replica_next(core, at);
    return at;
}

static void write_store(const struct mc_core *core, struct mc_buffer *out, const struct mc_node *node, uint32_t slot,
                        struct mc_replica from)
{
    struct mc_wire_store_item item = {
        .slot = slot,
        .generation = mc_node_generation(core, node),
        .version = mc_node_version(core, node),
        .source = from.segment->number,
        .source_slot = from.slot,
        .source_generation = mc_node_generation(core, mc_segment_node(from.segment, from.slot)),
        .flags = mc_object_was_read(mc_node_object(node)) ? MC_STORE_WAS_READ : 0,
    };
    mc_wire_store_item_write(out, &item);
}

static void write_load(const struct mc_core *core, struct mc_buffer *out, const struct mc_node *node, uint32_t slot,
                       struct mc_replica from)
{
    struct mc_wire_load_item item = {
        .slot = slot,
        .replica = node->replica,
        .generation = mc_node_generation(core, node),
        .offset = (uint64_t)node->offset * MC_EXTENT_UNIT,
        .disk = from.segment->number,
        .disk_slot = from.slot,
        .disk_generation = mc_node_generation(core, mc_segment_node(from.segment, from.slot)),
        .flags = mc_node_object(node)->soft ? 0 : MC_LOAD_UNPINNED,
    };
    mc_wire_load_item_write(out, &item);
}

/* The first that is unsent, and whose value the owner still has elsewhere. The others are over, each costs one of
 * *left; they may have been sent over an earlier connection, so the owner may be at them. */
static uint32_t next_to_send(struct mc_core *core, struct mc_segment *segment, struct mc_replica *from, uint32_t *left)
{
    for (; segment->move_unsent != MC_NODE_NONE && *left > 0; --*left) {
        uint32_t slot = segment->move_unsent;
        struct mc_object *object = mc_node_object(mc_segment_node(segment, slot));
        *from = other_place(core, object, segment);
        if (from->segment != NULL)
            return slot;
        mc_offload_cancel(core, object);
    }
    return MC_NODE_NONE;
}

bool mc_offload_send(struct mc_core *core, struct mc_segment *segment)
{
    struct mc_buffer *out = mc_offload_may_send(segment) ? mc_core_buffer(core, segment->owner->number) : NULL;
    struct mc_replica from;
    if (out == NULL)
        return false;
    bool is_store = segment->kind == MC_SEGMENT_DISK;
    uint32_t left = MC_BATCH_MAX, count = 0, slot = next_to_send(core, segment, &from, &left);
    if (slot == MC_NODE_NONE)
        return left < MC_BATCH_MAX;
    struct mc_wire_segment head = {.segment = segment->number};
    size_t frame = mc_core_frame(core, out, is_store ? MC_MESSAGE_STORE : MC_MESSAGE_LOAD, 0);
    size_t list = mc_wire_segment_head(out, &head);
    for (; slot != MC_NODE_NONE && count < MC_BATCH_MAX && segment->moves_sent < MC_MOVES_SENT_MAX; count++) {
        struct mc_node *node = mc_segment_node(segment, slot);
        if (is_store)
            write_store(core, out, node, slot, from);
        else
            write_load(core, out, node, slot, from);
        node->seen = 1;
        segment->moves_sent++;
        segment->move_unsent = node->list_next;
        slot = next_to_send(core, segment, &from, &left);
    }
    mc_frame_end_list(out, frame, list, count);
    return true;
}
