/* What has happened, for people who look later: a ring of the last events in memory of one size. The newest makes room
 * by taking the oldest's place; one that only says again what the last said is counted there. From any thread.
 */
#ifndef MC_MASTER_EVENTS_H
#define MC_MASTER_EVENTS_H

#include "store/core/core.h"

#define MC_EVENTS_MAX 2048u    /* in half a megabyte */
#define MC_EVENT_TEXT_MAX 224u /* with its end; a longer one is cut */

/* Those of the core, and what its shell sees. */
enum mc_event_kind {
    MC_EVENT_LEADER = MC_TOPIC_COUNT, /* it leads, or does not any more */
    MC_EVENT_EVICTION,                /* has begun, after a time without */
    MC_EVENT_ROOM,                    /* puts have begun to find none */
    MC_EVENT_SLOW,                    /* nobody was answered for long */
    MC_EVENT_KINDS
};

struct mc_event {
    uint64_t number; /* from 1 on, one more for each */
    uint64_t wall_ms;
    uint32_t count; /* it came so often in a row */
    uint16_t kind;  /* enum mc_core_topic or enum mc_event_kind */
    uint16_t level; /* enum mc_log_level */
    char text[MC_EVENT_TEXT_MAX];
};

struct mc_events;
struct mc_events *mc_events_create(void); /* NULL: out of memory */
void mc_events_destroy(struct mc_events *events);
/* events NULL: nobody wants to know. */
void mc_events_add(struct mc_events *events, unsigned kind, int level, uint64_t wall_ms, const char *text);
/* Those after that number, the oldest first, at most `capacity` of them; *last: the number of the newest there is. */
size_t mc_events_read(struct mc_events *events, uint64_t after, struct mc_event *list, size_t capacity, uint64_t *last);
const char *mc_event_name(unsigned kind);

#endif
