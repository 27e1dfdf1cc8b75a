/* I/O by io_uring, through its system calls alone: what is needed of the kernel's interface stands here, so that it can
 * be built with any kernel's headers. Only what Linux 5.1 has is used - READV, WRITEV, FSYNC, and poll on the ring - so
 * that one way of doing it runs, and is tested, everywhere. What is no operation of the kernel's has a thread. */
#include "store/disk/io_inside.h"

#include "base/error.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- the kernel's interface ---- */

#define CALL_SETUP 425
#define CALL_ENTER 426
#define OPERATION_NOP 0
#define OPERATION_READV 1
#define OPERATION_WRITEV 2
#define OPERATION_FSYNC 3
#define FSYNC_DATA 1u
#define ENTER_GET_EVENTS 1u
#define OFFSET_SUBMISSIONS 0
#define OFFSET_COMPLETIONS 0x8000000
#define OFFSET_ENTRIES 0x10000000

struct submission {
    uint8_t operation, flags;
    uint16_t priority;
    int32_t fd;
    uint64_t offset, address;
    uint32_t length, operation_flags;
    uint64_t user_data, unused[3];
};
struct completion {
    uint64_t user_data;
    int32_t result;
    uint32_t flags;
};
struct submission_offsets {
    uint32_t head, tail, mask, entries, flags, dropped, array, unused;
    uint64_t address;
};
struct completion_offsets {
    uint32_t head, tail, mask, entries, overflow, completions, flags, unused;
    uint64_t address;
};
struct parameters {
    uint32_t submission_entries, completion_entries, flags, thread_cpu, thread_idle, features, other_ring, unused[3];
    struct submission_offsets submissions;
    struct completion_offsets completions;
};
_Static_assert(sizeof(struct submission) == 64 && sizeof(struct completion) == 16 && sizeof(struct parameters) == 120,
               "as the kernel has them");

static int enter_ring(int fd, unsigned to_submit, unsigned wait_for)
{
    long rc = syscall(CALL_ENTER, fd, to_submit, wait_for, wait_for > 0 ? ENTER_GET_EVENTS : 0, NULL, 0);
    return rc < 0 ? -errno : (int)rc;
}

/* ---- the rings ---- */

/* The kernel moves the head of the submissions and the tail of the completions, we the other two; what a tail covers
 * was written before it was moved, and what a head has passed was read. */
struct uring {
    int fd;
    void *submission_map, *completion_map;
    size_t submission_bytes, completion_bytes, entry_bytes;
    struct submission *entries;
    struct completion *completions;
    _Atomic uint32_t *submission_head, *submission_tail, *completion_head, *completion_tail;
    uint32_t *array; /* the order of submissions */
    uint32_t submission_mask, completion_mask;
    struct mc_disk_list failed; /* could not be handed to the kernel */
};

static void *map_part(int fd, size_t bytes, off_t offset)
{
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, offset);
    return map == MAP_FAILED ? NULL : map;
}

static int map_ring(struct uring *ring, const struct parameters *parameters)
{
    const struct submission_offsets *to = &parameters->submissions;
    const struct completion_offsets *from = &parameters->completions;
    int rc;
    ring->submission_bytes = to->array + parameters->submission_entries * sizeof(uint32_t);
    ring->completion_bytes = from->completions + parameters->completion_entries * sizeof(struct completion);
    ring->entry_bytes = parameters->submission_entries * sizeof(struct submission);
    ring->submission_map = map_part(ring->fd, ring->submission_bytes, OFFSET_SUBMISSIONS);
    rc = -errno;
    if (ring->submission_map == NULL)
        return rc;
    ring->completion_map = map_part(ring->fd, ring->completion_bytes, OFFSET_COMPLETIONS);
    rc = -errno;
    if (ring->completion_map == NULL)
        goto unmap_submissions;
    ring->entries = map_part(ring->fd, ring->entry_bytes, OFFSET_ENTRIES);
    rc = -errno;
    if (ring->entries == NULL)
        goto unmap_completions;
    char *submissions = ring->submission_map, *completions = ring->completion_map;
    ring->submission_head = (_Atomic uint32_t *)(void *)(submissions + to->head);
    ring->submission_tail = (_Atomic uint32_t *)(void *)(submissions + to->tail);
    ring->submission_mask = *(const uint32_t *)(const void *)(submissions + to->mask);
    ring->array = (uint32_t *)(void *)(submissions + to->array);
    ring->completion_head = (_Atomic uint32_t *)(void *)(completions + from->head);
    ring->completion_tail = (_Atomic uint32_t *)(void *)(completions + from->tail);
    ring->completion_mask = *(const uint32_t *)(const void *)(completions + from->mask);
    ring->completions = (struct completion *)(void *)(completions + from->completions);
    return 0;
unmap_completions:
    munmap(ring->completion_map, ring->completion_bytes);
unmap_submissions:
    munmap(ring->submission_map, ring->submission_bytes);
    return rc;
}

