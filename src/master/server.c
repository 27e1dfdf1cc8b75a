/* The RPC shell of the master: sockets, clock and log around the core. */
#include "master/server.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "env/socket.h"
#include "master/mailbox.h"
#include "master/metrics.h"

#include <errno.h>
#include <event2/event.h>
#include <event2/event_struct.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define RECEIVE_BYTES (64u << 10)
#define RECEIVE_MORE_BYTES                                                                                             \
    (256u << 10)               /* of a long frame at once: memory follows what has arrived, not what was announced */
#define KEEP_BYTES (64u << 10) /* an empty buffer larger than this is given back */
#define ACCEPTS_PER_TURN 64
#define ACCEPT_PAUSE_MS 100 /* when descriptors are out */
#define INDEX_BITS 16
#define SPIN_HITS_MAX 16u
#define SPIN_PROBE_EVERY 16u
#define SPIN_BUSY_NS 1000000u /* a wait longer than this ends all probing: nobody is in a hurry */
#define IDLE_AFTER_MS 5000u
#define IDLE_TICK_MS 200u
#define TICK_MAX_MS 60000u
#define CORE_LINES_PER_SECOND 50u
#define EPOCH_LEAP 65536u /* hundredths of a second: eleven minutes */

_Static_assert(MC_SERVER_CONNECTIONS_MAX == 1u << INDEX_BITS, "a connection's number holds its index");

struct connection {
    uint64_t number;
    struct mc_server *server;
    int fd;
    struct event read_event, write_event;
    struct mc_buffer in;  /* what was received and is not a whole frame, or had no turn yet */
    struct mc_buffer out; /* from out_sent on: not sent */
    size_t out_sent;
    uint64_t since_ms; /* accepted, then: when the pending frame began, or closing began */
    struct connection *next_dirty, *next_ready;
    bool is_dirty;   /* on the dirty list: has output, or shall be closed */
    bool is_ready;   /* on the ready list: a whole frame waits in `in` */
    bool is_paused;  /* not read: too much is not sent */
    bool is_closing; /* nothing more is read; closed once sent */
    bool is_dead;    /* closed at the end of this turn */
    bool is_waiting; /* write_event is set */
    bool has_spoken; /* a whole frame came */
    bool has_frames; /* whole frames wait in `in` until enough output is sent */
};

struct connection_list {
    struct connection *first, **last;
};

struct mc_server {
    struct event_base *base;
    struct mc_core *core; /* NULL: a standby */
    struct mc_core_config core_config;
    struct mc_core_output output;
    struct mc_election *election; /* NULL without HA */
    struct mc_mailbox *mailbox;
    struct event listen_event, unix_event, resume_event, tick_event, report_event, signal_event, mail_event,
        election_event;
    int listener, unix_listener, signal_fd; /* unix_listener: -1 when there is none */
    struct mc_id node;
    char address[MC_ADDRESS_MAX]; /* under which we are found */
    uint16_t port;
    bool is_stopping, report_metrics, is_role_due;
    bool is_departing;      /* the election was asked to note that the core acts on departures */
    bool has_activity;      /* a callback has run in this turn, and not only for what nobody waits for */
    _Atomic uint64_t epoch; /* of the core, or of the last one; written by the server's thread only */
    uint64_t now_ms, tick_due_ms, active_ms;
    uint64_t serial;                 /* last number given, without its index */
    struct connection **connections; /* by index; NULL = free */
    uint16_t *free_indices;
    size_t free_count, indices_used;
    struct connection_list dirty, ready;
    uint32_t spin_hits, spin_probe;
    uint64_t wait_ns; /* length of the last blocking wait */
    struct mc_metrics_window window;
    uint64_t log_second_ms;
    uint32_t log_lines, log_held;
    uint8_t received[RECEIVE_BYTES];
};

/* To be asked before every turn's input and before every flush: a leader whose time is over takes and says nothing. */
static bool may_serve(const struct mc_server *server)
{
    return server->core != NULL &&
           (server->election == NULL ||
            mc_election_may_serve(server->election, atomic_load_explicit(&server->epoch, memory_order_relaxed)));
}

/* ---- connections ---- */

static struct connection *find(const struct mc_server *server, uint64_t number)
{
    struct connection *connection = server->connections[number & (MC_SERVER_CONNECTIONS_MAX - 1)];
    return connection != NULL && connection->number == number && !connection->is_dead ? connection : NULL;
}

static void mark_dirty(struct connection *connection)
{
    struct connection_list *list = &connection->server->dirty;
    if (connection->is_dirty)
        return;
    connection->is_dirty = true;
    connection->next_dirty = NULL;
    *list->last = connection;
    list->last = &connection->next_dirty;
}

