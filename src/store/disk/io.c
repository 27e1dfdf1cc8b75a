/* The queue before both ways of doing I/O: order, depth, waiting, waking. */
#include "store/disk/io_inside.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define SECTOR 512u      /* O_DIRECT moves no less than this on any device */
#define SOON_NS 1000000u /* how long the kernel is given to find memory */

const struct mc_disk_ports mc_disk_ports_system = {
    .open = mc_disk_io_open,
    .submit = mc_disk_io_submit,
    .collect = mc_disk_io_collect,
    .wake = mc_disk_io_wake,
    .close = mc_disk_io_close,
};

/* ---- opening ---- */

static int open_way(struct mc_disk_io *io, enum mc_disk_io_kind kind)
{
    int rc = 0;
    if (kind != MC_DISK_IO_THREADS) {
        io->way = &mc_disk_way_uring;
        rc = io->way->open(io);
        if (rc == 0 || kind == MC_DISK_IO_URING)
            return rc;
        /* Whatever keeps it from working, threads may do: they need neither its system calls nor locked memory. */
        mc_log(DEBUG, "disk: no io_uring (%s), threads read and write instead", strerror(-rc));
    }
    io->way = &mc_disk_way_threads;
    return io->way->open(io);
}

int mc_disk_io_open(enum mc_disk_io_kind kind, unsigned depth, struct mc_disk_io **opened)
{
    int rc = -EINVAL;
    if (depth == 0 || depth > MC_DISK_IO_DEPTH_MAX)
        return rc;
    struct mc_disk_io *io = calloc(1, sizeof(*io) + depth * sizeof(io->slots[0]));
    rc = -ENOMEM;
    if (io == NULL)
        return rc;
    io->depth = depth;
    io->fd = -1;
    io->process = getpid();
    for (unsigned i = depth; i-- > 0;) {
        io->slots[i].next = io->free;
        io->free = &io->slots[i];
    }
    io->signal_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    rc = -errno;
    if (io->signal_fd < 0)
        goto free_io;
    rc = open_way(io, kind);
    if (rc < 0)
        goto close_signal;
    *opened = io;
    return 0;
close_signal:
    close(io->signal_fd);
free_io:
    free(io);
    return rc;
}

void mc_disk_io_close(struct mc_disk_io *io)
{
    bool is_child = io->process != getpid();
    while (!is_child && (io->under_way > 0 || io->first != NULL))
        (void)mc_disk_io_collect(io, -1);
    io->way->close(io, is_child);
    close(io->signal_fd);
    free(io);
}

enum mc_disk_io_kind mc_disk_io_kind(const struct mc_disk_io *io)
{
    return io->way->kind;
}

uint64_t mc_disk_io_oldest_ns(const struct mc_disk_io *io)
{
    uint64_t oldest_ns = 0;
    /* Those that wait for a slot were all submitted later than those that have one. */
    for (unsigned i = 0; i < io->depth; i++) {
        const struct mc_disk_request *request = io->slots[i].request;
        if (request != NULL && (oldest_ns == 0 || request->begun_ns < oldest_ns))
            oldest_ns = request->begun_ns;
    }
    return oldest_ns;
}

/* ---- one request ---- */

bool mc_disk_slot_goes_on(struct mc_disk_slot *slot, int64_t given)
{
    struct mc_disk_request *request = slot->request;
    if ((given == -EINTR || given == -EAGAIN) && slot->again++ < MC_DISK_AGAIN_MAX)
        return true;
    if (given < 0) {
        /* O_DIRECT gave all up to the file's end, which is within a sector: asked for what is behind that, the kernel
         * finds the offset unaligned before it finds that there is nothing. */
        bool is_end = given == -EINVAL && request->operation == MC_DISK_READ && request->moved % SECTOR != 0;
        slot->result = is_end ? request->moved : given;
        return false;
    }
    slot->result = 0;
    slot->again = 0;
    if (request->operation == MC_DISK_SYNC || request->operation == MC_DISK_CALL)
        return false;
    request->moved += (uint32_t)given;
    slot->part.iov_base = (char *)request->buffer + request->moved;
    slot->part.iov_len = request->length - request->moved;
    if (given > 0 && request->moved < request->length)
        return true;
    /* A write that moves nothing would do so for ever. */
    slot->result =
        request->operation == MC_DISK_WRITE && request->moved < request->length ? -EIO : (int64_t)request->moved;
    return false;
}

