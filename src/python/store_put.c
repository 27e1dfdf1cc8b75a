/* SPDX-License-Identifier: Apache-2.0
 *
 * MooncakeDistributedStore's puts and upserts: from buffer objects and from addresses, single and in batches. An upsert
 * is the put of the same form that replaces a value; its methods differ in the flag only. */
#include "python/store_object.h"
#include "python/store_types.h"

#include "env/log.h"

/* One call under construction: items that go to the library, and for every key its result. */
struct put_call {
    struct mc_py_scratch scratch;
    struct mc_py_replicate replicate;
    Py_ssize_t key_count;
    int *results;              /* per key */
    struct mc_put_item *items; /* those keys that the library is asked to put */
    Py_ssize_t *key_of;        /* item -> key */
    size_t item_count;
    bool replace; /* upsert */
};

/* 0, an enum mc_error for every key, or 1 with an exception. Always followed by put_free. */
static int put_init(struct put_call *call, PyObject *config, Py_ssize_t key_count, enum mc_py_put_kind kind,
                    bool replace)
{
    call->replace = replace;
    mc_py_scratch_init(&call->scratch);
    call->key_count = key_count;
    call->item_count = 0;
    int rc = mc_py_replicate_acquire(config, key_count, kind, &call->replicate);
    if (rc != 0)
        return rc;
    call->results = mc_py_scratch_take(&call->scratch, (size_t)key_count, sizeof(*call->results));
    call->items = mc_py_scratch_take(&call->scratch, (size_t)key_count, sizeof(*call->items));
    call->key_of = mc_py_scratch_take(&call->scratch, (size_t)key_count, sizeof(*call->key_of));
    return call->results == NULL || call->items == NULL || call->key_of == NULL ? 1 : 0;
}

static void put_free(struct put_call *call)
{
    mc_py_replicate_release(&call->replicate);
    mc_py_scratch_free(&call->scratch);
}

static void put_add(struct put_call *call, Py_ssize_t key_at, struct mc_bytes key, const struct iovec *parts,
                    size_t part_count)
{
    if (call->replicate.groups != NULL) /* as the items: without the keys that are left out */
        call->replicate.groups[call->item_count] = call->replicate.groups[key_at];
    call->key_of[call->item_count] = key_at;
    call->items[call->item_count++] = (struct mc_put_item){key, parts, part_count, STORE_UNSET};
}

static void put_run(struct mc_py_store *self, struct put_call *call)
{
    struct mc_store *store = NULL;
    int rc = mc_py_store_enter(self, &store);
    if (rc == 0 && call->item_count > 0) {
        Py_BEGIN_ALLOW_THREADS rc = (call->replace ? mc_store_upsert : mc_store_put)(
            store, call->items, call->item_count, &call->replicate.config);
        mc_py_store_leave(self);
        Py_END_ALLOW_THREADS
    } else if (rc == 0) {
        mc_py_store_leave(self);
    } else {
        for (Py_ssize_t i = 0; i < call->key_count; i++)
            call->results[i] = rc;
    }
    for (size_t i = 0; i < call->item_count; i++)
        call->results[call->key_of[i]] = (int)mc_py_result(call->items[i].result, rc);
}

/* rc as put_init gave it, or 0 after put_run: the answer of a call with one result. */
static PyObject *put_answer_one(struct put_call *call, int rc)
{
    PyObject *answer = rc > 0 ? NULL : PyLong_FromLong(rc < 0 ? rc : call->results[0]);
    put_free(call);
    return answer;
}

static PyObject *put_answer_list(struct put_call *call, int rc)
{
    PyObject *answer = NULL;
    if (rc == 0)
        answer = mc_py_list_of_int(call->results, call->key_count);
    else if (rc < 0)
        answer = mc_py_list_of(call->key_count, rc);
    put_free(call);
    return answer;
}

/* Nothing to store is nothing that can be found. Its code is the original's: 0 for an object alone, -600 in a batch. */
static void put_nothing(struct put_call *call, Py_ssize_t key_at, bool is_batch)
{
    int rc = is_batch ? MC_ERR_INVALID_PARAMS : 0;
    mc_log_limited(WARNING, "a put of 0 bytes stores nothing (and returns %d)", rc);
    call->results[key_at] = rc;
}

/* ---- from buffer objects ---- */

static PyObject *put_bytes(struct mc_py_store *self, PyObject **values, bool replace)
{
    struct put_call call;
    struct mc_py_bytes bytes;
    struct mc_bytes key;
    if (mc_py_key(values[0], &key) < 0 || mc_py_bytes_acquire(values[1], false, &bytes) < 0)
        return NULL;
    int rc = put_init(&call, values[2], 1, MC_PY_PUT_ONE, replace);
    struct iovec part = {(void *)(uintptr_t)bytes.data, bytes.length};
    if (rc == 0) {
        put_add(&call, 0, key, &part, 1);
        put_run(self, &call);
    }
    mc_py_bytes_release(&bytes);
    return put_answer_one(&call, rc);
}

