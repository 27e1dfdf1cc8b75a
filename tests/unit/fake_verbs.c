/* The fake device: see fake_verbs.h. rdma_cm's half is in fake_cm.c. */
#include "fake_inside.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct fake fake = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- events ---- */

void fake_signal(int fd)
{
    uint64_t one = 1;
    ssize_t written = write(fd, &one, sizeof(one));
    mc_assert(written == sizeof(one));
}

static void push_event(uint32_t device, enum ibv_event_type type)
{
    for (uint32_t i = 0; i < FAKE_CONTEXTS_MAX; i++) {
        struct fake_context *context = fake.contexts[i];
        if (context == NULL || context->device != device || context->event_count == FAKE_EVENTS_MAX)
            continue;
        context->events[context->event_count++] = type;
        fake_signal(context->context.async_fd);
    }
}

static int get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
    struct fake_context *own = (struct fake_context *)context;
    uint64_t value;
    int rc = -1;
    pthread_mutex_lock(&fake.lock);
    if (own->event_count > 0) {
        *event = (struct ibv_async_event){.event_type = own->events[0]};
        event->element.port_num = 1;
        memmove(own->events, own->events + 1, --own->event_count * sizeof(own->events[0]));
        rc = 0;
    }
    if (own->event_count == 0 && read(context->async_fd, &value, sizeof(value)) < 0)
        errno = EAGAIN;
    pthread_mutex_unlock(&fake.lock);
    if (rc != 0)
        errno = EAGAIN;
    return rc;
}

static void ack_async_event(struct ibv_async_event *event)
{
    (void)event;
}

/* ---- devices ---- */

static struct ibv_device **get_device_list(int *count)
{
    struct ibv_device **list = calloc(FAKE_DEVICES_MAX + 1, sizeof(*list));
    for (uint32_t i = 0; i < fake.device_count; i++)
        list[i] = &fake.devices[i].device;
    *count = (int)fake.device_count;
    return list;
}

static void free_device_list(struct ibv_device **list)
{
    free(list);
}

static const char *get_device_name(struct ibv_device *device)
{
    return device->name;
}

struct ibv_context *fake_context_open(uint32_t device)
{
    struct fake_context *context = calloc(1, sizeof(*context));
    context->device = device;
    context->context.device = &fake.devices[device].device;
    context->context.num_comp_vectors = 2;
    context->context.cmd_fd = -1;
    context->context.async_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    for (uint32_t i = 0; i < FAKE_CONTEXTS_MAX; i++)
        if (fake.contexts[i] == NULL) {
            fake.contexts[i] = context;
            break;
        }
    return &context->context;
}

static struct ibv_context *open_device(struct ibv_device *device)
{
    pthread_mutex_lock(&fake.lock);
    struct ibv_context *context = fake_context_open((uint32_t)((struct fake_device *)device - fake.devices));
    fake.counts.contexts++;
    pthread_mutex_unlock(&fake.lock);
    return context;
}

static int close_device(struct ibv_context *context)
{
    pthread_mutex_lock(&fake.lock);
    for (uint32_t i = 0; i < FAKE_CONTEXTS_MAX; i++)
        if (fake.contexts[i] == (struct fake_context *)context)
            fake.contexts[i] = NULL;
    fake.counts.contexts--;
    pthread_mutex_unlock(&fake.lock);
    (void)close(context->async_fd);
    free(context);
    return 0;
}

uint32_t fake_device_of(const struct ibv_context *context)
{
    return ((const struct fake_context *)context)->device;
}

static struct fake_device *device_of(const struct ibv_context *context)
{
    return &fake.devices[fake_device_of(context)];
}

static int query_device(struct ibv_context *context, struct ibv_device_attr *attributes)
{
    const struct fake_device_config *config = &device_of(context)->config;
    *attributes = (struct ibv_device_attr){.max_mr_size = config->max_mr_size,
                                           .max_qp_wr = config->max_qp_wr,
                                           .max_cqe = config->max_cqe,
                                           .max_sge = 4,
                                           .max_qp_rd_atom = 16,
                                           .max_qp_init_rd_atom = 16};
    return 0;
}

