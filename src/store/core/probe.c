/* Probes: whether a segment that somebody complained about is to be offered. Its owner is asked by PINGs over the
 * connection that the thread which serves its data reads: what is not answered there is answered nowhere. Nobody's
 * report hides a node that answers: who reports may have a bad cable, no descriptors, or a wrong address himself.
 *
 * The first PING may be lost. So several are sent, each of which makes the kernel find out sooner that the one before
 * is missing, and what the owner says meanwhile counts as an answer; and who is known to answer late is given longer.
 *
 * Whose fault is the silence? Where a packet and what replaces it are lost, the kernel on one side waits for 200 ms and
 * sends nothing, however many PINGs or PONGs are given to it. Our own kernel knows: what we sent is not confirmed; or
 * it is, but packets of ours or of the owner's were lost just before, so that the owner's kernel may be the one that
 * waits. Then the owner has MC_PROBE_MOST_MS. Where all is confirmed and nothing was lost, the answer is missing
 * because nobody gives it.
 *
 * A segment whose owner was silent for all of that is suspect, and is asked again and again; a PONG brings it back.
 *
 * Reports that were refuted are counted by the machine that they came from: one that reports many nodes which answer is
 * itself in trouble, and is named. */
#include "store/core/limits.h"
#include "store/core/list.h"
#include "store/core/member.h"
#include "store/core/segment.h"
#include "store/core/state.h"

#include <stdio.h>
#include <string.h>

/* ---- how an owner answers ---- */

static void learn_round_trip(struct mc_connection *owner, uint64_t ms)
{
    struct mc_answering *known = &owner->answering;
    if (ms > MC_ROUND_TRIP_MAX_MS)
        return; /* it was stopped: that says nothing of the way */
    uint32_t sample = (uint32_t)ms;
    known->smoothed8_ms += sample - known->smoothed8_ms / 8;
    known->slow_ms -= (known->slow_ms + MC_SLOW_DECAY - 1) / MC_SLOW_DECAY;
    known->slow_ms = sample > known->slow_ms ? sample : known->slow_ms;
}

/* How long all PINGs of a probe may stay unanswered. Never below what the way needs to make up for a lost packet: the
 * next PING shows the loss, and then it takes two round trips. */
static uint64_t patience_ms(const struct mc_segment *segment)
{
    if (segment->owner == NULL)
        return MC_PROBE_LEAST_MS;
    const struct mc_answering *known = &segment->owner->answering;
    uint64_t ms = MC_PROBE_LEAST_MS / 2 + known->smoothed8_ms / 2;
    uint64_t slow_ms = known->slow_ms + known->slow_ms / 2;
    ms = ms > slow_ms ? ms : slow_ms;
    return ms < MC_PROBE_LEAST_MS ? MC_PROBE_LEAST_MS : ms > MC_PROBE_MOST_MS ? MC_PROBE_MOST_MS : ms;
}

bool mc_way_loses(struct mc_core *core, struct mc_connection *owner)
{
    struct mc_core_way way;
    if (core->output.way == NULL || !core->output.way(core->output.context, owner->number, &way))
        return false;
    if ((int32_t)(way.lost - owner->lost) > 0)
        owner->lossy_until_ms = mc_core_life_ms(core) + MC_LOSSY_MS;
    owner->lost = way.lost;
    return !way.arrived || way.unread || mc_core_life_ms(core) < owner->lossy_until_ms;
}

/* ---- machines that are wrong about others ---- */

/* The entry of that machine: a new one takes the place of the one that was wrong longest ago. */
static struct mc_accuser *accuser_of(struct mc_core *core, const struct mc_reporter *reporter)
{
    struct mc_accuser *oldest = &core->accusers[0];
    for (struct mc_accuser *at = core->accusers; at < core->accusers + MC_ACCUSERS_MAX; at++) {
        if (mc_id_equal(at->host, reporter->host))
            return at;
        oldest = at->last_ms < oldest->last_ms ? at : oldest;
    }
    *oldest = (struct mc_accuser){.host = reporter->host, .first_ms = core->now_ms};
    return oldest;
}

