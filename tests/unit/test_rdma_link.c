/* Runs over links between two sides of one process: every byte compared, everything that can break broken. */
#include "rdma_sides.h"

/* ---- moving ---- */

static void test_sizes(void **state)
{
    (void)state;
    static const size_t sizes[] = {0,     1,     2,     63,    64,    65,      4095,   4096,
                                   65535, 65536, 65537, 81920, 81921, 1000003, 8 << 20};
    start(9 << 20);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct mc_rdma_run run;
        size_t local = 17 * i, remote = 4099 * i;
        uint8_t after = serving.bytes[remote + sizes[i]];
        struct mc_rdma_request one = request(MC_RDMA_WRITE, local, remote, sizes[i]);
        assert_int_equal(run_for(&one, 1, 5000, &run), 0);
        assert_memory_equal(serving.bytes + remote, asking.bytes + local, sizes[i]);
        assert_int_equal(serving.bytes[remote + sizes[i]], after);
        assert_false(run.is_unsure);
        memset(serving.bytes + remote, (int)i + 1, sizes[i]);
        one = request(MC_RDMA_READ, local, remote, sizes[i]);
        assert_int_equal(run_for(&one, 1, 5000, &run), 0);
        assert_memory_equal(serving.bytes + remote, asking.bytes + local, sizes[i]);
    }
    finish();
}

static void test_spread_and_sparse(void **state)
{
    (void)state;
    start(16 << 20);
    move_all();
    struct fake_counts counts = fake_counts();
    assert_true(counts.bytes[0] > 12u << 20 && counts.bytes[1] > 12u << 20);
    assert_true(counts.signaled * 6 <= counts.works);
    struct mc_rdma_request one = request(MC_RDMA_WRITE, 0, 0, 64);
    struct mc_rdma_run run;
    uint64_t inlined = counts.inlined;
    assert_int_equal(run_for(&one, 1, 1000, &run), 0);
    assert_int_equal(fake_counts().inlined, inlined + 1);
    one = request(MC_RDMA_WRITE, 0, 0, 65);
    assert_int_equal(run_for(&one, 1, 1000, &run), 0);
    assert_int_equal(fake_counts().inlined, inlined + 1);
    finish();
}

static void test_batch_of_both(void **state)
{
    (void)state;
    struct mc_rdma_request requests[128];
    struct mc_rdma_run run;
    start(1 << 20);
    uint8_t *a = malloc(asking.length), *b = malloc(asking.length);
    memcpy(a, asking.bytes, asking.length);
    memcpy(b, serving.bytes, serving.length);
    for (size_t i = 0; i < 128; i++)
        requests[i] = request(i % 2 == 0 ? MC_RDMA_WRITE : MC_RDMA_READ, i * 8192, i * 8192, 4096 + i % 2);
    assert_int_equal(run_for(requests, 128, 1000, &run), 0);
    for (size_t i = 0; i < 128; i++) {
        const uint8_t *from = i % 2 == 0 ? a : b, *to = i % 2 == 0 ? serving.bytes : asking.bytes;
        assert_int_equal(requests[i].result, 0);
        assert_memory_equal(to + i * 8192, from + i * 8192, 4096 + i % 2);
    }
    struct mc_rdma_counters counters;
    mc_rdma_counters_get(asking.rdma, &counters);
    assert_int_equal(counters.written_bytes, 64 * 4096);
    assert_int_equal(counters.read_bytes, 64 * 4097);
    assert_int_equal(counters.pairs_made, 4);
    free(a);
    free(b);
    finish();
}

static void test_limits(void **state)
{
    (void)state;
    struct fake_device_config configs[2] = {fake_roce(0), fake_roce(1)};
    configs[0].max_mr_size = 3 << 20; /* pieces end at 2 MiB */
    configs[0].max_qp_wr = 5;
    configs[0].max_cqe = 7;
    configs[0].max_inline = -1;
    configs[1].mtu = IBV_MTU_1024; /* #3868: the smaller of both is used */
    start_with(configs, "fake0", "fake1", 2, (7 << 20) + 5);
    assert_int_equal(mc_rdma_memory_local(asking.memory).count, 4);
    assert_int_equal(mc_rdma_memory_remote(serving.memory).count, 1);
    assert_true(fake_counts().biggest_mr_mib <= 7);
    assert_int_equal(exchange(), 2);
    move_all();
    assert_int_equal(fake_counts().inlined, 0);
    finish();
}

