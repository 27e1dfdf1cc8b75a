/* SPDX-License-Identifier: Apache-2.0
 *
 * MooncakeDistributedStore's work on replicas and segments: copies and moves in the background, clearing, mounts. */
#include "python/store_object.h"
#include "python/store_types.h"

#include "env/log.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define UNKNOWN_SEGMENT (-1) /* what the original says of a segment that it does not know */
#define TASK_FIELDS 7

/* ---- texts ---- */

/* Borrowed text of a str without NUL. NULL with an exception. */
static const char *text_of(PyObject *value, const char *name)
{
    Py_ssize_t length = 0;
    if (!PyUnicode_Check(value)) {
        PyErr_Format(PyExc_TypeError, "%s must be str, not %R", name, (PyObject *)Py_TYPE(value));
        return NULL;
    }
    const char *text = PyUnicode_AsUTF8AndSize(value, &length);
    if (text != NULL && strlen(text) != (size_t)length) {
        PyErr_Format(PyExc_ValueError, "%s holds a NUL character", name);
        return NULL;
    }
    return text;
}

/* The items of a snapshot as texts. 0, or 1 with an exception. */
static int texts_of(PyObject *snapshot, const char *name, struct mc_py_scratch *scratch, const char ***texts)
{
    Py_ssize_t count = PyTuple_Size(snapshot);
    *texts = mc_py_scratch_take(scratch, (size_t)count, sizeof(**texts));
    for (Py_ssize_t i = 0; *texts != NULL && i < count; i++)
        if (((*texts)[i] = text_of(PyTuple_GetItem(snapshot, i), name)) == NULL)
            return 1;
    return *texts == NULL ? 1 : 0;
}

/* ---- tasks ---- */

static PyObject *create_task(struct mc_py_store *self, struct mc_bytes key, const char *source,
                             const char *const *targets, size_t target_count)
{
    uint64_t id[2] = {0, 0};
    int rc;
    MC_PY_IN_STORE(self, store, rc, mc_store_task_create(store, key, source, targets, target_count, id));
    if (rc == MC_ERR_REPLICA_NOT_FOUND)
        rc = MC_ERR_INVALID_PARAMS; /* as the original has it */
    return Py_BuildValue("((KK)i)", (unsigned long long)id[0], (unsigned long long)id[1], rc);
}

static PyObject *create_copy_task(struct mc_py_store *self, PyObject **values)
{
    PyObject *answer = NULL;
    struct mc_py_scratch scratch;
    struct mc_bytes key;
    const char **targets;
    if (mc_py_key(values[0], &key) < 0)
        return NULL;
    PyObject *snapshot = mc_py_snapshot(values[1], "targets");
    if (snapshot == NULL)
        return NULL;
    mc_py_scratch_init(&scratch);
    if (texts_of(snapshot, "targets", &scratch, &targets) == 0)
        answer = create_task(self, key, NULL, targets, (size_t)PyTuple_Size(snapshot));
    mc_py_scratch_free(&scratch);
    Py_DECREF(snapshot);
    return answer;
}

MC_PY_STORE_CALL(create_copy_task, 2, "key, targets", create_copy_task(self, values),
                 "Gives an object one more replica on each segment named in targets (get_hostname() of its owner), in "
                 "the background.\n\n"
                 "Returns ((int, int), code): the task's id and 0; -704: no such object; -600: no such segment.")

static PyObject *create_move_task(struct mc_py_store *self, PyObject **values)
{
    struct mc_bytes key;
    if (mc_py_key(values[0], &key) < 0)
        return NULL;
    const char *source = text_of(values[1], "source");
    const char *target = source == NULL ? NULL : text_of(values[2], "target");
    return target == NULL ? NULL : create_task(self, key, source, &target, 1);
}

MC_PY_STORE_CALL(create_move_task, 3, "key, source, target", create_move_task(self, values),
                 "Moves an object's replica from the segment source to the segment target, in the background.\n\n"
                 "Returns ((int, int), code): the task's id and 0; -704: no such object; -600: no such segment, one "
                 "segment twice, or no\n"
                 "replica on source.")

