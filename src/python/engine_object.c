/* SPDX-License-Identifier: Apache-2.0
 *
 * The type TransferEngine: its life, registered memory, and what moves no bytes. An object that is in use by a call
 * cannot go away, as the call holds it. */
#include "python/engine_object.h"

#include "env/log.h"
#include "transfer/engine/open.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

PyObject *mc_py_engine_types;

static struct mc_transfer_engine *engine_of(PyObject *object)
{
    return ((struct mc_py_engine *)object)->engine;
}

int mc_py_number(PyObject *object, const char *name, uint64_t *value)
{
    if (mc_py_u64(object, value) == 0)
        return 0;
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "%s must be an int from 0 to 2^64 - 1, not %R", name, object);
    return -1;
}

const char *mc_py_text(PyObject *object, const char *name)
{
    Py_ssize_t length = 0;
    const char *text = PyUnicode_Check(object) ? PyUnicode_AsUTF8AndSize(object, &length) : NULL;
    if (text != NULL && strlen(text) == (size_t)length)
        return text;
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "%s must be a str without zeros, not %R", name, object);
    return NULL;
}

/* ---- life ---- */

void mc_py_engine_dealloc(PyObject *object)
{
    struct mc_py_engine *self = (struct mc_py_engine *)object;
    PyObject *error_type, *error, *trace;
    PyErr_Fetch(&error_type, &error, &trace);
    if (self->weak_references != NULL)
        PyObject_ClearWeakRefs(object);
    struct mc_transfer_engine *engine = self->engine;
    self->engine = NULL;
    Py_BEGIN_ALLOW_THREADS mc_transfer_close(engine);
    Py_END_ALLOW_THREADS PyErr_Restore(error_type, error, trace);
    mc_py_object_free(object);
}

/* texts: as initialize takes them. */
static PyObject *open_engine(struct mc_py_engine *self, const char **texts)
{
    const struct mc_transfer_config config = {texts[0], texts[1], texts[2], texts[3]};
    struct mc_transfer_engine *engine = NULL;
    int rc;
    if (atomic_exchange(&self->is_opening, true) || self->engine != NULL) {
        mc_log(ERROR, "initialize: this transfer engine is initialised already");
        return PyLong_FromLong(-1);
    }
    mc_py_variables_tell();
    Py_BEGIN_ALLOW_THREADS rc = mc_transfer_open(&config, &engine);
    Py_END_ALLOW_THREADS self->engine = engine;
    self->is_opening = false;
    return PyLong_FromLong(rc < 0 ? -1 : 0);
}

/* Texts of arguments. -1 with an exception. */
static int read_texts(PyObject **values, int count, const char **texts)
{
    static const char *const names[] = {"local_hostname", "metadata_server", "protocol", "device_name",
                                        "metadata_type"};
    for (int i = 0; i < count; i++)
        if ((texts[i] = mc_py_text(values[i], names[i])) == NULL)
            return -1;
    return 0;
}

static PyObject *initialize(struct mc_py_engine *self, PyObject **values)
{
    const char *texts[4];
    if (read_texts(values, 4, texts) < 0)
        return NULL;
    return open_engine(self, texts);
}

MC_PY_ENGINE_CALL(initialize, 4, "local_hostname, metadata_server, protocol, device_name", initialize(self, values),
                  "0 or -1. metadata_server: 'P2PHANDSHAKE', 'http://host:port/metadata' (or https), "
                  "'etcd://host:port;host:port', 'redis://host:port' or 'rediss://host:port'.")

static PyObject *initialize_ext(struct mc_py_engine *self, PyObject **values)
{
    const char *texts[5];
    if (read_texts(values, 5, texts) < 0)
        return NULL;
    bool is_whole = strcmp(texts[1], "P2PHANDSHAKE") == 0 || strstr(texts[1], "://") != NULL;
    PyObject *server = is_whole ? PyUnicode_FromString(texts[1]) : PyUnicode_FromFormat("%s://%s", texts[4], texts[1]);
    if (server == NULL)
        return NULL;
    texts[1] = mc_py_text(server, "metadata_server");
    PyObject *answer = open_engine(self, texts);
    Py_DECREF(server);
    return answer;
}

MC_PY_ENGINE_CALL(initialize_ext, 5, "local_hostname, metadata_server, protocol, device_name, metadata_type",
                  initialize_ext(self, values),
                  "As initialize; metadata_type is put before a metadata_server without one.")

