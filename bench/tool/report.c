/* What a replay ends in: the table and the JSON. */
#include "tool/bench.h"
#include "tool/process.h"
#include "tool/report.h"

#include "mooncake.h"

#include <math.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CODES_MAX 64

struct replay_totals {
    struct mc_replay_counters sum;
    struct mc_histogram calls[MC_REPLAY_CALLS];
    struct {
        int code;
        uint64_t count;
    } errors[CODES_MAX];
    double evicted_objects, evicted_bytes;
    bool evictions_known;
};

static void add_errors(struct replay_totals *totals, const struct mc_replay_stats *stats)
{
    for (unsigned i = 0; i < MC_REPLAY_ERROR_KINDS; i++) {
        int code = atomic_load(&stats->errors[i].code);
        for (unsigned j = 0; code != 0 && j < CODES_MAX; j++) {
            if (totals->errors[j].code != 0 && totals->errors[j].code != code)
                continue;
            totals->errors[j].code = code;
            totals->errors[j].count += atomic_load(&stats->errors[i].count);
            break;
        }
    }
}

static double part_of(uint64_t part, uint64_t whole)
{
    return whole > 0 ? (double)part / (double)whole : 0;
}

/* Bytes per second of time spent in the calls themselves, per thread. */
static double call_gbps(uint64_t bytes, const struct mc_histogram *calls)
{
    return part_of(bytes, calls->sum);
}

static void print_calls(FILE *out, const char *name, const struct mc_histogram *calls)
{
    static const double parts[] = {0.5, 0.99, 0.999};
    char text[32];
    fprintf(out, "  %-26s %9" PRIu64, name, (uint64_t)calls->count);
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        fprintf(out, " %10s", mc_time_format(mc_histogram_quantile(calls, parts[i]), text, sizeof(text)));
    fprintf(out, " %10s\n", mc_time_format(calls->max, text, sizeof(text)));
}

static void print_traffic(FILE *out, const struct mc_replay_report *report, const struct mc_replay_view *view,
                          const struct replay_totals *totals)
{
    const struct mc_replay_counters *sum = &totals->sum;
    char text[32];
    fprintf(out, "  hit ratio            %.2f %% of blocks, %.2f %% of tokens (%" PRIu64 " of %" PRIu64 " blocks)\n",
            100 * part_of(sum->hit_blocks, sum->blocks), 100 * part_of(sum->hit_tokens, sum->tokens), sum->hit_blocks,
            sum->blocks);
    fprintf(out, "  in  (put)            %s, %.2f GB/s; %.2f GB/s of a thread while it puts\n",
            mc_size_format(sum->put_bytes, text, sizeof(text)), (double)sum->put_bytes / report->seconds / 1e9,
            call_gbps(sum->put_bytes, &totals->calls[MC_REPLAY_PUT]));
    fprintf(out, "  out (get)            %s, %.2f GB/s; %.2f GB/s of a thread while it gets\n",
            mc_size_format(sum->got_bytes, text, sizeof(text)), (double)sum->got_bytes / report->seconds / 1e9,
            call_gbps(sum->got_bytes, &totals->calls[MC_REPLAY_GET]));
    fprintf(out, "  failed puts          %" PRIu64 "\n", sum->failed_puts);
    if (sum->failed_gets + sum->failed_lookups > 0)
        fprintf(out, "  failed gets, lookups %" PRIu64 ", %" PRIu64 "\n", sum->failed_gets, sum->failed_lookups);
    for (unsigned i = 0; i < CODES_MAX && totals->errors[i].code != 0; i++)
        fprintf(out, "    %6" PRIu64 " x %d %s\n", totals->errors[i].count, totals->errors[i].code,
                mc_error_name(totals->errors[i].code));
    fprintf(out, "  gone before the get  %" PRIu64 " blocks, computed again\n", sum->gone_blocks);
    if (totals->evictions_known)
        fprintf(out, "  evicted              %.0f objects, %s\n", totals->evicted_objects,
                mc_size_format((uint64_t)totals->evicted_bytes, text, sizeof(text)));
    else
        fprintf(out, "  evicted              unknown (give --metrics)\n");
    if (view->shared->speed > 0)
        fprintf(out, "  started late         %" PRIu64 " requests (more than 10 ms behind the trace's clock)\n",
                sum->late_requests);
    if (view->shared->verify)
        fprintf(out, "  wrong bytes          %" PRIu64 " of %" PRIu64 " compared, at %.1f GB/s\n", sum->wrong_bytes,
                sum->checked_bytes, sum->check_ns > 0 ? (double)sum->checked_bytes / (double)sum->check_ns : 0);
    else
        fprintf(out, "  wrong bytes          not looked for (--noverify)\n");
}

