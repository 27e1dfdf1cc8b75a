/* `mooncake_bench work`: times single operations of the store from C, one client, one thread; made for profiles. */
#include "tool/bench.h"
#include "tool/histogram.h"
#include "tool/process.h"

#include "env/clock.h"
#include "env/meter.h"
#include "mooncake.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KEY_SIZE 48
#define BATCH_MAX 1024
#define KEYS_MAX (1u << 20)

static const struct mc_option option_table[] = {
    ROW("operations", TEXT, "put,exist,batch_exist,get,batch_put,batch_get",
        "what to do, in this order, comma separated", .section = "Work"),
    ROW("size", TEXT, "4K", "bytes of an object"),
    ROW("keys", INT, "2048", "objects; buffers rotate over all of them", .minimum = 1, .maximum = KEYS_MAX),
    ROW("batch", INT, "128", "keys of one batch call", .minimum = 1, .maximum = BATCH_MAX),
    ROW("seconds", REAL, "1", "of each operation at least; puts end with the keys", .minimum = 0, .maximum = 86400),
    ROW("paths", TEXT, "", "paths that may be used: local,shm,tcp; empty: all"),
    ROW("master", TEXT, "", "joins this cluster; empty: starts one", .section = "Cluster"),
    MC_BENCH_SECRETS,
    ROW("capacity", TEXT, "1GiB", "memory of the store node that is started"),
    ROW("master_binary", TEXT, "", "the mooncake_master to start; empty: the one beside this command, else on PATH"),
    ROW("json", TEXT, "", "writes the results to this file; - is stdout", .section = "Output"),
    ROW("help", BOOL, "false", "prints this"),
};

struct work {
    struct mc_store *store;
    uint64_t size;
    uint32_t key_count, batch;
    double seconds;
    char (*keys)[KEY_SIZE];
    uint8_t *buffer;
    uint64_t failed;
    struct mc_meter meter;
    struct mc_bytes key_list[BATCH_MAX];
    struct iovec parts[BATCH_MAX];
    struct mc_get_item get_items[BATCH_MAX];
    struct mc_put_item put_items[BATCH_MAX];
    int results[BATCH_MAX];
};

static void aim(struct work *work, uint32_t first, uint32_t items)
{
    for (uint32_t i = 0; i < items; i++) {
        uint32_t key = (first + i) % work->key_count;
        work->key_list[i] = (struct mc_bytes){work->keys[key], strlen(work->keys[key])};
        work->parts[i] = (struct iovec){work->buffer + key * work->size, work->size};
    }
}

static void exist(struct work *work, uint32_t items)
{
    int rc = mc_store_exist(work->store, work->key_list, items, work->results);
    for (uint32_t i = 0; i < items; i++)
        work->failed += rc != 0 || work->results[i] < 0;
}

static void put(struct work *work, uint32_t items)
{
    for (uint32_t i = 0; i < items; i++)
        work->put_items[i] = (struct mc_put_item){.key = work->key_list[i], .parts = &work->parts[i], .part_count = 1};
    if (mc_store_put(work->store, work->put_items, items, NULL) != 0)
        for (uint32_t i = 0; i < items; i++)
            work->failed += work->put_items[i].result != 0;
}

static void get(struct work *work, uint32_t items)
{
    for (uint32_t i = 0; i < items; i++)
        work->get_items[i] = (struct mc_get_item){.key = work->key_list[i], .parts = &work->parts[i], .part_count = 1};
    if (mc_store_get(work->store, work->get_items, items, NULL, NULL) != 0)
        for (uint32_t i = 0; i < items; i++)
            work->failed += work->get_items[i].result != (int64_t)work->size;
}

static const struct operation {
    const char *name;
    void (*run)(struct work *work, uint32_t items);
    bool batch, moves, once;
} operations[] = {
    {"exist", exist, false, false, false}, {"batch_exist", exist, true, false, false},
    {"put", put, false, true, true},       {"get", get, false, true, false},
    {"batch_put", put, true, true, true},  {"batch_get", get, true, true, false},
};

static const struct operation *find_operation(const char *name)
{
    for (size_t i = 0; i < sizeof(operations) / sizeof(operations[0]); i++)
        if (strcmp(operations[i].name, name) == 0)
            return &operations[i];
    return NULL;
}

/* Runs one operation until its time is over (a put: until each key was put once into the emptied store). */
static bool time_operation(struct work *work, const struct operation *operation, FILE *out, struct mc_json_writer *json)
{
    uint32_t items = operation->batch ? work->batch : 1;
    char p50[32], p99[32];
    struct mc_histogram *calls = calloc(1, sizeof(*calls));
    if (calls == NULL)
        return false;
    if (operation->once && mc_store_remove_all(work->store, true) < 0)
        work->failed++;
    mc_meter_step(&work->meter, operation->name, "keys", operation->once ? work->key_count : 0,
                  operation->once ? 0 : work->seconds);
    uint64_t start = mc_clock_ns(), done = 0, failed = work->failed;
    uint64_t end = start + (uint64_t)(work->seconds * 1e9);
    for (uint32_t first = 0; operation->once ? done + items <= work->key_count : mc_clock_ns() < end; first += items) {
        aim(work, first % work->key_count, items);
        uint64_t before = mc_clock_ns();
        operation->run(work, items);
        mc_histogram_add(calls, mc_clock_ns() - before);
        done += items;
        mc_meter_at(&work->meter, done);
    }
    double seconds = (double)(mc_clock_ns() - start) / 1e9;
    double gbps = operation->moves ? (double)(done * work->size) / (double)(calls->sum + 1) : 0;
    mc_json_begin(json, NULL, '{');
    mc_histogram_json(calls, json);
    mc_json_add_text(json, "operation", operation->name);
    mc_json_add_real(json, "keys_per_s", (double)done / seconds);
    mc_json_add_real(json, "gbps", gbps);
    mc_json_add_number(json, "failed", work->failed - failed);
    mc_json_end(json, '}');
    mc_meter_hold(&work->meter);
    fprintf(out, "%-12s %9" PRIu64 " calls %12.0f keys/s  p50 %10s  p99 %10s  %6.2f GB/s  %" PRIu64 " failed\n",
            operation->name, (uint64_t)calls->count, (double)done / seconds,
            mc_time_format(mc_histogram_quantile(calls, 0.5), p50, sizeof(p50)),
            mc_time_format(mc_histogram_quantile(calls, 0.99), p99, sizeof(p99)), gbps, work->failed - failed);
    mc_meter_go_on(&work->meter);
    free(calls);
    return true;
}