static int query_port(const struct mc_verbs *verbs, struct ibv_context *context, uint8_t port,
                      struct ibv_port_attr *attributes)
{
    (void)verbs;
    if (port != 1)
        return EINVAL;
    pthread_mutex_lock(&fake.lock);
    const struct fake_device *device = device_of(context);
    *attributes = (struct ibv_port_attr){
        .state = device->is_port_up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN,
        .active_mtu = (enum ibv_mtu)device->config.mtu,
        .gid_tbl_len = 8,
        .lid = device->config.lid,
        .flags = device->config.needs_grh ? IBV_QPF_GRH_REQUIRED : 0,
        .active_width = 2,
        .active_speed = 32,
        .link_layer = device->config.is_infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET,
    };
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

static int read_gids(const struct mc_verbs *verbs, struct ibv_context *context, uint8_t port, struct mc_gid_row *rows,
                     size_t capacity)
{
    (void)verbs, (void)port;
    pthread_mutex_lock(&fake.lock);
    const struct fake_device_config *config = &device_of(context)->config;
    mc_assert(config->row_count <= capacity);
    memcpy(rows, config->rows, config->row_count * sizeof(*rows));
    int count = (int)config->row_count;
    pthread_mutex_unlock(&fake.lock);
    return count;
}

static void locate(struct ibv_device *device, int *numa_node, char *pci, size_t size)
{
    *numa_node = (int)(((struct fake_device *)device - fake.devices) % 2);
    snprintf(pci, size, "0000:00:00.0");
}

static void find_netdev(struct ibv_device *device, char *name, size_t size)
{
    (void)device;
    snprintf(name, size, "lo");
}

/* ---- memory ---- */

static struct ibv_pd *alloc_pd(struct ibv_context *context)
{
    struct ibv_pd *pd = calloc(1, sizeof(*pd));
    pd->context = context;
    pthread_mutex_lock(&fake.lock);
    fake.counts.pds++;
    pthread_mutex_unlock(&fake.lock);
    return pd;
}

static int dealloc_pd(struct ibv_pd *pd)
{
    pthread_mutex_lock(&fake.lock);
    bool is_used = false;
    for (uint32_t i = 0; i < FAKE_REGIONS_MAX; i++)
        is_used |= fake.regions[i].is_there && fake.regions[i].mr.pd == pd;
    fake.counts.pds -= !is_used;
    pthread_mutex_unlock(&fake.lock);
    if (is_used)
        return EBUSY;
    free(pd);
    return 0;
}

static struct ibv_mr *region_add(struct ibv_pd *pd, void *address, size_t length, unsigned access, int refused)
{
    struct fake_device *device = device_of(pd->context);
    struct fake_region *region = NULL;
    pthread_mutex_lock(&fake.lock);
    for (fake.counts.registering++; fake.holds_registrations;) {
        pthread_mutex_unlock(&fake.lock);
        usleep(1000);
        pthread_mutex_lock(&fake.lock);
    }
    fake.counts.registering--;
    int error = refused;
    if (device->failing_registrations > 0) {
        device->failing_registrations--;
        error = device->registration_error;
    }
    if (length > device->config.max_mr_size)
        error = EINVAL;
    for (uint32_t i = 0; i < FAKE_REGIONS_MAX && error == 0 && region == NULL; i++)
        if (!fake.regions[i].is_there)
            region = &fake.regions[i];
    if (region != NULL) {
        uint32_t key = ++fake.next_key * 256;
        *region = (struct fake_region){.is_there = true, .access = access};
        region->mr = (struct ibv_mr){
            .context = pd->context, .pd = pd, .addr = address, .length = length, .lkey = key | 1, .rkey = key | 2};
        fake.counts.mrs++;
        if (length >> 20 > fake.counts.biggest_mr_mib)
            fake.counts.biggest_mr_mib = (uint32_t)(length >> 20);
    }
    pthread_mutex_unlock(&fake.lock);
    if (region == NULL)
        errno = error != 0 ? error : ENOMEM;
    return region != NULL ? &region->mr : NULL;
}

static bool is_of_gpu(const void *address)
{
    return (const char *)address >= fake.gpu && (const char *)address < fake.gpu + fake.gpu_length;
}

static void *reached(uint64_t address)
{
    void *there = (void *)(uintptr_t)address;
    return fake.gpu_reach != NULL && is_of_gpu(there) ? fake.gpu_reach(address) : there;
}

static struct ibv_mr *reg_mr(const struct mc_verbs *verbs, struct ibv_pd *pd, void *address, size_t length,
                             unsigned access)
{
    (void)verbs;
    bool is_gpu = is_of_gpu(address);
    return region_add(pd, address, length, access, is_gpu && !device_of(pd->context)->config.has_peermem ? EFAULT : 0);
}

static struct ibv_mr *reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                                    int access)
{
    (void)offset;
    bool is_good = fd >= 0 && device_of(pd->context)->config.has_dmabuf;
    return region_add(pd, (void *)(uintptr_t)iova, length, (unsigned)access, is_good ? 0 : EOPNOTSUPP);
}

static int dereg_mr(struct ibv_mr *mr)
{
    struct fake_device *device = device_of(mr->context);
    int error = 0;
    pthread_mutex_lock(&fake.lock);
    for (fake.counts.deregistering++; fake.holds_deregistrations;) {
        pthread_mutex_unlock(&fake.lock);
        usleep(1000);
        pthread_mutex_lock(&fake.lock);
    }
    fake.counts.deregistering--;
    if (device->failing_deregistrations > 0) {
        device->failing_deregistrations--;
        error = device->deregistration_error;
    } else {
        ((struct fake_region *)mr)->is_there = false;
        fake.counts.mrs--;
    }
    pthread_mutex_unlock(&fake.lock);
    return error;
}

