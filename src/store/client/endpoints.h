/* Where segments are, as masters have told it. */
#ifndef MC_STORE_ENDPOINTS_H
#define MC_STORE_ENDPOINTS_H

#include "store/path/transport.h"
#include "store/wire/wire.h"

struct mc_store;

/* Endpoint of a segment of that epoch as far as it is known. */
bool mc_store_endpoint_known(struct mc_store *store, uint64_t epoch, uint32_t segment, struct mc_endpoint *endpoint);
/* The same; *doubtful: it could not be reached there, the master is asked again when it can be. */
bool mc_store_endpoint_look(struct mc_store *store, uint64_t epoch, uint32_t segment, struct mc_endpoint *endpoint,
                            bool *doubtful);
/* What a master of that epoch says of a segment: checked, and remembered. */
int mc_store_endpoint_told(struct mc_store *store, uint64_t epoch, const struct mc_wire_segment_reply *reply,
                           struct mc_endpoint *endpoint);
/* The owner may have come back elsewhere: what was told of it is asked for again, and used while nobody answers. */
void mc_store_endpoint_doubt(struct mc_store *store, uint64_t epoch, uint32_t segment);
/* Forgets all endpoints. Lock held. */
void mc_store_endpoints_clear(struct mc_store *store);

#endif
