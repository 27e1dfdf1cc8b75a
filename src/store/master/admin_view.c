/* The cluster in one answer, as the page and `mooncake status` show it: who leads, what there is, what happens now,
 * what ails. A standby answers, too, with what it knows. */
#include "base/build.h"
#include "base/error.h"
#include "env/clock.h"
#include "store/master/history.h"
#include "store/master/http.h"
#include "store/master/metrics.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define SEGMENTS_PER_SLICE 256u
#define ACCUSERS_MAX 64u
#define WINDOW_LEAST_MS 3000u /* rates are over at least this */

/* ---- words ---- */

const char *mc_view_role(const struct mc_election_role *role)
{
    return role->epoch != 0 ? "leader" : "standby";
}

const char *mc_view_state(const struct mc_election_role *role)
{
    return role->epoch != 0 ? "serving" : role->phase == MC_LEADERSHIP_CANDIDATE ? "candidate" : "standby";
}

/* One that is drained can be unmounted: nothing lies there any more. */
const char *mc_view_segment_state(const struct mc_core_segment *segment)
{
    return segment->state == 1    ? "SUSPECT"
           : segment->state == 2  ? "UNMOUNTING"
           : !segment->draining   ? "OK"
           : segment->objects > 0 ? "DRAINING"
                                  : "DRAINED";
}

const char *mc_view_disk_health(const struct mc_core_segment *disk)
{
    return disk->absent                        ? "absent"
           : disk->health == MC_TOLD_SLOW      ? "slow"
           : disk->health == MC_TOLD_READ_ONLY ? "read_only"
                                               : "ok";
}

/* ---- the core ---- */

struct segment_slice {
    bool is_disks;
    uint64_t cursor;
    size_t count;
    struct mc_core_segment segments[SEGMENTS_PER_SLICE];
};

static void ask_segments(struct mc_core *core, void *argument)
{
    struct segment_slice *slice = argument;
    slice->count = slice->is_disks ? mc_core_disks(core, &slice->cursor, slice->segments, SEGMENTS_PER_SLICE)
                                   : mc_core_segments(core, &slice->cursor, slice->segments, SEGMENTS_PER_SLICE);
}

int64_t mc_view_collect(struct mc_server *server, bool is_disks, struct mc_core_segment **segments)
{
    struct segment_slice *slice = calloc(1, sizeof(*slice));
    struct mc_buffer all = {.may_fail = true};
    int rc = slice == NULL ? MC_ERR_NO_MEMORY : 0;
    if (slice != NULL)
        slice->is_disks = is_disks;
    while (rc == 0) {
        rc = mc_server_ask(server, ask_segments, slice, MC_HTTP_ASK_MS);
        if (rc == 0)
            mc_buffer_append(&all, slice->segments, slice->count * sizeof(slice->segments[0]));
        if (all.failed)
            rc = MC_ERR_NO_MEMORY;
        if (rc == 0 && (slice->cursor == 0 || slice->count == 0))
            break;
    }
    free(slice);
    if (rc < 0) {
        mc_buffer_free(&all);
        return rc;
    }
    *segments = (struct mc_core_segment *)(void *)all.data; /* realloc's memory: aligned for everything */
    return (int64_t)(all.length / sizeof(struct mc_core_segment));
}

struct overview_question {
    struct mc_core_statistics statistics;
    struct mc_core_accuser accusers[ACCUSERS_MAX];
    size_t accuser_count;
    struct mc_id cluster;
    struct mc_core_curve curve;
    struct mc_core_recovery recovery;
};

static void ask_overview(struct mc_core *core, void *argument)
{
    struct overview_question *question = argument;
    mc_core_statistics(core, &question->statistics);
    question->accuser_count = mc_core_accusers(core, question->accusers, ACCUSERS_MAX);
    question->cluster = mc_core_cluster(core);
    mc_core_curve(core, &question->curve);
    mc_core_recovery(core, &question->recovery);
}

/* ---- the answer ---- */

