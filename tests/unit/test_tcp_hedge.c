/* Reads over connections that lose packets: an owner behind a relay, which holds back what comes on some connections,
 * cuts it in mid-answer, hands it out late, twice, or hangs up. The right bytes come over another lane, soon; what is
 * late touches nothing. */
#include "transport_rig.h"

#include "base/error.h"
#include "store/path/path.h"
#include "store/path/paths.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <cmocka.h>

#define CONNECTIONS_MAX 64
#define ALL INT64_MAX
#define SMALL 4096u
#define LARGE (1u << 20)

struct connection {
    int client, owner;
    _Atomic int64_t allowed; /* bytes that may still go to the client; less than 0: it hangs up at the next question */
    _Atomic bool twice;      /* each byte string is sent two times */
};

static struct relay {
    int listener;
    char owner_address[MC_ADDRESS_MAX];
    struct connection connections[CONNECTIONS_MAX];
    _Atomic int count;
    _Atomic int64_t fresh_allowed; /* of connections to come */
    _Atomic int losses;            /* so many connections are held from their next question on, */
    _Atomic int64_t lost_after;    /* after so many bytes */
    _Atomic bool stop;
    pthread_t thread;
} relay;

static void relay_accept(void)
{
    int client = mc_socket_accept(relay.listener), count = atomic_load(&relay.count);
    if (client < 0 || count == CONNECTIONS_MAX)
        return;
    struct connection *connection = &relay.connections[count];
    connection->client = client;
    connection->owner = mc_tcp_connect(relay.owner_address, rig_deadline(1000));
    atomic_store(&connection->allowed, atomic_load(&relay.fresh_allowed));
    atomic_store(&connection->twice, false);
    atomic_store(&relay.count, count + 1);
}

static void hang_up(struct connection *connection)
{
    close(connection->client);
    close(connection->owner);
    connection->client = connection->owner = -1;
}

static void carry(struct connection *connection, bool to_client)
{
    static uint8_t bytes[64 << 10];
    int64_t allowed = atomic_load(&connection->allowed);
    size_t most = to_client && allowed < (int64_t)sizeof(bytes) ? (size_t)allowed : sizeof(bytes);
    ssize_t length = recv(to_client ? connection->owner : connection->client, bytes, most, MSG_DONTWAIT);
    if (length < 0 && errno == EAGAIN)
        return;
    if (length <= 0 || (!to_client && allowed < 0)) {
        hang_up(connection);
        return;
    }
    if (!to_client && allowed == ALL && atomic_load(&relay.losses) > 0) {
        atomic_fetch_sub(&relay.losses, 1);
        atomic_store(&connection->allowed, atomic_load(&relay.lost_after));
    }
    for (int i = 0; i < (to_client && atomic_load(&connection->twice) ? 2 : 1); i++) {
        struct iovec part = {bytes, (size_t)length};
        (void)mc_socket_send(to_client ? connection->client : connection->owner, &part, 1, rig_deadline(1000));
    }
    if (to_client && allowed != ALL) /* the test may have said something else meanwhile */
        atomic_compare_exchange_strong(&connection->allowed, &allowed, allowed - length);
}

static void *relay_run(void *argument)
{
    (void)argument;
    while (!atomic_load(&relay.stop)) {
        struct pollfd fds[2 * CONNECTIONS_MAX + 1] = {{.fd = relay.listener, .events = POLLIN}};
        int count = atomic_load(&relay.count);
        for (int i = 0; i < count; i++) {
            struct connection *connection = &relay.connections[i];
            fds[1 + 2 * i] = (struct pollfd){.fd = connection->client, .events = POLLIN};
            fds[2 + 2 * i] =
                (struct pollfd){.fd = atomic_load(&connection->allowed) > 0 ? connection->owner : -1, .events = POLLIN};
        }
        if (poll(fds, (nfds_t)(1 + 2 * count), 1) <= 0)
            continue;
        if (fds[0].revents != 0)
            relay_accept();
        for (int i = 0; i < count; i++) {
            struct connection *connection = &relay.connections[i];
            if (fds[1 + 2 * i].revents != 0)
                carry(connection, false);
            if (fds[2 + 2 * i].revents != 0 && connection->owner >= 0 && atomic_load(&connection->allowed) > 0)
                carry(connection, true);
        }
    }
    for (int i = 0; i < atomic_load(&relay.count); i++)
        if (relay.connections[i].client >= 0)
            hang_up(&relay.connections[i]);
    return NULL;
}

/* ---- the machine ---- */