static void mark_ready(struct connection *connection)
{
    struct connection_list *list = &connection->server->ready;
    if (connection->is_ready)
        return;
    connection->is_ready = true;
    connection->next_ready = NULL;
    *list->last = connection;
    list->last = &connection->next_ready;
}

static void die(struct connection *connection)
{
    connection->is_dead = true;
    mark_dirty(connection);
}

static struct mc_buffer *core_buffer(void *context, uint64_t number)
{
    struct connection *connection = find(context, number);
    if (connection == NULL || connection->is_closing)
        return NULL;
    if (connection->out.length - connection->out_sent > MC_SERVER_BACKLOG_MAX) {
        mc_log_limited(WARNING, "a peer takes no answers: %u MiB wait for it, it is closed",
                       MC_SERVER_BACKLOG_MAX >> 20);
        die(connection);
        return NULL;
    }
    mark_dirty(connection);
    return &connection->out;
}

static void core_close(void *context, uint64_t number)
{
    struct mc_server *server = context;
    struct connection *connection = find(server, number);
    if (connection == NULL || connection->is_closing)
        return;
    connection->is_closing = true;
    connection->since_ms = server->now_ms;
    (void)event_del(&connection->read_event); /* cannot fail for a set event */
    mark_dirty(connection);
}

static void core_log(void *context, int level, const char *text)
{
    struct mc_server *server = context;
    if (level < atomic_load_explicit(&mc_log_threshold, memory_order_relaxed))
        return;
    if (server->now_ms - server->log_second_ms >= 1000) {
        uint32_t held = server->log_held;
        server->log_second_ms = server->now_ms;
        server->log_lines = server->log_held = 0;
        if (held > 0)
            mc_log(WARNING, "%u lines of the core were not written", held);
    }
    if (++server->log_lines > CORE_LINES_PER_SECOND)
        server->log_held++;
    else
        mc_log_write((enum mc_log_level)level, "core", 0, "%s", text);
}

/* Ends a connection that nothing points to any more but its slot in the table. */
static void destroy(struct connection *connection)
{
    struct mc_server *server = connection->server;
    uint16_t index = (uint16_t)(connection->number & (MC_SERVER_CONNECTIONS_MAX - 1));
    (void)event_del(&connection->read_event);
    (void)event_del(&connection->write_event);
    close(connection->fd);
    server->connections[index] = NULL;
    server->free_indices[server->free_count++] = index;
    mc_buffer_free(&connection->in);
    mc_buffer_free(&connection->out);
    free(connection);
}

/* ---- output ---- */

/* Sends what can be sent. False when the connection is broken. */
static bool send_pending(struct connection *connection)
{
    struct mc_buffer *out = &connection->out;
    while (connection->out_sent < out->length) {
        ssize_t sent =
            send(connection->fd, out->data + connection->out_sent, out->length - connection->out_sent, MSG_NOSIGNAL);
        if (sent > 0)
            connection->out_sent += (size_t)sent;
        else if (sent < 0 && errno == EINTR)
            continue;
        else
            return sent < 0 && errno == EAGAIN;
    }
    out->length = connection->out_sent = 0;
    if (out->capacity > KEEP_BYTES)
        mc_buffer_free(out);
    return true;
}

/* Sets the events that fit what is not sent. */
static void settle(struct connection *connection)
{
    struct mc_buffer *out = &connection->out;
    size_t backlog = out->length - connection->out_sent;
    bool is_wait = backlog > 0,
         is_pause = backlog > (connection->is_paused ? MC_SERVER_BACKLOG_PAUSE / 2 : MC_SERVER_BACKLOG_PAUSE);
    /* Moves at most as much as was sent since the last time. */
    if (connection->out_sent > out->length / 2) {
        mc_buffer_consume(out, connection->out_sent);
        connection->out_sent = 0;
    }
    int rc = 0;
    if (is_wait && !connection->is_waiting)
        rc |= event_add(&connection->write_event, NULL);
    else if (!is_wait && connection->is_waiting)
        rc |= event_del(&connection->write_event);
    connection->is_waiting = is_wait;
    if (!connection->is_closing && is_pause && !connection->is_paused)
        rc |= event_del(&connection->read_event);
    if (!connection->is_closing && !is_pause && connection->is_paused)
        rc |= event_add(&connection->read_event, NULL);
    connection->is_paused = is_pause;
    if (connection->has_frames && !is_pause) {
        connection->has_frames = false;
        mark_ready(connection);
    }
    if (rc != 0 || (connection->is_closing && !is_wait))
        connection->is_dead = true;
}

