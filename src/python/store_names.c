/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of the original that are rarely used or belong to what this build does not have: each works, or says in one
 * sentence why it does not. And the other ways to set a store up. */
#include "python/store_module.h"

#include "env/clock.h"
#include "env/log.h"
#include "env/socket.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define DAEMON_ANSWER_MS 5000u
#define DAEMON_LINE_MAX 512
#define DAEMON_WORD "mooncake_client "
#define PAGE 4096u

/* ---- what there is not ---- */

static PyObject *not_there(const char *sentence)
{
    PyErr_SetString(PyExc_NotImplementedError, sentence);
    return NULL;
}

#define NOT_THERE_METHOD(name, signature, sentence)                                                                    \
    const char mc_py_doc_##name[] = signature "\n--\n\nRaises NotImplementedError: " sentence;                         \
    PyObject *mc_py_store_##name(PyObject *Py_UNUSED(object), PyObject *const *Py_UNUSED(args),                        \
                                 Py_ssize_t Py_UNUSED(count), PyObject *Py_UNUSED(keywords))                           \
    {                                                                                                                  \
        return not_there(#name ": " sentence);                                                                         \
    }
NOT_THERE_METHOD(_get_pyclient_capsule, "_get_pyclient_capsule()", "there is no C++ object behind a store.")
NOT_THERE_METHOD(get_tensor_into_cuda, "get_tensor_into_cuda(key, tensor)", "this build moves host memory only.")
NOT_THERE_METHOD(batch_get_tensor_into_cuda, "batch_get_tensor_into_cuda(keys, tensors_list)",
                 "this build moves host memory only.")

const char mc_py_doc_get_offload_rpc_read_count[] =
    "get_offload_rpc_read_count()\n--\n\nReturns 0: this build has no disk tier, so nothing was read from one.";
MC_PY_SIGNATURE(get_offload_rpc_read_count, 0, NULL);
PyObject *mc_py_store_get_offload_rpc_read_count(PyObject *Py_UNUSED(object), PyObject *const *args, Py_ssize_t count,
                                                 PyObject *keywords)
{
    PyObject *values[1];
    if (mc_py_arguments(&get_offload_rpc_read_count_signature, args, count, keywords, values) < 0)
        return NULL;
    return PyLong_FromLong(0);
}

/* ---- memory for others ---- */

/* Its length stands in a page before it, so that it can be given back by its address alone. */
static void *host_alloc(size_t size)
{
    if (size == 0 || size > SIZE_MAX - PAGE)
        return NULL;
    void *base = mmap(NULL, size + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    size_t length = size + PAGE;
    memcpy(base, &length, sizeof(length));
    return (uint8_t *)base + PAGE;
}

static void host_free(void *memory)
{
    size_t length;
    if (memory == NULL)
        return;
    memcpy(&length, (uint8_t *)memory - PAGE, sizeof(length));
    (void)munmap((uint8_t *)memory - PAGE, length); /* a mapping as it was made */
}

PyObject *mc_py_alloc_address(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return PyLong_FromUnsignedLongLong((uint64_t)(uintptr_t)host_alloc);
}

PyObject *mc_py_free_address(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return PyLong_FromUnsignedLongLong((uint64_t)(uintptr_t)host_free);
}

const char mc_py_doc_alloc_from_mem_pool[] = "alloc_from_mem_pool(size)\n--\n\nAddress of size bytes of the pool that "
                                             "setup_dummy made; they stay as long as the "
                                             "store object. 0: no\nroom, or no pool.";
MC_PY_SIGNATURE(alloc_from_mem_pool, 1, "size");
PyObject *mc_py_store_alloc_from_mem_pool(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    struct mc_py_store *self = (struct mc_py_store *)object;
    PyObject *values[1];
    uint64_t size, address = 0;
    if (mc_py_arguments(&alloc_from_mem_pool_signature, args, count, keywords, values) < 0 ||
        mc_py_u64(values[0], &size) < 0)
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

/* ---- other ways to set up ---- */

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
    if (self->pool != NULL || size == 0)
        return 0;
    if (size > PY_SSIZE_T_MAX)
        return MC_ERR_INVALID_PARAMS;
    void *pool = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pool == MAP_FAILED)
        return MC_ERR_NO_MEMORY;
    self->pool = pool;
    self->pool_size = size;
    return 0;
}

/* A client without a segment. */
static int open_client(struct mc_py_store *self, const char *master, uint64_t local_buffer_size)
{
    struct mc_store_config config = {
        .local_hostname = "127.0.0.1", .master_server_addr = master, .local_buffer_size = local_buffer_size};
    struct mc_store *store = NULL;
    int rc = mc_py_store_opening(self);
    if (rc < 0)
        return rc;
    rc = mc_store_open(&config, &store);
    mc_py_store_opened(self, rc == 0 ? store : NULL);
    return rc;
}

const char mc_py_doc_setup_dummy[] =
    "setup_dummy(mem_pool_size, local_buffer_size, server_address)\n--\n\n"
    "Joins as a client without memory of its own, with the master that the mooncake_client at server_address "
    "(\"host:port\") uses.\n"
    "Segments of this machine are reached by shared memory, without the daemon in between. mem_pool_size bytes are "
    "for\n"
    "alloc_from_mem_pool.\n\n"
    "Returns 0; -1: nobody answers at server_address; otherwise as setup.";
MC_PY_SIGNATURE(setup_dummy, 3, "mem_pool_size", "local_buffer_size", "server_address");
PyObject *mc_py_store_setup_dummy(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    struct mc_py_store *self = (struct mc_py_store *)object;
    PyObject *values[3];
    char master[DAEMON_LINE_MAX];
    uint64_t pool_size, buffer_size;
    if (mc_py_arguments(&setup_dummy_signature, args, count, keywords, values) < 0 ||
        mc_py_u64(values[0], &pool_size) < 0 || mc_py_u64(values[1], &buffer_size) < 0)
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
        if (rc == 0)
            rc = open_client(self, master, buffer_size);
        else
            mc_log(ERROR, "setup_dummy: no mooncake_client answers at \"%s\": %s", address, mc_error_name(rc));
        Py_END_ALLOW_THREADS
    }
    return PyLong_FromLong(
        rc == MC_ERR_RPC_FAIL || rc == MC_ERR_RPC_TIMEOUT || rc == MC_ERR_PROTOCOL ? MC_ERR_INTERNAL_ERROR : rc);
}

const char mc_py_doc_init_all[] =
    "init_all(protocol, device_name, mount_segment_size=16777216)\n--\n\n"
    "setup on this machine for a try: 127.0.0.1, the master at 127.0.0.1:50051, a segment of mount_segment_size bytes."
    "\n\nReturns as setup does.";
MC_PY_SIGNATURE(init_all, 2, "protocol", "device_name", "mount_segment_size");
PyObject *mc_py_store_init_all(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    PyObject *values[3];
    uint64_t size = 16u << 20;
    if (mc_py_arguments(&init_all_signature, args, count, keywords, values) < 0 ||
        (values[2] != NULL && mc_py_u64(values[2], &size) < 0))
        return NULL;
    return PyObject_CallMethod(object, "setup", "ssKKOOs", "127.0.0.1", "P2PHANDSHAKE", (unsigned long long)size,
                               (unsigned long long)16u << 20, values[0], values[1], "127.0.0.1:50051");
}
