/* What a store client does when its master dies, is replaced, is a standby, is busy, is silent: against a master that
 * does as it is told, with objects in memory of this process. */
#include "store/segment/memory.h"
#include "store/client/owners.h"
#include "store/client/link.h"
#include "store/client/master.h"
#include "store/client/preconnect.h"

#include "fake_master.h"
#include "object_make.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#define MIB (1ull << 20)
#define EPOCH 50ull
#define SECOND_NS 1000000000ull
#define GRACE_NS 10000000ull /* a call may end so late after its deadline, and the machine may be loaded: */
#define SLACK_NS 150000000ull
#define SIZE 5000u

/* A timing that only a fast machine keeps is not asserted under a sanitizer. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOW 4ull
#else
#define SLOW 1ull
#endif

static struct fake_master master, other;
static struct mc_store *store;
static struct mc_segment_memory *memories[2];
static uint8_t content[SIZE];

static void open_store(const char *address, uint32_t timeout_ms)
{
    struct mc_store_config config = {.local_hostname = "127.0.0.1",
                                     .master_server_addr = address,
                                     .local_buffer_size = 1,
                                     .paths = "local",
                                     .call_timeout_ms = timeout_ms};
    assert_int_equal(mc_store_open(&config, &store), 0);
}

static void start(uint32_t timeout_ms)
{
    master = (struct fake_master){.key_exists = false};
    fake_start(&master, EPOCH);
    open_store(master.address, timeout_ms);
}

static void finish(void)
{
    for (size_t i = 0; i < 2; i++) {
        if (memories[i] == NULL)
            continue;
        mc_paths_remove_segment(store->paths, memories[i]);
        mc_segment_memory_release(memories[i]);
        memories[i] = NULL;
    }
    mc_store_close(store);
    store = NULL;
    fake_stop(&master);
}

static int exist(void)
{
    struct mc_bytes key = {"key", 3};
    int result = 7;
    int rc = mc_store_exist(store, &key, 1, &result);
    assert_true(rc == 0 || rc == result);
    return result;
}

static int remove_key(void)
{
    struct mc_bytes key = {"key", 3};
    int result = 7;
    mc_store_remove(store, &key, 1, false, &result);
    return result;
}

static int64_t get(uint8_t *back)
{
    struct iovec part = {back, SIZE};
    struct mc_get_item item = {.key = {"key", 3}, .parts = &part, .part_count = 1};
    memset(back, 0xee, SIZE);
    mc_store_get(store, &item, 1, NULL, NULL);
    return item.result;
}

static int put(void)
{
    struct iovec part = {content, SIZE};
    struct mc_put_item item = {.key = {"key", 3}, .parts = &part, .part_count = 1};
    mc_store_put(store, &item, 1, NULL);
    return item.result;
}

static uint64_t taken_ns(uint64_t start_ns)
{
    return mc_clock_ns() - start_ns;
}

static void wait_until_away(void)
{
    for (unsigned i = 0; i < 1000 && !mc_master_is_away(store); i++)
        usleep(10000);
    assert_true(mc_master_is_away(store));
}

/* ---- objects ---- */

/* Two segments of this process, each with a replica of "key". */
static void make_replicas(size_t count)
{
    for (size_t i = 0; i < SIZE; i++)
        content[i] = (uint8_t)(i * 7 + (i >> 8));
    pthread_mutex_lock(&master.lock);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(mc_segment_memory_create(4 * MIB, &memories[i]), 0);
        mc_segment_memory_set_contact_ms(memories[i], mc_clock_boot_ms());
        mc_paths_add_segment(store->paths, memories[i]);
        uint64_t generation = (EPOCH << MC_EPOCH_SHIFT) + 10 + i, offset = 4096 * (i + 1);
        memcpy(mc_segment_memory_data(memories[i]) + offset, content, SIZE);
        assert_int_equal(object_finish(memories[i], 3, generation, offset, SIZE, "key", 0, 0), 0);
        master.segments[i] = (struct mc_wire_segment_reply){.segment = (uint32_t)i,
                                                            .node = store->node,
                                                            .incarnation = store->incarnation,
                                                            .segment_id = mc_segment_memory_id(memories[i]),
                                                            .capacity = mc_segment_memory_capacity(memories[i]),
                                                            .slot_count = mc_segment_memory_slot_count(memories[i]),
                                                            .host = store->host,
                                                            .name = mc_span_string("segment")};
        master.places[i] = (struct mc_wire_place){
            .segment = (uint32_t)i, .slot = 3, .generation = generation, .offset = offset, .replica = (uint8_t)i};
    }
    master.place_count = count;
    master.length = SIZE;
    master.key_exists = true;
    pthread_mutex_unlock(&master.lock);
}

static void flip(size_t replica)
{
    mc_segment_memory_data(memories[replica])[4096 * (replica + 1) + 1234] ^= 4;
}

/* ---- epochs ---- */

