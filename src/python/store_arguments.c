/* SPDX-License-Identifier: Apache-2.0
 *
 * From Python's arguments to C: fastcall parameters, key lists, numbers, buffers. Of the library only the log and the
 * environment.
 */
#include "python/store_arguments.h"

#include "env/log.h"
#include "env/unread.h"

#include <stdlib.h>
#include <string.h>

/* The place of a parameter, or -1. */
static Py_ssize_t find_name(const char *parameters, PyObject *name)
{
    Py_ssize_t length = 0;
    const char *text = PyUnicode_AsUTF8AndSize(name, &length);
    if (text == NULL)
        PyErr_Clear();
    if (text == NULL || length == 0 || strlen(text) != (size_t)length)
        return -1;
    for (Py_ssize_t at = 0;; at++) {
        if (strncmp(parameters, text, (size_t)length) == 0 && strchr("=,", parameters[length]) != NULL)
            return at; /* strchr finds the final zero, too */
        if ((parameters = strchr(parameters, ',')) == NULL)
            return -1;
        parameters += 2;
    }
}

static int take_keywords(const struct mc_py_signature *signature, PyObject *const *args, PyObject *keywords,
                         PyObject **values)
{
    Py_ssize_t count = PyTuple_Size(keywords);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *name = PyTuple_GetItem(keywords, i);
        Py_ssize_t at = find_name(signature->parameters, name);
        if (at < 0 || values[at] != NULL) {
            PyErr_Format(PyExc_TypeError,
                         at < 0 ? "%s() got an unexpected keyword argument '%U'"
                                : "%s() got multiple values for argument '%U'",
                         signature->method, name);
            return -1;
        }
        values[at] = args[i];
    }
    return 0;
}

static int name_missing(const struct mc_py_signature *signature, Py_ssize_t at)
{
    const char *name = signature->parameters;
    while (at-- > 0)
        name = strchr(name, ',') + 2;
    PyObject *text = PyUnicode_FromStringAndSize(name, (Py_ssize_t)strcspn(name, "=,"));
    if (text != NULL)
        PyErr_Format(PyExc_TypeError, "%s() missing required argument '%U'", signature->method, text);
    Py_XDECREF(text);
    return -1;
}

int mc_py_arguments(struct mc_py_signature *signature, PyObject *const *args, Py_ssize_t count, PyObject *keywords,
                    PyObject **values)
{
    Py_ssize_t most = atomic_load_explicit(&signature->most, memory_order_relaxed);
    if (most == 0 && signature->parameters[0] != 0) {
        most = 1;
        for (const char *at = signature->parameters; (at = strchr(at, ',')) != NULL; at++)
            most++;
        atomic_store_explicit(&signature->most, most, memory_order_relaxed);
    }
    for (Py_ssize_t i = 0; i < most; i++)
        values[i] = i < count ? args[i] : NULL;
    if (count > most) {
        PyErr_Format(PyExc_TypeError, "%s() takes at most %zd arguments (%zd given)", signature->method, most, count);
        return -1;
    }
    if (keywords != NULL && take_keywords(signature, args + count, keywords, values) < 0)
        return -1;
    for (Py_ssize_t i = count; i < signature->required; i++)
        if (values[i] == NULL)
            return name_missing(signature, i);
    return 0;
}

