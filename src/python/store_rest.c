/* SPDX-License-Identifier: Apache-2.0
 *
 * A thread that takes connections for the REST API, which has a thread for each. */
#include "python/store_rest.h"

#include "base/error.h"
#include "env/log.h"
#include "env/socket.h"
#include "env/thread.h"
#include "store/service/rest.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define REASON_MAX 512
#define BACKLOG 512

/* Listeners of this process, for its forked children. A slot is emptied before its descriptor is closed, so that a
 * child never closes a number that is somebody else's by then. */
#define LISTENERS_MAX 64
static _Atomic int listeners[LISTENERS_MAX]; /* + 1; 0: empty. Those beyond stay open in children */

static void listener_move(int from, int to)
{
    for (int i = 0; i < LISTENERS_MAX; i++) {
        int seen = from;
        if (atomic_compare_exchange_strong(&listeners[i], &seen, to))
            return;
    }
}

void mc_py_rest_forked(void)
{
    for (int i = 0; i < LISTENERS_MAX; i++) {
        int fd = atomic_exchange(&listeners[i], 0) - 1;
        if (fd >= 0)
            close(fd);
    }
}

struct mc_py_rest {
    struct mc_rest rest;
    struct mc_web *web;
    pthread_t thread;
    int listener, end_fd;
};

static void *rest_main(void *argument)
{
    struct mc_py_rest *rest = argument;
    struct pollfd waited[2] = {{.fd = rest->listener, .events = POLLIN}, {.fd = rest->end_fd, .events = POLLIN}};
    while (waited[1].revents == 0) {
        if (poll(waited, 2, -1) > 0 && waited[0].revents != 0)
            mc_web_accept(rest->web, rest->listener, mc_rest_handle, &rest->rest);
    }
    return NULL;
}

static void rest_free(struct mc_py_rest *rest)
{
    mc_fd_close(rest->listener);
    mc_fd_close(rest->end_fd);
    mc_web_destroy(rest->web);
    free(rest);
}

/* NULL with the reason. */
static struct mc_py_rest *rest_begin(struct mc_store *store, uint16_t *port, char reason[REASON_MAX])
{
    struct mc_py_rest *rest = calloc(1, sizeof(*rest));
    snprintf(reason, REASON_MAX, "no memory, descriptors or threads for the REST API");
    if (rest == NULL)
        return NULL;
    rest->rest.store = store;
    rest->listener = -1;
    rest->end_fd = eventfd(0, EFD_CLOEXEC);
    rest->web = mc_web_create();
    if (rest->end_fd < 0 || rest->web == NULL)
        goto fail;
    rest->listener = mc_web_bind("0.0.0.0", port, "port", reason, REASON_MAX);
    if (rest->listener < 0)
        goto fail;
    if (listen(rest->listener, BACKLOG) != 0) {
        snprintf(reason, REASON_MAX, "cannot listen on port %u", (unsigned)*port);
        goto fail;
    }
    if (mc_thread_start(&rest->thread, "mc-rest", rest_main, rest) != 0)
        goto fail;
    listener_move(0, rest->listener + 1);
    mc_log(INFO, "REST API started on port %u", (unsigned)*port);
    return rest;
fail:
    rest_free(rest);
    return NULL;
}

bool mc_py_rest_end(struct mc_py_rest *rest)
{
    uint64_t one = 1;
    if (rest == NULL)
        return true;
    if (rest->listener >= 0) { /* else this is another try */
        mc_assert(write(rest->end_fd, &one, sizeof(one)) == (ssize_t)sizeof(one));
        pthread_join(rest->thread, NULL);
        listener_move(rest->listener + 1, 0);
        close(rest->listener);
        rest->listener = -1;
    }
    if (!mc_web_stop(rest->web)) {
        mc_log(WARNING, "some requests of the REST API are still under way: not waiting for them");
        return false;
    }
    rest_free(rest);
    return true;
}

/* ---- calls ---- */

/* True when the store has it now. */
static bool rest_give(struct mc_py_store *self, struct mc_py_rest *rest)
{
    pthread_mutex_lock(&self->mutex);
    bool is_first = self->rest == NULL;
    if (is_first)
        self->rest = rest;
    pthread_mutex_unlock(&self->mutex);
    return is_first;
}

static struct mc_py_rest *rest_take(struct mc_py_store *self)
{
    pthread_mutex_lock(&self->mutex);
    struct mc_py_rest *rest = self->rest;
    self->rest = NULL;
    pthread_mutex_unlock(&self->mutex);
    return rest;
}

PyObject *mc_py_store_serve(PyObject *object, PyObject *number)
{
    struct mc_py_store *self = (struct mc_py_store *)object;
    struct mc_store *store;
    struct mc_py_rest *rest = NULL;
    char reason[REASON_MAX] = "there is one already";
    uint64_t wanted;
    if (mc_py_u64(number, &wanted) < 0)
        return NULL;
    if (wanted > UINT16_MAX)
        return PyErr_Format(PyExc_ValueError, "port %llu is not from 0 to 65535", (unsigned long long)wanted);
    uint16_t port = (uint16_t)wanted;
    int rc = mc_py_store_enter(self, &store);
    if (rc < 0)
        return PyErr_Format(PyExc_OSError, "no REST API: %s", mc_error_text(rc));
    bool is_given = false;
    Py_BEGIN_ALLOW_THREADS if (self->rest == NULL) rest = rest_begin(store, &port, reason);
    is_given = rest != NULL && rest_give(self, rest);
    if (!is_given)
        (void)mc_py_rest_end(rest); /* of another thread's that was faster, nobody has asked */
    mc_py_store_leave(self);
    Py_END_ALLOW_THREADS return is_given ? PyLong_FromLong(port)
                                         : PyErr_Format(PyExc_OSError, "no REST API: %s", reason);
}

PyObject *mc_py_store_serve_end(PyObject *object, PyObject *Py_UNUSED(unused))
{
    struct mc_py_store *self = (struct mc_py_store *)object;
    struct mc_store *store;
    if (mc_py_store_enter(self, &store) < 0)
        Py_RETURN_TRUE;
    bool is_ended;
    Py_BEGIN_ALLOW_THREADS struct mc_py_rest *rest = rest_take(self);
    is_ended = mc_py_rest_end(rest);
    if (!is_ended)
        (void)rest_give(self, rest); /* close tries again */
    mc_py_store_leave(self);
    Py_END_ALLOW_THREADS return PyBool_FromLong(is_ended);
}
