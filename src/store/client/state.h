/* One store client: what its files share.
 *
 * Threads x data
 *   caller threads   borrow a link (master connection) each, move bytes themselves
 *   heartbeat thread    heartbeats on a connection of its own (heartbeat.c); touches no lock that a caller holds while
 *                       it
 *                    waits
 *   serve thread     only with a segment: owner.c, store/segment/serve.c
 * `lock` guards the links, the endpoint cache and the registered buffers; it is never held over a system call that can
 * wait. What is known of the master: epoch and master_node change under `lock`, heard_ns only rises.
 */
#ifndef MC_STORE_STATE_H
#define MC_STORE_STATE_H

#include "base/error.h"
#include "mooncake.h"
#include "base/pace.h"
#include "env/thread.h"
#include "store/path/paths.h"
#include "store/client/disks.h"
#include "store/client/loads.h"
#include "store/client/locations.h"
#include "store/client/sessions.h"
#include "store/owner/master_address.h"
#include "store/owner/master_time.h"
#include "store/wire/tenant.h"

#include <pthread.h>
#include <stdatomic.h>

#define MC_AVOIDED_MAX 64u  /* segments hidden after a failed transfer */
#define MC_COMMIT_PACES 64u /* of owners, by their segments' numbers: several may share one */

struct mc_cached_endpoint;
struct mc_drain;
struct mc_heartbeat;
struct mc_hot;
struct mc_master_link;
struct mc_mounts;
struct mc_owner;
struct mc_preconnect;
struct mc_tasks;

/* How long calls took. Many threads add to it. */
struct mc_call_times {
    _Atomic uint64_t counts[MC_STORE_CALL_BOUND_COUNT + 1], sum_ns;
};

struct mc_registered {
    void *base;
    size_t size;
    bool is_busy; /* a call registers it at the devices, or lets go of it there: that waits for the kernel */
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
    bool only_asks; /* protocol rpc_only: it lends nothing */
    /* What stands before its keys: of the tenant that it is to be, until the first master has said which it is; and its
     * stamp. */
    struct mc_scope scope;
    struct mc_id stamp;            /* zero: none */
    _Atomic bool is_stamp_unknown; /* to the master that was met last */
    bool is_scope_settled;         /* changes under `lock`, once, before the first call */
    uint32_t call_timeout_ms;
    struct mc_id node, host;
    uint64_t incarnation;
    struct mc_paths *paths;
    struct mc_rdma *rdma;                    /* NULL: not wanted, or none here */
    _Atomic(struct mc_owner *) owner;        /* NULL: pure client */
    _Atomic(struct mc_owner *) owner_coming; /* one that is not mounted yet: for the fork handler */
    struct mc_heartbeat *heartbeat;
    pthread_mutex_t beat_lock; /* of the heartbeat thread's sleep; held for no longer than it takes to look */
    pthread_cond_t beat_changed;
    bool is_beat_due;            /* it was woken */
    _Atomic bool is_beat_missed; /* the last heartbeat was not answered, or not in time */

    pthread_mutex_t lock;
    char unmet[256];                   /* why no master was met, for who has waited in vain; "" = one was */
    struct mc_id master_node;          /* who answered the last hello over tcp; names its unix socket */
    struct mc_disks_told disks_told;   /* by the last of them */
    struct mc_id cluster;              /* of the masters that were met; zero = none has said it */
    struct mc_master_move move;        /* to another one, that was met in its place */
    struct mc_epoch_proof epoch_proof; /* what the last of them gave for its epoch */
    uint64_t refused_epoch;            /* of the last master that was not believed: it is logged once */
    struct mc_master_link *idle;       /* stack */
    struct mc_master_link *borrowed;   /* list by next_borrowed, so that a forked child can close their descriptors */
    size_t idle_count;
    struct mc_pace master_pace;                   /* how long the master takes to answer what only reads, */
    struct mc_pace change_pace;                   /* and PUT_START; */
    struct mc_pace commit_paces[MC_COMMIT_PACES]; /* and owners, to confirm */
    _Atomic uint32_t blank_rest;                  /* puts that are not to use places granted ahead */
    _Atomic bool master_has_blanks;               /* it grants places ahead, as that of the last link did */
    bool has_blanks;                              /* they are used: as the process began */
    _Atomic unsigned hello_slow;                  /* a try to say hello may take twice as long, so many times */
    _Atomic bool link_coming;              /* a call opens links because its answer is late: one call at a time */
    struct mc_cached_endpoint **endpoints; /* hash table, NULL = free; endpoints.c */
    size_t endpoint_count, endpoint_capacity;
    struct mc_avoided avoided[MC_AVOIDED_MAX];
    _Atomic uint64_t avoided_until_ms; /* nothing is avoided after it: a look without the lock */
    _Atomic bool has_untold;           /* of a failure, see mc_store_tell */
    struct mc_registered *registered;
    size_t registered_count, registered_capacity;
    pthread_cond_t registered_changed; /* one is not busy any more */

    _Atomic uint32_t calls;
    _Atomic bool closing, forked;
    _Atomic bool retired;                    /* mc_store_retire was called */
    _Atomic bool drains;                     /* the segment's objects are moved away because we say so */
    _Atomic bool leaving;                    /* the segment will be unmounted: nothing new is to be placed there */
    _Atomic uint64_t lease_ttl_ms;           /* as the last hello said */
    _Atomic uint64_t epoch;                  /* the highest that a master had; only rises */
    struct mc_master_time master_time;       /* bounds change under `lock` */
    _Atomic uint64_t heard_ns;               /* when that master sent the last that came from it, by the clock of the
                                                boot; 0 = nothing did */
    _Atomic uint64_t acting_epoch, acted_ns; /* the same of masters that may have acted (hello_reply.quiet) */
    struct mc_locations locations;
    struct mc_loads loads;
    struct mc_hot *hot;    /* NULL: no copies are kept */
    uint64_t stripe_bytes; /* of a piece; 0: values are not put in pieces */
    bool maps_memory;      /* of other processes of this machine */
    struct mc_sessions sessions;
    _Atomic(struct mc_preconnect *) preconnect; /* NULL: needs no paths */
    _Atomic(struct mc_drain *) drain;           /* of the heartbeat thread; NULL: it was never told to */
    _Atomic bool draining;                      /* objects of the own segment are moved away */
    _Atomic(struct mc_tasks *) tasks;           /* NULL: there was none */
    _Atomic(struct mc_mounts *) mounts;         /* NULL: there was none */
    _Atomic uint64_t put_objects, put_bytes, get_objects, get_bytes, get_misses, get_loads, retries, places_hits,
        hot_hits;
    struct mc_call_times put_times, get_times, exist_times;
    struct mc_store *next; /* registry of the fork handler */
};

/* Every public call is framed by these. 0, or the code to return. */
int mc_store_enter(struct mc_store *store);
void mc_store_leave(struct mc_store *store);

/* A call that began then has ended. */
void mc_call_times_add(struct mc_call_times *times, uint64_t since_ns);
struct mc_store_call_times mc_call_times_seen(const struct mc_call_times *times);

/* Deadline of a call that moves so many bytes. */
uint64_t mc_store_deadline(const struct mc_store *store, uint64_t bytes);
int mc_key_check(struct mc_bytes key);
/* Sum of the parts; saturates. */
uint64_t mc_parts_length(const struct iovec *parts, size_t part_count);
/* The heartbeat thread has something to do before its next beat. */
void mc_store_wake(struct mc_store *store);

#endif