/* It was wrong about so many that the trouble is its own. */
static bool is_in_trouble(const struct mc_core *core, const struct mc_accuser *accuser)
{
    bool is_of_late = core->now_ms - accuser->first_ms <= MC_ACCUSED_WINDOW_MS;
    bool is_all = accuser->count > 1 && accuser->count >= core->segment_count;
    return is_of_late && (accuser->count >= MC_ACCUSED_MANY || is_all);
}

static void refute(struct mc_core *core, const struct mc_reporter *reporter, const struct mc_segment *segment)
{
    struct mc_accuser *accuser = accuser_of(core, reporter);
    core->statistics.reports_refuted++;
    if (core->now_ms - accuser->first_ms > MC_ACCUSED_WINDOW_MS) {
        accuser->first_ms = core->now_ms;
        accuser->count = 0;
        accuser->said = false;
    }
    memcpy(accuser->name, reporter->name, sizeof(accuser->name));
    accuser->last_ms = core->now_ms;
    for (uint32_t i = 0; i < accuser->count; i++)
        if (accuser->segments[i] == segment->number)
            return;
    if (accuser->count < MC_ACCUSED_MAX)
        accuser->segments[accuser->count++] = segment->number;
    if (accuser->said || !is_in_trouble(core, accuser))
        return;
    accuser->said = true;
    mc_core_tell(core, MC_TOPIC_NETWORK, MC_CORE_LOG_WARNING,
                 "the host of %s reports %u nodes that answer: look at its link, and at its limits of descriptors and "
                 "memory",
                 accuser->name, accuser->count);
}

size_t mc_core_accusers(const struct mc_core *core, struct mc_core_accuser *list, size_t capacity)
{
    size_t count = 0;
    for (const struct mc_accuser *at = core->accusers; at < core->accusers + MC_ACCUSERS_MAX && count < capacity;
         at++) {
        if (!is_in_trouble(core, at))
            continue;
        list[count].nodes = at->count;
        memcpy(list[count++].name, at->name, sizeof(at->name));
    }
    return count;
}

/* It asks to be heard when the probe is over. A machine is heard once. */
static void note_reporter(struct mc_segment *segment, const struct mc_member *member)
{
    struct mc_id host = mc_id_is_zero(member->host) ? member->id : member->host;
    for (uint32_t i = 0; i < segment->reporter_count; i++)
        if (mc_id_equal(segment->reporters[i].host, host))
            return;
    if (segment->reporter_count == MC_REPORTERS_MAX)
        return;
    struct mc_reporter *reporter = &segment->reporters[segment->reporter_count++];
    reporter->host = host;
    memcpy(reporter->name, member->name, sizeof(reporter->name));
}

/* ---- probing ---- */

static void ping(struct mc_core *core, struct mc_segment *segment)
{
    segment->pinged_ms = core->now_ms;
    segment->ping++;
    core->statistics.probes++;
    /* Without a connection nothing answers: the probe fails in time, and the segment is suspect anyway. */
    struct mc_buffer *out = segment->owner == NULL ? NULL : mc_core_buffer(core, segment->owner->number);
    if (out != NULL)
        mc_core_frame_bare(core, out, MC_MESSAGE_PING, (uint64_t)segment->number << 32 | segment->ping);
}

static void probe_begin(struct mc_core *core, struct mc_segment *segment)
{
    if (mc_link_alone(&segment->watched))
        mc_link_append(&core->watched, &segment->watched);
    segment->probing = true;
    segment->probe_ms = core->now_ms;
    segment->first_ping = segment->ping + 1;
    ping(core, segment);
}

/* Its owner lives: whoever reported it was wrong. */
static void probe_end(struct mc_core *core, struct mc_segment *segment)
{
    for (uint32_t i = 0; i < segment->reporter_count; i++)
        refute(core, &segment->reporters[i], segment);
    segment->reporter_count = 0;
    segment->probing = segment->distrusted = false;
    mc_link_remove(&segment->watched);
    mc_segment_refresh(core, segment);
}

