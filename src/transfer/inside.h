/* What the files of the transfer engine's shell share. Others include mooncake_engine.h.
 *
 * Locks, never held over a wait or a system call that can block: engine->lock (regions, notes, batches, peers' table),
 * peer->lock (document, lanes, host path). Order: engine before peer; `initiators_lock` alone. */
#ifndef MC_TRANSFER_INSIDE_H
#define MC_TRANSFER_INSIDE_H

#include "rdma/remote.h"
#include "transfer/batch.h"
#include "transfer/document.h"
#include "transfer/handshake.h"
#include "transfer/host_table.h"
#include "transfer/metadata.h"
#include "transfer/metrics.h"
#include "transfer/region.h"

#include <pthread.h>

#define MC_PEER_BUCKETS 1024u
#define MC_HOST_MAP_BUCKETS 64u
#define MC_PEERS_MAX 65536u
#define MC_PEER_LANES_MAX 16u /* of one call to one peer, and kept open idle */
/* Threads for batches in the background: beyond one for each peer that has some, for one peer, in all. */
#define MC_TRANSFER_WORKERS_MAX 32u
#define MC_PEER_WORKERS_MAX 8u
#define MC_TRANSFER_THREADS_MAX 1024u
#define MC_SILENT_THREADS_MAX (MC_TRANSFER_THREADS_MAX - 2 * MC_TRANSFER_WORKERS_MAX) /* others may answer */
#define MC_TRANSFER_ATTEMPTS 4u      /* of one call, when its connections break */
#define MC_TRANSFER_LOOK_MS 100u     /* how often a wait looks whether the engine is being closed */
#define MC_UNREGISTER_GRACE_MS 2000u /* peers' transfers may end by themselves for so long, then they are cut off */
#define MC_UNREGISTER_WAIT_MS 10000u
/* Of connections to one peer that were given up: in one question, and at most of those without a number */
#define MC_SETTLE_NUMBERS_MAX 1024u
#define MC_SETTLE_NOTED_MAX 65536u /* of those with a number */
#define MC_PEER_RDMA_LANES_MAX 8u  /* links to one peer; further calls wait for one of them */

struct ifaddrs;

struct mc_lane {
    int fd;
    uint32_t incarnation; /* of the peer */
    uint64_t number;      /* by which it can be cut; 0: it cannot */
    struct mc_spin spin;
    uint64_t used_ms, failed_ms; /* failed_ms: our own kernel has given it up, or 0 */
    struct mc_lane *next;
};

struct mc_host_map;

struct mc_host_path { /* to a peer of this machine; reference counted */
    _Atomic uint32_t references;
    _Atomic bool is_broken;
    int fd;    /* its end of file ends the path */
    pid_t pid; /* proved to be the peer's */
    const struct mc_host_table *table;
    struct mc_host_intents *intents;
    _Atomic uint64_t taken; /* intents in use, a bit each */
    pthread_mutex_t lock;   /* of the view */
    struct mc_host_view view;
    struct mc_host_map *maps[MC_HOST_MAP_BUCKETS]; /* of the peer's memory, by slot; the lock */
};

/* A link, and the connection over which it was set up: the peer holds its half as long as that connection lives, and
 * its end proves that nothing of the link arrives there any more. */
struct mc_rdma_lane {
    struct mc_transfer_engine *engine;
    struct mc_rdma_link *link;
    int fd;
    uint32_t incarnation; /* of the peer */
    uint64_t number;      /* by which it can be cut; 0: it cannot */
    struct mc_id owner;   /* the engine that it must be of; zero: not known */
    uint64_t used_ms, cut_ms;
    bool is_given_up; /* by our own kernel: its end proves nothing */
    bool is_pending;  /* none of its pairs stood yet when it was last looked at */
    bool is_leaving;  /* the peer is leaving: what is under way may end, and then the lane does */
    struct mc_rdma_lane *next;
};

