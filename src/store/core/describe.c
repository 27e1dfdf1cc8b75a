/* What clients are told of segments: where one lies, by number and by name, and which they should know ahead. */
#include "base/checksum.h"
#include "store/core/limits.h"
#include "store/core/member.h"
#include "store/core/object.h"
#include "store/core/place.h"
#include "store/core/segment.h"
#include "store/core/state.h"
#include "store/core/stripe.h"

struct ticket {
    uint8_t text[MC_TICKET_BYTES], secret[MC_KEY_SECRET_BYTES];
};

/* For who asks. The answer borrows the ticket. */
static struct mc_wire_segment_reply described(const struct mc_segment *segment, const struct mc_connection *connection,
                                              struct ticket *ticket)
{
    struct mc_span text = mc_span(ticket->text, segment->has_ticket_key ? sizeof(ticket->text) : 0);
    if (segment->has_ticket_key) {
        bool is_tenants = connection->key != 0 && mc_scope_name(&connection->scope).length > 0; /* its key says so */
        mc_ticket_write(ticket->text, connection->member->id,
                        connection->rights | (is_tenants ? MC_TICKET_OF_TENANT : 0), segment->key_mark);
        mc_ticket_secret(segment->ticket_key, text, ticket->secret);
    }
    return (struct mc_wire_segment_reply){
        .code = 0,
        .segment = segment->number,
        .node = segment->owner_id,
        .incarnation = segment->incarnation,
        .segment_id = segment->id,
        .capacity = segment->capacity,
        .slot_count = segment->slot_count,
        .nonce = segment->nonce,
        .host = segment->host,
        .name = mc_span_string(segment->name),
        .tcp_address = mc_span_string(segment->tcp_address),
        .unix_path = mc_span_string(segment->unix_path),
        .ticket = text,
        .ticket_secret = mc_span(ticket->secret, segment->has_ticket_key ? sizeof(ticket->secret) : 0),
        .ticket_ms = segment->key_ms,
    };
}

uint64_t mc_segment_tag_read(const struct mc_segment *segment, struct mc_id holder, const struct mc_wire_place *place)
{
    const struct mc_tagged what = {.holder = holder, .slot = place->slot, .generation = place->generation};
    return segment->has_tag_key ? mc_tag_marked(mc_tag_read(segment->tag_key, &what), segment->key_mark) : 0;
}

uint64_t mc_segment_tag_write(const struct mc_segment *segment, struct mc_id holder, const struct mc_wire_place *place,
                              const struct mc_object *object, bool is_head)
{
    if (!segment->has_tag_key)
        return 0;
    uint8_t marked[MC_MARK_LENGTH + MC_KEY_LENGTH_MAX];
    struct mc_span key = is_head ? mc_key_stored(object, marked) : mc_object_key(object);
    struct mc_hash hash = mc_hash(key.data, key.length);
    const struct mc_tagged what = {.holder = holder,
                                   .slot = place->slot,
                                   .key_length = (uint16_t)key.length,
                                   .generation = place->generation,
                                   .offset = place->offset,
                                   .length = object->length,
                                   .hash_low = hash.low,
                                   .hash_high = hash.high};
    return mc_tag_marked(mc_tag_write(segment->tag_key, &what), segment->key_mark);
}

/* segment NULL: there is none of that number. */
static void segment_reply(struct mc_core *core, const struct mc_connection *connection, uint64_t request_id,
                          uint32_t number, const struct mc_segment *segment)
{
    struct mc_buffer *out = mc_core_buffer(core, connection->number);
    if (out == NULL)
        return;
    struct ticket ticket;
    struct mc_wire_segment_reply reply = {.code = MC_ERR_SEGMENT_NOT_FOUND, .segment = number};
    if (segment != NULL)
        reply = described(segment, connection, &ticket);
    mc_wire_segment_reply_frame(out, mc_core_frame(core, out, MC_MESSAGE_SEGMENT_REPLY, request_id), &reply);
}

