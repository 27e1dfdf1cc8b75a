/* What the master says about itself: the text for Prometheus and the summary line of the log. Pure text out of numbers;
 * no I/O. The names are those that dashboards of the original know; what has no meaning here stays 0, so that a
 * dashboard shows a flat line, not a hole. */
#ifndef MC_MASTER_METRICS_H
#define MC_MASTER_METRICS_H

#include "base/bytes.h"
#include "store/core/core.h"

/* Rates between two looks. Zeroed = ready. */
struct mc_metrics_window {
    struct mc_core_statistics last;
    uint64_t last_ms;
    struct mc_metrics_rate { /* per second */
        double success, total;
    } put, get, exist, remove, lookup;
};
/* Computes the rates since the last move, and begins the next window. */
void mc_metrics_window_move(struct mc_metrics_window *window, const struct mc_core_statistics *now, uint64_t now_ms);

/* "Storage: 0 B / 30.00 GB (0.0%) | Keys: ..." without "Master Metrics: " and newline. */
void mc_metrics_summary(struct mc_buffer *out, const struct mc_core_statistics *statistics,
                        const struct mc_metrics_window *window);

struct mc_metrics_extra { /* what the core does not know */
    uint64_t resident_bytes, uptime_seconds, epoch, longest_turn_ns;
    const struct mc_core_accuser *accusers;
    size_t accuser_count;
    uint64_t tls_handshakes, tls_resumed, standbys;
    bool standbys_are_known; /* else there is no sample of it */
    uint64_t spans_sent, spans_dropped;
};
/* Names of labels, as answers have them too. */
const char *mc_metrics_reason(enum mc_gone why);
const char *mc_metrics_eviction(enum mc_core_eviction what);
const char *mc_metrics_hint(unsigned hint); /* enum mc_hint, from 1 on */
const char *mc_metrics_outcome(enum mc_core_hinted outcome);
void mc_metrics_misses(struct mc_buffer *out, const struct mc_core_statistics *statistics,
                       const struct mc_core_curve *curve);
/* Of tenants, by name; has_quotas: who has none puts nothing. */
void mc_metrics_tenants(struct mc_buffer *out, const struct mc_core_tenant *list, size_t count, uint64_t capacity,
                        bool has_quotas, const struct mc_core_statistics *statistics);
/* The exposition format, version 0.0.4. Sorts `segments`; those of one name become one sample. */
void mc_metrics_text(struct mc_buffer *out, const struct mc_core_statistics *statistics,
                     struct mc_core_segment *segments, size_t count, const struct mc_metrics_extra *extra);

#endif
