/* SPDX-License-Identifier: Apache-2.0
 *
 * The extension module mooncake.engine: its table of contents. */
#include "python/engine_module.h"

#include <stdlib.h>

PyObject *mc_py_engine_types;

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

static PyMethodDef module_methods[] = {
    {"metrics", metrics, METH_NOARGS, "metrics()\n--\n\nPrometheus text of all engines of this process."},
    {"create_rpc_client", MC_PY_METHOD(rpc_later), METH_VARARGS | METH_KEYWORDS,
     "create_rpc_client(local_rank=0, world_size=1)\n--\n\nRaises NotImplementedError."},
    {"create_rpc_server", MC_PY_METHOD(rpc_later), METH_VARARGS | METH_KEYWORDS,
     "create_rpc_server(local_rank=0, world_size=1)\n--\n\nRaises NotImplementedError."},
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
    PyObject *engine_type = PyType_FromSpec(&mc_py_engine_spec), *done;
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
