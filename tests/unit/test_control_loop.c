/* The thread that speaks with the master waits for nothing that the kernel, or memory that is slow, takes long for:
 * meanwhile what peers commit is told, and what the master clears is answered. */
#include "owner_rig.h"

#include "rdma/rdma.h"
#include "store/owner/inside.h"
#include "store/segment/let_go.h"
#include "store/segment/serve_inside.h"
#include "fake_verbs.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define PAGE 4096u

/* ---- what takes as long as the test wants ---- */

struct held {
    _Atomic size_t length; /* of what; 0: nothing is held */
    atomic_uint count;     /* so many were */
};
static struct held unmapping, populating;

static void hold(struct held *held, size_t length)
{
    if (length < atomic_load(&held->length) || atomic_load(&held->length) == 0)
        return;
    atomic_fetch_add(&held->count, 1);
    while (atomic_load(&held->length) != 0) {
        struct timespec pause = {.tv_nsec = 1000000};
        nanosleep(&pause, NULL);
    }
}

static void hold_begin(struct held *held, size_t length)
{
    atomic_store(&held->count, 0);
    atomic_store(&held->length, length);
}

static void hold_wait(struct held *held)
{
    uint64_t end_ns = soon();
    while (atomic_load(&held->count) == 0 && mc_clock_ns() < end_ns)
        usleep(1000);
    assert_true(atomic_load(&held->count) > 0);
}

static void hold_end(struct held *held)
{
    atomic_store(&held->length, 0);
}

/* In place of the C library's. */
int munmap(void *address, size_t length)
{
    hold(&unmapping, length);
    return (int)syscall(SYS_munmap, address, length);
}

int madvise(void *address, size_t length, int advice)
{
    if (advice == MADV_POPULATE_WRITE)
        hold(&populating, length);
    return (int)syscall(SYS_madvise, address, length, advice);
}

/* A page that comes when the test wants, as one of a file on a disk that hangs. */
static struct held reading;
static uint8_t *_Atomic slow_page;

static void on_fault(int number, siginfo_t *info, void *context)
{
    (void)context;
    uint8_t *page = atomic_load(&slow_page), *address = info->si_addr;
    int error = errno;
    if (page == NULL || address < page || address >= page + PAGE) {
        signal(number, SIG_DFL);
        return;
    }
    hold(&reading, PAGE);
    (void)mprotect(page, PAGE, PROT_READ | PROT_WRITE);
    errno = error;
}

static void page_make_slow(uint8_t *page)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    assert_int_equal(sigaction(SIGSEGV, &action, NULL), 0);
    atomic_store(&slow_page, page);
    hold_begin(&reading, PAGE);
    assert_int_equal(mprotect(page, PAGE, PROT_NONE), 0);
}

/* ---- */

static void populated_await(struct rig *rig)
{
    while (rig->mount.populated < CAPACITY)
        answer_mount(rig, rig_expect_mount(rig), 0);
}

static void say_check(struct rig *rig, uint32_t slot, uint64_t generation)
{
    struct mc_wire_segment head = {.segment = SEGMENT};
    struct mc_wire_slot item = {.slot = slot, .generation = LATER + generation};
    size_t start = mc_frame_begin(&rig->link.out, MC_MESSAGE_CHECK, 0);
    size_t list = mc_wire_segment_head(&rig->link.out, &head);
    mc_wire_slot_write(&rig->link.out, &item);
    mc_frame_end_list(&rig->link.out, start, list, 1);
    assert_int_equal(peer_flush(&rig->link), 0);
}

/* A commit becomes LIVE, and a CLEAR is answered. */
static void expect_quick(struct rig *rig, struct peer *writer, uint32_t slot, uint64_t generation)
{
    writer_commit(writer, slot, 1, generation);
    expect_live(rig, slot, 1, generation, 0);
    say_slots(rig, MC_MESSAGE_CLEAR, SEGMENT, &slot, 1, generation, (struct mc_id){0, 0});
    expect_slots(rig, MC_MESSAGE_CLEARED, &slot, 1, generation);
}

