/* How long a peer takes to answer, as those who asked it have seen: a mean and a mean deviation, as TCP keeps them for
 * its round trips. From it comes how long to wait before the same is asked for once more over another connection, and
 * how much may be asked twice at all: a peer that is slow for all must not be given twice the work.
 *
 * Many threads may use one without a lock: of two samples that are taken at a time one is lost. What is paid never is:
 * who does not run for a while between reading the account and writing it must not take back what others have paid.
 * Zeroed = nothing is known. */
#ifndef MC_BASE_PACE_H
#define MC_BASE_PACE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define MC_PACE_MORE_NS 4000000ull     /* beyond what an answer takes at most: a thread that waited for a processor */
#define MC_PACE_UNKNOWN_NS 50000000ull /* to wait while nothing is known */
#define MC_PACE_LONGEST_US 100000u     /* more is a lost packet, not a distance */
#define MC_PACE_CREDIT_MAX 128         /* a question that is asked again costs MC_PACE_COST, an answer brings 1 */
#define MC_PACE_COST 4

struct mc_pace {
    _Atomic uint64_t mean_deviation; /* microseconds: mean in the high half; 0 = nothing is known */
    _Atomic int32_t spent;
};

/* longest_us: what took longer counts as that. */
static inline void mc_pace_sample_up_to(struct mc_pace *pace, uint64_t took_ns, uint32_t longest_us)
{
    uint64_t before = atomic_load_explicit(&pace->mean_deviation, memory_order_relaxed);
    int64_t mean = (int64_t)(before >> 32), deviation = (int64_t)(before & UINT32_MAX);
    int64_t took = took_ns / 1000 > longest_us ? (int64_t)longest_us : (int64_t)(took_ns / 1000) + 1;
    int64_t error = took > mean ? took - mean : mean - took;
    int32_t spent = atomic_load_explicit(&pace->spent, memory_order_relaxed);
    deviation = before == 0 ? took / 2 : deviation + (error - deviation) / 4;
    mean = before == 0 ? took : mean + (took - mean) / 8;
    atomic_store_explicit(&pace->mean_deviation, (uint64_t)(mean > 0 ? mean : 1) << 32 | (uint64_t)deviation,
                          memory_order_relaxed);
    if (spent > 0)
        (void)atomic_compare_exchange_strong_explicit(&pace->spent, &spent, spent - 1, memory_order_relaxed,
                                                      memory_order_relaxed);
}

static inline void mc_pace_sample(struct mc_pace *pace, uint64_t took_ns)
{
    mc_pace_sample_up_to(pace, took_ns, MC_PACE_LONGEST_US);
}

/* So long after a question its answer is late. */
static inline uint64_t mc_pace_late_ns(const struct mc_pace *pace)
{
    uint64_t known = atomic_load_explicit(&pace->mean_deviation, memory_order_relaxed);
    return known == 0 ? MC_PACE_UNKNOWN_NS : ((known >> 32) + 4 * (known & UINT32_MAX)) * 1000 + MC_PACE_MORE_NS;
}

/* May one more question be asked twice? If so it is paid for. */
static inline bool mc_pace_pay(struct mc_pace *pace)
{
    int32_t spent = atomic_load_explicit(&pace->spent, memory_order_relaxed);
    while (spent + MC_PACE_COST <= MC_PACE_CREDIT_MAX) {
        if (atomic_compare_exchange_weak_explicit(&pace->spent, &spent, spent + MC_PACE_COST, memory_order_relaxed,
                                                  memory_order_relaxed))
            return true;
    }
    return false;
}

#endif
