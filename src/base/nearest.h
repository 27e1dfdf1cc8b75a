/* The name nearest to a wrong one: for "did you mean". */
#ifndef MC_BASE_NEAREST_H
#define MC_BASE_NEAREST_H

#include <stddef.h>

#define MC_NEAREST_NAME_MAX 64 /* longer names are near to nothing */

struct mc_nearest {
    const char *wrong;
    size_t best;       /* edits to beat */
    const char *found; /* as it was offered; NULL: none is near */
};

/* Up to a third of the name's letters may be wrong, or two. wrong is borrowed. */
void mc_nearest_begin(struct mc_nearest *nearest, const char *wrong);
/* One name that there is; shown is what is found when it is the nearest so far. */
void mc_nearest_offer(struct mc_nearest *nearest, const char *name, const char *shown);

#endif
