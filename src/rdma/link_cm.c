/* Set-up by rdma_cm: what iWARP needs, and what RoCE and InfiniBand can. The queue pairs stay ours, on the contexts
 * where memory is registered; rdma_cm's identifiers only lead them through their states (id->qp, as rdma_create_qp sets
 * it). */
#include "rdma/pair.h"

#include "env/clock.h"
#include "env/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <poll.h>
#include <stdio.h>

#define BACKLOG 1024
#define STEP_MS 2000 /* the kernel's own limit for resolving address and route */
#define MAGIC 0x6d635f726d646131ull
#define CM_RETRIES 7

struct hello { /* what the asking side shows to the listener */
    uint64_t magic, token;
};

/* Of a call that failed: never 0. */
static int last_error(void)
{
    int error = errno;
    return error != 0 ? error : EIO;
}

/* ---- addresses ---- */

static bool address_of_interface(const char *name, char *text, size_t size)
{
    struct ifaddrs *all = NULL;
    bool is_found = false;
    if (name[0] == 0 || getifaddrs(&all) != 0)
        return false;
    for (int family = 0; family < 2 && !is_found; family++)
        for (const struct ifaddrs *one = all; one != NULL && !is_found; one = one->ifa_next) {
            if (one->ifa_addr == NULL || strcmp(one->ifa_name, name) != 0)
                continue;
            const struct sockaddr *address = one->ifa_addr;
            const struct in6_addr *v6 = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
            if (family == 0 && address->sa_family == AF_INET)
                is_found = inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)address)->sin_addr, text,
                                     (socklen_t)size) != NULL;
            else if (family == 1 && address->sa_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(v6))
                is_found = inet_ntop(AF_INET6, v6, text, (socklen_t)size) != NULL;
        }
    freeifaddrs(all);
    return is_found;
}

/* The address of the device's interface that fits the peer's best. */
static bool own_address(struct mc_rdma_device *device, const uint8_t *peer_gid, char *text, size_t size)
{
    char reason[MC_RDMA_REASON_MAX], netdev[32] = "";
    bool is_found = false;
    pthread_mutex_lock(&device->rdma->lock);
    int row = mc_gid_choose(device->rows, device->row_count, MC_RDMA_ROCE, -1,
                            peer_gid == NULL || mc_gid_is_null(peer_gid) ? NULL : peer_gid, 0, reason, sizeof(reason));
    if (row >= 0 && device->rows[row].is_here && !mc_gid_is_link_local(device->rows[row].gid)) {
        mc_gid_address(device->rows[row].gid, text, size);
        is_found = true;
    } else if (device->row_count > 0) {
        snprintf(netdev, sizeof(netdev), "%s", device->rows[0].netdev);
    }
    pthread_mutex_unlock(&device->rdma->lock);
    if (is_found)
        return true;
    if (netdev[0] == 0) /* iWARP: rows hold no addresses */
        device->rdma->verbs->find_netdev(device->context->device, netdev, sizeof(netdev));
    return address_of_interface(netdev, text, size);
}

bool mc_rdma_cm_address(struct mc_rdma_device *device, const uint8_t *peer_gid, char *text, size_t size)
{
    char host[INET6_ADDRSTRLEN];
    if (device->rdma->cm.channel == NULL || !own_address(device, peer_gid, host, sizeof(host)))
        return false;
    mc_address_join(text, size, host, device->rdma->cm.port);
    return true;
}

static bool to_sockaddr(const char *host, uint16_t port, struct sockaddr_storage *address)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)(void *)address;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)(void *)address;
    memset(address, 0, sizeof(*address));
    if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
        return true;
    }
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    return inet_pton(AF_INET6, host, &v6->sin6_addr) == 1;
}

/* ---- both sides ---- */

static struct rdma_conn_param parameters(const struct mc_rdma_device *device, const struct mc_rdma_half *half)
{
    int reads = device->attributes.max_qp_rd_atom, asks = device->attributes.max_qp_init_rd_atom;
    return (struct rdma_conn_param){
        .responder_resources = (uint8_t)(reads < (int)MC_RDMA_READS_MAX ? reads : (int)MC_RDMA_READS_MAX),
        .initiator_depth = (uint8_t)(asks < (int)MC_RDMA_READS_MAX ? asks : (int)MC_RDMA_READS_MAX),
        .retry_count = CM_RETRIES,
        .rnr_retry_count = CM_RETRIES,
        .qp_num = half->qp->qp_num,
    };
}

