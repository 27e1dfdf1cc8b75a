/* SPDX-License-Identifier: Apache-2.0
 *
 * The calls of TransferEngine that move bytes. */
#include "python/engine_object.h"

#include "env/log.h"

/* ---- arguments to items ---- */

static int read_opcode(PyObject *object, int *opcode)
{
    uint64_t value;
    if (mc_py_number(object, "opcode", &value) < 0)
        return -1;
    if (value > MC_TRANSFER_WRITE) {
        PyErr_Format(PyExc_TypeError, "opcode must be TransferOpcode.Read or .Write, not %R", object);
        return -1;
    }
    *opcode = (int)value;
    return 0;
}

static int read_item(PyObject *const *values, struct mc_transfer_item *item)
{
    uint64_t local;
    if (mc_py_number(values[0], "buffer", &local) < 0 ||
        mc_py_number(values[1], "peer_buffer_address", &item->remote) < 0 ||
        mc_py_number(values[2], "length", &item->length) < 0)
        return -1;
    item->local = (void *)(uintptr_t)local;
    return 0;
}

struct lists { /* three snapshots and the items made of them */
    PyObject *tuples[3];
    struct mc_transfer_item *items;
    size_t count;
    struct mc_py_scratch scratch;
};

static void lists_free(struct lists *lists)
{
    for (int i = 0; i < 3; i++)
        Py_XDECREF(lists->tuples[i]);
    mc_py_scratch_free(&lists->scratch);
}

static int fill_items(struct lists *lists)
{
    static const char *const names[] = {"buffers", "peer_buffer_addresses", "lengths"};
    for (Py_ssize_t i = 0; i < (Py_ssize_t)lists->count; i++) {
        uint64_t numbers[3];
        for (int j = 0; j < 3; j++)
            if (mc_py_number(PyTuple_GetItem(lists->tuples[j], i), names[j], &numbers[j]) < 0)
                return 1;
        lists->items[i] = (struct mc_transfer_item){(void *)(uintptr_t)numbers[0], numbers[1], numbers[2]};
    }
    return 0;
}

/* 0; -1: of different lengths; 1: an exception. Free in every case. */
static int lists_read(struct lists *lists, PyObject *const *values)
{
    static const char *const names[] = {"buffers", "peer_buffer_addresses", "lengths"};
    mc_py_scratch_init(&lists->scratch);
    lists->tuples[0] = lists->tuples[1] = lists->tuples[2] = NULL;
    for (int i = 0; i < 3; i++)
        if ((lists->tuples[i] = mc_py_snapshot(values[i], names[i])) == NULL)
            return 1;
    lists->count = (size_t)PyTuple_Size(lists->tuples[0]);
    if ((size_t)PyTuple_Size(lists->tuples[1]) != lists->count ||
        (size_t)PyTuple_Size(lists->tuples[2]) != lists->count) {
        mc_log_limited(ERROR, "a batch transfer: %zd buffers, %zd peer addresses, %zd lengths; they must be as many",
                       (Py_ssize_t)lists->count, PyTuple_Size(lists->tuples[1]), PyTuple_Size(lists->tuples[2]));
        return -1;
    }
    lists->items = mc_py_scratch_take(&lists->scratch, lists->count + 1, sizeof(*lists->items));
    return lists->items == NULL ? 1 : fill_items(lists);
}

/* ---- running ---- */

/* A TransferNotify for the library. `held` keeps the texts alive. */
struct note {
    PyObject *held[2];
    struct mc_transfer_note note;
    const struct mc_transfer_note *given; /* NULL: none */
};

static void note_release(struct note *note)
{
    Py_XDECREF(note->held[0]);
    Py_XDECREF(note->held[1]);
}

static PyObject *engine_type_of(const char *name)
{
    return PyObject_GetAttrString(mc_py_engine_types, name);
}