static PyObject *query_task(struct mc_py_store *self, PyObject **values)
{
    struct mc_task task = {0};
    uint64_t id[2];
    int rc;
    PyObject *pair = mc_py_snapshot(values[0], "task_id");
    bool good = pair != NULL && PyTuple_Size(pair) == 2;
    if (pair != NULL && !good)
        PyErr_SetString(PyExc_TypeError, "task_id must be two ints");
    good = good && mc_py_u64(PyTuple_GetItem(pair, 0), &id[0]) == 0 && mc_py_u64(PyTuple_GetItem(pair, 1), &id[1]) == 0;
    Py_XDECREF(pair);
    if (!good)
        return NULL;
    MC_PY_IN_STORE(self, store, rc, mc_store_task_query(store, id, &task));
    if (rc < 0)
        return Py_BuildValue("(Oi)", Py_None, rc);
    PyObject *make = mc_py_type("_task");
    if (make == NULL)
        return NULL;
    PyObject *response = PyObject_CallFunction(make, "(KK)iiKKs", (unsigned long long)task.id[0],
                                               (unsigned long long)task.id[1], (int)task.is_move, (int)task.status,
                                               (unsigned long long)task.created_ms, (unsigned long long)task.updated_ms,
                                               task.status == MC_TASK_FAILED ? mc_error_text(task.code) : "");
    Py_DECREF(make);
    return response == NULL ? NULL : Py_BuildValue("(Ni)", response, 0);
}

MC_PY_STORE_CALL(query_task, 1, "task_id", query_task(self, values),
                 "What became of a task that this store has made.\n\n"
                 "Returns (QueryTaskResponse, 0), or (None, -1400) when there is no such task.")

static PyObject *batch_replica_clear(struct mc_py_store *self, PyObject **values)
{
    struct mc_py_key_list list;
    PyObject *answer = NULL;
    int rc;
    const char *segment = values[1] == NULL ? "" : text_of(values[1], "segment_name");
    if (segment == NULL)
        return NULL;
    if (mc_py_key_list_take(values[0], &list)) { /* each key has its result */
        MC_PY_IN_STORE(self, store, rc,
                       mc_store_replica_clear(store, list.keys, (size_t)list.count, segment, list.results));
        answer = PyList_New(0);
    }
    for (Py_ssize_t i = 0; answer != NULL && i < list.count; i++)
        if (list.results[i] == 0 && PyList_Append(answer, PyTuple_GetItem(list.snapshot, i)) < 0)
            Py_CLEAR(answer);
    mc_py_key_list_free(&list);
    return answer;
}

MC_PY_STORE_CALL(batch_replica_clear, 1, "keys, segment_name=''", batch_replica_clear(self, values),
                 "Drops the replicas on that segment, or all of them: of objects that nobody has read within the lease "
                 "time.\n\n"
                 "Returns the list of those keys whose replicas are gone now.")

static PyObject *batch_pin(struct mc_py_store *self, PyObject **values)
{
    struct mc_py_key_list list;
    struct mc_py_replicate replicate;
    PyObject *answer = NULL;
    bool is_taken = mc_py_key_list_take(values[0], &list);
    int rc = is_taken ? mc_py_replicate_acquire(values[1], list.count, MC_PY_PUT_BATCH, &replicate) : 1;
    if (rc == 0)
        MC_PY_IN_STORE(self, store, rc,
                       mc_store_pin(store, list.keys, (size_t)list.count, &replicate.config, list.results));
    for (Py_ssize_t i = 0; rc < 0 && i < list.count; i++)
        list.results[i] = (int)mc_py_result(list.results[i], rc);
    if (rc <= 0)
        answer = mc_py_list_of_int(list.results, list.count);
    if (is_taken)
        mc_py_replicate_release(&replicate);
    mc_py_key_list_free(&list);
    return answer;
}

MC_PY_STORE_CALL(batch_pin, 1, "keys, config=None", batch_pin(self, values),
                 "Pins what is there as the ReplicateConfig says, as if it was put now, and in no other way; without a "
                 "pin in it, what\nthey had ends. The values are read and stored again by this process.\n\n"
                 "Returns a list of int: 0, or a negative code (-704: no such object; -1908: firm_pin_or_not, and no "
                 "more may be pinned\nfirmly).")

