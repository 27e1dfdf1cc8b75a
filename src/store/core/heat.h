/* Which objects are read so often that another replica is worth its memory, and where it is to lie: on the machine
 * that reads it (--dynamic_replication_mode). The master only says so, to the reader, in its answer to a GET; the copy
 * is one like any other (docs/ordering.md, copies), made by that reader.
 *
 * Reads are counted in a table of fixed size. Of keys that share four entries those that are read more keep them, so
 * an object may be found hot late, or, among many that are read as often, not at all; never without so many reads in
 * the window. */
#ifndef MC_CORE_HEAT_H
#define MC_CORE_HEAT_H

#include <stdbool.h>
#include <stdint.h>

struct mc_connection;
struct mc_core;
struct mc_core_config;
struct mc_object;

#define MC_HEAT_ENTRIES 8192u         /* 256 KiB, where it is wanted */
#define MC_HEAT_QUIET_MS 30000u       /* for so long after one was asked for no other copy of that object is */
#define MC_HEAT_NOWHERE_MS 1000u      /* the same, when there was no place for it */
#define MC_HEAT_BYTES_MAX (64u << 20) /* larger ones are not copied: the reader has such a copy in memory meanwhile */
#define MC_HEAT_WAYS 4u               /* entries that a key may have */
#define MC_HEAT_FREE_PART 0.15        /* of a segment, that stays free when a copy has come there */

struct mc_heat_entry {
    uint64_t hash; /* of the key */
    uint64_t since_ms, quiet_until_ms;
    uint32_t reads;           /* since then */
    bool is_hot;              /* it was counted as hot in this window */
    uint8_t replicas, wanted; /* wanted: a copy was asked for when it had so many; 0: none is on its way */
};

struct mc_heat {
    struct mc_heat_entry *entries; /* NULL: off */
    uint32_t threshold;            /* reads in a window */
};

/* False: memory is out. */
bool mc_heat_init(struct mc_heat *heat, const struct mc_core_config *config);
void mc_heat_destroy(struct mc_heat *heat);
/* The object, which can be read, is told to that connection to be read. The number of the segment to which it is to be
 * copied; 0: to none. */
uint32_t mc_heat_read(struct mc_core *core, const struct mc_connection *connection, const struct mc_object *object);

#endif