/* The region of that device that a key opens for the range. NULL: none. */
static struct fake_region *region_for(const struct ibv_pd *pd, uint32_t key, bool is_remote, uint64_t address,
                                      uint64_t length, unsigned access)
{
    for (uint32_t i = 0; i < FAKE_REGIONS_MAX; i++) {
        struct fake_region *region = &fake.regions[i];
        if (!region->is_there || region->mr.pd != pd || (is_remote ? region->mr.rkey : region->mr.lkey) != key)
            continue;
        uint64_t start = (uintptr_t)region->mr.addr;
        bool is_inside =
            address >= start && length <= region->mr.length && address - start <= region->mr.length - length;
        return is_inside && (region->access & access) == access ? region : NULL;
    }
    return NULL;
}

/* ---- completion queues ---- */

static struct ibv_comp_channel *create_comp_channel(struct ibv_context *context)
{
    struct fake_channel *channel = calloc(1, sizeof(*channel));
    channel->channel.context = context;
    channel->channel.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    pthread_mutex_lock(&fake.lock);
    fake.counts.channels++;
    pthread_mutex_unlock(&fake.lock);
    return &channel->channel;
}

static int destroy_comp_channel(struct ibv_comp_channel *channel)
{
    pthread_mutex_lock(&fake.lock);
    fake.counts.channels--;
    pthread_mutex_unlock(&fake.lock);
    (void)close(channel->fd);
    free(channel);
    return 0;
}

static struct ibv_cq *create_cq(struct ibv_context *context, int entries, void *cq_context,
                                struct ibv_comp_channel *channel, int vector)
{
    (void)vector;
    if (entries < 1 || entries > device_of(context)->config.max_cqe) {
        errno = EINVAL;
        return NULL;
    }
    struct fake_cq *cq = calloc(1, sizeof(*cq));
    cq->completions = calloc((size_t)entries, sizeof(*cq->completions));
    cq->cq = (struct ibv_cq){.context = context, .channel = channel, .cq_context = cq_context, .cqe = entries};
    pthread_mutex_lock(&fake.lock);
    fake.counts.cqs++;
    fake.counts.heap += sizeof(*cq) + (size_t)entries * sizeof(*cq->completions);
    if (channel != NULL) {
        cq->next = ((struct fake_channel *)channel)->first;
        ((struct fake_channel *)channel)->first = cq;
    }
    pthread_mutex_unlock(&fake.lock);
    return &cq->cq;
}

/* The lock is held. Takes one event out of the channel; the sleep of a real one is for who has set it to block. */
static bool take_event(struct ibv_comp_channel *channel, struct fake_cq *cq)
{
    uint64_t value;
    if (cq->pending == 0 || read(channel->fd, &value, sizeof(value)) != sizeof(value))
        return false;
    cq->pending--;
    return true;
}

/* What is pending is taken back; what somebody has taken out is waited for. */
static int destroy_cq(struct ibv_cq *cq)
{
    struct fake_cq *own = (struct fake_cq *)cq;
    pthread_mutex_lock(&fake.lock);
    fake.counts.cqs--;
    if (cq->channel != NULL) {
        struct fake_cq **at = &((struct fake_channel *)cq->channel)->first;
        while (*at != own)
            at = &(*at)->next;
        *at = own->next;
        while (take_event(cq->channel, own))
            ;
    }
    for (unsigned i = 0; i < 10000 && own->events != own->acknowledged; i++) {
        pthread_mutex_unlock(&fake.lock);
        usleep(1000);
        pthread_mutex_lock(&fake.lock);
    }
    fake.counts.late_events += own->events != own->acknowledged;
    pthread_mutex_unlock(&fake.lock);
    free(own->completions);
    free(own);
    return 0;
}

static void complete(struct fake_qp *qp, const struct fake_work *work, enum ibv_wc_status status)
{
    struct fake_cq *cq = (struct fake_cq *)qp->qp.send_cq;
    if (status == IBV_WC_SUCCESS && !work->is_signaled)
        return;
    if (cq->count == (uint32_t)cq->cq.cqe) {
        fake.counts.cq_overflows++;
        return;
    }
    cq->completions[cq->count++] =
        (struct ibv_wc){.wr_id = work->id, .status = status, .qp_num = qp->qp.qp_num, .byte_len = work->length};
    fake.counts.completions++;
    if (cq->is_armed && cq->cq.channel != NULL) {
        cq->is_armed = false;
        cq->pending++;
        fake_signal(cq->cq.channel->fd);
    }
}