static void print_table(FILE *out, const struct mc_replay_report *report, const struct mc_replay_view *view,
                        const struct replay_totals *totals)
{
    const struct mc_replay_shared *shared = view->shared;
    const struct mc_replay_counters *sum = &totals->sum;
    char block[32], capacity[32];
    const char *end = report->lost != NULL ? "  BROKEN OFF"
                      : mc_interrupted     ? "  interrupted"
                      : report->cut_short  ? "  stopped after --duration"
                                           : "";
    fprintf(out, "\n%s: %" PRIu64 " of %" PRIu64 " requests in %.1f s, %.0f/s%s\n", shared->trace_name, sum->requests,
            shared->request_count, report->seconds, (double)sum->requests / report->seconds, end);
    fprintf(out, "  %" PRIu32 " worker(s) x %" PRIu32 " thread(s), blocks of %s (%s), ", shared->worker_count,
            shared->thread_count, mc_size_format(shared->block_bytes, block, sizeof(block)), shared->model);
    if (report->started)
        fprintf(out, "%u store node(s) with %s, ", report->node_count,
                mc_size_format(report->capacity, capacity, sizeof(capacity)));
    fprintf(out, "paths %s\n", shared->paths[0] != '\0' ? shared->paths : "all");
    print_traffic(out, report, view, totals);
    fprintf(out, "\n  %-26s %9s %10s %10s %10s %10s\n", "call", "count", "p50", "p99", "p99.9", "max");
    char get[40], put[40];
    snprintf(get, sizeof(get), "get of up to %" PRIu32 " blocks", shared->batch);
    snprintf(put, sizeof(put), "put of up to %" PRIu32 " blocks", shared->batch);
    print_calls(out, "lookup of a request", &totals->calls[MC_REPLAY_LOOKUP]);
    print_calls(out, get, &totals->calls[MC_REPLAY_GET]);
    print_calls(out, put, &totals->calls[MC_REPLAY_PUT]);
    if (report->lost != NULL)
        fprintf(out, "\n%s ended before its time; the figures above are incomplete.\n", report->lost);
    if (report->started)
        fprintf(out, "\nWhere to look next: the same with --keep, then http://%s/metrics and /metrics/summary; %s\n",
                report->metrics_address, "--json=FILE for these figures");
    if (sum->wrong_bytes > 0)
        fprintf(out, "\nWRONG BYTES: %" PRIu64 " in %" PRIu64 " blocks\n", sum->wrong_bytes, sum->wrong_blocks);
    fflush(out);
}

static void write_settings(const struct mc_replay_report *report, const struct mc_replay_shared *shared,
                           struct mc_json_writer *json)
{
    mc_json_begin(json, "settings", '{');
    mc_json_add_text(json, "trace", report->trace_path);
    mc_json_add_text(json, "model", shared->model);
    mc_json_add_number(json, "block_bytes", shared->block_bytes);
    mc_json_add_number(json, "requests", shared->request_count);
    mc_json_add_number(json, "capacity", report->started ? report->capacity : 0);
    mc_json_add_number(json, "store_nodes", report->node_count);
    mc_json_add_number(json, "workers", shared->worker_count);
    mc_json_add_number(json, "threads", shared->thread_count);
    mc_json_add_number(json, "batch", shared->batch);
    mc_json_add_number(json, "replicas", shared->replica_count);
    mc_json_add_real(json, "speed", shared->speed);
    mc_json_add_number(json, "seed", shared->seed);
    mc_json_add_text(json, "paths", shared->paths);
    mc_json_add_bool(json, "verify", shared->verify);
    mc_json_add_text(json, "version", mc_version());
    mc_json_end(json, '}');
}

