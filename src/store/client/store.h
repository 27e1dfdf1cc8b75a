/* Inside of one store client: what its files share.
 *
 * Threads x data
 *   caller threads   borrow a link (master connection) each, move bytes themselves
 *   heartbeat thread    heartbeats on a connection of its own (heartbeat.c); touches no lock that a caller holds while it
 *                    waits
 *   serve thread     only with a segment: owner.c, store/segment/serve.c
 * `lock` guards the links, the endpoint cache and the registered buffers; it is never held over a system call that can
 * wait. What is known of the master: epoch and master_node change under `lock`, heard_ns only rises.
 */
#ifndef MC_STORE_STORE_H
#define MC_STORE_STORE_H

#include "base/error.h"
#include "base/pace.h"
#include "store/path/paths.h"
#include "store/client/link.h"
#include "store/owner/master_address.h"
#include "store/owner/master_time.h"
#include "store/client/locations.h"
#include "store/client/session.h"

#include <pthread.h>
#include <stdatomic.h>

#define MC_ENDPOINTS_MAX 65536u  /* cached segments */
#define MC_REGISTERED_MAX 65536u /* registered buffers */
#define MC_AVOIDED_MAX 64u       /* segments hidden after a failed transfer */
#define MC_AVOID_MS 1000u        /* so long */
#define MC_TELL_MS 300u          /* a failure is told if the master answers so soon after it */
#define MC_PATH_OPEN_MS 1000u    /* to reach a store node that is seen to run (else MC_CONNECT_NS, MC_STALL_NS) */
#define MC_COMMIT_WAIT_MS 100u   /* at least, for an owner to confirm; then the put is placed again */
#define MC_COMMIT_PACES 64u      /* of owners, by their segments' numbers: several may share one */
#define MC_REVOKED_WAIT_MS 700u  /* for the master's word after that; a packet of it may be lost, and sent again */
#define MC_PATIENCE_MS 100u      /* with an owner whose object has other replicas */
#define MC_CALL_TIMEOUT_MS_DEFAULT 5000u
#define MC_BYTES_PER_SECOND_ASSUMED (64u << 20) /* a call's deadline grows by a second for so many bytes */

struct mc_preconnect;
struct mc_drain;
struct mc_owner;
struct mc_heartbeat;
struct mc_mounts;
struct mc_tasks;

/* NULL: libibverbs. Tests put a table of their own here. */
extern const struct mc_verbs *mc_store_verbs;

struct mc_registered {
    void *base;
    size_t size;
};

struct mc_cached_endpoint { /* key: (epoch, endpoint.segment) */
    uint64_t epoch;
    bool doubtful; /* could not be reached there: the master is asked again when it can be */
    struct mc_endpoint endpoint;
};

enum mc_avoid { MC_AVOID_SLOW = 1, MC_AVOID_FAILED }; /* others are preferred; nothing is asked of it */

struct mc_avoided {
    uint64_t epoch, until_ms;
    uint32_t segment;
    enum mc_avoid how;
    int code; /* of its owner's failure, which the master has not been told of yet; 0 = nothing is to be told */
};

struct mc_store {
    char hostname[MC_ADDRESS_MAX]; /* "host:port" advertised */
    struct mc_master_address master;
    uint64_t segment_size, local_buffer_size;
    uint32_t call_timeout_ms;
    struct mc_id node, host;
    uint64_t incarnation;
    struct mc_paths *paths;
    struct mc_rdma *rdma;                    /* NULL: not wanted, or none here */
    _Atomic(struct mc_owner *) owner;        /* NULL: pure client */
    _Atomic(struct mc_owner *) owner_coming; /* one that is not mounted yet: for the fork handler */
    struct mc_heartbeat *heartbeat;

    pthread_mutex_t lock;
    struct mc_id master_node;        /* who answered the last hello over tcp; names its unix socket */
    struct mc_id cluster;            /* of the masters that were met; zero = none has said it */
    uint64_t refused_epoch;          /* of the last master that was not believed: it is logged once */
    struct mc_master_link *idle;     /* stack */
    struct mc_master_link *borrowed; /* list by next_borrowed, so that a forked child can close their descriptors */
    size_t idle_count;
    struct mc_pace master_pace;                   /* how long the master takes to answer what only reads, */
    struct mc_pace change_pace;                   /* and PUT_START; */
    struct mc_pace commit_paces[MC_COMMIT_PACES]; /* and owners, to confirm */
    _Atomic bool link_coming;              /* a call opens links because its answer is late: one call at a time */
    struct mc_cached_endpoint **endpoints; /* hash table, NULL = free */
    size_t endpoint_count, endpoint_capacity;
    struct mc_avoided avoided[MC_AVOIDED_MAX];
    _Atomic uint64_t avoided_until_ms; /* nothing is avoided after it: a look without the lock */
    _Atomic bool has_untold;           /* of a failure, see mc_store_tell */
    struct mc_registered *registered;
    size_t registered_count, registered_capacity;