static void write_memory(struct mc_json_writer *writer, const struct mc_core_statistics *s)
{
    mc_json_begin(writer, "memory", '{');
    mc_json_add_number(writer, "capacity_bytes", s->capacity);
    mc_json_add_number(writer, "used_bytes", s->used);
    mc_json_add_number(writer, "populated_bytes", s->populated);
    mc_json_add_number(writer, "clearing_bytes", s->clearing_bytes);
    mc_json_add_number(writer, "quarantine_bytes", s->quarantine_bytes);
    mc_json_add_number(writer, "largest_free_bytes", s->largest_free);
    mc_json_end(writer, '}');
    mc_json_begin(writer, "disks", '{');
    mc_json_add_number(writer, "mounted", s->disks);
    mc_json_add_number(writer, "absent", s->disks_absent);
    mc_json_add_number(writer, "slow", s->disks_slow);
    mc_json_add_number(writer, "read_only", s->disks_read_only);
    mc_json_add_number(writer, "off", s->disks_off);
    mc_json_add_number(writer, "capacity_bytes", s->disk_capacity);
    mc_json_add_number(writer, "used_bytes", s->disk_used);
    mc_json_add_number(writer, "objects", s->disk_objects);
    mc_json_end(writer, '}');
}

static void write_segments(struct mc_json_writer *writer, const struct mc_core_statistics *s)
{
    mc_json_add_number(writer, "objects", s->objects);
    mc_json_add_number(writer, "soft_pinned", s->soft_pinned);
    mc_json_begin(writer, "firm_pins", '{');
    mc_json_add_number(writer, "objects", s->firm_pinned);
    mc_json_add_number(writer, "bytes", s->firm_bytes);
    mc_json_add_number(writer, "budget_bytes", s->firm_budget);
    mc_json_add_number(writer, "expired", s->firm_pins_expired);
    mc_json_add_number(writer, "refused", s->firm_pins_refused);
    mc_json_end(writer, '}');
    mc_json_add_number(writer, "hard_pin_bytes", s->hard_bytes);
    mc_json_add_number(writer, "members", s->members);
    mc_json_add_number(writer, "connections", s->connections);
    mc_json_begin(writer, "segments", '{');
    mc_json_add_number(writer, "mounted", s->segments);
    mc_json_add_number(writer, "suspect", s->suspect);
    mc_json_add_number(writer, "recovering", s->recovering);
    mc_json_add_number(writer, "draining", s->draining);
    mc_json_add_number(writer, "drained", s->drained);
    mc_json_end(writer, '}');
}

/* Segments, disks too, whose contents are being taken in. */
static void write_recovery(struct mc_json_writer *writer, const struct mc_core_recovery *at)
{
    mc_json_begin(writer, "recovery", '{');
    mc_json_add_number(writer, "segments", at->segments);
    mc_json_add_number(writer, "segments_done", at->done);
    mc_json_add_number(writer, "segments_awaited", at->awaited);
    mc_json_add_number(writer, "objects_told", at->told);
    mc_json_add_number(writer, "objects_at_most", at->announced);
    mc_json_add_bool(writer, "objects_are_known", at->unknown == 0);
    mc_json_add_number(writer, "objects_per_second", at->per_second);
    mc_json_add_number(writer, "since_ms", at->since_ms);
    mc_json_add_number(writer, "left_ms", at->left_ms);
    mc_json_add_number(writer, "open_ms", at->open_ms);
    mc_json_begin(writer, "list", '[');
    for (size_t i = 0; i < at->count; i++) {
        mc_json_begin(writer, NULL, '{');
        mc_http_json_add(writer, "name", at->list[i].name, strlen(at->list[i].name));
        mc_json_add_text(writer, "stage", at->list[i].stage);
        mc_json_add_number(writer, "objects_told", at->list[i].told);
        mc_json_add_number(writer, "objects_at_most", at->list[i].announced);
        mc_json_end(writer, '}');
    }
    mc_json_end(writer, ']');
    mc_json_end(writer, '}');
}

static void write_evictions(struct mc_json_writer *writer, const struct overview_question *found)
{
    const struct mc_core_ages *ages = &found->curve.ages;
    char bound[24];
    mc_json_begin(writer, "evictions", '{');
    for (unsigned what = 0; what < MC_CORE_EVICTION_COUNT; what++)
        mc_json_add_number(writer, mc_metrics_eviction((enum mc_core_eviction)what), found->statistics.evictions[what]);
    mc_json_end(writer, '}');
    mc_json_begin(writer, "eviction_ages", '{');
    mc_json_add_number(writer, "lately", ages->lately);
    mc_json_add_number(writer, "least_ms", ages->least_ms);
    mc_json_add_number(writer, "median_ms", ages->median_ms);
    mc_json_add_number(writer, "most_ms", ages->most_ms);
    mc_json_begin(writer, "seconds", '{');
    for (unsigned i = 0; i < MC_CORE_SPANS; i++) {
        snprintf(bound, sizeof(bound), "%" PRIu64, found->curve.span_s[i]);
        mc_json_add_number(writer, bound, ages->counts[i]);
    }
    mc_json_add_number(writer, "+Inf", ages->counts[MC_CORE_SPANS]);
    mc_json_end(writer, '}');
    mc_json_end(writer, '}');
}

