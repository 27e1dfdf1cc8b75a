/* Links: which pairs there are, and how the two halves find each other. */
#include "rdma/link.h"
#include "rdma/pair.h"
#include "rdma/setup.h"

#include "env/clock.h"
#include "env/json.h"
#include "env/log.h"
#include "env/thread.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define NEVER UINT64_MAX
#define ANSWER_MS 1500u /* an answer may take so long, unless the offer says for how long it is waited for */
#define ANSWER_MAX_MS 4000u
#define ANSWER_REST 9u            /* then no offer is waited for as long for so many times that: a tenth of the time */
#define ANSWER_SHORT_MS 20u       /* where the thread that answers serves others, too */
#define WANTED_NS 10000000000ull  /* whoever does not ask again for so long has given up */
#define PENDING_NS 30000000000ull /* the peer may take so long to decide */
#define ASK_FIRST_NS 50000000ull
#define LOOK_NS 20000000ull

/* ---- opening ---- */

static struct mc_rdma_link *link_make(struct mc_rdma *rdma, bool is_serving)
{
    struct mc_rdma_link *link = calloc(1, sizeof(*link));
    if (link == NULL)
        return NULL;
    link->rdma = rdma;
    link->is_serving = is_serving;
    link->wanted_until_ns = NEVER;
    mc_monitor_init(&link->lock, &link->woken);
    for (uint32_t i = 0; i < MC_RDMA_PAIRS_MAX; i++) {
        struct mc_rdma_half none = {.gid_index = -1};
        link->pairs[i].current = link->pairs[i].fresh = none;
        link->pairs[i].due_ns = link->pairs[i].move_ns = NEVER;
        link->pairs[i].wire = i;
        link->pairs[i].link = link;
    }
    return link;
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
            mc_rdma_pair_choose_remote(link, &rdma->devices[i], 0) >= 0)
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

/* Says what the fresh half is. */
static void tell_fresh(struct mc_rdma_link *link, struct mc_rdma_pair *pair, struct mc_rdma_tell *tell)
{
    memset(tell, 0, sizeof(*tell));
    mc_rdma_half_tell(pair, &pair->fresh, tell);
    tell->pair = pair->fresh.wire;
    tell->is_cm = mc_rdma_device_uses_cm(pair->device);
    snprintf(tell->peer, sizeof(tell->peer), "%s", link->peer_devices[pair->fresh.remote].name);
    pair->fresh_state = MC_RDMA_FRESH_OFFERED;
}

/* Makes the fresh half of one pair. */
static int make_fresh(struct mc_rdma_link *link, struct mc_rdma_pair *pair)
{
    char reason[MC_RDMA_REASON_MAX] = "";
    uint32_t gid_rank;
    int remote = mc_rdma_pair_choose_next(link, pair, &gid_rank);
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
    pair->fresh.remote = (uint32_t)remote;
    pair->fresh.wire = pair->is_move ? (pair->wire + MC_RDMA_ASKING_MAX) % MC_RDMA_PAIRS_MAX : pair->wire;
    pair->offered_ns = mc_clock_ns();
    pair->asks = 0;
    return 0;
}

/* link->lock is held. The peer had not decided when it was asked last. 1: it is asked again. */
static int ask_again(struct mc_rdma_link *link, struct mc_rdma_pair *pair, struct mc_rdma_tell *tell)
{
    *(pair->is_move ? &pair->move_ns : &pair->due_ns) = NEVER;
    if (mc_clock_ns() - pair->offered_ns < PENDING_NS) {
        tell_fresh(link, pair, tell);
        return 1;
    }
    mc_rdma_half_destroy(link->rdma, &pair->fresh);
    mc_rdma_pair_setup_failed(link, pair);
    return 0;
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
    if (pair->fresh_state == MC_RDMA_FRESH_PENDING && pair->is_move && !is_move && pair->due_ns <= now_ns) {
        /* What it was to take the place of has broken meanwhile: the pair begins anew, with the device that was up. */
        mc_rdma_half_destroy(link->rdma, &pair->fresh);
        pair->fresh_state = MC_RDMA_FRESH_NONE;
    }
    if (pair->fresh_state == MC_RDMA_FRESH_PENDING) {
        if ((pair->is_move ? pair->move_ns : pair->due_ns) <= now_ns)
            rc = ask_again(link, pair, tell);
    } else if (pair->fresh_state == MC_RDMA_FRESH_NONE && (is_move ? pair->move_ns : pair->due_ns) <= now_ns) {
        pair->is_move = is_move;
        pair->due_ns = pair->move_ns = NEVER;
        rc = make_fresh(link, pair);
        if (rc < 0)
            mc_rdma_pair_setup_failed(link, pair);
        else
            tell_fresh(link, pair, tell);
        rc = rc == 0 ? 1 : is_move ? 0 : rc;
    }
    pthread_mutex_unlock(&link->lock);
    return rc;
}

