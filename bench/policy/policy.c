/* mooncake_bench policy: how many blocks of a trace are found, by capacity and by policy: the real core, beside the
 * best that there can be and what the original does. No cluster, no memory: only what lies where. */
#include "policy/pool.h"
#include "policy/reference.h"
#include "env/file.h"
#include "env/meter.h"
#include "tool/bench.h"
#include "tool/synthetic.h"
#include "tool/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define CAPACITIES_MAX 16u
#define BLOCKS_MAX (64u << 20) /* a capacity */

static const struct mc_option option_table[] = {
    ROW("capacities", TEXT, "2048,10240,20480,51200,102400", "blocks that fit, comma separated", .section = "Work"),
    ROW("policies", TEXT, "s3fifo,clock,lru", "of the master's --eviction_policy, comma separated"),
    ROW("segments", INT, "3", "nodes that the blocks lie on", .minimum = 1, .maximum = 64),
    ROW("block_bytes", TEXT, "32MiB", "bytes of a block; only the reserve depends on it"),
    ROW("eviction_ratio", REAL, "0", "as the master's", .minimum = 0, .maximum = 1),
    ROW("eviction_high_watermark_ratio", REAL, "1", "as the master's", .minimum = 0, .maximum = 1),
    ROW("disk_blocks", INT, "0", "blocks that fit on a disk behind that memory; 0: there is none", .section = "Disk",
        .minimum = 0, .maximum = BLOCKS_MAX),
    ROW("offload", TEXT, "put,evict", "when they are stored there, comma separated: put, evict"),
    ROW("disk_policy", TEXT, "lru",
        "what happens to the oldest there that was read since it was written: lru writes it once more",
        .choices = "lru|fifo"),
    ROW("disk_stores", INT, "0", "blocks that the disk stores in the time of one request; 0: all that it is told",
        .minimum = 0, .maximum = BLOCKS_MAX),
    ROW("promotion_on_hit", BOOL, "false", "as the master's"),
    ROW("promotion_admission_threshold", INT, "2", "as the master's", .minimum = 1, .maximum = 255),
    ROW("synthetic", TEXT, "", "makes a trace of this kind instead of reading one", .section = "Trace",
        .choices = "|" MC_SYNTHETIC_KINDS),
    ROW("seed", INT, "1", "of the trace that is made", .minimum = 0, .maximum = INT64_MAX),
    ROW("limit", INT, "0", "only the first so many requests of the file; 0: all", .minimum = 0,
        .maximum = MC_TRACE_REQUESTS_MAX),
    ROW("write", TEXT, "", "writes the trace to this file, for replay", .section = "Output"),
    ROW("curve", BOOL, "false",
        "shows what the master's curve says of an LRU of half of each capacity, of all and of twice that"),
    ROW("json", TEXT, "", "writes the results to this file; - is stdout"),
    ROW("help", BOOL, "false", "shows this text"),
};

static const char usage[] = " [TRACE] [options]";

struct comparison {
    struct mc_options options;
    struct mc_trace trace;
    struct mc_references references;
    uint32_t capacities[CAPACITIES_MAX], capacity_count;
    struct mc_pool_settings settings;
    struct mc_json_writer writer;
    struct mc_meter meter; /* in requests of a row */
    FILE *out;
};

/* ---- the trace ---- */

