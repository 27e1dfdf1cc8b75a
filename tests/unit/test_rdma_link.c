/* Links between two sides of one process over the fake device: every byte compared, everything that can break broken.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "env/clock.h"
#include "env/log.h"
#include "fake_verbs.h"
#include "rdma/inside.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#define SECOND_NS 1000000000ull

struct side {
    struct mc_rdma *rdma;
    struct mc_rdma_settings settings;
    uint8_t *bytes;
    size_t length;
    struct mc_rdma_memory *memory;
};
static struct side asking, serving;
static struct mc_rdma_link *link_a, *link_b;

/* ---- set-up ---- */

static void side_open(struct side *side, const char *filter, size_t length)
{
    struct mc_rdma_options options = {.verbs = fake_verbs(), .settings = &side->settings, .filter = filter};
    assert_int_equal(mc_rdma_open(&options, &side->rdma), 0);
    side->length = length;
    side->bytes = calloc(1, length);
    struct mc_rdma_range range = {.address = side->bytes,
                                  .length = length,
                                  .dmabuf_fd = -1,
                                  .is_remote_readable = true,
                                  .is_remote_writable = true,
                                  .numa_node = -1};
    assert_int_equal(mc_rdma_memory_register(side->rdma, &range, &side->memory), 0);
}

static void side_close(struct side *side)
{
    mc_rdma_memory_unregister(side->memory);
    mc_rdma_close(side->rdma);
    free(side->bytes);
    memset(side, 0, sizeof(*side));
}

static void settings_default(void)
{
    mc_rdma_settings_read(&asking.settings);
    asking.settings.stall_ms = 100;
    serving.settings = asking.settings;
}

/* Offer, answer, complete; what complete says. */
static int exchange(void)
{
    struct mc_buffer offer = {0}, answer = {0};
    int rc = mc_rdma_link_offer(link_a, &offer);
    if (rc == 1) {
        (void)mc_rdma_link_answer(serving.rdma, &link_b, mc_span(offer.data, offer.length), &answer);
        rc = mc_rdma_link_complete(link_a, mc_span(answer.data, answer.length), mc_clock_ns() + SECOND_NS);
    }
    mc_buffer_free(&offer);
    mc_buffer_free(&answer);
    return rc;
}

static void open_link(void)
{
    struct mc_rdma_peer_device devices[MC_RDMA_DEVICES_MAX];
    struct mc_buffer text = {0};
    mc_rdma_put_devices(serving.rdma, &text);
    int count = mc_rdma_parse_devices(mc_span(text.data, text.length), devices, MC_RDMA_DEVICES_MAX);
    mc_buffer_free(&text);
    assert_true(count > 0);
    struct mc_rdma_link_options options = {.devices = devices, .device_count = (uint32_t)count};
    assert_int_equal(mc_rdma_link_open(asking.rdma, &options, &link_a), 0);
    link_b = NULL;
}

static void start_with(const struct fake_device_config *configs, const char *a, const char *b, uint32_t count,
                       size_t length)
{
    fake_reset(configs, count);
    side_open(&asking, a, length);
    side_open(&serving, b, length);
    for (size_t i = 0; i < length; i++) {
        asking.bytes[i] = (uint8_t)(i * 7 + i / 251);
        serving.bytes[i] = (uint8_t)(i * 13 + i / 241 + 1);
    }
    open_link();
}

/* Two devices on each side, two pairs a device. */
static void start(size_t length)
{
    struct fake_device_config configs[4] = {fake_roce(0), fake_roce(1), fake_roce(2), fake_roce(3)};
    start_with(configs, "fake0,fake1", "fake2,fake3", 4, length);
    assert_int_equal(exchange(), 4);
}

static void finish(void)
{
    mc_rdma_link_close(link_a);
    if (link_b != NULL)
        mc_rdma_link_close(link_b);
    side_close(&asking);
    side_close(&serving);
    struct fake_counts counts = fake_counts();
    assert_int_equal(counts.contexts + counts.pds + counts.mrs + counts.cqs + counts.channels + counts.qps + counts.ids,
                     0);
    assert_int_equal(counts.send_overflows + counts.cq_overflows + counts.bad_posts + counts.late_events, 0);
}

