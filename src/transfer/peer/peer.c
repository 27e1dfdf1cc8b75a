/* Peers: what is known of them, and the connections kept open to them. */
#include "transfer/peer/ask.h"
#include "transfer/peer/host_path.h"
#include "transfer/peer/peer.h"
#include "transfer/peer/rdma_lane.h"
#include "transfer/peer/settle.h"
#include "transfer/state/engine.h"
#include "transfer/state/metrics.h"
#include "transfer/wire/document.h"
#include "transfer/wire/metadata.h"
#include "transfer/wire/tcp_wire.h"

#include "base/checksum.h"
#include "base/error.h"
#include "env/clock.h"
#include "env/log.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#define LANE_IDLE_MS 120000u
#define PEER_IDLE_MS 600000u
#define PEER_BARE_MS 5000u     /* without lanes and path: its document is not trusted any more */
#define PEER_KNOWN_MS 3600000u /* who submits to it asks nobody */
#define PEERS_KEPT_MAX 4096u   /* for so long; with more of them a bare one goes at once */
#define UNCUT_IDLE_MS 3600000u /* a write that it may still hold must not be forgotten before */
#define TIDY_BUCKETS 64u       /* of a turn */
#define HEAR_BUCKETS 64u       /* under one hold of the lock */
#define ENDED_AT_ONCE 8u       /* links, in a turn */

/* ---- lanes ---- */

/* The address may be another engine's by now, which hangs up then. id zero: the peer does not know the word. */
static int say_who(int fd, struct mc_id id)
{
    const struct mc_tcp_header who = {.length = id.high, .address = id.low, .opcode = MC_TCP_WHO};
    return mc_id_is_zero(id) || mc_socket_send_small(fd, &who, sizeof(who)) == 1 ? 0 : MC_TRANSFER_ERR_SOCKET;
}

void mc_lane_abort(struct mc_lane *lane)
{
    mc_transfer_reset_fd(lane->fd);
    free(lane);
}

static void close_lanes(struct mc_lane *lane)
{
    while (lane != NULL) {
        struct mc_lane *next = lane->next;
        mc_transfer_close_fd(lane->fd);
        free(lane);
        lane = next;
    }
}

static struct mc_lane *take_idle(struct mc_peer *peer)
{
    struct mc_lane *all = peer->idle;
    peer->idle = NULL;
    peer->idle_count = 0;
    return all;
}

void mc_peer_drop_lanes(struct mc_peer *peer)
{
    pthread_mutex_lock(&peer->lock);
    struct mc_lane *all = take_idle(peer);
    pthread_mutex_unlock(&peer->lock);
    close_lanes(all);
}

int mc_peer_take_lane(struct mc_peer *peer, uint64_t deadline_ns, struct mc_lane **out)
{
    char address[sizeof(peer->data_address)];
    pthread_mutex_lock(&peer->lock);
    struct mc_lane *lane = peer->idle;
    if (lane != NULL) {
        peer->idle = lane->next;
        peer->idle_count--;
    }
    memcpy(address, peer->data_address, sizeof(address));
    uint32_t incarnation = peer->incarnation;
    bool can_cut = peer->document.can_cut;
    struct mc_id meant = peer->document.can_mean ? peer->document.id : (struct mc_id){0};
    pthread_mutex_unlock(&peer->lock);
    if (lane == NULL) {
        uint64_t connect_ns = mc_clock_ns() + peer->engine->settings.handshake_connect_ms * 1000000ull;
        int fd = mc_tcp_connect(address, connect_ns < deadline_ns ? connect_ns : deadline_ns);
        lane = fd < 0 ? NULL : calloc(1, sizeof(*lane));
        if (lane == NULL) {
            mc_fd_close(fd);
            return MC_TRANSFER_ERR_SOCKET;
        }
        lane->fd = fd;
        lane->incarnation = incarnation;
        lane->number = can_cut ? mc_settle_number() : 0;
        mc_transfer_note_fd(fd);
        int rc = mc_ask_prove(peer->engine, fd, MC_PREFACE_DATA, address,
                              connect_ns < deadline_ns ? connect_ns : deadline_ns);
        if (rc == 0)
            rc = say_who(fd, meant);
        if (rc < 0) {
            mc_lane_abort(lane);
            return rc;
        }
    }
    lane->next = NULL;
    *out = lane;
    return 0;
}

