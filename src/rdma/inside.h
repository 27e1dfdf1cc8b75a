/* What the files of this room share. Others include rdma.h.
 *
 * Locks, never held over a wait or a call of a driver that sleeps on the network: rdma->lock (what is known of ports
 * and GIDs, the list of serving halves), link->lock (pairs that are being set up). Order: link before rdma. */
#ifndef MC_RDMA_INSIDE_H
#define MC_RDMA_INSIDE_H

#include "env/socket.h"
#include "rdma/link_text.h"
#include "rdma/slices.h"
#include "rdma/verbs.h"

#include <pthread.h>
#include <stdatomic.h>

#define MC_RDMA_READS_MAX 16u /* READs that the other side of a queue pair may have under way */
/* A device that failed so often in a row, where others reached the same peer, is retired */
#define MC_RDMA_BLAMES_MAX 32u

/* Queue pairs of an asking half. Each has two numbers in offers, the second higher by this: a pair that works is moved
 * to another device of the peer under the number that it does not use, so the one that works stays until the other is
 * ready. */
#define MC_RDMA_ASKING_MAX (MC_RDMA_PAIRS_MAX / 2)

#define MC_RDMA_SILENT_MAX 64u

struct mc_rdma_silent { /* an address that did not answer while a thread waited for that; failures 0: none */
    uint8_t gid[MC_GID_BYTES];
    int gid_index;     /* of ours, from which it was asked for */
    uint64_t until_ns; /* it is not tried again before */
    uint32_t failures; /* in a row */
};

struct mc_rdma_device {
    struct mc_rdma *rdma;
    uint32_t number;
    char name[MC_RDMA_NAME_MAX], reason[MC_RDMA_REASON_MAX];
    enum mc_rdma_fabric fabric;
    uint8_t port;
    bool has_relaxed_ordering;
    int numa_node;
    char pci[32];
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *serving_cq;        /* of serving halves, which complete nothing */
    struct ibv_comp_channel *channel; /* events of the completion queues of all links */
    struct ibv_device_attr attributes;
    _Atomic bool is_lost;
    _Atomic bool is_active; /* the port */
    _Atomic uint32_t blames;
    _Atomic uint64_t retired_until_ns;
    _Atomic uint64_t under_way_bytes, moved_bytes; /* of all links that ask */
    /* rdma->lock, from here on. */
    struct ibv_port_attr port_attributes;
    struct mc_gid_row *rows;
    uint32_t row_count;
    int chosen; /* of rows; -1: none */
    char gid_reason[MC_RDMA_REASON_MAX];
    struct mc_rdma_silent silent[MC_RDMA_SILENT_MAX];
    uint32_t silent_turn;
    struct mc_rdma_pair *queue, **queue_end; /* that wait to be set up; setup.lock, from here on */
    uint32_t running;                        /* that are being set up */
    _Atomic uint64_t slow_until_ns;          /* until then more than one at a time */
};

struct mc_rdma_workshop { /* setup.c */
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    uint32_t threads, idle;
    bool is_stopping;
};

struct mc_rdma_cm { /* requests of rdma_cm come in here; on the watching thread only, after it started */
    struct rdma_event_channel *channel;
    struct rdma_cm_id *listener;
    uint16_t port;
};

struct mc_rdma {
    const struct mc_verbs *verbs;
    struct mc_rdma_settings settings;
    struct mc_rdma_options options; /* the hooks of it */
    struct mc_rdma_device devices[MC_RDMA_DEVICES_MAX];
    uint32_t device_count;
    pthread_mutex_t lock;
    pthread_cond_t unvisited; /* the watcher has left a serving half */
    _Atomic uint64_t version;
    pthread_t watcher;
    int stop_fd; /* eventfd: the watcher ends */
    struct mc_rdma_cm cm;
    struct mc_topology *topology; /* which device is near what; rdma->lock. NULL: of a scan */
    bool has_matrix;              /* it was given; it does not change then */
    struct mc_rdma_link *serving; /* rdma->lock */
    uint32_t serving_count;
    struct mc_rdma_workshop setup;
    uint64_t grace_ns;     /* once some pairs stand, the others of a set-up are waited for so long; does not change */
    _Atomic uint32_t turn; /* of completion vectors */
    pthread_mutex_t wait_lock;    /* wait.c; nothing is locked within it */
    bool is_led;                  /* a thread sleeps on the channels; from here on: wait_lock */
    struct mc_rdma_link *waiting; /* others, whose threads wait to be woken; a list by next_waiting */
    struct {
        _Atomic uint64_t read_bytes, written_bytes, slices, retries, pairs_made, pairs_failed, pairs_served, timeouts,
            stalls, refusals, port_downs, port_ups, gid_changes, device_losses;
    } count;
};