    _Atomic uint32_t calls;
    _Atomic bool closing, forked;
    _Atomic bool leaving;                    /* the segment will be unmounted: nothing new is to be placed there */
    _Atomic uint64_t lease_ttl_ms;           /* as the last hello said */
    _Atomic uint64_t epoch;                  /* the highest that a master had; only rises */
    struct mc_master_time master_time;       /* bounds change under `lock` */
    _Atomic uint64_t heard_ns;               /* when that master sent the last that came from it, by the clock of the
                                                boot; 0 = nothing did */
    _Atomic uint64_t acting_epoch, acted_ns; /* the same of masters that may have acted (hello_reply.quiet) */
    struct mc_locations locations;
    struct mc_sessions sessions;
    _Atomic(struct mc_preconnect *) preconnect; /* NULL: needs no paths */
    struct mc_drain *drain;                     /* of the heartbeat thread; NULL: it was never told to */
    _Atomic bool draining;                      /* objects of the own segment are moved away */
    _Atomic(struct mc_tasks *) tasks;           /* NULL: there was none */
    _Atomic(struct mc_mounts *) mounts;         /* NULL: there was none */
    _Atomic uint64_t put_objects, put_bytes, get_objects, get_bytes, get_misses, retries, places_hits;
    struct mc_store *next; /* registry of the fork handler */
};

/* Of mount.c and task.c, when no call runs any more. */
void mc_mounts_end(struct mc_store *store);
void mc_tasks_end(struct mc_store *store);

/* Of drain.c: the master's wish, as each heartbeat's answer tells it; called by the heartbeat thread. The end: when it has
 * stopped. */
void mc_drain_told(struct mc_store *store, uint32_t segment, bool wanted);
void mc_drain_end(struct mc_store *store);
/* Puts the value, if it has a replica in the segment of that name, in place of itself on others. */
int mc_store_move_away(struct mc_store *store, struct mc_bytes key, const char *segment);

/* Every public call is framed by these. 0, or the code to return. */
int mc_store_enter(struct mc_store *store);
void mc_store_leave(struct mc_store *store);

/* Deadline of a call that moves so many bytes. */
uint64_t mc_store_deadline(const struct mc_store *store, uint64_t bytes);
int mc_key_check(struct mc_bytes key);
/* Sum of the parts; saturates. */
uint64_t mc_parts_length(const struct iovec *parts, size_t part_count);

/* mc_store_describe, and what else the master says of the value. */
struct mc_described {
    uint64_t version;
    uint8_t pins; /* enum mc_put_flags */
};
int mc_call_describe(struct mc_store *store, const struct mc_bytes *key, uint64_t deadline_ns,
                     struct mc_replica_description *descriptions, size_t capacity, struct mc_described *described);
/* 0 when there is a segment of that name, else MC_ERR_SEGMENT_NOT_FOUND. */
int mc_call_segment_named(struct mc_store *store, const char *name, uint64_t deadline_ns);

/* Endpoint of a segment of that epoch as far as it is known. */
bool mc_store_endpoint_known(struct mc_store *store, uint64_t epoch, uint32_t segment, struct mc_endpoint *endpoint);
/* What a master of that epoch says of a segment: checked, and remembered. */
int mc_store_endpoint_told(struct mc_store *store, uint64_t epoch, const struct mc_wire_segment_reply *reply,
                           struct mc_endpoint *endpoint);
/* Endpoint of a segment of that epoch, from the cache or the master. Copies. */
int mc_store_endpoint(struct mc_store *store, uint64_t epoch, uint32_t segment, uint64_t deadline_ns,
                      struct mc_endpoint *endpoint);
/* Forgets all endpoints. Lock held. */
void mc_store_endpoints_clear(struct mc_store *store);
/* A referenced path to that segment. */
int mc_store_path(struct mc_store *store, const struct mc_endpoint *endpoint, uint64_t deadline_ns,
                  struct mc_path **path);
/* The owner failed: drop the path (NULL: there was none), hide the segment from this client for a while, and tell the
 * master, if there is one to tell, once it has answered something soon after: whoever hears nobody has a trouble of his
 * own. */
void mc_store_report(struct mc_store *store, bool tell, uint64_t epoch, const struct mc_endpoint *owner,
                     struct mc_path *path, int code);
/* The master has answered on that link: it is told of failures that it does not know of. One way. */
void mc_store_tell(struct mc_store *store, struct mc_master_link *link);
/* SUSPECT on the link. */
void mc_store_suspect(struct mc_master_link *link, uint32_t segment, int code);
bool mc_store_is_avoided(struct mc_store *store, uint64_t epoch, uint32_t segment);
/* The same, or slow. */
bool mc_store_is_slow(struct mc_store *store, uint64_t epoch, uint32_t segment);
/* Hides a segment from this client for MC_AVOID_MS, or has it prefer others for so long. */
void mc_store_avoid(struct mc_store *store, uint64_t epoch, uint32_t segment, enum mc_avoid how);
/* Fills up to capacity numbers of avoided segments of the latest epoch. */
size_t mc_store_avoided(struct mc_store *store, uint32_t *segments, size_t capacity);

#endif
