/* RDMA of one engine: its devices and its memory there, and the links to peers. A link is set up and repaired by the
 * calling thread that wants it, within a bound; nobody else's transfer waits for that. */
#include "transfer/peer/ask.h"
#include "transfer/peer/peer.h"
#include "transfer/peer/rdma_lane.h"
#include "transfer/peer/settle.h"
#include "transfer/state/engine.h"
#include "transfer/state/region.h"
#include "transfer/wire/handshake.h"

#include "base/error.h"
#include "env/clock.h"
#include "env/json.h"
#include "env/log.h"
#include "env/thread.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define SETUP_MS 2000u    /* for a link to be made */
#define REPAIR_MS 200u    /* for pairs of a link that works without them */
#define REPAIR_WAIT_MS 1u /* at once: the peer goes on by itself, and says later what came of it */
#define ASK_AGAIN_MS 20u
#define ASK_LEAST_MS 200u   /* with less left it is not asked again: an answer that comes late costs the link */
#define OPEN_PAUSE_MS 1000u /* after a link that could not be set up, while there are others */
#define PAUSE_MS 1000u      /* after a failure; doubling */
#define PAUSE_MAX_MS 30000u
#define HEAR_MAX 3u /* reads for what is said unasked; others wait meanwhile */
#define END_MS 500u /* for the end of a connection to come by itself, before the peer is asked */
#define PACKET_LIFE_MS 120000u

/* ---- devices and memory ---- */

static void fd_opened(void *context, int fd)
{
    (void)context;
    mc_transfer_note_fd(fd);
}
static void fd_closing(void *context, int fd)
{
    (void)context;
    mc_transfer_forget_fd(fd);
}

const struct mc_verbs *mc_transfer_verbs;

int mc_rdma_start(const char *device_name, const char *matrix, struct mc_rdma **rdma)
{
    struct mc_rdma_options options = {.verbs = mc_transfer_verbs,
                                      .filter = device_name,
                                      .matrix = matrix,
                                      .fd_opened = fd_opened,
                                      .fd_closing = fd_closing};
    return mc_rdma_open(&options, rdma);
}

/* Where the memory lies, for the topology: what is said, else the GPU, else where its pages are found. */
static void locate(struct mc_rdma_range *range, struct mc_gpu_place place, const char *location, char *gpu,
                   size_t gpu_size, char *bus_id, size_t bus_id_size)
{
    bool is_said = location[0] != 0 && strcmp(location, "*") != 0;
    range->numa_node = is_said || range->is_gpu ? -1 : MC_RDMA_NODE_SOUGHT;
    range->location = is_said ? location : NULL;
    if (!range->is_gpu)
        return;
    snprintf(gpu, gpu_size, "cuda:%d", place.number);
    if (is_said && strcmp(location, gpu) != 0)
        return;
    range->location = gpu;
    if (mc_gpu_pci_address(place.number, bus_id, bus_id_size) == 0)
        range->bus_id = bus_id;
}

struct mc_rdma_memory *mc_rdma_take_in(struct mc_rdma *rdma, uint64_t address, uint64_t length,
                                       struct mc_gpu_place place, const char *location)
{
    struct mc_rdma_memory *memory = NULL;
    char gpu[MC_REGION_LOCATION_MAX], bus_id[32];
    bool is_gpu = place.kind == MC_GPU_MEMORY;
    if (place.kind == MC_GPU_MANAGED)
        return NULL; /* it has no place of its own: the driver moves it about */
    uint64_t offset = 0;
    int dmabuf_fd = is_gpu ? mc_gpu_dmabuf((const void *)(uintptr_t)address, length, &offset) : -1;
    if (dmabuf_fd >= 0)
        mc_transfer_note_fd(dmabuf_fd);
    struct mc_rdma_range range = {.address = (void *)(uintptr_t)address,
                                  .length = length,
                                  .is_gpu = is_gpu,
                                  .dmabuf_fd = dmabuf_fd,
                                  .dmabuf_offset = offset,
                                  .is_remote_readable = true,
                                  .is_remote_writable = true};
    locate(&range, place, location, gpu, sizeof(gpu), bus_id, sizeof(bus_id));
    int rc = mc_rdma_memory_register(rdma, &range, &memory);
    if (range.dmabuf_fd >= 0)
        mc_transfer_close_fd(range.dmabuf_fd);
    if (rc == 0)
        return memory;
    mc_log_limited(WARNING, "%llu bytes at 0x%llx cannot be registered for RDMA (%s): they are reached by tcp",
                   (unsigned long long)length, (unsigned long long)address, mc_error_name(rc));
    return NULL;
}

