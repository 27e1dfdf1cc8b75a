/* Places that are granted ahead: how they are given, taken back, and bound to a key. */
#include "store/core/blank.h"

#include "store/core/account.h"
#include "store/core/limits.h"
#include "store/core/list.h"
#include "store/core/member.h"
#include "store/core/miss.h"
#include "store/core/place.h"
#include "store/core/put.h"
#include "store/core/segment.h"
#include "store/core/state.h"
#include "store/core/stripe.h"
#include "store/core/tombstone.h"

#include <stdlib.h>
#include <xxhash.h>

#define WASTE_BITS 4u       /* a place is larger than what it is wanted for by less than 2^-4 of that */
#define COUNTERS_LEFT 4096u /* generations that puts are to have before an epoch is full */
#define RECLAIM_MAX 512u    /* at once */

/* ---- the keys that have left ---- */

static uint64_t *left_of(const struct mc_core *core, struct mc_span key)
{
    return &core->keys_left[XXH3_64bits_withSeed(key.data, key.length, core->objects.seed) % MC_BLANK_LEFT];
}

void mc_blank_key_left(struct mc_core *core, struct mc_span key)
{
    if (core->keys_left != NULL && !mc_link_alone(&core->blanks)) /* else all blanks to come are later */
        *left_of(core, key) = core->counter;
}

/* ---- what becomes of one ---- */

static struct mc_put *blank_at(const struct mc_core *core, const struct mc_segment *segment, uint32_t slot,
                               uint64_t generation)
{
    const struct mc_node *node = segment == NULL ? NULL : mc_space_node_checked(&segment->space, slot);
    bool is_it = node != NULL && mc_node_is_blank(node) && mc_node_generation(core, node) == generation;
    return is_it ? mc_table_get(&core->puts, node->list_previous) : NULL;
}

/* Its node is as that of any grant from here on. */
static void leave(struct mc_segment *segment, struct mc_put *put)
{
    const struct mc_node *node = mc_segment_node(segment, put->grants[0].slot);
    put->is_blank = false;
    mc_link_remove(&put->of_segment);
    segment->blank -= node->size;
    segment->used += node->size;
    if (put->connection != NULL && put->connection->blank == put)
        put->connection->blank = NULL;
}

void mc_blank_filled(struct mc_put *put)
{
    put->is_filled = true;
}

void mc_blank_end(struct mc_core *core, struct mc_segment *segment, uint32_t slot, bool cuts)
{
    struct mc_node *node = mc_segment_node(segment, slot);
    struct mc_put *put = mc_table_get(&core->puts, node->list_previous);
    leave(segment, put);
    segment->granted--;
    if (put->connection != NULL)
        put->connection->grants--;
    mc_node_clear(core, segment, slot, NULL); /* first of all: it may be live */
    if (cuts && node->state == MC_NODE_CLEARING) {
        core->statistics.cuts++;
        put->writer->references++;
        mc_node_set_clearing_writer(node, put->writer);
    }
    mc_put_destroy(core, put);
}

uint64_t mc_blank_reclaim(struct mc_core *core, struct mc_segment *segment)
{
    uint64_t before = segment->blank;
    for (uint32_t budget = RECLAIM_MAX; budget > 0 && !mc_link_alone(&segment->blanks); budget--) {
        const struct mc_put *put = mc_link_of(segment->blanks.next, struct mc_put, of_segment);
        mc_blank_end(core, segment, put->grants[0].slot, true);
    }
    return before - segment->blank;
}

void mc_blanks_tick(struct mc_core *core)
{
    uint64_t now = mc_core_life_ms(core);
    while (!mc_link_alone(&core->blanks)) {
        struct mc_put *put = mc_link_of(core->blanks.next, struct mc_put, by_age);
        if (now - put->started_ms < MC_BLANK_MS)
            break;
        mc_put_dies(core, put);
    }
}

void mc_blank_name(struct mc_core *core, const struct mc_connection *connection,
                   const struct mc_wire_put_start_item *item)
{
    struct mc_segment *segment = mc_segment_find(core, item->blank_segment);
    struct mc_node *node = segment == NULL ? NULL : mc_space_node_checked(&segment->space, item->blank_slot);
    const struct mc_put *put = blank_at(core, segment, item->blank_slot, item->unsure);
    if (put != NULL && put->writer == connection->member->writer) /* who has said so waits for nothing there any more */
        mc_blank_end(core, segment, item->blank_slot, true);
    if (node != NULL && node->state == MC_NODE_CLEARING && mc_node_generation(core, node) == item->unsure &&
        node->base == 0 && node->pointer == 0 && !mc_segment_ask_departed(core, segment))
        mc_key_hold_failed(core, node, item->key);
}

/* ---- giving one ---- */

static uint64_t size_class(uint64_t units)
{
    unsigned top = 63u - (unsigned)__builtin_clzll(units | 1);
    uint64_t step = top <= WASTE_BITS ? 1 : 1ull << (top - WASTE_BITS);
    return (units + step - 1) / step * step;
}

