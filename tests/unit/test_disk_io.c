/* The queue of disk I/O, by io_uring and by threads: every request ends once, with what the file says, whatever goes
 * wrong; what is forbidden or used up is an error or another way, never a hang. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "directory.h"
#include "env/clock.h"
#include "env/thread.h"
#include "forbidden.h"
#include "random.h"
#include "store/disk/directory.h"
#include "store/disk/io_inside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCK 4096u
#define MIB (1u << 20)
#define CALL_SETUP 425
#define CALL_ENTER 426

struct rig {
    enum mc_disk_io_kind kind;
    struct mc_disk_io *io;
    int fd; /* of a file in memory */
    uint8_t *buffer;
};
struct one { /* a request, and what came of it */
    struct mc_disk_request request;
    int64_t result;
    unsigned done;
};

static unsigned sequence; /* the order in which requests ended: one->done */

static void note_result(struct mc_disk_request *request, int64_t result)
{
    struct one *one = (struct one *)(void *)request;
    assert_int_equal(one->done, 0);
    one->result = result;
    one->done = ++sequence;
}

static struct one make_one(enum mc_disk_operation operation, int fd, void *buffer, uint32_t length, uint64_t offset)
{
    return (struct one){.request = {.operation = operation,
                                    .fd = fd,
                                    .buffer = buffer,
                                    .length = length,
                                    .offset = offset,
                                    .done = note_result}};
}

static int64_t run_one(struct mc_disk_io *io, enum mc_disk_operation operation, int fd, void *buffer, uint32_t length,
                       uint64_t offset)
{
    struct one one = make_one(operation, fd, buffer, length, offset);
    mc_disk_io_submit(io, &one.request);
    while (one.done == 0)
        (void)mc_disk_io_collect(io, -1);
    return one.result;
}

/* A file where the build lies, which is more likely a disk than /tmp. */
static int open_file(int flags)
{
    const char *folder = getenv("MC_BUILD");
    char path[512];
    snprintf(path, sizeof(path), "%s/test_disk_io_XXXXXX", folder != NULL ? folder : "/tmp");
    int fd = mkostemp(path, O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(close(fd), 0);
    fd = open(path, O_RDWR | O_CLOEXEC | flags);
    int error = errno;
    assert_int_equal(unlink(path), 0);
    errno = error;
    return fd;
}

static int open_direct(void)
{
    int fd = open_file(O_DIRECT);
    if (fd < 0)
        print_message("the build's file system has no O_DIRECT (%s)\n", strerror(errno));
    return fd;
}

/* Threads of pools; the kernel's own, for io_uring, come and go as they like. */
static unsigned count_of_threads(void)
{
    unsigned count = 0;
    DIR *folder = opendir("/proc/self/task");
    assert_non_null(folder);
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char path[300], name[32] = "";
        snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
        FILE *file = fopen(path, "r");
        count += file != NULL && fgets(name, sizeof(name), file) != NULL && strcmp(name, "mc-disk-io\n") == 0;
        if (file != NULL)
            fclose(file);
    }
    closedir(folder);
    return count;
}
/* One that was joined is still seen for a moment. */
static void assert_no_threads(void)
{
    for (unsigned wait = 0; wait < 5000 && count_of_threads() > 0; wait++)
        usleep(1000);
    assert_int_equal(count_of_threads(), 0);
}

static bool open_depth(struct rig *rig, unsigned depth)
{
    int rc = mc_disk_io_open(rig->kind, depth, &rig->io);
    if (rc == 0)
        return true;
    assert_int_equal(rig->kind, MC_DISK_IO_URING);
    assert_true(rc == -EPERM || rc == -ENOSYS || rc == -ENOMEM);
    print_message("no io_uring here (%s)\n", strerror(-rc));
    return false;
}

static int set_up(void **state)
{
    struct rig *rig = calloc(1, sizeof(*rig));
    assert_non_null(rig);
    rig->kind = *(const enum mc_disk_io_kind *)*state;
    rig->buffer = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    rig->fd = memfd_create("test_disk_io", MFD_CLOEXEC); /* a disk that others use may take its time */
    assert_true(rig->buffer != MAP_FAILED && rig->fd >= 0);
    sequence = 0;
    *state = rig;
    return 0;
}

static int tear_down(void **state)
{
    struct rig *rig = *state;
    if (rig->io != NULL)
        mc_disk_io_close(rig->io);
    munmap(rig->buffer, 4 * MIB);
    close(rig->fd);
    free(rig);
    return 0;
}

#define OPEN(rig, depth)                                                                                               \
    do                                                                                                                 \
        if (!open_depth(rig, depth))                                                                                   \
            skip();                                                                                                    \
    while (0)

/* ---- what a request gives ---- */