static bool prepare(struct work *work, const struct mc_options *options)
{
    work->key_count = (uint32_t)mc_options_int(options, "keys");
    work->batch = (uint32_t)mc_options_int(options, "batch");
    work->seconds = mc_options_real(options, "seconds");
    if (work->batch > work->key_count)
        work->key_count = work->batch;
    if (!mc_bench_size(options, "size", 1, &work->size))
        return false;
    if (work->size > (UINT64_C(1) << 40) / work->key_count)
        return mc_bench_fail(false, "--keys=%" PRIu32 ": the buffers would be above 1 TiB", work->key_count);
    work->buffer = mc_bench_memory(work->size * work->key_count);
    work->keys = calloc(work->key_count, sizeof(*work->keys));
    if (work->buffer == NULL || work->keys == NULL)
        return mc_bench_fail(false, "no memory for %" PRIu32 " objects of %" PRIu64 " bytes", work->key_count,
                             work->size);
    for (uint32_t i = 0; i < work->key_count; i++)
        snprintf(work->keys[i], KEY_SIZE, "work-of-one-client@block@%016" PRIx32, i);
    return true;
}

static int run_operations(struct work *work, const struct mc_options *options)
{
    char copy[256], *rest = copy, *word;
    FILE *out = mc_bench_out(options);
    struct mc_buffer document = {0};
    struct mc_json_writer json = mc_bench_json(&document, '[');
    int rc = MC_BENCH_OK;
    snprintf(copy, sizeof(copy), "%s", mc_options_text(options, "operations"));
    mc_meter_begin(&work->meter);
    while (rc == MC_BENCH_OK && !mc_interrupted && (word = strsep(&rest, ",")) != NULL) {
        const struct operation *operation = find_operation(word);
        if (operation == NULL) {
            mc_meter_end(&work->meter); /* before others print */
            fprintf(stderr,
                    "--operations: there is no \"%s\"; there are exist, batch_exist, put, get, batch_put, batch_get\n",
                    word);
        }
        if (operation == NULL || !time_operation(work, operation, out, &json))
            rc = MC_BENCH_USAGE;
    }
    mc_meter_end(&work->meter);
    if (rc == MC_BENCH_OK)
        rc = mc_bench_write_json(options, &json, rc);
    mc_buffer_free(&document);
    return rc == MC_BENCH_OK && work->failed > 0 ? MC_BENCH_WRONG : rc;
}

static int join(struct work *work, struct mc_cluster *cluster, const struct mc_options *options)
{
    const char *master = mc_bench_text(options, "master");
    struct mc_cluster_config config = {.master_binary = mc_bench_text(options, "master_binary"),
                                       .paths = mc_bench_text(options, "paths"),
                                       .node_count = 1};
    if (master == NULL) {
        if (!mc_bench_size(options, "capacity", 1 << 20, &config.capacity))
            return MC_BENCH_USAGE;
        if (mc_cluster_start(cluster, &config) != 0)
            return mc_interrupted ? MC_BENCH_INTERRUPTED : MC_BENCH_TROUBLE;
        master = cluster->master_address;
    }
    struct mc_store_config client = {
        .local_hostname = "127.0.0.1", .master_server_addr = master, .local_buffer_size = 1, .paths = config.paths};
    int rc = mc_store_open(&client, &work->store);
    if (rc != 0)
        return mc_bench_fail(MC_BENCH_TROUBLE, "cannot join the master at %s: %s", master, mc_error_text(rc));
    return mc_store_register_buffer(work->store, work->buffer, work->size * work->key_count) == 0 ? MC_BENCH_OK
                                                                                                  : MC_BENCH_TROUBLE;
}

int mc_bench_work(int argc, char **argv)
{
    static struct work work;
    struct mc_cluster cluster = {0};
    struct mc_options options;
    int rc = MC_BENCH_USAGE;
    if (!mc_bench_options(&options, option_table, sizeof(option_table) / sizeof(option_table[0]), "mooncake_bench work",
                          " [options]\nTimes single operations of the store. Existing objects are removed!\n", argc,
                          argv, &rc))
        return rc;
    if (prepare(&work, &options)) {
        mc_interrupt_catch();
        rc = join(&work, &cluster, &options);
        if (rc == MC_BENCH_OK)
            rc = run_operations(&work, &options);
    }
    if (work.store != NULL && mc_store_close(work.store) != 0)
        rc = MC_BENCH_TROUBLE;
    mc_cluster_stop(&cluster);
    free(work.keys);
    mc_options_free(&options);
    return rc;
}