/* One queue pair and what it was set up with. qp NULL: none. */
struct mc_rdma_half {
    struct ibv_qp *qp;
    struct rdma_cm_id *id;                 /* rdma_cm: NULL otherwise */
    struct rdma_event_channel *cm_channel; /* of the asking half, while it connects */
    uint32_t psn, inline_max, remote;      /* remote: number of the peer's device */
    uint32_t wire;                         /* asking: the pair's number in offers and answers */
    int gid_index;                         /* -1: none is used */
    uint8_t gid[MC_GID_BYTES];
};

enum mc_rdma_fresh {
    MC_RDMA_FRESH_NONE,
    MC_RDMA_FRESH_OFFERED,
    MC_RDMA_FRESH_PENDING,    /* the peer is at work on its half: the same is offered again when it is due */
    MC_RDMA_FRESH_CONNECTING, /* the peer's half stands; a thread of setup.c is at work on ours */
    MC_RDMA_FRESH_READY
};

enum mc_rdma_setup_stage { MC_RDMA_STAGE_IDLE, MC_RDMA_STAGE_QUEUED, MC_RDMA_STAGE_RUNNING };

struct mc_rdma_pair {
    struct mc_rdma_link *link;
    struct mc_rdma_device *device; /* serving: as `current` */
    uint32_t queue;                /* of the link; asking half only */
    struct mc_rdma_half current;   /* asking: of the thread that runs; serving: link->lock */
    uint32_t generation;           /* of current; in the ids of its work requests */
    bool has_worked, is_moved;     /* current has moved something; took the place of one that worked */
    _Atomic bool is_up;            /* current is there and works */
    _Atomic uint64_t due_ns;       /* when it may be offered; UINT64_MAX: it stands, or is being set up */
    _Atomic uint64_t move_ns;   /* when it may be moved to the peer's device that fits best; UINT64_MAX: it is there */
    _Atomic uint32_t failures;  /* in a row */
    _Atomic uint32_t fruitless; /* set-ups in a row after which nothing arrived */
    _Atomic uint32_t moves;     /* in a row that came to nothing */
    _Atomic uint64_t bytes;
    _Atomic uint64_t token; /* serving, rdma_cm: whoever shows it may connect; 0: nobody */
    /* link->lock, from here on. */
    enum mc_rdma_fresh fresh_state;
    struct mc_rdma_half fresh;
    bool is_move;              /* the fresh half takes the place of one that works */
    uint32_t wire;             /* the pair's number in offers; see MC_RDMA_ASKING_MAX */
    uint32_t setup_failures;   /* in a row: the peer's device and the GID to try go by it */
    uint64_t offered_ns;       /* the fresh half, for the first time */
    uint32_t asks;             /* for it, in vain */
    struct mc_rdma_tell *told; /* by the peer of its half: what is set up, or stands. NULL: nothing */
    uint32_t round;            /* counts what was told */
    bool is_wanted;            /* to be set up */
    char error[MC_RDMA_REASON_MAX];
    enum mc_rdma_setup_stage stage; /* setup.lock, from here on */
    struct mc_rdma_pair *next_queued;
};

struct mc_rdma_queue { /* completions of the pairs of one device in one link */
    struct mc_rdma_device *device;
    struct ibv_cq *cq;
};

