/* What the path between two processes of one machine shares.
 *
 * The owner's table (a memfd that peers can only read): which regions there are. An initiator's intents (a memfd of its
 * own, which it hands to the owner): into or out of which regions it is copying now.
 *
 * Invariant (why unregister may trust it): an initiator notes its intent and then looks at the region's generation; the
 * owner clears the generation and then looks at the intents; all four are sequentially consistent. So either the
 * initiator sees the cleared generation and does not copy, or the owner sees the intent and waits. An intent ends with
 * its process: a process's sockets close after its last system call, so an end of file on the connection proves that it
 * copies no more. */
#ifndef MC_TRANSFER_HOST_TABLE_H
#define MC_TRANSFER_HOST_TABLE_H

#include "transfer/state/region.h"

#include <stdatomic.h>

#define MC_HOST_MAGIC 0x6d63686f73743031ull /* changes with the layout */
#define MC_HOST_INTENTS 64u                 /* copies of one initiator at the same time */
#define MC_HOST_INTENT_REGIONS 7u           /* regions that one copy may touch */

struct mc_host_entry { /* generation 0: dead; the others are written while it is */
    _Atomic uint64_t generation, address, length;
    _Atomic uint64_t memory; /* the owner's descriptor that peers may map, + 1; 0: private memory */
};
struct mc_host_table {
    uint64_t magic;
    _Atomic uint64_t version; /* counts changes */
    _Atomic uint32_t used;    /* entries that were ever in use */
    uint32_t reserved[11];
    struct mc_host_entry entries[MC_REGION_SLOTS];
};
struct mc_host_intent {                                 /* one line of the cache */
    _Atomic uint64_t slots[MC_HOST_INTENT_REGIONS + 1]; /* slot + 1; 0: none */
};
struct mc_host_intents {
    struct mc_host_intent intents[MC_HOST_INTENTS];
};

/* Owner. */
void mc_host_entry_set(struct mc_host_table *table, const struct mc_region *region);
void mc_host_entry_clear(struct mc_host_table *table, uint32_t slot);
bool mc_host_is_intended(const struct mc_host_intents *intents, uint32_t slot);

/* Initiator: what it knows of the table, ordered by address. */
struct mc_host_known {
    uint64_t address, length, generation, memory;
    uint32_t slot;
};
struct mc_host_view { /* zeroed = empty */
    struct mc_host_known *known;
    size_t count, capacity;
    uint64_t version;
};
/* Takes over the table as it is. 0 or MC_TRANSFER_ERR_MEMORY. */
int mc_host_view_refresh(struct mc_host_view *view, const struct mc_host_table *table);
/* NULL: no region holds the range. */
const struct mc_host_known *mc_host_view_find(const struct mc_host_view *view, uint64_t address, uint64_t length);

/* Announces a copy and checks that all regions are still there. True: copy now, then mc_host_retreat in every case. */
bool mc_host_announce(struct mc_host_intent *intent, const struct mc_host_table *table,
                      const struct mc_host_known *const *known, size_t count);
void mc_host_retreat(struct mc_host_intent *intent);

#endif