struct mc_peer {
    struct mc_transfer_engine *engine;
    char name[MC_DOCUMENT_NAME_MAX];
    struct mc_peer *next;                /* in its bucket */
    uint32_t references;                 /* engine->lock */
    struct mc_tally *tally;              /* NULL: it has rested */
    struct mc_batch *queue, **queue_end; /* batches in the background that wait; from here on: engine->lock */
    struct mc_peer *next_ready;          /* of those with such that may have another thread; is_ready */
    struct mc_peer *next_borrower, *previous_borrower; /* of those with threads that all share; lent > 0 */
    uint32_t running, lent;                            /* batches in the background; so many beyond its own thread */
    uint64_t moved_ns;                                 /* when one last ended, or the first of these began */
    bool is_ready, is_silent;
    uint64_t used_ms;
    _Atomic int last_path; /* MC_TRANSFER_PATH_... of the last batch that was moved, + 1; 0: none yet */
    pthread_mutex_t lock;
    bool is_known;               /* document and address are filled in */
    uint32_t incarnation;        /* counts the processes that had the name; connections of earlier ones are closed */
    bool is_doubtful;            /* its process has ended, or it has rested: to be asked for again before it is used */
    struct mc_document document; /* without buffers */
    uint64_t first_address;
    char data_address[MC_ADDRESS_MAX + 8];
    char handshake_address[MC_ADDRESS_MAX]; /* with a metadata server: by what it said last; "": it did not */
    bool is_near;                           /* same machine: splitting over lanes gains nothing */
    struct mc_lane *idle;
    uint32_t idle_count;
    uint64_t *uncut, uncut_first; /* numbers of connections of which a write may still arrive; of the first */
    uint32_t uncut_count, uncut_capacity;
    bool is_uncut_lost; /* one more was not noted: nothing goes there any more, until another process has the name */
    struct mc_lane *unended; /* connections without a number, of which a write may still arrive */
    uint32_t unended_count;
    struct mc_host_path *host;
    uint64_t host_retry_ms; /* not before */
    struct mc_rdma_remote *remote;
    uint64_t remote_ms;      /* when it was fetched */
    uint32_t remote_wait_ms; /* not again before, because of memory that it lacks */
    struct mc_rdma_lane *rdma_idle;
    struct mc_rdma_lane *rdma_uncut; /* WRITEs of these may still arrive: nothing else goes to the peer before */
    uint32_t rdma_settling;          /* more of these, that threads are waiting for */
    uint32_t rdma_lanes;             /* all, but for the uncut */
    uint32_t rdma_pause_ms;          /* before the next try, once one has failed */
    uint64_t rdma_retry_ms;          /* not before */
    uint64_t rdma_open_ms;           /* no further link before, while there is one */
    pthread_cond_t rdma_given, rdma_settled;
};

struct mc_notification {
    char *name, *message;
    struct mc_notification *next;
};

struct mc_worker {                     /* a thread of background.c */
    struct mc_transfer_engine *engine; /* NULL: there has been none in this place */
    pthread_t thread;
    bool has_ended; /* to be joined */
};

struct mc_service;

struct mc_settings { /* from the environment */
    uint64_t timeout_ns;
    uint32_t handshake_connect_ms;
    uint64_t handshake_length_max;
    uint16_t port_first, port_last;
    unsigned lanes, lanes_near; /* of one call; near: to peers of this machine, where more gain nothing */
    unsigned tcp_version;       /* 1: never speak version 2 */
    bool use_ipv6, allow_local, allow_host;
    char bind_address[MC_ADDRESS_MAX];
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
    struct mc_peer *peers[MC_PEER_BUCKETS];
    uint32_t peer_count;

    struct mc_batch_table batches;
    struct mc_peer *ready, **ready_end, *borrowers;
    pthread_cond_t work_came;
    struct mc_worker workers[MC_TRANSFER_THREADS_MAX];
    uint32_t worker_count, idle_workers;
    uint32_t threads_max, silent_threads_max; /* tests have fewer */
    uint32_t lent, silent_running;            /* threads of all that peers have; batches that run for silent peers */
    bool are_silent_waiting;                  /* for one of the threads that silent peers have */

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
    struct mc_metrics metrics; /* whose tallies they are: engine->lock */
};

