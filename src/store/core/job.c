/* Work that is too long for one call and goes on in slices: the sweep of a segment that is gone, the removal of all
 * objects or of those that a pattern matches. And the answers that wait for owners. */
#include "store/core/job.h"
#include "store/core/limits.h"
#include "store/core/list.h"
#include "store/core/member.h"
#include "store/core/offload.h"
#include "store/core/offload_sweep.h"
#include "store/core/put.h"
#include "store/core/recover.h"
#include "store/core/replica.h"
#include "store/core/segment.h"
#include "store/core/slow.h"
#include "store/core/state.h"
#include "store/core/stripe.h"
#include "store/core/tombstone.h"

#include <stdlib.h>
#include <string.h>

/* ---- answers that wait ---- */

struct mc_wait *mc_wait_create(struct mc_core *core, enum mc_wait_kind kind, struct mc_connection *connection,
                               uint64_t request_id, uint32_t code_count)
{
    if (connection != NULL && connection->wait_count >= MC_WAITS_PER_CONNECTION)
        return NULL;
    struct mc_wait *wait = calloc(1, sizeof(*wait) + code_count * sizeof(wait->codes[0]));
    if (wait == NULL)
        return NULL;
    wait->kind = kind;
    wait->connection = connection;
    wait->request_id = request_id;
    wait->started_ms = mc_core_life_ms(core);
    wait->outstanding = 1;
    wait->code_count = code_count;
    wait->index = mc_table_add(&core->waits, wait);
    if (wait->index == UINT32_MAX) {
        free(wait);
        return NULL;
    }
    mc_link_init(&wait->of_connection);
    if (connection != NULL) {
        mc_link_append(&connection->waits, &wait->of_connection);
        connection->wait_count++;
    }
    return wait;
}

static void wait_destroy(struct mc_core *core, struct mc_wait *wait)
{
    if (wait->connection != NULL)
        wait->connection->wait_count--;
    mc_link_remove(&wait->of_connection);
    mc_table_remove(&core->waits, wait->index);
    free(wait);
}

void mc_waits_abandon(struct mc_connection *connection)
{
    while (!mc_link_alone(&connection->waits)) {
        struct mc_wait *wait = mc_link_of(connection->waits.next, struct mc_wait, of_connection);
        mc_link_remove(&wait->of_connection);
        wait->connection = NULL;
        connection->wait_count--;
    }
}

static void count_reply(struct mc_core *core, uint64_t connection, uint64_t request_id, int32_t code, uint64_t count)
{
    struct mc_buffer *out = mc_core_buffer(core, connection);
    if (out == NULL)
        return;
    struct mc_wire_count_reply head = {.code = code, .count = count};
    mc_wire_count_reply_frame(out, mc_core_frame(core, out, MC_MESSAGE_COUNT_REPLY, request_id), &head);
}

static void remove_reply(struct mc_core *core, const struct mc_wait *wait)
{
    struct mc_buffer *out = mc_core_buffer(core, wait->connection->number);
    if (out == NULL)
        return;
    struct mc_wire_none none = {0};
    size_t frame = mc_core_frame(core, out, MC_MESSAGE_REMOVE_REPLY, wait->request_id);
    size_t list = mc_wire_none_head(out, &none);
    for (uint32_t i = 0; i < wait->code_count; i++) {
        struct mc_wire_code code = {.code = wait->codes[i]};
        mc_wire_code_write(out, &code);
    }
    mc_frame_end_list(out, frame, list, wait->code_count);
}

void mc_wait_names(struct mc_wait *wait, struct mc_span key)
{
    wait->key_length = (uint16_t)key.length;
    if (key.length > 0)
        memcpy(wait->key, key.data, key.length < sizeof(wait->key) ? key.length : sizeof(wait->key));
}

static void tell_slow(const struct mc_core *core, const struct mc_wait *wait)
{
    struct mc_slow_note note = {.is_slow = true, .is_own = wait->is_own, .length = wait->key_length};
    bool is_one = wait->kind == MC_WAIT_REMOVE;
    memcpy(note.key, wait->key, sizeof(note.key));
    if (wait->kind != MC_WAIT_BOTH && mc_slow_is(core, wait->started_ms))
        mc_slow_tell(core, is_one ? MC_SLOW_REMOVE : MC_SLOW_REMOVE_MANY, wait->connection, &note, wait->started_ms,
                     wait->code != 0 || !is_one ? wait->code : wait->codes[0]);
}