/* Sends everything that the turn has made, and ends what shall end. The end of one may make output for others: the list
 * is taken until empty. */
static void flush(struct mc_server *server)
{
    struct connection *connection;
    while ((connection = server->dirty.first) != NULL) {
        server->dirty.first = connection->next_dirty;
        if (server->dirty.first == NULL)
            server->dirty.last = &server->dirty.first;
        connection->is_dirty = false;
        if (!connection->is_dead && !send_pending(connection))
            connection->is_dead = true;
        if (!connection->is_dead)
            settle(connection);
        if (!connection->is_dead)
            continue;
        if (connection->is_ready)
            continue; /* the ready list still points to it; run_ready sends it here again */
        if (server->core != NULL)
            mc_core_disconnected(server->core, server->now_ms, connection->number);
        mc_assert(!connection->is_dirty);
        destroy(connection);
    }
}

static void on_writable(evutil_socket_t fd, short events, void *argument)
{
    struct connection *connection = argument;
    (void)fd, (void)events;
    connection->server->has_activity = true;
    mark_dirty(connection);
}

/* ---- input ---- */

/* A standby tells who leads, as far as it knows, and hangs up. */
static void standby_input(struct connection *connection, const struct mc_frame *frame)
{
    struct mc_server *server = connection->server;
    struct mc_election_role role;
    if (frame->type != MC_MESSAGE_HELLO) {
        die(connection);
        return;
    }
    mc_server_describe(server, &role);
    struct mc_wire_hello_reply head = {
        .code = MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS,
        .version_min = MC_WIRE_VERSION_MIN,
        .version_max = MC_WIRE_VERSION_MAX,
        .node = server->node,
        .text = mc_span_string("this master is a standby"),
        .leader = mc_span_string(role.epoch == 0 ? role.leader : ""), /* ours soon: no answer, they come again */
    };
    size_t at = mc_frame_begin(&connection->out, MC_MESSAGE_HELLO_REPLY, frame->request_id);
    mc_wire_hello_reply_write(&connection->out, &head);
    mc_frame_end(&connection->out, at);
    core_close(server, connection->number);
}

/* The head of a frame of another protocol may look like one of ours. */
static bool is_hello(const struct mc_frame *frame)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    struct mc_wire_hello hello;
    mc_wire_hello_read(&reader, &hello);
    return frame->type == MC_MESSAGE_HELLO && !reader.bad && hello.magic == MC_WIRE_MAGIC;
}

/* Something else than a node of ours. Clients of the original come this way: their protocol has the same port. */
static void die_foreign(struct connection *connection)
{
    char host[INET6_ADDRSTRLEN], address[MC_ADDRESS_MAX] = "a process of this machine";
    uint16_t port;
    if (mc_socket_name(connection->fd, MC_SOCKET_PEERS, host, sizeof(host), &port))
        mc_address_join(address, sizeof(address), host, port);
    mc_log_limited(WARNING,
                   "%s speaks another protocol; its connection is closed. Clients of the original Mooncake "
                   "cannot use this master: install this package there",
                   address);
    if (connection->server->core != NULL)
        mc_core_note_foreign(connection->server->core);
    die(connection);
}

/* Gives whole frames to the core, a turn's worth. Returns bytes used. *is_more: a whole frame is left. */
static size_t take_frames(struct connection *connection, const uint8_t *data, size_t length, bool *is_more)
{
    struct mc_server *server = connection->server;
    size_t at = 0, used = 0;
    struct mc_frame frame;
    bool had_inventory = false;
    *is_more = false;
    for (unsigned count = 0;; count++) {
        if (connection->is_dead || connection->is_closing)
            return length; /* what comes after the end is of no interest */
        int rc = mc_frame_parse(data + at, length - at, &frame, &used);
        if (rc == 0)
            return at;
        if (rc < 0 || (!connection->has_spoken && !is_hello(&frame))) {
            die_foreign(connection);
            return length;
        }
        /* One of them is as much work as a whole turn of others. */
        bool is_inventory = frame.type == MC_MESSAGE_INVENTORY;
        if (count == MC_SERVER_FRAMES_PER_TURN || had_inventory || (is_inventory && count > 0) ||
            connection->out.length - connection->out_sent > MC_SERVER_BACKLOG_PAUSE) {
            *is_more = true;
            return at;
        }
        had_inventory = is_inventory;
        connection->has_spoken = true;
        at += used;
        if (server->core == NULL) {
            standby_input(connection, &frame);
            continue;
        }
        /* An owner that has cleared keeps nobody waiting: to spin after it would take the processor from those who
         * work. */
        if (frame.type != MC_MESSAGE_CLEARED)
            server->has_activity = true;
        mc_core_input(server->core, server->now_ms, connection->number, &frame);
    }
}