void mc_segment_describe(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_segment head;
    mc_wire_segment_read(&reader, &head);
    const struct mc_segment *segment = mc_segment_find(core, head.segment);
    bool is_known = segment != NULL && segment->kind == MC_SEGMENT_MEMORY; /* a disk serves nobody */
    segment_reply(core, connection, frame->request_id, head.segment, is_known ? segment : NULL);
}

void mc_segment_describe_named(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_placement found = {.preferred_count = 0};
    struct mc_wire_name head;
    mc_wire_name_read(&reader, &head);
    mc_placement_prefer(core, &found, head.name);
    segment_reply(core, connection, frame->request_id, 0, found.preferred_count > 0 ? found.preferred[0] : NULL);
}

/* The segments that lie nearest to a client in an order of its own, at most `capacity` of them. */
struct nearest {
    const struct mc_segment *segments[MC_SEGMENTS_TOLD_NEAR];
    uint64_t distances[MC_SEGMENTS_TOLD_NEAR]; /* rising */
    size_t count, capacity;
};

/* Another one for each pair, and always the same: so clients spread evenly over segments, each is told of a few, and a
 * segment that is new is news to a few. */
static uint64_t distance(struct mc_id client, const struct mc_segment *segment)
{
    uint64_t mixed = client.low ^ segment->id.low * 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ mixed >> 32) * 0xd6e8feb86659fd93u;
    mixed = (mixed ^ mixed >> 32 ^ client.high ^ segment->id.high) * 0xd6e8feb86659fd93u;
    return mixed ^ mixed >> 32;
}

static void nearest_add(struct nearest *nearest, const struct mc_segment *segment, uint64_t distance)
{
    size_t at = nearest->count;
    if (at == nearest->capacity && distance >= nearest->distances[at - 1])
        return;
    at -= at == nearest->capacity;
    for (; at > 0 && nearest->distances[at - 1] > distance; at--) {
        nearest->segments[at] = nearest->segments[at - 1];
        nearest->distances[at] = nearest->distances[at - 1];
    }
    nearest->segments[at] = segment;
    nearest->distances[at] = distance;
    nearest->count += nearest->count < nearest->capacity;
}

static size_t nearest_write(const struct nearest *nearest, const struct mc_connection *connection, uint64_t changes,
                            struct mc_buffer *out)
{
    size_t told = 0;
    for (size_t i = 0; i < nearest->count; i++) {
        if (nearest->segments[i]->change <= changes)
            continue;
        struct ticket ticket;
        struct mc_wire_segment_reply one = described(nearest->segments[i], connection, &ticket);
        mc_wire_segment_reply_write(out, &one);
        told++;
    }
    return told;
}

/* What has been mounted since the client last asked, of the few segments that it is told of: it opens ways to them
 * ahead. The rest it asks for when it needs them, so that not everybody is connected with everybody. One pass. */
void mc_segments_tell(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame)
{
    struct nearest near = {.capacity = MC_SEGMENTS_TOLD_NEAR}, far = {.capacity = MC_SEGMENTS_TOLD_FAR};
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_segments head;
    mc_wire_segments_read(&reader, &head);
    mc_reach_asked(core, head.host);
    struct mc_buffer *out = mc_core_buffer(core, connection->number);
    if (out == NULL)
        return;
    for (uint32_t index = 1; index < core->segment_top; index++) {
        const struct mc_segment *segment = core->segments[index];
        if (segment != NULL && segment->state != MC_SEGMENT_GONE && segment->kind == MC_SEGMENT_MEMORY)
            nearest_add(mc_id_equal(segment->host, head.host) ? &near : &far, segment,
                        distance(connection->member->id, segment));
    }
    size_t at = mc_core_frame(core, out, MC_MESSAGE_SEGMENTS_REPLY, frame->request_id);
    size_t list = mc_wire_segments_reply_head(out, &(struct mc_wire_segments_reply){.changes = core->segment_changes});
    size_t told = nearest_write(&near, connection, head.changes, out);
    told += nearest_write(&far, connection, head.changes, out);
    mc_frame_end_list(out, at, list, told);
}