/* ---- making a link ---- */

static void lane_free(struct mc_rdma_lane *lane)
{
    if (lane->engine != NULL) /* it was ready once */
        lane->engine->lane_count--;
    mc_rdma_link_close(lane->link);
    mc_transfer_close_fd(lane->fd);
    free(lane);
}

void mc_rdma_lanes_free(struct mc_rdma_lane *lanes)
{
    while (lanes != NULL) {
        struct mc_rdma_lane *next = lanes->next;
        lane_free(lanes);
        lanes = next;
    }
}

/* Nothing is said there unasked but that the peer is leaving, and the end. */
bool mc_rdma_lane_has_ended(struct mc_rdma_lane *lane)
{
    char thrown_away[512];
    for (unsigned i = 0; i < HEAR_MAX; i++) {
        ssize_t got = mc_socket_recv(lane->fd, thrown_away, sizeof(thrown_away));
        lane->is_leaving |= got > 0;
        if (got > 0 || (got < 0 && errno == EINTR))
            continue;
        /* The error of our own kernel is said once; what is read after it is an end that the peer has not sent. */
        lane->is_given_up |= got < 0 && errno != EAGAIN && errno != ECONNRESET && errno != EPIPE;
        return got == 0 || errno != EAGAIN;
    }
    return true; /* whoever says so much is not what it should be */
}

/* One round of offer and answer, if one is due. Pairs that are ready, or negative. */
static int negotiate(struct mc_transfer_engine *engine, const struct mc_rdma_lane *lane, uint64_t wait_ms,
                     uint64_t deadline_ns)
{
    struct mc_buffer offer = {0}, json = {0}, reply = {0};
    struct mc_span answer = {NULL, 0}, who, leaving;
    char owner[40];
    snprintf(owner, sizeof(owner), "%016" PRIx64 "%016" PRIx64, lane->owner.high, lane->owner.low);
    int rc = mc_rdma_link_offer(lane->link, wait_ms, &offer);
    if (rc == 0)
        rc = (int)mc_rdma_link_ready(lane->link);
    else if (rc == 1) {
        mc_buffer_printf(&json, "{\"mooncake_c\":{\"rdma\":%.*s,\"lane\":%" PRIu64 ",\"hears\":true}}",
                         (int)offer.length, offer.data, lane->number);
        rc = mc_ask_on(engine, lane->fd, MC_HANDSHAKE_CONNECTION, mc_span(json.data, json.length), deadline_ns, &reply);
        if (rc == 0 && mc_json_find(mc_span(reply.data, reply.length), "mooncake_c.rdma", &answer) != 1)
            answer = mc_span(NULL, 0);
        if (rc == 0 && mc_json_find(mc_span(reply.data, reply.length), "mooncake_c.leaving", &leaving) == 1)
            rc = MC_TRANSFER_ERR_REJECT_HANDSHAKE; /* the answer comes behind that */
        /* The keys that we know are of one process: no other one's memory may be written with them. */
        if (rc == 0 && mc_json_find(mc_span(reply.data, reply.length), "mooncake_c.id", &who) == 1 &&
            !mc_span_equal(who, mc_span_string(owner)))
            answer = mc_span(NULL, 0);
        int ready = mc_rdma_link_complete(lane->link, answer, deadline_ns);
        rc = rc < 0 ? rc : ready;
    }
    mc_buffer_free(&offer);
    mc_buffer_free(&json);
    mc_buffer_free(&reply);
    return rc;
}

/* Asks until some pairs stand, or it is certain that none will. Those; 0: it is not by the deadline, and may be asked
 * again; or negative. */
static int negotiate_all(struct mc_transfer_engine *engine, const struct mc_rdma_lane *lane, uint64_t deadline_ns)
{
    for (;;) {
        uint64_t now_ns = mc_clock_ns(), left_ms = deadline_ns > now_ns ? (deadline_ns - now_ns) / 1000000u : 0;
        int rc = negotiate(engine, lane, left_ms - left_ms / 4 + 1, deadline_ns); /* the answer has a way to go */
        if (rc != 0 || left_ms <= ASK_LEAST_MS || engine->is_closing)
            return rc;
        (void)poll(NULL, 0, ASK_AGAIN_MS);
    }
}