static int poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *completions)
{
    struct fake_cq *own = (struct fake_cq *)cq;
    pthread_mutex_lock(&fake.lock);
    uint32_t taken = own->count < (uint32_t)count ? own->count : (uint32_t)count;
    memcpy(completions, own->completions, taken * sizeof(*completions));
    own->count -= taken;
    memmove(own->completions, own->completions + taken, own->count * sizeof(*completions));
    pthread_mutex_unlock(&fake.lock);
    return (int)taken;
}

static int req_notify_cq(struct ibv_cq *cq)
{
    pthread_mutex_lock(&fake.lock);
    ((struct fake_cq *)cq)->is_armed = true;
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

static int get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **context)
{
    pthread_mutex_lock(&fake.lock);
    struct fake_cq *own = ((struct fake_channel *)channel)->first;
    while (own != NULL && own->pending == 0)
        own = own->next;
    bool is_taken = own != NULL && take_event(channel, own);
    if (is_taken) {
        own->events++;
        *cq = &own->cq;
        *context = own->cq.cq_context;
    }
    pthread_mutex_unlock(&fake.lock);
    return is_taken ? 0 : -1;
}

static void ack_cq_events(struct ibv_cq *cq, unsigned count)
{
    pthread_mutex_lock(&fake.lock);
    ((struct fake_cq *)cq)->acknowledged += count;
    pthread_mutex_unlock(&fake.lock);
}

/* ---- queue pairs ---- */

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attributes)
{
    const struct fake_device_config *config = &device_of(pd->context)->config;
    if ((int)attributes->cap.max_send_wr > config->max_qp_wr || attributes->cap.max_send_sge > 4 ||
        (int)attributes->cap.max_inline_data > config->max_inline || attributes->qp_type != IBV_QPT_RC) {
        errno = EINVAL;
        return NULL;
    }
    pthread_mutex_lock(&fake.lock);
    int error = device_of(pd->context)->qp_error;
    pthread_mutex_unlock(&fake.lock);
    if (error != 0) {
        errno = error;
        return NULL;
    }
    struct fake_qp *qp = calloc(1, sizeof(*qp));
    qp->work = calloc(attributes->cap.max_send_wr, sizeof(*qp->work));
    qp->capacity = attributes->cap.max_send_wr;
    qp->max_inline = attributes->cap.max_inline_data;
    pthread_mutex_lock(&fake.lock);
    qp->qp = (struct ibv_qp){.context = pd->context,
                             .pd = pd,
                             .send_cq = attributes->send_cq,
                             .recv_cq = attributes->recv_cq,
                             .qp_num = ++fake.next_qpn,
                             .state = IBV_QPS_RESET,
                             .qp_type = IBV_QPT_RC};
    struct fake_qp **bucket = &fake.qps[qp->qp.qp_num % FAKE_QP_BUCKETS];
    qp->next = *bucket;
    *bucket = qp;
    fake.counts.qps++;
    fake.counts.qps_made++;
    fake.counts.heap += sizeof(*qp) + attributes->cap.max_send_wr * sizeof(*qp->work);
    pthread_mutex_unlock(&fake.lock);
    return &qp->qp;
}

static void flush(struct fake_qp *qp)
{
    qp->qp.state = IBV_QPS_ERR;
    for (uint32_t i = 0; i < qp->count; i++)
        complete(qp, &qp->work[i], IBV_WC_WR_FLUSH_ERR);
    fake.counts.under_way -= qp->count;
    qp->count = 0;
}

struct fake_qp *fake_qp_find(uint32_t number)
{
    for (struct fake_qp *qp = fake.qps[number % FAKE_QP_BUCKETS]; qp != NULL; qp = qp->next)
        if (qp->qp.qp_num == number)
            return qp;
    return NULL;
}

static const struct mc_gid_row *row_at(const struct fake_device *device, uint32_t index)
{
    for (uint32_t i = 0; i < device->config.row_count; i++)
        if (device->config.rows[i].index == index)
            return &device->config.rows[i];
    return NULL;
}

static int check_path(const struct fake_device *device, const struct ibv_ah_attr *path)
{
    if (device->config.is_iwarp)
        return EINVAL; /* only the connection manager can */
    if (!path->is_global)
        return device->config.is_infiniband && path->dlid != 0 ? 0 : EINVAL;
    const struct mc_gid_row *row = row_at(device, path->grh.sgid_index);
    if (row == NULL || mc_gid_is_null(path->grh.dgid.raw))
        return EINVAL;
    if (device->rtr_error != 0 && device->rtr_gid == (int)row->index)
        return device->rtr_error;
    if (!device->config.is_infiniband && mc_gid_is_v4(row->gid) != mc_gid_is_v4(path->grh.dgid.raw))
        return EINVAL;
    return 0;
}

