/* Queue pairs: made, brought to work, told of, destroyed. */
#include "rdma/pair.h"

#include "env/clock.h"
#include "env/log.h"

#include <errno.h>
#include <stdio.h>

#define MIN_RNR_TIMER 12 /* 0.64 ms; nothing here ever waits for a receive */
#define RNR_RETRY 7
#define HOP_LIMIT 64

/* ---- making ---- */

int mc_rdma_half_create(struct mc_rdma_link *link, struct mc_rdma_pair *pair, struct mc_rdma_half *half, char *reason,
                        size_t size)
{
    struct mc_rdma *rdma = link->rdma;
    struct ibv_cq *cq = link->is_serving ? pair->device->serving_cq : link->queues[pair->queue].cq;
    struct ibv_qp_init_attr attributes = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = link->is_serving ? 1 : link->depth,
                .max_recv_wr = 1,
                .max_send_sge = 1,
                .max_recv_sge = 1},
    };
    *half = (struct mc_rdma_half){.gid_index = -1};
    half->psn = (uint32_t)mc_random_u64() & 0xffffff;
    if (!link->is_serving)
        attributes.cap.max_inline_data = (uint32_t)rdma->settings.inline_max;
    half->qp = rdma->verbs->create_qp(pair->device->pd, &attributes);
    if (half->qp == NULL &&
        attributes.cap.max_inline_data != 0) { /* more than the device can is an error, not a limit */
        attributes.cap.max_inline_data = 0;
        half->qp = rdma->verbs->create_qp(pair->device->pd, &attributes);
    }
    if (half->qp == NULL) {
        int rc = errno == ENOMEM ? MC_ERR_NO_MEMORY : MC_ERR_TRANSFER_FAIL;
        snprintf(reason, size, "%s makes no queue pair of %u requests: %s (MC_MAX_WR)", pair->device->name,
                 (unsigned)attributes.cap.max_send_wr, strerror(errno));
        return rc;
    }
    uint32_t wanted = (uint32_t)rdma->settings.inline_max;
    half->inline_max = attributes.cap.max_inline_data < wanted ? attributes.cap.max_inline_data : wanted;
    return 0;
}

int mc_rdma_half_choose_gid(struct mc_rdma_pair *pair, struct mc_rdma_half *half, const uint8_t *peer_gid,
                            unsigned rank, char *reason, size_t size)
{
    struct mc_rdma_device *device = pair->device;
    struct mc_rdma *rdma = device->rdma;
    int rc = 0;
    pthread_mutex_lock(&rdma->lock);
    if (device->fabric == MC_RDMA_ROCE) {
        int row = mc_gid_choose(device->rows, device->row_count, device->fabric, rdma->settings.gid_index, peer_gid,
                                rank, reason, size);
        if (row < 0 && rank > 0)
            row = mc_gid_choose(device->rows, device->row_count, device->fabric, rdma->settings.gid_index, peer_gid, 0,
                                reason, size);
        rc = row < 0 ? MC_ERR_NOT_SUPPORTED : 0;
        if (row >= 0) {
            half->gid_index = (int)device->rows[row].index;
            memcpy(half->gid, device->rows[row].gid, MC_GID_BYTES);
        }
    } else if (device->chosen >= 0) {
        half->gid_index = (int)device->rows[device->chosen].index;
        memcpy(half->gid, device->rows[device->chosen].gid, MC_GID_BYTES);
    }
    pthread_mutex_unlock(&rdma->lock);
    return rc;
}

static uint32_t mtu_of(struct mc_rdma_device *device)
{
    uint32_t bytes = mc_rdma_mtu_bytes(device->port_attributes.active_mtu);
    return bytes < device->rdma->settings.mtu_bytes ? bytes : (uint32_t)device->rdma->settings.mtu_bytes;
}

static uint32_t at_most(int64_t value, uint32_t most)
{
    return value < 0 ? 0 : value < most ? (uint32_t)value : most;
}

