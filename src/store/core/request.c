/* GET, RENEW, EXIST, REMOVE. */
#include "store/core/job.h"
#include "store/core/limits.h"
#include "store/core/member.h"
#include "store/core/miss.h"
#include "store/core/offload.h"
#include "store/core/recover.h"
#include "store/core/replica.h"
#include "store/core/request.h"
#include "store/core/segment.h"
#include "store/core/state.h"
#include "store/core/stripe.h"
#include "store/core/tombstone.h"

#include <stdlib.h>

#define PREFETCH_GROUP 32u

uint32_t mc_keys_read(const struct mc_connection *connection, struct mc_reader *reader, struct mc_span *keys)
{
    uint32_t count = mc_list_read(reader);
    for (uint32_t i = 0; i < count; i++) {
        struct mc_wire_key item;
        mc_wire_key_read(reader, &item);
        keys[i] = item.key;
    }
    mc_connection_keep(connection, keys, count);
    return count;
}

/* As the core knows them; which of them ask for heads as they are stored. */
static void take_keys(struct mc_span *keys, uint32_t count, bool *is_raw)
{
    for (uint32_t i = 0; i < count; i++)
        keys[i] = mc_key_canonical(keys[i], &is_raw[i]);
}

/* A value in pieces is nothing to who knows of none, nor is one that is not whole to anybody; and what is asked for as
 * a head is nothing else. */
static void hide(const struct mc_core *core, const struct mc_connection *connection, bool *is_raw,
                 struct mc_object **objects, uint32_t count)
{
    bool knows = mc_wire_can(&connection->peer, MC_FEATURE_STRIPES);
    for (uint32_t i = 0; i < count; i++) {
        bool is_head = objects[i] != NULL && mc_object_is_head(objects[i]);
        if (is_head ? (!knows && !is_raw[i]) || !mc_stripe_is_whole(core, objects[i]) : is_raw[i])
            objects[i] = NULL;
    }
}

static void find_keys(const struct mc_core *core, const struct mc_span *keys, uint32_t count,
                      struct mc_object **objects, struct mc_picks *picks)
{
    mc_miss_picks(core, picks);
    mc_objects_find_batch(&core->objects, keys, count, objects, picks);
    for (uint32_t i = 0; i < count; i++)
        if (objects[i] != NULL && objects[i]->tombstone != 0)
            objects[i] = NULL;
}

/* ---- reads in progress ---- */

static void lease(const struct mc_core *core, struct mc_object *object)
{
    uint64_t until = core->now_ms + core->config.lease_ttl_ms;
    struct mc_group *group = mc_object_group(object);
    object->lease_until_ms = until & ((1ull << 40) - 1); /* 34 years of milliseconds */
    if (group != NULL)
        group->lease_until_ms = object->lease_until_ms;
}

static void reading_add(struct mc_core *core, struct mc_connection *connection, struct mc_object *object)
{
    struct mc_group *group = mc_object_group(object);
    bool was_read = mc_object_was_read(object);
    lease(core, object);
    /* Else it is read without protection: the slot check still stands. */
    if (connection->reading_count < connection->reading_capacity && object->readers < MC_OBJECT_READERS_MAX) {
        object->readers++;
        if (group != NULL)
            group->readers++;
        connection->reading[connection->reading_count++] = (struct mc_reading){object, object->serial};
    }
    mc_object_touch(core, object);
    if (!was_read)
        mc_offload_appeared(core, object, false);
}

static void reading_reserve(struct mc_connection *connection, uint32_t count)
{
    if (connection->reading_capacity >= count)
        return;
    struct mc_reading *reading = realloc(connection->reading, count * sizeof(*reading));
    if (reading == NULL)
        return;
    connection->reading = reading;
    connection->reading_capacity = count;
}

void mc_request_renew(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame)
{
    (void)frame;
    for (uint32_t i = 0; i < connection->reading_count; i++)
        if (connection->reading[i].object->serial == connection->reading[i].serial)
            lease(core, connection->reading[i].object);
}

/* ---- GET ---- */

