/* One device: what it can, which GID it uses, whether it is up. */
#include "rdma/device.h"

#include "env/clock.h"
#include "env/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#define CQE_SERVING 1 /* entries of a completion queue that gets none */

/* ---- small facts ---- */

uint32_t mc_rdma_mtu_bytes(enum ibv_mtu mtu)
{
    return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128u << mtu : 256u;
}

enum ibv_mtu mc_rdma_mtu_enum(uint32_t bytes)
{
    enum ibv_mtu mtu = IBV_MTU_256;
    while (mtu < IBV_MTU_4096 && mc_rdma_mtu_bytes(mtu) * 2 <= bytes)
        mtu++;
    return mtu;
}

uint32_t mc_rdma_device_speed(const struct mc_rdma_device *device)
{
    static const struct {
        uint8_t code;
        uint32_t mbps;
    } speeds[] = {{1, 2500}, {2, 5000}, {4, 10000}, {8, 10000}, {16, 14000}, {32, 25000}, {64, 50000}, {128, 100000}},
      widths[] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}};
    uint32_t speed = 0, width = 0;
    for (size_t i = 0; i < sizeof(speeds) / sizeof(speeds[0]); i++)
        if (speeds[i].code == device->port_attributes.active_speed)
            speed = speeds[i].mbps;
    for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++)
        if (widths[i].code == device->port_attributes.active_width)
            width = widths[i].mbps;
    return speed * width;
}

struct mc_rdma_device *mc_rdma_device_named(struct mc_rdma *rdma, const char *name)
{
    for (uint32_t i = 0; i < rdma->device_count; i++)
        if (strcmp(rdma->devices[i].name, name) == 0)
            return &rdma->devices[i];
    return NULL;
}

bool mc_rdma_device_is_up(const struct mc_rdma_device *device)
{
    if (device->is_lost || !device->is_active)
        return false;
    uint64_t until_ns = device->retired_until_ns;
    return until_ns == 0 || mc_clock_ns() >= until_ns;
}

bool mc_rdma_device_uses_cm(const struct mc_rdma_device *device)
{
    int64_t setup = device->rdma->settings.setup;
    return setup == MC_RDMA_SETUP_CM || (setup == MC_RDMA_SETUP_AUTO && device->fabric == MC_RDMA_IWARP);
}

void mc_rdma_device_note(struct mc_rdma_device *device, bool is_good)
{
    if (is_good) {
        if (device->blames != 0)
            device->blames = 0;
        return;
    }
    if (++device->blames < MC_RDMA_BLAMES_MAX)
        return;
    device->blames = 0;
    device->retired_until_ns = mc_clock_ns() + (uint64_t)device->rdma->settings.pause_s * 1000000000u;
    mc_log(WARNING, "RDMA device %s failed %u times in a row where others did not: not used for %lld s", device->name,
           MC_RDMA_BLAMES_MAX, (long long)device->rdma->settings.pause_s);
}

void mc_rdma_fd_opened(struct mc_rdma *rdma, int fd)
{
    if (rdma->options.fd_opened != NULL)
        rdma->options.fd_opened(rdma->options.context, fd);
}

void mc_rdma_fd_closing(struct mc_rdma *rdma, int fd)
{
    if (rdma->options.fd_closing != NULL)
        rdma->options.fd_closing(rdma->options.context, fd);
}

/* ---- ports and GIDs ---- */

static bool same_rows(const struct mc_gid_row *a, uint32_t a_count, const struct mc_gid_row *b, uint32_t b_count)
{
    bool is_same = a_count == b_count;
    for (uint32_t i = 0; is_same && i < a_count; i++)
        is_same = a[i].index == b[i].index && memcmp(a[i].gid, b[i].gid, MC_GID_BYTES) == 0 && a[i].type == b[i].type;
    return is_same;
}