/* Gives our queue pair to the identifier, in the state that it expects. */
static int adopt(const struct mc_verbs *verbs, struct rdma_cm_id *id, struct mc_rdma_half *half)
{
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_INIT};
    int mask = 0;
    id->qp = half->qp;
    if (verbs->cm_init_qp_attr(id, &attributes, &mask) != 0)
        return last_error();
    return verbs->modify_qp(half->qp, &attributes, mask);
}

/* ---- the asking side ---- */

/* Waits for one event of the channel. 0: it is the wanted one. Else an errno. */
static int expect(const struct mc_verbs *verbs, struct rdma_event_channel *channel, enum rdma_cm_event_type wanted,
                  uint64_t deadline_ns)
{
    struct rdma_cm_event *event;
    for (;;) {
        if (verbs->cm_get_event(channel, &event) == 0)
            break;
        uint64_t now_ns = mc_clock_ns();
        if (errno != EAGAIN && errno != EINTR)
            return last_error();
        if (now_ns >= deadline_ns)
            return ETIMEDOUT;
        struct pollfd fd = {.fd = channel->fd, .events = POLLIN};
        uint64_t wait_ms = (deadline_ns - now_ns) / 1000000u + 1;
        (void)poll(&fd, 1, wait_ms < 1000 ? (int)wait_ms : 1000);
    }
    int error = event->event == wanted ? 0 : event->status < 0 ? -event->status : ECONNREFUSED;
    (void)verbs->cm_ack_event(event);
    return error;
}

static int open_id(struct mc_rdma *rdma, struct mc_rdma_half *half)
{
    const struct mc_verbs *verbs = rdma->verbs;
    half->cm_channel = verbs->cm_create_channel();
    if (half->cm_channel == NULL)
        return last_error();
    mc_rdma_fd_opened(rdma, half->cm_channel->fd);
    (void)fcntl(half->cm_channel->fd, F_SETFL, fcntl(half->cm_channel->fd, F_GETFL) | O_NONBLOCK);
    if (verbs->cm_create_id(half->cm_channel, &half->id, NULL, RDMA_PS_TCP) == 0 && half->id != NULL)
        return 0;
    half->id = NULL;
    return last_error();
}

static int resolve(struct mc_rdma_device *device, struct mc_rdma_half *half, const struct mc_rdma_tell *peer,
                   uint64_t deadline_ns, const char **step)
{
    const struct mc_verbs *verbs = device->rdma->verbs;
    struct sockaddr_storage source, target;
    char host[INET6_ADDRSTRLEN], own[INET6_ADDRSTRLEN];
    uint16_t port = 0;
    *step = "the peer's address";
    if (mc_address_split(peer->cm_address, host, sizeof(host), &port) < 0 || port == 0 ||
        !to_sockaddr(host, port, &target))
        return EINVAL;
    *step = "an address of ours";
    if (!own_address(device, peer->gid, own, sizeof(own)) || !to_sockaddr(own, 0, &source))
        return EADDRNOTAVAIL;
    *step = "resolving the address";
    if (verbs->cm_resolve_addr(half->id, (struct sockaddr *)&source, (struct sockaddr *)&target, STEP_MS) != 0)
        return last_error();
    int error = expect(verbs, half->cm_channel, RDMA_CM_EVENT_ADDR_RESOLVED, deadline_ns);
    if (error != 0)
        return error;
    *step = "the device of our address";
    if (half->id->verbs == NULL || strcmp(half->id->verbs->device->name, device->name) != 0)
        return ENODEV;
    *step = "resolving the route";
    if (verbs->cm_resolve_route(half->id, STEP_MS) != 0)
        return last_error();
    return expect(verbs, half->cm_channel, RDMA_CM_EVENT_ROUTE_RESOLVED, deadline_ns);
}

