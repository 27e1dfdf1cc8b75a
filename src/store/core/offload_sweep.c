/* Memory that is stored on disks as a whole: see offload_sweep.h. */
#include "store/core/blank.h"
#include "store/core/offload_sweep.h"

#include "store/core/job.h"
#include "store/core/limits.h"
#include "store/core/list.h"
#include "store/core/offload.h"
#include "store/core/replica.h"
#include "store/core/segment.h"
#include "store/core/state.h"

/* What the disks of the member hold, units. A sweep stores no more: what they dropped for it would come again. */
static uint64_t disk_units(const struct mc_member *member)
{
    uint64_t units = 0;
    const struct mc_link *link = member->segments.next;
    for (unsigned walk = MC_WALK_MAX; link != &member->segments && walk > 0; link = link->next, walk--) {
        const struct mc_segment *segment = mc_link_of(link, struct mc_segment, of_member);
        if (segment->kind == MC_SEGMENT_DISK && segment->state == MC_SEGMENT_OK)
            units += segment->capacity / MC_EXTENT_UNIT;
    }
    return units;
}

/* False when memory is out. */
static bool sweep_begin(struct mc_core *core, struct mc_segment *segment, bool leaves)
{
    struct mc_sweep *sweep = &segment->flush;
    bool runs = sweep->runs || mc_job_store(core, segment->number);
    if (!runs)
        return false;
    *sweep = (struct mc_sweep){.runs = true, .leaves = leaves, .asked_ms = core->now_ms};
    return true;
}

static void flushed_reply(struct mc_core *core, const struct mc_connection *connection, uint64_t request_id,
                          const struct mc_wire_flushed *head)
{
    struct mc_buffer *out = mc_core_buffer(core, connection->number);
    if (out != NULL)
        mc_wire_flushed_frame(out, mc_core_frame(core, out, MC_MESSAGE_FLUSHED, request_id), head);
}

void mc_sweep_asked(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_flush asked;
    mc_wire_flush_read(&reader, &asked);
    struct mc_segment *segment = mc_segment_find(core, asked.segment);
    struct mc_wire_flushed told = {.segment = asked.segment};
    bool own = segment != NULL && segment->member == connection->member && segment->kind == MC_SEGMENT_MEMORY;
    if (!own || core->config.offload == MC_OFFLOAD_NEVER) {
        told.code = own ? MC_ERR_UNAVAILABLE_IN_CURRENT_MODE : MC_ERR_SEGMENT_NOT_FOUND;
        flushed_reply(core, connection, frame->request_id, &told);
        return;
    }
    struct mc_sweep *sweep = &segment->flush;
    segment->leaving = true; /* as its heartbeats say from now on */
    mc_segment_update_room(core, segment);
    bool is_over = !sweep->runs && (sweep->looks == 0 || sweep->last.left > 0);
    if (asked.begin != 0 || !sweep->leaves || is_over)
        told.code = sweep_begin(core, segment, true) ? 0 : MC_ERR_BUSY;
    sweep->asked_ms = core->now_ms;
    told.looks = segment->recovering ? 0 : sweep->looks;
    told.left = sweep->last.left;
    told.left_bytes = sweep->last.left_bytes;
    told.moving = sweep->last.moving;
    flushed_reply(core, connection, frame->request_id, &told);
}

void mc_sweep_trusted(struct mc_core *core, struct mc_segment *segment)
{
    if (core->config.offload != MC_OFFLOAD_ON_PUT || disk_units(segment->member) == 0)
        return;
    const struct mc_link *link = segment->member->segments.next;
    for (unsigned walk = MC_WALK_MAX; link != &segment->member->segments && walk > 0; link = link->next, walk--) {
        struct mc_segment *memory = mc_link_of(link, struct mc_segment, of_member);
        bool is_meant = memory == segment || segment->kind == MC_SEGMENT_DISK;
        if (is_meant && memory->kind == MC_SEGMENT_MEMORY && memory->live > 0 && !memory->flush.leaves)
            (void)sweep_begin(core, memory, false); /* without memory they stay there only, as they did */
    }
}

/* ---- looking ---- */

static bool is_asked_no_more(const struct mc_core *core, const struct mc_sweep *sweep)
{
    return core->now_ms - sweep->asked_ms > MC_SWEEP_ASKED_MS;
}

