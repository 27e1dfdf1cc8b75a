/* The state machine of slices against a model: bytes are marked by where they went, and whatever breaks, every byte of
 * a request that ended well has arrived, and no pair was asked for more than it takes. No verbs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the ones above first */
#include <cmocka.h>

#include "rdma/slices.h"

#include <stdlib.h>

#define SLICE 65536u
#define LOCAL_BASE 0x10000000ull
#define REMOTE_BASE 0x7000000000ull

static struct mc_slices slices;
static struct mc_rdma_chunk local_chunk, remote_chunk;

static struct mc_rdma_chunk chunk(uint64_t address, uint64_t length, uint32_t valid)
{
    struct mc_rdma_chunk made = {.address = address, .length = length, .valid = valid};
    for (uint32_t i = 0; i < MC_RDMA_DEVICES_MAX; i++)
        made.keys[i] = (uint32_t)(address >> 12) + i;
    return made;
}

static struct mc_slices_config config_of(uint32_t pairs, uint32_t depth)
{
    struct mc_slices_config config = {
        .slice_bytes = SLICE, .fragment_bytes = SLICE / 4, .retry_max = 9, .pair_count = pairs};
    for (uint32_t i = 0; i < pairs; i++)
        config.pairs[i] = (struct mc_slices_pair_config){
            .local_device = i, .remote_device = i, .depth = depth, .inline_max = 64, .cost = 1};
    return config;
}

static void start(uint32_t pairs, uint32_t depth)
{
    struct mc_slices_config config = config_of(pairs, depth);
    assert_int_equal(mc_slices_init(&slices, &config), 0);
    for (uint32_t i = 0; i < pairs; i++)
        mc_slices_pair_up(&slices, i);
    local_chunk = chunk(LOCAL_BASE, 1u << 30, UINT32_MAX);
    remote_chunk = chunk(REMOTE_BASE, 1u << 30, UINT32_MAX);
}

static struct mc_rdma_request request(uint64_t offset, uint64_t length)
{
    return (struct mc_rdma_request){.opcode = MC_RDMA_WRITE,
                                    .local = (void *)(uintptr_t)(LOCAL_BASE + offset),
                                    .remote = REMOTE_BASE + offset,
                                    .length = length,
                                    .local_chunks = {&local_chunk, 1},
                                    .remote_chunks = {&remote_chunk, 1}};
}

/* ---- cutting ---- */

static void test_cutting(void **state)
{
    (void)state;
    static const struct {
        uint64_t length;
        uint32_t count;
        uint64_t last;
    } cases[] = {
        {1, 1, 1},
        {SLICE, 1, SLICE},
        {SLICE + 1, 1, SLICE + 1},                 /* a small rest stays */
        {SLICE + SLICE / 4, 1, SLICE + SLICE / 4}, /* the largest that does */
        {SLICE + SLICE / 4 + 1, 2, SLICE / 4 + 1},
        {10 * SLICE, 10, SLICE},
        {10 * SLICE + 5, 10, SLICE + 5},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mc_slice_post posts[MC_SLICES_BURST_MAX];
        uint32_t pair, count, all = 0;
        uint64_t next = LOCAL_BASE + 3, last = 0;
        start(1, 64);
        struct mc_rdma_request one = request(3, cases[i].length);
        assert_int_equal(mc_slices_begin(&slices, &one, 1), 0);
        while (mc_slices_next(&slices, 1, &pair, posts, &count)) {
            for (uint32_t j = 0; j < count; j++) {
                assert_int_equal(posts[j].local, next);
                assert_int_equal(posts[j].remote - REMOTE_BASE, posts[j].local - LOCAL_BASE);
                assert_int_equal(posts[j].is_signaled, j + 1 == count);
                assert_int_equal(posts[j].is_inline, posts[j].length <= 64);
                next += posts[j].length;
                last = posts[j].length;
            }
            all += count;
        }
        assert_int_equal(all, cases[i].count);
        assert_int_equal(last, cases[i].last);
        assert_false(mc_slices_is_over(&slices));
        assert_true(mc_slices_end(&slices, 0, all - 1, MC_SLICE_DONE, 2));
        assert_true(mc_slices_is_over(&slices));
        assert_int_equal(one.result, 0);
        mc_slices_free(&slices);
    }
}

