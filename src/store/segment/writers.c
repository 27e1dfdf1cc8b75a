/* The table of writers: intents and locks. */
#include "store/segment/writers.h"

#include "env/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>

#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

/* ---- intents ---- */

/* Each thread begins its search at another intent, so that threads seldom meet on one cache line. */
static uint32_t thread_start(void)
{
    return (uint32_t)((uint64_t)pthread_self() * 0x9e3779b97f4a7c15ull >> 40);
}

static int intent_take(struct mc_writer_entry *writer)
{
    uint32_t start = thread_start();
    for (uint32_t i = 0; i < MC_WRITER_INTENTS; i++) {
        uint32_t number = (start + i) % MC_WRITER_INTENTS, is_free = 0;
        _Atomic uint32_t *taken = &writer->intents[number].taken;
        if (atomic_load_explicit(taken, memory_order_relaxed) == 0 &&
            atomic_compare_exchange_strong_explicit(taken, &is_free, 1u, memory_order_acquire, memory_order_relaxed))
            return (int)number;
    }
    return -1;
}

int mc_writer_claim(struct mc_writer_entry *writer, const struct mc_index_header *header, const struct mc_slot *slots,
                    const struct mc_writing *writing, uint64_t deadline_ns)
{
    int number;
    while ((number = intent_take(writer)) < 0) {
        if (mc_clock_ns() >= deadline_ns)
            return MC_ERR_RPC_TIMEOUT;
        sched_yield();
    }
    struct mc_intent *intent = &writer->intents[number];
    uint64_t generation = writing->generation;
    /* Releases: who sees one of them sees the `generation = 0` that was before, see mc_intent_read. */
    atomic_store_explicit(&intent->offset, writing->offset, memory_order_release);
    atomic_store_explicit(&intent->length, writing->length, memory_order_release);
    atomic_store_explicit(&intent->slot, writing->slot, memory_order_release);
    /* An exchange, not a store and a fence: the same instruction, and ThreadSanitizer understands it. */
    (void)atomic_exchange(&intent->generation, generation);
    if (generation != 0 && atomic_load(&header->floor) <= generation &&
        atomic_load(&slots[writing->slot].generation) < generation)
        return number;
    mc_writer_intent_end(writer, number);
    return MC_ERR_STALE;
}

void mc_writer_intent_end(struct mc_writer_entry *writer, int number)
{
    struct mc_intent *intent = &writer->intents[number];
    atomic_store_explicit(&intent->generation, 0, memory_order_release); /* the copy is before it */
    atomic_store_explicit(&intent->taken, 0, memory_order_release);
}

bool mc_intent_read(const struct mc_intent *intent, struct mc_writing *writing)
{
    /* The owner raises and then looks, so an intent that comes after the first look is none of ours to wait for: its
     * writer sees what was raised. One that changes while we look is looked at again. */
    for (unsigned tries = 0; tries < 64; tries++) {
        uint64_t generation = atomic_load(&intent->generation);
        if (generation == 0)
            return false;
        *writing = (struct mc_writing){.generation = generation,
                                       .offset = atomic_load_explicit(&intent->offset, memory_order_acquire),
                                       .length = atomic_load_explicit(&intent->length, memory_order_acquire),
                                       .slot = atomic_load_explicit(&intent->slot, memory_order_acquire)};
        if (atomic_load_explicit(&intent->generation, memory_order_acquire) == generation)
            return true;
    }
    return true; /* changed 64 times meanwhile: whatever it was at the first look is over */
}

bool mc_writer_has(const struct mc_writer_entry *writer, uint32_t slot, uint64_t generation)
{
    struct mc_writing writing;
    for (uint32_t i = 0; i < MC_WRITER_INTENTS; i++) {
        if (mc_intent_read(&writer->intents[i], &writing) && writing.slot == slot && writing.generation <= generation)
            return true;
    }
    return false;
}

void mc_writer_reset(struct mc_writer_entry *writer)
{
    for (uint32_t i = 0; i < MC_WRITER_INTENTS; i++) {
        atomic_store(&writer->intents[i].generation, 0);
        atomic_store(&writer->intents[i].taken, 0);
    }
    writer->node = (struct mc_id){0, 0};
    writer->incarnation = 0;
}

/* ---- locks ---- */

int mc_writers_reopen(int fd)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return open(path, O_RDWR | O_CLOEXEC);
}

static bool lock_set(int fd, uint32_t entry, short type)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)entry, .l_len = 1};
    int rc;
    do
        rc = fcntl(fd, F_OFD_SETLK, &lock);
    while (rc != 0 && errno == EINTR);
    return rc == 0;
}

bool mc_writer_lock(int fd, uint32_t entry)
{
    return lock_set(fd, entry, F_WRLCK);
}

void mc_writer_unlock(int fd, uint32_t entry)
{
    (void)lock_set(fd, entry, F_UNLCK); /* fails only for what is no lock at all */
}

bool mc_writers_locked(int fd, uint32_t first, uint32_t count)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)first, .l_len = (off_t)count};
    return fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}
