/* Links: which pairs there are, and how the two halves find each other. */
#include "rdma/inside.h"

#include "env/clock.h"
#include "env/json.h"
#include "env/log.h"
#include "env/thread.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define NEVER UINT64_MAX
#define PAUSE_FIRST_NS 100000000ull
#define FRUITLESS_MAX 2u        /* set-ups after which nothing arrived, until another device of the peer is tried */
#define ANSWER_NS 1500000000ull /* a driver that resolves addresses may take a second for each that is not there */

/* ---- pauses ---- */

/* When a pause ends that begins now, doubled so often. */
static uint64_t after(const struct mc_rdma_link *link, uint32_t doublings)
{
    uint64_t most_ns = (uint64_t)link->rdma->settings.pause_s * 1000000000u;
    uint64_t pause_ns = PAUSE_FIRST_NS << (doublings < 20 ? doublings : 20);
    return mc_clock_ns() + (pause_ns < most_ns ? pause_ns : most_ns);
}

void mc_rdma_pair_pause(struct mc_rdma_link *link, struct mc_rdma_pair *pair)
{
    uint32_t failures = pair->failures++, at_once = (uint32_t)link->rdma->settings.gid_retry_max;
    /* The first ones at once: another GID, another device of the peer is tried each time. */
    pair->due_ns = failures >= at_once ? after(link, failures - at_once) : mc_clock_ns();
}

void mc_rdma_pair_was_fruitless(struct mc_rdma_pair *pair)
{
    /* Where it was moved from worked: back to that. */
    pair->fruitless += pair->is_moved ? FRUITLESS_MAX : 1;
    pair->moves += pair->is_moved;
}

/* ---- opening ---- */

static struct mc_rdma_link *link_make(struct mc_rdma *rdma, bool is_serving)
{
    struct mc_rdma_link *link = calloc(1, sizeof(*link));
    if (link == NULL)
        return NULL;
    link->rdma = rdma;
    link->is_serving = is_serving;
    mc_monitor_init(&link->lock, &link->woken);
    for (uint32_t i = 0; i < MC_RDMA_PAIRS_MAX; i++) {
        struct mc_rdma_half none = {.gid_index = -1};
        link->pairs[i].current = link->pairs[i].fresh = none;
        link->pairs[i].due_ns = link->pairs[i].move_ns = NEVER;
        link->pairs[i].wire = i;
    }
    return link;
}

static int choose_among(struct mc_rdma_link *link, struct mc_rdma_device *device,
                        const struct mc_rdma_peer_device *peers, uint32_t rank)
{
    struct mc_rdma *rdma = link->rdma;
    pthread_mutex_lock(&rdma->lock);
    struct mc_rdma_local_device local = {device->name, device->number,    device->fabric,
                                         device->rows, device->row_count, rdma->settings.gid_index};
    int chosen = mc_rdma_choose_peer(&local, peers, link->peer_count, link->remote_mask, rank);
    pthread_mutex_unlock(&rdma->lock);
    return chosen;
}

/* The device of the peer that the pair tries in its next set-up. -1: none fits. */
static int choose_remote(struct mc_rdma_link *link, struct mc_rdma_device *device, uint32_t rank)
{
    return choose_among(link, device, link->peer_devices, rank);
}

/* The one that fits best of all that the peer has, whether it was up when the peer told of it or not. */
static int choose_home(struct mc_rdma_link *link, struct mc_rdma_device *device)
{
    struct mc_rdma_peer_device peers[MC_RDMA_DEVICES_MAX];
    for (uint32_t i = 0; i < link->peer_count; i++) {
        peers[i] = link->peer_devices[i];
        peers[i].is_up = true;
    }
    return choose_among(link, device, peers, 0);
}

static int queue_open(struct mc_rdma_link *link, struct mc_rdma_device *device, uint32_t entries)
{
    const struct mc_verbs *verbs = link->rdma->verbs;
    struct mc_rdma_queue *queue = &link->queues[link->queue_count];
    *queue = (struct mc_rdma_queue){.device = device};
    int vectors = device->context->num_comp_vectors;
    queue->cq = verbs->create_cq(device->context, (int)entries, link, device->channel,
                                 vectors > 1 ? (int)(link->rdma->turn++ % (uint32_t)vectors) : 0);
    if (queue->cq == NULL)
        return errno == ENOMEM ? MC_ERR_NO_MEMORY : MC_ERR_TRANSFER_FAIL;
    link->queue_count++;
    return 0;
}

