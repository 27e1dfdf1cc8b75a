/* How bytes move between this process and a segment. A transport is one file that ends in one const table of functions.
 *
 * A path is one way to one segment (local, shm, rdma or tcp). mc_path_run moves a batch in the calling thread. A path
 * may be used by many threads at once. Failing down (shm -> rdma -> tcp) is the business of choice.c, never of a
 * transport.
 */
#ifndef MC_PATH_TRANSPORT_H
#define MC_PATH_TRANSPORT_H

#include "base/bytes.h"
#include "base/trace.h"
#include "store/segment/layout.h"
#include "env/socket.h"
#include "store/wire/proof.h"

#include <stdint.h>
#include <sys/uio.h>

/* Where a segment can be reached: from the master's SEGMENT_REPLY. */
struct mc_endpoint {
    uint32_t segment;
    struct mc_id node;
    uint64_t incarnation;
    struct mc_id segment_id;
    uint64_t capacity;
    uint32_t slot_count;
    uint8_t ticket[MC_TICKET_BYTES], ticket_secret[MC_KEY_SECRET_BYTES]; /* proved to the owner before the hello; */
    bool has_ticket;                                                     /* or it wants none */
    uint64_t nonce; /* shown by the client at shm attach, so that only members of the cluster get in */
    struct mc_id host;
    char name[MC_ADDRESS_MAX];
    char tcp_address[MC_ADDRESS_MAX];
    char unix_path[MC_UNIX_PATH_MAX];
};

/* Is it the same process, segment and ticket? */
static inline bool mc_endpoint_same(const struct mc_endpoint *a, const struct mc_endpoint *b)
{
    return a->incarnation == b->incarnation && mc_id_equal(a->node, b->node) &&
           mc_id_equal(a->segment_id, b->segment_id) && a->has_ticket == b->has_ticket &&
           memcmp(a->ticket, b->ticket, sizeof(a->ticket)) == 0 &&
           memcmp(a->ticket_secret, b->ticket_secret, sizeof(a->ticket_secret)) == 0;
}

struct mc_place { /* one replica, from the master */
    uint32_t segment, slot;
    uint64_t generation, offset;
    uint8_t replica;
    uint64_t tag; /* which its owner wants to hear again (store/wire/tag.h) */
};
static inline struct mc_place mc_place_of(const struct mc_wire_place *told)
{
    return (struct mc_place){told->segment, told->slot, told->generation, told->offset, told->replica, told->tag};
}
/* The same for all replicas of a value, and of no other value. */
static inline uint64_t mc_place_version(const struct mc_place *place)
{
    return place->generation - place->replica;
}

/* Where a WRITE's bytes come from when they do not lie in memory that can be read (a device's): a stream. It never ends
 * early: after a failure come zeros, `result` says so, and such an object must not be committed. */
struct mc_cursor; /* gather.h */
struct mc_source {
    /* The next bytes, at most `want`, in their order. They stay until MC_SOURCE_HELD_BYTES more were taken. */
    const uint8_t *(*take)(struct mc_source *source, uint64_t want, size_t *length);
    int result;
};
#define MC_SOURCE_HELD_BYTES (256u << 10)

/* Of a transfer whose parts lie all in one device's memory that path rdma may reach itself (GPUDirect): its bytes as a
 * source, for their checksums. */
struct mc_device_view {
    /* Those that lie at the cursor now; what was written there by network cards is seen. Never NULL: a failure is the
     * source's. One at a time, until the close. */
    struct mc_source *(*open)(struct mc_device_view *view, const struct mc_cursor *cursor, uint64_t length);
    void (*close)(struct mc_device_view *view);
};

enum mc_transfer_kind { MC_TRANSFER_READ, MC_TRANSFER_WRITE };

struct mc_transfer {
    enum mc_transfer_kind kind;
    struct mc_place place;
    uint64_t object_length;       /* of the whole object */
    uint64_t hash_low, hash_high; /* XXH3-128 of the key. READ: must equal the slot's. WRITE: goes into the slot */
    struct mc_span key;           /* WRITE only: stored behind the data */
    uint8_t flags, replica;       /* WRITE only: into the slot */
    uint64_t group, pin_ms;       /* as well; pin_ms: what is left of a soft pin, 0: it is not said */
    uint64_t offset,
        length; /* READ: the range of the object that is wanted (0, object_length = all). WRITE: always all */
    const struct iovec *parts; /* scattered to or gathered from; together at least `length` bytes */
    size_t part_count;
    struct mc_source *source; /* WRITE only: instead of what lies in the parts; NULL: they can be read */
    /* Not NULL (path rdma only): no processor may touch the parts. They are moved in place, or not at all: then the
     * result is MC_ERR_NOT_SUPPORTED. */
    struct mc_device_view *view;
    /* Out. 0: READ: bytes are in parts and verified (slot, hash, checksum). WRITE: written and the commit is on its way
     * (or done: local). MC_ERR_REPLICA_IS_GONE: the slot holds something else (a miss). MC_ERR_CHECKSUM_MISMATCH.
     * MC_ERR_STALE: of a WRITE: the grant is void, or it is spent (its connection was reset by an owner that lives);
     * of a READ: the owner does not take the place's tag.
     * MC_ERR_TRANSFER_FAIL: path broken, or its owner silent for MC_STALL_NS. MC_ERR_RPC_TIMEOUT: deadline, patience,
     * or (shm, rdma) a stall. MC_ERR_BUSY, MC_ERR_NO_MEMORY, MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS,
     * MC_ERR_INVALID_PARAMS: our own trouble (mc_socket_is_own), or BUSY: no place for one more
     * connection at the owner, or (shm) another thread has found it silent; none says anything against it. After an
     * error of a WRITE this process will not write there any more, but bytes already sent may still arrive: the caller
     * revokes, the owner refuses. */
    int result;
    /* Out, of a WRITE over RDMA: bytes may still arrive, and the owner cannot refuse them. It must not be revoked: the
     * end of the connection to the master has it cut. */
    bool is_unsure;
};

