/* A batch over tcp: its bytes are dealt over lanes, and one thread drives them all. */
#include "transfer/peer/peer.h"
#include "transfer/peer/settle.h"
#include "transfer/run/run.h"
#include "transfer/state/batch.h"
#include "transfer/state/engine.h"
#include "transfer/state/settings.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"
#include "transfer/run/outbound.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>

#define CONNECT_SHORT_NS 500000000ull /* where threads are short: then it is tried again later */
#define DEAD_MS 700u                  /* a lane on which nothing is confirmed for so long is of no use */
#define PROBES 5                      /* of a host that has confirmed everything and says nothing, one each second */
#define LANE_BYTES_MIN ((uint64_t)1 << 20) /* less is not worth a further lane */

struct lane_job { /* what one lane has to do */
    struct mc_lane *lane;
    bool is_stuck;  /* nothing moved when last tried */
    bool has_ended; /* the peer has ended the connection, or stopped reading from it */
    bool is_unsure; /* our own kernel gave it up */
    bool is_probed;
    struct mc_outbound outbound;
};

struct lanes_run {
    struct mc_peer *peer;
    struct mc_parking *parking;
    struct mc_sum_check *check; /* NULL: sums are not wanted */
    bool is_only_check;         /* the bytes have been moved otherwise, to the process of that incarnation */
    uint32_t moved_to;
    uint64_t moved_ns; /* when a byte last moved, or it began to wait for one; has_moved: one has since */
    bool has_moved;
    bool is_dead;  /* a lane of this try was found dead */
    bool was_dead; /* a lane was: then tries that take long are not counted, as who is cut off may come back */
    unsigned tries;
    uint64_t deadline_ns;
    uint32_t incarnation; /* of the peer: to which what is done was done */
    size_t job_count;
    struct lane_job jobs[MC_PEER_LANES_MAX];
    struct mc_transfer_item *cut; /* items, cut at the borders between lanes; NULL: one lane */
};

/* ---- one lane ---- */

static bool would_wait(ssize_t moved)
{
    return moved < 0 && (errno == EAGAIN || errno == EINTR);
}

/* 1: something moved. 0: nothing can now. MC_TRANSFER_ERR_SOCKET: broken; or what mc_outbound_received says. */
static int send_some(struct lane_job *job)
{
    struct iovec parts[MC_OUTBOUND_PARTS];
    size_t count = mc_outbound_send_parts(&job->outbound, parts);
    if (count == 0)
        return 0;
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
    ssize_t sent = mc_socket_sendmsg(job->lane->fd, &message);
    if (sent < 0 && would_wait(sent))
        return 0;
    if (sent < 0) {
        job->is_unsure |= errno != ECONNRESET && errno != EPIPE;
        return MC_TRANSFER_ERR_SOCKET;
    }
    mc_outbound_sent(&job->outbound, (size_t)sent);
    return 1;
}

static int receive_some(struct lane_job *job)
{
    struct iovec parts[MC_OUTBOUND_PARTS];
    size_t count = mc_outbound_receive_parts(&job->outbound, parts);
    if (count == 0)
        return 0;
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
    ssize_t received = mc_socket_recvmsg(job->lane->fd, &message);
    if (received < 0 && would_wait(received))
        return 0;
    if (received <= 0) {
        job->is_unsure |= received < 0 && errno != ECONNRESET;
        job->has_ended = true;
        return MC_TRANSFER_ERR_SOCKET;
    }
    int rc = mc_outbound_received(&job->outbound, (size_t)received);
    job->has_ended |= rc < 0 && rc != MC_TRANSFER_ERR_INVALID_ARGUMENT; /* sums that differ are not the peer's word */
    return rc < 0 ? rc : 1;
}

static int job_step(struct lane_job *job)
{
    int sent = send_some(job);
    if (sent == MC_TRANSFER_ERR_SOCKET) {
        /* A peer that refuses hangs up: its word may still be there to be read. */
        int received = receive_some(job);
        return received < 0 ? received : received > 0 ? 1 : sent;
    }
    int received = mc_outbound_is_done(&job->outbound) ? 0 : receive_some(job);
    if (received < 0)
        return received;
    job->is_stuck = sent == 0 && received == 0;
    return !job->is_stuck;
}

/* ---- all lanes ---- */