static void a_restarted_master_is_used_in_the_same_call(void **state)
{
    (void)state;
    start(3000);
    FAKE_SET(&master, key_exists, true);
    assert_int_equal(master.seen_epoch, 0); /* nobody was met before */
    assert_int_equal(exist(), 1);
    fake_stop(&master);
    uint64_t down_ns = mc_clock_ns();
    usleep(50000);
    fake_start(&master, EPOCH + 3);
    assert_int_equal(exist(), 1);
    assert_int_equal(atomic_load(&store->epoch), EPOCH + 3);
    /* The first hello told how long the old one was heard. */
    assert_true(FAKE_GET(&master, seen_epoch) >= EPOCH);
    assert_true(FAKE_GET(&master, seen_age_ms) <= taken_ns(down_ns) / 1000000 + 1100);
    finish();
}

static void the_age_of_the_last_word_is_told(void **state)
{
    (void)state;
    start(3000);
    uint64_t last_ns = mc_clock_ns();
    assert_int_equal(exist(), 0);
    fake_stop(&master);
    usleep(700000);
    fake_start(&master, EPOCH); /* the same epoch, so that every hello tells of it */
    unsigned hellos = FAKE_GET(&master, hellos);
    for (unsigned i = 0; i < 1000 && FAKE_GET(&master, hellos) == hellos; i++)
        usleep(2000);
    assert_int_equal(FAKE_GET(&master, seen_epoch), EPOCH);
    uint32_t age_ms = FAKE_GET(&master, seen_age_ms);
    assert_true(age_ms <= taken_ns(last_ns) / 1000000 + 1);
    assert_true(age_ms >= 690 || FAKE_GET(&master, hellos) > hellos + 1);
    finish();
}

static void a_master_of_the_past_is_not_believed(void **state)
{
    (void)state;
    start(400);
    assert_int_equal(exist(), 0);
    fake_stop(&master);
    fake_start(&master, EPOCH - 1);
    FAKE_SET(&master, key_exists, true);
    unsigned calls = FAKE_GET(&master, calls);
    uint64_t start_ns = mc_clock_ns();
    assert_int_equal(exist(), MC_ERR_RPC_FAIL);
    assert_true(taken_ns(start_ns) < 400000000ull + GRACE_NS + SLACK_NS * SLOW);
    assert_int_equal(FAKE_GET(&master, calls), calls); /* it was asked nothing */
    assert_int_equal(atomic_load(&store->epoch), EPOCH);
    assert_int_equal(mc_store_health(store), 2);
    fake_stop(&master);
    fake_start(&master, EPOCH);
    int rc = MC_ERR_RPC_FAIL;
    for (unsigned i = 0; i < 20 && rc < 0; i++)
        rc = exist();
    assert_int_equal(rc, 1);
    finish();
}

static void *call_exist(void *result)
{
    *(int *)result = exist();
    return NULL;
}

static void *call_remove(void *result)
{
    *(int *)result = remove_key();
    return NULL;
}

static void who_waits_for_a_stopped_leader_goes_on_with_the_next(void **state)
{
    pthread_t caller;
    int result = 7;
    (void)state;
    start(20000);
    FAKE_SET(&master, key_exists, true);
    assert_int_equal(exist(), 1); /* a link is there */
    fake_mute(&master, true, false);
    unsigned calls = FAKE_GET(&master, calls);
    assert_int_equal(pthread_create(&caller, NULL, call_exist, &result), 0);
    for (unsigned i = 0; i < 1000 && FAKE_GET(&master, calls) == calls; i++)
        usleep(1000);
    assert_int_equal(FAKE_GET(&master, calls), calls + 1);
    /* Another one leads from now on: new connections, a higher epoch. Only the heartbeat thread finds out. */
    FAKE_SET(&master, epoch, EPOCH + 1);
    uint64_t start_ns = mc_clock_ns();
    fake_hang_up(&master, MC_ROLE_HEARTBEAT);
    pthread_join(caller, NULL);
    assert_int_equal(result, 1);
    assert_true(taken_ns(start_ns) < 2 * SECOND_NS * SLOW);
    assert_int_equal(atomic_load(&store->epoch), EPOCH + 1);
    finish();
}

/* ---- standbys ---- */

static void a_standby_names_the_leader(void **state)
{
    (void)state;
    master = (struct fake_master){.key_exists = true};
    fake_start(&master, EPOCH);
    other = (struct fake_master){.hello_code = MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS};
    snprintf(other.leader, sizeof(other.leader), "%s", master.address);
    fake_start(&other, 1);
    open_store(other.address, 1000);
    assert_int_equal(exist(), 1);
    assert_int_equal(FAKE_GET(&other, calls), 0);
    assert_int_equal(mc_store_health(store), 0);
    finish();
    fake_stop(&other);
}

