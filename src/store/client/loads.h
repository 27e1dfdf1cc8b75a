/* How long values of each size took to come from a disk: what a reader waits before it asks for the first time whether
 * one is there, and then how often. A quarter of what is known goes when a value was there at the first look: nobody
 * knows since when, and what was a busy disk may be an idle one by now.
 *
 * Many threads may use one without a lock: of two samples that are taken at a time one is lost. Zeroed = nothing is
 * known. */
#ifndef MC_STORE_LOADS_H
#define MC_STORE_LOADS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define MC_LOADS_SIZES 64u        /* by powers of two */
#define MC_LOADS_LONGEST_US 50000 /* to wait for the first time: a disk that takes longer is asked often enough */
#define MC_LOADS_STEP_US 50u
#define MC_LOADS_STEP_PART 16u

struct mc_loads {
    _Atomic uint32_t waiting; /* calls that wait now */
    _Atomic uint32_t expected_us[MC_LOADS_SIZES];
};

static inline uint32_t mc_loads_size_of(uint64_t length)
{
    return 63u - (uint32_t)__builtin_clzll(length | 1);
}

/* Until the next look at a value of that length, when it has been waited for so long: until it is expected, and then a
 * small part of that, as long again. 0: nothing is known, or it was longer than expected. */
static inline uint64_t mc_loads_wait_us(const struct mc_loads *loads, uint64_t length, uint64_t passed_us)
{
    uint64_t expected_us = atomic_load_explicit(&loads->expected_us[mc_loads_size_of(length)], memory_order_relaxed);
    uint64_t step_us = expected_us / MC_LOADS_STEP_PART;
    if (passed_us + MC_LOADS_STEP_US < expected_us)
        return expected_us - passed_us;
    if (passed_us >= 2 * expected_us)
        return 0;
    return step_us < MC_LOADS_STEP_US ? MC_LOADS_STEP_US : step_us;
}

/* It was there after so long; at_once: at the first look. A little less is expected: else it would be every time. And
 * one that took long for once says little of the next. */
static inline void mc_loads_sample(struct mc_loads *loads, uint64_t length, uint64_t passed_us, bool at_once)
{
    _Atomic uint32_t *expected_us = &loads->expected_us[mc_loads_size_of(length)];
    int64_t before = atomic_load_explicit(expected_us, memory_order_relaxed);
    int64_t now = (int64_t)(passed_us < MC_LOADS_LONGEST_US ? passed_us : MC_LOADS_LONGEST_US) * 7 / 8;
    int64_t most = before + before / 8 + 1;
    if (before > 0)
        now = at_once ? before * 3 / 4 : before + (now - before) / 4;
    if (before > 0 && now > most)
        now = most;
    atomic_store_explicit(expected_us, (uint32_t)(now > 0 ? now : 1), memory_order_relaxed);
}

#endif
