/* SPDX-License-Identifier: Apache-2.0
 *
 * Helpers of mooncake.store about this host: memory for buffers, and binding a thread to a NUMA node. */
#include "python/store_module.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

/* ---- MooncakeHostMemAllocator ---- */

static PyObject *mappings; /* address -> size, of all allocators: tensors often outlive the allocator they came from */

MC_PY_SIGNATURE(alloc, 1, "size");
static PyObject *allocator_alloc(PyObject *Py_UNUSED(object), PyObject *const *args, Py_ssize_t count,
                                 PyObject *keywords)
{
    PyObject *values[1];
    uint64_t size;
    if (mc_py_arguments(&alloc_signature, args, count, keywords, values) < 0 || mc_py_u64(values[0], &size) < 0)
        return NULL;
    if (mappings == NULL && (mappings = PyDict_New()) == NULL)
        return NULL;
    if (size == 0 || size > PY_SSIZE_T_MAX)
        return PyLong_FromLong(0);
    void *data = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED)
        return PyLong_FromLong(0);
    PyObject *address = PyLong_FromUnsignedLongLong((uint64_t)(uintptr_t)data);
    PyObject *length = PyLong_FromUnsignedLongLong(size);
    if (address == NULL || length == NULL || PyDict_SetItem(mappings, address, length) < 0) {
        Py_CLEAR(address);
        munmap(data, (size_t)size);
    }
    Py_XDECREF(length);
    return address;
}

MC_PY_SIGNATURE(free, 1, "ptr");
static PyObject *allocator_free(PyObject *Py_UNUSED(object), PyObject *const *args, Py_ssize_t count,
                                PyObject *keywords)
{
    PyObject *values[1];
    uint64_t address, size;
    if (mc_py_arguments(&free_signature, args, count, keywords, values) < 0 || mc_py_u64(values[0], &address) < 0)
        return NULL;
    PyObject *key = PyLong_FromUnsignedLongLong(address);
    if (key == NULL)
        return NULL;
    PyObject *length = mappings == NULL ? NULL : PyDict_GetItemWithError(mappings, key);
    if (length == NULL) {
        Py_DECREF(key);
        return PyErr_Occurred() != NULL ? NULL : PyLong_FromLong(MC_ERR_INVALID_PARAMS);
    }
    size = PyLong_AsUnsignedLongLong(length);
    int rc = PyDict_DelItem(mappings, key);
    Py_DECREF(key);
    if (rc < 0)
        return NULL;
    return PyLong_FromLong(munmap((void *)(uintptr_t)address, (size_t)size) == 0 ? 0 : MC_ERR_INVALID_PARAMS);
}

static PyMethodDef allocator_methods[] = {
    {"alloc", MC_PY_METHOD(allocator_alloc), MC_PY_KEYWORDS,
     "alloc(size)\n--\n\nAddress of size zeroed bytes at a page's start; 0 when there is no memory."},
    {"free", MC_PY_METHOD(allocator_free), MC_PY_KEYWORDS,
     "free(ptr)\n--\n\nGives an address of alloc back. 0, or -600 when it is none."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot allocator_slots[] = {
    {Py_tp_doc, (void *)"MooncakeHostMemAllocator()\n--\n\nHost memory for buffers. It stays until free(), also when "
                        "the allocator is gone."},
    {Py_tp_methods, allocator_methods},
    {0, NULL},
};
PyType_Spec mc_py_allocator_spec = {
    .name = "mooncake.store.MooncakeHostMemAllocator",
    .basicsize = sizeof(PyObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = allocator_slots,
};

/* ---- NUMA ---- */

/* "0-3,8" as a set; what cannot be read is left out. */
static void parse_cpus(const char *text, cpu_set_t *cpus)
{
    int first, last, length = 0;
    CPU_ZERO(cpus);
    while (sscanf(text, "%d%n", &first, &length) == 1) {
        text += length;
        last = first;
        if (sscanf(text, "-%d%n", &last, &length) == 1)
            text += length;
        for (int cpu = first; cpu >= 0 && cpu <= last && cpu < CPU_SETSIZE; cpu++)
            CPU_SET((size_t)cpu, cpus);
        if (*text != ',')
            break;
        text++;
    }
}

/* Moves this thread to those processors of the node that it may use; without such it stays. New memory then comes from
 * the node by itself. */
static void bind_thread(long node)
{
    char path[64], line[4096];
    cpu_set_t wanted, allowed;
    snprintf(path, sizeof(path), "/sys/devices/system/node/node%ld/cpulist", node);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return;
    bool read = fgets(line, sizeof(line), file) != NULL;
    fclose(file);
    if (!read || sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
        return;
    parse_cpus(line, &wanted);
    CPU_AND(&wanted, &wanted, &allowed);
    if (CPU_COUNT(&wanted) > 0 && sched_setaffinity(0, sizeof(wanted), &wanted) != 0)
        return; /* a wish, not a promise */
}

PyObject *mc_py_bind_to_numa_node(PyObject *Py_UNUSED(module), PyObject *node)
{
    long number = PyLong_AsLong(node);
    if (number == -1 && PyErr_Occurred() != NULL)
        PyErr_Clear();
    if (number >= 0)
        bind_thread(number);
    Py_RETURN_NONE;
}
