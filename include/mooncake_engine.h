/* SPDX-License-Identifier: Apache-2.0
 *
 * libmooncake: the transfer engine, which moves bytes between memory that two processes have registered. This header is
 * the manual; `mooncake.engine` of Python is a thin layer over it.
 *
 * What it promises
 *   - A transfer ends exactly once and by its deadline: 30 s (MC_TRANSFER_TIMEOUT, seconds, at least 5) plus 1 ns per
 *     byte. After that nothing of the library touches the caller's memory for it any more. The time of a batch in the
 *     background begins when its peer's earlier ones leave room for it, unless that peer is silent.
 *   - With MC_TE_CHECKSUM=on, or sampled (docs/transfer.md), bytes that are not the same at both ends fail a transfer.
 *   - Result 0 of a write means that every byte lies in the peer's memory (of an old peer, which speaks the first
 *     version of the protocol: that every byte was sent). After a failure either side's target may hold anything.
 *   - A peer can reach registered memory only, and no more of it once mc_transfer_unregister has returned 0.
 *   - A peer that is gone or stopped never blocks transfers to others. (Nor does it block who submits to it, once it
 *     is known: but a call that names a peer for the first time looks it up, as does one after an hour of rest.)
 *
 * Words: an engine is named by its session, "host:port" with P2PHANDSHAKE, else by its local_name. Addresses of a
 * peer's memory are the peer's own (virtual) addresses. Units: bytes. Threads: every function may be called from any
 * thread at any time, but for mc_transfer_close, which must be the last call on its engine. Fork: in the child every
 * call on an engine of the parent fails with MC_TRANSFER_ERR_INVALID_ARGUMENT and touches nothing. Errors: 0 or a count
 * on success, else a negative enum mc_transfer_error; one log line says why. */
#ifndef MOONCAKE_ENGINE_H
#define MOONCAKE_ENGINE_H

#include "mooncake.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MC_TRANSFER_ITEMS_MAX (1u << 20)    /* items of one batch, ranges of one registration */
#define MC_TRANSFER_BATCHES_MAX (1u << 16)  /* batches that were submitted and not yet asked to their end */
#define MC_TRANSFER_DRAIN_MS 5000u          /* what is under way has so long to end, once a signal has come */
#define MC_TRANSFER_NOTES_MAX (1u << 16)    /* notes that wait for mc_transfer_take_note; further ones are refused, */
#define MC_TRANSFER_NOTES_BYTES (64u << 20) /* and so are those beyond so many bytes; of one address three quarters */

/* Name, value, meaning. The values are those of the original's engine. */
#define MC_TRANSFER_ERROR_MAP(X)                                                                                       \
    X(INVALID_ARGUMENT, -1, "an argument is not valid, the transfer failed, or the engine is not usable")              \
    X(TIMEOUT, -2, "the deadline passed")                                                                              \
    X(ADDRESS_NOT_REGISTERED, -3, "no registered memory begins at this address")                                       \
    X(BATCH_BUSY, -4, "memory is still in use by a transfer of a peer that does not move")                             \
    X(ADDRESS_OVERLAPPED, -7, "the memory overlaps with memory that is registered")                                    \
    X(DNS, -101, "a host name cannot be resolved")                                                                     \
    X(SOCKET, -102, "the peer cannot be reached")                                                                      \
    X(MALFORMED_JSON, -103, "a peer or the metadata server sent a document that makes no sense")                       \
    X(REJECT_HANDSHAKE, -104, "the peer refused")                                                                      \
    X(METADATA, -200, "the metadata server does not know the name, or does not answer")                                \
    X(MEMORY, -302, "out of memory, or a limit of this header")                                                        \
    X(NOT_IMPLEMENTED, -303, "not built yet")

enum mc_transfer_error {
#define MC_TRANSFER_ERROR_ENUM(name, value, text) MC_TRANSFER_ERR_##name = (value),
    MC_TRANSFER_ERROR_MAP(MC_TRANSFER_ERROR_ENUM)
#undef MC_TRANSFER_ERROR_ENUM
};

/* What it means. Static storage. */
MC_API const char *mc_transfer_error_text(int code);

enum mc_transfer_opcode {
    MC_TRANSFER_READ = 0, /* from the peer's memory to ours */
    MC_TRANSFER_WRITE = 1 /* from ours to the peer's */
};

struct mc_transfer_engine;

/* Strings are copied by mc_transfer_open; NULL is "". */
struct mc_transfer_config {
    const char *local_name; /* P2PHANDSHAKE: the host by which peers reach this machine. Else the engine's name */
    /* "P2PHANDSHAKE", "http://host:port/metadata", "https://host:port/metadata" (MC_METADATA_TLS_CA_CERT),
     * "etcd://host:port;host:port" (also without its scheme; MC_ETCD_TLS_CA_CERT, MC_ETCD_CONF_FILE),
     * "redis://host:port" (MC_REDIS_USERNAME, MC_REDIS_PASSWORD, MC_REDIS_DB_INDEX) */
    const char *metadata_server;
    const char *protocol; /* "rdma" or "tcp": tcp, and RDMA wherever both sides have it (tcp: see MC_RDMA_WITH_TCP);
                           * "": tcp; else, but for "xgmi", it is said, and taken for "tcp" */
    /* RDMA devices to use, separated by commas; "": all. MC_TE_FILTERS and MC_CUSTOM_TOPO_JSON, too, say which */
    const char *device_name;
};

