/* SPDX-License-Identifier: Apache-2.0
 *
 * libmooncake: the store client. This header is the manual.
 *
 * What it promises
 *   - A get delivers the bytes of one completed put of that key, or a negative error; never other bytes.
 *   - A put that returned 0 is readable by every client (until evicted or removed).
 *   - Every call ends by its deadline and touches the caller's memory no more after it has returned.
 *   - After a failed get the target buffers may hold anything.
 *
 * Units: sizes and offsets in bytes, times in milliseconds. Keys are bytes, 1 to MC_KEY_LENGTH_MAX, without a
 * terminator. Threads: every function may be called from any thread at any time, also on one store object;
 * mc_store_close waits for calls in progress. Fork: after fork() the child's store objects are dead: every call on them
 * returns MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS and touches nothing. Errors: 0 or a count on success, else a negative
 * enum mc_error. No function sets errno for the caller, installs a signal handler or exits.
 */
#ifndef MOONCAKE_H
#define MOONCAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MC_API __attribute__((visibility("default")))

#define MC_KEY_LENGTH_MAX 1024  /* bytes of one key */
#define MC_REPLICA_COUNT_MAX 16 /* replicas of one object */

/* Name, value, what it means and what to do. The values are those of the original's store. */
#define MC_ERROR_MAP(X)                                                                                                \
    X(INTERNAL_ERROR, -1, "internal error; please report it with the log line before it")                              \
    X(BUFFER_OVERFLOW, -10, "a buffer is too small")                                                                   \
    X(SEGMENT_NOT_FOUND, -101, "no such segment; see /get_all_segments of the master")                                 \
    X(SEGMENT_ALREADY_EXISTS, -102, "the segment is mounted already")                                                  \
    X(CLIENT_NOT_FOUND, -103, "the master does not know this client (any more); it will join again by itself")         \
    X(NO_AVAILABLE_HANDLE, -200,                                                                                       \
      "no segment has room for the object: pool full of objects in use, too small, or empty")                          \
    X(INVALID_VERSION, -300, "the peer speaks an incompatible protocol version; see its log for both versions")        \
    X(INVALID_KEY, -400, "the key is empty or longer than 1024 bytes")                                                 \
    X(WRITE_FAIL, -500, "write failed")                                                                                \
    X(INVALID_PARAMS, -600, "an argument is not valid, or the store is not set up")                                    \
    X(ILLEGAL_CLIENT, -601, "the put or segment belongs to another client")                                            \
    X(INVALID_WRITE, -700, "no write of this key is in progress")                                                      \
    X(INVALID_READ, -701, "read not possible")                                                                         \
    X(INVALID_REPLICA, -702, "the replica is not valid")                                                               \
    X(REPLICA_IS_NOT_READY, -703, "the object is still being written")                                                 \
    X(OBJECT_NOT_FOUND, -704, "no such object: never put, removed, or evicted")                                        \
    X(OBJECT_ALREADY_EXISTS, -705, "the key exists; the old value stays")                                              \
    X(OBJECT_HAS_LEASE, -706, "the object was read within the lease time; remove with force, or later")                \
    X(LEASE_EXPIRED, -707, "the lease ended before the read did")                                                      \
    X(OBJECT_HAS_REPLICATION_TASK, -708, "a copy or move of the object is running")                                    \
    X(REPLICA_NOT_FOUND, -710, "no such replica")                                                                      \
    X(REPLICA_IS_GONE, -712, "the replica was evicted or removed while it was read")                                   \
    X(TRANSFER_FAIL, -800, "bytes could not be moved to or from any replica")                                          \
    X(CHECKSUM_MISMATCH, -801, "stored bytes do not match their checksum; they were not returned")                     \
    X(RPC_FAIL, -900, "the master cannot be reached; check master_server_addr and that mooncake_master runs")          \
    X(RPC_TIMEOUT, -901, "the deadline passed")                                                                        \
    X(ETCD_OPERATION_ERROR, -1000, "etcd refused an operation")                                                        \
    X(ETCD_TRANSACTION_FAIL, -1002, "what stands in etcd is not what was expected; somebody was faster")               \
    X(UNAVAILABLE_IN_CURRENT_STATUS, -1010, "not possible now: closed, forked, or the master is not serving")          \
    X(UNAVAILABLE_IN_CURRENT_MODE, -1011, "not possible in this mode")                                                 \
    X(NOT_SUPPORTED, -1012, "not supported by this build")                                                             \
    X(FILE_NOT_FOUND, -1100, "no such file")                                                                           \
    X(FILE_OPEN_FAIL, -1101, "a file cannot be opened")                                                                \
    X(FILE_READ_FAIL, -1102, "a file cannot be read")                                                                  \
    X(FILE_WRITE_FAIL, -1103, "a file cannot be written")                                                              \
    X(TASK_NOT_FOUND, -1400, "no such task of this store, or one that ended long ago")                                 \
    /* Ours; never returned where the original has a code. */                                                          \
    X(TENANT_QUOTA_EXCEEDED, -1700, "its tenant may have no more, and nothing of its own can make room just now")      \
    X(TENANT_NOT_REGISTERED, -1701,                                                                                    \
      "its tenant has no quota, or there are too many tenants; an administrator gives one")                            \
    X(TENANT_NOT_EMPTY, -1702, "the tenant has objects")                                                               \
    X(BUSY, -1900, "overloaded; retry after a moment")                                                                 \
    X(STALE, -1901, "the generation, epoch or incarnation is older than what the peer knows")                          \
    X(PUT_IN_PROGRESS, -1902, "another writer is putting this key; retry")                                             \
    X(SPACE_SOON, -1903, "space is being freed or populated; retry")                                                   \
    X(PROTOCOL, -1904, "the peer sent something that is not our protocol")                                             \
    X(NO_MEMORY, -1905, "out of memory in this process")                                                               \
    X(OTHER_CLUSTER, -1906,                                                                                            \
      "the node holds contents of another cluster; see its log for what to do. Nothing of it was touched")             \
    X(NOT_PERMITTED, -1907,                                                                                            \
      "the peer wants a key, or one with more rights: MC_AUTH_FILE or MC_AUTH_TOKEN; see docs/security.md")            \
    X(FIRM_PIN_REFUSED, -1908,                                                                                         \
      "no more may be pinned firmly (--max_firm_pin_ratio of the master), or a node is of an earlier release")         \
    X(OBJECT_IS_PINNED, -1909, "it is pinned so that it is not evicted, and no hint ends that")