/* What is kept of a run without a thread. */
struct mc_parked {
    struct lanes_run run;
};

static bool park(struct lanes_run *run)
{
    struct mc_parking *parking = run->parking;
    if (parking == NULL || !parking->shall_park(parking->context))
        return false;
    parking->parked = malloc(sizeof(*parking->parked));
    return parking->parked != NULL;
}

/* Is there a lane that a firewall has forgotten, or whose host is gone? No end of it comes before the deadline. A peer
 * that merely stands still is not meant: its kernel confirms what comes. */
static bool has_dead_lane(struct lanes_run *run)
{
    for (size_t i = 0; i < run->job_count; i++) {
        const struct lane_job *job = &run->jobs[i];
        if (job->lane == NULL || mc_outbound_is_done(&job->outbound) || !mc_tcp_is_dead(job->lane->fd, DEAD_MS))
            continue;
        mc_log_limited(WARNING, "a connection to %s is dead, nothing on it was confirmed for %u ms: others are made",
                       run->peer->name, DEAD_MS);
        run->is_dead = run->was_dead = true;
        return true;
    }
    return false;
}

/* Where everything was confirmed nothing tells of a host that has gone since, unless its kernel is asked. A write to
 * the original is waited for: its connection must end in order before anything else goes there (settle.c), and that
 * takes minutes where our kernel has given it up. */
static void probe_lanes(struct lanes_run *run)
{
    for (size_t i = 0; i < run->job_count; i++) {
        struct lane_job *job = &run->jobs[i];
        bool may_give_up = job->lane != NULL && (job->lane->number != 0 || job->outbound.opcode != MC_TRANSFER_WRITE);
        if (may_give_up && !job->is_probed && !mc_outbound_is_done(&job->outbound))
            mc_socket_keep_alive(job->lane->fd, 1, 1, PROBES);
        job->is_probed = true;
    }
}

static int wait_for_any(struct lanes_run *run)
{
    struct pollfd fds[MC_PEER_LANES_MAX];
    nfds_t count = 0;
    struct lane_job *last = NULL;
    uint64_t now_ns = mc_clock_ns(), until_ns = now_ns + MC_TRANSFER_LOOK_MS * 1000000ull;
    bool wants_write = false;
    for (size_t i = 0; i < run->job_count; i++) {
        struct lane_job *job = &run->jobs[i];
        if (job->lane == NULL || mc_outbound_is_done(&job->outbound))
            continue;
        bool has_more = job->outbound.sending < job->outbound.count &&
                        job->outbound.sending < job->outbound.done + mc_outbound_window(&job->outbound);
        fds[count++] = (struct pollfd){.fd = job->lane->fd, .events = (short)(POLLIN | (has_more ? POLLOUT : 0))};
        wants_write |= has_more;
        last = job;
    }
    if (run->has_moved)
        run->moved_ns = now_ns;
    run->has_moved = false;
    if (run->deadline_ns < until_ns)
        until_ns = run->deadline_ns;
    if (now_ns >= run->deadline_ns)
        return MC_TRANSFER_ERR_TIMEOUT;
    if (run->peer->engine->is_closing)
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    if (now_ns - run->moved_ns >= MC_SILENT_NS && park(run))
        return MC_RUN_PARKED;
    if (now_ns - run->moved_ns >= DEAD_MS * 1000000ull) {
        if (has_dead_lane(run))
            return MC_TRANSFER_ERR_SOCKET;
        probe_lanes(run);
    }
    if (count == 1 && !wants_write)
        (void)mc_socket_wait_read(last->lane->fd, until_ns, &last->lane->spin);
    else
        (void)poll(fds, count, (int)((until_ns - now_ns) / 1000000u) + 1);
    return 0;
}

static void note_wrong(const struct lanes_run *run, const struct mc_outbound *outbound)
{
    const struct mc_transfer_item *item = &outbound->items[outbound->done];
    const size_t place = outbound->done % MC_OUTBOUND_WINDOW;
    if (run->check != NULL)
        (void)mc_check_wrong(run->check, item->remote, item->length, outbound->ours[place],
                             (uint32_t)outbound->theirs[place].sum);
}

