/* More peers than there are threads that fall silent at once: what is under way to them is parked. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/error.h"
#include "transfer/peer/peer.h"
#include "transfer/state/batch.h"
#include "transfer/state/engine.h"
#include "transfer/wire/tcp_wire.h"
#include "transfer_world.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#ifdef __SANITIZE_THREAD__
#define CROWD FEW /* it would need minutes */
#else
#define CROWD 1100 /* more than there are threads */
#endif
#define FEW 120                   /* of which an engine with few threads has more than these */
#define PORTION ((size_t)8 << 10) /* of each */

/* More peers than there are threads stop at once, each with a batch under way. They are
 * names of one stand-in. */
struct crowd {
    struct silent silent;
    int64_t ids[CROWD];
    pthread_t thread;
    unsigned count, served, each, connections[CROWD];
};

static void crowd_open(struct crowd *crowd, struct world *world, enum mc_transfer_opcode opcode, unsigned count)
{
    crowd->count = count;
    if (count == FEW) {
        world->near->threads_max = 100;
        world->near->silent_threads_max = 36;
    }
    silent_open_at(&crowd->silent, "");
    for (unsigned i = 0; i < count; i++) {
        struct mc_transfer_item item = {world->near_memory + i * PORTION, 4096, PORTION};
        char host[32], name[64];
        snprintf(host, sizeof(host), "127.1.%u.%u", i / 200, 1 + i % 200);
        mc_address_join(name, sizeof(name), host, crowd->silent.rpc_port);
        crowd->ids[i] = mc_transfer_submit(world->near, name, opcode, &item, 1, NULL);
        assert_true(crowd->ids[i] > 0);
    }
}

static void beside_a_crowd(const struct crowd *crowd, struct world *world, uint64_t for_ms)
{
    struct mc_transfer_item fine = {world->near_memory + CROWD * PORTION, (uintptr_t)world->far_memory, 65536};
    uint64_t start_ms = mc_clock_ms(), slowest_ms = 0;
    unsigned count = 0;
    for (uint64_t begun_ms; (begun_ms = mc_clock_ms()) - start_ms < for_ms; count++) {
        int64_t id = mc_transfer_submit(world->near, mc_transfer_name(world->far), MC_TRANSFER_WRITE, &fine, 1, NULL);
        assert_int_equal(mc_transfer_wait(world->near, &id, 1), 0);
        slowest_ms = mc_clock_ms() - begun_ms > slowest_ms ? mc_clock_ms() - begun_ms : slowest_ms;
    }
    print_message("  %u batches beside %u that stopped, the slowest took %llu ms\n", count, crowd->count,
                  (unsigned long long)slowest_ms);
    assert_true(slowest_ms < 1000);
}

static void test_a_thousand_stop_at_once(void **state)
{
    (void)state;
    static struct crowd crowd;
    struct world world;
    world_open(&world);
    world.near->settings.timeout_ns = 6 * SECOND_NS;
    crowd_open(&crowd, &world, MC_TRANSFER_WRITE, CROWD);
    uint64_t start_ms = mc_clock_ms();
    beside_a_crowd(&crowd, &world, 3000);
    for (int i = 0; i < CROWD; i++)
        assert_int_equal(mc_transfer_wait(world.near, &crowd.ids[i], 1), MC_TRANSFER_ERR_TIMEOUT);
    assert_true(mc_clock_ms() - start_ms < 9000);
    silent_close(&crowd.silent);
    world_close(&world);
}

static unsigned member_of(int fd)
{
    char host[INET6_ADDRSTRLEN];
    uint16_t port;
    struct in_addr own;
    assert_true(mc_socket_name(fd, MC_SOCKET_OURS, host, sizeof(host), &port));
    assert_int_equal(inet_pton(AF_INET, host, &own), 1);
    uint32_t address = ntohl(own.s_addr);
    return (address >> 8 & 255) * 200 + (address & 255) - 1;
}

static bool serve_crowd(struct crowd *crowd, int fd)
{
    static uint8_t payload[PORTION];
    uint64_t status = MC_TCP_STATUS_OK;
    struct mc_tcp_header header;
    if (!take(fd, &header, sizeof(header)))
        return false;
    bool is_write = (header.opcode & 1) != 0;
    memset(payload, 0x5e, sizeof(payload));
    struct iovec parts[2] = {{&status, sizeof(status)}, {payload, is_write ? 0 : sizeof(payload)}};
    if (is_write && !take(fd, payload, sizeof(payload)))
        return false;
    crowd->served += mc_socket_send(fd, parts, 2, mc_clock_ns() + 10 * SECOND_NS) == 0;
    return true;
}

