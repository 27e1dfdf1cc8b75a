/* `mooncake_bench engine`: the transfer engine between two processes, in the columns of the original's tebench. */
#include "tool/engine.h"

#include "base/variables.h"
#include "env/clock.h"
#include "env/log.h"
#include "tool/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIST_MAX 32
#define START_MS 30000u
#define END_MS 2000u

static const struct mc_option option_table[] = {
    ROW("operation", TEXT, "write,read", "read, write, mix (in turn); comma separated", .section = "Work"),
    ROW("sizes", TEXT, "4K,64K,1M,16M,64M", "bytes of a block, comma separated"),
    ROW("batches", TEXT, "1", "blocks of one transfer, comma separated"),
    ROW("threads", TEXT, "1", "threads that transfer at the same time, comma separated"),
    ROW("seconds", REAL, "1", "of each step", .minimum = 0, .maximum = 86400),
    ROW("warmup", REAL, "0.2", "seconds before its clock starts", .minimum = 0, .maximum = 3600),
    ROW("total", TEXT, "512M", "the buffer on each side, over which blocks rotate"),
    ROW("memory", TEXT, "pages", "of the buffers: small pages, huge ones, or the engine's own",
        .choices = "pages|huge|engine"),
    ROW("verify", BOOL, "false", "compares every byte; times then hold less"),
    ROW("path", TEXT, "auto", "local: one process; host, tcp, rdma: an error if another is used",
        .choices = "auto|local|host|tcp|rdma"),
    ROW("target", TEXT, "", "name of an engine that was started with --mode=target; empty: starts one here",
        .section = "Processes"),
    ROW("mode", TEXT, "initiator", "target: says its name and serves until it is ended", .choices = "initiator|target"),
    ROW("local_name", TEXT, "127.0.0.1", "as initialize() takes it: the host, or with a metadata server the name"),
    ROW("metadata", TEXT, "P2PHANDSHAKE", "metadata server"),
    ROW("protocol", TEXT, "tcp", "tcp or rdma"),
    ROW("device_name", TEXT, "", "RDMA devices"),
    MC_BENCH_SECRETS,
    ROW("json", TEXT, "", "writes the results to this file; - is stdout", .section = "Output"),
    ROW("help", BOOL, "false", "prints this"),
};

struct bench {
    struct mc_options options;
    struct mc_engine_side side, near_target; /* near_target: --path=local */
    struct mc_process process;
    struct mc_engine_target target;
    char target_name[MC_ADDRESS_SIZE];
    uint64_t total, sizes[LIST_MAX], batches[LIST_MAX], threads[LIST_MAX], operations[LIST_MAX];
    uint32_t size_count, batch_count, thread_count, operation_count;
    enum mc_engine_memory memory;
    const char *path;
    FILE *out;
    struct mc_meter meter;
    struct mc_buffer document;
    struct mc_json_writer json;
    uint32_t number, number_max;
    int rc;
};

/* ---- options ---- */

static bool take_operation(const char *word, uint64_t *value)
{
    enum mc_engine_operation operation;
    bool is_good = mc_engine_operation_parse(word, &operation);
    *value = is_good ? operation : 0;
    return is_good;
}

static bool take_list(const struct mc_options *options, const char *name, bool (*take)(const char *, uint64_t *),
                      uint64_t least, uint64_t most, uint64_t *list, uint32_t *count)
{
    char copy[512], *rest = copy, *word;
    snprintf(copy, sizeof(copy), "%s", mc_options_text(options, name));
    for (*count = 0; (word = strsep(&rest, ",")) != NULL; (*count)++) {
        if (*count == LIST_MAX || !take(word, &list[*count]) || list[*count] < least || list[*count] > most)
            return mc_bench_fail(false, "--%s=%s: '%s' is not one of up to %d that can be", name,
                                 mc_options_text(options, name), word, LIST_MAX);
    }
    return true;
}

static bool take_options(struct bench *bench)
{
    const struct mc_options *options = &bench->options;
    const char *memory = mc_options_text(options, "memory");
    bench->memory = strcmp(memory, "huge") == 0     ? MC_ENGINE_HUGE
                    : strcmp(memory, "engine") == 0 ? MC_ENGINE_ALLOCATED
                                                    : MC_ENGINE_PAGES;
    bench->path = mc_options_text(options, "path");
    if (strcmp(bench->path, "local") == 0 && mc_options_text(options, "target")[0] != 0)
        return mc_bench_fail(false, "--path=local: the target is this process, --target can name no other");
    return mc_bench_size(options, "total", 4096, &bench->total) &&
           take_list(options, "sizes", mc_size_parse, 1, UINT64_C(1) << 50, bench->sizes, &bench->size_count) &&
           take_list(options, "batches", mc_size_parse, 1, MC_ENGINE_BATCH_MAX, bench->batches, &bench->batch_count) &&
           take_list(options, "threads", mc_size_parse, 1, MC_ENGINE_THREADS_MAX, bench->threads,
                     &bench->thread_count) &&
           take_list(options, "operation", take_operation, 0, MC_ENGINE_MIX, bench->operations,
                     &bench->operation_count);
}

