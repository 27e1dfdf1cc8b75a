/* What peers may do to an engine that uses them: be silent, be slow, be another process than before. Over tcp, with
 * engines and stand-ins of this process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/checksum.h"
#include "transfer/peer/peer.h"
#include "transfer/peer/settle.h"
#include "transfer/serve/publish.h"
#include "transfer/state/engine.h"
#include "transfer/wire/document.h"
#include "transfer/wire/metadata.h"
#include "transfer/serve/service_inside.h"
#include "transfer/wire/tcp_wire.h"
#include "transfer_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define TURNCOAT_BYTES ((size_t)512 << 10) /* one lane */

/* ---- silent and slow ones ---- */

/* However many peers are silent, and however much waits for each: batches to one that answers do not wait for them, and
 * theirs end by the deadline, also those that never had a thread. */
static void test_many_silent_peers(void **state)
{
    struct world *world = *state;
    enum { SILENT = 40, EACH = MC_PEER_WORKERS_MAX + 2, FINE = 200 };
    static struct silent silent[SILENT];
    static int64_t stuck[SILENT * EACH];
    world->near->settings.timeout_ns = 6 * SECOND_NS;
    struct mc_transfer_item item = {world->near_memory, 4096, 16 << 20};
    struct mc_transfer_item fine = {world->near_memory, (uintptr_t)world->far_memory, 65536};
    for (int i = 0; i < SILENT; i++) {
        char name[SILENT_NAME_MAX];
        silent_open(&silent[i], name, sizeof(name));
        for (int j = 0; j < EACH; j++) {
            int64_t id = mc_transfer_submit(world->near, name, MC_TRANSFER_WRITE, &item, 1, NULL);
            assert_true(id > 0);
            stuck[i * EACH + j] = id;
        }
    }
    uint64_t start_ms = mc_clock_ms(), slowest_ms = 0;
    for (int i = 0; i < FINE && mc_clock_ms() - start_ms < 3000; i++) {
        uint64_t begun_ms = mc_clock_ms();
        int64_t id = mc_transfer_submit(world->near, mc_transfer_name(world->far), MC_TRANSFER_WRITE, &fine, 1, NULL);
        assert_int_equal(mc_transfer_wait(world->near, &id, 1), 0);
        uint64_t took_ms = mc_clock_ms() - begun_ms;
        slowest_ms = took_ms > slowest_ms ? took_ms : slowest_ms;
    }
    print_message("  slowest beside %d silent peers: %llu ms\n", SILENT, (unsigned long long)slowest_ms);
    assert_true(slowest_ms < 1000);
    assert_int_equal(mc_transfer_status(world->near, stuck[SILENT * EACH - 1]), 0); /* they are still silent */
    assert_int_equal(mc_transfer_wait(world->near, stuck, SILENT * EACH), MC_TRANSFER_ERR_TIMEOUT);
    assert_true(mc_clock_ms() - start_ms < 12000);
    for (int i = 0; i < SILENT; i++)
        silent_close(&silent[i]);
}

/* A peer that is slow, but moves: writes of one byte, answered one after the other. */
struct slow {
    struct silent silent;
    pthread_t thread;
    unsigned answer_ms;
    _Atomic unsigned answered;
};

static void *slow_main(void *argument)
{
    enum { MOST = 32, REQUEST = sizeof(struct mc_tcp_header) + 1 };
    struct slow *slow = argument;
    struct pollfd fds[MOST] = {{.fd = slow->silent.data, .events = POLLIN}};
    nfds_t count = 1;
    uint64_t status = MC_TCP_STATUS_OK;
    while (!atomic_load(&slow->silent.stop)) {
        (void)poll(fds, count, 20);
        for (int fd; count < MOST && (fd = mc_socket_accept(slow->silent.data)) >= 0;)
            fds[count++] = (struct pollfd){.fd = fd, .events = POLLIN};
        for (nfds_t i = 1; i < count; i++) {
            uint8_t request[REQUEST];
            if (fds[i].revents == 0 || recv(fds[i].fd, request, REQUEST, MSG_WAITALL) != REQUEST)
                continue;
            usleep(slow->answer_ms * 1000);
            slow->answered += send(fds[i].fd, &status, 8, MSG_NOSIGNAL) == 8;
            fds[i].revents = 0;
        }
    }
    while (count > 1)
        close(fds[--count].fd);
    return NULL;
}

/* The time that a batch waits behind others to a peer that moves is not its own: all of them end well, though together
 * they take several times what each may. */
static void test_queue_of_a_slow_peer(void **state)
{
    (void)state;
    enum { COUNT = 60 };
    struct world world;
    struct slow slow = {.answer_ms = 50};
    int64_t ids[COUNT];
    char name[SILENT_NAME_MAX];
    world_open_beside(&world, &slow.silent, name);
    assert_int_equal(pthread_create(&slow.thread, NULL, slow_main, &slow), 0);
    world.near->settings.timeout_ns = 1500 * MS_NS;
    struct mc_transfer_item item = {world.near_memory, 4096, 1};
    for (int i = 0; i < COUNT; i++)
        assert_true((ids[i] = mc_transfer_submit(world.near, name, MC_TRANSFER_WRITE, &item, 1, NULL)) > 0);
    assert_int_equal(mc_transfer_wait(world.near, ids, COUNT), 0);
    atomic_store(&slow.silent.stop, true);
    pthread_join(slow.thread, NULL); /* it counts after it has answered */
    assert_int_equal(slow.answered, COUNT);
    silent_close(&slow.silent);
    world_close(&world);
}

