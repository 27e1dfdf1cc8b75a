/* The devices of this machine: which there are, what they can, which GID they use. */
#include "rdma/inside.h"

#include "env/clock.h"
#include "env/log.h"
#include "env/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#define GRACE_NS 250000000ull
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

static void device_close(struct mc_rdma_device *device)
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

/* Opens it and asks what it is. On failure reason says why, and nothing stays open. */
static int device_open(struct mc_rdma *rdma, struct mc_rdma_device *device, struct ibv_device *found, bool is_asked_for)
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

static void device_info(struct mc_rdma_device *device, struct mc_rdma_device_info *info)
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

/* ---- all devices ---- */

#define SEPARATORS ", " /* users write "a, b" also */

/* Is the name in the list "a,b"? */
static bool is_listed(const char *list, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = list; *at != 0;) {
        size_t word = strcspn(at, SEPARATORS);
        if (word == length && strncmp(at, name, word) == 0)
            return true;
        at += word + (at[word] != 0);
    }
    return false;
}

/* Every name of the filter is a device. */
static bool is_filter_met(const char *filter, const struct mc_verbs *verbs, struct ibv_device **list, int count)
{
    for (const char *at = filter; *at != 0;) {
        size_t word = strcspn(at, SEPARATORS);
        bool is_found = word == 0;
        for (int i = 0; i < count && !is_found; i++) {
            const char *name = verbs->get_device_name(list[i]);
            is_found = strlen(name) == word && strncmp(at, name, word) == 0;
        }
        if (!is_found) {
            mc_log(ERROR, "no RDMA device is called %.*s; ibv_devices lists them", (int)word, at);
            return false;
        }
        at += word + (at[word] != 0);
    }
    return true;
}

static int rdma_init(struct mc_rdma *rdma, const struct mc_rdma_options *options)
{
    memset(rdma, 0, sizeof(*rdma));
    rdma->verbs = options->verbs != NULL ? options->verbs : mc_verbs_open();
    rdma->options = *options;
    rdma->stop_fd = -1;
    if (options->settings != NULL)
        rdma->settings = *options->settings;
    else
        mc_rdma_settings_read(&rdma->settings);
    mc_monitor_init(&rdma->lock, &rdma->unvisited);
    pthread_mutex_init(&rdma->wait_lock, NULL);
    mc_rdma_setup_open(rdma);
    rdma->grace_ns = GRACE_NS;
    return rdma->verbs != NULL ? 0 : MC_ERR_UNAVAILABLE_IN_CURRENT_MODE;
}

static int open_devices(struct mc_rdma *rdma, const char *filter)
{
    int count = 0, rc = 0;
    struct ibv_device **list = rdma->verbs->get_device_list(&count);
    if (list == NULL)
        return MC_ERR_UNAVAILABLE_IN_CURRENT_MODE;
    if (count > 0 && !is_filter_met(filter, rdma->verbs, list, count))
        rc = MC_ERR_INVALID_PARAMS;
    bool is_any_up = false;
    for (int i = 0; rc == 0 && i < count && rdma->device_count < MC_RDMA_DEVICES_MAX; i++) {
        struct mc_rdma_device *device = &rdma->devices[rdma->device_count];
        const char *name = rdma->verbs->get_device_name(list[i]);
        bool is_asked_for = is_listed(filter, name) || rdma->has_matrix;
        if ((filter[0] != 0 && !is_listed(filter, name)) || !mc_rdma_near_allows(rdma, name))
            continue;
        if (device_open(rdma, device, list[i], is_asked_for) != 0) {
            mc_log(INFO, "RDMA device %s is not used: %s", device->name, device->reason);
            device_close(device);
            continue;
        }
        device->number = rdma->device_count++;
        is_any_up |= device->is_active;
        mc_log(INFO, "RDMA device %s: %s", device->name, device->gid_reason);
    }
    rdma->verbs->free_device_list(list);
    return rc != 0 || is_any_up ? rc : MC_ERR_UNAVAILABLE_IN_CURRENT_MODE;
}

static void close_devices(struct mc_rdma *rdma)
{
    free(rdma->topology);
    while (rdma->device_count > 0)
        device_close(&rdma->devices[--rdma->device_count]);
    mc_monitor_destroy(&rdma->lock, &rdma->unvisited);
    pthread_mutex_destroy(&rdma->wait_lock);
    mc_rdma_setup_close(rdma);
}

