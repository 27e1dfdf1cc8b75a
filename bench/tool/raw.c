/* `mooncake_bench raw`: the limits of this machine for the work that the store does. One thread copies between private
 * memory and a memfd (what the shared-memory path does), a sender and a receiver process move the same buffers over one
 * loopback connection in plain loops (what the TCP path does), and 64 bytes go there and back. Buffers rotate over
 * --total bytes, so that caches help no more than they help the store. */
#include "tool/bench.h"
#include "tool/plain.h"

#include "env/clock.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZES_MAX 16
#define PASSES_MAX 16
#define PING_BYTES 64
#define PINGS 5000

static const struct mc_option option_table[] = {
    ROW("sizes", TEXT, "64K,1M,4M,16M,64M", "sizes of one copy or message, comma separated"),
    ROW("total", TEXT, "512M", "bytes of buffers to rotate over"),
    ROW("passes", INT, "3", "over all buffers; the median counts", .minimum = 1, .maximum = PASSES_MAX),
    ROW("json", TEXT, "", "writes the results to this file; - is stdout"),
    ROW("help", BOOL, "false", "prints this"),
};

struct raw_run {
    uint64_t sizes[SIZES_MAX];
    unsigned size_count, passes;
    uint64_t total;
    uint8_t *private, *shared;
};

static double copy_gbps(const struct raw_run *raw, uint8_t *target, const uint8_t *source, uint64_t size)
{
    double gbps[PASSES_MAX];
    uint64_t used = raw->total / size * size;
    for (unsigned pass = 0; pass < raw->passes; pass++) {
        uint64_t start = mc_clock_ns();
        for (uint64_t at = 0; at + size <= raw->total; at += size) {
            memcpy(target + at, source + at, size);
            __asm__ volatile("" ::: "memory"); /* the copies may not be merged or dropped */
        }
        gbps[pass] = (double)used / (double)(mc_clock_ns() - start);
    }
    return mc_bench_median(gbps, raw->passes);
}

/* The other process: sends all buffers of the asked size for each request, until the connection ends; size 0 is a ping.
 */
static _Noreturn void send_for_requests(int fd, const struct raw_run *raw)
{
    uint64_t size;
    uint8_t ping[PING_BYTES] = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (mc_plain_receive(fd, &size, sizeof(size))) {
        if (size == 0) {
            if (!mc_plain_receive(fd, ping, PING_BYTES - sizeof(size)) || !mc_plain_send(fd, ping, PING_BYTES))
                break;
            continue;
        }
        for (uint64_t at = 0; at + size <= raw->total; at += size)
            if (!mc_plain_send(fd, raw->shared + at, size))
                _exit(1);
    }
    _exit(0);
}

static bool tcp_pass(int fd, const struct raw_run *raw, uint64_t size, double *gbps)
{
    uint64_t used = raw->total / size * size;
    uint64_t start = mc_clock_ns();
    if (!mc_plain_send(fd, &size, sizeof(size)))
        return false;
    for (uint64_t at = 0; at + size <= raw->total; at += size)
        if (!mc_plain_receive(fd, raw->private + at, size))
            return false;
    *gbps = (double)used / (double)(mc_clock_ns() - start);
    return true;
}

static bool ping_pass(int fd, double *us)
{
    static double times[PINGS];
    uint8_t message[PING_BYTES] = {0};
    for (unsigned i = 0; i < PINGS; i++) {
        uint64_t start = mc_clock_ns();
        if (!mc_plain_send(fd, message, sizeof(message)) || !mc_plain_receive(fd, message, sizeof(message)))
            return false;
        memset(message, 0, sizeof(message));
        times[i] = (double)(mc_clock_ns() - start) / 1e3;
    }
    *us = mc_bench_median(times, PINGS);
    return true;
}

static bool measure_tcp(const struct raw_run *raw, double *gbps, double *round_trip_us)
{
    uint16_t port;
    int listener = mc_plain_listen(&port), client = mc_plain_connect(port),
        server = client < 0 ? -1 : mc_plain_accept(listener);
    close(listener);
    if (server < 0)
        return false;
    pid_t pid = fork();
    if (pid == 0) {
        close(client);
        send_for_requests(server, raw);
    }
    close(server);
    bool good = pid > 0 && ping_pass(client, round_trip_us);
    for (unsigned i = 0; good && i < raw->size_count; i++) {
        double passes[PASSES_MAX];
        for (unsigned pass = 0; good && pass < raw->passes; pass++)
            good = tcp_pass(client, raw, raw->sizes[i], &passes[pass]);
        if (good)
            gbps[i] = mc_bench_median(passes, raw->passes);
    }
    close(client);
    while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    return good;
}

