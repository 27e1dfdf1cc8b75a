/* Proof that what was given up on its way to a peer can do no more harm there, before anything else goes to it: a write
 * that timed out would else overwrite what a later one put there.
 *
 * A connection that is given up in the middle of a write is reset; but a reset is sent once, may be lost, and the peer
 * may have bytes of it that it has not read yet. So each connection has a number, which the peer is told with its
 * requests, and over another connection it is asked to cut those of these numbers. It does so at once, or, of one that
 * it has not seen yet, when it comes. Only engines of ours know that question (document: "cuts"); of others the reset
 * is all there is. RDMA links have such numbers, too, and a proof of their own besides (rdma_lane.c).
 *
 * All of it is about one process. When another has the peer's name, what was on its way to the former is no matter. */
#include "transfer/inside.h"
#include "transfer/tcp_wire.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/json.h"
#include "env/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t mc_settle_number(void)
{
    uint64_t number;
    do
        number = mc_random_u64() & MC_TCP_LANE_MAX;
    while (number == 0);
    return number;
}

void mc_settle_note(struct mc_peer *peer, uint64_t number, uint32_t incarnation)
{
    if (number == 0)
        return;
    pthread_mutex_lock(&peer->lock);
    if (peer->uncut_count == peer->uncut_capacity && peer->uncut_capacity < MC_SETTLE_NUMBERS_MAX) {
        uint32_t capacity = peer->uncut_capacity == 0 ? 16 : peer->uncut_capacity * 2;
        uint64_t *more = realloc(peer->uncut, capacity * sizeof(*more));
        peer->uncut = more == NULL ? peer->uncut : more;
        peer->uncut_capacity = more == NULL ? peer->uncut_capacity : capacity;
    }
    bool is_noted = peer->uncut_count < peer->uncut_capacity;
    if (is_noted && incarnation == peer->incarnation)
        peer->uncut[peer->uncut_count++] = number;
    pthread_mutex_unlock(&peer->lock);
    if (!is_noted)
        mc_log_limited(ERROR, "more than %u writes to %s were given up: some are not known to have ended",
                       MC_SETTLE_NUMBERS_MAX, peer->name);
}

static int ask(struct mc_peer *peer, const uint64_t *numbers, size_t count, struct mc_id id, uint64_t deadline_ns)
{
    char address[MC_ADDRESS_MAX], expected[40];
    struct mc_buffer json = {0}, reply = {0};
    struct mc_span who;
    mc_buffer_printf(&json, "{\"mooncake_c\":{\"cut\":[");
    for (size_t i = 0; i < count; i++)
        mc_buffer_printf(&json, "%s%" PRIu64, i == 0 ? "" : ",", numbers[i]);
    mc_buffer_printf(&json, "]}}");
    int rc = mc_ask_peer_address(peer->engine, peer->name, deadline_ns, address, sizeof(address));
    if (rc == 0)
        rc = mc_ask(peer->engine, address, MC_HANDSHAKE_CONNECTION, mc_span(json.data, json.length), deadline_ns,
                    &reply);
    snprintf(expected, sizeof(expected), "%016" PRIx64 "%016" PRIx64, id.high, id.low);
    if (rc == 0 && (mc_json_find(mc_span(reply.data, reply.length), "mooncake_c.cut", &who) != 1 ||
                    !mc_span_equal(who, mc_span_string(expected))))
        rc = MC_TRANSFER_ERR_REJECT_HANDSHAKE; /* another process */
    mc_buffer_free(&json);
    mc_buffer_free(&reply);
    return rc;
}

/* Also when it was another thread that found it out. */
static bool is_another(struct mc_peer *peer, uint32_t incarnation)
{
    pthread_mutex_lock(&peer->lock);
    bool is_another = peer->incarnation != incarnation;
    pthread_mutex_unlock(&peer->lock);
    return is_another;
}

/* 0: they are cut. 1: another process has the name. */
int mc_settle_cut(struct mc_peer *peer, const uint64_t *numbers, size_t count, uint64_t deadline_ns)
{
    pthread_mutex_lock(&peer->lock);
    struct mc_id id = peer->document.id;
    uint32_t incarnation = peer->incarnation;
    bool can_cut = peer->document.can_cut && count > 0 && numbers[0] != 0;
    pthread_mutex_unlock(&peer->lock);
    int rc = can_cut ? ask(peer, numbers, count, id, deadline_ns) : MC_TRANSFER_ERR_NOT_IMPLEMENTED;
    if (rc == 0)
        return 0;
    if (peer->engine->is_closing)
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    int refreshed = mc_peer_refresh(peer, deadline_ns);
    if (is_another(peer, incarnation))
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
}

static int settle_tcp(struct mc_peer *peer, uint64_t deadline_ns)
{
    uint64_t numbers[MC_SETTLE_NUMBERS_MAX];
    for (;;) {
        pthread_mutex_lock(&peer->lock);
        uint32_t count = peer->uncut_count;
        uint64_t end = peer->uncut_first + count;
        if (count > 0)
            memcpy(numbers, peer->uncut, count * sizeof(*numbers));
        pthread_mutex_unlock(&peer->lock);
        if (count == 0)
            return 0;
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
