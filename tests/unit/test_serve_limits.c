/* How many data connections an owner has: places, shares, rest, and those that say nothing. */
#include "base/tempo.h"
#include "store/segment/serve_shares.h"
#include "env/limits.h"
#include "env/log.h"
#include "serve_rig.h"

#include <arpa/inet.h>
#include <stdlib.h>

/* What a hello of that node gets, from a connection that then stays in *peer. */
static int try_hello(struct rig *rig, bool is_unix, struct mc_id node, struct peer *peer)
{
    struct mc_wire_hello_reply reply;
    struct mc_wire_hello hello = hello_of(rig, node);
    *peer = connect_raw(rig, is_unix);
    say_hello(peer, &hello);
    return hear_hello(peer, &reply);
}

static void test_limits(void **state)
{
    (void)state;
    struct rig rig;
    struct peer peers[8], one_more;
    rig_prepare(&rig, true);
    mc_serve_set_limits(rig.serve, 8, 300, MC_SERVE_IDLE_MS);
    assert_int_equal(mc_serve_start(rig.serve), 0);
    for (int i = 0; i < 8; i++)
        peers[i] = connect_peer(&rig, i % 2);
    /* All have been in use just now: busy, and said so. */
    assert_int_equal(try_hello(&rig, false, mc_random_id(), &one_more), MC_ERR_BUSY);
    assert_true(peer_is_closed(&one_more));
    peer_close(&one_more);
    for (int i = 0; i < 8; i++)
        expect_pong(&peers[i], 1);
    peer_close(&peers[3]);
    rig_wait_connections(&rig, 7);
    struct peer silent = connect_raw(&rig, false); /* room again; but it never says hello */
    uint64_t start_ms = mc_clock_ms();
    assert_true(peer_is_closed(&silent));
    assert_in_range(mc_clock_ms() - start_ms, 200, 1500);
    peer_close(&silent);
    for (int i = 0; i < 8; i++) {
        if (i == 3)
            continue;
        expect_pong(&peers[i], 2); /* those that did are not timed */
        peer_close(&peers[i]);
    }
    rig_wait_connections(&rig, 0);
    rig_stop(&rig);
}

/* Connections that rest make room for those that come; one in use or with our memory mapped never does. */
static void test_full_of_idle(void **state)
{
    (void)state;
    struct rig rig;
    struct peer idle[6], mapped, newcomer, second;
    struct mc_wire_attach_reply reply;
    int fds[3];
    rig_prepare(&rig, true);
    mc_serve_set_limits(rig.serve, 8, 5000, MC_SERVE_IDLE_MS);
    assert_int_equal(mc_serve_start(rig.serve), 0);
    mapped = connect_peer(&rig, true);
    assert_true(attach(&mapped, &reply, fds) > 0);
    for (int i = 0; i < 6; i++)
        idle[i] = connect_peer(&rig, false);
    struct peer writing = connect_peer(&rig, false);
    put_write(&writing, 4, 20, 0, 1000); /* and never sends it all */
    assert_int_equal(peer_flush(&writing), 0);
    usleep((MC_SHARES_SPARE_MS + 100) * 1000);
    expect_pong(&idle[0], 7); /* now the second one rests for longest */
    assert_int_equal(try_hello(&rig, false, mc_random_id(), &newcomer), 0);
    assert_true(peer_is_closed(&idle[1]));
    assert_int_equal(try_hello(&rig, true, mc_random_id(), &second), 0);
    assert_true(peer_is_closed(&idle[2]));
    expect_pong(&newcomer, 1);
    expect_pong(&idle[0], 8);
    expect_pong(&mapped, 1);
    assert_false(peer_is_closed_now(&writing));
    for (int i = 0; i < 6; i++)
        peer_close(&idle[i]);
    for (int i = 0; i < 3; i++)
        close(fds[i]);
    peer_close(&mapped);
    peer_close(&writing);
    peer_close(&newcomer);
    peer_close(&second);
    rig_stop(&rig);
}

