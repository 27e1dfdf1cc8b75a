/* What a link's pairs are, as text. For tests, while others run on the link and repair it. */
#ifndef MC_TESTS_RDMA_LINK_DESCRIBE_H
#define MC_TESTS_RDMA_LINK_DESCRIBE_H

#include "env/json.h"
#include "rdma/pair.h"

#include <stdio.h>

/* Appends a JSON array: of each pair the devices, GIDs, state, bytes in all, last error. */
static inline void rdma_link_describe(const struct mc_rdma_link *link, struct mc_buffer *out)
{
    bool is_first = true;
    mc_buffer_printf(out, "[");
    for (uint32_t i = 0; i < link->pair_count; i++) {
        struct mc_rdma_pair *pair = (struct mc_rdma_pair *)&link->pairs[i]; /* only its lock changes */
        if (pair->device == NULL)
            continue;
        char gid[MC_GID_TEXT_MAX], error[MC_RDMA_REASON_MAX];
        pthread_mutex_lock((pthread_mutex_t *)&link->lock);
        bool is_fresh = pair->current.qp == NULL && pair->fresh_state != MC_RDMA_FRESH_NONE;
        const struct mc_rdma_half *half = is_fresh ? &pair->fresh : &pair->current;
        mc_gid_format(half->gid, gid, sizeof(gid));
        uint32_t remote = half->remote;
        snprintf(error, sizeof(error), "%s", pair->error);
        pthread_mutex_unlock((pthread_mutex_t *)&link->lock);
        bool is_ready = pair->is_up || (link->fresh_mask >> i & 1) != 0;
        mc_buffer_printf(out, "%s{\"pair\":%u,\"device\":", is_first ? "" : ",", (unsigned)i);
        mc_json_put_text(out, pair->device->name);
        mc_buffer_printf(out, ",\"peer\":");
        mc_json_put_text(out, remote < link->peer_count ? link->peer_devices[remote].name : "");
        mc_buffer_printf(out, ",\"gid\":\"%s\",\"state\":\"%s\",\"bytes\":%llu,\"failures\":%u,\"error\":", gid,
                         is_ready ? "ready" : "down", (unsigned long long)pair->bytes, (unsigned)pair->failures);
        mc_json_put_text(out, error);
        mc_buffer_printf(out, "}");
        is_first = false;
    }
    mc_buffer_printf(out, "]");
}

#endif
