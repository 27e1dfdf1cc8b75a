/* A disk with its thread: calls from several threads, two processes, and an end while the kernel answers nothing. */
#include "disk_rig.h"

#include "env/clock.h"
#include "env/log.h"
#include "env/thread.h"

#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* Ports that do at once what they are asked, on the thread that collects; or, while they are stuck, nothing. */
struct plain {
    struct mc_disk_request *first, *last;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_woken;
};
static _Atomic bool is_stuck;
static _Atomic unsigned closed;
static _Atomic bool is_hung;       /* a file system that is asked what it has left */
static _Atomic bool is_close_hung; /* or that a file is given back to */
static _Atomic unsigned hanging;   /* closes that wait for it */
static _Atomic int hung_log = -1;  /* a descriptor of whoever reads the log, and stands still */

ssize_t write(int fd, const void *bytes, size_t length)
{
    while (fd == hung_log)
        usleep(1000);
    return syscall(SYS_write, fd, bytes, length);
}

int close(int fd)
{
    hanging += is_close_hung;
    while (is_close_hung)
        usleep(1000);
    return (int)syscall(SYS_close, fd);
}

int fstatvfs(int fd, struct statvfs *status)
{
    struct statfs truth;
    while (is_hung)
        usleep(1000);
    if (syscall(SYS_fstatfs, fd, &truth) != 0)
        return -1;
    *status = (struct statvfs){
        .f_frsize = (unsigned long)truth.f_frsize, .f_blocks = truth.f_blocks, .f_bavail = truth.f_bavail};
    return 0;
}

static int plain_open(enum mc_disk_io_kind kind, unsigned depth, struct mc_disk_io **io)
{
    (void)kind, (void)depth;
    struct plain *plain = calloc(1, sizeof(*plain));
    assert_non_null(plain);
    mc_monitor_init(&plain->lock, &plain->changed);
    *io = (struct mc_disk_io *)plain;
    return 0;
}

static void plain_submit(struct mc_disk_io *io, struct mc_disk_request *request)
{
    struct plain *plain = (struct plain *)io;
    request->next = NULL;
    *(plain->last != NULL ? &plain->last->next : &plain->first) = request;
    plain->last = request;
}

static int64_t plain_run(struct mc_disk_request *request)
{
    if (request->operation == MC_DISK_CALL)
        return request->call(request);
    int64_t rc = request->operation == MC_DISK_READ
                     ? pread(request->fd, request->buffer, request->length, (off_t)request->offset)
                 : request->operation == MC_DISK_WRITE
                     ? pwrite(request->fd, request->buffer, request->length, (off_t)request->offset)
                     : fdatasync(request->fd);
    return rc < 0 ? -errno : rc;
}

static unsigned plain_collect(struct mc_disk_io *io, int timeout_ms)
{
    struct plain *plain = (struct plain *)io;
    unsigned ended = 0;
    if (plain->first == NULL || is_stuck) {
        uint64_t until_ns = mc_clock_ns() + (uint64_t)(timeout_ms < 0 || timeout_ms > 20 ? 20 : timeout_ms) * 1000000;
        pthread_mutex_lock(&plain->lock);
        while (!plain->is_woken && mc_monitor_wait(&plain->lock, &plain->changed, until_ns) == 0)
            continue;
        plain->is_woken = false;
        pthread_mutex_unlock(&plain->lock);
    }
    for (struct mc_disk_request *todo = plain->first; todo != NULL && !is_stuck; ended++) {
        struct mc_disk_request *request = todo;
        todo = plain->first = request->next;
        plain->last = todo == NULL ? NULL : plain->last;
        request->done(request, plain_run(request));
        todo = plain->first;
    }
    return ended;
}

static void plain_wake(struct mc_disk_io *io)
{
    struct plain *plain = (struct plain *)io;
    pthread_mutex_lock(&plain->lock);
    plain->is_woken = true;
    pthread_cond_signal(&plain->changed);
    pthread_mutex_unlock(&plain->lock);
}

static void plain_close(struct mc_disk_io *io)
{
    struct plain *plain = (struct plain *)io;
    mc_monitor_destroy(&plain->lock, &plain->changed);
    free(plain);
    closed++;
}

static const struct mc_disk_ports plain_ports = {plain_open, plain_submit, plain_collect, plain_wake, plain_close};

