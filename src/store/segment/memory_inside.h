/* What the files of memory.h share: the inside of struct mc_segment_memory. Not for others. */
#ifndef MC_SEGMENT_MEMORY_INSIDE_H
#define MC_SEGMENT_MEMORY_INSIDE_H

#include "store/segment/memory.h"
#include "store/segment/file.h"
#include "store/segment/let_go.h"
#include "store/segment/numa.h"

#include <pthread.h>

/* Of memory that others follow, which wait for it; it outlives the memory. */
struct mc_departure {
    _Atomic uint32_t references;
    atomic_bool is_over; /* the memory is gone; told by mc_let_go_wake */
};

struct mc_segment_memory {
    struct mc_segment_file file;
    struct mc_numa_nodes nodes; /* on which it lies, and who populates it runs; none: wherever */
    pthread_mutex_t lock;       /* serialises writes to the index; guards attached, and writes to slot_top */
    _Atomic uint32_t slot_top;  /* one more than the highest slot that was ever used: those above are not looked at */
    bool attached[MC_WRITERS_MAX];
    _Atomic uint32_t references;
    _Atomic uint64_t populated;  /* at most capacity */
    _Atomic uint64_t backed_end; /* of the data: up to here touching it cannot fault */
    _Atomic bool given_up;
    atomic_bool stop;
    bool populating;  /* thread is to be joined */
    uint64_t counted; /* what that thread has populated; read when it has ended */
    pthread_t thread;
    mc_populate_progress *progress;
    void *progress_context;
    struct mc_let_go leaving; /* of its end, or of its owner's */
    /* NULL: nobody follows it; it follows none. */
    struct mc_departure *departure, *predecessor;
};

/* ThreadSanitizer knows no fences, and does not see other processes. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_THREAD_SANITIZER 1
#endif
#endif
#ifdef __SANITIZE_THREAD__
#define UNDER_THREAD_SANITIZER 1
#endif

static inline uint64_t mc_sub_to_zero(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* What the tightest limit leaves, UINT64_MAX when there is none. */
uint64_t mc_memory_capacity_with(const struct mc_segment_left *left, uint64_t wanted,
                                 const struct mc_memory_limits *limits, const char **reason);
uint64_t mc_memory_limits_left(const struct mc_memory_limits *limits, const char **reason);
/* May more be populated by a process that has populated so much? */
bool mc_memory_may_populate(const struct mc_memory_limits *limits, uint64_t populated);
/* What was populated is given back; the thread has ended, or is the parent's. */
void mc_populate_forget(struct mc_segment_memory *memory);
/* Do these fields describe an object inside of what is backed? slot.generation and slot.state are not looked at. */
bool mc_slot_is_sane(const struct mc_segment_memory *memory, const struct mc_slot *slot);
/* May the process of that entry be storing? An entry whose process is gone is reset. With the lock. */
bool mc_writer_is_living(struct mc_segment_memory *memory, uint32_t entry);
/* After a memory was taken up: entries of the dead are reset, those of the living counted. */
void mc_writers_take_up(struct mc_segment_memory *memory);
uint32_t mc_writers_top(const struct mc_segment_memory *memory);

#endif