void *mc_py_scratch_take(struct mc_py_scratch *scratch, size_t count, size_t size)
{
    if (size != 0 && count > PY_SSIZE_T_MAX / size) {
        PyErr_NoMemory();
        return NULL;
    }
    size_t bytes = (count * size + 15) & ~(size_t)15;
    if (bytes <= STORE_SCRATCH_INLINE - scratch->used) {
        void *at = scratch->inline_bytes + scratch->used;
        scratch->used += bytes;
        return at;
    }
    void *block = scratch->block_count < STORE_SCRATCH_BLOCKS ? PyMem_Malloc(bytes) : NULL;
    if (block == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    scratch->blocks[scratch->block_count++] = block;
    return block;
}

void mc_py_scratch_free(struct mc_py_scratch *scratch)
{
    while (scratch->block_count > 0)
        PyMem_Free(scratch->blocks[--scratch->block_count]);
}

PyObject *mc_py_snapshot(PyObject *sequence, const char *name)
{
    PyObject *tuple;
    if (PyList_Check(sequence)) {
        tuple = PyList_AsTuple(sequence);
    } else if (PyTuple_CheckExact(sequence)) {
        Py_INCREF(sequence);
        tuple = sequence;
    } else if (PyUnicode_Check(sequence) || PyBytes_Check(sequence) || PyByteArray_Check(sequence) ||
               !PySequence_Check(sequence)) {
        PyErr_Format(PyExc_TypeError, "%s must be a list, tuple or other sequence, not %R", name,
                     (PyObject *)Py_TYPE(sequence));
        return NULL;
    } else {
        tuple = PySequence_Tuple(sequence);
    }
    if (tuple != NULL && PyTuple_Size(tuple) > (Py_ssize_t)STORE_BATCH_MAX) {
        PyErr_Format(PyExc_ValueError, "%s has more than %d items; split the call", name, (int)STORE_BATCH_MAX);
        Py_DECREF(tuple);
        return NULL;
    }
    return tuple;
}

PyObject *mc_py_snapshot_deep(PyObject *sequence, int depth, const char *name)
{
    PyObject *outer = mc_py_snapshot(sequence, name);
    if (outer == NULL || depth <= 1)
        return outer;
    Py_ssize_t count = PyTuple_Size(outer);
    PyObject *nested = PyTuple_New(count);
    for (Py_ssize_t i = 0; nested != NULL && i < count; i++) {
        PyObject *inner = mc_py_snapshot_deep(PyTuple_GetItem(outer, i), depth - 1, name);
        if (inner == NULL || PyTuple_SetItem(nested, i, inner) < 0)
            Py_CLEAR(nested);
    }
    Py_DECREF(outer);
    return nested;
}

int mc_py_snapshot_three(PyObject **lists, const char *method, PyObject **tuples, Py_ssize_t *key_count)
{
    static const char *const names[] = {"keys", "buffer_ptrs", "sizes"};
    for (int i = 0; i < 3; i++)
        tuples[i] = NULL;
    for (int i = 0; i < 3; i++)
        if ((tuples[i] = mc_py_snapshot(lists[i], names[i])) == NULL)
            return 1;
    *key_count = PyTuple_Size(tuples[0]);
    if (PyTuple_Size(tuples[1]) == *key_count && PyTuple_Size(tuples[2]) == *key_count)
        return 0;
    mc_log(ERROR, "%s: %zd keys, %zd addresses, %zd sizes; the lists must be of one length", method, *key_count,
           PyTuple_Size(tuples[1]), PyTuple_Size(tuples[2]));
    return MC_ERR_INVALID_PARAMS;
}

size_t mc_py_count_inner(PyObject *nested)
{
    size_t total = 0;
    for (Py_ssize_t i = 0; i < PyTuple_Size(nested); i++)
        total += (size_t)PyTuple_Size(PyTuple_GetItem(nested, i));
    return total;
}

int mc_py_key(PyObject *object, struct mc_bytes *key)
{
    Py_ssize_t length = 0;
    if (PyUnicode_Check(object)) {
        key->data = PyUnicode_AsUTF8AndSize(object, &length);
        key->length = (size_t)length;
        return key->data == NULL ? -1 : 0;
    }
    if (PyBytes_Check(object)) {
        key->data = PyBytes_AsString(object);
        key->length = (size_t)PyBytes_Size(object);
        return 0;
    }
    PyErr_Format(PyExc_TypeError, "a key must be str or bytes, not %R", (PyObject *)Py_TYPE(object));
    return -1;
}

struct mc_bytes *mc_py_keys(PyObject *snapshot, Py_ssize_t count, struct mc_py_scratch *scratch)
{
    struct mc_bytes *keys = mc_py_scratch_take(scratch, (size_t)count, sizeof(*keys));
    if (keys == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < count; i++)
        if (mc_py_key(PyTuple_GetItem(snapshot, i), &keys[i]) < 0)
            return NULL;
    return keys;
}

bool mc_py_key_list_take(PyObject *sequence, struct mc_py_key_list *list)
{
    mc_py_scratch_init(&list->scratch);
    list->snapshot = mc_py_snapshot(sequence, "keys");
    list->count = list->snapshot == NULL ? 0 : PyTuple_Size(list->snapshot);
    list->keys = list->snapshot == NULL ? NULL : mc_py_keys(list->snapshot, list->count, &list->scratch);
    list->results =
        list->keys == NULL ? NULL : mc_py_scratch_take(&list->scratch, (size_t)list->count, sizeof(*list->results));
    for (Py_ssize_t i = 0; list->results != NULL && i < list->count; i++)
        list->results[i] = STORE_UNSET;
    return list->results != NULL;
}

void mc_py_key_list_free(struct mc_py_key_list *list)
{
    mc_py_scratch_free(&list->scratch);
    Py_XDECREF(list->snapshot);
}

int mc_py_u64(PyObject *object, uint64_t *value)
{
    if (PyLong_Check(object)) {
        *value = PyLong_AsUnsignedLongLong(object);
    } else {
        PyObject *number = PyNumber_Index(object);
        if (number == NULL)
            return -1;
        *value = PyLong_AsUnsignedLongLong(number);
        Py_DECREF(number);
    }
    if (*value != UINT64_MAX || PyErr_Occurred() == NULL)
        return 0;
    if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "an int from 0 to 2^64 - 1 is expected, not %R", object);
    }
    return -1;
}

