/* Proof that what was given up on its way to a peer can do no more harm there, before anything else goes to it: a write
 * that timed out would else overwrite what a later one put there.
 *
 * A connection that is given up in the middle of a write is reset; but a reset is sent once, may be lost, and the peer
 * may have bytes of it that it has not read yet. So each connection has a number, which the peer is told with its
 * requests, and over another connection it is asked to cut those of these numbers. It does so at once, or, of one that
 * it has not seen yet, when it comes. RDMA links have such numbers, too, and a proof of their own besides
 * (rdma_lane.c).
 *
 * Only engines of ours know that question (document: "cuts"). An engine of the last release (it has an id) gets the
 * reset alone: it drops a connection that was reset before it reads from it, also when it was stopped meanwhile. Of a
 * reset that was lost nothing is known.
 *
 * A connection to any other, the original, is not reset, it is ended: the peer reads what our kernel still has of it
 * (the caller's memory is not needed for that), and then its end, and ends it on its side. That is the proof: who has
 * closed a connection reads nothing more of it. Until it has come nothing else goes to that peer. When our kernel gives
 * the connection up, after a quarter of an hour without a word, or two minutes of one that was dead already, two
 * minutes more are enough: no packet lives so long, and a process that runs has read what had come. (One that was
 * stopped all the time has not; of it nothing is known.)
 *
 * All of it is about one process. When another has the peer's name, what was on its way to the former is no matter. */
#include "transfer/peer/ask.h"
#include "transfer/peer/peer.h"
#include "transfer/peer/rdma_lane.h"
#include "transfer/peer/settle.h"
#include "transfer/state/engine.h"
#include "transfer/wire/handshake.h"
#include "transfer/wire/metadata.h"
#include "transfer/wire/tcp_wire.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/json.h"
#include "env/log.h"

#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define FAILED_MS 120000u /* after our kernel has given a connection up, nothing of it is under way any more */
#define ALIVE_S 60        /* a host that is gone is noticed some minutes after */
#define DEAD_S 120        /* silence after which our kernel gives up what was dead already */
#define ASK_MS 1000u      /* between two questions who has the name, while a connection does not end */
#define WAITS_MAX 16u
#define READS_MAX 64u /* of what a peer still says, in one go */

uint64_t mc_settle_number(void)
{
    uint64_t number;
    do
        number = mc_random_u64() & MC_TCP_LANE_MAX;
    while (number == 0);
    return number;
}

/* The peer's lock is held. */
static void lose(struct mc_peer *peer)
{
    peer->is_uncut_lost = true;
    mc_log_limited(ERROR, "too many writes to %s were given up: nothing else is sent until it is another process",
                   peer->name);
}

void mc_settle_note(struct mc_peer *peer, uint64_t number, uint32_t incarnation)
{
    if (number == 0)
        return;
    pthread_mutex_lock(&peer->lock);
    if (peer->uncut_count == peer->uncut_capacity && peer->uncut_capacity < MC_SETTLE_NOTED_MAX) {
        uint32_t capacity = peer->uncut_capacity == 0 ? 16 : peer->uncut_capacity * 2;
        uint64_t *more = realloc(peer->uncut, capacity * sizeof(*more));
        peer->uncut = more == NULL ? peer->uncut : more;
        peer->uncut_capacity = more == NULL ? peer->uncut_capacity : capacity;
    }
    bool is_owed = incarnation == peer->incarnation, is_noted = peer->uncut_count < peer->uncut_capacity;
    if (is_owed && is_noted)
        peer->uncut[peer->uncut_count++] = number;
    else if (is_owed)
        lose(peer);
    pthread_mutex_unlock(&peer->lock);
}

/* ---- connections without a number ---- */

/* Whose host confirms nothing: it is not waited for as long as for one whose kernel answers. Not of others: a peer that
 * stands still, and has no room for more, would be given up as well, and later take what it has. */
static void soon_given_up(int fd)
{
    const unsigned silent_ms = DEAD_S * 1000;
    mc_socket_keep_alive(fd, ALIVE_S, ALIVE_S / 2, 0);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silent_ms, sizeof(silent_ms));
}

void mc_settle_give_up(struct mc_peer *peer, struct mc_lane *lane, bool is_failed, bool is_dead)
{
    if (lane->number != 0) {
        mc_settle_note(peer, lane->number, lane->incarnation);
        mc_lane_abort(lane);
        return;
    }
    pthread_mutex_lock(&peer->lock);
    bool is_kept = lane->incarnation == peer->incarnation && mc_id_is_zero(peer->document.id);
    bool is_full = is_kept && peer->unended_count == MC_SETTLE_NUMBERS_MAX;
    if (is_kept && !is_full) {
        (void)shutdown(lane->fd, SHUT_WR);
        if (is_dead)
            soon_given_up(lane->fd);
        else
            mc_socket_keep_alive(lane->fd, ALIVE_S, 75, 9); /* as the kernel's own; it may have been probed */
        lane->failed_ms = is_failed ? mc_clock_ms() : 0;
        lane->next = peer->unended;
        peer->unended = lane;
        peer->unended_count++;
    }
    if (is_full)
        lose(peer);
    pthread_mutex_unlock(&peer->lock);
    if (!is_kept || is_full)
        mc_lane_abort(lane);
}