/* What the engine reads when it is opened. */
static void set_path(const char *path)
{
    if (strcmp(path, "tcp") == 0)
        (void)setenv("MC_FORCE_TCP", "1", 1);
    else if (strcmp(path, "auto") != 0)
        (void)unsetenv("MC_FORCE_TCP");
    if (strcmp(path, "rdma") == 0) {
        (void)setenv("MC_SAME_PROCESS", "0", 1);
        (void)setenv("MC_SAME_HOST", "0", 1);
    }
}

static struct mc_transfer_config config_of(const struct mc_options *options)
{
    return (struct mc_transfer_config){.local_name = mc_options_text(options, "local_name"),
                                       .metadata_server = mc_options_text(options, "metadata"),
                                       .protocol = strcmp(mc_options_text(options, "path"), "rdma") == 0
                                                       ? "rdma"
                                                       : mc_options_text(options, "protocol"),
                                       .device_name = mc_options_text(options, "device_name")};
}

/* ---- the target ---- */

static int start_process(struct bench *bench)
{
    static const char *const handed[] = {"memory", "path", "metadata", "protocol", "device_name"};
    enum { HANDED = sizeof(handed) / sizeof(handed[0]) };
    const struct mc_options *options = &bench->options;
    char total[64], local[MC_ADDRESS_SIZE + 32], words[HANDED][600];
    char *argv[HANDED + 6] = {mc_self_path(), "engine", "--mode=target", total, local};
    bool is_named = strcmp(mc_options_text(options, "metadata"), "P2PHANDSHAKE") != 0;
    snprintf(total, sizeof(total), "--total=%llu", (unsigned long long)bench->total);
    snprintf(local, sizeof(local), "--local_name=%.200s%s", mc_options_text(options, "local_name"),
             is_named ? "-target" : "");
    for (unsigned i = 0; i < HANDED; i++) {
        snprintf(words[i], sizeof(words[i]), "--%s=%s", handed[i], mc_options_text(options, handed[i]));
        argv[5 + i] = words[i];
    }
    if (mc_process_start(&bench->process, "target", argv, NULL, -1) != 0)
        return -1;
    uint64_t until_ms = mc_clock_ms() + START_MS + bench->total / 1000000;
    if (!mc_process_await(&bench->process, "target ", bench->target_name, sizeof(bench->target_name), until_ms)) {
        fprintf(stderr, "the target does not start\n");
        mc_process_log_show(&bench->process);
        return -1;
    }
    bench->target.pid = bench->process.pid;
    return 0;
}

/* 0 when there is a target, started here or not, and its buffer is known. */
static int find_target(struct bench *bench, const struct mc_transfer_config *config)
{
    const char *name = mc_options_text(&bench->options, "target");
    int rc = 0;
    if (strcmp(bench->path, "local") == 0) {
        struct mc_transfer_config other = *config;
        char named[MC_ADDRESS_SIZE + 32];
        snprintf(named, sizeof(named), "%.200s-target", config->local_name);
        if (strcmp(config->metadata_server, "P2PHANDSHAKE") != 0)
            other.local_name = named;
        rc = mc_engine_side_open(&bench->near_target, &other, bench->total, bench->memory);
        if (rc == 0)
            snprintf(bench->target_name, sizeof(bench->target_name), "%s", mc_transfer_name(bench->near_target.engine));
    } else if (name[0] == 0) {
        rc = start_process(bench);
    } else {
        snprintf(bench->target_name, sizeof(bench->target_name), "%s", name);
    }
    if (rc == 0)
        rc = mc_engine_side_open(&bench->side, config, bench->total, bench->memory);
    if (rc < 0)
        return rc;
    bench->target.name = bench->target_name;
    bench->target.is_filled = name[0] == 0;
    bench->target.address = mc_transfer_first_address(bench->side.engine, bench->target_name);
    if (bench->target.address != 0)
        return 0;
    return mc_bench_fail(-1, "%s cannot be reached, or has no memory registered", bench->target_name);
}

/* ---- telling ---- */

static double per_gb(double seconds, const struct mc_engine_result *result, bool verify)
{
    return seconds < 0 || verify || result->bytes == 0 ? -1 : seconds / ((double)result->bytes / 1e9);
}

static void show_number(FILE *out, int width, int digits, double number)
{
    if (number < 0)
        fprintf(out, " %*s", width, "-");
    else
        fprintf(out, " %*.*f", width, digits, number);
}

