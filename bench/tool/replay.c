/* `mooncake_bench replay`: starts or joins a cluster, starts the workers, shows how far they are, and reports. */
#include "tool/bench.h"
#include "tool/process.h"
#include "tool/report.h"
#include "tool/shared.h"

#include "env/clock.h"
#include "env/meter.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SHOW_MS 200    /* between two looks at how far it is */
#define LOOK_MS 20     /* between two looks at the children */
#define READY_MS 60000 /* for all workers to join */
#define DEFAULT_CAPACITY (UINT64_C(3) << 30)
#define STOP_GRACE_MS 8000 /* for the calls in progress to end */

static const char usage[] =
    " TRACE [options]\nReplays a trace of requests as an inference engine would: looks up the longest cached "
    "prefix, gets its blocks, puts the missing ones,\n"
    "and checks every byte that it gets. Without --master it starts a cluster of its own on "
    "this machine and ends it afterwards.\n";

/* KV bytes of one token: 2 (key and value) * layers * KV heads * head size * 2 bytes. MLA models keep one latent vector
 * instead. */
static const struct {
    const char *name;
    uint64_t token_bytes;
} models[] = {
    {"demo", 256}, /* no model: a block of 128 KiB, so that the whole trace fits a small machine and a minute */
    {"qwen2.5-0.5b", 2 * 24 * 2 * 64 * 2},
    {"qwen2.5-7b", 2 * 28 * 4 * 128 * 2},
    {"llama3.2-1b", 2 * 16 * 8 * 64 * 2},
    {"llama3-8b", 2 * 32 * 8 * 128 * 2},
    {"llama3-70b", 2 * 80 * 8 * 128 * 2},
    {"mistral-7b", 2 * 32 * 8 * 128 * 2},
    {"qwen3-32b", 2 * 64 * 8 * 128 * 2},
    {"deepseek-v3", 61 * (512 + 64) * 2},
};

static const struct mc_option option_table[] = {
    ROW("model", TEXT, "demo", "sets the bytes of a block of 512 tokens; --model=list lists them", .section = "Work"),
    ROW("block_bytes", TEXT, "", "bytes of a block of 512 tokens (instead of a model)"),
    ROW("limit", INT, "0", "only the first so many requests; 0: all", .minimum = 0, .maximum = MC_TRACE_REQUESTS_MAX),
    ROW("duration", REAL, "0", "stops after so many seconds; 0: at the end of the trace", .minimum = 0,
        .maximum = 1000000),
    ROW("speed", TEXT, "max", "max, or a multiple of the trace's own clock: 1.0, 10"),
    ROW("batch", INT, "32", "blocks of one get or put call", .minimum = 1, .maximum = MC_REPLAY_BATCH_MAX),
    ROW("replicas", INT, "1", "replicas of each block", .minimum = 1, .maximum = 16),
    ROW("seed", INT, "1", "of the blocks' content", .minimum = 0, .maximum = INT64_MAX),
    ROW("verify", BOOL, "true", "compares every byte got with what was put"),
    ROW("corrupt", INT, "0", "stores one wrong byte in every so many blocks, to see the check fail; 0: none",
        .minimum = 0, .maximum = INT64_MAX),
    ROW("workers", INT, "2", "processes that replay", .minimum = 1, .maximum = MC_REPLAY_WORKERS_MAX,
        .section = "Workers"),
    ROW("threads", INT, "1", "threads of each", .minimum = 1, .maximum = MC_REPLAY_THREADS_MAX),
    ROW("paths", TEXT, "", "paths that may be used: local,shm,tcp; empty: all"),
    ROW("master", TEXT, "", "joins this cluster instead of starting one", .section = "Cluster"),
    ROW("metrics", TEXT, "", "with --master: host:port of its metrics page, for the evictions"),
    MC_BENCH_SECRETS,
    ROW("capacity", TEXT, "",
        "memory of all store nodes together; empty: 3GiB, or a third of what is free where that is less"),
    ROW("store_nodes", INT, "3", "processes that lend it", .minimum = 1, .maximum = MC_CLUSTER_NODES_MAX),
    ROW("node_weights", TEXT, "",
        "how the capacity is shared out, comma separated: 7x2,1x14 is two nodes of 7 parts and 14 of one; sets "
        "store_nodes; empty: all the same"),
    ROW("lease_ttl", TEXT, "", "default_kv_lease_ttl of the master"),
    ROW("master_binary", TEXT, "", "the mooncake_master to start; empty: the one beside this command, else on PATH"),
    ROW("logs", TEXT, "", "directory for the logs of all processes; empty: kept in memory, shown when something fails"),
    ROW("keep", BOOL, "false", "leaves the cluster running until Ctrl-C"),
    ROW("json", TEXT, "", "writes the results to this file; - is stdout", .section = "Output"),
    ROW("help", BOOL, "false", "prints this"),
};