struct mc_segment *mc_blank_drawn(struct mc_core *core, struct mc_connection *connection)
{
    struct mc_segment *segment = connection->drawn == 0 ? NULL : mc_segment_find(core, connection->drawn);
    connection->drawn = 0;
    return segment != NULL && mc_set_has(&core->roomy, segment) ? segment : NULL;
}

/* May it have one more of that size? Not where somebody has just found no room: what is cut for it would come back. */
static bool has_room(const struct mc_core *core, const struct mc_segment *segment, uint64_t units)
{
    uint64_t part = core->config.blank_part;
    bool is_wanted = segment->demand > 0 && core->now_ms - segment->demand_ms < MC_BLANK_PAUSE_MS;
    return part > 0 && !is_wanted && segment->blank + units <= segment->capacity / MC_EXTENT_UNIT / part;
}

/* Where the next put goes is drawn by capacity, of those below their watermarks if there are some; NULL: there is no
 * blank to be there. A client with no segment beside it has its puts placed as ever. */
static struct mc_segment *draw(struct mc_core *core, struct mc_connection *connection, uint64_t units)
{
    const struct mc_segment_set *set = core->roomy.count > 0 ? &core->roomy : &core->ok;
    struct mc_id host = connection->member->host;
    bool is_beside = !mc_id_is_zero(host) && mc_segment_by_host(core, host) != NULL;
    if (set->count == 0 || (!is_beside && !core->config.blanks_anywhere))
        return NULL;
    struct mc_segment *segment = set->items[mc_set_draw(set, mc_core_random(core))];
    bool is_near = core->config.blanks_anywhere || mc_id_equal(segment->host, host);
    if (!is_near)
        connection->drawn = segment->number;
    bool may = is_near && segment->state == MC_SEGMENT_OK && segment->kind == MC_SEGMENT_MEMORY && !segment->leaving &&
               !segment->drain && !segment->has_tag_key; /* a tag names the key */
    return may && has_room(core, segment, units) ? segment : NULL;
}

void mc_blank_plan(struct mc_core *core, struct mc_put *put, uint64_t units)
{
    struct mc_connection *connection = put->connection;
    units = size_class(units);
    /* One that it has stays, though it may not fit: its client may be about to write there. */
    if (connection == NULL || !mc_wire_can(&connection->peer, MC_FEATURE_BLANKS) || connection->blank != NULL ||
        units * MC_EXTENT_UNIT > MC_BLANK_BYTES_MAX || core->counter_end - core->counter < COUNTERS_LEFT)
        return;
    if (core->keys_left == NULL)
        core->keys_left = calloc(MC_BLANK_LEFT, sizeof(*core->keys_left));
    struct mc_segment *segment = core->keys_left == NULL ? NULL : draw(core, connection, units);
    uint32_t slot = segment == NULL ? MC_NODE_NONE : mc_space_allocate(&segment->space, units);
    if (slot == MC_NODE_NONE)
        return;
    struct mc_node *node = mc_segment_node(segment, slot);
    struct mc_put *blank = mc_put_create(core, connection, 0, 1, 1);
    if (blank == NULL) {
        mc_node_free(core, segment, slot);
        return;
    }
    mc_generation_next(core, node, 0);
    node->pointer = 0;
    node->proven = 0;
    node->list_previous = blank->index;
    node->list_next = 0;
    mc_link_remove(&blank->by_age);
    mc_link_append(&core->blanks, &blank->by_age);
    mc_link_append(&segment->blanks, &blank->of_segment);
    blank->is_blank = true;
    blank->grants[blank->grant_count++] = (struct mc_grant){slot, segment->index, 0};
    blank->codes[0] = MC_PUT_OPEN;
    blank->open = 1;
    connection->grants++;
    connection->blank = blank;
    segment->granted++;
    segment->blank += node->size;
    mc_segment_update_room(core, segment);
    mc_place_count(core, segment, node->size);
    put->ahead = (struct mc_ahead){segment->number, slot, mc_node_generation(core, node)};
    core->statistics.blanks_granted++;
}

void mc_blank_tell(struct mc_core *core, const struct mc_put *put, struct mc_buffer *out)
{
    struct mc_segment *segment = mc_segment_find(core, put->ahead.segment);
    if (put->ahead.generation == 0 || blank_at(core, segment, put->ahead.slot, put->ahead.generation) == NULL)
        return; /* it was taken back meanwhile */
    const struct mc_node *node = mc_segment_node(segment, put->ahead.slot);
    struct mc_wire_blank blank = {.segment = put->ahead.segment,
                                  .slot = put->ahead.slot,
                                  .generation = put->ahead.generation,
                                  .offset = (uint64_t)node->offset * MC_EXTENT_UNIT,
                                  .size = (uint64_t)node->size * MC_EXTENT_UNIT};
    struct mc_wire_none none = {0};
    size_t frame = mc_core_frame(core, out, MC_MESSAGE_PUT_BLANKS, 0);
    size_t list = mc_wire_none_head(out, &none);
    mc_wire_blank_write(out, &blank);
    mc_frame_end_list(out, frame, list, 1);
}

/* ---- binding ---- */