enum mc_error {
    MC_OK = 0,
#define MC_ERROR_ENUM(name, value, text) MC_ERR_##name = (value),
    MC_ERROR_MAP(MC_ERROR_ENUM)
#undef MC_ERROR_ENUM
};

/* "OBJECT_NOT_FOUND" for -704; "OK" for 0 and above; "UNKNOWN" otherwise. Static storage. */
MC_API const char *mc_error_name(int code);
/* What it means and what to do. Static storage. */
MC_API const char *mc_error_text(int code);
/* "1.2.3+c1": version of this library. Static storage. */
MC_API const char *mc_version(void);

struct mc_store; /* one member of a cluster: a client, a store node, or both */

/* Strings are copied by mc_store_open. A zeroed struct plus local_hostname and master_server_addr is valid. */
struct mc_store_config {
    /* "host" or "host:port", under which others reach our segment; port 0 or none: a free one from 12300 to 14300
     * (MC_STORE_CLIENT_MIN_PORT, MC_STORE_CLIENT_MAX_PORT of the environment). */
    const char *local_hostname;
    /* Accepted for compatibility ("P2PHANDSHAKE", "http://..."); the store needs no second service. */
    const char *metadata_server;
    /* "tcp"; "rdma", which falls back to tcp with one warning where there is no device, and "efa" always; "rpc_only":
     * only asks what there is, whatever the sizes say. NULL = "tcp". */
    const char *protocol;
    /* RDMA devices to be used, separated by commas; NULL or "" = all. */
    const char *rdma_devices;
    /* "host:port", or "etcd://host:port,..." or "k8s://namespace/lease" (whoever leads); NULL = "127.0.0.1:50051". */
    const char *master_server_addr;
    /* Paths that may be used, separated by commas: "local,shm,rdma,tcp"; NULL = all. Environment MC_PATHS overrides. */
    const char *paths;
    /* Bytes lent to the pool; 0 = pure client. */
    uint64_t global_segment_size;
    /* 0 = pure server: put and get are refused (-600). Otherwise only a statement: memory is taken as needed. */
    uint64_t local_buffer_size;
    /* Deadline of a call, in ms, before 1 s for each 64 MiB moved is added; 0 = MC_RPC_TIMEOUT_MS or 5000. */
    uint32_t call_timeout_ms;
    /* A directory in memory (/dev/shm/...): the segment lies in files there and outlives the process. The next store of
     * this machine with the same segment size takes it up with its objects (of several the one of its own hostname), if
     * it joins before the master gives the old one up. NULL = environment MC_DATA_DIR; "" = none. */
    const char *data_dir;
    /* With a data_dir: close drops the segment's contents, as without one. */
    bool drop_on_close;
    /* Directories on disks, absolute, separated by commas, at most 8; several processes may share one. Objects in the
     * segment are stored there too when the master says so (--enable_offload), loaded from there when they are read and
     * no longer in memory, and found again by a later store that takes the directory. "" = none; NULL = none, unless
     * the master names one (--root_fs_dir). Of a store with a segment. A directory that cannot be used is said in the
     * log, and done without. */
    const char *disk_paths;
    /* Bytes that each may take, at least 256 MiB; 0 = as the environment says (MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES
     * and others, docs/disk.md), and at most 90 % of what is free. */
    uint64_t disk_bytes;
    /* Whose objects it puts and finds, of a master with tenants (docs/security.md); NULL or "" = "default". Where there
     * are keys their tenant counts, and this is to be empty or the same. */
    const char *tenant;
    /* What its values are made with, and are good for: model, weights, format, in any words of at most 1,024 bytes.
     * What was put with one stamp is found with the same one only: with another, or without one, the key is not there,
     * and the master counts that miss as "other_stamp". Keys are 18 bytes shorter at most. NULL or "" = as
     * MC_STORE_STAMP says, or none. */
    const char *stamp;
};