struct replay {
    struct mc_options options;
    struct mc_replay_report told;
    struct mc_replay_view view;
    int shared_fd;
    struct mc_cluster cluster;
    struct mc_process workers[MC_REPLAY_WORKERS_MAX];
    uint32_t worker_count;
    uint64_t block_bytes;
    uint64_t parts[MC_CLUSTER_NODES_MAX]; /* of the capacity, for each node */
    unsigned node_count;
    double speed;
    struct mc_meter meter;
    FILE *out; /* for people: stdout, or stderr when stdout is for the JSON */
};

static void list_models(FILE *out)
{
    char text[32];
    fprintf(out, "model          a token   a block of %u tokens\n", MC_TRACE_BLOCK_TOKENS);
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++)
        fprintf(out, "%-14s %7" PRIu64 "   %s\n", models[i].name, models[i].token_bytes,
                mc_size_format(models[i].token_bytes * MC_TRACE_BLOCK_TOKENS, text, sizeof(text)));
}

static bool choose_block_bytes(struct replay *replay)
{
    const char *name = mc_options_text(&replay->options, "model");
    if (mc_bench_text(&replay->options, "block_bytes") != NULL)
        return mc_bench_size(&replay->options, "block_bytes", 1, &replay->block_bytes);
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++)
        if (strcmp(models[i].name, name) == 0) {
            replay->block_bytes = models[i].token_bytes * MC_TRACE_BLOCK_TOKENS;
            return true;
        }
    fprintf(stderr, "--model=%s: no such model. Choose one, or give --block_bytes:\n", name);
    list_models(stderr);
    return false;
}

static bool choose_speed(struct replay *replay)
{
    const char *text = mc_options_text(&replay->options, "speed");
    char *end = NULL;
    if (strcmp(text, "max") == 0)
        return true;
    replay->speed = strtod(text, &end);
    if (end != text && *end == '\0' && replay->speed > 0 && replay->speed <= 1e6)
        return true;
    return mc_bench_fail(false, "--speed=%s: must be max, or a number above 0 (1.0 is the trace's own clock)", text);
}

/* A number from the line of a file that begins with `name`; UINT64_MAX when there is none. */
static uint64_t number_in(const char *path, const char *name)
{
    char line[256];
    unsigned long long number = 0;
    uint64_t found = UINT64_MAX;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return UINT64_MAX;
    while (found == UINT64_MAX && fgets(line, sizeof(line), file) != NULL)
        if (strncmp(line, name, strlen(name)) == 0 && sscanf(line + strlen(name), " %llu", &number) == 1)
            found = number;
    fclose(file);
    return found;
}

static uint64_t default_capacity(void)
{
    uint64_t free_kib = number_in("/proc/meminfo", "MemAvailable:");
    uint64_t limit = number_in("/sys/fs/cgroup/memory.max", "");
    uint64_t memory = free_kib < UINT64_MAX / 1024 ? free_kib * 1024 : UINT64_MAX;
    uint64_t third = (limit < memory ? limit : memory) / 3;
    return third < DEFAULT_CAPACITY ? third >> 20 << 20 : DEFAULT_CAPACITY;
}

/* --node_weights, for now as the parts; without it all nodes weigh the same. */
static bool choose_weights(struct replay *replay)
{
    const char *text = mc_options_text(&replay->options, "node_weights"), *at = text;
    replay->node_count = 0;
    if (*text == '\0') {
        replay->node_count = (unsigned)mc_options_int(&replay->options, "store_nodes");
        for (unsigned i = 0; i < replay->node_count; i++)
            replay->parts[i] = 1;
        return true;
    }
    for (bool more = true; more;) {
        unsigned weight = 0, times = 1;
        int used = 0, tail = 0;
        if (sscanf(at, "%9u%n", &weight, &used) != 1 || weight == 0)
            break;
        if (sscanf(at + used, "x%9u%n", &times, &tail) == 1)
            used += tail;
        for (; times > 0 && replay->node_count < MC_CLUSTER_NODES_MAX; times--)
            replay->parts[replay->node_count++] = weight;
        more = at[used] == ',';
        at += used + more;
        if (times > 0 || (!more && *at != '\0'))
            break;
        if (!more)
            return true;
    }
    return mc_bench_fail(false, "--node_weights=%s: must be weights above 0 like 7x2,1x14, of at most %u nodes", text,
                         MC_CLUSTER_NODES_MAX);
}

