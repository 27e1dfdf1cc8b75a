/* Helpers with large copies: every piece once, nobody in a run that is over, and objects of any shape arrive whole,
 * with the sums that one thread makes. */
#include "env/crew.h"
#include "store/path/gather.h"
#include "env/clock.h"

#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB (1u << 20)
#define PIECES 300u

struct seen {
    _Atomic uint8_t times[PIECES];
    _Atomic unsigned inside, others;
    unsigned pause_us;
};

static void piece(void *context, uint32_t index, bool is_own)
{
    struct seen *seen = context;
    atomic_fetch_add(&seen->inside, 1);
    atomic_fetch_add(&seen->times[index], 1);
    if (!is_own)
        atomic_fetch_add(&seen->others, 1);
    if (seen->pause_us > 0)
        usleep(seen->pause_us);
    atomic_fetch_sub(&seen->inside, 1);
}

static void run_once(struct mc_crew *crew, struct seen *seen, uint32_t count)
{
    memset(seen->times, 0, sizeof(seen->times));
    mc_crew_run(crew, count, piece, seen);
    assert_int_equal(atomic_load(&seen->inside), 0);
    for (uint32_t i = 0; i < PIECES; i++)
        assert_int_equal(atomic_load(&seen->times[i]), i < count ? 1 : 0);
}

static void each_piece_once(void **state)
{
    struct seen seen = {.pause_us = 100};
    (void)state;
    assert_null(mc_crew_create(1)); /* one is the caller */
    run_once(NULL, &seen, PIECES);
    assert_int_equal(atomic_load(&seen.others), 0);
    struct mc_crew *crew = mc_crew_create(4);
    assert_non_null(crew);
    for (unsigned round = 0; round < 20; round++)
        run_once(crew, &seen, round % 2 == 0 ? PIECES : round);
    assert_true(atomic_load(&seen.others) > 0); /* they have helped */
    mc_crew_free(crew, false);
    crew = mc_crew_create(1000);
    run_once(crew, &seen, 3);
    mc_crew_free(crew, false);
}

struct caller {
    struct mc_crew *crew;
    struct seen seen;
};

static void *call_often(void *argument)
{
    struct caller *caller = argument;
    for (unsigned round = 0; round < 200; round++)
        run_once(caller->crew, &caller->seen, 1 + round % 7);
    return NULL;
}