void mc_segment_doubt(struct mc_core *core, struct mc_segment *segment)
{
    if (!segment->probing && !segment->distrusted)
        probe_begin(core, segment);
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
    mc_segment_doubt(core, segment);
    if (head.code != 0 && !segment->distrusted)
        note_reporter(segment, connection->member);
}

void mc_segment_pong(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame)
{
    uint32_t number = (uint32_t)frame->request_id;
    if (frame->request_id == 0) { /* to the PING of a heartbeat */
        if (connection->asked_ms != 0)
            learn_round_trip(connection, core->now_ms - connection->asked_ms);
        connection->asked_ms = 0;
        return;
    }
    struct mc_segment *segment = mc_segment_find(core, (uint32_t)(frame->request_id >> 32));
    if (segment == NULL || segment->owner != connection || !segment->probing ||
        number - segment->first_ping > segment->ping - segment->first_ping)
        return; /* of a probe that has ended */
    if (!segment->distrusted)
        learn_round_trip(connection, core->now_ms - segment->probe_ms);
    probe_end(core, segment);
}

/* When something is to happen with the segment. */
static uint64_t due(const struct mc_segment *segment)
{
    if (segment->distrusted)
        return segment->pinged_ms + MC_PROBE_EVERY_MS;
    return segment->pinged_ms + patience_ms(segment) / MC_PROBE_PINGS;
}

/* It has said something else while it owed us an answer: it has much to say, or to hear. */
static bool speaks(const struct mc_core *core, const struct mc_segment *segment)
{
    uint64_t ms = patience_ms(segment) / MC_PROBE_PINGS * 2;
    return segment->owner != NULL && mc_core_life_ms(core) - segment->owner->heard_ms < ms &&
           core->now_ms - segment->probe_ms > ms;
}

/* The way is to blame, not the owner, as far as can be seen: there is time for a packet that is lost three times. */
static bool may_be_coming(struct mc_core *core, const struct mc_segment *segment)
{
    return segment->owner != NULL && core->now_ms - segment->probe_ms < MC_PROBE_MOST_MS &&
           mc_way_loses(core, segment->owner);
}

/* No PONG when it was due. */
static void probe_unanswered(struct mc_core *core, struct mc_segment *segment)
{
    if (!segment->distrusted && segment->ping - segment->first_ping + 1 < MC_PROBE_PINGS) {
        ping(core, segment);
        return;
    }
    if (!segment->distrusted && speaks(core, segment)) {
        probe_end(core, segment);
        return;
    }
    if (!segment->distrusted && may_be_coming(core, segment)) {
        ping(core, segment);
        return;
    }
    core->statistics.probes_failed++;
    segment->reporter_count = 0; /* they were right */
    segment->first_ping = segment->ping + 1;
    ping(core, segment);
    if (!segment->distrusted) {
        segment->distrusted = true;
        mc_segment_refresh(core, segment);
    }
}

/* The time in which nothing was sent does not count. */
static uint64_t moved_on(const struct mc_core *core, uint64_t since_ms)
{
    return since_ms + core->now_ms - (since_ms > core->held_ms ? since_ms : core->held_ms);
}

void mc_segments_sent(struct mc_core *core)
{
    for (struct mc_link *link = core->watched.next; link != &core->watched; link = link->next) {
        struct mc_segment *segment = mc_link_of(link, struct mc_segment, watched);
        segment->probe_ms = moved_on(core, segment->probe_ms);
        segment->pinged_ms = moved_on(core, segment->pinged_ms);
    }
}

void mc_segments_tick(struct mc_core *core)
{
    if (core->is_held)
        return;
    for (struct mc_link *link = core->watched.next; link != &core->watched;) {
        struct mc_segment *segment = mc_link_of(link, struct mc_segment, watched);
        link = link->next;
        if (core->now_ms >= due(segment))
            probe_unanswered(core, segment);
    }
}

uint64_t mc_segments_due(const struct mc_core *core)
{
    uint64_t first = UINT64_MAX;
    if (core->is_held)
        return first;
    for (const struct mc_link *link = core->watched.next; link != &core->watched; link = link->next) {
        uint64_t at = due(mc_link_of(link, struct mc_segment, watched));
        first = at < first ? at : first;
    }
    return first;
}
