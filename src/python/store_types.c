/* SPDX-License-Identifier: Apache-2.0
 *
 * The small types of mooncake.store: ReplicateConfig, BufferHandle, the descriptors of replicas, and the enums. */
#include "python/store_module.h"

#include "env/log.h"

#include <stdlib.h>
#include <string.h>

#define SOFT_PIN_TTL_MAX_MS (UINT64_C(24) * 3600 * 1000)

static PyObject *soft_pin_enum, *data_type_enum, *status_enum, *task_type_enum, *task_status_enum;
static PyObject *replicate_type, *handle_type, *descriptor_type, *memory_type, *disk_type, *replica_type;

static void free_object(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = __extension__(freefunc) PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF((PyObject *)type);
}

static PyObject *make_object(PyObject *type)
{
    allocfunc allocate = __extension__(allocfunc) PyType_GetSlot((PyTypeObject *)type, Py_tp_alloc);
    return allocate((PyTypeObject *)type, 0);
}

static PyObject *refuse_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(keywords))
{
    PyErr_Format(PyExc_TypeError, "%R is only made by the store", (PyObject *)type);
    return NULL;
}

/* ---- ReplicateConfig: a table of fields, each a Python object that its setter has checked ---- */

enum field_kind {
    FIELD_COUNT,
    FIELD_OPTIONAL_COUNT,
    FIELD_FLAG,
    FIELD_TEXT,
    FIELD_TEXTS,
    FIELD_OPTIONAL_TEXTS,
    FIELD_SOFT_PIN,
    FIELD_DATA_TYPE
};

/* Lists of text are held as tuples: each reading makes a list of its own, as in the original. */
#define REPLICATE_FIELDS(X)                                                                                            \
    X(replica_num, FIELD_COUNT, "wanted copies on distinct segments, 1 to 16; fewer is success")                       \
    X(nof_replica_num, FIELD_COUNT, "accepted as 0 only: no such tier in this build")                                  \
    X(dfs_replica_num, FIELD_COUNT, "accepted as 0 only: no such tier in this build")                                  \
    X(soft_pin_action, FIELD_SOFT_PIN, "SoftPinAction.ENABLE: evicted only when nothing else can be")                  \
    X(soft_pin_ttl_ms, FIELD_OPTIONAL_COUNT,                                                                           \
      "milliseconds of the soft pin, at most 24 h; needs ENABLE; 0: no pin; None: the master's default")               \
    X(with_soft_pin, FIELD_FLAG, "older spelling of soft_pin_action = ENABLE")                                         \
    X(with_hard_pin, FIELD_FLAG, "never evicted")                                                                      \
    X(preferred_segments, FIELD_TEXTS, "names (get_hostname() of their owners) that are tried first, in this order")   \
    X(preferred_segment, FIELD_TEXT, "older spelling of one preferred segment")                                        \
    X(preferred_nof_segments, FIELD_TEXTS, "accepted and not used")                                                    \
    X(prefer_alloc_in_same_node, FIELD_FLAG,                                                                           \
      "all of a batch_put_from_multi_buffers in one segment, of this machine if there is room; one replica")           \
    X(data_type, FIELD_DATA_TYPE, "ObjectDataType; a tag without effect")                                              \
    X(group_ids, FIELD_OPTIONAL_TEXTS,                                                                                 \
      "a group's name for each key of the call (\"\": none), or None: a read protects "                                \
      "the whole group, which is evicted together")

enum field {
#define FIELD_ENUM(name, kind, doc) AT_##name,
    REPLICATE_FIELDS(FIELD_ENUM)
#undef FIELD_ENUM
        FIELDS
};

static const struct field_row {
    const char *name;
    enum field_kind kind;
    enum field at;
} field_rows[FIELDS] = {
#define FIELD_ROW(name, kind, doc) {#name, kind, AT_##name},
    REPLICATE_FIELDS(FIELD_ROW)
#undef FIELD_ROW
};

struct replicate_object {
    PyObject_HEAD PyObject *values[FIELDS];
};