struct mc_rdma_link {
    struct mc_rdma *rdma;
    struct mc_rdma_link *next; /* serving halves; rdma->lock */
    uint64_t id;
    bool is_serving;
    bool is_visited; /* the watcher is at work on it; rdma->lock */
    uint32_t pair_count, queue_count, depth;
    struct mc_rdma_pair pairs[MC_RDMA_PAIRS_MAX];
    struct mc_rdma_queue queues[MC_RDMA_DEVICES_MAX];
    struct mc_rdma_peer_device *peer_devices;
    uint32_t peer_count, local_mask, remote_mask;
    struct mc_slices slices;
    struct mc_spin spin;
    _Atomic bool is_running;
    _Atomic uint32_t fresh_mask; /* pairs whose fresh half is ready to be taken */
    uint64_t checked_version;    /* of devices; of the thread that runs */
    /* Serving: pairs of the last offer, when it came, how long its answer may take. Of who answers. */
    uint32_t asked;
    uint64_t asked_ns, wait_ns;
    bool has_wait;                    /* the offer says how long */
    _Atomic uint64_t wanted_until_ns; /* later nobody waits for a set-up */
    _Atomic bool is_closed;           /* freed by the last who uses it */
    uint32_t users;                   /* setup.lock */
    pthread_mutex_t lock;
    void (*notify)(void *context); /* a pair was set up, or was not; with the lock. NULL: nobody is told */
    void *notify_context;
    pthread_cond_t woken; /* rdma->wait_lock, from here on */
    bool has_event;       /* of one of its queues */
    struct mc_rdma_link *next_waiting;
};

/* ---- device.c ---- */
bool mc_rdma_device_is_up(const struct mc_rdma_device *device);
/* Asks the port and its GID table again. True: something that peers are told has changed. */
bool mc_rdma_device_refresh(struct mc_rdma_device *device);
/* Blames or clears a device for what became of its pairs in a run that reached the peer otherwise. */
void mc_rdma_device_note(struct mc_rdma_device *device, bool is_good);
uint32_t mc_rdma_mtu_bytes(enum ibv_mtu mtu);
enum ibv_mtu mc_rdma_mtu_enum(uint32_t bytes);
/* rdma->lock is held. Megabits per second; 0: unknown. */
uint32_t mc_rdma_device_speed(const struct mc_rdma_device *device);
bool mc_rdma_device_uses_cm(const struct mc_rdma_device *device);
void mc_rdma_fd_opened(struct mc_rdma *rdma, int fd);
void mc_rdma_fd_closing(struct mc_rdma *rdma, int fd);

/* ---- near.c ---- */
/* Before devices are opened: reads the priority matrix, if there is one. 0, MC_ERR_INVALID_PARAMS: it is none;
 * MC_ERR_NO_MEMORY. rdma->topology is to be freed in every case. */
int mc_rdma_near_open(struct mc_rdma *rdma, const char *filter, const char *matrix);
/* May the device be used, by the matrix and MC_TE_FILTERS? */
bool mc_rdma_near_allows(const struct mc_rdma *rdma, const char *name);
/* Once devices are open: without a matrix, what sysfs says of them. */
void mc_rdma_near_find(struct mc_rdma *rdma);
/* The devices that are preferred for a range; 0: all alike. */
uint32_t mc_rdma_near(struct mc_rdma *rdma, const struct mc_rdma_range *range);

/* ---- watch.c ---- */
int mc_rdma_watch_start(struct mc_rdma *rdma);
void mc_rdma_watch_stop(struct mc_rdma *rdma);

/* ---- wait.c ---- */
/* Waits for an event of one of the link's queues, on the thread that runs. True: there was one, perhaps of long ago. */
bool mc_rdma_wait(struct mc_rdma_link *link, uint64_t until_ns);

/* ---- link_pair.c: queue pairs ---- */
/* A queue pair in state RESET. 0, MC_ERR_NO_MEMORY, MC_ERR_TRANSFER_FAIL with a reason. */
int mc_rdma_half_create(struct mc_rdma_link *link, struct mc_rdma_pair *pair, struct mc_rdma_half *half, char *reason,
                        size_t size);
