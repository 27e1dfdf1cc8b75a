/* Log-linear histogram. */
#include "tool/histogram.h"

#define SUB_COUNT (1u << MC_HISTOGRAM_SUB_BITS)
#define VALUE_MAX ((UINT64_C(1) << MC_HISTOGRAM_VALUE_BITS) - 1)

static uint64_t get(const _Atomic uint64_t *number)
{
    return atomic_load_explicit(number, memory_order_relaxed);
}

/* Single writer: a plain addition that readers see whole, without the cost of a locked one. */
static void add(_Atomic uint64_t *number, uint64_t more)
{
    atomic_store_explicit(number, get(number) + more, memory_order_relaxed);
}

/* Values below 64 have a bucket each; above, the power of two chooses a row and the six bits behind the first the
 * column. */
static unsigned bucket_of(uint64_t value)
{
    if (value < SUB_COUNT)
        return (unsigned)value;
    unsigned power = 63u - (unsigned)__builtin_clzll(value);
    unsigned shift = power - MC_HISTOGRAM_SUB_BITS;
    return ((shift + 1) << MC_HISTOGRAM_SUB_BITS) + ((unsigned)(value >> shift) & (SUB_COUNT - 1));
}

static uint64_t end_of(unsigned bucket)
{
    if (bucket < SUB_COUNT)
        return bucket;
    unsigned shift = (bucket >> MC_HISTOGRAM_SUB_BITS) - 1;
    uint64_t first = (uint64_t)(SUB_COUNT + (bucket & (SUB_COUNT - 1))) << shift;
    return first + (UINT64_C(1) << shift) - 1;
}

void mc_histogram_add(struct mc_histogram *histogram, uint64_t value)
{
    if (value > VALUE_MAX)
        value = VALUE_MAX;
    add(&histogram->buckets[bucket_of(value)], 1);
    add(&histogram->sum, value);
    if (value > get(&histogram->max))
        atomic_store_explicit(&histogram->max, value, memory_order_relaxed);
    add(&histogram->count, 1);
}

void mc_histogram_merge(struct mc_histogram *into, const struct mc_histogram *from)
{
    for (unsigned i = 0; i < MC_HISTOGRAM_BUCKETS; i++)
        add(&into->buckets[i], get(&from->buckets[i]));
    add(&into->count, get(&from->count));
    add(&into->sum, get(&from->sum));
    if (get(&from->max) > get(&into->max))
        atomic_store_explicit(&into->max, get(&from->max), memory_order_relaxed);
}

uint64_t mc_histogram_quantile(const struct mc_histogram *histogram, double part)
{
    uint64_t count = get(&histogram->count);
    if (count == 0)
        return 0;
    uint64_t max = get(&histogram->max);
    double exact = part * (double)count;
    uint64_t rank = exact <= 1 ? 1 : (uint64_t)exact;
    if ((double)rank < exact)
        rank++;
    uint64_t seen = 0;
    for (unsigned i = 0; i < MC_HISTOGRAM_BUCKETS; i++) {
        seen += get(&histogram->buckets[i]);
        if (seen >= rank)
            return end_of(i) < max ? end_of(i) : max;
    }
    return max;
}