#define LATE_NS 20000000u /* a thread that waited so long for a processor: others may have waited for much longer */

static struct pulse { /* a thread that only wants to wake up */
    _Atomic uint64_t worst_ns;
    _Atomic bool stop;
    pthread_t thread;
} pulse;

static void *pulse_run(void *argument)
{
    (void)argument;
    while (!atomic_load(&pulse.stop)) {
        uint64_t since_ns = mc_clock_ns();
        usleep(1000);
        uint64_t waited_ns = mc_clock_ns() - since_ns;
        if (waited_ns > atomic_load(&pulse.worst_ns))
            atomic_store(&pulse.worst_ns, waited_ns);
    }
    return NULL;
}

/* Since the read before this began: what was late may have been the machine's doing. */
static bool was_busy(void)
{
    usleep(2 * LATE_NS / 1000); /* a pulse that has been waiting until now */
    return atomic_load(&pulse.worst_ns) > LATE_NS;
}

static struct rig rig;
static struct mc_paths *paths;
static struct mc_path *path;
static struct mc_endpoint over_relay;
static uint8_t small_bytes[SMALL], large_bytes[LARGE];
static struct mc_transfer small_place, large_place;

static void put(struct mc_transfer *place, uint8_t *bytes, size_t length, uint32_t slot, uint64_t offset,
                const char *key)
{
    struct iovec part = {bytes, length};
    rig_fill(bytes, length, slot);
    *place = rig_transfer(MC_TRANSFER_WRITE, slot, rig.generation, offset, length, key, &part, 1);
    assert_int_equal(rig_run_one(&rig, place, PATIENT_MS), 0);
    assert_true(rig_wait_live(&rig, slot, rig.generation));
    place->kind = MC_TRANSFER_READ;
}

static int path_open(void)
{
    int rc = MC_ERR_RPC_FAIL;
    paths = mc_paths_create(mc_random_id(), 1, MC_PATH_TCP);
    for (int i = 0; i < 20 && rc < 0; i++) /* an owner that gets no processor is slow to answer */
        rc = mc_path_get(paths, &over_relay, rig_deadline(PATIENT_MS), &path);
    return rc;
}

static void path_close(void)
{
    mc_path_release(path);
    mc_paths_destroy(paths);
}

static int before(void **state)
{
    uint16_t port = 0;
    (void)state;
    if (rig_start(&rig, MC_PATH_TCP, 4u << 20, false, true) != 0)
        return -1;
    put(&small_place, small_bytes, SMALL, 1, 0, "small");
    put(&large_place, large_bytes, LARGE, 2, 1u << 20, "large");
    relay = (struct relay){.fresh_allowed = ALL};
    snprintf(relay.owner_address, sizeof(relay.owner_address), "%s", rig.endpoint.tcp_address);
    relay.listener = mc_tcp_listen("127.0.0.1", &port);
    struct mc_endpoint endpoint = rig.endpoint;
    mc_address_join(endpoint.tcp_address, sizeof(endpoint.tcp_address), "127.0.0.1", port);
    pulse = (struct pulse){.stop = false};
    if (relay.listener < 0 || pthread_create(&relay.thread, NULL, relay_run, NULL) != 0 ||
        pthread_create(&pulse.thread, NULL, pulse_run, NULL) != 0)
        return -1;
    over_relay = endpoint;
    return path_open();
}

static int after(void **state)
{
    (void)state;
    path_close();
    atomic_store(&relay.stop, true);
    pthread_join(relay.thread, NULL);
    atomic_store(&pulse.stop, true);
    pthread_join(pulse.thread, NULL);
    close(relay.listener);
    rig_stop(&rig);
    return 0;
}

static void hold(int64_t allowed)
{
    for (int i = 0; i < CONNECTIONS_MAX; i++)
        atomic_store(&relay.connections[i].allowed, allowed);
}

/* Reads it into `target`. The result; *took_ns is how long it took. */
static int read_into(const struct mc_transfer *place, uint8_t *target, uint64_t timeout_ms, uint64_t patience_ms,
                     uint64_t *took_ns)
{
    struct iovec part = {target, place->length};
    struct mc_transfer read = *place, *list = &read;
    struct mc_run run = {.deadline_ns = rig_deadline(timeout_ms), .patience_ns = patience_ms * 1000000};
    atomic_store(&pulse.worst_ns, 0);
    uint64_t start_ns = mc_clock_ns();
    read.parts = &part;
    mc_path_run(path, &list, 1, &run);
    *took_ns = mc_clock_ns() - start_ns;
    return read.result;
}