int mc_rdma_open(const struct mc_rdma_options *options, struct mc_rdma **rdma)
{
    struct mc_rdma *made = malloc(sizeof(*made));
    if (made == NULL)
        return MC_ERR_NO_MEMORY;
    const char *filter = options->filter == NULL ? "" : options->filter;
    int rc = rdma_init(made, options);
    if (rc == 0)
        rc = mc_rdma_near_open(made, filter, options->matrix);
    if (rc == 0)
        rc = open_devices(made, filter);
    if (rc == 0)
        mc_rdma_near_find(made);
    if (rc == 0)
        rc = mc_rdma_watch_start(made);
    if (rc == 0) {
        *rdma = made;
        return 0;
    }
    close_devices(made);
    free(made);
    return rc;
}

void mc_rdma_close(struct mc_rdma *rdma)
{
    if (rdma == NULL)
        return;
    mc_assert(rdma->serving_count == 0);
    mc_rdma_setup_stop(rdma);
    mc_rdma_watch_stop(rdma);
    close_devices(rdma);
    free(rdma);
}

uint32_t mc_rdma_device_count(const struct mc_rdma *rdma)
{
    return rdma->device_count;
}

void mc_rdma_device_info(const struct mc_rdma *rdma, uint32_t device, struct mc_rdma_device_info *info)
{
    mc_assert(device < rdma->device_count);
    device_info((struct mc_rdma_device *)&rdma->devices[device], info); /* its lock changes, nothing else */
}

int mc_rdma_scan(const struct mc_rdma_options *options, struct mc_rdma_device_info *infos, size_t capacity)
{
    int count = 0, found = 0;
    struct mc_rdma *rdma = malloc(sizeof(*rdma));
    if (rdma == NULL)
        return MC_ERR_NO_MEMORY;
    struct ibv_device **list = rdma_init(rdma, options) == 0 ? rdma->verbs->get_device_list(&found) : NULL;
    for (int i = 0; list != NULL && i < found && (size_t)count < capacity; i++) {
        (void)device_open(rdma, &rdma->devices[0], list[i], false); /* its reason is what is wanted */
        device_info(&rdma->devices[0], &infos[count++]);
        device_close(&rdma->devices[0]);
    }
    if (list != NULL)
        rdma->verbs->free_device_list(list);
    close_devices(rdma);
    free(rdma);
    return count;
}

void mc_rdma_device_load(const struct mc_rdma *rdma, uint32_t device, uint64_t *under_way_bytes, uint64_t *moved_bytes)
{
    mc_assert(device < rdma->device_count);
    *under_way_bytes = rdma->devices[device].under_way_bytes;
    *moved_bytes = rdma->devices[device].moved_bytes;
}

void mc_rdma_put_devices(const struct mc_rdma *rdma, struct mc_buffer *out)
{
    mc_buffer_printf(out, "[");
    for (uint32_t i = 0; i < rdma->device_count; i++) {
        struct mc_rdma_device_info info;
        mc_rdma_device_info(rdma, i, &info);
        struct mc_rdma_peer_device device = {
            .lid = info.lid, .is_up = info.is_up, .fabric = info.fabric, .speed_mbps = info.speed_mbps};
        snprintf(device.name, sizeof(device.name), "%s", info.name);
        memcpy(device.gid, info.gid, MC_GID_BYTES);
        if (i > 0)
            mc_buffer_printf(out, ",");
        mc_rdma_put_peer_device(&device, info.mtu_bytes, out);
    }
    mc_buffer_printf(out, "]");
}

uint64_t mc_rdma_version(const struct mc_rdma *rdma)
{
    return rdma->version;
}

void mc_rdma_counters_get(const struct mc_rdma *rdma, struct mc_rdma_counters *counters)
{
    *counters = (struct mc_rdma_counters){
        rdma->count.read_bytes,  rdma->count.written_bytes, rdma->count.slices,       rdma->count.retries,
        rdma->count.pairs_made,  rdma->count.pairs_failed,  rdma->count.pairs_served, rdma->count.timeouts,
        rdma->count.stalls,      rdma->count.refusals,      rdma->count.port_downs,   rdma->count.port_ups,
        rdma->count.gid_changes, rdma->count.device_losses,
    };
}
