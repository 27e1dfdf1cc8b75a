/* A master made of one thread, for tests of the store client: says hello, answers heartbeats and the calls of a test as
 * it was told to, and notes what it was sent. It keeps no objects: one key is known, where the test says. */
#ifndef MC_TEST_FAKE_MASTER_H
#define MC_TEST_FAKE_MASTER_H

#include "frames.h"

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#define FAKE_CONNECTIONS 64
#define FAKE_PLACES 4

struct fake_connection {
    struct peer peer;
    uint8_t role;
    bool mute; /* hears everything, says nothing */
    bool puts; /* the last PUT_START came over it */
    bool late; /* what it says is on its way until fake_deliver */
};

struct fake_master {
    pthread_mutex_t lock; /* over what follows; the test changes it while the thread runs */
    pthread_t thread;
    bool stop;
    int wake[2], listener;
    uint16_t port;
    char address[MC_ADDRESS_MAX];
    /* What it does. */
    uint64_t epoch;
    struct mc_id node;
    int hello_code;
    char leader[MC_ADDRESS_MAX];
    bool mute;                     /* connections made from now on are mute */
    uint32_t busy, retry_after_ms; /* so many requests are answered BUSY */
    unsigned losses;               /* so many calls meet a connection that is late from then on */
    size_t early;                  /* of what such a call is answered, so many bytes come before it is late */
    unsigned lost_dones;           /* so many PUT_DONE are on their way in the same manner */
    bool nudged;                   /* a PING on a connection that is late delivers: as the kernel finds out */
    unsigned drops;                /* after so many requests the connection ends instead of an answer */
    bool key_exists;
    size_t place_count;
    struct mc_wire_place places[FAKE_PLACES];
    uint64_t length, whole;                             /* whole: of a value in pieces, of which that is a head */
    unsigned wholes;                                    /* so many gets hear that, then all hear of one object */
    unsigned coming;                                    /* so many gets hear that the value is about to be there */
    uint64_t coming_length;                             /* which is what comes from a disk, or 0 */
    struct mc_wire_segment_reply segments[FAKE_PLACES]; /* by segment number */
    uint64_t done_after_ms; /* PUT_DONE comes so long after LIVE, unless the grants were revoked; or 0 */
    unsigned lose_done;     /* so many PUT_DONE come only when the grants were revoked */
    bool is_quiet;          /* says that it has not acted */
    bool takes_mounts;      /* which are not answered otherwise; UNMOUNT never is */
    uint64_t features;      /* that it says it has */
    bool gives_blank;       /* before the next PUT_GRANTED; who binds it hears STALE */
    uint32_t blank_segment; /* where that lies; FAKE_PLACES: nowhere */
    /* What it saw. */
    unsigned mounts, unmounts;
    unsigned pings; /* on connections for calls */
    unsigned hellos, calls, heartbeats, segment_asked, suspects, rotten, removes, puts, gets;
    struct mc_wire_suspect suspect;
    struct mc_wire_slot rotten_slot;
    uint64_t seen_epoch; /* in the last hello */
    uint32_t seen_age_ms;
    uint64_t put_request, done_due_ns; /* done_due_ns: when its PUT_DONE goes out; 0: it waits for something else */
    uint64_t unsure;                   /* in the last PUT_START */
    uint32_t put_flags, put_item_bytes, binds;
    unsigned doubts_before_bind; /* suspects, when the last PUT_BIND came */
    struct fake_connection connections[FAKE_CONNECTIONS];
};

static inline void fake_hello(struct fake_master *fake, struct fake_connection *connection, struct mc_reader *reader,
                              uint64_t id)
{
    struct mc_wire_hello hello;
    mc_wire_hello_read(reader, &hello);
    connection->role = hello.role;
    fake->hellos++;
    fake->seen_epoch = hello.seen_epoch;
    fake->seen_age_ms = hello.seen_age_ms;
    struct mc_wire_hello_reply reply = {.code = fake->hello_code,
                                        .version_min = 1,
                                        .version_max = 1,
                                        .node = fake->node,
                                        .epoch = fake->epoch,
                                        .lease_ttl_ms = 5000,
                                        .client_ttl_ms = 10000,
                                        .text = mc_span_string("fake"),
                                        .leader = mc_span_string(fake->leader),
                                        .quiet = fake->is_quiet,
                                        .features = fake->features};
    size_t frame = mc_frame_begin(&connection->peer.out, MC_MESSAGE_HELLO_REPLY, id);
    mc_wire_hello_reply_write(&connection->peer.out, &reply);
    mc_frame_end(&connection->peer.out, frame);
}

