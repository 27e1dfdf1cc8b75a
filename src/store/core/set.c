/* A set of segments, drawn from by capacity. Sums over capacities lie in a Fenwick tree, so that a segment comes, goes
 * and is drawn in as many steps as the number of places has bits. All in whole units: nothing drifts. */
#include "store/core/limits.h"
#include "store/core/segment.h"

#include <stdlib.h>

#define PLACES MC_SEGMENTS_MAX /* a power of two */
_Static_assert((PLACES & (PLACES - 1)) == 0, "drawing goes down by halves");

bool mc_set_init(struct mc_segment_set *set, enum mc_set which)
{
    set->which = which;
    set->items = calloc(PLACES, sizeof(*set->items));
    set->sums = calloc(PLACES + 1, sizeof(*set->sums)); /* touched as it is used */
    return set->items != NULL && set->sums != NULL;
}

void mc_set_destroy(struct mc_segment_set *set)
{
    free(set->items);
    free(set->sums);
}

/* Adds to the weight of that place; a difference below zero wraps, and so do the sums, back to what they are. */
static void weigh(struct mc_segment_set *set, uint32_t place, uint64_t difference)
{
    for (uint32_t at = place + 1; at <= PLACES; at += at & -at)
        set->sums[at] += difference;
}

bool mc_set_has(const struct mc_segment_set *set, const struct mc_segment *segment)
{
    return segment->places[set->which] != MC_SET_NOWHERE;
}

void mc_set_add(struct mc_segment_set *set, struct mc_segment *segment)
{
    if (mc_set_has(set, segment))
        return;
    weigh(set, set->count, segment->capacity);
    set->capacity += segment->capacity;
    segment->places[set->which] = set->count;
    set->items[set->count++] = segment;
}

void mc_set_remove(struct mc_segment_set *set, struct mc_segment *segment)
{
    if (!mc_set_has(set, segment))
        return;
    uint32_t hole = segment->places[set->which];
    struct mc_segment *last = set->items[--set->count];
    set->capacity -= segment->capacity;
    weigh(set, set->count, 0 - last->capacity);
    if (last != segment) {
        weigh(set, hole, last->capacity - segment->capacity);
        set->items[hole] = last;
        last->places[set->which] = hole;
    }
    segment->places[set->which] = MC_SET_NOWHERE;
}

uint32_t mc_set_draw(const struct mc_segment_set *set, uint64_t random)
{
    uint64_t left = random % set->capacity; /* before the one that is drawn lies at most so much */
    uint32_t place = 0;
    for (uint32_t step = PLACES; step > 0; step /= 2) {
        if (place + step > PLACES || set->sums[place + step] > left)
            continue;
        place += step;
        left -= set->sums[place];
    }
    return place;
}
