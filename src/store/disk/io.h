/* A queue of reads and writes of files, by io_uring where the kernel and its filters allow that, else by a pool of
 * threads with pread and pwrite. One thread owns a queue: it alone submits and collects; any thread may wake it.
 *
 * A request belongs to the queue from its submission until `done` was called for it, its buffer as well: nothing can
 * take a DMA back. What the caller no longer waits for it therefore keeps until then.
 *
 * A buffer for O_DIRECT lies in a shared mapping (or one with MADV_DONTFORK): after a fork of the process the first of
 * two to write a private page gets a copy, and a DMA under way would go to the other's.
 *
 * Requests end in any order. A SYNC covers the writes whose `done` was called before it was submitted, no others. */
#ifndef MC_DISK_IO_H
#define MC_DISK_IO_H

#include <stdbool.h>
#include <stdint.h>

#define MC_DISK_IO_DEPTH_MAX 256u  /* requests under way; more wait in the queue, in their order */
#define MC_DISK_IO_ALIGNMENT 4096u /* of addresses, offsets and lengths, so that they suit O_DIRECT */

enum mc_disk_operation {
    MC_DISK_READ,
    MC_DISK_WRITE,
    MC_DISK_SYNC, /* fdatasync */
    MC_DISK_CALL  /* `call`, on a thread that may wait for it for ever: what else a file system is asked */
};
enum mc_disk_io_kind { MC_DISK_IO_AUTO, MC_DISK_IO_URING, MC_DISK_IO_THREADS };

struct mc_disk_request {
    enum mc_disk_operation operation;
    int fd;
    void *buffer;
    uint32_t length; /* bytes */
    uint64_t offset; /* in the file */
    /* CALL: 0 or a negative errno value, neither -EINTR nor -EAGAIN. Must not submit others. */
    int64_t (*call)(struct mc_disk_request *request);
    /* Called by mc_disk_io_collect on the thread that owns the queue. result: `length`, less at the end of a file, or a
     * negative errno value: a short write is gone on with inside, and so is EINTR. May submit others. */
    void (*done)(struct mc_disk_request *request, int64_t result);
    uint64_t begun_ns;            /* when it was submitted; set by the queue */
    struct mc_disk_request *next; /* the queue's */
    uint32_t moved;               /* the queue's: bytes of it that are done */
};

struct mc_disk_io;

/* The table of ports: what the disk does to files, so that tests can stand in for a disk that tears, fails, lies or is
 * slow. */
struct mc_disk_ports {
    int (*open)(enum mc_disk_io_kind kind, unsigned depth, struct mc_disk_io **io);
    void (*submit)(struct mc_disk_io *io, struct mc_disk_request *request);
    unsigned (*collect)(struct mc_disk_io *io, int timeout_ms);
    void (*wake)(struct mc_disk_io *io);
    void (*close)(struct mc_disk_io *io);
};
extern const struct mc_disk_ports mc_disk_ports_system;

/* kind AUTO tries io_uring and takes threads when it is forbidden (EPERM, ENOSYS, a seccomp filter) or has no memory. 0
 * or a negative errno value. */
int mc_disk_io_open(enum mc_disk_io_kind kind, unsigned depth, struct mc_disk_io **io);
enum mc_disk_io_kind mc_disk_io_kind(const struct mc_disk_io *io);
void mc_disk_io_submit(struct mc_disk_io *io, struct mc_disk_request *request);
/* Calls `done` for what has ended; waits for the first for at most timeout_ms (-1: until there is one or it is woken).
 * How many ended. */
unsigned mc_disk_io_collect(struct mc_disk_io *io, int timeout_ms);
/* From any thread: a collect that waits, or the next one, returns. */
void mc_disk_io_wake(struct mc_disk_io *io);
/* When the oldest request under way was submitted, 0 = there is none. */
uint64_t mc_disk_io_oldest_ns(const struct mc_disk_io *io);
/* Waits for all that was submitted, and calls `done` for it. In a forked child, where nothing else may be called, it
 * only gives back the child's copy. */
void mc_disk_io_close(struct mc_disk_io *io);

#endif