static inline void fake_heartbeat(struct fake_master *fake, struct mc_buffer *out, uint64_t id)
{
    fake->heartbeats++;
    size_t frame = mc_frame_begin(out, MC_MESSAGE_HEARTBEAT_REPLY, id);
    mc_wire_heartbeat_reply_write(
        out, &(struct mc_wire_heartbeat_reply){.code = 0, .epoch = fake->epoch, .quiet = fake->is_quiet});
    mc_list_empty(out);
    mc_frame_end(out, frame);
}

static inline void fake_exist(struct fake_master *fake, struct mc_buffer *out, struct mc_reader *reader, uint64_t id)
{
    struct mc_wire_none none;
    uint8_t results[16];
    mc_wire_none_read(reader, &none);
    uint32_t count = mc_list_read(reader);
    mc_assert(count <= sizeof(results)); /* not on the thread that cmocka may leave by a jump */
    memset(results, fake->key_exists, sizeof(results));
    size_t frame = mc_frame_begin(out, MC_MESSAGE_EXIST_REPLY, id);
    mc_wire_exist_reply_write(out, &(struct mc_wire_exist_reply){.code = 0, .results = mc_span(results, count)});
    mc_frame_end(out, frame);
}

static inline void fake_codes(struct mc_buffer *out, enum mc_message type, uint64_t id, int code)
{
    size_t frame = mc_frame_begin(out, type, id);
    mc_wire_none_write(out, &(struct mc_wire_none){0});
    size_t list = mc_list_begin(out);
    mc_wire_code_write(out, &(struct mc_wire_code){.code = code});
    mc_list_end(out, list, 1);
    mc_frame_end(out, frame);
}

static inline void fake_places(struct fake_master *fake, struct mc_buffer *out, bool found)
{
    size_t list = mc_list_begin(out);
    for (size_t i = 0; found && i < fake->place_count; i++)
        mc_wire_place_write(out, &fake->places[i]);
    mc_list_end(out, list, found ? fake->place_count : 0);
}

static inline void fake_get(struct fake_master *fake, struct mc_buffer *out, uint64_t id)
{
    bool is_coming = fake->coming > 0, found = fake->key_exists && fake->place_count > 0 && !is_coming;
    fake->coming -= is_coming;
    bool is_whole = found && fake->wholes > 0;
    fake->wholes -= is_whole;
    fake->gets++;
    size_t frame = mc_frame_begin(out, MC_MESSAGE_GET_FOUND, id);
    mc_wire_none_write(out, &(struct mc_wire_none){0});
    size_t list = mc_list_begin(out);
    mc_wire_found_write(out, &(struct mc_wire_found){.code = found       ? 0
                                                             : is_coming ? MC_ERR_PUT_IN_PROGRESS
                                                                         : MC_ERR_OBJECT_NOT_FOUND,
                                                     .replica_count = (uint8_t)(found ? fake->place_count : 0),
                                                     .length = found       ? fake->length
                                                               : is_coming ? fake->coming_length
                                                                           : 0,
                                                     .whole = is_whole ? fake->whole : 0});
    mc_list_end(out, list, 1);
    fake_places(fake, out, found);
    mc_frame_end(out, frame);
}

/* A place ahead. */
static inline void fake_blank(const struct fake_master *fake, struct mc_buffer *out)
{
    size_t frame = mc_frame_begin(out, MC_MESSAGE_PUT_BLANKS, 0);
    mc_wire_none_write(out, &(struct mc_wire_none){0});
    size_t list = mc_list_begin(out);
    mc_wire_blank_write(
        out, &(struct mc_wire_blank){.segment = fake->blank_segment, .slot = 7, .generation = 9, .size = 5120});
    mc_list_end(out, list, 1);
    mc_frame_end(out, frame);
}

