/* The thread that serves peers: handshakes, data connections, and initiators of this machine. One epoll loop; a
 * connection does one receive and one send in its turn, so none can hold up another. */
#include "transfer/peer/peer.h"
#include "transfer/peer/settle.h"
#include "transfer/serve/memory.h"
#include "transfer/serve/service.h"
#include "transfer/serve/service_inside.h"
#include "rdma/link.h"

#include "base/checksum.h"
#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "env/secure.h"
#include "env/socket.h"

#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define EVENTS_PER_TURN 64
#define STRANGERS_PER_TURN 8 /* and so many new ones: they cost others of the turn less than a request of their own */
#define STRANGERS_NS 300000u /* or none after so long: a handshake of TLS takes a millisecond */
#define ACCEPTS_PER_TURN 8u
#define TICK_MS 500u
#define ANSWER_LOOK_MS 20 /* while offers are being answered */
#define DEVICE_LOOK_MS 1  /* while a device has to end something first */
#define SEND_PARTS 64u
#define KEEPALIVE_IDLE_S 60
#define DATA_STALL_MS 60000u
#define CAREFUL_BYTES ((size_t)256 << 10) /* of any memory by TLS, likewise */

/* ---- connections ---- */

static int watched_by(const struct mc_service_connection *connection)
{
    return connection->is_strange ? connection->service->strangers_fd : connection->service->epoll_fd;
}

static void wants(struct mc_service_connection *connection, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = connection};
    if (connection->events == events)
        return;
    connection->events = events;
    mc_assert(epoll_ctl(watched_by(connection), EPOLL_CTL_MOD, connection->fd, &event) == 0);
}

static int watch(struct mc_service *service, struct mc_service_connection *connection, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = connection};
    connection->service = service;
    connection->events = events;
    return epoll_ctl(watched_by(connection), EPOLL_CTL_ADD, connection->fd, &event);
}

/* Closing alone would leave it watched while a forked child still has its copy. */
static void unwatch(struct mc_service_connection *connection)
{
    (void)epoll_ctl(watched_by(connection), EPOLL_CTL_DEL, connection->fd, NULL);
}

void mc_connection_asked(struct mc_service_connection *connection)
{
    struct mc_service *service = connection->service;
    struct epoll_event event = {.events = connection->events, .data.ptr = connection};
    connection->has_asked = true;
    mc_places_asked(connection);
    if (!connection->is_strange || epoll_ctl(service->epoll_fd, EPOLL_CTL_ADD, connection->fd, &event) != 0)
        return; /* no memory: it is served as strangers are */
    unwatch(connection);
    connection->is_strange = false;
}

static void leave_answering(struct mc_service_connection *connection)
{
    struct mc_service_connection **at = &connection->service->answering;
    while (*at != connection)
        at = &(*at)->next_answering;
    *at = connection->next_answering;
    connection->is_answering = false;
}

/* Unlinked at once; freed at the end of the turn, as an event of this turn may still name it. */
static void drop(struct mc_service_connection *connection, bool is_abort)
{
    struct mc_service *service = connection->service;
    if (connection->is_dead)
        return;
    connection->is_dead = true;
    if (connection->kind == MC_CONNECTION_DATA) {
        service->engine->count.served_bytes += connection->data->bytes;
        service->engine->count.refused += connection->data->refused;
        mc_inbound_end(connection->data);
    }
    if (connection->kind == MC_CONNECTION_HOST)
        mc_host_serve_end(connection);
    unwatch(connection);
    if (connection->is_answering)
        leave_answering(connection);
    if (connection->is_heard)
        service->engine->heard_links--;
    if (connection->served != NULL)
        mc_rdma_link_close(connection->served); /* before the descriptor: its end tells the peer that nothing arrives */
    if (is_abort)
        mc_transfer_reset_fd(connection->fd);
    else
        mc_transfer_close_fd(connection->fd);
    *(connection->previous == NULL ? &service->connections : &connection->previous->next) = connection->next;
    if (connection->next != NULL)
        connection->next->previous = connection->previous;
    mc_places_leave(connection);
    connection->next = service->dead;
    service->dead = connection;
}