static void one_write_and_one_read(void **state)
{
    struct rig *rig = *state;
    OPEN(rig, 8);
    assert_int_equal(mc_disk_io_kind(rig->io), rig->kind);
    assert_int_equal(mc_disk_io_oldest_ns(rig->io), 0);
    memset(rig->buffer, 7, BLOCK);
    struct one one = make_one(MC_DISK_WRITE, rig->fd, rig->buffer, BLOCK, BLOCK);
    uint64_t before_ns = mc_clock_ns();
    mc_disk_io_submit(rig->io, &one.request);
    assert_true(one.request.begun_ns >= before_ns && one.request.begun_ns <= mc_clock_ns());
    assert_int_equal(one.done, 0); /* done is called by collect alone */
    assert_int_equal(mc_disk_io_oldest_ns(rig->io), one.request.begun_ns);
    assert_int_equal(mc_disk_io_collect(rig->io, -1), 1);
    assert_int_equal(one.result, BLOCK);
    assert_int_equal(mc_disk_io_oldest_ns(rig->io), 0);
    assert_int_equal(run_one(rig->io, MC_DISK_SYNC, rig->fd, NULL, 0, 0), 0);
    assert_int_equal(run_one(rig->io, MC_DISK_READ, rig->fd, rig->buffer + BLOCK, 2 * BLOCK, 0), 2 * BLOCK);
    for (unsigned i = 0; i < BLOCK; i++)
        assert_true(rig->buffer[BLOCK + i] == 0 && rig->buffer[2 * BLOCK + i] == 7);
    assert_int_equal(run_one(rig->io, MC_DISK_READ, rig->fd, rig->buffer, 0, 0), 0);
    assert_int_equal(run_one(rig->io, MC_DISK_WRITE, rig->fd, rig->buffer, 0, 0), 0);
}

static void many_more_than_the_depth(void **state)
{
    static const unsigned depths[] = {1, 3, 16, MC_DISK_IO_DEPTH_MAX};
    struct rig *rig = *state;
    static struct one ones[600];
    for (unsigned d = 0; d < 4; d++) {
        OPEN(rig, depths[d]);
        sequence = 0;
        for (unsigned i = 0; i < 600; i++) {
            memset(rig->buffer + i * BLOCK, (int)i, BLOCK);
            ones[i] = make_one(MC_DISK_WRITE, rig->fd, rig->buffer + i * BLOCK, BLOCK, (uint64_t)i * BLOCK);
            mc_disk_io_submit(rig->io, &ones[i].request);
            assert_true(mc_disk_io_oldest_ns(rig->io) >= ones[0].request.begun_ns);
        }
        for (unsigned count = 0; count < 600;)
            count += mc_disk_io_collect(rig->io, -1);
        for (unsigned i = 0; i < 600; i++) {
            assert_int_equal(ones[i].result, BLOCK);
            if (depths[d] == 1) /* one after the other, in the order they came */
                assert_int_equal(ones[i].done, i + 1);
        }
        if (rig->kind == MC_DISK_IO_THREADS) /* they are there now, and not too many */
            assert_in_range(count_of_threads(), 1, depths[d] < 16 ? depths[d] : 16);
        assert_int_equal(mc_disk_io_collect(rig->io, 0), 0);
        mc_disk_io_close(rig->io);
        rig->io = NULL;
        assert_no_threads();
        uint8_t byte = 0;
        for (unsigned i = 0; i < 600; i++)
            assert_true(pread(rig->fd, &byte, 1, (off_t)(i * BLOCK + BLOCK - 1)) == 1 && byte == (uint8_t)i);
        assert_int_equal(ftruncate(rig->fd, 0), 0);
    }
}

static void check_short_file(struct rig *rig, int fd)
{
    memset(rig->buffer, 5, 2 * BLOCK);
    assert_int_equal(run_one(rig->io, MC_DISK_WRITE, fd, rig->buffer, 2 * BLOCK, 0), 2 * BLOCK);
    assert_int_equal(ftruncate(fd, 5000), 0);
    memset(rig->buffer, 0, 4 * BLOCK);
    assert_int_equal(run_one(rig->io, MC_DISK_READ, fd, rig->buffer, 4 * BLOCK, 0), 5000);
    for (unsigned i = 0; i < 5000; i++)
        assert_int_equal(rig->buffer[i], 5);
    assert_int_equal(run_one(rig->io, MC_DISK_READ, fd, rig->buffer, BLOCK, BLOCK), 5000 - BLOCK);
    assert_int_equal(run_one(rig->io, MC_DISK_READ, fd, rig->buffer, BLOCK, 2 * BLOCK), 0);
    assert_int_equal(run_one(rig->io, MC_DISK_READ, fd, rig->buffer, BLOCK, UINT64_C(1) << 40), 0);
}

static void a_read_ends_at_the_files_end(void **state)
{
    struct rig *rig = *state;
    OPEN(rig, 4);
    check_short_file(rig, rig->fd);
    int fd = open_direct();
    if (fd >= 0)
        check_short_file(rig, fd);
    close(fd);
}

