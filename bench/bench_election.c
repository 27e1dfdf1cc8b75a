/* What renewals leave behind in etcd: a leader's renewals as fast as a private etcd takes them, with the leader's own
 * requests (store/master/election_etcd.c), and its compaction by a clock that goes on by renew_ms with each of them.
 *
 * bench_election [--minutes 10] [--ttl_ms 2000] [--compaction_s 1800] [--threads 4]: the size of etcd's database and of
 * its directory after each part of the run. --compaction_s 0: nobody compacts. Threads renew one claim together; each
 * has a connection of its own. */
#include "base/bytes.h"
#include "env/clock.h"
#include "env/etcd.h"
#include "env/json.h"
#include "store/master/election.h"
#include "env/socket.h"
#include "store/master/leadership.h"
#include "tool/bench.h"
#include "tool/process.h"

#include <ftw.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THREADS_MAX 16
#define PARTS 20
#define CALL_MS 5000
#define TIDY_LOOK_MS 60000u /* as in store/master/election.c */
#define YEAR_S 31557600.0
#define START_HUNDREDTHS 6000000000u /* of the clock of the claims */
#define LEADER "10.0.0.7:50051"

struct bench {
    uint64_t ttl_ms, compaction_s;
    struct mc_leadership_config config;
    char folder[64], endpoint[32], claim[MC_ELECTION_CLAIM_MAX];
    struct mc_process etcd;
    _Atomic uint64_t renewals, failed;
    _Atomic bool is_over;
};

static _Noreturn void give_up(const char *what)
{
    fprintf(stderr, "bench_election: %s\n", what);
    exit(1);
}

static uint64_t deadline(void)
{
    return mc_clock_ns() + CALL_MS * 1000000ull;
}

static unsigned free_port(void)
{
    uint16_t port = 0;
    int fd = mc_tcp_listen("127.0.0.1", &port);
    if (fd < 0)
        give_up("no port");
    close(fd);
    return port;
}

/* With the settings that etcd has by itself, but for the disk, which is not waited for. */
static void start_etcd(struct bench *bench)
{
    char client[64], peer[64], members[96], data[80];
    snprintf(bench->folder, sizeof(bench->folder), "/tmp/mc-election-XXXXXX");
    if (mkdtemp(bench->folder) == NULL)
        give_up("no directory");
    unsigned port = free_port();
    snprintf(bench->endpoint, sizeof(bench->endpoint), "127.0.0.1:%u", port);
    snprintf(client, sizeof(client), "http://127.0.0.1:%u", port);
    snprintf(peer, sizeof(peer), "http://127.0.0.1:%u", free_port());
    snprintf(members, sizeof(members), "default=%s", peer);
    snprintf(data, sizeof(data), "%s/data", bench->folder);
    char *argv[] = {
        "etcd",  "--data-dir",         data, "--listen-client-urls",          client, "--advertise-client-urls",
        client,  "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,   "--initial-cluster",
        members, "--unsafe-no-fsync",  NULL};
    if (mc_process_start(&bench->etcd, "etcd", argv, NULL, -1) != 0)
        give_up("no etcd");
}

static _Atomic uint64_t folder_bytes;

static int add_file(const char *path, const struct stat *status, int kind, struct FTW *where)
{
    (void)path, (void)where;
    folder_bytes += kind == FTW_F ? (uint64_t)status->st_blocks * 512 : 0;
    return 0;
}

static int remove_file(const char *path, const struct stat *status, int kind, struct FTW *where)
{
    (void)status, (void)kind, (void)where;
    return remove(path);
}

static void end_etcd(struct bench *bench)
{
    mc_process_reap(&bench->etcd, 0);
    if (nftw(bench->folder, remove_file, 16, FTW_DEPTH | FTW_PHYS) != 0)
        fprintf(stderr, "bench_election: %s is left\n", bench->folder);
}

static void create_backend(struct bench *bench, struct mc_election_backend *backend)
{
    char error[256];
    if (mc_election_etcd_create(bench->endpoint, "bench", bench->ttl_ms, backend, error, sizeof(error)) < 0)
        give_up(error);
}

/* ---- the leader ---- */

static void claim(struct bench *bench, struct mc_election_backend *backend)
{
    struct mc_election_view view;
    for (int i = 0; backend->observe(backend->context, deadline(), &view) < 0; i++) {
        if (i == 100)
            give_up("etcd does not answer; is it installed?");
        usleep(100000);
    }
    snprintf(bench->claim, sizeof(bench->claim), "%lu %" PRIu64 " 0123456789abcdef notes ages", START_HUNDREDTHS,
             bench->ttl_ms);
    const char *const words[MC_ELECTION_WORDS] = {[MC_ELECTION_DEPARTED] = "0", [MC_ELECTION_AGED] = "0"};
    if (backend->claim(backend->context, deadline(), &view, bench->claim, LEADER, words) < 0)
        give_up("the claim fails");
}

static void *renew(void *argument)
{
    struct bench *bench = argument;
    struct mc_election_backend backend;
    create_backend(bench, &backend);
    while (!bench->is_over) {
        if (backend.renew(backend.context, deadline(), bench->claim, LEADER) == 0)
            bench->renewals++;
        else
            bench->failed++;
    }
    backend.destroy(backend.context);
    return NULL;
}

