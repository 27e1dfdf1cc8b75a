/* SPDX-License-Identifier: Apache-2.0
 *
 * The type MooncakeDistributedStore: its life (set up, used by many threads, closed, forked) and its calls that move no
 * bytes. */
#include "python/store_object.h"

#include "base/trace.h"
#include "env/log.h"
#include "env/thread.h"
#include "python/store_rest.h"
#include "python/store_trace.h"
#include "python/store_types.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define EXIT_WAIT_S 2 /* how long close waits for other threads' calls once the interpreter goes down */

static _Atomic unsigned fork_count; /* forks between the module's import and this process */
static _Atomic bool exiting;

static void on_fork_in_child(void)
{
    atomic_fetch_add_explicit(&fork_count, 1, memory_order_relaxed);
    mc_py_rest_forked();
}
bool mc_py_exiting(void)
{
    return atomic_load_explicit(&exiting, memory_order_relaxed);
}

static PyObject *on_exit_of_interpreter(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    atomic_store_explicit(&exiting, true, memory_order_relaxed);
    Py_RETURN_NONE;
}

static PyMethodDef exit_method = {"_exiting", on_exit_of_interpreter, METH_NOARGS, NULL};

int mc_py_store_start(PyObject *module)
{
    static bool done;
    if (done)
        return 0;
    if (mc_py_at_exit(PyCFunction_New(&exit_method, module)) < 0)
        return -1;
    if (pthread_atfork(NULL, NULL, on_fork_in_child) != 0) {
        PyErr_SetString(PyExc_ImportError, "mooncake.store: no memory for a fork handler");
        return -1;
    }
    done = true;
    return 0;
}

/* ---- use by calls ---- */

/* In a forked child the mutex may be held by a thread that does not exist here: look at nothing else first. */
static bool is_forked(struct mc_py_store *self)
{
    return self->fork_generation != atomic_load_explicit(&fork_count, memory_order_relaxed);
}

/* The parent's store and whatever state its mutex was in are left behind: the library's part is dead here by its own
 * promise. */
static void renew_after_fork(struct mc_py_store *self)
{
    self->store = NULL;
    memset(self->servers, 0, sizeof(self->servers));
    self->running = 0;
    self->opening = false;
    pthread_mutex_init(&self->mutex, NULL);
    mc_condition_init(&self->idle);
    self->fork_generation = atomic_load_explicit(&fork_count, memory_order_relaxed);
}

static int enter(struct mc_py_store *self, struct mc_store **store, bool quiet)
{
    if (is_forked(self)) {
        if (self->store != NULL) {
            if (!quiet)
                mc_log_limited(ERROR, "a store was used after fork(): set up a new one in the child process");
            return MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS;
        }
        renew_after_fork(self);
    }
    pthread_mutex_lock(&self->mutex);
    *store = self->store;
    if (*store != NULL)
        self->running++;
    pthread_mutex_unlock(&self->mutex);
    if (*store != NULL)
        return 0;
    if (!quiet)
        mc_log_limited(
            ERROR, "a store was used that is not set up (or closed): call setup() first and look at its return value");
    return MC_ERR_INVALID_PARAMS;
}

int mc_py_store_enter(struct mc_py_store *self, struct mc_store **store)
{
    if (mc_traces_are_on()) /* before: what is asked there may be any code of Python's */
        mc_py_trace_take();
    int rc = enter(self, store, false);
    if (rc < 0 && mc_traces_are_on())
        mc_py_trace_drop();
    return rc;
}

void mc_py_store_leave(struct mc_py_store *self)
{
    if (mc_traces_are_on())
        mc_py_trace_drop();
    pthread_mutex_lock(&self->mutex);
    if (--self->running == 0)
        pthread_cond_broadcast(&self->idle);
    pthread_mutex_unlock(&self->mutex);
}