static void errors_are_the_files(void **state)
{
    struct rig *rig = *state;
    OPEN(rig, 4);
    int full = open("/dev/full", O_RDWR | O_CLOEXEC), folder = open("/", O_RDONLY | O_CLOEXEC | O_DIRECTORY);
    int memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC), reader = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    assert_int_equal(run_one(rig->io, MC_DISK_READ, -1, rig->buffer, BLOCK, 0), -EBADF);
    assert_int_equal(run_one(rig->io, MC_DISK_SYNC, 1000000, NULL, 0, 0), -EBADF);
    assert_int_equal(run_one(rig->io, MC_DISK_WRITE, reader, rig->buffer, BLOCK, 0), -EBADF);
    assert_int_equal(run_one(rig->io, MC_DISK_WRITE, full, rig->buffer, BLOCK, 0), -ENOSPC);
    assert_int_equal(run_one(rig->io, MC_DISK_READ, folder, rig->buffer, BLOCK, 0), -EISDIR);
    assert_int_equal(run_one(rig->io, MC_DISK_READ, memory, rig->buffer, BLOCK, 0), -EIO); /* nothing is mapped there */
    assert_int_equal(run_one(rig->io, MC_DISK_READ, reader, NULL, BLOCK, 0), -EFAULT);
    assert_int_equal(run_one(rig->io, MC_DISK_WRITE, rig->fd, rig->buffer, BLOCK, (uint64_t)INT64_MAX), -EINVAL);
    assert_int_equal(run_one(rig->io, MC_DISK_READ, reader, rig->buffer, MIB, 0), MIB); /* and the queue lives */
    close(full);
    close(folder);
    close(memory);
    close(reader);
}

static void what_is_unaligned_is_an_error(void **state)
{
    struct rig *rig = *state;
    OPEN(rig, 4);
    int fd = open_direct();
    if (fd < 0)
        skip();
    assert_int_equal(run_one(rig->io, MC_DISK_WRITE, fd, rig->buffer, 4 * BLOCK, 0), 4 * BLOCK);
    /* Some file systems go by way of the page cache instead. */
    int64_t result = run_one(rig->io, MC_DISK_READ, fd, rig->buffer, BLOCK, 1);
    assert_true(result == -EINVAL || result == BLOCK);
    result = run_one(rig->io, MC_DISK_WRITE, fd, rig->buffer, BLOCK + 1, 0);
    assert_true(result == -EINVAL || result == BLOCK + 1);
    result = run_one(rig->io, MC_DISK_READ, fd, rig->buffer + 1, BLOCK, 0);
    assert_true(result == -EINVAL || result == BLOCK);
    assert_int_equal(run_one(rig->io, MC_DISK_READ, fd, rig->buffer, BLOCK, 0), BLOCK);
    close(fd);
}

/* A write is cut short by the greatest size that a file may have; it is gone on with, and that is refused. */
static void a_short_write_is_gone_on_with(void **state)
{
    struct rig *rig = *state;
    struct rlimit before, small;
    OPEN(rig, 4);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){6000, before.rlim_max};
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int64_t result = run_one(rig->io, MC_DISK_WRITE, rig->fd, rig->buffer, 2 * BLOCK, 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(result, -EFBIG);
    assert_int_equal(lseek(rig->fd, 0, SEEK_END), 6000);
}

static void calls_that_give_little_are_made_again(void **state)
{
    struct mc_disk_request request = {.operation = MC_DISK_WRITE, .buffer = (void *)BLOCK, .length = 100};
    struct mc_disk_slot slot = {.request = &request};
    (void)state;
    assert_true(mc_disk_slot_goes_on(&slot, 40));
    assert_true(slot.part.iov_base == (char *)(uintptr_t)BLOCK + 40 && slot.part.iov_len == 60);
    for (unsigned i = 0; i < MC_DISK_AGAIN_MAX; i++)
        assert_true(mc_disk_slot_goes_on(&slot, i % 2 == 0 ? -EINTR : -EAGAIN));
    assert_true(mc_disk_slot_goes_on(&slot, 1) == true && request.moved == 41); /* it begins to count anew */
    for (unsigned i = 0; i < MC_DISK_AGAIN_MAX; i++)
        assert_true(mc_disk_slot_goes_on(&slot, -EAGAIN));
    assert_true(!mc_disk_slot_goes_on(&slot, -EAGAIN) && slot.result == -EAGAIN);
    slot.again = 0;
    assert_true(!mc_disk_slot_goes_on(&slot, 0) && slot.result == -EIO); /* a device that takes nothing */
    assert_true(!mc_disk_slot_goes_on(&slot, 59) && slot.result == 100);
    request = (struct mc_disk_request){.operation = MC_DISK_READ, .length = 10000};
    assert_true(mc_disk_slot_goes_on(&slot, 5000));
    assert_true(!mc_disk_slot_goes_on(&slot, -EINVAL) && slot.result == 5000);
    request.moved = 4096; /* no end of a file: a real error */
    assert_true(!mc_disk_slot_goes_on(&slot, -EINVAL) && slot.result == -EINVAL);
    request.moved = 0;
    assert_true(!mc_disk_slot_goes_on(&slot, -EINVAL) && slot.result == -EINVAL);
    request.operation = MC_DISK_SYNC;
    assert_true(!mc_disk_slot_goes_on(&slot, 0) && slot.result == 0);
}