static struct mc_rdma_request request(enum mc_rdma_opcode opcode, size_t local, size_t remote, size_t length)
{
    return (struct mc_rdma_request){.opcode = opcode,
                                    .local = asking.bytes + local,
                                    .remote = (uintptr_t)serving.bytes + remote,
                                    .length = length,
                                    .local_chunks = mc_rdma_memory_local(asking.memory),
                                    .remote_chunks = mc_rdma_memory_remote(serving.memory)};
}

static int run_for(struct mc_rdma_request *requests, size_t count, uint64_t ms, struct mc_rdma_run *run)
{
    *run = (struct mc_rdma_run){.deadline_ns = mc_clock_ns() + ms * 1000000u};
    return mc_rdma_link_run(link_a, requests, count, run);
}

/* Writes and reads back all of it; compares. */
static void move_all(void)
{
    struct mc_rdma_run run;
    uint8_t *kept = malloc(asking.length);
    memcpy(kept, asking.bytes, asking.length);
    struct mc_rdma_request one = request(MC_RDMA_WRITE, 0, 0, asking.length);
    assert_int_equal(run_for(&one, 1, 5000, &run), 0);
    assert_memory_equal(serving.bytes, kept, asking.length);
    memset(asking.bytes, 0, asking.length);
    one = request(MC_RDMA_READ, 0, 0, asking.length);
    assert_int_equal(run_for(&one, 1, 5000, &run), 0);
    assert_memory_equal(asking.bytes, kept, asking.length);
    free(kept);
}

static int before(void **state)
{
    (void)state;
    settings_default();
    return 0;
}

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
    mc_rdma_link_describe(link_a, &text);
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

/* ---- set-up ---- */

static void test_infiniband(void **state)
{
    (void)state;
    struct fake_device_config configs[2] = {fake_roce(0), fake_roce(1)};
    for (uint32_t i = 0; i < 2; i++) {
        configs[i].is_infiniband = true;
        configs[i].lid = (uint16_t)(i + 5);
        configs[i].rows[0].type = MC_GID_INFINIBAND;
        memcpy(configs[i].rows[0].gid, (uint8_t[]){0xfe, 0x80, [8] = 2, [15] = (uint8_t)(i + 1)}, MC_GID_BYTES);
    }
    start_with(configs, "fake0", "fake1", 2, 1 << 20);
    assert_int_equal(exchange(), 2);
    move_all(); /* the fake takes a LID without GRH only if it is the peer's */
    finish();
}

static void test_iwarp(void **state)
{
    (void)state;
    struct fake_device_config configs[2] = {fake_roce(0), fake_roce(1)};
    configs[0].is_iwarp = configs[1].is_iwarp = true;
    start_with(configs, "fake0", "fake1", 2, 1 << 20);
    assert_int_equal(exchange(), 2);
    move_all();
    struct mc_rdma_run run;
    fake_fail_work(0, 3, IBV_WC_RETRY_EXC_ERR);
    struct mc_rdma_request one = request(MC_RDMA_WRITE, 0, 0, 1 << 20);
    assert_int_equal(run_for(&one, 1, 1000, &run), 0);
    assert_int_equal(run.failed_pairs, 1);
    assert_int_equal(exchange(), 2);
    move_all();
    finish();
}

static void test_cm_on_roce(void **state)
{
    (void)state;
    struct fake_device_config configs[2] = {fake_roce(0), fake_roce(1)};
    asking.settings.setup = serving.settings.setup = MC_RDMA_SETUP_CM;
    start_with(configs, "fake0", "fake1", 2, 1 << 20);
    fake_cut(0, 1, true);
    assert_int_equal(exchange(), MC_ERR_TRANSFER_FAIL);
    fake_cut(0, 1, false);
    assert_int_equal(exchange(), 2);
    move_all();
    finish();
}

