/* One side of a measurement of the transfer engine: engine, buffer, pattern; and the process that is nothing but a
 * target. */
#include "tool/engine.h"

#include "tool/bench.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#define HUGE ((uint64_t)2 << 20)

/* Every eight bytes differ from their neighbours, and from what other versions have at the same place. */
static uint64_t word_at(uint64_t number, uint32_t version)
{
    uint64_t word = (number + 1) * 0x9e3779b97f4a7c15u + (uint64_t)version * 0xc2b2ae3d27d4eb4fu;
    return (word ^ word >> 31) * 0xd6e8feb86659fd93u;
}

void mc_engine_pattern(uint8_t *bytes, uint64_t offset, uint64_t length, uint32_t version)
{
    for (uint64_t at = 0; at < length;) {
        uint64_t word = word_at((offset + at) / 8, version), skip = (offset + at) % 8;
        uint64_t part = 8 - skip < length - at ? 8 - skip : length - at;
        memcpy(bytes + at, (const uint8_t *)&word + skip, (size_t)part);
        at += part;
    }
}

/* On a border of huge pages, so that it can consist of them; every page is there afterwards. */
static uint8_t *map_buffer(uint64_t size, bool is_huge)
{
    uint8_t *map = mmap(NULL, size + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return NULL;
    uint64_t skip = (HUGE - (uintptr_t)map % HUGE) % HUGE;
    if (skip > 0)
        (void)munmap(map, skip);
    if (HUGE - skip > 0)
        (void)munmap(map + skip + size, HUGE - skip);
    (void)madvise(map + skip, size, is_huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    return map + skip;
}

int mc_engine_side_open(struct mc_engine_side *side, const struct mc_transfer_config *config, uint64_t size,
                        enum mc_engine_memory memory)
{
    const char *protocol = config->protocol;
    *side = (struct mc_engine_side){.memory = memory};
    /* The engine takes any other for tcp: that is not what was to be measured. */
    bool is_known = protocol[0] == 0 || strcasecmp(protocol, "rdma") == 0 || strcasecmp(protocol, "tcp") == 0;
    int rc = is_known ? mc_transfer_open(config, &side->engine) : MC_TRANSFER_ERR_INVALID_ARGUMENT;
    if (!is_known)
        return mc_bench_fail(rc, "protocol '%s' is not in this build: rdma or tcp can be measured", protocol);
    if (rc < 0)
        return mc_bench_fail(rc, "the transfer engine does not start: %s", mc_transfer_error_text(rc));
    size = (size + 4095) & ~(uint64_t)4095;
    side->buffer = memory == MC_ENGINE_ALLOCATED ? mc_transfer_allocate(side->engine, size)
                                                 : map_buffer(size, memory == MC_ENGINE_HUGE);
    if (side->buffer == NULL)
        return mc_bench_fail(MC_TRANSFER_ERR_MEMORY, "no memory for a buffer of %llu bytes: %s",
                             (unsigned long long)size, strerror(errno));
    side->size = size;
    mc_engine_pattern(side->buffer, 0, size, 0);
    if (memory == MC_ENGINE_ALLOCATED)
        return 0;
    rc = mc_transfer_register(side->engine, &(struct mc_transfer_range){(uintptr_t)side->buffer, size}, 1);
    if (rc < 0)
        fprintf(stderr, "the buffer cannot be registered: %s\n", mc_transfer_error_text(rc));
    return rc;
}

void mc_engine_side_close(struct mc_engine_side *side)
{
    mc_transfer_close(side->engine); /* frees what it allocated, and lets nobody reach the rest */
    if (side->buffer != NULL && side->memory != MC_ENGINE_ALLOCATED)
        (void)munmap(side->buffer, side->size);
    *side = (struct mc_engine_side){0};
}

int mc_engine_serve(const struct mc_transfer_config *config, uint64_t size, enum mc_engine_memory memory)
{
    struct mc_engine_side side;
    sigset_t signals;
    int number;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGHUP);
    sigprocmask(SIG_BLOCK, &signals, NULL); /* before the engine's threads: sigwait is to have them */
    int rc = mc_engine_side_open(&side, config, size, memory);
    if (rc == 0) {
        printf("target %s\n", mc_transfer_name(side.engine));
        fflush(stdout);
        (void)sigwait(&signals, &number);
    }
    mc_engine_side_close(&side);
    return rc == 0 ? MC_BENCH_OK : MC_BENCH_TROUBLE;
}

static const char *const operations[] = {
    [MC_ENGINE_READ] = "read", [MC_ENGINE_WRITE] = "write", [MC_ENGINE_MIX] = "mix"};

const char *mc_engine_operation_name(enum mc_engine_operation operation)
{
    return operations[operation];
}

bool mc_engine_operation_parse(const char *text, enum mc_engine_operation *operation)
{
    for (int i = MC_ENGINE_READ; i <= MC_ENGINE_MIX; i++) {
        if (strcmp(text, operations[i]) == 0) {
            *operation = (enum mc_engine_operation)i;
            return true;
        }
    }
    return false;
}

const char *mc_engine_path_name(int path)
{
    static const char *const names[MC_TRANSFER_PATHS] = {[MC_TRANSFER_PATH_LOCAL] = "local",
                                                         [MC_TRANSFER_PATH_HOST] = "host",
                                                         [MC_TRANSFER_PATH_TCP] = "tcp",
                                                         [MC_TRANSFER_PATH_RDMA] = "rdma"};
    return path >= 0 && path < MC_TRANSFER_PATHS && names[path] != NULL ? names[path] : "-";
}

int mc_engine_main_path(const struct mc_engine_result *result)
{
    int best = -1;
    for (int path = 0; path < MC_TRANSFER_PATHS; path++)
        if (result->path_bytes[path] > (best < 0 ? 0 : result->path_bytes[best]))
            best = path;
    return best;
}
