/* SPDX-License-Identifier: Apache-2.0
 *
 * The extension module mooncake.engine: its table of contents. */
#include "python/engine_object.h"

#include "env/exposed.h"
#include "env/keys.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- the type ---- */

/* clang-format off */
#define METHODS(X) \
    X(initialize) X(initialize_ext) X(register_memory) X(unregister_memory) X(batch_register_memory) \
    X(batch_unregister_memory) X(free_managed_buffer) X(write_bytes_to_buffer) X(read_bytes_from_buffer) \
    X(send_probe) X(get_local_topology) X(show_links) X(warmup_efa_segment) \
    X(transfer_sync) X(transfer_sync_write) X(transfer_sync_read) \
    X(batch_transfer_sync) X(batch_transfer_sync_write) X(batch_transfer_sync_read) \
    X(batch_transfer_async) X(batch_transfer_async_write) X(batch_transfer_async_read) \
    X(transfer_submit_write) X(transfer_check_status) X(get_batch_transfer_status) \
    X(get_rpc_port) X(get_notifies) X(get_metrics) X(get_engine) X(get_engine_ptr) X(get_nic_load_stats) \
    X(enable_graceful_shutdown)
/* clang-format on */
#define DECLARE(name)                                                                                                  \
    PyObject *mc_py_engine_##name(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords);      \
    extern const char mc_py_engine_doc_##name[];
METHODS(DECLARE)