/* ---- waiting ---- */

static void a_wait_has_an_end(void **state)
{
    struct rig *rig = *state;
    OPEN(rig, 4);
    uint64_t start_ns = mc_clock_ns();
    assert_int_equal(mc_disk_io_collect(rig->io, 0), 0);
    assert_int_equal(mc_disk_io_collect(rig->io, 50), 0);
    assert_in_range(mc_clock_ns() - start_ns, 50000000, 5000000000);
    mc_disk_io_wake(rig->io);
    mc_disk_io_wake(rig->io);
    assert_int_equal(mc_disk_io_collect(rig->io, -1), 0); /* the two are one */
    start_ns = mc_clock_ns();
    assert_int_equal(mc_disk_io_collect(rig->io, 50), 0);
    assert_in_range(mc_clock_ns() - start_ns, 50000000, 5000000000);
    /* A wake that comes with completions is over with them. */
    struct one one = make_one(MC_DISK_WRITE, rig->fd, rig->buffer, BLOCK, 0);
    mc_disk_io_submit(rig->io, &one.request);
    while (one.done == 0) {
        mc_disk_io_wake(rig->io);
        (void)mc_disk_io_collect(rig->io, 1000);
    }
    start_ns = mc_clock_ns();
    assert_int_equal(mc_disk_io_collect(rig->io, 50), 0);
    assert_in_range(mc_clock_ns() - start_ns, 50000000, 5000000000);
}

struct waker {
    struct mc_disk_io *io;
    _Atomic unsigned posted, taken, collecting;
};

/* Posts 2,000 times; each must be seen without another's help. */
static void *wake_often(void *argument)
{
    struct waker *waker = argument;
    for (unsigned i = 1; i <= 2000; i++) {
        if (i % 100 == 0)
            usleep(2000); /* so that collect waits by then */
        atomic_store(&waker->posted, i);
        mc_disk_io_wake(waker->io);
        if (i % 3 == 0)
            while (atomic_load(&waker->taken) < i)
                sched_yield();
    }
    return NULL;
}

static void it_is_woken_from_another_thread(void **state)
{
    struct rig *rig = *state;
    pthread_t thread;
    OPEN(rig, 4);
    struct waker waker = {.io = rig->io};
    assert_int_equal(mc_thread_start(&thread, "waker", wake_often, &waker), 0);
    while (atomic_load(&waker.taken) < 2000) {
        atomic_store(&waker.taken, atomic_load(&waker.posted));
        if (atomic_load(&waker.taken) < 2000)
            (void)mc_disk_io_collect(rig->io, -1);
    }
    pthread_join(thread, NULL);
}

/* ---- order and ends ---- */

static struct {
    struct mc_disk_io *io;
    struct one ones[4];
    unsigned left;
} chain;

static void go_on_with_chain(struct mc_disk_request *request, int64_t result)
{
    assert_int_equal(result, BLOCK);
    if (chain.left == 0)
        return;
    chain.left--;
    request->offset += BLOCK;
    mc_disk_io_submit(chain.io, request);
}

static void done_may_submit(void **state)
{
    struct rig *rig = *state;
    OPEN(rig, 2); /* fewer than there are chains */
    chain.io = rig->io;
    chain.left = 500;
    unsigned count = 0;
    for (unsigned i = 0; i < 4; i++) {
        chain.ones[i] = make_one(MC_DISK_WRITE, rig->fd, rig->buffer + i * BLOCK, BLOCK, (uint64_t)i * MIB);
        chain.ones[i].request.done = go_on_with_chain;
        mc_disk_io_submit(rig->io, &chain.ones[i].request);
    }
    for (unsigned now; count < 504; count += now) {
        now = mc_disk_io_collect(rig->io, -1);
        assert_in_range(now, 0, 2); /* one collect does not go on for ever */
    }
    assert_int_equal(mc_disk_io_oldest_ns(rig->io), 0);
}

static void close_waits_for_all(void **state)
{
    struct rig *rig = *state;
    struct one ones[8];
    OPEN(rig, 3);
    for (unsigned i = 0; i < 8; i++) {
        ones[i] = make_one(i == 7 ? MC_DISK_SYNC : MC_DISK_WRITE, rig->fd, rig->buffer, 4 * MIB, (uint64_t)i * 4 * MIB);
        mc_disk_io_submit(rig->io, &ones[i].request);
    }
    mc_disk_io_close(rig->io);
    rig->io = NULL;
    for (unsigned i = 0; i < 8; i++)
        assert_true(ones[i].done > 0 && ones[i].result == (i == 7 ? 0 : 4 * MIB));
}