static void write_hints(struct mc_json_writer *writer, const struct mc_core_statistics *s)
{
    mc_json_begin(writer, "hints", '{');
    for (unsigned hint = 1; hint < MC_CORE_HINTS; hint++) {
        mc_json_begin(writer, mc_metrics_hint(hint), '{');
        for (unsigned outcome = 0; outcome < MC_CORE_HINT_OUTCOMES; outcome++)
            mc_json_add_number(writer, mc_metrics_outcome((enum mc_core_hinted)outcome), s->hints[hint][outcome]);
        mc_json_end(writer, '}');
    }
    mc_json_end(writer, '}');
}

/* How long puts took, as turns are told. */
static void write_puts(struct mc_json_writer *writer, const struct mc_core_statistics *s)
{
    mc_json_begin(writer, "puts", '{');
    mc_json_begin(writer, "bounds_ms", '[');
    for (unsigned i = 0; i < MC_CORE_PUT_BOUNDS; i++)
        mc_json_add_number(writer, NULL, mc_core_put_ms[i]);
    mc_json_end(writer, ']');
    mc_json_begin(writer, "counts", '[');
    for (unsigned i = 0; i <= MC_CORE_PUT_BOUNDS; i++)
        mc_json_add_number(writer, NULL, s->put_ms[i]);
    mc_json_end(writer, ']');
    mc_json_end(writer, '}');
}

static void write_totals(struct mc_json_writer *writer, const struct overview_question *found)
{
    const struct mc_core_statistics *s = &found->statistics;
    mc_json_begin(writer, "totals", '{');
#define MC_VIEW_GAUGE(name)
#define MC_VIEW_TOTAL(name) mc_json_add_number(writer, #name, s->name);
    MC_HISTORY_SERIES(MC_VIEW_GAUGE, MC_VIEW_TOTAL)
#undef MC_VIEW_GAUGE
#undef MC_VIEW_TOTAL
    mc_json_end(writer, '}');
    mc_json_begin(writer, "misses", '{');
    for (unsigned why = 0; why < MC_GONE_COUNT; why++)
        mc_json_add_number(writer, mc_metrics_reason((enum mc_gone)why), s->misses[why]);
    mc_json_end(writer, '}');
    mc_json_add_real(writer, "hit_ratio_lately", found->curve.found < 0 ? INFINITY : found->curve.found);
}

/* Per second, since a sample of the same leadership that is old enough. */
static void write_rates(struct mc_json_writer *writer, const struct mc_view *view, const struct mc_core_statistics *s)
{
    struct mc_sample samples[2], now = {.wall_ms = mc_clock_wall_ms()};
    size_t count = view->history == NULL ? 0 : mc_history_read(view->history, false, 0, samples, 2);
    uint64_t epoch = mc_server_epoch(view->server);
    const struct mc_sample *from = NULL;
    for (size_t i = 0; i < count; i++)
        if (samples[i].epoch == epoch && samples[i].wall_ms + WINDOW_LEAST_MS <= now.wall_ms)
            from = &samples[i];
    mc_sample_take(&now, s);
    mc_json_begin(writer, "per_second", '{');
    if (from != NULL) {
        double seconds = (double)(now.wall_ms - from->wall_ms) / 1000;
#define MC_VIEW_GAUGE(name)
#define MC_VIEW_RATE(name) mc_json_add_real(writer, #name, (double)(now.name - from->name) / seconds);
        MC_HISTORY_SERIES(MC_VIEW_GAUGE, MC_VIEW_RATE)
#undef MC_VIEW_GAUGE
#undef MC_VIEW_RATE
    }
    mc_json_end(writer, '}');
}

static void write_turns(struct mc_json_writer *writer, const struct mc_view *view)
{
    struct mc_sample sample;
    size_t count = view->history == NULL ? 0 : mc_history_read(view->history, false, 0, &sample, 1);
    mc_json_begin(writer, "turns", '{');
    mc_json_add_number(writer, "longest_us", mc_server_longest_turn_ns(view->server) / 1000);
    mc_json_begin(writer, "bounds_us", '[');
    for (unsigned i = 0; i < MC_TURN_BOUNDS - 1; i++)
        mc_json_add_number(writer, NULL, mc_turn_bounds_us[i]);
    mc_json_end(writer, ']');
    mc_json_begin(writer, "counts", '[');
    for (unsigned i = 0; count > 0 && i < MC_TURN_BOUNDS; i++)
        mc_json_add_number(writer, NULL, sample.turns[i]);
    mc_json_end(writer, ']');
    mc_json_end(writer, '}');
}

