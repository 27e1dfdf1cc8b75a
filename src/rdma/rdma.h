/* One-sided RDMA between registered memories of two processes: the room under the transfer engine and the store's
 * engine. Nothing here knows what the bytes are, who vouches for a place, or how two processes talk otherwise: the
 * faces carry the small texts by which two halves of a link find each other. No type of libibverbs appears here
 * (verbs.h has them). Links and runs are declared in link.h.
 *
 * Four objects, each owned by who opened it and closed in the reverse order:
 *   mc_rdma         the devices of this machine that a filter lets in, opened once per engine. Any thread, at any time.
 *   mc_rdma_memory  one range, registered at every device. Read-only once it is there; any thread may use it.
 *   mc_rdma_link    queue pairs with one peer process. Its *asking* half moves bytes, in both directions; its *serving*
 *                   half only holds queue pairs, costs no processor time, and is never told what is read or written
 *                   through it.
 *   a run           one batch on the calling thread: mc_rdma_link_run.
 *
 * Threads. A link is used by one run at a time (the caller borrows it, as a lane of a connection); who wants two runs
 * at once opens two links. Set-up and repair (offer, answer, complete) of a link may go on in one other thread
 * meanwhile: that is how set-up stays off the threads that move data. Queue pairs are connected by threads of each
 * mc_rdma, "mc-rdma-setup", which come when there is something to do and go after five idle seconds: one for each
 * device, more while its neighbours do not answer; a driver may sleep for a second in the kernel then. One more,
 * "mc-rdma", watches ports, GIDs and requests of rdma_cm. None of them touches the caller's memory. No function takes a
 * lock over a wait, except where it says that it blocks.
 *
 * Invariants.
 * 1. After mc_rdma_link_run has returned, whatever it returned, nothing of it reads or writes local memory: a queue
 *    pair with work under way is brought to an error, drained and destroyed before that.
 * 2. A byte is reported done only when its work, or later work of the same queue pair, completed without error.
 * 3. WRITEs that were cut off may still arrive at the peer, for as long as the peer keeps its half of that pair.
 *    mc_rdma_run.is_unsure says so. They have ended when the peer has closed the link (mc_rdma_link_close at the peer
 *    is the cut of this writer).
 * 4. A serving half must not outlive what proves its peer alive: its owner closes it when the connection over which it
 *    was set up ends. Queue pairs do not notice that their peer has died.
 *
 * Errors are mc_error's. Absence of the library or of devices is no error of the product: mc_rdma_open says
 * MC_ERR_UNAVAILABLE_IN_CURRENT_MODE, without a log line above INFO. After fork() a child must call nothing here;
 * fd_opened and fd_closing let the face close the child's descriptors. */
#ifndef MC_RDMA_RDMA_H
#define MC_RDMA_RDMA_H

#include "base/bytes.h"
#include "base/error.h"
#include "rdma/settings.h"

#include <stdbool.h>
#include <stdint.h>

#define MC_RDMA_DEVICES_MAX 16u   /* of one process; the bits of the masks below */
#define MC_RDMA_PAIRS_MAX 32u     /* queue pairs of one link */
#define MC_RDMA_NAME_MAX 64u      /* bytes of a device's name with its zero */
#define MC_RDMA_CHUNKS_MAX 65536u /* of one range: 128 TiB at 2 GiB each */
#define MC_RDMA_SERVED_MAX 16384u /* serving halves of one mc_rdma */
#define MC_RDMA_TEXT_MAX 65536u   /* bytes of an offer, an answer, a list of devices */
#define MC_RDMA_REASON_MAX 160u
#define MC_RDMA_NODE_SOUGHT (-2)

struct mc_verbs;       /* verbs.h */
struct mc_rdma;        /* device.h */
struct mc_rdma_memory; /* memory.c */
struct mc_rdma_link;   /* pair.h */

/* ---- devices ---- */