static void standbys_that_name_each_other_are_no_master(void **state)
{
    (void)state;
    start(600);
    assert_int_equal(exist(), 0);
    other = (struct fake_master){.hello_code = MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS};
    snprintf(other.leader, sizeof(other.leader), "%s", master.address);
    fake_start(&other, 1);
    pthread_mutex_lock(&master.lock);
    master.hello_code = MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS;
    snprintf(master.leader, sizeof(master.leader), "%s", other.address);
    pthread_mutex_unlock(&master.lock);
    fake_hang_up(&master, MC_ROLE_CALL);
    fake_hang_up(&master, MC_ROLE_HEARTBEAT);
    uint64_t start_ns = mc_clock_ns();
    assert_int_equal(exist(), MC_ERR_RPC_FAIL);
    assert_true(taken_ns(start_ns) < 600000000ull + GRACE_NS + SLACK_NS * SLOW);
    assert_true(FAKE_GET(&other, hellos) > 0);
    assert_true(FAKE_GET(&other, hellos) < 60); /* tried with waits between */
    assert_int_equal(mc_store_health(store), 2);
    /* It leads again. */
    FAKE_SET(&master, hello_code, 0);
    assert_int_equal(exist(), 0);
    finish();
    fake_stop(&other);
}

/* ---- busy, refused, silent ---- */

static void a_busy_master_is_asked_when_it_said(void **state)
{
    (void)state;
    start(2000);
    FAKE_SET(&master, key_exists, true);
    FAKE_SET(&master, retry_after_ms, 80);
    FAKE_SET(&master, busy, 2);
    uint64_t start_ns = mc_clock_ns();
    assert_int_equal(exist(), 1);
    assert_true(taken_ns(start_ns) >= 160000000ull);
    assert_true(taken_ns(start_ns) < 2 * SECOND_NS);
    assert_int_equal(FAKE_GET(&master, calls), 3);
    FAKE_SET(&master, retry_after_ms, 0);
    FAKE_SET(&master, busy, UINT32_MAX);
    start_ns = mc_clock_ns();
    assert_int_equal(exist(), MC_ERR_RPC_TIMEOUT);
    assert_true(taken_ns(start_ns) < 2 * SECOND_NS + GRACE_NS + SLACK_NS * SLOW);
    FAKE_SET(&master, retry_after_ms, UINT32_MAX); /* longer than anybody has */
    start_ns = mc_clock_ns();
    assert_int_equal(exist(), MC_ERR_RPC_TIMEOUT);
    assert_true(taken_ns(start_ns) < 2 * SECOND_NS + GRACE_NS + SLACK_NS * SLOW);
    finish();
}

static void a_dead_master_costs_a_deadline_and_then_nothing(void **state)
{
    uint8_t back[SIZE];
    (void)state;
    start(500);
    assert_int_equal(exist(), 0);
    fake_stop(&master);
    uint64_t start_ns = mc_clock_ns();
    assert_int_equal(exist(), MC_ERR_RPC_FAIL);
    assert_true(taken_ns(start_ns) >= 200000000ull); /* it tried */
    assert_true(taken_ns(start_ns) < 500000000ull + GRACE_NS + SLACK_NS * SLOW);
    assert_int_equal(mc_store_health(store), 2);
    start_ns = mc_clock_ns();
    assert_int_equal(get(back), MC_ERR_RPC_FAIL);
    assert_int_equal(put(), MC_ERR_RPC_FAIL);
    assert_int_equal(remove_key(), MC_ERR_RPC_FAIL);
    assert_true(taken_ns(start_ns) < 3 * (500000000ull + GRACE_NS + SLACK_NS * SLOW));
    wait_until_away();
    start_ns = mc_clock_ns();
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(exist(), MC_ERR_RPC_FAIL);
        assert_int_equal(get(back), MC_ERR_RPC_FAIL);
        assert_int_equal(put(), MC_ERR_RPC_FAIL);
        assert_int_equal(remove_key(), MC_ERR_RPC_FAIL);
        assert_int_equal(mc_store_health(store), 2);
    }
    assert_true(taken_ns(start_ns) < 100000000ull * SLOW);
    fake_start(&master, EPOCH + 1);
    int rc = MC_ERR_RPC_FAIL;
    start_ns = mc_clock_ns();
    while (rc < 0 && taken_ns(start_ns) < 2 * SECOND_NS * SLOW)
        rc = exist();
    assert_int_equal(rc, 0);
    assert_int_equal(mc_store_health(store), 0);
    finish();
}

static void a_silent_master_is_left_by_the_deadline_or_when_it_is_away(void **state)
{
    uint8_t back[SIZE];
    (void)state;
    start(300);
    assert_int_equal(exist(), 0);
    fake_mute(&master, true, true);
    uint64_t start_ns = mc_clock_ns();
    int rc = exist();
    assert_true(rc == MC_ERR_RPC_TIMEOUT || rc == MC_ERR_RPC_FAIL);
    assert_true(get(back) < 0);
    assert_true(put() < 0);
    assert_true(remove_key() < 0);
    assert_true(taken_ns(start_ns) < 4 * (300000000ull + GRACE_NS + SLACK_NS * SLOW));
    assert_int_equal(mc_store_health(store), 2);
    /* A call with much time does not use it all up once the master is away. */
    store->call_timeout_ms = 30000;
    assert_int_equal(exist(), MC_ERR_RPC_FAIL);
    assert_true(taken_ns(start_ns) < 15 * SECOND_NS);
    start_ns = mc_clock_ns();
    assert_int_equal(exist(), MC_ERR_RPC_FAIL);
    assert_true(taken_ns(start_ns) < 20000000ull * SLOW);
    fake_mute(&master, false, false);
    rc = MC_ERR_RPC_FAIL;
    while (rc < 0 && taken_ns(start_ns) < 8 * SECOND_NS)
        rc = exist();
    assert_int_equal(rc, 0);
    finish();
}