static void answer(struct mc_core *core, const struct mc_wait *wait)
{
    tell_slow(core, wait);
    if (wait->removal != NULL)
        *wait->removal = (struct mc_removal){.id = wait->removal->id, .code = wait->code, .count = wait->removed};
    if (wait->connection == NULL)
        return;
    if (wait->kind == MC_WAIT_REMOVE && wait->code != 0)
        mc_core_reply_failed(core, wait->connection->number, wait->request_id, wait->code);
    else if (wait->kind == MC_WAIT_REMOVE)
        remove_reply(core, wait);
    else if (wait->kind == MC_WAIT_COUNT)
        count_reply(core, wait->connection->number, wait->request_id, wait->code, wait->removed);
}

/* Of one that is no BOTH. */
static void single_done(struct mc_core *core, struct mc_wait *wait)
{
    if (--wait->outstanding > 0)
        return;
    answer(core, wait);
    wait_destroy(core, wait);
}

struct mc_wait *mc_wait_part(struct mc_core *core, struct mc_wait *both)
{
    struct mc_wait *before = both->before;
    single_done(core, both->own);
    wait_destroy(core, both);
    return before;
}

/* As many may wait for the same as there are connections, and more: they are a chain, which is gone through in slices.
 */
void mc_wait_done(struct mc_core *core, struct mc_wait *wait)
{
    for (; wait->kind == MC_WAIT_BOTH; wait = mc_wait_part(core, wait)) {
        if (core->waits_left == 0) {
            wait->next_due = core->waits_due;
            core->waits_due = wait;
            return;
        }
        core->waits_left--;
    }
    single_done(core, wait);
}

bool mc_waits_tick(struct mc_core *core)
{
    while (core->waits_due != NULL && core->waits_left > 0) {
        struct mc_wait *wait = core->waits_due;
        core->waits_due = wait->next_due;
        mc_wait_done(core, wait);
    }
    return core->waits_due != NULL;
}

/* ---- jobs ---- */

void mc_job_destroy(struct mc_core *core, struct mc_job *job)
{
    mc_link_remove(&job->link);
    if (job->kind == MC_JOB_REMOVE)
        core->job_count--;
    if (job->segment != NULL)
        job->segment->job = NULL;
    mc_regex_free(job->regex);
    free(job);
}

struct mc_job *mc_job_create(struct mc_segment *segment)
{
    struct mc_job *job = calloc(1, sizeof(*job));
    if (job == NULL)
        return NULL;
    *job = (struct mc_job){.kind = MC_JOB_FORGET, .segment = segment};
    mc_link_init(&job->link);
    return job;
}

static void segment_job_start(struct mc_core *core, struct mc_job *job, enum mc_job_kind kind, uint64_t at_ms)
{
    job->kind = kind;
    job->rest_until_ms = at_ms;
    mc_link_remove(&job->link);
    mc_link_append(&core->jobs, &job->link);
}

void mc_job_forget(struct mc_core *core, struct mc_segment *segment, uint64_t at_ms)
{
    segment_job_start(core, segment->job, MC_JOB_FORGET, at_ms);
}

void mc_job_forget_stop(struct mc_segment *segment)
{
    mc_link_remove(&segment->job->link);
}

void mc_job_sweep(struct mc_core *core, struct mc_segment *segment)
{
    segment_job_start(core, segment->job, MC_JOB_SWEEP, 0);
}

bool mc_job_store(struct mc_core *core, uint32_t segment)
{
    struct mc_job *job = calloc(1, sizeof(*job));
    if (job == NULL)
        return false;
    *job = (struct mc_job){.kind = MC_JOB_STORE, .number = segment};
    mc_link_init(&job->link);
    mc_link_append(&core->jobs, &job->link);
    return true;
}