static int modify_locked(struct fake_qp *qp, const struct ibv_qp_attr *attributes, int mask)
{
    const struct fake_device *device = device_of(qp->qp.context);
    enum ibv_qp_state next = attributes->qp_state;
    if ((mask & IBV_QP_STATE) == 0)
        return 0;
    if (next == IBV_QPS_ERR) {
        flush(qp);
        return 0;
    }
    if (next == IBV_QPS_INIT && (qp->qp.state == IBV_QPS_RESET || qp->qp.state == IBV_QPS_INIT)) {
        qp->access = attributes->qp_access_flags;
    } else if (next == IBV_QPS_RTR && qp->qp.state == IBV_QPS_INIT) {
        int error = check_path(device, &attributes->ah_attr);
        if (error != 0)
            return error;
        qp->path = attributes->ah_attr;
        qp->peer = attributes->dest_qp_num;
        qp->rq_psn = attributes->rq_psn;
        qp->mtu = attributes->path_mtu;
    } else if (next == IBV_QPS_RTS && qp->qp.state == IBV_QPS_RTR) {
        qp->sq_psn = attributes->sq_psn;
    } else {
        return EINVAL;
    }
    qp->qp.state = next;
    return 0;
}

/* The lock is held, but not while it sleeps. */
static int resolve(const struct ibv_qp *qp, const struct ibv_ah_attr *path)
{
    uint32_t device = fake_device_of(qp->context), ms = 0;
    int error = 0;
    for (uint32_t peer = 0; peer < fake.device_count; peer++)
        if (fake.slow_ms[device][peer] != 0 && path->is_global &&
            memcmp(fake.devices[peer].config.rows[0].gid, path->grh.dgid.raw, MC_GID_BYTES) == 0) {
            ms = fake.slow_ms[device][peer];
            error = fake.slow_error[device][peer];
        }
    if (ms == 0)
        return 0;
    fake.counts.slept++;
    pthread_mutex_unlock(&fake.lock);
    usleep(ms * 1000);
    pthread_mutex_lock(&fake.lock);
    return error;
}

static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask)
{
    pthread_mutex_lock(&fake.lock);
    int rc = (mask & IBV_QP_AV) != 0 ? resolve(qp, &attributes->ah_attr) : 0;
    if (rc == 0)
        rc = modify_locked((struct fake_qp *)qp, attributes, mask);
    pthread_mutex_unlock(&fake.lock);
    return rc;
}

static int destroy_qp(struct ibv_qp *qp)
{
    struct fake_qp *own = (struct fake_qp *)qp;
    struct fake_cq *cq = (struct fake_cq *)qp->send_cq;
    pthread_mutex_lock(&fake.lock);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < cq->count; i++)
        if (cq->completions[i].qp_num != qp->qp_num)
            cq->completions[kept++] = cq->completions[i];
    cq->count = kept;
    for (struct fake_qp **at = &fake.qps[qp->qp_num % FAKE_QP_BUCKETS]; *at != NULL; at = &(*at)->next)
        if (*at == own) {
            *at = own->next;
            break;
        }
    fake.counts.qps--;
    fake.counts.under_way -= own->count;
    pthread_mutex_unlock(&fake.lock);
    free(own->work);
    free(own);
    return 0;
}

/* ---- work ---- */

/* Would packets of qp arrive at peer, and be taken? */
static bool reaches(const struct fake_qp *qp, const struct fake_qp *peer)
{
    uint32_t a = fake_device_of(qp->qp.context), b = peer != NULL ? fake_device_of(peer->qp.context) : 0;
    if (peer == NULL || (peer->qp.state != IBV_QPS_RTR && peer->qp.state != IBV_QPS_RTS) ||
        peer->peer != qp->qp.qp_num || !fake.devices[a].is_port_up || !fake.devices[b].is_port_up || fake.is_cut[a][b])
        return false;
    if (qp->is_cm)
        return true;
    if (peer->rq_psn != qp->sq_psn || peer->mtu != qp->mtu)
        return false;
    if (!qp->path.is_global) { /* functions that share a LID are told apart by their GIDs alone */
        unsigned with_it = 0;
        for (uint32_t i = 0; i < fake.device_count; i++)
            with_it += fake.devices[i].config.is_infiniband && fake.devices[i].config.lid == qp->path.dlid;
        return qp->path.dlid == fake.devices[b].config.lid && with_it == 1;
    }
    /* The GID that the peer's own queue pair sends from must be the one that we send to. */
    const struct mc_gid_row *row = row_at(&fake.devices[b], peer->path.grh.sgid_index);
    return row != NULL && memcmp(row->gid, qp->path.grh.dgid.raw, MC_GID_BYTES) == 0;
}

