/* How many connections come from each address. */
#include "store/master/share.h"

#include <stdlib.h>

struct mc_share *mc_share_take(struct mc_map *shares, uint64_t key, uint32_t limit)
{
    struct mc_share *share = mc_map_get(shares, key);
    if (share == NULL) {
        share = calloc(1, sizeof(*share));
        if (share == NULL)
            return NULL;
        share->key = key;
        if (!mc_map_put(shares, key, share)) {
            free(share);
            return NULL;
        }
    }
    if (share->count >= limit)
        return NULL; /* limit is not 0, so somebody has this share */
    share->count++;
    return share;
}

void mc_share_give(struct mc_map *shares, struct mc_share *share)
{
    if (--share->count > 0)
        return;
    (void)mc_map_remove(shares, share->key);
    free(share);
}