static void test_scrub(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t first = 1, lost = 1;
    rig_mount(&rig);
    populated_await(&rig);
    struct peer writer = writer_connect(&rig, true, mc_random_id(), 0);
    writer_commit(&writer, first, 1, 5);
    expect_live(&rig, first, 1, 5, 0);
    page_make_slow(mc_segment_memory_data(rig_memory(&rig)));
    say_check(&rig, first, 5);
    hold_wait(&reading);
    expect_quick(&rig, &writer, 2, 6);
    hold_end(&reading);
    expect_slots(&rig, MC_MESSAGE_LOST, &lost, 1, 5); /* its sum was none */
    /* Again, and the memory is given up meanwhile: nobody is told of what was rotten there. */
    writer_commit(&writer, first, 1, 7);
    expect_live(&rig, first, 1, 7, 0);
    page_make_slow(mc_segment_memory_data(rig_memory(&rig)));
    say_check(&rig, first, 7);
    hold_wait(&reading);
    answer_mount(&rig, rig_remount(&rig), MC_ERR_STALE);
    answer_mount(&rig, rig_expect_mount(&rig), 0);
    peer_close(&writer);
    hold_end(&reading);
    populated_await(&rig);
    writer = writer_connect(&rig, true, mc_random_id(), 0);
    expect_quick(&rig, &writer, first, 8);
    peer_close(&writer);
    rig_stop(&rig);
}

/* What was given up is unmapped while the new memory is mounted; that is populated when the old one is gone. */
static void test_unmapping(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t slot = 1;
    rig_mount(&rig);
    populated_await(&rig);
    hold_begin(&unmapping, CAPACITY);
    answer_mount(&rig, rig_remount(&rig), MC_ERR_STALE);
    answer_mount(&rig, rig_expect_mount(&rig), 0);
    assert_int_equal(rig.mount.populated, 0);
    hold_wait(&unmapping);
    say_slots(&rig, MC_MESSAGE_CLEAR, SEGMENT, &slot, 1, 5, (struct mc_id){0, 0});
    expect_slots(&rig, MC_MESSAGE_CLEARED, &slot, 1, 5);
    struct peer writer = writer_connect(&rig, false, mc_random_id(), 0); /* nor do data threads wait */
    hold_end(&unmapping);
    populated_await(&rig);
    expect_quick(&rig, &writer, slot, 6);
    peer_close(&writer);
    rig_stop(&rig);
}

/* Only what takes its place waits for it: another owner's memory does not. */
static void test_another_owner(void **state)
{
    (void)state;
    struct rig rig, other;
    rig_mount(&rig);
    populated_await(&rig);
    hold_begin(&unmapping, CAPACITY);
    answer_mount(&rig, rig_remount(&rig), MC_ERR_STALE);
    answer_mount(&rig, rig_expect_mount(&rig), 0);
    hold_wait(&unmapping);
    rig_mount(&other);
    populated_await(&other);
    assert_int_equal(mc_segment_memory_populated(rig_memory(&rig)), 0);
    hold_end(&unmapping);
    populated_await(&rig);
    rig_stop(&other);
    rig_stop(&rig);
}

/* The thread that populates what is given up does not come back from the kernel. */
static void test_populating(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t slot = 1;
    hold_begin(&populating, 1);
    rig_mount(&rig);
    hold_wait(&populating);
    answer_mount(&rig, rig_remount(&rig), MC_ERR_STALE);
    answer_mount(&rig, rig_expect_mount(&rig), 0);
    say_slots(&rig, MC_MESSAGE_CLEAR, SEGMENT, &slot, 1, 5, (struct mc_id){0, 0});
    expect_slots(&rig, MC_MESSAGE_CLEARED, &slot, 1, 5);
    hold_end(&populating);
    populated_await(&rig);
    struct peer writer = writer_connect(&rig, true, mc_random_id(), 0);
    expect_quick(&rig, &writer, slot, 6);
    peer_close(&writer);
    rig_stop(&rig);
}

/* Closed while all of that goes on: what was given up is gone then. */
static void test_close(void **state)
{
    (void)state;
    struct rig rig;
    pthread_t thread;
    hold_begin(&populating, 1);
    rig_mount(&rig);
    hold_wait(&populating);
    hold_begin(&unmapping, CAPACITY);
    answer_mount(&rig, rig_remount(&rig), MC_ERR_STALE);
    answer_mount(&rig, rig_expect_mount(&rig), 0);
    peer_close(&rig.link);
    assert_int_equal(pthread_create(&thread, NULL, close_run, rig.owner), 0);
    hold_end(&populating);
    hold_wait(&unmapping);
    for (unsigned i = 0; i < 50; i++, usleep(1000)) {
        assert_int_equal(pthread_tryjoin_np(thread, NULL), EBUSY);
        assert_int_equal(atomic_load(&unmapping.count), 1); /* nor has it come to what was new */
    }
    hold_end(&unmapping);
    pthread_join(thread, NULL);
    rig.owner = NULL;
    rig_stop(&rig);
}