/* ---- answers that are late ---- */

/* A question whose packet was lost is asked again over another link, and its late answer is nobody's: least of all
 * that of the next question on its link. */
static void a_late_answer_costs_little_and_answers_nothing_else(void **state)
{
    unsigned slow = 0;
    (void)state;
    start(5000);
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(exist(), 0); /* the master's pace is known */
    unsigned hellos = FAKE_GET(&master, hellos);
    for (unsigned turn = 0; turn < 24; turn++) {
        bool there = turn % 2 == 0;
        FAKE_SET(&master, key_exists, there);
        FAKE_SET(&master, losses, turn % 3 == 2 ? 2 : 1);
        uint64_t start_ns = mc_clock_ns();
        assert_int_equal(exist(), there);
        slow += taken_ns(start_ns) > 150000000u;
        FAKE_SET(&master, key_exists, !there);
        FAKE_SET(&master, losses, 0);
        if (turn % 4 < 2)
            fake_deliver(&master);
        assert_int_equal(exist(), !there);
        fake_deliver(&master);
    }
    assert_true(slow <= 2 * SLOW);                       /* a busy machine may make some so */
    assert_true(FAKE_GET(&master, hellos) < hellos + 8); /* links that were late are used again */
    assert_int_equal(FAKE_GET(&master, suspects), 0);
    finish();
}

/* The link that was to make up for a lost packet has lost its own: one more is opened. Nobody waits for a kernel. */
static void a_link_that_is_opened_for_a_late_answer_may_be_lost_too(void **state)
{
    (void)state;
    start(5000);
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(exist(), 0);
    FAKE_SET(&master, key_exists, true);
    FAKE_SET(&master, losses, 2); /* nothing of these is delivered before the end */
    assert_int_equal(exist(), 1);
    assert_int_equal(FAKE_GET(&master, losses), 0);
    FAKE_SET(&master, losses, 1); /* and the right to open has come back */
    assert_int_equal(exist(), 1);
    fake_deliver(&master);
    finish();
}

/* Of an answer of several packets the first has come and the second is lost: the link rests with a part of a frame. */
static void the_start_of_a_late_answer_is_kept(void **state)
{
    struct mc_master_link *kept;
    (void)state;
    start(5000);
    FAKE_SET(&master, key_exists, true);
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(exist(), 1);
    FAKE_SET(&master, early, 10);
    FAKE_SET(&master, losses, 1);
    assert_int_equal(exist(), 1);
    mc_links_rest(store, mc_clock_ns() + MC_LINK_SETTLE_MS * 1000000ull);
    fake_deliver(&master);
    usleep(10000);
    assert_int_equal(mc_link_borrow(store, mc_clock_ns() + SECOND_NS, &kept), 0); /* the one that answered */
    assert_int_equal(remove_key(), 0);                                            /* on the other one */
    mc_link_return(store, kept);
    assert_int_equal(exist(), 0);
    assert_int_equal(FAKE_GET(&master, removes), 1);
    assert_int_equal(FAKE_GET(&master, hellos), 3); /* heartbeat thread's, and of both links: none is new */
    finish();
}

/* What changes something is asked once. */
static void a_removal_is_never_asked_twice(void **state)
{
    int result = 7;
    pthread_t caller;
    (void)state;
    start(5000);
    assert_int_equal(exist(), 0);
    FAKE_SET(&master, key_exists, true);
    FAKE_SET(&master, losses, 1);
    assert_int_equal(pthread_create(&caller, NULL, call_remove, &result), 0);
    usleep(400000);
    assert_int_equal(FAKE_GET(&master, removes), 1);
    fake_deliver(&master);
    pthread_join(caller, NULL);
    assert_int_equal(result, 0);
    finish();
}

#define SLOW_PUTS 20u
/* Until then the time from a question to its answer is not known, and it may take so long to be called late. */
#define NUDGED_NS 2000000000ull

/* A lost packet holds up its connection until something comes behind it. */
static void what_changes_something_is_nudged_while_its_answer_is_late(void **state)
{
    uint8_t back[SIZE];
    (void)state;
    start(20000);
    make_replicas(1);
    pthread_mutex_lock(&master.lock);
    master.key_exists = false;
    master.places[0].generation += 1000;
    master.nudged = true;
    pthread_mutex_unlock(&master.lock);
    FAKE_SET(&master, losses, 1); /* of PUT_GRANTED */
    FAKE_SET(&master, lost_dones, 1);
    uint64_t start_ns = mc_clock_ns();
    assert_int_equal(put(), 0);
    assert_true(taken_ns(start_ns) < NUDGED_NS);
    assert_int_equal(FAKE_GET(&master, puts), 1); /* neither was asked for again */
    assert_true(FAKE_GET(&master, pings) >= 2);
    assert_int_equal(get(back), SIZE);
    FAKE_SET(&master, losses, 1);
    start_ns = mc_clock_ns();
    assert_int_equal(remove_key(), 0);
    assert_true(taken_ns(start_ns) < NUDGED_NS);
    assert_int_equal(FAKE_GET(&master, removes), 1);
    /* What they were answered is nobody's. */
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(exist(), 0);
        assert_int_equal(remove_key(), MC_ERR_OBJECT_NOT_FOUND);
    }
    assert_int_equal(FAKE_GET(&master, suspects), 0);
    finish();
}

