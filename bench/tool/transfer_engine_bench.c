/* transfer_engine_bench: the original's command and flags, on the code of `mooncake_bench engine`. */
#include "tool/bench.h"
#include "tool/engine.h"

#include "env/flags.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct mc_option option_table[] = {
    ROW("mode", TEXT, "initiator", "target: serves until it is ended", .choices = "initiator|target"),
    ROW("metadata_server", TEXT, "192.168.3.77:2379", "P2PHANDSHAKE, or a metadata server; host:port alone is etcd"),
    MC_BENCH_SECRETS,
    ROW("local_server_name", TEXT, "", "host or name of this engine; empty: the name of the machine"),
    ROW("segment_id", TEXT, "192.168.3.76", "name of the target"),
    ROW("protocol", TEXT, "rdma", "rdma or tcp; rdma falls to tcp where there is none"),
    ROW("device_name", TEXT, "mlx5_2", "RDMA devices, comma separated"),
    ROW("auto_discovery", BOOL, "false", "takes all RDMA devices instead of device_name"),
    ROW("nic_priority_matrix", TEXT, "", "file with a priority matrix of RDMA devices, instead of device_name"),
    ROW("operation", TEXT, "read", "read or write", .choices = "read|write"),
    ROW("buffer_size", INT, "1073741824", "bytes of the buffer; the same on both sides", .minimum = 4096,
        .maximum = INT64_C(1) << 50),
    ROW("block_size", INT, "65536", "bytes of a block", .minimum = 1, .maximum = INT64_C(1) << 50),
    ROW("batch_size", INT, "128", "blocks of one transfer", .minimum = 1, .maximum = MC_ENGINE_BATCH_MAX),
    ROW("threads", INT, "12", "that transfer at the same time", .minimum = 1, .maximum = MC_ENGINE_THREADS_MAX),
    ROW("duration", INT, "10", "seconds", .minimum = 1, .maximum = 86400),
    ROW("report_unit", TEXT, "GB", "of the throughput, per second",
        .choices = "GB|GiB|Gb|Gib|MB|MiB|Mb|Mib|KB|KiB|Kb|Kib"),
    ROW("report_precision", INT, "2", "digits behind the point", .minimum = 0, .maximum = 9),
    ROW("backend", TEXT, "classic", "there is one engine here", .choices = "classic|tent",
        .status = MC_OPTION_NEEDLESS),
    ROW("use_vram", BOOL, "false", "buffers are in host memory", .status = MC_OPTION_NEEDLESS),
    ROW("init_mem", BOOL, "true", "buffers are always touched first", .status = MC_OPTION_NEEDLESS),
    ROW("gpu_id", INT, "0", "buffers are in host memory", .status = MC_OPTION_NEEDLESS),
    ROW("json", TEXT, "", "writes the result to this file; - is stdout"),
    ROW("help", BOOL, "false", "prints this"),
    NEEDLESS("v", INT, "0", "use MC_LOG_LEVEL"),
    NEEDLESS("minloglevel", INT, "0", "use MC_LOG_LEVEL"),
    NEEDLESS("stderrthreshold", INT, "0", "use MC_LOG_LEVEL"),
    NEEDLESS("log_dir", TEXT, "", "use MC_LOG_DIR"),
    NEEDLESS("logtostderr", BOOL, "true", "the log goes to stderr"),
    NEEDLESS("alsologtostderr", BOOL, "true", "the log goes to stderr"),
    FLAGS_OF_ITS_LOG,
};

static double unit_bytes(const char *name)
{
    double one = name[strlen(name) - 1] == 'b' ? 1.0 / 8 : 1;
    bool is_binary = name[1] == 'i';
    switch (name[0]) {
    case 'G':
        return one * (is_binary ? 1073741824.0 : 1e9);
    case 'M':
        return one * (is_binary ? 1048576.0 : 1e6);
    default:
        return one * (is_binary ? 1024.0 : 1e3);
    }
}