/* What comes of it from now on is nothing that anybody waits for: it goes to the watching thread, and the descriptor of
 * the set-up is closed. */
static void leave_channel(struct mc_rdma *rdma, struct mc_rdma_half *half)
{
    if (rdma->cm.channel == NULL || rdma->verbs->cm_migrate_id(half->id, rdma->cm.channel) != 0)
        return;
    mc_rdma_fd_closing(rdma, half->cm_channel->fd);
    rdma->verbs->cm_destroy_channel(half->cm_channel);
    half->cm_channel = NULL;
}

int mc_rdma_cm_connect(struct mc_rdma_link *link, uint32_t pair, struct mc_rdma_half *half,
                       const struct mc_rdma_tell *peer, uint64_t deadline_ns, char *reason, size_t size)
{
    struct mc_rdma_device *device = link->pairs[pair].device;
    const struct mc_verbs *verbs = link->rdma->verbs;
    struct hello hello = {MAGIC, peer->token};
    const char *step = "opening an identifier";
    int error = verbs->has_cm ? open_id(link->rdma, half) : ENOSYS;
    if (error == 0)
        error = resolve(device, half, peer, deadline_ns, &step);
    if (error == 0) {
        step = "the queue pair";
        error = adopt(verbs, half->id, half);
    }
    if (error == 0) {
        struct rdma_conn_param parameter = parameters(device, half);
        parameter.private_data = &hello;
        parameter.private_data_len = sizeof(hello);
        step = "connecting";
        error = verbs->cm_connect(half->id, &parameter) != 0
                    ? last_error()
                    : expect(verbs, half->cm_channel, RDMA_CM_EVENT_ESTABLISHED, deadline_ns);
    }
    if (error == 0) {
        leave_channel(link->rdma, half);
        return 0;
    }
    snprintf(reason, size, "%s to %s by rdma_cm: %s: %s", device->name, peer->cm_address, step, strerror(error));
    return MC_ERR_TRANSFER_FAIL;
}

/* ---- the serving side ---- */

static int listen_at(struct mc_rdma *rdma, const char *host)
{
    struct sockaddr_storage address;
    const struct mc_verbs *verbs = rdma->verbs;
    if (!to_sockaddr(host, 0, &address))
        return EINVAL;
    if (verbs->cm_create_id(rdma->cm.channel, &rdma->cm.listener, NULL, RDMA_PS_TCP) != 0)
        return last_error();
    if (verbs->cm_bind_addr(rdma->cm.listener, (struct sockaddr *)&address) == 0 &&
        verbs->cm_listen(rdma->cm.listener, BACKLOG) == 0) {
        rdma->cm.port = ntohs(verbs->cm_get_src_port(rdma->cm.listener));
        return 0;
    }
    int error = last_error();
    (void)verbs->cm_destroy_id(rdma->cm.listener);
    rdma->cm.listener = NULL;
    return error;
}

int mc_rdma_cm_listen(struct mc_rdma *rdma)
{
    const struct mc_verbs *verbs = rdma->verbs;
    if (!verbs->has_cm) {
        mc_log(WARNING, "rdma_cm is asked for, but librdmacm.so.1 is not here");
        return MC_ERR_UNAVAILABLE_IN_CURRENT_MODE;
    }
    rdma->cm.channel = verbs->cm_create_channel();
    if (rdma->cm.channel == NULL)
        return MC_ERR_UNAVAILABLE_IN_CURRENT_MODE;
    mc_rdma_fd_opened(rdma, rdma->cm.channel->fd);
    (void)fcntl(rdma->cm.channel->fd, F_SETFL, fcntl(rdma->cm.channel->fd, F_GETFL) | O_NONBLOCK);
    int error = listen_at(rdma, "::");
    if (error != 0)
        error = listen_at(rdma, "0.0.0.0");
    if (error == 0)
        return 0;
    mc_log(WARNING, "rdma_cm cannot listen: %s", strerror(error));
    mc_rdma_cm_close(rdma);
    return MC_ERR_UNAVAILABLE_IN_CURRENT_MODE;
}

