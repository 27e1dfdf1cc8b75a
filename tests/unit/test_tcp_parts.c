/* Large writes over tcp, in parts over several connections: they come whole, or not at all. */
#include "transport_rig.h"

#include "base/error.h"
#include "store/path/path.h"
#include "store/path/paths.h"
#include "store/path/tcp_pool.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <cmocka.h>

#define MIB (1ull << 20)
#ifdef __SANITIZE_THREAD__ /* some thirty times slower */
#define LENGTH (8 * MIB)
#else
#define LENGTH (64 * MIB)
#endif
#define CAPACITY (2 * LENGTH)

static uint32_t lanes(const struct rig *rig)
{
    return ((const struct mc_tcp_path *)rig->path)->idle_count;
}

static int put_whole(struct rig *rig, const struct iovec *parts, size_t part_count, uint64_t length)
{
    struct mc_transfer write =
        rig_transfer(MC_TRANSFER_WRITE, 0, ++rig->generation, 0, length, "whole", parts, part_count);
    return rig_run_one(rig, &write, PATIENT_MS);
}

static int get_whole(struct rig *rig, uint8_t *data, uint64_t length)
{
    struct iovec part = {data, length};
    struct mc_transfer read = rig_transfer(MC_TRANSFER_READ, 0, rig->generation, 0, length, "whole", &part, 1);
    return rig_run_one(rig, &read, PATIENT_MS);
}

static void comes_whole(void **state)
{
    static const uint64_t lengths[] = {2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 5 * MIB + 12345, 8 * MIB};
    struct rig rig;
    uint8_t *data = malloc(8 * MIB), *back = malloc(8 * MIB);
    (void)state;
    assert_int_equal(rig_start(&rig, MC_PATH_TCP, CAPACITY, false, false), 0);
    assert_true(((struct mc_tcp_path *)rig.path)->takes_parts);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        uint64_t length = lengths[i];
        struct iovec parts[4] = {{data, 1}, {data + 1, 65536}, {data + 65537, MIB}, {0}};
        parts[3] = (struct iovec){data + 65537 + MIB, length - 65537 - MIB};
        rig_fill(data, length, i);
        memset(back, 0, length);
        assert_int_equal(put_whole(&rig, parts, 4, length), 0);
        assert_true(rig_wait_live(&rig, 0, rig.generation));
        assert_int_equal(get_whole(&rig, back, length), 0);
        assert_memory_equal(back, data, length);
        if (i == 0)
            assert_int_equal(lanes(&rig), 1);
    }
    assert_true(lanes(&rig) > 1);
    /* To an owner of before, it goes in one piece. */
    atomic_store(&((struct mc_tcp_path *)rig.path)->takes_parts, false);
    struct iovec part = {data, 8 * MIB};
    rig_fill(data, 8 * MIB, 77);
    assert_int_equal(put_whole(&rig, &part, 1, 8 * MIB), 0);
    assert_true(rig_wait_live(&rig, 0, rig.generation));
    assert_int_equal(get_whole(&rig, back, 8 * MIB), 0);
    assert_memory_equal(back, data, 8 * MIB);
    rig_stop(&rig);
    free(back);
    free(data);
}

#define BATCH 24u

/* Large and small ones, and reads of what was there before, in one batch. */
static void a_mixed_batch(void **state)
{
    struct rig rig;
    struct mc_transfer batch[2 * BATCH];
    struct iovec writes[2][BATCH], reads[BATCH];
    uint64_t lengths[BATCH], offsets[BATCH], end = 0;
    (void)state;
    assert_int_equal(rig_start(&rig, MC_PATH_TCP, 4 * BATCH * MIB, false, false), 0);
    for (size_t i = 0; i < BATCH; i++) {
        lengths[i] = i % 3 == 0 ? 100 + i : (i % 3) * MIB + i * 1000;
        offsets[i] = end;
        end += mc_extent_size(lengths[i], 8);
    }
    for (unsigned round = 0; round < 2; round++) {
        size_t count = 0;
        for (size_t i = 0; i < BATCH; i++) {
            writes[round][i] = (struct iovec){malloc(lengths[i]), lengths[i]};
            rig_fill(writes[round][i].iov_base, lengths[i], round * 100 + i);
            batch[count++] = rig_transfer(MC_TRANSFER_WRITE, (uint32_t)(round * BATCH + i), ++rig.generation,
                                          round * end + offsets[i], lengths[i], "key", &writes[round][i], 1);
            if (round == 0)
                continue;
            reads[i] = (struct iovec){calloc(1, lengths[i]), lengths[i]};
            batch[count++] = rig_transfer(MC_TRANSFER_READ, (uint32_t)i, rig.generation - BATCH, offsets[i], lengths[i],
                                          "key", &reads[i], 1);
        }
        rig_run(&rig, batch, count, PATIENT_MS);
        for (size_t i = 0; i < count; i++)
            assert_int_equal(batch[i].result, 0);
        for (size_t i = 0; i < BATCH; i++)
            assert_true(rig_wait_live(&rig, (uint32_t)(round * BATCH + i), rig.generation - BATCH + 1 + i));
    }
    for (size_t i = 0; i < BATCH; i++) {
        assert_memory_equal(reads[i].iov_base, writes[0][i].iov_base, lengths[i]);
        assert_memory_equal(mc_segment_memory_data(rig.memory) + end + offsets[i], writes[1][i].iov_base, lengths[i]);
        free(reads[i].iov_base);
        free(writes[0][i].iov_base);
        free(writes[1][i].iov_base);
    }
    rig_stop(&rig);
}

