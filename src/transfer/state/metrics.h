/* What an engine has moved, by peer and path: counters that the transfers' threads add to without a lock.
 *
 * Invariant: there are at most MC_METRICS_PEERS_MAX peers with counters of their own. Others, and those that had to
 * make room, are added up under the name "other", so sums never fall. A tally that a peer holds is not given to
 * another. */
#ifndef MC_TRANSFER_METRICS_H
#define MC_TRANSFER_METRICS_H

#include "base/bytes.h"
#include "mooncake_engine.h"

#include <stdatomic.h>

#define MC_METRICS_PEERS_MAX 256u
#define MC_METRICS_BUCKETS 25u                        /* bucket i: at most 1.024 us << i, up to 17 s; then the rest */
#define MC_METRICS_PATH_NONE ((int)MC_TRANSFER_PATHS) /* the peer was not reached at all */
#define MC_METRICS_PATHS ((int)MC_TRANSFER_PATHS + 1)

enum mc_metrics_error {
#define MC_METRICS_ERROR_ENUM(name, value, text) MC_METRICS_ERROR_##name,
    MC_TRANSFER_ERROR_MAP(MC_METRICS_ERROR_ENUM)
#undef MC_METRICS_ERROR_ENUM
        MC_METRICS_ERRORS
};

struct mc_tally { /* of one peer */
    const char *peer;
    bool is_held;                                                              /* a peer points to it; engine->lock */
    _Atomic uint64_t bytes[MC_TRANSFER_PATHS][2], items[MC_TRANSFER_PATHS][2]; /* by opcode */
    _Atomic uint64_t batches[MC_TRANSFER_PATHS][MC_METRICS_BUCKETS + 1], batches_ns[MC_TRANSFER_PATHS];
    _Atomic uint64_t errors[MC_TRANSFER_PATHS + 1][MC_METRICS_ERRORS]; /* batches that failed */
    _Atomic uint64_t checks[MC_TRANSFER_PATHS][2]; /* batches that were compared by checksum; that differed */
};

struct mc_metrics { /* zeroed = empty */
    struct mc_tally *tallies[MC_METRICS_PEERS_MAX];
    size_t count;
    struct mc_tally other;
    uint64_t report_ms, report_next_ms; /* of the line in the log: 0 = none */
    struct mc_tally *reported;          /* the sums as of then */
};

/* The counters of that peer, held until mc_metrics_release; those of "other" when there is no room. */
struct mc_tally *mc_metrics_hold(struct mc_metrics *metrics, const char *peer);
void mc_metrics_release(struct mc_metrics *metrics, struct mc_tally *tally);
void mc_metrics_free(struct mc_metrics *metrics);

/* A batch that was moved. Any thread. */
void mc_tally_add(struct mc_tally *tally, int path, enum mc_transfer_opcode opcode, uint64_t bytes, uint64_t items,
                  uint64_t duration_ns);
/* A batch that was not; code: a negative enum mc_transfer_error. */
void mc_tally_fail(struct mc_tally *tally, int path, int code);
/* A batch whose checksums were compared. */
void mc_tally_check(struct mc_tally *tally, int path, bool is_wrong);
/* Adds all peers' up. */
void mc_metrics_sum(const struct mc_metrics *metrics, struct mc_tally *sum);

/* Upper bound of the latency, in seconds, that this part (0..1) of the batches of `now` and not of `before` had; 0 when
 * there are none. */
double mc_metrics_quantile(const struct mc_tally *now, const struct mc_tally *before, double part);

struct mc_transfer_engine;
/* The line in the log, every MC_TE_METRIC_INTERVAL_SECONDS when MC_TE_METRIC is on. On the service thread. */
void mc_metrics_report(struct mc_transfer_engine *engine);
void mc_metrics_report_init(struct mc_metrics *metrics);

#endif