/* Whole frames are left: they have their turn after the others, or once settle() finds enough output sent. */
static void keep_for_later(struct connection *connection)
{
    if (connection->out.length - connection->out_sent > MC_SERVER_BACKLOG_PAUSE)
        connection->has_frames = true;
    else
        mark_ready(connection);
}

/* Frames out of `in`. */
static void take_stored(struct connection *connection)
{
    bool is_more;
    struct mc_buffer *in = &connection->in;
    size_t used = take_frames(connection, in->data, in->length, &is_more);
    mc_buffer_consume(in, used);
    if (used > 0)
        connection->since_ms = connection->is_closing ? connection->since_ms : connection->server->now_ms;
    if (in->length == 0 && in->capacity > KEEP_BYTES)
        mc_buffer_free(in);
    if (is_more)
        keep_for_later(connection);
}

/* Frames straight out of the receive buffer; what is left over is stored. */
static void take_received(struct connection *connection, size_t length)
{
    bool is_more;
    struct mc_server *server = connection->server;
    size_t used = take_frames(connection, server->received, length, &is_more);
    if (used == length)
        return;
    connection->since_ms = server->now_ms;
    mc_buffer_append(&connection->in, server->received + used, length - used);
    if (is_more)
        keep_for_later(connection);
}

/* How much to receive behind what is stored: the rest of the frame, within reason. */
static size_t missing(const struct mc_buffer *in)
{
    struct mc_frame frame;
    size_t whole;
    int rc = mc_frame_parse(in->data, in->length, &frame, &whole);
    size_t more = rc == 0 && whole > in->length ? whole - in->length : RECEIVE_BYTES;
    return more < RECEIVE_BYTES ? RECEIVE_BYTES : more > RECEIVE_MORE_BYTES ? RECEIVE_MORE_BYTES : more;
}

static void on_readable(evutil_socket_t fd, short events, void *argument)
{
    struct connection *connection = argument;
    struct mc_server *server = connection->server;
    struct mc_buffer *in = &connection->in;
    ssize_t length;
    (void)events;
    if (connection->is_ready || connection->has_frames || connection->is_dead || connection->is_closing)
        return; /* first what is there */
    if (server->core != NULL && !may_serve(server))
        return; /* the turn's end closes it */
    server->now_ms = mc_clock_ms();
    if (in->length == 0) {
        length = recv(fd, server->received, sizeof(server->received), 0);
    } else {
        size_t more = missing(in);
        mc_buffer_reserve(in, more);
        length = recv(fd, in->data + in->length, more, 0);
    }
    if (length <= 0) {
        if (length == 0 || (errno != EAGAIN && errno != EINTR))
            die(connection);
    } else if (in->length == 0) {
        take_received(connection, (size_t)length);
    } else {
        in->length += (size_t)length;
        take_stored(connection);
    }
}

/* One turn for each connection that has whole frames waiting. */
static void run_ready(struct mc_server *server)
{
    struct connection *connection = server->ready.first;
    server->ready = (struct connection_list){NULL, &server->ready.first};
    while (connection != NULL) {
        struct connection *next = connection->next_ready;
        connection->is_ready = false;
        if (connection->is_dead)
            mark_dirty(connection);
        else if (!connection->is_closing)
            take_stored(connection);
        connection = next;
    }
}

/* ---- accepting ---- */

static int connection_create(struct mc_server *server, int fd)
{
    struct connection *connection = calloc(1, sizeof(*connection));
    if (connection == NULL || (server->free_count == 0 && server->indices_used == MC_SERVER_CONNECTIONS_MAX)) {
        free(connection);
        return MC_ERR_BUSY;
    }
    uint64_t index = server->free_count > 0 ? server->free_indices[--server->free_count] : server->indices_used++;
    connection->number = ++server->serial << INDEX_BITS | index;
    connection->server = server;
    connection->fd = fd;
    connection->since_ms = server->now_ms;
    server->connections[index] = connection;
    mc_assert(event_assign(&connection->read_event, server->base, fd, EV_READ | EV_PERSIST, on_readable, connection) ==
              0);
    mc_assert(
        event_assign(&connection->write_event, server->base, fd, EV_WRITE | EV_PERSIST, on_writable, connection) == 0);
    if (server->core != NULL)
        mc_core_connected(server->core, server->now_ms, connection->number);
    if (event_add(&connection->read_event, NULL) != 0)
        die(connection);
    return 0;
}

