/* Runs one step of a measurement of the transfer engine: its threads, their clocks, what they compare. */
#include "tool/engine.h"

#include "env/clock.h"
#include "tool/bench.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define TELL_US 250000

struct run { /* what the threads of a step share */
    const struct mc_engine_side *side;
    const struct mc_engine_target *target;
    const struct mc_engine_step *step;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t warm; /* threads that have warmed up */
    bool is_started;
    _Atomic bool stop;
    _Atomic uint64_t bytes;
};

struct engine_worker {
    struct run *run;
    pthread_t thread;
    uint64_t first, span; /* its part of both buffers */
    uint64_t count;       /* batches so far, also of the warm-up */
    uint32_t *versions;   /* of each block of the part; verify only */
    uint8_t *read;        /* what a batch brought back; verify only */
    struct mc_transfer_item *items;
    struct mc_engine_result result;
};

bool mc_engine_step_fits(const struct mc_engine_step *step, uint64_t size)
{
    return step->block > 0 && step->block <= size / step->batch / step->threads;
}

/* ---- one batch ---- */

static void aim(struct engine_worker *worker)
{
    const struct run *run = worker->run;
    const struct mc_engine_step *step = run->step;
    uint64_t groups = worker->span / (step->block * step->batch), group = step->is_fixed ? 0 : worker->count % groups;
    for (uint32_t i = 0; i < step->batch; i++) {
        uint64_t offset = worker->first + (group * step->batch + i) * step->block;
        worker->items[i] =
            (struct mc_transfer_item){run->side->buffer + offset, run->target->address + offset, step->block};
    }
}

static uint64_t offset_of(const struct engine_worker *worker, uint32_t i)
{
    return worker->items[i].remote - worker->run->target->address;
}

static uint32_t *version_of(struct engine_worker *worker, uint32_t i)
{
    return &worker->versions[(offset_of(worker, i) - worker->first) / worker->run->step->block];
}

/* Before a write the blocks get a version that they never had; before a read what must not stay. */
static void prepare(struct engine_worker *worker, enum mc_transfer_opcode opcode)
{
    for (uint32_t i = 0; i < worker->run->step->batch; i++) {
        if (opcode == MC_TRANSFER_READ)
            memset(worker->items[i].local, 0xee, worker->items[i].length);
        else
            mc_engine_pattern(worker->items[i].local, offset_of(worker, i), worker->items[i].length,
                              ++*version_of(worker, i));
    }
}

/* After a read: is it what must be there? After a write: read back, is it? */
static int compare(struct engine_worker *worker, enum mc_transfer_opcode opcode)
{
    const struct run *run = worker->run;
    const struct mc_engine_step *step = run->step;
    for (uint32_t i = 0; i < step->batch; i++) {
        uint8_t *expected = worker->read, *found = worker->items[i].local;
        if (opcode == MC_TRANSFER_WRITE) { /* what was written is what is expected */
            struct mc_transfer_item back = worker->items[i];
            back.local = worker->read;
            memset(worker->read, 0xee, step->block);
            int rc = mc_transfer_run(run->side->engine, run->target->name, MC_TRANSFER_READ, &back, 1, NULL);
            if (rc < 0)
                return rc;
        } else {
            mc_engine_pattern(expected, offset_of(worker, i), step->block, *version_of(worker, i));
        }
        worker->result.wrong += memcmp(expected, found, step->block) != 0;
    }
    return 0;
}

static int one_batch(struct engine_worker *worker, bool is_counted)
{
    const struct run *run = worker->run;
    const struct mc_engine_step *step = run->step;
    bool is_write = step->operation == MC_ENGINE_WRITE || (step->operation == MC_ENGINE_MIX && worker->count % 2 == 0);
    enum mc_transfer_opcode opcode = is_write ? MC_TRANSFER_WRITE : MC_TRANSFER_READ;
    aim(worker);
    if (step->verify)
        prepare(worker, opcode);
    uint64_t start_ns = mc_clock_ns();
    int rc = mc_transfer_run(run->side->engine, run->target->name, opcode, worker->items, step->batch, NULL);
    uint64_t took_ns = mc_clock_ns() - start_ns, bytes = step->block * step->batch;
    worker->count++;
    if (rc == 0 && is_counted) {
        mc_histogram_add(&worker->result.times, took_ns);
        worker->result.batches++;
        worker->result.bytes += bytes;
        worker->result.instant_gbps += (double)bytes / (double)(took_ns > 0 ? took_ns : 1);
        atomic_fetch_add_explicit(&worker->run->bytes, bytes, memory_order_relaxed);
    }
    if (rc == 0 && step->verify)
        rc = compare(worker, opcode);
    return rc;
}

static bool goes_on(const struct engine_worker *worker)
{
    return worker->result.error == 0 && !worker->run->stop && !mc_interrupted;
}

/* Until all are warm and the clock has started. */
static void wait_for_start(struct run *run)
{
    pthread_mutex_lock(&run->lock);
    run->warm++;
    pthread_cond_broadcast(&run->changed);
    while (!run->is_started)
        pthread_cond_wait(&run->changed, &run->lock);
    pthread_mutex_unlock(&run->lock);
}

static void *work(void *context)
{
    struct engine_worker *worker = context;
    uint64_t until_ns = mc_clock_ns() + (uint64_t)(worker->run->step->warmup_seconds * 1e9);
    do
        worker->result.error = one_batch(worker, false);
    while (goes_on(worker) && mc_clock_ns() < until_ns);
    wait_for_start(worker->run);
    do /* each at least one, however short the step and busy the machine */
        worker->result.error = worker->result.error != 0 ? worker->result.error : one_batch(worker, true);
    while (goes_on(worker));
    worker->result.failed = worker->result.error != 0;
    if (worker->result.failed > 0)
        worker->run->stop = true;
    return NULL;
}

