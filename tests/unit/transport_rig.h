/* One owner (memory and server, here or in a process of its own) and another process that reaches it by one kind of
 * path. For tests and benches of the transports. Objects are filled from a seed, so that every byte of every object can
 * be checked. */
#ifndef MC_TEST_TRANSPORT_RIG_H
#define MC_TEST_TRANSPORT_RIG_H

#include "base/checksum.h"
#include "store/path/paths.h"
#include "store/segment/memory.h"
#include "store/segment/serve.h"
#include "env/clock.h"
#include "mooncake.h"
#include "rdma/rdma.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define RIG_SEGMENT 7u
#define PATIENT_MS 100000u /* for what must succeed, on whatever machine */

static struct mc_rdma *rig_rdma; /* kind MC_PATH_RDMA: of the test; both halves use it, and rig_stop closes it */

static uint32_t rig_connection_limit; /* of an owner that is started; 0: as many as by default */

static uint32_t rig_threads; /* data threads of an owner that is started */

/* Of an owner that is started in this process. */
static struct mc_serve_hooks rig_hooks;

struct rig {
    unsigned kind;                    /* MC_PATH_* */
    struct mc_segment_memory *memory; /* NULL when the owner is another process */
    struct mc_serve *serve;
    pid_t peer;    /* 0 = none */
    int peer_life; /* closing it ends the peer */
    struct mc_endpoint endpoint;
    struct mc_paths *paths;
    struct mc_path *path;
    uint64_t generation;
};

static inline uint64_t rig_deadline(uint64_t ms)
{
    return mc_clock_ns() + ms * 1000000;
}

/* The owner's half. 0 or negative. */
static inline int rig_owner_start(struct rig *rig, uint64_t capacity, bool populate)
{
    int rc = mc_segment_memory_create(capacity, &rig->memory);
    if (rc < 0)
        return rc;
    if (populate) {
        rc = mc_segment_memory_populate(rig->memory, NULL, NULL);
        while (rc == 0 && mc_segment_memory_populated(rig->memory) < mc_segment_memory_capacity(rig->memory))
            usleep(1000);
    }
    struct mc_id node = mc_random_id();
    uint64_t incarnation = mc_random_u64();
    rc = mc_serve_create(node, incarnation, "127.0.0.1", 0, true, &rig_hooks, &rig->serve);
    if (rc < 0)
        return rc;
    mc_serve_threads(rig->serve, rig_threads);
    mc_serve_set_memory(rig->serve, rig->memory);
    rig->endpoint = (struct mc_endpoint){.segment = RIG_SEGMENT,
                                         .node = node,
                                         .incarnation = incarnation,
                                         .segment_id = mc_segment_memory_id(rig->memory),
                                         .capacity = mc_segment_memory_capacity(rig->memory),
                                         .slot_count = mc_segment_memory_slot_count(rig->memory),
                                         .nonce = mc_segment_memory_nonce(rig->memory),
                                         .host = mc_host_id(),
                                         .name = "rig"};
    mc_address_join(rig->endpoint.tcp_address, sizeof(rig->endpoint.tcp_address), "127.0.0.1",
                    mc_serve_tcp_port(rig->serve));
    snprintf(rig->endpoint.unix_path, sizeof(rig->endpoint.unix_path), "%s", mc_serve_unix_path(rig->serve));
    mc_serve_set_rdma(rig->serve, rig_rdma);
    if (rig_connection_limit > 0)
        mc_serve_set_limits(rig->serve, rig_connection_limit, MC_SERVE_HELLO_MS, MC_SERVE_IDLE_MS);
    rc = mc_serve_start(rig->serve);
    if (rc == 0)
        mc_serve_pin(rig->serve, rig->memory);
    return rc;
}

/* main() of the peer process: "rig-owner CAPACITY POPULATE"; tells its endpoint on descriptor 1 and ends when
 * descriptor 0 does. */
static inline int rig_owner_main(char **arguments)
{
    struct rig rig = {0};
    char byte;
    const char *threads = getenv("RIG_THREADS");
    rig_threads = threads == NULL ? 0 : (uint32_t)atoi(threads);
    if (rig_owner_start(&rig, strtoull(arguments[2], NULL, 10), arguments[3][0] == '1') < 0)
        return 1;
    if (write(1, &rig.endpoint, sizeof(rig.endpoint)) != (ssize_t)sizeof(rig.endpoint))
        return 1;
    while (read(0, &byte, 1) > 0)
        ;
    mc_serve_destroy(rig.serve);
    mc_segment_memory_release(rig.memory);
    return 0;
}

static inline int rig_peer_start(struct rig *rig, uint64_t capacity, bool populate)
{
    int life[2], news[2];
    char size[32];
    snprintf(size, sizeof(size), "%llu", (unsigned long long)capacity);
    if (pipe(life) != 0 || pipe(news) != 0)
        return -1;
    rig->peer = fork();
    if (rig->peer == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves it stopped */
        dup2(life[0], 0);
        dup2(news[1], 1);
        for (int fd = 3; fd < 256; fd++)
            close(fd);
        execl("/proc/self/exe", "rig", "rig-owner", size, populate ? "1" : "0", (char *)NULL);
        _exit(127);
    }
    close(life[0]);
    close(news[1]);
    rig->peer_life = life[1];
    ssize_t length = rig->peer < 0 ? -1 : read(news[0], &rig->endpoint, sizeof(rig->endpoint));
    close(news[0]);
    return length == (ssize_t)sizeof(rig->endpoint) ? 0 : -1;
}