/* ---- links that rest ---- */

static void a_link_that_the_master_closed_costs_nothing(void **state)
{
    (void)state;
    start(5000);
    assert_int_equal(remove_key(), MC_ERR_OBJECT_NOT_FOUND);
    usleep(MC_LINK_SETTLE_MS * 1000 + 100000);
    fake_hang_up(&master, MC_ROLE_CALL);
    usleep(50000);
    /* It was asked once: that nothing is there is the truth, not what an earlier try has left. */
    assert_int_equal(remove_key(), MC_ERR_OBJECT_NOT_FOUND);
    assert_int_equal(FAKE_GET(&master, removes), 2);
    finish();
}

/* ---- fork ---- */

/* Descriptors of a store: connections to the master, listeners, memory. The master's own are in this process, too. */
static int store_descriptors(void)
{
    int count = 0;
    for (int fd = 3; fd < 1024; fd++) {
        char link[64], host[INET6_ADDRSTRLEN], name[256];
        uint16_t ours = 0, peers = 0;
        int listens = 0;
        socklen_t size = sizeof(listens);
        snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, name, sizeof(name) - 1);
        name[length > 0 ? length : 0] = 0;
        bool has_name = mc_socket_name(fd, MC_SOCKET_OURS, host, sizeof(host), &ours);
        bool is_to_master = mc_socket_name(fd, MC_SOCKET_PEERS, host, sizeof(host), &peers) && peers == master.port;
        bool is_listener = getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0 &&
                           !(has_name && ours == master.port);
        count += is_to_master || is_listener || strstr(name, "memfd:") != NULL;
    }
    return count;
}

static void *open_lender(void *argument)
{
    struct mc_store_config config = {.local_hostname = "127.0.0.1",
                                     .master_server_addr = master.address,
                                     .global_segment_size = 16 * MIB,
                                     .local_buffer_size = 1,
                                     .call_timeout_ms = 3000};
    *(int *)argument = mc_store_open(&config, &store);
    return NULL;
}

/* While setup waits for the master's hello, and for its word to the mount. */
static void a_child_forked_during_setup_holds_nothing(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        pthread_t thread;
        int rc = 7, status = -1, here = 0;
        master = (struct fake_master){.mute = i == 0};
        fake_start(&master, EPOCH);
        assert_int_equal(pthread_create(&thread, NULL, open_lender, &rc), 0);
        for (unsigned wait = 0; wait < 2000 && here < (i == 0 ? 1 : 5); wait++) {
            usleep(1000);
            here = i == 0 || FAKE_GET(&master, mounts) > 0 ? store_descriptors() : 0;
        }
        assert_true(here >= (i == 0 ? 1 : 5)); /* heartbeat, owner, listener, data, index, writers */
        pid_t child = fork();
        if (child == 0)
            _exit(store_descriptors());
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(store_descriptors() >= 1); /* here they go on */
        pthread_join(thread, NULL);
        assert_true(rc < 0);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
        assert_int_equal(store_descriptors(), 0);
        fake_stop(&master);
    }
}

static void start_lender(void)
{
    int rc = 7;
    master = (struct fake_master){.takes_mounts = true};
    fake_start(&master, EPOCH);
    open_lender(&rc);
    assert_int_equal(rc, 0);
    assert_int_equal(exist(), 0); /* a link is there */
}

static void *call_close(void *unused)
{
    return mc_store_close(store) == 0 ? unused : NULL;
}

/* While close waits for the master's word to the unmount. */
static void a_child_forked_during_close_holds_nothing(void **state)
{
    pthread_t thread;
    void *result = NULL;
    int status = -1;
    start_lender();
    assert_int_equal(pthread_create(&thread, NULL, call_close, state), 0);
    for (unsigned wait = 0; wait < 20000 && FAKE_GET(&master, unmounts) == 0; wait++)
        usleep(100);
    int here = store_descriptors(); /* owner, listener, data, index, writers */
    pid_t child = fork();
    if (child == 0)
        _exit(store_descriptors());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_ptr_equal(result, state);
    assert_true(here >= 5);
    assert_int_equal(status, 0); /* it has ended, and says 0 */
    assert_int_equal(store_descriptors(), 0);
    store = NULL;
    fake_stop(&master);
}

/* What has the number of one that was closed is the child's own. */
static int close_nothing_twice(void)
{
    int fds[64], status = 1, lost = 0;
    for (size_t i = 0; i < 64; i++)
        fds[i] = dup(0);
    pid_t child = fork();
    for (size_t i = 0; i < 64 && child == 0; i++)
        lost += fcntl(fds[i], F_GETFD) < 0;
    if (child == 0)
        _exit(lost);
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 2;
}