/* ---- what is wrong with requests ---- */

static void test_bad_requests(void **state)
{
    (void)state;
    struct mc_rdma_run run;
    start(1 << 20);
    struct mc_rdma_request requests[7];
    for (size_t i = 0; i < 7; i++)
        requests[i] = request(MC_RDMA_WRITE, 0, 0, 4096);
    requests[0].remote += (1 << 20) - 4095;
    requests[1].local = asking.bytes - 1;
    requests[2].length = UINT64_MAX;
    requests[3].local_chunks.count = 0;
    requests[4].remote = UINT64_MAX - 100;
    requests[5].opcode = (enum mc_rdma_opcode)7;
    assert_int_equal(run_for(requests, 7, 1000, &run), MC_ERR_INVALID_PARAMS);
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(requests[i].result, MC_ERR_INVALID_PARAMS);
    assert_int_equal(requests[6].result, 0);
    assert_int_equal(run.failed_pairs, 0);
    assert_int_equal(run_for(NULL, 0, 1000, &run), 0);
    finish();
}

/* A key that the peer has taken back breaks one queue pair, fails one request, and no other. */
static void test_refused(void **state)
{
    (void)state;
    struct mc_rdma_run run;
    start(1 << 20);
    struct mc_rdma_chunk stale = mc_rdma_memory_remote(serving.memory).list[0];
    for (uint32_t i = 0; i < MC_RDMA_DEVICES_MAX; i++)
        stale.keys[i] ^= 0x5000;
    struct mc_rdma_request requests[9];
    for (size_t i = 0; i < 9; i++)
        requests[i] = request(MC_RDMA_READ, i * 65536, i * 65536, 65536);
    requests[4].remote_chunks = (struct mc_rdma_chunks){&stale, 1};
    assert_int_equal(run_for(requests, 9, 1000, &run), MC_ERR_INVALID_PARAMS);
    for (size_t i = 0; i < 9; i++)
        assert_int_equal(requests[i].result, i == 4 ? MC_ERR_INVALID_PARAMS : 0);
    assert_int_equal(run.failed_pairs, 1);
    assert_int_equal(mc_rdma_link_ready(link_a), 3);
    assert_int_equal(exchange(), 4); /* at once */
    move_all();
    finish();
}

static void test_not_writable(void **state)
{
    (void)state;
    struct mc_rdma_run run;
    start(1 << 16);
    struct mc_rdma_range range = {
        .address = serving.bytes, .length = 4096, .dmabuf_fd = -1, .is_remote_readable = true, .numa_node = -1};
    struct mc_rdma_memory *memory;
    assert_int_equal(mc_rdma_memory_register(serving.rdma, &range, &memory), 0);
    struct mc_rdma_request one = request(MC_RDMA_WRITE, 0, 0, 4096);
    one.remote_chunks = mc_rdma_memory_remote(memory);
    uint8_t was = serving.bytes[0];
    assert_int_equal(run_for(&one, 1, 1000, &run), MC_ERR_INVALID_PARAMS);
    assert_int_equal(serving.bytes[0], was);
    one = request(MC_RDMA_READ, 0, 0, 4096);
    one.remote_chunks = mc_rdma_memory_remote(memory);
    assert_int_equal(run_for(&one, 1, 1000, &run), 0);
    mc_rdma_memory_unregister(memory);
    finish();
}

/* ---- what breaks ---- */

