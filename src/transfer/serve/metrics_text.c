/* An engine's counters as Prometheus text, and as a line of the log. The table of rows is docs/metrics.md's. */
#include "transfer/state/engine.h"
#include "transfer/state/region.h"
#include "transfer/state/settings.h"
#include "transfer/state/metrics.h"

#include "base/variables.h"
#include "env/clock.h"
#include "env/log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <strings.h>

static const char *const path_names[] = {"local", "host", "tcp", "rdma", "none"};
_Static_assert(sizeof(path_names) / sizeof(path_names[0]) == MC_TRANSFER_PATHS + 1, "a name each");
static const char *const ways[] = {"read", "write"};
static const char *const error_names[] = {
#define ROW(name, value, text) #name,
    MC_TRANSFER_ERROR_MAP(ROW)
#undef ROW
};

struct sink { /* where the samples of one row of one engine go */
    struct mc_buffer *out;
    const char *name;
    const struct mc_transfer_engine *engine;
};

/* ---- samples ---- */

static void put_label(struct mc_buffer *out, const char *name, const char *value)
{
    mc_buffer_printf(out, "%s=\"", name);
    for (const char *at = value; *at != 0; at++) {
        if (*at == '"' || *at == '\\')
            mc_buffer_append(out, "\\", 1);
        if (*at == '\n')
            mc_buffer_append(out, "\\n", 2);
        else
            mc_buffer_append(out, at, 1);
    }
    mc_buffer_append(out, "\"", 1);
}

static void put_head(const struct sink *sink, const char *suffix, const char *peer, int path)
{
    mc_buffer_printf(sink->out, "%s%s{", sink->name, suffix);
    put_label(sink->out, "engine", sink->engine->name);
    if (peer == NULL)
        return;
    mc_buffer_append(sink->out, ",", 1);
    put_label(sink->out, "peer", peer);
    mc_buffer_printf(sink->out, ",path=\"%s\"", path_names[path]);
}

static void put_number(const struct sink *sink, uint64_t number)
{
    put_head(sink, "", NULL, 0);
    mc_buffer_printf(sink->out, "} %" PRIu64 "\n", number);
}

static void put_ways(const struct sink *sink, const struct mc_tally *tally,
                     const _Atomic uint64_t counters[MC_TRANSFER_PATHS][2])
{
    for (int path = 0; path < MC_TRANSFER_PATHS; path++) {
        for (unsigned way = 0; way < 2; way++) {
            uint64_t number = counters[path][way];
            if (number == 0)
                continue;
            put_head(sink, "", tally->peer, path);
            mc_buffer_printf(sink->out, ",direction=\"%s\"} %" PRIu64 "\n", ways[way], number);
        }
    }
}

static void put_bytes(const struct sink *sink, const struct mc_tally *tally)
{
    put_ways(sink, tally, tally->bytes);
}
static void put_items(const struct sink *sink, const struct mc_tally *tally)
{
    put_ways(sink, tally, tally->items);
}

static void put_errors(const struct sink *sink, const struct mc_tally *tally)
{
    for (int path = 0; path < MC_METRICS_PATHS; path++) {
        for (size_t i = 0; i < MC_METRICS_ERRORS; i++) {
            uint64_t number = tally->errors[path][i];
            if (number == 0)
                continue;
            put_head(sink, "", tally->peer, path);
            mc_buffer_printf(sink->out, ",error=\"%s\"} %" PRIu64 "\n", error_names[i], number);
        }
    }
}

/* way 0: that were compared; 1: that differed */
static void put_checks(const struct sink *sink, const struct mc_tally *tally, unsigned way)
{
    for (int path = 0; path < MC_TRANSFER_PATHS; path++) {
        if (tally->checks[path][way] == 0)
            continue;
        put_head(sink, "", tally->peer, path);
        mc_buffer_printf(sink->out, "} %" PRIu64 "\n", (uint64_t)tally->checks[path][way]);
    }
}

static void put_checked(const struct sink *sink, const struct mc_tally *tally)
{
    put_checks(sink, tally, 0);
}
static void put_mismatches(const struct sink *sink, const struct mc_tally *tally)
{
    put_checks(sink, tally, 1);
}

