/* SPDX-License-Identifier: Apache-2.0
 *
 * MooncakeDistributedStore's gets: as bytes, as BufferHandle, into addresses, by ranges. */
#include "python/store_object.h"
#include "python/store_types.h"

#include "env/log.h"

#include <stdlib.h>

/* Up to here a copy costs less than taking the GIL in the middle of the call. */
#define STORE_COPY_MAX ((uint64_t)65536)
#define BUFFER_ALIGNMENT ((size_t)64)

/* Where one object goes when its length is not known before: a bytes object, or memory of ours. */
struct get_target {
    PyObject *bytes;
    void *data;
    uint64_t length;
};

struct py_get_call {
    struct mc_py_scratch scratch;
    Py_ssize_t key_count;
    int64_t *results; /* per key */
    struct mc_get_item *items;
    Py_ssize_t *key_of; /* item -> key */
    size_t item_count;
    struct get_target *targets; /* per key; NULL when the caller gave the memory */
    bool want_bytes;            /* bytes objects, not handles */
    PyThreadState *thread;      /* the calling thread's, while the GIL is released */
};

/* -1 with an exception. Always followed by get_free. */
static int get_init(struct py_get_call *call, Py_ssize_t key_count, bool with_targets, bool want_bytes)
{
    mc_py_scratch_init(&call->scratch);
    call->key_count = key_count;
    call->item_count = 0;
    call->want_bytes = want_bytes;
    call->targets = NULL;
    call->results = mc_py_scratch_take(&call->scratch, (size_t)key_count, sizeof(*call->results));
    call->items = mc_py_scratch_take(&call->scratch, (size_t)key_count, sizeof(*call->items));
    call->key_of = mc_py_scratch_take(&call->scratch, (size_t)key_count, sizeof(*call->key_of));
    if (call->results == NULL || call->items == NULL || call->key_of == NULL)
        return -1;
    if (!with_targets)
        return 0;
    call->targets = mc_py_scratch_take(&call->scratch, (size_t)key_count, sizeof(*call->targets));
    for (Py_ssize_t i = 0; call->targets != NULL && i < key_count; i++)
        call->targets[i] = (struct get_target){NULL, NULL, 0};
    return call->targets == NULL ? -1 : 0;
}

static void get_free(struct py_get_call *call)
{
    for (Py_ssize_t i = 0; call->targets != NULL && i < call->key_count; i++) {
        Py_XDECREF(call->targets[i].bytes);
        free(call->targets[i].data);
    }
    mc_py_scratch_free(&call->scratch);
}

static void get_add(struct py_get_call *call, Py_ssize_t key_at, struct mc_bytes key, const struct iovec *parts,
                    size_t part_count)
{
    call->key_of[call->item_count] = key_at;
    call->items[call->item_count++] = (struct mc_get_item){key, parts, part_count, STORE_UNSET};
}

/* A bytes object is made by the interpreter, so this thread needs the GIL for a moment in the middle of the call. Large
 * objects only: they are worth it. While the interpreter goes down a thread that asks for the GIL may never come back,
 * inside of the library. */
static void *allocate_bytes(struct py_get_call *call, struct get_target *target, uint64_t length)
{
    if (mc_py_exiting())
        return NULL;
    PyEval_RestoreThread(call->thread);
    Py_XDECREF(target->bytes);
    target->bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)length);
    if (target->bytes == NULL)
        PyErr_Clear();
    void *data = target->bytes == NULL ? NULL : PyBytes_AsString(target->bytes);
    call->thread = PyEval_SaveThread();
    return data;
}

static void *allocate(void *context, size_t index, uint64_t length)
{
    struct py_get_call *call = context;
    struct get_target *target = &call->targets[call->key_of[index]];
    if (length > (uint64_t)PY_SSIZE_T_MAX - BUFFER_ALIGNMENT)
        return NULL;
    target->length = length;
    if (call->want_bytes && (length > STORE_COPY_MAX || target->bytes != NULL))
        return allocate_bytes(call, target, length);
    free(target->data);
    if (call->want_bytes)
        target->data = malloc((size_t)length);
    else
        target->data =
            aligned_alloc(BUFFER_ALIGNMENT, ((size_t)length + BUFFER_ALIGNMENT - 1) & ~(BUFFER_ALIGNMENT - 1));
    return target->data;
}

