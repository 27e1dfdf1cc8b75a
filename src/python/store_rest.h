/* SPDX-License-Identifier: Apache-2.0
 *
 * The HTTP ports of mc_store_rest_server for a store of this process: the REST API (mooncake.mooncake_store_service),
 * and health and metrics (setup's enable_client_http_server). */
#ifndef MC_PYTHON_STORE_REST_H
#define MC_PYTHON_STORE_REST_H

#include "python/store_object.h"

struct mc_py_rest;

/* _serve(port); _serve_health(port): /health and /metrics alone. The port, or OSError. It ends with the store. */
PyObject *mc_py_store_serve(PyObject *object, PyObject *port);
PyObject *mc_py_store_serve_health(PyObject *object, PyObject *port);
/* Without the GIL: nobody new, those under way are answered. False when some are still under way: then the store that
 * they use must stay. NULL is allowed. */
bool mc_py_rest_end(struct mc_py_rest *rest);
/* In a forked child: its copies of listeners are closed; nothing else is touched. */
void mc_py_rest_forked(void);

#endif