/* Takes over the regex of what is wanted. NULL: not now. */
static struct mc_wait *remove_begin(struct mc_core *core, struct mc_connection *connection, uint64_t request_id,
                                    const struct mc_job *wanted)
{
    struct mc_job *job = core->job_count < MC_JOBS_MAX ? calloc(1, sizeof(*job)) : NULL;
    struct mc_wait *wait = job == NULL ? NULL : mc_wait_create(core, MC_WAIT_COUNT, connection, request_id, 0);
    if (wait == NULL) {
        free(job);
        mc_regex_free(wanted->regex);
        return NULL;
    }
    core->has_changed = true;
    mc_recover_refuse(core); /* what it would have matched among keys that are yet to come, nobody could say */
    uint8_t name[sizeof(wanted->scope.bytes) + 1];
    memcpy(name, wanted->scope.bytes, wanted->scope.length);
    name[wanted->scope.length] = '*';
    mc_wait_names(wait, mc_span(name, wanted->scope.length + 1u));
    *job = *wanted;
    job->kind = MC_JOB_REMOVE;
    job->wait = wait;
    mc_link_init(&job->link);
    mc_link_append(&core->jobs, &job->link);
    core->job_count++;
    return wait;
}

/* Takes over the regex. */
static void remove_start(struct mc_core *core, struct mc_connection *connection, uint64_t request_id, bool force,
                         struct mc_regex *regex)
{
    struct mc_job wanted = {
        .regex = regex, .force = force, .is_scoped = connection->is_scoped, .scope = connection->scope};
    uint64_t *failures =
        regex != NULL ? &core->statistics.remove_regex_failures : &core->statistics.remove_all_failures;
    if (mc_recover_unsettled(core)) {
        mc_regex_free(regex);
        mc_core_reply_failed(core, connection->number, request_id, MC_ERR_BUSY);
        ++*failures;
    } else if (remove_begin(core, connection, request_id, &wanted) == NULL) {
        count_reply(core, connection->number, request_id, MC_ERR_BUSY, 0);
        ++*failures;
    }
}

void mc_job_remove_regex(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_remove_regex head;
    struct mc_regex *regex;
    char why[160] = "";
    mc_wire_remove_regex_read(&reader, &head);
    core->statistics.remove_regex_requests++;
    int rc = mc_regex_compile(head.pattern, &regex, why, sizeof(why));
    if (rc != 0) {
        mc_core_log(core, MC_CORE_LOG_WARNING, "a pattern for removal is refused: %s", why);
        core->statistics.remove_regex_failures++;
        count_reply(core, connection->number, frame->request_id, rc, 0);
        return;
    }
    remove_start(core, connection, frame->request_id, head.force != 0, regex);
}

void mc_job_remove_all(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_remove head;
    mc_wire_remove_read(&reader, &head);
    core->statistics.remove_all_requests++;
    remove_start(core, connection, frame->request_id, head.force != 0, NULL);
}

int mc_core_remove_all(struct mc_core *core, const struct mc_scope *scope, bool force, uint64_t *id)
{
    struct mc_job wanted = {.force = force, .is_scoped = scope != NULL};
    struct mc_removal *removal = core->removals;
    if (scope != NULL)
        wanted.scope = *scope;
    while (removal < core->removals + MC_REMOVALS_MAX && removal->id != 0)
        removal++;
    if (removal == core->removals + MC_REMOVALS_MAX || mc_recover_unsettled(core))
        return MC_ERR_BUSY;
    struct mc_wait *wait = remove_begin(core, NULL, 0, &wanted);
    if (wait == NULL)
        return MC_ERR_BUSY;
    core->statistics.remove_all_requests++;
    wait->removal = removal;
    wait->is_own = true;
    *removal = (struct mc_removal){.id = *id = (core->epoch << MC_REMOVAL_BITS) + ++core->removal_count, .wait = wait};
    return 0;
}

int mc_core_removal(struct mc_core *core, uint64_t id, bool is_given_up, uint64_t *count)
{
    struct mc_removal *removal = core->removals;
    while (removal < core->removals + MC_REMOVALS_MAX && (id == 0 || removal->id != id))
        removal++;
    if (removal == core->removals + MC_REMOVALS_MAX)
        return MC_ERR_STALE;
    if (removal->wait != NULL && !is_given_up)
        return 1;
    int rc = removal->code;
    *count = removal->count;
    if (removal->wait != NULL)
        removal->wait->removal = NULL;
    *removal = (struct mc_removal){.id = 0};
    return rc;
}

/* Somebody still waits for the answer. */
static bool is_wanted(const struct mc_job *job)
{
    return job->wait->connection != NULL || job->wait->removal != NULL;
}

