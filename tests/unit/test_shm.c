/* What only a path over shared memory can do wrong: an owner that does not read, deadlines of several callers, and a
 * process without descriptors. */
#include "transport_rig.h"

#include "base/error.h"
#include "store/path/path.h"
#include "store/path/paths.h"
#include "hold_still.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <cmocka.h>

#define CAPACITY (16u << 20)
#define STEP 4096u
#define COUNT 1000u /* objects of a large frame */
#define FULL_AFTER 100000
#define FULL_REFUSALS 5
#define LIMIT 256 /* descriptors */

static void peer_start(struct rig *rig)
{
    assert_int_equal(rig_start(rig, MC_PATH_SHM, CAPACITY, true, false), 0);
}

/* Writes `count` objects of one byte from slot `first` on, which is told by one frame; the first failure. Threads that
 * write at once have slots of their own: nobody promises more than one writer of a place. */
static int tell(struct rig *rig, size_t first, size_t count, uint64_t generation, uint64_t timeout_ms)
{
    static uint8_t byte = 5;
    struct iovec part = {&byte, 1};
    struct mc_transfer *writes = calloc(count, sizeof(*writes));
    for (size_t i = 0; i < count; i++)
        writes[i] =
            rig_transfer(MC_TRANSFER_WRITE, (uint32_t)(first + i), generation, (first + i) * STEP, 1, "told", &part, 1);
    rig_run(rig, writes, count, timeout_ms);
    int rc = 0;
    for (size_t i = 0; i < count && rc == 0; i++)
        rc = writes[i].result;
    free(writes);
    return rc;
}

static void wait_told(struct rig *rig, uint32_t slot, uint64_t generation)
{
    uint8_t byte = 0;
    struct iovec part = {&byte, 1};
    struct mc_transfer read =
        rig_transfer(MC_TRANSFER_READ, slot, generation, slot * (uint64_t)STEP, 1, "told", &part, 1);
    for (int i = 0; i < 5000 && rig_run_one(rig, &read, 5000) != 0; i++)
        usleep(1000);
    assert_int_equal(read.result, 0);
    assert_int_equal(byte, 5);
}

struct teller {
    struct rig *rig;
    uint32_t slot;
    uint64_t generation, timeout_ms;
    pthread_t thread;
    _Atomic int result;
};

static void *teller_run(void *argument)
{
    struct teller *teller = argument;
    atomic_store(&teller->result, tell(teller->rig, teller->slot, 1, teller->generation, teller->timeout_ms));
    return NULL;
}

static void teller_start(struct teller *teller, struct rig *rig, uint32_t slot, uint64_t timeout_ms)
{
    *teller = (struct teller){
        .rig = rig, .slot = slot, .generation = ++rig->generation, .timeout_ms = timeout_ms, .result = 1};
    assert_int_equal(pthread_create(&teller->thread, NULL, teller_run, teller), 0);
}

/* Stops the owner and fills the connection to it. */
static void peer_fill(struct rig *rig)
{
    unsigned refused = 0;
    assert_int_equal(tell(rig, 0, 1, ++rig->generation, 5000), 0);
    wait_told(rig, 0, rig->generation);
    hold_still(rig->peer);
    /* One that comes too late may have been too slow itself, on a busy machine. */
    for (int i = 0; i < FULL_AFTER && refused < FULL_REFUSALS; i++) {
        int rc = tell(rig, 0, 1, ++rig->generation, 20);
        assert_true(rc == 0 || rc == MC_ERR_RPC_TIMEOUT);
        refused = rc == 0 ? 0 : refused + 1;
    }
    assert_int_equal(refused, FULL_REFUSALS);
}

/* Who has little time left fails alone, and by it; who has more goes on. */
static void a_deadline_is_ones_own(void **state)
{
    struct rig rig;
    struct teller patient;
    (void)state;
    peer_start(&rig);
    peer_fill(&rig);
    assert_false(atomic_load(&rig.path->broken));
    teller_start(&patient, &rig, 1, 5000);
    usleep(50000);
    uint64_t start_ns = mc_clock_ns();
    assert_int_equal(tell(&rig, 0, 1, rig.generation + 1, 20), MC_ERR_RPC_TIMEOUT);
    assert_true(mc_clock_ns() - start_ns < MC_STALL_NS / 2);
    assert_int_equal(atomic_load(&patient.result), 1);
    assert_int_equal(kill(rig.peer, SIGCONT), 0);
    pthread_join(patient.thread, NULL);
    assert_int_equal(atomic_load(&patient.result), 0);
    assert_false(atomic_load(&rig.path->broken));
    wait_told(&rig, 1, patient.generation);
    rig_stop(&rig);
}

/* A silence is told of by who waited through it, not by those behind him. */
static void a_silence_is_told_once(void **state)
{
    struct rig rig;
    struct teller first, second;
    (void)state;
    peer_start(&rig);
    peer_fill(&rig);
    teller_start(&first, &rig, 1, 5000);
    usleep(50000);
    teller_start(&second, &rig, 2, 5000);
    pthread_join(first.thread, NULL);
    pthread_join(second.thread, NULL);
    assert_int_equal(atomic_load(&first.result), MC_ERR_RPC_TIMEOUT);
    assert_int_equal(atomic_load(&second.result), MC_ERR_BUSY);
    assert_true(atomic_load(&rig.path->broken));
    assert_int_equal(kill(rig.peer, SIGCONT), 0);
    rig_stop(&rig);
}

