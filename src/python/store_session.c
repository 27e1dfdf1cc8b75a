/* SPDX-License-Identifier: Apache-2.0
 *
 * MooncakeDistributedStore's sessions: objects that are read, or put together, in pieces over many calls. */
#include "python/store_object.h"
#include "python/store_types.h"

#include "env/log.h"

/* ---- start and end ---- */

enum session_act { GET_START, GET_END, PUT_START, PUT_END, PUT_REVOKE };

static int act_in_store(struct mc_store *store, enum session_act act, const struct mc_bytes *keys, size_t count,
                        const uint64_t *sizes, const struct mc_replicate_config *config, int *results)
{
    switch (act) {
    case GET_START:
        return mc_store_get_session_start(store, keys, count, results);
    case GET_END:
        return mc_store_get_session_end(store, keys, count);
    case PUT_START:
        return mc_store_put_session_start(store, keys, sizes, count, config, results);
    case PUT_END:
        return mc_store_put_session_end(store, keys, count, results);
    case PUT_REVOKE:
        break;
    }
    return mc_store_put_session_revoke(store, keys, count, results);
}

/* The list of results; of GET_END what the call said. */
static PyObject *act_on_keys(struct mc_py_store *self, enum session_act act, PyObject *sequence, const uint64_t *sizes,
                             const struct mc_replicate_config *config)
{
    struct mc_py_key_list list;
    struct mc_store *store = NULL;
    PyObject *answer = NULL;
    if (mc_py_key_list_take(sequence, &list)) {
        int rc = mc_py_store_enter(self, &store);
        for (Py_ssize_t i = 0; i < list.count; i++)
            list.results[i] = rc;
        if (rc == 0) {
            Py_BEGIN_ALLOW_THREADS rc =
                act_in_store(store, act, list.keys, (size_t)list.count, sizes, config, list.results);
            mc_py_store_leave(self);
            Py_END_ALLOW_THREADS
        }
        answer = act == GET_END ? PyLong_FromLong(rc) : mc_py_list_of_int(list.results, list.count);
    }
    mc_py_key_list_free(&list);
    return answer;
}

MC_PY_STORE_CALL(batch_get_session_start, 1, "keys", act_on_keys(self, GET_START, values[0], NULL, NULL),
                 "Begins to read objects in pieces: they are not evicted until the session ends, and their places are "
                 "asked for once.\n\n"
                 "Returns a list of int: 0, or a negative code (-704: no such object). A session that nobody reads "
                 "from for 30 s ends by itself.")
MC_PY_STORE_CALL(batch_get_session_end, 1, "keys", act_on_keys(self, GET_END, values[0], NULL, NULL),
                 "Ends get sessions. Returns 0, also for keys without one.")
MC_PY_STORE_CALL(batch_put_session_end, 1, "keys", act_on_keys(self, PUT_END, values[0], NULL, NULL),
                 "Stores the objects of put sessions, whole; what no range covered is zero.\n\n"
                 "Returns a list of int: 0, or a negative code; -600: no such session. The sessions have ended in "
                 "every case.")
MC_PY_STORE_CALL(batch_put_session_revoke, 1, "keys", act_on_keys(self, PUT_REVOKE, values[0], NULL, NULL),
                 "Ends put sessions and stores nothing. Returns a list of int: 0; -600: no such session.")

/* 0, MC_ERR_INVALID_PARAMS for unequal lengths, 1 with an exception. */
static int read_sizes(PyObject *tuple, Py_ssize_t count, struct mc_py_scratch *scratch, uint64_t **sizes)
{
    if (PyTuple_Size(tuple) != count) {
        mc_log(ERROR, "batch_put_session_start: %zd keys but %zd sizes", count, PyTuple_Size(tuple));
        return MC_ERR_INVALID_PARAMS;
    }
    *sizes = mc_py_scratch_take(scratch, (size_t)count, sizeof(**sizes));
    for (Py_ssize_t i = 0; *sizes != NULL && i < count; i++)
        if (mc_py_u64(PyTuple_GetItem(tuple, i), &(*sizes)[i]) < 0)
            return 1;
    return *sizes == NULL ? 1 : 0;
}

