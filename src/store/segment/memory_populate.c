/* The threads that back a segment's data by real pages, while the segment is used already. */
#include "base/error.h"
#include "store/segment/memory_inside.h"
#include "env/clock.h"
#include "env/log.h"
#include "env/setting.h"
#include "env/thread.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define POPULATE_STEP (16ull << 20)        /* between two calls of progress */
#define POPULATE_BITE (2ull << 20)         /* between two looks at the stop flag */
#define POPULATE_CHECK_EVERY (64ull << 20) /* between two looks at the machine's limits */
#define POPULATE_BYTES_EACH (1ull << 30)   /* by default a thread for so much at least, */
#define POPULATE_PROCESSORS_EACH 8u        /* and for so many */
#define SAY_AFTER_S 2.0
#define SAY_EVERY_NS 10000000000ull
#define LET_GO_MS 60000u /* so long the end of the memory before it is waited for */
#define KEEP_PART 15u    /* one byte is left to whoever else is there for so many that are lent */

/* Of all segments of this process that are no files of a disk. Each alone leaves a tenth free (mc_memory_capacity);
 * what several were promised that were set up at the same time is more than there is. */
static _Atomic uint64_t populated_here;

uint64_t mc_segment_memory_populated(const struct mc_segment_memory *memory)
{
    return atomic_load_explicit(&memory->populated, memory_order_acquire);
}

/* Backs [offset, offset + length) of the data by real pages. 0 or an errno value; never a signal. */
static int populate_bite(struct mc_segment_memory *memory, uint64_t offset, uint64_t length)
{
    /* A full disk says no here; touching would be a SIGBUS. */
    int error = memory->file.is_named ? mc_file_allocate(memory->file.data_fd, offset, length) : 0;
    for (unsigned tries = 0; tries < 1000 && error == 0; tries++) {
        if (madvise(memory->file.data + offset, length, MADV_POPULATE_WRITE) == 0)
            return 0;
        if (errno == EINTR || errno == EAGAIN)
            continue;
        /* EINVAL: before Linux 5.14. Allocates the pages without a fault; the first touch of each is then cheap. */
        return errno == EINVAL ? mc_file_allocate(memory->file.data_fd, offset, length) : errno;
    }
    return error == 0 ? EAGAIN : error;
}

bool mc_memory_may_populate(const struct mc_memory_limits *limits, uint64_t populated)
{
    const char *reason;
    uint64_t kept = populated / KEEP_PART, left = mc_memory_limits_left(limits, &reason);
    return left > (kept > 2 * POPULATE_CHECK_EVERY ? kept : 2 * POPULATE_CHECK_EVERY);
}

/* The kernel kills rather than says no when a cgroup's limit is met by a fault, so look before every so many bytes. */
static bool populate_has_room(void)
{
    struct mc_memory_limits limits;
    mc_memory_limits_read(&limits);
    return mc_memory_may_populate(&limits, atomic_load_explicit(&populated_here, memory_order_relaxed));
}

static void populate_count(struct mc_segment_memory *memory, uint64_t bytes)
{
    if (memory->file.is_named || memory->file.page_bytes > MC_PAGE_BYTES)
        return;
    atomic_fetch_add_explicit(&populated_here, bytes, memory_order_relaxed);
    memory->counted += bytes; /* second: a child that is forked in between takes off no more than was counted */
}

void mc_populate_forget(struct mc_segment_memory *memory)
{
    atomic_fetch_sub_explicit(&populated_here, memory->counted, memory_order_relaxed);
    memory->counted = 0;
}

/* Small at first, so that a fresh segment takes its first objects within milliseconds. */
static uint64_t progress_due(uint64_t done)
{
    return done < POPULATE_STEP ? (done == 0 ? POPULATE_BITE : done * 2) : done + POPULATE_STEP;
}

/* Never falls: memory that was taken up may be populated already. */
static void populated_note(struct mc_segment_memory *memory, uint64_t backed_end, uint64_t populated)
{
    if (backed_end > atomic_load_explicit(&memory->backed_end, memory_order_relaxed))
        atomic_store_explicit(&memory->backed_end, backed_end, memory_order_release);
    if (populated > atomic_load_explicit(&memory->populated, memory_order_relaxed)) {
        atomic_store_explicit(&memory->populated, populated, memory_order_release);
        atomic_store_explicit(&memory->file.header->populated, populated, memory_order_release);
    }
}

/* ---- several threads ---- */

/* The data is taken in rounds, each in bites that whoever is free takes in turn: when a round has ended all before its
 * end is backed, or all before the first bite that failed. Without helpers a round is one bite. */
