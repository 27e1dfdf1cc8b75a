/* The data threads of an owner: what streams takes turns, one that stands still stops nobody else, what clears waits
 * for what is being stored, and memory that is given up says so. */
#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "store/segment/serve_inside.h"
#include "serve_rig.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#define STREAMS 4u
#define TURN (256u << 10)
#define TURN_IN_COMPANY (64u << 10)
#define FRAME_MOST 128     /* bytes of what is said beside the payload */
#define COMPANY_SURE_MS 5u /* half of what it lasts */

static _Atomic int threads_left = -1; /* so many may be started; negative: any number */

/* In place of libc's. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*function)(void *), void *argument)
{
    static int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (create == NULL)
        *(void **)&create = dlsym(RTLD_NEXT, "pthread_create");
    if (atomic_load(&threads_left) == 0)
        return EAGAIN;
    if (atomic_load(&threads_left) > 0)
        atomic_fetch_sub(&threads_left, 1);
    return create(thread, attributes, function, argument);
}

static _Atomic bool is_short; /* of memory for a list of commits */

void *realloc(void *memory, size_t size)
{
    static void *(*next)(void *, size_t);
    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "realloc");
    if (atomic_load(&is_short) && size == 8 * sizeof(struct mc_serve_commit))
        return NULL;
    return next(memory, size);
}

static void rig_start_with(struct rig *rig, uint32_t threads)
{
    rig_threads = threads;
    rig_start(rig);
    rig_threads = 0;
}

/* A thread stands still within what was posted to it, until it is let go. */
struct held {
    _Atomic bool is_here, may_go;
};

static void hold_here(void *argument)
{
    struct held *held = argument;
    atomic_store(&held->is_here, true);
    while (!atomic_load(&held->may_go))
        usleep(500);
}

static void hold(struct held *held, struct mc_serve *serve)
{
    *held = (struct held){0};
    mc_serve_post(serve, hold_here, held);
    while (!atomic_load(&held->is_here))
        usleep(500);
}

/* ---- turns ---- */

struct looking { /* on the thread that serves, once in each of its turns */
    struct mc_serve *serve;
    struct mc_id small;
    unsigned rounds;
    uint64_t streamed;
    _Atomic bool done;
};

static bool is_answered(const struct mc_serve_connection *one)
{
    return mc_socket_is_silent(one->fd) && one->lane.queue_count == 0 && one->lane.out.length == 0 &&
           one->lane.in.length == 0;
}

static void look(void *argument)
{
    struct looking *looking = argument;
    bool is_small_over = false;
    looking->streamed = 0;
    for (const struct mc_serve_connection *one = looking->serve->guests.first; one != NULL; one = one->next) {
        if (mc_id_equal(one->lane.peer, looking->small))
            is_small_over = is_answered(one);
        else if (one->lane.read.active)
            looking->streamed += 4 * MIB - one->lane.read.payload_left;
    }
    looking->rounds++;
    if (is_small_over)
        atomic_store(&looking->done, true);
    else
        mc_serve_post(looking->serve, look, looking);
}

/* Four connections want 4 MiB each, and one wants 4 KiB, in the same moment. */
static void test_small_beside_streams(void **state)
{
    (void)state;
    struct rig rig;
    struct held held;
    struct peer streams[STREAMS];
    rig_start(&rig);
    object_put(&rig, 1, 10, 0, 4 * MIB);
    object_put(&rig, 2, 20, 16 * MIB, 4096);
    struct looking looking = {.serve = rig.serve, .small = mc_random_id()};
    for (unsigned i = 0; i < STREAMS; i++)
        streams[i] = connect_peer(&rig, false);
    struct peer small = connect_as(&rig, false, looking.small);
    hold(&held, rig.serve);
    for (unsigned i = 0; i < STREAMS; i++) {
        put_read(&streams[i], 1, 1, 10, 0, 4 * MIB, false);
        assert_int_equal(peer_flush(&streams[i]), 0);
    }
    put_read(&small, 2, 2, 20, 0, 4096, false);
    assert_int_equal(peer_flush(&small), 0);
    mc_serve_post(rig.serve, look, &looking);
    atomic_store(&held.may_go, true);
    while (!atomic_load(&looking.done))
        usleep(500);
    assert_in_range(looking.rounds, 1, 2);
    assert_true(looking.streamed <= TURN);
    struct mc_wire_read_reply reply;
    assert_int_equal(hear_reply(&small, 2, &reply), 0);
    for (unsigned i = 0; i < STREAMS; i++)
        peer_close(&streams[i]);
    peer_close(&small);
    rig_stop(&rig);
}

