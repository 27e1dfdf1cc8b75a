/* The core's probes through frames: what clients report, whom the master looks at, and whom it hides. */
#include "core_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static int state_of(struct world *world, uint32_t number)
{
    struct mc_core_segment segment;
    assert_true(mc_core_segment(world->core, number, &segment));
    world_check(world);
    return segment.state;
}

static void report(struct world *world, uint64_t from, uint32_t segment, int code)
{
    struct mc_wire_suspect head = {.segment = segment, .code = code};
    size_t frame = world_begin(world, MC_MESSAGE_SUSPECT, 0);
    mc_wire_suspect_write(&world->frame, &head);
    world_send(world, from, frame);
}

static void complain(struct world *world, uint64_t from, uint32_t segment)
{
    report(world, from, segment, MC_ERR_TRANSFER_FAIL);
}

/* The number of the PING that must be there; 0 when none is. */
static uint64_t pinged(struct world *world, uint64_t owner)
{
    struct mc_frame frame = world_receive(world, owner);
    assert_true(frame.type == 0 || frame.type == MC_MESSAGE_PING);
    return frame.type == 0 ? 0 : frame.request_id;
}

static void answer_ping(struct world *world, uint64_t owner, uint64_t id)
{
    struct mc_wire_none none = {0};
    size_t frame = world_begin(world, MC_MESSAGE_PONG, id);
    mc_wire_none_write(&world->frame, &none);
    world_send(world, owner, frame);
}

/* Members of one machine, or of one each. */
static uint64_t join_from(struct world *world, uint64_t node, uint64_t host, const char *name)
{
    uint64_t connection = world_connect(world);
    struct mc_wire_hello hello = world_hello(MC_ROLE_CALL, node, 1);
    hello.host = (struct mc_id){host, 3};
    hello.name = mc_span_string(name);
    assert_int_equal(world_greet(world, connection, &hello).code, 0);
    return connection;
}

/* Answers all PINGs that were sent; how many there were. */
static unsigned answer_all(struct world *world, uint64_t owner)
{
    unsigned count = 0;
    for (uint64_t ping = pinged(world, owner); ping != 0; ping = pinged(world, owner), count++)
        answer_ping(world, owner, ping);
    return count;
}

/* Who answers is hidden from nobody, however many report it. */
static void ordering_client_reports(void **state)
{
    struct world world;
    struct mc_core_statistics statistics;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t clients[8];
    for (unsigned i = 0; i < 8; i++)
        clients[i] = join_from(&world, 10 + i, i < 4 ? 1 : i, "w");
    for (unsigned i = 0; i < 3; i++)
        complain(&world, clients[0], store.segment);
    assert_int_equal(state_of(&world, store.segment), 0);
    uint64_t ping = pinged(&world, store.owner);
    assert_int_not_equal(ping, 0);
    assert_int_equal(pinged(&world, store.owner), 0); /* once */
    answer_ping(&world, store.owner, ping + 1);
    answer_ping(&world, store.owner, ping);
    answer_ping(&world, store.owner, ping);
    world_pass(&world, 300);
    assert_int_equal(state_of(&world, store.segment), 0);
    assert_int_equal(pinged(&world, store.owner), 0);
    for (unsigned round = 0; round < 20; round++) {
        for (unsigned i = 0; i < 8; i++) {
            complain(&world, clients[i], store.segment);
            assert_int_equal(state_of(&world, store.segment), 0);
        }
        assert_int_equal(answer_all(&world, store.owner), 1);
        world_pass(&world, 100);
        assert_int_equal(state_of(&world, store.segment), 0);
    }
    complain(&world, clients[0], 4711);
    statistics = statistics_of(&world);
    assert_int_equal(statistics.suspects, 3 + 160 + 1);
    assert_int_equal(statistics.reports_refuted, 1 + 20 * 4); /* as many machines as are remembered */
    struct mc_core_accuser accusers[4];
    assert_int_equal(mc_core_accusers(world.core, accusers, 4), 0); /* one node may be wrong about itself */
    world_close_all(&world);
}

