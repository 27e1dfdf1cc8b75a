/* Drain jobs of the admin port: which segments are to be emptied, and how far they are. The work is the owners'
 * (drain.c of the store); a job only sets and clears the wish, and counts. Jobs live with this process: a later master
 * knows nothing of them, and drains nothing. */
#include "base/error.h"
#include "env/clock.h"
#include "env/json.h"
#include "env/log.h"
#include "store/master/http.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JOBS_MAX 64u         /* the one that ended longest ago makes room */
#define STRANGE_MAX 4        /* members of a job that the log names */
#define JOB_SEGMENTS_MAX 64u /* names in one job */
#define NAME_MAX_BYTES 256u
#define BODY_MAX (64u << 10)
#define JOB_NOT_FOUND (-1402) /* of the original */
#define CONFLICT 1            /* a result that is no error of the store */

enum status { CREATED, PLANNING, RUNNING, SUCCEEDED, FAILED, CANCELED };
static const char *const status_names[] = {"CREATED", "PLANNING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELED"};

struct drain_job {
    struct mc_id id; /* zero: free */
    enum status status;
    uint64_t number; /* in order of their creation */
    uint64_t units, bytes;
    uint64_t units_left, bytes_left;
    uint64_t began_ms, took_ms; /* until it was looked at last */
    size_t segment_count;
    char segments[JOB_SEGMENTS_MAX][NAME_MAX_BYTES];
};

struct mc_drain_jobs {
    struct mc_server *server;
    pthread_mutex_t lock; /* of what follows; questions are asked under it, no answer is sent */
    uint64_t created;
    struct drain_job jobs[JOBS_MAX];
};

struct mc_drain_jobs *mc_drain_jobs_create(struct mc_server *server)
{
    struct mc_drain_jobs *jobs = calloc(1, sizeof(*jobs));
    if (jobs == NULL)
        return NULL;
    jobs->server = server;
    pthread_mutex_init(&jobs->lock, NULL);
    return jobs;
}

void mc_drain_jobs_destroy(struct mc_drain_jobs *jobs)
{
    pthread_mutex_destroy(&jobs->lock);
    free(jobs);
}

/* ---- the core ---- */

struct drain_question {
    const struct drain_job *job;
    bool on;
    size_t missing; /* names of which there is no segment */
};

static void ask_drain(struct mc_core *core, void *argument)
{
    struct drain_question *question = argument;
    for (size_t i = 0; i < question->job->segment_count; i++)
        question->missing += mc_core_drain(core, mc_span_string(question->job->segments[i]), question->on) == 0;
}

struct look_question {
    struct drain_job *job;
    uint64_t cursor;
    bool is_done;
    size_t not_draining;
    uint64_t objects, used;
    uint32_t found[JOB_SEGMENTS_MAX];
};

/* A slice: the segments of the job among the next few. */
static void ask_look(struct mc_core *core, void *argument)
{
    struct look_question *look = argument;
    struct mc_core_segment segments[16];
    size_t count = mc_core_segments(core, &look->cursor, segments, sizeof(segments) / sizeof(segments[0]));
    look->is_done = count == 0;
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < look->job->segment_count && segments[i].state != 2; k++) {
            if (strcmp(segments[i].name, look->job->segments[k]) != 0)
                continue;
            look->found[k]++;
            look->not_draining += !segments[i].draining;
            look->objects += segments[i].objects;
            look->used += segments[i].used;
        }
    }
}