/* 0; 1: there is a link, but none of its pairs stands yet; or negative. A link to another process than the one of that
 * incarnation is none: the keys that the caller has are the former's. */
static int lane_open(struct mc_peer *peer, uint32_t incarnation, const struct mc_rdma_remote *remote,
                     uint64_t deadline_ns, struct mc_rdma_lane **out)
{
    struct mc_rdma_link_options options = {.devices = remote->devices, .device_count = remote->device_count};
    struct mc_rdma_lane *lane = calloc(1, sizeof(*lane));
    char address[MC_ADDRESS_MAX];
    if (lane == NULL)
        return MC_ERR_NO_MEMORY;
    int rc = mc_ask_peer_address(peer->engine, peer->name, deadline_ns, address, sizeof(address));
    lane->fd = rc < 0 ? -1 : mc_tcp_connect(address, deadline_ns);
    if (lane->fd < 0) {
        free(lane);
        return MC_TRANSFER_ERR_SOCKET;
    }
    mc_transfer_note_fd(lane->fd);
    rc = mc_ask_prove(peer->engine, lane->fd, MC_PREFACE_HANDSHAKE, address, deadline_ns);
    pthread_mutex_lock(&peer->lock);
    lane->owner = peer->document.id;
    lane->number = peer->document.can_cut ? mc_settle_number() : 0;
    lane->incarnation = incarnation;
    bool is_former = peer->incarnation != incarnation;
    pthread_mutex_unlock(&peer->lock);
    if (rc == 0)
        rc =
            is_former ? MC_TRANSFER_ERR_REJECT_HANDSHAKE : mc_rdma_link_open(peer->engine->rdma, &options, &lane->link);
    if (rc == 0) {
        rc = negotiate_all(peer->engine, lane, deadline_ns);
        if (rc >= 0) {
            lane->engine = peer->engine;
            lane->engine->lane_count++;
            *out = lane;
            return rc > 0 ? 0 : 1;
        }
        mc_rdma_link_close(lane->link);
    }
    mc_transfer_close_fd(lane->fd);
    free(lane);
    return rc < 0 ? rc : MC_ERR_TRANSFER_FAIL;
}

enum fitness { FIT, NOT_YET, USELESS };

/* Pairs that are down, while others stand, are tried again now and then. */
static enum fitness lane_look(struct mc_transfer_engine *engine, struct mc_rdma_lane *lane, uint64_t deadline_ns)
{
    uint64_t now_ns = mc_clock_ns(), until_ns = now_ns + REPAIR_MS * 1000000ull;
    if (mc_rdma_lane_has_ended(lane) || lane->is_leaving)
        return USELESS;
    uint64_t due_ns = mc_rdma_link_due_ns(lane->link);
    if (due_ns > now_ns && mc_rdma_link_ready(lane->link) > 0)
        return FIT;
    if (due_ns > now_ns)
        return lane->is_pending ? NOT_YET : USELESS;
    int rc = negotiate(engine, lane, REPAIR_WAIT_MS, until_ns < deadline_ns ? until_ns : deadline_ns);
    /* An answer that did not come may come yet, and would be taken for the next one's. */
    if (rc == MC_TRANSFER_ERR_SOCKET || rc == MC_TRANSFER_ERR_REJECT_HANDSHAKE)
        return USELESS;
    return mc_rdma_link_ready(lane->link) > 0 ? FIT : rc == 0 ? NOT_YET : USELESS;
}

void mc_rdma_pause(struct mc_peer *peer, const char *why)
{
    pthread_mutex_lock(&peer->lock);
    peer->rdma_pause_ms = peer->rdma_pause_ms == 0                 ? PAUSE_MS
                          : peer->rdma_pause_ms * 2 > PAUSE_MAX_MS ? PAUSE_MAX_MS
                                                                   : peer->rdma_pause_ms * 2;
    uint32_t pause_ms = peer->rdma_pause_ms;
    bool is_first = pause_ms == PAUSE_MS;
    peer->rdma_retry_ms = mc_clock_ms() + pause_ms;
    pthread_cond_broadcast(&peer->rdma_given); /* nobody waits for a link meanwhile */
    pthread_mutex_unlock(&peer->lock);
    peer->engine->count.fallbacks++;
    if (is_first)
        mc_log(WARNING, "RDMA to %s: %s; tcp is used, and RDMA is tried again from time to time", peer->name, why);
}