/* A machine that reports many nodes which answer is itself in trouble. */
static void test_who_accuses_many_is_named(void **state)
{
    struct world world;
    struct mc_core_accuser accusers[4];
    struct world_store stores[4];
    char name[8];
    (void)state;
    world_open(&world);
    for (unsigned i = 0; i < 4; i++) {
        (void)snprintf(name, sizeof(name), "s%u", i);
        stores[i] = world_store(&world, 30 + i, MIB, name);
    }
    uint64_t two[2] = {join_from(&world, 10, 1, "broken"), join_from(&world, 11, 1, "broken")};
    uint64_t other = join_from(&world, 12, 2, "sound");
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(mc_core_accusers(world.core, accusers, 4), 0);
        complain(&world, two[i % 2], stores[i].segment);
        if (i == 0)
            complain(&world, other, stores[0].segment);
        assert_int_equal(answer_all(&world, stores[i].owner), 1);
    }
    assert_int_equal(mc_core_accusers(world.core, accusers, 4), 1);
    assert_string_equal(accusers[0].name, "broken");
    assert_int_equal(accusers[0].nodes, 3);
    complain(&world, two[0], stores[3].segment); /* right this time */
    world_pass(&world, 500);
    assert_int_equal(state_of(&world, stores[3].segment), 1);
    (void)answer_all(&world, stores[3].owner);
    assert_int_equal(mc_core_accusers(world.core, accusers, 4), 1);
    assert_int_equal(accusers[0].nodes, 3);
    for (unsigned i = 0; i < 61; i++) {
        world_pass(&world, SECOND_MS);
        for (unsigned j = 0; j < 4; j++)
            (void)world_heartbeat(&world, stores[j].heartbeat, stores[j].segment, MIB);
    }
    assert_int_equal(mc_core_accusers(world.core, accusers, 4), 0); /* over */
    world_close_all(&world);
}

static void test_doubts_only_ask(void **state)
{
    struct world world;
    struct mc_core_statistics statistics;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t one = world_client(&world, CLIENT), two = world_client(&world, SECOND_CLIENT);
    report(&world, one, store.segment, 0);
    uint64_t ping = pinged(&world, store.owner);
    assert_int_not_equal(ping, 0);
    report(&world, two, store.segment, 0);
    report(&world, one, store.segment, 0);
    report(&world, two, 4711, 0);
    assert_int_equal(pinged(&world, store.owner), 0); /* once */
    assert_int_equal(state_of(&world, store.segment), 0);
    answer_ping(&world, store.owner, ping);
    world_pass(&world, 300);
    assert_int_equal(state_of(&world, store.segment), 0);
    statistics = statistics_of(&world);
    assert_int_equal(statistics.suspects, 0);
    assert_int_equal(statistics.reports_refuted, 0);
    world_close_all(&world);
}

/* Runs the master's clock from tick to tick, as a shell does. */
static void run(struct world *world, uint64_t ms)
{
    uint64_t end = world->now + ms;
    while (world->now < end) {
        uint64_t wake = mc_core_tick(world->core, world->now);
        world->now = wake > end ? end : wake > world->now ? wake : world->now + 1;
    }
    world_settle(world, 10);
}