int mc_py_store_join(struct mc_py_store *self, const struct mc_store_config *config)
{
    struct mc_store *store = NULL;
    int rc;
    if (is_forked(self))
        renew_after_fork(self);
    pthread_mutex_lock(&self->mutex);
    bool busy = self->opening || self->store != NULL;
    if (!busy)
        self->opening = true;
    pthread_mutex_unlock(&self->mutex);
    if (busy) {
        mc_log(ERROR, "setup: this store is already set up; close() it first");
        return MC_ERR_INVALID_PARAMS;
    }
    mc_py_variables_tell();
    Py_BEGIN_ALLOW_THREADS rc = mc_store_open(config, &store);
    pthread_mutex_lock(&self->mutex);
    self->store = rc == 0 ? store : NULL;
    self->opening = false;
    pthread_mutex_unlock(&self->mutex);
    Py_END_ALLOW_THREADS return rc;
}

/* Waits until nobody runs in the store any more. Library calls have deadlines, so this ends; except for daemon threads
 * that the interpreter stopped on its way down: then false after EXIT_WAIT_S. */
static bool wait_until_idle(struct mc_py_store *self)
{
    bool idle;
    pthread_mutex_lock(&self->mutex);
    if (mc_py_exiting()) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until); /* also of the condition: no clock that somebody sets */
        until.tv_sec += EXIT_WAIT_S;
        while (self->running > 0 && pthread_cond_timedwait(&self->idle, &self->mutex, &until) != ETIMEDOUT)
            ;
    } else {
        while (self->running > 0)
            pthread_cond_wait(&self->idle, &self->mutex);
    }
    idle = self->running == 0;
    pthread_mutex_unlock(&self->mutex);
    return idle;
}

static bool servers_end(struct mc_py_store *self)
{
    for (int which = 0; which < MC_PY_SERVERS; which++) {
        if (!mc_py_rest_end(self->servers[which]))
            return false;
        self->servers[which] = NULL;
    }
    return true;
}

/* New calls are refused from the first line on; those that run are waited for. */
static int store_shut(struct mc_py_store *self)
{
    int rc = 0;
    if (is_forked(self)) {
        renew_after_fork(self);
        return 0;
    }
    pthread_mutex_lock(&self->mutex);
    struct mc_store *store = self->store;
    self->store = NULL;
    pthread_mutex_unlock(&self->mutex);
    if (store == NULL)
        return 0;
    Py_BEGIN_ALLOW_THREADS bool is_idle = wait_until_idle(self), has_ended = false;
    while (is_idle && !(has_ended = servers_end(self)) && !mc_py_exiting())
        ; /* it waits for seconds at a time, and says so */
    if (has_ended)
        rc = mc_store_close(store);
    Py_END_ALLOW_THREADS return rc;
}

/* ---- life of the object ---- */

PyObject *mc_py_store_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(keywords))
{
    allocfunc allocate = __extension__(allocfunc) PyType_GetSlot(type, Py_tp_alloc);
    struct mc_py_store *self = (struct mc_py_store *)allocate(type, 0);
    if (self == NULL)
        return NULL;
    renew_after_fork(self);
    return (PyObject *)self;
}

void mc_py_store_dealloc(PyObject *object)
{
    struct mc_py_store *self = (struct mc_py_store *)object;
    PyObject *error_type, *error, *trace;
    PyErr_Fetch(&error_type, &error, &trace);
    if (self->weak_references != NULL)
        PyObject_ClearWeakRefs(object);
    int rc = store_shut(self);
    if (rc < 0)
        mc_log(WARNING, "closing a store failed: %s", mc_error_text(rc));
    if (self->pool != NULL)
        (void)munmap(self->pool, self->pool_size); /* of a mapping as it was made */
    pthread_cond_destroy(&self->idle);
    pthread_mutex_destroy(&self->mutex);
    PyErr_Restore(error_type, error, trace);
    mc_py_object_free(object);
}