static void answer_stale(struct mc_core *core, const struct mc_connection *connection, uint64_t request_id)
{
    struct mc_buffer *out = mc_core_buffer(core, connection->number);
    struct mc_wire_none none = {0};
    struct mc_wire_code code = {.code = MC_ERR_STALE};
    if (out == NULL)
        return;
    size_t frame = mc_core_frame(core, out, MC_MESSAGE_PUT_DONE, request_id);
    size_t list = mc_wire_none_head(out, &none);
    mc_wire_code_write(out, &code);
    mc_frame_end_list(out, frame, list, 1);
}

/* May the key take the place, as it lies there? What it says no to comes again by PUT_START, which says why. */
static bool may_bind(struct mc_core *core, const struct mc_put *blank, const struct mc_segment *segment,
                     const struct mc_wire_put_start_item *item)
{
    const struct mc_node *node = mc_segment_node(segment, blank->grants[0].slot);
    uint64_t counter = (uint64_t)node->generation_high << 32 | node->generation_low;
    if (item->key.length == 0 || item->key.length > MC_KEY_LENGTH_MAX || item->length == 0 ||
        item->length > MC_BLANK_BYTES_MAX || mc_extent_units(item->length, item->key.length) > node->size)
        return false;
    if (!mc_key_is_plain(item->key)) /* neither a piece nor a head goes into one */
        return false;
    if (item->unsure != 0 || item->group != 0 || segment->state != MC_SEGMENT_OK || segment->leaving || segment->drain)
        return false;
    if (mc_objects_find(&core->objects, item->key) != NULL || *left_of(core, item->key) >= counter ||
        mc_account_enter(core, item->key) != 0)
        return false;
    if (mc_core_counts(core) && mc_account_admit(core, item->key, NULL, item->length, 1) != 0)
        return false;
    return mc_objects_find(&core->objects, item->key) == NULL && *left_of(core, item->key) < counter;
}

/* The blank becomes a put of that key. False when memory is out: then it is as it was. */
static bool bind_key(struct mc_core *core, struct mc_put *put, struct mc_segment *segment, uint64_t request_id,
                     const struct mc_wire_put_start_item *item)
{
    uint32_t slot = put->grants[0].slot;
    struct mc_object *object = mc_object_begin(core, NULL, item->key, item->length, 0, 0);
    if (object == NULL)
        return false;
    leave(segment, put);
    put->request_id = request_id;
    put->started_ms = mc_core_life_ms(core);
    mc_link_remove(&put->by_age);
    mc_link_append(&core->puts_by_age, &put->by_age);
    mc_object_link(core, object, segment, slot);
    object->granted++;
    mc_segment_update_room(core, segment);
    mc_evict_ahead(core, segment, mc_segment_node(segment, slot)->size);
    return true;
}

static void count_put(struct mc_core *core, const struct mc_wire_put_start_item *item)
{
    struct mc_object *found = NULL;
    struct mc_picks picks;
    core->statistics.blanks_bound++;
    core->statistics.put_start_requests++;
    core->statistics.put_start_items++;
    mc_miss_picks(core, &picks);
    mc_objects_find_batch(&core->objects, &item->key, 1, &found, &picks);
    if (picks.count > 0)
        mc_miss_put(core, picks.list[0].hash, mc_extent_units(item->length, item->key.length));
}

void mc_put_bind(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_put_bind head;
    struct mc_wire_put_start_item item = {0};
    mc_wire_put_bind_read(&reader, &head);
    uint32_t count = mc_list_read(&reader);
    if (count != 1) {
        mc_core_reply_failed(core, connection->number, frame->request_id, MC_ERR_INVALID_PARAMS);
        return;
    }
    mc_wire_put_start_item_read(&reader, &item);
    mc_connection_keep(connection, &item.key, 1);
    item.group = mc_scope_group(&connection->scope, item.group);
    struct mc_segment *segment = mc_segment_find(core, head.segment);
    struct mc_put *put = blank_at(core, segment, head.slot, head.generation);
    if (mc_core_counts(core))
        mc_account_puts(core, item.key);
    bool is_ours = put != NULL && put->connection == connection && connection->blank == put && !put->dying;
    bool is_bound =
        is_ours && may_bind(core, put, segment, &item) && bind_key(core, put, segment, frame->request_id, &item);
    if (mc_core_counts(core))
        mc_account_puts(core, mc_span(NULL, 0));
    if (!is_bound) {
        core->statistics.blanks_refused++;
        if (is_ours) /* its path to it has ended */
            mc_blank_end(core, segment, head.slot, false);
        item.unsure = head.generation;
        item.blank_segment = head.segment;
        item.blank_slot = head.slot;
        if (item.key.length > 0 && item.key.length <= MC_KEY_LENGTH_MAX && mc_key_is_plain(item.key))
            mc_blank_name(core, connection, &item);
        answer_stale(core, connection, frame->request_id);
        return;
    }
    count_put(core, &item);
    if ((head.flags & MC_PUT_BLANK) != 0)
        mc_blank_plan(core, put, mc_extent_units(item.length, item.key.length));
    if (put->is_filled)
        mc_put_found_live(core, segment, head.slot);
}
