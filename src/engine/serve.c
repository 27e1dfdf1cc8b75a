/* The sockets and the loop of the owner's side: listeners, connections (each a lane, serve_lane.h), posts from other
 * threads, waiting CUTs. */
#include "engine/serve.h"

#include "base/error.h"
#include "engine/serve_lane.h"
#include "env/clock.h"
#include "env/log.h"
#include "env/thread.h"
#include "rdma/rdma.h"

#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define TURN_BYTES (1u << 20)     /* a connection moves about so much before others have their turn */
#define RECEIVE_BYTES (16u << 10) /* beyond the window of a payload: what is payload among it is copied once more */
#define ACCEPTS_PER_TURN 64u
#define CUT_LOOK_MS 20u      /* how often a CUT that waits looks for the end of the writer's copy */
#define ACCEPT_PAUSE_MS 100u /* after running out of descriptors */
#define SPIN_HITS_MAX 16u
#define SPIN_PROBE_EVERY 64u

struct post {
    void (*function)(void *argument);
    void *argument;
    struct post *next;
};

struct cut { /* waits until the writer can store no more */
    uint32_t slot;
    uint64_t generation;
    struct mc_id writer;
    void (*done)(void *context, uint32_t slot, uint64_t generation);
    void *context;
    struct cut *next;
};

struct connection {
    struct mc_serve *serve;
    int fd;
    uint32_t place; /* in serve->connection_fds */
    struct event *readable, *writable, *hello_timer;
    bool is_reading, is_writing; /* events are added */
    bool is_at_end;              /* the peer has closed its side */
    bool is_draining;            /* we have closed ours: input is thrown away until the peer's end */
    struct mc_lane lane;
    struct connection *previous, *next;
};

struct listener {
    struct mc_serve *serve;
    int fd; /* -1: none */
    bool is_unix;
    struct event *acceptable, *pause;
};

struct mc_serve {
    struct event_base *base;
    struct mc_lane_server server;
    struct listener tcp, local;
    uint16_t tcp_port;
    char unix_path[MC_UNIX_PATH_MAX];
    uint32_t connection_limit, hello_ms, connection_count;
    struct connection *connections;
    _Atomic int *connection_fds; /* connection_limit of them, -1 = free; a forked child closes them */
    struct cut *cuts;
    struct event *cut_timer; /* runs while a cut waits */

    int post_fd; /* eventfd */
    struct event *posted;
    pthread_mutex_t post_lock; /* guards posts */
    struct post *posts, **posts_end;

    pthread_t thread;
    bool started, stopping;
    uint64_t activity; /* counts what happened; the spin of the loop looks at it */
    uint32_t spin_hits, spin_probe;
    uint8_t scratch[RECEIVE_BYTES];
};

/* ---- waiting cuts ---- */

/* Can nothing of that generation arrive in that slot's extent any more? Over tcp: the raised generation refuses. Who
 * copies by himself has said so in the table of writers before (writers.h); the generation was raised before we look.
 */
static bool cut_is_done(const struct mc_serve *serve, const struct cut *cut)
{
    return serve->server.memory == NULL ||
           !mc_segment_memory_is_written(serve->server.memory, cut->slot, cut->generation);
}

static void cuts_look_later(struct mc_serve *serve)
{
    struct timeval later = {.tv_usec = CUT_LOOK_MS * 1000};
    if (serve->cuts != NULL && !evtimer_pending(serve->cut_timer, NULL))
        mc_assert(evtimer_add(serve->cut_timer, &later) == 0);
}

/* Something may have changed: a connection has ended, time has passed. */
static void cuts_finish(struct mc_serve *serve)
{
    struct cut *done = NULL, **done_end = &done;
    for (struct cut **at = &serve->cuts; *at != NULL;) {
        struct cut *cut = *at;
        if (!cut_is_done(serve, cut)) {
            at = &cut->next;
            continue;
        }
        *at = cut->next;
        cut->next = NULL;
        *done_end = cut;
        done_end = &cut->next;
    }
    cuts_look_later(serve);
    bool any = done != NULL;
    while (done != NULL) { /* in a list of their own: a callback may cut again */
        struct cut *cut = done;
        done = cut->next;
        cut->done(cut->context, cut->slot, cut->generation);
        free(cut);
    }
    if (any && serve->server.hooks.flush != NULL)
        serve->server.hooks.flush(serve->server.hooks.context);
}