static PyObject *batch_put_session_start(struct mc_py_store *self, PyObject **values)
{
    PyObject *answer = NULL;
    struct mc_py_scratch scratch;
    struct mc_py_replicate replicate;
    uint64_t *sizes = NULL;
    PyObject *keys = mc_py_snapshot(values[0], "keys");
    PyObject *given = keys == NULL ? NULL : mc_py_snapshot(values[1], "sizes");
    if (given == NULL) {
        Py_XDECREF(keys);
        return NULL;
    }
    mc_py_scratch_init(&scratch);
    Py_ssize_t key_count = PyTuple_Size(keys);
    int rc = mc_py_replicate_acquire(values[2], key_count, MC_PY_PUT_MULTI, &replicate);
    if (rc == 0)
        rc = read_sizes(given, key_count, &scratch, &sizes);
    if (rc == 0)
        answer = act_on_keys(self, PUT_START, keys, sizes, &replicate.config);
    else if (rc < 0)
        answer = mc_py_list_of(key_count, rc);
    mc_py_replicate_release(&replicate);
    mc_py_scratch_free(&scratch);
    Py_DECREF(keys);
    Py_DECREF(given);
    return answer;
}

MC_PY_STORE_CALL(batch_put_session_start, 2, "keys, sizes, config=None", batch_put_session_start(self, values),
                 "Begins to put objects together from pieces, in memory of this process. Nobody sees them before "
                 "their session ends.\n\n"
                 "Returns a list of int: 0; -705: the key exists; -600: it has a session, or size 0; -200: too large.")

/* ---- ranges ---- */

enum { LIST_KEYS, LIST_ADDRESSES, LIST_SIZES, LIST_OFFSETS, LISTS };

struct ranges_call {
    struct mc_py_scratch scratch;
    PyObject *tuples[LISTS];
    bool is_put;
    Py_ssize_t key_count;
    struct mc_bytes *keys;
    int64_t *results;           /* per key: bytes so far, or its first error */
    Py_ssize_t *key_of;         /* item -> key */
    struct mc_range_item *gets; /* one of the two */
    struct mc_put_range_item *puts;
    size_t item_count;
};

static void add_item(struct ranges_call *call, Py_ssize_t at, void *memory, uint64_t size, uint64_t offset)
{
    size_t item = call->item_count++;
    call->key_of[item] = at;
    if (call->is_put)
        call->puts[item] = (struct mc_put_range_item){call->keys[at], offset, size, memory, STORE_UNSET};
    else
        call->gets[item] = (struct mc_range_item){call->keys[at], offset, size, memory, STORE_UNSET};
}

/* The ranges of one key; one of nothing when there is none, which looks whether there is a session. 0, or 1 with an
 * exception. */
static int add_key(struct ranges_call *call, Py_ssize_t at)
{
    PyObject *addresses = PyTuple_GetItem(call->tuples[LIST_ADDRESSES], at);
    PyObject *sizes = PyTuple_GetItem(call->tuples[LIST_SIZES], at);
    PyObject *offsets = PyTuple_GetItem(call->tuples[LIST_OFFSETS], at);
    Py_ssize_t count = PyTuple_Size(addresses);
    size_t first = call->item_count;
    if (PyTuple_Size(sizes) != count || PyTuple_Size(offsets) != count) {
        mc_log_limited(ERROR, "ranges of a session: key %zd has not as many sizes and offsets as addresses", at);
        call->results[at] = MC_ERR_INVALID_PARAMS;
        return 0;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        uint64_t address, size, offset;
        struct iovec part = {NULL, 0};
        if (mc_py_u64(PyTuple_GetItem(addresses, i), &address) < 0 || mc_py_u64(PyTuple_GetItem(sizes, i), &size) < 0 ||
            mc_py_u64(PyTuple_GetItem(offsets, i), &offset) < 0)
            return 1;
        if (size > 0 && mc_py_part(address, size, &part) < 0) {
            call->results[at] = MC_ERR_INVALID_PARAMS;
            call->item_count = first;
            return 0;
        }
        add_item(call, at, part.iov_base, size, offset);
    }
    if (count == 0)
        add_item(call, at, NULL, 0, 0);
    return 0;
}

static int ranges_fill(struct ranges_call *call)
{
    struct mc_py_scratch *scratch = &call->scratch;
    size_t most = mc_py_count_inner(call->tuples[LIST_ADDRESSES]) + (size_t)call->key_count;
    call->keys = mc_py_keys(call->tuples[LIST_KEYS], call->key_count, scratch);
    call->results = mc_py_scratch_take(scratch, (size_t)call->key_count, sizeof(*call->results));
    call->key_of = mc_py_scratch_take(scratch, most, sizeof(*call->key_of));
    void *items = mc_py_scratch_take(scratch, most, call->is_put ? sizeof(*call->puts) : sizeof(*call->gets));
    if (call->keys == NULL || call->results == NULL || call->key_of == NULL || items == NULL)
        return 1;
    if (call->is_put)
        call->puts = items;
    else
        call->gets = items;
    for (Py_ssize_t i = 0; i < call->key_count; i++) {
        call->results[i] = 0;
        if (add_key(call, i) != 0)
            return 1;
    }
    return 0;
}