bool mc_rdma_device_refresh(struct mc_rdma_device *device)
{
    struct mc_rdma *rdma = device->rdma;
    struct ibv_port_attr attributes;
    struct mc_gid_row *rows = calloc(MC_GID_ROWS_MAX, sizeof(*rows));
    int count = MC_ERR_NO_MEMORY;
    if (rows != NULL && rdma->verbs->query_port(rdma->verbs, device->context, device->port, &attributes) == 0)
        count = rdma->verbs->read_gids(rdma->verbs, device->context, device->port, rows, MC_GID_ROWS_MAX);
    if (count < 0) {
        free(rows);
        bool was_active = device->is_active;
        device->is_active = false;
        return was_active;
    }
    pthread_mutex_lock(&rdma->lock);
    bool was_up = device->is_active, is_up = attributes.state == IBV_PORT_ACTIVE;
    bool is_changed = was_up != is_up || attributes.lid != device->port_attributes.lid ||
                      !same_rows(rows, (uint32_t)count, device->rows, device->row_count);
    device->port_attributes = attributes;
    free(device->rows);
    device->rows = rows;
    device->row_count = (uint32_t)count;
    device->chosen = device->fabric == MC_RDMA_IWARP
                         ? -1
                         : mc_gid_choose(rows, (size_t)count, device->fabric, rdma->settings.gid_index, NULL, 0,
                                         device->gid_reason, sizeof(device->gid_reason));
    device->is_active = is_up;
    pthread_mutex_unlock(&rdma->lock);
    return is_changed;
}

/* ---- one device ---- */

void mc_rdma_device_close(struct mc_rdma_device *device)
{
    const struct mc_verbs *verbs = device->rdma->verbs;
    if (device->serving_cq != NULL)
        (void)verbs->destroy_cq(device->serving_cq);
    if (device->channel != NULL) {
        mc_rdma_fd_closing(device->rdma, device->channel->fd);
        (void)verbs->destroy_comp_channel(device->channel);
    }
    if (device->pd != NULL && verbs->dealloc_pd(device->pd) != 0)
        mc_log(WARNING, "RDMA device %s: something of it is still in use", device->name);
    if (device->context != NULL) {
        mc_rdma_fd_closing(device->rdma, device->context->cmd_fd);
        mc_rdma_fd_closing(device->rdma, device->context->async_fd);
        (void)verbs->close_device(device->context);
    }
    free(device->rows);
    memset(device, 0, sizeof(*device));
}

/* Why a device whose port and table are known cannot be used; "" : it can. */
static void judge(struct mc_rdma_device *device, bool is_asked_for)
{
    bool is_ethernet = device->port_attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
    if (!device->is_active && !is_asked_for)
        snprintf(device->reason, sizeof(device->reason), "port %u is not active: cable, switch, or `ip link set up`",
                 device->port);
    else if (device->fabric == MC_RDMA_ROCE && device->is_active && device->chosen < 0)
        snprintf(device->reason, sizeof(device->reason), "no usable GID: %.100s", device->gid_reason);
    else if (device->fabric == MC_RDMA_INFINIBAND && device->is_active && device->port_attributes.lid == 0 &&
             !is_ethernet && device->chosen < 0)
        snprintf(device->reason, sizeof(device->reason), "no LID: is a subnet manager running?");
    else if (device->fabric == MC_RDMA_IWARP && !device->rdma->verbs->has_cm)
        snprintf(device->reason, sizeof(device->reason), "iWARP needs librdmacm.so.1, which is not here");
}

static int channel_open(struct mc_rdma_device *device)
{
    device->channel = device->rdma->verbs->create_comp_channel(device->context);
    if (device->channel == NULL)
        return -1;
    mc_rdma_fd_opened(device->rdma, device->channel->fd);
    int flags = fcntl(device->channel->fd, F_GETFL);
    return flags < 0 ? -1 : fcntl(device->channel->fd, F_SETFL, flags | O_NONBLOCK);
}

