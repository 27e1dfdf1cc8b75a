/* A worker of the replay: does what an inference engine does with each request it draws. Started by `replay` with the
 * shared memfd. Also the store node, a process that only lends memory. */
#include "tool/bench.h"
#include "tool/content.h"
#include "tool/shared.h"

#include "env/clock.h"
#include "mooncake.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define KEY_SIZE 64           /* bytes of a key with its zero */
#define LATE_NS 10000000      /* a request that starts later than this is counted as late */
#define SLEEP_NS_MAX 50000000 /* longest sleep between two looks at the stop flag */

struct worker_thread {
    struct mc_store *store;
    const struct mc_replay_view *view;
    struct mc_replay_stats *stats;
    uint8_t *buffer; /* of one batch */
    uint64_t buffer_size;
    /* Of one request; room for its largest. */
    char (*keys)[KEY_SIZE];
    struct mc_bytes *key_list;
    int *found;
    /* Of one batch. */
    uint32_t order[MC_REPLAY_BATCH_MAX]; /* block of each item */
    struct iovec parts[MC_REPLAY_BATCH_MAX];
    struct mc_get_item get_items[MC_REPLAY_BATCH_MAX];
    struct mc_put_item put_items[MC_REPLAY_BATCH_MAX];
    pthread_t thread;
};

/* One writer for each counter: a plain addition that the parent sees whole. */
static void count(_Atomic uint64_t *counter, uint64_t more)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + more, memory_order_relaxed);
}

static void count_error(struct mc_replay_stats *stats, int code)
{
    for (unsigned i = 0; i < MC_REPLAY_ERROR_KINDS; i++) {
        int known = atomic_load_explicit(&stats->errors[i].code, memory_order_relaxed);
        if (known == 0)
            atomic_store_explicit(&stats->errors[i].code, code, memory_order_relaxed);
        if (known == 0 || known == code) {
            count(&stats->errors[i].count, 1);
            return;
        }
    }
}

static uint64_t block_id(const struct worker_thread *worker, const struct mc_trace_request *request, uint32_t index)
{
    return worker->view->trace.block_ids[request->first_block + index];
}

static uint64_t bytes_of(const struct worker_thread *worker, const struct mc_trace_request *request, uint32_t index)
{
    return mc_replay_bytes(worker->view->shared->block_bytes, mc_trace_block_tokens(request, index));
}

static void make_keys(struct worker_thread *worker, const struct mc_trace_request *request)
{
    const struct mc_replay_shared *shared = worker->view->shared;
    for (uint32_t i = 0; i < request->block_count; i++) {
        int length = snprintf(worker->keys[i], KEY_SIZE, "%.22s@%.22s@%016llx", shared->trace_name, shared->model,
                              (unsigned long long)block_id(worker, request, i));
        worker->key_list[i] = (struct mc_bytes){worker->keys[i], (size_t)length};
    }
}

/* Length of the cached prefix in blocks. found[] says for each block whether it is there. */
static uint32_t look_up(struct worker_thread *worker, const struct mc_trace_request *request)
{
    uint64_t before = mc_clock_ns();
    int rc = mc_store_exist(worker->store, worker->key_list, request->block_count, worker->found);
    mc_histogram_add(&worker->stats->calls[MC_REPLAY_LOOKUP], mc_clock_ns() - before);
    if (rc != 0) {
        count(&worker->stats->failed_lookups, 1);
        count_error(worker->stats, rc);
        memset(worker->found, 0, request->block_count * sizeof(int));
        return 0;
    }
    uint32_t prefix = 0;
    while (prefix < request->block_count && worker->found[prefix] == 1)
        prefix++;
    return prefix;
}

