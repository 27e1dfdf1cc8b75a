/* The life of a connection of transport `tcp`: it is opened, greets its owner, rests and is closed. */
#include "store/path/tcp_lane.h"

#include "base/error.h"
#include "env/clock.h"
#include "store/wire/wire.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static struct mc_tcp_lane *lane_make(void)
{
    struct mc_tcp_lane *lane = malloc(sizeof(*lane)); /* not zeroed: its buffers are large */
    if (lane == NULL)
        return NULL;
    memset(lane, 0, offsetof(struct mc_tcp_lane, heads));
    lane->heads_length = lane->part_first = lane->part_count = lane->in_start = lane->in_length = 0;
    lane->queued_bytes = lane->piece_bytes = 0;
    lane->writing = lane->queued = lane->part.job = NULL;
    lane->piece_first = lane->piece_count = lane->orphan_count = lane->part_answers = lane->pings = 0;
    lane->expect = MC_TCP_EXPECT_REPLY;
    return lane;
}

struct mc_tcp_rest *mc_tcp_lane_settle(struct mc_tcp_lane *lane)
{
    mc_assert(mc_tcp_lane_is_idle(lane) && lane->state == MC_TCP_READY);
    struct mc_tcp_rest *rest = malloc(sizeof(*rest));
    if (rest == NULL)
        return NULL;
    *rest = (struct mc_tcp_rest){.fd = lane->fd,
                                 .fd_place = lane->fd_place,
                                 .takes_parts = lane->takes_parts,
                                 .takes_traces = lane->takes_traces,
                                 .idle_since_ns = lane->idle_since_ns,
                                 .request_id = lane->request_id};
    free(lane);
    return rest;
}

struct mc_tcp_lane *mc_tcp_lane_wake(struct mc_tcp_rest *rest)
{
    struct mc_tcp_lane *lane = lane_make();
    if (lane == NULL)
        return NULL;
    lane->fd = rest->fd;
    lane->fd_place = rest->fd_place;
    lane->takes_parts = rest->takes_parts;
    lane->takes_traces = rest->takes_traces;
    lane->idle_since_ns = rest->idle_since_ns;
    lane->request_id = rest->request_id;
    lane->state = MC_TCP_READY;
    free(rest);
    return lane;
}

int mc_tcp_lane_begin(struct mc_paths *paths, const struct mc_tcp_address *peer, struct mc_tcp_lane **result)
{
    struct mc_tcp_lane *lane = lane_make();
    if (lane == NULL)
        return MC_ERR_NO_MEMORY;
    lane->fd = mc_tcp_begin(peer);
    lane->fd_place = lane->fd < 0 ? lane->fd : mc_paths_fd_add(paths, lane->fd);
    if (lane->fd_place < 0) {
        int rc = lane->fd_place;
        mc_fd_close(lane->fd);
        free(lane);
        return rc;
    }
    lane->state = MC_TCP_CONNECTING;
    lane->progress_ns = mc_clock_ns();
    *result = lane;
    return 0;
}

static int prove_begin(const struct mc_endpoint *endpoint, struct mc_tcp_lane *lane, struct mc_buffer *out)
{
    lane->prover = malloc(sizeof(*lane->prover));
    if (lane->prover == NULL)
        return MC_ERR_NO_MEMORY;
    mc_prover_begin(lane->prover, mc_span(endpoint->ticket, sizeof(endpoint->ticket)), endpoint->ticket_secret, out);
    return 0;
}

/* The owner's proof has come: ours goes out, with the hello right behind it. */
static int prove_end(struct mc_paths *paths, const struct mc_endpoint *endpoint, struct mc_tcp_lane *lane,
                     const struct mc_frame *frame)
{
    struct mc_buffer out = {.data = lane->heads, .length = 0, .capacity = sizeof(lane->heads)};
    char why[MC_PROOF_TEXT_MAX];
    int rc = mc_prover_take(lane->prover, frame, &out, why);
    free(lane->prover);
    lane->prover = NULL;
    if (rc < 0) /* another process has its place now */
        return rc == MC_ERR_NOT_PERMITTED ? MC_ERR_STALE : rc;
    mc_path_hello_write(paths, endpoint, &out);
    lane->parts[lane->part_count++] = (struct iovec){lane->heads, out.length};
    lane->in_length = 0;
    lane->state = MC_TCP_CONNECTING;
    return 0;
}