/* ---- waiting for an answer ---- */

struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct answer answer;
};

static void waiter_end(struct waiter *waiter, struct answer answer)
{
    pthread_mutex_lock(&waiter->lock);
    waiter->answer = answer;
    waiter->answer.is_there = true;
    pthread_cond_signal(&waiter->changed);
    pthread_mutex_unlock(&waiter->lock);
}

static void stored(void *context, int code, uint32_t slot)
{
    waiter_end(context, (struct answer){.code = code, .slot = slot});
}
static void was_read(void *context, int code, const struct mc_disk_entry *entry, uint8_t *buffer)
{
    waiter_end(context, (struct answer){.code = code, .entry = *entry, .buffer = buffer});
}
static void done(void *context, int code)
{
    waiter_end(context, (struct answer){.code = code});
}
static void ready(void *context, int code, uint32_t objects)
{
    waiter_end(context, (struct answer){.code = code, .slot = objects});
}

static struct answer wait_for(struct waiter *waiter)
{
    pthread_mutex_lock(&waiter->lock);
    while (!waiter->answer.is_there)
        pthread_cond_wait(&waiter->changed, &waiter->lock);
    struct answer answer = waiter->answer;
    waiter->answer.is_there = false;
    pthread_mutex_unlock(&waiter->lock);
    return answer;
}

static struct waiter opened;

static struct mc_disk *disk_start_by(const char *path, const struct mc_disk_ports *ports, enum mc_disk_io_kind kind)
{
    struct mc_disk_config config = rig_config(path);
    struct mc_disk *disk;
    char error[MC_DISK_ERROR_MAX] = "";
    config.ports = ports;
    config.io_kind = kind;
    config.clock_ns = NULL;
    config.has_no_thread = false;
    config.capacity = 32 * RIG_REGION;
    config.ready = ready;
    config.context = &opened;
    mc_monitor_init(&opened.lock, &opened.changed);
    assert_int_equal(mc_disk_open(&config, &disk, error, sizeof(error)), 0);
    assert_int_equal(wait_for(&opened).code, 0);
    return disk;
}

static struct mc_disk *disk_start(const char *path)
{
    return disk_start_by(path, &plain_ports, MC_DISK_IO_AUTO);
}

/* ---- several threads ---- */

struct worker {
    struct mc_disk *disk;
    pthread_t thread;
    uint64_t first;
    unsigned bad;
};

static void *work(void *argument)
{
    struct worker *worker = argument;
    struct waiter waiter = {0};
    char key[MC_KEY_LENGTH_MAX + 1];
    mc_monitor_init(&waiter.lock, &waiter.changed);
    for (uint64_t i = worker->first; i < worker->first + 60; i++) {
        uint64_t length = 1 + i * 997 % 90000;
        uint32_t key_length = rig_key(i, key);
        uint8_t *buffer = mc_disk_lend(worker->disk, length, key_length);
        if (buffer == NULL)
            continue;
        struct mc_disk_entry entry = rig_extent(buffer, i, i, length);
        if (mc_disk_store(worker->disk, rig_slot(worker->disk), &entry, buffer, false, stored, &waiter) < 0) {
            mc_disk_give_back(worker->disk, buffer);
            continue;
        }
        struct answer answer = wait_for(&waiter);
        struct mc_disk_place place = {answer.slot, i};
        worker->bad += answer.code == 0 ? 0 : 1;
        if (mc_disk_read(worker->disk, place, mc_clock_ns() + 10000000000ull, was_read, &waiter) == 0) {
            answer = wait_for(&waiter);
            uint8_t expected[8] = {0};
            rig_fill(expected, length < 8 ? length : 8, i);
            worker->bad += answer.code == 0 && memcmp(answer.buffer, expected, length < 8 ? length : 8) == 0 ? 0 : 1;
            if (answer.code == 0)
                mc_disk_give_back(worker->disk, answer.buffer);
        }
        if (i % 3 == 0 && mc_disk_clear(worker->disk, &place, 1, true, done, &waiter) == 0)
            worker->bad += wait_for(&waiter).code == 0 ? 0 : 1;
    }
    mc_monitor_destroy(&waiter.lock, &waiter.changed);
    return NULL;
}