static enum mc_hint hint_of(PyObject *kind)
{
    static const char *const names[] = {
        [MC_HINT_DROP] = "drop",
        [MC_HINT_PAUSE] = "pause",
        [MC_HINT_RESUME] = "resume",
        [MC_HINT_PREFETCH] = "prefetch",
    };
    const char *text = text_of(kind, "kind");
    for (unsigned i = MC_HINT_DROP; text != NULL && i <= MC_HINT_PREFETCH; i++)
        if (strcmp(text, names[i]) == 0)
            return (enum mc_hint)i;
    if (text != NULL)
        PyErr_Format(PyExc_ValueError, "kind must be 'drop', 'pause', 'resume' or 'prefetch', not %R", kind);
    return (enum mc_hint)0;
}

static PyObject *hint(struct mc_py_store *self, PyObject **values)
{
    struct mc_py_key_list list;
    PyObject *answer = NULL;
    uint64_t for_ms = 0;
    int rc;
    enum mc_hint kind = hint_of(values[1]);
    if (kind == 0 || (values[2] != NULL && mc_py_u64(values[2], &for_ms) < 0))
        return NULL;
    if (mc_py_key_list_take(values[0], &list)) {
        MC_PY_IN_STORE(self, store, rc,
                       mc_store_hint(store, list.keys, (size_t)list.count, kind, for_ms, list.results));
        for (Py_ssize_t i = 0; rc < 0 && i < list.count; i++)
            list.results[i] = (int)mc_py_result(list.results[i], rc);
        answer = mc_py_list_of_int(list.results, list.count);
    }
    mc_py_key_list_free(&list);
    return answer;
}

MC_PY_STORE_CALL(
    hint, 2, "keys, kind, for_ms=0", hint(self, values),
    "Says what will become of the values; waits for nothing. kind: 'drop', they are not needed any more; "
    "'pause', not for\nfor_ms (0: not known), they may leave memory once a disk has them; 'resume' and "
    "'prefetch', they are needed soon, and\nwhat lies on a disk alone is loaded. The first two hold until the value is "
    "used, replaced or removed, "
    "also after a restart of\nthe master, or of a node with a data directory.\n\n"
    "Returns a list of int: 0; 1: it is being loaded, or stored; or a negative code (-704: no such object; "
    "-200: no room to\nload it now; -1909: drop of what is pinned firmly or hard; -1012: the master is of "
    "an earlier release).")

/* ---- mounts ---- */

#define MOUNT_STEP ((uint64_t)16 << 20) /* as the original: sizes are rounded up to multiples of it */

static bool is_other(PyObject *text, const char *usual)
{
    return text != NULL && PyUnicode_Check(text) && PyUnicode_CompareWithASCIIString(text, usual) != 0;
}

static PyObject *allocate_and_mount_segment(struct mc_py_store *self, PyObject **values)
{
    char id[MC_MOUNT_ID_MAX];
    uint64_t size, bytes = 0;
    int rc;
    if (mc_py_u64(values[0], &size) < 0)
        return NULL;
    if (is_other(values[1], "tcp") || is_other(values[2], ""))
        mc_log_once(INFO, "protocol and location of a mount change nothing here: setup's protocol is that of all "
                          "memory, which lies where the kernel puts it (numactl)");
    if (size <= UINT64_MAX - MOUNT_STEP)
        size = (size + MOUNT_STEP - 1) / MOUNT_STEP * MOUNT_STEP;
    MC_PY_IN_STORE(self, store, rc, mc_store_mount(store, size, id, &bytes));
    if (rc == 0)
        return Py_BuildValue("{s:i,s:[s],s:K}", "ret", 0, "segment_ids", id, "allocated_size",
                             (unsigned long long)bytes);
    return Py_BuildValue("{s:i,s:[],s:i}", "ret", rc, "segment_ids", "allocated_size", 0);
}

MC_PY_STORE_CALL(allocate_and_mount_segment, 1, "size, protocol='tcp', location=''",
                 allocate_and_mount_segment(self, values),
                 "Lends size bytes more, rounded up to multiples of 16 MiB, as a segment of its own. protocol and "
                 "location are\n"
                 "accepted.\n\n"
                 "Returns {'ret': 0 or a negative code, 'segment_ids': [str], 'allocated_size': int}.")