/* What the leader does once a minute, by the clock of the renewals. */
static void tidy(struct bench *bench, struct mc_election_backend *backend, uint64_t now_ms)
{
    uint64_t now = START_HUNDREDTHS + now_ms / 10;
    int rc = 1;
    while (rc == 1)
        rc = backend->tidy(backend->context, deadline(), bench->claim, now, bench->compaction_s * 100);
    if (rc < 0)
        bench->failed++;
}

static uint64_t database_bytes(struct mc_etcd *etcd)
{
    struct mc_buffer reply = {0};
    uint64_t size = 0;
    if (mc_etcd_call(etcd, "/v3/maintenance/status", mc_span("{}", 2), deadline(), &reply) == 0 &&
        mc_json_find_number(mc_span(reply.data, reply.length), "dbSize", &size) != 1)
        size = 0;
    mc_buffer_free(&reply);
    return size;
}

static void measure(struct bench *bench, struct mc_etcd *etcd, uint64_t *largest)
{
    uint64_t size = database_bytes(etcd);
    double days = (double)(bench->renewals * bench->config.renew_ms) / 86400e3;
    folder_bytes = 0;
    (void)nftw(bench->folder, add_file, 16, FTW_PHYS); /* what goes meanwhile is not counted */
    *largest = size > *largest ? size : *largest;
    printf("%12" PRIu64 " %8.2f %12.2f %14.1f\n", (uint64_t)bench->renewals, days, (double)size / 1e6,
           (double)folder_bytes / 1e6);
    fflush(stdout);
}

static void run(struct bench *bench, double minutes, unsigned threads)
{
    struct mc_election_backend backend;
    struct mc_etcd *etcd;
    pthread_t renewing[THREADS_MAX];
    char error[256];
    create_backend(bench, &backend);
    if (mc_etcd_create(bench->endpoint, &etcd, error, sizeof(error)) < 0)
        give_up(error);
    claim(bench, &backend);
    for (unsigned i = 0; i < threads; i++)
        if (pthread_create(&renewing[i], NULL, renew, bench) != 0)
            give_up("no thread");
    printf("%12s %8s %12s %14s\n", "renewals", "days", "database MB", "directory MB");
    uint64_t start_ns = mc_clock_ns(), span_ns = (uint64_t)(minutes * 60e9), next_ms = 0, largest = 0;
    for (int part = 1; part <= PARTS; part++) {
        while (mc_clock_ns() < start_ns + span_ns / PARTS * (uint64_t)part) {
            uint64_t now_ms = bench->renewals * bench->config.renew_ms;
            if (bench->compaction_s != 0 && now_ms >= next_ms) {
                tidy(bench, &backend, now_ms);
                next_ms = now_ms + TIDY_LOOK_MS;
            }
            usleep(500);
        }
        measure(bench, etcd, &largest);
    }
    bench->is_over = true;
    for (unsigned i = 0; i < threads; i++)
        pthread_join(renewing[i], NULL);
    double year = YEAR_S * 1e3 / (double)bench->config.renew_ms;
    printf("a year is %.1f million renewals at a ttl of %" PRIu64 " ms; this run had %.2f million (%.1f days), %" PRIu64
           " failed; the database was never above %.2f MB\n",
           year / 1e6, bench->ttl_ms, (double)bench->renewals / 1e6, (double)bench->renewals / year * YEAR_S / 86400,
           (uint64_t)bench->failed, (double)largest / 1e6);
    mc_etcd_destroy(etcd);
    backend.destroy(backend.context);
}

static const struct mc_option option_table[] = {
    ROW("minutes", REAL, "10", "that it takes", .minimum = 0, .maximum = 100000),
    ROW("ttl_ms", INT, "2000", "of the claim", .minimum = 5, .maximum = 86400000),
    ROW("compaction_s", INT, "1800", "of history that is kept; 0: nobody compacts", .minimum = 0, .maximum = 86400000),
    ROW("threads", INT, "4", "that renew", .minimum = 1, .maximum = THREADS_MAX),
    ROW("help", BOOL, "false", "prints this"),
};

int main(int argc, char **argv)
{
    struct bench bench = {.failed = 0};
    struct mc_options options;
    int rc;
    if (!mc_bench_options(&options, option_table, sizeof(option_table) / sizeof(option_table[0]), "bench_election",
                          " [options]\nWhat a leader's renewals leave behind in etcd.\n", argc, argv, &rc))
        return rc;
    bench.ttl_ms = (uint64_t)mc_options_int(&options, "ttl_ms");
    bench.compaction_s = (uint64_t)mc_options_int(&options, "compaction_s");
    bench.config = mc_leadership_config(bench.ttl_ms);
    start_etcd(&bench);
    run(&bench, mc_options_real(&options, "minutes"), (unsigned)mc_options_int(&options, "threads"));
    end_etcd(&bench);
    mc_options_free(&options);
    return bench.failed == 0 && bench.renewals != 0 ? 0 : 1;
}