static void on_accept(evutil_socket_t fd, short events, void *argument)
{
    struct mc_server *server = argument;
    static const struct timeval pause = {0, ACCEPT_PAUSE_MS * 1000};
    (void)events;
    server->has_activity = true;
    server->now_ms = mc_clock_ms();
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        int accepted = mc_socket_accept(fd);
        if (accepted < 0) {
            /* Out of descriptors the listener stays readable: without a pause the loop would spin. */
            if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR) {
                mc_log_limited(WARNING, "connections cannot be accepted: %s; raise the limit of open files",
                               strerror(errno));
                (void)event_del(&server->listen_event);
                (void)event_del(&server->unix_event);
                (void)event_add(&server->resume_event, &pause);
            }
            return;
        }
        if (connection_create(server, accepted) < 0) {
            mc_log_limited(WARNING, "a connection was refused: there are %u already", MC_SERVER_CONNECTIONS_MAX);
            close(accepted);
        }
    }
}

static void on_resume(evutil_socket_t fd, short events, void *argument)
{
    struct mc_server *server = argument;
    (void)fd, (void)events;
    (void)event_add(&server->listen_event, NULL);
    if (server->unix_listener >= 0)
        (void)event_add(&server->unix_event, NULL);
}

/* Connections that do not get on are closed, so that nobody collects memory and descriptors by sitting still. */
static void sweep_connections(struct mc_server *server)
{
    for (size_t i = 0; i < server->indices_used; i++) {
        struct connection *connection = server->connections[i];
        if (connection == NULL)
            continue;
        uint64_t age_ms = server->now_ms - connection->since_ms;
        bool is_partial =
            connection->in.length > 0 && !connection->is_ready && !connection->has_frames && !connection->is_paused;
        if ((connection->is_closing && age_ms > MC_SERVER_CLOSE_MS) ||
            (!connection->has_spoken && age_ms > MC_SERVER_HELLO_MS) || (is_partial && age_ms > MC_SERVER_FRAME_MS))
            die(connection);
    }
}

/* ---- timers, mail, signals ---- */

static void on_report(evutil_socket_t fd, short events, void *argument)
{
    struct mc_server *server = argument;
    (void)fd, (void)events;
    server->now_ms = mc_clock_ms();
    sweep_connections(server);
    if (!server->report_metrics || server->core == NULL)
        return;
    struct mc_core_statistics statistics;
    struct mc_buffer line = {0};
    mc_core_statistics(server->core, &statistics);
    mc_metrics_window_move(&server->window, &statistics, server->now_ms);
    mc_metrics_summary(&line, &statistics, &server->window);
    mc_log(INFO, "Master Metrics: %.*s", (int)line.length, (const char *)line.data);
    mc_buffer_free(&line);
}

static void on_tick(evutil_socket_t fd, short events, void *argument)
{
    struct mc_server *server = argument;
    (void)fd, (void)events;
    server->tick_due_ms = 0; /* the turn's end calls the core and sets it again */
}

static void on_mail(evutil_socket_t fd, short events, void *argument)
{
    struct mc_server *server = argument;
    (void)fd, (void)events;
    if (may_serve(server))
        mc_mailbox_serve(server->mailbox, server->core);
    else
        mc_mailbox_refuse(server->mailbox);
}

static void on_election(evutil_socket_t fd, short events, void *argument)
{
    struct mc_server *server = argument;
    (void)fd, (void)events;
    server->is_role_due = true; /* in keep_role, when nothing points to a connection */
}

static void on_signal(evutil_socket_t fd, short events, void *argument)
{
    struct mc_server *server = argument;
    struct signalfd_siginfo info;
    (void)events;
    if (read(fd, &info, sizeof(info)) != (ssize_t)sizeof(info))
        return;
    mc_log(INFO, "stopping on signal %u", info.ssi_signo);
    server->is_stopping = true;
}

/* Calls the core and sets the timer for its next wish. True: it has more work now. */
static bool tick(struct mc_server *server)
{
    if (server->core == NULL)
        return false;
    uint64_t due_ms = mc_core_tick(server->core, server->now_ms);
    if (!server->is_departing && mc_core_asks_to_depart(server->core)) {
        server->is_departing = true;
        mc_election_ask_to_depart(server->election, atomic_load(&server->epoch));
    }
    if (due_ms <= server->now_ms)
        return true;
    uint64_t wait_ms = due_ms - server->now_ms;
    if (wait_ms < IDLE_TICK_MS && server->now_ms - server->active_ms > IDLE_AFTER_MS)
        wait_ms = IDLE_TICK_MS;
    if (wait_ms > TICK_MAX_MS)
        wait_ms = TICK_MAX_MS;
    due_ms = server->now_ms + wait_ms;
    /* A timer that is set too early costs one turn; setting it in every turn costs more. */
    if (server->tick_due_ms != 0 && server->tick_due_ms <= due_ms)
        return false;
    struct timeval wait = {(time_t)(wait_ms / 1000), (suseconds_t)(wait_ms % 1000 * 1000)};
    mc_assert(event_add(&server->tick_event, &wait) == 0);
    server->tick_due_ms = due_ms;
    return false;
}

