/* Edit distance between short names. */
#include "base/nearest.h"

#include <string.h>

/* Two neighbours that changed places count as one edit. Both are shorter than MC_NEAREST_NAME_MAX. */
static size_t edit_distance(const char *a, const char *b)
{
    size_t rows[3][MC_NEAREST_NAME_MAX + 1];
    size_t a_length = strlen(a), b_length = strlen(b);
    for (size_t j = 0; j <= b_length; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        size_t *now = rows[i % 3], *last = rows[(i - 1) % 3], *before = rows[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t best = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < best)
                best = last[j] + 1;
            if (now[j - 1] + 1 < best)
                best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            now[j] = best;
        }
    }
    return rows[a_length % 3][b_length];
}

void mc_nearest_begin(struct mc_nearest *nearest, const char *wrong)
{
    size_t length = strlen(wrong), allowed = length / 3 > 2 ? length / 3 : 2;
    if (allowed >= length) /* a name of two letters is near to everything */
        allowed = length > 0 ? length - 1 : 0;
    nearest->wrong = length < MC_NEAREST_NAME_MAX ? wrong : NULL;
    nearest->best = allowed + 1;
    nearest->found = NULL;
}

void mc_nearest_offer(struct mc_nearest *nearest, const char *name, const char *shown)
{
    if (nearest->wrong == NULL || strlen(name) >= MC_NEAREST_NAME_MAX)
        return;
    size_t distance = edit_distance(nearest->wrong, name);
    if (distance < nearest->best) {
        nearest->best = distance;
        nearest->found = shown;
    }
}