/* -1 with an exception. Release in every case. */
static int note_acquire(PyObject *object, struct note *note)
{
    static _Atomic(PyObject *) type_known;
    *note = (struct note){.given = NULL};
    if (object == NULL || object == Py_None)
        return 0;
    PyObject *type = mc_py_known(&type_known, engine_type_of, "TransferNotify");
    if (type == NULL)
        return -1;
    /* By its type: isinstance() would believe a mock. */
    if (!PyObject_TypeCheck(object, (PyTypeObject *)type)) {
        PyErr_Format(PyExc_TypeError, "notify must be a TransferNotify or None, not %R", object);
        return -1;
    }
    note->held[0] = PyObject_GetAttrString(object, "_name");
    note->held[1] = PyObject_GetAttrString(object, "_msg");
    if (note->held[0] == NULL || note->held[1] == NULL ||
        (note->note.name = mc_py_text(note->held[0], "notify.name")) == NULL ||
        (note->note.message = mc_py_text(note->held[1], "notify.msg")) == NULL)
        return -1;
    note->given = &note->note;
    return 0;
}

static PyObject *run(struct mc_transfer_engine *engine, PyObject *target_object, int opcode,
                     const struct mc_transfer_item *items, size_t count, PyObject *notify)
{
    struct note note;
    const char *target = mc_py_text(target_object, "target_hostname");
    int rc = 1;
    if (target == NULL)
        return NULL;
    if (note_acquire(notify, &note) == 0) {
        Py_BEGIN_ALLOW_THREADS rc =
            mc_transfer_run(engine, target, (enum mc_transfer_opcode)opcode, items, count, note.given);
        Py_END_ALLOW_THREADS
    }
    note_release(&note);
    return rc > 0 ? NULL : PyLong_FromLong(rc < 0 ? -1 : 0);
}