int mc_py_flag(PyObject *object, bool *value)
{
    *value = false;
    if (object == NULL)
        return 0;
    if (PyUnicode_Check(object) || PyBytes_Check(object)) { /* "false" would be true */
        PyErr_Format(PyExc_TypeError, "True or False is expected, not %R", object);
        return -1;
    }
    int truth = PyObject_IsTrue(object);
    *value = truth > 0;
    return truth < 0 ? -1 : 0;
}

int mc_py_part(uint64_t address, uint64_t size, struct iovec *part)
{
    if (size > PY_SSIZE_T_MAX || (address == 0 && size > 0) || address + size < address)
        return MC_ERR_INVALID_PARAMS;
    part->iov_base = (void *)(uintptr_t)address;
    part->iov_len = (size_t)size;
    return 0;
}

/* Puts and gets each have a limit of their own. */
#define LOG_FOR(is_put, put_word, get_word, ...)                                                                       \
    do {                                                                                                               \
        if (is_put)                                                                                                    \
            mc_log_limited(ERROR, put_word __VA_ARGS__);                                                               \
        else                                                                                                           \
            mc_log_limited(ERROR, get_word __VA_ARGS__);                                                               \
    } while (0)

int mc_py_place(uint64_t address, uint64_t size, bool is_put, struct iovec *part)
{
    int rc = mc_py_part(address, size, part);
    if (rc < 0)
        LOG_FOR(is_put, "a put from", "a get into", " address 0x%llx of %llu bytes: no such memory",
                (unsigned long long)address, (unsigned long long)size);
    return rc;
}

/* Number i of two tuples. -1 with an exception. */
static int read_pair(PyObject *const *tuples, Py_ssize_t i, uint64_t *address, uint64_t *size)
{
    return mc_py_u64(PyTuple_GetItem(tuples[0], i), address) < 0 || mc_py_u64(PyTuple_GetItem(tuples[1], i), size) < 0
               ? -1
               : 0;
}

/* One key's parts behind *parts, without the empty ones. 0, MC_ERR_INVALID_PARAMS for this key, 1 with an exception. */
static int read_parts(PyObject *const *tuples, struct iovec *parts, size_t *part_count)
{
    Py_ssize_t count = PyTuple_Size(tuples[0]);
    int rc = count == PyTuple_Size(tuples[1]) ? 0 : MC_ERR_INVALID_PARAMS;
    for (Py_ssize_t i = 0; rc == 0 && i < count; i++) {
        uint64_t address, size;
        if (read_pair(tuples, i, &address, &size) < 0)
            return 1;
        if (size > 0)
            rc = mc_py_part(address, size, &parts[(*part_count)++]);
    }
    return rc;
}