static void close_right_after_open(void **state)
{
    struct rig *rig = *state;
    unsigned files = count_of("/proc/self/fd");
    for (unsigned i = 0; i < 50; i++) {
        OPEN(rig, 1 + i % 9);
        mc_disk_io_wake(rig->io);
        mc_disk_io_close(rig->io);
        rig->io = NULL;
    }
    assert_int_equal(count_of("/proc/self/fd"), files);
    assert_no_threads();
}

/* ---- against a model ---- */

#define MODEL_BLOCKS 512u
#define MODEL_PARTS 24u
#define MODEL_PART_MAX (16 * BLOCK)

static struct model {
    uint8_t bytes[MODEL_BLOCKS * BLOCK];
    uint8_t users[MODEL_BLOCKS]; /* requests under way there: so many readers, or 255: a writer */
    struct part {
        struct mc_disk_request request;
        uint8_t *buffer;
        bool is_used;
    } parts[MODEL_PARTS];
    unsigned used, finished;
} model;

static void leave_model(struct mc_disk_request *request, int64_t result)
{
    struct part *part = (struct part *)(void *)request;
    assert_true(part->is_used);
    assert_int_equal(result, request->operation == MC_DISK_SYNC ? 0 : request->length);
    if (request->operation == MC_DISK_READ)
        assert_memory_equal(part->buffer, model.bytes + request->offset, request->length);
    for (uint64_t at = request->offset / BLOCK; at * BLOCK < request->offset + request->length; at++)
        model.users[at] = request->operation == MC_DISK_WRITE ? 0 : (uint8_t)(model.users[at] - 1);
    part->is_used = false;
    model.used--;
    model.finished++;
}

/* False: it would overlap with one under way, whose order is nobody's. */
static bool enter_model(struct part *part, uint64_t *random, uint32_t unit)
{
    struct mc_disk_request *request = &part->request;
    uint32_t units = MODEL_BLOCKS * BLOCK / unit, length = 1 + (uint32_t)random_below(random, MODEL_PART_MAX / unit);
    uint32_t offset = (uint32_t)random_below(random, units - length + 1), kind = (uint32_t)random_below(random, 1000);
    request->operation = kind < 2 ? MC_DISK_SYNC : kind < 500 ? MC_DISK_WRITE : MC_DISK_READ;
    request->length = request->operation == MC_DISK_SYNC ? 0 : length * unit;
    request->offset = (uint64_t)offset * unit;
    uint64_t end = request->offset + request->length;
    for (uint64_t at = request->offset / BLOCK; at * BLOCK < end; at++)
        if (model.users[at] == 255 || (request->operation == MC_DISK_WRITE && model.users[at] > 0))
            return false;
    for (uint64_t at = request->offset / BLOCK; at * BLOCK < end; at++)
        model.users[at] = request->operation == MC_DISK_WRITE ? 255 : (uint8_t)(model.users[at] + 1);
    if (request->operation == MC_DISK_WRITE) {
        memset(part->buffer, (int)random_next(random), request->length);
        memcpy(part->buffer, random, request->length < 8 ? request->length : 8);
        memcpy(model.bytes + request->offset, part->buffer, request->length);
    } else {
        memset(part->buffer, 0xee, request->length);
    }
    return true;
}

static void run_model(struct rig *rig, int fd, uint32_t unit)
{
    uint64_t random = unit;
    memset(&model, 0, sizeof(model));
    assert_int_equal(ftruncate(fd, MODEL_BLOCKS * BLOCK), 0);
    while (model.finished < 10000) {
        for (unsigned i = 0; i < MODEL_PARTS && model.finished + model.used < 10000; i++) {
            struct part *part = &model.parts[i];
            if (part->is_used)
                continue;
            part->request = (struct mc_disk_request){.fd = fd, .done = leave_model};
            part->request.buffer = part->buffer = rig->buffer + i * MODEL_PART_MAX;
            if (!enter_model(part, &random, unit))
                continue;
            part->is_used = true;
            model.used++;
            mc_disk_io_submit(rig->io, &part->request);
        }
        (void)mc_disk_io_collect(rig->io, random_below(&random, 4) == 0 ? 0 : -1);
    }
    uint8_t *all = rig->buffer;
    assert_int_equal(run_one(rig->io, MC_DISK_READ, fd, all, MODEL_BLOCKS * BLOCK, 0), MODEL_BLOCKS * BLOCK);
    assert_memory_equal(all, model.bytes, MODEL_BLOCKS * BLOCK);
}

