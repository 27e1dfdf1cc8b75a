/* Probes: whether a segment that somebody complained about is to be offered. The first report of a failed transfer has
 * its owner pinged: without an answer in time the segment is suspect. A doubt (code 0) has it pinged and says no more.
 * A second reporter is believed at once, and the segment rests for a while whatever the owner answers. A suspect is
 * pinged again and again; a PONG brings it back. */
#include "master/state.h"

static void unwatch(struct mc_segment *segment)
{
    segment->probing = segment->distrusted = false;
    mc_link_remove(&segment->watched);
}

static void probe(struct mc_core *core, struct mc_segment *segment)
{
    if (mc_link_alone(&segment->watched))
        mc_link_append(&core->watched, &segment->watched);
    segment->probe_ms = core->now_ms;
    segment->probing = true;
    segment->probe++;
    core->statistics.probes++;
    /* Without a connection nothing answers: the probe fails in time, and the segment is suspect anyway. */
    struct mc_buffer *out = segment->owner == NULL ? NULL : mc_core_buffer(core, segment->owner->number);
    if (out != NULL)
        mc_core_frame_bare(core, out, MC_MESSAGE_PING, (uint64_t)segment->number << 32 | segment->probe);
}

static void distrust(struct mc_core *core, struct mc_segment *segment)
{
    segment->distrusted = true;
    mc_segment_refresh(core, segment);
}

void mc_segment_report(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_suspect head;
    mc_wire_suspect_read(&reader, &head);
    struct mc_segment *segment = mc_segment_find(core, head.segment);
    core->statistics.suspects += head.code != 0;
    if (segment == NULL)
        return;
    if (head.code == 0) {
        if (!segment->probing)
            probe(core, segment);
        return;
    }
    bool fresh = segment->reporter != NULL && core->now_ms - segment->reported_ms < MC_REPORT_WINDOW_MS;
    if (fresh && segment->reporter == connection->member && segment->probing)
        return;
    if (!segment->probing)
        probe(core, segment);
    /* After a takeover clients still try the address of the process before; the probe tells. */
    bool is_back = core->now_ms < segment->back_until_ms;
    if (fresh && segment->reporter != connection->member && !is_back) {
        segment->reporter = NULL;
        segment->distrust_until_ms = core->now_ms + MC_DISTRUST_MS;
        distrust(core, segment);
        return;
    }
    segment->reporter = connection->member;
    segment->reported_ms = core->now_ms;
}

void mc_segment_pong(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame)
{
    struct mc_segment *segment = mc_segment_find(core, (uint32_t)(frame->request_id >> 32));
    if (segment == NULL || segment->owner != connection || !segment->probing ||
        segment->probe != (uint32_t)frame->request_id)
        return; /* of a probe that has ended */
    segment->probing = false;
    if (segment->distrusted && core->now_ms < segment->distrust_until_ms)
        return;
    unwatch(segment);
    mc_segment_refresh(core, segment);
}

/* When something is to happen with the segment. */
static uint64_t due(const struct mc_segment *segment)
{
    return segment->probe_ms + (segment->distrusted ? MC_PROBE_EVERY_MS : MC_PROBE_ANSWER_MS);
}

void mc_segments_tick(struct mc_core *core)
{
    for (struct mc_link *link = core->watched.next; link != &core->watched;) {
        struct mc_segment *segment = mc_link_of(link, struct mc_segment, watched);
        link = link->next;
        if (core->now_ms < due(segment))
            continue;
        if (segment->probing)
            core->statistics.probes_failed++;
        if (segment->distrusted)
            probe(core, segment);
        else
            distrust(core, segment);
    }
}

uint64_t mc_segments_due(const struct mc_core *core)
{
    uint64_t first = UINT64_MAX;
    for (const struct mc_link *link = core->watched.next; link != &core->watched; link = link->next) {
        uint64_t at = due(mc_link_of(link, struct mc_segment, watched));
        first = at < first ? at : first;
    }
    return first;
}