/* With parts for all of it. -1 with an exception. */
static int read_places(PyObject *const *tuples, bool is_put, bool is_nested, struct iovec *parts,
                       struct mc_py_place *places)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(tuples[0]); i++) {
        struct mc_py_place *place = &places[i];
        uint64_t address, size;
        *place = (struct mc_py_place){.parts = parts, .part_count = is_nested ? 0 : 1};
        if (is_nested) {
            PyObject *of_key[] = {PyTuple_GetItem(tuples[0], i), PyTuple_GetItem(tuples[1], i)};
            place->rc = read_parts(of_key, parts, &place->part_count);
            if (place->rc < 0)
                LOG_FOR(is_put, "batch_put_from_multi_buffers", "batch_get_into_multi_buffers",
                        ": key %zd has a bad address, or not as many sizes as addresses", i);
        } else {
            place->rc = read_pair(tuples, i, &address, &size) < 0 ? 1 : mc_py_place(address, size, is_put, parts);
        }
        if (place->rc > 0)
            return -1;
        parts += place->part_count;
    }
    return 0;
}

struct mc_py_place *mc_py_places(PyObject *const *tuples, bool is_put, bool is_nested, struct mc_py_scratch *scratch)
{
    static const char *const names[] = {"all_buffer_ptrs", "all_sizes"};
    PyObject *read[2];
    for (int i = 0; i < 2; i++)
        read[i] = is_nested ? NULL : tuples[i];
    for (int i = 0; is_nested && i < 2 && (i == 0 || read[0] != NULL); i++)
        read[i] = mc_py_snapshot_deep(tuples[i], 2, names[i]);
    size_t count = (size_t)PyTuple_Size(tuples[0]);
    struct mc_py_place *places = read[1] == NULL ? NULL : mc_py_scratch_take(scratch, count, sizeof(*places));
    struct iovec *parts =
        places == NULL ? NULL
                       : mc_py_scratch_take(scratch, is_nested ? mc_py_count_inner(read[0]) : count, sizeof(*parts));
    if (parts == NULL || read_places(read, is_put, is_nested, parts, places) < 0)
        places = NULL;
    for (int i = 0; is_nested && i < 2; i++)
        Py_XDECREF(read[i]);
    return places;
}

