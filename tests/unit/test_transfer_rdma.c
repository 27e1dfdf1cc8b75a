/* Two engines with RDMA over a fake device, and what goes wrong with that: every byte arrives all the same, once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engines.h"
#include "env/clock.h"
#include "fake_verbs.h"
#include "transfer/engine/open.h"
#include "transfer/peer/peer.h"
#include "transfer/peer/rdma_lane.h"
#include "transfer/run/run.h"
#include "transfer/state/engine.h"
#include "transfer/wire/document.h"
#include "transfer/wire/metadata.h"
#include "transfer_engine_c.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define MEMORY ((size_t)8 << 20)

struct world { /* near asks; near uses fake0 (and fake2), far fake1 (and fake3) */
    struct mc_transfer_engine *near, *far;
    uint8_t *near_memory, *far_memory;
};

static struct mc_transfer_engine *engine_open(const char *devices)
{
    struct mc_transfer_config config = {"127.0.0.1", "P2PHANDSHAKE", "rdma", devices};
    struct mc_transfer_engine *engine = NULL;
    assert_int_equal(mc_transfer_open(&config, &engine), 0);
    return engine;
}

static void world_open(struct world *world, uint32_t devices_each)
{
    struct fake_device_config devices[4];
    for (uint32_t i = 0; i < 4; i++)
        devices[i] = fake_roce(i);
    fake_reset(devices, 2 * devices_each);
    mc_transfer_verbs = fake_verbs();
    setenv("MC_SAME_PROCESS", "0", 1);
    setenv("MC_SAME_HOST", "0", 1);
    setenv("MC_RDMA_STALL_MS", "100", 1);
    world->near = engine_open(devices_each == 1 ? "fake0" : "fake0,fake2");
    world->far = engine_open(devices_each == 1 ? "fake1" : "fake1,fake3");
    world->near_memory = memory_map(MEMORY);
    world->far_memory = memory_map(MEMORY);
    assert_int_equal(add(world->near, world->near_memory, MEMORY), 0);
    assert_int_equal(add(world->far, world->far_memory, MEMORY), 0);
}

static void world_close(struct world *world)
{
    pair_close(world->near, world->near_memory, world->far, world->far_memory, MEMORY);
    struct fake_counts counts = fake_counts();
    assert_int_equal(counts.qps + counts.mrs + counts.contexts, 0);
    assert_int_equal(counts.send_overflows + counts.cq_overflows + counts.bad_posts + counts.late_events, 0);
}

static int open_with_one_each(void **state)
{
    static struct world world;
    world_open(&world, 1);
    *state = &world;
    return 0;
}

static int open_with_two_each(void **state)
{
    static struct world world;
    world_open(&world, 2);
    *state = &world;
    return 0;
}

static int close_it(void **state)
{
    world_close(*state);
    return 0;
}

/* What near knows of far. */
static struct mc_peer *peer_of(struct world *world)
{
    struct mc_peer *peer;
    assert_int_equal(mc_peer_get(world->near, mc_transfer_name(world->far), UINT64_MAX, &peer), 0);
    return peer;
}

static int move(struct world *world, enum mc_transfer_opcode opcode, uint64_t offset, uint64_t length)
{
    struct mc_transfer_item item = {world->near_memory + offset, (uintptr_t)world->far_memory + offset, length};
    return mc_transfer_run(world->near, mc_transfer_name(world->far), opcode, &item, 1, NULL);
}

static void fill(uint8_t *memory, uint64_t length, unsigned seed)
{
    for (uint64_t i = 0; i < length; i++)
        memory[i] = (uint8_t)(i * 11 + i / 253 + seed);
}

static uint64_t moved_by(const struct world *world, int path)
{
    struct mc_transfer_counters counters;
    mc_transfer_counters(world->near, &counters);
    return counters.bytes[path];
}

/* A write of fresh bytes, which arrive. */
static void arrives(struct world *world, uint64_t length, unsigned seed)
{
    fill(world->near_memory, length, seed);
    assert_int_equal(move(world, MC_TRANSFER_WRITE, 0, length), 0);
    assert_memory_equal(world->far_memory, world->near_memory, length);
}

/* And by that path. */
static void expect(struct world *world, int path, uint64_t length, unsigned seed)
{
    uint64_t before = moved_by(world, path);
    arrives(world, length, seed);
    assert_int_equal(moved_by(world, path), before + length);
}

static void test_both_devices(void **state)
{
    struct world *world = *state;
    expect(world, MC_TRANSFER_PATH_RDMA, MEMORY, 1);
    struct fake_counts counts = fake_counts();
    assert_true(counts.bytes[0] > 0 && counts.bytes[2] > 0);
    assert_int_equal(counts.bytes[0] + counts.bytes[2], MEMORY);
}

/* A cable is pulled: the other device does it. Both: tcp does, and RDMA again once they are back. */
static void test_cables(void **state)
{
    struct world *world = *state;
    expect(world, MC_TRANSFER_PATH_RDMA, 1 << 20, 1);
    fake_cut(0, 1, true);
    fake_cut(0, 3, true);
    expect(world, MC_TRANSFER_PATH_RDMA, MEMORY, 2);
    fake_cut(2, 1, true);
    fake_cut(2, 3, true);
    expect(world, MC_TRANSFER_PATH_TCP, MEMORY, 3);
    for (uint32_t near = 0; near < 4; near += 2)
        for (uint32_t far = 1; far < 4; far += 2)
            fake_cut(near, far, false);
    uint64_t until_ms = mc_clock_ms() + 20000, by_rdma = moved_by(world, MC_TRANSFER_PATH_RDMA);
    for (unsigned seed = 4; moved_by(world, MC_TRANSFER_PATH_RDMA) == by_rdma; seed++) {
        assert_true(mc_clock_ms() < until_ms);
        arrives(world, 4096, seed);
    }
}