static int report(const struct mc_options *options, const struct mc_engine_result *result)
{
    const char *unit = mc_options_text(options, "report_unit"),
               *path = mc_engine_path_name(mc_engine_main_path(result));
    double bytes_per_s = result->seconds > 0 ? (double)result->bytes / result->seconds : 0;
    fprintf(stderr, "Test completed: duration %.2f, batch count %llu, throughput %.*f %s/s\n", result->seconds,
            (unsigned long long)result->batches, (int)mc_options_int(options, "report_precision"),
            bytes_per_s / unit_bytes(unit), unit);
    fprintf(stderr, "path %s, mean %.1f us, p99 %.1f us of a batch\n", path,
            result->batches == 0 ? 0 : (double)result->times.sum / (double)result->batches / 1e3,
            (double)mc_histogram_quantile(&result->times, 0.99) / 1e3);
    if (result->failed > 0)
        fprintf(stderr, "a transfer failed: %s\n", mc_transfer_error_text(result->error));
    struct mc_buffer document = {0};
    struct mc_json_writer out = mc_bench_json(&document, '{');
    mc_json_add_real(&out, "seconds", result->seconds);
    mc_json_add_number(&out, "batches", result->batches);
    mc_json_add_number(&out, "bytes", result->bytes);
    mc_json_add_real(&out, "gbps", bytes_per_s / 1e9);
    mc_json_add_text(&out, "path", path);
    mc_histogram_member(&result->times, "transfer", &out);
    return mc_bench_write_json(options, &out, result->failed > 0 ? MC_BENCH_WRONG : MC_BENCH_OK);
}

static int run_shown(const struct mc_engine_side *side, struct mc_engine_target *target,
                     const struct mc_engine_step *step, struct mc_engine_result *result)
{
    struct mc_meter meter;
    mc_meter_begin(&meter);
    int rc = mc_engine_run(side, target, step, &meter, result);
    mc_meter_end(&meter);
    return rc;
}

static int initiate(const struct mc_options *options, const struct mc_transfer_config *config)
{
    struct mc_engine_target target = {.name = mc_options_text(options, "segment_id")};
    struct mc_engine_step step = {.block = (uint64_t)mc_options_int(options, "block_size"),
                                  .batch = (uint32_t)mc_options_int(options, "batch_size"),
                                  .threads = (uint32_t)mc_options_int(options, "threads"),
                                  .seconds = (double)mc_options_int(options, "duration"),
                                  .is_fixed = true,
                                  .title = ""};
    struct mc_engine_side side = {0};
    struct mc_engine_result *result = malloc(sizeof(*result));
    uint64_t size = (uint64_t)mc_options_int(options, "buffer_size");
    int rc = MC_BENCH_TROUBLE;
    (void)mc_engine_operation_parse(mc_options_text(options, "operation"), &step.operation); /* one of its choices */
    mc_interrupt_catch();
    if (!mc_engine_step_fits(&step, size)) {
        fprintf(stderr, "block_size x batch_size x threads is more than buffer_size\n");
        rc = MC_BENCH_USAGE;
    } else if (result != NULL && mc_engine_side_open(&side, config, size, MC_ENGINE_PAGES) == 0) {
        target.address = mc_transfer_first_address(side.engine, target.name);
        if (target.address == 0)
            fprintf(stderr, "%s cannot be reached, or has no memory registered\n", target.name);
        else if (run_shown(&side, &target, &step, result) == 0)
            rc = report(options, result);
        mc_engine_side_close(&side);
    }
    free(result);
    return mc_interrupted ? MC_BENCH_INTERRUPTED : rc;
}

static int run(const struct mc_options *options)
{
    char host[256] = "", metadata[600];
    const char *name = mc_options_text(options, "local_server_name"),
               *server = mc_options_text(options, "metadata_server");
    if (name[0] == 0 && gethostname(host, sizeof(host) - 1) == 0)
        name = host;
    bool is_bare = strcmp(server, "P2PHANDSHAKE") != 0 && strstr(server, "://") == NULL;
    snprintf(metadata, sizeof(metadata), "%s%s", is_bare ? "etcd://" : "", server);
    const char *matrix = mc_options_text(options, "nic_priority_matrix");
    if (matrix[0] != 0 && setenv("MC_CUSTOM_TOPO_JSON", matrix, 1) != 0)
        return MC_BENCH_USAGE;
    bool is_named = matrix[0] == 0 && !mc_options_bool(options, "auto_discovery"); /* a matrix names them itself */
    struct mc_transfer_config config = {.local_name = name,
                                        .metadata_server = metadata,
                                        .protocol = mc_options_text(options, "protocol"),
                                        .device_name = is_named ? mc_options_text(options, "device_name") : ""};
    return strcmp(mc_options_text(options, "mode"), "target") == 0
               ? mc_engine_serve(&config, (uint64_t)mc_options_int(options, "buffer_size"), MC_ENGINE_PAGES)
               : initiate(options, &config);
}

int main(int argc, char **argv)
{
    struct mc_options options;
    int rc;
    if (!mc_bench_options(&options, option_table, sizeof(option_table) / sizeof(option_table[0]),
                          "transfer_engine_bench",
                          " --mode=target|initiator [options]\nMeasures the transfer engine between two processes; "
                          "mooncake_bench engine tells more.",
                          argc, argv, &rc))
        return rc;
    mc_flags_tell(&options);
    rc = run(&options);
    mc_options_free(&options);
    return rc;
}