MC_PY_STORE_CALL(put, 2, "key, value, config=None", put_bytes(self, values, false),
                 "Stores a copy of value (any buffer object: bytes, bytearray, memoryview, array, numpy) under key.\n\n"
                 "Returns 0 when it is stored, or when the key exists already (the old value stays); -200: no room; "
                 "-400: bad key; -600: empty\n"
                 "value or bad config; -900, -901: the master cannot be reached in time.")
MC_PY_STORE_CALL(upsert, 2, "key, value, config=None", put_bytes(self, values, true),
                 "put that replaces the value which the key may have. That one stays readable until the new one is "
                 "whole.\n\nReturns as put does.")

/* Releases what the first `count` of them hold. */
static void release_all(struct mc_py_bytes *bytes, Py_ssize_t count)
{
    while (count > 0)
        mc_py_bytes_release(&bytes[--count]);
}

/* Bytes of many objects. Returns how many were acquired; less than count: with an exception. */
static Py_ssize_t acquire_all(PyObject *const *objects, Py_ssize_t count, bool parts_only, struct mc_py_bytes *bytes,
                              struct iovec *parts)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        if (mc_py_bytes_acquire(objects[i], parts_only, &bytes[i]) < 0)
            return i;
        parts[i] = (struct iovec){(void *)(uintptr_t)bytes[i].data, bytes[i].length};
    }
    return count;
}

/* put_parts and upsert_parts take any number of parts, and config by keyword only. */
static int parts_config(const char *method, PyObject *const *args, Py_ssize_t count, PyObject *keywords,
                        PyObject **config)
{
    Py_ssize_t named = keywords == NULL ? 0 : PyTuple_Size(keywords);
    *config = NULL;
    for (Py_ssize_t i = 0; i < named; i++) {
        PyObject *name = PyTuple_GetItem(keywords, i);
        if (PyUnicode_CompareWithASCIIString(name, "config") != 0) {
            PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'", method, name);
            return -1;
        }
        *config = args[count + i];
    }
    if (count < 1) {
        PyErr_Format(PyExc_TypeError, "%s() missing required argument 'key'", method);
        return -1;
    }
    return 0;
}

const char mc_py_store_doc_put_parts[] =
    "put_parts(key, *parts, config=None)\n--\n\n"
    "Stores the parts, one after the other, as one object. Each part is a 1-D buffer of "
    "one-byte items, else RuntimeError.\n\n"
    "Returns as put does; no byte at all: 0, and nothing is stored.";
const char mc_py_store_doc_upsert_parts[] = "upsert_parts(key, *parts, config=None)\n--\n\n"
                                            "put_parts that replaces the value which the key may have.\n\n"
                                            "Returns as put does.";
static PyObject *put_joined(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords, bool replace)
{
    PyObject *config;
    struct put_call call;
    struct mc_bytes key;
    if (parts_config(replace ? "upsert_parts" : "put_parts", args, count, keywords, &config) < 0 ||
        mc_py_key(args[0], &key) < 0)
        return NULL;
    Py_ssize_t part_count = count - 1;
    int rc = put_init(&call, config, 1, MC_PY_PUT_ONE, replace);
    if (rc != 0)
        return put_answer_one(&call, rc);
    struct mc_py_bytes *bytes = mc_py_scratch_take(&call.scratch, (size_t)part_count, sizeof(*bytes));
    struct iovec *parts = bytes == NULL ? NULL : mc_py_scratch_take(&call.scratch, (size_t)part_count, sizeof(*parts));
    if (parts == NULL)
        return put_answer_one(&call, 1);
    Py_ssize_t acquired = acquire_all(args + 1, part_count, true, bytes, parts);
    size_t length = 0;
    for (Py_ssize_t i = 0; i < acquired; i++)
        length += parts[i].iov_len;
    if (acquired == part_count) {
        if (length == 0)
            put_nothing(&call, 0, false);
        else
            put_add(&call, 0, key, parts, (size_t)part_count);
        put_run((struct mc_py_store *)object, &call);
    }
    release_all(bytes, acquired);
    return put_answer_one(&call, acquired == part_count ? 0 : 1);
}

PyObject *mc_py_store_put_parts(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    return put_joined(object, args, count, keywords, false);
}

PyObject *mc_py_store_upsert_parts(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    return put_joined(object, args, count, keywords, true);
}