static void queues_close(struct mc_rdma_link *link)
{
    const struct mc_verbs *verbs = link->rdma->verbs;
    while (link->queue_count > 0) /* waits until whoever holds an event of it has handed it out */
        (void)verbs->destroy_cq(link->queues[--link->queue_count].cq);
}

/* Requests that one queue pair may have under way: what settings, queue pairs and completion queues of all devices
 * allow. A queue that breaks completes every one of them, so there must be an entry for each. */
static uint32_t depth_of(const struct mc_rdma *rdma, uint32_t pairs_per_device)
{
    uint32_t depth = (uint32_t)rdma->settings.wr_max;
    for (uint32_t i = 0; i < rdma->device_count; i++) {
        const struct ibv_device_attr *attributes = &rdma->devices[i].attributes;
        uint32_t wr_max = attributes->max_qp_wr > 0 ? (uint32_t)attributes->max_qp_wr : 1;
        int64_t cqe_max = attributes->max_cqe < rdma->settings.cqe_max ? attributes->max_cqe : rdma->settings.cqe_max;
        uint32_t share = cqe_max >= pairs_per_device ? (uint32_t)cqe_max / pairs_per_device : 1;
        depth = depth < wr_max ? depth : wr_max;
        depth = depth < share ? depth : share;
    }
    return depth;
}

static int slices_open(struct mc_rdma_link *link)
{
    const struct mc_rdma_settings *settings = &link->rdma->settings;
    uint32_t fastest = 0, speeds[MC_RDMA_PAIRS_MAX];
    struct mc_slices_config config = {
        .slice_bytes = (uint64_t)settings->slice_bytes,
        .fragment_bytes = (uint64_t)(settings->slice_bytes / settings->fragment_ratio),
        .window_bytes = (uint64_t)settings->window_bytes,
        .retry_max = (uint32_t)settings->retry_max,
        .pair_count = link->pair_count,
    };
    for (uint32_t i = 0; i < link->pair_count; i++) {
        pthread_mutex_lock(&link->rdma->lock);
        speeds[i] = mc_rdma_device_speed(link->pairs[i].device);
        pthread_mutex_unlock(&link->rdma->lock);
        fastest = fastest < speeds[i] ? speeds[i] : fastest;
    }
    for (uint32_t i = 0; i < link->pair_count; i++)
        config.pairs[i] = (struct mc_slices_pair_config){
            .local_device = link->pairs[i].device->number,
            .depth = link->depth,
            .cost = speeds[i] > 0 ? (fastest + speeds[i] / 2) / speeds[i] : 1,
        };
    return mc_slices_init(&link->slices, &config);
}

/* Pairs in rounds, one of each device in each, so that the first ones already use all devices. */
static int pairs_open(struct mc_rdma_link *link)
{
    struct mc_rdma *rdma = link->rdma;
    uint32_t fitting[MC_RDMA_DEVICES_MAX], count = 0;
    for (uint32_t i = 0; i < rdma->device_count; i++)
        if ((link->local_mask == 0 || (link->local_mask >> i & 1) != 0) && !rdma->devices[i].is_lost &&
            choose_remote(link, &rdma->devices[i], 0) >= 0)
            fitting[count++] = i;
    if (count == 0)
        return MC_ERR_NOT_SUPPORTED;
    uint32_t rounds = (uint32_t)rdma->settings.pairs_per_device;
    if (rounds > MC_RDMA_ASKING_MAX / count)
        rounds = MC_RDMA_ASKING_MAX / count;
    link->depth = depth_of(rdma, rounds);
    for (uint32_t i = 0; i < count; i++) {
        int rc = queue_open(link, &rdma->devices[fitting[i]], link->depth * rounds);
        if (rc < 0)
            return rc;
    }
    for (uint32_t i = 0; i < rounds * count; i++) {
        struct mc_rdma_pair *pair = &link->pairs[link->pair_count++];
        pair->device = &rdma->devices[fitting[i % count]];
        pair->queue = i % count;
        pair->due_ns = 0;
    }
    return slices_open(link);
}