/* ---- engine.c ---- */
/* One whose timed waits go by CLOCK_MONOTONIC. */
void mc_condition_init(pthread_cond_t *condition);
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
/* For each engine of this process, under the list's lock. */
void mc_transfer_each(void (*function)(struct mc_transfer_engine *engine, void *context), void *context);

/* Opens the RDMA devices that device_name ("": all) and the priority matrix (NULL: none is given) name, registers there
 * what is registered already, and tells peers. An engine that has them keeps those it has. 0, or a negative enum
 * mc_error of mc_rdma_open. */
int mc_transfer_start_rdma(struct mc_transfer_engine *engine, const char *device_name, const char *matrix);

/* ---- memory.c ---- */
struct mc_region *mc_transfer_hold(struct mc_transfer_engine *engine, uint64_t address, uint64_t length);
void mc_transfer_release(struct mc_transfer_engine *engine, struct mc_region *region);
/* Registers at the RDMA devices, which have just come, what is registered. 0 or MEMORY. */
int mc_memory_pin_all(struct mc_transfer_engine *engine);
/* Appends the engine's document. Its version. */
uint64_t mc_transfer_document(struct mc_transfer_engine *engine, struct mc_buffer *out);
/* What it would be now. */
uint64_t mc_transfer_document_version(struct mc_transfer_engine *engine);

/* Peers can begin nothing any more with what is registered now. engine->lock is held. */
void mc_memory_refuse(struct mc_transfer_engine *engine);
/* Does nobody touch any of it? engine->lock is held. */
bool mc_memory_is_quiet(struct mc_transfer_engine *engine);
/* For close: nobody reaches any of it any more. Waits like unregister. */
void mc_memory_leave_all(struct mc_transfer_engine *engine);
void mc_memory_free(struct mc_transfer_engine *engine);

/* ---- settings.c ---- */
void mc_settings_read(struct mc_settings *settings);
/* A number from the environment within [least, most]; anything else is a warning and the default. */
uint64_t mc_settings_number(const char *name, uint64_t initial, uint64_t least, uint64_t most);
/* The address that other machines can reach: of the first interface that is up, has a carrier and is not loopback; if
 * none has one, of the first that is up. */
void mc_network_address(bool use_ipv6, char *address, size_t size);
/* The same of a list of addresses; NULL: an empty one. */
void mc_network_pick(const struct ifaddrs *all, bool use_ipv6, char *address, size_t size);
/* Listens on a random free port of the range. host "": every address. Descriptor or negative. */
int mc_network_listen(const struct mc_settings *settings, const char *host, uint16_t *port);

/* ---- metadata.c ---- */
/* Document and name of an engine that opens. */
int mc_transfer_publish(struct mc_transfer_engine *engine);
/* Tells the metadata server what has changed. may_wait: changes in quick succession are told together, by the names
 * thread, a little later; then the answer is 0. */
int mc_transfer_publish_document(struct mc_transfer_engine *engine, bool may_wait);
void mc_transfer_withdraw(struct mc_transfer_engine *engine);
/* The thread that looks whether a metadata server has lost us. */
int mc_transfer_names_start(struct mc_transfer_engine *engine);
void mc_transfer_names_stop(struct mc_transfer_engine *engine);

/* ---- ask.c: the asking half of the handshake ---- */
/* The one line of the log about a target that was not reached, unless that is written already: then the code is
 * METADATA, MALFORMED_JSON or NOT_IMPLEMENTED. Returns rc. */
int mc_ask_failed(const char *target, int rc);
/* Where the handshakes of a target go, "host:port". */
int mc_ask_address(struct mc_transfer_engine *engine, const char *target, uint64_t deadline_ns, char *address,
                   size_t size);
/* The same of a peer; when the metadata server does not say, what it said before, if the peer itself says that it is
 * the engine that we know. */
int mc_ask_peer_address(struct mc_transfer_engine *engine, const char *target, uint64_t deadline_ns, char *address,
                        size_t size);