static void *continue_soon(void *argument)
{
    struct rig *rig = argument;
    usleep(300000);
    kill(rig->peer, SIGCONT);
    return NULL;
}

/* A deadline that comes within a frame leaves no part of it behind. */
static void frames_stay_whole(void **state)
{
    struct rig rig;
    pthread_t thread;
    int late = 0;
    (void)state;
    peer_start(&rig);
    assert_true(rig.endpoint.slot_count >= COUNT);
    for (int round = 0; round < 3; round++) {
        hold_still(rig.peer);
        assert_int_equal(pthread_create(&thread, NULL, continue_soon, &rig), 0);
        uint64_t until_ns = rig_deadline(300);
        while (mc_clock_ns() < until_ns) {
            uint64_t start_ns = mc_clock_ns();
            int rc = tell(&rig, 0, COUNT, ++rig.generation, 20);
            assert_true(rc == 0 || rc == MC_ERR_RPC_TIMEOUT);
            late += rc < 0 || mc_clock_ns() - start_ns >= 20000000u; /* nothing of it was taken, or only a part */
        }
        pthread_join(thread, NULL);
        assert_false(atomic_load(&rig.path->broken));
        assert_int_equal(tell(&rig, 0, COUNT, ++rig.generation, 5000), 0);
        wait_told(&rig, 0, rig.generation);
        wait_told(&rig, COUNT - 1, rig.generation);
    }
    assert_true(late > 0);
    rig_stop(&rig);
}

/* Takes all descriptors up to LIMIT; how many. */
static size_t take_all(int *fds)
{
    size_t count = 0;
    while (count < LIMIT && (fds[count] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
        count++;
    assert_int_equal(errno, EMFILE);
    return count;
}

/* No room for a descriptor is our own trouble, whichever of those that an attachment needs it is. */
static void descriptors_are_out(void **state)
{
    struct rig rig;
    struct rlimit before, few;
    int fds[LIMIT];
    (void)state;
    peer_start(&rig);
    struct mc_paths *paths = mc_paths_create(mc_random_id(), mc_random_u64(), MC_PATH_SHM);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = LIMIT;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    size_t count = take_all(fds), room = 0;
    int rc = MC_ERR_BUSY;
    for (; rc == MC_ERR_BUSY && room < 16; room++) {
        struct mc_path *path;
        rc = mc_path_get(paths, &rig.endpoint, rig_deadline(5000), &path);
        if (rc == 0)
            mc_path_release(path);
        else
            close(fds[--count]);
    }
    while (count > 0)
        close(fds[--count]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(rc, 0);
    assert_true(room > 5); /* a socket, three that were passed, one that was opened anew */
    mc_paths_destroy(paths);
    rig_stop(&rig);
}

/* Of this program: one of a segment can be made to take long, as it does of a large one that nobody else has. */
static _Atomic bool is_held;
static sem_t held, let_go;

int munmap(void *address, size_t length)
{
    if (length >= CAPACITY && atomic_load(&is_held)) {
        sem_post(&held);
        while (sem_wait(&let_go) != 0)
            continue;
    }
    return (int)syscall(SYS_munmap, address, length);
}

static void *drop(void *argument)
{
    struct rig *rig = argument;
    mc_path_drop(rig->path);
    mc_path_release(rig->path);
    return argument;
}

/* A call whose owner has died is not what gives its memory back to the kernel: it has a deadline. */
static void memory_is_given_back_beside(void **state)
{
    struct rig rig;
    pthread_t thread;
    struct timespec until;
    void *ended = NULL;
    (void)state;
    peer_start(&rig);
    assert_int_equal(tell(&rig, 0, 1, ++rig.generation, 5000), 0);
    assert_int_equal(sem_init(&held, 0, 0), 0);
    assert_int_equal(sem_init(&let_go, 0, 0), 0);
    atomic_store(&is_held, true);
    assert_int_equal(pthread_create(&thread, NULL, drop, &rig), 0);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 10;
    int rc = pthread_timedjoin_np(thread, &ended, &until);
    assert_int_equal(sem_wait(&held), 0); /* it is given back, though */
    atomic_store(&is_held, false);
    sem_post(&let_go);
    assert_int_equal(rc, 0);
    assert_int_equal(mc_path_get(rig.paths, &rig.endpoint, rig_deadline(5000), &rig.path), 0);
    assert_int_equal(tell(&rig, 1, 1, ++rig.generation, 5000), 0);
    rig_stop(&rig);
}

int main(int count, char **arguments)
{
    if (count == 4 && strcmp(arguments[1], "rig-owner") == 0)
        return rig_owner_main(arguments);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_deadline_is_ones_own),      cmocka_unit_test(a_silence_is_told_once),
        cmocka_unit_test(frames_stay_whole),           cmocka_unit_test(descriptors_are_out),
        cmocka_unit_test(memory_is_given_back_beside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
