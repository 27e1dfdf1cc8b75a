/* Is a peer too slow, in the middle of what it says or takes, to keep a place that another needs? What moves pays for
 * time, a second for so many bytes, up to a grace in advance; and so does rest, as one that rests can go anyway. One
 * that has nothing left is too slow. A link that is faster by and by may stand still for as long as the grace.
 *
 * Counted over all that is said and not for each frame: else a small one that is ended just in time would begin anew.
 */
#ifndef MC_BASE_TEMPO_H
#define MC_BASE_TEMPO_H

#include <stdbool.h>
#include <stdint.h>

#define MC_TEMPO_BYTES 8192u /* a second */
#define MC_TEMPO_REST 10u    /* rest pays for so many times as long */

struct mc_tempo {
    uint64_t paid_ms;
};

static inline void mc_tempo_pay(struct mc_tempo *tempo, uint64_t for_ms, uint64_t now_ms, uint64_t grace_ms)
{
    uint64_t from_ms = tempo->paid_ms > now_ms ? tempo->paid_ms : now_ms;
    tempo->paid_ms = for_ms < grace_ms && from_ms + for_ms < now_ms + grace_ms ? from_ms + for_ms : now_ms + grace_ms;
}

static inline void mc_tempo_begin(struct mc_tempo *tempo, uint64_t now_ms, uint64_t grace_ms)
{
    mc_tempo_pay(tempo, grace_ms, now_ms, grace_ms);
}

static inline void mc_tempo_move(struct mc_tempo *tempo, uint64_t bytes, uint64_t now_ms, uint64_t grace_ms)
{
    mc_tempo_pay(tempo, bytes * 1000 / MC_TEMPO_BYTES, now_ms, grace_ms);
}

static inline void mc_tempo_rest(struct mc_tempo *tempo, uint64_t rested_ms, uint64_t now_ms, uint64_t grace_ms)
{
    mc_tempo_pay(tempo, rested_ms * MC_TEMPO_REST, now_ms, grace_ms);
}

static inline bool mc_tempo_is_slow(const struct mc_tempo *tempo, uint64_t now_ms)
{
    return now_ms > tempo->paid_ms;
}

#endif
