/* The lanes that a path of transport `tcp` keeps between batches, and its life. */
#include "store/path/tcp_pool.h"

#include "env/clock.h"
#include "env/thread.h"

#include <stdlib.h>
#include <sys/socket.h>

#define IDLE_MAX 8u               /* lanes kept per path */
#define IDLE_TRUST_NS 10000000ull /* a lane that rested longer is looked at before it is used */
#define OWING_MAX 4u              /* lanes kept per path that are owed answers */
#define OWING_NS 3000000000ull    /* so long */

static bool is_usable(const struct mc_tcp_lane *lane)
{
    return mc_clock_ns() - lane->idle_since_ns < IDLE_TRUST_NS || mc_socket_is_silent(lane->fd);
}

/* Lock held. The idle lane that was used last; NULL: none, or no memory for it. */
static struct mc_tcp_lane *idle_pop(struct mc_tcp_path *tcp)
{
    struct mc_tcp_lane *lane = tcp->idle;
    struct mc_tcp_rest *rest = tcp->resting;
    if (lane != NULL) {
        tcp->idle = lane->next;
    } else if (rest != NULL) {
        struct mc_tcp_rest *next = rest->next;
        lane = mc_tcp_lane_wake(rest);
        tcp->resting = lane != NULL ? next : rest;
    }
    tcp->idle_count -= lane != NULL;
    return lane;
}

void mc_tcp_idle_give(struct mc_tcp_path *tcp, struct mc_tcp_lane *lane)
{
    lane->idle_since_ns = mc_clock_ns();
    atomic_store_explicit(&tcp->takes_parts, lane->takes_parts, memory_order_relaxed);
    pthread_mutex_lock(&tcp->lock);
    struct mc_tcp_waiter *first = tcp->waiting;
    bool keep = first != NULL || tcp->idle_count < IDLE_MAX;
    if (first != NULL) { /* not into the list: who gave it back would have it again before the other is awake */
        tcp->waiting = first->next;
        first->lane = lane;
        pthread_cond_broadcast(&tcp->given);
    } else if (keep) {
        lane->next = tcp->idle;
        tcp->idle = lane;
        tcp->idle_count++;
    }
    pthread_mutex_unlock(&tcp->lock);
    if (!keep)
        mc_tcp_lane_close(tcp->path.paths, lane, false);
}

void mc_tcp_owing_settle(struct mc_tcp_path *tcp, struct mc_tcp_lane *more)
{
    pthread_mutex_lock(&tcp->lock);
    struct mc_tcp_lane *list = tcp->owing;
    tcp->owing = NULL;
    tcp->owing_count = 0;
    pthread_mutex_unlock(&tcp->lock);
    if (more != NULL) {
        more->next = list;
        list = more;
    }
    for (struct mc_tcp_lane *lane = list, *next; lane != NULL; lane = next) {
        next = lane->next;
        int rc = mc_tcp_lane_drain(lane);
        if (rc > 0) {
            mc_tcp_idle_give(tcp, lane);
            continue;
        }
        pthread_mutex_lock(&tcp->lock);
        bool keep = rc == 0 && tcp->owing_count < OWING_MAX && mc_clock_ns() < lane->idle_since_ns + OWING_NS;
        if (keep) {
            lane->next = tcp->owing;
            tcp->owing = lane;
            tcp->owing_count++;
        }
        pthread_mutex_unlock(&tcp->lock);
        if (!keep)
            mc_tcp_lane_close(tcp->path.paths, lane, true);
    }
}

struct mc_tcp_lane *mc_tcp_idle_take(struct mc_tcp_path *tcp)
{
    for (bool settled = false;;) {
        pthread_mutex_lock(&tcp->lock);
        struct mc_tcp_lane *lane = idle_pop(tcp);
        bool is_owed = tcp->owing != NULL;
        pthread_mutex_unlock(&tcp->lock);
        if (lane == NULL && is_owed && !settled) {
            settled = true;
            mc_tcp_owing_settle(tcp, NULL);
            continue;
        }
        if (lane == NULL || is_usable(lane))
            return lane;
        mc_tcp_lane_close(tcp->path.paths, lane, false);
    }
}