/* ---- the step ---- */

static double cpu_of(pid_t pid)
{
    clockid_t clock;
    struct timespec used;
    if (pid == 0 || clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &used) != 0)
        return -1;
    return (double)used.tv_sec + (double)used.tv_nsec / 1e9;
}

static void worker_free(struct engine_worker *worker)
{
    free(worker->versions);
    free(worker->items);
    if (worker->read != NULL) /* only with its run */
        (void)munmap(worker->read, worker->run->step->block);
}

static bool worker_init(struct engine_worker *worker, struct run *run, uint32_t number)
{
    const struct mc_engine_step *step = run->step;
    uint64_t group = step->block * step->batch;
    worker->run = run;
    worker->span = run->side->size / step->threads / group * group;
    worker->first = number * worker->span;
    worker->items = calloc(step->batch, sizeof(*worker->items));
    if (!step->verify)
        return worker->items != NULL;
    worker->versions = calloc(worker->span / step->block, sizeof(*worker->versions));
    worker->read = mc_bench_memory(step->block);
    return worker->items != NULL && worker->versions != NULL && worker->read != NULL;
}

/* So that the target holds version 0 everywhere. */
static int fill_target(const struct mc_engine_side *side, struct mc_engine_target *target)
{
    mc_engine_pattern(side->buffer, 0, side->size, 0);
    struct mc_transfer_item all = {side->buffer, target->address, side->size};
    int rc = target->is_filled ? 0 : mc_transfer_run(side->engine, target->name, MC_TRANSFER_WRITE, &all, 1, NULL);
    target->is_filled = false; /* not after this step */
    return rc;
}

static void merge(struct mc_engine_result *into, const struct mc_engine_result *from)
{
    into->batches += from->batches;
    into->bytes += from->bytes;
    into->failed += from->failed;
    into->wrong += from->wrong;
    into->instant_gbps += from->instant_gbps;
    into->error = into->error == 0 ? from->error : into->error;
    mc_histogram_merge(&into->times, &from->times);
}

static void watch(struct run *run, struct mc_meter *meter)
{
    mc_meter_step(meter, run->step->title, "B", 0, run->step->seconds);
    uint64_t start_ns = mc_clock_ns(), length_ns = (uint64_t)(run->step->seconds * 1e9), past_ns = 0;
    while (past_ns < length_ns && !run->stop && !mc_interrupted) {
        uint64_t left_us = (length_ns - past_ns) / 1000 + 1;
        mc_meter_at(meter, run->bytes);
        usleep((useconds_t)(left_us < TELL_US ? left_us : TELL_US));
        past_ns = mc_clock_ns() - start_ns;
    }
    run->stop = true;
}

static void start_clock(struct run *run, uint32_t threads)
{
    pthread_mutex_lock(&run->lock);
    while (run->warm < threads)
        pthread_cond_wait(&run->changed, &run->lock);
    run->is_started = true;
    pthread_cond_broadcast(&run->changed);
    pthread_mutex_unlock(&run->lock);
}

/* Runs so many threads, of which all are there and none has begun. */
static int run_threads(struct run *run, struct engine_worker *workers, struct mc_meter *meter,
                       struct mc_engine_result *result)
{
    struct mc_transfer_counters before, after;
    uint32_t started = 0;
    while (started < run->step->threads && pthread_create(&workers[started].thread, NULL, work, &workers[started]) == 0)
        started++;
    run->stop = started < run->step->threads;
    start_clock(run, started);
    mc_transfer_counters(run->side->engine, &before);
    double cpu = cpu_of(getpid()), target_cpu = cpu_of(run->target->pid);
    uint64_t start_ns = mc_clock_ns();
    watch(run, meter);
    for (uint32_t i = 0; i < started; i++) { /* each ends its last batch, which counts */
        pthread_join(workers[i].thread, NULL);
        merge(result, &workers[i].result);
    }
    result->seconds = (double)(mc_clock_ns() - start_ns) / 1e9;
    result->cpu_seconds = cpu_of(getpid()) - cpu;
    result->target_cpu_seconds = target_cpu < 0 ? -1 : cpu_of(run->target->pid) - target_cpu;
    mc_transfer_counters(run->side->engine, &after);
    for (int path = 0; path < MC_TRANSFER_PATHS; path++)
        result->path_bytes[path] = after.bytes[path] - before.bytes[path];
    if (result->batches > 0)
        result->instant_gbps /= (double)result->batches;
    return started < run->step->threads ? MC_TRANSFER_ERR_MEMORY : 0;
}

int mc_engine_run(const struct mc_engine_side *side, struct mc_engine_target *target, const struct mc_engine_step *step,
                  struct mc_meter *meter, struct mc_engine_result *result)
{
    struct run run = {.side = side, .target = target, .step = step};
    struct engine_worker *workers = calloc(step->threads, sizeof(*workers));
    int rc = workers == NULL ? MC_TRANSFER_ERR_MEMORY : 0;
    memset(result, 0, sizeof(*result));
    for (uint32_t i = 0; rc == 0 && i < step->threads; i++)
        rc = worker_init(&workers[i], &run, i) ? 0 : MC_TRANSFER_ERR_MEMORY;
    if (rc == 0 && step->verify)
        rc = fill_target(side, target);
    if (rc == 0) {
        pthread_mutex_init(&run.lock, NULL);
        pthread_cond_init(&run.changed, NULL);
        rc = run_threads(&run, workers, meter, result);
        pthread_cond_destroy(&run.changed);
        pthread_mutex_destroy(&run.lock);
    }
    for (uint32_t i = 0; workers != NULL && i < step->threads; i++)
        worker_free(&workers[i]);
    free(workers);
    return rc;
}
