/* Where objects were when the master last told us: for gets while no master can be reached. A bounded cache by the hash
 * of the key, the last one told wins its place. Only a hint: the slot that it names says whether the object is still
 * there, and the checksum whether the bytes are right.
 *
 * Readers and writers are any threads at once; each entry has a sequence number that is odd while somebody writes, and
 * is made of atomic words, so a reader takes a whole entry or none. */
#ifndef MC_STORE_LOCATIONS_H
#define MC_STORE_LOCATIONS_H

#include "base/checksum.h"
#include "store/path/transport.h"

#include <stdatomic.h>

#define MC_LOCATIONS_ENTRIES 16384u /* 1.7 MiB, allocated when the first object is found */
#define MC_LOCATIONS_REPLICAS 2u

struct mc_locations_table;
struct mc_locations { /* zeroed = empty */
    _Atomic(struct mc_locations_table *) table;
    _Atomic bool has_tails; /* some entry has had one: they are worth to be expected */
};

struct mc_known { /* what is remembered of one object */
    uint64_t epoch, length;
    uint32_t count;
    struct mc_place places[MC_LOCATIONS_REPLICAS];
};

/* Remembers; of more than MC_LOCATIONS_REPLICAS places those of the lowest segments. True when it was not known. */
bool mc_locations_put(struct mc_locations *places, struct mc_hash key, uint64_t epoch, uint64_t length,
                      const struct mc_place *found, size_t count);
/* mc_locations_put of that key comes soon: brings what it looks at into the cache meanwhile. */
void mc_locations_expect(struct mc_locations *places, struct mc_hash key);
/* True when something is known of that key under that epoch. */
bool mc_locations_get(struct mc_locations *places, struct mc_hash key, uint64_t epoch, struct mc_known *known);
/* Forgets the key, whatever is known of it. */
void mc_locations_drop(struct mc_locations *places, struct mc_hash key);
/* Nobody uses it any more. */
void mc_locations_free(struct mc_locations *places);

#endif