void mc_peer_give_lane(struct mc_peer *peer, struct mc_lane *lane)
{
    lane->used_ms = mc_clock_ms();
    pthread_mutex_lock(&peer->lock);
    bool keep =
        peer->idle_count < MC_PEER_LANES_MAX && lane->incarnation == peer->incarnation && !peer->engine->is_closing;
    if (keep) {
        lane->next = peer->idle;
        peer->idle = lane;
        peer->idle_count++;
    }
    pthread_mutex_unlock(&peer->lock);
    if (!keep) {
        lane->next = NULL;
        close_lanes(lane);
    }
}

/* ---- documents ---- */

static bool is_unusable(const char *host)
{
    return host[0] == 0 || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
}

/* Where its data goes: the host that it names, else the one that answered, else what stands at the metadata server. */
static int data_address(struct mc_peer *peer, const struct mc_document *document, const char *asked,
                        uint64_t deadline_ns, char *address, size_t size)
{
    char host[MC_ADDRESS_MAX], other[MC_ADDRESS_MAX];
    uint16_t port = 0;
    int rc = 0;
    if (!document->is_tcp || document->data_port == 0) {
        mc_log_limited(ERROR, "%s speaks no tcp, and nothing else is there yet", peer->name);
        return MC_TRANSFER_ERR_NOT_IMPLEMENTED;
    }
    snprintf(host, sizeof(host), "%s", document->data_host);
    if (is_unusable(host)) {
        snprintf(other, sizeof(other), "%s", asked);
        if (other[0] == 0)
            rc = mc_ask_address(peer->engine, peer->name, deadline_ns, other, sizeof(other));
        if (rc == 0 && mc_address_split(other, host, sizeof(host), &port) < 0)
            rc = MC_TRANSFER_ERR_SOCKET;
    }
    if (rc == 0)
        mc_address_join(address, size, host, document->data_port);
    return rc;
}

/* Where its handshakes go, for when the metadata server cannot be asked; "": it has not said. */
static void handshake_address(const struct mc_peer *peer, const struct mc_document *document, const char *asked,
                              uint64_t deadline_ns, char *address, size_t size)
{
    address[0] = 0;
    if (peer->engine->metadata.is_p2p)
        return;
    if (asked[0] != 0)
        snprintf(address, size, "%s", asked);
    else if (document->rpc_port != 0 && !is_unusable(document->data_host) &&
             strlen(document->data_host) < sizeof(document->data_host) - 16)
        mc_address_join(address, size, document->data_host, document->rpc_port);
    else if (mc_ask_address(peer->engine, peer->name, deadline_ns, address, size) < 0)
        address[0] = 0;
}

