/* SPDX-License-Identifier: Apache-2.0
 *
 * The extension module mooncake._store: its table of contents. State is global (one interpreter per process): an
 * interpreter with a GIL of its own refuses the import with ImportError. */
#include "env/log.h"
#include "mooncake.h"
#include "python/store_object.h"
#include "python/store_rest.h"
#include "python/store_setup.h"
#include "python/store_types.h"

#include <limits.h>

/* ---- the type ---- */

/* clang-format off */
#define METHODS(X) \
    X(put) X(put_parts) X(put_batch) X(put_from) X(batch_put_from) X(batch_put_from_multi_buffers) \
    X(put_from_with_metadata) X(upsert) X(upsert_parts) X(upsert_batch) X(upsert_from) X(batch_upsert_from) \
    X(_batch_upsert_from_multi_buffers) \
    X(get) X(get_batch) X(get_buffer) X(batch_get_buffer) X(get_into) X(batch_get_into) \
    X(batch_get_into_multi_buffers) X(get_into_ranges) \
    X(batch_get_session_start) X(batch_get_into_multi_buffer_ranges) X(batch_get_session_end) \
    X(batch_put_session_start) X(batch_put_from_multi_buffer_ranges) X(batch_put_session_end) \
    X(batch_put_session_revoke) \
    X(create_copy_task) X(create_move_task) X(query_task) X(batch_replica_clear) X(batch_pin) X(hint) \
    X(allocate_and_mount_segment) X(mount_segment) X(unmount_segment) X(unmount_and_free_segment) \
    X(unmount_local_disk_segment) \
    X(setup_dummy) X(alloc_from_mem_pool) \
    X(is_exist) X(batch_is_exist) X(longest_prefix) X(remove) X(batch_remove) X(remove_by_regex) X(remove_all) X(get_size) X(firm_pin_left) \
    X(register_buffer) X(unregister_buffer) X(get_replica_desc) X(batch_get_replica_desc) \
    X(get_hostname) X(health_check) X(get_offload_rpc_read_count) X(close)
/* clang-format on */
#define DECLARE(name)                                                                                                  \
    PyObject *mc_py_store_##name(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords);       \
    extern const char mc_py_store_doc_##name[];
METHODS(DECLARE)

