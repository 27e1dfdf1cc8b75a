/* Rails whose neighbours do not answer: a driver sleeps in the kernel when a queue pair learns of their address. Each
 * fails alone, the others carry; nobody waits for it, and nothing is begun afresh. */
#include "rdma_sides.h"
#include "rdma/setup.h"

#define GRACE_NS 250000000ull

static uint64_t elapsed_ms(uint64_t start_ns)
{
    return (mc_clock_ns() - start_ns) / 1000000u;
}

/* Four rails: fake0 to fake3 ask, fake4 to fake7 serve, two pairs each. */
static void start_four(void)
{
    struct fake_device_config configs[8];
    for (uint32_t i = 0; i < 8; i++)
        configs[i] = fake_roce(i);
    start_with(configs, "fake0,fake1,fake2,fake3", "fake4,fake5,fake6,fake7", 8, 1 << 20);
    asking.rdma->grace_ns = serving.rdma->grace_ns = GRACE_NS;
}

/* Rounds until nothing is due or being set up any more. Pairs that stand. */
static int exchange_until_decided(void)
{
    int ready = -1;
    for (unsigned i = 0; i < 2000; i++) {
        bool is_pending = mc_rdma_setup_is_busy(link_a, UINT32_MAX);
        ready = exchange();
        pthread_mutex_lock(&link_a->lock);
        for (uint32_t j = 0; j < link_a->pair_count; j++)
            is_pending |= link_a->pairs[j].fresh_state == MC_RDMA_FRESH_PENDING ||
                          link_a->pairs[j].fresh_state == MC_RDMA_FRESH_CONNECTING;
        pthread_mutex_unlock(&link_a->lock);
        if (!is_pending)
            return (int)mc_rdma_link_ready(link_a);
        usleep(10000);
    }
    return ready;
}

static void expect_three_rails(void)
{
    struct fake_counts before = fake_counts();
    move_all();
    struct fake_counts after = fake_counts();
    for (uint32_t i = 0; i < 3; i++)
        assert_true(after.bytes[i] > before.bytes[i]);
    assert_int_equal(after.bytes[3], before.bytes[3]);
}

/* The server cannot reach one rail. */
static void test_one_silent_rail(void **state)
{
    (void)state;
    start_four();
    fake_slow_rtr(7, 3, 1000, ETIMEDOUT);
    uint64_t start_ns = mc_clock_ns();
    assert_int_equal(exchange(), 6);
    assert_true(elapsed_ms(start_ns) < 900);
    expect_three_rails();
    assert_int_equal(exchange_until_decided(), 6);
    assert_int_equal(fake_counts().slept, 1); /* for all pairs and GIDs of that address */
    /* The next link need not find that out again. */
    mc_rdma_link_close(link_a);
    mc_rdma_link_close(link_b);
    open_link();
    start_ns = mc_clock_ns();
    assert_int_equal(exchange(), 6);
    assert_true(elapsed_ms(start_ns) < 200);
    /* It answers again. */
    fake_slow_rtr(7, 3, 0, 0);
    for (unsigned i = 0; i < 2000 && mc_rdma_link_ready(link_a) < 8; i++) {
        (void)exchange();
        usleep(10000);
    }
    assert_int_equal(mc_rdma_link_ready(link_a), 8);
    move_all();
    finish();
}

/* It is we who cannot reach it. */
static void test_silent_for_the_asker(void **state)
{
    (void)state;
    start_four();
    fake_slow_rtr(3, 7, 1000, ETIMEDOUT);
    uint64_t start_ns = mc_clock_ns();
    assert_int_equal(exchange(), 6);
    assert_true(elapsed_ms(start_ns) < 900);
    expect_three_rails();
    assert_int_equal(exchange_until_decided(), 6);
    assert_true(fake_counts().slept <= 2); /* the other GIDs come at once, while it is remembered */
    finish();
}

/* All addresses take long: who asks again goes on with what is being set up. */
static void test_asked_again(void **state)
{
    (void)state;
    start_four();
    for (uint32_t i = 0; i < 4; i++)
        fake_slow_rtr(4 + i, i, 400, 0);
    struct mc_buffer offer = {0}, answer = {0};
    assert_int_equal(mc_rdma_link_offer(link_a, 1, &offer), 1);
    uint64_t start_ns = mc_clock_ns();
    assert_int_equal(mc_rdma_link_answer(serving.rdma, &link_b, mc_span(offer.data, offer.length), &answer), 0);
    assert_true(elapsed_ms(start_ns) < 300); /* as the asker said */
    assert_int_equal(mc_rdma_link_complete(link_a, mc_span(answer.data, answer.length), mc_clock_ns() + SECOND_NS), 0);
    assert_true(mc_rdma_link_due_ns(link_a) != UINT64_MAX);
    mc_buffer_free(&offer);
    mc_buffer_free(&answer);
    assert_int_equal(exchange_until_decided(), 8);
    assert_int_equal(fake_counts().qps_made, 16);
    assert_int_equal(fake_counts().slept, 8);
    move_all();
    finish();
}

