/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of this host, and the store's method _open. */
#ifndef MC_PYTHON_STORE_SETUP_H
#define MC_PYTHON_STORE_SETUP_H

#include "python/store_arguments.h"

PyObject *mc_py_allocate(PyObject *module, PyObject *size);
PyObject *mc_py_release(PyObject *module, PyObject *address);
PyObject *mc_py_prefer_node(PyObject *module, PyObject *node);
PyObject *mc_py_alloc_address(PyObject *module, PyObject *unused);
PyObject *mc_py_free_address(PyObject *module, PyObject *unused);
PyObject *mc_py_store_open(PyObject *object, PyObject *args);

#endif