/* ---- leadership ---- */

static void drop_connections(struct mc_server *server)
{
    for (size_t i = 0; i < server->indices_used; i++) {
        if (server->connections[i] != NULL)
            destroy(server->connections[i]);
    }
    server->dirty = (struct connection_list){NULL, &server->dirty.first};
    server->ready = (struct connection_list){NULL, &server->ready.first};
}

static int core_begin(struct mc_server *server, uint64_t epoch, const struct mc_election_role *role)
{
    struct mc_core_config config = server->core_config;
    if (role != NULL) {
        config.predecessor_end_ms = role->predecessor_end_ms;
        config.whole_epoch = role->whole_epoch;
        config.asks_to_depart = true;
    }
    drop_connections(server); /* the core was not told of them; they come again */
    server->core = mc_core_create(&config, &server->output, server->node, epoch, mc_random_u64(), server->now_ms);
    server->tick_due_ms = 0;
    server->is_departing = false;
    atomic_store(&server->epoch, epoch);
    return server->core == NULL ? MC_ERR_NO_MEMORY : 0;
}

/* wanted: an epoch that somebody has seen and ours must reach; 0: none. */
static void core_end(struct mc_server *server, uint64_t wanted)
{
    struct mc_core *core = server->core;
    server->core = NULL;
    drop_connections(server);
    /* Before the memory is given back, which takes its time: nothing is said any more. */
    if (server->election != NULL)
        mc_election_yield(server->election, atomic_load(&server->epoch), wanted);
    mc_core_destroy(core);
    server->is_role_due = true;
}

/* At least the wanted epoch, which is one above what a node has met. Another master may have begun after the same word,
 * and have ended, unknown to whoever tells us now: its epoch is not to be ours too. */
static uint64_t epoch_above(uint64_t wanted)
{
    uint64_t now = mc_election_epoch_now(), leapt = wanted + mc_random_u64() % EPOCH_LEAP;
    return now > leapt ? now : leapt;
}

/* Becomes what the election says. Called where nothing points to a connection. 0 or negative. */
static int keep_role(struct mc_server *server)
{
    struct mc_election_role role;
    uint64_t wanted = server->core == NULL ? 0 : mc_core_wanted_epoch(server->core);
    if (server->core != NULL && !may_serve(server)) {
        mc_log(WARNING, "leadership is over: all connections are closed, this master is a standby");
        core_end(server, 0);
    } else if (wanted >= MC_EPOCH_LIMIT - EPOCH_LEAP) {
        mc_log_limited(WARNING, "a node says that it has met epoch %llu, which cannot be", (unsigned long long)wanted);
    } else if (wanted > 0) {
        mc_log(WARNING, "a node has met a later master: epoch %llu at least is needed", (unsigned long long)wanted);
        core_end(server, wanted);
        if (server->election == NULL)
            return core_begin(server, epoch_above(wanted), NULL);
    }
    if (!server->is_role_due)
        return 0;
    server->is_role_due = false;
    if (server->election == NULL)
        return 0;
    mc_election_role(server->election, &role); /* whatever it was, the descriptor is read */
    if (server->core != NULL) {
        if (mc_election_may_depart(server->election, atomic_load(&server->epoch)))
            mc_core_let_depart(server->core, server->now_ms);
        server->is_role_due = !may_serve(server);
        return 0;
    }
    if (role.epoch == 0 || role.epoch == atomic_load(&server->epoch))
        return 0;
    return core_begin(server, role.epoch, &role);
}

void mc_server_describe(struct mc_server *server, struct mc_election_role *role)
{
    if (server->election != NULL) {
        mc_election_describe(server->election, role);
        return;
    }
    *role = (struct mc_election_role){.phase = MC_LEADERSHIP_LEADER, .epoch = atomic_load(&server->epoch)};
    role->leader_epoch = role->epoch;
    snprintf(role->leader, sizeof(role->leader), "%s", server->address);
}

/* ---- the loop ---- */