/* What devices moved is compared by questions over tcp. */
static void test_checksums(void **state)
{
    struct world *world = *state;
    struct mc_peer *peer = peer_of(world);
    const _Atomic uint64_t *checks = peer->tally->checks[MC_TRANSFER_PATH_RDMA];
    world->near->settings.checksum_every = 0;
    expect(world, MC_TRANSFER_PATH_RDMA, 1 << 20, 1);
    fake_flip(0);
    assert_int_equal(move(world, MC_TRANSFER_WRITE, 0, 4096), 0); /* who does not check is told that all is well */
    assert_memory_not_equal(world->far_memory, world->near_memory, 4096);
    assert_int_equal(checks[0], 0);
    world->near->settings.checksum_every = 1;
    expect(world, MC_TRANSFER_PATH_RDMA, MEMORY, 2);
    assert_int_equal(checks[0], 1);
    for (int opcode = MC_TRANSFER_READ; opcode <= MC_TRANSFER_WRITE; opcode++) {
        fake_flip(0);
        assert_int_equal(move(world, (enum mc_transfer_opcode)opcode, 0, MEMORY), MC_TRANSFER_ERR_INVALID_ARGUMENT);
        assert_int_equal(move(world, (enum mc_transfer_opcode)opcode, 0, MEMORY), 0);
        assert_memory_equal(world->far_memory, world->near_memory, MEMORY);
    }
    assert_int_equal(checks[0], 5);
    assert_int_equal(checks[1], 2);
    assert_int_equal(moved_by(world, MC_TRANSFER_PATH_TCP), 0);
    peer->document.can_sum = false;
    expect(world, MC_TRANSFER_PATH_RDMA, MEMORY, 3);
    assert_int_equal(checks[0], 5);
    mc_peer_release(peer);
}

/* Work that neither ends nor fails: it is cut, and cannot arrive over what came after it. */
static void test_stalled_writes_are_cut(void **state)
{
    struct world *world = *state;
    expect(world, MC_TRANSFER_PATH_RDMA, 1 << 20, 1);
    fake_hold(0);
    expect(world, MC_TRANSFER_PATH_TCP, 1 << 20, 2);
    fill(world->near_memory, 1 << 20, 3);
    fake_release(0);
    usleep(50000);
    fill(world->near_memory, 1 << 20, 2);
    assert_memory_equal(world->far_memory, world->near_memory, 1 << 20); /* nothing came late */
}

/* A link of the peer that was given up in the middle of a write, over a connection whose other end is *end. */
static void give_up_link(struct mc_peer *peer, int *end)
{
    struct mc_rdma_lane *lane = calloc(1, sizeof(*lane));
    int ends[2];
    assert_non_null(lane);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    struct mc_rdma_link_options options = {.devices = peer->remote->devices,
                                           .device_count = peer->remote->device_count};
    assert_int_equal(mc_rdma_link_open(peer->engine->rdma, &options, &lane->link), 0);
    lane->fd = ends[0];
    *end = ends[1];
    pthread_mutex_lock(&peer->lock);
    peer->rdma_lanes++;
    pthread_mutex_unlock(&peer->lock);
    mc_rdma_lane_end(peer, lane, true);
}

static void *settle(void *peer)
{
    return (void *)(intptr_t)mc_rdma_settle(peer, mc_clock_ns() + 20 * SECOND_NS);
}

/* While one thread waits until a write that was cut off can arrive no more, no other goes on to that peer. */
static void test_all_wait_for_the_cut(void **state)
{
    struct world *world = *state;
    struct mc_peer *peer;
    pthread_t waiting;
    void *result = (void *)1;
    int end;
    uint64_t now_ns = mc_clock_ns();
    expect(world, MC_TRANSFER_PATH_RDMA, 4096, 1);
    assert_int_equal(mc_peer_get(world->near, mc_transfer_name(world->far), now_ns + 5 * SECOND_NS, &peer), 0);
    give_up_link(peer, &end);
    assert_int_equal(pthread_create(&waiting, NULL, settle, peer), 0);
    for (bool is_waiting = false; !is_waiting; usleep(1000)) {
        pthread_mutex_lock(&peer->lock);
        is_waiting = peer->rdma_uncut == NULL;
        pthread_mutex_unlock(&peer->lock);
        assert_true(mc_clock_ns() - now_ns < 10 * SECOND_NS);
    }
    assert_int_equal(mc_rdma_settle(peer, mc_clock_ns() + 50 * MS_NS), MC_TRANSFER_ERR_TIMEOUT);
    assert_int_equal(mc_rdma_settle(peer, mc_clock_ns()), MC_TRANSFER_ERR_TIMEOUT);
    close(end);
    assert_int_equal(mc_rdma_settle(peer, mc_clock_ns() + 10 * SECOND_NS), 0);
    assert_int_equal(pthread_join(waiting, &result), 0);
    assert_int_equal((intptr_t)result, 0);
    mc_peer_release(peer);
    expect(world, MC_TRANSFER_PATH_RDMA, 4096, 2);
}