/* One node takes all places: another gets its own share of them, at once, and no more of it than that. */
static void test_shares_of_peers(void **state)
{
    (void)state;
    struct rig rig;
    struct peer greedy[8], modest[5];
    struct mc_id one = mc_random_id(), other = mc_random_id();
    rig_prepare(&rig, false);
    mc_serve_set_limits(rig.serve, 8, 5000, MC_SERVE_IDLE_MS);
    assert_int_equal(mc_serve_start(rig.serve), 0);
    for (int i = 0; i < 8; i++)
        greedy[i] = connect_as(&rig, false, one);
    usleep((MC_SHARES_LEAST_MS + 50) * 1000);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(try_hello(&rig, false, other, &modest[i]), 0);
        assert_true(peer_is_closed(&greedy[i]));
    }
    assert_int_equal(try_hello(&rig, false, other, &modest[4]), MC_ERR_BUSY); /* half is its share */
    for (int i = 4; i < 8; i++)
        expect_pong(&greedy[i], 1);
    for (int i = 0; i < 4; i++)
        expect_pong(&modest[i], 1);
    usleep((MC_SHARES_LEAST_MS + 50) * 1000);
    peer_close(&modest[4]);
    assert_int_equal(try_hello(&rig, false, other, &modest[4]), 0); /* in place of one of its own */
    assert_true(peer_is_closed(&modest[0]));
    for (int i = 4; i < 8; i++)
        expect_pong(&greedy[i], 2);
    for (int i = 0; i < 8; i++)
        peer_close(&greedy[i]);
    for (int i = 0; i < 5; i++)
        peer_close(&modest[i]);
    rig_stop(&rig);
}

/* One that rests is closed after a while; one that is used, or has our memory mapped, is not. */
static void test_idle_is_closed(void **state)
{
    (void)state;
    struct rig rig;
    struct mc_wire_attach_reply reply;
    int fds[3];
    rig_prepare(&rig, true);
    mc_serve_set_limits(rig.serve, 8, 5000, 1500);
    assert_int_equal(mc_serve_start(rig.serve), 0);
    struct peer idle = connect_peer(&rig, false), used = connect_peer(&rig, false), mapped = connect_peer(&rig, true);
    assert_true(attach(&mapped, &reply, fds) > 0);
    uint64_t start_ms = mc_clock_ms();
    while (!peer_is_closed_now(&idle) && mc_clock_ms() - start_ms < 4000) {
        expect_pong(&used, 1);
        usleep(50000);
    }
    assert_in_range(mc_clock_ms() - start_ms, 1300, 3500);
    expect_pong(&mapped, 1);
    assert_int_equal(rig_connections(&rig), 2);
    for (int i = 0; i < 3; i++)
        close(fds[i]);
    peer_close(&idle);
    peer_close(&used);
    peer_close(&mapped);
    rig_stop(&rig);
}

/* One that stands still in the middle of a frame is closed after a while; one that goes on slowly is not, nor one whose
 * peer has our memory mapped. */
static void test_half_frames_end(void **state)
{
    (void)state;
    struct rig rig;
    struct mc_wire_attach_reply reply;
    int fds[3];
    rig_prepare(&rig, true);
    mc_serve_set_limits(rig.serve, 8, 5000, 5000);
    assert_int_equal(mc_serve_start(rig.serve), 0);
    struct peer head = connect_peer(&rig, false), payload = connect_peer(&rig, false), slow = connect_peer(&rig, false),
                mapped = connect_peer(&rig, true);
    assert_true(attach(&mapped, &reply, fds) > 0);
    static const char part[] = "abcde";
    assert_int_equal(send(head.fd, part, 5, MSG_NOSIGNAL), 5);
    assert_int_equal(send(mapped.fd, part, 5, MSG_NOSIGNAL), 5);
    put_write(&payload, 4, 20, 0, 1000);
    assert_int_equal(peer_flush(&payload), 0);
    put_write(&slow, 5, 20, 2048, 1000);
    assert_int_equal(peer_flush(&slow), 0);
    uint64_t start_ms = mc_clock_ms();
    while (mc_clock_ms() - start_ms < 20000 && !(peer_is_closed_now(&head) && peer_is_closed_now(&payload))) {
        assert_int_equal(send(slow.fd, part, 1, MSG_NOSIGNAL), 1);
        usleep(50000);
    }
    assert_in_range(mc_clock_ms() - start_ms, 900, 15000);
    assert_int_equal(rig_connections(&rig), 2);
    assert_false(peer_is_closed_now(&slow));
    for (int i = 0; i < 3; i++)
        close(fds[i]);
    peer_close(&head);
    peer_close(&payload);
    peer_close(&slow);
    peer_close(&mapped);
    rig_stop(&rig);
}

/* Where half frames have all places, one that has stood still for a while gives its own to who comes. */
static void test_half_frames_make_room(void **state)
{
    (void)state;
    struct rig rig;
    struct peer half[8], one_more;
    rig_prepare(&rig, true);
    mc_serve_set_limits(rig.serve, 8, 5000, 30000);
    assert_int_equal(mc_serve_start(rig.serve), 0);
    for (unsigned i = 0; i < 8; i++) {
        half[i] = connect_peer(&rig, false);
        put_write(&half[i], 4, 20, 0, 1000);
        assert_int_equal(peer_flush(&half[i]), 0);
    }
    int rc = MC_ERR_BUSY;
    for (uint64_t end_ms = mc_clock_ms() + 20000; rc == MC_ERR_BUSY && mc_clock_ms() < end_ms; usleep(100000)) {
        rc = try_hello(&rig, false, mc_random_id(), &one_more);
        if (rc == MC_ERR_BUSY)
            peer_close(&one_more);
    }
    assert_int_equal(rc, 0);
    expect_pong(&one_more, 1);
    peer_close(&one_more);
    for (unsigned i = 0; i < 8; i++)
        peer_close(&half[i]);
    rig_stop(&rig);
}