/* A request over the borders of chunks on both sides: no slice crosses one, and each has the keys of its own. */
static void test_chunks(void **state)
{
    (void)state;
    struct mc_slice_post posts[MC_SLICES_BURST_MAX];
    uint32_t pair, count;
    uint64_t next = LOCAL_BASE + 50;
    struct mc_rdma_chunk local[3] = {chunk(LOCAL_BASE, 100, 1), chunk(LOCAL_BASE + 100, 4096, 1),
                                     chunk(LOCAL_BASE + 4196, 100000, 1)};
    struct mc_rdma_chunk remote[2] = {chunk(REMOTE_BASE, 5000, 1), chunk(REMOTE_BASE + 5000, 100000, 1)};
    for (uint32_t i = 0; i < 3; i++)
        local[i].keys[0] = 10 + i;
    for (uint32_t i = 0; i < 2; i++)
        remote[i].keys[0] = 20 + i;
    start(1, 64);
    struct mc_rdma_request one = request(50, 10000);
    one.local_chunks = (struct mc_rdma_chunks){local, 3};
    one.remote_chunks = (struct mc_rdma_chunks){remote, 2};
    assert_int_equal(mc_slices_begin(&slices, &one, 1), 0);
    uint32_t seen = 0;
    while (mc_slices_next(&slices, 1, &pair, posts, &count)) {
        for (uint32_t i = 0; i < count; i++, seen++) {
            uint64_t offset = posts[i].local - LOCAL_BASE, end = offset + posts[i].length;
            uint32_t near = offset < 100 ? 0 : offset < 4196 ? 1 : 2, far = offset < 5000 ? 0 : 1;
            assert_int_equal(posts[i].local, next);
            assert_int_equal(posts[i].local_key, 10 + near);
            assert_int_equal(posts[i].remote_key, 20 + far);
            assert_true(end <= local[near].address + local[near].length - LOCAL_BASE);
            assert_true(end <= remote[far].address + remote[far].length - REMOTE_BASE);
            next += posts[i].length;
        }
        assert_true(mc_slices_end(&slices, 0, posts[count - 1].sequence, MC_SLICE_DONE, 2));
    }
    assert_int_equal(seen, 4);
    assert_int_equal(next, LOCAL_BASE + 10050);
    assert_int_equal(one.result, 0);
    /* With a hole between chunks it cannot be. */
    local[2].address++;
    assert_int_equal(mc_slices_begin(&slices, &one, 1), 0);
    assert_int_equal(one.result, MC_ERR_INVALID_PARAMS);
    assert_true(mc_slices_is_over(&slices));
    mc_slices_free(&slices);
}

/* ---- dealing ---- */

static void test_spread(void **state)
{
    (void)state;
    struct mc_slice_post posts[MC_SLICES_BURST_MAX];
    uint32_t pair, count, seen[4] = {0};
    start(4, 256);
    struct mc_rdma_request requests[8]; /* a small batch is spread also */
    for (uint32_t i = 0; i < 8; i++)
        requests[i] = request(i * 8192, 4096);
    assert_int_equal(mc_slices_begin(&slices, requests, 8), 0);
    while (mc_slices_next(&slices, 1, &pair, posts, &count))
        seen[pair] += count;
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(seen[i], 2);
    mc_slices_cancel(&slices, MC_ERR_RPC_TIMEOUT);
    for (uint32_t i = 0; i < 4; i++)
        mc_slices_pair_down(&slices, i);
    assert_true(mc_slices_is_over(&slices) && slices.is_unsure);
    mc_slices_free(&slices);
    /* One device is four times as fast. */
    struct mc_slices_config config = config_of(2, 1024);
    config.pairs[1].cost = 4;
    uint64_t bytes[2] = {0};
    assert_int_equal(mc_slices_init(&slices, &config), 0);
    mc_slices_pair_up(&slices, 0);
    mc_slices_pair_up(&slices, 1);
    struct mc_rdma_request one = request(0, 1000 * SLICE);
    assert_int_equal(mc_slices_begin(&slices, &one, 1), 0);
    while (mc_slices_next(&slices, 1, &pair, posts, &count))
        bytes[pair] += (uint64_t)count * SLICE;
    assert_true(bytes[0] > 3 * bytes[1] && bytes[0] < 5 * bytes[1]);
    mc_slices_free(&slices);
}