static void note_left(struct mc_sweep *sweep, uint64_t bytes, uint64_t moving_units)
{
    sweep->now.left++;
    sweep->now.left_bytes += bytes;
    sweep->now.moving += moving_units > 0;
    sweep->now.moving_units += moving_units;
}

/* True when it began to store something. */
static bool node_visit(struct mc_core *core, struct mc_segment *segment, const struct mc_node *node)
{
    struct mc_sweep *sweep = &segment->flush;
    if (node->state == MC_NODE_GRANTED && !mc_node_is_blank(node))
        note_left(sweep, 0, node->size); /* a put that is not over */
    if (node->state != MC_NODE_LIVE)
        return false;
    struct mc_object *object = mc_node_object(node);
    if (object->visible && !object->moving && mc_object_on_disk(core, object).segment != NULL)
        return false;
    bool has_turn = sweep->now.moving == 0 || sweep->now.moving_units + node->size <= MC_SWEEP_UNITS;
    bool may = has_turn && sweep->begun + node->size <= sweep->begun_most;
    bool begun = may && mc_offload_store(core, object);
    bool is_its_turn = object->visible && !object->moving; /* or still is */
    sweep->begun += begun ? node->size : 0;
    sweep->now.has_begun |= begun;
    sweep->now.is_held_up =
        sweep->now.is_held_up ||
        (is_its_turn && (!has_turn || core->job_count > 0 || mc_offload_is_full(core, segment->member)));
    note_left(sweep, object->length, !object->visible || object->moving ? node->size : 0);
    return begun;
}

/* What is told again, or for the first time, is not known: it would be taken for nothing. */
static void wait_for_inventory(struct mc_sweep *sweep)
{
    sweep->now = (struct mc_sweep_found){0};
    sweep->slot = sweep->looks = 0;
}

/* After a look. Who does not leave is waited for by nobody: the more looks in vain there were, the longer it rests. */
static uint64_t rest_ms(const struct mc_sweep *sweep)
{
    uint64_t rest = MC_SWEEP_REST_MS;
    for (uint32_t i = 0; i < sweep->vain && !sweep->leaves && rest < MC_SWEEP_REST_MAX_MS; i++)
        rest *= 2;
    return rest < MC_SWEEP_REST_MAX_MS ? rest : MC_SWEEP_REST_MAX_MS;
}

/* All was looked at once. True: that was the last time. */
static bool look_ended(struct mc_core *core, struct mc_job *job, struct mc_sweep *sweep)
{
    sweep->vain = sweep->now.has_begun ? 0 : sweep->vain + 1;
    sweep->last = sweep->now;
    sweep->now = (struct mc_sweep_found){0};
    sweep->slot = 0;
    sweep->looks++;
    job->rest_until_ms = core->now_ms + rest_ms(sweep) + (core->now_ms - sweep->look_ms);
    if (sweep->leaves)
        return sweep->last.left == 0 || is_asked_no_more(core, sweep);
    /* What is moving has had its turn; for what had no room in the queue there is some when that has ended. What could
     * have begun and did not never will. */
    return sweep->last.left == sweep->last.moving || sweep->last.moving == 0 ||
           (!sweep->last.has_begun && !sweep->last.is_held_up);
}

bool mc_sweep_slice(struct mc_core *core, struct mc_job *job)
{
    struct mc_segment *segment = mc_segment_find(core, job->number);
    if (segment == NULL)
        return true;
    struct mc_sweep *sweep = &segment->flush;
    uint32_t stores = MC_SLICE_GRANTS;
    if (segment->recovering) {
        wait_for_inventory(sweep);
        job->rest_until_ms = core->now_ms + MC_SWEEP_RECOVERING_MS;
        sweep->runs = !sweep->leaves || !is_asked_no_more(core, sweep);
        return !sweep->runs;
    }
    if (sweep->slot == 0) {
        sweep->look_ms = core->now_ms;
        sweep->begun_most = disk_units(segment->member); /* one may have come since the last look */
    }
    for (uint32_t looked = 0; looked < MC_SLICE_SLOTS && stores > 0; looked++) {
        if (sweep->slot >= segment->space.node_fresh) {
            bool is_over = look_ended(core, job, sweep);
            sweep->runs = !is_over;
            return is_over;
        }
        stores -= node_visit(core, segment, mc_segment_node(segment, sweep->slot++));
    }
    return false;
}
