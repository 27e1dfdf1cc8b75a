/* Links and their pairs, as the files of this room see them; others include link.h. */
#ifndef MC_RDMA_PAIR_H
#define MC_RDMA_PAIR_H

#include "env/socket.h"
#include "rdma/device.h"
#include "rdma/link_text.h"
#include "rdma/slices.h"

#define MC_RDMA_READS_MAX 16u /* READs that the other side of a queue pair may have under way */
/* Queue pairs of an asking half. Each has two numbers in offers, the second higher by this: a pair that works is moved
 * to another device of the peer under the number that it does not use, so the one that works stays until the other is
 * ready. */
#define MC_RDMA_ASKING_MAX (MC_RDMA_PAIRS_MAX / 2)

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

/* ---- half.c: queue pairs ---- */
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
/* Connects the asking half of a pair to where the peer's answer says. */
int mc_rdma_cm_connect(struct mc_rdma_link *link, uint32_t pair, struct mc_rdma_half *half,
                       const struct mc_rdma_tell *peer, uint64_t deadline_ns, char *reason, size_t size);

/* ---- pair.c ---- */
/* The device of the peer that the pairs of a device try in their next set-up. -1: none fits. */
int mc_rdma_pair_choose_remote(struct mc_rdma_link *link, struct mc_rdma_device *device, uint32_t rank);
/* The same for one pair, with the rank of our GID. */
int mc_rdma_pair_choose_next(struct mc_rdma_link *link, const struct mc_rdma_pair *pair, uint32_t *gid_rank);
/* A set-up has failed. link->lock is held. */
void mc_rdma_pair_setup_failed(struct mc_rdma_link *link, struct mc_rdma_pair *pair);
/* The pair may be offered again, after a pause that grows with every failure in a row. */
void mc_rdma_pair_pause(struct mc_rdma_link *link, struct mc_rdma_pair *pair);
/* It broke, and nothing had arrived since it was set up. */
void mc_rdma_pair_was_fruitless(struct mc_rdma_pair *pair);
/* A set-up has ended. *half is taken if that succeeded. link->lock is held. */
void mc_rdma_pair_take(struct mc_rdma_link *link, struct mc_rdma_pair *pair, struct mc_rdma_half *half, int rc,
                       const char *reason);
/* Nobody uses it, and its pairs are destroyed. */
void mc_rdma_link_free(struct mc_rdma_link *link);

/* ---- wait.c ---- */
/* Waits for an event of one of the link's queues, on the thread that runs. True: there was one, perhaps of long ago. */
bool mc_rdma_wait(struct mc_rdma_link *link, uint64_t until_ns);

#endif