static void get_run(struct mc_py_store *self, struct py_get_call *call)
{
    struct mc_store *store = NULL;
    int rc = mc_py_store_enter(self, &store);
    if (rc < 0) {
        for (Py_ssize_t i = 0; i < call->key_count; i++)
            call->results[i] = rc;
    } else {
        call->thread = PyEval_SaveThread();
        if (call->item_count > 0)
            rc = mc_store_get(store, call->items, call->item_count, call->targets == NULL ? NULL : allocate, call);
        mc_py_store_leave(self);
        PyEval_RestoreThread(call->thread);
    }
    for (size_t i = 0; i < call->item_count; i++)
        call->results[call->key_of[i]] = mc_py_result(call->items[i].result, rc);
}

/* The bytes of key i; b"" for any failure. */
static PyObject *take_bytes(struct py_get_call *call, Py_ssize_t i)
{
    struct get_target *target = &call->targets[i];
    if (call->results[i] <= 0 || (uint64_t)call->results[i] != target->length)
        return PyBytes_FromStringAndSize(NULL, 0);
    PyObject *bytes = target->bytes;
    target->bytes = NULL;
    return bytes != NULL ? bytes : PyBytes_FromStringAndSize(target->data, (Py_ssize_t)target->length);
}

/* The handle of key i; None for any failure. */
static PyObject *take_handle(struct py_get_call *call, Py_ssize_t i)
{
    struct get_target *target = &call->targets[i];
    if (call->results[i] <= 0 || (uint64_t)call->results[i] != target->length)
        Py_RETURN_NONE;
    void *data = target->data;
    target->data = NULL;
    return mc_py_buffer_handle(data, (size_t)target->length);
}

static PyObject *get_one(struct mc_py_store *self, PyObject *key_object, bool want_bytes)
{
    struct py_get_call call;
    struct mc_bytes key;
    PyObject *answer = NULL;
    if (mc_py_key(key_object, &key) < 0)
        return NULL;
    if (get_init(&call, 1, true, want_bytes) == 0) {
        get_add(&call, 0, key, NULL, 0);
        get_run(self, &call);
        answer = want_bytes ? take_bytes(&call, 0) : take_handle(&call, 0);
    }
    get_free(&call);
    return answer;
}

static PyObject *get_many(struct mc_py_store *self, PyObject *list, bool want_bytes)
{
    struct py_get_call call;
    PyObject *answer = NULL;
    PyObject *snapshot = mc_py_snapshot(list, "keys");
    if (snapshot == NULL)
        return NULL;
    int rc = get_init(&call, PyTuple_Size(snapshot), true, want_bytes);
    struct mc_bytes *keys = rc < 0 ? NULL : mc_py_keys(snapshot, call.key_count, &call.scratch);
    for (Py_ssize_t i = 0; keys != NULL && i < call.key_count; i++)
        get_add(&call, i, keys[i], NULL, 0);
    if (keys != NULL) {
        get_run(self, &call);
        answer = PyList_New(call.key_count);
    }
    for (Py_ssize_t i = 0; answer != NULL && i < call.key_count; i++) {
        PyObject *item = want_bytes ? take_bytes(&call, i) : take_handle(&call, i);
        if (item == NULL || PyList_SetItem(answer, i, item) < 0)
            Py_CLEAR(answer);
    }
    get_free(&call);
    Py_DECREF(snapshot);
    return answer;
}

MC_PY_STORE_CALL(
    get, 1, "key", get_one(self, values[0], true),
    "The object as bytes; b\"\" when it is not there or on any failure. Never None, never raises for a failure.")
MC_PY_STORE_CALL(get_batch, 1, "keys", get_many(self, values[0], true),
                 "List of bytes as long as keys; b\"\" where an object is not there or on a failure.")
MC_PY_STORE_CALL(get_buffer, 1, "key", get_one(self, values[0], false),
                 "The object as a BufferHandle (writable memory of its own), or None.")
MC_PY_STORE_CALL(batch_get_buffer, 1, "keys", get_many(self, values[0], false),
                 "List as long as keys of BufferHandle, or None where there is no object.")

/* ---- into addresses ---- */

