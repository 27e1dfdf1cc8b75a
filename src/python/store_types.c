/* SPDX-License-Identifier: Apache-2.0
 *
 * BufferHandle, and what this module makes and reads of the types that are written in Python (mooncake/_types.py). */
#include "python/store_types.h"

#include "env/log.h"

#include <stdlib.h>
#include <string.h>

enum { SOFT_PIN_ENABLE = 1, SOFT_PIN_DISABLE = 2 }; /* as SoftPinAction in Python */

static PyObject *handle_type;

static PyObject *refuse_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(keywords))
{
    PyErr_Format(PyExc_TypeError, "%R is only made by the store", (PyObject *)type);
    return NULL;
}

/* ---- what is written in Python ---- */

PyObject *mc_py_type(const char *name)
{
    PyObject *module = PyImport_ImportModule("mooncake._types"), *type = NULL;
    if (module != NULL)
        type = PyObject_GetAttrString(module, name);
    Py_XDECREF(module);
    return type;
}

/* ---- ReplicateConfig for the library ---- */

/* A ReplicateConfig's values in their order; what its setters have checked. */
struct fields {
    unsigned long long replica_num, nof_replica_num, dfs_replica_num;
    long soft_pin_action;
    PyObject *soft_pin_ttl_ms; /* int or None */
    int with_soft_pin, with_hard_pin;
    PyObject *preferred_segments, *preferred_segment, *preferred_nof_segments;
    int prefer_alloc_in_same_node;
    PyObject *data_type, *group_ids; /* group_ids: tuple or None */
    unsigned long long firm_pin_ms;
    int firm_pin_or_not;
    uint64_t ttl_ms;
};

/* The fields, borrowed from *values, which is a new reference. -1 with an exception. Those read last are remembered:
 * a tuple does not change, and most programs have one config; not without a GIL, which keeps both in step. */
#ifdef Py_GIL_DISABLED
#define REMEMBERS false
#else
#define REMEMBERS true
#endif
static int read_fields(PyObject *object, PyObject **values, struct fields *fields)
{
    static _Atomic(PyObject *) type_known, name_known;
    static PyObject *last;
    static struct fields of_last;
    PyObject *type = mc_py_known(&type_known, mc_py_type, "ReplicateConfig");
    PyObject *name = mc_py_known(&name_known, PyUnicode_InternFromString, "_values");
    if (type == NULL || name == NULL)
        return -1;
    /* By its type, not by isinstance(), which believes what an object says of itself. */
    if (!PyObject_TypeCheck(object, (PyTypeObject *)type)) {
        PyErr_Format(PyExc_TypeError, "config must be ReplicateConfig, not %R", (PyObject *)Py_TYPE(object));
        return -1;
    }
    *values = PyObject_GetAttr(object, name);
    if (REMEMBERS && *values == last && last != NULL) {
        *fields = of_last;
        return 0;
    }
    if (*values == NULL ||
        !PyArg_ParseTuple(*values, "KKKlOppO!UO!pOOKp", &fields->replica_num, &fields->nof_replica_num,
                          &fields->dfs_replica_num, &fields->soft_pin_action, &fields->soft_pin_ttl_ms,
                          &fields->with_soft_pin, &fields->with_hard_pin, &PyTuple_Type, &fields->preferred_segments,
                          &fields->preferred_segment, &PyTuple_Type, &fields->preferred_nof_segments,
                          &fields->prefer_alloc_in_same_node, &fields->data_type, &fields->group_ids,
                          &fields->firm_pin_ms, &fields->firm_pin_or_not))
        return -1;
    if (fields->with_soft_pin)
        fields->soft_pin_action = SOFT_PIN_ENABLE;
    fields->ttl_ms = fields->soft_pin_ttl_ms == Py_None ? 0 : PyLong_AsUnsignedLongLong(fields->soft_pin_ttl_ms);
    if (PyErr_Occurred() != NULL)
        return -1;
    if (REMEMBERS) {
        PyObject *old = last;
        last = *values;
        Py_INCREF(last);
        of_last = *fields;
        Py_XDECREF(old);
    }
    return 0;
}

