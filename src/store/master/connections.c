/* The connections of the RPC shell: what comes in, what goes out, and whose turn it is. */
#include "store/master/connections.h"

#include "base/checksum.h"
#include "base/error.h"
#include "base/trace.h"
#include "env/clock.h"
#include "env/limits.h"
#include "env/log.h"
#include "env/socket.h"
#include "store/master/traced.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Of a long frame at once: memory follows what has arrived, not what was announced */
#define RECEIVE_MORE_BYTES (256u << 10)
#define KEEP_BYTES (64u << 10)      /* an empty buffer larger than this is given back, */
#define KEEP_INPUT_BYTES (4u << 10) /* or this: few frames come in parts */
#define ACCEPTS_PER_TURN 8
#define GREETERS_PER_TURN 8 /* that have not said hello: with the accepts, about what one call costs, */
#define GREETERS_NS 300000u /* or none after so long: a handshake of TLS takes a millisecond */
#define ACCEPT_PAUSE_MS 100 /* when descriptors are out */
/* Kept free while anything rests that can make room: owners, heartbeat connections and the election find a place among
 * callers. */
#define SPARE_FILES 16u
#define SPARE_FILES_MOST 1024u
#define SPARE_PLACES 1024u
#define ROOM_AT_ONCE 8u    /* so many resting ones make room at a time: to look for them takes milliseconds */
#define CROWDED_MS 1000u   /* after nothing was found that could make room, callers are refused for so long */
#define ROOM_REST_MS 1000u /* and have rested for so long at least: the one between two calls is in use */
/* Shares of one turn, which is to stay below 20 ms though others may have the processor for a while. What input is left
 * has the next one, after timers and output. */
#define INPUT_NS 4000000u /* what connections ask */
#define BULK_NS 3000000u  /* inventories, whatever else is asked */
#define FLUSH_NS 4000000u /* what is sent */
#define REST_TURNS 8u     /* sweeps in which each connection is asked once whether it rests */
#define FLUSH_LOOK 16u    /* connections between two looks at the clock */

_Static_assert(MC_SERVER_CONNECTIONS_MAX == 1u << MC_SERVER_INDEX_BITS, "a connection's number holds its index");

enum left { /* of what a connection has sent */
            LEFT_NOTHING,
            LEFT_FRAMES, /* its turn was over */
            LEFT_BULK    /* the next frame is an inventory: those take turns among themselves */
};

/* To be asked before every turn's input and before everything that is sent: a leader whose time is over says nothing.
 * One that is stopped between the look and what it was about to do does it late: what it takes in changes nothing but a
 * core that is dropped, and what it sends is no later than a packet that the network has kept. */
bool mc_server_may_serve(const struct mc_server *server)
{
    return server->core != NULL &&
           (server->election == NULL ||
            mc_election_may_serve(server->election, atomic_load_explicit(&server->epoch, memory_order_relaxed)));
}

/* ---- turns ---- */

/* The first thing that each callback of the loop does, but one that reads. */
void mc_server_turn_enter(struct mc_server *server)
{
    server->now_ms = mc_clock_boot_ms(); /* members are told how old we are: a sleep counts */
    if (server->turn_ns == 0)
        server->turn_ns = mc_clock_ns();
}

/* The last thing that a callback does which may have worked for long: callbacks that are due have the next turn. */
static void turn_leave(const struct mc_server *server)
{
    if (mc_clock_ns() - server->turn_ns > INPUT_NS)
        (void)event_base_loopbreak(server->base);
}

void mc_server_turn_end(struct mc_server *server)
{
    uint64_t took_ns = server->turn_ns == 0 ? 0 : mc_clock_ns() - server->turn_ns;
    if (took_ns > atomic_load_explicit(&server->longest_turn_ns[0], memory_order_relaxed))
        atomic_store_explicit(&server->longest_turn_ns[0], took_ns, memory_order_relaxed);
    if (server->turn_ns != 0)
        mc_sampler_turn(&server->sampler, took_ns / 1000);
    server->turn_ns = 0;
}

/* ---- connections ---- */

static void list_append(struct connection_list *list, struct connection **next, struct connection *connection)
{
    *next = NULL;
    *list->last = connection;
    list->last = next;
}

static struct connection *connection_find(const struct mc_server *server, uint64_t number)
{
    struct connection *connection = server->connections[number & (MC_SERVER_CONNECTIONS_MAX - 1)];
    return connection != NULL && connection->number == number && !connection->is_dead ? connection : NULL;
}

static void mark_dirty(struct connection *connection)
{
    if (connection->is_dirty)
        return;
    connection->is_dirty = true;
    list_append(&connection->server->dirty, &connection->next_dirty, connection);
}

static void mark_ready(struct connection *connection, struct connection_list *list)
{
    if (connection->is_ready)
        return;
    connection->is_ready = true;
    list_append(list, &connection->next_ready, connection);
}

void mc_connection_die(struct connection *connection)
{
    connection->is_dead = true;
    mark_dirty(connection);
}

/* ---- those that have not said hello ---- */