#ifdef __SANITIZE_THREAD__
/* A device reads and writes without being a thread: an owner may change a slot meanwhile, and readers find that out. */
__attribute__((no_sanitize_thread)) static void move(void *to, const void *from, size_t length)
{
    volatile uint8_t *target = to;
    const volatile uint8_t *source = from;
    bool is_up = (uintptr_t)to <= (uintptr_t)from;
    for (size_t i = 0; i < length; i++)
        target[is_up ? i : length - 1 - i] = source[is_up ? i : length - 1 - i];
}
#else
#define move memmove
#endif

static enum ibv_wc_status execute(struct fake_qp *qp, const struct fake_work *work)
{
    struct fake_device *device = device_of(qp->qp.context);
    struct fake_qp *peer = fake_qp_find(qp->peer);
    bool is_read = work->opcode == IBV_WR_RDMA_READ;
    if (device->is_failing && device->fail_after-- == 0) {
        device->is_failing = false;
        return device->fail_status;
    }
    unsigned sink =
        (unsigned)IBV_ACCESS_LOCAL_WRITE | (device->config.is_iwarp ? (unsigned)IBV_ACCESS_REMOTE_WRITE : 0u);
    if (!work->is_inline &&
        region_for(qp->qp.pd, work->lkey, false, work->local, work->length, is_read ? sink : 0) == NULL)
        return IBV_WC_LOC_PROT_ERR;
    if (!reaches(qp, peer))
        return IBV_WC_RETRY_EXC_ERR;
    unsigned access = is_read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
    if ((peer->access & access) == 0 ||
        region_for(peer->qp.pd, work->rkey, true, work->remote, work->length, access) == NULL) {
        flush(peer);
        return IBV_WC_REM_ACCESS_ERR;
    }
    void *local = work->is_inline ? (void *)(uintptr_t)work->inlined : reached(work->local);
    void *remote = reached(work->remote);
    move(is_read ? local : remote, is_read ? remote : local, work->length);
    if (device->is_flipping)
        ((uint8_t *)(is_read ? local : remote))[work->length / 2] ^= 4;
    device->is_flipping = false;
    fake.counts.bytes[fake_device_of(qp->qp.context)] += work->length;
    return IBV_WC_SUCCESS;
}

static void step(struct fake_qp *qp)
{
    while (qp->count > 0 && qp->qp.state == IBV_QPS_RTS && !device_of(qp->qp.context)->is_held) {
        struct fake_work work = qp->work[0];
        memmove(qp->work, qp->work + 1, --qp->count * sizeof(*qp->work));
        fake.counts.under_way--;
        enum ibv_wc_status status = execute(qp, &work);
        complete(qp, &work, status);
        if (status != IBV_WC_SUCCESS)
            flush(qp);
        struct fake_device *device = device_of(qp->qp.context);
        device->is_held |= device->hold_at != 0 && fake.counts.bytes[fake_device_of(qp->qp.context)] >= device->hold_at;
    }
}

static int post_one(struct fake_qp *qp, const struct ibv_send_wr *request)
{
    struct fake_device *device = device_of(qp->qp.context);
    struct fake_work work = {.id = request->wr_id,
                             .opcode = request->opcode,
                             .local = request->sg_list[0].addr,
                             .remote = request->wr.rdma.remote_addr,
                             .length = request->sg_list[0].length,
                             .lkey = request->sg_list[0].lkey,
                             .rkey = request->wr.rdma.rkey,
                             .is_signaled = (request->send_flags & IBV_SEND_SIGNALED) != 0,
                             .is_inline = (request->send_flags & IBV_SEND_INLINE) != 0};
    if (device->is_post_failing && device->post_fail_after-- == 0) {
        device->is_post_failing = false;
        return ENOMEM;
    }
    if (request->num_sge != 1 || (qp->qp.state != IBV_QPS_RTS && qp->qp.state != IBV_QPS_ERR) ||
        (work.is_inline && (work.length > qp->max_inline || work.opcode != IBV_WR_RDMA_WRITE))) {
        fake.counts.bad_posts++;
        return EINVAL;
    }
    /* What was done and not asked for stays on the queue of a real device until a later completion is polled. */
    if (qp->count == qp->capacity) {
        fake.counts.send_overflows++;
        return ENOMEM;
    }
    if (work.is_inline)
        memcpy(work.inlined, (const void *)(uintptr_t)work.local, work.length);
    fake.counts.works++;
    fake.counts.signaled += work.is_signaled;
    fake.counts.inlined += work.is_inline;
    if (qp->qp.state == IBV_QPS_ERR)
        complete(qp, &work, IBV_WC_WR_FLUSH_ERR);
    else {
        qp->work[qp->count++] = work;
        fake.counts.under_way++;
    }
    return 0;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *request, struct ibv_send_wr **bad)
{
    struct fake_qp *own = (struct fake_qp *)qp;
    int rc = 0;
    pthread_mutex_lock(&fake.lock);
    for (; request != NULL && rc == 0; request = rc == 0 ? request->next : request) {
        rc = post_one(own, request);
        if (rc != 0)
            *bad = request;
    }
    step(own);
    pthread_mutex_unlock(&fake.lock);
    uint32_t slow_us = __atomic_load_n(&fake.slow_post_us, __ATOMIC_RELAXED);
    return slow_us == 0 ? rc : (usleep(slow_us), rc);
}