/* A tuple's items as an array, for acquire_all. */
static PyObject **tuple_items(PyObject *tuple, Py_ssize_t count, struct mc_py_scratch *scratch)
{
    PyObject **items = mc_py_scratch_take(scratch, (size_t)count, sizeof(PyObject *));
    for (Py_ssize_t i = 0; items != NULL && i < count; i++)
        items[i] = PyTuple_GetItem(tuple, i);
    return items;
}

/* Fills the call with key i -> value i and runs it. 0, or 1 with an exception. */
static int put_values(struct mc_py_store *self, struct put_call *call, PyObject *key_tuple, PyObject *value_tuple)
{
    Py_ssize_t count = call->key_count;
    struct mc_bytes *keys = mc_py_keys(key_tuple, count, &call->scratch);
    PyObject **objects = keys == NULL ? NULL : tuple_items(value_tuple, count, &call->scratch);
    struct mc_py_bytes *bytes =
        objects == NULL ? NULL : mc_py_scratch_take(&call->scratch, (size_t)count, sizeof(*bytes));
    struct iovec *parts = bytes == NULL ? NULL : mc_py_scratch_take(&call->scratch, (size_t)count, sizeof(*parts));
    if (parts == NULL)
        return 1;
    Py_ssize_t acquired = acquire_all(objects, count, false, bytes, parts);
    if (acquired == count) {
        for (Py_ssize_t i = 0; i < count; i++)
            put_add(call, i, keys[i], &parts[i], 1);
        put_run(self, call);
    }
    release_all(bytes, acquired);
    return acquired == count ? 0 : 1;
}

static PyObject *put_many(struct mc_py_store *self, PyObject **values, bool replace)
{
    struct put_call call;
    PyObject *keys = mc_py_snapshot(values[0], "keys");
    PyObject *data = keys == NULL ? NULL : mc_py_snapshot(values[1], "values");
    if (data == NULL) {
        Py_XDECREF(keys);
        return NULL;
    }
    Py_ssize_t key_count = PyTuple_Size(keys);
    int rc = put_init(&call, values[2], key_count, MC_PY_PUT_BATCH, replace);
    if (rc == 0 && PyTuple_Size(data) != key_count) {
        mc_log(ERROR, "%s: %zd keys but %zd values; nothing was stored", replace ? "upsert_batch" : "put_batch",
               key_count, PyTuple_Size(data));
        rc = MC_ERR_INVALID_PARAMS;
    }
    if (rc == 0)
        rc = put_values(self, &call, keys, data);
    for (Py_ssize_t i = 0; rc == 0 && i < key_count; i++)
        rc = call.results[i] < 0 ? call.results[i] : 0;
    put_free(&call);
    Py_DECREF(keys);
    Py_DECREF(data);
    return rc > 0 ? NULL : PyLong_FromLong(rc);
}

MC_PY_STORE_CALL(put_batch, 2, "keys, values, config=None", put_many(self, values, false),
                 "Stores values[i] (buffer objects) under keys[i] in one call.\n\n"
                 "Returns 0 when all are stored or existed already, else the first negative code; -600 for lists of "
                 "unequal length.")
MC_PY_STORE_CALL(upsert_batch, 2, "keys, values, config=None", put_many(self, values, true),
                 "put_batch that replaces values which the keys may have.\n\nReturns as put_batch does.")

/* ---- from addresses ---- */

static void put_add_place(struct put_call *call, Py_ssize_t key_at, struct mc_bytes key,
                          const struct mc_py_place *place, bool is_batch)
{
    if (place->rc < 0)
        call->results[key_at] = place->rc;
    else if (place->part_count == 0 || place->parts[0].iov_len == 0)
        put_nothing(call, key_at, is_batch);
    else
        put_add(call, key_at, key, place->parts, place->part_count);
}

static PyObject *put_address(struct mc_py_store *self, PyObject **values, bool replace)
{
    struct put_call call;
    struct mc_bytes key;
    struct iovec part;
    uint64_t address, size;
    if (mc_py_key(values[0], &key) < 0 || mc_py_u64(values[1], &address) < 0 || mc_py_u64(values[2], &size) < 0)
        return NULL;
    int rc = put_init(&call, values[3], 1, MC_PY_PUT_ONE, replace);
    if (rc == 0) {
        const struct mc_py_place place = {&part, 1, mc_py_place(address, size, true, &part)};
        put_add_place(&call, 0, key, &place, false);
        put_run(self, &call);
    }
    return put_answer_one(&call, rc);
}

MC_PY_STORE_CALL(put_from, 3, "key, buffer_ptr, size, config=None", put_address(self, values, false),
                 "Stores size bytes at address buffer_ptr, without a copy in between. The memory must stay until the "
                 "call returns.\n\n"
                 "Returns as put does; size 0 returns 0 and stores nothing; address 0 returns -600.")