/* The small one, over the path of another process. */
static int read_over(struct mc_path *other, uint8_t *target, uint64_t timeout_ms)
{
    struct iovec part = {target, small_place.length};
    struct mc_transfer read = small_place, *list = &read;
    struct mc_run run = {.deadline_ns = rig_deadline(timeout_ms)};
    read.parts = &part;
    mc_path_run(other, &list, 1, &run);
    return read.result;
}

/* The right bytes. False: the machine kept its owner from answering for so long that the path was given up; there is
 * another one now. */
static bool reads_right(const struct mc_transfer *place, const uint8_t *bytes, uint8_t *target, uint64_t *took_ns)
{
    int rc = read_into(place, target, PATIENT_MS, 0, took_ns);
    if (rc == MC_ERR_TRANSFER_FAIL && *took_ns >= MC_STALL_NS && was_busy()) {
        path_close();
        assert_int_equal(path_open(), 0);
        return false;
    }
    assert_int_equal(rc, 0);
    assert_memory_equal(target, bytes, place->length);
    return true;
}

/* One lane loses what it is asked for, or two do. */
static void comes_over_another_lane(const struct mc_transfer *place, const uint8_t *bytes, int64_t allowed)
{
    static uint8_t target[LARGE], untouched[LARGE];
    uint64_t took_ns;
    unsigned late = 0, connections = 0;
    memset(untouched, 0x5a, sizeof(untouched));
    for (int turn = 0; turn < 20; turn++) {
        atomic_store(&relay.lost_after, allowed);
        atomic_store(&relay.losses, turn % 4 == 3 ? 2 : 1);
        if (!reads_right(place, bytes, target, &took_ns)) {
            hold(ALL);
            connections = (unsigned)atomic_load(&relay.count);
            continue;
        }
        late += took_ns >= 190000000u && !was_busy(); /* TCP itself would have sent it again by then */
        memset(target, 0x5a, sizeof(target));
        hold(ALL); /* now what was held back comes */
        usleep(5000);
        if (!reads_right(place, bytes, target, &took_ns)) {
            connections = (unsigned)atomic_load(&relay.count);
            continue;
        }
        memset(target, 0x5a, sizeof(target));
        usleep(5000);
        assert_memory_equal(target, untouched, place->length);
    }
    assert_true(late <= 10);
    /* What was late is waited for and used again, not thrown away; but with a path that was given up. */
    assert_true((unsigned)atomic_load(&relay.count) - connections < 20);
}

static void small_on_a_silent_lane(void **state)
{
    (void)state;
    comes_over_another_lane(&small_place, small_bytes, 0);
}

static void small_cut_in_mid_answer(void **state)
{
    (void)state;
    comes_over_another_lane(&small_place, small_bytes, 3000);
}

static void large_cut_in_mid_answer(void **state)
{
    (void)state;
    comes_over_another_lane(&large_place, large_bytes, 600001);
}

static void all_are_silent(void **state)
{
    uint8_t target[SMALL];
    uint64_t took_ns;
    (void)state;
    hold(0);
    atomic_store(&relay.fresh_allowed, 0);
    assert_int_equal(read_into(&small_place, target, 5000, 100, &took_ns), MC_ERR_RPC_TIMEOUT); /* to another replica */
    assert_true(took_ns >= 90000000u && (took_ns < MC_STALL_NS || was_busy()));
    assert_false(atomic_load(&path->broken));
    assert_int_equal(read_into(&small_place, target, 300, 0, &took_ns), MC_ERR_RPC_TIMEOUT); /* the deadline */
    assert_false(atomic_load(&path->broken));
    assert_int_equal(read_into(&small_place, target, 5000, 0, &took_ns), MC_ERR_TRANSFER_FAIL);
    assert_true(took_ns >= MC_STALL_NS - 10000000u && (took_ns < MC_STALL_NS + 300000000u || was_busy()));
    assert_true(atomic_load(&path->broken));
    assert_true(atomic_load(&relay.count) >= 3); /* others were tried */
}

static void hung_up_when_asked(void **state)
{
    static uint8_t target[LARGE];
    uint64_t took_ns;
    (void)state;
    hold(-1); /* as an owner that closed a connection which rested, while our question was on its way */
    if (!reads_right(&large_place, large_bytes, target, &took_ns))
        skip();
    assert_true(took_ns < 300000000u || was_busy());
    assert_false(atomic_load(&path->broken));
}