/* Until every lane is done, or one is broken, refused, late or wrong, or the run is parked. */
static int drive(struct lanes_run *run)
{
    run->moved_ns = mc_clock_ns();
    run->has_moved = false;
    for (uint64_t turns = 1;; turns++) {
        bool is_done = true, is_stuck = true;
        for (size_t i = 0; i < run->job_count; i++) {
            struct lane_job *job = &run->jobs[i];
            if (mc_outbound_is_done(&job->outbound))
                continue;
            int rc = job_step(job);
            if (rc == MC_TRANSFER_ERR_INVALID_ARGUMENT)
                note_wrong(run, &job->outbound);
            run->is_dead |= job->is_unsure;
            run->was_dead |= job->is_unsure;
            if (rc < 0)
                return rc;
            is_stuck &= rc == 0;
            is_done &= mc_outbound_is_done(&job->outbound);
        }
        if (is_done)
            return 0;
        run->has_moved |= !is_stuck;
        if (!is_stuck && turns % 16 != 0)
            continue;
        int rc = is_stuck ? wait_for_any(run) : (mc_clock_ns() >= run->deadline_ns ? MC_TRANSFER_ERR_TIMEOUT : 0);
        if (rc != 0)
            return rc;
    }
}

/* ---- dealing ---- */

/* Of the protocol, which its process speaks now. The peer's lock is held. */
static unsigned version_of(const struct mc_peer *peer)
{
    unsigned own = peer->engine->settings.tcp_version;
    return peer->document.data_version < own ? peer->document.data_version : own;
}

/* The peer's lock is held. */
static enum mc_outbound_sums sums_of(const struct lanes_run *run)
{
    if (run->check == NULL || !run->peer->document.can_sum || version_of(run->peer) < 2)
        return MC_SUMS_NONE;
    return run->is_only_check ? MC_SUMS_ONLY : MC_SUMS_TOO;
}

/* Cuts the items into so many portions of about the same number of bytes; for sums, each into what one may be of. */
static int deal(struct lanes_run *run, enum mc_transfer_opcode opcode, unsigned version, enum mc_outbound_sums sums,
                const struct mc_transfer_item *items, size_t count, uint64_t bytes, size_t lanes)
{
    mc_assert(lanes > 0);
    const uint64_t most = sums == MC_SUMS_NONE ? UINT64_MAX : MC_TCP_SUM_MAX;
    uint64_t share = bytes / lanes + 1, room = share, offset = 0;
    size_t used = 0, start = 0, at = 0;
    struct mc_transfer_item *cut = malloc((count + lanes + bytes / most) * sizeof(*cut));
    if (cut == NULL)
        return MC_TRANSFER_ERR_MEMORY;
    while (at < count) {
        uint64_t left = items[at].length - offset, piece = left < room ? left : room;
        piece = piece < most ? piece : most;
        cut[used++] = (struct mc_transfer_item){(char *)items[at].local + offset, items[at].remote + offset, piece};
        room -= piece;
        offset += piece;
        if (offset == items[at].length) {
            offset = 0;
            at++;
        }
        if (room == 0 || at == count) {
            mc_outbound_init(&run->jobs[run->job_count++].outbound, opcode, version, sums, cut + start, used - start);
            start = used;
            room = share;
        }
    }
    run->cut = cut;
    return 0;
}

static int prepare(struct lanes_run *run, enum mc_transfer_opcode opcode, const struct mc_transfer_item *items,
                   size_t count)
{
    struct mc_peer *peer = run->peer;
    const struct mc_settings *settings = &peer->engine->settings;
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += items[i].length;
    pthread_mutex_lock(&peer->lock);
    unsigned version = version_of(peer);
    enum mc_outbound_sums sums = sums_of(run);
    run->incarnation = peer->incarnation;
    size_t lanes = peer->is_near ? settings->lanes_near : settings->lanes;
    pthread_mutex_unlock(&peer->lock);
    if (bytes / LANE_BYTES_MIN < lanes)
        lanes = bytes < 2 * LANE_BYTES_MIN ? 1 : (size_t)(bytes / LANE_BYTES_MIN);
    if (lanes > 1 || sums != MC_SUMS_NONE)
        return deal(run, opcode, version, sums, items, count, bytes, lanes);
    mc_outbound_init(&run->jobs[0].outbound, opcode, version, sums, items, count);
    run->job_count = 1;
    return 0;
}