static void unmap_ring(struct uring *ring)
{
    munmap(ring->entries, ring->entry_bytes);
    munmap(ring->completion_map, ring->completion_bytes);
    munmap(ring->submission_map, ring->submission_bytes);
}

/* The entry behind the tail; push_entry shows it to the kernel. There is room: a slot has one entry at most, and there
 * are as many as slots. */
static struct submission *next_entry(struct uring *ring)
{
    uint32_t tail = atomic_load_explicit(ring->submission_tail, memory_order_relaxed);
    mc_assert(tail - atomic_load_explicit(ring->submission_head, memory_order_acquire) <= ring->submission_mask);
    mc_assert(ring->entries != NULL);
    struct submission *entry = &ring->entries[tail & ring->submission_mask];
    memset(entry, 0, sizeof(*entry));
    return entry;
}

static void push_entry(struct uring *ring)
{
    uint32_t tail = atomic_load_explicit(ring->submission_tail, memory_order_relaxed);
    ring->array[tail & ring->submission_mask] = tail & ring->submission_mask;
    atomic_store_explicit(ring->submission_tail, tail + 1, memory_order_release);
}

/* Can a request be made at all? A filter may let a ring be set up and forbid the rest. */
static int try_ring(struct uring *ring)
{
    next_entry(ring)->operation = OPERATION_NOP;
    push_entry(ring);
    int rc;
    do
        rc = enter_ring(ring->fd, 1, 1);
    while (rc == -EINTR);
    if (rc < 0)
        return rc;
    uint32_t head = atomic_load_explicit(ring->completion_head, memory_order_relaxed);
    if (rc != 1 || atomic_load_explicit(ring->completion_tail, memory_order_acquire) - head != 1)
        return -EIO;
    atomic_store_explicit(ring->completion_head, head + 1, memory_order_release);
    return 0;
}

static int ring_open(struct mc_disk_io *io)
{
    struct parameters parameters = {0};
    struct uring *ring = calloc(1, sizeof(*ring));
    int rc = -ENOMEM;
    if (ring == NULL)
        return rc;
    /* The kernel makes twice as many places for completions, and each entry gives one: they never overflow. It also
     * sees to it that the descriptor is closed on exec. */
    ring->fd = (int)syscall(CALL_SETUP, io->depth, &parameters);
    rc = -errno;
    if (ring->fd < 0)
        goto free_ring;
    rc = map_ring(ring, &parameters);
    if (rc < 0)
        goto close_ring;
    rc = try_ring(ring);
    if (rc < 0)
        goto unmap;
    io->inside = ring;
    io->fd = ring->fd;
    return 0;
unmap:
    unmap_ring(ring);
close_ring:
    close(ring->fd);
free_ring:
    free(ring);
    return rc;
}

static void ring_close(struct mc_disk_io *io, bool is_child)
{
    struct uring *ring = io->inside;
    if (io->pool != NULL)
        mc_disk_way_threads.close(io, is_child);
    /* Maps and descriptor are a child's own, and closing them ends nothing of the parent's. */
    unmap_ring(ring);
    close(ring->fd);
    free(ring);
}

/* ---- requests ---- */

/* What the kernel will not take fails. Without a thread of the kernel's (SQPOLL) only io_uring_enter reads the ring, so
 * that the tail can be taken back. */