int mc_ask(struct mc_transfer_engine *engine, const char *address, enum mc_handshake_type type, struct mc_span json,
           uint64_t deadline_ns, struct mc_buffer *reply);
/* Asked once a second while no answer comes; true: one is of no use any more, and the question ends. */
struct mc_ask_watch {
    bool (*is_useless)(void *context);
    void *context;
    uint64_t next_ns; /* of ask.c */
};
int mc_ask_watched(struct mc_transfer_engine *engine, const char *address, enum mc_handshake_type type,
                   struct mc_span json, uint64_t deadline_ns, struct mc_ask_watch *watch, struct mc_buffer *reply);
/* The same question on a connection that stays. All end early when the engine is being closed. */
int mc_ask_on(struct mc_transfer_engine *engine, int fd, enum mc_handshake_type type, struct mc_span json,
              uint64_t deadline_ns, struct mc_buffer *reply);
/* The target's document; *address is where it was asked ("" when it came from the metadata server). While that server
 * does not answer, a peer that is known is asked itself. */
int mc_ask_document(struct mc_transfer_engine *engine, const char *target, uint64_t deadline_ns,
                    struct mc_document *document, char *address, size_t size);

/* ---- peer.c ---- */
/* The peer of that name, with a reference; its document is fetched unless it is known. */
int mc_peer_get(struct mc_transfer_engine *engine, const char *name, uint64_t deadline_ns, struct mc_peer **peer);
/* The same without asking, if anything is known of it, even if that is doubtful; then mc_peer_be_sure asks. */
int mc_peer_get_known(struct mc_transfer_engine *engine, const char *name, uint64_t deadline_ns, struct mc_peer **peer);
int mc_peer_be_sure(struct mc_peer *peer, uint64_t deadline_ns);
void mc_peer_release(struct mc_peer *peer);
bool mc_peer_is_name(const char *name); /* NULL is none */
/* Its lanes are closed and its document is asked for again when it is needed. */
void mc_peer_forget(struct mc_transfer_engine *engine, const char *name);
/* Fetches the document anew; a peer that is another process now loses its lanes. 1: it is. */
int mc_peer_refresh(struct mc_peer *peer, uint64_t deadline_ns);
/* Where the handshakes of a known peer went, and which engine it was. False: it is not known. */
bool mc_peer_remembered(struct mc_transfer_engine *engine, const char *name, char *address, size_t size,
                        struct mc_id *id);
/* An idle lane, or a new one. */
int mc_peer_take_lane(struct mc_peer *peer, uint64_t deadline_ns, struct mc_lane **lane);
void mc_peer_give_lane(struct mc_peer *peer, struct mc_lane *lane);
void mc_lane_abort(struct mc_lane *lane);
/* Closes the idle lanes: one of them was broken. */
void mc_peer_drop_lanes(struct mc_peer *peer);
/* Ends links that rest, of peers that have ended or are leaving. Called now and then on the service thread. */
void mc_peers_hear(struct mc_transfer_engine *engine);
/* Closes what has not been used for long. Called now and then on the service thread. */
void mc_peers_tidy(struct mc_transfer_engine *engine);
/* Is no call and no batch of ours under way? engine->lock is held. */
bool mc_peers_are_idle(const struct mc_transfer_engine *engine);
void mc_peers_free(struct mc_transfer_engine *engine);

/* ---- rdma_lane.c ---- */
/* NULL: libibverbs. Tests put a table of their own here. */
extern const struct mc_verbs *mc_transfer_verbs;
/* Opens the devices that the configuration names; as mc_rdma_open. */
int mc_rdma_start(const char *device_name, const char *matrix, struct mc_rdma **rdma);
/* What peers may reach of a region by RDMA; blocks while pages are pinned. location "" or "*": found out. NULL:
 * nothing. */
struct mc_rdma_memory *mc_rdma_take_in(struct mc_rdma *rdma, uint64_t address, uint64_t length,
                                       struct mc_gpu_place place, const char *location);