int mc_rdma_device_open(struct mc_rdma *rdma, struct mc_rdma_device *device, struct ibv_device *found,
                        bool is_asked_for)
{
    const struct mc_verbs *verbs = rdma->verbs;
    struct ibv_port_attr port;
    memset(device, 0, sizeof(*device));
    device->rdma = rdma;
    device->queue_end = &device->queue;
    device->port = (uint8_t)rdma->settings.ib_port;
    device->chosen = -1;
    snprintf(device->name, sizeof(device->name), "%s", verbs->get_device_name(found));
    verbs->locate(found, &device->numa_node, device->pci, sizeof(device->pci));
    device->context = verbs->open_device(found);
    if (device->context == NULL) {
        snprintf(device->reason, sizeof(device->reason),
                 "cannot be opened: %.60s (is /dev/infiniband in the container, readable and writable?)",
                 strerror(errno));
        return MC_ERR_TRANSFER_FAIL;
    }
    mc_rdma_fd_opened(rdma, device->context->cmd_fd);
    mc_rdma_fd_opened(rdma, device->context->async_fd);
    device->pd = verbs->alloc_pd(device->context);
    if (device->pd == NULL || verbs->query_device(device->context, &device->attributes) != 0 ||
        verbs->query_port(verbs, device->context, device->port, &port) != 0) {
        snprintf(device->reason, sizeof(device->reason), "does not answer, or has no port %u (MC_IB_PORT): %.60s",
                 device->port, strerror(errno));
        return MC_ERR_TRANSFER_FAIL;
    }
    device->fabric = found->transport_type == IBV_TRANSPORT_IWARP ? MC_RDMA_IWARP
                     : port.link_layer == IBV_LINK_LAYER_ETHERNET ? MC_RDMA_ROCE
                                                                  : MC_RDMA_INFINIBAND;
    device->has_relaxed_ordering = rdma->settings.relaxed_ordering != 0 && verbs->reg_mr_iova2 != NULL;
    device->serving_cq = verbs->create_cq(device->context, CQE_SERVING, NULL, NULL, 0);
    if (device->serving_cq == NULL || channel_open(device) != 0) {
        snprintf(device->reason, sizeof(device->reason), "gives no completion queue: %.60s", strerror(errno));
        return MC_ERR_TRANSFER_FAIL;
    }
    (void)mc_rdma_device_refresh(device);
    judge(device, is_asked_for);
    return device->reason[0] == 0 ? 0 : MC_ERR_NOT_SUPPORTED;
}

void mc_rdma_device_describe(struct mc_rdma_device *device, struct mc_rdma_device_info *info)
{
    memset(info, 0, sizeof(*info));
    info->is_up = device->context != NULL && device->reason[0] == 0 && mc_rdma_device_is_up(device);
    pthread_mutex_lock(&device->rdma->lock);
    snprintf(info->name, sizeof(info->name), "%s", device->name);
    snprintf(info->reason, sizeof(info->reason), "%s", device->reason);
    snprintf(info->pci, sizeof(info->pci), "%s", device->pci);
    snprintf(info->gid_reason, sizeof(info->gid_reason), "%s", device->gid_reason);
    info->fabric = device->fabric;
    info->port = device->port;
    info->numa_node = device->numa_node;
    info->gid_index = -1;
    if (device->chosen >= 0) {
        const struct mc_gid_row *row = &device->rows[device->chosen];
        info->gid_index = (int)row->index;
        memcpy(info->gid, row->gid, MC_GID_BYTES);
        snprintf(info->netdev, sizeof(info->netdev), "%s", row->netdev);
    }
    info->speed_mbps = mc_rdma_device_speed(device);
    uint32_t mtu_bytes = mc_rdma_mtu_bytes(device->port_attributes.active_mtu);
    info->mtu_bytes =
        mtu_bytes < device->rdma->settings.mtu_bytes ? mtu_bytes : (uint32_t)device->rdma->settings.mtu_bytes;
    info->lid = device->port_attributes.lid;
    pthread_mutex_unlock(&device->rdma->lock);
    info->mr_size_max = device->attributes.max_mr_size;
    info->wr_max = (uint32_t)device->attributes.max_qp_wr;
    info->cqe_max = (uint32_t)device->attributes.max_cqe;
    info->sge_max = (uint32_t)device->attributes.max_sge;
    info->inline_max = (uint32_t)device->rdma->settings.inline_max;
    info->has_dmabuf = device->rdma->verbs->reg_dmabuf_mr != NULL;
    info->has_relaxed_ordering = device->has_relaxed_ordering;
}