void mc_connection_drop(struct mc_service_connection *connection)
{
    drop(connection, false);
}

void mc_connection_abort(struct mc_service_connection *connection)
{
    drop(connection, true);
}

static void bury(struct mc_service *service)
{
    while (service->dead != NULL) {
        struct mc_service_connection *next = service->dead->next;
        service->kept_bytes -= service->dead->in.capacity;
        mc_buffer_free(&service->dead->in);
        mc_buffer_free(&service->dead->out);
        free(service->dead->preface);
        free(service->dead->proved);
        free(service->dead->data);
        free(service->dead);
        service->dead = next;
    }
}

bool mc_connection_begin(struct mc_service_connection *connection, enum mc_connection_kind then)
{
    struct mc_inbound *data = then == MC_CONNECTION_DATA ? malloc(sizeof(*data)) : NULL;
    if (then == MC_CONNECTION_DATA && data == NULL)
        return false;
    connection->kind = then;
    connection->data = data;
    if (then == MC_CONNECTION_HOST) /* what it writes without us must not go on when it is gone from here */
        mc_places_asked(connection);
    connection->deadline_ms = data != NULL ? 0 : mc_clock_ms() + MC_SERVICE_HANDSHAKE_MS;
    if (data != NULL) {
        mc_inbound_init(data, &connection->service->inbound_hooks);
        data->id = connection->service->engine->id;
        data->rights = connection->rights;
        data->is_careful = mc_secure_is_served();
    }
    return true;
}

/* Nothing of the port before its key is proved. */
static bool begin_shut(struct mc_service_connection *connection, enum mc_preface_port port)
{
    connection->kind = MC_CONNECTION_SHUT;
    connection->deadline_ms = mc_clock_ms() + MC_SERVICE_HANDSHAKE_MS;
    connection->preface = calloc(1, sizeof(*connection->preface));
    if (connection->preface != NULL)
        connection->preface->port = port;
    return connection->preface != NULL;
}

static bool add_connection(struct mc_service *service, int fd, enum mc_connection_kind kind, enum mc_preface_port port)
{
    uint32_t share = (uint32_t)(mc_socket_peer_key(fd) % MC_SERVICE_SHARES);
    if (kind != MC_CONNECTION_HOST && !mc_places_has_one(service, share)) {
        mc_log_limited(WARNING, "a peer's connection is refused: there are %u", service->connection_count);
        return false;
    }
    struct mc_service_connection *connection = calloc(1, sizeof(*connection));
    if (connection == NULL)
        return false;
    connection->service = service;
    connection->fd = fd;
    connection->rights = MC_RIGHTS_ALL;
    connection->is_strange = kind != MC_CONNECTION_HOST;
    connection->is_shut_tls = kind != MC_CONNECTION_HOST && mc_secure_is_served();
    bool has_begun = mc_keys_are_wanted() ? begin_shut(connection, port) : mc_connection_begin(connection, kind);
    if (!has_begun || watch(service, connection, EPOLLIN) != 0) {
        free(connection->preface);
        free(connection->data);
        free(connection);
        return false;
    }
    if (kind != MC_CONNECTION_HOST)
        mc_socket_keep_alive(fd, KEEPALIVE_IDLE_S, 0, 0); /* a vanished host's place is free again some time */
    mc_transfer_note_fd(fd);
    connection->next = service->connections;
    if (service->connections != NULL)
        service->connections->previous = connection;
    service->connections = connection;
    mc_places_enter(connection, share);
    return true;
}