void mc_rdma_cm_close(struct mc_rdma *rdma)
{
    if (rdma->cm.channel == NULL)
        return;
    if (rdma->cm.listener != NULL)
        (void)rdma->verbs->cm_destroy_id(rdma->cm.listener);
    mc_rdma_fd_closing(rdma, rdma->cm.channel->fd);
    rdma->verbs->cm_destroy_channel(rdma->cm.channel);
    rdma->cm = (struct mc_rdma_cm){0};
}

/* The pair that waits for the one who shows this token; its link is visited until leave. */
static struct mc_rdma_pair *visit(struct mc_rdma *rdma, uint64_t token, struct mc_rdma_link **link)
{
    struct mc_rdma_pair *found = NULL;
    pthread_mutex_lock(&rdma->lock);
    for (struct mc_rdma_link *one = rdma->serving; one != NULL && found == NULL; one = one->next)
        for (uint32_t i = 0; i < MC_RDMA_PAIRS_MAX && found == NULL; i++)
            if (token != 0 && one->pairs[i].token == token) {
                found = &one->pairs[i];
                one->is_visited = true;
                *link = one;
            }
    pthread_mutex_unlock(&rdma->lock);
    return found;
}

static void leave(struct mc_rdma_link *link)
{
    pthread_mutex_lock(&link->rdma->lock);
    link->is_visited = false;
    pthread_cond_broadcast(&link->rdma->unvisited);
    pthread_mutex_unlock(&link->rdma->lock);
}

/* link->lock is held. */
static int accept_pair(struct mc_rdma_link *link, struct mc_rdma_pair *pair, struct rdma_cm_id *id, uint64_t token)
{
    const struct mc_verbs *verbs = link->rdma->verbs;
    struct mc_rdma_half half;
    if (pair->token != token || id->verbs == NULL || strcmp(id->verbs->device->name, pair->device->name) != 0)
        return EPERM;
    if (mc_rdma_half_create(link, pair, &half, pair->error, sizeof(pair->error)) != 0)
        return ENOMEM;
    int error = adopt(verbs, id, &half);
    if (error == 0) {
        struct rdma_conn_param parameter = parameters(pair->device, &half);
        error = verbs->cm_accept(id, &parameter) != 0 ? last_error() : 0;
    }
    if (error != 0) {
        id->qp = NULL;
        mc_rdma_half_destroy(link->rdma, &half);
        return error;
    }
    half.id = id;
    pair->current = half;
    pair->token = 0;
    pair->is_up = true;
    link->rdma->count.pairs_served++;
    return 0;
}

static void serve_request(struct mc_rdma *rdma, struct rdma_cm_id *id, const struct hello *hello)
{
    struct mc_rdma_link *link = NULL;
    struct mc_rdma_pair *pair = hello->magic == MAGIC ? visit(rdma, hello->token, &link) : NULL;
    int error = EPERM;
    if (pair != NULL) {
        pthread_mutex_lock(&link->lock);
        error = accept_pair(link, pair, id, hello->token);
        pthread_mutex_unlock(&link->lock);
        leave(link);
    }
    if (error == 0)
        return;
    mc_log_limited(WARNING, "a request of rdma_cm is refused: %s", strerror(error));
    (void)rdma->verbs->cm_reject(id, NULL, 0);
    (void)rdma->verbs->cm_destroy_id(id);
}

void mc_rdma_cm_events(struct mc_rdma *rdma)
{
    struct rdma_cm_event *event;
    while (rdma->verbs->cm_get_event(rdma->cm.channel, &event) == 0) {
        struct hello hello = {0, 0};
        struct rdma_cm_id *id = event->id;
        bool is_request = event->event == RDMA_CM_EVENT_CONNECT_REQUEST;
        if (is_request && event->param.conn.private_data != NULL && event->param.conn.private_data_len >= sizeof(hello))
            memcpy(&hello, event->param.conn.private_data, sizeof(hello));
        /* First, because an identifier is not destroyed before its events are acknowledged. The others need no answer:
         * the asking side sees them as broken work. */
        (void)rdma->verbs->cm_ack_event(event);
        if (is_request)
            serve_request(rdma, id, &hello);
    }
}
