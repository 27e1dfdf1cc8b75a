/* What the replay's parent and its workers share: one memfd that holds the settings, the trace, the number of the next
 * request and the results of every worker thread. The parent writes settings and trace before it starts a worker;
 * afterwards each field has one writer (`next_request` many, by atomic
 * addition). */
#ifndef MC_TOOL_SHARED_H
#define MC_TOOL_SHARED_H

#include "tool/histogram.h"
#include "tool/trace.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define MC_REPLAY_WORKERS_MAX 64
#define MC_REPLAY_THREADS_MAX 64
#define MC_REPLAY_BATCH_MAX 1024
#define MC_REPLAY_BUFFER_MAX (UINT64_C(1) << 34) /* bytes of one thread's batch buffer */
#define MC_REPLAY_ERROR_KINDS 16
#define MC_REPLAY_NAME_MAX 64

/* Counters of a worker thread. */
#define MC_REPLAY_COUNTERS(X)                                                                                          \
    X(requests)   /* done */                                                                                           \
    X(blocks)     /* that they refer to */                                                                             \
    X(hit_blocks) /* of their cached prefixes, got */                                                                  \
    X(tokens)                                                                                                          \
    X(hit_tokens)                                                                                                      \
    X(got_blocks) /* also those behind a block that was gone */                                                        \
    X(got_bytes)                                                                                                       \
    X(put_blocks)                                                                                                      \
    X(put_bytes)                                                                                                       \
    X(gone_blocks) /* there at the lookup, evicted before the get: computed again */                                   \
    X(failed_lookups)                                                                                                  \
    X(failed_gets) /* blocks whose get failed for another reason */                                                    \
    X(failed_puts) /* blocks */                                                                                        \
    X(wrong_blocks)                                                                                                    \
    X(wrong_bytes)                                                                                                     \
    X(checked_bytes)                                                                                                   \
    X(check_ns)                                                                                                        \
    X(generate_ns)   /* stands for the prefill */                                                                      \
    X(late_requests) /* started more than 10 ms behind the trace's clock */

struct mc_replay_counters {
#define MC_REPLAY_FIELD(name) uint64_t name;
    MC_REPLAY_COUNTERS(MC_REPLAY_FIELD)
#undef MC_REPLAY_FIELD
};

enum mc_replay_call { MC_REPLAY_LOOKUP, MC_REPLAY_GET, MC_REPLAY_PUT, MC_REPLAY_CALLS };

struct mc_replay_stats {
#define MC_REPLAY_FIELD(name) _Atomic uint64_t name;
    MC_REPLAY_COUNTERS(MC_REPLAY_FIELD)
#undef MC_REPLAY_FIELD
    struct {
        _Atomic int code;
        _Atomic uint64_t count;
    } errors[MC_REPLAY_ERROR_KINDS];
    struct mc_histogram calls[MC_REPLAY_CALLS]; /* ns per call of the library */
};

enum mc_replay_state { MC_REPLAY_STARTING, MC_REPLAY_READY, MC_REPLAY_DONE };

struct mc_replay_shared {
    uint64_t size; /* of the whole memfd */
    uint64_t seed, block_bytes, block_count, request_count;
    double speed;           /* of the trace's clock; 0 = as fast as possible */
    uint64_t corrupt_every; /* every so many puts store one wrong byte; 0 = none. Shows that the check can fail. */
    uint32_t worker_count, thread_count, batch, replica_count;
    bool verify;
    char master_address[256], paths[64], model[MC_REPLAY_NAME_MAX], trace_name[MC_REPLAY_NAME_MAX];
    _Atomic uint64_t next_request;
    _Atomic uint64_t start_ns; /* 0 until all workers are ready */
    _Atomic int stop;
    _Atomic int states[MC_REPLAY_WORKERS_MAX];
    _Atomic uint64_t put_number; /* for corrupt_every */
    /* Then: struct mc_replay_stats[worker_count * thread_count], struct mc_trace_request[request_count],
     * u64[block_count]. */
};

struct mc_replay_view { /* pointers into the memfd */
    struct mc_replay_shared *shared;
    struct mc_replay_stats *stats;
    struct mc_trace trace;
};

/* Makes the memfd for a trace and copies it there. Descriptor, or -1 with errno. */
int mc_replay_share(const struct mc_trace *trace, uint32_t stats_count, struct mc_replay_view *view);
/* Maps the one that was inherited. 0 or -1. */
int mc_replay_attach(int fd, struct mc_replay_view *view);
void mc_replay_detach(struct mc_replay_view *view);

/* Adds up the counters of all threads; also their MC_REPLAY_CALLS histograms when they are not NULL. */
void mc_replay_sum(const struct mc_replay_view *view, struct mc_replay_counters *sum, struct mc_histogram *calls);

/* Bytes of a block of so many tokens; at least 1. */
uint64_t mc_replay_bytes(uint64_t block_bytes, uint32_t tokens);

#endif