/* What waits for a silent peer ends by its deadline also when that peer is doubtful, and the metadata server takes
 * questions and answers none. */
static void test_silent_beside_a_silent_server(void **state)
{
    struct world *world = *state;
    enum { WAITING = 5 };
    struct mc_peer *peer;
    char server[96];
    int64_t ids[WAITING];
    uint16_t port = 0;
    world->near->settings.timeout_ns = SECOND_NS;
    struct mc_transfer_item item = {world->near_memory, 4096, 1};
    int64_t id = mc_transfer_submit(world->near, world->name, MC_TRANSFER_WRITE, &item, 1, NULL);
    assert_int_equal(mc_transfer_wait(world->near, &id, 1),
                     MC_TRANSFER_ERR_TIMEOUT); /* from here on it has one thread */
    int hanging = mc_tcp_listen("127.0.0.1", &port);
    assert_true(hanging >= 0);
    snprintf(server, sizeof(server), "http://127.0.0.1:%u/metadata", port);
    assert_int_equal(mc_metadata_init(&world->near->metadata, server), 0);
    assert_int_equal(mc_peer_get_known(world->near, world->name, UINT64_MAX, &peer), 0);
    pthread_mutex_lock(&peer->lock);
    peer->is_doubtful = true;
    pthread_mutex_unlock(&peer->lock);
    uint64_t start_ms = mc_clock_ms();
    for (int i = 0; i < WAITING; i++) {
        assert_true((ids[i] = mc_transfer_submit(world->near, world->name, MC_TRANSFER_WRITE, &item, 1, NULL)) > 0);
        world->near->settings.timeout_ns = 500 * MS_NS; /* the others are late when the first ends, surely */
    }
    for (int i = 0; i < WAITING; i++) /* the first was asked for in vain, the others were late */
        assert_int_equal(mc_transfer_wait(world->near, &ids[i], 1),
                         i == 0 ? MC_TRANSFER_ERR_METADATA : MC_TRANSFER_ERR_TIMEOUT);
    print_message("  %d batches ended after %llu ms\n", WAITING, (unsigned long long)(mc_clock_ms() - start_ms));
    assert_true(mc_clock_ms() - start_ms < 2500);
    assert_true(world->near->count.timed_out >= WAITING);
    mc_peer_release(peer);
    close(hanging);
}

/* An engine that is closed does not wait for a peer whose connections broke, and that does not say where it is now. */
static void test_close_beside_a_silent_peer(void **state)
{
    (void)state;
    struct world world;
    struct silent silent;
    struct mc_peer *peer;
    char name[SILENT_NAME_MAX];
    world_open_beside(&world, &silent, name);
    assert_int_equal(mc_peer_get(world.near, name, UINT64_MAX, &peer), 0);
    mc_peer_release(peer);
    silent.is_paused = true;
    usleep(100000); /* its thread has seen that */
    struct mc_transfer_item item = {world.near_memory, 4096, 1};
    assert_true(mc_transfer_submit(world.near, name, MC_TRANSFER_WRITE, &item, 1, NULL) > 0);
    struct pollfd waited = {.fd = silent.data, .events = POLLIN};
    assert_int_equal(poll(&waited, 1, 10000), 1);
    close(mc_socket_accept(silent.data));
    usleep(200000); /* it asks */
    uint64_t start_ms = mc_clock_ms();
    world_close(&world);
    print_message("  closed in %llu ms\n", (unsigned long long)(mc_clock_ms() - start_ms));
    assert_true(mc_clock_ms() - start_ms < 3000);
    silent_close(&silent);
}

/* ---- another process with the same name ---- */

/* A connection that was in use while another process took the name is not kept. */
static void test_lane_of_the_former(void **state)
{
    struct world *world = *state;
    struct mc_peer *peer;
    struct mc_lane *lane, *idle;
    uint64_t until_ns = mc_clock_ns() + 20 * SECOND_NS;
    world->silent.process = 1;
    assert_int_equal(mc_peer_get(world->near, world->name, until_ns, &peer), 0);
    assert_int_equal(mc_peer_take_lane(peer, until_ns, &lane), 0);
    assert_int_equal(mc_peer_take_lane(peer, until_ns, &idle), 0);
    mc_peer_give_lane(peer, idle);
    assert_int_equal(peer->idle_count, 1);
    world->silent.process = 2;
    assert_int_equal(mc_peer_refresh(peer, until_ns), 1);
    assert_int_equal(peer->idle_count, 0);
    mc_peer_give_lane(peer, lane);
    assert_int_equal(peer->idle_count, 0);
    assert_int_equal(mc_peer_take_lane(peer, until_ns, &lane), 0);
    mc_peer_give_lane(peer, lane);
    assert_int_equal(peer->idle_count, 1);
    /* Forgotten in between, it is another one all the same. */
    mc_peer_forget(world->near, world->name);
    world->silent.process = 3;
    assert_int_equal(mc_peer_take_lane(peer, until_ns, &lane), 0);
    assert_int_equal(mc_peer_refresh(peer, until_ns), 1);
    mc_peer_give_lane(peer, lane);
    assert_int_equal(peer->idle_count, 0);
    mc_peer_release(peer);
}

/* Takes two writes, confirms one, and is gone; another process has the name then, and takes what comes. */
struct heir {
    struct silent silent;
    pthread_t thread;
    unsigned first, second; /* writes that came to each */
};

enum { HEIR_REQUEST = sizeof(struct mc_tcp_header) + 1 };

static bool take_write(int fd)
{
    uint8_t request[HEIR_REQUEST];
    return take(fd, request, sizeof(request));
}

