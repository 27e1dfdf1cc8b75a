/* What the server's thread remembers of itself: a sample every ten seconds, and what a sample says that the one before
 * did not, as an event. Zeroed = ready, and nothing is remembered. */
#ifndef MC_MASTER_SAMPLER_H
#define MC_MASTER_SAMPLER_H

#include "store/master/events.h"
#include "store/master/history.h"

struct mc_sampler {
    struct mc_history *history; /* NULL: there is none */
    struct mc_events *events;   /* NULL: likewise */
    struct mc_sample last;
    bool is_evicting, has_no_room; /* as of the last sample */
    uint64_t longest_us;           /* turn, since then */
    uint64_t turns[MC_TURN_BOUNDS];
};

void mc_sampler_turn(struct mc_sampler *sampler, uint64_t took_us);
void mc_sampler_take(struct mc_sampler *sampler, const struct mc_core_statistics *statistics, uint64_t epoch);
/* A leadership has begun or ended. */
void mc_sampler_leads(struct mc_sampler *sampler, uint64_t epoch, bool leads);

#endif
