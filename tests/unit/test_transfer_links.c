/* Set-up of RDMA links between engines: a rail whose neighbours do not answer, many who ask at once, and what else the
 * engine answers meanwhile. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "env/clock.h"
#include "env/json.h"
#include "env/log.h"
#include "fake_verbs.h"
#include "rdma/link.h"
#include "rdma/pair.h"
#include "transfer/peer/ask.h"
#include "transfer/peer/peer.h"
#include "transfer/peer/rdma_lane.h"
#include "transfer/run/run.h"
#include "transfer/serve/service.h"
#include "transfer/state/engine.h"
#include "transfer/wire/document.h"
#include "transfer/wire/handshake.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MEMORY ((size_t)4 << 20)
#define RAILS 4u
#define SECOND_NS 1000000000ull

struct world { /* near asks by fake0 to fake3, far serves by fake4 to fake7; plain has tcp alone */
    struct mc_transfer_engine *near, *far, *plain;
    uint8_t *near_memory, *far_memory, *plain_memory;
    struct mc_peer *peer; /* what near knows of far; NULL: nothing yet */
};

static uint8_t *map(void)
{
    void *memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    return memory;
}

static struct mc_transfer_engine *engine_open(const char *protocol, const char *devices, const void *memory)
{
    struct mc_transfer_config config = {"127.0.0.1", "P2PHANDSHAKE", protocol, devices};
    struct mc_transfer_engine *engine = NULL;
    assert_int_equal(mc_transfer_open(&config, &engine), 0);
    assert_int_equal(mc_transfer_register(engine, &(struct mc_transfer_range){(uintptr_t)memory, MEMORY}, 1), 0);
    return engine;
}

/* All devices are near all memory, whatever this machine has. */
static void use_all(void)
{
    static const char text[] = "{\"cpu:0\": [[\"fake0\", \"fake1\", \"fake2\", \"fake3\","
                               "\"fake4\", \"fake5\", \"fake6\", \"fake7\"], []]}";
    static char path[] = "/tmp/test_transfer_links_XXXXXX";
    static bool is_there;
    if (is_there)
        return;
    int fd = mkstemp(path);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    setenv("MC_CUSTOM_TOPO_JSON", path, 1);
    is_there = true;
}

static int forget_all(void **state)
{
    (void)state;
    return unlink(getenv("MC_CUSTOM_TOPO_JSON"));
}

static void world_open(struct world *world)
{
    struct fake_device_config devices[2 * RAILS];
    for (uint32_t i = 0; i < 2 * RAILS; i++)
        devices[i] = fake_roce(i);
    fake_reset(devices, 2 * RAILS);
    mc_transfer_verbs = fake_verbs();
    setenv("MC_SAME_PROCESS", "0", 1);
    setenv("MC_SAME_HOST", "0", 1);
    use_all();
    world->peer = NULL;
    world->near_memory = map();
    world->far_memory = map();
    world->plain_memory = map();
    world->near = engine_open("rdma", "fake0,fake1,fake2,fake3", world->near_memory);
    world->far = engine_open("rdma", "fake4,fake5,fake6,fake7", world->far_memory);
    world->plain = engine_open("", "", world->plain_memory);
}

static int set_up(void **state)
{
    static struct world world;
    world_open(&world);
    *state = &world;
    return 0;
}

static int set_up_with_peer(void **state)
{
    (void)set_up(state);
    struct world *world = *state;
    uint64_t deadline_ns = mc_clock_ns() + 20 * SECOND_NS;
    assert_int_equal(mc_peer_get(world->near, mc_transfer_name(world->far), deadline_ns, &world->peer), 0);
    return 0;
}

static int set_up_stalling(void **state, const char *stall_ms)
{
    setenv("MC_RDMA_STALL_MS", stall_ms, 1);
    (void)set_up_with_peer(state);
    unsetenv("MC_RDMA_STALL_MS");
    return 0;
}

/* Work that does not end is given up after a minute. */
static int set_up_patient(void **state)
{
    return set_up_stalling(state, "60000");
}

/* And at once. */
static int set_up_hasty(void **state)
{
    return set_up_stalling(state, "100");
}