struct gang {
    struct mc_segment_memory *memory;
    _Atomic uint64_t next, failed_at; /* failed_at: of the first bite that did; UINT64_MAX: none */
    uint64_t end;                     /* of the round */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned round, busy; /* under lock, as the two below */
    bool is_over;
    int error; /* of that bite */
    unsigned helpers;
    pthread_t threads[MC_POPULATE_THREADS_MAX - 1];
};

static void bite_failed(struct gang *gang, uint64_t offset, int error)
{
    pthread_mutex_lock(&gang->lock);
    if (offset < atomic_load(&gang->failed_at)) {
        atomic_store(&gang->failed_at, offset);
        gang->error = error;
    }
    pthread_mutex_unlock(&gang->lock);
}

/* A bite that was taken is done, or has failed: so there are no holes before `next`. */
static void bites_take(struct gang *gang)
{
    struct mc_segment_memory *memory = gang->memory;
    while (!atomic_load_explicit(&memory->stop, memory_order_relaxed) && atomic_load(&gang->failed_at) == UINT64_MAX) {
        uint64_t offset = atomic_fetch_add(&gang->next, POPULATE_BITE);
        if (offset >= gang->end)
            return;
        uint64_t length = gang->end - offset < POPULATE_BITE ? gang->end - offset : POPULATE_BITE;
        int error = populate_bite(memory, offset, length);
        if (error != 0)
            bite_failed(gang, offset, error);
    }
}

static void *helper_run(void *argument)
{
    struct gang *gang = argument;
    unsigned seen = 0;
    mc_numa_run_on(&gang->memory->nodes);
    pthread_mutex_lock(&gang->lock);
    for (;;) {
        while (gang->round == seen && !gang->is_over)
            pthread_cond_wait(&gang->changed, &gang->lock);
        if (gang->is_over)
            break;
        seen = gang->round;
        pthread_mutex_unlock(&gang->lock);
        bites_take(gang);
        pthread_mutex_lock(&gang->lock);
        if (--gang->busy == 0)
            pthread_cond_broadcast(&gang->changed);
    }
    pthread_mutex_unlock(&gang->lock);
    return NULL;
}

/* As many as are wanted for so much, less those that cannot be started. */
static void helpers_start(struct gang *gang, uint64_t size)
{
    uint64_t by_default = mc_threads_by_processors(POPULATE_PROCESSORS_EACH, MC_POPULATE_THREADS_MAX);
    if (by_default > size / POPULATE_BYTES_EACH)
        by_default = size < POPULATE_BYTES_EACH ? 1 : size / POPULATE_BYTES_EACH;
    uint64_t wanted = mc_setting_number(MC_POPULATE_THREADS, "", 1, MC_POPULATE_THREADS_MAX, by_default);
    while (gang->helpers + 1 < wanted) {
        if (mc_thread_start(&gang->threads[gang->helpers], "mc-populate", helper_run, gang) != 0) {
            mc_log(WARNING, "%u of %" PRIu64 " threads populate the segment: no more can be started", gang->helpers + 1,
                   wanted);
            return;
        }
        gang->helpers++;
    }
}

static void helpers_end(struct gang *gang)
{
    pthread_mutex_lock(&gang->lock);
    gang->is_over = true;
    pthread_cond_broadcast(&gang->changed);
    pthread_mutex_unlock(&gang->lock);
    for (unsigned i = 0; i < gang->helpers; i++)
        pthread_join(gang->threads[i], NULL);
}

/* [start, end) by all of them. Returns how far it is backed. */
static uint64_t round_do(struct gang *gang, uint64_t start, uint64_t end)
{
    pthread_mutex_lock(&gang->lock);
    atomic_store(&gang->next, start);
    gang->end = end;
    gang->busy = gang->helpers;
    gang->round++;
    pthread_cond_broadcast(&gang->changed);
    pthread_mutex_unlock(&gang->lock);
    bites_take(gang);
    pthread_mutex_lock(&gang->lock);
    while (gang->busy > 0)
        pthread_cond_wait(&gang->changed, &gang->lock);
    pthread_mutex_unlock(&gang->lock);
    uint64_t taken = atomic_load(&gang->next), failed_at = atomic_load(&gang->failed_at);
    taken = taken < end ? taken : end;
    return taken < failed_at ? taken : failed_at;
}

/* ---- the whole ---- */

/* What was done so far is told when there is much of it, and to the log when it takes long. */
struct telling {
    uint64_t due, start_ns, said_ns;
};

