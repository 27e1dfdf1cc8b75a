/* The connection manager of the fake device: addresses are those of the devices' GIDs, ports are numbers in a table. */
#include "fake_inside.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define EVENTS_MAX 64
#define LISTENERS_MAX 8

struct event {
    struct rdma_cm_event event; /* first */
    uint8_t private_data[64];
};

struct channel {
    struct rdma_event_channel channel; /* first */
    struct event *events[EVENTS_MAX];
    uint32_t count;
};

struct id {
    struct rdma_cm_id id; /* first */
    struct id *peer;
    uint16_t port;
    uint32_t device;
    struct ibv_context *context; /* of the manager's own, as librdmacm has them */
};

static struct id *listeners[LISTENERS_MAX];
static uint16_t next_port = 20000;

static struct rdma_event_channel *create_channel(void)
{
    struct channel *channel = calloc(1, sizeof(*channel));
    channel->channel.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    return &channel->channel;
}

static void destroy_channel(struct rdma_event_channel *channel)
{
    struct channel *own = (struct channel *)channel;
    for (uint32_t i = 0; i < own->count; i++)
        free(own->events[i]);
    (void)close(channel->fd);
    free(own);
}

static void push(struct id *id, enum rdma_cm_event_type type, const void *data, size_t length)
{
    struct channel *channel = (struct channel *)id->id.channel;
    struct event *event = calloc(1, sizeof(*event));
    mc_assert(channel->count < EVENTS_MAX && length <= sizeof(event->private_data));
    event->event.id = &id->id;
    event->event.event = type;
    if (length > 0) {
        memcpy(event->private_data, data, length);
        event->event.param.conn.private_data = event->private_data;
        event->event.param.conn.private_data_len = (uint8_t)length;
    }
    channel->events[channel->count++] = event;
    fake_signal(channel->channel.fd);
}

static int get_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
    struct channel *own = (struct channel *)channel;
    uint64_t value;
    if (read(channel->fd, &value, sizeof(value)) != sizeof(value))
        return -1;
    pthread_mutex_lock(&fake.lock);
    *event = &own->events[0]->event;
    memmove(own->events, own->events + 1, --own->count * sizeof(own->events[0]));
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

static int ack_event(struct rdma_cm_event *event)
{
    free(event);
    return 0;
}

static struct id *make_id(struct rdma_event_channel *channel)
{
    struct id *id = calloc(1, sizeof(*id));
    id->id.channel = channel;
    fake.counts.ids++;
    return id;
}