/* kind: how the paths may reach the owner. other: the owner is another process. */
static inline int rig_start(struct rig *rig, unsigned kind, uint64_t capacity, bool other, bool populate)
{
    *rig = (struct rig){.kind = kind, .generation = 1ull << MC_EPOCH_SHIFT, .peer_life = -1};
    int rc = other ? rig_peer_start(rig, capacity, populate) : rig_owner_start(rig, capacity, populate);
    if (rc < 0)
        return rc;
    rig->paths = mc_paths_create(mc_random_id(), mc_random_u64(), kind);
    if (rig->paths == NULL)
        return MC_ERR_NO_MEMORY;
    if (!other)
        mc_paths_add_segment(rig->paths, rig->memory);
    if (rig_rdma != NULL)
        mc_paths_set_rdma(rig->paths, rig_rdma);
    for (int i = 0; i < 500 && rig_rdma != NULL; i++) { /* until the memory is registered */
        if (mc_path_get(rig->paths, &rig->endpoint, rig_deadline(5000), &rig->path) == 0)
            return 0;
        usleep(10000);
    }
    return mc_path_get(rig->paths, &rig->endpoint, rig_deadline(5000), &rig->path);
}

static inline void rig_peer_stop(struct rig *rig)
{
    if (rig->peer <= 0)
        return;
    kill(rig->peer, SIGKILL); /* our own child, by its number */
    waitpid(rig->peer, NULL, 0);
    close(rig->peer_life);
    rig->peer = 0;
}

static inline void rig_stop(struct rig *rig)
{
    if (rig->path != NULL)
        mc_path_release(rig->path);
    if (rig->memory != NULL && rig->paths != NULL)
        mc_paths_remove_segment(rig->paths, rig->memory);
    mc_paths_destroy(rig->paths);
    mc_serve_destroy(rig->serve);
    if (rig->memory != NULL)
        mc_segment_memory_release(rig->memory);
    rig_peer_stop(rig);
    mc_rdma_close(rig_rdma);
    rig_rdma = NULL;
}

/* Bytes of an object: cheap to make at any offset. */
static inline void rig_fill(uint8_t *data, size_t length, uint64_t seed)
{
    uint64_t word = seed * 0x9e3779b97f4a7c15u + 1;
    size_t at = 0;
    for (; at + 8 <= length; at += 8) {
        word = word * 6364136223846793005u + 1442695040888963407u;
        memcpy(data + at, &word, 8);
    }
    for (; at < length; at++)
        data[at] = (uint8_t)(seed + at);
}

static inline struct mc_transfer rig_transfer(enum mc_transfer_kind kind, uint32_t slot, uint64_t generation,
                                              uint64_t offset, uint64_t object_length, const char *key,
                                              const struct iovec *parts, size_t part_count)
{
    struct mc_hash hash = mc_hash(key, strlen(key));
    return (struct mc_transfer){
        .kind = kind,
        .place = {.segment = RIG_SEGMENT, .slot = slot, .generation = generation, .offset = offset},
        .object_length = object_length,
        .hash_low = hash.low,
        .hash_high = hash.high,
        .key = mc_span_string(key),
        .flags = 2,
        .replica = 3,
        .offset = 0,
        .length = object_length,
        .parts = parts,
        .part_count = part_count,
        .result = 12345};
}

static bool rig_registers; /* the callers' parts, for the time of a run */

/* Registers, or lets go of, the memory around all parts of the transfers. */
static inline void rig_register(struct rig *rig, const struct mc_transfer *transfers, size_t count, bool is_wanted)
{
    uintptr_t start = UINTPTR_MAX, end = 0;
    for (size_t i = 0; i < count && rig_registers; i++) {
        for (size_t j = 0; j < transfers[i].part_count; j++) {
            uintptr_t from = (uintptr_t)transfers[i].parts[j].iov_base, to = from + transfers[i].parts[j].iov_len;
            start = from < to && from < start ? from : start;
            end = from < to && to > end ? to : end;
        }
    }
    if (end > start && is_wanted)
        (void)mc_paths_register(rig->paths, (void *)start, end - start);
    else if (end > start)
        mc_paths_unregister(rig->paths, (const void *)start);
}

static inline void rig_run(struct rig *rig, struct mc_transfer *transfers, size_t count, uint64_t timeout_ms)
{
    struct mc_transfer **list = malloc(count * sizeof(*list));
    for (size_t i = 0; i < count; i++)
        list[i] = &transfers[i];
    rig_register(rig, transfers, count, true);
    struct mc_run run = {.deadline_ns = rig_deadline(timeout_ms)};
    mc_path_run(rig->path, list, count, &run);
    rig_register(rig, transfers, count, false);
    free(list);
}

static inline int rig_run_one(struct rig *rig, struct mc_transfer *transfer, uint64_t timeout_ms)
{
    rig_register(rig, transfer, 1, true);
    struct mc_run run = {.deadline_ns = rig_deadline(timeout_ms)};
    mc_path_run(rig->path, &transfer, 1, &run);
    rig_register(rig, transfer, 1, false);
    return transfer->result;
}

/* Whether the owner has applied it; it does so soon after a write has returned. */
static inline bool rig_wait_live(struct rig *rig, uint32_t slot, uint64_t generation)
{
    struct mc_slot seen;
    for (unsigned i = 0; i < PATIENT_MS; i++) {
        if (mc_slot_read(&mc_segment_memory_slots(rig->memory)[slot], generation, &seen))
            return true;
        usleep(100);
    }
    return false;
}

#endif
