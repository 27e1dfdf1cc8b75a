/* Dating what a master has sent. */
#include "store/owner/master_time.h"

#include "store/wire/wire.h"

#define DRIFT 1000u /* clocks differ by less than one part of so many */
/* A master takes its time once a turn, so what it says may be a little younger than the age it was given. */
#define TURN_MS 60000
#define ROUND_MS (65536 * (int64_t)MC_FRAME_TIME_MS)

static int64_t drift_ms(const struct mc_master_time *time, uint64_t now_ms)
{
    uint64_t learned_ms = atomic_load_explicit(&time->learned_ms, memory_order_relaxed);
    return now_ms > learned_ms ? (int64_t)((now_ms - learned_ms) / DRIFT) + 1 : 1;
}

void mc_master_time_learn(struct mc_master_time *time, uint64_t epoch, uint64_t age_ms, uint64_t asked_ms,
                          uint64_t now_ms)
{
    int64_t least_ms = (int64_t)asked_ms - (int64_t)age_ms, most_ms = (int64_t)now_ms - (int64_t)age_ms;
    if (age_ms == 0)
        return;
    if (atomic_load(&time->epoch) == epoch) {
        int64_t drift = drift_ms(time, now_ms), least = atomic_load(&time->least_ms) - drift,
                most = atomic_load(&time->most_ms) + drift;
        least = least > least_ms ? least : least_ms;
        most = most < most_ms ? most : most_ms;
        if (least <= most) { /* else its clock has stood still, with its machine: what was known is void */
            least_ms = least;
            most_ms = most;
        }
    }
    atomic_store(&time->epoch, 0); /* nobody dates by what is half of another */
    atomic_store(&time->least_ms, least_ms);
    atomic_store(&time->most_ms, most_ms);
    atomic_store(&time->learned_ms, now_ms);
    atomic_store(&time->epoch, epoch);
}

uint64_t mc_master_time_answered(const struct mc_master_time *time, uint64_t epoch, uint64_t age_ms, uint64_t asked_ms)
{
    if (age_ms == 0 || epoch == 0 || atomic_load_explicit(&time->epoch, memory_order_acquire) != epoch)
        return asked_ms;
    int64_t least_ms =
        atomic_load_explicit(&time->least_ms, memory_order_relaxed) + (int64_t)age_ms - 1; /* rounded up */
    return least_ms > (int64_t)asked_ms ? (uint64_t)least_ms : asked_ms;
}

uint64_t mc_master_time_of(const struct mc_master_time *time, uint64_t epoch, uint16_t frame_time, uint64_t now_ms)
{
    if (epoch == 0 || atomic_load_explicit(&time->epoch, memory_order_acquire) != epoch)
        return now_ms;
    int64_t drift = drift_ms(time, now_ms), now = (int64_t)now_ms;
    int64_t least_ms = atomic_load_explicit(&time->least_ms, memory_order_relaxed) - drift;
    int64_t most_ms = atomic_load_explicit(&time->most_ms, memory_order_relaxed) + drift;
    /* The last moment of that time at which the master can be by now. */
    int64_t limit_ms = now - least_ms + TURN_MS, age_ms = (frame_time + 1) * (int64_t)MC_FRAME_TIME_MS;
    if (limit_ms < age_ms)
        return now_ms;
    age_ms += (limit_ms - age_ms) / ROUND_MS * ROUND_MS;
    int64_t sent_ms = most_ms + age_ms;
    return sent_ms < 0 ? 0 : sent_ms < now ? (uint64_t)sent_ms : now_ms;
}