static void ten_thousand_requests_like_the_model(void **state)
{
    struct rig *rig = *state;
    OPEN(rig, 8);
    run_model(rig, rig->fd, 1);
    int fd = open_file(0);
    assert_true(fd >= 0);
    run_model(rig, fd, 1);
    close(fd);
    fd = open_direct();
    if (fd >= 0)
        run_model(rig, fd, BLOCK);
    close(fd);
}

/* ---- what is forbidden or used up ---- */

static void a_depth_has_limits(void **state)
{
    struct rig *rig = *state;
    assert_int_equal(mc_disk_io_open(rig->kind, 0, &rig->io), -EINVAL);
    assert_int_equal(mc_disk_io_open(rig->kind, MC_DISK_IO_DEPTH_MAX + 1, &rig->io), -EINVAL);
    assert_null(rig->io);
}

/* The exit code of a child that runs it: 0 good, 77 it cannot be tried here, else the step that failed. */
static int in_child(int (*function)(struct rig *rig), struct rig *rig)
{
    int status = 0;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(function(rig));
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static int64_t write_in_child(struct mc_disk_io *io, struct rig *rig)
{
    struct one one = make_one(MC_DISK_WRITE, rig->fd, rig->buffer, BLOCK, 0);
    mc_disk_io_submit(io, &one.request);
    for (unsigned i = 0; i < 5 && one.done == 0; i++)
        (void)mc_disk_io_collect(io, 1000);
    return one.done == 0 ? INT64_MIN : one.result;
}

static int auto_takes_threads(struct rig *rig, uint32_t call, int error)
{
    struct mc_disk_io *io = NULL;
    if (!forbid_call(call, (uint32_t)error))
        return 77;
    if (mc_disk_io_open(MC_DISK_IO_URING, 8, &io) != -error)
        return 1;
    if (mc_disk_io_open(MC_DISK_IO_AUTO, 8, &io) != 0)
        return 2;
    if (mc_disk_io_kind(io) != MC_DISK_IO_THREADS)
        return 3;
    if (write_in_child(io, rig) != BLOCK)
        return 4;
    mc_disk_io_close(io);
    return 0;
}
static int without_setup(struct rig *rig)
{
    return auto_takes_threads(rig, CALL_SETUP, EPERM);
}
static int without_kernel(struct rig *rig)
{
    return auto_takes_threads(rig, CALL_SETUP, ENOSYS);
}
static int without_memory(struct rig *rig)
{
    return auto_takes_threads(rig, CALL_SETUP, ENOMEM);
}
static int without_enter(struct rig *rig)
{
    struct mc_disk_io *io = NULL;
    if (mc_disk_io_open(MC_DISK_IO_URING, 8, &io) != 0)
        return 77;
    mc_disk_io_close(io);
    return auto_takes_threads(rig, CALL_ENTER, EPERM);
}

/* A filter that comes when the ring is there: requests fail, and closing ends. */
static int forbidden_later(struct rig *rig)
{
    struct mc_disk_io *io = NULL;
    if (mc_disk_io_open(MC_DISK_IO_URING, 2, &io) != 0 || !forbid_call(CALL_ENTER, EPERM))
        return 77;
    struct one ones[4];
    for (unsigned i = 0; i < 4; i++) {
        ones[i] = make_one(MC_DISK_WRITE, rig->fd, rig->buffer, BLOCK, 0);
        mc_disk_io_submit(io, &ones[i].request);
        if (ones[i].done != 0)
            return 1;
    }
    if (mc_disk_io_collect(io, -1) == 0)
        return 2;
    mc_disk_io_close(io);
    for (unsigned i = 0; i < 4; i++)
        if (ones[i].done == 0 || ones[i].result != -EPERM)
            return 3;
    return 0;
}

/* The kernel never finds memory: collect keeps its time, and does not spin. */
static int never_any_memory(struct rig *rig)
{
    struct mc_disk_io *io = NULL;
    struct rusage usage;
    if (mc_disk_io_open(MC_DISK_IO_URING, 2, &io) != 0 || !forbid_call(CALL_ENTER, EAGAIN))
        return 77;
    struct one one = make_one(MC_DISK_WRITE, rig->fd, rig->buffer, BLOCK, 0);
    mc_disk_io_submit(io, &one.request);
    uint64_t start_ns = mc_clock_ns();
    if (mc_disk_io_collect(io, 0) != 0 || mc_disk_io_collect(io, 200) != 0 || one.done != 0)
        return 1;
    uint64_t waited_ns = mc_clock_ns() - start_ns;
    if (waited_ns < 200000000 || waited_ns > 5000000000)
        return 2;
    return getrusage(RUSAGE_SELF, &usage) == 0 && usage.ru_nvcsw + usage.ru_nivcsw < 5000 ? 0 : 3;
}

static void what_a_filter_forbids(void **state)
{
    static const struct {
        const char *name;
        int (*run)(struct rig *rig);
    } rows[] = {{"io_uring_setup: EPERM", without_setup},          {"io_uring_setup: ENOSYS", without_kernel},
                {"io_uring_setup: ENOMEM", without_memory},        {"io_uring_enter: EPERM", without_enter},
                {"io_uring_enter: EPERM, later", forbidden_later}, {"io_uring_enter: EAGAIN", never_any_memory}};
    struct rig *rig = *state;
    unsigned skipped = 0;
    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        int code = in_child(rows[i].run, rig);
        if (code != 0 && code != 77)
            fail_msg("%s: step %d", rows[i].name, code);
        skipped += code == 77;
        if (code == 77)
            print_message("%s cannot be tried here\n", rows[i].name);
    }
    if (skipped == sizeof(rows) / sizeof(rows[0]))
        skip();
}