/* Grants one item all places; what comes next says whether they were written. */
static inline void fake_put(struct fake_master *fake, struct mc_buffer *out, struct mc_reader *reader, uint64_t id)
{
    struct mc_wire_put_start head;
    struct mc_wire_put_start_item item;
    mc_wire_put_start_read(reader, &head);
    mc_assert(mc_list_read(reader) == 1);
    const uint8_t *start = reader->at;
    mc_wire_put_start_item_read(reader, &item);
    fake->put_item_bytes = (uint32_t)(reader->at - start);
    fake->put_flags = head.flags;
    fake->unsure = item.unsure;
    if (fake->gives_blank)
        fake_blank(fake, out);
    fake->gives_blank = false;
    fake->puts++;
    fake->put_request = id;
    size_t frame = mc_frame_begin(out, MC_MESSAGE_PUT_GRANTED, id);
    mc_wire_none_write(out, &(struct mc_wire_none){0});
    size_t list = mc_list_begin(out);
    mc_wire_granted_write(out, &(struct mc_wire_granted){.code = fake->key_exists ? MC_ERR_OBJECT_ALREADY_EXISTS : 0,
                                                         .replica_count = (uint8_t)fake->place_count});
    mc_list_end(out, list, 1);
    fake_places(fake, out, !fake->key_exists);
    mc_frame_end(out, frame);
}

static inline void fake_segment(struct fake_master *fake, struct mc_buffer *out, struct mc_reader *reader, uint64_t id)
{
    struct mc_wire_segment request;
    mc_wire_segment_read(reader, &request);
    fake->segment_asked++;
    struct mc_wire_segment_reply none = {.code = MC_ERR_SEGMENT_NOT_FOUND, .segment = request.segment};
    bool known = request.segment < FAKE_PLACES && fake->segments[request.segment].capacity > 0;
    size_t frame = mc_frame_begin(out, MC_MESSAGE_SEGMENT_REPLY, id);
    mc_wire_segment_reply_write(out, known ? &fake->segments[request.segment] : &none);
    mc_frame_end(out, frame);
}

/* No segments. */
static inline void fake_segments(struct mc_buffer *out, struct mc_reader *reader, uint64_t id)
{
    struct mc_wire_segments request;
    mc_wire_segments_read(reader, &request);
    size_t frame = mc_frame_begin(out, MC_MESSAGE_SEGMENTS_REPLY, id);
    mc_wire_segments_reply_write(out, &(struct mc_wire_segments_reply){.changes = request.changes});
    mc_list_empty(out);
    mc_frame_end(out, frame);
}

static inline void fake_mounted(struct fake_master *fake, struct mc_buffer *out, uint64_t id)
{
    size_t frame = mc_frame_begin(out, MC_MESSAGE_MOUNT_REPLY, id);
    mc_wire_mount_reply_write(out, &(struct mc_wire_mount_reply){.code = 0, .segment = 1, .epoch = fake->epoch});
    mc_frame_end(out, frame);
}

static inline void fake_one_way(struct fake_master *fake, struct mc_buffer *out, unsigned type,
                                struct mc_reader *reader)
{
    struct mc_wire_segment segment;
    switch (type) {
    case MC_MESSAGE_SUSPECT:
        fake->suspects++;
        mc_wire_suspect_read(reader, &fake->suspect);
        break;
    case MC_MESSAGE_ROTTEN:
        mc_wire_segment_read(reader, &segment);
        mc_assert(mc_list_read(reader) == 1);
        mc_wire_slot_read(reader, &fake->rotten_slot);
        fake->rotten++;
        break;
    case MC_MESSAGE_LIVE:
        if (fake->done_after_ms > 0) {
            fake->done_due_ns = mc_clock_ns() + fake->done_after_ms * 1000000;
        } else if (fake->lose_done == 0) {
            fake->key_exists = true;
            fake_codes(out, MC_MESSAGE_PUT_DONE, fake->put_request, 0);
        }
        break;
    case MC_MESSAGE_PUT_REVOKE:
        if (fake->lose_done > 0 || fake->done_due_ns > 0) {
            fake->lose_done -= fake->lose_done > 0;
            fake->done_due_ns = 0;
            fake_codes(out, MC_MESSAGE_PUT_DONE, fake->put_request, MC_ERR_TRANSFER_FAIL);
        }
        break;
    default:
        break; /* RENEW */
    }
}