static void test_preferred_and_keys(void **state)
{
    (void)state;
    struct mc_slice_post posts[MC_SLICES_BURST_MAX];
    uint32_t pair, count;
    start(4, 16);
    local_chunk.preferred = 1u << 2;
    for (unsigned i = 0; i < 8; i++) {
        struct mc_rdma_request one = request(0, 4096);
        assert_int_equal(mc_slices_begin(&slices, &one, 1), 0);
        assert_true(mc_slices_next(&slices, 1, &pair, posts, &count));
        assert_int_equal(pair, 2);
        assert_true(mc_slices_end(&slices, 2, posts[0].sequence, MC_SLICE_DONE, 1));
    }
    local_chunk.valid = 1u << 3; /* near, but not registered there */
    struct mc_rdma_request one = request(0, 4096);
    assert_int_equal(mc_slices_begin(&slices, &one, 1), 0);
    assert_true(mc_slices_next(&slices, 1, &pair, posts, &count) && pair == 3);
    assert_true(mc_slices_end(&slices, 3, posts[0].sequence, MC_SLICE_DONE, 1));
    remote_chunk.valid = 1u << 1; /* no pair has both */
    assert_int_equal(mc_slices_begin(&slices, &one, 1), 0);
    assert_false(mc_slices_next(&slices, 1, &pair, posts, &count));
    assert_int_equal(one.result, MC_ERR_TRANSFER_FAIL);
    assert_true(mc_slices_is_over(&slices));
    mc_slices_free(&slices);
}

/* Posts all that can be; a bit for each pair that got something. */
static uint32_t post_all(void)
{
    struct mc_slice_post posts[MC_SLICES_BURST_MAX];
    uint32_t pair, count, mask = 0;
    while (mc_slices_next(&slices, 1, &pair, posts, &count))
        mask |= 1u << pair;
    return mask;
}

static void end_all(void)
{
    for (uint32_t i = 0; i < slices.config.pair_count; i++)
        while (slices.pairs[i].tail != slices.pairs[i].head)
            assert_true(mc_slices_end(&slices, i, slices.pairs[i].tail - 1, MC_SLICE_DONE, 1));
}

/* Devices that are near the memory on one side or the other; bits as of the local and the remote device, which have
 * the same number here. What is not near is used when nothing nearer works, and not when that is only full. */
static void test_near(void **state)
{
    (void)state;
    static const struct {
        uint32_t local, remote, up, valid, used;
    } rows[] = {
        {0, 0, 15, 15, 15},  {3, 0, 15, 15, 3},    {0, 3, 15, 15, 3},  {3, 3, 15, 15, 3},   {3, 1, 15, 15, 1},
        {3, 12, 15, 15, 15}, {2, 4, 15, 15, 6},    {2, 4, 9, 15, 9},   {2, 4, 13, 15, 4},   {3, 3, 13, 15, 1},
        {3, 3, 12, 15, 12},  {3, 3, 15, 14, 2},    {3, 3, 15, 12, 12}, {16, 0, 15, 15, 15}, {16, 2, 15, 15, 2},
        {3, 0, 0, 15, 0},    {15, 15, 15, 15, 15}, {8, 8, 8, 8, 8},    {8, 8, 7, 15, 7},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        start(4, 4);
        for (uint32_t pair = 0; pair < 4; pair++)
            slices.pairs[pair].is_up = (rows[i].up >> pair & 1) != 0;
        local_chunk.preferred = rows[i].local;
        remote_chunk.preferred = rows[i].remote;
        local_chunk.valid = rows[i].valid;
        struct mc_rdma_request one = request(0, 100 * SLICE);
        assert_int_equal(mc_slices_begin(&slices, &one, 1), 0);
        for (unsigned turn = 0; turn < 40 && !mc_slices_is_over(&slices); turn++) {
            uint32_t used = post_all();
            assert_true((used & ~rows[i].used) == 0);
            assert_true(turn > 0 || used == rows[i].used);
            end_all();
        }
        assert_true(mc_slices_is_over(&slices));
        assert_int_equal(one.result, rows[i].used == 0 ? MC_ERR_TRANSFER_FAIL : 0);
        mc_slices_free(&slices);
    }
}

