/* The ring of what became readable and what is not any more. */
#include "store/master/kv_events.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WAKE_EVERY_NS 5000000u  /* who adds wakes readers no more often: that costs more than an event */
#define LOOK_EVERY_NS 50000000u /* so readers that it did not wake look by themselves */

struct entry {
    uint64_t at; /* of its key's first byte, counted from the ring's beginning */
    uint64_t wall_ms : 48, length : 14, medium : 1, is_there : 1;
};
_Static_assert(sizeof(struct entry) == 16, "what an event costs beside its key");

struct mc_kv_events {
    pthread_mutex_t turn; /* of readers; taken before the other */
    pthread_mutex_t lock; /* everything below */
    pthread_cond_t changed;
    struct mc_kv_mark mark;
    uint64_t end; /* of the bytes; those before end - size are overwritten */
    uint64_t woken_ns;
    unsigned waiters;
    struct mc_kv_counts counts;
    uint32_t capacity; /* constant, as what follows */
    uint64_t size;
    struct entry *ring; /* event N at N % capacity */
    uint8_t *bytes;
    char backend_id[256];
};

struct mc_kv_events *mc_kv_events_create(uint32_t capacity, const char *backend_id)
{
    struct mc_kv_events *events = calloc(1, sizeof(*events));
    if (events == NULL)
        return NULL;
    events->capacity = capacity;
    events->size = (uint64_t)capacity * MC_KV_EVENT_KEY_BYTES;
    if (events->size < MC_KV_EVENTS_PAGE_BYTES)
        events->size = MC_KV_EVENTS_PAGE_BYTES; /* any key fits */
    events->mark.first = 1;
    events->ring = calloc(capacity, sizeof(events->ring[0]));
    events->bytes = malloc(events->size);
    snprintf(events->backend_id, sizeof(events->backend_id), "%s", backend_id);
    pthread_mutex_init(&events->turn, NULL);
    mc_monitor_init(&events->lock, &events->changed);
    if (events->ring != NULL && events->bytes != NULL)
        return events;
    mc_kv_events_destroy(events);
    return NULL;
}

void mc_kv_events_destroy(struct mc_kv_events *events)
{
    if (events == NULL)
        return;
    mc_monitor_destroy(&events->lock, &events->changed);
    pthread_mutex_destroy(&events->turn);
    free(events->ring);
    free(events->bytes);
    free(events);
}

const char *mc_kv_events_backend(const struct mc_kv_events *events)
{
    return events->backend_id;
}

/* ---- by who has the core ---- */

void mc_kv_events_lead(struct mc_kv_events *events, uint64_t epoch)
{
    if (events == NULL)
        return;
    pthread_mutex_lock(&events->lock);
    events->mark = (struct mc_kv_mark){.epoch = epoch, .first = 1, .last = 0};
    events->end = 0;
    pthread_cond_broadcast(&events->changed);
    pthread_mutex_unlock(&events->lock);
}

/* From byte `at` of all on, which the ring's end may part. */
static void bytes_write(struct mc_kv_events *events, uint64_t at, struct mc_span key)
{
    uint64_t from = at % events->size, room = events->size - from;
    size_t first = key.length < room ? key.length : (size_t)room;
    memcpy(events->bytes + from, key.data, first);
    memcpy(events->bytes, (const uint8_t *)key.data + first, key.length - first);
}

static void bytes_read(const struct mc_kv_events *events, uint64_t at, uint8_t *to, size_t length)
{
    uint64_t from = at % events->size, room = events->size - from;
    size_t first = length < room ? length : (size_t)room;
    memcpy(to, events->bytes + from, first);
    memcpy(to + first, events->bytes, length - first);
}

static struct entry *entry_of(const struct mc_kv_events *events, uint64_t number)
{
    return &events->ring[number % events->capacity];
}

/* With the lock. Events whose place or bytes are needed are not kept any more. */
static void make_room(struct mc_kv_events *events, size_t length)
{
    struct mc_kv_mark *mark = &events->mark;
    while (mark->first <= mark->last && (mark->last - mark->first + 1 >= events->capacity ||
                                         events->end + length - entry_of(events, mark->first)->at > events->size))
        mark->first++;
}

