/* Segments that a client avoids for a while, because their owners failed or are slow. */
#ifndef MC_STORE_AVOID_H
#define MC_STORE_AVOID_H

#include "store/client/state.h"
#include "store/wire/wire.h"

bool mc_store_is_avoided(struct mc_store *store, uint64_t epoch, uint32_t segment);
/* The same, or slow. */
bool mc_store_is_slow(struct mc_store *store, uint64_t epoch, uint32_t segment);
/* Hides a segment from this client for a second, or has it prefer others for so long. code: of a failure that the
 * master is to be told of, or 0. */
void mc_store_avoid(struct mc_store *store, uint64_t epoch, uint32_t segment, enum mc_avoid how, int code);
/* Fills up to capacity numbers of avoided segments of the latest epoch. */
size_t mc_store_avoided(struct mc_store *store, uint32_t *segments, size_t capacity);
/* A SUSPECT. */
void mc_store_suspect(struct mc_buffer *out, uint32_t segment, int code);
/* The master of that epoch has answered: what it is to be told of failures that it does not know of, one way. False:
 * nothing. */
bool mc_store_tell(struct mc_store *store, uint64_t epoch, struct mc_buffer *out);

#endif
