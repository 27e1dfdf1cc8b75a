/* SPDX-License-Identifier: Apache-2.0
 *
 * What a store takes and gives that is more than numbers and bytes. */
#ifndef MC_PYTHON_STORE_TYPES_H
#define MC_PYTHON_STORE_TYPES_H

#include "python/store_arguments.h"

#define STORE_PREFERRED_MAX 64 /* preferred segments of one ReplicateConfig */

/* A ReplicateConfig as the library wants it. `held`, its values, keeps the strings alive. */
struct mc_py_replicate {
    struct mc_replicate_config config;
    const char *names[STORE_PREFERRED_MAX];
    uint64_t *groups; /* config.groups: for each key; NULL = none */
    PyObject *held;
};
enum mc_py_put_kind { MC_PY_PUT_ONE, MC_PY_PUT_BATCH, MC_PY_PUT_MULTI };
/* Reads a ReplicateConfig (NULL, None: the defaults) for a put of key_count keys. 0; an enum mc_error that every key
 * gets; or 1 with an exception set. Release in every case. */
int mc_py_replicate_acquire(PyObject *object, Py_ssize_t key_count, enum mc_py_put_kind kind,
                            struct mc_py_replicate *replicate);
void mc_py_replicate_release(struct mc_py_replicate *replicate);

/* BufferHandle that takes over `data` (from malloc; freed on failure too). */
PyObject *mc_py_buffer_handle(void *data, size_t length);
/* list of ReplicaDescriptor. */
PyObject *mc_py_descriptors(const struct mc_replica_description *descriptions, int count);
/* New reference to something of mooncake/_types.py. */
PyObject *mc_py_type(const char *name);
/* Adds BufferHandle to the module. */
int mc_py_types_add(PyObject *module);

#endif