/* ---- borrowing ---- */

struct link_wish { /* of a call for a link */
    uint64_t until_ns;
    uint64_t open_ms; /* peer->rdma_open_ms at the beginning: it changes when a link cannot be opened */
    bool has_failed;
};

/* The peer's lock is held. Once a link could not be opened the call opens no other, and tcp carries it before long. */
static void look_for_failures(const struct mc_peer *peer, struct link_wish *wish, uint64_t now_ns)
{
    uint64_t until_ns = now_ns + OPEN_PAUSE_MS * 1000000ull;
    if (wish->has_failed || peer->rdma_open_ms == wish->open_ms)
        return;
    wish->has_failed = true;
    wish->until_ns = until_ns < wish->until_ns ? until_ns : wish->until_ns;
}

/* The peer's lock is held. The first that rests and can be of use now. Those that wait for the peer come last, and only
 * if there are no others: then *are_out is false. */
static struct mc_rdma_lane *take_idle(struct mc_peer *peer, uint64_t now_ns, bool *are_out)
{
    uint32_t waiting = 0;
    struct mc_rdma_lane **at = &peer->rdma_idle;
    while (*at != NULL && (*at)->is_pending && mc_rdma_link_ready((*at)->link) == 0 &&
           mc_rdma_link_due_ns((*at)->link) > now_ns) {
        waiting++;
        at = &(*at)->next;
    }
    *are_out = peer->rdma_lanes > waiting;
    if (*at == NULL && !*are_out)
        at = &peer->rdma_idle;
    struct mc_rdma_lane *lane = *at;
    if (lane != NULL)
        *at = lane->next;
    return lane;
}

/* With the peer's lock, which is let go while waiting. NULL and *may_open: there may be one more. */
static struct mc_rdma_lane *wait_for_one(struct mc_peer *peer, struct link_wish *wish, bool *may_open)
{
    for (;;) {
        bool are_out;
        uint64_t now_ns = mc_clock_ns(), now_ms = mc_clock_ms();
        look_for_failures(peer, wish, now_ns);
        uint64_t until_ns = wish->until_ns;
        *may_open = false;
        if (now_ms < peer->rdma_retry_ms)
            return NULL;
        struct mc_rdma_lane *lane = take_idle(peer, now_ns, &are_out);
        if (lane != NULL)
            return lane;
        *may_open = !wish->has_failed && peer->rdma_idle == NULL && peer->rdma_lanes < MC_PEER_RDMA_LANES_MAX &&
                    (peer->rdma_lanes == 0 || now_ms >= peer->rdma_open_ms);
        if (*may_open || now_ns >= wish->until_ns || peer->rdma_lanes == 0)
            return NULL;
        uint64_t look_ns = UINT64_MAX;
        if (peer->rdma_idle != NULL) /* one that waits for the peer: it may have become due, or ready */
            look_ns = now_ns + ASK_AGAIN_MS * 1000000u;
        else if (!wish->has_failed && peer->rdma_lanes < MC_PEER_RDMA_LANES_MAX)
            look_ns = now_ns + (peer->rdma_open_ms - now_ms) * 1000000u; /* then it opens one */
        until_ns = look_ns < until_ns ? look_ns : until_ns;
        (void)mc_monitor_wait(&peer->lock, &peer->rdma_given, until_ns);
    }
}

/* How many links there are besides. */
static uint32_t count_out(struct mc_peer *peer)
{
    pthread_mutex_lock(&peer->lock);
    uint32_t others = --peer->rdma_lanes;
    pthread_cond_signal(&peer->rdma_given);
    pthread_mutex_unlock(&peer->lock);
    return others;
}

/* Behind those that stand: it is asked about when a call finds no other. */
static void give_pending(struct mc_peer *peer, struct mc_rdma_lane *lane)
{
    lane->is_pending = true;
    lane->used_ms = mc_clock_ms();
    lane->next = NULL;
    pthread_mutex_lock(&peer->lock);
    struct mc_rdma_lane **at = &peer->rdma_idle;
    while (*at != NULL)
        at = &(*at)->next;
    *at = lane;
    pthread_cond_signal(&peer->rdma_given);
    pthread_mutex_unlock(&peer->lock);
    peer->engine->count.fallbacks++;
}