/* The capacity by the weights; the least part. */
static uint64_t share_out(struct replay *replay)
{
    uint64_t sum = 0, least = UINT64_MAX;
    for (unsigned i = 0; i < replay->node_count; i++)
        sum += replay->parts[i];
    for (unsigned i = 0; i < replay->node_count; i++) {
        replay->parts[i] =
            (uint64_t)((double)replay->told.capacity / (double)sum * (double)replay->parts[i]) & ~4095ull;
        least = replay->parts[i] < least ? replay->parts[i] : least;
    }
    return least;
}

static bool check_settings(struct replay *replay)
{
    if (!choose_block_bytes(replay) || !choose_speed(replay))
        return false;
    if (!choose_weights(replay))
        return false;
    uint64_t nodes = replay->node_count;
    if (mc_bench_text(&replay->options, "capacity") == NULL)
        replay->told.capacity = default_capacity();
    else if (!mc_bench_size(&replay->options, "capacity", nodes << 20, &replay->told.capacity))
        return false;
    uint64_t batch = (uint64_t)mc_options_int(&replay->options, "batch");
    if (replay->block_bytes > MC_REPLAY_BUFFER_MAX / batch)
        return mc_bench_fail(false,
                             "--batch=%" PRIu64 ": blocks of %" PRIu64 " bytes make a batch of more than %" PRIu64
                             " bytes; choose a smaller one",
                             batch, replay->block_bytes, MC_REPLAY_BUFFER_MAX);
    if (mc_bench_text(&replay->options, "master") == NULL && share_out(replay) < replay->block_bytes) {
        fprintf(stderr,
                "--capacity: %" PRIu64 " bytes on %" PRIu64 " store node(s) are less than a block of %" PRIu64
                " bytes for each\n",
                replay->told.capacity, nodes, replay->block_bytes);
        return false;
    }
    return true;
}

/* "conversation_trace" of ".../conversation_trace.jsonl.gz". */
static void name_of(const char *path, char *name, size_t size)
{
    const char *slash = strrchr(path, '/');
    snprintf(name, size, "%.*s", (int)size - 1, slash != NULL ? slash + 1 : path);
    char *dot = strchr(name, '.');
    if (dot != NULL && dot != name)
        *dot = '\0';
}

static bool load(struct replay *replay)
{
    struct mc_trace trace;
    char why[256];
    if (mc_trace_load(replay->told.trace_path, (uint64_t)mc_options_int(&replay->options, "limit"), &trace, why,
                      sizeof(why)) != 0)
        return mc_bench_fail(false, "%s: %s", replay->told.trace_path, why);
    uint32_t workers = (uint32_t)mc_options_int(&replay->options, "workers");
    uint32_t threads = (uint32_t)mc_options_int(&replay->options, "threads");
    replay->shared_fd = mc_replay_share(&trace, workers * threads, &replay->view);
    mc_trace_free(&trace);
    if (replay->shared_fd < 0)
        return mc_bench_fail(false, "no shared memory for the trace: %s", strerror(errno));
    struct mc_replay_shared *shared = replay->view.shared;
    shared->worker_count = workers;
    shared->thread_count = threads;
    shared->batch = (uint32_t)mc_options_int(&replay->options, "batch");
    shared->replica_count = (uint32_t)mc_options_int(&replay->options, "replicas");
    shared->seed = (uint64_t)mc_options_int(&replay->options, "seed");
    shared->corrupt_every = (uint64_t)mc_options_int(&replay->options, "corrupt");
    shared->verify = mc_options_bool(&replay->options, "verify");
    shared->block_bytes = replay->block_bytes;
    shared->speed = replay->speed;
    bool sized = mc_bench_text(&replay->options, "block_bytes") != NULL;
    snprintf(shared->paths, sizeof(shared->paths), "%s", mc_options_text(&replay->options, "paths"));
    if (sized)
        snprintf(shared->model, sizeof(shared->model), "b%" PRIu64, replay->block_bytes);
    else
        snprintf(shared->model, sizeof(shared->model), "%s", mc_options_text(&replay->options, "model"));
    name_of(replay->told.trace_path, shared->trace_name, sizeof(shared->trace_name));
    return true;
}

