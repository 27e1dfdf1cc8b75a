/* SPDX-License-Identifier: Apache-2.0
 *
 * From Python's arguments to C: what the files of both extension modules share.
 *
 * Invariants
 *   - Types only, no logic: a method turns Python objects into the structs of mooncake.h, calls, turns results back.
 *   - Whatever a library call reads or writes while the GIL is released is kept alive by this call: argument lists are
 * snapshot into tuples first, so another thread may change its lists meanwhile. (Memory given as a bare address is the
 * caller's to keep.)
 *   - Library calls are made only between mc_py_store_enter and mc_py_store_leave, with the GIL released.
 *
 * Built for the limited API of 3.11 (abi3) or, from the same source, for one version from 3.9 on, also for one without
 * a GIL: nothing here may rest on it. Own names are not exported; only PyInit__store is.
 */
#ifndef MC_PYTHON_STORE_ARGUMENTS_H
#define MC_PYTHON_STORE_ARGUMENTS_H

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wshadow"
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#pragma GCC diagnostic pop

#include "mooncake.h"

#include <stdatomic.h>

#define STORE_BATCH_MAX (1u << 20) /* keys, parts or ranges of one call */
#define STORE_SCRATCH_INLINE 8192  /* bytes of a call's work space that come from the stack */
#define STORE_SCRATCH_BLOCKS 10    /* arrays of one call */
#define STORE_UNSET INT32_MIN      /* result that the library did not write */

/* A slot or method pointer: ISO C has no conversion from a function to void *, POSIX demands one. */
#define MC_PY_POINTER(function) __extension__(void *)(function)
#define MC_PY_METHOD(function) (PyCFunction)(void (*)(void))(function)
#define MC_PY_KEYWORDS (METH_FASTCALL | METH_KEYWORDS)

/* Parameters of one method, as inspect.signature shows them: "key, value, config=None". 0 for `most`: it is
 * counted. */
struct mc_py_signature {
    const char *method, *parameters;
    Py_ssize_t required;
    _Atomic Py_ssize_t most;
};
/* Spreads a fastcall's arguments over values[] (borrowed; NULL = not given). -1 with TypeError that names the argument.
 */
int mc_py_arguments(struct mc_py_signature *signature, PyObject *const *args, Py_ssize_t count, PyObject *keywords,
                    PyObject **values);
#define MC_PY_ARGUMENTS_MAX 8

/* A method of the type: its documentation, and its function, which spreads the arguments and is `call`. */
#define MC_PY_CALL_OF(type, name, required, parameters, call, doc)                                                     \
    const char type##_doc_##name[] = #name "(" parameters ")\n--\n\n" doc;                                             \
    PyObject *type##_##name(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords)             \
    {                                                                                                                  \
        static struct mc_py_signature signature = {#name, parameters, required, 0};                                    \
        __attribute__((unused)) struct type *self = (struct type *)object;                                             \
        PyObject *values[MC_PY_ARGUMENTS_MAX];                                                                         \
        return mc_py_arguments(&signature, args, count, keywords, values) < 0 ? NULL : call;                           \
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
/* The keys of a call, and a result for each, STORE_UNSET at first. */
struct mc_py_key_list {
    PyObject *snapshot;
    Py_ssize_t count;
    struct mc_bytes *keys;
    int *results;
    struct mc_py_scratch scratch;
};
/* False with an exception. Freed in every case. */
bool mc_py_key_list_take(PyObject *sequence, struct mc_py_key_list *list);
void mc_py_key_list_free(struct mc_py_key_list *list);
/* What became of a key: a result that the library left alone shares the fate of the whole call. */
static inline int64_t mc_py_result(int64_t result, int rc)
{
    return result != STORE_UNSET ? result : rc < 0 ? rc : MC_ERR_INTERNAL_ERROR;
}
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

/* What find(name) gave the first time, kept in *known for ever; borrowed. NULL with an exception. */
PyObject *mc_py_known(_Atomic(PyObject *) *known, PyObject *(*find)(const char *), const char *name);
/* Adds a new reference to the module; drops it also on failure. */
int mc_py_module_add(PyObject *module, const char *name, PyObject *value);
/* What PyInit returns: the module, or NULL with ImportError, whatever the exception was: engines catch no other. */
PyObject *mc_py_module_made(PyObject *module, const char *name, bool is_whole);
/* Takes over a function, or NULL with an exception, that the interpreter calls when it ends. */
int mc_py_at_exit(PyObject *function);
/* The method _log_to(fd) of both modules: where the lines of this one go; returns where they went. */
PyObject *mc_py_log_to(PyObject *module, PyObject *descriptor);
/* The end of a tp_dealloc. */
void mc_py_object_free(PyObject *object);
/* Each extension module has a copy of the library; together they say once what the environment says in vain. */
void mc_py_variables_tell(void);

/* New list of `count` times `value`. */
PyObject *mc_py_list_of(Py_ssize_t count, long value);
PyObject *mc_py_list_of_i64(const int64_t *values, Py_ssize_t count);
PyObject *mc_py_list_of_int(const int *values, Py_ssize_t count);

#endif
