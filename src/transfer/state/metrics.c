/* The counters of an engine: adding, and making room. Their text is metrics_text.c's. */
#include "transfer/state/metrics.h"

#include "base/error.h"

#include <stdlib.h>

static const int error_codes[] = {
#define ROW(name, value, text) [MC_METRICS_ERROR_##name] = (value),
    MC_TRANSFER_ERROR_MAP(ROW)
#undef ROW
};

static void counter_add(_Atomic uint64_t *counter, uint64_t amount)
{
    atomic_fetch_add_explicit(counter, amount, memory_order_relaxed);
}

static uint64_t counter_get(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

static unsigned bucket_of(uint64_t duration_ns)
{
    uint64_t above = duration_ns <= 1024 ? 0 : (duration_ns - 1) >> 10;
    unsigned bucket = above == 0 ? 0 : 64 - (unsigned)__builtin_clzll(above);
    return bucket < MC_METRICS_BUCKETS ? bucket : MC_METRICS_BUCKETS;
}

void mc_tally_add(struct mc_tally *tally, int path, enum mc_transfer_opcode opcode, uint64_t bytes, uint64_t items,
                  uint64_t duration_ns)
{
    unsigned way = opcode == MC_TRANSFER_WRITE;
    counter_add(&tally->bytes[path][way], bytes);
    counter_add(&tally->items[path][way], items);
    counter_add(&tally->batches[path][bucket_of(duration_ns)], 1);
    counter_add(&tally->batches_ns[path], duration_ns);
}

void mc_tally_fail(struct mc_tally *tally, int path, int code)
{
    size_t error = MC_METRICS_ERROR_INVALID_ARGUMENT; /* which also says that a transfer failed */
    for (size_t i = 0; i < MC_METRICS_ERRORS; i++)
        if (error_codes[i] == code)
            error = i;
    counter_add(&tally->errors[path][error], 1);
}

void mc_tally_check(struct mc_tally *tally, int path, bool is_wrong)
{
    counter_add(&tally->checks[path][0], 1);
    counter_add(&tally->checks[path][1], is_wrong);
}

static void add_up(struct mc_tally *into, const struct mc_tally *from)
{
    for (int path = 0; path < MC_METRICS_PATHS; path++)
        for (size_t i = 0; i < MC_METRICS_ERRORS; i++)
            counter_add(&into->errors[path][i], counter_get(&from->errors[path][i]));
    for (int path = 0; path < MC_TRANSFER_PATHS; path++) {
        for (unsigned way = 0; way < 2; way++) {
            counter_add(&into->bytes[path][way], counter_get(&from->bytes[path][way]));
            counter_add(&into->items[path][way], counter_get(&from->items[path][way]));
            counter_add(&into->checks[path][way], counter_get(&from->checks[path][way]));
        }
        for (unsigned i = 0; i <= MC_METRICS_BUCKETS; i++)
            counter_add(&into->batches[path][i], counter_get(&from->batches[path][i]));
        counter_add(&into->batches_ns[path], counter_get(&from->batches_ns[path]));
    }
}

void mc_metrics_sum(const struct mc_metrics *metrics, struct mc_tally *sum)
{
    memset(sum, 0, sizeof(*sum));
    add_up(sum, &metrics->other);
    for (size_t i = 0; i < metrics->count; i++)
        add_up(sum, metrics->tallies[i]);
}

/* ---- whose they are ---- */

static struct mc_tally *make(const char *peer)
{
    size_t length = strlen(peer) + 1;
    struct mc_tally *tally = calloc(1, sizeof(*tally) + length);
    if (tally == NULL)
        return NULL;
    char *name = (char *)(tally + 1);
    memcpy(name, peer, length);
    tally->peer = name;
    return tally;
}

struct mc_tally *mc_metrics_hold(struct mc_metrics *metrics, const char *peer)
{
    struct mc_tally **place = NULL;
    metrics->other.peer = "other";
    for (size_t i = 0; i < metrics->count; i++) {
        struct mc_tally *tally = metrics->tallies[i];
        if (!tally->is_held && strcmp(tally->peer, peer) == 0) {
            tally->is_held = true;
            return tally;
        }
        if (!tally->is_held)
            place = &metrics->tallies[i];
    }
    bool is_new = metrics->count < MC_METRICS_PEERS_MAX;
    if (is_new)
        place = &metrics->tallies[metrics->count];
    struct mc_tally *tally = place == NULL ? NULL : make(peer);
    if (tally == NULL)
        return &metrics->other;
    if (is_new) {
        metrics->count++;
    } else {
        add_up(&metrics->other, *place);
        free(*place);
    }
    tally->is_held = true;
    *place = tally;
    return tally;
}

void mc_metrics_release(struct mc_metrics *metrics, struct mc_tally *tally)
{
    if (tally != &metrics->other)
        tally->is_held = false;
}

void mc_metrics_free(struct mc_metrics *metrics)
{
    for (size_t i = 0; i < metrics->count; i++)
        free(metrics->tallies[i]);
    free(metrics->reported);
    metrics->reported = NULL;
    metrics->count = 0;
}

double mc_metrics_quantile(const struct mc_tally *now, const struct mc_tally *before, double part)
{
    uint64_t counts[MC_METRICS_BUCKETS + 1] = {0}, total = 0, seen = 0;
    for (unsigned i = 0; i <= MC_METRICS_BUCKETS; i++) {
        for (int path = 0; path < MC_TRANSFER_PATHS; path++)
            counts[i] += counter_get(&now->batches[path][i]) - counter_get(&before->batches[path][i]);
        total += counts[i];
    }
    for (unsigned i = 0; i <= MC_METRICS_BUCKETS; i++) {
        seen += counts[i];
        if (total > 0 && (double)seen >= part * (double)total)
            return (double)(1024ull << i) / 1e9;
    }
    return 0;
}