/* What the thread that serves moves of streams while something small waits for it. Its descriptors; -1: none. */
static struct {
    _Atomic int small, streams[2];
    _Atomic uint64_t small_ms; /* when the small one was heard last */
    _Atomic uint64_t waited;   /* bytes of streams since it waits */
    _Atomic uint64_t waited_most, alone_most;
    _Atomic unsigned waits; /* of those that waited for any */
    _Atomic int full;       /* from which each receive brings as much as it wants */
} moves = {.small = -1, .streams = {-1, -1}, .full = -1};

static bool waits(int fd)
{
    struct pollfd poll_small = {.fd = fd, .events = POLLIN};
    return fd >= 0 && poll(&poll_small, 1, 0) > 0;
}

static ssize_t moved_note(int fd, bool is_waited, ssize_t moved)
{
    if (moved <= FRAME_MOST || (fd != atomic_load(&moves.streams[0]) && fd != atomic_load(&moves.streams[1])))
        return moved;
    if (atomic_load(&moves.small_ms) == 0 && (uint64_t)moved > atomic_load(&moves.alone_most))
        atomic_store(&moves.alone_most, (uint64_t)moved);
    if (is_waited && mc_clock_ms() - atomic_load(&moves.small_ms) < COMPANY_SURE_MS)
        atomic_fetch_add(&moves.waited, (uint64_t)moved);
    return moved;
}