static void uncut(struct mc_peer *peer, struct mc_rdma_lane *lane)
{
    pthread_mutex_lock(&peer->lock);
    peer->rdma_lanes++;
    pthread_mutex_unlock(&peer->lock);
    mc_rdma_lane_end(peer, lane, true);
}

/* The host of the peer is gone, and never ends its connections; another process has its name: nothing that was on its
 * way to the former keeps anything from going to that one. */
static void test_another_process_after_a_cut(void **state)
{
    struct world *world = *state;
    int end;
    expect(world, MC_TRANSFER_PATH_RDMA, 4096, 1);
    struct mc_peer *peer = peer_of(world);
    give_up_link(peer, &end);
    pthread_mutex_lock(&peer->lock);
    peer->document.id.low ^= 1; /* so who is there now is another one */
    pthread_mutex_unlock(&peer->lock);
    uint64_t start_ms = mc_clock_ms();
    expect(world, MC_TRANSFER_PATH_RDMA, 4096, 2);
    assert_true(mc_clock_ms() - start_ms < 10000);
    close(end);
    mc_peer_release(peer);
}

/* The connection does not end, as its last packets are lost; the peer is asked over another, and cuts the link. */
static void test_cut_when_asked(void **state)
{
    struct world *world = *state;
    struct pollfd looked = {.events = POLLIN};
    int ends[2];
    char byte;
    expect(world, MC_TRANSFER_PATH_RDMA, 4096, 1);
    struct mc_peer *peer = peer_of(world);
    pthread_mutex_lock(&peer->lock);
    struct mc_rdma_lane *lane = peer->rdma_idle;
    peer->rdma_idle = lane->next;
    peer->rdma_lanes--;
    pthread_mutex_unlock(&peer->lock);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    looked.fd = lane->fd;
    lane->fd = ends[0];
    uncut(peer, lane);
    assert_int_equal(poll(&looked, 1, 0), 0);
    assert_int_equal(mc_rdma_settle(peer, mc_clock_ns() + 10 * SECOND_NS), 0);
    assert_int_equal(poll(&looked, 1, 0), 1);
    assert_true(recv(looked.fd, &byte, 1, MSG_DONTWAIT) <= 0 && errno != EAGAIN);
    mc_transfer_close_fd(looked.fd);
    close(ends[1]);
    mc_peer_release(peer);
    expect(world, MC_TRANSFER_PATH_RDMA, 4096, 2);
}

