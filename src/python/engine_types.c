/* SPDX-License-Identifier: Apache-2.0
 *
 * The small types of mooncake.engine: TransferNotify, TransferOpcode, InnerTransferEngine, and those that are not
 * there. */
#include "python/engine_module.h"

#include <stddef.h>
#include <string.h>

PyObject *mc_py_note_type, *mc_py_inner_type, *mc_py_opcode_enum;

int mc_py_number(PyObject *object, const char *name, uint64_t *value)
{
    if (mc_py_u64(object, value) == 0)
        return 0;
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "%s must be an int from 0 to 2^64 - 1, not %R", name, object);
    return -1;
}

const char *mc_py_text(PyObject *object, const char *name)
{
    Py_ssize_t length = 0;
    const char *text = PyUnicode_Check(object) ? PyUnicode_AsUTF8AndSize(object, &length) : NULL;
    if (text != NULL && strlen(text) == (size_t)length)
        return text;
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "%s must be a str without zeros, not %R", name, object);
    return NULL;
}

static void release_object(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = __extension__(freefunc) PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF((PyObject *)type);
}

static PyObject *allocate(PyObject *type)
{
    allocfunc make = __extension__(allocfunc) PyType_GetSlot((PyTypeObject *)type, Py_tp_alloc);
    return make((PyTypeObject *)type, 0);
}

/* ---- TransferNotify ---- */

