/* SPDX-License-Identifier: Apache-2.0
 *
 * A store as Python holds it, and how a call takes it. */
#ifndef MC_PYTHON_STORE_OBJECT_H
#define MC_PYTHON_STORE_OBJECT_H

#include "python/store_arguments.h"

#include <pthread.h>

/* Which servers of HTTP a store may have: all of its API, or its health and metrics alone. */
enum mc_py_server { MC_PY_REST, MC_PY_HEALTH, MC_PY_SERVERS };

struct mc_py_store {
    PyObject_HEAD pthread_mutex_t
        mutex; /* guards what follows; held for a few instructions, never while waiting for the GIL */
    pthread_cond_t idle;
    struct mc_store *store;                    /* NULL: not set up, or closed */
    unsigned running;                          /* calls that use `store` */
    unsigned fork_generation;                  /* of the process that set it up */
    bool opening;                              /* a setup is under way */
    struct mc_py_rest *servers[MC_PY_SERVERS]; /* NULL: it has none of that kind */
    void *pool;                                /* memory of alloc_from_mem_pool; stays as long as the object */
    uint64_t pool_size, pool_used;
    PyObject *weak_references;
};

/* The object's life: tp_new and tp_dealloc. */
PyObject *mc_py_store_new(PyTypeObject *type, PyObject *args, PyObject *keywords);
void mc_py_store_dealloc(PyObject *object);

/* Takes the library's store for one call. 0, MC_ERR_INVALID_PARAMS (not set up), MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS
 * (forked). */
int mc_py_store_enter(struct mc_py_store *self, struct mc_store **store);
/* Gives it back; before the GIL is taken again, because a thread may end there while the interpreter goes down. */
void mc_py_store_leave(struct mc_py_store *self);
/* rc = call, which may use `store`, without the GIL; or why there is no store. */
#define MC_PY_IN_STORE(self, store, rc, call)                                                                          \
    do {                                                                                                               \
        struct mc_store *store;                                                                                        \
        rc = mc_py_store_enter(self, &store);                                                                          \
        if (rc == 0) {                                                                                                 \
            Py_BEGIN_ALLOW_THREADS rc = call;                                                                          \
            mc_py_store_leave(self);                                                                                   \
            Py_END_ALLOW_THREADS                                                                                       \
        }                                                                                                              \
    } while (0)
/* For setup: opens the library's store, without the GIL, for an object that has none. 0, or an enum mc_error. */
int mc_py_store_join(struct mc_py_store *self, const struct mc_store_config *config);
int mc_py_store_start(PyObject *module); /* fork and exit handlers */
bool mc_py_exiting(void);

/* A method of the store. */
#define MC_PY_STORE_CALL(name, ...) MC_PY_CALL_OF(mc_py_store, name, __VA_ARGS__)

#endif
