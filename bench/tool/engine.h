/* Measuring the transfer engine: what `mooncake_bench engine` and `transfer_engine_bench` share.
 *
 * Both sides have one buffer of the same size. Thread t of a step works in its own part of both, so no two transfers
 * touch the same bytes, and each byte's place in the target is its place in the local buffer.
 *
 * Invariant of --verify: a byte of the target is what mc_engine_pattern says for its offset and a version that the
 * initiator chose (0: what a target fills its buffer with before it says its name). */
#ifndef MC_TOOL_ENGINE_H
#define MC_TOOL_ENGINE_H

#include "env/meter.h"
#include "tool/histogram.h"
#include "tool/process.h"

#include "mooncake_engine.h"

#define MC_ENGINE_THREADS_MAX 256
#define MC_ENGINE_BATCH_MAX 65536

enum mc_engine_memory { MC_ENGINE_PAGES, MC_ENGINE_HUGE, MC_ENGINE_ALLOCATED };

struct mc_engine_side { /* one engine with its buffer; zeroed = nothing */
    struct mc_transfer_engine *engine;
    uint8_t *buffer;
    uint64_t size;
    enum mc_engine_memory memory;
};

/* Opens the engine, makes, touches and registers the buffer. 0, or negative with a line on stderr; close in both cases.
 */
int mc_engine_side_open(struct mc_engine_side *side, const struct mc_transfer_config *config, uint64_t size,
                        enum mc_engine_memory memory);
void mc_engine_side_close(struct mc_engine_side *side);

void mc_engine_pattern(uint8_t *bytes, uint64_t offset, uint64_t length, uint32_t version);

/* Serves until SIGTERM or SIGINT: prints "target NAME" when it is ready. An exit code. */
int mc_engine_serve(const struct mc_transfer_config *config, uint64_t size, enum mc_engine_memory memory);

enum mc_engine_operation { MC_ENGINE_READ, MC_ENGINE_WRITE, MC_ENGINE_MIX };

struct mc_engine_step {
    enum mc_engine_operation operation;
    uint64_t block;
    uint32_t batch, threads;
    double seconds, warmup_seconds;
    bool is_fixed; /* each thread moves the same blocks again and again, as the original's command does */
    bool verify;
    const char *title; /* for who waits */
};

struct mc_engine_target {
    const char *name;
    uint64_t address; /* where its buffer begins */
    pid_t pid;        /* 0: not of this machine, or the caller's own process */
    bool is_filled;   /* its buffer is known to be of version 0 */
};

struct mc_engine_result {
    double seconds;
    uint64_t batches, bytes, failed, wrong;
    double instant_gbps; /* mean over the batches of each one's own rate */
    int error;           /* of the first batch that failed */
    uint64_t path_bytes[MC_TRANSFER_PATHS];
    double cpu_seconds, target_cpu_seconds; /* target: negative when it cannot be seen */
    struct mc_histogram times;              /* ns of a batch */
};

/* Does the step fit the buffer? */
bool mc_engine_step_fits(const struct mc_engine_step *step, uint64_t size);
/* Runs it, and says in meter how far it is. Ends early after the first failure or when mc_interrupted is set. 0, or
 * negative: it could not start. */
int mc_engine_run(const struct mc_engine_side *side, struct mc_engine_target *target, const struct mc_engine_step *step,
                  struct mc_meter *meter, struct mc_engine_result *result);

const char *mc_engine_operation_name(enum mc_engine_operation operation);
/* "read", "write", "mix"; false when it is none of them. */
bool mc_engine_operation_parse(const char *text, enum mc_engine_operation *operation);
/* What a path is called. */
const char *mc_engine_path_name(int path);
/* The path that moved most; -1: none did. */
int mc_engine_main_path(const struct mc_engine_result *result);

#endif
