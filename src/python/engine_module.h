/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the extension module `mooncake.engine` share. The same rules as in store_module.h: types only, no
 * logic; lists are taken as snapshots first; the library is called with the GIL released. */
#ifndef MC_PYTHON_ENGINE_MODULE_H
#define MC_PYTHON_ENGINE_MODULE_H

#include "python/store_module.h"

#include "mooncake_engine.h"

struct mc_py_engine {
    PyObject_HEAD struct mc_transfer_engine *engine; /* NULL: not initialised */
    bool is_opening;
    PyObject *weak_references;
};
extern PyType_Spec mc_py_engine_spec;

struct mc_py_note {
    PyObject_HEAD PyObject *name, *message; /* str */
};
extern PyType_Spec mc_py_note_spec, mc_py_inner_spec;
extern PyObject *mc_py_note_type, *mc_py_inner_type, *mc_py_opcode_enum; /* of the module */

PyObject *mc_py_note_new(const char *name, const char *message);
/* None or NULL: *note is NULL. Else *note points to space, which borrows from the object. -1 with TypeError. */
int mc_py_note_read(PyObject *object, struct mc_transfer_note *space, const struct mc_transfer_note **note);
PyObject *mc_py_inner_new(PyObject *engine);
/* enum.IntEnum TransferOpcode. */
PyObject *mc_py_opcode_new(void);

/* Numbers and texts of arguments: TypeError names the argument. */
int mc_py_number(PyObject *object, const char *name, uint64_t *value);
const char *mc_py_text(PyObject *object, const char *name);

/* engine_transfer.c */
/* clang-format off */
#define MC_PY_ENGINE_TRANSFERS(X) \
    X(transfer_sync) X(transfer_sync_write) X(transfer_sync_read) X(batch_transfer_sync) X(batch_transfer_sync_write) \
    X(batch_transfer_sync_read) X(batch_transfer_async) X(batch_transfer_async_write) X(batch_transfer_async_read) \
    X(transfer_submit_write) X(transfer_check_status) X(get_batch_transfer_status)
/* clang-format on */
#define MC_PY_ENGINE_DECLARE(name)                                                                                     \
    PyObject *mc_py_engine_##name(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords);
MC_PY_ENGINE_TRANSFERS(MC_PY_ENGINE_DECLARE)
#undef MC_PY_ENGINE_DECLARE

#endif
