/* The thread that backs a segment's data by real pages, while the segment is used already. */
#include "base/error.h"
#include "store/segment/memory_inside.h"
#include "env/clock.h"
#include "env/log.h"
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
#define KEEP_PART 15u                      /* one byte is left to whoever else is there for so many that are lent */

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

static void *populate_run(void *argument)
{
    struct mc_segment_memory *memory = argument;
    const uint64_t data_size = memory->file.data_size, capacity = memory->file.capacity;
    uint64_t done = 0, due = progress_due(0), start_ns = mc_clock_ns();
    while (done < data_size && !atomic_load_explicit(&memory->stop, memory_order_relaxed)) {
        uint64_t bite = data_size - done < POPULATE_BITE ? data_size - done : POPULATE_BITE;
        bool has_room = memory->file.page_bytes > MC_PAGE_BYTES || done == 0 || done % POPULATE_CHECK_EVERY != 0 ||
                        populate_has_room();
        int error = has_room ? populate_bite(memory, done, bite) : ENOMEM;
        if (error != 0) {
            mc_log(ERROR,
                   "populating the segment stopped at %" PRIu64 " of %" PRIu64
                   " bytes: %s; the rest is not offered to the pool",
                   done, capacity, strerror(error));
            return NULL;
        }
        done += bite;
        populate_count(memory, bite);
        /* All of it is only said once the slack behind it is there too. */
        uint64_t usable = done == data_size ? capacity : mc_sub_to_zero(done, MC_EXTENT_SLACK);
        if (usable > capacity)
            usable = capacity;
        populated_note(memory, done, usable & ~(uint64_t)(MC_PAGE_BYTES - 1));
        if (done >= due || done == data_size) {
            due = progress_due(done);
            if (memory->progress != NULL)
                memory->progress(memory->progress_context, mc_segment_memory_populated(memory));
        }
    }
    if (done == data_size)
        mc_log(DEBUG, "segment of %" PRIu64 " bytes populated in %" PRIu64 " ms", capacity,
               (mc_clock_ns() - start_ns) / 1000000);
    return NULL;
}

int mc_segment_memory_populate(struct mc_segment_memory *memory, void (*progress)(void *context, uint64_t populated),
                               void *context)
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
    atomic_store_explicit(&memory->stop, true, memory_order_relaxed);
    pthread_join(memory->thread, NULL);
    memory->populating = false;
}