/* Joins the cluster. Returns at once (the segment is populated in the background). 0, or MC_ERR_RPC_FAIL when no master
 * answers within the timeout, MC_ERR_INVALID_PARAMS, MC_ERR_INVALID_VERSION, MC_ERR_NO_MEMORY, MC_ERR_OTHER_CLUSTER. On
 * success *store is owned by the caller. */
MC_API int mc_store_open(const struct mc_store_config *config, struct mc_store **store);
/* The store is going to be closed: from now on nothing is placed in its segment, and what lies there only is stored on
 * its disks; without disks it is moved to other nodes (MC_RETIRE_DRAIN), or nothing is done. Ends after grace_ms, and
 * as soon as `stops` (may be NULL; called every 50 ms) says so. The log says how far it is, and in one line what was
 * left, and whether that is lost or stays in the files of a data_dir. 0: nothing is left, or there was nothing to do;
 * 1: something is. */
#define MC_RETIRE_DRAIN 1u
MC_API int mc_store_retire(struct mc_store *store, unsigned flags, uint64_t grace_ms, bool (*stops)(void *context),
                           void *context);
/* The store's disks leave the cluster at once: nothing is stored there or read from there any more, and what lies there
 * stays, for the next store that is opened with them. What is under way has grace_ms to end, at least 5 s. 0, also
 * without disks; MC_ERR_RPC_TIMEOUT: something has not ended, or no master answers, and it goes on by itself;
 * MC_ERR_NOT_SUPPORTED: the master is of an older release. */
MC_API int mc_store_unmount_disks(struct mc_store *store, uint64_t grace_ms);
/* Waits for calls in progress, unmounts the segment (its objects are lost, but for what lies on a disk or elsewhere,
 * too), frees. NULL is allowed. Always 0. A store with disks is retired first, for MC_EXIT_GRACE_S of the environment
 * (20 s), if it was not.
 * A segment in a data_dir is not unmounted and keeps its objects for the next store that is opened there: to the master
 * it looks like one that has stopped answering, until then. drop_on_close ends it for good. */
MC_API int mc_store_close(struct mc_store *store);

struct mc_bytes {
    const void *data;
    size_t length;
};

struct mc_replicate_config {
    uint32_t replica_count; /* wanted replicas on distinct segments, 1..MC_REPLICA_COUNT_MAX; 0 = 1; fewer is success
                               (best effort) */
    uint32_t preferred_segment_count;
    const char *const *preferred_segments; /* names (mc_store_hostname of their owner), tried first in this order */
    bool with_hard_pin;                    /* never evicted; not put beyond the master's --max_hard_pin_ratio */
    bool with_soft_pin;                    /* evicted only when nothing else can be, for soft_pin_ttl_ms */
    bool prefer_same_node;  /* after the preferred segments: all of the call in one segment, of the caller's machine if
                               there is room */
    const uint64_t *groups; /* mc_group() for each key of the call, NULL = none. A read of one object protects its
                               group, and a group is evicted together. A key stays in its group: an upsert that names
                               another one is MC_ERR_INVALID_PARAMS, one that names none keeps it. */
    uint64_t soft_pin_ttl_ms; /* of with_soft_pin, from when the value can be read; no use of it makes that longer.
                                 0 = the master's default_kv_soft_pin_ttl; more than its max_kv_soft_pin_ttl:
                                 MC_ERR_INVALID_PARAMS */
    bool drop_soft_pin;       /* an upsert without with_soft_pin keeps the pin that the value before it had, with its
                           deadline; not with this */
    uint64_t firm_pin_ms; /* not 0: a soft pin for so long, from when the put has a place, instead of soft_pin_ttl_ms,
                                 until whose end the value is not evicted, whoever needs room, and whichever master
                                 leads, while a node of this release or a later one has it. Only a part of the
                                 pool may be pinned so (--max_firm_pin_ratio): with what is beyond that it is a soft pin
                                 alone. mc_store_firm_pin_left says what there is */
    bool firm_pin_or_not; /* with firm_pin_ms: then nothing is put instead, MC_ERR_FIRM_PIN_REFUSED; and 0 says that
                                 the pin is there: of a key that exists it is MC_ERR_OBJECT_ALREADY_EXISTS, which may
                                 also be of this call. MC_ERR_NOT_SUPPORTED: the master is of an earlier release */
};
/* The number of a group's name; 0 for length 0, which is no group. */
MC_API uint64_t mc_group(const char *name, size_t length);

