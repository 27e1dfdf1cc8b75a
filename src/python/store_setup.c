/* SPDX-License-Identifier: Apache-2.0
 *
 * What sets a store up (its arguments are read in mooncake/_setup.py), and memory for others. */
#include "python/store_setup.h"

#include "env/clock.h"
#include "env/log.h"
#include "env/socket.h"
#include "python/store_object.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DAEMON_ANSWER_MS 5000u
#define DAEMON_LINE_MAX 512
#define DAEMON_WORD "mooncake_client "
#define PAGE 4096u
#define NODES_MAX 1024u
#define BITS (8 * sizeof(unsigned long))
#define POLICY_PREFERRED 1 /* of linux/mempolicy.h */

/* ---- memory for others ---- */

/* Its length stands in a page before it, so that it can be given back by its address alone. */
static void *host_map(size_t size, int sharing)
{
    if (size == 0 || size > SIZE_MAX - PAGE)
        return NULL;
    void *base = mmap(NULL, size + PAGE, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    size_t length = size + PAGE;
    memcpy(base, &length, sizeof(length));
    return (uint8_t *)base + PAGE;
}

static void *host_alloc(size_t size)
{
    return host_map(size, MAP_PRIVATE);
}

static void host_free(void *memory)
{
    size_t length;
    if (memory == NULL)
        return;
    memcpy(&length, (uint8_t *)memory - PAGE, sizeof(length));
    (void)munmap((uint8_t *)memory - PAGE, length); /* a mapping as it was made */
}

/* Children that are forked see what is written, as the original's do. */
PyObject *mc_py_allocate(PyObject *Py_UNUSED(module), PyObject *size)
{
    uint64_t bytes;
    return mc_py_u64(size, &bytes) < 0 ? NULL : PyLong_FromVoidPtr(host_map(bytes, MAP_SHARED));
}

PyObject *mc_py_release(PyObject *Py_UNUSED(module), PyObject *address)
{
    uint64_t memory;
    if (mc_py_u64(address, &memory) < 0)
        return NULL;
    host_free((void *)(uintptr_t)memory);
    Py_RETURN_NONE;
}

/* New memory of the calling thread comes from the node, while it has some. False: no such node, or no leave. */
PyObject *mc_py_prefer_node(PyObject *Py_UNUSED(module), PyObject *node)
{
    unsigned long nodes[NODES_MAX / BITS] = {0};
    uint64_t number;
    if (mc_py_u64(node, &number) < 0)
        return NULL;
    if (number >= NODES_MAX)
        Py_RETURN_FALSE;
    nodes[number / BITS] = 1ul << number % BITS;
    /* The kernel takes one bit less than it is told. */
    return PyBool_FromLong(syscall(SYS_set_mempolicy, POLICY_PREFERRED, nodes, NODES_MAX + 1ul) == 0);
}

PyObject *mc_py_alloc_address(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return PyLong_FromUnsignedLongLong((uint64_t)(uintptr_t)host_alloc);
}

PyObject *mc_py_free_address(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return PyLong_FromUnsignedLongLong((uint64_t)(uintptr_t)host_free);
}

static PyObject *alloc_from_mem_pool(struct mc_py_store *self, PyObject **values)
{
    uint64_t size, address = 0;
    if (mc_py_u64(values[0], &size) < 0)
        return NULL;
    pthread_mutex_lock(&self->mutex);
    if (self->pool != NULL && size > 0 && size <= self->pool_size - self->pool_used) {
        address = (uint64_t)(uintptr_t)self->pool + self->pool_used;
        uint64_t used = self->pool_used + size, rest = used % 64;
        self->pool_used = rest == 0 ? used : self->pool_size - used < 64 - rest ? self->pool_size : used + 64 - rest;
    }
    pthread_mutex_unlock(&self->mutex);
    return PyLong_FromUnsignedLongLong(address);
}

MC_PY_STORE_CALL(alloc_from_mem_pool, 1, "size", alloc_from_mem_pool(self, values),
                 "Address of size bytes of the pool that setup_dummy made; they stay as long as the store object. 0: "
                 "no\nroom, or no pool.")

/* ---- setting up ---- */

PyObject *mc_py_store_open(PyObject *object, PyObject *args)
{
    struct mc_store_config config = {.local_hostname = NULL};
    unsigned long long segment_size, buffer_size;
    if (!PyArg_ParseTuple(args, "zzzzzzzzzKK", &config.local_hostname, &config.metadata_server, &config.protocol,
                          &config.rdma_devices, &config.master_server_addr, &config.data_dir, &config.tenant,
                          &config.stamp, &config.disk_paths, &segment_size, &buffer_size))
        return NULL;
    config.global_segment_size = segment_size;
    config.local_buffer_size = buffer_size;
    return PyLong_FromLong(mc_py_store_join((struct mc_py_store *)object, &config));
}

/* Which master a mooncake_client uses: it says so in one line to whoever connects to its --port. */
static int ask_daemon(const char *address, char master[DAEMON_LINE_MAX])
{
    char host[256], line[DAEMON_LINE_MAX];
    size_t used = 0, word = strlen(DAEMON_WORD);
    uint16_t port = 0;
    uint64_t deadline_ns = mc_clock_ns() + DAEMON_ANSWER_MS * 1000000ull;
    if (mc_address_split(address, host, sizeof(host), &port) < 0 || port == 0)
        return MC_ERR_INVALID_PARAMS;
    int fd = mc_tcp_connect(address, deadline_ns);
    if (fd < 0)
        return fd;
    while (used < sizeof(line) - 1 && memchr(line, '\n', used) == NULL) {
        int64_t got = mc_socket_receive(fd, line + used, sizeof(line) - 1 - used, deadline_ns, NULL);
        if (got < 0)
            break;
        used += (size_t)got;
    }
    close(fd);
    line[used] = 0;
    char *end = strchr(line, '\n');
    if (end == NULL || strncmp(line, DAEMON_WORD, word) != 0)
        return MC_ERR_PROTOCOL;
    *end = 0;
    snprintf(master, DAEMON_LINE_MAX, "%s", line + word);
    return 0;
}

/* Once for each object: the addresses given away stay valid over close and another setup. */
static int make_pool(struct mc_py_store *self, uint64_t size)
{
    int rc = size > PY_SSIZE_T_MAX ? MC_ERR_INVALID_PARAMS : 0;
    pthread_mutex_lock(&self->mutex);
    if (self->pool != NULL || size == 0) {
        rc = 0;
    } else if (rc == 0) {
        void *pool = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        rc = pool == MAP_FAILED ? MC_ERR_NO_MEMORY : 0;
        self->pool = rc == 0 ? pool : NULL;
        self->pool_size = size;
    }
    pthread_mutex_unlock(&self->mutex);
    return rc;
}

static PyObject *setup_dummy(struct mc_py_store *self, PyObject **values)
{
    char master[DAEMON_LINE_MAX];
    uint64_t pool_size, buffer_size;
    if (mc_py_u64(values[0], &pool_size) < 0 || mc_py_u64(values[1], &buffer_size) < 0)
        return NULL;
    const char *address = PyUnicode_Check(values[2]) ? PyUnicode_AsUTF8AndSize(values[2], NULL) : NULL;
    if (address == NULL) {
        if (PyErr_Occurred() == NULL)
            PyErr_SetString(PyExc_TypeError, "setup_dummy() argument 'server_address' must be str");
        return NULL;
    }
    int rc = make_pool(self, pool_size);
    if (rc == 0) {
        Py_BEGIN_ALLOW_THREADS rc = ask_daemon(address, master);
        Py_END_ALLOW_THREADS
            /* A client without a segment. */
            const struct mc_store_config config = {
                .local_hostname = "127.0.0.1", .master_server_addr = master, .local_buffer_size = buffer_size};
        if (rc == 0)
            rc = mc_py_store_join(self, &config);
        else
            mc_log(ERROR, "setup_dummy: no mooncake_client answers at \"%s\": %s", address, mc_error_name(rc));
    }
    return PyLong_FromLong(
        rc == MC_ERR_RPC_FAIL || rc == MC_ERR_RPC_TIMEOUT || rc == MC_ERR_PROTOCOL ? MC_ERR_INTERNAL_ERROR : rc);
}

MC_PY_STORE_CALL(setup_dummy, 3, "mem_pool_size, local_buffer_size, server_address", setup_dummy(self, values),
                 "Joins as a client without memory of its own, with the master that the mooncake_client at "
                 "server_address (\"host:port\") uses.\n"
                 "Segments of this machine are reached by shared memory, without the daemon in between. mem_pool_size "
                 "bytes are for\n"
                 "alloc_from_mem_pool.\n\n"
                 "Returns 0; -1: nobody answers at server_address; otherwise as setup.")