static void on_cut_timer(evutil_socket_t fd, short what, void *argument)
{
    (void)fd;
    (void)what;
    cuts_finish(argument);
}

static void cuts_forget(struct mc_serve *serve)
{
    while (serve->cuts != NULL) {
        struct cut *cut = serve->cuts;
        serve->cuts = cut->next;
        free(cut);
    }
}

/* ---- connections ---- */

static void connection_close(struct connection *connection)
{
    struct mc_serve *serve = connection->serve;
    bool was_attached = connection->lane.attached != NULL;
    if (connection->previous != NULL)
        connection->previous->next = connection->next;
    else
        serve->connections = connection->next;
    if (connection->next != NULL)
        connection->next->previous = connection->previous;
    serve->connection_count--;
    event_free(connection->readable);
    event_free(connection->writable);
    if (connection->hello_timer != NULL)
        event_free(connection->hello_timer);
    mc_lane_free(&connection->lane); /* first: the end of the connection tells the peer that its link has ended */
    atomic_store(&serve->connection_fds[connection->place], -1);
    close(connection->fd);
    free(connection);
    if (was_attached && serve->cuts != NULL)
        cuts_finish(serve);
}

/* One receive, into the window of a payload and behind it into the scratch. Bytes, 0 when the socket is empty, or
 * negative. *more: worth another. */