static void show_head(FILE *out)
{
    fprintf(out, "%-5s %12s %6s %7s %10s %13s %12s %11s %11s %12s  %-5s %8s %8s\n", "", "BlkSize (B)", "Batch",
            "Threads", "BW (GB/s)", "Avg Inst GB/s", "Avg Lat (us)", "Avg Tx (us)", "P99 Tx (us)", "P999 Tx (us)",
            "Path", "CPU s/GB", "target's");
}

static double latency_us(const struct mc_engine_step *step, const struct mc_engine_result *result)
{
    return result->batches == 0 ? -1 : result->seconds * 1e6 * step->threads / (double)result->batches;
}

static double mean_us(const struct mc_histogram *times)
{
    return times->count == 0 ? -1 : (double)times->sum / (double)times->count / 1e3;
}

static void show(const struct bench *bench, const struct mc_engine_step *step, const struct mc_engine_result *result)
{
    FILE *out = bench->out;
    fprintf(out, "%-5s %12llu %6u %7u", mc_engine_operation_name(step->operation), (unsigned long long)step->block,
            step->batch, step->threads);
    show_number(out, 10, 3, (double)result->bytes / 1e9 / result->seconds);
    show_number(out, 13, 3, result->instant_gbps);
    show_number(out, 12, 1, latency_us(step, result));
    show_number(out, 11, 1, mean_us(&result->times));
    show_number(out, 11, 1, (double)mc_histogram_quantile(&result->times, 0.99) / 1e3);
    show_number(out, 12, 1, (double)mc_histogram_quantile(&result->times, 0.999) / 1e3);
    fprintf(out, "  %-5s", mc_engine_path_name(mc_engine_main_path(result)));
    show_number(out, 8, 3, per_gb(result->cpu_seconds, result, step->verify));
    show_number(out, 8, 3, per_gb(result->target_cpu_seconds, result, step->verify));
    fprintf(out, "\n");
    fflush(out);
}

/* Below 0: there is none. */
static void add_real_or_null(struct mc_json_writer *json, const char *name, double number)
{
    mc_json_add_real(json, name, number < 0 ? (double)NAN : number);
}

static void note(struct bench *bench, const struct mc_engine_step *step, const struct mc_engine_result *result)
{
    struct mc_json_writer *json = &bench->json;
    mc_json_begin(json, NULL, '{');
    mc_json_add_text(json, "operation", mc_engine_operation_name(step->operation));
    mc_json_add_number(json, "block_bytes", step->block);
    mc_json_add_number(json, "batch", step->batch);
    mc_json_add_number(json, "threads", step->threads);
    mc_json_add_real(json, "seconds", result->seconds);
    mc_json_add_number(json, "batches", result->batches);
    mc_json_add_number(json, "bytes", result->bytes);
    mc_json_add_number(json, "failed", result->failed);
    mc_json_add_number(json, "wrong", result->wrong);
    mc_json_add_real(json, "gbps", (double)result->bytes / 1e9 / result->seconds);
    mc_json_add_real(json, "instant_gbps", result->instant_gbps);
    add_real_or_null(json, "latency_us", latency_us(step, result));
    mc_histogram_member(&result->times, "transfer", json);
    mc_json_add_text(json, "path", mc_engine_path_name(mc_engine_main_path(result)));
    mc_json_begin(json, "path_bytes", '{');
    for (int path = 0; path < MC_TRANSFER_PATHS; path++)
        mc_json_add_number(json, mc_engine_path_name(path), result->path_bytes[path]);
    mc_json_end(json, '}');
    add_real_or_null(json, "cpu_seconds_per_gb", per_gb(result->cpu_seconds, result, step->verify));
    add_real_or_null(json, "target_cpu_seconds_per_gb", per_gb(result->target_cpu_seconds, result, step->verify));
    mc_json_end(json, '}');
}

/* ---- the steps ---- */

static int judge(const struct bench *bench, const struct mc_engine_result *result)
{
    const char *path = mc_engine_path_name(mc_engine_main_path(result));
    if (result->failed > 0)
        fprintf(stderr, "a transfer failed: %s\n", mc_transfer_error_text(result->error));
    if (result->wrong > 0)
        fprintf(stderr, "%llu blocks held wrong bytes\n", (unsigned long long)result->wrong);
    bool is_path = strcmp(bench->path, "auto") == 0 || result->bytes == 0 || strcmp(bench->path, path) == 0;
    if (!is_path)
        fprintf(stderr, "path %s was asked for, %s was used\n", bench->path, path);
    return result->failed > 0 || result->wrong > 0 || !is_path ? MC_BENCH_WRONG : MC_BENCH_OK;
}