/* One object to put: key and its bytes, gathered from parts in order. result: 0 = stored or key existed already, else
 * negative. */
struct mc_put_item {
    struct mc_bytes key;
    const struct iovec *parts;
    size_t part_count;
    int result;
};
/* config may be NULL. Returns 0 when every result is 0, else the first negative result. Total length 0:
 * MC_ERR_INVALID_PARAMS for that item. */
MC_API int mc_store_put(struct mc_store *store, struct mc_put_item *items, size_t count,
                        const struct mc_replicate_config *config);

/* The same, but a value that the key has already is replaced: it stays readable until the new one is whole. Of several
 * upserts of a key at a time each is stored in turn. */
MC_API int mc_store_upsert(struct mc_store *store, struct mc_put_item *items, size_t count,
                           const struct mc_replicate_config *config);

/* One object to get, scattered into parts in order. result: its length in bytes (> 0), or negative.
 * parts too small for the object: MC_ERR_INVALID_PARAMS, nothing is read. */
struct mc_get_item {
    struct mc_bytes key;
    const struct iovec *parts;
    size_t part_count;
    int64_t result;
};
/* Called once for each object found when given, and again when the object was replaced, while it was read, by one of
 * another length; then the memory given before is not used any more. Returns memory of at least `length` bytes for item
 * `index`, or NULL to fail that item with MC_ERR_NO_MEMORY. Called from the calling thread. The memory is the caller's,
 * also when the get of that item then fails. */
typedef void *mc_allocate(void *context, size_t index, uint64_t length);
/* With allocate != NULL the items' parts are ignored. Returns 0 when every result is > 0, else the first negative
 * result. While no master can be reached, objects whose places this store remembers are still read, until 2 s after the
 * master's last word; longer when there is a single master and its machine refuses connections (it does not run, so
 * nobody can give the places away). The rest ends with MC_ERR_RPC_FAIL. */
MC_API int mc_store_get(struct mc_store *store, struct mc_get_item *items, size_t count, mc_allocate *allocate,
                        void *context);

/* What the calling thread's puts and gets are a part of, from now until the next call of this: a `traceparent` of W3C,
 * "00-<32 hex digits>-<16>-<2>", of which nothing is kept but a copy; NULL: of nothing. Of a context that is sampled
 * the process makes spans where its MC_TRACES asks for it, and masters and store nodes where theirs do. A text that is
 * no traceparent is as NULL, and is said in the log once. May be called before a store is opened. */
MC_API void mc_store_trace(const char *traceparent);

/* Part of one object: `size` bytes from `source_offset` of the object to `target`. result: size, or negative. */
struct mc_range_item {
    struct mc_bytes key;
    uint64_t source_offset;
    uint64_t size;
    void *target;
    int64_t result;
};
/* Beyond the object's end: MC_ERR_INVALID_PARAMS for that item. Every byte returned was verified against its block's
 * checksum. All ranges of a key in one call are of one version of it; where it is replaced faster than they can be
 * read, all of them fail with MC_ERR_REPLICA_IS_NOT_READY. */
MC_API int mc_store_get_ranges(struct mc_store *store, struct mc_range_item *items, size_t count);

/* Reading objects piece by piece. While an object is in a session it is not evicted; the session ends by itself, with
 * its protection, when nobody has read from it for 30 s, or when the master is lost. Objects may have been removed or
 * replaced by others meanwhile, as always. results[i] = 0, or as get's. A key that is in a session already starts anew.
 */
