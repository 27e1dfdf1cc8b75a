/* SPDX-License-Identifier: Apache-2.0
 *
 * The REST API of a store in a Python process, and what a forked child closes of it. */
#include "python/store_rest.h"

#include "base/error.h"
#include "env/exposed.h"
#include "env/log.h"
#include "env/secure.h"
#include "env/socket.h"
#include "store/service/rest.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define REASON_MAX 512

/* Listeners and eventfds of this process, for its forked children. A slot is emptied before its descriptor is closed,
 * so that a child never closes a number that is somebody else's by then. */
#define KEPT_MAX 128
static _Atomic int kept[KEPT_MAX]; /* + 1; 0: empty. Those beyond stay open in children */

static void kept_move(int from, int to)
{
    for (int i = 0; i < KEPT_MAX; i++) {
        int seen = from;
        if (atomic_compare_exchange_strong(&kept[i], &seen, to))
            return;
    }
}

static int keep(int fd)
{
    if (fd >= 0)
        kept_move(0, fd + 1);
    return fd;
}

static void drop(int *fd)
{
    if (*fd < 0)
        return;
    kept_move(*fd + 1, 0);
    close(*fd);
    *fd = -1;
}

void mc_py_rest_forked(void)
{
    for (int i = 0; i < KEPT_MAX; i++) {
        int fd = atomic_exchange(&kept[i], 0) - 1;
        if (fd >= 0)
            close(fd);
    }
}

struct mc_py_rest {
    struct mc_rest rest;
    struct mc_web *web;
    int listener, fds[2]; /* its own, and its web's, which that closes */
};

static void rest_free(struct mc_py_rest *rest)
{
    drop(&rest->listener);
    for (size_t i = 0; i < 2 && rest->web != NULL; i++)
        kept_move(rest->fds[i] + 1, 0);
    mc_web_destroy(rest->web);
    free(rest);
}

/* NULL with the reason. */
static struct mc_py_rest *rest_begin(struct mc_store *store, enum mc_py_server which, uint16_t *port,
                                     char reason[REASON_MAX])
{
    static const struct kind {
        mc_web_handler *handler;
        const char *flag, *name;
        enum mc_exposed exposed;
    } kinds[MC_PY_SERVERS] = {
        [MC_PY_REST] = {mc_rest_handle, "port", "REST API", MC_EXPOSED_REST},
        [MC_PY_HEALTH] = {mc_rest_handle_health, "client_http_port", "Client HTTP server", MC_EXPOSED_HEALTH}};
    const struct kind *kind = &kinds[which];
    struct mc_py_rest *rest = calloc(1, sizeof(*rest));
    snprintf(reason, REASON_MAX, "no memory, descriptors or threads for it");
    if (rest == NULL)
        return NULL;
    rest->rest.store = store;
    rest->listener = -1;
    if (mc_secure_is_served() && mc_secure_check(true, reason, REASON_MAX) < 0) /* here files may be waited for */
        goto fail;
    rest->web = mc_web_create(MC_REST_HEAD_MAX);
    if (rest->web == NULL)
        goto fail;
    mc_web_descriptors(rest->web, rest->fds);
    (void)keep(rest->fds[0]);
    (void)keep(rest->fds[1]);
    rest->listener = keep(mc_web_bind("0.0.0.0", port, kind->flag, reason, REASON_MAX));
    if (rest->listener < 0)
        goto fail;
    if (mc_web_serve(rest->web, rest->listener, kind->handler, mc_rest_is_quick, &rest->rest) < 0) {
        snprintf(reason, REASON_MAX, "cannot listen on port %u", (unsigned)*port);
        goto fail;
    }
    mc_log(INFO, "%s started on port %u", kind->name, (unsigned)*port);
    mc_exposed_say(kind->exposed, rest->listener);
    return rest;
fail:
    rest_free(rest);
    return NULL;
}

bool mc_py_rest_end(struct mc_py_rest *rest)
{
    if (rest == NULL)
        return true;
    bool is_answered = mc_web_stop(rest->web, MC_REST_STOP_MS);
    drop(&rest->listener);
    if (is_answered)
        rest_free(rest);
    else
        mc_log(WARNING, "some requests over HTTP are still under way: not waiting for them");
    return is_answered;
}

/* ---- calls ---- */

/* True when the store has it now. */
static bool rest_give(struct mc_py_store *self, enum mc_py_server which, struct mc_py_rest *rest)
{
    pthread_mutex_lock(&self->mutex);
    bool is_first = self->servers[which] == NULL;
    if (is_first)
        self->servers[which] = rest;
    pthread_mutex_unlock(&self->mutex);
    return is_first;
}

static PyObject *serve(PyObject *object, enum mc_py_server which, PyObject *number)
{
    struct mc_py_store *self = (struct mc_py_store *)object;
    struct mc_store *store;
    struct mc_py_rest *rest = NULL;
    char reason[REASON_MAX];
    uint64_t wanted;
    if (mc_py_u64(number, &wanted) < 0)
        return NULL;
    if (wanted > UINT16_MAX)
        return PyErr_Format(PyExc_ValueError, "port %llu is not from 0 to 65535", (unsigned long long)wanted);
    uint16_t port = (uint16_t)wanted;
    int rc = mc_py_store_enter(self, &store);
    if (rc < 0)
        return PyErr_Format(PyExc_OSError, "no HTTP port: %s", mc_error_text(rc));
    bool is_given = false;
    Py_BEGIN_ALLOW_THREADS rest = rest_begin(store, which, &port, reason);
    if (rest != NULL) {
        is_given = rest_give(self, which, rest);
        snprintf(reason, sizeof(reason), "there is one already");
    }
    if (!is_given)
        (void)mc_py_rest_end(rest); /* there is one, and nobody has asked this one */
    mc_py_store_leave(self);
    Py_END_ALLOW_THREADS return is_given ? PyLong_FromLong(port)
                                         : PyErr_Format(PyExc_OSError, "no HTTP port: %s", reason);
}

PyObject *mc_py_store_serve(PyObject *object, PyObject *port)
{
    return serve(object, MC_PY_REST, port);
}

PyObject *mc_py_store_serve_health(PyObject *object, PyObject *port)
{
    return serve(object, MC_PY_HEALTH, port);
}