/* In place of libc's; once a call, before it, it is looked whether the small one waits. */
ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    static ssize_t (*next)(int, const struct msghdr *, int);
    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "sendmsg");
    bool is_waited = waits(atomic_load(&moves.small));
    return moved_note(fd, is_waited, next(fd, message, flags));
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    static ssize_t (*next)(int, struct msghdr *, int);
    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "recvmsg");
    bool is_waited = waits(atomic_load(&moves.small));
    bool is_full = fd == atomic_load(&moves.full);
    if (is_full)
        (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    ssize_t received = next(fd, message, is_full ? (flags & ~MSG_DONTWAIT) | MSG_WAITALL : flags);
    if (is_full)
        (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    if (fd == atomic_load(&moves.small) && received > 0) {
        uint64_t waited = atomic_exchange(&moves.waited, 0);
        if (waited > atomic_load(&moves.waited_most))
            atomic_store(&moves.waited_most, waited);
        atomic_fetch_add(&moves.waits, waited > 0);
        atomic_store(&moves.small_ms, mc_clock_ms());
    }
    return moved_note(fd, is_waited, received);
}

struct streaming { /* goes on until it is to stop */
    struct rig *rig;
    struct peer peer;
    atomic_bool stop;
    pthread_t thread;
    bool is_writer;
    atomic_uint asked; /* of a writer: so many reads are to go between what it writes */
    _Atomic uint64_t written;
};

static void *stream_run(void *argument)
{
    struct streaming *streaming = argument;
    uint8_t *bytes = calloc(1, 4 * MIB);
    for (uint64_t id = 1; !atomic_load(&streaming->stop); id++) {
        struct mc_wire_read_reply reply;
        if (streaming->is_writer) {
            put_write(&streaming->peer, 3, 30 + id, 8 * MIB, 4 * MIB);
            assert_int_equal(peer_flush(&streaming->peer), 0);
            assert_int_equal(peer_send_bytes(&streaming->peer, bytes, 4 * MIB), 0);
            atomic_fetch_add(&streaming->written, 4 * MIB);
            if (atomic_load(&streaming->asked) > 0) {
                put_read(&streaming->peer, atomic_fetch_sub(&streaming->asked, 1), 1, 10, 0, 4 * MIB, false);
                assert_int_equal(peer_flush(&streaming->peer), 0);
            }
            continue;
        }
        put_read(&streaming->peer, id, 1, 10, 0, 4 * MIB, false);
        assert_int_equal(peer_flush(&streaming->peer), 0);
        assert_int_equal(hear_reply(&streaming->peer, id, &reply), 0);
        peer_receive_bytes(&streaming->peer, bytes, 4 * MIB);
        assert_int_equal(hear_end(&streaming->peer, id), 0);
    }
    free(bytes);
    return NULL;
}

static void descriptors_find(struct rig *rig, void *argument)
{
    const struct mc_id *nodes = argument;
    for (const struct mc_serve_connection *one = rig->serve->guests.first; one != NULL; one = one->next) {
        if (mc_id_equal(one->lane.peer, nodes[2]))
            atomic_store(&moves.small, one->fd);
        for (unsigned i = 0; i < 2; i++)
            if (mc_id_equal(one->lane.peer, nodes[i]))
                atomic_store(&moves.streams[i], one->fd);
    }
}

/* Turns are large while nobody wants anything small, and of 64 KiB while somebody does. */
static void test_turns_in_company(void **state)
{
    (void)state;
    struct rig rig;
    struct mc_id nodes[3] = {mc_random_id(), mc_random_id(), mc_random_id()};
    struct streaming streams[2] = {{.rig = &rig}, {.rig = &rig, .is_writer = true}};
    rig_start(&rig);
    object_put(&rig, 1, 10, 0, 4 * MIB);
    struct peer small = connect_as(&rig, false, nodes[2]);
    for (unsigned i = 0; i < 2; i++)
        streams[i].peer = connect_as(&rig, false, nodes[i]);
    usleep(20000); /* their hellos were small */
    rig_call(&rig, descriptors_find, nodes);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&streams[i].thread, NULL, stream_run, &streams[i]), 0);
    uint64_t end_ns = soon();
    while (atomic_load(&moves.alone_most) <= TURN_IN_COMPANY && mc_clock_ns() < end_ns)
        usleep(1000);
    assert_in_range(atomic_load(&moves.alone_most), TURN_IN_COMPANY + 1, TURN);
    end_ns = soon();
    for (uint64_t id = 1; atomic_load(&moves.waits) < 30 && mc_clock_ns() < end_ns; id++)
        expect_pong(&small, id);
    /* And the end of another stream, which is as small as what waits, and what of its next one came with that. */
    assert_in_range(atomic_load(&moves.waited_most), 1, TURN_IN_COMPANY + 2 * MC_LANE_COPY_MAX + FRAME_MOST);
    atomic_store(&moves.small, -1);
    for (unsigned i = 0; i < 2; i++) {
        atomic_store(&moves.streams[i], -1);
        atomic_store(&streams[i].stop, true);
        pthread_join(streams[i].thread, NULL);
        peer_close(&streams[i].peer);
    }
    peer_close(&small);
    rig_stop(&rig);
}

/* A large answer goes while payload keeps coming on the same connection, faster than it is taken. */
static void test_both_ways(void **state)
{
    (void)state;
    struct rig rig;
    struct mc_wire_read_reply reply;
    struct mc_id nodes[3] = {mc_random_id(), mc_random_id(), mc_random_id()};
    struct streaming stream = {.rig = &rig, .is_writer = true};
    const struct timeval most = {.tv_usec = 200000};
    uint8_t *bytes = malloc(4 * MIB);
    rig_start_with(&rig, 0);
    object_put(&rig, 1, 10, 0, 4 * MIB);
    struct peer peer = connect_as(&rig, false, nodes[0]);
    stream.peer = (struct peer){.fd = peer.fd}; /* what it writes; we read */
    rig_call(&rig, descriptors_find, nodes);
    int fd = atomic_exchange(&moves.streams[0], -1);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof(most)), 0);
    assert_int_equal(pthread_create(&stream.thread, NULL, stream_run, &stream), 0);
    uint64_t end_ns = soon();
    while (atomic_load(&stream.written) < 16 * MIB && mc_clock_ns() < end_ns)
        usleep(1000);
    atomic_store(&moves.full, fd);
    atomic_store(&stream.asked, 1);
    assert_int_equal(hear_reply(&peer, 1, &reply), 0);
    peer_receive_bytes(&peer, bytes, 4 * MIB);
    assert_int_equal(hear_end(&peer, 1), 0);
    atomic_store(&moves.full, -1);
    atomic_store(&stream.stop, true);
    pthread_join(stream.thread, NULL);
    free(bytes);
    mc_buffer_free(&stream.peer.out);
    mc_buffer_free(&stream.peer.in);
    peer_close(&peer);
    rig_stop(&rig);
}