MC_API int mc_store_get_session_start(struct mc_store *store, const struct mc_bytes *keys, size_t count, int *results);
/* As mc_store_get_ranges, mostly without a question to the master; the ranges of one key stand together.
 * MC_ERR_INVALID_PARAMS for a key without a session, MC_ERR_LEASE_EXPIRED for one whose session has ended by itself. */
MC_API int mc_store_get_session_ranges(struct mc_store *store, struct mc_range_item *items, size_t count);
/* Always 0 on a store that is open, whether there were sessions or not. */
MC_API int mc_store_get_session_end(struct mc_store *store, const struct mc_bytes *keys, size_t count);

/* Putting objects together piece by piece, in memory of this process; nobody sees one before its session has ended.
 * results[i] = 0; MC_ERR_OBJECT_ALREADY_EXISTS; MC_ERR_INVALID_PARAMS for size 0 or a session that there is;
 * MC_ERR_NO_AVAILABLE_HANDLE beyond 16 GiB of sessions. config may be NULL, and is copied. */
MC_API int mc_store_put_session_start(struct mc_store *store, const struct mc_bytes *keys, const uint64_t *sizes,
                                      size_t count, const struct mc_replicate_config *config, int *results);
struct mc_put_range_item {
    struct mc_bytes key;
    uint64_t target_offset; /* in the object */
    uint64_t size;
    const void *source;
    int64_t result; /* size; MC_ERR_INVALID_PARAMS: no session, or beyond the size that it began with */
};
MC_API int mc_store_put_session_ranges(struct mc_store *store, struct mc_put_range_item *items, size_t count);
/* Puts the objects (what no range covered is zero): results as mc_store_put's; MC_ERR_INVALID_PARAMS without a session.
 * The session has ended in every case. */
MC_API int mc_store_put_session_end(struct mc_store *store, const struct mc_bytes *keys, size_t count, int *results);
/* Ends the sessions, stores nothing. */
MC_API int mc_store_put_session_revoke(struct mc_store *store, const struct mc_bytes *keys, size_t count, int *results);

/* Replicas on other segments, by name (mc_store_hostname of their owner). The value is read by this process and put
 * beside the one that there is, whose place it takes when it is whole: readers never miss it.
 *   source NULL   copy: one more replica on each target that has none yet
 *   source        move: a replica on targets[0] (target_count 1) in place of the one on source
 * MC_ERR_OBJECT_NOT_FOUND, MC_ERR_INVALID_PARAMS (no such segment, no target), MC_ERR_REPLICA_NOT_FOUND (none on
 * source), MC_ERR_NO_AVAILABLE_HANDLE (a target is full: the replica may lie elsewhere now), MC_ERR_STALE (the value
 * was replaced again and again). */
MC_API int mc_store_copy(struct mc_store *store, struct mc_bytes key, const char *source, const char *const *targets,
                         size_t target_count);
/* 0, or what mc_store_copy would refuse before it begins. */
MC_API int mc_store_copy_check(struct mc_store *store, struct mc_bytes key, const char *source,
                               const char *const *targets, size_t target_count);
/* The same in the background, one after the other. At most MC_TASKS_MAX wait (MC_ERR_BUSY), and as many that have ended
 * are remembered. What mc_store_copy_check refuses is refused at once. */
#define MC_TASKS_MAX 10000
enum mc_task_status { MC_TASK_PENDING, MC_TASK_PROCESSING, MC_TASK_FAILED, MC_TASK_SUCCESS };
struct mc_task {
    uint64_t id[2];
    bool is_move;
    enum mc_task_status status;
    int code;                        /* of mc_store_copy */
    uint64_t created_ms, updated_ms; /* since 1970 */
};
MC_API int mc_store_task_create(struct mc_store *store, struct mc_bytes key, const char *source,
                                const char *const *targets, size_t target_count, uint64_t id[2]);
/* 0, or MC_ERR_TASK_NOT_FOUND. */
MC_API int mc_store_task_query(struct mc_store *store, const uint64_t id[2], struct mc_task *task);

/* The replicas on that segment go, of every segment when it is NULL or "": objects that have others stay. results[i] =
 * 0; MC_ERR_OBJECT_NOT_FOUND; MC_ERR_OBJECT_HAS_LEASE; MC_ERR_REPLICA_NOT_FOUND: none there. */
MC_API int mc_store_replica_clear(struct mc_store *store, const struct mc_bytes *keys, size_t count,
                                  const char *segment_name, int *results);