static void put_seconds(const struct sink *sink, const struct mc_tally *tally)
{
    for (int path = 0; path < MC_TRANSFER_PATHS; path++) {
        uint64_t total = 0, below = 0;
        for (unsigned i = 0; i <= MC_METRICS_BUCKETS; i++)
            total += tally->batches[path][i];
        if (total == 0)
            continue;
        for (unsigned i = 0; i < MC_METRICS_BUCKETS; i++) {
            below += tally->batches[path][i];
            put_head(sink, "_bucket", tally->peer, path);
            mc_buffer_printf(sink->out, ",le=\"%.9g\"} %" PRIu64 "\n", (double)(1024ull << i) / 1e9, below);
        }
        below += tally->batches[path][MC_METRICS_BUCKETS];
        put_head(sink, "_bucket", tally->peer, path);
        mc_buffer_printf(sink->out, ",le=\"+Inf\"} %" PRIu64 "\n", below);
        put_head(sink, "_sum", tally->peer, path);
        mc_buffer_printf(sink->out, "} %.9f\n", (double)tally->batches_ns[path] / 1e9);
        put_head(sink, "_count", tally->peer, path);
        mc_buffer_printf(sink->out, "} %" PRIu64 "\n", below);
    }
}

static uint64_t fallbacks(const struct mc_transfer_engine *engine)
{
    return engine->count.fallbacks;
}
static uint64_t served(const struct mc_transfer_engine *engine)
{
    return engine->count.served_bytes;
}
static uint64_t refused(const struct mc_transfer_engine *engine)
{
    return engine->count.refused;
}
static uint64_t peers(const struct mc_transfer_engine *engine)
{
    return engine->peer_count;
}
static uint64_t ranges(const struct mc_transfer_engine *engine)
{
    return engine->regions.count;
}
static uint64_t registered(const struct mc_transfer_engine *engine)
{
    uint64_t bytes = 0;
    for (const struct mc_region *region = engine->regions.first; region != NULL; region = region->next)
        bytes += region->length;
    return bytes;
}
static uint64_t open_batches(const struct mc_transfer_engine *engine)
{
    return engine->batches.used - engine->batches.free_count;
}
static uint64_t waiting_notes(const struct mc_transfer_engine *engine)
{
    return engine->note_count;
}

/* clang-format off */
static const struct metric_row {
    const char *name, *kind, *help;
    uint64_t (*number)(const struct mc_transfer_engine *engine); /* one for each engine */
    void (*put)(const struct sink *sink, const struct mc_tally *tally); /* or some for each peer */
} rows[] = {
    {"mooncake_transfer_bytes_total", "counter", "Bytes moved by this engine's calls.", NULL, put_bytes},
    {"mooncake_transfer_items_total", "counter", "Items of the batches that were moved.", NULL, put_items},
    {"mooncake_transfer_errors_total", "counter", "Batches that were not moved.", NULL, put_errors},
    {"mooncake_transfer_seconds", "histogram", "How long batches that were moved took.", NULL, put_seconds},
    {"mooncake_transfer_checked_total", "counter", "Batches whose checksums were compared.", NULL, put_checked},
    {"mooncake_transfer_mismatches_total", "counter", "Batches whose checksums differed.", NULL, put_mismatches},
    {"mooncake_transfer_fallbacks_total", "counter", "Peers of this machine that could only be reached by tcp.", fallbacks, NULL},
    {"mooncake_transfer_served_bytes_total", "counter", "Bytes that peers have read or written here over tcp.", served, NULL},
    {"mooncake_transfer_refused_total", "counter", "Requests of peers for addresses that are not registered.", refused, NULL},
    {"mooncake_transfer_registered_bytes", "gauge", "Registered memory.", registered, NULL},
    {"mooncake_transfer_registered_ranges", "gauge", "Pieces of it.", ranges, NULL},
    {"mooncake_transfer_peers", "gauge", "Peers that are known.", peers, NULL},
    {"mooncake_transfer_batches", "gauge", "Batches in the background that nobody has asked to their end.", open_batches, NULL},
    {"mooncake_transfer_notes", "gauge", "Notes of peers that wait to be taken.", waiting_notes, NULL},
};
/* clang-format on */

struct wanted {
    struct mc_buffer *out;
    const struct metric_row *row;
    const struct mc_transfer_engine *engine; /* NULL: all */
};

