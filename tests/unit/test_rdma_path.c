/* A path by RDMA whose user lacks something of its own, or whose owner has no place for one more link: nothing is said
 * against the owner, and the bytes go by tcp where they can. */
#include "transport_rig.h"

#include "store/path/path.h"
#include "store/path/paths.h"
#include "fake_verbs.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <cmocka.h>

#define LENGTH 100000u
#define DEVICES 2u

enum { BY_TCP = 2, BY_RDMA }; /* of mc_paths_counters.path_bytes */

static void start(struct rig *rig, uint32_t connection_limit)
{
    const struct fake_device_config devices[DEVICES] = {fake_roce(0), fake_roce(1)};
    struct mc_rdma_options options = {0};
    fake_reset(devices, DEVICES);
    options.verbs = fake_verbs();
    assert_int_equal(mc_rdma_open(&options, &rig_rdma), 0);
    rig_connection_limit = connection_limit;
    assert_int_equal(rig_start(rig, MC_PATH_RDMA, 8u << 20, false, false), 0);
    rig_connection_limit = 0;
    rig->paths->allowed_paths |= MC_PATH_TCP; /* now that it is there */
}

static uint64_t moved(const struct rig *rig, unsigned by)
{
    return atomic_load(&mc_paths_counters(rig->paths)->path_bytes[by]);
}

static int write_one(struct rig *rig, uint32_t slot, uint64_t generation, uint64_t timeout_ms)
{
    static uint8_t data[LENGTH];
    struct iovec part = {data, LENGTH};
    struct mc_transfer write =
        rig_transfer(MC_TRANSFER_WRITE, slot, generation, (uint64_t)slot << 20, LENGTH, "own", &part, 1);
    return rig_run_one(rig, &write, timeout_ms);
}

static int read_one(struct rig *rig, uint32_t slot, uint64_t generation, uint64_t timeout_ms)
{
    static uint8_t data[LENGTH];
    struct iovec part = {data, LENGTH};
    struct mc_transfer read = rig_transfer(MC_TRANSFER_READ, slot, generation, 0, LENGTH, "own", &part, 1);
    read.place.offset = (uint64_t)slot << 20;
    return rig_run_one(rig, &read, timeout_ms);
}

/* The whole way there and back, by RDMA. */
static void expect_rdma(struct rig *rig, uint32_t slot)
{
    uint64_t before = moved(rig, BY_RDMA), generation = ++rig->generation;
    assert_int_equal(write_one(rig, slot, generation, 10000), 0);
    assert_true(rig_wait_live(rig, slot, generation));
    assert_int_equal(read_one(rig, slot, generation, 10000), 0);
    assert_int_equal(moved(rig, BY_RDMA), before + 2 * LENGTH);
}

/* ---- another thread, which keeps the only link ---- */

struct holder {
    struct rig *rig;
    pthread_t thread;
    uint64_t generation;
    int result;
};

static void *holder_run(void *argument)
{
    struct holder *holder = argument;
    static uint8_t data[LENGTH];
    struct iovec part = {data, LENGTH};
    struct mc_transfer write =
        rig_transfer(MC_TRANSFER_WRITE, 1, holder->generation, 1u << 20, LENGTH, "held", &part, 1);
    holder->result = rig_run_one(holder->rig, &write, 10000);
    return NULL;
}

static void hold(struct holder *holder, struct rig *rig)
{
    uint64_t works = fake_counts().works;
    *holder = (struct holder){.rig = rig, .generation = ++rig->generation};
    for (uint32_t i = 0; i < DEVICES; i++)
        fake_hold(i);
    assert_int_equal(pthread_create(&holder->thread, NULL, holder_run, holder), 0);
    for (unsigned wait = 0; fake_counts().works == works; wait++) {
        assert_true(wait < 5000);
        usleep(1000);
    }
}

static void release(struct holder *holder)
{
    for (uint32_t i = 0; i < DEVICES; i++)
        fake_release(i);
    pthread_join(holder->thread, NULL);
}

/* ---- what is lacking ---- */

/* No memory can be registered here: the bytes go by tcp, and the path stays. Soon it is tried again. */
static void no_stage(void **state)
{
    (void)state;
    struct rig rig;
    start(&rig, 0);
    for (uint32_t i = 0; i < DEVICES; i++)
        fake_fail_registrations(i, 1000, ENOMEM);
    assert_int_equal(write_one(&rig, 0, ++rig.generation, 5000), 0);
    mc_paths_nudge(rig.paths, RIG_SEGMENT, false);
    assert_true(rig_wait_live(&rig, 0, rig.generation));
    assert_int_equal(read_one(&rig, 0, rig.generation, 5000), 0);
    assert_int_equal(moved(&rig, BY_RDMA), 0);
    assert_int_equal(moved(&rig, BY_TCP), 2 * LENGTH);
    rig.paths->allowed_paths = MC_PATH_RDMA; /* nothing else may be used: so it is told */
    assert_int_equal(write_one(&rig, 1, ++rig.generation, 5000), MC_ERR_NO_MEMORY);
    assert_int_equal(read_one(&rig, 0, rig.generation, 5000), MC_ERR_NO_MEMORY);
    assert_false(atomic_load(&rig.path->broken));
    for (uint32_t i = 0; i < DEVICES; i++)
        fake_fail_registrations(i, 0, 0);
    usleep(1100000);
    expect_rdma(&rig, 0);
    rig_stop(&rig);
}