static void a_child_of_a_child_keeps_what_is_its_own(void **state)
{
    int status = -1;
    (void)state;
    start_lender();
    pid_t child = fork();
    if (child == 0)
        _exit(close_nothing_twice());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0); /* it has ended, and says 0 */
    finish();
}

/* ---- answers that are lost ---- */

static void a_remove_whose_answer_was_lost_has_removed(void **state)
{
    (void)state;
    start(2000);
    assert_int_equal(remove_key(), MC_ERR_OBJECT_NOT_FOUND);
    FAKE_SET(&master, key_exists, true);
    FAKE_SET(&master, drops, 1);
    assert_int_equal(remove_key(), 0);
    assert_int_equal(FAKE_GET(&master, removes), 3);
    assert_int_equal(remove_key(), MC_ERR_OBJECT_NOT_FOUND);
    finish();
}

static void a_put_whose_answer_was_lost_asks_again(void **state)
{
    (void)state;
    start(2000);
    make_replicas(1);
    FAKE_SET(&master, drops, 1); /* somebody has put it: the second answer is that it exists */
    assert_int_equal(put(), 0);
    assert_int_equal(FAKE_GET(&master, puts), 2);
    finish();
}

static void a_put_that_is_not_confirmed_makes_a_suspect(void **state)
{
    (void)state;
    start(5000);
    make_replicas(1);
    pthread_mutex_lock(&master.lock);
    master.key_exists = false;
    master.places[0].generation += 1000;
    master.lose_done = 1;
    pthread_mutex_unlock(&master.lock);
    /* The segment is hidden for a second; the next round is granted the same one and fails until then. */
    int rc = put();
    assert_true(rc == 0 || rc == MC_ERR_TRANSFER_FAIL || rc == MC_ERR_RPC_TIMEOUT);
    assert_int_equal(FAKE_GET(&master, suspects) > 0, true);
    assert_int_equal(FAKE_GET(&master, suspect).segment, 0);
    assert_true(FAKE_GET(&master, puts) > 1);
    /* A master after this one may find the value that failed. */
    assert_int_equal(FAKE_GET(&master, unsure), master.places[0].generation - master.places[0].replica);
    finish();
}

/* A put that is late is placed again, which is one more for owners that are late because there are too many. */
static void an_owner_that_is_always_slow_gets_each_put_once(void **state)
{
    (void)state;
    start(20000);
    make_replicas(1);
    FAKE_SET(&master, done_after_ms, 150);
    for (unsigned i = 0; i < SLOW_PUTS; i++) {
        pthread_mutex_lock(&master.lock);
        master.key_exists = false;
        master.places[0].generation += 1000;
        pthread_mutex_unlock(&master.lock);
        assert_int_equal(put(), 0);
    }
    assert_true(FAKE_GET(&master, puts) <= SLOW_PUTS + 4); /* it takes one to learn how slow it is */
    assert_true(FAKE_GET(&master, suspects) <= 4);
    finish();
}

/* ---- gets without a master ---- */

static void known_objects_are_read_without_a_master(void **state)
{
    uint8_t back[SIZE];
    struct mc_store_statistics statistics;
    (void)state;
    start(400);
    make_replicas(2);
    assert_int_equal(get(back), SIZE);
    fake_stop(&master);
    for (unsigned i = 0; i < 2; i++) { /* at once, and when the master is away */
        uint64_t start_ns = mc_clock_ns();
        assert_int_equal(get(back), SIZE);
        assert_true(taken_ns(start_ns) < 100000000ull * SLOW);
        assert_memory_equal(back, content, SIZE);
        struct mc_range_item range = {.key = {"key", 3}, .source_offset = 100, .size = 1000, .target = back};
        assert_int_equal(mc_store_get_ranges(store, &range, 1), 0);
        assert_int_equal(range.result, 1000);
        assert_memory_equal(back, content + 100, 1000);
        if (i == 0)
            wait_until_away();
    }
    mc_store_statistics(store, &statistics);
    assert_int_equal(statistics.places_hits, 4);
    /* A batch: what is known is read, what is not cannot be. */
    uint8_t other_back[SIZE];
    struct iovec parts[3] = {{other_back, SIZE}, {back, SIZE}, {other_back, SIZE}};
    struct mc_get_item items[3] = {{.key = {"no", 2}, .parts = &parts[0], .part_count = 1},
                                   {.key = {"key", 3}, .parts = &parts[1], .part_count = 1},
                                   {.key = {"nor", 3}, .parts = &parts[2], .part_count = 1}};
    assert_int_equal(mc_store_get(store, items, 3, NULL, NULL), MC_ERR_RPC_FAIL);
    assert_int_equal(items[0].result, MC_ERR_RPC_FAIL);
    assert_int_equal(items[1].result, SIZE);
    assert_int_equal(items[2].result, MC_ERR_RPC_FAIL);
    assert_memory_equal(back, content, SIZE);
    /* The owner was silent before the master ended: its departure may have been acted upon. */
    for (unsigned i = 0; i < 2; i++)
        mc_segment_memory_set_contact_ms(memories[i], mc_clock_boot_ms() - 60000);
    assert_int_equal(get(back), MC_ERR_RPC_FAIL);
    for (unsigned i = 0; i < 2; i++)
        mc_segment_memory_set_contact_ms(memories[i], mc_clock_boot_ms());
    fake_start(&master, EPOCH);
    while (get(back) != SIZE) /* the places were forgotten */
        usleep(1000);
    fake_stop(&master);
    assert_int_equal(get(back), SIZE);
    /* One replica less, and rotten bytes in the other: no bytes that are not right. */
    assert_int_equal(mc_segment_memory_clear(memories[0], 3, (EPOCH << MC_EPOCH_SHIFT) + 10), 0);
    assert_int_equal(get(back), SIZE);
    assert_memory_equal(back, content, SIZE);
    flip(1);
    assert_int_equal(get(back), MC_ERR_RPC_FAIL);
    fake_start(&master, EPOCH);
    finish();
}