/* ---- owners that end it in the middle ---- */

struct harm {
    struct rig *rig;
    void (*what)(void *);
    uint64_t generation;
    _Atomic bool done;
};

static void on_cut(void *context, uint32_t slot, uint64_t generation)
{
    (void)slot;
    (void)generation;
    atomic_store(&((struct harm *)context)->done, true);
}

static void cut_now(void *argument)
{
    struct harm *harm = argument;
    mc_serve_cut(harm->rig->serve, 0, harm->generation, harm->rig->paths->node, on_cut, harm);
}

static void hang_up_now(void *argument)
{
    struct harm *harm = argument;
    mc_serve_set_memory(harm->rig->serve, harm->rig->memory);
    atomic_store(&harm->done, true);
}

static void end_now(void *argument)
{
    struct harm *harm = argument;
    mc_serve_set_memory(harm->rig->serve, NULL);
    atomic_store(&harm->done, true);
}

/* When some bytes are there. */
static void *harm_main(void *argument)
{
    struct harm *harm = argument;
    uint8_t byte = 0; /* read by the kernel: other threads write there */
    for (int i = 0; i < 100000 && byte == 0; i++) {
        usleep(100);
        assert_int_equal(pread(mc_segment_memory_data_fd(harm->rig->memory), &byte, 1, LENGTH / 8), 1);
    }
    mc_serve_post(harm->rig->serve, harm->what, harm);
    for (int i = 0; i < 20000 && !atomic_load(&harm->done); i++)
        usleep(500);
    return NULL;
}

static int write_harmed(struct rig *rig, void (*what)(void *))
{
    struct harm harm = {.rig = rig, .what = what, .generation = rig->generation + 1};
    pthread_t thread;
    uint8_t *data = malloc(LENGTH);
    struct iovec part = {data, LENGTH};
    memset(data, 0x5a, LENGTH);
    assert_int_equal(pthread_create(&thread, NULL, harm_main, &harm), 0);
    int rc = put_whole(rig, &part, 1, LENGTH);
    pthread_join(thread, NULL);
    assert_true(atomic_load(&harm.done));
    free(data);
    return rc;
}

static void put_after(struct rig *rig)
{
    uint8_t bytes[100] = {1};
    struct iovec part = {bytes, sizeof(bytes)};
    struct mc_transfer write = rig_transfer(MC_TRANSFER_WRITE, 2, ++rig->generation, 0, 100, "after", &part, 1);
    assert_int_equal(rig_run_one(rig, &write, 5000), 0);
    assert_true(rig_wait_live(rig, 2, rig->generation));
}

static void cut_in_mid_write(void **state)
{
    struct rig rig;
    struct mc_slot seen;
    (void)state;
    assert_int_equal(rig_start(&rig, MC_PATH_TCP, CAPACITY, false, false), 0);
    int rc = write_harmed(&rig, cut_now);
    assert_true(rc == MC_ERR_STALE || rc == 0); /* 0: the last part was there already */
    assert_false(atomic_load(&rig.path->broken));
    usleep(20000);
    assert_false(mc_slot_read(&mc_segment_memory_slots(rig.memory)[0], rig.generation, &seen));
    put_after(&rig);
    rig_stop(&rig);
}

static void hung_up_in_mid_write(void **state)
{
    struct rig rig;
    (void)state;
    assert_int_equal(rig_start(&rig, MC_PATH_TCP, CAPACITY, false, false), 0);
    assert_int_equal(write_harmed(&rig, hang_up_now), MC_ERR_STALE);
    assert_false(atomic_load(&rig.path->broken));
    put_after(&rig);
    rig_stop(&rig);
}

static void ended_in_mid_write(void **state)
{
    struct rig rig;
    (void)state;
    assert_int_equal(rig_start(&rig, MC_PATH_TCP, CAPACITY, false, false), 0);
    assert_int_equal(write_harmed(&rig, end_now), MC_ERR_TRANSFER_FAIL);
    rig_stop(&rig);
}

/* ---- an owner that stands still ---- */

static void *stop_main(void *argument)
{
    const struct rig *rig = argument;
    usleep(5000);
    kill(rig->peer, SIGSTOP);
    return NULL;
}