/* Is the key one of those whose removal was asked for? */
static bool is_meant(const struct mc_job *job, const struct mc_object *object)
{
    if (mc_object_is_piece(object)) /* it goes with its head */
        return false;
    return !job->is_scoped || mc_scope_has(&job->scope, mc_object_key(object));
}

/* Does the job's pattern match the key, of which it sees what its users do? */
static bool matches(struct mc_core *core, struct mc_job *job, const struct mc_object *object, uint64_t *steps)
{
    if (!is_meant(job, object))
        return false;
    if (job->regex == NULL)
        return true;
    struct mc_span key = mc_object_key(object);
    *steps += MC_STEPS_SEARCH;
    struct mc_id stamp;
    bool is_whole = !job->is_scoped && !mc_key_stamp(key, &stamp);
    int rc = mc_regex_search(job->regex, is_whole ? key : mc_key_local(key), steps);
    if (rc < 0 && !job->too_costly) {
        job->too_costly = true;
        mc_core_log(core, MC_CORE_LOG_WARNING,
                    "a pattern for removal costs too much on some keys; these are taken as not matching");
    }
    return rc > 0;
}

/* What it cost, in steps; removes the object when the job is to. */
static uint64_t remove_visit(struct mc_core *core, struct mc_job *job, struct mc_object *object)
{
    uint64_t steps = MC_STEPS_VISIT;
    if (!object->visible && !mc_object_waits(object))
        return steps;
    if (!job->force && mc_object_is_leased(core, object))
        return steps;
    if (!matches(core, job, object, &steps))
        return steps;
    if (mc_key_hides(core, object)) {
        job->again = true;
        return steps + core->segment_top;
    }
    job->wait->removed++;
    core->leaving = MC_GONE_REMOVED;
    mc_object_drop(core, object, job->wait);
    core->leaving = MC_GONE_LOST;
    return steps;
}

/* The key has no value any more, or its next one is not there yet, but could get the one before back. */
static uint64_t remove_visit_held(struct mc_core *core, struct mc_job *job, struct mc_object *object)
{
    uint64_t steps = MC_STEPS_VISIT;
    if (object == NULL || object->visible || !matches(core, job, object, &steps))
        return steps;
    if (object->tombstone != 0)
        mc_key_wait(core, object, job->wait);
    else
        job->again = true;
    return steps;
}

/* Do all replicas of the object lie where the removal has not looked yet? */
static bool lies_ahead(const struct mc_core *core, const struct mc_job *job, const struct mc_object *object)
{
    for (struct mc_replica at = mc_replica_first(core, object); at.segment != NULL; at = mc_replica_next(core, at))
        if (at.segment->index < job->index || (at.segment->index == job->index && at.slot < job->slot))
            return false;
    return true;
}

bool mc_jobs_will_meet(const struct mc_core *core, const struct mc_object *object)
{
    const struct mc_link *link = core->job_count > 0 ? core->jobs.next : &core->jobs;
    for (; link != &core->jobs; link = link->next) {
        const struct mc_job *job = mc_link_of(link, struct mc_job, link);
        if (job->kind == MC_JOB_REMOVE && is_wanted(job) && is_meant(job, object) && lies_ahead(core, job, object))
            return true;
    }
    return false;
}

/* True when the job is done. Every replica is looked at: an object that loses its first one meanwhile is still met at
 * another. */
static bool remove_slice(struct mc_core *core, struct mc_job *job)
{
    uint64_t steps = 0;
    if (!is_wanted(job)) { /* who asked has left: the rest stays */
        mc_wait_done(core, job->wait);
        return true;
    }
    for (uint32_t looked = 0; looked < MC_SLICE_SLOTS && steps < MC_SLICE_STEPS; looked++) {
        while (job->index < core->segment_top &&
               (core->segments[job->index] == NULL || core->segments[job->index]->state == MC_SEGMENT_GONE ||
                job->slot >= core->segments[job->index]->space.node_fresh)) {
            job->index++;
            job->slot = 0;
        }
        if (job->index >= core->segment_top && job->again) {
            job->index = job->slot = 0;
            job->again = false;
            job->rest_until_ms = core->now_ms + MC_JOB_REST_MS;
            return false;
        }
        if (job->index >= core->segment_top) {
            mc_wait_done(core, job->wait);
            return true;
        }
        const struct mc_node *node = mc_segment_node(core->segments[job->index], job->slot++);
        /* A move holds the key as soon as its object loses its last place, which may lie ahead and be cleared first. */
        if (node->state == MC_NODE_LIVE || node->state == MC_NODE_MOVING)
            steps += remove_visit(core, job, mc_node_object(node));
        else if (node->state == MC_NODE_CLEARING)
            steps += remove_visit_held(core, job, mc_node_held(node));
    }
    return false;
}