int mc_peer_refresh(struct mc_peer *peer, uint64_t deadline_ns)
{
    char asked[MC_ADDRESS_MAX], address[sizeof(peer->data_address)], handshakes[sizeof(peer->handshake_address)];
    struct mc_document document;
    struct mc_lane *dropped = NULL;
    int rc = mc_ask_document(peer->engine, peer->name, deadline_ns, &document, asked, sizeof(asked));
    if (rc == 0)
        rc = data_address(peer, &document, asked, deadline_ns, address, sizeof(address));
    if (rc == 0)
        handshake_address(peer, &document, asked, deadline_ns, handshakes, sizeof(handshakes));
    pthread_mutex_lock(&peer->lock);
    peer->is_doubtful = rc < 0;
    if (rc < 0) {
        pthread_mutex_unlock(&peer->lock);
        mc_document_free(&document);
        return rc;
    }
    bool was_known = peer->data_address[0] != 0; /* also of one that was forgotten since */
    bool is_other =
        was_known && (strcmp(address, peer->data_address) != 0 || !mc_id_equal(document.id, peer->document.id) ||
                      document.data_version != peer->document.data_version);
    struct mc_rdma_remote *old = peer->remote;
    struct mc_rdma_lane *links = NULL;
    peer->remote = mc_rdma_remote_hold(document.remote);
    peer->remote_ms = mc_clock_ms();
    if (is_other) {
        peer->incarnation++;
        mc_settle_forget(peer);
        mc_rdma_lanes_idle(peer, 0, &links);
        mc_rdma_lanes_uncut(peer, &links);
        peer->rdma_retry_ms = 0;
        peer->remote_wait_ms = 0;
        dropped = take_idle(peer);
        mc_host_path_drop(peer);
        peer->host_retry_ms = 0;
    }
    peer->first_address = document.buffer_count > 0 ? document.buffers[0].address : 0;
    mc_document_free(&document); /* its buffers and what RDMA reaches; the rest is kept */
    peer->document = document;
    memcpy(peer->data_address, address, sizeof(address));
    memcpy(peer->handshake_address, handshakes, sizeof(handshakes));
    peer->is_near = strncmp(address, "127.", 4) == 0 || strncmp(address, "[::1]", 5) == 0 ||
                    mc_id_equal(document.host, peer->engine->host_id);
    peer->is_known = true;
    pthread_mutex_unlock(&peer->lock);
    mc_rdma_remote_release(old);
    mc_rdma_lanes_free(links);
    close_lanes(dropped);
    return is_other;
}

/* ---- the table ---- */

static struct mc_peer **bucket_of(struct mc_transfer_engine *engine, const char *name)
{
    return &engine->peers[mc_hash(name, strlen(name)).low % MC_PEER_BUCKETS];
}

static void peer_free(struct mc_peer *peer)
{
    struct mc_rdma_lane *links = NULL;
    mc_rdma_lanes_idle(peer, 0, &links);
    close_lanes(take_idle(peer));
    mc_host_path_drop(peer);
    mc_rdma_lanes_free(links);
    mc_rdma_lanes_free(peer->rdma_uncut);
    mc_settle_forget(peer);
    free(peer->uncut);
    mc_rdma_remote_release(peer->remote);
    pthread_cond_destroy(&peer->rdma_settled);
    mc_monitor_destroy(&peer->lock, &peer->rdma_given);
    free(peer);
}

static bool is_bare(const struct mc_peer *peer)
{
    return peer->idle == NULL && peer->host == NULL && peer->rdma_idle == NULL && peer->rdma_uncut == NULL;
}

/* While the server is away nobody could tell us of it again. */
static bool is_needed(const struct mc_peer *peer)
{
    const struct mc_metadata *metadata = &peer->engine->metadata;
    bool was_found = peer->is_known || peer->handshake_address[0] != 0;
    return was_found && !metadata->is_p2p && mc_metadata_is_away(metadata);
}

/* Nobody uses it, and it has not been used for so long; longer, where it has what must not be lost before. engine->lock
 * is held, so nobody begins to. */
static bool is_idle(const struct mc_peer *peer, uint64_t idle_ms, uint64_t now_ms)
{
    if (peer->references > 0) /* then the rest is not ours to read */
        return false;
    if (peer->engine->is_closing)
        return now_ms - peer->used_ms >= idle_ms;
    if (is_needed(peer))
        return false;
    if (idle_ms > 0 && peer->is_known && peer->engine->peer_count <= PEERS_KEPT_MAX)
        idle_ms = PEER_KNOWN_MS;
    else if (idle_ms > PEER_BARE_MS && is_bare(peer))
        idle_ms = PEER_BARE_MS;
    if (peer->rdma_uncut != NULL && idle_ms < PEER_IDLE_MS)
        idle_ms = PEER_IDLE_MS;
    if ((peer->uncut_count > 0 || peer->is_uncut_lost || peer->unended != NULL) && idle_ms < UNCUT_IDLE_MS)
        idle_ms = UNCUT_IDLE_MS;
    return now_ms - peer->used_ms >= idle_ms;
}