/* The near one fails, and is there again: what has failed once may take another, what has not takes the near one. */
static void test_near_fails(void **state)
{
    (void)state;
    struct mc_slice_post posts[MC_SLICES_BURST_MAX];
    uint32_t pair, count;
    start(2, 16);
    local_chunk.preferred = remote_chunk.preferred = 1;
    struct mc_rdma_request two[2] = {request(0, 4096), request(1 << 20, 4096)};
    assert_int_equal(mc_slices_begin(&slices, two, 2), 0);
    slices.turn = 1;
    assert_true(mc_slices_next(&slices, 1, &pair, posts, &count));
    assert_true(pair == 0 && count == 2);
    assert_false(mc_slices_end(&slices, 0, posts[0].sequence, MC_SLICE_LOST, 1));
    mc_slices_pair_down(&slices, 0);
    mc_slices_pair_up(&slices, 0);
    slices.turn = 1;
    assert_true(mc_slices_next(&slices, 1, &pair, posts, &count));
    assert_true(pair == 1 && posts[0].local == LOCAL_BASE); /* the oldest comes first */
    assert_true(mc_slices_end(&slices, 1, posts[count - 1].sequence, MC_SLICE_DONE, 1));
    if (count == 1) {
        assert_true(mc_slices_next(&slices, 1, &pair, posts, &count));
        assert_int_equal(pair, 0);
        assert_true(mc_slices_end(&slices, 0, posts[0].sequence, MC_SLICE_DONE, 1));
    }
    assert_true(mc_slices_is_over(&slices));
    mc_slices_free(&slices);
}

static void test_full(void **state)
{
    (void)state;
    struct mc_slice_post posts[MC_SLICES_BURST_MAX];
    uint32_t pair, count, all = 0;
    start(1, 5); /* four: a power of two */
    struct mc_rdma_request one = request(0, 100 * SLICE);
    assert_int_equal(mc_slices_begin(&slices, &one, 1), 0);
    while (mc_slices_next(&slices, 1, &pair, posts, &count))
        all += count;
    assert_int_equal(all, 4);
    assert_true(mc_slices_end(&slices, 0, 0, MC_SLICE_DONE, 1));
    assert_true(mc_slices_end(&slices, 0, 0, MC_SLICE_DONE, 1)); /* twice: the second says nothing */
    assert_true(mc_slices_end(&slices, 0, 77, MC_SLICE_DONE, 1));
    assert_true(mc_slices_next(&slices, 1, &pair, posts, &count));
    assert_int_equal(count, 1);
    assert_false(mc_slices_next(&slices, 1, &pair, posts, &count));
    mc_slices_free(&slices);
}