static void write_places(struct mc_core *core, struct mc_id reader, const struct mc_replica *replicas, uint32_t count,
                         uint32_t taken)
{
    uint32_t start = core->rotation++ % count;
    for (uint32_t i = 0; i < taken; i++) {
        const struct mc_replica *replica = &replicas[(start + i) % count];
        const struct mc_node *node = mc_segment_node(replica->segment, replica->slot);
        struct mc_wire_place place = {
            .segment = replica->segment->number,
            .slot = replica->slot,
            .generation = mc_node_generation(core, node),
            .offset = (uint64_t)node->offset * MC_EXTENT_UNIT,
            .replica = node->replica,
        };
        place.tag = mc_segment_tag_read(replica->segment, reader, &place);
        mc_wire_place_write(&core->scratch, &place);
    }
}

/* The value before is nearly always cleared within a turn of its owner's loop: the reader asks again. Not if an owner
 * that is to clear something is cut off, nor for long: it may be stopped. */
static int32_t waits_code(const struct mc_core *core, const struct mc_object *object)
{
    if ((uint32_t)core->now_ms - object->soft_until >= MC_REPLACE_HOPE_MS)
        return MC_ERR_REPLICA_IS_NOT_READY;
    for (uint32_t i = 0; i < core->segment_top; i++) {
        const struct mc_segment *segment = core->segments[i];
        if (segment != NULL && segment->state == MC_SEGMENT_SUSPECT && segment->clears.count > 0)
            return MC_ERR_REPLICA_IS_NOT_READY;
    }
    return MC_ERR_PUT_IN_PROGRESS;
}

#define ON_DISK 1 /* in the place of a code: it can be had, but not from memory */

/* Who has it on a disk that can be read from; empty: nobody. */
static struct mc_span disk_of(const struct mc_core *core, const struct mc_object *object)
{
    struct mc_replica disk = mc_object_on_disk(core, object);
    bool is_there = object->visible && disk.segment != NULL && disk.segment->state == MC_SEGMENT_OK;
    return mc_span_string(is_there ? disk.segment->name : "");
}

/* As the flags of a put. An earlier release that copies it knows of no firm pin: the copy has one nevertheless. */
static uint8_t pins_of(const struct mc_core *core, const struct mc_object *object, bool leased)
{
    bool is_firm = mc_object_is_firm(object);
    return (uint8_t)((object->hard && !is_firm ? MC_PUT_HARD_PIN : 0) | (object->soft ? MC_PUT_SOFT_PIN : 0) |
                     (is_firm ? MC_PUT_FIRM_PIN : 0) |
                     (!leased && mc_object_is_leased(core, object) ? MC_FOUND_LEASED : 0));
}

static uint32_t left_ms_told(const struct mc_core *core, const struct mc_object *object)
{
    uint64_t left_ms = mc_pin_left_ms(core, object);
    return left_ms < UINT32_MAX ? (uint32_t)left_ms : UINT32_MAX;
}

/* What the reader is told of one key; at most `places_left` of its replicas. leased: it will be read. */
static struct mc_wire_found find_one(struct mc_core *core, struct mc_id reader, struct mc_span key,
                                     const struct mc_object *object, bool leased, uint32_t places_left)
{
    struct mc_replica replicas[MC_REPLICA_COUNT_MAX];
    uint32_t count;
    if (key.length == 0 || key.length > MC_KEY_LENGTH_MAX)
        return (struct mc_wire_found){.code = MC_ERR_INVALID_KEY};
    if (object == NULL)
        return (struct mc_wire_found){.code = MC_ERR_OBJECT_NOT_FOUND};
    if (mc_object_waits(object) && leased)
        return (struct mc_wire_found){.code = waits_code(core, object)};
    if (!object->visible && !mc_object_waits(object))
        return (struct mc_wire_found){.code = MC_ERR_REPLICA_IS_NOT_READY};
    /* Who only asks what there is (size, description) is told of the value that comes. */
    if (object->visible)
        count = mc_object_readable(core, object, replicas, MC_REPLICA_COUNT_MAX);
    else
        count = mc_object_coming(core, object, replicas, MC_REPLICA_COUNT_MAX);
    struct mc_wire_found found = {.length = object->length, .pins = pins_of(core, object, leased)};
    if (!leased && count > 0 && object->visible && mc_object_is_firm(object))
        found.pin_ms = left_ms_told(core, object);
    if (count == 0 && object->visible && mc_object_stored(core, object)) { /* on a disk */
        found.code = leased ? ON_DISK : 0;
        return found;
    }
    if (count == 0)
        return (struct mc_wire_found){.code = MC_ERR_OBJECT_NOT_FOUND};
    uint32_t taken = count < places_left ? count : places_left;
    write_places(core, reader, replicas, count, taken);
    found.replica_count = (uint8_t)taken;
    return found;
}