/* engine->lock is held. */
static void unlink_one(struct mc_transfer_engine *engine, struct mc_peer **at, struct mc_peer **gone)
{
    struct mc_peer *peer = *at;
    if (peer->tally != NULL)
        mc_metrics_release(&engine->metrics, peer->tally);
    *at = peer->next;
    peer->next = *gone;
    *gone = peer;
    engine->peer_count--;
}

/* Unlinks the idle ones of a bucket. engine->lock is held. */
static void unlink_idle(struct mc_transfer_engine *engine, struct mc_peer **bucket, uint64_t idle_ms,
                        struct mc_peer **gone)
{
    uint64_t now_ms = mc_clock_ms();
    for (struct mc_peer **at = bucket; *at != NULL;) {
        if (is_idle(*at, idle_ms, now_ms))
            unlink_one(engine, at, gone);
        else
            at = &(*at)->next;
    }
}

static void free_list(struct mc_peer *gone)
{
    while (gone != NULL) {
        struct mc_peer *next = gone->next;
        peer_free(gone);
        gone = next;
    }
}

bool mc_peer_is_name(const char *name)
{
    return name != NULL && name[0] != 0 && strlen(name) < MC_DOCUMENT_NAME_MAX;
}

/* engine->lock is held. */
static struct mc_peer *peer_find(struct mc_transfer_engine *engine, const char *name)
{
    struct mc_peer *peer = *bucket_of(engine, name);
    while (peer != NULL && strcmp(peer->name, name) != 0)
        peer = peer->next;
    return peer;
}

/* With a reference; NULL: there is none. Whoever wants the peer's lock, too, waits for it without the engine's. */
static struct mc_peer *find_and_hold(struct mc_transfer_engine *engine, const char *name)
{
    pthread_mutex_lock(&engine->lock);
    struct mc_peer *peer = peer_find(engine, name);
    if (peer != NULL)
        peer->references++;
    pthread_mutex_unlock(&engine->lock);
    return peer;
}

bool mc_peer_remembered(struct mc_transfer_engine *engine, const char *name, char *address, size_t size,
                        struct mc_id *id)
{
    struct mc_peer *peer = find_and_hold(engine, name);
    if (peer == NULL)
        return false;
    pthread_mutex_lock(&peer->lock);
    bool is_there = peer->handshake_address[0] != 0; /* also when the caller has closed the segment */
    if (is_there) {
        snprintf(address, size, "%s", peer->handshake_address);
        *id = peer->document.id;
    }
    pthread_mutex_unlock(&peer->lock);
    mc_peer_release(peer);
    return is_there;
}

static struct mc_peer *find_or_add(struct mc_transfer_engine *engine, const char *name)
{
    struct mc_peer *gone = NULL;
    pthread_mutex_lock(&engine->lock);
    struct mc_peer **bucket = bucket_of(engine, name), *peer = peer_find(engine, name);
    if (peer == NULL && engine->peer_count >= MC_PEERS_MAX)
        for (uint32_t i = 0; i < MC_PEER_BUCKETS; i++)
            unlink_idle(engine, &engine->peers[i], 0, &gone);
    if (peer == NULL && engine->peer_count < MC_PEERS_MAX && (peer = calloc(1, sizeof(*peer))) != NULL) {
        peer->engine = engine;
        snprintf(peer->name, sizeof(peer->name), "%s", name);
        mc_monitor_init(&peer->lock, &peer->rdma_given);
        mc_condition_init(&peer->rdma_settled);
        peer->next = *bucket;
        *bucket = peer;
        engine->peer_count++;
    }
    if (peer != NULL) {
        peer->references++;
        if (peer->tally == NULL)
            peer->tally = mc_metrics_hold(&engine->metrics, name);
    }
    pthread_mutex_unlock(&engine->lock);
    free_list(gone);
    return peer;
}