/* Memory lent besides the segment of the store's own; it leaves with the store. id: "u64-u64". bytes: what is lent. */
#define MC_MOUNT_ID_MAX 48
#define MC_MOUNTS_MAX 64
MC_API int mc_store_mount(struct mc_store *store, uint64_t size, char id[MC_MOUNT_ID_MAX], uint64_t *bytes);
/* grace_ms > 0: it is read from so long, while nothing new is placed there, and leaves then. MC_ERR_INVALID_PARAMS for
 * one that is leaving already; MC_ERR_SEGMENT_NOT_FOUND. */
MC_API int mc_store_unmount(struct mc_store *store, const char *id, uint64_t grace_ms);

/* results[i] = 1 readable, 0 not there, negative error. Returns 0 or the error of the whole call. Takes no lease. */
MC_API int mc_store_exist(struct mc_store *store, const struct mc_bytes *keys, size_t count, int *results);
/* How many keys, from the first one on, are readable, in memory or on a disk, up to the first that is not; or the
 * negative error of the first that could not be answered. Takes no lease. */
MC_API int64_t mc_store_longest_prefix(struct mc_store *store, const struct mc_bytes *keys, size_t count);
/* What is there is pinned as config says, as if it was put now, and in no other way; without a pin in it, or NULL, what
 * it had ends. The value is read by this process and put in place of itself, as by mc_store_copy: readers never miss
 * it, and what others store meanwhile stays. One that lies on a disk alone is loaded. Other fields of config do not
 * count. results[i] = 0, MC_ERR_OBJECT_NOT_FOUND, MC_ERR_FIRM_PIN_REFUSED (firm_pin_or_not: its pin is as it was),
 * MC_ERR_INVALID_PARAMS (the pin is longer than the master allows), MC_ERR_NO_AVAILABLE_HANDLE (for a moment there are
 * two of each of its replicas, else it stays as it is), MC_ERR_REPLICA_IS_NOT_READY (by the deadline it was still being
 * put, or a node that has it was away), MC_ERR_STALE (it was replaced again and again), MC_ERR_NOT_SUPPORTED (the
 * master is of an earlier release: of all keys from there on). Returns 0 or the first error. */
MC_API int mc_store_pin(struct mc_store *store, const struct mc_bytes *keys, size_t count,
                        const struct mc_replicate_config *config, int *results);
/* results[i] = for how long it is pinned firmly yet, at least, in ms; 0: it is not, or cannot be read from memory just
 * now, or the master is of an earlier release; or negative. Where it was moved to a node of an earlier release since no
 * other was left, that ends with the master. Returns 0 or the first error. Takes no lease. */
MC_API int mc_store_firm_pin_left(struct mc_store *store, const struct mc_bytes *keys, size_t count, int64_t *results);
/* What will become of values, as their user sees it: advice. What is loaded for it comes from disks that others read,
 * 128 MiB of a node's at a time. What each promises, and what does not: docs/operations.md#hints. Any use of a value
 * ends what DROP and PAUSE have said of it. */
enum mc_hint {
    MC_HINT_DROP = 1,     /* not needed any more: its soft pin ends, and it is the next to be evicted from memory */
    MC_HINT_PAUSE = 2,    /* not needed for a while: stored on a disk soon, and once it is there the next to be evicted
                             from memory */
    MC_HINT_RESUME = 3,   /* needed soon, after a pause: as PREFETCH */
    MC_HINT_PREFETCH = 4, /* needed soon: loaded into memory if it lies on a disk alone */
};
#define MC_HINT_BEGUN 1
/* What 0 and BEGUN promise: the master does it, and has told the owners of what lies in memory, who keep it there: DROP
 * and PAUSE hold under the next master, and after a restart of a node with a data directory, until the value is used,
 * replaced or removed. An owner or master that ends in that very moment may lose it, and so do owners of an earlier
 * release: the value ages as any other then. RESUME and PREFETCH that are under way end with master or node. */
/* for_ms: of PAUSE, about how long it will last; 0 = that is not known; less than a second is not worth anything. Never
 * waits for what it has begun. results[i] = 0: it is as was said (RESUME, PREFETCH: in memory; PAUSE: or there is no
 * disk for it); MC_HINT_BEGUN: it is being loaded, or stored; MC_ERR_OBJECT_NOT_FOUND; MC_ERR_NO_AVAILABLE_HANDLE: no
 * room to load it just now, or hints load so much already; MC_ERR_OBJECT_IS_PINNED: DROP of what is pinned firmly or
 * hard; MC_ERR_REPLICA_IS_NOT_READY; MC_ERR_NOT_PERMITTED: DROP and PAUSE want the right to write, the others to read;
 * MC_ERR_NOT_SUPPORTED: the master is of an earlier release. Returns 0 or the error of the whole call. */
