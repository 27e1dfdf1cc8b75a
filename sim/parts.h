/* Of values in pieces (--stripes): what their parts are, and that no pieces stay that nobody will read. */
#ifndef SIM_PARTS_H
#define SIM_PARTS_H

#include "store/wire/wire.h"

#include <stdbool.h>
#include <stdint.h>

struct mc_core;
struct mc_object;
struct mc_hash;

void oracle_parts_reset(void);
/* An owner took a writer's commit of what is no whole value. */
void oracle_part_took(const struct mc_wire_commit_item *commit);
/* Has an owner taken it so? */
bool oracle_is_part(const struct mc_hash *hash, uint64_t length, uint32_t crc);
/* The put whose head it is, if it is one of that group; UINT32_MAX: it is none, or not known. */
uint32_t oracle_head_put(const struct mc_hash *hash, uint64_t group);
/* The master drops it, not for room; is_removed: for who has asked for that. */
void oracle_part_goes(const struct mc_core *core, const struct mc_object *object, bool is_removed);
/* The master has had a tick. */
void oracle_parts_rest(const struct mc_core *core);

#endif