/* A connection whose own kernel gives it up: its error comes once, then an end that the peer has not sent. */
static int given_up(int *other)
{
    uint16_t port = 0;
    char address[64], block[65536] = "";
    unsigned timeout_ms = 100;
    int listener = mc_tcp_listen("127.0.0.1", &port);
    mc_address_join(address, sizeof(address), "127.0.0.1", port);
    int fd = mc_tcp_connect(address, mc_clock_ns() + 5 * SECOND_NS);
    assert_true(fd >= 0);
    *other = mc_socket_accept(listener);
    close(listener);
    while (send(fd, block, sizeof(block), MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
        ; /* until nobody reads it any more */
    assert_int_equal(setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof(timeout_ms)), 0);
    struct pollfd looked = {.fd = fd};
    assert_int_equal(poll(&looked, 1, 20000), 1);
    return fd;
}

static void given_up_is_no_proof(struct world *world, bool is_looked_at)
{
    int end, other;
    expect(world, MC_TRANSFER_PATH_RDMA, 4096, 1);
    struct mc_peer *peer = peer_of(world);
    give_up_link(peer, &end);
    pthread_mutex_lock(&peer->lock);
    struct mc_rdma_lane *lane = peer->rdma_uncut;
    close(lane->fd);
    lane->fd = given_up(&other);
    assert_true(!is_looked_at || mc_rdma_lane_has_ended(lane));
    pthread_mutex_unlock(&peer->lock);
    for (int i = 0; i < 3; i++)
        assert_int_equal(mc_rdma_settle(peer, mc_clock_ns() + 100 * MS_NS), MC_TRANSFER_ERR_TIMEOUT);
    pthread_mutex_lock(&peer->lock);
    lane->cut_ms -= 10000000; /* no packet lives so long */
    pthread_mutex_unlock(&peer->lock);
    assert_int_equal(mc_rdma_settle(peer, mc_clock_ns() + 100 * MS_NS), 0);
    close(end);
    close(other);
    mc_peer_release(peer);
}

static void test_given_up_is_no_proof(void **state)
{
    given_up_is_no_proof(*state, false);
}

/* Nor when the error was read before, by who looks whether the link has ended. */
static void test_given_up_while_it_runs(void **state)
{
    given_up_is_no_proof(*state, true);
}

/* Nor does who closes the engine wait for that. */
static void test_closed_before_the_cut(void **state)
{
    struct world world;
    int end;
    (void)state;
    world_open(&world, 1);
    expect(&world, MC_TRANSFER_PATH_RDMA, 4096, 1);
    struct mc_peer *peer = peer_of(&world);
    give_up_link(peer, &end);
    mc_peer_release(peer);
    struct mc_transfer_item item = {world.near_memory, (uintptr_t)world.far_memory, 4096};
    assert_true(mc_transfer_submit(world.near, mc_transfer_name(world.far), MC_TRANSFER_WRITE, &item, 1, NULL) > 0);
    assert_true(mc_transfer_submit(world.near, mc_transfer_name(world.far), MC_TRANSFER_WRITE, &item, 1, NULL) > 0);
    usleep(20000);
    uint64_t start_ms = mc_clock_ms();
    world_close(&world);
    assert_true(mc_clock_ms() - start_ms < 5000);
    close(end);
}

static struct {
    const struct mc_transfer_engine *far;
    struct mc_peer *peer;
    bool is_due;
} change;

/* A metadata server's answer, while which another thread finds that another process has the name. */
static int changing_get(struct mc_metadata *metadata, const char *key, uint64_t deadline_ns, struct mc_buffer *reply)
{
    (void)metadata;
    (void)key;
    (void)deadline_ns;
    pthread_mutex_lock(&change.peer->lock);
    change.peer->incarnation += change.is_due;
    change.peer->document.id = change.far->id;
    change.is_due = false;
    pthread_mutex_unlock(&change.peer->lock);
    mc_rpc_meta_write(reply, "127.0.0.1", change.far->rpc_port);
    return 1;
}

/* The peer's name changes hands while a link to it is being opened: the keys are the former's, and nothing is written
 * with them into its heir. */
static void test_changes_while_it_is_opened(void **state)
{
    struct world *world = *state;
    static const struct mc_metadata_kind kind = {.scheme = "changing://", .get = changing_get};
    struct mc_peer *peer = peer_of(world);
    change.far = world->far;
    change.peer = peer;
    change.is_due = true;
    peer->document.id.low ^= 1; /* the former */
    world->near->metadata.kind = &kind;
    world->near->metadata.is_p2p = false;
    struct mc_transfer_item item = {world->near_memory, (uintptr_t)world->far_memory, 4096};
    fill(world->near_memory, 4096, 1);
    assert_int_equal(mc_run_rdma(peer, MC_TRANSFER_WRITE, &item, 1, NULL, mc_clock_ns() + 10 * SECOND_NS), 1);
    assert_false(change.is_due);
    assert_int_not_equal(memcmp(world->near_memory, world->far_memory, 4096), 0);
    assert_int_equal(peer->rdma_lanes, 0);
    assert_int_equal(mc_run_rdma(peer, MC_TRANSFER_WRITE, &item, 1, NULL, mc_clock_ns() + 10 * SECOND_NS), 0);
    assert_memory_equal(world->near_memory, world->far_memory, 4096);
    world->near->metadata.is_p2p = true;
    mc_peer_release(peer);
}

/* Makes the engine's tidying thread see a peer that was used so long ago. True: it is still known. */
static bool is_kept(struct mc_transfer_engine *engine, uint64_t unused_ms)
{
    peers_age(engine, unused_ms);
    pthread_mutex_lock(&engine->lock);
    bool is_known = engine->peer_count > 0;
    pthread_mutex_unlock(&engine->lock);
    return is_known;
}

/* A peer that is reached by RDMA alone keeps its links over a pause; so does one of which a write may still arrive. */
static void test_links_outlive_a_pause(void **state)
{
    struct world *world = *state;
    int end;
    expect(world, MC_TRANSFER_PATH_RDMA, 4096, 1);
    uint32_t links = fake_counts().qps;
    assert_true(is_kept(world->near, 100000));
    assert_int_equal(fake_counts().qps, links);
    expect(world, MC_TRANSFER_PATH_RDMA, 4096, 2);
    struct mc_peer *peer = peer_of(world);
    give_up_link(peer, &end);
    struct mc_rdma_lane *idle = NULL;
    pthread_mutex_lock(&peer->lock);
    mc_rdma_lanes_idle(peer, 0, &idle);
    pthread_mutex_unlock(&peer->lock);
    mc_rdma_lanes_free(idle);
    mc_peer_release(peer);
    assert_true(is_kept(world->near, 100000));
    close(end);
    assert_false(is_kept(world->near, 10000000));
}

/* What is under way at a device, and what it has moved. */
static void test_nic_loads(void **state)
{
    struct world *world = *state;
    struct mc_transfer_nic_load loads[MC_TRANSFER_NICS_MAX];
    uint64_t seen = 0;
    const char *far = mc_transfer_name(world->far);
    struct mc_transfer_item item = {world->near_memory, (uintptr_t)world->far_memory, MEMORY};
    assert_int_equal(mc_transfer_nic_loads(NULL, loads, 1), MC_TRANSFER_ERR_INVALID_ARGUMENT);
    assert_int_equal(mc_transfer_nic_loads(world->near, NULL, 1), MC_TRANSFER_ERR_INVALID_ARGUMENT);
    assert_int_equal(mc_transfer_nic_loads(world->near, NULL, 0), 2);
    expect(world, MC_TRANSFER_PATH_RDMA, MEMORY, 1);
    assert_int_equal(mc_transfer_nic_loads(world->near, loads, MC_TRANSFER_NICS_MAX), 2);
    assert_string_equal(loads[0].device, "fake0");
    assert_string_equal(loads[1].device, "fake2");
    assert_true(loads[0].inflight_bytes == 0 && loads[1].inflight_bytes == 0);
    assert_true(loads[0].moved_bytes + loads[1].moved_bytes == MEMORY);
    for (int round = 0; round < 20 && seen == 0; round++) {
        fake_hold(0);
        fake_hold(2);
        int64_t id = mc_transfer_submit(world->near, far, MC_TRANSFER_WRITE, &item, 1, NULL);
        assert_true(id > 0);
        for (int i = 0; i < 200 && seen == 0; i++) {
            assert_int_equal(mc_transfer_nic_loads(world->near, loads, 2), 2);
            seen = loads[0].inflight_bytes + loads[1].inflight_bytes;
            usleep(500);
        }
        fake_release(0);
        fake_release(2);
        assert_int_equal(mc_transfer_wait(world->near, &id, 1), 0);
    }
    assert_true(seen > 0 && seen <= MEMORY);
    assert_int_equal(mc_transfer_nic_loads(world->near, loads, 2), 2); /* also after pairs that broke */
    assert_true(loads[0].inflight_bytes == 0 && loads[1].inflight_bytes == 0);
    assert_int_equal(mc_transfer_nic_loads(world->far, loads, 1), 2); /* it has only served */
    assert_true(loads[0].moved_bytes == 0);
}

/* Memory that is not registered here goes by tcp. */
static void test_unregistered_memory(void **state)
{
    struct world *world = *state;
    uint8_t *memory = memory_map(MEMORY);
    fill(memory, 100000, 5);
    struct mc_transfer_item item = {memory, (uintptr_t)world->far_memory, 100000};
    assert_int_equal(mc_transfer_run(world->near, mc_transfer_name(world->far), MC_TRANSFER_WRITE, &item, 1, NULL), 0);
    assert_memory_equal(world->far_memory, memory, 100000);
    assert_int_equal(moved_by(world, MC_TRANSFER_PATH_TCP), 100000);
    munmap(memory, MEMORY);
}

/* The peer has memory that its devices do not take: it is written over tcp, and the document is not fetched each time.
 * Memory that has keys is found later all the same. */
static void test_memory_without_keys(void **state)
{
    struct world *world = *state;
    unsigned fetched = 0, writes = 0;
    uint8_t *keyless = memory_map(MEMORY), *late = memory_map(MEMORY);
    fake_fail_registrations(1, 100, ENOMEM);
    assert_int_equal(add(world->far, keyless, MEMORY), 0);
    fake_fail_registrations(1, 0, 0);
    struct mc_peer *peer = peer_of(world);
    struct mc_transfer_item item = {world->near_memory, (uintptr_t)keyless, 4096};
    uint64_t start_ms = mc_clock_ms(), seen_ms = peer->remote_ms;
    for (; mc_clock_ms() - start_ms < 2000; writes++) {
        assert_int_equal(mc_transfer_run(world->near, peer->name, MC_TRANSFER_WRITE, &item, 1, NULL), 0);
        fetched += peer->remote_ms != seen_ms;
        seen_ms = peer->remote_ms;
        usleep(10000);
    }
    assert_true(writes > 10 && fetched >= 1 && fetched <= 6); /* at 0, 100, 300, 700, 1500 ms */
    assert_int_equal(add(world->far, late, MEMORY), 0);
    item.remote = (uintptr_t)late;
    uint64_t before = moved_by(world, MC_TRANSFER_PATH_RDMA);
    for (start_ms = mc_clock_ms(); moved_by(world, MC_TRANSFER_PATH_RDMA) == before; usleep(10000)) {
        assert_int_equal(mc_transfer_run(world->near, peer->name, MC_TRANSFER_WRITE, &item, 1, NULL), 0);
        assert_true(mc_clock_ms() - start_ms < 20000);
    }
    assert_int_equal(peer->remote_wait_ms, 100);
    mc_peer_release(peer);
    munmap(keyless, MEMORY);
    munmap(late, MEMORY);
}

/* Taken back and registered again, the peer's memory has other keys: they are asked for. */
static void test_registered_again(void **state)
{
    struct world *world = *state;
    expect(world, MC_TRANSFER_PATH_RDMA, 4096, 1);
    uint64_t address = (uintptr_t)world->far_memory;
    assert_int_equal(mc_transfer_unregister(world->far, &address, 1), 0);
    assert_true(move(world, MC_TRANSFER_WRITE, 0, 4096) < 0);
    assert_int_equal(add(world->far, world->far_memory, MEMORY), 0);
    arrives(world, 4096, 2);
}

/* A device does not let go of it: it must not be freed yet, as its key opens it still, and it can be tried again. */
static void test_kept_by_a_device(void **state)
{
    struct world *world = *state;
    expect(world, MC_TRANSFER_PATH_RDMA, 4096, 1);
    uint64_t address = (uintptr_t)world->far_memory;
    uint32_t mrs = fake_counts().mrs;
    fake_fail_deregistrations(1, 2, EBUSY);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(mc_transfer_unregister(world->far, &address, 1), MC_TRANSFER_ERR_BATCH_BUSY);
        assert_int_equal(add(world->far, world->far_memory, MEMORY), MC_TRANSFER_ERR_ADDRESS_OVERLAPPED);
    }
    assert_int_equal(fake_counts().mrs, mrs);
    assert_int_equal(mc_transfer_unregister(world->far, &address, 1), 0);
    assert_int_equal(fake_counts().mrs, mrs - 1);
    assert_true(move(world, MC_TRANSFER_WRITE, 0, 4096) < 0);
    assert_int_equal(add(world->far, world->far_memory, MEMORY), 0);
    arrives(world, 4096, 2);
}

