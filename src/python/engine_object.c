/* SPDX-License-Identifier: Apache-2.0
 *
 * The type TransferEngine: its life, registered memory, and what moves no bytes. An object that is in use by a call
 * cannot go away, as the call holds it. */
#include "python/engine_module.h"

#include "gpu/gpu.h"
#include "env/log.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

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

static void engine_dealloc(PyObject *object)
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

static PyObject *open_engine(PyObject *object, const struct mc_transfer_config *config)
{
    struct mc_py_engine *self = (struct mc_py_engine *)object;
    struct mc_transfer_engine *engine = NULL;
    int rc;
    if (self->is_opening || self->engine != NULL) {
        mc_log(ERROR, "initialize: this transfer engine is initialised already");
        return PyLong_FromLong(-1);
    }
    self->is_opening = true;
    Py_BEGIN_ALLOW_THREADS rc = mc_transfer_open(config, &engine);
    Py_END_ALLOW_THREADS self->engine = engine;
    self->is_opening = false;
    return PyLong_FromLong(rc < 0 ? -1 : 0);
}

MC_PY_SIGNATURE(initialize, 4, "local_hostname", "metadata_server", "protocol", "device_name");
static PyObject *engine_initialize(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    PyObject *values[4];
    const char *texts[4];
    if (mc_py_arguments(&initialize_signature, args, count, keywords, values) < 0)
        return NULL;
    for (int i = 0; i < 4; i++)
        if ((texts[i] = mc_py_text(values[i], initialize_names[i])) == NULL)
            return NULL;
    struct mc_transfer_config config = {texts[0], texts[1], texts[2], texts[3]};
    return open_engine(object, &config);
}

MC_PY_SIGNATURE(initialize_ext, 5, "local_hostname", "metadata_server", "protocol", "device_name", "metadata_type");
static PyObject *engine_initialize_ext(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    PyObject *values[5], *server;
    const char *texts[5];
    if (mc_py_arguments(&initialize_ext_signature, args, count, keywords, values) < 0)
        return NULL;
    for (int i = 0; i < 5; i++)
        if ((texts[i] = mc_py_text(values[i], initialize_ext_names[i])) == NULL)
            return NULL;
    bool is_whole = strcmp(texts[1], "P2PHANDSHAKE") == 0 || strstr(texts[1], "://") != NULL;
    server = is_whole ? PyUnicode_FromString(texts[1]) : PyUnicode_FromFormat("%s://%s", texts[4], texts[1]);
    if (server == NULL)
        return NULL;
    struct mc_transfer_config config = {texts[0], mc_py_text(server, "metadata_server"), texts[2], texts[3]};
    PyObject *answer = open_engine(object, &config);
    Py_DECREF(server);
    return answer;
}

/* ---- registering ---- */

/* location: NULL or None: "*". */
static PyObject *register_ranges(PyObject *object, const struct mc_transfer_range *ranges, size_t count,
                                 PyObject *location)
{
    struct mc_transfer_engine *engine = engine_of(object);
    const char *text = "*";
    if (location != NULL && location != Py_None && (text = mc_py_text(location, "location")) == NULL)
        return NULL;
    int rc;
    Py_BEGIN_ALLOW_THREADS rc = mc_transfer_register_at(engine, ranges, count, text);
    Py_END_ALLOW_THREADS return PyLong_FromLong(rc);
}

MC_PY_SIGNATURE(register_memory, 2, "buffer_addr", "capacity", "location");
static PyObject *engine_register_memory(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    PyObject *values[3];
    struct mc_transfer_range range;
    if (mc_py_arguments(&register_memory_signature, args, count, keywords, values) < 0 ||
        mc_py_number(values[0], "buffer_addr", &range.address) < 0 ||
        mc_py_number(values[1], "capacity", &range.length) < 0)
        return NULL;
    return register_ranges(object, &range, 1, values[2]);
}