/* Compares what a get delivered with what the block must hold. */
static void check(struct worker_thread *worker, const struct mc_trace_request *request, uint32_t items)
{
    const struct mc_replay_shared *shared = worker->view->shared;
    struct mc_replay_stats *stats = worker->stats;
    uint64_t before = mc_clock_ns();
    for (uint32_t i = 0; i < items; i++) {
        const struct mc_get_item *item = &worker->get_items[i];
        if (item->result <= 0)
            continue;
        size_t length = (size_t)item->result;
        uint64_t expected = bytes_of(worker, request, worker->order[i]);
        uint64_t wrong;
        if (length > worker->parts[i].iov_len)
            wrong = length; /* more than there is room for: nothing can be right about it */
        else
            wrong = mc_content_check(shared->seed, block_id(worker, request, worker->order[i]),
                                     worker->parts[i].iov_base, length);
        if (length < expected)
            wrong += expected - length;
        count(&stats->checked_bytes, length);
        count(&stats->wrong_bytes, wrong);
        count(&stats->wrong_blocks, wrong > 0);
    }
    count(&stats->check_ns, mc_clock_ns() - before);
}

/* Gets blocks [first, first + items). Blocks that could not be had are marked as not found. */
static void get_batch(struct worker_thread *worker, const struct mc_trace_request *request, uint32_t first,
                      uint32_t items)
{
    struct mc_replay_stats *stats = worker->stats;
    uint8_t *at = worker->buffer;
    for (uint32_t i = 0; i < items; i++) {
        uint64_t bytes = bytes_of(worker, request, first + i);
        worker->order[i] = first + i;
        worker->parts[i] = (struct iovec){at, bytes};
        worker->get_items[i] =
            (struct mc_get_item){.key = worker->key_list[first + i], .parts = &worker->parts[i], .part_count = 1};
        at += bytes;
    }
    uint64_t before = mc_clock_ns();
    int rc = mc_store_get(worker->store, worker->get_items, items, NULL, NULL);
    mc_histogram_add(&stats->calls[MC_REPLAY_GET], mc_clock_ns() - before);
    for (uint32_t i = 0; i < items; i++) {
        int64_t result = worker->get_items[i].result;
        if (result > 0) {
            count(&stats->got_blocks, 1);
            count(&stats->got_bytes, (uint64_t)result);
            continue;
        }
        worker->found[first + i] = 0;
        int code = result < 0 ? (int)result : rc;
        if (code == MC_ERR_OBJECT_NOT_FOUND || code == MC_ERR_REPLICA_IS_GONE || code == MC_ERR_LEASE_EXPIRED) {
            count(&stats->gone_blocks, 1);
        } else {
            count(&stats->failed_gets, 1);
            count_error(stats, code);
        }
    }
    if (worker->view->shared->verify)
        check(worker, request, items);
}

/* The content of a block, as the prefill would leave it. With corrupt_every some get one wrong byte. */
static void generate(struct worker_thread *worker, uint64_t id, uint8_t *at, uint64_t bytes)
{
    struct mc_replay_shared *shared = worker->view->shared;
    mc_content_fill(shared->seed, id, at, bytes);
    if (shared->corrupt_every > 0 && (atomic_fetch_add(&shared->put_number, 1) + 1) % shared->corrupt_every == 0)
        at[id % bytes] ^= 1;
}

static void put_batch(struct worker_thread *worker, const struct mc_trace_request *request, uint32_t items)
{
    struct mc_replay_stats *stats = worker->stats;
    struct mc_replicate_config config = {.replica_count = worker->view->shared->replica_count};
    uint8_t *at = worker->buffer;
    uint64_t before = mc_clock_ns();
    for (uint32_t i = 0; i < items; i++) {
        uint32_t index = worker->order[i];
        uint64_t bytes = bytes_of(worker, request, index);
        generate(worker, block_id(worker, request, index), at, bytes);
        worker->parts[i] = (struct iovec){at, bytes};
        worker->put_items[i] =
            (struct mc_put_item){.key = worker->key_list[index], .parts = &worker->parts[i], .part_count = 1};
        at += bytes;
    }
    uint64_t start = mc_clock_ns();
    int rc = mc_store_put(worker->store, worker->put_items, items, &config);
    uint64_t end = mc_clock_ns();
    count(&stats->generate_ns, start - before);
    mc_histogram_add(&stats->calls[MC_REPLAY_PUT], end - start);
    for (uint32_t i = 0; i < items; i++) {
        int result = worker->put_items[i].result;
        if (result == 0) {
            count(&stats->put_blocks, 1);
            count(&stats->put_bytes, worker->parts[i].iov_len);
        } else {
            count(&stats->failed_puts, 1);
            count_error(stats, result < 0 ? result : rc);
        }
    }
}

