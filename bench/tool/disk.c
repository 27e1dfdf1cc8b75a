/* `mooncake_bench disk`: how fast a file is written and read through the queue that the disk tier uses. The file has no
 * name, is written once before anything is timed, so that every read meets the disk, and is read in no order, as keys
 * are asked for. */
#include "tool/bench.h"
#include "tool/histogram.h"
#include "tool/process.h"

#include "env/clock.h"
#include "env/meter.h"
#include "store/disk/io.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define SECONDS_MAX 86400
#define MEMORY_MAX (UINT64_C(1) << 32) /* bytes of all buffers */

static const struct mc_option option_table[] = {
    ROW("path", TEXT, ".", "folder on the disk that is meant"),
    ROW("size", TEXT, "1M", "bytes of one read or write"),
    ROW("depth", INT, "8", "of them under way at a time", .minimum = 1, .maximum = MC_DISK_IO_DEPTH_MAX),
    ROW("seconds", REAL, "5", "for each way", .minimum = 0, .maximum = SECONDS_MAX),
    ROW("total", TEXT, "1G", "bytes of the file"),
    ROW("engine", TEXT, "auto", "uring, threads, or auto: what the tier would take", .choices = "auto|uring|threads"),
    ROW("direct", BOOL, "true", "without the kernel's cache (O_DIRECT)"),
    ROW("json", TEXT, "", "writes the results to this file; - is stdout"),
    ROW("help", BOOL, "false", "prints this"),
};

struct disk_bench {
    struct mc_disk_io *io;
    int fd;
    uint8_t *memory;
    uint64_t size, total;
    unsigned depth;
    struct mc_meter *meter;
};

struct lane {
    struct mc_disk_request request;
    struct pass *pass;
};

struct pass {
    const struct disk_bench *bench;
    uint64_t begun, count, until_ns; /* blocks; count: of those to begin at most */
    uint64_t random;
    bool is_read;
    uint64_t bytes;
    int error;
    double seconds, cpu_seconds;
    struct mc_histogram times;
    struct lane lanes[MC_DISK_IO_DEPTH_MAX];
};

static void begin_block(struct lane *lane)
{
    struct pass *pass = lane->pass;
    uint64_t blocks = pass->bench->total / pass->bench->size, block = pass->begun % blocks;
    if (pass->error != 0 || mc_interrupted || pass->begun == pass->count || mc_clock_ns() >= pass->until_ns)
        return;
    if (pass->is_read) {
        pass->random = pass->random * 6364136223846793005u + 1442695040888963407u;
        block = (pass->random >> 33) % blocks;
    }
    lane->request.offset = block * pass->bench->size;
    pass->begun++;
    mc_disk_io_submit(pass->bench->io, &lane->request);
}

static void end_block(struct mc_disk_request *request, int64_t result)
{
    struct lane *lane = (struct lane *)(void *)request;
    struct pass *pass = lane->pass;
    if (result != request->length)
        pass->error = result < 0 ? (int)-result : EIO;
    else
        pass->bytes += request->length;
    mc_meter_at(pass->bench->meter, pass->bytes);
    mc_histogram_add(&pass->times, mc_clock_ns() - request->begun_ns);
    begin_block(lane);
}

static double processor_seconds(void)
{
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0)
        return 0;
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