/* After all that can be read at once was found, and is protected: room may have to be made for what comes from disks,
 * so that objects that were found before may be no more. */
static void load_from_disks(struct mc_core *core, const struct mc_span *keys, uint32_t count,
                            struct mc_wire_found *found)
{
    for (uint32_t i = 0; i < count; i++) {
        if (found[i].code != ON_DISK)
            continue;
        struct mc_object *object = mc_object_find(core, keys[i]);
        found[i] = (struct mc_wire_found){.code = MC_ERR_OBJECT_NOT_FOUND};
        if (object != NULL)
            found[i].code = mc_offload_load(core, object);
        if (found[i].code == MC_ERR_PUT_IN_PROGRESS && object->moving)
            found[i].length = object->length;
    }
}

/* Of what is on its way nothing is counted: it is asked for again. */
static void count_gets(struct mc_core *core, const struct mc_span *keys, uint32_t count,
                       const struct mc_wire_found *found, const struct mc_picks *picks)
{
    uint32_t hits = 0, waits = 0;
    for (uint32_t i = 0; i < count; i++) {
        hits += found[i].code == 0;
        core->statistics.get_hit_bytes += found[i].code == 0 ? found[i].length : 0;
        waits += found[i].code == MC_ERR_PUT_IN_PROGRESS;
    }
    core->statistics.get_hits += hits;
    core->statistics.get_misses += count - hits;
    core->statistics.get_none += hits + waits == 0 && count > 0;
    core->statistics.get_some += hits + waits > 0 && hits + waits < count;
    core->statistics.get_waits += waits;
    mc_reuse_ask(&core->reuse, count - waits, hits, false);
    for (uint32_t i = 0; i < picks->count; i++) {
        int32_t code = found[picks->list[i].index].code;
        if (code != MC_ERR_PUT_IN_PROGRESS)
            mc_reuse_look(&core->reuse, core->now_ms, picks->list[i].hash, false, code == 0);
    }
    if (hits + waits == count || !mc_misses_may_look(core))
        return;
    for (uint32_t i = 0; i < count; i++)
        if (found[i].code != 0 && found[i].code != MC_ERR_PUT_IN_PROGRESS)
            mc_miss_count(core, keys[i]);
}

void mc_request_get(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_span keys[MC_BATCH_MAX];
    struct mc_object *objects[MC_BATCH_MAX];
    struct mc_picks picks;
    struct mc_wire_found found[MC_BATCH_MAX];
    struct mc_wire_get head;
    struct mc_wire_none none = {0};
    mc_wire_get_read(&reader, &head);
    bool is_raw[MC_BATCH_MAX];
    uint32_t count = mc_keys_read(connection, &reader, keys), places = 0;
    take_keys(keys, count, is_raw);
    find_keys(core, keys, count, objects, &picks);
    hide(core, connection, is_raw, objects, count);
    core->statistics.get_requests++;
    core->statistics.get_items += count;
    struct mc_buffer *out = mc_core_buffer(core, connection->number);
    if (out == NULL)
        return;
    bool leased = (head.flags & MC_GET_NO_LEASE) == 0;
    if (leased)
        reading_reserve(connection, count);
    core->scratch.length = 0;
    for (uint32_t i = 0; i < count; i++) {
        /* The list of places is as long as any list may be: every key gets one, more while some are left. */
        found[i] = find_one(core, connection->member->id, keys[i], objects[i], leased,
                            MC_BATCH_MAX - places - (count - i - 1));
        places += found[i].replica_count;
        if (objects[i] != NULL && !is_raw[i] && mc_object_is_head(objects[i]))
            found[i].whole = mc_stripe_length(objects[i]);
        if (found[i].code == 0 && leased && core->heat.entries != NULL)
            found[i].copy_to = mc_heat_read(core, connection, objects[i]);
        if (found[i].code == 0 && leased)
            reading_add(core, connection, objects[i]);
        else if (found[i].code == 0 && (head.flags & MC_GET_DISKS) != 0)
            found[i].disk = disk_of(core, objects[i]);
    }
    load_from_disks(core, keys, count, found);
    /* Not begun before: room that is made for what is loaded may end a put of this connection, whose PUT_DONE is there
     * then. */
    size_t at = mc_core_frame(core, out, MC_MESSAGE_GET_FOUND, frame->request_id);
    size_t list = mc_wire_none_head(out, &none);
    for (uint32_t i = 0; i < count; i++)
        mc_wire_found_write(out, &found[i]);
    count_gets(core, keys, count, found, &picks);
    mc_list_end(out, list, count);
    size_t flat = mc_list_begin(out);
    mc_buffer_append(out, core->scratch.data, core->scratch.length);
    mc_frame_end_list(out, at, flat, places);
}