int mc_rdma_link_open(struct mc_rdma *rdma, const struct mc_rdma_link_options *options, struct mc_rdma_link **link)
{
    if (options->device_count > MC_RDMA_DEVICES_MAX)
        return MC_ERR_INVALID_PARAMS;
    struct mc_rdma_link *made = link_make(rdma, false);
    if (made == NULL)
        return MC_ERR_NO_MEMORY;
    made->id = mc_random_u64();
    made->local_mask = options->local_mask;
    made->remote_mask = options->remote_mask;
    made->checked_version = rdma->version;
    int rc = MC_ERR_NO_MEMORY;
    made->peer_devices = calloc(options->device_count + 1, sizeof(*made->peer_devices));
    if (made->peer_devices != NULL) {
        if (options->device_count > 0)
            memcpy(made->peer_devices, options->devices, options->device_count * sizeof(*made->peer_devices));
        made->peer_count = options->device_count;
        rc = pairs_open(made);
    }
    if (rc == 0) {
        *link = made;
        return 0;
    }
    mc_rdma_link_close(made);
    return rc;
}

/* ---- the asking half ---- */

/* The peer's device and the rank of our GID for the next set-up of a pair. -1: none fits. */
static int choose_next(struct mc_rdma_link *link, const struct mc_rdma_pair *pair, uint32_t *gid_rank)
{
    uint32_t gids = (uint32_t)link->rdma->settings.gid_retry_max + 1, failures = pair->setup_failures;
    *gid_rank = (pair->is_move ? pair->moves : failures) % gids;
    /* The peer's next device when all GIDs of ours were tried with this one, or it does not work. */
    return pair->is_move ? choose_home(link, pair->device)
                         : choose_remote(link, pair->device, failures / gids + pair->fruitless / FRUITLESS_MAX);
}

/* Makes the fresh half of one pair and says what it is. */
static int offer_pair(struct mc_rdma_link *link, struct mc_rdma_pair *pair, struct mc_rdma_tell *tell)
{
    char reason[MC_RDMA_REASON_MAX] = "";
    uint32_t gid_rank;
    int remote = choose_next(link, pair, &gid_rank);
    int rc = remote < 0 ? MC_ERR_NOT_SUPPORTED : 0;
    if (rc == 0)
        rc = mc_rdma_half_create(link, pair, &pair->fresh, reason, sizeof(reason));
    if (rc == 0)
        rc = mc_rdma_half_choose_gid(pair, &pair->fresh, link->peer_devices[remote].gid, gid_rank, reason,
                                     sizeof(reason));
    if (rc < 0) {
        snprintf(pair->error, sizeof(pair->error), "%s", remote < 0 ? "no device of the peer fits" : reason);
        mc_rdma_half_destroy(link->rdma, &pair->fresh);
        return rc;
    }
    memset(tell, 0, sizeof(*tell));
    pair->fresh.remote = (uint32_t)remote;
    pair->fresh.wire = pair->is_move ? (pair->wire + MC_RDMA_ASKING_MAX) % MC_RDMA_PAIRS_MAX : pair->wire;
    mc_rdma_half_tell(pair, &pair->fresh, tell);
    tell->pair = pair->fresh.wire;
    tell->is_cm = mc_rdma_device_uses_cm(pair->device);
    snprintf(tell->peer, sizeof(tell->peer), "%s", link->peer_devices[remote].name);
    pair->fresh_state = MC_RDMA_FRESH_OFFERED;
    return 0;
}

/* A set-up has failed. link->lock is held. */
static void setup_failed(struct mc_rdma_link *link, struct mc_rdma_pair *pair)
{
    pair->fresh_state = MC_RDMA_FRESH_NONE;
    if (pair->is_move) {
        pair->move_ns = after(link, ++pair->moves);
        return;
    }
    pair->setup_failures++;
    mc_rdma_pair_pause(link, pair);
}

