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

extern PyObject *mc_py_engine_types; /* the module mooncake._engine_types */

/* Numbers and texts of arguments: TypeError names the argument. */
int mc_py_number(PyObject *object, const char *name, uint64_t *value);
const char *mc_py_text(PyObject *object, const char *name);

/* engine_object.c, engine_transfer.c: methods */
/* clang-format off */
#define MC_PY_ENGINE_METHODS(X) \
    X(initialize) X(initialize_ext) X(register_memory) X(unregister_memory) X(batch_register_memory) \
    X(batch_unregister_memory) X(free_managed_buffer) X(write_bytes_to_buffer) X(read_bytes_from_buffer) \
    X(send_probe) X(get_local_topology) X(show_links) X(warmup_efa_segment) \
    X(transfer_sync) X(transfer_sync_write) X(transfer_sync_read) \
    X(batch_transfer_sync) X(batch_transfer_sync_write) X(batch_transfer_sync_read) \
    X(batch_transfer_async) X(batch_transfer_async_write) X(batch_transfer_async_read) \
    X(transfer_submit_write) X(transfer_check_status) X(get_batch_transfer_status)
/* clang-format on */
#define MC_PY_ENGINE_DECLARE(name)                                                                                     \
    PyObject *mc_py_engine_##name(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords);      \
    extern const char mc_py_engine_doc_##name[];
MC_PY_ENGINE_METHODS(MC_PY_ENGINE_DECLARE)
#undef MC_PY_ENGINE_DECLARE
#define MC_PY_ENGINE_METHOD(name, ...) MC_PY_METHOD_OF(mc_py_engine, name, __VA_ARGS__)

#endif