/* ---- registering ---- */

/* location: NULL or None: "*". */
static PyObject *register_ranges(struct mc_py_engine *self, const struct mc_transfer_range *ranges, size_t count,
                                 PyObject *location)
{
    struct mc_transfer_engine *engine = self->engine;
    const char *text = "*";
    if (location != NULL && location != Py_None && (text = mc_py_text(location, "location")) == NULL)
        return NULL;
    int rc;
    Py_BEGIN_ALLOW_THREADS rc = mc_transfer_register_at(engine, ranges, count, text);
    Py_END_ALLOW_THREADS return PyLong_FromLong(rc);
}

static PyObject *register_memory(struct mc_py_engine *self, PyObject **values)
{
    struct mc_transfer_range range;
    if (mc_py_number(values[0], "buffer_addr", &range.address) < 0 ||
        mc_py_number(values[1], "capacity", &range.length) < 0)
        return NULL;
    return register_ranges(self, &range, 1, values[2]);
}

MC_PY_ENGINE_CALL(register_memory, 2, "buffer_addr, capacity, location='*'", register_memory(self, values),
                  "0; -7 overlap; -1 a length of zero.")

/* A list of numbers into numbers[i * stride]. */
static int read_numbers(PyObject *tuple, const char *name, uint64_t *numbers, size_t stride)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(tuple); i++)
        if (mc_py_number(PyTuple_GetItem(tuple, i), name, &numbers[(size_t)i * stride]) < 0)
            return -1;
    return 0;
}

static PyObject *register_tuples(struct mc_py_engine *self, PyObject *addresses, PyObject *capacities,
                                 PyObject *location)
{
    struct mc_py_scratch scratch;
    PyObject *answer = NULL;
    size_t count = (size_t)PyTuple_Size(addresses);
    if ((size_t)PyTuple_Size(capacities) != count) {
        mc_log_limited(ERROR, "batch_register_memory: %zu addresses, %zd capacities; they must be as many", count,
                       PyTuple_Size(capacities));
        return PyLong_FromLong(-1);
    }
    mc_py_scratch_init(&scratch);
    struct mc_transfer_range *ranges = mc_py_scratch_take(&scratch, count + 1, sizeof(*ranges));
    if (ranges != NULL && read_numbers(addresses, "buffer_addresses", &ranges[0].address, 2) == 0 &&
        read_numbers(capacities, "capacities", &ranges[0].length, 2) == 0)
        answer = register_ranges(self, ranges, count, location);
    mc_py_scratch_free(&scratch);
    return answer;
}
_Static_assert(sizeof(struct mc_transfer_range) == 2 * sizeof(uint64_t), "two numbers each");

static PyObject *batch_register_memory(struct mc_py_engine *self, PyObject **values)
{
    PyObject *addresses = mc_py_snapshot(values[0], "buffer_addresses");
    PyObject *capacities = addresses == NULL ? NULL : mc_py_snapshot(values[1], "capacities");
    PyObject *answer = capacities == NULL ? NULL : register_tuples(self, addresses, capacities, values[2]);
    Py_XDECREF(addresses);
    Py_XDECREF(capacities);
    return answer;
}

MC_PY_ENGINE_CALL(batch_register_memory, 2, "buffer_addresses, capacities, location='*'",
                  batch_register_memory(self, values), "All or none.")

static PyObject *unregister(struct mc_py_engine *self, const uint64_t *addresses, size_t count)
{
    struct mc_transfer_engine *engine = self->engine;
    int rc;
    Py_BEGIN_ALLOW_THREADS rc = mc_transfer_unregister(engine, addresses, count);
    Py_END_ALLOW_THREADS return PyLong_FromLong(rc);
}

static PyObject *unregister_memory(struct mc_py_engine *self, PyObject **values)
{
    uint64_t address;
    return mc_py_number(values[0], "buffer_addr", &address) < 0 ? NULL : unregister(self, &address, 1);
}

MC_PY_ENGINE_CALL(unregister_memory, 1, "buffer_addr", unregister_memory(self, values),
                  "0; -3 nothing registered begins there; -4 still in use.")

