/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the extension module `mooncake._store` share.
 *
 * Invariants
 *   - Types only, no logic: a method turns Python objects into the structs of mooncake.h, calls, turns results back.
 *   - Whatever a library call reads or writes while the GIL is released is kept alive by this call: argument lists are
 * snapshot into tuples first, so another thread may change its lists meanwhile. (Memory given as a bare address is the
 * caller's to keep.)
 *   - Library calls are made only between mc_py_store_enter and mc_py_store_leave, with the GIL released.
 *
 * Built for the limited API of 3.11 (abi3) or, from the same source, for one version from 3.9 on. Own file names are
 * not exported; only PyInit__store is.
 */
#ifndef MC_PYTHON_STORE_MODULE_H
#define MC_PYTHON_STORE_MODULE_H

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wshadow"
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#pragma GCC diagnostic pop

#include "mooncake.h"

#include <pthread.h>

#define STORE_BATCH_MAX (1u << 20) /* keys, parts or ranges of one call */
#define STORE_PREFERRED_MAX 64     /* preferred segments of one ReplicateConfig */
#define STORE_SCRATCH_INLINE 8192  /* bytes of a call's work space that come from the stack */
#define STORE_SCRATCH_BLOCKS 10    /* arrays of one call */
/* Get: up to here a copy costs less than taking the GIL in the middle of the call */
#define STORE_COPY_MAX ((uint64_t)65536)
#define STORE_UNSET INT32_MIN /* result that the library did not write */

/* A slot or method pointer: ISO C has no conversion from a function to void *, POSIX demands one. */
#define MC_PY_POINTER(function) __extension__(void *)(function)
#define MC_PY_METHOD(function) (PyCFunction)(void (*)(void))(function)
#define MC_PY_KEYWORDS (METH_FASTCALL | METH_KEYWORDS)

/* ---- store_arguments.c ---- */

/* Parameters of one method, as inspect.signature shows them: "key, value, config=None". `most` is counted when it is 0. */
struct mc_py_signature {
    const char *method, *parameters;
    Py_ssize_t required, most;
};
/* Spreads a fastcall's arguments over values[] (borrowed; NULL = not given). -1 with TypeError that names the argument.
 */
int mc_py_arguments(struct mc_py_signature *signature, PyObject *const *args, Py_ssize_t count, PyObject *keywords,
                    PyObject **values);
#define MC_PY_ARGUMENTS_MAX 8

/* A method: its documentation, its function of the type's table, and the head of what follows, which gets the arguments.
 * `type` is the struct of the object. */
#define MC_PY_METHOD_OF(type, name, required, parameters, doc)                                                         \
    const char type##_doc_##name[] = #name "(" parameters ")\n--\n\n" doc;                                             \
    static PyObject *call_##name(struct type *self, PyObject **values);                                                \
    PyObject *type##_##name(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords)             \
    {                                                                                                                  \
        static struct mc_py_signature signature = {#name, parameters, required, 0};                                    \
        PyObject *values[MC_PY_ARGUMENTS_MAX];                                                                         \
        if (mc_py_arguments(&signature, args, count, keywords, values) < 0)                                            \
            return NULL;                                                                                               \
        return call_##name((struct type *)object, values);                                                             \
    }                                                                                                                  \
    static PyObject *call_##name(__attribute__((unused)) struct type *self, __attribute__((unused)) PyObject **values)
#define MC_PY_STORE_METHOD(name, ...) MC_PY_METHOD_OF(mc_py_store, name, __VA_ARGS__)
/* One that is a call. */
#define MC_PY_STORE_CALL(name, required, parameters, call, doc)                                                        \
    MC_PY_STORE_METHOD(name, required, parameters, doc)                                                                \
    {                                                                                                                  \
        return call;                                                                                                   \
    }

/* Work space of one call: the stack first, then the heap. Made ready by mc_py_scratch_init, freed by
 * mc_py_scratch_free. */
struct mc_py_scratch {
    size_t used;
    unsigned block_count;
    void *blocks[STORE_SCRATCH_BLOCKS];
    _Alignas(16) unsigned char inline_bytes[STORE_SCRATCH_INLINE];
};
static inline void mc_py_scratch_init(struct mc_py_scratch *scratch)
{
    scratch->used = 0;
    scratch->block_count = 0;
}
/* count * size bytes (never NULL for 0), or NULL with MemoryError. */
void *mc_py_scratch_take(struct mc_py_scratch *scratch, size_t count, size_t size);
void mc_py_scratch_free(struct mc_py_scratch *scratch);

/* New reference to a tuple of the sequence's items as they are now; NULL with TypeError (also for str, bytes, dict,
 * set). */
PyObject *mc_py_snapshot(PyObject *sequence, const char *name);
/* The same down to `depth` levels: a tuple of tuples … */
PyObject *mc_py_snapshot_deep(PyObject *sequence, int depth, const char *name);
/* keys, addresses, sizes as tuples (drop all three in every case). 0, MC_ERR_INVALID_PARAMS for unequal lengths
 * (*key_count is set), 1 with an exception. */
int mc_py_snapshot_three(PyObject **lists, const char *method, PyObject **tuples, Py_ssize_t *key_count);
size_t mc_py_count_inner(PyObject *nested);
/* Borrows the bytes of a str (UTF-8) or bytes object; valid while the object lives. */
int mc_py_key(PyObject *object, struct mc_bytes *key);
/* Every item of a snapshot as a key. NULL with an exception. */
struct mc_bytes *mc_py_keys(PyObject *snapshot, Py_ssize_t count, struct mc_py_scratch *scratch);
/* Any object with __index__ as an unsigned number: TypeError, as in the original, when negative or above 2^64 - 1. */
int mc_py_u64(PyObject *object, uint64_t *value);
/* Truth of an optional argument; -1 with an exception. */
int mc_py_flag(PyObject *object, bool *value);
/* Address and size as a part: MC_ERR_INVALID_PARAMS for NULL with a size, for what no address space holds. */
int mc_py_part(uint64_t address, uint64_t size, struct iovec *part);

/* The same, and a line of log says so. */
int mc_py_place(uint64_t address, uint64_t size, bool is_put, struct iovec *part);
/* What a key's bytes lie in; rc: why there is no such place. */
struct mc_py_place {
    const struct iovec *parts;
    size_t part_count; /* of a nested list: without the empty ones */
    int rc;
};
/* Of each key by tuples of addresses and sizes; is_nested: of many parts each. NULL with an exception. */
struct mc_py_place *mc_py_places(PyObject *const *tuples, bool is_put, bool is_nested, struct mc_py_scratch *scratch);

/* Bytes of any buffer object. Contiguous ones are borrowed, others are copied. Release always. */
struct mc_py_bytes {
    const void *data;
    size_t length;
    bool exported; /* view is held */
    void *copy;
    Py_buffer view;
};
/* parts_only: 1-D with items of one byte, else RuntimeError("parts must be 1-D bytes-like"). -1 with an exception. */
int mc_py_bytes_acquire(PyObject *object, bool parts_only, struct mc_py_bytes *bytes);
void mc_py_bytes_release(struct mc_py_bytes *bytes);

/* Adds a new reference to the module; drops it also on failure. */
int mc_py_module_add(PyObject *module, const char *name, PyObject *value);
/* What PyInit returns: the module, or NULL with ImportError, whatever the exception was: engines catch that one only. */
PyObject *mc_py_module_made(PyObject *module, const char *name, bool is_whole);
/* Takes over a function, or NULL with an exception, that the interpreter calls when it ends. */
int mc_py_at_exit(PyObject *function);
/* The end of a tp_dealloc. */
void mc_py_object_free(PyObject *object);

/* New list of `count` times `value`. */
PyObject *mc_py_list_of(Py_ssize_t count, long value);
PyObject *mc_py_list_of_i64(const int64_t *values, Py_ssize_t count);
PyObject *mc_py_list_of_int(const int *values, Py_ssize_t count);

/* ---- store_object.c ---- */

struct mc_py_store {
    PyObject_HEAD pthread_mutex_t
        mutex; /* guards what follows; held for a few instructions, never while waiting for the GIL */
    pthread_cond_t idle;
    struct mc_store *store;   /* NULL: not set up, or closed */
    unsigned running;         /* calls that use `store` */
    unsigned fork_generation; /* of the process that set it up */
    bool opening;             /* a setup is under way */
    void *pool;               /* memory of alloc_from_mem_pool; stays as long as the object */
    uint64_t pool_size, pool_used;
    PyObject *weak_references;
};

extern PyType_Spec mc_py_store_spec;

/* Takes the library's store for one call. 0, MC_ERR_INVALID_PARAMS (not set up), MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS
 * (forked). */
int mc_py_store_enter(struct mc_py_store *self, struct mc_store **store);
/* Gives it back; before the GIL is taken again, because a thread may end there while the interpreter goes down. */
void mc_py_store_leave(struct mc_py_store *self);
/* rc = call, which may use `store`, without the GIL; or why there is no store. */
#define MC_PY_IN_STORE(self, store, rc, call)                                                                          \
    do {                                                                                                               \
        struct mc_store *store;                                                                                        \
        rc = mc_py_store_enter(self, &store);                                                                          \
        if (rc == 0) {                                                                                                 \
            Py_BEGIN_ALLOW_THREADS rc = call;                                                                          \
            mc_py_store_leave(self);                                                                                   \
            Py_END_ALLOW_THREADS                                                                                       \
        }                                                                                                              \
    } while (0)
/* For setup: opens the library's store, without the GIL, for an object that has none. 0, or an enum mc_error. */
int mc_py_store_join(struct mc_py_store *self, const struct mc_store_config *config);
int mc_py_store_start(PyObject *module); /* fork and exit handlers */
bool mc_py_exiting(void);

/* ---- store_setup.c, store_put.c, store_get.c: methods ---- */

/* clang-format off */
#define MC_PY_METHODS(X) \
    X(put) X(put_parts) X(put_batch) X(put_from) X(batch_put_from) X(batch_put_from_multi_buffers) \
    X(put_from_with_metadata) X(upsert) X(upsert_parts) X(upsert_batch) X(upsert_from) X(batch_upsert_from) \
    X(get) X(get_batch) X(get_buffer) X(batch_get_buffer) X(get_into) X(batch_get_into) \
    X(batch_get_into_multi_buffers) X(get_into_ranges) \
    X(batch_get_session_start) X(batch_get_into_multi_buffer_ranges) X(batch_get_session_end) \
    X(batch_put_session_start) X(batch_put_from_multi_buffer_ranges) X(batch_put_session_end) \
    X(batch_put_session_revoke) \
    X(create_copy_task) X(create_move_task) X(query_task) X(batch_replica_clear) \
    X(allocate_and_mount_segment) X(mount_segment) X(unmount_segment) X(unmount_and_free_segment) \
    X(unmount_local_disk_segment) \
    X(setup_dummy) X(alloc_from_mem_pool) \
    X(is_exist) X(batch_is_exist) X(remove) X(batch_remove) X(remove_by_regex) X(remove_all) X(get_size) \
    X(register_buffer) X(unregister_buffer) X(get_replica_desc) X(batch_get_replica_desc)
/* clang-format on */
#define MC_PY_METHOD_DECLARE(name)                                                                                     \
    PyObject *mc_py_store_##name(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords);       \
    extern const char mc_py_store_doc_##name[];
MC_PY_METHODS(MC_PY_METHOD_DECLARE)
#undef MC_PY_METHOD_DECLARE

/* ---- store_types.c ---- */

/* A ReplicateConfig as the library wants it. `held`, its values, keeps the strings alive. */
struct mc_py_replicate {
    struct mc_replicate_config config;
    const char *names[STORE_PREFERRED_MAX];
    uint64_t *groups; /* config.groups: for each key; NULL = none */
    PyObject *held;
};
enum mc_py_put_kind { MC_PY_PUT_ONE, MC_PY_PUT_BATCH, MC_PY_PUT_MULTI };
/* Reads a ReplicateConfig (NULL, None: the defaults) for a put of key_count keys. 0; an enum mc_error that every key
 * gets; or 1 with an exception set. Release in every case. */
int mc_py_replicate_acquire(PyObject *object, Py_ssize_t key_count, enum mc_py_put_kind kind,
                            struct mc_py_replicate *replicate);
void mc_py_replicate_release(struct mc_py_replicate *replicate);

/* BufferHandle that takes over `data` (from malloc; freed on failure too). */
PyObject *mc_py_buffer_handle(void *data, size_t length);
/* list of ReplicaDescriptor. */
PyObject *mc_py_descriptors(const struct mc_replica_description *descriptions, int count);
/* New reference to something of mooncake/_types.py. */
PyObject *mc_py_type(const char *name);
/* Adds BufferHandle to the module. */
int mc_py_types_add(PyObject *module);

/* ---- store_setup.c: memory of this host, and the store's method _open ---- */

PyObject *mc_py_allocate(PyObject *module, PyObject *size);
PyObject *mc_py_release(PyObject *module, PyObject *address);
PyObject *mc_py_alloc_address(PyObject *module, PyObject *unused);
PyObject *mc_py_free_address(PyObject *module, PyObject *unused);
PyObject *mc_py_store_open(PyObject *object, PyObject *args);

#endif