static void *heir_main(void *argument)
{
    struct heir *heir = argument;
    uint64_t status = MC_TCP_STATUS_OK;
    struct pollfd waited = {.fd = heir->silent.data, .events = POLLIN};
    (void)poll(&waited, 1, 10000);
    int fd = mc_socket_accept(heir->silent.data);
    while (heir->first < 2 && take_write(fd))
        heir->first++;
    heir->silent.process = 2;
    (void)send(fd, &status, sizeof(status), MSG_NOSIGNAL);
    close(fd);
    (void)poll(&waited, 1, 10000);
    fd = mc_socket_accept(heir->silent.data);
    while (take_write(fd)) {
        heir->second++;
        (void)send(fd, &status, sizeof(status), MSG_NOSIGNAL);
    }
    close(fd);
    return NULL;
}

/* A batch of which one process has taken a part, and is gone, is moved to the other as a whole. */
static void test_batch_to_two_processes(void **state)
{
    (void)state;
    struct world world;
    struct heir heir = {.first = 0};
    char name[SILENT_NAME_MAX];
    world_open_beside(&world, &heir.silent, name);
    heir.silent.process = 1;
    assert_int_equal(pthread_create(&heir.thread, NULL, heir_main, &heir), 0);
    struct mc_transfer_item items[2] = {{world.near_memory, 4096, 1}, {world.near_memory + 1, 4097, 1}};
    assert_int_equal(mc_transfer_run(world.near, name, MC_TRANSFER_WRITE, items, 2, NULL), 0);
    assert_int_equal(mc_transfer_close_segment(world.near, name), 0);
    pthread_join(heir.thread, NULL);
    assert_int_equal(heir.first, 2);
    assert_int_equal(heir.second, 2);
    silent_close(&heir.silent);
    world_close(&world);
}

/* The connection of the next write of one byte, which has come. */
static int next_write(struct silent *silent)
{
    struct pollfd waited = {.fd = silent->data, .events = POLLIN};
    assert_int_equal(poll(&waited, 1, 10000), 1);
    int fd = mc_socket_accept(silent->data);
    assert_true(fd >= 0 && take_write(fd));
    return fd;
}

/* A batch that the former refuses goes to the heir, also when it was another thread that found him. */
static void test_refused_by_the_former(void **state)
{
    struct world *world = *state;
    struct mc_peer *peer;
    world->silent.process = 1;
    assert_int_equal(mc_peer_get(world->near, world->name, UINT64_MAX, &peer), 0);
    struct mc_transfer_item item = {world->near_memory, 4096, 1};
    int64_t id = mc_transfer_submit(world->near, world->name, MC_TRANSFER_WRITE, &item, 1, NULL);
    int former = next_write(&world->silent);
    world->silent.process = 2;
    assert_int_equal(mc_peer_refresh(peer, mc_clock_ns() + 10 * SECOND_NS), 1);
    uint64_t status = MC_TCP_STATUS_REFUSED;
    assert_true(send(former, &status, sizeof(status), MSG_NOSIGNAL) == sizeof(status));
    int heir = next_write(&world->silent);
    status = MC_TCP_STATUS_OK;
    assert_true(send(heir, &status, sizeof(status), MSG_NOSIGNAL) == sizeof(status));
    assert_int_equal(mc_transfer_wait(world->near, &id, 1), 0);
    close(former);
    close(heir);
    mc_peer_release(peer);
}

/* Hangs up when asked, and is another process then, which may speak another version of the protocol, and serves. */
struct turncoat {
    struct silent silent;
    pthread_t thread;
    unsigned versions[2];
    uint8_t opcodes[2]; /* of the first request to each */
    unsigned fences;    /* reads of one byte behind writes */
};

static bool serve_one(int fd, struct mc_tcp_header *header)
{
    static uint8_t payload[TURNCOAT_BYTES];
    uint64_t status = MC_TCP_STATUS_OK;
    if (!take(fd, header, sizeof(*header)) || header->length > sizeof(payload))
        return false;
    bool is_write = (header->opcode & 1) != 0;
    if (is_write && !take(fd, payload, header->length))
        return false;
    struct iovec parts[2] = {{&status, (header->opcode & MC_TCP_OPCODE_VERSION_2) != 0 ? sizeof(status) : 0},
                             {payload, is_write ? 0 : header->length}};
    return mc_socket_send(fd, parts, 2, mc_clock_ns() + 10 * SECOND_NS) == 0;
}

static void *turncoat_main(void *argument)
{
    struct turncoat *turncoat = argument;
    struct mc_tcp_header header = {0};
    for (unsigned turn = 0; turn < 2; turn++) {
        struct pollfd waited = {.fd = turncoat->silent.data, .events = POLLIN};
        (void)poll(&waited, 1, 10000);
        int fd = mc_socket_accept(turncoat->silent.data);
        bool is_there = turn == 0 ? take(fd, &header, sizeof(header)) : serve_one(fd, &header);
        turncoat->opcodes[turn] = is_there ? header.opcode : 0x7f;
        turncoat->silent.version = turncoat->versions[1];
        turncoat->silent.process *= turn == 0 ? 2u : 1u;
        while (turn == 1 && serve_one(fd, &header))
            turncoat->fences += header.length == 1 && header.opcode == 0;
        close(fd);
    }
    return NULL;
}

/* The version belongs to the process, not to the name: what one has half taken goes to the next in the next one's, up
 * and down, also when nothing else of its document differs (`process` 0). */