static void put_engine(struct mc_transfer_engine *engine, void *context)
{
    const struct wanted *wanted = context;
    const struct metric_row *row = wanted->row;
    struct sink sink = {wanted->out, row->name, engine};
    if (wanted->engine != NULL && wanted->engine != engine)
        return;
    pthread_mutex_lock(&engine->lock);
    if (row->number != NULL) {
        put_number(&sink, row->number(engine));
    } else {
        for (size_t i = 0; i < engine->metrics.count; i++)
            row->put(&sink, engine->metrics.tallies[i]);
        row->put(&sink, &engine->metrics.other);
    }
    pthread_mutex_unlock(&engine->lock);
}

char *mc_transfer_metrics_text(struct mc_transfer_engine *engine)
{
    struct mc_buffer out = {0};
    if (engine != NULL && !mc_transfer_alive(engine))
        return NULL;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct wanted wanted = {&out, &rows[i], engine};
        mc_buffer_printf(&out, "# HELP %s %s\n# TYPE %s %s\n", rows[i].name, rows[i].help, rows[i].name, rows[i].kind);
        mc_transfer_each(put_engine, &wanted);
    }
    mc_buffer_append(&out, "", 1);
    return (char *)out.data;
}

/* ---- the line in the log ---- */

void mc_metrics_report_init(struct mc_metrics *metrics)
{
    const char *wanted = mc_variable(MC_TE_METRIC);
    if (wanted == NULL || (strcmp(wanted, "1") != 0 && strcasecmp(wanted, "true") != 0 &&
                           strcasecmp(wanted, "yes") != 0 && strcasecmp(wanted, "on") != 0))
        return;
    metrics->reported = calloc(1, sizeof(*metrics->reported));
    if (metrics->reported == NULL)
        return;
    metrics->report_ms = mc_settings_number(MC_VARIABLE_MC_TE_METRIC_INTERVAL_SECONDS, 5, 1, 86400) * 1000;
    metrics->report_next_ms = mc_clock_ms() + metrics->report_ms;
}

static uint64_t sum_of(const _Atomic uint64_t *counters, const _Atomic uint64_t *before, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += counters[i] - before[i];
    return sum;
}

static void write_line(const struct mc_transfer_engine *engine, const struct mc_tally *now, uint64_t passed_ms)
{
    const struct mc_tally *before = engine->metrics.reported;
    uint64_t bytes[2] = {0, 0}, batches = 0, errors = 0;
    for (int path = 0; path < MC_TRANSFER_PATHS; path++) {
        for (unsigned way = 0; way < 2; way++)
            bytes[way] += sum_of(&now->bytes[path][way], &before->bytes[path][way], 1);
        batches += sum_of(now->batches[path], before->batches[path], MC_METRICS_BUCKETS + 1);
    }
    for (int path = 0; path < MC_METRICS_PATHS; path++)
        errors += sum_of(now->errors[path], before->errors[path], MC_METRICS_ERRORS);
    mc_log(INFO,
           "Transfer Engine Metrics: %s | last %.1f s | write %.2f MB/s, read %.2f MB/s | %" PRIu64 " batches, %" PRIu64
           " failed | p50 <= %.0f us, p99 <= %.0f us",
           engine->name, (double)passed_ms / 1e3, (double)bytes[MC_TRANSFER_WRITE] / 1e3 / (double)passed_ms,
           (double)bytes[MC_TRANSFER_READ] / 1e3 / (double)passed_ms, batches, errors,
           mc_metrics_quantile(now, before, 0.5) * 1e6, mc_metrics_quantile(now, before, 0.99) * 1e6);
}

void mc_metrics_report(struct mc_transfer_engine *engine)
{
    struct mc_metrics *metrics = &engine->metrics;
    uint64_t now_ms = metrics->report_ms == 0 ? 0 : mc_clock_ms();
    if (metrics->report_ms == 0 || now_ms < metrics->report_next_ms)
        return;
    struct mc_tally now;
    pthread_mutex_lock(&engine->lock);
    mc_metrics_sum(metrics, &now);
    pthread_mutex_unlock(&engine->lock);
    write_line(engine, &now, now_ms - metrics->report_next_ms + metrics->report_ms);
    memcpy(metrics->reported, &now, sizeof(now));
    metrics->report_next_ms = now_ms + metrics->report_ms;
}