static void test_probe_without_answer(void **state)
{
    struct world world;
    struct mc_core_statistics statistics;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t one = world_client(&world, CLIENT);
    world_pass(&world, 70);
    complain(&world, one, store.segment);
    run(&world, 99);
    assert_int_equal(state_of(&world, store.segment), 0);
    run(&world, 1);
    assert_int_equal(state_of(&world, store.segment), 1); /* hidden 100 ms after the complaint */
    uint64_t first = pinged(&world, store.owner);
    run(&world, 1000);
    unsigned more = 0;
    uint64_t last = first;
    for (uint64_t ping = pinged(&world, store.owner); ping != 0; ping = pinged(&world, store.owner), more++)
        last = ping;
    assert_in_range(more, 8, 10);
    assert_int_equal(state_of(&world, store.segment), 1);
    answer_ping(&world, store.owner, first); /* late: of a probe that has ended */
    assert_int_equal(state_of(&world, store.segment), 1);
    answer_ping(&world, store.owner, last);
    assert_int_equal(state_of(&world, store.segment), 0);
    statistics = statistics_of(&world);
    assert_in_range(statistics.probes_failed, 4, 7);
    assert_int_equal(statistics.reports_refuted, 0); /* it was true */
    /* It is gone while it is asked after. */
    complain(&world, one, store.segment);
    world_disconnect(&world, store.owner);
    world_pass(&world, 500);
    assert_int_equal(state_of(&world, store.segment), 1);
    store.owner = world_join(&world, MC_ROLE_OWNER, NODE_A, FIRST_LIFE);
    struct mc_wire_mount mount = world_mount_of(NODE_A, MIB, "a");
    assert_int_equal(world_mount(&world, store.owner, &mount).code, 0);
    world_pass(&world, 250);
    assert_int_equal(state_of(&world, store.segment), 1); /* until it answers */
    (void)answer_all(&world, store.owner);
    assert_int_equal(state_of(&world, store.segment), 0);
    world_close_all(&world);
}

/* The first PING, or its PONG, is lost: the next one brings it to light, and any of them will do. */
static void test_a_lost_ping_hides_nobody(void **state)
{
    struct world world;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t one = world_client(&world, CLIENT);
    for (unsigned lost = 1; lost < MC_PROBE_PINGS; lost++) {
        complain(&world, one, store.segment);
        uint64_t last = pinged(&world, store.owner);
        for (unsigned i = 0; i < lost; i++) {
            run(&world, MC_PROBE_LEAST_MS / MC_PROBE_PINGS);
            last = pinged(&world, store.owner);
            assert_int_not_equal(last, 0);
        }
        answer_ping(&world, store.owner, last);
        run(&world, 500);
        assert_int_equal(state_of(&world, store.segment), 0);
        assert_int_equal(pinged(&world, store.owner), 0);
    }
    /* It says something else, behind which the answer waits. */
    complain(&world, one, store.segment);
    struct world_told nothing = {.segment = store.segment};
    for (unsigned i = 0; i < 20; i++) {
        run(&world, 20);
        world_owner_says(&world, store.owner, MC_MESSAGE_CLEARED, &nothing);
        assert_int_equal(state_of(&world, store.segment), 0);
    }
    run(&world, 500);
    assert_int_equal(state_of(&world, store.segment), 0); /* that ended the probe */
    world_close_all(&world);
}

/* While nothing is sent nobody is missed; from then on there is as much time as ever. */
static void test_who_is_not_asked_yet_owes_nothing(void **state)
{
    struct world world;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t one = world_client(&world, CLIENT);
    world_pass(&world, 70);
    for (unsigned before_ms = 0; before_ms <= 90; before_ms += 90) { /* it was asked before, and has begun to be late */
        unsigned asked = 0;
        complain(&world, one, store.segment);
        run(&world, before_ms);
        mc_core_hold(world.core, world.now, true);
        run(&world, 1500);
        assert_int_equal(state_of(&world, store.segment), 0);
        mc_core_hold(world.core, world.now, false);
        run(&world, 95 - before_ms);
        assert_int_equal(state_of(&world, store.segment), 0);
        run(&world, 10);
        assert_int_equal(state_of(&world, store.segment), 1);
        for (uint64_t ping = pinged(&world, store.owner); ping != 0; ping = pinged(&world, store.owner), asked++)
            answer_ping(&world, store.owner, ping);
        assert_in_range(asked, 2, 6); /* none while they were not sent */
        assert_int_equal(state_of(&world, store.segment), 0);
    }
    world_close_all(&world);
}

