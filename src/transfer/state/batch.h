/* Batches that run in the background, by id. An id is (generation << 16 | place) + 1: positive, never given twice in a
 * process's life, so a stale one is recognised. Pure: the caller locks. */
#ifndef MC_TRANSFER_BATCH_H
#define MC_TRANSFER_BATCH_H

#include "mooncake_engine.h"

#define MC_SILENT_NS 100000000ull

enum mc_batch_state { MC_BATCH_FREE, MC_BATCH_QUEUED, MC_BATCH_RUNNING, MC_BATCH_ENDED };

struct mc_peer;
struct mc_parked;

/* For a batch that gives its thread back while nothing of it moves, and goes on later, on the same connections. */
struct mc_parking {
    bool (*shall_park)(void *context); /* nothing has moved for MC_SILENT_NS */
    bool (*is_short)(void *context);   /* so that no step takes long which can be done again */
    void *context;
    struct mc_parked *parked; /* NULL: nothing to go on with */
    uint64_t start_ns;
    bool is_checked; /* by checksums */
};

struct mc_batch {
    enum mc_batch_state state;
    int64_t id;
    int result;
    uint32_t waiters;
    struct mc_peer *peer;
    enum mc_transfer_opcode opcode;
    struct mc_transfer_item *items; /* owned; the texts of the note too */
    size_t count;
    char *note_name, *note_message;
    uint64_t deadline_ns; /* counted from when it was submitted, or, if its peer is not to blame for the wait, began */
    uint64_t allowed_ns;  /* how long it may take */
    uint64_t taken_ns;    /* by the thread that runs it */
    struct mc_parking parking;
    struct mc_batch *next; /* in its peer's queue */
};

struct mc_batch_table { /* zeroed = empty */
    struct mc_batch **places;
    uint32_t used, capacity;
    uint32_t *free_places;
    uint32_t free_count;
    uint64_t generation;
};

/* A new batch, QUEUED; NULL: out of memory, or MC_TRANSFER_BATCHES_MAX are there. */
struct mc_batch *mc_batch_add(struct mc_batch_table *table, int64_t *id);
/* NULL: no such id (any more). */
struct mc_batch *mc_batch_find(const struct mc_batch_table *table, int64_t id);
/* Ends the id; frees the items and the note. */
void mc_batch_remove(struct mc_batch_table *table, int64_t id);
void mc_batch_table_free(struct mc_batch_table *table);

#endif