/* ---- what goes wrong ---- */

void fake_slow_posts(uint32_t us)
{
    __atomic_store_n(&fake.slow_post_us, us, __ATOMIC_RELAXED);
}

void fake_fail_work(uint32_t device, uint32_t after, enum ibv_wc_status status)
{
    pthread_mutex_lock(&fake.lock);
    fake.devices[device].is_failing = true;
    fake.devices[device].fail_after = after;
    fake.devices[device].fail_status = status;
    pthread_mutex_unlock(&fake.lock);
}

void fake_fail_post(uint32_t device, uint32_t after)
{
    pthread_mutex_lock(&fake.lock);
    fake.devices[device].is_post_failing = true;
    fake.devices[device].post_fail_after = after;
    pthread_mutex_unlock(&fake.lock);
}

void fake_flip(uint32_t device)
{
    pthread_mutex_lock(&fake.lock);
    fake.devices[device].is_flipping = true;
    pthread_mutex_unlock(&fake.lock);
}

void fake_hold(uint32_t device)
{
    pthread_mutex_lock(&fake.lock);
    fake.devices[device].is_held = true;
    pthread_mutex_unlock(&fake.lock);
}

void fake_hold_at(uint32_t device, uint64_t bytes)
{
    pthread_mutex_lock(&fake.lock);
    fake.devices[device].hold_at = bytes;
    pthread_mutex_unlock(&fake.lock);
}

void fake_release(uint32_t device)
{
    pthread_mutex_lock(&fake.lock);
    fake.devices[device].is_held = false;
    fake.devices[device].hold_at = 0;
    for (uint32_t i = 0; i < FAKE_QP_BUCKETS; i++)
        for (struct fake_qp *qp = fake.qps[i]; qp != NULL; qp = qp->next)
            step(qp);
    pthread_mutex_unlock(&fake.lock);
}

void fake_cut(uint32_t a, uint32_t b, bool is_cut)
{
    pthread_mutex_lock(&fake.lock);
    fake.is_cut[a][b] = fake.is_cut[b][a] = is_cut;
    pthread_mutex_unlock(&fake.lock);
}

