/* The last hour and the last day in numbers, in memory of one size: a ring of samples ten seconds apart, and one of
 * samples two minutes apart. From any thread; one of them adds.
 *
 * Invariant: the samples of a ring that are in use are the last of it, without holes: a time without a sample (a master
 * that stood still, or did not lead) shows in their times.
 */
#ifndef MC_MASTER_HISTORY_H
#define MC_MASTER_HISTORY_H

#include "store/core/core.h"

#define MC_HISTORY_HOUR 360u /* samples of the hour, as often as they are added: every ten seconds */
#define MC_HISTORY_DAY 720u  /* of the day */
#define MC_HISTORY_EVERY 12u /* of those of the hour one is also one of the day */

#define MC_TURN_BOUNDS 7u /* of the lengths of turns; the last has none */
extern const uint32_t mc_turn_bounds_us[MC_TURN_BOUNDS - 1];

/* GAUGE: as it was then. COUNTER: since the start; of two samples the difference counts. */
/* clang-format off */
#define MC_HISTORY_SERIES(GAUGE, COUNTER)                                                                              \
    GAUGE(capacity) GAUGE(used) GAUGE(objects) GAUGE(members) GAUGE(segments) GAUGE(connections) GAUGE(clearing_bytes) \
    GAUGE(quarantine_bytes) GAUGE(disk_used) GAUGE(disk_capacity)                                                      \
    COUNTER(lookups) COUNTER(lookup_hits) COUNTER(get_items) COUNTER(get_hit_bytes) COUNTER(put_end_items) COUNTER(put_bytes)                 \
    COUNTER(remove_items) COUNTER(evicted_objects) COUNTER(evicted_bytes) COUNTER(put_start_failures)                  \
    COUNTER(allocation_failures) COUNTER(offload_done) COUNTER(promotion_done) COUNTER(members_lost)
/* clang-format on */

struct mc_sample {
    uint64_t number; /* of its ring, from 1 on */
    uint64_t wall_ms;
    uint64_t epoch; /* of the master's leadership: counters begin anew with each */
#define MC_HISTORY_MEMBER(name) uint64_t name;
    MC_HISTORY_SERIES(MC_HISTORY_MEMBER, MC_HISTORY_MEMBER)
#undef MC_HISTORY_MEMBER
    uint64_t longest_turn_us;
    uint64_t turns[MC_TURN_BOUNDS]; /* since the start, by length */
};

struct mc_history;
struct mc_history *mc_history_create(void); /* NULL: out of memory */
void mc_history_destroy(struct mc_history *history);
/* history NULL: nobody wants to know. The sample's number is given here. */
void mc_history_add(struct mc_history *history, const struct mc_sample *sample);
/* Fills in what the core counts. */
void mc_sample_take(struct mc_sample *sample, const struct mc_core_statistics *statistics);
/* The samples of one ring after that number, the oldest first; at most `capacity`, the newest of them. */
size_t mc_history_read(struct mc_history *history, bool is_day, uint64_t after, struct mc_sample *list,
                       size_t capacity);

#endif
