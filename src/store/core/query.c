/* Questions of the admin shell. Nothing here changes anything. */
#include "store/core/limits.h"
#include "store/core/replica.h"
#include "store/core/segment.h"
#include "store/core/state.h"
#include "store/core/stripe.h"

#include <stdio.h>
#include <string.h>

/* Both sums only grow. */
static void count_lookups(struct mc_core_statistics *statistics)
{
    uint64_t checked = statistics->exist_hits, asked = statistics->get_items - statistics->get_waits;
    statistics->lookups = statistics->exist_items - checked + (asked > checked ? asked : checked);
    statistics->lookup_hits = statistics->get_hits > checked ? statistics->get_hits : checked;
}

/* Bytes; of those beyond its capacity, which the allocator has as slack, none. */
static uint64_t largest_free(const struct mc_segment *segment)
{
    uint64_t bytes = mc_space_largest(&segment->space) * MC_EXTENT_UNIT;
    return bytes < segment->capacity ? bytes : segment->capacity;
}

void mc_core_statistics(const struct mc_core *core, struct mc_core_statistics *statistics)
{
    *statistics = core->statistics;
    count_lookups(statistics);
    statistics->objects = core->visible_count - core->piece_count;
    statistics->soft_pinned = core->soft_count - core->firm.visible;
    statistics->firm_pinned = core->firm.visible;
    statistics->firm_bytes = core->firm.bytes;
    statistics->hard_bytes = core->firm.hard_bytes;
    statistics->members = core->members_by_id.count;
    statistics->connections = core->connections.count;
    statistics->tombstones = core->tombstone_count;
    statistics->clusters_torn = core->torn;
    for (const struct mc_link *link = core->members.next; link != &core->members; link = link->next)
        statistics->disks_off += mc_link_of(link, struct mc_member, by_seen)->disks_off;
    for (uint32_t index = 1; index < core->segment_top; index++) {
        const struct mc_segment *segment = core->segments[index];
        if (segment == NULL || segment->state == MC_SEGMENT_GONE)
            continue;
        uint64_t used = segment->used * MC_EXTENT_UNIT;
        if (segment->kind == MC_SEGMENT_DISK) {
            statistics->disks++;
            statistics->disks_absent += segment->member->absent || segment->detached;
            statistics->disks_slow += segment->health == MC_TOLD_SLOW;
            statistics->disks_read_only += segment->health == MC_TOLD_READ_ONLY;
            statistics->disk_capacity += segment->capacity;
            statistics->disk_used += used;
            statistics->disk_objects += segment->live;
            continue;
        }
        statistics->promotions += segment->moves.count;
        uint64_t largest = largest_free(segment);
        statistics->segments++;
        statistics->suspect += segment->state == MC_SEGMENT_SUSPECT;
        statistics->draining += segment->drain && segment->live > 0;
        statistics->drained += segment->drain && segment->live == 0;
        if (segment->state == MC_SEGMENT_OK && !segment->leaving && largest > statistics->largest_free)
            statistics->largest_free = largest;
        statistics->recovering += segment->recovering;
        statistics->capacity += segment->capacity;
        statistics->populated += segment->populated;
        statistics->used += used < segment->capacity ? used : segment->capacity;
        statistics->clearing_bytes += segment->clearing * MC_EXTENT_UNIT;
        statistics->quarantine_bytes += segment->quarantine * MC_EXTENT_UNIT;
        statistics->blank_bytes += segment->blank * MC_EXTENT_UNIT;
    }
    statistics->firm_budget = (uint64_t)((double)statistics->capacity * core->config.firm_pin_ratio);
}

static void describe(const struct mc_core *core, const struct mc_segment *from, struct mc_core_segment *to)
{
    uint64_t used = from->used * MC_EXTENT_UNIT;
    *to = (struct mc_core_segment){
        .number = from->number,
        .segment_id = from->id,
        .owner = from->owner_id,
        .capacity = from->capacity,
        .populated = from->populated,
        .used = used < from->capacity ? used : from->capacity, /* extents may reach into the slack */
        .largest_free = from->kind == MC_SEGMENT_MEMORY ? largest_free(from) : 0,
        .mounted_ms = core->now_ms - from->mounted_ms,
        .objects = from->live,
        .slot_count = from->slot_count,
        .state = from->state,
        .draining = from->drain,
        .leaving = from->leaving,
        .recovering = from->recovering,
        .health = from->health,
        .absent = from->member != NULL && (from->member->absent || from->detached),
    };
    memcpy(to->name, from->name, sizeof(to->name));
    memcpy(to->tcp_address, from->tcp_address, sizeof(to->tcp_address));
    memcpy(to->directory, from->directory, sizeof(to->directory));
    if (from->member != NULL) {
        memcpy(to->build, from->member->build, sizeof(to->build));
        to->heard_ms = mc_core_life_ms(core) - from->member->seen_ms;
    }
}

static size_t list(const struct mc_core *core, enum mc_segment_kind kind, uint64_t *cursor,
                   struct mc_core_segment *segments, size_t capacity)
{
    size_t count = 0;
    for (; *cursor < core->segment_top && count < capacity; ++*cursor)
        if (core->segments[*cursor] != NULL && core->segments[*cursor]->kind == kind)
            describe(core, core->segments[*cursor], &segments[count++]);
    return count;
}

size_t mc_core_segments(const struct mc_core *core, uint64_t *cursor, struct mc_core_segment *segments, size_t capacity)
{
    return list(core, MC_SEGMENT_MEMORY, cursor, segments, capacity);
}

size_t mc_core_disks(const struct mc_core *core, uint64_t *cursor, struct mc_core_segment *segments, size_t capacity)
{
    return list(core, MC_SEGMENT_DISK, cursor, segments, capacity);
}

