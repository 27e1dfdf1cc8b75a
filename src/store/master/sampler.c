/* Samples of the server's thread, and the events that they show. */
#include "store/master/sampler.h"

#include "base/size.h"
#include "env/clock.h"
#include "env/log.h"
#include "store/master/metrics.h"

#include <stdio.h>
#include <string.h>

#define SLOW_US 200000u /* a turn that is told of; docs/operations.md alerts at the same */

void mc_sampler_turn(struct mc_sampler *sampler, uint64_t took_us)
{
    unsigned at = 0;
    while (at < MC_TURN_BOUNDS - 1 && took_us > mc_turn_bounds_us[at])
        at++;
    sampler->turns[at]++;
    if (took_us > sampler->longest_us)
        sampler->longest_us = took_us;
}

static void note(struct mc_sampler *sampler, enum mc_event_kind kind, int level, const char *text)
{
    if (sampler->events != NULL)
        mc_events_add(sampler->events, kind, level, mc_clock_wall_ms(), text);
}

static void note_evictions(struct mc_sampler *sampler, const struct mc_sample *now)
{
    char text[160], size[32];
    bool is_evicting = now->evicted_objects > sampler->last.evicted_objects;
    if (is_evicting && !sampler->is_evicting) {
        mc_size_text(size, sizeof(size), now->evicted_bytes - sampler->last.evicted_bytes);
        snprintf(text, sizeof(text), "evictions have begun: %llu objects, %s; %.1f %% of the memory is used",
                 (unsigned long long)(now->evicted_objects - sampler->last.evicted_objects), size,
                 now->capacity == 0 ? 0 : 100 * (double)now->used / (double)now->capacity);
        note(sampler, MC_EVENT_EVICTION, MC_LOG_INFO, text);
    }
    sampler->is_evicting = is_evicting;
}

static void note_room(struct mc_sampler *sampler, const struct mc_sample *now)
{
    char text[160];
    uint64_t failed = now->allocation_failures - sampler->last.allocation_failures;
    if (failed > 0 && !sampler->has_no_room) {
        snprintf(text, sizeof(text), "puts find no room: %llu; %.1f %% of the memory is used",
                 (unsigned long long)failed, now->capacity == 0 ? 0 : 100 * (double)now->used / (double)now->capacity);
        note(sampler, MC_EVENT_ROOM, MC_LOG_WARNING, text);
    }
    sampler->has_no_room = failed > 0;
}

void mc_sampler_take(struct mc_sampler *sampler, const struct mc_core_statistics *statistics, uint64_t epoch)
{
    char text[160];
    if (sampler->history == NULL)
        return;
    struct mc_sample now = {.wall_ms = mc_clock_wall_ms(), .epoch = epoch, .longest_turn_us = sampler->longest_us};
    mc_sample_take(&now, statistics);
    memcpy(now.turns, sampler->turns, sizeof(now.turns));
    if (sampler->last.epoch != epoch)
        sampler->last = (struct mc_sample){.epoch = epoch}; /* the core counts from 0 */
    note_evictions(sampler, &now);
    note_room(sampler, &now);
    if (now.longest_turn_us >= SLOW_US) {
        snprintf(text, sizeof(text), "nobody was answered for %llu ms", (unsigned long long)now.longest_turn_us / 1000);
        note(sampler, MC_EVENT_SLOW, MC_LOG_WARNING, text);
    }
    sampler->longest_us = 0;
    sampler->last = now;
    mc_history_add(sampler->history, &now);
}

void mc_sampler_leads(struct mc_sampler *sampler, uint64_t epoch, bool leads)
{
    char text[96];
    snprintf(text, sizeof(text), leads ? "this master leads, epoch %llu" : "this master leads no more, epoch %llu",
             (unsigned long long)epoch);
    note(sampler, MC_EVENT_LEADER, leads ? MC_LOG_INFO : MC_LOG_WARNING, text);
}
