/* What io.c and the two ways of doing I/O share. A way (struct mc_disk_way) begins requests and says which have ended;
 * io.c has the queue before it, waits, wakes and calls `done`.
 *
 * Each request that is under way has a slot. A slot is its way's from `begin` until `ended` has returned it. */
#ifndef MC_DISK_IO_INSIDE_H
#define MC_DISK_IO_INSIDE_H

#include "store/disk/io.h"

#include <stdatomic.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

#define MC_DISK_AGAIN_MAX 100u /* times in a row that a call is made again after EINTR or EAGAIN */

struct mc_disk_slot {
    struct mc_disk_request *request; /* NULL: the slot is free */
    struct mc_disk_slot *next;       /* in a list: of free ones, of a way's own, of those that have ended */
    struct iovec part;               /* what is left of the buffer; the kernel may read it for as long as it works */
    int64_t result;
    unsigned again; /* calls in a row that did nothing */
};

struct mc_disk_list { /* of slots, first in first out; zeroed = empty */
    struct mc_disk_slot *first, *last;
};

struct mc_disk_way {
    enum mc_disk_io_kind kind;
    /* Sets io->inside, and io->fd if it has one to wait on. 0 or a negative errno value; leaves nothing then. */
    int (*open)(struct mc_disk_io *io);
    /* Never fails: what cannot be begun ends with an error. */
    void (*begin)(struct mc_disk_io *io, struct mc_disk_slot *slot);
    /* Appends those that have ended since the last call, with their results; never more than are under way. True: look
     * again soon, the kernel had no memory to begin some. */
    bool (*ended)(struct mc_disk_io *io, struct mc_disk_list *list);
    /* Nothing is under way. In a forked child it gives back what is the child's own, and touches nothing else. */
    void (*close)(struct mc_disk_io *io, bool is_child);
};
extern const struct mc_disk_way mc_disk_way_uring, mc_disk_way_threads;

struct mc_disk_io {
    const struct mc_disk_way *way;
    void *inside; /* the way's own */
    void *pool;   /* io_threads.c's: NULL where no request has needed a thread */
    int fd;       /* readable when something has ended; -1: the way signals instead */
    int signal_fd;
    pid_t process; /* that opened it: no other one has its threads, nor may touch its rings */
    unsigned depth, under_way;
    struct mc_disk_slot *free;
    struct mc_disk_request *first, *last; /* wait for a slot */
    _Atomic bool is_woken;
    struct mc_disk_slot slots[];
};

static inline void mc_disk_list_append(struct mc_disk_list *list, struct mc_disk_slot *slot)
{
    slot->next = NULL;
    if (list->first == NULL)
        list->first = slot;
    else
        list->last->next = slot;
    list->last = slot;
}
static inline struct mc_disk_slot *mc_disk_list_take(struct mc_disk_list *list)
{
    struct mc_disk_slot *slot = list->first;
    if (slot != NULL)
        list->first = slot->next;
    return slot;
}

/* From any thread: a wait in collect ends, and it looks again. */
void mc_disk_io_signal(struct mc_disk_io *io);

/* Takes in what a call for the slot's request gave: bytes, or a negative errno value. True: there is more to do, and
 * slot->part and request->offset + request->moved say what; false: slot->result is what came out. */
bool mc_disk_slot_goes_on(struct mc_disk_slot *slot, int64_t given);

#endif