struct mc_rdma_options {
    const struct mc_verbs *verbs;            /* NULL: libibverbs.so.1 and librdmacm.so.1, looked for now */
    const struct mc_rdma_settings *settings; /* NULL: mc_rdma_settings_read */
    const char *filter;                      /* "mlx5_0,mlx5_1": only these; NULL or "": all. MC_TE_FILTERS, too */
    /* The original's priority matrix as text, {"cpu:0": [[preferred], [others]]}: only devices that it names are used.
     * NULL: the file that MC_CUSTOM_TOPO_JSON names; where that is not set, sysfs says which is near what. */
    const char *matrix;
    const char *sysfs; /* NULL: "/sys"; lives as long as it is open */
    /* Descriptors that a forked child must close. May be NULL. Called from the opening thread and from those that open,
     * answer and close links. */
    void (*fd_opened)(void *context, int fd);
    void (*fd_closing)(void *context, int fd);
    void *context;
};

enum mc_rdma_fabric { MC_RDMA_INFINIBAND, MC_RDMA_ROCE, MC_RDMA_IWARP };

struct mc_rdma_device_info {
    char name[MC_RDMA_NAME_MAX];
    enum mc_rdma_fabric fabric;
    uint8_t port;
    bool is_up;                      /* now: its port is active, and it is not retired */
    char reason[MC_RDMA_REASON_MAX]; /* "": usable; else why it is not used, and the setting that would help */
    int numa_node;                   /* -1: unknown */
    char pci[32];                    /* "0000:3b:00.0"; "" for a software device */
    char netdev[32];                 /* of the chosen GID; "" : none */
    uint32_t speed_mbps;             /* active width x speed; 0: unknown */
    uint32_t mtu_bytes;              /* that links use: active, at most MC_MTU */
    uint16_t lid;                    /* InfiniBand only */
    int gid_index;                   /* the one that a peer is told first; -1: none */
    uint8_t gid[16];
    char gid_reason[MC_RDMA_REASON_MAX]; /* why that one */
    uint64_t mr_size_max;
    uint32_t wr_max, cqe_max, sge_max, inline_max;
    bool has_dmabuf, has_relaxed_ordering;
};

/* 0. MC_ERR_UNAVAILABLE_IN_CURRENT_MODE: no library, no device, none that the filter lets in, none usable.
 * MC_ERR_INVALID_PARAMS: the filter names a device that is not there (the others are not opened either), or matrix is
 * none.
 * MC_ERR_NO_MEMORY. Blocks for as long as drivers take to open: milliseconds each. */
int mc_rdma_open(const struct mc_rdma_options *options, struct mc_rdma **rdma);
/* Everything opened on it is closed already. NULL is allowed. */
void mc_rdma_close(struct mc_rdma *rdma);
/* The devices in use are numbered 0 to count - 1, in an order that does not change while it is open; keys and masks go
 * by these numbers. A device that fails keeps its number. */
uint32_t mc_rdma_device_count(const struct mc_rdma *rdma);
void mc_rdma_device_info(const struct mc_rdma *rdma, uint32_t device, struct mc_rdma_device_info *info);
/* The NUMA node whose memory the device is near, by the topology; -1: unknown. */
int mc_rdma_device_node(const struct mc_rdma *rdma, uint32_t device);
/* Bytes of our own requests: under way at that device now, and moved by it since it was opened. */
void mc_rdma_device_load(const struct mc_rdma *rdma, uint32_t device, uint64_t *under_way_bytes, uint64_t *moved_bytes);
/* Every device of the machine, usable or not, whatever the filter: for mooncake_doctor. Opens and closes each. Count, 0
 * without library. One that cannot be opened has a reason and no more. */
int mc_rdma_scan(const struct mc_rdma_options *options, struct mc_rdma_device_info *infos, size_t capacity);

/* Appends a JSON array of the devices in use, each with the original's "name", "lid", "gid" and what peers of ours need
 * besides. A face puts it into its own document; it changes when a GID does (mc_rdma_version counts). */
void mc_rdma_put_devices(const struct mc_rdma *rdma, struct mc_buffer *out);
/* Changes whenever what mc_rdma_put_devices writes has changed. */
uint64_t mc_rdma_version(const struct mc_rdma *rdma);