/* The GID for that peer: gid_index and gid of half. gid NULL: nothing of the peer is known. */
int mc_rdma_half_choose_gid(struct mc_rdma_pair *pair, struct mc_rdma_half *half, const uint8_t *peer_gid,
                            unsigned rank, char *reason, size_t size);
/* RESET to RTS, out of band. */
int mc_rdma_half_connect(struct mc_rdma_link *link, struct mc_rdma_pair *pair, struct mc_rdma_half *half,
                         const struct mc_rdma_tell *peer, char *reason, size_t size);
/* After the return nothing of it reads or writes memory. */
void mc_rdma_half_destroy(struct mc_rdma *rdma, struct mc_rdma_half *half);
/* What the peer is told of it. */
void mc_rdma_half_tell(struct mc_rdma_pair *pair, const struct mc_rdma_half *half, struct mc_rdma_tell *tell);

/* ---- link_cm.c: set-up by rdma_cm ---- */
/* Starts to listen. Called before the watcher starts. */
int mc_rdma_cm_listen(struct mc_rdma *rdma);
void mc_rdma_cm_close(struct mc_rdma *rdma);
/* Events that have come; on the watching thread. */
void mc_rdma_cm_events(struct mc_rdma *rdma);
/* Connects the asking half of a pair to where the peer's answer says. */
int mc_rdma_cm_connect(struct mc_rdma_link *link, uint32_t pair, struct mc_rdma_half *half,
                       const struct mc_rdma_tell *peer, uint64_t deadline_ns, char *reason, size_t size);
/* Address at which the listener is reached by way of that device, "10.0.0.1:18515". False: it has none. */
bool mc_rdma_cm_address(struct mc_rdma_device *device, const uint8_t *peer_gid, char *text, size_t size);

/* ---- link.c ---- */
/* The pair may be offered again, after a pause that grows with every failure in a row. */
void mc_rdma_pair_pause(struct mc_rdma_link *link, struct mc_rdma_pair *pair);
/* It broke, and nothing had arrived since it was set up. */
void mc_rdma_pair_was_fruitless(struct mc_rdma_pair *pair);
/* A set-up has ended. *half is taken if that succeeded. link->lock is held. */
void mc_rdma_pair_take(struct mc_rdma_link *link, struct mc_rdma_pair *pair, struct mc_rdma_half *half, int rc,
                       const char *reason);
struct mc_rdma_device *mc_rdma_device_named(struct mc_rdma *rdma, const char *name); /* NULL: there is none */
/* Nobody uses it, and its pairs are destroyed. */
void mc_rdma_link_free(struct mc_rdma_link *link);

/* ---- setup.c ---- */
void mc_rdma_setup_open(struct mc_rdma *rdma);
/* Waits for the threads, which may be asleep in the kernel for a second. All links are closed. */
void mc_rdma_setup_stop(struct mc_rdma *rdma);
void mc_rdma_setup_close(struct mc_rdma *rdma);
/* Sets the pair up at that device, with what the peer has told, instead of what was begun before. link->lock is held.
 * False: no memory, no thread. */
bool mc_rdma_setup_begin(struct mc_rdma_pair *pair, struct mc_rdma_device *device, const struct mc_rdma_tell *told);
/* link->lock is held. What waits to be begun is not begun, and what is being set up is of no use. False: a thread is
 * still at work on it. */
bool mc_rdma_setup_recall(struct mc_rdma_pair *pair);
/* Is one of these pairs being set up? */
bool mc_rdma_setup_is_busy(struct mc_rdma_link *link, uint32_t mask);
/* Waits until none is. */
void mc_rdma_setup_wait(struct mc_rdma_link *link, uint32_t mask, uint64_t until_ns);
/* Nothing of the link is begun or taken any more. It is freed after mc_rdma_setup_release, here or by a thread. */
void mc_rdma_setup_leave(struct mc_rdma_link *link);
void mc_rdma_setup_release(struct mc_rdma_link *link);

#endif
