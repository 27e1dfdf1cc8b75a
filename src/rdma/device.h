/* The devices of this machine, as the files of this room see them; others include rdma.h.
 *
 * Locks, never held over a wait or a call of a driver that sleeps on the network: rdma->lock (what is known of ports
 * and GIDs, the list of serving halves), link->lock (pairs that are being set up). Order: link before rdma. */
#ifndef MC_RDMA_DEVICE_H
#define MC_RDMA_DEVICE_H

#include "rdma/verbs.h"

#include <pthread.h>
#include <stdatomic.h>

struct mc_rdma_pair;

/* A device that failed so often in a row, where others reached the same peer, is retired */
#define MC_RDMA_BLAMES_MAX 32u

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
    int near_node; /* near whose memory it is, by the topology; -1: unknown. Does not change */
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
    uint64_t grace_ns; /* once some pairs stand, the others of a set-up are waited for so long; does not change */
    _Atomic uint64_t rest_until_ns; /* until then an offer is not waited for that names no time */
    _Atomic uint32_t turn;          /* of completion vectors */
    pthread_mutex_t wait_lock;      /* wait.c; nothing is locked within it */
    bool is_led;                    /* a thread sleeps on the channels; from here on: wait_lock */
    struct mc_rdma_link *waiting;   /* others, whose threads wait to be woken; a list by next_waiting */
    struct {
        _Atomic uint64_t read_bytes, written_bytes, slices, retries, pairs_made, pairs_failed, pairs_served, timeouts,
            stalls, refusals, port_downs, port_ups, gid_changes, device_losses;
    } count;
};

/* ---- device.c ---- */
struct mc_rdma_device *mc_rdma_device_named(struct mc_rdma *rdma, const char *name); /* NULL: there is none */
/* Opens it and asks what it is. On failure reason says why. Either way it is to be closed. */
int mc_rdma_device_open(struct mc_rdma *rdma, struct mc_rdma_device *device, struct ibv_device *found,
                        bool is_asked_for);
void mc_rdma_device_close(struct mc_rdma_device *device);
void mc_rdma_device_describe(struct mc_rdma_device *device, struct mc_rdma_device_info *info);
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
/* Once devices are open: near what they are; without a matrix by what sysfs says of them. */
void mc_rdma_near_find(struct mc_rdma *rdma);
/* The NUMA node of a range, by some of its pages; -1: they lie on several, as interleaved ones do, or are unknown.
 * node_of: of the page at an address; -1: unknown. */
int mc_rdma_near_node(uintptr_t address, uint64_t length, int (*node_of)(uintptr_t address));
/* The devices that are preferred for a range; 0: all alike. */
uint32_t mc_rdma_near(struct mc_rdma *rdma, const struct mc_rdma_range *range);

/* ---- watch.c ---- */
int mc_rdma_watch_start(struct mc_rdma *rdma);
void mc_rdma_watch_stop(struct mc_rdma *rdma);

/* ---- link_cm.c: set-up by rdma_cm ---- */
/* Starts to listen. Called before the watcher starts. */
int mc_rdma_cm_listen(struct mc_rdma *rdma);
void mc_rdma_cm_close(struct mc_rdma *rdma);
/* Events that have come; on the watching thread. */
void mc_rdma_cm_events(struct mc_rdma *rdma);
/* Address at which the listener is reached by way of that device, "10.0.0.1:18515". False: it has none. */
bool mc_rdma_cm_address(struct mc_rdma_device *device, const uint8_t *peer_gid, char *text, size_t size);

#endif