static int look_at(struct mc_drain_jobs *jobs, struct drain_job *job, struct look_question *look)
{
    *look = (struct look_question){.job = job};
    while (!look->is_done) {
        int rc = mc_server_ask(jobs->server, ask_look, look, MC_HTTP_ASK_MS);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* What has become of it. */
static int job_update(struct mc_drain_jobs *jobs, struct drain_job *job)
{
    struct look_question look;
    if (job->status >= SUCCEEDED)
        return 0;
    int rc = look_at(jobs, job, &look);
    if (rc < 0)
        return rc;
    job->status = RUNNING;
    job->took_ms = mc_clock_ms() - job->began_ms;
    job->units_left = look.objects < job->units ? look.objects : job->units;
    job->bytes_left = look.used < job->bytes ? look.used : job->bytes;
    bool is_lost = look.not_draining > 0; /* this master is another one than it was, or the segment was mounted anew */
    for (size_t k = 0; k < job->segment_count; k++)
        is_lost = is_lost || look.found[k] == 0;
    if (is_lost)
        job->status = FAILED;
    else if (look.objects == 0)
        job->status = SUCCEEDED;
    return 0;
}

/* ---- requests ---- */

static void reply_plain_error(struct mc_web_request *request, int http, int code, const char *message)
{
    struct mc_buffer text = {0};
    mc_buffer_printf(&text, "{\"success\":false,\"error_code\":%d,\"error_message\":", code);
    mc_http_json_string(&text, message, strlen(message));
    mc_buffer_printf(&text, "}");
    mc_http_reply(request, http, MC_HTTP_JSON, &text);
}

/* The members of one. */
static void write_job(struct mc_buffer *text, const struct drain_job *job, bool by_name)
{
    uint64_t done = job->units - job->units_left;
    double per_ms = job->took_ms == 0 ? 0 : (double)done / (double)job->took_ms; /* in the mean */
    double left_ms = per_ms > 0 ? (double)job->units_left / per_ms : 0;
    mc_buffer_printf(text, "\"job_id\":\"%" PRIu64 "-%" PRIu64 "\",\"type\":0,", job->id.high, job->id.low);
    if (by_name)
        mc_buffer_printf(text, "\"status\":\"%s\",", status_names[job->status]);
    else
        mc_buffer_printf(text, "\"status\":%d,\"status_name\":\"%s\",", job->status, status_names[job->status]);
    mc_buffer_printf(text, "\"segments\":[");
    for (size_t i = 0; i < job->segment_count; i++) {
        mc_buffer_printf(text, "%s", i == 0 ? "" : ",");
        mc_http_json_string(text, job->segments[i], strlen(job->segments[i]));
    }
    mc_buffer_printf(text,
                     "],\"total_units\":%" PRIu64 ",\"succeeded_units\":%" PRIu64 ",\"failed_units\":%" PRIu64
                     ",\"active_units\":%" PRIu64 ",\"migrated_bytes\":%" PRIu64,
                     job->units, done, job->status == FAILED ? job->units_left : 0,
                     job->status <= RUNNING ? job->units_left : 0, job->bytes - job->bytes_left);
    if (job->status <= RUNNING) /* when one ended nobody may have looked */
        mc_buffer_printf(text, ",\"since_ms\":%" PRIu64 ",\"units_per_second\":%.1f,\"left_ms\":%.0f", job->took_ms,
                         1000 * per_ms, left_ms);
}

static void reply_job(struct mc_web_request *request, const struct drain_job *job, bool by_name)
{
    struct mc_buffer text = {0};
    mc_buffer_printf(&text, "{\"success\":true,");
    write_job(&text, job, by_name);
    mc_buffer_put_u8(&text, '}');
    mc_http_reply(request, 200, MC_HTTP_JSON, &text);
}

/* result: 0 and the job, or what has become of the request instead. */
static void reply_result(struct mc_web_request *request, int result, const struct drain_job *job, bool by_name)
{
    if (result == 0)
        reply_job(request, job, by_name);
    else if (result == CONFLICT)
        reply_plain_error(request, 409, MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS,
                          mc_error_name(MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS));
    else if (result == JOB_NOT_FOUND)
        reply_plain_error(request, 404, JOB_NOT_FOUND, "JOB_NOT_FOUND");
    else
        mc_http_reply_error(request, result);
}

/* 0, or MC_ERR_INVALID_PARAMS. */
static int read_segments(struct mc_span body, struct drain_job *job)
{
    struct mc_json_cursor object, list;
    int rc = mc_json_open(body, '{', &object), more;
    bool is_found = false;
    int strange = 0;
    while (rc == 0 && (more = mc_json_next(&object)) != 0) {
        if (more < 0)
            return MC_ERR_INVALID_PARAMS;
        if (!mc_json_is(object.name, "segments")) {
            if (strange++ < STRANGE_MAX)
                mc_log(WARNING,
                       "drain job: \"%.*s\" changes nothing here: each owner moves its objects itself, one after "
                       "the other, to where the master places them",
                       (int)(object.name.length < 60 ? object.name.length : 60), (const char *)object.name.data);
            continue;
        }
        is_found = object.kind == '[' && mc_json_open(object.value, '[', &list) == 0;
        while (is_found && (more = mc_json_next(&list)) != 0) {
            if (more < 0 || job->segment_count == JOB_SEGMENTS_MAX ||
                mc_json_text(&list, job->segments[job->segment_count], NAME_MAX_BYTES) < 0 ||
                job->segments[job->segment_count][0] == 0)
                return MC_ERR_INVALID_PARAMS;
            job->segment_count++;
        }
    }
    return rc == 0 && is_found && job->segment_count > 0 ? 0 : MC_ERR_INVALID_PARAMS;
}

/* A free place, or that of the job that ended and is oldest. */
static struct drain_job *job_place(struct mc_drain_jobs *jobs)
{
    struct drain_job *place = NULL;
    for (size_t i = 0; i < JOBS_MAX; i++) {
        struct drain_job *job = &jobs->jobs[i];
        if (mc_id_is_zero(job->id))
            return job;
        if (job->status >= SUCCEEDED && (place == NULL || job->number < place->number))
            place = job;
    }
    return place;
}

/* With the lock. Begins the job whose segments are there. */
static int job_begin(struct mc_drain_jobs *jobs, struct drain_job *job)
{
    struct drain_job *place = job_place(jobs);
    struct look_question look;
    struct drain_question drain = {.job = job, .on = true}, back = {.job = job};
    if (place == NULL) /* JOBS_MAX of them run */
        return CONFLICT;
    int rc = look_at(jobs, job, &look);
    for (size_t k = 0; rc == 0 && k < job->segment_count; k++)
        rc = look.found[k] == 0 ? MC_ERR_SEGMENT_NOT_FOUND : 0;
    if (rc == 0)
        rc = mc_server_ask(jobs->server, ask_drain, &drain, MC_HTTP_ASK_MS);
    if (rc == 0 && drain.missing > 0) { /* it has gone in this moment */
        rc = mc_server_ask(jobs->server, ask_drain, &back, MC_HTTP_ASK_MS);
        rc = rc < 0 ? rc : MC_ERR_SEGMENT_NOT_FOUND;
    }
    if (rc < 0)
        return rc;
    job->id = mc_random_id();
    job->number = ++jobs->created;
    job->began_ms = mc_clock_ms();
    job->units = job->units_left = look.objects;
    job->bytes = job->bytes_left = look.used;
    *place = *job;
    return 0;
}

/* The segments that the request's body names; *job is the caller's to free. False after an answer; else *rc is 0 or
 * negative. */
static bool read_wish(struct mc_web_request *request, struct drain_job **job, int *rc)
{
    struct mc_web_bytes body;
    if (!mc_http_body(request, &body))
        return false;
    *job = calloc(1, sizeof(**job));
    bool is_short = body.length > 0 && body.length <= BODY_MAX;
    *rc = *job == NULL ? MC_ERR_NO_MEMORY : is_short ? 0 : MC_ERR_INVALID_PARAMS;
    if (*rc == 0)
        *rc = read_segments(mc_span(body.data, (size_t)body.length), *job);
    mc_web_bytes_free(request, &body);
    return true;
}

void mc_drain_job_create(struct mc_drain_jobs *jobs, struct mc_web_request *request)
{
    struct drain_job *job;
    int rc;
    if (!read_wish(request, &job, &rc))
        return;
    if (rc == 0) {
        pthread_mutex_lock(&jobs->lock);
        rc = job_begin(jobs, job);
        pthread_mutex_unlock(&jobs->lock);
    }
    reply_result(request, rc, job, true);
    free(job);
}

/* With the lock. The job that the request names, as it is now: 0, or what is answered instead. */
static int job_named(struct mc_drain_jobs *jobs, const struct mc_web_request *request, struct drain_job **job)
{
    struct mc_buffer name = {0};
    struct mc_id id = {0, 0};
    char text[64], more;
    bool is_there = mc_http_parameter(request, "job_id", &name) && name.length > 0 && name.length < sizeof(text);
    if (is_there) {
        memcpy(text, name.data, name.length);
        text[name.length] = 0;
        is_there = sscanf(text, "%" SCNu64 "-%" SCNu64 "%c", &id.high, &id.low, &more) == 2 && !mc_id_is_zero(id);
    }
    mc_buffer_free(&name);
    for (size_t i = 0; is_there && i < JOBS_MAX; i++) {
        *job = &jobs->jobs[i];
        if (mc_id_equal((*job)->id, id))
            return job_update(jobs, *job);
    }
    return is_there ? JOB_NOT_FOUND : MC_ERR_INVALID_PARAMS;
}

void mc_drain_job_query(struct mc_drain_jobs *jobs, struct mc_web_request *request)
{
    struct drain_job *found, job;
    pthread_mutex_lock(&jobs->lock);
    int rc = job_named(jobs, request, &found);
    if (rc == 0)
        job = *found;
    pthread_mutex_unlock(&jobs->lock);
    reply_result(request, rc, &job, false);
}

void mc_drain_job_cancel(struct mc_drain_jobs *jobs, struct mc_web_request *request)
{
    struct drain_job *found, job;
    pthread_mutex_lock(&jobs->lock);
    int rc = job_named(jobs, request, &found);
    if (rc == 0 && found->status >= SUCCEEDED)
        rc = CONFLICT;
    if (rc == 0) {
        struct drain_question back = {.job = found};
        rc = mc_server_ask(jobs->server, ask_drain, &back, MC_HTTP_ASK_MS);
    }
    if (rc == 0) {
        found->status = CANCELED;
        job = *found;
    }
    pthread_mutex_unlock(&jobs->lock);
    reply_result(request, rc, &job, false);
}

void mc_drain_segment_status(struct mc_drain_jobs *jobs, struct mc_web_request *request)
{
    struct mc_buffer name = {0}, text = {0};
    struct drain_job *one = calloc(1, sizeof(*one));
    struct look_question look;
    int rc = one == NULL ? MC_ERR_NO_MEMORY : 0;
    if (rc == 0 && (!mc_http_parameter(request, "segment", &name) || name.length == 0 || name.length >= NAME_MAX_BYTES))
        rc = MC_ERR_INVALID_PARAMS;
    if (rc == 0) {
        memcpy(one->segments[0], name.data, name.length);
        one->segment_count = 1;
        rc = look_at(jobs, one, &look); /* which touches none of the jobs */
    }
    if (rc == 0 && look.found[0] == 0)
        rc = MC_ERR_SEGMENT_NOT_FOUND;
    if (rc < 0) {
        mc_http_reply_error(request, rc);
    } else { /* the original's numbers; one that is unmounted with a grace is told as OK */
        int status = look.not_draining > 0 ? 1 : look.objects > 0 ? 2 : 3;
        static const char *const names[] = {"UNDEFINED", "OK", "DRAINING", "DRAINED"};
        mc_buffer_printf(&text, "{\"success\":true,\"segment\":");
        mc_http_json_string(&text, one->segments[0], strlen(one->segments[0]));
        mc_buffer_printf(&text, ",\"status\":%d,\"status_name\":\"%s\"}", status, names[status]);
        mc_http_reply(request, 200, MC_HTTP_JSON, &text);
    }
    mc_buffer_free(&name);
    free(one);
}

/* ---- all of them ---- */

void mc_drain_jobs_write(struct mc_drain_jobs *jobs, struct mc_json_writer *writer, const char *name)
{
    mc_json_begin(writer, name, '[');
    pthread_mutex_lock(&jobs->lock);
    for (uint64_t number = jobs->created; number > 0 && jobs->created - number < JOBS_MAX; number--) {
        for (size_t i = 0; i < JOBS_MAX; i++) {
            struct drain_job *job = &jobs->jobs[i];
            struct mc_buffer text = {.may_fail = true};
            if (mc_id_is_zero(job->id) || job->number != number)
                continue;
            (void)job_update(jobs, job); /* else as it was seen last */
            mc_buffer_put_u8(&text, '{');
            write_job(&text, job, true);
            mc_buffer_put_u8(&text, '}');
            writer->out->failed = writer->out->failed || text.failed;
            mc_json_add_value(writer, NULL, mc_span(text.data, text.length));
            mc_buffer_free(&text);
        }
    }
    pthread_mutex_unlock(&jobs->lock);
    mc_json_end(writer, ']');
}

void mc_drain_list(struct mc_drain_jobs *jobs, struct mc_web_request *request)
{
    struct mc_buffer text = {.may_fail = true};
    struct mc_json_writer writer = {.out = &text};
    mc_json_begin(&writer, NULL, '{');
    mc_json_add_bool(&writer, "success", true);
    mc_drain_jobs_write(jobs, &writer, "jobs");
    mc_json_end(&writer, '}');
    mc_http_reply(request, 200, MC_HTTP_JSON, &text);
}

static bool job_has(const struct drain_job *job, const char *segment)
{
    for (size_t i = 0; i < job->segment_count; i++)
        if (strcmp(job->segments[i], segment) == 0)
            return true;
    return false;
}

/* A job one of whose segments takes objects again has nothing to wait for. */
static void cancel_those_of(struct mc_drain_jobs *jobs, const struct drain_job *wish)
{
    for (size_t i = 0; i < JOBS_MAX; i++) {
        struct drain_job *job = &jobs->jobs[i];
        for (size_t k = 0; k < wish->segment_count && !mc_id_is_zero(job->id) && job->status < SUCCEEDED; k++)
            if (job_has(job, wish->segments[k]))
                job->status = CANCELED;
    }
}

/* With the lock. */
static int take_back(struct mc_drain_jobs *jobs, struct drain_job *wish)
{
    struct look_question look;
    struct drain_question back = {.job = wish};
    int rc = look_at(jobs, wish, &look);
    for (size_t k = 0; rc == 0 && k < wish->segment_count; k++)
        rc = look.found[k] == 0 ? MC_ERR_SEGMENT_NOT_FOUND : 0;
    if (rc == 0)
        rc = mc_server_ask(jobs->server, ask_drain, &back, MC_HTTP_ASK_MS);
    if (rc == 0)
        cancel_those_of(jobs, wish);
    return rc;
}

/* By name, also of what is drained already, or whose job a master before this one had. */
void mc_drain_undo(struct mc_drain_jobs *jobs, struct mc_web_request *request)
{
    struct mc_buffer text = {0};
    struct drain_job *wish;
    int rc;
    if (!read_wish(request, &wish, &rc))
        return;
    if (rc == 0) {
        pthread_mutex_lock(&jobs->lock);
        rc = take_back(jobs, wish);
        pthread_mutex_unlock(&jobs->lock);
    }
    if (rc < 0) {
        mc_http_reply_error(request, rc);
    } else {
        mc_buffer_printf(&text, "{\"success\":true,\"segments\":%zu}", wish->segment_count);
        mc_http_reply(request, 200, MC_HTTP_JSON, &text);
    }
    free(wish);
}