static void run_step(struct bench *bench, const struct mc_engine_step *step, struct mc_engine_result *result)
{
    bench->number++;
    if (!mc_engine_step_fits(step, bench->side.size)) {
        mc_meter_hold(&bench->meter);
        fprintf(bench->out, "%-5s %12llu %6u %7u  skipped: more than --total\n",
                mc_engine_operation_name(step->operation), (unsigned long long)step->block, step->batch, step->threads);
        mc_meter_go_on(&bench->meter);
        return;
    }
    if (mc_engine_run(&bench->side, &bench->target, step, &bench->meter, result) < 0) {
        mc_meter_end(&bench->meter);
        fprintf(stderr, "a step could not run: no memory, or %s does not take bytes\n", bench->target_name);
        bench->rc = MC_BENCH_TROUBLE;
        return;
    }
    mc_meter_hold(&bench->meter);
    show(bench, step, result);
    note(bench, step, result);
    if (judge(bench, result) != MC_BENCH_OK)
        bench->rc = MC_BENCH_WRONG;
    mc_meter_go_on(&bench->meter);
}

static void run_steps(struct bench *bench)
{
    struct mc_engine_result *result = malloc(sizeof(*result));
    if (result == NULL) {
        bench->rc = MC_BENCH_TROUBLE;
        return;
    }
    struct mc_engine_step step = {.seconds = mc_options_real(&bench->options, "seconds"),
                                  .warmup_seconds = mc_options_real(&bench->options, "warmup"),
                                  .verify = mc_options_bool(&bench->options, "verify")};
    char title[48];
    step.title = title;
    bench->number_max = bench->operation_count * bench->thread_count * bench->batch_count * bench->size_count;
    show_head(bench->out);
    for (uint32_t i = 0; i < bench->number_max && bench->rc == MC_BENCH_OK && !mc_interrupted; i++) {
        uint32_t rest = i;
        step.block = bench->sizes[rest % bench->size_count];
        rest /= bench->size_count;
        step.batch = (uint32_t)bench->batches[rest % bench->batch_count];
        rest /= bench->batch_count;
        step.threads = (uint32_t)bench->threads[rest % bench->thread_count];
        rest /= bench->thread_count;
        step.operation = (enum mc_engine_operation)bench->operations[rest];
        snprintf(title, sizeof(title), "step %u of %u", bench->number + 1, bench->number_max);
        run_step(bench, &step, result);
    }
    free(result);
}

static void begin_document(struct bench *bench)
{
    struct mc_json_writer *json = &bench->json;
    *json = mc_bench_json(&bench->document, '{');
    mc_json_add_text(json, "version", mc_version());
    mc_json_add_text(json, "target", bench->target_name);
    mc_json_add_number(json, "total", bench->total);
    mc_json_add_text(json, "memory", mc_options_text(&bench->options, "memory"));
    mc_json_begin(json, "steps", '[');
}

static int measure(struct bench *bench)
{
    struct mc_transfer_config config = config_of(&bench->options);
    bench->out = mc_bench_out(&bench->options);
    bench->process.log = -1;
    mc_interrupt_catch();
    bench->rc = find_target(bench, &config) == 0 ? MC_BENCH_OK : MC_BENCH_TROUBLE;
    if (bench->rc == MC_BENCH_OK) {
        begin_document(bench);
        mc_meter_begin(&bench->meter);
        run_steps(bench);
        mc_meter_end(&bench->meter);
        mc_json_end(&bench->json, ']');
        bench->rc = mc_bench_write_json(&bench->options, &bench->json, bench->rc);
    }
    mc_engine_side_close(&bench->side);
    mc_engine_side_close(&bench->near_target);
    mc_process_ask_to_end(&bench->process);
    mc_process_reap(&bench->process, END_MS);
    return mc_interrupted ? MC_BENCH_INTERRUPTED : bench->rc;
}

int mc_bench_engine(int argc, char **argv)
{
    struct bench *bench = calloc(1, sizeof(*bench));
    int rc = MC_BENCH_TROUBLE;
    if (bench == NULL)
        return rc;
    if (mc_bench_options(&bench->options, option_table, sizeof(option_table) / sizeof(option_table[0]),
                         "mooncake_bench engine",
                         " [options]\nMeasures the transfer engine between two processes; columns are those of the "
                         "original's tebench.\n",
                         argc, argv, &rc)) {
        rc = MC_BENCH_USAGE;
        if (take_options(bench)) {
            struct mc_transfer_config config = config_of(&bench->options);
            set_path(bench->path);
            if (mc_variable(MC_LOG_LEVEL) == NULL)
                mc_log_set_level(MC_LOG_WARNING);
            rc = strcmp(mc_options_text(&bench->options, "mode"), "target") == 0
                     ? mc_engine_serve(&config, bench->total, bench->memory)
                     : measure(bench);
        }
        mc_options_free(&bench->options);
    }
    free(bench);
    return rc;
}