static void test_another_version_under_the_name(void **state)
{
    struct world *world = *state;
    for (unsigned i = 0; i < 8; i++) {
        enum mc_transfer_opcode opcode = (i & 1) != 0 ? MC_TRANSFER_WRITE : MC_TRANSFER_READ;
        struct turncoat turncoat = {.versions = {i & 2 ? 2 : 1, i & 2 ? 1 : 2}};
        char name[SILENT_NAME_MAX];
        silent_open(&turncoat.silent, name, sizeof(name));
        turncoat.silent.process = i >> 2;
        turncoat.silent.version = turncoat.versions[0];
        assert_int_equal(pthread_create(&turncoat.thread, NULL, turncoat_main, &turncoat), 0);
        struct mc_transfer_item item = {world->near_memory, 4096, TURNCOAT_BYTES};
        assert_int_equal(mc_transfer_run(world->near, name, opcode, &item, 1, NULL), 0);
        assert_int_equal(mc_transfer_close_segment(world->near, name), 0);
        pthread_join(turncoat.thread, NULL);
        for (unsigned turn = 0; turn < 2; turn++)
            assert_int_equal(turncoat.opcodes[turn], (unsigned)opcode | (turncoat.versions[turn] == 2 ? 0x80u : 0u));
        assert_int_equal(turncoat.fences, opcode == MC_TRANSFER_WRITE && turncoat.versions[1] == 1);
        silent_close(&turncoat.silent);
    }
}

/* ---- writes that were given up ---- */

/* A second descriptor of the connection that the next transfer will take: while it is there no reset is sent, as if it
 * were lost, and what follows can be sent. */
static int hold_connection(struct mc_peer *peer)
{
    struct mc_lane *lane;
    assert_int_equal(mc_peer_take_lane(peer, mc_clock_ns() + 10 * SECOND_NS, &lane), 0);
    int held = dup(lane->fd);
    assert_true(held >= 0);
    mc_peer_give_lane(peer, lane);
    return held;
}

static bool is_unused(struct mc_transfer_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    bool is_unused = mc_peers_are_idle(engine);
    pthread_mutex_unlock(&engine->lock);
    return is_unused;
}

enum knows { CUTS, STATUSES, NEITHER }; /* the peer: our release; the original; its version 1 */

struct late {
    enum knows knows;
    bool is_closed_between;
};
static struct late late_cuts = {CUTS, false};
/* It cannot be asked to cut a connection: it ends it itself before the next write is sent. */
static struct late late_original = {STATUSES, false}, late_version_1 = {NEITHER, false};
/* The caller closes the segment in between, and opens it again. */
static struct late late_closed = {CUTS, true};

/* The peer does not move, a write to it times out, and the reset is lost: what of it comes later, after the peer moves
 * again, does not lie over the next write. */
static void test_late_bytes(void **state)
{
    const struct late *what = *state;
    enum knows knows = what->knows;
    enum { LENGTH = 12 << 20 };
    struct world world;
    struct mc_peer *peer;
    world_open(&world);
    const char *far = mc_transfer_name(world.far);
    assert_int_equal(mc_peer_get(world.near, far, UINT64_MAX, &peer), 0);
    world.near->settings.lanes_near = 1;
    world.near->settings.timeout_ns = 700 * MS_NS;
    world.near->settings.tcp_version = knows == NEITHER ? 1 : 2;
    peer->document.can_cut = knows == CUTS;
    if (knows != CUTS)
        peer->document.id = (struct mc_id){0};
    memset(world.near_seen, 0xaa, LENGTH);
    struct mc_transfer_item item = {world.near_memory, (uintptr_t)world.far_memory, LENGTH};
    int held = hold_connection(peer);
    mc_peer_release(peer);
    pthread_mutex_lock(&world.far->lock); /* its service thread waits at the first request */
    int64_t id = mc_transfer_submit(world.near, far, MC_TRANSFER_WRITE, &item, 1, NULL);
    assert_true(id > 0);
    assert_int_equal(mc_transfer_wait(world.near, &id, 1), MC_TRANSFER_ERR_TIMEOUT);
    pthread_mutex_unlock(&world.far->lock);
    while (!is_unused(world.near)) /* the thread of the batch lets go of the peer */
        usleep(1000);
    if (what->is_closed_between)
        assert_int_equal(mc_transfer_close_segment(world.near, far), 0);
    assert_true(knows == CUTS || (peer->unended != NULL && peer->uncut_count == 0));
    world.near->settings.timeout_ns = 20 * SECOND_NS;
    memset(world.near_seen, 0xbb, LENGTH);
    assert_int_equal(mc_transfer_run(world.near, far, MC_TRANSFER_WRITE, &item, 1, NULL), 0);
    memset(world.near_seen, 0xaa, LENGTH);
    struct iovec late = {world.near_memory, LENGTH};
    (void)mc_socket_send(held, &late, 1, mc_clock_ns() + 500 * MS_NS); /* refused, or nobody reads it */
    usleep(100000);
    for (size_t i = 0; i < LENGTH; i++)
        if (world.far_seen[i] != 0xbb)
            fail_msg("byte %zu is of the write that timed out", i);
    close(held);
    /* And the next ones need no proof any more. */
    assert_int_equal(mc_transfer_run(world.near, far, MC_TRANSFER_WRITE, &item, 1, NULL), 0);
    assert_int_equal(world.far_seen[LENGTH - 1], 0xaa);
    world_close(&world);
}