static PyObject *field_default(const struct field_row *row)
{
    switch (row->kind) {
    case FIELD_COUNT:
        return PyLong_FromLong(row->at == AT_replica_num ? 1 : 0);
    case FIELD_FLAG:
        return PyBool_FromLong(0);
    case FIELD_TEXT:
        return PyUnicode_FromString("");
    case FIELD_TEXTS:
        return PyTuple_New(0);
    case FIELD_SOFT_PIN:
        return PyObject_GetAttrString(soft_pin_enum, "PRESERVE");
    case FIELD_DATA_TYPE:
        return PyObject_GetAttrString(data_type_enum, "UNKNOWN");
    case FIELD_OPTIONAL_COUNT:
    case FIELD_OPTIONAL_TEXTS:
        break;
    }
    Py_INCREF(Py_None);
    return Py_None;
}

static PyObject *wrong_type(const struct field_row *row, const char *wanted, PyObject *value)
{
    PyErr_Format(PyExc_TypeError, "ReplicateConfig.%s must be %s, not %R", row->name, wanted,
                 (PyObject *)Py_TYPE(value));
    return NULL;
}

static PyObject *checked_count(PyObject *value)
{
    uint64_t number;
    if (mc_py_u64(value, &number) < 0)
        return NULL;
    return PyLong_FromUnsignedLongLong(number);
}

static PyObject *checked_texts(const struct field_row *row, PyObject *value)
{
    PyObject *tuple = mc_py_snapshot(value, row->name);
    for (Py_ssize_t i = 0; tuple != NULL && i < PyTuple_Size(tuple); i++) {
        PyObject *item = PyTuple_GetItem(tuple, i);
        if (!PyUnicode_Check(item)) {
            wrong_type(row, "a list of str", item);
            Py_CLEAR(tuple);
        }
    }
    return tuple;
}

static PyObject *checked_enum(const struct field_row *row, PyObject *value, PyObject *type, const char *wanted)
{
    bool is = PyObject_TypeCheck(value, (PyTypeObject *)type);
    if (!is && PyLong_Check(value))
        return PyObject_CallFunctionObjArgs(type, value, NULL);
    if (!is)
        return wrong_type(row, wanted, value);
    Py_INCREF(value);
    return value;
}

/* What is stored for a value that a caller assigned: a new reference, or NULL with an exception. */
static PyObject *field_checked(const struct field_row *row, PyObject *value)
{
    bool optional = row->kind == FIELD_OPTIONAL_COUNT || row->kind == FIELD_OPTIONAL_TEXTS;
    if (optional && value == Py_None) {
        Py_INCREF(value);
        return value;
    }
    switch (row->kind) {
    case FIELD_COUNT:
    case FIELD_OPTIONAL_COUNT:
        return checked_count(value);
    case FIELD_FLAG: {
        int truth = PyObject_IsTrue(value);
        return truth < 0 ? NULL : PyBool_FromLong(truth);
    }
    case FIELD_TEXT:
        if (!PyUnicode_Check(value))
            return wrong_type(row, "str", value);
        Py_INCREF(value);
        return value;
    case FIELD_SOFT_PIN:
        return checked_enum(row, value, soft_pin_enum, "SoftPinAction");
    case FIELD_DATA_TYPE:
        return checked_enum(row, value, data_type_enum, "ObjectDataType");
    case FIELD_TEXTS:
    case FIELD_OPTIONAL_TEXTS:
        break;
    }
    return checked_texts(row, value);
}

static PyObject *replicate_get(PyObject *object, void *closure)
{
    const struct field_row *row = closure;
    PyObject *value = ((struct replicate_object *)object)->values[row->at];
    if (PyTuple_CheckExact(value))
        return PySequence_List(value);
    Py_INCREF(value);
    return value;
}

static int replicate_set(PyObject *object, PyObject *value, void *closure)
{
    const struct field_row *row = closure;
    struct replicate_object *self = (struct replicate_object *)object;
    if (value == NULL) {
        PyErr_Format(PyExc_AttributeError, "ReplicateConfig.%s cannot be deleted", row->name);
        return -1;
    }
    PyObject *checked = field_checked(row, value);
    if (checked == NULL)
        return -1;
    PyObject *old = self->values[row->at];
    self->values[row->at] = checked;
    Py_DECREF(old);
    return 0;
}