static void gone_altogether(void **state)
{
    uint8_t target[SMALL];
    uint64_t took_ns;
    (void)state;
    hold(-1);
    shutdown(relay.listener, SHUT_RDWR); /* refuses from now on */
    assert_int_equal(read_into(&small_place, target, 5000, 0, &took_ns), MC_ERR_TRANSFER_FAIL);
    assert_true(took_ns < 200000000u || was_busy());
}

/* It has ended, but the packets that say so on its connections were lost. */
static void ended_without_a_word(void **state)
{
    uint8_t target[SMALL];
    uint64_t took_ns;
    (void)state;
    for (int i = 0; i < 100; i++)
        (void)reads_right(&small_place, small_bytes, target, &took_ns); /* its pace is known */
    hold(0);
    shutdown(relay.listener, SHUT_RDWR);
    assert_int_equal(read_into(&small_place, target, 5000, 0, &took_ns), MC_ERR_TRANSFER_FAIL);
    assert_true(took_ns < MC_STALL_NS / 2 || was_busy());
    assert_true(atomic_load(&path->broken));
}

enum { QUEUED = 2 }; /* connections that a listener with a backlog of 0 has no place beside */

static void *stop_listening(void *argument)
{
    const int *listener = argument;
    usleep(20000);
    shutdown(*listener, SHUT_RDWR);
    return NULL;
}

/* The first packet of the first connection is lost, here for want of a place; the next one is refused. */
static void refused_while_one_is_on_its_way(void **state)
{
    struct mc_paths *other = mc_paths_create(mc_random_id(), 2, MC_PATH_TCP);
    struct mc_endpoint endpoint = rig.endpoint;
    struct mc_tcp_address peer;
    struct mc_path *none;
    uint16_t port = 0;
    pthread_t thread;
    int queued[QUEUED], listener = mc_tcp_listen("127.0.0.1", &port);
    (void)state;
    assert_true(listener >= 0);
    assert_int_equal(listen(listener, 0), 0);
    mc_address_join(endpoint.tcp_address, sizeof(endpoint.tcp_address), "127.0.0.1", port);
    assert_int_equal(mc_tcp_resolve(endpoint.tcp_address, rig_deadline(1000), &peer, 1), 1);
    for (int i = 0; i < QUEUED; i++)
        queued[i] = mc_tcp_begin(&peer);
    assert_int_equal(pthread_create(&thread, NULL, stop_listening, &listener), 0);
    atomic_store(&pulse.worst_ns, 0);
    uint64_t start_ns = mc_clock_ns();
    int rc = mc_path_get(other, &endpoint, rig_deadline(5000), &none);
    uint64_t took_ns = mc_clock_ns() - start_ns;
    bool is_excused = was_busy(); /* then the listener may have been closed before it was asked, or long after that */
    assert_true(rc == MC_ERR_RPC_FAIL || (rc == MC_ERR_RPC_TIMEOUT && is_excused));
    assert_true(took_ns < MC_STALL_NS / 2 || is_excused);
    assert_true(took_ns > 20000000u || is_excused); /* it was lost, not refused */
    assert_int_equal(pthread_join(thread, NULL), 0);
    for (int i = 0; i < QUEUED; i++)
        close(queued[i]);
    close(listener);
    mc_paths_destroy(other);
}

static void answers_twice(void **state)
{
    uint8_t target[SMALL];
    uint64_t took_ns;
    (void)state;
    atomic_store(&relay.connections[0].twice, true);
    for (int i = 0; i < 5; i++) {
        memset(target, 0, sizeof(target));
        int rc = read_into(&small_place, target, 5000, 0, &took_ns);
        assert_true(rc == 0 || rc == MC_ERR_TRANSFER_FAIL); /* it does not speak our protocol; but never wrong bytes */
        if (rc == 0)
            assert_memory_equal(target, small_bytes, SMALL);
        usleep(15000);
    }
    assert_int_equal(read_into(&small_place, target, 5000, 0, &took_ns), 0);
}

/* The owner's pace is known after a while, and it is not asked twice without need. */
static void nobody_is_asked_twice_without_need(void **state)
{
    uint8_t target[SMALL];
    uint64_t took_ns;
    int needed = 1;
    (void)state;
    for (int i = 0; i < 2000; i++) {
        if (!reads_right(&small_place, small_bytes, target, &took_ns))
            skip();
        needed += took_ns > MC_PACE_MORE_NS / 2; /* a busy machine has made it late */
    }
    assert_true(atomic_load(&relay.count) <= needed);
}