static int64_t connection_receive(struct connection *connection, bool *more)
{
    struct mc_serve *serve = connection->serve;
    uint8_t *target;
    int64_t window = mc_lane_window(&connection->lane, &target);
    if (window < 0)
        return window;
    size_t direct = window < (int64_t)TURN_BYTES ? (size_t)window : TURN_BYTES;
    struct iovec parts[2] = {{target, direct}, {serve->scratch, sizeof(serve->scratch)}};
    bool has_scratch = (int64_t)direct == window; /* what lies behind the window must not go where payload goes */
    struct msghdr message = {.msg_iov = direct > 0 ? parts : parts + 1,
                             .msg_iovlen = direct == 0   ? 1
                                           : has_scratch ? 2
                                                         : 1};
    ssize_t received;
    do
        received = recvmsg(connection->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (received < 0 && errno == EINTR);
    *more = false;
    if (received < 0 && errno == EAGAIN)
        return 0;
    if (received <= 0) {
        connection->is_at_end = true;
        return MC_ERR_RPC_FAIL;
    }
    *more = (size_t)received == direct + (has_scratch ? sizeof(serve->scratch) : 0);
    size_t in_window = (size_t)received < direct ? (size_t)received : direct;
    mc_lane_window_filled(&connection->lane, in_window);
    int rc = mc_lane_input(&connection->lane, serve->scratch, (size_t)received - in_window);
    return rc < 0 ? rc : (int64_t)received;
}

static void flush_commits(struct mc_serve *serve)
{
    if (!serve->server.committed)
        return;
    serve->server.committed = false;
    if (serve->server.hooks.flush != NULL)
        serve->server.hooks.flush(serve->server.hooks.context);
}

/* One sendmsg; with the descriptors of the segment when they are due. */
static ssize_t send_parts(struct connection *connection, struct iovec *parts, size_t count, bool with_fds)
{
    union {
        char bytes[CMSG_SPACE(3 * sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
    if (with_fds) {
        const struct mc_segment_memory *memory = connection->serve->server.memory;
        int fds[3] = {mc_segment_memory_data_fd(memory), mc_segment_memory_index_fd(memory),
                      mc_segment_memory_writers_fd(memory)};
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof(control.bytes);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(fds));
        memcpy(CMSG_DATA(header), fds, sizeof(fds));
    }
    ssize_t sent;
    do
        sent = sendmsg(connection->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent;
}

static void set_event(struct event *event, bool *is_added, bool wanted)
{
    if (*is_added == wanted)
        return;
    *is_added = wanted;
    mc_assert((wanted ? event_add(event, NULL) : event_del(event)) == 0);
}

/* Sends what there is, up to a turn's worth. 0 or negative. */
static int connection_send(struct connection *connection)
{
    uint64_t budget = TURN_BYTES;
    bool is_blocked = false;
    while (budget > 0 && !is_blocked) {
        struct iovec parts[MC_LANE_PARTS_MAX];
        bool with_fds;
        size_t count = mc_lane_output(&connection->lane, parts, budget, &with_fds);
        if (count == 0)
            break;
        ssize_t sent = send_parts(connection, parts, count, with_fds);
        if (sent < 0) {
            if (errno != EAGAIN)
                return MC_ERR_RPC_FAIL;
            is_blocked = true;
            break;
        }
        connection->serve->activity++;
        int rc = mc_lane_sent(&connection->lane, (uint64_t)sent);
        if (rc < 0)
            return rc;
        budget -= (uint64_t)sent < budget ? (uint64_t)sent : budget;
    }
    if (mc_lane_has_ended(&connection->lane))
        return MC_ERR_ILLEGAL_CLIENT;
    set_event(connection->writable, &connection->is_writing, is_blocked || budget == 0);
    set_event(connection->readable, &connection->is_reading, mc_lane_wants_input(&connection->lane));
    return 0;
}

/* A turn: receive, tell the owner of commits, answer. */
static int connection_turn(struct connection *connection)
{
    uint64_t moved = 0;
    bool more = true;
    int64_t rc = 0;
    while (more && moved < TURN_BYTES && mc_lane_wants_input(&connection->lane)) {
        rc = connection_receive(connection, &more);
        if (rc < 0)
            break; /* commits that came before the end are still told */
        moved += (uint64_t)rc;
    }
    if (moved > 0)
        connection->serve->activity++;
    flush_commits(connection->serve);
    if (rc < 0)
        return (int)rc;
    if (connection->lane.is_open && connection->hello_timer != NULL) {
        event_free(connection->hello_timer);
        connection->hello_timer = NULL;
    }
    return connection_send(connection);
}

/* The connection is of no use any more.
 * A peer that has our memory mapped goes on being known by its entry in the table of writers. A refused hello's answer
 * must arrive: closing with unread input would make the kernel throw it away; the hello timer ends that wait. */
static void connection_fail(struct connection *connection, int code)
{
    if (code == MC_ERR_PROTOCOL || code == MC_ERR_INVALID_PARAMS)
        mc_log_limited(WARNING, "a data connection sent what is not our protocol; closed");
    else
        mc_log(DEBUG, "data connection %d closed: %s", connection->fd, mc_error_name(code));
    if (connection->is_at_end || connection->is_draining || code != MC_ERR_ILLEGAL_CLIENT) {
        connection_close(connection);
        return;
    }
    (void)shutdown(connection->fd, SHUT_WR); /* fails when the peer is gone, which the next receive shows */
    connection->is_draining = true;
    set_event(connection->writable, &connection->is_writing, false);
    set_event(connection->readable, &connection->is_reading, true);
}

static void connection_drain(struct connection *connection)
{
    struct mc_serve *serve = connection->serve;
    ssize_t received = recv(connection->fd, serve->scratch, sizeof(serve->scratch), MSG_DONTWAIT);
    if (received == 0 || (received < 0 && errno != EAGAIN && errno != EINTR))
        connection_close(connection);
}

static void on_readable(evutil_socket_t fd, short what, void *argument)
{
    (void)fd;
    (void)what;
    struct connection *connection = argument;
    if (connection->is_draining) {
        connection_drain(connection);
        return;
    }
    int rc = connection_turn(connection);
    if (rc < 0)
        connection_fail(connection, rc);
}

static void on_writable(evutil_socket_t fd, short what, void *argument)
{
    (void)fd;
    (void)what;
    struct connection *connection = argument;
    int rc = connection_send(connection);
    flush_commits(connection->serve); /* input that had to wait may have been commits */
    if (rc < 0)
        connection_fail(connection, rc);
}

static void on_hello_late(evutil_socket_t fd, short what, void *argument)
{
    (void)fd;
    (void)what;
    connection_close(argument);
}

static void keep_alive(int fd)
{
    /* A host that vanished without a word: its connections end after about a minute. Best effort. */
    int on = 1, idle_s = 30, interval_s = 10, count = 3;
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
}

static uint32_t fd_place(const struct mc_serve *serve)
{
    uint32_t place = 0;
    while (place < serve->connection_limit && atomic_load(&serve->connection_fds[place]) != -1)
        place++;
    mc_assert(place < serve->connection_limit);
    return place;
}

static int connection_open(struct listener *listener, int fd)
{
    struct mc_serve *serve = listener->serve;
    struct connection *connection = calloc(1, sizeof(*connection));
    if (connection == NULL)
        return MC_ERR_NO_MEMORY;
    struct timeval late = {.tv_sec = serve->hello_ms / 1000, .tv_usec = (suseconds_t)(serve->hello_ms % 1000) * 1000};
    connection->serve = serve;
    connection->fd = fd;
    connection->readable = event_new(serve->base, fd, EV_READ | EV_PERSIST, on_readable, connection);
    connection->writable = event_new(serve->base, fd, EV_WRITE | EV_PERSIST, on_writable, connection);
    connection->hello_timer = evtimer_new(serve->base, on_hello_late, connection);
    if (connection->readable == NULL || connection->writable == NULL || connection->hello_timer == NULL ||
        event_add(connection->readable, NULL) != 0 || evtimer_add(connection->hello_timer, &late) != 0)
        goto fail;
    connection->is_reading = true;
    if (listener->is_unix)
        mc_lane_init(&connection->lane, &serve->server, true, mc_unix_peer_uid(fd) == (int64_t)geteuid());
    else
        mc_lane_init(&connection->lane, &serve->server, false, false);
    connection->place = fd_place(serve);
    atomic_store(&serve->connection_fds[connection->place], fd);
    connection->next = serve->connections;
    if (connection->next != NULL)
        connection->next->previous = connection;
    serve->connections = connection;
    serve->connection_count++;
    return 0;
fail:
    if (connection->hello_timer != NULL)
        event_free(connection->hello_timer);
    if (connection->writable != NULL)
        event_free(connection->writable);
    if (connection->readable != NULL)
        event_free(connection->readable);
    free(connection);
    return MC_ERR_NO_MEMORY;
}

/* ---- listeners ---- */

static void on_pause_over(evutil_socket_t fd, short what, void *argument)
{
    (void)fd;
    (void)what;
    struct listener *listener = argument;
    mc_assert(event_add(listener->acceptable, NULL) == 0);
}

static void on_acceptable(evutil_socket_t fd, short what, void *argument)
{
    (void)what;
    struct listener *listener = argument;
    struct mc_serve *serve = listener->serve;
    for (unsigned i = 0; i < ACCEPTS_PER_TURN; i++) {
        int accepted = mc_socket_accept((int)fd);
        if (accepted < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
                /* The waiting connection stays readable for the loop: without a pause it would turn without end. */
                struct timeval pause = {.tv_usec = ACCEPT_PAUSE_MS * 1000};
                mc_log_limited(ERROR, "cannot accept a data connection: %s; raise the limit of open files (ulimit -n)",
                               strerror(errno));
                (void)event_del(listener->acceptable);
                (void)evtimer_add(listener->pause, &pause);
            }
            return;
        }
        serve->activity++;
        if (serve->connection_count >= serve->connection_limit) {
            mc_log_limited(WARNING, "more than %" PRIu32 " data connections: one more was closed",
                           serve->connection_limit);
            close(accepted);
            continue;
        }
        if (!listener->is_unix)
            keep_alive(accepted);
        if (connection_open(listener, accepted) < 0)
            close(accepted);
    }
}

static int listener_start(struct mc_serve *serve, struct listener *listener, int fd, bool is_unix)
{
    listener->serve = serve;
    listener->fd = fd;
    listener->is_unix = is_unix;
    listener->acceptable = event_new(serve->base, fd, EV_READ | EV_PERSIST, on_acceptable, listener);
    listener->pause = evtimer_new(serve->base, on_pause_over, listener);
    if (listener->acceptable == NULL || listener->pause == NULL || event_add(listener->acceptable, NULL) != 0)
        return MC_ERR_NO_MEMORY;
    return 0;
}

static void listener_stop(struct listener *listener)
{
    if (listener->acceptable != NULL)
        event_free(listener->acceptable);
    if (listener->pause != NULL)
        event_free(listener->pause);
    if (listener->fd >= 0)
        close(listener->fd);
    *listener = (struct listener){.fd = -1};
}

/* The unix socket is only a faster path: without it peers come by tcp. */
static int local_start(struct mc_serve *serve)
{
    const char *directory = getenv("MC_SHM_DIR");
    bool is_file = directory != NULL && directory[0] != 0;
    int length =
        snprintf(serve->unix_path, sizeof(serve->unix_path), "%s%smooncake-%016" PRIx64 "%016" PRIx64,
                 is_file ? directory : "@", is_file ? "/" : "", serve->server.node.high, serve->server.node.low);
    if ((size_t)length >= sizeof(serve->unix_path)) {
        mc_log(WARNING,
               "the path in MC_SHM_DIR is too long for a unix socket (at most %d bytes with our file name); peers on "
               "this host will use tcp",
               MC_UNIX_PATH_MAX - 1);
        serve->unix_path[0] = 0;
        return 0;
    }
    int fd = mc_unix_listen(serve->unix_path);
    if (fd < 0 || (is_file && chmod(serve->unix_path, 0600) != 0)) {
        mc_log(WARNING, "cannot listen on unix socket %s: %s; peers on this host will use tcp", serve->unix_path,
               strerror(errno));
        if (fd >= 0)
            close(fd);
        serve->unix_path[0] = 0;
        return 0;
    }
    return listener_start(serve, &serve->local, fd, true);
}

/* ---- posts ---- */

static struct post *posts_take(struct mc_serve *serve)
{
    pthread_mutex_lock(&serve->post_lock);
    struct post *first = serve->posts;
    serve->posts = NULL;
    serve->posts_end = &serve->posts;
    pthread_mutex_unlock(&serve->post_lock);
    return first;
}

static void posts_run(struct mc_serve *serve)
{
    for (struct post *post = posts_take(serve); post != NULL;) {
        struct post *next = post->next;
        post->function(post->argument);
        free(post);
        post = next;
    }
}

static void on_posted(evutil_socket_t fd, short what, void *argument)
{
    (void)what;
    struct mc_serve *serve = argument;
    uint64_t count;
    if (read((int)fd, &count, sizeof(count)) < 0 && errno != EAGAIN)
        mc_log_limited(ERROR, "eventfd: %s", strerror(errno));
    serve->activity++;
    posts_run(serve);
}

void mc_serve_post(struct mc_serve *serve, void (*function)(void *argument), void *argument)
{
    struct post *post = malloc(sizeof(*post));
    if (post == NULL)
        abort(); /* as the buffers do: a lost post would be a lost answer */
    *post = (struct post){function, argument, NULL};
    pthread_mutex_lock(&serve->post_lock);
    bool was_empty = serve->posts == NULL;
    *serve->posts_end = post;
    serve->posts_end = &post->next;
    pthread_mutex_unlock(&serve->post_lock);
    uint64_t one = 1;
    if (was_empty && write(serve->post_fd, &one, sizeof(one)) < 0)
        mc_log(ERROR, "eventfd: %s", strerror(errno));
}

/* ---- the loop ---- */

static void loop_once(struct mc_serve *serve, int flags)
{
    if (event_base_loop(serve->base, EVLOOP_ONCE | flags) < 0)
        mc_log_limited(ERROR, "event loop: %s", strerror(errno));
}

/* Waits for events and handles them. Spins (yielding) for a moment first, as long as recent waits ended within one. */
static void loop_turn(struct mc_serve *serve)
{
    uint64_t before = serve->activity, start_ns = mc_clock_ns();
    bool probe = ++serve->spin_probe % SPIN_PROBE_EVERY == 0;
    if (serve->spin_hits > 0 || probe) {
        do {
            sched_yield(); /* first: on one processor nothing can have come before others ran */
            loop_once(serve, EVLOOP_NONBLOCK);
            if (serve->activity != before) {
                serve->spin_hits += serve->spin_hits < SPIN_HITS_MAX;
                return;
            }
        } while (mc_clock_ns() - start_ns < mc_spin_ns() && !serve->stopping);
        serve->spin_hits = serve->spin_hits > 4 ? serve->spin_hits - 4 : 0;
    }
    if (serve->stopping)
        return;
    start_ns = mc_clock_ns();
    loop_once(serve, 0);
    /* A blocked wait costs a wake-up of its own, so one a little longer than the spin counts. */
    if (serve->activity != before && mc_clock_ns() - start_ns < 3 * mc_spin_ns())
        serve->spin_hits += serve->spin_hits < SPIN_HITS_MAX;
}

static void *serve_run(void *argument)
{
    struct mc_serve *serve = argument;
    while (!serve->stopping)
        loop_turn(serve);
    return NULL;
}

static void serve_stop(void *argument)
{
    struct mc_serve *serve = argument;
    serve->stopping = true;
}

/* ---- life ---- */

static struct event_base *base_make(void)
{
    struct event_base *base = NULL;
    struct event_config *config = event_config_new();
    /* One thread uses it; other threads come through the eventfd. */
    if (config != NULL && event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK) == 0)
        base = event_base_new_with_config(config);
    if (config != NULL)
        event_config_free(config);
    return base;
}

static int connection_fds_make(struct mc_serve *serve, uint32_t limit)
{
    _Atomic int *fds = malloc(limit * sizeof(*fds));
    if (fds == NULL)
        return MC_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < limit; i++)
        atomic_init(&fds[i], -1);
    free((void *)serve->connection_fds);
    serve->connection_fds = fds;
    serve->connection_limit = limit;
    return 0;
}

int mc_serve_create(struct mc_id node, uint64_t incarnation, const char *host, uint16_t port, bool unix_allowed,
                    const struct mc_serve_hooks *hooks, struct mc_serve **result)
{
    struct mc_serve *serve = calloc(1, sizeof(*serve));
    if (serve == NULL)
        return MC_ERR_NO_MEMORY;
    serve->server = (struct mc_lane_server){
        .node = node, .incarnation = incarnation, .hooks = hooks == NULL ? (struct mc_serve_hooks){0} : *hooks};
    serve->tcp.fd = serve->local.fd = -1;
    serve->hello_ms = MC_SERVE_HELLO_MS;
    serve->posts_end = &serve->posts;
    pthread_mutex_init(&serve->post_lock, NULL);
    int rc = MC_ERR_NO_MEMORY, error = 0;
    serve->post_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    serve->base = base_make();
    if (serve->post_fd < 0 || serve->base == NULL || connection_fds_make(serve, MC_SERVE_CONNECTIONS_MAX) < 0)
        goto fail;
    serve->posted = event_new(serve->base, serve->post_fd, EV_READ | EV_PERSIST, on_posted, serve);
    serve->cut_timer = evtimer_new(serve->base, on_cut_timer, serve);
    if (serve->posted == NULL || serve->cut_timer == NULL || event_add(serve->posted, NULL) != 0)
        goto fail;
    serve->tcp_port = port;
    int fd = mc_tcp_listen(host, &serve->tcp_port);
    if (fd < 0) {
        rc = fd;
        error = errno;
        goto fail;
    }
    rc = listener_start(serve, &serve->tcp, fd, false);
    if (rc == 0 && unix_allowed)
        rc = local_start(serve);
    if (rc < 0)
        goto fail;
    *result = serve;
    return 0;
fail:
    mc_serve_destroy(serve);
    errno = error; /* of the listener: "address in use" is the caller's to handle */
    return rc;
}

uint16_t mc_serve_tcp_port(const struct mc_serve *serve)
{
    return serve->tcp_port;
}
const char *mc_serve_unix_path(const struct mc_serve *serve)
{
    return serve->unix_path;
}
struct event_base *mc_serve_base(struct mc_serve *serve)
{
    return serve->base;
}

uint32_t mc_serve_connections(const struct mc_serve *serve)
{
    return serve->connection_count;
}

void mc_serve_set_limits(struct mc_serve *serve, uint32_t connections, uint32_t hello_ms)
{
    mc_assert(!serve->started && serve->connection_count == 0 && connections > 0);
    serve->hello_ms = hello_ms;
    if (connection_fds_make(serve, connections) < 0)
        mc_log(WARNING, "limit of data connections stays %" PRIu32, serve->connection_limit);
}

int mc_serve_start(struct mc_serve *serve)
{
    mc_assert(!serve->started);
    if (mc_thread_start(&serve->thread, "mc-serve", serve_run, serve) != 0)
        return MC_ERR_NO_MEMORY;
    serve->started = true;
    return 0;
}

static void connections_close(struct mc_serve *serve)
{
    for (struct connection *one = serve->connections, *next; one != NULL; one = next) {
        next = one->next;
        connection_close(one);
    }
}

static void unpin(struct mc_serve *serve)
{
    if (serve->server.rdma_data != NULL)
        mc_rdma_memory_unregister(serve->server.rdma_data);
    if (serve->server.rdma_index != NULL)
        mc_rdma_memory_unregister(serve->server.rdma_index);
    serve->server.rdma_data = serve->server.rdma_index = NULL;
}

struct pinned { /* on its way to the serve thread */
    struct mc_serve *serve;
    struct mc_segment_memory *memory; /* with a reference */
    struct mc_rdma_memory *data, *index;
};

static void on_pinned(void *argument)
{
    struct pinned *pinned = argument;
    struct mc_lane_server *server = &pinned->serve->server;
    if (server->memory == pinned->memory && server->rdma_data == NULL) {
        server->rdma_data = pinned->data;
        server->rdma_index = pinned->index;
    } else { /* other memory is served meanwhile */
        mc_rdma_memory_unregister(pinned->data);
        mc_rdma_memory_unregister(pinned->index);
    }
    mc_segment_memory_release(pinned->memory);
    free(pinned);
}

void mc_serve_set_rdma(struct mc_serve *serve, struct mc_rdma *rdma)
{
    mc_assert(!serve->started);
    serve->server.rdma = rdma;
}

void mc_serve_pin(struct mc_serve *serve, struct mc_segment_memory *memory)
{
    struct mc_rdma_range data = {.address = mc_segment_memory_data(memory),
                                 .length = mc_segment_memory_data_size(memory),
                                 .dmabuf_fd = -1,
                                 .is_remote_readable = true,
                                 .is_remote_writable = true,
                                 .numa_node = -1};
    struct mc_rdma_range index = {.address = (void *)(uintptr_t)mc_segment_memory_slots(memory),
                                  .length = mc_segment_memory_slot_count(memory) * sizeof(struct mc_slot),
                                  .dmabuf_fd = -1,
                                  .is_remote_readable = true,
                                  .numa_node = -1};
    struct pinned *pinned = calloc(1, sizeof(*pinned));
    if (serve->server.rdma == NULL || pinned == NULL) {
        free(pinned);
        return;
    }
    int rc = mc_rdma_memory_register(serve->server.rdma, &data, &pinned->data);
    if (rc == 0) {
        rc = mc_rdma_memory_register(serve->server.rdma, &index, &pinned->index);
        if (rc < 0)
            mc_rdma_memory_unregister(pinned->data);
    }
    if (rc < 0) {
        mc_log(WARNING, "the segment cannot be registered for RDMA (%s): peers reach it by tcp", mc_error_name(rc));
        free(pinned);
        return;
    }
    mc_segment_memory_retain(memory);
    pinned->serve = serve;
    pinned->memory = memory;
    mc_serve_post(serve, on_pinned, pinned);
}

static bool has_links_of(const struct connection *connection, struct mc_id writer)
{
    return connection->lane.served != NULL && (mc_id_is_zero(writer) || mc_id_equal(connection->lane.peer, writer));
}

void mc_serve_cut_links(struct mc_serve *serve, struct mc_id writer)
{
    for (struct connection *one = serve->connections, *next; one != NULL; one = next) {
        next = one->next;
        if (has_links_of(one, writer))
            connection_close(one);
    }
}

void mc_serve_set_memory(struct mc_serve *serve, struct mc_segment_memory *memory)
{
    cuts_forget(serve);
    connections_close(serve);
    unpin(serve);
    if (memory != NULL) {
        mc_segment_memory_retain(memory);
        mc_segment_memory_set_owner(memory, serve->server.node, serve->server.incarnation);
    }
    mc_segment_memory_release(serve->server.memory);
    serve->server.memory = memory;
}

void mc_serve_cut(struct mc_serve *serve, uint32_t slot, uint64_t generation, struct mc_id writer,
                  void (*done)(void *context, uint32_t slot, uint64_t generation), void *context)
{
    if (serve->server.memory != NULL && mc_segment_memory_clear(serve->server.memory, slot, generation) < 0)
        mc_log_limited(ERROR, "the master cuts slot %" PRIu32 ", which the segment does not have", slot);
    for (struct connection *one = serve->connections, *next; one != NULL; one = next) {
        next = one->next; /* closing one may only finish cuts, which close none */
        if (has_links_of(one, writer))
            connection_close(one);
        else if (!one->is_draining && mc_lane_is_writing(&one->lane, slot, generation))
            connection_fail(one, MC_ERR_STALE);
    }
    struct cut new_cut = {.slot = slot, .generation = generation, .writer = writer, .done = done, .context = context};
    if (cut_is_done(serve, &new_cut)) {
        done(context, slot, generation);
        return;
    }
    struct cut *cut = serve->cuts;
    while (cut != NULL && (cut->slot != slot || !mc_id_equal(cut->writer, writer)))
        cut = cut->next;
    if (cut == NULL) { /* else the master asks again after a broken connection: at most one per slot and writer waits */
        cut = calloc(1, sizeof(*cut));
        if (cut == NULL)
            abort();
        new_cut.next = serve->cuts;
        serve->cuts = cut;
    } else {
        new_cut.next = cut->next;
    }
    *cut = new_cut;
    cuts_look_later(serve);
}

void mc_serve_destroy(struct mc_serve *serve)
{
    if (serve == NULL)
        return;
    if (serve->started) {
        mc_serve_post(serve, serve_stop, serve);
        pthread_join(serve->thread, NULL);
    }
    while (serve->posts != NULL)
        posts_run(serve);
    mc_serve_set_memory(serve, NULL);
    listener_stop(&serve->tcp);
    listener_stop(&serve->local);
    if (serve->unix_path[0] != 0 && serve->unix_path[0] != '@')
        (void)unlink(serve->unix_path);
    if (serve->posted != NULL)
        event_free(serve->posted);
    if (serve->cut_timer != NULL)
        event_free(serve->cut_timer);
    if (serve->base != NULL)
        event_base_free(serve->base);
    if (serve->post_fd >= 0)
        close(serve->post_fd);
    free((void *)serve->connection_fds);
    pthread_mutex_destroy(&serve->post_lock);
    free(serve);
}

void mc_serve_forked(struct mc_serve *serve)
{
    /* The descriptors that libevent made are left. Its epoll is shared with the parent: taking events out of it here
     * would take them from the parent. It is close-on-exec and watches nothing that this child keeps. */
    if (serve->tcp.fd >= 0)
        close(serve->tcp.fd);
    if (serve->local.fd >= 0)
        close(serve->local.fd);
    if (serve->post_fd >= 0)
        close(serve->post_fd);
    for (uint32_t i = 0; i < serve->connection_limit; i++) {
        int fd = atomic_exchange(&serve->connection_fds[i], -1);
        if (fd >= 0)
            close(fd);
    }
    if (serve->server.memory != NULL)
        mc_segment_memory_forked(serve->server.memory);
}
