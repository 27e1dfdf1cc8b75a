/* Huge pages for the data of a segment: fewer entries of page tables, for the processor and for devices. Those of
 * hugetlb (2 MiB, 1 GiB) are a pool that an operator has reserved, so they are taken where MC_STORE_USE_HUGEPAGE asks
 * for them, the largest first; what cannot be had costs one line of the log, and the next best is used. Transparent
 * ones are asked for elsewhere too, and come where the kernel is set to give them to shared memory. */
#ifndef MC_SEGMENT_PAGES_H
#define MC_SEGMENT_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MC_PAGES_SIZES 2u

struct mc_pages_pool { /* of one size, as the kernel says it; zeroed: it has none */
    uint64_t bytes;    /* of a page */
    uint64_t free;     /* pages that a new mapping could have */
};

/* The sizes that are to be tried for a segment whose data has so many bytes, in turn; how many. by: the variables, as
 * they stand in the environment; NULL: not set. *wrong: the second one names no size. */
size_t mc_pages_wanted(const char *use, const char *size, uint64_t data_size, uint64_t bytes[MC_PAGES_SIZES],
                       bool *wrong);
/* The same, as the environment of this process says, with a line when that is wrong. */
size_t mc_pages_wanted_here(uint64_t data_size, uint64_t bytes[MC_PAGES_SIZES]);
/* root: "/sys/kernel/mm/hugepages". */
struct mc_pages_pool mc_pages_pool(const char *root, uint64_t bytes);
/* May a segment of that capacity lie on huge pages, which what is left of the machine's memory does not count? */
bool mc_pages_have_room(uint64_t capacity);
/* A memfd whose data lies on such pages, not mapped and not sized yet; -1 with errno. */
int mc_pages_memfd(const char *name, uint64_t bytes);
/* A mapping could not be had, and smaller pages are used. */
void mc_pages_say_missing(uint64_t bytes, uint64_t data_size, int error);

static inline uint64_t mc_pages_round(uint64_t size, uint64_t bytes)
{
    return (size + bytes - 1) / bytes * bytes;
}

#endif
