/* What became readable and what is not any more, for routers that keep an index of the keys: a ring of the last events
 * in memory of one size. Each has a number, one more than the one before it under the same epoch; a master after this
 * one has another epoch, and begins anew. Whoever is behind by more than the ring holds, or knows another epoch, takes
 * a snapshot (kv_snapshot.h).
 *
 * Who adds never waits for who reads, but for the copy of a page; readers take turns. */
#ifndef MC_MASTER_KV_EVENTS_H
#define MC_MASTER_KV_EVENTS_H

#include "base/bytes.h"
#include "store/core/core.h"

#define MC_KV_EVENT_KEY_BYTES 96u      /* of keys, for each event of the ring: longer ones leave room for fewer */
#define MC_KV_EVENTS_PAGE 1000u        /* events that are read at a time */
#define MC_KV_EVENTS_PAGE_BYTES 65536u /* and bytes of their keys */
#define MC_KV_EVENTS_WAITERS 32u       /* readers that wait for the next; further ones do not */

struct mc_kv_events;
/* capacity: events. NULL: out of memory. */
struct mc_kv_events *mc_kv_events_create(uint32_t capacity, const char *backend_id);
void mc_kv_events_destroy(struct mc_kv_events *events); /* NULL is allowed */
const char *mc_kv_events_backend(const struct mc_kv_events *events);

/* By who has the core. epoch 0: it leads no more. events NULL: nobody wants to know. */
void mc_kv_events_lead(struct mc_kv_events *events, uint64_t epoch);
void mc_kv_events_add(struct mc_kv_events *events, uint64_t wall_ms, enum mc_core_medium medium, bool is_there,
                      struct mc_span key);

/* From any thread. */
struct mc_kv_mark {
    uint64_t epoch; /* 0: it does not lead */
    uint64_t first; /* number of the oldest event that is kept; of none, last + 1 */
    uint64_t last;  /* of the newest there was */
};
void mc_kv_events_mark(struct mc_kv_events *events, struct mc_kv_mark *mark);

struct mc_kv_event {
    uint64_t number, wall_ms;
    enum mc_core_medium medium;
    bool is_there;
    struct mc_span key; /* in the page */
};
struct mc_kv_page {
    struct mc_kv_mark mark;
    bool is_gap; /* what is asked for is not kept, or was of another epoch */
    size_t count;
    struct mc_kv_event events[MC_KV_EVENTS_PAGE];
    uint8_t bytes[MC_KV_EVENTS_PAGE_BYTES];
};
/* Those after that number, the oldest first, at most `limit`. */
void mc_kv_events_read(struct mc_kv_events *events, uint64_t epoch, uint64_t after, size_t limit,
                       struct mc_kv_page *page);
/* Until there is one after that number, another epoch, or that time (mc_clock_ns) has come. False: too many wait. */
bool mc_kv_events_wait(struct mc_kv_events *events, uint64_t epoch, uint64_t after, uint64_t until_ns);

struct mc_kv_counts {
    uint64_t pages; /* that had events */
    uint64_t events;
    uint64_t missed;   /* events that a reader had not seen when they were gone */
    uint64_t unparsed; /* published events whose key is no number */
};
/* A batch was published that has so many of these. */
void mc_kv_events_published(struct mc_kv_events *events, uint64_t unparsed);
void mc_kv_events_counts(struct mc_kv_events *events, struct mc_kv_counts *counts);

#endif