static void test_setup_differs(void **state)
{
    (void)state;
    struct fake_device_config configs[2] = {fake_roce(0), fake_roce(1)};
    asking.settings.setup = MC_RDMA_SETUP_CM;
    start_with(configs, "fake0", "fake1", 2, 4096);
    assert_int_equal(exchange(), MC_ERR_TRANSFER_FAIL);
    assert_null(link_b);
    finish();
}

static void test_no_common_fabric(void **state)
{
    (void)state;
    struct fake_device_config configs[2] = {fake_roce(0), fake_roce(1)};
    fake_reset(configs, 2);
    side_open(&asking, "fake0", 4096);
    struct mc_rdma_peer_device peer = {.name = "ib0", .lid = 3, .fabric = MC_RDMA_INFINIBAND, .is_up = true};
    struct mc_rdma_link_options options = {.devices = &peer, .device_count = 1};
    assert_int_equal(mc_rdma_link_open(asking.rdma, &options, &link_a), MC_ERR_NOT_SUPPORTED);
    options.device_count = 0;
    assert_int_equal(mc_rdma_link_open(asking.rdma, &options, &link_a), MC_ERR_NOT_SUPPORTED);
    side_close(&asking);
    assert_int_equal(fake_counts().qps + fake_counts().cqs, 0);
}

/* Row 0 does not work, though nothing says so (#204, #1066): another is tried, by both sides. */
static void test_other_gid(void **state)
{
    (void)state;
    for (uint32_t bad = 0; bad < 2; bad++) {
        struct fake_device_config configs[2] = {fake_roce(0), fake_roce(1)};
        for (uint32_t i = 0; i < 2; i++) {
            configs[i].rows[1] = configs[i].rows[0];
            configs[i].rows[1].index = 1;
            configs[i].rows[1].gid[13] = 9;
            configs[i].row_count = 2;
        }
        settings_default();
        start_with(configs, "fake0", "fake1", 2, 1 << 16);
        fake_fail_rtr(bad, 0, ETIMEDOUT);
        int ready = 0;
        for (unsigned i = 0; i < 3 && ready <= 0; i++)
            ready = exchange();
        assert_int_equal(ready, 2);
        move_all();
        finish();
    }
}

/* Nothing works: pauses grow, and the peer is not asked all the time. */
static void test_pauses(void **state)
{
    (void)state;
    struct fake_device_config configs[2] = {fake_roce(0), fake_roce(1)};
    start_with(configs, "fake0", "fake1", 2, 4096);
    fake_fail_rtr(0, 0, EINVAL);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(exchange(), MC_ERR_TRANSFER_FAIL);
    assert_int_equal(exchange(), 0);
    uint64_t due_ns = mc_rdma_link_due_ns(link_a);
    assert_true(due_ns == 0 || due_ns < mc_clock_ns() + SECOND_NS / 5);
    fake_fail_rtr(0, 0, 0);
    for (unsigned i = 0; i < 1000 && mc_rdma_link_due_ns(link_a) != 0; i++)
        usleep(1000);
    assert_int_equal(exchange(), 2);
    move_all();
    finish();
}

