/* Data connections of an owner: their sockets, their places, their rest and their end. */
#include "base/checksum.h"
#include "base/error.h"
#include "store/segment/serve_inside.h"
#include "env/clock.h"
#include "env/log.h"

#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define GREETERS_AT_ONCE 8 /* leave for one that comes, when there are too many */
/* A connection moves so much before others have their turn. Of 64 KiB each piece wakes its reader, which then waits for
 * the next: on one processor gets of 1 to 64 MiB took 1.3 to 2.2 times as long. */
#define TURN_BYTES (256u << 10)
#define TURN_BYTES_IN_COMPANY (64u << 10) /* where another connection has asked for something small, */
#define COMPANY_MS 10u                    /* and that is not longer ago. It has sent nothing large as lately */
#define ANSWER_BYTES (4u << 10)           /* of small answers go behind a turn that was all input */
#define ANSWER_SHARE 4u                   /* one byte of so many is kept for a large answer */

/* ---- lists ---- */

static void list_append(struct mc_connections *list, struct mc_serve_connection *connection)
{
    connection->previous = list->last;
    connection->next = NULL;
    if (list->last != NULL)
        list->last->next = connection;
    else
        list->first = connection;
    list->last = connection;
    list->count++;
}

static void list_remove(struct mc_connections *list, struct mc_serve_connection *connection)
{
    if (connection->previous != NULL)
        connection->previous->next = connection->next;
    else
        list->first = connection->next;
    if (connection->next != NULL)
        connection->next->previous = connection->previous;
    else
        list->last = connection->previous;
    list->count--;
}

static void stream_append(struct mc_serve_connection *connection)
{
    struct mc_serve *serve = connection->serve;
    serve->activity++; /* the loop does not wait for events meanwhile */
    connection->is_streaming = true;
    connection->streamed_ms = mc_clock_ms();
    connection->stream_previous = serve->streams.last;
    connection->stream_next = NULL;
    if (serve->streams.last != NULL)
        serve->streams.last->stream_next = connection;
    else
        serve->streams.first = connection;
    serve->streams.last = connection;
}

static void stream_remove(struct mc_serve_connection *connection)
{
    struct mc_serve *serve = connection->serve;
    if (!connection->is_streaming)
        return;
    connection->is_streaming = false;
    if (connection->stream_previous != NULL)
        connection->stream_previous->stream_next = connection->stream_next;
    else
        serve->streams.first = connection->stream_next;
    if (connection->stream_next != NULL)
        connection->stream_next->stream_previous = connection->stream_previous;
    else
        serve->streams.last = connection->stream_previous;
}

static struct mc_serve *control_of(struct mc_serve *serve)
{
    return serve->control == NULL ? serve : serve->control;
}

static void connection_leave(struct mc_serve_connection *connection)
{
    struct mc_serve *serve = connection->serve;
    serve->small = serve->small == connection ? NULL : serve->small;
    list_remove(connection->is_guest ? &serve->guests : &serve->greeters, connection);
    stream_remove(connection);
    mc_shares_leave(&serve->shares, &connection->guest);
    if (connection->is_guest)
        atomic_fetch_sub(&control_of(serve)->taken, 1);
    atomic_fetch_sub(&serve->present, 1);
    event_free(connection->readable);
    event_free(connection->writable);
    if (connection->hello_timer != NULL)
        event_free(connection->hello_timer);
    serve->held -= connection->held;
}

static void connection_place_free(struct mc_serve_connection *connection)
{
    struct mc_serve *serve = connection->serve;
    atomic_store(&serve->connection_fds[connection->place], 0);
    serve->free_places[serve->free_count++] = connection->place;
}

void mc_connection_close(struct mc_serve_connection *connection)
{
    struct mc_serve *serve = connection->serve;
    bool was_attached = connection->lane.attached != NULL;
    connection_leave(connection);
    mc_lane_free(&connection->lane); /* first: the end of the connection tells the peer that its link has ended */
    connection_place_free(connection);
    mc_fd_close(connection->fd);
    free(connection);
    if (was_attached && serve->cuts != NULL)
        mc_serve_cuts_look(serve);
}