int mc_rdma_link_offer(struct mc_rdma_link *link, uint64_t wait_ms, struct mc_buffer *offer)
{
    mc_assert(!link->is_serving);
    struct mc_rdma_message *message = calloc(1, sizeof(*message));
    if (message == NULL)
        return MC_ERR_NO_MEMORY;
    message->link = link->id;
    message->wait_ms = wait_ms;
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

/* What the peer said of a pair that was offered: connect, ask again, or not. Only this thread touches a half that was
 * offered. */
static void complete_pair(struct mc_rdma_link *link, uint32_t number, const struct mc_rdma_tell *tell)
{
    struct mc_rdma_pair *pair = &link->pairs[number];
    struct mc_rdma_half failed = {.gid_index = -1};
    const char *reason = NULL;
    pthread_mutex_lock(&link->lock);
    if (tell == NULL)
        reason = "the peer did not answer";
    else if (tell->error[0] != 0)
        reason = tell->error;
    else if (tell->is_cm != mc_rdma_device_uses_cm(pair->device))
        reason = "the peer sets up another way: MC_RDMA_SETUP must be the same on both sides";
    if (tell != NULL && tell->is_pending) {
        *(pair->is_move ? &pair->move_ns : &pair->due_ns) =
            mc_clock_ns() + (ASK_FIRST_NS << (pair->asks < 5 ? pair->asks : 5));
        pair->asks++;
        pair->fresh_state = MC_RDMA_FRESH_PENDING;
    } else if (reason == NULL) {
        pair->fresh_state = MC_RDMA_FRESH_CONNECTING;
        if (!mc_rdma_setup_begin(pair, pair->device, tell))
            reason = "no memory, or no thread";
    }
    if (reason != NULL)
        snprintf(pair->error, sizeof(pair->error), "%s", reason);
    if (reason != NULL && pair->fresh_state != MC_RDMA_FRESH_PENDING) {
        failed = pair->fresh;
        pair->fresh = (struct mc_rdma_half){.gid_index = -1};
        mc_rdma_pair_setup_failed(link, pair);
    }
    pthread_mutex_unlock(&link->lock);
    mc_rdma_half_destroy(link->rdma, &failed);
}

/* Those that connect are waited for, but not long once some stand: they go on by themselves. */
static void wait_for_pairs(struct mc_rdma_link *link, uint64_t deadline_ns)
{
    uint64_t now_ns = mc_clock_ns(), grace_ns = now_ns + link->rdma->grace_ns;
    while (mc_rdma_setup_is_busy(link, UINT32_MAX) && now_ns < deadline_ns &&
           (now_ns < grace_ns || mc_rdma_link_ready(link) == 0)) {
        uint64_t until_ns = now_ns + LOOK_NS < deadline_ns ? now_ns + LOOK_NS : deadline_ns;
        mc_rdma_setup_wait(link, UINT32_MAX, until_ns);
        now_ns = mc_clock_ns();
    }
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
            complete_pair(link, i, find_tell(message, link->pairs[i].fresh.wire));
    free(message);
    if (rc < 0)
        return rc;
    wait_for_pairs(link, deadline_ns);
    uint32_t ready = mc_rdma_link_ready(link);
    if (ready > 0)
        return (int)ready;
    char reason[MC_RDMA_REASON_MAX] = "";
    bool is_pending = false;
    pthread_mutex_lock(&link->lock);
    for (uint32_t i = 0; i < link->pair_count; i++) {
        is_pending |= link->pairs[i].fresh_state != MC_RDMA_FRESH_NONE;
        if (reason[0] == 0)
            snprintf(reason, sizeof(reason), "%s", link->pairs[i].error);
    }
    pthread_mutex_unlock(&link->lock);
    if (is_pending)
        return 0;
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

static int serve_cm(struct mc_rdma_pair *pair, struct mc_rdma_tell *told)
{
    if (!mc_rdma_cm_address(pair->device, told->gid, told->cm_address, sizeof(told->cm_address))) {
        snprintf(pair->error, sizeof(pair->error), "%s has no address for rdma_cm", pair->device->name);
        return MC_ERR_NOT_SUPPORTED;
    }
    told->token = mc_random_u64() | 1;
    pair->token = told->token;
    return 0;
}

/* link->lock is held. Begins with what was asked for; what cannot be has an error. */
static void serve_pair(struct mc_rdma_link *link, struct mc_rdma_pair *pair, const struct mc_rdma_tell *asked)
{
    struct mc_rdma_device *device = mc_rdma_device_named(link->rdma, asked->peer);
    struct mc_rdma_tell told = *asked;
    bool is_idle = mc_rdma_setup_recall(pair); /* what was asked for before is of no use */
    pair->error[0] = 0;
    if (device == NULL || !mc_rdma_device_is_up(device)) {
        snprintf(pair->error, sizeof(pair->error), "%s is %s at the peer", asked->peer,
                 device == NULL ? "not used" : "down");
    } else if (asked->is_cm != mc_rdma_device_uses_cm(device)) {
        snprintf(pair->error, sizeof(pair->error), "%s of the peer is set up %s: MC_RDMA_SETUP must be the same",
                 asked->peer, asked->is_cm ? "out of band" : "by rdma_cm");
    } else if (asked->is_cm && !is_idle) { /* a thread is at work with the pair's device */
        snprintf(pair->error, sizeof(pair->error), "what was asked for before is being set up still");
    } else if (asked->is_cm) {
        pair->device = device;
        (void)serve_cm(pair, &told);
    } else {
        if (!mc_rdma_setup_begin(pair, device, asked))
            snprintf(pair->error, sizeof(pair->error), "no memory, or no thread");
        return;
    }
    pair->round++;
    if (pair->told == NULL)
        pair->told = malloc(sizeof(*pair->told));
    if (pair->told != NULL)
        *pair->told = told;
}

/* The same half as before, which stands or is being set up: its asker has only lost patience. */
static bool is_known(struct mc_rdma_link *link, const struct mc_rdma_pair *pair, const struct mc_rdma_tell *asked)
{
    const struct mc_rdma_tell *told = pair->told;
    return told != NULL && !asked->is_cm && !told->is_cm && told->qpn == asked->qpn && told->psn == asked->psn &&
           told->lid == asked->lid && told->mtu_bytes == asked->mtu_bytes && strcmp(told->peer, asked->peer) == 0 &&
           memcmp(told->gid, asked->gid, MC_GID_BYTES) == 0 &&
           (pair->is_up || mc_rdma_setup_is_busy(link, 1u << (uint32_t)(pair - link->pairs)));
}

/* The pair's old half is destroyed: what its peer wrote through it has ended when the answer is there. */
static void take_in(struct mc_rdma_link *link, const struct mc_rdma_tell *asked)
{
    struct mc_rdma_pair *pair = &link->pairs[asked->pair];
    struct mc_rdma_half old = {.gid_index = -1};
    pthread_mutex_lock(&link->lock);
    if (!is_known(link, pair, asked)) {
        old = pair->current;
        pair->current = (struct mc_rdma_half){.gid_index = -1};
        pair->is_up = false;
        pair->token = 0;
        serve_pair(link, pair, asked);
    }
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

int mc_rdma_link_serve(struct mc_rdma *rdma, struct mc_rdma_link **link, struct mc_span offer,
                       void (*notify)(void *context), void *context)
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
            half->notify = notify;
            half->notify_context = context;
            rc = list_serving(half);
            if (rc < 0)
                mc_rdma_link_close(half);
        }
    }
    if (rc == 0) {
        uint64_t wait_ms = asked->wait_ms == 0 ? ANSWER_MS : asked->wait_ms;
        half->wait_ns = ((wait_ms < ANSWER_MAX_MS ? wait_ms : ANSWER_MAX_MS) - 1) * 1000000u;
        half->has_wait = asked->wait_ms != 0;
        half->asked_ns = mc_clock_ns();
        half->wanted_until_ns = half->asked_ns + half->wait_ns + WANTED_NS;
        half->asked = 0;
        for (uint32_t i = 0; i < asked->count; i++) {
            half->asked |= 1u << asked->pairs[i].pair;
            take_in(half, &asked->pairs[i]);
        }
        *link = half;
    }
    free(asked);
    return rc;
}