/* Starts an engine: listens in MC_MIN_RPC_PORT..MC_MAX_RPC_PORT (15000..17000) and publishes its name. On success
 * *engine is the caller's. */
MC_API int mc_transfer_open(const struct mc_transfer_config *config, struct mc_transfer_engine **engine);
/* Ends transfers under way (they fail), takes the name back from the metadata server, frees. NULL is allowed. */
MC_API void mc_transfer_close(struct mc_transfer_engine *engine);
/* For the end of a process that does not close: takes the names of all its engines back from their metadata servers. */
MC_API void mc_transfer_withdraw_all(void);
/* From now on SIGTERM and SIGINT drain this engine: its name is taken back from the metadata server, peers can begin
 * nothing any more, and what is under way, its own transfers and theirs, has MC_TRANSFER_DRAIN_MS to end. Then the
 * process exits with 128 plus the signal's number; or, if the program had a handler when this was first called, that
 * handler gets the signal, and the engine stays as it is: to be closed. The program's threads go on meanwhile, and
 * interrupted calls as after any handler. A second signal ends the process at once. A signal that was ignored stays so,
 * and a handler that is installed later takes the place of this. Closed engines are left out. A forked child gets the
 * signal as before. Names are taken back by exit(), too. 0; INVALID_ARGUMENT, MEMORY. */
MC_API int mc_transfer_drain_on_signals(struct mc_transfer_engine *engine);

/* The port of handshakes; with P2PHANDSHAKE "host:port" is what peers call this engine. */
MC_API uint16_t mc_transfer_rpc_port(const struct mc_transfer_engine *engine);
/* The engine's name, and the host by which others reach it; they live as long as the engine. */
MC_API const char *mc_transfer_name(const struct mc_transfer_engine *engine);
MC_API const char *mc_transfer_host(const struct mc_transfer_engine *engine);

struct mc_transfer_range {
    uint64_t address, length;
};
/* Lets peers read and write these ranges, of the host's or a GPU's memory: all or none. INVALID_ARGUMENT: a length of
 * zero, or beyond the address space. ADDRESS_OVERLAPPED: with each other or with what is registered; adjacent ones are
 * fine. METADATA: the metadata server did not take the new document, so nothing is registered. While registrations
 * follow each other closely only the first ones wait for that server; it is told of the others together, within about
 * 0.2 s, and again until it takes it. Peers need not wait for that: they can use the memory at once; only
 * mc_transfer_segment_ranges shows it so much later. */
MC_API int mc_transfer_register(struct mc_transfer_engine *engine, const struct mc_transfer_range *ranges,
                                size_t count);
/* The same of memory that lies at a location of the original's form, "cpu:0" or "cuda:1": RDMA devices near it are used
 * before others. NULL, "" or "*": it is found out, by the first page of each. One that nobody knows: all are alike. */
MC_API int mc_transfer_register_at(struct mc_transfer_engine *engine, const struct mc_transfer_range *ranges,
                                   size_t count, const char *location);
/* Takes them back; addresses are where ranges begin. Goes on after an error and returns the first. Waits until no
 * transfer touches the memory: BATCH_BUSY after 10 s, which only a peer on this machine that was stopped in mid-copy
 * can cause, or at once, when an RDMA device does not let go of it; that memory must not be freed, no new transfer over
 * tcp or within the machine reaches it, and asking again tries and waits again. */
MC_API int mc_transfer_unregister(struct mc_transfer_engine *engine, const uint64_t *addresses, size_t count);

/* Memory that the library allocates and registers. Peers of this machine map it: their copies need no system call, and
 * half the time. A forked child shares it. NULL: out of memory. */
MC_API void *mc_transfer_allocate(struct mc_transfer_engine *engine, size_t length);
MC_API int mc_transfer_free(struct mc_transfer_engine *engine, void *memory);
/* Does the range lie in one registered piece of memory of this engine? */
MC_API bool mc_transfer_contains(struct mc_transfer_engine *engine, uint64_t address, uint64_t length);

struct mc_transfer_item {
    void *local;     /* need not be registered; must live until the transfer has ended; may be a GPU's memory (CUDA) */
    uint64_t remote; /* in the peer's address space, inside one registered range; may be the peer's GPU's memory */
    uint64_t length; /* zero: nothing to do */
};
struct mc_transfer_note { /* texts end with a zero */
    const char *name, *message;
};

/* Moves a batch on the calling thread. 0, or negative: then any of the items may have been moved or not. note (may be
 * NULL) is sent to the peer after all has been moved; if that fails only a log line says so. */