static void test_completion_error(void **state)
{
    (void)state;
    struct mc_rdma_run run;
    start(8 << 20);
    fake_fail_work(0, 20, IBV_WC_RETRY_EXC_ERR);
    struct mc_rdma_request one = request(MC_RDMA_WRITE, 0, 0, 8 << 20);
    assert_int_equal(run_for(&one, 1, 5000, &run), 0);
    assert_memory_equal(serving.bytes, asking.bytes, 8 << 20);
    assert_int_equal(run.failed_pairs, 1);
    assert_true(run.retried > 0 && run.is_unsure);
    assert_int_equal(mc_rdma_link_ready(link_a), 3);
    assert_int_equal(mc_rdma_link_due_ns(link_a), 0);
    struct mc_buffer text = {0};
    rdma_link_describe(link_a, &text);
    mc_buffer_put_u8(&text, 0);
    assert_non_null(strstr((char *)text.data, "the peer does not answer"));
    mc_buffer_free(&text);
    assert_int_equal(exchange(), 4);
    assert_int_equal(mc_rdma_link_due_ns(link_a), UINT64_MAX);
    move_all();
    finish();
}

static void test_post_fails(void **state)
{
    (void)state;
    struct mc_rdma_run run;
    start(8 << 20);
    fake_fail_post(1, 19);
    struct mc_rdma_request one = request(MC_RDMA_READ, 0, 0, 8 << 20);
    assert_int_equal(run_for(&one, 1, 5000, &run), 0);
    assert_memory_equal(serving.bytes, asking.bytes, 8 << 20);
    assert_int_equal(run.failed_pairs, 1);
    assert_false(run.is_unsure); /* READs leave nothing behind at the peer */
    finish();
}

/* Both directions of both cables: nothing gets through, and the run says so long before its deadline. */
static void test_lost_peer(void **state)
{
    (void)state;
    struct mc_rdma_run run;
    start(1 << 20);
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t j = 2; j < 4; j++)
            fake_cut(i, j, true);
    uint64_t start_ns = mc_clock_ns();
    struct mc_rdma_request one = request(MC_RDMA_WRITE, 0, 0, 1 << 20);
    assert_int_equal(run_for(&one, 1, 5000, &run), MC_ERR_TRANSFER_FAIL);
    assert_true(mc_clock_ns() - start_ns < SECOND_NS);
    assert_int_equal(run.failed_pairs, 4);
    assert_int_equal(mc_rdma_link_ready(link_a), 0);
    assert_int_equal(run_for(&one, 1, 5000, &run), MC_ERR_TRANSFER_FAIL);
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t j = 2; j < 4; j++)
            fake_cut(i, j, false);
    assert_int_equal(exchange(), 4);
    move_all();
    finish();
}

/* Held work completes neither well nor badly: the stall moves it to the other device, the deadline ends it. */
static void test_stall(void **state)
{
    (void)state;
    struct mc_rdma_run run;
    start(4 << 20);
    fake_hold(0);
    struct mc_rdma_request one = request(MC_RDMA_WRITE, 0, 0, 4 << 20);
    assert_int_equal(run_for(&one, 1, 5000, &run), 0);
    assert_memory_equal(serving.bytes, asking.bytes, 4 << 20);
    assert_int_equal(run.failed_pairs, 2);
    assert_true(run.is_unsure);
    uint8_t *kept = malloc(4 << 20);
    memcpy(kept, serving.bytes, 4 << 20);
    memset(asking.bytes, 0, 4 << 20);
    fake_release(0); /* what was cut off stays cut off */
    assert_memory_equal(serving.bytes, kept, 4 << 20);
    free(kept);
    finish();
}