/* So many descriptors are left. */
static void leave_descriptors(struct rlimit *before, rlim_t left)
{
    int lowest = dup(0);
    assert_true(lowest > 0 && getrlimit(RLIMIT_NOFILE, before) == 0);
    close(lowest);
    struct rlimit limit = {(rlim_t)lowest + left, before->rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static void descriptors_run_out(void **state)
{
    struct rig *rig = *state;
    struct rlimit before;
    bool has_uring = mc_disk_io_open(MC_DISK_IO_URING, 4, &rig->io) == 0;
    if (has_uring)
        mc_disk_io_close(rig->io);
    rig->io = NULL;
    leave_descriptors(&before, 0);
    int none = mc_disk_io_open(MC_DISK_IO_AUTO, 4, &rig->io);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    leave_descriptors(&before, 1);
    int uring = mc_disk_io_open(MC_DISK_IO_URING, 4, &rig->io);
    int any = mc_disk_io_open(MC_DISK_IO_AUTO, 4, &rig->io);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(none, -EMFILE);
    assert_int_equal(any, 0);
    assert_true(uring == -EMFILE || !has_uring);
    assert_int_equal(mc_disk_io_kind(rig->io), MC_DISK_IO_THREADS);
    assert_int_equal(run_one(rig->io, MC_DISK_WRITE, rig->fd, rig->buffer, BLOCK, 0), BLOCK);
}

static void auto_prefers_uring(void **state)
{
    struct rig *rig = *state;
    int rc = mc_disk_io_open(MC_DISK_IO_URING, 4, &rig->io);
    if (rc == 0)
        mc_disk_io_close(rig->io);
    rig->io = NULL;
    assert_int_equal(mc_disk_ports_system.open(MC_DISK_IO_AUTO, 4, &rig->io), 0);
    assert_int_equal(mc_disk_io_kind(rig->io), rc == 0 ? MC_DISK_IO_URING : MC_DISK_IO_THREADS);
    struct one one = make_one(MC_DISK_WRITE, rig->fd, rig->buffer, BLOCK, 0);
    mc_disk_ports_system.submit(rig->io, &one.request);
    assert_int_equal(mc_disk_ports_system.collect(rig->io, -1), 1);
    mc_disk_ports_system.wake(rig->io);
    mc_disk_ports_system.close(rig->io);
    rig->io = NULL;
}

/* ---- calls ---- */

static _Atomic bool may_end;
static pthread_t caller;

static int64_t wait_for_word(struct mc_disk_request *request)
{
    caller = pthread_self();
    while (!may_end)
        usleep(1000);
    return request->length == 0 ? 0 : -ENOSPC;
}

/* A call that waits holds up nobody but itself. */
static void a_call_has_a_thread(void **state)
{
    struct rig *rig = *state;
    OPEN(rig, 4);
    for (unsigned turn = 0; turn < 2; turn++) {
        struct one one = make_one(MC_DISK_CALL, -1, NULL, turn, 0);
        one.request.call = wait_for_word;
        may_end = false;
        mc_disk_io_submit(rig->io, &one.request);
        for (unsigned i = 0; i < 20; i++)
            assert_int_equal(run_one(rig->io, MC_DISK_WRITE, rig->fd, rig->buffer, BLOCK, 0), BLOCK);
        assert_int_equal(one.done, 0);
        may_end = true;
        while (one.done == 0)
            (void)mc_disk_io_collect(rig->io, -1);
        assert_int_equal(one.result, turn == 0 ? 0 : -ENOSPC);
        assert_false(pthread_equal(caller, pthread_self()));
    }
    mc_disk_io_close(rig->io);
    rig->io = NULL;
    assert_no_threads();
}

/* ---- fork ---- */

static struct mc_disk_io *parents;

static int close_the_parents(struct rig *rig)
{
    (void)rig;
    mc_disk_io_close(parents); /* although something is under way: the child's own copy alone */
    return 0;
}
static int collect_for_the_parent(struct rig *rig)
{
    (void)rig;
    struct rlimit none = {0, 0};
    (void)setrlimit(RLIMIT_CORE, &none);
    if (freopen("/dev/null", "w", stderr) == NULL)
        return 1;
    (void)signal(SIGABRT, SIG_DFL);
    (void)mc_disk_io_collect(parents, 0);
    return 0;
}

static void a_forked_child_keeps_its_hands_off(void **state)
{
    struct rig *rig = *state;
    OPEN(rig, 4);
    struct one ones[4];
    parents = rig->io;
    for (unsigned i = 0; i < 4; i++) {
        ones[i] = make_one(MC_DISK_WRITE, rig->fd, rig->buffer, 4 * MIB, (uint64_t)i * 4 * MIB);
        mc_disk_io_submit(rig->io, &ones[i].request);
    }
    assert_int_equal(in_child(close_the_parents, rig), 0);
    assert_int_equal(in_child(collect_for_the_parent, rig), 1000 + SIGABRT);
    for (unsigned count = 0; count < 4;)
        count += mc_disk_io_collect(rig->io, -1);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(ones[i].result, 4 * MIB);
}

/* ---- a process that is killed ---- */

#define WRITES 32u
#define FILE_BYTES ((size_t)WRITES * MIB)

static void write_until_killed(int fd, uint8_t *bytes, int ready)
{
    static struct one ones[WRITES];
    struct mc_disk_io *io = NULL;
    if (mc_disk_io_open(MC_DISK_IO_URING, WRITES, &io) != 0)
        _exit(1);
    for (unsigned i = 0; i < WRITES; i++) {
        ones[i] = make_one(MC_DISK_WRITE, fd, bytes + (size_t)i * MIB, MIB, (uint64_t)i * MIB);
        mc_disk_io_submit(io, &ones[i].request);
        if (i == WRITES / 8 && write(ready, "x", 1) != 1)
            _exit(1);
    }
    pause();
}

/* What the kernel still writes for it when it is gone, whoever has taken its directory does not see come: it has come
 * before he reads. */
static void what_a_killed_process_writes_is_waited_for(void **state)
{
    int fd = open_direct(), ready[2];
    (void)state;
    if (fd < 0)
        skip();
    uint8_t *bytes[3];
    for (unsigned i = 0; i < 3; i++) {
        bytes[i] = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        assert_true(bytes[i] != MAP_FAILED);
    }
    assert_int_equal(pwrite(fd, bytes[0], FILE_BYTES, 0), FILE_BYTES);
    for (unsigned turn = 1; turn <= 20; turn++) {
        char byte;
        memset(bytes[0], (int)turn, FILE_BYTES);
        assert_int_equal(pipe(ready), 0);
        pid_t child = fork();
        if (child == 0) {
            close(ready[0]);
            write_until_killed(fd, bytes[0], ready[1]);
        }
        close(ready[1]);
        bool has_begun = read(ready[0], &byte, 1) == 1; /* else there is no io_uring here */
        close(ready[0]);
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, NULL, 0), child);
        if (!has_begun)
            skip();
        mc_disk_file_settle(fd);
        assert_int_equal(pread(fd, bytes[1], FILE_BYTES, 0), FILE_BYTES);
        usleep(20000);
        assert_int_equal(pread(fd, bytes[2], FILE_BYTES, 0), FILE_BYTES);
        assert_memory_equal(bytes[1], bytes[2], FILE_BYTES);
    }
    for (unsigned i = 0; i < 3; i++)
        munmap(bytes[i], FILE_BYTES);
    close(fd);
}