/* Begins at most count blocks, for so many seconds, and waits for all. */
static void run_pass(struct pass *pass, const struct disk_bench *bench, bool is_read, uint64_t count, double seconds)
{
    bool is_counted = count < UINT64_MAX;
    mc_meter_step(bench->meter,
                  is_counted ? "laying out the file"
                  : is_read  ? "read"
                             : "write",
                  "B", is_counted ? count * bench->size : 0, is_counted ? 0 : seconds);
    uint64_t start_ns = mc_clock_ns();
    double start_cpu = processor_seconds();
    memset(pass, 0, sizeof(*pass));
    pass->bench = bench;
    pass->is_read = is_read;
    pass->count = count;
    pass->random = 1;
    pass->until_ns = start_ns + (uint64_t)(seconds * 1e9);
    for (unsigned i = 0; i < bench->depth; i++) {
        pass->lanes[i] = (struct lane){.pass = pass,
                                       .request = {.operation = is_read ? MC_DISK_READ : MC_DISK_WRITE,
                                                   .fd = bench->fd,
                                                   .buffer = bench->memory + i * bench->size,
                                                   .length = (uint32_t)bench->size,
                                                   .done = end_block}};
        begin_block(&pass->lanes[i]);
    }
    while (mc_disk_io_oldest_ns(bench->io) != 0)
        (void)mc_disk_io_collect(bench->io, -1);
    pass->seconds = (double)(mc_clock_ns() - start_ns) / 1e9;
    pass->cpu_seconds = processor_seconds() - start_cpu;
}

static void print_pass(const struct pass *pass, const char *name, FILE *out, struct mc_json_writer *json)
{
    char p50[32], p99[32];
    double gigabytes = (double)pass->bytes / 1e9, rate = pass->seconds > 0 ? gigabytes / pass->seconds : 0;
    double cpu = gigabytes > 0 ? pass->cpu_seconds / gigabytes : 0;
    fprintf(out, "%-6s %9.3f GB/s   p50 %8s   p99 %8s   %.3f processor seconds a GB\n", name, rate,
            mc_time_format(mc_histogram_quantile(&pass->times, 0.5), p50, sizeof(p50)),
            mc_time_format(mc_histogram_quantile(&pass->times, 0.99), p99, sizeof(p99)), cpu);
    mc_json_begin(json, name, '{');
    mc_json_add_real(json, "gbps", rate);
    mc_json_add_real(json, "seconds", pass->seconds);
    mc_json_add_number(json, "bytes", pass->bytes);
    mc_json_add_real(json, "cpu_seconds_per_gb", cpu);
    mc_histogram_member(&pass->times, "times", json);
    mc_json_end(json, '}');
}

/* The exit code of a pass. */
static int code_of(const struct pass *pass, const char *name)
{
    if (mc_interrupted || pass->error != 0)
        mc_meter_end(pass->bench->meter); /* before others print */
    if (mc_interrupted)
        return MC_BENCH_INTERRUPTED;
    return pass->error == 0 ? MC_BENCH_OK : mc_bench_fail(MC_BENCH_WRONG, "%s: %s", name, strerror(pass->error));
}

static int measure(const struct disk_bench *bench, const struct mc_options *options)
{
    struct pass pass;
    struct mc_buffer document = {0};
    char size[32];
    FILE *out = mc_bench_out(options);
    double seconds = mc_options_real(options, "seconds");
    const char *engine = mc_disk_io_kind(bench->io) == MC_DISK_IO_URING ? "io_uring" : "threads";
    bool is_direct = (fcntl(bench->fd, F_GETFL) & O_DIRECT) != 0;
    run_pass(&pass, bench, false, bench->total / bench->size, SECONDS_MAX);
    int rc = code_of(&pass, "laying out the file");
    if (rc != MC_BENCH_OK)
        return rc;
    mc_meter_hold(bench->meter);
    fprintf(out, "%s each, %u at a time, by %s, %s\n", mc_size_format(bench->size, size, sizeof(size)), bench->depth,
            engine, is_direct ? "O_DIRECT" : "through the kernel's cache");
    mc_meter_go_on(bench->meter);
    struct mc_json_writer json = mc_bench_json(&document, '{');
    mc_json_add_text(&json, "engine", engine);
    mc_json_add_bool(&json, "direct", is_direct);
    mc_json_add_number(&json, "size", bench->size);
    mc_json_add_number(&json, "depth", bench->depth);
    mc_json_add_number(&json, "total", bench->total);
    for (unsigned i = 0; i < 2 && rc == MC_BENCH_OK; i++) {
        run_pass(&pass, bench, i == 1, UINT64_MAX, seconds);
        mc_meter_hold(bench->meter);
        print_pass(&pass, i == 1 ? "read" : "write", out, &json);
        mc_meter_go_on(bench->meter);
        rc = code_of(&pass, i == 1 ? "read" : "write");
    }
    return mc_bench_write_json(options, &json, rc);
}