/* A list of numbers into numbers[i * stride]. */
static int read_numbers(PyObject *tuple, const char *name, uint64_t *numbers, size_t stride)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(tuple); i++)
        if (mc_py_number(PyTuple_GetItem(tuple, i), name, &numbers[(size_t)i * stride]) < 0)
            return -1;
    return 0;
}

static PyObject *register_tuples(PyObject *object, PyObject *addresses, PyObject *capacities, PyObject *location)
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
        answer = register_ranges(object, ranges, count, location);
    mc_py_scratch_free(&scratch);
    return answer;
}
_Static_assert(sizeof(struct mc_transfer_range) == 2 * sizeof(uint64_t), "two numbers each");

MC_PY_SIGNATURE(batch_register_memory, 2, "buffer_addresses", "capacities", "location");
static PyObject *engine_batch_register_memory(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                              PyObject *keywords)
{
    PyObject *values[3];
    if (mc_py_arguments(&batch_register_memory_signature, args, count, keywords, values) < 0)
        return NULL;
    PyObject *addresses = mc_py_snapshot(values[0], "buffer_addresses");
    PyObject *capacities = addresses == NULL ? NULL : mc_py_snapshot(values[1], "capacities");
    PyObject *answer = capacities == NULL ? NULL : register_tuples(object, addresses, capacities, values[2]);
    Py_XDECREF(addresses);
    Py_XDECREF(capacities);
    return answer;
}

static PyObject *unregister(PyObject *object, const uint64_t *addresses, size_t count)
{
    struct mc_transfer_engine *engine = engine_of(object);
    int rc;
    Py_BEGIN_ALLOW_THREADS rc = mc_transfer_unregister(engine, addresses, count);
    Py_END_ALLOW_THREADS return PyLong_FromLong(rc);
}

MC_PY_SIGNATURE(unregister_memory, 1, "buffer_addr");
static PyObject *engine_unregister_memory(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    PyObject *values[1];
    uint64_t address;
    if (mc_py_arguments(&unregister_memory_signature, args, count, keywords, values) < 0 ||
        mc_py_number(values[0], "buffer_addr", &address) < 0)
        return NULL;
    return unregister(object, &address, 1);
}

MC_PY_SIGNATURE(batch_unregister_memory, 1, "buffer_addresses");
static PyObject *engine_batch_unregister_memory(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                                PyObject *keywords)
{
    PyObject *values[1], *answer = NULL;
    struct mc_py_scratch scratch;
    if (mc_py_arguments(&batch_unregister_memory_signature, args, count, keywords, values) < 0)
        return NULL;
    PyObject *tuple = mc_py_snapshot(values[0], "buffer_addresses");
    if (tuple == NULL)
        return NULL;
    mc_py_scratch_init(&scratch);
    size_t address_count = (size_t)PyTuple_Size(tuple);
    uint64_t *addresses = mc_py_scratch_take(&scratch, address_count + 1, sizeof(*addresses));
    if (addresses != NULL && read_numbers(tuple, "buffer_addresses", addresses, 1) == 0)
        answer = unregister(object, addresses, address_count);
    mc_py_scratch_free(&scratch);
    Py_DECREF(tuple);
    return answer;
}

/* ---- memory of the library, bytes in and out of buffers ---- */