static PyObject *replicate_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    if (PyTuple_Size(args) > 0 || (keywords != NULL && PyDict_Size(keywords) > 0)) {
        PyErr_SetString(PyExc_TypeError, "ReplicateConfig() takes no arguments; set its attributes");
        return NULL;
    }
    struct replicate_object *self = (struct replicate_object *)make_object((PyObject *)type);
    for (int i = 0; self != NULL && i < FIELDS; i++) {
        self->values[i] = field_default(&field_rows[i]);
        if (self->values[i] == NULL) {
            Py_DECREF((PyObject *)self);
            return NULL;
        }
    }
    return (PyObject *)self;
}

static void replicate_dealloc(PyObject *object)
{
    struct replicate_object *self = (struct replicate_object *)object;
    for (int i = 0; i < FIELDS; i++)
        Py_XDECREF(self->values[i]);
    free_object(object);
}

static PyObject *replicate_repr(PyObject *object)
{
    PyObject *parts = PyList_New(0), *comma = PyUnicode_FromString(", "), *joined = NULL, *text = NULL;
    for (int i = 0; parts != NULL && i < FIELDS; i++) {
        PyObject *value = replicate_get(object, (void *)(uintptr_t)&field_rows[i]);
        PyObject *part = value == NULL ? NULL : PyUnicode_FromFormat("%s=%R", field_rows[i].name, value);
        Py_XDECREF(value);
        if (part == NULL || PyList_Append(parts, part) < 0)
            Py_CLEAR(parts);
        Py_XDECREF(part);
    }
    if (parts != NULL && comma != NULL)
        joined = PyUnicode_Join(comma, parts);
    if (joined != NULL)
        text = PyUnicode_FromFormat("ReplicateConfig(%U)", joined);
    Py_XDECREF(parts);
    Py_XDECREF(comma);
    Py_XDECREF(joined);
    return text;
}