/* Offers that name no time, as older askers send them, and strangers: the thread that answers waits for one, and not
 * for the next as well. */
static void test_offers_do_not_hold_the_thread(void **state)
{
    (void)state;
    start_four();
    for (uint32_t i = 0; i < 4; i++)
        fake_slow_rtr(4 + i, i, 600, 0);
    struct mc_buffer offer = {0}, answer = {0};
    struct mc_rdma_link *other = NULL;
    assert_int_equal(mc_rdma_link_offer(link_a, 1, &offer), 1);
    uint8_t *word = memmem(offer.data, offer.length, "\"wait\":", 7);
    if (word != NULL)
        memcpy(word, "\"tiaw\":", 7);
    uint64_t start_ns = mc_clock_ns();
    assert_int_equal(mc_rdma_link_answer(serving.rdma, &link_b, mc_span(offer.data, offer.length), &answer), 0);
    assert_true(elapsed_ms(start_ns) >= 600);
    answer.length = 0;
    start_ns = mc_clock_ns();
    assert_int_equal(mc_rdma_link_answer(serving.rdma, &other, mc_span(offer.data, offer.length), &answer), 0);
    assert_true(elapsed_ms(start_ns) < 400);
    mc_rdma_link_close(other);
    mc_buffer_free(&offer);
    mc_buffer_free(&answer);
    finish();
}

static _Atomic unsigned notes;

static void note(void *context)
{
    (void)context;
    notes++;
}

/* The asker leaves: what has not begun is not begun, and nobody waits for what has. */
static void test_asker_leaves(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 2; round++) {
        struct mc_buffer offer = {0};
        settings_default();
        start_four();
        for (uint32_t i = 0; i < 4; i++)
            fake_slow_rtr(4 + i, i, 600, 0);
        assert_int_equal(mc_rdma_link_offer(link_a, 1000, &offer), 1);
        uint64_t start_ns = mc_clock_ns();
        notes = 0;
        assert_int_equal(mc_rdma_link_serve(serving.rdma, &link_b, mc_span(offer.data, offer.length), note, NULL), 0);
        assert_true(mc_rdma_link_answer_due_ns(link_b) > start_ns);
        while (fake_counts().slept < 4)
            usleep(1000);
        if (round == 0) { /* hangs up */
            mc_rdma_link_close(link_b);
            link_b = NULL;
            assert_true(elapsed_ms(start_ns) < 500);
            usleep(1000000);
            assert_int_equal(notes, 0);
            assert_int_equal(fake_counts().qps, 8); /* its own */
        } else {                                    /* is silent for too long */
            link_b->wanted_until_ns = 0;
            mc_rdma_setup_wait(link_b, UINT32_MAX, mc_clock_ns() + 20 * SECOND_NS);
            assert_int_equal(mc_rdma_link_answer_due_ns(link_b), 0);
            assert_int_equal(fake_counts().qps, 8 + 4);
        }
        assert_int_equal(fake_counts().slept, 4);
        mc_buffer_free(&offer);
        finish();
    }
}

/* An offer of other halves, while the first are being set up: only those are of use. */
static void test_offered_afresh(void **state)
{
    struct mc_buffer offer = {0}, answer = {0};
    (void)state;
    start_four();
    for (uint32_t i = 0; i < 4; i++)
        fake_slow_rtr(4 + i, i, 300, 0);
    assert_int_equal(mc_rdma_link_offer(link_a, 1, &offer), 1);
    assert_int_equal(mc_rdma_link_answer(serving.rdma, &link_b, mc_span(offer.data, offer.length), &answer), 0);
    while (fake_counts().slept < 4)
        usleep(1000);
    (void)mc_rdma_link_complete(link_a, mc_span(NULL, 0), mc_clock_ns() + SECOND_NS); /* the answer is lost */
    assert_int_equal(exchange_until_decided(), 8);
    move_all();
    mc_buffer_free(&offer);
    mc_buffer_free(&answer);
    finish();
}

int main(void)
{
    mc_log_set_level(MC_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_one_silent_rail, before),
        cmocka_unit_test_setup(test_silent_for_the_asker, before),
        cmocka_unit_test_setup(test_asked_again, before),
        cmocka_unit_test_setup(test_offers_do_not_hold_the_thread, before),
        cmocka_unit_test_setup(test_asker_leaves, before),
        cmocka_unit_test_setup(test_offered_afresh, before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