/* What it says is read from now on: among those that have not said hello, of whom few have their turn at a time, or as
 * everybody else. 0, or not: there is no memory. */
static int read_begin(struct connection *connection)
{
    struct mc_server *server = connection->server;
    connection->is_in_crowd = connection->is_greeting && server->crowd >= 0 &&
                              mc_crowd_add(server->crowd, connection->fd, connection->number);
    return connection->is_in_crowd ? 0 : event_add(&connection->read_event, NULL);
}

static int read_end(struct connection *connection)
{
    if (connection->is_in_crowd)
        mc_crowd_remove(connection->server->crowd, connection->fd);
    connection->is_in_crowd = false;
    return event_del(&connection->read_event); /* cannot fail for a set event */
}

static void greeter_add(struct connection *connection)
{
    struct mc_server *server = connection->server;
    connection->older = server->greeters.newest;
    if (connection->older != NULL)
        connection->older->newer = connection;
    else
        server->greeters.oldest = connection;
    server->greeters.newest = connection;
    server->greeters.count++;
    connection->is_greeting = true;
}

/* It has spoken, or ends. */
static void greeter_remove(struct connection *connection)
{
    struct mc_server *server = connection->server;
    if (!connection->is_greeting)
        return;
    connection->is_greeting = false;
    if (connection->older != NULL)
        connection->older->newer = connection->newer;
    else
        server->greeters.oldest = connection->newer;
    if (connection->newer != NULL)
        connection->newer->older = connection->older;
    else
        server->greeters.newest = connection->older;
    connection->older = connection->newer = NULL;
    server->greeters.count--;
    if (!connection->is_in_crowd || connection->is_dead || event_add(&connection->read_event, NULL) != 0)
        return; /* without memory it stays in the crowd */
    mc_crowd_remove(server->crowd, connection->fd);
    connection->is_in_crowd = false;
}

static void die_of_memory(struct connection *connection)
{
    mc_log_limited(ERROR, "out of memory: a connection is closed");
    mc_connection_die(connection);
}

struct mc_buffer *mc_server_core_buffer(void *context, uint64_t number)
{
    struct connection *connection = connection_find(context, number);
    if (connection == NULL || connection->is_closing)
        return NULL;
    if (connection->out.length - connection->out_sent > MC_SERVER_BACKLOG_MAX) {
        mc_log_limited(WARNING, "a peer takes no answers: %u MiB wait for it, it is closed",
                       MC_SERVER_BACKLOG_MAX >> 20);
        mc_connection_die(connection);
        return NULL;
    }
    mark_dirty(connection);
    return &connection->out;
}

void mc_server_core_close(void *context, uint64_t number)
{
    struct mc_server *server = context;
    struct connection *connection = connection_find(server, number);
    if (connection == NULL || connection->is_closing)
        return;
    connection->is_closing = true;
    connection->since_ms = server->now_ms;
    (void)read_end(connection);
    mark_dirty(connection);
}