MC_PY_STORE_CALL(
    close, 0, "", PyLong_FromLong(store_shut(self)),
    "Leaves the cluster: waits for calls in progress, then unmounts the segment (its objects are "
    "lost).\n\nReturns 0, also when not set up. The object can be set up again. Done by the destructor too.")

/* ---- calls without bytes ---- */

enum key_call { CALL_EXIST, CALL_REMOVE };

static void call_on_keys(struct mc_py_store *self, enum key_call call, const struct mc_bytes *keys, Py_ssize_t count,
                         bool force, int *results)
{
    int rc;
    MC_PY_IN_STORE(self, store, rc,
                   call == CALL_EXIST ? mc_store_exist(store, keys, (size_t)count, results)
                                      : mc_store_remove(store, keys, (size_t)count, force, results));
    for (Py_ssize_t i = 0; i < count; i++)
        results[i] = (int)mc_py_result(results[i], rc);
}

static PyObject *one_key(struct mc_py_store *self, enum key_call call, PyObject *key_object, PyObject *force_object)
{
    struct mc_bytes key;
    bool force;
    int result = STORE_UNSET;
    if (mc_py_key(key_object, &key) < 0 || mc_py_flag(force_object, &force) < 0)
        return NULL;
    call_on_keys(self, call, &key, 1, force, &result);
    return PyLong_FromLong(result);
}

static PyObject *many_keys(struct mc_py_store *self, enum key_call call, PyObject *sequence, PyObject *force_object)
{
    struct mc_py_key_list list;
    PyObject *answer = NULL;
    bool force;
    if (mc_py_flag(force_object, &force) < 0)
        return NULL;
    if (mc_py_key_list_take(sequence, &list)) {
        if (list.count > 0)
            call_on_keys(self, call, list.keys, list.count, force, list.results);
        answer = mc_py_list_of_int(list.results, list.count);
    }
    mc_py_key_list_free(&list);
    return answer;
}

MC_PY_STORE_CALL(is_exist, 1, "key", one_key(self, CALL_EXIST, values[0], NULL),
                 "1 when the object can be read, 0 when it is not there, a negative code on failure.\n"
                 "It takes no lease: a remove right after it works.")
MC_PY_STORE_CALL(batch_is_exist, 1, "keys", many_keys(self, CALL_EXIST, values[0], NULL),
                 "is_exist of many keys in one round trip.\n\n"
                 "Returns a list of int (1, 0 or negative) as long as keys, in its order.")

static PyObject *longest_prefix(struct mc_py_store *self, PyObject *sequence)
{
    struct mc_py_key_list list;
    PyObject *answer = NULL;
    int64_t matched;
    if (mc_py_key_list_take(sequence, &list)) {
        MC_PY_IN_STORE(self, store, matched, mc_store_longest_prefix(store, list.keys, (size_t)list.count));
        answer = PyLong_FromLongLong(matched);
    }
    mc_py_key_list_free(&list);
    return answer;
}

MC_PY_STORE_CALL(longest_prefix, 1, "keys", longest_prefix(self, values[0]),
                 "How many keys, from the first one on, can be read, in memory or on a disk, up to the first that "
                 "cannot.\n\nA negative code when the master could not be asked. Takes no lease.")
MC_PY_STORE_CALL(
    remove, 1, "key, force=False", one_key(self, CALL_REMOVE, values[0], values[1]),
    "Removes one object.\n\nReturns 0; -704: no such object; -706: it was read within the lease time "
    "and force is False; -703: it is being written.\n\n"
    "Waits, up to about 3 s, while a master that has just started cannot know yet whether the object could "
    "come back; -901 when its\ndeadline is earlier.")
MC_PY_STORE_CALL(batch_remove, 1, "keys, force=False", many_keys(self, CALL_REMOVE, values[0], values[1]),
                 "remove of many keys. Returns a list of int as long as keys.")