static inline void fake_call(struct fake_master *fake, struct mc_buffer *out, const struct mc_frame *frame,
                             struct mc_reader *reader)
{
    uint64_t id = frame->request_id;
    fake->calls++;
    if (fake->busy > 0) {
        fake->busy--;
        struct mc_wire_failed failed = {.code = MC_ERR_BUSY, .retry_after_ms = fake->retry_after_ms};
        size_t start = mc_frame_begin(out, MC_MESSAGE_FAILED, id);
        mc_wire_failed_write(out, &failed);
        mc_frame_end(out, start);
    } else if (frame->type == MC_MESSAGE_MOUNT) {
        fake->mounts++;
        if (fake->takes_mounts)
            fake_mounted(fake, out, id);
    } else if (frame->type == MC_MESSAGE_UNMOUNT) {
        fake->unmounts++;
    } else if (frame->type == MC_MESSAGE_PUT_BIND) {
        fake->binds++;
        fake->doubts_before_bind = fake->suspects;
        fake_codes(out, MC_MESSAGE_PUT_DONE, id, MC_ERR_STALE);
    } else if (frame->type == MC_MESSAGE_EXIST) {
        fake_exist(fake, out, reader, id);
    } else if (frame->type == MC_MESSAGE_REMOVE) {
        fake->removes++;
        fake_codes(out, MC_MESSAGE_REMOVE_REPLY, id, fake->key_exists ? 0 : MC_ERR_OBJECT_NOT_FOUND);
        fake->key_exists = false;
    } else if (frame->type == MC_MESSAGE_GET) {
        fake_get(fake, out, id);
    } else if (frame->type == MC_MESSAGE_PUT_START) {
        fake_put(fake, out, reader, id);
    } else if (frame->type == MC_MESSAGE_SEGMENT) {
        fake_segment(fake, out, reader, id);
    } else if (frame->type == MC_MESSAGE_SEGMENTS) {
        fake_segments(out, reader, id);
    } else {
        mc_assert_failed(__FILE__, __LINE__, "a request of that kind");
    }
}

static inline int fake_early(struct fake_master *fake, struct peer *peer)
{
    mc_assert(fake->early < peer->out.length);
    struct iovec part = {peer->out.data, fake->early};
    int rc = mc_socket_send(peer->fd, &part, 1, mc_clock_ns() + 1000000000ull);
    mc_buffer_consume(&peer->out, fake->early);
    return rc;
}

/* Takes what has come; false when the connection is to end. */
static inline bool fake_take(struct fake_master *fake, struct fake_connection *connection)
{
    struct peer *peer = &connection->peer;
    struct mc_frame frame;
    size_t used;
    mc_buffer_reserve(&peer->in, 65536);
    ssize_t got = recv(peer->fd, peer->in.data + peer->in.length, 65536, MSG_DONTWAIT);
    if (got <= 0)
        return false;
    peer->in.length += (size_t)got;
    while (mc_frame_parse(peer->in.data, peer->in.length, &frame, &used) > 0) {
        struct mc_reader reader = mc_reader(frame.body.data, frame.body.length);
        if (mc_wire_check(frame.type, frame.body) != 0)
            return false;
        bool one_way = frame.type == MC_MESSAGE_SUSPECT || frame.type == MC_MESSAGE_ROTTEN ||
                       frame.type == MC_MESSAGE_LIVE || frame.type == MC_MESSAGE_PUT_REVOKE ||
                       frame.type == MC_MESSAGE_RENEW || frame.type == MC_MESSAGE_PING;
        size_t before = peer->out.length;
        for (size_t i = 0; i < FAKE_CONNECTIONS && frame.type == MC_MESSAGE_PUT_START; i++)
            fake->connections[i].puts = &fake->connections[i] == connection;
        if (frame.type == MC_MESSAGE_HELLO)
            fake_hello(fake, connection, &reader, frame.request_id);
        else if (frame.type == MC_MESSAGE_HEARTBEAT)
            fake_heartbeat(fake, &peer->out, frame.request_id);
        else if (one_way)
            fake_one_way(fake, &peer->out, frame.type, &reader);
        else
            fake_call(fake, &peer->out, &frame, &reader);
        if (frame.type == MC_MESSAGE_PING && connection->role == MC_ROLE_CALL) {
            fake->pings++;
            mc_frame_bare(&peer->out, MC_MESSAGE_PONG, frame.request_id);
            connection->late = connection->late && !fake->nudged;
        }
        if (frame.type == MC_MESSAGE_LIVE && fake->lost_dones > 0) {
            fake->lost_dones--;
            connection->late = true;
        }
        bool is_call = connection->role == MC_ROLE_CALL && frame.type != MC_MESSAGE_HELLO && !one_way;
        if (is_call && fake->losses > 0) {
            fake->losses--;
            connection->late = true;
            if (fake->early > 0 && fake_early(fake, peer) < 0)
                return false;
        }
        if (connection->mute)
            peer->out.length = before;
        mc_buffer_consume(&peer->in, used);
        if (!one_way && connection->role == MC_ROLE_CALL && frame.type != MC_MESSAGE_HELLO && fake->drops > 0) {
            fake->drops--;
            return false;
        }
    }
    return connection->late || peer->out.length == 0 || peer_flush(peer) == 0;
}