static PyObject *get_into(struct mc_py_store *self, PyObject **values)
{
    PyObject *answer = NULL;
    struct py_get_call call;
    struct mc_bytes key;
    struct iovec part;
    uint64_t address, size;
    if (mc_py_key(values[0], &key) < 0 || mc_py_u64(values[1], &address) < 0 || mc_py_u64(values[2], &size) < 0)
        return NULL;
    if (get_init(&call, 1, false, false) == 0) {
        call.results[0] = mc_py_place(address, size, false, &part);
        if (call.results[0] == 0)
            get_add(&call, 0, key, &part, 1);
        get_run(self, &call);
        answer = PyLong_FromLongLong(call.results[0]);
    }
    get_free(&call);
    return answer;
}

MC_PY_STORE_CALL(get_into, 3, "key, buffer_ptr, size", get_into(self, values),
                 "Copies the whole object to address buffer_ptr, where size bytes are. The memory must stay until the "
                 "call returns.\n\n"
                 "Returns its length in bytes; -704: no such object; -703: still being written; -600: the buffer is "
                 "smaller than the\n"
                 "object, or address 0; -801: stored bytes are damaged. After a failure the buffer may hold anything.")

static PyObject *get_lists(struct mc_py_store *self, const char *method, PyObject **values, bool is_nested)
{
    struct py_get_call call;
    PyObject *tuples[3], *answer = NULL;
    Py_ssize_t key_count = 0;
    int rc = mc_py_snapshot_three(values, method, tuples, &key_count);
    if (rc < 0) {
        answer = mc_py_list_of(key_count, rc);
    } else if (rc == 0) {
        rc = get_init(&call, key_count, false, false);
        struct mc_bytes *keys = rc < 0 ? NULL : mc_py_keys(tuples[0], key_count, &call.scratch);
        struct mc_py_place *places = keys == NULL ? NULL : mc_py_places(tuples + 1, false, is_nested, &call.scratch);
        for (Py_ssize_t i = 0; places != NULL && i < key_count; i++) {
            call.results[i] = places[i].rc;
            if (places[i].rc == 0)
                get_add(&call, i, keys[i], places[i].parts, places[i].part_count);
        }
        if (places != NULL) {
            get_run(self, &call);
            answer = mc_py_list_of_i64(call.results, key_count);
        }
        get_free(&call);
    }
    for (int i = 0; i < 3; i++)
        Py_XDECREF(tuples[i]);
    return answer;
}

MC_PY_STORE_CALL(batch_get_into, 3, "keys, buffer_ptrs, sizes", get_lists(self, "batch_get_into", values, false),
                 "get_into of many keys in one call: three lists of one length.\n\n"
                 "Returns a list of int as long as keys: the object's length in bytes, or a negative code.")
MC_PY_STORE_CALL(batch_get_into_multi_buffers, 3, "keys, all_buffer_ptrs, all_sizes, prefer_alloc_in_same_node=False",
                 get_lists(self, "batch_get_into_multi_buffers", values, true),
                 "Scatters object i over the pieces (all_buffer_ptrs[i][j], all_sizes[i][j]), in order. "
                 "prefer_alloc_in_same_node is accepted; the\n"
                 "nearest replica is always read.\n\n"
                 "Returns a list of int as long as keys: the object's length in bytes, or a negative code; -600: the "
                 "pieces are too small.")

/* ---- ranges ---- */

enum { RANGE_BUFFERS, RANGE_KEYS, RANGE_TARGETS, RANGE_SOURCES, RANGE_SIZES, RANGE_LISTS };
static const char *const range_names[RANGE_LISTS] = {"buffer_ptrs", "all_keys", "all_dst_offsets", "all_src_offsets",
                                                     "all_sizes"};
static const int range_depth[RANGE_LISTS] = {1, 2, 3, 3, 3};

struct range_call {
    PyObject *tuples[RANGE_LISTS];
    struct mc_range_item *items;
    int64_t *results;  /* in the order of the targets */
    size_t *result_of; /* item -> result */
    uint64_t *base_of; /* item -> address of its buffer */
    size_t item_count, result_count, mismatch_count;
};

static PyObject *inner(PyObject *tuple, Py_ssize_t i)
{
    return tuple != NULL && i < PyTuple_Size(tuple) ? PyTuple_GetItem(tuple, i) : NULL;
}

/* What the lists do not say is one: so that what fits nowhere has its result too. */
static Py_ssize_t key_count(PyObject **tuples, Py_ssize_t buffer)
{
    PyObject *keys = inner(tuples[RANGE_KEYS], buffer);
    return keys == NULL ? 1 : PyTuple_Size(keys);
}