#define HOLES_MAX 64

static void one_without_descriptors_blames_nobody(void **state)
{
    struct rlimit before, none;
    struct mc_path *other = NULL;
    uint8_t target[SMALL];
    uint64_t took_ns;
    (void)state;
    int holes[HOLES_MAX], hole_count = 0, opened = 0, over_none = 0;
    struct mc_paths *fresh = mc_paths_create(mc_random_id(), 1, MC_PATH_TCP);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    int next = dup(0); /* not a smaller number: poll() takes no more descriptors than the limit */
    assert_true(next >= 0 && close(next) == 0);
    none = (struct rlimit){.rlim_cur = (rlim_t)next, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    while (opened == 0 && over_none == 0 && hole_count < HOLES_MAX) { /* what ends meanwhile leaves a smaller number */
        if (other != NULL) {
            mc_path_release(other);
            mc_paths_destroy(fresh);
            fresh = mc_paths_create(mc_random_id(), 1, MC_PATH_TCP);
        }
        for (int hole; hole_count < HOLES_MAX && (hole = dup(0)) >= 0;)
            holes[hole_count++] = hole;
        opened = mc_path_get(fresh, &rig.endpoint, rig_deadline(PATIENT_MS), &other);
        over_none = opened == 0 ? read_over(other, target, 300) : 1;
    }
    int over_idle = read_into(&small_place, target, PATIENT_MS, 0, &took_ns);
    bool is_excused = over_idle == MC_ERR_TRANSFER_FAIL && took_ns >= MC_STALL_NS && was_busy();
    hold(0); /* and no second lane can be had, or it is as silent, where an idle one has just been closed */
    atomic_store(&relay.fresh_allowed, 0);
    int held = read_into(&small_place, target, 100, 0, &took_ns);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    while (hole_count > 0)
        close(holes[--hole_count]);
    atomic_store(&relay.fresh_allowed, ALL);
    hold(ALL);
    assert_int_equal(opened, 0); /* a way without a connection yet: */
    assert_int_equal(over_none, MC_ERR_BUSY);
    assert_true(mc_socket_is_own(over_none));
    assert_false(atomic_load(&other->broken));
    assert_int_equal(read_over(other, target, PATIENT_MS), 0);
    mc_path_release(other);
    if (is_excused) {
        mc_paths_destroy(fresh);
        skip();
    }
    assert_int_equal(over_idle, 0);
    assert_int_equal(held, MC_ERR_RPC_TIMEOUT);
    assert_int_equal(mc_path_get(fresh, &rig.endpoint, rig_deadline(PATIENT_MS), &other), 0);
    mc_path_release(other);
    mc_paths_destroy(fresh);
    (void)reads_right(&small_place, small_bytes, target, &took_ns);
}

/* Memory of the caller's that is none: his trouble alone. */
static void bad_memory_is_its_own(void **state)
{
    uint8_t target[SMALL];
    uint8_t *half = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(half != MAP_FAILED && mprotect(half + LARGE / 4, LARGE / 4 * 3, PROT_NONE) == 0);
    struct iovec good = {target, SMALL}, bad = {half, LARGE};
    struct mc_transfer reads[2] = {large_place, small_place}, *list[2] = {&reads[0], &reads[1]};
    struct mc_run run = {.deadline_ns = rig_deadline(3000)};
    (void)state;
    reads[0].parts = &bad;
    reads[1].parts = &good;
    mc_path_run(path, list, 2, &run);
    assert_int_equal(reads[0].result, MC_ERR_INVALID_PARAMS);
    assert_int_equal(reads[1].result, 0);
    assert_memory_equal(target, small_bytes, SMALL);
    assert_false(atomic_load(&path->broken));
    munmap(half, LARGE);
}

#define ONE(test) cmocka_unit_test_setup_teardown(test, before, after)

int main(int count, char **arguments)
{
    if (count == 4 && strcmp(arguments[1], "rig-owner") == 0)
        return rig_owner_main(arguments);
    const struct CMUnitTest tests[] = {
        ONE(small_on_a_silent_lane),
        ONE(small_cut_in_mid_answer),
        ONE(large_cut_in_mid_answer),
        ONE(all_are_silent),
        ONE(hung_up_when_asked),
        ONE(gone_altogether),
        ONE(ended_without_a_word),
        ONE(refused_while_one_is_on_its_way),
        ONE(answers_twice),
        ONE(nobody_is_asked_twice_without_need),
        ONE(one_without_descriptors_blames_nobody),
        ONE(bad_memory_is_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