static bool start_cluster(struct replay *replay)
{
    struct mc_replay_shared *shared = replay->view.shared;
    const char *master = mc_bench_text(&replay->options, "master");
    if (master != NULL) {
        snprintf(shared->master_address, sizeof(shared->master_address), "%s", master);
        snprintf(replay->cluster.metrics_address, sizeof(replay->cluster.metrics_address), "%s",
                 mc_options_text(&replay->options, "metrics"));
        return true;
    }
    struct mc_cluster_config config = {.master_binary = mc_bench_text(&replay->options, "master_binary"),
                                       .log_directory = mc_bench_text(&replay->options, "logs"),
                                       .lease_ttl = mc_bench_text(&replay->options, "lease_ttl"),
                                       .paths = mc_bench_text(&replay->options, "paths"),
                                       .capacity = replay->told.capacity,
                                       .parts = replay->parts,
                                       .node_count = replay->node_count};
    char text[32];
    fprintf(replay->out, "starting a master and %u store node(s) with %s together ...\n", config.node_count,
            mc_size_format(replay->told.capacity, text, sizeof(text)));
    fflush(replay->out);
    if (mc_cluster_start(&replay->cluster, &config) != 0)
        return false;
    replay->told.started = true;
    memcpy(shared->master_address, replay->cluster.master_address, sizeof(shared->master_address));
    fprintf(replay->out, "cluster is up: master %s, metrics http://%s/metrics\n", shared->master_address,
            replay->cluster.metrics_address);
    return true;
}

/* A worker that ended without having finished; NULL when there is none. */
static const char *lost_worker(struct replay *replay)
{
    for (uint32_t i = 0; i < replay->worker_count; i++) {
        struct mc_process *worker = &replay->workers[i];
        if (!mc_process_running(worker) && worker->status != 0)
            return worker->name;
    }
    return NULL;
}

static void show_lost(struct replay *replay)
{
    for (uint32_t i = 0; i < replay->worker_count; i++)
        if (replay->workers[i].ended && replay->workers[i].status != 0)
            mc_process_log_show(&replay->workers[i]);
    if (!replay->told.started) /* what went wrong at the start was shown there */
        return;
    if (replay->cluster.master.ended)
        mc_process_log_show(&replay->cluster.master);
    for (unsigned i = 0; i < replay->cluster.node_count; i++)
        if (replay->cluster.nodes[i].ended)
            mc_process_log_show(&replay->cluster.nodes[i]);
}

static bool start_workers(struct replay *replay)
{
    char fd[16], index[16], name[32];
    char *argv[] = {mc_self_path(), "worker", fd, index, NULL};
    snprintf(fd, sizeof(fd), "%d", replay->shared_fd);
    for (uint32_t i = 0; i < replay->view.shared->worker_count; i++) {
        snprintf(index, sizeof(index), "%" PRIu32, i);
        snprintf(name, sizeof(name), "worker-%" PRIu32, i + 1);
        if (mc_process_start(&replay->workers[i], name, argv, mc_bench_text(&replay->options, "logs"),
                             replay->shared_fd) != 0)
            return false;
        replay->worker_count++;
    }
    uint64_t deadline = mc_clock_ms() + READY_MS;
    for (uint32_t ready = 0; ready < replay->worker_count;) {
        if (atomic_load(&replay->view.shared->states[ready]) == MC_REPLAY_READY) {
            ready++;
            continue;
        }
        replay->told.lost = lost_worker(replay);
        if (replay->told.lost != NULL || mc_interrupted || mc_clock_ms() > deadline)
            return false;
        usleep(1000);
    }
    return true;
}

static bool workers_run(struct replay *replay)
{
    bool any = false;
    for (uint32_t i = 0; i < replay->worker_count; i++)
        any = mc_process_running(&replay->workers[i]) || any;
    return any;
}

static void show_progress(struct replay *replay, double seconds)
{
    struct mc_replay_counters sum;
    mc_replay_sum(&replay->view, &sum, NULL);
    double hits = sum.blocks > 0 ? 100.0 * (double)sum.hit_blocks / (double)sum.blocks : 0;
    mc_meter_at(&replay->meter, sum.requests);
    mc_meter_note(&replay->meter, "hits %.1f %%  in %.2f GB/s  out %.2f GB/s  wrong %" PRIu64, hits,
                  (double)sum.put_bytes / seconds / 1e9, (double)sum.got_bytes / seconds / 1e9, sum.wrong_bytes);
}