static int peer_get(struct mc_transfer_engine *engine, const char *name, bool may_be_doubtful, uint64_t deadline_ns,
                    struct mc_peer **out)
{
    if (!mc_peer_is_name(name))
        return MC_TRANSFER_ERR_INVALID_ARGUMENT;
    struct mc_peer *peer = find_or_add(engine, name);
    if (peer == NULL)
        return MC_TRANSFER_ERR_MEMORY;
    pthread_mutex_lock(&peer->lock);
    bool is_enough = peer->is_known && may_be_doubtful;
    pthread_mutex_unlock(&peer->lock);
    int rc = is_enough ? 0 : mc_peer_be_sure(peer, deadline_ns);
    if (rc < 0) {
        mc_peer_release(peer);
        return rc;
    }
    *out = peer;
    return 0;
}

int mc_peer_get(struct mc_transfer_engine *engine, const char *name, uint64_t deadline_ns, struct mc_peer **peer)
{
    return peer_get(engine, name, false, deadline_ns, peer);
}

int mc_peer_get_known(struct mc_transfer_engine *engine, const char *name, uint64_t deadline_ns, struct mc_peer **peer)
{
    return peer_get(engine, name, true, deadline_ns, peer);
}

int mc_peer_be_sure(struct mc_peer *peer, uint64_t deadline_ns)
{
    pthread_mutex_lock(&peer->lock);
    bool is_sure = peer->is_known && !peer->is_doubtful;
    pthread_mutex_unlock(&peer->lock);
    int rc = is_sure ? 0 : mc_peer_refresh(peer, deadline_ns);
    if (rc >= 0)
        return 0;
    mc_tally_fail(peer->tally, MC_METRICS_PATH_NONE, rc);
    return mc_ask_failed(peer->name, rc);
}

void mc_peer_forget(struct mc_transfer_engine *engine, const char *name)
{
    struct mc_peer *peer = find_and_hold(engine, name);
    if (peer == NULL)
        return;
    pthread_mutex_lock(&peer->lock);
    struct mc_lane *lanes = take_idle(peer);
    mc_host_path_drop(peer);
    peer->host_retry_ms = 0;
    peer->is_known = false;
    pthread_mutex_unlock(&peer->lock);
    close_lanes(lanes);
    mc_peer_release(peer);
}

void mc_peer_release(struct mc_peer *peer)
{
    struct mc_transfer_engine *engine = peer->engine;
    struct mc_peer *gone = NULL;
    uint64_t now_ms = mc_clock_ms();
    pthread_mutex_lock(&engine->lock);
    peer->used_ms = now_ms;
    /* What was never reached leaves nothing behind, nor what the caller has closed; but for what still matters. */
    if (--peer->references == 0 && !peer->is_known && is_idle(peer, 0, now_ms)) {
        struct mc_peer **at = bucket_of(engine, peer->name);
        while (*at != peer)
            at = &(*at)->next;
        unlink_one(engine, at, &gone);
    }
    pthread_mutex_unlock(&engine->lock);
    free_list(gone);
}

/* ---- tidying ---- */

/* Puts idle lanes that are old, or whose peer has hung up, before *useless: in the latter case it may be another
 * process that has its ports. */
static void take_useless(struct mc_peer *peer, uint64_t now_ms, struct mc_lane **useless)
{
    for (struct mc_lane **at = &peer->idle; *at != NULL;) {
        struct mc_lane *lane = *at;
        struct pollfd looked = {.fd = lane->fd, .events = POLLIN};
        bool has_ended = poll(&looked, 1, 0) != 0;
        if (now_ms - lane->used_ms < LANE_IDLE_MS && !has_ended) {
            at = &lane->next;
            continue;
        }
        peer->is_doubtful |= has_ended;
        *at = lane->next;
        peer->idle_count--;
        lane->next = *useless;
        *useless = lane;
    }
}

/* Nobody uses it. One without lanes and path is remembered, so that who submits to it need not look it up; but its name
 * may be another process's by now, so it is asked for again before it is used, and what is large of it is not kept.
 * engine->lock is held, and the peer's. */
