/* SPDX-License-Identifier: Apache-2.0
 *
 * The span that Python code is in, where it uses OpenTelemetry. Nothing of that is imported here: whoever has not
 * imported it has no span. */
#ifndef MC_PYTHON_STORE_TRACE_H
#define MC_PYTHON_STORE_TRACE_H

/* This thread's calls are a part of its current span, if it has one. With the GIL. */
void mc_py_trace_take(void);
/* Of nothing any more. Without the GIL, too. */
void mc_py_trace_drop(void);

#endif