/* ---- EXIST ---- */

static void prefetch_node(const struct mc_core *core, const struct mc_object *object)
{
    if (object != NULL && object->first_slot != MC_NODE_NONE)
        __builtin_prefetch(mc_segment_node(core->segments[object->first_segment], object->first_slot));
}

/* A node is moved within a list: its neighbours are written too. */
static void prefetch_neighbours(const struct mc_core *core, const struct mc_object *object)
{
    if (object == NULL || object->first_slot == MC_NODE_NONE)
        return;
    const struct mc_segment *segment = core->segments[object->first_segment];
    const struct mc_node *node = mc_segment_node(segment, object->first_slot);
    if (node->state != MC_NODE_LIVE || !object->visible || object->hard)
        return;
    if (node->list_previous < segment->space.node_fresh)
        __builtin_prefetch(mc_segment_node(segment, node->list_previous), 1);
    if (node->list_next < segment->space.node_fresh)
        __builtin_prefetch(mc_segment_node(segment, node->list_next), 1);
}

/* Returns how many there are. */
static uint32_t exist_group(struct mc_core *core, struct mc_object *const *objects, uint32_t count, uint8_t *results)
{
    struct mc_replica replica;
    uint32_t hits = 0;
    for (uint32_t i = 0; i < count; i++)
        prefetch_node(core, objects[i]);
    for (uint32_t i = 0; i < count; i++)
        prefetch_neighbours(core, objects[i]);
    for (uint32_t i = 0; i < count; i++) {
        results[i] = objects[i] != NULL &&
                     (mc_object_stored(core, objects[i]) || mc_object_coming(core, objects[i], &replica, 1) > 0);
        hits += results[i];
        if (results[i] && objects[i]->visible)
            mc_object_touch(core, objects[i]);
    }
    return hits;
}

static void count_checks(struct mc_core *core, const struct mc_span *keys, uint32_t count, uint32_t hits,
                         const uint8_t *results, const struct mc_picks *picks)
{
    core->statistics.exist_hits += hits;
    mc_reuse_ask(&core->reuse, count, hits, true);
    for (uint32_t i = 0; i < picks->count; i++)
        mc_reuse_look(&core->reuse, core->now_ms, picks->list[i].hash, true, results[picks->list[i].index] != 0);
    if (hits == count || !mc_misses_may_look(core))
        return;
    for (uint32_t i = 0; i < count; i++)
        if (!results[i])
            mc_miss_count(core, keys[i]);
}