static uint32_t incarnation_now(struct mc_peer *peer)
{
    pthread_mutex_lock(&peer->lock);
    uint32_t incarnation = peer->incarnation;
    pthread_mutex_unlock(&peer->lock);
    return incarnation;
}

/* May what the lane was given still be written over there? */
static bool may_arrive(const struct lane_job *job)
{
    const struct mc_outbound *outbound = &job->outbound;
    bool is_under_way = outbound->sending > outbound->done || outbound->sent_of_current > 0;
    return outbound->opcode == MC_TRANSFER_WRITE && is_under_way && (!job->has_ended || job->is_unsure);
}

/* Lanes with nothing under way are kept, the others are aborted: after that nothing moves any more. */
static void drop_lanes(struct lanes_run *run)
{
    for (size_t i = 0; i < run->job_count; i++) {
        struct lane_job *job = &run->jobs[i];
        if (job->lane == NULL)
            continue;
        if (mc_outbound_is_done(&job->outbound))
            mc_peer_give_lane(run->peer, job->lane);
        else if (may_arrive(job))
            mc_settle_give_up(run->peer, job->lane, job->is_unsure, run->is_dead);
        else
            mc_lane_abort(job->lane);
        job->lane = NULL;
        mc_outbound_restart(&job->outbound);
    }
}

/* All of a batch goes to one process: when another has the peer's name by now, nothing is done yet, what connections it
 * has kept are to the former, and it may speak another version. */
static void look_who(struct lanes_run *run)
{
    pthread_mutex_lock(&run->peer->lock);
    uint32_t incarnation = run->peer->incarnation;
    unsigned version = version_of(run->peer);
    enum mc_outbound_sums sums = sums_of(run);
    pthread_mutex_unlock(&run->peer->lock);
    if (incarnation == run->incarnation)
        return;
    drop_lanes(run);
    for (size_t i = 0; i < run->job_count; i++)
        mc_outbound_again(&run->jobs[i].outbound, version, sums);
    run->incarnation = incarnation;
}

/* Where threads are short a connection is tried for a while only, and then, when the run is not parked, for twice as
 * long: in all for as long as otherwise. */
static int take_lane(struct lanes_run *run, struct mc_lane **lane)
{
    const struct mc_transfer_engine *engine = run->peer->engine;
    uint64_t step_ns = CONNECT_SHORT_NS, end_ns = mc_clock_ns() + engine->settings.handshake_connect_ms * 1000000ull;
    end_ns = end_ns < run->deadline_ns ? end_ns : run->deadline_ns;
    for (;; step_ns *= 2) {
        bool is_short = run->parking != NULL && run->parking->is_short(run->parking->context);
        uint64_t now_ns = mc_clock_ns(), until_ns = is_short && now_ns + step_ns < end_ns ? now_ns + step_ns : end_ns;
        int rc = mc_peer_take_lane(run->peer, until_ns, lane);
        now_ns = mc_clock_ns();
        if (rc == 0 || now_ns < until_ns || now_ns >= run->deadline_ns || engine->is_closing)
            return rc;
        if (is_short && park(run))
            return MC_RUN_PARKED;
        if (now_ns >= end_ns)
            return rc;
    }
}

/* A lane for every job that is not done. */
static int take_lanes(struct lanes_run *run)
{
    for (size_t i = 0; i < run->job_count; i++) {
        struct lane_job *job = &run->jobs[i];
        if (mc_outbound_is_done(&job->outbound) || job->lane != NULL)
            continue;
        int rc = take_lane(run, &job->lane);
        if (rc != 0)
            return rc;
        job->outbound.lane = job->lane->number;
        job->has_ended = job->is_unsure = job->is_probed = false;
        if (job->lane->incarnation != run->incarnation)
            return MC_TRANSFER_ERR_SOCKET; /* just now; and again */
    }
    return 0;
}

static int attempt(struct lanes_run *run)
{
    run->is_dead = false;
    look_who(run);
    bool is_who_was = run->incarnation == run->moved_to && run->jobs[0].outbound.sums == MC_SUMS_ONLY;
    if (run->is_only_check && !is_who_was) {
        mc_log_limited(WARNING, "%s is another process by now, which cannot be asked for checksums", run->peer->name);
        return MC_TRANSFER_ERR_REJECT_HANDSHAKE;
    }
    int rc = take_lanes(run);
    if (rc == 0)
        rc = drive(run);
    if (rc != MC_RUN_PARKED)
        drop_lanes(run);
    return rc;
}

