/* SPDX-License-Identifier: Apache-2.0
 *
 * The original transfer engine's C interface, for programs that were written for it: the same names, signatures and
 * layouts over libmooncake's engine (mooncake_engine.h, which says more and can more). Link with
 * libtransfer_engine, as with the original, or with libmooncake.
 *
 * Texts are copied before a call returns. Engines, batch ids and segment ids that are not valid (any more), and NULL
 * where something is needed, are errors and touch nothing; handles are numbers, never pointers. Every function may be
 * called from any thread. After fork() the child's handles are not valid.
 *
 * Two kinds of codes, as in the original: submitTransfer*, getTransferStatus and freeBatchID return 0 or a positive
 * TRANSFER_STATUS_CODE_...; all others 0 or a negative enum mc_transfer_error of mooncake_engine.h (the same numbers
 * negated).
 *
 * Where it differs from the original: a batch id that was freed is recognised; tasks of one submitTransfer that have
 * the same direction and segment end together; a transfer ends by its deadline (STATUS_FAILED) and touches no memory
 * after; a note goes out by itself when its batch is of one segment and direction; of one that spans several, when
 * getTransferStatus first sees all of it completed. */
#ifndef TRANSFER_ENGINE_C
#define TRANSFER_ENGINE_C

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MC_ORIGINAL_API __attribute__((visibility("default")))

#define segment_handle_t int32_t
#define segment_id_t int32_t
#define batch_id_t uint64_t
#define LOCAL_SEGMENT (0) /* the engine's own memory */
#define INVALID_BATCH UINT64_MAX

#define OPCODE_READ (0)  /* from the segment into source */
#define OPCODE_WRITE (1) /* from source into the segment */

struct transfer_request {
    int opcode;
    void *source;
    segment_id_t target_id;
    uint64_t target_offset; /* the address in the peer's address space */
    uint64_t length;
};
typedef struct transfer_request transfer_request_t;

struct notify_msg {
    char *name, *msg;
};
typedef struct notify_msg notify_msg_t;

#define STATUS_WAITING (0) /* under way */
#define STATUS_PENDING (1)
#define STATUS_INVALID (2)
#define STATUS_CANCELED (3)
#define STATUS_COMPLETED (4)
#define STATUS_TIMEOUT (5) /* never given: what is late has failed, and callers look for FAILED alone */
#define STATUS_FAILED (6)

struct transfer_status {
    int status;
    uint64_t transferred_bytes; /* of a completed task: its length; else 0 */
};
typedef struct transfer_status transfer_status_t;

struct segment_desc { /* no function takes it; here because programs may name it */
    int type;
    union {
        struct {
            void *addr;
            uint64_t size;
            const char *location;
        } rdma;
        struct {
            const char *file_path, *subsystem_name, *proto, *ip;
            uint64_t port;
        } nvmeof;
    } desc_;
};
typedef struct segment_desc segment_desc_t;

struct buffer_entry {
    void *addr;
    size_t length;
};
typedef struct buffer_entry buffer_entry_t;

typedef void *transfer_engine_t;
typedef void *transport_t;

#define TRANSFER_STATUS_CODE_INVALID_ARGUMENT 1
#define TRANSFER_STATUS_CODE_TOO_MANY_REQUESTS 2
#define TRANSFER_STATUS_CODE_BATCH_BUSY 4
#define TRANSFER_STATUS_CODE_MEMORY 302

/* An engine, or NULL. ip_or_host_name and rpc_port have no effect. auto_discover: as installTransport("rdma"), where
 * there are devices; the paths within a machine and tcp are found in every case. */
MC_ORIGINAL_API transfer_engine_t createTransferEngine(const char *metadata_conn_string, const char *local_server_name,
                                                       const char *ip_or_host_name, uint64_t rpc_port,
                                                       int auto_discover);
/* Waits for calls under way; ends transfers; takes the name back from the metadata server. */
MC_ORIGINAL_API void destroyTransferEngine(transfer_engine_t engine);
MC_ORIGINAL_API int discoverTopology(transfer_engine_t engine);
/* Writes "host:port", by which P2PHANDSHAKE peers open this engine's segment. -1: it does not fit. */
MC_ORIGINAL_API int getLocalIpAndPort(transfer_engine_t engine, char *buf_out, size_t buf_len);

/* "tcp" is always there, and so are the paths within a machine: a value that is not NULL. "rdma": opens the devices,
 * those that args[0] names if it is a priority matrix, {"cpu:0": [["mlx5_0"], ["mlx5_1"]]} (args, args[0] NULL: all),
 * and registers there what is registered; NULL when there is none. What is installed stays as it is. Others: NULL. */
