/* Writes over tcp that an owner ends on purpose while their bytes are on their way: it has not failed, and is not said
 * to have. */
#include "transport_rig.h"

#include "base/error.h"
#include "store/path/path.h"
#include "store/path/paths.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <cmocka.h>

#ifdef __SANITIZE_THREAD__ /* some thirty times slower */
#define LENGTH (8ull << 20)
#else
#define LENGTH (64ull << 20)
#endif
#define CAPACITY (2 * LENGTH)
#define CHUNK (64u << 10)

/* The bytes of a write; in the middle of it something happens to the owner. */
struct harmful {
    struct mc_source source;
    struct rig *rig;
    void (*harm)(void *);
    uint64_t taken;
    uint64_t generation;
    _Atomic bool done;
    uint8_t bytes[MC_SOURCE_HELD_BYTES + CHUNK];
};

static const uint8_t *harmful_take(struct mc_source *source, uint64_t want, size_t *length)
{
    struct harmful *harmful = (struct harmful *)source;
    uint64_t before = harmful->taken;
    *length = want < CHUNK ? (size_t)want : CHUNK;
    harmful->taken += *length;
    if (before < LENGTH / 2 && harmful->taken >= LENGTH / 2) {
        mc_serve_post(harmful->rig->serve, harmful->harm, harmful);
        for (int i = 0; i < 20000 && !atomic_load(&harmful->done); i++)
            usleep(500);
    }
    return harmful->bytes;
}

static void on_cut(void *context, uint32_t slot, uint64_t generation)
{
    (void)slot;
    (void)generation;
    atomic_store(&((struct harmful *)context)->done, true);
}

static void cut_now(void *argument)
{
    struct harmful *harmful = argument;
    mc_serve_cut(harmful->rig->serve, 0, harmful->generation, harmful->rig->paths->node, on_cut, harmful);
}

static void hang_up_now(void *argument)
{
    struct harmful *harmful = argument;
    mc_serve_set_memory(harmful->rig->serve, harmful->rig->memory);
    atomic_store(&harmful->done, true);
}

/* As one whose process has ended: nobody answers there. */
static void end_now(void *argument)
{
    struct harmful *harmful = argument;
    mc_serve_set_memory(harmful->rig->serve, NULL);
    atomic_store(&harmful->done, true);
}

/* The result of a large write, and of a small one behind it in the same batch. */
static void write_harmed(struct rig *rig, void (*harm)(void *), int *large, int *small)
{
    struct harmful *harmful = calloc(1, sizeof(*harmful));
    uint8_t byte = 7;
    struct iovec part = {&byte, 1}, unread = {harmful->bytes, LENGTH};
    harmful->source.take = harmful_take;
    harmful->rig = rig;
    harmful->harm = harm;
    harmful->generation = ++rig->generation;
    rig->generation++; /* as of two grants: an owner applies no commit of one up to that whose bytes it threw away */
    struct mc_transfer writes[2] = {
        rig_transfer(MC_TRANSFER_WRITE, 0, harmful->generation, 0, LENGTH, "harmed", &unread, 1),
        rig_transfer(MC_TRANSFER_WRITE, 1, rig->generation, LENGTH + MC_EXTENT_SLACK, 1, "small", &part, 1)};
    writes[0].source = &harmful->source;
    rig_run(rig, writes, 2, PATIENT_MS);
    assert_true(atomic_load(&harmful->done));
    *large = writes[0].result;
    *small = writes[1].result;
    free(harmful);
}

static void put_after(struct rig *rig)
{
    uint8_t bytes[100] = {1};
    struct iovec part = {bytes, sizeof(bytes)};
    struct mc_transfer write = rig_transfer(MC_TRANSFER_WRITE, 2, ++rig->generation, 0, 100, "after", &part, 1);
    assert_int_equal(rig_run_one(rig, &write, 5000), 0);
    assert_true(rig_wait_live(rig, 2, rig->generation));
}

/* The grant is taken back in the middle: what is left is drained, the connection and all behind it go on. */
static void cut_in_mid_write(void **state)
{
    struct rig rig;
    int large, small;
    (void)state;
    assert_int_equal(rig_start(&rig, MC_PATH_TCP, CAPACITY, false, false), 0);
    write_harmed(&rig, cut_now, &large, &small);
    assert_int_equal(large, 0); /* all was sent; the owner has told the master what became of it */
    assert_int_equal(small, 0);
    assert_false(atomic_load(&rig.path->broken));
    assert_true(rig_wait_live(&rig, 1, rig.generation));
    struct mc_slot seen;
    assert_false(mc_slot_read(&mc_segment_memory_slots(rig.memory)[0], rig.generation - 1, &seen));
    put_after(&rig);
    rig_stop(&rig);
}

/* The owner hangs up in the middle, and answers who comes again: nobody is accused. */
static void hung_up_in_mid_write(void **state)
{
    struct rig rig;
    int large, small;
    (void)state;
    assert_int_equal(rig_start(&rig, MC_PATH_TCP, CAPACITY, false, false), 0);
    write_harmed(&rig, hang_up_now, &large, &small);
    assert_int_equal(large, MC_ERR_STALE);
    assert_true(small == 0 || small == MC_ERR_STALE);
    assert_false(atomic_load(&rig.path->broken));
    put_after(&rig);
    rig_stop(&rig);
}

/* It hangs up for good. */
static void ended_in_mid_write(void **state)
{
    struct rig rig;
    int large, small;
    (void)state;
    assert_int_equal(rig_start(&rig, MC_PATH_TCP, CAPACITY, false, false), 0);
    write_harmed(&rig, end_now, &large, &small);
    assert_int_equal(large, MC_ERR_TRANSFER_FAIL);
    rig_stop(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cut_in_mid_write),
        cmocka_unit_test(hung_up_in_mid_write),
        cmocka_unit_test(ended_in_mid_write),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rig_threads = 2;
    return failed + cmocka_run_group_tests_name("with data threads", tests, NULL, NULL);
}
