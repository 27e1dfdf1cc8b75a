/* A peer made of a raw socket: says frames and takes frames apart. Shared by the tests of serve.c and owner.c. */
#ifndef MC_TEST_FRAMES_H
#define MC_TEST_FRAMES_H

#include "base/error.h"
#include "env/clock.h"
#include "env/socket.h"
#include "store/wire/stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define WAIT_NS 10000000000ull

struct peer {
    int fd;
    struct mc_buffer in, out;
    size_t used;
};

static inline uint64_t soon(void)
{
    return mc_clock_ns() + WAIT_NS;
}

static inline void peer_close(struct peer *peer)
{
    if (peer->fd >= 0)
        close(peer->fd);
    mc_buffer_free(&peer->in);
    mc_buffer_free(&peer->out);
    *peer = (struct peer){.fd = -1};
}

static inline int peer_send_bytes(struct peer *peer, const void *data, size_t length)
{
    struct iovec part = {(void *)(uintptr_t)data, length};
    return mc_socket_send(peer->fd, &part, 1, soon());
}

/* Sends what was written to peer->out. */
static inline int peer_flush(struct peer *peer)
{
    int rc = peer_send_bytes(peer, peer->out.data, peer->out.length);
    peer->out.length = 0;
    return rc;
}

/* The next frame: its type, or negative. The reader is valid until the next receive. */
static inline int peer_receive(struct peer *peer, struct mc_frame *frame, struct mc_reader *reader)
{
    mc_buffer_consume(&peer->in, peer->used);
    peer->used = 0;
    *frame = (struct mc_frame){0};
    *reader = mc_reader(NULL, 0);
    int64_t used = mc_socket_receive_frame(peer->fd, &peer->in, frame, soon(), NULL);
    if (used < 0)
        return (int)used;
    peer->used = (size_t)used;
    *reader = mc_reader(frame->body.data, frame->body.length);
    return frame->type;
}

static inline void peer_expect(struct peer *peer, enum mc_message type, struct mc_frame *frame,
                               struct mc_reader *reader)
{
    int got = peer_receive(peer, frame, reader);
    if (got != (int)type)
        fail_msg("expected %s, got %s", mc_message_name(type),
                 got < 0 ? mc_error_name(got) : mc_message_name((unsigned)got));
    assert_int_equal(mc_wire_check(frame->type, frame->body), 0);
}

/* Raw bytes behind the last frame. */
static inline void peer_receive_bytes(struct peer *peer, void *data, size_t length)
{
    mc_buffer_consume(&peer->in, peer->used);
    peer->used = 0;
    size_t have = peer->in.length < length ? peer->in.length : length;
    memcpy(data, peer->in.data == NULL ? data : peer->in.data, have);
    mc_buffer_consume(&peer->in, have);
    while (have < length) {
        int64_t received = mc_socket_receive(peer->fd, (uint8_t *)data + have, length - have, soon(), NULL);
        if (received < 0)
            fail_msg("bytes: %s", mc_error_name((int)received));
        have += (size_t)received;
    }
}

/* Reads on until the other side has closed; false when it does not. */
static inline bool peer_is_closed(struct peer *peer)
{
    uint8_t bytes[4096];
    uint64_t end_ns = mc_clock_ns() + 2000000000ull;
    int64_t rc;
    do
        rc = mc_socket_receive(peer->fd, bytes, sizeof(bytes), end_ns, NULL);
    while (rc > 0);
    return rc == MC_ERR_RPC_FAIL;
}

/* Has it closed by now? Takes nothing of what it says. */
static inline bool peer_is_closed_now(struct peer *peer)
{
    char byte;
    return recv(peer->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

static inline void peer_ping(struct peer *peer, uint64_t id)
{
    struct mc_wire_none none = {0};
    size_t frame = mc_frame_begin(&peer->out, MC_MESSAGE_PING, id);
    mc_wire_none_write(&peer->out, &none);
    mc_frame_end(&peer->out, frame);
}

static inline void peer_write_code(struct peer *peer, enum mc_message type, uint64_t id, int code)
{
    struct mc_wire_code head = {.code = code};
    size_t frame = mc_frame_begin(&peer->out, type, id);
    mc_wire_code_write(&peer->out, &head);
    mc_frame_end(&peer->out, frame);
}

#endif