/* The peer restarts under another name; the old one's links end with it. */
static void test_peer_ends(void **state)
{
    struct world *world = *state;
    expect(world, MC_TRANSFER_PATH_RDMA, 4096, 1);
    char name[MC_DOCUMENT_NAME_MAX];
    snprintf(name, sizeof(name), "%s", mc_transfer_name(world->far));
    mc_transfer_close(world->far);
    struct mc_transfer_item item = {world->near_memory, (uintptr_t)world->far_memory, 4096};
    uint64_t start_ms = mc_clock_ms();
    assert_true(mc_transfer_run(world->near, name, MC_TRANSFER_WRITE, &item, 1, NULL) < 0);
    assert_true(mc_clock_ms() - start_ms < 4000);
    world->far = engine_open("fake1");
    assert_int_equal(add(world->far, world->far_memory, MEMORY), 0);
    expect(world, MC_TRANSFER_PATH_RDMA, 4096, 2);
}

/* The protocol does not choose the way, unless a setting says so; who names none has tcp until he asks for more. */
static void test_tcp_takes_rdma(void **state)
{
    static const struct {
        const char *protocol, *variable, *value;
        bool has_rdma;
    } rows[] = {{"tcp", "MC_RDMA_WITH_TCP", "", true},    {"tcp", "MC_RDMA_WITH_TCP", "yes", true},
                {"tcp", "MC_RDMA_WITH_TCP", "no", false}, {"tcp", "MC_FORCE_TCP", "1", false},
                {"rdma", "MC_RDMA_WITH_TCP", "no", true}, {"", "MC_RDMA_WITH_TCP", "yes", false},
                {"RDMA", "MC_RDMA_WITH_TCP", "no", true}, {"TCP", "MC_RDMA_WITH_TCP", "no", false},
                {"efa", "MC_RDMA_WITH_TCP", "no", false}, {"nvlink", "MC_RDMA_WITH_TCP", "yes", true}};
    const struct fake_device_config device = fake_roce(0);
    (void)state;
    fake_reset(&device, 1);
    mc_transfer_verbs = fake_verbs();
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct mc_transfer_config config = {"127.0.0.1", "P2PHANDSHAKE", rows[i].protocol, ""};
        struct mc_transfer_engine *engine = NULL;
        setenv(rows[i].variable, rows[i].value, 1);
        assert_int_equal(mc_transfer_open(&config, &engine), 0);
        assert_int_equal(engine->rdma != NULL, rows[i].has_rdma);
        mc_transfer_close(engine);
        unsetenv(rows[i].variable);
    }
}