static void many_callers(void **state)
{
    struct mc_crew *crew = mc_crew_create(3);
    static struct caller callers[4];
    pthread_t threads[4];
    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        callers[i] = (struct caller){.crew = crew};
        assert_int_equal(pthread_create(&threads[i], NULL, call_often, &callers[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    mc_crew_free(crew, false);
}

/* A run of two pieces, of which the caller takes one and a helper the other; the helper stays in its own until it is
 * let out. */
struct held {
    struct mc_crew *crew;
    sem_t entered, out;
    atomic_bool is_shared; /* a helper has come: else the crew had not seen the end of another run's pieces yet */
};

static void piece_held(void *context, uint32_t index, bool is_own)
{
    struct held *held = context;
    (void)index;
    if (is_own) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++;
        if (sem_timedwait(&held->entered, &until) == 0)
            atomic_store(&held->is_shared, true);
        else
            sem_post(&held->out); /* one that comes late is not held */
        return;
    }
    sem_post(&held->entered);
    while (sem_wait(&held->out) != 0)
        continue;
}

static void *call_held(void *argument)
{
    struct held *held = argument;
    while (!atomic_load(&held->is_shared)) {
        while (sem_trywait(&held->entered) == 0 || sem_trywait(&held->out) == 0)
            continue;
        mc_crew_run(held->crew, 2, piece_held, held);
    }
    return NULL;
}

/* The helper of the later run is done first: both callers come back, whichever of them was woken first. */
static void a_later_run_ends_first(void **state)
{
    struct mc_crew *crew = mc_crew_create(3);
    struct held held[2];
    pthread_t threads[2];
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        held[i] = (struct held){.crew = crew};
        assert_int_equal(sem_init(&held[i].entered, 0, 0), 0);
        assert_int_equal(sem_init(&held[i].out, 0, 0), 0);
        assert_int_equal(pthread_create(&threads[i], NULL, call_held, &held[i]), 0);
        while (!atomic_load(&held[i].is_shared))
            usleep(1000);
        usleep(100000); /* it waits for its helper */
    }
    struct timespec until;
    for (unsigned i = 2; i-- > 0;) {
        sem_post(&held[i].out);
        usleep(100000);
    }
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 10;
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(pthread_timedjoin_np(threads[i], NULL, &until), 0);
    mc_crew_free(crew, false);
}

static void a_child_has_no_helpers(void **state)
{
    struct mc_crew *crew = mc_crew_create(3);
    struct seen seen = {0};
    (void)state;
    run_once(crew, &seen, 10);
    pid_t pid = fork();
    if (pid == 0) {
        mc_crew_free(crew, true);
        _exit(0);
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    mc_crew_free(crew, false);
}

/* The program's own memory, which it makes readable when somebody reads it: also a helper may. */
static uint8_t *lazy;
static _Atomic unsigned faults;

static void on_fault(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    uint8_t *page = (uint8_t *)((uintptr_t)info->si_addr & ~(uintptr_t)4095);
    if (page < lazy || page >= lazy + PIECES * 4096u)
        _exit(3);
    atomic_fetch_add(&faults, 1);
    (void)mprotect(page, 4096, PROT_READ);
}

static void piece_reads(void *context, uint32_t index, bool is_own)
{
    _Atomic unsigned *others = context;
    if (*(volatile uint8_t *)(lazy + index * 4096u) == 0 && !is_own)
        atomic_fetch_add(others, 1);
    usleep(100);
}

static void a_fault_is_the_programs(void **state)
{
    struct sigaction ours = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO}, before;
    struct mc_crew *crew = mc_crew_create(4);
    _Atomic unsigned others = 0;
    (void)state;
    lazy = mmap(NULL, PIECES * 4096u, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(lazy, MAP_FAILED);
    assert_int_equal(sigaction(SIGSEGV, &ours, &before), 0);
    mc_crew_run(crew, PIECES, piece_reads, &others);
    assert_int_equal(sigaction(SIGSEGV, &before, NULL), 0);
    assert_int_equal(atomic_load(&faults), PIECES);
    assert_true(atomic_load(&others) > 0);
    munmap(lazy, PIECES * 4096u);
    mc_crew_free(crew, false);
}

/* ---- objects ---- */

static int ticks;
static pthread_t caller_thread;

static void on_tick(void *context)
{
    (void)context;
    assert_true(pthread_equal(caller_thread, pthread_self()));
    ticks++;
}

struct object {
    uint8_t *bytes, *memory; /* the caller's; the segment's data */
    uint64_t length;
    struct iovec parts[5];
    struct mc_transfer transfer;
    struct mc_slot slot;
};

static void object_make(struct object *object, uint64_t length)
{
    *object = (struct object){.length = length, .bytes = malloc(length), .memory = calloc(1, length + 2 * MIB)};
    assert_true(object->bytes != NULL && object->memory != NULL);
    for (uint64_t i = 0; i < length; i++)
        object->bytes[i] = (uint8_t)(i * 31 + (i >> 12));
    const uint64_t ends[6] = {0, 1, MIB + 7, MIB + 7, length / 2 + 3, length};
    for (unsigned i = 0; i < 5; i++)
        object->parts[i] = (struct iovec){object->bytes + ends[i], ends[i + 1] - ends[i]};
    object->transfer = (struct mc_transfer){.kind = MC_TRANSFER_WRITE,
                                            .place = {.slot = 0, .generation = 9, .offset = 4096},
                                            .object_length = length,
                                            .length = length,
                                            .parts = object->parts,
                                            .part_count = 5,
                                            .key = {"key", 3}};
}

static void object_free(struct object *object)
{
    free(object->bytes);
    free(object->memory);
}

static int write_with(struct object *object, struct mc_crew *crew, struct mc_wire_commit_item *commit)
{
    struct mc_run run = {.deadline_ns = mc_clock_ns() + 60000000000u, .tick = on_tick};
    struct mc_motion motion;
    mc_motion_start(&motion, &run, true);
    motion.crew = crew;
    motion.next_tick_ns = 0;
    return mc_memory_write(object->memory, &object->transfer, &motion, commit);
}

static int read_with(struct object *object, struct mc_crew *crew, uint64_t from, uint64_t to, uint8_t *into,
                     uint64_t patience_ns)
{
    struct mc_run run = {.deadline_ns = mc_clock_ns() + patience_ns, .tick = on_tick};
    struct iovec parts[2] = {{into, (to - from) / 3}, {into + (to - from) / 3, to - from - (to - from) / 3}};
    struct mc_transfer transfer = object->transfer;
    struct mc_motion motion;
    transfer.kind = MC_TRANSFER_READ;
    transfer.offset = from;
    transfer.length = to - from;
    transfer.parts = parts;
    transfer.part_count = 2;
    transfer.hash_low = object->slot.hash_low;
    transfer.hash_high = object->slot.hash_high;
    mc_motion_start(&motion, &run, true);
    motion.crew = crew;
    return mc_memory_read(&object->slot, object->memory, object->length + 2 * MIB, &transfer, &motion);
}

static void commit_here(struct object *object, const struct mc_wire_commit_item *commit)
{
    object->slot.offset = commit->offset;
    object->slot.length = commit->length;
    object->slot.hash_low = commit->hash_low;
    object->slot.hash_high = commit->hash_high;
    object->slot.crc = commit->crc;
    object->slot.key_length = commit->key_length;
    object->slot.block_shift = commit->block_shift;
    object->slot.generation = commit->generation;
    object->slot.state = MC_SLOT_LIVE;
}

static void objects_arrive_whole(void **state)
{
    static const uint64_t lengths[] = {4 * MIB, 4 * MIB + 1, 7 * MIB - 3, 33 * MIB + 12345};
    struct mc_crew *crew = mc_crew_create(3);
    (void)state;
    caller_thread = pthread_self();
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        struct object alone, shared;
        struct mc_wire_commit_item one, many;
        uint64_t length = lengths[i];
        object_make(&alone, length);
        object_make(&shared, length);
        assert_int_equal(write_with(&alone, NULL, &one), 0);
        assert_int_equal(write_with(&shared, crew, &many), 0);
        assert_int_equal(one.crc, many.crc);
        assert_memory_equal(alone.memory, shared.memory, length + 2 * MIB); /* with table and key */
        commit_here(&shared, &many);
        uint8_t *back = malloc(length);
        assert_non_null(back);
        const uint64_t ranges[][2] = {{0, length}, {1, length - 1}, {77, length}, {MIB - 5, length}};
        for (size_t j = 0; j < 4; j++) {
            uint64_t from = ranges[j][0], to = ranges[j][1];
            memset(back, 0, length);
            assert_int_equal(read_with(&shared, crew, from, to, back, 60000000000u), 0);
            assert_memory_equal(back, shared.bytes + from, to - from);
        }
        for (uint64_t at = 0; at < length; at += length / 5 - 1) { /* a rotten bit, wherever it is */
            shared.memory[4096 + at] ^= 4;
            assert_int_equal(read_with(&shared, crew, 0, length, back, 60000000000u), MC_ERR_CHECKSUM_MISMATCH);
            shared.memory[4096 + at] ^= 4;
        }
        assert_int_equal(read_with(&shared, crew, 0, length, back, 0), MC_ERR_RPC_TIMEOUT);
        shared.slot.generation++;
        assert_int_equal(read_with(&shared, crew, 0, length, back, 60000000000u), MC_ERR_REPLICA_IS_GONE);
        free(back);
        object_free(&alone);
        object_free(&shared);
    }
    assert_true(ticks > 0);
    mc_crew_free(crew, false);
}

/* ---- several objects ---- */

static void windows(void **state)
{
    enum { COUNT = 100 };
    struct mc_run run = {.deadline_ns = mc_clock_ns() + 60000000000u};
    struct mc_crew *crew = mc_crew_create(3);
    struct mc_transfer transfers[COUNT], *all[COUNT];
    struct mc_source source = {0};
    struct mc_motion motion;
    (void)state;
    mc_motion_start(&motion, &run, true);
    for (unsigned i = 0; i < COUNT; i++) {
        transfers[i] = (struct mc_transfer){.length = 100000};
        all[i] = &transfers[i];
    }
    assert_int_equal(mc_motion_window(&motion, all, COUNT), 1); /* nobody helps */
    motion.crew = crew;
    assert_int_equal(mc_motion_window(&motion, all, COUNT), MC_WINDOW_MAX);
    assert_int_equal(mc_motion_window(&motion, all, 50), 50);
    assert_int_equal(mc_motion_window(&motion, all, 30), 1); /* too little */
    transfers[2].length = MC_WINDOW_BYTES;
    assert_int_equal(mc_motion_window(&motion, all, COUNT), 3);
    transfers[1].source = &source; /* its caller's alone */
    assert_int_equal(mc_motion_window(&motion, all, COUNT), 1);
    assert_int_equal(mc_motion_window(&motion, all + 2, 1), 1);
    mc_crew_free(crew, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_piece_once),
        cmocka_unit_test(many_callers),
        cmocka_unit_test(a_later_run_ends_first),
        cmocka_unit_test(a_child_has_no_helpers),
        cmocka_unit_test(a_fault_is_the_programs),
        cmocka_unit_test(objects_arrive_whole),
        cmocka_unit_test(windows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
