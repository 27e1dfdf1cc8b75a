/* Two sides of one process with the fake device between them: what the tests of links share. */
#ifndef MC_TESTS_RDMA_SIDES_H
#define MC_TESTS_RDMA_SIDES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "../rdma/link_describe.h"
#include "env/clock.h"
#include "env/log.h"
#include "fake_verbs.h"
#include "rdma/link.h"
#include "rdma/pair.h"

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

static inline void side_open(struct side *side, const char *filter, size_t length)
{
    struct mc_rdma_options options = {.verbs = fake_verbs(), .settings = &side->settings, .filter = filter};
    assert_int_equal(mc_rdma_open(&options, &side->rdma), 0);
    side->rdma->grace_ns = 20 * SECOND_NS; /* all that can be is set up, however slow the machine */
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

static inline void side_close(struct side *side)
{
    mc_rdma_memory_unregister(side->memory);
    mc_rdma_close(side->rdma);
    free(side->bytes);
    memset(side, 0, sizeof(*side));
}

static inline void settings_default(void)
{
    mc_rdma_settings_read(&asking.settings);
    asking.settings.stall_ms = 100;
    serving.settings = asking.settings;
}

/* Offer, answer, complete; what complete says. */
static inline int exchange(void)
{
    struct mc_buffer offer = {0}, answer = {0};
    int rc = mc_rdma_link_offer(link_a, 0, &offer);
    if (rc == 1) {
        (void)mc_rdma_link_answer(serving.rdma, &link_b, mc_span(offer.data, offer.length), &answer);
        rc = mc_rdma_link_complete(link_a, mc_span(answer.data, answer.length), mc_clock_ns() + 20 * SECOND_NS);
    }
    mc_buffer_free(&offer);
    mc_buffer_free(&answer);
    return rc;
}

static inline void open_link(void)
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

static inline void start_with(const struct fake_device_config *configs, const char *a, const char *b, uint32_t count,
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
static inline void start(size_t length)
{
    struct fake_device_config configs[4] = {fake_roce(0), fake_roce(1), fake_roce(2), fake_roce(3)};
    start_with(configs, "fake0,fake1", "fake2,fake3", 4, length);
    assert_int_equal(exchange(), 4);
}

static inline void finish(void)
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

static inline struct mc_rdma_request request(enum mc_rdma_opcode opcode, size_t local, size_t remote, size_t length)
{
    return (struct mc_rdma_request){.opcode = opcode,
                                    .local = asking.bytes + local,
                                    .remote = (uintptr_t)serving.bytes + remote,
                                    .length = length,
                                    .local_chunks = mc_rdma_memory_local(asking.memory),
                                    .remote_chunks = mc_rdma_memory_remote(serving.memory)};
}

static inline int run_for(struct mc_rdma_request *requests, size_t count, uint64_t ms, struct mc_rdma_run *run)
{
    *run = (struct mc_rdma_run){.deadline_ns = mc_clock_ns() + ms * 1000000u};
    return mc_rdma_link_run(link_a, requests, count, run);
}

/* Writes and reads back all of it; compares. */
static inline void move_all(void)
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

/* ---- another thread that sets up what is due, while runs go on ---- */

static _Atomic bool is_repairing;

static inline void *repair(void *argument)
{
    (void)argument;
    while (is_repairing) {
        struct mc_buffer text = {0};
        (void)exchange();
        rdma_link_describe(link_a, &text);
        mc_buffer_free(&text);
        (void)mc_rdma_link_ready(link_a);
        usleep(100);
    }
    return NULL;
}

static inline pthread_t repair_start(void)
{
    pthread_t thread;
    is_repairing = true;
    assert_int_equal(pthread_create(&thread, NULL, repair, NULL), 0);
    return thread;
}

static inline void repair_stop(pthread_t thread)
{
    is_repairing = false;
    assert_int_equal(pthread_join(thread, NULL), 0);
}

static inline int before(void **state)
{
    (void)state;
    settings_default();
    return 0;
}

#endif
