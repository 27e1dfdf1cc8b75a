/* SPDX-License-Identifier: Apache-2.0 */
#include "python/store_trace.h"

#include "python/store_arguments.h"

#include "env/log.h"
#include "env/spans.h"

/* A whole number of the context; NULL: there is none, with an exception. */
static PyObject *context_number(PyObject *context, const char *name)
{
    PyObject *number = PyObject_GetAttrString(context, name);
    if (number != NULL && !PyLong_Check(number)) {
        PyErr_Format(PyExc_TypeError, "%s is no int", name);
        Py_CLEAR(number);
    }
    return number;
}

/* 0, or -1 with an exception. */
static int number_read(PyObject *context, const char *name, uint64_t *low, uint64_t *high)
{
    PyObject *number = context_number(context, name);
    PyObject *bits = number == NULL || high == NULL ? NULL : PyLong_FromLong(64);
    PyObject *upper = bits == NULL ? NULL : PyNumber_Rshift(number, bits);
    if (number != NULL)
        *low = PyLong_AsUnsignedLongLongMask(number);
    if (upper != NULL)
        *high = PyLong_AsUnsignedLongLongMask(upper);
    Py_XDECREF(upper);
    Py_XDECREF(bits);
    Py_XDECREF(number);
    return PyErr_Occurred() != NULL ? -1 : 0;
}

static int context_read(PyObject *module, struct mc_trace_context *trace)
{
    uint64_t flags = 0;
    PyObject *span = PyObject_CallMethod(module, "get_current_span", NULL);
    PyObject *context = span == NULL ? NULL : PyObject_CallMethod(span, "get_span_context", NULL);
    int rc = context == NULL || number_read(context, "trace_id", &trace->id.low, &trace->id.high) < 0 ||
                     number_read(context, "span_id", &trace->span, NULL) < 0 ||
                     number_read(context, "trace_flags", &flags, NULL) < 0
                 ? -1
                 : 0;
    trace->flags = (uint8_t)flags;
    Py_XDECREF(context);
    Py_XDECREF(span);
    return rc;
}

/* A trace is no reason for a call to fail. But what has asked the process to stop is not lost: it is raised where the
 * interpreter looks for it next. */
static void error_drop(void)
{
    if (PyErr_Occurred() == NULL)
        return;
    bool is_interrupt = PyErr_ExceptionMatches(PyExc_KeyboardInterrupt);
    if (!is_interrupt && !PyErr_ExceptionMatches(PyExc_Exception))
        PyErr_WriteUnraisable(NULL);
    PyErr_Clear();
    if (is_interrupt)
        PyErr_SetInterrupt();
}

void mc_py_trace_take(void)
{
    struct mc_trace_context trace = {.flags = 0};
    PyObject *name = PyUnicode_FromString("opentelemetry.trace");
    PyObject *module = name == NULL ? NULL : PyImport_GetModule(name);
    if (module != NULL && context_read(module, &trace) < 0) {
        trace = (struct mc_trace_context){.flags = 0};
        mc_log_once(WARNING, "the current span of opentelemetry cannot be read: calls are no part of its trace");
    }
    error_drop();
    Py_XDECREF(module);
    Py_XDECREF(name);
    mc_trace_enter(mc_trace_is_valid(&trace) ? &trace : NULL);
}

void mc_py_trace_drop(void)
{
    mc_trace_enter(NULL);
}