void fake_port(uint32_t device, bool is_up)
{
    pthread_mutex_lock(&fake.lock);
    fake.devices[device].is_port_up = is_up;
    push_event(device, is_up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
    pthread_mutex_unlock(&fake.lock);
}

void fake_set_gids(uint32_t device, const struct mc_gid_row *rows, uint32_t count)
{
    pthread_mutex_lock(&fake.lock);
    memcpy(fake.devices[device].config.rows, rows, count * sizeof(*rows));
    fake.devices[device].config.row_count = count;
    push_event(device, IBV_EVENT_GID_CHANGE);
    pthread_mutex_unlock(&fake.lock);
}

void fake_lose_device(uint32_t device)
{
    pthread_mutex_lock(&fake.lock);
    fake.devices[device].is_port_up = false;
    push_event(device, IBV_EVENT_DEVICE_FATAL);
    pthread_mutex_unlock(&fake.lock);
}

void fake_fail_registrations(uint32_t device, uint32_t count, int error)
{
    pthread_mutex_lock(&fake.lock);
    fake.devices[device].failing_registrations = count;
    fake.devices[device].registration_error = error;
    pthread_mutex_unlock(&fake.lock);
}

void fake_fail_deregistrations(uint32_t device, uint32_t count, int error)
{
    pthread_mutex_lock(&fake.lock);
    fake.devices[device].failing_deregistrations = count;
    fake.devices[device].deregistration_error = error;
    pthread_mutex_unlock(&fake.lock);
}

void fake_hold_registrations(bool is_held)
{
    pthread_mutex_lock(&fake.lock);
    fake.holds_registrations = is_held;
    pthread_mutex_unlock(&fake.lock);
}

void fake_hold_deregistrations(bool is_held)
{
    pthread_mutex_lock(&fake.lock);
    fake.holds_deregistrations = is_held;
    pthread_mutex_unlock(&fake.lock);
}

void fake_fail_qps(uint32_t device, int error)
{
    pthread_mutex_lock(&fake.lock);
    fake.devices[device].qp_error = error;
    pthread_mutex_unlock(&fake.lock);
}

void fake_fail_rtr(uint32_t device, int gid_index, int error)
{
    pthread_mutex_lock(&fake.lock);
    fake.devices[device].rtr_gid = gid_index;
    fake.devices[device].rtr_error = error;
    pthread_mutex_unlock(&fake.lock);
}

void fake_slow_rtr(uint32_t device, uint32_t peer, uint32_t ms, int error)
{
    pthread_mutex_lock(&fake.lock);
    fake.slow_ms[device][peer] = ms;
    fake.slow_error[device][peer] = error;
    pthread_mutex_unlock(&fake.lock);
}

void fake_gpu_memory(void *address, size_t length)
{
    fake.gpu = address;
    fake.gpu_length = length;
}

void fake_gpu_reach(void *(*reach)(uint64_t address))
{
    fake.gpu_reach = reach;
}

struct fake_counts fake_counts(void)
{
    pthread_mutex_lock(&fake.lock);
    struct fake_counts counts = fake.counts;
    pthread_mutex_unlock(&fake.lock);
    return counts;
}

/* ---- the table ---- */

struct fake_device_config fake_roce(uint32_t number)
{
    static const char *const names[FAKE_DEVICES_MAX] = {"fake0", "fake1", "fake2", "fake3",
                                                        "fake4", "fake5", "fake6", "fake7"};
    struct fake_device_config config = {.name = names[number], .row_count = 1};
    config.rows[0] = (struct mc_gid_row){.index = 0, .type = MC_GID_ROCE_V2, .is_here = true, .prefix_length = 24};
    memcpy(config.rows[0].gid, (uint8_t[]){[10] = 0xff, 0xff, 10, 0, 0, (uint8_t)(number + 1)}, MC_GID_BYTES);
    snprintf(config.rows[0].netdev, sizeof(config.rows[0].netdev), "eth%u", (unsigned)number);
    return config;
}

void fake_reset(const struct fake_device_config *devices, uint32_t count)
{
    pthread_mutex_lock(&fake.lock);
    memset(&fake.counts, 0, sizeof(fake.counts));
    memset(fake.devices, 0, sizeof(fake.devices));
    memset(fake.is_cut, 0, sizeof(fake.is_cut));
    fake.holds_registrations = fake.holds_deregistrations = false;
    fake.slow_post_us = 0;
    memset(fake.slow_ms, 0, sizeof(fake.slow_ms));
    fake.gpu = NULL;
    fake.gpu_length = 0;
    fake.gpu_reach = NULL;
    fake.device_count = count;
    for (uint32_t i = 0; i < count; i++) {
        struct fake_device *device = &fake.devices[i];
        device->config = devices[i];
        device->config.max_mr_size = devices[i].max_mr_size != 0 ? devices[i].max_mr_size : (uint64_t)1 << 40;
        device->config.max_qp_wr = devices[i].max_qp_wr != 0 ? devices[i].max_qp_wr : 1024;
        device->config.max_cqe = devices[i].max_cqe != 0 ? devices[i].max_cqe : 65536;
        device->config.max_inline = devices[i].max_inline > 0   ? devices[i].max_inline
                                    : devices[i].max_inline < 0 ? 0
                                                                : 256;
        device->config.mtu = devices[i].mtu != 0 ? devices[i].mtu : IBV_MTU_4096;
        device->is_port_up = true;
        snprintf(device->device.name, sizeof(device->device.name), "%s", devices[i].name);
        device->device.transport_type = devices[i].is_iwarp ? IBV_TRANSPORT_IWARP : IBV_TRANSPORT_IB;
    }
    pthread_mutex_unlock(&fake.lock);
}

const struct mc_verbs *fake_verbs(void)
{
    static struct mc_verbs verbs = {
        .get_device_list = get_device_list,
        .free_device_list = free_device_list,
        .get_device_name = get_device_name,
        .open_device = open_device,
        .close_device = close_device,
        .query_device = query_device,
        .alloc_pd = alloc_pd,
        .dealloc_pd = dealloc_pd,
        .dereg_mr = dereg_mr,
        .create_comp_channel = create_comp_channel,
        .destroy_comp_channel = destroy_comp_channel,
        .create_cq = create_cq,
        .destroy_cq = destroy_cq,
        .get_cq_event = get_cq_event,
        .ack_cq_events = ack_cq_events,
        .create_qp = create_qp,
        .modify_qp = modify_qp,
        .destroy_qp = destroy_qp,
        .get_async_event = get_async_event,
        .ack_async_event = ack_async_event,
        .reg_dmabuf_mr = reg_dmabuf_mr,
        .poll_cq = poll_cq,
        .req_notify_cq = req_notify_cq,
        .post_send = post_send,
        .query_port = query_port,
        .reg_mr = reg_mr,
        .read_gids = read_gids,
        .locate = locate,
        .find_netdev = find_netdev,
    };
    if (!verbs.has_cm) /* at the first call, before there is another thread */
        fake_cm_fill(&verbs);
    if (getenv("MC_TEST_REAL_VERBS") != NULL) /* tests/rdma: the same suites, on the devices that are there */
        return NULL;
    return &verbs;
}