/* What is due now; until the next one is, in milliseconds, or -1. One put at a time. */
static inline int fake_done(struct fake_master *fake)
{
    int wait_ms = -1;
    pthread_mutex_lock(&fake->lock);
    uint64_t now_ns = mc_clock_ns();
    if (fake->done_due_ns > now_ns)
        wait_ms = (int)((fake->done_due_ns - now_ns) / 1000000) + 1;
    for (size_t i = 0; i < FAKE_CONNECTIONS && fake->done_due_ns > 0 && wait_ms < 0; i++) {
        struct fake_connection *connection = &fake->connections[i];
        if (connection->peer.fd < 0 || !connection->puts)
            continue;
        fake->done_due_ns = 0;
        fake_codes(&connection->peer.out, MC_MESSAGE_PUT_DONE, fake->put_request, 0);
        (void)peer_flush(&connection->peer);
    }
    pthread_mutex_unlock(&fake->lock);
    return wait_ms;
}

static inline void *fake_run(void *argument)
{
    struct fake_master *fake = argument;
    for (;;) {
        struct pollfd waited[FAKE_CONNECTIONS + 2];
        waited[0] = (struct pollfd){.fd = fake->wake[0], .events = POLLIN};
        waited[1] = (struct pollfd){.fd = fake->listener, .events = POLLIN};
        for (size_t i = 0; i < FAKE_CONNECTIONS; i++)
            waited[i + 2] = (struct pollfd){.fd = fake->connections[i].peer.fd, .events = POLLIN};
        (void)poll(waited, FAKE_CONNECTIONS + 2, fake_done(fake));
        pthread_mutex_lock(&fake->lock);
        bool stop = fake->stop;
        for (size_t i = 0; i < FAKE_CONNECTIONS && !stop; i++) {
            struct fake_connection *connection = &fake->connections[i];
            if (waited[i + 2].revents != 0 && connection->peer.fd >= 0 && !fake_take(fake, connection))
                peer_close(&connection->peer);
        }
        int fd = stop || waited[1].revents == 0 ? -1 : mc_socket_accept(fake->listener);
        for (size_t i = 0; i < FAKE_CONNECTIONS && fd >= 0; i++) {
            if (fake->connections[i].peer.fd < 0) {
                fake->connections[i] = (struct fake_connection){.peer = {.fd = fd}, .mute = fake->mute};
                fd = -1;
            }
        }
        pthread_mutex_unlock(&fake->lock);
        if (fd >= 0)
            close(fd);
        if (stop)
            return NULL;
    }
}

/* The port of the one that was stopped last: while it is away no other process gets it, and answers there. */
static int fake_kept = -1;

static inline void fake_keep(uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int yes = 1;
    fake_kept = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fake_kept >= 0);
    assert_int_equal(setsockopt(fake_kept, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)), 0);
    assert_int_equal(bind(fake_kept, (struct sockaddr *)&address, sizeof(address)), 0);
}