static enum mc_disk_io_kind uring = MC_DISK_IO_URING, pool = MC_DISK_IO_THREADS, any = MC_DISK_IO_AUTO;

#define WITH(function, which)                                                                                          \
    {                                                                                                                  \
#function " (" #which ")", function, set_up, tear_down, &(which)                                               \
    }
#define BOTH(function) WITH(function, uring), WITH(function, pool)

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(one_write_and_one_read),
        BOTH(many_more_than_the_depth),
        BOTH(a_read_ends_at_the_files_end),
        BOTH(errors_are_the_files),
        BOTH(what_is_unaligned_is_an_error),
        BOTH(a_short_write_is_gone_on_with),
        WITH(calls_that_give_little_are_made_again, any),
        BOTH(a_wait_has_an_end),
        BOTH(it_is_woken_from_another_thread),
        BOTH(done_may_submit),
        BOTH(close_waits_for_all),
        BOTH(close_right_after_open),
        BOTH(a_call_has_a_thread),
        BOTH(ten_thousand_requests_like_the_model),
        BOTH(a_depth_has_limits),
        WITH(what_a_filter_forbids, any),
        WITH(descriptors_run_out, any),
        WITH(auto_prefers_uring, any),
        BOTH(a_forked_child_keeps_its_hands_off),
        cmocka_unit_test(what_a_killed_process_writes_is_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