/* How many of the blocks from `first` on fit a batch. */
static uint32_t batch_length(const struct worker_thread *worker, uint32_t first, uint32_t end)
{
    uint32_t items = end - first;
    return items < worker->view->shared->batch ? items : worker->view->shared->batch;
}

static void put_missing(struct worker_thread *worker, const struct mc_trace_request *request)
{
    uint32_t items = 0;
    for (uint32_t i = 0; i < request->block_count; i++) {
        if (worker->found[i] != 1)
            worker->order[items++] = i;
        if (items == worker->view->shared->batch || (items > 0 && i + 1 == request->block_count)) {
            put_batch(worker, request, items);
            items = 0;
        }
    }
}

static void serve(struct worker_thread *worker, const struct mc_trace_request *request)
{
    struct mc_replay_stats *stats = worker->stats;
    if (request->block_count > 0) {
        make_keys(worker, request);
        uint32_t prefix = look_up(worker, request);
        for (uint32_t first = 0; first < prefix && worker->found[first] == 1;) {
            uint32_t items = batch_length(worker, first, prefix);
            get_batch(worker, request, first, items);
            for (uint32_t i = 0; i < items && worker->found[first] == 1; i++)
                first++;
        }
        /* The usable prefix ends at the first block that is missing now. */
        for (uint32_t i = 0; i < prefix && worker->found[i] == 1; i++) {
            count(&stats->hit_blocks, 1);
            count(&stats->hit_tokens, mc_trace_block_tokens(request, i));
        }
        put_missing(worker, request);
    }
    for (uint32_t i = 0; i < request->block_count; i++)
        count(&stats->tokens, mc_trace_block_tokens(request, i));
    count(&stats->blocks, request->block_count);
    count(&stats->requests, 1);
}

/* Sleeps until the request is due on the trace's clock; false when the replay was stopped. */
static bool await_turn(struct worker_thread *worker, const struct mc_trace_request *request)
{
    const struct mc_replay_shared *shared = worker->view->shared;
    if (shared->speed <= 0)
        return true;
    uint64_t first_ms = worker->view->trace.requests[0].timestamp_ms;
    uint64_t due =
        atomic_load(&shared->start_ns) + (uint64_t)((double)(request->timestamp_ms - first_ms) * 1e6 / shared->speed);
    for (uint64_t now = mc_clock_ns(); now < due; now = mc_clock_ns()) {
        uint64_t ns = due - now < SLEEP_NS_MAX ? due - now : SLEEP_NS_MAX;
        struct timespec time = {0, (long)ns};
        nanosleep(&time, NULL);
        if (atomic_load(&shared->stop) != 0)
            return false;
    }
    count(&worker->stats->late_requests, mc_clock_ns() - due > LATE_NS);
    return true;
}

static void *run_thread(void *argument)
{
    struct worker_thread *worker = argument;
    struct mc_replay_shared *shared = worker->view->shared;
    while (atomic_load(&shared->start_ns) == 0 && atomic_load(&shared->stop) == 0)
        usleep(500);
    while (atomic_load(&shared->stop) == 0) {
        uint64_t number = atomic_fetch_add(&shared->next_request, 1);
        if (number >= shared->request_count)
            break;
        const struct mc_trace_request *request = &worker->view->trace.requests[number];
        if (!await_turn(worker, request))
            break;
        serve(worker, request);
    }
    return NULL;
}