#define ROW(name) {#name, MC_PY_METHOD(mc_py_store_##name), MC_PY_KEYWORDS, mc_py_store_doc_##name},
static PyMethodDef store_methods[] = {
    METHODS(ROW){"_open", mc_py_store_open, METH_VARARGS, NULL},
    {"_serve", mc_py_store_serve, METH_O, NULL},
    {"_serve_health", mc_py_store_serve_health, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef store_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(struct mc_py_store, weak_references), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

PyDoc_STRVAR(
    store_doc,
    "MooncakeDistributedStore()\n--\n\nOne member of a Mooncake cluster: a client, a store node, or both.\n\n"
    "Make it, call setup(), look at the int that it returns. Sizes are bytes, addresses are ints (for example\n"
    "tensor.data_ptr()). Calls return 0, a count or data on success and a negative code on failure; they raise only "
    "for\n"
    "arguments of a wrong type. Every call releases the GIL and may be made from any thread. Before setup(), and "
    "after\n"
    "close(), calls return -600, get() b\"\", get_buffer() None. In a forked child they return -1010: set up a new "
    "one.");

static PyType_Slot store_slots[] = {
    {Py_tp_doc, (void *)store_doc},
    {Py_tp_new, MC_PY_POINTER(mc_py_store_new)},
    {Py_tp_dealloc, MC_PY_POINTER(mc_py_store_dealloc)},
    {Py_tp_methods, store_methods},
    {Py_tp_members, store_members},
    {0, NULL},
};

static PyType_Spec store_spec = {
    .name = "mooncake.store.MooncakeDistributedStore",
    .basicsize = sizeof(struct mc_py_store),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = store_slots,
};

/* ---- for what is written in Python ---- */

static PyObject *number(PyObject *Py_UNUSED(module), PyObject *object)
{
    uint64_t value;
    return mc_py_u64(object, &value) < 0 ? NULL : PyLong_FromUnsignedLongLong(value);
}

static PyObject *snapshot(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *sequence;
    const char *name;
    return PyArg_ParseTuple(args, "Os", &sequence, &name) ? mc_py_snapshot(sequence, name) : NULL;
}

/* A function that writes a line of this level to the log. */
#define LOG_LINE(name, level)                                                                                          \
    static PyObject *name(PyObject *Py_UNUSED(module), PyObject *text)                                                 \
    {                                                                                                                  \
        const char *line = PyUnicode_AsUTF8AndSize(text, NULL);                                                        \
        if (line == NULL)                                                                                              \
            return NULL;                                                                                               \
        mc_log(level, "%s", line);                                                                                     \
        Py_RETURN_NONE;                                                                                                \
    }
LOG_LINE(log_error, ERROR)
LOG_LINE(log_warning, WARNING)
LOG_LINE(log_info, INFO)

/* ---- codes ---- */

static PyObject *error_text_of(PyObject *code, const char *text(int code))
{
    int overflow = 0;
    long value = PyLong_AsLongAndOverflow(code, &overflow);
    if (value == -1 && overflow == 0 && PyErr_Occurred() != NULL)
        return NULL;
    if (overflow != 0)
        value = overflow < 0 ? INT_MIN : INT_MAX;
    return PyUnicode_FromString(text(value < INT_MIN ? INT_MIN : value > INT_MAX ? INT_MAX : (int)value));
}

static PyObject *error_name(PyObject *Py_UNUSED(module), PyObject *code)
{
    return error_text_of(code, mc_error_name);
}

static PyObject *error_text(PyObject *Py_UNUSED(module), PyObject *code)
{
    return error_text_of(code, mc_error_text);
}

static PyMethodDef module_methods[] = {
    {"error_name", error_name, METH_O,
     "error_name(code, /)\n--\n\n\"OBJECT_NOT_FOUND\" for -704; \"OK\" for 0 and above, \"UNKNOWN\" for what no call "
     "returns."},
    {"error_text", error_text, METH_O, "error_text(code, /)\n--\n\nWhat the code means, and what to do."},
    {"get_alloc_func_addr", mc_py_alloc_address, METH_NOARGS,
     "get_alloc_func_addr()\n--\n\nAddress of a C function void *f(size_t) that returns page-aligned host memory."},
    {"get_free_func_addr", mc_py_free_address, METH_NOARGS,
     "get_free_func_addr()\n--\n\nAddress of the C function void f(void *) that gives it back."},
    {"_number", number, METH_O, NULL},
    {"_snapshot", snapshot, METH_VARARGS, NULL},
    {"_log_error", log_error, METH_O, NULL},
    {"_log_warning", log_warning, METH_O, NULL},
    {"_log_info", log_info, METH_O, NULL},
    {"_log_to", mc_py_log_to, METH_O, NULL},
    {"_allocate", mc_py_allocate, METH_O, NULL},
    {"_release", mc_py_release, METH_O, NULL},
    {"_prefer_node", mc_py_prefer_node, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "mooncake._store",
    .m_doc =
        "The Mooncake store: a pool of memory over many machines, in which objects are put and found by key.\n\n"
        "See MooncakeDistributedStore. Codes: 0 or a count is success, negative is an error of include/mooncake.h.",
    .m_size = -1,
    .m_methods = module_methods,
};

static int module_fill(PyObject *module)
{
    if (mc_py_types_add(module) < 0)
        return -1;
    if (mc_py_module_add(module, "MooncakeDistributedStore", PyType_FromSpec(&store_spec)) < 0)
        return -1;
    if (mc_py_module_add(module, "__version__", PyUnicode_FromString(mc_version())) < 0)
        return -1;
    return mc_py_store_start(module);
}

PyMODINIT_FUNC PyInit__store(void);
PyMODINIT_FUNC PyInit__store(void)
{
    PyObject *module = PyModule_Create(&module_definition);
    return mc_py_module_made(module, "mooncake.store", module != NULL && module_fill(module) == 0);
}