/* What the peer still says is thrown away, with TLS as it comes: the end is the connection's, not of what TLS says. */
static bool has_ended(struct mc_lane *lane, uint64_t now_ms)
{
    char thrown_away[16384];
    for (unsigned i = 0; lane->failed_ms == 0 && i < READS_MAX; i++) {
        ssize_t got = recv(lane->fd, thrown_away, sizeof(thrown_away), MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno == ECONNRESET))
            return true;
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return false;
        if (got < 0)
            lane->failed_ms = now_ms;
    }
    return lane->failed_ms != 0 && now_ms - lane->failed_ms >= FAILED_MS;
}

void mc_settle_tidy(struct mc_peer *peer)
{
    uint64_t now_ms = mc_clock_ms();
    for (struct mc_lane **at = &peer->unended; *at != NULL;) {
        struct mc_lane *lane = *at;
        if (!has_ended(lane, now_ms)) {
            at = &lane->next;
            continue;
        }
        *at = lane->next;
        peer->unended_count--;
        mc_lane_abort(lane);
    }
}

/* Those of which nothing is known yet. */
static nfds_t collect_unsettled(struct mc_peer *peer, struct pollfd fds[WAITS_MAX])
{
    nfds_t count = 0;
    pthread_mutex_lock(&peer->lock);
    mc_settle_tidy(peer);
    for (const struct mc_lane *lane = peer->unended; lane != NULL && count < WAITS_MAX; lane = lane->next)
        fds[count++] = (struct pollfd){.fd = lane->failed_ms == 0 ? lane->fd : -1, .events = POLLIN};
    pthread_mutex_unlock(&peer->lock);
    return count;
}

static int settle_unended(struct mc_peer *peer, uint64_t deadline_ns)
{
    struct pollfd fds[WAITS_MAX];
    uint64_t asked_ms = mc_clock_ms();
    for (nfds_t count; (count = collect_unsettled(peer, fds)) > 0;) {
        uint64_t now_ms = mc_clock_ms();
        if (peer->engine->is_closing)
            return MC_TRANSFER_ERR_INVALID_ARGUMENT;
        if (mc_clock_ns() >= deadline_ns)
            return MC_TRANSFER_ERR_TIMEOUT;
        if (now_ms - asked_ms >= ASK_MS) { /* if another process has the name, the list is empty then */
            (void)mc_peer_refresh(peer, deadline_ns);
            asked_ms = mc_clock_ms();
        }
        (void)poll(fds, count, (int)MC_TRANSFER_LOOK_MS); /* another thread may close them: then it looks again */
    }
    return 0;
}

/* ---- connections with a number ---- */

/* Also when it was another thread that found it out. */
static bool is_another(struct mc_peer *peer, uint32_t incarnation)
{
    pthread_mutex_lock(&peer->lock);
    bool is_another = peer->incarnation != incarnation;
    pthread_mutex_unlock(&peer->lock);
    return is_another;
}

/* Whom a question is about. */
struct former {
    struct mc_peer *peer;
    struct mc_id id;
    uint32_t incarnation;
    uint64_t deadline_ns;
};

/* The metadata server may say so long before the silence of where the name was ends. Without one, who is asked for the
 * document is who does not answer. */
static bool has_moved(void *context)
{
    const struct former *former = context;
    const struct mc_metadata *metadata = &former->peer->engine->metadata;
    uint64_t until_ns = mc_clock_ns() + MC_METADATA_MS * 1000000ull;
    if (!metadata->is_p2p && !mc_metadata_is_away(metadata))
        (void)mc_peer_refresh(former->peer, until_ns < former->deadline_ns ? until_ns : former->deadline_ns);
    return is_another(former->peer, former->incarnation);
}