static bool has_changed(struct mc_peer *peer, uint32_t incarnation)
{
    pthread_mutex_lock(&peer->lock);
    bool has_changed = peer->incarnation != incarnation;
    pthread_mutex_unlock(&peer->lock);
    return has_changed;
}

/* A new one could not be set up. True: the others carry on, and none is opened for a while. */
static bool others_carry(struct mc_peer *peer)
{
    uint32_t others = count_out(peer);
    pthread_mutex_lock(&peer->lock);
    peer->rdma_open_ms = mc_clock_ms() + OPEN_PAUSE_MS;
    pthread_mutex_unlock(&peer->lock);
    return others > 0;
}

/* One that rests. 0: it can be used; 1: not by this path now; 2: it was of no use. */
static int lane_reuse(struct mc_peer *peer, struct mc_rdma_lane *lane, uint64_t deadline_ns, struct mc_rdma_lane **out)
{
    switch (lane_look(peer->engine, lane, deadline_ns)) {
    case FIT:
        lane->is_pending = false;
        *out = lane;
        return 0;
    case NOT_YET:
        give_pending(peer, lane);
        return 1;
    default:
        if (!lane->is_pending) {
            mc_rdma_lane_end(peer, lane, false);
            return 2;
        }
        lane_free(lane);
        if (others_carry(peer))
            return 2;
        mc_rdma_pause(peer, "no queue pair could be set up");
        return 1;
    }
}

int mc_rdma_lane_take(struct mc_peer *peer, const struct mc_rdma_remote *remote, uint64_t deadline_ns,
                      struct mc_rdma_lane **out)
{
    struct link_wish wish = {.until_ns = deadline_ns};
    for (bool is_first = true;; is_first = false) {
        bool may_open = false;
        pthread_mutex_lock(&peer->lock);
        wish.open_ms = is_first ? peer->rdma_open_ms : wish.open_ms;
        uint32_t incarnation = peer->incarnation;
        struct mc_rdma_lane *lane = wait_for_one(peer, &wish, &may_open);
        peer->rdma_lanes += lane == NULL && may_open;
        pthread_mutex_unlock(&peer->lock);
        if (lane == NULL && !may_open)
            return 1;
        if (lane != NULL) {
            int used = lane_reuse(peer, lane, deadline_ns, out);
            if (used == 2)
                continue;
            return used;
        }
        uint64_t until_ns = mc_clock_ns() + SETUP_MS * 1000000ull;
        int rc = lane_open(peer, incarnation, remote, until_ns < deadline_ns ? until_ns : deadline_ns, out);
        if (rc == 1)
            give_pending(peer, *out);
        if (rc >= 0)
            return rc;
        if (has_changed(peer, incarnation)) { /* who has the name now is not paused for it */
            (void)count_out(peer);
            return 1;
        }
        if (others_carry(peer))
            continue;
        mc_rdma_pause(peer, rc == MC_ERR_NOT_SUPPORTED ? "no device of ours fits one of the peer's"
                                                       : "no queue pair could be set up");
        return 1;
    }
}

void mc_rdma_lane_give(struct mc_peer *peer, struct mc_rdma_lane *lane)
{
    lane->used_ms = mc_clock_ms();
    pthread_mutex_lock(&peer->lock);
    peer->rdma_pause_ms = 0;
    bool is_kept = lane->incarnation == peer->incarnation && !lane->is_leaving;
    if (is_kept) {
        lane->next = peer->rdma_idle;
        peer->rdma_idle = lane;
    } else {
        peer->rdma_lanes--;
    }
    pthread_cond_signal(&peer->rdma_given);
    pthread_mutex_unlock(&peer->lock);
    if (!is_kept)
        lane_free(lane); /* to a process that had the name before */
}

void mc_rdma_lanes_idle(struct mc_peer *peer, uint64_t idle_ms, struct mc_rdma_lane **useless)
{
    uint64_t now_ms = mc_clock_ms();
    for (struct mc_rdma_lane **at = &peer->rdma_idle; *at != NULL;) {
        struct mc_rdma_lane *lane = *at;
        if (idle_ms > 0 && now_ms - lane->used_ms < idle_ms && !mc_rdma_lane_has_ended(lane) && !lane->is_leaving) {
            at = &lane->next;
            continue;
        }
        *at = lane->next;
        peer->rdma_lanes--;
        lane->next = *useless;
        *useless = lane;
    }
}

/* ---- the end of a link ---- */

