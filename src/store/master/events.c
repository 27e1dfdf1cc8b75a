/* The ring of events. */
#include "store/master/events.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct mc_events {
    pthread_mutex_t mutex;
    uint64_t newest; /* number of it; 0: there is none */
    uint64_t added;  /* places taken so far; one that came again has its place */
    struct mc_event ring[MC_EVENTS_MAX];
};

static const char *const event_names[] = {
#define MC_CORE_TOPIC_NAME(name, text) [MC_TOPIC_##name] = (text),
    MC_CORE_TOPICS(MC_CORE_TOPIC_NAME)
#undef MC_CORE_TOPIC_NAME
        [MC_EVENT_LEADER] = "leader",
    [MC_EVENT_EVICTION] = "eviction",
    [MC_EVENT_ROOM] = "room",
    [MC_EVENT_SLOW] = "slow",
};

const char *mc_event_name(unsigned kind)
{
    return kind < MC_EVENT_KINDS ? event_names[kind] : "?";
}

struct mc_events *mc_events_create(void)
{
    struct mc_events *events = calloc(1, sizeof(*events));
    if (events != NULL && pthread_mutex_init(&events->mutex, NULL) != 0) {
        free(events);
        return NULL;
    }
    return events;
}

void mc_events_destroy(struct mc_events *events)
{
    if (events == NULL)
        return;
    pthread_mutex_destroy(&events->mutex);
    free(events);
}

void mc_events_add(struct mc_events *events, unsigned kind, int level, uint64_t wall_ms, const char *text)
{
    if (events == NULL)
        return;
    pthread_mutex_lock(&events->mutex);
    struct mc_event *event = &events->ring[(events->added + MC_EVENTS_MAX - 1) % MC_EVENTS_MAX];
    bool is_again =
        events->added != 0 && event->kind == kind && strncmp(event->text, text, sizeof(event->text) - 1) == 0;
    uint32_t count = is_again ? event->count + 1 : 1;
    if (!is_again)
        event = &events->ring[events->added++ % MC_EVENTS_MAX];
    /* What came again has another number, so that who has seen it sees the count. */
    *event = (struct mc_event){.number = ++events->newest,
                               .wall_ms = wall_ms,
                               .count = count,
                               .kind = (uint16_t)kind,
                               .level = (uint16_t)level};
    snprintf(event->text, sizeof(event->text), "%s", text);
    pthread_mutex_unlock(&events->mutex);
}

size_t mc_events_read(struct mc_events *events, uint64_t after, struct mc_event *list, size_t capacity, uint64_t *last)
{
    size_t count = 0;
    pthread_mutex_lock(&events->mutex);
    uint64_t at = events->added < MC_EVENTS_MAX ? 0 : events->added - MC_EVENTS_MAX;
    for (; at < events->added && count < capacity; at++)
        if (events->ring[at % MC_EVENTS_MAX].number > after)
            list[count++] = events->ring[at % MC_EVENTS_MAX];
    *last = events->newest;
    pthread_mutex_unlock(&events->mutex);
    return count;
}