static void rest(struct mc_peer *peer, uint64_t now_ms, struct mc_rdma_remote **useless)
{
    uint64_t unused_ms = now_ms - peer->used_ms;
    if (unused_ms >= PEER_IDLE_MS)
        mc_host_path_drop(peer);
    if (!peer->is_known || is_needed(peer) || unused_ms < PEER_BARE_MS || !is_bare(peer) || peer->tally == NULL)
        return;
    peer->is_doubtful = true;
    *useless = peer->remote;
    peer->remote = NULL;
    peer->remote_wait_ms = 0;
    peer->rdma_retry_ms = 0;
    peer->rdma_pause_ms = 0;
    peer->host_retry_ms = 0;
    mc_metrics_release(&peer->engine->metrics, peer->tally);
    peer->tally = NULL;
}

/* To end many queue pairs takes a driver long, and the thread has other work: a few links each time. */
static void end_some(struct mc_transfer_engine *engine)
{
    for (uint32_t i = 0; i < ENDED_AT_ONCE && engine->ended != NULL; i++) {
        struct mc_rdma_lane *lane = engine->ended;
        engine->ended = lane->next;
        lane->next = NULL;
        mc_rdma_lanes_free(lane);
    }
}

void mc_peers_hear(struct mc_transfer_engine *engine)
{
    if (engine->lane_count == 0)
        return;
    for (uint32_t from = 0; from < MC_PEER_BUCKETS; from += HEAR_BUCKETS) {
        pthread_mutex_lock(&engine->lock);
        for (uint32_t i = from; i < from + HEAR_BUCKETS && i < MC_PEER_BUCKETS; i++)
            for (struct mc_peer *peer = engine->peers[i]; peer != NULL; peer = peer->next)
                if (pthread_mutex_trylock(&peer->lock) == 0) {
                    mc_rdma_lanes_idle(peer, UINT64_MAX, &engine->ended);
                    pthread_mutex_unlock(&peer->lock);
                }
        pthread_mutex_unlock(&engine->lock);
    }
    end_some(engine);
}

void mc_peers_tidy(struct mc_transfer_engine *engine)
{
    static _Atomic uint32_t turn;
    struct mc_peer *gone = NULL;
    struct mc_lane *lanes = NULL;
    uint64_t now_ms = mc_clock_ms();
    pthread_mutex_lock(&engine->lock);
    for (uint32_t i = 0; i < TIDY_BUCKETS; i++) {
        struct mc_peer **bucket = &engine->peers[atomic_fetch_add(&turn, 1) % MC_PEER_BUCKETS];
        unlink_idle(engine, bucket, PEER_IDLE_MS, &gone);
        for (struct mc_peer *peer = *bucket; peer != NULL; peer = peer->next) {
            struct mc_rdma_remote *remote = NULL;
            if (pthread_mutex_trylock(&peer->lock) != 0)
                continue; /* busy, so not idle; and all other peers would wait with us */
            take_useless(peer, now_ms, &lanes);
            mc_settle_tidy(peer);
            mc_rdma_lanes_idle(peer, LANE_IDLE_MS, &engine->ended);
            peer->is_doubtful |= mc_host_path_tidy(peer);
            if (peer->references == 0)
                rest(peer, now_ms, &remote);
            pthread_mutex_unlock(&peer->lock);
            mc_rdma_remote_release(remote);
        }
    }
    pthread_mutex_unlock(&engine->lock);
    close_lanes(lanes);
    free_list(gone);
}

bool mc_peers_are_idle(const struct mc_transfer_engine *engine)
{
    for (uint32_t i = 0; i < MC_PEER_BUCKETS; i++)
        for (const struct mc_peer *peer = engine->peers[i]; peer != NULL; peer = peer->next)
            if (peer->references > 0)
                return false;
    return true;
}

void mc_peers_free(struct mc_transfer_engine *engine)
{
    mc_rdma_lanes_free(engine->ended);
    engine->ended = NULL;
    for (uint32_t i = 0; i < MC_PEER_BUCKETS; i++) {
        struct mc_peer *gone = NULL;
        unlink_idle(engine, &engine->peers[i], 0, &gone);
        free_list(gone);
        mc_assert(engine->peers[i] == NULL);
    }
}