/* Without a device, or none of that name, an engine is one of tcp. */
static void test_no_device(void **state)
{
    struct world world;
    (void)state;
    fake_reset(NULL, 0);
    mc_transfer_verbs = fake_verbs();
    transfer_engine_t engine = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "127.0.0.1", 0, 1);
    assert_non_null(engine); /* nothing is discovered */
    assert_null(installTransport(engine, "rdma", NULL));
    assert_non_null(installTransport(engine, "tcp", NULL));
    destroyTransferEngine(engine);
    world.near = engine_open("");
    world.far = engine_open("mlx5_0");
    world.near_memory = memory_map(MEMORY);
    world.far_memory = memory_map(MEMORY);
    assert_int_equal(add(world.far, world.far_memory, MEMORY), 0);
    expect(&world, MC_TRANSFER_PATH_TCP, 4096, 1);
    world_close(&world);
}

/* Writes small ones until that device moves them, and it alone. */
static void expect_device(struct world *world, uint32_t device)
{
    uint64_t until_ms = mc_clock_ms() + 20000;
    for (unsigned seed = 0;; seed++) {
        struct fake_counts before = fake_counts();
        expect(world, MC_TRANSFER_PATH_RDMA, 1 << 20, seed);
        struct fake_counts after = fake_counts();
        if (after.bytes[device] - before.bytes[device] == 1 << 20)
            return;
        assert_true(mc_clock_ms() < until_ms);
        usleep(1000);
    }
}

/* The engines' devices by a matrix: what is near the memory moves all of it, the other when that does not work, the
 * near one again when it does. The first without a location: nothing says where it lies but the kernel. */
static void test_near_device(void **state)
{
    static const char *const locations[] = {"cuda:1", "cpu:0", "cuda:1"};
    static const uint32_t near[] = {2, 0, 2}, other[] = {0, 2, 0};
    (void)state;
    char path[] = "/tmp/test_transfer_rdma_XXXXXX";
    int fd = mkstemp(path);
    const char *text = "{\"cpu:0\": [[\"fake0\"], [\"fake2\"]], \"cuda:1\": [[\"fake2\"], [\"fake0\"]],"
                       "\"cuda:2\": [[\"fake1\", \"fake3\"], []]}";
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    setenv("MC_CUSTOM_TOPO_JSON", path, 1);
    setenv("MC_RDMA_RAIL_PAUSE_SECONDS", "1", 1);
    for (size_t i = 0; i < 3; i++) {
        struct world world;
        world_open(&world, 2);
        uint64_t address = (uintptr_t)world.near_memory;
        struct mc_transfer_range range = {address, MEMORY};
        assert_int_equal(mc_transfer_unregister(world.near, &address, 1), 0);
        assert_int_equal(mc_transfer_register_at(world.near, &range, 1, locations[i]), 0);
        expect(&world, MC_TRANSFER_PATH_RDMA, MEMORY, 1);
        assert_int_equal(fake_counts().bytes[near[i]], MEMORY);
        fake_port(near[i], false);
        expect_device(&world, other[i]);
        fake_port(near[i], true);
        expect_device(&world, near[i]);
        world_close(&world);
    }
    unsetenv("MC_RDMA_RAIL_PAUSE_SECONDS");
    unsetenv("MC_CUSTOM_TOPO_JSON");
    unlink(path);
}