/* rdma->lock is held. Is more than the LID needed to reach it? */
static bool is_lid_shared(const struct mc_rdma_device *device)
{
    const struct mc_rdma *rdma = device->rdma;
    bool is_shared = (device->port_attributes.flags & IBV_QPF_GRH_REQUIRED) != 0;
    for (uint32_t i = 0; i < rdma->device_count; i++)
        is_shared |= i != device->number && rdma->devices[i].port_attributes.lid == device->port_attributes.lid;
    return is_shared && device->fabric == MC_RDMA_INFINIBAND;
}

void mc_rdma_half_tell(struct mc_rdma_pair *pair, const struct mc_rdma_half *half, struct mc_rdma_tell *tell)
{
    struct mc_rdma_device *device = pair->device;
    snprintf(tell->device, sizeof(tell->device), "%s", device->name);
    memcpy(tell->gid, half->gid, MC_GID_BYTES);
    tell->qpn = half->qp != NULL ? half->qp->qp_num : 0;
    tell->psn = half->psn;
    tell->reads = at_most(device->attributes.max_qp_rd_atom, MC_RDMA_READS_MAX);
    pthread_mutex_lock(&device->rdma->lock);
    tell->lid = device->port_attributes.lid;
    tell->needs_grh = is_lid_shared(device);
    tell->mtu_bytes = mtu_of(device);
    pthread_mutex_unlock(&device->rdma->lock);
}

/* ---- out-of-band set-up ---- */

static struct ibv_ah_attr path_to(struct mc_rdma_pair *pair, const struct mc_rdma_half *half,
                                  const struct mc_rdma_tell *peer)
{
    struct mc_rdma_device *device = pair->device;
    const struct mc_rdma_settings *settings = &device->rdma->settings;
    struct ibv_ah_attr path = {.dlid = peer->lid,
                               .sl = settings->service_level < 0 ? 0 : (uint8_t)settings->service_level,
                               .port_num = device->port};
    bool is_global = device->fabric != MC_RDMA_INFINIBAND;
    if (!is_global) { /* within one subnet the LID is enough */
        pthread_mutex_lock(&device->rdma->lock);
        bool is_required = (device->port_attributes.flags & IBV_QPF_GRH_REQUIRED) != 0;
        uint16_t own_lid = device->port_attributes.lid;
        pthread_mutex_unlock(&device->rdma->lock);
        /* Functions of one card may share a LID; the GID tells them apart, here and at the peer. */
        bool is_shared = peer->lid == own_lid || peer->needs_grh;
        is_global = half->gid_index >= 0 && !mc_gid_is_null(peer->gid) &&
                    (is_required || is_shared || peer->lid == 0 || memcmp(half->gid, peer->gid, 8) != 0);
    }
    if (is_global) {
        path.is_global = 1;
        memcpy(path.grh.dgid.raw, peer->gid, MC_GID_BYTES);
        path.grh.sgid_index = (uint8_t)half->gid_index;
        path.grh.hop_limit = HOP_LIMIT;
        path.grh.traffic_class = settings->traffic_class < 0 ? 0 : (uint8_t)settings->traffic_class;
    }
    return path;
}

static void explain(struct mc_rdma_pair *pair, const struct mc_rdma_half *half, const struct mc_rdma_tell *peer,
                    const char *state, int error, char *reason, size_t size)
{
    char ours[MC_GID_TEXT_MAX], theirs[MC_GID_TEXT_MAX];
    mc_gid_address(half->gid, ours, sizeof(ours));
    mc_gid_address(peer->gid, theirs, sizeof(theirs));
    snprintf(reason, size, "%s %s (row %d) to %s %s: no %s: %s; MC_GID_INDEX, MC_TE_FILTERS", pair->device->name, ours,
             half->gid_index, peer->device, theirs, state, strerror(error));
}