static PyGetSetDef replicate_getset[] = {
#define FIELD_GETSET(name, kind, doc)                                                                                  \
    {#name, replicate_get, replicate_set, doc, (void *)(uintptr_t)&field_rows[AT_##name]},
    REPLICATE_FIELDS(FIELD_GETSET)
#undef FIELD_GETSET
        {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(replicate_doc,
             "ReplicateConfig()\n--\n\nHow a put places its copies. One object may be used for many calls.");

static PyType_Slot replicate_slots[] = {
    {Py_tp_doc, (void *)replicate_doc},
    {Py_tp_new, MC_PY_POINTER(replicate_new)},
    {Py_tp_dealloc, MC_PY_POINTER(replicate_dealloc)},
    {Py_tp_repr, MC_PY_POINTER(replicate_repr)},
    {Py_tp_getset, replicate_getset},
    {0, NULL},
};
static PyType_Spec replicate_spec = {
    .name = "mooncake.store.ReplicateConfig",
    .basicsize = sizeof(struct replicate_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = replicate_slots,
};

/* ---- ReplicateConfig for the library ---- */

static bool is_true(PyObject *value)
{
    return value == Py_True;
}

/* The setters let nothing but a number of 64 bits in. */
static uint64_t count_of(PyObject *value)
{
    return PyLong_AsUnsignedLongLong(value);
}

/* NULL, or what is wrong with the config for such a call. */
static const char *replicate_fault(PyObject **values, Py_ssize_t key_count, enum mc_py_put_kind kind, long pin)
{
    uint64_t ttl_ms = values[AT_soft_pin_ttl_ms] == Py_None ? 0 : count_of(values[AT_soft_pin_ttl_ms]);
    if (count_of(values[AT_replica_num]) == 0)
        return "replica_num is 0";
    if (values[AT_soft_pin_ttl_ms] != Py_None && pin != 1)
        return "soft_pin_ttl_ms needs soft_pin_action ENABLE";
    if (ttl_ms > SOFT_PIN_TTL_MAX_MS)
        return "soft_pin_ttl_ms is above 24 hours";
    if (is_true(values[AT_prefer_alloc_in_same_node]) &&
        (kind != MC_PY_PUT_MULTI || count_of(values[AT_replica_num]) != 1))
        return "prefer_alloc_in_same_node works with batch_put_from_multi_buffers and one replica only";
    if (values[AT_group_ids] != Py_None && PyTuple_Size(values[AT_group_ids]) != key_count)
        return "group_ids must be as long as the keys";
    return NULL;
}

/* The groups of the keys. 0; 1 with an exception. */
static int replicate_groups(PyObject *names, struct mc_py_replicate *replicate)
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
static int replicate_names(PyObject **values, struct mc_py_replicate *replicate)
{
    Py_ssize_t single = 0;
    if (PyTuple_Size(values[AT_preferred_segments]) == 0 &&
        PyUnicode_AsUTF8AndSize(values[AT_preferred_segment], &single) == NULL)
        return 1;
    if (single > 0) {
        replicate->held = PyTuple_Pack(1, values[AT_preferred_segment]);
    } else {
        replicate->held = values[AT_preferred_segments];
        Py_INCREF(replicate->held);
    }
    Py_ssize_t count = replicate->held == NULL ? 0 : PyTuple_Size(replicate->held);
    if (count > STORE_PREFERRED_MAX) {
        mc_log(ERROR, "put: more than %d preferred segments", STORE_PREFERRED_MAX);
        return MC_ERR_INVALID_PARAMS;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t length = 0;
        replicate->names[i] = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(replicate->held, i), &length);
        if (replicate->names[i] == NULL)
            return 1;
        if (strlen(replicate->names[i]) != (size_t)length)
            return MC_ERR_INVALID_PARAMS;
    }
    replicate->config.preferred_segment_count = (uint32_t)count;
    replicate->config.preferred_segments = replicate->names;
    return replicate->held == NULL ? 1 : 0;
}

int mc_py_replicate_acquire(PyObject *object, Py_ssize_t key_count, enum mc_py_put_kind kind,
                            struct mc_py_replicate *replicate)
{
    replicate->held = NULL;
    replicate->groups = NULL;
    memset(&replicate->config, 0, sizeof(replicate->config));
    replicate->config.replica_count = 1;
    if (object == NULL || object == Py_None)
        return 0;
    /* By its type, not by isinstance(), which believes what an object says of itself: a mock of ReplicateConfig has not
     * its memory. */
    if (!PyObject_TypeCheck(object, (PyTypeObject *)replicate_type)) {
        PyErr_Format(PyExc_TypeError, "config must be ReplicateConfig, not %R", (PyObject *)Py_TYPE(object));
        return 1;
    }
    PyObject **values = ((struct replicate_object *)object)->values;
    long pin = PyLong_AsLong(values[AT_soft_pin_action]);
    if (is_true(values[AT_with_soft_pin]))
        pin = 1;
    const char *fault = replicate_fault(values, key_count, kind, pin);
    if (fault != NULL) {
        mc_log(ERROR, "put: ReplicateConfig: %s; nothing was stored", fault);
        return MC_ERR_INVALID_PARAMS;
    }
    if (count_of(values[AT_nof_replica_num]) > 0 || count_of(values[AT_dfs_replica_num]) > 0) {
        mc_log(
            ERROR,
            "put: ReplicateConfig: this build has memory replicas only; nof_replica_num and dfs_replica_num must be 0");
        return MC_ERR_NOT_SUPPORTED;
    }
    uint64_t replicas = count_of(values[AT_replica_num]);
    replicate->config.replica_count = replicas > MC_REPLICA_COUNT_MAX ? MC_REPLICA_COUNT_MAX : (uint32_t)replicas;
    replicate->config.with_hard_pin = is_true(values[AT_with_hard_pin]);
    /* A pin of 0 ms is none. */
    replicate->config.with_soft_pin =
        pin == 1 && (values[AT_soft_pin_ttl_ms] == Py_None || count_of(values[AT_soft_pin_ttl_ms]) > 0);
    replicate->config.prefer_same_node = is_true(values[AT_prefer_alloc_in_same_node]);
    int rc = replicate_groups(values[AT_group_ids], replicate);
    return rc == 0 ? replicate_names(values, replicate) : rc;
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
    struct handle_object *self = (struct handle_object *)make_object(handle_type);
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
    free_object(object);
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

/* ---- descriptors: records of up to RECORD_FIELDS objects, read only ---- */

#define RECORD_FIELDS 3

struct record_object {
    PyObject_HEAD PyObject *fields[RECORD_FIELDS];
};
#define RECORD_OFFSET(index) (Py_ssize_t)(offsetof(struct record_object, fields) + (index) * sizeof(PyObject *))

static void record_dealloc(PyObject *object)
{
    for (int i = 0; i < RECORD_FIELDS; i++)
        Py_XDECREF(((struct record_object *)object)->fields[i]);
    free_object(object);
}

/* Takes over the references, of which any may be NULL with an exception. */
static PyObject *record_make(PyObject *type, int count, PyObject *first, PyObject *second, PyObject *third)
{
    PyObject *fields[RECORD_FIELDS] = {first, second, third};
    PyObject *object = make_object(type);
    for (int i = 0; i < RECORD_FIELDS; i++) {
        if (i < count && fields[i] == NULL)
            Py_CLEAR(object);
    }
    for (int i = 0; i < RECORD_FIELDS; i++) {
        if (object != NULL)
            ((struct record_object *)object)->fields[i] = fields[i];
        else
            Py_XDECREF(fields[i]);
    }
    return object;
}

static PyMemberDef descriptor_members[] = {
    {"size", T_OBJECT_EX, RECORD_OFFSET(0), READONLY, "length in bytes"},
    {"buffer_address", T_OBJECT_EX, RECORD_OFFSET(1), READONLY, "offset of the data in its segment"},
    {"transport_endpoint", T_OBJECT_EX, RECORD_OFFSET(2), READONLY, "\"host:port\" of the segment's owner"},
    {"size_", T_OBJECT_EX, RECORD_OFFSET(0), READONLY, "length in bytes"},
    {"buffer_address_", T_OBJECT_EX, RECORD_OFFSET(1), READONLY, "offset of the data in its segment"},
    {"transport_endpoint_", T_OBJECT_EX, RECORD_OFFSET(2), READONLY, "\"host:port\" of the segment's owner"},
    {NULL, 0, 0, 0, NULL},
};
static PyMemberDef memory_members[] = {
    {"buffer_descriptor", T_OBJECT_EX, RECORD_OFFSET(0), READONLY, "Descriptor of the memory"},
    {NULL, 0, 0, 0, NULL},
};
static PyMemberDef disk_members[] = {
    {"file_path", T_OBJECT_EX, RECORD_OFFSET(0), READONLY, "path of the file"},
    {"object_size", T_OBJECT_EX, RECORD_OFFSET(1), READONLY, "length in bytes"},
    {NULL, 0, 0, 0, NULL},
};
static PyMemberDef replica_members[] = {
    {"status", T_OBJECT_EX, RECORD_OFFSET(0), READONLY, "ReplicaStatus"},
    {NULL, 0, 0, 0, NULL},
};

static PyObject *replica_memory(PyObject *object, PyObject *Py_UNUSED(unused))
{
    PyObject *memory = ((struct record_object *)object)->fields[1];
    Py_INCREF(memory);
    return memory;
}
static PyObject *replica_yes(PyObject *Py_UNUSED(object), PyObject *Py_UNUSED(unused))
{
    Py_RETURN_TRUE;
}
static PyObject *replica_no(PyObject *Py_UNUSED(object), PyObject *Py_UNUSED(unused))
{
    Py_RETURN_FALSE;
}

static PyObject *replica_disk(PyObject *Py_UNUSED(object), PyObject *Py_UNUSED(unused))
{
    PyErr_SetString(PyExc_RuntimeError, "get_disk_descriptor: this replica is in memory");
    return NULL;
}

static PyMethodDef replica_methods[] = {
    {"get_disk_descriptor", replica_disk, METH_NOARGS,
     "get_disk_descriptor()\n--\n\nRaises RuntimeError: this build has memory replicas only."},
    {"get_memory_descriptor", replica_memory, METH_NOARGS,
     "get_memory_descriptor()\n--\n\nMemoryDescriptor of this replica."},
    {"is_memory_replica", replica_yes, METH_NOARGS,
     "is_memory_replica()\n--\n\nTrue: this build has memory replicas only."},
    {"is_disk_replica", replica_no, METH_NOARGS, "is_disk_replica()\n--\n\nFalse."},
    {"is_local_disk_replica", replica_no, METH_NOARGS, "is_local_disk_replica()\n--\n\nFalse."},
    {NULL, NULL, 0, NULL},
};

#define RECORD_TYPE(type, type_name, doc, method_table)                                                                \
    static PyType_Slot type##_slots[] = {                                                                              \
        {Py_tp_doc, (void *)(doc)},                                                                                    \
        {Py_tp_new, MC_PY_POINTER(refuse_new)},                                                                        \
        {Py_tp_dealloc, MC_PY_POINTER(record_dealloc)},                                                                \
        {Py_tp_members, type##_members},                                                                               \
        {Py_tp_methods, method_table},                                                                                 \
        {0, NULL},                                                                                                     \
    };                                                                                                                 \
    static PyType_Spec type##_spec = {                                                                                 \
        .name = "mooncake.store." type_name,                                                                           \
        .basicsize = sizeof(struct record_object),                                                                     \
        .flags = Py_TPFLAGS_DEFAULT,                                                                                   \
        .slots = type##_slots,                                                                                         \
    }

static PyMethodDef no_methods[] = {{NULL, NULL, 0, NULL}};
RECORD_TYPE(descriptor, "Descriptor", "Where bytes lie in a segment.", no_methods);
RECORD_TYPE(memory, "MemoryDescriptor", "A replica in memory.", no_methods);
RECORD_TYPE(disk, "DiskDescriptor", "A replica in a file; this build makes none.", no_methods);
RECORD_TYPE(replica, "ReplicaDescriptor", "One copy of an object.", replica_methods);

static const char *const status_names[] = {"UNDEFINED", "INITIALIZED", "PROCESSING", "COMPLETE",
                                           "REMOVED",   "FAILED",      NULL};
#define STATUS_COUNT ((int)(sizeof(status_names) / sizeof(status_names[0])) - 1)

static PyObject *replica_make(const struct mc_replica_description *description)
{
    PyObject *place =
        record_make(descriptor_type, 3, PyLong_FromUnsignedLongLong(description->size),
                    PyLong_FromUnsignedLongLong(description->address), PyUnicode_FromString(description->segment_name));
    PyObject *memory = record_make(memory_type, 1, place, NULL, NULL);
    /* The number comes from another process: what we do not know is UNDEFINED. */
    bool known = description->status >= 0 && description->status < STATUS_COUNT;
    PyObject *status = PyObject_CallFunction(status_enum, "i", known ? description->status : 0);
    return record_make(replica_type, 2, status, memory, NULL);
}

PyObject *mc_py_descriptors(const struct mc_replica_description *descriptions, int count)
{
    PyObject *list = PyList_New(count);
    for (int i = 0; list != NULL && i < count; i++) {
        PyObject *replica = replica_make(&descriptions[i]);
        if (replica == NULL || PyList_SetItem(list, i, replica) < 0)
            Py_CLEAR(list);
    }
    return list;
}

/* ---- enums, and all of it into the module ---- */

/* enum.IntEnum(name, names), numbered from 0. */
static PyObject *make_enum(PyObject *int_enum, const char *name, const char *const *names)
{
    PyObject *members = PyList_New(0), *answer = NULL;
    for (long i = 0; members != NULL && names[i] != NULL; i++) {
        PyObject *pair = Py_BuildValue("(sl)", names[i], i);
        if (pair == NULL || PyList_Append(members, pair) < 0)
            Py_CLEAR(members);
        Py_XDECREF(pair);
    }
    PyObject *args = members == NULL ? NULL : Py_BuildValue("(sO)", name, members);
    PyObject *keywords = args == NULL ? NULL : Py_BuildValue("{ss}", "module", "mooncake.store");
    if (keywords != NULL)
        answer = PyObject_Call(int_enum, args, keywords);
    Py_XDECREF(keywords);
    Py_XDECREF(args);
    Py_XDECREF(members);
    return answer;
}

static const char *const soft_pin_names[] = {"PRESERVE", "ENABLE", "DISABLE", NULL};
static const char *const data_type_names[] = {"UNKNOWN",  "KVCACHE",    "TENSOR",   "WEIGHT",
                                              "SAMPLE",   "ACTIVATION", "GRADIENT", "OPTIMIZER_STATE",
                                              "METADATA", "GENERAL",    NULL};
static const char *const task_type_names[] = {"REPLICA_COPY", "REPLICA_MOVE", NULL};
static const char *const task_status_names[] = {"PENDING", "PROCESSING", "FAILED", "SUCCESS", NULL};

PyObject *mc_py_enum_member(enum mc_py_enum which, long value)
{
    return PyObject_CallFunction(which == MC_PY_TASK_TYPE ? task_type_enum : task_status_enum, "l", value);
}

/* Each member as a name of the module too; of equal names the last one stays, as in the original. */
static int export_members(PyObject *module, PyObject *type, const char *const *names)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && names[i] != NULL; i++)
        rc = mc_py_module_add(module, names[i], PyObject_GetAttrString(type, names[i]));
    return rc;
}

static int add_enums(PyObject *module)
{
    const struct {
        const char *name;
        const char *const *names;
        PyObject **place;
    } enums[] = {
        {"SoftPinAction", soft_pin_names, &soft_pin_enum},    {"ObjectDataType", data_type_names, &data_type_enum},
        {"ReplicaStatus", status_names, &status_enum},        {"TaskType", task_type_names, &task_type_enum},
        {"TaskStatus", task_status_names, &task_status_enum},
    };
    PyObject *enum_module = PyImport_ImportModule("enum");
    PyObject *int_enum = enum_module == NULL ? NULL : PyObject_GetAttrString(enum_module, "IntEnum");
    int rc = int_enum == NULL ? -1 : 0;
    for (size_t i = 0; rc == 0 && i < sizeof(enums) / sizeof(enums[0]); i++) {
        *enums[i].place = make_enum(int_enum, enums[i].name, enums[i].names);
        Py_XINCREF(*enums[i].place);
        rc = mc_py_module_add(module, enums[i].name, *enums[i].place);
        if (rc == 0 && enums[i].place != &soft_pin_enum)
            rc = export_members(module, *enums[i].place, enums[i].names);
    }
    Py_XDECREF(int_enum);
    Py_XDECREF(enum_module);
    return rc;
}

int mc_py_types_add(PyObject *module)
{
    const struct {
        const char *name;
        PyType_Spec *spec;
        PyObject **place;
    } types[] = {
        {"ReplicateConfig", &replicate_spec, &replicate_type}, {"BufferHandle", &handle_spec, &handle_type},
        {"Descriptor", &descriptor_spec, &descriptor_type},    {"MemoryDescriptor", &memory_spec, &memory_type},
        {"ReplicaDescriptor", &replica_spec, &replica_type},   {"DiskDescriptor", &disk_spec, &disk_type},
    };
    int rc = add_enums(module);
    for (size_t i = 0; rc == 0 && i < sizeof(types) / sizeof(types[0]); i++) {
        *types[i].place = PyType_FromSpec(types[i].spec);
        Py_XINCREF(*types[i].place);
        rc = mc_py_module_add(module, types[i].name, *types[i].place);
    }
    return rc;
}
