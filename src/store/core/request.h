/* Gets, existence checks, removals of keys. */
#ifndef MC_CORE_REQUEST_H
#define MC_CORE_REQUEST_H

#include "store/core/core.h"

struct mc_connection;

void mc_request_get(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_request_renew(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_request_exist(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_request_remove(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);

#endif