/* What is near the peer's memory counts, too. */
static void test_near_the_peer(void **state)
{
    struct world world;
    (void)state;
    char path[] = "/tmp/test_transfer_rdma_XXXXXX";
    int fd = mkstemp(path);
    const char *text = "{\"cpu:0\": [[\"fake0\", \"fake2\", \"fake3\"], [\"fake1\"]]}";
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    setenv("MC_CUSTOM_TOPO_JSON", path, 1);
    world_open(&world, 2);
    uint64_t address = (uintptr_t)world.far_memory;
    struct mc_transfer_range range = {address, MEMORY};
    assert_int_equal(mc_transfer_unregister(world.far, &address, 1), 0);
    assert_int_equal(mc_transfer_register_at(world.far, &range, 1, "cpu:0"), 0);
    expect(&world, MC_TRANSFER_PATH_RDMA, MEMORY, 1);
    assert_int_equal(fake_counts().bytes[2], MEMORY); /* fake2 is with fake3 */
    unsetenv("MC_CUSTOM_TOPO_JSON");
    unlink(path);
    world_close(&world);
}

static void *write_rounds(void *argument)
{
    struct world *world = argument;
    for (unsigned i = 0; i < 200; i++)
        assert_int_equal(move(world, MC_TRANSFER_WRITE, (uint64_t)i * 4096, 4096), 0);
    return NULL;
}

/* The original's way: an engine of tcp gets RDMA while it works, with a matrix, for what is registered already. */
static void test_install(void **state)
{
    struct world *world = *state;
    char matrix[] = "{\"cpu:0\": [[\"fake2\"], [\"fake0\"]], \"cpu:7\": [[\"fake1\", \"fake3\"], []]}",
         bad[] = "{\"cpu:0\": [[\"fake2\"]]}", none[] = "{\"cpu:0\": [[\"mlx5_0\"], []]}";
    void *given[2] = {matrix, NULL}, *no_matrix[2] = {bad, NULL}, *no_device[2] = {none, NULL}, *empty[1] = {NULL};
    transfer_engine_t engine = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "127.0.0.1", 0, 0);
    assert_non_null(engine);
    uint8_t *memory = memory_map(MEMORY);
    assert_int_equal(registerLocalMemory(engine, memory, MEMORY / 2, "cpu:0", 1), 0);
    assert_null(installTransport(engine, "rdma", no_matrix));
    assert_null(installTransport(engine, "rdma", no_device));
    setenv("MC_FORCE_TCP", "1", 1);
    assert_null(installTransport(engine, "rdma", given));
    unsetenv("MC_FORCE_TCP");
    transport_t installed = installTransport(engine, "rdma", given);
    assert_non_null(installed);
    assert_ptr_equal(installTransport(engine, "rdma", empty), installed);
    assert_ptr_equal(installTransport(engine, "rdma", NULL), installed);
    assert_int_equal(registerLocalMemory(engine, memory + MEMORY / 2, MEMORY / 2, "cpu:0", 1), 0);
    segment_id_t segment = openSegment(engine, mc_transfer_name(world->far));
    assert_true(segment >= 1);
    struct transfer_request requests[2] = {
        {OPCODE_WRITE, memory, segment, (uintptr_t)world->far_memory, 1 << 20},
        {OPCODE_WRITE, memory + MEMORY / 2, segment, (uintptr_t)world->far_memory + (1 << 20), 1 << 20}};
    fill(memory, MEMORY, 9);
    batch_id_t batch = allocateBatchID(engine, 2);
    assert_int_equal(submitTransfer(engine, batch, requests, 2), 0);
    struct transfer_status status = {STATUS_WAITING, 0};
    for (size_t task = 0; task < 2; task++)
        do {
            assert_int_equal(getTransferStatus(engine, batch, task, &status), 0);
            usleep(100);
        } while (status.status == STATUS_WAITING);
    assert_int_equal(status.status, STATUS_COMPLETED);
    assert_memory_equal(world->far_memory, memory, 1 << 20);
    assert_memory_equal(world->far_memory + (1 << 20), memory + MEMORY / 2, 1 << 20);
    assert_int_equal(fake_counts().bytes[2], 2 << 20);
    assert_int_equal(freeBatchID(engine, batch), 0);
    destroyTransferEngine(engine);
    munmap(memory, MEMORY);
    uint32_t contexts = fake_counts().contexts;
    engine = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "127.0.0.1", 0, 1); /* discovers all four */
    assert_int_equal(fake_counts().contexts, contexts + 4);
    destroyTransferEngine(engine);
}

/* While transfers go on and memory is registered and taken back. */
static void test_installed_meanwhile(void **state)
{
    struct world *world = *state;
    pthread_t thread;
    mc_transfer_close(world->near);
    struct mc_transfer_config config = {.local_name = "127.0.0.1", .metadata_server = "P2PHANDSHAKE"};
    assert_int_equal(mc_transfer_open(&config, &world->near), 0);
    assert_int_equal(add(world->near, world->near_memory, MEMORY), 0);
    fill(world->near_memory, MEMORY, 4);
    pthread_create(&thread, NULL, write_rounds, world);
    uint8_t *more = memory_map(MEMORY);
    for (unsigned i = 0; i < 20; i++) {
        uint64_t address = (uintptr_t)more;
        assert_int_equal(add(world->near, more, MEMORY), 0);
        if (i == 10)
            assert_int_equal(mc_transfer_start_rdma(world->near, "fake0,fake2", NULL), 0);
        assert_int_equal(mc_transfer_unregister(world->near, &address, 1), 0);
    }
    pthread_join(thread, NULL);
    assert_memory_equal(world->far_memory, world->near_memory, 200 * 4096);
    expect(world, MC_TRANSFER_PATH_RDMA, MEMORY, 5);
    munmap(more, MEMORY);
}