static void test_hostile_texts(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "{}",
        "[]",
        "{\"version\":1}",
        "{\"version\":1,\"link\":1,\"pairs\":{}}",
        "{\"version\":2,\"link\":1,\"pairs\":[]}",
        "{\"version\":1,\"link\":1,\"pairs\":[{}]}",
        "{\"version\":1,\"link\":1,\"pairs\":[{\"pair\":32,\"device\":\"x\"}]}",
        "{\"version\":1,\"link\":1,\"pairs\":[{\"pair\":0},{\"pair\":0}]}",
        "{\"version\":1,\"link\":1,\"pairs\":[{\"pair\":0,\"gid\":\"zz\"}]}",
        "{\"version\":1,\"link\":1,\"pairs\":[{\"pair\":0,\"qpn\":16777216}]}",
        "{\"version\":1,\"link\":1,\"pairs\":[{\"pair\":0,\"lid\":-1}]}",
        "{\"version\":1,\"link\":1,\"pairs\":[{\"pair\":0,\"qpn\":1}",
    };
    start(4096);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct mc_rdma_link *half = NULL;
        struct mc_buffer answer = {0};
        assert_int_equal(mc_rdma_link_answer(serving.rdma, &half, mc_span_string(texts[i]), &answer), MC_ERR_PROTOCOL);
        assert_null(half);
        mc_buffer_free(&answer);
    }
    struct mc_rdma_link *half = NULL; /* well formed, and nonsense */
    struct mc_buffer answer = {0};
    assert_int_equal(mc_rdma_link_answer(serving.rdma, &half,
                                         mc_span_string("{\"version\":1,\"link\":1,\"pairs\":[{\"pair\":3,\"peer\":"
                                                        "\"fake2\",\"qpn\":5},{\"pair\":4,\"peer\":\"nobody\"}]}"),
                                         &answer),
                     MC_ERR_NOT_SUPPORTED);
    assert_null(half);
    assert_true(answer.length > 0);
    mc_buffer_free(&answer);
    /* An offer of another link does not get at a half that is there. */
    assert_int_equal(
        mc_rdma_link_answer(serving.rdma, &link_b, mc_span_string("{\"version\":1,\"link\":1,\"pairs\":[]}"), &answer),
        MC_ERR_PROTOCOL);
    move_all();
    struct mc_rdma_peer_device devices[2];
    assert_int_equal(mc_rdma_parse_devices(mc_span_string("[{\"name\":\"a\"},{\"name\":\"a\"}]"), devices, 2),
                     MC_ERR_PROTOCOL);
    assert_int_equal(mc_rdma_parse_devices(mc_span_string("[{\"name\":\"a\"},{\"name\":\"b\"}]"), devices, 1),
                     MC_ERR_PROTOCOL);
    assert_int_equal(mc_rdma_parse_devices(mc_span_string("[{\"lid\":1}]"), devices, 2), MC_ERR_PROTOCOL);
    assert_int_equal(mc_rdma_parse_devices(mc_span_string("[]"), devices, 0), 0);
    finish();
}

/* ---- memory ---- */

static void test_registration_fails(void **state)
{
    (void)state;
    struct mc_rdma_run run;
    start(1 << 20);
    struct mc_rdma_range range = {.address = asking.bytes, .length = 1 << 20, .dmabuf_fd = -1, .numa_node = -1};
    struct mc_rdma_memory *memory;
    fake_fail_registrations(0, 1, ENOMEM);
    assert_int_equal(mc_rdma_memory_register(asking.rdma, &range, &memory), 0);
    assert_int_equal(mc_rdma_memory_local(memory).list[0].valid, 2);
    uint64_t bytes = fake_counts().bytes[0];
    struct mc_rdma_request one = request(MC_RDMA_WRITE, 0, 0, 1 << 20);
    one.local_chunks = mc_rdma_memory_local(memory);
    assert_int_equal(run_for(&one, 1, 1000, &run), 0);
    assert_int_equal(fake_counts().bytes[0], bytes);
    mc_rdma_memory_unregister(memory);
    fake_fail_registrations(0, 1, ENOMEM);
    fake_fail_registrations(1, 1, ENOMEM);
    assert_int_equal(mc_rdma_memory_register(asking.rdma, &range, &memory), MC_ERR_NO_MEMORY);
    fake_fail_registrations(0, 1, EIO);
    fake_fail_registrations(1, 1, EIO);
    assert_int_equal(mc_rdma_memory_register(asking.rdma, &range, &memory), MC_ERR_TRANSFER_FAIL);
    range.length = 0;
    assert_int_equal(mc_rdma_memory_register(asking.rdma, &range, &memory), MC_ERR_INVALID_PARAMS);
    range.length = UINT64_MAX;
    assert_int_equal(mc_rdma_memory_register(asking.rdma, &range, &memory), MC_ERR_INVALID_PARAMS);
    finish();
}