static void test_deadline(void **state)
{
    (void)state;
    struct mc_rdma_run run;
    start(1 << 20);
    fake_hold(0);
    fake_hold(1);
    struct mc_rdma_request requests[2] = {request(MC_RDMA_READ, 0, 0, 1 << 19),
                                          request(MC_RDMA_READ, 1 << 19, 0, 1 << 19)};
    uint8_t *kept = malloc(1 << 20);
    memcpy(kept, asking.bytes, 1 << 20);
    uint64_t start_ns = mc_clock_ns();
    assert_int_equal(run_for(requests, 2, 60, &run), MC_ERR_RPC_TIMEOUT);
    uint64_t took_ns = mc_clock_ns() - start_ns;
    assert_true(took_ns >= 60000000u && took_ns < SECOND_NS);
    assert_int_equal(requests[1].result, MC_ERR_RPC_TIMEOUT);
    fake_release(0);
    fake_release(1);
    assert_memory_equal(asking.bytes, kept, 1 << 20); /* nothing touches it after the return */
    free(kept);
    assert_int_equal(run_for(requests, 2, 0, &run), MC_ERR_RPC_TIMEOUT);
    assert_int_equal(exchange(), 4);
    move_all();
    finish();
}

static void *release_later(void *argument)
{
    (void)argument;
    usleep(30000);
    fake_release(0);
    fake_release(1);
    return NULL;
}

/* Nobody calls a pair stalled that may be sending a lost packet again. */
static void test_patience(void **state)
{
    (void)state;
    struct mc_rdma_run run = {.deadline_ns = mc_clock_ns() + 20 * SECOND_NS, .stall_ns = 1000000};
    pthread_t thread;
    start(1 << 20);
    fake_hold(0);
    fake_hold(1);
    pthread_create(&thread, NULL, release_later, NULL);
    struct mc_rdma_request one = request(MC_RDMA_WRITE, 0, 0, 1 << 20);
    assert_int_equal(mc_rdma_link_run(link_a, &one, 1, &run), 0);
    pthread_join(thread, NULL);
    assert_int_equal(run.failed_pairs, 0);
    assert_false(run.is_unsure);
    finish();
}

/* A timeout of the devices that is longer than usual makes the default longer. */
static void test_patience_by_settings(void **state)
{
    struct mc_rdma_settings settings;
    (void)state;
    mc_rdma_settings_read(&settings);
    assert_int_equal(settings.stall_ms, 2000);
    assert_true(mc_rdma_patience_ns(&settings) > 500000000 && mc_rdma_patience_ns(&settings) < 700000000);
    setenv("MC_RDMA_ACK_TIMEOUT", "18", 1);
    mc_rdma_settings_read(&settings);
    assert_int_equal(settings.stall_ms, 8590);
    setenv("MC_RDMA_STALL_MS", "3000", 1);
    mc_rdma_settings_read(&settings);
    assert_int_equal(settings.stall_ms, 3000);
    unsetenv("MC_RDMA_STALL_MS");
    unsetenv("MC_RDMA_ACK_TIMEOUT");
}

/* The caller sleeps on completion channels, and is woken. */
static void test_woken(void **state)
{
    (void)state;
    struct mc_rdma_run run;
    start(1 << 20);
    for (unsigned i = 0; i < 3; i++) {
        pthread_t thread;
        fake_hold(0);
        fake_hold(1);
        memset(serving.bytes, (int)i, 1 << 20);
        pthread_create(&thread, NULL, release_later, NULL);
        struct mc_rdma_request one = request(MC_RDMA_READ, 0, 0, 1 << 20);
        assert_int_equal(run_for(&one, 1, 5000, &run), 0);
        pthread_join(thread, NULL);
        assert_memory_equal(asking.bytes, serving.bytes, 1 << 20);
        assert_int_equal(run.failed_pairs, 0);
    }
    finish();
}

#define WAITING 6u

struct waiting {
    struct mc_rdma_link *asking, *serving;
    pthread_t thread;
    uint64_t wait_ns;
    _Atomic bool is_over;
    bool was_woken;
};

static void *wait_for_event(void *argument)
{
    struct waiting *one = argument;
    one->was_woken = mc_rdma_wait(one->asking, mc_clock_ns() + one->wait_ns);
    one->is_over = true;
    return NULL;
}

