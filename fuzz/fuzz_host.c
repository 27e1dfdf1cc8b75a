/* The wire between two engines of one machine (transfer/state/host_wire.h), from both ends. The first byte chooses: 0
 * what an initiator says to an engine, else what an owner answers and what lies in the table that it hands out. Second
 * byte: which descriptors go along; the rest: places and words (a byte each, then eight) that are stored over what an
 * honest peer says. */
#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "env/socket.h"
#include "mooncake_engine.h"
#include "transfer/peer/host_path.h"
#include "transfer/state/engine.h"
#include "transfer/state/host_wire.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define MEMORY ((size_t)1 << 16)
#define SOON_NS 5000000000ull
#define LATE_NS 30000000000ull

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct {
    struct mc_transfer_engine *engine;
    uint8_t *memory, *seen; /* registered at the engine, and as it was */
    char unix_path[MC_UNIX_PATH_MAX];
    int listener, shared_fd; /* of memory that peers may map */
    struct mc_id owner;
    struct mc_id proof;
} world;

static void begin(void)
{
    struct mc_transfer_config config = {"127.0.0.1", "P2PHANDSHAKE", "tcp", ""};
    (void)signal(SIGPIPE, SIG_IGN);
    mc_log_set_level(MC_LOG_ERROR);
    mc_assert(mc_transfer_open(&config, &world.engine) == 0);
    world.memory = malloc(MEMORY);
    world.seen = malloc(MEMORY);
    mc_assert(world.memory != NULL && world.seen != NULL);
    memset(world.memory, 7, MEMORY);
    memcpy(world.seen, world.memory, MEMORY);
    mc_assert(mc_transfer_register(world.engine, &(struct mc_transfer_range){(uintptr_t)world.memory, MEMORY}, 1) == 0);
    snprintf(world.unix_path, sizeof(world.unix_path), "@mooncake-fuzz-host-%d", (int)getpid());
    world.listener = mc_unix_listen(world.unix_path);
    mc_assert(world.listener >= 0);
    world.shared_fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    mc_assert(world.shared_fd >= 0 && ftruncate(world.shared_fd, MEMORY / 4) == 0);
    mc_assert(fcntl(world.shared_fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    world.owner = (struct mc_id){1, 2};
    world.proof = (struct mc_id){3, 4};
}

/* Stores the input's words over what is there; returns how many bytes of it are to be said. */
static size_t spoil(void *memory, size_t size, const uint8_t **data, size_t *left, unsigned words)
{
    for (; words > 0 && *left >= 9; words--) {
        size_t at = **data * 8u % size;
        memcpy((uint8_t *)memory + at, *data + 1, size - at < 8 ? size - at : 8);
        *data += 9;
        *left -= 9;
    }
    return size;
}

/* A memory of that size; how: 1 unsealed, 2 too small, 4 no memory at all, 8 none. */
static int descriptor(size_t size, uint8_t how, const void *content, size_t length)
{
    int ends[2];
    if (how & 8)
        return -1;
    if (how & 4) {
        mc_assert(pipe2(ends, O_CLOEXEC) == 0);
        close(ends[1]);
        return ends[0];
    }
    int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    mc_assert(fd >= 0 && ftruncate(fd, how & 2 ? (off_t)size - 1 : (off_t)size) == 0);
    mc_assert(length == 0 || pwrite(fd, content, length, 0) == (ssize_t)length);
    if ((how & 1) == 0)
        mc_assert(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    return fd;
}

static void say(int fd, const void *data, size_t length, const int *fds, size_t count)
{
    uint64_t soon_ns = mc_clock_ns() + SOON_NS;
    struct iovec part = {(void *)(uintptr_t)data, length};
    if (length > 0 && count > 0)
        (void)mc_unix_send_fds(fd, data, length, fds, count, soon_ns);
    else if (length > 0)
        (void)mc_socket_send(fd, &part, 1, soon_ns);
}

/* Nobody keeps who has said all. */
static void wait_for_end(int fd)
{
    char bytes[256];
    int64_t got;
    (void)shutdown(fd, SHUT_WR);
    do
        got = mc_socket_receive(fd, bytes, sizeof(bytes), mc_clock_ns() + LATE_NS, NULL);
    while (got > 0);
    mc_assert(got != MC_ERR_RPC_TIMEOUT);
}

/* ---- to an engine ---- */

static void initiate(uint8_t how, const uint8_t *data, size_t size)
{
    struct {
        struct mc_host_hello hello;
        uint8_t more[64];
    } said = {.hello = {MC_HOST_MAGIC, world.engine->id}};
    size_t length = spoil(&said, sizeof(said.hello), &data, &size, how >> 4 & 3);
    int fd = mc_unix_connect(world.engine->unix_name, mc_clock_ns() + SOON_NS), passed[2];
    mc_assert(fd >= 0);
    passed[0] = passed[1] = descriptor(sizeof(struct mc_host_intents), how, data, size < 4096 ? size : 4096);
    if (how & 0x40) /* longer, or shorter */
        length = size % sizeof(said);
    size_t count = passed[0] < 0 ? 0 : how & 0x80 ? 2 : 1;
    say(fd, &said, length, passed, count);
    if (passed[0] >= 0)
        close(passed[0]);
    wait_for_end(fd);
    close(fd);
    mc_assert(memcmp(world.memory, world.seen, MEMORY) == 0);
}

/* ---- from an owner ---- */

struct told {
    uint8_t how;
    const uint8_t *data;
    size_t size;
};

static void *own(void *argument)
{
    struct told *told = argument;
    struct mc_host_hello hello;
    struct {
        struct mc_host_welcome welcome;
        uint8_t more[64];
    } said = {.welcome = {MC_HOST_MAGIC, world.owner, (uintptr_t)&world.proof, world.proof}};
    struct mc_host_table *table = calloc(1, sizeof(*table)); /* far larger than what is written of it */
    int intents = -1, fds[2];
    size_t count = 0;
    mc_assert(table != NULL && mc_socket_wait_read(world.listener, mc_clock_ns() + SOON_NS, NULL) == 0);
    int fd = mc_socket_accept(world.listener);
    mc_assert(fd >= 0);
    (void)mc_unix_receive_fds(fd, &hello, sizeof(hello), &intents, 1, &count, mc_clock_ns() + SOON_NS);
    size_t length = spoil(&said, sizeof(said.welcome), &told->data, &told->size, told->how >> 4 & 3);
    table->magic = MC_HOST_MAGIC;
    atomic_store(&table->used, 3);
    for (uint64_t i = 0; i < 3; i++) {
        table->entries[i].generation = i + 1;
        table->entries[i].address = (uintptr_t)world.memory + i * MEMORY / 4;
        table->entries[i].length = MEMORY / 4;
    }
    table->entries[1].memory = (uint64_t)world.shared_fd + 1;
    size_t written = 64 + 28 * sizeof(struct mc_host_entry);
    (void)spoil(table, written < 2048 ? written : 2048, &told->data, &told->size, 40);
    fds[0] = fds[1] = descriptor(sizeof(*table), told->how & 15, table, written);
    if (told->how & 0x40)
        length = told->size % sizeof(said);
    say(fd, &said, length, fds, fds[0] < 0 ? 0 : told->how & 0x80 ? 2 : 1);
    if (fds[0] >= 0)
        close(fds[0]);
    if (count == 1)
        close(intents);
    free(table);
    told->size = (size_t)fd;
    return NULL;
}

static void look(struct mc_host_path *path)
{
    static const uint64_t offsets[] = {0, 1, MEMORY / 4 - 1, MEMORY / 4, MEMORY - 1, MEMORY, UINT64_MAX};
    if (mc_host_view_refresh(&path->view, path->table) < 0)
        return;
    mc_assert(path->view.count <= MC_REGION_SLOTS);
    for (size_t i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++) {
        uint64_t address = (uintptr_t)world.memory + offsets[i], length = i % 2 == 0 ? 16 : MEMORY;
        const struct mc_host_known *known = mc_host_view_find(&path->view, address, length);
        if (known == NULL)
            continue;
        mc_assert(known->slot < MC_REGION_SLOTS && address - known->address < known->length &&
                  length <= known->length - (address - known->address));
        uint8_t *bytes;
        struct mc_host_map *map = mc_host_map_hold(path, known, &bytes);
        if (map != NULL) {
            bytes[address - known->address] = 7; /* what it says is there is there */
            bytes[address - known->address + length - 1] = 7;
            struct mc_host_map *none = NULL;
            mc_host_map_release(map, &none);
        }
        (void)mc_host_announce(&path->intents->intents[0], path->table, &known, 1);
        mc_host_retreat(&path->intents->intents[0]);
    }
    struct mc_host_map *ended = NULL;
    mc_host_maps_tidy(path, &ended);
    mc_host_maps_unmap(ended);
}

static void answer(uint8_t how, const uint8_t *data, size_t size)
{
    struct told told = {how, data, size};
    struct mc_host_trouble trouble;
    pthread_t thread;
    mc_assert(pthread_create(&thread, NULL, own, &told) == 0);
    struct mc_host_path *path = mc_host_path_open(world.unix_path, world.owner, &trouble);
    mc_assert(path != NULL || trouble.step != NULL);
    (void)pthread_join(thread, NULL);
    if (path != NULL) {
        look(path);
        mc_host_path_release(path);
    }
    close((int)told.size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    if (world.engine == NULL)
        begin();
    if (data[0] == 0)
        initiate(data[1], data + 2, size - 2);
    else
        answer(data[1], data + 2, size - 2);
    return 0;
}
