/* SPDX-License-Identifier: Apache-2.0
 *
 * The extension module mooncake._store: its table of contents. State is global (one interpreter per process): an
 * interpreter with a GIL of its own refuses the import with ImportError. */
#include "python/store_module.h"

#include "env/log.h"

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

static PyObject *log_error(PyObject *Py_UNUSED(module), PyObject *text)
{
    const char *line = PyUnicode_AsUTF8AndSize(text, NULL);
    if (line == NULL)
        return NULL;
    mc_log(ERROR, "%s", line);
    Py_RETURN_NONE;
}

static PyObject *log_warning(PyObject *Py_UNUSED(module), PyObject *text)
{
    const char *line = PyUnicode_AsUTF8AndSize(text, NULL);
    if (line == NULL)
        return NULL;
    mc_log(WARNING, "%s", line);
    Py_RETURN_NONE;
}

static PyMethodDef module_methods[] = {
    {"get_alloc_func_addr", mc_py_alloc_address, METH_NOARGS,
     "get_alloc_func_addr()\n--\n\nAddress of a C function void *f(size_t) that returns page-aligned host memory."},
    {"get_free_func_addr", mc_py_free_address, METH_NOARGS,
     "get_free_func_addr()\n--\n\nAddress of the C function void f(void *) that gives it back."},
    {"_number", number, METH_O, NULL},
    {"_snapshot", snapshot, METH_VARARGS, NULL},
    {"_log_error", log_error, METH_O, NULL},
    {"_log_warning", log_warning, METH_O, NULL},
    {"_allocate", mc_py_allocate, METH_O, NULL},
    {"_release", mc_py_release, METH_O, NULL},
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
    if (mc_py_module_add(module, "MooncakeDistributedStore", PyType_FromSpec(&mc_py_store_spec)) < 0)
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