static void test_several_threads(void **state)
{
    (void)state;
    char *path = rig_directory();
    struct worker workers[4];
    struct mc_disk_statistics statistics;
    struct mc_disk *disk = disk_start(path);
    for (unsigned i = 0; i < 4; i++) {
        workers[i] = (struct worker){.disk = disk, .first = 1 + i * 60};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++) {
        pthread_join(workers[i].thread, NULL);
        assert_int_equal(workers[i].bad, 0);
    }
    mc_disk_statistics_read(disk, &statistics);
    assert_true(statistics.stored > 100 && statistics.served > 100 && statistics.buffer_bytes_lent == 0);
    mc_disk_close(disk, 10000);
    disk = disk_start(path);
    mc_disk_statistics_read(disk, &statistics);
    assert_int_equal(statistics.objects, 160);
    mc_disk_close(disk, 10000);
    rig_remove(path);
}

/* ---- two processes ---- */

static void test_two_processes(void **state)
{
    (void)state;
    char *path = rig_directory();
    int pipes[2];
    char first[2] = "";
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        struct mc_disk *disk = disk_start(path);
        const char *directory = mc_disk_directory(disk);
        ssize_t written = write(pipes[1], directory + strlen(directory) - 1, 1);
        pause();
        _exit(written == 1 ? 0 : 1);
    }
    assert_int_equal(read(pipes[0], first, 1), 1);
    assert_string_equal(first, "0");
    struct mc_disk *disk = disk_start(path);
    assert_non_null(strstr(mc_disk_directory(disk), "mooncake-c.1"));
    mc_disk_close(disk, 1000);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    disk = disk_start(path); /* its lock went with it */
    assert_non_null(strstr(mc_disk_directory(disk), "mooncake-c.0"));
    mc_disk_close(disk, 1000);
    close(pipes[0]);
    close(pipes[1]);
    rig_remove(path);
}

/* A child that was forked meanwhile, and knows nothing of the disk, has the descriptor of the lock. */
static void test_closed_beside_a_child(void **state)
{
    (void)state;
    char *path = rig_directory();
    struct mc_disk *disk = disk_start(path);
    pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    mc_disk_close(disk, 1000);
    disk = disk_start(path);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_non_null(strstr(mc_disk_directory(disk), "mooncake-c.0"));
    mc_disk_close(disk, 1000);
    rig_remove(path);
}