/* NULL, or what is wrong with the config for such a call. */
static const char *find_fault(const struct fields *fields, Py_ssize_t key_count, enum mc_py_put_kind kind)
{
    if (fields->replica_num == 0)
        return "replica_num is 0";
    if (fields->soft_pin_ttl_ms != Py_None && fields->soft_pin_action != SOFT_PIN_ENABLE)
        return "soft_pin_ttl_ms needs soft_pin_action ENABLE";
    if (fields->firm_pin_or_not && fields->firm_pin_ms == 0)
        return "firm_pin_or_not needs firm_pin_ms";
    if (fields->prefer_alloc_in_same_node && (kind != MC_PY_PUT_MULTI || fields->replica_num != 1))
        return "prefer_alloc_in_same_node works with batch_put_from_multi_buffers and one replica only";
    if (fields->group_ids != Py_None && PyTuple_Size(fields->group_ids) != key_count)
        return "group_ids must be as long as the keys";
    return NULL;
}

/* The groups of the keys. 0; 1 with an exception. */
static int read_groups(PyObject *names, struct mc_py_replicate *replicate)
{
    Py_ssize_t count = names == Py_None ? 0 : PyTuple_Size(names);
    if (count == 0)
        return 0;
    replicate->groups = malloc((size_t)count * sizeof(*replicate->groups));
    if (replicate->groups == NULL) {
        PyErr_NoMemory();
        return 1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t length = 0;
        const char *name = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(names, i), &length);
        if (name == NULL)
            return 1;
        replicate->groups[i] = mc_group(name, (size_t)length);
    }
    replicate->config.groups = replicate->groups;
    return 0;
}

/* The names of the preferred segments. 0, or an enum mc_error; 1 with an exception. */
static int read_names(const struct fields *fields, struct mc_py_replicate *replicate)
{
    Py_ssize_t length = 0, count = PyTuple_Size(fields->preferred_segments);
    const bool is_single = count == 0;
    if (is_single)
        count = 1;
    if (count > STORE_PREFERRED_MAX) {
        mc_log(ERROR, "put: more than %d preferred segments", STORE_PREFERRED_MAX);
        return MC_ERR_INVALID_PARAMS;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *name = is_single ? fields->preferred_segment : PyTuple_GetItem(fields->preferred_segments, i);
        replicate->names[i] = PyUnicode_AsUTF8AndSize(name, &length);
        if (replicate->names[i] == NULL)
            return 1;
        if (strlen(replicate->names[i]) != (size_t)length)
            return MC_ERR_INVALID_PARAMS;
    }
    replicate->config.preferred_segment_count = is_single && length == 0 ? 0 : (uint32_t)count;
    replicate->config.preferred_segments = replicate->names;
    return 0;
}

int mc_py_replicate_acquire(PyObject *object, Py_ssize_t key_count, enum mc_py_put_kind kind,
                            struct mc_py_replicate *replicate)
{
    struct fields fields;
    replicate->held = NULL;
    replicate->groups = NULL;
    memset(&replicate->config, 0, sizeof(replicate->config));
    replicate->config.replica_count = 1;
    if (object == NULL || object == Py_None)
        return 0;
    if (read_fields(object, &replicate->held, &fields) < 0)
        return 1;
    const char *fault = find_fault(&fields, key_count, kind);
    if (fault != NULL) {
        mc_log(ERROR, "put: ReplicateConfig: %s; nothing was stored", fault);
        return MC_ERR_INVALID_PARAMS;
    }
    if (fields.nof_replica_num > 0 || fields.dfs_replica_num > 0) {
        mc_log(
            ERROR,
            "put: ReplicateConfig: this build has memory replicas only; nof_replica_num and dfs_replica_num must be 0");
        return MC_ERR_NOT_SUPPORTED;
    }
    replicate->config.replica_count =
        fields.replica_num > MC_REPLICA_COUNT_MAX ? MC_REPLICA_COUNT_MAX : (uint32_t)fields.replica_num;
    replicate->config.with_hard_pin = fields.with_hard_pin;
    /* A pin of 0 ms is none, also where there was one. */
    bool is_none = fields.soft_pin_ttl_ms != Py_None && fields.ttl_ms == 0;
    replicate->config.with_soft_pin = fields.soft_pin_action == SOFT_PIN_ENABLE && !is_none;
    replicate->config.drop_soft_pin = fields.soft_pin_action == SOFT_PIN_DISABLE || is_none;
    replicate->config.soft_pin_ttl_ms = fields.ttl_ms;
    replicate->config.firm_pin_ms = fields.firm_pin_ms;
    replicate->config.firm_pin_or_not = fields.firm_pin_or_not;
    replicate->config.prefer_same_node = fields.prefer_alloc_in_same_node;
    int rc = read_groups(fields.group_ids, replicate);
    return rc == 0 ? read_names(&fields, replicate) : rc;
}

void mc_py_replicate_release(struct mc_py_replicate *replicate)
{
    Py_CLEAR(replicate->held);
    free(replicate->groups);
    replicate->groups = NULL;
}