static void ranges_run(struct mc_py_store *self, struct ranges_call *call)
{
    struct mc_store *store = NULL;
    int rc = mc_py_store_enter(self, &store);
    if (rc == 0) {
        Py_BEGIN_ALLOW_THREADS if (call->item_count == 0) rc = 0;
        else if (call->is_put) rc = mc_store_put_session_ranges(store, call->puts, call->item_count);
        else rc = mc_store_get_session_ranges(store, call->gets, call->item_count);
        mc_py_store_leave(self);
        Py_END_ALLOW_THREADS
    } else {
        for (Py_ssize_t i = 0; i < call->key_count; i++)
            call->results[i] = rc;
    }
    for (size_t i = 0; i < call->item_count; i++) {
        int64_t result = mc_py_result(call->is_put ? call->puts[i].result : call->gets[i].result, rc);
        int64_t *of_key = &call->results[call->key_of[i]];
        if (*of_key >= 0)
            *of_key = result < 0 ? result : *of_key + result;
    }
    /* What the original says of a put of no range. */
    for (Py_ssize_t i = 0; call->is_put && i < call->key_count; i++)
        if (call->results[i] == 0 && PyTuple_Size(PyTuple_GetItem(call->tuples[LIST_ADDRESSES], i)) == 0)
            call->results[i] = MC_ERR_INVALID_REPLICA;
}

static PyObject *session_ranges(struct mc_py_store *self, PyObject **values, bool is_put)
{
    static const char *const names[][LISTS] = {{"keys", "all_buffer_ptrs", "all_sizes", "all_src_offsets"},
                                               {"keys", "all_buffer_ptrs", "all_sizes", "all_dst_offsets"}};
    static const char *const methods[] = {"batch_get_into_multi_buffer_ranges", "batch_put_from_multi_buffer_ranges"};
    PyObject *answer = NULL;
    struct ranges_call call = {.is_put = is_put, .tuples = {NULL}, .item_count = 0};
    mc_py_scratch_init(&call.scratch);
    int lists = 0;
    bool equal = true;
    for (; lists < LISTS; lists++) {
        call.tuples[lists] = mc_py_snapshot_deep(values[lists], lists == LIST_KEYS ? 1 : 2, names[is_put][lists]);
        if (call.tuples[lists] == NULL)
            break;
        equal = equal && PyTuple_Size(call.tuples[lists]) == PyTuple_Size(call.tuples[LIST_KEYS]);
    }
    if (lists == LISTS) {
        call.key_count = PyTuple_Size(call.tuples[LIST_KEYS]);
        if (!equal) {
            mc_log(ERROR, "%s: the lists are not of one length", methods[is_put]);
            answer = mc_py_list_of(call.key_count, MC_ERR_INVALID_PARAMS);
        } else if (ranges_fill(&call) == 0) {
            ranges_run(self, &call);
            answer = mc_py_list_of_i64(call.results, call.key_count);
        }
    }
    for (lists = 0; lists < LISTS; lists++)
        Py_XDECREF(call.tuples[lists]);
    mc_py_scratch_free(&call.scratch);
    return answer;
}

MC_PY_STORE_CALL(batch_get_into_multi_buffer_ranges, 4, "keys, all_buffer_ptrs, all_sizes, all_src_offsets",
                 session_ranges(self, values, false),
                 "Of each object keys[i], in a session: all_sizes[i][j] bytes from offset all_src_offsets[i][j] to "
                 "address all_buffer_ptrs[i][j].\n\n"
                 "Returns a list of int: the sum of the key's sizes, or its first negative code; -600: no session, or "
                 "beyond the object; -707: the session\n"
                 "ended by itself.")
MC_PY_STORE_CALL(batch_put_from_multi_buffer_ranges, 4, "keys, all_buffer_ptrs, all_sizes, all_dst_offsets",
                 session_ranges(self, values, true),
                 "Of each object keys[i], in a put session: all_sizes[i][j] bytes at address all_buffer_ptrs[i][j] "
                 "become its bytes from offset\n"
                 "all_dst_offsets[i][j] on. The memory is copied before the call returns.\n\n"
                 "Returns a list of int: the sum of the key's sizes, or its first negative code; -600: no session, or "
                 "beyond its size.")