static void test_remote_text(void **state)
{
    static const char *const bad[] = {
        "",
        "[]",
        "{\"memory\":1}",
        "{\"memory\":[1]}",
        "{\"memory\":[[[]]]}",
        "{\"memory\":[[[0,1,1,0,5]]]}",          /* at 0 */
        "{\"memory\":[[[1,0,1,0,5]]]}",          /* no bytes */
        "{\"memory\":[[[1,1,0,0]]]}",            /* at no device */
        "{\"memory\":[[[1,1,1,0]]]}",            /* no key */
        "{\"memory\":[[[1,1,1,0,5,6]]]}",        /* one too many */
        "{\"memory\":[[[1,1,65536,0,5]]]}",      /* a 17th device */
        "{\"memory\":[[[1,1,1,0,4294967296]]]}", /* no key */
        "{\"memory\":[[[1,18446744073709551615,1,0,5],[1,1,1,0,5]]]}",
        "{\"memory\":[[[18446744073709551600,16,1,0,5],[4096,16,1,0,5]]]}", /* goes on after the last address */
        "{\"memory\":[[[10,10,1,0,5],[21,1,1,0,5]]]}",                      /* a hole within a region */
        "{\"memory\":[[[10,10,1,0,5]],[[19,5,1,0,5]]]}",                    /* two regions overlap */
        "{\"memory\":[[[10,10,1,0,5]]],\"memory\":[[[30,1,1,0,5]]]}",
        "{\"memory\":[[[10,10,1,0,5]]",
    };
    struct mc_rdma_remote *remote;
    struct mc_rdma_chunks chunks;
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_true(mc_rdma_remote_read(mc_span_string(bad[i]), &remote) < 0);
    const char *text = "{\"new\":{},\"memory\":[[[100,10,3,1,5,6],[110,10,1,0,7]],[[120,5,1,0,8]],[],[[50,5,1,0,9]]]}";
    assert_int_equal(mc_rdma_remote_read(mc_span_string(text), &remote), 0);
    assert_true(mc_rdma_remote_find(remote, 105, 15, &chunks));
    assert_int_equal(chunks.count, 2);
    assert_int_equal(chunks.list[0].keys[1], 6);
    assert_true(mc_rdma_remote_find(remote, 50, 5, &chunks));
    assert_int_equal(chunks.count, 1);
    assert_false(mc_rdma_remote_find(remote, 50, 6, &chunks));
    assert_false(mc_rdma_remote_find(remote, 49, 1, &chunks));
    assert_false(mc_rdma_remote_find(remote, 119, 2, &chunks)); /* over the border of two regions */
    assert_false(mc_rdma_remote_find(remote, 125, 1, &chunks));
    assert_false(mc_rdma_remote_find(remote, 100, 0, &chunks));
    assert_false(mc_rdma_remote_find(remote, UINT64_MAX, 2, &chunks));
    /* Written and read again it is the same. */
    struct mc_buffer out = {0};
    mc_rdma_remote_begin(&out, mc_span_string("[]"));
    for (uint32_t i = 0; i < remote->chunk_count; i++)
        mc_rdma_remote_region(&out, (struct mc_rdma_chunks){&remote->chunks[i], 1});
    mc_rdma_remote_end(&out);
    struct mc_rdma_remote *again;
    assert_int_equal(mc_rdma_remote_read(mc_span(out.data, out.length), &again), 0);
    assert_int_equal(again->chunk_count, remote->chunk_count);
    assert_memory_equal(again->chunks, remote->chunks, remote->chunk_count * sizeof(*remote->chunks));
    mc_rdma_remote_release(again);
    mc_rdma_remote_release(remote);
    mc_buffer_free(&out);
}

int main(void)
{
#define ONE_EACH(name) cmocka_unit_test_setup_teardown(name, open_with_one_each, close_it)
#define TWO_EACH(name) cmocka_unit_test_setup_teardown(name, open_with_two_each, close_it)
    const struct CMUnitTest tests[] = {
        TWO_EACH(test_both_devices),
        TWO_EACH(test_cables),
        ONE_EACH(test_checksums),
        ONE_EACH(test_stalled_writes_are_cut),
        ONE_EACH(test_all_wait_for_the_cut),
        ONE_EACH(test_another_process_after_a_cut),
        ONE_EACH(test_cut_when_asked),
        ONE_EACH(test_given_up_is_no_proof),
        ONE_EACH(test_given_up_while_it_runs),
        ONE_EACH(test_changes_while_it_is_opened),
        cmocka_unit_test(test_closed_before_the_cut),
        ONE_EACH(test_links_outlive_a_pause),
        ONE_EACH(test_unregistered_memory),
        TWO_EACH(test_nic_loads),
        ONE_EACH(test_memory_without_keys),
        ONE_EACH(test_registered_again),
        ONE_EACH(test_kept_by_a_device),
        ONE_EACH(test_peer_ends),
        cmocka_unit_test(test_tcp_takes_rdma),
        cmocka_unit_test(test_no_device),
        cmocka_unit_test(test_near_device),
        cmocka_unit_test(test_near_the_peer),
        TWO_EACH(test_install),
        TWO_EACH(test_installed_meanwhile),
        cmocka_unit_test(test_remote_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