static int compare_ids(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Numbers the blocks; false when memory is out. */
static bool number_blocks(struct comparison *comparison)
{
    const struct mc_trace *trace = &comparison->trace;
    struct mc_references *references = &comparison->references;
    uint64_t *ids = malloc((trace->block_count + 1) * sizeof(*ids)), distinct = 0;
    references->blocks = calloc(trace->block_count + 1, sizeof(*references->blocks));
    references->requests = calloc(trace->block_count + 1, sizeof(*references->requests));
    if (ids == NULL || references->blocks == NULL || references->requests == NULL) {
        free(ids);
        return false;
    }
    memcpy(ids, trace->block_ids, trace->block_count * sizeof(*ids));
    qsort(ids, trace->block_count, sizeof(*ids), compare_ids);
    for (uint64_t i = 0; i < trace->block_count; i++)
        if (i == 0 || ids[i] != ids[i - 1])
            ids[distinct++] = ids[i];
    for (uint32_t r = 0; r < trace->request_count; r++) {
        const struct mc_trace_request *request = &trace->requests[r];
        for (uint32_t i = 0; i < request->block_count; i++) {
            const uint64_t *id = &trace->block_ids[request->first_block + i];
            const uint64_t *at = bsearch(id, ids, distinct, sizeof(*ids), compare_ids);
            references->blocks[references->count] = (uint32_t)(at - ids);
            references->requests[references->count++] = r;
        }
    }
    references->block_count = (uint32_t)distinct;
    free(ids);
    return true;
}

static bool write_trace(const char *path, const struct mc_trace *trace)
{
    FILE *file = fopen(path, "we");
    if (file == NULL)
        return false;
    for (uint64_t r = 0; r < trace->request_count; r++) {
        const struct mc_trace_request *request = &trace->requests[r];
        fprintf(file, "{\"timestamp\": %" PRIu64 ", \"input_length\": %u, \"output_length\": %u, \"hash_ids\": [",
                request->timestamp_ms, request->input_tokens, request->output_tokens);
        for (uint32_t i = 0; i < request->block_count; i++)
            fprintf(file, "%s%" PRIu64, i == 0 ? "" : ", ", trace->block_ids[request->first_block + i]);
        fputs("]}\n", file);
    }
    bool good = ferror(file) == 0;
    return fclose(file) == 0 && good;
}

/* An exit code. */
static int take_trace(struct comparison *comparison, const char *path)
{
    const char *kind = mc_bench_text(&comparison->options, "synthetic");
    const char *target = mc_bench_text(&comparison->options, "write");
    uint64_t seed = (uint64_t)mc_options_int(&comparison->options, "seed");
    uint64_t limit = (uint64_t)mc_options_int(&comparison->options, "limit");
    char why[256];
    if ((kind == NULL) == (path == NULL))
        return mc_bench_fail(MC_BENCH_USAGE, "mooncake_bench policy: wants a trace, or --synthetic and none");
    if (kind != NULL && !mc_synthetic_make(kind, seed, &comparison->trace))
        return mc_bench_fail(MC_BENCH_TROUBLE, "out of memory");
    if (path != NULL && mc_trace_load(path, limit, &comparison->trace, why, sizeof(why)) != 0)
        return mc_bench_fail(MC_BENCH_USAGE, "%s: %s", path, why);
    if (target != NULL && !write_trace(target, &comparison->trace))
        return mc_bench_fail(MC_BENCH_TROUBLE, "%s: cannot be written: %s", target, mc_file_problem(errno));
    if (comparison->trace.block_count >= UINT32_MAX || !number_blocks(comparison))
        return mc_bench_fail(MC_BENCH_TROUBLE, "out of memory");
    return MC_BENCH_OK;
}

/* ---- rows ---- */

/* before: requests of the row that are done. */
static int64_t pool_hits(struct comparison *comparison, const char *policy, uint32_t capacity, uint64_t before,
                         struct mc_pool_counts *counts)
{
    const struct mc_trace *trace = &comparison->trace;
    struct mc_pool_settings settings = comparison->settings;
    settings.policy = policy;
    settings.blocks = capacity;
    struct mc_pool *pool = mc_pool_open(&settings);
    int64_t hits = pool == NULL ? -1 : 0;
    for (uint64_t r = 0; hits >= 0 && r < trace->request_count; r++) {
        const struct mc_trace_request *request = &trace->requests[r];
        int64_t more = mc_pool_request(pool, trace->block_ids + request->first_block, request->block_count);
        hits = more < 0 ? -1 : hits + more;
        mc_meter_at(&comparison->meter, before + r + 1);
    }
    if (pool != NULL) {
        *counts = mc_pool_counts(pool);
        mc_pool_close(pool);
    }
    return hits;
}

/* What of that the disk has done. */
static void print_disk(struct comparison *comparison, const struct mc_pool_counts *counts)
{
    fprintf(comparison->out, "%-20s", "  of them from disk");
    for (uint32_t i = 0; i < comparison->capacity_count; i++)
        fprintf(comparison->out, " %8.2f", 100.0 * (double)counts[i].disk_hits / comparison->references.count);
    fprintf(comparison->out, "\n%-20s", "  written for each");
    mc_json_begin(&comparison->writer, "written_for_each_disk_hit", '[');
    for (uint32_t i = 0; i < comparison->capacity_count; i++) {
        double each = (double)counts[i].disk_writes / (double)(counts[i].disk_hits > 0 ? counts[i].disk_hits : 1);
        fprintf(comparison->out, " %8.2f", each);
        mc_json_add_real(&comparison->writer, NULL, each);
    }
    mc_json_end(&comparison->writer, ']');
    fprintf(comparison->out, "\n%-20s", "  evicted too early");
    for (uint32_t i = 0; i < comparison->capacity_count; i++)
        fprintf(comparison->out, " %8" PRIu64, counts[i].late);
    fprintf(comparison->out, "\n");
}

/* What the core itself says that memory of other sizes would find. */
static void print_expected(const struct comparison *comparison, const struct mc_pool_counts *counts)
{
    static const char *const titles[] = {"  curve: half of it", "  curve: that much", "  curve: twice that"};
    for (unsigned which = 0; which < 3; which++) {
        fprintf(comparison->out, "%-20s", titles[which]);
        for (uint32_t i = 0; i < comparison->capacity_count; i++)
            fprintf(comparison->out, " %8.2f", 100 * counts[i].expected[which]);
        fprintf(comparison->out, "\n");
    }
}

/* policy NULL: not one of ours. An exit code. */
static int print_row(struct comparison *comparison, const char *name, const char *policy,
                     int64_t (*reference)(const struct mc_references *references, uint32_t capacity))
{
    uint64_t requests = comparison->trace.request_count;
    double percents[CAPACITIES_MAX] = {0};
    mc_meter_step(&comparison->meter, name, "requests", requests * comparison->capacity_count, 0);
    mc_json_begin(&comparison->writer, NULL, '{');
    mc_json_add_text(&comparison->writer, "policy", name);
    mc_json_begin(&comparison->writer, "hits_percent", '[');
    int64_t hits = 0;
    struct mc_pool_counts counts[CAPACITIES_MAX] = {0};
    for (uint32_t i = 0; i < comparison->capacity_count && hits >= 0; i++) {
        uint32_t capacity = comparison->capacities[i];
        hits = policy == NULL ? reference(&comparison->references, capacity)
                              : pool_hits(comparison, policy, capacity, i * requests, &counts[i]);
        percents[i] = 100.0 * (double)hits / comparison->references.count;
        mc_json_add_real(&comparison->writer, NULL, percents[i]);
        mc_meter_at(&comparison->meter, (i + 1) * requests);
    }
    mc_meter_hold(&comparison->meter);
    fprintf(comparison->out, "%-20s", name);
    for (uint32_t i = 0; i < comparison->capacity_count; i++)
        fprintf(comparison->out, " %8.2f", percents[i]);
    fprintf(comparison->out, "\n");
    mc_json_end(&comparison->writer, ']');
    if (policy != NULL && comparison->settings.disk_blocks > 0)
        print_disk(comparison, counts);
    if (policy != NULL && mc_options_bool(&comparison->options, "curve"))
        print_expected(comparison, counts);
    mc_json_end(&comparison->writer, '}');
    if (hits < 0)
        mc_meter_end(&comparison->meter); /* before others print */
    mc_meter_go_on(&comparison->meter);
    return hits < 0 ? mc_bench_fail(MC_BENCH_TROUBLE, "%s: no such policy, or it could not run", name) : MC_BENCH_OK;
}

/* Of one policy: without a disk, or with one in each way that was asked for. */
static int print_policy(struct comparison *comparison, const char *name)
{
    const char *ways = mc_options_text(&comparison->options, "offload");
    char title[64];
    int rc = MC_BENCH_OK;
    if (comparison->settings.disk_blocks == 0)
        return print_row(comparison, name, name, NULL);
    for (unsigned on_evict = 0; on_evict < 2 && rc == MC_BENCH_OK; on_evict++) {
        if (strstr(ways, on_evict ? "evict" : "put") == NULL)
            continue;
        comparison->settings.disk_on_evict = on_evict != 0;
        (void)snprintf(title, sizeof(title), "%s, on %s", name, on_evict ? "evict" : "put");
        rc = print_row(comparison, title, name, NULL);
    }
    return rc;
}

static int print_policies(struct comparison *comparison)
{
    char *names = strdup(mc_options_text(&comparison->options, "policies")), *rest = NULL;
    int rc = names == NULL ? MC_BENCH_TROUBLE : MC_BENCH_OK;
    for (char *name = rc == MC_BENCH_OK ? strtok_r(names, ",", &rest) : NULL; name != NULL && rc == MC_BENCH_OK;
         name = strtok_r(NULL, ",", &rest))
        rc = print_policy(comparison, name);
    free(names);
    return rc;
}

static bool take_capacities(struct comparison *comparison)
{
    const char *text = mc_options_text(&comparison->options, "capacities");
    while (comparison->capacity_count < CAPACITIES_MAX) {
        char *end = NULL;
        unsigned long long blocks = *text >= '0' && *text <= '9' ? strtoull(text, &end, 10) : 0;
        if (end == NULL || blocks < (uint64_t)mc_options_int(&comparison->options, "segments") || blocks > BLOCKS_MAX)
            return false;
        comparison->capacities[comparison->capacity_count++] = (uint32_t)blocks;
        if (*end == 0)
            return true;
        if (*end != ',')
            return false;
        text = end + 1;
    }
    return false;
}

static int compare(struct comparison *comparison)
{
    struct mc_buffer document = {0};
    const struct mc_references *references = &comparison->references;
    fprintf(comparison->out,
            "%u references to %u blocks in %" PRIu64 " requests; hits in percent, by blocks that fit\n",
            references->count, references->block_count, comparison->trace.request_count);
    fprintf(comparison->out, "%-20s", "");
    comparison->writer = mc_bench_json(&document, '{');
    mc_json_add_number(&comparison->writer, "references", references->count);
    mc_json_add_number(&comparison->writer, "blocks", references->block_count);
    mc_json_begin(&comparison->writer, "capacities", '[');
    for (uint32_t i = 0; i < comparison->capacity_count; i++) {
        fprintf(comparison->out, " %8u", comparison->capacities[i]);
        mc_json_add_number(&comparison->writer, NULL, comparison->capacities[i]);
    }
    fprintf(comparison->out, "\n");
    mc_json_end(&comparison->writer, ']');
    mc_json_begin(&comparison->writer, "rows", '[');
    mc_meter_begin(&comparison->meter);
    int rc = print_row(comparison, "Belady (may bypass)", NULL, mc_reference_belady);
    if (rc == MC_BENCH_OK)
        rc = print_row(comparison, "the original", NULL, mc_reference_original);
    if (rc == MC_BENCH_OK)
        rc = print_policies(comparison);
    mc_meter_end(&comparison->meter);
    mc_json_end(&comparison->writer, ']');
    return mc_bench_write_json(&comparison->options, &comparison->writer, rc);
}

int mc_bench_policy(int argc, char **argv)
{
    static struct comparison comparison;
    const char *path = NULL;
    int rc = MC_BENCH_USAGE;
    if (argc > 1 && argv[1][0] != '-') { /* TRACE comes first; the options follow with their own argv[0] */
        path = argv[1];
        argv[1] = argv[0];
        argv++;
        argc--;
    }
    if (!mc_bench_options(&comparison.options, option_table, sizeof(option_table) / sizeof(option_table[0]),
                          "mooncake_bench policy", usage, argc, argv, &rc))
        return rc;
    comparison.out = mc_bench_out(&comparison.options);
    comparison.settings = (struct mc_pool_settings){
        .segments = (uint32_t)mc_options_int(&comparison.options, "segments"),
        .high_watermark = mc_options_real(&comparison.options, "eviction_high_watermark_ratio"),
        .ratio = mc_options_real(&comparison.options, "eviction_ratio"),
        .disk_blocks = (uint32_t)mc_options_int(&comparison.options, "disk_blocks"),
        .disk_keeps_hit = strcmp(mc_options_text(&comparison.options, "disk_policy"), "lru") == 0,
        .disk_stores = (uint32_t)mc_options_int(&comparison.options, "disk_stores"),
        .promotion = mc_options_bool(&comparison.options, "promotion_on_hit"),
        .promotion_threshold = (uint32_t)mc_options_int(&comparison.options, "promotion_admission_threshold")};
    if (!take_capacities(&comparison))
        rc = mc_bench_fail(MC_BENCH_USAGE, "--capacities: at most %u numbers of blocks, one for each segment at least",
                           CAPACITIES_MAX);
    else if (mc_bench_size(&comparison.options, "block_bytes", 1, &comparison.settings.block_bytes))
        rc = take_trace(&comparison, path);
    if (rc == MC_BENCH_OK)
        rc = compare(&comparison);
    free(comparison.references.blocks);
    free(comparison.references.requests);
    mc_trace_free(&comparison.trace);
    mc_options_free(&comparison.options);
    return rc;
}