void mc_kv_events_add(struct mc_kv_events *events, uint64_t wall_ms, enum mc_core_medium medium, bool is_there,
                      struct mc_span key)
{
    mc_assert(key.length <= MC_KEY_LENGTH_MAX);
    pthread_mutex_lock(&events->lock);
    make_room(events, key.length);
    *entry_of(events, ++events->mark.last) = (struct entry){.at = events->end,
                                                            .wall_ms = wall_ms & ((1ull << 48) - 1),
                                                            .length = key.length & 0x3fff,
                                                            .medium = medium == MC_MEDIUM_DISK,
                                                            .is_there = is_there};
    bytes_write(events, events->end, key);
    events->end += key.length;
    events->counts.events++;
    if (events->waiters > 0) {
        uint64_t now_ns = mc_clock_ns();
        if (now_ns - events->woken_ns >= WAKE_EVERY_NS) {
            events->woken_ns = now_ns;
            pthread_cond_broadcast(&events->changed);
        }
    }
    pthread_mutex_unlock(&events->lock);
}

/* ---- from any thread ---- */

void mc_kv_events_mark(struct mc_kv_events *events, struct mc_kv_mark *mark)
{
    pthread_mutex_lock(&events->lock);
    *mark = events->mark;
    pthread_mutex_unlock(&events->lock);
}

void mc_kv_events_counts(struct mc_kv_events *events, struct mc_kv_counts *counts)
{
    pthread_mutex_lock(&events->lock);
    *counts = events->counts;
    pthread_mutex_unlock(&events->lock);
}

void mc_kv_events_published(struct mc_kv_events *events, uint64_t unparsed)
{
    pthread_mutex_lock(&events->lock);
    events->counts.unparsed += unparsed;
    pthread_mutex_unlock(&events->lock);
}

/* With the lock. */
static void page_fill(const struct mc_kv_events *events, uint64_t after, size_t limit, struct mc_kv_page *page)
{
    size_t used = 0;
    for (uint64_t number = after + 1; number <= events->mark.last && page->count < limit; number++) {
        const struct entry *entry = entry_of(events, number);
        size_t length = entry->length;
        if (used + length > sizeof(page->bytes))
            break;
        bytes_read(events, entry->at, page->bytes + used, length);
        page->events[page->count++] = (struct mc_kv_event){.number = number,
                                                           .wall_ms = entry->wall_ms,
                                                           .medium = entry->medium ? MC_MEDIUM_DISK : MC_MEDIUM_MEMORY,
                                                           .is_there = entry->is_there,
                                                           .key = mc_span(page->bytes + used, length)};
        used += length;
    }
}

void mc_kv_events_read(struct mc_kv_events *events, uint64_t epoch, uint64_t after, size_t limit,
                       struct mc_kv_page *page)
{
    page->count = 0;
    pthread_mutex_lock(&events->turn);
    pthread_mutex_lock(&events->lock);
    const struct mc_kv_mark *mark = &events->mark;
    page->mark = *mark;
    page->is_gap = epoch != mark->epoch || after + 1 < mark->first || after > mark->last;
    if (page->is_gap && epoch == mark->epoch && after < mark->last)
        events->counts.missed += mark->first - (after + 1);
    if (!page->is_gap)
        page_fill(events, after, limit < MC_KV_EVENTS_PAGE ? limit : MC_KV_EVENTS_PAGE, page);
    events->counts.pages += page->count > 0;
    pthread_mutex_unlock(&events->lock);
    pthread_mutex_unlock(&events->turn);
}

bool mc_kv_events_wait(struct mc_kv_events *events, uint64_t epoch, uint64_t after, uint64_t until_ns)
{
    pthread_mutex_lock(&events->lock);
    bool may_wait = events->waiters < MC_KV_EVENTS_WAITERS;
    events->waiters += may_wait;
    uint64_t now_ns = mc_clock_ns();
    while (may_wait && events->mark.epoch == epoch && events->mark.last == after && now_ns < until_ns) {
        uint64_t look_ns = now_ns + LOOK_EVERY_NS;
        (void)mc_monitor_wait(&events->lock, &events->changed, look_ns < until_ns ? look_ns : until_ns);
        now_ns = mc_clock_ns();
    }
    events->waiters -= may_wait;
    pthread_mutex_unlock(&events->lock);
    return may_wait;
}