MC_ORIGINAL_API transport_t installTransport(transfer_engine_t engine, const char *proto, void **args);
MC_ORIGINAL_API int uninstallTransport(transfer_engine_t engine, const char *proto); /* no effect; 0 */

/* An id from 1 on, for one name always the same; -1: the peer is unknown or cannot be reached. */
MC_ORIGINAL_API segment_id_t openSegment(transfer_engine_t engine, const char *segment_name);
/* The same after forgetting what was known of it. */
MC_ORIGINAL_API segment_id_t openSegmentNoCache(transfer_engine_t engine, const char *segment_name);
/* Gives idle connections back; the id stays good. */
MC_ORIGINAL_API int closeSegment(transfer_engine_t engine, segment_id_t segment_id);
MC_ORIGINAL_API int removeLocalSegment(transfer_engine_t engine, const char *segment_name);
/* All that is known of peers is asked for again when it is needed. */
MC_ORIGINAL_API int syncSegmentCache(transfer_engine_t engine);

/* location has no effect. Memory that is not remote_accessible cannot be reached by peers. */
MC_ORIGINAL_API int registerLocalMemory(transfer_engine_t engine, void *addr, size_t length, const char *location,
                                        int remote_accessible);
MC_ORIGINAL_API int unregisterLocalMemory(transfer_engine_t engine, void *addr);
/* All or none. */
MC_ORIGINAL_API int registerLocalMemoryBatch(transfer_engine_t engine, buffer_entry_t *buffer_list, size_t buffer_len,
                                             const char *location);
/* Goes on after an error and returns the first. */
MC_ORIGINAL_API int unregisterLocalMemoryBatch(transfer_engine_t engine, void **addr_list, size_t addr_len);

/* An id for batch_size tasks, to be freed; INVALID_BATCH. */
MC_ORIGINAL_API batch_id_t allocateBatchID(transfer_engine_t engine, size_t batch_size);
/* Adds tasks: all or none. 0, also when a peer cannot be reached: then its tasks have failed. */
MC_ORIGINAL_API int submitTransfer(transfer_engine_t engine, batch_id_t batch_id, struct transfer_request *entries,
                                   size_t count);
/* And sends a note to the first entry's peer after all of the batch has been moved; one note for a batch. As in the
 * original a note that the peer does not take (it has ended, or 65,536 wait there for getNotifsFromEngine) changes no
 * status: the bytes have been moved, and our log says that the note was not taken. So who waits for a note needs a
 * limit of time. */
MC_ORIGINAL_API int submitTransferWithNotify(transfer_engine_t engine, batch_id_t batch_id,
                                             struct transfer_request *entries, size_t count, notify_msg_t notify_msg);
MC_ORIGINAL_API int getTransferStatus(transfer_engine_t engine, batch_id_t batch_id, size_t task_id,
                                      struct transfer_status *status);
/* TRANSFER_STATUS_CODE_BATCH_BUSY while a task is under way. */
MC_ORIGINAL_API int freeBatchID(transfer_engine_t engine, batch_id_t batch_id);

/* Takes the notes that have come: an array for freeNotifsMsgBuf; NULL, and *size 0, when there are none. */
MC_ORIGINAL_API notify_msg_t *getNotifsFromEngine(transfer_engine_t engine, int *size);
MC_ORIGINAL_API int freeNotifsMsgBuf(notify_msg_t *msg, int size);
MC_ORIGINAL_API int genNotifyInEngine(transfer_engine_t engine, uint64_t target_id, notify_msg_t notify_msg);

MC_ORIGINAL_API int warmupEfaSegment(transfer_engine_t engine, const char *segment_name); /* no EFA here: nothing, 0 */

/* As mc_transfer_drain_on_signals. */
MC_ORIGINAL_API void enableGracefulShutdown(transfer_engine_t engine);
/* RDMA devices, ports, peers and the path to each: lines to be read, cut where they do not fit, or JSON
 * (mc_transfer_links), which is never cut: -1 when it does not fit. */
MC_ORIGINAL_API int showLinks(transfer_engine_t engine, char *buf_out, size_t buf_len, int json);

struct nic_load_stat {
    char device_name[64];
    uint64_t inflight_bytes;
    double ewma_bandwidth_bps;
};
typedef struct nic_load_stat nic_load_stat_t;
/* Sets *count, how many there were room for, to how many there are: none, as with the original's engine unless
 * MC_USE_TENT is set. What each path has moved is in showLinks. 0; -1: NULL. */
MC_ORIGINAL_API int getNicLoadStats(transfer_engine_t engine, nic_load_stat_t *stats, size_t *count);

#ifdef __cplusplus
}
#endif
#endif