/* A firewall that refuses what is new, and drops the rest: the master lives, and may have given the owner up. */
static void a_refusal_is_no_end_of_a_master_that_fell_silent(void **state)
{
    uint8_t back[SIZE];
    (void)state;
    start(400);
    make_replicas(1);
    assert_int_equal(get(back), SIZE);
    fake_mute(&master, true, true);
    fake_refuse(&master);
    fake_hang_up(&master, MC_ROLE_CALL); /* as a master may that has no room */
    for (unsigned i = 0; i < 50; i++) {  /* refused all the time, until the heartbeat thread is, too */
        assert_int_equal(exist(), MC_ERR_RPC_FAIL);
        usleep(100000);
    }
    assert_true(mc_master_is_away(store));
    assert_int_equal(get(back), MC_ERR_RPC_FAIL);
    fake_stop(&master);
    master.mute = false;
    fake_start(&master, EPOCH);
    while (get(back) != SIZE)
        usleep(1000);
    finish();
}

static void a_removed_object_is_not_read_without_a_master(void **state)
{
    uint8_t back[SIZE];
    (void)state;
    start(400);
    make_replicas(1);
    assert_int_equal(get(back), SIZE);
    /* Another client removes it: the owner clears the slot before that one is told. */
    assert_int_equal(mc_segment_memory_clear(memories[0], 3, (EPOCH << MC_EPOCH_SHIFT) + 10), 0);
    fake_stop(&master);
    assert_int_equal(get(back), MC_ERR_RPC_FAIL);
    assert_int_equal(mc_clock_ns() > 0 && back[0] == content[0] && memcmp(back, content, SIZE) == 0, 0);
    fake_start(&master, EPOCH);
    finish();
}

static void nothing_of_an_older_epoch_is_read(void **state)
{
    uint8_t back[SIZE];
    (void)state;
    start(400);
    make_replicas(1);
    assert_int_equal(get(back), SIZE);
    fake_stop(&master);
    fake_start(&master, EPOCH + 1);
    FAKE_SET(&master, key_exists, false);
    assert_int_equal(get(back), MC_ERR_OBJECT_NOT_FOUND);
    fake_stop(&master);
    assert_int_equal(get(back), MC_ERR_RPC_FAIL);
    fake_start(&master, EPOCH + 1);
    finish();
}

static unsigned allocations;

static void *allocate(void *context, size_t index, uint64_t length)
{
    (void)index;
    assert_int_equal(length, SIZE);
    allocations++;
    return context;
}

static void memory_is_asked_for_once(void **state)
{
    uint8_t back[SIZE];
    (void)state;
    start(400);
    make_replicas(1);
    struct mc_get_item item = {.key = {"key", 3}};
    allocations = 0;
    mc_store_get(store, &item, 1, allocate, back);
    assert_int_equal(item.result, SIZE);
    flip(0);
    fake_stop(&master);
    mc_store_get(store, &item, 1, allocate, back); /* tried from what is known, then asked for in vain */
    assert_int_equal(item.result, MC_ERR_RPC_FAIL);
    assert_int_equal(allocations, 2);
    flip(0);
    fake_start(&master, EPOCH);
    finish();
}

/* ---- rotten bytes ---- */

static void rotten_bytes_are_read_twice_and_told(void **state)
{
    uint8_t back[SIZE];
    struct mc_store_statistics statistics;
    (void)state;
    start(1000);
    make_replicas(2);
    flip(0);
    flip(1);
    assert_int_equal(get(back), MC_ERR_CHECKSUM_MISMATCH);
    mc_store_statistics(store, &statistics);
    assert_int_equal(statistics.checksum_errors, 4);
    for (unsigned i = 0; i < 1000 && FAKE_GET(&master, rotten) < 2; i++)
        usleep(1000);
    assert_int_equal(FAKE_GET(&master, rotten), 2);
    flip(1);
    assert_int_equal(get(back), SIZE);
    assert_memory_equal(back, content, SIZE);
    for (unsigned i = 0; i < 1000 && FAKE_GET(&master, rotten) < 3; i++)
        usleep(1000);
    assert_int_equal(FAKE_GET(&master, rotten), 3);
    assert_int_equal(FAKE_GET(&master, rotten_slot).slot, 3);
    assert_int_equal(FAKE_GET(&master, rotten_slot).generation, (EPOCH << MC_EPOCH_SHIFT) + 10);
    flip(0);
    assert_int_equal(get(back), SIZE);
    usleep(20000);
    assert_int_equal(FAKE_GET(&master, rotten), 3);
    finish();
}

