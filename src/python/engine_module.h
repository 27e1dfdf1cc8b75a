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

/* engine_transfer.c: name, arguments as inspect.signature shows them, result. */
/* clang-format off */
#define MC_PY_ENGINE_ONE   "target_hostname, buffer, peer_buffer_address, length, "
#define MC_PY_ENGINE_MANY  "target_hostname, buffers, peer_buffer_addresses, lengths, "
#define MC_PY_ENGINE_HINT  "transport_hint=''"
#define MC_PY_ENGINE_DONE  "0: all bytes have been moved; -1."
#define MC_PY_ENGINE_BATCH "The id of a batch for transfer_check_status; 0: it was not begun."
#define MC_PY_ENGINE_TRANSFERS(X) \
    X(transfer_sync, MC_PY_ENGINE_ONE "opcode, notify=None, " MC_PY_ENGINE_HINT, MC_PY_ENGINE_DONE) \
    X(transfer_sync_write, MC_PY_ENGINE_ONE MC_PY_ENGINE_HINT, MC_PY_ENGINE_DONE) \
    X(transfer_sync_read, MC_PY_ENGINE_ONE MC_PY_ENGINE_HINT, MC_PY_ENGINE_DONE) \
    X(batch_transfer_sync, MC_PY_ENGINE_MANY "opcode, notify=None, " MC_PY_ENGINE_HINT, MC_PY_ENGINE_DONE) \
    X(batch_transfer_sync_write, MC_PY_ENGINE_MANY MC_PY_ENGINE_HINT, MC_PY_ENGINE_DONE) \
    X(batch_transfer_sync_read, MC_PY_ENGINE_MANY MC_PY_ENGINE_HINT, MC_PY_ENGINE_DONE) \
    X(batch_transfer_async, MC_PY_ENGINE_MANY "opcode, " MC_PY_ENGINE_HINT, MC_PY_ENGINE_BATCH) \
    X(batch_transfer_async_write, MC_PY_ENGINE_MANY MC_PY_ENGINE_HINT, MC_PY_ENGINE_BATCH) \
    X(batch_transfer_async_read, MC_PY_ENGINE_MANY MC_PY_ENGINE_HINT, MC_PY_ENGINE_BATCH) \
    X(transfer_submit_write, MC_PY_ENGINE_ONE MC_PY_ENGINE_HINT, MC_PY_ENGINE_BATCH) \
    X(transfer_check_status, "batch_id", "0: under way; 1: all of it is done; -1: failed; -2: timed out.") \
    X(get_batch_transfer_status, "batch_ids", "Waits for all of them: 0, or -1 when one failed.")
/* clang-format on */
#define MC_PY_ENGINE_DECLARE(name, arguments, answer)                                                                  \
    PyObject *mc_py_engine_##name(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords);
MC_PY_ENGINE_TRANSFERS(MC_PY_ENGINE_DECLARE)
#undef MC_PY_ENGINE_DECLARE

#endif