static PyObject *remove_by_regex(struct mc_py_store *self, PyObject **values)
{
    struct mc_bytes pattern;
    int64_t removed;
    bool force;
    if (mc_py_key(values[0], &pattern) < 0 || mc_py_flag(values[1], &force) < 0)
        return NULL;
    MC_PY_IN_STORE(self, store, removed, mc_store_remove_by_regex(store, pattern, force));
    return PyLong_FromLongLong(removed);
}

MC_PY_STORE_CALL(remove_by_regex, 1, "regex_pattern, force=False", remove_by_regex(self, values),
                 "Removes every object in whose key the pattern is found anywhere (Perl-compatible syntax).\n\n"
                 "Returns how many; -600 for a bad pattern. Leased objects stay unless force.")

static PyObject *remove_all(struct mc_py_store *self, PyObject **values)
{
    int64_t removed;
    bool force;
    if (mc_py_flag(values[0], &force) < 0)
        return NULL;
    MC_PY_IN_STORE(self, store, removed, mc_store_remove_all(store, force));
    return PyLong_FromLongLong(removed);
}

MC_PY_STORE_CALL(remove_all, 0, "force=False", remove_all(self, values),
                 "Removes every object of the cluster. Returns how many. Leased objects stay unless force.")

typedef int number_call(struct mc_store *store, const struct mc_bytes *keys, size_t count, int64_t *results);
static PyObject *number_of_key(struct mc_py_store *self, PyObject **values, number_call *call)
{
    struct mc_bytes key;
    int64_t number = STORE_UNSET;
    int rc;
    if (mc_py_key(values[0], &key) < 0)
        return NULL;
    MC_PY_IN_STORE(self, store, rc, call(store, &key, 1, &number));
    return PyLong_FromLongLong(mc_py_result(number, rc));
}

MC_PY_STORE_CALL(get_size, 1, "key", number_of_key(self, values, mc_store_size),
                 "Length of the object in bytes; -704: no such object.")
MC_PY_STORE_CALL(firm_pin_left, 1, "key", number_of_key(self, values, mc_store_firm_pin_left),
                 "For how many milliseconds, at least, the object is pinned firmly yet (ReplicateConfig.firm_pin_ms).\n"
                 "0: it is not; -704: no such object.")

static PyObject *register_buffer(struct mc_py_store *self, PyObject **values)
{
    uint64_t address, size;
    struct iovec part;
    int rc;
    if (mc_py_u64(values[0], &address) < 0 || mc_py_u64(values[1], &size) < 0)
        return NULL;
    const int bad = mc_py_part(address, size, &part);
    MC_PY_IN_STORE(self, store, rc, bad != 0 ? bad : mc_store_register_buffer(store, part.iov_base, part.iov_len));
    return PyLong_FromLong(rc);
}

MC_PY_STORE_CALL(register_buffer, 2, "buffer_ptr, size", register_buffer(self, values),
                 "Announces memory (address, bytes) for put_from and get_into.\n\n"
                 "RDMA devices read and write it in place: unregister it before it is freed, mapped anew or "
                 "discarded.\n"
                 "Returns 0; -600 for NULL, size 0, or a base that is registered already.")

static PyObject *unregister_buffer(struct mc_py_store *self, PyObject **values)
{
    uint64_t address;
    int rc;
    if (mc_py_u64(values[0], &address) < 0)
        return NULL;
    MC_PY_IN_STORE(self, store, rc, mc_store_unregister_buffer(store, (void *)(uintptr_t)address));
    return PyLong_FromLong(rc);
}

MC_PY_STORE_CALL(unregister_buffer, 1, "buffer_ptr", unregister_buffer(self, values),
                 "To be called before the memory is freed; it must stay until calls that use it have returned.\n\n"
                 "Returns 0; -600 when this base is not registered.")

