/* Spans of what callers ask a master that makes them: in the shell, by the frames that come and go. One request of a
 * connection at a time: a link is one thread's. */
#ifndef MC_MASTER_TRACED_H
#define MC_MASTER_TRACED_H

#include "store/master/connections.h"

/* A frame, before the core sees it; only where mc_traces_are_on. True: it was a TRACE, and the core need not. */
bool mc_master_trace_take(struct connection *connection, const struct mc_frame *frame);
/* Of a connection that has said one, before its output is sent: answers that have been made since the last time. */
void mc_master_trace_answers(struct connection *connection);
void mc_master_trace_free(struct connection *connection);

#endif
