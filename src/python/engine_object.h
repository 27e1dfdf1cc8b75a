/* SPDX-License-Identifier: Apache-2.0
 *
 * A transfer engine as Python holds it, and how a call takes its arguments. The same rules as in store_arguments.h:
 * types only, no logic; lists are taken as snapshots first; the library is called with the GIL released. */
#ifndef MC_PYTHON_ENGINE_OBJECT_H
#define MC_PYTHON_ENGINE_OBJECT_H

#include "python/store_arguments.h"

#include "mooncake_engine.h"

struct mc_py_engine {
    PyObject_HEAD struct mc_transfer_engine *_Atomic engine; /* NULL: not initialised; set once */
    _Atomic bool is_opening;
    PyObject *weak_references;
};

extern PyObject *mc_py_engine_types; /* the module mooncake._engine_types */

/* Numbers and texts of arguments: TypeError names the argument. */
int mc_py_number(PyObject *object, const char *name, uint64_t *value);
const char *mc_py_text(PyObject *object, const char *name);

/* A method of the engine. */
#define MC_PY_ENGINE_CALL(name, ...) MC_PY_CALL_OF(mc_py_engine, name, __VA_ARGS__)

void mc_py_engine_dealloc(PyObject *object);
/* Those that take their argument by its place only. */
PyObject *mc_py_engine_allocate_managed_buffer(PyObject *object, PyObject *length_object);
PyObject *mc_py_engine_get_first_buffer_address(PyObject *object, PyObject *segment);

#endif