static void peer_skip(struct peer *peer, uint64_t length, uint64_t seed)
{
    uint8_t *bytes = malloc(length);
    assert_non_null(bytes);
    peer_receive_bytes(peer, bytes, length);
    for (uint64_t i = 0; i < length; i++) {
        if (bytes[i] != pattern(i, seed))
            fail_msg("byte %llu of a stream is wrong", (unsigned long long)i);
    }
    free(bytes);
}

/* All of them arrive whole, whatever the number of threads. */
static void test_streams_arrive(void **state)
{
    (void)state;
    for (uint32_t threads = 0; threads < 3; threads++) {
        struct rig rig;
        struct peer streams[STREAMS];
        rig_start_with(&rig, threads);
        object_put(&rig, 1, 10, 0, 4 * MIB);
        for (unsigned i = 0; i < STREAMS; i++) {
            streams[i] = connect_peer(&rig, false);
            put_read(&streams[i], 1, 1, 10, 0, 4 * MIB, false);
            assert_int_equal(peer_flush(&streams[i]), 0);
        }
        for (unsigned i = 0; i < STREAMS; i++) {
            struct mc_wire_read_reply reply;
            assert_int_equal(hear_reply(&streams[i], 1, &reply), 0);
            peer_skip(&streams[i], 4 * MIB, 1);
            assert_int_equal(hear_end(&streams[i], 1), 0);
            expect_pong(&streams[i], 3);
            peer_close(&streams[i]);
        }
        rig_wait_connections(&rig, 0);
        rig_stop(&rig);
    }
}

/* ---- threads that stand still ---- */

static void test_one_thread_stands_still(void **state)
{
    (void)state;
    struct rig rig;
    struct held held;
    struct peer peers[6];
    unsigned answered = 0;
    rig_start_with(&rig, 2);
    struct peer first = connect_peer(&rig, false), second = connect_peer(&rig, false), local = connect_peer(&rig, true);
    assert_int_equal(atomic_load(&rig.serve->data[0]->present), 1); /* dealt out evenly */
    assert_int_equal(atomic_load(&rig.serve->data[1]->present), 1);
    hold(&held, rig.serve->data[0]);
    expect_pong(&second, 1);
    expect_pong(&local, 2);
    put_write(&second, 3, 30, 4096, 3);
    mc_buffer_append(&second.out, "abc", 3);
    put_commit(&second, 3, 30, 4096, 3);
    assert_int_equal(peer_flush(&second), 0);
    rig_wait_told(&rig, 1);
    assert_int_equal(rig.told[0].code, 0);
    for (unsigned i = 0; i < 6; i++) {
        peers[i] = connect_raw(&rig, false);
        struct mc_wire_hello hello = hello_of(&rig, mc_random_id());
        say_hello(&peers[i], &hello);
        rig_call(&rig, ask_connections, &(uint32_t){0}); /* the serve thread goes on */
        usleep(20000);
    }
    while (atomic_load(&rig.serve->data[1]->on_way) > 0)
        usleep(500);
    assert_int_equal(atomic_load(&rig.serve->data[0]->on_way), 1);
    for (unsigned i = 0; i < 6; i++) /* the one that it was given is answered when it goes on */
        answered += mc_socket_wait_read(peers[i].fd, mc_clock_ns() + (answered < i ? 10000000000ull : 1000000000ull),
                                        NULL) == 0;
    assert_int_equal(answered, 5);
    atomic_store(&held.may_go, true);
    expect_pong(&first, 1);
    for (unsigned i = 0; i < 6; i++) {
        struct mc_wire_hello_reply reply;
        assert_int_equal(hear_hello(&peers[i], &reply), 0);
        peer_close(&peers[i]);
    }
    peer_close(&first);
    peer_close(&second);
    peer_close(&local);
    rig_wait_connections(&rig, 0);
    rig_stop(&rig);
}