static int to_init(struct mc_rdma_link *link, struct mc_rdma_pair *pair, struct mc_rdma_half *half)
{
    struct ibv_qp_attr attributes = {
        .qp_state = IBV_QPS_INIT,
        .pkey_index = (uint16_t)link->rdma->settings.pkey_index,
        .port_num = pair->device->port,
        /* The asking half opens none of our memory to its peer. */
        .qp_access_flags = link->is_serving ? (unsigned)(IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE) : 0u,
    };
    return link->rdma->verbs->modify_qp(half->qp, &attributes,
                                        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

static int to_rtr(struct mc_rdma_link *link, struct mc_rdma_pair *pair, struct mc_rdma_half *half,
                  const struct mc_rdma_tell *peer)
{
    pthread_mutex_lock(&link->rdma->lock);
    uint32_t mtu = mtu_of(pair->device);
    pthread_mutex_unlock(&link->rdma->lock);
    if (peer->mtu_bytes != 0 && peer->mtu_bytes < mtu)
        mtu = peer->mtu_bytes;
    struct ibv_qp_attr attributes = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = mc_rdma_mtu_enum(mtu),
        .dest_qp_num = peer->qpn,
        .rq_psn = peer->psn,
        .max_dest_rd_atomic = (uint8_t)at_most(pair->device->attributes.max_qp_rd_atom, MC_RDMA_READS_MAX),
        .min_rnr_timer = MIN_RNR_TIMER,
        .ah_attr = path_to(pair, half, peer),
    };
    return link->rdma->verbs->modify_qp(half->qp, &attributes,
                                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

static int to_rts(struct mc_rdma_link *link, struct mc_rdma_pair *pair, struct mc_rdma_half *half,
                  const struct mc_rdma_tell *peer)
{
    const struct mc_rdma_settings *settings = &link->rdma->settings;
    struct ibv_qp_attr attributes = {
        .qp_state = IBV_QPS_RTS,
        .timeout = (uint8_t)settings->ack_timeout,
        .retry_cnt = (uint8_t)settings->resend_max,
        .rnr_retry = RNR_RETRY,
        .sq_psn = half->psn,
        .max_rd_atomic = (uint8_t)at_most(pair->device->attributes.max_qp_init_rd_atom,
                                          peer->reads < MC_RDMA_READS_MAX ? peer->reads : MC_RDMA_READS_MAX),
    };
    return link->rdma->verbs->modify_qp(half->qp, &attributes,
                                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                            IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

int mc_rdma_half_connect(struct mc_rdma_link *link, struct mc_rdma_pair *pair, struct mc_rdma_half *half,
                         const struct mc_rdma_tell *peer, char *reason, size_t size)
{
    const char *state = "INIT";
    int error = to_init(link, pair, half);
    if (error == 0) {
        state = "RTR";
        error = to_rtr(link, pair, half, peer);
    }
    if (error == 0) {
        state = "RTS";
        error = to_rts(link, pair, half, peer);
    }
    if (error == 0)
        return 0;
    explain(pair, half, peer, state, error < 0 ? errno : error, reason, size);
    return MC_ERR_TRANSFER_FAIL;
}

/* ---- the end ---- */

void mc_rdma_half_destroy(struct mc_rdma *rdma, struct mc_rdma_half *half)
{
    if (half->id != NULL)
        (void)rdma->verbs->cm_disconnect(half->id); /* the peer may be gone already */
    if (half->qp != NULL) {
        /* When destroy returns, the device has no use of it any more; drivers wait for that. */
        int rc = rdma->verbs->destroy_qp(half->qp);
        if (rc != 0)
            mc_log(ERROR, "a queue pair cannot be destroyed: %s", strerror(rc < 0 ? errno : rc));
    }
    if (half->id != NULL) {
        half->id->qp = NULL; /* it was ours, not made by rdma_cm */
        (void)rdma->verbs->cm_destroy_id(half->id);
    }
    if (half->cm_channel != NULL) {
        mc_rdma_fd_closing(rdma, half->cm_channel->fd);
        rdma->verbs->cm_destroy_channel(half->cm_channel);
    }
    *half = (struct mc_rdma_half){.gid_index = -1};
}