/* Each of which the number can be divided by `each` goes on. */
static void *crowd_main(void *argument)
{
    static int fds[2 * CROWD];
    struct crowd *crowd = argument;
    unsigned count = 0;
    while (!atomic_load(&crowd->silent.stop)) {
        struct pollfd waited = {.fd = crowd->silent.data, .events = POLLIN};
        int fd = poll(&waited, 1, 20) == 1 && count < 2 * CROWD ? mc_socket_accept(crowd->silent.data) : -1;
        if (fd < 0)
            continue;
        fds[count++] = fd;
        crowd->connections[member_of(fd)]++;
        if (member_of(fd) % crowd->each == 0)
            (void)serve_crowd(crowd, fd);
    }
    while (count > 0)
        close(fds[--count]);
    return NULL;
}

static void crowd_go_on(struct crowd *crowd, unsigned each)
{
    crowd->served = 0;
    memset(crowd->connections, 0, sizeof(crowd->connections));
    crowd->each = each;
    assert_int_equal(pthread_create(&crowd->thread, NULL, crowd_main, crowd), 0);
}

static void crowd_close(struct crowd *crowd)
{
    atomic_store(&crowd->silent.stop, true);
    pthread_join(crowd->thread, NULL);
    silent_close(&crowd->silent);
}

/* They go on again, and so does all that was under way, on the connections that it had. */
static void test_a_thousand_go_on(void **state)
{
    (void)state;
    static struct crowd crowd;
    for (int opcode = MC_TRANSFER_READ; opcode <= MC_TRANSFER_WRITE; opcode++) {
        struct world world;
        world_open(&world);
        world.near->settings.timeout_ns = 25 * SECOND_NS;
        crowd_open(&crowd, &world, (enum mc_transfer_opcode)opcode, CROWD);
        beside_a_crowd(&crowd, &world, 1500);
        memset(world.near_seen, 0, CROWD * PORTION);
        crowd_go_on(&crowd, 1);
        for (int i = 0; i < CROWD; i++)
            assert_int_equal(mc_transfer_wait(world.near, &crowd.ids[i], 1), 0);
        for (size_t i = 0; i < CROWD * PORTION; i++)
            assert_true(world.near_seen[i] == (opcode == MC_TRANSFER_READ ? 0x5e : 0));
        crowd_close(&crowd);
        assert_int_equal(crowd.served, CROWD);
        world_close(&world);
    }
}

/* A few of them go on: what waits for one of these without a thread gets its turn, though more than there are threads
 * stay silent. */
static void test_a_few_go_on(void **state)
{
    (void)state;
    enum { EACH = 22 };
    static struct crowd crowd;
    struct world world;
    world_open(&world);
    world.near->settings.timeout_ns = 15 * SECOND_NS;
    crowd_open(&crowd, &world, MC_TRANSFER_WRITE, FEW);
    beside_a_crowd(&crowd, &world, 1500);
    crowd_go_on(&crowd, EACH);
    for (int i = 0; i < FEW; i += EACH)
        assert_int_equal(mc_transfer_wait(world.near, &crowd.ids[i], 1), 0);
    assert_int_equal(mc_transfer_status(world.near, crowd.ids[1]), 0); /* the others have not ended */
    world_close(&world);
    crowd_close(&crowd);
}

/* Gives so much of what is read, and so often. */
enum { TRICKLE_MS = 20, TRICKLES = 100 };

static void *trickle_main(void *argument)
{
    static uint8_t payload[PORTION];
    struct silent *silent = argument;
    uint64_t status = MC_TCP_STATUS_OK;
    struct mc_tcp_header header;
    struct pollfd waited = {.fd = silent->data, .events = POLLIN};
    (void)poll(&waited, 1, 10000);
    int fd = mc_socket_accept(silent->data);
    bool is_there = take(fd, &header, sizeof(header)) && send(fd, &status, sizeof(status), MSG_NOSIGNAL) == 8;
    for (unsigned i = 0; is_there && i < TRICKLES; i++) {
        usleep(TRICKLE_MS * 1000);
        is_there = send(fd, payload, sizeof(payload), MSG_NOSIGNAL) == (ssize_t)sizeof(payload);
    }
    return (void *)(intptr_t)fd;
}

static bool is_silent(struct mc_transfer_engine *engine, const struct mc_peer *peer)
{
    pthread_mutex_lock(&engine->lock);
    bool is_silent = peer->is_silent;
    pthread_mutex_unlock(&engine->lock);
    return is_silent;
}