static void on_listener(struct mc_service_connection *listener)
{
    static const enum mc_connection_kind kinds[] = {[MC_LISTENER_RPC] = MC_CONNECTION_RPC,
                                                    [MC_LISTENER_DATA] = MC_CONNECTION_DATA,
                                                    [MC_LISTENER_HOST] = MC_CONNECTION_HOST};
    static const enum mc_preface_port ports[] = {[MC_LISTENER_RPC] = MC_PREFACE_HANDSHAKE,
                                                 [MC_LISTENER_DATA] = MC_PREFACE_DATA,
                                                 [MC_LISTENER_HOST] = MC_PREFACE_HOST};
    struct mc_service *service = listener->service;
    for (unsigned i = 0; i < ACCEPTS_PER_TURN; i++) {
        int fd = mc_socket_accept(listener->fd);
        if (fd < 0) {
            int error = errno;
            if (error == EMFILE && mc_places_make_room(service))
                continue;
            errno = error;
            if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) {
                mc_log_limited(ERROR, "cannot accept a peer: %s", strerror(errno));
                service->pause_until_ms = mc_clock_ms() + TICK_MS;
                wants(listener, 0);
            }
            return;
        }
        if (!add_connection(service, fd, kinds[listener->kind], ports[listener->kind]))
            close(fd);
    }
}

/* ---- data ---- */

/* Copies up to CAREFUL_BYTES of memory to service->careful, by the kernel: that which is registered and not there (any
 * more) must be an error as ever, also where it is read here. How many bytes; 0: nothing of it is there. Negative, with
 * ENOSYS: that is not allowed here. */
static ssize_t copy_carefully(struct mc_service *service, const struct iovec *parts, size_t count)
{
    struct iovec to = {service->careful, CAREFUL_BYTES};
    if (to.iov_base == NULL)
        to.iov_base = service->careful = malloc(CAREFUL_BYTES);
    if (to.iov_base == NULL)
        return -1;
    ssize_t copied = process_vm_readv(service->process, &to, 1, parts, count, 0);
    if (copied < 0 && errno == EPERM)
        errno = ENOSYS;
    if (copied == 0 || (copied < 0 && errno != ENOSYS))
        mc_log_limited(ERROR, "memory that a peer reads is registered, but it is not there (any more)");
    return copied;
}

/* With TLS memory is read here. What is not taken is copied again. */
static ssize_t send_carefully(struct mc_service_connection *connection, const struct msghdr *message)
{
    struct mc_service *service = connection->service;
    ssize_t copied = copy_carefully(service, message->msg_iov, message->msg_iovlen);
    if (copied < 0 && errno == ENOSYS)
        return mc_socket_sendmsg(connection->fd, message);
    if (copied == 0)
        errno = EFAULT;
    return copied <= 0 ? -1 : mc_socket_sends(connection->fd, service->careful, (size_t)copied);
}

static bool sum_of_host(struct mc_service *service, uint64_t address, size_t size, uint32_t *sum)
{
    for (size_t at = 0, part; at < size; at += part) {
        part = size - at < CAREFUL_BYTES ? size - at : CAREFUL_BYTES;
        struct iovec from = {(void *)(uintptr_t)(address + at), part};
        ssize_t copied = copy_carefully(service, &from, 1);
        if (copied != (ssize_t)part) /* what is not there, or a system that copies nothing so: then it is not asked */
            return false;
        *sum = mc_crc32c(*sum, service->careful, part);
    }
    return true;
}

static int sum(void *context, uint64_t address, uint64_t length, uint64_t since_ns, uint32_t *result)
{
    struct mc_transfer_engine *engine = context;
    struct mc_region *region = mc_transfer_hold_to_sum(engine, address, length);
    if (region == NULL)
        return 0;
    if (region->place.kind != MC_GPU_HOST && !mc_device_may_touch(engine, region, since_ns)) {
        mc_transfer_release(engine, region);
        return MC_INBOUND_LATER;
    }
    *result = 0;
    bool is_there = region->place.kind == MC_GPU_HOST
                        ? sum_of_host(engine->service, address, (size_t)length, result)
                        : mc_device_sum(engine->service, region, address, (size_t)length, result);
    mc_transfer_release(engine, region);
    return is_there ? 1 : -1;
}