static PyObject *get_hostname(struct mc_py_store *self)
{
    struct mc_store *store = NULL;
    if (mc_py_store_enter(self, &store) < 0)
        return PyUnicode_FromString("");
    const char *name = mc_store_hostname(store);
    PyObject *text = PyUnicode_FromString(name == NULL ? "" : name);
    mc_py_store_leave(self);
    return text;
}

MC_PY_STORE_CALL(get_hostname, 0, "", get_hostname(self),
                 "\"host:port\" of this store, which is also its segment's name; \"\" when not set up.")

static PyObject *get_offload_rpc_read_count(struct mc_py_store *self)
{
    struct mc_store *store = NULL;
    struct mc_store_statistics statistics = {0};
    if (mc_py_store_enter(self, &store) >= 0) {
        mc_store_statistics(store, &statistics);
        mc_py_store_leave(self);
    }
    return PyLong_FromUnsignedLongLong(statistics.get_loads);
}

MC_PY_STORE_CALL(get_offload_rpc_read_count, 0, "", get_offload_rpc_read_count(self),
                 "How many objects this store has read that had to come from a disk first; 0 when not set up.")

static PyObject *health_check(struct mc_py_store *self)
{
    struct mc_store *store = NULL;
    int rc = 1;
    /* Without the log line: asking is how one finds out. */
    if (enter(self, &store, true) == 0) {
        Py_BEGIN_ALLOW_THREADS rc = mc_store_health(store);
        mc_py_store_leave(self);
        Py_END_ALLOW_THREADS
    }
    return PyLong_FromLong(rc);
}

MC_PY_STORE_CALL(health_check, 0, "", health_check(self), "0: healthy; 1: not set up; 2: the master cannot be reached.")

/* list of ReplicaDescriptor, or NULL without an exception when there is no such object. */
static PyObject *describe(struct mc_py_store *self, struct mc_bytes key)
{
    struct mc_replica_description descriptions[MC_REPLICA_COUNT_MAX];
    int rc;
    MC_PY_IN_STORE(self, store, rc, mc_store_describe(store, key, descriptions, MC_REPLICA_COUNT_MAX));
    return rc <= 0 ? NULL : mc_py_descriptors(descriptions, rc < MC_REPLICA_COUNT_MAX ? rc : MC_REPLICA_COUNT_MAX);
}

static PyObject *get_replica_desc(struct mc_py_store *self, PyObject **values)
{
    struct mc_bytes key;
    if (mc_py_key(values[0], &key) < 0)
        return NULL;
    PyObject *list = describe(self, key);
    return list == NULL && PyErr_Occurred() == NULL ? PyList_New(0) : list;
}

MC_PY_STORE_CALL(get_replica_desc, 1, "key", get_replica_desc(self, values),
                 "Where the object lies: a list of ReplicaDescriptor, [] when there is none.")

static int describe_into(struct mc_py_store *self, PyObject *key_object, PyObject *answer)
{
    struct mc_bytes key;
    if (mc_py_key(key_object, &key) < 0)
        return -1;
    PyObject *list = describe(self, key);
    if (list == NULL)
        return PyErr_Occurred() == NULL ? 0 : -1;
    int rc = PyDict_SetItem(answer, key_object, list);
    Py_DECREF(list);
    return rc;
}

static PyObject *batch_get_replica_desc(struct mc_py_store *self, PyObject **values)
{
    PyObject *snapshot = mc_py_snapshot(values[0], "keys");
    PyObject *answer = snapshot == NULL ? NULL : PyDict_New();
    for (Py_ssize_t i = 0; answer != NULL && i < PyTuple_Size(snapshot); i++)
        if (describe_into(self, PyTuple_GetItem(snapshot, i), answer) < 0)
            Py_CLEAR(answer);
    Py_XDECREF(snapshot);
    return answer;
}

MC_PY_STORE_CALL(batch_get_replica_desc, 1, "keys", batch_get_replica_desc(self, values),
                 "Dict of key to list of ReplicaDescriptor; absent objects have no entry.")