static void write_standbys(struct mc_json_writer *writer, const struct mc_view *view)
{
    struct mc_standby list[MC_STANDBYS_MAX];
    bool is_known;
    size_t count = mc_standbys_read(view->standbys, list, &is_known);
    mc_json_add_bool(writer, "standbys_are_known", is_known);
    mc_json_begin(writer, "standbys", '[');
    for (size_t i = 0; i < count; i++) {
        mc_json_begin(writer, NULL, '{');
        mc_http_json_add(writer, "name", list[i].name, strlen(list[i].name));
        mc_http_json_add(writer, "address", list[i].address, strlen(list[i].address));
        mc_http_json_add(writer, "build", list[i].build, strlen(list[i].build));
        mc_json_add_number(writer, "since_ms", list[i].since_ms);
        mc_json_add_number(writer, "heard_ms", list[i].heard_ms);
        mc_json_end(writer, '}');
    }
    mc_json_end(writer, ']');
}

static void write_leader(struct mc_json_writer *writer, const struct mc_view *view, bool is_ready)
{
    struct mc_election_role role;
    mc_server_describe(view->server, &role);
    mc_json_add_number(writer, "time_ms", mc_clock_wall_ms());
    mc_json_add_text(writer, "build", mc_build());
    mc_json_add_number(writer, "uptime_seconds", (mc_clock_ms() - view->started_ms) / 1000);
    mc_json_add_text(writer, "role", mc_view_role(&role));
    mc_json_add_text(writer, "state", mc_view_state(&role));
    mc_json_add_bool(writer, "is_ready", is_ready);
    mc_json_add_bool(writer, "has_election", view->is_ha);
    mc_json_add_bool(writer, "has_tenants", view->has_tenants);
    mc_http_json_add(writer, "leader_address", role.leader, strlen(role.leader));
    mc_json_add_number(writer, "epoch", role.leader_epoch);
    if (view->is_ha)
        write_standbys(writer, view);
}

static void write_cluster(struct mc_json_writer *writer, const struct mc_view *view,
                          const struct overview_question *found)
{
    char id[40];
    snprintf(id, sizeof(id), "%016" PRIx64 "%016" PRIx64, found->cluster.high, found->cluster.low);
    mc_json_add_text(writer, "cluster", id);
    write_segments(writer, &found->statistics);
    write_memory(writer, &found->statistics);
    write_totals(writer, found);
    write_rates(writer, view, &found->statistics);
    write_turns(writer, view);
    write_evictions(writer, found);
    write_hints(writer, &found->statistics);
    write_puts(writer, &found->statistics);
    mc_json_begin(writer, "accusers", '[');
    for (size_t i = 0; i < found->accuser_count; i++) {
        mc_json_begin(writer, NULL, '{');
        mc_http_json_add(writer, "host_of", found->accusers[i].name, strlen(found->accusers[i].name));
        mc_json_add_number(writer, "nodes", found->accusers[i].nodes);
        mc_json_end(writer, '}');
    }
    mc_json_end(writer, ']');
    write_recovery(writer, &found->recovery);
    mc_drain_jobs_write(view->drains, writer, "drains");
}

void mc_view_overview(const struct mc_view *view, struct mc_web_request *request)
{
    struct mc_buffer text = {.may_fail = true};
    struct mc_json_writer writer = {.out = &text};
    struct overview_question found = {.accuser_count = 0};
    int rc = mc_server_ask(view->server, ask_overview, &found, MC_HTTP_ASK_MS);
    if (rc < 0 && rc != MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS) {
        mc_http_reply_error(request, rc);
        return;
    }
    mc_json_begin(&writer, NULL, '{');
    mc_json_add_bool(&writer, "success", true);
    mc_json_begin(&writer, "data", '{');
    write_leader(&writer, view, rc == 0);
    if (rc == 0)
        write_cluster(&writer, view, &found);
    mc_json_end(&writer, '}');
    mc_json_end(&writer, '}');
    mc_http_reply(request, 200, MC_HTTP_JSON, &text);
}