/* An engine of the last release drops what it has not read of a connection that is reset, so it is. Nothing waits. */
static void test_late_bytes_at_the_last_release(void **state)
{
    struct world *world = *state;
    uint64_t status = MC_TCP_STATUS_OK;
    world->silent.process = 1;
    world->near->settings.timeout_ns = 500 * MS_NS;
    struct mc_transfer_item item = {world->near_memory, 4096, 1};
    assert_int_equal(mc_transfer_run(world->near, world->name, MC_TRANSFER_WRITE, &item, 1, NULL),
                     MC_TRANSFER_ERR_TIMEOUT);
    struct pollfd first = {.fd = mc_socket_accept(world->silent.data), .events = POLLIN};
    assert_true(first.fd >= 0 && poll(&first, 1, 5000) == 1);
    assert_true((first.revents & POLLERR) != 0);
    world->near->settings.timeout_ns = 10 * SECOND_NS;
    int64_t id = mc_transfer_submit(world->near, world->name, MC_TRANSFER_WRITE, &item, 1, NULL);
    int second = next_write(&world->silent);
    assert_true(send(second, &status, sizeof(status), MSG_NOSIGNAL) == sizeof(status));
    assert_int_equal(mc_transfer_wait(world->near, &id, 1), 0);
    close(first.fd);
    close(second);
}

/* What was sent is not written: a peer of version 1 that has stopped fails what is written to it, however little that
 * is, and nothing else goes to it before it has ended that connection. */
static void test_a_stopped_one_of_version_1(void **state)
{
    struct world *world = *state;
    char byte;
    world->silent.version = 1;
    world->near->settings.timeout_ns = 500 * MS_NS;
    struct mc_transfer_item item = {world->near_memory, 4096, 1};
    for (int i = 0; i < 3; i++)
        assert_int_equal(mc_transfer_run(world->near, world->name, MC_TRANSFER_WRITE, &item, 1, NULL),
                         MC_TRANSFER_ERR_TIMEOUT);
    int first = next_write(&world->silent);
    struct pollfd waited = {.fd = world->silent.data, .events = POLLIN};
    assert_int_equal(poll(&waited, 1, 0), 0); /* the only connection */
    struct mc_tcp_header fence;
    assert_true(take(first, &fence, sizeof(fence)) && fence.opcode == 0 && fence.length == 1 && fence.address == 4096);
    assert_int_equal(mc_socket_receive(first, &byte, 1, mc_clock_ns() + 5 * SECOND_NS, NULL),
                     MC_ERR_RPC_FAIL); /* its end */
    world->near->settings.timeout_ns = 10 * SECOND_NS;
    int64_t id = mc_transfer_submit(world->near, world->name, MC_TRANSFER_WRITE, &item, 1, NULL);
    assert_int_equal(poll(&waited, 1, 300), 0); /* not before */
    close(first);
    int second = next_write(&world->silent);
    assert_true(send(second, "x", 1, MSG_NOSIGNAL) == 1);
    assert_int_equal(mc_transfer_wait(world->near, &id, 1), 0);
    close(second);
}

/* A name of the same bucket that nobody has: its end takes no other peer along. */
static void test_unknown_beside_one_with_a_late_write(void **state)
{
    struct world *world = *state;
    struct mc_peer *peer, *unknown;
    char name[SILENT_NAME_MAX];
    const char *far = mc_transfer_name(world->far);
    assert_int_equal(mc_peer_get(world->near, far, UINT64_MAX, &peer), 0);
    mc_settle_note(peer, 77, peer->incarnation);
    mc_peer_release(peer);
    uint64_t bucket = mc_hash(far, strlen(far)).low % MC_PEER_BUCKETS;
    for (unsigned i = 1; i == 1 || mc_hash(name, strlen(name)).low % MC_PEER_BUCKETS != bucket; i++)
        snprintf(name, sizeof(name), "127.%u.%u.%u:1", i >> 16 & 127, i >> 8 & 255, i & 255);
    assert_true(mc_peer_get(world->near, name, mc_clock_ns() + SECOND_NS, &unknown) < 0);
    assert_int_equal(mc_peer_get_known(world->near, far, UINT64_MAX, &peer), 0);
    assert_int_equal(peer->uncut_count, 1);
    assert_int_equal(world->near->peer_count, 1);
    assert_int_equal(mc_settle(peer, mc_clock_ns() + 10 * SECOND_NS), 0);
    assert_int_equal(peer->uncut_count, 0);
    mc_peer_release(peer);
    /* With nothing left it goes when the caller closes it. */
    assert_int_equal(mc_transfer_close_segment(world->near, far), 0);
    assert_int_equal(world->near->peer_count, 0);
}

/* Makes the engine's tidying thread see peers that were used so long ago. */
static void rest(struct mc_transfer_engine *engine, uint64_t unused_ms)
{
    while (!is_unused(engine)) /* the thread of the batch lets go of the peer */
        usleep(1000);
    peers_age(engine, unused_ms);
}

/* A peer of which nothing is left, as the last batch of it has timed out, stops: who submits to it does not ask it, the
 * thread of the batch does. It is not remembered for ever, nor when the caller has closed it. */