static PyObject *note_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static const char *const names[] = {"name", "msg", NULL};
    PyObject *name = NULL, *message = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|UU", (char **)(uintptr_t)names, &name, &message))
        return NULL;
    struct mc_py_note *self = (struct mc_py_note *)allocate((PyObject *)type);
    if (self == NULL)
        return NULL;
    self->name = name != NULL ? Py_NewRef(name) : PyUnicode_FromString("");
    self->message = message != NULL ? Py_NewRef(message) : PyUnicode_FromString("");
    if (self->name == NULL || self->message == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void note_dealloc(PyObject *object)
{
    struct mc_py_note *self = (struct mc_py_note *)object;
    Py_XDECREF(self->name);
    Py_XDECREF(self->message);
    release_object(object);
}

static PyObject **note_field(PyObject *object, void *which)
{
    struct mc_py_note *self = (struct mc_py_note *)object;
    return which == NULL ? &self->name : &self->message;
}
static PyObject *note_get(PyObject *object, void *which)
{
    return Py_NewRef(*note_field(object, which));
}
static int note_set(PyObject *object, PyObject *value, void *which)
{
    if (value == NULL || mc_py_text(value, which == NULL ? "name" : "msg") == NULL) {
        if (value == NULL)
            PyErr_SetString(PyExc_TypeError, "it cannot be deleted");
        return -1;
    }
    PyObject **field = note_field(object, which), *old = *field;
    *field = Py_NewRef(value);
    Py_DECREF(old);
    return 0;
}

static PyObject *note_repr(PyObject *object)
{
    struct mc_py_note *self = (struct mc_py_note *)object;
    return PyUnicode_FromFormat("TransferNotify(%R, %R)", self->name, self->message);
}

static char is_message;
static PyGetSetDef note_fields[] = {
    {"name", note_get, note_set, "what it is about", NULL},
    {"msg", note_get, note_set, "its text", &is_message},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot note_slots[] = {
    {Py_tp_new, MC_PY_POINTER(note_new)},
    {Py_tp_dealloc, MC_PY_POINTER(note_dealloc)},
    {Py_tp_repr, MC_PY_POINTER(note_repr)},
    {Py_tp_getset, note_fields},
    {Py_tp_doc, "TransferNotify(name='', msg='')\n--\n\nA short note to a peer, sent after a transfer."},
    {0, NULL},
};
PyType_Spec mc_py_note_spec = {"mooncake.engine.TransferNotify", sizeof(struct mc_py_note), 0, Py_TPFLAGS_DEFAULT,
                               note_slots};

PyObject *mc_py_note_new(const char *name, const char *message)
{
    /* A peer may send any bytes: what is no UTF-8 comes as Python's own names of files do, and loses no note. */
    PyObject *one = PyUnicode_DecodeUTF8(name, (Py_ssize_t)strlen(name), "surrogateescape");
    PyObject *other = PyUnicode_DecodeUTF8(message, (Py_ssize_t)strlen(message), "surrogateescape");
    PyObject *note =
        one == NULL || other == NULL ? NULL : PyObject_CallFunctionObjArgs(mc_py_note_type, one, other, NULL);
    Py_XDECREF(one);
    Py_XDECREF(other);
    return note;
}

int mc_py_note_read(PyObject *object, struct mc_transfer_note *space, const struct mc_transfer_note **note)
{
    *note = NULL;
    if (object == NULL || object == Py_None)
        return 0;
    /* By its type: isinstance() would believe a mock, which has not a note's memory. */
    if (!PyObject_TypeCheck(object, (PyTypeObject *)mc_py_note_type)) {
        PyErr_Format(PyExc_TypeError, "notify must be a TransferNotify or None, not %R", object);
        return -1;
    }
    struct mc_py_note *self = (struct mc_py_note *)object;
    space->name = mc_py_text(self->name, "notify.name");
    space->message = space->name == NULL ? NULL : mc_py_text(self->message, "notify.msg");
    if (space->message == NULL)
        return -1;
    *note = space;
    return 0;
}

/* ---- InnerTransferEngine: what a store takes as engine= ---- */

struct inner {
    PyObject_HEAD PyObject *engine; /* the TransferEngine, kept alive */
};

static void inner_dealloc(PyObject *object)
{
    Py_XDECREF(((struct inner *)object)->engine);
    release_object(object);
}

static PyMemberDef inner_members[] = {
    {"_engine", T_OBJECT_EX, offsetof(struct inner, engine), READONLY, "the TransferEngine"},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot inner_slots[] = {
    {Py_tp_dealloc, MC_PY_POINTER(inner_dealloc)},
    {Py_tp_members, inner_members},
    {Py_tp_doc, "What TransferEngine.get_engine() returns and MooncakeDistributedStore.setup(engine=...) takes."},
    {0, NULL},
};
PyType_Spec mc_py_inner_spec = {"mooncake.engine.InnerTransferEngine", sizeof(struct inner), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, inner_slots};

PyObject *mc_py_inner_new(PyObject *engine)
{
    struct inner *self = (struct inner *)allocate(mc_py_inner_type);
    if (self != NULL)
        self->engine = Py_NewRef(engine);
    return (PyObject *)self;
}

/* ---- TransferOpcode ---- */

PyObject *mc_py_opcode_new(void)
{
    PyObject *module = PyImport_ImportModule("enum");
    PyObject *base = module == NULL ? NULL : PyObject_GetAttrString(module, "IntEnum");
    PyObject *arguments = base == NULL
                              ? NULL
                              : Py_BuildValue("(s{sisisisi})", "TransferOpcode", "Read", MC_TRANSFER_READ, "Write",
                                              MC_TRANSFER_WRITE, "READ", MC_TRANSFER_READ, "WRITE", MC_TRANSFER_WRITE);
    PyObject *keywords = arguments == NULL ? NULL : Py_BuildValue("{ss}", "module", "mooncake.engine");
    PyObject *made = keywords == NULL ? NULL : PyObject_Call(base, arguments, keywords);
    Py_XDECREF(keywords);
    Py_XDECREF(arguments);
    Py_XDECREF(base);
    Py_XDECREF(module);
    return made;
}

/* ---- what there is not ---- */

static PyObject *not_there(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(keywords))
{
    PyErr_Format(PyExc_NotImplementedError, "%S is not in this build", (PyObject *)type);
    return NULL;
}

static PyObject *no_shared_segment(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(keywords))
{
    PyErr_SetString(PyExc_NotImplementedError,
                    "SharedSegment.create is not in this build; memory that several processes "
                    "share is TransferEngine.allocate_managed_buffer's");
    return NULL;
}

/* Programs ask before they use it. */
static PyObject *is_supported(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(keywords))
{
    Py_RETURN_FALSE;
}

static PyMethodDef shared_segment_methods[] = {
    {"create", MC_PY_METHOD(no_shared_segment), METH_VARARGS | METH_KEYWORDS | METH_STATIC,
     "Raises NotImplementedError."},
    {"supported", MC_PY_METHOD(is_supported), METH_VARARGS | METH_KEYWORDS | METH_STATIC, "False."},
    {NULL, NULL, 0, NULL},
};
static PyMethodDef no_methods[] = {{NULL, NULL, 0, NULL}};

static int add_absent(PyObject *module, const char *full_name, PyMethodDef *methods)
{
    PyType_Slot slots[] = {
        {Py_tp_doc, (void *)"Not in this build: raises NotImplementedError."},
        {Py_tp_new, MC_PY_POINTER(not_there)},
        {Py_tp_methods, methods},
        {0, NULL},
    };
    PyType_Spec spec = {full_name, sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT, slots};
    PyObject *type = PyType_FromSpec(&spec);
    int rc = type == NULL ? -1 : PyObject_SetAttrString(module, strrchr(full_name, '.') + 1, type);
    Py_XDECREF(type);
    return rc;
}

int mc_py_engine_types_add(PyObject *module)
{
    static const char *const names[] = {"mooncake.engine.CoroRPCInterface", "mooncake.engine.ReceivedData",
                                        "mooncake.engine.ReceivedTensor", "mooncake.engine.RpcInterface"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (add_absent(module, names[i], no_methods) < 0)
            return -1;
    return add_absent(module, "mooncake.engine.SharedSegment", shared_segment_methods);
}