/* ---- BufferHandle ---- */

struct handle_object {
    PyObject_HEAD void *data;
    Py_ssize_t length;
};

PyObject *mc_py_buffer_handle(void *data, size_t length)
{
    allocfunc allocate = __extension__(allocfunc) PyType_GetSlot((PyTypeObject *)handle_type, Py_tp_alloc);
    struct handle_object *self = (struct handle_object *)allocate((PyTypeObject *)handle_type, 0);
    if (self == NULL) {
        free(data);
        return NULL;
    }
    self->data = data;
    self->length = (Py_ssize_t)length;
    return (PyObject *)self;
}

/* A view holds a reference, so the memory cannot go while somebody looks at it. */
static void handle_dealloc(PyObject *object)
{
    free(((struct handle_object *)object)->data);
    mc_py_object_free(object);
}

static int handle_export(PyObject *object, Py_buffer *view, int flags)
{
    struct handle_object *self = (struct handle_object *)object;
    static char format[] = "b"; /* what the original says */
    if (view == NULL) {
        PyErr_SetString(PyExc_BufferError, "BufferHandle: no view to fill");
        return -1;
    }
    Py_INCREF(object);
    view->obj = object;
    view->buf = self->data;
    view->len = self->length;
    view->readonly = 0;
    view->itemsize = 1;
    view->format = (flags & PyBUF_FORMAT) == PyBUF_FORMAT ? format : NULL;
    view->ndim = 1;
    view->shape = (flags & PyBUF_ND) == PyBUF_ND ? &self->length : NULL;
    view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? &view->itemsize : NULL;
    view->suboffsets = NULL;
    view->internal = NULL;
    return 0;
}

static Py_ssize_t handle_length(PyObject *object)
{
    return ((struct handle_object *)object)->length;
}

static PyObject *handle_size(PyObject *object, PyObject *Py_UNUSED(unused))
{
    return PyLong_FromSsize_t(handle_length(object));
}

static PyObject *handle_ptr(PyObject *object, PyObject *Py_UNUSED(unused))
{
    return PyLong_FromUnsignedLongLong((uint64_t)(uintptr_t)((struct handle_object *)object)->data);
}

static PyObject *handle_repr(PyObject *object)
{
    return PyUnicode_FromFormat("<mooncake.store.BufferHandle of %zd bytes>", handle_length(object));
}

static PyMethodDef handle_methods[] = {
    {"ptr", handle_ptr, METH_NOARGS, "ptr()\n--\n\nAddress of the first byte; valid while the handle lives."},
    {"size", handle_size, METH_NOARGS, "size()\n--\n\nLength in bytes."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot handle_slots[] = {
    {Py_tp_doc, (void *)"One object's bytes in memory of their own, as get_buffer returns them.\n\n"
                        "Supports the buffer protocol (1-D, format 'b', writable), len(), ptr() and size(); outlives "
                        "the store's close()."},
    {Py_tp_new, MC_PY_POINTER(refuse_new)},
    {Py_tp_dealloc, MC_PY_POINTER(handle_dealloc)},
    {Py_tp_repr, MC_PY_POINTER(handle_repr)},
    {Py_tp_methods, handle_methods},
    {Py_sq_length, MC_PY_POINTER(handle_length)},
    {Py_bf_getbuffer, MC_PY_POINTER(handle_export)},
    {0, NULL},
};
static PyType_Spec handle_spec = {
    .name = "mooncake.store.BufferHandle",
    .basicsize = sizeof(struct handle_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = handle_slots,
};

/* ---- descriptions of replicas ---- */

PyObject *mc_py_descriptors(const struct mc_replica_description *descriptions, int count)
{
    static _Atomic(PyObject *) make_known;
    PyObject *make = mc_py_known(&make_known, mc_py_type, "_replica");
    PyObject *list = make == NULL ? NULL : PyList_New(count);
    for (int i = 0; list != NULL && i < count; i++) {
        const struct mc_replica_description *one = &descriptions[i];
        PyObject *replica =
            PyObject_CallFunction(make, "KKsii", (unsigned long long)one->size, (unsigned long long)one->address,
                                  one->segment_name, one->status, one->is_on_disk);
        if (replica == NULL || PyList_SetItem(list, i, replica) < 0)
            Py_CLEAR(list);
    }
    return list;
}

int mc_py_types_add(PyObject *module)
{
    handle_type = PyType_FromSpec(&handle_spec);
    Py_XINCREF(handle_type);
    return mc_py_module_add(module, "BufferHandle", handle_type);
}