static void test_submit_after_a_rest(void **state)
{
    struct world *world = *state;
    world->silent.process = 1;
    world->near->settings.timeout_ns = 300 * MS_NS;
    struct mc_transfer_item item = {world->near_memory, 4096, 4096};
    assert_int_equal(mc_transfer_run(world->near, world->name, MC_TRANSFER_READ, &item, 1, NULL),
                     MC_TRANSFER_ERR_TIMEOUT);
    rest(world->near, 10000);
    world->silent.is_paused = true;
    usleep(100000); /* its thread has seen that */
    world->near->settings.timeout_ns = 3 * SECOND_NS;
    for (int i = 0; i < 2; i++) {
        uint64_t start_ms = mc_clock_ms();
        int64_t id = mc_transfer_submit(world->near, world->name, MC_TRANSFER_READ, &item, 1, NULL);
        assert_true(mc_clock_ms() - start_ms < 1000);
        assert_true(id > 0);
        assert_true(mc_transfer_wait(world->near, &id, 1) < 0);
        assert_true(mc_clock_ms() - start_ms >= 2900); /* it was asked, and has not answered */
        rest(world->near, 1200000);
    }
    rest(world->near, 10000000);
    assert_int_equal(world->near->peer_count, 0);
    world->silent.is_paused = false;
    assert_int_equal(mc_transfer_open_segment(world->near, world->name), 0);
    rest(world->near, 10000);
    assert_int_equal(world->near->peer_count, 1);
    assert_int_equal(mc_transfer_close_segment(world->near, world->name), 0);
    assert_int_equal(world->near->peer_count, 0);
}

/* While the metadata server is away, a segment that was closed is opened again: its engine is asked itself. */
static void test_open_again_without_the_server(void **state)
{
    struct world *world = *state;
    struct mc_peer *peer;
    const char *far = mc_transfer_name(world->far);
    assert_int_equal(mc_metadata_init(&world->near->metadata, "http://127.0.0.1:1/metadata"), 0);
    world->near->metadata.is_p2p = true;
    assert_int_equal(mc_peer_get(world->near, far, UINT64_MAX, &peer), 0);
    snprintf(peer->handshake_address, sizeof(peer->handshake_address), "%s", far);
    world->near->metadata.is_p2p = false;
    world->near->metadata.away_until_ns = mc_clock_ns() + 10 * SECOND_NS;
    mc_peer_release(peer);
    assert_int_equal(mc_transfer_close_segment(world->near, far), 0);
    struct mc_transfer_item item = {world->near_memory, (uintptr_t)world->far_memory, 4096};
    assert_int_equal(mc_transfer_run(world->near, far, MC_TRANSFER_WRITE, &item, 1, NULL), 0);
}

static void *settle_main(void *argument)
{
    struct mc_peer *peer = argument;
    return mc_settle(peer, mc_clock_ns() + 10 * SECOND_NS) == 0 ? peer : NULL;
}

/* A metadata server that knows one name: who has it, and where. */
static _Atomic uint16_t moving_port;
static _Atomic uint64_t moving_process;

static int moving_get(struct mc_metadata *metadata, const char *key, uint64_t deadline_ns, struct mc_buffer *reply)
{
    (void)metadata;
    (void)deadline_ns;
    struct mc_document document = {
        .name = "moving", .is_tcp = true, .data_host = "127.0.0.1", .data_port = 1, .data_version = 2, .can_cut = true};
    document.rpc_port = moving_port;
    document.id.low = moving_process;
    if (strstr(key, "rpc_meta") != NULL)
        mc_rpc_meta_write(reply, "127.0.0.1", moving_port);
    else
        mc_document_write(reply, &document, "");
    return 1;
}

static void *move_main(void *argument)
{
    (void)argument;
    usleep(500000);
    atomic_store(&moving_process, 2);
    return NULL;
}

/* Who had the name is stopped and is asked to cut what was given up; it answers nothing. The name moves meanwhile: who
 * has it now is not waited for any longer than the server takes to say so. */
static void test_moved_while_it_is_asked(void **state)
{
    struct world *world = *state;
    static const struct mc_metadata_kind kind = {.scheme = "moving://", .get = moving_get};
    struct mc_peer *peer;
    pthread_t moving;
    world->silent.is_paused = true;
    usleep(100000); /* its thread has seen that */
    moving_port = world->silent.rpc_port;
    moving_process = 1;
    world->near->metadata.kind = &kind;
    world->near->metadata.is_p2p = false;
    assert_int_equal(mc_peer_get(world->near, "moving", UINT64_MAX, &peer), 0);
    mc_settle_note(peer, 77, peer->incarnation);
    uint64_t start_ms = mc_clock_ms();
    assert_int_equal(pthread_create(&moving, NULL, move_main, NULL), 0);
    assert_int_equal(mc_settle(peer, mc_clock_ns() + 20 * SECOND_NS), 0);
    assert_true(mc_clock_ms() - start_ms < 3000);
    assert_int_equal(peer->document.id.low, 2);
    assert_int_equal(peer->uncut_count, 0);
    pthread_join(moving, NULL);
    mc_peer_release(peer);
    world->near->metadata.is_p2p = true;
}

/* Several ask a peer to cut what was given up, and another process answers: to none of them it matters any more, though
 * only one is the first to see who has the name. */
static void test_settled_by_another_thread(void **state)
{
    struct world *world = *state;
    enum { THREADS = 6 };
    struct mc_peer *peer;
    pthread_t threads[THREADS];
    world->silent.process = 1;
    assert_int_equal(mc_peer_get(world->near, world->name, UINT64_MAX, &peer), 0);
    peer->document.can_cut = true;
    mc_settle_note(peer, 77, peer->incarnation);
    world->silent.process = 2;
    world->silent.is_paused = true;
    usleep(100000); /* its thread has seen that */
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, settle_main, peer), 0);
    usleep(300000); /* all have asked */
    world->silent.is_paused = false;
    for (int i = 0; i < THREADS; i++) {
        void *settled;
        pthread_join(threads[i], &settled);
        assert_ptr_equal(settled, peer);
    }
    assert_int_equal(peer->uncut_count, 0);
    mc_peer_release(peer);
}