static bool prepare_thread(struct worker_thread *worker, struct mc_store *store, const struct mc_replay_view *view,
                           uint32_t index)
{
    uint32_t most = 1;
    for (uint64_t i = 0; i < view->trace.request_count; i++)
        if (view->trace.requests[i].block_count > most)
            most = view->trace.requests[i].block_count;
    worker->store = store;
    worker->view = view;
    worker->stats = &view->stats[index];
    worker->buffer_size = view->shared->block_bytes * view->shared->batch;
    worker->keys = calloc(most, sizeof(*worker->keys));
    worker->key_list = calloc(most, sizeof(*worker->key_list));
    worker->found = calloc(most, sizeof(*worker->found));
    /* Touched now: an engine's KV cache is there before the first request. */
    worker->buffer = mc_bench_memory(worker->buffer_size);
    if (worker->keys == NULL || worker->key_list == NULL || worker->found == NULL || worker->buffer == NULL)
        return false;
    return mc_store_register_buffer(store, worker->buffer, worker->buffer_size) == 0;
}

static void release_thread(struct worker_thread *worker)
{
    if (worker->buffer != NULL)
        munmap(worker->buffer, worker->buffer_size);
    free(worker->found);
    free(worker->key_list);
    free(worker->keys);
}

static int run_threads(struct mc_store *store, const struct mc_replay_view *view, uint32_t index)
{
    uint32_t threads = view->shared->thread_count, started = 0;
    int rc = MC_BENCH_OK;
    struct worker_thread *workers = calloc(threads, sizeof(*workers));
    if (workers == NULL)
        return MC_BENCH_TROUBLE;
    for (uint32_t i = 0; i < threads && rc == MC_BENCH_OK; i++)
        if (!prepare_thread(&workers[i], store, view, index * threads + i)) {
            fprintf(stderr, "worker %u: no memory for a batch of %u blocks; choose a smaller --batch\n", index,
                    view->shared->batch);
            rc = MC_BENCH_TROUBLE;
        }
    if (rc == MC_BENCH_OK)
        atomic_store(&view->shared->states[index], MC_REPLAY_READY);
    for (; rc == MC_BENCH_OK && started < threads; started++)
        if (pthread_create(&workers[started].thread, NULL, run_thread, &workers[started]) != 0) {
            fprintf(stderr, "worker %u: thread %u cannot be started\n", index, started);
            atomic_store(&view->shared->stop, 1);
            rc = MC_BENCH_TROUBLE;
            break;
        }
    for (uint32_t i = 0; i < started; i++)
        pthread_join(workers[i].thread, NULL);
    for (uint32_t i = 0; i < threads; i++)
        release_thread(&workers[i]);
    free(workers);
    return rc;
}

int mc_bench_worker(int argc, char **argv)
{
    struct mc_replay_view view = {0};
    struct mc_store *store = NULL;
    if (argc != 3)
        return mc_bench_fail(MC_BENCH_USAGE, "mooncake_bench worker is started by mooncake_bench replay");
    int fd = (int)strtol(argv[1], NULL, 10);
    uint32_t index = (uint32_t)strtoul(argv[2], NULL, 10);
    if (mc_replay_attach(fd, &view) != 0 || index >= view.shared->worker_count)
        return mc_bench_fail(MC_BENCH_USAGE, "worker %u: descriptor %d is not a replay's: %s", index, fd,
                             strerror(errno));
    struct mc_store_config config = {.local_hostname = "127.0.0.1",
                                     .master_server_addr = view.shared->master_address,
                                     .local_buffer_size = view.shared->block_bytes * view.shared->batch,
                                     .paths = view.shared->paths[0] != '\0' ? view.shared->paths : NULL};
    int rc = mc_store_open(&config, &store);
    if (rc != 0) {
        fprintf(stderr, "worker %u: cannot join %s: %s\n", index, config.master_server_addr, mc_error_text(rc));
        rc = MC_BENCH_TROUBLE;
    } else {
        rc = run_threads(store, &view, index);
        if (mc_store_close(store) != 0)
            rc = MC_BENCH_TROUBLE;
    }
    atomic_store(&view.shared->states[index], MC_REPLAY_DONE);
    mc_replay_detach(&view);
    return rc;
}