static PyObject *engine_allocate_managed_buffer(PyObject *object, PyObject *length_object)
{
    struct mc_transfer_engine *engine = engine_of(object);
    uint64_t length;
    void *memory;
    if (mc_py_number(length_object, "length", &length) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS memory = mc_transfer_allocate(engine, (size_t)length);
    Py_END_ALLOW_THREADS return PyLong_FromUnsignedLongLong((uintptr_t)memory);
}

MC_PY_SIGNATURE(free_managed_buffer, 1, "buffer_addr", "length");
static PyObject *engine_free_managed_buffer(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                            PyObject *keywords)
{
    struct mc_transfer_engine *engine = engine_of(object);
    PyObject *values[2];
    uint64_t address;
    int rc;
    if (mc_py_arguments(&free_managed_buffer_signature, args, count, keywords, values) < 0 ||
        mc_py_number(values[0], "buffer_addr", &address) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS rc = mc_transfer_free(engine, (void *)(uintptr_t)address);
    Py_END_ALLOW_THREADS return PyLong_FromLong(rc);
}

MC_PY_SIGNATURE(write_bytes_to_buffer, 3, "dest_address", "src_ptr", "length");
static PyObject *engine_write_bytes_to_buffer(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                              PyObject *keywords)
{
    PyObject *values[3];
    uint64_t address, length;
    struct mc_bytes text;
    struct mc_py_bytes bytes;
    if (mc_py_arguments(&write_bytes_to_buffer_signature, args, count, keywords, values) < 0 ||
        mc_py_number(values[0], "dest_address", &address) < 0 || mc_py_number(values[2], "length", &length) < 0)
        return NULL;
    bool is_text = PyUnicode_Check(values[1]) != 0;
    if (is_text ? mc_py_key(values[1], &text) < 0 : mc_py_bytes_acquire(values[1], false, &bytes) < 0)
        return NULL;
    const void *data = is_text ? text.data : bytes.data;
    bool is_fine = length <= (is_text ? text.length : bytes.length) &&
                   (length == 0 || mc_transfer_contains(engine_of(object), address, length));
    if (is_fine && length > 0)
        is_fine = mc_gpu_copy((void *)(uintptr_t)address, data, (size_t)length) == 0;
    if (!is_text)
        mc_py_bytes_release(&bytes);
    if (!is_fine)
        mc_log_limited(
            ERROR, "write_bytes_to_buffer: the source is shorter than length, or the target is not registered, or a "
                   "device refused");
    return PyLong_FromLong(is_fine ? 0 : -1);
}

MC_PY_SIGNATURE(read_bytes_from_buffer, 2, "source_address", "length");
static PyObject *engine_read_bytes_from_buffer(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                               PyObject *keywords)
{
    PyObject *values[2];
    uint64_t address, length;
    if (mc_py_arguments(&read_bytes_from_buffer_signature, args, count, keywords, values) < 0 ||
        mc_py_number(values[0], "source_address", &address) < 0 || mc_py_number(values[1], "length", &length) < 0)
        return NULL;
    if (length > 0 && !mc_transfer_contains(engine_of(object), address, length)) {
        PyErr_SetString(PyExc_ValueError, "read_bytes_from_buffer: the range lies in no registered memory");
        return NULL;
    }
    PyObject *bytes = length > PY_SSIZE_T_MAX ? PyErr_NoMemory() : PyBytes_FromStringAndSize(NULL, (Py_ssize_t)length);
    if (bytes != NULL && length > 0 &&
        mc_gpu_copy(PyBytes_AsString(bytes), (const void *)(uintptr_t)address, (size_t)length) < 0) {
        Py_DECREF(bytes);
        PyErr_SetString(PyExc_RuntimeError, "read_bytes_from_buffer: the device cannot read there");
        return NULL;
    }
    return bytes;
}

/* ---- asking peers ---- */

MC_PY_SIGNATURE(send_probe, 1, "peer_server_name");
static PyObject *engine_send_probe(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    struct mc_transfer_engine *engine = engine_of(object);
    PyObject *values[1];
    const char *target;
    int rc;
    if (mc_py_arguments(&send_probe_signature, args, count, keywords, values) < 0 ||
        (target = mc_py_text(values[0], "peer_server_name")) == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS rc = mc_transfer_probe(engine, target);
    Py_END_ALLOW_THREADS return PyLong_FromLong(rc);
}

static PyObject *engine_get_first_buffer_address(PyObject *object, PyObject *segment)
{
    struct mc_transfer_engine *engine = engine_of(object);
    const char *target = mc_py_text(segment, "segment_name");
    uint64_t address;
    if (target == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS address = mc_transfer_first_address(engine, target);
    Py_END_ALLOW_THREADS return PyLong_FromUnsignedLongLong(address);
}

static PyObject *make_note(const char *name, const char *message)
{
    /* A peer may send any bytes: what is no UTF-8 comes as Python's own names of files do, and loses no note. */
    PyObject *one = PyUnicode_DecodeUTF8(name, (Py_ssize_t)strlen(name), "surrogateescape");
    PyObject *other = PyUnicode_DecodeUTF8(message, (Py_ssize_t)strlen(message), "surrogateescape");
    PyObject *note = one == NULL || other == NULL
                         ? NULL
                         : PyObject_CallMethod(mc_py_engine_types, "TransferNotify", "OO", one, other);
    Py_XDECREF(one);
    Py_XDECREF(other);
    return note;
}

static PyObject *engine_get_notifies(PyObject *object, PyObject *Py_UNUSED(unused))
{
    PyObject *list = PyList_New(0);
    char *name, *message;
    while (list != NULL && mc_transfer_take_note(engine_of(object), &name, &message) == 1) {
        PyObject *note = make_note(name, message);
        if (note == NULL || PyList_Append(list, note) < 0)
            Py_CLEAR(list);
        Py_XDECREF(note);
        free(name);
        free(message);
    }
    return list;
}

static PyObject *engine_get_rpc_port(PyObject *object, PyObject *Py_UNUSED(unused))
{
    struct mc_transfer_engine *engine = engine_of(object);
    return PyLong_FromLong(engine == NULL ? 0 : mc_transfer_rpc_port(engine));
}

MC_PY_SIGNATURE(get_local_topology, 0, "device_name");
static PyObject *engine_get_local_topology(PyObject *Py_UNUSED(object), PyObject *const *args, Py_ssize_t count,
                                           PyObject *keywords)
{
    PyObject *values[1];
    const char *filter = NULL;
    if (mc_py_arguments(&get_local_topology_signature, args, count, keywords, values) < 0)
        return NULL;
    if (values[0] != NULL && values[0] != Py_None && (filter = mc_py_text(values[0], "device_name")) == NULL)
        return NULL;
    char *text = mc_transfer_topology(filter);
    PyObject *answer = PyUnicode_FromString(text == NULL ? "{}\n" : text);
    free(text);
    return answer;
}

static PyObject *engine_get_metrics(PyObject *object, PyObject *Py_UNUSED(unused))
{
    struct mc_transfer_engine *engine = engine_of(object);
    char *text = NULL;
    if (engine != NULL) {
        Py_BEGIN_ALLOW_THREADS text = mc_transfer_metrics_text(engine);
        Py_END_ALLOW_THREADS
    }
    PyObject *answer = PyUnicode_FromString(text == NULL ? "" : text);
    free(text);
    return answer;
}

MC_PY_SIGNATURE(show_links, 0, "json");
static PyObject *engine_show_links(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    struct mc_transfer_engine *engine = engine_of(object);
    PyObject *values[1];
    char *text = NULL;
    if (mc_py_arguments(&show_links_signature, args, count, keywords, values) < 0)
        return NULL;
    int is_json = values[0] == NULL ? 0 : PyObject_IsTrue(values[0]);
    if (is_json < 0)
        return NULL;
    if (engine != NULL) {
        Py_BEGIN_ALLOW_THREADS text = is_json != 0 ? mc_transfer_links(engine) : mc_transfer_links_text(engine);
        Py_END_ALLOW_THREADS
    }
    PyObject *answer = PyUnicode_FromString(text == NULL ? "" : text);
    free(text);
    return answer;
}

static PyObject *engine_get_nic_load_stats(PyObject *object, PyObject *Py_UNUSED(unused))
{
    struct mc_transfer_engine *engine = engine_of(object);
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

static PyObject *engine_enable_graceful_shutdown(PyObject *object, PyObject *Py_UNUSED(unused))
{
    return PyLong_FromLong(mc_transfer_drain_on_signals(engine_of(object)));
}

/* Nothing is to be warmed up: there is no EFA. */
MC_PY_SIGNATURE(warmup_efa_segment, 1, "segment_name");
static PyObject *engine_warmup_efa_segment(PyObject *Py_UNUSED(object), PyObject *const *args, Py_ssize_t count,
                                           PyObject *keywords)
{
    PyObject *values[1];
    if (mc_py_arguments(&warmup_efa_segment_signature, args, count, keywords, values) < 0 ||
        mc_py_text(values[0], "segment_name") == NULL)
        return NULL;
    return PyLong_FromLong(0);
}

static PyObject *engine_get_engine(PyObject *object, PyObject *Py_UNUSED(unused))
{
    return PyObject_CallMethod(mc_py_engine_types, "_inner", "O", object);
}
static PyObject *engine_get_engine_ptr(PyObject *object, PyObject *Py_UNUSED(unused))
{
    return PyLong_FromVoidPtr(engine_of(object));
}

/* ---- what is not there ---- */

#define LATER(name, what)                                                                                              \
    static PyObject *engine_##name(PyObject *Py_UNUSED(object), PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(map))   \
    {                                                                                                                  \
        PyErr_SetString(PyExc_NotImplementedError, #name ": " what);                                                   \
        return NULL;                                                                                                   \
    }
#define NO_CUDA "there are no transfers on a stream; the other transfers take addresses of GPU memory, too"
LATER(transfer_write_on_cuda, NO_CUDA)
LATER(transfer_read_on_cuda, NO_CUDA)
LATER(batch_transfer_write_on_cuda, NO_CUDA)
LATER(batch_transfer_read_on_cuda, NO_CUDA)
#undef LATER

#define FAST(name) MC_PY_METHOD(engine_##name), MC_PY_KEYWORDS
#define SLOW(name) MC_PY_METHOD(engine_##name), METH_VARARGS | METH_KEYWORDS
static PyMethodDef engine_methods[] = {
    {"initialize", FAST(initialize),
     "initialize(local_hostname, metadata_server, protocol, device_name)\n--\n\n0 or -1. metadata_server: "
     "'P2PHANDSHAKE', 'http://host:port/metadata', 'etcd://host:port;host:port' or 'redis://host:port'."},
    {"initialize_ext", FAST(initialize_ext),
     "initialize_ext(local_hostname, metadata_server, protocol, device_name, metadata_type)\n--\n\n"
     "As initialize; metadata_type is put before a metadata_server without one."},
    {"get_rpc_port", engine_get_rpc_port, METH_NOARGS,
     "get_rpc_port()\n--\n\nThe port of handshakes: peers call this engine host:port."},
    {"register_memory", FAST(register_memory),
     "register_memory(buffer_addr, capacity, location='*')\n--\n\n0; -7 overlap; -1 a length of zero."},
    {"unregister_memory", FAST(unregister_memory),
     "unregister_memory(buffer_addr)\n--\n\n0; -3 nothing registered begins there; -4 still in use."},
    {"batch_register_memory", FAST(batch_register_memory),
     "batch_register_memory(buffer_addresses, capacities, location='*')\n--\n\nAll or none."},
    {"batch_unregister_memory", FAST(batch_unregister_memory),
     "batch_unregister_memory(buffer_addresses)\n--\n\nGoes on after an error and returns the first."},
    {"allocate_managed_buffer", engine_allocate_managed_buffer, METH_O,
     "allocate_managed_buffer(length, /)\n--\n\nAn address of registered memory, or 0."},
    {"free_managed_buffer", FAST(free_managed_buffer),
     "free_managed_buffer(buffer_addr, length)\n--\n\n0 or negative."},
    {"write_bytes_to_buffer", FAST(write_bytes_to_buffer),
     "write_bytes_to_buffer(dest_address, src_ptr, length)\n--\n\n0; -1: src_ptr is shorter, or the target is not "
     "registered."},
    {"read_bytes_from_buffer", FAST(read_bytes_from_buffer),
     "read_bytes_from_buffer(source_address, length)\n--\n\nbytes; ValueError outside of registered memory."},
    {"send_probe", FAST(send_probe),
     "send_probe(peer_server_name)\n--\n\n0: the peer answers; -102: it cannot be reached."},
    {"get_first_buffer_address", engine_get_first_buffer_address, METH_O,
     "get_first_buffer_address(segment_name, /)\n--\n\nOf the peer's registered memory; 0: none."},
    {"get_notifies", engine_get_notifies, METH_NOARGS,
     "get_notifies()\n--\n\nTakes all notes that have come: a list of TransferNotify."},
    {"get_local_topology", FAST(get_local_topology),
     "get_local_topology(device_name=None)\n--\n\nRDMA devices as JSON."},
    {"get_metrics", engine_get_metrics, METH_NOARGS,
     "get_metrics()\n--\n\nBytes, items, errors and latencies by peer and path: Prometheus text; '' before "
     "initialize()."},
    {"get_engine", engine_get_engine, METH_NOARGS,
     "get_engine()\n--\n\nWhat MooncakeDistributedStore.setup(engine=...) takes."},
    {"get_engine_ptr", engine_get_engine_ptr, METH_NOARGS,
     "get_engine_ptr()\n--\n\nThe address of the library's engine."},
    {"show_links", FAST(show_links),
     "show_links(json=False)\n--\n\nPorts, RDMA devices, peers and the path to each, to be read or as JSON; '' before "
     "initialize()."},
    {"get_nic_load_stats", engine_get_nic_load_stats, METH_NOARGS,
     "get_nic_load_stats()\n--\n\nOf each RDMA device: a dict of device_name, inflight_bytes and moved_bytes, by this "
     "engine's own transfers."},
    {"enable_graceful_shutdown", engine_enable_graceful_shutdown, METH_NOARGS,
     "enable_graceful_shutdown()\n--\n\nFrom now on SIGTERM and SIGINT take the name back and let transfers end before "
     "the process does. 0 or negative."},
    {"warmup_efa_segment", FAST(warmup_efa_segment),
     "warmup_efa_segment(segment_name)\n--\n\n0: there is no EFA, so nothing is to be warmed up."},
    {"transfer_write_on_cuda", SLOW(transfer_write_on_cuda), "Raises NotImplementedError."},
    {"transfer_read_on_cuda", SLOW(transfer_read_on_cuda), "Raises NotImplementedError."},
    {"batch_transfer_write_on_cuda", SLOW(batch_transfer_write_on_cuda), "Raises NotImplementedError."},
    {"batch_transfer_read_on_cuda", SLOW(batch_transfer_read_on_cuda), "Raises NotImplementedError."},
#define ROW(name, arguments, answer)                                                                                   \
    {#name, MC_PY_METHOD(mc_py_engine_##name), MC_PY_KEYWORDS, #name "(" arguments ")\n--\n\n" answer},
    MC_PY_ENGINE_TRANSFERS(ROW)
#undef ROW
        {NULL, NULL, 0, NULL},
};

static PyMemberDef engine_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(struct mc_py_engine, weak_references), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot engine_slots[] = {
    {Py_tp_dealloc, MC_PY_POINTER(engine_dealloc)},
    {Py_tp_methods, engine_methods},
    {Py_tp_members, engine_members},
    {Py_tp_doc, "TransferEngine()\n--\n\nMoves bytes between memory that two processes have registered. Call "
                "initialize() first."},
    {0, NULL},
};
PyType_Spec mc_py_engine_spec = {"mooncake.engine.TransferEngine", sizeof(struct mc_py_engine), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, engine_slots};