static void test_gpu_memory(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < 3; kind++) {
        struct fake_device_config configs[2] = {fake_roce(0), fake_roce(1)};
        settings_default();
        configs[0].has_dmabuf = kind == 0;
        configs[0].has_peermem = kind == 1;
        start_with(configs, "fake0", "fake1", 2, 1 << 16);
        void *gpu = malloc(4096);
        fake_gpu_memory(gpu, 4096);
        struct mc_rdma_range range = {.address = gpu, .length = 4096, .is_gpu = true, .dmabuf_fd = 0, .numa_node = -1};
        struct mc_rdma_memory *memory;
        int rc = mc_rdma_memory_register(asking.rdma, &range, &memory);
        assert_int_equal(rc, kind == 2 ? MC_ERR_NOT_SUPPORTED : 0);
        if (rc == 0) {
            assert_int_equal(mc_rdma_memory_kind_of(memory),
                             kind == 0 ? MC_RDMA_MEMORY_DMABUF : MC_RDMA_MEMORY_PEERMEM);
            mc_rdma_memory_unregister(memory);
        }
        free(gpu);
        finish();
    }
}

static void test_near_memory(void **state)
{
    (void)state;
    struct mc_rdma_run run;
    start(1 << 20);
    struct mc_rdma_range range = {.address = asking.bytes, .length = 1 << 20, .dmabuf_fd = -1, .numa_node = 1};
    struct mc_rdma_memory *memory; /* fake1 is on node 1 */
    assert_int_equal(mc_rdma_memory_register(asking.rdma, &range, &memory), 0);
    assert_int_equal(mc_rdma_memory_local(memory).list[0].preferred, 2);
    struct fake_counts counts = fake_counts();
    for (unsigned i = 0; i < 16; i++) {
        struct mc_rdma_request one = request(MC_RDMA_WRITE, 0, 0, 4096);
        one.local_chunks = mc_rdma_memory_local(memory);
        assert_int_equal(run_for(&one, 1, 1000, &run), 0);
    }
    assert_int_equal(fake_counts().bytes[0], counts.bytes[0]);
    assert_int_equal(fake_counts().bytes[1], counts.bytes[1] + 16 * 4096);
    mc_rdma_memory_unregister(memory);
    finish();
}

/* ---- opening ---- */

static void test_opening(void **state)
{
    (void)state;
    struct fake_device_config configs[3] = {fake_roce(0), fake_roce(1), fake_roce(2)};
    struct mc_rdma_options options = {.verbs = fake_verbs(), .filter = "fake0,nobody"};
    struct mc_rdma *rdma;
    fake_reset(configs, 0);
    options.filter = NULL;
    assert_int_equal(mc_rdma_open(&options, &rdma), MC_ERR_UNAVAILABLE_IN_CURRENT_MODE);
    configs[1].row_count = 0;
    fake_reset(configs, 3);
    fake_port(2, false);
    options.filter = "fake0,nobody";
    assert_int_equal(mc_rdma_open(&options, &rdma), MC_ERR_INVALID_PARAMS);
    options.filter = "fake1,fake2";
    assert_int_equal(mc_rdma_open(&options, &rdma), MC_ERR_UNAVAILABLE_IN_CURRENT_MODE);
    options.filter = "";
    assert_int_equal(mc_rdma_open(&options, &rdma), 0);
    assert_int_equal(mc_rdma_device_count(rdma), 1);
    mc_rdma_close(rdma);
    struct mc_rdma_device_info infos[4];
    assert_int_equal(mc_rdma_scan(&options, infos, 4), 3);
    assert_string_equal(infos[0].reason, "");
    assert_non_null(strstr(infos[1].reason, "GID"));
    assert_non_null(strstr(infos[2].reason, "not active"));
    assert_int_equal(infos[0].gid_index, 0);
    assert_int_equal(infos[0].mtu_bytes, 4096);
    assert_int_equal(infos[0].speed_mbps, 100000);
    struct mc_buffer text = {0};
    assert_int_equal(mc_rdma_describe_gids(&options, "fake0", &text), 0);
    mc_buffer_put_u8(&text, 0);
    assert_string_equal((char *)text.data, "0 RoCE v2 10.0.0.1 eth0, chosen\n");
    assert_int_equal(mc_rdma_describe_gids(&options, "nobody", &text), MC_ERR_INVALID_PARAMS);
    mc_buffer_free(&text);
    assert_int_equal(fake_counts().contexts, 0);
}