static struct mc_rdma *fake_rdma(void)
{
    const struct fake_device_config device = fake_roce(0);
    struct mc_rdma_options options = {0};
    struct mc_rdma *rdma;
    fake_reset(&device, 1);
    options.verbs = fake_verbs();
    assert_int_equal(mc_rdma_open(&options, &rdma), 0);
    return rdma;
}

static void rig_mount_with(struct rig *rig, struct mc_rdma *rdma)
{
    rig_prepare(rig);
    struct mc_owner_config config = config_of(rig);
    config.rdma = rdma;
    assert_int_equal(mc_owner_create(&config, &rig->owner), 0);
    rig_accept(rig);
    answer_hello(rig, 0);
    answer_mount(rig, rig_expect_mount(rig), 0);
}

struct looking {
    const struct mc_serve *serve;
    atomic_bool is_over, is_pinned;
};

static void look(void *argument)
{
    struct looking *looking = argument;
    atomic_store(&looking->is_pinned, looking->serve->server.rdma_data != NULL);
    atomic_store(&looking->is_over, true);
}

/* Until its memory is served by RDMA. */
static void pinned_await(struct rig *rig)
{
    struct looking looking = {.serve = rig->owner->serve};
    for (uint64_t end_ns = soon(); !atomic_load(&looking.is_pinned) && mc_clock_ns() < end_ns;) {
        atomic_store(&looking.is_over, false);
        mc_serve_post(rig->owner->serve, look, &looking);
        while (!atomic_load(&looking.is_over))
            usleep(1000);
    }
    assert_true(atomic_load(&looking.is_pinned));
}

/* The end of a registration, which unpins all pages. */
static void test_registration(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t slot = 1;
    struct mc_rdma *rdma = fake_rdma();
    uint64_t before = fake_counts().mrs;
    rig_mount_with(&rig, rdma);
    populated_await(&rig);
    pinned_await(&rig);
    assert_int_equal(fake_counts().mrs, before + 2);
    fake_hold_deregistrations(true);
    answer_mount(&rig, rig_remount(&rig), MC_ERR_STALE);
    answer_mount(&rig, rig_expect_mount(&rig), 0);
    say_slots(&rig, MC_MESSAGE_CLEAR, SEGMENT, &slot, 1, 5, (struct mc_id){0, 0});
    expect_slots(&rig, MC_MESSAGE_CLEARED, &slot, 1, 5);
    assert_int_equal(fake_counts().mrs, before + 2);
    fake_hold_deregistrations(false);
    populated_await(&rig);
    rig_stop(&rig);
    assert_int_equal(fake_counts().mrs, before);
    mc_rdma_close(rdma);
}

/* It has begun when the memory is given up, and its end is all that this is kept for: a child that is forked then has
 * no descriptors of it. */
static void test_fork(void **state)
{
    (void)state;
    struct rig rig;
    struct mc_rdma *rdma = fake_rdma();
    int status;
    fake_hold_registrations(true);
    rig_mount_with(&rig, rdma);
    uint64_t end_ns = soon();
    while (fake_counts().registering == 0 && mc_clock_ns() < end_ns)
        usleep(1000);
    int fd = mc_segment_memory_data_fd(rig_memory(&rig));
    fake_hold_deregistrations(true);
    answer_mount(&rig, rig_remount(&rig), MC_ERR_STALE);
    answer_mount(&rig, rig_expect_mount(&rig), 0);
    assert_int_equal(rig.mount.populated, 0);
    fake_hold_registrations(false);
    for (end_ns = soon(); fake_counts().deregistering == 0 && mc_clock_ns() < end_ns;)
        usleep(1000);
    assert_int_equal(fake_counts().deregistering, 1);
    mc_let_go_before_fork();
    pid_t child = fork();
    if (child == 0) {
        mc_let_go_after_fork_child();
        _exit(fcntl(fd, F_GETFD) >= 0);
    }
    mc_let_go_after_fork_parent();
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(fcntl(fd, F_GETFD) >= 0);
    fake_hold_deregistrations(false);
    populated_await(&rig);
    rig_stop(&rig);
    mc_rdma_close(rdma);
}

int main(void)
{
    mc_log_set_level(MC_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scrub),      cmocka_unit_test(test_unmapping),    cmocka_unit_test(test_another_owner),
        cmocka_unit_test(test_populating), cmocka_unit_test(test_registration), cmocka_unit_test(test_fork),
        cmocka_unit_test(test_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