/* False: the connection has ended. */
static bool data_send(struct mc_service_connection *connection)
{
    struct iovec parts[SEND_PARTS];
    struct mc_service *service = connection->service;
    service->staged = 0;
    size_t count = mc_inbound_replies(connection->data, parts, SEND_PARTS);
    if (service->staged > 0 && !mc_device_staged(service)) {
        drop(connection, false);
        return false;
    }
    if (count > 0) {
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
        bool is_plain = mc_secure_of(connection->fd) == NULL;
        ssize_t sent = is_plain ? mc_socket_sendmsg(connection->fd, &message) : send_carefully(connection, &message);
        if (sent < 0 && errno != EAGAIN && errno != EINTR) {
            drop(connection, false);
            return false;
        }
        if (sent > 0) {
            mc_inbound_sent(connection->data, (size_t)sent);
            mc_places_moved(connection, (size_t)sent);
        }
    }
    if (mc_inbound_is_done(connection->data)) {
        /* The word of refusal must arrive: a close with input unread would take it back. */
        mc_log_limited(WARNING, "a peer asked for memory that is not registered, or that its key does not let it have, "
                                "or looks for an engine that had this address before, or speaks another protocol");
        (void)shutdown(connection->fd, SHUT_WR);
        connection->is_draining = true;
        connection->deadline_ms = mc_clock_ms() + MC_SERVICE_DRAIN_MS;
    }
    return true;
}

static void data_drain(struct mc_service_connection *connection)
{
    char thrown_away[16384];
    ssize_t received = recv(connection->fd, thrown_away, sizeof(thrown_away), MSG_DONTWAIT);
    if (received == 0 || (received < 0 && errno != EAGAIN && errno != EINTR))
        drop(connection, false);
}

static void data_interest(struct mc_service_connection *connection)
{
    struct iovec parts[2];
    bool is_sending = connection->data->count > 0;
    bool is_receiving = connection->is_draining || mc_inbound_window(connection->data, parts) > 0;
    bool can_send = is_sending && !connection->data->holds_out;
    wants(connection, (is_receiving ? (uint32_t)EPOLLIN : 0u) | (can_send ? (uint32_t)EPOLLOUT : 0u));
    bool is_idle = !is_sending && connection->data->region == NULL && connection->data->header_used == 0;
    /* Who waits for a device here is not the one that stalls. */
    bool is_held = connection->data->holds_out || (connection->data->holds_in && !is_sending);
    if (!connection->is_draining)
        connection->deadline_ms = is_idle || is_held ? 0 : mc_clock_ms() + DATA_STALL_MS;
    mc_places_turn(connection, is_idle);
}