/* Work of that link completes, and its queue tells of it. */
static void complete_one(const struct mc_rdma_link *link)
{
    const struct mc_verbs *verbs = link->rdma->verbs;
    const struct mc_rdma_chunk *local = mc_rdma_memory_local(asking.memory).list;
    const struct mc_rdma_chunk *remote = mc_rdma_memory_remote(serving.memory).list;
    struct ibv_sge part = {.addr = local->address, .length = 64, .lkey = local->keys[0]};
    struct ibv_send_wr *bad, work = {.wr_id = UINT64_MAX, /* of no pair */
                                     .sg_list = &part,
                                     .num_sge = 1,
                                     .opcode = IBV_WR_RDMA_WRITE,
                                     .send_flags = IBV_SEND_SIGNALED,
                                     .wr.rdma = {remote->address, remote->keys[0]}};
    assert_int_equal(verbs->req_notify_cq(link->queues[0].cq), 0);
    assert_int_equal(verbs->post_send(link->pairs[0].current.qp, &work, &bad), 0);
}

static void expect_over(struct waiting *one, bool was_woken)
{
    for (unsigned i = 0; i < 20000 && !one->is_over; i++)
        usleep(1000);
    assert_true(one->is_over);
    pthread_join(one->thread, NULL);
    assert_int_equal(one->was_woken, was_woken);
}

/* The links of many callers share a device's channel: each hears of its own work, whoever leads when it comes, and
 * whoever left before. */
static void test_each_is_woken(void **state)
{
    static const unsigned order[] = {3, 0, 5, 1, 4};
    struct waiting all[WAITING];
    struct mc_rdma_run run;
    (void)state;
    start(1 << 16);
    for (unsigned i = 0; i < WAITING; i++) {
        struct mc_rdma_request one = request(MC_RDMA_WRITE, 0, 0, 4096);
        if (i > 0) {
            open_link();
            assert_int_equal(exchange(), 4);
        }
        assert_int_equal(run_for(&one, 1, 5000, &run), 0);
        all[i] = (struct waiting){.asking = link_a, .serving = link_b, .wait_ns = (i == 2 ? 1 : 100) * SECOND_NS / 2};
        link_a->has_event = false; /* of that run */
        pthread_create(&all[i].thread, NULL, wait_for_event, &all[i]);
        for (bool is_waiting = false; !is_waiting && !all[i].is_over; usleep(100)) {
            pthread_mutex_lock(&asking.rdma->wait_lock);
            is_waiting = asking.rdma->is_led && (i == 0 || asking.rdma->waiting == link_a);
            pthread_mutex_unlock(&asking.rdma->wait_lock);
        }
    }
    expect_over(&all[2], false); /* it was not its turn */
    for (unsigned i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
        unsigned over = 0;
        complete_one(all[order[i]].asking);
        expect_over(&all[order[i]], true);
        for (unsigned j = 0; j < WAITING; j++)
            over += all[j].is_over;
        assert_int_equal(over, i + 2);
    }
    assert_false(asking.rdma->is_led);
    assert_null(asking.rdma->waiting);
    complete_one(all[1].asking); /* nobody waits for that: it goes with its link */
    for (unsigned i = 0; i < WAITING - 1; i++) {
        mc_rdma_link_close(all[i].asking);
        mc_rdma_link_close(all[i].serving);
    }
    finish();
}

static void wait_for_version(struct mc_rdma *rdma, uint64_t before_version)
{
    for (unsigned i = 0; i < 2000 && mc_rdma_version(rdma) == before_version; i++)
        usleep(1000);
    assert_int_not_equal(mc_rdma_version(rdma), before_version);
}

static void *pull_cable(void *argument)
{
    (void)argument;
    usleep(20000);
    fake_port(0, false);
    return NULL;
}