static void begin_next(struct mc_disk_io *io)
{
    struct mc_disk_request *request = io->first;
    struct mc_disk_slot *slot = io->free;
    io->first = request->next;
    io->free = slot->next;
    io->under_way++;
    *slot = (struct mc_disk_slot){.request = request, .part = {request->buffer, request->length}};
    io->way->begin(io, slot);
}

void mc_disk_io_submit(struct mc_disk_io *io, struct mc_disk_request *request)
{
    mc_assert(io->process == getpid());
    request->begun_ns = mc_clock_ns();
    request->moved = 0;
    request->next = NULL;
    if (io->first == NULL)
        io->first = request;
    else
        io->last->next = request;
    io->last = request;
    /* Nobody waits while a slot is free, so this begins the one that was just given, or none: order is kept. */
    if (io->free != NULL)
        begin_next(io);
}

/* ---- waiting ---- */

void mc_disk_io_signal(struct mc_disk_io *io)
{
    /* It can only fail when the count is full, and then it is readable anyway. */
    (void)eventfd_write(io->signal_fd, 1);
}

void mc_disk_io_wake(struct mc_disk_io *io)
{
    /* Who finds it woken need not signal: the one that woke it does, or collect has yet to look at is_woken. */
    if (!atomic_exchange(&io->is_woken, true))
        mc_disk_io_signal(io);
}

/* Until something may have ended, or was signalled, or it is until_ns. */
static void wait_for_signal(struct mc_disk_io *io, uint64_t until_ns)
{
    uint64_t now_ns = mc_clock_ns(), left_ns = until_ns > now_ns ? until_ns - now_ns : 0;
    struct timespec left = {(time_t)(left_ns / 1000000000u), (long)(left_ns % 1000000000u)};
    struct pollfd fds[] = {{.fd = io->signal_fd, .events = POLLIN}, {.fd = io->fd, .events = POLLIN}};
    eventfd_t count;
    if (ppoll(fds, 2, until_ns == UINT64_MAX ? NULL : &left, NULL) > 0 && fds[0].revents != 0)
        (void)eventfd_read(io->signal_fd, &count); /* before is_woken is looked at: no wake is lost */
}

/* Calls `done` for all of the list. */
static unsigned finish_all(struct mc_disk_io *io, struct mc_disk_list *list)
{
    unsigned count = 0;
    for (struct mc_disk_slot *slot; (slot = mc_disk_list_take(list)) != NULL; count++) {
        struct mc_disk_request *request = slot->request;
        int64_t result = slot->result;
        slot->request = NULL;
        slot->next = io->free;
        io->free = slot;
        io->under_way--;
        if (io->first != NULL)
            begin_next(io);
        request->done(request, result); /* may free it */
    }
    return count;
}

unsigned mc_disk_io_collect(struct mc_disk_io *io, int timeout_ms)
{
    uint64_t now_ns = timeout_ms > 0 ? mc_clock_ns() : 0;
    uint64_t until_ns = timeout_ms < 0 ? UINT64_MAX : now_ns + (uint64_t)timeout_ms * 1000000u;
    mc_assert(io->process == getpid());
    for (;;) {
        struct mc_disk_list list = {NULL, NULL};
        bool is_soon = io->way->ended(io, &list);
        bool is_woken =
            atomic_load_explicit(&io->is_woken, memory_order_relaxed) && atomic_exchange(&io->is_woken, false);
        unsigned count = finish_all(io, &list);
        if (count > 0 || is_woken || timeout_ms == 0)
            return count;
        now_ns = mc_clock_ns();
        if (now_ns >= until_ns)
            return 0;
        wait_for_signal(io, is_soon && until_ns - now_ns > SOON_NS ? now_ns + SOON_NS : until_ns);
    }
}