static int tear_down(void **state)
{
    struct world *world = *state;
    if (world->peer != NULL)
        mc_peer_release(world->peer);
    mc_transfer_close(world->near);
    mc_transfer_close(world->far);
    mc_transfer_close(world->plain);
    munmap(world->near_memory, MEMORY);
    munmap(world->far_memory, MEMORY);
    munmap(world->plain_memory, MEMORY);
    struct fake_counts counts = fake_counts();
    assert_int_equal(counts.qps + counts.mrs + counts.contexts + counts.cqs + counts.channels, 0);
    assert_int_equal(counts.send_overflows + counts.cq_overflows + counts.bad_posts + counts.late_events, 0);
    return 0;
}

static int write_to_far(struct world *world, struct mc_transfer_engine *from, uint8_t *memory, uint64_t length)
{
    struct mc_transfer_item item = {memory, (uintptr_t)world->far_memory, length};
    return mc_transfer_run(from, mc_transfer_name(world->far), MC_TRANSFER_WRITE, &item, 1, NULL);
}

static uint64_t moved_by(struct mc_transfer_engine *engine, int path)
{
    struct mc_transfer_counters counters;
    mc_transfer_counters(engine, &counters);
    return counters.bytes[path];
}

/* The first write already goes over three rails, and later ones do not wait for the fourth. */
static void test_three_rails_carry(void **state)
{
    struct world *world = *state;
    fake_slow_rtr(7, 3, 1000, ETIMEDOUT);
    memset(world->near_memory, 7, MEMORY);
    uint64_t start_ms = mc_clock_ms();
    assert_int_equal(write_to_far(world, world->near, world->near_memory, MEMORY), 0);
    assert_true(mc_clock_ms() - start_ms < 1500);
    assert_memory_equal(world->far_memory, world->near_memory, MEMORY);
    assert_int_equal(moved_by(world->near, MC_TRANSFER_PATH_RDMA), MEMORY);
    struct fake_counts counts = fake_counts();
    assert_true(counts.bytes[0] > 0 && counts.bytes[1] > 0 && counts.bytes[2] > 0);
    assert_int_equal(counts.bytes[3], 0);
    fake_slow_rtr(7, 3, 0, 0);
    for (unsigned i = 0; fake_counts().bytes[3] == 0; i++) { /* and it comes by itself */
        assert_true(i < 2000);
        assert_int_equal(write_to_far(world, world->near, world->near_memory, MEMORY), 0);
        usleep(10000);
    }
    assert_int_equal(moved_by(world->near, MC_TRANSFER_PATH_TCP), 0);
}

/* ---- many who ask at once ---- */

#define ASKERS 200u

struct asker {
    struct world *world;
    const struct mc_rdma_remote *remote;
    pthread_t thread;
    struct mc_rdma_link *link;
    int fd;
    uint64_t linked_ms;
};

static _Atomic bool is_begun;
static _Atomic unsigned linked;

static int ask_once(struct asker *asker)
{
    struct mc_buffer offer = {0}, json = {0}, reply = {0};
    struct mc_span answer = {NULL, 0};
    int rc = mc_rdma_link_offer(asker->link, 1500, &offer);
    if (rc == 1) {
        mc_buffer_printf(&json, "{\"mooncake_c\":{\"rdma\":%.*s}}", (int)offer.length, offer.data);
        assert_int_equal(mc_ask_on(asker->world->near, asker->fd, MC_HANDSHAKE_CONNECTION,
                                   mc_span(json.data, json.length), mc_clock_ns() + 20 * SECOND_NS, &reply),
                         0);
        assert_int_equal(mc_json_find(mc_span(reply.data, reply.length), "mooncake_c.rdma", &answer), 1);
        rc = mc_rdma_link_complete(asker->link, answer, mc_clock_ns() + 2 * SECOND_NS);
    }
    mc_buffer_free(&offer);
    mc_buffer_free(&json);
    mc_buffer_free(&reply);
    return rc;
}