static PyObject *submit(struct mc_transfer_engine *engine, PyObject *target_object, int opcode,
                        const struct mc_transfer_item *items, size_t count)
{
    const char *target = mc_py_text(target_object, "target_hostname");
    int64_t id;
    if (target == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS id = mc_transfer_submit(engine, target, (enum mc_transfer_opcode)opcode, items, count, NULL);
    Py_END_ALLOW_THREADS return PyLong_FromLongLong(id < 0 ? 0 : id);
}

#define GIVEN (-1) /* the opcode is values[4], a note values[5] */

static PyObject *transfer_one(struct mc_py_engine *self, PyObject **values, int opcode, bool is_async)
{
    struct mc_transfer_item item;
    PyObject *notify = opcode == GIVEN ? values[5] : NULL;
    if (read_item(values + 1, &item) < 0 || (opcode == GIVEN && read_opcode(values[4], &opcode) < 0))
        return NULL;
    return is_async ? submit(self->engine, values[0], opcode, &item, 1)
                    : run(self->engine, values[0], opcode, &item, 1, notify);
}

static PyObject *transfer_many(struct mc_py_engine *self, PyObject **values, int opcode, bool is_async)
{
    struct lists lists;
    PyObject *answer = NULL, *notify = opcode == GIVEN ? values[5] : NULL;
    if (opcode == GIVEN && read_opcode(values[4], &opcode) < 0)
        return NULL;
    int rc = lists_read(&lists, values + 1);
    if (rc < 0)
        answer = PyLong_FromLong(is_async ? 0 : -1);
    else if (rc == 0)
        answer = is_async ? submit(self->engine, values[0], opcode, lists.items, lists.count)
                          : run(self->engine, values[0], opcode, lists.items, lists.count, notify);
    lists_free(&lists);
    return answer;
}

/* ---- the methods ---- */

static void hint_say(PyObject *hint)
{
    if (hint != NULL && PyUnicode_Check(hint) && PyUnicode_GetLength(hint) > 0)
        mc_log_once(INFO, "transport_hint changes nothing here: the shortest path is taken; MC_FORCE_TCP leaves tcp");
}

/* clang-format off */
#define ONE  "target_hostname, buffer, peer_buffer_address, length, "
#define MANY "target_hostname, buffers, peer_buffer_addresses, lengths, "
#define HINT "transport_hint=''"
#define DONE "0: all bytes have been moved; -1."
#define BATCH "The id of a batch for transfer_check_status; 0: it was not begun."
#define TRANSFER(name, required, parameters, transfer, opcode, is_async, doc) \
    MC_PY_ENGINE_CALL(name, required, parameters, \
        (hint_say(values[(required) + ((required) == 5 && !(is_async))]), transfer(self, values, opcode, is_async)), doc)
TRANSFER(transfer_sync, 5, ONE "opcode, notify=None, " HINT, transfer_one, GIVEN, false, DONE)
TRANSFER(transfer_sync_write, 4, ONE HINT, transfer_one, MC_TRANSFER_WRITE, false, DONE)
TRANSFER(transfer_sync_read, 4, ONE HINT, transfer_one, MC_TRANSFER_READ, false, DONE)
TRANSFER(batch_transfer_sync, 5, MANY "opcode, notify=None, " HINT, transfer_many, GIVEN, false, DONE)
TRANSFER(batch_transfer_sync_write, 4, MANY HINT, transfer_many, MC_TRANSFER_WRITE, false, DONE)
TRANSFER(batch_transfer_sync_read, 4, MANY HINT, transfer_many, MC_TRANSFER_READ, false, DONE)
TRANSFER(batch_transfer_async, 5, MANY "opcode, " HINT, transfer_many, GIVEN, true, BATCH)
TRANSFER(batch_transfer_async_write, 4, MANY HINT, transfer_many, MC_TRANSFER_WRITE, true, BATCH)
TRANSFER(batch_transfer_async_read, 4, MANY HINT, transfer_many, MC_TRANSFER_READ, true, BATCH)
TRANSFER(transfer_submit_write, 4, ONE HINT, transfer_one, MC_TRANSFER_WRITE, true, BATCH)
/* clang-format on */

static PyObject *transfer_check_status(struct mc_py_engine *self, PyObject **values)
{
    struct mc_transfer_engine *engine = self->engine;
    uint64_t id;
    int rc;
    if (mc_py_number(values[0], "batch_id", &id) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS rc = mc_transfer_status(engine, id > INT64_MAX ? -1 : (int64_t)id);
    Py_END_ALLOW_THREADS return PyLong_FromLong(rc);
}

MC_PY_ENGINE_CALL(transfer_check_status, 1, "batch_id", transfer_check_status(self, values),
                  "0: under way; 1: all of it is done; -1: failed; -2: timed out.")

static PyObject *get_batch_transfer_status(struct mc_py_engine *self, PyObject **values)
{
    struct mc_transfer_engine *engine = self->engine;
    PyObject *tuple, *answer = NULL;
    struct mc_py_scratch scratch;
    if ((tuple = mc_py_snapshot(values[0], "batch_ids")) == NULL)
        return NULL;
    mc_py_scratch_init(&scratch);
    Py_ssize_t id_count = PyTuple_Size(tuple), i = 0;
    int64_t *ids = mc_py_scratch_take(&scratch, (size_t)id_count + 1, sizeof(*ids));
    for (; ids != NULL && i < id_count; i++) {
        uint64_t id;
        if (mc_py_number(PyTuple_GetItem(tuple, i), "batch_ids", &id) < 0)
            break;
        ids[i] = id > INT64_MAX ? -1 : (int64_t)id;
    }
    if (ids != NULL && i == id_count) {
        int rc;
        Py_BEGIN_ALLOW_THREADS rc = mc_transfer_wait(engine, ids, (size_t)id_count);
        Py_END_ALLOW_THREADS answer = PyLong_FromLong(rc < 0 ? -1 : 0);
    }
    mc_py_scratch_free(&scratch);
    Py_DECREF(tuple);
    return answer;
}

MC_PY_ENGINE_CALL(get_batch_transfer_status, 1, "batch_ids", get_batch_transfer_status(self, values),
                  "Waits for all of them: 0, or -1 when one failed.")