/* Is there something to be done at the turn's end? A frame that is no activity may have left some. */
static bool is_pending(const struct mc_server *server)
{
    return server->ready.first != NULL || server->dirty.first != NULL || server->is_role_due;
}

/* Looks without waiting; true when something happened. */
static bool look(struct mc_server *server)
{
    server->has_activity = false;
    (void)event_base_loop(server->base, EVLOOP_ONCE | EVLOOP_NONBLOCK);
    return server->has_activity;
}

/* Waits for something to happen. Spinning saves the wake-up of an idle processor (about 90 us on a virtual one), so it
 * pays when answers are asked for in quick succession; hits counts how often it paid. A blocked wait cannot tell
 * whether a spin would have ended it, hence a probe now and then, but only while waits are short: an idle master never
 * spins. */
static void wait_for_events(struct mc_server *server)
{
    uint64_t start_ns = mc_clock_ns();
    bool is_probe = server->wait_ns < SPIN_BUSY_NS && ++server->spin_probe % SPIN_PROBE_EVERY == 0;
    if (server->spin_hits > 0 || is_probe) {
        do {
            sched_yield(); /* first: what has just been answered must run before it can ask again */
            if (look(server)) {
                server->spin_hits = server->spin_hits < SPIN_HITS_MAX ? server->spin_hits + 1 : SPIN_HITS_MAX;
                return;
            }
            if (is_pending(server))
                return;
        } while (mc_clock_ns() - start_ns < mc_spin_ns());
        server->spin_hits = server->spin_hits > 4 ? server->spin_hits - 4 : 0;
    }
    server->has_activity = false;
    (void)event_base_loop(server->base, EVLOOP_ONCE);
    server->wait_ns = mc_clock_ns() - start_ns;
}

int mc_server_run(struct mc_server *server)
{
    bool is_busy = true;
    int rc = 0;
    on_report(-1, 0, server);
    while (!server->is_stopping && rc == 0) {
        if (is_busy)
            (void)look(server);
        else
            wait_for_events(server);
        server->now_ms = mc_clock_ms();
        if (server->has_activity)
            server->active_ms = server->now_ms;
        rc = keep_role(server);
        if (rc < 0)
            break;
        run_ready(server);
        is_busy = tick(server);
        if (server->core == NULL || may_serve(server))
            flush(server);
        is_busy = is_busy || is_pending(server);
    }
    mc_mailbox_close(server->mailbox);
    return rc;
}

/* ---- life ---- */

static void raise_file_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max)
        return;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        mc_log(WARNING, "the limit of open files cannot be raised: %s", strerror(errno));
}

static int open_signals(void)
{
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    if (pthread_sigmask(SIG_BLOCK, &signals, NULL) != 0)
        return -1;
    return signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
}

static int add_events(struct mc_server *server)
{
    static const struct timeval report = {MC_SERVER_REPORT_MS / 1000, 0};
    int mail = mc_mailbox_fd(server->mailbox), rc = 0;
    rc |= event_assign(&server->listen_event, server->base, server->listener, EV_READ | EV_PERSIST, on_accept, server);
    rc |=
        event_assign(&server->unix_event, server->base, server->unix_listener, EV_READ | EV_PERSIST, on_accept, server);
    rc |= event_assign(&server->signal_event, server->base, server->signal_fd, EV_READ | EV_PERSIST, on_signal, server);
    rc |= event_assign(&server->mail_event, server->base, mail, EV_READ | EV_PERSIST, on_mail, server);
    if (server->election != NULL) {
        rc |= event_assign(&server->election_event, server->base, mc_election_fd(server->election),
                           EV_READ | EV_PERSIST, on_election, server);
        rc |= event_add(&server->election_event, NULL);
    }
    rc |= event_assign(&server->report_event, server->base, -1, EV_PERSIST, on_report, server);
    rc |= event_assign(&server->resume_event, server->base, -1, 0, on_resume, server);
    rc |= event_assign(&server->tick_event, server->base, -1, 0, on_tick, server);
    if (rc == 0)
        rc = event_add(&server->listen_event, NULL) | event_add(&server->signal_event, NULL) |
             event_add(&server->mail_event, NULL) | event_add(&server->report_event, &report);
    if (rc == 0 && server->unix_listener >= 0)
        rc = event_add(&server->unix_event, NULL);
    return rc == 0 ? 0 : MC_ERR_INTERNAL_ERROR;
}

static int prepare_election(struct mc_server *server, const struct mc_master_config *config, char *error,
                            size_t error_size)
{
    struct mc_election_backend backend;
    if (!config->ha_enabled)
        return 0;
    int rc = mc_election_etcd_create(config->etcd_endpoints, config->cluster_id, config->ha_lease_ttl_ms, &backend,
                                     error, error_size);
    if (rc == 0)
        rc = mc_election_create(&backend, config->ha_lease_ttl_ms, server->address, &server->election);
    return rc;
}