static int create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context,
                     enum rdma_port_space space)
{
    (void)context;
    mc_assert(space == RDMA_PS_TCP);
    pthread_mutex_lock(&fake.lock);
    *id = &make_id(channel)->id;
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

static void close_context(struct id *id)
{
    for (uint32_t i = 0; i < FAKE_CONTEXTS_MAX && id->context != NULL; i++)
        if (fake.contexts[i] == (struct fake_context *)id->context)
            fake.contexts[i] = NULL;
    if (id->context != NULL)
        (void)close(id->context->async_fd);
    free(id->context);
}

static int destroy_id(struct rdma_cm_id *id)
{
    struct id *own = (struct id *)id;
    pthread_mutex_lock(&fake.lock);
    mc_assert(id->qp == NULL);
    for (uint32_t i = 0; i < LISTENERS_MAX; i++)
        if (listeners[i] == own)
            listeners[i] = NULL;
    if (own->peer != NULL)
        own->peer->peer = NULL;
    close_context(own);
    fake.counts.ids--;
    pthread_mutex_unlock(&fake.lock);
    free(own);
    return 0;
}

static int bind_addr(struct rdma_cm_id *id, struct sockaddr *address)
{
    (void)address;
    ((struct id *)id)->port = ++next_port;
    return 0;
}

static int listen_on(struct rdma_cm_id *id, int backlog)
{
    (void)backlog;
    pthread_mutex_lock(&fake.lock);
    for (uint32_t i = 0; i < LISTENERS_MAX; i++)
        if (listeners[i] == NULL) {
            listeners[i] = (struct id *)id;
            break;
        }
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

static __be16 get_src_port(struct rdma_cm_id *id)
{
    return htons(((struct id *)id)->port);
}

/* The device with that IPv4 address; -1: none. */
static int device_at(const struct sockaddr *address)
{
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)address;
    for (uint32_t i = 0; i < fake.device_count; i++)
        for (uint32_t j = 0; j < fake.devices[i].config.row_count; j++)
            if (address->sa_family == AF_INET && mc_gid_is_v4(fake.devices[i].config.rows[j].gid) &&
                memcmp(fake.devices[i].config.rows[j].gid + 12, &v4->sin_addr, 4) == 0)
                return (int)i;
    return -1;
}

static void take_device(struct id *id, int device)
{
    id->device = (uint32_t)device;
    id->context = fake_context_open((uint32_t)device);
    id->id.verbs = id->context;
}

static int resolve_addr(struct rdma_cm_id *id, struct sockaddr *source, struct sockaddr *target, int timeout_ms)
{
    (void)timeout_ms;
    struct id *own = (struct id *)id;
    pthread_mutex_lock(&fake.lock);
    int device = device_at(source), other = device_at(target);
    if (device >= 0 && other >= 0 && !fake.is_cut[device][other]) {
        take_device(own, device);
        memcpy(&id->route.addr.dst_addr, target, sizeof(struct sockaddr_in));
        push(own, RDMA_CM_EVENT_ADDR_RESOLVED, NULL, 0);
    } else {
        push(own, RDMA_CM_EVENT_ADDR_ERROR, NULL, 0);
    }
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

static int resolve_route(struct rdma_cm_id *id, int timeout_ms)
{
    (void)timeout_ms;
    pthread_mutex_lock(&fake.lock);
    push((struct id *)id, RDMA_CM_EVENT_ROUTE_RESOLVED, NULL, 0);
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

static int init_qp_attr(struct rdma_cm_id *id, struct ibv_qp_attr *attributes, int *mask)
{
    (void)id;
    attributes->qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    *mask = IBV_QP_STATE | IBV_QP_ACCESS_FLAGS;
    return 0;
}

static int connect_to(struct rdma_cm_id *id, struct rdma_conn_param *parameter)
{
    struct id *own = (struct id *)id, *listener = NULL;
    const struct sockaddr_in *target = (const struct sockaddr_in *)(const void *)&id->route.addr.dst_addr;
    mc_assert(id->qp != NULL && id->qp->state == IBV_QPS_INIT);
    pthread_mutex_lock(&fake.lock);
    for (uint32_t i = 0; i < LISTENERS_MAX; i++)
        if (listeners[i] != NULL && listeners[i]->port == ntohs(target->sin_port))
            listener = listeners[i];
    if (listener == NULL) {
        push(own, RDMA_CM_EVENT_REJECTED, NULL, 0);
    } else {
        struct id *request = make_id(listener->id.channel);
        take_device(request, device_at(&id->route.addr.dst_addr));
        request->peer = own;
        own->peer = request;
        push(request, RDMA_CM_EVENT_CONNECT_REQUEST, parameter->private_data, parameter->private_data_len);
    }
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

static void join(struct fake_qp *qp, const struct fake_qp *peer)
{
    qp->peer = peer->qp.qp_num;
    qp->qp.state = IBV_QPS_RTS;
    qp->is_cm = true;
}

static int accept_request(struct rdma_cm_id *id, struct rdma_conn_param *parameter)
{
    struct id *own = (struct id *)id;
    (void)parameter;
    pthread_mutex_lock(&fake.lock);
    struct id *peer = own->peer;
    int rc = -1;
    if (peer != NULL && peer->id.qp != NULL && id->qp != NULL) {
        join((struct fake_qp *)id->qp, (struct fake_qp *)peer->id.qp);
        join((struct fake_qp *)peer->id.qp, (struct fake_qp *)id->qp);
        push(peer, RDMA_CM_EVENT_ESTABLISHED, NULL, 0);
        push(own, RDMA_CM_EVENT_ESTABLISHED, NULL, 0);
        rc = 0;
    }
    pthread_mutex_unlock(&fake.lock);
    if (rc != 0)
        errno = ECONNRESET;
    return rc;
}

static int reject(struct rdma_cm_id *id, const void *data, uint8_t length)
{
    (void)data, (void)length;
    pthread_mutex_lock(&fake.lock);
    if (((struct id *)id)->peer != NULL)
        push(((struct id *)id)->peer, RDMA_CM_EVENT_REJECTED, NULL, 0);
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

static int disconnect(struct rdma_cm_id *id)
{
    (void)id;
    return 0;
}

static int migrate_id(struct rdma_cm_id *id, struct rdma_event_channel *channel)
{
    pthread_mutex_lock(&fake.lock);
    mc_assert(((struct channel *)id->channel)->count == 0); /* moving them, too, is left out here */
    id->channel = channel;
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

void fake_cm_fill(struct mc_verbs *verbs)
{
    verbs->has_cm = true;
    verbs->cm_create_channel = create_channel;
    verbs->cm_destroy_channel = destroy_channel;
    verbs->cm_create_id = create_id;
    verbs->cm_destroy_id = destroy_id;
    verbs->cm_bind_addr = bind_addr;
    verbs->cm_listen = listen_on;
    verbs->cm_get_src_port = get_src_port;
    verbs->cm_resolve_addr = resolve_addr;
    verbs->cm_resolve_route = resolve_route;
    verbs->cm_init_qp_attr = init_qp_attr;
    verbs->cm_connect = connect_to;
    verbs->cm_accept = accept_request;
    verbs->cm_reject = reject;
    verbs->cm_disconnect = disconnect;
    verbs->cm_migrate_id = migrate_id;
    verbs->cm_get_event = get_event;
    verbs->cm_ack_event = ack_event;
}