/* Until pairs of three rails stand. */
static void *ask(void *argument)
{
    struct asker *asker = argument;
    char address[64];
    struct mc_rdma_link_options options = {.devices = asker->remote->devices,
                                           .device_count = asker->remote->device_count};
    mc_address_join(address, sizeof(address), "127.0.0.1", asker->world->far->rpc_port);
    assert_int_equal(mc_rdma_link_open(asker->world->near->rdma, &options, &asker->link), 0);
    while (!is_begun)
        usleep(1000);
    asker->fd = mc_tcp_connect(address, mc_clock_ns() + 20 * SECOND_NS);
    assert_true(asker->fd >= 0);
    while (mc_rdma_link_ready(asker->link) < 2 * (RAILS - 1)) {
        (void)ask_once(asker);
        usleep(10000);
    }
    asker->linked_ms = mc_clock_ms();
    linked++;
    return NULL;
}

static uint64_t late(uint64_t start_ms, uint64_t worst_ms)
{
    uint64_t took_ms = mc_clock_ms() - start_ms;
    return took_ms > worst_ms ? took_ms : worst_ms;
}

static void test_many_at_once(void **state)
{
    struct world *world = *state;
    static struct asker askers[ASKERS];
    uint64_t last_ms = 0, worst_ms = 0;
    struct mc_peer *peer = world->peer;
    fake_slow_rtr(7, 3, 3000, ETIMEDOUT);
    is_begun = false;
    linked = 0;
    for (uint32_t i = 0; i < ASKERS; i++) {
        askers[i] = (struct asker){.world = world, .remote = peer->remote};
        assert_int_equal(pthread_create(&askers[i].thread, NULL, ask, &askers[i]), 0);
    }
    usleep(200000);
    uint64_t start_ms = mc_clock_ms();
    is_begun = true;
    for (unsigned i = 0; linked < ASKERS || i < 10; i++) { /* what does not need a link is served meanwhile */
        struct mc_document document;
        char address[MC_ADDRESS_MAX];
        uint64_t one_ms = mc_clock_ms();
        assert_int_equal(write_to_far(world, world->plain, world->plain_memory, 65536), 0);
        worst_ms = late(one_ms, worst_ms);
        one_ms = mc_clock_ms();
        assert_int_equal(mc_ask_document(world->plain, mc_transfer_name(world->far), mc_clock_ns() + 20 * SECOND_NS,
                                         &document, address, sizeof(address)),
                         0);
        worst_ms = late(one_ms, worst_ms);
        mc_document_free(&document);
        usleep(5000);
    }
    for (uint32_t i = 0; i < ASKERS; i++) {
        assert_int_equal(pthread_join(askers[i].thread, NULL), 0);
        last_ms = askers[i].linked_ms > last_ms ? askers[i].linked_ms : last_ms;
    }
    print_message("%u askers over three rails of four: all linked after %u ms; a write by tcp or a document took %u ms "
                  "at most meanwhile; %u calls slept\n",
                  ASKERS, (unsigned)(last_ms - start_ms), (unsigned)worst_ms, (unsigned)fake_counts().slept);
    assert_true(last_ms - start_ms < 10000);
    assert_true(worst_ms < 2500); /* less than one sleep */
    for (uint32_t i = 0; i < ASKERS; i++) {
        mc_rdma_link_close(askers[i].link);
        close(askers[i].fd);
    }
}

/* Askers that leave without waiting for the answer: nothing of theirs is begun later. */
static void test_those_who_left(void **state)
{
    struct world *world = *state;
    struct mc_peer *peer = world->peer;
    for (uint32_t i = 0; i < RAILS; i++)
        fake_slow_rtr(RAILS + i, i, 300, 0);
    for (unsigned i = 0; i < 20; i++) {
        struct mc_rdma_link *link;
        struct mc_buffer offer = {0}, json = {0}, frame = {0};
        char address[64];
        struct mc_rdma_link_options options = {.devices = peer->remote->devices,
                                               .device_count = peer->remote->device_count};
        mc_address_join(address, sizeof(address), "127.0.0.1", world->far->rpc_port);
        assert_int_equal(mc_rdma_link_open(world->near->rdma, &options, &link), 0);
        assert_int_equal(mc_rdma_link_offer(link, 1500, &offer), 1);
        mc_buffer_printf(&json, "{\"mooncake_c\":{\"rdma\":%.*s}}", (int)offer.length, offer.data);
        mc_handshake_write(&frame, MC_HANDSHAKE_CONNECTION, false, mc_span(json.data, json.length));
        int fd = mc_tcp_connect(address, mc_clock_ns() + 20 * SECOND_NS);
        assert_true(fd >= 0);
        struct iovec part = {frame.data, frame.length};
        assert_int_equal(mc_socket_send(fd, &part, 1, mc_clock_ns() + SECOND_NS), 0);
        if (i == 0) /* the first one's begin */
            while (fake_counts().slept < RAILS)
                usleep(1000);
        close(fd);
        mc_buffer_free(&offer);
        mc_buffer_free(&json);
        mc_buffer_free(&frame);
        mc_rdma_link_close(link);
    }
    for (unsigned i = 0; i < 2000 && (fake_counts().qps != 0 || i < 100); i++)
        usleep(10000);
    assert_int_equal(fake_counts().qps, 0);
    assert_true(fake_counts().slept < 4 * RAILS); /* of 40 for each rail */
}