/* Everything but the listener. */
static int prepare(struct mc_server *server, const struct mc_master_config *config, char *error, size_t error_size)
{
    server->now_ms = server->active_ms = mc_clock_ms();
    server->signal_fd = open_signals();
    server->base = event_base_new();
    server->connections = calloc(MC_SERVER_CONNECTIONS_MAX, sizeof(server->connections[0]));
    server->free_indices = calloc(MC_SERVER_CONNECTIONS_MAX, sizeof(server->free_indices[0]));
    server->mailbox = mc_mailbox_create();
    server->node = mc_random_id();
    server->core_config = config->core;
    mc_address_join(server->address, sizeof(server->address), config->rpc_address, server->port);
    int rc = prepare_election(server, config, error, error_size);
    if (rc < 0)
        return rc;
    if (server->signal_fd < 0 || server->base == NULL || server->connections == NULL || server->free_indices == NULL ||
        server->mailbox == NULL)
        return MC_ERR_NO_MEMORY;
    if (server->election == NULL)
        rc = core_begin(server, mc_election_epoch_now(), NULL);
    if (rc < 0)
        return rc;
    char name[MC_MASTER_UNIX_MAX];
    mc_master_unix_name(name, sizeof(name), server->node);
    server->unix_listener = mc_unix_listen(name); /* peers of this machine do without it if it fails */
    rc = add_events(server);
    return rc == 0 && server->election != NULL ? mc_election_start(server->election) : rc;
}

int mc_server_create(const struct mc_master_config *config, struct mc_server **out, char *error, size_t error_size)
{
    struct mc_server *server = calloc(1, sizeof(*server));
    if (server == NULL)
        return MC_ERR_NO_MEMORY;
    server->signal_fd = server->unix_listener = -1;
    server->port = config->rpc_port;
    server->report_metrics = config->report_metrics;
    server->output = (struct mc_core_output){server, core_buffer, core_close, core_log};
    server->dirty.last = &server->dirty.first;
    server->ready.last = &server->ready.first;
    raise_file_limit();
    server->listener = mc_server_listen(config->rpc_address, &server->port, "rpc_port", error, error_size);
    int rc = server->listener < 0 ? server->listener : prepare(server, config, error, error_size);
    if (rc == 0) {
        *out = server;
        return 0;
    }
    if (server->listener >= 0 && error[0] == 0)
        snprintf(error, error_size, "the server cannot be set up: %s", mc_error_text(rc));
    mc_server_destroy(server);
    return rc;
}

int mc_server_listen(const char *host, uint16_t *port, const char *flag, char *error, size_t error_size)
{
    uint16_t wanted = *port;
    int fd = mc_tcp_listen(host, port);
    if (fd >= 0)
        return fd;
    const char *advice = errno == EADDRINUSE      ? "stop the process that has it, or choose another port with --"
                         : errno == EACCES        ? "choose a port above 1023 with --"
                         : errno == EADDRNOTAVAIL ? "that is no address of this machine; choose another one beside --"
                                                  : "choose another with --";
    char address[MC_ADDRESS_MAX + 8];
    int reason = errno;
    mc_address_join(address, sizeof(address), host, wanted);
    snprintf(error, error_size, "cannot listen on %s (%s): %s; %s%s", address, flag, strerror(reason), advice, flag);
    return MC_ERR_RPC_FAIL;
}

void mc_server_destroy(struct mc_server *server)
{
    drop_connections(server);
    mc_election_destroy(server->election); /* after the last word to anybody: now another may lead */
    if (server->core != NULL)
        mc_core_destroy(server->core);
    mc_mailbox_destroy(server->mailbox);
    if (server->base != NULL)
        event_base_free(server->base);
    free(server->connections);
    free(server->free_indices);
    if (server->signal_fd >= 0)
        close(server->signal_fd);
    if (server->unix_listener >= 0)
        close(server->unix_listener);
    if (server->listener >= 0)
        close(server->listener);
    free(server);
}

uint16_t mc_server_port(const struct mc_server *server)
{
    return server->port;
}
uint64_t mc_server_epoch(const struct mc_server *server)
{
    return atomic_load(&server->epoch);
}

int mc_server_ask(struct mc_server *server, mc_question *function, void *argument, uint64_t timeout_ms)
{
    return mc_mailbox_ask(server->mailbox, function, argument, timeout_ms);
}