static Py_ssize_t range_count(PyObject **tuples, Py_ssize_t buffer, Py_ssize_t key)
{
    PyObject *targets = inner(inner(tuples[RANGE_TARGETS], buffer), key);
    return targets == NULL ? 1 : PyTuple_Size(targets);
}

static size_t count_ranges(PyObject **tuples)
{
    size_t total = 0;
    for (Py_ssize_t b = 0; b < PyTuple_Size(tuples[RANGE_BUFFERS]); b++)
        for (Py_ssize_t k = 0; k < key_count(tuples, b); k++)
            total += (size_t)range_count(tuples, b, k);
    return total;
}

/* Are the lists as long as each other: the outer ones, those of this buffer, those of this key? */
static bool ranges_match(PyObject **tuples, Py_ssize_t buffer, Py_ssize_t key)
{
    bool match = true;
    for (int i = 0; match && i < RANGE_SIZES; i++)
        match = PyTuple_Size(tuples[i]) == PyTuple_Size(tuples[RANGE_SIZES]);
    PyObject *sizes = match ? inner(tuples[RANGE_SIZES], buffer) : NULL;
    for (int i = RANGE_KEYS; match && i < RANGE_SIZES; i++)
        match = PyTuple_Size(inner(tuples[i], buffer)) == PyTuple_Size(sizes);
    sizes = match ? inner(sizes, key) : NULL;
    for (int i = RANGE_TARGETS; match && i < RANGE_SIZES; i++)
        match = PyTuple_Size(inner(inner(tuples[i], buffer), key)) == PyTuple_Size(sizes);
    return match;
}

/* The ranges of one key. -1 with an exception. */
static int ranges_of_key(struct range_call *call, struct mc_bytes key, uint64_t base, PyObject *targets,
                         PyObject *sources, PyObject *sizes)
{
    for (Py_ssize_t r = 0; r < PyTuple_Size(sizes); r++) {
        uint64_t target, source, size;
        struct iovec part;
        if (mc_py_u64(PyTuple_GetItem(targets, r), &target) < 0 ||
            mc_py_u64(PyTuple_GetItem(sources, r), &source) < 0 || mc_py_u64(PyTuple_GetItem(sizes, r), &size) < 0)
            return -1;
        size_t at = call->result_count++;
        bool good = base != 0 && base + target >= base && mc_py_part(base + target, size, &part) == 0;
        call->results[at] = MC_ERR_INVALID_PARAMS;
        if (!good)
            continue;
        call->result_of[call->item_count] = at;
        call->base_of[call->item_count] = base;
        call->items[call->item_count++] = (struct mc_range_item){key, source, size, part.iov_base, STORE_UNSET};
    }
    return 0;
}

static int ranges_fill(struct range_call *call)
{
    PyObject **tuples = call->tuples;
    for (Py_ssize_t b = 0; b < PyTuple_Size(tuples[RANGE_BUFFERS]); b++) {
        uint64_t base;
        if (mc_py_u64(PyTuple_GetItem(tuples[RANGE_BUFFERS], b), &base) < 0)
            return -1;
        for (Py_ssize_t k = 0; k < key_count(tuples, b); k++) {
            struct mc_bytes key;
            if (!ranges_match(tuples, b, k)) {
                call->mismatch_count++;
                call->result_count += (size_t)range_count(tuples, b, k);
            } else if (mc_py_key(inner(inner(tuples[RANGE_KEYS], b), k), &key) < 0 ||
                       ranges_of_key(call, key, base, inner(inner(tuples[RANGE_TARGETS], b), k),
                                     inner(inner(tuples[RANGE_SOURCES], b), k),
                                     inner(inner(tuples[RANGE_SIZES], b), k)) < 0)
                return -1;
        }
    }
    return 0;
}

/* Takes out what reaches beyond its buffer, as far as that is registered; its result stands. */
static void ranges_bound(struct mc_store *store, struct range_call *call)
{
    size_t kept = 0;
    uint64_t base = 0, bytes = UINT64_MAX;
    for (size_t i = 0; i < call->item_count; i++) {
        const struct mc_range_item *item = &call->items[i];
        if (call->base_of[i] != base) {
            base = call->base_of[i];
            bytes = mc_store_registered_bytes(store, (const void *)(uintptr_t)base);
        }
        uint64_t offset = (uint64_t)(uintptr_t)item->target - base;
        if (offset > bytes || item->size > bytes - offset)
            continue;
        call->items[kept] = *item;
        call->result_of[kept++] = call->result_of[i];
    }
    call->item_count = kept;
}