/* 1: the pair is offered. 0: it is not due. Negative: it is, but cannot be. */
static int offer_if_due(struct mc_rdma_link *link, struct mc_rdma_pair *pair, struct mc_rdma_tell *tell)
{
    uint64_t now_ns = mc_clock_ns();
    if ((pair->due_ns > now_ns && pair->move_ns > now_ns) || !mc_rdma_device_is_up(pair->device))
        return 0;
    int rc = 0;
    pthread_mutex_lock(&link->lock);
    /* A half that is ready is taken first. One that is broken and not yet destroyed counts as there. */
    bool is_move = pair->current.qp != NULL;
    if (pair->fresh_state == MC_RDMA_FRESH_NONE && (is_move ? pair->move_ns : pair->due_ns) <= now_ns) {
        pair->is_move = is_move;
        pair->due_ns = pair->move_ns = NEVER;
        rc = offer_pair(link, pair, tell);
        if (rc < 0)
            setup_failed(link, pair);
        rc = rc == 0 ? 1 : is_move ? 0 : rc;
    }
    pthread_mutex_unlock(&link->lock);
    return rc;
}

int mc_rdma_link_offer(struct mc_rdma_link *link, struct mc_buffer *offer)
{
    mc_assert(!link->is_serving);
    struct mc_rdma_message *message = calloc(1, sizeof(*message));
    if (message == NULL)
        return MC_ERR_NO_MEMORY;
    message->link = link->id;
    int rc = 0;
    for (uint32_t i = 0; i < link->pair_count; i++) {
        int made = offer_if_due(link, &link->pairs[i], &message->pairs[message->count]);
        message->count += made == 1;
        rc = made < 0 ? made : rc;
    }
    if (message->count > 0) {
        mc_rdma_message_put(message, offer);
        rc = 1;
    }
    free(message);
    return rc;
}

static const struct mc_rdma_tell *find_tell(const struct mc_rdma_message *message, uint32_t pair)
{
    for (uint32_t i = 0; i < message->count; i++)
        if (message->pairs[i].pair == pair)
            return &message->pairs[i];
    return NULL;
}

/* What the peer said of a pair that was offered: connect, or not. Only this thread touches a half that was offered. */
static void complete_pair(struct mc_rdma_link *link, uint32_t number, const struct mc_rdma_tell *tell,
                          uint64_t deadline_ns)
{
    struct mc_rdma_pair *pair = &link->pairs[number];
    char reason[MC_RDMA_REASON_MAX] = "the peer did not answer";
    int rc = MC_ERR_TRANSFER_FAIL;
    if (tell != NULL && tell->error[0] != 0)
        snprintf(reason, sizeof(reason), "%s", tell->error);
    else if (tell != NULL && mc_clock_ns() >= deadline_ns)
        snprintf(reason, sizeof(reason), "the deadline came during set-up");
    else if (tell != NULL && tell->is_cm != mc_rdma_device_uses_cm(pair->device))
        snprintf(reason, sizeof(reason), "the peer sets up another way: MC_RDMA_SETUP must be the same on both sides");
    else if (tell != NULL && tell->is_cm)
        rc = mc_rdma_cm_connect(link, number, &pair->fresh, tell, deadline_ns, reason, sizeof(reason));
    else if (tell != NULL)
        rc = mc_rdma_half_connect(link, pair, &pair->fresh, tell, reason, sizeof(reason));
    int home = rc == 0 ? choose_home(link, pair->device) : -1;
    struct mc_rdma_half failed = {.gid_index = -1};
    pthread_mutex_lock(&link->lock);
    snprintf(pair->error, sizeof(pair->error), "%s", rc == 0 ? "" : reason);
    if (rc == 0) {
        pair->fresh_state = MC_RDMA_FRESH_READY;
        pair->setup_failures = 0;
        if (home >= 0 && (uint32_t)home != pair->fresh.remote)
            pair->move_ns = after(link, pair->moves);
        link->rdma->count.pairs_made++;
        /* With the state: a run that takes the pair clears its bit, which must not come after that. */
        atomic_fetch_or(&link->fresh_mask, 1u << number);
    } else {
        failed = pair->fresh;
        pair->fresh = (struct mc_rdma_half){.gid_index = -1};
        setup_failed(link, pair);
    }
    pthread_mutex_unlock(&link->lock);
    mc_rdma_half_destroy(link->rdma, &failed);
}

