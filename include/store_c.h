/* SPDX-License-Identifier: Apache-2.0
 *
 * The original store's C interface, for programs and bindings (Go, Rust) that were written for it: the same names,
 * signatures and layouts over mooncake.h, which says more and can more. Link with libmooncake_store, or open
 * libmooncake_store.so at run time.
 *
 * Sizes in bytes. Texts and arrays are the caller's and not used after a call has returned; buffers neither. Every
 * function may be called from any thread, but for destroy, which is the last on its store. After fork() the child's
 * stores are dead: destroy frees them, everything else is an error.
 *
 * Errors are negative. -1: store, key, or an array is NULL, or a buffer is NULL and its size is not 0; nothing was
 * done. Others are an enum mc_error of mooncake.h, with the original's numbers, -600 (INVALID_PARAMS) of a store that
 * is not set up among them. A batch returns -1 as above, else 0, and says in results_out what became of each. */
#ifndef MOONCAKE_STORE_C_H
#define MOONCAKE_STORE_C_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MC_ORIGINAL_STORE_API __attribute__((visibility("default")))

typedef void *mooncake_store_t;

struct mooncake_replicate_config {
    size_t replica_num;              /* on distinct segments, at most 16; 0 = 1; fewer is success */
    int with_soft_pin;               /* not 0: evicted only when nothing else can be */
    int with_hard_pin;               /* not 0: never evicted */
    const char **preferred_segments; /* names (get_hostname of their owner), tried first in this order; NULL ones are
                                        left out */
    size_t preferred_segments_count;
};
typedef struct mooncake_replicate_config mooncake_replicate_config_t;

/* A store that is not set up, to be destroyed; NULL: no memory. */
MC_ORIGINAL_STORE_API mooncake_store_t mooncake_store_create(void);
/* Waits for calls in progress, leaves the cluster, frees. NULL is allowed. */
MC_ORIGINAL_STORE_API void mooncake_store_destroy(mooncake_store_t store);

/* Joins the cluster, as mc_store_open. NULL: "" for local_hostname (which is refused), metadata_server (which changes
 * nothing) and device_name (all), "tcp", "127.0.0.1:50051". 0; -600 also when it is set up already; -900: no master. */
MC_ORIGINAL_STORE_API int mooncake_store_setup(mooncake_store_t store, const char *local_hostname,
                                               const char *metadata_server, uint64_t global_segment_size,
                                               uint64_t local_buffer_size, const char *protocol,
                                               const char *device_name, const char *master_server_addr);
/* setup for a try on this machine: "127.0.0.1", the master at 127.0.0.1:50051, a segment of mount_segment_size. */
MC_ORIGINAL_STORE_API int mooncake_store_init_all(mooncake_store_t store, const char *protocol, const char *device_name,
                                                  uint64_t mount_segment_size);
/* 0 healthy, 1 not set up, 2 the master cannot be reached. */
MC_ORIGINAL_STORE_API int mooncake_store_health_check(mooncake_store_t store);

/* 0, also when the key exists: the old value stays. -600 for size 0. config NULL: one replica. */
MC_ORIGINAL_STORE_API int mooncake_store_put(mooncake_store_t store, const char *key, const void *value, size_t size,
                                             const mooncake_replicate_config_t *config);
/* The same; the buffer need not be registered, but RDMA and memory of GPUs want it (register_buffer). */
MC_ORIGINAL_STORE_API int mooncake_store_put_from(mooncake_store_t store, const char *key, void *buffer, size_t size,
                                                  const mooncake_replicate_config_t *config);
/* results_out[i] = as put_from's. */
MC_ORIGINAL_STORE_API int mooncake_store_batch_put_from(mooncake_store_t store, const char **keys, void **buffers,
                                                        const size_t *sizes, size_t count,
                                                        const mooncake_replicate_config_t *config, int *results_out);

/* The object's length, > 0; -704: no such object; -600: the buffer is too small, and nothing was read. After an error
 * the buffer may hold anything. */
MC_ORIGINAL_STORE_API int64_t mooncake_store_get_into(mooncake_store_t store, const char *key, void *buffer,
                                                      size_t size);
/* results_out[i] = as get_into's. */
MC_ORIGINAL_STORE_API int mooncake_store_batch_get_into(mooncake_store_t store, const char **keys, void **buffers,
                                                        const size_t *sizes, size_t count, int64_t *results_out);

/* 1 it can be read, 0 it is not there. Takes no lease. */
MC_ORIGINAL_STORE_API int mooncake_store_is_exist(mooncake_store_t store, const char *key);
/* results_out[i] = as is_exist's. */
MC_ORIGINAL_STORE_API int mooncake_store_batch_is_exist(mooncake_store_t store, const char **keys, size_t count,
                                                        int *results_out);
/* The object's length; -704: no such object. */
MC_ORIGINAL_STORE_API int64_t mooncake_store_get_size(mooncake_store_t store, const char *key);
/* Writes "host:port", which is also the segment's name, or "" of a store that is not set up. -1: it does not fit. */
MC_ORIGINAL_STORE_API int mooncake_store_get_hostname(mooncake_store_t store, char *buf_out, size_t buf_len);

/* 0; -704 absent; -706 read within the lease time, without force; -703 being written. */
MC_ORIGINAL_STORE_API int mooncake_store_remove(mooncake_store_t store, const char *key, int force);
/* How many were removed: in whose key the pattern (Perl-compatible) is found anywhere; all. What is leased stays,
 * without force. -600: a bad pattern. */
MC_ORIGINAL_STORE_API int64_t mooncake_store_remove_by_regex(mooncake_store_t store, const char *pattern, int force);
MC_ORIGINAL_STORE_API int64_t mooncake_store_remove_all(mooncake_store_t store, int force);

/* -1 also for size 0; -600: this base is registered already, or is not registered. */
MC_ORIGINAL_STORE_API int mooncake_store_register_buffer(mooncake_store_t store, void *buffer, size_t size);
MC_ORIGINAL_STORE_API int mooncake_store_unregister_buffer(mooncake_store_t store, void *buffer);

/* ---- ours; real_client.h stands on it ---- */

struct mc_store_config; /* of mooncake.h */
/* As setup, with all that may be said. */
MC_ORIGINAL_STORE_API int mc_store_c_open(mooncake_store_t store, const struct mc_store_config *config);
/* As destroy, but the store stays, not set up, and may be set up again. 0. */
MC_ORIGINAL_STORE_API int mc_store_c_close(mooncake_store_t store);
/* results_out[i] = as remove's. */
MC_ORIGINAL_STORE_API int mc_store_c_batch_remove(mooncake_store_t store, const char **keys, size_t count, int force,
                                                  int *results_out);

#ifdef __cplusplus
}
#endif
#endif