MC_API int mc_store_hint(struct mc_store *store, const struct mc_bytes *keys, size_t count, enum mc_hint hint,
                         uint64_t for_ms, int *results);
/* results[i] = length in bytes or negative. */
MC_API int mc_store_size(struct mc_store *store, const struct mc_bytes *keys, size_t count, int64_t *results);
/* results[i] = 0, -704 absent, -706 leased (without force), -703 being written. Answered when no crash can bring the
 * object back: right after a new master's start, or while it takes in what a store node holds, that may take up to 3 s
 * or as long as the taking in; then a call with a shorter deadline ends with MC_ERR_RPC_TIMEOUT. The same holds for the
 * two removals below. */
MC_API int mc_store_remove(struct mc_store *store, const struct mc_bytes *keys, size_t count, bool force, int *results);
/* Removes what the pattern (Perl-compatible, searched anywhere in the key) matches; count of removed, or
 * MC_ERR_INVALID_PARAMS for a bad pattern. */
MC_API int64_t mc_store_remove_by_regex(struct mc_store *store, struct mc_bytes pattern, bool force);
/* Count of removed objects, or negative. Leased objects stay without force. */
MC_API int64_t mc_store_remove_all(struct mc_store *store, bool force);

/* Where an object lies. */
struct mc_replica_description {
    char segment_name[256]; /* host:port of the owner */
    uint64_t size;          /* bytes of the object */
    uint64_t address;       /* offset of the data in the segment */
    int status;             /* 3 = complete (the original's ReplicaStatus) */
    int is_on_disk;         /* 1: on a disk of that owner; then address says nothing */
};
/* Fills up to `capacity` descriptions, those on disks last; returns how many replicas there are, or negative. Takes no
 * lease. */
MC_API int mc_store_describe(struct mc_store *store, struct mc_bytes key, struct mc_replica_description *descriptions,
                             size_t capacity);

/* Registered memory: RDMA devices read and write it in place, so that no processor copies what a put or get of 4 KiB
 * and more moves; register_buffer then takes about a second for 4 GiB, and memory that a device refuses is copied (the
 * log says so). By tcp and shared memory none is needed. Unregister memory before it is freed, mapped anew or discarded
 * (madvise): the devices keep the pages that it had, and a put from there may store, and return 0, what no get takes.
 * unregister_buffer waits for device requests that are under way there; the memory must stay until the calls that were
 * given it have returned. If a device does not let go, unregister_buffer returns MC_ERR_TRANSFER_FAIL: keep the memory
 * and call it again. Parts, here and in all calls, may lie in a GPU's memory (CUDA), if the process has loaded the
 * driver: register such memory first, or a second after the driver was loaded. What the driver refuses is
 * MC_ERR_INVALID_PARAMS, of a put MC_ERR_TRANSFER_FAIL.
 * The same base twice, a base that is not registered, NULL or size 0: MC_ERR_INVALID_PARAMS. */
MC_API int mc_store_register_buffer(struct mc_store *store, void *base, size_t size);
MC_API int mc_store_unregister_buffer(struct mc_store *store, void *base);
/* Bytes from there to the end of the registered buffer that it lies in; of several, the most. UINT64_MAX: it is in
 * none, and nothing is known of it. */
MC_API uint64_t mc_store_registered_bytes(struct mc_store *store, const void *address);

/* "host:port" of this member; also the name of its segment. Valid until close. */
MC_API const char *mc_store_hostname(const struct mc_store *store);
/* 0 healthy, 2 master unreachable. (1, not initialised, is what language bindings say without a store.) */
MC_API int mc_store_health(struct mc_store *store);

/* How long calls took, well or not, in microseconds: how many at most so long, and longer. A batch is one call. */
#define MC_STORE_CALL_BOUNDS_US                                                                                        \
    5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000, 2000000,     \
        5000000, 10000000
#define MC_STORE_CALL_BOUND_COUNT 20
struct mc_store_call_times {
    uint64_t counts[MC_STORE_CALL_BOUND_COUNT + 1], sum_us;
};