static int ask(struct mc_peer *peer, const uint64_t *numbers, size_t count, struct former *former)
{
    uint64_t deadline_ns = former->deadline_ns;
    struct mc_ask_watch watch = {.is_useless = has_moved, .context = former};
    char address[MC_ADDRESS_MAX], expected[40];
    struct mc_buffer json = {0}, reply = {0};
    struct mc_span who;
    mc_buffer_printf(&json, "{\"mooncake_c\":{\"cut\":[");
    for (size_t i = 0; i < count; i++)
        mc_buffer_printf(&json, "%s%" PRIu64, i == 0 ? "" : ",", numbers[i]);
    mc_buffer_printf(&json, "]}}");
    int rc = mc_ask_peer_address(peer->engine, peer->name, deadline_ns, address, sizeof(address));
    if (rc == 0)
        rc = mc_ask_watched(peer->engine, address, MC_HANDSHAKE_CONNECTION, mc_span(json.data, json.length),
                            deadline_ns, &watch, &reply);
    snprintf(expected, sizeof(expected), "%016" PRIx64 "%016" PRIx64, former->id.high, former->id.low);
    if (rc == 0 && (mc_json_find(mc_span(reply.data, reply.length), "mooncake_c.cut", &who) != 1 ||
                    !mc_span_equal(who, mc_span_string(expected))))
        rc = MC_TRANSFER_ERR_REJECT_HANDSHAKE; /* another process */
    mc_buffer_free(&json);
    mc_buffer_free(&reply);
    return rc;
}

/* 0: they are cut. 1: another process has the name. */
int mc_settle_cut(struct mc_peer *peer, const uint64_t *numbers, size_t count, uint64_t deadline_ns)
{
    pthread_mutex_lock(&peer->lock);
    struct former former = {peer, peer->document.id, peer->incarnation, deadline_ns};
    bool can_cut = peer->document.can_cut && count > 0 && numbers[0] != 0;
    pthread_mutex_unlock(&peer->lock);
    int rc = can_cut ? ask(peer, numbers, count, &former) : MC_TRANSFER_ERR_NOT_IMPLEMENTED;
    if (rc == 0)
        return 0;
    if (peer->engine->is_closing)
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    if (is_another(peer, former.incarnation))
        return 1;
    int refreshed = mc_peer_refresh(peer, deadline_ns);
    if (is_another(peer, former.incarnation))
        return 1;
    return refreshed < 0 ? refreshed : rc;
}

/* Those before `end` are cut. */
static void forget(struct mc_peer *peer, uint64_t end)
{
    pthread_mutex_lock(&peer->lock);
    uint64_t count = end > peer->uncut_first ? end - peer->uncut_first : 0; /* others may have asked, too */
    mc_assert(count <= peer->uncut_count);
    peer->uncut_first += count;
    peer->uncut_count -= (uint32_t)count;
    if (count > 0)
        memmove(peer->uncut, peer->uncut + count, peer->uncut_count * sizeof(*peer->uncut));
    pthread_mutex_unlock(&peer->lock);
}

/* Is there still one before `end`? Another thread may have had them cut. */
static bool is_owed(struct mc_peer *peer, uint64_t end)
{
    pthread_mutex_lock(&peer->lock);
    bool is_owed = peer->uncut_first < end;
    pthread_mutex_unlock(&peer->lock);
    return is_owed;
}

void mc_settle_forget(struct mc_peer *peer)
{
    peer->uncut_first += peer->uncut_count;
    peer->uncut_count = 0;
    peer->is_uncut_lost = false;
    while (peer->unended != NULL) {
        struct mc_lane *lane = peer->unended;
        peer->unended = lane->next;
        mc_lane_abort(lane);
    }
    peer->unended_count = 0;
}

static int settle_tcp(struct mc_peer *peer, uint64_t deadline_ns)
{
    uint64_t numbers[MC_SETTLE_NUMBERS_MAX];
    for (;;) {
        pthread_mutex_lock(&peer->lock);
        uint32_t count = peer->uncut_count < MC_SETTLE_NUMBERS_MAX ? peer->uncut_count : MC_SETTLE_NUMBERS_MAX;
        bool is_lost = peer->is_uncut_lost;
        uint32_t incarnation = peer->incarnation;
        bool is_unended = peer->unended != NULL;
        uint64_t end = peer->uncut_first + count;
        if (count > 0)
            memcpy(numbers, peer->uncut, count * sizeof(*numbers));
        pthread_mutex_unlock(&peer->lock);
        if (is_lost) {
            (void)mc_peer_refresh(peer, deadline_ns);
            if (!is_another(peer, incarnation))
                return MC_TRANSFER_ERR_SOCKET;
            continue;
        }
        if (count == 0)
            return is_unended ? settle_unended(peer, deadline_ns) : 0;
        int rc = mc_settle_cut(peer, numbers, count, deadline_ns);
        if (rc == 0)
            forget(peer, end);
        if (rc < 0 && is_owed(peer, end))
            return mc_clock_ns() >= deadline_ns ? MC_TRANSFER_ERR_TIMEOUT : MC_TRANSFER_ERR_SOCKET;
    }
}

int mc_settle(struct mc_peer *peer, uint64_t deadline_ns)
{
    int rc = settle_tcp(peer, deadline_ns);
    if (rc == 0 && peer->engine->rdma != NULL)
        rc = mc_rdma_settle(peer, deadline_ns);
    if (rc < 0)
        mc_log_limited(ERROR, "%s does not answer, and an earlier write to it may still arrive: nothing else is sent",
                       peer->name);
    return rc;
}