/* What an operator knows it by: its memory's name is where it was reached last, its own may say no port. */
static const char *member_name(const struct mc_member *member)
{
    for (const struct mc_link *link = member->segments.next; link != &member->segments; link = link->next) {
        const struct mc_segment *segment = mc_link_of(link, struct mc_segment, of_member);
        if (segment->kind == MC_SEGMENT_MEMORY)
            return segment->name;
    }
    return member->name;
}

size_t mc_core_disks_off(const struct mc_core *core, struct mc_core_disks_off *list, size_t capacity)
{
    size_t count = 0;
    for (const struct mc_link *link = core->members.next; link != &core->members && count < capacity;
         link = link->next) {
        const struct mc_member *member = mc_link_of(link, struct mc_member, by_seen);
        if (member->disks_off == 0)
            continue;
        (void)snprintf(list[count].name, sizeof(list[count].name), "%.63s", member_name(member));
        list[count++].disks = member->disks_off;
    }
    return count;
}

bool mc_core_segment(const struct mc_core *core, uint32_t number, struct mc_core_segment *segment)
{
    const struct mc_segment *found = core->segments[number % MC_SEGMENTS_MAX];
    if (found == NULL || found->number != number)
        return false;
    describe(core, found, segment);
    return true;
}

bool mc_core_keys(const struct mc_core *core, uint64_t *cursor, size_t limit,
                  void (*visit)(void *context, struct mc_span key, uint64_t length), void *context)
{
    uint64_t index = *cursor >> 32;
    uint32_t slot = (uint32_t)*cursor;
    for (; index < core->segment_top && limit > 0; limit--) {
        const struct mc_segment *segment = core->segments[index];
        if (segment == NULL || segment->state == MC_SEGMENT_GONE || slot >= segment->space.node_fresh) {
            index++;
            slot = 0;
            continue;
        }
        const struct mc_node *node = mc_segment_node(segment, slot);
        const struct mc_object *object = node->state == MC_NODE_LIVE ? mc_node_object(node) : NULL;
        bool is_first = object != NULL && object->first_segment == index && object->first_slot == slot;
        if (is_first && object->visible && !mc_object_is_piece(object) && mc_stripe_is_whole(core, object))
            visit(context, mc_object_key(object), mc_object_told_length(object));
        slot++;
    }
    *cursor = index << 32 | slot;
    return index < core->segment_top;
}

int mc_core_query(const struct mc_core *core, struct mc_span key, struct mc_core_replica *replicas, size_t capacity)
{
    struct mc_replica found[MC_REPLICA_COUNT_MAX];
    const struct mc_object *object = NULL;
    if (key.length > 0 && key.length <= MC_KEY_LENGTH_MAX)
        object = mc_object_find(core, key);
    if (object == NULL)
        return MC_ERR_OBJECT_NOT_FOUND;
    if (!object->visible)
        return MC_ERR_REPLICA_IS_NOT_READY;
    if (!mc_stripe_is_whole(core, object))
        return MC_ERR_OBJECT_NOT_FOUND;
    uint32_t count = mc_object_readable(core, object, found, MC_REPLICA_COUNT_MAX);
    for (uint32_t i = 0; i < count && i < capacity; i++) {
        const struct mc_node *node = mc_segment_node(found[i].segment, found[i].slot);
        replicas[i] = (struct mc_core_replica){
            .segment = found[i].segment->number,
            .offset = (uint64_t)node->offset * MC_EXTENT_UNIT,
            .length = mc_object_told_length(object),
            .generation = mc_node_generation(core, node),
        };
    }
    struct mc_replica disk = mc_object_on_disk(core, object);
    if (disk.segment != NULL && disk.segment->state == MC_SEGMENT_OK && count < MC_REPLICA_COUNT_MAX) {
        if (count < capacity)
            replicas[count] = (struct mc_core_replica){
                .segment = disk.segment->number,
                .length = mc_object_told_length(object),
                .generation = mc_node_generation(core, mc_segment_node(disk.segment, disk.slot)),
                .is_on_disk = true,
            };
        count++;
    }
    return count == 0 ? MC_ERR_OBJECT_NOT_FOUND : (int)count;
}

uint64_t mc_core_firm_left_ms(const struct mc_core *core, struct mc_span key)
{
    struct mc_replica replica;
    const struct mc_object *object = mc_object_find(core, key);
    bool is_kept = object != NULL && mc_object_is_firm(object) && mc_object_readable(core, object, &replica, 1) > 0;
    return is_kept ? mc_pin_left_ms(core, object) : 0;
}

void mc_core_prefix(const struct mc_core *core, const struct mc_span *keys, size_t count, struct mc_core_prefix *prefix)
{
    struct mc_object *objects[MC_CORE_PREFIX_SLICE];
    struct mc_replica replica;
    mc_assert(count <= MC_CORE_PREFIX_SLICE);
    mc_objects_find_batch(&core->objects, keys, count, objects, NULL);
    for (size_t i = 0; i < count && prefix->matched == prefix->looked; i++, prefix->looked++) {
        const struct mc_object *object = objects[i];
        if (object == NULL || object->tombstone != 0 || !mc_object_stored(core, object) ||
            !mc_stripe_is_whole(core, object))
            continue;
        struct mc_replica disk = mc_object_on_disk(core, object);
        bool is_in_memory = mc_object_readable(core, object, &replica, 1) > 0;
        bool is_on_disk = disk.segment != NULL && disk.segment->state == MC_SEGMENT_OK;
        prefix->memory += is_in_memory && prefix->memory == prefix->looked;
        prefix->disk += is_on_disk && prefix->disk == prefix->looked;
        prefix->matched++;
    }
}