/* Counters since open. */
struct mc_store_statistics {
    uint64_t put_objects, put_bytes, get_objects, get_bytes, get_misses;
    uint64_t path_bytes[4];                       /* local, shm, tcp, rdma */
    uint64_t checksum_errors, retries, fallbacks; /* fallbacks: a faster path was tried and failed */
    uint64_t segment_capacity, segment_populated;
    uint64_t scrubbed_bytes, rotten_slots; /* what lies in the segment, read and compared in the background; rotten ones
                                              were dropped. MC_SCRUB_MB_PER_S (64) a second, 0 = off */
    uint64_t places_hits;                  /* gets served from remembered places while no master could be reached */
    uint64_t get_loads;    /* gets that waited until their value had come from a disk, and then had it */
    uint64_t tags_refused; /* what peers asked of the segment without having been granted it; with keys only */
    uint64_t hot_hits;     /* gets of what lies elsewhere that were served from a copy in this process, */
    uint64_t hot_bytes;    /* and the bytes of the copies now. MC_STORE_LOCAL_HOT_CACHE_SIZE (0), 0 = none is kept */
    struct mc_store_call_times put_times, get_times, exist_times; /* put: and upsert; get: whole values and ranges */
    uint64_t rdma_copied_bytes; /* of path_bytes by rdma: between memory that is not registered and the device's */
};
MC_API void mc_store_statistics(struct mc_store *store, struct mc_store_statistics *statistics);

/* Why an object is not stored on a disk, and in one word. */
#define MC_STORE_DISK_REASONS(X)                                                                                       \
    X(CLOSED, "closed") /* it recovers still, or is being closed */                                                    \
    X(READ_ONLY, "read_only")                                                                                          \
    X(SLOW, "slow")                                                                                                    \
    X(BUSY, "busy")       /* too many calls are not answered yet */                                                    \
    X(BUFFERS, "buffers") /* all of them are lent */                                                                   \
    X(BUDGET, "budget")   /* of the day */                                                                             \
    X(STALE, "stale")     /* of a master that is over */                                                               \
    X(FULL, "full")       /* there is no region for it, or there are as many objects as there may be */                \
    X(FAILED, "failed")   /* the kernel did not write it */
enum mc_store_disk_reason {
#define MC_STORE_DISK_REASON(name, word) MC_STORE_DISK_##name,
    MC_STORE_DISK_REASONS(MC_STORE_DISK_REASON)
#undef MC_STORE_DISK_REASON
        MC_STORE_DISK_REASON_COUNT
};
/* How a disk is. */
#define MC_STORE_DISK_HEALTHS(X)                                                                                       \
    X(WELL, "ok")                                                                                                      \
    X(IS_SLOW, "slow") /* an operation has lasted longer than a second: nothing is stored or read until it ends */     \
    X(IS_READ_ONLY, "read_only") /* what is there is read, nothing is stored any more */                               \
    X(RECOVERING, "recovering")  /* it reads its files */                                                              \
    X(OFF, "off")                /* it cannot be used; the log says why */
enum mc_store_disk_health {
#define MC_STORE_DISK_HEALTH(name, word) MC_STORE_DISK_##name,
    MC_STORE_DISK_HEALTHS(MC_STORE_DISK_HEALTH)
#undef MC_STORE_DISK_HEALTH
        MC_STORE_DISK_HEALTH_COUNT
};
/* How long stores and reads took that ended well, in microseconds: how many at most so long, and longer. */
#define MC_STORE_DISK_BOUNDS_US                                                                                        \
    50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000, 2000000, 5000000,       \
        10000000, 30000000
#define MC_STORE_DISK_BOUND_COUNT 18
struct mc_store_disk_latency {
    uint64_t counts[MC_STORE_DISK_BOUND_COUNT + 1], sum_us;
};
/* One disk of this store; counters since open. Of one that is off only path and health are told. */
struct mc_store_disk {
    char path[1088];
    int health;
    uint64_t capacity, free_bytes, live_bytes; /* free: of regions in which nothing lies; live: of objects */
    uint64_t objects, objects_max;
    uint64_t bytes_read, bytes_written, reads, writes, syncs, read_errors, write_errors; /* of files, all kinds */
    uint64_t stored, bytes_stored, served, bytes_served;                                 /* objects */
    uint64_t bytes_rewritten; /* of objects that were written once more when room was made */
    uint64_t cleared, lost, rotten,
        late;         /* objects; lost: given up, mostly for room; late: reads without an answer in time */
    uint64_t refused; /* calls of all kinds, at once */
    uint64_t not_stored[MC_STORE_DISK_REASON_COUNT];
    struct mc_store_disk_latency store_latency, read_latency;
    uint64_t waiting, under_way,
        oldest_us;          /* calls without an answer; operations of files; how long the oldest lasts */
    uint64_t reused_age_ms; /* of what was given up last for room: since it was stored */
    uint64_t journal_bytes, buffer_bytes, recovery_ms;
};
/* Fills up to `capacity` of them; returns how many there are. Waits for no disk. */
MC_API int mc_store_disks(struct mc_store *store, struct mc_store_disk *disks, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