static void stopped_in_mid_write(void **state)
{
    struct rig rig;
    pthread_t thread;
    uint8_t *data = malloc(LENGTH);
    struct iovec part = {data, LENGTH};
    (void)state;
    memset(data, 0x5a, LENGTH);
    assert_int_equal(rig_start(&rig, MC_PATH_TCP, CAPACITY, true, false), 0);
    assert_int_equal(pthread_create(&thread, NULL, stop_main, &rig), 0);
    int rc = 0;
    for (int i = 0; i < 1000 && rc == 0; i++)
        rc = put_whole(&rig, &part, 1, LENGTH);
    assert_int_equal(rc, MC_ERR_TRANSFER_FAIL); /* long before the deadline */
    pthread_join(thread, NULL);
    kill(rig.peer, SIGCONT);
    rig_stop(&rig);
    free(data);
}

/* ---- what a restarted master would be told meanwhile ---- */

struct rounds {
    struct rig *rig;
    _Atomic bool ended;
};

#define PLACES 12u
#ifdef __SANITIZE_THREAD__ /* who lists what lies there reads keys as any reader does: and looks at the slot again */
#define ROUNDS PLACES
#else
#define ROUNDS (5 * PLACES)
#endif
#define ODD (8 * MIB + 1) /* its block table begins within a unit */

static uint64_t place_bytes(void)
{
    return mc_extent_size(ODD, strlen("place"));
}

static void *rounds_main(void *argument)
{
    struct rounds *rounds = argument;
    struct rig *rig = rounds->rig;
    uint8_t *data = malloc(ODD);
    struct iovec part = {data, ODD};
    rig_fill(data, ODD, 5);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint32_t slot = i % PLACES;
        if (i >= PLACES) /* as a master would */
            assert_int_equal(mc_segment_memory_clear(rig->memory, slot, rig->generation - PLACES + 1), 0);
        struct mc_transfer write =
            rig_transfer(MC_TRANSFER_WRITE, slot, ++rig->generation, slot * place_bytes(), ODD, "place", &part, 1);
        assert_int_equal(rig_run_one(rig, &write, PATIENT_MS), 0);
        assert_true(rig_wait_live(rig, slot, rig->generation));
    }
    atomic_store(&rounds->ended, true);
    free(data);
    return NULL;
}

/* However many threads store parts of a value: it is one extent, all of it. */
static void an_inventory_names_the_extent_once(void **state)
{
    struct rig rig;
    pthread_t thread;
    uint32_t seen = 0;
    (void)state;
    assert_int_equal(rig_start(&rig, MC_PATH_TCP, PLACES * place_bytes(), false, true), 0);
    struct rounds rounds = {&rig, false};
    assert_int_equal(pthread_create(&thread, NULL, rounds_main, &rounds), 0);
    while (!atomic_load(&rounds.ended)) {
        struct mc_content *contents;
        int64_t count = mc_segment_memory_contents(rig.memory, NULL, &contents);
        assert_in_range(count, 0, PLACES);
        for (int64_t i = 0; i < count; i++) {
            assert_true(i == 0 || contents[i].slot > contents[i - 1].slot);
            assert_int_equal(contents[i].offset, contents[i].slot * place_bytes());
            assert_true(contents[i].state != 2 || contents[i].length == place_bytes());
            seen += contents[i].state == 2;
        }
        free(contents);
    }
    pthread_join(thread, NULL);
    assert_true(seen > 0 || rig_threads == 0); /* the serve thread itself needs to announce nothing */
    rig_stop(&rig);
}

static void *thread_put(void *argument)
{
    struct rig *rig = argument;
    uint8_t *data = malloc(3 * MIB);
    struct iovec part = {data, 3 * MIB};
    rig_fill(data, 3 * MIB, 3);
    for (uint32_t i = 0; i < 8; i++) {
        uint64_t generation = __atomic_add_fetch(&rig->generation, 1, __ATOMIC_RELAXED);
        uint32_t slot = (uint32_t)(generation % 24);
        struct mc_transfer write =
            rig_transfer(MC_TRANSFER_WRITE, slot, generation, slot * (3 * MIB + 65536), 3 * MIB, "thread", &part, 1);
        assert_int_equal(rig_run_one(rig, &write, PATIENT_MS), 0);
    }
    free(data);
    return NULL;
}

static void by_several_threads(void **state)
{
    struct rig rig;
    pthread_t threads[3];
    (void)state;
    assert_int_equal(rig_start(&rig, MC_PATH_TCP, 80 * MIB, false, false), 0);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, thread_put, &rig), 0);
    for (size_t i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    rig_stop(&rig);
}

int main(int argument_count, char **arguments)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comes_whole),        cmocka_unit_test(a_mixed_batch),
        cmocka_unit_test(cut_in_mid_write),   cmocka_unit_test(hung_up_in_mid_write),
        cmocka_unit_test(ended_in_mid_write), cmocka_unit_test(stopped_in_mid_write),
        cmocka_unit_test(by_several_threads), cmocka_unit_test(an_inventory_names_the_extent_once),
    };
    if (argument_count > 1 && strcmp(arguments[1], "rig-owner") == 0)
        return rig_owner_main(arguments);
    mc_tcp_part_bytes = MIB;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rig_threads = 2;
    setenv("RIG_THREADS", "2", 1);
    return failed + cmocka_run_group_tests_name("with data threads", tests, NULL, NULL);
}
