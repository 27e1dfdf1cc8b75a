/* One transfer engine, and the engines of this process.
 *
 * Locks, never held over a wait or a system call that can block: engine->lock (regions, notes, batches, peers' table),
 * peer->lock (document, lanes, host path). Order: engine before peer; `initiators_lock` alone. */
#ifndef MC_TRANSFER_STATE_ENGINE_H
#define MC_TRANSFER_STATE_ENGINE_H

#include "base/bytes.h"
#include "env/thread.h"
#include "transfer/state/batch.h"
#include "transfer/state/metrics.h"
#include "transfer/state/region.h"
#include "transfer/state/settings.h"
#include "transfer/wire/document.h"
#include "transfer/wire/metadata.h"

struct mc_host_path;
struct mc_host_table;
struct mc_peer;
struct mc_rdma;
struct mc_rdma_lane;
struct mc_service;

#define MC_PEER_BUCKETS 1024u
#define MC_TRANSFER_LOOK_MS 100u /* how often a wait looks whether the engine is being closed */
#define MC_PEERS_MAX 65536u
/* Threads for batches in the background: beyond one for each peer that has some, for one peer, in all. */
#define MC_TRANSFER_WORKERS_MAX 32u
#define MC_PEER_WORKERS_MAX 8u
#define MC_TRANSFER_THREADS_MAX 1024u
#define MC_SILENT_THREADS_MAX (MC_TRANSFER_THREADS_MAX - 2 * MC_TRANSFER_WORKERS_MAX) /* others may answer */

#define MC_NOTE_SHARES 1024u /* in which notes are counted by the address of who left them */

struct mc_notification {
    char *name, *message;
    uint32_t share;
    struct mc_notification *next;
};

/* What it counts for. A small one for more than it has, so that there are MC_TRANSFER_NOTES_MAX of them at most. */
static inline size_t mc_note_bytes(const struct mc_notification *note)
{
    size_t bytes = sizeof(*note) + strlen(note->name) + strlen(note->message) + 2;
    size_t least = MC_TRANSFER_NOTES_BYTES / MC_TRANSFER_NOTES_MAX;
    return bytes > least ? bytes : least;
}

struct mc_worker {                     /* a thread of background.c */
    struct mc_transfer_engine *engine; /* NULL: there has been none in this place */
    pthread_t thread;
    bool has_ended; /* to be joined */
};

struct mc_transfer_engine {
    uint32_t fork_count; /* of the process that opened it; first: all that a forked child looks at */
    struct mc_id id, host_id;
    struct mc_settings settings;
    struct mc_metadata metadata;
    char name[MC_DOCUMENT_NAME_MAX];
    char host[MC_ADDRESS_MAX]; /* published */
    uint16_t rpc_port, data_port;
    char unix_name[MC_UNIX_PATH_MAX]; /* "" : none */
    uint32_t users;                   /* calls of other engines of this process; the list's lock */
    struct mc_transfer_engine *next;  /* engines of this process */
    _Atomic bool is_closing;
    _Atomic bool drains_on_signals;
    struct mc_transfer_engine *next_drained; /* of shutdown.c */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* a region was released, a batch has ended */
    struct mc_region_table regions;
    /* Of what stands at the metadata server; held over questions to it; taken before the others. */
    pthread_mutex_t publish_lock;
    bool is_published;
    bool is_lost;                    /* it was, and another engine stood there under our name */
    char taken_from[MC_ADDRESS_MAX]; /* of the names thread: where the name stood when it was taken back, ... */
    uint64_t taken_ms;               /* ... when (0: never), ... */
    struct mc_doubt {
        char address[MC_ADDRESS_MAX]; /* ... where it stands, and what looks in a row there came to */
        uint32_t sum;
    } doubt;
    uint32_t looks;              /* of the names thread at our name */
    uint64_t published_version;  /* of the document there */
    bool is_publishing_due;      /* the names thread is to publish; from here on: engine->lock */
    uint64_t publishing_calm_ns; /* until then a change may be left to it; 0: the server has not taken the last one */
    pthread_t names_thread;
    bool has_names_thread;
    pthread_cond_t names_changed;
    struct mc_buffer document; /* as text, of document_version */
    uint64_t document_version;
    struct mc_notification *notes, **notes_end;
    uint32_t note_count;
    size_t note_bytes, note_shares[MC_NOTE_SHARES];
    struct mc_peer *peers[MC_PEER_BUCKETS];
    uint32_t peer_count;

    struct mc_batch_table batches;
    struct mc_peer *ready, **ready_end, *borrowers;
    pthread_cond_t work_came;
    struct mc_worker workers[MC_TRANSFER_THREADS_MAX];
    uint32_t worker_count, idle_workers;
    uint32_t threads_max, silent_threads_max; /* tests have fewer */
    struct mc_crew *crew;                     /* helps with large copies within the machine; NULL: nobody */
    uint32_t lent, silent_running;            /* threads of all that peers have; batches that run for silent peers */
    bool are_silent_waiting;                  /* for one of the threads that silent peers have */

    pthread_mutex_t ended_lock;       /* of the next ones, and of nothing else */
    struct mc_host_path *ended_paths; /* to peers of this machine: to be freed by a thread */
    pthread_t unmap_thread;
    bool is_unmapping, has_unmap_thread; /* it runs; it is to be joined */

    struct mc_host_table *host_table; /* NULL: no path within the machine */
    int host_table_fd;
    struct mc_service *service;
    /* Being drained: peers that have links to us are told, and end them when what is under way on them has ended. Links
     * of those that hear it. */
    _Atomic bool is_leaving;
    _Atomic uint32_t heard_links;
    _Atomic uint32_t lane_count;     /* of our links to peers */
    struct mc_rdma_lane *ended;      /* links that are to be freed; of the service thread, while it runs */
    _Atomic uint64_t direct_devices; /* whose memory RDMA devices reach themselves; a bit each, which stays */
    struct mc_rdma *_Atomic rdma;    /* NULL: not wanted, or none here; does not change once it is there */

    struct {
        _Atomic uint64_t failed, timed_out, fallbacks, served_bytes, refused;
    } count;
    _Atomic uint64_t checks[64]; /* batches of 2^i bytes and more that were asked whether they are checked */
    struct mc_metrics metrics;   /* whose tallies they are: engine->lock */
};

/* How often this process, or those that it was forked from, have forked since their first engine. */
uint32_t mc_transfer_fork_count(void);
/* False after fork(): nothing of the engine may be touched. */
bool mc_transfer_alive(const struct mc_transfer_engine *engine);
/* Descriptors that a forked child closes. */
void mc_transfer_note_fd(int fd);
void mc_transfer_close_fd(int fd);
void mc_transfer_forget_fd(int fd);
/* Aborts the connection: what is still in the kernel's buffers is not delivered. */
void mc_transfer_reset_fd(int fd);
/* The engine of this process with that id, in use until mc_transfer_leave; NULL. */
struct mc_transfer_engine *mc_transfer_enter(struct mc_id id);
void mc_transfer_leave(struct mc_transfer_engine *engine);
/* Those that drain on signals, each in use until mc_transfer_leave; a list by next_drained. Called once. */
struct mc_transfer_engine *mc_transfer_enter_drained(void);
/* For each engine of this process, which is in use meanwhile. Under no lock: it may take long. */
void mc_transfer_each(void (*function)(struct mc_transfer_engine *engine, void *context), void *context);
/* What closing an engine does to the list: it waits for the calls of other engines that use it. */
void mc_transfer_list_add(struct mc_transfer_engine *engine);
void mc_transfer_list_remove(struct mc_transfer_engine *engine);

#endif