static void init(struct lanes_run *run, struct mc_peer *peer, uint64_t deadline_ns)
{
    run->peer = peer;
    run->deadline_ns = deadline_ns;
    run->check = NULL;
    run->is_only_check = false;
    run->moved_to = 0;
    run->job_count = 0;
    run->cut = NULL;
    run->was_dead = false;
    run->tries = 1;
    for (size_t i = 0; i < MC_PEER_LANES_MAX; i++)
        run->jobs[i].lane = NULL;
}

/* From where it was. */
static void take_up(struct lanes_run *run, struct mc_parking *parking)
{
    *run = parking->parked->run;
    free(parking->parked);
    parking->parked = NULL;
}

/* Until it has ended, or is parked. */
static int run_lanes(struct lanes_run *run)
{
    struct mc_peer *peer = run->peer;
    const uint64_t deadline_ns = run->deadline_ns;
    int rc = attempt(run);
    const _Atomic bool *is_closing = &peer->engine->is_closing;
    while (rc == MC_TRANSFER_ERR_SOCKET && run->tries < MC_TRANSFER_ATTEMPTS && !*is_closing) {
        uint64_t start_ns = mc_clock_ns();
        /* A kept lane may have been of a process that is gone: ask who is there now. */
        mc_log(DEBUG, "a connection to %s broke; asking where it is now", peer->name);
        mc_peer_drop_lanes(peer);
        rc = mc_clock_ns() < deadline_ns ? mc_peer_refresh(peer, deadline_ns) : MC_TRANSFER_ERR_TIMEOUT;
        if (rc >= 0)
            rc = mc_settle(peer, deadline_ns);
        if (rc == 0)
            rc = attempt(run);
        run->tries += !run->was_dead || mc_clock_ns() - start_ns < DEAD_MS * 1000000ull;
    }
    if (rc == MC_TRANSFER_ERR_TIMEOUT) /* whatever has become of them, no other call is to wait for it again */
        mc_peer_drop_lanes(peer);
    /* Refused, but by whom? A connection does not say who answers, and the port may be another process's by now, even
     * the one of its handshakes. Another thread may have asked just before. */
    bool is_refused = rc == MC_TRANSFER_ERR_ADDRESS_NOT_REGISTERED || rc == MC_TRANSFER_ERR_REJECT_HANDSHAKE;
    if (is_refused && mc_peer_refresh(peer, deadline_ns) >= 0 && incarnation_now(peer) != run->incarnation)
        rc = attempt(run);
    return rc;
}

int mc_run_tcp(struct mc_peer *peer, enum mc_transfer_opcode opcode, const struct mc_transfer_item *items, size_t count,
               struct mc_sum_check *check, uint64_t deadline_ns, struct mc_parking *parking)
{
    struct lanes_run run;
    int rc = 0;
    bool is_parked = parking != NULL && parking->parked != NULL;
    if (is_parked)
        take_up(&run, parking);
    else
        init(&run, peer, deadline_ns);
    run.parking = parking;
    run.check = check;
    if (!is_parked)
        rc = prepare(&run, opcode, items, count);
    if (rc == 0)
        rc = run_lanes(&run);
    if (rc == 0 && check != NULL)
        check->is_blind = run.jobs[0].outbound.sums == MC_SUMS_NONE;
    if (rc == MC_RUN_PARKED) {
        mc_assert(parking != NULL && parking->parked != NULL);
        parking->parked->run = run; /* `cut` stays, too */
    } else {
        free(run.cut);
    }
    return rc;
}

int mc_run_sums(struct mc_peer *peer, uint32_t incarnation, const struct mc_transfer_item *items, size_t count,
                struct mc_sum_check *check, uint64_t deadline_ns)
{
    struct lanes_run run;
    init(&run, peer, deadline_ns);
    run.parking = NULL;
    run.check = check;
    run.is_only_check = true;
    run.moved_to = incarnation;
    int rc = prepare(&run, MC_TRANSFER_READ, items, count); /* nothing of a write is under way */
    if (rc == 0)
        rc = run_lanes(&run);
    free(run.cut);
    return rc;
}