/* --- store node --- */

static const struct mc_option node_options[] = {
    ROW("master", TEXT, "127.0.0.1:50051", "address of the master"),
    MC_BENCH_SECRETS,
    ROW("segment", TEXT, "1GiB", "memory to lend"),
    ROW("host", TEXT, "127.0.0.1", "name or address under which others reach this node"),
    ROW("data_dir", TEXT, "",
        "folder of memory files (a tmpfs) that outlive the process, so that a restart keeps its objects"),
    ROW("disk", TEXT, "", "folders on disks that objects are stored on too, separated by commas; empty: none"),
    ROW("disk_bytes", TEXT, "0", "of each disk; 0: what is free there, but a part"),
    ROW("paths", TEXT, "", "paths that may be used: local,shm,tcp; empty: all"),
    ROW("seconds", REAL, "0", "ends by itself after so long; 0: at SIGTERM", .minimum = 0, .maximum = 1000000000),
    ROW("help", BOOL, "false", "prints this"),
};

/* Says once how much of the segment is there, then waits for a signal or the end of the time. */
static void serve_node(struct mc_store *store, uint64_t segment, double seconds, const sigset_t *signals)
{
    uint64_t end = seconds > 0 ? mc_clock_ns() + (uint64_t)(seconds * 1e9) : UINT64_MAX;
    bool said = false;
    while (mc_clock_ns() < end) {
        struct mc_store_statistics statistics;
        mc_store_statistics(store, &statistics);
        if (!said && statistics.segment_populated >= statistics.segment_capacity &&
            (statistics.segment_capacity > 0 || segment == 0)) {
            printf("node populated %llu\n", (unsigned long long)statistics.segment_populated);
            said = true;
        }
        struct timespec wait = {0, said ? 500000000 : 5000000};
        if (sigtimedwait(signals, NULL, &wait) > 0)
            break;
    }
}

int mc_bench_node(int argc, char **argv)
{
    struct mc_options options;
    struct mc_store *store = NULL;
    uint64_t segment = 0, disk_bytes = 0;
    sigset_t signals;
    int rc = MC_BENCH_USAGE;
    if (!mc_bench_options(&options, node_options, sizeof(node_options) / sizeof(node_options[0]), "mooncake_bench node",
                          " [options]\nLends memory to a cluster until it is told to end.\n", argc, argv, &rc))
        return rc;
    if (!mc_bench_size(&options, "segment", 0, &segment) || !mc_bench_size(&options, "disk_bytes", 0, &disk_bytes))
        goto done;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigprocmask(SIG_BLOCK, &signals, NULL); /* before the library's threads, which inherit it */
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    struct mc_store_config config = {.local_hostname = mc_options_text(&options, "host"),
                                     .master_server_addr = mc_options_text(&options, "master"),
                                     .global_segment_size = segment,
                                     .data_dir = mc_bench_text(&options, "data_dir"),
                                     .disk_paths = mc_bench_text(&options, "disk"),
                                     .disk_bytes = disk_bytes,
                                     .paths = mc_bench_text(&options, "paths")};
    int error = mc_store_open(&config, &store);
    if (error != 0) {
        fprintf(stderr, "cannot join the master at %s: %s\n", config.master_server_addr, mc_error_text(error));
        rc = MC_BENCH_TROUBLE;
        goto done;
    }
    printf("node ready %s\n", mc_store_hostname(store));
    serve_node(store, segment, mc_options_real(&options, "seconds"), &signals);
    rc = mc_store_close(store) == 0 ? MC_BENCH_OK : MC_BENCH_TROUBLE;
done:
    mc_options_free(&options);
    return rc;
}