/* Connected: TLS, if that is wanted. 1: it stands; 0: more must come; negative. */
static int shake(const struct mc_endpoint *endpoint, struct mc_tcp_lane *lane)
{
    int rc = lane->state == MC_TCP_SHAKING ? 0 : mc_tcp_begun(lane->fd);
    if (rc == 0 && lane->state != MC_TCP_SHAKING)
        rc = mc_secure_call(lane->fd, endpoint->tcp_address);
    if (rc == 0)
        rc = mc_secure_shake(lane->fd);
    lane->state = rc == 0 ? MC_TCP_SHAKING : MC_TCP_CONNECTING;
    return rc;
}

/* Connected: says hello, as far as the socket takes it. */
static int greet(struct mc_paths *paths, const struct mc_endpoint *endpoint, struct mc_tcp_lane *lane)
{
    if (lane->part_count == 0) {
        struct mc_buffer out = {.data = lane->heads, .length = 0, .capacity = sizeof(lane->heads)};
        int rc = shake(endpoint, lane);
        if (rc <= 0)
            return rc;
        rc = endpoint->has_ticket ? prove_begin(endpoint, lane, &out) : 0;
        if (rc < 0)
            return rc;
        if (lane->prover == NULL)
            mc_path_hello_write(paths, endpoint, &out);
        lane->parts[lane->part_count++] = (struct iovec){lane->heads, out.length};
    }
    struct iovec *part = &lane->parts[0];
    ssize_t sent = mc_socket_sends(lane->fd, part->iov_base, part->iov_len);
    if (sent < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : mc_socket_code(errno);
    part->iov_base = (uint8_t *)part->iov_base + sent;
    part->iov_len -= (size_t)sent;
    if (part->iov_len > 0)
        return 0;
    lane->part_count = 0;
    lane->state = MC_TCP_GREETING;
    return 0;
}

int mc_tcp_lane_step(struct mc_paths *paths, const struct mc_endpoint *endpoint, struct mc_tcp_lane *lane)
{
    struct mc_frame frame;
    size_t used;
    if (lane->state == MC_TCP_CONNECTING || lane->state == MC_TCP_SHAKING)
        return greet(paths, endpoint, lane);
    ssize_t received = mc_socket_recv(lane->fd, lane->in + lane->in_length, sizeof(lane->in) - lane->in_length);
    if (received == 0 || (received < 0 && errno != EAGAIN))
        mc_secure_note(lane->fd, lane->in, lane->in_length, false);
    if (received <= 0)
        return received < 0 && (errno == EAGAIN || errno == EINTR) ? 0
               : received < 0                                      ? mc_socket_code(errno)
                                                                   : MC_ERR_RPC_FAIL;
    lane->in_length += (size_t)received;
    int found = mc_frame_parse(lane->in, lane->in_length, &frame, &used);
    if (found == 0 && lane->in_length < sizeof(lane->in))
        return 0;
    if (found <= 0 || used != lane->in_length) /* the owner speaks only when asked */
        return MC_ERR_PROTOCOL;
    if (lane->prover != NULL)
        return prove_end(paths, endpoint, lane, &frame);
    int rc = mc_path_hello_check(endpoint, &frame, &lane->owner);
    if (rc < 0)
        return rc;
    lane->takes_parts = mc_wire_can(&lane->owner.agreed, MC_FEATURE_PARTS);
    lane->takes_traces = mc_wire_can(&lane->owner.agreed, MC_FEATURE_TRACES);
    lane->in_length = 0;
    lane->state = MC_TCP_READY;
    return 1;
}

void mc_tcp_lane_close(struct mc_paths *paths, struct mc_tcp_lane *lane, bool abort)
{
    if (abort && lane->state != MC_TCP_DEAD) /* best effort: else bytes follow that the owner will refuse */
        (void)mc_socket_reset_at_close(lane->fd);
    if (lane->state != MC_TCP_DEAD)
        mc_paths_fd_close(paths, lane->fd_place);
    free(lane->prover);
    free(lane);
}