/* Runs until the trace or the time is over, something ends that should not, or the user interrupts. */
static void run(struct replay *replay)
{
    struct mc_replay_shared *shared = replay->view.shared;
    uint64_t start = mc_clock_ns();
    uint64_t next_ms = mc_clock_ms() + SHOW_MS;
    double duration = mc_options_real(&replay->options, "duration");
    mc_meter_begin(&replay->meter);
    mc_meter_step(&replay->meter, "", "requests", shared->request_count, duration);
    atomic_store(&shared->start_ns, start);
    while (workers_run(replay)) {
        double seconds = (double)(mc_clock_ns() - start) / 1e9;
        if (duration > 0 && seconds >= duration)
            replay->told.cut_short = true;
        if (replay->told.started && replay->told.lost == NULL)
            replay->told.lost = mc_cluster_lost(&replay->cluster);
        if (replay->told.lost == NULL)
            replay->told.lost = lost_worker(replay);
        if (replay->told.cut_short || mc_interrupted || replay->told.lost != NULL)
            break;
        if (mc_clock_ms() >= next_ms) {
            show_progress(replay, seconds);
            next_ms += SHOW_MS;
        }
        usleep(LOOK_MS * 1000);
    }
    atomic_store(&shared->stop, 1);
    uint64_t deadline = mc_clock_ms() + STOP_GRACE_MS;
    while (workers_run(replay) && mc_clock_ms() < deadline)
        usleep(2000);
    replay->told.seconds = (double)(mc_clock_ns() - start) / 1e9;
    if (replay->told.lost == NULL)
        replay->told.lost = lost_worker(replay);
    mc_meter_end(&replay->meter);
}

static void stop_workers(struct replay *replay)
{
    for (uint32_t i = 0; i < replay->worker_count; i++)
        mc_process_ask_to_end(&replay->workers[i]);
    for (uint32_t i = 0; i < replay->worker_count; i++)
        mc_process_reap(&replay->workers[i], 1000);
    replay->worker_count = 0;
}

static void keep_running(struct replay *replay)
{
    fprintf(replay->out,
            "\nThe cluster keeps running until Ctrl-C. Look at http://%s/metrics and http://%s/metrics/summary;\njoin "
            "it with --master=%s\n",
            replay->cluster.metrics_address, replay->cluster.metrics_address, replay->cluster.master_address);
    fflush(replay->out);
    while (!mc_interrupted && mc_cluster_lost(&replay->cluster) == NULL)
        usleep(100000);
}

static int replay_all(struct replay *replay)
{
    int rc = MC_BENCH_TROUBLE;
    if (!check_settings(replay) || !load(replay))
        return MC_BENCH_USAGE;
    mc_interrupt_catch();
    if (start_cluster(replay) && start_workers(replay)) {
        run(replay);
        replay->told.options = &replay->options;
        replay->told.metrics_address = replay->cluster.metrics_address;
        replay->told.node_count = replay->cluster.node_count;
        rc = mc_replay_print(&replay->told, &replay->view);
        if (replay->told.lost != NULL)
            show_lost(replay);
    } else {
        atomic_store(&replay->view.shared->stop, 1);
        show_lost(replay);
        rc = mc_interrupted ? MC_BENCH_INTERRUPTED : MC_BENCH_TROUBLE;
    }
    stop_workers(replay);
    if (replay->told.started && rc != MC_BENCH_TROUBLE && !mc_interrupted && mc_options_bool(&replay->options, "keep"))
        keep_running(replay);
    mc_cluster_stop(&replay->cluster);
    mc_replay_detach(&replay->view);
    close(replay->shared_fd);
    return rc;
}

int mc_bench_replay(int argc, char **argv)
{
    static struct replay replay = {.shared_fd = -1};
    int rc = MC_BENCH_USAGE;
    /* TRACE comes first; the options follow with their own argv[0]. */
    bool has_trace = argc > 1 && argv[1][0] != '-';
    if (has_trace) {
        replay.told.trace_path = argv[1];
        argv[1] = argv[0];
        argv++;
        argc--;
    }
    if (!mc_bench_options(&replay.options, option_table, sizeof(option_table) / sizeof(option_table[0]),
                          "mooncake_bench replay", usage, argc, argv, &rc))
        return rc;
    if (strcmp(mc_options_text(&replay.options, "model"), "list") == 0) {
        list_models(stdout);
        rc = MC_BENCH_OK;
    } else if (!has_trace) {
        fprintf(stderr, "mooncake_bench replay: the first argument must be a trace, for example "
                        "traces/conversation_trace.jsonl.gz\n");
    } else {
        replay.out = mc_bench_out(&replay.options);
        rc = replay_all(&replay);
    }
    mc_options_free(&replay.options);
    return rc;
}