static void test_threads_that_cannot_start(void **state)
{
    (void)state;
    for (int can = 0; can < 3; can++) {
        struct rig rig;
        rig_threads = 3;
        rig_prepare(&rig, true);
        rig_threads = 0;
        assert_int_equal(mc_serve_thread_count(rig.serve), 3);
        atomic_store(&threads_left, can);
        assert_int_equal(mc_serve_start(rig.serve), MC_ERR_NO_MEMORY); /* the serve thread cannot, either */
        assert_int_equal(mc_serve_thread_count(rig.serve), can);
        atomic_store(&threads_left, -1); /* as if it came to be possible just now */
        assert_int_equal(pthread_create(&rig.serve->thread, NULL, mc_serve_run, rig.serve), 0);
        rig.serve->started = true;
        struct peer peer = connect_peer(&rig, false);
        expect_pong(&peer, 1);
        peer_close(&peer);
        rig_wait_connections(&rig, 0);
        rig_stop(&rig);
    }
}

/* ---- what clears, and what is stored ---- */

struct settling {
    struct rig *rig;
    uint32_t slot;
    uint64_t generation;
    bool is_settled;
};

static void on_settled(void *context, uint32_t slot, uint64_t generation)
{
    struct rig *rig = context;
    if (slot == 5 && generation == 50)
        atomic_fetch_add(&rig->cuts_done, 1);
}

static void ask_settled(struct rig *rig, void *argument)
{
    struct settling *settling = argument;
    settling->is_settled = mc_serve_has_settled(rig->serve, settling->slot, settling->generation, on_settled, rig);
}

/* What a data thread announces while it stores. */
static void test_clear_waits_for_what_is_stored(void **state)
{
    (void)state;
    struct rig rig;
    struct mc_local_write write;
    rig_start_with(&rig, 1);
    assert_int_equal(mc_segment_memory_write_begin(rig.memory, &write, 5, 50, 4096, 100, soon()), 0);
    assert_int_equal(mc_segment_memory_clear(rig.memory, 5, 50), 0);
    struct settling others[] = {{&rig, 6, 50, false}, {&rig, 5, 49, false}};
    for (int i = 0; i < 2; i++) {
        rig_call(&rig, ask_settled, &others[i]);
        assert_true(others[i].is_settled);
    }
    struct settling asked = {&rig, 5, 50, true};
    rig_call(&rig, ask_settled, &asked);
    assert_false(asked.is_settled);
    usleep(100000);
    assert_int_equal(atomic_load(&rig.cuts_done), 0);
    mc_segment_memory_write_end(rig.memory, &write);
    for (int i = 0; i < 20000 && atomic_load(&rig.cuts_done) == 0; i++)
        usleep(500);
    assert_int_equal(atomic_load(&rig.cuts_done), 1);
    rig_call(&rig, ask_settled, &asked);
    assert_true(asked.is_settled);
    rig_stop(&rig);
}

static uint32_t announced(const struct rig *rig, uint32_t slot, uint64_t generation)
{
    return mc_segment_memory_is_written_here(rig->memory, slot, generation);
}