/* No queue pairs for a second link: what the first one is not free for goes by tcp. */
static void no_queue_pairs(void **state)
{
    (void)state;
    struct rig rig;
    struct holder holder;
    start(&rig, 0);
    expect_rdma(&rig, 0);
    uint64_t by_rdma = moved(&rig, BY_RDMA), generation = rig.generation;
    hold(&holder, &rig);
    for (uint32_t i = 0; i < DEVICES; i++)
        fake_fail_qps(i, ENOMEM);
    rig.paths->allowed_paths = MC_PATH_RDMA;
    int only = read_one(&rig, 0, generation, 5000);
    rig.paths->allowed_paths |= MC_PATH_TCP;
    int read = read_one(&rig, 0, generation, 5000), write = write_one(&rig, 2, ++rig.generation, 5000);
    mc_paths_nudge(rig.paths, RIG_SEGMENT, false);
    bool is_live = rig_wait_live(&rig, 2, rig.generation), is_broken = atomic_load(&rig.path->broken);
    uint64_t still_by_rdma = moved(&rig, BY_RDMA);
    for (uint32_t i = 0; i < DEVICES; i++)
        fake_fail_qps(i, 0);
    release(&holder);
    assert_int_equal(only, MC_ERR_NO_MEMORY); /* as it is, where tcp is not allowed */
    assert_int_equal(read, 0);
    assert_int_equal(write, 0);
    assert_true(is_live);
    assert_false(is_broken);
    assert_int_equal(still_by_rdma, by_rdma);
    assert_int_equal(moved(&rig, BY_TCP), 2 * LENGTH);
    expect_rdma(&rig, 3);
    rig_stop(&rig);
}

/* The owner takes one connection, and another thread uses it: it is busy, and lives. */
static void no_place(void **state)
{
    (void)state;
    struct rig rig;
    struct holder holder;
    start(&rig, 1);
    expect_rdma(&rig, 0);
    uint64_t generation = rig.generation;
    hold(&holder, &rig);
    rig.paths->allowed_paths = MC_PATH_RDMA; /* else it waits for a place in tcp's queue */
    int read = read_one(&rig, 0, generation, 5000);
    rig.paths->allowed_paths |= MC_PATH_TCP;
    bool is_broken = atomic_load(&rig.path->broken);
    release(&holder);
    assert_int_equal(read, MC_ERR_BUSY);
    assert_false(is_broken);
    expect_rdma(&rig, 3);
    rig_stop(&rig);
}

struct sharer {
    struct rig *rig;
    uint64_t generation;
    unsigned failed, done;
};

static void *share(void *argument)
{
    struct sharer *sharer = argument;
    uint8_t *data = malloc(LENGTH);
    struct iovec part = {data, LENGTH};
    for (unsigned i = 0; i < 200; i++) {
        struct mc_transfer read = rig_transfer(MC_TRANSFER_READ, 0, sharer->generation, 0, LENGTH, "own", &part, 1);
        int rc = rig_run_one(sharer->rig, &read, 1000);
        sharer->done += rc == 0;
        sharer->failed += rc != 0 && rc != MC_ERR_BUSY; /* which says nothing against the owner */
    }
    free(data);
    return NULL;
}

static void two_share_one_place(void **state)
{
    (void)state;
    struct rig rig;
    struct sharer sharers[2];
    pthread_t threads[2];
    start(&rig, 1);
    expect_rdma(&rig, 0);
    for (int i = 0; i < 2; i++) {
        sharers[i] = (struct sharer){.rig = &rig, .generation = rig.generation};
        assert_int_equal(pthread_create(&threads[i], NULL, share, &sharers[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(sharers[i].failed, 0);
        assert_true(sharers[i].done > 0);
    }
    assert_false(atomic_load(&rig.path->broken));
    expect_rdma(&rig, 3);
    rig_stop(&rig);
}

/* An owner that has ended is what a path is broken by. */
static void no_owner(void **state)
{
    (void)state;
    struct rig rig;
    start(&rig, 0);
    expect_rdma(&rig, 0);
    mc_serve_destroy(rig.serve);
    rig.serve = NULL;
    assert_int_equal(read_one(&rig, 0, rig.generation, 5000), MC_ERR_TRANSFER_FAIL);
    assert_true(atomic_load(&rig.path->broken));
    rig_stop(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_stage), cmocka_unit_test(no_queue_pairs),      cmocka_unit_test(no_place),
        cmocka_unit_test(no_owner), cmocka_unit_test(two_share_one_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