/* ---- a set-up that fails ---- */

static void *take(void *argument)
{
    struct mc_peer *peer = argument;
    struct mc_rdma_lane *lane = NULL;
    if (mc_rdma_lane_take(peer, peer->remote, mc_clock_ns() + 20 * SECOND_NS, &lane) == 0)
        return lane;
    return NULL;
}

/* It opens no further link for now; those that there are can be used. */
static bool has_failed(struct mc_peer *peer)
{
    pthread_mutex_lock(&peer->lock);
    bool has_failed = peer->rdma_open_ms != 0;
    assert_int_equal(peer->rdma_retry_ms, 0);
    pthread_mutex_unlock(&peer->lock);
    return has_failed;
}

/* Another link cannot be set up: the one that there is goes on, and whoever wanted another waits for it. */
static void test_others_carry(void **state)
{
    struct world *world = *state;
    pthread_t waiting;
    void *second;
    struct mc_peer *peer = world->peer;
    struct mc_rdma_lane *first = take(peer);
    assert_non_null(first);
    for (uint32_t i = 0; i < RAILS; i++)
        fake_fail_rtr(RAILS + i, 0, EINVAL);
    assert_int_equal(pthread_create(&waiting, NULL, take, peer), 0);
    for (unsigned i = 0; i < 20000 && !has_failed(peer); i++)
        usleep(1000);
    assert_true(has_failed(peer));
    mc_rdma_lane_give(peer, first);
    assert_int_equal(pthread_join(waiting, &second), 0);
    assert_ptr_equal(second, first);
    mc_rdma_lane_give(peer, first);
    memset(world->near_memory, 3, 4096);
    assert_int_equal(write_to_far(world, world->near, world->near_memory, 4096), 0);
    assert_int_equal(moved_by(world->near, MC_TRANSFER_PATH_RDMA), 4096);
}

/* The one that there is stays in use: the call that wanted another is not kept until its deadline. */
static void test_others_are_busy(void **state)
{
    struct world *world = *state;
    struct mc_peer *peer = world->peer;
    struct mc_rdma_lane *first = take(peer);
    assert_non_null(first);
    for (uint32_t i = 0; i < RAILS; i++)
        fake_fail_rtr(RAILS + i, 0, EINVAL);
    uint64_t start_ms = mc_clock_ms();
    assert_null(take(peer));
    assert_true(mc_clock_ms() - start_ms < 10000); /* of 20 s */
    mc_rdma_lane_give(peer, first);
}

/* All rails take longer than a call waits: tcp carries, and the link goes on being set up until it can be used. */
static void test_later_calls_go_on(void **state)
{
    struct world *world = *state;
    for (uint32_t i = 0; i < RAILS; i++)
        fake_slow_rtr(RAILS + i, i, 3000, 0);
    uint64_t start_ms = mc_clock_ms();
    memset(world->near_memory, 5, 4096);
    assert_int_equal(write_to_far(world, world->near, world->near_memory, 4096), 0);
    assert_true(mc_clock_ms() - start_ms < 2900);
    assert_int_equal(moved_by(world->near, MC_TRANSFER_PATH_TCP), 4096);
    for (unsigned i = 0; moved_by(world->near, MC_TRANSFER_PATH_RDMA) == 0; i++) {
        assert_true(i < 2000);
        assert_int_equal(write_to_far(world, world->near, world->near_memory, 4096), 0);
        usleep(10000);
    }
    for (uint32_t i = 0; i < RAILS; i++)
        fake_slow_rtr(RAILS + i, i, 0, 0);
    assert_true(fake_counts().qps_made <= 4 * RAILS); /* of one link */
}