/* Nor is what the PING of a heartbeat asked for, whenever the next heartbeat comes. */
static void test_heartbeats_while_nothing_is_sent(void **state)
{
    struct world world;
    (void)state;
    struct world_store store = world_open_one(&world);
    assert_int_equal(world_heartbeat(&world, store.heartbeat, store.segment, MIB), 0);
    mc_core_hold(world.core, world.now, false);
    mc_core_sent(world.core);
    world_pass(&world, 1);
    world.stuck = store.owner; /* its answers take this test's time */
    assert_int_equal(world_heartbeat(&world, store.heartbeat, store.segment, MIB), 0);
    mc_core_hold(world.core, world.now, true);
    for (unsigned i = 0; i < 3; i++) {
        world_pass(&world, 500);
        assert_int_equal(world_heartbeat(&world, store.heartbeat, store.segment, MIB), 0);
    }
    mc_core_hold(world.core, world.now, false);
    mc_core_sent(world.core);
    world_pass(&world, 1);
    assert_int_equal(world_heartbeat(&world, store.heartbeat, store.segment, MIB), 0);
    struct mc_frame asked;
    while ((asked = world_receive(&world, store.owner)).type == MC_MESSAGE_PING)
        answer_ping(&world, store.owner, asked.request_id);
    run(&world, 1000);
    assert_int_equal(world_heartbeat(&world, store.heartbeat, store.segment, MIB), 0);
    run(&world, 1000);
    assert_int_equal(world_heartbeat(&world, store.heartbeat, store.segment, MIB), 1); /* now it is silent */
    world_close_all(&world);
}

/* Turns may have more to send than they have time for, and what is left then waits like what is said meanwhile. */
static void test_what_was_left_over_is_not_sent(void **state)
{
    struct world world;
    (void)state;
    struct world_store store = world_open_one(&world);
    assert_int_equal(world_heartbeat(&world, store.heartbeat, store.segment, MIB), 0);
    mc_core_hold(world.core, world.now, false);
    mc_core_sent(world.core);
    world_pass(&world, 1);
    world.stuck = store.owner; /* the PING lies there */
    assert_int_equal(world_heartbeat(&world, store.heartbeat, store.segment, MIB), 0);
    for (unsigned i = 0; i < 3; i++) {
        mc_core_hold(world.core, world.now, false);
        world_pass(&world, 1);
    }
    mc_core_hold(world.core, world.now, true);
    world_pass(&world, 1000);
    assert_int_equal(world_heartbeat(&world, store.heartbeat, store.segment, MIB), 0);
    world_close_all(&world);
}

/* Who was seen to answer late has more time, but not for ever. */
static void test_slow_links_have_more_time(void **state)
{
    struct world world;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t one = world_client(&world, CLIENT);
    world.stuck = store.owner; /* its answers take this test's time */
    for (unsigned i = 0; i < 3; i++) {
        (void)world_heartbeat(&world, store.heartbeat, store.segment, MIB);
        run(&world, i == 1 ? 240 : 2);
        struct mc_frame frame = world_receive(&world, store.owner);
        assert_int_equal(frame.type, MC_MESSAGE_PING);
        answer_ping(&world, store.owner, frame.request_id);
        run(&world, 300);
    }
    complain(&world, one, store.segment);
    run(&world, 340);
    assert_int_equal(state_of(&world, store.segment), 0);
    run(&world, 660);
    assert_int_equal(state_of(&world, store.segment), 1); /* within a second, whatever the link is like */
    world_close_all(&world);
}