static void list_close(struct mc_connections *list)
{
    for (struct mc_serve_connection *first; (first = list->first) != NULL;) {
        mc_connection_close(first);
        mc_assert(list->first != first);
    }
}

void mc_connections_close(struct mc_serve *serve)
{
    list_close(&serve->guests);
    list_close(&serve->greeters);
}

/* ---- places ---- */

int mc_connections_limit(struct mc_serve *serve, uint32_t limit)
{
    uint32_t greeters = limit / 3 * 2 > MC_SERVE_GREETERS_MAX ? MC_SERVE_GREETERS_MAX : limit / 3 * 2;
    greeters = greeters < MC_SERVE_GREETERS_LEAST ? MC_SERVE_GREETERS_LEAST : greeters;
    uint32_t count = limit + greeters;
    _Atomic int *fds = calloc(count, sizeof(*fds));
    uint32_t *places = malloc(count * sizeof(*places));
    if (fds == NULL || places == NULL) {
        free((void *)fds);
        free(places);
        return MC_ERR_NO_MEMORY;
    }
    free((void *)serve->connection_fds);
    free(serve->free_places);
    serve->connection_fds = fds;
    serve->free_places = places;
    serve->place_count = count;
    serve->guests_max = limit;
    serve->greeters_max = greeters;
    return 0;
}

static uint32_t place_take(struct mc_serve *serve)
{
    if (serve->free_count > 0)
        return serve->free_places[--serve->free_count];
    mc_assert(serve->places_used < serve->place_count);
    return serve->places_used++;
}

static struct mc_serve_connection *connection_of(struct mc_guest *guest)
{
    return (struct mc_serve_connection *)(void *)((char *)guest - offsetof(struct mc_serve_connection, guest));
}

