/* Gets, existence checks, removals of keys. */
#ifndef MC_CORE_REQUEST_H
#define MC_CORE_REQUEST_H

#include "store/core/core.h"

struct mc_connection;
struct mc_reader;
struct mc_span;

/* The keys of a list, those that the connection may not name without a length; how many of at most MC_BATCH_MAX. */
uint32_t mc_keys_read(const struct mc_connection *connection, struct mc_reader *reader, struct mc_span *keys);

void mc_request_get(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_request_renew(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_request_exist(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);
void mc_request_remove(struct mc_core *core, struct mc_connection *connection, const struct mc_frame *frame);

#endif
