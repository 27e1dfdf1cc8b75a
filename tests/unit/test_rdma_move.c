/* Pairs that stand with another device of the peer than fits best, as that was down, and go back to it: over the fake
 * device. fake0 belongs to fake2, fake1 to fake3. */
#include "rdma_sides.h"

static bool is_up_at(const struct side *side, uint32_t device)
{
    struct mc_rdma_device_info info;
    mc_rdma_device_info(side->rdma, device, &info);
    return info.is_up;
}

/* The peer knows of it when this returns. */
static void peer_port(uint32_t device, bool is_up)
{
    fake_port(2 + device, is_up);
    for (unsigned i = 0; i < 2000 && is_up_at(&serving, device) != is_up; i++)
        usleep(1000);
    assert_true(is_up_at(&serving, device) == is_up);
}

/* How many pairs stand where they should. */
static uint32_t at_home(void)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < link_a->pair_count; i++)
        count += link_a->pairs[i].is_up && link_a->pairs[i].current.remote == link_a->pairs[i].device->number;
    return count;
}

/* Sets up what is due until `wanted` pairs are at home; each round moves bytes. */
static void rounds_until(uint32_t wanted)
{
    uint64_t until_ns = mc_clock_ns() + 20 * SECOND_NS;
    for (;;) {
        if (mc_rdma_link_due_ns(link_a) == 0)
            assert_true(exchange() >= 0);
        move_all();
        if (at_home() == wanted && mc_rdma_link_ready(link_a) == link_a->pair_count)
            return;
        assert_true(mc_clock_ns() < until_ns);
        usleep(1000);
    }
}

static void expect_both_carry(void)
{
    struct fake_counts before_all = fake_counts();
    move_all();
    struct fake_counts now = fake_counts();
    assert_true(now.bytes[0] > before_all.bytes[0] && now.bytes[1] > before_all.bytes[1]);
}

static void test_there_and_back(void **state)
{
    (void)state;
    asking.settings.pause_s = 1;
    start(4 << 20);
    assert_int_equal(at_home(), 0); /* not taken yet */
    move_all();
    assert_int_equal(at_home(), 4);
    assert_int_equal(mc_rdma_link_due_ns(link_a), UINT64_MAX);
    for (unsigned again = 0; again < 3; again++) { /* numbers in offers are used in turn */
        peer_port(0, false);
        rounds_until(2); /* those of fake0 are with fake3 now */
        expect_both_carry();
        assert_int_not_equal(mc_rdma_link_due_ns(link_a), UINT64_MAX);
        peer_port(0, true);
        rounds_until(4);
        expect_both_carry();
        assert_int_equal(mc_rdma_link_due_ns(link_a), UINT64_MAX);
    }
    finish();
}

/* As long as the device is down, asking for it costs nothing that stands, and is done ever less often. */
static void test_in_vain(void **state)
{
    (void)state;
    uint32_t tries = 0;
    start(1 << 20);
    move_all();
    peer_port(0, false);
    rounds_until(2);
    uint64_t qps = fake_counts().qps, until_ns = mc_clock_ns() + 7 * SECOND_NS / 10;
    while (mc_clock_ns() < until_ns) {
        if (mc_rdma_link_due_ns(link_a) == 0) {
            assert_int_equal(exchange(), 4);
            tries++;
        }
        assert_int_equal(mc_rdma_link_ready(link_a), 4);
        move_all();
        usleep(5000);
    }
    assert_true(tries >= 1 && tries <= 8); /* two pairs, after 100, 200, 400 ms */
    assert_int_equal(fake_counts().qps, qps);
    struct mc_rdma_counters counters;
    mc_rdma_counters_get(asking.rdma, &counters);
    assert_true(counters.pairs_failed <= 4); /* the first break, and no other */
    finish();
}

/* The peer's device was down when the link was opened, as its document said. */
static void test_down_at_first(void **state)
{
    (void)state;
    struct fake_device_config configs[4] = {fake_roce(0), fake_roce(1), fake_roce(2), fake_roce(3)};
    asking.settings.pause_s = 1;
    fake_reset(configs, 4);
    side_open(&asking, "fake0,fake1", 1 << 20);
    side_open(&serving, "fake2,fake3", 1 << 20);
    peer_port(1, false);
    open_link();
    assert_int_equal(exchange(), 4);
    move_all();
    assert_int_equal(at_home(), 2);
    peer_port(1, true);
    rounds_until(4);
    expect_both_carry();
    finish();
}

/* The peer's device was down for a while, and the way back to it is offered. */
static void offer_move(struct mc_buffer *offer)
{
    peer_port(0, false);
    rounds_until(2);
    peer_port(0, true);
    for (unsigned i = 0; i < 3000 && mc_rdma_link_due_ns(link_a) != 0; i++)
        usleep(1000);
    assert_int_equal(mc_rdma_link_offer(link_a, 0, offer), 1);
}