/* One that rests is closed, unless a request has just come. */
static bool connection_give(struct mc_serve_connection *connection, const char *why)
{
    char byte;
    ssize_t waiting = recv(connection->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (waiting > 0) {
        mc_shares_wake(&connection->serve->shares, &connection->guest);
        return false;
    }
    mc_log(DEBUG, "data connection %d closed: %s", connection->fd, why);
    mc_connection_close(connection);
    return true;
}

bool mc_connections_give_one(struct mc_serve *serve)
{
    struct mc_guest *guest;
    uint64_t now_ms = mc_clock_ms();
    while ((guest = mc_shares_oldest(&serve->shares)) != NULL && guest->since_ms + MC_SHARES_LEAST_MS <= now_ms) {
        if (connection_give(connection_of(guest), "descriptors are out"))
            return true;
    }
    return false;
}

/* By which the shares of hosts are counted, a /64 of IPv6 as one; zero: this one. */
static struct mc_id host_of(const struct mc_serve_connection *connection)
{
    return (struct mc_id){mc_socket_peer_key(connection->fd), 0};
}

static struct mc_serve_connection *connection_with(const struct mc_serve_lane *lane)
{
    return (struct mc_serve_connection *)((uintptr_t)lane - offsetof(struct mc_serve_connection, lane));
}

void mc_connection_where(const struct mc_serve_lane *lane, char text[MC_ADDRESS_MAX])
{
    mc_socket_peer_text(connection_with(lane)->fd, text);
}

/* ---- those that stand still ---- */

static uint64_t stall_ms(const struct mc_serve *serve)
{
    return serve->idle_ms / MC_SERVE_STALL_PART;
}

static uint64_t grace_ms(const struct mc_serve *serve)
{
    return serve->idle_ms / MC_SERVE_SLOW_PART;
}

/* Bytes came or went. */
static void has_moved(struct mc_serve_connection *connection, uint64_t bytes)
{
    connection->serve->activity++;
    connection->moved_ms = mc_clock_ms();
    mc_tempo_move(&connection->tempo, bytes, connection->moved_ms, grace_ms(connection->serve));
}

/* In the middle of a frame, or of an answer that its peer does not take. */
static bool is_waited_for(const struct mc_serve_connection *connection)
{
    const struct mc_serve_lane *lane = &connection->lane;
    bool is_untaken = connection->is_writing && lane->attached == NULL && lane->served == NULL;
    return is_untaken || (mc_lane_is_owed(lane) && mc_socket_is_silent(connection->fd));
}

static bool is_stalled(const struct mc_serve_connection *connection, uint64_t for_ms, uint64_t now_ms)
{
    return now_ms - connection->moved_ms >= for_ms && is_waited_for(connection);
}

static void stall_timer_set(struct mc_serve *serve)
{
    uint64_t wait_ms = stall_ms(serve) / 4;
    struct timeval wait = {.tv_sec = (time_t)(wait_ms / 1000), .tv_usec = (suseconds_t)(wait_ms % 1000) * 1000};
    if (serve->guests.count > 0 && !evtimer_pending(serve->stall_timer, NULL))
        mc_assert(evtimer_add(serve->stall_timer, &wait) == 0);
}

static void stalled_close(struct mc_serve_connection *connection, const char *why)
{
    mc_log_limited(INFO, "a data connection is closed in the middle of a frame: %s", why);
    mc_connection_close(connection);
}

void mc_connections_on_stall_timer(evutil_socket_t fd, short what, void *argument)
{
    (void)fd, (void)what;
    struct mc_serve *serve = argument;
    uint64_t now_ms = mc_clock_ms();
    for (struct mc_serve_connection *one = serve->guests.first, *next; one != NULL; one = next) {
        next = one->next;
        if (is_stalled(one, stall_ms(serve), now_ms))
            stalled_close(one, "it has stood still for too long");
    }
    stall_timer_set(serve);
}

/* The next one to look at, which is the last one then: so all have their turn, however many a look is for. */
static struct mc_serve_connection *guest_next(struct mc_serve *serve)
{
    struct mc_serve_connection *one = serve->guests.first;
    list_remove(&serve->guests, one);
    list_append(&serve->guests, one);
    return one;
}

static uint32_t guest_looks(const struct mc_serve *serve)
{
    return serve->guests.count < MC_SHARES_LOOKS ? serve->guests.count : MC_SHARES_LOOKS;
}

/* Of the host with more places, or slow for longer. */
static bool goes_before(const struct mc_serve_connection *one, const struct mc_serve_connection *other)
{
    uint32_t ones = one->guest.host->count, others = other->guest.host->count;
    return ones != others ? ones > others : one->tempo.paid_ms < other->tempo.paid_ms;
}

/* A slow one of a host with more than its share, of which it may have the place; else any that stands still. False:
 * there is neither. */
static bool slow_give(struct mc_serve *serve, struct mc_id peer, struct mc_id host)
{
    uint64_t now_ms = mc_clock_ms();
    struct mc_serve_connection *slow = NULL, *stalled = NULL;
    for (uint32_t left = guest_looks(serve); left > 0; left--) {
        struct mc_serve_connection *one = guest_next(serve);
        if (mc_tempo_is_slow(&one->tempo, now_ms) && (slow == NULL || goes_before(one, slow)) &&
            mc_shares_may_take(&serve->shares, peer, host, &one->guest) && is_waited_for(one))
            slow = one;
        else if (stalled == NULL && is_stalled(one, stall_ms(serve) / 12, now_ms))
            stalled = one;
    }
    if (slow != NULL)
        stalled_close(slow, "it is slow, of a host with many, and its place is needed");
    else if (stalled != NULL)
        stalled_close(stalled, "it stands still, and its place is needed");
    return slow != NULL || stalled != NULL;
}

/* What is not whole takes memory as it comes; of all together no more than there is for it. May end any connection. */
static void held_limit(struct mc_serve_connection *connection)
{
    struct mc_serve *serve = connection->serve;
    struct mc_serve_connection *oldest = NULL;
    serve->held += connection->lane.in.capacity - connection->held;
    connection->held = connection->lane.in.capacity;
    if (serve->held <= MC_SERVE_HELD_MAX / (control_of(serve)->data_count + 1))
        return;
    for (uint32_t left = guest_looks(serve); left > 0; left--) {
        struct mc_serve_connection *one = guest_next(serve);
        if (one->held > 0 && mc_lane_is_owed(&one->lane) &&
            (oldest == NULL || one->tempo.paid_ms < oldest->tempo.paid_ms))
            oldest = one;
    }
    oldest = oldest == NULL ? connection : oldest;
    stalled_close(oldest, "too much is not whole");
}

/* ---- coming in ---- */

static bool place_make(struct mc_serve_connection *connection, struct mc_id peer, struct mc_id host)
{
    struct mc_serve *serve = connection->serve;
    for (struct mc_guest *victim;;) {
        if (!mc_shares_ask(&serve->shares, peer, host, mc_clock_ms(), &victim)) {
            if (slow_give(serve, peer, host))
                continue;
            mc_log_limited(WARNING,
                           "all %" PRIu32 " data connections are in use by %" PRIu32 " nodes of %" PRIu32
                           " hosts: one more is told to come later",
                           serve->guests_max, serve->shares.peers.count, serve->shares.hosts.count);
            return false;
        }
        if (victim == NULL || connection_give(connection_of(victim), "its place is needed"))
            return true;
    }
}

static int connection_admit(struct mc_serve_connection *connection, struct mc_id peer)
{
    struct mc_serve *serve = connection->serve;
    struct mc_id host = host_of(connection);
    /* Where all places are taken, each thread makes room among its own. */
    uint32_t before = atomic_fetch_add(&control_of(serve)->taken, 1);
    serve->shares.limit = serve->shares.count + (before < serve->guests_max);
    if (!place_make(connection, peer, host) || mc_shares_enter(&serve->shares, &connection->guest, peer, host) < 0) {
        atomic_fetch_sub(&control_of(serve)->taken, 1);
        return MC_ERR_BUSY; /* no memory: later there may be some */
    }
    list_remove(&serve->greeters, connection);
    list_append(&serve->guests, connection);
    connection->is_guest = true;
    connection->moved_ms = mc_clock_ms();
    mc_tempo_begin(&connection->tempo, connection->moved_ms, grace_ms(serve));
    stall_timer_set(serve);
    return 0;
}

int mc_connection_admit(struct mc_serve_lane *lane, struct mc_id peer)
{
    return connection_admit(connection_with(lane), peer);
}

/* ---- rest ---- */

static void rest_timer_set(struct mc_serve *serve, uint64_t now_ms)
{
    const struct mc_guest *fresh = serve->shares.fresh.oldest, *settled = serve->shares.settled.oldest;
    uint64_t due_ms = UINT64_MAX;
    if (fresh != NULL)
        due_ms = fresh->since_ms + MC_SERVE_SETTLE_MS;
    if (settled != NULL && settled->since_ms + serve->idle_ms < due_ms)
        due_ms = settled->since_ms + serve->idle_ms;
    if (due_ms == UINT64_MAX)
        return;
    uint64_t wait_ms = due_ms > now_ms ? due_ms - now_ms : 0;
    struct timeval wait = {.tv_sec = (time_t)(wait_ms / 1000), .tv_usec = (suseconds_t)(wait_ms % 1000) * 1000};
    mc_assert(evtimer_add(serve->rest_timer, &wait) == 0);
}

void mc_connections_on_rest_timer(evutil_socket_t fd, short what, void *argument)
{
    (void)fd, (void)what;
    struct mc_serve *serve = argument;
    struct mc_shares *shares = &serve->shares;
    struct mc_guest *guest;
    uint64_t now_ms = mc_clock_ms();
    while ((guest = shares->fresh.oldest) != NULL && guest->since_ms + MC_SERVE_SETTLE_MS <= now_ms) {
        mc_lane_settle(&connection_of(guest)->lane);
        mc_shares_settle(shares, guest);
    }
    while ((guest = shares->settled.oldest) != NULL && guest->since_ms + serve->idle_ms <= now_ms) {
        (void)connection_give(connection_of(guest), "it was idle");
        mc_assert(shares->settled.oldest != guest);
    }
    rest_timer_set(serve, now_ms);
}

static void connection_rest(struct mc_serve_connection *connection)
{
    struct mc_serve *serve = connection->serve;
    uint64_t now_ms = mc_clock_ms();
    const struct mc_guest *guest = &connection->guest;
    if (guest->rest != MC_REST_NOT && now_ms - guest->since_ms > MC_SHARES_LEAST_MS) /* it might have gone meanwhile */
        mc_tempo_rest(&connection->tempo, now_ms - guest->since_ms - MC_SHARES_LEAST_MS, now_ms, grace_ms(serve));
    if (!connection->is_guest || !mc_lane_is_resting(&connection->lane)) {
        mc_shares_wake(&serve->shares, &connection->guest);
        return;
    }
    mc_shares_rest(&serve->shares, &connection->guest, now_ms);
    if (!evtimer_pending(serve->rest_timer, NULL))
        rest_timer_set(serve, now_ms);
}

/* ---- turns ---- */

static uint64_t turn_bytes(const struct mc_serve_connection *connection)
{
    const struct mc_serve *serve = connection->serve;
    bool has_company =
        serve->small != NULL && serve->small != connection && mc_clock_ms() - serve->small_ms < COMPANY_MS;
    return has_company ? TURN_BYTES_IN_COMPANY : TURN_BYTES;
}

/* It has asked for something; what is small of a connection with large things is no company for others. */
static void asked_note(struct mc_serve_connection *connection)
{
    uint64_t now_ms = mc_clock_ms();
    if (connection->is_streaming || now_ms - connection->streamed_ms < COMPANY_MS)
        return;
    connection->serve->small = connection;
    connection->serve->small_ms = now_ms;
}

/* ---- moving bytes ---- */

/* One receive of at most so many bytes, into the window of a payload and behind it into the scratch. Bytes, 0 when the
 * socket is empty, or negative. *more: worth another. */
static int64_t connection_receive(struct mc_serve_connection *connection, uint64_t most, bool *more)
{
    struct mc_serve *serve = connection->serve;
    uint8_t *target;
    int64_t window = mc_lane_window(&connection->lane, &target);
    if (window < 0)
        return window;
    size_t direct = (uint64_t)window < most ? (size_t)window : (size_t)most;
    size_t behind = most - direct < sizeof(serve->scratch) ? (size_t)most - direct : sizeof(serve->scratch);
    struct iovec parts[2] = {{target, direct}, {serve->scratch, behind}};
    bool has_scratch = behind > 0; /* what lies behind the window must not go where payload goes */
    struct msghdr message = {.msg_iov = direct > 0 ? parts : parts + 1,
                             .msg_iovlen = direct == 0   ? 1
                                           : has_scratch ? 2
                                                         : 1};
    ssize_t received;
    do
        received = mc_socket_recvmsg(connection->fd, &message);
    while (received < 0 && errno == EINTR);
    *more = false;
    size_t in_window = received <= 0 ? 0 : (size_t)received < direct ? (size_t)received : direct;
    if (direct > 0)
        mc_lane_window_filled(&connection->lane, in_window);
    if (received < 0 && errno == EAGAIN)
        return 0;
    if (received <= 0) {
        connection->is_at_end = true;
        return MC_ERR_RPC_FAIL;
    }
    *more = (size_t)received == direct + behind;
    int rc = mc_lane_input(&connection->lane, serve->scratch, (size_t)received - in_window);
    if (rc == MC_ERR_PROTOCOL && !connection->lane.is_open)
        mc_secure_note(connection->fd, serve->scratch, (size_t)received - in_window, true);
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
static ssize_t send_parts(struct mc_serve_connection *connection, struct iovec *parts, size_t count, bool with_fds)
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
        sent = mc_socket_sendmsg(connection->fd, &message);
    while (sent < 0 && errno == EINTR);
    return sent;
}

/* Of the parts no more than so many bytes. How many are left. */
static size_t parts_limit(struct iovec *parts, size_t count, uint64_t most)
{
    for (size_t i = 0; i < count; i++) {
        if (parts[i].iov_len >= most) {
            parts[i].iov_len = (size_t)most;
            return i + 1;
        }
        most -= parts[i].iov_len;
    }
    return count;
}

static void set_event(struct event *event, bool *is_added, bool wanted)
{
    if (*is_added == wanted)
        return;
    *is_added = wanted;
    mc_assert((wanted ? event_add(event, NULL) : event_del(event)) == 0);
}

/* Sends what there is, up to so many bytes; unless it `may_stream`, only until much is under way. 0 or negative. */
static int connection_send(struct mc_serve_connection *connection, bool may_stream, uint64_t budget)
{
    bool is_blocked = false;
    if (budget < ANSWER_BYTES && !mc_lane_gives_much(&connection->lane))
        budget = ANSWER_BYTES;
    while (budget > 0 && !is_blocked) {
        struct iovec parts[MC_LANE_PARTS_MAX];
        bool with_fds;
        size_t count = mc_lane_output(&connection->lane, parts, budget, &with_fds);
        if (count == 0 || (mc_lane_gives_much(&connection->lane) && !may_stream))
            break;
        ssize_t sent = send_parts(connection, parts, parts_limit(parts, count, budget), with_fds);
        if (sent < 0) {
            if (errno != EAGAIN)
                return MC_ERR_RPC_FAIL;
            is_blocked = true;
            break;
        }
        has_moved(connection, (uint64_t)sent);
        int rc = mc_lane_sent(&connection->lane, (uint64_t)sent);
        if (rc < 0)
            return rc;
        budget -= (uint64_t)sent < budget ? (uint64_t)sent : budget;
    }
    if (mc_lane_has_ended(&connection->lane))
        return MC_ERR_ILLEGAL_CLIENT;
    bool gives_much = mc_lane_gives_much(&connection->lane);
    if (gives_much && !is_blocked && !connection->is_streaming)
        stream_append(connection);
    set_event(connection->writable, &connection->is_writing, is_blocked || (budget == 0 && !gives_much));
    set_event(connection->readable, &connection->is_reading, mc_lane_wants_input(&connection->lane));
    if (connection->holds && connection->is_reading)
        event_active(connection->readable, EV_READ, 0);
    connection_rest(connection);
    return 0;
}

/* Receives up to so many bytes, into the window of a large payload only if it `may_stream`; with TLS also what is here
 * then, of which no event will tell. Bytes; *end: 0, or why it is over. */
static uint64_t connection_take(struct mc_serve_connection *connection, bool may_stream, uint64_t turn, int *end)
{
    uint64_t moved = 0;
    bool more = true, only_held = false;
    while (more && mc_lane_wants_input(&connection->lane)) {
        if (!may_stream && mc_lane_takes_much(&connection->lane))
            break;
        if (moved >= turn && !only_held && !(only_held = mc_socket_hold(connection->fd, true)))
            break;
        int64_t rc = connection_receive(connection, moved < turn ? turn - moved : MC_SERVE_RECEIVE_BYTES, &more);
        if (rc < 0) {
            *end = (int)rc; /* commits that came before the end are still told */
            break;
        }
        moved += (uint64_t)rc;
    }
    if (only_held)
        (void)mc_socket_hold(connection->fd, false);
    connection->holds = more && mc_socket_holds(connection->fd);
    if (*end == 0 && more && mc_lane_takes_much(&connection->lane) && mc_lane_wants_input(&connection->lane) &&
        !connection->is_streaming)
        stream_append(connection);
    return moved;
}

/* A turn: receive, tell the owner of commits, answer. A large answer has a quarter of it, however much keeps coming. */
static int connection_turn(struct mc_serve_connection *connection, bool may_stream)
{
    int rc = 0;
    uint64_t turn = turn_bytes(connection), share = mc_lane_gives_much(&connection->lane) ? turn / ANSWER_SHARE : 0;
    uint64_t moved = connection_take(connection, may_stream, turn - share, &rc);
    if (moved > 0)
        has_moved(connection, moved);
    flush_commits(connection->serve);
    if (rc < 0)
        return rc;
    if (connection->lane.is_open && connection->hello_timer != NULL) {
        event_free(connection->hello_timer);
        connection->hello_timer = NULL;
    }
    rc = connection_send(connection, may_stream, moved < turn - share ? turn - moved : share);
    if (rc == 0 && moved > 0 && !may_stream)
        asked_note(connection);
    return rc;
}

/* The connection is of no use any more: `code` says why.
 * A peer that has our memory mapped goes on being known by its entry in the table of writers. A refused hello's answer
 * must arrive: closing with unread input would make the kernel throw it away; the hello timer ends that wait. A guest
 * was not refused; it has no such timer, and those that rest are looked after as if they were of use. */
static void connection_fail(struct mc_serve_connection *connection, int code)
{
    if (code == MC_ERR_PROTOCOL || code == MC_ERR_INVALID_PARAMS)
        mc_log_limited(WARNING, "a data connection sent what is not our protocol; closed");
    else
        mc_log(DEBUG, "data connection %d closed: %s", connection->fd, mc_error_name(code));
    if (connection->is_at_end || connection->is_draining || connection->is_guest || code != MC_ERR_ILLEGAL_CLIENT) {
        mc_connection_close(connection);
        return;
    }
    (void)shutdown(connection->fd, SHUT_WR); /* fails when the peer is gone, which the next receive shows */
    connection->is_draining = true;
    set_event(connection->writable, &connection->is_writing, false);
    set_event(connection->readable, &connection->is_reading, true);
}

static void connection_drain(struct mc_serve_connection *connection)
{
    struct mc_serve *serve = connection->serve;
    ssize_t received = recv(connection->fd, serve->scratch, sizeof(serve->scratch), MSG_DONTWAIT);
    if (received == 0 || (received < 0 && errno != EAGAIN && errno != EINTR))
        mc_connection_close(connection);
}

/* What a turn has led to. The last use of the connection. */
static void connection_goes_on(struct mc_serve_connection *connection, int rc)
{
    flush_commits(connection->serve); /* input that had to wait may have been commits */
    if (rc < 0)
        connection_fail(connection, rc);
    else if (connection->lane.is_leaving)
        mc_serve_hand_back(connection);
    else
        held_limit(connection);
}

static void on_readable(evutil_socket_t fd, short what, void *argument)
{
    (void)fd, (void)what;
    struct mc_serve_connection *connection = argument;
    if (connection->is_draining)
        connection_drain(connection);
    else if (!connection->is_streaming) /* else its turn comes */
        connection_goes_on(connection, connection_turn(connection, false));
}

static void on_writable(evutil_socket_t fd, short what, void *argument)
{
    (void)fd, (void)what;
    struct mc_serve_connection *connection = argument;
    if (!connection->is_streaming)
        connection_goes_on(connection, connection_send(connection, false, turn_bytes(connection)));
}

bool mc_connections_stream(struct mc_serve *serve)
{
    struct mc_serve_connection *connection = serve->streams.first;
    if (connection == NULL)
        return false;
    stream_remove(connection); /* what is left to do puts it behind the others */
    connection_goes_on(connection, connection_turn(connection, true));
    return true;
}

static void on_hello_late(evutil_socket_t fd, short what, void *argument)
{
    (void)fd, (void)what;
    mc_connection_close(argument);
}

static void events_free(struct mc_serve_connection *connection)
{
    if (connection->hello_timer != NULL)
        event_free(connection->hello_timer);
    if (connection->writable != NULL)
        event_free(connection->writable);
    if (connection->readable != NULL)
        event_free(connection->readable);
    connection->hello_timer = connection->writable = connection->readable = NULL;
}

/* It is among the greeters then. 0 or MC_ERR_NO_MEMORY. */
static int connection_enter(struct mc_serve *serve, struct mc_serve_connection *connection)
{
    struct timeval late = {.tv_sec = serve->hello_ms / 1000, .tv_usec = (suseconds_t)(serve->hello_ms % 1000) * 1000};
    connection->serve = serve;
    connection->readable = event_new(serve->base, connection->fd, EV_READ | EV_PERSIST, on_readable, connection);
    connection->writable = event_new(serve->base, connection->fd, EV_WRITE | EV_PERSIST, on_writable, connection);
    connection->hello_timer = evtimer_new(serve->base, on_hello_late, connection);
    if (connection->readable == NULL || connection->writable == NULL || connection->hello_timer == NULL ||
        event_add(connection->readable, NULL) != 0 || evtimer_add(connection->hello_timer, &late) != 0) {
        events_free(connection);
        return MC_ERR_NO_MEMORY;
    }
    connection->is_reading = true;
    connection->place = place_take(serve);
    atomic_store(&serve->connection_fds[connection->place], connection->fd + 1);
    list_append(&serve->greeters, connection);
    return 0;
}

static int connection_make(struct mc_serve *serve, bool is_unix, int fd)
{
    struct mc_serve_connection *connection = calloc(1, sizeof(*connection));
    if (connection == NULL)
        return MC_ERR_NO_MEMORY;
    connection->fd = fd;
    mc_lane_init(&connection->lane, &serve->server, is_unix, is_unix && mc_unix_peer_uid(fd) == (int64_t)geteuid());
    int rc = connection_enter(serve, connection);
    if (rc < 0)
        free(connection);
    return rc;
}

struct mc_serve_connection *mc_connection_release(struct mc_serve_connection *connection)
{
    mc_assert(connection->lane.attached == NULL && connection->lane.served == NULL);
    connection_leave(connection);
    connection_place_free(connection);
    connection->readable = connection->writable = connection->hello_timer = NULL;
    connection->is_reading = connection->is_writing = connection->is_guest = false;
    connection->held = 0;
    connection->guest = (struct mc_guest){0};
    return connection;
}

void mc_connection_adopt(struct mc_serve *serve, struct mc_serve_connection *connection)
{
    int fd = connection->fd;
    connection->lane.server = &serve->server;
    connection->lane.is_leaving = false;
    if (connection_enter(serve, connection) < 0) {
        mc_lane_free(&connection->lane);
        free(connection);
        mc_fd_close(fd);
        return;
    }
    atomic_fetch_add(&serve->present, 1);
    if (connection_admit(connection, connection->lane.peer) < 0) {
        mc_connection_close(connection);
        return;
    }
    int rc = mc_lane_input(&connection->lane, NULL, 0);
    connection_goes_on(connection, rc < 0 ? rc : connection_turn(connection, false));
}

/* The one that has been silent for longest makes room: not one that has said something meanwhile, unless all have. */
static void greeter_drop(struct mc_serve *serve)
{
    struct mc_serve_connection *one = serve->greeters.first;
    /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): it takes the one that was closed before for the first one still */
    while (one != NULL && !mc_socket_is_silent(one->fd))
        one = one->next;
    if (one == NULL)
        one = serve->greeters.first;
    mc_assert(one != NULL);
    mc_connection_close(one);
}

/* A sixth more than the guests' places are for both, so that other descriptors of the process stay free. */
static uint32_t greeters_most(const struct mc_serve *serve)
{
    uint32_t all = serve->guests_max + serve->guests_max / 6, taken = serve->guests.count;
    uint32_t room = all > taken + MC_SERVE_GREETERS_LEAST ? all - taken : MC_SERVE_GREETERS_LEAST;
    return room < serve->greeters_max ? room : serve->greeters_max;
}

void mc_connection_open(struct mc_serve *serve, bool is_unix, int fd)
{
    for (int i = 0; i < GREETERS_AT_ONCE && serve->greeters.count >= greeters_most(serve); i++)
        greeter_drop(serve);
    atomic_fetch_add(&serve->present, 1);
    if (!is_unix)
        mc_socket_keep_alive(fd, 30, 10, 3); /* a host that vanished is found out after about a minute */
    if ((is_unix || mc_secure_accept(fd) == 0) && connection_make(serve, is_unix, fd) == 0)
        return;
    atomic_fetch_sub(&serve->present, 1);
    mc_fd_close(fd);
}