void mc_request_exist(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_span keys[MC_BATCH_MAX];
    struct mc_object *objects[MC_BATCH_MAX];
    struct mc_picks picks;
    uint8_t results[MC_BATCH_MAX];
    struct mc_wire_none none;
    mc_wire_none_read(&reader, &none);
    uint32_t count = mc_keys_read(connection, &reader, keys);
    if (reader.bad || mc_reader_left(&reader) != 0) {
        mc_core_malformed(core, connection, "a malformed message");
        return;
    }
    bool is_raw[MC_BATCH_MAX];
    take_keys(keys, count, is_raw);
    find_keys(core, keys, count, objects, &picks);
    hide(core, connection, is_raw, objects, count);
    uint32_t hits = 0;
    for (uint32_t i = 0; i < count; i += PREFETCH_GROUP)
        hits += exist_group(core, &objects[i], count - i < PREFETCH_GROUP ? count - i : PREFETCH_GROUP, &results[i]);
    core->statistics.exist_requests++;
    core->statistics.exist_items += count;
    count_checks(core, keys, count, hits, results, &picks);
    struct mc_buffer *out = mc_core_buffer(core, connection->number);
    if (out == NULL)
        return;
    struct mc_wire_exist_reply reply = {.code = 0, .results = mc_span(results, count)};
    mc_wire_exist_reply_frame(out, mc_core_frame(core, out, MC_MESSAGE_EXIST_REPLY, frame->request_id), &reply);
}

/* ---- REMOVE ---- */

static int32_t remove_one(struct mc_core *core, struct mc_span key, bool force, struct mc_wait *wait)
{
    if (key.length == 0 || key.length > MC_KEY_LENGTH_MAX)
        return MC_ERR_INVALID_KEY;
    struct mc_object *object = mc_objects_find(&core->objects, key);
    if (object == NULL || object->tombstone != 0) {
        mc_tombstone_add(core, key, object);
        if (object != NULL && object->clearing > 0)
            mc_key_wait(core, object, wait);
        return MC_ERR_OBJECT_NOT_FOUND;
    }
    if (!object->visible)
        return MC_ERR_REPLICA_IS_NOT_READY;
    if (!force && mc_object_is_leased(core, object))
        return MC_ERR_OBJECT_HAS_LEASE;
    core->leaving = MC_GONE_REMOVED;
    mc_object_drop(core, object, wait);
    core->leaving = MC_GONE_LOST;
    return 0;
}

/* Something that would be removed lies over what cannot be cleared, or is not cleared yet. */
static bool any_hides(const struct mc_core *core, const struct mc_span *keys, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct mc_object *object = mc_object_find(core, keys[i]);
        if (object != NULL && mc_key_hides(core, object))
            return true;
    }
    return false;
}

/* Nothing would be removed, and nothing is said to be absent. */
static bool all_stay(const struct mc_core *core, const struct mc_span *keys, uint32_t count, bool force)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct mc_object *object = mc_object_find(core, keys[i]);
        if (object == NULL || mc_object_waits(object) ||
            (object->visible && (force || !mc_object_is_leased(core, object))))
            return false;
    }
    return true;
}

void mc_request_remove(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_span keys[MC_BATCH_MAX];
    struct mc_wire_remove head;
    mc_wire_remove_read(&reader, &head);
    bool is_raw[MC_BATCH_MAX];
    uint32_t count = mc_keys_read(connection, &reader, keys);
    take_keys(keys, count, is_raw);
    if ((mc_recover_unsettled(core) || any_hides(core, keys, count)) && !all_stay(core, keys, count, head.force != 0)) {
        /* The key, a second replica or a value before it, may lie where we have not met it or do not reach it. */
        mc_core_reply_failed(core, connection->number, frame->request_id, MC_ERR_BUSY);
        return;
    }
    core->has_changed = true;
    core->statistics.remove_requests++;
    core->statistics.remove_items += count;
    struct mc_wait *wait = mc_wait_create(core, MC_WAIT_REMOVE, connection, frame->request_id, count);
    if (wait == NULL) {
        core->statistics.remove_failures += count;
        mc_core_reply_failed(core, connection->number, frame->request_id, MC_ERR_BUSY);
        return;
    }
    if (count > 0)
        mc_wait_names(wait, keys[0]);
    for (uint32_t i = 0; i < count; i++) {
        wait->codes[i] = remove_one(core, keys[i], head.force != 0, wait);
        core->statistics.remove_failures += wait->codes[i] != 0;
    }
    mc_wait_done(core, wait);
}