bool mc_server_core_way(void *context, uint64_t number, struct mc_core_way *way)
{
    const struct connection *connection = connection_find(context, number);
    struct mc_tcp_way known;
    if (connection == NULL || !mc_tcp_way(connection->fd, &known))
        return false;
    char byte;
    bool unread = recv(connection->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
    *way = (struct mc_core_way){.lost = known.lost, .arrived = known.arrived, .unread = unread};
    return true;
}

void mc_server_core_slow(void *context, const struct mc_core_slow *call)
{
    const struct mc_server *server = context;
    struct mc_slow_call slow = {.call = *call, .wall_ms = mc_clock_wall_ms()};
    uint64_t now_ms = mc_clock_ms();
    if (!mc_slow_wants(server->slow, now_ms, call->took_ms))
        return;
    const struct connection *connection = call->connection == 0 ? NULL : connection_find(server, call->connection);
    if (connection != NULL)
        mc_socket_peer_text(connection->fd, slow.address);
    mc_slow_add(server->slow, now_ms, &slow);
}

/* Ends a connection that nothing points to any more but its slot in the table. */
static void destroy(struct connection *connection)
{
    struct mc_server *server = connection->server;
    uint16_t index = (uint16_t)(connection->number & (MC_SERVER_CONNECTIONS_MAX - 1));
    connection->is_dead = true;
    (void)read_end(connection);
    (void)event_del(&connection->write_event);
    mc_fd_close(connection->fd);
    greeter_remove(connection);
    mc_link_remove(&connection->held);
    if (connection->share != NULL)
        mc_share_give(&server->shares, connection->share);
    server->backlog -= connection->backlog;
    mc_stored_drop(connection);
    server->connections[index] = NULL;
    server->free_indices[server->free_count++] = index;
    mc_buffer_free(&connection->out);
    if (connection->traced != NULL)
        mc_master_trace_free(connection);
    free(connection->gate);
    free(connection->proved);
    free(connection);
}

/* ---- output ---- */

/* Sends what can be sent. False when the connection is broken. */
static bool send_pending(struct connection *connection)
{
    struct mc_buffer *out = &connection->out;
    if (out->failed) {
        mc_log_limited(ERROR, "out of memory: a connection is closed, some of what was for it is not there");
        return false;
    }
    while (connection->out_sent < out->length) {
        if (connection->server->core != NULL && !mc_server_may_serve(connection->server))
            return false; /* for each: a turn may have much to say, and be stopped in the middle of it */
        ssize_t sent =
            mc_socket_sends(connection->fd, out->data + connection->out_sent, out->length - connection->out_sent);
        if (sent > 0) {
            connection->out_sent += (size_t)sent;
            connection->taken_ms = connection->server->now_ms;
        } else if (sent < 0 && errno == EINTR)
            continue;
        else
            return sent < 0 && errno == EAGAIN;
    }
    out->length = connection->out_sent = 0;
    if (out->capacity > KEEP_BYTES)
        mc_buffer_free(out);
    return true;
}

/* How much may wait for one connection before nothing more is taken from it: less when much waits in all. */
static size_t backlog_pause(const struct mc_server *server)
{
    return server->backlog > MC_SERVER_BACKLOG_ALL ? MC_SERVER_BACKLOG_LOW : MC_SERVER_BACKLOG_PAUSE;
}

/* Sets the events that fit what is not sent. */
static void settle(struct connection *connection)
{
    struct mc_server *server = connection->server;
    struct mc_buffer *out = &connection->out;
    size_t backlog = out->length - connection->out_sent, pause = backlog_pause(server);
    server->backlog += backlog - connection->backlog;
    connection->backlog = backlog;
    bool is_wait = backlog > 0, is_pause = backlog > (connection->is_paused ? pause / 2 : pause);
    /* Moves at most as much as was sent since the last time. */
    if (connection->out_sent > out->length / 2) {
        mc_buffer_consume(out, connection->out_sent);
        connection->out_sent = 0;
    }
    int rc = 0;
    if (server->is_held) {
        is_wait = connection->is_waiting; /* whether it takes anything is not asked meanwhile */
    } else if (is_wait && !connection->is_waiting) {
        rc |= event_add(&connection->write_event, NULL);
        connection->taken_ms = server->now_ms;
    } else if (!is_wait && connection->is_waiting) {
        rc |= event_del(&connection->write_event);
    }
    connection->is_waiting = is_wait;
    if (!connection->is_closing && is_pause && !connection->is_paused)
        rc |= read_end(connection);
    if (!connection->is_closing && !is_pause && connection->is_paused)
        rc |= read_begin(connection);
    connection->is_paused = is_pause;
    if (connection->has_frames && !is_pause) {
        connection->has_frames = false;
        mark_ready(connection, &server->ready);
        mc_stored_count(connection, false);
    }
    if (rc != 0 || (connection->is_closing && backlog == 0))
        connection->is_dead = true;
}

/* The core has forgotten it, or never knew it; nothing but the table points to it. */
static void end(struct connection *connection)
{
    struct mc_server *server = connection->server;
    if (server->core != NULL)
        mc_core_disconnected(server->core, server->now_ms, connection->number);
    mc_assert(!connection->is_dirty);
    destroy(connection);
}

static void take_dirty(struct mc_server *server, struct connection *connection)
{
    server->dirty.first = connection->next_dirty;
    if (server->dirty.first == NULL)
        server->dirty.last = &server->dirty.first;
    connection->is_dirty = false;
}

/* Sends what turns have made, and ends what shall end, the first in the list first, for as long as FLUSH_NS: a send
 * costs more than what it answers, so a turn's input may make more output than the turn may send. The rest is sent in
 * the next turn. The end of one may make output for others, which then come to the end of the list. */
void mc_server_flush(struct mc_server *server)
{
    struct connection *connection;
    uint64_t begun_ns = 0; /* known at the first look: most turns have little to send, and end before it */
    for (; !mc_link_alone(&server->held); mc_link_remove(server->held.next))
        mark_dirty(mc_link_of(server->held.next, struct connection, held));
    for (unsigned count = 1; (connection = server->dirty.first) != NULL; count++) {
        uint64_t now_ns = count % FLUSH_LOOK == 0 ? mc_clock_ns() : 0;
        if (begun_ns != 0 && now_ns > begun_ns + FLUSH_NS)
            return;
        begun_ns = begun_ns == 0 ? now_ns : begun_ns;
        take_dirty(server, connection);
        if (connection->traced != NULL)
            mc_master_trace_answers(connection);
        if (!connection->is_dead && !send_pending(connection))
            connection->is_dead = true;
        if (!connection->is_dead)
            settle(connection);
        if (connection->is_dead && !connection->is_ready) /* else run_ready, whose list has it, sends it here again */
            end(connection);
    }
}

/* Instead of that, in a turn that may send nothing: what waits is counted, who has too much of it is not read, and who
 * is dead goes. All others are looked at again when there is more for them, or when something may be sent. */
void mc_server_hold(struct mc_server *server)
{
    struct connection *connection;
    while ((connection = server->dirty.first) != NULL) {
        take_dirty(server, connection);
        if (!connection->is_dead)
            settle(connection);
        if (!connection->is_dead && mc_link_alone(&connection->held))
            mc_link_append(&server->held, &connection->held);
        if (connection->is_dead && !connection->is_ready) /* else as in a turn that sends */
            end(connection);
    }
}

static void on_writable(evutil_socket_t fd, short events, void *argument)
{
    struct connection *connection = argument;
    (void)fd, (void)events;
    mc_server_turn_enter(connection->server);
    mark_dirty(connection);
    if (connection->server->is_held) { /* asked again when something may be sent */
        (void)event_del(&connection->write_event);
        connection->is_waiting = false;
    } else {
        connection->server->has_activity = true;
    }
}

/* ---- input ---- */

/* A standby tells who leads, as far as it knows, and hangs up. */
static void standby_input(struct connection *connection, const struct mc_frame *frame)
{
    struct mc_server *server = connection->server;
    struct mc_election_role role;
    if (frame->type != MC_MESSAGE_HELLO) {
        mc_connection_die(connection);
        return;
    }
    mc_server_role(server, &role);
    /* Ours soon: no answer, they come again. Our address: the claim is of a life of ours before this one. */
    bool is_other = role.epoch == 0 && strcmp(role.leader, server->address) != 0;
    struct mc_wire_hello_reply head = {
        .code = MC_ERR_UNAVAILABLE_IN_CURRENT_STATUS,
        .node = server->node,
        .text = mc_span_string("this master is a standby"),
        .leader = mc_span_string(is_other ? role.leader : ""),
    };
    mc_wire_hello_reply_sign(&head);
    mc_wire_hello_reply_frame(&connection->out,
                              mc_frame_begin(&connection->out, MC_MESSAGE_HELLO_REPLY, frame->request_id), &head);
    mc_server_core_close(server, connection->number);
}

/* The head of a frame of another protocol may look like one of ours. */
static bool is_ours(const struct connection *connection, const struct mc_frame *frame, struct mc_wire_hello *hello)
{
    struct mc_reader reader = mc_reader(frame->body.data, frame->body.length);
    if (frame->type == MC_MESSAGE_AUTH || (frame->type == MC_MESSAGE_PROOF && connection->gate != NULL))
        return mc_wire_check(frame->type, frame->body) == 0;
    mc_wire_hello_read(&reader, hello);
    return frame->type == MC_MESSAGE_HELLO && !reader.bad && hello->magic == MC_WIRE_MAGIC;
}

/* Has that descriptor taken the table, or the process, into what is kept free? The kernel gives the lowest number. */
static bool is_crowded(const struct mc_server *server, int fd)
{
    uint64_t limit = mc_file_limit(), spare = limit / 16 < SPARE_FILES ? SPARE_FILES : limit / 16;
    spare = spare > SPARE_FILES_MOST ? SPARE_FILES_MOST : spare > limit / 4 ? limit / 4 : spare;
    return (uint64_t)fd >= limit - spare ||
           server->indices_used - server->free_count >= MC_SERVER_CONNECTIONS_MAX - SPARE_PLACES;
}

/* The last places are for heartbeats and owners, once nothing rests that could make room: who calls comes later. */
static bool is_full_for(const struct mc_server *server, const struct connection *connection,
                        const struct mc_wire_hello *hello)
{
    return hello->role == MC_ROLE_CALL && server->core != NULL && server->crowded_ms != 0 &&
           server->now_ms - server->crowded_ms < CROWDED_MS && is_crowded(server, connection->fd);
}

static void refuse_busy(struct connection *connection, uint64_t request_id)
{
    struct mc_server *server = connection->server;
    struct mc_wire_hello_reply head = {
        .code = MC_ERR_BUSY, .node = server->node, .text = mc_span_string("all places for callers are in use")};
    mc_wire_hello_reply_sign(&head);
    mc_wire_hello_reply_frame(&connection->out, mc_frame_begin(&connection->out, MC_MESSAGE_HELLO_REPLY, request_id),
                              &head);
    mc_server_core_close(server, connection->number);
}

/* Something else than a node of ours. Clients of the original come this way: their protocol has the same port. */
static void die_foreign(struct connection *connection, const uint8_t *data, size_t length)
{
    char address[MC_ADDRESS_MAX];
    mc_socket_peer_text(connection->fd, address);
    mc_secure_note(connection->fd, data, length, true);
    mc_log_limited(WARNING,
                   "%s speaks another protocol; its connection is closed. Clients of the original Mooncake "
                   "cannot use this master: install this package there",
                   address);
    if (connection->server->core != NULL)
        mc_core_note_foreign(connection->server->core);
    mc_connection_die(connection);
}

/* ---- keys ---- */

static bool key_find(void *context, struct mc_span name, struct mc_key *key)
{
    (void)context;
    return mc_keys_find(name, key);
}

/* A frame of one who has not proved a key yet, or begins to. */
static void gate_input(struct connection *connection, const struct mc_frame *frame)
{
    struct mc_server *server = connection->server;
    char address[MC_ADDRESS_MAX];
    if (connection->gate == NULL)
        connection->gate = calloc(1, sizeof(*connection->gate));
    if (connection->proved == NULL)
        connection->proved = calloc(1, sizeof(*connection->proved));
    if (connection->gate == NULL || connection->proved == NULL) {
        die_of_memory(connection);
        return;
    }
    mark_dirty(connection);
    int rc = mc_gate_take(connection->gate, frame, server->wants_keys ? key_find : NULL, NULL, &connection->out);
    if (rc == 1) {
        connection->is_open = true;
        const struct mc_key *key = &connection->gate->key;
        connection->rights = key->rights;
        *connection->proved = connection->gate->proved;
        greeter_remove(connection);
        if (server->core != NULL)
            mc_core_permitted(server->core, server->now_ms, connection->number, key->rights, mc_key_number(key->id),
                              key->tenant);
        free(connection->gate);
        connection->gate = NULL;
    }
    if (rc >= 0)
        return;
    mc_socket_peer_text(connection->fd, address);
    mc_log_limited(WARNING, "%s was let go: %s", address,
                   frame->type == MC_MESSAGE_HELLO ? "it has shown no key, and this master has keys (--auth_file)"
                   : !server->wants_keys           ? "it wants a proof, and this master has no keys (--auth_file)"
                   : rc == MC_ERR_NOT_PERMITTED    ? "its key is not one of ours"
                                                   : "its proof is malformed");
    mc_server_core_close(server, connection->number);
}

/* Its key was revoked, or changed: nothing that it says counts any more. */
static void key_is_gone(struct connection *connection)
{
    char address[MC_ADDRESS_MAX];
    mc_socket_peer_text(connection->fd, address);
    mc_log_limited(WARNING, "%s was let go: its key, %s, is not what it was any more", address, connection->proved->id);
    mc_server_core_close(connection->server, connection->number);
}

/* False: its key does not permit that. Whoever waits for an answer has one. */
static bool is_permitted(struct connection *connection, const struct mc_frame *frame)
{
    char right[32], address[MC_ADDRESS_MAX];
    if (!connection->server->wants_keys || mc_right_suffices(connection->rights, frame->type))
        return true;
    mc_rights_format(right, sizeof(right), mc_right_needed(frame->type));
    mc_socket_peer_text(connection->fd, address);
    mc_log_limited(WARNING, "%s asks for %s, and its key has no right to %s", address, mc_message_name(frame->type),
                   right);
    struct mc_wire_failed no = {.code = MC_ERR_NOT_PERMITTED};
    mc_wire_failed_frame(&connection->out, mc_frame_begin(&connection->out, MC_MESSAGE_FAILED, frame->request_id), &no);
    mark_dirty(connection);
    return false;
}

/* Gives whole frames to the core, a turn's worth. Returns bytes used. may_bulk: the first may be an inventory. */
static size_t take_frames(struct connection *connection, const uint8_t *data, size_t length, bool may_bulk,
                          enum left *left)
{
    struct mc_server *server = connection->server;
    size_t at = 0, used = 0;
    struct mc_frame frame;
    struct mc_wire_hello hello = {.role = MC_ROLE_CALL};
    *left = LEFT_NOTHING;
    for (unsigned count = 0;; count++) {
        if (connection->is_dead || connection->is_closing)
            return length; /* what comes after the end is of no interest */
        int rc = connection->has_spoken ? mc_frame_parse(data + at, length - at, &frame, &used)
                                        : mc_frame_parse_hello(data + at, length - at, &frame, &used);
        if (rc == 0)
            return at;
        if (rc < 0 || (!connection->has_spoken && !is_ours(connection, &frame, &hello))) {
            die_foreign(connection, data + at, length - at);
            return length;
        }
        if (frame.type == MC_MESSAGE_INVENTORY && !(may_bulk && count == 0)) {
            *left = LEFT_BULK;
            return at;
        }
        if (count == MC_SERVER_FRAMES_PER_TURN || at > MC_SERVER_BYTES_PER_TURN ||
            connection->out.length - connection->out_sent > backlog_pause(server)) {
            *left = LEFT_FRAMES;
            return at;
        }
        at += used;
        if (!connection->is_open || frame.type == MC_MESSAGE_AUTH) { /* nothing that it says counts yet */
            gate_input(connection, &frame);
            continue;
        }
        if (connection->proved != NULL && !mc_key_holds(connection->proved)) {
            key_is_gone(connection);
            return length;
        }
        if (!is_permitted(connection, &frame))
            continue;
        bool is_first = !connection->has_spoken;
        greeter_remove(connection);
        connection->has_spoken = true;
        if (is_first && is_full_for(server, connection, &hello)) {
            refuse_busy(connection, frame.request_id);
            continue;
        }
        if (server->core == NULL) {
            standby_input(connection, &frame);
            continue;
        }
        /* An owner that has cleared keeps nobody waiting: to spin after it would take the processor from those who
         * work. */
        if (frame.type != MC_MESSAGE_CLEARED)
            server->has_activity = true;
        if (mc_traces_are_on() && mc_master_trace_take(connection, &frame))
            continue;
        mc_core_input(server->core, server->now_ms, connection->number, &frame);
    }
}

/* Whole frames are left: they have their turn after the others, or once settle() finds enough output sent. */
static void keep_for_later(struct connection *connection, enum left left)
{
    struct mc_server *server = connection->server;
    if (left == LEFT_NOTHING)
        return;
    if (connection->out.length - connection->out_sent > backlog_pause(server))
        connection->has_frames = true;
    else
        mark_ready(connection, left == LEFT_BULK ? &server->bulk : &server->ready);
}

/* Frames out of `in`. */
static void take_stored(struct connection *connection, bool may_bulk)
{
    enum left left;
    struct mc_buffer *in = &connection->in;
    size_t used = take_frames(connection, in->data, in->length, may_bulk, &left);
    mc_buffer_consume(in, used);
    if (used > 0)
        connection->since_ms = connection->is_closing ? connection->since_ms : connection->server->now_ms;
    if (in->length == 0 && in->capacity > KEEP_INPUT_BYTES)
        mc_buffer_free(in);
    keep_for_later(connection, left);
    mc_stored_count(connection, used > 0);
}

/* Frames straight out of the receive buffer; what is left over is stored. */
static void take_received(struct connection *connection, size_t length)
{
    enum left left;
    struct mc_server *server = connection->server;
    size_t used = take_frames(connection, server->received, length, false, &left);
    if (used == length)
        return;
    connection->since_ms = server->now_ms;
    mc_buffer_append(&connection->in, server->received + used, length - used);
    if (connection->in.failed)
        die_of_memory(connection);
    else
        keep_for_later(connection, left);
    mc_stored_count(connection, true);
}

/* How much to receive behind what is stored: the rest of the frame, within reason. */
static size_t missing(const struct mc_buffer *in)
{
    struct mc_frame frame;
    size_t whole;
    int rc = mc_frame_parse(in->data, in->length, &frame, &whole);
    size_t more = rc == 0 && whole > in->length ? whole - in->length : MC_SERVER_RECEIVE_BYTES;
    return more < MC_SERVER_RECEIVE_BYTES ? MC_SERVER_RECEIVE_BYTES
           : more > RECEIVE_MORE_BYTES    ? RECEIVE_MORE_BYTES
                                          : more;
}

/* The receive was filled, and TLS has more here, of which no event will tell: all of it is stored. */
static void take_held(struct connection *connection, size_t length)
{
    struct mc_buffer *in = &connection->in;
    if (in->length == 0)
        mc_buffer_append(in, connection->server->received, length);
    else
        in->length += length;
    if (in->failed || !mc_buffer_reserve(in, MC_TLS_HELD_MAX)) {
        die_of_memory(connection);
        return;
    }
    (void)mc_socket_hold(connection->fd, true);
    ssize_t more = mc_socket_recv(connection->fd, in->data + in->length, MC_TLS_HELD_MAX);
    (void)mc_socket_hold(connection->fd, false);
    in->length += more > 0 ? (size_t)more : 0; /* an end shows at the next receive */
    take_stored(connection, false);
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
    if (server->core != NULL && !mc_server_may_serve(server))
        return; /* the turn's end closes it */
    if (mc_stored_is_full(server))
        return; /* first what is there of others: turns follow at once until that is less */
    size_t more = in->length == 0 ? sizeof(server->received) : missing(in);
    if (in->length == 0) {
        length = mc_socket_recv(fd, server->received, more);
    } else {
        if (!mc_buffer_reserve(in, more)) {
            die_of_memory(connection);
            return;
        }
        length = mc_socket_recv(fd, in->data + in->length, more);
    }
    mc_server_turn_enter(server); /* now: what was read is not younger than the age that we answer with */
    if (length <= 0) {
        if (length == 0 || (errno != EAGAIN && errno != EINTR))
            mc_connection_die(connection);
    } else if ((size_t)length == more && mc_socket_holds(fd)) {
        take_held(connection, (size_t)length);
    } else if (in->length == 0) {
        take_received(connection, (size_t)length);
    } else {
        in->length += (size_t)length;
        take_stored(connection, false);
    }
    turn_leave(server);
}

/* One after the other: those that the time is not enough for keep their place. */
void mc_server_on_crowd(evutil_socket_t fd, short events, void *argument)
{
    struct mc_server *server = argument;
    uint64_t end_ns = mc_clock_ns() + GREETERS_NS, number;
    unsigned count = 0;
    do {
        if (!mc_crowd_next((int)fd, &number))
            return;
        struct connection *connection = connection_find(server, number);
        if (connection != NULL)
            on_readable(connection->fd, events, connection);
    } while (++count < GREETERS_PER_TURN && mc_clock_ns() < end_ns);
    server->is_crowded = true;
}

/* Turns for connections that have whole frames waiting, the first in the list first: for each that is there now one, or
 * as many as the time allows. Who has more comes to the end of a list. */
static void run_list(struct connection_list *list, bool is_bulk, uint64_t until_ns)
{
    struct connection_list all = *list;
    struct connection *connection = all.first;
    if (connection == NULL)
        return;
    *list = (struct connection_list){NULL, &list->first};
    do {
        struct connection *next = connection->next_ready;
        connection->is_ready = false;
        if (connection->is_dead || connection->is_closing)
            mc_stored_drop(connection);
        if (connection->is_dead)
            mark_dirty(connection);
        else if (!connection->is_closing)
            take_stored(connection, is_bulk);
        connection = next;
    } while (connection != NULL && mc_clock_ns() < until_ns);
    if (connection == NULL)
        return;
    *all.last = list->first; /* those that had no turn stay before those that had one */
    list->last = list->first == NULL ? all.last : list->last;
    list->first = connection;
}

/* Inventories have a share of each turn of their own, so that neither they nor requests wait for all of the others. */
void mc_server_run_ready(struct mc_server *server)
{
    run_list(&server->ready, false, server->turn_ns + INPUT_NS);
    if (server->bulk.first != NULL)
        run_list(&server->bulk, true, mc_clock_ns() + BULK_NS);
}

/* ---- accepting ---- */

/* Nothing is on its way from or to it, as far as can be seen from here. */
static bool is_still(const struct connection *connection)
{
    return connection->in.length == 0 && connection->out.length == connection->out_sent && !connection->is_ready &&
           !connection->has_frames && !connection->is_dirty && !connection->is_closing && !connection->is_dead &&
           mc_socket_is_silent(connection->fd);
}

struct resting {
    uint64_t rest_ms;
    struct connection *connection;
};

/* Is there a place for it in such a list? */
static bool would_stay(const struct resting *list, size_t count, uint64_t rest_ms)
{
    return count < ROOM_AT_ONCE || list[count - 1].rest_ms < rest_ms;
}

/* Into a list by descending rest, where it would stay. Returns how many it has then. */
static size_t resting_add(struct resting *list, size_t count, struct resting one)
{
    size_t at = count < ROOM_AT_ONCE ? count++ : count - 1;
    for (; at > 0 && list[at - 1].rest_ms < one.rest_ms; at--)
        list[at] = list[at - 1];
    list[at] = one;
    return count;
}

/* Callers' connections that have rested longest end with this turn, so that others find room. They are opened again
 * when there is something to say. False: none rests. */
static bool make_room(struct mc_server *server)
{
    struct resting list[ROOM_AT_ONCE] = {{0}};
    size_t count = 0;
    if (server->core == NULL || server->is_held || /* nobody is closed before what it waits for is sent */
        (server->crowded_ms != 0 && server->now_ms - server->crowded_ms < ACCEPT_PAUSE_MS))
        return false;
    for (size_t i = 0; i < server->indices_used; i++) {
        struct connection *connection = server->connections[i];
        if (connection == NULL || connection->is_closing || connection->is_dead)
            continue;
        uint64_t rest_ms = mc_core_rest_ms(server->core, server->now_ms, connection->number);
        if (rest_ms >= ROOM_REST_MS && would_stay(list, count, rest_ms) &&
            (is_still(connection) || mc_core_lends_nothing(server->core, connection->number)))
            count = resting_add(list, count, (struct resting){rest_ms, connection});
    }
    for (size_t i = 0; i < count; i++)
        mc_server_core_close(server, list[i].connection->number);
    server->crowded_ms = count > 0 ? 0 : server->now_ms;
    if (count > 0)
        mc_log_limited(WARNING, "places or descriptors are out: callers' connections that rest are closed for others; "
                                "raise the limit of open files");
    return count > 0;
}

/* Those that say nothing have few of what is kept free: the oldest goes, but for who has said something meanwhile,
 * which is read in the next turn. True: some had to go. */
static bool greeters_limit(struct mc_server *server, uint32_t most)
{
    struct connection *one = server->greeters.oldest, *next;
    bool is_above = server->greeters.count > most;
    for (; one != NULL && server->greeters.count > most; one = next) {
        next = one->newer;
        if (!one->is_dead && !mc_socket_is_silent(one->fd))
            continue;
        mc_connection_die(one);
        greeter_remove(one);
    }
    return is_above;
}

/* So many at most, now that one has that descriptor. */
static uint32_t greeters_most(const struct mc_server *server, int fd)
{
    uint64_t half = mc_file_limit() / 2;
    return is_crowded(server, fd)          ? MC_SERVER_GREETERS_CROWDED
           : half < MC_SERVER_GREETERS_MAX ? (uint32_t)half
                                           : MC_SERVER_GREETERS_MAX;
}

/* False: its address has its share of the places. */
static bool share_take(struct mc_server *server, struct connection *connection)
{
    uint64_t key = mc_socket_peer_key(connection->fd);
    if (key == 0)
        return true;
    connection->share = mc_share_take(&server->shares, key, server->share_max);
    if (connection->share == NULL)
        mc_log_limited(WARNING, "a connection was refused: its address has %u already (--max_connections_per_address)",
                       server->share_max);
    return connection->share != NULL;
}

/* False: there is no place for it. */
static bool connection_create(struct mc_server *server, int fd)
{
    struct connection *connection = calloc(1, sizeof(*connection));
    if (connection == NULL || (server->free_count == 0 && server->indices_used == MC_SERVER_CONNECTIONS_MAX)) {
        mc_log_limited(WARNING, "a connection was refused: there are %u already", MC_SERVER_CONNECTIONS_MAX);
        free(connection);
        return false;
    }
    connection->fd = fd;
    if (!share_take(server, connection)) {
        free(connection);
        return false;
    }
    uint64_t index = server->free_count > 0 ? server->free_indices[--server->free_count] : server->indices_used++;
    mc_link_init(&connection->held);
    connection->number = ++server->serial << MC_SERVER_INDEX_BITS | index;
    connection->server = server;
    connection->in.may_fail = connection->out.may_fail = true;
    connection->since_ms = server->now_ms;
    connection->is_open = !server->wants_keys;
    server->connections[index] = connection;
    greeter_add(connection);
    (void)greeters_limit(server, greeters_most(server, fd));
    mc_assert(event_assign(&connection->read_event, server->base, fd, EV_READ | EV_PERSIST, on_readable, connection) ==
              0);
    mc_assert(
        event_assign(&connection->write_event, server->base, fd, EV_WRITE | EV_PERSIST, on_writable, connection) == 0);
    if (server->core != NULL)
        mc_core_connected(server->core, server->now_ms, connection->number);
    if (server->core != NULL && connection->share != NULL)
        mc_core_comes_from(server->core, connection->number, connection->share->key);
    if (read_begin(connection) != 0)
        mc_connection_die(connection);
    return true;
}

void mc_server_on_accept(evutil_socket_t fd, short events, void *argument)
{
    struct mc_server *server = argument;
    static const struct timeval pause = {0, ACCEPT_PAUSE_MS * 1000};
    (void)events;
    server->has_activity = true;
    mc_server_turn_enter(server);
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        int accepted = mc_socket_accept(fd);
        if (accepted < 0) {
            /* Out of descriptors the listener stays readable: without a pause the loop would spin. */
            /* Those that say nothing may have all numbers below the last, which are not looked at where they come. */
            bool is_out = errno == EMFILE;
            if (is_out && greeters_limit(server, MC_SERVER_GREETERS_CROWDED))
                return; /* it has the next turn */
            if (is_out && make_room(server))
                return;
            if (is_out || (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR)) {
                mc_log_limited(WARNING, "connections cannot be accepted: %s; raise the limit of open files",
                               strerror(is_out ? EMFILE : errno));
                (void)event_del(&server->listen_event);
                (void)event_del(&server->unix_event);
                (void)event_add(&server->resume_event, &pause);
            }
            return;
        }
        if (mc_secure_accept(accepted) < 0 || !connection_create(server, accepted))
            mc_fd_close(accepted);
        if (is_crowded(server, accepted) && make_room(server))
            return; /* the rest has the next turn, in which there is room */
    }
}