static void *remember_main(void *argument)
{
    struct mc_peer *peer = argument;
    char address[MC_ADDRESS_MAX];
    struct mc_id id;
    (void)mc_peer_remembered(peer->engine, peer->name, address, sizeof(address), &id);
    return NULL;
}

static void *list_main(void *argument)
{
    struct mc_peer *peer = argument;
    free(mc_transfer_links(peer->engine));
    return NULL;
}

/* Who waits for what is known of a peer keeps nobody else waiting. */
static void test_busy_peer(void **state)
{
    struct world *world = *state;
    void *(*const waiters[2])(void *) = {remember_main, list_main};
    struct mc_peer *peer;
    pthread_t thread;
    assert_int_equal(mc_peer_get(world->near, mc_transfer_name(world->far), UINT64_MAX, &peer), 0);
    for (int turn = 0; turn < 2; turn++) {
        int taken = -1;
        pthread_mutex_lock(&peer->lock);
        assert_int_equal(pthread_create(&thread, NULL, waiters[turn], peer), 0);
        usleep(200000);                              /* it waits for the peer */
        for (int i = 0; i < 50 && taken != 0; i++) { /* another thread may have the lock for a moment */
            taken = pthread_mutex_trylock(&world->near->lock);
            usleep(taken == 0 ? 0 : 10000);
        }
        if (taken == 0)
            pthread_mutex_unlock(&world->near->lock);
        pthread_mutex_unlock(&peer->lock);
        pthread_join(thread, NULL);
        assert_int_equal(taken, 0);
    }
    mc_peer_release(peer);
}

/* A connection that is cut before it is seen does nothing when it comes. */
static void test_cut_before_it_comes(void **state)
{
    struct world *world = *state;
    struct mc_peer *peer;
    char address[64];
    const uint64_t numbers[2] = {77, MC_TCP_LANE_MAX};
    assert_int_equal(mc_peer_get(world->near, mc_transfer_name(world->far), UINT64_MAX, &peer), 0);
    assert_int_equal(mc_settle_cut(peer, numbers, 2, mc_clock_ns() + 10 * SECOND_NS), 0);
    /* Nobody makes the peer forget them by naming others again and again, or very many at once. */
    static uint64_t many[MC_SETTLE_NUMBERS_MAX + 1];
    for (size_t i = 0; i <= MC_SETTLE_NUMBERS_MAX; i++)
        many[i] = 1000;
    for (size_t i = 0; i < MC_SERVICE_CUTS_MAX / MC_SETTLE_NUMBERS_MAX + 1; i++)
        assert_int_equal(mc_settle_cut(peer, many, MC_SETTLE_NUMBERS_MAX, mc_clock_ns() + 10 * SECOND_NS), 0);
    assert_true(mc_settle_cut(peer, many, MC_SETTLE_NUMBERS_MAX + 1, mc_clock_ns() + 10 * SECOND_NS) < 0);
    mc_address_join(address, sizeof(address), "127.0.0.1", world->far->data_port);
    for (uint64_t number = 76; number < 78; number++) {
        struct {
            struct mc_tcp_header header;
            uint8_t byte;
        } __attribute__((packed))
        request = {{.length = 1, .address = (uintptr_t)world->far_memory, .opcode = 0x81}, (uint8_t)number};
        uint64_t status = 0;
        int fd = mc_tcp_connect(address, mc_clock_ns() + 5 * SECOND_NS);
        assert_true(fd >= 0);
        memcpy(request.header.lane, &number, sizeof(request.header.lane));
        assert_true(send(fd, &request, sizeof(request), MSG_NOSIGNAL) == sizeof(request));
        int64_t got = mc_socket_receive(fd, &status, 8, mc_clock_ns() + 10 * SECOND_NS, NULL);
        assert_int_equal(got, number == 76 ? 8 : MC_ERR_RPC_FAIL);
        close(fd);
    }
    assert_int_equal(world->far_seen[0], 76);
    /* Another process has the name: it has nothing to cut. */
    peer->document.id.low ^= 1;
    assert_int_equal(mc_settle_cut(peer, numbers, 1, mc_clock_ns() + 10 * SECOND_NS), 1);
    mc_peer_release(peer);
}

/* Who is told that a connection is cut relies on it: when more are named than can be remembered the answer is no, until
 * the first of them cannot come any more. */
static void test_more_cuts_than_are_remembered(void **state)
{
    struct world *world = *state;
    struct mc_peer *peer;
    static uint64_t numbers[MC_SETTLE_NUMBERS_MAX];
    assert_int_equal(mc_peer_get(world->near, mc_transfer_name(world->far), UINT64_MAX, &peer), 0);
    uint64_t deadline_ns = mc_clock_ns() + 30 * SECOND_NS, number = 0, first = 1;
    for (unsigned i = 0; i < MC_SERVICE_CUTS_MAX / 4 * 3 / MC_SETTLE_NUMBERS_MAX; i++) { /* what one address may have */
        for (unsigned j = 0; j < MC_SETTLE_NUMBERS_MAX; j++)
            numbers[j] = ++number;
        assert_int_equal(mc_settle_cut(peer, numbers, MC_SETTLE_NUMBERS_MAX, deadline_ns), 0);
    }
    number++;
    assert_true(mc_settle_cut(peer, &number, 1, deadline_ns) < 0);
    assert_int_equal(mc_settle_cut(peer, &first, 1, deadline_ns), 0);
    assert_true(mc_service_is_cut(world->far->service, first));
#ifndef __SANITIZE_THREAD__ /* it does not know that the service thread has answered, and rests */
    world->far->service->cuts[0].at_ms -= MC_SERVICE_CUT_MS;
    assert_int_equal(mc_settle_cut(peer, &number, 1, deadline_ns), 0);
    assert_false(mc_service_is_cut(world->far->service, first));
    assert_true(mc_service_is_cut(world->far->service, number));
#endif
    mc_peer_release(peer);
}