uint64_t mc_rdma_link_answer_due_ns(struct mc_rdma_link *link)
{
    bool is_any_up = false;
    if (!mc_rdma_setup_is_busy(link, link->asked))
        return 0;
    for (uint32_t i = 0; i < link->pair_count; i++)
        is_any_up |= (link->asked >> i & 1) != 0 && link->pairs[i].is_up;
    uint64_t grace_ns = link->rdma->grace_ns;
    return link->asked_ns + (is_any_up && grace_ns < link->wait_ns ? grace_ns : link->wait_ns);
}

/* True: the pair stands, or may yet. */
static bool tell_served(struct mc_rdma_link *link, uint32_t number, struct mc_rdma_tell *tell)
{
    struct mc_rdma_pair *pair = &link->pairs[number];
    pthread_mutex_lock(&link->lock);
    tell->pair = number;
    if (pair->told != NULL)
        snprintf(tell->device, sizeof(tell->device), "%s", pair->told->peer);
    bool is_up = pair->is_up && pair->current.id == NULL;
    if (is_up) {
        mc_rdma_half_tell(pair, &pair->current, tell);
    } else if (pair->token != 0 && pair->told != NULL) {
        tell->is_cm = true;
        tell->token = pair->token;
        snprintf(tell->cm_address, sizeof(tell->cm_address), "%s", pair->told->cm_address);
    } else {
        tell->is_pending = mc_rdma_setup_is_busy(link, 1u << number);
        snprintf(tell->error, sizeof(tell->error), "%s",
                 tell->is_pending      ? "it is still being set up"
                 : pair->error[0] == 0 ? "it is not set up"
                                       : pair->error);
    }
    pthread_mutex_unlock(&link->lock);
    return tell->error[0] == 0 || tell->is_pending;
}