/* One that is slow, but moves, is not taken for one that stopped, and keeps its thread beside a crowd of those. */
static void test_slow_beside_a_crowd(void **state)
{
    (void)state;
    static struct crowd crowd;
    struct world world;
    struct silent slow;
    struct mc_peer *peer;
    pthread_t thread;
    char name[64];
    int rc;
    void *fd;
    world_open(&world);
    crowd_open(&crowd, &world, MC_TRANSFER_WRITE, FEW);
    beside_a_crowd(&crowd, &world, 500);
    silent_open(&slow, name, sizeof(name));
    assert_int_equal(pthread_create(&thread, NULL, trickle_main, &slow), 0);
    assert_int_equal(mc_peer_get(world.near, name, UINT64_MAX, &peer), 0);
    struct mc_transfer_item item = {world.near_memory + CROWD * PORTION, 4096, TRICKLES * PORTION};
    uint64_t start_ms = mc_clock_ms();
    int64_t id = mc_transfer_submit(world.near, name, MC_TRANSFER_READ, &item, 1, NULL);
    while ((rc = mc_transfer_status(world.near, id)) == 0) {
        assert_false(is_silent(world.near, peer));
        usleep(1000);
    }
    assert_int_equal(rc, 1);
    pthread_join(thread, &fd);
    print_message("  slow, but moving: %llu ms\n", (unsigned long long)(mc_clock_ms() - start_ms));
    assert_true(mc_clock_ms() - start_ms < 2 * TRICKLES * TRICKLE_MS);
    close((int)(intptr_t)fd);
    mc_peer_release(peer);
    silent_close(&slow);
    world_close(&world);
    silent_close(&crowd.silent);
}

/* The peer of one that is without a thread; NULL: there is none. */
static struct mc_peer *parked_peer(struct mc_transfer_engine *engine)
{
    struct mc_peer *peer = NULL;
    pthread_mutex_lock(&engine->lock);
    for (uint32_t i = 0; i < engine->batches.used; i++) {
        const struct mc_batch *batch = engine->batches.places[i];
        if (batch != NULL && batch->state == MC_BATCH_QUEUED && batch->parking.parked != NULL)
            peer = batch->peer;
    }
    pthread_mutex_unlock(&engine->lock);
    return peer;
}

/* What was parked while another process took the name goes to that one, on a connection of its own. */
static void test_parked_for_the_former(void **state)
{
    (void)state;
    static struct crowd crowd;
    struct world world;
    unsigned high, low;
    world_open(&world);
    world.near->settings.timeout_ns = 25 * SECOND_NS;
    crowd_open(&crowd, &world, MC_TRANSFER_WRITE, FEW);
    crowd.silent.process = 1;
    beside_a_crowd(&crowd, &world, 1500);
    struct mc_peer *peer = parked_peer(world.near);
    assert_non_null(peer);
    assert_int_equal(sscanf(peer->name, "127.1.%u.%u:", &high, &low), 2);
    assert_int_equal(mc_peer_refresh(peer, mc_clock_ns() + 10 * SECOND_NS), 1);
    crowd_go_on(&crowd, 1);
    for (int i = 0; i < FEW; i++)
        assert_int_equal(mc_transfer_wait(world.near, &crowd.ids[i], 1), 0);
    crowd_close(&crowd);
    assert_int_equal(crowd.connections[200 * high + low - 1], 2);
    world_close(&world);
}

/* A connection that takes long is made also by an engine that is short of threads. */
static void test_a_connection_takes_long(void **state)
{
    (void)state;
    enum { WAITING = 4, WAIT_MS = 3000 };
    static struct crowd crowd;
    struct world world;
    int fillers[WAITING];
    char name[64];
    world_open(&world);
    world.near->silent_threads_max = 1;
    silent_open_at(&crowd.silent, "");
    assert_int_equal(listen(crowd.silent.data, 0), 0); /* its kernel does not answer when one waits */
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(crowd.silent.data_port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < WAITING; i++) {
        fillers[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        (void)connect(fillers[i], (struct sockaddr *)&address, sizeof(address));
    }
    usleep(20000);
    mc_address_join(name, sizeof(name), "127.1.0.1", crowd.silent.rpc_port);
    struct mc_transfer_item item = {world.near_memory, 4096, PORTION};
    int64_t id = mc_transfer_submit(world.near, name, MC_TRANSFER_WRITE, &item, 1, NULL);
    usleep(WAIT_MS * 1000);
    assert_int_equal(mc_transfer_status(world.near, id), 0);
    for (int i = 0; i < WAITING; i++)
        close(fillers[i]);
    crowd_go_on(&crowd, 1);
    assert_int_equal(mc_transfer_wait(world.near, &id, 1), 0);
    crowd_close(&crowd);
    world_close(&world);
}

/* An engine that is closed while more batches are under way than it has threads. */
static void test_close_beside_many(void **state)
{
    (void)state;
    static struct crowd crowd;
    struct world world;
    world_open(&world);
    crowd_open(&crowd, &world, MC_TRANSFER_WRITE, FEW);
    beside_a_crowd(&crowd, &world, 500);
    uint64_t start_ms = mc_clock_ms();
    world_close(&world);
    assert_true(mc_clock_ms() - start_ms < 3000);
    silent_close(&crowd.silent);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_thousand_stop_at_once),
        cmocka_unit_test(test_a_thousand_go_on),
        cmocka_unit_test(test_a_few_go_on),
        cmocka_unit_test(test_slow_beside_a_crowd),
        cmocka_unit_test(test_parked_for_the_former),
        cmocka_unit_test(test_a_connection_takes_long),
        cmocka_unit_test(test_close_beside_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