static inline void fake_let_go(void)
{
    if (fake_kept >= 0)
        close(fake_kept);
    fake_kept = -1;
}

/* Serves on its port (0: any, kept for the next start) with what it is told to do. */
static inline void fake_start(struct fake_master *fake, uint64_t epoch)
{
    fake_let_go();
    fake->epoch = epoch;
    fake->stop = false;
    fake->node = (struct mc_id){epoch, 77}; /* there is no unix socket of that name */
    fake->listener = mc_tcp_listen("127.0.0.1", &fake->port);
    assert_true(fake->listener >= 0);
    mc_address_join(fake->address, sizeof(fake->address), "127.0.0.1", fake->port);
    assert_int_equal(pipe(fake->wake), 0);
    pthread_mutex_init(&fake->lock, NULL);
    for (size_t i = 0; i < FAKE_CONNECTIONS; i++)
        fake->connections[i] = (struct fake_connection){.peer = {.fd = -1}};
    assert_int_equal(pthread_create(&fake->thread, NULL, fake_run, fake), 0);
}

/* As kill -9 would: nothing listens, every connection is reset or ended. */
static inline void fake_stop(struct fake_master *fake)
{
    pthread_mutex_lock(&fake->lock);
    fake->stop = true;
    pthread_mutex_unlock(&fake->lock);
    assert_int_equal(write(fake->wake[1], "x", 1), 1);
    pthread_join(fake->thread, NULL);
    for (size_t i = 0; i < FAKE_CONNECTIONS; i++)
        peer_close(&fake->connections[i].peer);
    if (fake->listener >= 0)
        close(fake->listener);
    fake_let_go();
    fake_keep(fake->port);
    close(fake->wake[0]);
    close(fake->wake[1]);
    pthread_mutex_destroy(&fake->lock);
}

/* As a firewall that refuses what is new would: the connections that there are stand. */
static inline void fake_refuse(struct fake_master *fake)
{
    pthread_mutex_lock(&fake->lock);
    int listener = fake->listener;
    fake->listener = -1;
    pthread_mutex_unlock(&fake->lock);
    (void)shutdown(listener, SHUT_RDWR); /* who polls it is woken */
    close(listener);
    fake_keep(fake->port);
}

/* Ends the connections of that role. */
static inline void fake_hang_up(struct fake_master *fake, enum mc_role role)
{
    pthread_mutex_lock(&fake->lock);
    for (size_t i = 0; i < FAKE_CONNECTIONS; i++) {
        if (fake->connections[i].peer.fd >= 0 && fake->connections[i].role == role)
            shutdown(fake->connections[i].peer.fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&fake->lock);
}

/* Makes the connections that there are, and those to come, mute or not. */
static inline void fake_mute(struct fake_master *fake, bool now, bool later)
{
    pthread_mutex_lock(&fake->lock);
    for (size_t i = 0; i < FAKE_CONNECTIONS; i++)
        fake->connections[i].mute = now;
    fake->mute = later;
    pthread_mutex_unlock(&fake->lock);
}

/* What was late comes now. */
static inline void fake_deliver(struct fake_master *fake)
{
    pthread_mutex_lock(&fake->lock);
    for (size_t i = 0; i < FAKE_CONNECTIONS; i++) {
        struct fake_connection *connection = &fake->connections[i];
        if (connection->peer.fd >= 0 && connection->late && connection->peer.out.length > 0)
            (void)peer_flush(&connection->peer); /* the next read finds an end */
        connection->late = false;
    }
    pthread_mutex_unlock(&fake->lock);
}

#define FAKE_SET(fake, field, value)                                                                                   \
    do {                                                                                                               \
        pthread_mutex_lock(&(fake)->lock);                                                                             \
        (fake)->field = (value);                                                                                       \
        pthread_mutex_unlock(&(fake)->lock);                                                                           \
    } while (0)

#define FAKE_GET(fake, field)                                                                                          \
    __extension__({                                                                                                    \
        pthread_mutex_lock(&(fake)->lock);                                                                             \
        __typeof__((fake)->field) value_ = (fake)->field;                                                              \
        pthread_mutex_unlock(&(fake)->lock);                                                                           \
        value_;                                                                                                        \
    })

#endif