static void test_window(void **state)
{
    (void)state;
    struct mc_slice_post posts[MC_SLICES_BURST_MAX];
    struct mc_slices_config config = config_of(1, 256);
    uint32_t pair, count, bursts = 0;
    config.window_bytes = 8 * SLICE;
    assert_int_equal(mc_slices_init(&slices, &config), 0);
    mc_slices_pair_up(&slices, 0);
    struct mc_rdma_request one = request(0, 100 * SLICE);
    assert_int_equal(mc_slices_begin(&slices, &one, 1), 0);
    for (; mc_slices_next(&slices, 1, &pair, posts, &count); bursts++)
        assert_true(count <= 3);
    assert_true(slices.pairs[0].bytes <= 8 * SLICE && slices.pairs[0].bytes > 7 * SLICE && bursts >= 3);
    mc_slices_cancel(&slices, MC_ERR_RPC_TIMEOUT);
    mc_slices_pair_down(&slices, 0);
    slices.config.window_bytes = 1; /* one slice always fits */
    mc_slices_pair_up(&slices, 0);
    assert_int_equal(mc_slices_begin(&slices, &one, 1), 0);
    assert_true(mc_slices_next(&slices, 1, &pair, posts, &count));
    assert_int_equal(count, 1);
    assert_false(mc_slices_next(&slices, 1, &pair, posts, &count));
    mc_slices_free(&slices);
}

/* ---- what goes wrong ---- */

static void test_retries_end(void **state)
{
    (void)state;
    struct mc_slice_post posts[MC_SLICES_BURST_MAX];
    uint32_t pair, count, tries = 0;
    start(1, 16);
    struct mc_rdma_request one = request(0, 4096);
    assert_int_equal(mc_slices_begin(&slices, &one, 1), 0);
    while (mc_slices_next(&slices, 1, &pair, posts, &count)) {
        tries++;
        assert_false(mc_slices_end(&slices, 0, posts[0].sequence, MC_SLICE_LOST, 1));
        mc_slices_pair_down(&slices, 0);
        mc_slices_pair_up(&slices, 0);
    }
    assert_int_equal(tries, 10);
    assert_int_equal(one.result, MC_ERR_TRANSFER_FAIL);
    assert_true(mc_slices_is_over(&slices));
    mc_slices_free(&slices);
}

static void test_refused(void **state)
{
    (void)state;
    struct mc_slice_post posts[MC_SLICES_BURST_MAX];
    uint32_t pair, count;
    start(1, 16);
    struct mc_rdma_request requests[3] = {request(0, 4096), request(8192, 4096), request(16384, 4096)};
    assert_int_equal(mc_slices_begin(&slices, requests, 3), 0);
    assert_true(mc_slices_next(&slices, 1, &pair, posts, &count) && count == 3);
    assert_false(mc_slices_end(&slices, 0, posts[1].sequence, MC_SLICE_REFUSED, 1));
    assert_false(mc_slices_end(&slices, 0, posts[2].sequence, MC_SLICE_FLUSHED, 1));
    assert_int_equal(requests[0].result, 0);
    assert_int_equal(requests[1].result, MC_ERR_INVALID_PARAMS);
    assert_int_equal(requests[2].result, 1);
    mc_slices_pair_down(&slices, 0);
    assert_false(mc_slices_is_over(&slices));
    mc_slices_pair_up(&slices, 0);
    assert_true(mc_slices_next(&slices, 1, &pair, posts, &count) && count == 1);
    assert_int_equal(posts[0].local, LOCAL_BASE + 16384);
    assert_true(mc_slices_end(&slices, 0, posts[0].sequence, MC_SLICE_DONE, 1));
    assert_int_equal(requests[2].result, 0);
    mc_slices_free(&slices);
}

static void test_stalls(void **state)
{
    (void)state;
    struct mc_slice_post posts[MC_SLICES_BURST_MAX];
    uint32_t pair, count;
    start(2, 16);
    struct mc_rdma_request requests[2] = {request(0, 4096), request(8192, 4096)};
    assert_int_equal(mc_slices_begin(&slices, requests, 2), 0);
    assert_int_equal(mc_slices_stalled(&slices, 1000, 10), 0);
    assert_true(mc_slices_next(&slices, 100, &pair, posts, &count));
    assert_int_equal(mc_slices_stalled(&slices, 100, 10), 0);
    assert_int_equal(mc_slices_stalled(&slices, 109, 10), 0);
    assert_int_equal(mc_slices_stalled(&slices, 110, 10), 1u << pair);
    assert_int_equal(mc_slices_stalled(&slices, 90, 10), 0); /* a clock that was read earlier */
    assert_int_equal(mc_slices_busy(&slices), 1u << pair);
    mc_slices_free(&slices);
}