/* The whole pages that hold a range. False: they go beyond the address space. */
bool mc_rdma_whole_pages(uint64_t address, uint64_t length, uint64_t page, uint64_t *from, uint64_t *size);
/* 0 and a link that is ready; 1: not by this path now. */
int mc_rdma_lane_take(struct mc_peer *peer, const struct mc_rdma_remote *remote, uint64_t deadline_ns,
                      struct mc_rdma_lane **lane);
void mc_rdma_lane_give(struct mc_peer *peer, struct mc_rdma_lane *lane);
/* Ends it. is_unsure: WRITEs of it may be under way; it is cut before anything else goes to that peer. */
void mc_rdma_lane_end(struct mc_peer *peer, struct mc_rdma_lane *lane, bool is_unsure);
/* Has the peer, or its half of the link, ended? Also hears that the peer is leaving. */
bool mc_rdma_lane_has_ended(struct mc_rdma_lane *lane);
/* Waits until what was cut off can arrive no more. 0, or TIMEOUT. */
int mc_rdma_settle(struct mc_peer *peer, uint64_t deadline_ns);
/* RDMA to this peer has failed: not again for a while. */
void mc_rdma_pause(struct mc_peer *peer, const char *why);
/* With the peer's lock: puts those that are idle before *useless, to be freed without it. */
void mc_rdma_lanes_idle(struct mc_peer *peer, uint64_t idle_ms, struct mc_rdma_lane **useless);
/* The same with those that were cut off. */
void mc_rdma_lanes_uncut(struct mc_peer *peer, struct mc_rdma_lane **useless);
void mc_rdma_lanes_free(struct mc_rdma_lane *lanes);

/* ---- settle.c ---- */
uint64_t mc_settle_number(void); /* for a new connection */
/* That connection was given up, and a write of it may still arrive. 0: it has no number. */
void mc_settle_note(struct mc_peer *peer, uint64_t number, uint32_t incarnation);
/* The same of a lane, which is not the caller's any more. is_failed: our own kernel has given it up. */
void mc_settle_give_up(struct mc_peer *peer, struct mc_lane *lane, bool is_failed);
/* Closes those of which nothing can arrive any more. The peer's lock is held. */
void mc_settle_tidy(struct mc_peer *peer);
/* Asks the peer to cut them. 0: they are; 1: another process has the name; or negative. */
int mc_settle_cut(struct mc_peer *peer, const uint64_t *numbers, size_t count, uint64_t deadline_ns);
/* Another process has the name. The peer's lock is held. */
void mc_settle_forget(struct mc_peer *peer);
/* Until nothing that was given up can arrive any more. 0, TIMEOUT, SOCKET. */
int mc_settle(struct mc_peer *peer, uint64_t deadline_ns);

/* ---- run.c, run_tcp.c, host_open.c, run_rdma.c, run_staged.c ----
 * Codes are those of mc_transfer_run, and MC_TRANSFER_ERR_TIMEOUT. */
/* With a parking none of the items is of length zero. */
int mc_run(struct mc_peer *peer, enum mc_transfer_opcode opcode, const struct mc_transfer_item *items, size_t count,
           uint64_t deadline_ns, struct mc_parking *parking);
#define MC_RUN_PARKED 3 /* of a call with a parking: it goes on where it was when it is called again */
/* items: none of length zero; with a parking they stay where they are until it ends. parking NULL: it keeps its thread.
 */
int mc_run_tcp(struct mc_peer *peer, enum mc_transfer_opcode opcode, const struct mc_transfer_item *items, size_t count,
               uint64_t deadline_ns, struct mc_parking *parking);
/* 1: this path cannot be used; nothing is being copied. 2: the same, because the peer's process has ended. */
int mc_run_host(struct mc_peer *peer, enum mc_transfer_opcode opcode, const struct mc_transfer_item *items,
                size_t count, uint64_t deadline_ns);
/* 1: this path cannot be used (any more), and nothing of it is under way. */
int mc_run_rdma(struct mc_peer *peer, enum mc_transfer_opcode opcode, const struct mc_transfer_item *items,
                size_t count, uint64_t deadline_ns);
