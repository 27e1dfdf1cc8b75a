/* Simulated descriptors: what stream.c, net.c, files.c and events.c share. Files live until the run's end; closing only
 * takes what they hold. */
#ifndef SIM_FILE_H
#define SIM_FILE_H

#include "sim.h"

#define SIM_MESSAGE_FDS_MAX 4u
#define SIM_FLOW_BYTES_MAX (96u << 10)
#define SIM_RETRY_NS (50 * SIM_MS) /* of what meets a partition */

enum sim_file_kind { SIM_SOCKET, SIM_LISTENER, SIM_STREAM, SIM_EVENT, SIM_NOTHING, SIM_MEMORY, SIM_DIRECTORY };

struct sim_segment { /* bytes of one send */
    struct sim_segment *next;
    size_t length, read;
    uint32_t capacity;
    uint8_t fd_count;
    bool is_end;
    struct sim_file *fds[SIM_MESSAGE_FDS_MAX];
    uint8_t bytes[];
};

struct sim_flow {                              /* towards one end */
    struct sim_segment *first, *last, *coming; /* coming: the first that has not arrived */
    uint64_t due_ns;                           /* of the last one sent */
    size_t held;                               /* bytes not read */
};

struct sim_watch {                  /* somebody who wants to know when a file changes */
    struct sim_fiber *const *fiber; /* where it stands who that is; NULL there: nobody just now */
    struct sim_watch *next;
};

struct sim_file {
    enum sim_file_kind kind;
    uint32_t references;
    bool is_unix, is_closed, is_reset, peer_gone, write_shut, read_shut, is_connecting;
    int connect_error;
    struct sim_process *process; /* of a socket */
    uint32_t process_life;
    struct sim_watch *watches;
    struct sim_file *next;                     /* of its kind's list */
    void (*on_release)(struct sim_file *file); /* when nothing refers to it any more */
    /* stream */
    struct sim_file *peer;
    struct sim_flow in;
    uint64_t stalled_until_ns;
    uint32_t resent;       /* what we sent met a cut way so often, */
    uint64_t confirmed_ns; /* and last arrived, as far as its confirmation came back */
    uint64_t confirmed_bytes;
    uint16_t port, peer_port;
    uint32_t peer_address;
    /* listener */
    char name[108];
    struct sim_file *backlog[64];
    uint32_t backlog_count;
    /* eventfd */
    uint64_t count;
    /* memory */
    struct sim_memory *memory;
    uint32_t lock_owner; /* identity of this open file description */
    bool is_read_only;
    uint64_t position;
};

struct sim_file *sim_file_make(enum sim_file_kind kind);
/* A descriptor of the running process, or -1 with errno. */
int sim_fd_give(struct sim_file *file);
/* The same, whatever has run out. */
int sim_fd_put(struct sim_file *file);
/* NULL with errno set. */
struct sim_file *sim_fd_file(int fd);
void sim_file_release(struct sim_file *file);
void sim_file_changed(struct sim_file *file);
bool sim_file_readable(const struct sim_file *file);
bool sim_file_writable(const struct sim_file *file);
void sim_watch_add(struct sim_file *file, struct sim_watch *watch);
void sim_watch_remove(struct sim_file *file, struct sim_watch *watch);
int64_t sim_memory_read(struct sim_file *file, void *data, size_t size);
int64_t sim_memory_write(struct sim_file *file, const void *data, size_t size);

/* stream.c, for net.c */
extern struct sim_file *sim_listeners, *sim_streams; /* all of the run, by `next` */
struct sim_segment *sim_segment_make(size_t length);
void sim_segment_free(struct sim_segment *segment);
/* Sends a segment to the peer, or the end. */
void sim_flow_send(struct sim_file *from, struct sim_segment *segment);
void sim_send_end(struct sim_file *file);
/* A draw of how long something takes from there. */
uint64_t sim_delay_ns(const struct sim_file *from);

#endif
