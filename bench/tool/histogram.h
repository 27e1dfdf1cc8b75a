/* Latencies in log-linear buckets (64 to each power of two: at most 1.6 % too high). One writer, any number of readers,
 * also from other processes over shared memory; histograms add up exactly. Zeroed memory is an empty histogram. */
#ifndef MC_TOOL_HISTOGRAM_H
#define MC_TOOL_HISTOGRAM_H

#include <stdatomic.h>
#include <stdint.h>

#define MC_HISTOGRAM_SUB_BITS 6
#define MC_HISTOGRAM_VALUE_BITS 42 /* 2^42 ns are 73 minutes; longer counts as that */
#define MC_HISTOGRAM_BUCKETS ((MC_HISTOGRAM_VALUE_BITS - MC_HISTOGRAM_SUB_BITS + 1) << MC_HISTOGRAM_SUB_BITS)

struct mc_histogram {
    _Atomic uint64_t count, sum, max;
    _Atomic uint64_t buckets[MC_HISTOGRAM_BUCKETS];
};

void mc_histogram_add(struct mc_histogram *histogram, uint64_t value);
void mc_histogram_merge(struct mc_histogram *into, const struct mc_histogram *from);
/* Smallest value that at least `part` (0..1) of all values do not exceed, rounded up to its bucket's end; 0 when empty.
 */
uint64_t mc_histogram_quantile(const struct mc_histogram *histogram, double part);

#endif