static void sweep_node(struct mc_core *core, struct mc_segment *segment, uint32_t slot)
{
    struct mc_node *node = mc_segment_node(segment, slot);
    switch (node->state) {
    case MC_NODE_LIVE:
        mc_object_lose_replica(core, mc_node_object(node), segment, slot);
        break;
    case MC_NODE_GRANTED:
        mc_grant_fail(core, segment, slot);
        break;
    case MC_NODE_MOVING:
        mc_offload_moved(core, segment, slot, false);
        break;
    case MC_NODE_CLEARING:
        segment->clearing -= node->size;
        mc_list_remove(segment, &segment->clears, slot);
        node->state = MC_NODE_DEAD;
        mc_key_release(core, node);
        if (mc_node_clearing_writer(node) != NULL)
            mc_writer_release(mc_node_clearing_writer(node));
        break;
    case MC_NODE_QUARANTINE:
        segment->quarantine -= node->size;
        mc_list_remove(segment, &segment->cuts, slot);
        node->state = MC_NODE_DEAD;
        mc_writer_release((struct mc_writer *)(uintptr_t)node->pointer);
        break;
    default:
        break;
    }
}

/* True when the segment is no more. */
static bool sweep_slice(struct mc_core *core, struct mc_job *job)
{
    struct mc_segment *segment = job->segment;
    for (uint32_t looked = 0; looked < MC_SLICE_SLOTS; looked++) {
        if (job->slot < segment->space.node_fresh) {
            sweep_node(core, segment, job->slot++);
            continue;
        }
        job->slot = UINT32_MAX; /* all is swept; what is left is memory */
        if (!mc_space_destroy_slice(&segment->space, MC_SLICE_CHUNKS))
            return false;
        job->segment = NULL; /* the job ends after it */
        segment->job = NULL;
        mc_segment_destroy(core, segment);
        return true;
    }
    return false;
}

/* The first that does not rest, and is not that one (the list: any); NULL. */
static struct mc_job *next_job(const struct mc_core *core, const struct mc_link *but)
{
    for (struct mc_link *link = core->jobs.next; link != &core->jobs; link = link->next) {
        struct mc_job *job = mc_link_of(link, struct mc_job, link);
        if (link != but && core->now_ms >= job->rest_until_ms)
            return job;
    }
    return NULL;
}

/* True when the job is done. */
static bool job_slice(struct mc_core *core, struct mc_job *job)
{
    switch (job->kind) {
    case MC_JOB_SWEEP:
        return sweep_slice(core, job);
    case MC_JOB_STORE:
        return mc_sweep_slice(core, job);
    case MC_JOB_FORGET:
        mc_segment_forget(core, job->segment);
        return false; /* it is the sweep then */
    default:
        return remove_slice(core, job);
    }
}

bool mc_jobs_tick(struct mc_core *core)
{
    /* The sweep of what is gone lets its keys go, a removal passes over it: both act on the departure. */
    struct mc_job *job = mc_core_is_departing(core) ? NULL : next_job(core, &core->jobs);
    if (job == NULL)
        return false;
    bool done = job_slice(core, job);
    bool is_more = next_job(core, done ? &job->link : &core->jobs) != NULL;
    if (done) {
        mc_job_destroy(core, job);
    } else {
        mc_link_remove(&job->link);
        mc_link_append(&core->jobs, &job->link);
    }
    return is_more;
}

uint64_t mc_jobs_due(const struct mc_core *core)
{
    uint64_t first = UINT64_MAX;
    for (const struct mc_link *link = core->jobs.next; link != &core->jobs; link = link->next) {
        uint64_t at = mc_link_of(link, struct mc_job, link)->rest_until_ms;
        first = at < first ? at : first;
    }
    return first < core->now_ms ? core->now_ms : first;
}