MC_API int mc_transfer_run(struct mc_transfer_engine *engine, const char *target, enum mc_transfer_opcode opcode,
                           const struct mc_transfer_item *items, size_t count, const struct mc_transfer_note *note);
/* The same in the background; items are copied. The id of the batch (> 0), or negative when the peer is named for the
 * first time and cannot be reached, or too much is under way. An id is to be asked to its end once. */
MC_API int64_t mc_transfer_submit(struct mc_transfer_engine *engine, const char *target, enum mc_transfer_opcode opcode,
                                  const struct mc_transfer_item *items, size_t count,
                                  const struct mc_transfer_note *note);
/* 0: under way. 1: every item has been moved. INVALID_ARGUMENT: failed, or no such batch. TIMEOUT. What is not 0 ends
 * the id. */
MC_API int mc_transfer_status(struct mc_transfer_engine *engine, int64_t id);
/* Waits for the end of all of them (each has its deadline). 0 when all were moved, else the first error. Ends the ids.
 */
MC_API int mc_transfer_wait(struct mc_transfer_engine *engine, const int64_t *ids, size_t count);

/* Is the peer there? 0, SOCKET, METADATA ... within MC_HANDSHAKE_CONNECT_TIMEOUT (5 s). All else goes on without the
 * metadata server with peers that it has told of; this asks it. */
MC_API int mc_transfer_probe(struct mc_transfer_engine *engine, const char *target);
MC_API int mc_transfer_notify(struct mc_transfer_engine *engine, const char *target,
                              const struct mc_transfer_note *note);
/* Takes the oldest note that peers have sent. 1, and both texts are the caller's to free(); 0: there is none. */
MC_API int mc_transfer_take_note(struct mc_transfer_engine *engine, char **name, char **message);

/* Segments: what peers have registered. Every call that names a peer looks it up by itself the first time; open does it
 * before, so that the first transfer finds all ready: 0 or negative. */
MC_API int mc_transfer_open_segment(struct mc_transfer_engine *engine, const char *target);
/* Forgets what is known of the peer and closes idle connections to it; what is under way goes on. 0. */
MC_API int mc_transfer_close_segment(struct mc_transfer_engine *engine, const char *target);
/* Asks the peer for its ranges: how many there are, of which the first `capacity` are written; or negative. */
MC_API int64_t mc_transfer_segment_ranges(struct mc_transfer_engine *engine, const char *target,
                                          struct mc_transfer_range *ranges, size_t capacity);
/* Where the first range that the peer has registered begins; 0 when it has none or cannot be reached. */
MC_API uint64_t mc_transfer_first_address(struct mc_transfer_engine *engine, const char *target);
/* The engine, what it has moved by each path, its RDMA devices ("local_nics" and "topology", as the original lists
 * them) and the peers it knows with the path that is used to each ("local", "host", "rdma", "tcp"; "" before the first
 * transfer), as JSON; or as lines to be read. The text is the caller's to free(); NULL: the engine is not usable. */
MC_API char *mc_transfer_links(struct mc_transfer_engine *engine);
MC_API char *mc_transfer_links_text(struct mc_transfer_engine *engine);

/* Which RDMA devices are near which memory, as JSON of the original's form; filter: names of devices separated by
 * commas, NULL or "" for all. The text is the caller's to free(). */
MC_API char *mc_transfer_topology(const char *filter);

#define MC_TRANSFER_NICS_MAX 16u
struct mc_transfer_nic_load { /* of one RDMA device of this engine, by its own transfers */
    char device[64];
    uint64_t inflight_bytes; /* under way now */
    uint64_t moved_bytes;    /* since it was opened */
};
/* How many devices this engine uses, of which the first `capacity` are written; or negative. */
MC_API int mc_transfer_nic_loads(struct mc_transfer_engine *engine, struct mc_transfer_nic_load *loads,
                                 size_t capacity);

enum { MC_TRANSFER_PATH_LOCAL, MC_TRANSFER_PATH_HOST, MC_TRANSFER_PATH_TCP, MC_TRANSFER_PATH_RDMA, MC_TRANSFER_PATHS };
struct mc_transfer_counters {          /* since the engine was opened */
    uint64_t bytes[MC_TRANSFER_PATHS]; /* moved by this engine's calls, by path: same process, same host, tcp, rdma */
    uint64_t items[MC_TRANSFER_PATHS];
    uint64_t failed, timed_out;     /* batches */
    uint64_t fallbacks;             /* peers of this host that could only be reached by tcp */
    uint64_t served_bytes, refused; /* for peers over tcp; addresses that were not registered */
};
MC_API void mc_transfer_counters(struct mc_transfer_engine *engine, struct mc_transfer_counters *counters);
/* Bytes, items, errors and latencies by peer and path, as Prometheus text (docs/metrics.md); engine NULL: of all
 * engines of this process. The text is the caller's to free(); NULL: the engine is not usable. */
MC_API char *mc_transfer_metrics_text(struct mc_transfer_engine *engine);

#ifdef __cplusplus
}
#endif
#endif