static void fail_pending(struct mc_disk_io *io, struct uring *ring, int error)
{
    uint32_t head = atomic_load_explicit(ring->submission_head, memory_order_acquire);
    uint32_t tail = atomic_load_explicit(ring->submission_tail, memory_order_relaxed);
    for (uint32_t at = head; at != tail; at++) {
        struct mc_disk_slot *slot = &io->slots[ring->entries[at & ring->submission_mask].user_data];
        slot->result = error;
        mc_disk_list_append(&ring->failed, slot);
    }
    atomic_store_explicit(ring->submission_tail, head, memory_order_release);
    mc_disk_io_signal(io);
}

/* Hands all entries to the kernel. True: it had no memory for some; again later. */
static bool hand_over(struct mc_disk_io *io, struct uring *ring)
{
    for (;;) {
        uint32_t pending = atomic_load_explicit(ring->submission_tail, memory_order_relaxed) -
                           atomic_load_explicit(ring->submission_head, memory_order_acquire);
        if (pending == 0)
            return false;
        int rc = enter_ring(ring->fd, pending, 0);
        if (rc > 0 || rc == -EINTR)
            continue;
        if (rc == 0 || rc == -EAGAIN || rc == -EBUSY || rc == -ENOMEM)
            return true;
        fail_pending(io, ring, rc);
        return false;
    }
}

static void push_slot(struct mc_disk_io *io, struct uring *ring, struct mc_disk_slot *slot)
{
    const struct mc_disk_request *request = slot->request;
    struct submission *entry = next_entry(ring);
    entry->fd = request->fd;
    entry->user_data = (uint64_t)(slot - io->slots);
    if (request->operation == MC_DISK_SYNC) {
        entry->operation = OPERATION_FSYNC;
        entry->operation_flags = FSYNC_DATA;
    } else {
        entry->operation = request->operation == MC_DISK_READ ? OPERATION_READV : OPERATION_WRITEV;
        entry->offset = request->offset + request->moved;
        entry->address = (uint64_t)(uintptr_t)&slot->part;
        entry->length = 1;
    }
    push_entry(ring);
}

static void call_begin(struct mc_disk_io *io, struct mc_disk_slot *slot)
{
    struct uring *ring = io->inside;
    int rc = io->pool == NULL ? mc_disk_way_threads.open(io) : 0;
    if (rc == 0) {
        mc_disk_way_threads.begin(io, slot);
        return;
    }
    slot->result = rc;
    mc_disk_list_append(&ring->failed, slot);
    mc_disk_io_signal(io);
}

/* At once, not with others at the next collect: until then the disk would have nothing to do, and beside a request of
 * this tier's size the call is nothing. */
static void ring_begin(struct mc_disk_io *io, struct mc_disk_slot *slot)
{
    struct uring *ring = io->inside;
    if (slot->request->operation == MC_DISK_CALL) {
        call_begin(io, slot);
        return;
    }
    push_slot(io, ring, slot);
    (void)hand_over(io, ring); /* what is left over, ring_ended tries again */
}

static bool ring_ended(struct mc_disk_io *io, struct mc_disk_list *list)
{
    struct uring *ring = io->inside;
    if (io->pool != NULL)
        (void)mc_disk_way_threads.ended(io, list);
    uint32_t head = atomic_load_explicit(ring->completion_head, memory_order_relaxed);
    /* Those up to now: what ends while they are gone through is the next call's, or there might be no end. */
    uint32_t tail = atomic_load_explicit(ring->completion_tail, memory_order_acquire);
    for (; head != tail; head++) {
        const struct completion *completion = &ring->completions[head & ring->completion_mask];
        struct mc_disk_slot *slot = &io->slots[completion->user_data];
        if (mc_disk_slot_goes_on(slot, completion->result))
            push_slot(io, ring, slot);
        else
            mc_disk_list_append(list, slot);
    }
    atomic_store_explicit(ring->completion_head, head, memory_order_release);
    bool is_soon = hand_over(io, ring);
    for (struct mc_disk_slot *slot; (slot = mc_disk_list_take(&ring->failed)) != NULL;)
        mc_disk_list_append(list, slot);
    return is_soon;
}

const struct mc_disk_way mc_disk_way_uring = {
    .kind = MC_DISK_IO_URING,
    .open = ring_open,
    .begin = ring_begin,
    .ended = ring_ended,
    .close = ring_close,
};