static PyObject *batch_unregister_memory(struct mc_py_engine *self, PyObject **values)
{
    PyObject *answer = NULL;
    struct mc_py_scratch scratch;
    PyObject *tuple = mc_py_snapshot(values[0], "buffer_addresses");
    if (tuple == NULL)
        return NULL;
    mc_py_scratch_init(&scratch);
    size_t address_count = (size_t)PyTuple_Size(tuple);
    uint64_t *addresses = mc_py_scratch_take(&scratch, address_count + 1, sizeof(*addresses));
    if (addresses != NULL && read_numbers(tuple, "buffer_addresses", addresses, 1) == 0)
        answer = unregister(self, addresses, address_count);
    mc_py_scratch_free(&scratch);
    Py_DECREF(tuple);
    return answer;
}

MC_PY_ENGINE_CALL(batch_unregister_memory, 1, "buffer_addresses", batch_unregister_memory(self, values),
                  "Goes on after an error and returns the first.")

/* ---- memory of the library, bytes in and out of buffers ---- */

PyObject *mc_py_engine_allocate_managed_buffer(PyObject *object, PyObject *length_object)
{
    struct mc_transfer_engine *engine = engine_of(object);
    uint64_t length;
    void *memory;
    if (mc_py_number(length_object, "length", &length) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS memory = mc_transfer_allocate(engine, (size_t)length);
    Py_END_ALLOW_THREADS return PyLong_FromUnsignedLongLong((uintptr_t)memory);
}

static PyObject *free_managed_buffer(struct mc_py_engine *self, PyObject **values)
{
    struct mc_transfer_engine *engine = self->engine;
    uint64_t address;
    int rc;
    if (mc_py_number(values[0], "buffer_addr", &address) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS rc = mc_transfer_free(engine, (void *)(uintptr_t)address);
    Py_END_ALLOW_THREADS return PyLong_FromLong(rc);
}

MC_PY_ENGINE_CALL(free_managed_buffer, 1, "buffer_addr, length", free_managed_buffer(self, values), "0 or negative.")

/* To let the GIL go costs more than a small copy, and another thread may take it for its turn. */
static int copy(struct mc_transfer_engine *engine, enum mc_transfer_opcode opcode, uint64_t address, void *local,
                uint64_t length)
{
    int rc = mc_transfer_copy_quick(engine, opcode, address, local, length);
    if (rc != 1)
        return rc;
    Py_BEGIN_ALLOW_THREADS rc = mc_transfer_copy(engine, opcode, address, local, length);
    Py_END_ALLOW_THREADS return rc;
}

static PyObject *write_bytes_to_buffer(struct mc_py_engine *self, PyObject **values)
{
    uint64_t address, length;
    struct mc_bytes text;
    struct mc_py_bytes bytes;
    if (mc_py_number(values[0], "dest_address", &address) < 0 || mc_py_number(values[2], "length", &length) < 0)
        return NULL;
    bool is_text = PyUnicode_Check(values[1]) != 0;
    if (is_text ? mc_py_key(values[1], &text) < 0 : mc_py_bytes_acquire(values[1], false, &bytes) < 0)
        return NULL;
    const void *data = is_text ? text.data : bytes.data;
    bool is_fine = length <= (is_text ? text.length : bytes.length);
    if (is_fine && length > 0)
        is_fine = copy(self->engine, MC_TRANSFER_WRITE, address, (void *)(uintptr_t)data, length) == 0;
    if (!is_text)
        mc_py_bytes_release(&bytes);
    if (!is_fine)
        mc_log_limited(
            ERROR, "write_bytes_to_buffer: the source is shorter than length, or the target is not registered, or a "
                   "device refused");
    return PyLong_FromLong(is_fine ? 0 : -1);
}

MC_PY_ENGINE_CALL(write_bytes_to_buffer, 3, "dest_address, src_ptr, length", write_bytes_to_buffer(self, values),
                  "0; -1: src_ptr is shorter, or the target is not registered.")

static PyObject *read_bytes_from_buffer(struct mc_py_engine *self, PyObject **values)
{
    uint64_t address, length;
    if (mc_py_number(values[0], "source_address", &address) < 0 || mc_py_number(values[1], "length", &length) < 0)
        return NULL;
    struct mc_transfer_engine *engine = self->engine;
    int rc = length == 0 || mc_transfer_contains(engine, address, length) ? 0 : MC_TRANSFER_ERR_ADDRESS_NOT_REGISTERED;
    PyObject *bytes = NULL;
    if (rc == 0) { /* no memory is asked for a range that is none; another thread may give it back meanwhile */
        bytes = length > PY_SSIZE_T_MAX ? PyErr_NoMemory() : PyBytes_FromStringAndSize(NULL, (Py_ssize_t)length);
        if (bytes == NULL)
            return NULL;
    }
    if (rc == 0 && length > 0) /* nobody else knows of these bytes yet */
        rc = copy(engine, MC_TRANSFER_READ, address, PyBytes_AsString(bytes), length);
    if (rc == 0)
        return bytes;
    Py_XDECREF(bytes);
    if (rc == MC_TRANSFER_ERR_ADDRESS_NOT_REGISTERED)
        PyErr_SetString(PyExc_ValueError, "read_bytes_from_buffer: the range lies in no registered memory");
    else
        PyErr_SetString(PyExc_RuntimeError, "read_bytes_from_buffer: the device cannot read there");
    return NULL;
}

MC_PY_ENGINE_CALL(read_bytes_from_buffer, 2, "source_address, length", read_bytes_from_buffer(self, values),
                  "bytes; ValueError outside of registered memory.")

/* ---- asking peers ---- */

static PyObject *send_probe(struct mc_py_engine *self, PyObject **values)
{
    struct mc_transfer_engine *engine = self->engine;
    const char *target = mc_py_text(values[0], "peer_server_name");
    int rc;
    if (target == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS rc = mc_transfer_probe(engine, target);
    Py_END_ALLOW_THREADS return PyLong_FromLong(rc);
}

MC_PY_ENGINE_CALL(send_probe, 1, "peer_server_name", send_probe(self, values),
                  "0: the peer answers; -102: it cannot be reached.")

PyObject *mc_py_engine_get_first_buffer_address(PyObject *object, PyObject *segment)
{
    struct mc_transfer_engine *engine = engine_of(object);
    const char *target = mc_py_text(segment, "segment_name");
    uint64_t address;
    if (target == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS address = mc_transfer_first_address(engine, target);
    Py_END_ALLOW_THREADS return PyLong_FromUnsignedLongLong(address);
}

struct notes {
    struct note_texts {
        char *name, *message;
    } * all;
    size_t count, capacity;
};

static void take_notes(struct mc_transfer_engine *engine, struct notes *notes)
{
    for (;; notes->count++) {
        if (notes->count == notes->capacity) {
            size_t capacity = notes->capacity == 0 ? 64 : notes->capacity * 2;
            struct note_texts *more = realloc(notes->all, capacity * sizeof(*more));
            if (more == NULL) /* the others stay for the next call */
                return;
            notes->all = more;
            notes->capacity = capacity;
        }
        struct note_texts *note = &notes->all[notes->count];
        if (mc_transfer_take_note(engine, &note->name, &note->message) != 1)
            return;
    }
}

static PyObject *get_notifies(struct mc_py_engine *self)
{
    struct mc_transfer_engine *engine = self->engine;
    struct notes notes = {0};
    PyObject *list = PyList_New(0);
    if (list == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS take_notes(engine, &notes);
    Py_END_ALLOW_THREADS for (size_t i = 0; i < notes.count; i++)
    {
        PyObject *note = list == NULL ? NULL
                                      : PyObject_CallMethod(mc_py_engine_types, "_note", "yy", notes.all[i].name,
                                                            notes.all[i].message);
        if (list != NULL && (note == NULL || PyList_Append(list, note) < 0))
            Py_CLEAR(list);
        Py_XDECREF(note);
        free(notes.all[i].name);
        free(notes.all[i].message);
    }
    free(notes.all);
    return list;
}

MC_PY_ENGINE_CALL(get_notifies, 0, "", get_notifies(self), "Takes all notes that have come: a list of TransferNotify.")

static PyObject *get_rpc_port(struct mc_py_engine *self)
{
    struct mc_transfer_engine *engine = self->engine;
    return PyLong_FromLong(engine == NULL ? 0 : mc_transfer_rpc_port(engine));
}

MC_PY_ENGINE_CALL(get_rpc_port, 0, "", get_rpc_port(self), "The port of handshakes: peers call this engine host:port.")

/* Takes over a text of the library. */
static PyObject *take_text(char *text, const char *otherwise)
{
    PyObject *answer = PyUnicode_FromString(text == NULL ? otherwise : text);
    free(text);
    return answer;
}

static PyObject *get_local_topology(PyObject **values)
{
    const char *filter = NULL;
    if (values[0] != NULL && values[0] != Py_None && (filter = mc_py_text(values[0], "device_name")) == NULL)
        return NULL;
    char *text;
    Py_BEGIN_ALLOW_THREADS text = mc_transfer_topology(filter);
    Py_END_ALLOW_THREADS return take_text(text, "{}\n");
}

MC_PY_ENGINE_CALL(get_local_topology, 0, "device_name=None", get_local_topology(values), "RDMA devices as JSON.")

static PyObject *get_metrics(struct mc_py_engine *self)
{
    struct mc_transfer_engine *engine = self->engine;
    char *text = NULL;
    if (engine != NULL) {
        Py_BEGIN_ALLOW_THREADS text = mc_transfer_metrics_text(engine);
        Py_END_ALLOW_THREADS
    }
    return take_text(text, "");
}

MC_PY_ENGINE_CALL(get_metrics, 0, "", get_metrics(self),
                  "Bytes, items, errors and latencies by peer and path: Prometheus text; '' before "
                  "initialize().")

static PyObject *show_links(struct mc_py_engine *self, PyObject **values)
{
    struct mc_transfer_engine *engine = self->engine;
    char *text = NULL;
    int is_json = values[0] == NULL ? 0 : PyObject_IsTrue(values[0]);
    if (is_json < 0)
        return NULL;
    if (engine != NULL) {
        Py_BEGIN_ALLOW_THREADS text = is_json != 0 ? mc_transfer_links(engine) : mc_transfer_links_text(engine);
        Py_END_ALLOW_THREADS
    }
    return take_text(text, "");
}

MC_PY_ENGINE_CALL(show_links, 0, "json=False", show_links(self, values),
                  "Ports, RDMA devices, peers and the path to each, to be read or as JSON; '' before initialize().")

static PyObject *get_nic_load_stats(struct mc_py_engine *self)
{
    struct mc_transfer_engine *engine = self->engine;
    struct mc_transfer_nic_load loads[MC_TRANSFER_NICS_MAX];
    int count = engine == NULL ? 0 : mc_transfer_nic_loads(engine, loads, MC_TRANSFER_NICS_MAX);
    PyObject *list = PyList_New(0);
    for (int i = 0; i < count && list != NULL; i++) {
        PyObject *one = Py_BuildValue("{sssKsK}", "device_name", loads[i].device, "inflight_bytes",
                                      (unsigned long long)loads[i].inflight_bytes, "moved_bytes",
                                      (unsigned long long)loads[i].moved_bytes);
        if (one == NULL || PyList_Append(list, one) < 0)
            Py_CLEAR(list);
        Py_XDECREF(one);
    }
    return list;
}

MC_PY_ENGINE_CALL(get_nic_load_stats, 0, "", get_nic_load_stats(self),
                  "Of each RDMA device: a dict of device_name, inflight_bytes and moved_bytes, by this "
                  "engine's own transfers.")

static PyObject *enable_graceful_shutdown(struct mc_py_engine *self)
{
    return PyLong_FromLong(mc_transfer_drain_on_signals(self->engine));
}

MC_PY_ENGINE_CALL(enable_graceful_shutdown, 0, "", enable_graceful_shutdown(self),
                  "From now on SIGTERM and SIGINT take the name back and let transfers end before "
                  "the process does. 0 or negative.")

static PyObject *warmup_efa_segment(PyObject **values)
{
    return mc_py_text(values[0], "segment_name") == NULL ? NULL : PyLong_FromLong(0);
}

MC_PY_ENGINE_CALL(warmup_efa_segment, 1, "segment_name", warmup_efa_segment(values),
                  "0: there is no EFA, so nothing is to be warmed up.")

static PyObject *get_engine(struct mc_py_engine *self)
{
    return PyObject_CallMethod(mc_py_engine_types, "_inner", "O", (PyObject *)self);
}

MC_PY_ENGINE_CALL(get_engine, 0, "", get_engine(self), "What MooncakeDistributedStore.setup(engine=...) takes.")

static PyObject *get_engine_ptr(struct mc_py_engine *self)
{
    return PyLong_FromVoidPtr(self->engine);
}

MC_PY_ENGINE_CALL(get_engine_ptr, 0, "", get_engine_ptr(self), "The address of the library's engine.")