/* 0: nothing more has come; negative: it has ended. */
static int data_receive(struct mc_service_connection *connection)
{
    struct iovec parts[2];
    size_t count = mc_inbound_window(connection->data, parts);
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
    ssize_t received = count == 0 ? 0 : mc_socket_recvmsg(connection->fd, &message);
    if (count == 0)
        return 1;
    if (received < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (received <= 0) {
        drop(connection, false);
        return -1;
    }
    mc_inbound_received(connection->data, (size_t)received);
    mc_places_moved(connection, (size_t)received);
    if (!connection->has_asked && mc_inbound_has_asked(connection->data))
        mc_connection_asked(connection);
    return 1;
}

static bool has_window(struct mc_service_connection *connection)
{
    struct iovec parts[2];
    return !connection->is_draining && mc_inbound_window(connection->data, parts) > 0;
}

static void on_data(struct mc_service_connection *connection, uint32_t events)
{
    bool reads = (events & (EPOLLIN | EPOLLHUP)) != 0;
    /* Reset by the peer: it has given the transfer up, so what it had sent before must not be applied any more. */
    if ((events & EPOLLERR) != 0) {
        drop(connection, false);
        return;
    }
    if (connection->is_draining) {
        data_drain(connection);
        return;
    }
    for (;;) { /* once; with TLS until nothing is left here that no poll sees, or there is no room for it */
        int came = reads ? data_receive(connection) : 1;
        if (came < 0)
            return;
        if ((connection->data->count > 0 || connection->data->is_over) && !data_send(connection))
            return;
        if (came == 0 || !mc_socket_holds(connection->fd) || !has_window(connection))
            break;
        (void)mc_socket_hold(connection->fd, true);
        reads = true;
    }
    (void)mc_socket_hold(connection->fd, false);
    data_interest(connection);
}

/* Those that waited for what devices had to do. */
static void go_on_held(struct mc_service *service)
{
    if (!mc_device_has_news(service))
        return;
    for (struct mc_service_connection *one = service->connections, *next; one != NULL; one = next) {
        next = one->next;
        if (one->kind != MC_CONNECTION_DATA || (!one->data->holds_in && !one->data->holds_out))
            continue;
        mc_inbound_go_on(one->data);
        on_data(one, 0);
    }
}

/* ---- interruptions ---- */

static void on_wake(struct mc_service *service)
{
    uint64_t count;
    if (read(service->wake_fd, &count, sizeof(count)) < 0)
        return;
    if (service->engine->is_leaving && !service->has_told) {
        service->has_told = true;
        service->tick_ms = 0; /* a turn of the tick now */
    }
    if (!atomic_exchange(&service->cut_wanted, false))
        return;
    for (struct mc_service_connection *one = service->connections, *next; one != NULL; one = next) {
        next = one->next;
        if (one->kind != MC_CONNECTION_DATA)
            continue;
        pthread_mutex_lock(&service->engine->lock);
        bool is_cut = mc_inbound_holds_leaving(one->data);
        pthread_mutex_unlock(&service->engine->lock);
        if (is_cut)
            drop(one, true);
    }
}

static void cuts_expire(struct mc_service *service, uint64_t now_ms)
{
    while (service->cut_count > 0 && now_ms - service->cuts[service->cut_first].at_ms >= MC_SERVICE_CUT_MS) {
        service->cut_shares[service->cuts[service->cut_first].share]--;
        service->cut_first = (service->cut_first + 1) % MC_SERVICE_CUTS_MAX;
        service->cut_count--;
    }
}

/* None is pushed out while its connection may come: the peer that was told it is cut relies on that. So who names many
 * is refused further ones, and not others. */
static bool note_cut(struct mc_service *service, uint64_t lane, uint32_t share)
{
    uint64_t now_ms = mc_clock_ms();
    if (service->cuts == NULL)
        service->cuts = calloc(MC_SERVICE_CUTS_MAX, sizeof(*service->cuts));
    if (service->cuts == NULL)
        return false;
    cuts_expire(service, now_ms);
    if (!mc_service_has_share(service->cut_shares[share], service->cut_count, MC_SERVICE_CUTS_MAX)) {
        mc_log_limited(ERROR,
                       "peers of one address have given up %u connections of %u within %u s: some wait for more to be "
                       "cut",
                       (unsigned)service->cut_shares[share], service->cut_count, MC_SERVICE_CUT_MS / 1000);
        return false;
    }
    uint32_t last = (service->cut_first + service->cut_count++) % MC_SERVICE_CUTS_MAX;
    service->cuts[last] = (struct mc_cut){lane, now_ms, share};
    service->cut_shares[share]++;
    return true;
}

static int compare_numbers(const void *one, const void *other)
{
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

/* NULL: it is none of those, which are sorted. */
static const uint64_t *find_number(const uint64_t *numbers, size_t count, uint64_t number)
{
    return bsearch(&number, numbers, count, sizeof(*numbers), compare_numbers);
}

/* Connections and cuts are gone through once for all numbers, whoever names so many. */
bool mc_service_cut_lanes(const struct mc_service_connection *asker, uint64_t *lanes, size_t count)
{
    struct mc_service *service = asker->service;
    bool is_done[MC_SETTLE_NUMBERS_MAX] = {false}; /* it does not come again; or is known */
    const uint64_t *at;
    mc_assert(count <= MC_SETTLE_NUMBERS_MAX);
    qsort(lanes, count, sizeof(*lanes), compare_numbers);
    for (struct mc_service_connection *one = service->connections, *next; one != NULL; one = next) {
        next = one->next;
        at = one == asker ? NULL
                          : find_number(lanes, count, one->kind == MC_CONNECTION_DATA ? one->data->lane : one->lane);
        if (at == NULL)
            continue;
        is_done[at - lanes] = true;
        drop(one, true);
    }
    for (uint32_t i = 0; i < service->cut_count; i++) {
        at = find_number(lanes, count, service->cuts[(service->cut_first + i) % MC_SERVICE_CUTS_MAX].lane);
        if (at != NULL)
            is_done[at - lanes] = true;
    }
    for (size_t i = 0; i < count; i++) {
        /* Of equal ones any may have been found: the others follow it, or it them. */
        at = find_number(lanes, count, lanes[i]);
        if (!is_done[at - lanes] && !note_cut(service, lanes[i], asker->share))
            return false;
        is_done[at - lanes] = true;
    }
    return true;
}

bool mc_service_is_cut(const struct mc_service *service, uint64_t lane)
{
    for (uint32_t i = 0; i < service->cut_count; i++)
        if (service->cuts[(service->cut_first + i) % MC_SERVICE_CUTS_MAX].lane == lane)
            return true;
    return false;
}

static bool is_cut(void *context, uint64_t lane)
{
    return mc_service_is_cut(((struct mc_transfer_engine *)context)->service, lane);
}

void mc_service_wake(struct mc_service *service)
{
    uint64_t one = 1;
    (void)!write(service->wake_fd, &one, sizeof(one)); /* full: it is awake */
}

void mc_service_cut(struct mc_transfer_engine *engine)
{
    atomic_store(&engine->service->cut_wanted, true);
    mc_service_wake(engine->service);
}

/* Peers that read and write our memory themselves have no other way to know. */
static void tell_leaving(struct mc_service *service)
{
    for (struct mc_service_connection *one = service->connections, *next; one != NULL; one = next) {
        next = one->next;
        if (one->kind != MC_CONNECTION_RPC || !one->is_heard || one->is_answering || one->out.length > 0)
            continue;
        mc_rpc_tell_leaving(one);
        if (!one->is_dead)
            wants(one, one->out.length > 0 ? EPOLLOUT : EPOLLIN);
    }
}

void mc_service_leave(struct mc_transfer_engine *engine)
{
    atomic_store(&engine->is_leaving, true);
    mc_service_wake(engine->service);
}

static void on_tick(struct mc_service *service)
{
    uint64_t now_ms = mc_clock_ms();
    if (now_ms < service->tick_ms)
        return;
    service->tick_ms = now_ms + TICK_MS;
    for (struct mc_service_connection *one = service->connections, *next; one != NULL; one = next) {
        next = one->next;
        if (one->deadline_ms != 0 && now_ms >= one->deadline_ms)
            drop(one, one->kind == MC_CONNECTION_DATA && !one->is_draining);
    }
    if (service->pause_until_ms != 0 && now_ms >= service->pause_until_ms) {
        service->pause_until_ms = 0;
        for (size_t i = 0; i < service->listener_count; i++)
            wants(&service->listeners[i], EPOLLIN);
    }
    if (service->engine->is_leaving)
        tell_leaving(service); /* again: it may have been lost behind an answer */
    mc_preface_revoke(service);
    mc_peers_hear(service->engine);
    mc_peers_tidy(service->engine);
    mc_metrics_report(service->engine);
    mc_gpu_notice();
    mc_own_address_look(&service->own_address, service->engine->host, "to find this engine");
}

/* ---- the loop ---- */

/* Where TLS is demanded nothing of the port comes before; who says nothing costs nothing. False: not yet, or never. */
static bool begin_tls(struct mc_service_connection *connection)
{
    int rc = mc_secure_of(connection->fd) == NULL ? mc_secure_accept(connection->fd) : 0;
    if (rc == 0)
        rc = mc_secure_shake(connection->fd);
    if (rc < 0)
        drop(connection, false);
    else if (connection->deadline_ms == 0)
        connection->deadline_ms = mc_clock_ms() + MC_SERVICE_HANDSHAKE_MS;
    if (rc == 1) {
        connection->is_shut_tls = false;
        connection->deadline_ms = connection->kind == MC_CONNECTION_DATA ? 0 : connection->deadline_ms;
    }
    return rc == 1;
}

static void on_event(struct mc_service_connection *connection, uint32_t events);

/* One after the other: those that the time is not enough for keep their place. */
static void on_strangers(struct mc_service *service)
{
    struct epoll_event event;
    uint64_t end_ns = mc_clock_ns() + STRANGERS_NS;
    unsigned count = 0;
    do {
        if (epoll_wait(service->strangers_fd, &event, 1, 0) != 1)
            return;
        on_event(event.data.ptr, event.events);
    } while (++count < STRANGERS_PER_TURN && mc_clock_ns() < end_ns);
    service->is_crowded = true;
}

static void on_event(struct mc_service_connection *connection, uint32_t events)
{
    bool was_shut = connection->kind == MC_CONNECTION_SHUT;
    if (connection->is_dead || (connection->is_shut_tls && !begin_tls(connection)))
        return;
    switch (connection->kind) {
    case MC_CONNECTION_WAKE:
        on_wake(connection->service);
        break;
    case MC_CONNECTION_STRANGERS:
        on_strangers(connection->service);
        break;
    case MC_LISTENER_RPC:
    case MC_LISTENER_DATA:
    case MC_LISTENER_HOST:
        on_listener(connection);
        break;
    case MC_CONNECTION_SHUT:
        mc_preface_serve(connection);
        break;
    case MC_CONNECTION_RPC:
        mc_rpc_serve(connection, events);
        wants(connection, connection->is_dead ? connection->events : connection->out.length > 0 ? EPOLLOUT : EPOLLIN);
        break;
    case MC_CONNECTION_HOST:
        mc_host_serve(connection);
        break;
    case MC_CONNECTION_DATA:
        on_data(connection, events);
        break;
    }
    /* What came right behind a proof no poll tells of. */
    if (was_shut && !connection->is_dead && connection->kind != MC_CONNECTION_SHUT && mc_socket_holds(connection->fd))
        on_event(connection, EPOLLIN);
}

/* Offers whose links have been set up meanwhile, or have taken long enough. */
static void answer_offers(struct mc_service *service)
{
    for (struct mc_service_connection *one = service->answering, *next; one != NULL; one = next) {
        next = one->next_answering;
        if (!mc_rpc_answer(one))
            continue;
        if (!one->is_dead) {
            leave_answering(one);
            wants(one, one->out.length > 0 ? EPOLLOUT : EPOLLIN);
        }
    }
}

/* Polls for a while when recent waits were short, else sleeps until the next tick. */
static int next_events(struct mc_service *service, struct epoll_event *events)
{
    if (mc_spin_wanted(&service->spin)) {
        uint64_t end_ns = mc_clock_ns() + mc_spin_ns();
        do {
            int count = epoll_wait(service->epoll_fd, events, EVENTS_PER_TURN, 0);
            if (count != 0) {
                mc_spin_hit(&service->spin);
                return count;
            }
            sched_yield();
        } while (mc_clock_ns() < end_ns);
        mc_spin_miss(&service->spin);
    }
    int wait_ms = service->marks > 0 || service->has_news ? DEVICE_LOOK_MS
                  : service->answering != NULL            ? ANSWER_LOOK_MS
                                                          : (int)TICK_MS;
    return epoll_wait(service->epoll_fd, events, EVENTS_PER_TURN, wait_ms);
}

static void *service_main(void *argument)
{
    struct mc_service *service = argument;
    struct epoll_event events[EVENTS_PER_TURN];
    while (!atomic_load_explicit(&service->is_stopping, memory_order_relaxed)) {
        int count = next_events(service, events);
        for (int i = 0; i < count; i++)
            on_event(events[i].data.ptr, events[i].events);
        answer_offers(service);
        go_on_held(service);
        on_tick(service);
        bury(service);
        if (service->is_crowded)
            sched_yield(); /* this thread never rests then: others of its processor have theirs all the same */
        service->is_crowded = false;
    }
    while (service->connections != NULL)
        drop(service->connections, true);
    bury(service);
    return NULL;
}

/* ---- life ---- */

static struct mc_region *hold(void *context, uint64_t address, uint64_t length)
{
    return mc_transfer_hold(context, address, length);
}
static void release(void *context, struct mc_region *region)
{
    mc_transfer_release(context, region);
}

/* By the kernel, which answers with an error where a copy of ours would be a fault: users free memory that is still
 * registered. */
static bool copy(void *context, uint64_t address, const void *from, size_t size)
{
    struct mc_transfer_engine *engine = context;
    bool is_copied = false;
    if (mc_gpu_is_there() && mc_device_copy(engine->service, address, from, size, &is_copied))
        return is_copied;
    struct iovec near = {(void *)(uintptr_t)from, size}, far = {(void *)(uintptr_t)address, size};
    ssize_t moved = process_vm_writev(engine->service->process, &near, 1, &far, 1, 0);
    if (moved == (ssize_t)size)
        return true;
    if (moved < 0 && (errno == ENOSYS || errno == EPERM)) { /* not allowed here */
        memcpy((void *)(uintptr_t)address, from, size);
        return true;
    }
    mc_log_limited(ERROR, "memory at 0x%llx is registered, but it is not there (any more)",
                   (unsigned long long)address);
    return false;
}

static int add_listener(struct mc_service *service, int fd, enum mc_connection_kind kind)
{
    if (fd < 0)
        return 0;
    struct mc_service_connection *listener = &service->listeners[service->listener_count++];
    *listener = (struct mc_service_connection){.kind = kind, .fd = fd};
    mc_transfer_note_fd(fd);
    return watch(service, listener, EPOLLIN);
}

int mc_service_start(struct mc_transfer_engine *engine, int rpc_listener, int data_listener, int unix_listener)
{
    struct mc_service *service = calloc(1, sizeof(*service));
    if (service == NULL) {
        close(rpc_listener);
        close(data_listener);
        mc_fd_close(unix_listener);
        return MC_TRANSFER_ERR_MEMORY;
    }
    engine->service = service;
    service->engine = engine;
    service->inbound_hooks = (struct mc_inbound_hooks){
        engine, hold, release, copy, mc_device_receive_at, mc_device_send_from, sum, is_cut, mc_device_may_touch};
    service->process = getpid();
    pthread_mutex_init(&service->initiators_lock, NULL);
    service->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    service->strangers_fd = epoll_create1(EPOLL_CLOEXEC);
    service->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    bool is_fine = service->epoll_fd >= 0 && service->strangers_fd >= 0 && service->wake_fd >= 0;
    int error = errno;
    mc_transfer_note_fd(service->epoll_fd);
    /* All of them, also after a failure: mc_service_stop closes what was added. */
    is_fine &= add_listener(service, service->wake_fd, MC_CONNECTION_WAKE) == 0;
    is_fine &= add_listener(service, service->strangers_fd, MC_CONNECTION_STRANGERS) == 0;
    is_fine &= add_listener(service, rpc_listener, MC_LISTENER_RPC) == 0;
    is_fine &= add_listener(service, data_listener, MC_LISTENER_DATA) == 0;
    is_fine &= add_listener(service, unix_listener, MC_LISTENER_HOST) == 0;
    if (is_fine)
        error = mc_thread_start(&service->thread, "mc-transfer", service_main, service);
    service->is_started = is_fine && error == 0;
    if (service->is_started)
        return 0;
    mc_log(ERROR, "the transfer engine cannot start its thread: %s", strerror(error));
    return MC_TRANSFER_ERR_MEMORY;
}

void mc_service_stop(struct mc_transfer_engine *engine)
{
    struct mc_service *service = engine->service;
    if (service == NULL)
        return;
    if (service->is_started) {
        atomic_store(&service->is_stopping, true);
        mc_service_wake(service);
        pthread_join(service->thread, NULL);
    }
    for (size_t i = 0; i < service->listener_count; i++)
        mc_transfer_close_fd(service->listeners[i].fd);
    if (service->epoll_fd >= 0)
        mc_transfer_close_fd(service->epoll_fd);
    for (int i = 0; i < MC_GPUS_MAX; i++)
        mc_gpu_give(service->lanes[i]);
    pthread_mutex_destroy(&service->initiators_lock);
    free(service->cuts);
    free(service->careful);
    free(service);
    engine->service = NULL;
}