/* Only what others did not suffer from retires a device, and not for ever. */
static void test_retired(void **state)
{
    (void)state;
    asking.settings.pause_s = 1;
    start(1 << 16);
    struct mc_rdma_device *device = &asking.rdma->devices[0];
    for (unsigned i = 0; i < 2 * MC_RDMA_BLAMES_MAX; i++)
        mc_rdma_device_note(device, i % MC_RDMA_BLAMES_MAX == 5); /* never enough in a row */
    assert_true(mc_rdma_device_is_up(device));
    for (unsigned i = 0; i < MC_RDMA_BLAMES_MAX; i++)
        mc_rdma_device_note(device, false);
    assert_false(mc_rdma_device_is_up(device));
    assert_int_equal(mc_rdma_link_ready(link_a), 2);
    move_all(); /* what stands is still used */
    for (unsigned i = 0; i < 3000 && !mc_rdma_device_is_up(device); i++)
        usleep(1000);
    assert_int_equal(mc_rdma_link_ready(link_a), 4);
    finish();
}

/* A dead peer blames nobody. */
static void test_dead_peer_blames_nobody(void **state)
{
    (void)state;
    struct mc_rdma_run run;
    start(1 << 16);
    fake_cut(0, 2, true);
    fake_cut(1, 3, true);
    struct mc_rdma_request one = request(MC_RDMA_READ, 0, 0, 1 << 16);
    assert_int_equal(run_for(&one, 1, 1000, &run), MC_ERR_TRANSFER_FAIL);
    assert_int_equal(asking.rdma->devices[0].blames + asking.rdma->devices[1].blames, 0);
    fake_cut(1, 3, false);
    assert_int_equal(exchange(), 4);
    struct mc_rdma_request many[8];
    for (size_t i = 0; i < 8; i++)
        many[i] = request(MC_RDMA_READ, i * 4096, i * 4096, 4096);
    assert_int_equal(run_for(many, 8, 1000, &run), 0);
    assert_int_equal(asking.rdma->devices[0].blames, 1);
    assert_int_equal(asking.rdma->devices[1].blames, 0);
    finish();
}

static int open_fds;

static void note_fd(void *context, int fd)
{
    (void)fd;
    *(int *)context += 1;
}

static void forget_fd(void *context, int fd)
{
    (void)fd;
    *(int *)context -= 1;
}

/* Every descriptor is told of when it comes, and before it goes. */
static void test_descriptors(void **state)
{
    (void)state;
    struct fake_device_config configs[2] = {fake_roce(0), fake_roce(1)};
    configs[0].is_iwarp = configs[1].is_iwarp = true;
    fake_reset(configs, 2);
    side_open(&serving, "fake1", 4096);
    struct mc_rdma_options options = {.verbs = fake_verbs(),
                                      .settings = &asking.settings,
                                      .filter = " fake0 ,",
                                      .fd_opened = note_fd,
                                      .fd_closing = forget_fd,
                                      .context = &open_fds};
    open_fds = 0;
    assert_int_equal(mc_rdma_open(&options, &asking.rdma), 0);
    assert_int_equal(open_fds, 4); /* the device's two, the watcher's, the manager's */
    open_link();
    assert_int_equal(open_fds, 5);
    assert_int_equal(exchange(), 2);
    assert_int_equal(open_fds, 7);
    mc_rdma_link_close(link_a);
    assert_int_equal(open_fds, 4);
    mc_rdma_link_close(link_b);
    mc_rdma_close(asking.rdma);
    assert_int_equal(open_fds, 0);
    side_close(&serving);
}

static _Atomic bool is_repairing;

static void *repair(void *argument)
{
    (void)argument;
    while (is_repairing) {
        struct mc_buffer text = {0};
        (void)exchange();
        mc_rdma_link_describe(link_a, &text);
        mc_buffer_free(&text);
        (void)mc_rdma_link_ready(link_a);
        usleep(100);
    }
    return NULL;
}