static int ranges_read(struct mc_store *store, struct range_call *call)
{
    ranges_bound(store, call);
    return call->item_count > 0 ? mc_store_get_ranges(store, call->items, call->item_count) : 0;
}

static void ranges_run(struct mc_py_store *self, struct range_call *call)
{
    int rc;
    MC_PY_IN_STORE(self, store, rc, ranges_read(store, call));
    for (size_t i = 0; i < call->item_count; i++)
        call->results[call->result_of[i]] = mc_py_result(call->items[i].result, rc);
}

static PyObject *results_of_buffer(struct range_call *call, Py_ssize_t buffer, const int64_t **results)
{
    PyObject *list = PyList_New(key_count(call->tuples, buffer));
    for (Py_ssize_t k = 0; list != NULL && k < PyList_Size(list); k++) {
        Py_ssize_t count = range_count(call->tuples, buffer, k);
        PyObject *leaf = mc_py_list_of_i64(*results, count);
        *results += count;
        if (leaf == NULL || PyList_SetItem(list, k, leaf) < 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *ranges_results(struct range_call *call)
{
    const int64_t *results = call->results;
    PyObject *list = PyList_New(PyTuple_Size(call->tuples[RANGE_BUFFERS]));
    for (Py_ssize_t b = 0; list != NULL && b < PyList_Size(list); b++) {
        PyObject *of_buffer = results_of_buffer(call, b, &results);
        if (of_buffer == NULL || PyList_SetItem(list, b, of_buffer) < 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *ranges_answer(struct mc_py_store *self, struct range_call *call)
{
    struct mc_py_scratch scratch;
    PyObject *answer = NULL;
    size_t total = count_ranges(call->tuples);
    mc_py_scratch_init(&scratch);
    call->results = mc_py_scratch_take(&scratch, total, sizeof(*call->results));
    call->items = mc_py_scratch_take(&scratch, total, sizeof(*call->items));
    call->result_of = mc_py_scratch_take(&scratch, total, sizeof(*call->result_of));
    call->base_of = mc_py_scratch_take(&scratch, total, sizeof(*call->base_of));
    if (call->results == NULL || call->items == NULL || call->result_of == NULL || call->base_of == NULL)
        goto out;
    for (size_t i = 0; i < total; i++)
        call->results[i] = MC_ERR_INVALID_PARAMS;
    if (ranges_fill(call) < 0)
        goto out;
    if (call->mismatch_count > 0)
        mc_log(ERROR, "get_into_ranges: the lists are not of one shape: buffer_ptrs[b], all_keys[b][k], offsets and "
                      "sizes [b][k][r]");
    ranges_run(self, call);
    answer = ranges_results(call);
out:
    mc_py_scratch_free(&scratch);
    return answer;
}

static PyObject *get_into_ranges(struct mc_py_store *self, PyObject **values)
{
    PyObject *answer = NULL;
    struct range_call call = {.item_count = 0};
    int i = 0;
    for (; i < RANGE_LISTS; i++)
        if ((call.tuples[i] = mc_py_snapshot_deep(values[i], range_depth[i], range_names[i])) == NULL)
            break;
    if (i == RANGE_LISTS)
        answer = ranges_answer(self, &call);
    for (i = 0; i < RANGE_LISTS; i++)
        Py_XDECREF(call.tuples[i]);
    return answer;
}

MC_PY_STORE_CALL(
    get_into_ranges, 5, "buffer_ptrs, all_keys, all_dst_offsets, all_src_offsets, all_sizes",
    get_into_ranges(self, values),
    "Copies parts of objects. For buffer b, its key k and that key's range r: all_sizes[b][k][r] bytes from "
    "offset all_src_offsets[b][k][r] of\n"
    "object all_keys[b][k] to address buffer_ptrs[b] + all_dst_offsets[b][k][r]. Each part is verified by "
    "its own checksums.\n\n"
    "Returns lists [b][k][r] of int: the bytes copied, or a negative code; -600 beyond the object's end, or the "
    "end of a buffer that is\n"
    "registered; -600 everywhere when the lists are not of one shape.")