int mc_rdma_link_complete(struct mc_rdma_link *link, struct mc_span answer, uint64_t deadline_ns)
{
    struct mc_rdma_message *message = calloc(1, sizeof(*message));
    if (message == NULL)
        return MC_ERR_NO_MEMORY; /* the pairs stay offered; the next call ends them */
    int rc = answer.length == 0 ? 0 : mc_rdma_message_parse(answer, message);
    if (rc == 0 && answer.length > 0 && message->link != link->id)
        rc = MC_ERR_PROTOCOL;
    if (rc < 0)
        message->count = 0;
    uint32_t offered = 0;
    pthread_mutex_lock(&link->lock);
    for (uint32_t i = 0; i < link->pair_count; i++)
        offered |= link->pairs[i].fresh_state == MC_RDMA_FRESH_OFFERED ? 1u << i : 0;
    pthread_mutex_unlock(&link->lock);
    for (uint32_t i = 0; i < link->pair_count; i++)
        if ((offered >> i & 1) != 0)
            complete_pair(link, i, find_tell(message, link->pairs[i].fresh.wire), deadline_ns);
    free(message);
    if (rc < 0)
        return rc;
    uint32_t ready = mc_rdma_link_ready(link);
    if (ready > 0)
        return (int)ready;
    char reason[MC_RDMA_REASON_MAX] = "";
    pthread_mutex_lock(&link->lock);
    for (uint32_t i = 0; i < link->pair_count && reason[0] == 0; i++)
        snprintf(reason, sizeof(reason), "%s", link->pairs[i].error);
    pthread_mutex_unlock(&link->lock);
    mc_log_limited(WARNING, "no RDMA to this peer: %s", reason);
    return MC_ERR_TRANSFER_FAIL;
}

uint64_t mc_rdma_link_due_ns(const struct mc_rdma_link *link)
{
    uint64_t due_ns = NEVER;
    for (uint32_t i = 0; i < link->pair_count; i++) {
        uint64_t its_ns = link->pairs[i].due_ns, move_ns = link->pairs[i].move_ns;
        its_ns = move_ns < its_ns ? move_ns : its_ns;
        if (its_ns < due_ns && mc_rdma_device_is_up(link->pairs[i].device))
            due_ns = its_ns;
    }
    return due_ns == NEVER || due_ns > mc_clock_ns() ? due_ns : 0;
}

uint32_t mc_rdma_link_ready(const struct mc_rdma_link *link)
{
    uint32_t fresh = link->fresh_mask, ready = 0;
    for (uint32_t i = 0; i < link->pair_count; i++)
        ready += (link->pairs[i].is_up || (fresh >> i & 1) != 0) && mc_rdma_device_is_up(link->pairs[i].device);
    return ready;
}

/* ---- the serving half ---- */

static struct mc_rdma_device *device_named(struct mc_rdma *rdma, const char *name)
{
    for (uint32_t i = 0; i < rdma->device_count; i++)
        if (strcmp(rdma->devices[i].name, name) == 0)
            return &rdma->devices[i];
    return NULL;
}

/* A queue pair at work with what the peer has told. The GIDs that fit are tried in turn. */
static int serve_oob(struct mc_rdma_link *link, struct mc_rdma_pair *pair, const struct mc_rdma_tell *asked,
                     struct mc_rdma_tell *tell)
{
    int rc = MC_ERR_TRANSFER_FAIL;
    int64_t ranks = link->rdma->settings.gid_retry_max + 1;
    for (int64_t rank = 0; rc != 0 && rank < ranks; rank++) {
        rc = mc_rdma_half_create(link, pair, &pair->current, tell->error, sizeof(tell->error));
        if (rc == 0)
            rc = mc_rdma_half_choose_gid(pair, &pair->current, asked->gid, (unsigned)rank, tell->error,
                                         sizeof(tell->error));
        if (rc == 0)
            rc = mc_rdma_half_connect(link, pair, &pair->current, asked, tell->error, sizeof(tell->error));
        if (rc != 0)
            mc_rdma_half_destroy(link->rdma, &pair->current);
    }
    if (rc == 0) {
        tell->error[0] = 0;
        mc_rdma_half_tell(pair, &pair->current, tell);
        pair->is_up = true;
        link->rdma->count.pairs_served++;
    }
    return rc;
}