void mc_rdma_lane_end(struct mc_peer *peer, struct mc_rdma_lane *lane, bool is_unsure)
{
    if (is_unsure) {
        /* The peer closes its half when it reads our end, and only then its end of the connection. */
        (void)shutdown(lane->fd, SHUT_WR);
        lane->cut_ms = mc_clock_ms();
        pthread_mutex_lock(&peer->lock);
        lane->next = peer->rdma_uncut;
        peer->rdma_uncut = lane;
        pthread_mutex_unlock(&peer->lock);
    } else {
        lane_free(lane);
    }
    (void)count_out(peer);
}

/* Reads until the peer's end. A reset comes from a peer that has no such connection any more: its half is gone, too. A
 * connection that our own kernel gave up proves nothing, and ends for us without the peer's word. With TLS its records
 * are not looked into: the end is the connection's. */
static bool is_cut(struct mc_rdma_lane *lane, uint64_t deadline_ns, const _Atomic bool *stop)
{
    char thrown_away[256];
    while (!lane->is_given_up) {
        ssize_t got = recv(lane->fd, thrown_away, sizeof(thrown_away), MSG_DONTWAIT);
        if (got == 0 || (got < 0 && (errno == ECONNRESET || errno == EPIPE)))
            return true;
        if (got > 0 || errno == EINTR)
            continue;
        uint64_t now_ns = mc_clock_ns();
        lane->is_given_up = errno != EAGAIN;
        if (lane->is_given_up || now_ns >= deadline_ns || *stop)
            return false;
        struct pollfd looked = {.fd = lane->fd, .events = POLLIN};
        (void)poll(&looked, 1,
                   (int)((deadline_ns - now_ns) / 1000000 < 100 ? (deadline_ns - now_ns) / 1000000 + 1 : 100));
    }
    return false;
}

/* The peer's end of the connection proves it; so does its word that the link is cut; that another process has the name,
 * as the former's memory is no matter; and time: our queue pairs are gone, and no packet lives for two minutes. */
static bool is_over(struct mc_peer *peer, struct mc_rdma_lane *lane, uint64_t deadline_ns)
{
    uint64_t now_ns = mc_clock_ns(), until_ns = now_ns + END_MS * 1000000ull;
    bool is_late = deadline_ns <= until_ns;
    if (is_cut(lane, is_late ? deadline_ns : until_ns, &peer->engine->is_closing) ||
        mc_clock_ms() - lane->cut_ms >= PACKET_LIFE_MS)
        return true;
    if (is_late || peer->engine->is_closing)
        return false;
    if (mc_settle_cut(peer, &lane->number, 1, deadline_ns) >= 0)
        return true;
    if (lane->is_given_up)
        (void)poll(NULL, 0, 100); /* nothing else takes time */
    return false;
}

void mc_rdma_lanes_uncut(struct mc_peer *peer, struct mc_rdma_lane **useless)
{
    while (peer->rdma_uncut != NULL) {
        struct mc_rdma_lane *lane = peer->rdma_uncut;
        peer->rdma_uncut = lane->next;
        lane->next = *useless;
        *useless = lane;
    }
}

int mc_rdma_settle(struct mc_peer *peer, uint64_t deadline_ns)
{
    int rc = 0;
    pthread_mutex_lock(&peer->lock);
    while (rc == 0 && (peer->rdma_uncut != NULL || peer->rdma_settling > 0)) {
        struct mc_rdma_lane *lane = peer->rdma_uncut;
        if (lane == NULL) { /* others wait for the last of them */
            if (mc_monitor_wait(&peer->lock, &peer->rdma_settled, deadline_ns) == ETIMEDOUT)
                rc = MC_TRANSFER_ERR_TIMEOUT;
            continue;
        }
        peer->rdma_uncut = lane->next;
        peer->rdma_settling++;
        pthread_mutex_unlock(&peer->lock);
        bool is_settled = is_over(peer, lane, deadline_ns);
        if (is_settled)
            lane_free(lane);
        pthread_mutex_lock(&peer->lock);
        peer->rdma_settling--;
        if (!is_settled) {
            lane->next = peer->rdma_uncut;
            peer->rdma_uncut = lane;
            if (mc_clock_ns() >= deadline_ns || peer->engine->is_closing)
                rc = MC_TRANSFER_ERR_TIMEOUT;
        }
        pthread_cond_broadcast(&peer->rdma_settled);
    }
    pthread_mutex_unlock(&peer->lock);
    return rc;
}
