/* Draining: a segment takes nothing new, and its owner is told, by its heartbeats, to move what lies there elsewhere.
 * The owner asks here for the keys. */
#include "store/core/member.h"
#include "store/core/replica.h"
#include "store/core/segment.h"
#include "store/core/state.h"
#include "store/core/stripe.h"

#define KEYS_MAX 256u   /* in one answer */
#define SLOTS_MAX 4096u /* looked at for one answer */

size_t mc_core_drain(struct mc_core *core, struct mc_span name, bool on)
{
    size_t count = 0;
    for (uint32_t index = 1; index < core->segment_top; index++) {
        struct mc_segment *segment = core->segments[index];
        if (segment == NULL || segment->state == MC_SEGMENT_GONE || !mc_span_equal(mc_span_string(segment->name), name))
            continue;
        count++;
        if (segment->drain == on)
            continue;
        segment->drain = segment->leaving = on; /* when its owner wants it to leave, its next heartbeat says so again */
        mc_segment_update_room(core, segment);
        mc_core_tell(core, MC_TOPIC_DRAIN, MC_CORE_LOG_INFO, "segment %u (%s) is %s", segment->number, segment->name,
                     !on                  ? "not drained any more"
                     : segment->live == 0 ? "drained: it can be unmounted"
                                          : "being drained");
    }
    return count;
}

void mc_segment_tell_keys(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_segment_keys head;
    mc_wire_segment_keys_read(&reader, &head);
    const struct mc_segment *segment = mc_segment_find(core, head.segment);
    const struct mc_object *objects[KEYS_MAX];
    uint32_t slot = head.slot, end = segment == NULL ? 0 : segment->space.node_fresh;
    size_t count = 0;
    for (uint32_t looked = 0; slot < end && looked < SLOTS_MAX && count < KEYS_MAX; looked++, slot++) {
        const struct mc_node *node = mc_segment_node(segment, slot);
        const struct mc_object *object = node->state == MC_NODE_LIVE ? mc_node_object(node) : NULL;
        if (object != NULL && connection->is_kept && !mc_scope_has(&connection->scope, mc_object_key(object)))
            continue;
        if (object != NULL && object->visible)
            objects[count++] = object;
    }
    struct mc_buffer *out = mc_core_buffer(core, connection->number);
    if (out == NULL)
        return;
    struct mc_wire_segment_keys_reply reply = {.code = segment == NULL ? MC_ERR_SEGMENT_NOT_FOUND : 0,
                                               .slot = slot < end ? slot : 0};
    size_t at = mc_core_frame(core, out, MC_MESSAGE_SEGMENT_KEYS_REPLY, frame->request_id);
    size_t list = mc_wire_segment_keys_reply_head(out, &reply);
    for (size_t i = 0; i < count; i++) { /* of a head the key as it is stored: it is to be moved as what it is */
        uint8_t marked[MC_MARK_LENGTH + MC_KEY_LENGTH_MAX];
        bool is_head = mc_object_is_head(objects[i]);
        struct mc_span key = is_head ? mc_key_stored(objects[i], marked) : mc_object_key(objects[i]);
        mc_wire_key_write(out, &(struct mc_wire_key){.key = key});
    }
    mc_frame_end_list(out, at, list, count);
}