/* A file without a name, or -1 with errno. */
static int make_file(const char *folder, uint64_t total, bool is_direct)
{
    char name[PATH_MAX];
    snprintf(name, sizeof(name), "%s/mooncake_bench.XXXXXX", folder);
    int fd = mkostemp(name, O_CLOEXEC | (is_direct ? O_DIRECT : 0));
    if (fd < 0)
        return -1;
    (void)unlink(name);
    if (fallocate(fd, 0, 0, (off_t)total) == 0 || errno == EOPNOTSUPP)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

static int open_and_measure(struct disk_bench *bench, const struct mc_options *options)
{
    const char *engine = mc_options_text(options, "engine");
    enum mc_disk_io_kind kind = strcmp(engine, "uring") == 0     ? MC_DISK_IO_URING
                                : strcmp(engine, "threads") == 0 ? MC_DISK_IO_THREADS
                                                                 : MC_DISK_IO_AUTO;
    const char *path = mc_options_text(options, "path");
    int rc = MC_BENCH_TROUBLE, opened;
    bench->memory = mmap(NULL, bench->size * bench->depth, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (bench->memory == MAP_FAILED)
        return mc_bench_fail(rc, "no memory for --depth buffers of --size: %s", strerror(errno));
    for (uint64_t at = 0; at < bench->size * bench->depth;
         at += sizeof(uint64_t)) /* nothing that could be made small */
        *(uint64_t *)(void *)(bench->memory + at) = (at + 1) * 0x9e3779b97f4a7c15u;
    bench->fd = make_file(path, bench->total, mc_options_bool(options, "direct"));
    if (bench->fd < 0) {
        rc = mc_bench_fail(rc, "no file of --total bytes in %s: %s (mooncake_doctor --disk says more)", path,
                           strerror(errno));
        goto unmap;
    }
    opened = mc_disk_io_open(kind, bench->depth, &bench->io);
    if (opened < 0) {
        rc = mc_bench_fail(rc, "--engine=%s cannot be used: %s", engine, strerror(-opened));
        goto close_file;
    }
    mc_meter_begin(bench->meter);
    rc = measure(bench, options);
    mc_meter_end(bench->meter);
    mc_disk_io_close(bench->io);
close_file:
    close(bench->fd);
unmap:
    munmap(bench->memory, bench->size * bench->depth);
    return rc;
}

int mc_bench_disk(int argc, char **argv)
{
    struct mc_options options;
    struct mc_meter meter;
    struct disk_bench bench = {.fd = -1, .meter = &meter};
    int rc = MC_BENCH_USAGE;
    if (!mc_bench_options(&options, option_table, sizeof(option_table) / sizeof(option_table[0]), "mooncake_bench disk",
                          " [options]\nMeasures a disk through the queue that the disk tier uses.\n", argc, argv, &rc))
        return rc;
    bench.depth = (unsigned)mc_options_int(&options, "depth");
    mc_interrupt_catch();
    if (mc_bench_size(&options, "size", MC_DISK_IO_ALIGNMENT, &bench.size) &&
        mc_bench_size(&options, "total", MC_DISK_IO_ALIGNMENT, &bench.total)) {
        if (bench.size % MC_DISK_IO_ALIGNMENT != 0 || bench.size > bench.total ||
            bench.size * bench.depth > MEMORY_MAX || bench.size > UINT32_MAX)
            rc = mc_bench_fail(rc, "--size must be a multiple of %u, at most --total, and times --depth at most 4G",
                               MC_DISK_IO_ALIGNMENT);
        else
            rc = open_and_measure(&bench, &options);
    }
    mc_options_free(&options);
    return rc;
}