struct mc_tcp_lane *mc_tcp_idle_wait(struct mc_tcp_path *tcp, uint64_t until_ns)
{
    struct mc_tcp_waiter self = {.lane = NULL}, **at = &tcp->waiting;
    pthread_mutex_lock(&tcp->lock);
    bool waits = tcp->idle_count == 0;
    if (waits) {
        while (*at != NULL)
            at = &(*at)->next;
        *at = &self;
        while (self.lane == NULL && mc_monitor_wait(&tcp->lock, &tcp->given, until_ns) == 0)
            continue;
    }
    if (waits && self.lane == NULL) {
        for (at = &tcp->waiting; *at != &self;)
            at = &(*at)->next;
        *at = self.next;
    }
    pthread_mutex_unlock(&tcp->lock);
    return self.lane != NULL ? self.lane : mc_tcp_idle_take(tcp);
}

/* ---- path ---- */

int mc_tcp_open(struct mc_paths *paths, const struct mc_endpoint *endpoint, const struct mc_patience *patience,
                struct mc_path **path)
{
    if (endpoint->tcp_address[0] == 0)
        return MC_ERR_UNAVAILABLE_IN_CURRENT_MODE;
    struct mc_tcp_path *tcp = calloc(1, sizeof(*tcp));
    if (tcp == NULL)
        return MC_ERR_NO_MEMORY;
    mc_path_init(&tcp->path, &mc_transport_tcp, paths, endpoint);
    struct mc_tcp_lane *lane = NULL;
    struct mc_tcp_opener opener = {
        .paths = paths, .endpoint = &tcp->path.endpoint, .peers = tcp->peers, .pace = &tcp->pace};
    int rc = mc_tcp_resolve(endpoint->tcp_address, mc_tcp_open_until(patience), tcp->peers, MC_TCP_PEERS_MAX);
    if (rc > 0) {
        opener.peer_count = (size_t)rc;
        rc = mc_tcp_opener_wait(&opener, mc_tcp_open_until(patience), &lane);
        mc_tcp_opener_end(&opener);
        tcp->peer_count = opener.peer_count;
    }
    if (rc < 0 &&
        (rc != MC_ERR_BUSY || tcp->peer_count == 0)) { /* busy: runs wait for their turn, each by its deadline */
        if (!mc_socket_is_own(rc))
            mc_tcp_doubt(endpoint->tcp_address);
        free(tcp);
        return rc;
    }
    if (lane != NULL && mc_tcp_peer(lane->fd, &tcp->peers[0])) /* the address that works */
        tcp->peer_count = 1;
    mc_monitor_init(&tcp->lock, &tcp->given);
    if (lane != NULL)
        mc_tcp_idle_give(tcp, lane);
    *path = &tcp->path;
    return 0;
}

static void lanes_close(struct mc_paths *paths, struct mc_tcp_lane *list)
{
    for (struct mc_tcp_lane *lane = list, *next; lane != NULL; lane = next) {
        next = lane->next;
        mc_tcp_lane_close(paths, lane, false);
    }
}

static void rests_close(struct mc_paths *paths, struct mc_tcp_rest *rest)
{
    for (struct mc_tcp_rest *next; rest != NULL; rest = next) {
        next = rest->next;
        mc_paths_fd_close(paths, rest->fd_place);
        free(rest);
    }
}

void mc_tcp_close(struct mc_path *path)
{
    struct mc_tcp_path *tcp = (struct mc_tcp_path *)path;
    lanes_close(path->paths, tcp->idle);
    lanes_close(path->paths, tcp->owing);
    rests_close(path->paths, tcp->resting);
    pthread_cond_destroy(&tcp->given);
    pthread_mutex_destroy(&tcp->lock);
    free(tcp);
}