MC_PY_STORE_CALL(upsert_from, 3, "key, buffer_ptr, size, config=None", put_address(self, values, true),
                 "put_from that replaces the value which the key may have.\n\nReturns as put_from does.")

/* Data behind its metadata, as one object. */
static int put_framed(struct mc_py_store *self, struct put_call *call, struct mc_bytes key, const uint64_t numbers[4])
{
    struct iovec parts[2];
    uint64_t size = numbers[2], metadata_size = numbers[3];
    if (size == 0) {
        put_nothing(call, 0, false);
        return 0;
    }
    bool has_metadata = metadata_size > 0;
    if ((has_metadata && mc_py_part(numbers[1], metadata_size, &parts[0]) < 0) ||
        mc_py_part(numbers[0], size, &parts[has_metadata]) < 0)
        return MC_ERR_INVALID_PARAMS;
    put_add(call, 0, key, parts, has_metadata ? 2 : 1);
    put_run(self, call);
    return 0;
}

static PyObject *put_from_with_metadata(struct mc_py_store *self, PyObject **values)
{
    struct put_call call;
    struct mc_bytes key;
    uint64_t numbers[4];
    if (mc_py_key(values[0], &key) < 0)
        return NULL;
    for (int i = 0; i < 4; i++)
        if (mc_py_u64(values[i + 1], &numbers[i]) < 0)
            return NULL;
    int rc = put_init(&call, values[5], 1, MC_PY_PUT_ONE, false);
    if (rc == 0)
        rc = put_framed(self, &call, key, numbers);
    return put_answer_one(&call, rc);
}

MC_PY_STORE_CALL(put_from_with_metadata, 5, "key, buffer_ptr, metadata_buffer_ptr, size, metadata_size, config=None",
                 put_from_with_metadata(self, values),
                 "Stores metadata_size bytes at metadata_buffer_ptr and, behind them, size bytes at buffer_ptr as one "
                 "object.\n\n"
                 "Returns as put_from does; a negative code on failure (the original: a positive one).")

static PyObject *put_lists(struct mc_py_store *self, const char *method, PyObject **values, enum mc_py_put_kind kind,
                           bool replace)
{
    const bool is_nested = kind == MC_PY_PUT_MULTI;
    struct put_call call;
    PyObject *tuples[3], *answer = NULL;
    Py_ssize_t key_count = 0;
    int rc = mc_py_snapshot_three(values, method, tuples, &key_count);
    if (rc < 0) {
        answer = mc_py_list_of(key_count, rc);
    } else if (rc == 0) {
        rc = put_init(&call, values[3], key_count, kind, replace);
        struct mc_bytes *keys = rc == 0 ? mc_py_keys(tuples[0], key_count, &call.scratch) : NULL;
        struct mc_py_place *places = keys == NULL ? NULL : mc_py_places(tuples + 1, true, is_nested, &call.scratch);
        for (Py_ssize_t i = 0; places != NULL && i < key_count; i++)
            put_add_place(&call, i, keys[i], &places[i], true);
        if (places != NULL)
            put_run(self, &call);
        answer = put_answer_list(&call, rc == 0 && places == NULL ? 1 : rc);
    }
    for (int i = 0; i < 3; i++)
        Py_XDECREF(tuples[i]);
    return answer;
}

MC_PY_STORE_CALL(batch_put_from, 3, "keys, buffer_ptrs, sizes, config=None",
                 put_lists(self, "batch_put_from", values, MC_PY_PUT_BATCH, false),
                 "put_from of many keys in one call: three lists of one length.\n\n"
                 "Returns a list of int as long as keys: 0 or a negative code each, -600 for a size of 0; -600 for all "
                 "when lengths differ.")
MC_PY_STORE_CALL(batch_upsert_from, 3, "keys, buffer_ptrs, sizes, config=None",
                 put_lists(self, "batch_upsert_from", values, MC_PY_PUT_BATCH, true),
                 "batch_put_from that replaces values which the keys may have.\n\nReturns as batch_put_from does.")
MC_PY_STORE_CALL(batch_put_from_multi_buffers, 3, "keys, all_buffer_ptrs, all_sizes, config=None",
                 put_lists(self, "batch_put_from_multi_buffers", values, MC_PY_PUT_MULTI, false),
                 "Gathers object i from the pieces (all_buffer_ptrs[i][j], all_sizes[i][j]), in order.\n\n"
                 "Returns a list of int as long as keys: 0 or a negative code each; -200: no room; -600: no bytes.")
MC_PY_STORE_CALL(_batch_upsert_from_multi_buffers, 3, "keys, all_buffer_ptrs, all_sizes, config=None",
                 put_lists(self, "_batch_upsert_from_multi_buffers", values, MC_PY_PUT_MULTI, true),
                 "batch_put_from_multi_buffers that replaces values which the keys may have: upserts of tensors.")