static bool parse_sizes(struct raw_run *raw, const char *text)
{
    char copy[256], *rest = copy, *word;
    snprintf(copy, sizeof(copy), "%s", text);
    while ((word = strsep(&rest, ",")) != NULL) {
        if (raw->size_count == SIZES_MAX || !mc_size_parse(word, &raw->sizes[raw->size_count]) ||
            raw->sizes[raw->size_count] == 0 || raw->sizes[raw->size_count] > raw->total)
            return mc_bench_fail(false, "--sizes=%s: must be up to %d sizes of 1 byte to --total", text, SIZES_MAX);
        raw->size_count++;
    }
    return true;
}

static bool make_memory(struct raw_run *raw)
{
    int fd = memfd_create("raw", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)raw->total) != 0)
        return false;
    raw->shared = mmap(NULL, raw->total, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    raw->private = mc_bench_memory(raw->total);
    close(fd);
    if (raw->shared == MAP_FAILED || raw->private == NULL)
        return false;
    memset(raw->shared, 0x5a, raw->total);
    memset(raw->private, 0xa5, raw->total);
    return true;
}

static int measure(struct raw_run *raw, const struct mc_options *options)
{
    double tcp[SIZES_MAX] = {0}, round_trip_us = 0;
    char text[32];
    struct mc_buffer document = {0};
    FILE *out = mc_bench_out(options);
    if (!measure_tcp(raw, tcp, &round_trip_us))
        return mc_bench_fail(MC_BENCH_TROUBLE, "loopback TCP does not work: %s", strerror(errno));
    struct mc_json_writer json = mc_bench_json(&document, '{');
    mc_json_begin(&json, "sizes", '[');
    fprintf(out, "%-12s %20s %20s %14s   (GB/s, rotating over %s)\n", "size", "memcpy to memfd", "memcpy from memfd",
            "TCP loop", mc_size_format(raw->total, text, sizeof(text)));
    for (unsigned i = 0; i < raw->size_count; i++) {
        double to = copy_gbps(raw, raw->shared, raw->private, raw->sizes[i]);
        double from = copy_gbps(raw, raw->private, raw->shared, raw->sizes[i]);
        fprintf(out, "%-12s %20.2f %20.2f %14.2f\n", mc_size_format(raw->sizes[i], text, sizeof(text)), to, from,
                tcp[i]);
        mc_json_begin(&json, NULL, '{');
        mc_json_add_number(&json, "bytes", raw->sizes[i]);
        mc_json_add_real(&json, "memcpy_to_shared_gbps", to);
        mc_json_add_real(&json, "memcpy_from_shared_gbps", from);
        mc_json_add_real(&json, "tcp_gbps", tcp[i]);
        mc_json_end(&json, '}');
    }
    fprintf(out, "round trip of %d bytes: %.1f us p50\n", PING_BYTES, round_trip_us);
    mc_json_end(&json, ']');
    mc_json_add_real(&json, "round_trip_us", round_trip_us);
    mc_json_add_number(&json, "total", raw->total);
    return mc_bench_write_json(options, &json, MC_BENCH_OK);
}

int mc_bench_raw(int argc, char **argv)
{
    struct mc_options options;
    struct raw_run raw = {0};
    int rc = MC_BENCH_USAGE;
    if (!mc_bench_options(&options, option_table, sizeof(option_table) / sizeof(option_table[0]), "mooncake_bench raw",
                          " [options]\nMeasures what this machine can do at all.\n", argc, argv, &rc))
        return rc;
    raw.passes = (unsigned)mc_options_int(&options, "passes");
    if (mc_bench_size(&options, "total", 4096, &raw.total) && parse_sizes(&raw, mc_options_text(&options, "sizes"))) {
        if (make_memory(&raw)) {
            rc = measure(&raw, &options);
        } else {
            fprintf(stderr, "no memory for two times --total: %s\n", strerror(errno));
            rc = MC_BENCH_TROUBLE;
        }
    }
    mc_options_free(&options);
    return rc;
}