/* Pairs break all the time, and another thread brings them back while runs go on. */
static void test_repair_meanwhile(void **state)
{
    (void)state;
    struct mc_rdma_run run;
    pthread_t thread;
    uint64_t failed = 0;
    asking.settings.pause_s = 0;
    start(1 << 20);
    is_repairing = true;
    pthread_create(&thread, NULL, repair, NULL);
    for (unsigned i = 0; i < 400; i++) {
        memset(asking.bytes, (int)i, 1 << 20);
        fake_fail_work(i % 2, i % 13, i % 3 == 0 ? IBV_WC_RETRY_EXC_ERR : IBV_WC_GENERAL_ERR);
        struct mc_rdma_request one = request(MC_RDMA_WRITE, 0, 0, 1 << 20);
        int rc = run_for(&one, 1, 5000, &run);
        failed += run.failed_pairs;
        assert_true(rc == 0 || rc == MC_ERR_TRANSFER_FAIL);
        if (rc == 0)
            assert_memory_equal(serving.bytes, asking.bytes, 1 << 20);
        for (unsigned j = 0; j < 1000 && mc_rdma_link_ready(link_a) < 2; j++)
            usleep(100);
    }
    is_repairing = false;
    pthread_join(thread, NULL);
    assert_true(failed > 100);
    finish();
}

/* A hundred peers that come, break and go leave nothing behind. */
static void test_many_links(void **state)
{
    (void)state;
    struct mc_rdma_run run;
    start(1 << 16);
    for (unsigned i = 0; i < 100; i++) {
        mc_rdma_link_close(link_a);
        mc_rdma_link_close(link_b);
        open_link();
        assert_int_equal(exchange(), 4);
        if (i % 3 == 0)
            fake_fail_work(i % 2, 0, IBV_WC_RETRY_EXC_ERR);
        struct mc_rdma_request one = request(MC_RDMA_READ, 0, 0, 1 << 16);
        assert_int_equal(run_for(&one, 1, 1000, &run), 0);
        if (i % 2 == 0)
            (void)exchange();
    }
    assert_true(fake_counts().qps <= 8);
    finish();
}

int main(void)
{
    mc_log_set_level(MC_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_sizes, before),
        cmocka_unit_test_setup(test_spread_and_sparse, before),
        cmocka_unit_test_setup(test_batch_of_both, before),
        cmocka_unit_test_setup(test_limits, before),
        cmocka_unit_test_setup(test_bad_requests, before),
        cmocka_unit_test_setup(test_refused, before),
        cmocka_unit_test_setup(test_not_writable, before),
        cmocka_unit_test_setup(test_completion_error, before),
        cmocka_unit_test_setup(test_post_fails, before),
        cmocka_unit_test_setup(test_lost_peer, before),
        cmocka_unit_test_setup(test_stall, before),
        cmocka_unit_test_setup(test_deadline, before),
        cmocka_unit_test_setup(test_woken, before),
        cmocka_unit_test_setup(test_port_down, before),
        cmocka_unit_test_setup(test_device_lost, before),
        cmocka_unit_test_setup(test_gid_change, before),
        cmocka_unit_test_setup(test_peer_closes, before),
        cmocka_unit_test_setup(test_infiniband, before),
        cmocka_unit_test_setup(test_iwarp, before),
        cmocka_unit_test_setup(test_cm_on_roce, before),
        cmocka_unit_test_setup(test_setup_differs, before),
        cmocka_unit_test_setup(test_no_common_fabric, before),
        cmocka_unit_test_setup(test_other_gid, before),
        cmocka_unit_test_setup(test_pauses, before),
        cmocka_unit_test_setup(test_hostile_texts, before),
        cmocka_unit_test_setup(test_registration_fails, before),
        cmocka_unit_test_setup(test_gpu_memory, before),
        cmocka_unit_test_setup(test_near_memory, before),
        cmocka_unit_test_setup(test_opening, before),
        cmocka_unit_test_setup(test_many_links, before),
        cmocka_unit_test_setup(test_descriptors, before),
        cmocka_unit_test_setup(test_retired, before),
        cmocka_unit_test_setup(test_dead_peer_blames_nobody, before),
        cmocka_unit_test_setup(test_repair_meanwhile, before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