static int serve_cm(struct mc_rdma_pair *pair, const struct mc_rdma_tell *asked, struct mc_rdma_tell *tell)
{
    if (!mc_rdma_cm_address(pair->device, asked->gid, tell->cm_address, sizeof(tell->cm_address))) {
        snprintf(tell->error, sizeof(tell->error), "%s has no address for rdma_cm", pair->device->name);
        return MC_ERR_NOT_SUPPORTED;
    }
    tell->is_cm = true;
    tell->token = mc_random_u64() | 1;
    pair->token = tell->token;
    return 0;
}

static int serve_pair(struct mc_rdma_link *link, const struct mc_rdma_tell *asked, struct mc_rdma_tell *tell)
{
    struct mc_rdma_pair *pair = &link->pairs[asked->pair];
    struct mc_rdma_device *device = device_named(link->rdma, asked->peer);
    memset(tell, 0, sizeof(*tell));
    tell->pair = asked->pair;
    snprintf(tell->device, sizeof(tell->device), "%s", asked->peer);
    if (device == NULL || !mc_rdma_device_is_up(device)) {
        snprintf(tell->error, sizeof(tell->error), "%s is %s at the peer", asked->peer,
                 device == NULL ? "not used" : "down");
        return MC_ERR_NOT_SUPPORTED;
    }
    if (asked->is_cm != mc_rdma_device_uses_cm(device)) {
        snprintf(tell->error, sizeof(tell->error), "%s of the peer is set up %s: MC_RDMA_SETUP must be the same",
                 asked->peer, asked->is_cm ? "out of band" : "by rdma_cm");
        return MC_ERR_NOT_SUPPORTED;
    }
    pthread_mutex_lock(&link->lock);
    pair->device = device;
    int rc = asked->is_cm ? serve_cm(pair, asked, tell) : serve_oob(link, pair, asked, tell);
    pthread_mutex_unlock(&link->lock);
    return rc;
}

/* The pair's old half is destroyed first: what its peer wrote through it has ended when the answer is there. */
static void drop_half(struct mc_rdma_link *link, struct mc_rdma_pair *pair)
{
    pthread_mutex_lock(&link->lock);
    struct mc_rdma_half old = pair->current;
    pair->current = (struct mc_rdma_half){.gid_index = -1};
    pair->is_up = false;
    pair->token = 0;
    pthread_mutex_unlock(&link->lock);
    mc_rdma_half_destroy(link->rdma, &old);
}

static int list_serving(struct mc_rdma_link *link)
{
    struct mc_rdma *rdma = link->rdma;
    pthread_mutex_lock(&rdma->lock);
    int rc = rdma->serving_count < MC_RDMA_SERVED_MAX ? 0 : MC_ERR_BUSY;
    if (rc == 0) {
        rdma->serving_count++;
        link->next = rdma->serving;
        rdma->serving = link;
    }
    pthread_mutex_unlock(&rdma->lock);
    return rc;
}

static void unlist_serving(struct mc_rdma_link *link)
{
    struct mc_rdma *rdma = link->rdma;
    pthread_mutex_lock(&rdma->lock);
    while (link->is_visited)
        pthread_cond_wait(&rdma->unvisited, &rdma->lock);
    for (struct mc_rdma_link **at = &rdma->serving; *at != NULL; at = &(*at)->next)
        if (*at == link) {
            *at = link->next;
            rdma->serving_count--;
            break;
        }
    pthread_mutex_unlock(&rdma->lock);
}

static int answer_all(struct mc_rdma_link *link, const struct mc_rdma_message *asked, struct mc_buffer *answer)
{
    struct mc_rdma_message *message = calloc(1, sizeof(*message));
    if (message == NULL)
        return MC_ERR_NO_MEMORY;
    uint32_t ready = 0;
    uint64_t end_ns = mc_clock_ns() + ANSWER_NS;
    message->link = asked->link;
    for (uint32_t i = 0; i < asked->count; i++) {
        const struct mc_rdma_tell *one = &asked->pairs[i];
        struct mc_rdma_tell *tell = &message->pairs[message->count++];
        drop_half(link, &link->pairs[one->pair]);
        if (mc_clock_ns() < end_ns) {
            ready += serve_pair(link, one, tell) == 0;
        } else {
            tell->pair = one->pair;
            snprintf(tell->error, sizeof(tell->error), "those before it took too long");
        }
    }
    mc_rdma_message_put(message, answer);
    free(message);
    return ready > 0 ? 0 : MC_ERR_NOT_SUPPORTED;
}