/* A peer's device, from such an array. */
struct mc_rdma_peer_device {
    char name[MC_RDMA_NAME_MAX];
    uint16_t lid;
    uint8_t gid[16];
    bool is_up;                 /* as the peer last told */
    enum mc_rdma_fabric fabric; /* not told (the original's document): InfiniBand if it has a lid, else RoCE */
    uint32_t speed_mbps;
};
/* Count, or MC_ERR_PROTOCOL: not such an array, a name twice, more than capacity. */
int mc_rdma_parse_devices(struct mc_span json, struct mc_rdma_peer_device *devices, size_t capacity);

/* ---- memory ---- */

/* One piece of a range with its keys, by device number: lkeys of our own memory for the local side of a request, rkeys
 * of the peer's for the remote side (there the numbers are those of the peer's devices). Pieces of a range are adjacent
 * and in ascending order; a request may cross from one to the next. */
struct mc_rdma_chunk {
    uint64_t address, length;
    uint32_t valid;     /* a bit for each device at which it is registered */
    uint32_t preferred; /* devices near this memory; others are taken only when none of these works. 0: all alike */
    uint32_t keys[MC_RDMA_DEVICES_MAX];
    bool is_gpu; /* of our own: the processor cannot touch it, so nothing of it is posted inline */
};
struct mc_rdma_chunks {
    const struct mc_rdma_chunk *list;
    uint32_t count;
};

struct mc_rdma_range {
    void *address;
    uint64_t length;        /* > 0 */
    bool is_gpu;            /* never touched by the processor: DMABUF is tried if there is a descriptor, then PEERMEM */
    int dmabuf_fd;          /* -1: none. Stays the caller's; may be closed after the call */
    uint64_t dmabuf_offset; /* of address within it */
    bool is_remote_readable, is_remote_writable; /* neither: only we use it, on the local side of requests */
    int numa_node; /* where it lies; -1: unknown, all devices alike; MC_RDMA_NODE_SOUGHT: each piece is looked for */
    const char *location; /* "cpu:0", "cuda:1" as the topology names it; NULL, "" or "*": "cpu:<numa_node>" */
    const char *bus_id;   /* of the GPU at that location; NULL: not known */
};
/* Registers the range at every device in use, in pieces of at most the smallest limit of all of them, all devices at
 * once when it is large. Blocks: about a second for 4 GiB of untouched memory, page by page. 0: at one device at least;
 * each other got one WARNING and has no bit in `valid`. MC_ERR_INVALID_PARAMS: length 0, a range beyond the address
 * space. MC_ERR_NO_MEMORY: RLIMIT_MEMLOCK or our own memory; the log line names the limit. MC_ERR_NOT_SUPPORTED: GPU
 * memory that no device takes: stage it through host memory. MC_ERR_TRANSFER_FAIL: anything else that all devices
 * refused. */
int mc_rdma_memory_register(struct mc_rdma *rdma, const struct mc_rdma_range *range, struct mc_rdma_memory **memory);
/* Nobody uses it in a run any more. Peers that still have its rkeys are refused from now on: their requests fail and
 * their queue pairs break; nothing of theirs touches the memory after the return of 0. MC_ERR_TRANSFER_FAIL: a device
 * has not let go of it; it is there still, to be unregistered again, and for nothing else. */
int mc_rdma_memory_unregister(struct mc_rdma_memory *memory);
/* At every device that is not lost? */
bool mc_rdma_memory_is_everywhere(const struct mc_rdma_memory *memory);
struct mc_rdma_chunks mc_rdma_memory_local(const struct mc_rdma_memory *memory);  /* keys are lkeys */
struct mc_rdma_chunks mc_rdma_memory_remote(const struct mc_rdma_memory *memory); /* keys are rkeys: for peers */

/* ---- counters, of all links of one mc_rdma ---- */

struct mc_rdma_counters {
    uint64_t read_bytes, written_bytes, slices, retries;
    uint64_t pairs_made, pairs_failed, pairs_served; /* served: made in answers */
    uint64_t timeouts, stalls, refusals;             /* refusals: the peer's device said no */
    uint64_t port_downs, port_ups, gid_changes, device_losses;
};
void mc_rdma_counters_get(const struct mc_rdma *rdma, struct mc_rdma_counters *counters);

#endif