static unsigned descriptors(void)
{
    unsigned count = 0;
    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* One that is told of the fork keeps nothing of it open, and the parent's goes on. */
static void test_forked(void **state)
{
    (void)state;
    static const enum mc_disk_io_kind kinds[] = {MC_DISK_IO_AUTO, MC_DISK_IO_THREADS};
    for (unsigned i = 0; i < 2; i++) {
        char *path = rig_directory();
        unsigned before = descriptors();
        struct mc_disk *disk = disk_start_by(path, &mc_disk_ports_system, kinds[i]);
        struct worker worker = {.disk = disk, .first = 1};
        assert_true(descriptors() > before);
        pid_t child = fork();
        if (child == 0) {
            mc_disk_forked(disk);
            _exit(descriptors() == before ? 0 : 1);
        }
        int status = -1;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        (void)work(&worker);
        assert_int_equal(worker.bad, 0);
        mc_disk_close(disk, 10000);
        assert_int_equal(descriptors(), before);
        rig_remove(path);
    }
}

/* ---- an end that is bounded ---- */

static void test_close_while_stuck(void **state)
{
    (void)state;
    char *path = rig_directory(), key[MC_KEY_LENGTH_MAX + 1];
    struct waiter waiter = {0};
    mc_monitor_init(&waiter.lock, &waiter.changed);
    struct mc_disk *disk = disk_start(path);
    unsigned before = closed;
    is_stuck = true;
    uint8_t *buffer = mc_disk_lend(disk, 5000, rig_key(1, key));
    struct mc_disk_entry entry = rig_extent(buffer, 1, 1, 5000);
    assert_int_equal(mc_disk_store(disk, rig_slot(disk), &entry, buffer, false, stored, &waiter), 0);
    uint64_t begun_ms = mc_clock_ms();
    mc_disk_close(disk, 200);
    assert_true(mc_clock_ms() - begun_ms < 5000);
    assert_int_equal(wait_for(&waiter).code, MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
    is_stuck = false; /* what was under way ends, and with it the thread that waits for it */
    for (unsigned i = 0; closed == before && i < 1000; i++)
        usleep(10000);
    assert_int_equal(closed, before + 1);
    usleep(100000);
    disk = disk_start(path);
    mc_disk_close(disk, 1000);
    mc_monitor_destroy(&waiter.lock, &waiter.changed);
    rig_remove(path);
}

/* Several are told to stop before the first is closed: what wakes them must be there until then. */
static void test_stopped_before_closed(void **state)
{
    (void)state;
    char *path = rig_directory();
    struct mc_disk *disk = disk_start(path);
    unsigned before = closed;
    mc_disk_stop(disk, 200);
    usleep(300000); /* its thread ends */
    assert_int_equal(closed, before);
    mc_disk_close(disk, 200);
    assert_int_equal(closed, before + 1);
    rig_remove(path);
}

static bool is_answered_soon(struct waiter *waiter)
{
    bool is_there = false;
    for (unsigned i = 0; i < 500 && !is_there; i++) {
        usleep(10000);
        pthread_mutex_lock(&waiter->lock);
        is_there = waiter->answer.is_there;
        pthread_mutex_unlock(&waiter->lock);
    }
    return is_there;
}

static void assert_free_soon(const char *path)
{
    for (unsigned i = 0, is_first = 0; is_first == 0; i++) {
        assert_true(i < 100);
        usleep(50000);
        struct mc_disk *disk = disk_start(path);
        is_first = strstr(mc_disk_directory(disk), "mooncake-c.0") != NULL;
        mc_disk_close(disk, 1000);
    }
}

/* A dead server of a file system answers no question at all, and not only reads and writes wait for it. */
static void hung_file_system(enum mc_disk_io_kind kind)
{
    enum { COUNT = 3 };
    char *path = rig_directory(), key[MC_KEY_LENGTH_MAX + 1];
    struct waiter waiters[COUNT] = {0}, reader = {0};
    struct mc_disk *disk = disk_start_by(path, &mc_disk_ports_system, kind);
    mc_monitor_init(&reader.lock, &reader.changed);
    for (unsigned i = 0; i < COUNT; i++) {
        mc_monitor_init(&waiters[i].lock, &waiters[i].changed);
        uint8_t *buffer = mc_disk_lend(disk, 450000, rig_key(i, key)); /* the last needs a second region */
        assert_non_null(buffer);
        struct mc_disk_entry entry = rig_extent(buffer, i + 1, i, 450000);
        assert_int_equal(mc_disk_store(disk, rig_slot(disk), &entry, buffer, false, stored, &waiters[i]), 0);
        if (i == 0) {
            assert_true(is_answered_soon(&waiters[0]));
            is_hung = true;
        }
    }
    struct mc_disk_place place = {waiters[0].answer.slot, 1};
    usleep(50000);
    assert_int_equal(mc_disk_read(disk, place, mc_clock_ns() + 5000000000u, was_read, &reader), 0);
    assert_true(is_answered_soon(&reader));
    assert_int_equal(reader.answer.code, 0);
    mc_disk_give_back(disk, reader.answer.buffer);
    uint64_t begun_ms = mc_clock_ms();
    mc_disk_close(disk, 200);
    assert_true(mc_clock_ms() - begun_ms < 5000);
    assert_int_equal(wait_for(&waiters[COUNT - 1]).code, MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
    is_hung = false; /* then the lock is let go, and nothing else is left */
    assert_free_soon(path);
    rig_remove(path);
}

static void test_hung_file_system(void **state)
{
    (void)state;
    hung_file_system(MC_DISK_IO_AUTO);
    hung_file_system(MC_DISK_IO_THREADS);
}

/* What buffered files hold goes to the server when they are closed. */
static void test_hung_close(void **state)
{
    (void)state;
    char *path = rig_directory();
    struct mc_disk *disk = disk_start(path);
    uint64_t begun_ms = mc_clock_ms();
    is_close_hung = true;
    mc_disk_close(disk, 200);
    assert_true(mc_clock_ms() - begun_ms < 5000);
    assert_int_equal(hanging, 1); /* it was left to do that */
    is_close_hung = false;
    assert_free_soon(path);
    rig_remove(path);
}

/* Neither what waits at a slow disk nor new calls wait for the log in which that stands. */
static void test_slow_beside_a_log_that_hangs(void **state)
{
    (void)state;
    char *path = rig_directory(), key[MC_KEY_LENGTH_MAX + 1];
    struct waiter waiter = {0}, reader = {0};
    int pipes[2];
    mc_monitor_init(&waiter.lock, &waiter.changed);
    mc_monitor_init(&reader.lock, &reader.changed);
    struct mc_disk *disk = disk_start(path);
    uint8_t *buffer = mc_disk_lend(disk, 5000, rig_key(1, key));
    struct mc_disk_entry entry = rig_extent(buffer, 1, 1, 5000);
    assert_int_equal(mc_disk_store(disk, rig_slot(disk), &entry, buffer, false, stored, &waiter), 0);
    struct mc_disk_place place = {wait_for(&waiter).slot, 1};
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    int before = mc_log_to(pipes[1]);
    mc_log_set_level(MC_LOG_WARNING);
    hung_log = pipes[1];
    is_stuck = true;
    assert_int_equal(mc_disk_read(disk, place, mc_clock_ns() + 60000000000ull, was_read, &reader), 0);
    assert_true(is_answered_soon(&reader));
    assert_int_equal(reader.answer.code, MC_ERR_BUSY);
    int code = 0;
    for (unsigned i = 0; i < 100 && code == 0; i++) {
        usleep(10000);
        code = mc_disk_read(disk, place, mc_clock_ns() + 1000000u, was_read, &waiter);
    }
    assert_int_equal(code, MC_ERR_BUSY);
    hung_log = -1;
    is_stuck = false;
    mc_disk_close(disk, 1000);
    mc_log_set_level(MC_LOG_ERROR);
    (void)mc_log_to(before);
    close(pipes[0]);
    close(pipes[1]);
    mc_monitor_destroy(&reader.lock, &reader.changed);
    mc_monitor_destroy(&waiter.lock, &waiter.changed);
    rig_remove(path);
}

/* In a file, on which nobody can stand still but its file system: nor does the end wait for it. */
static void test_close_beside_a_log_that_hangs(void **state)
{
    (void)state;
    char *path = rig_directory(), key[MC_KEY_LENGTH_MAX + 1], name[] = "/tmp/test_disk_thread_XXXXXX";
    struct waiter waiter = {0};
    mc_monitor_init(&waiter.lock, &waiter.changed);
    struct mc_disk *disk = disk_start(path);
    int file = mkostemp(name, O_APPEND | O_CLOEXEC);
    assert_true(file >= 0);
    int before = mc_log_to(file);
    mc_log_set_level(MC_LOG_WARNING);
    hung_log = file;
    is_stuck = true;
    uint8_t *buffer = mc_disk_lend(disk, 5000, rig_key(1, key));
    struct mc_disk_entry entry = rig_extent(buffer, 1, 1, 5000);
    assert_int_equal(mc_disk_store(disk, rig_slot(disk), &entry, buffer, false, stored, &waiter), 0);
    sleep(MC_DISK_SLOW_MS / 1000 + 1); /* then that it is slow is said */
    uint64_t begun_ms = mc_clock_ms();
    mc_disk_close(disk, 200);
    assert_true(mc_clock_ms() - begun_ms < 5000);
    assert_int_equal(wait_for(&waiter).code, MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS);
    hung_log = -1;
    is_stuck = false;
    assert_free_soon(path);
    mc_log_set_level(MC_LOG_ERROR);
    (void)mc_log_to(before);
    close(file);
    unlink(name);
    mc_monitor_destroy(&waiter.lock, &waiter.changed);
    rig_remove(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_several_threads),
        cmocka_unit_test(test_two_processes),
        cmocka_unit_test(test_closed_beside_a_child),
        cmocka_unit_test(test_forked),
        cmocka_unit_test(test_close_while_stuck),
        cmocka_unit_test(test_stopped_before_closed),
        cmocka_unit_test(test_hung_file_system),
        cmocka_unit_test(test_hung_close),
        cmocka_unit_test(test_slow_beside_a_log_that_hangs),
        cmocka_unit_test(test_close_beside_a_log_that_hangs),
    };
    (void)rig_ports;
    mc_log_set_level(MC_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