static struct peer connect_from(struct rig *rig, const char *host)
{
    struct peer peer = {.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    struct sockaddr_in from = {.sin_family = AF_INET}, to = {.sin_family = AF_INET,
                                                             .sin_port = htons(mc_serve_tcp_port(rig->serve)),
                                                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(inet_pton(AF_INET, host, &from.sin_addr), 1);
    assert_int_equal(bind(peer.fd, (struct sockaddr *)&from, sizeof(from)), 0);
    assert_int_equal(connect(peer.fd, (struct sockaddr *)&to, sizeof(to)), 0);
    return peer;
}

static int hello_from(struct rig *rig, const char *host, struct peer *peer)
{
    struct mc_wire_hello_reply reply;
    struct mc_wire_hello hello = hello_of(rig, mc_random_id());
    *peer = connect_from(rig, host);
    say_hello(peer, &hello);
    return hear_hello(peer, &reply);
}

/* Who is slow: not one of a link that stands still for long and often, nor one that is used now and then; but one that
 * ends a small frame just in time, or rests for so short a time that nobody could have its place. */
static void test_tempo(void **state)
{
    enum { GRACE = 10000 };
    struct mc_tempo lossy, seldom, dripping, twitching;
    (void)state;
    mc_tempo_begin(&lossy, 0, GRACE);
    mc_tempo_begin(&seldom, 0, GRACE);
    mc_tempo_begin(&dripping, 0, GRACE);
    mc_tempo_begin(&twitching, 0, GRACE);
    for (uint64_t ms = 1; ms < 600000; ms++) {
        if (ms % 10000 < 100) /* 100 KiB, and nothing for 9.9 s */
            mc_tempo_move(&lossy, 1024, ms, GRACE);
        if (ms % 2000 == 0) { /* a few bytes, and a rest */
            mc_tempo_rest(&seldom, 1800, ms, GRACE);
            mc_tempo_move(&seldom, 24, ms, GRACE);
        }
        if (ms % 4000 == 0)
            mc_tempo_move(&dripping, 1, ms, GRACE);
        if (ms % 1000 == 0)
            mc_tempo_move(&twitching, 24, ms, GRACE);
        assert_false(mc_tempo_is_slow(&lossy, ms) || mc_tempo_is_slow(&seldom, ms));
        assert_int_equal(mc_tempo_is_slow(&dripping, ms), ms > GRACE && ms % 4000 != 0);
        assert_true(ms <= GRACE + 100 || ms % 1000 < 3 || mc_tempo_is_slow(&twitching, ms));
    }
}

/* Each sends that much of a payload that never ends; for so long. */
static void drip(struct peer *const *peers, const size_t *bytes, size_t count, uint64_t for_ms)
{
    static const char part[1024];
    for (uint64_t end_ms = mc_clock_ms() + for_ms; mc_clock_ms() < end_ms; usleep(50000))
        for (size_t i = 0; i < count; i++)
            (void)!send(peers[i]->fd, part, bytes[i], MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Where frames that come a byte at a time have all places, a host that has fewer than its share has some of the host
 * that has most: not of one that is fast enough, nor of one that has no more than its share. */
static void test_slow_frames_make_room(void **state)
{
    (void)state;
    struct rig rig;
    struct peer slow[5], modest[2], fast, newcomers[3];
    struct peer *all[8] = {&slow[0], &slow[1], &slow[2], &slow[3], &slow[4], &modest[0], &modest[1], &fast};
    static const size_t bytes[8] = {1, 1, 1, 1, 1, 1, 1, 1000};
    rig_prepare(&rig, false);
    mc_serve_set_limits(rig.serve, 8, 5000, 60000); /* so one is slow after 2 s */
    assert_int_equal(mc_serve_start(rig.serve), 0);
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(hello_from(&rig, i == 5 || i == 6 ? "127.0.0.3" : "127.0.0.1", all[i]), 0);
        put_write(all[i], 4 + i, 20, i * 2 * MIB, MIB);
        assert_int_equal(peer_flush(all[i]), 0);
    }
    drip(all, bytes, 8, 500);
    assert_int_equal(hello_from(&rig, "127.0.0.2", &newcomers[0]), MC_ERR_BUSY); /* nobody has had his time yet */
    peer_close(&newcomers[0]);
    drip(all, bytes, 8, 2500);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(hello_from(&rig, "127.0.0.2", &newcomers[i]), 0);
        drip(all, bytes, 8, 200);
    }
    assert_int_equal(hello_from(&rig, "127.0.0.2", &newcomers[2]), MC_ERR_BUSY); /* it has its share */
    unsigned gone = 0;
    for (unsigned i = 0; i < 5; i++)
        gone += peer_is_closed_now(&slow[i]);
    assert_int_equal(gone, 2);
    assert_false(peer_is_closed_now(&modest[0]) || peer_is_closed_now(&modest[1]) || peer_is_closed_now(&fast));
    expect_pong(&newcomers[0], 1);
    for (unsigned i = 0; i < 8; i++)
        peer_close(all[i]);
    for (unsigned i = 0; i < 3; i++)
        peer_close(&newcomers[i]);
    rig_stop(&rig);
}

/* A host that says to be many nodes leaves the others their share all the same. */
static void test_shares_of_hosts(void **state)
{
    (void)state;
    struct mc_shares shares = {.limit = 8};
    struct mc_guest many[7] = {{0}}, own = {0}, *victim;
    const struct mc_id greedy = {1, 0}, modest = {2, 0}, node = {3, 0};
    for (unsigned i = 0; i < 7; i++) {
        assert_int_equal(mc_shares_enter(&shares, &many[i], (struct mc_id){10 + i, 0}, greedy), 0);
        mc_shares_rest(&shares, &many[i], 1);
    }
    assert_int_equal(mc_shares_enter(&shares, &own, node, modest), 0);
    assert_true(mc_shares_ask(&shares, node, modest, 1 + MC_SHARES_LEAST_MS, &victim));
    assert_ptr_equal(victim, &many[0]);
    mc_shares_wake(&shares, &many[0]);
    assert_true(mc_shares_may_take(&shares, node, modest, &many[0]));
    assert_false(mc_shares_may_take(&shares, (struct mc_id){10, 0}, greedy, &own));
    for (unsigned i = 0; i < 7; i++)
        mc_shares_leave(&shares, &many[i]);
    mc_shares_leave(&shares, &own);
}

/* Those that say nothing make room among themselves, and take no place of those that do. */
static void test_many_greeters(void **state)
{
    (void)state;
    struct rig rig;
    struct peer *silent = calloc(MC_SERVE_GREETERS_LEAST + 20, sizeof(*silent));
    assert_non_null(silent);
    rig_prepare(&rig, true);
    mc_serve_set_limits(rig.serve, 8, 5000, MC_SERVE_IDLE_MS);
    assert_int_equal(mc_serve_start(rig.serve), 0);
    for (unsigned i = 0; i < MC_SERVE_GREETERS_LEAST + 20; i++)
        silent[i] = connect_raw(&rig, true);
    struct peer honest = connect_peer(&rig, true);
    expect_pong(&honest, 1);
    rig_wait_connections(&rig, MC_SERVE_GREETERS_LEAST); /* one of which the honest one made room for */
    assert_true(peer_is_closed(&silent[0]));
    for (unsigned i = 0; i < MC_SERVE_GREETERS_LEAST + 20; i++)
        peer_close(&silent[i]);
    peer_close(&honest);
    free(silent);
    rig_stop(&rig);
}

/* Many answers at once, again and again: the queue grows, turns round, and is given back in between. */
static void test_queue(void **state)
{
    (void)state;
    struct rig rig;
    rig_start(&rig);
    struct peer peer = connect_peer(&rig, false);
    for (uint64_t round = 0, id = 0, heard = 0; round < 12; round++) {
        struct mc_frame frame;
        struct mc_reader reader;
        for (unsigned i = 0; i < 3 * (1u << round); i++)
            peer_ping(&peer, ++id);
        assert_int_equal(peer_flush(&peer), 0);
        while (heard < id) {
            peer_expect(&peer, MC_MESSAGE_PONG, &frame, &reader);
            assert_int_equal(frame.request_id, ++heard);
        }
        if (round == 5)
            usleep((MC_SERVE_SETTLE_MS + 200) * 1000);
    }
    peer_close(&peer);
    rig_stop(&rig);
}

int main(void)
{
    mc_log_set_level(MC_LOG_ERROR);
    mc_file_limit_raise();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_full_of_idle),
        cmocka_unit_test(test_shares_of_peers),
        cmocka_unit_test(test_idle_is_closed),
        cmocka_unit_test(test_half_frames_end),
        cmocka_unit_test(test_half_frames_make_room),
        cmocka_unit_test(test_slow_frames_make_room),
        cmocka_unit_test(test_shares_of_hosts),
        cmocka_unit_test(test_tempo),
        cmocka_unit_test(test_many_greeters),
        cmocka_unit_test(test_queue),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