/* null where the master was not asked. */
static void write_evictions(struct mc_json_writer *json, const char *name, const struct replay_totals *totals,
                            double count)
{
    if (totals->evictions_known)
        mc_json_add_number(json, name, (uint64_t)count);
    else
        mc_json_add_real(json, name, (double)NAN);
}

static void write_result(const struct mc_replay_report *report, const struct mc_replay_view *view,
                         const struct replay_totals *totals, const char *outcome, struct mc_json_writer *json)
{
    static const struct {
        const char *name;
        int call;
    } kinds[] = {{"lookup", MC_REPLAY_LOOKUP}, {"get", MC_REPLAY_GET}, {"put", MC_REPLAY_PUT}};
    const struct mc_replay_counters *sum = &totals->sum;
    const struct mc_histogram *calls = totals->calls;
    mc_json_add_text(json, "outcome", outcome);
    write_settings(report, view->shared, json);
    mc_json_add_real(json, "seconds", report->seconds);
    mc_json_add_real(json, "requests_per_s", (double)sum->requests / report->seconds);
#define COUNTER(name) mc_json_add_number(json, #name, sum->name);
    MC_REPLAY_COUNTERS(COUNTER)
#undef COUNTER
    mc_json_add_real(json, "hit_ratio_blocks", part_of(sum->hit_blocks, sum->blocks));
    mc_json_add_real(json, "hit_ratio_tokens", part_of(sum->hit_tokens, sum->tokens));
    mc_json_add_real(json, "put_gbps", (double)sum->put_bytes / report->seconds / 1e9);
    mc_json_add_real(json, "get_gbps", (double)sum->got_bytes / report->seconds / 1e9);
    mc_json_add_real(json, "put_call_gbps", call_gbps(sum->put_bytes, &calls[MC_REPLAY_PUT]));
    mc_json_add_real(json, "get_call_gbps", call_gbps(sum->got_bytes, &calls[MC_REPLAY_GET]));
    write_evictions(json, "evicted_objects", totals, totals->evicted_objects);
    write_evictions(json, "evicted_bytes", totals, totals->evicted_bytes);
    mc_json_begin(json, "errors", '{');
    for (unsigned i = 0; i < CODES_MAX && totals->errors[i].code != 0; i++)
        mc_json_add_number(json, mc_error_name(totals->errors[i].code), totals->errors[i].count);
    mc_json_end(json, '}');
    mc_json_begin(json, "calls", '{');
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        mc_histogram_member(&calls[kinds[i].call], kinds[i].name, json);
    mc_json_end(json, '}');
}

int mc_replay_print(const struct mc_replay_report *report, const struct mc_replay_view *view)
{
    struct replay_totals *totals = calloc(1, sizeof(*totals));
    if (totals == NULL)
        return MC_BENCH_TROUBLE;
    mc_replay_sum(view, &totals->sum, totals->calls);
    for (uint32_t i = 0; i < view->shared->worker_count * view->shared->thread_count; i++)
        add_errors(totals, &view->stats[i]);
    totals->evictions_known =
        mc_cluster_metric(report->metrics_address, "master_evicted_key_count", &totals->evicted_objects) &&
        mc_cluster_metric(report->metrics_address, "master_evicted_size_bytes", &totals->evicted_bytes);
    int rc = totals->sum.wrong_bytes > 0 ? MC_BENCH_WRONG
             : report->lost != NULL      ? MC_BENCH_TROUBLE
             : mc_interrupted            ? MC_BENCH_INTERRUPTED
                                         : MC_BENCH_OK;
    const char *outcome = rc == MC_BENCH_WRONG         ? "wrong bytes"
                          : rc == MC_BENCH_TROUBLE     ? "broken off"
                          : rc == MC_BENCH_INTERRUPTED ? "interrupted"
                          : report->cut_short          ? "stopped"
                                                       : "complete";
    print_table(mc_bench_out(report->options), report, view, totals);
    struct mc_buffer document = {0};
    struct mc_json_writer json = mc_bench_json(&document, '{');
    write_result(report, view, totals, outcome, &json);
    rc = mc_bench_write_json(report->options, &json, rc);
    free(totals);
    return rc;
}
