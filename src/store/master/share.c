/* How many connections come from each address. */
#include "store/master/share.h"

#include "base/checksum.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>

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

uint64_t mc_share_key(int fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } name = {.v6 = {0}};
    socklen_t length = sizeof(name);
    if (getpeername(fd, &name.any, &length) != 0)
        return 0;
    uint64_t key = 0;
    if (name.any.sa_family == AF_INET)
        key = mc_hash(&name.v4.sin_addr, sizeof(name.v4.sin_addr)).low;
    else if (name.any.sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&name.v6.sin6_addr))
        key = mc_hash(&name.v6.sin6_addr.s6_addr[12], 4).low;
    else if (name.any.sa_family == AF_INET6)
        key = mc_hash(&name.v6.sin6_addr, 8).low;
    else
        return 0;
    return key == 0 ? 1 : key;
}