static void test_port_down(void **state)
{
    (void)state;
    struct mc_rdma_run run;
    asking.settings.stall_ms = 60000; /* the event alone must do it */
    start(4 << 20);
    pthread_t thread;
    fake_hold(0);
    pthread_create(&thread, NULL, pull_cable, NULL);
    struct mc_rdma_request one = request(MC_RDMA_WRITE, 0, 0, 4 << 20);
    assert_int_equal(run_for(&one, 1, 5000, &run), 0);
    pthread_join(thread, NULL);
    assert_memory_equal(serving.bytes, asking.bytes, 4 << 20);
    assert_int_equal(run.failed_pairs, 2);
    assert_int_equal(mc_rdma_link_ready(link_a), 2);
    assert_int_equal(mc_rdma_link_due_ns(link_a), UINT64_MAX); /* not while the port is down */
    assert_int_equal(exchange(), 0);
    fake_release(0);
    uint64_t version = mc_rdma_version(asking.rdma);
    fake_port(0, true);
    wait_for_version(asking.rdma, version);
    assert_int_equal(exchange(), 4);
    uint64_t bytes = fake_counts().bytes[0];
    move_all();
    assert_true(fake_counts().bytes[0] > bytes);
    struct mc_rdma_counters counters;
    mc_rdma_counters_get(asking.rdma, &counters);
    assert_int_equal(counters.port_downs, 1);
    assert_int_equal(counters.port_ups, 1);
    finish();
}

static void test_device_lost(void **state)
{
    (void)state;
    start(1 << 20);
    uint64_t version = mc_rdma_version(asking.rdma);
    fake_lose_device(1);
    wait_for_version(asking.rdma, version);
    move_all();
    assert_int_equal(mc_rdma_link_ready(link_a), 2);
    struct mc_rdma_device_info info;
    mc_rdma_device_info(asking.rdma, 1, &info);
    assert_false(info.is_up);
    finish();
}

static void test_gid_change(void **state)
{
    (void)state;
    start(1 << 20);
    struct mc_gid_row row = fake_roce(0).rows[0];
    row.gid[15] = 77;
    uint64_t version = mc_rdma_version(asking.rdma);
    fake_set_gids(0, &row, 1);
    wait_for_version(asking.rdma, version);
    move_all(); /* by the other device */
    assert_int_equal(mc_rdma_link_ready(link_a), 2);
    assert_int_equal(exchange(), 4);
    uint64_t bytes = fake_counts().bytes[0];
    move_all();
    assert_true(fake_counts().bytes[0] > bytes);
    finish();
}

/* The peer's half goes away, as when its process has let go of us: no answer any more; and comes back. */
static void test_peer_closes(void **state)
{
    (void)state;
    struct mc_rdma_run run;
    start(1 << 20);
    mc_rdma_link_close(link_b);
    link_b = NULL;
    struct mc_rdma_request one = request(MC_RDMA_WRITE, 0, 0, 1 << 20);
    uint8_t was = serving.bytes[5];
    assert_int_equal(run_for(&one, 1, 1000, &run), MC_ERR_TRANSFER_FAIL);
    assert_int_equal(serving.bytes[5], was);
    assert_int_equal(exchange(), 4);
    move_all();
    finish();
}

int main(void)
{
    mc_log_set_level(MC_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_sizes, before),         cmocka_unit_test_setup(test_spread_and_sparse, before),
        cmocka_unit_test_setup(test_batch_of_both, before), cmocka_unit_test_setup(test_limits, before),
        cmocka_unit_test_setup(test_bad_requests, before),  cmocka_unit_test_setup(test_refused, before),
        cmocka_unit_test_setup(test_not_writable, before),  cmocka_unit_test_setup(test_completion_error, before),
        cmocka_unit_test_setup(test_post_fails, before),    cmocka_unit_test_setup(test_lost_peer, before),
        cmocka_unit_test_setup(test_stall, before),         cmocka_unit_test_setup(test_deadline, before),
        cmocka_unit_test_setup(test_patience, before),      cmocka_unit_test(test_patience_by_settings),
        cmocka_unit_test_setup(test_woken, before),         cmocka_unit_test_setup(test_each_is_woken, before),
        cmocka_unit_test_setup(test_port_down, before),     cmocka_unit_test_setup(test_device_lost, before),
        cmocka_unit_test_setup(test_gid_change, before),    cmocka_unit_test_setup(test_peer_closes, before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