static void tell(struct mc_segment_memory *memory, struct telling *telling, uint64_t done)
{
    const uint64_t data_size = memory->file.data_size, now_ns = mc_clock_ns();
    if (done >= telling->due || done == data_size) {
        telling->due = progress_due(done);
        if (memory->progress != NULL)
            memory->progress(memory->progress_context, memory, mc_segment_memory_populated(memory));
    }
    double passed_s = (double)(now_ns - telling->start_ns) / 1e9;
    if (done < data_size && passed_s > SAY_AFTER_S && now_ns - telling->said_ns > SAY_EVERY_NS) {
        telling->said_ns = now_ns;
        mc_log(INFO, "populating the segment: %.1f of %.1f GiB, %.2f GiB/s, about %.0f s left", (double)done / 0x1p30,
               (double)data_size / 0x1p30, (double)done / 0x1p30 / passed_s,
               passed_s * (double)(data_size - done) / (double)done);
    }
    if (done == data_size && passed_s > SAY_AFTER_S)
        mc_log(INFO, "populated the segment: %.1f GiB in %.1f s", (double)data_size / 0x1p30, passed_s);
}

/* The end of the next round. The first bites are alone, so that a segment takes its first objects within milliseconds;
 * the machine's limits are looked at between rounds. */
static uint64_t round_end(const struct gang *gang, uint64_t done)
{
    const uint64_t data_size = gang->memory->file.data_size;
    uint64_t end = gang->helpers == 0 || done < POPULATE_STEP
                       ? done + POPULATE_BITE
                       : (done / POPULATE_CHECK_EVERY + 1) * POPULATE_CHECK_EVERY;
    return end < data_size ? end : data_size;
}

static void *populate_run(void *argument)
{
    struct mc_segment_memory *memory = argument;
    const uint64_t data_size = memory->file.data_size, capacity = memory->file.capacity;
    struct telling telling = {.due = progress_due(0)};
    struct gang gang = {.memory = memory, .failed_at = UINT64_MAX};
    uint64_t done = 0;
    mc_numa_run_on(&memory->nodes);
    if (memory->predecessor != NULL)
        mc_let_go_await_word(&memory->predecessor->is_over, &memory->stop,
                             mc_clock_ns() + LET_GO_MS * UINT64_C(1000000));
    telling.start_ns = mc_clock_ns();
    mc_monitor_init(&gang.lock, &gang.changed);
    helpers_start(&gang, data_size);
    while (done < data_size && !atomic_load_explicit(&memory->stop, memory_order_relaxed)) {
        bool has_room = memory->file.page_bytes > MC_PAGE_BYTES || done == 0 || done % POPULATE_CHECK_EVERY != 0 ||
                        populate_has_room();
        if (!has_room)
            bite_failed(&gang, done, ENOMEM);
        uint64_t before = done;
        done = has_room ? round_do(&gang, done, round_end(&gang, done)) : done;
        populate_count(memory, done - before);
        /* All of it is only said once the slack behind it is there too. */
        uint64_t usable = done == data_size ? capacity : mc_sub_to_zero(done, MC_EXTENT_SLACK);
        if (usable > capacity)
            usable = capacity;
        populated_note(memory, done, usable & ~(uint64_t)(MC_PAGE_BYTES - 1));
        if (gang.error != 0) {
            mc_log(ERROR,
                   "populating the segment stopped at %" PRIu64 " of %" PRIu64
                   " bytes: %s; the rest is not offered to the pool",
                   done, capacity, strerror(gang.error));
            break;
        }
        tell(memory, &telling, done);
    }
    helpers_end(&gang);
    mc_monitor_destroy(&gang.lock, &gang.changed);
    return NULL;
}

int mc_segment_memory_populate(struct mc_segment_memory *memory, mc_populate_progress *progress, void *context)
{
    mc_assert(!memory->populating);
    memory->progress = progress;
    memory->progress_context = context;
    if (mc_thread_start(&memory->thread, "mc-populate", populate_run, memory) != 0) {
        mc_log(ERROR, "cannot start the thread that populates the segment; it stays empty");
        return MC_ERR_NO_MEMORY;
    }
    memory->populating = true;
    return 0;
}

void mc_segment_memory_populate_stop(struct mc_segment_memory *memory)
{
    if (!memory->populating)
        return;
    mc_assert(!pthread_equal(pthread_self(), memory->thread));
    atomic_store(&memory->stop, true);
    mc_let_go_wake();
    pthread_join(memory->thread, NULL);
    memory->populating = false;
}