/* ---- addresses ---- */

static void a_name_is_resolved_and_an_unknown_one_ends_in_time(void **state)
{
    struct mc_master_address address;
    char name[64], used[MC_ADDRESS_MAX];
    (void)state;
    master = (struct fake_master){.key_exists = true};
    fake_start(&master, EPOCH);
    snprintf(name, sizeof(name), "localhost:%u", (unsigned)master.port);
    open_store(name, 2000); /* on a thread of its own */
    assert_int_equal(exist(), 1);
    finish();
    assert_int_equal(mc_master_address_init(&address, "no-such-host.invalid:1"), 0);
    uint64_t start_ns = mc_clock_ns();
    assert_true(mc_master_open(&address, mc_clock_ns() + 200000000ull, used) < 0);
    assert_true(taken_ns(start_ns) < 200000000ull + GRACE_NS + SLACK_NS * SLOW);
    mc_master_address_free(&address);
}

/* A thread of the store that is about to ask the master asks first whether it is away: of the heartbeat thread, which
 * must be there as long as any of them is. */
static void a_close_meets_a_thread_that_asks(void **state)
{
    pthread_t closing;
    void *result = NULL;
    start(2000);
    pthread_mutex_t *lock = &store->paths->lock;
    for (pthread_mutex_lock(lock); __atomic_load_n(&lock->__data.__lock, __ATOMIC_RELAXED) == 2;
         pthread_mutex_lock(lock)) /* which holds it up before it asks; 2 stays for who had to wait for it */
        pthread_mutex_unlock(lock);
    uint64_t start_ns = mc_clock_ns();
    while (__atomic_load_n(&lock->__data.__lock, __ATOMIC_RELAXED) < 2) { /* 2: somebody waits for it */
        mc_preconnect_told(atomic_load(&store->preconnect), EPOCH, 1000); /* a heartbeat's answer takes it back */
        assert_true(taken_ns(start_ns) < 60 * SECOND_NS && usleep(1000) == 0);
    }
    assert_int_equal(pthread_create(&closing, NULL, call_close, state), 0);
    usleep(100000);
    pthread_mutex_unlock(lock);
    assert_true(pthread_join(closing, &result) == 0 && result == state);
    store = NULL;
    fake_stop(&master);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_restarted_master_is_used_in_the_same_call),
        cmocka_unit_test(the_age_of_the_last_word_is_told),
        cmocka_unit_test(a_master_of_the_past_is_not_believed),
        cmocka_unit_test(who_waits_for_a_stopped_leader_goes_on_with_the_next),
        cmocka_unit_test(a_standby_names_the_leader),
        cmocka_unit_test(standbys_that_name_each_other_are_no_master),
        cmocka_unit_test(a_busy_master_is_asked_when_it_said),
        cmocka_unit_test(a_dead_master_costs_a_deadline_and_then_nothing),
        cmocka_unit_test(a_silent_master_is_left_by_the_deadline_or_when_it_is_away),
        cmocka_unit_test(a_late_answer_costs_little_and_answers_nothing_else),
        cmocka_unit_test(a_link_that_is_opened_for_a_late_answer_may_be_lost_too),
        cmocka_unit_test(the_start_of_a_late_answer_is_kept),
        cmocka_unit_test(a_removal_is_never_asked_twice),
        cmocka_unit_test(a_link_that_the_master_closed_costs_nothing),
        cmocka_unit_test(a_child_forked_during_setup_holds_nothing),
        cmocka_unit_test(a_child_forked_during_close_holds_nothing),
        cmocka_unit_test(a_child_of_a_child_keeps_what_is_its_own),
        cmocka_unit_test(an_owner_that_is_always_slow_gets_each_put_once),
        cmocka_unit_test(what_changes_something_is_nudged_while_its_answer_is_late),
        cmocka_unit_test(a_remove_whose_answer_was_lost_has_removed),
        cmocka_unit_test(a_put_whose_answer_was_lost_asks_again),
        cmocka_unit_test(a_put_that_is_not_confirmed_makes_a_suspect),
        cmocka_unit_test(known_objects_are_read_without_a_master),
        cmocka_unit_test(a_refusal_is_no_end_of_a_master_that_fell_silent),
        cmocka_unit_test(a_removed_object_is_not_read_without_a_master),
        cmocka_unit_test(nothing_of_an_older_epoch_is_read),
        cmocka_unit_test(memory_is_asked_for_once),
        cmocka_unit_test(rotten_bytes_are_read_twice_and_told),
        cmocka_unit_test(a_name_is_resolved_and_an_unknown_one_ends_in_time),
        cmocka_unit_test(a_close_meets_a_thread_that_asks),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