/* Strided memory has no single run of bytes: gather it into a copy. */
static int bytes_gather(PyObject *object, struct mc_py_bytes *bytes)
{
    if (PyObject_GetBuffer(object, &bytes->view, PyBUF_FULL_RO) < 0)
        return -1;
    bytes->exported = true;
    bytes->length = (size_t)bytes->view.len;
    bytes->copy = malloc(bytes->length + 1);
    if (bytes->copy == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    bytes->data = bytes->copy;
    return PyBuffer_ToContiguous(bytes->copy, &bytes->view, bytes->view.len, 'C');
}

static int bytes_borrow(PyObject *object, struct mc_py_bytes *bytes)
{
    if (PyObject_GetBuffer(object, &bytes->view, PyBUF_SIMPLE) == 0) {
        bytes->exported = true;
        bytes->data = bytes->view.buf;
        bytes->length = (size_t)bytes->view.len;
        return 0;
    }
    if (!PyErr_ExceptionMatches(PyExc_BufferError) && !PyErr_ExceptionMatches(PyExc_ValueError))
        return -1;
    PyErr_Clear();
    return bytes_gather(object, bytes);
}

static int bytes_check_part(PyObject *object)
{
    Py_buffer view;
    if (PyObject_GetBuffer(object, &view, PyBUF_FULL_RO) < 0)
        return -1;
    bool good = view.ndim == 1 && view.itemsize == 1;
    PyBuffer_Release(&view);
    if (!good)
        PyErr_SetString(PyExc_RuntimeError, "parts must be 1-D bytes-like");
    return good ? 0 : -1;
}

int mc_py_bytes_acquire(PyObject *object, bool parts_only, struct mc_py_bytes *bytes)
{
    bytes->exported = false;
    bytes->copy = NULL;
    if (PyBytes_CheckExact(object)) {
        /* The caller's argument, or a snapshot, holds the object; bytes never change. */
        bytes->data = PyBytes_AsString(object);
        bytes->length = (size_t)PyBytes_Size(object);
        return 0;
    }
    int rc = parts_only ? bytes_check_part(object) : 0;
    if (rc == 0)
        rc = bytes_borrow(object, bytes);
    if (rc < 0)
        mc_py_bytes_release(bytes);
    return rc;
}

void mc_py_bytes_release(struct mc_py_bytes *bytes)
{
    free(bytes->copy);
    bytes->copy = NULL;
    if (bytes->exported)
        PyBuffer_Release(&bytes->view);
    bytes->exported = false;
}

int mc_py_module_add(PyObject *module, const char *name, PyObject *value)
{
    int rc = value == NULL ? -1 : PyObject_SetAttrString(module, name, value);
    Py_XDECREF(value);
    return rc;
}

PyObject *mc_py_known(_Atomic(PyObject *) *known, PyObject *(*find)(const char *), const char *name)
{
    PyObject *seen = atomic_load(known), *found;
    if (seen != NULL || (found = find(name)) == NULL)
        return seen;
    if (atomic_compare_exchange_strong(known, &seen, found))
        return found;
    Py_DECREF(found); /* another thread was faster */
    return seen;
}

PyObject *mc_py_module_made(PyObject *module, const char *name, bool is_whole)
{
    PyObject *type, *value, *trace;
#ifdef Py_GIL_DISABLED
    if (is_whole && PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED) < 0)
        is_whole = false;
#endif
    if (is_whole)
        return module;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyErr_Format(PyExc_ImportError, "%s cannot start: %S", name, value != NULL ? value : Py_None);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    Py_XDECREF(module);
    return NULL;
}

int mc_py_at_exit(PyObject *function)
{
    PyObject *atexit = function == NULL ? NULL : PyImport_ImportModule("atexit");
    PyObject *result = atexit == NULL ? NULL : PyObject_CallMethod(atexit, "register", "O", function);
    Py_XDECREF(atexit);
    Py_XDECREF(function);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

PyObject *mc_py_log_to(PyObject *Py_UNUSED(module), PyObject *descriptor)
{
    int fd = PyObject_AsFileDescriptor(descriptor);
    return fd < 0 ? NULL : PyLong_FromLong(mc_log_to(fd));
}

void mc_py_object_free(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = __extension__(freefunc) PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF((PyObject *)type);
}

void mc_py_variables_tell(void)
{
    static const char name[] = "_mooncake_variables_told";
    if (PySys_GetObject(name) != NULL)
        mc_unread_told();
    else if (PySys_SetObject(name, Py_True) < 0)
        PyErr_Clear();
    mc_unread_tell();
}

/* A function that makes a list of `count` numbers. */
#define LIST_OF(name, parameters, number)                                                                              \
    PyObject *name parameters                                                                                          \
    {                                                                                                                  \
        PyObject *list = PyList_New(count);                                                                            \
        for (Py_ssize_t i = 0; list != NULL && i < count; i++) {                                                       \
            PyObject *item = PyLong_FromLongLong(number);                                                              \
            if (item == NULL || PyList_SetItem(list, i, item) < 0)                                                     \
                Py_CLEAR(list);                                                                                        \
        }                                                                                                              \
        return list;                                                                                                   \
    }
LIST_OF(mc_py_list_of, (Py_ssize_t count, long value), value)
LIST_OF(mc_py_list_of_i64, (const int64_t *values, Py_ssize_t count), values[i])
LIST_OF(mc_py_list_of_int, (const int *values, Py_ssize_t count), values[i])
