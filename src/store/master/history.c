/* The rings of samples. */
#include "store/master/history.h"

#include <pthread.h>
#include <stdlib.h>

const uint32_t mc_turn_bounds_us[MC_TURN_BOUNDS - 1] = {100, 1000, 5000, 20000, 100000, 500000};

struct ring_of_samples {
    uint64_t newest; /* number of it; 0: there is none */
    size_t size;
    struct mc_sample *samples;
};

struct mc_history {
    pthread_mutex_t mutex;
    uint64_t added;
    struct ring_of_samples hour, day;
    struct mc_sample of_hour[MC_HISTORY_HOUR], of_day[MC_HISTORY_DAY];
};

struct mc_history *mc_history_create(void)
{
    struct mc_history *history = calloc(1, sizeof(*history));
    if (history != NULL && pthread_mutex_init(&history->mutex, NULL) != 0) {
        free(history);
        return NULL;
    }
    if (history != NULL) {
        history->hour = (struct ring_of_samples){.size = MC_HISTORY_HOUR, .samples = history->of_hour};
        history->day = (struct ring_of_samples){.size = MC_HISTORY_DAY, .samples = history->of_day};
    }
    return history;
}

void mc_history_destroy(struct mc_history *history)
{
    if (history == NULL)
        return;
    pthread_mutex_destroy(&history->mutex);
    free(history);
}

void mc_sample_take(struct mc_sample *sample, const struct mc_core_statistics *statistics)
{
#define MC_HISTORY_TAKE(name) sample->name = statistics->name;
    MC_HISTORY_SERIES(MC_HISTORY_TAKE, MC_HISTORY_TAKE)
#undef MC_HISTORY_TAKE
}

static void ring_push(struct ring_of_samples *ring, const struct mc_sample *sample)
{
    struct mc_sample *place = &ring->samples[++ring->newest % ring->size];
    *place = *sample;
    place->number = ring->newest;
}

void mc_history_add(struct mc_history *history, const struct mc_sample *sample)
{
    if (history == NULL)
        return;
    pthread_mutex_lock(&history->mutex);
    ring_push(&history->hour, sample);
    if (history->added++ % MC_HISTORY_EVERY == 0)
        ring_push(&history->day, sample);
    pthread_mutex_unlock(&history->mutex);
}

size_t mc_history_read(struct mc_history *history, bool is_day, uint64_t after, struct mc_sample *list, size_t capacity)
{
    size_t count = 0;
    pthread_mutex_lock(&history->mutex);
    const struct ring_of_samples *ring = is_day ? &history->day : &history->hour;
    uint64_t room = capacity < ring->size ? capacity : ring->size;
    uint64_t oldest = ring->newest < room ? 1 : ring->newest - room + 1;
    uint64_t from = after < oldest ? oldest : after < ring->newest ? after + 1 : ring->newest + 1;
    for (uint64_t number = from; number <= ring->newest; number++)
        list[count++] = ring->samples[number % ring->size];
    pthread_mutex_unlock(&history->mutex);
    return count;
}