int mc_rdma_link_put_answer(struct mc_rdma_link *link, struct mc_buffer *answer)
{
    struct mc_rdma_message *message = calloc(1, sizeof(*message));
    if (message == NULL)
        return MC_ERR_NO_MEMORY;
    bool is_any = false;
    message->link = link->id;
    for (uint32_t i = 0; i < link->pair_count; i++)
        if ((link->asked >> i & 1) != 0)
            is_any |= tell_served(link, i, &message->pairs[message->count++]);
    mc_rdma_message_put(message, answer);
    free(message);
    return is_any ? 0 : MC_ERR_NOT_SUPPORTED;
}

int mc_rdma_link_answer(struct mc_rdma *rdma, struct mc_rdma_link **link, struct mc_span offer,
                        struct mc_buffer *answer)
{
    bool is_new = *link == NULL;
    int rc = mc_rdma_link_serve(rdma, link, offer, NULL, NULL);
    if (rc < 0 || *link == NULL)
        return rc;
    /* Others wait for this thread. Who names a time asks again for what is not decided; others do not know the word. */
    uint64_t start_ns = mc_clock_ns();
    bool is_short = (*link)->has_wait || start_ns < atomic_load(&rdma->rest_until_ns);
    uint64_t most_ns = (is_short ? ANSWER_SHORT_MS : ANSWER_MS) * 1000000ull;
    (*link)->wait_ns = (*link)->wait_ns < most_ns ? (*link)->wait_ns : most_ns;
    for (uint64_t due_ns, now_ns; (now_ns = mc_clock_ns()) < (due_ns = mc_rdma_link_answer_due_ns(*link));)
        mc_rdma_setup_wait(*link, (*link)->asked, now_ns + LOOK_NS < due_ns ? now_ns + LOOK_NS : due_ns);
    if (!is_short) {
        uint64_t end_ns = mc_clock_ns();
        atomic_store(&rdma->rest_until_ns, end_ns + ANSWER_REST * (end_ns - start_ns));
    }
    rc = mc_rdma_link_put_answer(*link, answer);
    if (rc < 0 && is_new) {
        mc_rdma_link_close(*link);
        *link = NULL;
        return rc;
    }
    return rc == MC_ERR_NOT_SUPPORTED ? 0 : rc; /* other pairs of it stand */
}

/* ---- the end ---- */

void mc_rdma_link_close(struct mc_rdma_link *link)
{
    mc_assert(!link->is_running);
    mc_rdma_setup_leave(link);
    if (link->is_serving)
        unlist_serving(link);
    for (uint32_t i = 0; i < link->pair_count; i++) {
        mc_rdma_half_destroy(link->rdma, &link->pairs[i].current);
        mc_rdma_half_destroy(link->rdma, &link->pairs[i].fresh);
    }
    mc_rdma_setup_release(link); /* a set-up of it may be asleep in the kernel; nobody is told of what it makes */
}