int mc_rdma_link_answer(struct mc_rdma *rdma, struct mc_rdma_link **link, struct mc_span offer,
                        struct mc_buffer *answer)
{
    struct mc_rdma_message *asked = calloc(1, sizeof(*asked));
    struct mc_rdma_link *half = *link;
    int rc = asked == NULL ? MC_ERR_NO_MEMORY : mc_rdma_message_parse(offer, asked);
    if (rc == 0 && half != NULL && (half->id != asked->link || !half->is_serving))
        rc = MC_ERR_PROTOCOL;
    if (rc == 0 && half == NULL) {
        half = link_make(rdma, true);
        rc = half == NULL ? MC_ERR_NO_MEMORY : 0;
        if (rc == 0) {
            half->id = asked->link;
            half->pair_count = MC_RDMA_PAIRS_MAX;
            rc = list_serving(half);
        }
    }
    if (rc == 0)
        rc = answer_all(half, asked, answer);
    free(asked);
    if (rc < 0 && *link == NULL && half != NULL) {
        mc_rdma_link_close(half);
        return rc;
    }
    *link = half;
    return *link != NULL && rc == MC_ERR_NOT_SUPPORTED ? 0 : rc; /* other pairs of it stand */
}

/* ---- the end ---- */

void mc_rdma_link_close(struct mc_rdma_link *link)
{
    mc_assert(!link->is_running);
    if (link->is_serving)
        unlist_serving(link);
    for (uint32_t i = 0; i < link->pair_count; i++) {
        mc_rdma_half_destroy(link->rdma, &link->pairs[i].current);
        mc_rdma_half_destroy(link->rdma, &link->pairs[i].fresh);
    }
    queues_close(link);
    mc_slices_free(&link->slices);
    free(link->peer_devices);
    pthread_cond_destroy(&link->woken);
    pthread_mutex_destroy(&link->lock);
    free(link);
}

void mc_rdma_link_describe(const struct mc_rdma_link *link, struct mc_buffer *out)
{
    bool is_first = true;
    mc_buffer_printf(out, "[");
    for (uint32_t i = 0; i < link->pair_count; i++) {
        struct mc_rdma_pair *pair = (struct mc_rdma_pair *)&link->pairs[i]; /* only its lock changes */
        if (pair->device == NULL)
            continue;
        char gid[MC_GID_TEXT_MAX], error[MC_RDMA_REASON_MAX];
        pthread_mutex_lock((pthread_mutex_t *)&link->lock);
        bool is_fresh = pair->current.qp == NULL && pair->fresh_state != MC_RDMA_FRESH_NONE;
        const struct mc_rdma_half *half = is_fresh ? &pair->fresh : &pair->current;
        mc_gid_format(half->gid, gid, sizeof(gid));
        uint32_t remote = half->remote;
        snprintf(error, sizeof(error), "%s", pair->error);
        pthread_mutex_unlock((pthread_mutex_t *)&link->lock);
        bool is_ready = pair->is_up || (link->fresh_mask >> i & 1) != 0;
        mc_buffer_printf(out, "%s{\"pair\":%u,\"device\":", is_first ? "" : ",", (unsigned)i);
        mc_json_put_text(out, pair->device->name);
        mc_buffer_printf(out, ",\"peer\":");
        mc_json_put_text(out, remote < link->peer_count ? link->peer_devices[remote].name : "");
        mc_buffer_printf(out, ",\"gid\":\"%s\",\"state\":\"%s\",\"bytes\":%llu,\"failures\":%u,\"error\":", gid,
                         is_ready ? "ready" : "down", (unsigned long long)pair->bytes, (unsigned)pair->failures);
        mc_json_put_text(out, error);
        mc_buffer_printf(out, "}");
        is_first = false;
    }
    mc_buffer_printf(out, "]");
}