static PyObject *mount_segment(struct mc_py_store *self, PyObject **values)
{
    struct mc_store *store = NULL;
    struct stat file;
    uint64_t size, offset = 0;
    if (mc_py_u64(values[1], &size) < 0 || (values[2] != NULL && mc_py_u64(values[2], &offset) < 0))
        return NULL;
    const char *path = text_of(values[0], "path");
    if (path == NULL)
        return NULL;
    int rc = mc_py_store_enter(self, &store);
    if (rc == 0) {
        mc_py_store_leave(self);
        if (stat(path, &file) != 0)
            rc = MC_ERR_FILE_NOT_FOUND;
        else if (size == 0 || offset > (uint64_t)file.st_size || size > (uint64_t)file.st_size - offset)
            rc = MC_ERR_INVALID_PARAMS;
        else
            rc = MC_ERR_NOT_SUPPORTED;
        mc_log(ERROR, "mount_segment: %s: %s; use allocate_and_mount_segment, or data_dir of setup", path,
               rc == MC_ERR_NOT_SUPPORTED
                   ? "memory of others is not lent: who may shorten a file ends every process that has mapped it, and "
                     "what a peer is still writing when it is unmounted would end up in its owner's own data"
                   : mc_error_text(rc));
    }
    return Py_BuildValue("{s:i,s:[]}", "ret", rc, "segment_ids");
}

MC_PY_STORE_CALL(mount_segment, 2, "path, size, offset=0, protocol='tcp', location=''", mount_segment(self, values),
                 "Not done: memory of others is not lent (docs/compatibility.md says why); use "
                 "allocate_and_mount_segment, or\n"
                 "setup's data_dir.\n\n"
                 "Returns {'ret': code, 'segment_ids': []}: -1100: no such file; -600: it is smaller than offset + "
                 "size; -1012.")

static PyObject *unmount(struct mc_py_store *self, PyObject **values)
{
    struct mc_store *store = NULL;
    struct mc_py_scratch scratch;
    const char **ids;
    uint64_t grace_s = 0;
    int first = 1;
    if (values[1] != NULL && mc_py_u64(values[1], &grace_s) < 0)
        return NULL;
    PyObject *snapshot = mc_py_snapshot(values[0], "segment_ids");
    if (snapshot == NULL)
        return NULL;
    uint64_t grace_ms = grace_s < UINT32_MAX ? grace_s * 1000 : (uint64_t)UINT32_MAX * 1000;
    mc_py_scratch_init(&scratch);
    if (texts_of(snapshot, "segment_ids", &scratch, &ids) == 0) {
        Py_ssize_t id_count = PyTuple_Size(snapshot);
        first = mc_py_store_enter(self, &store);
        if (first == 0) {
            Py_BEGIN_ALLOW_THREADS for (Py_ssize_t i = 0; i < id_count; i++)
            {
                int rc = mc_store_unmount(store, ids[i], grace_ms);
                first = first < 0 ? first : rc == MC_ERR_SEGMENT_NOT_FOUND ? UNKNOWN_SEGMENT : rc;
            }
            mc_py_store_leave(self);
            Py_END_ALLOW_THREADS
        }
    }
    mc_py_scratch_free(&scratch);
    Py_DECREF(snapshot);
    return first > 0 ? NULL : PyLong_FromLong(first);
}

MC_PY_STORE_CALL(unmount_segment, 1, "segment_ids, grace_period_seconds=0", unmount(self, values),
                 "Takes mounted segments back. With a grace they are read from so long, while nothing new is placed "
                 "there.\n\n"
                 "Returns 0, or the first code: -1: no such segment; -600: it is leaving already.")
MC_PY_STORE_CALL(unmount_and_free_segment, 1, "segment_ids, grace_period_seconds=0", unmount(self, values),
                 "unmount_segment: memory that was allocated with a mount always goes with it.")

static PyObject *unmount_local_disk_segment(struct mc_py_store *self, PyObject **values)
{
    uint64_t grace_s = 0;
    int rc;
    if (values[0] != NULL && mc_py_u64(values[0], &grace_s) < 0)
        return NULL;
    MC_PY_IN_STORE(self, store, rc, mc_store_unmount_disks(store, grace_s * 1000));
    return PyLong_FromLong(rc);
}

MC_PY_STORE_CALL(
    unmount_local_disk_segment, 0, "grace_period_seconds=0", unmount_local_disk_segment(self, values),
    "The disks of this store leave the cluster; what lies there stays, for the next store with them. What is under "
    "way there has the grace to end.\n\n"
    "Returns 0, also without disks; -901: it has not ended, and goes on by itself; -1012: the master is of an "
    "older release.")
