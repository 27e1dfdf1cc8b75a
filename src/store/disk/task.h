/* What an open disk is asked and does: tasks, the queues that they wait in, and operations of files. All of the disk's
 * thread alone, but for what lies in a queue that is under the lock (inside.h). */
#ifndef MC_DISK_TASK_H
#define MC_DISK_TASK_H

#include "store/disk/disk.h"

#define MC_DISK_SLOW_BYTES (64u << 20)   /* under way: for each of them an operation may last slow_ms longer */
#define MC_DISK_PIECE_BYTES (256u << 10) /* a large extent is read in pieces of so much, or a power of two more, */
#define MC_DISK_PIECES_MAX 32u           /* and so many at most; a read for which not as many are free is one */
#define MC_DISK_PIECES_ALL MC_DISK_IO_DEPTH_MAX

struct mc_disk_group;

/* One operation of a file. They are in a list in the order in which they began. */
struct mc_disk_flight {
    struct mc_disk_request request;
    struct mc_disk *disk;
    struct mc_disk_flight *previous, *next;
    uint64_t begun_ns, bytes_then; /* bytes under way when it began, its own among them */
    /* 0 or bytes that were read; a negative errno value, also for a write that is short. */
    void (*ended)(struct mc_disk_flight *flight, int64_t result);
};

enum mc_disk_task_kind {
    MC_DISK_TASK_STORE,
    MC_DISK_TASK_REWRITE,
    MC_DISK_TASK_READ,
    MC_DISK_TASK_CLEAR,
    MC_DISK_TASK_MARK,
    MC_DISK_TASK_INVENTORY
};

/* A call, or the writing of an object once more. */
struct mc_disk_task {
    struct mc_disk_flight flight; /* of its extent */
    enum mc_disk_task_kind kind;
    bool is_used, is_answered, is_removal;
    bool may_lie;              /* a removal: of something that was once here, or is */
    struct mc_disk_task *next; /* in the queue where it is */
    struct mc_disk_entry entry;
    uint32_t slot, region, page;
    uint64_t bytes; /* of the extent */
    uint8_t *buffer;
    struct mc_disk_group *group;
    uint64_t since_ns, until_ns;
    const struct mc_disk_place *places;
    size_t count, at;
    struct mc_disk_pieces {
        uint32_t count, left, bytes, there, checked; /* bits: read; and found to be as they should */
        int code;
    } pieces; /* of a read */
    struct mc_disk_mark mark;
    uint64_t cursor; /* sequence of the last region that was listed */
    void *context;
    union {
        mc_disk_stored *stored;
        mc_disk_was_read *was_read;
        mc_disk_done *done;
        mc_disk_listed *listed;
    } answer;
    mc_disk_each *each;
};
/* A part of an extent that is read; the last one holds all that is behind the data. */
struct mc_disk_piece {
    struct mc_disk_flight flight;
    struct mc_disk_task *task;
    struct mc_disk_piece *next; /* free */
    uint32_t number;
};
struct mc_disk_queue {
    struct mc_disk_task *first, *last;
    uint32_t count;
};

/* ---- task.c ---- */
void mc_disk_queue_add(struct mc_disk_queue *queue, struct mc_disk_task *task);
struct mc_disk_task *mc_disk_queue_take(struct mc_disk_queue *queue);
/* Answers by its kind, once. slot: of a store; buffer: of a read. */
void mc_disk_task_answer(struct mc_disk_task *task, int code);
/* Answered; its buffer goes back unless it was handed out. */
void mc_disk_task_free(struct mc_disk *disk, struct mc_disk_task *task);

/* ---- flight.c ---- */
void mc_disk_flight_start(struct mc_disk *disk, struct mc_disk_flight *flight, enum mc_disk_operation operation, int fd,
                          void *buffer, uint32_t length, uint64_t offset,
                          void (*ended)(struct mc_disk_flight *flight, int64_t result));
/* What may wait for a file system that does not answer, on a thread that may. The flight is its request's. */
void mc_disk_flight_call(struct mc_disk *disk, struct mc_disk_flight *flight,
                         int64_t (*call)(struct mc_disk_request *request),
                         void (*ended)(struct mc_disk_flight *flight, int64_t result));

#endif
