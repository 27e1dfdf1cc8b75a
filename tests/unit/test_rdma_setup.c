/* Set-up, repair and end of links, registration of memory, opening of devices: over the fake device. */
#include "directory.h"
#include "rdma_sides.h"

#include <malloc.h>

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

/* Two functions of one card share its LID: with each other, or two at the peer. */
static void test_shared_lid(void **state)
{
    static const char *const asks[] = {"fake0", "fake0", "fake0"}, *const serves[] = {"fake1", "fake1,fake2", "fake1"};
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        struct fake_device_config configs[3] = {fake_roce(0), fake_roce(1), fake_roce(2)};
        for (uint32_t j = 0; j < 3; j++) {
            configs[j].is_infiniband = true;
            configs[j].rows[0].type = MC_GID_INFINIBAND;
            memcpy(configs[j].rows[0].gid, (uint8_t[]){0xfe, 0x80, [15] = (uint8_t)(j + 1)}, MC_GID_BYTES);
            configs[j].lid = (uint16_t)(i == 0 ? 5 : j == 0 ? 4 : 5);
        }
        settings_default();
        configs[1].needs_grh = i == 2; /* as the driver of a virtual function says; the other one is not ours */
        start_with(configs, asks[i], serves[i], 3, 1 << 20);
        assert_int_equal(exchange(), 2);
        move_all();
        assert_int_equal(exchange(), 0); /* nothing is due: no pair broke */
        finish();
    }
}

/* What only we use, the stage of a client, takes what READs bring. */
static void test_iwarp_sink(void **state)
{
    (void)state;
    struct mc_rdma_run run;
    struct fake_device_config configs[2] = {fake_roce(0), fake_roce(1)};
    configs[0].is_iwarp = configs[1].is_iwarp = true;
    start_with(configs, "fake0", "fake1", 2, 1 << 16);
    uint8_t *stage = calloc(1, 1 << 16);
    struct mc_rdma_range range = {.address = stage, .length = 1 << 16, .dmabuf_fd = -1, .numa_node = -1};
    struct mc_rdma_memory *memory;
    assert_int_equal(mc_rdma_memory_register(asking.rdma, &range, &memory), 0);
    assert_int_equal(exchange(), 2);
    struct mc_rdma_request one = request(MC_RDMA_READ, 0, 0, 1 << 16);
    one.local = stage;
    one.local_chunks = mc_rdma_memory_local(memory);
    assert_int_equal(run_for(&one, 1, 5000, &run), 0);
    assert_memory_equal(stage, serving.bytes, 1 << 16);
    mc_rdma_memory_unregister(memory);
    free(stage);
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
    /* Each pair has a pause of its own, which the clock ends. */
    int ready = 0;
    for (unsigned i = 0; i < 5000 && (ready = exchange()) != 2; i++)
        usleep(1000);
    assert_int_equal(ready, 2);
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
        if (rc == 0) /* in the one way that the device has */
            mc_rdma_memory_unregister(memory);
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
    assert_int_equal(open_fds, 5); /* the device's two and its channel, the watcher's, the manager's */
    open_link();
    assert_int_equal(exchange(), 2);
    assert_int_equal(open_fds, 5); /* none for a link */
    mc_rdma_link_close(link_a);
    assert_int_equal(open_fds, 5);
    mc_rdma_link_close(link_b);
    mc_rdma_close(asking.rdma);
    assert_int_equal(open_fds, 0);
    side_close(&serving);
}

/* Pairs break all the time, and another thread brings them back while runs go on. */
static void test_repair_meanwhile(void **state)
{
    (void)state;
    struct mc_rdma_run run;
    uint64_t failed = 0;
    asking.settings.pause_s = 0;
    start(1 << 20);
    pthread_t thread = repair_start();
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
    repair_stop(thread);
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

#define PEERS 1000u

/* What the heap has given to anybody but the fake. */
static size_t heap_of_ours(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd - fake_counts().heap;
}

/* Links to a thousand peers over eight devices each: no descriptor for any of them. The figures of the table in
 * docs/connections.md. */
static void test_thousand_peers(void **state)
{
    (void)state;
    struct fake_device_config configs[8];
    static struct mc_rdma_link *links[PEERS], *halves[PEERS];
    for (uint32_t i = 0; i < 8; i++)
        configs[i] = fake_roce(i);
    fake_reset(configs, 8);
    side_open(&asking, "", 4096);
    side_open(&serving, "", 4096);
    uint32_t descriptors = count_of("/proc/self/fd"), channels = fake_counts().channels;
    size_t opened = 0, whole = 0, before = heap_of_ours();
    uint64_t start_ns = mc_clock_ns();
    for (uint32_t i = 0; i < PEERS; i++) {
        open_link();
        opened += heap_of_ours() - before;
        assert_int_equal(exchange(), 16);
        links[i] = link_a;
        halves[i] = link_b;
        whole += heap_of_ours() - before;
        before = heap_of_ours();
    }
    uint64_t took_ns = mc_clock_ns() - start_ns;
    assert_int_equal(count_of("/proc/self/fd"), descriptors);
    assert_int_equal(fake_counts().channels, channels);
    assert_int_equal(fake_counts().qps, 2 * 16 * PEERS);
    assert_int_equal(fake_counts().cqs, 2 * 8 + 8 * PEERS); /* a device's of serving halves; a link's */
    print_message("a link: %u queue pairs and %u completion queues, %zu bytes to ask, %zu to serve, made in %.3f ms\n",
                  16u, 8u, opened / PEERS, (whole - opened) / PEERS, (double)took_ns / PEERS / 1e6);
    move_all();
    for (uint32_t i = 0; i < PEERS - 1; i++) {
        mc_rdma_link_close(links[i]);
        mc_rdma_link_close(halves[i]);
    }
    finish();
}

int main(void)
{
    mc_log_set_level(MC_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_infiniband, before),
        cmocka_unit_test_setup(test_iwarp, before),
        cmocka_unit_test_setup(test_iwarp_sink, before),
        cmocka_unit_test_setup(test_shared_lid, before),
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
        cmocka_unit_test_setup(test_retired, before),
        cmocka_unit_test_setup(test_dead_peer_blames_nobody, before),
        cmocka_unit_test_setup(test_descriptors, before),
        cmocka_unit_test_setup(test_repair_meanwhile, before),
        cmocka_unit_test_setup(test_many_links, before),
        cmocka_unit_test_setup(test_thousand_peers, before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