/* A move is offered and never answered, or answered too late to be of use: what stands goes on. */
static void test_no_answer(void **state)
{
    (void)state;
    start(1 << 20);
    move_all();
    struct mc_buffer offer = {0}, answer = {0};
    offer_move(&offer);
    move_all();
    assert_int_equal(mc_rdma_link_complete(link_a, mc_span(NULL, 0), mc_clock_ns() + SECOND_NS), 4);
    move_all();
    /* The peer makes its halves all the same, under the numbers that are not used. */
    assert_int_equal(mc_rdma_link_answer(serving.rdma, &link_b, mc_span(offer.data, offer.length), &answer), 0);
    move_all();
    assert_int_equal(mc_rdma_link_ready(link_a), 4);
    mc_buffer_free(&offer);
    mc_buffer_free(&answer);
    rounds_until(4);
    finish();
}

/* What stands breaks between the offer of a move and its answer, or once the move is ready. */
static void test_breaks_meanwhile(void **state)
{
    (void)state;
    struct mc_rdma_run run;
    for (unsigned when = 0; when < 2; when++) {
        settings_default();
        asking.settings.pause_s = 1;
        start(1 << 20);
        move_all();
        struct mc_buffer offer = {0}, answer = {0};
        offer_move(&offer);
        assert_int_equal(mc_rdma_link_answer(serving.rdma, &link_b, mc_span(offer.data, offer.length), &answer), 0);
        fake_cut(0, 3, true);
        struct mc_rdma_request one = request(MC_RDMA_WRITE, 0, 0, 1 << 20);
        if (when == 0)
            assert_int_equal(run_for(&one, 1, 5000, &run), 0);
        assert_true(mc_rdma_link_complete(link_a, mc_span(answer.data, answer.length), mc_clock_ns() + SECOND_NS) > 0);
        assert_int_equal(run_for(&one, 1, 5000, &run), 0);
        assert_memory_equal(serving.bytes, asking.bytes, 1 << 20);
        mc_buffer_free(&offer);
        mc_buffer_free(&answer);
        rounds_until(4);
        finish();
    }
}

/* The device that fits best takes every set-up, and nothing arrives by it: another of the peer's is used. */
static void test_fruitless(void **state)
{
    (void)state;
    asking.settings.pause_s = 1;
    start(1 << 20);
    move_all();
    fake_cut(0, 2, true);
    rounds_until(2);
    expect_both_carry();
    uint64_t until_ns = mc_clock_ns() + SECOND_NS / 2;
    while (mc_clock_ns() < until_ns) { /* the way home is tried, and does not work */
        if (mc_rdma_link_due_ns(link_a) == 0)
            assert_true(exchange() >= 0);
        move_all();
        usleep(1000);
    }
    rounds_until(2);
    fake_cut(0, 2, false);
    rounds_until(4);
    expect_both_carry();
    finish();
}

/* Ports of the peer go and come, and another thread sets up, while runs go on. */
static void test_moved_meanwhile(void **state)
{
    (void)state;
    struct mc_rdma_run run;
    asking.settings.pause_s = 0;
    start(1 << 18);
    pthread_t thread = repair_start();
    for (unsigned i = 0; i < 300; i++) {
        if (i % 3 == 0)
            fake_port(2 + i / 3 % 2, i / 6 % 2 != 0); /* never both down for long */
        if (i % 7 == 0)
            fake_fail_work(i % 2, i % 13, IBV_WC_RETRY_EXC_ERR);
        memset(asking.bytes, (int)i, 1 << 18);
        struct mc_rdma_request one = request(MC_RDMA_WRITE, 0, 0, 1 << 18);
        int rc = run_for(&one, 1, 5000, &run);
        assert_true(rc == 0 || rc == MC_ERR_TRANSFER_FAIL);
        if (rc == 0)
            assert_memory_equal(serving.bytes, asking.bytes, 1 << 18);
    }
    fake_port(2, true);
    fake_port(3, true);
    repair_stop(thread);
    finish();
}

/* As rdma_cm does it. */
static void test_by_cm(void **state)
{
    (void)state;
    asking.settings.setup = serving.settings.setup = MC_RDMA_SETUP_CM;
    asking.settings.pause_s = 1;
    start(1 << 20);
    move_all();
    peer_port(1, false);
    rounds_until(2);
    peer_port(1, true);
    rounds_until(4);
    expect_both_carry();
    finish();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_there_and_back, before),   cmocka_unit_test_setup(test_in_vain, before),
        cmocka_unit_test_setup(test_down_at_first, before),    cmocka_unit_test_setup(test_no_answer, before),
        cmocka_unit_test_setup(test_breaks_meanwhile, before), cmocka_unit_test_setup(test_fruitless, before),
        cmocka_unit_test_setup(test_moved_meanwhile, before),  cmocka_unit_test_setup(test_by_cm, before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