/* Is all local memory registered at RDMA devices? */
bool mc_run_is_registered(struct mc_transfer_engine *engine, const struct mc_transfer_item *items, size_t count);
/* Over host, rdma or tcp, whichever works first; *path says which. is_staged: the local memory is ours, which no RDMA
 * device knows. */
int mc_run_far(struct mc_peer *peer, enum mc_transfer_opcode opcode, const struct mc_transfer_item *items, size_t count,
               bool is_staged, uint64_t deadline_ns, struct mc_parking *parking, int *path);
/* run_staged.c. Does any item's local memory belong to a device? *device: to which. */
bool mc_run_has_devices(const struct mc_transfer_item *items, size_t count, int *device);
/* By RDMA straight from and to the device where that is possible, else as mc_run_far, through memory of ours. */
int mc_run_staged(struct mc_peer *peer, enum mc_transfer_opcode opcode, const struct mc_transfer_item *items,
                  size_t count, int device, uint64_t deadline_ns, int *path);
/* Within the process, between memory of any kind. */
int mc_run_local_devices(struct mc_transfer_engine *owner, enum mc_transfer_opcode opcode,
                         const struct mc_transfer_item *items, size_t count, uint64_t deadline_ns);
uint64_t mc_run_deadline(const struct mc_transfer_engine *engine, const struct mc_transfer_item *items, size_t count);
/* 0, or INVALID_ARGUMENT: a range that no address space holds. */
int mc_run_check(const struct mc_transfer_item *items, size_t count);
bool mc_run_is_note(const struct mc_transfer_note *note); /* NULL is one */

/* ---- host_open.c, host_serve.c: the path within one machine ---- */
struct mc_host_trouble { /* where opening failed, and errno; 0: the peer did not answer as it should */
    const char *step;
    int error;
};
/* With a reference; NULL: not possible. */
struct mc_host_path *mc_host_path_open(const char *unix_name, struct mc_id owner, struct mc_host_trouble *trouble);
struct mc_host_path *mc_host_path_get(struct mc_peer *peer); /* with a reference; NULL: not now */
void mc_host_path_release(struct mc_host_path *path);
/* The peer's lock is held. */
void mc_host_path_drop(struct mc_peer *peer);
/* Drops it if the peer's process has ended; true: it has. The peer's lock is held. */
bool mc_host_path_tidy(struct mc_peer *peer);

/* Has the peer's process ended, or hung up? */
bool mc_host_has_ended(const struct mc_host_path *path);

/* ---- host_map.c: maps of memory that peers of this machine have allocated with their engine. path->lock is
 * held ---- */
/* The bytes of a region's memory, in use until released. NULL: it cannot be mapped. */
struct mc_host_map *mc_host_map_hold(struct mc_host_path *path, const struct mc_host_known *known, uint8_t **bytes);
void mc_host_map_release(struct mc_host_map *map);
/* Lets go of those whose region is gone. */
void mc_host_maps_tidy(struct mc_host_path *path);
/* Nobody uses the path any more. */
void mc_host_maps_free(struct mc_host_path *path);

int mc_host_table_create(struct mc_transfer_engine *engine);
void mc_host_table_destroy(struct mc_transfer_engine *engine);

/* ---- background.c ---- */
void mc_background_stop(struct mc_transfer_engine *engine);

/* ---- service.c: the thread that serves peers ---- */
/* The listeners are the service's from then on, also when it fails. unix_listener -1: none. */
int mc_service_start(struct mc_transfer_engine *engine, int rpc_listener, int data_listener, int unix_listener);
void mc_service_stop(struct mc_transfer_engine *engine);
/* Tells peers that have links to us that we are leaving. engine->heard_links of them will end theirs. */
void mc_service_leave(struct mc_transfer_engine *engine);
/* Hangs up on everybody who holds a region that is leaving. */
void mc_service_cut(struct mc_transfer_engine *engine);
/* Does an initiator of this machine say that it copies into or out of that slot? */
bool mc_service_is_intended(struct mc_transfer_engine *engine, uint32_t slot);

#endif