/* ---- the model ---- */

#define MODEL_PAIRS 5
#define MODEL_DEPTH 8
#define MODEL_BYTES 3000000u
#define MODEL_REQUESTS 40

struct posted {
    struct mc_slice_post post;
    bool is_wanted; /* signaled */
};
static struct {
    struct posted queue[MODEL_PAIRS][MODEL_DEPTH];
    uint32_t count[MODEL_PAIRS];
    bool is_up[MODEL_PAIRS];
    uint8_t *arrived;
    uint64_t random;
} model;

static uint32_t draw(uint32_t below)
{
    model.random = model.random * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(model.random >> 33) % below;
}

static void model_post(uint32_t pair, const struct mc_slice_post *posts, uint32_t count)
{
    assert_true(model.is_up[pair]);
    assert_true(model.count[pair] + count <= MODEL_DEPTH);
    assert_true(posts[count - 1].is_signaled);
    for (uint32_t i = 0; i < count; i++)
        model.queue[pair][model.count[pair]++] = (struct posted){posts[i], posts[i].is_signaled};
}

static void model_arrive(const struct mc_slice_post *post)
{
    for (uint32_t i = 0; i < post->length; i++)
        model.arrived[post->remote - REMOTE_BASE + i] = 1;
}

/* Some of the pair's work is done; then the device tells of the last that asked, or breaks. */
static void model_step(uint32_t pair)
{
    uint32_t done = draw(model.count[pair] + 1), told = UINT32_MAX;
    for (uint32_t i = 0; i < done; i++) {
        model_arrive(&model.queue[pair][i].post);
        if (model.queue[pair][i].is_wanted)
            told = model.queue[pair][i].post.sequence;
    }
    uint32_t fate = draw(20);
    bool is_broken = fate < 2 && done < model.count[pair];
    if (told != UINT32_MAX)
        assert_true(mc_slices_end(&slices, pair, told, MC_SLICE_DONE, 5));
    if (is_broken) {
        assert_false(mc_slices_end(&slices, pair, model.queue[pair][done].post.sequence, MC_SLICE_LOST, 5));
        for (uint32_t i = done + 1; i < model.count[pair]; i++)
            (void)mc_slices_end(&slices, pair, model.queue[pair][i].post.sequence, MC_SLICE_FLUSHED, 5);
        mc_slices_pair_down(&slices, pair);
        model.is_up[pair] = false;
        model.count[pair] = 0;
    } else if (told != UINT32_MAX) { /* what was done and is not told of yet is told of by a later one */
        uint32_t keep = 0;
        for (uint32_t i = 0; i < model.count[pair]; i++)
            if ((int32_t)(model.queue[pair][i].post.sequence - told) > 0)
                model.queue[pair][keep++] = model.queue[pair][i];
        model.count[pair] = keep;
    }
}