/* More writes than one question names are given up: all are cut. More than can be remembered: nothing goes to that
 * process any more. */
static void test_more_given_up_than_are_remembered(void **state)
{
    struct world *world = *state;
    struct mc_peer *peer;
    const char *far = mc_transfer_name(world->far);
    struct mc_transfer_item item = {world->near_memory, (uintptr_t)world->far_memory, 4096};
    assert_int_equal(mc_peer_get(world->near, far, UINT64_MAX, &peer), 0);
    for (uint64_t i = 1; i <= 2 * MC_SETTLE_NUMBERS_MAX + 1; i++)
        mc_settle_note(peer, i, peer->incarnation);
    assert_int_equal(mc_transfer_run(world->near, far, MC_TRANSFER_WRITE, &item, 1, NULL), 0);
    assert_int_equal(peer->uncut_count, 0);
    for (uint64_t i = 1; i <= 2 * MC_SETTLE_NUMBERS_MAX + 1; i++)
        assert_true(mc_service_is_cut(world->far->service, i));
    for (uint64_t i = 1; i <= MC_SETTLE_NOTED_MAX + 1; i++)
        mc_settle_note(peer, i, peer->incarnation);
    assert_true(mc_transfer_run(world->near, far, MC_TRANSFER_WRITE, &item, 1, NULL) < 0);
    assert_true(mc_transfer_run(world->near, far, MC_TRANSFER_WRITE, &item, 1, NULL) < 0);
    peer->document.id.low ^= 1; /* so who answers now is another one */
    assert_int_equal(mc_transfer_run(world->near, far, MC_TRANSFER_WRITE, &item, 1, NULL), 0);
    mc_peer_release(peer);
}

/* A metadata server where who had the name before looks between the heir's two steps: it finds its own name still, and
 * restores its document. */
static struct mc_buffer stands;

static void set_document(const void *text, size_t length)
{
    mc_buffer_free(&stands);
    mc_buffer_append(&stands, text, length);
}

static int restoring_get(struct mc_metadata *metadata, const char *key, uint64_t deadline_ns, struct mc_buffer *reply)
{
    (void)metadata;
    (void)key;
    (void)deadline_ns;
    mc_buffer_append(reply, stands.data, stands.length);
    return 1;
}

static int restoring_put(struct mc_metadata *metadata, const char *key, struct mc_span value, uint64_t deadline_ns,
                         struct mc_buffer *reply)
{
    static const char formers[] = "{\"name\":\"former\",\"protocol\":\"tcp\"}";
    (void)metadata;
    (void)deadline_ns;
    (void)reply;
    if (strstr(key, "rpc_meta") == NULL)
        set_document(value.data, value.length);
    else
        set_document(formers, sizeof(formers) - 1);
    return 0;
}

static void test_document_of_the_former(void **state)
{
    struct world *world = *state;
    static const struct mc_metadata_kind kind = {.scheme = "", .get = restoring_get, .put = restoring_put};
    struct mc_document document;
    world->near->metadata.kind = &kind;
    world->near->metadata.is_p2p = false;
    assert_int_equal(mc_transfer_publish(world->near), 0);
    assert_int_equal(mc_document_read(mc_span(stands.data, stands.length), &document), 0);
    assert_true(mc_id_equal(document.id, world->near->id));
    mc_document_free(&document);
    mc_buffer_free(&stands);
    world->near->metadata.is_p2p = true;
}

int main(void)
{
#define LATE_BYTES(what)                                                                                               \
    {                                                                                                                  \
#what, test_late_bytes, NULL, NULL, &(what)                                                                    \
    }
    const struct CMUnitTest tests[] = {
        TEST_OF_WORLD(test_many_silent_peers),
        cmocka_unit_test(test_queue_of_a_slow_peer),
        TEST_BESIDE(test_silent_beside_a_silent_server),
        cmocka_unit_test(test_close_beside_a_silent_peer),
        TEST_BESIDE(test_lane_of_the_former),
        cmocka_unit_test(test_batch_to_two_processes),
        LATE_BYTES(late_cuts),
        LATE_BYTES(late_original),
        LATE_BYTES(late_version_1),
        LATE_BYTES(late_closed),
        TEST_BESIDE(test_late_bytes_at_the_last_release),
        TEST_BESIDE(test_a_stopped_one_of_version_1),
        TEST_BESIDE(test_refused_by_the_former),
        TEST_OF_WORLD(test_another_version_under_the_name),
        TEST_BESIDE(test_settled_by_another_thread),
        TEST_BESIDE(test_moved_while_it_is_asked),
        TEST_OF_WORLD(test_busy_peer),
        TEST_OF_WORLD(test_unknown_beside_one_with_a_late_write),
        TEST_BESIDE(test_submit_after_a_rest),
        TEST_OF_WORLD(test_open_again_without_the_server),
        TEST_OF_WORLD(test_cut_before_it_comes),
        TEST_OF_WORLD(test_more_cuts_than_are_remembered),
        TEST_OF_WORLD(test_more_given_up_than_are_remembered),
        TEST_OF_WORLD(test_document_of_the_former),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