#define ROW(name) {#name, MC_PY_METHOD(mc_py_engine_##name), MC_PY_KEYWORDS, mc_py_engine_doc_##name},
static PyMethodDef engine_methods[] = {
    METHODS(ROW){"allocate_managed_buffer", mc_py_engine_allocate_managed_buffer, METH_O,
                 "allocate_managed_buffer(length, /)\n--\n\nAn address of registered memory, or 0."},
    {"get_first_buffer_address", mc_py_engine_get_first_buffer_address, METH_O,
     "get_first_buffer_address(segment_name, /)\n--\n\nOf the peer's registered memory; 0: none."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef engine_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(struct mc_py_engine, weak_references), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot engine_slots[] = {
    {Py_tp_dealloc, MC_PY_POINTER(mc_py_engine_dealloc)},
    {Py_tp_methods, engine_methods},
    {Py_tp_members, engine_members},
    {Py_tp_doc, "TransferEngine()\n--\n\nMoves bytes between memory that two processes have registered. Call "
                "initialize() first."},
    {0, NULL},
};
static PyType_Spec engine_spec = {"mooncake.engine.TransferEngine", sizeof(struct mc_py_engine), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, engine_slots};

/* ---- the module ---- */

static PyObject *rpc_later(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(keywords))
{
    PyErr_SetString(PyExc_NotImplementedError, "the original's general RPC is not part of this build");
    return NULL;
}

static PyObject *withdraw(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    Py_BEGIN_ALLOW_THREADS mc_transfer_withdraw_all();
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static PyObject *metrics(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    char *text;
    Py_BEGIN_ALLOW_THREADS text = mc_transfer_metrics_text(NULL);
    Py_END_ALLOW_THREADS PyObject *answer = PyUnicode_FromString(text == NULL ? "" : text);
    free(text);
    return answer;
}

/* ---- for mooncake_connector_v1, whose side channel is Python's ---- */

static PyObject *exposed(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *host;
    unsigned short port;
    if (!PyArg_ParseTuple(args, "sH", &host, &port))
        return NULL;
    mc_exposed_say_at(MC_EXPOSED_CONNECTOR, host, port);
    Py_RETURN_NONE;
}

static PyObject *own_key(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    struct mc_key key;
    if (!mc_keys_own(&key))
        Py_RETURN_NONE;
    explicit_bzero(key.secret, sizeof(key.secret));
    return PyUnicode_FromString(key.id);
}

/* By the secret of a key that may read what this process's engines have; of another one None. */
static PyObject *prove(PyObject *Py_UNUSED(module), PyObject *args)
{
    enum { NAMES_MAX = 256 };
    const char *who, *id, *caller, *server, *name;
    Py_ssize_t id_length, caller_length, server_length, name_length;
    uint8_t proof[MC_KEY_SECRET_BYTES];
    struct mc_key key, own;
    if (!PyArg_ParseTuple(args, "ss#y#y#y#", &who, &id, &id_length, &caller, &caller_length, &server, &server_length,
                          &name, &name_length))
        return NULL;
    if (caller_length != sizeof(proof) || server_length != sizeof(proof) || name_length > NAMES_MAX ||
        strlen(who) > NAMES_MAX) {
        PyErr_SetString(PyExc_ValueError, "no such proof");
        return NULL;
    }
    if (!mc_keys_find(mc_span(id, (size_t)id_length), &key))
        Py_RETURN_NONE;
    bool is_allowed = (key.rights & MC_RIGHT_READ) != 0 && mc_keys_own(&own) && strcmp(own.tenant, key.tenant) == 0;
    explicit_bzero(own.secret, sizeof(own.secret));
    if (is_allowed)
        mc_key_prove_end(who, key.secret, (const uint8_t *)caller, (const uint8_t *)server,
                         mc_span(name, (size_t)name_length), proof);
    explicit_bzero(key.secret, sizeof(key.secret));
    if (!is_allowed)
        Py_RETURN_NONE;
    return PyBytes_FromStringAndSize((const char *)proof, sizeof(proof));
}

static PyMethodDef module_methods[] = {
    {"metrics", metrics, METH_NOARGS, "metrics()\n--\n\nPrometheus text of all engines of this process."},
    {"create_rpc_client", MC_PY_METHOD(rpc_later), METH_VARARGS | METH_KEYWORDS,
     "create_rpc_client(local_rank=0, world_size=1)\n--\n\nRaises NotImplementedError."},
    {"create_rpc_server", MC_PY_METHOD(rpc_later), METH_VARARGS | METH_KEYWORDS,
     "create_rpc_server(local_rank=0, world_size=1)\n--\n\nRaises NotImplementedError."},
    {"_exposed", exposed, METH_VARARGS, "_exposed(host, port): says what whoever reaches the connector's port may do."},
    {"_own_key", own_key, METH_NOARGS, "_own_key(): the id of the key that this process shows, or None."},
    {"_prove", prove, METH_VARARGS, "_prove(who, id, caller, server, name): a proof by that key, or None."},
    {"_log_to", mc_py_log_to, METH_O, NULL},
    {"_withdraw", withdraw, METH_NOARGS, "At exit: takes the names of engines back from metadata servers."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "mooncake.engine",
    .m_doc = "The Mooncake transfer engine. See TransferEngine. Codes are those of include/mooncake_engine.h.",
    .m_size = -1,
    .m_methods = module_methods,
};

static int module_fill(PyObject *module)
{
    PyObject *engine_type = PyType_FromSpec(&engine_spec), *done;
    mc_py_engine_types = PyImport_ImportModule("mooncake._engine_types");
    if (mc_py_module_add(module, "TransferEngine", engine_type) < 0 || mc_py_engine_types == NULL ||
        (done = PyObject_CallMethod(mc_py_engine_types, "_complete", "O", module)) == NULL)
        return -1;
    Py_DECREF(done);
    if (mc_py_module_add(module, "__version__", PyUnicode_FromString(mc_version())) < 0)
        return -1;
    return mc_py_at_exit(PyObject_GetAttrString(module, "_withdraw")); /* engines that live until then are not closed */
}

PyMODINIT_FUNC PyInit_engine(void);
PyMODINIT_FUNC PyInit_engine(void)
{
    PyObject *module = PyModule_Create(&module_definition);
    return mc_py_module_made(module, "mooncake.engine", module != NULL && module_fill(module) == 0);
}