static void model_run(uint64_t seed)
{
    struct mc_rdma_request requests[MODEL_REQUESTS];
    struct mc_slice_post posts[MC_SLICES_BURST_MAX];
    uint32_t pair, count;
    model.random = seed;
    memset(model.arrived, 0, MODEL_BYTES);
    memset(model.count, 0, sizeof(model.count));
    uint64_t offset = 0;
    for (uint32_t i = 0; i < MODEL_REQUESTS; i++) {
        uint64_t length = draw(3) == 0 ? draw(64) : draw(140000);
        requests[i] = request(offset, length < MODEL_BYTES - offset ? length : 0);
        offset += requests[i].length;
    }
    assert_int_equal(mc_slices_begin(&slices, requests, MODEL_REQUESTS), 0);
    for (unsigned turns = 0; !mc_slices_is_over(&slices); turns++) {
        assert_true(turns < 100000);
        for (uint32_t i = 0; i < MODEL_PAIRS; i++)
            if (!model.is_up[i] && draw(4) == 0) {
                mc_slices_pair_up(&slices, i);
                model.is_up[i] = true;
            }
        while (mc_slices_next(&slices, 1, &pair, posts, &count)) {
            uint32_t refused = draw(50) == 0 ? 1 + draw(count) : 0; /* the device takes only the first ones */
            if (refused == 0) {
                model_post(pair, posts, count);
                continue;
            }
            mc_slices_unpost(&slices, pair, refused);
            mc_slices_pair_down(&slices, pair);
            model.is_up[pair] = false;
            model.count[pair] = 0;
        }
        for (uint32_t i = 0; i < MODEL_PAIRS; i++)
            if (model.is_up[i] && model.count[i] > 0)
                model_step(i);
        if (draw(2000) == 0)
            mc_slices_cancel(&slices, MC_ERR_RPC_TIMEOUT);
    }
    uint32_t good = 0;
    for (uint32_t i = 0; i < MODEL_REQUESTS; i++) {
        assert_true(requests[i].result <= 0);
        good += requests[i].result == 0;
        for (uint64_t j = 0; requests[i].result == 0 && j < requests[i].length; j++)
            if (model.arrived[requests[i].remote - REMOTE_BASE + j] == 0)
                fail_msg("seed %llu: request %u was done, byte %llu has not arrived", (unsigned long long)seed,
                         (unsigned)i, (unsigned long long)j);
    }
    assert_true(good > 0 || seed % 7 != 0);
}

static void test_model(void **state)
{
    (void)state;
    model.arrived = calloc(1, MODEL_BYTES);
    start(MODEL_PAIRS, MODEL_DEPTH);
    for (uint32_t i = 0; i < MODEL_PAIRS; i++) { /* sequence numbers wrap in the middle of it */
        slices.pairs[i].head = slices.pairs[i].tail = UINT32_MAX - 100 * i;
        model.is_up[i] = true;
    }
    for (uint64_t seed = 0; seed < 300; seed++)
        model_run(seed);
    mc_slices_free(&slices);
    free(model.arrived);
}

static void test_limits(void **state)
{
    (void)state;
    struct mc_slices_config config = config_of(0, 1);
    assert_int_equal(mc_slices_init(&slices, &config), 0);
    struct mc_rdma_request one = request(0, 10);
    struct mc_slice_post posts[MC_SLICES_BURST_MAX];
    uint32_t pair, count;
    assert_int_equal(mc_slices_begin(&slices, &one, UINT32_MAX), MC_ERR_INVALID_PARAMS);
    assert_int_equal(mc_slices_begin(&slices, &one, 1), 0);
    assert_false(mc_slices_next(&slices, 1, &pair, posts, &count));
    assert_int_equal(one.result, MC_ERR_TRANSFER_FAIL);
    mc_slices_free(&slices);
    start(1, 1);
    one = request(0, 0);
    assert_int_equal(mc_slices_begin(&slices, &one, 1), 0);
    assert_int_equal(one.result, 0);
    assert_true(mc_slices_is_over(&slices));
    one = request(0, 1u << 30); /* the largest: to the end of both chunks */
    assert_int_equal(mc_slices_begin(&slices, &one, 1), 0);
    assert_int_equal(one.result, 1);
    mc_slices_cancel(&slices, MC_ERR_RPC_TIMEOUT);
    assert_int_equal(one.result, MC_ERR_RPC_TIMEOUT);
    mc_slices_free(&slices);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cutting),     cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_spread),      cmocka_unit_test(test_preferred_and_keys),
        cmocka_unit_test(test_full),        cmocka_unit_test(test_window),
        cmocka_unit_test(test_retries_end), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_stalls),      cmocka_unit_test(test_model),
        cmocka_unit_test(test_limits),      cmocka_unit_test(test_near),
        cmocka_unit_test(test_near_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