/* What the kernel has not brought there, or the owner's kernel has not brought here, is no silence of the owner. */
static void test_lost_packets_are_not_the_owners(void **state)
{
    static const struct {
        bool is_known, arrived, is_fresh, is_hidden;
    } cases[] = {
        {.is_known = false, .arrived = false, .is_hidden = true},
        {.is_known = true, .arrived = true, .is_hidden = true}, /* it was asked, nothing was lost: it does not answer */
        {.is_known = true, .arrived = false, .is_hidden = false},
        {.is_known = true, .arrived = true, .is_fresh = true, .is_hidden = false},
    };
    struct world world;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t one = world_client(&world, CLIENT);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (unsigned late = 0; late < 2; late++) {
            run(&world, MC_LOSSY_MS); /* what was lost before is forgotten */
            (void)world_heartbeat(&world, store.heartbeat, store.segment, MIB);
            complain(&world, one, store.segment);
            world.is_way_known = cases[i].is_known;
            world.way.arrived = cases[i].arrived;
            world.way.lost += cases[i].is_fresh;
            run(&world, MC_PROBE_LEAST_MS - 1);
            assert_int_equal(state_of(&world, store.segment), 0);
            run(&world, 1);
            assert_int_equal(state_of(&world, store.segment), cases[i].is_hidden);
            if (!cases[i].is_hidden) {
                run(&world, MC_PROBE_MOST_MS - MC_PROBE_LEAST_MS - 1);
                assert_int_equal(state_of(&world, store.segment), 0); /* there is time for a packet lost three times */
                run(&world, late * MC_PROBE_LEAST_MS);
                assert_int_equal(state_of(&world, store.segment), late); /* and an end of it */
            }
            assert_int_not_equal(answer_all(&world, store.owner), 0);
            assert_int_equal(state_of(&world, store.segment), 0);
        }
    }
    world_close_all(&world);
}

/* The loss was before the complaint: its owner's kernel may be waiting to send again what all answers wait behind. */
static void test_a_loss_before_the_probe_counts(void **state)
{
    struct world world;
    (void)state;
    struct world_store store = world_open_one(&world);
    uint64_t one = world_client(&world, CLIENT);
    world.is_way_known = true;
    world.way = (struct mc_core_way){.lost = 7, .arrived = true};
    (void)world_heartbeat(&world, store.heartbeat, store.segment, MIB);
    run(&world, 1000);
    complain(&world, one, store.segment);
    run(&world, MC_PROBE_MOST_MS - 1);
    assert_int_equal(state_of(&world, store.segment), 0);
    assert_int_not_equal(answer_all(&world, store.owner), 0);
    /* Seven, for long: nothing new. One that had only been thought lost is none. */
    run(&world, MC_LOSSY_MS);
    world.way.lost = 6;
    (void)world_heartbeat(&world, store.heartbeat, store.segment, MIB);
    complain(&world, one, store.segment);
    run(&world, MC_PROBE_LEAST_MS);
    assert_int_equal(state_of(&world, store.segment), 1);
    world_close_all(&world);
}

/* A master that is behind has not read what the owner has said. */
static void test_what_is_unread_may_be_the_answer(void **state)
{
    struct world world;
    (void)state;
    for (unsigned unread = 0; unread < 2; unread++) {
        struct world_store store = world_open_one(&world);
        uint64_t one = world_client(&world, CLIENT);
        world.is_way_known = true;
        world.way = (struct mc_core_way){.arrived = true, .unread = unread == 1};
        (void)world_heartbeat(&world, store.heartbeat, store.segment, MIB);
        run(&world, 1000);
        complain(&world, one, store.segment);
        run(&world, MC_PROBE_MOST_MS - 1);
        assert_int_equal(state_of(&world, store.segment), unread == 1 ? 0 : 1);
        assert_int_not_equal(answer_all(&world, store.owner), 0);
        assert_int_equal(state_of(&world, store.segment), 0);
        world_close_all(&world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ordering_client_reports),
        cmocka_unit_test(test_doubts_only_ask),
        cmocka_unit_test(test_who_accuses_many_is_named),
        cmocka_unit_test(test_a_lost_ping_hides_nobody),
        cmocka_unit_test(test_who_is_not_asked_yet_owes_nothing),
        cmocka_unit_test(test_heartbeats_while_nothing_is_sent),
        cmocka_unit_test(test_what_was_left_over_is_not_sent),
        cmocka_unit_test(test_slow_links_have_more_time),
        cmocka_unit_test(test_probe_without_answer),
        cmocka_unit_test(test_lost_packets_are_not_the_owners),
        cmocka_unit_test(test_a_loss_before_the_probe_counts),
        cmocka_unit_test(test_what_is_unread_may_be_the_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