/* ---- a peer that leaves ---- */

struct writing {
    struct world *world;
    int rc;
};

static void *write_all(void *argument)
{
    struct writing *writing = argument;
    writing->rc = write_to_far(writing->world, writing->world->near, writing->world->near_memory, MEMORY);
    return NULL;
}

/* It tells who has links to it; what is under way on them ends well, then they end, and so do those that rest. */
static void test_peer_leaves(void **state)
{
    struct world *world = *state;
    struct mc_rdma_lane *resting;
    pthread_t thread;
    struct mc_peer *peer = world->peer;
    resting = take(peer);
    assert_int_equal(write_to_far(world, world->near, world->near_memory, MEMORY), 0); /* by another */
    mc_rdma_lane_give(peer, resting);
    assert_int_equal(world->far->heard_links, 2);
    assert_int_equal(world->near->lane_count, 2);
    for (uint32_t i = 0; i < RAILS; i++)
        fake_hold(i);
    memset(world->near_memory, 9, MEMORY);
    struct writing writing = {.world = world, .rc = 1};
    uint64_t works = fake_counts().works;
    pthread_create(&thread, NULL, write_all, &writing);
    while (fake_counts().works == works)
        usleep(1000);
    mc_service_leave(world->far);
    for (unsigned i = 0; i < 2000 && world->far->heard_links == 2; i++)
        usleep(10000);
    assert_int_equal(world->far->heard_links, 1);
    usleep(300000);
    assert_int_equal(world->far->heard_links, 1);
    assert_int_equal(writing.rc, 1);
    for (uint32_t i = 0; i < RAILS; i++)
        fake_release(i);
    pthread_join(thread, NULL);
    assert_int_equal(writing.rc, 0);
    assert_memory_equal(world->far_memory, world->near_memory, MEMORY);
    assert_int_equal(moved_by(world->near, MC_TRANSFER_PATH_RDMA), 2 * MEMORY);
    for (unsigned i = 0; i < 2000 && world->far->heard_links > 0; i++)
        usleep(10000);
    assert_int_equal(world->far->heard_links, 0);
    assert_int_equal(world->near->lane_count, 0);
}

/* ---- what a run may say ---- */

/* Part of a write was cut off on a device that stalls, and came by another. While it may arrive once more, the peer
 * must not be told that it has arrived. */
static void test_not_before_it_is_cut(void **state)
{
    struct world *world = *state;
    struct mc_peer *peer = world->peer;
    assert_int_equal(write_to_far(world, world->near, world->near_memory, MEMORY), 0);
    struct mc_transfer_item item = {world->near_memory, (uintptr_t)world->far_memory, MEMORY};
    fake_hold(0);
    pthread_mutex_lock(&world->far->rdma->lock); /* far cannot close its half */
    int rc = mc_run_rdma(peer, MC_TRANSFER_WRITE, &item, 1, NULL, mc_clock_ns() + 3 * SECOND_NS);
    pthread_mutex_unlock(&world->far->rdma->lock);
    assert_int_equal(rc, MC_TRANSFER_ERR_TIMEOUT);
    assert_int_equal(mc_run_rdma(peer, MC_TRANSFER_WRITE, &item, 1, NULL, mc_clock_ns() + 20 * SECOND_NS), 0);
    fake_release(0);
}

int main(void)
{
    mc_log_set_level(MC_LOG_ERROR);
#define TEST(name, set_up) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_three_rails_carry, set_up),          TEST(test_many_at_once, set_up_with_peer),
        TEST(test_those_who_left, set_up_with_peer),   TEST(test_others_carry, set_up_with_peer),
        TEST(test_others_are_busy, set_up_with_peer),  TEST(test_later_calls_go_on, set_up),
        TEST(test_not_before_it_is_cut, set_up_hasty), TEST(test_peer_leaves, set_up_patient),
    };
    return cmocka_run_group_tests(tests, NULL, forget_all);
}
