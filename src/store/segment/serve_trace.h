/* Spans of what a peer asks for on a lane whose process makes spans: of a WRITE, from its head until its bytes and its
 * COMMIT were taken, of a READ until its answer was sent. Requests of one context that follow each other without a
 * rest are one span: a value may be asked for in pieces. */
#ifndef MC_SEGMENT_SERVE_TRACE_H
#define MC_SEGMENT_SERVE_TRACE_H

#include "store/segment/serve_lane.h"

/* A TRACE. 0 or negative. */
int mc_lane_trace_hear(struct mc_serve_lane *lane, const struct mc_frame *frame);
/* What follows is of lanes that have heard one: lane->traced is there. */

/* A WRITE of so many bytes, or a READ. */
void mc_lane_trace_ask(struct mc_serve_lane *lane, unsigned type, uint64_t bytes);
/* How a part of it went. */
void mc_lane_trace_code(struct mc_serve_lane *lane, int code);
/* A READ is answered, with so many bytes. */
void mc_lane_trace_answer(struct mc_serve_lane *lane, int code, uint64_t bytes);
/* The COMMIT of what was written has been taken; code: of one that is lost. */
void mc_lane_trace_commit(struct mc_serve_lane *lane, int code);
/* Nothing may be left to do. */
void mc_lane_trace_look(struct mc_serve_lane *lane);
void mc_lane_trace_free(struct mc_serve_lane *lane);

#endif