void mc_server_on_resume(evutil_socket_t fd, short events, void *argument)
{
    struct mc_server *server = argument;
    (void)fd, (void)events;
    mc_server_turn_enter(server);
    (void)event_add(&server->listen_event, NULL);
    if (server->unix_listener >= 0)
        (void)event_add(&server->unix_event, NULL);
}

/* Connections that do not get on are closed, so that nobody collects memory and descriptors by sitting still. */
void mc_server_sweep(struct mc_server *server)
{
    for (size_t i = 0; i < server->indices_used; i++) {
        struct connection *connection = server->connections[i];
        if (connection == NULL)
            continue;
        uint64_t age_ms = server->now_ms - connection->since_ms;
        bool is_partial =
            connection->in.length > 0 && !connection->is_ready && !connection->has_frames && !connection->is_paused;
        bool is_stuck = connection->is_waiting && server->now_ms - connection->taken_ms > MC_SERVER_STUCK_MS;
        if (is_stuck)
            mc_log_limited(WARNING, "a peer has taken nothing for %u s while %zu KiB wait for it; it is closed",
                           MC_SERVER_STUCK_MS / 1000, connection->backlog >> 10);
        if (is_stuck || (connection->is_closing && age_ms > MC_SERVER_CLOSE_MS) ||
            (!connection->has_spoken && age_ms > MC_SERVER_HELLO_MS) || (is_partial && age_ms > MC_SERVER_FRAME_MS))
            mc_connection_die(connection);
        else if (server->core != NULL && i % REST_TURNS == server->sweeps % REST_TURNS &&
                 mc_core_rest_ms(server->core, server->now_ms, connection->number) > MC_CALL_IDLE_MS)
            mc_server_core_close(server, connection->number);
    }
    server->sweeps++;
}

void mc_server_drop_connections(struct mc_server *server)
{
    for (size_t i = 0; i < server->indices_used; i++) {
        if (server->connections[i] != NULL)
            destroy(server->connections[i]);
    }
    server->dirty = (struct connection_list){NULL, &server->dirty.first};
    server->ready = (struct connection_list){NULL, &server->ready.first};
    server->bulk = (struct connection_list){NULL, &server->bulk.first};
}