struct mc_run { /* how a batch is run */
    uint64_t deadline_ns;
    void (*tick)(void *context); /* called at least every 100 ms while bytes move (lease renewal); may be NULL */
    void *context;
    void (*doubt)(void *context); /* the owner has moved nothing for MC_DOUBT_NS; once a batch; may be NULL */
    void *doubt_context;
    /* An owner that is silent for so long is left, and nothing is said of it: there are other replicas. 0: it has
     * MC_STALL_NS. */
    uint64_t patience_ns;
    /* No master vouches for the places, 0 = one does. An owner that has ended must not be read from, nor one whose last
     * contact with a master is longer ago: its departure may have been acted upon. */
    uint32_t contact_age_max_ms;
    const struct mc_trace_context
        *trace; /* of which it is a part: its owner is told, where it wants to know; NULL: of none */
};

struct mc_path;
struct mc_paths;

#define MC_PATH_BATCHES_MAX 64u /* owners that one thread moves bytes with at a time */

/* What goes over one path, of several that are run at once. */
struct mc_path_batch {
    struct mc_path *path;
    struct mc_transfer **transfers;
    size_t count;
    struct mc_run run;
    uint64_t start_ns; /* out: when it began, less the time for which it was put aside for others */
    /* Every result is set: called in the same thread, as soon as it is so, while others may still be under way. */
    void (*ended)(struct mc_path_batch *group);
};

/* Of who opens a path. Who has not answered by soon_ns is dead or stopped; one of this machine that is seen to run has
 * until deadline_ns: an overloaded machine has not let it answer. */
struct mc_patience {
    uint64_t soon_ns, deadline_ns;
};

struct mc_transport {
    const char *name;
    unsigned counter; /* of mc_paths_counters.path_bytes */
    /* True when WRITE has made the slot live itself (same process) and the caller must tell the master (LIVE). False:
     * the owner does. */
    bool commits_here;
    /* A path to that segment. 0, MC_ERR_UNAVAILABLE_IN_CURRENT_MODE (not reachable this way: other host, other uid),
     * MC_ERR_STALE (another incarnation answers), MC_ERR_RPC_FAIL, MC_ERR_RPC_TIMEOUT. */
    int (*open)(struct mc_paths *paths, const struct mc_endpoint *endpoint, const struct mc_patience *patience,
                struct mc_path **path);
    /* Moves the batch, sets every result. All places are of this path's segment. */
    void (*run)(struct mc_path *path, struct mc_transfer **transfers, size_t count, const struct mc_run *run);
    /* Called once nobody runs on it. */
    void (*close)(struct mc_path *path);
    /* Has the owner's process ended, as far as can be seen without asking it? Then what the path holds of it is of no
     * use. */
    bool (*is_ended)(struct mc_path *path);
    /* A commit that was sent is not confirmed in time: shows both kernels what was lost, and tells the owner that it is
     * waited for (NULL: nothing can be lost). gives_up: it was not confirmed at all. The connection that took it, which
     * is not known, may be dead, or nobody reads it: none that rests is used again. Never waits. While others may run
     * on it. */
    void (*nudge)(struct mc_path *path, bool gives_up);
    /* Lets go of what was not used for long (NULL: holds nothing). While others may run on it. */
    void (*rest)(struct mc_path *path, uint64_t now_ns);
    bool has_patience; /* `run` knows patience_ns; else an owner has all its time */
    /* `close` gives back memory of the owner's, which takes the kernel long when nobody else has it any more. */
    bool closes_slowly;
    /* Moves the groups, at most MC_PATH_BATCHES_MAX, all at once: their questions go out first, then answers are taken
     * as they come. What one of them waits for is not waited for by another; what only waits (for a place at an owner,
     * for its word after a reset) comes last. NULL: they are run one after the other. */
    void (*run_all)(struct mc_path_batch **groups, size_t count);
    /* Its parts lie in a device's memory: may they be moved in place now? NULL: none ever. */
    bool (*reaches)(struct mc_path *path, const struct mc_transfer *transfer);
};

struct mc_path { /* first member of each transport's own struct */
    const struct mc_transport *transport;
    struct mc_paths *paths;
    struct mc_endpoint endpoint;
    _Atomic uint32_t references;
    _Atomic bool broken; /* set by run: do not use again */
    struct mc_path *next_closing;
};

void mc_path_release(struct mc_path *path);
/* Moves the batch over the path, also where parts lie in a device's memory; any others are moved as they are. */
void mc_staged_run(struct mc_path *path, struct mc_transfer **transfers, size_t count, const struct mc_run *run);
/* Do any parts lie there? */
bool mc_staged_is_needed(struct mc_transfer *const *transfers, size_t count);

struct mc_paths_counters {
    _Atomic uint64_t path_bytes[4];
    _Atomic uint64_t rdma_copied_bytes;     /* of path_bytes by rdma: that passed through memory of our own */
    _Atomic uint64_t rdma_overlapped_bytes; /* that were copied or summed while others were on the wire */
    _Atomic uint64_t checksum_errors, fallbacks;
    _Atomic uint64_t read_ns; /* when a read from an owner elsewhere last went well */
};

extern const struct mc_transport mc_transport_local, mc_transport_shm, mc_transport_rdma, mc_transport_tcp;

#endif