/* Its resting lanes have all been closed by the peer. One that runs has no part in it. */
bool mc_tcp_is_ended(struct mc_path *path)
{
    struct mc_tcp_path *tcp = (struct mc_tcp_path *)path;
    bool any_open = false;
    pthread_mutex_lock(&tcp->lock);
    for (struct mc_tcp_lane *lane = tcp->idle; lane != NULL && !any_open; lane = lane->next)
        any_open = is_usable(lane);
    for (struct mc_tcp_rest *rest = tcp->resting; rest != NULL && !any_open; rest = rest->next)
        any_open = mc_socket_is_silent(rest->fd);
    bool is_ended = tcp->idle_count > 0 && !any_open;
    pthread_mutex_unlock(&tcp->lock);
    return is_ended;
}

/* Lock held. Lanes that were not used for MC_LANE_SETTLE_MS give their buffers back. */
static void idle_settle(struct mc_tcp_path *tcp, uint64_t now_ns)
{
    struct mc_tcp_lane **at = &tcp->idle;
    struct mc_tcp_rest *rests = NULL, **last = &rests;
    while (*at != NULL && now_ns - (*at)->idle_since_ns < MC_LANE_SETTLE_MS * 1000000ull)
        at = &(*at)->next;
    while (*at != NULL) { /* all behind it have rested longer still */
        struct mc_tcp_lane *next = (*at)->next;
        struct mc_tcp_rest *rest = mc_tcp_lane_settle(*at);
        if (rest == NULL)
            break;
        *at = next;
        *last = rest;
        last = &rest->next;
    }
    *last = tcp->resting;
    tcp->resting = rests;
}

void mc_tcp_rest_lanes(struct mc_path *path, uint64_t now_ns)
{
    struct mc_tcp_path *tcp = (struct mc_tcp_path *)path;
    mc_tcp_owing_settle(tcp, NULL);
    pthread_mutex_lock(&tcp->lock);
    idle_settle(tcp, now_ns);
    struct mc_tcp_rest **at = &tcp->resting;
    while (*at != NULL && now_ns - (*at)->idle_since_ns < MC_LANE_IDLE_MS * 1000000ull)
        at = &(*at)->next;
    struct mc_tcp_rest *old = *at;
    *at = NULL;
    for (const struct mc_tcp_rest *rest = old; rest != NULL; rest = rest->next)
        tcp->idle_count--;
    pthread_mutex_unlock(&tcp->lock);
    rests_close(path->paths, old);
}

/* One that a small frame could not be sent on is found broken by whoever takes it. */
static void fd_nudge(int fd, const struct mc_buffer *frame)
{
    if (mc_socket_send_small(fd, frame->data, frame->length) < 0)
        (void)shutdown(fd, SHUT_RDWR);
}

static void rested_close(struct mc_tcp_path *tcp)
{
    pthread_mutex_lock(&tcp->lock);
    struct mc_tcp_lane *idle = tcp->idle;
    struct mc_tcp_rest *resting = tcp->resting;
    tcp->idle = NULL;
    tcp->resting = NULL;
    tcp->idle_count = 0;
    pthread_mutex_unlock(&tcp->lock);
    lanes_close(tcp->path.paths, idle);
    rests_close(tcp->path.paths, resting);
}

/* The lane that the commit went over rests, or another thread sends on it. */
void mc_tcp_nudge(struct mc_path *path, bool gives_up)
{
    struct mc_tcp_path *tcp = (struct mc_tcp_path *)path;
    if (gives_up) {
        rested_close(tcp);
        return;
    }
    uint8_t bytes[MC_PATH_NUDGE_BYTES];
    struct mc_buffer out = {.data = bytes, .capacity = sizeof(bytes)};
    bool any = false;
    mc_path_nudge_write(&out);
    pthread_mutex_lock(&tcp->lock);
    for (struct mc_tcp_lane *lane = tcp->idle; lane != NULL; lane = lane->next) {
        if (!mc_tcp_is_unconfirmed(lane->fd))
            continue;
        fd_nudge(lane->fd, &out);
        any = true;
    }
    if (!any && tcp->idle != NULL) /* the owner has it; what it told the master may be lost */
        fd_nudge(tcp->idle->fd, &out);
    pthread_mutex_unlock(&tcp->lock);
}