/* Between two receives of a WRITE nothing is announced: a peer that stops in the middle holds up nothing. */
static void test_a_writer_that_stops_holds_up_nothing(void **state)
{
    (void)state;
    struct rig rig;
    rig_start_with(&rig, 1);
    struct peer peer = connect_peer(&rig, false);
    uint8_t *half = pattern_make(MIB, 1);
    put_write(&peer, 4, 40, 0, 2 * MIB);
    mc_buffer_append(&peer.out, half, MIB);
    assert_int_equal(peer_flush(&peer), 0);
    while (rig_byte_now(&rig, MIB - 1) != half[MIB - 1])
        usleep(500);
    for (int i = 0; i < 20000 && announced(&rig, 4, 40); i++)
        usleep(500);
    assert_false(announced(&rig, 4, 40));
    struct settling asked = {&rig, 4, 40, false};
    assert_int_equal(mc_segment_memory_clear(rig.memory, 4, 40), 0);
    rig_call(&rig, ask_settled, &asked);
    assert_true(asked.is_settled);
    uint8_t before = rig_byte_now(&rig, MIB); /* what still comes is drained */
    mc_buffer_append(&peer.out, half, MIB);
    assert_int_equal(peer_flush(&peer), 0);
    expect_pong(&peer, 7);
    assert_int_equal(rig_byte_now(&rig, MIB), before);
    put_commit(&peer, 4, 40, 0, 2 * MIB - 4096);
    assert_int_equal(peer_flush(&peer), 0);
    rig_wait_told(&rig, 1);
    assert_int_equal(rig.told[0].code, MC_ERR_STALE);
    free(half);
    peer_close(&peer);
    rig_stop(&rig);
}

static void test_given_up(void **state)
{
    (void)state;
    struct rig rig;
    struct mc_wire_read_reply reply;
    rig_start_with(&rig, 1);
    object_put(&rig, 1, 10, 0, MIB);
    struct peer peer = connect_peer(&rig, false);
    put_read(&peer, 1, 1, 10, 0, MIB, false);
    assert_int_equal(peer_flush(&peer), 0);
    assert_int_equal(hear_reply(&peer, 1, &reply), 0);
    mc_segment_memory_give_up(rig.memory);
    uint8_t *bytes = malloc(MIB);
    peer_receive_bytes(&peer, bytes, MIB);
    free(bytes);
    (void)hear_end(&peer, 1); /* it may have been through before */
    put_read(&peer, 2, 1, 10, 0, MIB, false);
    put_write(&peer, 3, 30, 4096, 3);
    mc_buffer_append(&peer.out, "abc", 3);
    put_commit(&peer, 3, 30, 4096, 3);
    assert_int_equal(peer_flush(&peer), 0);
    assert_int_equal(hear_reply(&peer, 2, &reply), MC_ERR_REPLICA_IS_GONE);
    rig_wait_told(&rig, 1);
    assert_int_equal(rig.told[0].code, MC_ERR_STALE);
    peer_close(&peer);
    rig_stop(&rig);
}

/* How long the list is that a data thread keeps for the one that writes the index is its peers' choice. */
static void test_no_memory_for_commits(void **state)
{
    (void)state;
    struct rig rig;
    struct peer peers[2];
    rig_start_with(&rig, 1);
    for (unsigned i = 0; i < 2; i++) {
        atomic_store(&is_short, i == 0);
        peers[i] = connect_peer(&rig, false);
        put_write(&peers[i], 3 + i, 30, 8192 * i, 3);
        mc_buffer_append(&peers[i].out, "abc", 3);
        put_commit(&peers[i], 3 + i, 30, 8192 * i, 3);
        assert_int_equal(peer_flush(&peers[i]), 0);
        if (i == 0)
            rig_wait_connections(&rig, 0); /* it is let go, and nothing of it is told */
    }
    rig_wait_told(&rig, 1);
    assert_int_equal(rig.told[0].slot, 4);
    assert_int_equal(rig.told[0].code, 0);
    peer_close(&peers[0]);
    peer_close(&peers[1]);
    rig_stop(&rig);
}

int main(void)
{
    mc_log_set_level(MC_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_beside_streams),
        cmocka_unit_test(test_turns_in_company),
        cmocka_unit_test(test_both_ways),
        cmocka_unit_test(test_streams_arrive),
        cmocka_unit_test(test_one_thread_stands_still),
        cmocka_unit_test(test_threads_that_cannot_start),
        cmocka_unit_test(test_clear_waits_for_what_is_stored),
        cmocka_unit_test(test_a_writer_that_stops_holds_up_nothing),
        cmocka_unit_test(test_given_up),
        cmocka_unit_test(test_no_memory_for_commits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
